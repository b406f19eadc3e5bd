//! Constraints on the tick: every row of a window is judged under the mask of its own history, drafts that may not come
//! are cut, and what comes out is what plain decoding gives.

use engine::api::{Finish, Sampling, Stop, Strategy, Submission};
use engine::ids::{Ticket, TokenId};
use engine::limits::Limits;
use engine::step::{Fault, LogitEdit};
use engine_tests::narrow::Narrow;
use engine_tests::toy::{END, Rig, ToyConfig, VOCAB, reference, speculation, submission};

use super::run_one;

fn ask(ticket: u64, strategy: Strategy, width: u8, temperature: f32, end_after: usize) -> Submission {
    let mut s = submission(ticket, &[1, 2, 3, 1, 2, 3, 1, 2], 60, speculation(strategy, width));
    s.sampling = Sampling { temperature, seed: ticket, ..Sampling::greedy() };
    s.constraint = Narrow::boxed(ticket % 7, end_after);
    s
}

#[test]
fn every_strategy_gives_what_plain_decoding_gives() {
    let config = ToyConfig { order: 1, mtp_accuracy: 900, ..ToyConfig::default() };
    let (mut trimmed, mut forced, mut accepted) = (0, 0, 0);
    for strategy in Strategy::ALL {
        for (width, temperature) in [(1, 0.0), (7, 0.0), (15, 0.8), (32, 1.5)] {
            let mut rig = Rig::new(&Limits::new(3, 128), config.clone());
            let all: Vec<Submission> =
                (0..9).map(|i| ask(i, strategy, width, temperature, 5 + 6 * i as usize)).collect();
            all.iter().for_each(|s| rig.submit(s));
            rig.settle();
            for s in &all {
                rig.assert_reference(s);
                let report = rig.of(s.ticket.0).report.as_ref().unwrap();
                trimmed += report.trimmed_constraint;
                forced += report.forced;
                accepted += report.total.accepted;
                assert!(report.trimmed_constraint <= report.total.trimmed && report.mask_ns > 0);
                assert_eq!(
                    report.first + report.bonus + report.forced + report.total.accepted,
                    report.completion_tokens
                );
            }
            rig.assert_empty();
        }
    }
    assert!(trimmed > 100 && forced > 100 && accepted > 100, "{trimmed} {forced} {accepted}");
}

#[test]
fn a_draft_that_may_not_come_cuts_the_window_there() {
    // The target would say what is drafted, and the constraint does not let it.
    let config = ToyConfig { mtp_accuracy: 1000, ..ToyConfig::default() };
    let mut s = submission(0, &[1, 2, 3, 4], 40, speculation(Strategy::Mtp, 7));
    s.speculation.mtp_tokens = 7;
    let free = run_one(config.clone(), &Limits::new(1, 128), &s);
    assert_eq!(free.of(0).report.as_ref().unwrap().total.trimmed, 0);
    s.constraint = Narrow::boxed(3, 30);
    let rig = run_one(config, &Limits::new(1, 128), &s);
    let r = rig.of(0).report.as_ref().unwrap();
    assert_eq!(rig.of(0).outcome.finish, Some(Finish::EndToken(END)));
    assert!(r.mtp.trimmed > 0 && r.mtp.trimmed == r.trimmed_constraint, "{r:?}");
    assert_eq!(r.mtp.proposed, r.mtp.trimmed + r.mtp.drafted);
}

#[test]
fn the_end_of_a_constraint_is_the_end_of_the_choice() {
    for strategy in Strategy::ALL {
        let mut s = ask(4, strategy, 7, 0.0, 12);
        s.stop = Stop { ignore_eos: true, ..Stop::default() };
        let rig = run_one(ToyConfig::default(), &Limits::new(1, 128), &s);
        assert_eq!(rig.of(4).outcome.finish, Some(Finish::EndToken(END)), "end tokens are ignored elsewhere");
        assert_eq!(rig.of(4).outcome.tokens.len(), 13);
        s.stop = Stop { min_tokens: 40, ..Stop::default() };
        let rig = run_one(ToyConfig::default(), &Limits::new(1, 128), &s);
        assert_eq!(rig.of(4).outcome.tokens.len(), 13, "and it comes before the least number of tokens");
    }
}

