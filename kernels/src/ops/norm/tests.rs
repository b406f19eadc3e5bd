use super::{dot, layer_norm, rms_norm, rms_norm_in_place, rms_norm_streams};
use crate::cpu::detect::Isa;
use crate::cpu::lanes::Plain;
use crate::cpu::pool::Pool;
use crate::test_noise::{Noise, bits};

/// A sum in the order of the module page, element by element; `term` adds one to a partial sum.
fn sum(x: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut sums = [0f32; 64];
    for (i, &x) in x.iter().enumerate() {
        sums[i % 64] = term(x, sums[i % 64]);
    }
    let mut lanes: Vec<f32> = (0..16).map(|i| (sums[i] + sums[i + 16]) + (sums[i + 32] + sums[i + 48])).collect();
    while lanes.len() > 1 {
        let half = lanes.len() / 2;
        lanes = (0..half).map(|i| lanes[i] + lanes[i + half]).collect();
    }
    lanes[0]
}

fn by_the_page(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let factor = 1.0 / (sum(x, |x, sum| x.mul_add(x, sum)) / x.len() as f32 + eps).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * factor * w).collect()
}

#[test]
fn every_width_rows_threads_and_instruction_set_give_the_stated_order() {
    let mut noise = Noise::new(4);
    let pools: Vec<Pool> = (1..=3).map(Pool::new).collect();
    for width in (1..=130).chain([576, 1024, 5120]) {
        let rows = 1 + noise.below(33);
        let (x, weight) = (noise.vec(rows * width), noise.vec(width));
        let expected: Vec<f32> = x.chunks(width).flat_map(|x| by_the_page(x, &weight, 1e-6)).collect();
        for pool in &pools {
            for isa in Isa::available() {
                let mut dst = noise.vec(rows * width);
                rms_norm(pool, isa, &x, &weight, 1e-6, &mut dst);
                assert_eq!(bits(&dst), bits(&expected), "{rows} rows of {width}, {isa:?}");
                dst.copy_from_slice(&x);
                rms_norm_in_place(pool, isa, &mut dst, &weight, 1e-6);
                assert_eq!(bits(&dst), bits(&expected));
            }
        }
    }
}

#[test]
fn layer_norm_is_the_norm_of_what_is_left_without_the_mean() {
    let mut noise = Noise::new(6);
    let pools: Vec<Pool> = (1..=3).map(Pool::new).collect();
    for width in (1..=70).chain([1024, 4096]) {
        let rows = 1 + noise.below(20);
        let x: Vec<f32> = noise.vec(rows * width).iter().map(|x| x + 0.7).collect();
        let weight = noise.vec(width);
        let centred = |x: &[f32]| {
            let mean = sum(x, |x, sum| x + sum) / width as f32;
            x.iter().map(|x| x - mean).collect::<Vec<f32>>()
        };
        let expected: Vec<f32> = x.chunks(width).flat_map(|x| by_the_page(&centred(x), &weight, 1e-5)).collect();
        for pool in &pools {
            for isa in Isa::available() {
                let mut dst = noise.vec(rows * width);
                layer_norm(pool, isa, &x, &weight, 1e-5, &mut dst);
                assert_eq!(bits(&dst), bits(&expected), "{rows} rows of {width}, {isa:?}");
            }
        }
        let row: Vec<f64> = x[..width].iter().map(|&x| f64::from(x)).collect();
        let mean = row.iter().sum::<f64>() / width as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
        for (i, x) in row.iter().enumerate() {
            let y = (x - mean) / (variance + 1e-5).sqrt() * f64::from(weight[i]);
            assert!((f64::from(expected[i]) - y).abs() < 1e-4, "{} for {y}", expected[i]);
        }
    }
}

#[test]
fn close_to_double_precision_and_zero_at_zero() {
    let mut noise = Noise::new(5);
    let pool = Pool::new(1);
    let x = noise.vec(5120);
    let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 5120.0;
    let mut dst = vec![0.0; 5120];
    rms_norm(&pool, Isa::best(), &x, &vec![1.0; 5120], 1e-6, &mut dst);
    for (&y, &x) in dst.iter().zip(&x) {
        assert!((f64::from(y) - f64::from(x) / (mean + 1e-6).sqrt()).abs() < 1e-6);
    }
    rms_norm(&pool, Isa::best(), &[0.0; 48], &[2.0; 48], 1e-6, &mut dst[..48]);
    assert_eq!(&dst[..48], &[0.0; 48]);
}

/// A stream is normed as a row of its own, with its own weights.
#[test]
fn streams_are_rows_of_their_own() {
    let mut noise = Noise::new(6);
    for (streams, width) in [(4, 64), (2, 33), (3, 7), (1, 100), (4, 2560)] {
        let (x, weight) = (noise.vec(5 * streams * width), noise.vec(streams * width));
        // Streams of very different size: one mean over all of them could not pass.
        let x: Vec<f32> = x.iter().enumerate().map(|(i, x)| x * (1 << (i / width % streams)) as f32).collect();
        let mut expected = Vec::new();
        for (i, x) in x.chunks(width).enumerate() {
            expected.extend(by_the_page(x, &weight[i % streams * width..][..width], 1e-6));
        }
        for isa in Isa::available() {
            for threads in 1..=3 {
                let mut dst = vec![f32::NAN; x.len()];
                rms_norm_streams(&Pool::new(threads), isa, &x, &weight, width, 1e-6, &mut dst);
                assert_eq!(bits(&dst), bits(&expected), "{streams} streams of {width}, {isa:?}");
            }
        }
    }
}

/// Sixty-four chains by position, then the tree: the order of every dot product that uses it.
#[test]
fn a_dot_product_has_the_order_of_the_page() {
    let mut noise = Noise::new(7);
    for len in (0..=130).chain([576, 2560]) {
        let (a, b) = (noise.vec(len), noise.vec(len));
        let mut sums = [0f32; 64];
        for (i, (a, b)) in a.iter().zip(&b).enumerate() {
            sums[i % 64] = a.mul_add(*b, sums[i % 64]);
        }
        let mut lanes: Vec<f32> = (0..16).map(|i| (sums[i] + sums[i + 16]) + (sums[i + 32] + sums[i + 48])).collect();
        while lanes.len() > 1 {
            let half = lanes.len() / 2;
            lanes = (0..half).map(|i| lanes[i] + lanes[i + half]).collect();
        }
        assert_eq!(dot(Plain, &a, &b).to_bits(), lanes[0].to_bits(), "{len} elements");
    }
}
