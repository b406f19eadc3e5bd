use super::{ConvDims, ConvLayer, ConvWeights, dilated_conv, fold};
use crate::cpu::detect::Isa;
use crate::cpu::pool::Pool;
use crate::ops::exp::exp;
use crate::ops::history::StateSegment;
use crate::test_noise::{Noise, bits};
use crate::test_windows::windows;

const DIMS: ConvDims = ConvDims { channels: 40, taps: 4, dilation: 3 };

struct Bench {
    dims: ConvDims,
    pool: Pool,
    isa: Isa,
    weights: ConvWeights,
    layer: ConvLayer,
}

impl Bench {
    fn new(dims: ConvDims, threads: usize, isa: Isa, slots: usize, log_capacity: usize) -> Self {
        let weights = ConvWeights::new(&dims, &Noise::new(90).vec(dims.channels * dims.taps));
        Self { dims, pool: Pool::new(threads), isa, weights, layer: ConvLayer::new(dims, slots, log_capacity) }
    }

    fn pass(&mut self, segments: &[StateSegment], x: &[f32]) -> Vec<f32> {
        let mut dst = vec![f32::NAN; x.len()];
        dilated_conv(&self.pool, self.isa, &self.weights, &mut self.layer, segments, x, &mut dst);
        dst
    }

    fn one(&mut self, slot: usize, x: &[f32], log_len: usize, committed: usize) -> Vec<f32> {
        let rows = 0..x.len() / self.dims.channels;
        self.pass(&[StateSegment { slot, rows, log_len, committed }], x)
    }

    fn fold(&mut self, slot: usize, log_len: usize) {
        fold(&self.pool, self.isa, &self.weights, &mut self.layer, &[(slot, log_len)]);
    }

    fn saved(&self, slot: usize) -> Vec<f32> {
        let mut out = Vec::new();
        self.layer.history.save(slot, &mut out);
        out
    }
}

/// The formula over a whole text.
fn by_the_page(dims: &ConvDims, x: &[f32]) -> Vec<f32> {
    let conv = Noise::new(90).vec(dims.channels * dims.taps);
    let ConvDims { channels, taps, dilation } = *dims;
    let mut out = Vec::new();
    for t in 0..x.len() / channels {
        for c in 0..channels {
            let at = |k: usize| t.checked_sub((taps - 1 - k) * dilation).map_or(0.0, |t| x[t * channels + c]);
            let mut sum = at(0) * conv[c * taps];
            for k in 1..taps {
                sum = at(k).mul_add(conv[c * taps + k], sum);
            }
            out.push(sum / (1.0 + exp(-sum)));
        }
    }
    out
}

/// What is remembered after `len` rows: the last raw rows, oldest first, zeros before the start.
fn remembered(dims: &ConvDims, x: &[f32], len: usize) -> Vec<f32> {
    let rows = (dims.taps - 1) * dims.dilation;
    let mut out = vec![0.0; rows.saturating_sub(len) * dims.channels];
    out.extend_from_slice(&x[len.saturating_sub(rows) * dims.channels..len * dims.channels]);
    out
}

#[test]
fn every_shape_cut_instruction_set_and_thread_count_gives_the_formula() {
    let mut noise = Noise::new(91);
    for (channels, taps, dilation) in [(40, 4, 3), (256, 4, 3), (7, 1, 3), (16, 2, 1), (33, 3, 5), (8, 4, 8)] {
        let dims = ConvDims { channels, taps, dilation };
        let x = noise.vec(50 * channels);
        let expected = by_the_page(&dims, &x);
        for isa in Isa::available() {
            for chunk in [1, 2, 3, 7, 20, 50] {
                let mut bench = Bench::new(dims, 1 + noise.below(3), isa, 1, 0);
                let mut out = Vec::new();
                for part in x.chunks(chunk * channels) {
                    out.extend(bench.one(0, part, 0, part.len() / channels));
                    let len = out.len() / channels;
                    assert_eq!(bits(&bench.saved(0)), bits(&remembered(&dims, &x, len)), "{dims:?} after {len}");
                }
                assert_eq!(bits(&out), bits(&expected), "{dims:?}, chunks of {chunk}, {isa:?}");
            }
        }
    }
}

