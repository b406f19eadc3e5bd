//! Sixteen lanes in one register.
#![expect(unsafe_code, reason = "intrinsics; a value of `Avx512` proves that they exist")]

use std::arch::x86_64::*;

use crate::cpu::lanes::{Kernel, LANES, ROUND_MAGIC, Simd, Vector};

/// Made by [`run`] alone.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// Made from an [`Avx512`] alone.
#[derive(Clone, Copy)]
pub(crate) struct V(__m512);

/// The caller, `dispatch`, has checked the instruction set.
#[inline]
pub(crate) fn run<K: Kernel>(kernel: K) -> K::Out {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
    fn inner<K: Kernel>(kernel: K) -> K::Out {
        kernel.run(Avx512(()))
    }
    // SAFETY: `dispatch` asserts that detection found AVX-512, its subsets included.
    unsafe { inner(kernel) }
}

impl Simd for Avx512 {
    type V = V;
    const REGISTERS: usize = 24;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        // SAFETY: the instruction set is present, as `self` proves.
        V(unsafe { _mm512_set1_ps(x) })
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        // SAFETY: as in `splat`; 16 floats are readable.
        V(unsafe { _mm512_loadu_ps(x.as_ptr()) })
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> V {
        // SAFETY: as in `splat`; 32 bytes are readable.
        V(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) })
    }
}

impl Vector for V {
    #[inline(always)]
    fn store(self, dst: &mut [f32; LANES]) {
        // SAFETY: the instruction set is present, as `self` proves; 16 floats are writable.
        unsafe { _mm512_storeu_ps(dst.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        // SAFETY: as in `store`.
        V(unsafe { _mm512_add_ps(self.0, b.0) })
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        // SAFETY: as in `store`.
        V(unsafe { _mm512_sub_ps(self.0, b.0) })
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        // SAFETY: as in `store`.
        V(unsafe { _mm512_mul_ps(self.0, b.0) })
    }
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        // SAFETY: as in `store`.
        V(unsafe { _mm512_div_ps(self.0, b.0) })
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: as in `store`.
        V(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        // SAFETY: as in `store`. The instruction returns its second operand when either is NaN, as specified.
        V(unsafe { _mm512_max_ps(self.0, b.0) })
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        // SAFETY: as in `store`.
        V(unsafe { _mm512_min_ps(self.0, b.0) })
    }
    #[inline(always)]
    fn scale(self, rounded: Self) -> Self {
        // SAFETY: as in `store`.
        unsafe {
            let n = _mm512_sub_epi32(_mm512_castps_si512(rounded.0), _mm512_set1_epi32(ROUND_MAGIC.to_bits() as i32));
            let half = _mm512_srai_epi32::<1>(n);
            let bias = _mm512_set1_epi32(127);
            let low = _mm512_slli_epi32::<23>(_mm512_add_epi32(half, bias));
            let high = _mm512_slli_epi32::<23>(_mm512_add_epi32(_mm512_sub_epi32(n, half), bias));
            V(_mm512_mul_ps(_mm512_mul_ps(self.0, _mm512_castsi512_ps(low)), _mm512_castsi512_ps(high)))
        }
    }
    #[inline(always)]
    fn first(self, n: usize, rest: Self) -> Self {
        let mask = if n >= LANES { u16::MAX } else { (1 << n) - 1 };
        // SAFETY: as in `store`.
        V(unsafe { _mm512_mask_mov_ps(rest.0, mask, self.0) })
    }
}
