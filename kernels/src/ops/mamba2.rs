//! Mamba2: causal convolution, the selective scan, gate and grouped RMSNorm.
//!
//! One step of one head h of group g (element p of the head is independent of the others, so lanes run along head_dim):
//! ```text
//! d       = softplus(dt[h] + dt_bias[h])                  no clamp
//! S[n][p] = B[g][n] * (X[h][p] * d) + exp(d A[h]) * S[n][p]    product, then fused
//! Y[h][p] = sum_n S[n][p] C[g][n] + D[h] X[h][p]          fused, n ascending; the new state
//! v       = silu(z) * Y                                   the gate first,
//! out     = v / sqrt(mean(v^2) + eps) * norm              then the norm, over the heads of a group together
//! ```
//! It is the same step for prompt, decode, window and replay, one row after the other. So the state after a sequence of
//! rows has the same bits however the rows were cut into passes, drafted, rejected or folded.
//!
//! A pass streams a head's state once, a slice of columns at a time, all rows over each slice: accepted rows of the log
//! first, then the committed rows, then the state is stored; the remaining rows go on from there and are logged.
//! Source: Dao and Gu, Transformers are SSMs (arXiv:2405.21060); layout as in llama.cpp `nemotron_h`, `mamba-base.cpp`.

use bumpalo::Bump;
use bumpalo::collections::Vec as List;

use crate::cpu::detect::Isa;
use crate::cpu::disjoint::Blocks;
use crate::cpu::lanes::{Kernel, LANES, Simd, Vector, dispatch};
use crate::cpu::pool::Pool;

use super::exp::{exp_lanes, silu_lanes, softplus};
use super::history::{Columns, StateSegment, add_product, by_tap, folds, rows_of};
use super::mamba2_state::{Mamba2Dims, Mamba2Layer, TIME};
use super::norm::rms_factor;
use super::sweep::{self, COLUMNS, Slice, part, step};

/// Small weights of one layer, all f32.
pub struct Mamba2Weights {
    /// `[taps][channels]`.
    conv: Vec<f32>,
    /// `[channels]`.
    conv_bias: Vec<f32>,
    /// `[heads]`, `-exp(A_log)`.
    a: Vec<f32>,
    /// `[heads]`.
    d: Vec<f32>,
    /// `[heads]`.
    dt_bias: Vec<f32>,
    /// `[groups][inner / groups]`.
    norm: Vec<f32>,
}

/// Small tensors of one layer, as they stand in a file.
#[derive(Clone, Copy)]
pub struct Mamba2Tensors<'a> {
    /// `ssm_conv1d.weight`, `[channels][taps]`, tap 0 = oldest.
    pub conv: &'a [f32],
    /// `ssm_conv1d.bias`, `[channels]`.
    pub conv_bias: &'a [f32],
    /// `ssm_a`, `[heads]`, all negative.
    pub a: &'a [f32],
    /// `ssm_d`, `[heads]`.
    pub d: &'a [f32],
    /// `ssm_dt.bias`, `[heads]`.
    pub dt_bias: &'a [f32],
    /// `ssm_norm.weight`, `[groups][inner / groups]`.
    pub norm: &'a [f32],
}

