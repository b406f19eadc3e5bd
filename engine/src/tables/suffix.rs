//! suffix: one n-gram index per row, over its own history alone. Written by index_suffix (catch up) and admit (reset);
//! copied by a slot fork; read by plan and extend_suffix. A draft is never indexed.
//!
//! Hash chains: `head[hash of a seed]` is the newest position at which a seed with that hash ends, `prev[position]`
//! the one before it. A position is indexed once a token follows it, so that every candidate has a continuation.
//!
//! The match state is a pure function of the history: at every token the match is extended if the token continues it,
//! else searched among the [`SUFFIX_CANDIDATES`] newest candidates: the longest wins, ties go to the newest. An
//! extended match needs no search: a longer one would have been found a token earlier.
//!
//! Invariants: `indexed_len <= token_len`; `match_end + 1 < indexed_len` while there is a match.

use crate::ids::{Slot, TokenId};
use crate::limits::SUFFIX_CANDIDATES;

const NIL: u32 = u32::MAX;
/// Longest seed; a shorter least match has a shorter seed.
const SEED_MAX: usize = 8;

/// An earlier occurrence of the query's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Match {
    /// Position of the occurrence's last token, in the query's own coordinates.
    pub end: u32,
    /// Tokens that agree; 0 = no match.
    pub len: u32,
}

/// The table.
#[derive(Debug)]
pub struct Suffix {
    context: usize,
    bits: u32,
    head: Vec<u32>,
    prev: Vec<u32>,
    indexed_len: Vec<u32>,
    matched: Vec<Match>,
    min: Vec<u8>,
    max: Vec<u8>,
}

