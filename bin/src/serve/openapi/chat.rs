//! What chats and completions are made of.

use serde_json::{Value, json};

use super::{any_of, count, list, nullable, object, object_and, reference, text, tool_name};

pub(super) fn components() -> Value {
    let small = |high: i64| nullable(json!({"type": "integer", "minimum": 0, "maximum": high}));
    let suffix = || nullable(json!({"type": "integer", "minimum": 1, "maximum": 1024}));
    let part = object(json!({"type": {"enum": ["text"]}, "text": text()}));
    let content = any_of(&[text(), json!({"type": "array", "minItems": 1, "items": part})]);
    let said_call = object(json!({"id": text(), "type": {"const": "function"},
        "function": object(json!({"name": text(), "arguments": text()}))}));
    let common = || json!({"id": text(), "created": count(), "model": text()});
    let stats =
        || json!({"timings": {"type": "object"}, "speculation": {"type": "object"}, "system_fingerprint": text()});
    let answer = |prefix: &str, kind: &str, choice: Value| {
        let mut fields = common();
        fields["id"]["pattern"] = format!("^{prefix}-").into();
        fields["object"] = json!({ "const": kind });
        fields["choices"] = json!({"type": "array", "minItems": 1, "items": choice});
        fields["usage"] = usage();
        object_and(fields, stats())
    };
    let chunk = |kind: &str, choice: Value| {
        let mut fields = common();
        fields["object"] = json!({ "const": kind });
        fields["choices"] = list(choice);
        let mut more = stats();
        more["usage"] = nullable(reference("Usage"));
        object_and(fields, more)
    };
    let ended = || json!({"stop_reason": {"type": ["string", "integer", "null"]}, "token_ids": list(count())});
    let reasons = json!({"enum": ["stop", "length", "tool_calls", "function_call"]});
    let logprobs = || json!({"type": ["object", "null"]});
    let message = object_and(
        json!({"role": {"const": "assistant"}, "content": nullable(text()), "refusal": {"type": "null"}}),
        json!({"reasoning_content": text(), "tool_calls": {"type": "array", "minItems": 1, "items": reference("ToolCall")},
            "function_call": object(json!({"name": text(), "arguments": text()}))}),
    );
    let delta = json!({"type": "object", "properties": {"role": {"const": "assistant"}, "content": text(),
        "reasoning_content": text(), "tool_calls": list(object(json!({"index": count()}))), "function_call": {"type": "object"}}});
    json!({
        "Usage": usage(),
        "Message": any_of(&[
            object_and(json!({"role": {"enum": ["system", "developer", "user"]}, "content": content}), json!({"name": nullable(text())})),
            object_and(json!({"role": {"const": "assistant"}, "content": content}), json!({"name": nullable(text()),
                "reasoning_content": nullable(text()), "tool_calls": nullable(list(said_call.clone()))})),
            object_and(json!({"role": {"const": "assistant"}, "tool_calls": {"type": "array", "minItems": 1, "items": said_call}}),
                json!({"content": nullable(content.clone()), "reasoning_content": nullable(text())})),
            object(json!({"role": {"const": "tool"}, "tool_call_id": text(), "content": content})),
        ]),
        "Function": object_and(json!({"name": tool_name()}), json!({"description": nullable(text()),
            "parameters": nullable(json!({"type": "object"})), "strict": nullable(json!({"type": "boolean"}))})),
        "CustomTool": object_and(json!({"name": tool_name()}), json!({"description": nullable(text()),
            "format": nullable(any_of(&[object(json!({"type": {"const": "text"}})),
                object(json!({"type": {"const": "grammar"}, "grammar": reference("ToolGrammar")}))]))})),
        "ToolGrammar": object(json!({"syntax": {"enum": ["lark", "gbnf", "regex"]}, "definition": text()})),
        "Tool": any_of(&[
            object(json!({"type": {"const": "function"}, "function": reference("Function")})),
            object(json!({"type": {"const": "custom"}, "custom": reference("CustomTool")})),
        ]),
        "ToolCall": any_of(&[
            object(json!({"id": text(), "type": {"const": "function"}, "function": object(json!({"name": text(), "arguments": text()}))})),
            object(json!({"id": text(), "type": {"const": "custom"}, "custom": object(json!({"name": text(), "input": text()}))})),
        ]),
        "Speculative": {"type": "object", "additionalProperties": false, "properties": {
            "strategy": nullable(json!({"enum": ["off", "mtp", "ngram-suffix", "mtp-suffix", "default"]})),
            "mtp_tokens": small(1024), "suffix_tokens": small(1024), "suffix_min": suffix(), "suffix_max": suffix(),
            "window": nullable(json!({"type": "object", "additionalProperties": false, "properties": {
                "policy": nullable(json!({"enum": ["fixed", "adaptive"]})), "initial": small(1024), "min": small(1024), "max": small(1024)}})),
            "on_unavailable": nullable(json!({"enum": ["error", "fallback"]}))}},
        "ChatCompletion": answer("chatcmpl", "chat.completion",
            object_and(json!({"index": count(), "message": message, "logprobs": logprobs(), "finish_reason": reasons}), ended())),
        "ChatCompletionChunk": chunk("chat.completion.chunk",
            object_and(json!({"index": count(), "delta": delta, "logprobs": logprobs(), "finish_reason": nullable(reasons.clone())}), ended())),
        "Completion": answer("cmpl", "text_completion",
            object_and(json!({"index": count(), "text": text(), "logprobs": logprobs(), "finish_reason": {"enum": ["stop", "length"]}}), ended())),
        "CompletionChunk": chunk("text_completion",
            object_and(json!({"index": count(), "text": text(), "logprobs": logprobs(), "finish_reason": {"enum": ["stop", "length", null]}}), ended())),
    })
}

fn usage() -> Value {
    object_and(
        json!({"prompt_tokens": count(), "completion_tokens": count(), "total_tokens": count()}),
        json!({"prompt_tokens_details": object(json!({"cached_tokens": count(), "cache_write_tokens": count()})),
            "completion_tokens_details": object(json!({"reasoning_tokens": count()}))}),
    )
}
