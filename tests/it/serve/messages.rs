//! `/v1/messages` over the scripted target and, where the engine has to misbehave, over a scripted engine.

use std::net::SocketAddr;
use std::sync::OnceLock;

use engine::api::{AdmitError, Finish};
use engine::limits::Limits;
use engine_bin::serve::Config;
use engine_tests::scripted::{Rule, ScriptedServer};
use serde_json::{Value, json};

use super::client::{Answer, Client, ask};
use super::fake::{END, Fake, Script};

const CONTEXT: usize = 2048;
const PATH: &str = "/v1/messages";
const TWO_CALLS: &str = "I look.\n</think>\n\nOk \u{e9}.\n<tool_call>\n<function=ls>\n<parameter=dir>\n/a\"b\n</parameter>\n\
    <parameter=deep>\ntrue\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>";

fn shared() -> SocketAddr {
    static SERVER: OnceLock<ScriptedServer> = OnceLock::new();
    let rules = || {
        vec![
            Rule::new("Error: no such file", "</think>\n\nThere is none."),
            Rule::new("two calls", TWO_CALLS),
            Rule::new("just talk", "I think END.\n</think>\n\nHello, END world"),
            Rule::new("no thinking", "Hello"),
        ]
    };
    let start = || {
        ScriptedServer::start(
            Config::local(0, CONTEXT),
            &Limits { prefix_cache: true, ..Limits::new(4, CONTEXT) },
            rules(),
        )
    };
    SERVER.get_or_init(start).address()
}

fn tools() -> Value {
    json!([
        {"name": "ls", "description": "List.", "input_schema": {"type": "object",
            "properties": {"dir": {"type": "string"}, "deep": {"type": "boolean"}}}},
        {"name": "now", "input_schema": {"type": "object", "properties": {}}},
    ])
}

fn body(text: &str, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 500, "temperature": 0});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn message(text: &str, more: Value) -> Value {
    let answer = ask(shared(), PATH, &body(text, more));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The message of a streamed answer, its events checked one by one.
fn streamed(text: &str, mut more: Value) -> Value {
    more["stream"] = true.into();
    let answer = ask(shared(), PATH, &body(text, more));
    assert!(answer.complete);
    put_together(&answer)
}

fn put_together(answer: &Answer) -> Value {
    let events = answer.named();
    let mut events = events.iter().filter(|event| event["type"] != "ping");
    let start = events.next().unwrap();
    assert_eq!(start["type"], "message_start");
    let mut message = start["message"].clone();
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    assert_eq!(message["usage"]["output_tokens"], 0);
    let (mut open, mut ended) = (None::<Value>, false);
    let mut arguments = String::new();
    for event in events {
        let count = message["content"].as_array().unwrap().len();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert!(open.is_none() && !ended, "{event}");
                assert_eq!(event["index"], count);
                open = Some(event["content_block"].clone());
                arguments.clear();
            }
            "content_block_delta" => {
                assert_eq!(event["index"], count);
                let (delta, block) = (&event["delta"], open.as_mut().expect("an open block"));
                let (kind, field) = match delta["type"].as_str().unwrap() {
                    "thinking_delta" => ("thinking", "thinking"),
                    "signature_delta" => ("thinking", "signature"),
                    "text_delta" => ("text", "text"),
                    "input_json_delta" => {
                        assert_eq!(block["type"], "tool_use");
                        arguments.push_str(delta["partial_json"].as_str().unwrap());
                        continue;
                    }
                    other => panic!("{other}"),
                };
                assert_eq!(block["type"], kind);
                let more = delta[field].as_str().unwrap();
                assert!(!more.is_empty(), "{event}");
                block[field] = format!("{}{more}", block[field].as_str().unwrap()).into();
            }
            "content_block_stop" => {
                assert_eq!(event["index"], count);
                let mut block = open.take().expect("an open block");
                if block["type"] == "tool_use" && !arguments.is_empty() {
                    block["input"] = serde_json::from_str(&arguments).unwrap_or_else(|_| json!("cut"));
                }
                if block["type"] == "text" {
                    block["citations"] = Value::Null;
                }
                message["content"].as_array_mut().unwrap().push(block);
            }
            "message_delta" => {
                assert!(open.is_none() && !ended, "{event}");
                for name in ["stop_reason", "stop_sequence"] {
                    message[name] = event["delta"][name].clone();
                }
                let start = &message["usage"];
                for name in ["input_tokens", "cache_read_input_tokens"] {
                    assert_eq!(event["usage"][name], start[name], "known from the start");
                }
                // What wants no token has never had a slot.
                let cached = start["cache_read_input_tokens"].to_string();
                let none = event["usage"]["output_tokens"] == 0;
                assert_eq!(answer.header("x-engine-cached-tokens"), Some(&*cached).filter(|_| !none));
                for (name, value) in event["usage"].as_object().unwrap() {
                    message["usage"][name] = value.clone();
                }
                (message["timings"], message["speculation"]) = (event["timings"].clone(), event["speculation"].clone());
                ended = true;
            }
            "message_stop" => return message,
            other => panic!("{other}"),
        }
    }
    panic!("no message_stop")
}

