//! totals: what the process has done so far, whoever it was for. Written by the world as it runs the systems; read by
//! [`Gauges`](crate::gauges::Gauges). Only ever grows.

use crate::ids::Slot;
use crate::step::{Source, StepResult, TrunkWork};
use crate::tables::counters::Counters;
use crate::tables::requests::Requests;
use crate::tick::System;

/// What a pass had to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "named after the rows of the pass")]
#[repr(u8)]
pub enum TickKind {
    Idle,
    Prefill,
    Decode,
    Mixed,
}

impl TickKind {
    /// All kinds in their documented order.
    pub const ALL: [Self; 4] = [Self::Idle, Self::Prefill, Self::Decode, Self::Mixed];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Mixed => "mixed",
        }
    }
}

/// Kinds of forward work, as `forward_ns` and `forward_rows` index them.
pub const FORWARD: [&str; 3] = ["prefill", "verify", "mtp"];

/// `values`, each times `unit`.
pub const fn scaled<const N: usize>(mut values: [u64; N], unit: u64) -> [u64; N] {
    let mut i = 0;
    while i < N {
        values[i] *= unit;
        i += 1;
    }
    values
}

/// Upper bounds of the buckets of [`Times`], in nanoseconds; the last bucket has none.
pub const TIME_BOUNDS_NS: [u64; 22] = {
    const MICROSECONDS: [u64; 22] = [
        1000, 2500, 5000, 10_000, 25_000, 50_000, 75_000, 100_000, 150_000, 200_000, 300_000, 400_000, 500_000,
        750_000, 1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000, 20_000_000, 40_000_000, 80_000_000,
    ];
    scaled(MICROSECONDS, 1000)
};

/// MTP drafts of a row that the target has judged before a row of which it took none is told from one with bad luck.
const JUDGED_MIN: u64 = 8;

/// Upper bounds of the buckets of tokens of a tick; the last bucket has none.
pub const TICK_TOKEN_BOUNDS: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// Observations in buckets: `count[i]` of those above bound `i - 1` and up to bound `i`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buckets<const N: usize> {
    /// Per bucket, the one without a bound last.
    pub count: [u64; N],
    /// Of all values.
    pub sum: u64,
}

impl<const N: usize> Default for Buckets<N> {
    fn default() -> Self {
        Self { count: [0; N], sum: 0 }
    }
}

impl<const N: usize> Buckets<N> {
    /// `times` observations of `value`, whose sum is `sum`.
    pub fn observe(&mut self, bounds: &[u64], value: u64, times: u64, sum: u64) {
        assert_eq!(bounds.len() + 1, N, "one bucket has no bound");
        self.count[bounds.partition_point(|bound| *bound < value)] += times;
        self.sum += sum;
    }
}

/// A histogram of times.
pub type Times = Buckets<{ TIME_BOUNDS_NS.len() + 1 }>;
/// A histogram of tokens of a tick.
pub type TickTokens = Buckets<{ TICK_TOKEN_BOUNDS.len() + 1 }>;

/// The table.
#[derive(Debug)]
pub struct Totals {
    /// Ticks by [`TickKind`].
    pub ticks: [u64; TickKind::ALL.len()],
    /// Time of each system.
    pub system_ns: [u64; System::COUNT],
    /// Time of passes by [`FORWARD`]. A pass over prompt rows and windows is shared out by rows.
    pub forward_ns: [u64; FORWARD.len()],
    /// Rows of passes by [`FORWARD`].
    pub forward_rows: [u64; FORWARD.len()],
    /// Sequences of all trunk passes.
    pub segments: u64,
    /// Prompt rows and committed tokens of each tick that ran a pass.
    pub tick_tokens: TickTokens,
    /// Between two commits of a row.
    pub step: Times,
    /// The same, per token that the later one committed.
    pub inter_token: Times,
    /// Rows of which no MTP draft was accepted while another's were, see [`Self::watch`].
    pub mute: u64,
    /// Per slot: when it last committed, and how much it had then.
    seen: Vec<(u64, u32)>,
    /// Per slot: the generation that was counted as mute last.
    told: Vec<u32>,
}

