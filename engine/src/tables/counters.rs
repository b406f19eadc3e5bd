//! counters: everything counted for each row. Started by admit; written by draft_mtp, index_suffix, extend_suffix, plan
//! and commit; copied by a slot fork; taken by retire. The identities of [`Report`] hold after every commit.

use crate::api::{DraftCounts, Report};
use crate::ids::Slot;

/// The table.
#[derive(Debug)]
pub struct Counters {
    window_max: usize,
    /// Per slot: the report in the making.
    pub report: Vec<Report>,
    /// Times a row was preempted, ever.
    pub preempted: u64,
}

impl Counters {
    /// Zeroes, with histograms up to `window_max` drafts.
    pub fn new(slots: usize, window_max: usize) -> Self {
        Self { window_max, report: vec![Self::zero(window_max); slots], preempted: 0 }
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(slots: usize, window_max: usize) -> usize {
        let histograms = 2 * (window_max + 1) * size_of::<u64>() + window_max * size_of::<(u64, u64)>();
        slots * (size_of::<Report>() + histograms)
    }

    fn zero(window_max: usize) -> Report {
        Report {
            width_hist: vec![0; window_max + 1],
            accepted_hist: vec![0; window_max + 1],
            per_position: vec![(0, 0); window_max],
            ..Report::default()
        }
    }

    /// Starts a row.
    pub fn reset(&mut self, slot: Slot) {
        self.report[slot.index()] = Self::zero(self.window_max);
    }

    /// Copies a row.
    pub fn copy(&mut self, from: Slot, to: Slot) {
        self.report[to.index()] = self.report[from.index()].clone();
    }

    /// Takes a finished row's report.
    pub fn take(&mut self, slot: Slot) -> Report {
        std::mem::replace(&mut self.report[slot.index()], Self::zero(self.window_max))
    }
}

impl DraftCounts {
    /// Adds every count of `other`.
    pub fn add(&mut self, other: &Self) {
        self.proposed += other.proposed;
        self.trimmed += other.trimmed;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.rejected += other.rejected;
        self.unreached += other.unreached;
        self.discarded += other.discarded;
    }
}

/// Asserts the identities 1 to 6 of a report.
///
/// # Panics
/// If one does not hold.
pub fn check(r: &Report) {
    assert_eq!(r.completion_tokens, r.first + r.total.accepted + r.bonus + r.forced, "1: where tokens come from");
    for c in [&r.total, &r.mtp, &r.suffix] {
        assert_eq!(c.drafted, c.accepted + c.rejected + c.unreached + c.discarded, "2: fates");
        assert_eq!(c.proposed, c.trimmed + c.drafted, "2: proposals");
    }
    let mut sum = r.mtp;
    sum.add(&r.suffix);
    assert_eq!(sum, r.total, "2: proposers against the total");
    let weighed = |h: &[u64]| h.iter().zip(0u64..).map(|(n, k)| n * k).sum::<u64>();
    assert_eq!(r.width_hist.iter().sum::<u64>(), r.steps, "3: widths");
    assert_eq!(r.steps, r.windows + r.plain, "3: steps");
    assert_eq!(weighed(&r.width_hist), r.total.drafted, "3: drafts by width");
    assert_eq!(r.accepted_hist.iter().sum::<u64>(), r.windows, "4: windows");
    assert_eq!(weighed(&r.accepted_hist), r.total.accepted, "4: accepted");
    assert_eq!(r.per_position.iter().map(|p| p.0).sum::<u64>(), r.total.drafted, "5: drafted by position");
    assert_eq!(r.per_position.iter().map(|p| p.1).sum::<u64>(), r.total.accepted, "5: accepted by position");
    assert!(r.per_position.windows(2).all(|w| w[1].1 <= w[0].1), "5: a later draft is never accepted more often");
    assert!(r.total.rejected <= r.windows, "6: one rejection a window");
    assert!(r.cached_tokens <= r.prompt_tokens, "6: cached");
    let s = &r.suffix_lookups;
    assert_eq!(s.lookups, s.hits + s.misses, "look-ups");
    assert!(r.tail_tested <= r.tail_windows && r.tail_accepted <= r.tail_drafted_tested);
}