#[test]
fn a_dead_end_is_an_error_of_its_own_choice() {
    let config = ToyConfig { mtp_accuracy: 1000, ..ToyConfig::default() };
    for strategy in Strategy::ALL {
        let mut rig = Rig::new(&Limits::new(2, 128), config.clone());
        let mut hit = ask(0, strategy, 7, 0.0, 50);
        hit.constraint = Some(Box::new(Narrow { seed: 9, end_after: 50, dead_at: 10, taken: Vec::new() }));
        let spared = ask(1, strategy, 7, 0.0, 20);
        [&hit, &spared].into_iter().for_each(|s| rig.submit(s));
        rig.settle();
        [&hit, &spared].into_iter().for_each(|s| rig.assert_reference(s));
        let outcome = &rig.of(0).outcome;
        assert_eq!((outcome.finish, outcome.tokens.len()), (Some(Finish::Fault(Fault::Barred)), 10));
        rig.assert_empty();
    }
}

#[test]
fn a_ban_of_all_that_is_left_is_an_error_too() {
    // Every token but the end token is banned, and the end token may not come yet.
    let mut s = ask(2, Strategy::MtpSuffix, 7, 0.0, 20);
    let ban = |t: usize| LogitEdit { token: TokenId(t as u32), repeat: 1.0, add: f32::NEG_INFINITY };
    s.sampling.logit_bias = (0..VOCAB).filter(|t| *t != END.index()).map(ban).collect();
    s.stop.min_tokens = 20;
    let rig = run_one(ToyConfig::default(), &Limits::new(1, 128), &s);
    assert_eq!(rig.of(2).outcome.finish, Some(Finish::Fault(Fault::Barred)));
}

#[test]
fn a_copy_of_a_row_goes_on_from_where_the_row_was() {
    let config = ToyConfig { mtp_accuracy: 950, ..ToyConfig::default() };
    let limits = Limits::new(2, 128);
    let mut rig = Rig::new(&limits, config.clone());
    let s = ask(3, Strategy::MtpSuffix, 7, 0.0, 40);
    rig.submit(&s);
    while rig.of_len(3) < 10 {
        rig.tick();
    }
    let told = rig.of(3).outcome.clone();
    rig.world.fork(rig.slot(3).unwrap(), Ticket(50), 0).expect("a row is free");
    rig.heard.entry(Ticket(50)).or_default().outcome = told;
    rig.settle();
    rig.assert_reference(&s);
    rig.assert_reference(&Submission { ticket: Ticket(50), ..s });
    rig.assert_empty();
}

#[test]
fn choices_of_one_prompt_have_a_constraint_each() {
    let limits = Limits::new(4, 128);
    let mut rig = Rig::new(&limits, ToyConfig::default());
    let all: Vec<Submission> = (0..3)
        .map(|choice| {
            let mut s = ask(7, Strategy::MtpSuffix, 7, 1.0, 25);
            s.ticket = Ticket(7 + u64::from(choice));
            s.sampling.choice = choice;
            s.sibling = (choice > 0).then_some(Ticket(7));
            s
        })
        .collect();
    all.iter().for_each(|s| rig.submit(s));
    rig.settle();
    all.iter().for_each(|s| rig.assert_reference(s));
    let outcomes: Vec<_> = all.iter().map(|s| rig.of(s.ticket.0).outcome.tokens.clone()).collect();
    assert!(outcomes[0] != outcomes[1] && outcomes[1] != outcomes[2], "they are different draws");
    rig.assert_empty();
}

#[test]
fn a_row_that_lost_its_pages_goes_on_as_if_it_had_not() {
    // Two rows that grow into the same pages.
    let limits = Limits { pages: 8, ..Limits::new(2, 96) };
    let mut rig = Rig::new(&limits, ToyConfig::default());
    let all: Vec<Submission> =
        (0..2).map(|i| Submission { max_tokens: 80, ..ask(i, Strategy::MtpSuffix, 7, 0.7, 70) }).collect();
    all.iter().for_each(|s| rig.submit(s));
    rig.settle();
    all.iter().for_each(|s| rig.assert_reference(s));
    let preempted: u64 = (0..2).map(|i| rig.of(i).report.as_ref().unwrap().preempted).sum();
    assert!(preempted > 0, "nobody was preempted");
    rig.assert_empty();
}

#[test]
fn log_probabilities_are_of_the_raw_logits() {
    let mut s = ask(5, Strategy::MtpSuffix, 7, 1.0, 20);
    s.logprobs = Some(3);
    let rig = run_one(ToyConfig::default(), &Limits::new(1, 128), &s);
    let outcome = &rig.of(5).outcome;
    // Alternatives that the mask forbids are listed all the same.
    assert!(outcome.logprobs.iter().any(|l| l.top.iter().all(|(t, _)| *t != l.token)), "{:?}", outcome.logprobs);
    let want = reference(&rig.config, 128, &s);
    assert_eq!(outcome.logprobs, want.logprobs);
}
