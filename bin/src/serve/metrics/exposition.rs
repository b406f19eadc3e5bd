//! The text format of Prometheus, version 0.0.4.

use std::fmt::{Display, Write as _};

/// Observations in buckets.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    /// Upper bounds; one more bucket has none.
    bounds: Vec<u64>,
    counts: Vec<u64>,
    sum: u64,
}

impl Histogram {
    pub(crate) fn new(bounds: &[u64]) -> Self {
        Self { bounds: bounds.to_vec(), counts: vec![0; bounds.len() + 1], sum: 0 }
    }

    /// From what was counted elsewhere.
    pub(crate) fn counted(bounds: &[u64], counts: &[u64], sum: u64) -> Self {
        assert_eq!(counts.len(), bounds.len() + 1, "one bucket has no bound");
        Self { bounds: bounds.to_vec(), counts: counts.to_vec(), sum }
    }

    /// One observation.
    pub(crate) fn observe(&mut self, value: u64) {
        self.add(value, 1);
    }

    /// `times` of the same value.
    pub(crate) fn add(&mut self, value: u64, times: u64) {
        self.counts[self.bounds.partition_point(|bound| *bound < value)] += times;
        self.sum += value * times;
    }

    /// Of all values.
    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }

    /// Without the buckets up to bounds below `least`: the next has what they had.
    pub(crate) fn from(&self, least: u64) -> Self {
        let first = self.bounds.partition_point(|bound| *bound < least);
        let mut counts = self.counts[first..].to_vec();
        counts[0] += self.counts[..first].iter().sum::<u64>();
        Self { bounds: self.bounds[first..].to_vec(), counts, sum: self.sum }
    }

    /// Without the bounds that no value can pass, as none is above `most`.
    pub(crate) fn within(&self, most: u64) -> Self {
        let kept = (self.bounds.partition_point(|bound| *bound < most) + 1).min(self.bounds.len());
        let mut counts = self.counts[..=kept].to_vec();
        counts[kept] += self.counts[kept + 1..].iter().sum::<u64>();
        Self { bounds: self.bounds[..kept].to_vec(), counts, sum: self.sum }
    }
}

/// What a whole number of a family stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    One,
    Nanoseconds,
}

impl Unit {
    fn write(self, value: u64) -> String {
        match self {
            Self::One => value.to_string(),
            Self::Nanoseconds => (value as f64 / 1e9).to_string(),
        }
    }
}

/// The page in the making.
#[derive(Default)]
pub(crate) struct Exposition {
    text: String,
}

impl Exposition {
    /// Where a family that is written elsewhere goes.
    pub(crate) fn text(&mut self) -> &mut String {
        &mut self.text
    }

    /// The page.
    pub(crate) fn finish(self) -> String {
        self.text
    }

    /// A family's head.
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A counter without labels.
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "counter", help);
        let _ = writeln!(self.text, "{name} {value}");
    }

    /// A gauge without labels.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        let _ = writeln!(self.text, "{name} {value}");
    }

    /// A gauge that is 1 and whose labels are what it says.
    pub(crate) fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) {
        self.head(name, "gauge", help);
        let _ = writeln!(self.text, "{name}{} 1", braced(labels));
    }

    /// A counter with one label, or a gauge.
    pub(crate) fn by(&mut self, name: &str, kind: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.by_in(Unit::One, name, kind, help, label, values);
    }

    /// The same in a unit.
    pub(crate) fn by_in(
        &mut self,
        unit: Unit,
        name: &str,
        kind: &str,
        help: &str,
        label: &str,
        values: &[(&str, u64)],
    ) {
        self.head(name, kind, help);
        for (value, n) in values {
            let _ = writeln!(self.text, "{name}{} {}", braced(&[(label, value)]), unit.write(*n));
        }
    }

    /// A family of any labels.
    pub(crate) fn table(&mut self, name: &str, kind: &str, help: &str, rows: &[(Vec<(&str, &str)>, String)]) {
        self.head(name, kind, help);
        for (labels, value) in rows {
            let _ = writeln!(self.text, "{name}{} {value}", braced(labels));
        }
    }

    /// A counter in seconds.
    pub(crate) fn seconds(&mut self, name: &str, help: &str, ns: u64) {
        self.counter(name, help, Unit::Nanoseconds.write(ns));
    }

    /// A histogram; `labels` are on every sample.
    pub(crate) fn histogram(&mut self, name: &str, help: &str, unit: Unit, labels: &[(&str, &str)], h: &Histogram) {
        self.head(name, "histogram", help);
        let mut below = 0;
        for (i, count) in h.counts.iter().enumerate() {
            below += count;
            let bound = h.bounds.get(i).map_or_else(|| "+Inf".to_owned(), |bound| unit.write(*bound));
            let labels: Vec<(&str, &str)> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            let _ = writeln!(self.text, "{name}_bucket{} {below}", braced(&labels));
        }
        let labels = braced(labels);
        let _ = writeln!(self.text, "{name}_sum{labels} {}\n{name}_count{labels} {below}", unit.write(h.sum));
    }
}

/// Labels with their values escaped; nothing for none.
fn braced(labels: &[(&str, &str)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let one = |(name, value): &(&str, &str)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    format!("{{{}}}", labels.iter().map(one).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_values_escaped() {
        let mut h = Histogram::new(&[1_000_000, 500_000_000]);
        h.observe(1_000_000);
        h.add(2_000_000, 3);
        h.observe(9_000_000_000);
        let mut page = Exposition::default();
        page.histogram("t_seconds", "Times", Unit::Nanoseconds, &[("m", "a\"\\\n")], &h);
        assert_eq!(
            page.finish(),
            "# HELP t_seconds Times\n# TYPE t_seconds histogram\n\
             t_seconds_bucket{m=\"a\\\"\\\\\\n\",le=\"0.001\"} 1\n\
             t_seconds_bucket{m=\"a\\\"\\\\\\n\",le=\"0.5\"} 4\n\
             t_seconds_bucket{m=\"a\\\"\\\\\\n\",le=\"+Inf\"} 5\n\
             t_seconds_sum{m=\"a\\\"\\\\\\n\"} 9.007\nt_seconds_count{m=\"a\\\"\\\\\\n\"} 5\n"
        );
    }

    #[test]
    fn coarser_buckets_keep_every_observation() {
        let mut h = Histogram::new(&[1, 2, 5, 10]);
        (0..12).for_each(|value| h.observe(value));
        let coarse = h.from(5);
        assert_eq!((coarse.bounds.as_slice(), coarse.counts.as_slice()), ([5, 10].as_slice(), [6, 5, 1].as_slice()));
        assert_eq!(coarse.sum, h.sum);
        let short = h.within(3);
        assert_eq!((short.bounds.as_slice(), short.counts.as_slice()), ([1, 2, 5].as_slice(), [2, 1, 3, 6].as_slice()));
        assert_eq!(h.within(u64::MAX).counts, h.counts);
    }
}
