//! NVFP4: 64 weights, `value = table[nibble] * d`, a scale per 16.
//!
//! `scales [4] | 32 bytes`: 8 bytes for each 16 weights, low nibbles the first 8. A scale is an E4M3 without sign, the
//! table twice the values of E2M1, so d is half of the scale. Source: ggml `block_nvfp4`, `dequantize_row_nvfp4`,
//! `ggml_ue4m3_to_fp32`.

use super::{Block16, FP4_VALUES};

pub(crate) const BYTES: usize = 4 + 32;
const _: () = assert!(BYTES == 36);

/// Half `sub` of the block.
#[inline(always)]
pub(crate) fn decode(b: &[u8], sub: usize) -> Block16 {
    let mut code = [0; 32];
    for (h, code) in code.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        for i in 0..8 {
            let byte = b[4 + 16 * sub + 8 * h + i];
            code[i] = FP4_VALUES[usize::from(byte & 15)];
            code[8 + i] = FP4_VALUES[usize::from(byte >> 4)];
        }
    }
    Block16 { d: [half_scale(b[2 * sub]), half_scale(b[2 * sub + 1])], code }
}

/// Half of an unsigned E4M3 of bias 7; what would be NaN is 0.
#[inline(always)]
fn half_scale(byte: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(byte >> 3 & 15), byte & 7);
    match (byte, exponent) {
        (0x7f, _) => 0.0,
        // Mantissa times 2^-9, halved.
        (_, 0) => f32::from(mantissa) * f32::from_bits((127 - 10) << 23),
        // 8 + mantissa times 2^(exponent - 10), halved.
        _ => f32::from(8 + mantissa) * f32::from_bits((127 - 11 + exponent) << 23),
    }
}
