//! Which positions a row of a block-sparse attention sees: the best blocks, and the tokens behind the last full block.
//!
//! A row at position p sees n = p + 1 positions, B = n / ratio full blocks of them:
//! ```text
//! score_b = sum_h max(0, query_h . pooled_b)      h ascending; a dot product as in `norm`; NaN counts as 0
//! chosen  = the `budget` greatest scores; of equal ones the lower blocks
//! allowed = positions of the chosen blocks and B * ratio .. n
//! ```
//! With `B <= budget` everything is allowed. The factor `1 / sqrt(dim)` of the reference is positive and cannot change
//! a choice; it is left out. Scores of exactly 0 are common, because negative products count as 0, so the order of
//! equals is part of the definition. The choice is a function of the row's query and of the blocks before it alone.
//! Source: transformers `Qwen4ExpTextQSAIndexer`; llama.cpp `src/models/qwen4exp.cpp`.

use std::ops::Range;

use bumpalo::Bump;
use bumpalo::collections::Vec as List;

use crate::cpu::detect::Isa;
use crate::cpu::disjoint::Blocks;
use crate::cpu::lanes::{Kernel, Simd, dispatch};
use crate::cpu::pool::Pool;

use super::attention::Segment;
use super::index_keys::IndexCache;
use super::kv_cache::PAGE_TOKENS;
use super::norm::dot;

/// Blocks that are scored at a time by one worker.
const PIECE_BLOCKS: usize = 1024;
/// Rows whose scores are held at once.
const SCORE_ROWS: usize = 32;

/// The allowed positions of rows that may not see everything.
#[derive(Default)]
pub struct Selection {
    /// Per segment: leading rows that see everything.
    pub dense: Vec<usize>,
    /// The other rows, in order.
    pub sparse: Vec<SparseRow>,
    /// A bit per position and a word per page, from the start of the sequence.
    mask: Vec<u16>,
    scores: Vec<f32>,
}

/// One row that may not see everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparseRow {
    /// Row of the batch.
    pub row: usize,
    /// Its segment.
    pub segment: usize,
    /// Its position.
    pub position: usize,
    /// Its words of the mask.
    mask: Range<usize>,
}

impl Selection {
    /// Rows of one segment, all of them sparse, with their positions and masks.
    #[cfg(test)]
    pub(super) fn by_hand(rows: &[(usize, usize, Vec<u16>)]) -> Self {
        let mut out = Self { dense: vec![0], ..Self::default() };
        for (row, position, mask) in rows {
            let start = out.mask.len();
            out.mask.extend_from_slice(mask);
            let mask = start..out.mask.len();
            out.sparse.push(SparseRow { row: *row, segment: 0, position: *position, mask });
        }
        out
    }

    /// Bytes after the largest batch: `rows` rows at the end of `positions` positions in blocks of `ratio`.
    pub fn bytes_for(rows: usize, positions: usize, ratio: usize) -> usize {
        let mask = positions.div_ceil(PAGE_TOKENS) * size_of::<u16>();
        let row = mask + size_of::<SparseRow>();
        rows.saturating_mul(row).saturating_add(size_of::<f32>() * scores_len(positions / ratio))
    }

    /// Room for the largest batch, see [`Self::bytes_for`].
    pub fn reserve(&mut self, rows: usize, positions: usize, ratio: usize) {
        self.sparse.reserve_exact(rows);
        self.mask.reserve_exact(rows.saturating_mul(positions.div_ceil(PAGE_TOKENS)));
        self.scores.reserve_exact(scores_len(positions / ratio));
    }

    /// Per page from the start of the row's sequence: a bit per allowed position.
    pub fn mask(&self, row: &SparseRow) -> &[u16] {
        &self.mask[row.mask.clone()]
    }
}

