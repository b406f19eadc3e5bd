//! Q2_K: 256 weights, `value = (d * scale) * code - dmin * min`, 4-bit scale and min per 16.
//!
//! `scales [16] (low nibble scale, high nibble min) | codes [64] | d f16 | dmin f16`. Half h of the weights is in code
//! bytes 32h..32h+32, sub-block t of it in bits 2t. Source: ggml `block_q2_K`, `dequantize_row_q2_K`.

use super::{Block256, f16_at};

pub(crate) const BYTES: usize = 16 + 64 + 2 + 2;
const _: () = assert!(BYTES == 84);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    Block256 {
        d: f16_at(b, 80),
        dmin: f16_at(b, 82),
        code: two_bits(&b[16..80]),
        scale: std::array::from_fn(|j| (b[j] & 15) as i8),
        min: std::array::from_fn(|j| b[j] >> 4),
    }
}

/// The codes of 64 bytes.
#[inline(always)]
pub(super) fn two_bits(bytes: &[u8]) -> [i8; 256] {
    let mut code = [0; 256];
    for (two, code) in bytes.as_chunks::<32>().0.iter().zip(code.as_chunks_mut::<128>().0) {
        for (sub, code) in code.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for i in 0..32 {
                code[i] = (two[i] >> (2 * sub) & 3) as i8;
            }
        }
    }
    code
}
