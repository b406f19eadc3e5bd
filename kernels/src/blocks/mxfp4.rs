//! MXFP4: 32 weights, `value = table[nibble] * d`, d a power of two.
//!
//! `exponent | 16 bytes`: low nibbles are weights 0..16, high nibbles 16..32. The table is twice the values of E2M1, so
//! d is half of `2^(exponent - 127)`, subnormal for the exponents 0 and 1.
//! Source: ggml `block_mxfp4`, `dequantize_row_mxfp4`, `ggml_e8m0_to_fp32_half`; OCP Microscaling Formats 1.0.

use super::{Block32, FP4_VALUES};

pub(crate) const BYTES: usize = 1 + 16;
const _: () = assert!(BYTES == 17);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block32 {
    let mut code = [0; 32];
    for i in 0..16 {
        code[i] = FP4_VALUES[usize::from(b[1 + i] & 15)];
        code[16 + i] = FP4_VALUES[usize::from(b[1 + i] >> 4)];
    }
    let exponent = u32::from(b[0]);
    let bits = if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 };
    Block32 { d: f32::from_bits(bits), m: 0.0, code }
}
