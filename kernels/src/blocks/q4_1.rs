//! Q4_1: 32 weights, `value = nibble * d + m`.
//!
//! `d f16 | m f16 | 16 bytes`: low nibbles are weights 0..16, high nibbles 16..32.
//! Source: ggml `block_q4_1`, `dequantize_row_q4_1`.

use super::encode::{put_f16, put_nibbles};
use super::search::{inverse, range};
use super::{Block32, f16_at};

pub(crate) const BYTES: usize = 2 + 2 + 16;
const _: () = assert!(BYTES == 20);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block32 {
    let mut code = [0; 32];
    for i in 0..16 {
        code[i] = (b[4 + i] & 15) as i8;
        code[16 + i] = (b[4 + i] >> 4) as i8;
    }
    Block32 { d: f16_at(b, 0), m: f16_at(b, 2), code }
}

/// Source: ggml `quantize_row_q4_1_ref`.
pub(super) fn encode(x: &[f32; 32], b: &mut [u8]) {
    let (min, max) = range(x);
    let d = (max - min) / 15.0;
    let inverse = inverse(d);
    put_f16(b, 0, d);
    put_f16(b, 2, min);
    put_nibbles(&x.map(|x| (((x - min) * inverse + 0.5) as u8).min(15)), &mut b[4..]);
}
