//! Mixtures of experts: the router's choice, and the products of the experts chosen.

use std::sync::Arc;

use engine_kernels::ops::moe::{ExpertScratch, Experts, Route, experts, route};

use crate::model::Model;
use crate::model::program::{BufferId, ExpertsOp, Program};

use super::machine::Machine;

/// Memory of one mixture, which all blocks use in turn.
pub struct Mixture {
    /// `[step rows][experts of a row]`.
    routes: Vec<Route>,
    scratch: ExpertScratch,
}

impl Mixture {
    /// Bytes of [`Self::new`] for a model with this program.
    pub fn bytes_for(program: &Program, rows: usize) -> usize {
        let routes = rows.saturating_mul(used(program)).saturating_mul(size_of::<Route>());
        let bytes = |op: &ExpertsOp| {
            let (k, n) = dims(program, op);
            ExpertScratch::bytes_for(rows, op.router.used, k, op.width, n)
        };
        routes.saturating_add(program.mixtures().map(bytes).max().unwrap_or(0))
    }

    /// For batches of up to `rows` rows; empty for a model without experts.
    pub fn new(model: &Model, rows: usize) -> Self {
        let program = &model.program;
        let mut scratch = ExpertScratch::default();
        for op in program.mixtures() {
            let (k, n) = dims(program, op);
            scratch.reserve(rows, op.router.used, k, op.width, n);
        }
        Self { routes: vec![Route::default(); rows * used(program)], scratch }
    }
}

/// Experts of a row at most.
fn used(program: &Program) -> usize {
    program.mixtures().map(|op| op.router.used).max().unwrap_or(0)
}

/// Widths of the rows that the experts read and write.
fn dims(program: &Program, op: &ExpertsOp) -> (usize, usize) {
    let width = |buffer: BufferId| program.buffers[buffer.index()].width;
    (width(op.src), width(op.dst))
}

impl Machine {
    /// Runs the experts that each row chooses.
    pub(super) fn experts(&mut self, model: &Model, op: &ExpertsOp, rows: usize) {
        let (pool, isa, activation) = (Arc::clone(&self.pool), self.isa, self.activation);
        let weights = &model.weights;
        let bias = op.selection_bias.map(|id| weights.vector(id));
        self.with(op.scores, rows, |m, scores| {
            route(&pool, isa, &op.router, scores, bias, &mut m.mixture.routes[..rows * op.router.used]);
        });
        let stacks = Experts {
            gate: op.gate.map(|id| weights.stack(id)),
            up: weights.stack(op.up),
            down: weights.stack(op.down),
        };
        self.with(op.dst, rows, |m, dst| {
            let Self { buffers, width, input, mixture: Mixture { routes, scratch }, .. } = m;
            let x = &buffers[op.src.index()][..rows * width[op.src.index()]];
            let routes = &routes[..rows * op.router.used];
            experts(&pool, isa, activation, stacks, routes, x, (input, scratch), dst);
        });
    }
}