impl Suffix {
    /// Empty indices for `slots` histories of up to `context` tokens.
    pub fn new(slots: usize, context: usize) -> Self {
        let bits = bits(context);
        Self {
            context,
            bits,
            head: vec![NIL; slots << bits],
            prev: vec![NIL; slots * context],
            indexed_len: vec![0; slots],
            matched: vec![Match::default(); slots],
            min: vec![1; slots],
            max: vec![1; slots],
        }
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(slots: usize, context: usize) -> usize {
        let row = (1 << bits(context)) + context;
        let columns = size_of::<u32>() + size_of::<Match>() + 2 * size_of::<u8>();
        slots.saturating_mul(row * size_of::<u32>() + columns)
    }

    /// Empties a row's index: it belongs to a new request, whose shortest and longest matches are `min` and `max`.
    pub fn reset(&mut self, slot: Slot, min: u8, max: u8) {
        let s = slot.index();
        self.head[s << self.bits..(s + 1) << self.bits].fill(NIL);
        self.indexed_len[s] = 0;
        self.matched[s] = Match::default();
        self.min[s] = min.max(1);
        self.max[s] = max.max(self.min[s]);
    }

    /// Copies a row's index.
    pub fn copy(&mut self, from: Slot, to: Slot) {
        let (f, t) = (from.index(), to.index());
        self.head.copy_within(f << self.bits..(f + 1) << self.bits, t << self.bits);
        self.prev.copy_within(f * self.context..(f + 1) * self.context, t * self.context);
        self.indexed_len[t] = self.indexed_len[f];
        self.matched[t] = self.matched[f];
        self.min[t] = self.min[f];
        self.max[t] = self.max[f];
    }

    /// Tokens of the history that the index has seen.
    pub fn indexed_len(&self, slot: Slot) -> u32 {
        self.indexed_len[slot.index()]
    }

    /// The match of the history's own end.
    pub fn matched(&self, slot: Slot) -> Match {
        self.matched[slot.index()]
    }

    fn seed_len(&self, slot: Slot) -> usize {
        (self.min[slot.index()] as usize).min(SEED_MAX)
    }

    /// Multiply-xor over the tokens of a seed; the high bits name the chain.
    fn chain(&self, seed: impl Iterator<Item = TokenId>) -> usize {
        let mut h = 0x9e37_79b9_7f4a_7c15u64;
        for t in seed {
            h = (h ^ u64::from(t.0)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            h ^= h >> 32;
        }
        (h.wrapping_mul(0xc4ce_b9fe_1a85_ec53) >> (64 - self.bits)) as usize
    }

    /// Indexes the committed tokens that are new since the last call.
    ///
    /// # Panics
    /// If the history is shorter than what was indexed, or longer than the context.
    pub fn catch_up(&mut self, slot: Slot, history: &[TokenId]) {
        let s = slot.index();
        assert!(history.len() >= self.indexed_len[s] as usize && history.len() <= self.context);
        let seed = self.seed_len(slot);
        for n in self.indexed_len[s] as usize + 1..=history.len() {
            let known = &history[..n];
            if n > seed {
                let end = n - 2;
                let chain = self.chain(known[end + 1 - seed..=end].iter().copied());
                let head = &mut self.head[(s << self.bits) + chain];
                self.prev[s * self.context + end] = *head;
                *head = end as u32;
            }
            let m = self.matched[s];
            self.matched[s] = if m.len > 0 && known[m.end as usize + 1] == known[n - 1] {
                Match { end: m.end + 1, len: m.len + 1 }
            } else {
                self.search(slot, known, &[])
            };
        }
        self.indexed_len[s] = history.len() as u32;
    }

    /// Match of the end of `history ++ prefix`, read-only. `history` is what [`Self::catch_up`] saw last.
    pub fn query(&self, slot: Slot, history: &[TokenId], prefix: &[TokenId]) -> Match {
        debug_assert_eq!(history.len(), self.indexed_len[slot.index()] as usize);
        let m = self.matched[slot.index()];
        let follows = |(i, t): (usize, &TokenId)| token_at(history, prefix, m.end as usize + 1 + i) == *t;
        if m.len > 0 && prefix.iter().enumerate().all(follows) {
            let p = prefix.len() as u32;
            return Match { end: m.end + p, len: m.len + p };
        }
        if prefix.is_empty() { m } else { self.search(slot, history, prefix) }
    }

    fn search(&self, slot: Slot, history: &[TokenId], prefix: &[TokenId]) -> Match {
        let (s, seed) = (slot.index(), self.seed_len(slot));
        let len = history.len() + prefix.len();
        if len < seed {
            return Match::default();
        }
        // The query's end, newest token first.
        let mut query = [TokenId::NONE; u8::MAX as usize];
        let most = (self.max[s] as usize).min(len);
        for (i, q) in query[..most].iter_mut().enumerate() {
            *q = token_at(history, prefix, len - 1 - i);
        }
        let query = &query[..most];
        let chain = self.chain(query[..seed].iter().rev().copied());
        let mut end = self.head[(s << self.bits) + chain];
        let mut best = Match::default();
        for _ in 0..SUFFIX_CANDIDATES {
            if end == NIL || best.len as usize == most {
                break;
            }
            let e = end as usize;
            let at = best.len as usize;
            // Only a candidate that also agrees one token further back can be longer.
            if e >= at && history[e - at] == query[at] {
                let agree = query.iter().zip(history[..=e].iter().rev()).take_while(|(q, h)| q == h).count() as u32;
                if agree > best.len {
                    best = Match { end, len: agree };
                }
            }
            end = self.prev[s * self.context + e];
        }
        if best.len < u32::from(self.min[s]) { Match::default() } else { best }
    }
}

/// log2 of the chains of a row.
fn bits(context: usize) -> u32 {
    context.next_power_of_two().trailing_zeros().max(4)
}

fn token_at(history: &[TokenId], prefix: &[TokenId], at: usize) -> TokenId {
    if at < history.len() { history[at] } else { prefix[at - history.len()] }
}

/// Appends to `draft` what followed `m` in `history ++ prefix`, at most `most` tokens; past its end the copy goes on
/// reading itself (periodic text). Ends behind the first token for which `last` holds.
pub fn continuation(
    m: Match,
    history: &[TokenId],
    prefix: &[TokenId],
    most: usize,
    last: impl Fn(TokenId) -> bool,
    draft: &mut Vec<TokenId>,
) {
    debug_assert!(m.len > 0);
    let base = draft.len();
    let known = history.len() + prefix.len();
    for i in 0..most {
        let at = m.end as usize + 1 + i;
        let token = if at < known { token_at(history, prefix, at) } else { draft[base + at - known] };
        draft.push(token);
        if last(token) {
            break;
        }
    }
}

#[cfg(test)]
mod tests;
