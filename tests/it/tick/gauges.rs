//! What a world shows of itself, tick by tick.

use engine::api::{Command, Strategy};
use engine::gauges::{Snapshot, State};
use engine::ids::Ticket;
use engine::limits::Limits;
use engine_tests::toy::{Rig, ToyConfig, speculation, submission};

fn shown(rig: &Rig) -> Snapshot {
    let seen = rig.world.gauges().read();
    let e = &seen.engine;
    let pages = rig.world.ledger.pages.len() as u64;
    assert_eq!(e.pages_free + e.pages_used + e.pages_cached, pages, "every page is somebody's or nobody's");
    assert_eq!(seen.rows.len(), rig.world.ledger.limits.slots);
    for row in &seen.rows {
        assert!(row.cached <= row.prompt_done && row.prompt_done <= row.prompt, "{row:?}");
        assert!(row.decoded <= row.limit, "{row:?}");
        assert_eq!(row.state() == State::Free, row.generation == 0, "{row:?}");
    }
    seen
}

fn grew(before: &Snapshot, after: &Snapshot) {
    let (a, b) = (&before.engine, &after.engine);
    let all = |s: &engine::gauges::Figures| {
        let mut all = vec![s.now_ns, s.pages_evicted, s.checkpoints_evicted, s.preempted, s.segments];
        all.extend(s.ticks.iter().chain(&s.system_ns).chain(&s.forward_ns).chain(&s.forward_rows));
        all.extend(s.tick_tokens.count.iter().chain(&s.step.count).chain(&s.inter_token.count));
        all.extend([s.tick_tokens.sum, s.step.sum, s.inter_token.sum]);
        all
    };
    assert!(all(a).iter().zip(&all(b)).all(|(a, b)| a <= b), "a counter went back: {a:?} {b:?}");
}

/// Several rows through prefill, drafts, a pause and an early end, in a pool that is too small for all of them.
#[test]
fn every_page_and_row_is_accounted_for_in_every_tick() {
    let limits = Limits { pages: 12, checkpoints: 4, prefix_cache: true, ..Limits::new(3, 96) };
    let mut rig = Rig::new(&limits, ToyConfig::default());
    let prompts: Vec<Vec<u32>> = (0..5).map(|i| (0..30 + i).map(|t| (t * 7 + i) % 40).collect()).collect();
    let at_rest = shown(&rig);
    assert_eq!(at_rest.engine.pages_free, 12);
    for (i, prompt) in prompts.iter().enumerate() {
        rig.submit(&submission(i as u64, prompt, 40, speculation(Strategy::MtpSuffix, 3)));
    }
    let (mut before, mut states, mut windows) = (at_rest, Vec::new(), 0);
    for tick in 0..2000 {
        match tick {
            6 => rig.send(Command::Pause(Ticket(0))),
            12 => rig.send(Command::Resume(Ticket(0))),
            14 => rig.send(Command::Cancel(Ticket(1))),
            _ => {}
        }
        rig.tick();
        let seen = shown(&rig);
        grew(&before, &seen);
        states.extend(seen.rows.iter().map(|row| row.state()));
        windows += seen.rows.iter().filter(|row| row.window > 0).count();
        before = seen;
        if tick > 14 && !rig.world.moved() {
            break;
        }
    }
    rig.assert_empty();
    for state in [State::Free, State::Prefill, State::Decode, State::Stalled] {
        assert!(states.contains(&state), "no row was ever {}", state.name());
    }
    assert!(windows > 0, "no window was ever shown");
    let e = &before.engine;
    assert_eq!((e.pages_used, e.waiting), (0, 0), "nobody holds anything at the end");
    assert!(before.rows.iter().all(|row| row.state() == State::Free));
    assert_eq!(e.checkpoint_bytes, e.checkpoints * rig.world.ledger.shape.checkpoint_bytes as u64);

    // Against what the choices were told.
    let reports: Vec<_> = rig.heard.values().filter_map(|h| h.report.as_ref().or(h.cancelled.as_ref())).collect();
    let committed: u64 = reports.iter().map(|r| r.completion_tokens).sum();
    let steps: u64 = reports.iter().map(|r| r.steps).sum();
    assert_eq!(e.step.count.iter().sum::<u64>(), steps, "one gap a step");
    let later = committed - reports.iter().map(|r| r.first).sum::<u64>();
    assert_eq!(e.inter_token.count.iter().sum::<u64>(), later, "one observation a token behind the first");
    assert_eq!(e.tick_tokens.sum, e.forward_rows[0] + committed, "prompt rows and committed tokens");
    assert_eq!(e.tick_tokens.count.iter().sum::<u64>(), e.ticks[1..].iter().sum::<u64>());
    assert_eq!(e.preempted, reports.iter().map(|r| r.preempted).sum::<u64>());
    let drafted: u64 = reports.iter().map(|r| r.total.drafted).sum();
    let anchors: u64 = reports.iter().map(|r| r.steps + r.first).sum();
    assert_eq!(e.forward_rows[1], anchors + drafted, "anchors and drafts");
    assert!(e.forward_rows[2] > 0 && e.system_ns.iter().all(|ns| *ns > 0));
}
