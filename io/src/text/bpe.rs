//! Byte-level BPE: the lowest-ranked pair is merged first, the leftmost of equals; cost n log n for a piece of n bytes,
//! and for a long one about one pass per rank that occurs in it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::merge_queue::{Buckets, MergeQueue};
use crate::heap;

/// Pairs of tokens that merge.
#[derive(Clone, Debug, Default)]
pub struct Merges {
    /// (left, right) -> (rank, result).
    pair: HashMap<u64, (u32, u32), BuildHasherDefault<PairHasher>>,
}

/// One multiplication: keys are dense ids, or pairs of them, from a file that was accepted, not from clients.
#[derive(Clone, Copy, Default)]
pub(super) struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(u64::from(b));
        }
    }

    fn write_u32(&mut self, key: u32) {
        self.write_u64(u64::from(key));
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

    /// Heap bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        heap::map::<(u64, (u32, u32))>(self.pair.capacity())
    }

    fn get(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        self.pair.get(&key(left, right)).copied()
    }
}

const NONE: u32 = u32::MAX;

/// Symbols of a piece from which on buckets are quicker than a heap: where the heap outgrows the nearest cache.
const LONG: u32 = 4096;

/// Work space, reused from piece to piece.
#[derive(Default)]
pub struct Bpe {
    /// Per symbol: its token, NONE once it is merged into its left neighbour.
    token: Vec<u32>,
    /// Per symbol: the next living one, NONE at the end.
    next: Vec<u32>,
    /// Per symbol: the previous living one, NONE at the start.
    prev: Vec<u32>,
    /// Candidates of short pieces.
    heap: BinaryHeap<Reverse<u64>>,
}

impl Bpe {
    /// Merges one piece, given as one token per byte, and appends the result.
    ///
    /// # Panics
    /// If the piece has 2^32 - 1 symbols or more.
    pub fn merge(&mut self, merges: &Merges, symbols: impl Iterator<Item = u32>, out: &mut Vec<u32>) {
        let len = self.start(symbols);
        if len < 2 {
            out.extend_from_slice(&self.token);
            return;
        }
        if len < LONG {
            self.heap.clear();
            let mut heap = std::mem::take(&mut self.heap);
            self.merge_all(merges, len, &mut heap);
            self.heap = heap;
        } else {
            self.merge_all(merges, len, &mut Buckets::default());
        }
        out.extend(self.token.iter().filter(|&&t| t != NONE));
    }

    /// Lines the symbols up; how many there are.
    fn start(&mut self, symbols: impl Iterator<Item = u32>) -> u32 {
        self.token.clear();
        self.token.extend(symbols);
        let len =
            u32::try_from(self.token.len()).ok().filter(|&n| n < NONE).expect("a piece has fewer than 2^32 - 1 bytes");
        self.next.clear();
        self.next.extend((1..len).chain([NONE]).take(self.token.len()));
        self.prev.clear();
        self.prev.extend([NONE].into_iter().chain(0..len.saturating_sub(1)).take(self.token.len()));
        len
    }

    fn merge_all(&mut self, merges: &Merges, len: u32, queue: &mut impl MergeQueue) {
        for at in 0..len - 1 {
            self.offer(merges, at, queue);
        }
        while let Some((rank, place)) = queue.pop() {
            let at = place as usize;
            let next = self.next[at];
            if self.token[at] == NONE || next == NONE {
                continue;
            }
            let right = next as usize;
            // Outdated if a neighbour was merged meanwhile: the pair that stands here now is another one.
            let Some((_, result)) = merges.get(self.token[at], self.token[right]).filter(|pair| pair.0 == rank) else {
                continue;
            };
            self.token[at] = result;
            self.token[right] = NONE;
            self.next[at] = self.next[right];
            if self.next[at] != NONE {
                self.prev[self.next[at] as usize] = place;
                self.offer(merges, place, queue);
            }
            if self.prev[at] != NONE {
                self.offer(merges, self.prev[at], queue);
            }
        }
    }

    fn offer(&self, merges: &Merges, at: u32, queue: &mut impl MergeQueue) {
        let left = self.token[at as usize];
        let right = self.token[self.next[at as usize] as usize];
        if let Some((rank, _)) = merges.get(left, right) {
            queue.push(rank, at);
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

    /// Both queues, on pieces around the border between them.
    #[test]
    fn long_pieces_merge_as_short_ones() {
        let pairs = [(1, 1), (11, 11), (2, 1), (1, 2), (121, 121), (12, 21), (1331, 1)];
        let mut merges = Merges::with_capacity(pairs.len());
        // Ranks that fall while results grow, too: a later pair may go first.
        for (i, (a, b)) in pairs.into_iter().enumerate() {
            merges.insert(a, b, [3, 1, 2, 4, 0, 6, 5][i], 10 * a + b);
        }
        let symbol = |i: u32| if i.wrapping_mul(2_654_435_761) >> 29 == 0 { 2 } else { 1 };
        let mut bpe = Bpe::default();
        for len in [LONG - 1, LONG, LONG + 1, 3 * LONG + 7] {
            let mut out = [Vec::new(), Vec::new()];
            for (long, out) in [false, true].into_iter().zip(&mut out) {
                bpe.start((0..len).map(symbol));
                if long {
                    bpe.merge_all(&merges, len, &mut Buckets::default());
                } else {
                    bpe.merge_all(&merges, len, &mut BinaryHeap::new());
                }
                out.extend(bpe.token.iter().copied().filter(|&t| t != NONE));
            }
            assert_eq!(out[0], out[1], "{len} symbols");
            let mut merged = Vec::new();
            bpe.merge(&merges, (0..len).map(symbol), &mut merged);
            assert_eq!(merged, out[0], "{len} symbols");
            assert!(merged.len() < len as usize / 2);
        }
    }

    #[test]
    fn a_pair_keeps_its_first_rank() {
        let mut merges = Merges::with_capacity(2);
        merges.insert(1, 2, 0, 12);
        merges.insert(1, 2, 5, 99);
        assert_eq!(merges.get(1, 2), Some((0, 12)));
    }
}
