//! The engine in a host's process: the handle in Rust here, the C library and its examples in `examples.rs`.

mod examples;

use std::sync::Arc;
use std::time::Duration;

use engine_bin::embed::{self, CallError, Config, Endpoint, Engine, Event, Kind};
use engine_tests::fixtures::fixture;
use serde_json::{Value, json};

use crate::serve::client::{DEADLINE, ask};
use crate::serve::process::Running;

const PROMPT: &str = "def total_price(items):\n    result = 0\n";

fn config(json: &Value) -> Config {
    Config::parse(json.to_string().as_bytes()).unwrap()
}

fn open(json: Value) -> Engine {
    Engine::open(&config(&json)).unwrap_or_else(|error| panic!("{json}: {error}"))
}

fn small() -> Engine {
    open(json!({"ctx_size": 512, "parallel": 2, "threads": 1}))
}

fn submit(engine: &Engine, endpoint: Endpoint, body: &Value) -> u64 {
    engine.submit(endpoint, body.to_string().as_bytes()).unwrap()
}

/// All events of a request, the last included.
fn finish(engine: &Engine, id: u64) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    while events.last().is_none_or(|event| !event.kind.is_last()) {
        let mut take = |event| {
            events.push(event);
            Ok(())
        };
        let taken = engine.poll(Some(id), DEADLINE, &mut take).unwrap();
        assert!(taken > 0, "nothing came of request {id}");
    }
    events
}

/// What waits, of all requests, for a moment.
fn poll_all(engine: &Engine) -> Vec<Event> {
    let mut events = Vec::new();
    let mut take = |event| {
        events.push(event);
        Ok(())
    };
    engine.poll(None, Duration::from_millis(200), &mut take).unwrap();
    events
}

fn parsed(event: &Event) -> Value {
    serde_json::from_slice(&event.json).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&event.json)))
}

fn ids(events: &[Event]) -> Vec<u32> {
    events.iter().flat_map(|event| event.tokens.clone()).collect()
}

/// A JSON answer without what differs from one call to the next.
fn timeless(mut answer: Value) -> Value {
    for field in ["id", "created", "created_at", "completed_at", "request_id", "timings"] {
        answer.as_object_mut().unwrap().remove(field);
    }
    for item in answer.get_mut("output").and_then(Value::as_array_mut).into_iter().flatten() {
        item.as_object_mut().unwrap().remove("id");
    }
    if let Some(speculation) = answer["speculation"].as_object_mut() {
        speculation.retain(|name, _| ["requested", "effective", "drafted_n", "accepted_n"].contains(&&**name));
    }
    answer
}

