//! requests: what a request *is*, besides its tokens. Written by admit (a row's birth), intake (cancel, pause), plan
//! (preemption), draft_mtp (`mtp_len`), commit (lengths, phase, finish), retire (a row's death), emit (`blocked`);
//! read by every system.
//!
//! Invariants, per row in use:
//! - Decode: `kv_len == token_len - 1`: the anchor is committed, its KV is not yet computed;
//! - Prefill: `kv_len < token_len - 1`;
//! - Preempted: `kv_len == mtp_len == 0` and no page is owned;
//! - `mtp_len <= kv_len + 1`, and `kv_len + 1 - mtp_len` hidden rows are pending in the Executor;
//! - `live` names every row that is not Free exactly once, in admission order.

use std::num::NonZeroU32;

use crate::api::{Finish, Report, Sampling, Speculation, Stop, Submission};
use crate::ids::{RequestId, Slot, StateSlot, Ticket};
use crate::tables::waiting::deadline_ns;

/// Where a row stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    /// Nobody's.
    Free,
    /// Known tokens whose KV is not computed yet, besides the anchor.
    Prefill,
    /// One anchor, a window every tick.
    Decode,
    /// Lost its pages; waits for new ones, then prefills again.
    Preempted,
    /// Finished or cancelled; retire frees it in this tick.
    Done,
}

/// The table.
#[derive(Debug)]
pub struct Requests {
    // Hot.
    /// Where the row stands.
    pub phase: Vec<Phase>,
    /// Prompt and committed tokens.
    pub token_len: Vec<u32>,
    /// Prompt tokens.
    pub prompt_len: Vec<u32>,
    /// Positions whose trunk KV and recurrent state are committed.
    pub kv_len: Vec<u32>,
    /// Positions that the MTP cache covers.
    pub mtp_len: Vec<u32>,
    /// Most completion tokens.
    pub max_tokens: Vec<u32>,
    /// The front end has no room for this row's events.
    pub paused: Vec<bool>,
    /// The event channel is full and an event of this row waits.
    pub blocked: Vec<bool>,
    /// Effective speculation settings.
    pub speculation: Vec<Speculation>,
    // Cold.
    /// Incremented whenever the row is reused; 0 = never used.
    pub generation: Vec<u32>,
    /// The sender's name.
    pub ticket: Vec<Ticket>,
    /// How tokens are chosen.
    pub sampling: Vec<Sampling>,
    /// When it ends.
    pub stop: Vec<Stop>,
    /// Log-probabilities wanted.
    pub logprobs: Vec<Option<u32>>,
    /// Deltas carry what was counted so far.
    pub reports: Vec<bool>,
    /// What is computed of the prompt is told on the way.
    pub progress: Vec<bool>,
    /// Prompt tokens, from the first on, whose log-probability is known or not asked for. The first has none.
    pub scored_len: Vec<u32>,
    /// When the time of the row is over; `u64::MAX` = never.
    pub deadline_ns: Vec<u64>,
    /// Namespace of the prefix cache, if it may be used.
    pub cache: Vec<Option<u64>>,
    /// Positions that the prefix cache has: where the row began, or where it was last kept.
    pub kept_len: Vec<u32>,
    /// Why it ended, once it did.
    pub finish: Vec<Option<Finish>>,
    /// Arrival in the inbox.
    pub arrived_ns: Vec<u64>,
    /// Admission.
    pub admitted_ns: Vec<u64>,
    /// First committed token; 0 before it.
    pub first_ns: Vec<u64>,
    /// Last committed token.
    pub last_ns: Vec<u64>,
    /// Start of the stall in progress; 0 when there is none.
    pub stalled_ns: Vec<u64>,
    // Lists.
    /// Rows in use, oldest admission first.
    pub live: Vec<Slot>,
    free: Vec<Slot>,
}

