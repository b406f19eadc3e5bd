//! Formats with one scale per 32. A step is 64 k, two blocks: line 0 is their scales, line 1 their minima where the
//! format has them, then the codes of block 0 and of block 1.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::{Activations, Step, dot_32, line, prefetch};
use crate::blocks::IQ4_VALUES;
use crate::panel::{self, Layout};

/// Unpacks the codes of one format to unsigned bytes.
pub(super) trait Codes {
    const LAYOUT: Layout;
    const PREFETCH_ROWS: usize;
    /// What was added to the codes to make them unsigned, as an index of `Acts::correction`.
    const BIAS: Option<usize>;
    const MIN: bool;

    /// Block `h` of the step: register i holds k = 4i..4i + 4.
    ///
    /// # Safety
    /// The panel step at `w` is readable and aligned.
    unsafe fn codes(w: *const u8, h: usize) -> [__m512i; 8];
}

pub(super) struct Step32<C>(PhantomData<C>);

impl<C: Codes> Step for Step32<C> {
    const LAYOUT: Layout = C::LAYOUT;
    const PREFETCH_ROWS: usize = C::PREFETCH_ROWS;
    type Acc = __m512;
    // SAFETY: all-zero bits are a vector of zeros.
    const ZERO: __m512 = unsafe { std::mem::zeroed() };

