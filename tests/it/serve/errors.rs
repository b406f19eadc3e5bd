//! Requests that are refused: status, type, code and param, and that nothing reached the engine.

use engine::api::AdmitError;
use serde_json::{Value, json};

use super::client::{Client, ask, get, post};
use super::fake::{Fake, LONG, N_CTX, Script, chat, hello};

/// A chat body with one more field.
fn with(name: &str, value: Value) -> Value {
    let mut body = chat("hi");
    body[name] = value;
    body
}

#[test]
fn bad_fields_are_named() {
    let fake = Fake::start(hello);
    let cases = [
        (with("temperature", json!("1")), "invalid_type", "temperature"),
        (with("temperature", json!(3)), "invalid_value", "temperature"),
        (with("temperature", json!(true)), "invalid_type", "temperature"),
        (with("top_p", json!(0)), "invalid_value", "top_p"),
        (with("max_tokens", json!(-1)), "invalid_value", "max_tokens"),
        (with("max_tokens", json!("5")), "invalid_type", "max_tokens"),
        (with("max_tokens", json!(true)), "invalid_type", "max_tokens"),
        (with("max_tokens", json!(1.5)), "invalid_type", "max_tokens"),
        (with("max_tokens", json!(1e300)), "invalid_value", "max_tokens"),
        (with("seed", json!(18446744073709551615_u64)), "invalid_value", "seed"),
        (with("n", json!(0)), "invalid_value", "n"),
        (with("n", json!(9)), "invalid_value", "n"),
        (with("stop", json!("")), "invalid_value", "stop"),
        (with("stop", json!(["a", "b", "c", "d", "e"])), "invalid_value", "stop"),
        (with("stop", json!([1])), "invalid_type", "stop"),
        (with("stop_token_ids", json!([259])), "invalid_value", "stop_token_ids[0]"),
        (with("logit_bias", json!({"x": 1})), "invalid_type", "logit_bias.x"),
        (with("logit_bias", json!({"+5": 1})), "invalid_type", "logit_bias.+5"),
        (with("best_of", json!(2)), "unsupported_parameter", "best_of"),
        (with("logit_bias", json!({"300": 1})), "invalid_value", "logit_bias.300"),
        (with("logit_bias", json!({"3": 101})), "invalid_value", "logit_bias.3"),
        (with("logit_bias", json!([[3]])), "invalid_type", "logit_bias[0]"),
        (with("top_logprobs", json!(3)), "invalid_value", "top_logprobs"),
        (with("stream_options", json!({"include_usage": true})), "invalid_value", "stream_options"),
        (with("response_format", json!({"type": "yaml"})), "unsupported_value", "response_format.type"),
        (with("grammar", json!("root ::= x")), "invalid_schema", "grammar"),
        (with("tool_choice", json!("required")), "invalid_value", "tool_choice"),
        (with("tool_choice", json!({"type": "function"})), "missing_required_parameter", "tool_choice.name"),
        (with("tool_choice", json!("any")), "invalid_value", "tool_choice"),
        (with("tool_choice", json!({"type": "any"})), "invalid_value", "tool_choice.type"),
        (with("tool_choice", json!({"name": "f"})), "missing_required_parameter", "tool_choice.type"),
        (with("tool_choice", json!(true)), "invalid_type", "tool_choice"),
        (with("reasoning_format", json!("deeper")), "invalid_value", "reasoning_format"),
        (with("mirostat", json!(2)), "unsupported_parameter", "mirostat"),
        (with("chat_template_kwargs", json!({"messages": []})), "invalid_value", "chat_template_kwargs.messages"),
        (with("continue_final_message", json!(true)), "invalid_value", "continue_final_message"),
        (with("repetition_penalty", json!(0)), "invalid_value", "repetition_penalty"),
        (with("min_tokens", json!(-1)), "invalid_value", "min_tokens"),
        (with("messages", json!([])), "invalid_value", "messages"),
        (with("messages", Value::Null), "missing_required_parameter", "messages"),
        (with("messages", json!("hi")), "invalid_type", "messages"),
        (chat("raise"), "template_error", "messages"),
    ];
    for (body, code, param) in cases {
        let answer = ask(fake.address(), "/v1/chat/completions", &body);
        let error = &answer.json()["error"];
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!((error["code"].as_str(), error["param"].as_str()), (Some(code), Some(param)), "{body}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let error = ask(fake.address(), "/v1/chat/completions", &with("tools", tool)).json();
    assert_eq!(error["error"]["code"], "tools_unsupported");
    assert_eq!(fake.submissions().len(), 0);
}

#[test]
fn bad_prompts_are_named() {
    let fake = Fake::start(hello);
    for (prompt, code) in [
        (json!(""), "invalid_value"),
        (json!([]), "invalid_value"),
        (json!([""]), "invalid_value"),
        (json!([[]]), "invalid_value"),
        (json!([259]), "invalid_value"),
        (json!([true]), "invalid_type"),
        (json!({}), "invalid_type"),
        (Value::Null, "missing_required_parameter"),
    ] {
        let answer = ask(fake.address(), "/v1/completions", &json!({"prompt": prompt}));
        assert_eq!(answer.status, 400, "{prompt}");
        assert_eq!(answer.json()["error"]["code"], code, "{prompt}");
        assert!(answer.json()["error"]["param"].as_str().unwrap().starts_with("prompt"));
    }
    for field in [json!({"suffix": "x"}), json!({"best_of": 2})] {
        let mut body = json!({"prompt": "x"});
        body.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        assert_eq!(ask(fake.address(), "/v1/completions", &body).status, 400, "{field}");
    }
    assert_eq!(fake.submissions().len(), 0);
}

/// Inside an object whose every field acts, a name that nothing knows is refused with those that are known.
#[test]
fn misspelt_fields_are_told_the_names_that_exist() {
    let fake = Fake::start(hello);
    let speculative = "strategy, mtp_tokens, suffix_min, suffix_max, suffix_tokens, window, on_unavailable";
    for (field, value, param, names) in [
        ("speculative", json!({"stratergy": "off"}), "speculative.stratergy", speculative),
        ("speculative", json!({"window": {"size": 4}}), "speculative.window.size", "policy, initial, min, max"),
        ("stream_options", json!({"usage": true}), "stream_options.usage", "include_usage, continuous_usage_stats"),
    ] {
        let mut body = json!({"prompt": "x", "stream": true});
        body[field] = value;
        let answer = ask(fake.address(), "/v1/completions", &body);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["param"].as_str()), (400, Some(param)), "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{param} is not known; the fields here are {names}")), "{message}");
    }
    assert_eq!(fake.submissions().len(), 0);
}

