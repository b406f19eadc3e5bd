use serde_json::json;

use super::*;

const CAPS: Caps = Caps {
    chat: true,
    developer: false,
    system_anywhere: false,
    alternation: false,
    tools: true,
    string_arguments: false,
    reasoning_effort: true,
    tool_style: crate::serve::model::ToolStyle::Xml,
    think: Some(("<think>", "</think>")),
    think_tokens: None,
    call_tokens: None,
};

fn of(body: &Value) -> Result<Read, ApiError> {
    read(&Fields::body(body.as_object().unwrap()), &CAPS, &Api::default())
}

/// Messages as `role:content`, calls and thinking beside, or the error's code and path.
fn check(body: Value, expected: &str) {
    let printed = match of(&body) {
        Ok(read) => print(&read.chat),
        Err(error) => format!("{} {}", error.code, error.param.unwrap()),
    };
    assert_eq!(printed, expected);
}

fn print(chat: &Chat) -> String {
    let one = |m: &Value| {
        let mut out = format!("{}:{}", m["role"].as_str().unwrap(), m["content"].as_str().unwrap());
        if let Some(thought) = m["reasoning_content"].as_str().filter(|t| !t.is_empty()) {
            out.push_str(&format!(" thought:{thought}"));
        }
        for call in m["tool_calls"].as_array().into_iter().flatten() {
            out.push_str(&format!(
                " call:{}{}",
                call["function"]["name"].as_str().unwrap(),
                call["function"]["arguments"]
            ));
        }
        if let Some(id) = m["tool_call_id"].as_str() {
            out.push_str(&format!(" of:{id}"));
        }
        out
    };
    chat.messages().as_array().unwrap().iter().map(one).collect::<Vec<_>>().join(" | ")
}

fn messages(list: Value) -> Value {
    json!({"max_tokens": 9, "messages": list})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}})
}

fn uses(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "f", "input": {"b": 1, "a": 2}})
}

fn result(id: &str, content: Value) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": content})
}

#[test]
fn blocks_become_messages() {
    check(messages(json!([{"role": "user", "content": "a"}])), "user:a");
    check(messages(json!([{"role": "user", "content": [text("a"), text("b")]}])), "user:ab");
    let thinking = json!({"type": "thinking", "thinking": "hm", "signature": "engine-0"});
    let omitted = json!({"type": "thinking", "thinking": "", "signature": "engine-0"});
    check(
        messages(json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [thinking, {"type": "redacted_thinking", "data": "x"}, text("b"), uses("x"), uses("y")]},
            {"role": "user", "content": [text("c"), result("y", json!([text("2"), text("!")])), result("x", Value::Null), text("d")]},
            {"role": "assistant", "content": [omitted, text("e")]},
        ])),
        "user:a | assistant:b thought:hm call:f{\"b\":1,\"a\":2} call:f{\"b\":1,\"a\":2} | tool: of:x | tool:2! of:y | \
         user:cd | assistant:e",
    );
    let failed = json!({"type": "tool_result", "tool_use_id": "x", "content": "no such file", "is_error": true});
    check(
        messages(json!([{"role": "assistant", "content": [uses("x")]}, {"role": "user", "content": [failed]}])),
        "assistant: call:f{\"b\":1,\"a\":2} | tool:Error: no such file of:x",
    );
}

#[test]
fn system_texts_stand_first_or_where_they_are() {
    let with = |system: Value| json!({"system": system, "messages": [{"role": "user", "content": "a"}]});
    check(with(json!("s")), "system:s | user:a");
    check(with(json!([text("s"), text("t")])), "system:s\n\nt | user:a");
    check(with(json!([])), "user:a");
    check(with(json!(5)), "invalid_type system");
    check(with(json!([{"type": "image"}])), "unsupported_content_part system[0].type");
    check(
        messages(
            json!([{"role": "user", "content": "a"}, {"role": "system", "content": [text("s")]}, {"role": "user", "content": "b"}]),
        ),
        "user:a | user:<system-reminder>\ns\n</system-reminder>\n\nb",
    );
}

#[test]
fn the_billing_line_is_no_part_of_the_prompt() {
    let body = |nonce: u32| {
        let line = format!("x-anthropic-billing-header: cc_version=2.1; cch={nonce:05x};");
        json!({"system": [text(&line), text("You are")], "messages": [{"role": "user", "content": "a"}]})
    };
    for nonce in [1, 2] {
        check(body(nonce), "system:You are | user:a");
        assert_eq!(of(&body(nonce)).unwrap().warnings, ["billing_line_stripped"]);
    }
    let plain = Api { strip_billing_line: false, ..Api::default() };
    let kept = read(&Fields::body(body(1).as_object().unwrap()), &CAPS, &plain).unwrap();
    assert!(print(&kept.chat).contains("cch=00001"));
    assert_eq!(kept.warnings, Vec::<String>::new());
}

