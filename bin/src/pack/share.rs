//! Blocks in words: how many there are, and which of them a stage has. The MTP block is counted apart everywhere.

use std::fmt;

use engine::model::Config;
use engine::model::stage::{Held, Stage};
use serde::Serialize;

/// The part of a model that one stage is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StageShare {
    /// Which, from 0.
    pub index: u32,
    /// Of how many.
    pub count: u32,
    /// First block.
    pub first: usize,
    /// Behind its last block of the trunk.
    pub end: usize,
    /// Blocks of the whole trunk.
    pub trunk: usize,
    /// It has the MTP block.
    pub mtp: bool,
}

impl StageShare {
    /// Of a file that says so.
    pub fn of(held: &Held, config: &Config) -> Self {
        let (first, end, trunk) = (held.blocks.start, held.blocks.end, config.trunk);
        Self { index: held.index, count: held.count, first, end, trunk, mtp: end == trunk && config.nextn > 0 }
    }

    /// Of a stage that was asked for.
    pub fn planned((index, count): (u32, u32), stage: &Stage, config: &Config) -> Self {
        let mtp = stage.is_last() && config.nextn > 0;
        Self { index, count, first: stage.first.0, end: stage.end.0, trunk: stage.trunk, mtp }
    }
}

impl fmt::Display for StageShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, count, first, end, trunk, mtp } = *self;
        let blocks = blocks(first as u32, (end + usize::from(mtp)) as u32, mtp);
        write!(f, "{index} of {count} (counted from 0): {blocks}, of a trunk of {trunk}")
    }
}

/// Blocks `first` to before `end`, which counts the MTP block where there is one.
pub fn blocks(first: u32, end: u32, mtp: bool) -> String {
    let trunk = end.saturating_sub(u32::from(mtp));
    let own = match trunk.saturating_sub(first) {
        0 => "no block".to_owned(),
        1 => format!("block {first}"),
        _ => format!("blocks {first} to {}", trunk - 1),
    };
    if mtp { format!("{own} and the MTP block (blk.{trunk})") } else { own }
}

/// How many blocks a model has: those of the trunk, and the MTP block.
pub fn counted(trunk: u32, mtp: bool) -> String {
    let s = if trunk == 1 { "" } else { "s" };
    if mtp {
        format!("{trunk} block{s} and 1 MTP block (blk.{trunk})")
    } else {
        format!("{trunk} block{s}, no MTP block")
    }
}
