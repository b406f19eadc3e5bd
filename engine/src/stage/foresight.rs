//! Drafts for the tick to come, made by the last stage right after its verdict, so that a tick costs one round trip.
//!
//! The next tick's MTP work is known but for what the Ledger decides: a row whose chain was verified will catch up on the
//! tokens just accepted and draft from the token just chosen, to the depth it had. The last stage does that ahead and
//! sends the drafts along. When the work comes, a segment that is what was foreseen is answered from them, any other is
//! computed. A chain of drafts begins with every shorter chain from the same token, so a smaller depth is answered too.
//!
//! Nothing is moved by work that is done ahead: what it writes lies behind the MTP cache's end, where drafts always
//! write. Both stages hold the same [`Foresight`], fed with the same steps and results, so that the first knows what the
//! last will find answered.

use crate::ids::{PageId, StateSlot, TokenId};
use crate::limits::{Limits, PAGE_TOKENS};
use crate::step::{MtpWork, SlotOp, StepResult, TrunkWork};

/// One segment that was run ahead.
struct Ahead {
    position: u32,
    token: Vec<TokenId>,
    page: Vec<PageId>,
    depth: u32,
    p_min: f32,
    drafts: Vec<(TokenId, f32)>,
    /// Its share of the time that the chains took.
    draft_ns: u64,
}

impl Ahead {
    /// Whether an operation leaves what was foreseen of `state` as it is.
    fn outlives(&self, state: StateSlot, op: &SlotOp) -> bool {
        match *op {
            SlotOp::Reset { state: s }
            | SlotOp::Restore { state: s, .. }
            | SlotOp::Adopt { state: s, .. }
            | SlotOp::Fork { to: s, .. } => s != state,
            // The rows that a verdict rejected go; foreseen is what remains then, and no other length.
            SlotOp::Truncate { state: s, kv_len } => {
                s != state || u64::from(self.position) + self.token.len() as u64 == u64::from(kv_len) + 1
            }
            SlotOp::CopyPage { to, .. } => !self.page.contains(&to),
            SlotOp::Fold { .. } | SlotOp::Save { .. } | SlotOp::Drop { .. } => true,
        }
    }
}

/// The chain of a sequence in the tick under way.
#[derive(Clone, Copy)]
struct Chain {
    /// Position behind the anchor.
    end: u32,
    depth: u32,
    p_min: f32,
}

/// By sequence.
pub struct Foresight {
    chain: Vec<Option<Chain>>,
    ahead: Vec<Option<Ahead>>,
}

impl Foresight {
    /// Nothing foreseen for any of `slots` sequences.
    pub fn new(slots: usize) -> Self {
        Self { chain: (0..slots).map(|_| None).collect(), ahead: (0..slots).map(|_| None).collect() }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.chain.fill(None);
        self.ahead.iter_mut().for_each(|ahead| *ahead = None);
    }

    /// What an operation does to what was foreseen.
    pub fn op(&mut self, op: &SlotOp) {
        // Whatever moves the end of an MTP cache leaves no chain that goes on from there.
        if let SlotOp::Reset { state }
        | SlotOp::Restore { state, .. }
        | SlotOp::Adopt { state, .. }
        | SlotOp::Fork { to: state, .. }
        | SlotOp::Truncate { state, .. } = *op
        {
            self.chain[state.index()] = None;
        }
        for (state, ahead) in (0..).map(StateSlot).zip(&mut self.ahead) {
            if ahead.as_ref().is_some_and(|ahead| !ahead.outlives(state, op)) {
                *ahead = None;
            }
        }
    }

    /// As [`Self::answer`], behind operations that are still to come.
    pub fn answers_after(&self, ops: &[SlotOp], work: &MtpWork, segment: usize) -> bool {
        let state = work.state[segment];
        let ahead = self.ahead[state.index()].as_ref();
        ahead.is_some_and(|ahead| ops.iter().all(|op| ahead.outlives(state, op)))
            && self.answer(work, segment).is_some()
    }

    /// Drafts of a segment that was foreseen, as many as it asks for, and what they took; `None` where it was not.
    pub fn answer(&self, work: &MtpWork, segment: usize) -> Option<(&[(TokenId, f32)], u64)> {
        let ahead = self.ahead[work.state[segment].index()].as_ref()?;
        let depth = work.depth[segment];
        let token = &work.token[work.token_start[segment] as usize..work.token_start[segment + 1] as usize];
        let page = &work.page[work.page_start[segment] as usize..work.page_start[segment + 1] as usize];
        // Those that hold committed rows; what drafts wrote behind them is nobody's.
        let pages = Limits::pages_for(work.position[segment] as usize + token.len());
        let same = depth > 0
            && work.position[segment] == ahead.position
            && token == ahead.token
            && work.p_min[segment].to_bits() == ahead.p_min.to_bits()
            && page.get(..pages).is_some_and(|page| ahead.page.get(..pages) == Some(page));
        let ended = ahead.drafts.len() < ahead.depth as usize;
        if !same || (depth > ahead.depth && !ended) {
            return None;
        }
        let n = ahead.drafts.len().min(depth as usize);
        Some((&ahead.drafts[..n], ahead.draft_ns * u64::from(depth.min(ahead.depth)) / u64::from(ahead.depth)))
    }

