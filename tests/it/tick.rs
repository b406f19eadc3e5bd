//! The tick over the toy model: what is committed, counted, scheduled and freed.

mod alarm;
mod constraints;
mod edges;
mod gauges;
mod pages;
mod prefix;
mod pressure;
mod prompt;
mod queue;
mod time;

use std::collections::BTreeMap;

use engine::api::{
    AdmitError, Command, DraftCounts, Finish, Sampling, Speculation, Stop, Strategy, Submission, WindowPolicy,
};
use engine::cost::Cost;
use engine::ids::{Ticket, TokenId};
use engine::limits::Limits;
use engine::sample;
use engine::step::{Fault, LogitEdit};
use engine::tables::requests::Phase;
use engine_tests::narrow::Narrow;
use engine_tests::toy::{END, Heard, POISON, Rig, ToyConfig, VOCAB, reference, speculation, submission};

/// A seeded generator for scenarios.
struct Rng(u64, u32);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.1 += 1;
        sample::random_bits(self.0, 0, self.1) % n
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

fn prompt(rng: &mut Rng, len: u64) -> Vec<u32> {
    // A few tokens only, so that text repeats.
    (0..len).map(|_| rng.below(12) as u32).collect()
}

/// Any settings that a client could ask for.
fn any_submission(rng: &mut Rng, ticket: u64, prompt_max: u64, tokens_max: u64) -> Submission {
    let mut spec = speculation(rng.pick(&Strategy::ALL), rng.pick(&[1, 2, 7, 15]));
    spec.mtp_tokens = rng.below(6) as u8;
    spec.suffix_min = rng.pick(&[1, 2, 3, 9]);
    spec.suffix_max = spec.suffix_min + rng.below(20) as u8;
    if rng.chance(400) {
        spec.policy = WindowPolicy::Adaptive;
    }
    let len = 1 + rng.below(prompt_max);
    let mut s = submission(ticket, &prompt(rng, len), 1 + rng.below(tokens_max) as u32, spec);
    if rng.chance(400) {
        s.sampling = Sampling {
            temperature: 0.7,
            top_k: rng.pick(&[0, 5, 20]),
            top_p: rng.pick(&[1.0, 0.9]),
            min_p: rng.pick(&[0.0, 0.05]),
            seed: rng.below(1000),
            choice: rng.below(3) as u32,
            ..Sampling::greedy()
        };
    }
    if rng.chance(250) {
        s.sampling.repeat_penalty = 1.3;
        s.sampling.repeat_last_n = rng.pick(&[1, 8, u32::MAX]);
        s.sampling.presence_penalty = 0.5;
        s.sampling.frequency_penalty = 0.25;
        s.sampling.logit_bias = vec![LogitEdit { token: TokenId(3), repeat: 1.0, add: 2.0 }];
    }
    if rng.chance(300) {
        s.stop.strings = vec![b"ab".to_vec(), b"c0".to_vec(), "\u{20ac}x".into()];
        s.stop.include = rng.chance(500);
    }
    if rng.chance(200) {
        s.stop.tokens = vec![TokenId(rng.below(12) as u32)];
    }
    s.stop.min_tokens = if rng.chance(200) { rng.below(10) as u32 } else { 0 };
    s.stop.ignore_eos = rng.chance(200);
    s.logprobs = rng.pick(&[None, None, Some(0), Some(3)]);
    if rng.chance(300) {
        s.constraint = Narrow::boxed(rng.below(1000), rng.below(tokens_max) as usize);
    }
    s.show_special = rng.chance(300);
    s
}

