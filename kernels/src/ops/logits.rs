//! What is read off a row of logits. NaN never wins, ties go to the lowest id, a row without a finite maximum is
//! reported as `None`.

use std::cmp::Ordering;

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

/// The `k` greatest logits with their ids, best first, ties by ascending id, into `out`. NaN and -inf are left out, so
/// there may be fewer.
pub fn top_k(row: &[f32], k: usize, out: &mut Vec<(u32, f32)>) {
    out.clear();
    if k == 0 {
        return;
    }
    // `out` is sorted and short; most logits fail the one comparison with its last entry.
    for (id, &x) in row.iter().enumerate() {
        let bar = if out.len() == k { out[k - 1].1 } else { f32::NEG_INFINITY };
        if x.partial_cmp(&bar) != Some(Ordering::Greater) {
            continue;
        }
        out.truncate(k - 1);
        let at = out.partition_point(|&(_, y)| y >= x);
        out.insert(at, (id as u32, x));
    }
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

struct Softmax<'a> {
    row: &'a mut [f32],
    max: f32,
    factor: f32,
}

impl Kernel for Softmax<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (max, factor, lowest) = (s.splat(self.max), s.splat(self.factor), s.splat(f32::NEG_INFINITY));
        let (lanes, rest) = self.row.as_chunks_mut::<LANES>();
        for lanes in lanes {
            exp_lanes(s, s.load(lanes).max(lowest).sub(max)).mul(factor).store(lanes);
        }
        if !rest.is_empty() {
            exp_lanes(s, s.load_partial(rest).max(lowest).sub(max)).mul(factor).store_partial(rest);
        }
    }
}

/// Replaces logits by probabilities, NaN counted as -inf; `false`, and the row untouched, if the greatest logit is not
/// finite. The sum is that of [`log_sum_exp`].
pub fn softmax_in_place(isa: Isa, row: &mut [f32]) -> bool {
    let Some((_, max)) = argmax(isa, row) else { return false };
    let factor = (1.0 / dispatch(isa, ExpSum { row, max })) as f32;
    dispatch(isa, Softmax { row, max, factor });
    true
}

#[cfg(test)]
mod tests;
