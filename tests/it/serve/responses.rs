//! `/v1/responses` over the scripted target and, where the engine has to misbehave, over a scripted engine.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::OnceLock;

use engine::api::{AdmitError, Finish};
use engine::limits::Limits;
use engine_bin::serve::Config;
use engine_tests::scripted::{Rule, ScriptedServer};
use serde_json::{Value, json};

use super::client::{Answer, ask};
use super::fake::{END, Fake, Script};

const CONTEXT: usize = 2048;
const PATH: &str = "/v1/responses";
const TWO_CALLS: &str = "I look.\n</think>\n\nOk \u{e9}.\n<tool_call>\n<function=ls>\n<parameter=dir>\n/a\"b\n</parameter>\n\
    </function>\n</tool_call>\n<tool_call>\n<function=note>\n<parameter=input>\ntwo\nlines\n</parameter>\n</function>\n</tool_call>";
/// All keys of a response.
const KEYS: [&str; 30] = [
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "background",
    "error",
    "incomplete_details",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "output",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "usage",
    "user",
];

fn shared() -> SocketAddr {
    static SERVER: OnceLock<ScriptedServer> = OnceLock::new();
    let rules = || {
        vec![
            Rule::new("a.txt", "</think>\n\nThere is one."),
            Rule::new("two calls", TWO_CALLS),
            Rule::new("just talk", "I think END.\n</think>\n\nHello, END world"),
            Rule::new("no thinking", "Hello"),
            Rule::new("<think>\nsecret plan\n</think>\n\nDone", "</think>\n\nI know."),
            Rule::new("recall", "</think>\n\nWhat?"),
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
        {"type": "function", "name": "ls", "strict": false, "parameters": {"type": "object",
            "properties": {"dir": {"type": "string"}}}},
        {"type": "custom", "name": "note", "description": "Keep a note."},
    ])
}

