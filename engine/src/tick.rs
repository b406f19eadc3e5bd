//! tick: the order of the systems, once, as data; and the runner that keeps it on one thread.

use serde::{Deserialize, Serialize};

use crate::world::World;

/// One entry of the tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[expect(missing_docs, reason = "each system is described in its module")]
pub enum System {
    Intake,
    Admit,
    IndexSuffix,
    Plan,
    DraftMtp,
    ExtendSuffix,
    Prefill,
    Verify,
    Commit,
    Retire,
    Emit,
}

impl System {
    /// How many there are.
    pub const COUNT: usize = Self::Emit as usize + 1;

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Intake => "intake",
            Self::Admit => "admit",
            Self::IndexSuffix => "index_suffix",
            Self::Plan => "plan",
            Self::DraftMtp => "draft_mtp",
            Self::ExtendSuffix => "extend_suffix",
            Self::Prefill => "prefill",
            Self::Verify => "verify",
            Self::Commit => "commit",
            Self::Retire => "retire",
            Self::Emit => "emit",
        }
    }
}

/// The threads that the world visits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "named after what runs on them")]
pub enum Thread {
    Commit,
    Suffix,
    Mtp,
    Prefill,
    Verify,
}

impl Thread {
    /// How many there are.
    pub const COUNT: usize = Self::Verify as usize + 1;

    /// The name that the operating system shows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Suffix => "suffix",
            Self::Mtp => "mtp",
            Self::Prefill => "prefill",
            Self::Verify => "verify",
        }
    }
}

/// The tick: every system in order, and its thread under the full schedule.
pub const TICK: [(System, Thread); System::COUNT] = [
    (System::Intake, Thread::Commit),
    (System::Admit, Thread::Commit),
    (System::IndexSuffix, Thread::Suffix),
    (System::Plan, Thread::Suffix),
    (System::DraftMtp, Thread::Mtp),
    (System::ExtendSuffix, Thread::Suffix),
    (System::Prefill, Thread::Prefill),
    (System::Verify, Thread::Verify),
    (System::Commit, Thread::Commit),
    (System::Retire, Thread::Commit),
    (System::Emit, Thread::Commit),
];

/// Runs one whole tick on the calling thread.
pub fn tick(world: &mut World) {
    for (system, _) in TICK {
        world.run(system);
    }
}

/// Ticks until the world ends, sleeping while nothing can happen.
pub fn run_inline(world: &mut World) {
    while !world.ended() {
        tick(world);
        world.park();
    }
}
