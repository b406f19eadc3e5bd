//! pages: who owns which page of the KV pool. Written by intake (a cancelled row's), plan (allocation, copy on write,
//! preemption), commit (pages past the cursor), retire and a slot fork (sharing); read by admit (what is free),
//! draft_mtp, prefill and verify (block tables), and by retire and emit (what has changed since it was said). Payload
//! is the Executor's.
//!
//! ```text
//! ref_count[page]              0 = on the free list; block-table entries, and one if the prefix cache holds the page
//! block[slot][0..blocks[slot]] position p of a row lives in block p / PAGE_TOKENS
//! ```
//!
//! One block table serves trunk KV and MTP KV alike: the MTP cache is one more layer of the same page.
//! Invariants: the sum of `ref_count` is the number of block-table entries and of pages that are held; a page is free xor
//! referenced; a page is written only by its one owner.

use crate::ids::{PageId, Slot};
use crate::limits::{Limits, PAGE_TOKENS};
use crate::step::SlotOp;

/// The table.
#[derive(Debug)]
pub struct Pages {
    ref_count: Vec<u16>,
    free: Vec<PageId>,
    blocks_max: usize,
    block: Vec<PageId>,
    blocks: Vec<u32>,
    /// Per page: the prefix cache holds it.
    held: Vec<bool>,
    /// Pages that are held.
    held_len: usize,
    /// Pages that the prefix cache alone holds.
    idle: usize,
    /// Per slot: what [`Self::news`] said last.
    said: Vec<u32>,
    /// Somebody wants to know.
    reports: bool,
    /// See [`Self::changes`].
    changes: u64,
}

impl Pages {
    /// A free pool and empty block tables.
    pub fn new(limits: &Limits) -> Self {
        let blocks_max = Limits::pages_for(limits.context);
        Self {
            ref_count: vec![0; limits.pages],
            free: (0..limits.pages as u32).rev().map(PageId).collect(),
            blocks_max,
            block: vec![PageId::NONE; limits.slots * blocks_max],
            blocks: vec![0; limits.slots],
            held: vec![false; limits.pages],
            held_len: 0,
            idle: 0,
            said: vec![0; limits.slots],
            reports: false,
            changes: 0,
        }
    }

    /// From now on there are [`Self::news`].
    pub fn report(&mut self) {
        self.reports = true;
    }

    /// How many pages a row holds and how many are free, if the row held another number when it was last asked.
    pub fn news(&mut self, slot: Slot) -> Option<(u32, u32)> {
        let (held, said) = (self.blocks[slot.index()], &mut self.said[slot.index()]);
        let news = self.reports && held != *said;
        *said = held;
        news.then_some((held, self.available() as u32))
    }

