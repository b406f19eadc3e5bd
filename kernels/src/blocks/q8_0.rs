//! Q8_0: 32 weights, `value = code * d`.
//!
//! `d f16 | 32 x i8`. Source: ggml `block_q8_0`, `dequantize_row_q8_0`.

use super::encode::put_f16;
use super::search::{extreme, inverse};
use super::{Block32, f16_at};

pub(crate) const BYTES: usize = 2 + 32;
const _: () = assert!(BYTES == 34);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block32 {
    Block32 { d: f16_at(b, 0), m: 0.0, code: std::array::from_fn(|i| b[2 + i] as i8) }
}

/// Halves round away from zero. Source: ggml `quantize_row_q8_0_ref`.
pub(super) fn encode(x: &[f32; 32], b: &mut [u8]) {
    let d = extreme(x).abs() / 127.0;
    let inverse = inverse(d);
    put_f16(b, 0, d);
    for (b, &x) in b[2..].iter_mut().zip(x) {
        *b = (x * inverse).round() as i8 as u8;
    }
}
