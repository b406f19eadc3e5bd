use super::{AttentionScratch, SPLIT_TOKENS, Segment, attention};
use crate::cpu::detect::Isa;
use crate::cpu::pool::Pool;
use crate::ops::exp::exp;
use crate::ops::kv_cache::{KvCache, KvGeometry, KvType, PAGE_TOKENS};
use crate::test_noise::{Noise, bits};

/// A sequence in a cache: pages in no order, everything past its length NaN.
pub(crate) struct Sequence {
    pub(crate) cache: KvCache,
    pub(crate) pages: Vec<u32>,
    len: usize,
}

pub(crate) fn sequence(noise: &mut Noise, kv_type: KvType, geometry: KvGeometry, len: usize) -> Sequence {
    let count = len.div_ceil(PAGE_TOKENS) + 1;
    let other = KvGeometry { kv_heads: 1, head_dim: 8 };
    let mut cache = KvCache::new(kv_type, &[other, geometry], count + 2);
    let mut pages: Vec<u32> = (0..count as u32 + 2).collect();
    for i in (1..pages.len()).rev() {
        pages.swap(i, noise.below(i + 1));
    }
    pages.truncate(count);
    let width = geometry.kv_heads * geometry.head_dim;
    let (k, v) = (noise.vec(len * width), noise.vec(len * width));
    cache.store_rows(1, &pages, 0, &k, &v);
    let nan = vec![f32::NAN; (count * PAGE_TOKENS - len) * width];
    cache.store_rows(1, &pages, len, &nan, &nan);
    Sequence { cache, pages, len }
}

/// Keys and values of one KV head, `[position][head_dim]`, as stored.
pub(crate) fn stored(sequence: &Sequence, kv_head: usize, len: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let KvGeometry { kv_heads, head_dim } = sequence.cache.geometry(1);
    let (mut k, mut v) = (vec![0.0; kv_heads * head_dim], vec![0.0; kv_heads * head_dim]);
    (0..len)
        .map(|t| {
            sequence.cache.read(1, sequence.pages[t / PAGE_TOKENS], t % PAGE_TOKENS, &mut k, &mut v);
            let head = kv_head * head_dim..(kv_head + 1) * head_dim;
            (k[head.clone()].to_vec(), v[head].to_vec())
        })
        .collect()
}

/// The order of the module page, over the positions that `allowed` lets take part.
pub(crate) fn by_the_page(
    q: &[f32],
    stored: &[(Vec<f32>, Vec<f32>)],
    scale: f32,
    allowed: impl Fn(usize) -> bool,
) -> Vec<f32> {
    let mut running: Option<(f32, f32, Vec<f32>)> = None;
    for (first, split) in (0..).step_by(SPLIT_TOKENS).zip(stored.chunks(SPLIT_TOKENS)) {
        let split: Vec<_> = split.iter().enumerate().filter(|(t, _)| allowed(first + t)).collect();
        if split.is_empty() {
            continue;
        }
        let scores: Vec<f32> = split
            .iter()
            .map(|(_, (k, _))| q.iter().zip(k).fold(0f32, |sum, (q, k)| q.mul_add(*k, sum)) * scale)
            .collect();
        let max = scores.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
        let mut lanes = [0f32; 16];
        let mut out = vec![0f32; q.len()];
        for (score, (t, (_, v))) in scores.iter().zip(&split) {
            let weight = exp(score - max);
            lanes[t % 16] += weight;
            out.iter_mut().zip(v).for_each(|(o, v)| *o = weight.mul_add(*v, *o));
        }
        let mut half = 8;
        while half > 0 {
            (0..half).for_each(|i| lanes[i] += lanes[i + half]);
            half /= 2;
        }
        running = Some(match running {
            None => (max, lanes[0], out),
            Some((before_max, before_sum, before)) => {
                let both = before_max.max(max);
                let (a, b) = (exp(before_max - both), exp(max - both));
                let merged = before.iter().zip(&out).map(|(x, y)| y.mul_add(b, x * a)).collect();
                (both, lanes[0].mul_add(b, before_sum * a), merged)
            }
        });
    }
    let (_, sum, out) = running.unwrap();
    out.iter().map(|x| x * (1.0 / sum)).collect()
}

