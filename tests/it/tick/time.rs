//! Requests whose time is over: they end with what they have, wherever they are.

use std::sync::Arc;

use engine::api::{Command, Event, Finish, Strategy, Submission};
use engine::clock::Monotonic;
use engine::cost::Cost;
use engine::engine::{Settings, start};
use engine::ids::Ticket;
use engine::limits::Limits;
use engine::schedule::Schedule;
use engine_tests::toy::{Rig, Toy, ToyConfig, pieces, reference, speculation, submission};

const SECOND: u64 = 1_000_000_000;

fn timed(ticket: u64, prompt: &[u32], strategy: Strategy) -> Submission {
    Submission { time_ns: Some(SECOND), ..submission(ticket, prompt, 500, speculation(strategy, 7)) }
}

/// It has said the first tokens of what it would have said, and nothing is left of it.
fn assert_cut(rig: &Rig, s: &Submission, at: &str) {
    let heard = rig.of(s.ticket.0);
    assert_eq!(heard.outcome.finish, Some(Finish::TimedOut), "{at}");
    let tokens = heard.outcome.tokens.len();
    assert_eq!(heard.report.as_ref().expect("it ended").completion_tokens, tokens as u64, "{at}");
    if tokens > 0 {
        let want = reference(
            &rig.config,
            rig.world.ledger.limits.context,
            &Submission { max_tokens: tokens as u32, ..s.clone() },
        );
        assert_eq!((&heard.outcome.tokens, &heard.outcome.text), (&want.tokens, &want.text), "{at}");
    }
}

#[test]
fn an_answer_whose_time_is_over_is_what_it_has_so_far() {
    for strategy in Strategy::ALL {
        for ticks in [4, 9, 30] {
            let mut rig = Rig::new(&Limits::new(2, 600), ToyConfig::default());
            let late = timed(0, &[1, 2, 3, 1, 2], strategy);
            let other = submission(1, &[4, 5, 6], 60, speculation(strategy, 7));
            rig.submit(&late);
            rig.submit(&other);
            for _ in 0..ticks {
                rig.tick();
            }
            let had = rig.of_len(0);
            assert!(had > 0 && rig.of(0).report.is_none(), "{strategy:?}: it runs, within its time");
            rig.clock.pass(SECOND);
            rig.tick();
            assert!(rig.slot(0).is_none(), "{strategy:?}: one tick is enough");
            assert_cut(&rig, &late, "in the middle");
            assert!(rig.of_len(0) >= had);
            rig.settle();
            rig.assert_reference(&other);
            rig.assert_empty();
        }
    }
}

#[test]
fn held_text_is_given_out_when_the_time_is_over() {
    // All of it may be the beginning of a stop string, so that nothing is said before the end.
    let mut rig = Rig::new(&Limits::new(1, 600), ToyConfig::default());
    let mut s = timed(0, &[1, 2, 3], Strategy::MtpSuffix);
    let want = reference(&rig.config, 600, &s);
    s.stop.strings = vec![[want.text.as_bytes(), b"!"].concat()];
    rig.submit(&s);
    for _ in 0..6 {
        rig.tick();
    }
    assert!(rig.of_len(0) > 0 && rig.of(0).outcome.text.is_empty(), "it is held");
    rig.clock.pass(SECOND);
    rig.tick();
    assert_cut(&rig, &s, "held");
    assert!(!rig.of(0).outcome.text.is_empty());
    rig.assert_empty();
}

