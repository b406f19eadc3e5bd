use super::{Selection, SparseRow, allow, select_blocks};
use crate::cpu::detect::Isa;
use crate::cpu::lanes::Plain;
use crate::cpu::pool::Pool;
use crate::ops::attention::Segment;
use crate::ops::index_keys::tests::{rope, shuffled};
use crate::ops::index_keys::{IndexCache, IndexGeometry, IndexScratch, Pooling};
use crate::ops::kv_cache::PAGE_TOKENS;
use crate::ops::norm::dot;
use crate::test_noise::Noise;

const HEADS: usize = 3;
const DIM: usize = 16;

/// A sequence of `len` raw keys in a cache.
fn sequence(noise: &mut Noise, ratio: usize, len: usize) -> (IndexCache, Vec<u32>) {
    let table = shuffled(noise, len.div_ceil(PAGE_TOKENS));
    let mut cache = IndexCache::new(&[IndexGeometry { dim: DIM, ratio }], table.len());
    let (norm, rope) = (noise.vec(DIM), rope(8));
    let pooling = Pooling { norm: &norm, eps: 1e-6, rope: &rope };
    let keys = noise.vec(len * DIM);
    let segment = Segment { rows: 0..len, position: 0, pages: &table };
    cache.store(&Pool::new(1), Isa::Scalar, 0, &[segment], &keys, pooling, &mut IndexScratch::default());
    (cache, table)
}

fn scores(cache: &IndexCache, table: &[u32], query: &[f32], blocks: usize) -> Vec<f32> {
    let of = |block| {
        let products = query.chunks(DIM).map(|q| dot(Plain, q, cache.pooled(0, table, block)));
        products.fold(0.0, |sum, x| if x > 0.0 { sum + x } else { sum })
    };
    (0..blocks).map(of).collect()
}

/// Allowed positions of a row, by sorting everything.
fn naive(scores: &[f32], budget: usize, ratio: usize, position: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a])); // stable: lower blocks first among equals
    order.truncate(budget);
    let mut allowed: Vec<usize> = order.iter().flat_map(|b| b * ratio..(b + 1) * ratio).collect();
    allowed.extend(scores.len() * ratio..=position);
    allowed.sort_unstable();
    allowed
}

fn positions(mask: &[u16]) -> Vec<usize> {
    (0..mask.len() * PAGE_TOKENS).filter(|t| mask[t / PAGE_TOKENS] >> (t % PAGE_TOKENS) & 1 == 1).collect()
}

/// Rows from the first that must choose on, in ragged passes, on every instruction set and thread count.
#[test]
fn a_row_chooses_the_best_blocks_and_its_tail_whatever_shares_the_pass() {
    let mut noise = Noise::new(82);
    for (ratio, budget, len) in [(4, 8, 300), (1, 5, 60), (3, 7, 200), (20, 3, 250), (2, 40, 2300)] {
        let (cache, table) = sequence(&mut noise, ratio, len);
        let query = noise.vec(len * HEADS * DIM);
        let mut out = Selection::default();
        for isa in Isa::available() {
            let mut start = 0;
            while start < len {
                let rows = (1 + noise.below(90)).min(len - start);
                let pool = Pool::new(1 + noise.below(3));
                let query = &query[start * HEADS * DIM..(start + rows) * HEADS * DIM];
                let segment = Segment { rows: 0..rows, position: start, pages: &table };
                select_blocks(&pool, isa, &cache, 0, query, HEADS, &[segment], budget, &mut out);
                assert_eq!(out.dense[0] + out.sparse.len(), rows);
                for i in 0..out.dense[0] {
                    assert!((start + i + 1) / ratio <= budget, "position {} may not see everything", start + i);
                }
                for (i, row) in out.sparse.iter().enumerate() {
                    let position = start + out.dense[0] + i;
                    assert_eq!((row.row, row.segment, row.position), (out.dense[0] + i, 0, position));
                    let blocks = (position + 1) / ratio;
                    assert!(blocks > budget, "position {position} may see everything");
                    if len > 1000 && position % 97 != 0 {
                        continue; // one of the slow ones now and then
                    }
                    let scores = scores(&cache, &table, &query[row.row * HEADS * DIM..][..HEADS * DIM], blocks);
                    let expected = naive(&scores, budget, ratio, position);
                    assert_eq!(positions(out.mask(row)), expected, "position {position}, ratio {ratio}");
                }
                start += rows;
            }
        }
    }
}

