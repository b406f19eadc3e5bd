//! `engine-bench compare`: two results of one question, arm by arm, and which of the differences are more than noise.

pub mod kin;
pub mod noise;

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::report::doc::{Doc, NoResult, number};
use super::result::{Arm, BenchResult};

/// Name of the schema of `--json`.
pub const SCHEMA: &str = "slipstream-compare/1";

/// `engine-bench compare`. Ends with 0 if the results were compared, whatever the figures are.
#[derive(Clone, Debug, Args)]
pub struct CompareFlags {
    /// What is compared with.
    #[arg(value_name = "A.json")]
    pub a: PathBuf,
    /// What is compared.
    #[arg(value_name = "B.json")]
    pub b: PathBuf,
    /// Compare results of different models, prompts or modes all the same.
    #[arg(long)]
    pub force: bool,
    /// End with 1 if an arm of B is slower than in A by more than this many percent and by more than noise, or has no
    /// figures that count where A has some.
    #[arg(long, value_name = "PERCENT", value_parser = percent, allow_negative_numbers = true)]
    pub fail_slower: Option<f64>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if (0.0..=100.0).contains(&n) => Ok(n),
        _ => Err("expected a number from 0 to 100".to_owned()),
    }
}

/// Why there is no comparison. Exit code 3.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A result.
    #[error(transparent)]
    NoResult(#[from] NoResult),
    /// Results of different questions.
    #[error("{a} and {b} are not of the same question; --force compares them all the same\n  {}", against.join("\n  "))]
    Strangers {
        /// The first file.
        a: String,
        /// The second.
        b: String,
        /// What differs.
        against: Vec<String>,
    },
    /// Nothing in common.
    #[error("{a} and {b} have no arm of the same name; name them alike")]
    NoArm {
        /// The first file.
        a: String,
        /// The second.
        b: String,
    },
}

/// What a difference comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// B is faster, by more than noise.
    Faster,
    /// B is slower, by more than noise.
    Slower,
    /// The difference is within noise.
    WithinNoise,
    /// A side has less than two rounds.
    NoRepeats,
    /// An arm of this name does not count: it is void or failed.
    DoesNotCount,
    /// Only one side has an arm of this name.
    Missing,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::WithinNoise => "within noise",
            Self::NoRepeats => "no repeats: nothing is known of noise",
            Self::DoesNotCount => "does not count: void or failed",
            Self::Missing => "on one side only",
        }
    }
}

/// A figure on both sides.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Pair {
    /// Of A.
    pub a: Option<f64>,
    /// Of B.
    pub b: Option<f64>,
}

/// An arm of a workload.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Line {
    /// The source; absent: all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The arm's label.
    pub arm: String,
    /// Tokens a second while decoding, medians.
    pub decode_tok_s: Pair,
    /// B's against A's.
    pub ratio: Option<f64>,
    /// Where 95 of 100 ratios lie that chance could have given.
    pub ratio_interval: Option<(f64, f64)>,
    /// What it comes to.
    pub verdict: Verdict,
    /// Against `off` of the same side.
    pub speedup: Pair,
    /// Accepted of drafted.
    pub acceptance_rate: Pair,
    /// Tokens of a pass.
    pub tokens_per_pass: Pair,
    /// Half of the requests waited at most this long.
    pub ttft_ms_p50: Pair,
    /// And took at most this long for a token.
    pub tpot_ms_p50: Pair,
}

/// Two results, arm by arm.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The first file.
    pub a: String,
    /// The second.
    pub b: String,
    /// What should have kept them from being compared.
    pub against: Vec<String>,
    /// What else differs.
    pub beside: Vec<String>,
    /// By workload, then arm.
    pub lines: Vec<Line>,
}

/// Compares what the flags name.
///
/// # Errors
/// [`CompareError`].
pub fn run(flags: &CompareFlags) -> Result<Comparison, CompareError> {
    let (one, other) = (Doc::read(&flags.a)?.result, Doc::read(&flags.b)?.result);
    let name = |path: &PathBuf| path.display().to_string();
    let (a, b) = (name(&flags.a), name(&flags.b));
    let kin::Differences { against, beside } = kin::differences(&one, &other);
    if !against.is_empty() && !flags.force {
        return Err(CompareError::Strangers { a, b, against });
    }
    let lines = lines(&one, &other);
    if !lines.iter().any(|line| line.verdict != Verdict::Missing) {
        return Err(CompareError::NoArm { a, b });
    }
    Ok(Comparison { schema: SCHEMA, a, b, against, beside, lines })
}

/// Whether no arm of B is worse than `--fail-slower` allows.
pub fn stands(comparison: &Comparison, flags: &CompareFlags) -> bool {
    let Some(most) = flags.fail_slower else { return true };
    comparison.lines.iter().all(|line| match line.verdict {
        Verdict::Slower => line.ratio.is_none_or(|ratio| ratio >= 1.0 - most / 100.0),
        // Where neither side counts, nothing got worse.
        Verdict::DoesNotCount | Verdict::Missing => line.decode_tok_s.a.is_none() || line.decode_tok_s.b.is_some(),
        Verdict::Faster | Verdict::WithinNoise | Verdict::NoRepeats => true,
    })
}

