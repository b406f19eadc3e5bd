//! What the server itself counts: requests, tokens, drafts.

use std::sync::atomic::Ordering;

use engine::api::Miss;
use engine::gauges::{Snapshot, State};

use crate::serve::conns::Standing;
use crate::serve::error::REJECTIONS;
use crate::serve::info;
use crate::serve::metrics::exposition::{Exposition, Histogram, Unit};
use crate::serve::metrics::{End, Metrics, Stage};
use crate::serve::spec::CLAMP_REASONS;
use crate::serve::view::View;

pub(super) fn write(page: &mut Exposition, m: &Metrics, ready: bool, seen: Option<(&View, &Snapshot)>) {
    let version = info::version();
    let commit = version["commit"].as_str().unwrap_or("unknown");
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("commit", commit), ("backend", "cpu")];
    page.info("engine_build_info", "Build of the server", &labels);
    page.gauge("engine_ready", "Whether requests are taken", u8::from(ready));
    if let Some(offer) = m.mtp_offer {
        page.info("engine_mtp_info", "Whether the MTP block may draft", &[("state", offer.label())]);
    }
    page.gauge("engine_requests_running", "Admitted choices", m.running);
    page.gauge("engine_requests_waiting", "Queued choices", m.waiting());
    let stalled = seen.map_or(0, |(_, s)| s.rows.iter().filter(|row| row.state() == State::Stalled).count());
    page.gauge("engine_requests_stalled", "Choices that wait for their reader", stalled);
    http(page, m);
    requests(page, m);
    tokens(page, m);
    speculation(page, m);
    records(page, m);
    page.seconds("engine_constraint_mask_seconds_total", "Time to make the masks of constrained rows", m.mask_ns);
    if let Some(compiles) = &m.compiles {
        compiles.write(page.text());
    }
    times(page, m, seen.map_or(usize::MAX, |(view, _)| view.labels.n_ctx));
}

fn http(page: &mut Exposition, m: &Metrics) {
    let codes: Vec<String> = m.http.keys().map(|(_, _, code)| code.to_string()).collect();
    let rows: Vec<(Vec<(&str, &str)>, String)> = m
        .http
        .iter()
        .zip(&codes)
        .map(|(((route, method, _), n), code)| {
            (vec![("route", *route), ("method", *method), ("code", code.as_str())], n.to_string())
        })
        .collect();
    page.table("engine_http_requests_total", "counter", "HTTP answers", &rows);
    page.counter("engine_http_request_bytes_total", "Bytes that clients have sent", m.received_bytes);
    page.counter("engine_http_response_bytes_total", "Bytes that clients were sent", m.sent_bytes);
    let states = Standing::ALL.map(|(standing, name)| (name, m.connections[standing as usize]));
    page.by("engine_http_connections", "gauge", "Connections by what they are at", "state", &states);
}

fn requests(page: &mut Exposition, m: &Metrics) {
    let rejected = REJECTIONS.map(|reason| (reason, m.rejected.get(reason).copied().unwrap_or(0)));
    let help = "Requests that were refused before anything was computed for them";
    page.by("engine_requests_rejected_total", "counter", help, "reason", &rejected);
    let ends = End::ALL.map(|(end, name)| (name, m.ends.get(&end).copied().unwrap_or(0)));
    page.by("engine_requests_finished_total", "counter", "Choices by the reason of their end", "reason", &ends);
    let stages = Stage::ALL.map(|(stage, name)| (name, m.cancelled.get(&stage).copied().unwrap_or(0)));
    let help = "Choices whose client went, by what they were at";
    page.by("engine_cancellations_total", "counter", help, "phase", &stages);
    let faults = ["nonfinite", "barred", "backend"].map(|name| (name, m.faults.get(name).copied().unwrap_or(0)));
    page.by("engine_row_faults_total", "counter", "Choices that a fault ended", "kind", &faults);
    let ignored: Vec<(&str, u64)> = m.ignored.iter().map(|(name, n)| (*name, *n)).collect();
    page.by("engine_ignored_params_total", "counter", "Fields without effect", "param", &ignored);
    page.seconds("engine_stream_stall_seconds_total", "Time rows waited for slow readers", m.stall_ns);
    let help = "Connections whose reader took nothing for too long";
    page.counter("engine_stream_stall_kills_total", help, m.stall_kills);
    let kinds = [
        ("duplicate_parameter", m.anomalies.duplicate_parameters),
        ("unterminated_call", m.anomalies.unterminated_calls),
        ("invalid_utf8", m.invalid_utf8),
        ("unknown_tool", m.anomalies.unknown_tools),
    ];
    let help = "What models wrote that they should not have";
    page.by("engine_output_anomalies_total", "counter", help, "kind", &kinds);
}

