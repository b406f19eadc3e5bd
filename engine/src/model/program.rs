//! The forward pass as data: a straight line of operations over named row buffers, built once per model.
//!
//! ```text
//! trunk   tokens ─► Embed ─► (per layer: norm, mixer, add, norm, FFN, add) ─► hidden, output norm ─► head_in
//! fill    tokens, hidden_in ─► fuse ─► what the MTP block caches                   (nothing is read back)
//! block   tokens, hidden_in ─► fuse ─► the MTP block whole ─► its own hidden row and head_in
//! head    head_in ─► logits, only for the rows that are asked for
//! ```
//!
//! Every operation treats every row alike, or goes through the batch's segments (attention, recurrence); none knows
//! how many rows share the pass, which is what keeps results independent of batching.

use std::collections::HashSet;

use engine_kernels::ops::delta_state::DeltaDims;
use engine_kernels::ops::dilated_conv::ConvDims;
use engine_kernels::ops::index_keys::IndexGeometry;
use engine_kernels::ops::kv_cache::KvGeometry;
use engine_kernels::ops::mamba2_state::Mamba2Dims;
use engine_kernels::ops::ngram::NgramHash;

use super::config::RopeConfig;
pub use super::op::{ExpertsOp, Op};

/// A matrix of [`super::load::Weights`], or a stack of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MatrixId(pub u32);

/// A vector of [`super::load::Weights`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VectorId(pub u32);

/// A row buffer of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferId(pub u32);

impl MatrixId {
    /// Index into the weights' matrices.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl VectorId {
    /// Index into the weights' vectors.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl BufferId {
    /// Index into the program's buffers.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A row buffer: a name for people and a width in floats.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// What it holds.
    pub name: &'static str,
    /// Floats per row.
    pub width: usize,
}

/// Geometry and small weights of one gated delta net layer.
#[derive(Clone, PartialEq, Debug)]
pub struct DeltaGeometry {
    /// Heads, widths, taps.
    pub dims: DeltaDims,
    /// `[channels][taps]`, oldest tap first.
    pub conv: VectorId,
    /// `[value_heads]`, `-exp(A_log)`.
    pub a: VectorId,
    /// `[value_heads]`.
    pub dt_bias: VectorId,
    /// `[value_dim]`.
    pub norm: VectorId,
}

/// The indexer of one block-sparse attention layer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct IndexLayer {
    /// Width of a key, positions of a block.
    pub geometry: IndexGeometry,
    /// `[dim]`: norm of pooled keys.
    pub norm: VectorId,
    /// Query heads.
    pub heads: usize,
    /// Blocks that are chosen.
    pub budget: usize,
}

/// Geometry and small weights of one Mamba2 layer.
#[derive(Clone, PartialEq, Debug)]
pub struct Mamba2Geometry {
    /// Heads, groups, widths, taps.
    pub dims: Mamba2Dims,
    /// `[channels][taps]`, oldest tap first.
    pub conv: VectorId,
    /// `[channels]`.
    pub conv_bias: VectorId,
    /// `[heads]`, `-exp(A_log)`.
    pub a: VectorId,
    /// `[heads]`.
    pub d: VectorId,
    /// `[heads]`.
    pub dt_bias: VectorId,
    /// `[groups][heads * head_dim / groups]`.
    pub norm: VectorId,
}

/// Geometry and small weights of one dilated convolution.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ConvolutionGeometry {
    /// Channels, taps and how far apart they are.
    pub dims: ConvDims,
    /// `[channels][taps]`, oldest tap first.
    pub conv: VectorId,
}

/// One recurrent layer.
#[derive(Clone, PartialEq, Debug)]
pub enum RecurrentGeometry {
    /// Gated delta net.
    Delta(DeltaGeometry),
    /// Mamba2.
    Mamba2(Mamba2Geometry),
    /// Dilated convolution.
    Convolution(ConvolutionGeometry),
}

/// The MTP block: two programs over the same buffers.
#[derive(Clone, PartialEq, Debug)]
pub struct MtpProgram {
    /// What later rows read of the cache, and nothing else.
    pub fill: Vec<Op>,
    /// The block whole, that included.
    pub block: Vec<Op>,
    /// Where the hidden rows h_(p-1) are put before either runs.
    pub hidden_in: BufferId,
    /// The block's own hidden rows: what the next step of a chain is fed.
    pub hidden_out: BufferId,
    /// What its LM head reads.
    pub head_in: BufferId,
    /// Its LM head.
    pub head: MatrixId,
}

