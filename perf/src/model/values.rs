//! Random weights, as the blocks that a file holds: scales and codes are drawn, nothing is quantised.
//!
//! Matrices have mean 0 and variance 1 / K, so that a product with a normalised row is about as large as the row.

use std::io::Read;

use engine_io::TensorType;

/// Bytes without a pattern: a counter and a mix. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators".
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// In 0..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Fills a multiple of 8 bytes.
    fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        debug_assert!(rest.is_empty());
        words.iter_mut().for_each(|word| *word = self.next().to_le_bytes());
    }
}

/// What the values of a tensor are.
#[derive(Clone, Copy)]
pub(super) enum Values {
    /// Stored as the mix says.
    Matrix,
    /// F32 of the same variance.
    Router,
    /// F32 around 1.
    Gamma,
    /// F32, below 0.
    Decay,
    /// F32 around 0, this large.
    Small(f32),
}

/// The data of one tensor, piece by piece.
pub(super) struct Data {
    values: Values,
    ty: TensorType,
    random: Random,
    /// Standard deviation of a matrix.
    deviation: f32,
    /// Elements.
    left: u64,
    piece: Vec<u8>,
    read: usize,
}

/// Elements of a piece: blocks are whole.
const PIECE: u64 = 1 << 14;

impl Data {
    /// Of a tensor with whole blocks.
    pub fn new(values: Values, ty: TensorType, dims: &[u64], seed: u64) -> Self {
        let deviation = 1.0 / (dims[0] as f32).sqrt();
        let left = dims.iter().product();
        Self { values, ty, random: Random(seed), deviation, left, piece: Vec::new(), read: 0 }
    }

    fn fill(&mut self) {
        let count = self.left.min(PIECE);
        self.left -= count;
        self.read = 0;
        let bytes = self.ty.row_bytes(count).expect("a piece is whole blocks") as usize;
        self.piece.resize(bytes, 0);
        let Self { values, ty, random, deviation, piece, .. } = self;
        if let Values::Matrix = values {
            let fill: fn(&mut Random, f32, &mut [u8]) = match ty {
                TensorType::Q8_0 => q8_0,
                TensorType::Q4_0 => q4_0,
                TensorType::Q4K => q4_k,
                TensorType::Q6K => q6_k,
                _ => unreachable!("{}: no mix has it", ty.name()),
            };
            piece.chunks_exact_mut(ty.block_bytes() as usize).for_each(|block| fill(random, *deviation, block));
            return;
        }
        for to in piece.as_chunks_mut::<4>().0 {
            let x = match values {
                Values::Matrix | Values::Router => *deviation * 3f32.sqrt() * (2.0 * random.unit() - 1.0),
                Values::Gamma => 0.9 + 0.2 * random.unit(),
                Values::Decay => -0.1 - 2.0 * random.unit(),
                Values::Small(size) => *size * (2.0 * random.unit() - 1.0),
            };
            *to = x.to_le_bytes();
        }
    }
}

impl Read for Data {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        if self.read == self.piece.len() && self.left > 0 {
            self.fill();
        }
        let n = to.len().min(self.piece.len() - self.read);
        to[..n].copy_from_slice(&self.piece[self.read..self.read + n]);
        self.read += n;
        Ok(n)
    }
}

fn put_f16(block: &mut [u8], at: usize, x: f32) {
    block[at..at + 2].copy_from_slice(&half::f16::from_f32(x).to_le_bytes());
}

/// `d f16 | codes [32]`: codes -127 to 127, of variance 127 * 128 / 3.
fn q8_0(random: &mut Random, deviation: f32, block: &mut [u8]) {
    put_f16(block, 0, deviation / (127.0f32 * 128.0 / 3.0).sqrt());
    random.fill(&mut block[2..]);
    // -128 is no code.
    block[2..].iter_mut().for_each(|code| *code = code.wrapping_add(u8::from(*code == 0x80)));
}

/// `d f16 | nibbles [16]`, codes are nibbles - 8, of mean -1/2 and mean square 21.5: a sign of `d` from the dice makes
/// the mean 0.
fn q4_0(random: &mut Random, deviation: f32, block: &mut [u8]) {
    let d = deviation / 21.5f32.sqrt();
    put_f16(block, 0, if random.next() >> 63 == 0 { d } else { -d });
    random.fill(&mut block[2..]);
}

/// `d f16 | dmin f16 | scales [12] | nibbles [128]`: value = d * scale * nibble - dmin * min. Scales are 32 to 63, mins
/// equal them, and dmin is 7.5 d, so that nibbles are symmetric around 0; their variance is 21.25.
fn q4_k(random: &mut Random, deviation: f32, block: &mut [u8]) {
    /// Mean square of 32 to 63.
    const SCALES: f32 = 47.5 * 47.5 + 85.25;
    let d = deviation / (21.25 * SCALES).sqrt();
    put_f16(block, 0, d);
    put_f16(block, 2, 7.5 * d);
    let scale: [u8; 8] = random.next().to_le_bytes().map(|byte| 32 + (byte & 31));
    for j in 0..4 {
        let packed = scale[j] | scale[4 + j] >> 4 << 6;
        (block[4 + j], block[8 + j]) = (packed, packed);
        block[12 + j] = scale[4 + j] & 15 | scale[4 + j] << 4;
    }
    random.fill(&mut block[16..]);
}

/// `low nibbles [128] | high bits [64] | scales i8 [16] | d f16`, codes are 6 bits - 32, of mean square 341.5. Scales are
/// 64 to 127 with a sign from the dice, which makes the mean 0.
fn q6_k(random: &mut Random, deviation: f32, block: &mut [u8]) {
    /// Mean square of 64 to 127.
    const SCALES: f32 = 95.5 * 95.5 + 341.25;
    random.fill(&mut block[..208]);
    for scale in &mut block[192..208] {
        let size = (64 + (*scale & 63)) as i8;
        *scale = (if *scale >> 7 == 0 { size } else { -size }) as u8;
    }
    put_f16(block, 208, deviation / (341.5 * SCALES).sqrt());
}
