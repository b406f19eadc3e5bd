//! Formats with 256 weights a block. A step is one block of each row: scales first, then codes in sub-blocks of 32.
//!
//! Codes are unsigned; formats whose codes are not (a bias of 4, 32 or 128) take `bias * sum(scale * sum(x))` off the
//! integer result, which is exact.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::block_32::iq4_table;
use super::{Activations, Step, dot_16_16, dot_32, dot_pairs, line, prefetch};
use crate::panel::{self, Layout};

/// What a format has beside its codes.
pub(super) struct Head {
    d: __m512,
    /// Zero where the format has no minima.
    dmin: __m512,
    /// Four scales a lane as signed bytes: sub-blocks of 16 or 32 in order.
    scales: [__m512i; 4],
    /// Likewise the minima.
    mins: [__m512i; 4],
}

/// Unpacks one format.
pub(super) trait Codes {
    const LAYOUT: Layout;
    const PREFETCH_ROWS: usize;
    /// Scales per 16 weights, not per 32.
    const PER_16: bool;
    /// What was added to the codes to make them unsigned: a power of two, or 0.
    const BIAS: i32;
    const MIN: bool;

    /// # Safety
    /// The panel step at `w` is readable and aligned.
    unsafe fn head(w: *const u8) -> Head;

    /// Sub-block `j` of 32: register i holds k = 4i..4i + 4.
    ///
    /// # Safety
    /// The panel step at `w` is readable and aligned.
    unsafe fn codes(w: *const u8, j: usize) -> [__m512i; 8];
}

pub(super) struct Step256<C>(PhantomData<C>);

impl<C: Codes> Step for Step256<C> {
    const LAYOUT: Layout = C::LAYOUT;
    const PREFETCH_ROWS: usize = C::PREFETCH_ROWS;
    type Acc = __m512;
    // SAFETY: all-zero bits are a vector of zeros.
    const ZERO: __m512 = unsafe { std::mem::zeroed() };

    avx512! {
    unsafe fn step<const R: usize>(w: *const u8, ahead: *const u8, a: Activations, acc: &mut [__m512; R]) {
        // SAFETY: the caller's.
        unsafe {
            let zero = _mm512_setzero_si512();
            let head = C::head(w);
            let groups = if C::PER_16 { 4 } else { 2 };
            let mut scale = [zero; 16];
            for g in 0..groups {
                let s = head.scales[g];
                scale[4 * g] = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<24>(s));
                scale[4 * g + 1] = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<16>(s));
                scale[4 * g + 2] = _mm512_srai_epi32::<24>(_mm512_slli_epi32::<8>(s));
                scale[4 * g + 3] = _mm512_srai_epi32::<24>(s);
            }
            // Keeps the vectors in L1, not in registers.
            let scale = std::hint::black_box(&scale);
            let lines = C::LAYOUT.panel_bytes / 64;
            let mut sum = [zero; R];
            for j in 0..8 {
                prefetch(ahead, lines * j / 8, lines * (j + 1) / 8 - lines * j / 8);
                let q = C::codes(w, j);
                let x = a.args.codes.add(256 * a.cell + 32 * j);
                for r in 0..R {
                    if C::PER_16 {
                        let [lo, hi] = dot_16_16(&q, x.add(256 * r));
                        let lo = _mm512_mullo_epi32(lo, scale[2 * j]);
                        let hi = _mm512_mullo_epi32(hi, scale[2 * j + 1]);
                        sum[r] = _mm512_add_epi32(sum[r], _mm512_add_epi32(lo, hi));
                    } else {
                        let dot = _mm512_mullo_epi32(dot_32(zero, &q, x.add(256 * r)), scale[j]);
                        sum[r] = _mm512_add_epi32(sum[r], dot);
                    }
                }
            }
            // Pairs (0, 2) and (1, 3) of every four bytes, against sums of activations in the same order.
            let bytes = if C::MIN { head.mins } else { head.scales };
            let mut pairs = [zero; 8];
            for g in 0..groups {
                pairs[2 * g] = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(bytes[g]));
                pairs[2 * g + 1] = _mm512_srai_epi16::<8>(bytes[g]);
            }
            for r in 0..R {
                let cell = a.cell + r;
                let mut offset = zero;
                if C::MIN || C::BIAS != 0 {
                    let sums = if C::PER_16 { a.args.sums_16.add(16 * cell) } else { a.args.sums_32.add(8 * cell) };
                    for (i, pairs) in pairs[..2 * groups].iter().enumerate() {
                        offset = dot_pairs(offset, *pairs, sums.add(2 * i));
                    }
                }
                if C::BIAS != 0 {
                    sum[r] = _mm512_sub_epi32(sum[r], _mm512_mullo_epi32(offset, _mm512_set1_epi32(C::BIAS)));
                }
                let dx = _mm512_set1_ps(*a.args.scale.add(cell));
                acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]), _mm512_mul_ps(head.d, dx), acc[r]);
                if C::MIN {
                    acc[r] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(offset), _mm512_mul_ps(head.dmin, dx), acc[r]);
                }
            }
        }
    }
    }

    avx512! {
    unsafe fn finish(acc: __m512) -> __m512 {
        acc
    }
    }
}

