//! What is said of KV pages to who asks.

use engine::api::{Command, Event, Strategy, Submission};
use engine::ids::Ticket;
use engine::limits::Limits;
use engine_tests::toy::{Heard, Rig, ToyConfig, reference};

use super::{Rng, any_submission, greedy};

/// Few pages, so that rows are preempted; requests of all kinds, cancelled and paused at random.
#[test]
fn pages_are_told_as_they_are() {
    let limits = Limits { pages: 7, ..Limits::new(3, 64) };
    let (mut preempted, mut cancelled) = (0, 0);
    for seed in 0..60 {
        let mut rng = Rng(seed, 0);
        let mut rig = Rig::new(&limits, ToyConfig { end_rate: 10, ..ToyConfig::default() });
        rig.send(Command::ReportPages);
        for ticket in 0..6 {
            rig.submit(&any_submission(&mut rng, ticket, 30, 40));
        }
        let mut still = 0;
        while still < 3 {
            if rng.chance(60) {
                let ticket = Ticket(rng.below(6));
                rig.send([Command::Cancel, Command::Pause, Command::Resume][rng.below(3) as usize](ticket));
            }
            rig.tick();
            let held: u32 = rig.heard.values().filter_map(|h| h.pages.last()).map(|(held, _)| held).sum();
            let free = rig.world.ledger.pages.free_len();
            assert_eq!(held as usize + free, limits.pages, "seed {seed}, tick {}", rig.ticks);
            if !rig.world.moved() {
                // Nothing moves while rows are paused.
                (0..6).for_each(|ticket| rig.send(Command::Resume(Ticket(ticket))));
                still += 1;
            }
        }
        (0..6).for_each(|ticket| rig.send(Command::Resume(Ticket(ticket))));
        rig.settle();
        for heard in rig.heard.values() {
            assert!(heard.pages.windows(2).all(|w| w[0].0 != w[1].0), "only changes are said: {:?}", heard.pages);
            assert!(heard.pages.last().is_none_or(|last| last.0 == 0), "nobody ends with pages");
            preempted += heard.report.as_ref().map_or(0, |r| r.preempted);
            cancelled += u64::from(heard.cancelled.is_some());
        }
        rig.assert_empty();
    }
    assert!(preempted > 0 && cancelled > 0, "{preempted} rows were preempted, {cancelled} cancelled");
}

#[test]
fn nothing_is_told_to_who_does_not_ask() {
    let mut rig = Rig::new(&Limits::new(2, 64), ToyConfig::default());
    rig.submit(&greedy(0, Strategy::Off, 4, 30));
    rig.settle();
    assert!(rig.of(0).report.is_some() && rig.of(0).pages.is_empty());
}

#[test]
fn a_deaf_host_holds_few_events() {
    let slots = 3;
    let mut rig = Rig::new(&Limits { events: 1, ..Limits::new(slots, 128) }, ToyConfig::default());
    rig.send(Command::ReportPages);
    let all = (0..6).map(|ticket| greedy(ticket, Strategy::Mtp, 4, 50));
    let all: Vec<_> = all.inspect(|s| rig.submit(s)).collect();
    for tick in 0..200 {
        if tick == 100 {
            rig.send(Command::Cancel(Ticket(1)));
        }
        rig.tick_deaf();
        assert!(rig.world.ledger.outbox.len() <= 1 + 5 * slots, "{}", rig.world.ledger.outbox.len());
    }
    assert!(!rig.world.moved(), "every row waits for the reader");
    rig.listen();
    rig.settle();
    all.iter().filter(|s| s.ticket != Ticket(1)).for_each(|s| rig.assert_reference(s));
    rig.assert_empty();
}

/// Deltas that nobody had room for are in the last event of a row that is cancelled: no token is lost.
#[test]
fn what_was_never_sent_of_a_cancelled_row_is_in_its_last_event() {
    let limits = Limits { events: 4, ..Limits::new(2, 128) };
    let mut waited = 0;
    for heard in 1..20 {
        let mut rig = Rig::new(&limits, ToyConfig { end_rate: 0, ..ToyConfig::default() });
        let both: Vec<_> = (0..2).map(|ticket| greedy(ticket, Strategy::Off, 4, 60)).collect();
        both.iter().for_each(|s| rig.submit(s));
        (0..heard).for_each(|_| rig.tick());
        (0..3).for_each(|_| rig.tick_deaf());
        let of_it = |event: &&Event| matches!(event, Event::Delta { ticket: Ticket(1), .. });
        waited += rig.world.ledger.outbox.waiting().filter(of_it).count();
        rig.send(Command::Cancel(Ticket(1)));
        rig.tick_deaf();
        rig.listen();
        rig.settle();
        let Heard { cancelled, outcome, .. } = rig.of(1);
        let n = cancelled.as_ref().expect("it was cancelled").completion_tokens;
        assert_eq!(outcome.tokens.len() as u64, n, "after {heard} ticks");
        if n > 0 {
            let want = reference(&rig.config, limits.context, &Submission { max_tokens: n as u32, ..both[1].clone() });
            assert_eq!((&outcome.tokens, &outcome.text), (&want.tokens, &want.text));
        }
        rig.assert_reference(&both[0]);
    }
    assert!(waited > 0, "no delta ever waited");
}
