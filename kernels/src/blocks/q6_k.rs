//! Q6_K: 256 weights, `value = (d * scale) * (code - 32)`, int8 scale per 16.
//!
//! `low nibbles [128] | high bits [64] | scales [16] | d f16`. Half h: sub-blocks 0 and 2 are the low and high nibbles
//! of its first 32 low bytes, 1 and 3 of the next 32; bits 2t of its 32 high bytes belong to sub-block t.
//! Source: ggml `block_q6_K`, `dequantize_row_q6_K`.

use super::{Block256, f16_at};

pub(crate) const BYTES: usize = 128 + 64 + 16 + 2;
const _: () = assert!(BYTES == 210);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let mut code = [0; 256];
    let halves = b[..128].as_chunks::<64>().0.iter().zip(b[128..192].as_chunks::<32>().0);
    for ((low, high), code) in halves.zip(code.as_chunks_mut::<128>().0) {
        for i in 0..32 {
            code[i] = (low[i] & 15 | (high[i] & 3) << 4) as i8 - 32;
            code[32 + i] = (low[32 + i] & 15 | (high[i] >> 2 & 3) << 4) as i8 - 32;
            code[64 + i] = (low[i] >> 4 | (high[i] >> 4 & 3) << 4) as i8 - 32;
            code[96 + i] = (low[32 + i] >> 4 | (high[i] >> 6) << 4) as i8 - 32;
        }
    }
    Block256 { d: f16_at(b, 208), dmin: 0.0, code, scale: std::array::from_fn(|j| b[192 + j] as i8), min: [0; 16] }
}
