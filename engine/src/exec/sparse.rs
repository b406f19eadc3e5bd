//! Block-sparse attention: index keys beside the pages, and the choice that each row makes of them.

use std::sync::Arc;

use engine_kernels::ops::block_select::{Selection, select_blocks};
use engine_kernels::ops::index_keys::{IndexCache, IndexGeometry, IndexScratch, Pooling};
use engine_kernels::ops::sparse_attention::sparse_attention;

use crate::limits::Limits;
use crate::model::Model;
use crate::model::program::{BufferId, IndexLayer, Program};

use super::machine::{Batch, Machine};

/// Index keys of all layers, and memory of one choice, which all layers use in turn.
pub struct Sparse {
    /// By row of [`Program::index`].
    pub keys: IndexCache,
    scratch: IndexScratch,
    selection: Selection,
}

impl Sparse {
    /// Bytes of the keys of [`Self::new`].
    pub fn bytes_for(program: &Program, pages: usize) -> usize {
        Self::bytes_of(&geometries(program), pages)
    }

    /// The same for layers of these geometries.
    pub fn bytes_of(layers: &[IndexGeometry], pages: usize) -> usize {
        IndexCache::bytes_for(layers, pages)
    }

    /// Bytes of the memory of choices, after the largest.
    pub fn scratch_bytes(program: &Program, limits: &Limits) -> usize {
        let n_rot = program.rope.map_or(0, |rope| rope.n_rot);
        let layer = |layer: &IndexLayer| {
            let IndexGeometry { ratio, .. } = layer.geometry;
            Selection::bytes_for(limits.step_rows, limits.context, ratio).saturating_add(IndexScratch::bytes_for(
                layer.geometry,
                limits.step_rows,
                n_rot,
            ))
        };
        program.index.iter().map(layer).max().unwrap_or(0)
    }

    /// For the pages and steps of `limits`; empty for a model without an indexer.
    pub fn new(program: &Program, limits: &Limits) -> Self {
        let keys = IndexCache::new(&geometries(program), limits.pages);
        let mut selection = Selection::default();
        for layer in &program.index {
            selection.reserve(limits.step_rows, limits.context, layer.geometry.ratio);
        }
        Self { keys, scratch: IndexScratch::default(), selection }
    }
}

fn geometries(program: &Program) -> Vec<IndexGeometry> {
    program.index.iter().map(|layer| layer.geometry).collect()
}

/// Operands of one attention.
pub(super) struct SparseOp {
    pub layer: usize,
    pub index: usize,
    pub query: BufferId,
    pub index_query: BufferId,
    pub head_dim: usize,
    pub scale: f32,
    pub dst: BufferId,
}

impl Machine {
    /// Stores the index keys of all rows.
    pub(super) fn store_index(&mut self, model: &Model, index: usize, key: BufferId, batch: &Batch<'_>) {
        let pool = Arc::clone(&self.pool);
        let norm = model.weights.vector(model.program.index[index].norm);
        let rope = self.rope.as_ref().expect("a program that rotates has a rotary embedding");
        let pooling = Pooling { norm, eps: model.program.norm_eps, rope };
        let Sparse { keys, scratch, .. } = &mut self.sparse;
        let key = &self.buffers[key.index()][..batch.token.len() * self.width[key.index()]];
        keys.store(&pool, self.isa, index, batch.segments, key, pooling, scratch);
    }

    /// Chooses for every row, then attends.
    pub(super) fn sparse_attention(&mut self, model: &Model, op: &SparseOp, batch: &Batch<'_>) {
        let (pool, isa, rows) = (Arc::clone(&self.pool), self.isa, batch.token.len());
        let indexer = model.program.index[op.index];
        self.with(op.dst, rows, |m, dst| {
            let Self { kv, buffers, width, attention, sparse, .. } = m;
            let rows_of = |b: BufferId| &buffers[b.index()][..rows * width[b.index()]];
            let Sparse { keys, selection, .. } = sparse;
            let (heads, budget) = (indexer.heads, indexer.budget);
            let index_query = rows_of(op.index_query);
            select_blocks(&pool, isa, keys, op.index, index_query, heads, batch.segments, budget, selection);
            let heads = width[op.query.index()] / op.head_dim;
            let query = rows_of(op.query);
            sparse_attention(
                &pool,
                isa,
                kv,
                op.layer,
                query,
                heads,
                batch.segments,
                selection,
                op.scale,
                attention,
                dst,
            );
        });
    }
}
