//! IQ4_XS: 256 weights in 8 sub-blocks of 32, `value = (d * (scale - 32)) * table[nibble]`.
//!
//! `d f16 | scales_h u16 | scales_l [4] | nibbles [128]`. Sub-block j: the low 4 bits of its scale are nibble j of
//! `scales_l`, the upper 2 are bits 2j of `scales_h`; its 16 bytes hold weights 0..16 in the low nibbles, 16..32 in the
//! high ones. Source: ggml `block_iq4_xs`, `dequantize_row_iq4_xs`.

use super::{Block256, IQ4_VALUES, f16_at};

pub(crate) const BYTES: usize = 2 + 2 + 4 + 128;
const _: () = assert!(BYTES == 136);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let high = u16::from_le_bytes([b[2], b[3]]);
    let mut scale = [0; 16];
    let mut code = [0; 256];
    for j in 0..8 {
        let low = b[4 + j / 2] >> (4 * (j % 2)) & 15;
        let s = (low | ((high >> (2 * j) & 3) << 4) as u8) as i8 - 32;
        (scale[2 * j], scale[2 * j + 1]) = (s, s);
        for i in 0..16 {
            let byte = b[8 + 16 * j + i];
            code[32 * j + i] = IQ4_VALUES[usize::from(byte & 15)];
            code[32 * j + 16 + i] = IQ4_VALUES[usize::from(byte >> 4)];
        }
    }
    Block256 { d: f16_at(b, 0), dmin: 0.0, code, scale, min: [0; 16] }
}
