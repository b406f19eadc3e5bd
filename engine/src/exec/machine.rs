//! The interpreter of op lists: row buffers, caches and states, and one match.

use std::sync::Arc;

use engine_kernels::ops::attention::{AttentionScratch, Segment, attention};
use engine_kernels::ops::delta_net::DeltaInputs;
use engine_kernels::ops::elementwise::{add, relu_squared, sigmoid_mul, sigmoid_mul_rows, silu_mul, split_halves};
use engine_kernels::ops::history::StateSegment;
use engine_kernels::ops::hyper_connection::{collapse, combine, squash};
use engine_kernels::ops::kv_cache::KvCache;
use engine_kernels::ops::ngram::gate_values;
use engine_kernels::ops::norm::{layer_norm, rms_norm, rms_norm_in_place, rms_norm_streams};
use engine_kernels::ops::rope::{Rope, RopeTable};
use engine_kernels::{Activation, Input, InputScratch, Isa, Matrix, OUTPUTS, Pool, matmul};
use smallvec::SmallVec;

use crate::ids::TokenId;
use crate::limits::Limits;
use crate::model::Model;
use crate::model::program::{BufferId, MatrixId, Op};

use super::ExecOptions;
use super::moe::Mixture;
use super::ngrams::Ngrams;
use super::recurrent::Recurrent;
use super::sizes::{LogitSizes, Shapes, attention_bytes, products};
use super::sparse::{Sparse, SparseOp};

/// The rows of one pass and who they belong to.
pub struct Batch<'a> {
    /// `[rows]`.
    pub token: &'a [TokenId],
    /// `[rows]`.
    pub position: &'a [u32],
    /// Rows of one sequence each, in row order.
    pub segments: &'a [Segment<'a>],
    /// The same segments with their recurrent states; empty where no operation needs them.
    pub states: &'a [StateSegment],
}

/// Everything a pass reads and writes but the weights.
pub struct Machine {
    pub(super) pool: Arc<Pool>,
    pub(super) isa: Isa,
    pub(super) activation: Activation,
    /// `[step rows][width]` each, by [`BufferId`].
    pub(super) buffers: Vec<Vec<f32>>,
    pub(super) width: Vec<usize>,
    pub(super) input: InputScratch,
    /// `None` where nothing is rotated.
    pub(super) rope: Option<Rope>,
    rope_table: RopeTable,
    pub(super) attention: AttentionScratch,
    /// Hidden rows that the LM head is asked about.
    head_in: Vec<f32>,
    /// `[LogitSizes::rows][vocabulary rows]`.
    logits: Vec<f32>,
    /// KV pages of all attention layers, the MTP block's last.
    pub kv: KvCache,
    /// Recurrent layers.
    pub recurrent: Recurrent,
    pub(super) mixture: Mixture,
    /// Index keys beside the pages.
    pub sparse: Sparse,
    /// Last tokens of every sequence, for a model that embeds n-grams.
    pub ngrams: Option<Ngrams>,
}

impl Machine {
    /// Buffers for `limits` and `model`.
    pub fn new(model: &Model, limits: &Limits, options: &ExecOptions, pool: Arc<Pool>) -> Self {
        let program = &model.program;
        let width: Vec<usize> = program.buffers.iter().map(|b| b.width).collect();
        let head_rows = program.head.map(|head| model.weights.matrix(head).n());
        let logits = LogitSizes::new(limits, program.width(program.head_in), head_rows);
        let products = products(program, &Shapes::of_model(model), limits);
        let freq_factors = program.rope_factors.map_or_else(Vec::new, |id| model.weights.vector(id).to_vec());
        Self {
            pool,
            isa: options.isa,
            activation: options.activation,
            buffers: width.iter().map(|w| vec![0.0; w * limits.step_rows]).collect(),
            width,
            input: InputScratch::with_room(options.activation, options.threads, &products),
            rope: program.rope.map(|rope| Rope {
                pairing: rope.pairing,
                n_rot: rope.n_rot,
                freq_base: rope.freq_base,
                freq_scale: rope.position_scale,
                freq_factors,
            }),
            rope_table: RopeTable::default(),
            attention: AttentionScratch::with_room(attention_bytes(program, limits, options)),
            head_in: Vec::with_capacity(logits.head_in),
            logits: vec![0.0; logits.logits],
            kv: KvCache::new(options.kv_type, &program.kv, limits.pages),
            recurrent: Recurrent::new(&program.recurrent, &model.weights, limits),
            mixture: Mixture::new(model, limits.step_rows),
            sparse: Sparse::new(program, limits),
            ngrams: program.ngrams.as_ref().map(|hash| Ngrams::new(hash, limits)),
        }
    }

