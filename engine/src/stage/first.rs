//! The first stage: an Executor to the Ledger, which runs its own blocks and asks the last stage for the rest.
//!
//! Between two connections the last stage forgets everything. So a sequence is whole only within the session in which it
//! was reset: rows of any other end with [`Fault::Lost`], and nothing about them is sent. To the Ledger that is a fault of
//! these rows, as one of their numbers would be; that there are stages it does not know.

use std::collections::HashSet;
use std::time::Instant;

use crate::exec::CpuExecutor;
use crate::ids::{CheckpointId, TokenId};
use crate::step::{Executor, Fault, MtpWork, Shape, SlotOp, Step, StepResult, TrunkWork};

use super::foresight::Foresight;
use super::last::segments;
use super::message::{Reply, put_request, take_reply};
use super::{Agreed, whole_shape};

/// The way to the last stage.
pub trait Link: Send {
    /// Number of the present connection, another for each; `None` while there is none.
    fn session(&self) -> Option<u64>;

    /// Sends a request within a session and waits for its reply, which overwrites `reply`. Answers within a bound, whatever
    /// happens to the peer.
    ///
    /// # Errors
    /// The session is over; it is never the present one again.
    fn exchange(&mut self, session: u64, request: &[u8], reply: &mut Vec<u8>) -> Result<(), LinkLost>;

    /// A step is being run from here on, or has been: the peer may be told.
    fn working(&mut self, on: bool);

    /// Ends the session: the peer sent what is no reply.
    fn reject(&mut self, session: u64, reason: &str);
}

/// The session is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkLost;

/// The executor of a model whose last blocks are elsewhere.
pub struct Split<L> {
    local: CpuExecutor,
    link: L,
    agreed: Agreed,
    shape: Shape,
    foresight: Foresight,
    session: Option<u64>,
    /// Incremented with every change of it.
    epoch: u64,
    /// Sequences that both stages know.
    whole: Vec<bool>,
    /// Checkpoints likewise.
    saved: HashSet<CheckpointId>,
    /// MTP work that was answered here, with the operations before it: it goes along with the next pass.
    pending: Option<Step>,
    body: Vec<u8>,
    reply: Vec<u8>,
    scratch: StepResult,
}

impl<L: Link> Split<L> {
    /// Around the executor of the first stage; `last` is the shape that the last stage has told.
    ///
    /// # Panics
    /// If the executor's stage is not the first of two, or `last` is not what [`whole_shape`] takes.
    pub fn new(local: CpuExecutor, link: L, agreed: Agreed, last: &Shape) -> Self {
        assert!(local.model().stage.is_first() && !local.model().stage.is_last(), "{}", local.model().stage);
        let slots = agreed.limits.slots;
        Self {
            shape: whole_shape(local.shape(), last, &agreed).unwrap_or_else(|reason| panic!("{reason}")),
            foresight: Foresight::new(slots),
            session: None,
            epoch: 0,
            whole: vec![false; slots],
            saved: HashSet::new(),
            pending: None,
            body: Vec::new(),
            reply: Vec::new(),
            scratch: StepResult::default(),
            local,
            link,
            agreed,
        }
    }

    /// The local half.
    pub fn local(&self) -> &CpuExecutor {
        &self.local
    }

    /// A new session, or none: what both stages knew is gone.
    fn enter(&mut self, session: Option<u64>) {
        if session == self.session {
            return;
        }
        self.session = session;
        self.epoch += 1;
        self.whole.fill(false);
        self.saved.clear();
        self.foresight.clear();
        self.pending = None;
        self.local.forget_all();
    }

    /// The operations on sequences that are whole, in order; takes note of what they do. `fresh`: the session is another
    /// than when they were made.
    fn known_ops(&mut self, ops: &[SlotOp], fresh: bool) -> Vec<SlotOp> {
        let open = self.session.is_some();
        let mut out = Vec::with_capacity(ops.len());
        for op in ops {
            let known = match *op {
                SlotOp::Reset { state } => {
                    self.whole[state.index()] = open;
                    open
                }
                SlotOp::Truncate { state, .. } | SlotOp::Fold { state } => self.whole[state.index()],
                SlotOp::CopyPage { .. } => open,
                SlotOp::Fork { from, to } => {
                    self.whole[to.index()] = self.whole[from.index()];
                    self.whole[from.index()]
                }
                SlotOp::Save { state, checkpoint } => self.whole[state.index()] && self.saved.insert(checkpoint),
                SlotOp::Restore { checkpoint, state } => {
                    self.whole[state.index()] = self.saved.contains(&checkpoint);
                    self.whole[state.index()]
                }
                SlotOp::Adopt { state, .. } => {
                    self.whole[state.index()] = open && !fresh;
                    open && !fresh
                }
                SlotOp::Drop { checkpoint } => self.saved.remove(&checkpoint),
            };
            if known {
                self.foresight.op(op);
                out.push(*op);
            }
        }
        out
    }

