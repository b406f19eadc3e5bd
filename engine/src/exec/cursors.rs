//! Cursors of every sequence, and the ring of hidden rows that its MTP cache has not consumed.
//!
//! ```text
//! positions      0 ........ folded_len ........ kv_len
//! recurrent      [ state    ][ log, log_len rows ]        folded_len + log_len == kv_len
//! MTP cache      [ ...... mtp_len )                       row p needs h_(p-1)
//! hidden ring             base [ h ............. ) kv_len    base <= mtp_len - 1
//! ```
//!
//! Every step is compared with these before anything is computed (`check.rs`), by the same rules that move them.

use crate::ids::StateSlot;

/// One sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// Positions in the KV cache.
    pub kv_len: u32,
    /// Positions folded into the recurrent state.
    pub folded_len: u32,
    /// Positions in the MTP block's cache.
    pub mtp_len: u32,
    /// First position whose hidden row is kept.
    pub hidden_base: u32,
}

/// What of a model its cursors depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Hidden rows that are kept; 0 without an MTP block.
    pub capacity: u32,
    /// The recurrent state cannot be cut below its fold.
    pub recurrent: bool,
}

impl Cursor {
    /// Rows logged since the fold.
    pub fn log_len(&self) -> u32 {
        self.kv_len - self.folded_len
    }

    /// A folded sequence whose MTP cache is complete and whose pending hidden row alone is kept.
    pub fn restored(kv_len: u32) -> Self {
        Self { kv_len, folded_len: kv_len, mtp_len: kv_len, hidden_base: kv_len.saturating_sub(1) }
    }

    /// Forgets positions `kv_len..`.
    ///
    /// # Errors
    /// If that reaches past the end, or below what the state has folded, or below the hidden rows that are kept.
    pub fn truncate(&mut self, kv_len: u32, rule: Rule) -> Result<(), String> {
        if kv_len > self.kv_len {
            return Err(format!("truncated to {kv_len} of {} positions", self.kv_len));
        }
        if kv_len == self.kv_len {
            return Ok(());
        }
        if kv_len < self.folded_len && rule.recurrent {
            return Err(format!("truncated to {kv_len}, but {} positions are folded into its state", self.folded_len));
        }
        if rule.capacity > 0 && kv_len > 0 && kv_len <= self.hidden_base {
            return Err(format!("truncated to {kv_len}, but hidden rows are kept from {} on only", self.hidden_base));
        }
        self.kv_len = kv_len;
        self.folded_len = self.folded_len.min(kv_len);
        self.mtp_len = self.mtp_len.min(kv_len);
        if kv_len == 0 {
            self.hidden_base = 0;
        }
        Ok(())
    }

    /// Everything logged is folded now.
    pub fn fold(&mut self) {
        self.folded_len = self.kv_len;
    }

    /// A trunk pass appended `rows` positions, the first `committed` folded, the rest logged.
    ///
    /// # Errors
    /// If that pushes out hidden rows that the MTP cache waits for.
    pub fn advance(&mut self, rows: u32, committed: u32, rule: Rule) -> Result<(), String> {
        self.folded_len = self.kv_len + committed;
        self.kv_len += rows;
        if rule.capacity > 0 {
            self.hidden_base = self.hidden_base.max(self.kv_len.saturating_sub(rule.capacity));
            if self.hidden_base >= self.mtp_len.max(1) {
                return Err(format!(
                    "the MTP cache at {} waits for hidden rows that {} positions have pushed out",
                    self.mtp_len, self.kv_len
                ));
            }
        }
        Ok(())
    }
}

/// All sequences.
pub struct Cursors {
    cursor: Vec<Cursor>,
    /// `[slot][capacity][width]`, row of position p at p % capacity. Empty without an MTP block.
    hidden: Vec<f32>,
    capacity: usize,
    width: usize,
    /// The recurrent state cannot be cut below its fold.
    recurrent: bool,
}

impl Cursors {
    /// Empty sequences; `capacity` hidden rows of `width` each, 0 without an MTP block.
    pub fn new(slots: usize, capacity: usize, width: usize, recurrent: bool) -> Self {
        Self {
            cursor: vec![Cursor::default(); slots],
            hidden: vec![0.0; Self::hidden_len(slots, capacity, width)],
            capacity,
            width,
            recurrent,
        }
    }

