//! What the program builders of all architectures share: asking for tensors, and the stock pieces of a block.

use engine_kernels::ops::delta_state::{DeltaDims, HeadMap, OutputGate};
use engine_kernels::ops::kv_cache::KvGeometry;

use super::config::{Arch, Block, Config};
use super::conventions::Conventions;
use super::program::{BufferId, Buffers, DeltaGeometry, IndexLayer, MatrixId, Op, RecurrentGeometry, Trunk, VectorId};
use super::stage::Stage;
use super::tensors::{Source, Wants};

/// Writes operation lists down while it collects the tensors and buffers they need.
pub struct Builder<'a> {
    /// Hyperparameters of the model whose blocks are written.
    pub config: &'a Config,
    /// The blocks of the trunk that are written; [`Stage::whole`] unless it is set.
    pub stage: Stage,
    /// What engines differ in.
    pub conventions: Conventions,
    /// Tensors asked for so far.
    pub wants: Wants<'a>,
    /// Buffers asked for so far.
    pub buffers: Buffers,
    /// Attention layers so far.
    pub kv: Vec<KvGeometry>,
    /// Block-sparse ones so far.
    pub index: Vec<IndexLayer>,
    /// Recurrent layers so far.
    pub recurrent: Vec<RecurrentGeometry>,
}

/// Projections that stand before an attention: plain queries, or per head a query and its output gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Query {
    /// `[heads][head_dim]`.
    Plain,
    /// `[heads][2][head_dim]`, query then gate.
    Gated,
}

impl Query {
    fn width(self, block: &Block, head_dim: usize) -> usize {
        match self {
            Self::Plain => block.heads * head_dim,
            Self::Gated => 2 * block.heads * head_dim,
        }
    }
}

impl<'a> Builder<'a> {
    /// An empty one.
    pub fn new(config: &'a Config, conventions: Conventions, wants: Wants<'a>) -> Self {
        let (kv, index, recurrent) = (Vec::new(), Vec::new(), Vec::new());
        let stage = Stage::whole(config.trunk);
        Self { config, stage, conventions, wants, buffers: Buffers::default(), kv, index, recurrent }
    }

    /// A buffer as wide as a hidden row.
    pub fn row(&mut self, name: &'static str) -> BufferId {
        self.buffers.get(name, self.config.d_model)
    }

