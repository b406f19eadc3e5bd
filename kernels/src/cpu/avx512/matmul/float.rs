//! Float weights: two chains of fused multiply-adds, even and odd k. A step is 32 k: sixteen pairs.

use std::arch::x86_64::*;

use super::{Activations, Step, line, prefetch};
use crate::panel::{self, Layout};

/// Widens one pair of k.
trait Pairs {
    const LAYOUT: Layout;
    const PREFETCH_ROWS: usize;

    /// Weights of k = 2i and 2i + 1.
    ///
    /// # Safety
    /// The panel step at `w` is readable and aligned.
    unsafe fn pair(w: *const u8, i: usize) -> [__m512; 2];
}

pub(super) enum F32 {}
pub(super) enum F16 {}
pub(super) enum BF16 {}

impl Pairs for F32 {
    const LAYOUT: Layout = panel::F32;
    const PREFETCH_ROWS: usize = 4;
    avx512! {
    unsafe fn pair(w: *const u8, i: usize) -> [__m512; 2] {
        // SAFETY: lines of the step.
        unsafe { [_mm512_castsi512_ps(line(w, 2 * i)), _mm512_castsi512_ps(line(w, 2 * i + 1))] }
    }
    }
}

impl Pairs for F16 {
    const LAYOUT: Layout = panel::F16;
    const PREFETCH_ROWS: usize = 2;
    avx512! {
    unsafe fn pair(w: *const u8, i: usize) -> [__m512; 2] {
        // SAFETY: a line of the step.
        let halves = unsafe { line(w, i) };
        [_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(halves))]
    }
    }
}

impl Pairs for BF16 {
    const LAYOUT: Layout = panel::BF16;
    const PREFETCH_ROWS: usize = 2;
    avx512! {
    unsafe fn pair(w: *const u8, i: usize) -> [__m512; 2] {
        // SAFETY: a line of the step.
        let halves = unsafe { line(w, i) };
        let odd = _mm512_and_si512(halves, _mm512_set1_epi32(-0x1_0000));
        [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves)), _mm512_castsi512_ps(odd)]
    }
    }
}

impl<P: Pairs> Step for P {
    const LAYOUT: Layout = P::LAYOUT;
    const PREFETCH_ROWS: usize = P::PREFETCH_ROWS;
    type Acc = [__m512; 2];
    // SAFETY: all-zero bits are a vector of zeros.
    const ZERO: [__m512; 2] = unsafe { std::mem::zeroed() };

    avx512! {
    unsafe fn step<const R: usize>(w: *const u8, ahead: *const u8, a: Activations, acc: &mut [[__m512; 2]; R]) {
        // SAFETY: the caller's.
        unsafe {
            let x = a.args.floats.add(32 * a.cell);
            let lines = P::LAYOUT.panel_bytes / 64 / 4;
            for quarter in 0..4 {
                prefetch(ahead, lines * quarter, lines);
                for i in 4 * quarter..4 * quarter + 4 {
                    let [even, odd] = P::pair(w, i);
                    for r in 0..R {
                        let x = x.add(32 * r + 2 * i);
                        acc[r][0] = _mm512_fmadd_ps(even, _mm512_set1_ps(*x), acc[r][0]);
                        acc[r][1] = _mm512_fmadd_ps(odd, _mm512_set1_ps(*x.add(1)), acc[r][1]);
                    }
                }
            }
        }
    }
    }

    avx512! {
    unsafe fn finish(acc: [__m512; 2]) -> __m512 {
        _mm512_add_ps(acc[0], acc[1])
    }
    }
}
