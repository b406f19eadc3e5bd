//! F32, F16 and BF16: one weight a block. Widening is exact.

use half::f16;

#[inline(always)]
pub(crate) fn f32_value(b: [u8; 4]) -> f32 {
    f32::from_le_bytes(b)
}

#[inline(always)]
pub(crate) fn f16_value(b: [u8; 2]) -> f32 {
    f16::from_le_bytes(b).to_f32()
}

/// The upper half of an f32.
#[inline(always)]
pub(crate) fn bf16_value(b: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)
}
