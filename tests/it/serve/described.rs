//! `/openapi.json` against the server that it describes: real answers of every endpoint, whole and streamed, errors of
//! both dialects, each held to what the description says of its path and status.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use engine::api::{AdmitError, Finish};
use engine::limits::Limits;
use engine_bin::serve::Config;
use engine_tests::scripted::{Rule, ScriptedServer};
use serde_json::{Value, json};

use super::client::{Answer, Client, ask, get, post};
use super::fake::{Fake, Script};

const CONTEXT: usize = 2048;
const CALLS: &str = "I look.\n</think>\n\nOk.\n<tool_call>\n<function=ls>\n<parameter=dir>\n/a\n</parameter>\n\
    </function>\n</tool_call>\n<tool_call>\n<function=note>\n<parameter=input>\ntwo\nlines\n</parameter>\n</function>\n</tool_call>";

/// The description, and what was held to it.
struct Described {
    document: Value,
    seen: BTreeSet<(String, String)>,
}

impl Described {
    fn of(address: SocketAddr) -> Self {
        let document = fetch(address, "/openapi.json").json();
        Self { document, seen: BTreeSet::new() }
    }

    /// Whether a value is as a schema of the document says.
    fn fits(&self, schema: &Value, value: &Value) -> bool {
        let whole = json!({"allOf": [schema], "components": self.document["components"]});
        let validator = jsonschema::validator_for(&whole).expect("the document holds JSON schemas");
        validator.is_valid(value)
    }

    /// Holds an answer to the description of a path.
    fn hold(&mut self, method: &str, path: &str, answer: &Answer) {
        let operation = &self.document["paths"][path][method];
        let status = answer.status.to_string();
        let mut response = &operation["responses"][&status];
        if let Some(Value::String(to)) = response.get("$ref") {
            response = self.document.pointer(&to[1..]).unwrap();
        }
        let kind = answer.header("content-type").unwrap();
        let media = &response["content"][kind.split(';').next().unwrap()];
        assert!(media.is_object(), "{method} {path} may not answer {status} of {kind}");
        if kind.starts_with("text/event-stream") {
            let text = answer.text();
            let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
            let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
            assert!(events.len() > 2, "{text}");
            for event in &events {
                assert!(self.fits(&media["x-event"], event), "{path}: {event:#}");
                assert!(!self.fits(&media["x-event"], &json!({"id": 5})));
            }
        } else if kind.starts_with("application/json") {
            let value = answer.json();
            assert!(self.fits(&media["schema"], &value), "{method} {path} {status}: {value:#}");
            // What lacks one of its fields does not fit, so that fitting says something.
            let mut less = value.clone();
            if let (Value::Object(map), true) = (&mut less, media["schema"].get("$ref").is_some()) {
                let (name, _) = map.iter().next().map(|(name, value)| (name.clone(), value)).unwrap();
                map.remove(&name);
                assert!(!self.fits(&media["schema"], &less), "{method} {path} {status} without {name}");
            }
        }
        self.seen.insert((method.to_owned(), path.to_owned()));
    }

    fn posted(&mut self, address: SocketAddr, path: &str, body: &Value, status: u16) {
        let answer = ask(address, path, body);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        self.hold("post", path, &answer);
    }
}

fn fetch(address: SocketAddr, path: &str) -> Answer {
    let mut client = Client::connect(address);
    client.send(get(path));
    client.answer()
}

