//! Dot products of bytes in registers.
#![expect(unsafe_code, reason = "instructions that were detected")]

use std::arch::x86_64::*;

/// More than latency times throughput of `vpdpbusd` anywhere.
const CHAINS: usize = 12;

pub(crate) const INT8_PER_TURN: usize = CHAINS * 64;

/// The caller has checked the instruction set.
pub(crate) fn int8(turns: usize) -> i32 {
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn inner(turns: usize) -> i32 {
        let (a, b) = (_mm512_set1_epi8(3), _mm512_set1_epi8(-5));
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = _mm512_set1_epi32(i as i32); // equal chains would be computed once
        }
        for _ in 0..turns {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        let mut total = _mm512_setzero_si512();
        for sum in sums {
            total = _mm512_add_epi32(total, sum);
        }
        _mm512_reduce_add_epi32(total)
    }
    // SAFETY: the caller has asserted that detection found AVX-512, VNNI included.
    unsafe { inner(turns) }
}