fn in_double(q: &[f32], stored: &[(Vec<f32>, Vec<f32>)], scale: f32) -> Vec<f64> {
    let dot = |k: &[f32]| q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>();
    let scores: Vec<f64> = stored.iter().map(|(k, _)| dot(k) * f64::from(scale)).collect();
    let max = scores.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(x));
    let sum: f64 = scores.iter().map(|x| (x - max).exp()).sum();
    let weighted =
        |d: usize| scores.iter().zip(stored).map(|(x, (_, v))| (x - max).exp() / sum * f64::from(v[d])).sum::<f64>();
    (0..q.len()).map(weighted).collect()
}

#[expect(clippy::too_many_arguments, reason = "a test's shorthand for the op")]
fn run(
    pool: &Pool,
    isa: Isa,
    sequence: &Sequence,
    q: &[f32],
    heads: usize,
    position: usize,
    scratch: &mut AttentionScratch,
    noise: &mut Noise,
) -> Vec<f32> {
    let rows = q.len() / heads / sequence.cache.geometry(1).head_dim;
    let mut dst = noise.vec(q.len());
    let segment = Segment { rows: 0..rows, position, pages: &sequence.pages };
    attention(pool, isa, &sequence.cache, 1, q, heads, &[segment], 0.25, scratch, &mut dst);
    dst
}

#[test]
fn every_shape_gives_the_stated_order_on_every_instruction_set_and_thread_count() {
    let mut noise = Noise::new(20);
    let pools: Vec<Pool> = (1..=3).map(Pool::new).collect();
    let mut scratch = AttentionScratch::default();
    let shapes = [(1, 1, 8), (2, 3, 16), (1, 8, 24), (2, 2, 32), (1, 4, 64), (2, 1, 72), (1, 2, 128), (1, 1, 256)];
    for (n, (kv_heads, group, head_dim)) in shapes.into_iter().enumerate() {
        for (i, end) in [1, 2, 15, 16, 17, 33, 255, 256, 257, 300, 530].into_iter().enumerate() {
            let kv_type = if (n + i) % 2 == 0 { KvType::F16 } else { KvType::F32 };
            let rows = (1 + noise.below(33)).min(end).min(if head_dim > 64 { 5 } else { 33 });
            let sequence = sequence(&mut noise, kv_type, KvGeometry { kv_heads, head_dim }, end);
            let heads = kv_heads * group;
            let q = noise.vec(rows * heads * head_dim);
            let mut expected = Vec::new();
            let all: Vec<_> = (0..kv_heads).map(|head| stored(&sequence, head, sequence.len)).collect();
            for (n, q) in q.chunks(head_dim).enumerate() {
                let (row, kv_head) = (n / heads, n % heads / group);
                let seen = &all[kv_head][..end - rows + row + 1];
                let exact = in_double(q, seen, 0.25);
                expected.extend(by_the_page(q, seen, 0.25, |_| true));
                let got = &expected[n * head_dim..];
                assert!(got.iter().zip(&exact).all(|(&x, y)| (f64::from(x) - y).abs() < 2e-6), "order is wrong");
            }
            for pool in &pools {
                for isa in Isa::available() {
                    let got = run(pool, isa, &sequence, &q, heads, end - rows, &mut scratch, &mut noise);
                    assert_eq!(bits(&got), bits(&expected), "{rows} rows to {end}, {head_dim}, {heads} heads, {isa:?}");
                }
            }
        }
    }
}

#[test]
fn a_row_is_the_same_in_every_window_and_batch() {
    let mut noise = Noise::new(21);
    let geometry = KvGeometry { kv_heads: 2, head_dim: 64 };
    let (heads, len) = (6, 290);
    let width = heads * geometry.head_dim;
    let sequence = sequence(&mut noise, KvType::F16, geometry, len);
    let mut scratch = AttentionScratch::default();
    let q = noise.vec(len * width);
    let pools = [Pool::new(1), Pool::new(3)];
    let together = run(&pools[1], Isa::best(), &sequence, &q, heads, 0, &mut scratch, &mut noise);
    let mut start = 0;
    while start < len {
        let rows = (1 + noise.below(33)).min(len - start);
        let pool = &pools[noise.below(2)];
        let q = &q[start * width..][..rows * width];
        let got = run(pool, Isa::best(), &sequence, q, heads, start, &mut scratch, &mut noise);
        assert_eq!(bits(&got), bits(&together[start * width..][..rows * width]), "rows {start}..{}", start + rows);
        start += rows;
    }
}

