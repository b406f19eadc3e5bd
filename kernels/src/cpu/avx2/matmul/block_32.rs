//! Formats with one scale per 32. A step is 64 k, two blocks: line 0 is their scales, line 1 their minima where the
//! format has them, then the codes of block 0 and of block 1.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::{Activations, Step, dot, f16_half, line, lines_8};
use crate::blocks::IQ4_VALUES;
use crate::panel::{self, Layout};

/// How the codes of a format are multiplied.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Range {
    Below16,
    Below32,
    Signed,
}

/// Unpacks the codes of one format to bytes.
pub(super) trait Codes {
    const LAYOUT: Layout;
    const RANGE: Range;
    /// What was added to the codes to make them unsigned, as an index of `Acts::correction`.
    const BIAS: Option<usize>;
    const MIN: bool;
    /// Scales are f32, a line a block; else f16, half a line a block.
    const FLOAT_SCALE: bool = false;

    /// Block `h` of the step: register i holds k = 4i..4i + 4.
    ///
    /// # Safety
    /// The panel step at `w` is readable and aligned.
    unsafe fn codes(w: *const u8, half: usize, h: usize) -> [__m256i; 8];
}

pub(super) struct Step32<C>(PhantomData<C>);

impl<C: Codes> Step for Step32<C> {
    const LAYOUT: Layout = C::LAYOUT;
    type Acc = __m256;
    // SAFETY: all-zero bits are a vector of zeros.
    const ZERO: __m256 = unsafe { std::mem::zeroed() };

