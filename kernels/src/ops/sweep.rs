//! The state of a head while rows pass over it: a slice of columns that stays in the first-level cache.
//!
//! A state `[n][columns]` is stored slice by slice, [`COLUMNS`] columns each and contiguous, because a slice is swept
//! alone; what is left over 32 columns: slices of 16, the last one as wide as what remains. Columns are independent of
//! each other, so lanes run along them and every sum over n is taken in order.

use crate::cpu::lanes::{LANES, Simd, Vector};

/// Columns of a slice of the state: 128 rows of them stay in the first-level cache.
pub(super) const COLUMNS: usize = 2 * LANES;

/// One row of a slice, on a cache line of its own.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Slice<const W: usize>(pub(super) [[f32; LANES]; W]);

/// A slice of zeros.
pub(super) const fn zero<const W: usize>() -> Slice<W> {
    Slice([[0.0; LANES]; W])
}

/// Vector w of a slice's columns: only a slice of one vector may be narrower.
#[inline(always)]
pub(super) fn part<S: Simd, const W: usize>(s: S, columns: &[f32], w: usize) -> S::V {
    if W > 1 { s.load(&columns.as_chunks::<LANES>().0[w]) } else { s.load_partial(columns) }
}

/// Reads a slice from the state, `width` columns of each row.
#[inline(always)]
pub(super) fn load<S: Simd, const W: usize>(s: S, state: &[f32], width: usize, slice: &mut [Slice<W>]) {
    for (state, slice) in state.chunks_exact(width).zip(slice) {
        for (w, lanes) in slice.0.iter_mut().enumerate() {
            part::<S, W>(s, state, w).store(lanes);
        }
    }
}

/// Writes a slice back to the state, `width` columns of each row.
#[inline(always)]
pub(super) fn store<S: Simd, const W: usize>(s: S, slice: &[Slice<W>], width: usize, state: &mut [f32]) {
    for (state, slice) in state.chunks_exact_mut(width).zip(slice) {
        for (lanes, state) in slice.0.iter().zip(state.chunks_mut(LANES)) {
            s.load(lanes).store_partial(state);
        }
    }
}

/// One row over one slice: the update `S = k * delta + decay * S` (product, then fused), the output `sum S q` of the new
/// state (if `OUT`), and the next row's `sum S next_k` (if `NEXT`); both fused, n ascending.
#[inline(always)]
pub(super) fn step<S: Simd, const W: usize, const OUT: bool, const NEXT: bool>(
    s: S,
    slice: &mut [Slice<W>],
    k: &[f32],
    q: &[f32],
    next_k: &[f32],
    decay: S::V,
    delta: [S::V; W],
) -> ([S::V; W], [S::V; W]) {
    let mut o = [s.splat(0.0); W];
    let mut next = [s.splat(0.0); W];
    for (((slice, &k), &q), &next_k) in slice.iter_mut().zip(k).zip(q).zip(next_k) {
        let (k, q, next_k) = (s.splat(k), s.splat(q), s.splat(next_k));
        for w in 0..W {
            let x = k.mul_add(delta[w], s.load(&slice.0[w]).mul(decay));
            x.store(&mut slice.0[w]);
            if OUT {
                o[w] = x.mul_add(q, o[w]);
            }
            if NEXT {
                next[w] = x.mul_add(next_k, next[w]);
            }
        }
    }
    (o, next)
}
