//! Every family of `/metrics` with its labels, on a server that has served something: what dashboards are made for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use engine::limits::Limits;
use engine_bin::serve::{Bounds, Config};
use engine_tests::scripted::{Rule, ScriptedServer};
use serde_json::{Value, json};

use super::client::{Client, DEADLINE, ask, get, post};
use super::shown::{Sample, fetch, parse, sum};

const CONTEXT: usize = 1024;
const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";
const HISTOGRAM: &str = "histogram";
/// Any value that the server draws from a closed set of its own.
const ANY: &[&str] = &[];

type Labels = &'static [(&'static str, &'static [&'static str])];
/// Name, kind, and labels with all of their values.
type Family = (&'static str, &'static str, Labels);

const NONE: Labels = &[];
const OWN: &[Family] = &[
    ("engine_build_info", GAUGE, &[("version", ANY), ("commit", ANY), ("backend", &["cpu"])]),
    (
        "engine_model_info",
        GAUGE,
        &[("model", ANY), ("arch", ANY), ("ftype", ANY), ("trunk_layers", ANY), ("nextn", ANY), ("strategy", ANY)],
    ),
    ("engine_ready", GAUGE, NONE),
    ("engine_requests_running", GAUGE, NONE),
    ("engine_requests_waiting", GAUGE, NONE),
    ("engine_requests_stalled", GAUGE, NONE),
    ("engine_slots", GAUGE, NONE),
    ("engine_state_slots", GAUGE, NONE),
    ("engine_state_slots_used", GAUGE, NONE),
    ("engine_kv_pages", GAUGE, &[("state", &["free", "used", "cached"])]),
    ("engine_kv_usage_ratio", GAUGE, NONE),
    ("engine_checkpoints", GAUGE, NONE),
    ("engine_checkpoint_bytes", GAUGE, NONE),
    ("engine_suffix_index_bytes", GAUGE, NONE),
    ("engine_http_connections", GAUGE, &[("state", &["idle", "reading", "waiting", "writing"])]),
    ("engine_http_requests_total", COUNTER, &[("route", ANY), ("method", ANY), ("code", ANY)]),
    ("engine_http_request_bytes_total", COUNTER, NONE),
    ("engine_http_response_bytes_total", COUNTER, NONE),
    (
        "engine_requests_finished_total",
        COUNTER,
        &[(
            "reason",
            &["stop", "stop_string", "length", "context_full", "tool_calls", "cancelled", "error", "timeout"],
        )],
    ),
    (
        "engine_requests_rejected_total",
        COUNTER,
        &[("reason", &["queue_full", "draining", "loading", "too_long", "invalid", "auth", "limit"])],
    ),
    ("engine_cancellations_total", COUNTER, &[("phase", &["queued", "prefill", "decode", "stalled"])]),
    ("engine_prompt_tokens_total", COUNTER, &[("source", &["computed", "cached"])]),
    ("engine_generation_tokens_total", COUNTER, &[("source", &["first", "mtp", "suffix", "bonus", "forced"])]),
    ("engine_reasoning_tokens_total", COUNTER, NONE),
    ("engine_spec_steps_total", COUNTER, &[("kind", &["plain", "window"])]),
    (
        "engine_spec_tokens_total",
        COUNTER,
        &[
            ("proposer", &["mtp", "suffix"]),
            ("class", &["proposed", "trimmed", "accepted", "rejected", "unreached", "discarded"]),
        ],
    ),
    // A window is planned within the room and the pages that there are: nothing is cut for these.
    ("engine_spec_trimmed_total", COUNTER, &[("reason", &["window", "grammar"])]),
    ("engine_spec_position_total", COUNTER, &[("position", ANY), ("class", &["drafted", "accepted"])]),
    ("engine_spec_tail_total", COUNTER, &[("result", &["tested", "untested"])]),
    ("engine_spec_window_width", HISTOGRAM, NONE),
    ("engine_spec_accept_length", HISTOGRAM, NONE),
    ("engine_spec_turned_down_total", COUNTER, &[("reason", &["cost"])]),
    ("engine_spec_mute_rows_total", COUNTER, NONE),
    ("engine_spec_clamps_total", COUNTER, &[("reason", &["server_limit", "head_limit", "range", "unavailable"])]),
    ("engine_suffix_lookups_total", COUNTER, &[("result", &["hit", "miss", "skipped"])]),
    ("engine_suffix_seconds_total", COUNTER, &[("op", &["lookup", "extend"])]),
    ("engine_mtp_seconds_total", COUNTER, NONE),
    ("engine_prefix_tokens_total", COUNTER, &[("result", &["hit", "miss"])]),
    ("engine_prefix_miss_total", COUNTER, &[("reason", ANY)]),
    ("engine_preemptions_total", COUNTER, NONE),
    ("engine_evictions_total", COUNTER, &[("kind", &["page", "checkpoint"])]),
    ("engine_ticks_total", COUNTER, &[("kind", &["idle", "prefill", "decode", "mixed"])]),
    (
        "engine_system_seconds_total",
        COUNTER,
        &[(
            "system",
            &[
                "intake",
                "admit",
                "index_suffix",
                "plan",
                "draft_mtp",
                "extend_suffix",
                "prefill",
                "verify",
                "commit",
                "retire",
                "emit",
            ],
        )],
    ),
    ("engine_forward_seconds_total", COUNTER, &[("kind", &["prefill", "verify", "mtp"])]),
    ("engine_forward_rows_total", COUNTER, &[("kind", &["prefill", "verify", "mtp"])]),
    ("engine_ttft_seconds", HISTOGRAM, NONE),
    ("engine_queue_seconds", HISTOGRAM, NONE),
    ("engine_prefill_seconds", HISTOGRAM, NONE),
    ("engine_decode_seconds", HISTOGRAM, NONE),
    ("engine_e2e_seconds", HISTOGRAM, NONE),
    ("engine_inter_token_seconds", HISTOGRAM, NONE),
    ("engine_step_seconds", HISTOGRAM, NONE),
    ("engine_request_prompt_tokens", HISTOGRAM, NONE),
    ("engine_request_generation_tokens", HISTOGRAM, NONE),
    ("engine_stream_stall_seconds_total", COUNTER, NONE),
    ("engine_stream_stall_kills_total", COUNTER, NONE),
    ("engine_constraint_compile_seconds", HISTOGRAM, NONE),
    ("engine_constraint_mask_seconds_total", COUNTER, NONE),
    (
        "engine_output_anomalies_total",
        COUNTER,
        &[("kind", &["duplicate_parameter", "unterminated_call", "invalid_utf8", "unknown_tool"])],
    ),
    ("engine_ignored_params_total", COUNTER, &[("param", ANY)]),
    ("engine_row_faults_total", COUNTER, &[("kind", &["nonfinite", "barred", "backend"])]),
    ("engine_mtp_info", GAUGE, &[("state", ANY)]),
];