/// What must be the same however it was sent, and whatever was in the cache.
fn same(message: &Value) -> Value {
    let mut out = message.clone();
    for block in out["content"].as_array_mut().unwrap().iter_mut().filter(|b| b["type"] == "tool_use") {
        assert!(block["id"].as_str().unwrap().starts_with("toolu_"));
        block["id"] = Value::Null;
    }
    let usage = &message["usage"];
    let n = |name: &str| usage[name].as_u64().unwrap();
    let prompt = n("input_tokens") + n("cache_read_input_tokens") + n("cache_creation_input_tokens");
    let timings = &message["timings"];
    assert_eq!(prompt, timings["cache_n"].as_u64().unwrap() + timings["prompt_n"].as_u64().unwrap());
    assert_eq!(usage["output_tokens"], timings["predicted_n"]);
    let s = |name: &str| message["speculation"][name].as_u64().unwrap();
    assert_eq!(n("output_tokens"), s("first_n") + s("accepted_n") + s("bonus_n") + s("forced_n"));
    out["usage"] = json!([prompt, usage["output_tokens"], usage["output_tokens_details"], usage["service_tier"]]);
    for name in ["id", "timings", "speculation"] {
        out[name] = Value::Null;
    }
    out
}

#[test]
fn blocks_are_the_same_streamed_or_not() {
    let mut first: Option<Value> = None;
    for strategy in ["off", "ngram-suffix"] {
        let more = json!({"tools": tools(), "speculative": {"strategy": strategy}});
        let whole = message("two calls", more.clone());
        assert!(whole["id"].as_str().unwrap().starts_with("msg_"));
        let blocks = &whole["content"];
        assert_eq!(blocks[0]["thinking"], "I look.\n");
        let signature = blocks[0]["signature"].as_str().unwrap();
        assert!(signature.strip_prefix("engine-").is_some_and(|hex| hex.len() == 16), "{signature}");
        assert_eq!(blocks[1], json!({"type": "text", "text": "Ok \u{e9}.", "citations": null}));
        assert_eq!((&blocks[2]["name"], &blocks[2]["input"]), (&json!("ls"), &json!({"dir": "/a\"b", "deep": true})));
        assert_eq!((&blocks[3]["name"], &blocks[3]["input"]), (&json!("now"), &json!({})));
        assert_ne!(blocks[2]["id"], blocks[3]["id"]);
        assert_eq!(blocks.as_array().unwrap().len(), 4);
        assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("tool_use"), &Value::Null));
        assert!(whole["usage"]["output_tokens_details"]["thinking_tokens"].as_u64().unwrap() > 0);
        let whole = same(&whole);
        assert_eq!(same(&streamed("two calls", more)), whole, "{strategy}");
        assert_eq!(*first.get_or_insert_with(|| whole.clone()), whole, "{strategy}");
    }
}

#[test]
fn every_end_has_its_reason() {
    for stream in [false, true] {
        let of = |text: &str, more: Value| if stream { streamed(text, more) } else { message(text, more) };
        let ended = |m: Value| (m["stop_reason"].clone(), m["stop_sequence"].clone());
        assert_eq!(ended(of("just talk", json!({}))), (json!("end_turn"), Value::Null));
        let stopped = of("just talk", json!({"stop_sequences": ["nowhere", "END"]}));
        assert_eq!(stopped["content"][1]["text"], "Hello, ");
        assert_eq!(ended(stopped), (json!("stop_sequence"), json!("END")));
        assert_eq!(ended(of("just talk", json!({"max_tokens": 2}))), (json!("max_tokens"), Value::Null));
        let none = of("just talk", json!({"max_tokens": 0}));
        assert_eq!(none["content"], json!([]));
        assert_eq!(ended(none), (json!("max_tokens"), Value::Null));
    }
}

