//! Seeded weights and activations for tests.

use crate::quant::{Family, Quant};

/// splitmix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    pub(crate) fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// `[n][k]` weights: every code and packed scale takes every bit pattern, scales are sane finite floats of both signs.
pub(crate) fn random_rows(quant: Quant, n: usize, k: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes: Vec<u8> = (0..n * quant.row_bytes(k)).map(|_| random.bits() as u8).collect();
    let scales = scale_bytes(quant);
    for block in bytes.chunks_exact_mut(quant.block_bytes()) {
        match quant {
            Quant::F32 => block.copy_from_slice(&random.float().to_le_bytes()),
            Quant::BF16 => block.copy_from_slice(&random.float().to_le_bytes()[2..]),
            Quant::MXFP4 => block[0] = 116 + (random.bits() % 8) as u8,
            Quant::IQ1_M => {
                let bits = half::f16::from_f32(random.float() * 0.1).to_bits();
                for (i, &at) in scales.iter().enumerate() {
                    block[at] = block[at] & 15 | (bits >> (4 * i) << 4) as u8;
                }
            }
            Quant::Wide16 | Quant::Wide32 | Quant::Wide256 => {
                for at in scales.iter().step_by(4) {
                    block[*at..at + 4].copy_from_slice(&(random.float() * 0.1).to_le_bytes());
                }
            }
            _ => {
                for at in scales.iter().step_by(2) {
                    block[*at..at + 2].copy_from_slice(&half::f16::from_f32(random.float() * 0.1).to_le_bytes());
                }
            }
        }
    }
    bytes
}

/// The bytes of a block that are its float scales and minima, in order.
pub(crate) fn scale_bytes(quant: Quant) -> Vec<usize> {
    match quant {
        Quant::F32 => (0..4).collect(),
        Quant::F16 | Quant::BF16 => vec![0, 1],
        Quant::Q4_1 | Quant::Q5_1 | Quant::Q4_K | Quant::Q5_K | Quant::Wide32 | Quant::Wide256 => (0..4).collect(),
        Quant::Q2_K => (80..84).collect(),
        Quant::Q3_K => vec![108, 109],
        Quant::Q6_K => vec![208, 209],
        // The upper nibbles.
        Quant::IQ1_M => vec![49, 51, 53, 55],
        Quant::TQ1_0 => vec![52, 53],
        Quant::TQ2_0 => vec![64, 65],
        Quant::MXFP4 => vec![0],
        // Every byte is a scale that is finite.
        Quant::NVFP4 => vec![],
        Quant::Wide16 => (0..8).collect(),
        _ => vec![0, 1],
    }
}

/// `[rows][k]` activations with outliers, zeros and, in the last row, blocks of zeros and of tiny values.
pub(crate) fn random_input(rows: usize, k: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    let mut x: Vec<f32> = (0..rows * k).map(|_| random.float()).collect();
    for v in x.iter_mut().step_by(97) {
        *v *= 30.0;
    }
    for v in x.iter_mut().step_by(31) {
        *v = 0.0;
    }
    for (i, v) in x[(rows - 1) * k..].iter_mut().enumerate() {
        match i / 32 % 4 {
            1 => *v = 0.0,
            2 => *v *= 1e-6,
            _ => {}
        }
    }
    x
}

/// K values that are ragged for the format's step, and one that is not.
pub(crate) fn widths(quant: Quant) -> [usize; 3] {
    match quant.family() {
        Family::Float => [1, 67, 128],
        Family::Block16 | Family::Block32 { .. } => [quant.block_len(), 3 * quant.block_len(), 256],
        Family::Block256 { .. } => [256, 512, 768],
    }
}
