//! IQ4_NL: 32 weights, `value = table[nibble] * d`.
//!
//! Laid out as Q4_0. Source: ggml `block_iq4_nl`, `dequantize_row_iq4_nl`.

use super::{Block32, IQ4_VALUES, f16_at};

pub(crate) const BYTES: usize = 2 + 16;
const _: () = assert!(BYTES == 18);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block32 {
    let mut code = [0; 32];
    for i in 0..16 {
        code[i] = IQ4_VALUES[usize::from(b[2 + i] & 15)];
        code[16 + i] = IQ4_VALUES[usize::from(b[2 + i] >> 4)];
    }
    Block32 { d: f16_at(b, 0), m: 0.0, code }
}
