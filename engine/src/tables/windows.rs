//! windows: what is proposed this tick. Opened with its anchors by plan, appended by draft_mtp, then extend_suffix;
//! read by verify and commit. Rows are the windows of one tick, cleared by plan.
//!
//! ```text
//! token[row][0 .. 1 + mtp_len + suffix_len]    [ anchor | MTP prefix | suffix tail ]     stride = window_max + 1
//! ```
//!
//! Invariant: `mtp_len + suffix_len <= window_max`.

use crate::ids::{Slot, TokenId};
use crate::step::Source;

/// The table.
#[derive(Debug)]
pub struct Windows {
    stride: usize,
    /// Per row: whose window.
    pub slot: Vec<Slot>,
    /// Per row: MTP drafts.
    pub mtp_len: Vec<u32>,
    /// Per row: suffix drafts behind them.
    pub suffix_len: Vec<u32>,
    /// Per row: length of the match that the tail was copied from, 0 without one.
    pub match_len: Vec<u32>,
    token: Vec<TokenId>,
}

impl Windows {
    /// Room for `slots` windows of `window_max` drafts.
    pub fn new(slots: usize, window_max: usize) -> Self {
        Self {
            stride: window_max + 1,
            slot: Vec::with_capacity(slots),
            mtp_len: Vec::with_capacity(slots),
            suffix_len: Vec::with_capacity(slots),
            match_len: Vec::with_capacity(slots),
            token: Vec::with_capacity(slots * (window_max + 1)),
        }
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(slots: usize, window_max: usize) -> usize {
        slots * (size_of::<Slot>() + 3 * size_of::<u32>() + (window_max + 1) * size_of::<TokenId>())
    }

    /// Number of windows.
    pub fn len(&self) -> usize {
        self.slot.len()
    }

    /// Whether there is no window.
    pub fn is_empty(&self) -> bool {
        self.slot.is_empty()
    }

    /// Forgets the last tick.
    pub fn clear(&mut self) {
        self.slot.clear();
        self.mtp_len.clear();
        self.suffix_len.clear();
        self.match_len.clear();
        self.token.clear();
    }

    /// Opens a window of an anchor alone.
    pub fn open(&mut self, slot: Slot, anchor: TokenId) {
        self.slot.push(slot);
        self.mtp_len.push(0);
        self.suffix_len.push(0);
        self.match_len.push(0);
        self.token.push(anchor);
        self.token.resize(self.slot.len() * self.stride, TokenId::NONE);
    }

    /// Drafts of a row.
    pub fn draft_len(&self, row: usize) -> usize {
        (self.mtp_len[row] + self.suffix_len[row]) as usize
    }

    /// Anchor and drafts of a row.
    pub fn tokens(&self, row: usize) -> &[TokenId] {
        let start = row * self.stride;
        &self.token[start..=start + self.draft_len(row)]
    }

    /// Drafts of a row.
    pub fn drafts(&self, row: usize) -> &[TokenId] {
        &self.tokens(row)[1..]
    }

    /// Appends to the MTP prefix.
    ///
    /// # Panics
    /// If the window is full or has a tail already.
    pub fn push_mtp(&mut self, row: usize, token: TokenId) {
        assert_eq!(self.suffix_len[row], 0, "the prefix comes before the tail");
        self.push(row, token);
        self.mtp_len[row] += 1;
    }

    /// Appends to the suffix tail.
    ///
    /// # Panics
    /// If the window is full.
    pub fn push_suffix(&mut self, row: usize, token: TokenId) {
        self.push(row, token);
        self.suffix_len[row] += 1;
    }

    fn push(&mut self, row: usize, token: TokenId) {
        let at = 1 + self.draft_len(row);
        assert!(at < self.stride, "window {row} is full");
        self.token[row * self.stride + at] = token;
    }

    /// Who proposed element `at` of a row.
    pub fn source(&self, row: usize, at: usize) -> Source {
        match at {
            0 => Source::Anchor,
            _ if at <= self.mtp_len[row] as usize => Source::Mtp,
            _ => Source::Suffix,
        }
    }
}
