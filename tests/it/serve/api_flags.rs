//! Flags of the API, each by what it changes in an answer.

use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use engine::limits::Limits;
use engine_bin::embed::{self, Endpoint, Engine, Kind};
use engine_bin::flags::{LowArgs, ServeArgs};
use engine_bin::serve::{Bounds, Config};
use engine_io::gguf;
use engine_tests::scripted::{Rule, ScriptedServer};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::{Answer, Client, ask, get, post};
use super::fake::{Fake, Script, chat};
use super::fields;
use super::process::{Running, run};
use crate::refusals::tiny::{ARCHS, model};

const CONTEXT: usize = 4096;

fn args(flags: &[&str]) -> ServeArgs {
    let words = std::iter::once(&"engine-serve").chain(flags).map(Into::into);
    LowArgs::parse_line(words).unwrap().resolve().unwrap()
}

/// The scripted model behind a server with these flags.
fn scripted(flags: &[&str]) -> ScriptedServer {
    let args = args(flags);
    let config = Config { bounds: args.bounds(), ..Config::local(0, CONTEXT) };
    let rules = vec![
        Rule::new("think first", "one two three four five six seven eight.\n</think>\n\nHello"),
        Rule::new("", "</think>\n\nHello"),
    ];
    ScriptedServer::start_as(config, &Limits::new(2, CONTEXT), rules, args.api())
}

fn look(address: SocketAddr, path: &str) -> Answer {
    let mut client = Client::connect(address);
    client.send(get(path));
    client.answer()
}

