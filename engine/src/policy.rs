//! policy: how many MTP tokens and how long a tail a row may propose this tick. Pure rules over measured numbers.
//!
//! `fixed` takes `window_initial` every step. `adaptive` maximises tokens per time over the whole step,
//! `(rows + expected accepted) / (t(rows of the pass) + draft cost)`, with plain decoding always a candidate.
//! Source: the expected-gain rule; DSpark's planner has the same objective for a batch.

use crate::api::{Speculation, WindowPolicy};
use crate::cost::Cost;
use crate::ids::Slot;
use crate::tables::survival::{BUCKETS, Survival};

/// Widths that are weighed.
const WIDTHS: [u32; 14] = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 63];
/// Tokens after which a row that was turned down drafts again.
pub const RETRY_TOKENS: u32 = 64;

/// What a row may propose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Decision {
    /// MTP chain length.
    pub mtp: u32,
    /// Longest tail for a match of each class.
    pub tail: [u32; BUCKETS],
    /// Drafts were possible and none pays.
    pub turned_down: bool,
}

impl Decision {
    /// Most drafts that the decision allows.
    pub fn width(&self) -> u32 {
        self.mtp + self.tail.iter().copied().max().unwrap_or(0)
    }
}

/// The step as planned so far.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Windows of the step; each commits at least one token.
    pub windows: usize,
    /// Rows of the pass: anchors, prompt rows, drafts already granted.
    pub rows: usize,
    /// Expected accepted drafts of those granted.
    pub expected: f64,
    /// Longest MTP chain granted: chains of a step run together.
    pub depth: u32,
}

impl Batch {
    /// Tokens per nanosecond with `drafts` rows, a chain of `depth` and `expected` accepted drafts more.
    fn rate(&self, cost: &Cost, drafts: u32, depth: u32, expected: f64) -> f64 {
        let time = cost.trunk(self.rows + drafts as usize) + cost.draft(self.depth.max(depth) as usize);
        (self.windows as f64 + self.expected + expected) / time
    }
}

/// `fixed`: the same width every step, prefix first.
pub fn fixed(spec: &Speculation, room: u32) -> Decision {
    let width = u32::from(spec.window_initial).min(room);
    let mtp = if spec.strategy.uses_mtp() { u32::from(spec.mtp_tokens).min(width) } else { 0 };
    let tail = if spec.strategy.uses_suffix() { u32::from(spec.suffix_tokens).min(width - mtp) } else { 0 };
    Decision { mtp, tail: [tail; BUCKETS], turned_down: false }
}

/// `adaptive`: the width with the best expected rate. `matched` is the class of the history's own match, if any.
/// Returns the expected accepted drafts too.
pub fn adaptive(
    spec: &Speculation,
    survival: &Survival,
    slot: Slot,
    cost: &Cost,
    batch: &Batch,
    matched: Option<usize>,
    room: u32,
) -> (Decision, f64) {
    let most_mtp = if spec.strategy.uses_mtp() { u32::from(spec.mtp_tokens).min(room) } else { 0 };
    let most_tail = if spec.strategy.uses_suffix() { u32::from(spec.suffix_tokens).min(room) } else { 0 };
    let least = u32::from(spec.window_min).min(room);
    let plain = batch.rate(cost, 0, 0, 0.0);

    let mut best = (Decision::default(), 0.0, plain);
    let (mut alive, mut expected) = (1.0, 0.0);
    for mtp in 0..=most_mtp {
        if mtp > 0 {
            alive *= survival.mtp(slot, mtp as usize - 1);
            expected += alive;
        }
        // A chain below the least width stands only if a tail may widen it or nothing longer can be had.
        let alone = mtp == 0 || mtp >= least || mtp == most_mtp;
        let tail_of = |bucket: usize| {
            let start = if alone { batch.rate(cost, mtp, mtp, expected) } else { 0.0 };
            best_tail(
                survival.suffix(slot, bucket),
                alive,
                most_tail.min(room - mtp),
                |tail, gain| {
                    let enough = tail == 0 || mtp + tail >= least || tail == most_tail.min(room - mtp);
                    if enough { batch.rate(cost, mtp + tail, mtp, expected + gain) } else { 0.0 }
                },
                start,
            )
        };
        let (_, gain, rate) = match matched {
            Some(bucket) if most_tail > 0 => tail_of(bucket),
            _ => (0, 0.0, if alone { batch.rate(cost, mtp, mtp, expected) } else { 0.0 }),
        };
        if mtp == 0 || rate > best.2 {
            let tail = std::array::from_fn(|b| if most_tail > 0 { tail_of(b).0 } else { 0 });
            best = (Decision { mtp, tail, turned_down: false }, expected + gain, rate);
        }
    }
    let (mut decision, gain, _) = best;
    let possible = most_mtp > 0 || (most_tail > 0 && matched.is_some());
    let drafts = decision.mtp > 0 || matched.is_some_and(|b| decision.tail[b] > 0);
    decision.turned_down = possible && !drafts;
    (decision, gain)
}