/// Random ticks of admission, acceptance, rejection, cancellation, pauses, preemption and forks, with every invariant
/// checked after each; whatever finishes equals plain decoding, and at the end nobody holds anything.
fn soak(seed: u64, ticks: u64, limits: &Limits, config: ToyConfig) -> Rig {
    let mut rng = Rng(seed, 0);
    let mut rig = Rig::new(limits, config);
    let mut open: BTreeMap<u64, Submission> = BTreeMap::new();
    let mut cancelled = Vec::new();
    let mut cancelled_in = [0; 3];
    let mut next = 0;
    for _ in 0..ticks {
        if open.len() < limits.slots * 2 && rng.chance(300) {
            let tokens = 1 + limits.context as u64 / 2;
            let mut s = any_submission(&mut rng, next, limits.context as u64 / 2, tokens);
            if rig.config.hidden_rows == 0 && s.speculation.strategy.uses_mtp() {
                s.speculation.strategy = Strategy::NgramSuffix;
            }
            rig.submit(&s);
            open.insert(next, s);
            next += 1;
        }
        let some = open.keys().copied().nth(rng.below(open.len().max(1) as u64) as usize);
        if let Some(ticket) = some {
            if rng.chance(15) {
                rig.send(Command::Cancel(Ticket(ticket)));
                rig.send(Command::Cancel(Ticket(ticket)));
                cancelled.extend(open.remove(&ticket));
                let r = &rig.world.ledger.requests;
                cancelled_in[match rig.slot(ticket) {
                    None => 0,
                    Some(slot) if r.stalled(slot) => 1,
                    Some(_) => 2,
                }] += 1;
            } else if rng.chance(20) {
                rig.send(Command::Pause(Ticket(ticket)));
            } else if rng.chance(100) {
                rig.send(Command::Resume(Ticket(ticket)));
            } else if rng.chance(20)
                && let Some(slot) = rig.slot(ticket)
            {
                let choice = 10 + rng.below(3) as u32;
                // Greedy rows only: a fork draws as another choice from here on.
                if open[&ticket].sampling.temperature == 0.0 && rig.world.fork(slot, Ticket(next), choice).is_some() {
                    rig.world.check();
                    let mut s = open[&ticket].clone();
                    s.ticket = Ticket(next);
                    // What the parent was told before the fork is not told again.
                    let told = rig.heard.get(&Ticket(ticket)).map(|h| h.outcome.clone()).unwrap_or_default();
                    rig.heard.entry(Ticket(next)).or_default().outcome = told;
                    open.insert(next, s);
                    next += 1;
                }
            }
        }
        rig.tick();
        for ticket in open.keys().copied().collect::<Vec<_>>() {
            if rig.heard.get(&Ticket(ticket)).is_some_and(|h| h.report.is_some()) {
                rig.assert_reference(&open.remove(&ticket).unwrap());
            }
        }
    }
    for ticket in open.keys() {
        rig.send(Command::Resume(Ticket(*ticket)));
    }
    rig.settle();
    let r = &rig.world.ledger.requests;
    assert!(r.live.is_empty(), "{:?} {:?} {:?}", r.live, r.phase, r.paused);
    for s in open.values() {
        rig.assert_reference(s);
    }
    for mut s in cancelled {
        let Heard { report, cancelled, outcome, .. } = &rig.heard[&s.ticket];
        assert!(report.is_none(), "{:?} was cancelled and finished", s.ticket);
        let report = cancelled.as_ref().unwrap_or_else(|| panic!("nothing was said of cancelled {:?}", s.ticket));
        assert_eq!(report.completion_tokens, outcome.tokens.len() as u64, "all of them are said");
        if report.completion_tokens > 0 {
            // It is what it would have been, had it been asked for so many tokens.
            s.max_tokens = outcome.tokens.len() as u32;
            let want = reference(&rig.config, limits.context, &s);
            assert_eq!((&outcome.tokens, &outcome.text), (&want.tokens, &want.text), "{s:?}");
        }
    }
    assert!(cancelled_in.iter().all(|n| *n > 0), "waiting, stalled, running: {cancelled_in:?}");
    rig.assert_empty();
    rig
}

fn totals(rig: &Rig) -> DraftCounts {
    let mut sum = DraftCounts::default();
    rig.heard.values().filter_map(|h| h.report.as_ref()).for_each(|r| sum.add(&r.total));
    sum
}

fn preempted(rig: &Rig) -> u64 {
    rig.heard.values().filter_map(|h| h.report.as_ref()).map(|r| r.preempted).sum()
}

#[test]
fn a_hundred_thousand_ticks_keep_every_invariant() {
    // Plenty of pages; too few pages; no MTP block; a tight ring and a tight pass.
    let roomy = Limits::new(4, 96);
    let tight = Limits { pages: 9, prefill_chunk: 7, ..Limits::new(4, 96) };
    let narrow = Limits { step_rows: 9, prefill_chunk: 5, window_max: 6, ..Limits::new(4, 64) };
    let toy = |seed, hidden_rows| ToyConfig { seed, hidden_rows, end_rate: 15, ..ToyConfig::default() };
    let a = soak(1, 25_000, &roomy, toy(11, 64));
    let b = soak(2, 40_000, &tight, toy(12, 40));
    let c = soak(3, 15_000, &tight, toy(13, 0));
    let d = soak(4, 20_000, &narrow, toy(14, 7));
    assert!(preempted(&b) > 100, "{}", preempted(&b));
    for rig in [&a, &b, &c, &d] {
        let sum = totals(rig);
        assert!(sum.accepted > 1000 && sum.rejected > 500, "{sum:?}");
    }
    assert!(totals(&a).trimmed > 0, "drafts past the vocabulary are cut");
}