    avx512! {
    unsafe fn step<const R: usize>(w: *const u8, ahead: *const u8, a: Activations, acc: &mut [__m512; R]) {
        // SAFETY: the caller's.
        unsafe {
            let lines = C::LAYOUT.panel_bytes / 64;
            for h in 0..2 {
                if h == 0 { prefetch(ahead, 0, lines / 2) } else { prefetch(ahead, lines / 2, lines - lines / 2) }
                let d = _mm512_cvtph_ps(_mm256_load_si256(w.add(32 * h).cast()));
                let m = if C::MIN { _mm512_cvtph_ps(_mm256_load_si256(w.add(64 + 32 * h).cast())) } else { Self::ZERO };
                let q = C::codes(w, h);
                for r in 0..R {
                    let at = 2 * (a.cell + r) + h;
                    let init = match C::BIAS {
                        Some(bias) => _mm512_set1_epi32(*a.args.correction[bias].add(at)),
                        None => _mm512_setzero_si512(),
                    };
                    let dot = _mm512_cvtepi32_ps(dot_32(init, &q, a.args.codes.add(32 * at)));
                    let scale = _mm512_mul_ps(d, _mm512_set1_ps(*a.args.scale.add(at)));
                    acc[r] = _mm512_fmadd_ps(dot, scale, acc[r]);
                    if C::MIN {
                        acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(*a.args.scaled_sum.add(at)), acc[r]);
                    }
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
/// Four lines of nibbles from line `first` on: low nibbles are k 0..16, high ones 16..32.
///
/// # Safety
/// The lines are readable and aligned.
unsafe fn nibbles(w: *const u8, first: usize) -> [__m512i; 8] {
    let low = _mm512_set1_epi8(15);
    let mut q = [_mm512_setzero_si512(); 8];
    for i in 0..4 {
        // SAFETY: the caller's.
        let both = unsafe { line(w, first + i) };
        q[i] = _mm512_and_si512(both, low);
        q[i + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(both), low);
    }
    q
}
}

avx512! {
/// Adds 16 where the fifth bit is set; bit k of lane n of `high` belongs to weight k.
fn fifth_bits(mut q: [__m512i; 8], high: __m512i) -> [__m512i; 8] {
    for i in 0..8 {
        // The byte with bits 4i..4i + 4, in all four bytes of each lane; then one bit of it in each.
        let byte = (i / 2) as i32;
        let lane = _mm_add_epi8(_mm_set1_epi8(byte as i8), _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
        let spread = _mm512_shuffle_epi8(high, _mm512_broadcast_i32x4(lane));
        let bit = _mm512_set1_epi32(if i % 2 == 0 { 0x0804_0201 } else { 0x8040_2010_u32 as i32 });
        let set = _mm512_test_epi8_mask(spread, bit);
        q[i] = _mm512_mask_add_epi8(q[i], set, q[i], _mm512_set1_epi8(16));
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
}
pub(super) use formats::*;

impl Codes for Q4_0 {
    const LAYOUT: Layout = panel::NIBBLES;
    const PREFETCH_ROWS: usize = 2;
    const BIAS: Option<usize> = Some(0);
    const MIN: bool = false;
    avx512! {
    unsafe fn codes(w: *const u8, h: usize) -> [__m512i; 8] {
        // SAFETY: lines of the step.
        unsafe { nibbles(w, 1 + 4 * h) }
    }
    }
}

impl Codes for Q4_1 {
    const LAYOUT: Layout = panel::Q4_1;
    const PREFETCH_ROWS: usize = 2;
    const BIAS: Option<usize> = None;
    const MIN: bool = true;
    avx512! {
    unsafe fn codes(w: *const u8, h: usize) -> [__m512i; 8] {
        // SAFETY: lines of the step.
        unsafe { nibbles(w, 2 + 4 * h) }
    }
    }
}

impl Codes for Q5_0 {
    const LAYOUT: Layout = panel::Q5_0;
    const PREFETCH_ROWS: usize = 2;
    const BIAS: Option<usize> = Some(1);
    const MIN: bool = false;
    avx512! {
    unsafe fn codes(w: *const u8, h: usize) -> [__m512i; 8] {
        // SAFETY: lines of the step.
        unsafe { let high = line(w, 1 + 5 * h); fifth_bits(nibbles(w, 2 + 5 * h), high) }
    }
    }
}

impl Codes for Q5_1 {
    const LAYOUT: Layout = panel::Q5_1;
    const PREFETCH_ROWS: usize = 2;
    const BIAS: Option<usize> = None;
    const MIN: bool = true;
    avx512! {
    unsafe fn codes(w: *const u8, h: usize) -> [__m512i; 8] {
        // SAFETY: lines of the step.
        unsafe { let high = line(w, 2 + 5 * h); fifth_bits(nibbles(w, 3 + 5 * h), high) }
    }
    }
}

impl Codes for Q8_0 {
    const LAYOUT: Layout = panel::Q8_0;
    const PREFETCH_ROWS: usize = 4;
    const BIAS: Option<usize> = Some(2);
    const MIN: bool = false;
    avx512! {
    unsafe fn codes(w: *const u8, h: usize) -> [__m512i; 8] {
        let sign = _mm512_set1_epi8(-128);
        let mut q = [sign; 8];
        for i in 0..8 {
            // SAFETY: lines of the step.
            q[i] = _mm512_xor_si512(unsafe { line(w, 1 + 8 * h + i) }, sign);
        }
        q
    }
    }
}

impl Codes for IQ4_NL {
    const LAYOUT: Layout = panel::NIBBLES;
    const PREFETCH_ROWS: usize = 2;
    const BIAS: Option<usize> = Some(2);
    const MIN: bool = false;
    avx512! {
    unsafe fn codes(w: *const u8, h: usize) -> [__m512i; 8] {
        // SAFETY: lines of the step.
        let mut q = unsafe { nibbles(w, 1 + 4 * h) };
        let table = iq4_table();
        for q in &mut q {
            *q = _mm512_shuffle_epi8(table, *q);
        }
        q
    }
    }
}

avx512! {
/// The non-linear 4-bit values plus 128.
pub(super) fn iq4_table() -> __m512i {
    // SAFETY: the array is 16 bytes.
    let values = unsafe { _mm_loadu_si128(IQ4_VALUES.as_ptr().cast()) };
    _mm512_broadcast_i32x4(_mm_xor_si128(values, _mm_set1_epi8(-128)))
}
}