fn user(text: &str, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 64, "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The code and the field of a refusal, in whichever dialect.
fn refusal(answer: &Answer) -> (u16, String, String) {
    let body = answer.json();
    let error = &body["error"];
    let place = if error.get("details").is_some() { &error["details"] } else { error };
    let code = place.get("code").or_else(|| place.get("error_code")).unwrap();
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    (answer.status, text(code), text(&place["param"]))
}

fn told(status: u16, code: &str, param: &str) -> (u16, String, String) {
    (status, code.to_owned(), param.to_owned())
}

/// A body for every path that takes one.
fn bodies(more: &Value) -> Vec<(&'static str, Value)> {
    let with = |mut body: Value| {
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    vec![
        ("/v1/chat/completions", with(user("hi", json!({})))),
        ("/v1/chat/completions/input_tokens", with(user("hi", json!({})))),
        ("/apply-template", with(user("hi", json!({})))),
        ("/v1/messages", with(user("hi", json!({})))),
        ("/v1/messages/count_tokens", with(user("hi", json!({})))),
        ("/v1/completions", with(json!({"prompt": "hi", "max_tokens": 4}))),
        ("/v1/responses", with(json!({"input": "hi", "max_output_tokens": 64}))),
        ("/v1/responses/input_tokens", with(json!({"input": "hi"}))),
        ("/tokenize", with(json!({"content": "hi"}))),
        ("/detokenize", with(json!({"tokens": [1]}))),
    ]
}

#[test]
fn a_model_has_the_names_that_it_is_given() {
    let server = scripted(&["--alias", "m,org/other", "--alias", "third"]);
    let address = server.address();
    let list = look(address, "/v1/models").json();
    let names = |list: &Value| -> Vec<String> {
        list["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&list), ["org/scripted", "m", "org/other", "third"]);
    assert_eq!((&list["first_id"], &list["last_id"]), (&json!("org/scripted"), &json!("third")));
    for entry in list["data"].as_array().unwrap() {
        assert_eq!(entry["aliases"], json!(["m", "org/other", "third"]), "{entry}");
        let path = format!("/v1/models/{}", entry["id"].as_str().unwrap().replace('/', "%2F"));
        assert_eq!(look(address, &path).json(), *entry, "{path}");
    }
    assert_eq!(look(address, "/v1/models/fourth").status, 404);
    assert_eq!(names(&look(address, "/v1/models?after_id=m").json()), ["org/other", "third"]);
    let end = look(address, "/v1/models?after_id=third").json();
    assert_eq!((&end["data"], &end["first_id"]), (&json!([]), &Value::Null));
    assert_eq!(look(address, "/props").json()["model_alias"], "m");
    // Whatever a request calls it, the answer says what it is.
    let answer = ask(address, "/v1/chat/completions", &user("hi", json!({"model": "nobody"})));
    assert_eq!((answer.status, &answer.json()["model"]), (200, &json!("org/scripted")));
}

#[test]
fn a_strict_server_knows_its_names_only() {
    let server = scripted(&["--alias", "m", "--model-match", "strict"]);
    for name in ["m", "org/scripted"] {
        for (path, body) in bodies(&json!({"model": name})) {
            let answer = ask(server.address(), path, &body);
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        }
    }
    for (path, body) in bodies(&json!({"model": null})).into_iter().chain(bodies(&json!({}))) {
        assert_eq!(ask(server.address(), path, &body).status, 200, "{path}");
    }
    for (path, body) in bodies(&json!({"model": "gpt-nobody"})) {
        let answer = ask(server.address(), path, &body);
        assert_eq!(refusal(&answer), told(404, "model_not_found", "model"), "{path}");
        let kind = if path.contains("messages") { "not_found_error" } else { "invalid_request_error" };
        assert_eq!(answer.json()["error"]["type"], kind, "{path}");
    }
}

#[test]
fn unknown_fields_are_named_or_refused() {
    let (plain, strict) = (scripted(&[]), scripted(&["--strict-params"]));
    for (path, body) in bodies(&json!({"made_up": 1})) {
        let answer = ask(plain.address(), path, &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        if path.starts_with("/v1") && !path.ends_with("tokens") {
            assert_eq!(answer.header("x-engine-ignored-params"), Some("made_up"), "{path}");
        }
        let answer = ask(strict.address(), path, &body);
        assert_eq!(refusal(&answer), told(400, "unknown_parameter", "made_up"), "{path}");
    }
    for (path, body) in bodies(&json!({"made_up": null})) {
        let answer = ask(strict.address(), path, &body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    // What is known and has no effect is no reason.
    let answer = ask(strict.address(), "/v1/chat/completions", &user("hi", json!({"user": "u"})));
    assert_eq!((answer.status, answer.header("x-engine-ignored-params")), (200, Some("user")));
}

#[test]
fn stop_strings_are_as_many_as_allowed() {
    let (plain, more) = (scripted(&[]), scripted(&["--max-stop-strings", "6"]));
    let asks = |server: &ScriptedServer, path: &str, name: &str, n: usize| {
        let list: Vec<String> = (0..n).map(|i| format!("stop {i}")).collect();
        let body = match path {
            "/v1/responses" => json!({"input": "hi", name: list}),
            "/v1/completions" => json!({"prompt": "hi", "max_tokens": 2, name: list}),
            _ => user("hi", json!({name: list})),
        };
        ask(server.address(), path, &body).status
    };
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/responses"] {
        assert_eq!([4, 5].map(|n| asks(&plain, path, "stop", n)), [200, 400], "{path}");
        assert_eq!([6, 7].map(|n| asks(&more, path, "stop", n)), [200, 400], "{path}");
    }
    assert_eq!([64, 65].map(|n| asks(&plain, "/v1/messages", "stop_sequences", n)), [200, 400]);
    assert_eq!(look(more.address(), "/props").json()["engine"]["limits"]["stop_strings"], 6);
}

#[test]
fn tools_of_providers_are_dropped_or_refused() {
    let (plain, strict) = (scripted(&[]), scripted(&["--hosted-tools", "reject"]));
    let own = json!({"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}});
    let responses = json!({"input": "hi", "tools": [own, {"type": "web_search"}]});
    let messages = user(
        "hi",
        json!({"tools": [{"name": "f", "input_schema": {"type": "object"}},
        {"type": "bash_20250124", "name": "bash"}]}),
    );
    for (path, body, kind) in
        [("/v1/responses", &responses, "web_search"), ("/v1/messages", &messages, "bash_20250124")]
    {
        let answer = ask(plain.address(), path, body);
        let dropped = format!("tools_dropped:{kind}");
        assert_eq!((answer.status, answer.header("x-engine-warnings")), (200, Some(dropped.as_str())), "{path}");
        let answer = ask(strict.address(), path, body);
        assert_eq!(refusal(&answer), told(400, "unsupported_value", "tools[1].type"), "{path}");
    }
}

#[test]
fn a_last_message_of_the_assistant_is_continued_where_that_is_asked_for() {
    let (plain, prefill) = (scripted(&[]), scripted(&["--prefill-assistant"]));
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "It was"}]);
    let prompt = |server: &ScriptedServer, more: Value| {
        let mut body = json!({"messages": messages});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = ask(server.address(), "/apply-template", &body).json();
        (answer["prompt"].as_str().unwrap().to_owned(), answer["tokens"].as_u64().unwrap())
    };
    let (asked, tokens) = prompt(&plain, json!({"continue_final_message": true}));
    assert!(asked.ends_with("It was"));
    assert_eq!(prompt(&prefill, json!({})).0, asked);
    let (fresh, _) = prompt(&plain, json!({}));
    assert_ne!(fresh, asked);
    // What a request says goes first.
    for more in [json!({"continue_final_message": false}), json!({"add_generation_prompt": true})] {
        assert_eq!(prompt(&prefill, more.clone()).0, fresh, "{more}");
    }
    // The other dialects.
    let counted = |server: &ScriptedServer, path: &str, body: Value| {
        ask(server.address(), path, &body).json()["input_tokens"].as_u64().unwrap()
    };
    for (path, name) in [("/v1/messages/count_tokens", "messages"), ("/v1/responses/input_tokens", "input")] {
        assert_eq!(counted(&prefill, path, json!({name: messages})), tokens, "{path}");
        assert_ne!(counted(&plain, path, json!({name: messages})), tokens, "{path}");
    }
    // A message of the user is answered as ever.
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let count = |server: &ScriptedServer| ask(server.address(), "/apply-template", &body).json();
    assert_eq!(count(&prefill), count(&plain));
}

#[test]
fn a_strict_server_knows_every_field_of_the_contract() {
    let server = scripted(&["--strict-params"]);
    let own = [
        ("/v1/chat/completions", fields::CHAT),
        ("/v1/completions", fields::COMPLETIONS),
        ("/v1/messages", fields::MESSAGES),
        ("/v1/responses", fields::RESPONSES),
    ];
    for (path, own) in own {
        for name in fields::SAMPLING.split_whitespace().chain(own.split_whitespace()) {
            // Whatever else becomes of it. What is no field of a body is not read far.
            let answer = ask(server.address(), path, &json!({name: "x"}));
            assert!(!answer.text().contains("unknown_parameter"), "{path}: {}", answer.text());
        }
        assert_eq!(refusal(&ask(server.address(), path, &json!({"made_up": 1}))).1, "unknown_parameter");
    }
}

#[test]
fn results_that_are_late_or_missing_are_refused_unless_the_flag_says_otherwise() {
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call("x"), call("y")]},
        {"role": "user", "content": "wait"}, {"role": "tool", "tool_call_id": "y", "content": "late"}]);
    let chat = json!({"messages": messages});
    let answer = ask(scripted(&[]).address(), "/apply-template", &chat);
    assert_eq!(refusal(&answer), told(400, "missing_tool_result", "messages[2]"));
    let server = scripted(&["--tool-results", "lenient"]);
    let answer = ask(server.address(), "/apply-template", &chat).json();
    let prompt = answer["prompt"].as_str().unwrap();
    let results = "<tool_response>\n\n</tool_response>\n<tool_response>\nlate\n</tool_response>";
    assert!(prompt.contains(&format!("{results}<|im_end|>\n<|im_start|>user\nwait<|im_end|>")), "{prompt}");
    // The other dialects have the same conversations.
    let items = json!([{"role": "user", "content": "hi"}, {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"},
        {"role": "user", "content": "wait"}]);
    let used = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "x",
        "name": "f", "input": {}}]}, {"role": "user", "content": "wait"}]);
    for (path, body) in [("/v1/responses", json!({"input": items})), ("/v1/messages", json!({"messages": used}))] {
        let refused = ask(scripted(&[]).address(), path, &body);
        assert!(refused.text().contains("missing_tool_result"), "{path}: {}", refused.text());
        assert_eq!(ask(server.address(), path, &body).status, 200, "{path}");
    }
}