avx512! {
/// The f16 in the low half of each lane.
fn low_f16(pairs: __m512i) -> __m512 {
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs))
}
}

avx512! {
/// Eight lines from line `first` on.
///
/// # Safety
/// They are readable and aligned.
unsafe fn lines_8(w: *const u8, first: usize) -> [__m512i; 8] {
    let mut q = [_mm512_setzero_si512(); 8];
    for i in 0..8 {
        // SAFETY: the caller's.
        q[i] = unsafe { line(w, first + i) };
    }
    q
}
}

avx512! {
/// `(q >> shift) & mask` in every byte; `mask` keeps what a neighbour would shift in out.
fn field(mut q: [__m512i; 8], shift: usize, mask: i8) -> [__m512i; 8] {
    for q in &mut q {
        *q = _mm512_and_si512(_mm512_srlv_epi16(*q, _mm512_set1_epi16(shift as i16)), _mm512_set1_epi8(mask));
    }
    q
}
}

avx512! {
/// `q | bits << up`, where bits = `(high >> shift) & mask`. The rotation moves bits between neighbouring bytes too, but
/// none of those that are kept.
fn with_high(mut q: [__m512i; 8], high: [__m512i; 8], shift: usize, mask: i8, up: usize) -> [__m512i; 8] {
    let (left, mask) = (_mm512_set1_epi32(up as i32 - shift as i32), _mm512_set1_epi8(mask << up));
    for i in 0..8 {
        q[i] = _mm512_or_si512(q[i], _mm512_and_si512(_mm512_rolv_epi32(high[i], left), mask));
    }
    q
}
}

