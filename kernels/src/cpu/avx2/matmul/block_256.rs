//! Formats with 256 weights a block. A step is one block of each row: scales first, then codes in sub-blocks of 32.
//!
//! Codes are unsigned or have their sign moved to the activation; formats with a bias (4 or 32) take `bias * sum(scale * sum(x))` off the
//! integer result, which is exact.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::block_32::iq4_table;
use super::{Activations, Step, dot, f16_half, line, lines_8};
use crate::panel::{self, Layout};

/// What a format has beside its codes.
pub(super) struct Head {
    d: __m256,
    /// Zero where the format has no minima.
    dmin: __m256,
    /// Four scales a lane as signed bytes: sub-blocks of 16 or 32 in order.
    scales: [__m256i; 4],
    /// Likewise the minima.
    mins: [__m256i; 4],
}

/// How the codes of a format are multiplied.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Range {
    Below16,
    Below32,
    Below64,
    Signed,
}

/// Unpacks one format.
pub(super) trait Codes {
    const LAYOUT: Layout;
    /// Scales per 16 weights, not per 32.
    const PER_16: bool;
    const RANGE: Range;
    /// What was added to the codes to make them unsigned, or 0.
    const BIAS: i32;
    const MIN: bool;

    /// # Safety
    /// The panel step at `w` is readable and aligned.
    unsafe fn head(w: *const u8, half: usize) -> Head;

    /// Sub-block `j` of 32: register i holds k = 4i..4i + 4.
    ///
    /// # Safety
    /// The panel step at `w` is readable and aligned.
    unsafe fn codes(w: *const u8, half: usize, j: usize) -> [__m256i; 8];
}

pub(super) struct Step256<C>(PhantomData<C>);

impl<C: Codes> Step for Step256<C> {
    const LAYOUT: Layout = C::LAYOUT;
    type Acc = __m256;
    // SAFETY: all-zero bits are a vector of zeros.
    const ZERO: __m256 = unsafe { std::mem::zeroed() };

    avx2! {
    unsafe fn step<const R: usize>(w: *const u8, half: usize, a: Activations, acc: &mut [__m256; R]) {
        // SAFETY: the caller's.
        unsafe {
            let zero = _mm256_setzero_si256();
            let head = C::head(w, half);
            let groups = if C::PER_16 { 4 } else { 2 };
            let mut scale = [zero; 16];
            for (i, scale) in scale[..4 * groups].iter_mut().enumerate() {
                *scale = both_words(head.scales[i / 4], i % 4);
            }
            let mut sum = [zero; R];
            for j in 0..8 {
                let q = C::codes(w, half, j);
                let x = a.args.codes.add(256 * a.cell + 32 * j);
                for r in 0..R {
                    let x = x.add(256 * r);
                    sum[r] = if C::PER_16 {
                        let (lo, hi) = (scale[2 * j], scale[2 * j + 1]);
                        let (lo, hi) = match C::RANGE {
                            Range::Below64 => (dot::<4, 2, false>(&q[..4], x, lo), dot::<4, 2, false>(&q[4..], x.add(16), hi)),
                            Range::Signed => (dot::<4, 1, true>(&q[..4], x, lo), dot::<4, 1, true>(&q[4..], x.add(16), hi)),
                            _ => (dot::<4, 4, false>(&q[..4], x, lo), dot::<4, 4, false>(&q[4..], x.add(16), hi)),
                        };
                        _mm256_add_epi32(sum[r], _mm256_add_epi32(lo, hi))
                    } else {
                        let dot = match C::RANGE {
                            Range::Below16 => dot::<8, 8, false>(&q, x, scale[j]),
                            Range::Below32 => dot::<8, 4, false>(&q, x, scale[j]),
                            Range::Below64 => dot::<8, 2, false>(&q, x, scale[j]),
                            Range::Signed => dot::<8, 1, true>(&q, x, scale[j]),
                        };
                        _mm256_add_epi32(sum[r], dot)
                    };
                }
            }
            // Pairs (0, 2) and (1, 3) of every four bytes, against sums of activations in the same order.
            let bytes = if C::MIN { head.mins } else { head.scales };
            let mut pairs = [zero; 8];
            for g in 0..groups {
                pairs[2 * g] = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes[g]));
                pairs[2 * g + 1] = _mm256_srai_epi16::<8>(bytes[g]);
            }
            for r in 0..R {
                let cell = a.cell + r;
                let mut offset = zero;
                if C::MIN || C::BIAS != 0 {
                    let sums = if C::PER_16 { a.args.sums_16.add(16 * cell) } else { a.args.sums_32.add(8 * cell) };
                    for (i, pairs) in pairs[..2 * groups].iter().enumerate() {
                        let x = _mm256_set1_epi32(sums.add(2 * i).cast::<i32>().read_unaligned());
                        offset = _mm256_add_epi32(offset, _mm256_madd_epi16(*pairs, x));
                    }
                }
                if C::BIAS != 0 {
                    sum[r] = _mm256_sub_epi32(sum[r], _mm256_mullo_epi32(offset, _mm256_set1_epi32(C::BIAS)));
                }
                let dx = _mm256_set1_ps(*a.args.scale.add(cell));
                acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r]), _mm256_mul_ps(head.d, dx), acc[r]);
                if C::MIN {
                    acc[r] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(offset), _mm256_mul_ps(head.dmin, dx), acc[r]);
                }
            }
        }
    }
    }

    avx2! {
    unsafe fn finish(acc: __m256) -> __m256 {
        acc
    }
    }
}

