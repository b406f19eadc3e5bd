//! schedule: which thread runs which part of the tick. The order is that of [`TICK`], whatever the threads.
//!
//! ```text
//! full    commit ─► suffix ─► mtp ─► suffix ─► prefill ─► verify ─► commit      6 hops a tick
//! fused   commit ─► mtp (suffix too) ─► verify (prefill too) ─► commit          3 hops
//! inline  commit                                                               none
//! ```
//!
//! `Box<World>` moves along these edges by bounded(1) channels; whoever holds it is the only writer, so there is no
//! lock and every schedule gives the same bytes. A thread that panics drops its ends; its neighbours see that, drop
//! theirs, and so on round to `commit`, which reports it.

use std::collections::BTreeMap;
use std::io;
use std::thread::{Builder, JoinHandle};

use crossbeam::channel::{Receiver, Sender, bounded};
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::tick::{System, TICK, Thread, run_inline, tick};
use crate::world::World;

/// Who runs what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// Every thread of the tick.
    Full,
    /// Drafting on one thread, the trunk pass on another.
    Fused,
    /// Everything on one thread.
    Inline,
    /// The widest of the above whose hops cost at most [`HOP_SHARE`] of a step of decoding, measured at start.
    #[default]
    Auto,
}

/// Most of a step that hops may cost under `auto`.
pub const HOP_SHARE: f64 = 0.02;
/// Steps without prompt rows that `auto` watches before it decides.
const WATCHED_STEPS: usize = 16;
/// Round trips of a hop measurement.
const ROUND_TRIPS: u64 = 64;

impl Schedule {
    /// All in their documented order.
    pub const ALL: [Self; 4] = [Self::Full, Self::Fused, Self::Inline, Self::Auto];

    /// The name used by flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Fused => "fused",
            Self::Inline => "inline",
            Self::Auto => "auto",
        }
    }

    /// Inverse of [`Self::name`].
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    fn place(self, thread: Thread) -> Thread {
        match (self, thread) {
            (Self::Full, thread) => thread,
            (Self::Fused, Thread::Suffix) => Thread::Mtp,
            (Self::Fused, Thread::Prefill) => Thread::Verify,
            (Self::Fused, thread) => thread,
            (Self::Inline | Self::Auto, _) => Thread::Commit,
        }
    }

    /// Hops of a tick.
    pub fn hops(self) -> usize {
        stations(self).len() - 1
    }

    /// The widest schedule whose hops of `hop_ns` cost at most [`HOP_SHARE`] of a step of `step_ns`.
    pub fn choose(hop_ns: f64, step_ns: f64) -> Self {
        let affordable = |s: &Self| s.hops() as f64 * hop_ns <= HOP_SHARE * step_ns;
        [Self::Full, Self::Fused].into_iter().find(affordable).unwrap_or(Self::Inline)
    }
}

/// Neighbouring systems on one thread.
struct Station {
    thread: Thread,
    systems: Vec<System>,
}

/// The tick, cut where the thread changes.
fn stations(schedule: Schedule) -> Vec<Station> {
    let mut out: Vec<Station> = Vec::new();
    for (system, thread) in TICK {
        let thread = schedule.place(thread);
        match out.last_mut() {
            Some(last) if last.thread == thread => last.systems.push(system),
            _ => out.push(Station { thread, systems: vec![system] }),
        }
    }
    out
}

/// A thread of the engine ended by a panic.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the engine's {thread} thread panicked: {message}")]
pub struct Dead {
    /// Which.
    pub thread: String,
    /// What it said.
    pub message: String,
}

impl Dead {
    /// From what a joined thread left.
    pub(crate) fn new(thread: &str, panic: &(dyn std::any::Any + Send)) -> Self {
        let message = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        Self { thread: thread.to_owned(), message }
    }
}

/// A schedule with its threads, which wait for a world.
pub struct Ready {
    schedule: Schedule,
    /// None of a schedule on one thread, and of `auto`, which has not decided.
    ring: Option<Ring>,
}

impl Ready {
    /// Starts the threads of `schedule`; those of `auto` start when it knows which.
    ///
    /// # Errors
    /// If the operating system gives no thread; none is left then.
    pub fn start(schedule: Schedule) -> io::Result<Self> {
        let ring = match schedule {
            Schedule::Full | Schedule::Fused => Some(Ring::start(schedule)?),
            Schedule::Inline | Schedule::Auto => None,
        };
        Ok(Self { schedule, ring })
    }

    /// Ticks until the world ends. The calling thread is `commit`.
    ///
    /// # Errors
    /// If a system panicked on another thread. A panic on this one goes on.
    pub fn run(self, mut world: Box<World>) -> Result<(), Dead> {
        let Self { mut schedule, mut ring } = self;
        if schedule == Schedule::Auto {
            // Where the machine gives no threads, all runs on the one that there is: the answers are the same.
            let told = |error: &io::Error| tracing::warn!(%error, "no thread for the schedule; it is inline");
            schedule = watch(&mut world).inspect_err(told).unwrap_or(Schedule::Inline);
            if schedule != Schedule::Inline {
                ring = Ring::start(schedule).inspect_err(told).ok();
            }
        }
        let schedule = if ring.is_some() { schedule } else { Schedule::Inline };
        tracing::info!(schedule = schedule.name(), hops = schedule.hops(), "schedule");
        match ring {
            Some(ring) => ring.run(world),
            None => {
                run_inline(&mut world);
                Ok(())
            }
        }
    }
}

