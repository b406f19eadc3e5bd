use std::ops::Range;

use super::{Mamba2Scratch, Mamba2Tensors, Mamba2Weights, fold, mamba2};
use crate::cpu::detect::Isa;
use crate::cpu::pool::Pool;
use crate::ops::history::StateSegment;
use crate::ops::mamba2_state::{Mamba2Dims, Mamba2Layer};
use crate::test_noise::{Noise, bits};
use crate::test_windows::windows;

/// Three heads per group: two groups of two could not tell consecutive heads from alternating ones.
const DIMS: Mamba2Dims = Mamba2Dims { heads: 6, head_dim: 24, groups: 2, state_dim: 16, conv_taps: 4, eps: 1e-5 };

/// The tensors of a layer, as in a file.
struct Tensors {
    conv: Vec<f32>,
    conv_bias: Vec<f32>,
    a: Vec<f32>,
    d: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
}

impl Tensors {
    fn noise(dims: &Mamba2Dims) -> Self {
        let mut noise = Noise::new(41);
        Self {
            conv: noise.vec(dims.channels() * dims.conv_taps),
            conv_bias: noise.vec(dims.channels()),
            a: (0..dims.heads).map(|_| -0.05 - noise.signed().abs()).collect(),
            d: noise.vec(dims.heads),
            dt_bias: noise.vec(dims.heads),
            norm: noise.vec(dims.inner()),
        }
    }

    fn weights(&self, dims: &Mamba2Dims) -> Mamba2Weights {
        let Self { conv, conv_bias, a, d, dt_bias, norm } = self;
        Mamba2Weights::new(dims, Mamba2Tensors { conv, conv_bias, a, d, dt_bias, norm })
    }
}

/// Projections of `rows` rows.
fn inputs(noise: &mut Noise, dims: &Mamba2Dims, rows: usize) -> Vec<f32> {
    noise.vec(rows * dims.projected())
}

fn rows_of<'a>(dims: &Mamba2Dims, inputs: &'a [f32], rows: Range<usize>) -> &'a [f32] {
    &inputs[rows.start * dims.projected()..rows.end * dims.projected()]
}

/// A layer with what a call needs.
struct Bench {
    dims: Mamba2Dims,
    pool: Pool,
    isa: Isa,
    weights: Mamba2Weights,
    layer: Mamba2Layer,
    scratch: Mamba2Scratch,
}

impl Bench {
    fn new(dims: Mamba2Dims, threads: usize, isa: Isa, slots: usize, log_capacity: usize) -> Self {
        let weights = Tensors::noise(&dims).weights(&dims);
        let layer = Mamba2Layer::new(dims, slots, log_capacity);
        Self { dims, pool: Pool::new(threads), isa, weights, layer, scratch: Mamba2Scratch::default() }
    }

    fn pass(&mut self, segments: &[StateSegment], inputs: &[f32]) -> Vec<f32> {
        let mut dst = vec![f32::NAN; inputs.len() / self.dims.projected() * self.dims.inner()];
        let Self { pool, isa, weights, layer, scratch, .. } = self;
        mamba2(pool, *isa, weights, layer, segments, inputs, scratch, &mut dst);
        dst
    }

    /// One segment on slot 0.
    fn one(&mut self, inputs: &[f32], log_len: usize, committed: usize) -> Vec<f32> {
        let rows = inputs.len() / self.dims.projected();
        self.pass(&[StateSegment { slot: 0, rows: 0..rows, log_len, committed }], inputs)
    }

    fn fold(&mut self, slot: usize, log_len: usize) {
        fold(&self.pool, self.isa, &self.weights, &mut self.layer, &[(slot, log_len)]);
    }

    fn saved(&self, slot: usize) -> Vec<u32> {
        let mut out = Vec::new();
        self.layer.history.save(slot, &mut out);
        bits(&out)
    }
}

/// Plain decode, one row at a time: outputs per row, and the saved state at every length.
fn decode(dims: Mamba2Dims, isa: Isa, inputs: &[f32]) -> (Vec<f32>, Vec<Vec<u32>>) {
    let mut bench = Bench::new(dims, 1, isa, 1, 0);
    let mut saved = vec![bench.saved(0)];
    let mut out = Vec::new();
    for row in inputs.chunks_exact(dims.projected()) {
        out.extend(bench.one(row, 0, 1));
        saved.push(bench.saved(0));
    }
    (out, saved)
}

