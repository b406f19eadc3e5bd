//! The FFNs of the chosen experts, and their weighted sum.
//!
//! Rows are sorted by expert and each expert multiplies all rows that chose it in one product, so its weights are read
//! once a pass. An element of a product depends on its row alone ([`crate::matmul()`]), hence so does everything here:
//! which rows share an expert changes no bit.

use crate::cpu::detect::Isa;
use crate::cpu::lanes::{Kernel, LANES, Simd, Vector, dispatch};
use crate::cpu::pool::Pool;
use crate::input::{Input, InputScratch};
use crate::matmul::matmul;
use crate::matrix::Matrix;
use crate::quant::Activation;

use super::super::elementwise::{relu_squared, silu_mul};
use super::super::grain_rows;
use super::route::Route;

/// Weights of all experts of a block, one matrix an expert in each slice.
#[derive(Clone, Copy)]
pub struct Experts<'a> {
    /// `[width][k]`. With it the activation is `silu(gate) * up`, without it `relu(up)^2`.
    pub gate: Option<&'a [Matrix]>,
    /// `[width][k]`.
    pub up: &'a [Matrix],
    /// `[n][width]`.
    pub down: &'a [Matrix],
}

/// Memory that [`experts`] reuses from call to call; it grows to the largest batch seen. A *pair* is a row and one
/// expert that it chose; pairs are sorted by expert, then by row.
#[derive(Default)]
pub struct ExpertScratch {
    /// `[experts + 1]`: the pairs of expert e are `start[e]..start[e + 1]`.
    pub(super) start: Vec<usize>,
    /// `[rows][used]`: the pair of a row's choice.
    pub(super) pair: Vec<usize>,
    /// `[pairs]`: its row.
    pub(super) row: Vec<usize>,
    /// `[rows of one expert][k]`.
    pub(super) gathered: Vec<f32>,
    /// `[pairs][width]`, the activation after it was applied.
    pub(super) hidden: Vec<f32>,
    /// `[pairs][width]`.
    pub(super) up: Vec<f32>,
    /// `[pairs][n]`.
    pub(super) out: Vec<f32>,
}

impl ExpertScratch {
    /// Bytes after a batch of `rows` rows of `k` elements, `used` experts each, of `width` and `n` outputs.
    pub fn bytes_for(rows: usize, used: usize, k: usize, width: usize, n: usize) -> usize {
        let pairs = rows.saturating_mul(used);
        let floats = pairs.saturating_mul(2 * width + n).saturating_add(rows.saturating_mul(k));
        floats.saturating_mul(size_of::<f32>()).saturating_add(pairs.saturating_mul(2 * size_of::<usize>()))
    }

    /// Memory for such a batch, taken now.
    pub fn reserve(&mut self, rows: usize, used: usize, k: usize, width: usize, n: usize) {
        let pairs = rows * used;
        let lens = [rows * k, pairs * width, pairs * width, pairs * n];
        for (v, len) in [&mut self.gathered, &mut self.hidden, &mut self.up, &mut self.out].into_iter().zip(lens) {
            at_least(v, len);
        }
        self.pair.reserve(pairs);
        self.row.reserve(pairs);
    }

    /// Sorts the pairs of `routes: [rows][used]`.
    fn sort(&mut self, routes: &[Route], used: usize, experts: usize) {
        self.start.clear();
        self.start.resize(experts + 1, 0);
        for route in routes {
            self.start[route.expert as usize + 1] += 1;
        }
        for e in 0..experts {
            self.start[e + 1] += self.start[e];
        }
        self.pair.resize(routes.len(), 0);
        self.row.resize(routes.len(), 0);
        for (i, route) in routes.iter().enumerate() {
            // `start[e]` counts up to the end of e, which is where `start[e + 1]` began.
            let next = &mut self.start[route.expert as usize];
            self.pair[i] = *next;
            self.row[*next] = i / used;
            *next += 1;
        }
        self.start.rotate_right(1);
        self.start[0] = 0;
    }
}

/// The first `len` elements; their content is left over from earlier use.
fn at_least(v: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if v.len() < len {
        *v = vec![0.0; len]; // untouched memory costs nothing
    }
    &mut v[..len]
}

