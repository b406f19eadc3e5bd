//! Keys of the indexer of a block-sparse attention, paged as the KV cache is.
//!
//! ```text
//! raw      [page][16][dim]                  of every position, as projected
//! pooled   [page][ceil(16 / ratio)][dim]    of a block, in the page of the block's last position
//! ```
//! A block is `ratio` positions in sequence order: b holds `b * ratio .. (b + 1) * ratio`. Its pooled key is
//! `rope(rms((1 / ratio) sum_i raw[i]; norm), b * ratio)`, members ascending, the first sum a copy; a function of the
//! block alone. It is written when the last member is stored. A block counts for a row only if its last member is not
//! behind the row, so positions that are forgotten and stored again bring their pooled keys along: rollback is free.
//!
//! Both are kept in f32 whatever the type of the KV cache, so that the choice of blocks does not depend on it.
//! Source: transformers `Qwen4ExpTextQSAIndexer`; llama.cpp `src/llama-memory-hybrid-idx.cpp` (one row per cell).

use crate::cpu::detect::Isa;
use crate::cpu::pages::LazyZeros;
use crate::cpu::pool::Pool;

use super::attention::Segment;
use super::kv_cache::PAGE_TOKENS;
use super::norm::rms_norm_in_place;
use super::rope::{Rope, RopeTable};

/// Shape of one indexed layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexGeometry {
    /// Elements of a key.
    pub dim: usize,
    /// Positions of a block, at least 1.
    pub ratio: usize,
}

impl IndexGeometry {
    /// Pooled keys that may end in one page.
    fn slots(self) -> usize {
        PAGE_TOKENS.div_ceil(self.ratio)
    }

    fn page_len(self) -> usize {
        (PAGE_TOKENS + self.slots()) * self.dim
    }
}

/// Pages of every indexed layer. Page p is one page in each of them.
pub struct IndexCache {
    pages: usize,
    layers: Vec<Layer>,
}

struct Layer {
    geometry: IndexGeometry,
    raw: LazyZeros<f32>,
    pooled: LazyZeros<f32>,
}

/// Buffers kept between calls.
#[derive(Default)]
pub struct IndexScratch {
    blocks: Vec<(usize, usize)>,
    first: Vec<u32>,
    means: Vec<f32>,
    rope: RopeTable,
}

impl IndexScratch {
    /// Bytes after the largest batch of `rows` rows, for heads with `n_rot` elements that rotate.
    pub fn bytes_for(geometry: IndexGeometry, rows: usize, n_rot: usize) -> usize {
        let blocks = rows.div_ceil(geometry.ratio);
        let block = size_of::<(usize, usize)>() + size_of::<u32>() + geometry.dim * size_of::<f32>();
        blocks * block + RopeTable::bytes_for(n_rot, blocks)
    }
}

/// What turns the mean of a block's raw keys into its pooled key.
#[derive(Clone, Copy)]
pub struct Pooling<'a> {
    /// `[dim]`.
    pub norm: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
    /// Rotation at the block's first position.
    pub rope: &'a Rope,
}

impl IndexCache {
    /// A cache of `pages` pages, zero. The memory is touched only when it is written.
    ///
    /// # Panics
    /// If a geometry has a zero.
    pub fn new(layers: &[IndexGeometry], pages: usize) -> Self {
        let layer = |&geometry: &IndexGeometry| {
            let IndexGeometry { dim, ratio } = geometry;
            assert!(dim > 0 && ratio > 0, "index keys of {dim} elements over blocks of {ratio}");
            Layer {
                geometry,
                raw: LazyZeros::new(pages * PAGE_TOKENS * dim),
                pooled: LazyZeros::new(pages * geometry.slots() * dim),
            }
        };
        Self { pages, layers: layers.iter().map(layer).collect() }
    }

    /// Bytes of a cache of this shape; the largest number where it is larger.
    pub fn bytes_for(layers: &[IndexGeometry], pages: usize) -> usize {
        let page: usize = layers.iter().map(|layer| 4 * layer.page_len()).sum();
        page.saturating_mul(pages)
    }

    /// Geometry of a layer.
    pub fn geometry(&self, layer: usize) -> IndexGeometry {
        self.layers[layer].geometry
    }

