//! What a server shows of itself: `/metrics`, `/slots`, `/props`, the page, and who proposed what in a stream.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use engine::limits::Limits;
use engine_bin::serve::{Aliases, Config, Show};
use engine_tests::scripted::{Rule, ScriptedServer};
use serde_json::{Value, json};

use super::client::{Answer, Client, DEADLINE, ask, get, post};

const CONTEXT: usize = 1024;
/// Text that a suffix index drafts well.
const SAY: &str = "</think>\n\none two three four five six seven, one two three four five six seven, one two three four \
                   five six seven, caf\u{e9} \u{1f980} one two three four five six seven";

fn start(show: Show, keys: &[&str]) -> ScriptedServer {
    let api_keys = keys.iter().map(|key| (*key).to_owned()).collect();
    let config = Config { show, api_keys, ..Config::local(0, CONTEXT) };
    let limits = Limits { prefix_cache: true, ..Limits::new(3, CONTEXT) };
    ScriptedServer::start(config, &limits, vec![Rule::new("count", SAY)])
}

pub fn fetch(address: SocketAddr, path: &str) -> Answer {
    let mut client = Client::connect(address);
    client.send(get(path));
    client.answer()
}

fn body(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "count"}], "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// One sample of a family: name, labels, value.
pub type Sample = (String, BTreeMap<String, String>, f64);

/// A page that follows the format to the letter: families by name, with their kind.
pub fn parse(text: &str) -> BTreeMap<String, (String, Vec<Sample>)> {
    let mut out: BTreeMap<String, (String, Vec<Sample>)> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let (mut current, mut helped) = (String::new(), None);
    assert!(text.ends_with('\n'), "the last line ends");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(!help.is_empty() && helped.is_none(), "{line}");
            helped = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a kind");
            assert_eq!(helped.take().as_deref(), Some(name), "a family's help stands before its type");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            let own = !name.starts_with("llamacpp:") && !name.starts_with("vllm:");
            assert_eq!(own && kind == "counter", own && name.ends_with("_total"), "{line}");
            assert!(out.insert(name.to_owned(), (kind.to_owned(), Vec::new())).is_none(), "{name} stands twice");
            current = name.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').map_or((series, ""), |(name, rest)| {
                (name, rest.strip_suffix('}').unwrap_or_else(|| panic!("{line}")))
            });
            let (kind, samples) = out.get_mut(&current).unwrap_or_else(|| panic!("{line} before any family"));
            let suffix = name.strip_prefix(current.as_str()).unwrap_or_else(|| panic!("{line} in {current}"));
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.contains(&suffix), "{line} in {current}");
            assert!(seen.insert(series.to_owned()), "{series} stands twice");
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(value.is_finite() && value >= 0.0, "{line}");
            samples.push((name.to_owned(), labels_of(labels), value));
        }
    }
    for (name, (kind, samples)) in &out {
        if kind == "histogram" {
            check_histogram(name, samples);
        }
    }
    assert!(seen.len() <= 1500, "{} series", seen.len());
    out
}

fn labels_of(text: &str) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").expect("a label");
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{text}");
        let end = after.find('"').expect("a label's end");
        assert!(!after[..end].ends_with('\\'), "no label here has quotes: {text}");
        assert!(out.insert(name.to_owned(), after[..end].to_owned()).is_none(), "{text}");
        rest = &after[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    out
}

fn check_histogram(name: &str, samples: &[Sample]) {
    let (mut last, mut bound) = (0.0, f64::NEG_INFINITY);
    let mut all = None;
    for (series, labels, value) in samples {
        if series.ends_with("_bucket") {
            let le = &labels["le"];
            let next = if le == "+Inf" { f64::INFINITY } else { le.parse().unwrap() };
            assert!(next > bound && *value >= last, "{name}: bucket {le}");
            (last, bound) = (*value, next);
        } else if series.ends_with("_count") {
            all = Some(*value);
        }
    }
    assert_eq!((bound, all), (f64::INFINITY, Some(last)), "{name}: the last bucket is the count");
}

pub fn sum(page: &BTreeMap<String, (String, Vec<Sample>)>, family: &str, wanted: &[(&str, &str)]) -> u64 {
    let (_, samples) = page.get(family).unwrap_or_else(|| panic!("there is no {family}"));
    let fits = |labels: &BTreeMap<String, String>| wanted.iter().all(|(k, v)| labels.get(*k).is_some_and(|l| l == v));
    samples.iter().filter(|(_, labels, _)| fits(labels)).map(|(_, _, value)| *value).sum::<f64>() as u64
}

