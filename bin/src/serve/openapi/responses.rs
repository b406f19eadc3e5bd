//! What `/v1/responses` is made of.

use serde_json::{Value, json};

use super::{any_of, count, list, nullable, object, object_and, reference, text, tool_name};
use crate::serve::limits;

/// What the values of an honoured field look like here.
pub(super) fn field(name: &str) -> Option<Value> {
    Some(match name {
        "input" => any_of(&[
            text(),
            json!({"type": "array", "maxItems": limits::MESSAGES, "items": reference("ResponsesInput")}),
        ]),
        "instructions" => text(),
        "max_output_tokens" => json!({"type": "integer", "minimum": 1, "maximum": u32::MAX}),
        "stream_options" => json!({"type": "object", "additionalProperties": false,
            "properties": {"include_obfuscation": {"type": "boolean"}}}),
        "tools" => json!({"type": "array", "maxItems": limits::TOOLS, "items": reference("ResponsesTool")}),
        "text" => json!({"type": "object", "additionalProperties": false, "properties": {"verbosity": nullable(text()),
            "format": nullable(any_of(&[object(json!({"type": {"enum": ["text", "json_object"]}})),
                object_and(json!({"type": {"const": "json_schema"}, "schema": {"type": "object"}}), json!({"name": text()}))]))}}),
        "reasoning" => json!({"type": "object", "additionalProperties": false, "properties": {
            "effort": super::field("reasoning_effort").map(nullable), "summary": nullable(text()),
            "generate_summary": nullable(text()), "context": {"enum": ["auto", "current_turn", "all_turns", null]},
            "mode": nullable(text())}}),
        "include" => list(text()),
        "prompt_cache_options" => json!({"type": "object", "properties": {"comparison_response_id": nullable(text())}}),
        other => return super::field(other),
    })
}

pub(super) fn components() -> Value {
    let status = || json!({"enum": ["in_progress", "completed", "incomplete"]});
    let called =
        |kind: &str, what: &str| json!({"type": {"const": kind}, "call_id": text(), "name": text(), what: text()});
    let item = |mut fields: Value| {
        fields["id"] = text();
        fields["status"] = status();
        object(fields)
    };
    let thought = object(json!({"type": {"const": "reasoning_text"}, "text": text()}));
    let said = object(json!({"type": {"const": "output_text"}, "text": text(), "annotations": list(json!({})),
        "logprobs": list(json!({"type": "object"}))}));
    let content = |kinds: &[&str]| {
        let part = object(json!({"type": {"enum": kinds}, "text": text()}));
        any_of(&[text(), json!({"type": "array", "minItems": 1, "items": part})])
    };
    let texts = || list(object(json!({"text": text()})));
    let output =
        |kind: &str| object(json!({"type": {"const": kind}, "call_id": text(), "output": content(&["input_text"])}));
    let named = |name: &str, kind: &str| {
        object_and(
            json!({"type": {"const": kind}, "name": tool_name()}),
            json!({"description": nullable(text()), name: {}}),
        )
    };
    let mut function = named("parameters", "function");
    function["properties"]["parameters"] = nullable(json!({"type": "object"}));
    function["properties"]["strict"] = nullable(json!({"type": "boolean"}));
    let mut custom = named("format", "custom");
    let grammar =
        json!({"type": {"const": "grammar"}, "syntax": {"enum": ["lark", "gbnf", "regex"]}, "definition": text()});
    custom["properties"]["format"] = nullable(any_of(&[object(json!({"type": {"const": "text"}})), object(grammar)]));
    json!({
        "ResponsesInput": any_of(&[
            object_and(json!({"role": {"enum": ["user", "assistant", "system", "developer"]},
                "content": content(&["input_text", "output_text"])}), json!({"type": {"enum": ["message", null]}})),
            object_and(json!({"type": {"const": "reasoning"}}), json!({"content": nullable(texts()), "summary": nullable(texts())})),
            object(called("function_call", "arguments")),
            object(called("custom_tool_call", "input")),
            output("function_call_output"),
            output("custom_tool_call_output"),
        ]),
        "ResponsesTool": any_of(&[function, custom,
            // Kinds that run at a provider: left out, with a warning.
            object(json!({"type": {"enum": ["web_search", "file_search", "code_interpreter", "image_generation", "mcp",
                "local_shell", "shell", "apply_patch", "namespace", "tool_search", "programmatic_tool_calling"]}}))]),
        "ResponsesPart": any_of(&[thought.clone(), said.clone()]),
        "ResponsesItem": any_of(&[
            item(json!({"type": {"const": "reasoning"}, "summary": list(json!({})), "content": list(thought),
                "encrypted_content": {"type": "null"}})),
            item(json!({"type": {"const": "message"}, "role": {"const": "assistant"}, "content": list(said)})),
            item(called("function_call", "arguments")),
            item(called("custom_tool_call", "input")),
        ]),
        "ResponsesAnswer": answer(),
        "ResponsesEvent": any_of(&events()),
    })
}

