//! From the bytes of rows to decoded blocks, values, and the wide formats: one match for each family.

use super::{
    Block16, Block32, Block256, float, iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_nl, iq4_xs, mxfp4,
    nvfp4, q1_0, q2_0, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0, tq1_0, tq2_0, wide,
};
use crate::quant::{Family, Quant};

impl Quant {
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
        let blocks = bytes.chunks_exact(self.block_bytes()).zip(dst.chunks_exact_mut(self.block_len()));
        match self.family() {
            Family::Float => self.widen_floats(bytes, dst),
            Family::Block16 => {
                for (b, dst) in blocks {
                    for (sub, dst) in dst.chunks_exact_mut(32).enumerate() {
                        self.decode_16(b, sub).dequantize(dst);
                    }
                }
            }
            Family::Block32 { min } => {
                for (b, dst) in blocks {
                    for (sub, dst) in dst.chunks_exact_mut(32).enumerate() {
                        self.decode_32(b, sub).dequantize(min, dst);
                    }
                }
            }
            Family::Block256 { .. } => {
                for (b, dst) in blocks {
                    self.decode_256(b).dequantize(dst);
                }
            }
        }
    }

    #[inline(always)]
    fn widen_floats(self, bytes: &[u8], dst: &mut [f32]) {
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

    /// The bytes of one row in the wide format that [`Quant::panel`] says.
    #[inline(always)]
    pub(crate) fn expand_blocks(self, row: &[u8], to: &mut [u8]) {
        let wide = self.panel();
        let bytes = self.block_len() / wide.block_len() * wide.block_bytes();
        let blocks = row.chunks_exact(self.block_bytes()).zip(to.chunks_exact_mut(bytes));
        match wide {
            Quant::Wide16 => {
                for (b, to) in blocks {
                    for (sub, to) in to.chunks_exact_mut(wide::BYTES_16).enumerate() {
                        wide::encode_16(&self.decode_16(b, sub), to);
                    }
                }
            }
            Quant::Wide32 => {
                for (b, to) in blocks {
                    for (sub, to) in to.chunks_exact_mut(wide::BYTES_32).enumerate() {
                        wide::encode_32(&self.decode_32(b, sub), to);
                    }
                }
            }
            Quant::Wide256 => {
                for (b, to) in blocks {
                    wide::encode_256(&self.decode_256(b), to);
                }
            }
            _ => unreachable!("{} has panels of its own", self.name()),
        }
    }

    /// Weights 32 `sub`..32 `sub` + 32 of a block.
    #[inline(always)]
    pub(crate) fn decode_16(self, block: &[u8], sub: usize) -> Block16 {
        match self {
            Quant::NVFP4 => nvfp4::decode(block, sub),
            Quant::Wide16 => wide::decode_16(block),
            _ => unreachable!("{} has no scale per 16", self.name()),
        }
    }

    /// Weights 32 `sub`..32 `sub` + 32 of a block.
    #[inline(always)]
    pub(crate) fn decode_32(self, block: &[u8], sub: usize) -> Block32 {
        match self {
            Quant::Q1_0 => q1_0::decode(block, sub),
            Quant::Q2_0 => q2_0::decode(block, sub),
            Quant::Q4_0 => q4_0::decode(block),
            Quant::Q4_1 => q4_1::decode(block),
            Quant::Q5_0 => q5_0::decode(block),
            Quant::Q5_1 => q5_1::decode(block),
            Quant::Q8_0 => q8_0::decode(block),
            Quant::IQ4_NL => iq4_nl::decode(block),
            Quant::MXFP4 => mxfp4::decode(block),
            Quant::Wide32 => wide::decode_32(block),
            _ => unreachable!("{} has no scale per 32", self.name()),
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
            Quant::IQ1_S => iq1_s::decode(block),
            Quant::IQ1_M => iq1_m::decode(block),
            Quant::IQ2_XXS => iq2_xxs::decode(block),
            Quant::IQ2_XS => iq2_xs::decode(block),
            Quant::IQ2_S => iq2_s::decode(block),
            Quant::IQ3_XXS => iq3_xxs::decode(block),
            Quant::IQ3_S => iq3_s::decode(block),
            Quant::IQ4_XS => iq4_xs::decode(block),
            Quant::TQ1_0 => tq1_0::decode(block),
            Quant::TQ2_0 => tq2_0::decode(block),
            Quant::Wide256 => wide::decode_256(block),
            _ => unreachable!("{} has no blocks of 256", self.name()),
        }
    }
}
