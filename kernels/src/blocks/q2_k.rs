//! Q2_K: 256 weights, `value = (d * scale) * code - dmin * min`, 4-bit scale and min per 16.
//!
//! `scales [16] (low nibble scale, high nibble min) | codes [64] | d f16 | dmin f16`. Half h of the weights is in code
//! bytes 32h..32h+32, sub-block t of it in bits 2t. Source: ggml `block_q2_K`, `dequantize_row_q2_K`.

use super::encode::put_f16;
use super::search::{Candidates, nearest, with_minimum};
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

const CANDIDATES: Candidates = Candidates { top: 3, first: -0.5, step: 0.1, count: 15, absolute: true };

/// Source: ggml `quantize_row_q2_K_ref`.
pub(super) fn encode(x: &[f32; 256], b: &mut [u8]) {
    let mut code = [0u8; 256];
    let (mut scale, mut min) = ([0.0f32; 16], [0.0f32; 16]);
    for (j, (x, code)) in x.as_chunks::<16>().0.iter().zip(code.as_chunks_mut::<16>().0).enumerate() {
        (scale[j], min[j]) = with_minimum(x, &x.map(f32::abs), CANDIDATES, code);
    }
    let store = |values: &[f32; 16], shift: u8, b: &mut [u8]| {
        let max = values.iter().fold(0.0f32, |max, &v| max.max(v));
        if max <= 0.0 {
            return 0.0;
        }
        for (b, &v) in b.iter_mut().zip(values) {
            *b |= (nearest(15.0 / max * v) as u8) << shift;
        }
        max / 15.0
    };
    b[..16].fill(0);
    let d = store(&scale, 0, &mut b[..16]);
    let dmin = store(&min, 4, &mut b[..16]);
    put_f16(b, 80, d);
    put_f16(b, 82, dmin);
    let (d, dmin) = (f16_at(b, 80), f16_at(b, 82));
    for (j, (x, code)) in x.as_chunks::<16>().0.iter().zip(code.as_chunks_mut::<16>().0).enumerate() {
        let (d, min) = (d * f32::from(b[j] & 15), dmin * f32::from(b[j] >> 4));
        if d != 0.0 {
            *code = x.map(|x| nearest((x + min) / d).clamp(0, 3) as u8);
        }
    }
    put_two_bits(&code, &mut b[16..80]);
}

/// The reverse of [`two_bits`]: the lower two bits of every code.
pub(super) fn put_two_bits(code: &[u8; 256], to: &mut [u8]) {
    for (to, code) in to.as_chunks_mut::<32>().0.iter_mut().zip(code.as_chunks::<128>().0) {
        for (i, to) in to.iter_mut().enumerate() {
            *to = (0..4).fold(0, |byte, sub| byte | (code[32 * sub + i] & 3) << (2 * sub));
        }
    }
}