#[test]
fn null_is_absent_and_unknown_fields_are_listed() {
    let fake = Fake::start(hello);
    let mut body = chat("hi");
    for name in ["max_tokens", "model", "stop", "tools", "response_format", "temperature", "seed", "stream", "n"] {
        body[name] = Value::Null;
    }
    body["stop"] = json!([]);
    body["top_logprobs"] = Value::Null;
    body["user"] = json!("me");
    body["made_up"] = json!(1);
    let answer = ask(fake.address(), "/v1/chat/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-engine-ignored-params"), Some("user, made_up"));
}

#[test]
fn bad_json_is_the_clients_fault() {
    let fake = Fake::start(hello);
    let mut client = Client::connect(fake.address());
    for body in [
        "",
        "{",
        "[]",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"emoji \\ud83d\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x \\ude00 y\"}]}",
        "{\"messages\":[],\"messages\":[]}",
    ] {
        client.send(post("/v1/chat/completions", body));
        let answer = client.answer();
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.header("connection") == Some("keep-alive"));
    }
    client.send(post("/v1/chat/completions", "{\"messages\":[],\"temperature\":1e999}"));
    let error = &client.answer().json()["error"];
    assert_eq!((&error["code"], &error["param"]), (&json!("invalid_value"), &json!("temperature")));
    let mut wire =
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{\"a\":\"\xff\"}".to_vec();
    wire.extend_from_slice(get("/health").as_bytes());
    client.send(wire);
    assert!(client.answer().json()["error"]["message"].as_str().unwrap().contains("byte 6"));
    assert_eq!(client.answer().status, 200);
    client
        .send("POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Type: multipart/form-data\r\nContent-Length: 2\r\n\r\n{}");
    assert_eq!(client.answer().json()["error"]["code"], "unsupported_media_type");
    client.send("POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}");
    assert_eq!(client.answer().json()["error"]["code"], "unsupported_encoding");
}

