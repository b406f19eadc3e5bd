//! Thinking, content and calls in the answers of `/v1/chat/completions`, from the scripted target behind the whole server.

use std::net::SocketAddr;
use std::sync::OnceLock;

use engine::limits::Limits;
use engine_bin::serve::Config;
use engine_tests::scripted::{Rule, ScriptedServer};
use serde_json::{Value, json};

use super::client::ask;

const CONTEXT: usize = 2048;
const TWO_CALLS: &str = "I look.\n</think>\n\nOk \u{e9}.\n<tool_call>\n<function=ls>\n<parameter=dir>\n/a\"b\n</parameter>\n\
    <parameter=deep>\ntrue\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=note>\n<parameter=input>\n\
    two\nlines\n</parameter>\n</function>\n</tool_call>";

fn shared() -> SocketAddr {
    static SERVER: OnceLock<ScriptedServer> = OnceLock::new();
    let rules = || {
        vec![
            Rule::new("two calls", TWO_CALLS),
            Rule::new("just talk", "I think END.\n</think>\n\nHello, END world"),
            Rule::new("no thinking", "Hello"),
            Rule::new("one call", "</think>\n\n<tool_call>\n<function=ls>\n</function>\n</tool_call>"),
            Rule::new("what comes back", "</think>\n\nIt is 42."),
        ]
    };
    let start = || ScriptedServer::start(Config::local(0, CONTEXT), &Limits::new(4, CONTEXT), rules());
    SERVER.get_or_init(start).address()
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "ls", "parameters": {"type": "object",
            "properties": {"dir": {"type": "string"}, "deep": {"type": "boolean"}}}}},
        {"type": "custom", "custom": {"name": "note", "description": "Keep a note."}},
    ])
}