#[test]
fn metrics_keep_the_format_and_are_the_sums_of_the_answers() {
    let server = start(Show::default(), &[]);
    let address = server.address();
    let mut before = parse(&fetch(address, "/metrics").text());
    let (mut completion, mut prompt, mut cached, mut blocks) = (0, 0, 0, Vec::new());
    for round in 0..4 {
        let strategy = if round == 2 { "off" } else { "ngram-suffix" };
        let wish = json!({"strategy": strategy, "suffix_tokens": 60, "window": {"policy": "fixed", "initial": 5}});
        let more = json!({"speculative": wish, "user": "somebody", "unheard_of": round, "n": 1 + round % 2});
        let answer = ask(address, "/v1/chat/completions", &body(more)).json();
        let usage = |name: &str| answer["usage"][name].as_u64().unwrap();
        completion += usage("completion_tokens");
        prompt += usage("prompt_tokens");
        cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        blocks.push(answer["speculation"].clone());
        let after = parse(&fetch(address, "/metrics").text());
        for (name, (kind, samples)) in &before {
            for (series, labels, value) in samples.iter().filter(|_| kind != "gauge") {
                let now = after[name].1.iter().find(|(n, l, _)| (n, l) == (series, labels));
                assert!(now.is_some_and(|(_, _, now)| now >= value), "{series} {labels:?} went back");
            }
        }
        before = after;
    }
    let page = before;
    let total = |key: &str| blocks.iter().map(|block| block[key].as_u64().unwrap()).sum::<u64>();
    let class = |class: &str| sum(&page, "engine_spec_tokens_total", &[("class", class)]);
    for name in ["proposed", "trimmed", "accepted", "rejected", "unreached", "discarded"] {
        assert_eq!(class(name), total(&format!("{name}_n")), "{name}");
    }
    assert!(class("accepted") > 20, "the text repeats itself");
    let drafted = total("drafted_n");
    for (family, labels, value) in [
        ("engine_generation_tokens_total", vec![], completion),
        ("engine_generation_tokens_total", vec![("source", "bonus")], total("bonus_n")),
        ("engine_prompt_tokens_total", vec![], prompt),
        ("engine_prompt_tokens_total", vec![("source", "cached")], cached),
        ("engine_spec_steps_total", vec![("kind", "plain")], total("plain_n")),
        ("engine_spec_steps_total", vec![("kind", "window")], total("windows_n")),
        ("engine_spec_position_total", vec![("class", "drafted")], drafted),
        ("engine_spec_position_total", vec![("class", "accepted")], class("accepted")),
        ("engine_requests_finished_total", vec![("reason", "stop")], 6),
        ("engine_requests_finished_total", vec![], 6),
        ("engine_ignored_params_total", vec![("param", "other")], 4),
        ("vllm:generation_tokens_total", vec![], completion),
        ("vllm:prompt_tokens_total", vec![], prompt),
        ("vllm:prefix_cache_hits_total", vec![], cached),
        ("vllm:request_success_total", vec![("finished_reason", "stop")], 6),
        ("vllm:spec_decode_num_draft_tokens_total", vec![], drafted),
        ("llamacpp:tokens_predicted_total", vec![], completion),
        ("llamacpp:spec_decode_num_draft_tokens_total", vec![], drafted),
        ("engine_kv_pages", vec![], Limits::new(3, CONTEXT).pages as u64),
        ("engine_kv_pages", vec![("state", "used")], 0),
        ("engine_requests_running", vec![], 0),
        ("engine_slots", vec![], 3),
    ] {
        assert_eq!(sum(&page, family, &labels), value, "{family} {labels:?}");
    }
    let count = |family: &str| {
        let samples = &page[family].1;
        samples.iter().find(|(n, _, _)| n.ends_with("_count")).map(|(_, _, value)| *value as u64)
    };
    let steps = total("steps_n");
    assert_eq!((count("engine_spec_window_width"), count("engine_step_seconds")), (Some(steps), Some(steps)));
    assert_eq!(count("engine_inter_token_seconds"), Some(completion - total("first_n")));
    assert_eq!((count("engine_e2e_seconds"), count("vllm:e2e_request_latency_seconds")), (Some(6), Some(6)));
    assert_eq!(count("vllm:request_params_n"), Some(4), "one a request");
    // Nothing that a client wrote is on the page.
    let text = fetch(address, "/metrics").text();
    assert!(!text.contains("unheard_of") && !text.contains("somebody"));
}

