//! What an answer tells of itself: progress of the prompt, timings on the way, an event a token, log-probabilities of an
//! echoed prompt, an end when the time is over; and that none of it changes what is said.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use engine::api::Finish;
use engine_bin::serve::{Bounds, Show};
use serde_json::{Value, json};

use super::client::{Client, ask, get};
use super::fake::{Fake, Script, chat, config, hello};
use super::real::{Real, STRATEGIES};

const PROMPT: &str = "Rename `caf\u{e9}` to `\u{20ac}` in all of it.\n```python\ndef caf\u{e9}(x):\n    return caf\u{e9}(x) + caf\u{e9}(1)\n```";

/// The dialects that stream: path, body, and the field that limits tokens.
fn dialects() -> [(&'static str, Value); 4] {
    let messages = json!([{"role": "user", "content": PROMPT}]);
    [
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 40})),
        ("/v1/completions", json!({"prompt": PROMPT, "max_tokens": 40, "ignore_eos": true})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 40})),
        ("/v1/responses", json!({"input": PROMPT, "max_output_tokens": 40})),
    ]
}

fn with(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Without the prefix cache, so that one run is as the other.
fn drafted(body: &Value, strategy: &str, more: Value) -> Value {
    let speculative = json!({"strategy": strategy, "window": {"policy": "fixed", "initial": 2}});
    let cold = json!({"temperature": 0, "cache_prompt": false, "speculative": speculative});
    with(&with(body, cold), more)
}

/// Prompts in chunks of sixteen.
fn chunked() -> SocketAddr {
    static SERVER: OnceLock<Real> = OnceLock::new();
    SERVER.get_or_init(|| Real::start("--threads 1 --prefill-chunk 16")).address()
}

fn events(address: SocketAddr, path: &str, body: &Value) -> Vec<Value> {
    let answer = ask(address, path, &with(body, json!({"stream": true})));
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    if path.ends_with("completions") { answer.chunks() } else { answer.named() }
}

/// What a stream says, without names and times.
fn said(events: &[Value]) -> String {
    let text = |e: &Value| {
        let choice = &e["choices"][0];
        let delta = [&choice["delta"]["content"], &choice["text"], &e["delta"]["text"], &e["delta"]];
        delta.into_iter().find_map(Value::as_str).unwrap_or_default().to_owned()
    };
    events.iter().map(text).collect()
}

#[test]
fn timings_are_on_every_chunk_where_they_are_asked_for() {
    for (path, body) in dialects() {
        let openai = path.ends_with("completions");
        for strategy in STRATEGIES {
            let plain = events(chunked(), path, &drafted(&body, strategy, json!({})));
            let timed = events(chunked(), path, &drafted(&body, strategy, json!({"timings_per_token": true})));
            assert_eq!(said(&timed), said(&plain), "{path}, {strategy}");
            let told = |e: &&Value| e["timings"].is_object();
            assert!(plain.len() > 3 && !plain[..plain.len() - 2].iter().any(|e| told(&e)), "{path}: nobody asked");
            let delta = |e: &&Value| {
                openai || e["type"].as_str().unwrap().ends_with("delta") && e["delta"]["stop_reason"].is_null()
            };
            let on_the_way: Vec<&Value> = timed.iter().filter(delta).collect();
            assert!(on_the_way.len() > 3 && on_the_way.iter().all(told), "{path}, {strategy}: {on_the_way:?}");
            let n = |e: &Value, name: &str| e["timings"][name].as_u64().unwrap();
            let made: Vec<u64> = on_the_way.iter().map(|e| n(e, "predicted_n")).collect();
            assert!(made.is_sorted() && made.last().is_some_and(|last| *last <= 40), "{path}, {strategy}: {made:?}");
            assert!(made.iter().collect::<std::collections::BTreeSet<_>>().len() > 3, "they grow: {made:?}");
            let prompts: Vec<u64> = on_the_way.iter().map(|e| n(e, "prompt_n") + n(e, "cache_n")).collect();
            assert!(prompts.iter().all(|n| *n == prompts[0] && *n > 16), "{prompts:?}");
            let drafts = on_the_way.iter().filter(|e| e["timings"]["draft_n"].is_u64()).count();
            match strategy {
                "off" => assert_eq!(drafts, 0, "{path}"),
                "ngram-suffix" => {}
                _ => assert!(drafts > 0, "{path}, {strategy}"),
            }
        }
        // Nothing comes before the one answer of a request that is not streamed.
        let whole = ask(chunked(), path, &drafted(&body, "off", json!({"timings_per_token": true})));
        assert_eq!(whole.status, 200);
    }
}

#[test]
fn progress_of_the_prompt_comes_before_anything_else() {
    for (path, body) in &dialects()[..2] {
        for strategy in STRATEGIES {
            let plain = events(chunked(), path, &drafted(body, strategy, json!({})));
            let more = json!({"return_progress": true, "stream_options": {"include_usage": true}});
            let told = events(chunked(), path, &drafted(body, strategy, more));
            let total = told.last().unwrap()["usage"]["prompt_tokens"].as_u64().unwrap();
            let first = told.iter().position(|e| e["prompt_progress"].is_null()).unwrap();
            let progress: Vec<&Value> = told[..first].iter().map(|e| &e["prompt_progress"]).collect();
            let processed: Vec<u64> = progress.iter().map(|p| p["processed"].as_u64().unwrap()).collect();
            let mut expected: Vec<u64> = (1..total).filter(|n| n % 16 == 0 || n + 1 == total).collect();
            expected.push(total);
            assert_eq!(processed, expected, "{path}, {strategy}: a chunk a pass, and the last token by itself");
            assert!(progress.iter().all(|p| p["total"] == total && p["cache"] == 0 && p["time_ms"].is_number()));
            assert!(told[..first].iter().all(|e| e["choices"] == json!([]) && e["id"] == told[first]["id"]));
            assert!(told[first..].iter().all(|e| e["prompt_progress"].is_null()), "{path}");
            if path.ends_with("chat/completions") {
                assert_eq!(told[first]["choices"][0]["delta"]["role"], "assistant");
            }
            assert_eq!(said(&told[first..]), said(&plain), "{path}, {strategy}");
        }
    }
    // What the cache has is there from the start; prompts of one request count together.
    let body =
        json!({"prompt": [PROMPT, "x = 1\ny = 2\n"], "max_tokens": 4, "temperature": 0, "cache_salt": "progress"});
    for cached in [false, true] {
        let told = events(chunked(), "/v1/completions", &with(&body, json!({"return_progress": true})));
        let progress: Vec<&Value> = told.iter().map(|e| &e["prompt_progress"]).filter(|p| p.is_object()).collect();
        let last = progress.last().unwrap();
        assert_eq!(last["processed"], last["total"]);
        assert_eq!(last["cache"].as_u64().unwrap() > 0, cached, "{progress:?}");
        assert!(progress.iter().all(|p| p["cache"].as_u64() <= p["processed"].as_u64() || p == &progress[0]));
    }
    // Where its chunks have no place it has no effect, and the answer says so.
    for (path, body) in &dialects()[2..] {
        for stream in [false, true] {
            let answer = ask(chunked(), path, &with(body, json!({"return_progress": true, "stream": stream})));
            assert_eq!(
                (answer.status, answer.header("x-engine-ignored-params")),
                (200, Some("return_progress")),
                "{path}"
            );
            assert!(!answer.text().contains("prompt_progress"), "{path}: {}", answer.text());
        }
    }
}

#[test]
fn an_event_a_token_says_the_same() {
    static SERVER: OnceLock<Real> = OnceLock::new();
    let show = Show { per_token: true, ..Show::default() };
    let single = SERVER.get_or_init(|| Real::showing("--threads 1 --prefill-chunk 16", show)).address();
    for (path, body) in &dialects()[..2] {
        let logprobs = if path.ends_with("chat/completions") { json!(true) } else { json!(0) };
        let more = json!({"return_tokens": true, "logprobs": logprobs, "stream_options": {"include_usage": true}});
        let mut known: Option<Vec<(Value, Value, Value)>> = None;
        for strategy in STRATEGIES {
            let steps = events(chunked(), path, &drafted(body, strategy, more.clone()));
            let tokens = events(single, path, &drafted(body, strategy, more.clone()));
            assert_eq!(said(&tokens), said(&steps), "{path}, {strategy}");
            let ids = |events: &[Value]| -> Vec<Value> {
                events
                    .iter()
                    .flat_map(|e| e["choices"][0]["token_ids"].as_array().cloned().unwrap_or_default())
                    .collect()
            };
            assert_eq!(ids(&tokens), ids(&steps), "{path}, {strategy}");
            assert_eq!(tokens.last().unwrap()["usage"], steps.last().unwrap()["usage"], "{path}, {strategy}");
            // The events are the same whoever drafted, and none has the text of two tokens.
            let list: Vec<(Value, Value, Value)> = tokens
                .iter()
                .map(|e| e["choices"][0].clone())
                .map(|c| (c["delta"].clone(), c["text"].clone(), json!([c["token_ids"], c["logprobs"]])))
                .collect();
            let texts = |e: &&Value| e["choices"][0]["token_ids"].as_array().is_some_and(|ids| !ids.is_empty());
            assert!(tokens.iter().filter(texts).count() > 25, "{path}, {strategy}: {}", tokens.len());
            assert_eq!(known.get_or_insert_with(|| list.clone()), &list, "{path}, {strategy}");
            if strategy == "mtp-suffix" {
                assert!(steps.len() < tokens.len(), "several tokens a step: {} events", steps.len());
            }
        }
    }
    for (path, body) in &dialects()[2..] {
        for strategy in ["off", "mtp-suffix"] {
            let [a, b] = [single, chunked()].map(|at| events(at, path, &drafted(body, strategy, json!({}))));
            assert_eq!(said(&a), said(&b), "{path}, {strategy}");
        }
    }
}

#[test]
fn a_server_that_tells_nothing_of_itself() {
    let show = Show { stats: false, ..Show::default() };
    let fake = Fake::with(engine_bin::serve::Config { show, ..config() }, hello);
    for (path, body) in dialects() {
        let body = with(&body, json!({"timings_per_token": true}));
        let body = match path.ends_with("completions") {
            true => with(&body, json!({"stream": true, "stream_options": {"include_speculation": true}})),
            false => with(&body, json!({"stream": true})),
        };
        let answer = ask(fake.address(), path, &body);
        assert_eq!(answer.status, 200, "{path}");
        for word in ["timings", "speculation"] {
            assert!(!answer.text().contains(word), "{path}: {}", answer.text());
        }
        let ignored = answer.header("x-engine-ignored-params").unwrap();
        assert!(ignored.contains("timings_per_token"), "{ignored}");
        assert_eq!(ignored.contains("stream_options.include_speculation"), path.ends_with("completions"), "{ignored}");
        let whole = ask(fake.address(), path, &with(&body, json!({"stream": false, "stream_options": null})));
        assert_eq!(whole.status, 200, "{path}");
        assert!(
            !whole.text().contains("timings\"") && !whole.text().contains("speculation"),
            "{path}: {}",
            whole.text()
        );
    }
    // Elsewhere both are there.
    let fake = Fake::start(hello);
    for (path, body) in dialects() {
        let whole = ask(fake.address(), path, &body).json();
        assert!(whole["timings"].is_object() && whole["speculation"].is_object(), "{path}");
    }
}

#[test]
fn an_answer_whose_time_is_over_is_cut_in_every_dialect() {
    let bounds = Bounds { request_time: Some(Duration::from_secs(5000)), ..Bounds::default() };
    let fake = Fake::bounded(bounds, |_| Script::Say(vec!["so", " far"], Finish::TimedOut));
    for (path, body) in dialects() {
        let whole = ask(fake.address(), path, &body);
        assert_eq!(whole.status, 200, "{path}: {}", whole.text());
        let (whole, last) = (whole.json(), events(fake.address(), path, &body).pop().unwrap());
        match path {
            "/v1/messages" => {
                assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("max_tokens"), &Value::Null));
                assert_eq!(whole["content"][0]["text"], "so far");
                assert_eq!(last["type"], "message_stop");
            }
            "/v1/responses" => {
                assert_eq!(
                    (&last["type"], &last["response"]["status"]),
                    (&json!("response.incomplete"), &json!("incomplete"))
                );
                assert_eq!(whole["incomplete_details"], json!({"reason": "max_output_tokens"}));
                assert_eq!(whole["output"][0]["content"][0]["text"], "so far");
            }
            _ => {
                for choice in [&whole["choices"][0], &last["choices"][0]] {
                    assert_eq!(
                        (&choice["finish_reason"], &choice["stop_reason"]),
                        (&json!("length"), &json!("timeout"))
                    );
                }
                assert!(whole.to_string().contains("so far"), "{whole}");
            }
        }
    }
    let mut client = Client::connect(fake.address());
    client.send(get("/metrics"));
    let metrics = client.answer().text();
    assert!(metrics.contains("engine_requests_finished_total{reason=\"timeout\"} 8\n"), "{metrics}");
    // What is left of the time when the engine gets it, and no limit without one.
    let times: Vec<Option<u64>> = fake.submissions().iter().map(|s| s.time_ns).collect();
    let within = |ns: &Option<u64>| ns.is_some_and(|ns| ns > 4_000_000_000_000 && ns < 5_000_000_000_000);
    assert!(times.len() == 8 && times.iter().all(within), "{times:?}");
    let fake = Fake::start(hello);
    ask(fake.address(), "/v1/chat/completions", &chat("hi"));
    assert_eq!(fake.submissions()[0].time_ns, None);
}

