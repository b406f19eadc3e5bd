//! Results of benchmarks: JSON of schema `slipstream-bench/1`. `engine-bench replay` writes it; `engine-pack package
//! --from-bench` reads of it what `model`, and of every arm `strategy`, `settings`, `decode_tok_s.median` and
//! `output_sha256` say, so that anybody's measurement with these fields will do.
//!
//! Names carry their units: `_ms`, `_us`, `_s`, `_bytes`, `tok_s` (tokens a second), `gb_s`
//! (10^9 bytes a second), `_n` (a count). Counters have the names of the `speculation` object of an answer, and
//! [`Counters::check`] holds them to the same identities.

use std::collections::BTreeMap;

use engine::api::{Speculation, Strategy, WindowPolicy};
use engine_io::digest::Sha256;
use serde::{Deserialize, Serialize};

use super::counters::{Counters, Position, Shares};
use super::sweep::facts::SweepFacts;
use crate::menu::Given;

/// Name of the schema.
pub const SCHEMA: &str = "slipstream-bench/1";

/// A whole result.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BenchResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// How sessions were replayed: `forced`, `synthetic` or `live`.
    pub mode: String,
    /// What was measured on.
    pub host: Host,
    /// The model.
    pub model: ModelFacts,
    /// What was asked for.
    pub run: RunFacts,
    /// What passes were taken to cost; of simulated time alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostFacts>,
    /// What was replayed, by source.
    pub traces: Vec<TraceFacts>,
    /// One way to decode each, over all sources.
    pub arms: Vec<Arm>,
    /// The same by source.
    pub workloads: Vec<Workload>,
    /// Memory of the process that ran the model.
    pub memory: MemoryFacts,
    /// How fast passes read their weights, and how fast the machine reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roofline: Option<RooflineFacts>,
    /// How the arms were found, if they are those of a sweep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sweep: Option<SweepFacts>,
}

/// A machine.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// The processor's name.
    pub cpu: String,
    /// Physical cores that the process may use.
    pub cores: usize,
    /// Instruction set that the kernels chose.
    pub isa: String,
    /// Version of this program.
    pub version: String,
}

/// A model.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelFacts {
    /// Name of its file.
    pub name: String,
    /// Architecture.
    pub arch: String,
    /// Whether an MTP block drafts.
    pub mtp: bool,
    /// Tokens it was made for.
    pub context_train_tokens: usize,
    /// Digest of its tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor_tree_sha256: Option<Sha256>,
}

/// What was asked for.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFacts {
    /// Sessions at once.
    pub concurrency: usize,
    /// Measured rounds of every arm.
    pub repeats: usize,
    /// Rounds before them.
    pub warmup: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Tokens a request may hold.
    pub context_tokens: usize,
    /// Most tokens of an output that are replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// Most sessions of a source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Workers.
    pub threads: usize,
    /// Chance of acceptance by position; of dice alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accept_rates: Vec<f64>,
    /// Whether times are those of a cost table instead of passes that ran.
    pub simulated: bool,
}

/// What passes are taken to cost.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CostFacts {
    /// Where the figures come from: `measured`, or the name of a file.
    pub origin: String,
    /// Rows of a pass -> milliseconds of it, choice included, at an empty context.
    pub rows_ms: BTreeMap<usize, f64>,
    /// Milliseconds of a step of the MTP chain.
    pub draft_ms: f64,
}

impl CostFacts {
    /// [`Self::origin`] of a table that was measured when the run began.
    pub const MEASURED: &str = "measured";

    /// Whether passes of this machine were timed for it.
    pub fn is_measured(&self) -> bool {
        self.origin == Self::MEASURED
    }
}

/// How fast passes read their weights, beside plain reads of the same machine by as many workers.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RooflineFacts {
    /// Bytes of weights that a pass over one row reads, as the file stores them.
    pub row_bytes: u64,
    /// Plain read of a buffer that no cache holds.
    pub memory_gb_s: f64,
    /// Plain read of `row_bytes` bytes, again and again; no more of them than of that buffer.
    pub weights_gb_s: f64,
    /// Rows of a pass -> `row_bytes` by the time of such a pass. Of models with experts for one row alone: more rows read
    /// more of them.
    pub rows_gb_s: BTreeMap<usize, f64>,
}

