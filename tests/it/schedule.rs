//! Schedules: the same bytes on any threads; an end when asked; a report when a system panics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::api::{AdmitError, Command, Strategy, Submission};
use engine::clock::Clock;
use engine::cost::Cost;
use engine::engine::{EngineHandle, Settings, StartError, start};
use engine::ids::{Ticket, TokenId};
use engine::limits::Limits;
use engine::pieces::Pieces;
use engine::schedule::Schedule;
use engine_tests::toy::{FakeClock, Heard, Toy, ToyConfig, hear, pieces, reference, speculation, submission};

const WAIT: Duration = Duration::from_secs(60);

fn launch(schedule: Schedule, config: &ToyConfig, limits: &Limits) -> EngineHandle {
    launch_with(schedule, config, limits, Arc::new(pieces()), FakeClock::default())
}

fn launch_with(
    schedule: Schedule,
    config: &ToyConfig,
    limits: &Limits,
    pieces: Arc<Pieces>,
    clock: FakeClock,
) -> EngineHandle {
    let toy = Box::new(Toy::new(config.clone(), limits));
    let settings = Settings { schedule, cost: Some(Cost::scripted(|r| 1000.0 + 50.0 * r as f64, 100.0)) };
    start(toy, limits, pieces, settings, Box::new(clock)).expect("it starts")
}

fn work() -> Vec<Submission> {
    let mut all = Vec::new();
    for (i, strategy) in Strategy::ALL.into_iter().cycle().take(12).enumerate() {
        let mut s = submission(i as u64, &[1, 2, 3, (i as u32) % 5, 1, 2], 40, speculation(strategy, 7));
        if i % 3 == 1 {
            s.sampling.temperature = 0.8;
            s.sampling.seed = i as u64;
        }
        if i % 4 == 2 {
            s.stop.tokens = vec![TokenId(9)];
        }
        all.push(s);
    }
    all
}

/// Everything that all tickets heard, after the engine has ended as asked.
fn hear_all(handle: EngineHandle, tickets: usize) -> BTreeMap<Ticket, Heard> {
    let mut heard = BTreeMap::new();
    while heard.values().filter(|h: &&Heard| h.report.is_some() || h.refused.is_some()).count() < tickets {
        hear(&mut heard, handle.events.recv_timeout(WAIT).expect("an engine that works"), 0);
    }
    handle.commands.send(Command::Drain).expect("it listens");
    handle.join().expect("it ends as asked");
    heard
}

#[test]
fn every_schedule_gives_the_same_bytes() {
    let limits = Limits { pages: 20, ..Limits::new(4, 64) };
    let config = ToyConfig { end_rate: 15, ..ToyConfig::default() };
    for schedule in Schedule::ALL {
        let handle = launch(schedule, &config, &limits);
        for s in work() {
            handle.commands.send(Command::Submit(Box::new(s))).expect("it listens");
        }
        let heard = hear_all(handle, work().len());
        for s in work() {
            assert_eq!(heard[&s.ticket].outcome, reference(&config, limits.context, &s), "{}", schedule.name());
        }
    }
}

#[test]
fn an_idle_engine_waits_and_wakes() {
    for schedule in Schedule::ALL {
        let (limits, config) = (Limits::new(1, 64), ToyConfig::default());
        let clock = FakeClock::default();
        let handle = launch_with(schedule, &config, &limits, Arc::new(pieces()), clock.clone());
        for ticket in 0..20 {
            let s = submission(ticket, &[1, 2, 3], 5, speculation(Strategy::MtpSuffix, 4));
            handle.commands.send(Command::Submit(Box::new(s.clone()))).expect("it listens");
            let mut heard = BTreeMap::new();
            while heard.values().all(|h: &Heard| h.report.is_none()) {
                hear(&mut heard, handle.events.recv_timeout(WAIT).expect("an engine that works"), 0);
            }
            assert_eq!(heard[&s.ticket].outcome, reference(&config, limits.context, &s));
        }
        // A tick reads the clock several times, and each reading is a microsecond.
        let reads = clock.now_ns() / 1000;
        assert!(reads < 20 * 40 * 5, "an idle engine does not tick: {reads} readings");
        handle.commands.send(Command::Stop).expect("it listens");
        handle.join().expect("it ends as asked");
    }
}

#[test]
fn a_panicking_system_is_reported() {
    for (schedule, thread) in [(Schedule::Full, "verify"), (Schedule::Fused, "verify"), (Schedule::Inline, "commit")] {
        let config = ToyConfig { panic_at: 5, ..ToyConfig::default() };
        let handle = launch(schedule, &config, &Limits::new(2, 64));
        let s = submission(1, &[1, 2, 3], 50, speculation(Strategy::Off, 0));
        handle.commands.send(Command::Submit(Box::new(s))).expect("it listens");
        while handle.events.recv_timeout(WAIT).is_ok() {}
        // The channel is disconnected, not silent.
        assert!(handle.events.recv_timeout(WAIT).unwrap_err().is_disconnected());
        let dead = handle.join().expect_err("it panicked");
        assert_eq!((dead.thread.as_str(), dead.message.contains("told to panic")), (thread, true), "{dead}");
    }
}