avx2! {
/// Byte `i` of each lane, as a signed word in both halves of the lane.
fn both_words(bytes: __m256i, i: usize) -> __m256i {
    let order = _mm256_setr_epi8(
        -1, 0, -1, 0, -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12, -1, 0, -1, 0, -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12,
    );
    // Index -1 gives zero; i is added to the other bytes only.
    let order = _mm256_add_epi8(order, _mm256_set1_epi16((i as i16) << 8));
    _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(bytes, order))
}
}

avx2! {
/// The f16 in the low half of each lane.
fn low_f16(pairs: __m256i) -> __m256 {
    let low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff));
    let packed = _mm256_permute4x64_epi64::<0b00_00_10_00>(_mm256_packus_epi32(low, low));
    _mm256_cvtph_ps(_mm256_castsi256_si128(packed))
}
}

avx2! {
/// `(q >> shift) & mask` in every byte; `mask` keeps what a neighbour would shift in out.
fn field(mut q: [__m256i; 8], shift: usize, mask: i8) -> [__m256i; 8] {
    for q in &mut q {
        *q = _mm256_and_si256(_mm256_srl_epi16(*q, _mm_cvtsi32_si128(shift as i32)), _mm256_set1_epi8(mask));
    }
    q
}
}

avx2! {
/// `q | bits << up`, where bits = `(high >> shift) & mask`.
fn with_high(mut q: [__m256i; 8], high: [__m256i; 8], shift: usize, mask: i8, up: usize) -> [__m256i; 8] {
    let bits = field(high, shift, mask);
    for i in 0..8 {
        q[i] = _mm256_or_si256(q[i], _mm256_sll_epi16(bits[i], _mm_cvtsi32_si128(up as i32)));
    }
    q
}
}

avx2! {
/// Scales and minima of 6 bits, packed in 12 bytes: lines 1 to 3 of the step.
///
/// # Safety
/// The step is readable and aligned.
unsafe fn head_6_bit(w: *const u8, half: usize) -> Head {
    // SAFETY: the caller's.
    let (d, u0, u1, u2) = unsafe { (line(w, half, 0), line(w, half, 1), line(w, half, 2), line(w, half, 3)) };
    let (low_4, low_6, mid_2) = (_mm256_set1_epi8(15), _mm256_set1_epi8(63), _mm256_set1_epi8(0x30));
    let zero = _mm256_setzero_si256();
    let scales_hi = _mm256_or_si256(
        _mm256_and_si256(u2, low_4),
        _mm256_and_si256(_mm256_srli_epi16::<2>(u0), mid_2),
    );
    let mins_hi = _mm256_or_si256(
        _mm256_and_si256(_mm256_srli_epi16::<4>(u2), low_4),
        _mm256_and_si256(_mm256_srli_epi16::<2>(u1), mid_2),
    );
    Head {
        d: low_f16(d),
        dmin: low_f16(_mm256_srli_epi32::<16>(d)),
        scales: [_mm256_and_si256(u0, low_6), scales_hi, zero, zero],
        mins: [_mm256_and_si256(u1, low_6), mins_hi, zero, zero],
    }
}
}

#[allow(non_camel_case_types, reason = "the spelling of the file format")]
mod formats {
    pub(in super::super) enum Q2_K {}
    pub(in super::super) enum Q3_K {}
    pub(in super::super) enum Q4_K {}
    pub(in super::super) enum Q5_K {}
    pub(in super::super) enum Q6_K {}
    pub(in super::super) enum IQ4_XS {}
    pub(in super::super) enum Wide256 {}
}
pub(super) use formats::*;