#[test]
fn prompts_beyond_the_context() {
    let fake = Fake::start(hello);
    let answer = ask(fake.address(), "/v1/completions", &json!({"prompt": "a".repeat(N_CTX)}));
    let error = &answer.json()["error"];
    assert_eq!((answer.status, error["code"].as_str()), (400, Some("context_length_exceeded")));
    assert_eq!((error["n_prompt_tokens"].as_u64(), error["n_ctx"].as_u64()), (Some(256), Some(256)));
    assert!(error["message"].as_str().unwrap().contains("maximum context length is 256 tokens"));
    assert_eq!(ask(fake.address(), "/v1/completions", &json!({"prompt": "a".repeat(N_CTX - 1)})).status, 200);
    // So long that the toy need not look at it: not counted to its end, and refused in the same shape.
    let long = "a".repeat(2_000_000);
    let mut continued = chat("hi");
    continued["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": long, "prefix": true}));
    for (path, body, param, least) in [
        ("/v1/completions", json!({"prompt": ["b", long]}), "prompt", 1_000_000),
        ("/v1/chat/completions", chat(&long), "messages", 1_000_009),
        ("/v1/chat/completions", continued, "messages", 1_000_020),
    ] {
        let answer = ask(fake.address(), path, &body);
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["code"].as_str()), (400, Some("context_length_exceeded")), "{error}");
        assert_eq!((error["n_prompt_tokens"].as_u64(), error["param"].as_str()), (Some(least), Some(param)));
        let text = format!("maximum context length is 256 tokens, but the request has at least {least} prompt tokens.");
        assert!(error["message"].as_str().unwrap().contains(&text), "{error}");
    }
}

#[test]
fn refusals_of_the_engine_become_statuses() {
    let fake = Fake::start(|_| Script::Refuse(AdmitError::QueueFull { waiting: 9 }));
    for stream in [false, true] {
        let answer = ask(fake.address(), "/v1/chat/completions", &with("stream", stream.into()));
        assert_eq!(answer.status, 429);
        assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.header("x-should-retry"), Some("true"));
    }
}

#[test]
fn paths() {
    let fake = Fake::start(hello);
    let mut client = Client::connect(fake.address());
    let mut check = |path: &str, status: u16, code: Option<&str>| {
        client.send(get(path));
        let answer = client.answer();
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.json()["error"]["code"].as_str(), code, "{path}");
        answer
    };
    for path in ["/health", "/v1/health", "/readyz", "/livez", "/ping", "/version", "/health/", "/health?x=1"] {
        check(path, 200, None);
    }
    assert_eq!(check("/v1/models/org%2Ftoy", 200, None).json()["meta"]["n_ctx"], 256);
    assert_eq!(check("/v1/models?after_id=org%2Ftoy", 200, None).json()["data"], json!([]));
    check("/v1/models/other", 404, Some("model_not_found"));
    check("/nope", 404, Some("unknown_path"));
    assert!(check("/v1/v1/models", 404, Some("unknown_path")).text().contains("/v1 twice"));
    let answer = check("/v1/embeddings", 501, Some("not_implemented"));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
}

#[test]
fn a_request_id_is_taken_over_or_made() {
    let fake = Fake::start(hello);
    let mut client = Client::connect(fake.address());
    client.send("GET /health HTTP/1.1\r\nHost: h\r\nX-Request-Id: abc-1\r\n\r\n");
    let answer = client.answer();
    assert_eq!((answer.header("x-request-id"), answer.header("request-id")), (Some("abc-1"), Some("abc-1")));
    client.send(format!("GET /health HTTP/1.1\r\nHost: h\r\nX-Request-Id: {}\r\n\r\n", "a".repeat(129)));
    let made = client.answer();
    assert!(made.header("x-request-id").unwrap().starts_with("req_"));
}