avx512! {
/// Scales and minima of 6 bits, packed in 12 bytes: lines 1 to 3 of the step.
///
/// # Safety
/// The step is readable and aligned.
unsafe fn head_6_bit(w: *const u8) -> Head {
    // SAFETY: the caller's.
    let (d, u0, u1, u2) = unsafe { (line(w, 0), line(w, 1), line(w, 2), line(w, 3)) };
    let (low_4, low_6, mid_2) = (_mm512_set1_epi8(15), _mm512_set1_epi8(63), _mm512_set1_epi8(0x30));
    let zero = _mm512_setzero_si512();
    let scales_hi = _mm512_or_si512(
        _mm512_and_si512(u2, low_4),
        _mm512_and_si512(_mm512_srli_epi16::<2>(u0), mid_2),
    );
    let mins_hi = _mm512_or_si512(
        _mm512_and_si512(_mm512_srli_epi16::<4>(u2), low_4),
        _mm512_and_si512(_mm512_srli_epi16::<2>(u1), mid_2),
    );
    Head {
        d: low_f16(d),
        dmin: low_f16(_mm512_srli_epi32::<16>(d)),
        scales: [_mm512_and_si512(u0, low_6), scales_hi, zero, zero],
        mins: [_mm512_and_si512(u1, low_6), mins_hi, zero, zero],
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
}
pub(super) use formats::*;

/// Lines: d and dmin · 4 of scales and mins · 16 of codes.
impl Codes for Q2_K {
    const LAYOUT: Layout = panel::Q2_K;
    const PREFETCH_ROWS: usize = 1;
    const PER_16: bool = true;
    const BIAS: i32 = 0;
    const MIN: bool = true;
    avx512! {
    unsafe fn head(w: *const u8) -> Head {
        // SAFETY: lines of the step.
        let (d, both) = unsafe { (line(w, 0), [line(w, 1), line(w, 2), line(w, 3), line(w, 4)]) };
        let low = _mm512_set1_epi8(15);
        let (mut scales, mut mins) = (both, both);
        for g in 0..4 {
            scales[g] = _mm512_and_si512(both[g], low);
            mins[g] = _mm512_and_si512(_mm512_srli_epi16::<4>(both[g]), low);
        }
        Head { d: low_f16(d), dmin: low_f16(_mm512_srli_epi32::<16>(d)), scales, mins }
    }
    }
    avx512! {
    unsafe fn codes(w: *const u8, j: usize) -> [__m512i; 8] {
        // SAFETY: lines of the step.
        field(unsafe { lines_8(w, 5 + 8 * (j / 4)) }, 2 * (j % 4), 3)
    }
    }
}

/// Lines: d · 3 of scales · 8 of high bits · 16 of low bits.
impl Codes for Q3_K {
    const LAYOUT: Layout = panel::Q3_K;
    const PREFETCH_ROWS: usize = 1;
    const PER_16: bool = true;
    const BIAS: i32 = 4;
    const MIN: bool = false;
    avx512! {
    unsafe fn head(w: *const u8) -> Head {
        // SAFETY: lines of the step.
        let (d, u) = unsafe { (_mm256_load_si256(w.cast()), [line(w, 1), line(w, 2), line(w, 3)]) };
        let (low_4, mid_2) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
        let high = [
            _mm512_slli_epi16::<4>(u[2]), _mm512_slli_epi16::<2>(u[2]), u[2], _mm512_srli_epi16::<2>(u[2]),
        ];
        let low = [u[0], u[1], _mm512_srli_epi16::<4>(u[0]), _mm512_srli_epi16::<4>(u[1])];
        let mut scales = high;
        for g in 0..4 {
            let both = _mm512_or_si512(_mm512_and_si512(low[g], low_4), _mm512_and_si512(high[g], mid_2));
            scales[g] = _mm512_sub_epi8(both, _mm512_set1_epi8(32));
        }
        Head { d: _mm512_cvtph_ps(d), dmin: _mm512_setzero_ps(), scales, mins: scales }
    }
    }
    avx512! {
    unsafe fn codes(w: *const u8, j: usize) -> [__m512i; 8] {
        // SAFETY: lines of the step.
        let (high, low) = unsafe { (lines_8(w, 4), lines_8(w, 12 + 8 * (j / 4))) };
        with_high(field(low, 2 * (j % 4), 3), high, j, 1, 2)
    }
    }
}

/// Lines: d and dmin · 3 of scales and mins · 32 of nibbles.
impl Codes for Q4_K {
    const LAYOUT: Layout = panel::Q4_K;
    const PREFETCH_ROWS: usize = 1;
    const PER_16: bool = false;
    const BIAS: i32 = 0;
    const MIN: bool = true;
    avx512! {
    unsafe fn head(w: *const u8) -> Head {
        // SAFETY: the caller's.
        unsafe { head_6_bit(w) }
    }
    }
    avx512! {
    unsafe fn codes(w: *const u8, j: usize) -> [__m512i; 8] {
        // SAFETY: lines of the step.
        field(unsafe { lines_8(w, 4 + 8 * (j / 2)) }, 4 * (j % 2), 15)
    }
    }
}

/// Lines: d and dmin · 3 of scales and mins · 8 of high bits · 32 of nibbles.
impl Codes for Q5_K {
    const LAYOUT: Layout = panel::Q5_K;
    const PREFETCH_ROWS: usize = 1;
    const PER_16: bool = false;
    const BIAS: i32 = 0;
    const MIN: bool = true;
    avx512! {
    unsafe fn head(w: *const u8) -> Head {
        // SAFETY: the caller's.
        unsafe { head_6_bit(w) }
    }
    }
    avx512! {
    unsafe fn codes(w: *const u8, j: usize) -> [__m512i; 8] {
        // SAFETY: lines of the step.
        let (high, low) = unsafe { (lines_8(w, 4), lines_8(w, 12 + 8 * (j / 2))) };
        with_high(field(low, 4 * (j % 2), 15), high, j, 1, 4)
    }
    }
}

/// Lines: d · 4 of scales · per half 8 of high bits and 16 of nibbles.
impl Codes for Q6_K {
    const LAYOUT: Layout = panel::Q6_K;
    const PREFETCH_ROWS: usize = 1;
    const PER_16: bool = true;
    const BIAS: i32 = 32;
    const MIN: bool = false;
    avx512! {
    unsafe fn head(w: *const u8) -> Head {
        // SAFETY: lines of the step.
        let (d, scales) = unsafe { (_mm256_load_si256(w.cast()), [line(w, 1), line(w, 2), line(w, 3), line(w, 4)]) };
        Head { d: _mm512_cvtph_ps(d), dmin: _mm512_setzero_ps(), scales, mins: scales }
    }
    }
    avx512! {
    unsafe fn codes(w: *const u8, j: usize) -> [__m512i; 8] {
        let (first, t) = (5 + 24 * (j / 4), j % 4);
        // SAFETY: lines of the step.
        let (high, low) = unsafe { (lines_8(w, first), lines_8(w, first + 8 + 8 * (t % 2))) };
        with_high(field(low, 4 * (t / 2), 15), high, 2 * t, 3, 4)
    }
    }
}

/// Lines: d and the upper bits of the scales · their lower bits · 32 of nibbles.
impl Codes for IQ4_XS {
    const LAYOUT: Layout = panel::IQ4_XS;
    const PREFETCH_ROWS: usize = 1;
    const PER_16: bool = false;
    const BIAS: i32 = 128;
    const MIN: bool = false;
    avx512! {
    unsafe fn head(w: *const u8) -> Head {
        // SAFETY: lines of the step.
        let (d, low) = unsafe { (line(w, 0), line(w, 1)) };
        // Scale j: nibble j of `low`, two bits 2j of `high`.
        let high = _mm512_srli_epi32::<16>(d);
        let (zero, byte) = (_mm512_setzero_si512(), _mm512_set1_epi32(63));
        let mut scales = [zero; 4];
        for j in 0..8 {
            let nibble = _mm512_and_si512(_mm512_srlv_epi32(low, _mm512_set1_epi32(4 * j)), _mm512_set1_epi32(15));
            let two = _mm512_and_si512(_mm512_srlv_epi32(high, _mm512_set1_epi32(2 * j)), _mm512_set1_epi32(3));
            let six = _mm512_and_si512(_mm512_or_si512(nibble, _mm512_slli_epi32::<4>(two)), byte);
            let at = _mm512_set1_epi32(8 * (j % 4));
            scales[j as usize / 4] = _mm512_or_si512(scales[j as usize / 4], _mm512_sllv_epi32(six, at));
        }
        for s in &mut scales {
            *s = _mm512_sub_epi8(*s, _mm512_set1_epi8(32));
        }
        Head { d: low_f16(d), dmin: _mm512_setzero_ps(), scales, mins: scales }
    }
    }
    avx512! {
    unsafe fn codes(w: *const u8, j: usize) -> [__m512i; 8] {
        let (low, table) = (_mm512_set1_epi8(15), iq4_table());
        let mut q = [low; 8];
        for i in 0..4 {
            // SAFETY: lines of the step.
            let both = unsafe { line(w, 2 + 4 * j + i) };
            q[i] = _mm512_shuffle_epi8(table, _mm512_and_si512(both, low));
            q[i + 4] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16::<4>(both), low));
        }
        q
    }
    }
}
