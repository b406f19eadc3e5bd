//! N-gram embeddings: the tokens before a row, and the rows of the table that they name.
//!
//! The last tokens of every sequence are kept in a ring by position, long enough that a rejected window leaves those
//! before it: forgetting rows is the cursor's business alone, as with pages.

use engine_kernels::ops::history::StateSegment;
use engine_kernels::ops::ngram::NgramHash;

use crate::limits::Limits;
use crate::model::Model;
use crate::model::program::{BufferId, MatrixId};

use super::machine::{Batch, Machine};

/// The last tokens of all sequences.
pub struct Ngrams {
    hash: NgramHash,
    /// `[slot][capacity]`, token of position p at p % capacity.
    token: Vec<u32>,
    capacity: usize,
}

impl Ngrams {
    /// Bytes of [`Self::new`].
    pub fn bytes_for(hash: &NgramHash, limits: &Limits) -> usize {
        4 * limits.slots * capacity(hash, limits)
    }

    /// Empty sequences in all slots.
    pub fn new(hash: &NgramHash, limits: &Limits) -> Self {
        let capacity = capacity(hash, limits);
        Self { hash: hash.clone(), token: vec![0; limits.slots * capacity], capacity }
    }

    /// Makes `to` a copy of `from`.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        let start = from * self.capacity;
        self.token.copy_within(start..start + self.capacity, to * self.capacity);
    }

    /// `out` becomes the tokens before position `len` that later rows look at, oldest first.
    pub fn save(&self, slot: usize, len: usize, out: &mut Vec<u32>) {
        out.clear();
        out.extend((len.saturating_sub(self.hash.history())..len).map(|p| self.token[self.at(slot, p)]));
    }

    /// Brings back what [`Self::save`] gave.
    pub fn restore(&mut self, slot: usize, len: usize, saved: &[u32]) {
        for (position, &token) in (len - saved.len()..len).zip(saved) {
            let at = self.at(slot, position);
            self.token[at] = token;
        }
    }

    fn at(&self, slot: usize, position: usize) -> usize {
        slot * self.capacity + position % self.capacity
    }

    /// The token `back` before row `row` of a segment: of the pass, or from the ring.
    fn before(&self, batch: &Batch<'_>, segment: &StateSegment, row: usize, back: usize) -> Option<u32> {
        if back <= row - segment.rows.start {
            return Some(batch.token[row - back].0);
        }
        let position = (batch.position[row] as usize).checked_sub(back)?;
        Some(self.token[self.at(segment.slot, position)])
    }

    /// Keeps the tokens of a pass.
    fn keep(&mut self, batch: &Batch<'_>) {
        for segment in batch.states {
            for row in segment.rows.clone() {
                let at = self.at(segment.slot, batch.position[row] as usize);
                self.token[at] = batch.token[row].0;
            }
        }
    }
}

/// Positions of a window, and those that its first row looks back at.
fn capacity(hash: &NgramHash, limits: &Limits) -> usize {
    limits.window_max + 1 + hash.history()
}

impl Machine {
    /// Looks the n-grams of all rows up, and keeps the rows' tokens for those that follow.
    ///
    /// # Panics
    /// If the model has none.
    pub(super) fn look_up_ngrams(&mut self, model: &Model, table: MatrixId, dst: BufferId, batch: &Batch<'_>) {
        let mut ngrams = self.ngrams.take().expect("a program with n-grams has a hash");
        let table = model.weights.matrix(table);
        let pool = self.pool();
        pool.lists(|lists| {
            let named = lists.alloc_slice_fill_copy(ngrams.hash.heads.len(), 0);
            let bytes = lists.alloc_slice_fill_copy(table.row_bytes(), 0);
            let width = self.width[dst.index()];
            let dst = self.rows_mut(dst, batch.token.len());
            for segment in batch.states {
                for row in segment.rows.clone() {
                    let before = |back| ngrams.before(batch, segment, row, back);
                    ngrams.hash.rows(batch.token[row].0, before, named);
                    let parts = dst[row * width..(row + 1) * width].chunks_exact_mut(table.k());
                    for (part, &at) in parts.zip(&*named) {
                        table.dequantize_row(at as usize, bytes, part);
                    }
                }
            }
        });
        ngrams.keep(batch);
        self.ngrams = Some(ngrams);
    }
}
