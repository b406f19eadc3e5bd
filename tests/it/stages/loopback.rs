//! Both stages in one process with bytes between them: tokens, accounting, and drafts that were made ahead.

use engine::api::{Strategy, WindowPolicy};
use engine::ids::StateSlot;
use engine::step::{Executor as _, MtpWork, SlotOp, Step, StepResult, TrunkWork};
use engine_bin::embed::Outcome;
use engine_tests::drive::{Cell, Subject, run, run_on};

use super::accept::{draft, pass};
use super::{staged, staged_with, subjects};

/// Every strategy with every width; the other settings vary along, so that each meets each.
fn cells(subject: &Subject) -> Vec<Cell> {
    let mut out = Vec::new();
    for (i, strategy) in subject.strategies().into_iter().enumerate() {
        let widths: &[u8] = if strategy == Strategy::Off { &[0] } else { &[1, 2, 7, 15, 32] };
        for (j, &window) in widths.iter().enumerate() {
            let temperature = [0.0, 0.8, 1.0][(i + j) % 3];
            let (parallel, chunk) = [(4, 7), (1, 64), (4, 512), (2, 64)][(i + 2 * j) % 4];
            out.push(Cell { strategy, window, parallel, chunk, ..Cell::reference(temperature) });
        }
    }
    out
}

fn assert_same(got: &[Outcome], want: &[Outcome], counts: bool, at: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got.tokens, want.tokens, "{at}: ids of prompt {i}");
        assert_eq!((&got.text, got.finish), (&want.text, want.finish), "{at}: prompt {i}");
        if counts {
            let of = |o: &Outcome| (o.report.mtp, o.report.suffix, o.report.steps, o.report.width_hist.clone());
            assert_eq!(of(got), of(want), "{at}: what was counted of prompt {i}");
        }
    }
}

#[test]
fn two_stages_give_the_bits_and_the_counts_of_one_process() {
    for subject in subjects() {
        let split = subject.trunk() / 2;
        let mut answered = 0;
        for cell in cells(&subject) {
            let at = format!("{} cut at {split} under {cell:?}", subject.name);
            let want = run(&subject, &cell);
            let (executor, wire) = staged(&subject, &cell, split);
            let got = run_on(&subject, &cell, Box::new(executor));
            // Several requests at once meet in other ticks from run to run, which moves what is drafted.
            assert_same(&got, &want, cell.parallel == 1, &at);
            answered += wire.0.lock().last.counts.0;
            let adaptive = Cell { policy: WindowPolicy::Adaptive, ..cell };
            let (executor, _) = staged(&subject, &adaptive, split);
            assert_same(&run_on(&subject, &adaptive, Box::new(executor)), &want, false, &at);
        }
        let mtp = subject.strategies().iter().any(|s| s.uses_mtp());
        assert_eq!(answered > 0, mtp, "{}: {answered} chains were drafted ahead", subject.name);
    }
}

#[test]
fn drafts_made_ahead_are_those_made_when_asked_for() {
    for subject in subjects() {
        let Some(strategy) = subject.strategies().into_iter().find(|s| *s == Strategy::Mtp) else { continue };
        let cell = Cell { strategy, window: 3, ..Cell::reference(0.8) };
        let (executor, ahead) = staged(&subject, &cell, 1);
        let with = run_on(&subject, &cell, Box::new(executor));
        let (executor, asked) = staged_with(&subject, &cell, 1, |last| last.without_foresight());
        let without = run_on(&subject, &cell, Box::new(executor));
        assert_same(&with, &without, true, subject.name);
        let (with, without) = (ahead.0.lock(), asked.0.lock());
        assert_eq!(without.last.counts.0, 0, "{}", subject.name);
        assert_eq!(
            with.last.counts.0 + with.last.counts.1,
            without.last.counts.1,
            "{}: every chain was answered once",
            subject.name
        );
        // One round trip a step but where a page or a request ends.
        assert!(
            10 * with.exchanges < 9 * without.exchanges,
            "{}: {} exchanges, {} without foresight",
            subject.name,
            with.exchanges,
            without.exchanges
        );
    }
}

/// A chain that is answered here goes along with the next pass; operations that come with that pass stay behind it, and are
/// not lost.
#[test]
fn operations_stay_behind_work_that_waits() {
    let subject = Subject::built_in();
    let cell = Cell { strategy: Strategy::MtpSuffix, window: 5, parallel: 2, chunk: 32, ..Cell::reference(0.8) };
    let (mut split, wire) = staged(&subject, &cell, 1);
    let (s, other) = (StateSlot(0), StateSlot(1));
    let mut run = |ops: &[SlotOp], mtp: MtpWork, trunk: TrunkWork| {
        let mut out = StepResult::default();
        split.run(&Step { ops: ops.to_vec(), mtp, trunk }, &mut out);
        assert!(out.fault.iter().all(Option::is_none), "{:?}", out.fault);
        out
    };
    let (no_mtp, no_trunk) = (MtpWork::default, TrunkWork::default);
    let begin = SlotOp::Reset { state: other };
    run(&[SlotOp::Reset { state: s }], no_mtp(), pass(s, 0, 20, 20));
    run(&[begin], no_mtp(), pass(other, 0, 2, 2));
    run(&[], draft(s, 0, 20, 0), no_trunk());
    run(&[], no_mtp(), pass(s, 20, 3, 1));
    run(&[SlotOp::Truncate { state: s, kv_len: 21 }], draft(s, 20, 2, 3), no_trunk());
    let window = pass(s, 21, 3, 1);
    let verdict = run(&[], no_mtp(), window.clone());
    let accepted = verdict.accepted[0];
    let mut chain = draft(s, 22, accepted + 1, 3);
    chain.token = [&window.token[1..1 + accepted as usize], &verdict.next[..1]].concat();
    chain.page.clone_from(&window.page);
    chain.page_start = vec![0, chain.page.len() as u32];
    let before = wire.0.lock().exchanges;
    run(&[SlotOp::Truncate { state: s, kv_len: 22 + accepted }], chain, no_trunk());
    assert_eq!(wire.0.lock().exchanges, before, "it was foreseen, and waits");
    // Were its reset lost, the last stage would refuse a pass from 0 on.
    run(&[begin], no_mtp(), pass(other, 0, 3, 3));
    assert_eq!(wire.0.lock().exchanges, before + 2);
}
