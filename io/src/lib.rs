//! Bytes outside, typed values inside. Knows no request, no kernel and no forward pass.
//!
//! - [`shards::ModelFile`] opens a model: one GGUF file, any shard of a split one, a directory, or static bytes.
//! - [`gguf`] reads and writes the GGUF format itself: every value and tensor type, runnable or not.
//! - [`package`] is the same for layer packages, whose manifest also says how to draft.
//! - [`compat`] is the table of names that tensors of MTP heads go by, and how the head of a [`checkpoint`] becomes one of
//!   GGUF.
//! - [`digest`] names files, tensors and whole directories of tensors by SHA-256; [`provenance`] is the record of what a
//!   file was made from.
//! - [`made`] reads what is made a piece at a time.
//! - [`text`] is the way between characters and token ids: vocabularies, pre-tokenizers, BPE, chat templates.
//! - [`plain`] opens whatever file somebody names, and refuses pipes and devices in its place; [`json`] reads documents in
//!   which no key stands twice.
//! - [`trace`] reads and writes recorded sessions, our own and those of other tools.
//! - [`mmap`] is the one place with `unsafe`: read-only mappings, and the answer to a file that shrinks under one.
//! - [`watch::FileWatch`] tells whether mapped files are still what they were.
//! - [`error::Error`] is what all of them answer to bad input: file, key or tensor, found, expected, what to do.
//!
//! What is absent: nothing here waits, allocates by a number a file claims, or panics on file data.

pub mod checkpoint;
pub mod compat;
pub mod digest;
pub mod error;
pub mod gguf;
mod heap;
pub mod json;
pub mod made;
pub mod mmap;
pub mod package;
pub mod plain;
pub mod provenance;
pub mod shards;
pub mod text;
pub mod trace;
pub mod watch;

pub use error::{Error, Result};
pub use gguf::types::TensorType;
pub use package::Package;
pub use shards::{Bytes, ModelFile, OpenOptions};
pub use watch::FileWatch;