impl Mamba2Weights {
    /// The weights as the op wants them.
    ///
    /// # Panics
    /// If a length disagrees with the dims.
    pub fn new(dims: &Mamba2Dims, tensors: Mamba2Tensors<'_>) -> Self {
        let Mamba2Tensors { conv, conv_bias, a, d, dt_bias, norm } = tensors;
        let (channels, taps) = (dims.channels(), dims.conv_taps);
        assert_eq!(conv.len(), channels * taps, "convolution weights");
        assert_eq!(conv_bias.len(), channels, "convolution biases");
        assert_eq!(a.len(), dims.heads, "decay weights");
        assert_eq!(d.len(), dims.heads, "skip weights");
        assert_eq!(dt_bias.len(), dims.heads, "time step biases");
        assert_eq!(norm.len(), dims.inner(), "output norm");
        Self {
            conv: by_tap(conv, channels, taps),
            conv_bias: conv_bias.to_vec(),
            a: a.to_vec(),
            d: d.to_vec(),
            dt_bias: dt_bias.to_vec(),
            norm: norm.to_vec(),
        }
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(dims: &Mamba2Dims) -> usize {
        size_of::<f32>() * (dims.channels() * (dims.conv_taps + 1) + 3 * dims.heads + dims.inner())
    }
}

/// Buffers kept between calls; a step is an accepted row of a log or a row of the batch, segment by segment.
#[derive(Default)]
pub struct Mamba2Scratch {
    /// `[steps][channels]`: convolved, SiLU.
    mixed: Vec<f32>,
    /// `[steps][2][heads]`: time step, decay.
    gates: Vec<f32>,
}

impl Mamba2Scratch {
    /// Bytes after a batch of `steps` steps.
    pub fn bytes_for(dims: &Mamba2Dims, steps: usize) -> usize {
        let (mixed, gates) = step_lens(dims);
        size_of::<f32>() * steps * (mixed + gates)
    }
}

/// Elements of a step of [`Mamba2Scratch::mixed`] and [`Mamba2Scratch::gates`].
fn step_lens(dims: &Mamba2Dims) -> (usize, usize) {
    (dims.channels(), 2 * dims.heads)
}

/// A segment, and where its steps stand in the scratch.
#[derive(Clone, Copy)]
struct Place<'a> {
    segment: &'a StateSegment,
    first_step: usize,
}

/// `dst[r]`, `[rows][inner]`, from the projections `[rows][z | x B C | dt]`, and the state moved on.
/// Rows in no segment are left as they are.
///
/// # Panics
/// If lengths disagree, two segments share a slot, `log_len` exceeds the slot's log, `committed` its rows, or more rows
/// would be logged than the layer has room for.
#[expect(clippy::too_many_arguments, reason = "one op, its operands")]
pub fn mamba2(
    pool: &Pool,
    isa: Isa,
    weights: &Mamba2Weights,
    layer: &mut Mamba2Layer,
    segments: &[StateSegment],
    projected: &[f32],
    scratch: &mut Mamba2Scratch,
    dst: &mut [f32],
) {
    let dims = layer.dims;
    let rows = projected.len() / dims.projected();
    assert_eq!(projected.len(), rows * dims.projected(), "mamba2: projections");
    assert_eq!(dst.len(), rows * dims.inner(), "mamba2: dst");
    layer.history.check(segments, rows);
    let inputs = Inputs::new(&dims, projected);

    pool.lists(|lists| {
        let mut places = List::with_capacity_in(segments.len(), lists);
        let mut steps = List::new_in(lists);
        for segment in segments {
            let place = Place { segment, first_step: steps.len() };
            places.push(place);
            steps.extend((0..segment.steps()).map(|t| (place, t)));
        }
        let (places, steps) = (places.into_bump_slice(), steps.into_bump_slice());
        // Every element that is read is written before.
        let (mixed_len, gates_len) = step_lens(&dims);
        scratch.mixed.resize(steps.len() * mixed_len, 0.0);
        scratch.gates.resize(steps.len() * gates_len, 0.0);
        {
            let mixed = Blocks::new(&mut scratch.mixed, dims.channels(), lists);
            let gates = Blocks::new(&mut scratch.gates, 2 * dims.heads, lists);
            let layer = &*layer;
            pool.split(steps.len(), 1, |range| {
                for i in range {
                    let (Place { segment, .. }, step) = steps[i];
                    let (mixed, gates) = (mixed.take(i), gates.take(i));
                    dispatch(isa, Mix { weights, layer, segment, inputs, step, mixed, gates });
                }
            });
        }
        {
            let state = Blocks::new(&mut layer.history.state, dims.head_state_len(), lists);
            let out = Blocks::new(&mut *dst, dims.head_dim, lists);
            let scratch = &*scratch;
            pool.split_with_lists(places.len() * dims.heads, 1, |lists, range| {
                for item in range {
                    let (place, head) = (places[item / dims.heads], item % dims.heads);
                    let state = state.take(place.segment.slot * dims.heads + head);
                    let out = place.segment.rows.clone().map(|row| out.take(row * dims.heads + head));
                    let out = List::from_iter_in(out, lists);
                    dispatch(
                        isa,
                        Sweep { dims: &dims, skip: weights.d[head], place, head, state, scratch, out, lists },
                    );
                }
            });
        }
        let order = rows_of(segments, lists);
        {
            let out = Blocks::new(dst, dims.group_width(), lists);
            pool.split(order.len() * dims.groups, super::grain_rows(dims.group_width()), |range| {
                for item in range {
                    let ((_, row), group) = (order[item / dims.groups], item % dims.groups);
                    let part = group * dims.group_width()..(group + 1) * dims.group_width();
                    let (z, norm) = (&inputs.z.row(row)[part.clone()], &weights.norm[part]);
                    let out = out.take(row * dims.groups + group);
                    dispatch(isa, Gate { z, norm, eps: dims.eps, out });
                }
            });
        }
        layer.history.finish(pool, segments, &[inputs.raw, inputs.dt], lists);
    });
}

