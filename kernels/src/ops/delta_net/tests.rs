use super::{DeltaInputs, DeltaScratch, DeltaWeights, delta_net, fold};
use crate::cpu::detect::Isa;
use crate::cpu::pool::Pool;
use crate::ops::delta_state::{DeltaDims, DeltaLayer, HeadMap, OutputGate};
use crate::ops::history::StateSegment;
use crate::test_noise::{Noise, bits};
use crate::test_windows::windows;

/// Three value heads per key head: two could not tell orders apart.
const DIMS: DeltaDims = DeltaDims {
    key_heads: 2,
    value_heads: 6,
    key_dim: 16,
    value_dim: 24,
    conv_taps: 4,
    eps: 1e-6,
    head_map: HeadMap::Tiled,
    output_gate: OutputGate::Silu,
};

fn weights(noise: &mut Noise, dims: &DeltaDims) -> DeltaWeights {
    let conv = noise.vec(dims.channels() * dims.conv_taps);
    let a: Vec<f32> = (0..dims.value_heads).map(|_| -0.05 - noise.signed().abs()).collect();
    DeltaWeights::new(dims, &conv, &a, &noise.vec(dims.value_heads), &noise.vec(dims.value_dim))
}

/// Inputs of some rows.
#[derive(Clone, Default)]
struct Inputs {
    qkv: Vec<f32>,
    z: Vec<f32>,
    alpha: Vec<f32>,
    beta: Vec<f32>,
}

impl Inputs {
    fn noise(noise: &mut Noise, dims: &DeltaDims, rows: usize) -> Self {
        Self {
            qkv: noise.vec(rows * dims.channels()),
            z: noise.vec(rows * dims.value_width()),
            alpha: noise.vec(rows * dims.value_heads),
            beta: noise.vec(rows * dims.value_heads),
        }
    }

    fn rows(&self, dims: &DeltaDims, rows: std::ops::Range<usize>) -> Self {
        let part = |x: &[f32], width: usize| x[rows.start * width..rows.end * width].to_vec();
        Self {
            qkv: part(&self.qkv, dims.channels()),
            z: part(&self.z, dims.value_width()),
            alpha: part(&self.alpha, dims.value_heads),
            beta: part(&self.beta, dims.value_heads),
        }
    }

    fn append(&mut self, other: &Self) {
        self.qkv.extend_from_slice(&other.qkv);
        self.z.extend_from_slice(&other.z);
        self.alpha.extend_from_slice(&other.alpha);
        self.beta.extend_from_slice(&other.beta);
    }

    fn borrow(&self) -> DeltaInputs<'_> {
        DeltaInputs { qkv: &self.qkv, z: &self.z, alpha: &self.alpha, beta: &self.beta }
    }
}

/// A layer with what a call needs.
struct Bench {
    dims: DeltaDims,
    pool: Pool,
    isa: Isa,
    weights: DeltaWeights,
    layer: DeltaLayer,
    scratch: DeltaScratch,
}

impl Bench {
    fn new(dims: DeltaDims, threads: usize, isa: Isa, slots: usize, log_capacity: usize) -> Self {
        let weights = weights(&mut Noise::new(41), &dims);
        let layer = DeltaLayer::new(dims, slots, log_capacity);
        Self { dims, pool: Pool::new(threads), isa, weights, layer, scratch: DeltaScratch::default() }
    }

    fn pass(&mut self, segments: &[StateSegment], inputs: &Inputs) -> Vec<f32> {
        let mut dst = vec![f32::NAN; inputs.z.len()];
        let Self { pool, isa, weights, layer, scratch, .. } = self;
        delta_net(pool, *isa, weights, layer, segments, inputs.borrow(), scratch, &mut dst);
        dst
    }

