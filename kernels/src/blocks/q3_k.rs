//! Q3_K: 256 weights, `value = (d * (scale - 32)) * (code - 4)`, 6-bit scale per 16.
//!
//! `high bits [32] | low bits [64] | scales [12] | d f16`. Low bits as in Q2_K; bit j of high byte i is the third bit of
//! weight i of sub-block j. Scale j: low 4 bits are nibble j/8 of byte j%8, upper 2 bits are bits 2(j/4) of byte
//! 8 + j%4. Source: ggml `block_q3_K`, `dequantize_row_q3_K`.

use super::encode::put_f16;
use super::q2_k::put_two_bits;
use super::search::{extreme, nearest, symmetric_by_moves};
use super::{Block256, f16_at};

pub(crate) const BYTES: usize = 32 + 64 + 12 + 2;
const _: () = assert!(BYTES == 110);

#[inline(always)]
pub(crate) fn decode(b: &[u8]) -> Block256 {
    let scales = &b[96..108];
    let scale = std::array::from_fn(|j| {
        let low = scales[j % 8] >> (4 * (j / 8)) & 15;
        let high = scales[8 + j % 4] >> (2 * (j / 4)) & 3;
        (low | high << 4) as i8 - 32
    });
    let high: &[u8; 32] = b[..32].as_array().expect("32 bytes");
    let mut code = [0; 256];
    for (sub, code) in code.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = &b[32 + 32 * (sub / 4)..][..32];
        for i in 0..32 {
            code[i] = (low[i] >> (2 * (sub % 4)) & 3 | (high[i] >> sub & 1) << 2) as i8 - 4;
        }
    }
    Block256 { d: f16_at(b, 108), dmin: 0.0, code, scale, min: [0; 16] }
}

/// Source: ggml `quantize_row_q3_K_ref`.
pub(super) fn encode(x: &[f32; 256], b: &mut [u8]) {
    let mut code = [0u8; 256];
    let mut scale = [0.0f32; 16];
    for (j, (x, code)) in x.as_chunks::<16>().0.iter().zip(code.as_chunks_mut::<16>().0).enumerate() {
        scale[j] = symmetric_by_moves(x, 4, code);
    }
    let max = extreme(&scale);
    b.fill(0);
    let mut codes = [0u8; 16];
    if max != 0.0 {
        let inverse = -32.0 / max;
        codes = scale.map(|scale| (nearest(inverse * scale).clamp(-32, 31) + 32) as u8);
        put_f16(b, 108, 1.0 / inverse);
    }
    for (j, code) in codes.iter().enumerate() {
        b[96 + j % 8] |= (code & 15) << (4 * (j / 8));
        b[104 + j % 4] |= (code >> 4) << (2 * (j / 4));
    }
    let d = f16_at(b, 108);
    for (j, (x, code)) in x.as_chunks::<16>().0.iter().zip(code.as_chunks_mut::<16>().0).enumerate() {
        let d = d * (f32::from(codes[j]) - 32.0);
        if d != 0.0 {
            *code = x.map(|x| (nearest(x / d).clamp(-4, 3) + 4) as u8);
        }
    }
    for (j, code) in code.iter().enumerate() {
        b[j % 32] |= (code >> 2) << (j / 32);
    }
    put_two_bits(&code, &mut b[32..96]);
}