#[test]
fn answers_are_those_of_the_daemon() {
    let engine = small();
    let daemon = Running::start_with(&["--ctx-size", "512", "--parallel", "2"], std::process::Stdio::null());
    let chat = json!({"messages": [{"role": "user", "content": "Say \"\u{0}\u{e9}\u{1f600}\" twice."}], "max_tokens": 20,
        "temperature": 0, "return_token_ids": true, "speculative": {"window": {"policy": "fixed", "initial": 4}}});
    let text = json!({"prompt": PROMPT, "max_tokens": 20, "temperature": 0.8, "seed": 3, "n": 2, "logprobs": 2,
        "speculative": {"strategy": "off"}});
    let fixed = json!({"window": {"policy": "fixed"}});
    let message = json!({"messages": [{"role": "user", "content": "Say x."}], "max_tokens": 12, "temperature": 0,
        "speculative": fixed});
    let response = json!({"input": "Say x.", "max_output_tokens": 12, "temperature": 0, "speculative": fixed});
    let bodies = [
        (Endpoint::Chat, "/v1/chat/completions", chat),
        (Endpoint::Completions, "/v1/completions", text),
        (Endpoint::Tokenize, "/tokenize", json!({"content": PROMPT})),
        (Endpoint::Detokenize, "/detokenize", json!({"tokens": [300, 301, 302]})),
        (Endpoint::ApplyTemplate, "/apply-template", json!({"messages": [{"role": "user", "content": "x"}]})),
        (Endpoint::Messages, "/v1/messages", message.clone()),
        (Endpoint::Responses, "/v1/responses", response.clone()),
        // Refused, before and after its fields are read.
        (Endpoint::Chat, "/v1/chat/completions", json!({"messages": 7})),
        (Endpoint::Completions, "/v1/completions", json!({"prompt": vec![5; 600]})),
        (Endpoint::Messages, "/v1/messages", json!({"messages": 7})),
        (Endpoint::Responses, "/v1/responses", json!({"input": "x ".repeat(600)})),
    ];
    for (endpoint, path, body) in bodies {
        let over_http = ask(daemon.address, path, &body);
        let events = finish(&engine, submit(&engine, endpoint, &body));
        let [answer] = &events[..] else { panic!("{path}: {events:?}") };
        assert_eq!(answer.kind, if over_http.status == 200 { Kind::Answer } else { Kind::Error }, "{path}");
        assert_eq!(answer.status, over_http.status, "{path}");
        assert_eq!(timeless(parsed(answer)), timeless(over_http.json()), "{path}");
    }
    // Streams are the events of HTTP, named by their type.
    for (endpoint, path, mut body) in
        [(Endpoint::Messages, "/v1/messages", message), (Endpoint::Responses, "/v1/responses", response)]
    {
        body["stream"] = true.into();
        let names = |events: Vec<Value>| events.iter().map(|event| event["type"].clone()).collect::<Vec<_>>();
        let events = finish(&engine, submit(&engine, endpoint, &body));
        let (last, chunks) = events.split_last().unwrap();
        assert_eq!(last.kind, Kind::End);
        let chunks: Vec<Value> = chunks.iter().map(parsed).collect();
        let text = |events: &[Value]| {
            let part = |event: &Value| event["delta"].as_str().or(event["delta"]["text"].as_str()).map(str::to_owned);
            events.iter().filter_map(part).collect::<String>()
        };
        let over_http = ask(daemon.address, path, &body).named();
        assert_eq!(text(&chunks), text(&over_http), "{path}");
        let ends = |names: Vec<Value>| (names.first().cloned(), names.last().cloned());
        assert_eq!(ends(names(chunks)), ends(names(over_http)), "{path}");
    }
    // What is not JSON at all is an error like any other.
    let id = engine.submit(Endpoint::Chat, b"\xff{").unwrap();
    let events = finish(&engine, id);
    assert_eq!((events.len(), events[0].kind, events[0].status), (1, Kind::Error, 400));
}