#[test]
fn a_session_has_the_first_name_that_is_given_for_it() {
    let server = scripted(&[]);
    let named = |path: &str, header: &str, body: Value| {
        let mut client = Client::connect(server.address());
        let body = body.to_string();
        client.send(format!("POST {path} HTTP/1.1\r\nHost: h\r\n{header}Content-Length: {}\r\n\r\n{body}", body.len()));
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.header("x-engine-session").map(str::to_owned)
    };
    let all =
        json!({"prompt_cache_key": "key", "session_id": "id", "metadata": {"user_id": "metadata"}, "user": "user"});
    let generation = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"];
    for (path, body) in bodies(&json!({})).into_iter().filter(|(path, _)| generation.contains(path)) {
        let without = |names: &[&str]| {
            let mut body = body.clone();
            let given = all.as_object().unwrap().iter().filter(|(name, _)| !names.contains(&name.as_str()));
            body.as_object_mut().unwrap().extend(given.map(|(name, value)| (name.clone(), value.clone())));
            body
        };
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(named(path, "x-session-id: header\r\n", without(&[])), some("header"), "{path}");
        assert_eq!(named(path, "", without(&[])), some("key"));
        assert_eq!(named(path, "", without(&["prompt_cache_key"])), some("id"));
        assert_eq!(named(path, "", without(&["prompt_cache_key", "session_id"])), some("metadata"));
        assert_eq!(named(path, "", without(&["prompt_cache_key", "session_id", "metadata"])), some("user"));
        assert_eq!(named(path, "", body.clone()), None);
        // As a header can say it.
        let mut odd = body.clone();
        odd["prompt_cache_key"] = json!(format!("a\r\nSet-Cookie: \u{e9}{}", "b".repeat(500)));
        let told = named(path, "", odd.clone()).unwrap();
        assert!(told.starts_with("aSet-Cookie:bbb") && told.len() == 128, "{told}");
        odd["stream"] = json!(true);
        assert_eq!(named(path, "", odd).unwrap(), told, "{path}: of a stream");
    }
}

