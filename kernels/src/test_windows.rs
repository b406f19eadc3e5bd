//! Random speculative decoding of a text, for the layers that keep a state and a log of rows since.

use std::ops::Range;

use crate::test_noise::Noise;

/// One pass: the anchor and the drafts that are accepted are rows of the text, the other drafts are none of it.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// Rows of the text.
    pub(crate) rows: Range<usize>,
    /// Rejected drafts behind them.
    pub(crate) rejected: usize,
    /// Rows in the log before.
    pub(crate) log_len: usize,
    /// Rows that are folded at once; the others are logged.
    pub(crate) committed: usize,
    /// The log is folded after the pass: this many rows.
    pub(crate) fold: Option<usize>,
}

/// Windows of any width over a text of `rows`, any number of drafts accepted, folds at any time and at the end. No pass
/// logs more than `log_capacity` rows.
pub(crate) fn windows(noise: &mut Noise, rows: usize, log_capacity: usize) -> Vec<Window> {
    let mut out = Vec::new();
    let (mut position, mut log_len) = (0, 0);
    while position < rows {
        let most = [0, 1, 2, 7, 15, 32, log_capacity - 1][noise.below(7)];
        let drafts = if noise.below(3) == 0 { most } else { noise.below(most + 1) };
        let accepted = noise.below(drafts + 1).min(rows - position - 1);
        let committed = if noise.below(4) == 0 { noise.below(accepted + 2) } else { 1 };
        let next = position + 1 + accepted;
        let left = 1 + accepted - committed;
        let fold = (noise.below(3) == 0 || next == rows).then_some(left);
        out.push(Window { rows: position..next, rejected: drafts - accepted, log_len, committed, fold });
        (position, log_len) = (next, if fold.is_some() { 0 } else { left });
    }
    out
}