#[test]
fn priority_reaches_the_queue() {
    let fake = Fake::start(hello);
    for (path, body) in dialects() {
        for priority in [json!(-100), json!(0), json!(100), Value::Null] {
            assert_eq!(ask(fake.address(), path, &with(&body, json!({"priority": priority}))).status, 200, "{path}");
            let last = fake.submissions().pop().unwrap();
            assert_eq!(i64::from(last.priority), priority.as_i64().unwrap_or(0), "{path}");
        }
        for priority in [json!(101), json!(-101), json!(1.5), json!("high"), json!(true)] {
            let answer = ask(fake.address(), path, &with(&body, json!({"priority": priority})));
            assert_eq!(answer.status, 400, "{path}: {priority}");
            assert!(answer.text().contains("priority"), "{path}");
        }
    }
}

fn legacy(answer: &Value, choice: usize) -> &Value {
    &answer["choices"][choice]["logprobs"]
}

#[test]
fn an_echoed_prompt_has_the_log_probabilities_that_its_tokens_had() {
    let path = "/v1/completions";
    let ids = |text: &str| -> Vec<Value> {
        let tokens = ask(chunked(), "/tokenize", &json!({"prompt": text})).json();
        tokens["tokens"].as_array().unwrap().clone()
    };
    let prompt = ids(PROMPT);
    let mut known: Option<Value> = None;
    for strategy in STRATEGIES {
        let ask_for = |prompt: &[Value], more: Value| {
            let body = json!({"prompt": prompt, "logprobs": 3, "return_tokens": true, "temperature": 0, "ignore_eos": true,
                "speculative": {"strategy": strategy, "window": {"policy": "fixed"}}});
            let answer = ask(chunked(), path, &with(&body, more));
            assert_eq!(answer.status, 200, "{strategy}: {}", answer.text());
            answer.json()
        };
        let written = ask_for(&prompt, json!({"max_tokens": 30}));
        let answer = written["choices"][0]["token_ids"].as_array().unwrap();
        // An end token has no entry of its own.
        let answer = &answer[..legacy(&written, 0)["tokens"].as_array().unwrap().len()];
        assert!(answer.len() > 10, "{written}");
        let text = [prompt.as_slice(), answer].concat();
        for max_tokens in [0, 4] {
            let read = ask_for(&text, json!({"max_tokens": max_tokens, "echo": true}));
            let (got, want) = (legacy(&read, 0), legacy(&written, 0));
            for name in ["tokens", "token_logprobs", "top_logprobs"] {
                let list = got[name].as_array().unwrap();
                let end = text.len();
                assert_eq!(list[prompt.len()..end], *want[name].as_array().unwrap(), "{strategy}: {name}");
                assert_eq!(list[0].is_null(), name != "tokens", "{strategy}: {name}");
                assert!(list[1..].iter().all(|x| !x.is_null()), "{strategy}: {name}");
            }
            let whole = read["choices"][0]["text"].as_str().unwrap();
            let pieces: Vec<&str> = got["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
            assert!(pieces.len() >= text.len(), "{strategy}: of every token");
            let offsets: Vec<u64> =
                got["text_offset"].as_array().unwrap().iter().map(|o| o.as_u64().unwrap()).collect();
            assert!(offsets.is_sorted() && offsets[0] == 0, "{offsets:?}");
            for (piece, offset) in pieces.iter().zip(&offsets).filter(|(piece, _)| !piece.contains('\u{fffd}')) {
                let rest: String = whole.chars().skip(*offset as usize).collect();
                assert!(rest.starts_with(piece), "{strategy}: {piece:?} at {offset} of {whole:?}");
            }
            assert_eq!(read["timings"]["cache"]["miss_reason"], "prompt_logprobs", "{strategy}");
            assert_eq!((&read["timings"]["cache_n"], &read["usage"]["prompt_tokens"]), (&json!(0), &json!(text.len())));
            if max_tokens == 0 {
                let choice = &read["choices"][0];
                assert_eq!(
                    (&choice["finish_reason"], &choice["stop_reason"]),
                    (&json!("length"), &json!("max_tokens"))
                );
                assert_eq!(pieces.len(), text.len());
                assert_eq!(known.get_or_insert_with(|| got.clone()), got, "{strategy}: the same whoever drafts");
            }
        }
    }
}

#[test]
fn a_streamed_echo_is_the_whole_one_in_parts() {
    let path = "/v1/completions";
    for strategy in ["off", "mtp-suffix"] {
        let body = json!({"prompt": [PROMPT, "x"], "n": 2, "seed": 3, "logprobs": 2, "echo": true, "max_tokens": 8,
            "speculative": {"strategy": strategy}});
        let whole = ask(chunked(), path, &body).json();
        let chunks = events(chunked(), path, &with(&body, json!({"return_progress": true, "timings_per_token": true})));
        for index in 0..4 {
            let own: Vec<&Value> = chunks.iter().map(|e| &e["choices"][0]).filter(|c| c["index"] == index).collect();
            let prompt = if index < 2 { PROMPT } else { "x" };
            assert_eq!(own[0]["text"], prompt, "{strategy}: the prompt is the first chunk");
            assert!(own[0]["logprobs"]["token_logprobs"][0].is_null());
            let text: String = own.iter().map(|c| c["text"].as_str().unwrap()).collect();
            assert_eq!(text, whole["choices"][index]["text"].as_str().unwrap(), "{strategy}");
            for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let joined: Vec<Value> =
                    own.iter().flat_map(|c| c["logprobs"][name].as_array().cloned().unwrap_or_default()).collect();
                assert_eq!(Value::from(joined), legacy(&whole, index)[name], "{strategy}: {name} of {index}");
            }
        }
        let single = legacy(&whole, 2);
        assert!(single["token_logprobs"][0].is_null() && single["token_logprobs"][1].is_number());
    }
}

#[test]
fn usage_is_on_every_chunk_where_it_is_asked_for() {
    for (path, body) in dialects().into_iter().take(2) {
        let options = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
        let chunks = events(chunked(), path, &drafted(&body, "mtp-suffix", options));
        let n = |chunk: &Value, name: &str| {
            chunk["usage"][name].as_u64().unwrap_or_else(|| panic!("{path}: no {name} in {chunk}"))
        };
        let completed: Vec<u64> = chunks.iter().map(|chunk| n(chunk, "completion_tokens")).collect();
        assert!(
            completed.len() > 3 && completed.is_sorted() && completed[0] < *completed.last().unwrap(),
            "{completed:?}"
        );
        for chunk in &chunks {
            let prompt = n(chunk, "prompt_tokens");
            assert_eq!(prompt, n(&chunks[0], "prompt_tokens"));
            assert_eq!(n(chunk, "total_tokens"), prompt + n(chunk, "completion_tokens"));
        }
    }
}
