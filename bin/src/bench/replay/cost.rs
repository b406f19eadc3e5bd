//! What passes are taken to cost where nobody runs them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use engine::clock::Monotonic;
use engine::cost::{COST_ROWS, Cost};
use engine::exec::CpuExecutor;
use engine::limits::{Limits, LimitsError, WINDOW_MAX};
use engine::pieces::Pieces;
use engine_io::{json, plain};
use serde::Deserialize;

use super::drive::Driver;
use crate::bench::result::CostFacts;

/// Times that the table is measured.
const ROUNDS: usize = 5;
/// Share of a row's pass that a step of the MTP chain takes where a file does not say.
const DRAFT_SHARE: f64 = 0.1;

/// Milliseconds that a pass may be said to take: from a nanosecond to an hour.
const MS: RangeInclusive<f64> = 1e-6..=3.6e6;

/// Longest file of costs.
const BYTES_MAX: u64 = 1 << 20;

/// A file of costs: of `engine-bench speed --json`, or by hand.
#[derive(Deserialize)]
struct File {
    rows_ms: BTreeMap<usize, f64>,
    #[serde(default)]
    draft_ms: Option<f64>,
}

/// Reads `{"rows_ms":{"1":2.5,"4":3.1,..},"draft_ms":0.2}`.
///
/// # Errors
/// What is wrong with the file, in words.
pub fn read(path: &Path) -> Result<CostFacts, String> {
    let refused = |what: String| format!("{}: {what}", path.display());
    let bytes = plain::read(path, BYTES_MAX).map_err(|error| error.to_string())?;
    let File { rows_ms, draft_ms } = json::parse(&bytes).map_err(|error| {
        refused(format!(
            "{error}; expected {{\"rows_ms\":{{\"1\":2.5,\"8\":4.0}},\"draft_ms\":0.2}}, as speed --json prints"
        ))
    })?;
    let first = rows_ms.values().copied().next().unwrap_or_default();
    let origin = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let facts = CostFacts { origin, rows_ms, draft_ms: draft_ms.unwrap_or(first * DRAFT_SHARE) };
    check(&facts).map_err(refused)?;
    Ok(facts)
}

/// Whether the simulated clock can count in such a table: it has whole nanoseconds, and not for ever.
///
/// # Errors
/// What is wrong with it, in words.
pub fn check(facts: &CostFacts) -> Result<(), String> {
    if facts.rows_ms.is_empty() {
        return Err("rows_ms is empty, expected the milliseconds of at least one width".to_owned());
    }
    let times = facts.rows_ms.iter().map(|(rows, ms)| (format!("rows_ms[{rows}]"), *ms, *rows == 0));
    for (name, ms, bad) in times.chain([("draft_ms".to_owned(), facts.draft_ms, false)]) {
        if bad || !MS.contains(&ms) {
            let (least, most) = (MS.start(), MS.end());
            return Err(format!(
                "{name} is {ms:?}, expected milliseconds of a pass of at least one row, from {least} to {most}"
            ));
        }
    }
    Ok(())
}

/// Measures the table of the adaptive window on `executor`, which is made with `limits`, several times: what disturbs a
/// pass only makes it longer, so the least time counts, and of a narrower pass also what a wider one took.
///
/// # Errors
/// Limits that contradict each other.
pub fn measure(executor: CpuExecutor, limits: &Limits, pieces: &Arc<Pieces>) -> Result<CostFacts, LimitsError> {
    let clock = Box::new(Monotonic::default());
    let mut driver = Driver::new(Box::new(executor), limits, Arc::clone(pieces), None, clock)?;
    let widest = limits.window_max + 1;
    let widths = || COST_ROWS.into_iter().filter(|rows| *rows <= widest);
    let mut best = vec![f64::INFINITY; widths().count()];
    let mut draft = f64::INFINITY;
    for round in 0..ROUNDS {
        if round > 0 {
            driver.calibrate();
        }
        best.iter_mut().zip(widths()).for_each(|(best, rows)| *best = best.min(driver.cost().trunk(rows)));
        draft = draft.min(driver.cost().draft(1));
    }
    for at in (1..best.len()).rev() {
        best[at - 1] = best[at - 1].min(best[at]);
    }
    let rows_ms = widths().zip(best).map(|(rows, ns)| (rows, ns / 1e6)).collect();
    Ok(CostFacts { origin: CostFacts::MEASURED.to_owned(), rows_ms, draft_ms: draft / 1e6 })
}

