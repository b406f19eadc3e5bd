//! Numbers in buffers. Knows no file, request or model name.

mod blocks;
pub mod cpu;
pub mod input;
pub mod matmul;
pub mod matrix;
pub mod ops;
mod panel;
pub mod quant;
#[cfg(test)]
mod test_data;
#[cfg(test)]
mod test_noise;
#[cfg(test)]
mod test_windows;

pub use cpu::detect::Isa;
pub use cpu::pool::{Pass, Pool};
pub use input::{Input, InputScratch};
pub use matmul::{OUTPUTS, Product, matmul, scratch_bytes};
pub use matrix::{Matrix, ShapeError, SharedBytes};
pub use quant::{Activation, Quant};
