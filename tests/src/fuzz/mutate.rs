//! How inputs are damaged: by bytes, by words of the language, and where it is JSON by its values.

use super::json;

/// Inputs grow no longer than this.
const BYTES_MAX: usize = 64 * 1024;

/// A stream of numbers, the same for the same seed. Source: S. Vigna, "splitmix64".
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Stream number `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.number() % n as u64) as usize
    }

    /// One of them.
    pub fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// How a language is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// Bytes, numbers in them, and words.
    Bytes,
    /// The values of a JSON document, and now and then its bytes.
    Json,
}

impl Damage {
    /// Damages `input`; the other seeds lend parts.
    pub fn apply(self, input: &mut Vec<u8>, seeds: &[Vec<u8>], words: &[&str], rng: &mut Rng) {
        let whole = self == Self::Json && json::damage(input, words, rng);
        // What is whole JSON stays so three times of four.
        if whole && rng.below(4) > 0 {
            return;
        }
        for _ in 0..=rng.below(4) {
            bytes(input, seeds, words, rng);
        }
        input.truncate(BYTES_MAX);
    }
}

/// Numbers at the edges of what is counted.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    3,
    7,
    8,
    127,
    255,
    256,
    65_535,
    i32::MAX as u64,
    u32::MAX as u64,
    1 << 32,
    1 << 53,
    i64::MAX as u64,
    u64::MAX,
];

fn bytes(input: &mut Vec<u8>, seeds: &[Vec<u8>], words: &[&str], rng: &mut Rng) {
    let len = input.len();
    let at = rng.below(len + 1);
    let part = |rng: &mut Rng, len: usize| {
        let start = rng.below(len + 1);
        start..start + rng.below((len - start).min(64) + 1)
    };
    match rng.below(10) {
        0 if at < len => input[at] ^= 1 << rng.below(8),
        1 if at < len => input[at] = rng.number() as u8,
        2 => input.insert(at, rng.number() as u8),
        // A number where one may stand.
        3 | 4 => {
            let width = [1, 2, 4, 8][rng.below(4)];
            let number = if rng.below(4) == 0 { rng.number() } else { *rng.of(&NUMBERS) };
            if at + width <= len {
                input[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
            }
        }
        5 if !words.is_empty() => {
            let word = rng.of(words).as_bytes();
            let end = if rng.below(2) == 0 { at } else { (at + word.len()).min(len) };
            input.splice(at..end, word.iter().copied());
        }
        6 => drop(input.drain(part(rng, len))),
        7 => {
            let copy = input[part(rng, len)].to_vec();
            input.splice(at..at, copy);
        }
        8 => {
            let other = rng.of(seeds);
            let range = part(rng, other.len());
            input.splice(at..at, other[range].iter().copied());
        }
        _ => input.truncate(at),
    }
}