    /// One segment on slot 0.
    fn one(&mut self, inputs: &Inputs, log_len: usize, committed: usize) -> Vec<f32> {
        let rows = inputs.alpha.len() / self.dims.value_heads;
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
fn decode(dims: DeltaDims, isa: Isa, inputs: &Inputs, rows: usize) -> (Vec<f32>, Vec<Vec<u32>>) {
    let mut bench = Bench::new(dims, 1, isa, 1, 0);
    let mut saved = vec![bench.saved(0)];
    let mut out = Vec::new();
    for row in 0..rows {
        out.extend(bench.one(&inputs.rows(&dims, row..row + 1), 0, 1));
        saved.push(bench.saved(0));
    }
    (out, saved)
}

/// The formulas of the reference in double precision, heads in file order.
fn in_double(dims: &DeltaDims, weights: &DeltaWeights, inputs: &Inputs, rows: usize) -> Vec<f64> {
    let (channels, taps, heads) = (dims.channels(), dims.conv_taps, dims.value_heads);
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let mut state = vec![0.0; dims.state_len()]; // [p][j = value][i = key]
    let mut out = Vec::new();
    for t in 0..rows {
        let mixed: Vec<f64> = (0..channels)
            .map(|c| {
                let sum = (0..taps).filter(|&j| t + j + 1 >= taps).map(|j| {
                    let x = inputs.qkv[(t + j + 1 - taps) * channels + c];
                    f64::from(weights.conv[j * channels + c]) * f64::from(x)
                });
                silu(sum.sum())
            })
            .collect();
        let unit = |x: &[f64]| {
            let norm = (x.iter().map(|x| x * x).sum::<f64>() + f64::from(dims.eps)).sqrt();
            x.iter().map(|x| x / norm).collect::<Vec<f64>>()
        };
        for p in 0..heads {
            let g = match dims.head_map {
                HeadMap::Tiled => p % dims.key_heads,
                HeadMap::Grouped => p * dims.key_heads / heads,
            };
            let (kd, hk, hv) = (dims.key_width(), dims.key_dim, dims.value_dim);
            let (q, k) = (unit(&mixed[g * hk..][..hk]), unit(&mixed[kd + g * hk..][..hk]));
            let v = &mixed[2 * kd + p * hv..][..hv];
            let x = f64::from(inputs.alpha[t * heads + p]) + f64::from(weights.dt[p]);
            let decay = (f64::from(weights.a[p]) * (1.0 + x.exp()).ln()).exp();
            let beta = 1.0 / (1.0 + (-f64::from(inputs.beta[t * heads + p])).exp());
            let o: Vec<f64> = (0..hv)
                .map(|j| {
                    let m = &mut state[(p * hv + j) * hk..][..hk];
                    m.iter_mut().for_each(|m| *m *= decay);
                    let u: f64 = m.iter().zip(&k).map(|(m, k)| m * k).sum();
                    let delta = beta * (v[j] - u);
                    m.iter_mut().zip(&k).for_each(|(m, k)| *m += delta * k);
                    m.iter().zip(&q).map(|(m, q)| m * q).sum::<f64>() / (hk as f64).sqrt()
                })
                .collect();
            let mean = o.iter().map(|o| o * o).sum::<f64>() / hv as f64;
            for (j, o) in o.iter().enumerate() {
                let z = f64::from(inputs.z[(t * heads + p) * hv + j]);
                let gate = match dims.output_gate {
                    OutputGate::Silu => silu(z),
                    OutputGate::Sigmoid => 1.0 / (1.0 + (-z).exp()),
                };
                out.push(o / (mean + f64::from(dims.eps)).sqrt() * f64::from(weights.norm[j]) * gate);
            }
        }
    }
    out
}

#[test]
fn close_to_the_formulas_in_double_precision() {
    for (head_map, output_gate) in [
        (HeadMap::Tiled, OutputGate::Silu),
        (HeadMap::Grouped, OutputGate::Silu),
        (HeadMap::Tiled, OutputGate::Sigmoid),
    ] {
        for (key_dim, value_dim, conv_taps) in [(16, 24, 4), (32, 32, 2), (8, 40, 1), (128, 128, 4), (20, 7, 3)] {
            let dims = DeltaDims { key_dim, value_dim, conv_taps, head_map, output_gate, ..DIMS };
            let mut noise = Noise::new(42);
            let inputs = Inputs::noise(&mut noise, &dims, 40);
            let (got, _) = decode(dims, Isa::best(), &inputs, 40);
            let exact = in_double(&dims, &weights(&mut Noise::new(41), &dims), &inputs, 40);
            let error: f64 = got.iter().zip(&exact).map(|(&x, y)| (f64::from(x) - y).powi(2)).sum();
            let power: f64 = exact.iter().map(|x| x * x).sum();
            assert!(error / power < 1e-11, "{dims:?}: {}", error / power);
        }
    }
}

#[test]
fn every_instruction_set_and_thread_count_gives_the_bits_of_plain_rust() {
    for (key_dim, value_dim) in [(16, 24), (32, 64), (16, 16), (24, 33), (64, 128)] {
        let output_gate = if value_dim == 33 { OutputGate::Sigmoid } else { OutputGate::Silu };
        let dims = DeltaDims { key_dim, value_dim, output_gate, ..DIMS };
        let inputs = Inputs::noise(&mut Noise::new(43), &dims, 12);
        let (out, saved) = decode(dims, Isa::Scalar, &inputs, 12);
        for isa in Isa::available() {
            for threads in 1..=3 {
                let mut bench = Bench::new(dims, threads, isa, 1, 12);
                assert_eq!(bits(&bench.one(&inputs, 0, 5)), bits(&out));
                assert_eq!(bench.layer.history.logged(0), 7);
                bench.fold(0, 7);
                assert_eq!(bench.saved(0), saved[12]);
            }
        }
    }
}

#[test]
fn a_prompt_may_be_cut_anywhere() {
    let inputs = Inputs::noise(&mut Noise::new(44), &DIMS, 33);
    let (out, saved) = decode(DIMS, Isa::best(), &inputs, 33);
    for chunk in 1..=33 {
        let mut bench = Bench::new(DIMS, 2, Isa::best(), 1, 0);
        let mut got = Vec::new();
        let mut start = 0;
        while start < 33 {
            let end = (start + chunk).min(33);
            got.extend(bench.one(&inputs.rows(&DIMS, start..end), 0, end - start));
            assert_eq!(bench.saved(0), saved[end], "chunks of {chunk}");
            start = end;
        }
        assert_eq!(bits(&got), bits(&out));
    }
}

/// Drafts of any number, any of them accepted, folds at any time: state, tail and outputs are those of plain decode.
#[test]
fn windows_rejections_and_folds_leave_no_trace() {
    for seed in 0..40 {
        let mut noise = Noise::new(100 + seed);
        let (rows, width) = (230, DIMS.value_width());
        let truth = Inputs::noise(&mut noise, &DIMS, rows);
        let (out, saved) = decode(DIMS, Isa::best(), &truth, rows);
        let mut bench = Bench::new(DIMS, 1 + noise.below(3), Isa::best(), 1, 64);
        for w in windows(&mut noise, rows, 64) {
            let mut inputs = truth.rows(&DIMS, w.rows.clone());
            inputs.append(&Inputs::noise(&mut noise, &DIMS, w.rejected));
            let got = bench.one(&inputs, w.log_len, w.committed);
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
    let inputs: Vec<Inputs> = lens.iter().map(|&len| Inputs::noise(&mut noise, &DIMS, len)).collect();
    let mut all = Inputs::noise(&mut noise, &DIMS, 2); // rows of nobody
    let mut segments = Vec::new();
    for (i, (part, len)) in inputs.iter().zip(lens).enumerate() {
        let start = all.alpha.len() / DIMS.value_heads;
        segments.push(StateSegment { slot: 2 - i, rows: start..start + len, log_len: 0, committed: i });
        all.append(part);
    }
    let mut bench = Bench::new(DIMS, 3, Isa::best(), 3, 32);
    let got = bench.pass(&segments, &all);
    let width = DIMS.value_width();
    assert!(got[..2 * width].iter().all(|x| x.is_nan()), "rows of no segment stay as they are");
    for ((segment, inputs), len) in segments.iter().zip(&inputs).zip(lens) {
        let (out, saved) = decode(DIMS, Isa::best(), inputs, len);
        assert_eq!(bits(&got[segment.rows.start * width..segment.rows.end * width]), bits(&out));
        let log_len = bench.layer.history.logged(segment.slot);
        bench.fold(segment.slot, log_len);
        assert_eq!(bench.saved(segment.slot), saved[len]);
    }
}

#[test]
fn a_slot_is_reset_copied_saved_and_restored_exactly() {
    let mut noise = Noise::new(46);
    let inputs = Inputs::noise(&mut noise, &DIMS, 20);
    let (out, saved) = decode(DIMS, Isa::best(), &inputs, 20);
    let width = DIMS.value_width();
    let mut bench = Bench::new(DIMS, 2, Isa::best(), 2, 16);
    // Dirty both slots, then start over.
    for slot in 0..2 {
        let dirt = Inputs::noise(&mut noise, &DIMS, 7);
        bench.pass(&[StateSegment { slot, rows: 0..7, log_len: 0, committed: 3 }], &dirt);
    }
    bench.layer.history.reset(0);
    bench.one(&inputs.rows(&DIMS, 0..10), 0, 6);
    // Fork with rows in the log; both go on alike, the fork after losing one row.
    bench.layer.history.copy_slot(0, 1);
    let segment = |slot, log_len, rows| StateSegment { slot, rows: 0..rows, log_len, committed: rows };
    let got = bench.pass(&[segment(0, 4, 10)], &inputs.rows(&DIMS, 10..20));
    assert_eq!(bits(&got), bits(&out[10 * width..]));
    assert_eq!(bench.saved(0), saved[20]);
    let got = bench.pass(&[segment(1, 3, 11)], &inputs.rows(&DIMS, 9..20));
    assert_eq!(bits(&got), bits(&out[9 * width..]));
    // A checkpoint at 20, then other rows, then back.
    let mut checkpoint = Vec::new();
    bench.layer.history.save(1, &mut checkpoint);
    assert_eq!(checkpoint.len(), bench.layer.history.saved_len());
    bench.pass(&[segment(1, 0, 5)], &Inputs::noise(&mut noise, &DIMS, 5));
    assert_ne!(bench.saved(1), saved[20]);
    bench.layer.history.restore(1, &checkpoint);
    assert_eq!(bench.saved(1), saved[20]);
    let next = Inputs::noise(&mut noise, &DIMS, 3);
    let again = bench.pass(&[segment(1, 0, 3)], &next);
    assert_eq!(bits(&again), bits(&bench.pass(&[segment(0, 0, 3)], &next)));
}

#[test]
#[should_panic(expected = "5 accepted of 4 logged rows")]
fn a_rollback_past_the_log_is_refused() {
    let inputs = Inputs::noise(&mut Noise::new(47), &DIMS, 5);
    let mut bench = Bench::new(DIMS, 1, Isa::best(), 1, 4);
    bench.one(&inputs, 0, 1);
    bench.one(&inputs, 5, 1);
}

#[test]
#[should_panic(expected = "rows that are not folded")]
fn saving_with_logged_rows_is_refused() {
    let inputs = Inputs::noise(&mut Noise::new(48), &DIMS, 2);
    let mut bench = Bench::new(DIMS, 1, Isa::best(), 1, 4);
    bench.one(&inputs, 0, 1);
    bench.saved(0);
}

/// Value heads in the order of the checkpoint (those of one key head are neighbours) and in the order that the converter
/// gives them (head j of key head g at `j * key_heads + g`) are the same heads, bit for bit. A ratio of 1 keeps the order;
/// 2 cannot tell an order from its inverse.
#[test]
fn the_tiled_order_is_the_converted_grouped_one() {
    let rows = 9;
    for (key_heads, ratio) in [(2, 1), (2, 2), (2, 3), (3, 3), (2, 4), (4, 2), (3, 4)] {
        let grouped = DeltaDims { key_heads, value_heads: key_heads * ratio, head_map: HeadMap::Grouped, ..DIMS };
        let tiled = DeltaDims { head_map: HeadMap::Tiled, ..grouped };
        let heads = grouped.value_heads;
        // Moves items of `width` numbers, one a value head, behind `before` numbers that stay; line by line.
        let convert = |x: &[f32], before: usize, width: usize| -> Vec<f32> {
            let mut out = x.to_vec();
            let lines = x.chunks_exact(before + heads * width).zip(out.chunks_exact_mut(before + heads * width));
            for (src, dst) in lines {
                for (h, head) in src[before..].chunks_exact(width).enumerate() {
                    let (g, j) = (h / ratio, h % ratio);
                    dst[before + (j * key_heads + g) * width..][..width].copy_from_slice(head);
                }
            }
            out
        };
        let mut noise = Noise::new(45);
        let conv = noise.vec(grouped.channels() * grouped.conv_taps);
        let a: Vec<f32> = (0..heads).map(|_| -0.05 - noise.signed().abs()).collect();
        let (dt, norm) = (noise.vec(heads), noise.vec(grouped.value_dim));
        let inputs = Inputs::noise(&mut noise, &grouped, rows);
        let keys = 2 * grouped.key_width();
        let taps = grouped.conv_taps;
        let run = |dims: DeltaDims, weights: DeltaWeights, inputs: &Inputs| {
            let mut bench = Bench { weights, ..Bench::new(dims, 1, Isa::best(), 1, 0) };
            bench.one(inputs, 0, rows)
        };
        let expected = run(grouped, DeltaWeights::new(&grouped, &conv, &a, &dt, &norm), &inputs);
        let conv = convert(&conv, keys * taps, grouped.value_dim * taps);
        let weights = DeltaWeights::new(&tiled, &conv, &convert(&a, 0, 1), &convert(&dt, 0, 1), &norm);
        let converted = Inputs {
            qkv: convert(&inputs.qkv, keys, grouped.value_dim),
            z: convert(&inputs.z, 0, grouped.value_dim),
            alpha: convert(&inputs.alpha, 0, 1),
            beta: convert(&inputs.beta, 0, 1),
        };
        let got = run(tiled, weights, &converted);
        assert_eq!(bits(&got), bits(&convert(&expected, 0, grouped.value_dim)), "{heads} heads on {key_heads}");
        if ratio > 1 {
            let weights = DeltaWeights::new(&grouped, &conv, &convert(&a, 0, 1), &convert(&dt, 0, 1), &norm);
            assert_ne!(bits(&run(grouped, weights, &converted)), bits(&got), "the orders differ");
        }
    }
}