/// Lines: d and dmin · 4 of scales and mins · 16 of codes.
impl Codes for Q2_K {
    const LAYOUT: Layout = panel::Q2_K;
    const PER_16: bool = true;
    const RANGE: Range = Range::Below16;
    const BIAS: i32 = 0;
    const MIN: bool = true;
    avx2! {
    unsafe fn head(w: *const u8, half: usize) -> Head {
        // SAFETY: lines of the step.
        let (d, both) = unsafe { (line(w, half, 0), [line(w, half, 1), line(w, half, 2), line(w, half, 3), line(w, half, 4)]) };
        let low = _mm256_set1_epi8(15);
        let (mut scales, mut mins) = (both, both);
        for g in 0..4 {
            scales[g] = _mm256_and_si256(both[g], low);
            mins[g] = _mm256_and_si256(_mm256_srli_epi16::<4>(both[g]), low);
        }
        Head { d: low_f16(d), dmin: low_f16(_mm256_srli_epi32::<16>(d)), scales, mins }
    }
    }
    avx2! {
    unsafe fn codes(w: *const u8, half: usize, j: usize) -> [__m256i; 8] {
        // SAFETY: lines of the step.
        field(unsafe { lines_8(w, half, 5 + 8 * (j / 4)) }, 2 * (j % 4), 3)
    }
    }
}

/// Lines: d · 3 of scales · 8 of high bits · 16 of low bits.
impl Codes for Q3_K {
    const LAYOUT: Layout = panel::Q3_K;
    const PER_16: bool = true;
    const RANGE: Range = Range::Below16;
    const BIAS: i32 = 4;
    const MIN: bool = false;
    avx2! {
    unsafe fn head(w: *const u8, half: usize) -> Head {
        // SAFETY: lines of the step.
        let (d, u) = unsafe { (f16_half(w, half), [line(w, half, 1), line(w, half, 2), line(w, half, 3)]) };
        let (low_4, mid_2) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
        let high = [
            _mm256_slli_epi16::<4>(u[2]), _mm256_slli_epi16::<2>(u[2]), u[2], _mm256_srli_epi16::<2>(u[2]),
        ];
        let low = [u[0], u[1], _mm256_srli_epi16::<4>(u[0]), _mm256_srli_epi16::<4>(u[1])];
        let mut scales = high;
        for g in 0..4 {
            let both = _mm256_or_si256(_mm256_and_si256(low[g], low_4), _mm256_and_si256(high[g], mid_2));
            scales[g] = _mm256_sub_epi8(both, _mm256_set1_epi8(32));
        }
        Head { d, dmin: _mm256_setzero_ps(), scales, mins: scales }
    }
    }
    avx2! {
    unsafe fn codes(w: *const u8, half: usize, j: usize) -> [__m256i; 8] {
        // SAFETY: lines of the step.
        let (high, low) = unsafe { (lines_8(w, half, 4), lines_8(w, half, 12 + 8 * (j / 4))) };
        with_high(field(low, 2 * (j % 4), 3), high, j, 1, 2)
    }
    }
}

/// Lines: d and dmin · 3 of scales and mins · 32 of nibbles.
impl Codes for Q4_K {
    const LAYOUT: Layout = panel::Q4_K;
    const PER_16: bool = false;
    const RANGE: Range = Range::Below16;
    const BIAS: i32 = 0;
    const MIN: bool = true;
    avx2! {
    unsafe fn head(w: *const u8, half: usize) -> Head {
        // SAFETY: the caller's.
        unsafe { head_6_bit(w, half) }
    }
    }
    avx2! {
    unsafe fn codes(w: *const u8, half: usize, j: usize) -> [__m256i; 8] {
        // SAFETY: lines of the step.
        field(unsafe { lines_8(w, half, 4 + 8 * (j / 2)) }, 4 * (j % 2), 15)
    }
    }
}

/// Lines: d and dmin · 3 of scales and mins · 8 of high bits · 32 of nibbles.
impl Codes for Q5_K {
    const LAYOUT: Layout = panel::Q5_K;
    const PER_16: bool = false;
    const RANGE: Range = Range::Below32;
    const BIAS: i32 = 0;
    const MIN: bool = true;
    avx2! {
    unsafe fn head(w: *const u8, half: usize) -> Head {
        // SAFETY: the caller's.
        unsafe { head_6_bit(w, half) }
    }
    }
    avx2! {
    unsafe fn codes(w: *const u8, half: usize, j: usize) -> [__m256i; 8] {
        // SAFETY: lines of the step.
        let (high, low) = unsafe { (lines_8(w, half, 4), lines_8(w, half, 12 + 8 * (j / 2))) };
        with_high(field(low, 4 * (j % 2), 15), high, j, 1, 4)
    }
    }
}