#[test]
fn token_limits_have_several_names_and_the_smallest_holds() {
    let fake = Fake::start(hello);
    for (limits, expected) in [
        (json!({}), u32::MAX),
        (json!({"max_tokens": 5.0}), 5),
        (json!({"max_tokens": 9, "max_completion_tokens": 7}), 7),
        (json!({"n_predict": 3, "max_tokens": 4}), 3),
        (json!({"n_predict": -1, "max_tokens": null}), u32::MAX),
        (json!({"max_tokens": 9_007_199_254_740_993_i64}), u32::MAX),
        (json!({"max_tokens": 0}), 0),
    ] {
        let mut body = chat("hi");
        body.as_object_mut().unwrap().extend(limits.as_object().unwrap().clone());
        assert_eq!(ask(fake.address(), "/v1/chat/completions", &body).status, 200, "{limits}");
        assert_eq!(fake.submissions().last().unwrap().max_tokens, expected, "{limits}");
        let mut body = json!({"prompt": "hi"});
        body.as_object_mut().unwrap().extend(limits.as_object().unwrap().clone());
        let answer = ask(fake.address(), "/v1/completions", &body);
        assert_eq!((answer.status, answer.header("x-engine-ignored-params")), (200, None), "{limits}");
        // No limit at all means 16 there.
        let expected = if body.as_object().unwrap().len() == 1 || limits["n_predict"] == -1 { 16 } else { expected };
        assert_eq!(fake.submissions().last().unwrap().max_tokens, expected, "{limits}");
    }
}

#[test]
fn a_bias_of_null_is_none() {
    let fake = Fake::start(hello);
    for bias in [json!({"65": null, "66": 2.5}), json!([[65, null], [66, 2.5]])] {
        assert_eq!(ask(fake.address(), "/v1/chat/completions", &with("logit_bias", bias)).status, 200);
        let edits = fake.submissions().pop().unwrap().sampling.logit_bias;
        assert_eq!(edits.iter().map(|e| (e.token.0, e.add)).collect::<Vec<_>>(), [(66, 2.5)]);
    }
}

#[test]
fn text_tools_say_how_much_they_list() {
    let fake = Fake::start(hello);
    let most = 1024 * 1024;
    for (name, pieces) in [("content", false), ("content", true), ("prompt", true)] {
        let body = |n: usize| json!({name: "a".repeat(n), "with_pieces": pieces});
        let answer = ask(fake.address(), "/tokenize", &body(most));
        assert_eq!((answer.status, answer.text().contains("\"count\":1048576,")), (200, true));
        let answer = ask(fake.address(), "/tokenize", &body(most + 1));
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["param"].as_str()), (400, Some(name)), "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("1048577 tokens") && message.contains("at most 1048576"), "{message}");
    }
    // A text may be as long as a body.
    let answer = ask(fake.address(), "/detokenize", &json!({"tokens": vec![LONG.0; 513]}));
    let error = &answer.json()["error"];
    assert_eq!((answer.status, error["param"].as_str()), (400, Some("tokens")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("longer than 33554432 bytes"), "{error}");
    assert_eq!(ask(fake.address(), "/detokenize", &json!({"tokens": [LONG.0, 97]})).status, 200);
}