    /// Sends `step` with `rows` rows of the local half's last pass. On failure the session is over.
    fn send(&mut self, step: &Step, answered: bool, rows: usize) -> Option<Reply> {
        let session = self.session?;
        self.body.clear();
        put_request(&mut self.body, step, answered, self.local.sent(rows));
        let reply = match self.link.exchange(session, &self.body, &mut self.reply) {
            Err(LinkLost) => None,
            Ok(()) => match take_reply(&self.reply, step, &self.agreed) {
                Ok(reply) => Some(reply),
                Err(error) => {
                    self.link.reject(session, &error.to_string());
                    None
                }
            },
        };
        if reply.is_none() {
            self.enter(None);
        }
        reply
    }

    /// Sends what waits to go along, by itself.
    fn flush(&mut self) -> Option<()> {
        match self.pending.take() {
            Some(step) => self.send(&step, true, 0).map(drop),
            None => Some(()),
        }
    }

    /// MTP work: from what was drafted ahead where all of it was, else from the last stage.
    fn run_mtp(&mut self, ops: Vec<SlotOp>, work: &MtpWork, out: &mut StepResult) {
        out.draft_start.resize(work.state.len() + 1, 0);
        let kept: Vec<usize> = (0..work.state.len()).filter(|&s| self.whole[work.state[s].index()]).collect();
        let known = segments(work, |s| kept.contains(&s));
        if self.flush().is_none() {
            return;
        }
        // Catching up has no answer; a chain that was foreseen has it.
        let here = |s: usize| known.depth[s] == 0 || self.foresight.answer(&known, s).is_some();
        if (0..known.state.len()).all(here) {
            let mut drafts = Vec::with_capacity(known.state.len());
            for s in 0..known.state.len() {
                let (some, ns) = self.foresight.answer(&known, s).unwrap_or_default();
                drafts.push(some.to_vec());
                out.times.draft_ns += ns;
            }
            spread(&kept, &drafts, out);
            self.foresight.done(&known);
            self.pending = Some(Step { ops, mtp: known, ..Step::default() });
            return;
        }
        let step = Step { ops, mtp: known, ..Step::default() };
        let Some(Reply { result, .. }) = self.send(&step, false, 0) else { return };
        self.foresight.done(&step.mtp);
        let of = |s: usize| result.draft_start[s] as usize..result.draft_start[s + 1] as usize;
        let drafts: Vec<Vec<(TokenId, f32)>> = (0..step.mtp.state.len())
            .map(|s| result.draft[of(s)].iter().copied().zip(result.draft_prob[of(s)].iter().copied()).collect())
            .collect();
        spread(&kept, &drafts, out);
        out.times = result.times;
    }

    fn run_trunk(&mut self, ops: Vec<SlotOp>, work: &TrunkWork, out: &mut StepResult) {
        let started = Instant::now();
        lose_all(work, out);
        // Operations that came behind work that waits must stay behind it.
        if !ops.is_empty() && self.flush().is_none() {
            return;
        }
        let kept: Vec<usize> = (0..work.state.len()).filter(|&s| self.whole[work.state[s].index()]).collect();
        let all = kept.len() == work.state.len();
        // The local half runs the rows alone: it has applied the operations, and has no MTP block.
        let mut step = Step { trunk: if all { work.clone() } else { part(work, &kept) }, ..Step::default() };
        let rows = step.trunk.token.len();
        if rows > 0 {
            self.local.run_stage(&step, &[], &mut self.scratch);
        }
        (step.ops, step.mtp) = match self.pending.take() {
            Some(pending) => (pending.ops, pending.mtp),
            None => (ops, MtpWork::default()),
        };
        let Some(Reply { result, ahead }) = self.send(&step, true, rows) else {
            // What the flags of sequences said until now is over; the verdicts of this pass with it.
            return;
        };
        if !step.trunk.state.is_empty() {
            let next = self.foresight.next(&step.trunk, &result);
            // A stage that drafts nothing ahead sends nothing.
            if !next.state.is_empty() && ahead.start.len() == next.state.len() + 1 {
                self.foresight.keep(&next, &ahead);
            }
        }
        let there = result.times;
        let elapsed = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if all {
            let mtp = (std::mem::take(&mut out.draft_start), std::mem::take(&mut out.draft));
            let prob = std::mem::take(&mut out.draft_prob);
            let times = out.times;
            *out = StepResult { draft_start: mtp.0, draft: mtp.1, draft_prob: prob, times, ..result };
        } else {
            merge(work, &kept, &step.trunk, &result, out);
        }
        out.times.choose_ns = there.choose_ns;
        let others = ahead.ns + there.fill_ns + there.choose_ns;
        out.times.trunk_ns = elapsed.saturating_sub(others);
    }
}

