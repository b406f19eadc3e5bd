//! From values to the bytes of rows, for the formats that heads are written in. The bytes are those of ggml.

use half::{bf16, f16};

use super::{iq4_nl, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0};
use crate::quant::Quant;

/// Writes one block.
enum Encoder {
    One(fn(f32, &mut [u8])),
    Block32(fn(&[f32; 32], &mut [u8])),
    Block256(fn(&[f32; 256], &mut [u8])),
}

impl Quant {
    fn encoder(self) -> Option<Encoder> {
        use Encoder::{Block32, Block256, One};
        Some(match self {
            Quant::F32 => One(|x, to| to.copy_from_slice(&x.to_le_bytes())),
            Quant::F16 => One(|x, to| to.copy_from_slice(&f16::from_f32(x).to_le_bytes())),
            Quant::BF16 => One(|x, to| to.copy_from_slice(&bf16::from_f32(x).to_le_bytes())),
            Quant::Q4_0 => Block32(q4_0::encode),
            Quant::Q4_1 => Block32(q4_1::encode),
            Quant::Q5_0 => Block32(q5_0::encode),
            Quant::Q5_1 => Block32(q5_1::encode),
            Quant::Q8_0 => Block32(q8_0::encode),
            Quant::IQ4_NL => Block32(iq4_nl::encode),
            Quant::Q2_K => Block256(q2_k::encode),
            Quant::Q3_K => Block256(q3_k::encode),
            Quant::Q4_K => Block256(q4_k::encode),
            Quant::Q5_K => Block256(q5_k::encode),
            Quant::Q6_K => Block256(q6_k::encode),
            _ => return None,
        })
    }

    /// Whether [`Quant::quantize`] writes this format.
    pub fn can_quantize(self) -> bool {
        self.encoder().is_some()
    }

    /// Stores whole blocks of finite values. No importance of columns is taken into account.
    ///
    /// # Panics
    /// If the format is not one of [`Quant::can_quantize`], or `bytes` is not exactly the blocks of `x.len()` weights.
    pub fn quantize(self, x: &[f32], bytes: &mut [u8]) {
        assert_eq!(bytes.len(), self.row_bytes(x.len()), "{}: bytes of {} weights", self.name(), x.len());
        let blocks = bytes.chunks_exact_mut(self.block_bytes());
        match self.encoder() {
            Some(Encoder::One(encode)) => x.iter().zip(blocks).for_each(|(&x, to)| encode(x, to)),
            Some(Encoder::Block32(encode)) => x.as_chunks().0.iter().zip(blocks).for_each(|(x, to)| encode(x, to)),
            Some(Encoder::Block256(encode)) => x.as_chunks().0.iter().zip(blocks).for_each(|(x, to)| encode(x, to)),
            None => panic!("{} is only read", self.name()),
        }
    }
}

/// Stores `x` as f16 at `bytes[at..at + 2]`.
pub(super) fn put_f16(bytes: &mut [u8], at: usize, x: f32) {
    bytes[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
}

/// Two codes a byte: the first half of `code` in the low nibbles.
pub(super) fn put_nibbles(code: &[u8; 32], to: &mut [u8]) {
    let (low, high) = code.split_at(16);
    for (to, (low, high)) in to.iter_mut().zip(low.iter().zip(high)) {
        *to = low & 15 | high << 4;
    }
}

/// Bit 4 of every code.
pub(super) fn fifth_bits(code: &[u8; 32]) -> [u8; 4] {
    let bits = code.iter().enumerate().fold(0u32, |bits, (i, code)| bits | u32::from(code >> 4 & 1) << i);
    bits.to_le_bytes()
}
