//! IQ3_S: 256 weights, `value = (d * (2 * scale + 1)) * +-point`, 4-bit scale per 32, points of 4.
//!
//! `d f16 | index [64] | high [8] | signs [32] | scales [4]`. Bit l of `high` j is the ninth bit of index 8j + l; a
//! byte of signs is for two points; the scale of sub-block j is nibble j.
//! Source: ggml `block_iq3_s`, `dequantize_row_iq3_s`.

use super::grids::{IQ3_S, put_signed};
use super::{Block256, f16_at};

pub(crate) const BYTES: usize = 2 + 64 + 8 + 32 + 4;
const _: () = assert!(BYTES == 110);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let mut scale = [0; 16];
    let mut code = [0; 256];
    for (l, code) in code.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let index = usize::from(b[2 + l]) | usize::from(b[66 + l / 8] >> (l % 8) & 1) << 8;
        put_signed(code, &IQ3_S[index], b[74 + l / 2] >> (4 * (l % 2)));
    }
    for (j, scale) in scale.iter_mut().enumerate() {
        *scale = (2 * (b[106 + j / 4] >> (4 * (j / 2 % 2)) & 15) + 1) as i8;
    }
    Block256 { d: f16_at(b, 0), dmin: 0.0, code, scale, min: [0; 16] }
}
