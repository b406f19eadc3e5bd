//! Streams: order of chunks, what each carries, ends and failures.

use engine::api::{Command, Finish};
use engine::step::Fault;
use serde_json::{Value, json};

use super::client::{Client, ask, get, post};
use super::fake::{END, Fake, Script, chat, hello};

fn streamed(mut body: Value) -> Value {
    body["stream"] = true.into();
    body
}

#[test]
fn chunks_come_in_order() {
    let fake = Fake::start(hello);
    let mut body = streamed(chat("hi"));
    body["stream_options"] = json!({"include_usage": true});
    let answer = ask(fake.address(), "/v1/chat/completions", &body);
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(answer.header("x-engine-prompt-tokens"), Some("20"));
    let chunks = answer.chunks();
    assert!(chunks.iter().all(|c| c["id"] == chunks[0]["id"] && c["object"] == "chat.completion.chunk"));
    assert!(chunks.iter().all(|c| c["system_fingerprint"].is_string() && c["model"] == "org/toy"));
    let deltas: Vec<&Value> = chunks[..5].iter().map(|c| &c["choices"][0]["delta"]).collect();
    assert_eq!(deltas[0], &json!({"role": "assistant", "content": ""}));
    assert_eq!(deltas[1..4], [&json!({"content": "Hel"}), &json!({"content": "lo, "}), &json!({"content": "world"})]);
    assert_eq!(deltas[4], &json!({}));
    let reasons: Vec<&Value> = chunks[..5].iter().map(|c| &c["choices"][0]["finish_reason"]).collect();
    assert_eq!(reasons, [&Value::Null, &Value::Null, &Value::Null, &Value::Null, &json!("stop")]);
    assert!(chunks[..5].iter().all(|c| c["usage"].is_null() && c.as_object().unwrap().contains_key("usage")));
    let last = &chunks[5];
    assert_eq!((chunks.len(), &last["choices"]), (6, &json!([])));
    assert_eq!(last["usage"]["completion_tokens"], 13);
    assert_eq!(last["usage"]["total_tokens"], 33);
    assert_eq!(last["timings"]["predicted_n"], 13);
    assert_eq!(last["speculation"]["strategy"], "ngram-suffix");
}

#[test]
fn without_usage_the_figures_ride_on_the_last_chunk() {
    let fake = Fake::start(hello);
    let chunks = ask(fake.address(), "/v1/chat/completions", &streamed(chat("hi"))).chunks();
    assert!(chunks.iter().all(|c| c.get("usage").is_none()));
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert!(last["timings"].is_object() && last["speculation"].is_object());
}

#[test]
fn streamed_equals_not_streamed() {
    let fake = Fake::start(|_| Script::Say(vec!["a", "é", "\n\n", "x"], Finish::MaxTokens));
    let whole = ask(fake.address(), "/v1/chat/completions", &chat("hi")).json();
    let chunks = ask(fake.address(), "/v1/chat/completions", &streamed(chat("hi"))).chunks();
    let joined: String = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": joined, "refusal": null}));
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("length"), &json!("max_tokens")));
    assert_eq!(whole["object"], "chat.completion");
}

#[test]
fn choices_open_in_order_and_keep_their_index() {
    let fake = Fake::start(hello);
    let mut body = streamed(chat("hi"));
    body["n"] = json!(3);
    body["seed"] = json!(5);
    let chunks = ask(fake.address(), "/v1/chat/completions", &body).chunks();
    let index = |c: &Value| c["choices"][0]["index"].as_u64().unwrap();
    assert_eq!(chunks[..3].iter().map(index).collect::<Vec<_>>(), [0, 1, 2]);
    for i in 0..3 {
        let own: Vec<&Value> = chunks.iter().filter(|c| index(c) == i).map(|c| &c["choices"][0]).collect();
        assert_eq!(own.iter().filter(|c| c["delta"].get("role").is_some()).count(), 1);
        assert_eq!(own.last().unwrap()["finish_reason"], "stop");
        assert!(own[..own.len() - 1].iter().all(|c| c["finish_reason"].is_null()));
    }
    let submitted = fake.submissions();
    assert_eq!(
        submitted.iter().map(|s| (s.sampling.choice, s.sampling.seed)).collect::<Vec<_>>(),
        [(0, 5), (1, 5), (2, 5)]
    );
    body["stream_options"] = json!({"include_usage": true});
    let counted = ask(fake.address(), "/v1/chat/completions", &body).chunks().pop().unwrap();
    let usage = |answer: &Value, name: &str| answer["usage"][name].as_u64();
    assert_eq!((usage(&counted, "prompt_tokens"), usage(&counted, "completion_tokens")), (Some(20), Some(39)));
    body.as_object_mut().unwrap().remove("stream_options");
    body["stream"] = false.into();
    let whole = ask(fake.address(), "/v1/chat/completions", &body).json();
    assert_eq!(whole["usage"]["prompt_tokens"], 20);
    assert_eq!(whole["usage"]["completion_tokens"], 39);
    assert_eq!(whole["timings"]["seed"], 5);
}

