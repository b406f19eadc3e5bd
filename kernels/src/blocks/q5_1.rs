//! Q5_1: 32 weights, `value = code * d + m`.
//!
//! `d f16 | m f16 | high bits u32 | 16 bytes`, otherwise as Q5_0. Source: ggml `block_q5_1`, `dequantize_row_q5_1`.

use super::encode::{fifth_bits, put_f16, put_nibbles};
use super::search::{inverse, range};
use super::{Block32, f16_at, u32_at};

pub(crate) const BYTES: usize = 2 + 2 + 4 + 16;
const _: () = assert!(BYTES == 24);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block32 {
    let high = u32_at(b, 4);
    let mut code = [0; 32];
    for i in 0..16 {
        code[i] = (b[8 + i] & 15) as i8 + ((high >> i & 1) << 4) as i8;
        code[16 + i] = (b[8 + i] >> 4) as i8 + ((high >> (16 + i) & 1) << 4) as i8;
    }
    Block32 { d: f16_at(b, 0), m: f16_at(b, 2), code }
}

/// Source: ggml `quantize_row_q5_1_ref`.
pub(super) fn encode(x: &[f32; 32], b: &mut [u8]) {
    let (min, max) = range(x);
    let d = (max - min) / 31.0;
    let inverse = inverse(d);
    let code = x.map(|x| ((x - min) * inverse + 0.5) as u8);
    put_f16(b, 0, d);
    put_f16(b, 2, min);
    b[4..8].copy_from_slice(&fifth_bits(&code));
    put_nibbles(&code, &mut b[8..]);
}
