//! The engine as its owner sees it: started once, spoken to through channels, joined at the end.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::api::{Command, Event};
use crate::clock::Clock;
use crate::cost::Cost;
use crate::gauges::Gauges;
use crate::limits::{Limits, LimitsError};
use crate::pieces::Pieces;
use crate::schedule::{Dead, Ready, Schedule};
use crate::step::Executor;
use crate::tick::Thread;
use crate::world::{Ledger, World};

/// What is not a capacity.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Settings {
    /// Who runs what.
    pub schedule: Schedule,
    /// Cost table of the adaptive window. `None`: it is measured before the first request, and kept up from then on.
    pub cost: Option<Cost>,
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The limits contradict each other.
    #[error("limits: {0}")]
    Limits(#[from] LimitsError),
    /// The operating system gave no thread.
    #[error("a thread of the engine could not be started: {0}")]
    Thread(std::io::Error),
}

/// A running engine. Dropping it without [`EngineHandle::join`] lets the engine finish what runs and end by itself.
#[derive(Debug)]
pub struct EngineHandle {
    /// Commands to it; bounded.
    pub commands: Sender<Command>,
    /// Events from it; bounded. Disconnects when the engine has ended, however it did.
    pub events: Receiver<Event>,
    /// What it looks like, tick by tick.
    pub gauges: Arc<Gauges>,
    thread: JoinHandle<Result<(), Dead>>,
}

impl EngineHandle {
    /// Whether the engine's threads are gone. [`Self::join`] tells why.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The thread that panicked and what it said.
    pub fn join(self) -> Result<(), Dead> {
        // A panic drops the world, and the event channel with it, before the thread can be joined.
        match self.thread.join() {
            Ok(result) => result,
            Err(panic) => Err(Dead::new(Thread::Commit.name(), panic.as_ref())),
        }
    }
}

/// Commands that wait in the channel at most.
pub(crate) fn commands_max(limits: &Limits) -> usize {
    limits.waiting + 4 * limits.slots + 64
}

/// Starts an engine around `executor`.
///
/// # Errors
/// If the limits contradict each other or no thread can be had.
pub fn start(
    executor: Box<dyn Executor>,
    limits: &Limits,
    pieces: Arc<Pieces>,
    settings: Settings,
    clock: Box<dyn Clock>,
) -> Result<EngineHandle, StartError> {
    let mut ledger = Ledger::new(limits.clone(), executor.shape().clone(), pieces)?;
    let measured = settings.cost.is_none();
    if let Some(cost) = settings.cost {
        ledger.cost = cost;
    }
    let (commands, inbox) = bounded(commands_max(limits));
    let (sender, events) = bounded(limits.events);
    let mut world = Box::new(World::new(ledger, executor, clock, inbox, sender));
    let gauges = world.gauges();
    let ready = Ready::start(settings.schedule).map_err(StartError::Thread)?;
    let run = move || {
        if measured {
            world.calibrate();
        }
        ready.run(world)
    };
    let thread = Builder::new().name(Thread::Commit.name().to_owned()).spawn(run).map_err(StartError::Thread)?;
    Ok(EngineHandle { commands, events, gauges, thread })
}
