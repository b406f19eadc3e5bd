//! Hyper-connections: the residual is several streams of a hidden row's width, which a mixer collapses into the input
//! of a block and whose output is spread over them again.
//!
//! With S streams of D elements, n = the streams' own RMS norms (`norm::rms_norm_streams`), x = all of n in a row:
//! ```text
//! a    = silu((down x) / S)                    [R]       squash
//! gate = up a                                  [S * D]   a matrix product
//! y[d] = (1 / S) sum_s sigmoid(gate[s][d]) n[s][d]       collapse: s ascending, the first a product, then fused
//! H[s][d] += 2 sigmoid((inject x)[s] / S) out[d]         combine: fused
//! ```
//! Every element depends on its own row alone.
//! Source: transformers `Qwen4ExpTextGatedResidual`; llama.cpp `src/models/qwen4exp.cpp`.

use crate::cpu::detect::Isa;
use crate::cpu::lanes::{Kernel, LANES, Simd, Vector, dispatch};
use crate::cpu::pool::Pool;

use super::exp::{sigmoid_lanes, silu_lanes};
use super::grain_rows;

/// `x = silu(x / streams)`, the inner activation of a mixer.
pub fn squash(pool: &Pool, isa: Isa, streams: usize, x: &mut [f32]) {
    let factor = 1.0 / streams as f32;
    pool.split_rows_mut(x, 1, super::GRAIN_ELEMENTS, |_, x| dispatch(isa, Squash { factor, x }));
}

struct Squash<'a> {
    factor: f32,
    x: &'a mut [f32],
}

impl Kernel for Squash<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = s.splat(self.factor);
        let (lanes, rest) = self.x.as_chunks_mut::<LANES>();
        for lanes in lanes {
            silu_lanes(s, s.load(lanes).mul(factor)).store(lanes);
        }
        silu_lanes(s, s.load_partial(rest).mul(factor)).store_partial(rest);
    }
}

/// `dst[r][d] = (1 / S) sum_s sigmoid(gate[r][s][d]) normed[r][s][d]`.
/// gate, normed: `[rows][streams][width]`, dst: `[rows][width]`.
///
/// # Panics
/// If the lengths disagree.
pub fn collapse(pool: &Pool, isa: Isa, gate: &[f32], normed: &[f32], streams: usize, width: usize, dst: &mut [f32]) {
    assert_eq!(gate.len(), normed.len(), "collapse: gates and streams differ in length");
    assert_eq!(gate.len(), streams * dst.len(), "collapse: {streams} streams");
    let row = streams * width;
    pool.split_rows_mut(dst, width, grain_rows(row), |first, dst| {
        for (i, dst) in dst.chunks_exact_mut(width).enumerate() {
            let at = (first + i) * row..(first + i + 1) * row;
            dispatch(isa, Collapse { gate: &gate[at.clone()], normed: &normed[at], dst });
        }
    });
}

struct Collapse<'a> {
    gate: &'a [f32],
    normed: &'a [f32],
    dst: &'a mut [f32],
}

impl Kernel for Collapse<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.dst.len();
        let mean = s.splat(1.0 / (self.gate.len() / width) as f32);
        for (block, dst) in self.dst.chunks_mut(LANES).enumerate() {
            let at = block * LANES;
            let mut sum = s.splat(0.0);
            for (i, (gate, normed)) in self.gate.chunks_exact(width).zip(self.normed.chunks_exact(width)).enumerate() {
                let gate = sigmoid_lanes(s, s.load_partial(&gate[at..at + dst.len()]));
                let normed = s.load_partial(&normed[at..at + dst.len()]);
                sum = if i == 0 { gate.mul(normed) } else { gate.mul_add(normed, sum) };
            }
            sum.mul(mean).store_partial(dst);
        }
    }
}

/// `streams[r][s][d] += 2 sigmoid(inject[r][s] / S) out[r][d]`.
/// streams: `[rows][S][width]`, inject: `[rows][S]`, out: `[rows][width]`.
///
/// # Panics
/// If the lengths disagree.
pub fn combine(pool: &Pool, isa: Isa, inject: &[f32], out: &[f32], width: usize, streams: &mut [f32]) {
    let rows = out.len() / width;
    assert_eq!(out.len(), rows * width, "combine: rows of {width}");
    assert_eq!(streams.len(), inject.len() * width, "combine: a weight a stream");
    if rows == 0 {
        return;
    }
    let count = inject.len() / rows;
    let row = count * width;
    pool.split_rows_mut(streams, row, grain_rows(row), |first, streams| {
        for (i, streams) in streams.chunks_exact_mut(row).enumerate() {
            let r = first + i;
            let (inject, out) = (&inject[r * count..][..count], &out[r * width..][..width]);
            dispatch(isa, Combine { inject, out, streams });
        }
    });
}

struct Combine<'a> {
    inject: &'a [f32],
    out: &'a [f32],
    streams: &'a mut [f32],
}

impl Kernel for Combine<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let part = s.splat(1.0 / self.inject.len() as f32);
        let (out, out_rest) = self.out.as_chunks::<LANES>();
        let mut streams = self.streams.chunks_exact_mut(self.out.len());
        for inject in self.inject.chunks(LANES) {
            let weights = sigmoid_lanes(s, s.load_partial(inject).mul(part)).mul(s.splat(2.0)).to_array();
            for (&weight, stream) in weights.iter().zip(streams.by_ref().take(inject.len())) {
                let weight = s.splat(weight);
                let (lanes, rest) = stream.as_chunks_mut::<LANES>();
                for (lanes, out) in lanes.iter_mut().zip(out) {
                    weight.mul_add(s.load(out), s.load(lanes)).store(lanes);
                }
                weight.mul_add(s.load_partial(out_rest), s.load_partial(rest)).store_partial(rest);
            }
        }
    }
}

#[cfg(test)]
mod tests;
