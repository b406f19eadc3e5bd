//! The memory planner: every byte an engine holds, by room, before any of it is asked for.
//!
//! A pure function of plan, limits and options; no tensor data is touched. Each structure says its own size beside its
//! constructor (`bytes_for`), and the lists here only call those: what is planned is what is allocated. Rooms outside
//! the engine (tokenizer, connections, stacks) are appended by those who know them.
//!
//! ```text
//! File     pages of a mapped file: they count against no limit, since the system takes them back when it needs to
//! Memory   anonymous memory, all of it touched by an engine whose slots are filled to their context
//! Loading  anonymous memory that is given back before most of the other is touched
//! Bound    what clients or the system may take beyond that, and mostly do not
//! ```

use serde::Serialize;

use crate::api::{Command, Event};
use crate::exec::{self, ExecOptions};
use crate::gauges::Gauges;
use crate::ids::TokenId;
use crate::limits::{Limits, LimitsError};
use crate::model::load::{Repack, repacked};
use crate::model::plan::Plan;
use crate::model::tensors::Source;
use crate::model::{Config, Model};
use crate::rules::History;
use crate::step::Step;
use crate::tables::constraints::Constraints;
use crate::tables::counters::Counters;
use crate::tables::outbox::Outbox;
use crate::tables::output::Outputs;
use crate::tables::pages::Pages;
use crate::tables::plans::Plans;
use crate::tables::prefix::Prefix;
use crate::tables::requests::Requests;
use crate::tables::suffix::Suffix;
use crate::tables::survival::Survival;
use crate::tables::tokens::Tokens;
use crate::tables::totals::Totals;
use crate::tables::windows::Windows;

/// How bytes are held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// Pages of a mapped file.
    File,
    /// Memory of the process.
    Memory,
    /// Memory of the process before it serves.
    Loading,
    /// Taken at most, and only at need.
    Bound,
}

/// One room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Part {
    /// What it holds.
    pub name: &'static str,
    /// How.
    pub held: Held,
    /// How much; the largest number where it is more.
    pub bytes: usize,
}

impl Part {
    /// Anonymous memory.
    pub fn memory(name: &'static str, bytes: usize) -> Self {
        Self { name, held: Held::Memory, bytes }
    }

    /// Anonymous memory while a model is loaded.
    pub fn loading(name: &'static str, bytes: usize) -> Self {
        Self { name, held: Held::Loading, bytes }
    }

    /// What may be taken beyond.
    pub fn bound(name: &'static str, bytes: usize) -> Self {
        Self { name, held: Held::Bound, bytes }
    }
}

/// Where the bytes of a tensor are that a program reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In the file, as it is mapped or read.
    File,
    /// A copy in the kernels' own layout.
    Repacked,
    /// A copy as floats.
    Floats,
    /// Another file's: it costs nothing here.
    Borrowed,
}

/// One tensor that a program reads. Parts of a fused tensor, and experts of which only some are repacked, are rows of
/// their own under the same name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TensorBytes {
    /// Its name in the file.
    pub name: String,
    /// It comes from the draft file.
    pub draft: bool,
    /// Its type in the file.
    pub quant: &'static str,
    /// Where it is read.
    pub place: Place,
    /// Bytes there.
    pub bytes: usize,
}

/// How a model file is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileSize {
    /// Which files.
    pub name: &'static str,
    /// They are those of the draft model.
    pub draft: bool,
    /// All its shards.
    pub bytes: usize,
    /// As pages of the file, or as memory that it was read into.
    pub held: Held,
}

/// What is planned.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Memory {
    /// By room.
    pub parts: Vec<Part>,
    /// Weights one by one. Their sums are among the parts.
    pub tensors: Vec<TensorBytes>,
}