fn body(text: &str, more: Value) -> Value {
    let mut body = json!({"input": text, "temperature": 0});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn check_keys(response: &Value) {
    for key in KEYS {
        assert!(response.get(key).is_some(), "no {key}: {response}");
    }
}

fn whole(text: &str, more: Value) -> Value {
    let answer = ask(shared(), PATH, &body(text, more));
    assert_eq!(answer.status, 200, "{}", answer.text());
    check_keys(&answer.json());
    answer.json()
}

fn streamed(text: &str, mut more: Value) -> Value {
    more["stream"] = true.into();
    let answer = ask(shared(), PATH, &body(text, more));
    assert!(answer.complete);
    put_together(&answer)
}

/// An item that is put together from its events.
struct Item {
    item: Value,
    part: Option<Value>,
    text: String,
    logprobs: Vec<Value>,
    /// `.done` and `content_part.done` have come.
    done: (bool, bool),
}

/// The last response of a stream, every event checked: order, numbers, ids, and that the parts make up the whole.
fn put_together(answer: &Answer) -> Value {
    let events = answer.named();
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], i, "{event}");
    }
    for (event, name) in events.iter().zip(["response.created", "response.in_progress"]) {
        assert_eq!(event["type"], name);
        check_keys(&event["response"]);
        assert_eq!((&event["response"]["status"], &event["response"]["output"]), (&json!("in_progress"), &json!([])));
        assert_eq!(event["response"]["usage"], Value::Null);
    }
    let (mut output, mut open) = (Vec::<Value>::new(), None::<Item>);
    let mut ids = HashSet::new();
    for (i, event) in events.iter().enumerate().skip(2) {
        let name = event["type"].as_str().unwrap();
        if name == "response.output_item.added" {
            assert!(open.is_none(), "{event}");
            assert_eq!(event["output_index"], output.len());
            let item = event["item"].clone();
            assert_eq!(item["status"], "in_progress");
            assert!(ids.insert(item["id"].clone()), "an id twice");
            open = Some(Item { item, part: None, text: String::new(), logprobs: Vec::new(), done: (false, false) });
            continue;
        }
        if let Some(response) = event.get("response") {
            assert_eq!(i + 1, events.len(), "nothing follows the end");
            check_keys(response);
            assert_eq!(response["id"], events[0]["response"]["id"]);
            if name != "response.failed" {
                assert!(open.is_none());
            }
            assert_eq!(response["output"], Value::from(output), "the items are those of the events");
            assert_eq!(name, format!("response.{}", response["status"].as_str().unwrap()));
            return response.clone();
        }
        let Item { item, part, text, logprobs, done } = open.as_mut().unwrap_or_else(|| panic!("no item: {event}"));
        assert_eq!(event["output_index"], output.len());
        if name == "response.output_item.done" {
            let full = &event["item"];
            assert_eq!((&full["id"], &full["type"], &full["call_id"]), (&item["id"], &item["type"], &item["call_id"]));
            match full["type"].as_str().unwrap() {
                "function_call" => assert_eq!((&full["arguments"], done.0), (&json!(*text), true)),
                "custom_tool_call" => assert_eq!((&full["input"], done.0), (&json!(*text), true)),
                _ => assert_eq!((&full["content"], *done), (&json!([part]), (true, true))),
            }
            output.push(full.clone());
            open = None;
            continue;
        }
        assert_eq!(event["item_id"], item["id"]);
        let kind = item["type"].as_str().unwrap();
        let texts = match kind {
            "reasoning" => "response.reasoning_text",
            "message" => "response.output_text",
            "function_call" => "response.function_call_arguments",
            _ => "response.custom_tool_call_input",
        };
        if matches!(kind, "reasoning" | "message") {
            assert_eq!(event["content_index"], 0);
        }
        match name.strip_prefix(texts) {
            Some(".delta") => {
                assert!(!done.0);
                text.push_str(event["delta"].as_str().unwrap());
                if kind == "message" {
                    logprobs.extend(event["logprobs"].as_array().unwrap().clone());
                }
            }
            Some(".done") => {
                let field = ["text", "arguments", "input"].into_iter().find_map(|f| event.get(f)).unwrap();
                assert_eq!(field, text);
                if kind == "message" {
                    assert!(event["logprobs"].as_array().unwrap().starts_with(logprobs));
                }
                done.0 = true;
            }
            _ if name == "response.content_part.added" => {
                assert!(part.is_none() && text.is_empty());
                assert_eq!(event["part"]["text"], "");
                *part = Some(event["part"].clone());
            }
            _ if name == "response.content_part.done" => {
                assert!(part.is_some() && done.0);
                assert_eq!(event["part"]["text"], *text);
                (*part, done.1) = (Some(event["part"].clone()), true);
            }
            _ => panic!("{event}"),
        }
    }
    panic!("no end")
}

/// What must be the same however it was sent, and whatever was in the cache.
fn same(response: &Value) -> Value {
    let mut out = response.clone();
    let prefix = |kind: &str| match kind {
        "reasoning" => "rs_",
        "message" => "msg_",
        "function_call" => "fc_",
        _ => "ctc_",
    };
    for item in out["output"].as_array_mut().unwrap() {
        let id = item["id"].as_str().unwrap();
        assert!(id.strip_prefix(prefix(item["type"].as_str().unwrap())).is_some_and(|rest| rest.len() == 24), "{id}");
        item["id"] = Value::Null;
        if let Some(id) = item.get("call_id") {
            assert!(id.as_str().unwrap().starts_with("call_"));
            item["call_id"] = Value::Null;
        }
    }
    let usage = &response["usage"];
    let n = |value: &Value| value.as_u64().unwrap();
    assert_eq!(n(&usage["total_tokens"]), n(&usage["input_tokens"]) + n(&usage["output_tokens"]));
    assert!(n(&usage["output_tokens_details"]["reasoning_tokens"]) <= n(&usage["output_tokens"]));
    assert!(usage["input_tokens_details"]["cache_write_tokens"].is_u64());
    assert_eq!(usage["input_tokens_details"]["cached_tokens"], response["timings"]["cache_n"]);
    let s = |name: &str| n(&response["speculation"][name]);
    assert_eq!(n(&usage["output_tokens"]), s("first_n") + s("accepted_n") + s("bonus_n") + s("forced_n"));
    out["usage"] = json!([usage["input_tokens"], usage["output_tokens"], usage["output_tokens_details"]]);
    for name in ["id", "timings", "speculation", "created_at", "completed_at"] {
        out[name] = Value::Null;
    }
    out
}

