//! `/openapi.json`: the API as data. Request fields come from the tables of [`schema`](super::schema), each with the JSON
//! schema of its values; what is refused there is left out, and other fields are accepted and ignored.

use serde_json::{Map, Value, json};

use crate::serve::limits;
use crate::serve::schema::{self, Class};

/// What the values of an honoured field look like, whatever endpoint it belongs to. Null is absent, everywhere.
fn field(name: &str) -> Option<Value> {
    let int = |low: i64, high: i64| json!({"type": "integer", "minimum": low, "maximum": high});
    let real = |low: f64, high: f64| json!({"type": "number", "minimum": low, "maximum": high});
    let above = |high: f64| json!({"type": "number", "exclusiveMinimum": 0, "maximum": high});
    let any = |kind: &str| json!({"type": kind});
    Some(match name {
        "model" | "cache_salt" => json!({"type": "string", "maxLength": limits::CACHE_SALT}),
        "stream"
        | "ignore_eos"
        | "include_stop_str_in_output"
        | "logprobs"
        | "return_tokens"
        | "return_token_ids"
        | "cache_prompt"
        | "echo"
        | "parse_special"
        | "add_special_tokens"
        | "add_special"
        | "with_pieces"
        | "return_token_strs"
        | "include_reasoning"
        | "enable_thinking"
        | "add_generation_prompt"
        | "continue_final_message"
        | "parallel_tool_calls" => any("boolean"),
        "stream_options" => json!({"type": "object", "additionalProperties": false, "properties": {
            "include_usage": any("boolean"), "continuous_usage_stats": any("boolean"),
            "include_obfuscation": any("boolean")}}),
        "max_tokens" | "max_completion_tokens" | "min_tokens" => int(0, i64::from(u32::MAX)),
        "n_predict" => int(-1, i64::from(u32::MAX)),
        "n" | "best_of" => int(1, limits::CHOICES as i64),
        "temperature" => real(0.0, 2.0),
        "top_p" => above(1.0),
        "min_p" => real(0.0, 1.0),
        "top_k" => int(-1, i64::from(u32::MAX)),
        "repeat_penalty" | "repetition_penalty" => above(2.0),
        "repeat_last_n" => int(-1, i64::from(u32::MAX)),
        "frequency_penalty" | "presence_penalty" => real(-2.0, 2.0),
        "seed" => int(i64::MIN, i64::MAX),
        "sse_ping_interval" => int(-1, 86_400),
        "top_logprobs" => int(0, limits::TOP_LOGPROBS as i64),
        "stop" => {
            let one = json!({"type": "string", "minLength": 1, "maxLength": limits::STOP_BYTES});
            json!({"anyOf": [one, {"type": "array", "maxItems": limits::STOP_STRINGS, "items": one}]})
        }
        "stop_token_ids" => {
            json!({"type": "array", "maxItems": limits::STOP_TOKENS, "items": {"type": "integer", "minimum": 0}})
        }
        "logit_bias" => json!({"type": "object", "maxProperties": limits::LOGIT_BIAS,
            "additionalProperties": {"anyOf": [real(-100.0, 100.0), {"const": false}]},
            "propertyNames": {"pattern": "^[0-9]+$"}}),
        "speculative" => json!({"$ref": "#/components/schemas/Speculative"}),
        "messages" => {
            json!({"type": "array", "minItems": 1, "maxItems": limits::MESSAGES, "items": {"$ref": "#/components/schemas/Message"}})
        }
        "tools" => json!({"type": "array", "maxItems": limits::TOOLS, "items": {"$ref": "#/components/schemas/Tool"}}),
        "functions" => {
            json!({"type": "array", "maxItems": limits::TOOLS, "items": {"$ref": "#/components/schemas/Function"}})
        }
        "tool_choice" | "function_call" => json!({"anyOf": [{"type": "string"}, {"type": "object"}]}),
        "reasoning" => json!({"type": "object", "additionalProperties": false, "properties": {
            "effort": any("string"), "enabled": any("boolean"), "exclude": any("boolean"),
            "max_tokens": int(-1, i64::from(u32::MAX))}}),
        "thinking_budget" | "thinking_budget_tokens" | "reasoning_budget_tokens" | "thinking_token_budget" => {
            int(-1, i64::from(u32::MAX))
        }
        "reasoning_effort" => json!({"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max"]}),
        "reasoning_format" => json!({"enum": ["none", "deepseek", "deepseek-legacy", "auto"]}),
        "chat_template_kwargs" => json!({"type": "object", "maxProperties": limits::TEMPLATE_KWARGS}),
        "content" | "grammar" | "guided_regex" | "guided_grammar" | "regex" | "ebnf" => any("string"),
        "response_format" => json!({"type": "object", "required": ["type"], "properties": {
            "type": {"enum": ["text", "json_object", "json_schema", "regex", "choice", "grammar"]}}}),
        "json_schema" | "guided_json" | "structured_outputs" => any("object"),
        "guided_choice" => json!({"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}),
        "tokens" => json!({"type": "array", "items": {"type": "integer", "minimum": 0}}),
        "prompt" => {
            let ids = json!({"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}});
            let text = json!({"type": "string", "minLength": 1});
            let many =
                json!({"type": "array", "minItems": 1, "maxItems": limits::PROMPTS, "items": {"anyOf": [text, ids]}});
            json!({"anyOf": [text, ids, many]})
        }
        _ => return None,
    })
}

/// The same, or null.
fn nullable(schema: Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}

/// A body of fields. `logprobs` of a completion is a number.
fn body(own: &[(&str, Class)], common: &[(&str, Class)], required: &[&str]) -> Value {
    let mut properties = Map::new();
    let honoured = own.iter().chain(common).filter(|(_, class)| matches!(class, Class::Honoured));
    for (name, _) in honoured {
        let schema = field(name).unwrap_or_default();
        let value = if required.contains(name) { schema } else { nullable(schema) };
        properties.insert((*name).to_owned(), value);
    }
    json!({"type": "object", "properties": properties, "required": required})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn json_answer(description: &str, schema: Value) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

/// A POST endpoint: its body, its answer, the statuses that it may have besides.
fn post(summary: &str, request: Value, answer: Value, stream: bool, statuses: &[&str]) -> Value {
    let mut ok = json_answer("The answer", answer);
    if stream {
        ok["content"]["text/event-stream"] = json!({"schema": {"type": "object", "properties": {"data": {"type": "string"}},
            "required": ["data"]}});
    }
    let mut responses = Map::from_iter([("200".to_owned(), ok)]);
    for status in statuses {
        responses.insert((*status).to_owned(), json_answer("An error", reference("Error")));
    }
    json!({"post": {"summary": summary, "requestBody": {"required": true, "content": {"application/json": {"schema": request}}},
        "responses": responses}})
}

fn get(summary: &str, kind: &str, schema: Value, statuses: &[&str], parameters: Value) -> Value {
    let mut responses = Map::new();
    responses.insert("200".to_owned(), json!({"description": "The answer", "content": {kind: {"schema": schema}}}));
    for status in statuses {
        responses.insert((*status).to_owned(), json_answer("An error", reference("Error")));
    }
    json!({"get": {"summary": summary, "parameters": parameters, "responses": responses}})
}

/// Statuses of every endpoint that reads a body.
const BODY: [&str; 7] = ["400", "401", "405", "408", "413", "415", "503"];
/// ... and of those that wait for the engine.
const QUEUE: [&str; 9] = ["400", "401", "405", "408", "413", "415", "429", "500", "503"];

/// The whole description.
pub(crate) fn document() -> Value {
    let text = |name: &str| (name.to_owned(), nullable(field(name).unwrap_or_default()));
    let mut completion = body(schema::COMPLETIONS, schema::COMMON, &["prompt"]);
    completion["properties"]["logprobs"] =
        nullable(json!({"type": "integer", "minimum": 0, "maximum": limits::TOP_LOGPROBS}));
    let chat = body(schema::CHAT, schema::COMMON, &["messages"]);
    let tokenize: Map<String, Value> =
        ["content", "add_special", "add_special_tokens", "parse_special", "with_pieces", "return_token_strs"]
            .into_iter()
            .map(text)
            .collect();
    let ids = json!({"type": "object", "properties": {"tokens": field("tokens")}, "required": ["tokens"]});
    let status = json!({"type": "object", "properties": {"status": {"const": "ok"}}, "required": ["status"]});
    let none = json!([]);
    let id = json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}]);
    json!({
        "openapi": "3.1.0",
        "info": {"title": "engine-serve", "version": env!("CARGO_PKG_VERSION"),
            "description": "Speculative serving of GGUF models. Fields that are not listed are accepted and ignored, or refused with 400 where ignoring them would change what was asked for."},
        "components": {"schemas": components(), "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
        "paths": {
            "/health": get("Whether requests are taken", "application/json", status.clone(), &["503"], none.clone()),
            "/readyz": get("Whether a request would run now", "application/json", status.clone(), &["429", "503"], none.clone()),
            "/livez": get("Whether the server lives", "application/json", status, &["503"], none.clone()),
            "/version": get("The build", "application/json", json!({"type": "object", "required": ["version", "commit", "build"]}), &[], none.clone()),
            "/metrics": get("Counters in Prometheus text format 0.0.4", "text/plain", json!({"type": "string"}), &[], none.clone()),
            "/openapi.json": get("This document", "application/json", json!({"type": "object"}), &[], none.clone()),
            "/v1/models": get("The served model", "application/json", reference("Models"), &["401", "503"], none),
            "/v1/models/{id}": get("A model by its name", "application/json", reference("Model"), &["400", "401", "404", "414", "503"], id),
            "/v1/chat/completions": post("Answer a conversation", chat.clone(), reference("ChatCompletion"), true, &QUEUE),
            "/v1/completions": post("Continue a text", completion, reference("Completion"), true, &QUEUE),
            "/tokenize": post("Text to tokens", json!({"type": "object", "properties": tokenize, "required": ["content"]}),
                json!({"type": "object", "properties": {"tokens": {"type": "array"}, "count": {"type": "integer"},
                    "max_model_len": {"type": "integer"}}, "required": ["tokens", "count", "max_model_len"]}), false, &BODY),
            "/detokenize": post("Tokens to text", ids,
                json!({"type": "object", "properties": {"content": {"type": "string"}, "prompt": {"type": "string"}},
                    "required": ["content", "prompt"]}), false, &BODY),
            "/apply-template": post("A conversation to its prompt", chat,
                json!({"type": "object", "properties": {"prompt": {"type": "string"}, "tokens": {"type": "integer"},
                    "special_spans": {"type": "array"}}, "required": ["prompt", "tokens", "special_spans"]}), false, &BODY),
        },
    })
}

fn components() -> Value {
    let text = || json!({"type": "string"});
    let count = || json!({"type": "integer", "minimum": 0});
    let optional = |schema: Value| nullable(schema);
    let part = json!({"type": "object", "properties": {"type": {"enum": ["text"]}, "text": text()}, "required": ["type", "text"]});
    let small = |high: i64| nullable(json!({"type": "integer", "minimum": 0, "maximum": high}));
    let usage = json!({"type": "object", "properties": {"prompt_tokens": count(), "completion_tokens": count(), "total_tokens": count()},
        "required": ["prompt_tokens", "completion_tokens", "total_tokens"]});
    let call = json!({"type": "object", "properties": {"id": text(), "type": {"enum": ["function", "custom"]}}, "required": ["id", "type"]});
    json!({
        "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "object",
            "properties": {"message": text(), "type": text(), "param": optional(text()), "code": optional(text())},
            "required": ["message", "type", "param", "code"]}}},
        "Message": {"type": "object", "required": ["role", "content"], "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant"]},
            "content": {"anyOf": [text(), {"type": "array", "minItems": 1, "items": part}]},
            "name": optional(text())}},
        "Function": {"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}, "description": optional(text()),
            "parameters": optional(json!({"type": "object"})), "strict": optional(json!({"type": "boolean"}))}},
        "Tool": {"anyOf": [
            {"type": "object", "required": ["type", "function"], "properties": {"type": {"const": "function"}, "function": reference("Function")}},
            {"type": "object", "required": ["type", "custom"], "properties": {"type": {"const": "custom"}, "custom": reference("Function")}},
        ]},
        "Speculative": {"type": "object", "additionalProperties": false, "properties": {
            "strategy": optional(json!({"enum": ["off", "mtp", "ngram-suffix", "mtp-suffix", "default"]})),
            "mtp_tokens": small(1024), "suffix_tokens": small(1024),
            "suffix_min": optional(json!({"type": "integer", "minimum": 1, "maximum": 1024})),
            "suffix_max": optional(json!({"type": "integer", "minimum": 1, "maximum": 1024})),
            "window": optional(json!({"type": "object", "additionalProperties": false, "properties": {
                "policy": optional(json!({"enum": ["fixed", "adaptive"]})), "initial": small(1024), "min": small(1024), "max": small(1024)}})),
            "on_unavailable": optional(json!({"enum": ["error", "fallback"]}))}},
        "Model": {"type": "object", "required": ["id", "object", "created", "owned_by", "meta"], "properties": {
            "id": text(), "object": {"const": "model"}, "created": count(), "owned_by": text(), "meta": {"type": "object"}}},
        "Models": {"type": "object", "required": ["object", "data"], "properties": {"object": {"const": "list"},
            "data": {"type": "array", "items": reference("Model")}}},
        "ChatCompletion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage", "timings", "speculation"], "properties": {
            "id": {"type": "string", "pattern": "^chatcmpl-"}, "object": {"const": "chat.completion"}, "created": count(), "model": text(),
            "choices": {"type": "array", "minItems": 1, "items": {"type": "object",
                "required": ["index", "message", "logprobs", "finish_reason", "stop_reason"], "properties": {
                "index": count(), "finish_reason": {"enum": ["stop", "length", "tool_calls", "function_call"]},
                "message": {"type": "object", "required": ["role", "content", "refusal"], "properties": {
                    "role": {"const": "assistant"}, "content": optional(text()), "refusal": {"type": "null"},
                    "reasoning_content": text(), "tool_calls": {"type": "array", "minItems": 1, "items": call}}}}}},
            "usage": usage, "timings": {"type": "object"}, "speculation": {"type": "object"}}},
        "Completion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage", "timings", "speculation"], "properties": {
            "id": {"type": "string", "pattern": "^cmpl-"}, "object": {"const": "text_completion"}, "created": count(), "model": text(),
            "choices": {"type": "array", "minItems": 1, "items": {"type": "object",
                "required": ["index", "text", "logprobs", "finish_reason", "stop_reason"], "properties": {
                "index": count(), "text": text(), "finish_reason": {"enum": ["stop", "length"]}}}},
            "usage": usage, "timings": {"type": "object"}, "speculation": {"type": "object"}}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_honoured_field_is_described() {
        for (name, class) in schema::CHAT.iter().chain(schema::COMPLETIONS).chain(schema::COMMON) {
            if matches!(class, Class::Honoured) {
                assert!(field(name).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn every_reference_is_there() {
        fn walk(value: &Value, known: &Map<String, Value>) {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(to)) = map.get("$ref") {
                        let name = to.strip_prefix("#/components/schemas/").expect("a schema of this document");
                        assert!(known.contains_key(name), "{name}");
                    }
                    map.values().for_each(|v| walk(v, known));
                }
                Value::Array(list) => list.iter().for_each(|v| walk(v, known)),
                _ => {}
            }
        }
        let document = document();
        walk(&document, document["components"]["schemas"].as_object().unwrap());
    }
}
