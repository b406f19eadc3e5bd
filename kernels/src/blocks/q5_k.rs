//! Q5_K: 256 weights, `value = (d * scale) * code - dmin * min`, 6-bit scale and min per 32.
//!
//! `d f16 | dmin f16 | scales [12] | high bits [32] | nibbles [128]`. As Q4_K, and bit j of high byte i is the fifth bit
//! of weight i of sub-block j. Source: ggml `block_q5_K`, `dequantize_row_q5_K`.

use super::q4_k::{codes, put_nibbles, scales_mins};
use super::search::Candidates;
use super::{Block256, f16_at};

pub(crate) const BYTES: usize = 2 + 2 + 12 + 32 + 128;
const _: () = assert!(BYTES == 176);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let (scale, min) = scales_mins(&b[4..16]);
    let high: &[u8; 32] = b[16..48].as_array().expect("32 bytes");
    let mut code = [0; 256];
    for (c, (low, code)) in b[48..].as_chunks::<32>().0.iter().zip(code.as_chunks_mut::<64>().0).enumerate() {
        for i in 0..32 {
            code[i] = (low[i] & 15 | (high[i] >> (2 * c) & 1) << 4) as i8;
            code[32 + i] = (low[i] >> 4 | (high[i] >> (2 * c + 1) & 1) << 4) as i8;
        }
    }
    Block256 { d: f16_at(b, 0), dmin: f16_at(b, 2), code, scale, min }
}

const CANDIDATES: Candidates = Candidates { top: 31, first: -0.5, step: 0.1, count: 15, absolute: false };

/// Source: ggml `quantize_row_q5_K_ref`.
pub(super) fn encode(x: &[f32; 256], b: &mut [u8]) {
    let code = codes(x, CANDIDATES, b);
    b[16..48].fill(0);
    for (j, code) in code.iter().enumerate() {
        b[16 + j % 32] |= (code >> 4) << (j / 32);
    }
    put_nibbles(&code, &mut b[48..]);
}
