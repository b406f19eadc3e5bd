//! Q4_K: 256 weights, `value = (d * scale) * code - dmin * min`, 6-bit scale and min per 32.
//!
//! `d f16 | dmin f16 | scales [12] | nibbles [128]`. Sub-blocks 2c and 2c+1 are the low and the high nibbles of bytes
//! 32c..32c+32. Source: ggml `block_q4_K`, `get_scale_min_k4`, `dequantize_row_q4_K`.

use super::{Block256, f16_at};

pub(crate) const BYTES: usize = 2 + 2 + 12 + 128;
const _: () = assert!(BYTES == 144);

/// The eight 6-bit scales and mins, each repeated for both 16s of its 32.
#[inline(always)]
pub(super) fn scales_mins(b: &[u8]) -> ([i8; 16], [u8; 16]) {
    let pick = |j: usize| {
        if j < 4 {
            (b[j] & 63, b[j + 4] & 63)
        } else {
            (b[j + 4] & 15 | b[j - 4] >> 6 << 4, b[j + 4] >> 4 | b[j] >> 6 << 4)
        }
    };
    (std::array::from_fn(|j| pick(j / 2).0 as i8), std::array::from_fn(|j| pick(j / 2).1))
}

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let (scale, min) = scales_mins(&b[4..16]);
    let mut code = [0; 256];
    for (low, code) in b[16..].as_chunks::<32>().0.iter().zip(code.as_chunks_mut::<64>().0) {
        for i in 0..32 {
            (code[i], code[32 + i]) = ((low[i] & 15) as i8, (low[i] >> 4) as i8);
        }
    }
    Block256 { d: f16_at(b, 0), dmin: f16_at(b, 2), code, scale, min }
}