#[test]
fn further_names_and_the_key_are_as_asked_for() {
    let show =
        Show { aliases: Aliases::parse("llamacpp").unwrap(), metrics_key: true, slots: false, ..Show::default() };
    let server = start(show, &["secret"]);
    assert_eq!(fetch(server.address(), "/metrics").status, 401);
    let with_key = |path: &str| {
        let mut client = Client::connect(server.address());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer secret\r\n\r\n"));
        client.answer()
    };
    let text = with_key("/metrics").text();
    parse(&text);
    assert!(text.contains("llamacpp:n_decode_total") && !text.contains("vllm:"), "{text}");
    let slots = with_key("/slots");
    assert_eq!((slots.status, slots.header("x-should-retry")), (501, Some("false")));
    for path in ["/slots", "/props", "/v1/props"] {
        assert_eq!(fetch(server.address(), path).status, 401, "{path}");
    }
    assert_eq!(fetch(server.address(), "/").status, 200, "the page itself holds no secret");
    assert!(Aliases::parse("vllm,prometheus").unwrap_err().contains("prometheus"));
    assert_eq!(Aliases::parse(""), Ok(Aliases { vllm: false, llamacpp: false }));
}

#[test]
fn slots_show_who_runs_and_who_does_not() {
    let server = start(Show::default(), &[]);
    let address = server.address();
    let idle = fetch(address, "/slots").json();
    assert_eq!(idle.as_array().map(Vec::len), Some(3));
    let free = |slots: &Value| slots.as_array().unwrap().iter().filter(|slot| slot["state"] == "free").count();
    assert_eq!(free(&idle), 3);
    // Three readers that take nothing hold all slots.
    let long = body(json!({"stream": true, "ignore_eos": true, "n": 3, "max_tokens": 900, "logprobs": true,
        "top_logprobs": 20}));
    let mut client = Client::connect(address);
    client.send(post("/v1/chat/completions", &long.to_string()));
    let deadline = std::time::Instant::now() + DEADLINE;
    let busy = loop {
        let slots = fetch(address, "/slots").json();
        if free(&slots) == 0 {
            break slots;
        }
        assert!(std::time::Instant::now() < deadline, "{slots}");
    };
    for (i, slot) in busy.as_array().unwrap().iter().enumerate() {
        assert_eq!((&slot["id"], &slot["is_processing"]), (&json!(i), &json!(true)), "{slot}");
        let state = slot["state"].as_str().unwrap();
        assert!(["prefill", "decode", "stalled"].contains(&state), "{slot}");
        assert!(slot["request"].as_str().unwrap().starts_with(&format!("r{i}v")), "{slot}");
        let n = |key: &str| slot[key].as_i64().unwrap_or_else(|| panic!("{key}: {slot}"));
        assert_eq!((n("n_ctx"), n("n_remain")), (CONTEXT as i64, 900 - n("n_decoded")));
        assert!(n("n_cached") <= n("n_prompt_done") && n("n_prompt_done") <= n("n_prompt"));
        assert_eq!((&slot["strategy"], &slot["speculative"]), (&json!("ngram-suffix"), &json!(true)));
        assert_eq!(
            slot["next_token"],
            json!({"has_next_token": true, "n_remain": n("n_remain"), "n_decoded": n("n_decoded")})
        );
    }
    let full = fetch(address, "/slots?fail_on_no_slot=1");
    assert_eq!((full.status, &full.json()["error"]["code"]), (503, &json!("no_slot")));
    drop(client);
    while free(&fetch(address, "/slots?fail_on_no_slot=0").json()) != 3 {
        assert!(std::time::Instant::now() < deadline, "who left still holds a slot");
    }
    let page = parse(&fetch(address, "/metrics").text());
    assert_eq!(sum(&page, "engine_kv_pages", &[("state", "used")]), 0);
    assert_eq!(sum(&page, "engine_cancellations_total", &[]), 3);
    assert_eq!(fetch(address, "/slots?fail_on_no_slot=1").status, 200);
    let mut client = Client::connect(address);
    client.send(post("/slots/0?action=save", "{}"));
    assert_eq!(client.answer().status, 501);
}

