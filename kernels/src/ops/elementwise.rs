//! Ops without sums: an element depends on the elements at its own place.

use crate::cpu::detect::Isa;
use crate::cpu::lanes::{Kernel, LANES, Simd, Vector, dispatch};
use crate::cpu::pool::Pool;

use super::exp::{sigmoid, sigmoid_lanes, silu_lanes};
use super::{GRAIN_ELEMENTS, grain_rows};

trait Map: Copy + Sync {
    fn at<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V;
}

struct Apply<'a, M> {
    map: M,
    a: &'a mut [f32],
    b: &'a [f32],
}

impl<M: Map> Kernel for Apply<'_, M> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (a, a_rest) = self.a.as_chunks_mut::<LANES>();
        let (b, b_rest) = self.b.as_chunks::<LANES>();
        for (a, b) in a.iter_mut().zip(b) {
            self.map.at(s, s.load(a), s.load(b)).store(a);
        }
        if !a_rest.is_empty() {
            self.map.at(s, s.load_partial(a_rest), s.load_partial(b_rest)).store_partial(a_rest);
        }
    }
}

fn apply<M: Map>(pool: &Pool, isa: Isa, map: M, a: &mut [f32], b: &[f32]) {
    assert_eq!(a.len(), b.len(), "operands differ in length");
    pool.split_rows_mut(a, 1, GRAIN_ELEMENTS, |first, a| {
        let b = &b[first..first + a.len()];
        dispatch(isa, Apply { map, a, b });
    });
}

#[derive(Clone, Copy)]
struct Sum;
impl Map for Sum {
    #[inline(always)]
    fn at<S: Simd>(self, _: S, a: S::V, b: S::V) -> S::V {
        a.add(b)
    }
}

#[derive(Clone, Copy)]
struct SiluProduct;
impl Map for SiluProduct {
    #[inline(always)]
    fn at<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V {
        silu_lanes(s, a).mul(b)
    }
}

#[derive(Clone, Copy)]
struct SigmoidProduct;
impl Map for SigmoidProduct {
    #[inline(always)]
    fn at<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V {
        a.mul(sigmoid_lanes(s, b))
    }
}

/// `dst += x`.
///
/// # Panics
/// If the lengths differ; so do the others of this page.
pub fn add(pool: &Pool, isa: Isa, dst: &mut [f32], x: &[f32]) {
    apply(pool, isa, Sum, dst, x);
}

/// SwiGLU: `gate = silu(gate) * up`.
pub fn silu_mul(pool: &Pool, isa: Isa, gate: &mut [f32], up: &[f32]) {
    apply(pool, isa, SiluProduct, gate, up);
}

/// Output gate: `x *= sigmoid(gate)`.
pub fn sigmoid_mul(pool: &Pool, isa: Isa, x: &mut [f32], gate: &[f32]) {
    apply(pool, isa, SigmoidProduct, x, gate);
}

struct Square<'a>(&'a mut [f32]);

impl Kernel for Square<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Operand order: a NaN passes through.
        let zero = s.splat(0.0);
        let (lanes, rest) = self.0.as_chunks_mut::<LANES>();
        for x in lanes {
            let positive = zero.max(s.load(x));
            positive.mul(positive).store(x);
        }
        if !rest.is_empty() {
            let positive = zero.max(s.load_partial(rest));
            positive.mul(positive).store_partial(rest);
        }
    }
}

/// `x = max(x, 0)^2`.
pub fn relu_squared(pool: &Pool, isa: Isa, x: &mut [f32]) {
    pool.split_rows_mut(x, 1, GRAIN_ELEMENTS, |_, x| dispatch(isa, Square(x)));
}

/// One gate a row: `x[r] *= sigmoid(gate[r])`.   x: `[rows][width]`, gate: `[rows]`.
///
/// # Panics
/// If x is not a whole number of elements for every gate.
pub fn sigmoid_mul_rows(pool: &Pool, x: &mut [f32], gate: &[f32]) {
    if gate.is_empty() {
        return assert!(x.is_empty(), "sigmoid_mul_rows: rows without gates");
    }
    let width = x.len() / gate.len();
    assert_eq!(x.len(), gate.len() * width, "sigmoid_mul_rows: {} gates", gate.len());
    pool.split_rows_mut(x, width, grain_rows(width), |first, x| {
        for (x, &gate) in x.chunks_exact_mut(width).zip(&gate[first..]) {
            let gate = sigmoid(gate);
            x.iter_mut().for_each(|x| *x *= gate);
        }
    });
}

/// Separates what a projection packs per head: `src[n] = [first[n] | second[n]]`, each part `width` long.
/// src: `[heads][2 * width]` (heads of all rows), first, second: `[heads][width]`.
pub fn split_halves(src: &[f32], width: usize, first: &mut [f32], second: &mut [f32]) {
    assert_eq!(src.len(), first.len() + second.len(), "split_halves: parts and whole disagree");
    assert_eq!(first.len(), second.len(), "split_halves: parts differ in length");
    let parts = first.chunks_exact_mut(width).zip(second.chunks_exact_mut(width));
    for (src, (first, second)) in src.chunks_exact(2 * width).zip(parts) {
        first.copy_from_slice(&src[..width]);
        second.copy_from_slice(&src[width..]);
    }
}

#[cfg(test)]
mod tests;
