//! RMSNorm and LayerNorm.
//!
//! Sums: 64 partial sums (element i goes to sum i mod 64, ascending, products fused), folded 64 -> 32 -> 16 by adding
//! `(s0 + s1) + (s2 + s3)` of the four groups of 16, then the tree of [`Vector::sum`].

use crate::cpu::detect::Isa;
use crate::cpu::lanes::{Kernel, LANES, Simd, Vector, dispatch};
use crate::cpu::pool::Pool;

use super::grain_rows;

/// The sum of squares of `x`, in the order of the module page.
#[inline(always)]
pub(crate) fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    chains::<S, true>(s, x, x)
}

/// `sum_i a[i] b[i]`, in the order of the module page; the slices are equally long.
#[inline(always)]
pub(crate) fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len(), "operands differ in length");
    chains::<S, true>(s, a, b)
}

/// The sum of `x`, in the order of the module page.
#[inline(always)]
fn sum<S: Simd>(s: S, x: &[f32]) -> f32 {
    chains::<S, false>(s, x, x)
}

/// The sum of products, or of `a` alone.
#[inline(always)]
fn chains<S: Simd, const PRODUCTS: bool>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let (a_blocks, a_rest) = a.as_chunks::<{ 4 * LANES }>();
    let (b_blocks, b_rest) = b.as_chunks::<{ 4 * LANES }>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        let (a, b) = (a.as_chunks::<LANES>().0, b.as_chunks::<LANES>().0);
        for i in 0..4 {
            sums[i] = term::<_, PRODUCTS>(s.load(&a[i]), s.load(&b[i]), sums[i]);
        }
    }
    let (a_lanes, a_rest) = a_rest.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b_rest.as_chunks::<LANES>();
    for (i, (a, b)) in a_lanes.iter().zip(b_lanes).enumerate() {
        sums[i] = term::<_, PRODUCTS>(s.load(a), s.load(b), sums[i]);
    }
    if !a_rest.is_empty() {
        let i = a_lanes.len();
        sums[i] = term::<_, PRODUCTS>(s.load_partial(a_rest), s.load_partial(b_rest), sums[i]);
    }
    sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum()
}

#[inline(always)]
fn term<V: Vector, const PRODUCTS: bool>(a: V, b: V, sum: V) -> V {
    if PRODUCTS { a.mul_add(b, sum) } else { a.add(sum) }
}

/// `dst = (x * factor) * weight`; x is read from `dst` where `x` is `None`.
#[inline(always)]
fn scale_row<S: Simd>(s: S, x: Option<&[f32]>, factor: f32, weight: &[f32], dst: &mut [f32]) {
    let factor = s.splat(factor);
    let (weights, weight_rest) = weight.as_chunks::<LANES>();
    if let Some(x) = x {
        dst.copy_from_slice(x);
    }
    let (lanes, rest) = dst.as_chunks_mut::<LANES>();
    for (d, w) in lanes.iter_mut().zip(weights) {
        s.load(d).mul(factor).mul(s.load(w)).store(d);
    }
    if !rest.is_empty() {
        s.load_partial(rest).mul(factor).mul(s.load_partial(weight_rest)).store_partial(rest);
    }
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
pub(crate) fn rms_factor<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(s, x) / x.len() as f32 + eps).sqrt()
}

/// Rows of groups of `width`; group g of a row has the weights `[g * width..]`.
struct Rows<'a> {
    x: Option<&'a [f32]>,
    weight: &'a [f32],
    width: usize,
    eps: f32,
    dst: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.width;
        let groups = self.weight.len() / width;
        for (i, dst) in self.dst.chunks_exact_mut(width).enumerate() {
            let x = self.x.map(|x| &x[i * width..(i + 1) * width]);
            let factor = rms_factor(s, x.unwrap_or(dst), self.eps);
            scale_row(s, x, factor, &self.weight[i % groups * width..][..width], dst);
        }
    }
}

/// `dst[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight`.   x, dst: `[rows][width]`, weight: `[width]`.
///
/// Per-head norms are rows of one head each. A whole row of zeros gives zeros.
///
/// # Panics
/// If the slices disagree.   Source: ggml `ggml_compute_forward_rms_norm_f32` (which sums in double).
pub fn rms_norm(pool: &Pool, isa: Isa, x: &[f32], weight: &[f32], eps: f32, dst: &mut [f32]) {
    rms_norm_streams(pool, isa, x, weight, weight.len(), eps, dst);
}

/// [`rms_norm`] of every stream of a row by itself: `dst[r][s] = x[r][s] / sqrt(mean(x[r][s]^2) + eps) * weight[s]`.
/// x, dst: `[rows][streams][width]`, weight: `[streams][width]`.
///
/// # Panics
/// If the slices disagree, or `weight` is no whole number of streams.
pub fn rms_norm_streams(pool: &Pool, isa: Isa, x: &[f32], weight: &[f32], width: usize, eps: f32, dst: &mut [f32]) {
    assert_eq!(x.len(), dst.len(), "rms_norm: x and dst differ in length");
    assert!(width > 0 && weight.len().is_multiple_of(width), "{} weights for streams of {width}", weight.len());
    let row = weight.len();
    pool.split_rows_mut(dst, row, grain_rows(row), |first, dst| {
        let x = &x[first * row..first * row + dst.len()];
        dispatch(isa, Rows { x: Some(x), weight, width, eps, dst });
    });
}

/// [`rms_norm`] in place.
pub fn rms_norm_in_place(pool: &Pool, isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    let width = weight.len();
    pool.split_rows_mut(x, width, grain_rows(width), |_, dst| {
        dispatch(isa, Rows { x: None, weight, width, eps, dst });
    });
}

struct CentredRows<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    dst: &'a mut [f32],
}

impl Kernel for CentredRows<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.weight.len();
        for (dst, x) in self.dst.chunks_exact_mut(width).zip(self.x.chunks_exact(width)) {
            let mean = s.splat(sum(s, x) / width as f32);
            for (dst, x) in dst.chunks_mut(LANES).zip(x.chunks(LANES)) {
                s.load_partial(x).sub(mean).store_partial(dst);
            }
            let factor = rms_factor(s, dst, self.eps);
            scale_row(s, None, factor, self.weight, dst);
        }
    }
}

/// `dst[r] = (x[r] - mean(x[r])) / sqrt(variance(x[r]) + eps) * weight`.   x, dst: `[rows][width]`, weight: `[width]`.
///
/// # Panics
/// If the slices disagree.   Source: ggml `ggml_compute_forward_norm_f32` (which sums in double).
pub fn layer_norm(pool: &Pool, isa: Isa, x: &[f32], weight: &[f32], eps: f32, dst: &mut [f32]) {
    let width = weight.len();
    assert_eq!(x.len(), dst.len(), "layer_norm: x and dst differ in length");
    pool.split_rows_mut(dst, width, grain_rows(width), |first, dst| {
        let x = &x[first * width..first * width + dst.len()];
        dispatch(isa, CentredRows { x, weight, eps, dst });
    });
}

#[cfg(test)]
mod tests;