fn answer() -> Value {
    let any = || json!({});
    let usage = object(json!({"input_tokens": count(), "output_tokens": count(), "total_tokens": count(),
        "input_tokens_details": object(json!({"cached_tokens": count(), "cache_write_tokens": count()})),
        "output_tokens_details": object(json!({"reasoning_tokens": count()}))}));
    let told = json!({"id": {"type": "string", "pattern": "^resp_"}, "object": {"const": "response"},
        "created_at": count(), "completed_at": nullable(count()),
        "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]}, "background": {"const": false},
        "error": nullable(object(json!({"code": text(), "message": text()}))),
        "incomplete_details": nullable(object(json!({"reason": {"const": "max_output_tokens"}}))),
        "model": text(), "output": list(reference("ResponsesItem")), "usage": nullable(usage),
        "reasoning": object(json!({"effort": nullable(text()), "summary": {"type": "null"}})),
        "text": object(json!({"format": {"type": "object"}, "verbosity": nullable(text())})),
        "previous_response_id": {"type": "null"}, "service_tier": text(), "store": {"const": false},
        "truncation": {"const": "disabled"}, "tools": list(json!({"type": "object"})), "tool_choice": any(),
        "instructions": any(), "max_output_tokens": any(), "max_tool_calls": any(), "metadata": any(),
        "parallel_tool_calls": any(), "prompt_cache_key": any(), "safety_identifier": any(), "temperature": any(),
        "top_logprobs": any(), "top_p": any(), "user": any()});
    let diagnosis = any_of(&[
        object(json!({"type": {"const": "cache_miss"}, "cache_missed_tokens": count(),
            "reason": {"enum": ["tools_changed", "reasoning_effort_changed", "input_changed"]}})),
        object(json!({"type": {"enum": ["cache_hit", "comparison_response_not_found"]}})),
    ]);
    object_and(
        told,
        json!({"timings": {"type": "object"}, "speculation": {"type": "object"},
        "prompt_cache_diagnostics": nullable(diagnosis)}),
    )
}

/// What may stand in a stream.
fn events() -> Vec<Value> {
    let event = |names: &[&str], mut fields: Value| {
        let names: Vec<String> = names.iter().map(|name| format!("response.{name}")).collect();
        fields["type"] = json!({ "enum": names });
        fields["sequence_number"] = count();
        object(fields)
    };
    let place = |mut fields: Value| {
        fields["item_id"] = text();
        fields["output_index"] = count();
        fields
    };
    let part = || place(json!({"content_index": count(), "part": reference("ResponsesPart")}));
    let logprobs = || list(json!({"type": "object"}));
    vec![
        event(
            &["created", "in_progress", "completed", "incomplete", "failed"],
            json!({"response": reference("ResponsesAnswer")}),
        ),
        event(
            &["output_item.added", "output_item.done"],
            json!({"output_index": count(), "item": reference("ResponsesItem")}),
        ),
        event(&["content_part.added", "content_part.done"], part()),
        event(&["reasoning_text.delta"], place(json!({"content_index": count(), "delta": text()}))),
        event(&["reasoning_text.done"], place(json!({"content_index": count(), "text": text()}))),
        event(
            &["output_text.delta"],
            place(json!({"content_index": count(), "delta": text(), "logprobs": logprobs()})),
        ),
        event(&["output_text.done"], place(json!({"content_index": count(), "text": text(), "logprobs": logprobs()}))),
        event(&["function_call_arguments.delta", "custom_tool_call_input.delta"], place(json!({"delta": text()}))),
        event(&["function_call_arguments.done"], place(json!({"name": text(), "arguments": text()}))),
        event(&["custom_tool_call_input.done"], place(json!({"input": text()}))),
    ]
}
