//! The operations of a [`super::program::Program`], each over all rows of a batch.

use engine_kernels::ops::moe::Router;

use super::program::{BufferId, MatrixId, VectorId};

/// One operation. Widths are those of the buffers; `rows` is the batch's.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// `dst[r]` = row `token[r]` of the table.
    Embed {
        /// `[vocab][d_model]`.
        table: MatrixId,
        /// `[rows][d_model]`.
        dst: BufferId,
    },
    /// dst = src / rms(src) * weight, over groups of the weight's length: whole rows, or heads.
    RmsNorm {
        /// `[rows][groups * len]`.
        src: BufferId,
        /// `[len]`.
        weight: VectorId,
        /// `[rows][groups * len]`; may be `src`.
        dst: BufferId,
    },
    /// dst = (src - mean(src)) / sqrt(variance + eps) * weight, whole rows.
    LayerNorm {
        /// `[rows][len]`.
        src: BufferId,
        /// `[len]`.
        weight: VectorId,
        /// Added to the variance.
        eps: f32,
        /// `[rows][len]`; not `src`.
        dst: BufferId,
    },
    /// [`Op::RmsNorm`] of every stream by itself, each with its own weights.
    RmsNormStreams {
        /// `[rows][streams][width]`.
        src: BufferId,
        /// `[streams][width]`.
        weight: VectorId,
        /// Width of a stream.
        width: usize,
        /// `[rows][streams][width]`; not `src`.
        dst: BufferId,
    },
    /// Every stream of dst = src.
    Repeat {
        /// `[rows][n]`.
        src: BufferId,
        /// `[rows][streams][n]`.
        dst: BufferId,
    },
    /// dst = [first | second], or first before every stream of second.
    Concat {
        /// `[rows][a]`.
        first: BufferId,
        /// `[rows][streams][b]`.
        second: BufferId,
        /// `[rows][streams][a + b]`.
        dst: BufferId,
    },
    /// Several products of the same input: dst = W src, for every stream of a row where the input is wider than K.
    MatMul {
        /// `[rows][streams][k]`.
        src: BufferId,
        /// Matrices `[n][k]` and their destinations `[rows][streams][n]`.
        outputs: Vec<(MatrixId, BufferId)>,
    },
    /// x = silu(x / streams).
    Squash {
        /// `[rows][n]`.
        x: BufferId,
        /// Streams of the residual.
        streams: usize,
    },
    /// dst = mean over the streams of sigmoid(gate) * normed.
    Collapse {
        /// `[rows][streams][n]`.
        gate: BufferId,
        /// `[rows][streams][n]`.
        normed: BufferId,
        /// `[rows][n]`.
        dst: BufferId,
    },
    /// Every stream += 2 sigmoid(inject / streams) * src.
    Combine {
        /// `[rows][streams]`.
        inject: BufferId,
        /// `[rows][n]`.
        src: BufferId,
        /// `[rows][streams][n]`.
        streams: BufferId,
    },
    /// Rows of a table that the last tokens name, side by side.
    Ngrams {
        /// `[table rows][row]`.
        table: MatrixId,
        /// `[rows][heads][row]`.
        dst: BufferId,
    },
    /// Every stream of dst = value, opened by how well key and query of the stream agree.
    GateValues {
        /// `[rows][streams][n]`.
        key: BufferId,
        /// `[rows][streams][n]`.
        query: BufferId,
        /// `[rows][n]`.
        value: BufferId,
        /// `[rows][streams][n]`.
        dst: BufferId,
    },
    /// Causal dilated convolution and SiLU; folds and logs as the batch says.
    Convolution {
        /// Row of [`super::program::Program::recurrent`].
        layer: usize,
        /// `[rows][channels]`, raw.
        src: BufferId,
        /// `[rows][channels]`.
        dst: BufferId,
    },
    /// `dst[r]` += bias.
    AddBias {
        /// `[rows][n]`.
        dst: BufferId,
        /// `[n]`.
        bias: VectorId,
    },
    /// Per head of `src`: first half query, second half output gate.
    SplitGate {
        /// `[rows][heads][2][head_dim]`.
        src: BufferId,
        /// Width of one half.
        head_dim: usize,
        /// `[rows][heads][head_dim]`.
        query: BufferId,
        /// `[rows][heads][head_dim]`.
        gate: BufferId,
    },
    /// Cuts rows into parts of the destinations' widths.
    SplitColumns {
        /// `[rows][sum of widths]`.
        src: BufferId,
        /// In order.
        dst: Vec<BufferId>,
    },
    /// Rotates every head by the row's position.
    Rope {
        /// `[rows][heads][head_dim]`.
        buffer: BufferId,
        /// Width of a head.
        head_dim: usize,
    },
    /// Writes keys and values into the cache at the rows' positions.
    StoreKv {
        /// Layer of the cache.
        layer: usize,
        /// `[rows][kv_heads][head_dim]`.
        key: BufferId,
        /// `[rows][kv_heads][head_dim]`.
        value: BufferId,
    },
    /// Writes index keys beside the cache at the rows' positions.
    StoreIndex {
        /// Row of [`super::program::Program::index`].
        index: usize,
        /// `[rows][dim]`, raw.
        key: BufferId,
    },
    /// Causal attention over what the indexer chooses of the cache.
    SparseAttention {
        /// Layer of the cache.
        layer: usize,
        /// Row of [`super::program::Program::index`].
        index: usize,
        /// `[rows][heads][head_dim]`.
        query: BufferId,
        /// `[rows][index heads][dim]`.
        index_query: BufferId,
        /// Width of a head.
        head_dim: usize,
        /// Products of queries and keys are multiplied by this.
        scale: f32,
        /// `[rows][heads][head_dim]`.
        dst: BufferId,
    },
    /// Causal attention over the cache.
    Attention {
        /// Layer of the cache.
        layer: usize,
        /// `[rows][heads][head_dim]`.
        query: BufferId,
        /// Width of a head.
        head_dim: usize,
        /// Products of queries and keys are multiplied by this.
        scale: f32,
        /// `[rows][heads][head_dim]`.
        dst: BufferId,
    },
    /// Causal convolution, gated delta rule and gated norm; folds and logs as the batch says.
    DeltaNet {
        /// Row of [`super::program::Program::recurrent`].
        layer: usize,
        /// `[rows][conv channels]`, raw.
        qkv: BufferId,
        /// `[rows][value heads * value_dim]`.
        gate: BufferId,
        /// `[rows][value heads]`, raw.
        alpha: BufferId,
        /// `[rows][value heads]`, raw.
        beta: BufferId,
        /// `[rows][value heads * value_dim]`.
        dst: BufferId,
    },
    /// Causal convolution, selective scan, gate and grouped norm; folds and logs as the batch says.
    Mamba2 {
        /// Row of [`super::program::Program::recurrent`].
        layer: usize,
        /// `[rows][z | x B C | dt]`, raw.
        projected: BufferId,
        /// `[rows][heads * head_dim]`.
        dst: BufferId,
    },
    /// dst *= sigmoid(gate).
    SigmoidMul {
        /// `[rows][n]`.
        dst: BufferId,
        /// `[rows][n]`.
        gate: BufferId,
    },
    /// dst *= sigmoid(gate), one gate a row.
    SigmoidMulRows {
        /// `[rows][n]`.
        dst: BufferId,
        /// `[rows][1]`.
        gate: BufferId,
    },
    /// x = max(x, 0)^2.
    ReluSquared {
        /// `[rows][n]`.
        x: BufferId,
    },
    /// The experts that each row chooses.
    Experts(ExpertsOp),
    /// gate = silu(gate) * up.
    SiluMul {
        /// `[rows][n]`.
        gate: BufferId,
        /// `[rows][n]`.
        up: BufferId,
    },
    /// dst += src.
    Add {
        /// `[rows][n]`.
        dst: BufferId,
        /// `[rows][n]`.
        src: BufferId,
    },
}

/// dst = weighted sum of the FFNs of the experts that each row chooses by its scores.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ExpertsOp {
    /// `[rows][experts]`: router logits; overwritten.
    pub scores: BufferId,
    /// `[experts]`: added for choosing.
    pub selection_bias: Option<VectorId>,
    /// How they are chosen and weighted.
    pub router: Router,
    /// `[rows][k]`.
    pub src: BufferId,
    /// Stack of `[width][k]`; without it the activation is relu^2.
    pub gate: Option<MatrixId>,
    /// Stack of `[width][k]`.
    pub up: MatrixId,
    /// Stack of `[n][width]`.
    pub down: MatrixId,
    /// Hidden width of an expert.
    pub width: usize,
    /// `[rows][n]`.
    pub dst: BufferId,
}
