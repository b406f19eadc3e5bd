//! What the gated delta net remembers: per slot the folded state, and the ingredients of the rows since.
//!
//! ```text
//! state   [slot][value_head][slice][key_dim][32]   every row up to the fold is in it; a slice is 32 columns of
//!                                                  value_dim and contiguous, because it is swept alone (what is left
//!                                                  over 32: slices of 16, the last one as wide as what remains)
//! tail    [slot][taps - 1][channels]               raw convolution inputs before the fold, a ring
//! log     [slot][row]: raw [channels] · mixed [channels] · gates [2][value_heads]
//!                                                  rows after the fold that may still be forgotten
//! ```
//! Forgetting rows is the caller's cursor alone: it passes a shorter `log_len` next time. The log starts anew with
//! every pass, because every pass folds what is left of it first.

use crate::cpu::lanes::LANES;
use crate::cpu::pages::LazyZeros;

/// Columns of a slice of the state: 128 rows of them stay in the first-level cache.
pub(super) const COLUMNS: usize = 2 * LANES;

/// Which key head a value head uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadMap {
    /// `p % key_heads`: `qwen35`, `qwen35moe` files (the converter reorders value heads).
    Tiled,
    /// `p / (value_heads / key_heads)`: `qwen3next` files, source checkpoints.
    Grouped,
}

/// Shape of one gated delta net layer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DeltaDims {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a query or key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub conv_taps: usize,
    /// Added under the root of the L2 norm of q and k and of the output norm.
    pub eps: f32,
    /// Which key head a value head uses.
    pub head_map: HeadMap,
}

impl DeltaDims {
    /// Channels of the convolution: all q heads, all k heads, all v heads.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Elements of all key heads.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Elements of all value heads.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Elements of the state of one value head.
    pub fn head_state_len(&self) -> usize {
        self.key_dim * self.value_dim
    }

    /// Elements of the state of a sequence.
    pub fn state_len(&self) -> usize {
        self.value_heads * self.head_state_len()
    }

    /// Elements of the convolution tail of a sequence.
    pub fn tail_len(&self) -> usize {
        (self.conv_taps - 1) * self.channels()
    }

    /// Elements that [`DeltaLayer::save`] writes.
    pub fn saved_len(&self) -> usize {
        self.state_len() + self.tail_len()
    }

    /// Bytes of a [`DeltaLayer`]; the largest number where it is larger.
    pub fn layer_bytes(&self, slots: usize, log_capacity: usize) -> usize {
        let log_row = 2 * self.channels() + 2 * self.value_heads;
        slots.saturating_mul(4 * (self.saved_len() + log_capacity * log_row))
    }

    pub(super) fn key_head(&self, value_head: usize) -> usize {
        match self.head_map {
            HeadMap::Tiled => value_head % self.key_heads,
            HeadMap::Grouped => value_head / (self.value_heads / self.key_heads),
        }
    }

    fn check(&self) {
        assert!(self.key_heads > 0 && self.value_heads.is_multiple_of(self.key_heads), "value heads over key heads");
        assert!(self.key_dim > 0 && self.value_dim > 0 && self.value_heads > 0, "an empty head");
        assert!(self.conv_taps > 0, "a convolution without taps");
    }
}

/// State, convolution tail and log of one layer, for all slots.
pub struct DeltaLayer {
    pub(super) dims: DeltaDims,
    pub(super) slots: usize,
    pub(super) log_capacity: usize,
    pub(super) state: LazyZeros<f32>,
    pub(super) tail: LazyZeros<f32>,
    /// Per slot: the ring row that holds the oldest input.
    pub(super) tail_start: Vec<usize>,
    pub(super) log_raw: LazyZeros<f32>,
    /// Convolved, gated by SiLU, q and k normalised.
    pub(super) log_mixed: LazyZeros<f32>,
    /// Decay, then beta.
    pub(super) log_gates: LazyZeros<f32>,
    /// Per slot: rows in the log.
    pub(super) logged: Vec<usize>,
}

