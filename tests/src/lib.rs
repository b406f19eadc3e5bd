//! Fixtures, the toy model, GGUF writer presets.

pub mod drive;
pub mod edits;
pub mod fixtures;
pub mod toy;
