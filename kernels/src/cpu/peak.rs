//! What the machine can do at best, for benchmarks to compare with.

use std::ops::Range;

use super::detect::Isa;
use super::lanes::{Kernel, LANES, Simd, Vector, dispatch};
use super::pages::AlignedBytes;

/// Independent chains of 16 lanes, so many that they cover the latency, and few enough for the registers: those of
/// AVX-512 hold 16 lanes each, others half of that.
const CHAINS: usize = 5;
/// The same on AVX-512.
const CHAINS_WIDE: usize = 10;

struct Fma<const CHAINS: usize>(usize);

impl<const CHAINS: usize> Kernel for Fma<CHAINS> {
    type Out = f32;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (a, b) = (s.splat(0.999), s.splat(0.001));
        let mut sums = [s.splat(0.0); CHAINS];
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = s.splat(i as f32); // equal chains would be computed once
        }
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = sum.mul_add(a, b);
            }
        }
        sums.into_iter().fold(0.0, |total, sum| total + sum.sum())
    }
}

/// Fused multiply-adds that [`fma_chains`] does a turn.
pub fn fma_per_turn(isa: Isa) -> usize {
    LANES * if isa == Isa::Avx512 { CHAINS_WIDE } else { CHAINS }
}

/// `turns` times [`fma_per_turn`] fused multiply-adds in registers: divide by the time it takes for the peak of `isa`.
/// The value has no meaning; it keeps the work alive.
///
/// # Panics
/// If the machine does not have the instruction set.
pub fn fma_chains(isa: Isa, turns: usize) -> f32 {
    match isa {
        Isa::Avx512 => dispatch(isa, Fma::<CHAINS_WIDE>(turns)),
        Isa::Avx2 | Isa::Scalar => dispatch(isa, Fma::<CHAINS>(turns)),
    }
}

/// Products of two bytes that [`int8_chains`] adds up a turn.
pub fn int8_per_turn(isa: Isa) -> usize {
    match isa {
        Isa::Scalar => CHAINS * LANES,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => super::avx2::peak::INT8_PER_TURN,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => super::avx512::peak::INT8_PER_TURN,
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => unreachable!("detected x86 on another machine"),
    }
}

/// As [`fma_chains`], of the products of bytes that integer kernels of `isa` are made of.
///
/// # Panics
/// If the machine does not have the instruction set.
pub fn int8_chains(isa: Isa, turns: usize) -> i32 {
    assert!(isa <= Isa::best(), "{isa:?} is not available on this machine");
    match isa {
        Isa::Scalar => plain_int8(turns),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => super::avx2::peak::int8(turns),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => super::avx512::peak::int8(turns),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => unreachable!("detected x86 on another machine"),
    }
}

fn plain_int8(turns: usize) -> i32 {
    let mut sums: [i32; CHAINS * LANES] = std::array::from_fn(|i| i as i32);
    for _ in 0..turns {
        // A factor that changes: constant products would be taken out of the loop.
        sums.iter_mut().for_each(|sum| *sum = sum.wrapping_add(i32::from(*sum as i8) * 3));
    }
    sums.into_iter().fold(0, i32::wrapping_add)
}

/// Reads every byte once and mixes them.
pub fn read(bytes: &[u8]) -> u64 {
    let (lines, rest) = bytes.as_chunks::<64>();
    let mut mix = [0u64; 8];
    for line in lines {
        for (mix, word) in mix.iter_mut().zip(line.as_chunks::<8>().0) {
            *mix ^= u64::from_le_bytes(*word);
        }
    }
    mix.iter().fold(0, |a, b| a ^ b) ^ rest.iter().fold(0, |a, b| a ^ u64::from(*b))
}

/// Memory to be read plainly, all of it written once, so that every page is one of its own.
pub struct ReadBuffer(AlignedBytes);

impl ReadBuffer {
    /// `len` bytes, in huge pages if the system gives them, or in none. Where it cannot be asked (not on Linux), pages are
    /// as they come.
    pub fn new(len: usize, huge_pages: bool) -> Self {
        Self(if huge_pages { AlignedBytes::zeroed(len) } else { AlignedBytes::in_small_pages(len) })
    }

    /// [`read`] of a part.
    ///
    /// # Panics
    /// If the range ends beyond the buffer.
    pub fn read(&self, range: Range<usize>) -> u64 {
        read(&self.0[range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The work is done as often as was asked: what has no meaning depends on it all the same.
    #[test]
    fn every_turn_counts() {
        for isa in Isa::available() {
            assert_ne!(fma_chains(isa, 3), fma_chains(isa, 4), "{isa:?}");
            assert_ne!(int8_chains(isa, 3), int8_chains(isa, 4), "{isa:?}");
            assert!(fma_per_turn(isa) >= CHAINS * LANES && int8_per_turn(isa) >= CHAINS * LANES, "{isa:?}");
        }
    }

    #[test]
    fn a_read_takes_every_byte() {
        let bytes: Vec<u8> = (0..200).map(|i| (i % 3) as u8).collect();
        let whole = read(&bytes);
        for i in 0..bytes.len() {
            let mut other = bytes.clone();
            other[i] ^= 0x40;
            assert_ne!(read(&other), whole, "byte {i}");
        }
        for huge in [true, false] {
            assert_eq!(ReadBuffer::new(5 << 20, huge).read(1..5 << 20), 0, "zeros");
        }
    }
}
