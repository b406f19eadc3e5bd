//! What is tied to the machine: worker threads, instruction sets, shared buffers. `unsafe` lives here and nowhere else
//! in the crate.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub mod detect;
pub(crate) mod disjoint;
pub(crate) mod groups;
pub(crate) mod lanes;
mod lists;
pub(crate) mod matmul;
pub(crate) mod pages;
pub mod peak;
pub mod pool;
