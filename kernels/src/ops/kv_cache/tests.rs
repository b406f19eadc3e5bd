use super::{KvCache, KvGeometry, KvType};
use crate::test_noise::Noise;

const LAYERS: [KvGeometry; 2] = [KvGeometry { kv_heads: 2, head_dim: 16 }, KvGeometry { kv_heads: 1, head_dim: 40 }];

fn read(cache: &KvCache, layer: usize, page: u32, offset: usize) -> (Vec<f32>, Vec<f32>) {
    let width = LAYERS[layer].kv_heads * LAYERS[layer].head_dim;
    let (mut k, mut v) = (vec![0.0; width], vec![0.0; width]);
    cache.read(layer, page, offset, &mut k, &mut v);
    (k, v)
}

#[test]
fn what_is_stored_is_read_back_in_every_layer_and_nothing_else_changes() {
    let mut noise = Noise::new(30);
    for kv_type in [KvType::F32, KvType::F16] {
        let mut cache = KvCache::new(kv_type, &LAYERS, 3);
        let mut written = Vec::new();
        for (layer, geometry) in LAYERS.iter().enumerate() {
            let width = geometry.kv_heads * geometry.head_dim;
            for position in 0..48 {
                // Multiples of 1/64 are exact in half precision.
                let mut row = || (0..width).map(|_| noise.below(128) as f32 / 64.0).collect::<Vec<f32>>();
                let (k, v) = (row(), row());
                cache.store(layer, position / 16, position as usize % 16, &k, &v);
                written.push((layer, position, (k, v)));
            }
        }
        for (layer, position, expected) in &written {
            assert_eq!(&read(&cache, *layer, position / 16, *position as usize % 16), expected);
        }
        cache.copy_page(0, 2);
        for (layer, position, expected) in &written {
            let page = position / 16;
            let offset = *position as usize % 16;
            if page == 0 {
                assert_eq!(&read(&cache, *layer, 2, offset), expected);
            }
            if page != 2 {
                assert_eq!(&read(&cache, *layer, page, offset), expected);
            }
        }
    }
}

#[test]
fn half_precision_rounds_to_nearest_even() {
    let mut cache = KvCache::new(KvType::F16, &LAYERS, 1);
    let mut k = [0.0; 32];
    k[..4].copy_from_slice(&[1.0 + 2f32.powi(-11), 1.0 + 3.0 * 2f32.powi(-11), 70_000.0, 2f32.powi(-24)]);
    cache.store(0, 0, 5, &k, &[0.0; 32]);
    let expected = [1.0, 1.0 + 2f32.powi(-9), f32::INFINITY, 2f32.powi(-24)];
    assert_eq!(read(&cache, 0, 0, 5).0[..4], expected);
}

#[test]
#[should_panic(expected = "page 3 of 3")]
fn a_page_out_of_range_is_refused() {
    KvCache::new(KvType::F32, &LAYERS, 3).store(0, 3, 0, &[0.0; 32], &[0.0; 32]);
}
