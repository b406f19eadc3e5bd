//! Searches for the scale, and the minimum, that lose least when weights become small codes.
//!
//! All of them try a fixed list of candidates in a fixed order and keep one only if it is strictly better, in f32 and
//! without fused operations: the same input gives the same bytes everywhere, and the bytes of ggml.
//!
//! Source: ggml `make_qx_quants`, `make_q3_quants`, `make_qkx2_quants` (ggml-quants.c).

/// Weights whose largest magnitude is below this are all zero.
pub(super) const NOTHING: f32 = 1e-15;

/// Round half to even; `x` must be below 2^22.
#[inline(always)]
pub(super) fn nearest(x: f32) -> i32 {
    x.round_ties_even() as i32
}

/// The value of largest magnitude, with its sign; the first of several.
pub(super) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |best, &v| if v.abs() > best.abs() { v } else { best })
}

/// Smallest and largest value.
pub(super) fn range(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::MAX, -f32::MAX), |(low, high), &v| (low.min(v), high.max(v)))
}

/// 1 / d, where that means anything.
pub(super) fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Sums of a least-squares fit of `scale * code` to x, weighted by x squared.
#[derive(Clone, Copy, Default)]
struct Fit {
    xl: f32,
    ll: f32,
}

impl Fit {
    fn of(x: &[f32], code: impl Fn(f32) -> i32) -> Self {
        let mut fit = Self::default();
        for &v in x {
            let (l, w) = (code(v) as f32, v * v);
            fit.xl += w * v * l;
            fit.ll += w * l * l;
        }
        fit
    }

    fn scale(self) -> f32 {
        if self.ll == 0.0 { 0.0 } else { self.xl / self.ll }
    }
}

/// A scale for codes `-half..half`; `code` gets them, plus `half`.
pub(super) fn symmetric(x: &[f32], half: i32, code: &mut [u8]) -> f32 {
    let max = extreme(x);
    if max.abs() < NOTHING {
        code.fill(0);
        return 0.0;
    }
    let coded = |inverse: f32| move |v: f32| nearest(inverse * v).clamp(-half, half - 1);
    let store = |code: &mut [u8], inverse: f32| {
        for (code, &v) in code.iter_mut().zip(x) {
            *code = (coded(inverse)(v) + half) as u8;
        }
    };
    let inverse = -half as f32 / max;
    store(code, inverse);
    let first = Fit::of(x, coded(inverse));
    let mut scale = first.scale();
    let mut best = scale * first.xl;
    for step in (-9..=9).filter(|&step| step != 0) {
        let inverse = -(half as f32 + 0.1 * step as f32) / max;
        let fit = Fit::of(x, coded(inverse));
        if fit.ll > 0.0 && fit.xl * fit.xl > best * fit.ll {
            store(code, inverse);
            scale = fit.scale();
            best = scale * fit.xl;
        }
    }
    scale
}

/// A scale for codes `-half..half`, found by moving single codes; `code` gets them, plus `half`.
pub(super) fn symmetric_by_moves(x: &[f32], half: i32, code: &mut [u8]) -> f32 {
    let max = extreme(x);
    if max.abs() < NOTHING {
        code.fill(0);
        return 0.0;
    }
    let inverse = -half as f32 / max;
    let coded = |v: f32| nearest(v).clamp(-half, half - 1);
    let mut fit = Fit::of(x, |v| coded(inverse * v));
    for (code, &v) in code.iter_mut().zip(x) {
        *code = (coded(inverse * v) + half) as u8;
    }
    for _ in 0..5 {
        let mut moved = false;
        for (code, &v) in code.iter_mut().zip(x) {
            let (w, old) = (v * v, i32::from(*code) - half);
            let l = old as f32;
            let without = Fit { xl: fit.xl - w * v * l, ll: fit.ll - w * l * l };
            if without.xl <= 0.0 {
                continue;
            }
            let new = coded(v * without.ll / without.xl);
            if new == old {
                continue;
            }
            let l = new as f32;
            let with = Fit { xl: without.xl + w * v * l, ll: without.ll + w * l * l };
            if with.ll > 0.0 && with.xl * with.xl * fit.ll > fit.xl * fit.xl * with.ll {
                *code = (new + half) as u8;
                fit = with;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    if fit.ll > 0.0 { fit.xl / fit.ll } else { 0.0 }
}

/// Which candidates [`with_minimum`] tries, and how it measures them.
#[derive(Clone, Copy)]
pub(super) struct Candidates {
    /// The largest code.
    pub top: i32,
    /// The range of x is cut into `top + first + step * i` parts, i = 0..=count.
    pub first: f32,
    pub step: f32,
    pub count: i32,
    /// Errors count by magnitude, not by square.
    pub absolute: bool,
}

/// A scale and a minimum of at most 0 for codes `0..=top`; gives the scale and minus the minimum. At most 32 weights.
/// Every candidate starts from the best minimum so far.
pub(super) fn with_minimum(x: &[f32], importance: &[f32], try_: Candidates, code: &mut [u8]) -> (f32, f32) {
    let Candidates { top, first, step, count, absolute } = try_;
    let (low, high) = range(x);
    let (mut sum_w, mut sum_x) = (importance[0], importance[0] * x[0]);
    for (&w, &v) in importance[1..].iter().zip(&x[1..]) {
        sum_w += w;
        sum_x += w * v;
    }
    let mut min = if low > 0.0 { 0.0 } else { low };
    if high == min {
        code.fill(0);
        return (0.0, -min);
    }
    let coded = |inverse: f32, min: f32, v: f32| nearest(inverse * (v - min)).clamp(0, top) as u8;
    let error = |scale: f32, min: f32, code: &[u8]| {
        let mut sum = 0.0f32;
        for ((&l, &v), &w) in code.iter().zip(x).zip(importance) {
            let diff = scale * f32::from(l) + min - v;
            sum += w * if absolute { diff.abs() } else { diff * diff };
        }
        sum
    };
    let inverse = top as f32 / (high - min);
    let mut scale = 1.0 / inverse;
    for (code, &v) in code.iter_mut().zip(x) {
        *code = coded(inverse, min, v);
    }
    let mut best = error(scale, min, code);
    let mut other = [0; 32];
    let other = &mut other[..x.len()];
    for i in 0..=count {
        let inverse = (first + step * i as f32 + top as f32) / (high - min);
        let (mut sum_l, mut sum_ll, mut sum_xl) = (0.0f32, 0.0f32, 0.0f32);
        for ((other, &v), &w) in other.iter_mut().zip(x).zip(importance) {
            *other = coded(inverse, min, v);
            let l = f32::from(*other);
            sum_l += w * l;
            sum_ll += w * l * l;
            sum_xl += w * l * v;
        }
        let determinant = sum_w * sum_ll - sum_l * sum_l;
        if determinant <= 0.0 {
            continue;
        }
        let mut new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        let mut new_min = (sum_ll * sum_x - sum_l * sum_xl) / determinant;
        if new_min > 0.0 {
            (new_min, new_scale) = (0.0, sum_xl / sum_ll);
        }
        let found = error(new_scale, new_min, other);
        if found < best {
            code.copy_from_slice(other);
            (best, scale, min) = (found, new_scale, new_min);
        }
    }
    (scale, -min)
}