/// Folds the first `log_len` logged rows of each `(slot, log_len)` into its state and forgets the others.
///
/// # Panics
/// As [`mamba2`].
pub fn fold(pool: &Pool, isa: Isa, weights: &Mamba2Weights, layer: &mut Mamba2Layer, slots: &[(usize, usize)]) {
    let segments = folds(slots);
    mamba2(pool, isa, weights, layer, &segments, &[], &mut Mamba2Scratch::default(), &mut []);
}

/// The parts of projected rows.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    z: Columns<'a>,
    raw: Columns<'a>,
    dt: Columns<'a>,
}

impl<'a> Inputs<'a> {
    fn new(dims: &Mamba2Dims, projected: &'a [f32]) -> Self {
        let (inner, channels) = (dims.inner(), dims.channels());
        let columns = |first, width| Columns::new(projected, dims.projected(), first, width);
        Self { z: columns(0, inner), raw: columns(inner, channels), dt: columns(inner + channels, dims.heads) }
    }
}

/// Convolution and gates of one step.
struct Mix<'a> {
    weights: &'a Mamba2Weights,
    layer: &'a Mamba2Layer,
    segment: &'a StateSegment,
    inputs: Inputs<'a>,
    step: usize,
    mixed: &'a mut [f32],
    gates: &'a mut [f32],
}

impl Kernel for Mix<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { weights, layer, segment, inputs, step, mixed, gates } = self;
        let (channels, taps, heads) = (layer.dims.channels(), layer.dims.conv_taps, layer.dims.heads);
        // Products of tap 0, 1, ... are added in this order, fused; the last one is this row's. Then the bias.
        for tap in 0..taps {
            let raw = layer.history.input(segment, inputs.raw, step, taps - 1 - tap);
            add_product(s, tap == 0, raw, &weights.conv[tap * channels..][..channels], mixed);
        }
        for (mixed, bias) in mixed.chunks_mut(LANES).zip(weights.conv_bias.chunks(LANES)) {
            silu_lanes(s, s.load_partial(mixed).add(s.load_partial(bias))).store_partial(mixed);
        }
        let dt = match step.checked_sub(segment.log_len) {
            Some(i) => inputs.dt.row(segment.rows.start + i),
            None => layer.history.logs[TIME].row(segment.slot, step),
        };
        let (time, decay) = gates.split_at_mut(heads);
        for (h, (time, decay)) in time.iter_mut().zip(&mut *decay).enumerate() {
            *time = softplus(dt[h] + weights.dt_bias[h]);
            *decay = *time * weights.a[h];
        }
        for decay in decay.chunks_mut(LANES) {
            exp_lanes(s, s.load_partial(decay)).store_partial(decay);
        }
    }
}

