//! What the recurrent ops share: the rows of a sequence in a pass, and what a layer remembers of rows before.
//!
//! ```text
//! state   [slot][state_len]             every row up to the fold is in it; its layout is the op's own
//! tail    [slot][tail_rows][width]      raw convolution inputs before the fold, a ring
//! logs    [slot][row][width] each       rows after the fold that may still be forgotten: raw convolution inputs first,
//!                                       then what else the op wants back
//! ```
//! Forgetting rows is the caller's cursor alone: it passes a shorter `log_len` next time. The log starts anew with
//! every pass, because every pass folds what is left of it first.

use std::ops::{Add, Range};

use bumpalo::Bump;
use bumpalo::collections::Vec as List;
use smallvec::SmallVec;

use crate::cpu::disjoint::Blocks;
use crate::cpu::lanes::{LANES, Simd, Vector};
use crate::cpu::pages::LazyZeros;
use crate::cpu::pool::Pool;

/// Rows of one sequence in a pass over a recurrent layer.
#[derive(Clone, Debug)]
pub struct StateSegment {
    /// Its state; at most one segment of a pass has it.
    pub slot: usize,
    /// Rows of the batch, contiguous; may be empty, then only the log is folded.
    pub rows: Range<usize>,
    /// Leading rows of the slot's log that were accepted; they are folded first, the others are forgotten.
    pub log_len: usize,
    /// Leading rows that are folded in this pass; the rest is logged.
    pub committed: usize,
}

impl StateSegment {
    /// A segment without rows, which folds `log_len` logged rows of `slot`.
    pub(super) fn fold(slot: usize, log_len: usize) -> Self {
        Self { slot, rows: 0..0, log_len, committed: 0 }
    }

    /// Steps of the recurrence that a pass takes: accepted rows of the log, then rows of the batch.
    pub(super) fn steps(&self) -> usize {
        self.log_len + self.rows.len()
    }

    /// Leading steps that end up in the state.
    pub(super) fn folded(&self) -> usize {
        self.log_len + self.committed
    }
}

/// Segments without rows, which fold the first `log_len` logged rows of each `(slot, log_len)`.
pub(super) fn folds(slots: &[(usize, usize)]) -> SmallVec<[StateSegment; 1]> {
    slots.iter().map(|&(slot, log_len)| StateSegment::fold(slot, log_len)).collect()
}

/// All rows of some segments, each with the place of its segment among them.
pub(super) fn rows_of<'l>(segments: &[StateSegment], lists: &'l Bump) -> &'l [(usize, usize)] {
    let rows = segments.iter().enumerate().flat_map(|(i, segment)| segment.rows.clone().map(move |row| (i, row)));
    List::from_iter_in(rows, lists).into_bump_slice()
}

/// Some columns of a matrix of rows.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a> {
    all: &'a [f32],
    stride: usize,
    first: usize,
    width: usize,
}

impl<'a> Columns<'a> {
    /// Columns `first..first + width` of `all: [rows][stride]`.
    pub(super) fn new(all: &'a [f32], stride: usize, first: usize, width: usize) -> Self {
        Self { all, stride, first, width }
    }

    /// All columns of `all: [rows][width]`.
    pub(super) fn whole(all: &'a [f32], width: usize) -> Self {
        Self::new(all, width, 0, width)
    }

    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &'a [f32] {
        &self.all[row * self.stride + self.first..][..self.width]
    }
}

/// Rows that may still be forgotten: `[slot][row][width]`.
pub(super) struct RowLog {
    width: usize,
    capacity: usize,
    rows: LazyZeros<f32>,
}

impl RowLog {
    /// The rows of a slot, `[row][width]`.
    #[inline(always)]
    pub(super) fn of(&self, slot: usize) -> &[f32] {
        &self.rows[slot * self.capacity * self.width..][..self.capacity * self.width]
    }

    #[inline(always)]
    pub(super) fn row(&self, slot: usize, row: usize) -> &[f32] {
        &self.of(slot)[row * self.width..][..self.width]
    }
}

/// Sizes of a [`History`], per slot.
pub(super) struct HistorySizes<'a> {
    /// Elements of the state.
    pub(super) state_len: usize,
    /// Raw inputs that the convolution looks back at most.
    pub(super) tail_rows: usize,
    /// Rows of each log.
    pub(super) log_capacity: usize,
    /// Elements of a row of each log; the first is a raw input.
    pub(super) widths: &'a [usize],
}