#[test]
fn numbers_are_told_with_the_digits_that_were_given() {
    let sampling = "{\"temperature\": 0.8, \"top_p\": 0.95}";
    let flags = ["--ctx-size", "256", "--default-sampling", sampling, "--http-keepalive", "0.1"];
    let server = Running::start_with(&flags, Stdio::null());
    let props = look(server.address, "/props").text();
    for told in ["\"temperature\":0.8,", "\"top_p\":0.95,", "\"keep_alive_seconds\":0.1,", "\"min_p\":0.0,"] {
        assert!(props.contains(told), "no {told} in {props}");
    }
    let body = json!({"prompt": "x", "max_tokens": 3, "logprobs": 1});
    let answer = ask(server.address, "/v1/completions", &body).json();
    for logprob in answer["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap() {
        let digits = logprob.to_string();
        let value = logprob.as_f64().unwrap() as f32;
        assert_eq!(digits.parse::<f64>().unwrap(), value.to_string().parse::<f64>().unwrap(), "{digits}");
    }
    let response = ask(server.address, "/v1/responses", &json!({"input": "x", "max_output_tokens": 1}));
    assert!(response.text().contains("\"temperature\":0.8,"), "{}", response.text());
}

#[test]
fn late_system_messages_go_where_the_flag_says() {
    let messages = json!([{"role": "system", "content": "first"}, {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes"}, {"role": "system", "content": "late"}, {"role": "user", "content": "so"}]);
    let prompt = |flags: &[&str]| {
        let server = scripted(flags);
        ask(server.address(), "/apply-template", &json!({"messages": messages}))
    };
    let text = |answer: Answer| answer.json()["prompt"].as_str().unwrap().to_owned();
    let user = text(prompt(&[]));
    assert!(user.contains("user\n<system-reminder>\nlate\n</system-reminder>\n\nso<"), "{user}");
    assert_eq!(text(prompt(&["--system-fold", "user"])), user);
    let first = text(prompt(&["--system-fold", "first"]));
    assert!(first.starts_with("<|im_start|>system\nfirst\n\nlate<|im_end|>") && first.contains("user\nso<"), "{first}");
    assert_eq!(refusal(&prompt(&["--system-fold", "reject"])), told(400, "invalid_value", "messages[3]"));
    let server = scripted(&["--system-fold", "reject"]);
    let answer = ask(server.address(), "/v1/messages", &json!({"max_tokens": 4, "messages": messages}));
    assert_eq!(answer.status, 400, "{}", answer.text());
    let answer = ask(server.address(), "/v1/responses", &json!({"input": messages}));
    assert_eq!(refusal(&answer), told(400, "invalid_value", "input[3]"));
}

#[test]
fn thinking_goes_where_the_flag_says_unless_a_request_does() {
    const THOUGHT: &str = "one two three four five six seven eight.\n";
    let message = |server: &ScriptedServer, more: Value| {
        let answer = ask(server.address(), "/v1/chat/completions", &user("think first", more)).json();
        answer["choices"][0]["message"].clone()
    };
    let inside = scripted(&["--reasoning-format", "none"]);
    let all = format!("<think>\n{THOUGHT}</think>\n\nHello");
    let said = message(&inside, json!({}));
    assert_eq!((&said["content"], said.get("reasoning_content")), (&json!(all), None));
    assert_eq!(message(&inside, json!({"reasoning_format": "deepseek"}))["reasoning_content"], THOUGHT);
    assert_eq!(
        look(inside.address(), "/props").json()["default_generation_settings"]["params"]["reasoning_format"],
        "none"
    );
    let both = message(&scripted(&["--reasoning-format", "deepseek-legacy"]), json!({}));
    assert_eq!((&both["content"], &both["reasoning_content"]), (&json!(all), &json!(THOUGHT)));
    let apart = message(&scripted(&["--reasoning-format", "auto"]), json!({}));
    assert_eq!((&apart["content"], &apart["reasoning_content"]), (&json!("Hello"), &json!(THOUGHT)));

    let named = scripted(&["--reasoning-field", "reasoning"]);
    let said = message(&named, json!({}));
    assert_eq!((&said["reasoning"], said.get("reasoning_content")), (&json!(THOUGHT), None));
    let chunks = ask(named.address(), "/v1/chat/completions", &user("think first", json!({"stream": true}))).chunks();
    let deltas = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"].as_object());
    let thought: String = deltas.clone().filter_map(|delta| delta.get("reasoning")?.as_str()).collect();
    assert_eq!(thought, THOUGHT);
    assert!(deltas.clone().all(|delta| !delta.contains_key("reasoning_content")));
}

#[test]
fn efforts_that_a_template_does_not_read_are_budgets() {
    let thought = |flags: &[&str], effort: &str| {
        let server = scripted(flags);
        let chat = user("think first", json!({"reasoning_effort": effort}));
        let chat = ask(server.address(), "/v1/chat/completions", &chat).json();
        let responses = json!({"input": "think first", "temperature": 0, "reasoning": {"effort": effort}});
        let responses = ask(server.address(), "/v1/responses", &responses).json();
        let n = |usage: &Value, name: &str| usage[name]["reasoning_tokens"].as_u64().unwrap();
        let chat = n(&chat["usage"], "completion_tokens_details");
        assert_eq!(n(&responses["usage"], "output_tokens_details"), chat, "{effort}");
        chat
    };
    let whole = thought(&[], "low");
    assert!(whole > 5, "{whole}");
    assert!(thought(&["--reasoning-effort-map", "low=2"], "low") < whole);
    assert_eq!(thought(&["--reasoning-effort-map", "low=2"], "minimal"), whole);
    assert_eq!(thought(&["--reasoning-effort-map", "max=2"], "low"), whole);
    assert!(thought(&["--reasoning-effort-map", "max=2"], "max") < whole);
}

#[test]
fn temperatures_are_as_high_as_allowed() {
    let (plain, hot) = (scripted(&[]), scripted(&["--temperature-max", "3"]));
    let status = |server: &ScriptedServer, temperature: f64| {
        let body = json!({"prompt": "hi", "max_tokens": 1, "temperature": temperature});
        ask(server.address(), "/v1/completions", &body).status
    };
    assert_eq!([2.0, 2.5].map(|t| status(&plain, t)), [200, 400]);
    assert_eq!([2.5, 3.0, 3.1].map(|t| status(&hot, t)), [200, 200, 400]);
}

#[test]
fn compiling_may_take_no_longer_than_allowed() {
    let schema = |i: usize| {
        json!({"type": "object", "properties": {format!("key{i}"): {"type": "string",
        "pattern": "^[a-z]{1,40}-[0-9]{1,40}$"}, "more": {"type": "array", "items": {"type": "number"}}}})
    };
    let tool =
        |i: usize| json!({"type": "function", "function": {"name": format!("tool{i}"), "parameters": schema(i)}});
    let body = user("hi", json!({"tools": (0..40).map(tool).collect::<Vec<_>>()}));
    let short = scripted(&["--constraint-compile-ms", "1"]);
    let answer = ask(short.address(), "/v1/chat/completions", &body);
    assert_eq!(refusal(&answer), told(400, "schema_too_complex", "tools"));
    assert!(answer.text().contains("1 ms"), "{}", answer.text());
    let long = scripted(&["--constraint-compile-ms", "600000"]);
    assert_eq!(ask(long.address(), "/v1/chat/completions", &body).status, 200);
}

/// A stream that waits has its headers after the time of the flag; here the queue is left before that.
#[test]
fn the_headers_of_a_stream_wait_as_long_as_told() {
    let flags = args(&["--stream-headers-after", "3600"]);
    let bounds = Bounds { queue_time: Duration::from_millis(2500), ..flags.bounds() };
    let fake = Fake::bounded(bounds, |_| Script::Queue);
    let mut body = chat("hi");
    body["stream"] = true.into();
    assert_eq!(ask(fake.address(), "/v1/chat/completions", &body).status, 503);
}

fn served(flags: &[&str]) -> Running {
    Running::start_with(&[&["--ctx-size", "1024"], flags].concat(), Stdio::null())
}

const LINES: &str = "{% for m in messages %}[{{ m.role }}] {{ m.content }} {{ who | default('nobody') }}\n{% endfor %}";

#[test]
fn a_template_of_the_flags_takes_the_place_of_the_models() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("t.jinja");
    fs::write(&file, LINES).unwrap();
    for flags in [&["--chat-template", LINES][..], &["--chat-template-file", file.to_str().unwrap()]] {
        let server = served(&[flags, &["--chat-template-kwargs", r#"{"who": "flag", "other": 1}"#]].concat());
        let prompt = |more: Value| {
            let answer = ask(server.address, "/apply-template", &user("hi", more)).json();
            answer["prompt"].as_str().unwrap().to_owned()
        };
        assert_eq!(prompt(json!({})), "[user] hi flag\n");
        assert_eq!(prompt(json!({"chat_template_kwargs": {"who": "request"}})), "[user] hi request\n");
        let props = look(server.address, "/props").json();
        assert_eq!(props["chat_template"], LINES);
        assert_eq!(props["default_generation_settings"]["params"]["chat_template_kwargs"]["who"], "flag");
    }
    fs::write(&file, "{% for m in messages %}\n{{ m.role }\n{% endfor %}").unwrap();
    let missing = folder.path().join("none.jinja");
    let long = folder.path().join("long.jinja");
    fs::write(&long, " ".repeat((1 << 20) + 1)).unwrap();
    let path = |path: &std::path::PathBuf| path.to_str().unwrap().to_owned();
    for (flags, told) in [
        (["--chat-template-file".to_owned(), path(&file)], "t.jinja: the chat template does not compile: line 2"),
        (["--chat-template-file".to_owned(), path(&missing)], "none.jinja"),
        (["--chat-template-file".to_owned(), "/dev/zero".to_owned()], "a device"),
        (["--chat-template-file".to_owned(), path(&long)], "long.jinja"),
        (
            ["--chat-template".to_owned(), "\n\n{% if %}".to_owned()],
            "--chat-template: the chat template does not compile: line 3",
        ),
        (["--chat-template".to_owned(), "{{ messages | frob }}".to_owned()], "filter frob"),
    ] {
        let (code, _, error) = run(&["--port", "0", &flags[0], &flags[1]]);
        assert!(code == Some(3) && error.contains(told), "{flags:?}: {code:?} {error}");
    }
}

/// A model whose own template is no template is refused, and served with another.
#[test]
fn a_template_of_the_flags_helps_a_model_with_a_bad_one() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("bad-template.gguf");
    let bad = gguf::Value::Str(b"{% for m in messages %}".as_slice().into());
    fs::write(&file, model(ARCHS[0]).set("tokenizer.chat_template", bad).bytes()).unwrap();
    let flags = ["--ctx-size", "256", "--model", file.to_str().unwrap()];
    let (code, _, error) = run(&[&flags[..], &["--port", "0", "--threads", "1"]].concat());
    assert!(code == Some(3) && error.contains("bad-template.gguf: the chat template does not compile"), "{error}");
    let server = Running::start_with(&[&flags[..], &["--chat-template", LINES]].concat(), Stdio::null());
    assert_eq!(ask(server.address, "/apply-template", &user("hi", json!({}))).status, 200);
}

#[test]
fn a_template_may_take_the_steps_that_it_is_given() {
    let server =
        served(&["--chat-template", "{% for i in range(1000) %}{{ i }}{% endfor %}", "--template-fuel", "20000"]);
    assert_eq!(ask(server.address, "/apply-template", &user("hi", json!({}))).status, 200);
    drop(server);
    let source = "{% for m in messages %}{% for i in range(1000) %}{{ i }}{% endfor %}{% endfor %}";
    let server = served(&["--chat-template", source, "--template-fuel", "20000"]);
    let messages: Vec<Value> = (0..9).map(|_| json!({"role": "user", "content": "hi"})).collect();
    let answer = ask(server.address, "/apply-template", &json!({"messages": messages}));
    assert_eq!(refusal(&answer), told(400, "template_error", "messages"));
    assert!(answer.text().contains("20000 steps"), "{}", answer.text());
    let server = served(&["--chat-template", source]);
    assert_eq!(ask(server.address, "/apply-template", &json!({"messages": messages})).status, 200);
}

#[test]
fn the_style_of_calls_can_be_said_where_a_template_does_not_show_it() {
    let template = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
    let tool =
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}});
    let body = user("hi", json!({"tools": [tool], "tool_choice": "required", "max_tokens": 200}));
    let server = served(&["--chat-template", template]);
    let answer = ask(server.address, "/v1/chat/completions", &body);
    assert_eq!(refusal(&answer), told(400, "tools_unsupported", "tools"));
    assert!(answer.text().contains("--tool-style"), "{}", answer.text());
    for style in ["xml", "hermes"] {
        let server = served(&["--chat-template", template, "--tool-style", style]);
        assert_eq!(look(server.address, "/props").json()["engine"]["tool_style"], style);
        let answer = ask(server.address, "/v1/chat/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let choice = &answer.json()["choices"][0];
        assert_eq!(choice["message"]["tool_calls"][0]["function"]["name"], "f", "{style}: {choice}");
    }
    // A template that shows no tools cannot be helped: the model would never hear of them.
    let server = served(&["--chat-template", LINES, "--tool-style", "xml"]);
    let answer = ask(server.address, "/v1/chat/completions", &body);
    assert_eq!(refusal(&answer), told(400, "tools_unsupported", "tools"));
    let (code, _, error) = run(&["--port", "0", "--tool-style", "nemotron2"]);
    assert!(code == Some(3) && error.contains("--tool-style nemotron2: the model has no tokens <TOOLCALL>"), "{error}");
}

#[test]
fn sampling_comes_from_the_request_the_flag_the_file_or_the_table() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("sampling.gguf");
    let set = |edit: crate::forward::edit::Edit, key: &str, value| edit.set(&format!("general.sampling.{key}"), value);
    let mut edit = model(ARCHS[0]);
    for (key, value) in [
        ("temp", gguf::Value::F32(0.25)),
        ("top_k", gguf::Value::I32(20)),
        ("top_p", gguf::Value::F32(0.5)),
        ("penalty_repeat", gguf::Value::F32(1.5)),
        // Out of range: as good as none.
        ("min_p", gguf::Value::F32(7.0)),
    ] {
        edit = set(edit, key, value);
    }
    fs::write(&file, edit.bytes()).unwrap();
    let file = file.to_str().unwrap();
    let params =
        |server: &Running| look(server.address, "/props").json()["default_generation_settings"]["params"].clone();
    let names = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty"];
    let values = |params: &Value| names.map(|name| params[name].as_f64().unwrap());
    let server = Running::start_with(&["--ctx-size", "256", "--model", file], Stdio::null());
    assert_eq!(values(&params(&server)), [0.25, 20.0, 0.5, 0.0, 1.5, 64.0, 0.0]);
    let given = r#"{"temperature": 0.75, "top_k": -1, "repeat_last_n": -1, "presence_penalty": 0.5}"#;
    // The file has no template, and answers that say what was in effect need one.
    let flags = ["--ctx-size", "256", "--model", file, "--default-sampling", given, "--chat-template", LINES];
    let server = Running::start_with(&flags, Stdio::null());
    assert_eq!(values(&params(&server)), [0.75, 0.0, 0.5, 0.0, 1.5, -1.0, 0.5]);
    // And so for requests: an answer of this kind repeats what was in effect.
    let echoed = |more: Value| {
        let mut body = json!({"input": "hi", "max_output_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = ask(server.address, "/v1/responses", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        ["temperature", "top_p"].map(|name| answer.json()[name].as_f64().unwrap())
    };
    assert_eq!(echoed(json!({})), [0.75, 0.5]);
    assert_eq!(echoed(json!({"temperature": 0.5})), [0.5, 0.5]);
}

#[test]
fn the_environment_gives_them_too() {
    let mut command = std::process::Command::new(super::process::program("engine-serve"));
    command.args(["--port", "0", "--threads", "1", "--ctx-size", "256", "--alias", "line"]);
    command
        .env("ENGINE_ARG_ALIAS", "a,b")
        .env("ENGINE_ARG_STRICT_PARAMS", "true")
        .env("ENGINE_ARG_MAX_STOP_STRINGS", "9");
    command.env("ENGINE_ARG_DEFAULT_SAMPLING", r#"{"temperature": 0.5}"#).env("ENGINE_ARG_SSE_PING_INTERVAL", "-1");
    let server = Running::of({
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        command
    });
    // What the line says goes first.
    assert_eq!(look(server.address, "/v1/models").json()["data"][0]["aliases"], json!(["line"]));
    let props = look(server.address, "/props").json();
    let params = &props["default_generation_settings"]["params"];
    assert_eq!((&params["temperature"], &params["sse_ping_interval"]), (&json!(0.5), &json!(-1)));
    assert_eq!(props["engine"]["limits"]["stop_strings"], 9);
    let answer = ask(server.address, "/v1/completions", &json!({"prompt": "x", "made_up": 1}));
    assert_eq!(refusal(&answer), told(400, "unknown_parameter", "made_up"));
}

#[test]
fn a_handle_of_a_host_has_them_too() {
    let config = json!({"ctx_size": 256, "threads": 1, "parallel": 1, "alias": ["m", "n"], "model_match": "strict",
        "strict_params": true, "chat_template": LINES, "chat_template_kwargs": {"who": "host"}});
    let config = embed::Config::parse(config.to_string().as_bytes()).unwrap();
    let engine = Arc::new(Engine::open(&config).unwrap());
    assert_eq!(engine.about()["model"]["aliases"], json!(["m", "n"]));
    let asked = |endpoint: Endpoint, body: Value| {
        let id = engine.submit(endpoint, body.to_string().as_bytes()).unwrap();
        let mut out = None;
        while out.is_none() {
            let take = &mut |event: embed::Event| {
                if matches!(event.kind, Kind::Answer | Kind::Error) {
                    out = Some((event.kind, serde_json::from_slice::<Value>(&event.json).unwrap()));
                }
                Ok(())
            };
            engine.poll(Some(id), super::client::DEADLINE, take).unwrap();
        }
        out.unwrap()
    };
    let (kind, answer) = asked(Endpoint::ApplyTemplate, user("hi", json!({"model": "n"})));
    assert_eq!((kind, &answer["prompt"]), (Kind::Answer, &json!("[user] hi host\n")));
    let (kind, error) = asked(Endpoint::Chat, user("hi", json!({"made_up": 1})));
    assert_eq!((kind, &error["error"]["code"]), (Kind::Error, &json!("unknown_parameter")));
    let (kind, error) = asked(Endpoint::Completions, json!({"prompt": "x", "model": "o"}));
    assert_eq!((kind, &error["error"]["code"]), (Kind::Error, &json!("model_not_found")));
    let bad = embed::Config::parse(br#"{"chat_template": "{% if %}"}"#).unwrap();
    for error in [embed::preflight(&bad).map(drop).unwrap_err(), Engine::open(&bad).map(drop).unwrap_err()] {
        assert!(error.to_string().contains("--chat-template: the chat template does not compile"), "{error}");
    }
}

#[test]
fn names_of_unknown_fields_do_not_come_back_whole() {
    let server = scripted(&["--strict-params"]);
    for (path, field) in [("/v1/chat/completions", "thinking"), ("/v1/messages", "thinking")] {
        let long = "k".repeat(20_000);
        for body in [
            user("hi", json!({long.clone(): 1})),
            user("hi", json!({field: {"type": "enabled", long.clone(): 1}, "reasoning": {long.clone(): 1}})),
            user("hi", json!({"logit_bias": {long.clone(): 1}})),
        ] {
            let mut client = Client::connect(server.address());
            client.send(post(path, &body.to_string()));
            let answer = client.answer();
            assert_eq!(answer.status, 400, "{path}");
            assert!(answer.body.len() < 2000, "{path}: an error of {} bytes", answer.body.len());
        }
    }
}