#[test]
fn items_are_the_same_streamed_or_not() {
    let mut first: Option<Value> = None;
    for strategy in ["off", "ngram-suffix"] {
        let more = json!({"tools": tools(), "speculative": {"strategy": strategy}});
        let whole = whole("two calls", more.clone());
        assert!(whole["id"].as_str().unwrap().starts_with("resp_"));
        assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("completed")));
        assert!(whole["completed_at"].as_u64() >= whole["created_at"].as_u64());
        let output = &whole["output"];
        assert_eq!(output[0]["content"], json!([{"type": "reasoning_text", "text": "I look.\n"}]));
        assert_eq!((&output[0]["summary"], &output[0]["encrypted_content"]), (&json!([]), &Value::Null));
        let part = json!({"type": "output_text", "text": "Ok \u{e9}.", "annotations": [], "logprobs": []});
        assert_eq!((&output[1]["role"], &output[1]["content"]), (&json!("assistant"), &json!([part])));
        assert_eq!((&output[2]["name"], &output[2]["arguments"]), (&json!("ls"), &json!("{\"dir\":\"/a\\\"b\"}")));
        assert_eq!((&output[3]["type"], &output[3]["input"]), (&json!("custom_tool_call"), &json!("two\nlines")));
        assert!(output.as_array().unwrap().iter().all(|item| item["status"] == "completed"));
        assert_eq!(output.as_array().unwrap().len(), 4);
        let whole = same(&whole);
        assert_eq!(same(&streamed("two calls", more)), whole, "{strategy}");
        assert_eq!(*first.get_or_insert_with(|| whole.clone()), whole, "{strategy}");
    }
}

#[test]
fn the_request_is_repeated() {
    let more = json!({"instructions": "be brief", "max_output_tokens": 100, "metadata": {"a": "b"}, "top_p": 0.5,
        "temperature": 0.7, "user": "u", "prompt_cache_key": "k", "reasoning": {"effort": "none"}, "store": true,
        "tools": [{"type": "web_search"}, {"type": "function", "name": "f"}], "tool_choice": "none"});
    let answer = ask(shared(), PATH, &body("no thinking", more.clone()));
    assert_eq!(answer.header("x-engine-warnings"), Some("tools_dropped:web_search"));
    let ignored = answer.header("x-engine-ignored-params").unwrap().to_owned();
    assert!(["store", "user", "prompt_cache_key"].iter().all(|name| ignored.contains(name)), "{ignored}");
    let response = answer.json();
    for name in ["instructions", "max_output_tokens", "metadata", "top_p", "temperature", "user", "prompt_cache_key"] {
        assert_eq!(response[name], more[name], "{name}");
    }
    assert_eq!((&response["store"], &response["tool_choice"]), (&json!(false), &json!("none")));
    assert_eq!(response["reasoning"], json!({"effort": "none", "summary": null}));
    assert_eq!(response["tools"], json!([{"type": "function", "name": "f"}]));
    assert_eq!(response["output"][0]["content"][0]["text"], "Hello");
}