#[test]
fn pieces_are_strings_or_bytes() {
    let fake = Fake::start(hello);
    let tokens = |body: &Value| ask(fake.address(), "/tokenize", body).json();
    let listed = tokens(&json!({"content": "a\u{e9}", "with_pieces": true}));
    let pieces = json!([{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]);
    assert_eq!(listed, json!({"tokens": pieces, "count": 3, "max_model_len": N_CTX}));
    let listed = tokens(&json!({"prompt": "a\u{e9}", "return_token_strs": true}));
    let strings = json!(["a", "\u{fffd}", "\u{fffd}"]);
    assert_eq!(listed, json!({"tokens": [97, 195, 169], "count": 3, "max_model_len": N_CTX, "token_strs": strings}));
    assert_eq!(tokens(&json!({"content": "a"})), json!({"tokens": [97], "count": 1, "max_model_len": N_CTX}));
}

#[test]
fn sampling_reaches_the_engine_as_given() {
    let fake = Fake::start(hello);
    let mut body = chat("hi");
    for (name, value) in [
        ("temperature", json!(0.5)),
        ("top_k", json!(-1)),
        ("top_p", json!(0.9)),
        ("min_p", json!(0.05)),
        ("repetition_penalty", json!(1.1)),
        ("repeat_last_n", json!(-1)),
        ("presence_penalty", json!(0.25)),
        ("frequency_penalty", json!(-0.5)),
        ("logit_bias", json!({"65": -100, "66": 2.5})),
        ("seed", json!(-7)),
        ("stop", json!("END")),
        ("stop_token_ids", json!([10])),
        ("ignore_eos", json!(true)),
        ("min_tokens", json!(2)),
        ("speculative", json!({"strategy": "off", "window": {"policy": "fixed", "initial": 2}})),
    ] {
        body[name] = value;
    }
    assert_eq!(ask(fake.address(), "/v1/chat/completions", &body).status, 200);
    let submission = fake.submissions().pop().unwrap();
    let s = &submission.sampling;
    assert_eq!((s.temperature, s.top_k, s.top_p, s.min_p), (0.5, 0, 0.9, 0.05));
    assert_eq!((s.repeat_penalty, s.repeat_last_n), (1.1, u32::MAX));
    assert_eq!((s.presence_penalty, s.frequency_penalty, s.seed), (0.25, -0.5, (-7_i64) as u64));
    let bias: Vec<(u32, f32)> = s.logit_bias.iter().map(|e| (e.token.0, e.add)).collect();
    assert_eq!(bias, [(65, f32::NEG_INFINITY), (66, 2.5)]);
    assert_eq!((&submission.stop.strings[0][..], submission.stop.tokens[0].0), (&b"END"[..], 10));
    assert!(submission.stop.ignore_eos && submission.stop.min_tokens == 2);
    assert_eq!((submission.speculation.strategy.name(), submission.speculation.window_initial), ("off", 2));
    // And what was not given is the default.
    ask(fake.address(), "/v1/chat/completions", &chat("hi"));
    let plain = fake.submissions().pop().unwrap();
    assert_eq!((plain.sampling.temperature, plain.sampling.top_p, plain.sampling.repeat_penalty), (1.0, 1.0, 1.0));
    assert_eq!(plain.speculation, super::fake::SPECULATION);
}

#[test]
fn every_character_survives() {
    let fake = Fake::start(|_| {
        Script::Say(vec!["\0\u{1}\"\\\u{7f}\u{fdd0}\u{1f600}\u{2028}\r\n"], engine::api::Finish::MaxTokens)
    });
    let text = "\0\u{1}\"\\\u{7f}\u{fdd0}\u{fffd}\u{1f600}\u{2028}\r\n</s>";
    let json = ask(fake.address(), "/v1/chat/completions", &chat(text)).json();
    assert_eq!(json["choices"][0]["message"]["content"], "\0\u{1}\"\\\u{7f}\u{fdd0}\u{1f600}\u{2028}\r\n");
    let prompt = fake.submissions().pop().unwrap().prompt;
    assert_eq!(prompt, super::fake::ids(&format!("user: {text}\nassistant: ")));
    let mut streamed = chat(text);
    streamed["stream"] = true.into();
    let chunks = ask(fake.address(), "/v1/chat/completions", &streamed).chunks();
    assert_eq!(chunks[1]["choices"][0]["delta"]["content"], json["choices"][0]["message"]["content"]);
}

#[test]
fn a_body_of_ten_megabytes_is_read() {
    let fake = Fake::start(hello);
    let answer = ask(fake.address(), "/v1/chat/completions", &chat(&"a".repeat(10_000_000)));
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
}

#[test]
fn tokenizer_endpoints() {
    let fake = Fake::start(hello);
    let json = ask(fake.address(), "/tokenize", &json!({"content": "hé"})).json();
    assert_eq!(json, json!({"tokens": [104, 195, 169], "count": 3, "max_model_len": 256}));
    let json = ask(fake.address(), "/tokenize", &json!({"content": "é", "with_pieces": true})).json();
    assert_eq!(json["tokens"][0], json!({"id": 195, "piece": [195]}));
    let json = ask(fake.address(), "/detokenize", &json!({"tokens": [104, 105]})).json();
    assert_eq!(json["content"], "hi");
    assert_eq!(ask(fake.address(), "/detokenize", &json!({"tokens": [259]})).status, 400);
    assert_eq!(ask(fake.address(), "/tokenize", &json!({"content": "a", "prompt": "b"})).status, 400);
    let json = ask(fake.address(), "/apply-template", &chat("hi")).json();
    assert_eq!((json["prompt"].as_str(), json["tokens"].as_u64()), (Some("user: hi\nassistant: "), Some(20)));
    let mut body = chat("hi");
    body["messages"].as_array_mut().unwrap().push(json!({"role": "assistant", "content": "so", "prefix": true}));
    let json = ask(fake.address(), "/apply-template", &body).json();
    assert_eq!(json["prompt"], "user: hi\nassistant: so");
}
