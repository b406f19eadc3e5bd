//! What a sweep did, as its result file tells it.

use engine::api::Strategy;
use engine_io::digest::Sha256;
use serde::{Deserialize, Serialize};

use super::grid::Grid;
use crate::bench::result::{Settings, Spread};

/// A sweep. While it is not done, the result beside it has no arms.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SweepFacts {
    /// Whether the arms of the result are the finalists, side by side over all sessions.
    pub done: bool,
    /// Digest of the recordings, file after file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recordings_sha256: Option<Sha256>,
    /// What was tried.
    pub grid: Grid,
    /// One of so many cells goes on to the next rung, which has so many times the sessions.
    pub keep_one_in: usize,
    /// Sessions of each source in the first rung.
    pub first_sessions: usize,
    /// The rungs, each with the cells that the one before it kept.
    pub rungs: Vec<Rung>,
}

/// A rung: cells over the same sessions.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Rung {
    /// Most sessions of each source.
    pub sessions_n: usize,
    /// Cells to run.
    pub cells_n: usize,
    /// Those that were run, in order.
    pub cells: Vec<Cell>,
}

/// A cell, run beside `off`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// Its name.
    pub label: String,
    /// Who drafts.
    pub strategy: Strategy,
    /// How.
    #[serde(default)]
    pub settings: Settings,
    /// Tokens a second while decoding.
    pub decode_tok_s: Spread,
    /// Those of `off` beside it, the median.
    #[serde(default)]
    pub off_tok_s: f64,
    /// The one against the other; 0 where there is nothing to hold it against.
    #[serde(default)]
    pub speedup: f64,
    /// Accepted of drafted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acceptance_rate: Option<f64>,
    /// Its output is not that of `off`, so that it cannot go on.
    #[serde(default)]
    pub void: bool,
    /// Whether it goes on to the next rung; known when its rung is done.
    #[serde(default)]
    pub kept: bool,
}
