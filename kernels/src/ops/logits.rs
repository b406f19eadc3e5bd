//! What is read off a row of logits. NaN never wins, ties go to the lowest id, a row without a finite maximum is
//! reported as `None`.

use crate::cpu::detect::Isa;
use crate::cpu::lanes::{Kernel, LANES, Simd, Vector, dispatch};

use super::exp::exp_lanes;

/// Elements whose exponentials are summed in f32 before the sum is widened.
const SUM_BLOCK: usize = 4096;

struct Greatest<'a>(&'a [f32]);

impl Kernel for Greatest<'_> {
    type Out = f32;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut best = [s.splat(f32::NEG_INFINITY); 4];
        let (blocks, rest) = self.0.as_chunks::<{ 4 * LANES }>();
        for block in blocks {
            let (lanes, _) = block.as_chunks::<LANES>();
            for i in 0..4 {
                best[i] = s.load(&lanes[i]).max(best[i]); // keeps `best` where the lane is NaN
            }
        }
        let best = best[0].max(best[1]).max(best[2].max(best[3])).greatest();
        rest.iter().fold(best, |m, &x| if x > m { x } else { m })
    }
}

/// The greatest logit and the lowest id that has it; `None` if it is not finite (all NaN or -inf, or a +inf).
pub fn argmax(isa: Isa, row: &[f32]) -> Option<(u32, f32)> {
    let greatest = dispatch(isa, Greatest(row));
    if !greatest.is_finite() {
        return None;
    }
    let id = row.iter().position(|&x| x == greatest)?;
    Some((id as u32, row[id]))
}

struct ExpSum<'a> {
    row: &'a [f32],
    max: f32,
}

impl Kernel for ExpSum<'_> {
    type Out = f64;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        let max = s.splat(self.max);
        let lowest = s.splat(f32::NEG_INFINITY);
        let mut total = 0.0;
        for block in self.row.chunks(SUM_BLOCK) {
            let (lanes, rest) = block.as_chunks::<LANES>();
            let mut sum = s.splat(0.0);
            for lanes in lanes {
                // max(): a NaN counts as -inf
                sum = sum.add(exp_lanes(s, s.load(lanes).max(lowest).sub(max)));
            }
            if !rest.is_empty() {
                let x = s.load_partial(rest).first(rest.len(), lowest).max(lowest);
                sum = sum.add(exp_lanes(s, x.sub(max)));
            }
            total += f64::from(sum.sum());
        }
        total
    }
}

/// `ln(sum exp(x))`, NaN counted as -inf; `None` if the greatest logit is not finite.
///
/// Order: blocks of 4096 elements; in a block 16 partial sums (lane = element mod 16), ascending, then the tree of
/// [`Vector::sum`]; block sums are added in double, ascending.
pub fn log_sum_exp(isa: Isa, row: &[f32]) -> Option<f32> {
    let (_, max) = argmax(isa, row)?;
    Some((f64::from(max) + dispatch(isa, ExpSum { row, max }).ln()) as f32)
}

#[cfg(test)]
mod tests;
