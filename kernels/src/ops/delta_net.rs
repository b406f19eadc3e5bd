//! Gated delta net: causal convolution, L2-normalised q and k, the delta rule, gated RMSNorm.
//!
//! One step of one value head (column j of the state is independent of the others, so lanes run along value_dim):
//! ```text
//! u[j]     = decay * sum_i S[i][j] k[i]                fused, i ascending
//! delta[j] = beta * (v[j] - u[j])
//! S[i][j]  = k[i] * delta[j] + decay * S[i][j]         product, then fused
//! o[j]     = (sum_i S[i][j] q[i]) / sqrt(key_dim)      fused, i ascending; the new state
//! ```
//! It is the same step for prompt, decode, window and replay, one row after the other. So the state after a sequence of
//! rows has the same bits however the rows were cut into passes, drafted, rejected or folded.
//!
//! A pass streams a head's state once, 32 columns at a time, all rows over each slice: logged rows first, then the
//! committed rows, then the state is stored; the remaining rows go on from there and are logged. The read of S for the
//! output, the update, and the next row's `sum S k` share one sweep.
//! Source: Yang et al., Gated Delta Networks (arXiv:2412.06464); layout and eps as in llama.cpp `qwen35`.

use bumpalo::Bump;
use bumpalo::collections::Vec as List;

use crate::cpu::detect::Isa;
use crate::cpu::disjoint::Blocks;
use crate::cpu::lanes::{Kernel, LANES, Simd, Vector, dispatch};
use crate::cpu::pool::Pool;

use super::delta_state::{DeltaDims, DeltaLayer, GATES, MIXED, OutputGate};
use super::exp::{exp_lanes, sigmoid_lanes, silu_lanes, softplus};
use super::history::{Columns, History, StateSegment, add_product, by_tap, folds, rows_of};
use super::norm::{rms_factor, sum_of_squares};
use super::sweep::{self, COLUMNS, Slice, part, step};

/// Small weights of one layer, all f32.
pub struct DeltaWeights {
    /// `[taps][channels]`.
    conv: Vec<f32>,
    /// `[value_heads]`, `-exp(A_log)`.
    a: Vec<f32>,
    /// `[value_heads]`.
    dt: Vec<f32>,
    /// `[value_dim]`.
    norm: Vec<f32>,
}

impl DeltaWeights {
    /// `conv`: `ssm_conv1d`, `[channels][taps]` (tap 0 = oldest) · `a`: `ssm_a`, all negative · `dt`: `ssm_dt.bias` ·
    /// `norm`: `ssm_norm`.
    ///
    /// # Panics
    /// If a length disagrees with the dims.
    pub fn new(dims: &DeltaDims, conv: &[f32], a: &[f32], dt: &[f32], norm: &[f32]) -> Self {
        let (channels, taps) = (dims.channels(), dims.conv_taps);
        assert_eq!(conv.len(), channels * taps, "convolution weights");
        assert_eq!(a.len(), dims.value_heads, "decay weights");
        assert_eq!(dt.len(), dims.value_heads, "time step biases");
        assert_eq!(norm.len(), dims.value_dim, "output norm");
        Self { conv: by_tap(conv, channels, taps), a: a.to_vec(), dt: dt.to_vec(), norm: norm.to_vec() }
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(dims: &DeltaDims) -> usize {
        size_of::<f32>() * (dims.channels() * dims.conv_taps + 2 * dims.value_heads + dims.value_dim)
    }
}

/// The projections of one layer, all `[rows][...]`.
#[derive(Clone, Copy)]
pub struct DeltaInputs<'a> {
    /// Raw convolution inputs `[rows][channels]`: q heads, k heads, v heads.
    pub qkv: &'a [f32],
    /// `[rows][value_heads * value_dim]`.
    pub z: &'a [f32],
    /// `[rows][value_heads]`.
    pub alpha: &'a [f32],
    /// `[rows][value_heads]`, before the sigmoid.
    pub beta: &'a [f32],
}

/// Buffers kept between calls.
#[derive(Default)]
pub struct DeltaScratch {
    /// `[rows][channels]`: convolved, SiLU, q and k normalised.
    mixed: Vec<f32>,
    /// `[rows][2][value_heads]`: decay, beta.
    gates: Vec<f32>,
}

impl DeltaScratch {
    /// Bytes after a batch of `rows` rows.
    pub fn bytes_for(dims: &DeltaDims, rows: usize) -> usize {
        let (mixed, gates) = row_lens(dims);
        size_of::<f32>() * rows * (mixed + gates)
    }
}