/// Why memory cannot be had.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemoryError {
    /// The limits contradict each other.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// They need more memory than the system gives.
    #[error(
        "{slots} x {context} tokens need {} MiB of memory, more than the system gives; ask for less context or fewer \
         requests at once",
        bytes >> 20
    )]
    System {
        /// Requests at once.
        slots: usize,
        /// Tokens of each.
        context: usize,
        /// What all of it takes.
        bytes: usize,
    },
}

impl Memory {
    /// Everything that an engine of `limits` holds for a model that is not loaded: its files, its weights, what passes
    /// work with, and the tables. For a sidecar alone: what it adds to its model.
    ///
    /// # Errors
    /// Limits that contradict each other.
    pub fn of_plan(
        plan: &Plan,
        files: &[FileSize],
        repack: Repack,
        limits: &Limits,
        options: &ExecOptions,
    ) -> Result<Self, LimitsError> {
        limits.check()?;
        let panels = repacked(plan, repack);
        let tensors = tensors(plan, &panels);
        let parts = files.iter().map(|file| file_part(file, &tensors)).collect();
        let mut memory = Self { parts, tensors };
        let sum = |place| memory.tensors.iter().filter(|t| t.place == place).map(|t| t.bytes).sum();
        memory.parts.extend([
            Part::memory("repacked weights", sum(Place::Repacked)),
            Part::memory("small tensors", sum(Place::Floats)),
        ]);
        if plan.alone {
            memory.parts.extend(exec::sizes::mtp_parts(&plan.program, limits, options));
            return Ok(memory);
        }
        let shape = exec::sizes::Shapes::of_plan(plan, &panels);
        memory.parts.extend(exec::sizes::parts(&plan.program, &shape, plan.vocab, limits, options));
        // Requests live with the first stage.
        if plan.stage.is_first() {
            let stateful = plan.program.mtp.is_some() || !plan.program.recurrent.is_empty();
            memory.parts.extend(ledger(limits, plan.vocab, stateful));
        }
        Ok(memory)
    }

    /// What an executor of `limits` adds to a model that is loaded.
    ///
    /// # Errors
    /// Limits that contradict each other.
    pub fn of_executor(model: &Model, limits: &Limits, options: &ExecOptions) -> Result<Self, LimitsError> {
        limits.check()?;
        let shapes = exec::sizes::Shapes::of_model(model);
        let parts = exec::sizes::parts(&model.program, &shapes, model.vocab, limits, options);
        Ok(Self { parts, tensors: Vec::new() })
    }

    /// Checkpoints of a prefix cache that take no more than a quarter of what the KV cache takes.
    pub fn checkpoints(plan: &Plan, limits: &Limits, options: &ExecOptions) -> usize {
        exec::sizes::checkpoints_beside_kv(&plan.program, limits, options)
    }

    /// What each block keeps of sequences with all slots full: trunk blocks, then the MTP block if it is run. A part of
    /// what [`Self::of_plan`] lists by room.
    pub fn by_block(plan: &Plan, config: &Config, limits: &Limits, options: &ExecOptions) -> Vec<usize> {
        exec::sizes::held_by_block(&plan.program, config, limits, options)
    }

    /// Bytes of all parts held in one way; the largest number where they are more.
    pub fn sum(&self, held: Held) -> usize {
        self.parts.iter().filter(|p| p.held == held).fold(0, |sum, p| sum.saturating_add(p.bytes))
    }

    /// Anonymous memory at its peak: with all slots full, or when the weights have been copied and what they were copied
    /// from is still there.
    pub fn peak(&self) -> usize {
        let copied = self.tensors.iter().filter(|t| matches!(t.place, Place::Repacked | Place::Floats));
        let copies = copied.fold(0usize, |sum, t| sum.saturating_add(t.bytes));
        self.sum(Held::Memory).max(self.sum(Held::Loading).saturating_add(copies))
    }

    /// Whether the system gives the anonymous memory. It is asked for as a whole and given back: each part alone might
    /// still fit, and a failure then ends the process.
    ///
    /// # Errors
    /// [`MemoryError::System`].
    pub fn ask_system(&self, limits: &Limits) -> Result<(), MemoryError> {
        let bytes = self.peak();
        match Vec::<u8>::new().try_reserve_exact(bytes) {
            Ok(()) => Ok(()),
            Err(_) => Err(MemoryError::System { slots: limits.slots, context: limits.context, bytes }),
        }
    }
}