impl DeltaLayer {
    /// A layer of `slots` empty sequences, whose passes may log up to `log_capacity` rows each.
    ///
    /// # Panics
    /// If the dims are inconsistent.
    pub fn new(dims: DeltaDims, slots: usize, log_capacity: usize) -> Self {
        dims.check();
        Self {
            dims,
            slots,
            log_capacity,
            state: LazyZeros::new(slots * dims.state_len()),
            tail: LazyZeros::new(slots * dims.tail_len()),
            tail_start: vec![0; slots],
            log_raw: LazyZeros::new(slots * log_capacity * dims.channels()),
            log_mixed: LazyZeros::new(slots * log_capacity * dims.channels()),
            log_gates: LazyZeros::new(slots * log_capacity * 2 * dims.value_heads),
            logged: vec![0; slots],
        }
    }

    /// Shape of the layer.
    pub fn dims(&self) -> &DeltaDims {
        &self.dims
    }

    /// Rows of the slot's log.
    pub fn logged(&self, slot: usize) -> usize {
        self.logged[slot]
    }

    /// Folded state of a slot, in the layout of the module page.
    pub fn state(&self, slot: usize) -> &[f32] {
        &self.state[slot * self.dims.state_len()..][..self.dims.state_len()]
    }

    /// Makes the slot an empty sequence.
    pub fn reset(&mut self, slot: usize) {
        let (state, tail) = (self.dims.state_len(), self.dims.tail_len());
        self.state[slot * state..][..state].fill(0.0);
        self.tail[slot * tail..][..tail].fill(0.0);
        self.tail_start[slot] = 0;
        self.logged[slot] = 0;
    }

    /// Makes `to` an exact copy of `from`, log included.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        let log = self.logged[from];
        let dims = self.dims;
        let copy = |column: &mut [f32], stride: usize, len: usize| {
            column.copy_within(from * stride..from * stride + len, to * stride);
        };
        copy(&mut self.state, dims.state_len(), dims.state_len());
        copy(&mut self.tail, dims.tail_len(), dims.tail_len());
        copy(&mut self.log_raw, self.log_capacity * dims.channels(), log * dims.channels());
        copy(&mut self.log_mixed, self.log_capacity * dims.channels(), log * dims.channels());
        copy(&mut self.log_gates, self.log_capacity * 2 * dims.value_heads, log * 2 * dims.value_heads);
        self.tail_start[to] = self.tail_start[from];
        self.logged[to] = log;
    }

    /// Appends state and tail (oldest input first) of a folded slot to `out`: [`DeltaDims::saved_len`] values.
    ///
    /// # Panics
    /// If rows are still logged: they would be lost. Fold first.
    pub fn save(&self, slot: usize, out: &mut Vec<f32>) {
        assert_eq!(self.logged[slot], 0, "slot {slot} has rows that are not folded");
        out.extend_from_slice(self.state(slot));
        for age in 0..self.dims.conv_taps - 1 {
            out.extend_from_slice(self.tail_row(slot, age));
        }
    }

    /// Makes the slot what it was at [`DeltaLayer::save`].
    ///
    /// # Panics
    /// If `saved` has another length than [`DeltaDims::saved_len`].
    pub fn restore(&mut self, slot: usize, saved: &[f32]) {
        assert_eq!(saved.len(), self.dims.saved_len(), "a saved state of another shape");
        let (state, tail) = saved.split_at(self.dims.state_len());
        self.state[slot * state.len()..][..state.len()].copy_from_slice(state);
        self.tail[slot * tail.len()..][..tail.len()].copy_from_slice(tail);
        self.tail_start[slot] = 0;
        self.logged[slot] = 0;
    }

    /// Raw input `index` of the tail, 0 = oldest.
    pub(super) fn tail_row(&self, slot: usize, index: usize) -> &[f32] {
        let (ring, channels) = (self.dims.conv_taps - 1, self.dims.channels());
        &self.tail[(slot * ring + (self.tail_start[slot] + index) % ring) * channels..][..channels]
    }

    pub(super) fn log_raw_row(&self, slot: usize, row: usize) -> &[f32] {
        let channels = self.dims.channels();
        &self.log_raw[(slot * self.log_capacity + row) * channels..][..channels]
    }

    /// Appends a raw input to the tail, dropping the oldest.
    pub(super) fn push_tail(tail: &mut [f32], start: &mut usize, raw: &[f32]) {
        tail[*start * raw.len()..][..raw.len()].copy_from_slice(raw);
        *start = (*start + 1) % (tail.len() / raw.len());
    }
}
