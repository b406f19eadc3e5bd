//! Counters of the process, in Prometheus text format 0.0.4. Labels come from closed sets only.

mod bounds;
mod engine_side;
mod exposition;
mod llamacpp;
mod own;
mod vllm;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::api::{DraftCounts, Finish, Report};
use engine::limits::WINDOW_MAX;
use engine::step::Fault;
use engine::tables::totals::TIME_BOUNDS_NS;

use crate::embed::Stats;
use crate::serve::calls::Anomalies;
use crate::serve::conns::Standing;
use crate::serve::constrain::Times;
use crate::serve::record::Counts;
use crate::serve::schema;
use crate::serve::spec::{MtpOffer, Plan};
use crate::serve::view::View;

use exposition::{Exposition, Histogram};

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
    /// It waited too long for a slot, or its time was over.
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
            Finish::TimedOut => Self::Timeout,
            Finish::Fault(_) => Self::Error,
        }
    }
}

/// All counters.
pub(crate) struct Metrics {
    /// Whether the MTP block may draft; known with the model.
    pub mtp_offer: Option<MtpOffer>,
    /// Of a server that records.
    pub records: Option<Arc<Counts>>,
    /// Of a server that compiles constraints.
    pub compiles: Option<Arc<Times>>,
    http: BTreeMap<(&'static str, &'static str, u16), u64>,
    /// Connections by what they are at, and bytes of all of them: of the last moment in which somebody asked.
    pub connections: [u64; Standing::ALL.len()],
    pub received_bytes: u64,
    pub sent_bytes: u64,
    rejected: BTreeMap<&'static str, u64>,
    ends: BTreeMap<End, u64>,
    /// Choices that were cancelled, by what they were at.
    cancelled: BTreeMap<Stage, u64>,
    faults: BTreeMap<&'static str, u64>,
    /// Choices known to the engine and not finished.
    pub open: u64,
    /// ... of which admitted.
    pub running: u64,
    /// Readers that took nothing for too long.
    pub stall_kills: u64,
    ignored: BTreeMap<&'static str, u64>,
    clamps: BTreeMap<&'static str, u64>,
    turned_down: BTreeMap<&'static str, u64>,
    prompt_computed: u64,
    prompt_cached: u64,
    cache_misses: BTreeMap<&'static str, u64>,
    first: u64,
    bonus: u64,
    forced: u64,
    reasoning: u64,
    anomalies: Anomalies,
    invalid_utf8: u64,
    plain: u64,
    windows: u64,
    mtp: DraftCounts,
    mtp_ns: u64,
    suffix: DraftCounts,
    hits: u64,
    misses: u64,
    skipped: u64,
    lookup_ns: u64,
    extend_ns: u64,
    tails: u64,
    tails_tested: u64,
    /// Per position in a window: drafted, accepted.
    positions: [(u64, u64); WINDOW_MAX],
    widths: Histogram,
    accepted: Histogram,
    stall_ns: u64,
    trimmed_constraint: u64,
    mask_ns: u64,
    times: RequestTimes,
    sizes: RequestSizes,
    /// Longest prompt and answer together.
    tokens_most: u64,
    recent: Recent,
}

/// What a choice was at when it was cancelled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Stage {
    Queued,
    Prefill,
    Decode,
    Stalled,
}

impl Stage {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Queued, "queued"), (Self::Prefill, "prefill"), (Self::Decode, "decode"), (Self::Stalled, "stalled")];
}

/// Times of finished choices, in nanoseconds.
struct RequestTimes {
    ttft: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    e2e: Histogram,
}

/// Sizes of requests.
struct RequestSizes {
    prompt: Histogram,
    generation: Histogram,
    choices: Histogram,
    max_tokens: Histogram,
}

/// Tokens of the choices that ended in the last ten seconds.
#[derive(Default)]
struct Recent(VecDeque<(Instant, u64, u64)>);

impl Recent {
    const SPAN: Duration = Duration::from_secs(10);

