use std::sync::Arc;

use super::*;
use crate::input::InputScratch;
use crate::test_data::{random_input, random_rows, widths};

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

/// The specification for every output, `[rows][n]`.
fn expected(quant: Quant, mode: Activation, rows: &[u8], k: usize, x: &[f32]) -> Vec<f32> {
    let rows: Vec<&[u8]> = rows.chunks_exact(quant.row_bytes(k)).collect();
    x.chunks_exact(k).flat_map(|x| rows.iter().map(|row| quant.dot_reference(row, x, mode))).collect()
}

/// Every way to compute one product gives the bits of the specification.
fn check(quant: Quant, mode: Activation, n: usize, k: usize, row_counts: &[usize]) {
    let most = *row_counts.iter().max().expect("a row count");
    let weights = random_rows(quant, n, k, (n * 1000 + k) as u64);
    let x = random_input(most, k, k as u64);
    let want = expected(quant, mode, &weights, k, &x);
    assert!(want.iter().all(|v| v.is_finite()));
    let file = Matrix::new(quant, n, k, Arc::new(weights)).expect("a valid shape");
    let mut panels =
        Matrix::new(quant, n, k, Arc::new(random_rows(quant, n, k, (n * 1000 + k) as u64))).expect("valid");
    panels.repack();
    let mut scratch = InputScratch::new();
    for isa in Isa::available() {
        for pool in [Pool::new(1), Pool::new(2), Pool::new(3)] {
            for w in [&file, &panels] {
                for &rows in row_counts {
                    let mut dst = vec![f32::NAN; rows * n];
                    let mut input = Input::new(&mut scratch, &x[..rows * k], rows, k);
                    matmul(&pool, isa, mode, &mut input, &mut [(w, &mut dst)]);
                    assert_eq!(
                        bits(&dst),
                        bits(&want[..rows * n]),
                        "{} {mode:?} {isa:?} {} workers, {w:?}, {rows} rows",
                        quant.name(),
                        pool.threads()
                    );
                }
            }
        }
    }
}

#[test]
fn every_row_count_gives_the_same_bits() {
    let counts: Vec<usize> = (1..=33).collect();
    for quant in Quant::ALL {
        check(quant, Activation::Integer, 19, widths(quant)[1], &counts);
    }
}

#[test]
fn every_shape_gives_the_same_bits() {
    for quant in Quant::ALL {
        for k in widths(quant) {
            for n in [1, 16, 33] {
                check(quant, Activation::Integer, n, k, &[1, 3, 9]);
            }
        }
    }
}

#[test]
fn exact_activations_give_the_same_bits() {
    for quant in Quant::ALL {
        for k in widths(quant) {
            check(quant, Activation::Exact, 18, k, &[1, 2, 33]);
        }
    }
}

/// Large enough that several workers share it, in pieces that cut matrices at odd places; and two panels of rows.
#[test]
fn matrices_that_share_an_input() {
    let (k, rows) = (768, 35);
    let x = random_input(rows, k, 5);
    let make = |quant, n, seed| {
        let bytes = random_rows(quant, n, k, seed);
        let want = expected(quant, Activation::Integer, &bytes, k, &x);
        (Matrix::new(quant, n, k, Arc::new(bytes)).expect("a valid shape"), want)
    };
    let mut parts = [
        make(Quant::Q4_K, 200, 1),
        make(Quant::F16, 17, 2),
        make(Quant::Q8_0, 144, 3),
        make(Quant::Q6_K, 64, 4),
        make(Quant::IQ3_S, 70, 5),
        make(Quant::NVFP4, 33, 6),
    ];
    parts[2].0.repack();
    parts[5].0.repack();
    let mut scratch = InputScratch::new();
    for isa in Isa::available() {
        for pool in [Pool::new(1), Pool::new(2), Pool::new(3)] {
            let mut dst: Vec<Vec<f32>> = parts.iter().map(|(w, _)| vec![f32::NAN; rows * w.n()]).collect();
            let mut outputs: Vec<(&Matrix, &mut [f32])> =
                parts.iter().zip(&mut dst).map(|((w, _), d)| (w, d.as_mut_slice())).collect();
            matmul(&pool, isa, Activation::Integer, &mut Input::new(&mut scratch, &x, rows, k), &mut outputs);
            for ((w, want), dst) in parts.iter().zip(&dst) {
                assert_eq!(bits(dst), bits(want), "{w:?} {isa:?} {} workers", pool.threads());
            }
        }
    }
}