impl<L: Link> Executor for Split<L> {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn run(&mut self, step: &Step, out: &mut StepResult) {
        out.clear();
        assert!(!step.mtp.probe && !step.trunk.rules.probe, "a probe looks at one process");
        self.link.working(true);
        let before = self.epoch;
        let epoch = self.epoch();
        let mut ops = self.known_ops(&step.ops, epoch != before);
        // Operations on the local half alone need not wait for anything.
        let here = Step { ops: ops.clone(), ..Step::default() };
        self.local.run_stage(&here, &[], &mut self.scratch);
        if !step.mtp.state.is_empty() {
            self.run_mtp(std::mem::take(&mut ops), &step.mtp, out);
        }
        if !step.trunk.state.is_empty() {
            self.run_trunk(ops, &step.trunk, out);
        } else if !ops.is_empty() && self.flush().is_some() {
            self.send(&Step { ops, ..Step::default() }, false, 0);
        }
        self.link.working(false);
    }

    fn epoch(&mut self) -> u64 {
        self.enter(self.link.session());
        self.epoch
    }

    fn checkpoint_bytes(&self, _: CheckpointId) -> Option<Vec<u8>> {
        // One half of it is elsewhere.
        None
    }
}

/// Drafts of the segments `kept`, one list each, as columns of all segments.
fn spread(kept: &[usize], drafts: &[Vec<(TokenId, f32)>], out: &mut StepResult) {
    let mut drafts = kept.iter().zip(drafts).peekable();
    for s in 0..out.draft_start.len() - 1 {
        if let Some((_, some)) = drafts.next_if(|(kept, _)| **kept == s) {
            out.draft.extend(some.iter().map(|d| d.0));
            out.draft_prob.extend(some.iter().map(|d| d.1));
        }
        out.draft_start[s + 1] = out.draft.len() as u32;
    }
}

/// No segment has a verdict.
fn lose_all(work: &TrunkWork, out: &mut StepResult) {
    let segments = work.state.len();
    out.accepted.resize(segments, 0);
    out.next.resize(segments, TokenId::NONE);
    out.fault.resize(segments, Some(Fault::Lost));
    out.logprob.resize(work.rules.row.len(), f32::NAN);
    out.top_start.resize(work.rules.row.len() + 1, 0);
}

/// The segments `kept` of a pass, with their rules.
fn part(work: &TrunkWork, kept: &[usize]) -> TrunkWork {
    let mut out = TrunkWork::default();
    out.row_start.push(0);
    out.page_start.push(0);
    let from = &work.rules;
    let rules = &mut out.rules;
    rules.edit_start.push(0);
    rules.filters.clone_from(&from.filters);
    rules.mask_word.clone_from(&from.mask_word);
    for &s in kept {
        let rows = work.row_start[s] as usize..work.row_start[s + 1] as usize;
        for i in rules_of(work, s) {
            rules.row.push(from.row[i] - rows.start as u32 + out.token.len() as u32);
            rules.filter.push(from.filter[i]);
            rules.draw.push(from.draw[i]);
            rules.edit.extend_from_slice(&from.edit[from.edit_start[i] as usize..from.edit_start[i + 1] as usize]);
            rules.edit_start.push(rules.edit.len() as u32);
            rules.mask.push(from.mask[i]);
            rules.top_n.push(from.top_n[i]);
            rules.known.extend(from.known.get(i));
        }
        out.state.push(work.state[s]);
        out.position.push(work.position[s]);
        out.committed.push(work.committed[s]);
        out.token.extend_from_slice(&work.token[rows.clone()]);
        out.source.extend_from_slice(&work.source[rows]);
        out.row_start.push(out.token.len() as u32);
        out.page.extend_from_slice(&work.page[work.page_start[s] as usize..work.page_start[s + 1] as usize]);
        out.page_start.push(out.page.len() as u32);
    }
    out
}

/// Rules of a segment.
fn rules_of(work: &TrunkWork, segment: usize) -> std::ops::Range<usize> {
    let at = |row: u32| work.rules.row.partition_point(|r| *r < row);
    at(work.row_start[segment])..at(work.row_start[segment + 1])
}

/// Puts the result of a part where the whole has it; the other segments stay lost.
fn merge(work: &TrunkWork, kept: &[usize], part: &TrunkWork, result: &StepResult, out: &mut StepResult) {
    for (i, &s) in kept.iter().enumerate() {
        out.accepted[s] = result.accepted[i];
        out.next[s] = result.next[i];
        out.fault[s] = result.fault[i];
        for (from, to) in rules_of(part, i).zip(rules_of(work, s)) {
            out.logprob[to] = result.logprob[from];
        }
    }
    let mut from = kept.iter().enumerate().flat_map(|(i, _)| rules_of(part, i));
    let known: Vec<bool> =
        (0..work.state.len()).flat_map(|s| rules_of(work, s).map(move |_| kept.contains(&s))).collect();
    for (to, known) in known.into_iter().enumerate() {
        if known && let Some(i) = from.next() {
            out.top.extend_from_slice(&result.top[result.top_start[i] as usize..result.top_start[i + 1] as usize]);
        }
        out.top_start[to + 1] = out.top.len() as u32;
    }
}