fn body(text: &str, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": text}], "temperature": 0});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn message(text: &str, more: Value) -> Value {
    let answer = ask(shared(), "/v1/chat/completions", &body(text, more));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The message of a streamed answer, put together as the OpenAI SDK does it, and its chunks.
fn streamed(text: &str, mut more: Value) -> (Value, Vec<Value>) {
    more["stream"] = true.into();
    let chunks = ask(shared(), "/v1/chat/completions", &body(text, more)).chunks();
    let mut message = json!({"content": ""});
    let append = |to: &mut Value, text: &Value| {
        *to = format!("{}{}", to.as_str().unwrap_or_default(), text.as_str().unwrap()).into();
    };
    for chunk in &chunks {
        let Some(choice) = chunk["choices"].get(0) else { continue };
        let delta = &choice["delta"];
        for name in ["content", "reasoning_content"] {
            if let Some(text) = delta.get(name) {
                append(&mut message[name], text);
            }
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if message["tool_calls"].is_null() {
                message["tool_calls"] = json!([]);
            }
            let list = message["tool_calls"].as_array_mut().unwrap();
            let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            let kind = if call.get("custom").is_some() { "custom" } else { "function" };
            let text = if kind == "custom" { "input" } else { "arguments" };
            if call.get("id").is_some() {
                // The head has everything but a piece of the arguments, and what follows nothing but such pieces.
                assert_eq!(
                    (names(call).len(), &call["type"], &call[kind][text]),
                    (4, &json!(kind), &json!("")),
                    "{call}"
                );
                assert_eq!(call[kind].as_object().unwrap().len(), 2, "{call}");
                assert_eq!(list.len(), index, "calls begin in order, once");
                let mut begun = call.clone();
                begun.as_object_mut().unwrap().remove("index");
                list.push(begun);
                continue;
            }
            assert_eq!((names(call).len(), list.len()), (2, index + 1), "a piece is of the last call: {call}");
            assert_eq!(names(&call[kind]), [text], "{call}");
            assert_ne!(call[kind][text], "", "{call}");
            append(&mut list[index][kind][text], &call[kind][text]);
        }
    }
    (message, chunks)
}

fn without_ids(mut message: Value) -> Value {
    for call in message["tool_calls"].as_array_mut().into_iter().flatten() {
        assert!(call["id"].as_str().unwrap().starts_with("call_"));
        call.as_object_mut().unwrap().remove("id");
    }
    message
}

#[test]
fn two_calls_are_two_calls_streamed_or_not() {
    for strategy in ["off", "ngram-suffix"] {
        let more = json!({"tools": tools(), "speculative": {"strategy": strategy}});
        let answer = message("two calls", more.clone());
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        let whole = without_ids(choice["message"].clone());
        let calls = json!([
            {"type": "function", "function": {"name": "ls", "arguments": "{\"dir\":\"/a\\\"b\",\"deep\":true}"}},
            {"type": "custom", "custom": {"name": "note", "input": "two\nlines"}},
        ]);
        let expected = json!({"role": "assistant", "content": "Ok \u{e9}.", "refusal": null,
            "reasoning_content": "I look.\n", "tool_calls": calls});
        assert_eq!(whole, expected);
        let thought = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
        assert!(thought > 1 && thought < answer["usage"]["completion_tokens"].as_u64().unwrap(), "{}", answer["usage"]);

        let (message, chunks) = streamed("two calls", more);
        let message = without_ids(message);
        for name in ["content", "reasoning_content", "tool_calls"] {
            assert_eq!(message[name], expected[name], "{name}");
        }
        // The order of a choice: role, thinking, content, calls; the reason stands alone, at the end.
        let kind = |chunk: &Value| {
            let delta = &chunk["choices"][0]["delta"];
            let names = ["role", "reasoning_content", "content", "tool_calls"];
            names.iter().position(|name| delta.get(name).is_some()).unwrap_or(4)
        };
        let kinds: Vec<usize> = chunks.iter().map(kind).collect();
        assert!(kinds.is_sorted() && kinds.iter().filter(|k| **k == 4).count() == 1, "{kinds:?}");
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[test]
fn a_message_without_text_has_no_content() {
    let answer = message("one call", json!({"tools": tools()}));
    let choice = &answer["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&Value::Null, &json!("tool_calls")));
    assert_eq!(choice["message"]["tool_calls"][0]["function"], json!({"name": "ls", "arguments": "{}"}));
    // The old form.
    let functions = json!([{"name": "ls", "parameters": {"type": "object", "properties": {}}}]);
    let answer = message("one call", json!({"functions": functions}));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "function_call");
    assert_eq!(choice["message"]["function_call"], json!({"name": "ls", "arguments": "{}"}));
    assert!(choice["message"].get("tool_calls").is_none());
    // Without tools nothing is a call.
    let answer = message("one call", json!({}));
    assert!(answer["choices"][0]["message"]["content"].as_str().unwrap().contains("<function=ls>"));
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_limit_inside_of_a_call_gives_what_there_is() {
    let all = message("two calls", json!({"tools": tools()}))["usage"]["completion_tokens"].as_u64().unwrap();
    let mut names = Vec::new();
    for most in 1..all {
        let answer = message("two calls", json!({"tools": tools(), "max_tokens": most}));
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "length", "{most}");
        let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
        names.push(calls.len());
        let (streamed, _) = streamed("two calls", json!({"tools": tools(), "max_tokens": most}));
        let whole = without_ids(choice["message"].clone());
        let streamed = without_ids(streamed);
        assert_eq!(whole.get("tool_calls"), streamed.get("tool_calls"), "{most}");
        assert_eq!(whole.get("reasoning_content"), streamed.get("reasoning_content"), "{most}");
    }
    assert!(names.is_sorted() && names.contains(&1) && names.contains(&2), "{names:?}");
}

#[test]
fn thinking_is_where_the_request_wants_it() {
    let of = |more: Value| message("just talk", more)["choices"][0]["message"].clone();
    let apart = of(json!({}));
    assert_eq!(apart["reasoning_content"], "I think END.\n");
    assert_eq!(apart["content"], "Hello, END world");
    let inside = of(json!({"reasoning_format": "none"}));
    assert_eq!(inside["content"], "<think>\nI think END.\n</think>\n\nHello, END world");
    assert!(inside.get("reasoning_content").is_none());
    let both = of(json!({"reasoning_format": "deepseek-legacy"}));
    assert_eq!((&both["content"], &both["reasoning_content"]), (&inside["content"], &apart["reasoning_content"]));
    for left in [json!({"include_reasoning": false}), json!({"reasoning": {"exclude": true}})] {
        let left = of(left);
        assert_eq!((&left["content"], left.get("reasoning_content")), (&apart["content"], None));
    }
    // A stop string is content's.
    let stopped = message("just talk", json!({"stop": ["END"]}));
    let choice = &stopped["choices"][0];
    assert_eq!(choice["message"]["content"], "Hello, ");
    assert_eq!(
        (&choice["stop_reason"], &choice["message"]["reasoning_content"]),
        (&json!("END"), &apart["reasoning_content"])
    );
    // A prompt that ends behind its thinking has none.
    for off in [
        json!({"enable_thinking": false}),
        json!({"reasoning_effort": "none"}),
        json!({"reasoning": {"enabled": false}}),
    ] {
        let plain = message("no thinking", off);
        let choice = &plain["choices"][0];
        assert_eq!(
            (&choice["message"]["content"], choice["message"].get("reasoning_content")),
            (&json!("Hello"), None)
        );
        assert_eq!(plain["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
    }
}

#[test]
fn entries_cover_the_content_alone() {
    for stream in [false, true] {
        let more = json!({"logprobs": true, "top_logprobs": 2, "tools": tools(), "stream": stream});
        let answer = ask(shared(), "/v1/chat/completions", &body("two calls", more));
        let choices: Vec<Value> = match stream {
            false => vec![answer.json()["choices"][0].clone()],
            true => answer.chunks().iter().map(|chunk| chunk["choices"][0].clone()).collect(),
        };
        let entries = choices.iter().flat_map(|c| c["logprobs"]["content"].as_array().cloned().unwrap_or_default());
        let bytes: Vec<u8> =
            entries.flat_map(|e| e["bytes"].as_array().unwrap().clone()).map(|b| b.as_u64().unwrap() as u8).collect();
        let text = String::from_utf8(bytes).unwrap();
        // A token may reach into what was trimmed.
        assert_eq!(text.trim_matches('\n'), "Ok \u{e9}.", "streamed: {stream}");
    }
}

#[test]
fn a_tool_loop_closes() {
    let first = message("what comes back", json!({"tools": tools()}));
    assert_eq!(first["choices"][0]["message"]["content"], "It is 42.");
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "ls", "arguments": "{}"}});
    let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
    let messages = json!([{"role": "user", "content": "go"},
        {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [call("a"), call("b")]},
        result("b", "what comes back"), result("a", "1")]);
    let answer =
        ask(shared(), "/v1/chat/completions", &json!({"messages": messages, "tools": tools(), "temperature": 0}));
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "It is 42.");
}

#[test]
fn no_tool_is_called_where_none_is_wanted() {
    let answer = message("one call", json!({"tools": tools(), "tool_choice": "none"}));
    assert!(answer["choices"][0]["message"].get("tool_calls").is_none(), "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}