fn with(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn every_answer_is_as_the_description_says() {
    let rules = vec![Rule::new("two calls", CALLS), Rule::new("talk", "I think.\n</think>\n\nHello.")];
    let limits = Limits { prefix_cache: true, ..Limits::new(3, CONTEXT) };
    let server = ScriptedServer::start(Config::local(0, CONTEXT), &limits, rules);
    let address = server.address();
    let mut described = Described::of(address);
    for path in
        ["/health", "/readyz", "/livez", "/version", "/metrics", "/openapi.json", "/", "/props", "/slots", "/v1/models"]
    {
        let answer = fetch(address, path);
        assert_eq!(answer.status, 200, "{path}");
        described.hold("get", path, &answer);
    }
    described.hold("get", "/v1/models", &fetch(address, "/v1/models?after_id=org/scripted"));
    for (id, status) in [("org%2Fscripted", 200), ("other", 404)] {
        let answer = fetch(address, &format!("/v1/models/{id}"));
        assert_eq!(answer.status, status);
        described.hold("get", "/v1/models/{id}", &answer);
    }
    let function = json!({"name": "ls", "parameters": {"type": "object", "properties": {"dir": {"type": "string"}}}});
    let chat = json!({"messages": [{"role": "user", "content": "talk"}], "temperature": 0});
    let called = json!({"messages": [{"role": "user", "content": "two calls"}], "temperature": 0,
        "tools": [{"type": "function", "function": function}, {"type": "custom", "custom": {"name": "note"}}]});
    let asked = json!({"messages": [{"role": "user", "content": "two calls"}], "max_tokens": 500, "temperature": 0,
        "tools": [{"name": "ls", "input_schema": function["parameters"]}, {"name": "note"}]});
    let items = json!({"input": "two calls", "temperature": 0, "include": ["message.output_text.logprobs"],
        "tools": [with(&function, json!({"type": "function"})), {"type": "custom", "name": "note"}]});
    let options = json!({"stream": true, "stream_options": {"include_usage": true, "include_speculation": true}});
    for (path, body) in [
        ("/v1/chat/completions", chat.clone()),
        (
            "/v1/chat/completions",
            with(&chat, json!({"n": 2, "logprobs": true, "top_logprobs": 1, "return_token_ids": true})),
        ),
        ("/v1/chat/completions", with(&chat, options)),
        ("/v1/chat/completions", called.clone()),
        ("/v1/chat/completions", with(&called, json!({"stream": true}))),
        ("/v1/completions", json!({"prompt": ["talk", "x"], "logprobs": 1, "max_tokens": 4})),
        ("/v1/completions", json!({"prompt": "talk", "stream": true, "temperature": 0})),
        ("/v1/messages", asked.clone()),
        ("/v1/messages", with(&asked, json!({"stream": true}))),
        ("/v1/messages", with(&asked, json!({"max_tokens": 0}))),
        ("/v1/responses", items.clone()),
        ("/v1/responses", with(&items, json!({"stream": true}))),
        ("/v1/responses", with(&items, json!({"max_output_tokens": 3}))),
        ("/v1/responses", json!({"input": [], "max_output_tokens": 16})),
        ("/v1/chat/completions/input_tokens", chat.clone()),
        ("/v1/messages/count_tokens", asked.clone()),
        ("/v1/responses/input_tokens", items.clone()),
        ("/tokenize", json!({"content": "h\u{e9}", "with_pieces": true})),
        ("/tokenize", json!({"prompt": "a b", "return_token_strs": true})),
        ("/tokenize", json!({"messages": chat["messages"]})),
        ("/detokenize", json!({"tokens": [5, 6]})),
        ("/apply-template", chat.clone()),
    ] {
        described.posted(address, path, &body, 200);
    }
    // Errors, in the words of each dialect.
    let long = json!("many words ".repeat(3000));
    for (path, body, status) in [
        ("/v1/chat/completions", json!({}), 400),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": long}]}), 400),
        ("/v1/completions", json!({"prompt": 5}), 400),
        ("/v1/messages", json!({"messages": []}), 400),
        ("/v1/messages", json!({"messages": [{"role": "user", "content": long}]}), 400),
        ("/v1/messages/count_tokens", json!([]), 400),
        ("/v1/responses", json!({"input": "x", "previous_response_id": "resp_1"}), 400),
        ("/v1/responses/input_tokens", json!({}), 400),
        ("/detokenize", json!({"tokens": [99_999_999]}), 400),
        ("/props", json!({}), 501),
        ("/v1/embeddings", json!({}), 501),
        ("/v1/messages/batches", json!({}), 501),
    ] {
        described.posted(address, path, &body, status);
    }
    for path in ["/v1/files", "/v1/batches", "/v1/conversations"] {
        described.posted(address, path, &json!({}), 501);
        described.hold("get", &format!("{path}/{{below}}"), &fetch(address, &format!("{path}/some/thing")));
    }
    for path in ["/v1/chat/completions", "/v1/messages"] {
        for (head, status) in [
            (
                format!(
                    "POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: multipart/form-data\r\nContent-Length: 2\r\n\r\n{{}}"
                ),
                415,
            ),
            (format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n"), 413),
            (format!("PUT {path} HTTP/1.1\r\nHost: t\r\n\r\n"), 405),
            (format!("POST {path} HTTP/1.1\r\nHost: t\r\nExpect: tea\r\nContent-Length: 2\r\n\r\n{{}}"), 417),
        ] {
            let mut client = Client::connect(address);
            client.send(head);
            let answer = client.answer();
            assert_eq!(answer.status, status, "{path}");
            described.hold("post", path, &answer);
        }
    }
    // Everything that is served was held to its description once.
    let all = described.document["paths"].as_object().unwrap();
    let served = |item: &&Value, method: &str| item[method]["responses"].get("200").is_some();
    let missing: Vec<String> = ["get", "post"]
        .into_iter()
        .flat_map(|method| {
            all.iter()
                .filter(move |(_, item)| served(item, method))
                .map(move |(path, _)| (method.to_owned(), path.clone()))
        })
        .filter(|key| !described.seen.contains(key))
        .map(|(method, path)| format!("{method} {path}"))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn who_is_turned_away_is_told_as_described() {
    let config = Config { api_keys: vec!["secret".to_owned()], ..Config::local(0, CONTEXT) };
    let locked = ScriptedServer::start(config, &Limits::new(1, CONTEXT), Vec::new());
    let full = Fake::start(|_| Script::Refuse(AdmitError::QueueFull { waiting: 9 }));
    let broken = Fake::start(|_| Script::Say(vec!["abc"], Finish::Fault(engine::step::Fault::NonFinite)));
    let mut described = Described::of(locked.address());
    for path in ["/v1/models", "/props", "/slots"] {
        let answer = fetch(locked.address(), path);
        assert_eq!(answer.status, 401);
        described.hold("get", path, &answer);
    }
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    for (path, body, crowded) in [
        ("/v1/chat/completions", chat.clone(), 429),
        ("/v1/completions", json!({"prompt": "hi"}), 429),
        ("/v1/messages", chat, 529),
        ("/v1/responses", json!({"input": "hi"}), 429),
    ] {
        described.posted(locked.address(), path, &body, 401);
        described.posted(full.address(), path, &body, crowded);
        described.posted(broken.address(), path, &body, 500);
        // The last event of a stream that fails.
        let answer = ask(broken.address(), path, &with(&body, json!({"stream": true})));
        assert_eq!(answer.status, 200);
        if path != "/v1/completions" {
            described.hold("post", path, &answer);
        }
    }
    let mut client = Client::connect(locked.address());
    client.send(post("/tokenize", "{}"));
    described.hold("post", "/tokenize", &client.answer());
}
