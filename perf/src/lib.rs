//! Shared helpers of the benchmarks.

pub mod load;
pub mod model;

use std::time::{Duration, Instant};

use engine_bin::bench::roofline::machine;
use engine_kernels::{Isa, Pool};

/// Shortest time of each of `candidates`, called in turn `rounds` times: what they share (clock, neighbours) hits all.
pub fn shortest(rounds: usize, candidates: &mut [&mut dyn FnMut()]) -> Vec<Duration> {
    let mut best = vec![Duration::MAX; candidates.len()];
    for _ in 0..rounds {
        for (candidate, best) in candidates.iter_mut().zip(&mut best) {
            let start = Instant::now();
            candidate();
            *best = start.elapsed().min(*best);
        }
    }
    best
}

/// Fused multiply-adds a second that one core does in registers, in 10^9.
pub fn fma_peak(isa: Isa) -> f64 {
    machine::fma_g(&Pool::new(1), isa)
}

/// `count` in 10^9 a second.
pub fn giga(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64() / 1e9
}

/// Floats that are neither zero nor large.
pub fn floats(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + 13) % 1021) as f32 / 1021.0 - 0.5).collect()
}
