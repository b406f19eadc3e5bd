//! Fixtures, the toy model, GGUF writer presets.

pub mod fixtures;
pub mod toy;
