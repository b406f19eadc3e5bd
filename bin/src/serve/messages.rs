//! The messages of a chat body, read one by one.

use std::collections::HashSet;

use engine_io::trace::Turn;
use serde_json::{Map, Value};

use crate::serve::api::Api;
use crate::serve::conversation::{self, Answers, Call, Message, Normalised, Role};
use crate::serve::error::{ApiError, quote};
use crate::serve::fields::Fields;
use crate::serve::json::type_name;
use crate::serve::model::Caps;

/// Normalises `messages`.
///
/// # Errors
/// 400 naming the message and part at fault.
pub(crate) fn normalise(messages: &[Value], caps: &Caps, api: &Api) -> Result<Normalised, ApiError> {
    conversation::check_length(messages, "messages")?;
    let read = conversation::objects(messages, "messages").map(|m| m.and_then(|(at, map)| read(&at, map)));
    let read = read.collect::<Result<Vec<_>, _>>()?;
    conversation::normalise(read, &format!("messages[{}]", messages.len()), caps, api)
}

/// The messages as turns of a record, in the client's order and as the client sent them; of thoughts that stand apart
/// from the content nothing is left. Messages that [`normalise`] refuses are left out.
pub(crate) fn turns(messages: &[Value]) -> Vec<Turn> {
    let read = conversation::objects(messages, "messages").map(|m| m.and_then(|(at, map)| read(&at, map)));
    read.filter_map(Result::ok).map(conversation::turn).collect()
}

fn read(at: &str, map: &Map<String, Value>) -> Result<Message, ApiError> {
    let prefix = format!("{at}.");
    let fields = Fields::nested(map, &prefix);
    let role = match fields.string("role")?.ok_or_else(|| ApiError::missing(&fields.path("role")))? {
        "system" => Role::System,
        "developer" => Role::Developer,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" | "function" | "ipython" => Role::Tool,
        other => {
            let message = format!("unknown role {}", quote(other));
            return Err(ApiError::invalid_value(&fields.path("role"), message));
        }
    };
    let mut reasoning = None;
    if role == Role::Assistant {
        for name in ["reasoning_content", "reasoning", "thinking"] {
            match (fields.string(name)?, &reasoning) {
                (Some(text), None) => reasoning = Some(text.to_owned()),
                (Some(text), Some(known)) if text != known => {
                    return Err(ApiError::invalid_value(&fields.path(name), "two different reasoning texts"));
                }
                _ => {}
            }
        }
    }
    let calls = if role == Role::Assistant { read_calls(&fields)? } else { Vec::new() };
    let content = match fields.get("content") {
        Some(content) => conversation::read_content(content, &fields.path("content"), role, &mut reasoning)?,
        None if role == Role::Assistant && (!calls.is_empty() || reasoning.is_some()) => String::new(),
        None => return Err(ApiError::missing(&fields.path("content"))),
    };
    let answers = match role {
        Role::Tool => {
            let at = fields.path("tool_call_id");
            let id = fields.string("tool_call_id")?.or(fields.string("name")?).ok_or_else(|| ApiError::missing(&at))?;
            Some(Answers { id: id.to_owned(), at })
        }
        _ => None,
    };
    let continues = role == Role::Assistant && fields.boolean("prefix")?.unwrap_or(false);
    let name = if role == Role::Tool { None } else { fields.string("name")?.map(str::to_owned) };
    Ok(Message { role, content, reasoning, name, calls, answers, at: at.to_owned(), prefix: continues })
}

fn read_calls(fields: &Fields<'_, '_>) -> Result<Vec<Call>, ApiError> {
    let legacy = fields.object("function_call")?;
    let Some(list) = fields.list("tool_calls")?.filter(|list| !list.is_empty()) else {
        // Its result names the function and has no id.
        return legacy.map(|map| read_function(map, &fields.path("function_call."), None)).into_iter().collect();
    };
    if legacy.is_some() {
        let message = "it says the same as tool_calls; give one of them";
        return Err(ApiError::invalid_value(&fields.path("function_call"), message));
    }
    let mut calls: Vec<Call> = Vec::with_capacity(list.len());
    let mut ids = HashSet::with_capacity(list.len());
    for (i, item) in list.iter().enumerate() {
        let prefix = fields.path(&format!("tool_calls[{i}]."));
        let Some(map) = item.as_object() else {
            return Err(ApiError::invalid_type(prefix.trim_end_matches('.'), "object", type_name(item)));
        };
        let call = Fields::nested(map, &prefix);
        let Some(function) = call.object("function")? else { return Err(ApiError::missing(&call.path("function"))) };
        let id = call.string("id")?.map_or_else(|| format!("call_{i}"), str::to_owned);
        if !ids.insert(id.clone()) {
            return Err(ApiError::invalid_value(&call.path("id"), format!("{} names two calls", quote(&id))));
        }
        calls.push(read_function(function, &call.path("function."), Some(id))?);
    }
    Ok(calls)
}

