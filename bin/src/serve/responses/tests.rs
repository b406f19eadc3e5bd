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
    let most = body["max_output_tokens"].as_u64().map(|n| n as u32);
    read(&Fields::body(body.as_object().unwrap()), most, &CAPS, &Api::default())
}

/// Messages as `role:content`, calls and thinking beside, or the error's code and path.
fn check(body: Value, expected: &str) {
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
        out
    };
    let printed = match of(&body) {
        Ok(Read { chat: Some(chat), .. }) => {
            chat.messages().as_array().unwrap().iter().map(one).collect::<Vec<_>>().join(" | ")
        }
        Ok(Read { chat: None, .. }) => "nothing".to_owned(),
        Err(error) => format!("{} {}", error.code, error.param.unwrap()),
    };
    assert_eq!(printed, expected);
}

#[test]
fn items_become_messages() {
    check(json!({"input": "hi"}), "user:hi");
    check(json!({"input": "hi", "instructions": "be brief"}), "system:be brief | user:hi");
    let call = |id: &str| json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": "f", "arguments": "{\"a\":1}", "status": "completed"});
    let output = |id: &str, output: Value| json!({"type": "function_call_output", "call_id": id, "output": output});
    check(
        json!({"instructions": "s", "input": [
            {"role": "developer", "content": "t"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": null},
            {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
            call("x"),
            {"type": "custom_tool_call", "call_id": "y", "name": "note", "input": "two\nlines"},
            {"type": "custom_tool_call_output", "call_id": "y", "output": [{"type": "input_text", "text": "2"}]},
            output("x", json!("1")),
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}, {"type": "summary_text", "text": "it is"}]},
            call("x"),
            output("x", json!("3")),
            {"role": "user", "content": "d"},
        ]}),
        "system:s\n\nt | user:ab | assistant:c thought:hm call:f{\"a\":1} call:note{\"input\":\"two\\nlines\"} | tool:1 | tool:2 | \
         assistant: thought:so\n\nit is call:f{\"a\":1} | tool:3 | user:d",
    );
    // What only a provider can read is nothing, and neither is content that is null.
    check(
        json!({"input": [
            {"type": "reasoning", "summary": [], "content": null, "encrypted_content": "x"},
            {"role": "assistant", "content": "a"},
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
            {"role": "user", "content": "b"},
        ]}),
        "assistant:a | user:b",
    );
}

#[test]
fn what_is_wrong_is_named_where_it_stands() {
    for (input, expected) in [
        (json!(null), "missing_required_parameter input"),
        (json!(5), "invalid_type input"),
        (json!([]), "invalid_value input"),
        (json!(["x"]), "invalid_type input[0]"),
        (json!([{"content": "x"}]), "missing_required_parameter input[0].type"),
        (json!([{"type": "item_reference", "id": "x"}]), "unsupported_item input[0].type"),
        (json!([{"type": "web_search_call"}]), "unsupported_item input[0].type"),
        (json!([{"role": "wizard", "content": "x"}]), "invalid_value input[0].role"),
        (json!([{"role": "user"}]), "missing_required_parameter input[0].content"),
        (
            json!([{"role": "user", "content": [{"type": "input_image"}]}]),
            "unsupported_content_part input[0].content[0].type",
        ),
        (json!([{"type": "function_call", "name": "f"}]), "missing_required_parameter input[0].call_id"),
        (
            json!([{"type": "function_call", "call_id": "x", "name": "f", "arguments": "[]"}]),
            "invalid_tool_arguments input[0].arguments",
        ),
        (
            json!([{"type": "function_call_output", "call_id": "x", "output": "1"}]),
            "orphan_tool_result input[0].call_id",
        ),
        (json!([{"type": "function_call_output", "call_id": "x"}]), "missing_required_parameter input[0].output"),
        (
            json!([{"type": "function_call", "call_id": "x", "name": "f"}, {"type": "function_call", "call_id": "x", "name": "f"}]),
            "invalid_value input[1].call_id",
        ),
        (
            json!([{"type": "function_call", "call_id": "x", "name": "f"}, {"role": "user", "content": "u"}]),
            "missing_tool_result input[1]",
        ),
        (json!([{"type": "reasoning", "content": [{"text": 5}]}]), "invalid_type input[0].content[0].text"),
    ] {
        check(json!({"input": input}), expected);
    }
    for (name, value, expected) in [
        ("reasoning", json!({"depth": 1}), "unsupported_parameter reasoning.depth"),
        ("reasoning", json!({"effort": "much"}), "invalid_value reasoning.effort"),
        ("reasoning", json!({"context": "every_turn"}), "invalid_value reasoning.context"),
        ("text", json!({"shape": 1}), "unsupported_parameter text.shape"),
        ("text", json!({"format": {"type": "yaml"}}), "unsupported_value text.format.type"),
        ("tools", json!([{"type": "function", "name": "a b"}]), "invalid_value tools[0].name"),
        ("tools", json!([{"type": "teleport"}]), "unsupported_value tools[0].type"),
        ("tool_choice", json!({"type": "web_search_preview"}), "invalid_value tool_choice.type"),
        ("tool_choice", json!("required"), "invalid_value tool_choice"),
        ("include", json!([1]), "invalid_type include[0]"),
        ("top_logprobs", json!(21), "invalid_value top_logprobs"),
        ("max_output_tokens", json!(0), "invalid_value max_output_tokens"),
    ] {
        let mut body = json!({"input": "hi"});
        body[name] = value;
        check(body, expected);
    }
}