/// A named change of a submission.
type Change = (&'static str, fn(&mut Submission));

/// One target that goes on for ever and one that ends soon.
const END_RATES: [u64; 2] = [0, 40];

const CHANGES: [Change; 12] = [
    ("plain", |_| {}),
    ("one token", |s| s.max_tokens = 1),
    ("two tokens", |s| s.max_tokens = 2),
    ("to the end of the context", |s| s.max_tokens = 10_000),
    ("sampled", |s| {
        s.sampling = Sampling { temperature: 0.9, top_k: 12, top_p: 0.95, min_p: 0.01, seed: 5, ..Sampling::greedy() }
    }),
    ("typical", |s| {
        s.sampling = Sampling { temperature: 1.2, typical_p: 0.7, top_p: 0.95, seed: 6, ..Sampling::greedy() }
    }),
    ("penalties", |s| {
        s.sampling.repeat_penalty = 1.4;
        s.sampling.repeat_last_n = 6;
        s.sampling.presence_penalty = 0.4;
        s.sampling.frequency_penalty = 0.3;
    }),
    ("bias and ban", |s| {
        let edit = |token, add| LogitEdit { token: TokenId(token), repeat: 1.0, add };
        s.sampling.logit_bias = vec![edit(4, 3.0), edit(5, f32::NEG_INFINITY), edit(4, -1.0)];
    }),
    ("stop strings", |s| {
        s.stop.strings = vec![b"zz".to_vec(), b"a".to_vec(), b"qv".to_vec()];
        s.stop.min_tokens = 9;
    }),
    ("stop tokens", |s| s.stop.tokens = (0..6).map(TokenId).collect()),
    ("end tokens banned", |s| s.stop.ignore_eos = true),
    ("end tokens late", |s| s.stop.min_tokens = 20),
];

#[test]
fn speculation_changes_nothing_but_time() {
    let prompt: Vec<u32> = (0..23).map(|i| [1, 2, 3, 1, 2, 7, 3][i % 7]).collect();
    for (name, change) in CHANGES {
        let shapes = [(1, 1, 0), (4, 7, 1), (1, 64, 2), (4, 64, 7), (1, 7, 15), (4, 1, 32), (4, 64, 32), (1, 64, 1)];
        for (end_rate, (slots, chunk, width)) in END_RATES.into_iter().flat_map(|e| shapes.map(|s| (e, s))) {
            let limits = Limits { prefill_chunk: chunk, ..Limits::new(slots, 96) };
            let config = ToyConfig { end_rate, ..ToyConfig::default() };
            let mut rig = Rig::new(&limits, config);
            let all: Vec<Submission> = Strategy::ALL
                .into_iter()
                .zip(0..)
                .map(|(strategy, ticket)| {
                    let mut s = submission(ticket, &prompt, 50, speculation(strategy, width));
                    change(&mut s);
                    s
                })
                .collect();
            all.iter().for_each(|s| rig.submit(s));
            rig.settle();
            for s in &all {
                rig.assert_reference(s);
                assert_eq!(rig.of(s.ticket.0).outcome, rig.of(0).outcome, "{name}, {slots} slots, width {width}");
            }
            rig.assert_empty();
        }
    }
}

#[test]
fn every_change_is_seen_somewhere() {
    // The matrix above means something only if its cases end in their own ways.
    let prompt: Vec<u32> = (0..23).map(|i| [1, 2, 3, 1, 2, 7, 3][i % 7]).collect();
    let outcomes = |name: &str| {
        let mut s = submission(0, &prompt, 50, speculation(Strategy::Off, 0));
        CHANGES.iter().find(|c| c.0 == name).expect("a change of that name").1(&mut s);
        END_RATES.map(|end_rate| reference(&ToyConfig { end_rate, ..ToyConfig::default() }, 96, &s))
    };
    for (name, _) in CHANGES.iter().filter(|c| c.0 != "plain") {
        assert_ne!(outcomes(name), outcomes("plain"), "{name}");
    }
    let [_, ends] = outcomes("plain");
    assert_eq!(ends.finish, Some(Finish::EndToken(END)));
    let [stops, _] = outcomes("stop strings");
    assert!(matches!(stops.finish, Some(Finish::StopString(_))), "{stops:?}");
    let [own, _] = outcomes("stop tokens");
    assert!(matches!(own.finish, Some(Finish::EndToken(_))), "{own:?}");
    let [full, _] = outcomes("to the end of the context");
    assert_eq!(full.finish, Some(Finish::ContextFull));
}

fn greedy(ticket: u64, strategy: Strategy, width: u8, max_tokens: u32) -> Submission {
    submission(ticket, &[1, 2, 3, 4], max_tokens, speculation(strategy, width))
}

fn run_one(config: ToyConfig, limits: &Limits, s: &Submission) -> Rig {
    let mut rig = Rig::new(limits, config);
    rig.submit(s);
    rig.settle();
    rig.assert_reference(s);
    rig.assert_empty();
    rig
}

#[test]
fn the_worked_case_is_counted_as_written() {
    // k = 3, a = 0, 1, 3, then a window that agrees and is ended at its second draft.
    let script = ToyConfig { mtp_script: vec![0, 1, 3, 3], ..ToyConfig::default() };
    let mut s = greedy(0, Strategy::Mtp, 3, 50);
    // Completion: 1 first, 1, 2, 4, then two more drafts: the tenth token ends it by a stop string.
    let want = reference(&script, 128, &Submission { max_tokens: 10, ..s.clone() });
    let tail: Vec<u8> = want.text.bytes().collect();
    s.stop.strings = vec![tail[tail.len() - 3..].to_vec()];
    s.stop.include = true;
    let rig = run_one(script.clone(), &Limits::new(1, 128), &s);
    let r = rig.of(0).report.as_ref().unwrap();
    assert!(matches!(rig.of(0).outcome.finish, Some(Finish::StopString(0))), "{:?}", rig.of(0).outcome);
    let t = r.total;
    assert_eq!((r.windows, r.plain, t.drafted, t.accepted), (4, 0, 12, 6));
    assert_eq!((t.rejected, t.unreached, t.discarded, t.trimmed), (2, 3, 1, 0));
    assert_eq!((r.bonus, r.first, r.completion_tokens), (3, 1, 10));
    assert_eq!(r.width_hist[3], 4);
    assert_eq!(r.accepted_hist[..4], [1, 1, 1, 1]);
    assert_eq!(r.per_position[..3], [(4, 3), (4, 2), (4, 1)]);

    // An end token as the second draft: the proposer's third is cut before the pass.
    let ends = ToyConfig { end_at: 4 + 9, ..script };
    let rig = run_one(ends, &Limits::new(1, 128), &greedy(0, Strategy::Mtp, 3, 50));
    let r = rig.of(0).report.as_ref().unwrap();
    assert_eq!(rig.of(0).outcome.finish, Some(Finish::EndToken(END)));
    let t = r.total;
    assert_eq!((t.proposed, t.trimmed, t.drafted, t.accepted), (12, 1, 11, 6));
    assert_eq!((t.rejected, t.unreached, t.discarded), (2, 3, 0));
    assert_eq!((r.bonus, r.first, r.completion_tokens), (3, 1, 10));
}

#[test]
fn three_windows_count_by_position() {
    let script = ToyConfig { mtp_script: vec![0, 1, 3], ..ToyConfig::default() };
    // 1 + 1 + 2 + 4 tokens; room is cut by max_tokens only after that.
    let rig = run_one(script, &Limits::new(1, 128), &greedy(0, Strategy::Mtp, 3, 8));
    let r = rig.of(0).report.as_ref().unwrap();
    assert_eq!((r.steps, r.total.drafted, r.total.accepted, r.completion_tokens), (3, 9, 4, 8));
    assert_eq!(r.per_position[..3], [(3, 2), (3, 1), (3, 1)]);
}

/// A target with a period, so that a suffix tail is right until the script says otherwise.
#[test]
fn a_rejected_tail_is_not_an_mtp_rejection() {
    // Order 0: the target says one token for ever, and the suffix index copies it.
    let config = ToyConfig { order: 0, mtp_script: vec![2; 100], end_at: 0, ..ToyConfig::default() };
    let mut spec = speculation(Strategy::MtpSuffix, 7);
    spec.mtp_tokens = 2;
    let token = reference(&config, 64, &greedy(0, Strategy::Off, 0, 1)).tokens[0].0;
    // The history says: after two of that token comes something else.
    let wrong = (token + 1) % 26;
    let s = submission(0, &[token, token, 9, wrong, wrong, 9, 9, token, token, 9], 30, spec);
    let mut rig = Rig::new(&Limits::new(1, 64), config);
    rig.submit(&s);
    rig.settle();
    rig.assert_reference(&s);
    let r = rig.of(0).report.as_ref().unwrap();
    assert_eq!((r.mtp.rejected, r.mtp.unreached), (0, 0), "{r:?}");
    assert!(r.suffix.rejected > 0, "{r:?}");
    assert!(r.tail_windows > 0 && r.tail_tested == r.tail_windows, "{r:?}");

    // A prefix that is wrong leaves the tail unreached, and nobody judges it.
    let config = ToyConfig { mtp_script: vec![0; 100], ..rig.config.clone() };
    let mut rig = Rig::new(&Limits::new(1, 64), config);
    rig.submit(&s);
    rig.settle();
    rig.assert_reference(&s);
    let r = rig.of(0).report.as_ref().unwrap();
    assert!(r.mtp.rejected > 0 && r.tail_windows > 0, "{r:?}");
    let tailless = r.suffix.rejected;
    assert_eq!((r.tail_tested, r.suffix.accepted, tailless), (0, 0, 0), "{r:?}");
    assert_eq!(r.suffix.unreached, r.suffix.drafted, "{r:?}");
}

#[test]
fn windows_fit_what_is_left() {
    let always = ToyConfig { mtp_accuracy: 1000, ..ToyConfig::default() };
    let mut spec = speculation(Strategy::MtpSuffix, 15);
    spec.mtp_tokens = 15;
    for max_tokens in 1..20 {
        // Budget: never a draft whose bonus could not be committed.
        let s = submission(0, &[1, 2, 3, 4], max_tokens, spec);
        let rig = run_one(always.clone(), &Limits::new(1, 128), &s);
        let r = rig.of(0).report.as_ref().unwrap();
        assert_eq!(r.completion_tokens, u64::from(max_tokens));
        assert!(r.total.drafted < u64::from(max_tokens).max(1) && r.total.discarded == 0, "{r:?}");
        assert_eq!(r.bonus, r.steps, "the last row of a window can always be committed");
        // Context: the last position is reached, and no page past it is asked for.
        let context = 5 + max_tokens as usize;
        let s = submission(0, &[1, 2, 3, 4], 1000, spec);
        let rig = run_one(always.clone(), &Limits::new(1, context), &s);
        assert_eq!(rig.of(0).outcome.finish, Some(Finish::ContextFull));
        assert_eq!(rig.of(0).outcome.tokens.len(), context - 4);
        let r = rig.of(0).report.as_ref().unwrap();
        assert_eq!(r.bonus, r.steps, "the last row of a window can always be committed");
    }
}

#[test]
fn any_draft_may_come() {
    // Never right, ids past the vocabulary, a chain that is always cut short.
    let config = ToyConfig { mtp_accuracy: 0, ..ToyConfig::default() };
    let mut spec = speculation(Strategy::Mtp, 15);
    spec.mtp_tokens = 15;
    let rig = run_one(config, &Limits::new(1, 1024), &submission(0, &[1, 2, 3], 900, spec));
    let r = rig.of(0).report.as_ref().unwrap();
    assert!(r.mtp.trimmed > 0 && r.mtp.rejected > 100, "{r:?}");
}

#[test]
fn a_fault_ends_its_own_request_only() {
    let config = ToyConfig { fault_at: 20, mtp_accuracy: 1000, ..ToyConfig::default() };
    let mut rig = Rig::new(&Limits::new(3, 64), config);
    let hit = greedy(0, Strategy::Mtp, 7, 40);
    let spared = submission(1, &[1; 30], 20, speculation(Strategy::MtpSuffix, 7));
    let at_once = submission(2, &[1, POISON.0], 20, speculation(Strategy::Mtp, 7));
    for s in [&hit, &spared, &at_once] {
        rig.submit(s);
    }
    rig.settle();
    for s in [&hit, &spared, &at_once] {
        rig.assert_reference(s);
    }
    assert_eq!((rig.of(0).outcome.finish, rig.of(0).outcome.tokens.len()), (Some(Finish::Fault(Fault::NonFinite)), 16));
    assert_eq!(rig.of(1).outcome.finish, Some(Finish::MaxTokens));
    assert_eq!((rig.of(2).outcome.finish, rig.of(2).outcome.tokens.len()), (Some(Finish::Fault(Fault::NonFinite)), 0));
    rig.assert_empty();
}

#[test]
fn the_suffix_history_is_the_requests_own() {
    // The first request leaves a text; the second, on the same row, ends in a piece of it.
    let config = ToyConfig { order: 4, ..ToyConfig::default() };
    let mut rig = Rig::new(&Limits::new(1, 512), config);
    let first = submission(0, &[1, 2, 3, 4, 5, 6], 400, speculation(Strategy::NgramSuffix, 8));
    rig.submit(&first);
    rig.settle();
    let text = rig.of(0).outcome.tokens.clone();
    let prompt: Vec<u32> = text[100..104].iter().map(|t| t.0).collect();
    let second = submission(1, &prompt, 4, speculation(Strategy::NgramSuffix, 8));
    rig.submit(&second);
    rig.settle();
    rig.assert_reference(&second);
    let r = rig.of(1).report.as_ref().unwrap();
    assert_eq!((r.suffix.proposed, r.suffix_lookups.hits), (0, 0), "{r:?}");
    assert_ne!(rig.of(0).request, rig.of(1).request, "another generation of the same row");
    assert_eq!(rig.of(0).request.unwrap().slot, rig.of(1).request.unwrap().slot);
}

#[test]
fn the_mtp_cache_is_filled_whatever_the_strategy() {
    for strategy in Strategy::ALL {
        let config = ToyConfig { hidden_rows: 9, ..ToyConfig::default() };
        let mut rig = Rig::new(&Limits::new(1, 128), config);
        rig.submit(&submission(0, &[1, 2, 3, 4, 5], 100, speculation(strategy, 4)));
        while rig.of_len(0) < 60 {
            rig.tick();
        }
        let slot = rig.slot(0).unwrap();
        let r = &rig.world.ledger.requests;
        let (kv, mtp) = (r.kv_len[slot.index()], r.mtp_len[slot.index()]);
        assert!(mtp + 9 > kv, "{strategy:?}: MTP cache {mtp} of {kv}");
        rig.settle();
        rig.assert_reference(&submission(0, &[1, 2, 3, 4, 5], 100, speculation(strategy, 4)));
    }
}

#[test]
fn a_fork_shares_pages_and_goes_its_own_way() {
    let limits = Limits { pages: 12, ..Limits::new(3, 96) };
    let mut rig = Rig::new(&limits, ToyConfig::default());
    let mut parent = submission(0, &[1, 2, 3, 4, 5], 60, speculation(Strategy::MtpSuffix, 6));
    parent.sampling = Sampling { temperature: 1.0, seed: 3, ..Sampling::greedy() };
    rig.submit(&parent);
    while rig.of_len(0) < 20 {
        rig.tick();
    }
    let from = rig.slot(0).unwrap();
    let used = limits.pages - rig.world.ledger.pages.free_len();
    for (ticket, choice) in [(1, 1), (2, 0)] {
        assert!(rig.world.fork(from, Ticket(ticket), choice).is_some());
    }
    assert!(rig.world.fork(from, Ticket(3), 2).is_none(), "no row is free");
    rig.world.check();
    assert_eq!(limits.pages - rig.world.ledger.pages.free_len(), used, "every page is shared");
    let told = rig.of(0).outcome.clone();
    for ticket in [1, 2] {
        rig.heard.entry(Ticket(ticket)).or_default().outcome = told.clone();
    }
    rig.tick();
    let now = limits.pages - rig.world.ledger.pages.free_len();
    assert!(now > used && now < 3 * used, "only what is written is copied: {now} after {used}");
    rig.settle();
    rig.assert_reference(&parent);
    for (ticket, choice) in [(1, 1), (2, 0)] {
        let mut s = parent.clone();
        s.ticket = Ticket(ticket);
        s.sampling.choice = choice;
        rig.assert_reference_after(&s, &told.tokens);
    }
    assert_eq!(rig.of(2).outcome, rig.of(0).outcome, "the same choice draws the same");
    assert_ne!(rig.of(1).outcome, rig.of(0).outcome, "another choice draws its own");
    rig.assert_empty();
}

fn adaptive(strategy: Strategy) -> Speculation {
    Speculation { policy: WindowPolicy::Adaptive, window_initial: 4, ..speculation(strategy, 16) }
}

#[test]
fn speculation_that_does_not_pay_is_turned_down_and_tried_again() {
    for strategy in [Strategy::Mtp, Strategy::MtpSuffix] {
        let mut rig = Rig::new(&Limits::new(1, 1024), ToyConfig { mtp_accuracy: 100, ..ToyConfig::default() });
        // Every row costs a whole pass.
        rig.world.ledger.cost = Cost::scripted(|rows| 1000.0 * rows as f64, 500.0);
        let s = submission(0, &[1, 2, 3], 640, adaptive(strategy));
        rig.submit(&s);
        rig.settle();
        rig.assert_reference(&s);
        let r = rig.of(0).report.as_ref().unwrap();
        assert_eq!(r.turned_down.map(|t| (t.after_step, t.reason)), Some((0, "cost")));
        assert!((9..=11).contains(&r.windows), "one window every 64 tokens: {r:?}");
        assert!(r.total.drafted <= r.windows, "{r:?}");
    }
}

#[test]
fn speculation_that_pays_is_widened() {
    let mut rig = Rig::new(&Limits::new(1, 1024), ToyConfig { mtp_accuracy: 1000, ..ToyConfig::default() });
    rig.world.ledger.cost = Cost::scripted(|rows| 1000.0 + 20.0 * rows as f64, 20.0);
    let s = submission(0, &[1, 2, 3], 640, adaptive(Strategy::MtpSuffix));
    rig.submit(&s);
    rig.settle();
    rig.assert_reference(&s);
    let r = rig.of(0).report.as_ref().unwrap();
    assert_eq!(r.turned_down, None);
    assert!(r.completion_tokens > 4 * r.steps, "{r:?}");
}

#[test]
fn a_long_prompt_does_not_turn_speculation_down() {
    // The cache of the whole prompt is caught up in front of the first chain; that is not what a chain costs.
    let config = ToyConfig {
        mtp_accuracy: 1000,
        hidden_rows: 512,
        cost: (1000, 20, 20),
        fill_cost: 1000,
        ..ToyConfig::default()
    };
    let prompt: Vec<u32> = (0..400).map(|i| i * 7 % 31).collect();
    for calibrated in [false, true] {
        let mut rig = Rig::new(&Limits::new(1, 1024), config.clone());
        if calibrated {
            rig.world.calibrate();
            assert_eq!(rig.world.ledger.cost.draft(3), 60.0, "a chain is measured before the first request");
        }
        let s = submission(0, &prompt, 200, adaptive(Strategy::Mtp));
        rig.submit(&s);
        rig.settle();
        rig.assert_reference(&s);
        let r = rig.of(0).report.as_ref().unwrap();
        assert_eq!(r.turned_down, None, "{r:?}");
        assert!(r.completion_tokens > 3 * r.steps, "{r:?}");
        assert_eq!(r.mtp_draft_ns, 20 * r.mtp.proposed, "{r:?}");
    }
}

#[test]
fn times_are_ordered() {
    let rig = run_one(ToyConfig::default(), &Limits::new(1, 128), &greedy(0, Strategy::MtpSuffix, 6, 50));
    let r = rig.of(0).report.as_ref().unwrap();
    assert_eq!(r.ttft_ns, r.queue_ns + r.prompt_ns);
    assert!(r.queue_ns > 0 && r.prompt_ns > 0 && r.predicted_ns > 0 && r.mtp_draft_ns > 0, "{r:?}");
    assert!(r.ttft_ns + r.predicted_ns <= r.total_ns);
    assert!(r.suffix_lookups.lookup_ns_max <= r.suffix_lookups.lookup_ns);
}

#[test]
fn a_stop_that_is_never_complete_loses_nothing() {
    let config = ToyConfig::default();
    let mut s = greedy(0, Strategy::MtpSuffix, 7, 40);
    let text = reference(&config, 128, &s).text;
    // The text, but for one more byte: held back to the very end, then released.
    let bytes = text.as_bytes();
    let whole = [&bytes[bytes.len() / 2..], b"@"].concat();
    s.stop = Stop { strings: vec![whole], ..Stop::default() };
    let rig = run_one(config, &Limits::new(1, 128), &s);
    assert_eq!(rig.of(0).outcome.text, text);
}