#[test]
fn a_limit_beyond_the_context_is_none() {
    const SMALL: usize = 64;
    let rules = vec![Rule::new("for ever", &format!("</think>\n\n{}", "on and ".repeat(SMALL)))];
    let server = ScriptedServer::start(Config::local(0, SMALL), &Limits::new(1, SMALL), rules);
    for stream in [false, true] {
        let more = json!({"max_tokens": 128_000, "stream": stream});
        let answer = ask(server.address(), PATH, &body("for ever", more));
        let message = if stream { put_together(&answer) } else { answer.json() };
        assert_eq!(message["stop_reason"], "model_context_window_exceeded", "{message}");
    }
}

#[test]
fn a_limit_inside_of_a_use_gives_what_is_whole() {
    let all = message("two calls", json!({"tools": tools()}))["usage"]["output_tokens"].as_u64().unwrap();
    let mut inputs = Vec::new();
    for most in 1..all {
        let more = json!({"tools": tools(), "max_tokens": most});
        let (whole, parts) = (message("two calls", more.clone()), streamed("two calls", more));
        assert_eq!((&whole["stop_reason"], &parts["stop_reason"]), (&json!("max_tokens"), &json!("max_tokens")));
        let kinds = |m: &Value| m["content"].as_array().unwrap().iter().map(|b| b["type"].clone()).collect::<Vec<_>>();
        assert_eq!(kinds(&whole), kinds(&parts), "{most}");
        inputs.extend(whole["content"].get(2).map(|block| block["input"].clone()));
    }
    inputs.dedup();
    let steps = [json!({}), json!({"dir": "/a\"b"}), json!({"dir": "/a\"b", "deep": true})];
    assert_eq!(inputs, steps);
}

#[test]
fn thinking_is_shown_hidden_or_off() {
    for stream in [false, true] {
        let of = |text: &str, more: Value| if stream { streamed(text, more) } else { message(text, more) };
        let shown = of("just talk", json!({"thinking": {"type": "enabled"}}));
        let hidden = of("just talk", json!({"thinking": {"type": "adaptive", "display": "omitted"}}));
        assert_eq!(
            (&shown["content"][0]["thinking"], &hidden["content"][0]["thinking"]),
            (&json!("I think END.\n"), &json!(""))
        );
        assert_eq!(shown["content"][0]["signature"], hidden["content"][0]["signature"]);
        assert_eq!(shown["content"][1], hidden["content"][1]);
        let off = of("no thinking", json!({"thinking": {"type": "disabled"}}));
        assert_eq!(off["content"], json!([{"type": "text", "text": "Hello", "citations": null}]));
        assert_eq!(off["usage"]["output_tokens_details"]["thinking_tokens"], 0);
    }
}

