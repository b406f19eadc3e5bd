//! Q5_K: 256 weights, `value = (d * scale) * code - dmin * min`, 6-bit scale and min per 32.
//!
//! `d f16 | dmin f16 | scales [12] | high bits [32] | nibbles [128]`. As Q4_K, and bit j of high byte i is the fifth bit
//! of weight i of sub-block j. Source: ggml `block_q5_K`, `dequantize_row_q5_K`.

use super::{Block256, f16_at, q4_k::scales_mins};

pub(crate) const BYTES: usize = 2 + 2 + 12 + 32 + 128;
const _: () = assert!(BYTES == 176);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let (scale, min) = scales_mins(&b[4..16]);
    let code = std::array::from_fn(|k| {
        let (sub, i) = (k / 32, k % 32);
        let low = b[48 + 32 * (sub / 2) + i] >> (4 * (sub % 2)) & 15;
        let high = b[16 + i] >> sub & 1;
        (low | high << 4) as i8
    });
    Block256 { d: f16_at(b, 0), dmin: f16_at(b, 2), code, scale, min }
}
