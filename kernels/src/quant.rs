//! The weight formats and the specification of one output element.
//!
//! An output `dst[r][n] = sum_k x[r][k] * w[n][k]` is a function of row `r` of `x`, row `n` of `w`, the format and the
//! [`Activation`] mode alone. Its operations, in this order, are the same in every kernel of this crate:
//!
//! - **integer, 16-blocks**: per 16 weights ascending, `s` = exact int32 dot product of the codes, then
//!   `acc = fma(s, d * dx, acc)`, where two neighbours share the activation's `dx`.
//! - **integer, 32-blocks**: per 32 weights ascending, `s` = exact int32 dot product of the codes, then
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
    Block16, Block32, Block256, iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_nl, iq4_xs, mxfp4, nvfp4,
    q1_0, q2_0, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0, tq1_0, tq2_0, wide,
};
use crate::input::{Plain, Quantize};

/// What the activations are multiplied as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Quantised to int8 as the weight format's partner asks: one scale per 32 for 16-blocks and 32-blocks, one per 256
    /// for 256-blocks. Float weights take float activations.
    Integer,
    /// Float activations against dequantised weights, for every format.
    Exact,
}

/// The arithmetic family of a format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Float,
    Block16,
    /// `min`: the format has a minimum beside the scale.
    Block32 {
        min: bool,
    },
    Block256 {
        min: bool,
    },
}

const PLAIN_32: Family = Family::Block32 { min: false };
const MIN_32: Family = Family::Block32 { min: true };
const PLAIN_256: Family = Family::Block256 { min: false };
const MIN_256: Family = Family::Block256 { min: true };

/// One row per format: name, family, weights of a block, bytes of a block.
macro_rules! quants {
    ($($name:ident, $family:expr, $len:literal, $bytes:expr;)*) => {
        /// A weight format. Spelled as in GGUF files; the wide ones are made by repacking, and no file has them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the names are the documentation; layouts are in blocks/")]
        #[allow(non_camel_case_types, reason = "the spelling of the file format")]
        pub enum Quant { $($name,)* }

        impl Quant {
            /// The name as files and tools spell it.
            pub fn name(self) -> &'static str {
                match self { $(Quant::$name => stringify!($name),)* }
            }

            pub(crate) fn family(self) -> Family {
                match self { $(Quant::$name => $family,)* }
            }

            /// Weights in a block; K must be a multiple of it.
            pub fn block_len(self) -> usize {
                match self { $(Quant::$name => $len,)* }
            }

            /// Bytes of a block.
            pub fn block_bytes(self) -> usize {
                match self { $(Quant::$name => $bytes,)* }
            }

            const EVERY: &[Quant] = &[$(Quant::$name,)*];
        }
    };
}

quants! {
    F32, Family::Float, 1, 4;
    F16, Family::Float, 1, 2;
    BF16, Family::Float, 1, 2;
    Q1_0, PLAIN_32, 128, q1_0::BYTES;
    Q2_0, PLAIN_32, 64, q2_0::BYTES;
    Q4_0, PLAIN_32, 32, q4_0::BYTES;
    Q4_1, MIN_32, 32, q4_1::BYTES;
    Q5_0, PLAIN_32, 32, q5_0::BYTES;
    Q5_1, MIN_32, 32, q5_1::BYTES;
    Q8_0, PLAIN_32, 32, q8_0::BYTES;
    Q2_K, MIN_256, 256, q2_k::BYTES;
    Q3_K, PLAIN_256, 256, q3_k::BYTES;
    Q4_K, MIN_256, 256, q4_k::BYTES;
    Q5_K, MIN_256, 256, q5_k::BYTES;
    Q6_K, PLAIN_256, 256, q6_k::BYTES;
    IQ1_S, PLAIN_256, 256, iq1_s::BYTES;
    IQ1_M, PLAIN_256, 256, iq1_m::BYTES;
    IQ2_XXS, PLAIN_256, 256, iq2_xxs::BYTES;
    IQ2_XS, PLAIN_256, 256, iq2_xs::BYTES;
    IQ2_S, PLAIN_256, 256, iq2_s::BYTES;
    IQ3_XXS, PLAIN_256, 256, iq3_xxs::BYTES;
    IQ3_S, PLAIN_256, 256, iq3_s::BYTES;
    IQ4_NL, PLAIN_32, 32, iq4_nl::BYTES;
    IQ4_XS, PLAIN_256, 256, iq4_xs::BYTES;
    TQ1_0, PLAIN_256, 256, tq1_0::BYTES;
    TQ2_0, PLAIN_256, 256, tq2_0::BYTES;
    MXFP4, PLAIN_32, 32, mxfp4::BYTES;
    NVFP4, Family::Block16, 64, nvfp4::BYTES;
    Wide16, Family::Block16, 32, wide::BYTES_16;
    Wide32, PLAIN_32, 32, wide::BYTES_32;
    Wide256, PLAIN_256, 256, wide::BYTES_256;
}