/// What was replayed of a source.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceFacts {
    /// Kind of workload.
    pub source: String,
    /// Sessions read.
    pub sessions_n: usize,
    /// Sessions left out by a limit, or since they hold no output.
    pub left_out_n: usize,
    /// Outputs replayed.
    pub outputs_n: usize,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Tokens of all outputs, end tokens included.
    pub output_tokens: u64,
    /// Prompts of which only the end fits the context.
    pub prompts_cut_n: usize,
    /// Tokens of prompts left out.
    pub prompt_tokens_cut: u64,
    /// Outputs of which only the beginning is replayed.
    pub outputs_cut_n: usize,
    /// Tokens of outputs left out.
    pub output_tokens_cut: u64,
}

/// The arms on one source.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Workload {
    /// Kind of workload.
    pub source: String,
    /// In the order of the command line.
    pub arms: Vec<Arm>,
}

/// Memory of a process.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryFacts {
    /// Most that was resident at once, mapped files included; 0 where the system does not tell.
    pub peak_rss_bytes: u64,
    /// Planned for the executor, by room.
    pub executor_bytes: BTreeMap<String, u64>,
    /// The suffix index, all slots.
    pub suffix_index_bytes: u64,
}

/// One way to decode. What is absent was not measured.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Arm {
    /// Its name in tables: the strategy's, or another server's.
    #[serde(default)]
    pub label: String,
    /// Who drafts; nobody of ours where another server answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// Settings of it.
    #[serde(default)]
    pub settings: Settings,
    /// Tokens a second while decoding, first tokens aside: (tokens - requests) / time from first to last token. With
    /// several sessions at once it is the rate of each, not their sum.
    pub decode_tok_s: Spread,
    /// Digest of what all requests committed, in their order; absent where an arm failed.
    #[serde(default)]
    pub output_sha256: Option<Sha256>,
    /// `decode_tok_s` against that of `off`, medians.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup: Option<f64>,
    /// Committed tokens a second of all sessions together, prompts included.
    #[serde(default)]
    pub total_tok_s: Spread,
    /// Why the figures do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void: Option<Void>,
    /// Why there are no figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Requests of a round.
    #[serde(default)]
    pub requests_n: u64,
    /// Prompt tokens of a round.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// What was counted in the last round; with fixed windows every round counts alike.
    #[serde(default)]
    pub speculation: Counters,
    /// Shares of these counters.
    #[serde(default)]
    pub shares: Shares,
    /// Lengths by proposer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lengths: BTreeMap<String, Lengths>,
    /// Tokens committed at once.
    #[serde(default)]
    pub emission_tokens_hist: Bins,
    /// Times of requests and steps, over all rounds.
    #[serde(default)]
    pub times: Times,
    /// Rows of a pass that only windows took part in -> how long such passes took.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pass_ms: BTreeMap<usize, Quantiles>,
}

/// Times of an arm.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Times {
    /// Request accepted to first token.
    pub ttft_ms: Quantiles,
    /// Of that: waiting for a slot.
    pub queue_ms: Quantiles,
    /// Of that: the prompt.
    pub prompt_ms: Quantiles,
    /// Per request: time from first to last token, by token after the first.
    pub tpot_ms: Quantiles,
    /// Between two emissions of a request; tokens committed at once are one emission.
    pub emission_gap_ms: Quantiles,
    /// Request accepted to its end.
    pub total_ms: Quantiles,
    /// One look-up in the suffix index.
    pub lookup_us: Quantiles,
    /// Indexing, by committed token.
    pub index_ns_per_token: f64,
    /// All MTP chains of a round.
    pub mtp_draft_ms: f64,
}

/// Why an arm's figures do not count: its output is not that of `off`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Void {
    /// Session of the first difference.
    pub session: String,
    /// Turn of it.
    pub turn: usize,
    /// Position in the output, in tokens, or in bytes where only text is known.
    pub position: usize,
    /// What `off` has there.
    pub expected: String,
    /// What this arm has there.
    pub found: String,
}

/// A figure of several rounds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Spread {
    /// Middle of the rounds.
    pub median: f64,
    /// Least.
    #[serde(default)]
    pub min: f64,
    /// Greatest.
    #[serde(default)]
    pub max: f64,
    /// Each round, in order.
    #[serde(default)]
    pub rounds: Vec<f64>,
}

impl Spread {
    /// Of the figures of rounds; zeroes of none.
    pub fn of(rounds: Vec<f64>) -> Self {
        let mut sorted = rounds.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |i: usize| sorted.get(i).copied().unwrap_or_default();
        let (half, last) = (sorted.len() / 2, sorted.len().saturating_sub(1));
        let median = if sorted.len() % 2 == 1 { at(half) } else { (at(half.saturating_sub(1)) + at(half)) / 2.0 };
        Self { median, min: at(0), max: at(last), rounds }
    }
}

