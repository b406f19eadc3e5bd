//! The tensors of an MTP head in a checkpoint, and how each becomes one of a GGUF head: dialect H, with its values.
//!
//! ```text
//! SOURCES (names, steps) ─┐
//! wanted tensors          ├─► plan ─► Conversion ─► Recipe::reader ─► bytes of one GGUF tensor
//! Checkpoint ─────────────┘
//! ```
//! Every tensor under `mtp.` is used, or left out for a reason that is told; anything else is a fault, and so is a wanted
//! tensor that none gives. Nothing is read before all of that is known.
//!
//! Source: llama.cpp `conversion/qwen.py`, `nemotron.py`, `qwen4exp.py`.

mod names;
mod plan;
mod read;
#[cfg(test)]
mod tests;

pub use names::{SOURCES, Source, Step};
pub use plan::{Conversion, Fault, Geometry, Recipe, Wanted, plan};

/// Whether a name of a checkpoint can only be one of a head, whatever stands in front of `mtp.`.
pub fn is_head(name: &str) -> bool {
    super::is_top_level_head(name)
}

/// The names that a checkpoint has for the tensor of this canonical name, `E` standing for the number of an expert. Of
/// alternatives all are named.
pub fn source_names<'a>(arch: &'a str, canonical: &str) -> impl Iterator<Item = String> + use<'a> {
    let stem = super::local(canonical);
    SOURCES.iter().filter(move |s| s.is_for(arch) && s.canonical == stem).map(|s| format!("mtp.{}", s.found))
}
