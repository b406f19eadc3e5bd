//! The format with one scale per 16. A step is 64 k: four lines of scales, then the codes of both 32s.

use std::arch::x86_64::*;

use super::{Activations, Step, dot, line};
use crate::panel::{self, Layout};

pub(super) enum Wide16 {}

impl Step for Wide16 {
    const LAYOUT: Layout = panel::WIDE_16;
    type Acc = __m256;
    // SAFETY: all-zero bits are a vector of zeros.
    const ZERO: __m256 = unsafe { std::mem::zeroed() };

    avx2! {
    unsafe fn step<const R: usize>(w: *const u8, half: usize, a: Activations, acc: &mut [__m256; R]) {
        // SAFETY: the caller's; lines of the step.
        unsafe {
            let one = _mm256_set1_epi16(1);
            for h in 0..4 {
                let d = _mm256_castsi256_ps(line(w, half, h));
                let mut q = [one; 4];
                for i in 0..4 {
                    q[i] = line(w, half, 4 + 4 * h + i);
                }
                for r in 0..R {
                    let at = 2 * (a.cell + r) + h / 2;
                    let sum = dot::<4, 1, true>(&q, a.args.codes.add(32 * at + 16 * (h % 2)), one);
                    let scale = _mm256_mul_ps(d, _mm256_set1_ps(*a.args.scale.add(at)));
                    acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, acc[r]);
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