#[test]
fn a_request_for_nothing_is_a_question_whether_somebody_is_there() {
    check(json!({"input": [], "max_output_tokens": 16}), "nothing");
    check(json!({"input": [], "max_output_tokens": 17}), "invalid_value input");
}

#[test]
fn tools_and_switches_reach_the_template() {
    let body = json!({
        "input": "hi",
        "tools": [
            {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": false},
            {"type": "web_search"},
            {"type": "custom", "name": "note", "description": "Keep a note.", "format": {"type": "text"}},
        ],
        "reasoning": {"effort": "none", "summary": "auto"},
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
    });
    let read = of(&body).unwrap();
    assert_eq!(read.ignored, ["reasoning.summary"]);
    assert_eq!((read.logprobs, read.warnings), (Some(0), vec!["tools_dropped:web_search".to_owned()]));
    let (turns, fields) = recorded(body.as_object().unwrap(), &Api::default());
    assert_eq!((turns.len(), turns[0].text.as_str()), (1, "hi"));
    let input = json!({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]});
    let function = |function: Value| json!({"type": "function", "function": function});
    assert_eq!(
        Value::Object(fields),
        json!({
            "tools": [
                function(json!({"name": "f", "parameters": {"type": "object"}})),
                function(json!({"name": "note", "description": "Keep a note.", "parameters": input})),
            ],
            "chat_template_kwargs": {"enable_thinking": false},
        })
    );
}

#[test]
fn old_thoughts_are_kept_where_the_model_has_marks_for_them() {
    let body = json!({"input": "hi", "reasoning": {"context": "all_turns"}});
    assert!(of(&body).is_ok());
    let (_, fields) = recorded(body.as_object().unwrap(), &Api::default());
    assert_eq!(Value::Object(fields), json!({"reasoning": {"context": "all_turns"}}));
    let caps = Caps { think: None, ..CAPS };
    let error = read(&Fields::body(body.as_object().unwrap()), None, &caps, &Api::default())
        .err()
        .expect("there is no place for them");
    assert_eq!((error.code, error.param.as_deref()), ("unsupported_value", Some("reasoning.context")));
}

#[test]
fn a_grammar_of_a_custom_tool_is_read() {
    let with = |format: Value| json!({"input": "hi", "tools": [{"type": "custom", "name": "note", "format": format}]});
    for (format, expected) in [
        (json!({"type": "grammar", "syntax": "lark", "definition": "start: \"a\""}), "messages"),
        (json!({"type": "grammar", "syntax": "regex", "definition": "a+"}), "messages"),
        (json!({"type": "grammar", "syntax": "bnf", "definition": "a"}), "unsupported_value tools[0].format.syntax"),
        (json!({"type": "grammar", "syntax": "lark"}), "missing_required_parameter tools[0].format.definition"),
        (json!({"type": "yaml"}), "unsupported_value tools[0].format.type"),
        (json!({}), "missing_required_parameter tools[0].format.type"),
    ] {
        match expected {
            "messages" => assert!(of(&with(format)).is_ok()),
            expected => check(with(format), expected),
        }
    }
    let body = with(json!({"type": "grammar", "syntax": "lark", "definition": "start: \"a\""}));
    for style in [ToolStyle::Hermes, ToolStyle::Llama3, ToolStyle::Nemotron2] {
        let caps = Caps { tool_style: style, ..CAPS };
        let error = read(&Fields::body(body.as_object().unwrap()), None, &caps, &Api::default())
            .err()
            .expect("JSON holds no grammar");
        assert_eq!((error.code, error.param.as_deref()), ("unsupported_value", Some("tools[0].format.definition")));
    }
}
