//! Quantising activations: the bits of `input::Plain`.

use std::arch::x86_64::*;

use crate::input::{Quantize, Quantized32, Quantized256, checked, inverse};

/// Used only by functions that have the instruction set.
#[derive(Clone, Copy)]
pub(super) struct Avx2;

impl Quantize for Avx2 {
    #[inline(always)]
    fn block_32(self, x: &[f32; 32]) -> Quantized32 {
        // SAFETY: the instruction set is there, see the type.
        unsafe { block_32(x) }
    }

    #[inline(always)]
    fn block_256(self, x: &[f32; 256]) -> Quantized256 {
        // SAFETY: the instruction set is there, see the type.
        unsafe { block_256(x) }
    }
}

avx2! {
fn block_32(x: &[f32; 32]) -> Quantized32 {
    let max = checked(max_lane(magnitudes(x)));
    let scale = max / 127.0;
    let inverse = inverse(max);
    let (mut codes, mut sum) = ([0; 32], 0);
    if inverse != 0.0 {
        let (bytes, [lo, hi]) = encode(x, inverse);
        // SAFETY: 32 bytes.
        unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), bytes) };
        sum = sum_lanes(_mm256_add_epi32(lo, hi));
    }
    Quantized32 { scale: through_f16(scale), scaled_sum: through_f16(scale * sum as f32), sum, codes }
}
}

avx2! {
fn block_256(x: &[f32; 256]) -> Quantized256 {
    let parts = x.as_chunks::<32>().0;
    let mut most = magnitudes(&parts[0]);
    for part in &parts[1..] {
        most = _mm256_max_epu32(most, magnitudes(part));
    }
    let max = checked(max_lane(most));
    let inverse = inverse(max);
    let (mut codes, mut sums) = ([0; 256], [0; 16]);
    if inverse != 0.0 {
        for (j, part) in parts.iter().enumerate() {
            let (bytes, [lo, hi]) = encode(part, inverse);
            // SAFETY: 32 of 256 bytes.
            unsafe { _mm256_storeu_si256(codes[32 * j..].as_mut_ptr().cast(), bytes) };
            (sums[2 * j], sums[2 * j + 1]) = (sum_lanes(lo) as i16, sum_lanes(hi) as i16);
        }
    }
    Quantized256 { scale: 1.0 / (127.0 / max), codes, sums }
}
}

avx2! {
/// Eight floats.
fn load(x: &[f32; 32], i: usize) -> __m256 {
    // SAFETY: 8 of 32 floats.
    unsafe { _mm256_loadu_ps(x[8 * i..][..8].as_ptr()) }
}
}

avx2! {
/// The largest magnitude of every eighth element, as bits.
fn magnitudes(x: &[f32; 32]) -> __m256i {
    let mut most = _mm256_setzero_si256();
    for i in 0..4 {
        let bits = _mm256_and_si256(_mm256_castps_si256(load(x, i)), _mm256_set1_epi32(0x7fff_ffff));
        most = _mm256_max_epu32(most, bits);
    }
    most
}
}

avx2! {
/// 32 codes, and lanes that add up to the sum of the first 16 of them and of the others.
fn encode(x: &[f32; 32], inverse: f32) -> (__m256i, [__m256i; 2]) {
    let inverse = _mm256_set1_ps(inverse);
    let mut i = [_mm256_setzero_si256(); 4];
    for (n, i) in i.iter_mut().enumerate() {
        *i = _mm256_cvtps_epi32(_mm256_mul_ps(load(x, n), inverse));
    }
    // Packing works on 128-bit lanes; the permutation puts dwords back in order.
    let (lo, hi) = (_mm256_packs_epi32(i[0], i[1]), _mm256_packs_epi32(i[2], i[3]));
    let codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(lo, hi), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    let one = _mm256_set1_epi16(1);
    (codes, [_mm256_madd_epi16(lo, one), _mm256_madd_epi16(hi, one)])
}
}

avx2! {
fn max_lane(v: __m256i) -> u32 {
    let v = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let v = _mm_max_epu32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    let v = _mm_max_epu32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v));
    _mm_cvtsi128_si32(v) as u32
}
}

avx2! {
fn sum_lanes(v: __m256i) -> i32 {
    let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v));
    _mm_cvtsi128_si32(v)
}
}

avx2! {
/// As `input::through_f16`.
fn through_f16(x: f32) -> f32 {
    let half = _mm_cvtph_ps(_mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(x)));
    let half = _mm_cvtss_f32(half);
    if half.is_infinite() { x } else { half }
}
}