/// Wide formats, the last ones of the enum.
const WIDE: usize = 3;

impl Quant {
    /// Every format that a file may have, in the order of the enum.
    pub const ALL: [Quant; 28] = {
        let (files, wide) = Self::EVERY.split_at(Self::EVERY.len() - WIDE);
        assert!(matches!(wide, [Quant::Wide16, Quant::Wide32, Quant::Wide256]));
        *files.as_array().expect("as many as the type says")
    };

    /// The format of this one's panels: itself where the kernels know it, else the wide format of its family.
    pub(crate) fn panel(self) -> Quant {
        match self {
            Quant::NVFP4 => Quant::Wide16,
            Quant::Q1_0 | Quant::Q2_0 | Quant::MXFP4 => Quant::Wide32,
            Quant::IQ1_S
            | Quant::IQ1_M
            | Quant::IQ2_XXS
            | Quant::IQ2_XS
            | Quant::IQ2_S
            | Quant::IQ3_XXS
            | Quant::IQ3_S
            | Quant::TQ1_0
            | Quant::TQ2_0 => Quant::Wide256,
            _ => self,
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

    /// The decoded blocks of a row of the family, 32 weights each.
    pub(crate) fn blocks_16(self, row: &[u8]) -> impl Iterator<Item = Block16> {
        self.each_32(row).map(move |(b, sub)| self.decode_16(b, sub))
    }

    /// The decoded blocks of a row of the family, 32 weights each.
    pub(crate) fn blocks_32(self, row: &[u8]) -> impl Iterator<Item = Block32> {
        self.each_32(row).map(move |(b, sub)| self.decode_32(b, sub))
    }

    /// The decoded blocks of a row of the family.
    pub(crate) fn blocks_256(self, row: &[u8]) -> impl Iterator<Item = Block256> {
        row.chunks_exact(self.block_bytes()).map(move |b| self.decode_256(b))
    }

    /// Every 32 weights: their block and their number in it.
    fn each_32(self, row: &[u8]) -> impl Iterator<Item = (&[u8], usize)> {
        let subs = self.block_len() / 32;
        row.chunks_exact(self.block_bytes()).flat_map(move |b| (0..subs).map(move |sub| (b, sub)))
    }

    /// One output element: the specification (see the module's text). `row`: one weight row, `x`: one activation row.
    ///
    /// # Panics
    /// If `row` is not the blocks of `x.len()` weights.
    pub fn dot_reference(self, row: &[u8], x: &[f32], mode: Activation) -> f32 {
        assert_eq!(row.len(), self.row_bytes(x.len()), "{}: bytes of {} weights", self.name(), x.len());
        let acc = match (mode, self.family()) {
            (Activation::Integer, Family::Block16) => {
                self.blocks_16(row).zip(x.as_chunks::<32>().0).fold(0.0, |acc, (w, x)| {
                    let x = Plain.block_32(x);
                    step_16(acc, &w, x.scale, &x.codes)
                })
            }
            (Activation::Integer, Family::Block32 { min }) => {
                self.blocks_32(row).zip(x.as_chunks::<32>().0).fold(0.0, |acc, (w, x)| {
                    let x = Plain.block_32(x);
                    step_32(acc, &w, min, x.scale, x.scaled_sum, &x.codes)
                })
            }
            (Activation::Integer, Family::Block256 { min }) => {
                self.blocks_256(row).zip(x.as_chunks::<256>().0).fold(0.0, |acc, (w, x)| {
                    let x = Plain.block_256(x);
                    step_256(acc, &w, min, x.scale, &x.codes)
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

/// One block of 32 with two scales added to `acc`.
pub(crate) fn step_16(acc: f32, w: &Block16, dx: f32, x: &[i8]) -> f32 {
    (0..2).fold(acc, |acc, h| (w.dot(h, x) as f32).mul_add(w.d[h] * dx, acc))
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