/// Without the labels that all of them have.
const VLLM: &[Family] = &[
    ("num_requests_running", GAUGE, NONE),
    ("num_requests_waiting", GAUGE, NONE),
    ("num_requests_swapped", GAUGE, NONE),
    ("kv_cache_usage_perc", GAUGE, NONE),
    ("gpu_cache_usage_perc", GAUGE, NONE),
    ("prefix_cache_queries_total", COUNTER, NONE),
    ("prefix_cache_hits_total", COUNTER, NONE),
    ("gpu_prefix_cache_queries_total", COUNTER, NONE),
    ("gpu_prefix_cache_hits_total", COUNTER, NONE),
    ("num_preemptions_total", COUNTER, NONE),
    ("prompt_tokens_total", COUNTER, NONE),
    ("generation_tokens_total", COUNTER, NONE),
    ("request_success_total", COUNTER, &[("finished_reason", &["stop", "length", "abort"])]),
    ("iteration_tokens_total", HISTOGRAM, NONE),
    ("time_to_first_token_seconds", HISTOGRAM, NONE),
    ("inter_token_latency_seconds", HISTOGRAM, NONE),
    ("time_per_output_token_seconds", HISTOGRAM, NONE),
    ("e2e_request_latency_seconds", HISTOGRAM, NONE),
    ("request_queue_time_seconds", HISTOGRAM, NONE),
    ("request_prefill_time_seconds", HISTOGRAM, NONE),
    ("request_decode_time_seconds", HISTOGRAM, NONE),
    ("request_inference_time_seconds", HISTOGRAM, NONE),
    ("request_prompt_tokens", HISTOGRAM, NONE),
    ("request_generation_tokens", HISTOGRAM, NONE),
    ("request_params_n", HISTOGRAM, NONE),
    ("request_params_max_tokens", HISTOGRAM, NONE),
    ("spec_decode_num_drafts_total", COUNTER, NONE),
    ("spec_decode_num_draft_tokens_total", COUNTER, NONE),
    ("spec_decode_num_accepted_tokens_total", COUNTER, NONE),
    ("spec_decode_num_accepted_tokens_per_pos_total", COUNTER, &[("position", ANY)]),
    (
        "cache_config_info",
        GAUGE,
        &[("block_size", ANY), ("num_gpu_blocks", ANY), ("cache_dtype", ANY), ("enable_prefix_caching", &["True"])],
    ),
    (
        "lora_requests_info",
        GAUGE,
        &[("max_lora", &["0"]), ("running_lora_adapters", &[""]), ("waiting_lora_adapters", &[""])],
    ),
];

