//! The connection ends at some exchange: what runs fails, and what comes after the next connection is right.

use std::sync::Arc;

use engine::api::{Command, Finish, Sampling, Strategy};
use engine::ids::{CheckpointId, StateSlot, TokenId};
use engine::stage::{Agreed, LastStage, Split};
use engine::step::{Executor as _, Fault, SlotOp, Step, StepResult, TrunkWork};
use engine_tests::drive::{Cell, Subject, run};
use engine_tests::toy::{Rig, speculation, submission};

use super::accept::pass;
use super::{Memory, staged};

fn ask(rig: &Rig, subject: &Subject, ticket: u64, prompt: usize, strategy: Strategy) {
    let ids: Vec<u32> = subject.prompts[prompt].iter().map(|t| t.0).collect();
    let mut submission = submission(ticket, &ids, subject.max_tokens, speculation(strategy, 3));
    submission.sampling = Sampling::greedy();
    rig.send(Command::Submit(Box::new(submission)));
}

#[test]
fn whatever_runs_when_the_connection_ends_fails_and_the_next_is_right() {
    let subject = Subject::built_in();
    let cell = Cell { strategy: Strategy::MtpSuffix, window: 3, parallel: 2, chunk: 16, ..Cell::reference(0.0) };
    let want: Vec<Vec<TokenId>> = run(&subject, &Cell::reference(0.0)).into_iter().map(|o| o.tokens).collect();
    for (at, arrives) in [(1, false), (1, true), (2, true), (5, false), (9, true), (12, false)] {
        let (executor, wire) = staged(&subject, &cell, 1);
        wire.0.lock().lose_at = Some((at, arrives));
        let mut rig = Rig::of_executor(&cell.limits(), Box::new(executor), Arc::clone(&subject.opened.pieces));
        for i in 0..2 {
            ask(&rig, &subject, i, i as usize, cell.strategy);
        }
        for _ in 0..200 {
            rig.tick();
        }
        let mut lost = 0;
        for i in 0..2 {
            let outcome = &rig.of(i).outcome;
            let known = &want[i as usize];
            match outcome.finish {
                Some(Finish::Fault(Fault::Lost)) => lost += 1,
                // It had ended before.
                _ => assert_eq!(outcome.tokens, *known, "request {i}, lost at exchange {at}"),
            }
            assert_eq!(outcome.tokens[..], known[..outcome.tokens.len()], "what was committed before is right");
        }
        assert!(lost > 0, "nothing was lost at exchange {at}");
        // While nobody is there every request fails, and nothing else happens.
        ask(&rig, &subject, 7, 0, cell.strategy);
        for _ in 0..50 {
            rig.tick();
        }
        assert_eq!(rig.of(7).outcome.finish, Some(Finish::Fault(Fault::Lost)));
        assert!(rig.of(7).outcome.tokens.is_empty());
        wire.reconnect();
        for i in 10..12 {
            ask(&rig, &subject, i, i as usize - 10, cell.strategy);
        }
        rig.settle();
        for i in 10..12 {
            assert_eq!(rig.of(i).outcome.tokens, want[i as usize - 10], "request {i} after a loss at exchange {at}");
        }
        rig.assert_empty();
    }
}

#[test]
fn a_row_that_waited_through_a_loss_fails_beside_one_that_is_right() {
    let subject = Subject::built_in();
    let cell = Cell { strategy: Strategy::MtpSuffix, window: 3, parallel: 2, chunk: 16, ..Cell::reference(0.0) };
    let want: Vec<TokenId> = run(&subject, &Cell::reference(0.0)).remove(1).tokens;
    let (executor, wire) = staged(&subject, &cell, 1);
    let mut rig = Rig::of_executor(&cell.limits(), Box::new(executor), Arc::clone(&subject.opened.pieces));
    ask(&rig, &subject, 0, 0, cell.strategy);
    for _ in 0..12 {
        rig.tick();
    }
    // Its reader is slow, so it takes no part while the connection is lost and another made.
    rig.send(Command::Pause(engine::ids::Ticket(0)));
    rig.tick();
    wire.reconnect();
    ask(&rig, &subject, 1, 1, cell.strategy);
    for _ in 0..8 {
        rig.tick();
    }
    rig.send(Command::Resume(engine::ids::Ticket(0)));
    rig.settle();
    assert_eq!(rig.of(0).outcome.finish, Some(Finish::Fault(Fault::Lost)));
    assert_eq!(rig.of(1).outcome.tokens, want, "the row beside it");
    rig.assert_empty();
}