#[test]
fn a_stream_is_its_chunks_and_its_ids() {
    let engine = small();
    let body = json!({"prompt": PROMPT, "max_tokens": 16, "temperature": 0, "return_token_ids": true});
    let whole = finish(&engine, submit(&engine, Endpoint::Completions, &body));
    let answer = parsed(&whole[0]);
    assert_eq!(whole[0].tokens.len(), 16);
    let mut streamed = body;
    streamed["stream"] = true.into();
    let events = finish(&engine, submit(&engine, Endpoint::Completions, &streamed));
    let (last, chunks) = events.split_last().unwrap();
    assert_eq!((last.kind, last.status, last.json.len()), (Kind::End, 200, 0));
    assert!(chunks.len() > 1 && chunks.iter().all(|c| c.kind == Kind::Chunk && c.status == 200));
    let text: String =
        chunks.iter().filter_map(|c| parsed(c)["choices"][0]["text"].as_str().map(str::to_owned)).collect();
    assert_eq!(
        (text.as_str(), ids(&events)),
        (answer["choices"][0]["text"].as_str().unwrap(), whole[0].tokens.clone())
    );
    // The same prompt as ids.
    let prompt = finish(&engine, submit(&engine, Endpoint::Tokenize, &json!({"content": PROMPT, "add_special": true})));
    let prompt: Vec<u32> = serde_json::from_value(parsed(&prompt[0])["tokens"].clone()).unwrap();
    let id = engine.submit_tokens(&prompt, br#"{"max_tokens": 16, "temperature": 0}"#).unwrap();
    assert_eq!(ids(&finish(&engine, id)), whole[0].tokens);
    for (options, told) in [("{", "options"), (r#"{"prompt": "x"}"#, "leave prompt out"), ("[]", "options")] {
        let error = engine.submit_tokens(&prompt, options.as_bytes()).unwrap_err();
        assert!(matches!(&error, CallError::Argument(text) if text.contains(told)), "{error}");
    }
    let id = engine.submit_tokens(&[u32::MAX], b"").unwrap();
    assert_eq!(finish(&engine, id)[0].status, 400, "an id outside the vocabulary");
    let stats = engine.stats().unwrap();
    assert_eq!((stats.requests, stats.events, stats.running, stats.waiting), (0, 0, 0, 0));
    assert_eq!(stats.completion_tokens, 3 * 16);
}

#[test]
fn a_handle_that_nobody_polls_stalls_itself_alone() {
    let long_context = || open(json!({"ctx_size": 2048, "parallel": 2, "threads": 1}));
    let (deaf, other) = (long_context(), long_context());
    // Several times the bound on what waits, since the engine is ahead of the text: each chunk lists 20 alternatives.
    let long = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1900, "ignore_eos": true, "n": 2,
        "stream": true, "logprobs": true, "top_logprobs": 20, "seed": 5, "return_token_ids": true});
    // The second waits for the slots of the first.
    let stuck: Vec<u64> = (0..2).map(|_| submit(&deaf, Endpoint::Chat, &long)).collect();
    let alone = finish(&other, submit(&other, Endpoint::Chat, &long));
    let bytes = |events: &[Event]| events.iter().map(|event| event.json.len()).sum::<usize>();
    assert!(bytes(&alone) > 4 << 20, "{} bytes are no long stream", bytes(&alone));
    // Calls that do not wait for events go on.
    let mut waiting = 0;
    let deadline = std::time::Instant::now() + DEADLINE;
    loop {
        let stats = deaf.stats().unwrap();
        if stats.events == waiting && stats.events > 10 {
            assert!(stats.running == 2 && stats.waiting == 2, "it did not end: {stats:?}");
            break;
        }
        waiting = stats.events;
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(300));
    }
    deaf.cancel(stuck[1]).unwrap();
    assert_eq!(deaf.cancel(stuck[1]), Err(CallError::NoRequest(stuck[1])), "it has ended");
    // Not in name alone: its choices leave the line, although those before them still stand.
    while deaf.stats().unwrap().waiting > 0 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let cancelled = finish(&deaf, stuck[1]);
    assert_eq!(cancelled.iter().map(|event| event.kind).collect::<Vec<_>>(), [Kind::Cancelled]);
    // Nothing was lost of the one that is wanted after all.
    let late = finish(&deaf, stuck[0]);
    let of = |events: &[Event], choice| -> Vec<u32> {
        events.iter().filter(|event| event.choice == choice).flat_map(|event| event.tokens.clone()).collect()
    };
    for choice in 0..2 {
        assert!(of(&late, choice).len() == 1900 && of(&late, choice) == of(&alone, choice), "choice {choice}");
    }
    assert_eq!(deaf.poll(Some(stuck[0]), Duration::ZERO, &mut |_| Ok(())), Err(CallError::NoRequest(stuck[0])));
}

#[test]
fn two_sessions_on_one_model_get_what_they_get_alone() {
    let engine = Arc::new(open(json!({"ctx_size": 512, "parallel": 2, "threads": 1})));
    let body = |seed: u64| {
        json!({"prompt": format!("{PROMPT}# {seed}\n"), "max_tokens": 48, "temperature": 0.9, "seed": seed,
            "ignore_eos": true, "stream": true, "return_token_ids": true})
    };
    let alone: Vec<Vec<u32>> =
        (0..2).map(|seed| ids(&finish(&engine, submit(&engine, Endpoint::Completions, &body(seed))))).collect();
    assert_ne!(alone[0], alone[1]);
    let sessions: Vec<_> = (0..2)
        .map(|seed| {
            let engine = Arc::clone(&engine);
            let body = body(seed);
            std::thread::spawn(move || {
                (0..3).map(|_| ids(&finish(&engine, submit(&engine, Endpoint::Completions, &body)))).collect::<Vec<_>>()
            })
        })
        .collect();
    for (session, alone) in sessions.into_iter().zip(&alone) {
        assert!(session.join().unwrap().iter().all(|found| found == alone));
    }
}

