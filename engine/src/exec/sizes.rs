//! Sizes of everything an executor holds, from its program alone. Each is the structure's own `bytes_for`.

use engine_kernels::ops::attention::AttentionScratch;
use engine_kernels::ops::kv_cache::KvCache;
use engine_kernels::ops::rope::RopeTable;
use engine_kernels::{Pool, Product, Quant, scratch_bytes};

use crate::limits::Limits;
use crate::memory::Part;
use crate::model::Model;
use crate::model::config::{Config, Mixer};
use crate::model::plan::Plan;
use crate::model::program::{BufferId, MatrixId, Op, Program, RecurrentGeometry};
use crate::sample;

use super::batch::Tables;
use super::choose::LOGIT_ROWS;
use super::cursors::Cursors;
use super::moe::Mixture;
use super::ngrams::Ngrams;
use super::recurrent::Recurrent;
use super::sparse::Sparse;
use super::{ExecOptions, hidden_rows};

/// What sizes depend on of one matrix, or of every matrix of a stack.
#[derive(Clone, Copy)]
struct Shape {
    quant: Quant,
    n: usize,
    k: usize,
    /// All of them are in panels.
    repacked: bool,
}

/// The matrices of a program by their ids.
pub struct Shapes(Vec<Shape>);

impl Shapes {
    /// Of a model that is not loaded. `panels`: per matrix, how many of its slabs will be repacked.
    pub fn of_plan(plan: &Plan, panels: &[usize]) -> Self {
        let shape = |(want, &panels): (&crate::model::tensors::WantedMatrix, &usize)| Shape {
            quant: want.quant,
            n: want.n,
            k: want.k,
            repacked: panels == want.slabs.count,
        };
        Self(plan.matrices.iter().zip(panels).map(shape).collect())
    }

    /// Of a loaded model.
    pub fn of_model(model: &Model) -> Self {
        let shape = |stack: &[engine_kernels::Matrix]| Shape {
            quant: stack[0].quant(),
            n: stack[0].n(),
            k: stack[0].k(),
            repacked: stack.iter().all(engine_kernels::Matrix::is_repacked),
        };
        Self(model.weights.stacks().map(shape).collect())
    }

    fn product(&self, id: MatrixId, rows: usize) -> Product {
        let Shape { quant, n, k, repacked } = self.0[id.index()];
        Product { quant, n, k, rows, repacked }
    }
}

/// Bytes of what [`super::machine::Machine`] keeps for the logits of as many rows as are asked about at once.
pub struct LogitSizes {
    /// Rows.
    pub rows: usize,
    /// Floats of what the LM head reads.
    pub head_in: usize,
    /// Floats of the logits.
    pub logits: usize,
}

impl LogitSizes {
    /// For an LM head that reads rows of `width` and has `head_rows` outputs; nothing without one.
    pub fn new(limits: &Limits, width: usize, head_rows: Option<usize>) -> Self {
        let rows = if head_rows.is_some() { LOGIT_ROWS.min(limits.step_rows) } else { 0 };
        Self { rows, head_in: rows * width, logits: rows * head_rows.unwrap_or(0) }
    }
}

/// Bytes of a saved sequence, its pages not counted.
pub fn checkpoint_bytes(program: &Program, limits: &Limits) -> usize {
    let saved = Recurrent::history_bytes(&program.recurrent, limits).saved;
    saved + if program.mtp.is_some() { size_of::<f32>() * program.width(program.hidden) } else { 0 }
}

/// Checkpoints that take no more than a quarter of what the KV cache takes; none where a sequence is nothing but its pages.
pub fn checkpoints_beside_kv(program: &Program, limits: &Limits, options: &ExecOptions) -> usize {
    let kv = KvCache::bytes_for(options.kv_type, &program.kv, limits.pages);
    (kv / 4).checked_div(checkpoint_bytes(program, limits)).unwrap_or(0)
}