/// Chooses for every row of every segment. query: `[rows][heads][dim]`, rotated and normed; `budget`: blocks, at least 1.
///
/// # Panics
/// If lengths disagree, a block table is too short, or the budget is 0.
#[expect(clippy::too_many_arguments, reason = "one op, its operands")]
pub fn select_blocks(
    pool: &Pool,
    isa: Isa,
    cache: &IndexCache,
    layer: usize,
    query: &[f32],
    heads: usize,
    segments: &[Segment<'_>],
    budget: usize,
    out: &mut Selection,
) {
    let geometry = cache.geometry(layer);
    let (ratio, width) = (geometry.ratio, heads * geometry.dim);
    assert!(budget > 0, "a budget of no blocks");
    let Selection { dense, sparse, mask, scores } = out;
    dense.clear();
    sparse.clear();
    mask.clear();
    for (s, segment) in segments.iter().enumerate() {
        assert!(segment.rows.end * width <= query.len(), "rows {:?} are not in the batch", segment.rows);
        // Position p is the first with more full blocks than the budget at p + 1 = (budget + 1) * ratio.
        let first = ((budget + 1) * ratio - 1).saturating_sub(segment.position).min(segment.rows.len());
        dense.push(first);
        for i in first..segment.rows.len() {
            let position = segment.position + i;
            let start = mask.len();
            mask.resize(start + position / PAGE_TOKENS + 1, 0);
            sparse.push(SparseRow { row: segment.rows.start + i, segment: s, position, mask: start..mask.len() });
        }
    }
    for rows in sparse.chunks(SCORE_ROWS) {
        let most = rows.iter().map(|row| (row.position + 1) / ratio).max().unwrap_or(0);
        let pieces = pieces(most);
        scores.resize(scores_len(most), 0.0);
        pool.lists(|lists| {
            let parts = Blocks::new(scores, PIECE_BLOCKS, lists);
            pool.split(rows.len() * pieces, 1, |range| {
                for item in range {
                    let (row, piece) = (&rows[item / pieces], item % pieces);
                    let blocks = piece * PIECE_BLOCKS..((row.position + 1) / ratio).min((piece + 1) * PIECE_BLOCKS);
                    let query = &query[row.row * width..][..width];
                    let pages = segments[row.segment].pages;
                    dispatch(isa, Score { cache, layer, pages, query, blocks, out: parts.take(item) });
                }
            });
            let scores = &*scores;
            let mut words = &mut mask[rows[0].mask.start..rows[rows.len() - 1].mask.end];
            let mut work: List<'_, (usize, &mut [u16])> = List::with_capacity_in(rows.len(), lists);
            for (i, row) in rows.iter().enumerate() {
                let (own, rest) = words.split_at_mut(row.mask.len());
                work.push((i, own));
                words = rest;
            }
            pool.split_rows_mut(&mut work, 1, 1, |_, work| {
                for (i, mask) in work {
                    let blocks = (rows[*i].position + 1) / ratio;
                    let scores = &scores[*i * pieces * PIECE_BLOCKS..][..blocks];
                    pool.lists(|lists| allow(scores, budget, ratio, rows[*i].position, mask, lists));
                }
            });
        });
    }
}

/// Pieces that the scores of `blocks` blocks are cut into.
fn pieces(blocks: usize) -> usize {
    blocks.div_ceil(PIECE_BLOCKS)
}

/// Scores that are held at once where a row sees up to `blocks` blocks.
fn scores_len(blocks: usize) -> usize {
    SCORE_ROWS * pieces(blocks) * PIECE_BLOCKS
}

/// Scores of some blocks for one row.
struct Score<'a> {
    cache: &'a IndexCache,
    layer: usize,
    pages: &'a [u32],
    query: &'a [f32],
    blocks: Range<usize>,
    out: &'a mut [f32],
}

impl Kernel for Score<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (block, out) in self.blocks.zip(self.out) {
            let key = self.cache.pooled(self.layer, self.pages, block);
            let mut score = 0.0;
            for query in self.query.chunks_exact(key.len()) {
                let product = dot(s, query, key);
                if product > 0.0 {
                    score += product;
                }
            }
            *out = score;
        }
    }
}

/// Sets the bits of the `budget` best of more blocks, and of what follows the last full one.
fn allow(scores: &[f32], budget: usize, ratio: usize, position: usize, mask: &mut [u16], lists: &Bump) {
    let mut order = List::from_iter_in(0..scores.len() as u32, lists);
    // A total order, so that the set of the first ones does not depend on how they are found.
    order
        .select_nth_unstable_by(budget - 1, |&a, &b| scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b)));
    let chosen = order[..budget].iter().flat_map(|&b| b as usize * ratio..(b as usize + 1) * ratio);
    for at in chosen.chain(scores.len() * ratio..position + 1) {
        mask[at / PAGE_TOKENS] |= 1 << (at % PAGE_TOKENS);
    }
}

#[cfg(test)]
mod tests;
