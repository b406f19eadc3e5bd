//! The CPU executor: runs steps over a model that is loaded.
//!
//! ```text
//! Step ─► ops (reset, truncate, fold, copy, fork, checkpoints)
//!      ─► MTP: fill the block's cache, draft            mtp.rs
//!      ─► trunk: one pass over all rows                 trunk.rs, machine.rs
//!      ─► LM head, choose, accept                       choose.rs
//! ```
//!
//! It owns payload only. Which page or slot belongs to whom is the Ledger's business; what must be true of them is
//! checked before anything is computed (`check.rs`).

mod batch;
mod check;
mod choose;
mod cursors;
mod machine;
mod moe;
mod mtp;
mod ngrams;
mod recurrent;
pub(crate) mod sizes;
mod slots;
mod sparse;
mod trunk;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bumpalo::collections::Vec as List;
// Settings of this executor, so that its users need not know the kernels.
pub use engine_kernels::ops::kv_cache::KvType;
pub use engine_kernels::{Activation, Isa, Pool};

use crate::ids::{CheckpointId, StateSlot};
use crate::limits::{Limits, STEP_ROWS_MAX, WINDOW_MAX};
use crate::model::{Model, MtpStatus};
use crate::step::{Executor, MtpWork, Shape, SlotOp, Step, StepResult};

use batch::Tables;
use choose::Chooser;
use cursors::Cursors;
use machine::Machine;
use slots::Checkpoint;

/// How a model is run. The first two decide bits; the others only time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExecOptions {
    /// Storage of keys and values.
    pub kv_type: KvType,
    /// What activations are multiplied as.
    pub activation: Activation,
    /// Workers, the caller included.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub isa: Isa,
}

impl Default for ExecOptions {
    fn default() -> Self {
        Self { kv_type: KvType::F16, activation: Activation::Integer, threads: 1, isa: Isa::best() }
    }
}

/// A model, the payload of its sequences, and the memory of one pass.
pub struct CpuExecutor {
    model: Arc<Model>,
    limits: Limits,
    shape: Shape,
    machine: Machine,
    cursors: Cursors,
    checkpoints: HashMap<CheckpointId, Checkpoint>,
    /// Of those that were dropped; together with the others no more than the limit.
    spare: Vec<Checkpoint>,
    chooser: Chooser,
    /// Block tables of the pass.
    tables: Tables,
}

impl CpuExecutor {
    /// Sizes everything for `limits`; nothing grows with traffic afterwards. [`crate::memory::Memory`] tells how much
    /// that is, and whether it can be had.
    ///
    /// # Panics
    /// If the limits exceed the constants of [`crate::limits`].
    pub fn new(model: Arc<Model>, limits: Limits, options: ExecOptions) -> Self {
        let pool = Arc::new(Pool::new(options.threads));
        Self::with_pool(model, limits, options, pool)
    }

    /// As [`Self::new`], on workers that others use too; `options.threads` is theirs.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn with_pool(model: Arc<Model>, limits: Limits, options: ExecOptions, pool: Arc<Pool>) -> Self {
        assert!((1..=STEP_ROWS_MAX).contains(&limits.step_rows), "{} rows a step", limits.step_rows);
        assert!(limits.window_max <= WINDOW_MAX && limits.window_max < limits.step_rows, "a window fits a step");
        let mtp = model.program.mtp.is_some();
        let recurrent = !model.program.recurrent.is_empty();
        let hidden_rows = hidden_rows(mtp, &limits);
        let hidden_width = model.program.width(model.program.hidden);
        let shape = Shape {
            vocab: model.vocab,
            hidden_width,
            context_train: model.config.context_train,
            mtp,
            recurrent,
            hidden_rows,
            checkpoint_bytes: sizes::checkpoint_bytes(&model.program, &limits),
        };
        Self {
            machine: Machine::new(&model, &limits, &options, pool),
            cursors: Cursors::new(limits.slots, hidden_rows, hidden_width, recurrent),
            checkpoints: HashMap::with_capacity(limits.checkpoints),
            spare: Vec::with_capacity(limits.checkpoints),
            chooser: Chooser::new(options.isa),
            tables: Tables::new(&limits),
            model,
            limits,
            shape,
        }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Floats per row of what crosses the border of a stage: what one that is not the last leaves in [`Self::sent`], and
    /// what one that is not the first is given.
    pub fn border_width(&self) -> usize {
        let program = &self.model.program;
        program.width(program.received.unwrap_or(program.hidden))
    }