impl Totals {
    /// Zeroes.
    pub fn new(slots: usize) -> Self {
        Self {
            ticks: Default::default(),
            system_ns: Default::default(),
            forward_ns: Default::default(),
            forward_rows: Default::default(),
            segments: 0,
            tick_tokens: TickTokens::default(),
            step: Times::default(),
            inter_token: Times::default(),
            mute: 0,
            seen: vec![(0, 0); slots],
            told: vec![0; slots],
        }
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(slots: usize) -> usize {
        size_of::<Self>() + slots * (size_of::<(u64, u32)>() + size_of::<u32>())
    }

    /// Chains were drafted.
    pub fn drafted(&mut self, rows: usize, result: &StepResult) {
        let times = &result.times;
        self.forward_ns[2] += times.fill_ns + times.draft_ns;
        self.forward_rows[2] += rows as u64;
    }

    /// A tick's pass over `trunk` is over; nothing ran where that is empty.
    pub fn passed(&mut self, trunk: &TrunkWork, result: &StepResult) {
        let rows = trunk.token.len() as u64;
        let prompt = trunk.source.iter().filter(|source| **source == Source::Prompt).count() as u64;
        let kind = match (prompt, rows - prompt) {
            (0, 0) => TickKind::Idle,
            (_, 0) => TickKind::Prefill,
            (0, _) => TickKind::Decode,
            _ => TickKind::Mixed,
        };
        self.ticks[kind as usize] += 1;
        if kind == TickKind::Idle {
            return;
        }
        let ns = result.times.trunk_ns + result.times.choose_ns;
        let share = ns * prompt / rows;
        for (at, ns, rows) in [(0, share, prompt), (1, ns - share, rows - prompt)] {
            self.forward_ns[at] += ns;
            self.forward_rows[at] += rows;
        }
        self.segments += trunk.state.len() as u64;
    }

    /// A tick's pass of `prompt_rows` is committed; `ran` unless there was none.
    pub fn committed(&mut self, requests: &Requests, prompt_rows: usize, ran: bool) {
        let mut tokens = prompt_rows as u64;
        for &slot in &requests.live {
            let s = slot.index();
            let (last, len) = (requests.last_ns[s], requests.completion_len(slot));
            let (seen, known) = std::mem::replace(&mut self.seen[s], (last, len));
            if last == 0 || (last, len) == (seen, known) {
                continue;
            }
            // The first commit of a row follows its prompt, not a commit.
            if requests.first_ns[s] == last {
                tokens += u64::from(len);
                continue;
            }
            let (gap, new) = (last - seen, u64::from(len - known));
            tokens += new;
            self.step.observe(&TIME_BOUNDS_NS, gap, 1, gap);
            self.inter_token.observe(&TIME_BOUNDS_NS, gap / new, new, gap);
        }
        if ran {
            self.tick_tokens.observe(&TICK_TOKEN_BOUNDS, tokens, 1, tokens);
        }
    }

    /// Looks for rows of which no MTP draft was ever accepted while more than 30 % of another's were, and tells of each
    /// once. What such a row says is right, but it drafts for nothing, as it would from hidden rows that are another's.
    /// Drafts behind a rejected one were not judged and say nothing.
    pub fn watch(&mut self, requests: &Requests, counters: &Counters) {
        let judged = |slot: Slot| {
            let counts = &counters.report[slot.index()].mtp;
            (counts.accepted, counts.accepted + counts.rejected)
        };
        let enough = requests.live.iter().copied().filter(|slot| judged(*slot).1 >= JUDGED_MIN);
        let accepts = |slot: &Slot| {
            let (accepted, all) = judged(*slot);
            10 * accepted > 3 * all
        };
        let Some(beside) = enough.clone().find(accepts) else { return };
        for slot in enough.filter(|slot| judged(*slot).0 == 0) {
            let generation = requests.generation[slot.index()];
            if std::mem::replace(&mut self.told[slot.index()], generation) != generation {
                self.mute += 1;
                let (request, beside, rejected) = (requests.id(slot), requests.id(beside), judged(slot).1);
                tracing::warn!(%request, %beside, rejected, "no MTP draft of a request is accepted, and another's are");
            }
        }
    }

    /// A row in the middle of its answer was copied.
    pub fn copy(&mut self, from: usize, to: usize) {
        self.seen[to] = self.seen[from];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_the_bucket_whose_bound_it_does_not_pass() {
        let mut buckets = TickTokens::default();
        for value in [0, 1, 2, 3, 512, 513] {
            buckets.observe(&TICK_TOKEN_BOUNDS, value, 1, value);
        }
        assert_eq!(buckets.count, [2, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(buckets.sum, 1031);
    }
}