#[test]
fn props_describe_model_and_server() {
    let server = start(Show::default(), &[]);
    let props = fetch(server.address(), "/props").json();
    assert_eq!((&props["total_slots"], &props["model_path"]), (&json!(3), &json!("scripted")));
    assert_eq!(props["default_generation_settings"]["n_ctx"], CONTEXT);
    assert_eq!(props["default_generation_settings"]["params"]["temperature"], 1.0);
    assert!(props["chat_template"].as_str().unwrap().contains("<tool_call>"));
    assert_eq!(props["chat_template_caps"]["supports_tools"], true);
    assert_eq!(props["modalities"], json!({"vision": false, "audio": false}));
    let engine = &props["engine"];
    assert_eq!(engine["speculation"]["strategies"], json!(["off", "ngram-suffix"]));
    assert_eq!((&engine["tool_style"], &engine["limits"]["choices"]), (&json!("xml"), &json!(3)));
    assert_eq!(engine["reasoning"], json!({"start": "<think>", "end": "</think>"}));
    let mut client = Client::connect(server.address());
    client.send(post("/props", "{}"));
    assert_eq!(client.answer().status, 501);
}

#[test]
fn the_page_is_whole_and_asks_for_nothing_else() {
    let server = start(Show::default(), &[]);
    for path in ["/", "/index.html"] {
        let page = fetch(server.address(), path);
        assert_eq!(page.status, 200);
        assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none';") && policy.contains("connect-src 'self'"), "{policy}");
        assert!(page.text().starts_with("<!DOCTYPE html>"));
    }
}

/// Every chunk says who proposed its tokens; all of them together are the text and the totals.
#[test]
fn chunks_say_who_proposed_their_tokens() {
    let server = start(Show::default(), &[]);
    for strategy in ["off", "ngram-suffix"] {
        for usage in [false, true] {
            let wish = json!({"strategy": strategy, "window": {"policy": "fixed", "initial": 6}});
            let options = json!({"include_speculation": true, "include_usage": usage});
            let more = json!({"stream": true, "stream_options": options, "speculative": wish, "n": 2});
            let chunks = ask(server.address(), "/v1/chat/completions", &body(more)).chunks();
            let total = &chunks.last().unwrap()["speculation"];
            let mut counts: BTreeMap<String, u64> = BTreeMap::new();
            let (mut drafted, mut accepted, mut texts, mut shown) =
                (0, 0, [String::new(), String::new()], [String::new(), String::new()]);
            for chunk in &chunks {
                let Some(choice) = chunk["choices"].get(0) else { continue };
                let i = choice["index"].as_u64().unwrap() as usize;
                shown[i].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
                let Some(block) = chunk.get("speculation").filter(|block| block.get("tokens").is_some()) else {
                    continue;
                };
                drafted += block["drafted"].as_u64().unwrap();
                accepted += block["accepted"].as_u64().unwrap();
                for token in block["tokens"].as_array().unwrap() {
                    texts[i].push_str(token["text"].as_str().unwrap());
                    *counts.entry(token["source"].as_str().unwrap().to_owned()).or_default() += 1;
                }
            }
            let n = |key: &str| total[key].as_u64().unwrap();
            assert_eq!((drafted, accepted), (n("drafted_n"), n("accepted_n")), "{strategy}");
            let of = |source: &str| counts.get(source).copied().unwrap_or(0);
            assert_eq!(of("target"), n("first_n") + n("bonus_n"));
            assert_eq!((of("suffix"), of("mtp"), of("forced")), (n("accepted_n"), 0, 0));
            assert_eq!(strategy == "off", accepted == 0, "the text repeats itself");
            for i in 0..2 {
                assert_eq!(texts[i].trim_start(), shown[i], "the tokens' texts are the answer's");
                assert!(shown[i].contains("caf\u{e9} \u{1f980} one"));
            }
        }
    }
    // Without the wish there is no such block.
    let chunks = ask(server.address(), "/v1/chat/completions", &body(json!({"stream": true}))).chunks();
    assert!(chunks.iter().all(|chunk| chunk["speculation"].get("tokens").is_none()));
}
