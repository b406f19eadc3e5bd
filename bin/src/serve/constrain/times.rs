//! How long compiling takes, as a histogram of the process.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper ends of the buckets, in microseconds, with their labels in seconds.
const BOUNDS: [(u64, &str); 8] = [
    (500, "0.0005"),
    (1_000, "0.001"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (500_000, "0.5"),
    (2_000_000, "2"),
];

/// The histogram.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// By bucket; the last is for all that is longer.
    counts: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl Times {
    /// One compile.
    pub(super) fn observe(&self, took: Duration) {
        let bucket = BOUNDS.iter().position(|(end, _)| took.as_micros() <= u128::from(*end)).unwrap_or(BOUNDS.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Its lines in the text format of metrics.
    pub(crate) fn write(&self, out: &mut String) {
        const NAME: &str = "engine_constraint_compile_seconds";
        let _ = writeln!(out, "# HELP {NAME} Time to compile the constraints of a request\n# TYPE {NAME} histogram");
        let mut sum = 0;
        for (count, label) in self.counts.iter().zip(BOUNDS.iter().map(|(_, label)| *label).chain(["+Inf"])) {
            sum += count.load(Ordering::Relaxed);
            let _ = writeln!(out, "{NAME}_bucket{{le=\"{label}\"}} {sum}");
        }
        let _ = writeln!(out, "{NAME}_sum {}", self.nanos.load(Ordering::Relaxed) as f64 / 1e9);
        let _ = writeln!(out, "{NAME}_count {sum}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compile_is_in_its_bucket_and_all_above() {
        let times = Times::default();
        for micros in [400, 500, 501, 3_000_000] {
            times.observe(Duration::from_micros(micros));
        }
        let mut out = String::new();
        times.write(&mut out);
        for line in
            ["{le=\"0.0005\"} 2", "{le=\"0.001\"} 3", "{le=\"2\"} 3", "{le=\"+Inf\"} 4", "_count 4", "_sum 3.001401"]
        {
            assert!(out.contains(line), "{line} is not in {out}");
        }
    }
}