    /// Takes note of MTP work that was done, whoever answered it.
    pub fn done(&mut self, work: &MtpWork) {
        for (s, state) in work.state.iter().enumerate() {
            self.ahead[state.index()] = None;
            let end = work.position[s] + work.token_start[s + 1] - work.token_start[s];
            let chain = Chain { end, depth: work.depth[s], p_min: work.p_min[s] };
            self.chain[state.index()] = (work.depth[s] > 0).then_some(chain);
        }
    }

    /// The MTP work that the next tick is likely to ask for after this pass; empty where nothing drafted. Drafts need
    /// pages: as many are foreseen as the pass had.
    pub fn next(&mut self, trunk: &TrunkWork, result: &StepResult) -> MtpWork {
        let mut out = MtpWork::default();
        for (s, &state) in trunk.state.iter().enumerate() {
            let Some(chain) = self.chain[state.index()].take() else { continue };
            let (next, anchor) = (result.next[s], trunk.position[s]);
            if next.is_none() || result.fault[s].is_some() || trunk.committed[s] != 1 || chain.end != anchor + 1 {
                continue;
            }
            let accepted = result.accepted[s];
            let page = &trunk.page[trunk.page_start[s] as usize..trunk.page_start[s + 1] as usize];
            let room = (page.len() * PAGE_TOKENS).saturating_sub((chain.end + accepted) as usize);
            let depth = chain.depth.min(room as u32);
            if depth == 0 {
                continue;
            }
            if out.state.is_empty() {
                out.token_start.push(0);
                out.page_start.push(0);
            }
            let drafts = trunk.row_start[s] as usize + 1;
            out.state.push(state);
            out.position.push(chain.end);
            out.depth.push(depth);
            out.p_min.push(chain.p_min);
            out.token.extend_from_slice(&trunk.token[drafts..drafts + accepted as usize]);
            out.token.push(next);
            out.token_start.push(out.token.len() as u32);
            out.page.extend_from_slice(page);
            out.page_start.push(out.page.len() as u32);
        }
        self.chain.fill(None);
        out
    }

    /// Keeps the drafts of [`Self::next`]'s work, which took `draft_ns`.
    pub fn keep(&mut self, work: &MtpWork, drafts: &Drafts) {
        let wanted: u32 = work.depth.iter().sum();
        for (s, state) in work.state.iter().enumerate() {
            let token = &work.token[work.token_start[s] as usize..work.token_start[s + 1] as usize];
            let page = &work.page[work.page_start[s] as usize..work.page_start[s + 1] as usize];
            self.ahead[state.index()] = Some(Ahead {
                position: work.position[s],
                token: token.to_vec(),
                page: page.to_vec(),
                depth: work.depth[s],
                p_min: work.p_min[s],
                drafts: drafts.of(s).collect(),
                draft_ns: drafts.ns * u64::from(work.depth[s]) / u64::from(wanted.max(1)),
            });
        }
    }

    /// What is foreseen of a sequence: drafts.
    pub fn drafts_of(&self, state: StateSlot) -> Option<&[(TokenId, f32)]> {
        Some(&self.ahead[state.index()].as_ref()?.drafts)
    }
}

/// Drafts of MTP work as they cross the wire.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Drafts {
    /// Segment i drafted `token[start[i]..start[i + 1]]`. Length: segments + 1, or empty.
    pub start: Vec<u32>,
    /// Drafts.
    pub token: Vec<TokenId>,
    /// Per draft: the MTP block's own probability of it.
    pub prob: Vec<f32>,
    /// What the chains took.
    pub ns: u64,
}

impl Drafts {
    /// Of a result.
    pub fn take(result: &mut StepResult) -> Self {
        Self {
            start: std::mem::take(&mut result.draft_start),
            token: std::mem::take(&mut result.draft),
            prob: std::mem::take(&mut result.draft_prob),
            ns: result.times.draft_ns,
        }
    }

    /// Drafts and probabilities of a segment.
    pub fn of(&self, segment: usize) -> impl Iterator<Item = (TokenId, f32)> {
        let range = self.start[segment] as usize..self.start[segment + 1] as usize;
        self.token[range.clone()].iter().copied().zip(self.prob[range].iter().copied())
    }
}