impl HistorySizes<'_> {
    /// Elements of one slot's raw inputs before the fold.
    fn tail_len(&self) -> usize {
        self.tail_rows * self.widths[0]
    }

    /// Elements of one slot's log of rows of `width`.
    fn log_len(&self, width: usize) -> usize {
        self.log_capacity * width
    }

    /// Bytes of a [`History`] of these sizes.
    pub(super) fn bytes(&self, slots: usize) -> HistoryBytes {
        let floats = |len: usize| slots.saturating_mul(len).saturating_mul(size_of::<f32>());
        let log_len = self.widths.iter().map(|&width| self.log_len(width)).sum();
        HistoryBytes {
            state: floats(self.state_len + self.tail_len()),
            log: floats(log_len),
            saved: size_of::<f32>() * (self.state_len + self.tail_len()),
        }
    }
}

/// Bytes of what recurrent layers remember; the largest number where they are more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HistoryBytes {
    /// Folded states and the raw inputs before them, of all slots.
    pub state: usize,
    /// Ingredients of the rows since, of all slots.
    pub log: usize,
    /// What [`History::save`] writes for one slot.
    pub saved: usize,
}

impl Add for HistoryBytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            state: self.state.saturating_add(other.state),
            log: self.log.saturating_add(other.log),
            saved: self.saved.saturating_add(other.saved),
        }
    }
}

/// What one recurrent layer remembers, for all slots.
pub struct History {
    state_len: usize,
    tail_rows: usize,
    width: usize,
    log_capacity: usize,
    pub(super) state: LazyZeros<f32>,
    tail: LazyZeros<f32>,
    /// Per slot: the ring row that holds the oldest input.
    tail_start: Vec<usize>,
    pub(super) logs: Vec<RowLog>,
    /// Per slot: rows in the logs.
    logged: Vec<usize>,
}

impl History {
    /// `slots` empty sequences.
    pub(super) fn new(slots: usize, sizes: &HistorySizes<'_>) -> Self {
        let HistorySizes { state_len, tail_rows, log_capacity, widths } = *sizes;
        let log = |&width: &usize| RowLog {
            width,
            capacity: log_capacity,
            rows: LazyZeros::new(slots * sizes.log_len(width)),
        };
        Self {
            state_len,
            tail_rows,
            width: widths[0],
            log_capacity,
            state: LazyZeros::new(slots * state_len),
            tail: LazyZeros::new(slots * sizes.tail_len()),
            tail_start: vec![0; slots],
            logs: widths.iter().map(log).collect(),
            logged: vec![0; slots],
        }
    }

    /// Folded state of a slot, in the op's layout.
    pub fn state(&self, slot: usize) -> &[f32] {
        &self.state[slot * self.state_len..][..self.state_len]
    }

    /// Elements that [`Self::save`] writes.
    pub fn saved_len(&self) -> usize {
        self.state_len + self.tail_rows * self.width
    }

    /// Rows of the slot's logs.
    pub fn logged(&self, slot: usize) -> usize {
        self.logged[slot]
    }

    /// # Panics
    /// If a segment does not fit the history or a batch of `rows` rows.
    pub(super) fn check(&self, segments: &[StateSegment], rows: usize) {
        let slots = self.logged.len();
        for StateSegment { slot, rows: range, log_len, committed } in segments {
            assert!(*slot < slots, "slot {slot} of {slots}");
            assert!(range.end <= rows, "rows {range:?} of {rows}");
            assert!(*log_len <= self.logged[*slot], "{log_len} accepted of {} logged rows", self.logged[*slot]);
            assert!(*committed <= range.len(), "{committed} committed of {} rows", range.len());
            assert!(range.len() - committed <= self.log_capacity, "no room to log rows {range:?}");
        }
    }

    /// The raw input `back` rows before step `step` of a segment: of this pass (`now`), of the accepted log, or of the
    /// tail. `back` is at most `tail_rows`.
    pub(super) fn input<'a>(&'a self, segment: &StateSegment, now: Columns<'a>, step: usize, back: usize) -> &'a [f32] {
        match step.checked_sub(back) {
            Some(i) if i >= segment.log_len => now.row(segment.rows.start + i - segment.log_len),
            Some(i) => self.logs[0].row(segment.slot, i),
            None => self.tail_row(segment.slot, self.tail_rows + step - back),
        }
    }

