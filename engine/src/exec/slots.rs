//! Slot operations: what happens to a sequence's payload before anything is computed.

use crate::ids::StateSlot;
use crate::step::SlotOp;

use super::CpuExecutor;

/// A saved sequence: everything but its pages.
#[derive(Default)]
pub(super) struct Checkpoint {
    pub(super) kv_len: u32,
    /// Recurrent layers, one after the other.
    state: Vec<f32>,
    /// The pending hidden row h_(kv_len - 1); empty without an MTP block.
    hidden: Vec<f32>,
    /// The last tokens; empty where none are embedded together with later ones.
    token: Vec<u32>,
}

impl Checkpoint {
    /// `kv_len u32 | state | hidden | token`, little-endian.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut out = self.kv_len.to_le_bytes().to_vec();
        for x in self.state.iter().chain(&self.hidden) {
            out.extend_from_slice(&x.to_le_bytes());
        }
        out.extend(self.token.iter().flat_map(|token| token.to_le_bytes()));
        out
    }
}

impl CpuExecutor {
    pub(super) fn apply(&mut self, op: &SlotOp) {
        match *op {
            SlotOp::Reset { state } => {
                self.cursors.reset(state);
                self.machine.recurrent.reset(state.index());
            }
            SlotOp::Truncate { state, kv_len } => self.cursors.truncate(state, kv_len),
            SlotOp::Fold { state } => self.fold(state),
            SlotOp::CopyPage { from, to } => {
                self.machine.kv.copy_page(from.0, to.0);
                self.machine.sparse.keys.copy_page(from.0, to.0);
            }
            SlotOp::Fork { from, to } => {
                self.cursors.copy(from, to);
                self.machine.recurrent.copy_slot(from.index(), to.index());
                if let Some(ngrams) = &mut self.machine.ngrams {
                    ngrams.copy_slot(from.index(), to.index());
                }
            }
            SlotOp::Save { state, checkpoint } => {
                self.fold(state);
                let saved = self.save(state);
                assert!(self.checkpoints.len() < self.limits.checkpoints, "more checkpoints than the limit allows");
                let before = self.checkpoints.insert(checkpoint, saved);
                assert!(before.is_none(), "{checkpoint} is taken");
            }
            SlotOp::Restore { checkpoint, state } => self.restore(checkpoint, state),
            SlotOp::Adopt { state, kv_len } => self.cursors.restore(state, kv_len, &[]),
            SlotOp::Drop { checkpoint } => {
                let gone = self.checkpoints.remove(&checkpoint);
                // Its memory is the next one's.
                self.spare.push(gone.unwrap_or_else(|| panic!("{checkpoint} is not there to be dropped")));
            }
        }
    }

    /// The recurrent state of a sequence without logged rows, little-endian: what two runs compare.
    ///
    /// # Panics
    /// If rows are logged: fork the sequence and [`SlotOp::Fold`] the copy first.
    pub fn state_bytes(&self, state: StateSlot) -> Vec<u8> {
        assert_eq!(self.cursors.get(state).log_len(), 0, "{state} has logged rows");
        let mut out = Vec::new();
        self.machine.recurrent.save(state.index(), &mut out);
        out.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    fn fold(&mut self, state: StateSlot) {
        self.machine.fold(state.index(), self.cursors.get(state).log_len() as usize);
        self.cursors.folded(state);
    }

    fn save(&mut self, state: StateSlot) -> Checkpoint {
        let mut out = self.spare.pop().unwrap_or_default();
        let cursor = self.cursors.get(state);
        if self.shape.mtp {
            assert!(
                cursor.mtp_len >= cursor.kv_len,
                "{state}: saved with {} of {} MTP rows",
                cursor.mtp_len,
                cursor.kv_len
            );
            out.hidden.resize(self.shape.hidden_width, 0.0);
            self.cursors.hidden_before(state, cursor.kv_len, &mut out.hidden);
        }
        self.machine.recurrent.save(state.index(), &mut out.state);
        if let Some(ngrams) = &self.machine.ngrams {
            ngrams.save(state.index(), cursor.kv_len as usize, &mut out.token);
        }
        out.kv_len = cursor.kv_len;
        out
    }

    fn restore(&mut self, checkpoint: crate::ids::CheckpointId, state: StateSlot) {
        let Self { checkpoints, cursors, machine, .. } = self;
        let saved = checkpoints.get(&checkpoint).unwrap_or_else(|| panic!("{checkpoint} is not there to be restored"));
        cursors.restore(state, saved.kv_len, &saved.hidden);
        machine.recurrent.restore(state.index(), &saved.state);
        if let Some(ngrams) = &mut machine.ngrams {
            ngrams.restore(state.index(), saved.kv_len as usize, &saved.token);
        }
    }
}