/// Drafts of any number, any of them accepted, folds at any time.
#[test]
fn windows_rejections_and_folds_leave_no_trace() {
    for seed in 0..40 {
        let mut noise = Noise::new(300 + seed);
        let (rows, channels) = (150, DIMS.channels);
        let truth = noise.vec(rows * channels);
        let expected = by_the_page(&DIMS, &truth);
        let mut bench = Bench::new(DIMS, 1 + noise.below(3), Isa::best(), 1, 40);
        for w in windows(&mut noise, rows, 40) {
            let range = w.rows.start * channels..w.rows.end * channels;
            let mut x = truth[range.clone()].to_vec();
            x.extend(noise.vec(w.rejected * channels));
            let got = bench.one(0, &x, w.log_len, w.committed);
            assert_eq!(bits(&got[..range.len()]), bits(&expected[range]), "seed {seed}, {w:?}");
            if let Some(logged) = w.fold {
                bench.fold(0, logged);
                assert_eq!(bits(&bench.saved(0)), bits(&remembered(&DIMS, &truth, w.rows.end)), "seed {seed}, {w:?}");
            }
        }
    }
}

#[test]
fn slots_are_independent_and_are_copied_and_restored_exactly() {
    let mut noise = Noise::new(92);
    let channels = DIMS.channels;
    let (a, b) = (noise.vec(30 * channels), noise.vec(20 * channels));
    let mut bench = Bench::new(DIMS, 2, Isa::best(), 3, 16);
    bench.one(2, &noise.vec(9 * channels), 0, 2); // dirt, which a reset must not leave
    bench.layer.history.reset(2);
    let mut x = noise.vec(channels); // a row of nobody
    x.extend_from_slice(&a[..20 * channels]);
    x.extend_from_slice(&b[..10 * channels]);
    let segments = [
        StateSegment { slot: 2, rows: 21..31, log_len: 0, committed: 6 },
        StateSegment { slot: 0, rows: 1..21, log_len: 0, committed: 15 },
    ];
    let got = bench.pass(&segments, &x);
    assert!(got[..channels].iter().all(|x| x.is_nan()), "rows of no segment stay as they are");
    assert_eq!(bits(&got[channels..21 * channels]), bits(&by_the_page(&DIMS, &a)[..20 * channels]));
    assert_eq!(bits(&got[21 * channels..]), bits(&by_the_page(&DIMS, &b)[..10 * channels]));
    bench.layer.history.copy_slot(0, 1);
    for (slot, log_len) in [(0, 5), (1, 3)] {
        let from = 15 + log_len;
        let got = bench.one(slot, &a[from * channels..], log_len, 30 - from);
        assert_eq!(bits(&got), bits(&by_the_page(&DIMS, &a)[from * channels..]), "slot {slot}");
    }
    let checkpoint = bench.saved(0);
    bench.one(0, &noise.vec(4 * channels), 0, 4);
    bench.layer.history.restore(0, &checkpoint);
    assert_eq!(bits(&bench.saved(0)), bits(&remembered(&DIMS, &a, 30)));
    assert_eq!(checkpoint.len(), bench.layer.history.saved_len());
    let bytes = DIMS.layer_bytes(3, 16);
    assert_eq!((bytes.state, bytes.log, bytes.saved), (3 * 4 * channels * 9, 3 * 4 * channels * 16, 4 * channels * 9));
}

#[test]
#[should_panic(expected = "5 accepted of 4 logged rows")]
fn a_rollback_past_the_log_is_refused() {
    let mut bench = Bench::new(DIMS, 1, Isa::best(), 1, 4);
    let x = vec![1.0; 5 * DIMS.channels];
    bench.one(0, &x, 0, 1);
    bench.one(0, &x, 5, 1);
}
