//! Q4_0: 32 weights, `value = (nibble - 8) * d`.
//!
//! `d f16 | 16 bytes`: low nibbles are weights 0..16, high nibbles 16..32.
//! Source: ggml `block_q4_0`, `dequantize_row_q4_0`.

use super::encode::{put_f16, put_nibbles};
use super::search::{extreme, inverse};
use super::{Block32, f16_at};

pub(crate) const BYTES: usize = 2 + 16;
const _: () = assert!(BYTES == 18);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block32 {
    let mut code = [0; 32];
    for i in 0..16 {
        code[i] = (b[2 + i] & 15) as i8 - 8;
        code[16 + i] = (b[2 + i] >> 4) as i8 - 8;
    }
    Block32 { d: f16_at(b, 0), m: 0.0, code }
}

/// The value of largest magnitude becomes code 0. Source: ggml `quantize_row_q4_0_ref`.
pub(super) fn encode(x: &[f32; 32], b: &mut [u8]) {
    let d = extreme(x) / -8.0;
    let inverse = inverse(d);
    put_f16(b, 0, d);
    put_nibbles(&x.map(|x| ((x * inverse + 8.5) as u8).min(15)), &mut b[2..]);
}