    /// Folds the first `log_len` logged rows of a slot into every recurrent state, and forgets the others.
    pub fn fold(&mut self, slot: usize, log_len: usize) {
        self.recurrent.fold(&self.pool, self.isa, slot, log_len);
    }

    /// The workers, to be kept awake over the parts of a step.
    pub fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pool)
    }

    /// The instruction set that everything runs on.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The first `rows` rows of a buffer.
    pub fn rows(&self, buffer: BufferId, rows: usize) -> &[f32] {
        &self.buffers[buffer.index()][..rows * self.width[buffer.index()]]
    }

    /// The first `rows` rows of a buffer, to be written.
    pub fn rows_mut(&mut self, buffer: BufferId, rows: usize) -> &mut [f32] {
        &mut self.buffers[buffer.index()][..rows * self.width[buffer.index()]]
    }

    /// Runs `ops` over the rows of `batch`.
    pub fn run(&mut self, model: &Model, ops: &[Op], batch: &Batch<'_>) {
        let rows = batch.token.len();
        debug_assert_eq!(rows, batch.position.len());
        if let Some(rope) = &self.rope {
            rope.fill(batch.position, &mut self.rope_table);
        }
        for op in ops {
            self.step(model, op, batch, rows);
        }
    }

    fn step(&mut self, model: &Model, op: &Op, batch: &Batch<'_>, rows: usize) {
        let weights = &model.weights;
        let (pool, isa) = (Arc::clone(&self.pool), self.isa);
        match *op {
            Op::Embed { table, dst } => {
                let table = weights.matrix(table);
                let width = self.width[dst.index()];
                pool.lists(|lists| {
                    let bytes = lists.alloc_slice_fill_copy(table.row_bytes(), 0);
                    for (token, row) in batch.token.iter().zip(self.rows_mut(dst, rows).chunks_exact_mut(width)) {
                        table.dequantize_row(token.index(), bytes, row);
                    }
                });
            }
            Op::RmsNorm { src, weight, dst } => {
                let (weight, eps) = (weights.vector(weight), model.program.norm_eps);
                if src == dst {
                    rms_norm_in_place(&pool, isa, self.rows_mut(dst, rows), weight, eps);
                } else {
                    self.with(dst, rows, |m, dst| rms_norm(&pool, isa, m.rows(src, rows), weight, eps, dst));
                }
            }
            Op::LayerNorm { src, weight, eps, dst } => {
                let weight = weights.vector(weight);
                self.with(dst, rows, |m, dst| layer_norm(&pool, isa, m.rows(src, rows), weight, eps, dst));
            }
            Op::RmsNormStreams { src, weight, width, dst } => {
                let (weight, eps) = (weights.vector(weight), model.program.norm_eps);
                self.with(dst, rows, |m, dst| {
                    rms_norm_streams(&pool, isa, m.rows(src, rows), weight, width, eps, dst);
                });
            }
            Op::Repeat { src, dst: to } => self.with(to, rows, |m, dst| {
                let (n, wide) = (m.width[src.index()], m.width[to.index()]);
                for (streams, src) in dst.chunks_exact_mut(wide).zip(m.rows(src, rows).chunks_exact(n)) {
                    streams.chunks_exact_mut(n).for_each(|stream| stream.copy_from_slice(src));
                }
            }),
            Op::Concat { first, second, dst: to } => self.with(to, rows, |m, dst| {
                let (a, wide) = (m.width[first.index()], m.width[second.index()]);
                let streams = (m.width[to.index()] - wide) / a;
                let b = wide / streams;
                let parts = m.rows(second, rows).chunks_exact(b).enumerate();
                for (dst, (i, second)) in dst.chunks_exact_mut(a + b).zip(parts) {
                    dst[..a].copy_from_slice(&m.rows(first, rows)[i / streams * a..][..a]);
                    dst[a..].copy_from_slice(second);
                }
            }),
            Op::Squash { x, streams } => squash(&pool, isa, streams, self.rows_mut(x, rows)),
            Op::Collapse { gate, normed, dst: to } => self.with(to, rows, |m, dst| {
                let n = m.width[to.index()];
                let streams = m.width[gate.index()] / n;
                collapse(&pool, isa, m.rows(gate, rows), m.rows(normed, rows), streams, n, dst);
            }),
            Op::Combine { inject, src, streams } => self.with(streams, rows, |m, streams| {
                combine(&pool, isa, m.rows(inject, rows), m.rows(src, rows), m.width[src.index()], streams);
            }),
            Op::Ngrams { table, dst } => self.look_up_ngrams(model, table, dst, batch),
            Op::GateValues { key, query, value, dst } => self.with(dst, rows, |m, dst| {
                let n = m.width[value.index()];
                gate_values(&pool, isa, m.rows(key, rows), m.rows(query, rows), m.rows(value, rows), n, dst);
            }),
            Op::Convolution { layer, src, dst } => self.with(dst, rows, |m, dst| {
                let Self { recurrent, buffers, width, .. } = m;
                let src = &buffers[src.index()][..rows * width[src.index()]];
                recurrent.convolution((&pool, isa), layer, batch.states, src, dst);
            }),
            Op::StoreIndex { index, key } => self.store_index(model, index, key, batch),
            Op::SparseAttention { layer, index, query, index_query, head_dim, scale, dst } => {
                let op = SparseOp { layer, index, query, index_query, head_dim, scale, dst };
                self.sparse_attention(model, &op, batch);
            }
            Op::MatMul { src, ref outputs } => self.matmul(model, src, outputs, rows),
            Op::AddBias { dst, bias } => {
                let bias = weights.vector(bias);
                for row in self.rows_mut(dst, rows).chunks_exact_mut(bias.len()) {
                    for (x, b) in row.iter_mut().zip(bias) {
                        *x += b;
                    }
                }
            }
            Op::SplitGate { src, head_dim, query, gate } => self.with(query, rows, |m, query| {
                m.with(gate, rows, |m, gate| split_halves(m.rows(src, rows), head_dim, query, gate));
            }),
            Op::SplitColumns { src, ref dst } => {
                let stride = self.width[src.index()];
                let mut first = 0;
                for &part in dst {
                    let width = self.width[part.index()];
                    self.with(part, rows, |m, dst| {
                        for (dst, src) in dst.chunks_exact_mut(width).zip(m.rows(src, rows).chunks_exact(stride)) {
                            dst.copy_from_slice(&src[first..first + width]);
                        }
                    });
                    first += width;
                }
            }
            Op::Rope { buffer, head_dim } => self.with(buffer, rows, |m, x| {
                let rope = m.rope.as_ref().expect("a program that rotates has a rotary embedding");
                rope.apply(&pool, isa, &m.rope_table, head_dim, x);
            }),
            Op::StoreKv { layer, key, value } => {
                let (k_width, v_width) = (self.width[key.index()], self.width[value.index()]);
                let (k, v) = (&self.buffers[key.index()], &self.buffers[value.index()]);
                for s in batch.segments {
                    let k = &k[s.rows.start * k_width..s.rows.end * k_width];
                    let v = &v[s.rows.start * v_width..s.rows.end * v_width];
                    self.kv.store_rows(layer, s.pages, s.position, k, v);
                }
            }
            Op::Attention { layer, query, head_dim, scale, dst } => {
                let heads = self.width[query.index()] / head_dim;
                self.with(dst, rows, |m, dst| {
                    let Self { kv, buffers, attention: scratch, width, .. } = m;
                    let query = &buffers[query.index()][..rows * width[query.index()]];
                    attention(&pool, isa, kv, layer, query, heads, batch.segments, scale, scratch, dst);
                });
            }
            Op::DeltaNet { layer, qkv, gate, alpha, beta, dst } => {
                self.with(dst, rows, |m, dst| {
                    let Self { recurrent, buffers, width, .. } = m;
                    let rows_of = |b: BufferId| &buffers[b.index()][..rows * width[b.index()]];
                    let inputs =
                        DeltaInputs { qkv: rows_of(qkv), z: rows_of(gate), alpha: rows_of(alpha), beta: rows_of(beta) };
                    recurrent.delta_net((&pool, isa), layer, batch.states, inputs, dst);
                });
            }
            Op::SigmoidMulRows { dst, gate } => {
                self.with(dst, rows, |m, dst| sigmoid_mul_rows(&pool, dst, m.rows(gate, rows)));
            }
            Op::ReluSquared { x } => relu_squared(&pool, isa, self.rows_mut(x, rows)),
            Op::Experts(ref op) => self.experts(model, op, rows),
            Op::Mamba2 { layer, projected, dst } => self.with(dst, rows, |m, dst| {
                let Self { recurrent, buffers, width, .. } = m;
                let projected = &buffers[projected.index()][..rows * width[projected.index()]];
                recurrent.mamba2((&pool, isa), layer, batch.states, projected, dst);
            }),
            Op::SigmoidMul { dst, gate } => {
                self.with(dst, rows, |m, dst| sigmoid_mul(&pool, isa, dst, m.rows(gate, rows)));
            }
            Op::SiluMul { gate, up } => self.with(gate, rows, |m, gate| silu_mul(&pool, isa, gate, m.rows(up, rows))),
            Op::Add { dst, src } => self.with(dst, rows, |m, dst| add(&pool, isa, dst, m.rows(src, rows))),
        }
    }

    /// Lends the rows of one buffer out of the machine, so that the others can be read meanwhile.
    pub(super) fn with(&mut self, buffer: BufferId, rows: usize, work: impl FnOnce(&mut Self, &mut [f32])) {
        let mut taken = std::mem::take(&mut self.buffers[buffer.index()]);
        let len = rows * self.width[buffer.index()];
        work(self, &mut taken[..len]);
        self.buffers[buffer.index()] = taken;
    }

    /// Row i of `to` becomes row `rows[i]` of `from`, where one is named; they ascend.
    pub(super) fn carry(&mut self, from: BufferId, to: BufferId, rows: &[Option<usize>]) {
        let width = self.width[to.index()];
        assert_eq!(width, self.width[from.index()], "rows of another width");
        let moves = rows.iter().enumerate().filter_map(|(i, row)| row.map(|row| (i, row)));
        if from == to {
            // None lies behind where it goes, so none is overwritten before it was moved.
            let buffer = &mut self.buffers[to.index()];
            moves.for_each(|(i, row)| buffer.copy_within(row * width..(row + 1) * width, i * width));
        } else {
            self.with(to, rows.len(), |m, dst| {
                let src = &m.buffers[from.index()];
                moves.for_each(|(i, row)| dst[i * width..][..width].copy_from_slice(&src[row * width..][..width]));
            });
        }
    }

    fn matmul(&mut self, model: &Model, src: BufferId, outputs: &[(MatrixId, BufferId)], rows: usize) {
        let mut taken: SmallVec<[Vec<f32>; OUTPUTS]> =
            outputs.iter().map(|(_, dst)| std::mem::take(&mut self.buffers[dst.index()])).collect();
        let width = self.width[src.index()];
        let k = model.weights.matrix(outputs[0].0).k();
        let x = &self.buffers[src.index()][..rows * width];
        // A row of several streams is as many rows of the product.
        let mut input = Input::new(&mut self.input, x, rows * (width / k), k);
        let mut pairs: SmallVec<[(&Matrix, &mut [f32]); OUTPUTS]> = outputs
            .iter()
            .zip(&mut taken)
            .map(|(&(matrix, dst), buffer)| {
                (model.weights.matrix(matrix), &mut buffer[..rows * self.width[dst.index()]])
            })
            .collect();
        matmul(&self.pool, self.isa, self.activation, &mut input, &mut pairs);
        drop(pairs);
        for ((_, dst), buffer) in outputs.iter().zip(taken) {
            self.buffers[dst.index()] = buffer;
        }
    }

    /// Logits of some rows of `src`, at most [`LogitSizes::rows`], and their stride.
    pub fn logits(&mut self, model: &Model, head: MatrixId, src: BufferId, rows: &[usize]) -> (&mut [f32], usize) {
        let width = self.width[src.index()];
        self.head_in.clear();
        for row in rows {
            self.head_in.extend_from_slice(&self.buffers[src.index()][row * width..(row + 1) * width]);
        }
        let head = model.weights.matrix(head);
        let dst = &mut self.logits[..rows.len() * head.n()];
        let mut input = Input::new(&mut self.input, &self.head_in, rows.len(), width);
        matmul(&self.pool, self.isa, self.activation, &mut input, &mut [(head, &mut *dst)]);
        (dst, head.n())
    }
}