/// Somebody else takes the last event of a request: who waits for it by its number does not wait for ever.
#[test]
fn a_poll_ends_with_its_request_whoever_takes_the_end() {
    let engine = Arc::new(small());
    let body = json!({"prompt": PROMPT, "max_tokens": 400, "ignore_eos": true});
    for _ in 0..10 {
        let id = submit(&engine, Endpoint::Completions, &body);
        let waits = {
            let engine = Arc::clone(&engine);
            std::thread::spawn(move || engine.poll(Some(id), DEADLINE, &mut |_| Ok(())))
        };
        std::thread::sleep(Duration::from_millis(20));
        engine.cancel(id).unwrap();
        let taken = engine.poll(None, Duration::ZERO, &mut |_| Ok(())).unwrap();
        let found = waits.join().unwrap();
        assert_eq!(found, if taken == 0 { Ok(1) } else { Err(CallError::NoRequest(id)) });
    }
}

#[test]
fn a_close_ends_what_waits() {
    let engine = Arc::new(small());
    let endless = json!({"prompt": PROMPT, "max_tokens": 400, "ignore_eos": true});
    let id = submit(&engine, Endpoint::Completions, &endless);
    let polls: Vec<_> = [None, Some(id)]
        .into_iter()
        .map(|of| {
            let engine = Arc::clone(&engine);
            std::thread::spawn(move || engine.poll(of, Duration::MAX, &mut Err))
        })
        .collect();
    std::thread::sleep(Duration::from_millis(50));
    engine.close();
    for poll in polls {
        // One that was offered the answer before the close gave it back.
        assert!(matches!(poll.join().unwrap(), Err(CallError::Closed) | Ok(0)));
    }
    engine.close();
    assert_eq!(engine.submit(Endpoint::Chat, b""), Err(CallError::Closed));
    assert_eq!(engine.cancel(id), Err(CallError::Closed));
    assert_eq!(engine.stats().unwrap_err(), CallError::Closed);
}

#[test]
fn requests_are_bounded() {
    let engine = small();
    let body = json!({"content": "x"}).to_string().into_bytes();
    let mut accepted = Vec::new();
    let refused = loop {
        match engine.submit(Endpoint::Tokenize, &body) {
            Ok(id) => accepted.push(id),
            Err(error) => break error,
        }
        assert!(accepted.len() < 1000, "nothing bounds them");
    };
    assert!(matches!(&refused, CallError::Full(text) if text.contains("258")), "{refused}");
    assert_eq!(accepted.len(), 258, "256 beside two slots");
    finish(&engine, accepted[7]);
    engine.submit(Endpoint::Tokenize, &body).unwrap();
    let error = engine.submit(Endpoint::Chat, &vec![b' '; 40 << 20]).unwrap_err();
    assert!(matches!(error, CallError::Argument(_)), "{error}");
}

#[test]
fn pages_are_told_to_who_asks() {
    let engine = open(json!({"ctx_size": 256, "parallel": 2, "threads": 1, "page_events": true}));
    let about = engine.about();
    let (pages, page_tokens) = (about["pages"].as_u64().unwrap(), about["page_tokens"].as_u64().unwrap());
    assert_eq!((pages, page_tokens), (32, 16));
    let body = json!({"prompt": vec![300; 40], "max_tokens": 30, "ignore_eos": true, "n": 2});
    let id = submit(&engine, Endpoint::Completions, &body);
    let mut events = Vec::new();
    while !events.iter().any(|event: &Event| event.kind.is_last()) {
        events.extend(poll_all(&engine));
    }
    let answer = events.pop().unwrap();
    assert_eq!((answer.kind, answer.request), (Kind::Answer, id), "pages are given back before the last event");
    let mut held = [0; 2];
    for (n, event) in events.iter().enumerate() {
        assert_eq!((event.kind, event.request, event.sequence), (Kind::Pages, id, n as u64));
        held[event.choice as usize] = event.pages.0;
        assert!(u64::from(event.pages.0 + event.pages.1) <= pages);
    }
    // 69 positions: the last token is never computed.
    let most = |choice| events.iter().filter(|e| e.choice == choice).map(|e| e.pages.0).max();
    assert_eq!((held, most(0), most(1)), ([0, 0], Some(5), Some(5)));
    // A request that is cancelled gives its pages back too, which may be said after its last event.
    let endless = json!({"prompt": vec![300; 40], "max_tokens": 200, "ignore_eos": true, "stream": true});
    let id = submit(&engine, Endpoint::Completions, &endless);
    while !poll_all(&engine).iter().any(|event| event.kind == Kind::Chunk) {}
    engine.cancel(id).unwrap();
    let mut last = None;
    let deadline = std::time::Instant::now() + DEADLINE;
    while last != Some((0, 32)) {
        last = poll_all(&engine).iter().rfind(|event| event.kind == Kind::Pages).map(|event| event.pages).or(last);
        assert!(std::time::Instant::now() < deadline, "{last:?}");
    }
}