/// Lines: d · 4 of scales · per half 8 of high bits and 16 of nibbles.
impl Codes for Q6_K {
    const LAYOUT: Layout = panel::Q6_K;
    const PER_16: bool = true;
    const RANGE: Range = Range::Below64;
    const BIAS: i32 = 32;
    const MIN: bool = false;
    avx2! {
    unsafe fn head(w: *const u8, half: usize) -> Head {
        // SAFETY: lines of the step.
        let (d, scales) = unsafe { (f16_half(w, half), [line(w, half, 1), line(w, half, 2), line(w, half, 3), line(w, half, 4)]) };
        Head { d, dmin: _mm256_setzero_ps(), scales, mins: scales }
    }
    }
    avx2! {
    unsafe fn codes(w: *const u8, half: usize, j: usize) -> [__m256i; 8] {
        let (first, t) = (5 + 24 * (j / 4), j % 4);
        // SAFETY: lines of the step.
        let (high, low) = unsafe { (lines_8(w, half, first), lines_8(w, half, first + 8 + 8 * (t % 2))) };
        with_high(field(low, 4 * (t / 2), 15), high, 2 * t, 3, 4)
    }
    }
}

/// Lines: d and the upper bits of the scales · their lower bits · 32 of nibbles.
impl Codes for IQ4_XS {
    const LAYOUT: Layout = panel::IQ4_XS;
    const PER_16: bool = false;
    const RANGE: Range = Range::Signed;
    const BIAS: i32 = 0;
    const MIN: bool = false;
    avx2! {
    unsafe fn head(w: *const u8, half: usize) -> Head {
        // SAFETY: lines of the step.
        let (d, low) = unsafe { (line(w, half, 0), line(w, half, 1)) };
        // Scale j: nibble j of `low`, two bits 2j of `high`.
        let high = _mm256_srli_epi32::<16>(d);
        let (zero, byte) = (_mm256_setzero_si256(), _mm256_set1_epi32(63));
        let mut scales = [zero; 4];
        for j in 0..8 {
            let nibble = _mm256_and_si256(_mm256_srlv_epi32(low, _mm256_set1_epi32(4 * j)), _mm256_set1_epi32(15));
            let two = _mm256_and_si256(_mm256_srlv_epi32(high, _mm256_set1_epi32(2 * j)), _mm256_set1_epi32(3));
            let six = _mm256_and_si256(_mm256_or_si256(nibble, _mm256_slli_epi32::<4>(two)), byte);
            let at = _mm256_set1_epi32(8 * (j % 4));
            scales[j as usize / 4] = _mm256_or_si256(scales[j as usize / 4], _mm256_sllv_epi32(six, at));
        }
        for s in &mut scales {
            *s = _mm256_sub_epi8(*s, _mm256_set1_epi8(32));
        }
        Head { d: low_f16(d), dmin: _mm256_setzero_ps(), scales, mins: scales }
    }
    }
    avx2! {
    unsafe fn codes(w: *const u8, half: usize, j: usize) -> [__m256i; 8] {
        let (low, table) = (_mm256_set1_epi8(15), iq4_table());
        let mut q = [low; 8];
        for i in 0..4 {
            // SAFETY: lines of the step.
            let both = unsafe { line(w, half, 2 + 4 * j + i) };
            q[i] = _mm256_shuffle_epi8(table, _mm256_and_si256(both, low));
            q[i + 4] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16::<4>(both), low));
        }
        q
    }
    }
}

/// Lines: d · 4 of scales · 64 of codes.
impl Codes for Wide256 {
    const LAYOUT: Layout = panel::WIDE_256;
    const PER_16: bool = true;
    const RANGE: Range = Range::Signed;
    const BIAS: i32 = 0;
    const MIN: bool = false;
    avx2! {
    unsafe fn head(w: *const u8, half: usize) -> Head {
        // SAFETY: lines of the step.
        let (d, scales) = unsafe {
            (line(w, half, 0), [line(w, half, 1), line(w, half, 2), line(w, half, 3), line(w, half, 4)])
        };
        Head { d: _mm256_castsi256_ps(d), dmin: _mm256_setzero_ps(), scales, mins: scales }
    }
    }
    avx2! {
    unsafe fn codes(w: *const u8, half: usize, j: usize) -> [__m256i; 8] {
        // SAFETY: lines of the step.
        unsafe { lines_8(w, half, 5 + 8 * j) }
    }
    }
}
