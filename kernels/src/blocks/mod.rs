//! The stored forms of a weight row, one file per format: layout, size, scalar decoding.
//!
//! Every format is one of four families, and a family has one dequantisation formula and one dot product:
//!
//! | family | decoded block | value | partner of the activations |
//! |---|---|---|---|
//! | float | `f32` | itself | `f32` |
//! | [`Block16`] | two `d`, 32 codes | `code * d` | int8 with one scale per 32 |
//! | [`Block32`] | `d`, `m`, 32 codes | `code * d` or `code * d + m` | int8 with one scale per 32 |
//! | [`Block256`] | `d`, `dmin`, 256 codes, 16 scales and mins | `(d * scale) * code - dmin * min` | int8 with one scale per 256 |
//!
//! The formulas of this folder are the specification that every kernel follows bit for bit.

mod decode;
mod encode;
pub(crate) mod float;
mod grids;
pub(crate) mod iq1_m;
pub(crate) mod iq1_s;
pub(crate) mod iq2_s;
pub(crate) mod iq2_xs;
pub(crate) mod iq2_xxs;
pub(crate) mod iq3_s;
pub(crate) mod iq3_xxs;
pub(crate) mod iq4_nl;
pub(crate) mod iq4_xs;
pub(crate) mod mxfp4;
pub(crate) mod nvfp4;
pub(crate) mod q1_0;
pub(crate) mod q2_0;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(crate) mod q4_0;
pub(crate) mod q4_1;
pub(crate) mod q4_k;
pub(crate) mod q5_0;
pub(crate) mod q5_1;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
pub(crate) mod q8_0;
mod search;
pub(crate) mod tq1_0;
pub(crate) mod tq2_0;
pub(crate) mod wide;

use half::f16;

/// Decoded block of 32 weights with a scale per 16: value = `code * d`.
pub(crate) struct Block16 {
    pub d: [f32; 2],
    pub code: [i8; 32],
}

/// Decoded block of 32 weights with one scale: value = `code * d`, plus `m` in the formats that have a minimum.
pub(crate) struct Block32 {
    pub d: f32,
    pub m: f32,
    pub code: [i8; 32],
}

/// Decoded super-block of 256 weights: value = `(d * scale) * code - dmin * min`, scale and min per 16 weights.
/// Formats without minima have `dmin == 0` and `min == 0`.
pub(crate) struct Block256 {
    pub d: f32,
    pub dmin: f32,
    pub code: [i8; 256],
    pub scale: [i8; 16],
    pub min: [u8; 16],
}

/// Exact widening of the f16 at `bytes[at..at + 2]`.
#[inline(always)]
pub(crate) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The f32 at `bytes[at..at + 4]`.
#[inline(always)]
pub(crate) fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_bits(u32_at(bytes, at))
}

/// The little-endian word at `bytes[at..at + 2]`.
#[inline(always)]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The little-endian dword at `bytes[at..at + 4]`.
#[inline(always)]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The 16 values of the two non-linear 4-bit formats. Source: ggml `kvalues_iq4nl` (ggml-common.h).
pub(crate) const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The 16 values of E2M1, doubled. Source: ggml `kvalues_mxfp4` (ggml-common.h).
pub(crate) const FP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl Block16 {
    /// Writes the 32 values.
    #[inline(always)]
    pub(crate) fn dequantize(&self, dst: &mut [f32]) {
        for (h, (dst, code)) in dst.chunks_exact_mut(16).zip(self.code.as_chunks::<16>().0).enumerate() {
            for (dst, &code) in dst.iter_mut().zip(code) {
                *dst = f32::from(code) * self.d[h];
            }
        }
    }

    /// Exact dot product of the codes of half `h` with its activation codes.
    pub(crate) fn dot(&self, h: usize, x: &[i8]) -> i32 {
        self.code[16 * h..][..16].iter().zip(&x[16 * h..][..16]).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum()
    }
}

impl Block32 {
    /// Writes the 32 values. `min`: the format has a minimum.
    #[inline(always)]
    pub(crate) fn dequantize(&self, min: bool, dst: &mut [f32]) {
        for (dst, &code) in dst.iter_mut().zip(&self.code) {
            let value = f32::from(code) * self.d;
            *dst = if min { value + self.m } else { value };
        }
    }

    /// Exact dot product of the codes.
    pub(crate) fn dot(&self, x: &[i8]) -> i32 {
        self.code.iter().zip(x).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum()
    }
}

impl Block256 {
    /// Writes the 256 values.
    #[inline(always)]
    pub(crate) fn dequantize(&self, dst: &mut [f32]) {
        for (j, (dst, code)) in dst.chunks_exact_mut(16).zip(self.code.chunks_exact(16)).enumerate() {
            let (scale, min) = (self.d * f32::from(self.scale[j]), self.dmin * f32::from(self.min[j]));
            for (dst, &code) in dst.iter_mut().zip(code) {
                *dst = scale * f32::from(code) - min;
            }
        }
    }

    /// Exact scaled dot product of the codes, and exact dot product of the mins with the sums of 16 activation codes.
    pub(crate) fn dot(&self, x: &[i8]) -> (i32, i32) {
        let (mut scaled, mut mins) = (0i32, 0i32);
        for (j, (code, x)) in self.code.chunks_exact(16).zip(x.chunks_exact(16)).enumerate() {
            let dot: i32 = code.iter().zip(x).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum();
            let sum: i32 = x.iter().map(|&x| i32::from(x)).sum();
            scaled += i32::from(self.scale[j]) * dot;
            mins += i32::from(self.min[j]) * sum;
        }
        (scaled, mins)
    }
}
