//! Stages: contiguous ranges of a trunk's blocks, each run by a process of its own.
//!
//! ```text
//! stage 0       token table ─► blk.0 .. blk.(s-1) ─► activations of every row
//! last stage    activations ─► blk.s .. ─► output norm, LM head, MTP block
//! ```
//! A stage asks for the tensors of its own blocks and of nothing else: what belongs to another stage may be missing, of
//! another shape or on another machine. What crosses a border is the residual: a row of the model's width, or all
//! residual streams of a row.

use std::fmt;
use std::ops::Range;

use engine_io::ModelFile;
use engine_io::package::stages::{self, Needs};

use super::config::Config;
use super::error::ModelError;

/// A block by its number in the file (`blk.N`). Rows of caches and states are counted within a stage, from 0, and are
/// plain indices: the two never mix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BlockId(pub usize);

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blk.{}", self.0)
    }
}

/// Which stage of a split model a process is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StageChoice {
    /// From 0.
    pub index: u32,
    /// Stages in all: 2.
    pub count: u32,
    /// First block of the last stage; `None` = as the file says, else where both stages weigh the same.
    pub split: Option<u32>,
}

/// The blocks of one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stage {
    /// First block.
    pub first: BlockId,
    /// Behind the last block of the trunk that is run here.
    pub end: BlockId,
    /// Blocks of the whole trunk.
    pub trunk: usize,
}

impl Stage {
    /// A model in one process.
    pub fn whole(trunk: usize) -> Self {
        Self { first: BlockId(0), end: BlockId(trunk), trunk }
    }

    /// Its blocks, by their numbers in the file.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + use<> {
        (self.first.0..self.end.0).map(BlockId)
    }

    /// Whether tokens are embedded here.
    pub fn is_first(&self) -> bool {
        self.first.0 == 0
    }

    /// Whether tokens are chosen here. The MTP block is here too.
    pub fn is_last(&self) -> bool {
        self.end.0 == self.trunk
    }

    /// Whether there is no other.
    pub fn is_whole(&self) -> bool {
        self.is_first() && self.is_last()
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks {}..{} of {}", self.first.0, self.end.0, self.trunk)
    }
}

/// Keys of a file that holds the tensors of one stage, u32 each.
pub const STAGE_KEYS: [&str; 4] =
    ["engine.stage.index", "engine.stage.count", "engine.stage.first", "engine.stage.end"];

/// The stage that a file says it holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// Which, from 0.
    pub index: u32,
    /// Of how many.
    pub count: u32,
    /// Its blocks of the trunk.
    pub blocks: Range<usize>,
}

/// What a file says of itself; `None` for a whole model.
///
/// # Errors
/// Keys of a stage that are not all there, or no numbers.
pub fn held(model: &ModelFile) -> Result<Option<Held>, ModelError> {
    let meta = model.meta();
    if STAGE_KEYS.iter().all(|key| meta.get(key).is_none()) {
        return Ok(None);
    }
    let [index, count, first, end] = STAGE_KEYS;
    Ok(Some(Held {
        index: meta.require_u32(index)?,
        count: meta.require_u32(count)?,
        blocks: meta.require_u32(first)? as usize..meta.require_u32(end)? as usize,
    }))
}

/// The blocks that a process runs: all, or those that `choice` and the file agree on.
///
/// # Errors
/// [`ModelError::Stage`] if the two contradict each other, or one of them the number of blocks.
pub fn resolve(model: &ModelFile, config: &Config, choice: Option<StageChoice>) -> Result<Stage, ModelError> {
    let trunk = config.trunk;
    let refuse = |reason: String| Err(ModelError::Stage { file: model.name(), reason });
    let stated = held(model)?;
    let Some(choice) = choice else {
        return match stated {
            None => Ok(Stage::whole(trunk)),
            Some(s) => refuse(format!(
                "it holds stage {} of {} alone (blocks {}..{}); serve it with --stage {}/{}, or give the whole model",
                s.index, s.count, s.blocks.start, s.blocks.end, s.index, s.count
            )),
        };
    };
    let StageChoice { index, count, split } = choice;
    if count != 2 || index >= count {
        return refuse(format!("stage {index} of {count} was asked for; a model is split into stages 0/2 and 1/2"));
    }
    if trunk < 2 {
        return refuse(format!("its trunk has {trunk} block; a model is split between two blocks"));
    }
    let border = match stated {
        None => split.map_or_else(|| balanced(model, config), |split| split as usize),
        Some(s) => {
            if (s.index, s.count) != (index, count) {
                return refuse(format!(
                    "it holds stage {} of {}, and --stage {index}/{count} was asked for",
                    s.index, s.count
                ));
            }
            let border = if index == 0 { s.blocks.end } else { s.blocks.start };
            let other_end = if index == 0 { s.blocks.start == 0 } else { s.blocks.end == trunk };
            if !other_end {
                return refuse(format!(
                    "engine.stage.first and engine.stage.end are {} and {} for stage {index} of {count}, and the trunk has \
                     {trunk} blocks; a stage reaches to the end of the trunk that is its own",
                    s.blocks.start, s.blocks.end
                ));
            }
            if let Some(split) = split.filter(|split| *split as usize != border) {
                return refuse(format!("it was cut at block {border}, and --stage-split {split} was asked for"));
            }
            border
        }
    };
    if !(1..trunk).contains(&border) {
        return refuse(format!(
            "a split at block {border} was asked for; expected 1 to {} of {trunk} blocks",
            trunk - 1
        ));
    }
    let (first, end) = if index == 0 { (0, border) } else { (border, trunk) };
    Ok(Stage { first: BlockId(first), end: BlockId(end), trunk })
}

/// Which tensors the stages of a model need, and with it where to cut: packages, preflight and processes ask here.
pub fn needs(model: &ModelFile, config: &Config) -> Needs {
    let head = (config.nextn == 1).then_some(config.trunk as u32);
    let ngram = config.qwen4exp.as_ref().and_then(|own| Some(own.ngram.as_ref()?.block as u32));
    Needs::of(model.tensors(), config.trunk as u32 + u32::from(head.is_some()), head, ngram)
}

/// First block of the last stage such that the larger stage is as small as can be.
fn balanced(model: &ModelFile, config: &Config) -> usize {
    let ranges = stages::ranges(model.tensors(), &needs(model, config), 2, None);
    ranges.expect("a trunk of two blocks or more can be cut")[1].start as usize
}