const LLAMACPP: &[Family] = &[
    ("prompt_tokens_total", COUNTER, NONE),
    ("prompt_tokens_cached_total", COUNTER, NONE),
    ("prompt_seconds_total", COUNTER, NONE),
    ("tokens_predicted_total", COUNTER, NONE),
    ("tokens_predicted_seconds_total", COUNTER, NONE),
    ("n_decode_total", COUNTER, NONE),
    ("n_tokens_max", COUNTER, NONE),
    ("spec_decode_num_draft_tokens_total", COUNTER, NONE),
    ("spec_decode_num_accepted_tokens_total", COUNTER, NONE),
    ("spec_decode_num_drafts_total", COUNTER, NONE),
    ("spec_decode_num_accepted_tokens_per_pos_total", COUNTER, &[("position", ANY)]),
    ("prompt_tokens_seconds", GAUGE, NONE),
    ("predicted_tokens_seconds", GAUGE, NONE),
    ("requests_processing", GAUGE, NONE),
    ("requests_deferred", GAUGE, NONE),
    ("n_busy_slots_per_decode", GAUGE, NONE),
];

const CALL: &str =
    "</think>\n\n<tool_call>\n<function=nobody>\n<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n</parameter>\n";
const LONG: &str =
    "</think>\n\none two three four five, one two three four five, one two three four five, one two three";

fn server(config: Config) -> ScriptedServer {
    let limits = Limits { prefix_cache: true, ..Limits::new(2, CONTEXT) };
    ScriptedServer::start(config, &limits, vec![Rule::new("call", CALL), Rule::new("count", LONG)])
}

fn chat(content: &str, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": content}], "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Every value of every label that a family has.
fn labels(samples: &[Sample]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut out: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, labels, _) in samples {
        for (name, value) in labels.iter().filter(|(name, _)| *name != "le") {
            out.entry(name).or_default().insert(value);
        }
    }
    out
}

