//! The weight formats and the specification of one output element.
//!
//! An output `dst[r][n] = sum_k x[r][k] * w[n][k]` is a function of row `r` of `x`, row `n` of `w`, the format and the
//! [`Activation`] mode alone. Its operations, in this order, are the same in every kernel of this crate:
//!
//! - **integer, 32-blocks**: per block ascending, `s` = exact int32 dot product of the codes, then
//!   `acc = fma(s, d * dx, acc)` and, in formats with a minimum, `acc = fma(m, sx, acc)`; see [`crate::input`] for the
//!   activation's `dx`, `sx` and codes.
//! - **integer, 256-blocks**: per block ascending, `s` and `t` = exact int32 scaled dot product and dot product of the
//!   mins, then `acc = fma(s, d * dx, acc)` and, in formats with minima, `acc = fma(-t, dmin * dx, acc)`.
//! - **float weights, and every format in [`Activation::Exact`]**: two chains, `e = fma(w, x, e)` over even k ascending
//!   and `o` over odd k, then `e + o`.
//! - finally `+ 0.0`, so that no output is negative zero. This makes zero padding of K invisible: kernels may pad to
//!   their step.
//!
//! `fma` is fused; int32 to f32 rounds to even; f16 and bf16 widen exactly.

use crate::blocks::{
    Block32, Block256, float, iq4_nl, iq4_xs, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0,
};
use crate::input::{Plain, Quantize};

/// A weight format. Spelled as in GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the documentation; layouts are in blocks/")]
#[allow(non_camel_case_types, reason = "the spelling of the file format")]
pub enum Quant {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

/// What the activations are multiplied as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Quantised to int8 as the weight format's partner asks: one scale per 32 for 32-blocks, one per 256 for
    /// 256-blocks. Float weights take float activations.
    Integer,
    /// Float activations against dequantised weights, for every format.
    Exact,
}

/// The arithmetic family of a format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Float,
    /// `min`: the format has a minimum beside the scale.
    Block32 {
        min: bool,
    },
    Block256 {
        min: bool,
    },
}

impl Quant {
    /// Every format, in the order of the enum.
    pub const ALL: [Quant; 15] = [
        Quant::F32,
        Quant::F16,
        Quant::BF16,
        Quant::Q4_0,
        Quant::Q4_1,
        Quant::Q5_0,
        Quant::Q5_1,
        Quant::Q8_0,
        Quant::Q2_K,
        Quant::Q3_K,
        Quant::Q4_K,
        Quant::Q5_K,
        Quant::Q6_K,
        Quant::IQ4_NL,
        Quant::IQ4_XS,
    ];