/// The formulas of the reference in double precision, in the file's own order of everything.
fn in_double(dims: &Mamba2Dims, tensors: &Tensors, inputs: &[f32]) -> Vec<f64> {
    let Mamba2Dims { heads, head_dim, groups, state_dim, conv_taps: taps, eps } = *dims;
    let (inner, channels) = (dims.inner(), dims.channels());
    let wide = |x: f32| f64::from(x);
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let rows: Vec<&[f32]> = inputs.chunks_exact(dims.projected()).collect();
    let mut state = vec![0.0; dims.state_len()]; // [head][p][n]
    let mut out = Vec::new();
    for (t, row) in rows.iter().enumerate() {
        let mixed: Vec<f64> = (0..channels)
            .map(|c| {
                let window = (0..taps).filter(|&k| t + k + 1 >= taps);
                let sum: f64 =
                    window.map(|k| wide(tensors.conv[c * taps + k]) * wide(rows[t + k + 1 - taps][inner + c])).sum();
                silu(sum + wide(tensors.conv_bias[c]))
            })
            .collect();
        let mut v = Vec::new();
        for h in 0..heads {
            let g = h / (heads / groups);
            let b = &mixed[inner + g * state_dim..][..state_dim];
            let c = &mixed[inner + (groups + g) * state_dim..][..state_dim];
            let x = wide(row[inner + channels + h]) + wide(tensors.dt_bias[h]);
            let d = if x > 20.0 { x } else { (1.0 + x.exp()).ln() };
            let decay = (d * wide(tensors.a[h])).exp();
            for p in 0..head_dim {
                let x = mixed[h * head_dim + p];
                let state = &mut state[(h * head_dim + p) * state_dim..][..state_dim];
                state.iter_mut().zip(b).for_each(|(s, b)| *s = *s * decay + x * d * b);
                let y: f64 = state.iter().zip(c).map(|(s, c)| s * c).sum();
                v.push(silu(wide(row[h * head_dim + p])) * (y + wide(tensors.d[h]) * x));
            }
        }
        for (v, norm) in v.chunks(inner / groups).zip(tensors.norm.chunks(inner / groups)) {
            let mean = v.iter().map(|v| v * v).sum::<f64>() / v.len() as f64;
            out.extend(v.iter().zip(norm).map(|(v, norm)| v / (mean + wide(eps)).sqrt() * wide(*norm)));
        }
    }
    out
}

#[test]
fn close_to_the_formulas_in_double_precision() {
    for (heads, groups, head_dim, state_dim, conv_taps) in [
        (6, 2, 24, 16, 4),
        (6, 1, 16, 32, 2),
        (24, 8, 7, 20, 4),
        (8, 8, 64, 128, 4),
        (12, 2, 33, 64, 1),
        (3, 3, 40, 16, 3),
    ] {
        let dims = Mamba2Dims { heads, head_dim, groups, state_dim, conv_taps, eps: 1e-5 };
        let inputs = inputs(&mut Noise::new(42), &dims, 40);
        let (got, _) = decode(dims, Isa::best(), &inputs);
        let exact = in_double(&dims, &Tensors::noise(&dims), &inputs);
        let error: f64 = got.iter().zip(&exact).map(|(&x, y)| (f64::from(x) - y).powi(2)).sum();
        let power: f64 = exact.iter().map(|x| x * x).sum();
        assert!(error / power < 1e-11, "{dims:?}: {}", error / power);
    }
}

#[test]
fn a_large_time_step_is_not_clamped() {
    let dims = Mamba2Dims { heads: 2, head_dim: 16, groups: 1, state_dim: 16, conv_taps: 2, eps: 1e-5 };
    let mut rows = inputs(&mut Noise::new(40), &dims, 6);
    for row in rows.chunks_exact_mut(dims.projected()) {
        // Far below and far above the range that a clamp would keep.
        row[dims.projected() - 2..].copy_from_slice(&[-12.0, 25.0]);
    }
    let (got, _) = decode(dims, Isa::best(), &rows);
    for (x, y) in got.iter().zip(in_double(&dims, &Tensors::noise(&dims), &rows)) {
        assert!((f64::from(*x) - y).abs() < 1e-4 * y.abs().max(1.0), "{x} for {y}");
    }
}

