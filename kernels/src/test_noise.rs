//! Reproducible noise for the tests of the ops.

use crate::test_data::Random;

/// Floats and indices from the counter generator.
pub(crate) struct Noise(Random);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Random(seed))
    }

    /// `0..n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.0.bits() % n as u64) as usize
    }

    /// `-1.0..1.0`.
    pub(crate) fn signed(&mut self) -> f32 {
        self.0.float()
    }

    pub(crate) fn vec(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.signed()).collect()
    }
}

/// Bits of a slice, to compare exactly.
pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}