    /// The name as files and tools spell it.
    pub fn name(self) -> &'static str {
        match self {
            Quant::F32 => "F32",
            Quant::F16 => "F16",
            Quant::BF16 => "BF16",
            Quant::Q4_0 => "Q4_0",
            Quant::Q4_1 => "Q4_1",
            Quant::Q5_0 => "Q5_0",
            Quant::Q5_1 => "Q5_1",
            Quant::Q8_0 => "Q8_0",
            Quant::Q2_K => "Q2_K",
            Quant::Q3_K => "Q3_K",
            Quant::Q4_K => "Q4_K",
            Quant::Q5_K => "Q5_K",
            Quant::Q6_K => "Q6_K",
            Quant::IQ4_NL => "IQ4_NL",
            Quant::IQ4_XS => "IQ4_XS",
        }
    }

    pub(crate) fn family(self) -> Family {
        match self {
            Quant::F32 | Quant::F16 | Quant::BF16 => Family::Float,
            Quant::Q4_0 | Quant::Q5_0 | Quant::Q8_0 | Quant::IQ4_NL => Family::Block32 { min: false },
            Quant::Q4_1 | Quant::Q5_1 => Family::Block32 { min: true },
            Quant::Q3_K | Quant::Q6_K | Quant::IQ4_XS => Family::Block256 { min: false },
            Quant::Q2_K | Quant::Q4_K | Quant::Q5_K => Family::Block256 { min: true },
        }
    }

    /// Weights in a block; K must be a multiple of it.
    pub fn block_len(self) -> usize {
        match self.family() {
            Family::Float => 1,
            Family::Block32 { .. } => 32,
            Family::Block256 { .. } => 256,
        }
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Quant::F32 => 4,
            Quant::F16 | Quant::BF16 => 2,
            Quant::Q4_0 => q4_0::BYTES,
            Quant::Q4_1 => q4_1::BYTES,
            Quant::Q5_0 => q5_0::BYTES,
            Quant::Q5_1 => q5_1::BYTES,
            Quant::Q8_0 => q8_0::BYTES,
            Quant::Q2_K => q2_k::BYTES,
            Quant::Q3_K => q3_k::BYTES,
            Quant::Q4_K => q4_k::BYTES,
            Quant::Q5_K => q5_k::BYTES,
            Quant::Q6_K => q6_k::BYTES,
            Quant::IQ4_NL => iq4_nl::BYTES,
            Quant::IQ4_XS => iq4_xs::BYTES,
        }
    }

    /// Bytes of a row of `k` weights.
    ///
    /// # Panics
    /// If `k` is not a multiple of [`Quant::block_len`].
    pub fn row_bytes(self, k: usize) -> usize {
        assert!(k.is_multiple_of(self.block_len()), "{}: row of {k} is no multiple of the block", self.name());
        k / self.block_len() * self.block_bytes()
    }

    /// Expands whole blocks to floats.
    ///
    /// # Panics
    /// If `bytes` is not exactly the blocks of `dst.len()` weights.
    pub fn dequantize(self, bytes: &[u8], dst: &mut [f32]) {
        self.dequantize_blocks(bytes, dst);
    }

    /// [`Quant::dequantize`] in plain Rust, compiled once for each instruction set by the functions that inline it.
    #[inline(always)]
    pub(crate) fn dequantize_blocks(self, bytes: &[u8], dst: &mut [f32]) {
        assert_eq!(bytes.len(), self.row_bytes(dst.len()), "{}: bytes of {} weights", self.name(), dst.len());
        match self.family() {
            Family::Float => self.widen(bytes, dst),
            Family::Block32 { min } => {
                for (b, dst) in bytes.chunks_exact(self.block_bytes()).zip(dst.chunks_exact_mut(32)) {
                    self.decode_32(b).dequantize(min, dst);
                }
            }
            Family::Block256 { .. } => {
                for (b, dst) in bytes.chunks_exact(self.block_bytes()).zip(dst.chunks_exact_mut(256)) {
                    self.decode_256(b).dequantize(dst);
                }
            }
        }
    }

    #[inline(always)]
    fn widen(self, bytes: &[u8], dst: &mut [f32]) {
        match self {
            Quant::F32 => {
                for (b, dst) in bytes.as_chunks().0.iter().zip(dst) {
                    *dst = float::f32_value(*b);
                }
            }
            Quant::F16 => {
                for (b, dst) in bytes.as_chunks().0.iter().zip(dst) {
                    *dst = float::f16_value(*b);
                }
            }
            Quant::BF16 => {
                for (b, dst) in bytes.as_chunks().0.iter().zip(dst) {
                    *dst = float::bf16_value(*b);
                }
            }
            _ => unreachable!("{} is no float format", self.name()),
        }
    }

    #[inline(always)]
    pub(crate) fn decode_32(self, block: &[u8]) -> Block32 {
        match self {
            Quant::Q4_0 => q4_0::decode(block),
            Quant::Q4_1 => q4_1::decode(block),
            Quant::Q5_0 => q5_0::decode(block),
            Quant::Q5_1 => q5_1::decode(block),
            Quant::Q8_0 => q8_0::decode(block),
            Quant::IQ4_NL => iq4_nl::decode(block),
            _ => unreachable!("{} has no blocks of 32", self.name()),
        }
    }

    #[inline(always)]
    pub(crate) fn decode_256(self, block: &[u8]) -> Block256 {
        match self {
            Quant::Q2_K => q2_k::decode(block),
            Quant::Q3_K => q3_k::decode(block),
            Quant::Q4_K => q4_k::decode(block),
            Quant::Q5_K => q5_k::decode(block),
            Quant::Q6_K => q6_k::decode(block),
            Quant::IQ4_XS => iq4_xs::decode(block),
            _ => unreachable!("{} has no blocks of 256", self.name()),
        }
    }

    /// One output element: the specification (see the module's text). `row`: one weight row, `x`: one activation row.
    ///
    /// # Panics
    /// If `row` is not the blocks of `x.len()` weights.
    pub fn dot_reference(self, row: &[u8], x: &[f32], mode: Activation) -> f32 {
        assert_eq!(row.len(), self.row_bytes(x.len()), "{}: bytes of {} weights", self.name(), x.len());
        let blocks = row.chunks_exact(self.block_bytes());
        let acc = match (mode, self.family()) {
            (Activation::Integer, Family::Block32 { min }) => {
                blocks.zip(x.as_chunks::<32>().0).fold(0.0, |acc, (b, x)| {
                    let x = Plain.block_32(x);
                    step_32(acc, &self.decode_32(b), min, x.scale, x.scaled_sum, &x.codes)
                })
            }
            (Activation::Integer, Family::Block256 { min }) => {
                blocks.zip(x.as_chunks::<256>().0).fold(0.0, |acc, (b, x)| {
                    let x = Plain.block_256(x);
                    step_256(acc, &self.decode_256(b), min, x.scale, &x.codes)
                })
            }
            (Activation::Exact, _) | (_, Family::Float) => {
                let mut w = vec![0.0; x.len()];
                self.dequantize(row, &mut w);
                let [e, o] = step_float([0.0; 2], &w, x);
                e + o
            }
        };
        acc + 0.0
    }
}

/// One block of 32 added to `acc`. `sx`: scaled sum of the activation codes.
pub(crate) fn step_32(acc: f32, w: &Block32, min: bool, dx: f32, sx: f32, x: &[i8]) -> f32 {
    let acc = (w.dot(x) as f32).mul_add(w.d * dx, acc);
    if min { w.m.mul_add(sx, acc) } else { acc }
}

/// One super-block of 256 added to `acc`.
pub(crate) fn step_256(acc: f32, w: &Block256, min: bool, dx: f32, x: &[i8]) -> f32 {
    let (scaled, mins) = w.dot(x);
    let acc = (scaled as f32).mul_add(w.d * dx, acc);
    if min { (-(mins as f32)).mul_add(w.dmin * dx, acc) } else { acc }
}

/// Floats added to the chains `[even, odd]`; `w` begins at an even k.
pub(crate) fn step_float(mut chains: [f32; 2], w: &[f32], x: &[f32]) -> [f32; 2] {
    for (k, (&w, &x)) in w.iter().zip(x).enumerate() {
        chains[k % 2] = w.mul_add(x, chains[k % 2]);
    }
    chains
}

#[cfg(test)]
#[path = "quant_tests.rs"]
mod tests;
