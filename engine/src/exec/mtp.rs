//! Catch-up and drafting of the MTP block.
//!
//! Committed rows leave behind what later rows read of the cache (K, V and, where attention is sparse, an index key) and
//! nothing else, so they are filled without the rest of the block; the anchor and every draft step run the block whole. Sequences draft side by side: step j of all chains is one pass.

use std::sync::Arc;
use std::time::Instant;

use bumpalo::Bump;
use bumpalo::collections::Vec as List;
use engine_kernels::ops::logits::{argmax, log_sum_exp};
use smallvec::SmallVec;

use crate::ids::TokenId;
use crate::limits::MTP_TOKENS_MAX;
use crate::model::program::MtpProgram;
use crate::step::{MtpWork, StepResult};

use super::batch::{Rows, Tables};
use super::choose::LOGIT_ROWS;
use super::machine::Batch;
use super::{CpuExecutor, elapsed_ns};

/// A chain of drafts under way.
struct Chain {
    segment: usize,
    token: TokenId,
    position: u32,
    /// Its row in the last pass, whose hidden row the next is fed; none at the anchor, whose row is in the ring.
    row: Option<usize>,
    drafts: SmallVec<[(TokenId, f32); MTP_TOKENS_MAX]>,
    done: bool,
}

fn tokens(work: &MtpWork, segment: usize) -> &[TokenId] {
    &work.token[work.token_start[segment] as usize..work.token_start[segment + 1] as usize]
}

impl CpuExecutor {
    /// Fills, then drafts.
    ///
    /// # Panics
    /// If the model has no MTP block.
    pub(super) fn run_mtp(&mut self, work: &MtpWork, out: &mut StepResult) {
        let started = Instant::now();
        let model = Arc::clone(&self.model);
        let mtp = model.program.mtp.as_ref().expect("MTP work without an MTP block");
        let mut tables = std::mem::take(&mut self.tables);
        tables.fill(&work.page, &work.page_start, self.limits.pages);
        let pool = self.machine.pool();
        pool.lists(|lists| {
            let mut rows = Rows::new(work.token.len().min(self.limits.step_rows), work.state.len(), lists);
            for s in 0..work.state.len() {
                let tokens = tokens(work, s);
                // The anchor of a chain is run whole below.
                let whole = usize::from(work.depth[s] > 0 && !work.probe);
                for (i, &token) in tokens[..tokens.len() - whole].iter().enumerate() {
                    if rows.len() == self.limits.step_rows {
                        self.fill(mtp, work, &tables, &mut rows, lists, out);
                    }
                    rows.push(s, token, work.position[s] + i as u32);
                }
            }
            self.fill(mtp, work, &tables, &mut rows, lists, out);
            out.times.fill_ns = elapsed_ns(started);

            let started = Instant::now();
            let anchor = |s: usize| {
                let tokens = tokens(work, s);
                Chain {
                    segment: s,
                    token: tokens[tokens.len() - 1],
                    position: work.position[s] + tokens.len() as u32 - 1,
                    row: None,
                    drafts: SmallVec::new(),
                    done: false,
                }
            };
            let chains = (0..work.state.len()).filter(|&s| work.depth[s] > 0).map(anchor);
            let mut chains = List::from_iter_in(chains, lists);
            // A group to its end before the next: what a step is fed is still there.
            for group in chains.chunks_mut(LOGIT_ROWS.min(self.limits.step_rows)) {
                while group.iter().any(|c| !c.done) {
                    self.draft_step(mtp, work, &tables, group, out);
                }
            }
            out.times.draft_ns = elapsed_ns(started);

            out.draft_start.push(0);
            let mut chains = chains.into_iter().peekable();
            for s in 0..work.state.len() {
                if let Some(chain) = chains.next_if(|c| c.segment == s) {
                    out.draft.extend(chain.drafts.iter().map(|d| d.0));
                    out.draft_prob.extend(chain.drafts.iter().map(|d| d.1));
                }
                out.draft_start.push(out.draft.len() as u32);
                self.cursors.filled(work.state[s], work.position[s] + tokens(work, s).len() as u32);
            }
        });
        self.tables = tables;
    }

