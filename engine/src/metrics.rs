//! metrics: gauges and totals, copied out once a tick. Totals are sums over finished requests, so they agree with the
//! reports that were handed out.

use crate::api::{DraftCounts, Finish, Report, Strategy, SuffixCounts};
use crate::ids::RequestId;
use crate::tables::requests::Phase;

/// Sums over finished requests of one strategy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Finished requests by cause: end token, stop string, max tokens, context full, fault.
    pub finished: [u64; 5],
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: u64,
    /// Committed completion tokens.
    pub completion_tokens: u64,
    /// Verify steps.
    pub steps: u64,
    /// Steps with drafts.
    pub windows: u64,
    /// Steps without drafts.
    pub plain: u64,
    /// Tokens taken from prompt logits.
    pub first: u64,
    /// Target-chosen tokens of later steps.
    pub bonus: u64,
    /// Tokens committed by rule.
    pub forced: u64,
    /// All proposers.
    pub total: DraftCounts,
    /// The MTP block.
    pub mtp: DraftCounts,
    /// Its drafting time.
    pub mtp_draft_ns: u64,
    /// The suffix index.
    pub suffix: DraftCounts,
    /// Its look-ups.
    pub suffix_lookups: SuffixCounts,
    /// Composite windows.
    pub tail_windows: u64,
    /// ... whose whole prefix agreed.
    pub tail_tested: u64,
    /// Suffix drafts of those.
    pub tail_drafted_tested: u64,
    /// Suffix drafts accepted in composite windows.
    pub tail_accepted: u64,
    /// Steps by drafts.
    pub width_hist: Vec<u64>,
    /// Windows by committed drafts.
    pub accepted_hist: Vec<u64>,
    /// Requests that were turned down at some step.
    pub turned_down: u64,
    /// Preemptions.
    pub preempted: u64,
    /// Time rows waited for readers.
    pub stall_ns: u64,
    /// Sums of the times of the reports.
    pub queue_ns: u64,
    /// Admission to the end of the prompt.
    pub prompt_ns: u64,
    /// End of the prompt to the last commit.
    pub predicted_ns: u64,
    /// Arrival to the first token.
    pub ttft_ns: u64,
    /// Arrival to the end.
    pub total_ns: u64,
}

impl Totals {
    /// Adds a finished request.
    pub fn add(&mut self, finish: Finish, r: &Report) {
        let cause = match finish {
            Finish::EndToken(_) => 0,
            Finish::StopString(_) => 1,
            Finish::MaxTokens => 2,
            Finish::ContextFull => 3,
            Finish::Fault => 4,
        };
        self.finished[cause] += 1;
        self.prompt_tokens += r.prompt_tokens;
        self.cached_tokens += r.cached_tokens;
        self.completion_tokens += r.completion_tokens;
        self.steps += r.steps;
        self.windows += r.windows;
        self.plain += r.plain;
        self.first += r.first;
        self.bonus += r.bonus;
        self.forced += r.forced;
        self.total.add(&r.total);
        self.mtp.add(&r.mtp);
        self.mtp_draft_ns += r.mtp_draft_ns;
        self.suffix.add(&r.suffix);
        let (s, t) = (&mut self.suffix_lookups, &r.suffix_lookups);
        s.lookups += t.lookups;
        s.hits += t.hits;
        s.misses += t.misses;
        s.skipped += t.skipped;
        s.lookup_ns += t.lookup_ns;
        s.lookup_ns_max = s.lookup_ns_max.max(t.lookup_ns_max);
        s.extend_ns += t.extend_ns;
        s.match_len_sum += t.match_len_sum;
        self.tail_windows += r.tail_windows;
        self.tail_tested += r.tail_tested;
        self.tail_drafted_tested += r.tail_drafted_tested;
        self.tail_accepted += r.tail_accepted;
        sum_into(&mut self.width_hist, &r.width_hist);
        sum_into(&mut self.accepted_hist, &r.accepted_hist);
        self.turned_down += u64::from(r.turned_down.is_some());
        self.preempted += r.preempted;
        self.stall_ns += r.stall_ns;
        self.queue_ns += r.queue_ns;
        self.prompt_ns += r.prompt_ns;
        self.predicted_ns += r.predicted_ns;
        self.ttft_ns += r.ttft_ns;
        self.total_ns += r.total_ns;
    }
}

fn sum_into(to: &mut Vec<u64>, from: &[u64]) {
    to.resize(to.len().max(from.len()), 0);
    to.iter_mut().zip(from).for_each(|(t, f)| *t += f);
}

/// Cancellations by where the request was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cancelled {
    /// Waiting for admission.
    pub queued: u64,
    /// In prefill, or preempted.
    pub prefill: u64,
    /// Decoding.
    pub decode: u64,
    /// Waiting for its reader.
    pub stalled: u64,
}

/// One row as `/slots` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotView {
    /// Its request, if it has one.
    pub request: Option<RequestId>,
    /// Where it stands.
    pub phase: Phase,
    /// Waits for its reader.
    pub stalled: bool,
    /// Prompt tokens.
    pub prompt_len: u32,
    /// Tokens whose KV is computed.
    pub kv_len: u32,
    /// Completion tokens.
    pub completion_len: u32,
    /// Most completion tokens.
    pub max_tokens: u32,
    /// Its strategy.
    pub strategy: Strategy,
    /// Drafts planned in the last tick.
    pub window: u32,
    /// Steps with drafts so far.
    pub windows: u64,
    /// Accepted drafts so far.
    pub accepted: u64,
    /// Admission.
    pub admitted_ns: u64,
}

/// Everything that is counted inside the tick.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Metrics {
    /// Ticks run.
    pub ticks: u64,
    /// Trunk passes.
    pub passes: u64,
    /// Rows of trunk passes: prompt rows, window rows.
    pub rows: [u64; 2],
    /// Time in the Executor: MTP, trunk, choosing.
    pub executor_ns: [u64; 3],
    /// Admitted requests.
    pub admitted: u64,
    /// Refused submissions.
    pub refused: u64,
    /// Preemptions.
    pub preempted: u64,
    /// Cancellations.
    pub cancelled: Cancelled,
    /// Totals by strategy, in the order of [`Strategy::ALL`].
    pub finished: [Totals; 4],
}

/// What others may see of the engine: one copy a tick.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// Counters.
    pub metrics: Metrics,
    /// Waiting submissions.
    pub waiting: usize,
    /// Rows in use.
    pub running: usize,
    /// Rows that wait for their reader.
    pub stalled: usize,
    /// Pages nobody references.
    pub pages_free: usize,
    /// Pages of the pool.
    pub pages: usize,
    /// No more work is taken.
    pub draining: bool,
    /// Rows.
    pub slots: Vec<SlotView>,
    /// The clock at the end of the tick.
    pub now_ns: u64,
}