/// Limits of an executor to measure on.
pub fn limits() -> Limits {
    Limits { window_max: WINDOW_MAX, ..Limits::new(1, 2 * (WINDOW_MAX + 1)) }
}

/// The table that the engine reads: linear between the widths given, and on with the last slope.
pub fn table(facts: &CostFacts) -> Cost {
    let points: Vec<(f64, f64)> = facts.rows_ms.iter().map(|(rows, ms)| (*rows as f64, ms * 1e6)).collect();
    let trunk = |rows: usize| {
        let rows = rows as f64;
        let [first, .., last] = points[..] else { return points.first().map_or(0.0, |p| p.1) };
        if rows <= first.0 {
            return first.1;
        }
        let above = points.iter().position(|p| p.0 >= rows).unwrap_or(points.len() - 1);
        let (a, b) = (points[above - 1], points[above]);
        let ns = a.1 + (b.1 - a.1) / (b.0 - a.0) * (rows - a.0);
        // Noise may make the last slope fall; a wider pass is never taken to cost less than the widest measured one.
        if rows > last.0 { ns.max(last.1) } else { ns }
    };
    Cost::scripted(trunk, facts.draft_ms * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_linear_between_its_points_and_goes_on_behind_them() {
        let facts = |points: &[(usize, f64)]| CostFacts {
            rows_ms: points.iter().copied().collect(),
            draft_ms: 0.5,
            ..CostFacts::default()
        };
        let cost = table(&facts(&[(1, 2.0), (8, 9.0), (16, 25.0)]));
        for (rows, ms) in [(1, 2.0), (4, 5.0), (8, 9.0), (12, 17.0), (16, 25.0), (32, 57.0), (64, 121.0)] {
            assert!((cost.trunk(rows) - ms * 1e6).abs() < 1.0, "{rows} rows: {}", cost.trunk(rows));
        }
        assert_eq!(cost.draft(2), 1e6);
        assert_eq!(table(&facts(&[(4, 3.0)])).trunk(32), 3e6);
        assert_eq!(table(&facts(&[(2, 3.0), (4, 2.0)])).trunk(32), 2e6, "no slope down behind the last point");
        assert_eq!(table(&facts(&[(2, 3.0), (4, 4.0)])).trunk(1), 3e6);
    }

    #[test]
    fn a_file_that_is_no_table_is_refused() {
        let read = |text: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            read(file.path())
        };
        let good = read(r#"{"rows_ms":{"1":2.0,"16":3.0},"decode_tok_s":400.0,"threads":2}"#).unwrap();
        assert_eq!((good.rows_ms[&16], good.draft_ms), (3.0, 0.2));
        assert_eq!(read(r#"{"rows_ms":{"1":2.0},"draft_ms":0.5}"#).unwrap().draft_ms, 0.5, "where it is told");
        for (text, word) in [
            ("{}", "missing field `rows_ms`"),
            (r#"{"rows_ms":{}}"#, "rows_ms is empty"),
            (r#"{"rows_ms":{"1":-1}}"#, "rows_ms[1] is -1"),
            (r#"{"rows_ms":{"0":1}}"#, "rows_ms[0] is 1"),
            (r#"{"rows_ms":{"1":1},"draft_ms":0}"#, "draft_ms is 0"),
            // Beyond what the simulated clock counts: it would run backwards, or stand still.
            (r#"{"rows_ms":{"1":1e308}}"#, "rows_ms[1] is 1e308"),
            (r#"{"rows_ms":{"1":5e-324}}"#, "rows_ms[1] is 5e-324"),
            (r#"{"rows_ms":{"1":2},"draft_ms":1e-9}"#, "draft_ms is 1e-9"),
            (r#"{"rows_ms":{"x":1}}"#, "invalid"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(word), "{error} does not say {word}");
        }
    }
}