/// The tail length with the best rate, its expected accepted drafts and the rate; `start` is the rate without a tail.
fn best_tail(q: f64, alive: f64, most: u32, rate: impl Fn(u32, f64) -> f64, start: f64) -> (u32, f64, f64) {
    let mut best = (0, 0.0, start);
    let (mut reached, mut gain, mut at) = (alive, 0.0, 0);
    for width in WIDTHS.into_iter().skip(1).map(|w| w.min(most)) {
        while at < width {
            reached *= q;
            gain += reached;
            at += 1;
        }
        let r = rate(width, gain);
        if r > best.2 {
            best = (width, gain, r);
        }
        if width == most {
            break;
        }
    }
    best
}

/// The least window a row that was turned down tries again with.
pub fn probe(spec: &Speculation, room: u32) -> Decision {
    let width = u32::from(spec.window_min).max(1);
    let spec = Speculation { window_initial: width as u8, ..*spec };
    fixed(&spec, room)
}

/// The decision of one row.
#[expect(clippy::too_many_arguments, reason = "a pure rule over the columns it reads")]
pub fn decide(
    spec: &Speculation,
    survival: &Survival,
    slot: Slot,
    cost: &Cost,
    batch: &Batch,
    matched: Option<usize>,
    room: u32,
    first_window: bool,
    retry: bool,
) -> (Decision, f64) {
    match spec.policy {
        WindowPolicy::Fixed => (fixed(spec, room), 0.0),
        WindowPolicy::Adaptive if retry => (probe(spec, room), 0.0),
        WindowPolicy::Adaptive => {
            let room = if first_window { room.min(u32::from(spec.window_initial)) } else { room };
            adaptive(spec, survival, slot, cost, batch, matched, room)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Strategy;

    const S: Slot = Slot(0);

    fn spec(strategy: Strategy) -> Speculation {
        Speculation {
            strategy,
            mtp_tokens: 3,
            suffix_min: 3,
            suffix_max: 64,
            suffix_tokens: 48,
            policy: WindowPolicy::Adaptive,
            window_initial: 8,
            window_min: 1,
            window_max: 32,
        }
    }

    fn alone() -> Batch {
        Batch { windows: 1, rows: 1, expected: 0.0, depth: 0 }
    }

    fn slope(alpha: f64, draft: f64) -> Cost {
        Cost::scripted(move |r| 1000.0 * (1.0 + alpha * (r - 1) as f64), draft)
    }

    #[test]
    fn fixed_fills_prefix_then_tail() {
        let d = |strategy, room| fixed(&spec(strategy), room);
        assert_eq!(d(Strategy::Off, 9).width(), 0);
        assert_eq!((d(Strategy::Mtp, 9).mtp, d(Strategy::Mtp, 9).width()), (3, 3));
        assert_eq!((d(Strategy::NgramSuffix, 9).mtp, d(Strategy::NgramSuffix, 9).width()), (0, 8));
        assert_eq!((d(Strategy::MtpSuffix, 9).mtp, d(Strategy::MtpSuffix, 9).tail[0]), (3, 5));
        assert_eq!((d(Strategy::MtpSuffix, 2).mtp, d(Strategy::MtpSuffix, 2).width()), (2, 2));
        assert_eq!(d(Strategy::MtpSuffix, 0).width(), 0);
    }

    #[test]
    fn cheap_rows_widen_and_dear_rows_narrow() {
        let s = Survival::new(1);
        let tail = |alpha, bucket| {
            adaptive(&spec(Strategy::NgramSuffix), &s, S, &slope(alpha, 1.0), &alone(), Some(bucket), 32).0.tail[bucket]
        };
        assert!(tail(0.01, 5) >= 24);
        assert!(tail(0.3, 5) < tail(0.01, 5));
        assert!(tail(0.05, 0) < tail(0.05, 5), "a longer match carries a longer tail");
        assert_eq!(tail(1.5, 5), 0);
    }

    #[test]
    fn plain_decoding_is_always_a_candidate() {
        let mut s = Survival::new(1);
        let dear = slope(1.0, 500.0);
        let (d, gain) = adaptive(&spec(Strategy::MtpSuffix), &s, S, &dear, &alone(), Some(0), 32);
        assert_eq!((d.mtp, d.tail[0], gain), (0, 0, 0.0));
        assert!(d.turned_down);
        for _ in 0..100 {
            s.observe_mtp(S, 0, true);
        }
        let (d, _) = adaptive(&spec(Strategy::Mtp), &s, S, &slope(0.2, 50.0), &alone(), None, 32);
        assert!(d.turned_down && d.width() == 0);
        // Without any proposal there is nothing to turn down.
        let (d, _) = adaptive(&spec(Strategy::NgramSuffix), &s, S, &dear, &alone(), None, 32);
        assert!(!d.turned_down);
    }

    #[test]
    fn a_strong_match_goes_without_the_chain() {
        let s = Survival::new(1);
        let cost = slope(0.03, 300.0);
        let (d, _) = adaptive(&spec(Strategy::MtpSuffix), &s, S, &cost, &alone(), Some(5), 32);
        assert_eq!(d.mtp, 0);
        assert!(d.tail[5] >= 16);
        let (d, _) = adaptive(&spec(Strategy::MtpSuffix), &s, S, &slope(0.03, 10.0), &alone(), None, 32);
        assert!(d.mtp > 0);
    }

    #[test]
    fn the_least_width_binds_while_speculation_is_on() {
        let s = Survival::new(1);
        let wide = Speculation { window_min: 6, ..spec(Strategy::NgramSuffix) };
        for alpha in [0.01, 0.05, 0.1, 0.2, 0.4] {
            for b in 0..BUCKETS {
                let (d, _) = adaptive(&wide, &s, S, &slope(alpha, 1.0), &alone(), Some(b), 32);
                assert!(d.tail[b] == 0 || d.tail[b] >= 6, "alpha {alpha}, class {b}: {d:?}");
            }
        }
        let (d, _) = adaptive(&wide, &s, S, &slope(0.01, 1.0), &alone(), Some(5), 4);
        assert_eq!(d.tail[5], 4, "as far as there is room");
    }

    #[test]
    fn a_crowded_batch_drafts_less() {
        let s = Survival::new(1);
        let knee = Cost::scripted(|r| if r <= 8 { 1000.0 } else { 1000.0 + 400.0 * (r - 8) as f64 }, 1.0);
        let width = |rows| {
            let batch = Batch { windows: rows, rows, ..alone() };
            adaptive(&spec(Strategy::Mtp), &s, S, &knee, &batch, None, 32).0.mtp
        };
        assert_eq!(width(1), 3);
        assert_eq!(width(8), 0);
    }
}