    fn add(&mut self, now: Instant, prompt: u64, generated: u64) {
        // One entry a tenth of a second: no more than a hundred are kept.
        match self.0.back_mut() {
            Some(last) if now.duration_since(last.0) < Self::SPAN / 100 => {
                last.1 += prompt;
                last.2 += generated;
            }
            _ => self.0.push_back((now, prompt, generated)),
        }
        while self.0.front().is_some_and(|first| now.duration_since(first.0) > Self::SPAN) {
            self.0.pop_front();
        }
    }

    /// Per second: of prompts and of answers.
    fn rates(&self, now: Instant) -> (f64, f64) {
        let recent = self.0.iter().filter(|entry| now.duration_since(entry.0) <= Self::SPAN);
        let (prompt, generated) = recent.fold((0, 0), |sum, entry| (sum.0 + entry.1, sum.1 + entry.2));
        (prompt as f64 / Self::SPAN.as_secs_f64(), generated as f64 / Self::SPAN.as_secs_f64())
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let latency = || Histogram::new(&bounds::LATENCY_NS);
        let tokens = || Histogram::new(&bounds::TOKENS);
        Self {
            mtp_offer: None,
            records: None,
            http: BTreeMap::new(),
            connections: [0; Standing::ALL.len()],
            received_bytes: 0,
            sent_bytes: 0,
            rejected: BTreeMap::new(),
            ends: BTreeMap::new(),
            cancelled: BTreeMap::new(),
            faults: BTreeMap::new(),
            open: 0,
            running: 0,
            stall_kills: 0,
            ignored: BTreeMap::new(),
            clamps: BTreeMap::new(),
            turned_down: BTreeMap::new(),
            prompt_computed: 0,
            prompt_cached: 0,
            cache_misses: BTreeMap::new(),
            first: 0,
            bonus: 0,
            forced: 0,
            reasoning: 0,
            anomalies: Anomalies::default(),
            invalid_utf8: 0,
            plain: 0,
            windows: 0,
            mtp: DraftCounts::default(),
            mtp_ns: 0,
            suffix: DraftCounts::default(),
            hits: 0,
            misses: 0,
            skipped: 0,
            lookup_ns: 0,
            extend_ns: 0,
            tails: 0,
            tails_tested: 0,
            positions: [(0, 0); WINDOW_MAX],
            widths: Histogram::new(&bounds::DRAFTS),
            accepted: Histogram::new(&bounds::DRAFTS),
            stall_ns: 0,
            trimmed_constraint: 0,
            mask_ns: 0,
            compiles: None,
            times: RequestTimes {
                ttft: Histogram::new(&TIME_BOUNDS_NS),
                queue: latency(),
                prefill: latency(),
                decode: latency(),
                inference: latency(),
                e2e: latency(),
            },
            sizes: RequestSizes {
                prompt: tokens(),
                generation: tokens(),
                choices: Histogram::new(&bounds::CHOICES),
                max_tokens: tokens(),
            },
            tokens_most: 0,
            recent: Recent::default(),
        }
    }
}

impl Metrics {
    /// One HTTP answer; `rejection`: see [`crate::serve::error::ApiError::rejection`].
    pub(crate) fn http(
        &mut self,
        route: &'static str,
        method: &'static str,
        status: u16,
        rejection: Option<&'static str>,
    ) {
        *self.http.entry((route, method, status)).or_default() += 1;
        if let Some(reason) = rejection {
            *self.rejected.entry(reason).or_default() += 1;
        }
    }

    /// A request for so many choices of each prompt was begun.
    pub(crate) fn asked(&mut self, choices: usize, max_tokens: u64, plan: &Plan, ignored: &[String]) {
        self.sizes.choices.observe(choices as u64);
        self.sizes.max_tokens.observe(max_tokens);
        for reason in plan.clamp_reasons() {
            *self.clamps.entry(reason).or_default() += 1;
        }
        for name in ignored {
            *self.ignored.entry(schema::known(name)).or_default() += 1;
        }
    }

    /// One choice ended.
    pub(crate) fn ended(&mut self, end: End) {
        *self.ends.entry(end).or_default() += 1;
    }

    /// One choice was cancelled by who asked for it.
    pub(crate) fn cancelled(&mut self, stage: Stage) {
        *self.cancelled.entry(stage).or_default() += 1;
    }

