//! Causal convolution of every channel by itself, whose taps lie `dilation` rows apart, and SiLU.
//!
//! ```text
//! dst[t][c] = silu( sum_k w[c][k] x[t - (taps - 1 - k) dilation][c] )     k ascending: the first a product, then fused
//! ```
//! Before the start of a sequence x is 0. What a layer remembers are raw rows, `(taps - 1) dilation` of them before the
//! fold and those of the log after it (`history.rs`); there is no other state, so a row has the same bits however the
//! rows before it were cut into passes, drafted, rejected or folded.
//! Source: transformers `Qwen4ExpTextPLELayer`; llama.cpp `src/models/qwen4exp.cpp`.

use crate::cpu::detect::Isa;
use crate::cpu::disjoint::Blocks;
use crate::cpu::lanes::{Kernel, LANES, Simd, Vector, dispatch};
use crate::cpu::pool::Pool;

use super::exp::silu_lanes;
use super::grain_rows;
use super::history::{Columns, History, HistoryBytes, HistorySizes, StateSegment, add_product, by_tap, folds, rows_of};

/// Shape of one layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConvDims {
    /// Channels.
    pub channels: usize,
    /// Taps, the last of which is the row's own.
    pub taps: usize,
    /// Rows between taps.
    pub dilation: usize,
}

impl ConvDims {
    /// Bytes of a [`ConvLayer`]; the largest number where it is larger.
    pub fn layer_bytes(&self, slots: usize, log_capacity: usize) -> HistoryBytes {
        self.sizes(log_capacity, &[self.channels]).bytes(slots)
    }

    fn sizes<'a>(&self, log_capacity: usize, widths: &'a [usize]) -> HistorySizes<'a> {
        HistorySizes { state_len: 0, tail_rows: (self.taps - 1) * self.dilation, log_capacity, widths }
    }
}

/// Weights of one layer, `[taps][channels]`.
pub struct ConvWeights {
    by_tap: Vec<f32>,
}

impl ConvWeights {
    /// `conv`: `[channels][taps]`, tap 0 = oldest.
    ///
    /// # Panics
    /// If the length disagrees with the dims.
    pub fn new(dims: &ConvDims, conv: &[f32]) -> Self {
        assert_eq!(conv.len(), dims.channels * dims.taps, "convolution weights");
        Self { by_tap: by_tap(conv, dims.channels, dims.taps) }
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(dims: &ConvDims) -> usize {
        size_of::<f32>() * dims.channels * dims.taps
    }
}

/// What one layer remembers, for all slots.
pub struct ConvLayer {
    dims: ConvDims,
    /// Raw rows.
    pub history: History,
}

impl ConvLayer {
    /// A layer of `slots` empty sequences, whose passes may log up to `log_capacity` rows each.
    ///
    /// # Panics
    /// If the dims have a zero.
    pub fn new(dims: ConvDims, slots: usize, log_capacity: usize) -> Self {
        assert!(dims.channels > 0 && dims.taps > 0 && dims.dilation > 0, "an empty convolution: {dims:?}");
        Self { dims, history: History::new(slots, &dims.sizes(log_capacity, &[dims.channels])) }
    }

    /// Shape of the layer.
    pub fn dims(&self) -> &ConvDims {
        &self.dims
    }
}

/// Convolves the rows of all segments, and moves what is remembered on. x, dst: `[rows][channels]`; rows in no segment
/// are left as they are.
///
/// # Panics
/// If lengths disagree, two segments share a slot, `log_len` exceeds the slot's log, `committed` its rows, or more rows
/// would be logged than the layer has room for.
pub fn dilated_conv(
    pool: &Pool,
    isa: Isa,
    weights: &ConvWeights,
    layer: &mut ConvLayer,
    segments: &[StateSegment],
    x: &[f32],
    dst: &mut [f32],
) {
    let dims = layer.dims;
    let rows = x.len() / dims.channels;
    assert_eq!(x.len(), rows * dims.channels, "dilated_conv: x");
    assert_eq!(dst.len(), x.len(), "dilated_conv: dst");
    layer.history.check(segments, rows);
    let now = Columns::whole(x, dims.channels);
    pool.lists(|lists| {
        let order = rows_of(segments, lists);
        {
            let history = &layer.history;
            let dst = Blocks::new(dst, dims.channels, lists);
            pool.split(order.len(), grain_rows(dims.taps * dims.channels), |range| {
                for &(segment, row) in &order[range] {
                    let segment = &segments[segment];
                    dispatch(isa, Row { dims, weights, history, segment, now, row, dst: dst.take(row) });
                }
            });
        }
        layer.history.finish(pool, segments, &[now], lists);
    });
}

/// Folds the first `log_len` logged rows of each `(slot, log_len)` and forgets the others.
///
/// # Panics
/// As [`dilated_conv`].
pub fn fold(pool: &Pool, isa: Isa, weights: &ConvWeights, layer: &mut ConvLayer, slots: &[(usize, usize)]) {
    let segments = folds(slots);
    dilated_conv(pool, isa, weights, layer, &segments, &[], &mut []);
}

struct Row<'a> {
    dims: ConvDims,
    weights: &'a ConvWeights,
    history: &'a History,
    segment: &'a StateSegment,
    now: Columns<'a>,
    row: usize,
    dst: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ConvDims { channels, taps, dilation } = self.dims;
        let step = self.segment.log_len + self.row - self.segment.rows.start;
        for (tap, weight) in self.weights.by_tap.chunks_exact(channels).enumerate() {
            let x = self.history.input(self.segment, self.now, step, (taps - 1 - tap) * dilation);
            add_product(s, tap == 0, x, weight, self.dst);
        }
        let (lanes, rest) = self.dst.as_chunks_mut::<LANES>();
        for lanes in lanes {
            silu_lanes(s, s.load(lanes)).store(lanes);
        }
        silu_lanes(s, s.load_partial(rest)).store_partial(rest);
    }
}

#[cfg(test)]
mod tests;