#[test]
fn a_bad_row_spoils_no_other() {
    let (n, k, rows) = (32, 256, 5);
    for quant in
        [Quant::F32, Quant::Q8_0, Quant::Q4_1, Quant::Q4_K, Quant::Q6_K, Quant::IQ2_XS, Quant::MXFP4, Quant::NVFP4]
    {
        let clean = random_input(rows, k, 9);
        let mut x = clean.clone();
        x[2 * k + 40] = f32::NAN;
        let w = Matrix::new(quant, n, k, Arc::new(random_rows(quant, n, k, 3))).expect("a valid shape");
        for isa in Isa::available() {
            let run = |x: &[f32]| {
                let mut dst = vec![0.0; rows * n];
                let mut scratch = InputScratch::new();
                matmul(
                    &Pool::new(1),
                    isa,
                    Activation::Integer,
                    &mut Input::new(&mut scratch, x, rows, k),
                    &mut [(&w, &mut dst)],
                );
                dst
            };
            let (good, bad) = (run(&clean), run(&x));
            for r in 0..rows {
                let (good, bad) = (&good[r * n..][..n], &bad[r * n..][..n]);
                if r == 2 {
                    assert!(bad.iter().all(|v| v.is_nan()), "{} {isa:?}", quant.name());
                } else {
                    assert_eq!(bits(good), bits(bad), "{} {isa:?} row {r}", quant.name());
                }
            }
        }
    }
}

#[test]
fn no_rows_is_no_work() {
    let w = Matrix::new(Quant::F32, 3, 4, Arc::new(vec![0u8; 48])).expect("a valid shape");
    let mut scratch = InputScratch::new();
    let mut input = Input::new(&mut scratch, &[], 0, 4);
    matmul(&Pool::new(2), Isa::best(), Activation::Integer, &mut input, &mut [(&w, &mut [])]);
    matmul(&Pool::new(2), Isa::best(), Activation::Integer, &mut input, &mut []);
}

/// The largest sums that formats can make: every code and scale at an end of its range, activations of one sign.
#[test]
fn extreme_codes_do_not_overflow() {
    for quant in Quant::ALL {
        let k = widths(quant)[2];
        for fill in [0x00, 0x7f, 0x80, 0xff] {
            let mut weights = random_rows(quant, 16, k, 1);
            let pattern = random_rows(quant, 16, k, 2);
            let scales = crate::test_data::scale_bytes(quant);
            for (i, byte) in weights.iter_mut().enumerate() {
                let at = i % quant.block_bytes();
                *byte = if scales.contains(&at) { pattern[i] } else { fill };
            }
            if quant.block_len() == 1 {
                weights.copy_from_slice(&pattern);
            }
            let w = Matrix::new(quant, 16, k, Arc::new(weights.clone())).expect("a valid shape");
            for sign in [1.0, -1.0] {
                let x = vec![sign; 3 * k];
                let want = expected(quant, Activation::Integer, &weights, k, &x);
                for isa in Isa::available() {
                    let mut dst = vec![f32::NAN; 3 * 16];
                    let mut scratch = InputScratch::new();
                    let mut input = Input::new(&mut scratch, &x, 3, k);
                    matmul(&Pool::new(1), isa, Activation::Integer, &mut input, &mut [(&w, &mut dst)]);
                    assert_eq!(bits(&dst), bits(&want), "{} {isa:?} fill {fill:#x}", quant.name());
                }
            }
        }
    }
}

/// What is planned of scratch memory is what a product leaves behind.
#[test]
fn scratch_is_as_large_as_planned() {
    let isa = Isa::best();
    if isa == Isa::Scalar {
        return; // the specification wants less
    }
    let shapes = [
        (Quant::Q8_0, 40, 96),
        (Quant::Q8_0, 48, 128),
        (Quant::Q4_K, 32, 512),
        (Quant::F16, 33, 64),
        (Quant::IQ2_XXS, 48, 256),
        (Quant::NVFP4, 16, 192),
    ];
    for mode in [Activation::Integer, Activation::Exact] {
        let mut all = Vec::new();
        let mut most = 0;
        for (quant, n, k) in shapes {
            for repacked in [false, true] {
                let rows = 19;
                let mut w = Matrix::new(quant, n, k, Arc::new(random_rows(quant, n, k, 7))).expect("a valid shape");
                if repacked {
                    w.repack();
                }
                let (x, mut dst) = (random_input(rows, k, 3), vec![0.0; rows * n]);
                let mut scratch = InputScratch::new();
                let mut input = Input::new(&mut scratch, &x, rows, k);
                matmul(&Pool::new(1), isa, mode, &mut input, &mut [(&w, &mut dst)]);
                let product = Product { quant, n, k, rows, repacked };
                assert_eq!(scratch.held(), scratch_bytes(mode, 1, &[product]), "{mode:?} {product:?}");
                most = most.max(scratch.held());
                all.push(product);
            }
        }
        let (one, three) = (scratch_bytes(mode, 1, &all), scratch_bytes(mode, 3, &all));
        assert!(one >= most && three > one, "{one}, {three} after {most}");
    }
}
