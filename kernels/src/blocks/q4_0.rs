//! Q4_0: 32 weights, `value = (nibble - 8) * d`.
//!
//! `d f16 | 16 bytes`: low nibbles are weights 0..16, high nibbles 16..32.
//! Source: ggml `block_q4_0`, `dequantize_row_q4_0`.

use super::{Block32, f16_at};

pub(crate) const BYTES: usize = 2 + 16;
const _: () = assert!(BYTES == 18);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block32 {
    let mut code = [0; 32];
    for i in 0..16 {
        code[i] = (b[2 + i] & 15) as i8 - 8;
        code[16 + i] = (b[2 + i] >> 4) as i8 - 8;
    }
    Block32 { d: f16_at(b, 0), m: 0.0, code }
}