/// `dst[r] = sum_j weight[r][j] * down_j(act(gate_j(x[r]), up_j(x[r])))` over the experts that row r chose.
/// x: `[rows][k]`, routes: `[rows][used]`, dst: `[rows][n]`.
///
/// Order of the sum: that of the row's routes, best expert first; each output is multiplied by its weight, rounded,
/// and then added, as ggml does. It is the row's own, whoever shares the batch.
///
/// # Panics
/// If a slice or a matrix disagrees with the others, or a route names an expert that is not there.
#[expect(clippy::too_many_arguments, reason = "as every op: where it runs, weights, inputs, scratch, output")]
pub fn experts(
    pool: &Pool,
    isa: Isa,
    mode: Activation,
    weights: Experts<'_>,
    routes: &[Route],
    x: &[f32],
    (input, scratch): (&mut InputScratch, &mut ExpertScratch),
    dst: &mut [f32],
) {
    let Experts { gate, up, down } = weights;
    let count = up.len();
    assert!(count > 0 && down.len() == count && gate.is_none_or(|g| g.len() == count), "matrices of {count} experts");
    let (k, width, n) = (up[0].k(), up[0].n(), down[0].n());
    let rows = dst.len() / n;
    assert_eq!((x.len(), dst.len()), (rows * k, rows * n), "experts: rows of {k} in, of {n} out");
    if rows == 0 {
        return;
    }
    let used = routes.len() / rows;
    assert_eq!(routes.len(), rows * used, "experts: routes of {rows} rows");
    scratch.sort(routes, used, count);
    let ExpertScratch { start, pair, row, gathered, hidden, up: up_out, out } = scratch;
    let pairs = routes.len();
    let hidden = at_least(hidden, pairs * width);
    let up_out = at_least(up_out, if gate.is_some() { pairs * width } else { 0 });
    let out = at_least(out, pairs * n);
    let chosen = || (0..count).map(|e| (e, start[e]..start[e + 1])).filter(|(_, pairs)| !pairs.is_empty());

    for (e, pairs) in chosen() {
        let gathered = at_least(gathered, pairs.len() * k);
        for (dst, &row) in gathered.chunks_exact_mut(k).zip(&row[pairs.clone()]) {
            dst.copy_from_slice(&x[row * k..(row + 1) * k]);
        }
        let mut input = Input::new(input, gathered, pairs.len(), k);
        let range = pairs.start * width..pairs.end * width;
        let hidden = &mut hidden[range.clone()];
        match gate {
            Some(gate) => {
                let mut outputs = [(&gate[e], hidden), (&up[e], &mut up_out[range])];
                matmul(pool, isa, mode, &mut input, &mut outputs);
            }
            None => matmul(pool, isa, mode, &mut input, &mut [(&up[e], hidden)]),
        }
    }
    match gate {
        Some(_) => silu_mul(pool, isa, hidden, up_out),
        None => relu_squared(pool, isa, hidden),
    }
    for (e, pairs) in chosen() {
        let hidden = &hidden[pairs.start * width..pairs.end * width];
        let mut input = Input::new(input, hidden, pairs.len(), width);
        matmul(pool, isa, mode, &mut input, &mut [(&down[e], &mut out[pairs.start * n..pairs.end * n])]);
    }
    let out = &*out;
    pool.split_rows_mut(dst, n, grain_rows(n * used), |first, dst| {
        for (r, dst) in dst.chunks_exact_mut(n).enumerate() {
            let choices = (first + r) * used..(first + r + 1) * used;
            dispatch(isa, Combine { routes: &routes[choices.clone()], pairs: &pair[choices], out, dst });
        }
    });
}

/// The weighted sum of one row.
struct Combine<'a> {
    routes: &'a [Route],
    pairs: &'a [usize],
    /// `[all pairs][n]`.
    out: &'a [f32],
    dst: &'a mut [f32],
}

impl Kernel for Combine<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.dst.len();
        for (j, (route, &pair)) in self.routes.iter().zip(self.pairs).enumerate() {
            let weight = s.splat(route.weight);
            let (lanes, rest) = self.dst.as_chunks_mut::<LANES>();
            let (out, out_rest) = self.out[pair * n..(pair + 1) * n].as_chunks::<LANES>();
            for (d, y) in lanes.iter_mut().zip(out) {
                let y = s.load(y).mul(weight);
                if j == 0 { y.store(d) } else { s.load(d).add(y).store(d) }
            }
            if !rest.is_empty() {
                let y = s.load_partial(out_rest).mul(weight);
                if j == 0 { y.store_partial(rest) } else { s.load_partial(rest).add(y).store_partial(rest) }
            }
        }
    }
}
