//! What is told of a prompt while it is computed: how far it is, and its own log-probabilities; and of an answer, token by
//! token.

use engine::api::{Finish, Miss, Strategy, Submission, TokenLogprob};
use engine::ids::{Ticket, TokenId};
use engine::limits::Limits;
use engine::sample::{self, Scratch};
use engine_tests::toy::{Rig, ToyConfig, logits, speculation, submission};

fn any_prompt(len: usize) -> Vec<u32> {
    (0..len as u64).map(|i| (sample::random_bits(5, 0, i as u32) % 12) as u32).collect()
}

/// Log-probabilities of a text behind its first token, one plain pass each.
fn naive(config: &ToyConfig, tokens: &[TokenId], n: usize) -> Vec<TokenLogprob> {
    let (mut row, mut scratch) = (Vec::new(), Scratch::default());
    let one = |at: usize| {
        logits(config, &tokens[..at], &mut row);
        let mut top = Vec::new();
        let logprob = sample::log_probs(&row, &mut scratch, tokens[at], n, &mut top);
        TokenLogprob { token: tokens[at], logprob, top }
    };
    (1..tokens.len()).map(one).collect()
}

fn scored(ticket: u64, len: usize, max_tokens: u32, strategy: Strategy) -> Submission {
    let mut s = submission(ticket, &any_prompt(len), max_tokens, speculation(strategy, 7));
    (s.prompt_logprobs, s.logprobs) = (true, Some(2));
    s
}

fn toy(strategy: Strategy) -> ToyConfig {
    ToyConfig { hidden_rows: if strategy.uses_mtp() { 64 } else { 0 }, ..ToyConfig::default() }
}

#[test]
fn log_probabilities_of_a_prompt_are_those_of_plain_passes() {
    for strategy in Strategy::ALL {
        for chunk in [1, 7, 16, 512] {
            for (len, max_tokens) in [(1, 5), (2, 5), (40, 0), (90, 12)] {
                let limits = Limits { prefill_chunk: chunk, prefix_cache: true, checkpoints: 8, ..Limits::new(2, 256) };
                let mut rig = Rig::new(&limits, toy(strategy));
                // Twice, so that the second finds all of it in the cache.
                for ticket in 0..2 {
                    let s = scored(ticket, len, max_tokens, strategy);
                    rig.submit(&s);
                    rig.settle();
                    let (heard, at) = (rig.of(ticket), format!("{strategy:?} by {chunk}, {len} and {max_tokens}"));
                    assert_eq!(heard.scores, naive(&rig.config, &s.prompt, 2), "{at}");
                    if max_tokens > 0 {
                        rig.assert_reference(&s);
                    } else {
                        assert_eq!(heard.outcome.finish, Some(Finish::MaxTokens), "{at}");
                        assert!(heard.outcome.tokens.is_empty(), "{at}");
                    }
                    let report = heard.report.as_ref().expect("it ended");
                    let miss = if len == 1 && max_tokens == 0 { None } else { Some(Miss::PromptLogprobs) };
                    assert_eq!((report.cached_tokens, report.cache_miss), (0, miss), "{at}");
                }
                rig.assert_empty();
            }
        }
    }
}

/// In one pass with windows of others, and computed again after every page was lost.
#[test]
fn neighbours_and_preemption_leave_them_as_they_are() {
    let limits = Limits { pages: 9, prefill_chunk: 5, ..Limits::new(3, 96) };
    let mut rig = Rig::new(&limits, ToyConfig::default());
    let others: Vec<Submission> =
        (0..2).map(|t| submission(t, &[1, 2, t as u32], 85, speculation(Strategy::MtpSuffix, 7))).collect();
    others.iter().for_each(|s| rig.submit(s));
    for _ in 0..3 {
        rig.tick();
    }
    let s = scored(2, 60, 20, Strategy::MtpSuffix);
    rig.submit(&s);
    rig.settle();
    for s in others.iter().chain([&s]) {
        rig.assert_reference(s);
    }
    assert_eq!(rig.of(2).scores, naive(&rig.config, &s.prompt, 2), "each is said once");
    assert!(rig.of(2).report.as_ref().is_some_and(|r| r.preempted > 0), "it lost its pages");
    rig.assert_empty();
}

#[test]
fn a_copy_is_asked_for_its_answer_alone() {
    let mut rig = Rig::new(&Limits::new(3, 96), ToyConfig::default());
    let all: Vec<Submission> = (0..3)
        .map(|choice| {
            let mut s = scored(choice, 30, 9, Strategy::MtpSuffix);
            (s.sampling.choice, s.sampling.temperature) = (choice as u32, 0.8);
            s.sibling = (choice > 0).then_some(Ticket(0));
            s.prompt_logprobs = choice == 0;
            s
        })
        .collect();
    all.iter().for_each(|s| rig.submit(s));
    rig.settle();
    all.iter().for_each(|s| rig.assert_reference(s));
    let scores: Vec<usize> = (0..3).map(|t| rig.of(t).scores.len()).collect();
    assert_eq!(scores, [29, 0, 0]);
    rig.assert_empty();
}

#[test]
fn every_pass_over_a_prompt_is_told() {
    for strategy in [Strategy::Off, Strategy::MtpSuffix] {
        let limits = Limits { prefill_chunk: 8, ..Limits::new(2, 128) };
        let mut rig = Rig::new(&limits, toy(strategy));
        let asked = Submission { progress: true, ..submission(0, &any_prompt(30), 20, speculation(strategy, 7)) };
        let silent = submission(1, &any_prompt(30), 20, speculation(strategy, 7));
        rig.submit(&asked);
        rig.submit(&silent);
        rig.settle();
        let told: Vec<u32> = rig.of(0).prompt.iter().map(|p| p.0).collect();
        // The last token is the first anchor.
        assert_eq!(told, [8, 16, 24, 29, 30], "{strategy:?}");
        assert!(rig.of(0).prompt.is_sorted_by(|a, b| a.1 < b.1) && rig.of(0).scores.is_empty());
        assert!(rig.of(1).prompt.is_empty());
        rig.assert_reference(&asked);
        rig.assert_empty();
    }
}

