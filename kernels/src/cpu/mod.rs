//! What is tied to the machine: worker threads, instruction sets, shared buffers. `unsafe` lives here and nowhere else
//! in the crate.

pub mod detect;
pub(crate) mod disjoint;
pub(crate) mod groups;
pub(crate) mod matmul;
pub(crate) mod pages;
pub mod pool;
