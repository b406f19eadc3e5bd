//! One sequence, driven by hand: the shortest caller an executor can have.

use engine::ids::{PageId, StateSlot, TokenId};
use engine::limits::Limits;
use engine::step::{Executor, Filters, MtpWork, NO_LOGPROBS, RowRules, SlotOp, Source, Step, StepResult, TrunkWork};

/// What is wanted of the rows of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Nothing: prefill.
    Nothing,
    /// A greedy choice at the last committed row and at every draft.
    Choice,
    /// As `Choice`, and logits and hidden rows of those rows.
    Probe,
    /// Logits and hidden rows of every row.
    ProbeAll,
}

/// A sequence in slot 0 of an executor of its own.
pub struct Single<E> {
    executor: E,
    pages: Vec<PageId>,
    slot: StateSlot,
    kv_len: u32,
    mtp_len: u32,
    ops: Vec<SlotOp>,
    result: StepResult,
}

impl<E: Executor> Single<E> {
    /// Takes slot 0 and all pages of an executor that was built with `limits`.
    pub fn new(executor: E, limits: &Limits) -> Self {
        let pages = (0..limits.pages as u32).map(PageId).collect();
        Self::in_slot(executor, StateSlot(0), pages)
    }

    /// Takes `slot` and `pages` of an executor.
    pub fn in_slot(executor: E, slot: StateSlot, pages: Vec<PageId>) -> Self {
        let ops = vec![SlotOp::Reset { state: slot }];
        Self { executor, pages, slot, kv_len: 0, mtp_len: 0, ops, result: StepResult::default() }
    }

    /// Goes on with a sequence of `kv_len` positions whose MTP cache is complete, in `slot` over `pages`.
    pub fn resume(executor: E, slot: StateSlot, pages: Vec<PageId>, kv_len: u32) -> Self {
        Self { kv_len, mtp_len: kv_len, ops: Vec::new(), ..Self::in_slot(executor, slot, pages) }
    }

    /// The executor.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// Gives the executor back.
    pub fn into_executor(self) -> E {
        self.executor
    }

    /// Positions computed so far.
    pub fn kv_len(&self) -> u32 {
        self.kv_len
    }

    /// Positions of the MTP cache.
    pub fn mtp_len(&self) -> u32 {
        self.mtp_len
    }

    /// Starts over with an empty sequence.
    pub fn reset(&mut self) {
        self.ops.push(SlotOp::Reset { state: self.slot });
        (self.kv_len, self.mtp_len) = (0, 0);
    }

    /// Forgets positions `kv_len..` before the next pass.
    pub fn truncate(&mut self, kv_len: u32) {
        self.ops.push(SlotOp::Truncate { state: self.slot, kv_len });
        self.kv_len = kv_len;
        self.mtp_len = self.mtp_len.min(kv_len);
    }

    /// Runs `op` before the next pass.
    pub fn op(&mut self, op: SlotOp) {
        self.ops.push(op);
    }

    /// Runs what operations wait, and nothing else.
    pub fn flush(&mut self) {
        let step = Step { ops: std::mem::take(&mut self.ops), ..Step::default() };
        self.executor.run(&step, &mut self.result);
    }

    /// One trunk pass: `tokens`, the first `committed` of them committed, the rest drafts.
    pub fn trunk(&mut self, tokens: &[u32], committed: usize, want: Want) -> &StepResult {
        let first = match want {
            Want::Nothing => tokens.len(),
            Want::ProbeAll => 0,
            Want::Choice | Want::Probe => committed - 1,
        };
        let ruled = first as u32..tokens.len() as u32;
        let count = ruled.len();
        let rules = RowRules {
            row: ruled.clone().collect(),
            filter: vec![0; count],
            draw: ruled.map(|row| self.kv_len + row).collect(),
            mask: vec![u32::MAX; count],
            top_n: vec![NO_LOGPROBS; count],
            filters: vec![Filters::GREEDY],
            probe: matches!(want, Want::Probe | Want::ProbeAll),
            ..RowRules::default()
        };
        let source = |i| if i + 1 < committed { Source::Prompt } else { Source::Anchor };
        let trunk = TrunkWork {
            state: vec![self.slot],
            position: vec![self.kv_len],
            committed: vec![committed as u32],
            row_start: vec![0, tokens.len() as u32],
            page_start: vec![0, self.pages.len() as u32],
            page: self.pages.clone(),
            token: tokens.iter().map(|&t| TokenId(t)).collect(),
            source: (0..tokens.len()).map(|i| if i < committed { source(i) } else { Source::Mtp }).collect(),
            rules,
        };
        let step = Step { ops: std::mem::take(&mut self.ops), mtp: MtpWork::default(), trunk };
        self.executor.run(&step, &mut self.result);
        self.kv_len += tokens.len() as u32;
        &self.result
    }

    /// Catches the MTP cache up with `tokens`, which continue at its end, and drafts `depth` tokens from the last.
    pub fn mtp(&mut self, tokens: &[u32], depth: u32, probe: bool) -> &StepResult {
        self.mtp_with(tokens, depth, 0.0, probe)
    }

    /// As [`Self::mtp`]; a chain ends before a draft that is less likely than `p_min`.
    pub fn mtp_with(&mut self, tokens: &[u32], depth: u32, p_min: f32, probe: bool) -> &StepResult {
        let mtp = MtpWork {
            state: vec![self.slot],
            position: vec![self.mtp_len],
            depth: vec![depth],
            p_min: vec![p_min],
            token_start: vec![0, tokens.len() as u32],
            token: tokens.iter().map(|&t| TokenId(t)).collect(),
            page_start: vec![0, self.pages.len() as u32],
            page: self.pages.clone(),
            probe,
        };
        let step = Step { ops: std::mem::take(&mut self.ops), mtp, trunk: TrunkWork::default() };
        self.executor.run(&step, &mut self.result);
        self.mtp_len += tokens.len() as u32;
        &self.result
    }

    /// Result of the last pass.
    pub fn result(&self) -> &StepResult {
        &self.result
    }
}
