//! The ridge of every weight format.

use std::hint::black_box;

use engine::exec::{Isa, Pool};
use engine::probe::{Product, Quant};
use serde::Serialize;

use super::machine::fastest;

const ROUNDS: usize = 9;

/// The kernel of a weight format.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FormatRoof {
    /// The format.
    pub format: &'static str,
    /// Bytes a weight as kernels read it.
    pub weight_bytes: f64,
    /// Multiplications with a weight a second, in 10^9, by all threads, with quantised activations.
    pub kernel_g: f64,
    /// Rows of a step that take as long to multiply as their weights to read: fewer are nearly free.
    pub ridge_rows: f64,
}

impl FormatRoof {
    /// Times the kernel with the workers of `pool`, on a machine that reads so much.
    pub fn measure(pool: &Pool, isa: Isa, quant: Quant, read_gb_s: f64) -> Self {
        let mut product = Product::new(quant);
        let seconds = fastest(pool, ROUNDS, || {
            black_box(product.run(pool, isa));
        });
        Self::of(quant, product.weight_bytes(), Product::MULTIPLICATIONS as f64 / seconds / 1e9, read_gb_s)
    }

    fn of(quant: Quant, weight_bytes: f64, kernel_g: f64, read_gb_s: f64) -> Self {
        let ridge_rows = kernel_g / (read_gb_s / weight_bytes);
        Self { format: quant.name(), weight_bytes, kernel_g, ridge_rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ridge_is_arithmetic_over_weights_read() {
        // 20 * 10^9 weights of half a byte a second, and 200 * 10^9 products.
        let roof = FormatRoof::of(Quant::Q4_0, 0.5, 200.0, 10.0);
        assert_eq!((roof.format, roof.ridge_rows), ("Q4_0", 10.0));
    }
}
