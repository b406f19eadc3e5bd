//! Q4_K: 256 weights, `value = (d * scale) * code - dmin * min`, 6-bit scale and min per 32.
//!
//! `d f16 | dmin f16 | scales [12] | nibbles [128]`. Sub-blocks 2c and 2c+1 are the low and the high nibbles of bytes
//! 32c..32c+32. Source: ggml `block_q4_K`, `get_scale_min_k4`, `dequantize_row_q4_K`.

use super::encode::put_f16;
use super::search::{Candidates, nearest, with_minimum};
use super::{Block256, f16_at};

pub(crate) const BYTES: usize = 2 + 2 + 12 + 128;
const _: () = assert!(BYTES == 144);

/// The eight 6-bit scales and mins, each repeated for both 16s of its 32.
#[inline(always)]
pub(super) fn scales_mins(b: &[u8]) -> ([i8; 16], [u8; 16]) {
    let pick = |j: usize| {
        if j < 4 {
            (b[j] & 63, b[j + 4] & 63)
        } else {
            (b[j + 4] & 15 | b[j - 4] >> 6 << 4, b[j + 4] >> 4 | b[j] >> 6 << 4)
        }
    };
    (std::array::from_fn(|j| pick(j / 2).0 as i8), std::array::from_fn(|j| pick(j / 2).1))
}

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let (scale, min) = scales_mins(&b[4..16]);
    let mut code = [0; 256];
    for (low, code) in b[16..].as_chunks::<32>().0.iter().zip(code.as_chunks_mut::<64>().0) {
        for i in 0..32 {
            (code[i], code[32 + i]) = ((low[i] & 15) as i8, (low[i] >> 4) as i8);
        }
    }
    Block256 { d: f16_at(b, 0), dmin: f16_at(b, 2), code, scale, min }
}

const CANDIDATES: Candidates = Candidates { top: 15, first: -1.0, step: 0.1, count: 20, absolute: false };

/// Source: ggml `quantize_row_q4_K_ref`.
pub(super) fn encode(x: &[f32; 256], b: &mut [u8]) {
    let code = codes(x, CANDIDATES, b);
    put_nibbles(&code, &mut b[16..]);
}

/// What Q4_K and Q5_K share: the codes, with `d`, `dmin` and the scales written.
pub(super) fn codes(x: &[f32; 256], candidates: Candidates, b: &mut [u8]) -> [u8; 256] {
    let mut code = [0u8; 256];
    let (mut scale, mut min) = ([0.0f32; 8], [0.0f32; 8]);
    for (j, (x, code)) in x.as_chunks::<32>().0.iter().zip(code.as_chunks_mut::<32>().0).enumerate() {
        let power = x.iter().fold(0.0f32, |sum, x| sum + x * x);
        let mean = (power / 32.0).sqrt();
        (scale[j], min[j]) = with_minimum(x, &x.map(|x| mean + x.abs()), candidates, code);
    }
    let largest = |values: &[f32; 8]| values.iter().fold(0.0f32, |max, &v| max.max(v));
    let six_bits = |values: [f32; 8], max: f32| {
        let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
        values.map(|v| nearest(inverse * v).min(63) as u8)
    };
    let (max_scale, max_min) = (largest(&scale), largest(&min));
    put_f16(b, 0, max_scale / 63.0);
    put_f16(b, 2, max_min / 63.0);
    let (scale, min) = (six_bits(scale, max_scale), six_bits(min, max_min));
    for j in 0..4 {
        b[4 + j] = scale[j] & 63 | scale[4 + j] >> 4 << 6;
        b[8 + j] = min[j] & 63 | min[4 + j] >> 4 << 6;
        b[12 + j] = scale[4 + j] & 15 | min[4 + j] << 4;
    }
    let (d, dmin) = (f16_at(b, 0), f16_at(b, 2));
    for (j, (x, code)) in x.as_chunks::<32>().0.iter().zip(code.as_chunks_mut::<32>().0).enumerate() {
        let (d, min) = (d * f32::from(scale[j]), dmin * f32::from(min[j]));
        if d != 0.0 {
            *code = x.map(|x| nearest((x + min) / d).clamp(0, candidates.top) as u8);
        }
    }
    code
}

/// The lower four bits of every code.
pub(super) fn put_nibbles(code: &[u8; 256], to: &mut [u8]) {
    for (to, code) in to.as_chunks_mut::<32>().0.iter_mut().zip(code.as_chunks::<64>().0) {
        for (i, to) in to.iter_mut().enumerate() {
            *to = code[i] & 15 | code[32 + i] << 4;
        }
    }
}
