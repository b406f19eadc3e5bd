//! Q6_K: 256 weights, `value = (d * scale) * (code - 32)`, int8 scale per 16.
//!
//! `low nibbles [128] | high bits [64] | scales [16] | d f16`. Half h: sub-blocks 0 and 2 are the low and high nibbles
//! of its first 32 low bytes, 1 and 3 of the next 32; bits 2t of its 32 high bytes belong to sub-block t.
//! Source: ggml `block_q6_K`, `dequantize_row_q6_K`.

use super::encode::put_f16;
use super::search::{NOTHING, extreme, nearest, symmetric};
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

/// Source: ggml `quantize_row_q6_K_ref`.
pub(super) fn encode(x: &[f32; 256], b: &mut [u8]) {
    let mut code = [0u8; 256];
    let mut scale = [0.0f32; 16];
    for (j, (x, code)) in x.as_chunks::<16>().0.iter().zip(code.as_chunks_mut::<16>().0).enumerate() {
        scale[j] = symmetric(x, 32, code);
    }
    let max = extreme(&scale);
    b.fill(0);
    if max.abs() < NOTHING {
        return;
    }
    let inverse = -128.0 / max;
    put_f16(b, 208, 1.0 / inverse);
    let d = f16_at(b, 208);
    for (j, (x, code)) in x.as_chunks::<16>().0.iter().zip(code.as_chunks_mut::<16>().0).enumerate() {
        let scale = nearest(inverse * scale[j]).min(127) as i8;
        b[192 + j] = scale as u8;
        let d = d * f32::from(scale);
        if d != 0.0 {
            *code = x.map(|x| (nearest(x / d).clamp(-32, 31) + 32) as u8);
        }
    }
    for (half, code) in code.as_chunks::<128>().0.iter().enumerate() {
        for i in 0..32 {
            let [a, b1, c, e] = [code[i], code[32 + i], code[64 + i], code[96 + i]];
            b[64 * half + i] = a & 15 | c << 4;
            b[64 * half + 32 + i] = b1 & 15 | e << 4;
            b[128 + 32 * half + i] = a >> 4 | b1 >> 4 << 2 | c >> 4 << 4 | e >> 4 << 6;
        }
    }
}