/// What an operation works in beside the row buffers and caches.
enum Scratch<'a> {
    /// Products of the rows of a buffer.
    Products { src: BufferId, outputs: &'a [(MatrixId, BufferId)] },
    /// Products of experts, any of which every row may choose.
    Experts([Option<MatrixId>; 3]),
    /// Attention of these query heads.
    Attention { layer: usize, query: BufferId, head_dim: usize },
    /// The memory of its layer, or none.
    Own,
}

fn scratch(op: &Op) -> Scratch<'_> {
    match *op {
        Op::MatMul { src, ref outputs } => Scratch::Products { src, outputs },
        Op::Experts(e) => Scratch::Experts([e.gate, Some(e.up), Some(e.down)]),
        Op::Attention { layer, query, head_dim, .. } | Op::SparseAttention { layer, query, head_dim, .. } => {
            Scratch::Attention { layer, query, head_dim }
        }
        Op::Embed { .. }
        | Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Concat { .. }
        | Op::RmsNormStreams { .. }
        | Op::Repeat { .. }
        | Op::Squash { .. }
        | Op::Collapse { .. }
        | Op::Combine { .. }
        | Op::Ngrams { .. }
        | Op::GateValues { .. }
        | Op::Convolution { .. }
        | Op::StoreIndex { .. }
        | Op::AddBias { .. }
        | Op::SplitGate { .. }
        | Op::SplitColumns { .. }
        | Op::Rope { .. }
        | Op::StoreKv { .. }
        | Op::DeltaNet { .. }
        | Op::Mamba2 { .. }
        | Op::SigmoidMul { .. }
        | Op::SigmoidMulRows { .. }
        | Op::ReluSquared { .. }
        | Op::SiluMul { .. }
        | Op::Add { .. } => Scratch::Own,
    }
}

/// The products of a pass, as far as their scratch memory goes.
pub fn products(program: &Program, shapes: &Shapes, limits: &Limits) -> Vec<Product> {
    let rows = limits.step_rows;
    let logit_rows = LogitSizes::new(limits, 0, program.head.map(|_| 0)).rows;
    let heads = program.head.iter().copied().chain(program.mtp.iter().map(|mtp| mtp.head));
    let mut out: Vec<Product> = heads.map(|head| shapes.product(head, logit_rows)).collect();
    for op in program.ops() {
        match scratch(op) {
            Scratch::Products { src, outputs } => out.extend(outputs.iter().map(|&(id, _)| {
                let product = shapes.product(id, rows);
                Product { rows: rows * (program.width(src) / product.k.max(1)), ..product }
            })),
            Scratch::Experts(all) => out.extend(all.into_iter().flatten().map(|id| shapes.product(id, rows))),
            Scratch::Attention { .. } | Scratch::Own => {}
        }
    }
    out
}

/// Bytes of the largest [`AttentionScratch`].
pub fn attention_bytes(program: &Program, limits: &Limits, options: &ExecOptions) -> usize {
    let bytes = |op: &Op| match scratch(op) {
        Scratch::Attention { layer, query, head_dim } => {
            let heads = program.width(query) / head_dim;
            AttentionScratch::bytes_for(options.threads, program.kv[layer], heads, limits.context)
        }
        Scratch::Products { .. } | Scratch::Experts(_) | Scratch::Own => 0,
    };
    program.ops().map(bytes).max().unwrap_or(0)
}