#[test]
fn every_family_has_its_name_its_kind_and_its_labels() {
    let server = server(Config::local(0, CONTEXT));
    let address = server.address();
    let window = json!({"strategy": "ngram-suffix", "window": {"policy": "fixed", "initial": 8}});
    for body in [
        chat("count", json!({"speculative": window, "user": "u", "made_up": 1, "n": 2})),
        chat("count", json!({"max_tokens": 8, "response_format": {"type": "json_object"}})),
    ] {
        assert_eq!(ask(address, "/v1/chat/completions", &body).status, 200);
    }
    assert_eq!(ask(address, "/v1/messages", &json!({})).status, 400);
    let page = parse(&fetch(address, "/metrics").text());
    let vllm = [("model_name", ["org/scripted"]), ("engine", ["0"])];
    let sets = [("", OWN), ("vllm:", VLLM), ("llamacpp:", LLAMACPP)];
    let mut known = BTreeSet::new();
    for (prefix, families) in sets {
        for (name, kind, wanted) in families {
            let name = format!("{prefix}{name}");
            let (found, samples) = page.get(&name).unwrap_or_else(|| panic!("there is no {name}"));
            assert_eq!(found, kind, "{name}");
            let mut labels = labels(samples);
            // The one of adapters is read by routers that look for just these labels.
            let based = prefix == "vllm:" && !name.ends_with("lora_requests_info");
            for (label, values) in vllm.iter().filter(|_| based) {
                assert_eq!(labels.remove(label), Some(values.iter().copied().collect()), "{name}");
            }
            let names: BTreeSet<&str> = wanted.iter().map(|(label, _)| *label).collect();
            assert_eq!(labels.keys().copied().collect::<BTreeSet<_>>(), names, "{name}");
            for (label, values) in wanted.iter().filter(|(_, values)| !values.is_empty()) {
                assert_eq!(labels[label], values.iter().copied().collect(), "{name}");
            }
            assert!(!samples.is_empty(), "{name} says nothing");
            known.insert(name);
        }
    }
    let others: Vec<&String> = page.keys().filter(|name| !known.contains(*name)).collect();
    assert!(others.is_empty(), "families that nobody knows of: {others:?}");
}

#[test]
fn what_models_write_wrongly_is_counted_by_kind() {
    let server = server(Config::local(0, CONTEXT));
    let address = server.address();
    let tools = json!([{"type": "function", "function": {"name": "some", "parameters": {"type": "object"}}}]);
    // Nothing holds the model to its tools where it says the marker's text, or where calls are as free as text.
    let answer = ask(address, "/v1/chat/completions", &chat("call", json!({"tools": tools}))).json();
    let kinds = |kind: &str| {
        sum(&parse(&fetch(address, "/metrics").text()), "engine_output_anomalies_total", &[("kind", kind)])
    };
    // Calls are held to the tools that there are, so that none of these can come of it.
    assert!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "some", "{answer}");
    assert_eq!((kinds("unknown_tool"), kinds("duplicate_parameter")), (0, 0));
    // The first byte of a character and nothing behind it.
    let cut = ask(address, "/tokenize", &json!({"content": "\u{1f980}", "with_pieces": true})).json();
    let first = cut["tokens"][0].clone();
    assert!(first["piece"].is_array(), "the vocabulary has no token for the crab: {cut}");
    let id = first["id"].to_string();
    let more =
        json!({"logit_bias": {id: 100}, "max_tokens": 3, "enable_thinking": false, "speculative": {"strategy": "off"}});
    let answer = ask(address, "/v1/chat/completions", &chat("nothing", more)).json();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    let wrong = text.matches('\u{fffd}').count() as u64;
    assert!(wrong > 0, "{answer}");
    assert_eq!(kinds("invalid_utf8"), wrong);
}

