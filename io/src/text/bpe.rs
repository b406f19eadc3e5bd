//! Byte-level BPE: the lowest-ranked pair is merged first, the leftmost of equals; cost n log n for a piece of n bytes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// Pairs of tokens that merge.
#[derive(Clone, Debug, Default)]
pub struct Merges {
    /// (left, right) -> (rank, result).
    pair: HashMap<u64, (u32, u32), BuildHasherDefault<PairHasher>>,
}

/// One multiplication: keys are pairs of dense ids from a file that was accepted, not from clients.
#[derive(Clone, Copy, Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let x = (self.0 ^ key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = x ^ (x >> 32);
    }
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl Merges {
    /// An empty table with room for `n` pairs.
    pub fn with_capacity(n: usize) -> Self {
        Self { pair: HashMap::with_capacity_and_hasher(n, BuildHasherDefault::default()) }
    }

    /// Adds a pair; a pair that is there keeps its rank.
    pub fn insert(&mut self, left: u32, right: u32, rank: u32, result: u32) {
        self.pair.entry(key(left, right)).or_insert((rank, result));
    }

    fn get(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        self.pair.get(&key(left, right)).copied()
    }
}

const NONE: u32 = u32::MAX;

/// A pair that may merge. Ordered by rank, then place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    at: u32,
    left: u32,
    right: u32,
}

/// Work space, reused from piece to piece.
#[derive(Default)]
pub struct Bpe {
    /// Per symbol: its token, NONE once it is merged into its left neighbour.
    token: Vec<u32>,
    /// Per symbol: the next living one, NONE at the end.
    next: Vec<u32>,
    /// Per symbol: the previous living one, NONE at the start.
    prev: Vec<u32>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

impl Bpe {
    /// Merges one piece, given as one token per byte, and appends the result.
    ///
    /// # Panics
    /// If the piece has 2^32 - 1 symbols or more.
    pub fn merge(&mut self, merges: &Merges, symbols: impl Iterator<Item = u32>, out: &mut Vec<u32>) {
        self.token.clear();
        self.token.extend(symbols);
        let len =
            u32::try_from(self.token.len()).ok().filter(|&n| n < NONE).expect("a piece has fewer than 2^32 - 1 bytes");
        if len < 2 {
            out.extend_from_slice(&self.token);
            return;
        }
        self.next.clear();
        self.next.extend((1..len).chain([NONE]));
        self.prev.clear();
        self.prev.extend([NONE].into_iter().chain(0..len - 1));
        self.queue.clear();
        for at in 0..len - 1 {
            self.offer(merges, at);
        }
        while let Some(Reverse(c)) = self.queue.pop() {
            // Outdated if a neighbour was merged meanwhile.
            let at = c.at as usize;
            if self.token[at] != c.left || self.next[at] == NONE {
                continue;
            }
            let right = self.next[at] as usize;
            if self.token[right] != c.right {
                continue;
            }
            let (_, result) = merges.get(c.left, c.right).expect("a candidate is a pair of the table");
            self.token[at] = result;
            self.token[right] = NONE;
            self.next[at] = self.next[right];
            if self.next[at] != NONE {
                self.prev[self.next[at] as usize] = c.at;
                self.offer(merges, c.at);
            }
            if self.prev[at] != NONE {
                self.offer(merges, self.prev[at]);
            }
        }
        out.extend(self.token.iter().filter(|&&t| t != NONE));
    }

    fn offer(&mut self, merges: &Merges, at: u32) {
        let left = self.token[at as usize];
        let right = self.token[self.next[at as usize] as usize];
        if let Some((rank, _)) = merges.get(left, right) {
            self.queue.push(Reverse(Candidate { rank, at, left, right }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symbols are small numbers; merging (a, b) makes 10 a + b.
    fn check(pairs: &[(u32, u32)], symbols: &[u32], expected: &[u32]) {
        let mut merges = Merges::with_capacity(pairs.len());
        for (rank, &(a, b)) in pairs.iter().enumerate() {
            merges.insert(a, b, rank as u32, 10 * a + b);
        }
        let mut out = Vec::new();
        Bpe::default().merge(&merges, symbols.iter().copied(), &mut out);
        assert_eq!(out, expected);
    }

    #[test]
    fn rank_then_place_decides() {
        check(&[(1, 1)], &[1, 1, 1], &[11, 1]);
        check(&[(2, 3), (1, 2)], &[1, 2, 3], &[1, 23]);
        check(&[(1, 2), (2, 3)], &[1, 2, 3], &[12, 3]);
        check(&[(1, 1), (11, 11)], &[1; 5], &[121, 1]);
        check(&[(1, 2), (12, 12)], &[1, 2, 1, 2, 3], &[132, 3]);
        check(&[], &[1, 2], &[1, 2]);
        check(&[(1, 2)], &[], &[]);
        check(&[(1, 2)], &[7], &[7]);
    }

    #[test]
    fn a_pair_keeps_its_first_rank() {
        let mut merges = Merges::with_capacity(2);
        merges.insert(1, 2, 0, 12);
        merges.insert(1, 2, 5, 99);
        assert_eq!(merges.get(1, 2), Some((0, 12)));
    }
}