/// A call from what names its function; without an `id` that name is its id.
fn read_function(map: &Map<String, Value>, prefix: &str, id: Option<String>) -> Result<Call, ApiError> {
    let function = Fields::nested(map, prefix);
    let name = function.string("name")?.ok_or_else(|| ApiError::missing(&function.path("name")))?;
    let id = id.unwrap_or_else(|| name.to_owned());
    match function.get("arguments") {
        None => Call::of_text(id, name, "", ""),
        Some(Value::Object(map)) => Ok(Call::of_object(id, name, map.clone())),
        Some(Value::String(text)) => Call::of_text(id, name, text, &function.path("arguments")),
        Some(other) => Err(ApiError::invalid_type(&function.path("arguments"), "JSON text", type_name(other))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::serve::api::{SystemFold, ToolResults};

    const STRICT: Caps = Caps {
        chat: true,
        developer: false,
        system_anywhere: false,
        alternation: false,
        tools: true,
        string_arguments: false,
        reasoning_effort: false,
        tool_style: crate::serve::model::ToolStyle::Xml,
        think: Some(("<think>", "</think>")),
        think_tokens: None,
        call_tokens: None,
    };

    /// Normalises and prints `role:content` per message, or the error's code.
    fn check(messages: Value, expected: &str) {
        check_folded(SystemFold::User, messages, expected);
    }

    fn check_folded(system_fold: SystemFold, messages: Value, expected: &str) {
        check_of(&Api { system_fold, ..Api::default() }, &STRICT, messages, expected);
    }

    fn check_of(api: &Api, caps: &Caps, messages: Value, expected: &str) {
        let printed = match normalise(messages.as_array().unwrap(), caps, api) {
            Ok(n) => n
                .messages
                .as_array()
                .unwrap()
                .iter()
                .map(|m| format!("{}:{}", m["role"].as_str().unwrap(), m["content"].as_str().unwrap()))
                .collect::<Vec<_>>()
                .join(" | "),
            Err(error) => {
                assert_eq!(error.status, 400);
                format!("{} {}", error.code, error.param.unwrap())
            }
        };
        assert_eq!(printed, expected);
    }

    fn call(ids: &[&str]) -> Value {
        let calls: Vec<Value> =
            ids.iter().map(|id| json!({"id": id, "function": {"name": "f", "arguments": "{\"a\":1}"}})).collect();
        json!({"role": "assistant", "content": null, "tool_calls": calls})
    }

    #[test]
    fn content_shapes() {
        let parts = json!([{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]);
        check(json!([{"role": "user", "content": parts}]), "user:AB");
        check(json!([{"role": "user", "content": []}]), "invalid_value messages[0].content");
        check(json!([{"role": "user"}]), "missing_required_parameter messages[0].content");
        check(json!([{"role": "user", "content": null}]), "missing_required_parameter messages[0].content");
        check(json!([{"role": "user", "content": 5}]), "invalid_type messages[0].content");
        check(
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
            "unsupported_content_part messages[0].content[0].type",
        );
        check(json!([{"role": "assistant"}]), "missing_required_parameter messages[0].content");
        check(json!([{"role": "assistant", "reasoning_content": "r"}]), "assistant:");
        check(json!([{"role": "wizard", "content": "x"}]), "invalid_value messages[0].role");
        check(json!([]), "invalid_value messages");
        check(
            json!([{"role": "assistant", "content": "a", "reasoning": "x", "thinking": "y"}]),
            "invalid_value messages[0].thinking",
        );
    }

    #[test]
    fn calls_of_functions_are_calls_of_tools() {
        let called = |more: Value| {
            let mut message = json!({"role": "assistant", "function_call": {"name": "f", "arguments": "{\"a\":1}"}});
            message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            message
        };
        let result = |name: &str| json!({"role": "function", "name": name, "content": "r"});
        check(json!([called(json!({"content": null})), result("f")]), "assistant: | tool:r");
        check(json!([called(json!({"content": "c", "tool_calls": []})), result("f")]), "assistant:c | tool:r");
        check(json!([called(json!({})), result("g")]), "orphan_tool_result messages[1].tool_call_id");
        let both = json!({"tool_calls": [{"function": {"name": "f"}}]});
        check(json!([called(both)]), "invalid_value messages[0].function_call");
        let bad = json!({"function_call": {"name": "f", "arguments": "{"}});
        check(json!([called(bad)]), "invalid_tool_arguments messages[0].function_call.arguments");
        let parsed = normalise(&[called(json!({}))], &STRICT, &Api::default()).unwrap();
        let expected = json!({"id": "f", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
        assert_eq!(parsed.messages[0]["tool_calls"], json!([expected]));
    }

    #[test]
    fn thinking_in_tags_is_split_off_once() {
        let thought = |content: &str| {
            let list = [json!({"role": "user", "content": "u"}), json!({"role": "assistant", "content": content})];
            let message = normalise(&list, &STRICT, &Api::default()).unwrap().messages[1].clone();
            let text = |name: &str| message[name].as_str().unwrap().to_owned();
            (text("reasoning_content"), text("content"))
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(thought("<think>\na\n</think>\n\nb</think>c"), pair("a", "b</think>c"));
        assert_eq!(thought(" \n<think>a</think>b"), pair("a", "b"));
        assert_eq!(thought("x<think>a</think>b"), pair("", "x<think>a</think>b"));
        assert_eq!(thought("<think>a"), pair("", "<think>a"));
    }

    #[test]
    fn roles_and_order() {
        check(
            json!([{"role": "developer", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"}]),
            "system:a\n\nb | user:c",
        );
        check(
            json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},
                {"role": "system", "content": "s"}, {"role": "user", "content": "v"}]),
            "user:u | assistant:a | user:<system-reminder>\ns\n</system-reminder>\n\nv",
        );
        check(
            json!([{"role": "user", "content": "u"}, {"role": "system", "content": "s"}]),
            "user:u | user:<system-reminder>\ns\n</system-reminder>",
        );
        check(
            json!([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]),
            "assistant:a\n\nb",
        );
    }

    #[test]
    fn late_systems_go_where_the_server_says() {
        let said = |role: &str, content: &str| json!({"role": role, "content": content});
        let late = json!([
            said("system", "s"),
            said("user", "u"),
            said("assistant", "a"),
            said("developer", "t"),
            said("user", "v"),
            said("system", "w")
        ]);
        let wrapped = |text: &str| format!("user:<system-reminder>\n{text}\n</system-reminder>");
        let user = format!("system:s | user:u | assistant:a | {}\n\nv | {}", wrapped("t"), wrapped("w"));
        check_folded(SystemFold::User, late.clone(), &user);
        check_folded(SystemFold::First, late.clone(), "system:s\n\nt\n\nw | user:u | assistant:a | user:v");
        check_folded(SystemFold::Reject, late.clone(), "invalid_value messages[3]");
        // Where none stands first there is one afterwards.
        let none = json!([said("user", "u"), said("system", "s"), said("system", "t"), said("user", "v")]);
        check_folded(SystemFold::First, none.clone(), "system:s\n\nt | user:u | user:v");
        check_folded(SystemFold::Reject, none, "invalid_value messages[1]");
        // A template that takes them anywhere gets them as they stand, whatever the server says.
        let free = Caps { system_anywhere: true, ..STRICT };
        for fold in [SystemFold::User, SystemFold::First, SystemFold::Reject] {
            let read = normalise(late.as_array().unwrap(), &free, &Api { system_fold: fold, ..Api::default() })
                .unwrap()
                .messages;
            let roles: Vec<&str> = read.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
            assert_eq!(roles, ["system", "user", "assistant", "system", "user", "system"], "{fold:?}");
        }
        check_folded(
            SystemFold::Reject,
            json!([said("system", "a"), said("system", "b"), said("user", "u")]),
            "system:a\n\nb | user:u",
        );
    }

    #[test]
    fn results_follow_their_calls() {
        let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
        check(json!([call(&["x", "y"]), result("y", "2"), result("x", "1")]), "assistant: | tool:1 | tool:2");
        check(
            json!([call(&["x", "y", "z"]), result("z", "3"), result("x", "1"), result("y", "2")]),
            "assistant: | tool:1 | tool:2 | tool:3",
        );
        check(json!([call(&["x"]), call(&["y"]), result("y", "2"), result("x", "1")]), "assistant: | tool:1 | tool:2");
        check(json!([call(&["x"]), result("q", "")]), "orphan_tool_result messages[1].tool_call_id");
        check(json!([result("q", "")]), "orphan_tool_result messages[0].tool_call_id");
        check(
            json!([call(&["x"]), result("x", ""), result("x", "")]),
            "duplicate_tool_result messages[2].tool_call_id",
        );
        check(json!([call(&["x"]), {"role": "user", "content": "u"}]), "missing_tool_result messages[1]");
        check(json!([call(&["x", "x"])]), "invalid_value messages[0].tool_calls[1].id");
    }

    #[test]
    fn late_and_missing_results_are_mended_where_the_server_does_that() {
        let result = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
        let said = |role: &str, content: &str| json!({"role": role, "content": content});
        let lenient = Api { tool_results: ToolResults::Lenient, ..Api::default() };
        let apart = Caps { alternation: true, ..STRICT };
        let of = |caps: &Caps, messages: Value, expected: &str| check_of(&lenient, caps, messages, expected);
        // A user speaks between a call and its result, and another call has none.
        let late = json!([
            said("user", "u"),
            call(&["x", "y", "z"]),
            result("z", "3"),
            said("user", "v"),
            result("x", "1"),
            said("user", "w"),
            said("assistant", "a")
        ]);
        of(&STRICT, late.clone(), "user:u | assistant: | tool:1 | tool: | tool:3 | user:v | user:w | assistant:a");
        of(&apart, late.clone(), "user:u | assistant: | tool:1 | tool: | tool:3 | user:v\n\nw | assistant:a");
        check(late, "missing_tool_result messages[3]");
        let filled = normalise(&[call(&["x"]), said("user", "u")], &STRICT, &lenient).unwrap().messages;
        assert_eq!((&filled[1]["role"], &filled[1]["tool_call_id"]), (&json!("tool"), &json!("x")));
        // Nothing is made up where nothing follows.
        of(&STRICT, json!([said("user", "u"), call(&["x"])]), "user:u | assistant:");
        of(&STRICT, json!([call(&["x", "y"]), result("y", "2")]), "assistant: | tool: | tool:2");
        // What belongs to no call, or to one that was answered, is as wrong as ever.
        of(
            &STRICT,
            json!([call(&["x"]), said("user", "u"), result("q", "")]),
            "orphan_tool_result messages[2].tool_call_id",
        );
        let twice = json!([call(&["x"]), result("x", ""), said("user", "u"), result("x", "")]);
        of(&STRICT, twice, "duplicate_tool_result messages[3].tool_call_id");
        let gone = json!([call(&["x"]), said("user", "u"), said("assistant", "a"), result("x", "")]);
        of(&STRICT, gone, "orphan_tool_result messages[3].tool_call_id");
    }

    #[test]
    fn results_of_very_many_calls() {
        const COUNT: usize = 16_000;
        let ids: Vec<String> = (0..COUNT).map(|i| format!("c{i}")).collect();
        let mut messages = vec![call(&ids.iter().map(String::as_str).collect::<Vec<_>>())];
        messages.extend(ids.iter().rev().map(|id| json!({"role": "tool", "tool_call_id": id, "content": id})));
        let normalised = normalise(&messages, &STRICT, &Api::default()).unwrap();
        let results = &normalised.messages.as_array().unwrap()[1..];
        assert!(results.iter().map(|m| m["content"].as_str().unwrap()).eq(&ids));
    }

    #[test]
    fn arguments_become_mappings() {
        let parsed = normalise(&[call(&["x"])], &STRICT, &Api::default()).unwrap();
        assert_eq!(parsed.messages[0]["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
        let caps = Caps { string_arguments: true, ..STRICT };
        let text = normalise(&[call(&["x"])], &caps, &Api::default()).unwrap();
        assert_eq!(text.messages[0]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
        for bad in ["[1]", "{\"a\":1,\"a\":2}", "{", "x"] {
            let message = json!([{"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": bad}}]}]);
            check(message, "invalid_tool_arguments messages[0].tool_calls[0].function.arguments");
        }
    }
}
