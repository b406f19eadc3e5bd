//! Q8_0: 32 weights, `value = code * d`.
//!
//! `d f16 | 32 x i8`. Source: ggml `block_q8_0`, `dequantize_row_q8_0`.

use super::{Block32, f16_at};

pub(crate) const BYTES: usize = 2 + 32;
const _: () = assert!(BYTES == 34);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block32 {
    Block32 { d: f16_at(b, 0), m: 0.0, code: std::array::from_fn(|i| b[2 + i] as i8) }
}
