//! Q1_0: 128 weights, `value = d` where the bit is set, else `-d`.
//!
//! `d f16 | bits [16]`, lowest first. Source: ggml `block_q1_0`, `dequantize_row_q1_0`.

use super::{Block32, f16_at, u32_at};

pub(crate) const BYTES: usize = 2 + 16;
const _: () = assert!(BYTES == 18);

/// Weights 32 `sub`..32 `sub` + 32.
#[inline(always)]
pub(crate) fn decode(b: &[u8], sub: usize) -> Block32 {
    let bits = u32_at(b, 2 + 4 * sub);
    let mut code = [0; 32];
    for (i, code) in code.iter_mut().enumerate() {
        *code = (2 * (bits >> i & 1)) as i8 - 1;
    }
    Block32 { d: f16_at(b, 0), m: 0.0, code }
}