#[test]
fn what_is_wrong_is_named_where_it_stands() {
    for (list, expected) in [
        (json!([]), "invalid_value messages"),
        (json!(["x"]), "invalid_type messages[0]"),
        (json!([{"role": "tool", "content": "x"}]), "invalid_value messages[0].role"),
        (json!([{"role": "user"}]), "missing_required_parameter messages[0].content"),
        (json!([{"role": "user", "content": []}]), "invalid_value messages[0].content"),
        (
            json!([{"role": "user", "content": [{"type": "image"}]}]),
            "unsupported_content_part messages[0].content[0].type",
        ),
        (
            json!([{"role": "user", "content": [{"type": "text"}]}]),
            "missing_required_parameter messages[0].content[0].text",
        ),
        (json!([{"role": "user", "content": [uses("x")]}]), "unsupported_content_part messages[0].content[0].type"),
        (json!([{"role": "assistant", "content": [uses("x"), uses("x")]}]), "invalid_value messages[0].content[1].id"),
        (
            json!([{"role": "user", "content": [result("x", json!("y"))]}]),
            "orphan_tool_result messages[0].content[0].tool_use_id",
        ),
        (
            json!([{"role": "assistant", "content": [uses("x")]}, {"role": "user", "content": [result("x", json!([{"type": "tool_reference"}]))]}]),
            "unsupported_content_part messages[1].content[0].content[0].type",
        ),
        (
            json!([{"role": "assistant", "content": [uses("x")]}, {"role": "user", "content": [result("x", json!("")), result("x", json!(""))]}]),
            "duplicate_tool_result messages[1].content[1].tool_use_id",
        ),
        (
            json!([{"role": "assistant", "content": [uses("x")]}, {"role": "user", "content": "go on"}]),
            "missing_tool_result messages[1]",
        ),
        (
            json!([{"role": "assistant", "content": [uses("x"), text("t")]}, {"role": "user", "content": [result("x", json!(""))]}]),
            "invalid_value messages[0].content[1]",
        ),
    ] {
        check(messages(list), expected);
    }
    let plain = |name: &str, value: Value| {
        let mut body = messages(json!([{"role": "user", "content": "a"}]));
        body[name] = value;
        body
    };
    let tool = json!({"name": "f", "input_schema": {"type": "object"}});
    for (name, value, expected) in [
        ("thinking", json!({"type": "deep"}), "invalid_value thinking.type"),
        ("thinking", json!({"budget": 1}), "unsupported_parameter thinking.budget"),
        ("thinking", json!({"type": "enabled", "budget_tokens": 1.5}), "invalid_type thinking.budget_tokens"),
        ("output_config", json!({"effort": "much"}), "invalid_value output_config.effort"),
        ("thread", json!({"type": "new"}), "thread_unsupported_request thread"),
        ("tool_choice", json!("auto"), "invalid_type tool_choice"),
        ("tool_choice", json!({"type": "any"}), "invalid_value tool_choice"),
        ("tool_choice", json!({"type": "some"}), "invalid_value tool_choice.type"),
        ("tools", json!([{"input_schema": {}}]), "missing_required_parameter tools[0].name"),
        ("tools", json!([tool, tool]), "invalid_value tools[1]"),
    ] {
        check(plain(name, value), expected);
    }
}

#[test]
fn tools_and_switches_reach_the_template() {
    let mut body = messages(json!([{"role": "user", "content": "a"}]));
    body["tools"] = json!([
        {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "custom", "name": "g"},
    ]);
    body["tool_choice"] = json!({"type": "none"});
    body["thinking"] = json!({"type": "adaptive", "display": "omitted"});
    body["output_config"] = json!({"effort": "high"});
    let read = of(&body).unwrap();
    assert!(read.omits_thinking);
    assert_eq!(read.warnings, ["tools_dropped:bash_20250124"]);
    let (turns, fields) = recorded(body.as_object().unwrap(), &Api::default());
    assert_eq!(turns.len(), 1);
    let function = |function: Value| json!({"type": "function", "function": function});
    assert_eq!(
        Value::Object(fields),
        json!({
            "tool_choice": "none",
            "tools": [function(json!({"name": "f", "description": "d", "parameters": {"type": "object"}})), function(json!({"name": "g"}))],
            "chat_template_kwargs": {"enable_thinking": true, "reasoning_effort": "high"},
        })
    );
}