#[test]
fn a_limit_leaves_the_last_item_incomplete() {
    let all = whole("two calls", json!({"tools": tools()}))["usage"]["output_tokens"].as_u64().unwrap();
    let mut last = Vec::new();
    for most in 1..all {
        let more = json!({"tools": tools(), "max_output_tokens": most});
        let whole = whole("two calls", more.clone());
        assert_eq!(whole["status"], "incomplete");
        assert_eq!(whole["incomplete_details"], json!({"reason": "max_output_tokens"}));
        assert_eq!(whole["completed_at"], Value::Null);
        assert_eq!(same(&streamed("two calls", more)), same(&whole), "{most}");
        let items = whole["output"].as_array().unwrap();
        let incomplete = items.iter().filter(|item| item["status"] == "incomplete").count();
        assert!(incomplete <= 1 && items[..items.len() - 1].iter().all(|item| item["status"] == "completed"));
        last.push((items.len(), incomplete));
    }
    last.dedup();
    assert!(last.starts_with(&[(1, 1), (2, 1)]) && last.contains(&(3, 1)) && last.contains(&(3, 0)), "{last:?}");
}

#[test]
fn entries_cover_the_text_of_the_message() {
    // The last token of the first reaches into the newline that stands before its calls.
    for (prompt, text) in [("two calls", "Ok \u{e9}."), ("just talk", "Hello, END world")] {
        let more = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2, "tools": tools()});
        let (whole, parts) = (whole(prompt, more.clone()), streamed(prompt, more));
        assert_eq!(same(&whole), same(&parts));
        let entries = whole["output"][1]["content"][0]["logprobs"].as_array().unwrap();
        let bytes: Vec<u8> =
            entries.iter().flat_map(|e| e["bytes"].as_array().unwrap()).map(|b| b.as_u64().unwrap() as u8).collect();
        assert_eq!(String::from_utf8(bytes).unwrap().trim_matches('\n'), text);
        assert!(entries.iter().all(|e| e["top_logprobs"].as_array().unwrap().len() == 2));
    }
}

#[test]
fn a_tool_loop_closes() {
    let first = whole("two calls", json!({"tools": tools()}));
    let mut input = vec![json!({"role": "user", "content": "two calls"})];
    input.extend(first["output"].as_array().unwrap().clone());
    // As a client sends it that keeps no thinking.
    input[1].as_object_mut().unwrap().remove("content");
    let of = |i: usize| first["output"][i]["call_id"].clone();
    input.push(json!({"type": "custom_tool_call_output", "call_id": of(3), "output": "kept"}));
    input.push(
        json!({"type": "function_call_output", "call_id": of(2), "output": [{"type": "input_text", "text": "a.txt"}]}),
    );
    let more = json!({"input": input, "tools": tools(), "include": ["reasoning.encrypted_content"]});
    let second = whole("", more.clone());
    assert_eq!(second["output"][0]["content"][0]["text"], "There is one.");
    let counted = ask(shared(), "/v1/responses/input_tokens", &json!({"input": input, "tools": tools()})).json();
    assert_eq!(counted, json!({"object": "response.input_tokens", "input_tokens": second["usage"]["input_tokens"]}));
    let chat = json!({"messages": [{"role": "user", "content": "just talk"}]});
    let counted = ask(shared(), "/v1/chat/completions/input_tokens", &chat).json();
    assert_eq!(counted["input_tokens"], ask(shared(), "/v1/chat/completions", &chat).json()["usage"]["prompt_tokens"]);
}

#[test]
fn nothing_is_answered_with_nothing() {
    let probe = json!({"input": [], "max_output_tokens": 16});
    for stream in [false, true] {
        let mut probe = probe.clone();
        probe["stream"] = stream.into();
        let answer = ask(shared(), PATH, &probe);
        assert_eq!(answer.status, 200);
        let response = if stream { put_together(&answer) } else { answer.json() };
        check_keys(&response);
        assert_eq!((&response["status"], &response["output"]), (&json!("completed"), &json!([])));
        assert_eq!(response["usage"]["total_tokens"], 0);
    }
}