#[test]
fn ragged_segments_do_not_touch_each_other_or_other_rows() {
    let mut noise = Noise::new(22);
    let geometry = KvGeometry { kv_heads: 1, head_dim: 32 };
    let mut scratch = AttentionScratch::default();
    let pool = Pool::new(2);
    let sequence = sequence(&mut noise, KvType::F32, geometry, 400);
    let mut q = noise.vec(12 * 64);
    q[7 * 64..8 * 64].fill(f32::NAN); // a faulty row of the second segment
    let alone = |rows: std::ops::Range<usize>, position, scratch: &mut _, noise: &mut _| {
        run(&pool, Isa::best(), &sequence, &q[rows.start * 64..rows.end * 64], 2, position, scratch, noise)
    };
    let first = alone(1..5, 100, &mut scratch, &mut noise);
    let second = alone(6..11, 395, &mut scratch, &mut noise);
    let mut dst = vec![7.0; q.len()];
    let pages = &sequence.pages;
    let segments =
        [Segment { rows: 6..11, position: 395, pages }, Segment { rows: 1..5, position: 100, pages: &pages[..7] }];
    attention(&pool, Isa::best(), &sequence.cache, 1, &q, 2, &segments, 0.25, &mut scratch, &mut dst);
    assert_eq!(bits(&dst[64..5 * 64]), bits(&first));
    assert_eq!(bits(&dst[6 * 64..11 * 64]), bits(&second));
    for row in [0, 5, 11] {
        assert_eq!(dst[row * 64..][..64], [7.0; 64]);
    }
    assert!(dst[7 * 64..8 * 64].iter().all(|x| x.is_nan()));
    assert!(dst[8 * 64..11 * 64].iter().all(|x| x.is_finite()));
}

#[test]
fn no_segments_and_no_rows_are_nothing_to_do() {
    let pool = Pool::new(2);
    let cache = KvCache::new(KvType::F32, &[KvGeometry { kv_heads: 1, head_dim: 8 }], 1);
    let mut dst = [3.0; 8];
    let mut scratch = AttentionScratch::default();
    attention(&pool, Isa::best(), &cache, 0, &[1.0; 8], 1, &[], 1.0, &mut scratch, &mut dst);
    let empty = Segment { rows: 0..0, position: 0, pages: &[] };
    attention(&pool, Isa::best(), &cache, 0, &[1.0; 8], 1, &[empty], 1.0, &mut scratch, &mut dst);
    assert_eq!(dst, [3.0; 8]);
}

#[test]
#[should_panic(expected = "1 pages do not cover 17 positions")]
fn a_short_block_table_is_refused() {
    let pool = Pool::new(1);
    let cache = KvCache::new(KvType::F32, &[KvGeometry { kv_heads: 1, head_dim: 8 }], 1);
    let segment = Segment { rows: 0..1, position: 16, pages: &[0] };
    attention(&pool, Isa::best(), &cache, 0, &[0.0; 8], 1, &[segment], 1.0, &mut Default::default(), &mut [0.0; 8]);
}

#[test]
fn partial_results_stay_within_what_is_planned() {
    let geometry = KvGeometry { kv_heads: 2, head_dim: 16 };
    let mut noise = Noise::new(77);
    let s = sequence(&mut noise, KvType::F32, geometry, 1000);
    let mut used = 0;
    for (threads, heads, rows) in [(1, 4, 1), (2, 4, 1), (3, 4, 5), (4, 32, 9), (2, 2, 64), (4, 256, 3)] {
        let mut scratch = AttentionScratch::default();
        let q = noise.vec(rows * heads * geometry.head_dim);
        run(&Pool::new(threads), Isa::best(), &s, &q, heads, 1000 - rows, &mut scratch, &mut noise);
        let (held, planned) = (4 * scratch.partials.len(), AttentionScratch::bytes_for(threads, geometry, heads, 1000));
        assert!(held <= planned, "{threads} threads, {heads} heads, {rows} rows: {held} of {planned}");
        used += held;
    }
    assert!(used > 0);
}
