//! What a Mamba2 layer remembers: per slot the folded state, and the ingredients of the rows since.
//!
//! ```text
//! state   [slot][head][slice][state][32]   every row up to the fold is in it; slices of head_dim as in `sweep.rs`
//! tail    [slot][taps - 1][channels]       raw convolution inputs before the fold
//! log     [slot][row]: raw [channels] · dt [heads], raw
//!                                          rows after the fold that may still be forgotten
//! ```
//! The log holds inputs alone: convolving an accepted row once more costs little beside the sweep over the state.

use super::history::{History, HistoryBytes, HistorySizes};

/// Shape of one Mamba2 layer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mamba2Dims {
    /// Heads, a multiple of `groups`.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Groups: consecutive heads share one B and one C, and one output norm.
    pub groups: usize,
    /// Elements of B and of C, per group.
    pub state_dim: usize,
    /// Taps of the causal convolution.
    pub conv_taps: usize,
    /// Added under the root of the output norm.
    pub eps: f32,
}

impl Mamba2Dims {
    /// Elements of all heads.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Channels of the convolution: x of all heads, B of all groups, C of all groups.
    pub fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.state_dim
    }

    /// Elements of a projected row: z, then the convolution's inputs, then dt.
    pub fn projected(&self) -> usize {
        self.inner() + self.channels() + self.heads
    }

    /// Elements of a group of the output norm.
    pub fn group_width(&self) -> usize {
        self.inner() / self.groups
    }

    /// Elements of the state of one head.
    pub fn head_state_len(&self) -> usize {
        self.state_dim * self.head_dim
    }

    /// Elements of the state of a sequence.
    pub fn state_len(&self) -> usize {
        self.heads * self.head_state_len()
    }

    /// Bytes of a [`Mamba2Layer`]; the largest number where it is larger.
    pub fn layer_bytes(&self, slots: usize, log_capacity: usize) -> HistoryBytes {
        self.sizes(log_capacity, &self.log_widths()).bytes(slots)
    }

    fn log_widths(&self) -> [usize; 2] {
        [self.channels(), self.heads]
    }

    fn sizes<'a>(&self, log_capacity: usize, widths: &'a [usize]) -> HistorySizes<'a> {
        HistorySizes { state_len: self.state_len(), tail_rows: self.conv_taps - 1, log_capacity, widths }
    }

    /// The group of a head: consecutive heads share one.
    pub(super) fn group(&self, head: usize) -> usize {
        head / (self.heads / self.groups)
    }

    fn check(&self) {
        assert!(self.groups > 0 && self.heads.is_multiple_of(self.groups), "heads over groups");
        assert!(self.heads > 0 && self.head_dim > 0 && self.state_dim > 0, "an empty head");
        assert!(self.conv_taps > 0, "a convolution without taps");
    }
}

/// Log of raw time steps.
pub(super) const TIME: usize = 1;

/// One layer, for all slots.
pub struct Mamba2Layer {
    pub(super) dims: Mamba2Dims,
    /// State, convolution tail and logs.
    pub history: History,
}

impl Mamba2Layer {
    /// A layer of `slots` empty sequences, whose passes may log up to `log_capacity` rows each.
    ///
    /// # Panics
    /// If the dims are inconsistent.
    pub fn new(dims: Mamba2Dims, slots: usize, log_capacity: usize) -> Self {
        dims.check();
        Self { dims, history: History::new(slots, &dims.sizes(log_capacity, &dims.log_widths())) }
    }

    /// Shape of the layer.
    pub fn dims(&self) -> &Mamba2Dims {
        &self.dims
    }
}
