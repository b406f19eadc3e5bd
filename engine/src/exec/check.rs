//! Whether a step may be run: what it says against where its sequences stand.
//!
//! The step is played through on copies of the cursors, without any payload, by the rules that move the cursors
//! themselves. In one process a step that does not pass is a bug of the Ledger and asserts; one that came over a wire is
//! refused before anything of it is run.

use bumpalo::Bump;
use bumpalo::collections::Vec as List;

use crate::ids::{CheckpointId, StateSlot};
use crate::limits::PAGE_TOKENS;
use crate::step::{MtpWork, SlotOp, Step, TrunkWork};

use super::CpuExecutor;
use super::cursors::{Cursor, Rule};

/// Where everything stands while a step is played through.
struct Rehearsal<'a> {
    executor: &'a CpuExecutor,
    rule: Rule,
    cursor: &'a mut [Cursor],
    /// Checkpoints that the step saves (their length) or drops.
    changed: List<'a, (CheckpointId, Option<u32>)>,
    /// Checkpoints there are.
    count: usize,
}

impl CpuExecutor {
    /// Whether [`Self::run_stage`] can run `step`, whose columns fit each other and name only slots, pages and tokens that
    /// exist.
    ///
    /// # Errors
    /// The first thing that does not continue where its sequence stands: what was found, and what was expected.
    pub fn check(&self, step: &Step) -> Result<(), String> {
        self.machine.pool.lists(|lists| {
            let mut all = self.rehearsal(lists);
            for op in &step.ops {
                all.op(op)?;
            }
            all.mtp(&step.mtp)?;
            all.trunk(&step.trunk)
        })
    }

    fn rehearsal<'a>(&'a self, lists: &'a Bump) -> Rehearsal<'a> {
        Rehearsal {
            executor: self,
            rule: self.cursors.rule(),
            cursor: lists.alloc_slice_copy(self.cursors.all()),
            changed: List::new_in(lists),
            count: self.checkpoints.len(),
        }
    }

    /// # Panics
    /// If `step` cannot be run.
    pub(super) fn assert_runs(&self, step: &Step) {
        self.check(step).unwrap_or_else(|error| panic!("{error}"));
    }

    /// # Panics
    /// If `work` cannot be run.
    pub(super) fn assert_drafts(&self, work: &MtpWork) {
        let checked = self.machine.pool.lists(|lists| self.rehearsal(lists).mtp(work));
        checked.unwrap_or_else(|error| panic!("{error}"));
    }
}

