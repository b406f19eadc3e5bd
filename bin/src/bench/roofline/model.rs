//! A model held against its machine.

use std::collections::BTreeMap;

use engine::exec::Pool;
use engine::limits::STEP_ROWS_MAX;
use engine::model::plan::{Plan, RowWeights};
use engine::probe::Quant;
use serde::Serialize;

use super::machine::{LARGE, Peak, Reader};
use crate::bench::speed::Speed;

/// A model, and its times.
#[derive(Clone, Debug)]
pub struct Timed {
    /// Its name.
    pub name: String,
    /// Bytes that a step of one row reads.
    row_bytes: u64,
    weights: RowWeights,
    /// Tokens of the prompt.
    prefill: usize,
    speed: Speed,
}

impl Timed {
    /// `speed` was measured with a prompt of `prefill` tokens.
    pub fn new(name: String, plan: &Plan, prefill: usize, speed: Speed) -> Self {
        Self { name, row_bytes: plan.row_bytes(), weights: plan.row_weights(), prefill, speed }
    }

    /// A plain read of as many bytes as a step of one row reads, again and again: of caches, if they hold them.
    pub(super) fn read_gb_s(&self, pool: &Pool) -> f64 {
        Reader::new(LARGE, true).gb_s(pool, self.row_bytes)
    }
}

/// How near a model is to what its machine can do.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ModelRoof {
    /// Its name.
    pub name: String,
    /// Bytes of weights that a step of one row reads, as the file stores them: of experts those that it chooses.
    pub row_bytes: u64,
    /// Plain read of as many bytes by all threads, again and again.
    pub read_gb_s: f64,
    /// Tokens a second if a step were that read.
    pub bound_tok_s: f64,
    /// Tokens of plain decoding a second.
    pub decode_tok_s: f64,
    /// Share of the bound.
    pub decode_share: f64,
    /// Rows of a step -> its milliseconds.
    pub rows_ms: BTreeMap<usize, f64>,
    /// c(rows): a step of so many rows in steps of one.
    pub cost: BTreeMap<usize, f64>,
    /// Prompt tokens a second.
    pub prefill_tok_s: f64,
    /// Share that the products of a prompt would take of its time at the peak: of bytes for quantised weights, of single
    /// precision for others. The rest is what is slower than the peak, and what is no product: attention, states, norms,
    /// the cache of an MTP block.
    pub prefill_share: f64,
}

impl ModelRoof {
    pub(super) fn of(timed: &Timed, read_gb_s: f64, peak: Peak) -> Self {
        let Timed { name, row_bytes, weights, prefill, speed } = timed;
        let bound_tok_s = read_gb_s * 1e9 / *row_bytes as f64;
        let step = speed.rows_ms.get(&1).copied();
        let cost = step.map(|one| speed.rows_ms.iter().map(|(rows, ms)| (*rows, ms / one)).collect());
        let g = |(quant, weights): &(Quant, u64)| {
            let float = quant.block_len() == 1;
            *weights as f64 / 1e9 / if float { peak.fma_g } else { peak.int8_g }
        };
        let trunk = weights.trunk.iter().map(g).sum::<f64>() * *prefill as f64;
        let head = weights.head.iter().map(g).sum::<f64>() * prefill.div_ceil(STEP_ROWS_MAX) as f64;
        Self {
            name: name.clone(),
            row_bytes: *row_bytes,
            read_gb_s,
            bound_tok_s,
            decode_tok_s: speed.decode_tok_s,
            decode_share: speed.decode_tok_s / bound_tok_s,
            rows_ms: speed.rows_ms.clone(),
            cost: cost.unwrap_or_default(),
            prefill_tok_s: speed.prefill_tok_s,
            prefill_share: (trunk + head) * speed.prefill_tok_s / *prefill as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_read_and_of_the_peak() {
        let weights = RowWeights {
            trunk: vec![(Quant::Q8_0, 1_000_000_000), (Quant::F32, 100_000_000)],
            head: vec![(Quant::Q8_0, 512_000_000)],
        };
        let rows_ms = BTreeMap::from([(1, 20.0), (2, 22.0), (8, 50.0)]);
        let speed = Speed { decode_tok_s: 4.0, prefill_tok_s: 50.0, rows_ms, threads: 2 };
        let timed = Timed { name: "m".into(), row_bytes: 2_000_000_000, weights, prefill: STEP_ROWS_MAX, speed };
        let roof = ModelRoof::of(&timed, 16.0, Peak { threads: 2, int8_g: 100.0, fma_g: 20.0 });
        assert_eq!((roof.bound_tok_s, roof.decode_share), (8.0, 0.5));
        assert_eq!(roof.cost, BTreeMap::from([(1, 1.0), (2, 1.1), (8, 2.5)]));
        // A token: 10 ms of bytes and 5 ms of floats, and of a chunk's head 5.12 ms; 20 ms were measured.
        let expected = (15.0 + 5.12 / STEP_ROWS_MAX as f64) / 20.0;
        assert!((roof.prefill_share - expected).abs() < 1e-12, "{}", roof.prefill_share);
    }
}
