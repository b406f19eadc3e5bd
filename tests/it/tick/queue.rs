//! The queue: who is next, and what it costs to wait.

use engine::api::{Command, Strategy, Submission};
use engine::ids::Ticket;
use engine::limits::Limits;
use engine_tests::toy::{Rig, ToyConfig, speculation, submission};

fn ask(ticket: u64, priority: i8) -> Submission {
    Submission { priority, ..submission(ticket, &[1, 2, ticket as u32], 20, speculation(Strategy::MtpSuffix, 7)) }
}

/// Tickets in the order in which they were given rows.
fn order(rig: &mut Rig, count: usize) -> Vec<u64> {
    let mut order = Vec::new();
    while order.len() < count {
        rig.tick();
        let new = rig.heard.iter().filter(|(t, h)| h.request.is_some() && !order.contains(&t.0));
        let new: Vec<u64> = new.map(|(t, _)| t.0).collect();
        order.extend(new);
    }
    order
}

#[test]
fn lower_numbers_go_first_and_equals_as_they_came() {
    let mut rig = Rig::new(&Limits::new(1, 64), ToyConfig::default());
    let priorities = [0, 5, -3, 0, 100, -100, 5, -3];
    let all: Vec<Submission> = (0..).zip(priorities).map(|(ticket, priority)| ask(ticket, priority)).collect();
    all.iter().for_each(|s| rig.submit(s));
    assert_eq!(order(&mut rig, all.len()), [5, 2, 7, 0, 3, 1, 6, 4]);
    rig.settle();
    all.iter().for_each(|s| rig.assert_reference(s));
    rig.assert_empty();
}

#[test]
fn nobody_who_runs_is_preempted_for_priority() {
    let mut rig = Rig::new(&Limits::new(1, 64), ToyConfig::default());
    rig.submit(&ask(0, 100));
    rig.tick();
    assert!(rig.slot(0).is_some());
    rig.submit(&ask(1, 50));
    rig.submit(&ask(2, -100));
    assert_eq!(order(&mut rig, 3), [0, 2, 1]);
    rig.settle();
    assert!((0..3).all(|t| rig.of(t).report.as_ref().is_some_and(|r| r.preempted == 0)));
}

#[test]
fn choices_of_one_prompt_stay_together() {
    let mut rig = Rig::new(&Limits::new(2, 64), ToyConfig::default());
    rig.submit(&ask(9, 0));
    for choice in 0..3 {
        let mut s = ask(choice, 3);
        (s.prompt, s.sampling.choice) = (ask(0, 0).prompt, choice as u32);
        s.sibling = (choice > 0).then_some(Ticket(0));
        rig.submit(&s);
    }
    rig.submit(&ask(10, 3));
    rig.submit(&ask(11, 2));
    assert_eq!(order(&mut rig, 6), [9, 11, 0, 1, 2, 10]);
    rig.settle();
    rig.assert_empty();
}

/// One row decodes while another waits for pages, in the queue (a long prompt runs) or because it lost them (a short one
/// does): the cache is asked again when something has changed and not before.
#[test]
fn who_waits_is_looked_up_when_pages_change() {
    for (hidden_rows, prompt) in [(0, 20), (64, 20), (0, 3), (64, 3)] {
        let toy = ToyConfig { hidden_rows, plain: hidden_rows == 0, ..ToyConfig::default() };
        let limits = Limits { pages: 8, prefix_cache: true, checkpoints: 4, ..Limits::new(2, 128) };
        let mut rig = Rig::new(&limits, toy);
        let run = submission(0, &vec![1; prompt], 100, speculation(Strategy::Off, 0));
        let wait = submission(1, &[5; 110], 8, speculation(Strategy::Off, 0));
        rig.submit(&run);
        rig.tick();
        rig.submit(&wait);
        let before = rig.world.ledger.prefix.asked;
        let (mut ticks, mut changes) = (0, 0);
        while rig.slot(0).is_some() {
            let pages = rig.world.ledger.pages.changes();
            rig.tick();
            ticks += 1;
            changes += u64::from(rig.world.ledger.pages.changes() != pages);
        }
        let asked = rig.world.ledger.prefix.asked - before;
        assert!(ticks > 90 && changes < 20, "{ticks} ticks, {changes} with a change");
        assert!(asked > 0 && asked <= changes + 2, "asked {asked} times in {ticks} ticks, {changes} with a change");
        rig.settle();
        assert_eq!(rig.of(1).report.as_ref().is_some_and(|r| r.preempted > 0), prompt == 3);
        rig.assert_reference(&run);
        rig.assert_reference(&wait);
        rig.assert_empty();
        // What was kept of the second is found at once by a third.
        rig.send(Command::Submit(Box::new(Submission { ticket: Ticket(2), ..wait.clone() })));
        rig.settle();
        let third = rig.of(2).report.clone().expect("it ended");
        // Where a state is needed, the page that it stood on has gone for the second's own answer.
        assert!(third.cache_matched > 0 && (third.cached_tokens > 0 || hidden_rows > 0), "{third:?}");
    }
}