    /// Writes the raw keys of the rows of all segments, and the pooled keys of the blocks that they complete.
    /// keys: `[rows][dim]` of the batch.
    ///
    /// # Panics
    /// If a length disagrees or a block table is too short.
    #[expect(clippy::too_many_arguments, reason = "one op, its operands")]
    pub fn store(
        &mut self,
        pool: &Pool,
        isa: Isa,
        layer: usize,
        segments: &[Segment<'_>],
        keys: &[f32],
        pooling: Pooling<'_>,
        scratch: &mut IndexScratch,
    ) {
        let layer = &mut self.layers[layer];
        let IndexGeometry { dim, ratio } = layer.geometry;
        assert_eq!(pooling.norm.len(), dim, "norm of the index keys");
        let IndexScratch { blocks, first, means, rope } = scratch;
        blocks.clear();
        first.clear();
        means.clear();
        for (s, segment) in segments.iter().enumerate() {
            let rows = &keys[segment.rows.start * dim..segment.rows.end * dim];
            for (position, key) in (segment.position..).zip(rows.chunks_exact(dim)) {
                layer.raw_mut(segment.pages, position).copy_from_slice(key);
                if (position + 1).is_multiple_of(ratio) {
                    blocks.push((s, position / ratio));
                    first.push((position + 1 - ratio) as u32);
                }
            }
        }
        for &(s, block) in blocks.iter() {
            let start = means.len();
            means.extend_from_slice(layer.raw(segments[s].pages, block * ratio));
            let mean = &mut means[start..];
            for position in block * ratio + 1..(block + 1) * ratio {
                for (sum, x) in mean.iter_mut().zip(layer.raw(segments[s].pages, position)) {
                    *sum += x;
                }
            }
            mean.iter_mut().for_each(|x| *x *= 1.0 / ratio as f32);
        }
        rms_norm_in_place(pool, isa, means, pooling.norm, pooling.eps);
        pooling.rope.fill(first, rope);
        pooling.rope.apply(pool, isa, rope, dim, means);
        for (&(s, block), key) in blocks.iter().zip(means.chunks_exact(dim)) {
            layer.pooled_mut(segments[s].pages, block).copy_from_slice(key);
        }
    }

    /// The pooled key of a block that is complete.
    #[inline(always)]
    pub(super) fn pooled(&self, layer: usize, pages: &[u32], block: usize) -> &[f32] {
        let layer = &self.layers[layer];
        &layer.pooled[layer.pooled_at(pages, block)..][..layer.geometry.dim]
    }

    /// Copies a page in every layer.
    ///
    /// # Panics
    /// If a page is out of range.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        let (from, to) = (from as usize, to as usize);
        assert!(from < self.pages && to < self.pages, "copy of page {from} to {to} of {}", self.pages);
        for Layer { geometry, raw, pooled } in &mut self.layers {
            for (column, len) in [(raw, PAGE_TOKENS * geometry.dim), (pooled, geometry.slots() * geometry.dim)] {
                column.copy_within(from * len..(from + 1) * len, to * len);
            }
        }
    }
}

impl Layer {
    fn raw_at(&self, pages: &[u32], position: usize) -> usize {
        (pages[position / PAGE_TOKENS] as usize * PAGE_TOKENS + position % PAGE_TOKENS) * self.geometry.dim
    }

    fn raw(&self, pages: &[u32], position: usize) -> &[f32] {
        &self.raw[self.raw_at(pages, position)..][..self.geometry.dim]
    }

    fn raw_mut(&mut self, pages: &[u32], position: usize) -> &mut [f32] {
        let at = self.raw_at(pages, position);
        &mut self.raw[at..at + self.geometry.dim]
    }

    /// Blocks that end in one page end at least `ratio` apart, so each has a slot of its own.
    #[inline(always)]
    fn pooled_at(&self, pages: &[u32], block: usize) -> usize {
        let IndexGeometry { dim, ratio } = self.geometry;
        let last = (block + 1) * ratio - 1;
        (pages[last / PAGE_TOKENS] as usize * self.geometry.slots() + last % PAGE_TOKENS / ratio) * dim
    }

    fn pooled_mut(&mut self, pages: &[u32], block: usize) -> &mut [f32] {
        let at = self.pooled_at(pages, block);
        &mut self.pooled[at..at + self.geometry.dim]
    }
}

#[cfg(test)]
pub(super) mod tests;
