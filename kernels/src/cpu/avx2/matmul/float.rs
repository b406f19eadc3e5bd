//! Float weights: two chains of fused multiply-adds, even and odd k. A step is 32 k: sixteen pairs.

use std::arch::x86_64::*;

use super::{Activations, Step, f16_half, line};
use crate::panel::{self, Layout};

/// Widens one pair of k.
trait Pairs {
    const LAYOUT: Layout;

    /// Weights of k = 2i and 2i + 1.
    ///
    /// # Safety
    /// The panel step at `w` is readable and aligned.
    unsafe fn pair(w: *const u8, half: usize, i: usize) -> [__m256; 2];
}

pub(super) enum F32 {}
pub(super) enum F16 {}
pub(super) enum BF16 {}

impl Pairs for F32 {
    const LAYOUT: Layout = panel::F32;
    avx2! {
    unsafe fn pair(w: *const u8, half: usize, i: usize) -> [__m256; 2] {
        // SAFETY: lines of the step.
        unsafe { [_mm256_castsi256_ps(line(w, half, 2 * i)), _mm256_castsi256_ps(line(w, half, 2 * i + 1))] }
    }
    }
}

impl Pairs for F16 {
    const LAYOUT: Layout = panel::F16;
    avx2! {
    unsafe fn pair(w: *const u8, half: usize, i: usize) -> [__m256; 2] {
        // SAFETY: a line of the step.
        unsafe { [f16_half(w.add(64 * i), half), f16_half(w.add(64 * i + 32), half)] }
    }
    }
}

impl Pairs for BF16 {
    const LAYOUT: Layout = panel::BF16;
    avx2! {
    unsafe fn pair(w: *const u8, half: usize, i: usize) -> [__m256; 2] {
        // SAFETY: a line of the step.
        let halves = unsafe { line(w, half, i) };
        let odd = _mm256_and_si256(halves, _mm256_set1_epi32(-0x1_0000));
        [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves)), _mm256_castsi256_ps(odd)]
    }
    }
}

impl<P: Pairs> Step for P {
    const LAYOUT: Layout = P::LAYOUT;
    type Acc = [__m256; 2];
    // SAFETY: all-zero bits are a vector of zeros.
    const ZERO: [__m256; 2] = unsafe { std::mem::zeroed() };

    avx2! {
    unsafe fn step<const R: usize>(w: *const u8, half: usize, a: Activations, acc: &mut [[__m256; 2]; R]) {
        // SAFETY: the caller's.
        unsafe {
            let x = a.args.floats.add(32 * a.cell);
            for i in 0..16 {
                let [even, odd] = P::pair(w, half, i);
                for r in 0..R {
                    let x = x.add(32 * r + 2 * i);
                    acc[r][0] = _mm256_fmadd_ps(even, _mm256_set1_ps(*x), acc[r][0]);
                    acc[r][1] = _mm256_fmadd_ps(odd, _mm256_set1_ps(*x.add(1)), acc[r][1]);
                }
            }
        }
    }
    }

    avx2! {
    unsafe fn finish(acc: [__m256; 2]) -> __m256 {
        _mm256_add_ps(acc[0], acc[1])
    }
    }
}