/// Every arm of either side, over all sources and of each.
fn lines(a: &BenchResult, b: &BenchResult) -> Vec<Line> {
    let mut out = Vec::new();
    pair(None, &a.arms, &b.arms, &mut out);
    for workload in &a.workloads {
        let other = b.workloads.iter().find(|other| other.source == workload.source);
        pair(Some(&workload.source), &workload.arms, other.map_or(&[], |other| &other.arms), &mut out);
    }
    for workload in &b.workloads {
        if !a.workloads.iter().any(|other| other.source == workload.source) {
            pair(Some(&workload.source), &[], &workload.arms, &mut out);
        }
    }
    out
}

fn pair(workload: Option<&str>, a: &[Arm], b: &[Arm], out: &mut Vec<Line>) {
    for arm in a {
        out.push(line(workload, Some(arm), b.iter().find(|other| other.label == arm.label)));
    }
    let only = b.iter().filter(|arm| !a.iter().any(|other| other.label == arm.label));
    out.extend(only.map(|arm| line(workload, None, Some(arm))));
}

fn line(workload: Option<&str>, a: Option<&Arm>, b: Option<&Arm>) -> Line {
    let counts = |arm: &&Arm| arm.void.is_none() && arm.failed.is_none() && arm.decode_tok_s.median > 0.0;
    let both =
        |of: fn(&Arm) -> Option<f64>| Pair { a: a.filter(counts).and_then(of), b: b.filter(counts).and_then(of) };
    let decode_tok_s = both(|arm| Some(arm.decode_tok_s.median));
    let ratio = decode_tok_s.a.zip(decode_tok_s.b).map(|(a, b)| b / a);
    let rounds = a.zip(b).map(|(a, b)| (&a.decode_tok_s.rounds[..], &b.decode_tok_s.rounds[..]));
    let ratio_interval = ratio.and(rounds).and_then(|(a, b)| noise::interval(a, b));
    let verdict = match (a.and(b), ratio, ratio_interval) {
        (None, ..) => Verdict::Missing,
        (_, None, _) => Verdict::DoesNotCount,
        (.., None) => Verdict::NoRepeats,
        (.., Some((low, _))) if low > 1.0 => Verdict::Faster,
        (.., Some((_, high))) if high < 1.0 => Verdict::Slower,
        _ => Verdict::WithinNoise,
    };
    let quantile = |q: &super::result::Quantiles| (q.n > 0).then_some(q.p50);
    let time = |of: fn(&Arm) -> &super::result::Quantiles| Pair {
        a: a.filter(counts).and_then(|arm| quantile(of(arm))),
        b: b.filter(counts).and_then(|arm| quantile(of(arm))),
    };
    Line {
        workload: workload.map(str::to_owned),
        arm: a.or(b).map(|arm| arm.label.clone()).unwrap_or_default(),
        decode_tok_s,
        ratio,
        ratio_interval,
        verdict,
        speedup: both(|arm| arm.speedup),
        acceptance_rate: both(|arm| arm.shares.acceptance_rate),
        tokens_per_pass: both(|arm| arm.shares.tokens_per_pass),
        ttft_ms_p50: time(|arm| &arm.times.ttft_ms),
        tpot_ms_p50: time(|arm| &arm.times.tpot_ms),
    }
}

/// The comparison for people.
pub fn text(comparison: &Comparison) -> String {
    let Comparison { a, b, against, beside, lines, .. } = comparison;
    let mut out = format!("A {a}\nB {b}\n");
    against.iter().for_each(|what| _ = writeln!(out, "not of the same question: {what}"));
    beside.iter().for_each(|what| _ = writeln!(out, "differs: {what}"));
    let widest = lines.iter().map(|line| line.arm.chars().count()).max().unwrap_or_default().max(4);
    let mut last: Option<&Option<String>> = None;
    let shown = |value: Option<f64>| value.map_or("-".to_owned(), number);
    let change = |ratio: f64| format!("{:+.1}%", 100.0 * (ratio - 1.0));
    let two = |pair: Pair, scale: f64, unit: &str| {
        let one = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{:.3}{unit}", value * scale));
        format!("{} -> {}", one(pair.a), one(pair.b))
    };
    for line in lines {
        if last != Some(&line.workload) {
            _ = writeln!(out, "\n{}", line.workload.as_deref().unwrap_or("all"));
            _ = writeln!(
                out,
                "  {:<widest$}{:>11}{:>11}{:>9}  {:<18}{:<20}{:<22}accepted",
                "arm", "A tok/s", "B tok/s", "B to A", "95 of 100", "x off", "tok/pass"
            );
            last = Some(&line.workload);
        }
        let interval = line.ratio_interval.map(|(low, high)| format!("{} .. {}", change(low), change(high)));
        _ = writeln!(
            out,
            "  {:<widest$}{:>11}{:>11}{:>9}  {:<18}{:<20}{:<22}{:<24}{}",
            line.arm,
            shown(line.decode_tok_s.a),
            shown(line.decode_tok_s.b),
            line.ratio.map_or("-".to_owned(), change),
            interval.unwrap_or_else(|| "-".to_owned()),
            two(line.speedup, 1.0, ""),
            two(line.tokens_per_pass, 1.0, ""),
            two(line.acceptance_rate, 100.0, "%"),
            line.verdict.text(),
        );
    }
    harmless(&out)
}

/// Text with names of files in it: a terminal is to show them, not to obey them.
fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}
