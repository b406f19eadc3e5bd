use super::{add, relu_squared, sigmoid_mul, sigmoid_mul_rows, silu_mul, split_halves};
use crate::cpu::detect::Isa;
use crate::cpu::pool::Pool;
use crate::ops::exp::{exp, sigmoid};
use crate::test_noise::{Noise, bits};

type Op = fn(&Pool, Isa, &mut [f32], &[f32]);
type Reference = fn(f32, f32) -> f32;

#[test]
fn every_length_threads_and_instruction_set_give_the_scalar_formula() {
    let ops: [(Op, Reference); 3] =
        [(add, |a, b| a + b), (silu_mul, |a, b| a / (1.0 + exp(0.0 - a)) * b), (sigmoid_mul, |a, b| a * sigmoid(b))];
    let mut noise = Noise::new(6);
    let pools: Vec<Pool> = (1..=3).map(Pool::new).collect();
    for len in (0..=50).chain([8191, 8192, 8193, 40_000]) {
        let (a, b) = (noise.vec(len), noise.vec(len));
        for (op, reference) in ops {
            let expected: Vec<f32> = a.iter().zip(&b).map(|(&a, &b)| reference(a, b)).collect();
            for pool in &pools {
                for isa in Isa::available() {
                    let mut dst = a.clone();
                    op(pool, isa, &mut dst, &b);
                    assert_eq!(bits(&dst), bits(&expected), "{len} elements, {isa:?}");
                }
            }
        }
    }
}

#[test]
fn halves_are_separated_per_head() {
    let (mut q, mut gate) = ([0.0; 4], [0.0; 4]);
    split_halves(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 2, &mut q, &mut gate);
    assert_eq!((q, gate), ([1.0, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 8.0]));
}

#[test]
fn relu_squared_is_the_formula_for_every_length() {
    let mut noise = Noise::new(7);
    for len in (0..=50).chain([8191, 8193]) {
        let x = noise.vec(len);
        let expected: Vec<f32> = x.iter().map(|&x| if x > 0.0 { x * x } else { 0.0 }).collect();
        for isa in Isa::available() {
            let mut got = x.clone();
            relu_squared(&Pool::new(2), isa, &mut got);
            assert_eq!(bits(&got), bits(&expected), "{len} elements, {isa:?}");
        }
    }
    for isa in Isa::available() {
        let mut x = [f32::NAN, f32::NEG_INFINITY, -1.0];
        relu_squared(&Pool::new(1), isa, &mut x);
        assert!(x[0].is_nan() && x[1..] == [0.0, 0.0], "{isa:?}: {x:?}");
    }
}

#[test]
fn a_row_gate_multiplies_its_row() {
    let mut noise = Noise::new(8);
    let gate = noise.vec(40);
    for width in [1, 3, 300] {
        let x = noise.vec(40 * width);
        let expected: Vec<f32> = x.iter().enumerate().map(|(i, x)| x * sigmoid(gate[i / width])).collect();
        for threads in [1, 2] {
            let mut got = x.clone();
            sigmoid_mul_rows(&Pool::new(threads), &mut got, &gate);
            assert_eq!(bits(&got), bits(&expected), "rows of {width}");
        }
    }
    sigmoid_mul_rows(&Pool::new(1), &mut [], &[]);
}