impl Rehearsal<'_> {
    fn cursor(&mut self, state: StateSlot) -> &mut Cursor {
        &mut self.cursor[state.index()]
    }

    /// Length of a checkpoint, if it is there.
    fn saved(&self, checkpoint: CheckpointId) -> Option<u32> {
        let before = || self.executor.checkpoints.get(&checkpoint).map(|saved| saved.kv_len);
        let changed = self.changed.iter().rev().find(|(of, _)| *of == checkpoint);
        changed.map_or_else(before, |(_, now)| *now)
    }

    fn op(&mut self, op: &SlotOp) -> Result<(), String> {
        let rule = self.rule;
        match *op {
            SlotOp::Reset { state } => *self.cursor(state) = Cursor::default(),
            SlotOp::Truncate { state, kv_len } => {
                self.cursor(state).truncate(kv_len, rule).map_err(|error| format!("{state}: {error}"))?;
            }
            SlotOp::Fold { state } => self.cursor(state).fold(),
            SlotOp::CopyPage { .. } => {}
            SlotOp::Fork { from, to } => *self.cursor(to) = *self.cursor(from),
            SlotOp::Save { state, checkpoint } => {
                let cursor = self.cursor(state);
                cursor.fold();
                let Cursor { kv_len, mtp_len, .. } = *cursor;
                if rule.capacity > 0 && mtp_len < kv_len {
                    return Err(format!("{state}: saved with {mtp_len} of {kv_len} MTP rows"));
                }
                if self.saved(checkpoint).is_some() {
                    return Err(format!("{checkpoint} is taken"));
                }
                let most = self.executor.limits.checkpoints;
                if self.count >= most {
                    return Err(format!("{checkpoint}: {} of {most} checkpoints are there", self.count));
                }
                self.changed.push((checkpoint, Some(kv_len)));
                self.count += 1;
            }
            SlotOp::Restore { checkpoint, state } => {
                let saved = self.saved(checkpoint);
                let kv_len = saved.ok_or_else(|| format!("{checkpoint} is not there to be restored"))?;
                *self.cursor(state) = Cursor::restored(kv_len);
            }
            SlotOp::Adopt { state, kv_len } => {
                if rule.recurrent || rule.capacity > 0 {
                    return Err(format!("{state}: {kv_len} positions adopted, and they are more than their pages"));
                }
                *self.cursor(state) = Cursor::restored(kv_len);
            }
            SlotOp::Drop { checkpoint } => {
                self.saved(checkpoint).ok_or_else(|| format!("{checkpoint} is not there to be dropped"))?;
                self.changed.push((checkpoint, None));
                self.count -= 1;
            }
        }
        Ok(())
    }

    fn mtp(&mut self, work: &MtpWork) -> Result<(), String> {
        // The block is the last stage's.
        if work.state.is_empty() || !self.executor.model.stage.is_last() {
            return Ok(());
        }
        if !self.executor.shape.mtp {
            return Err(String::from("MTP work, and there is no MTP block"));
        }
        once(&work.state, "MTP")?;
        for (s, &state) in work.state.iter().enumerate() {
            let (position, depth) = (work.position[s], work.depth[s]);
            let count = work.token_start[s + 1] - work.token_start[s];
            let cursor = self.cursor(state);
            let Cursor { kv_len, mtp_len, .. } = *cursor;
            if position != mtp_len {
                return Err(format!("{state}: MTP rows from {position} on, and the MTP cache has {mtp_len} positions"));
            }
            if count == 0 && depth > 0 {
                return Err(format!("{state}: a chain of {depth} drafts starts at no token"));
            }
            // The row of the anchor, position kv_len, is fed h_(kv_len - 1); nothing is known beyond it.
            let end = u64::from(position) + u64::from(count);
            if end > u64::from(kv_len) + 1 {
                return Err(format!("{state}: MTP rows up to {end}, and the trunk has {kv_len} positions"));
            }
            cursor.mtp_len = position + count;
            let pages = work.page_start[s + 1] - work.page_start[s];
            room(state, end + u64::from(depth.saturating_sub(1)), pages)?;
        }
        Ok(())
    }

    fn trunk(&mut self, work: &TrunkWork) -> Result<(), String> {
        let (limits, rule) = (&self.executor.limits, self.rule);
        let (step_rows, window_max) = (limits.step_rows, limits.window_max);
        if work.token.len() > step_rows {
            return Err(format!("{} rows in a step of at most {step_rows}", work.token.len()));
        }
        let vocab_rows = self.executor.model.vocab_rows;
        if let Some(token) = work.token.iter().find(|t| t.0 as usize >= vocab_rows) {
            return Err(format!("{token} is outside the vocabulary of {vocab_rows}"));
        }
        once(&work.state, "trunk")?;
        for (s, &state) in work.state.iter().enumerate() {
            let (rows, committed) = (work.row_start[s + 1] - work.row_start[s], work.committed[s]);
            let cursor = self.cursor(state);
            if work.position[s] != cursor.kv_len {
                let (found, expected) = (work.position[s], cursor.kv_len);
                return Err(format!("{state}: rows from {found} on, and the sequence has {expected} positions"));
            }
            if !(1..=rows).contains(&committed) {
                return Err(format!("{state}: {committed} of {rows} rows committed"));
            }
            if (rows - committed) as usize > window_max {
                return Err(format!("{state}: a window of {} drafts, at most {window_max}", rows - committed));
            }
            room(state, u64::from(cursor.kv_len) + u64::from(rows), work.page_start[s + 1] - work.page_start[s])?;
            cursor.advance(rows, committed, rule).map_err(|error| format!("{state}: {error}"))?;
        }
        Ok(())
    }
}

/// A sequence is there once.
fn once(states: &[StateSlot], pass: &str) -> Result<(), String> {
    match states.iter().enumerate().find(|&(s, state)| states[..s].contains(state)) {
        Some((_, state)) => Err(format!("{state} twice in one {pass} pass")),
        None => Ok(()),
    }
}

/// The pages of a sequence hold `positions`.
fn room(state: StateSlot, positions: u64, pages: u32) -> Result<(), String> {
    match positions <= u64::from(pages) * PAGE_TOKENS as u64 {
        true => Ok(()),
        false => Err(format!("{state}: {pages} pages for {positions} positions")),
    }
}