/// Typed clients want every key on every chunk, one reason a choice, on its last, and figures on one chunk alone.
#[test]
fn every_chunk_has_its_keys() {
    let fake = Fake::start(|s| match s.sampling.choice {
        0 => Script::Say(vec!["a", "b"], Finish::EndToken(END)),
        _ => Script::Say(vec!["a", "b"], Finish::MaxTokens),
    });
    for (path, body) in [("/v1/chat/completions", chat("hi")), ("/v1/completions", json!({"prompt": "hi"}))] {
        for usage in [Some(true), Some(false), None] {
            let mut body = streamed(body.clone());
            body["n"] = json!(2);
            if let Some(usage) = usage {
                body["stream_options"] = json!({"include_usage": usage});
            }
            let chunks = ask(fake.address(), path, &body).chunks();
            let wanted = usage == Some(true);
            let counted: Vec<bool> = chunks.iter().map(|c| c.get("usage").is_some_and(|u| !u.is_null())).collect();
            assert_eq!(counted.iter().filter(|c| **c).count(), usize::from(wanted), "{path} {usage:?}");
            assert!(chunks.iter().all(|c| c.as_object().unwrap().contains_key("usage") == wanted), "{path} {usage:?}");
            assert!(chunks.iter().zip(&counted).all(|(c, counted)| (c["choices"] == json!([])) == *counted));
            let mut reasons = [Vec::new(), Vec::new()];
            for choice in chunks.iter().filter_map(|c| c["choices"].get(0)) {
                let reason = choice.get("finish_reason").unwrap_or_else(|| panic!("{path}: no reason in {choice}"));
                reasons[choice["index"].as_u64().unwrap() as usize].push(reason.as_str());
            }
            for (reasons, last) in reasons.into_iter().zip(["stop", "length"]) {
                assert_eq!((reasons.last(), reasons.len() > 2), (Some(&Some(last)), true), "{path}: {reasons:?}");
                assert!(reasons[..reasons.len() - 1].iter().all(Option::is_none), "{path}: {reasons:?}");
            }
        }
    }
}

