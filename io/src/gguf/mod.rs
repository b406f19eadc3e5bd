//! The GGUF format: header, metadata, tensor directory. Versions 2 and 3, little-endian.
//!
//! ```text
//! "GGUF" | version u32 | tensor count u64 | key count u64
//! keys:    name (u64 length, bytes) | value type u32 | value
//! tensors: name | dims u32 | dim u64 x dims | type u32 | offset u64 (from the data start)
//! padding to general.alignment, then the data section
//! ```
//!
//! Source: ggml `docs/gguf.md`.

pub mod keys;
pub mod layers;
pub mod meta;
pub mod read;
pub mod types;
pub mod write;

#[cfg(test)]
mod tests;

pub use layers::LayerCounts;
pub use meta::{Array, Meta, StrArray, Value};
pub use read::{Gguf, TensorInfo};
pub use types::{TensorType, ValueType};