/// A file that was read into memory is given back where nothing is read in it any more.
fn file_part(file: &FileSize, tensors: &[TensorBytes]) -> Part {
    let needed = tensors.iter().any(|t| t.draft == file.draft && t.place == Place::File);
    let held = if file.held == Held::Memory && !needed { Held::Loading } else { file.held };
    Part { name: file.name, held, bytes: file.bytes }
}

/// Every tensor that the plan asks for. `panels`: per matrix, how many of its slabs are repacked.
fn tensors(plan: &Plan, panels: &[usize]) -> Vec<TensorBytes> {
    let mut out = Vec::new();
    // A plan for a sidecar alone reads the target's tensors, which are no part of it.
    let alone = plan.alone;
    let row = |from: Source, name: &str, quant: engine_kernels::Quant, place, bytes| TensorBytes {
        name: name.to_owned(),
        draft: from == Source::Draft,
        quant: quant.name(),
        place: if alone && from == Source::Model { Place::Borrowed } else { place },
        bytes: if alone && from == Source::Model { 0 } else { bytes },
    };
    for (want, &repacked) in plan.matrices.iter().zip(panels) {
        let in_file = want.slabs.count - repacked;
        let panel = engine_kernels::Matrix::panel_bytes_of(want.quant, want.n, want.k);
        let bytes = want.n * want.quant.row_bytes(want.k);
        for (place, count, bytes) in [(Place::File, in_file, bytes), (Place::Repacked, repacked, panel)] {
            if count > 0 {
                out.push(row(want.from, &want.name, want.quant, place, count * bytes));
            }
        }
    }
    let float = size_of::<f32>();
    out.extend(plan.vectors.iter().map(|want| row(want.from, &want.name, want.quant, Place::Floats, float * want.len)));
    out
}

/// The tables of the Ledger, and the channels to it.
fn ledger(limits: &Limits, vocab: usize, stateful: bool) -> Vec<Part> {
    let &Limits { slots, context, window_max, waiting, events, .. } = limits;
    let per_slot = [
        Requests::bytes_for(slots),
        Survival::bytes_for(slots),
        Outputs::bytes_for(slots),
        Constraints::bytes_for(slots),
        Counters::bytes_for(slots, window_max),
        Plans::bytes_for(slots),
        Windows::bytes_for(slots, window_max),
        Outbox::bytes_for(slots, limits.window_max + 1),
    ];
    let shown = Totals::bytes_for(slots) + Gauges::bytes_for(slots);
    // A place of a bounded channel is a message and its stamp.
    let place = |message: usize| message + size_of::<usize>();
    // A mask for every row that a step may have; each is made once, and copied on its way to another process.
    let masks = limits.step_rows.saturating_mul(vocab.div_ceil(32)).saturating_mul(size_of::<u32>());
    let channels =
        crate::engine::commands_max(limits) * place(size_of::<Command>()) + events * place(size_of::<Event>());
    vec![
        Part::memory("token histories", Tokens::bytes_for(slots, context)),
        Part::memory("suffix indices", Suffix::bytes_for(slots, context)),
        Part::memory("page tables", Pages::bytes_for(limits)),
        Part::memory("steps", Step::bytes_for(limits)),
        Part::memory("prefix cache", Prefix::bytes_for(limits, stateful)),
        Part::memory("penalties", History::bytes_for(vocab)),
        Part::memory("request tables", per_slot.iter().sum()),
        Part::memory("counters and gauges", shown),
        Part::memory("channels", channels),
        Part::bound("masks of constraints", masks),
        Part::bound("prompts that wait", waiting.saturating_mul(context).saturating_mul(size_of::<TokenId>())),
    ]
}
