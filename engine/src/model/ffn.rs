//! What follows the mixer of a block: an FFN, or experts.
//!
//! ```text
//! scores = router x                                      z = latent_down x, or x itself
//! r      = sum over chosen e: weight_e * down_e(act(gate_e z, up_e z))
//! s      = down(act(gate x, up x)) * sigmoid(shared_gate . x)       the shared expert; the gate is not everywhere
//! ffn    = (latent_up r, or r itself) + s
//! ```
//!
//! Source: llama.cpp `build_moe_ffn`, `src/models/qwen35moe.cpp`, `src/models/nemotron-h.cpp`.

use super::builder::{Builder, Place};
use super::config::{Activation, ExpertsConfig, Ffn};
use super::program::{BufferId, ExpertsOp, MatrixId, Op};
use super::tensors::{Slabs, Source};

impl Builder<'_> {
    /// Norm, then the FFN of the block, added onto `residual`; nothing where the block has none.
    pub fn ffn(&mut self, ops: &mut Vec<Op>, at: Place<'_>, norm: &str, residual: BufferId) {
        if at.block.ffn == Ffn::None {
            return;
        }
        let normed = self.row("normed");
        self.norm(ops, at.from, &format!("{}.{norm}", at.prefix), residual, normed);
        let out = match &at.block.ffn {
            Ffn::None => return,
            Ffn::Dense { width, activation: Activation::SwiGlu } => self.gated(ops, at, *width, normed),
            Ffn::Dense { width, activation: Activation::ReluSquared } => self.squared(ops, at, *width, normed),
            Ffn::Experts(experts) => self.experts(ops, at, experts, normed),
        };
        ops.push(Op::Add { dst: residual, src: out });
    }

    /// FFN without a gate of `normed`; the result is in the buffer returned.
    fn squared(&mut self, ops: &mut Vec<Op>, at: Place<'_>, width: usize, normed: BufferId) -> BufferId {
        let Place { from, prefix, .. } = at;
        let d = self.config.d_model;
        let out = self.row("out");
        let up = self.buffers.get("ffn_up", width);
        let name = |part: &str| format!("{prefix}.{part}");
        let up_weight = self.wants.matrix(from, &name("ffn_up.weight"), width, d);
        ops.push(Op::MatMul { src: normed, outputs: vec![(up_weight, up)] });
        self.bias(ops, from, &name("ffn_up.bias"), up, width);
        ops.push(Op::ReluSquared { x: up });
        self.down(ops, at, width, up, out);
        out
    }

    /// dst = down src.
    fn down(&mut self, ops: &mut Vec<Op>, at: Place<'_>, width: usize, src: BufferId, dst: BufferId) {
        let Place { from, prefix, .. } = at;
        let d = self.config.d_model;
        let weight = self.wants.matrix(from, &format!("{prefix}.ffn_down.weight"), d, width);
        ops.push(Op::MatMul { src, outputs: vec![(weight, dst)] });
        self.bias(ops, from, &format!("{prefix}.ffn_down.bias"), dst, d);
    }

    /// Gated FFN of `normed`; the result is in the buffer returned.
    fn gated(&mut self, ops: &mut Vec<Op>, at: Place<'_>, width: usize, normed: BufferId) -> BufferId {
        let Place { from, prefix, .. } = at;
        let d = self.config.d_model;
        let out = self.row("out");
        let gate = self.buffers.get("ffn_gate", width);
        let up = self.buffers.get("ffn_up", width);
        let name = |part: &str| format!("{prefix}.{part}");
        let gate_weight = self.wants.matrix(from, &name("ffn_gate.weight"), width, d);
        let up_weight = self.wants.matrix(from, &name("ffn_up.weight"), width, d);
        ops.push(Op::MatMul { src: normed, outputs: vec![(gate_weight, gate), (up_weight, up)] });
        self.bias(ops, from, &name("ffn_gate.bias"), gate, width);
        self.bias(ops, from, &name("ffn_up.bias"), up, width);
        ops.push(Op::SiluMul { gate, up });
        self.down(ops, at, width, gate, out);
        out
    }

    /// Routed and shared experts of `normed`; the result is in the buffer returned.
    pub fn experts(&mut self, ops: &mut Vec<Op>, at: Place<'_>, e: &ExpertsConfig, normed: BufferId) -> BufferId {
        let Place { from, prefix, .. } = at;
        let d = self.config.d_model;
        let name = |part: &str| format!("{prefix}.{part}.weight");
        let gated = e.activation == Activation::SwiGlu;
        let scores = self.buffers.get("router_scores", e.router.experts);
        let out = self.row("out");
        let shared_out = self.row("shared_out");
        let shared = self.buffers.get("shared_hidden", e.shared_width);

        // Everything that reads the row itself is one product.
        let mut outputs = vec![(self.wants.matrix(from, &name("ffn_gate_inp"), e.router.experts, d), scores)];
        let shared_up = self.wants.matrix(from, &name("ffn_up_shexp"), e.shared_width, d);
        let shared_gated = gated.then(|| self.buffers.get("shared_up", e.shared_width));
        match shared_gated {
            Some(up) => {
                let gate = self.wants.matrix(from, &name("ffn_gate_shexp"), e.shared_width, d);
                outputs.extend([(gate, shared), (shared_up, up)]);
            }
            None => outputs.push((shared_up, shared)),
        }
        let row_gate = e.shared_gate.then(|| self.buffers.get("shared_gate", 1));
        if let Some(row_gate) = row_gate {
            outputs.push((self.wants.matrix(from, &name("ffn_gate_inp_shexp"), 1, d), row_gate));
        }
        let latent =
            e.latent.map(|width| (self.buffers.get("latent_in", width), self.buffers.get("latent_out", width)));
        let (src, dst) = latent.unwrap_or((normed, out));
        let k = e.latent.unwrap_or(d);
        if latent.is_some() {
            outputs.push((self.wants.matrix(from, &name("ffn_latent_down"), k, d), src));
        }
        ops.push(Op::MatMul { src: normed, outputs });

        let (gate, up, down) = self.expert_stacks(from, prefix, e, k);
        let bias = format!("{prefix}.exp_probs_b.bias");
        let selection_bias = e.selection_bias.then(|| self.wants.vector(from, &bias, e.router.experts));
        let (router, width) = (e.router, e.width);
        ops.push(Op::Experts(ExpertsOp { scores, selection_bias, router, src, gate, up, down, width, dst }));
        if latent.is_some() {
            let weight = self.wants.matrix(from, &name("ffn_latent_up"), d, k);
            ops.push(Op::MatMul { src: dst, outputs: vec![(weight, out)] });
        }

        ops.push(match shared_gated {
            Some(up) => Op::SiluMul { gate: shared, up },
            None => Op::ReluSquared { x: shared },
        });
        let weight = self.wants.matrix(from, &name("ffn_down_shexp"), d, e.shared_width);
        ops.push(Op::MatMul { src: shared, outputs: vec![(weight, shared_out)] });
        if let Some(gate) = row_gate {
            ops.push(Op::SigmoidMulRows { dst: shared_out, gate });
        }
        ops.push(Op::Add { dst: out, src: shared_out });
        out
    }

    /// Gate, up and down of all experts; gate and up may be one tensor, the rows of the gate first.
    fn expert_stacks(
        &mut self,
        from: Source,
        prefix: &str,
        e: &ExpertsConfig,
        k: usize,
    ) -> (Option<MatrixId>, MatrixId, MatrixId) {
        let name = |part: &str| format!("{prefix}.{part}.weight");
        let slabs = Slabs { count: e.router.experts, ..Slabs::ONE };
        let down = self.wants.stack(from, &name("ffn_down_exps"), k, e.width, slabs);
        let fused = name("ffn_gate_up_exps");
        if e.activation == Activation::SwiGlu && self.wants.has(from, &fused) {
            let mut part = |part| self.wants.stack(from, &fused, e.width, k, Slabs { parts: 2, part, ..slabs });
            return (Some(part(0)), part(1), down);
        }
        let gate = match e.activation {
            Activation::SwiGlu => Some(self.wants.stack(from, &name("ffn_gate_exps"), e.width, k, slabs)),
            Activation::ReluSquared => None,
        };
        (gate, self.wants.stack(from, &name("ffn_up_exps"), e.width, k, slabs), down)
    }
}
