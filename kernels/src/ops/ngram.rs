//! Per-layer embeddings of n-grams: which rows of a large table the last tokens name, and how what was looked up is
//! weighed against the residual streams.
//!
//! ```text
//! ctx[0] = x_t,  ctx[j] = x_(t-j); from the first predecessor on that is the end token or missing: the end token
//! mixed_n = XOR_(j<n) ctx[j] * m[j],  n = 2 ..= ngram_size         products modulo 2^64
//! row_h   = mixed_n % size[h] + offset[h],  h = (n - 2) * heads_per_ngram + g
//!
//! v[s] = sigmoid(sign(c_s) sqrt(max(|c_s|, 1e-6))) * value,  c_s = <key[s], query[s]> / sqrt(D)
//! ```
//! The current token does not cut its own context, even if it is the end token.
//! Source: transformers `Qwen4ExpTextPLELayer`; llama.cpp `src/models/qwen4exp.cpp`.

use crate::cpu::detect::Isa;
use crate::cpu::lanes::{Kernel, LANES, Simd, Vector, dispatch};
use crate::cpu::pool::Pool;

use super::exp::sigmoid;
use super::grain_rows;
use super::norm::dot;

/// Below it a score counts as this much, so that the root has no infinite slope.
const SCORE_MIN: f32 = 1e-6;

/// The hash of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NgramHash {
    /// Stands for what precedes a text.
    pub end_token: u32,
    /// `[ngram_size]`: odd factors, newest token first.
    pub multipliers: Vec<u64>,
    /// Per head: its part of the table.
    pub heads: Vec<NgramHead>,
    /// Heads of one n-gram length; `heads` holds those of length 2, then of 3, and so on.
    pub heads_per_ngram: usize,
}

/// A head's own rows of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NgramHead {
    /// Rows.
    pub size: u64,
    /// The first.
    pub offset: u64,
}

impl NgramHash {
    /// Tokens of the longest n-gram.
    pub fn ngram_size(&self) -> usize {
        self.multipliers.len()
    }

    /// Predecessors of a token that its rows depend on.
    pub fn history(&self) -> usize {
        self.ngram_size() - 1
    }

    /// Table rows of a token, one per head. `before` gives the j-th predecessor, j from 1 on; `None` before the text.
    ///
    /// # Panics
    /// If `rows` is not as long as there are heads.
    pub fn rows(&self, token: u32, before: impl Fn(usize) -> Option<u32>, rows: &mut [u64]) {
        assert_eq!(rows.len(), self.heads.len(), "a row a head");
        let mut mixed = u64::from(token).wrapping_mul(self.multipliers[0]);
        let mut ended = false;
        let lengths = rows.chunks_exact_mut(self.heads_per_ngram).zip(self.heads.chunks_exact(self.heads_per_ngram));
        for (j, (rows, heads)) in (1..).zip(lengths) {
            let previous = if ended { self.end_token } else { before(j).unwrap_or(self.end_token) };
            ended = ended || previous == self.end_token;
            mixed ^= u64::from(previous).wrapping_mul(self.multipliers[j]);
            for (row, head) in rows.iter_mut().zip(heads) {
                *row = mixed % head.size + head.offset;
            }
        }
    }
}

/// `dst[r][s] = gate(key[r][s], query[r][s]) * value[r]`, the gate of the module page.
/// key, query, dst: `[rows][streams][width]`, value: `[rows][width]`.
///
/// # Panics
/// If the lengths disagree.
pub fn gate_values(pool: &Pool, isa: Isa, key: &[f32], query: &[f32], value: &[f32], width: usize, dst: &mut [f32]) {
    assert_eq!((key.len(), query.len()), (dst.len(), dst.len()), "gate_values: streams differ in length");
    if value.is_empty() {
        return;
    }
    let rows = value.len() / width;
    assert!(value.len() == rows * width && dst.len().is_multiple_of(value.len()), "gate_values: rows of {width}");
    let row = dst.len() / rows;
    pool.split_rows_mut(dst, row, grain_rows(2 * row), |first, dst| {
        for (i, dst) in dst.chunks_exact_mut(row).enumerate() {
            let r = first + i;
            let at = r * row..(r + 1) * row;
            let value = &value[r * width..][..width];
            dispatch(isa, Gate { key: &key[at.clone()], query: &query[at], value, dst });
        }
    });
}

struct Gate<'a> {
    key: &'a [f32],
    query: &'a [f32],
    value: &'a [f32],
    dst: &'a mut [f32],
}

impl Kernel for Gate<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.value.len();
        let root = (width as f32).sqrt();
        let (value, value_rest) = self.value.as_chunks::<LANES>();
        let streams = self.key.chunks_exact(width).zip(self.query.chunks_exact(width));
        for ((key, query), dst) in streams.zip(self.dst.chunks_exact_mut(width)) {
            let gate = s.splat(sigmoid(signed_root(dot(s, key, query) / root)));
            let (lanes, rest) = dst.as_chunks_mut::<LANES>();
            for (lanes, value) in lanes.iter_mut().zip(value) {
                gate.mul(s.load(value)).store(lanes);
            }
            gate.mul(s.load_partial(value_rest)).store_partial(rest);
        }
    }
}

/// `sign(x) sqrt(max(|x|, 1e-6))`: 0 at 0, NaN at NaN.
#[inline(always)]
fn signed_root(x: f32) -> f32 {
    let size = x.abs();
    let root = if size < SCORE_MIN { SCORE_MIN } else { size }.sqrt();
    if x == 0.0 { 0.0 } else { root.copysign(x) }
}

#[cfg(test)]
mod tests;