#[test]
fn auto_judges_by_decoding_and_not_by_prompts() {
    // 30 passes of 64 prompt rows, then decoding. Hops are a few nanoseconds of this clock: dear against a pass of
    // 1 us, cheap against one of 10 us and against any prompt pass. Whose thread panics tells what was chosen.
    let limits = Limits { prefill_chunk: 64, ..Limits::new(1, 2048) };
    for (pass_ns, thread) in [(1000, "commit"), (10_000, "verify")] {
        let config = ToyConfig { cost: (pass_ns, 50, 100), panic_at: 30 + 20, ..ToyConfig::default() };
        let handle = launch(Schedule::Auto, &config, &limits);
        let s = submission(1, &[3; 1900], 60, speculation(Strategy::Off, 0));
        handle.commands.send(Command::Submit(Box::new(s))).expect("it listens");
        while handle.events.recv_timeout(WAIT).is_ok() {}
        let dead = handle.join().expect_err("it panicked");
        assert_eq!(dead.thread, thread, "{dead}");
    }
}

#[test]
fn drain_finishes_what_runs_and_refuses_what_waits() {
    for schedule in [Schedule::Full, Schedule::Inline] {
        let (limits, config) = (Limits { events: 2, ..Limits::new(1, 64) }, ToyConfig::default());
        let handle = launch(schedule, &config, &limits);
        for ticket in 0..4 {
            let s = submission(ticket, &[1, 2, 3], 30, speculation(Strategy::Mtp, 3));
            handle.commands.send(Command::Submit(Box::new(s))).expect("it listens");
        }
        let mut heard = BTreeMap::new();
        // Once the first is admitted the others wait behind it.
        hear(&mut heard, handle.events.recv_timeout(WAIT).expect("an engine that works"), 0);
        handle.commands.send(Command::Drain).expect("it listens");
        let late = submission(9, &[1], 1, speculation(Strategy::Off, 0));
        handle.commands.send(Command::Submit(Box::new(late))).expect("it listens");
        while let Ok(event) = handle.events.recv_timeout(WAIT) {
            hear(&mut heard, event, 0);
        }
        handle.join().expect("it ends as asked");
        assert_eq!(heard[&Ticket(0)].outcome.tokens.len(), 30);
        for ticket in [1, 2, 3] {
            assert_eq!(heard[&Ticket(ticket)].refused, Some(AdmitError::Draining));
        }
        // The engine may be gone before it reads a submission that comes after the drain.
        if let Some(late) = heard.get(&Ticket(9)) {
            assert_eq!(late.refused, Some(AdmitError::Draining));
        }
    }
}

#[test]
fn a_dropped_handle_ends_the_engine() {
    let (limits, config) = (Limits::new(1, 64), ToyConfig::default());
    let shared = Arc::new(pieces());
    let handle = launch_with(Schedule::Full, &config, &limits, Arc::clone(&shared), FakeClock::default());
    let s = submission(1, &[1, 2, 3], 50, speculation(Strategy::Off, 0));
    handle.commands.send(Command::Submit(Box::new(s))).expect("it listens");
    drop(handle);
    // The engine's own share of the pieces goes when its threads do.
    while Arc::strong_count(&shared) > 1 {
        std::thread::yield_now();
    }
}

#[test]
fn limits_that_contradict_each_other_are_refused() {
    let limits = Limits { pages: 1, ..Limits::new(1, 64) };
    let toy = Box::new(Toy::new(ToyConfig::default(), &limits));
    let result = start(toy, &limits, Arc::new(pieces()), Settings::default(), Box::new(FakeClock::default()));
    assert!(matches!(result, Err(StartError::Limits(_))), "{result:?}");
}

#[test]
fn calibration_leaves_no_trace() {
    let (limits, config) = (Limits::new(2, 64), ToyConfig::default());
    let toy = Box::new(Toy::new(config.clone(), &limits));
    let handle = start(toy, &limits, Arc::new(pieces()), Settings::default(), Box::new(FakeClock::default()))
        .expect("it starts");
    for s in work() {
        handle.commands.send(Command::Submit(Box::new(s))).expect("it listens");
    }
    let heard = hear_all(handle, work().len());
    for s in work() {
        assert_eq!(heard[&s.ticket].outcome, reference(&config, limits.context, &s));
    }
}