    /// After a sweep: the tail moves over the folded rows, and the others are logged. `now`: what each log takes its
    /// rows from, `[rows][width]`.
    pub(super) fn finish(&mut self, pool: &Pool, segments: &[StateSegment], now: &[Columns<'_>], lists: &Bump) {
        let mut kept: List<'_, (usize, usize)> = List::new_in(lists);
        for segment in segments {
            self.move_tail(segment, now[0]);
            self.logged[segment.slot] = segment.rows.len() - segment.committed;
            let rows = segment.rows.start + segment.committed..segment.rows.end;
            kept.extend(rows.enumerate().map(|(i, row)| (row, segment.slot * self.log_capacity + i)));
        }
        if kept.is_empty() {
            return;
        }
        let width: usize = self.logs.iter().map(|log| log.width).sum();
        let logs = self.logs.iter_mut().map(|log| Blocks::new(&mut log.rows, log.width, lists));
        let (kept, logs) = (kept.into_bump_slice(), List::from_iter_in(logs, lists).into_bump_slice());
        pool.split(kept.len(), super::grain_rows(width), |range| {
            for &(row, at) in &kept[range] {
                for (log, now) in logs.iter().zip(now) {
                    log.take(at).copy_from_slice(now.row(row));
                }
            }
        });
    }

    fn move_tail(&mut self, segment: &StateSegment, now: Columns<'_>) {
        let StateSegment { slot, log_len, .. } = *segment;
        let tail = &mut self.tail[slot * self.tail_rows * self.width..][..self.tail_rows * self.width];
        let start = &mut self.tail_start[slot];
        let folded = segment.folded();
        for i in folded.saturating_sub(self.tail_rows)..folded {
            let raw = if i < log_len { self.logs[0].row(slot, i) } else { now.row(segment.rows.start + i - log_len) };
            tail[*start * self.width..][..self.width].copy_from_slice(raw);
            *start = (*start + 1) % self.tail_rows;
        }
    }

    /// Makes the slot an empty sequence.
    pub fn reset(&mut self, slot: usize) {
        self.state[slot * self.state_len..][..self.state_len].fill(0.0);
        let len = self.tail_rows * self.width;
        self.tail[slot * len..][..len].fill(0.0);
        self.tail_start[slot] = 0;
        self.logged[slot] = 0;
    }

    /// Makes `to` an exact copy of `from`, logs included.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        let copy = |column: &mut [f32], stride: usize, len: usize| {
            column.copy_within(from * stride..from * stride + len, to * stride);
        };
        let tail_len = self.tail_rows * self.width;
        copy(&mut self.state, self.state_len, self.state_len);
        copy(&mut self.tail, tail_len, tail_len);
        for log in &mut self.logs {
            copy(&mut log.rows, log.capacity * log.width, self.logged[from] * log.width);
        }
        self.tail_start[to] = self.tail_start[from];
        self.logged[to] = self.logged[from];
    }

    /// Appends state and tail (oldest input first) of a folded slot to `out`: [`Self::saved_len`] values.
    ///
    /// # Panics
    /// If rows are still logged: they would be lost. Fold first.
    pub fn save(&self, slot: usize, out: &mut Vec<f32>) {
        assert_eq!(self.logged[slot], 0, "slot {slot} has rows that are not folded");
        out.extend_from_slice(self.state(slot));
        for age in 0..self.tail_rows {
            out.extend_from_slice(self.tail_row(slot, age));
        }
    }

    /// Makes the slot what it was at [`Self::save`].
    ///
    /// # Panics
    /// If `saved` has another length than [`Self::saved_len`].
    pub fn restore(&mut self, slot: usize, saved: &[f32]) {
        assert_eq!(saved.len(), self.saved_len(), "a saved state of another shape");
        let (state, tail) = saved.split_at(self.state_len);
        self.state[slot * state.len()..][..state.len()].copy_from_slice(state);
        self.tail[slot * tail.len()..][..tail.len()].copy_from_slice(tail);
        self.tail_start[slot] = 0;
        self.logged[slot] = 0;
    }

    /// Raw input `index` of the tail, 0 = oldest.
    fn tail_row(&self, slot: usize, index: usize) -> &[f32] {
        let row = (self.tail_start[slot] + index) % self.tail_rows;
        &self.tail[(slot * self.tail_rows + row) * self.width..][..self.width]
    }
}

/// Convolution weights `[channels][taps]` as `[taps][channels]`.
pub(super) fn by_tap(conv: &[f32], channels: usize, taps: usize) -> Vec<f32> {
    let mut out = vec![0.0; conv.len()];
    for channel in 0..channels {
        for tap in 0..taps {
            out[tap * channels + channel] = conv[channel * taps + tap];
        }
    }
    out
}

/// `dst += a * b`, or `dst = a * b` for the first term.
#[inline(always)]
pub(super) fn add_product<S: Simd>(s: S, first: bool, a: &[f32], b: &[f32], dst: &mut [f32]) {
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let (dst, dst_rest) = dst.as_chunks_mut::<LANES>();
    for ((a, b), dst) in a.iter().zip(b).zip(dst) {
        term(first, s.load(a), s.load(b), s.load(dst)).store(dst);
    }
    term(first, s.load_partial(a_rest), s.load_partial(b_rest), s.load_partial(dst_rest)).store_partial(dst_rest);
}

#[inline(always)]
fn term<V: Vector>(first: bool, a: V, b: V, dst: V) -> V {
    if first { a.mul(b) } else { a.mul_add(b, dst) }
}
