//! What `/v1/messages` is made of.

use serde_json::{Value, json};

use super::{any_of, count, list, nullable, object, object_and, reference, text, tool_name};
use crate::serve::anthropic;
use crate::serve::limits;

/// What the values of an honoured field look like here.
pub(super) fn field(name: &str) -> Option<Value> {
    let whole = |low: i64| json!({"type": "integer", "minimum": low, "maximum": u32::MAX});
    Some(match name {
        "messages" => json!({"type": "array", "minItems": 1, "maxItems": limits::MESSAGES,
            "items": reference("MessagesMessage")}),
        "system" => any_of(&[text(), list(reference("MessagesText"))]),
        "max_tokens" => whole(0),
        "stop_sequences" => json!({"type": "array", "maxItems": anthropic::NAMES.stop_most,
            "items": {"type": "string", "minLength": 1, "maxLength": limits::STOP_BYTES}}),
        "tools" => json!({"type": "array", "maxItems": limits::TOOLS, "items": reference("MessagesTool")}),
        "tool_choice" => {
            let more = || json!({"disable_parallel_tool_use": nullable(json!({"type": "boolean"}))});
            any_of(&[
                object_and(json!({"type": {"enum": ["auto", "any", "none"]}}), more()),
                object_and(json!({"type": {"const": "tool"}, "name": text()}), more()),
            ])
        }
        "thinking" => object_and(
            json!({"type": {"enum": ["enabled", "disabled", "adaptive", "between_tools"]}}),
            json!({"budget_tokens": nullable(whole(0)), "display": {"enum": ["summarized", "full", "omitted", null]}}),
        ),
        // The conversation is not kept.
        "thread" => json!({"const": false}),
        "output_config" => {
            json!({"type": "object", "properties": {"effort": super::field("reasoning_effort").map(nullable),
            "format": nullable(object(json!({"type": {"const": "json_schema"}, "schema": {"type": "object"}})))}})
        }
        "diagnostics" => json!({"type": "object", "properties": {"previous_message_id": nullable(text())}}),
        other => return super::field(other),
    })
}

pub(super) fn components() -> Value {
    let used = || json!({"type": {"const": "tool_use"}, "id": text(), "name": text(), "input": {"type": "object"}});
    let thought = || object(json!({"type": {"const": "thinking"}, "thinking": text(), "signature": text()}));
    let stop = || {
        json!({"stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use",
            "model_context_window_exceeded", null]}, "stop_sequence": nullable(text())})
    };
    let usage = object_and(
        json!({"input_tokens": count(), "cache_creation_input_tokens": count(), "cache_read_input_tokens": count(),
            "output_tokens": count()}),
        json!({"output_tokens_details": object(json!({"thinking_tokens": count()})), "service_tier": text()}),
    );
    let result = object_and(
        json!({"type": {"const": "tool_result"}, "tool_use_id": text()}),
        json!({"content": nullable(any_of(&[text(), list(reference("MessagesText"))])),
            "is_error": nullable(json!({"type": "boolean"}))}),
    );
    let reason = any_of(&[
        object(json!({"type": {"enum": ["system_changed", "tools_changed", "messages_changed"]},
            "cache_missed_input_tokens": count()})),
        object(json!({"type": {"enum": ["previous_message_not_found", "unavailable"]}})),
    ]);
    let mut message = json!({"id": {"type": "string", "pattern": "^msg_"}, "type": {"const": "message"},
        "role": {"const": "assistant"}, "model": text(), "content": list(reference("MessagesBlock")), "usage": usage});
    message.as_object_mut().expect("built as one").extend(stop().as_object().expect("built as one").clone());
    json!({
        "MessagesText": object(json!({"type": {"const": "text"}, "text": text()})),
        "MessagesMessage": any_of(&[
            object(json!({"role": {"enum": ["user", "assistant", "system"]}, "content": text()})),
            object(json!({"role": {"const": "user"}, "content": {"type": "array", "minItems": 1,
                "items": any_of(&[reference("MessagesText"), result])}})),
            object(json!({"role": {"const": "system"}, "content": list(reference("MessagesText"))})),
            object(json!({"role": {"const": "assistant"}, "content": list(any_of(&[reference("MessagesText"), object(used()),
                object_and(json!({"type": {"const": "thinking"}, "thinking": text()}), json!({"signature": text()})),
                object(json!({"type": {"const": "redacted_thinking"}}))]))})),
        ]),
        "MessagesTool": any_of(&[
            object_and(json!({"name": tool_name()}), json!({"type": {"enum": ["custom", null]}, "description": nullable(text()),
                "input_schema": nullable(json!({"type": "object"})), "strict": nullable(json!({"type": "boolean"}))})),
            // A kind that runs at a provider: left out, with a warning.
            object(json!({"type": {"type": "string", "pattern": "^[a-z]+_[0-9]+$"}})),
        ]),
        "MessagesBlock": any_of(&[
            object_and(json!({"type": {"const": "text"}, "text": text()}), json!({"citations": {"type": "null"}})),
            thought(),
            object(used()),
        ]),
        "MessagesAnswer": object_and(message, json!({"timings": {"type": "object"}, "speculation": {"type": "object"},
            "diagnostics": nullable(object(json!({"cache_miss_reason": reason})))})),
        "MessagesEvent": any_of(&events(stop(), usage)),
        "MessagesError": object(json!({"type": {"const": "error"}, "request_id": text(), "error": object(json!({
            "type": {"enum": ["invalid_request_error", "authentication_error", "not_found_error", "timeout_error",
                "request_too_large", "overloaded_error", "api_error"]},
            "message": text(), "details": object(json!({"error_code": text(), "param": nullable(text())}))}))})),
    })
}

/// What may stand in a stream.
fn events(stop: Value, usage: Value) -> Vec<Value> {
    let event = |name: &str, mut fields: Value| {
        fields["type"] = json!({ "const": name });
        object(fields)
    };
    let delta = |kind: &str, field: &str| object(json!({"type": {"const": kind}, field: text()}));
    let deltas = [
        delta("thinking_delta", "thinking"),
        delta("text_delta", "text"),
        delta("input_json_delta", "partial_json"),
        delta("signature_delta", "signature"),
    ];
    let mut last = event("message_delta", json!({"delta": object(stop), "usage": usage}));
    last["properties"]["timings"] = json!({"type": "object"});
    last["properties"]["speculation"] = json!({"type": "object"});
    vec![
        event("message_start", json!({"message": reference("MessagesAnswer")})),
        event("content_block_start", json!({"index": count(), "content_block": reference("MessagesBlock")})),
        event("content_block_delta", json!({"index": count(), "delta": any_of(&deltas)})),
        event("content_block_stop", json!({"index": count()})),
        last,
        event("message_stop", json!({})),
        event("ping", json!({})),
        reference("MessagesError"),
    ]
}