/// Everything but the weights.
pub fn parts(program: &Program, shapes: &Shapes, vocab: usize, limits: &Limits, options: &ExecOptions) -> Vec<Part> {
    let float = size_of::<f32>();
    let rows = limits.step_rows;
    let width = |buffer: BufferId| program.width(buffer);
    let trunk_kv = &program.kv[..program.trunk_kv_len()];
    let history = Recurrent::history_bytes(&program.recurrent, limits);
    let saved = checkpoint_bytes(program, limits);
    let head_rows = program.head.map(|head| shapes.0[head.index()].n);
    let logits = LogitSizes::new(limits, width(program.head_in), head_rows);

    let ngrams = program.ngrams.as_ref().map_or(0, |hash| Ngrams::bytes_for(hash, limits));

    let products = products(program, shapes, limits);
    let buffers = program.buffers.iter().map(|b| float * b.width * rows).sum::<usize>();
    let rope = program.rope.map_or(0, |rope| RopeTable::bytes_for(rope.n_rot, rows));
    let mut out = vec![Part::memory("KV cache", KvCache::bytes_for(options.kv_type, trunk_kv, limits.pages))];
    out.extend(mtp_parts(program, limits, options));
    out.extend([
        Part::memory("index keys", Sparse::bytes_for(program, limits.pages)),
        Part::memory("recurrent states", history.state),
        Part::memory("ingredient logs", history.log),
        Part::memory("n-gram histories", ngrams),
        Part::memory("checkpoints", limits.checkpoints.saturating_mul(saved)),
        Part::memory("recurrent weights", Recurrent::weight_bytes(&program.recurrent)),
        Part::memory("row buffers", buffers + rope),
        Part::memory("block tables of a pass", Tables::bytes_for(limits)),
        Part::memory("lists of a pass", Pool::bytes_for(options.threads)),
        Part::memory("logits", float * (logits.head_in + logits.logits)),
        Part::memory("matmul scratch", scratch_bytes(options.activation, options.threads, &products)),
        Part::memory("attention scratch", attention_bytes(program, limits, options)),
        Part::memory("block choice scratch", Sparse::scratch_bytes(program, limits)),
        Part::memory("recurrent scratch", Recurrent::scratch_bytes(&program.recurrent, limits)),
        Part::memory("expert scratch", Mixture::bytes_for(program, rows)),
        Part::memory("sampling", sample::Scratch::bytes_for(vocab)),
    ]);
    out
}

/// What each block keeps of sequences: caches, states with their logs, index keys, and for the MTP block hidden rows.
/// Trunk blocks, then the MTP block if there is one.
pub fn held_by_block(program: &Program, config: &Config, limits: &Limits, options: &ExecOptions) -> Vec<usize> {
    let (mut kv, mut index) = (program.kv.iter(), program.index.iter());
    let is_convolution = |g: &&RecurrentGeometry| matches!(g, RecurrentGeometry::Convolution(_));
    let mut states = program.recurrent.iter().filter(|g| !is_convolution(g));
    let state = |geometry: Vec<RecurrentGeometry>| {
        let bytes = Recurrent::history_bytes(&geometry, limits);
        bytes.state + bytes.log
    };
    let own = config.qwen4exp.as_ref();
    let blocks = config.trunk + usize::from(program.mtp.is_some());
    let mut out = Vec::with_capacity(blocks);
    for (i, block) in config.blocks.iter().enumerate().take(blocks) {
        let mut bytes = match block.mixer {
            Mixer::Attention => {
                kv.next().map_or(0, |layer| KvCache::bytes_for(options.kv_type, &[*layer], limits.pages))
            }
            Mixer::Delta | Mixer::Mamba2 => state(states.next().cloned().into_iter().collect()),
            Mixer::None => 0,
        };
        if block.mixer == Mixer::Attention && own.is_some_and(|own| own.ratio[i] > 0) {
            bytes += index.next().map_or(0, |layer| Sparse::bytes_of(&[layer.geometry], limits.pages));
        }
        if own.and_then(|own| own.ngram.as_ref()).is_some_and(|ngram| ngram.block == i) {
            bytes += state(program.recurrent.iter().filter(is_convolution).cloned().collect());
        }
        out.push(bytes);
    }
    if let Some(last) = out.last_mut().filter(|_| program.mtp.is_some()) {
        *last += mtp_parts(program, limits, options)[1].bytes;
    }
    out
}

/// What an MTP block alone keeps of sequences; index keys, if it has any, are among those of [`parts`].
pub fn mtp_parts(program: &Program, limits: &Limits, options: &ExecOptions) -> [Part; 2] {
    let layers = &program.kv[program.trunk_kv_len()..];
    let (rows, width) = (hidden_rows(program.mtp.is_some(), limits), program.width(program.hidden));
    [
        Part::memory("KV cache of the MTP block", KvCache::bytes_for(options.kv_type, layers, limits.pages)),
        Part::memory("hidden rows for the MTP block", Cursors::bytes_for(limits.slots, rows, width)),
    ]
}
