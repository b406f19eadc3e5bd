//! TQ2_0: 256 weights, `value = (code - 1) * d`.
//!
//! `codes [64] | d f16`, the codes as in Q2_K. Source: ggml `block_tq2_0`, `dequantize_row_tq2_0`.

use super::q2_k::two_bits;
use super::{Block256, f16_at};

pub(crate) const BYTES: usize = 64 + 2;
const _: () = assert!(BYTES == 66);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let mut code = two_bits(&b[..64]);
    for code in &mut code {
        *code -= 1;
    }
    Block256 { d: f16_at(b, 64), dmin: 0.0, code, scale: [1; 16], min: [0; 16] }
}