impl Requests {
    /// `slots` free rows.
    pub fn new(slots: usize) -> Self {
        let speculation = Speculation {
            strategy: crate::api::Strategy::Off,
            mtp_tokens: 0,
            suffix_min: 1,
            suffix_max: 1,
            suffix_tokens: 0,
            policy: crate::api::WindowPolicy::Fixed,
            window_initial: 0,
            window_min: 0,
            window_max: 0,
        };
        Self {
            phase: vec![Phase::Free; slots],
            token_len: vec![0; slots],
            prompt_len: vec![0; slots],
            kv_len: vec![0; slots],
            mtp_len: vec![0; slots],
            max_tokens: vec![0; slots],
            paused: vec![false; slots],
            blocked: vec![false; slots],
            speculation: vec![speculation; slots],
            generation: vec![0; slots],
            ticket: vec![Ticket(0); slots],
            sampling: vec![Sampling::greedy(); slots],
            stop: vec![Stop::default(); slots],
            logprobs: vec![None; slots],
            reports: vec![false; slots],
            progress: vec![false; slots],
            scored_len: vec![0; slots],
            deadline_ns: vec![u64::MAX; slots],
            cache: vec![None; slots],
            kept_len: vec![0; slots],
            finish: vec![None; slots],
            arrived_ns: vec![0; slots],
            admitted_ns: vec![0; slots],
            first_ns: vec![0; slots],
            last_ns: vec![0; slots],
            stalled_ns: vec![0; slots],
            live: Vec::with_capacity(slots),
            free: (0..slots as u32).rev().map(Slot).collect(),
        }
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(slots: usize) -> usize {
        let hot = size_of::<Phase>() + 5 * size_of::<u32>() + 2 * size_of::<bool>() + size_of::<Speculation>();
        let rules = size_of::<Sampling>() + size_of::<Stop>() + size_of::<Option<u32>>() + size_of::<Option<Finish>>();
        let rules = rules + size_of::<Option<u64>>() + 2 * size_of::<bool>();
        let cold = 3 * size_of::<u32>() + size_of::<Ticket>() + rules + 6 * size_of::<u64>();
        slots * (hot + cold + 2 * size_of::<Slot>())
    }

    /// Rows in all.
    pub fn slots(&self) -> usize {
        self.phase.len()
    }

    /// Rows nobody uses.
    pub fn free_len(&self) -> usize {
        self.free.len()
    }

    /// The name under which a row in use is known outside.
    pub fn id(&self, slot: Slot) -> RequestId {
        let generation = NonZeroU32::new(self.generation[slot.index()]).expect("a row in use has a generation");
        RequestId { slot, generation }
    }

    /// The row's payload in the Executor: the two tables have the same rows.
    pub fn state(slot: Slot) -> StateSlot {
        StateSlot(slot.0)
    }

    /// Whether the row waits for its reader.
    pub fn stalled(&self, slot: Slot) -> bool {
        self.paused[slot.index()] || self.blocked[slot.index()]
    }

    /// Whether the row takes part in this tick.
    pub fn runs(&self, slot: Slot) -> bool {
        let s = slot.index();
        match self.phase[s] {
            Phase::Prefill => true,
            Phase::Decode => !self.stalled(slot),
            Phase::Free | Phase::Preempted | Phase::Done => false,
        }
    }

    /// Completion tokens so far.
    pub fn completion_len(&self, slot: Slot) -> u32 {
        self.token_len[slot.index()] - self.prompt_len[slot.index()]
    }

    /// Whether log-probabilities of the prompt are still to come.
    pub fn scores(&self, slot: Slot) -> bool {
        self.scored_len[slot.index()] < self.prompt_len[slot.index()]
    }

    /// Writes the times of a row into its report. Without any token yet, the prompt's end is now.
    pub fn put_times(&self, slot: Slot, now_ns: u64, report: &mut Report) {
        let s = slot.index();
        let (arrived, admitted) = (self.arrived_ns[s], self.admitted_ns[s]);
        let first = if self.first_ns[s] == 0 { now_ns } else { self.first_ns[s] };
        report.queue_ns = admitted - arrived;
        report.prompt_ns = first - admitted;
        report.predicted_ns = self.last_ns[s].saturating_sub(first);
        report.ttft_ns = first - arrived;
        report.total_ns = now_ns - arrived;
    }

    /// The live row of a ticket.
    pub fn find(&self, ticket: Ticket) -> Option<Slot> {
        self.live.iter().copied().find(|s| self.ticket[s.index()] == ticket && self.phase[s.index()] != Phase::Done)
    }

    /// Takes a free row for a submission. `None` when all are in use.
    pub fn take(&mut self, submission: &Submission, arrived_ns: u64, now_ns: u64) -> Option<Slot> {
        let slot = self.free.pop()?;
        let s = slot.index();
        assert_eq!(self.phase[s], Phase::Free);
        self.phase[s] = if submission.prompt.len() > 1 { Phase::Prefill } else { Phase::Decode };
        self.token_len[s] = submission.prompt.len() as u32;
        self.prompt_len[s] = submission.prompt.len() as u32;
        self.kv_len[s] = 0;
        self.mtp_len[s] = 0;
        self.max_tokens[s] = submission.max_tokens;
        self.paused[s] = false;
        self.blocked[s] = false;
        self.speculation[s] = submission.speculation;
        self.generation[s] = self.generation[s].wrapping_add(1).max(1);
        self.ticket[s] = submission.ticket;
        self.sampling[s] = submission.sampling.clone();
        self.stop[s] = submission.stop.clone();
        self.logprobs[s] = submission.logprobs;
        self.reports[s] = submission.reports;
        self.progress[s] = submission.progress;
        self.scored_len[s] = if submission.prompt_logprobs { 1 } else { self.prompt_len[s] };
        self.deadline_ns[s] = deadline_ns(submission, arrived_ns);
        self.cache[s] = submission.cache;
        self.kept_len[s] = 0;
        self.finish[s] = None;
        self.arrived_ns[s] = arrived_ns;
        self.admitted_ns[s] = now_ns;
        self.first_ns[s] = 0;
        self.last_ns[s] = 0;
        self.stalled_ns[s] = 0;
        self.live.push(slot);
        Some(slot)
    }

    /// Takes a free row as a copy of `from` under another ticket and choice.
    pub fn take_fork(&mut self, from: Slot, ticket: Ticket, choice: u32) -> Option<Slot> {
        let slot = self.free.pop()?;
        let (s, f) = (slot.index(), from.index());
        assert_eq!(self.phase[s], Phase::Free);
        self.phase[s] = self.phase[f];
        self.token_len[s] = self.token_len[f];
        self.prompt_len[s] = self.prompt_len[f];
        self.kv_len[s] = self.kv_len[f];
        self.mtp_len[s] = self.mtp_len[f];
        self.max_tokens[s] = self.max_tokens[f];
        self.paused[s] = false;
        self.blocked[s] = false;
        self.speculation[s] = self.speculation[f];
        self.generation[s] = self.generation[s].wrapping_add(1).max(1);
        self.ticket[s] = ticket;
        self.sampling[s] = Sampling { choice, ..self.sampling[f].clone() };
        self.stop[s] = self.stop[f].clone();
        self.logprobs[s] = self.logprobs[f];
        self.reports[s] = self.reports[f];
        // What is asked of the prompt was said of `from`.
        self.progress[s] = false;
        self.scored_len[s] = self.prompt_len[s];
        self.deadline_ns[s] = self.deadline_ns[f];
        self.cache[s] = self.cache[f];
        self.kept_len[s] = self.kept_len[f];
        self.finish[s] = None;
        self.arrived_ns[s] = self.arrived_ns[f];
        self.admitted_ns[s] = self.admitted_ns[f];
        self.first_ns[s] = self.first_ns[f];
        self.last_ns[s] = self.last_ns[f];
        self.stalled_ns[s] = 0;
        self.live.push(slot);
        Some(slot)
    }

    /// Gives a row back.
    pub fn give_back(&mut self, slot: Slot) {
        let s = slot.index();
        assert_ne!(self.phase[s], Phase::Free, "{slot} is given back twice");
        self.phase[s] = Phase::Free;
        self.paused[s] = false;
        self.blocked[s] = false;
        self.stop[s] = Stop::default();
        self.sampling[s].logit_bias = Vec::new();
        self.live.retain(|l| *l != slot);
        self.free.push(slot);
    }

    /// Asserts the invariants of the module's header.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check(&self) {
        assert_eq!(self.live.len() + self.free.len(), self.slots(), "every row is live or free");
        let mut seen = vec![false; self.slots()];
        for slot in self.live.iter().chain(&self.free) {
            assert!(!std::mem::replace(&mut seen[slot.index()], true), "{slot} is listed twice");
        }
        assert!(self.free.iter().all(|s| self.phase[s.index()] == Phase::Free));
        for &slot in &self.live {
            let s = slot.index();
            let (len, kv, mtp) = (self.token_len[s], self.kv_len[s], self.mtp_len[s]);
            assert!(self.prompt_len[s] >= 1 && self.prompt_len[s] <= len);
            assert!(self.completion_len(slot) <= self.max_tokens[s], "{slot} is past its limit");
            assert!(mtp <= kv + 1, "{slot}: MTP cache {mtp} past its anchor {kv}");
            match self.phase[s] {
                Phase::Free => panic!("{slot} is live and free"),
                Phase::Prefill => assert!(kv + 1 < len, "{slot}: prefill with kv {kv} of {len}"),
                Phase::Decode => assert_eq!(kv + 1, len, "{slot}: decode without exactly one anchor"),
                Phase::Preempted => assert_eq!((kv, mtp), (0, 0)),
                Phase::Done => {}
            }
        }
    }
}
