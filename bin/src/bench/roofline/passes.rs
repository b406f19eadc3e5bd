//! How fast the passes of a replay read their weights, beside plain reads.
//!
//! What is read is taken to be the weights alone, as the file stores them ([`Plan::row_bytes`]); keys, values and states
//! come on top. Two plain reads are timed with the run's workers: one of a buffer that no cache holds, and one of as many
//! bytes as a pass reads, over and over, which for a small model is a read of caches.

use std::collections::BTreeMap;

use engine::api::Strategy;
use engine::exec::Pool;
use engine::model::plan::Plan;

use super::machine::{LARGE, Reader};
use crate::bench::result::{BenchResult, RooflineFacts};

/// What a pass reads, known before a model is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reads {
    row_bytes: u64,
    /// Rows choose experts, so that wider passes read more.
    experts: bool,
}

impl Reads {
    /// Of a pass of `plan`.
    pub fn of(plan: &Plan) -> Self {
        Self { row_bytes: plan.row_bytes(), experts: plan.program.mixtures().next().is_some() }
    }

    /// Measures the machine with `threads` workers and holds the passes of `result` against it.
    pub fn facts(self, threads: usize, result: &BenchResult) -> RooflineFacts {
        let (memory_gb_s, weights_gb_s) = plain_reads(threads, self.row_bytes);
        let passes = passes_ms(result).into_iter().filter(|(rows, ms)| *ms > 0.0 && (*rows == 1 || !self.experts));
        let rows_gb_s = passes.map(|(rows, ms)| (rows, self.row_bytes as f64 / ms / 1e6)).collect();
        RooflineFacts { row_bytes: self.row_bytes, memory_gb_s, weights_gb_s, rows_gb_s }
    }
}

/// Milliseconds of passes by their rows, where passes of this machine were timed: those of the cost table, the quickest
/// arm's median, or of one session under `off` the time of a token.
fn passes_ms(result: &BenchResult) -> BTreeMap<usize, f64> {
    if let Some(cost) = &result.cost {
        return if cost.is_measured() { cost.rows_ms.clone() } else { BTreeMap::new() };
    }
    let mut out: BTreeMap<usize, f64> = BTreeMap::new();
    for (rows, times) in result.arms.iter().flat_map(|arm| &arm.pass_ms) {
        let least = out.entry(*rows).or_insert(times.p50);
        *least = least.min(times.p50);
    }
    let off = result.arms.iter().find(|arm| arm.strategy == Some(Strategy::Off) && arm.failed.is_none());
    let rate = off.map_or(0.0, |arm| arm.decode_tok_s.median);
    if out.is_empty() && result.run.concurrency == 1 && rate > 0.0 {
        out.insert(1, 1e3 / rate);
    }
    out
}

/// GB a second of plain reads by `threads` workers: of a large buffer, and of `bytes` again and again.
fn plain_reads(threads: usize, bytes: u64) -> (f64, f64) {
    let reader = Reader::new(LARGE, true);
    let pool = Pool::new(threads);
    (reader.gb_s(&pool, LARGE as u64), reader.gb_s(&pool, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::result::{Arm, CostFacts, Quantiles, Spread};

    #[test]
    fn passes_are_those_that_ran_here() {
        let rows_ms = BTreeMap::from([(1, 2.0), (8, 4.0)]);
        let cost = |origin: &str| Some(CostFacts { origin: origin.into(), rows_ms: rows_ms.clone(), draft_ms: 0.1 });
        let forced = BenchResult { cost: cost(CostFacts::MEASURED), ..BenchResult::default() };
        assert_eq!(passes_ms(&forced), rows_ms);
        assert!(
            passes_ms(&BenchResult { cost: cost("speed.json"), ..forced.clone() }).is_empty(),
            "of who knows where"
        );

        let q = |p50| Quantiles { p50, ..Quantiles::default() };
        let arm = |strategy, passes: &[(usize, f64)]| Arm {
            strategy: Some(strategy),
            decode_tok_s: Spread::of(vec![250.0]),
            pass_ms: passes.iter().map(|(rows, ms)| (*rows, q(*ms))).collect(),
            ..Arm::default()
        };
        let arms = vec![arm(Strategy::Off, &[(1, 3.0)]), arm(Strategy::Mtp, &[(1, 2.5), (4, 3.5)])];
        let mut result = BenchResult { arms, ..BenchResult::default() };
        result.run.concurrency = 1;
        assert_eq!(passes_ms(&result), BTreeMap::from([(1, 2.5), (4, 3.5)]));
        result.arms.iter_mut().for_each(|arm| arm.pass_ms.clear());
        assert_eq!(passes_ms(&result), BTreeMap::from([(1, 4.0)]), "a token is a pass");
        result.run.concurrency = 2;
        assert!(passes_ms(&result).is_empty(), "tokens of several sessions share passes");
    }

    #[test]
    fn a_read_is_bytes_by_time_and_experts_hide_wide_passes() {
        let cost = CostFacts {
            origin: CostFacts::MEASURED.into(),
            rows_ms: BTreeMap::from([(1, 2.0), (8, 4.0)]),
            ..CostFacts::default()
        };
        let result = BenchResult { cost: Some(cost), ..BenchResult::default() };
        let dense = Reads { row_bytes: 6_000_000, experts: false }.facts(1, &result);
        assert_eq!(dense.rows_gb_s, BTreeMap::from([(1, 3.0), (8, 1.5)]));
        assert!(dense.memory_gb_s > 0.0 && dense.weights_gb_s > 0.0 && dense.row_bytes == 6_000_000);
        let sparse = Reads { row_bytes: 6_000_000, experts: true }.facts(1, &result);
        assert_eq!(sparse.rows_gb_s, BTreeMap::from([(1, 3.0)]));
    }
}