#[test]
fn what_is_not_kept_here_is_refused() {
    for (name, value) in [
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("conv_1")),
        ("prompt", json!({"id": "p"})),
        ("background", json!(true)),
        ("truncation", json!("auto")),
        ("n", json!(2)),
    ] {
        let answer = ask(shared(), PATH, &body("hi", json!({name: value})));
        let error = answer.json()["error"].clone();
        assert_eq!(
            (answer.status, &error["param"], &error["code"]),
            (400, &json!(name), &json!("unsupported_parameter"))
        );
    }
    let error = ask(shared(), PATH, &body("hi", json!({"stop": ["a", "b", "c", "d", "e"]}))).json();
    assert_eq!(error["error"]["param"], "stop");
    let long = ask(shared(), PATH, &json!({"input": "many words ".repeat(3000)})).json();
    assert_eq!((&long["error"]["code"], &long["error"]["param"]), (&json!("context_length_exceeded"), &json!("input")));
    assert_eq!(ask(shared(), "/v1/responses/compact", &json!({})).status, 501);
}

#[test]
fn a_failure_is_the_last_event_of_a_whole_stream() {
    let fake = Fake::start(|_| Script::Say(vec!["abc"], Finish::Fault(engine::step::Fault::NonFinite)));
    let answer = ask(fake.address(), PATH, &body("hi", json!({"stream": true})));
    assert_eq!((answer.status, answer.complete), (200, true));
    let response = answer.named().pop().unwrap()["response"].clone();
    check_keys(&response);
    assert_eq!((&response["status"], &response["error"]["code"]), (&json!("failed"), &json!("server_error")));
    let full = Fake::start(|_| Script::Refuse(AdmitError::QueueFull { waiting: 9 }));
    let answer = ask(full.address(), PATH, &body("hi", json!({"stream": true})));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (429, &json!("queue_full")));
}

/// Where the model's tags are no tokens its thinking is text, with the tag that the prompt ends in.
#[test]
fn thinking_without_tokens_is_text() {
    let fake = Fake::start(|_| Script::Say(vec!["Hel", "lo"], Finish::EndToken(END)));
    let of = |stream: bool| body("hi", json!({"stream": stream, "enable_thinking": true}));
    let whole = ask(fake.address(), PATH, &of(false)).json();
    let parts = put_together(&ask(fake.address(), PATH, &of(true)));
    for response in [whole, parts] {
        assert_eq!(response["output"].as_array().unwrap().len(), 1);
        assert_eq!(response["output"][0]["content"][0]["text"], "<think>\nHello");
    }
}

/// Where a prompt has gone another way than an earlier one, by the first difference.
#[test]
fn a_prompt_is_compared_with_an_earlier_one() {
    let base = || body("just talk", json!({"instructions": "Be brief.", "tools": tools()}));
    let first = ask(shared(), PATH, &base()).json();
    assert!(first.get("prompt_cache_diagnostics").is_none(), "nobody asked");
    let compared = |id: &Value, more: Value| {
        let mut body = base();
        body["prompt_cache_options"] = json!({"comparison_response_id": id});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let whole = ask(shared(), PATH, &body).json();
        body["stream"] = true.into();
        let streamed = put_together(&ask(shared(), PATH, &body));
        let told = whole["prompt_cache_diagnostics"].clone();
        assert_eq!(told["type"], streamed["prompt_cache_diagnostics"]["type"], "{streamed}");
        if let Some(missed) = told.get("cache_missed_tokens") {
            let usage = &whole["usage"];
            let n = |v: &Value| v.as_u64().unwrap();
            assert_eq!(n(missed), n(&usage["input_tokens"]) - n(&usage["input_tokens_details"]["cached_tokens"]));
        }
        (told["type"].clone(), told["reason"].clone())
    };
    let missed = |reason: &str| (json!("cache_miss"), json!(reason));
    let id = &first["id"];
    let goes_on = json!({"input": [{"role": "user", "content": "just talk"}, {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "just talk"}]});
    assert_eq!(compared(id, json!({})), (json!("cache_hit"), Value::Null));
    assert_eq!(compared(id, goes_on), (json!("cache_hit"), Value::Null));
    // It is the same model, whatever a request calls it.
    assert_eq!(compared(id, json!({"model": "other"})), (json!("cache_hit"), Value::Null));
    assert_eq!(compared(id, json!({"tools": []})), missed("tools_changed"));
    assert_eq!(compared(id, json!({"instructions": "Be long."})), missed("input_changed"));
    assert_eq!(compared(id, json!({"input": "no thinking"})), missed("input_changed"));
    assert_eq!(compared(id, json!({"reasoning": {"effort": "none"}})), missed("reasoning_effort_changed"));
    assert_eq!(compared(&json!("resp_unheard"), json!({})).0, "comparison_response_not_found");
    let answer = ask(shared(), PATH, &body("just talk", json!({"prompt_cache_options": {"mode": "explicit"}})));
    assert!(answer.header("x-engine-ignored-params").unwrap().contains("prompt_cache_options.mode"));
    assert!(answer.json().get("prompt_cache_diagnostics").is_none());
}