    /// Runs what a stage has of a step; a whole model is the stage that has all of it. `received`: the residual of the
    /// trunk's rows from the stage before, `[rows][border_width]`; empty for the first stage. A stage that is not the
    /// last leaves its own in [`Self::sent`], passes MTP work over, and decides nothing.
    ///
    /// # Panics
    /// As [`Executor::run`]; if `received` has another length.
    pub fn run_stage(&mut self, step: &Step, received: &[f32], out: &mut StepResult) {
        out.clear();
        self.assert_runs(step);
        let pool = self.machine.pool();
        let _pass = pool.pass();
        for op in &step.ops {
            self.apply(op);
        }
        if !step.mtp.state.is_empty() && self.model.stage.is_last() {
            self.run_mtp(&step.mtp, out);
        }
        if !step.trunk.state.is_empty() {
            self.run_trunk(&step.trunk, received, out);
        }
    }

    /// The residual of the last trunk pass's rows, for the next stage: `[rows][border_width]`.
    pub fn sent(&self, rows: usize) -> &[f32] {
        self.machine.rows(self.model.program.hidden, rows)
    }

    /// Runs MTP work as if what it continues had been accepted already, and leaves every cursor where it is: what is
    /// written lies behind the MTP caches' ends.
    ///
    /// # Panics
    /// As [`Executor::run`].
    pub fn draft_ahead(&mut self, work: &MtpWork, out: &mut StepResult) {
        out.clear();
        self.assert_drafts(work);
        let pool = self.machine.pool();
        let _pass = pool.pass();
        pool.lists(|lists| {
            let before = List::from_iter_in(work.state.iter().map(|s| self.cursors.get(*s).mtp_len), lists);
            self.run_mtp(work, out);
            for (state, mtp_len) in work.state.iter().zip(before) {
                self.cursors.filled(*state, mtp_len);
            }
        });
    }

    /// The MTP cache of a sequence covers `mtp_len` positions: [`Self::draft_ahead`] has written them.
    pub fn filled_ahead(&mut self, state: StateSlot, mtp_len: u32) {
        self.cursors.filled(state, mtp_len);
    }

    /// Forgets every sequence and checkpoint.
    pub fn forget_all(&mut self) {
        for state in 0..self.limits.slots as u32 {
            self.apply(&SlotOp::Reset { state: StateSlot(state) });
        }
        self.checkpoints.clear();
        self.spare.clear();
    }

    /// Where the MTP block comes from, or why there is none.
    pub fn mtp_status(&self) -> &MtpStatus {
        &self.model.mtp
    }
}

impl Executor for CpuExecutor {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn run(&mut self, step: &Step, out: &mut StepResult) {
        assert!(self.model.stage.is_whole(), "{} are no whole model", self.model.stage);
        self.run_stage(step, &[], out);
    }

    fn epoch(&mut self) -> u64 {
        0
    }

    fn checkpoint_bytes(&self, checkpoint: CheckpointId) -> Option<Vec<u8>> {
        self.checkpoints.get(&checkpoint).map(Checkpoint::bytes)
    }
}

/// Rows of the hidden ring: a prefill chunk, the window after it, and the row before both; 0 without an MTP block.
pub fn hidden_rows(mtp: bool, limits: &Limits) -> usize {
    if mtp { limits.prefill_chunk + limits.window_max + 2 } else { 0 }
}

fn elapsed_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
