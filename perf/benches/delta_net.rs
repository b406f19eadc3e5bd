//! Gated delta net: a window in one sweep against as many single steps, the state too large for the cache.

use engine_kernels::ops::delta_net::{DeltaInputs, DeltaScratch, DeltaWeights, delta_net};
use engine_kernels::ops::delta_state::{DeltaDims, DeltaLayer, HeadMap, OutputGate};
use engine_kernels::ops::history::StateSegment;
use engine_kernels::{Isa, Pool};
use engine_perf::{floats, shortest};

/// Slots walked in turn: 64 states of 1 MiB.
const SLOTS: usize = 64;

fn main() {
    let dims = DeltaDims {
        key_heads: 16,
        value_heads: 16,
        key_dim: 128,
        value_dim: 128,
        conv_taps: 4,
        eps: 1e-6,
        head_map: HeadMap::Tiled,
        output_gate: OutputGate::Silu,
    };
    let heads = dims.value_heads;
    let pool = Pool::new(1);
    let a = vec![-0.5; heads];
    let weights = DeltaWeights::new(&dims, &floats(dims.channels() * 4), &a, &floats(heads), &floats(dims.value_dim));
    println!("16 heads of 128 x 128, {SLOTS} sequences in turn; whole op, convolution and output norm included");
    for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Scalar) {
        let mut layer = DeltaLayer::new(dims, SLOTS, 64);
        let mut scratch = DeltaScratch::default();
        for slot in 0..SLOTS {
            // Memory never written reads as one shared zero page.
            let touched = vec![0.1; layer.history.saved_len()];
            layer.history.restore(slot, &touched);
        }
        let mut single = None;
        for rows in [1, 2, 4, 8, 16, 33] {
            let qkv = floats(rows * dims.channels());
            let (z, gate) = (floats(rows * dims.value_width()), floats(rows * heads));
            let inputs = DeltaInputs { qkv: &qkv, z: &z, alpha: &gate, beta: &gate };
            let mut dst = vec![0.0; z.len()];
            // The tick's shape: the window of the tick before was accepted, the anchor is folded, the drafts logged.
            let mut replay = |log_len: usize, committed: usize| {
                let mut slot = 0;
                shortest(
                    6 * SLOTS,
                    &mut [&mut || {
                        let log_len = log_len.min(layer.history.logged(slot));
                        let segment = StateSegment { slot, rows: 0..rows, log_len, committed };
                        delta_net(&pool, isa, &weights, &mut layer, &[segment], inputs, &mut scratch, &mut dst);
                        slot = (slot + 1) % SLOTS;
                    }],
                )[0]
            };
            let prefill = replay(0, rows).as_secs_f64();
            let window = replay(0, 1).as_secs_f64();
            let accepted = replay(rows - 1, 1).as_secs_f64();
            let single = *single.get_or_insert(prefill);
            println!(
                "{isa:?} {rows:2} rows: prefill {:5.2} us a head, {:.2} of single steps · window {:.2} · window after one \
                 fully accepted {:.2}",
                prefill * 1e6 / heads as f64,
                prefill / single / rows as f64,
                window / single / rows as f64,
                accepted / single / rows as f64,
            );
        }
    }
}