#[test]
fn an_engine_that_ends_by_itself_says_why() {
    let Some(model) = fixture("qwen35-tiny/qwen35-tiny-Q8_0.gguf") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("changing.gguf");
    std::fs::copy(model, &file).unwrap();
    let engine = open(json!({"model": file.to_str().unwrap(), "ctx_size": 256, "parallel": 1, "threads": 1}));
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 200, "ignore_eos": true, "stream": true});
    let other = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    other.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let id = submit(&engine, Endpoint::Completions, &body);
    let events = finish(&engine, id);
    let last = events.last().unwrap();
    assert_eq!((last.kind, last.status), (Kind::Error, 500), "{last:?}");
    let deadline = std::time::Instant::now() + DEADLINE;
    let why = loop {
        match engine.poll(None, Duration::from_millis(50), &mut |_| Ok(())) {
            Err(CallError::Dead(why)) => break why,
            other => assert!(std::time::Instant::now() < deadline, "{other:?}"),
        }
    };
    assert!(why.contains("changing.gguf"), "{why}");
    assert!(matches!(engine.submit(Endpoint::Chat, b"{}"), Err(CallError::Dead(_))));
    assert!(matches!(engine.poll(None, Duration::MAX, &mut |_| Ok(())), Err(CallError::Dead(_))));
    engine.close();
}

/// What would not be opened is refused alike by both, and what would be is described.
#[test]
fn preflight_refuses_what_open_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join("cut.gguf");
    std::fs::write(&cut, b"GGUF\x03\0\0\0").unwrap();
    let rows = [
        (json!({"model": "no-such.gguf"}), 3, "no-such.gguf"),
        (json!({"model": cut.to_str().unwrap()}), 3, "cut.gguf"),
        (json!({"memory_limit": "1MiB"}), 3, "--memory-limit 1MiB"),
        (json!({"window_max": 0, "window_policy": "fixed", "memory_limit": "2MiB"}), 3, "what would help"),
        (json!({"ctx_size": 4_000_000_000_u64, "parallel": 15, "kv_type": "f32"}), 1, "15 x 4000000000 tokens"),
    ];
    for (json, code, told) in rows {
        let mut json = json;
        json["threads"] = 1.into();
        let config = config(&json);
        let refused = embed::preflight(&config).unwrap_err();
        let opened = Engine::open(&config).err().unwrap();
        assert_eq!((refused.code(), opened.code()), (code, code), "{json}: {refused}");
        assert_eq!(refused.to_string(), opened.to_string());
        assert!(refused.to_string().contains(told), "{json}: {refused}");
    }
    if let Some(plain) = fixture("qwen35-tiny/qwen35-tiny-nomtp-Q8_0-00001-of-00003.gguf") {
        let config = config(&json!({"model": plain.to_str().unwrap(), "spec_strategy": "mtp", "threads": 1}));
        let refused = embed::preflight(&config).unwrap_err();
        assert_eq!(refused.to_string(), Engine::open(&config).err().unwrap().to_string());
        assert!(refused.code() == 3 && refused.to_string().contains("needs an MTP block"), "{refused}");
    }
    let report = embed::preflight(&config(&json!({"ctx_size": 512, "parallel": 3, "threads": 1}))).unwrap();
    assert_eq!((&report["kind"], &report["setting"]["parallel"]), (&json!("model"), &json!(3)));
    let parts = report["memory"]["parts"].as_array().unwrap();
    assert!(!parts.iter().any(|part| part["name"] == "connections"), "a handle has no sockets: {parts:?}");
    assert!(report["memory"]["memory_bytes"].as_u64() > Some(1 << 20));
}