/// A distribution.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Quantiles {
    /// Values.
    pub n: u64,
    /// Their mean; 0 of none, as the rest.
    pub mean: f64,
    /// Half are at most this.
    pub p50: f64,
    /// 95 of 100 are at most this.
    pub p95: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
    /// Greatest.
    pub max: f64,
}

impl Quantiles {
    /// Of values, by the nearest rank.
    pub fn of(values: &mut [f64]) -> Self {
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let rank = |share: f64| values.get(((share * n as f64).ceil() as usize).saturating_sub(1)).copied();
        let at = |share: f64| rank(share).unwrap_or_default();
        let mean = if n == 0 { 0.0 } else { values.iter().sum::<f64>() / n as f64 };
        Self { n: n as u64, mean, p50: at(0.5), p95: at(0.95), p99: at(0.99), max: at(1.0) }
    }
}

/// Upper ends of the bins of lengths, with their names.
const BINS: [(usize, &str); 9] = [
    (0, "0"),
    (1, "1"),
    (2, "2"),
    (3, "3"),
    (7, "4-7"),
    (15, "8-15"),
    (31, "16-31"),
    (63, "32-63"),
    (usize::MAX, "64-"),
];

/// How often lengths fell into each of 0, 1, 2, 3, 4-7, 8-15, 16-31, 32-63 (and 64-, which windows never reach). Empty
/// bins are absent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Bins(pub BTreeMap<String, u64>);

impl Bins {
    /// Counts a length.
    pub fn add(&mut self, length: usize) {
        let (_, name) = BINS.iter().find(|(end, _)| length <= *end).expect("the last bin has no end");
        *self.0.entry((*name).to_owned()).or_default() += 1;
    }

    /// Counts those of `other` too.
    pub fn merge(&mut self, other: &Self) {
        for (name, n) in &other.0 {
            *self.0.entry(name.clone()).or_default() += n;
        }
    }

    /// The bins in order, empty ones too.
    pub fn in_order(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        BINS.iter().map(|(_, name)| (*name, self.0.get(*name).copied().unwrap_or_default()))
    }
}

/// Lengths of one proposer's part of a window, and what became of it position by position.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Lengths {
    /// Drafts proposed at once; only where there were any.
    pub candidate_hist: Bins,
    /// Drafts of one window that were compared with the target's choice.
    pub tested_hist: Bins,
    /// Drafts of one window that were accepted.
    pub accepted_hist: Bins,
    /// By position in this proposer's part.
    pub per_position: Vec<Position>,
}

impl Lengths {
    /// Adds those of another source.
    pub fn merge(&mut self, other: &Self) {
        self.candidate_hist.merge(&other.candidate_hist);
        self.tested_hist.merge(&other.tested_hist);
        self.accepted_hist.merge(&other.accepted_hist);
        let len = self.per_position.len().max(other.per_position.len());
        self.per_position.resize(len, Position { tested: Some(0), ..Position::default() });
        for (ours, theirs) in self.per_position.iter_mut().zip(&other.per_position) {
            ours.drafted += theirs.drafted;
            ours.tested = ours.tested.zip(theirs.tested).map(|(a, b)| a + b);
            ours.accepted += theirs.accepted;
        }
    }
}

/// How an arm drafts, under the names of a request's `speculative` object. What is absent is the built-in value.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "names of the HTTP interface")]
pub struct Settings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtp_tokens: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suffix_min: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suffix_max: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suffix_tokens: Option<u8>,
    pub window: WindowSettings,
}

/// The window of an arm.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "names of the HTTP interface")]
pub struct WindowSettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<WindowPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u8>,
}

impl From<&Speculation> for Settings {
    fn from(s: &Speculation) -> Self {
        let window = WindowSettings {
            policy: Some(s.policy),
            initial: Some(s.window_initial),
            min: Some(s.window_min),
            max: Some(s.window_max),
        };
        Self {
            mtp_tokens: Some(s.mtp_tokens),
            suffix_min: Some(s.suffix_min),
            suffix_max: Some(s.suffix_max),
            suffix_tokens: Some(s.suffix_tokens),
            window,
        }
    }
}

impl From<&Settings> for Given {
    fn from(settings: &Settings) -> Self {
        let Settings { mtp_tokens, suffix_min, suffix_max, suffix_tokens, ref window } = *settings;
        let WindowSettings { policy, initial, min, max } = *window;
        Self {
            mtp_tokens,
            suffix_min,
            suffix_max,
            suffix_tokens,
            policy,
            window_initial: initial,
            window_min: min,
            window_max: max,
        }
    }
}

#[cfg(test)]
mod tests;