    /// How often anybody took, shared or gave back a page. While it is the same, so is what can be had.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(limits: &Limits) -> usize {
        let blocks = limits.slots.saturating_mul(Limits::pages_for(limits.context));
        let page = size_of::<u16>() + size_of::<PageId>() + size_of::<bool>();
        let said = limits.slots.saturating_mul(size_of::<u32>());
        limits
            .pages
            .saturating_mul(page)
            .saturating_add(blocks.saturating_mul(size_of::<PageId>()))
            .saturating_add(said)
    }

    /// Pages of the pool.
    pub fn len(&self) -> usize {
        self.ref_count.len()
    }

    /// Whether the pool has no page at all.
    pub fn is_empty(&self) -> bool {
        self.ref_count.is_empty()
    }

    /// Pages nobody references.
    pub fn free_len(&self) -> usize {
        self.free.len()
    }

    /// Pages that the prefix cache alone holds: they can be had.
    pub fn idle_len(&self) -> usize {
        self.idle
    }

    /// Pages that are free, or that the prefix cache would give back.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle
    }

    /// Pages that the prefix cache holds.
    pub fn held_len(&self) -> usize {
        self.held_len
    }

    /// Whether the prefix cache holds a page.
    pub fn is_held(&self, page: PageId) -> bool {
        self.held[page.index()]
    }

    /// Of `pages`, those that the prefix cache alone holds.
    pub fn idle_of(&self, pages: &[PageId]) -> usize {
        pages.iter().filter(|page| self.is_held(**page) && self.ref_count(**page) == 1).count()
    }

    /// The prefix cache holds a row's page from now on.
    ///
    /// # Panics
    /// If it holds it already, or if no row does.
    pub fn hold(&mut self, page: PageId) {
        assert!(self.ref_count(page) > 0 && !self.is_held(page), "{page} is nobody's, or held twice");
        self.count(page);
        self.held[page.index()] = true;
        self.held_len += 1;
    }

    /// A page for the prefix cache alone.
    pub fn alloc_held(&mut self) -> Option<PageId> {
        let page = self.alloc()?;
        self.held[page.index()] = true;
        self.held_len += 1;
        self.idle += 1;
        Some(page)
    }

    /// The prefix cache holds a page no longer.
    ///
    /// # Panics
    /// If it did not.
    pub fn let_go(&mut self, page: PageId) {
        assert!(std::mem::replace(&mut self.held[page.index()], false), "{page} is not held");
        self.held_len -= 1;
        self.idle -= usize::from(self.ref_count(page) == 1);
        self.release(page);
    }

    /// A row without pages shares those of the prefix cache.
    ///
    /// # Panics
    /// If the row has pages, or one of `pages` is not held.
    pub fn adopt(&mut self, slot: Slot, pages: &[PageId]) {
        assert_eq!(self.blocks(slot), 0, "{slot} has pages");
        for (b, &page) in pages.iter().enumerate() {
            self.take_held(page);
            self.block[slot.index() * self.blocks_max + b] = page;
        }
        self.blocks[slot.index()] = pages.len() as u32;
    }

    /// A row gives up its page of a block for the prefix cache's, which holds the same.
    pub fn share_block(&mut self, slot: Slot, block: usize, page: PageId) {
        let at = slot.index() * self.blocks_max + block;
        if self.table(slot)[block] != page {
            self.take_held(page);
            let own = std::mem::replace(&mut self.block[at], page);
            self.release(own);
        }
    }

    fn take_held(&mut self, page: PageId) {
        assert!(self.is_held(page), "{page} is not the prefix cache's");
        self.idle -= usize::from(self.ref_count(page) == 1);
        self.count(page);
    }

    /// One more reference.
    fn count(&mut self, page: PageId) {
        self.changes += 1;
        self.ref_count[page.index()] += 1;
    }

    /// Block-table entries of a row.
    pub fn blocks(&self, slot: Slot) -> usize {
        self.blocks[slot.index()] as usize
    }

    /// Positions that a row's pages hold.
    pub fn capacity(&self, slot: Slot) -> usize {
        self.blocks(slot) * PAGE_TOKENS
    }

    /// A row's block table.
    pub fn table(&self, slot: Slot) -> &[PageId] {
        let start = slot.index() * self.blocks_max;
        &self.block[start..start + self.blocks(slot)]
    }

    fn alloc(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        assert_eq!(self.ref_count[page.index()], 0, "{page} was free and owned");
        self.count(page);
        Some(page)
    }

    fn release(&mut self, page: PageId) {
        self.changes += 1;
        let count = &mut self.ref_count[page.index()];
        assert!(*count > 0, "{page} is released twice");
        *count -= 1;
        match *count {
            0 => self.free.push(page),
            1 if self.held[page.index()] => self.idle += 1,
            _ => {}
        }
    }

    /// Pages that [`Self::reserve`] would take for the same arguments.
    pub fn needed(&self, slot: Slot, write_from: u32, positions: u32) -> usize {
        let table = self.table(slot);
        let shared = table.iter().skip(write_from as usize / PAGE_TOKENS).filter(|p| self.ref_count[p.index()] > 1);
        shared.count() + Limits::pages_for(positions as usize).saturating_sub(table.len())
    }

    /// Makes positions `write_from..positions` the row's own: shared pages among them are copied (queued in `ops`),
    /// missing ones allocated. All or nothing: `false` leaves everything as it was.
    ///
    /// # Panics
    /// If `positions` is past the context.
    pub fn reserve(&mut self, slot: Slot, write_from: u32, positions: u32, ops: &mut Vec<SlotOp>) -> bool {
        let wanted = Limits::pages_for(positions as usize);
        assert!(wanted <= self.blocks_max, "{slot}: {positions} positions are past the context");
        if self.needed(slot, write_from, positions) > self.free.len() {
            return false;
        }
        let start = slot.index() * self.blocks_max;
        for b in write_from as usize / PAGE_TOKENS..self.blocks(slot) {
            let from = self.block[start + b];
            if self.ref_count[from.index()] > 1 {
                let to = self.alloc().expect("counted above");
                ops.push(SlotOp::CopyPage { from, to });
                self.release(from);
                self.block[start + b] = to;
            }
        }
        while self.blocks(slot) < wanted {
            let page = self.alloc().expect("counted above");
            let at = start + self.blocks(slot);
            self.block[at] = page;
            self.blocks[slot.index()] += 1;
        }
        true
    }

    /// Releases the pages past the first `positions` positions.
    pub fn truncate(&mut self, slot: Slot, positions: u32) {
        let keep = Limits::pages_for(positions as usize);
        let start = slot.index() * self.blocks_max;
        while self.blocks(slot) > keep {
            self.blocks[slot.index()] -= 1;
            let at = start + self.blocks(slot);
            let page = std::mem::replace(&mut self.block[at], PageId::NONE);
            self.release(page);
        }
    }

    /// `to` shares every page of `from`; it owned none.
    ///
    /// # Panics
    /// If `to` owns pages.
    pub fn share(&mut self, from: Slot, to: Slot) {
        assert_eq!(self.blocks(to), 0);
        for b in 0..self.blocks(from) {
            let page = self.block[from.index() * self.blocks_max + b];
            self.count(page);
            self.block[to.index() * self.blocks_max + b] = page;
        }
        self.blocks[to.index()] = self.blocks[from.index()];
    }

    /// Owners of a page.
    pub fn ref_count(&self, page: PageId) -> u16 {
        self.ref_count[page.index()]
    }

    /// Asserts the invariants of the module's header.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        let mut count = vec![0u16; self.len()];
        for slot in (0..self.blocks.len() as u32).map(Slot) {
            for page in self.table(slot) {
                count[page.index()] += 1;
            }
        }
        for (count, held) in count.iter_mut().zip(&self.held) {
            *count += u16::from(*held);
        }
        assert_eq!(count, self.ref_count, "ref counts against block-table entries");
        assert_eq!(self.held_len, self.held.iter().filter(|held| **held).count());
        let idle = (0..self.len()).filter(|p| self.held[*p] && self.ref_count[*p] == 1).count();
        assert_eq!(self.idle, idle, "pages that the prefix cache alone holds");
        let mut free = vec![false; self.len()];
        for page in &self.free {
            assert!(!std::mem::replace(&mut free[page.index()], true), "{page} is on the free list twice");
        }
        for (i, (&count, free)) in count.iter().zip(free).enumerate() {
            assert_eq!(count == 0, free, "page {i} must be free xor referenced");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(n: usize) -> Pages {
        Pages::new(&Limits { pages: n, ..Limits::new(2, 64) })
    }

    #[test]
    fn reserve_is_all_or_nothing() {
        let (mut p, mut ops) = (pages(3), Vec::new());
        assert!(p.reserve(Slot(0), 0, 17, &mut ops));
        assert!(!p.reserve(Slot(1), 0, 17, &mut ops));
        assert_eq!((p.blocks(Slot(1)), p.free_len()), (0, 1));
        assert!(p.reserve(Slot(1), 0, 16, &mut ops));
        p.truncate(Slot(0), 16);
        assert_eq!(p.free_len(), 1);
        p.truncate(Slot(0), 0);
        p.truncate(Slot(1), 0);
        p.check();
        assert_eq!(p.free_len(), 3);
        assert!(ops.is_empty());
    }

    #[test]
    fn a_shared_page_is_copied_before_it_is_written() {
        let (mut p, mut ops) = (pages(4), Vec::new());
        assert!(p.reserve(Slot(0), 0, 20, &mut ops));
        p.share(Slot(0), Slot(1));
        let shared = p.table(Slot(0)).to_vec();
        assert_eq!(p.needed(Slot(1), 20, 21), 1);
        assert!(p.reserve(Slot(1), 20, 21, &mut ops));
        assert_eq!(p.table(Slot(1))[0], shared[0]);
        let own = p.table(Slot(1))[1];
        assert_ne!(own, shared[1]);
        assert_eq!(ops, [SlotOp::CopyPage { from: shared[1], to: own }]);
        // The other owner is alone with its page now and copies nothing.
        assert!(p.reserve(Slot(0), 20, 21, &mut ops));
        assert_eq!(ops.len(), 1);
        p.check();
        p.truncate(Slot(1), 0);
        assert_eq!(p.ref_count(shared[0]), 1);
        p.check();
    }
}
