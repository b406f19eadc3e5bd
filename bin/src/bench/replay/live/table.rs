//! Times of arms as a table: what the client saw.

use std::fmt::Write as _;

use crate::bench::result::{Arm, Quantiles};

/// A row for every arm that has figures.
pub fn times(arms: &[Arm]) -> String {
    let mut out = String::new();
    let width = arms.iter().map(|arm| arm.label.len()).max().unwrap_or(0).max(4);
    _ = writeln!(
        out,
        "\nas the client sees it, milliseconds\n  {:<width$}{:>8}{:>10}{:>9}{:>10}{:>9}{:>9}{:>9}{:>9}{:>11}  output",
        "arm", "answers", "ttft p50", "p95", "tpot p50", "p95", "gap p50", "p95", "p99", "all tok/s"
    );
    let figure = |q: &Quantiles, value: f64| if q.n == 0 { "-".to_owned() } else { format!("{value:.2}") };
    for arm in arms.iter().filter(|arm| arm.failed.is_none()) {
        let (ttft, tpot, gap) = (&arm.times.ttft_ms, &arm.times.tpot_ms, &arm.times.emission_gap_ms);
        let hash = arm.output_sha256.map(|hash| hash.to_string()[..12].to_owned()).unwrap_or_default();
        _ = writeln!(
            out,
            "  {:<width$}{:>8}{:>10}{:>9}{:>10}{:>9}{:>9}{:>9}{:>9}{:>11.1}  {hash}",
            arm.label,
            arm.requests_n,
            figure(ttft, ttft.p50),
            figure(ttft, ttft.p95),
            figure(tpot, tpot.p50),
            figure(tpot, tpot.p95),
            figure(gap, gap.p50),
            figure(gap, gap.p95),
            figure(gap, gap.p99),
            arm.total_tok_s.median,
        );
    }
    out
}