/// Runs inline until enough steps were seen, then weighs hops against them.
fn watch(world: &mut World) -> io::Result<Schedule> {
    let hop_ns = hop_ns(world.clock())?;
    let mut steps = Vec::with_capacity(WATCHED_STEPS);
    while steps.len() < WATCHED_STEPS {
        if world.ended() {
            return Ok(Schedule::Inline);
        }
        tick(world);
        // Prompt passes are longer and pass: a schedule is chosen for decoding.
        if world.decode_ns() > 0 {
            steps.push(world.decode_ns());
        }
        world.park();
    }
    steps.sort_unstable();
    Ok(Schedule::choose(hop_ns, steps[WATCHED_STEPS / 2] as f64))
}

/// Measured time of handing a box to a parked thread.
fn hop_ns(clock: &dyn Clock) -> io::Result<f64> {
    let (there, from_here) = bounded::<Box<u64>>(1);
    let (back, from_there) = bounded::<Box<u64>>(1);
    let echo = Builder::new().name("hop".to_owned()).spawn(move || {
        while let Ok(token) = from_here.recv() {
            if back.send(token).is_err() {
                return;
            }
        }
    })?;
    let start = clock.now_ns();
    let mut token = Box::new(0);
    for _ in 0..ROUND_TRIPS {
        there.send(token).expect("the echo listens");
        token = from_there.recv().expect("the echo answers");
    }
    let ns = clock.now_ns() - start;
    drop(there);
    echo.join().expect("the echo does not panic");
    Ok(ns as f64 / (2 * ROUND_TRIPS) as f64)
}

type Edge = (Receiver<Box<World>>, Vec<System>, Sender<Box<World>>);
/// Where the world leaves `commit`, and where it comes back.
type Ends = (Sender<Box<World>>, Receiver<Box<World>>);

/// The threads of a schedule.
struct Ring {
    first: Vec<System>,
    last: Vec<System>,
    /// `None` once the ring comes apart.
    ends: Option<Ends>,
    threads: Vec<(Thread, JoinHandle<()>)>,
}

impl Ring {
    fn start(schedule: Schedule) -> io::Result<Self> {
        let mut stations = stations(schedule);
        let last = stations.pop().expect("the tick has systems");
        let mut rest = stations.into_iter();
        let first = rest.next().expect("a ring has more than one station");
        assert_eq!((first.thread, last.thread), (Thread::Commit, Thread::Commit), "the tick starts and ends on commit");

        let (out, mut tail) = bounded(1);
        let mut edges: BTreeMap<Thread, Vec<Edge>> = BTreeMap::new();
        for station in rest {
            let (sender, receiver) = bounded(1);
            let from = std::mem::replace(&mut tail, receiver);
            edges.entry(station.thread).or_default().push((from, station.systems, sender));
        }
        let ends = Some((out, tail));
        let mut ring = Self { first: first.systems, last: last.systems, ends, threads: Vec::new() };
        for (thread, edges) in edges {
            // An early return drops the ring, and that joins the threads that it has.
            let handle = Builder::new().name(thread.name().to_owned()).spawn(move || serve(&edges))?;
            ring.threads.push((thread, handle));
        }
        Ok(ring)
    }

    fn run(mut self, mut world: Box<World>) -> Result<(), Dead> {
        let mut lost = false;
        let (out, tail) = self.ends.as_ref().expect("it has just been started");
        while !world.ended() {
            self.first.iter().for_each(|s| world.run(*s));
            if out.send(world).is_err() {
                lost = true;
                break;
            }
            match tail.recv() {
                Ok(back) => world = back,
                Err(_) => {
                    lost = true;
                    break;
                }
            }
            self.last.iter().for_each(|s| world.run(*s));
            world.park();
        }
        match self.dismiss() {
            Some(dead) => Err(dead),
            None => {
                assert!(!lost, "the ring broke and no thread panicked");
                Ok(())
            }
        }
    }

    /// Takes the ring apart and waits for its threads: each sees its neighbour gone. The last that panicked.
    fn dismiss(&mut self) -> Option<Dead> {
        self.ends = None;
        let mut dead = None;
        for (thread, handle) in self.threads.drain(..) {
            if let Err(panic) = handle.join() {
                dead = Some(Dead::new(thread.name(), panic.as_ref()));
            }
        }
        dead
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.dismiss();
    }
}

/// One thread of the ring: its stations in the order of the tick, round and round.
fn serve(edges: &[Edge]) {
    loop {
        for (from, systems, to) in edges {
            let Ok(mut world) = from.recv() else { return };
            systems.iter().for_each(|s| world.run(*s));
            if to.send(world).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schedule_keeps_the_order_of_the_tick() {
        for schedule in Schedule::ALL {
            let order: Vec<System> = stations(schedule).into_iter().flat_map(|s| s.systems).collect();
            assert_eq!(order, TICK.map(|(s, _)| s));
            assert_eq!(Schedule::parse(schedule.name()), Some(schedule));
        }
        assert_eq!(Schedule::ALL.map(Schedule::hops), [6, 3, 0, 0]);
    }

    #[test]
    fn hops_are_fused_when_they_cost_too_much() {
        assert_eq!(Schedule::choose(7_000.0, 10e6), Schedule::Full);
        assert_eq!(Schedule::choose(7_000.0, 1.5e6), Schedule::Fused);
        assert_eq!(Schedule::choose(7_000.0, 1e5), Schedule::Inline);
    }
}
