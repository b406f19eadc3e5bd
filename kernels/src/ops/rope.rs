//! Rotary positions. The table of cosines and sines is made once a pass and shared by all layers and heads.

use crate::cpu::detect::Isa;
use crate::cpu::lanes::{Kernel, LANES, Simd, Vector, dispatch};
use crate::cpu::pool::Pool;

use super::grain_rows;

/// Which elements of a head rotate together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pairing {
    /// `c` with `c + n_rot / 2` ("NEOX"). Interleaved M-RoPE on text is the same.
    Halves,
    /// `2c` with `2c + 1` ("NORM"): `llama` GGUF files, whose q and k rows the converter permutes for it.
    Adjacent,
}

/// The rotation of one model.
///
/// Source: ggml `ggml_rope_cache_init`, `ggml_compute_forward_rope`.
#[derive(Clone, Debug)]
pub struct Rope {
    /// How elements pair up.
    pub pairing: Pairing,
    /// Leading elements of a head that rotate, even; the others pass through.
    pub n_rot: usize,
    /// Base of the angles.
    pub freq_base: f32,
    /// Angles are multiplied by it (linear scaling by a factor f: 1 / f); 1 = none.
    pub freq_scale: f32,
    /// `rope_freqs.weight`: pair c's angle is divided by element c. `[n_rot / 2]`, or empty.
    pub freq_factors: Vec<f32>,
}

/// Cosines and sines of the rows of one pass: `[rows][n_rot / 2]` each. Reused between passes.
#[derive(Default)]
pub struct RopeTable {
    cos: Vec<f32>,
    sin: Vec<f32>,
    pairs: usize,
}

impl RopeTable {
    /// Bytes for `rows` rows of heads with `n_rot` elements that rotate.
    pub fn bytes_for(n_rot: usize, rows: usize) -> usize {
        2 * size_of::<f32>() * rows * (n_rot / 2)
    }
}

impl Rope {
    /// Fills the table for rows at these positions.
    ///
    /// The angle of pair c is `position * t^c` with `t = base^(-2 / n_rot)`, by repeated f32 multiplication from the
    /// position on, as ggml does it; a power per pair differs in the last bits. Cosine and sine are taken in double and
    /// rounded, so that they do not depend on the C library.
    ///
    /// # Panics
    /// If `n_rot` is odd or `freq_factors` has a wrong length.
    pub fn fill(&self, positions: &[u32], table: &mut RopeTable) {
        assert!(self.n_rot.is_multiple_of(2), "n_rot {} is odd", self.n_rot);
        let pairs = self.n_rot / 2;
        assert!(
            self.freq_factors.is_empty() || self.freq_factors.len() == pairs,
            "{} frequency factors for {pairs} pairs",
            self.freq_factors.len()
        );
        let step = f64::from(self.freq_base).powf(-2.0 / self.n_rot as f64) as f32;
        table.pairs = pairs;
        table.cos.clear();
        table.sin.clear();
        for &position in positions {
            let mut theta = position as f32;
            for c in 0..pairs {
                let factor = self.freq_factors.get(c).copied().unwrap_or(1.0);
                let angle = f64::from(self.freq_scale * (theta / factor));
                table.cos.push(angle.cos() as f32);
                table.sin.push(angle.sin() as f32);
                theta *= step;
            }
        }
    }

    /// Rotates every head of every row in place.   x: `[rows][heads][head_dim]`, rows as in the table.
    ///
    /// `(a, b) -> (a cos - b sin, a sin + b cos)`, each as one product and one fused multiply-add.
    ///
    /// # Panics
    /// If x is not as many rows as the table, or a head is shorter than `n_rot`.
    pub fn apply(&self, pool: &Pool, isa: Isa, table: &RopeTable, head_dim: usize, x: &mut [f32]) {
        assert!(self.n_rot <= head_dim, "n_rot {} exceeds the head's {head_dim}", self.n_rot);
        assert_eq!(table.pairs, self.n_rot / 2, "the table belongs to another rope");
        if x.is_empty() {
            return;
        }
        let rows = table.cos.len() / table.pairs;
        assert!(x.len().is_multiple_of(rows * head_dim), "{} elements are no {rows} rows of heads", x.len());
        let width = x.len() / rows;
        pool.split_rows_mut(x, width, grain_rows(width), |first, x| {
            for (i, row) in x.chunks_exact_mut(width).enumerate() {
                let at = (first + i) * table.pairs..(first + i + 1) * table.pairs;
                let (cos, sin) = (&table.cos[at.clone()], &table.sin[at]);
                match self.pairing {
                    Pairing::Halves => dispatch(isa, Halves { row, head_dim, cos, sin }),
                    Pairing::Adjacent => dispatch(isa, Adjacent { row, head_dim, cos, sin }),
                }
            }
        });
    }
}

struct Halves<'a> {
    row: &'a mut [f32],
    head_dim: usize,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for Halves<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let pairs = self.cos.len();
        for head in self.row.chunks_exact_mut(self.head_dim) {
            let (a, b) = head[..2 * pairs].split_at_mut(pairs);
            let (a, a_rest) = a.as_chunks_mut::<LANES>();
            let (b, b_rest) = b.as_chunks_mut::<LANES>();
            let (cos, cos_rest) = self.cos.as_chunks::<LANES>();
            let (sin, sin_rest) = self.sin.as_chunks::<LANES>();
            for i in 0..a.len() {
                let (x, y) = rotate(s, s.load(&a[i]), s.load(&b[i]), s.load(&cos[i]), s.load(&sin[i]));
                x.store(&mut a[i]);
                y.store(&mut b[i]);
            }
            let (c, n) = (s.load_partial(cos_rest), s.load_partial(sin_rest));
            let (x, y) = rotate(s, s.load_partial(a_rest), s.load_partial(b_rest), c, n);
            x.store_partial(a_rest);
            y.store_partial(b_rest);
        }
    }
}

#[inline(always)]
fn rotate<S: Simd>(s: S, a: S::V, b: S::V, cos: S::V, sin: S::V) -> (S::V, S::V) {
    let minus_sin = s.splat(0.0).sub(sin);
    (a.mul_add(cos, b.mul(minus_sin)), a.mul_add(sin, b.mul(cos)))
}

struct Adjacent<'a> {
    row: &'a mut [f32],
    head_dim: usize,
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for Adjacent<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for head in self.row.chunks_exact_mut(self.head_dim) {
            let (pairs, _) = head.as_chunks_mut::<2>();
            for ((pair, &cos), &sin) in pairs.iter_mut().zip(self.cos).zip(self.sin) {
                let [a, b] = *pair;
                *pair = [a.mul_add(cos, b * -sin), a.mul_add(sin, b * cos)];
            }
        }
    }
}

#[cfg(test)]
mod tests;
