//! The order of BPE merges: candidates leave by rank, the leftmost of equals first.
//!
//! Two queues of the same order. A heap is quickest while it fits the cache. In a long piece it does not, and every
//! candidate falls through all of its levels; there [`Buckets`] keep the places of one rank together, which come
//! and go nearly in order, so that a piece is passed over once per rank instead of once per candidate.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasherDefault;

use super::bpe::PairHasher;

/// A pair that may merge, by the rank of the pair and the place of its left symbol.
pub(super) trait MergeQueue {
    /// Adds a candidate.
    fn push(&mut self, rank: u32, at: u32);

    /// The candidate of the lowest rank, the leftmost of equals.
    fn pop(&mut self) -> Option<(u32, u32)>;
}

/// For short pieces: rank and place in one number.
impl MergeQueue for BinaryHeap<Reverse<u64>> {
    fn push(&mut self, rank: u32, at: u32) {
        self.push(Reverse(u64::from(rank) << 32 | u64::from(at)));
    }

    fn pop(&mut self) -> Option<(u32, u32)> {
        self.pop().map(|Reverse(both)| ((both >> 32) as u32, both as u32))
    }
}

/// For long pieces: one list of places per rank.
#[derive(Default)]
pub(super) struct Buckets {
    /// Ranks that have a bucket, each once.
    ranks: BinaryHeap<Reverse<u32>>,
    buckets: HashMap<u32, Bucket, BuildHasherDefault<PairHasher>>,
}

#[derive(Default)]
struct Bucket {
    places: Vec<u32>,
    /// Places already handed out.
    taken: usize,
    /// What is left is not in order.
    mixed: bool,
}

impl MergeQueue for Buckets {
    fn push(&mut self, rank: u32, at: u32) {
        let bucket = self.buckets.entry(rank).or_insert_with(|| {
            self.ranks.push(Reverse(rank));
            Bucket::default()
        });
        bucket.mixed |= bucket.places.last().is_some_and(|&last| last > at);
        bucket.places.push(at);
    }

    fn pop(&mut self) -> Option<(u32, u32)> {
        let &Reverse(rank) = self.ranks.peek()?;
        let bucket = self.buckets.get_mut(&rank).expect("every listed rank has a bucket");
        if std::mem::take(&mut bucket.mixed) {
            // Runs that are in order already cost one pass.
            bucket.places[bucket.taken..].sort();
        }
        let at = bucket.places[bucket.taken];
        bucket.taken += 1;
        if bucket.taken == bucket.places.len() {
            self.buckets.remove(&rank);
            self.ranks.pop();
        }
        Some((rank, at))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any mix of pushes and pops (`None`) leaves both queues in the same order.
        #[test]
        fn buckets_order_as_a_heap(steps in prop::collection::vec(prop::option::of((0..6_u32, 0..40_u32)), 0..300)) {
            let mut heap: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
            let mut buckets = Buckets::default();
            for step in steps.into_iter().chain(std::iter::repeat_n(None, 301)) {
                match step {
                    Some((rank, at)) => {
                        MergeQueue::push(&mut heap, rank, at);
                        buckets.push(rank, at);
                    }
                    None => prop_assert_eq!(MergeQueue::pop(&mut heap), buckets.pop()),
                }
            }
            prop_assert!(buckets.buckets.is_empty() && buckets.ranks.is_empty());
        }
    }
}
