//! Work for who measures what a machine can do at best with the kernels of the executor: nothing here knows the time, and
//! nothing that serves uses it.

use std::sync::Arc;

use engine_kernels::{Input, InputScratch, Matrix, matmul};

use crate::exec::{Activation, Isa, Pool};

pub use engine_kernels::Quant;
pub use engine_kernels::cpu::peak::{ReadBuffer, fma_chains, fma_per_turn, int8_chains, int8_per_turn};

/// A matrix that caches hold, and so many rows that its weights are read once for many products.
const N: usize = 1024;
const K: usize = 2048;
const ROWS: usize = 64;

/// A product of a matrix in the kernels' own layout with rows, again and again.
pub struct Product {
    matrix: Matrix,
    rows: Vec<f32>,
    dst: Vec<f32>,
    scratch: InputScratch,
}

impl Product {
    /// Multiplications with a weight that [`Self::run`] does.
    pub const MULTIPLICATIONS: usize = N * K * ROWS;

    /// Of arbitrary weights.
    pub fn new(quant: Quant) -> Self {
        let mut matrix = Matrix::new(quant, N, K, Arc::new(weights(quant))).expect("whole blocks");
        matrix.repack();
        let rows = (0..ROWS * K).map(|i| ((i * 7919 + 13) % 1021) as f32 / 1021.0 - 0.5).collect();
        Self { matrix, rows, dst: vec![0.0; ROWS * N], scratch: InputScratch::new() }
    }

    /// Bytes a weight, as kernels read it.
    pub fn weight_bytes(&self) -> f64 {
        self.matrix.bytes() as f64 / (N * K) as f64
    }

    /// Multiplies once, with quantised activations, and returns the last output.
    ///
    /// # Panics
    /// If the machine does not have the instruction set.
    pub fn run(&mut self, pool: &Pool, isa: Isa) -> f32 {
        let mut input = Input::new(&mut self.scratch, &self.rows, ROWS, K);
        matmul(pool, isa, Activation::Integer, &mut input, &mut [(&self.matrix, &mut self.dst)]);
        self.dst[ROWS * N - 1]
    }
}

/// Arbitrary codes; bytes stay below 0x40, so that every float among them is finite and small.
fn weights(quant: Quant) -> Vec<u8> {
    let mut state = 1u64;
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8 & 0x3f
    };
    (0..N * quant.row_bytes(K)).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_can_be_multiplied() {
        let pool = Pool::new(1);
        for quant in Quant::ALL {
            let mut product = Product::new(quant);
            let out = product.run(&pool, Isa::best());
            assert!(out.is_finite() && out != 0.0, "{}: {out}", quant.name());
            assert!((0.1..=4.0).contains(&product.weight_bytes()), "{}", quant.name());
        }
    }
}