/// Elements of a row of [`DeltaScratch::mixed`] and [`DeltaScratch::gates`].
fn row_lens(dims: &DeltaDims) -> (usize, usize) {
    (dims.channels(), 2 * dims.value_heads)
}

/// `dst[r] = rms(o[r]; norm) * gate(z[r])`, `[rows][value_heads * value_dim]`, and the state moved on.
/// Rows in no segment are left as they are.
///
/// # Panics
/// If lengths disagree, two segments share a slot, `log_len` exceeds the slot's log, `committed` its rows, or more rows
/// would be logged than the layer has room for.
#[expect(clippy::too_many_arguments, reason = "one op, its operands")]
pub fn delta_net(
    pool: &Pool,
    isa: Isa,
    weights: &DeltaWeights,
    layer: &mut DeltaLayer,
    segments: &[StateSegment],
    inputs: DeltaInputs<'_>,
    scratch: &mut DeltaScratch,
    dst: &mut [f32],
) {
    let dims = layer.dims;
    check(layer, segments, &inputs, dst);
    let (channels, heads) = (dims.channels(), dims.value_heads);
    let rows = inputs.qkv.len() / channels;
    // Every element that is read is written before: rows of segments by `mix`, and no others are read.
    let (mixed_len, gates_len) = row_lens(&dims);
    scratch.mixed.resize(rows * mixed_len, 0.0);
    scratch.gates.resize(rows * gates_len, 0.0);

    pool.lists(|lists| {
        let order = rows_of(segments, lists);
        {
            let mixed = Blocks::new(&mut scratch.mixed, channels, lists);
            let gates = Blocks::new(&mut scratch.gates, 2 * heads, lists);
            let layer = &*layer;
            pool.split(order.len(), 1, |range| {
                for &(segment, row) in &order[range] {
                    let segment = &segments[segment];
                    let (mixed, gates) = (mixed.take(row), gates.take(row));
                    dispatch(isa, Mix { weights, layer, segment, inputs, row, mixed, gates });
                }
            });
        }
        {
            let History { state, logs, .. } = &mut layer.history;
            let state = Blocks::new(state, dims.head_state_len(), lists);
            let out = Blocks::new(dst, dims.value_dim, lists);
            let log = |slot: usize| Rows { mixed: logs[MIXED].of(slot), gates: logs[GATES].of(slot) };
            let scratch = &*scratch;
            pool.split_with_lists(segments.len() * heads, 1, |lists, range| {
                for item in range {
                    let (segment, head) = (&segments[item / heads], item % heads);
                    let state = state.take(segment.slot * heads + head);
                    let now = Rows {
                        mixed: &scratch.mixed[segment.rows.start * channels..],
                        gates: &scratch.gates[segment.rows.start * 2 * heads..],
                    };
                    let out = segment.rows.clone().map(|row| out.take(row * heads + head));
                    let out = List::from_iter_in(out, lists);
                    let z = inputs.z;
                    dispatch(
                        isa,
                        Sweep {
                            dims: &dims,
                            weights,
                            segment,
                            head,
                            state,
                            log: log(segment.slot),
                            now,
                            z,
                            out,
                            lists,
                        },
                    );
                }
            });
        }
        let raw = Columns::whole(inputs.qkv, channels);
        let mixed = Columns::whole(&scratch.mixed, channels);
        let gates = Columns::whole(&scratch.gates, 2 * heads);
        layer.history.finish(pool, segments, &[raw, mixed, gates], lists);
    });
}

/// Folds the first `log_len` logged rows of each `(slot, log_len)` into its state and forgets the others.
///
/// # Panics
/// As [`delta_net`].
pub fn fold(pool: &Pool, isa: Isa, weights: &DeltaWeights, layer: &mut DeltaLayer, slots: &[(usize, usize)]) {
    let segments = folds(slots);
    let inputs = DeltaInputs { qkv: &[], z: &[], alpha: &[], beta: &[] };
    delta_net(pool, isa, weights, layer, &segments, inputs, &mut DeltaScratch::default(), &mut []);
}

fn check(layer: &DeltaLayer, segments: &[StateSegment], inputs: &DeltaInputs<'_>, dst: &[f32]) {
    let dims = &layer.dims;
    let rows = inputs.qkv.len() / dims.channels();
    assert_eq!(inputs.qkv.len(), rows * dims.channels(), "delta_net: qkv");
    assert_eq!(inputs.z.len(), rows * dims.value_width(), "delta_net: z");
    assert_eq!(inputs.alpha.len(), rows * dims.value_heads, "delta_net: alpha");
    assert_eq!(inputs.beta.len(), rows * dims.value_heads, "delta_net: beta");
    assert_eq!(dst.len(), rows * dims.value_width(), "delta_net: dst");
    layer.history.check(segments, rows);
}

