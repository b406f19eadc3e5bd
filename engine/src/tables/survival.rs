//! survival: how often each row's drafts agreed, by source. Written by commit from tested drafts alone, by
//! plan (`down`, `retry_at`) and admit (reset); copied by a slot fork; read by plan.
//!
//! MTP drafts are kept by position in the chain, suffix drafts by the length of the match they were copied from.
//! Counts decay with every proposal, so that a change of text is noticed; a prior stands in until there is evidence.

use crate::ids::Slot;
use crate::limits::MTP_TOKENS_MAX;

/// Match-length classes: 1-4, 5-7, 8-11, 12-15, 16-31, 32 and more tokens.
pub const BUCKETS: usize = 6;
const BUCKET_FROM: [u32; BUCKETS] = [1, 5, 8, 12, 16, 32];
const DECAY: f64 = 0.97;
const PRIOR_WEIGHT: f64 = 8.0;
/// Source: replay of recorded agent sessions; acceptance of a token by match length.
const PRIOR_SUFFIX: [f64; BUCKETS] = [0.60, 0.72, 0.82, 0.88, 0.93, 0.97];
const PRIOR_MTP: f64 = 0.80;
const PRIOR_MTP_FALL: f64 = 0.94;

/// Class of a match length.
pub fn bucket(match_len: u32) -> usize {
    BUCKET_FROM.iter().rposition(|from| match_len >= *from).unwrap_or(0)
}

#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    accepted: f64,
    tested: f64,
}

impl Rate {
    fn value(self, prior: f64) -> f64 {
        (self.accepted + PRIOR_WEIGHT * prior) / (self.tested + PRIOR_WEIGHT)
    }

    fn observe(&mut self, accepted: u32, tested: u32) {
        self.accepted = self.accepted * DECAY + f64::from(accepted);
        self.tested = self.tested * DECAY + f64::from(tested);
    }
}

/// The table.
#[derive(Debug)]
pub struct Survival {
    mtp: Vec<[Rate; MTP_TOKENS_MAX]>,
    suffix: Vec<[Rate; BUCKETS]>,
    /// Drafting did not pay when last looked at.
    pub down: Vec<bool>,
    /// History length at which a row that is down drafts again, to see.
    pub retry_at: Vec<u32>,
}

impl Survival {
    /// No evidence.
    pub fn new(slots: usize) -> Self {
        Self {
            mtp: vec![[Rate::default(); MTP_TOKENS_MAX]; slots],
            suffix: vec![[Rate::default(); BUCKETS]; slots],
            down: vec![false; slots],
            retry_at: vec![0; slots],
        }
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(slots: usize) -> usize {
        slots
            * (size_of::<[Rate; MTP_TOKENS_MAX]>()
                + size_of::<[Rate; BUCKETS]>()
                + size_of::<bool>()
                + size_of::<u32>())
    }

    /// Forgets a row's evidence.
    pub fn reset(&mut self, slot: Slot) {
        self.mtp[slot.index()] = [Rate::default(); MTP_TOKENS_MAX];
        self.suffix[slot.index()] = [Rate::default(); BUCKETS];
        self.down[slot.index()] = false;
        self.retry_at[slot.index()] = 0;
    }

    /// Copies a row's evidence.
    pub fn copy(&mut self, from: Slot, to: Slot) {
        self.mtp[to.index()] = self.mtp[from.index()];
        self.suffix[to.index()] = self.suffix[from.index()];
        self.down[to.index()] = self.down[from.index()];
        self.retry_at[to.index()] = self.retry_at[from.index()];
    }

    /// Probability that the draft at a 0-based chain position agrees, given that those before it did.
    pub fn mtp(&self, slot: Slot, position: usize) -> f64 {
        self.mtp[slot.index()][position].value(PRIOR_MTP * PRIOR_MTP_FALL.powi(position as i32))
    }

    /// Probability that a draft copied from a match of this class agrees, given that those before it did.
    pub fn suffix(&self, slot: Slot, bucket: usize) -> f64 {
        self.suffix[slot.index()][bucket].value(PRIOR_SUFFIX[bucket])
    }

    /// The first `accepted` drafts of a chain agreed; the next one, if `rejected`, did not.
    pub fn observe_mtp(&mut self, slot: Slot, accepted: u32, rejected: bool) {
        let rates = &mut self.mtp[slot.index()];
        for rate in &mut rates[..accepted as usize] {
            rate.observe(1, 1);
        }
        if rejected {
            rates[accepted as usize].observe(0, 1);
        }
    }

    /// The first `accepted` drafts of a tail agreed; the next one, if `rejected`, did not.
    pub fn observe_suffix(&mut self, slot: Slot, match_len: u32, accepted: u32, rejected: bool) {
        let tested = accepted + u32::from(rejected);
        if tested > 0 {
            self.suffix[slot.index()][bucket(match_len)].observe(accepted, tested);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_every_length() {
        let of: Vec<usize> = [0, 1, 4, 5, 7, 8, 11, 12, 15, 16, 31, 32, 1000].iter().map(|l| bucket(*l)).collect();
        assert_eq!(of, [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
    }

    #[test]
    fn evidence_moves_the_rate_of_its_own_source_and_place() {
        let mut s = Survival::new(2);
        let before = (s.mtp(Slot(0), 0), s.mtp(Slot(0), 1), s.suffix(Slot(0), 0), s.suffix(Slot(0), 5));
        for _ in 0..20 {
            s.observe_mtp(Slot(0), 1, true);
            s.observe_suffix(Slot(0), 40, 0, true);
        }
        assert!(s.mtp(Slot(0), 0) > before.0 && s.mtp(Slot(0), 1) < 0.4);
        assert_eq!(s.suffix(Slot(0), 0), before.2);
        assert!(s.suffix(Slot(0), 5) < 0.5);
        assert_eq!(s.mtp(Slot(1), 0), before.0);
        s.reset(Slot(0));
        assert_eq!((s.mtp(Slot(0), 0), s.suffix(Slot(0), 5)), (before.0, before.3));
    }
}
