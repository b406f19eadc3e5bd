use super::{collapse, combine, squash};
use crate::cpu::detect::Isa;
use crate::cpu::pool::Pool;
use crate::ops::exp::{exp, sigmoid};
use crate::test_noise::{Noise, bits};

/// (streams, width): the widths end in a partial vector, the last has more streams than a vector has lanes.
const SHAPES: [(usize, usize); 6] = [(4, 64), (4, 40), (2, 7), (3, 100), (4, 2560), (18, 16)];

/// Every row count, thread count and instruction set gives `expected`, and so does each row alone.
fn everywhere(rows: usize, expected: &[f32], run: impl Fn(&Pool, Isa, std::ops::Range<usize>) -> Vec<f32>) {
    let width = expected.len() / rows;
    for isa in Isa::available() {
        for threads in 1..=3 {
            let pool = Pool::new(threads);
            assert_eq!(bits(&run(&pool, isa, 0..rows)), bits(expected), "{isa:?}, {threads} threads");
            for row in 0..rows {
                assert_eq!(bits(&run(&pool, isa, row..row + 1)), bits(&expected[row * width..][..width]));
            }
        }
    }
}

#[test]
fn collapse_is_the_mean_of_gated_streams_in_order() {
    let mut noise = Noise::new(60);
    for (streams, width) in SHAPES {
        let row = streams * width;
        let (gate, normed) = (noise.vec(5 * row), noise.vec(5 * row));
        let mut expected = Vec::new();
        for r in 0..5 {
            for d in 0..width {
                let at = |s: usize| r * row + s * width + d;
                let mut sum = sigmoid(gate[at(0)]) * normed[at(0)];
                let mut exact = f64::from(sum);
                for s in 1..streams {
                    sum = sigmoid(gate[at(s)]).mul_add(normed[at(s)], sum);
                    exact += f64::from(normed[at(s)]) / (1.0 + (-f64::from(gate[at(s)])).exp());
                }
                expected.push(sum * (1.0 / streams as f32));
                assert!((f64::from(expected[expected.len() - 1]) - exact / streams as f64).abs() < 1e-6);
            }
        }
        everywhere(5, &expected, |pool, isa, rows| {
            let at = rows.start * row..rows.end * row;
            let mut dst = vec![f32::NAN; rows.len() * width];
            collapse(pool, isa, &gate[at.clone()], &normed[at], streams, width, &mut dst);
            dst
        });
    }
}

#[test]
fn combine_spreads_a_block_over_the_streams() {
    let mut noise = Noise::new(61);
    for (streams, width) in SHAPES {
        let row = streams * width;
        let before = noise.vec(5 * row);
        let (out, inject) = (noise.vec(5 * width), noise.vec(5 * streams));
        let inject: Vec<f32> = inject.iter().map(|x| 20.0 * x).collect();
        let mut expected = Vec::new();
        for r in 0..5 {
            for s in 0..streams {
                let x = inject[r * streams + s] * (1.0 / streams as f32);
                let weight = sigmoid(x) * 2.0;
                let exact = 2.0 / (1.0 + (-f64::from(inject[r * streams + s]) / streams as f64).exp());
                assert!((f64::from(weight) - exact).abs() < 1e-6);
                for d in 0..width {
                    expected.push(weight.mul_add(out[r * width + d], before[r * row + s * width + d]));
                }
            }
        }
        everywhere(5, &expected, |pool, isa, rows| {
            let mut streams_now = before[rows.start * row..rows.end * row].to_vec();
            let inject = &inject[rows.start * streams..rows.end * streams];
            combine(pool, isa, inject, &out[rows.start * width..rows.end * width], width, &mut streams_now);
            streams_now
        });
    }
}

#[test]
fn squash_divides_by_the_streams_inside() {
    let mut noise = Noise::new(62);
    for (streams, width) in [(4, 320), (2, 7), (3, 33)] {
        let x: Vec<f32> = noise.vec(4 * width).iter().map(|x| 9.0 * x).collect();
        let expected: Vec<f32> = x
            .iter()
            .map(|x| {
                let x = x * (1.0 / streams as f32);
                x / (1.0 + exp(-x))
            })
            .collect();
        let exact = |x: f32| f64::from(x) / streams as f64 / (1.0 + (-f64::from(x) / streams as f64).exp());
        assert!(x.iter().zip(&expected).all(|(&x, &y)| (exact(x) - f64::from(y)).abs() < 1e-6));
        everywhere(4, &expected, |pool, isa, rows| {
            let mut x = x[rows.start * width..rows.end * width].to_vec();
            squash(pool, isa, streams, &mut x);
            x
        });
    }
}

#[test]
fn no_rows_are_nothing_to_do() {
    let pool = Pool::new(2);
    squash(&pool, Isa::best(), 4, &mut []);
    collapse(&pool, Isa::best(), &[], &[], 4, 8, &mut []);
    combine(&pool, Isa::best(), &[], &[], 8, &mut []);
}
