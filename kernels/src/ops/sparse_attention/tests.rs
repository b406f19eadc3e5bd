use super::sparse_attention;
use crate::cpu::detect::Isa;
use crate::cpu::pool::Pool;
use crate::ops::attention::tests::{by_the_page, sequence, stored};
use crate::ops::attention::{AttentionScratch, Segment, attention};
use crate::ops::block_select::Selection;
use crate::ops::kv_cache::{KvGeometry, KvType, PAGE_TOKENS};
use crate::test_noise::{Noise, bits};

const SHAPES: [(usize, usize, usize); 7] =
    [(1, 1, 8), (2, 3, 16), (1, 8, 24), (2, 2, 32), (1, 4, 64), (2, 1, 72), (2, 12, 256)];

/// Masks of rows that end at `end`, by `keep(position of the row, position seen)`.
fn masks(rows: usize, end: usize, mut keep: impl FnMut(usize, usize) -> bool) -> Vec<(usize, usize, Vec<u16>)> {
    (0..rows)
        .map(|row| {
            let position = end - rows + row;
            let mut mask = vec![0; position / PAGE_TOKENS + 1];
            for t in 0..=position {
                if t == position || keep(position, t) {
                    mask[t / PAGE_TOKENS] |= 1 << (t % PAGE_TOKENS);
                }
            }
            (row, position, mask)
        })
        .collect()
}

/// Every row is a sparse one that is allowed everything: dense attention, bit for bit.
#[test]
fn everything_allowed_is_dense_attention() {
    let mut noise = Noise::new(85);
    for (kv_heads, group, head_dim) in SHAPES {
        for (i, end) in [1, 16, 17, 255, 256, 257, 300, 530].into_iter().enumerate() {
            let kv_type = if i % 2 == 0 { KvType::F16 } else { KvType::F32 };
            let sequence = sequence(&mut noise, kv_type, KvGeometry { kv_heads, head_dim }, end);
            let rows = (1 + noise.below(9)).min(end);
            let heads = kv_heads * group;
            let q = noise.vec(rows * heads * head_dim);
            let segments = [Segment { rows: 0..rows, position: end - rows, pages: &sequence.pages }];
            let selection = Selection::by_hand(&masks(rows, end, |_, _| true));
            let mut scratch = AttentionScratch::default();
            let pool = Pool::new(2);
            let mut dense = vec![f32::NAN; q.len()];
            attention(&pool, Isa::best(), &sequence.cache, 1, &q, heads, &segments, 0.25, &mut scratch, &mut dense);
            for isa in Isa::available() {
                let mut dst = vec![f32::NAN; q.len()];
                let cache = &sequence.cache;
                sparse_attention(&pool, isa, cache, 1, &q, heads, &segments, &selection, 0.25, &mut scratch, &mut dst);
                assert_eq!(bits(&dst), bits(&dense), "{rows} rows to {end}, {head_dim}, {heads} heads, {isa:?}");
            }
        }
    }
}

/// Random choices: the order of the page over what is allowed, in batches and alone. What is not allowed is NaN.
#[test]
fn only_what_is_allowed_takes_part_in_its_order() {
    let mut noise = Noise::new(86);
    for (kv_heads, group, head_dim) in SHAPES {
        for (i, end) in [40, 300, 800].into_iter().enumerate() {
            let kv_type = if i % 2 == 0 { KvType::F16 } else { KvType::F32 };
            let geometry = KvGeometry { kv_heads, head_dim };
            let mut sequence = sequence(&mut noise, kv_type, geometry, end);
            let rows = 1 + noise.below(5);
            let heads = kv_heads * group;
            let q = noise.vec(rows * heads * head_dim);
            // Blocks of four, some splits without any; the same for all rows, so that the rest can be poisoned.
            let blocks: Vec<bool> = (0..end / 4 + 1).map(|b| b % 192 < 64 && noise.below(3) == 0).collect();
            let rows_of = masks(rows, end, |_, t| t + rows >= end || blocks[t / 4]);
            let all: Vec<_> = (0..kv_heads).map(|head| stored(&sequence, head, end)).collect();
            let mut expected = Vec::new();
            for (n, q) in q.chunks(head_dim).enumerate() {
                let (_, position, mask) = &rows_of[n / heads];
                let allowed = |t: usize| mask[t / PAGE_TOKENS] >> (t % PAGE_TOKENS) & 1 == 1;
                expected.extend(by_the_page(q, &all[n % heads / group][..=*position], 0.25, allowed));
            }
            let nan = vec![f32::NAN; kv_heads * head_dim];
            let last = &rows_of[rows - 1].2;
            for t in (0..end).filter(|t| last[t / PAGE_TOKENS] >> (t % PAGE_TOKENS) & 1 == 0) {
                sequence.cache.store(1, sequence.pages[t / PAGE_TOKENS], t % PAGE_TOKENS, &nan, &nan);
            }
            let cache = &sequence.cache;
            let mut scratch = AttentionScratch::default();
            let segments = [Segment { rows: 0..rows, position: end - rows, pages: &sequence.pages }];
            let selection = Selection::by_hand(&rows_of);
            for isa in Isa::available() {
                for threads in 1..=3 {
                    let pool = Pool::new(threads);
                    let mut dst = noise.vec(q.len());
                    sparse_attention(
                        &pool,
                        isa,
                        cache,
                        1,
                        &q,
                        heads,
                        &segments,
                        &selection,
                        0.25,
                        &mut scratch,
                        &mut dst,
                    );
                    assert_eq!(bits(&dst), bits(&expected), "{rows} rows to {end}, {head_dim}, {isa:?}");
                }
            }
            for (row, position, mask) in rows_of {
                let width = heads * head_dim;
                let q = &q[row * width..][..width];
                let segments = [Segment { rows: 0..1, position, pages: &sequence.pages }];
                let selection = Selection::by_hand(&[(0, position, mask)]);
                let (pool, mut dst) = (Pool::new(1), vec![f32::NAN; width]);
                sparse_attention(
                    &pool,
                    Isa::best(),
                    cache,
                    1,
                    q,
                    heads,
                    &segments,
                    &selection,
                    0.25,
                    &mut scratch,
                    &mut dst,
                );
                assert_eq!(bits(&dst), bits(&expected[row * width..][..width]), "row {row} alone");
            }
        }
    }
}

#[test]
#[should_panic(expected = "a selection of other segments")]
fn a_selection_of_other_segments_is_refused() {
    let sequence = sequence(&mut Noise::new(87), KvType::F32, KvGeometry { kv_heads: 1, head_dim: 8 }, 4);
    let selection = Selection::default();
    let segments = [Segment { rows: 0..1, position: 3, pages: &sequence.pages }];
    let (mut scratch, pool) = (AttentionScratch::default(), Pool::new(1));
    let q = [1.0; 8];
    let dst = &mut [0.0; 8];
    sparse_attention(&pool, Isa::best(), &sequence.cache, 1, &q, 1, &segments, &selection, 0.25, &mut scratch, dst);
}