    /// Runs the collected rows for what they leave in the cache, or whole where the probe wants their logits; then forgets them.
    fn fill(
        &mut self,
        mtp: &MtpProgram,
        work: &MtpWork,
        tables: &Tables,
        rows: &mut Rows<'_>,
        lists: &Bump,
        out: &mut StepResult,
    ) {
        if rows.len() == 0 {
            return;
        }
        let d = self.shape.hidden_width;
        let hidden = self.machine.rows_mut(mtp.hidden_in, rows.len());
        for (segment, run) in &rows.runs {
            for row in run.clone() {
                let dst = &mut hidden[row * d..(row + 1) * d];
                self.cursors.hidden_before(work.state[*segment], rows.position[row], dst);
            }
        }
        let segments = rows.segments(tables, lists);
        let batch = Batch { token: &rows.token, position: &rows.position, segments, states: &[] };
        let ops = if work.probe { &mtp.block } else { &mtp.fill };
        self.machine.run(&self.model, ops, &batch);
        if work.probe {
            let all = List::from_iter_in(0..rows.len(), lists);
            for some in all.chunks(LOGIT_ROWS) {
                self.export(mtp, some, out);
            }
        }
        rows.clear();
    }

    fn export(&mut self, mtp: &MtpProgram, rows: &[usize], out: &mut StepResult) {
        let (logits, stride) = self.machine.logits(&self.model, mtp.head, mtp.head_in, rows);
        for row in logits.chunks_exact(stride) {
            out.mtp_logits.extend_from_slice(&row[..self.model.vocab]);
        }
    }

    /// One more draft for every chain of the group that goes on.
    fn draft_step(
        &mut self,
        mtp: &MtpProgram,
        work: &MtpWork,
        tables: &Tables,
        group: &mut [Chain],
        out: &mut StepResult,
    ) {
        let pool = self.machine.pool();
        pool.lists(|lists| {
            let mut rows = Rows::new(group.len(), group.len(), lists);
            let mut fed = List::with_capacity_in(group.len(), lists);
            for chain in group.iter().filter(|c| !c.done) {
                rows.push(chain.segment, chain.token, chain.position);
                fed.push(chain.row);
            }
            self.machine.carry(mtp.hidden_out, mtp.hidden_in, &fed);
            let d = self.shape.hidden_width;
            let hidden = self.machine.rows_mut(mtp.hidden_in, rows.len());
            for (row, (chain, dst)) in group.iter_mut().filter(|c| !c.done).zip(hidden.chunks_exact_mut(d)).enumerate()
            {
                if chain.row.is_none() {
                    self.cursors.hidden_before(work.state[chain.segment], chain.position, dst);
                }
                chain.row = Some(row);
            }
            let segments = rows.segments(tables, lists);
            let batch = Batch { token: &rows.token, position: &rows.position, segments, states: &[] };
            self.machine.run(&self.model, &mtp.block, &batch);

            let all = List::from_iter_in(0..rows.len(), lists);
            // The probe has the anchors' logits already: they were among its catch-up rows.
            if work.probe && fed.iter().any(Option::is_some) {
                self.export(mtp, &all, out);
            }
            let isa = self.machine.isa();
            let vocab = self.model.vocab;
            let (logits, stride) = self.machine.logits(&self.model, mtp.head, mtp.head_in, &all);
            for (chain, row) in group.iter_mut().filter(|c| !c.done).zip(logits.chunks_exact(stride)) {
                let row = &row[..vocab];
                let (Some((token, logit)), Some(lse)) = (argmax(isa, row), log_sum_exp(isa, row)) else {
                    chain.done = true; // nothing finite to draft; the target will say so itself
                    continue;
                };
                let prob = (logit - lse).exp();
                if prob < work.p_min[chain.segment] {
                    chain.done = true;
                    continue;
                }
                chain.drafts.push((TokenId(token), prob));
                chain.token = TokenId(token);
                chain.position += 1;
                chain.done = chain.drafts.len() == work.depth[chain.segment] as usize;
            }
        });
    }
}
