//! How long requests take once they run, for those who are told to come back later.

use std::sync::atomic::{AtomicU64, Ordering};

/// Share of the newest in the mean: 1 / this.
const WEIGHT: u64 = 8;
/// Seconds that are told at least and at most; clients give up above.
const SECONDS: (u64, u64) = (1, 120);

/// A mean that follows the last few.
#[derive(Default)]
pub(crate) struct Service {
    mean_ns: AtomicU64,
}

impl Service {
    /// A choice took this long beside its time in the queue. Told by one thread.
    pub(crate) fn add(&self, ns: u64) {
        let mean = self.mean_ns.load(Ordering::Relaxed);
        let next = if mean == 0 { ns } else { mean - mean / WEIGHT + ns / WEIGHT };
        self.mean_ns.store(next, Ordering::Relaxed);
    }

    /// Seconds after which one of `slots` may be free for another, behind `waiting` that are there already.
    pub(crate) fn retry_after(&self, waiting: u64, slots: usize) -> u8 {
        let mean = u128::from(self.mean_ns.load(Ordering::Relaxed));
        let ns = mean * u128::from(waiting) / slots.max(1) as u128;
        let seconds = u64::try_from(ns.div_ceil(1_000_000_000)).unwrap_or(u64::MAX);
        // At most 120.
        seconds.clamp(SECONDS.0, SECONDS.1) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_back_waits_for_those_before() {
        let service = Service::default();
        assert_eq!(service.retry_after(256, 4), 1, "nothing is known yet");
        service.add(2_000_000_000);
        assert_eq!((service.retry_after(0, 4), service.retry_after(10, 4), service.retry_after(256, 4)), (1, 5, 120));
        for _ in 0..100 {
            service.add(500_000_000);
        }
        assert_eq!(service.retry_after(40, 4), 6);
        service.add(u64::MAX);
        assert_eq!(service.retry_after(u64::MAX, 1), 120);
    }
}
