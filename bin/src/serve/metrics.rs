//! Counters of the process, in Prometheus text format 0.0.4. Labels come from closed sets only.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::api::{DraftCounts, Finish, Miss, Report};

use crate::embed::Stats;
use crate::serve::calls::Anomalies;
use crate::serve::constrain::Times;
use crate::serve::record::Counts;
use crate::serve::spec::MtpOffer;

/// Why a choice ended, for `engine_requests_finished_total`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum End {
    Stop,
    StopString,
    Length,
    ContextFull,
    /// It called tools.
    ToolCalls,
    Cancelled,
    Error,
    /// It waited too long for a slot.
    Timeout,
}

impl End {
    const ALL: [(Self, &'static str); 8] = [
        (Self::Stop, "stop"),
        (Self::StopString, "stop_string"),
        (Self::Length, "length"),
        (Self::ContextFull, "context_full"),
        (Self::ToolCalls, "tool_calls"),
        (Self::Cancelled, "cancelled"),
        (Self::Error, "error"),
        (Self::Timeout, "timeout"),
    ];

    /// Its name, here and in records.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(end, _)| *end == self).map_or("error", |(_, name)| name)
    }

    /// Of a choice that made so many calls.
    pub(crate) fn of(finish: Finish, calls: usize) -> Self {
        match finish {
            Finish::EndToken(_) | Finish::StopString(_) if calls > 0 => Self::ToolCalls,
            Finish::EndToken(_) => Self::Stop,
            Finish::StopString(_) => Self::StopString,
            Finish::MaxTokens => Self::Length,
            Finish::ContextFull => Self::ContextFull,
            Finish::Fault(_) => Self::Error,
        }
    }
}

/// All counters.
#[derive(Default)]
pub(crate) struct Metrics {
    /// Whether the MTP block may draft; known with the model.
    pub mtp_offer: Option<MtpOffer>,
    /// Of a server that records.
    pub records: Option<Arc<Counts>>,
    /// Of a server that compiles constraints.
    pub compiles: Option<Arc<Times>>,
    http: BTreeMap<(&'static str, &'static str, u16), u64>,
    sent_bytes: u64,
    ends: BTreeMap<End, u64>,
    /// Choices known to the engine and not finished.
    pub open: u64,
    /// ... of which admitted.
    pub running: u64,
    prompt_computed: u64,
    prompt_cached: u64,
    cache_misses: BTreeMap<&'static str, u64>,
    first: u64,
    bonus: u64,
    forced: u64,
    reasoning: u64,
    anomalies: Anomalies,
    plain: u64,
    windows: u64,
    mtp: DraftCounts,
    suffix: DraftCounts,
    hits: u64,
    misses: u64,
    skipped: u64,
    preempted: u64,
    stall_ns: u64,
    trimmed_constraint: u64,
    mask_ns: u64,
}

impl Metrics {
    /// One HTTP answer.
    pub(crate) fn http(&mut self, route: &'static str, method: &'static str, status: u16) {
        *self.http.entry((route, method, status)).or_default() += 1;
    }