#[test]
fn time_is_over_in_the_queue_in_prefill_and_for_a_slow_reader() {
    let limits = Limits { prefill_chunk: 8, ..Limits::new(2, 600) };
    for plain in [false, true] {
        let toy = ToyConfig { plain, hidden_rows: if plain { 0 } else { 64 }, ..ToyConfig::default() };
        let mut rig = Rig::new(&Limits { prefix_cache: true, checkpoints: 4, ..limits.clone() }, toy);
        let long: Vec<u32> = (0..300).map(|i| i % 11).collect();
        let (slow, prompt) = (timed(0, &[1, 2], Strategy::NgramSuffix), timed(1, &long, Strategy::NgramSuffix));
        let queued = timed(2, &[3], Strategy::Off);
        for s in [&slow, &prompt, &queued] {
            rig.submit(s);
        }
        for _ in 0..5 {
            rig.tick();
        }
        rig.send(Command::Pause(Ticket(0)));
        for _ in 0..5 {
            rig.tick();
        }
        assert_eq!((rig.of_len(0) > 0, rig.of_len(1), rig.slot(2)), (true, 0, None));
        let had = rig.of_len(0);
        rig.clock.pass(SECOND);
        rig.tick();
        for s in [&slow, &prompt, &queued] {
            assert_cut(&rig, s, "stalled, in prefill, queued");
        }
        assert_eq!((rig.of_len(0), rig.of_len(1), rig.of_len(2)), (had, 0, 0));
        assert_eq!(rig.of(2).report.as_ref().expect("it ended").prompt_tokens, 1);
        assert!(rig.of(2).request.is_none(), "it never had a row");
        rig.assert_empty();
        // What was computed of the prompt is kept where the pages are all there is of it.
        let again = submission(3, &long, 4, speculation(Strategy::NgramSuffix, 7));
        rig.submit(&again);
        rig.settle();
        rig.assert_reference(&again);
        assert_eq!(rig.of(3).report.as_ref().expect("it ended").cached_tokens > 0, plain);
    }
}

#[test]
fn a_full_outbox_keeps_its_bound_when_times_are_over() {
    let limits = Limits { events: 4, ..Limits::new(3, 300) };
    let mut rig = Rig::new(&limits, ToyConfig::default());
    for ticket in 0..9 {
        rig.submit(&timed(ticket, &[1, 2, ticket as u32], Strategy::MtpSuffix));
    }
    for _ in 0..12 {
        rig.tick_deaf();
    }
    rig.clock.pass(SECOND);
    for _ in 0..12 {
        rig.tick_deaf();
        assert!(rig.world.ledger.outbox.len() <= limits.events + 4 * limits.slots, "{}", rig.world.ledger.outbox.len());
    }
    rig.listen();
    rig.settle();
    for ticket in 0..9 {
        assert_eq!(rig.of(ticket).outcome.finish, Some(Finish::TimedOut));
    }
    rig.assert_empty();
}

/// A world where nothing moves sleeps, and the time of a request wakes it: were it not so, this would never end.
#[test]
fn a_world_at_rest_wakes_when_a_time_is_over() {
    for schedule in [Schedule::Inline, Schedule::Full] {
        let limits = Limits::new(1, 1 << 16);
        let toy = Box::new(Toy::new(ToyConfig::default(), &limits));
        let settings = Settings { schedule, cost: Some(Cost::default()) };
        let handle = start(toy, &limits, Arc::new(pieces()), settings, Box::new(Monotonic::default())).unwrap();
        // Paused as soon as it runs; the other waits behind it.
        let time_ns = Some(100_000_000);
        for ticket in 0..2 {
            let s = submission(ticket, &[1, 2, 3], u32::MAX, speculation(Strategy::Off, 0));
            handle.commands.send(Command::Submit(Box::new(Submission { time_ns, ..s }))).unwrap();
        }
        let mut ended = Vec::new();
        while ended.len() < 2 {
            match handle.events.recv().unwrap() {
                Event::Admitted { ticket, .. } => handle.commands.send(Command::Pause(ticket)).unwrap(),
                Event::Finished { ticket, finish, .. } => ended.push((ticket.0, finish)),
                _ => {}
            }
        }
        ended.sort_by_key(|(ticket, _)| *ticket);
        assert_eq!(ended, [(0, Finish::TimedOut), (1, Finish::TimedOut)]);
        handle.commands.send(Command::Stop).unwrap();
        handle.join().unwrap();
    }
}
