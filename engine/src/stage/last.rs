//! The last stage: takes requests of the first as bytes, runs them, and drafts ahead.

use crate::exec::CpuExecutor;
use crate::step::{MtpWork, Step, StepResult};

use super::Agreed;
use super::foresight::{Drafts, Foresight};
use super::message::{Request, put_reply, take_request};
use super::wire::WireError;

/// An executor of the last blocks, and what it has drafted ahead.
pub struct LastStage {
    executor: CpuExecutor,
    agreed: Agreed,
    foresight: Foresight,
    drafts: bool,
    /// Chains answered without being run again, and chains run.
    pub counts: (u64, u64),
}

impl LastStage {
    /// Around the executor of a model's last stage, which has no sequence yet.
    ///
    /// # Panics
    /// If the executor's stage is not the last.
    pub fn new(executor: CpuExecutor, agreed: Agreed) -> Self {
        assert!(executor.model().stage.is_last() && !executor.model().stage.is_first(), "{}", executor.model().stage);
        let foresight = Foresight::new(agreed.limits.slots);
        Self { executor, agreed, foresight, drafts: true, counts: (0, 0) }
    }

    /// The executor.
    pub fn executor(&self) -> &CpuExecutor {
        &self.executor
    }

    /// The capacities.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Drafts nothing ahead from now on: every chain is run when it is asked for.
    pub fn without_foresight(mut self) -> Self {
        self.drafts = false;
        self
    }

    /// Forgets every sequence: another first stage begins.
    pub fn forget_all(&mut self) {
        self.executor.forget_all();
        self.foresight.clear();
    }

    /// Whether `body` is a request that can be run as everything stands now. All that a first stage may get wrong is
    /// found here: bytes that are no request, numbers out of range, columns that contradict each other, and work that does
    /// not continue where its sequences stand.
    ///
    /// # Errors
    /// What was found, and what was expected.
    pub fn accept(&self, body: &[u8]) -> Result<Request, WireError> {
        let request = take_request(body, &self.agreed)?;
        let Step { ops, mtp, .. } = &request.step;
        self.executor.check(&request.step).map_err(|reason| WireError::bad("a request", reason))?;
        let missing = |&s: &usize| mtp.depth[s] > 0 && !self.foresight.answers_after(ops, mtp, s);
        if request.answered
            && let Some(s) = (0..mtp.state.len()).find(missing)
        {
            return Err(WireError::bad("MTP work", format!("the chain of {} was taken for answered", mtp.state[s])));
        }
        Ok(request)
    }

    /// Runs the request in `body` and appends the reply to `out`.
    ///
    /// # Errors
    /// As [`Self::accept`]. Nothing of it has been run then, and every sequence is forgotten: the sides are not of one mind.
    pub fn run(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<(), WireError> {
        let Request { step: Step { ops, mtp, trunk }, rows, .. } = match self.accept(body) {
            Ok(request) => request,
            Err(error) => {
                self.forget_all();
                return Err(error);
            }
        };
        let mut result = StepResult::default();
        ops.iter().for_each(|op| self.foresight.op(op));
        self.executor.run_stage(&Step { ops, ..Step::default() }, &[], &mut result);
        let mut drafts = StepResult::default();
        if !mtp.state.is_empty() {
            self.run_mtp(&mtp, &mut drafts);
        }
        let mut ahead = Drafts::default();
        if !trunk.state.is_empty() {
            let step = Step { trunk, ..Step::default() };
            self.executor.run_stage(&step, &rows, &mut result);
            let next = self.foresight.next(&step.trunk, &result);
            if self.drafts && !next.state.is_empty() {
                let mut made = StepResult::default();
                self.executor.draft_ahead(&next, &mut made);
                ahead = Drafts::take(&mut made);
                self.foresight.keep(&next, &ahead);
            }
        }
        let (fill_ns, draft_ns) = (drafts.times.fill_ns, drafts.times.draft_ns);
        result.draft_start = drafts.draft_start;
        result.draft = drafts.draft;
        result.draft_prob = drafts.draft_prob;
        result.times.fill_ns = fill_ns;
        result.times.draft_ns = draft_ns;
        put_reply(out, &result, &ahead);
        Ok(())
    }

    /// Chains that were foreseen are answered from what was drafted, all else is run.
    fn run_mtp(&mut self, work: &MtpWork, out: &mut StepResult) {
        let foreseen: Vec<Option<(Vec<_>, u64)>> = (0..work.state.len())
            .map(|s| self.foresight.answer(work, s).map(|(drafts, ns)| (drafts.to_vec(), ns)))
            .collect();
        let rest = segments(work, |s| foreseen[s].is_none());
        let mut computed = StepResult::default();
        if !rest.state.is_empty() {
            let step = Step { mtp: rest, ..Step::default() };
            self.executor.run_stage(&step, &[], &mut computed);
        }
        let mut next = 0;
        out.draft_start.push(0);
        for (s, foreseen) in foreseen.iter().enumerate() {
            match foreseen {
                Some((drafts, ns)) => {
                    let end = work.position[s] + work.token_start[s + 1] - work.token_start[s];
                    self.executor.filled_ahead(work.state[s], end);
                    out.draft.extend(drafts.iter().map(|d| d.0));
                    out.draft_prob.extend(drafts.iter().map(|d| d.1));
                    out.times.draft_ns += ns;
                    self.counts.0 += 1;
                }
                None => {
                    let range = computed.draft_start[next] as usize..computed.draft_start[next + 1] as usize;
                    out.draft.extend_from_slice(&computed.draft[range.clone()]);
                    out.draft_prob.extend_from_slice(&computed.draft_prob[range]);
                    next += 1;
                    self.counts.1 += u64::from(work.depth[s] > 0);
                }
            }
            out.draft_start.push(out.draft.len() as u32);
        }
        out.times.fill_ns = computed.times.fill_ns;
        out.times.draft_ns += computed.times.draft_ns;
        self.foresight.done(work);
    }
}

/// The segments of `work` that `wanted` says.
pub(super) fn segments(work: &MtpWork, wanted: impl Fn(usize) -> bool) -> MtpWork {
    let mut out = MtpWork::default();
    for s in (0..work.state.len()).filter(|&s| wanted(s)) {
        if out.state.is_empty() {
            out.token_start.push(0);
            out.page_start.push(0);
        }
        out.state.push(work.state[s]);
        out.position.push(work.position[s]);
        out.depth.push(work.depth[s]);
        out.p_min.push(work.p_min[s]);
        out.token.extend_from_slice(&work.token[work.token_start[s] as usize..work.token_start[s + 1] as usize]);
        out.token_start.push(out.token.len() as u32);
        out.page.extend_from_slice(&work.page[work.page_start[s] as usize..work.page_start[s + 1] as usize]);
        out.page_start.push(out.page.len() as u32);
    }
    out
}