/// Convolution, norms and gates of one row.
struct Mix<'a> {
    weights: &'a DeltaWeights,
    layer: &'a DeltaLayer,
    segment: &'a StateSegment,
    inputs: DeltaInputs<'a>,
    row: usize,
    mixed: &'a mut [f32],
    gates: &'a mut [f32],
}

impl Kernel for Mix<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let mixed = std::mem::take(&mut self.mixed);
        let dims = self.layer.dims;
        let (channels, taps) = (dims.channels(), dims.conv_taps);
        let now = Columns::whole(self.inputs.qkv, channels);
        let step = self.segment.log_len + self.row - self.segment.rows.start;
        // Products of tap 0, 1, ... are added in this order, fused; the last one is this row's.
        for tap in 0..taps {
            let raw = self.layer.history.input(self.segment, now, step, taps - 1 - tap);
            let weight = &self.weights.conv[tap * channels..][..channels];
            add_product(s, tap == 0, raw, weight, mixed);
        }
        let (lanes, rest) = mixed.as_chunks_mut::<LANES>();
        for lanes in lanes {
            silu_lanes(s, s.load(lanes)).store(lanes);
        }
        silu_lanes(s, s.load_partial(rest)).store_partial(rest);
        for head in mixed[..2 * dims.key_width()].chunks_exact_mut(dims.key_dim) {
            let factor = s.splat(1.0 / (sum_of_squares(s, head) + dims.eps).sqrt());
            let (lanes, rest) = head.as_chunks_mut::<LANES>();
            for lanes in lanes {
                s.load(lanes).mul(factor).store(lanes);
            }
            s.load_partial(rest).mul(factor).store_partial(rest);
        }
        let heads = dims.value_heads;
        let alpha = &self.inputs.alpha[self.row * heads..][..heads];
        let beta = &self.inputs.beta[self.row * heads..][..heads];
        let (decay, sigmoid) = self.gates.split_at_mut(heads);
        for (p, decay) in decay.iter_mut().enumerate() {
            *decay = self.weights.a[p] * softplus(alpha[p] + self.weights.dt[p]);
        }
        for decay in decay.chunks_mut(LANES) {
            exp_lanes(s, s.load_partial(decay)).store_partial(decay);
        }
        for (sigmoid, beta) in sigmoid.chunks_mut(LANES).zip(beta.chunks(LANES)) {
            sigmoid_lanes(s, s.load_partial(beta)).store_partial(sigmoid);
        }
    }
}

/// Rows as they are logged: `mixed [row][channels]`, `gates [row][2][value_heads]`.
#[derive(Clone, Copy)]
struct Rows<'a> {
    mixed: &'a [f32],
    gates: &'a [f32],
}

/// All rows of a segment over the state of one head.
struct Sweep<'a> {
    dims: &'a DeltaDims,
    weights: &'a DeltaWeights,
    segment: &'a StateSegment,
    head: usize,
    state: &'a mut [f32],
    log: Rows<'a>,
    now: Rows<'a>,
    z: &'a [f32],
    out: List<'a, &'a mut [f32]>,
    lists: &'a Bump,
}

/// What one row feeds into one head.
#[derive(Clone, Copy)]
struct StepInputs<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: f32,
    beta: f32,
}