#[test]
fn every_instruction_set_and_thread_count_gives_the_bits_of_plain_rust() {
    let mut noise = Noise::new(43);
    for _ in 0..12 {
        let groups = [1, 2, 8][noise.below(3)];
        let dims = Mamba2Dims {
            heads: groups * (1 + noise.below(4)),
            head_dim: 1 + noise.below(80),
            groups,
            state_dim: 16 + noise.below(113),
            conv_taps: 1 + noise.below(5),
            eps: 1e-5,
        };
        let inputs = inputs(&mut noise, &dims, 12);
        let (out, saved) = decode(dims, Isa::Scalar, &inputs);
        for isa in Isa::available() {
            for threads in 1..=3 {
                let mut bench = Bench::new(dims, threads, isa, 1, 12);
                assert_eq!(bits(&bench.one(&inputs, 0, 5)), bits(&out), "{dims:?}, {isa:?}, {threads} threads");
                assert_eq!(bench.layer.history.logged(0), 7);
                bench.fold(0, 7);
                assert_eq!(bench.saved(0), saved[12]);
            }
        }
    }
}

#[test]
fn a_prompt_may_be_cut_anywhere() {
    let inputs = inputs(&mut Noise::new(44), &DIMS, 33);
    let (out, saved) = decode(DIMS, Isa::best(), &inputs);
    for chunk in 1..=33 {
        let mut bench = Bench::new(DIMS, 2, Isa::best(), 1, 0);
        let mut got = Vec::new();
        let mut start = 0;
        while start < 33 {
            let end = (start + chunk).min(33);
            got.extend(bench.one(rows_of(&DIMS, &inputs, start..end), 0, end - start));
            assert_eq!(bench.saved(0), saved[end], "chunks of {chunk}");
            start = end;
        }
        assert_eq!(bits(&got), bits(&out));
    }
}

/// Windows of every width up to 33 rows, all of it drafts but the anchor.
#[test]
fn a_window_of_any_width_gives_the_bits_of_single_steps() {
    let inputs = inputs(&mut Noise::new(49), &DIMS, 37);
    let (out, saved) = decode(DIMS, Isa::best(), &inputs);
    for width in 1..=33 {
        let mut bench = Bench::new(DIMS, 2, Isa::best(), 2, 32);
        bench.one(rows_of(&DIMS, &inputs, 0..4), 0, 4);
        let got = bench.one(rows_of(&DIMS, &inputs, 4..4 + width), 0, 1);
        assert_eq!(bits(&got), bits(&out[4 * DIMS.inner()..(4 + width) * DIMS.inner()]), "{width} rows");
        for accepted in [0, width / 2, width - 1] {
            bench.layer.history.copy_slot(0, 1);
            bench.fold(1, accepted);
            assert_eq!(bench.saved(1), saved[5 + accepted], "{accepted} of {width} rows");
        }
    }
}

/// Drafts of any number, any of them accepted, folds at any time: state, tail and outputs are those of plain decode.
#[test]
fn windows_rejections_and_folds_leave_no_trace() {
    for seed in 0..40 {
        let mut noise = Noise::new(100 + seed);
        let (rows, width) = (230, DIMS.inner());
        let truth = inputs(&mut noise, &DIMS, rows);
        let (out, saved) = decode(DIMS, Isa::best(), &truth);
        let mut bench = Bench::new(DIMS, 1 + noise.below(3), Isa::best(), 1, 64);
        for w in windows(&mut noise, rows, 64) {
            let mut window = rows_of(&DIMS, &truth, w.rows.clone()).to_vec();
            window.extend(inputs(&mut noise, &DIMS, w.rejected));
            let got = bench.one(&window, w.log_len, w.committed);
            let range = w.rows.start * width..w.rows.end * width;
            assert_eq!(bits(&got[..range.len()]), bits(&out[range]), "seed {seed}, {w:?}");
            if let Some(logged) = w.fold {
                bench.fold(0, logged);
                assert_eq!(bench.saved(0), saved[w.rows.end], "seed {seed}, {w:?}");
            }
        }
    }
}