#[test]
fn completions_with_several_prompts() {
    let fake = Fake::start(hello);
    let body = json!({"prompt": ["ab", "cde"], "n": 2, "echo": true});
    let whole = ask(fake.address(), "/v1/completions", &body).json();
    let texts: Vec<&str> = whole["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["abHello, world", "abHello, world", "cdeHello, world", "cdeHello, world"]);
    assert_eq!(whole["usage"]["prompt_tokens"], 5);
    let chunks = ask(fake.address(), "/v1/completions", &streamed(body)).chunks();
    let text: String = chunks
        .iter()
        .filter(|c| c["choices"][0]["index"] == 3)
        .map(|c| c["choices"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(text, "cdeHello, world");
    assert!(fake.submissions().iter().all(|s| s.max_tokens == 16));
    let ids = ask(fake.address(), "/v1/completions", &json!({"prompt": [104, 105], "max_tokens": 3})).json();
    assert_eq!(ids["object"], "text_completion");
    assert_eq!(fake.submissions().last().unwrap().prompt, super::fake::ids("hi"));
}

#[test]
fn logprobs_cover_the_text() {
    let fake = Fake::start(hello);
    let mut body = chat("hi");
    body["logprobs"] = true.into();
    body["top_logprobs"] = json!(1);
    let whole = ask(fake.address(), "/v1/chat/completions", &body).json();
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let joined: String = content.iter().map(|e| e["token"].as_str().unwrap()).collect();
    assert_eq!(joined, "Hello, world");
    assert_eq!(content[0]["top_logprobs"], json!([{"token": "H", "logprob": -0.5, "bytes": [72]}]));
    let chunks = ask(fake.address(), "/v1/chat/completions", &streamed(body)).chunks();
    let streamed: Vec<&Value> =
        chunks.iter().filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array()).flatten().collect();
    assert_eq!(streamed, content.iter().collect::<Vec<_>>());
    let legacy = ask(fake.address(), "/v1/completions", &json!({"prompt": "hi", "logprobs": 1})).json();
    let logprobs = &legacy["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 12);
    assert_eq!(logprobs["text_offset"][11], 11);
    assert_eq!(logprobs["top_logprobs"][0], json!({"H": -0.5}));
}

#[test]
fn a_chats_logprobs_join_to_its_content() {
    let fake = Fake::start(|_| Script::SayHidden(vec!["Hel", "lo"]));
    let mut body = chat("hi");
    body["logprobs"] = true.into();
    let choice = &ask(fake.address(), "/v1/chat/completions", &body).json()["choices"][0];
    let bytes: Vec<u8> = choice["logprobs"]["content"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|entry| entry["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8))
        .collect();
    assert_eq!(choice["message"]["content"].as_str().unwrap().as_bytes(), bytes);
    // A completion's are of all its tokens.
    let legacy = ask(fake.address(), "/v1/completions", &json!({"prompt": "hi", "logprobs": 1})).json();
    let logprobs = &legacy["choices"][0]["logprobs"];
    assert_eq!((&logprobs["tokens"][0], logprobs["tokens"].as_array().unwrap().len()), (&json!("<hidden>"), 7));
}

#[test]
fn logprobs_stop_where_a_stop_string_cuts() {
    // The engine has committed `abSTOP` and shows `ab`.
    let fake = Fake::start(|s| {
        assert_eq!(s.stop.strings, [b"STOP".to_vec()]);
        Script::Say(vec!["ab"], Finish::StopString(0))
    });
    let mut body = chat("hi");
    body["stop"] = json!("STOP");
    body["logprobs"] = true.into();
    let choice = &ask(fake.address(), "/v1/chat/completions", &body).json()["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!("STOP")));
    assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), 2);
}

#[test]
fn token_ids_are_complete() {
    let fake = Fake::start(hello);
    let mut body = chat("hi");
    body["return_tokens"] = true.into();
    let mut expected = super::fake::ids("Hello, world");
    expected.push(END);
    let expected: Vec<Value> = expected.iter().map(|t| t.0.into()).collect();
    let whole = ask(fake.address(), "/v1/chat/completions", &body).json();
    assert_eq!(whole["choices"][0]["token_ids"].as_array(), Some(&expected));
    let chunks = ask(fake.address(), "/v1/chat/completions", &streamed(body)).chunks();
    let ids: Vec<Value> =
        chunks.iter().filter_map(|c| c["choices"][0]["token_ids"].as_array()).flatten().cloned().collect();
    assert_eq!(ids, expected);
}

#[test]
fn an_open_thinking_tag_begins_the_text() {
    let fake = Fake::start(hello);
    let mut body = chat("hi");
    body["enable_thinking"] = true.into();
    let whole = ask(fake.address(), "/v1/chat/completions", &body).json();
    assert_eq!(whole["choices"][0]["message"]["content"], "<think>\nHello, world");
}

#[test]
fn a_fault_breaks_the_stream_off() {
    let fake = Fake::start(|_| Script::Say(vec!["some"], Finish::Fault(Fault::NonFinite)));
    let mut client = Client::connect(fake.address());
    client.send(post("/v1/chat/completions", &streamed(chat("hi")).to_string()));
    let answer = client.answer();
    assert_eq!((answer.status, answer.complete), (200, false), "no last chunk");
    let events = answer.events();
    assert!(!answer.text().contains("[DONE]"));
    let error: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "engine_error");
    client.expect_end();
    let answer = ask(fake.address(), "/v1/chat/completions", &chat("hi"));
    assert_eq!((answer.status, answer.header("x-should-retry")), (500, Some("false")));
    let mut client = Client::connect(fake.address());
    client.send(get("/health"));
    assert_eq!(client.answer().status, 200);
}

#[test]
fn silence_is_broken_by_comments_between_events() {
    let fake = Fake::start(|_| Script::Prefill);
    let mut body = streamed(chat("hi"));
    body["sse_ping_interval"] = json!(1);
    let mut client = Client::connect(fake.address());
    client.send(post("/v1/chat/completions", &body.to_string()));
    client.head();
    assert!(client.chunk().unwrap().starts_with(b"data: "));
    assert_eq!(client.chunk().unwrap(), b": keep-alive\n\n");
    drop(client);
    fake.wait_for("cancel", |c| matches!(c, Command::Cancel(_)));
}