fn tokens(page: &mut Exposition, m: &Metrics) {
    let sources = [("computed", m.prompt_computed), ("cached", m.prompt_cached)];
    page.by("engine_prompt_tokens_total", "counter", "Prompt tokens", "source", &sources);
    let results = [("hit", m.prompt_cached), ("miss", m.prompt_computed)];
    let help = "Prompt tokens by whether the prefix cache had them";
    page.by("engine_prefix_tokens_total", "counter", help, "result", &results);
    let misses = Miss::ALL.map(|miss| (miss.name(), m.cache_misses.get(miss.name()).copied().unwrap_or(0)));
    let help = "Prompts by why more than their last token was computed";
    page.by("engine_prefix_miss_total", "counter", help, "reason", &misses);
    let sources = [
        ("first", m.first),
        ("mtp", m.mtp.accepted),
        ("suffix", m.suffix.accepted),
        ("bonus", m.bonus),
        ("forced", m.forced),
    ];
    page.by("engine_generation_tokens_total", "counter", "Completion tokens by who proposed them", "source", &sources);
    page.counter("engine_reasoning_tokens_total", "Completion tokens of thinking", m.reasoning);
}

fn speculation(page: &mut Exposition, m: &Metrics) {
    page.by("engine_spec_steps_total", "counter", "Decode steps", "kind", &[("plain", m.plain), ("window", m.windows)]);
    let mut drafts = Vec::new();
    for (proposer, c) in [("mtp", &m.mtp), ("suffix", &m.suffix)] {
        for (class, value) in [
            ("proposed", c.proposed),
            ("trimmed", c.trimmed),
            ("accepted", c.accepted),
            ("rejected", c.rejected),
            ("unreached", c.unreached),
            ("discarded", c.discarded),
        ] {
            drafts.push((vec![("proposer", proposer), ("class", class)], value.to_string()));
        }
    }
    page.table("engine_spec_tokens_total", "counter", "Draft tokens by what became of them", &drafts);
    let trimmed = m.mtp.trimmed + m.suffix.trimmed - m.trimmed_constraint;
    let reasons = [("window", trimmed), ("grammar", m.trimmed_constraint)];
    let help = "Draft tokens that were cut before they were verified";
    page.by("engine_spec_trimmed_total", "counter", help, "reason", &reasons);
    let names: Vec<String> = (0..m.positions.len()).map(|p| p.to_string()).collect();
    let mut positions = Vec::new();
    for (name, (drafted, accepted)) in names.iter().zip(&m.positions).filter(|(_, (drafted, _))| *drafted > 0) {
        for (class, value) in [("drafted", drafted), ("accepted", accepted)] {
            positions.push((vec![("position", name.as_str()), ("class", class)], value.to_string()));
        }
    }
    page.table("engine_spec_position_total", "counter", "Drafts by their place in the window", &positions);
    let tails = [("tested", m.tails_tested), ("untested", m.tails - m.tails_tested)];
    let help = "Windows of both proposers, by whether the suffix tail was tested";
    page.by("engine_spec_tail_total", "counter", help, "result", &tails);
    page.histogram("engine_spec_window_width", "Drafts of a step", Unit::One, &[], &m.widths);
    page.histogram("engine_spec_accept_length", "Drafts of a window that were committed", Unit::One, &[], &m.accepted);
    let down = ["cost"].map(|reason| (reason, m.turned_down.get(reason).copied().unwrap_or(0)));
    page.by("engine_spec_turned_down_total", "counter", "Choices that stopped drafting", "reason", &down);
    let clamps = CLAMP_REASONS.map(|reason| (reason, m.clamps.get(reason).copied().unwrap_or(0)));
    page.by("engine_spec_clamps_total", "counter", "Wishes that were cut at admission", "reason", &clamps);
    let results = [("hit", m.hits), ("miss", m.misses), ("skipped", m.skipped)];
    page.by("engine_suffix_lookups_total", "counter", "Suffix look-ups", "result", &results);
    let (name, help) = ("engine_suffix_seconds_total", "Time of the suffix index");
    let ops = [("lookup", m.lookup_ns), ("extend", m.extend_ns)];
    page.by_in(Unit::Nanoseconds, name, "counter", help, "op", &ops);
    page.seconds("engine_mtp_seconds_total", "Time of MTP drafting", m.mtp_ns);
}

fn records(page: &mut Exposition, m: &Metrics) {
    let Some(records) = &m.records else { return };
    let counts = [("written", records.written.load(Ordering::Relaxed)), ("lost", records.lost.load(Ordering::Relaxed))];
    let help = "Choices by whether their record was written";
    page.by("engine_records_total", "counter", help, "result", &counts);
    let stopped = u8::from(records.stopped.load(Ordering::Relaxed));
    page.gauge("engine_recording_stopped", "Whether a failed write ended the recording", stopped);
}

fn times(page: &mut Exposition, m: &Metrics, n_ctx: usize) {
    let times = &m.times;
    for (name, help, histogram) in [
        ("engine_ttft_seconds", "Arrival to the first token of a choice", &times.ttft),
        ("engine_queue_seconds", "Arrival to a slot", &times.queue),
        ("engine_prefill_seconds", "Slot to the first token", &times.prefill),
        ("engine_decode_seconds", "First token to the last", &times.decode),
        ("engine_e2e_seconds", "Arrival to the end of a choice", &times.e2e),
    ] {
        page.histogram(name, help, Unit::Nanoseconds, &[], histogram);
    }
    let within = |histogram: &Histogram| histogram.within(n_ctx as u64);
    page.histogram(
        "engine_request_prompt_tokens",
        "Prompt tokens of a choice",
        Unit::One,
        &[],
        &within(&m.sizes.prompt),
    );
    let help = "Completion tokens of a choice";
    page.histogram("engine_request_generation_tokens", help, Unit::One, &[], &within(&m.sizes.generation));
}