#[test]
fn a_slow_reader_hears_of_several_passes_at_once() {
    let limits = Limits { prefill_chunk: 1, events: 2, ..Limits::new(2, 512) };
    let mut rig = Rig::new(&limits, ToyConfig::default());
    let mut s = scored(0, 400, 3, Strategy::MtpSuffix);
    s.progress = true;
    rig.submit(&s);
    for _ in 0..100 {
        rig.tick_deaf();
        assert!(rig.world.ledger.outbox.len() <= limits.events + 4, "{}", rig.world.ledger.outbox.len());
    }
    rig.settle();
    let told = &rig.of(0).prompt;
    assert!(told.is_sorted_by(|a, b| a.0 < b.0) && told.last().is_some_and(|p| p.0 == 400));
    assert!(told.len() < 350, "{} events", told.len());
    assert_eq!(rig.of(0).scores, naive(&rig.config, &s.prompt, 2), "none is lost");
    rig.assert_empty();
}

#[test]
fn deltas_carry_what_is_counted_where_that_is_wanted() {
    for strategy in Strategy::ALL {
        let mut rig = Rig::new(&Limits::new(2, 128), toy(strategy));
        let mut s = submission(0, &any_prompt(20), 60, speculation(strategy, 7));
        s.reports = true;
        let silent = submission(1, &any_prompt(20), 60, speculation(strategy, 7));
        rig.submit(&s);
        rig.submit(&silent);
        rig.settle();
        let heard = rig.of(0);
        assert_eq!(heard.reports.len(), heard.ticks.len(), "one a delta");
        assert!(rig.of(1).reports.is_empty());
        for pair in heard.reports.windows(2) {
            engine::tables::counters::check(&pair[0]);
            assert!(pair[0].completion_tokens < pair[1].completion_tokens && pair[0].total_ns < pair[1].total_ns);
            assert_eq!((pair[0].ttft_ns, pair[0].prompt_tokens), (pair[1].ttft_ns, 20));
        }
        // The last is the end's, but for the time since.
        let (mut last, end) = (heard.reports.last().expect("one").clone(), heard.report.clone().expect("it ended"));
        last.total_ns = end.total_ns;
        // Bytes of a character that never came are known as such at the end.
        last.invalid_utf8 = end.invalid_utf8;
        assert_eq!(last, end, "{strategy:?}");
    }
}

/// The text that each token releases is the same whatever the windows are.
#[test]
fn the_cuts_of_a_text_do_not_depend_on_the_windows() {
    let stop = |s: &mut Submission| {
        s.stop.strings = vec![b"zz zz".to_vec(), "\u{20ac}\u{20ac}".into()];
        s.sampling.temperature = 0.9;
    };
    let mut texts = Vec::new();
    for strategy in Strategy::ALL {
        for width in [1, 7, 15] {
            let mut rig = Rig::new(&Limits::new(1, 256), toy(strategy));
            let mut s = submission(0, &any_prompt(20), 200, speculation(strategy, width));
            stop(&mut s);
            rig.submit(&s);
            rig.settle();
            rig.assert_reference(&s);
            let heard = rig.of(0);
            assert!(heard.cut.concat().len() <= heard.outcome.text.len());
            texts.push(heard.cut.clone());
        }
    }
    assert!(texts[0].len() > 100 && texts[0].iter().any(String::is_empty), "some are held back");
    assert!(texts.iter().all(|t| *t == texts[0]));
}

/// A request for no token computes its prompt all the same, once: what it leaves in the prefix cache serves the next.
#[test]
fn a_prompt_without_an_answer_is_computed_and_kept() {
    for strategy in [Strategy::Off, Strategy::MtpSuffix] {
        for len in [1, 2, 17, 80] {
            let limits = Limits { prefill_chunk: 16, prefix_cache: true, checkpoints: 8, ..Limits::new(2, 128) };
            // Where a state is needed, what is kept lies just before a long prompt's end.
            let plain = strategy == Strategy::Off;
            let mut rig = Rig::new(&limits, ToyConfig { plain, ..toy(strategy) });
            let mut computed = Vec::new();
            for ticket in 0..3 {
                // The last asks for tokens: they are those of a prompt that nobody computed before.
                let s = submission(ticket, &any_prompt(len), if ticket == 2 { 9 } else { 0 }, speculation(strategy, 7));
                rig.submit(&s);
                rig.settle();
                let heard = rig.of(ticket);
                if ticket == 2 {
                    rig.assert_reference(&s);
                } else {
                    assert_eq!(heard.outcome.finish, Some(Finish::MaxTokens));
                    assert!(heard.outcome.tokens.is_empty());
                }
                let report = heard.report.as_ref().expect("it ended");
                assert_eq!((report.prompt_tokens, report.completion_tokens == 0), (len as u64, ticket < 2));
                computed.push(report.prompt_tokens - report.cached_tokens);
            }
            let most = if plain {
                1
            } else if len > 64 {
                len as u64 / 2
            } else {
                len as u64
            };
            assert!(
                computed[0] == len as u64 && computed[1..].iter().all(|n| *n <= most),
                "{strategy:?}: {computed:?}"
            );
            rig.assert_empty();
        }
    }
}
