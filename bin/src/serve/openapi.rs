//! `/openapi.json`: the API as data. Request fields come from the tables of [`schema`](super::schema), each with the JSON
//! schema of its values; what is refused there is left out, and other fields are accepted and ignored.

mod chat;
mod messages;
mod paths;
mod responses;

use serde_json::{Map, Value, json};

use crate::serve::limits;
use crate::serve::schema::Class;

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
        | "return_progress"
        | "timings_per_token"
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
            "include_obfuscation": any("boolean"), "include_speculation": any("boolean")}}),
        "max_tokens" | "max_completion_tokens" | "min_tokens" => int(0, i64::from(u32::MAX)),
        "n_predict" => int(-1, i64::from(u32::MAX)),
        "n" | "best_of" => int(1, limits::CHOICES as i64),
        "temperature" => real(0.0, 2.0),
        "top_p" | "typical_p" | "typ_p" => above(1.0),
        "min_p" => real(0.0, 1.0),
        "top_k" => int(-1, i64::from(u32::MAX)),
        "repeat_penalty" | "repetition_penalty" => above(2.0),
        "repeat_last_n" => int(-1, i64::from(u32::MAX)),
        "frequency_penalty" | "presence_penalty" => real(-2.0, 2.0),
        "seed" => int(i64::MIN, i64::MAX),
        "sse_ping_interval" => int(-1, 86_400),
        "priority" => int(-100, 100),
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
            "context": {"enum": ["auto", "current_turn", "all_turns"]},
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

/// A body of the honoured fields of these tables; `field` says what their values look like.
fn body(tables: &[&[(&str, Class)]], field: fn(&str) -> Option<Value>, required: &[&str]) -> Value {
    let mut properties = Map::new();
    let all = tables.iter().copied().flatten();
    for (name, _) in all.filter(|(_, class)| matches!(class, Class::Honoured)) {
        let schema = field(name).unwrap_or_default();
        let value = if required.contains(name) { schema } else { nullable(schema) };
        properties.insert((*name).to_owned(), value);
    }
    json!({"type": "object", "properties": properties, "required": required})
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// An object of these fields, all of them required.
fn object(properties: Value) -> Value {
    let required: Vec<&String> = properties.as_object().expect("an object of fields").keys().collect();
    json!({"type": "object", "required": required, "properties": properties})
}

/// The same with further fields that may be missing.
fn object_and(properties: Value, more: Value) -> Value {
    let mut out = object(properties);
    let Value::Object(more) = more else { unreachable!("an object of fields") };
    out["properties"].as_object_mut().expect("it was made of them").extend(more);
    out
}

/// The whole description.
pub(crate) fn document() -> Value {
    let schemas: Map<String, Value> =
        [chat::components(), messages::components(), responses::components(), paths::components()]
            .into_iter()
            .flat_map(|part| match part {
                Value::Object(map) => map,
                _ => unreachable!("built as an object"),
            })
            .collect();
    json!({
        "openapi": "3.1.0",
        "info": {"title": "engine-serve", "version": env!("CARGO_PKG_VERSION"),
            "description": "Speculative serving of GGUF models. Fields that are not listed are accepted and ignored, or refused with 400 where ignoring them would change what was asked for. Every path also works with a slash behind it and behind the server's prefix; x-aliases are further names of a path. Of a stream, x-event is what stands behind `data: `."},
        "components": {"schemas": schemas, "responses": paths::errors(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
        "paths": paths::all(),
    })
}

/// Shapes that several dialects have.
fn text() -> Value {
    json!({"type": "string"})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn any_of(list: &[Value]) -> Value {
    json!({ "anyOf": list })
}

/// The name of a tool.
fn tool_name() -> Value {
    json!({"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"})
}

#[cfg(test)]
mod tests;
