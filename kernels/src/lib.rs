//! Numbers in buffers. Knows no file, request or model name.

pub mod cpu;
pub mod ops;
#[cfg(test)]
mod test_noise;

pub use cpu::detect::Isa;
pub use cpu::pool::{Pass, Pool};
