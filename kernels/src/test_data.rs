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
    let scales = scale_offsets(quant);
    for block in bytes.chunks_exact_mut(quant.block_bytes()) {
        for &at in scales {
            let value = random.float();
            match quant {
                Quant::F32 => block.copy_from_slice(&value.to_le_bytes()),
                Quant::BF16 => block.copy_from_slice(&value.to_le_bytes()[2..]),
                _ => block[at..at + 2].copy_from_slice(&half::f16::from_f32(value * 0.1).to_le_bytes()),
            }
        }
    }
    bytes
}

/// Where a block has its f16 scales and minima.
pub(crate) fn scale_offsets(quant: Quant) -> &'static [usize] {
    match quant {
        Quant::F32 | Quant::F16 | Quant::BF16 => &[0],
        Quant::Q4_1 | Quant::Q5_1 | Quant::Q4_K | Quant::Q5_K => &[0, 2],
        Quant::Q2_K => &[80, 82],
        Quant::Q3_K => &[108],
        Quant::Q6_K => &[208],
        Quant::Q4_0 | Quant::Q5_0 | Quant::Q8_0 | Quant::IQ4_NL | Quant::IQ4_XS => &[0],
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
        Family::Block32 { .. } => [32, 96, 256],
        Family::Block256 { .. } => [256, 512, 768],
    }
}
