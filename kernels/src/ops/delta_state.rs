//! What the gated delta net remembers: per slot the folded state, and the ingredients of the rows since.
//!
//! ```text
//! state   [slot][value_head][slice][key_dim][32]   every row up to the fold is in it; slices as in `sweep.rs`
//! tail    [slot][taps - 1][channels]               raw convolution inputs before the fold
//! log     [slot][row]: raw [channels] · mixed [channels] · gates [2][value_heads]
//!                                                  rows after the fold that may still be forgotten
//! ```

use super::history::{History, HistoryBytes, HistorySizes};

/// Which key head a value head uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadMap {
    /// `p % key_heads`: `qwen35`, `qwen35moe` files (the converter reorders value heads).
    Tiled,
    /// `p / (value_heads / key_heads)`: `qwen3next` files, source checkpoints.
    Grouped,
}

/// What opens the output of a head: a function of the gate projection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputGate {
    /// `z * sigmoid(z)`: `qwen35`, `qwen35moe`, `qwen3next`.
    Silu,
    /// `sigmoid(z)`: `qwen4exp`.
    Sigmoid,
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
    /// What opens the output.
    pub output_gate: OutputGate,
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

    /// Bytes of a [`DeltaLayer`]; the largest number where it is larger.
    pub fn layer_bytes(&self, slots: usize, log_capacity: usize) -> HistoryBytes {
        self.sizes(log_capacity, &self.log_widths()).bytes(slots)
    }

    fn log_widths(&self) -> [usize; 3] {
        [self.channels(), self.channels(), 2 * self.value_heads]
    }

    fn sizes<'a>(&self, log_capacity: usize, widths: &'a [usize]) -> HistorySizes<'a> {
        HistorySizes { state_len: self.state_len(), tail_rows: self.conv_taps - 1, log_capacity, widths }
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

/// Log of convolved rows, gated by SiLU, q and k normalised.
pub(super) const MIXED: usize = 1;
/// Log of decays, then betas.
pub(super) const GATES: usize = 2;

/// One layer, for all slots.
pub struct DeltaLayer {
    pub(super) dims: DeltaDims,
    /// State, convolution tail and logs.
    pub history: History,
}

impl DeltaLayer {
    /// A layer of `slots` empty sequences, whose passes may log up to `log_capacity` rows each.
    ///
    /// # Panics
    /// If the dims are inconsistent.
    pub fn new(dims: DeltaDims, slots: usize, log_capacity: usize) -> Self {
        dims.check();
        Self { dims, history: History::new(slots, &dims.sizes(log_capacity, &dims.log_widths())) }
    }

    /// Shape of the layer.
    pub fn dims(&self) -> &DeltaDims {
        &self.dims
    }
}