#[test]
fn thoughts_of_old_turns_are_kept_where_that_is_asked_for() {
    let input = json!([{"role": "user", "content": "begin"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "secret plan"}]},
        {"role": "assistant", "content": "Done"}, {"role": "user", "content": "recall"}]);
    for (context, text) in [(json!("all_turns"), "I know."), (json!("current_turn"), "What?"), (Value::Null, "What?")] {
        let more = json!({"input": input, "reasoning": {"context": context}});
        let response = whole("", more.clone());
        assert_eq!(response["output"][0]["content"][0]["text"], text, "{context}");
        let counted = ask(shared(), "/v1/responses/input_tokens", &more).json();
        assert_eq!(counted["input_tokens"], response["usage"]["input_tokens"]);
    }
}

/// The model wants to write something else; the grammar lets it not.
#[test]
fn a_custom_tool_is_held_to_its_grammar() {
    let tools = |format: Value| json!([{"type": "custom", "name": "note", "format": format}]);
    for (format, starts, letters) in [
        (json!({"type": "grammar", "syntax": "lark", "definition": "start: \"t\" REST\nREST: /[a-z]{2}/"}), "t", 2..=2),
        (json!({"type": "grammar", "syntax": "regex", "definition": "two\\n[a-z]{2,5}"}), "two\n", 2..=5),
        (json!({"type": "grammar", "syntax": "gbnf", "definition": "root ::= \"2 \" [a-z] [a-z]"}), "2 ", 2..=2),
    ] {
        let more = json!({"tools": tools(format.clone()), "tool_choice": {"type": "custom", "name": "note"}});
        let mut first = None;
        for strategy in ["off", "ngram-suffix"] {
            let mut more = more.clone();
            more["speculative"] = json!({"strategy": strategy});
            let response = whole("two calls", more);
            let items = response["output"].as_array().unwrap();
            let call =
                items.iter().find(|item| item["type"] == "custom_tool_call").unwrap_or_else(|| panic!("{response}"));
            let text = call["input"].as_str().unwrap().to_owned();
            let rest = text.strip_prefix(starts).unwrap_or_else(|| panic!("{format}: {text:?}"));
            assert!(
                rest.bytes().all(|b| b.is_ascii_lowercase()) && letters.contains(&rest.len()),
                "{format}: {text:?}"
            );
            assert_eq!(*first.get_or_insert_with(|| text.clone()), text);
        }
    }
    let wrong = tools(json!({"type": "grammar", "syntax": "lark", "definition": "start: nobody"}));
    let error = ask(shared(), PATH, &body("hi", json!({"tools": wrong}))).json()["error"].clone();
    assert_eq!((&error["code"], &error["param"]), (&json!("invalid_schema"), &json!("tools[0].format.definition")));
}
