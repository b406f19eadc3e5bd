//! exp and what is made of it: one polynomial, shared by softmax, SiLU, sigmoid and the decay of the delta net.

use crate::cpu::lanes::{Plain, ROUND_MAGIC, Simd, Vector};

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts: the f32 nearest to it, and the rest.
const LN_2_HIGH: f32 = std::f32::consts::LN_2;
const LN_2_LOW: f32 = -1.904_654_2e-9;
/// Minimax on |r| <= ln 2 / 2 for `exp(r) = 1 + r + r^2 (C2 + C3 r + C4 r^2 + C5 r^3 + C6 r^4)`, relative error 3.1e-9.
const C2: f32 = 4.999_999_4e-1;
const C3: f32 = 1.666_652_1e-1;
const C4: f32 = 4.166_839e-2;
const C5: f32 = 8.368_745e-3;
const C6: f32 = 1.381_454e-3;
/// Outside, the result is 0 or infinite anyway.
const LOWEST: f32 = -104.0;
const HIGHEST: f32 = 89.0;

/// e^x in every lane: within 1.1 units in the last place of normal results, exactly 1 at 0, 0 at -inf, NaN at NaN.
///
/// `n = round(x log2 e)`, `r = x - n ln 2` (two fused steps), polynomial of degree 6, times 2^n in two steps.
#[inline(always)]
pub(crate) fn exp_lanes<S: Simd>(s: S, x: S::V) -> S::V {
    // Operand order matters: a NaN x passes through both.
    let x = s.splat(HIGHEST).min(s.splat(LOWEST).max(x));
    let rounded = x.mul_add(s.splat(LOG2_E), s.splat(ROUND_MAGIC));
    let n = rounded.sub(s.splat(ROUND_MAGIC));
    let r = n.mul_add(s.splat(-LN_2_HIGH), x);
    let r = n.mul_add(s.splat(-LN_2_LOW), r);
    let p = s.splat(C6).mul_add(r, s.splat(C5));
    let p = p.mul_add(r, s.splat(C4));
    let p = p.mul_add(r, s.splat(C3));
    let p = p.mul_add(r, s.splat(C2));
    let p = p.mul_add(r.mul(r), r);
    p.add(s.splat(1.0)).scale(rounded)
}

/// `1 / (1 + exp(-x))` in every lane.
#[inline(always)]
pub(crate) fn sigmoid_lanes<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    one.div(one.add(exp_lanes(s, s.splat(0.0).sub(x))))
}

/// `x / (1 + exp(-x))` in every lane.
#[inline(always)]
pub(crate) fn silu_lanes<S: Simd>(s: S, x: S::V) -> S::V {
    x.div(s.splat(1.0).add(exp_lanes(s, s.splat(0.0).sub(x))))
}

/// e^x, the same bits as in the ops.
pub fn exp(x: f32) -> f32 {
    exp_lanes(Plain, Plain.splat(x))[0]
}

/// `1 / (1 + exp(-x))`, the same bits as in the ops.
pub fn sigmoid(x: f32) -> f32 {
    sigmoid_lanes(Plain, Plain.splat(x))[0]
}

/// `ln(1 + exp(x))`, x itself above 20. Computed in double and rounded once.
///
/// Source: ggml `ggml_compute_softplus_f32` for the threshold.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { f64::from(x).exp().ln_1p() as f32 }
}

#[cfg(test)]
mod tests;
