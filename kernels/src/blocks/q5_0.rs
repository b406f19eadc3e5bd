//! Q5_0: 32 weights, `value = (code - 16) * d`.
//!
//! `d f16 | high bits u32 | 16 bytes`: low nibbles are weights 0..16, high nibbles 16..32; bit i of the dword is the
//! fifth bit of weight i. Source: ggml `block_q5_0`, `dequantize_row_q5_0`.

use super::encode::{fifth_bits, put_f16, put_nibbles};
use super::search::{extreme, inverse};
use super::{Block32, f16_at, u32_at};

pub(crate) const BYTES: usize = 2 + 4 + 16;
const _: () = assert!(BYTES == 22);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block32 {
    let high = u32_at(b, 2);
    let mut code = [0; 32];
    for i in 0..16 {
        code[i] = (b[6 + i] & 15) as i8 + ((high >> i & 1) << 4) as i8 - 16;
        code[16 + i] = (b[6 + i] >> 4) as i8 + ((high >> (16 + i) & 1) << 4) as i8 - 16;
    }
    Block32 { d: f16_at(b, 0), m: 0.0, code }
}

/// The value of largest magnitude becomes code 0. Source: ggml `quantize_row_q5_0_ref`.
pub(super) fn encode(x: &[f32; 32], b: &mut [u8]) {
    let d = extreme(x) / -16.0;
    let inverse = inverse(d);
    let code = x.map(|x| ((x * inverse + 16.5) as u8).min(31));
    put_f16(b, 0, d);
    b[2..6].copy_from_slice(&fifth_bits(&code));
    put_nibbles(&code, &mut b[6..]);
}
