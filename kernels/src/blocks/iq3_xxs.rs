//! IQ3_XXS: 256 weights, `value = (d * (scale + 1/2) / 2) * +-point`, 4-bit scale per 32, points of 4.
//!
//! `d f16 | index [64] | 8 x signs and scale u32`, the dwords as in IQ2_XXS: eight signs for two points.
//! Scales are kept as `2 * scale + 1`, so d is divided by 4. Source: ggml `block_iq3_xxs`, `dequantize_row_iq3_xxs`.

use super::grids::{IQ3_XXS, even_signs, put_signed};
use super::{Block256, f16_at, u32_at};

pub(crate) const BYTES: usize = 2 + 64 + 32;
const _: () = assert!(BYTES == 98);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let mut scale = [0; 16];
    let mut code = [0; 256];
    for (j, code) in code.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let packed = u32_at(b, 66 + 4 * j);
        let s = (2 * (packed >> 28) + 1) as i8;
        (scale[2 * j], scale[2 * j + 1]) = (s, s);
        for (l, code) in code.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let (signs, at) = (even_signs(packed >> (7 * l)), 2 + 8 * j + 2 * l);
            put_signed(&mut code[..4], &IQ3_XXS[usize::from(b[at])], signs);
            put_signed(&mut code[4..], &IQ3_XXS[usize::from(b[at + 1])], signs >> 4);
        }
    }
    Block256 { d: f16_at(b, 0) * 0.25, dmin: 0.0, code, scale, min: [0; 16] }
}
