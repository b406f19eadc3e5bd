//! Time, as an argument: systems are handed a clock and never ask for the hour themselves.

use std::time::Instant;

/// Nanoseconds since some fixed moment; never goes back.
pub trait Clock: Send {
    /// Now.
    fn now_ns(&self) -> u64;
}

/// The machine's monotonic clock, counted from its making.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic(Instant);

impl Default for Monotonic {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