/// Everything that is run, and what it needs.
#[derive(Clone, PartialEq, Debug)]
pub struct Program {
    /// Row buffers, shared by all operation lists.
    pub buffers: Vec<Buffer>,
    /// Token ids to hidden rows; of a stage, as much of that as it runs.
    pub trunk: Vec<Op>,
    /// Where a stage that is not the first is given the residual of every row.
    pub received: Option<BufferId>,
    /// The trunk's hidden rows: what the MTP block is fed. Of a stage that is not the last, the residual of every row,
    /// which the next stage is given.
    pub hidden: BufferId,
    /// What the LM head reads.
    pub head_in: BufferId,
    /// The trunk's LM head; `None` for a stage that is not the last.
    pub head: Option<MatrixId>,
    /// The MTP block.
    pub mtp: Option<MtpProgram>,
    /// Attention layers of the trunk, then the MTP block's.
    pub kv: Vec<KvGeometry>,
    /// Recurrent layers, in the trunk's order.
    pub recurrent: Vec<RecurrentGeometry>,
    /// Block-sparse attention layers of the trunk, then the MTP block's.
    pub index: Vec<IndexLayer>,
    /// How tokens name rows of the n-gram table.
    pub ngrams: Option<NgramHash>,
    /// Rotary embedding of every attention layer that rotates.
    pub rope: Option<RopeConfig>,
    /// `[n_rot / 2]`: divisors of the angles.
    pub rope_factors: Option<VectorId>,
    /// Added to mean squares, and to the delta net's squared norms.
    pub norm_eps: f32,
}

impl Program {
    /// Floats per row of a buffer.
    pub fn width(&self, buffer: BufferId) -> usize {
        self.buffers[buffer.index()].width
    }

    /// Matrices that take part in products; the others are tables of rows.
    pub fn multiplied(&self) -> HashSet<MatrixId> {
        let mut out: HashSet<MatrixId> = self.head.into_iter().collect();
        out.extend(self.trunk.iter().flat_map(products));
        if let Some(mtp) = &self.mtp {
            out.insert(mtp.head);
            out.extend(mtp.fill.iter().chain(&mtp.block).flat_map(products));
        }
        out
    }

    /// How many matrices the trunk asks for. An MTP block asks for its own behind them.
    pub fn trunk_matrices(&self) -> usize {
        let tables = self.trunk.iter().filter_map(|op| match op {
            Op::Embed { table, .. } | Op::Ngrams { table, .. } => Some(*table),
            _ => None,
        });
        let all = tables.chain(self.trunk.iter().flat_map(products)).chain(self.head);
        all.map(|id| id.index() + 1).max().unwrap_or(0)
    }

    /// Every operation that may be run: those of the trunk, then those of the MTP block, of which `fill` is a part.
    pub fn ops(&self) -> impl Iterator<Item = &Op> {
        self.trunk.iter().chain(self.mtp.iter().flat_map(|mtp| &mtp.block))
    }

    /// The mixtures of experts of all operation lists.
    pub fn mixtures(&self) -> impl Iterator<Item = &ExpertsOp> {
        self.ops().filter_map(|op| match op {
            Op::Experts(e) => Some(e),
            _ => None,
        })
    }

    /// Attention layers of the trunk: the first of [`Self::kv`], those that the MTP block does not write.
    pub fn trunk_kv_len(&self) -> usize {
        let block = self.mtp.iter().flat_map(|mtp| &mtp.block);
        let written = block.filter_map(|op| match op {
            Op::StoreKv { layer, .. } => Some(*layer),
            _ => None,
        });
        written.min().unwrap_or(self.kv.len())
    }

    /// Takes the MTP block away, with its attention layers. Row buffers stay: most of them are the trunk's too.
    pub fn drop_mtp(&mut self) {
        let layers = self.trunk_kv_len();
        let block = self.mtp.iter().flat_map(|mtp| &mtp.block);
        let indexed = block.filter_map(|op| match op {
            Op::StoreIndex { index, .. } => Some(*index),
            _ => None,
        });
        let indexed = indexed.min().unwrap_or(self.index.len());
        self.kv.truncate(layers);
        self.index.truncate(indexed);
        self.mtp = None;
    }
}

/// Matrices that an operation multiplies with.
fn products(op: &Op) -> Vec<MatrixId> {
    match op {
        Op::MatMul { outputs, .. } => outputs.iter().map(|(matrix, _)| *matrix).collect(),
        Op::Experts(e) => [Some(e.up), Some(e.down), e.gate].into_iter().flatten().collect(),
        _ => Vec::new(),
    }
}

/// The trunk of a model as it is written down.
pub struct Trunk {
    /// See [`Program::trunk`].
    pub ops: Vec<Op>,
    /// See [`Program::received`].
    pub received: Option<BufferId>,
    /// See [`Program::hidden`].
    pub hidden: BufferId,
    /// See [`Program::head_in`].
    pub head_in: BufferId,
    /// See [`Program::head`].
    pub head: Option<MatrixId>,
}

/// Collects buffers while a program is written down. A name and a width stand for one buffer.
#[derive(Default)]
pub struct Buffers {
    buffers: Vec<Buffer>,
}

impl Buffers {
    /// The buffer of this name and width; layers of one geometry share it.
    pub fn get(&mut self, name: &'static str, width: usize) -> BufferId {
        if let Some(i) = self.buffers.iter().position(|b| b.name == name && b.width == width) {
            return BufferId(i as u32);
        }
        self.buffers.push(Buffer { name, width });
        BufferId((self.buffers.len() - 1) as u32)
    }

    /// The list.
    pub fn finish(self) -> Vec<Buffer> {
        self.buffers
    }
}
