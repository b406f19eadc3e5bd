use super::{IndexCache, IndexGeometry, IndexScratch, Pooling};
use crate::cpu::detect::Isa;
use crate::cpu::pool::Pool;
use crate::ops::attention::Segment;
use crate::ops::kv_cache::PAGE_TOKENS;
use crate::ops::norm::rms_norm;
use crate::ops::rope::{Pairing, Rope, RopeTable};
use crate::test_noise::{Noise, bits};

pub(crate) fn rope(n_rot: usize) -> Rope {
    Rope { pairing: Pairing::Halves, n_rot, freq_base: 1e4, freq_scale: 1.0, freq_factors: Vec::new() }
}

/// Pages in no order.
pub(crate) fn shuffled(noise: &mut Noise, pages: usize) -> Vec<u32> {
    let mut table: Vec<u32> = (0..pages as u32).collect();
    for i in (1..pages).rev() {
        table.swap(i, noise.below(i + 1));
    }
    table
}

/// The pooled key of one block, by the page.
fn expected(keys: &[f32], dim: usize, ratio: usize, block: usize, norm: &[f32], rope: &Rope) -> Vec<f32> {
    let pool = Pool::new(1);
    let mut mean = keys[block * ratio * dim..][..dim].to_vec();
    for i in 1..ratio {
        mean.iter_mut().zip(&keys[(block * ratio + i) * dim..]).for_each(|(sum, x)| *sum += x);
    }
    mean.iter_mut().for_each(|x| *x *= 1.0 / ratio as f32);
    let mut out = vec![0.0; dim];
    rms_norm(&pool, Isa::Scalar, &mean, norm, 1e-6, &mut out);
    let mut table = RopeTable::default();
    rope.fill(&[(block * ratio) as u32], &mut table);
    rope.apply(&pool, Isa::Scalar, &table, dim, &mut out);
    out
}

/// Stored in any cuts, with drafts that are forgotten in between: the pooled keys are those of the tokens that stayed.
#[test]
fn pooled_keys_are_a_function_of_their_blocks() {
    let mut noise = Noise::new(80);
    for (dim, ratio) in [(16, 4), (8, 1), (33, 3), (128, 4), (16, 5), (24, 16), (8, 20), (16, 64)] {
        let len = 210;
        let rope = rope(8);
        let norm = noise.vec(dim);
        let keys = noise.vec(len * dim);
        let table = shuffled(&mut noise, 17);
        let other = IndexGeometry { dim: 8, ratio: 2 };
        let geometry = IndexGeometry { dim, ratio };
        for isa in Isa::available() {
            let pool = Pool::new(1 + noise.below(3));
            let mut cache = IndexCache::new(&[other, geometry], 17);
            let mut scratch = IndexScratch::default();
            let pooling = Pooling { norm: &norm, eps: 1e-6, rope: &rope };
            let mut store = |position: usize, rows: &[f32]| {
                let segment = Segment { rows: 0..rows.len() / dim, position, pages: &table };
                cache.store(&pool, isa, 1, &[segment], rows, pooling, &mut scratch);
            };
            let mut at = 0;
            while at < len {
                let right = (1 + noise.below(9)).min(len - at);
                let mut rows = keys[at * dim..(at + right) * dim].to_vec();
                let drafts = noise.below(40); // all of them are rejected
                rows.extend(noise.vec(drafts * dim));
                store(at, &rows);
                at += right;
            }
            for block in 0..len / ratio {
                let expected = expected(&keys, dim, ratio, block, &norm, &rope);
                assert_eq!(bits(cache.pooled(1, &table, block)), bits(&expected), "{dim}, {ratio}, block {block}");
            }
        }
    }
}

#[test]
fn segments_are_independent_and_pages_are_copied_whole() {
    let mut noise = Noise::new(81);
    let geometry = IndexGeometry { dim: 16, ratio: 4 };
    let (rope, norm) = (rope(16), noise.vec(16));
    let pooling = Pooling { norm: &norm, eps: 1e-6, rope: &rope };
    let pool = Pool::new(2);
    let keys = noise.vec(70 * 16);
    let mut cache = IndexCache::new(&[geometry], 12);
    let (first, second) = ([3, 1, 5], [0, 7, 2]);
    let segments =
        [Segment { rows: 0..30, position: 0, pages: &first }, Segment { rows: 35..70, position: 0, pages: &second }];
    let mut scratch = IndexScratch::default();
    cache.store(&pool, Isa::best(), 0, &segments, &keys, pooling, &mut scratch);
    let check = |cache: &IndexCache, table: &[u32], rows: std::ops::Range<usize>| {
        for block in 0..rows.len() / 4 {
            let expected = expected(&keys[rows.start * 16..rows.end * 16], 16, 4, block, &norm, &rope);
            assert_eq!(bits(cache.pooled(0, table, block)), bits(&expected), "block {block}");
        }
    };
    check(&cache, &first, 0..30);
    check(&cache, &second, 35..70);
    // A copy of the last page goes on by itself, from the raw keys in it.
    cache.copy_page(1, 9);
    let copied = [3, 9, 5];
    let segment = Segment { rows: 30..35, position: 30, pages: &copied };
    cache.store(&pool, Isa::best(), 0, &[segment], &keys, pooling, &mut scratch);
    check(&cache, &copied, 0..35);
    check(&cache, &first, 0..30);
}

#[test]
fn bytes_are_what_is_allocated() {
    let layers = [IndexGeometry { dim: 16, ratio: 4 }, IndexGeometry { dim: 8, ratio: 64 }];
    assert_eq!(IndexCache::bytes_for(&layers, 3), 3 * 4 * ((PAGE_TOKENS + 4) * 16 + (PAGE_TOKENS + 1) * 8));
    assert_eq!(IndexCache::bytes_for(&layers, usize::MAX), usize::MAX);
}
