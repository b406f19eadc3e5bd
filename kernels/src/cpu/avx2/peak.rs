//! Dot products of bytes in registers.
#![expect(unsafe_code, reason = "instructions that were detected")]

use std::arch::x86_64::*;

/// More than latency times throughput of what a chain is made of, and with the factor fewer than the registers.
const CHAINS: usize = 12;

pub(crate) const INT8_PER_TURN: usize = CHAINS * 32;

/// A product and a sum of 16 bits for every 32 bytes: kernels widen the sums on top, once for several of them. The caller
/// has checked the instruction set.
pub(crate) fn int8(turns: usize) -> i32 {
    #[target_feature(enable = "avx2")]
    fn inner(turns: usize) -> i32 {
        let factor = _mm256_set1_epi8(3);
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = _mm256_set1_epi16(1 + i as i16); // equal chains would be computed once
        }
        for _ in 0..turns {
            for sum in &mut sums {
                // A factor that changes: constant products would be taken out of the loop.
                *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(*sum, factor));
            }
        }
        let mut total = _mm256_setzero_si256();
        for sum in sums {
            total = _mm256_add_epi16(total, sum);
        }
        _mm256_extract_epi32::<0>(total)
    }
    // SAFETY: the caller has asserted that detection found AVX2.
    unsafe { inner(turns) }
}