    /// A trunk with one residual row: the embedding, what `block` writes for each block, the output norm, the LM head; of
    /// these what the stage has. `block` is given the block's place, the residual row and a row for what is normed. The
    /// MTP block is fed what the LM head reads.
    pub fn trunk(
        &mut self,
        query_kind: Query,
        block: impl Fn(&mut Self, &mut Vec<Op>, Place<'_>, BufferId, BufferId),
    ) -> Trunk {
        let mut ops = Vec::new();
        let residual = self.row("residual");
        let normed = self.row("normed");
        let received = self.begin(&mut ops, residual);
        for id in self.stage.blocks() {
            let (prefix, geometry) = (id.to_string(), self.config.blocks[id.0]);
            let at = Place { from: Source::Model, prefix: &prefix, block: &geometry, query_kind };
            block(self, &mut ops, at, residual, normed);
        }
        if !self.stage.is_last() {
            return Trunk { ops, received, hidden: residual, head_in: residual, head: None };
        }
        let hidden = self.row("hidden");
        self.norm(&mut ops, Source::Model, "output_norm.weight", residual, hidden);
        let head = self.head();
        Trunk { ops, received, hidden, head_in: hidden, head: Some(head) }
    }

    /// The start of a trunk: tokens are embedded in `residual` by the first stage; others are given theirs, and this is
    /// where.
    fn begin(&mut self, ops: &mut Vec<Op>, residual: BufferId) -> Option<BufferId> {
        if !self.stage.is_first() {
            return Some(residual);
        }
        let table = self.embedding();
        ops.push(Op::Embed { table, dst: residual });
        None
    }

    /// dst = rms(src) * the vector `name` of a hidden row's width.
    pub fn norm(&mut self, ops: &mut Vec<Op>, from: Source, name: &str, src: BufferId, dst: BufferId) {
        let weight = self.wants.vector(from, name, self.config.d_model);
        ops.push(Op::RmsNorm { src, weight, dst });
    }

    /// Adds the vector `name` if the file has it.
    pub fn bias(&mut self, ops: &mut Vec<Op>, from: Source, name: &str, dst: BufferId, width: usize) {
        if let Some(bias) = self.wants.optional_vector(from, name, width) {
            ops.push(Op::AddBias { dst, bias });
        }
    }

    /// Registers an attention layer of the cache.
    pub fn kv_layer(&mut self, block: &Block) -> usize {
        self.kv.push(KvGeometry { kv_heads: block.kv_heads, head_dim: self.config.head_dim });
        self.kv.len() - 1
    }

    /// `src` to raw query, key and value buffers, biases included; one fused matrix or three.
    pub fn project(&mut self, ops: &mut Vec<Op>, at: Place<'_>, src: BufferId) -> (BufferId, BufferId, BufferId) {
        let width = at.query_kind.width(at.block, self.config.head_dim);
        let raw = self.buffers.get("query_raw", width);
        match self.project_fused(ops, at, src, raw, width) {
            Some((key, value)) => (raw, key, value),
            None => self.project_apart(ops, at, src),
        }
    }

    /// [`Self::project`] of three matrices.
    pub fn project_apart(&mut self, ops: &mut Vec<Op>, at: Place<'_>, src: BufferId) -> (BufferId, BufferId, BufferId) {
        let Place { from, prefix, block, query_kind } = at;
        let d = self.config.d_model;
        let width = query_kind.width(block, self.config.head_dim);
        let raw = self.buffers.get("query_raw", width);
        let weight = self.wants.matrix(from, &format!("{prefix}.attn_q.weight"), width, d);
        let (mut outputs, key, value) = self.key_value(at);
        outputs.insert(0, (weight, raw));
        ops.push(Op::MatMul { src, outputs });
        self.bias(ops, from, &format!("{prefix}.attn_q.bias"), raw, width);
        self.key_value_bias(ops, at, key, value);
        (raw, key, value)
    }

    /// The key and value half of [`Self::project`].
    pub fn project_kv(&mut self, ops: &mut Vec<Op>, at: Place<'_>, src: BufferId) -> (BufferId, BufferId) {
        let width = at.query_kind.width(at.block, self.config.head_dim);
        let raw = self.buffers.get("query_raw", width);
        match self.project_fused(ops, at, src, raw, width) {
            Some(both) => both,
            None => self.project_kv_apart(ops, at, src),
        }
    }

    /// [`Self::project_kv`] of two matrices.
    pub fn project_kv_apart(&mut self, ops: &mut Vec<Op>, at: Place<'_>, src: BufferId) -> (BufferId, BufferId) {
        let (outputs, key, value) = self.key_value(at);
        ops.push(Op::MatMul { src, outputs });
        self.key_value_bias(ops, at, key, value);
        (key, value)
    }

    fn project_fused(
        &mut self,
        ops: &mut Vec<Op>,
        at: Place<'_>,
        src: BufferId,
        raw: BufferId,
        query_width: usize,
    ) -> Option<(BufferId, BufferId)> {
        let Place { from, prefix, block, .. } = at;
        let name = format!("{prefix}.attn_qkv.weight");
        if !self.wants.has(from, &name) {
            return None;
        }
        let kv_width = block.kv_heads * self.config.head_dim;
        let width = query_width + 2 * kv_width;
        let weight = self.wants.matrix(from, &name, width, self.config.d_model);
        let all = self.buffers.get("qkv", width);
        let key = self.buffers.get("key", kv_width);
        let value = self.buffers.get("value", kv_width);
        ops.push(Op::MatMul { src, outputs: vec![(weight, all)] });
        self.bias(ops, from, &format!("{prefix}.attn_qkv.bias"), all, width);
        ops.push(Op::SplitColumns { src: all, dst: vec![raw, key, value] });
        Some((key, value))
    }

    fn key_value(&mut self, at: Place<'_>) -> (Vec<(MatrixId, BufferId)>, BufferId, BufferId) {
        let Place { from, prefix, block, .. } = at;
        let d = self.config.d_model;
        let width = block.kv_heads * self.config.head_dim;
        let key = self.buffers.get("key", width);
        let value = self.buffers.get("value", width);
        let key_weight = self.wants.matrix(from, &format!("{prefix}.attn_k.weight"), width, d);
        let value_weight = self.wants.matrix(from, &format!("{prefix}.attn_v.weight"), width, d);
        (vec![(key_weight, key), (value_weight, value)], key, value)
    }

    fn key_value_bias(&mut self, ops: &mut Vec<Op>, at: Place<'_>, key: BufferId, value: BufferId) {
        let Place { from, prefix, block, .. } = at;
        let width = block.kv_heads * self.config.head_dim;
        self.bias(ops, from, &format!("{prefix}.attn_k.bias"), key, width);
        self.bias(ops, from, &format!("{prefix}.attn_v.bias"), value, width);
    }

    /// Attention, then the output projection, added onto `residual`.
    pub fn attend(
        &mut self,
        ops: &mut Vec<Op>,
        at: Place<'_>,
        layer: usize,
        query: BufferId,
        gate: Option<BufferId>,
        residual: BufferId,
    ) {
        let head_dim = self.config.head_dim;
        let mixed = self.buffers.get("mixed", at.block.heads * head_dim);
        let scale = self.config.attention_scale;
        ops.push(Op::Attention { layer, query, head_dim, scale, dst: mixed });
        let out = self.project_out(ops, at, mixed, gate);
        ops.push(Op::Add { dst: residual, src: out });
    }

    /// Output gate and output projection of attended heads; the result is in the buffer returned.
    pub fn project_out(
        &mut self,
        ops: &mut Vec<Op>,
        at: Place<'_>,
        mixed: BufferId,
        gate: Option<BufferId>,
    ) -> BufferId {
        let Place { from, prefix, block, .. } = at;
        let width = block.heads * self.config.head_dim;
        let d = self.config.d_model;
        let out = self.row("out");
        if let Some(gate) = gate {
            ops.push(Op::SigmoidMul { dst: mixed, gate });
        }
        let weight = self.wants.matrix(from, &format!("{prefix}.attn_output.weight"), d, width);
        ops.push(Op::MatMul { src: mixed, outputs: vec![(weight, out)] });
        self.bias(ops, from, &format!("{prefix}.attn_output.bias"), out, d);
        out
    }

    /// Rows of the target's token table: the file's own number, or one for each token where the table is absent. The
    /// last stage may have the LM head alone, which has as many.
    pub fn table_rows(&self) -> usize {
        let tokens = || self.config.tokens.map_or(0, |list| list.len);
        let rows = |name| self.wants.rows_of(Source::Model, name);
        let head = || rows("output.weight").filter(|_| !self.stage.is_first());
        rows("token_embd.weight").or_else(head).unwrap_or_else(tokens)
    }

    /// The token table; its number of rows is the file's own.
    pub fn embedding(&mut self) -> MatrixId {
        let rows = self.table_rows();
        self.wants.matrix(Source::Model, "token_embd.weight", rows, self.config.d_model)
    }

    /// The LM head: `output`, or the token table when the file has none (tied).
    pub fn head(&mut self) -> MatrixId {
        let rows = self.table_rows();
        let own = self.wants.optional_matrix(Source::Model, "output.weight", rows, self.config.d_model);
        own.unwrap_or_else(|| self.embedding())
    }

    /// Divisors of the rotary angles, if the file has them or says that it should (`llama3`).
    pub fn rope_factors(&mut self) -> Option<VectorId> {
        let name = "rope_freqs.weight";
        let rope = self.config.rope?;
        let pairs = rope.n_rot / 2;
        match rope.needs_factors {
            true => Some(self.wants.vector(Source::Model, name, pairs)),
            false => self.wants.optional_vector(Source::Model, name, pairs),
        }
    }

    /// Registers a recurrent layer with its small weights.
    ///
    /// # Panics
    /// If the configuration has no delta net: it has one whenever a block is one.
    pub fn delta_layer(&mut self, prefix: &str) -> usize {
        let delta = self.config.delta.expect("a delta net block implies a delta net geometry");
        let name = |part: &str| format!("{prefix}.{part}");
        let a = self.wants.vector(Source::Model, &name("ssm_a"), delta.value_heads);
        self.wants.expect_negative(a);
        let geometry = DeltaGeometry {
            dims: DeltaDims {
                key_heads: delta.key_heads,
                value_heads: delta.value_heads,
                key_dim: delta.head_dim,
                value_dim: delta.head_dim,
                conv_taps: delta.conv_taps,
                eps: self.config.norm_eps,
                head_map: match self.config.arch {
                    Arch::Qwen3Next => HeadMap::Grouped,
                    _ => HeadMap::Tiled,
                },
                output_gate: match self.config.arch {
                    Arch::Qwen4Exp => OutputGate::Sigmoid,
                    _ => OutputGate::Silu,
                },
            },
            conv: self.wants.grid(Source::Model, &name("ssm_conv1d.weight"), delta.conv_taps, delta.channels()),
            a,
            dt_bias: self.wants.vector(Source::Model, &name("ssm_dt.bias"), delta.value_heads),
            norm: self.wants.vector(Source::Model, &name("ssm_norm.weight"), delta.head_dim),
        };
        self.recurrent.push(RecurrentGeometry::Delta(geometry));
        self.recurrent.len() - 1
    }
}

/// Which block is being written, and where its tensors are.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The file.
    pub from: Source,
    /// `blk.N`.
    pub prefix: &'a str,
    /// Its geometry.
    pub block: &'a Block,
    /// Packing of the query projection.
    pub query_kind: Query,
}