/// Another connection at any moment, within a tick too: what began before it ends without a wrong token, and nothing of it
/// is said to the new last stage, which would refuse it.
#[test]
fn nothing_of_a_session_is_said_in_the_next() {
    let subject = Subject::built_in();
    let cell = Cell { strategy: Strategy::MtpSuffix, window: 3, parallel: 2, chunk: 16, ..Cell::reference(0.0) };
    let want: Vec<Vec<TokenId>> = run(&subject, &Cell::reference(0.0)).into_iter().map(|o| o.tokens).collect();
    let mut lost = 0;
    for at in 1..40 {
        let (executor, wire) = staged(&subject, &cell, 1);
        wire.0.lock().renew_at = Some(at);
        let mut rig = Rig::of_executor(&cell.limits(), Box::new(executor), Arc::clone(&subject.opened.pieces));
        for i in 0..2 {
            ask(&rig, &subject, i, i as usize, cell.strategy);
        }
        rig.settle();
        for i in 0..2 {
            let outcome = &rig.of(i).outcome;
            let known = &want[i as usize];
            assert_eq!(outcome.tokens[..], known[..outcome.tokens.len()], "request {i}, renewed at look {at}");
            match outcome.finish {
                Some(Finish::Fault(Fault::Lost)) => lost += 1,
                _ => assert_eq!(outcome.tokens, *known, "request {i}, renewed at look {at}"),
            }
        }
        if wire.0.lock().looks < at {
            // Both had ended before.
            break;
        }
        ask(&rig, &subject, 9, 0, cell.strategy);
        rig.settle();
        assert_eq!(rig.of(9).outcome.tokens, want[0], "after a new connection at look {at}");
        rig.assert_empty();
    }
    assert!(lost > 20, "{lost} were lost");
}

/// Checkpoints are of a session, as sequences are; their numbers are free again in the next.
#[test]
fn checkpoints_end_with_their_session() {
    let subject = Subject::built_in();
    let cell = Cell::reference(0.0);
    let limits = engine::limits::Limits { checkpoints: 2, ..Cell { parallel: 2, ..cell }.limits() };
    let machine = |index| {
        let options = engine::exec::ExecOptions::default();
        engine::exec::CpuExecutor::new(Arc::new(subject.stage(index, 1)), limits.clone(), options)
    };
    let (first, last) = (machine(0), machine(1));
    let agreed = Agreed::new(last.model(), &limits, last.border_width());
    let shape = last.shape().clone();
    let wire = Memory::new(LastStage::new(last, agreed.clone()));
    let mut split = Split::new(first, wire.clone(), agreed, &shape);
    let (state, checkpoint) = (StateSlot(0), CheckpointId(0));
    let mut run = |ops: &[SlotOp], trunk: TrunkWork| {
        let mut out = StepResult::default();
        split.run(&Step { ops: ops.to_vec(), trunk, ..Step::default() }, &mut out);
        out.fault
    };
    let (reset, save) = (SlotOp::Reset { state }, SlotOp::Save { state, checkpoint });
    let restore = SlotOp::Restore { checkpoint, state: StateSlot(1) };
    for _ in 0..3 {
        let next = pass(StateSlot(1), 0, 1, 1);
        assert_eq!(run(&[reset, save, restore], next.clone()), [None]);
        wire.reconnect();
        // Of a session that is over: known to nobody, and no reason to end.
        assert_eq!(run(&[restore, SlotOp::Drop { checkpoint }], next.clone()), [Some(Fault::Lost)]);
        assert_eq!(run(&[SlotOp::Fork { from: state, to: StateSlot(1) }], next), [Some(Fault::Lost)]);
    }
}
