//! What the machine can do at best, for benchmarks to compare with.

use super::detect::Isa;
use super::lanes::{Kernel, LANES, Simd, Vector, dispatch};

/// Independent chains: they cover the latency, and fit the registers where a vector takes two of them.
const CHAINS: usize = 5;

/// Fused multiply-adds that [`fma_chains`] does a turn.
pub const FMA_PER_TURN: usize = CHAINS * LANES;

struct Chains(usize);

impl Kernel for Chains {
    type Out = f32;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (a, b) = (s.splat(0.999), s.splat(0.001));
        let mut sums = [s.splat(0.0); CHAINS];
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = s.splat(i as f32); // equal chains would be computed once
        }
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = sum.mul_add(a, b);
            }
        }
        sums.into_iter().fold(0.0, |total, sum| total + sum.sum())
    }
}

/// `turns` times [`FMA_PER_TURN`] fused multiply-adds in registers: divide by the time it takes for the peak of `isa`.
/// The value has no meaning; it keeps the work alive.
pub fn fma_chains(isa: Isa, turns: usize) -> f32 {
    dispatch(isa, Chains(turns))
}
