//! IQ1_S: 256 weights, `value = (d * (2 * scale + 1)) * (point +- 1/8)` with points of -1, 0, 1.
//!
//! `d f16 | index [32] | high u16 [8]`. Sub-block j of 32 has indices 4j..4j+4; bits 3l of `high` j are the upper bits
//! of its index l, bits 12..15 its scale, bit 15 the sign of the eighth. Codes are 8 times point +- 1, so d is divided
//! by 8.
//! Source: ggml `block_iq1_s`, `dequantize_row_iq1_s`.

use super::grids::IQ1;
use super::{Block256, f16_at, u16_at};

pub(crate) const BYTES: usize = 2 + 32 + 16;
const _: () = assert!(BYTES == 50);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let mut scale = [0; 16];
    let mut code = [0; 256];
    for (j, code) in code.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let high = u16_at(b, 34 + 2 * j);
        let s = (2 * (high >> 12 & 7) + 1) as i8;
        (scale[2 * j], scale[2 * j + 1]) = (s, s);
        let eighth = if high & 0x8000 == 0 { 1 } else { -1 };
        for (l, code) in code.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let index = usize::from(b[2 + 4 * j + l]) | usize::from(high >> (3 * l) & 7) << 8;
            put_shifted(code, &IQ1[index], eighth);
        }
    }
    Block256 { d: f16_at(b, 0) * 0.125, dmin: 0.0, code, scale, min: [0; 16] }
}

/// A point and its eighth, times 8.
#[inline(always)]
pub(super) fn put_shifted(code: &mut [i8; 8], point: &[i8; 8], eighth: i8) {
    for (code, &point) in code.iter_mut().zip(point) {
        *code = point + eighth;
    }
}