#[test]
fn slots_in_one_pass_are_independent() {
    let mut noise = Noise::new(45);
    let lens = [9, 4, 17];
    let width = DIMS.inner();
    // Slots of different pasts: the last one has rows in its log.
    let parts: Vec<Vec<f32>> = lens.iter().map(|&len| inputs(&mut noise, &DIMS, len)).collect();
    let mut bench = Bench::new(DIMS, 3, Isa::best(), 3, 32);
    let before = StateSegment { slot: 0, rows: 0..6, log_len: 0, committed: 2 };
    bench.pass(&[before], rows_of(&DIMS, &parts[2], 0..6));
    let mut all = inputs(&mut noise, &DIMS, 2); // rows of nobody
    let mut segments = Vec::new();
    for (i, (part, len)) in parts.iter().zip(lens).enumerate() {
        let (first, log_len) = if i == 2 { (5, 3) } else { (0, 0) };
        let start = all.len() / DIMS.projected();
        segments.push(StateSegment { slot: 2 - i, rows: start..start + len - first, log_len, committed: i });
        all.extend(rows_of(&DIMS, part, first..len));
    }
    let got = bench.pass(&segments, &all);
    assert!(got[..2 * width].iter().all(|x| x.is_nan()), "rows of no segment stay as they are");
    for ((segment, part), len) in segments.iter().zip(&parts).zip(lens) {
        let (out, saved) = decode(DIMS, Isa::best(), part);
        let tail = &out[out.len() - segment.rows.len() * width..];
        assert_eq!(bits(&got[segment.rows.start * width..segment.rows.end * width]), bits(tail));
        bench.fold(segment.slot, bench.layer.history.logged(segment.slot));
        assert_eq!(bench.saved(segment.slot), saved[len]);
    }
}

#[test]
fn a_slot_is_reset_copied_saved_and_restored_exactly() {
    let mut noise = Noise::new(46);
    let rows = inputs(&mut noise, &DIMS, 20);
    let (out, saved) = decode(DIMS, Isa::best(), &rows);
    let width = DIMS.inner();
    let mut bench = Bench::new(DIMS, 2, Isa::best(), 2, 16);
    let segment = |slot, log_len, rows, committed| StateSegment { slot, rows: 0..rows, log_len, committed };
    // Dirty both slots, then start over.
    for slot in 0..2 {
        bench.pass(&[segment(slot, 0, 7, 3)], &inputs(&mut noise, &DIMS, 7));
    }
    bench.layer.history.reset(0);
    bench.one(rows_of(&DIMS, &rows, 0..10), 0, 6);
    // Fork with rows in the log; both go on alike, the fork after losing one row.
    bench.layer.history.copy_slot(0, 1);
    let got = bench.pass(&[segment(0, 4, 10, 10)], rows_of(&DIMS, &rows, 10..20));
    assert_eq!(bits(&got), bits(&out[10 * width..]));
    assert_eq!(bench.saved(0), saved[20]);
    let got = bench.pass(&[segment(1, 3, 11, 11)], rows_of(&DIMS, &rows, 9..20));
    assert_eq!(bits(&got), bits(&out[9 * width..]));
    // A checkpoint at 20, then other rows, then back.
    let mut checkpoint = Vec::new();
    bench.layer.history.save(1, &mut checkpoint);
    assert_eq!(checkpoint.len(), bench.layer.history.saved_len());
    bench.pass(&[segment(1, 0, 5, 5)], &inputs(&mut noise, &DIMS, 5));
    assert_ne!(bench.saved(1), saved[20]);
    bench.layer.history.restore(1, &checkpoint);
    assert_eq!(bench.saved(1), saved[20]);
    let next = inputs(&mut noise, &DIMS, 3);
    let again = bench.pass(&[segment(1, 0, 3, 3)], &next);
    assert_eq!(bits(&again), bits(&bench.pass(&[segment(0, 0, 3, 3)], &next)));
}

#[test]
#[should_panic(expected = "5 accepted of 4 logged rows")]
fn a_rollback_past_the_log_is_refused() {
    let rows = inputs(&mut Noise::new(47), &DIMS, 5);
    let mut bench = Bench::new(DIMS, 1, Isa::best(), 1, 4);
    bench.one(&rows, 0, 1);
    bench.one(&rows, 5, 1);
}

#[test]
#[should_panic(expected = "rows that are not folded")]
fn saving_with_logged_rows_is_refused() {
    let rows = inputs(&mut Noise::new(48), &DIMS, 2);
    let mut bench = Bench::new(DIMS, 1, Isa::best(), 1, 4);
    bench.one(&rows, 0, 1);
    bench.saved(0);
}