/// All steps of a segment over the state of one head.
struct Sweep<'a> {
    dims: &'a Mamba2Dims,
    skip: f32,
    place: Place<'a>,
    head: usize,
    state: &'a mut [f32],
    scratch: &'a Mamba2Scratch,
    out: List<'a, &'a mut [f32]>,
    lists: &'a Bump,
}

/// What one step feeds into one head.
#[derive(Clone, Copy)]
struct StepInputs<'a> {
    x: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    time: f32,
    decay: f32,
}

impl Sweep<'_> {
    #[inline(always)]
    fn inputs(&self, t: usize) -> StepInputs<'_> {
        let (dims, i) = (self.dims, self.place.first_step + t);
        let mixed = &self.scratch.mixed[i * dims.channels()..][..dims.channels()];
        let gates = &self.scratch.gates[i * 2 * dims.heads..][..2 * dims.heads];
        let b = dims.inner() + dims.group(self.head) * dims.state_dim;
        let c = b + dims.groups * dims.state_dim;
        StepInputs {
            x: &mixed[self.head * dims.head_dim..][..dims.head_dim],
            b: &mixed[b..][..dims.state_dim],
            c: &mixed[c..][..dims.state_dim],
            time: gates[self.head],
            decay: gates[dims.heads + self.head],
        }
    }

    /// `W` vectors of columns from `column` on; a single one may stick out over head_dim.
    #[inline(always)]
    fn columns<S: Simd, const W: usize>(&mut self, s: S, column: usize, slice: &mut List<'_, Slice<W>>) {
        let segment = self.place.segment;
        let width = (self.dims.head_dim - column).min(W * LANES);
        let stored = column * self.dims.state_dim..(column + width) * self.dims.state_dim;
        slice.resize(self.dims.state_dim, sweep::zero());
        sweep::load(s, &self.state[stored.clone()], width, slice);
        let skip = s.splat(self.skip);
        for t in 0..segment.steps() {
            let now = self.inputs(t);
            let (time, decay) = (s.splat(now.time), s.splat(now.decay));
            let columns = &now.x[column..column + width];
            let (mut x, mut delta) = ([s.splat(0.0); W], [s.splat(0.0); W]);
            for w in 0..W {
                x[w] = part::<S, W>(s, columns, w);
                delta[w] = x[w].mul(time);
            }
            if let Some(row) = t.checked_sub(segment.log_len) {
                let (y, _) = step::<S, W, true, false>(s, slice, now.b, now.c, now.b, decay, delta);
                let out = &mut self.out[row][column..column + width];
                for ((y, x), out) in y.iter().zip(x).zip(out.chunks_mut(LANES)) {
                    x.mul_add(skip, *y).store_partial(out);
                }
            } else {
                step::<S, W, false, false>(s, slice, now.b, now.c, now.b, decay, delta);
            }
            if t + 1 == segment.folded() {
                sweep::store(s, slice, width, &mut self.state[stored.clone()]);
            }
        }
    }
}

impl Kernel for Sweep<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        if self.place.segment.steps() == 0 {
            return;
        }
        let head_dim = self.dims.head_dim;
        let (mut wide, mut narrow) = (List::new_in(self.lists), List::new_in(self.lists));
        let mut column = 0;
        while column + COLUMNS <= head_dim {
            self.columns::<S, 2>(s, column, &mut wide);
            column += COLUMNS;
        }
        while column < head_dim {
            self.columns::<S, 1>(s, column, &mut narrow);
            column += LANES;
        }
    }
}

/// Gate and norm of one group of a row.
struct Gate<'a> {
    z: &'a [f32],
    norm: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Gate<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { z, norm, eps, out } = self;
        for (out, z) in out.chunks_mut(LANES).zip(z.chunks(LANES)) {
            silu_lanes(s, s.load_partial(z)).mul(s.load_partial(out)).store_partial(out);
        }
        let factor = s.splat(rms_factor(s, out, eps));
        for (out, norm) in out.chunks_mut(LANES).zip(norm.chunks(LANES)) {
            s.load_partial(out).mul(factor).mul(s.load_partial(norm)).store_partial(out);
        }
    }
}

#[cfg(test)]
mod tests;