#[test]
fn a_tool_loop_closes_and_its_prefix_is_found_again() {
    let system = |nonce: u32| {
        json!([{"type": "text", "cache_control": {"type": "ephemeral"},
        "text": format!("x-anthropic-billing-header: cc_version=2.1; cch={nonce:05x};You list files for a living. {}", "Be careful. ".repeat(20))}])
    };
    let many: Vec<Value> = (0..18)
        .map(|i| {
            json!({"name": format!("tool_{i}"), "input_schema": {"type": "object",
            "properties": {"a": {"type": "string", "pattern": "^(?!x)\\p{L}+$"}}}})
        })
        .chain(tools().as_array().unwrap().clone())
        .collect();
    let turn = |messages: &Value, nonce: u32| {
        let body = json!({"model": "some-model", "messages": messages, "system": system(nonce), "tools": many,
            "max_tokens": 900, "temperature": 0, "thinking": {"type": "adaptive"}, "metadata": {"user_id": "u"},
            "output_config": {"effort": "high"}, "context_management": {"edits": []}});
        let answer = ask(shared(), "/v1/messages?beta=true", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        // The patterns of all but the last tools are beyond what can be enforced.
        let codes: Vec<&str> = answer.header("x-engine-warnings").unwrap().split(", ").collect();
        assert_eq!((codes[0], codes.len()), ("billing_line_stripped", 19), "{codes:?}");
        assert!(
            codes[1..].iter().enumerate().all(|(i, code)| *code == format!("schema_relaxed:tools.{i}")),
            "{codes:?}"
        );
        answer.json()
    };
    let mut messages = json!([{"role": "user", "content": [{"type": "text", "text": "two calls"}]}]);
    let first = turn(&messages, 1);
    assert_eq!(first["stop_reason"], "tool_use");
    let id = |i: usize| first["content"][i]["id"].clone();
    let list = messages.as_array_mut().unwrap();
    list.push(json!({"role": "assistant", "content": first["content"]}));
    list.push(json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": id(3), "content": [{"type": "text", "text": "noon"}]},
        {"type": "tool_result", "tool_use_id": id(2), "content": "no such file", "is_error": true},
        {"type": "text", "text": "go on"},
    ]}));
    list.push(json!({"role": "system", "content": "The user is in a hurry."}));
    let second = turn(&messages, 2);
    assert_eq!(second["content"][0]["text"], "There is none.");
    let all = |m: &Value| {
        m["usage"]["input_tokens"].as_u64().unwrap() + m["usage"]["cache_read_input_tokens"].as_u64().unwrap()
    };
    let read = second["usage"]["cache_read_input_tokens"].as_u64().unwrap();
    assert!(read + 32 >= all(&first), "{read} of {}", all(&first));
    // The same prompt is counted.
    let counted = ask(
        shared(),
        "/v1/messages/count_tokens",
        &json!({"messages": messages, "system": system(3), "tools": many,
        "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
    );
    assert_eq!(counted.json(), json!({"input_tokens": all(&second)}));
}

#[test]
fn errors_have_the_shape_that_the_client_knows() {
    let posted = |path: &str, body: &str, headers: &str| {
        let mut client = Client::connect(shared());
        client.send(format!(
            "POST {path} HTTP/1.1\r\nHost: test\r\nx-request-id: req-7\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        client.answer()
    };
    for (path, body, headers, status, kind, code) in [
        (PATH, "{", "", 400, "invalid_request_error", "invalid_json"),
        (PATH, "{}", "", 400, "invalid_request_error", "missing_required_parameter"),
        ("/messages/", "{\"messages\": 5}", "", 400, "invalid_request_error", "invalid_type"),
        ("/v1/messages/batches", "{}", "", 501, "api_error", "not_implemented"),
        ("/v1/messages/count_tokens", "[]", "", 400, "invalid_request_error", "invalid_type"),
        ("/v1/nothing", "{}", "anthropic-version: 2023-06-01\r\n", 404, "not_found_error", "unknown_path"),
        (PATH, "", "Content-Type: multipart/form-data\r\n", 415, "invalid_request_error", "unsupported_media_type"),
    ] {
        let answer = posted(path, body, headers);
        let json = answer.json();
        assert_eq!((answer.status, &json["type"]), (status, &json!("error")), "{path} {json}");
        assert_eq!((&json["error"]["type"], &json["error"]["details"]["error_code"]), (&json!(kind), &json!(code)));
        assert_eq!((&json["request_id"], answer.header("request-id")), (&json!("req-7"), Some("req-7")));
    }
    let long = json!({"messages": [{"role": "user", "content": "many words ".repeat(3000)}]}).to_string();
    let answer = posted(PATH, &long, "").json();
    let text = answer["error"]["message"].as_str().unwrap();
    assert!(text.starts_with("prompt is too long: ") && text.ends_with(" tokens > 2047 maximum"), "{text}");
    assert_eq!(answer["error"]["details"], json!({"error_code": "context_length_exceeded", "param": "messages"}));
}

#[test]
fn a_full_queue_is_an_overload() {
    let fake = Fake::start(|_| Script::Refuse(AdmitError::QueueFull { waiting: 9 }));
    for stream in [false, true] {
        let answer = ask(fake.address(), PATH, &body("hi", json!({"stream": stream})));
        assert_eq!((answer.status, &answer.json()["error"]["type"]), (529, &json!("overloaded_error")));
        assert_eq!((answer.header("retry-after"), answer.header("x-should-retry")), (Some("1"), Some("true")));
    }
    let metrics = {
        let mut client = Client::connect(fake.address());
        client.send(super::client::get("/metrics"));
        client.answer().text()
    };
    assert!(metrics.lines().any(|l| l.contains("/v1/messages") && l.contains("529") && l.ends_with(" 2")), "{metrics}");
}

#[test]
fn a_fault_in_mid_stream_is_an_event_and_a_broken_transfer() {
    let fake = Fake::start(|_| Script::Say(vec!["abc"], Finish::Fault(engine::step::Fault::NonFinite)));
    let answer = ask(fake.address(), PATH, &body("hi", json!({"stream": true})));
    assert_eq!((answer.status, answer.complete), (200, false));
    let events = answer.named();
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")));
    assert_eq!(last["request_id"].as_str(), answer.header("request-id"));
    assert!(events.iter().all(|e| e["type"] != "message_stop"));
}

/// Where the model's tags are no tokens its thinking is text, with the tag that the prompt ends in.
#[test]
fn thinking_without_tokens_is_text() {
    let fake = Fake::start(|_| Script::Say(vec!["Hel", "lo"], Finish::EndToken(END)));
    let of = |stream: bool| body("hi", json!({"stream": stream, "thinking": {"type": "adaptive"}}));
    let whole = ask(fake.address(), PATH, &of(false)).json();
    let parts = put_together(&ask(fake.address(), PATH, &of(true)));
    for message in [whole, parts] {
        assert_eq!(message["content"], json!([{"type": "text", "text": "<think>\nHello", "citations": null}]));
    }
}

/// Where a prompt has gone another way than an earlier one, by the first difference.
#[test]
fn a_prompt_is_compared_with_an_earlier_one() {
    let base = || {
        json!({"model": "m", "system": "Be brief.", "max_tokens": 500, "temperature": 0, "tools": tools(),
            "messages": [{"role": "user", "content": "just talk"}]})
    };
    let send = |body: &Value| {
        let answer = ask(shared(), PATH, body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        // Said before anything else, where it is streamed.
        let start = ask(shared(), PATH, &streamed).named()[0]["message"].clone();
        assert_eq!(
            start.get("diagnostics").map(|d| d["cache_miss_reason"]["type"].clone()),
            answer.json().get("diagnostics").map(|d| d["cache_miss_reason"]["type"].clone())
        );
        answer.json()
    };
    let first = send(&base());
    assert!(first.get("diagnostics").is_none(), "nobody asked");
    let compared = |id: &Value, change: &dyn Fn(&mut Value)| {
        let mut body = base();
        body["diagnostics"] = json!({"previous_message_id": id});
        change(&mut body);
        let message = send(&body);
        let diagnostics = message["diagnostics"].clone();
        assert!(message.get("diagnostics").is_some());
        if let Some(missed) = diagnostics["cache_miss_reason"].get("cache_missed_input_tokens") {
            assert_eq!(*missed, message["usage"]["input_tokens"]);
        }
        diagnostics["cache_miss_reason"]["type"].clone()
    };
    let id = &first["id"];
    let turn = |body: &mut Value, text: &str| {
        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": [{"type": "text", "text": text}]}));
        messages.push(json!({"role": "user", "content": [{"type": "text", "text": "just talk", "cache_control": {"type": "ephemeral"}}]}));
    };
    assert_eq!(compared(&Value::Null, &|_| {}), Value::Null, "a first turn");
    assert_eq!(compared(id, &|_| {}), Value::Null);
    assert_eq!(compared(id, &|body| turn(body, "Hello")), Value::Null, "it goes on");
    // What has no part in the prompt makes no difference.
    assert_eq!(compared(id, &|body| body["system"] = json!([{"type": "text", "text": "Be brief."}])), Value::Null);
    // It is the same model, whatever a request calls it.
    assert_eq!(compared(id, &|body| body["model"] = "other".into()), Value::Null);
    assert_eq!(compared(id, &|body| body["system"] = "Be long.".into()), "system_changed");
    assert_eq!(
        compared(id, &|body| {
            body["tools"].as_array_mut().unwrap().reverse();
            body["messages"][0]["content"] = "no thinking".into();
        }),
        "tools_changed"
    );
    assert_eq!(compared(id, &|body| body["thinking"] = json!({"type": "disabled"})), "unavailable");
    assert_eq!(
        compared(id, &|body| {
            turn(body, "Hello");
            body["messages"][0]["content"] = "just talk.".into();
        }),
        "messages_changed"
    );
    assert_eq!(compared(&json!("msg_unheard"), &|_| {}), "previous_message_not_found");
    let wrong = ask(shared(), PATH, &body("hi", json!({"diagnostics": {"previous_message_id": 5}}))).json();
    assert_eq!(wrong["error"]["details"]["param"], "diagnostics.previous_message_id");
}