impl Sweep<'_> {
    /// Row t of the sweep, logged rows first.
    #[inline(always)]
    fn step(&self, t: usize) -> StepInputs<'_> {
        let dims = self.dims;
        let log_len = self.segment.log_len;
        let (rows, row) = if t < log_len { (&self.log, t) } else { (&self.now, t - log_len) };
        let mixed = &rows.mixed[row * dims.channels()..][..dims.channels()];
        let gates = &rows.gates[row * 2 * dims.value_heads..][..2 * dims.value_heads];
        let key = dims.key_head(self.head) * dims.key_dim;
        StepInputs {
            q: &mixed[key..][..dims.key_dim],
            k: &mixed[dims.key_width() + key..][..dims.key_dim],
            v: &mixed[2 * dims.key_width() + self.head * dims.value_dim..][..dims.value_dim],
            decay: gates[self.head],
            beta: gates[dims.value_heads + self.head],
        }
    }

    /// `W` vectors of columns from `column` on; a single one may stick out over value_dim.
    #[inline(always)]
    fn columns<S: Simd, const W: usize>(&mut self, s: S, column: usize, slice: &mut List<'_, Slice<W>>) {
        let log_len = self.segment.log_len;
        let (steps, folded) = (self.segment.steps(), self.segment.folded());
        let value_dim = self.dims.value_dim;
        let width = (value_dim - column).min(W * LANES);
        slice.resize(self.dims.key_dim, sweep::zero());
        // Load, and the first row's sum in the same go.
        let mut next = [s.splat(0.0); W];
        let first_k = self.step(0).k;
        let stored = column * self.dims.key_dim..(column + width) * self.dims.key_dim;
        let state = self.state[stored.clone()].chunks_exact(width);
        for ((slice, state), &k) in slice.iter_mut().zip(state).zip(first_k) {
            let k = s.splat(k);
            for (w, next) in next.iter_mut().enumerate() {
                let x = part::<S, W>(s, state, w);
                x.store(&mut slice.0[w]);
                *next = x.mul_add(k, *next);
            }
        }
        let scale = s.splat(1.0 / (self.dims.key_dim as f32).sqrt());
        for t in 0..steps {
            let now = self.step(t);
            let (decay, beta) = (s.splat(now.decay), s.splat(now.beta));
            let v = &now.v[column..column + width];
            let mut delta = [s.splat(0.0); W];
            for w in 0..W {
                let v = part::<S, W>(s, v, w);
                delta[w] = beta.mul(v.sub(next[w].mul(decay)));
            }
            let next_k = if t + 1 < steps { Some(self.step(t + 1).k) } else { None };
            let output = if t >= log_len {
                let (o, sums) = match next_k {
                    Some(next_k) => step::<S, W, true, true>(s, slice, now.k, now.q, next_k, decay, delta),
                    None => step::<S, W, true, false>(s, slice, now.k, now.q, now.k, decay, delta),
                };
                next = sums;
                Some(o)
            } else {
                next = match next_k {
                    Some(next_k) => step::<S, W, false, true>(s, slice, now.k, now.q, next_k, decay, delta).1,
                    None => step::<S, W, false, false>(s, slice, now.k, now.q, now.k, decay, delta).1,
                };
                None
            };
            if let Some(o) = output {
                let out = &mut self.out[t - log_len][column..column + width];
                for (o, out) in o.iter().zip(out.chunks_mut(LANES)) {
                    o.mul(scale).store_partial(out);
                }
            }
            if t + 1 == folded {
                sweep::store(s, slice, width, &mut self.state[stored.clone()]);
            }
        }
    }
}

impl Kernel for Sweep<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        if self.segment.steps() == 0 {
            return;
        }
        let value_dim = self.dims.value_dim;
        let (mut wide, mut narrow) = (List::new_in(self.lists), List::new_in(self.lists));
        let mut column = 0;
        while column + COLUMNS <= value_dim {
            self.columns::<S, 2>(s, column, &mut wide);
            column += COLUMNS;
        }
        while column < value_dim {
            self.columns::<S, 1>(s, column, &mut narrow);
            column += LANES;
        }
        let (heads, first) = (self.dims.value_heads, self.segment.rows.start);
        for (i, out) in self.out.iter_mut().enumerate() {
            let z = &self.z[((first + i) * heads + self.head) * value_dim..][..value_dim];
            gate_output(s, self.dims, out, &self.weights.norm, z);
        }
    }
}

/// `out = (out / sqrt(mean(out^2) + eps) * norm) * gate(z)`.
#[inline(always)]
fn gate_output<S: Simd>(s: S, dims: &DeltaDims, out: &mut [f32], norm: &[f32], z: &[f32]) {
    let factor = s.splat(rms_factor(s, out, dims.eps));
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    let (norm, norm_rest) = norm.as_chunks::<LANES>();
    let (z, z_rest) = z.as_chunks::<LANES>();
    for ((out, norm), z) in out.iter_mut().zip(norm).zip(z) {
        s.load(out).mul(factor).mul(s.load(norm)).mul(open(s, dims.output_gate, s.load(z))).store(out);
    }
    let (z, norm) = (s.load_partial(z_rest), s.load_partial(norm_rest));
    s.load_partial(out_rest).mul(factor).mul(norm).mul(open(s, dims.output_gate, z)).store_partial(out_rest);
}

#[inline(always)]
fn open<S: Simd>(s: S, gate: OutputGate, z: S::V) -> S::V {
    match gate {
        OutputGate::Silu => silu_lanes(s, z),
        OutputGate::Sigmoid => sigmoid_lanes(s, z),
    }
}

#[cfg(test)]
mod tests;
