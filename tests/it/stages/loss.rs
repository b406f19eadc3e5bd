//! The connection ends at some exchange: what runs fails, and what comes after the next connection is right.

use std::sync::Arc;

use engine::api::{Command, Finish, Sampling, Strategy};
use engine::ids::TokenId;
use engine::step::Fault;
use engine_tests::drive::{Cell, Subject, run};
use engine_tests::toy::{Rig, speculation, submission};

use super::staged;

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
