use super::*;
use crate::test_data::random_input;

/// Activations that quantisers may trip over: ties between codes, all magnitudes, blocks of zeros and of bad values.
fn awkward(rows: usize, k: usize) -> Vec<f32> {
    let mut x = random_input(rows, k, 21);
    for (i, v) in x.iter_mut().enumerate() {
        match i / 256 % 8 {
            1 => *v = (i % 255) as f32 - 127.0 + 0.5 * (i % 2) as f32,
            2 => *v *= 1e-38,
            3 => *v *= 1e38,
            4 => *v = -0.0,
            5 => *v *= 3e-7,
            6 if i % 256 == 200 => *v = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][i / 2048 % 3],
            _ => {}
        }
    }
    x
}

#[test]
fn every_instruction_set_quantises_alike() {
    let bits = |v: &[f32]| -> Vec<u32> { v.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect() };
    for (rows, k) in [(9, 2048), (3, 352)] {
        let x = awkward(rows, k);
        for form in [Form::Float, Form::Int32, Form::Int256] {
            let fill = |isa| {
                let mut acts = Acts::default();
                acts.fill(isa, form, &x, rows, k);
                acts
            };
            let want = fill(Isa::Scalar);
            for isa in Isa::available() {
                let found = fill(isa);
                assert_eq!(bits(&found.floats), bits(&want.floats));
                assert_eq!(found.codes, want.codes, "{isa:?}");
                assert_eq!(bits(&found.scale), bits(&want.scale), "{isa:?}");
                assert_eq!(bits(&found.scaled_sum), bits(&want.scaled_sum), "{isa:?}");
                assert_eq!(found.correction, want.correction, "{isa:?}");
                assert_eq!((found.sums_16, found.sums_32), (want.sums_16.clone(), want.sums_32.clone()), "{isa:?}");
            }
        }
    }
}

#[test]
fn tiles_are_balanced_and_cover_the_rows() {
    for rows in 1..70 {
        let acts = Acts { rows, steps: 3, ..Acts::default() };
        let mut next = 0;
        let mut cells = vec![false; rows * 3];
        for t in 0..acts.tiles() {
            let tile = acts.tile(t);
            assert_eq!(tile.start, next);
            assert!((1..=TILE_ROWS).contains(&tile.len()));
            assert!(tile.len() + 1 >= rows.div_ceil(acts.tiles()));
            next = tile.end;
            for row in tile.clone() {
                for step in 0..3 {
                    assert!(!std::mem::replace(&mut cells[acts.cell(&tile, row, step)], true));
                }
            }
        }
        assert_eq!(next, rows);
        assert!(cells.iter().all(|c| *c));
    }
}
