//! plans: what each row may do this tick. Written by plan; read by draft_mtp, extend_suffix, keep, prefill
//! and commit (`counted`).

use crate::ids::Slot;
use crate::tables::survival::BUCKETS;

/// The table.
#[derive(Debug)]
pub struct Plans {
    /// Rows that were live when the tick was planned, oldest admission first.
    pub order: Vec<Slot>,
    /// Drafts in all: pages, rows and hidden ring have room for them.
    pub width: Vec<u32>,
    /// MTP chain length, at most `width`.
    pub mtp_depth: Vec<u32>,
    /// Longest tail for a match of each bucket.
    pub tail: Vec<[u32; BUCKETS]>,
    /// Prompt rows of this tick.
    pub prefill: Vec<u32>,
    /// The prefix cache keeps the row as it stands, before the pass.
    pub keep: Vec<bool>,
    /// The step counts: it is not the row's first, whose anchor is the last prompt token.
    pub counted: Vec<bool>,
}

impl Plans {
    /// Nothing planned.
    pub fn new(slots: usize) -> Self {
        Self {
            order: Vec::with_capacity(slots),
            width: vec![0; slots],
            mtp_depth: vec![0; slots],
            tail: vec![[0; BUCKETS]; slots],
            prefill: vec![0; slots],
            keep: vec![false; slots],
            counted: vec![false; slots],
        }
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(slots: usize) -> usize {
        slots * (size_of::<Slot>() + 3 * size_of::<u32>() + size_of::<[u32; BUCKETS]>() + 2 * size_of::<bool>())
    }

    /// Forgets the last tick.
    pub fn clear(&mut self) {
        self.order.clear();
        self.width.fill(0);
        self.mtp_depth.fill(0);
        self.tail.fill([0; BUCKETS]);
        self.prefill.fill(0);
        self.keep.fill(false);
        self.counted.fill(false);
    }

    /// Narrows a row to `width` drafts: the tail goes first, then the chain.
    pub fn narrow(&mut self, slot: Slot, width: u32) {
        let s = slot.index();
        self.width[s] = self.width[s].min(width);
        self.mtp_depth[s] = self.mtp_depth[s].min(width);
        let room = self.width[s] - self.mtp_depth[s];
        for t in &mut self.tail[s] {
            *t = (*t).min(room);
        }
    }
}