#[test]
fn refusals_are_counted_by_reason() {
    let bounds = Bounds { waiting: 64, head_bytes: 2000, ..Bounds::default() };
    let config =
        Config { api_keys: vec!["secret".to_owned()], bounds, body_limit: 40_000, ..Config::local(0, CONTEXT) };
    let server = server(config);
    let address = server.address();
    let send = |text: String| {
        let mut client = Client::connect(address);
        client.send(text);
        client.answer().status
    };
    let keyed = |path: &str, body: &str| {
        send(format!(
            "POST {path} HTTP/1.1\r\nHost: t\r\napi-key: secret\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    };
    let long = chat(&"many words ".repeat(2000), json!({})).to_string();
    assert_eq!(send(post("/v1/chat/completions", "{}")), 401);
    assert_eq!(keyed("/v1/chat/completions", &long), 400);
    assert_eq!(
        (keyed("/v1/completions", "{"), keyed("/v1/embeddings", "{}"), keyed("/v1/nowhere", "{}")),
        (400, 501, 404)
    );
    assert_eq!(keyed("/v1/messages", &" ".repeat(50_000)), 413);
    assert_eq!(send(format!("GET /health HTTP/1.1\r\nHost: t\r\nX: {}\r\n\r\n", "x".repeat(3000))), 431);
    let page = parse(&fetch(address, "/metrics").text());
    for (reason, count) in
        [("auth", 1), ("too_long", 1), ("invalid", 3), ("limit", 2), ("queue_full", 0), ("draining", 0), ("loading", 0)]
    {
        assert_eq!(sum(&page, "engine_requests_rejected_total", &[("reason", reason)]), count, "{reason}");
    }
}

fn connections(address: SocketAddr) -> [u64; 4] {
    let page = parse(&fetch(address, "/metrics").text());
    ["idle", "reading", "waiting", "writing"].map(|state| sum(&page, "engine_http_connections", &[("state", state)]))
}

/// Asks until the sockets are at what is wanted: what a client has sent may not have been read yet.
fn until(address: SocketAddr, wanted: [u64; 4]) {
    let deadline = std::time::Instant::now() + DEADLINE;
    while connections(address) != wanted {
        assert!(std::time::Instant::now() < deadline, "{:?} and not {wanted:?}", connections(address));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn connections_are_counted_by_what_they_are_at() {
    let server = server(Config::local(0, CONTEXT));
    let address = server.address();
    // Who asks is being written to.
    until(address, [0, 0, 0, 1]);
    let mut idle = Client::connect(address);
    idle.send(get("/health"));
    idle.answer();
    until(address, [1, 0, 0, 1]);
    let mut reading = Client::connect(address);
    reading.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n{");
    until(address, [1, 1, 0, 1]);
    // Three answers that do not end by themselves, for two slots: two are on their way, one waits.
    let open = |stream: bool| {
        let body =
            chat("count", json!({"stream": stream, "ignore_eos": true, "n": 2, "logprobs": true, "top_logprobs": 20}));
        let mut client = Client::connect(address);
        client.send(post("/v1/chat/completions", &body.to_string()));
        client
    };
    let mut writing = open(true);
    writing.head();
    until(address, [1, 1, 0, 2]);
    let waiting = open(false);
    until(address, [1, 1, 1, 2]);
    drop((idle, reading, writing, waiting));
    until(address, [0, 0, 0, 1]);
}

#[test]
fn bytes_are_counted_as_they_pass() {
    let server = server(Config::local(0, CONTEXT));
    let address = server.address();
    let bytes = || {
        let page = parse(&fetch(address, "/metrics").text());
        (sum(&page, "engine_http_request_bytes_total", &[]), sum(&page, "engine_http_response_bytes_total", &[]))
    };
    until(address, [0, 0, 0, 1]);
    let before = bytes();
    let own = get("/metrics").len() as u64;
    let mut client = Client::connect(address);
    let request = post("/tokenize", &json!({"content": "x".repeat(5000)}).to_string());
    client.send(&request);
    client.answer();
    // The connection is open still.
    until(address, [1, 0, 0, 1]);
    let after = bytes();
    let sent = after.0 - before.0;
    let asked = (sent - request.len() as u64) / own;
    assert_eq!(sent, request.len() as u64 + asked * own, "every byte of every request, and none twice");
    assert!(after.1 > before.1 + 5000, "{before:?} {after:?}");
}