    /// Bytes of a closed connection.
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.sent_bytes += bytes;
    }

    /// One choice ended.
    pub(crate) fn ended(&mut self, end: End) {
        *self.ends.entry(end).or_default() += 1;
    }

    /// What a choice used, however it ended. `counts_prompt` for the first choice of a prompt.
    pub(crate) fn used(&mut self, report: &Report, counts_prompt: bool) {
        if counts_prompt {
            self.prompt_computed += report.prompt_tokens - report.cached_tokens;
            self.prompt_cached += report.cached_tokens;
            if let Some(miss) = report.cache_miss {
                *self.cache_misses.entry(miss.name()).or_default() += 1;
            }
        }
        self.first += report.first;
        self.bonus += report.bonus;
        self.forced += report.forced;
        self.reasoning += report.reasoning;
        self.plain += report.plain;
        self.windows += report.windows;
        self.mtp.add(&report.mtp);
        self.suffix.add(&report.suffix);
        self.hits += report.suffix_lookups.hits;
        self.misses += report.suffix_lookups.misses;
        self.skipped += report.suffix_lookups.skipped;
        self.preempted += report.preempted;
        self.stall_ns += report.stall_ns;
        self.trimmed_constraint += report.trimmed_constraint;
        self.mask_ns += report.mask_ns;
    }

    /// What a choice wrote wrongly.
    pub(crate) fn wrote(&mut self, anomalies: Anomalies) {
        self.anomalies.duplicate_parameters += anomalies.duplicate_parameters;
        self.anomalies.unterminated_calls += anomalies.unterminated_calls;
        self.anomalies.unknown_tools += anomalies.unknown_tools;
    }

    /// What of it a host is told.
    pub(crate) fn totals(&self) -> Stats {
        Stats {
            running: self.running,
            waiting: self.open.saturating_sub(self.running),
            prompt_tokens: self.prompt_computed + self.prompt_cached,
            completion_tokens: self.first + self.bonus + self.forced + self.mtp.accepted + self.suffix.accepted,
            mtp: self.mtp,
            suffix: self.suffix,
            ..Stats::default()
        }
    }

    /// The page.
    pub(crate) fn render(&self, ready: bool) -> String {
        let mut out = String::new();
        let version = format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
        family(&mut out, "engine_build_info", "gauge", "Build of the server", &[(version, 1)]);
        let one = |value: u64| vec![(String::new(), value)];
        family(&mut out, "engine_ready", "gauge", "Whether requests are taken", &one(ready.into()));
        let offer = self.mtp_offer.map(|offer| (format!("{{state=\"{}\"}}", offer.label()), 1));
        family(&mut out, "engine_mtp_info", "gauge", "Whether the MTP block may draft", offer.as_slice());
        family(&mut out, "engine_requests_running", "gauge", "Admitted choices", &one(self.running));
        let waiting = self.open.saturating_sub(self.running);
        family(&mut out, "engine_requests_waiting", "gauge", "Queued choices", &one(waiting));
        let http: Vec<_> = self
            .http
            .iter()
            .map(|((route, method, code), n)| {
                (format!("{{route=\"{route}\",method=\"{method}\",code=\"{code}\"}}"), *n)
            })
            .collect();
        family(&mut out, "engine_http_requests_total", "counter", "HTTP answers", &http);
        let sent = one(self.sent_bytes);
        family(&mut out, "engine_http_response_bytes_total", "counter", "Bytes sent on closed connections", &sent);
        let ends: Vec<_> = End::ALL
            .iter()
            .map(|(end, name)| (format!("{{reason=\"{name}\"}}"), self.ends.get(end).copied().unwrap_or(0)))
            .collect();
        family(&mut out, "engine_requests_finished_total", "counter", "Choices by the reason of their end", &ends);
        let sources = [("computed", self.prompt_computed), ("cached", self.prompt_cached)];
        family(&mut out, "engine_prompt_tokens_total", "counter", "Prompt tokens", &labelled("source", &sources));
        let results = [("hit", self.prompt_cached), ("miss", self.prompt_computed)];
        let help = "Prompt tokens by whether the prefix cache had them";
        family(&mut out, "engine_prefix_tokens_total", "counter", help, &labelled("result", &results));
        let misses = Miss::ALL.map(|m| (m.name(), self.cache_misses.get(m.name()).copied().unwrap_or(0)));
        let help = "Prompts by why more than their last token was computed";
        family(&mut out, "engine_prefix_miss_total", "counter", help, &labelled("reason", &misses));
        let sources = [
            ("first", self.first),
            ("mtp", self.mtp.accepted),
            ("suffix", self.suffix.accepted),
            ("bonus", self.bonus),
            ("forced", self.forced),
        ];
        let help = "Completion tokens by who proposed them";
        family(&mut out, "engine_generation_tokens_total", "counter", help, &labelled("source", &sources));
        let help = "Completion tokens of thinking";
        family(&mut out, "engine_reasoning_tokens_total", "counter", help, &one(self.reasoning));
        let kinds = [
            ("duplicate_parameter", self.anomalies.duplicate_parameters),
            ("unterminated_call", self.anomalies.unterminated_calls),
            ("unknown_tool", self.anomalies.unknown_tools),
        ];
        let help = "What models wrote that they should not have";
        family(&mut out, "engine_output_anomalies_total", "counter", help, &labelled("kind", &kinds));
        let kinds = [("plain", self.plain), ("window", self.windows)];
        family(&mut out, "engine_spec_steps_total", "counter", "Decode steps", &labelled("kind", &kinds));
        let mut drafts = Vec::new();
        for (proposer, c) in [("mtp", &self.mtp), ("suffix", &self.suffix)] {
            for (class, value) in [
                ("proposed", c.proposed),
                ("trimmed", c.trimmed),
                ("accepted", c.accepted),
                ("rejected", c.rejected),
                ("unreached", c.unreached),
                ("discarded", c.discarded),
            ] {
                drafts.push((format!("{{proposer=\"{proposer}\",class=\"{class}\"}}"), value));
            }
        }
        family(&mut out, "engine_spec_tokens_total", "counter", "Draft tokens by what became of them", &drafts);
        let trimmed = self.mtp.trimmed + self.suffix.trimmed - self.trimmed_constraint;
        let reasons = [("window", trimmed), ("grammar", self.trimmed_constraint)];
        let help = "Draft tokens that were cut before they were verified";
        family(&mut out, "engine_spec_trimmed_total", "counter", help, &labelled("reason", &reasons));
        let results = [("hit", self.hits), ("miss", self.misses), ("skipped", self.skipped)];
        family(&mut out, "engine_suffix_lookups_total", "counter", "Suffix look-ups", &labelled("result", &results));
        family(&mut out, "engine_preemptions_total", "counter", "Times a row was preempted", &one(self.preempted));
        if let Some(records) = &self.records {
            let counts =
                [("written", records.written.load(Ordering::Relaxed)), ("lost", records.lost.load(Ordering::Relaxed))];
            let help = "Choices by whether their record was written";
            family(&mut out, "engine_records_total", "counter", help, &labelled("result", &counts));
            let stopped = one(records.stopped.load(Ordering::Relaxed).into());
            family(
                &mut out,
                "engine_recording_stopped",
                "gauge",
                "Whether a failed write ended the recording",
                &stopped,
            );
        }
        for (name, help, ns) in [
            ("engine_stream_stall_seconds_total", "Time rows waited for slow readers", self.stall_ns),
            ("engine_constraint_mask_seconds_total", "Time to make the masks of constrained rows", self.mask_ns),
        ] {
            let seconds = ns as f64 / 1e9;
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {seconds}");
        }
        if let Some(compiles) = &self.compiles {
            compiles.write(&mut out);
        }
        out
    }
}

fn labelled(label: &str, values: &[(&str, u64)]) -> Vec<(String, u64)> {
    values.iter().map(|(name, value)| (format!("{{{label}=\"{name}\"}}"), *value)).collect()
}

fn family(out: &mut String, name: &str, kind: &str, help: &str, samples: &[(String, u64)]) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(out, "{name}{labels} {value}");
    }
}
