//! IQ2_XXS: 256 weights, `value = (d * (scale + 1/2) / 4) * +-point`, 4-bit scale per 32.
//!
//! `d f16 | 8 x (index [4] | signs and scale u32)`: bits 7l of the dword are the signs of point l, bits 28..32 the
//! scale.
//! Scales are kept as `2 * scale + 1`, so d is divided by 8. Source: ggml `block_iq2_xxs`, `dequantize_row_iq2_xxs`.

use super::grids::{IQ2_XXS, even_signs, put_signed};
use super::{Block256, f16_at, u32_at};

pub(crate) const BYTES: usize = 2 + 64;
const _: () = assert!(BYTES == 66);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let mut scale = [0; 16];
    let mut code = [0; 256];
    for (j, code) in code.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let packed = u32_at(b, 6 + 8 * j);
        let s = (2 * (packed >> 28) + 1) as i8;
        (scale[2 * j], scale[2 * j + 1]) = (s, s);
        for (l, code) in code.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            put_signed(code, &IQ2_XXS[usize::from(b[2 + 8 * j + l])], even_signs(packed >> (7 * l)));
        }
    }
    Block256 { d: f16_at(b, 0) * 0.125, dmin: 0.0, code, scale, min: [0; 16] }
}