#[test]
fn segments_keep_to_their_own_blocks() {
    let mut noise = Noise::new(83);
    let (ratio, budget) = (4, 8);
    let (cache, table) = sequence(&mut noise, ratio, 200);
    let query = noise.vec(12 * HEADS * DIM);
    let segments = [
        Segment { rows: 7..12, position: 150, pages: &table },
        Segment { rows: 1..3, position: 10, pages: &table },
        Segment { rows: 3..6, position: 33, pages: &table },
    ];
    let mut out = Selection::default();
    select_blocks(&Pool::new(2), Isa::best(), &cache, 0, &query, HEADS, &segments, budget, &mut out);
    // 9 blocks are full at position 35.
    assert_eq!(out.dense, [0, 2, 2]);
    assert_eq!(out.sparse.iter().map(|r| r.row).collect::<Vec<_>>(), [7, 8, 9, 10, 11, 5]);
    for row in &out.sparse {
        let scores = scores(&cache, &table, &query[row.row * HEADS * DIM..][..HEADS * DIM], (row.position + 1) / ratio);
        assert_eq!(positions(out.mask(row)), naive(&scores, budget, ratio, row.position), "row {}", row.row);
    }
}

/// Scores of exactly 0 are common: then the first blocks win.
#[test]
fn of_equal_scores_the_lower_block_wins() {
    let chosen = |scores: &[f32], budget| {
        let mut mask = vec![0; 4];
        allow(scores, budget, 2, 2 * scores.len(), &mut mask, &bumpalo::Bump::new());
        positions(&mask)
    };
    assert_eq!(chosen(&[0.0; 9], 3), [0, 1, 2, 3, 4, 5, 18]);
    assert_eq!(chosen(&[0.0, 5.0, 0.0, 5.0, 5.0, 1.0], 2), [2, 3, 6, 7, 12]);
    assert_eq!(chosen(&[0.0, 0.0, 7.0, 0.0, 0.0], 3), [0, 1, 2, 3, 4, 5, 10]);
    assert_eq!(chosen(&[1.0, 2.0, 3.0], 1), [4, 5, 6]);
}

/// A fault of a key takes no block's place: it scores 0.
#[test]
fn a_fault_scores_nothing() {
    let mut noise = Noise::new(84);
    let (mut cache, table) = sequence(&mut noise, 4, 64);
    let (norm, rope) = (vec![1.0; DIM], rope(8));
    let pooling = Pooling { norm: &norm, eps: 1e-6, rope: &rope };
    let segment = Segment { rows: 0..1, position: 7, pages: &table };
    cache.store(&Pool::new(1), Isa::best(), 0, &[segment], &[f32::NAN; DIM], pooling, &mut IndexScratch::default());
    let query = noise.vec(HEADS * DIM);
    let mut out = Selection::default();
    let segment = Segment { rows: 0..1, position: 63, pages: &table };
    select_blocks(&Pool::new(1), Isa::best(), &cache, 0, &query, HEADS, &[segment], 8, &mut out);
    let allowed = positions(out.mask(&out.sparse[0]));
    assert_eq!(allowed, naive(&scores(&cache, &table, &query, 16), 8, 4, 63));
    assert_eq!(scores(&cache, &table, &query, 16)[1], 0.0);
    assert_eq!(out.sparse[0], SparseRow { row: 0, segment: 0, position: 63, mask: 0..4 });
}
