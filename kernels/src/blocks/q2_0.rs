//! Q2_0: 64 weights, `value = (code - 1) * d`.
//!
//! `d f16 | codes [16]`, four to a byte, lowest first. Source: ggml `block_q2_0`, `dequantize_row_q2_0`.

use super::{Block32, f16_at};

pub(crate) const BYTES: usize = 2 + 16;
const _: () = assert!(BYTES == 18);

/// Weights 32 `sub`..32 `sub` + 32.
#[inline(always)]
pub(crate) fn decode(b: &[u8], sub: usize) -> Block32 {
    let mut code = [0; 32];
    for (i, code) in code.iter_mut().enumerate() {
        *code = (b[2 + 8 * sub + i / 4] >> (2 * (i % 4)) & 3) as i8 - 1;
    }
    Block32 { d: f16_at(b, 0), m: 0.0, code }
}
