//! IQ2_XS: 256 weights, `value = (d * (scale + 1/2) / 4) * +-point`, 4-bit scale per 16.
//!
//! `d f16 | points u16 [32] | scales [8]`. A point: 9 bits of index, 7 of signs. Scale j is nibble j.
//! Scales are kept as `2 * scale + 1`, so d is divided by 8. Source: ggml `block_iq2_xs`, `dequantize_row_iq2_xs`.

use super::grids::{IQ2_XS, even_signs, put_signed};
use super::{Block256, f16_at, u16_at};

pub(crate) const BYTES: usize = 2 + 64 + 8;
const _: () = assert!(BYTES == 74);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let mut code = [0; 256];
    for (l, code) in code.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let packed = u16_at(b, 2 + 2 * l);
        put_signed(code, &IQ2_XS[usize::from(packed & 511)], even_signs(u32::from(packed >> 9)));
    }
    Block256 { d: f16_at(b, 0) * 0.125, dmin: 0.0, code, scale: odd_scales(&b[66..]), min: [0; 16] }
}

/// `2 * scale + 1` of the sixteen nibbles.
#[inline(always)]
pub(super) fn odd_scales(nibbles: &[u8]) -> [i8; 16] {
    let mut scale = [0; 16];
    for (j, scale) in scale.iter_mut().enumerate() {
        *scale = (2 * (nibbles[j / 2] >> (4 * (j % 2)) & 15) + 1) as i8;
    }
    scale
}