    fn hidden_len(slots: usize, capacity: usize, width: usize) -> usize {
        slots * capacity * width
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(slots: usize, capacity: usize, width: usize) -> usize {
        size_of::<f32>() * Self::hidden_len(slots, capacity, width) + slots * size_of::<Cursor>()
    }

    /// What moves them.
    pub fn rule(&self) -> Rule {
        Rule { capacity: self.capacity as u32, recurrent: self.recurrent }
    }

    /// By sequence.
    pub fn all(&self) -> &[Cursor] {
        &self.cursor
    }

    /// The cursor of a sequence.
    pub fn get(&self, slot: StateSlot) -> Cursor {
        self.cursor[slot.index()]
    }

    /// Back to the empty sequence.
    pub fn reset(&mut self, slot: StateSlot) {
        self.cursor[slot.index()] = Cursor::default();
    }

    /// As [`Cursor::truncate`].
    ///
    /// # Panics
    /// Where that is an error.
    pub fn truncate(&mut self, slot: StateSlot, kv_len: u32) {
        let rule = self.rule();
        self.cursor[slot.index()].truncate(kv_len, rule).unwrap_or_else(|error| panic!("{slot}: {error}"));
    }

    /// Everything logged is folded now.
    pub fn folded(&mut self, slot: StateSlot) {
        self.cursor[slot.index()].fold();
    }

    /// As [`Cursor::advance`].
    ///
    /// # Panics
    /// Where that is an error.
    pub fn advance(&mut self, slot: StateSlot, rows: u32, committed: u32) {
        let rule = self.rule();
        self.cursor[slot.index()].advance(rows, committed, rule).unwrap_or_else(|error| panic!("{slot}: {error}"));
    }

    /// The MTP cache covers `mtp_len` positions now.
    pub fn filled(&mut self, slot: StateSlot, mtp_len: u32) {
        self.cursor[slot.index()].mtp_len = mtp_len;
    }

    /// Keeps the hidden row of a position that [`Self::advance`] has counted.
    pub fn keep_hidden(&mut self, slot: StateSlot, position: u32, row: &[f32]) {
        if self.capacity > 0 {
            let at = self.at(slot, position);
            self.hidden[at..at + self.width].copy_from_slice(row);
        }
    }

    /// Writes h_(position - 1) to `dst`: what the MTP row of `position` is fed. h_(-1) is 0.
    ///
    /// # Panics
    /// If the row is not computed yet, or not kept any more.
    pub fn hidden_before(&self, slot: StateSlot, position: u32, dst: &mut [f32]) {
        let Some(before) = position.checked_sub(1) else {
            dst.fill(0.0);
            return;
        };
        let c = self.get(slot);
        assert!(
            (c.hidden_base..c.kv_len).contains(&before),
            "{slot}: hidden row {before} of {}..{}",
            c.hidden_base,
            c.kv_len
        );
        let at = self.at(slot, before);
        dst.copy_from_slice(&self.hidden[at..at + self.width]);
    }

    /// Makes `to` a copy of `from`.
    pub fn copy(&mut self, from: StateSlot, to: StateSlot) {
        self.cursor[to.index()] = self.cursor[from.index()];
        let width = self.capacity * self.width;
        let (from, to) = (from.index() * width, to.index() * width);
        self.hidden.copy_within(from..from + width, to);
    }

    /// A folded sequence of `kv_len` positions whose MTP cache is complete and whose pending row is `hidden`.
    pub fn restore(&mut self, slot: StateSlot, kv_len: u32, hidden: &[f32]) {
        self.cursor[slot.index()] = Cursor::restored(kv_len);
        if kv_len > 0 && self.capacity > 0 {
            self.keep_hidden(slot, kv_len - 1, hidden);
        }
    }

    fn at(&self, slot: StateSlot, position: u32) -> usize {
        (slot.index() * self.capacity + position as usize % self.capacity) * self.width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: StateSlot = StateSlot(1);

    fn advance(c: &mut Cursors, rows: u32, committed: u32) {
        let first = c.get(S).kv_len;
        c.advance(S, rows, committed);
        for p in first..first + rows {
            c.keep_hidden(S, p, &[p as f32, -(p as f32)]);
        }
    }

    fn before(c: &Cursors, position: u32) -> f32 {
        let mut row = [f32::NAN; 2];
        c.hidden_before(S, position, &mut row);
        row[0]
    }

    #[test]
    fn a_window_that_is_cut_leaves_its_accepted_rows_in_the_log() {
        let mut c = Cursors::new(2, 8, 2, true);
        advance(&mut c, 3, 3);
        c.filled(S, 4);
        advance(&mut c, 4, 1);
        assert_eq!((c.get(S).folded_len, c.get(S).log_len()), (4, 3));
        c.truncate(S, 5);
        assert_eq!((c.get(S).kv_len, c.get(S).log_len(), c.get(S).mtp_len), (5, 1, 4));
        assert_eq!(before(&c, 0), 0.0);
        assert_eq!(before(&c, 5), 4.0);
        c.folded(S);
        assert_eq!(c.get(S).log_len(), 0);
    }

    #[test]
    fn the_ring_keeps_the_newest_rows() {
        let mut c = Cursors::new(2, 4, 2, true);
        for p in 0..9 {
            advance(&mut c, 1, 1);
            c.filled(S, p + 1);
        }
        assert_eq!(c.get(S).hidden_base, 5);
        assert_eq!((before(&c, 6), before(&c, 9)), (5.0, 8.0));
    }

    #[test]
    fn a_copy_and_a_restored_sequence_stand_where_theirs_stood() {
        let mut c = Cursors::new(3, 4, 2, true);
        advance(&mut c, 3, 1);
        c.copy(S, StateSlot(2));
        assert_eq!(c.get(StateSlot(2)), c.get(S));
        c.restore(S, 7, &[6.0, -6.0]);
        assert_eq!((c.get(S).kv_len, c.get(S).mtp_len, before(&c, 7)), (7, 7, 6.0));
        c.reset(S);
        assert_eq!(c.get(S), Cursor::default());
    }

    #[test]
    #[should_panic(expected = "folded into its state")]
    fn a_state_is_never_cut_below_its_fold() {
        let mut c = Cursors::new(2, 8, 2, true);
        advance(&mut c, 4, 3);
        c.truncate(S, 2);
    }

    #[test]
    fn plain_attention_can_be_cut_anywhere() {
        let mut c = Cursors::new(2, 0, 2, false);
        c.advance(S, 9, 9);
        c.truncate(S, 2);
        assert_eq!((c.get(S).kv_len, c.get(S).folded_len), (2, 2));
    }

    #[test]
    #[should_panic(expected = "pushed out")]
    fn rows_that_the_mtp_cache_waits_for_are_not_overwritten() {
        let mut c = Cursors::new(2, 4, 2, true);
        advance(&mut c, 3, 3);
        advance(&mut c, 3, 3);
    }
}
