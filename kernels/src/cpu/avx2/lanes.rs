//! Sixteen lanes in two registers.
#![expect(unsafe_code, reason = "intrinsics; a value of `Avx2` proves that they exist")]

use std::arch::x86_64::*;

use crate::cpu::lanes::{Kernel, LANES, ROUND_MAGIC, Simd, Vector};

/// Made by [`run`] alone.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// Made from an [`Avx2`] alone: lanes 0..8, lanes 8..16.
#[derive(Clone, Copy)]
pub(crate) struct V(__m256, __m256);

/// The caller, `dispatch`, has checked the instruction set.
#[inline]
pub(crate) fn run<K: Kernel>(kernel: K) -> K::Out {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn inner<K: Kernel>(kernel: K) -> K::Out {
        kernel.run(Avx2(()))
    }
    // SAFETY: `dispatch` asserts that detection found AVX2, FMA and F16C.
    unsafe { inner(kernel) }
}

impl Simd for Avx2 {
    type V = V;
    const REGISTERS: usize = 6;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        // SAFETY: the instruction set is present, as `self` proves.
        let x = unsafe { _mm256_set1_ps(x) };
        V(x, x)
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        // SAFETY: as in `splat`; 16 floats are readable.
        unsafe { V(_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))) }
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> V {
        // SAFETY: as in `splat`; 32 bytes are readable.
        unsafe {
            V(
                _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().add(8).cast())),
            )
        }
    }
}

impl Vector for V {
    #[inline(always)]
    fn store(self, dst: &mut [f32; LANES]) {
        // SAFETY: the instruction set is present, as `self` proves; 16 floats are writable.
        unsafe {
            _mm256_storeu_ps(dst.as_mut_ptr(), self.0);
            _mm256_storeu_ps(dst.as_mut_ptr().add(8), self.1);
        }
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        // SAFETY: as in `store`.
        unsafe { V(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        // SAFETY: as in `store`.
        unsafe { V(_mm256_sub_ps(self.0, b.0), _mm256_sub_ps(self.1, b.1)) }
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        // SAFETY: as in `store`.
        unsafe { V(_mm256_mul_ps(self.0, b.0), _mm256_mul_ps(self.1, b.1)) }
    }
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        // SAFETY: as in `store`.
        unsafe { V(_mm256_div_ps(self.0, b.0), _mm256_div_ps(self.1, b.1)) }
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: as in `store`.
        unsafe { V(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        // SAFETY: as in `store`. The instruction returns its second operand when either is NaN, as specified.
        unsafe { V(_mm256_max_ps(self.0, b.0), _mm256_max_ps(self.1, b.1)) }
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        // SAFETY: as in `store`.
        unsafe { V(_mm256_min_ps(self.0, b.0), _mm256_min_ps(self.1, b.1)) }
    }
    #[inline(always)]
    fn scale(self, rounded: Self) -> Self {
        // SAFETY: as in `store`.
        unsafe { V(scale(self.0, rounded.0), scale(self.1, rounded.1)) }
    }
    #[inline(always)]
    fn first(self, n: usize, rest: Self) -> Self {
        // SAFETY: as in `store`.
        unsafe {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let n = _mm256_set1_epi32(n.min(LANES) as i32);
            let low = _mm256_cmpgt_epi32(n, lane);
            let high = _mm256_cmpgt_epi32(n, _mm256_add_epi32(lane, _mm256_set1_epi32(8)));
            V(
                _mm256_blendv_ps(rest.0, self.0, _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(rest.1, self.1, _mm256_castsi256_ps(high)),
            )
        }
    }
}

/// [`Vector::scale`] of eight lanes.
///
/// # Safety
/// AVX2 is present.
#[inline(always)]
unsafe fn scale(x: __m256, rounded: __m256) -> __m256 {
    // SAFETY: AVX2 is present.
    unsafe {
        let n = _mm256_sub_epi32(_mm256_castps_si256(rounded), _mm256_set1_epi32(ROUND_MAGIC.to_bits() as i32));
        let half = _mm256_srai_epi32::<1>(n);
        let bias = _mm256_set1_epi32(127);
        let low = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
        let high = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias));
        _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(low)), _mm256_castsi256_ps(high))
    }
}