    avx2! {
    unsafe fn step<const R: usize>(w: *const u8, half: usize, a: Activations, acc: &mut [__m256; R]) {
        // SAFETY: the caller's.
        unsafe {
            let one = _mm256_set1_epi16(1);
            for h in 0..2 {
                let d = match C::FLOAT_SCALE {
                    true => _mm256_castsi256_ps(line(w, half, h)),
                    false => f16_half(w.add(32 * h), half),
                };
                let m = if C::MIN { f16_half(w.add(64 + 32 * h), half) } else { Self::ZERO };
                let q = C::codes(w, half, h);
                for r in 0..R {
                    let at = 2 * (a.cell + r) + h;
                    let x = a.args.codes.add(32 * at);
                    let mut sum = match C::RANGE {
                        Range::Below16 => dot::<8, 8, false>(&q, x, one),
                        Range::Below32 => dot::<8, 4, false>(&q, x, one),
                        Range::Signed => dot::<8, 1, true>(&q, x, one),
                    };
                    if let Some(bias) = C::BIAS {
                        sum = _mm256_add_epi32(sum, _mm256_set1_epi32(*a.args.correction[bias].add(at)));
                    }
                    let scale = _mm256_mul_ps(d, _mm256_set1_ps(*a.args.scale.add(at)));
                    acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, acc[r]);
                    if C::MIN {
                        acc[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(*a.args.scaled_sum.add(at)), acc[r]);
                    }
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
/// Four lines of nibbles from line `first` on: low nibbles are k 0..16, high ones 16..32.
///
/// # Safety
/// The lines are readable and aligned.
unsafe fn nibbles(w: *const u8, half: usize, first: usize) -> [__m256i; 8] {
    let low = _mm256_set1_epi8(15);
    let mut q = [low; 8];
    for i in 0..4 {
        // SAFETY: the caller's.
        let both = unsafe { line(w, half, first + i) };
        q[i] = _mm256_and_si256(both, low);
        q[i + 4] = _mm256_and_si256(_mm256_srli_epi16::<4>(both), low);
    }
    q
}
}

avx2! {
/// Adds 16 where the fifth bit is set; bit k of lane n of `high` belongs to weight k.
fn fifth_bits(mut q: [__m256i; 8], high: __m256i) -> [__m256i; 8] {
    let lane = _mm256_setr_epi8(
        0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12,
    );
    for i in 0..8 {
        // The byte with bits 4i..4i + 4, in all four bytes of each lane; then one bit of it in each.
        let spread = _mm256_shuffle_epi8(high, _mm256_add_epi8(lane, _mm256_set1_epi8(i as i8 / 2)));
        let bit = _mm256_set1_epi32(if i % 2 == 0 { 0x0804_0201 } else { 0x8040_2010_u32 as i32 });
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
        q[i] = _mm256_or_si256(q[i], _mm256_and_si256(set, _mm256_set1_epi8(16)));
    }
    q
}
}

#[allow(non_camel_case_types, reason = "the spelling of the file format")]
mod formats {
    pub(in super::super) enum Q4_0 {}
    pub(in super::super) enum Q4_1 {}
    pub(in super::super) enum Q5_0 {}
    pub(in super::super) enum Q5_1 {}
    pub(in super::super) enum Q8_0 {}
    pub(in super::super) enum IQ4_NL {}
    pub(in super::super) enum Wide32 {}
}
pub(super) use formats::*;

impl Codes for Q4_0 {
    const LAYOUT: Layout = panel::NIBBLES;
    const RANGE: Range = Range::Below16;
    const BIAS: Option<usize> = Some(0);
    const MIN: bool = false;
    avx2! {
    unsafe fn codes(w: *const u8, half: usize, h: usize) -> [__m256i; 8] {
        // SAFETY: lines of the step.
        unsafe { nibbles(w, half, 1 + 4 * h) }
    }
    }
}

impl Codes for Q4_1 {
    const LAYOUT: Layout = panel::Q4_1;
    const RANGE: Range = Range::Below16;
    const BIAS: Option<usize> = None;
    const MIN: bool = true;
    avx2! {
    unsafe fn codes(w: *const u8, half: usize, h: usize) -> [__m256i; 8] {
        // SAFETY: lines of the step.
        unsafe { nibbles(w, half, 2 + 4 * h) }
    }
    }
}

impl Codes for Q5_0 {
    const LAYOUT: Layout = panel::Q5_0;
    const RANGE: Range = Range::Below32;
    const BIAS: Option<usize> = Some(1);
    const MIN: bool = false;
    avx2! {
    unsafe fn codes(w: *const u8, half: usize, h: usize) -> [__m256i; 8] {
        // SAFETY: lines of the step.
        unsafe { let high = line(w, half, 1 + 5 * h); fifth_bits(nibbles(w, half, 2 + 5 * h), high) }
    }
    }
}

impl Codes for Q5_1 {
    const LAYOUT: Layout = panel::Q5_1;
    const RANGE: Range = Range::Below32;
    const BIAS: Option<usize> = None;
    const MIN: bool = true;
    avx2! {
    unsafe fn codes(w: *const u8, half: usize, h: usize) -> [__m256i; 8] {
        // SAFETY: lines of the step.
        unsafe { let high = line(w, half, 2 + 5 * h); fifth_bits(nibbles(w, half, 3 + 5 * h), high) }
    }
    }
}

impl Codes for Q8_0 {
    const LAYOUT: Layout = panel::Q8_0;
    const RANGE: Range = Range::Signed;
    const BIAS: Option<usize> = None;
    const MIN: bool = false;
    avx2! {
    unsafe fn codes(w: *const u8, half: usize, h: usize) -> [__m256i; 8] {
        // SAFETY: lines of the step.
        unsafe { lines_8(w, half, 1 + 8 * h) }
    }
    }
}

impl Codes for IQ4_NL {
    const LAYOUT: Layout = panel::NIBBLES;
    const RANGE: Range = Range::Signed;
    const BIAS: Option<usize> = None;
    const MIN: bool = false;
    avx2! {
    unsafe fn codes(w: *const u8, half: usize, h: usize) -> [__m256i; 8] {
        // SAFETY: lines of the step.
        let mut q = unsafe { nibbles(w, half, 1 + 4 * h) };
        let table = iq4_table();
        for q in &mut q {
            *q = _mm256_shuffle_epi8(table, *q);
        }
        q
    }
    }
}

impl Codes for Wide32 {
    const LAYOUT: Layout = panel::WIDE_32;
    const RANGE: Range = Range::Signed;
    const BIAS: Option<usize> = None;
    const MIN: bool = false;
    const FLOAT_SCALE: bool = true;
    avx2! {
    unsafe fn codes(w: *const u8, half: usize, h: usize) -> [__m256i; 8] {
        // SAFETY: lines of the step.
        unsafe { lines_8(w, half, 2 + 8 * h) }
    }
    }
}

avx2! {
/// The non-linear 4-bit values.
pub(super) fn iq4_table() -> __m256i {
    // SAFETY: the array is 16 bytes.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(IQ4_VALUES.as_ptr().cast()) })
}
}
