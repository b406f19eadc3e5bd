//! Attention of a verify window in cache: share of the measured FMA peak of one core.

use engine_kernels::ops::attention::{AttentionScratch, Segment, attention};
use engine_kernels::ops::kv_cache::{KvCache, KvGeometry, KvType, PAGE_TOKENS};
use engine_kernels::{Isa, Pool};
use engine_perf::{floats, fma_peak, giga, shortest};

fn main() {
    let pool = Pool::new(1);
    println!("one KV head, one query head a KV head; rows of a window at the end of the context; share of FMA peak");
    for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Scalar) {
        let peak = fma_peak(isa);
        println!("{isa:?}: peak {peak:.1} G");
        for (head_dim, len, kv_type) in [
            (64, 512, KvType::F16),
            (128, 512, KvType::F16),
            (128, 512, KvType::F32),
            (256, 512, KvType::F16),
            (128, 4096, KvType::F16),
        ] {
            let geometry = KvGeometry { kv_heads: 1, head_dim };
            let pages: Vec<u32> = (0..len as u32 / PAGE_TOKENS as u32).collect();
            let mut cache = KvCache::new(kv_type, &[geometry], pages.len());
            cache.store_rows(0, &pages, 0, &floats(len * head_dim), &floats(len * head_dim));
            let mut scratch = AttentionScratch::default();
            let mut line = format!("  d {head_dim:3}, {len:4} positions, {kv_type:?}:");
            for rows in [1, 2, 4, 8, 16, 33] {
                let q = floats(rows * head_dim);
                let mut dst = vec![0.0; q.len()];
                let time = shortest(
                    200,
                    &mut [&mut || {
                        let segment = Segment { rows: 0..rows, position: len - rows, pages: &pages };
                        attention(&pool, isa, &cache, 0, &q, 1, &[segment], 0.1, &mut scratch, &mut dst);
                    }],
                )[0];
                let work = (0..rows).map(|row| 2 * head_dim * (len - rows + row + 1)).sum();
                let rate = giga(work, time);
                line += &format!("  {rows} rows {rate:.1} G {:.0} %", 100.0 * rate / peak);
            }
            println!("{line}");
        }
    }
}