    /// One choice ended by itself.
    pub(crate) fn finished(&mut self, finish: Finish, report: &Report, now: Instant) {
        if let Finish::Fault(fault) = finish {
            *self.faults.entry(fault_name(fault)).or_default() += 1;
        }
        let times = &mut self.times;
        times.ttft.observe(report.ttft_ns);
        times.queue.observe(report.queue_ns);
        times.prefill.observe(report.prompt_ns);
        times.decode.observe(report.predicted_ns);
        times.inference.observe(report.prompt_ns + report.predicted_ns);
        times.e2e.observe(report.total_ns);
        self.sizes.prompt.observe(report.prompt_tokens);
        self.sizes.generation.observe(report.completion_tokens);
        self.tokens_most = self.tokens_most.max(report.prompt_tokens + report.completion_tokens);
        self.recent.add(now, report.prompt_tokens - report.cached_tokens, report.completion_tokens);
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
        if let Some(down) = report.turned_down {
            *self.turned_down.entry(down.reason).or_default() += 1;
        }
        self.first += report.first;
        self.bonus += report.bonus;
        self.forced += report.forced;
        self.reasoning += report.reasoning;
        self.invalid_utf8 += report.invalid_utf8;
        self.plain += report.plain;
        self.windows += report.windows;
        self.mtp.add(&report.mtp);
        self.mtp_ns += report.mtp_draft_ns;
        self.suffix.add(&report.suffix);
        let lookups = &report.suffix_lookups;
        self.hits += lookups.hits;
        self.misses += lookups.misses;
        self.skipped += lookups.skipped;
        self.lookup_ns += lookups.lookup_ns;
        self.extend_ns += lookups.extend_ns;
        self.tails += report.tail_windows;
        self.tails_tested += report.tail_tested;
        for (sum, (drafted, accepted)) in self.positions.iter_mut().zip(&report.per_position) {
            sum.0 += drafted;
            sum.1 += accepted;
        }
        for (histogram, counts) in [(&mut self.widths, &report.width_hist), (&mut self.accepted, &report.accepted_hist)]
        {
            for (value, times) in counts.iter().enumerate().filter(|(_, times)| **times > 0) {
                histogram.add(value as u64, *times);
            }
        }
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
            waiting: self.waiting(),
            prompt_tokens: self.prompt_computed + self.prompt_cached,
            completion_tokens: self.generated(),
            mtp: self.mtp,
            suffix: self.suffix,
            ..Stats::default()
        }
    }

    fn waiting(&self) -> u64 {
        self.open.saturating_sub(self.running)
    }

    fn generated(&self) -> u64 {
        self.first + self.bonus + self.forced + self.mtp.accepted + self.suffix.accepted
    }

    /// The page of `/metrics`; `view` once there is a model.
    pub(crate) fn render(&self, ready: bool, view: Option<&View>, aliases: Aliases) -> String {
        let mut page = Exposition::default();
        let snapshot = view.map(View::snapshot);
        own::write(&mut page, self, ready, view.zip(snapshot.as_ref()));
        if let Some((view, snapshot)) = view.zip(snapshot.as_ref()) {
            engine_side::write(&mut page, view, snapshot);
            if aliases.vllm {
                vllm::write(&mut page, self, view, snapshot);
            }
            if aliases.llamacpp {
                llamacpp::write(&mut page, self, snapshot, Instant::now());
            }
        }
        page.finish()
    }
}

fn fault_name(fault: Fault) -> &'static str {
    match fault {
        Fault::NonFinite => "nonfinite",
        Fault::Barred => "barred",
        Fault::Lost => "backend",
    }
}

/// Further names under which the same is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aliases {
    /// Those of vLLM.
    pub vllm: bool,
    /// Those of llama-server.
    pub llamacpp: bool,
}

impl Aliases {
    /// All sets.
    pub const ALL: Self = Self { vllm: true, llamacpp: true };

    /// A comma list of names; empty for none.
    ///
    /// # Errors
    /// A name that is unknown.
    pub fn parse(list: &str) -> Result<Self, String> {
        let mut out = Self { vllm: false, llamacpp: false };
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "vllm" => out.vllm = true,
                "llamacpp" => out.llamacpp = true,
                other => return Err(format!("{other:?} is not one of vllm, llamacpp")),
            }
        }
        Ok(out)
    }
}
