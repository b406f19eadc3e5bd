//! One trunk pass over the rows of all sequences, then the choice of tokens.

use std::sync::Arc;
use std::time::Instant;

use bumpalo::Bump;
use bumpalo::collections::Vec as List;
use engine_kernels::ops::history::StateSegment;

use crate::ids::TokenId;
use crate::model::program::MatrixId;
use crate::step::{StepResult, TrunkWork};

use super::batch::Rows;
use super::choose::{blocks, decide, runs};
use super::machine::Batch;
use super::{CpuExecutor, elapsed_ns};

impl CpuExecutor {
    /// Runs every row through the trunk, folds and logs, keeps hidden rows, and decides the ruled rows; of a stage, what
    /// of that it has.
    ///
    /// # Panics
    /// If `received` is not what the stage is to be given.
    pub(super) fn run_trunk(&mut self, work: &TrunkWork, received: &[f32], out: &mut StepResult) {
        let started = Instant::now();
        let model = Arc::clone(&self.model);
        let pool = self.machine.pool();
        let mut tables = std::mem::take(&mut self.tables);
        tables.fill(&work.page, &work.page_start, self.limits.pages);
        pool.lists(|lists| {
            let mut rows = Rows::new(work.token.len(), work.state.len(), lists);
            let mut states = List::with_capacity_in(work.state.len(), lists);
            for (s, &state) in work.state.iter().enumerate() {
                let range = work.row_start[s] as usize..work.row_start[s + 1] as usize;
                for (i, &token) in work.token[range.clone()].iter().enumerate() {
                    rows.push(s, token, work.position[s] + i as u32);
                }
                if self.shape.recurrent {
                    states.push(StateSegment {
                        slot: state.index(),
                        rows: range,
                        log_len: self.cursors.get(state).log_len() as usize,
                        committed: work.committed[s] as usize,
                    });
                }
            }
            match model.program.received {
                Some(buffer) => self.machine.rows_mut(buffer, rows.len()).copy_from_slice(received),
                None => assert!(received.is_empty(), "the first stage embeds tokens"),
            }
            let segments = rows.segments(&tables, lists);
            let batch = Batch { token: &rows.token, position: &rows.position, segments, states: &states };
            self.machine.run(&model, &model.program.trunk, &batch);
        });
        self.tables = tables;
        self.advance(work);
        out.times.trunk_ns = elapsed_ns(started);
        let Some(head) = model.program.head else { return };
        pool.lists(|lists| self.decide_all(work, head, lists, out));
        out.times.trunk_ns = elapsed_ns(started) - out.times.choose_ns;
    }

    fn advance(&mut self, work: &TrunkWork) {
        let d = self.shape.hidden_width;
        let hidden = self.machine.rows(self.model.program.hidden, work.token.len());
        for (s, &state) in work.state.iter().enumerate() {
            let rows = work.row_start[s]..work.row_start[s + 1];
            self.cursors.advance(state, rows.end - rows.start, work.committed[s]);
            for (i, row) in rows.enumerate() {
                let row = &hidden[row as usize * d..(row as usize + 1) * d];
                self.cursors.keep_hidden(state, work.position[s] + i as u32, row);
            }
        }
    }

    fn decide_all(&mut self, work: &TrunkWork, head: MatrixId, lists: &Bump, out: &mut StepResult) {
        let segments = work.state.len();
        out.accepted.resize(segments, 0);
        out.next.resize(segments, TokenId::NONE);
        out.fault.resize(segments, None);
        out.top_start.push(0);
        let program = &self.model.program;
        let (d, vocab) = (self.shape.hidden_width, self.model.vocab);
        let runs = runs(work, lists);
        for block in blocks(&runs, lists) {
            let block = &runs[block];
            let rules = block[0].rules.start..block[block.len() - 1].rules.end;
            let rows = List::from_iter_in(work.rules.row[rules].iter().map(|&r| r as usize), lists);
            if work.rules.probe {
                let hidden = self.machine.rows(program.hidden, work.token.len());
                for row in &rows {
                    out.hidden.extend_from_slice(&hidden[row * d..(row + 1) * d]);
                }
            }
            let (logits, stride) = self.machine.logits(&self.model, head, program.head_in, &rows);
            if work.rules.probe {
                for row in logits.chunks_exact(stride) {
                    out.logits.extend_from_slice(&row[..vocab]);
                }
            }
            let started = Instant::now();
            let mut first = 0;
            for run in block {
                let len = run.rules.len();
                let logits = &mut logits[first * stride..(first + len) * stride];
                decide(work, run, logits, stride, vocab, &mut self.chooser, out);
                first += len;
            }
            out.times.choose_ns += elapsed_ns(started);
        }
    }
}
