use std::sync::Arc;

use super::*;
use crate::quant::Activation;
use crate::test_data::{random_input, random_rows};
use crate::{Input, InputScratch, Pool, matmul};

#[test]
fn shapes_are_checked() {
    let bytes = |len: usize| -> SharedBytes { Arc::new(vec![0u8; len]) };
    let refused = |quant, n, k, len| Matrix::new(quant, n, k, bytes(len)).expect_err("refused");
    assert_eq!(refused(Quant::Q8_0, 2, 48, 102), ShapeError::RowBlocks { quant: Quant::Q8_0, k: 48, block: 32 });
    assert_eq!(refused(Quant::Q8_0, 0, 32, 0), ShapeError::Empty { quant: Quant::Q8_0, n: 0, k: 32 });
    let short = ShapeError::Bytes { quant: Quant::Q8_0, n: 2, k: 32, found: 67, expected: 68 };
    assert_eq!(refused(Quant::Q8_0, 2, 32, 67), short);
    assert!(short.to_string().contains("found 67 bytes, expected 68"));
    let huge = refused(Quant::F32, usize::MAX / 2, 8, 0);
    assert!(matches!(huge, ShapeError::Bytes { expected: usize::MAX, .. }));
}

#[test]
fn rows_survive_repacking() {
    for quant in Quant::ALL {
        for (n, blocks) in [(1, 1), (16, 2), (37, 3)] {
            let k = blocks * quant.block_len();
            let rows = random_rows(quant, n, k, 11);
            let mut m = Matrix::new(quant, n, k, Arc::new(rows.clone())).expect("a valid shape");
            let expand = |m: &Matrix| -> Vec<u32> {
                let mut dst = vec![f32::NAN; n * k];
                for (i, dst) in dst.chunks_exact_mut(k).enumerate() {
                    m.dequantize_row(i, &mut vec![0; m.row_bytes()], dst);
                }
                dst.iter().map(|v| v.to_bits()).collect()
            };
            let before = expand(&m);
            let mut whole = vec![0.0; n * k];
            quant.dequantize(&rows, &mut whole);
            assert!(whole.iter().zip(&before).all(|(a, b)| a.to_bits() == *b), "{}", quant.name());
            m.repack();
            assert!(m.is_repacked());
            assert_eq!(m.bytes(), m.panel_bytes());
            assert_eq!(before, expand(&m), "{} {n} x {k}", quant.name());
        }
    }
}

#[test]
fn matrices_repacked_together_keep_their_results() {
    let k = 256;
    let mut all: Vec<Matrix> = [(Quant::Q4_1, 33), (Quant::IQ2_S, 16), (Quant::F32, 5), (Quant::Q8_0, 40)]
        .into_iter()
        .map(|(quant, n)| Matrix::new(quant, n, k, Arc::new(random_rows(quant, n, k, 7))).expect("a valid shape"))
        .collect();
    all[2].repack();
    let x = random_input(2, k, 8);
    let product = |m: &Matrix| {
        let (mut dst, mut scratch) = (vec![f32::NAN; 2 * m.n()], InputScratch::new());
        let mut input = Input::new(&mut scratch, &x, 2, k);
        matmul(&Pool::new(1), Isa::best(), Activation::Integer, &mut input, &mut [(m, &mut dst)]);
        dst
    };
    let before: Vec<_> = all.iter().map(product).collect();
    Matrix::repack_all(&mut all.iter_mut().collect::<Vec<_>>());
    assert!(all.iter().all(Matrix::is_repacked));
    // Memory outlives the neighbours it is shared with.
    all.swap_remove(0);
    assert_eq!(all.iter().map(product).collect::<Vec<_>>(), [&before[3], &before[1], &before[2]].map(Clone::clone));
}
