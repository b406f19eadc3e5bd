//! Models: hyperparameters, tensor lists, and the forward pass as an op table.
//!
//! ```text
//! Meta ─► Config ─┐
//!                 ├─► Plan (program + wanted tensors + what is wrong) ─► Weights ─► the executor
//! tensors ────────┘
//! ```
//!
//! Adding an architecture is a variant of [`config::Arch`], its keys and checks in `config`, and one straight-line builder,
//! which names its tensors where it uses them: what is asked for is what must be there.

mod builder;
pub mod config;
pub mod conventions;
mod counts;
mod dialect;
pub mod error;
mod ffn;
pub mod graft;
pub mod head;
mod keys;
mod llama;
pub mod load;
mod mtp_block;
mod nemotron_h;
mod op;
pub mod plan;
pub mod preflight;
pub mod program;
mod qwen35;
mod qwen4exp;
pub mod requantize;
pub mod schema;
mod sidecar;
pub mod stage;
pub mod tensors;

pub use config::Config;
pub use error::ModelError;
pub use load::Model;
pub use plan::MtpStatus;
