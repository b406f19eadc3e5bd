//! Q5_0: 32 weights, `value = (code - 16) * d`.
//!
//! `d f16 | high bits u32 | 16 bytes`: low nibbles are weights 0..16, high nibbles 16..32; bit i of the dword is the
//! fifth bit of weight i. Source: ggml `block_q5_0`, `dequantize_row_q5_0`.

use super::{Block32, f16_at, u32_at};

pub(crate) const BYTES: usize = 2 + 4 + 16;
const _: () = assert!(BYTES == 22);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block32 {
    let high = u32_at(b, 2);
    let mut code = [0; 32];
    for i in 0..16 {
        code[i] = (b[6 + i] & 15) as i8 + ((high >> i & 1) << 4) as i8 - 16;
        code[16 + i] = (b[6 + i] >> 4) as i8 + ((high >> (16 + i) & 1) << 4) as i8 - 16;
    }
    Block32 { d: f16_at(b, 0), m: 0.0, code }
}
