//! Every path of the server: its body, its answers, and the statuses that can come. The list of paths is that of the
//! routes; a route without an operation does not compile.

use serde_json::{Map, Value, json};

use super::{any_of, body, count, list, nullable, object, object_and, reference, text};
use super::{messages, responses};
use crate::serve::limits;
use crate::serve::routes::{self, Route};
use crate::serve::schema;
use crate::serve::shapes::Shape;

/// The tag of what is known and not implemented.
const NOT_IMPLEMENTED: &str = "not implemented";
/// Statuses of a request that is at fault before anybody knows what it is for.
const FRAME: [u16; 4] = [400, 408, 414, 431];
/// ... of one whose path is served, where every connection may find no room.
const SERVED: [u16; 2] = [417, 503];
/// ... of one that asks for a key.
const KEY: [u16; 1] = [401];
/// ... of one with a body.
const BODY: [u16; 5] = [405, 413, 415, 429, 500];

/// Errors by dialect.
pub(super) fn errors() -> Value {
    let one =
        |name: &str| json!({"description": "An error", "content": {"application/json": {"schema": reference(name)}}});
    json!({"Error": one("Error"), "MessagesError": one("MessagesError")})
}

/// Everything that is no part of a conversation.
pub(super) fn components() -> Value {
    let fields = json!({"message": text(), "type": text(), "param": nullable(text()), "code": nullable(text())});
    let more = json!({"n_prompt_tokens": count(), "n_ctx": count(), "progress": {"type": "number", "minimum": 0, "maximum": 1}});
    let model = json!({"id": text(), "object": {"const": "model"}, "type": {"const": "model"}, "created": count(),
        "created_at": text(), "owned_by": text(), "display_name": text(), "max_model_len": count(), "max_input_tokens": count(),
        "max_tokens": count(), "aliases": list(text()), "meta": {"type": "object"}});
    let left = || json!({"type": "integer", "minimum": -1});
    let slot = json!({"id": count(), "request": nullable(text()), "is_processing": {"type": "boolean"},
        "state": {"enum": ["free", "queued", "prefill", "decode", "stalled"]}, "n_ctx": count(), "n_prompt": count(),
        "n_prompt_done": count(), "n_cached": count(), "n_decoded": count(), "n_remain": left(),
        "speculative": {"type": "boolean"}, "strategy": nullable(text()), "window": count(),
        "accept_len": nullable(json!({"type": "number"})), "age_ms": count(),
        "next_token": object(json!({"has_next_token": {"type": "boolean"}, "n_remain": left(), "n_decoded": count()}))});
    let props = json!({"default_generation_settings": object(json!({"n_ctx": count(), "params": {"type": "object"}})),
        "total_slots": count(), "model_alias": text(), "model_ftype": text(), "model_path": text(),
        "chat_template": nullable(text()), "chat_template_caps": {"type": "object"},
        "modalities": object(json!({"vision": {"const": false}, "audio": {"const": false}})), "build_info": text(),
        "is_sleeping": {"const": false},
        "engine": object(json!({"limits": {"type": "object"}, "speculation": {"type": "object"},
            "tool_style": nullable(text()), "reasoning": nullable(object(json!({"start": text(), "end": text()}))),
            "special_token_policy": text()}))});
    json!({
        "Error": object(json!({"error": object_and(fields, more)})),
        "Status": object(json!({"status": {"const": "ok"}})),
        "Version": object(json!({"version": text(), "commit": text(), "build": text()})),
        "Model": object(model),
        "Models": object(json!({"object": {"const": "list"}, "has_more": {"const": false}, "first_id": nullable(text()),
            "last_id": nullable(text()), "data": list(reference("Model"))})),
        "Slots": list(object(slot)),
        "Props": object(props),
        "InputTokens": object(json!({"object": {"const": "response.input_tokens"}, "input_tokens": count()})),
        "MessagesTokens": object(json!({"input_tokens": count()})),
        "Tokenized": object_and(json!({"tokens": list(any_of(&[count(), object(json!({"id": count(),
            "piece": any_of(&[text(), list(count())])}))])), "count": count(), "max_model_len": count()}),
            json!({"token_strs": list(text())})),
        "Detokenized": object(json!({"content": text(), "prompt": text()})),
        "Applied": object(json!({"prompt": text(), "tokens": count(),
            "special_spans": list(json!({"type": "array", "minItems": 2, "maxItems": 2, "items": count()}))})),
    })
}

/// All paths. A route stands under the first of its names; the others are its `x-aliases`.
pub(super) fn all() -> Value {
    let mut out = Map::new();
    let mut own: Vec<(Route, &str)> = Vec::new();
    for (path, route) in routes::served() {
        match own.iter().find(|(known, _)| *known == route) {
            None => {
                let mut item = operation(&route);
                item["x-aliases"] = json!([]);
                out.insert(path.to_owned(), item);
                own.push((route, path));
            }
            Some((_, first)) => out[*first]["x-aliases"].as_array_mut().expect("a list").push(path.into()),
        }
    }
    out["/props"]["post"] = missing(Shape::OpenAi);
    let mut model = operation(&Route::Model(String::new()));
    model["parameters"] = parameter("id");
    model["x-aliases"] = json!(["/models/{id}"]);
    out.insert("/v1/models/{id}".to_owned(), model);
    for pattern in routes::missing() {
        let path = pattern.trim_end_matches('*');
        let item = || {
            let shape = Shape::of(path, Ok(()), false);
            json!({"get": missing(shape), "post": missing(shape)})
        };
        if !out.contains_key(path) && !routes::served().any(|(served, _)| served == path) {
            out.insert(path.to_owned(), item());
        }
        if pattern.ends_with('*') {
            let mut below = item();
            below["delete"] = below["get"].clone();
            below["parameters"] = parameter("below");
            out.insert(format!("{path}/{{below}}"), below);
        }
    }
    Value::Object(out)
}

fn parameter(name: &str) -> Value {
    json!([{"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}}])
}

/// An operation of a path that is known and not implemented.
fn missing(shape: Shape) -> Value {
    json!({"summary": "Not implemented", "tags": [NOT_IMPLEMENTED], "security": [], "responses": refused(shape, FRAME.into_iter().chain([501]))})
}

fn refused(shape: Shape, statuses: impl Iterator<Item = u16>) -> Map<String, Value> {
    let name = match shape {
        Shape::OpenAi => "Error",
        Shape::Anthropic => "MessagesError",
    };
    let one =
        |status: u16| (shape.status(status).to_string(), json!({"$ref": format!("#/components/responses/{name}")}));
    statuses.map(one).collect()
}

/// What a GET answers, and with which statuses it may refuse to.
fn get(route: &Route, summary: &str, media: &str, schema: Value, statuses: &[u16]) -> Value {
    let mut responses = Map::new();
    responses.insert("200".to_owned(), json!({"description": "The answer", "content": {media: {"schema": schema}}}));
    let key: &[u16] = if route.needs_key() { &KEY } else { &[] };
    let all = FRAME.iter().chain(&SERVED).chain(key).chain(statuses).copied();
    responses.extend(refused(Shape::OpenAi, all));
    json!({"get": {"summary": summary, "responses": responses}})
}

/// What a POST takes and answers; `event`: what its stream is made of.
fn post(route: &Route, summary: &str, request: Value, answer: Value, event: Option<Value>) -> Value {
    let mut content = json!({"application/json": {"schema": answer}});
    if let Some(event) = event {
        content["text/event-stream"] = json!({"schema": object(json!({"data": text()})), "x-event": event});
    }
    let mut responses = Map::new();
    responses.insert("200".to_owned(), json!({"description": "The answer", "content": content}));
    let shape = Shape::of(route.label(), Ok(()), false);
    let all = FRAME.iter().chain(&SERVED).chain(&KEY).chain(&BODY).copied();
    responses.extend(refused(shape, all));
    json!({"post": {"summary": summary, "responses": responses,
        "requestBody": {"required": true, "content": {"application/json": {"schema": request}}}}})
}

fn operation(route: &Route) -> Value {
    const JSON: &str = "application/json";
    let chat = || body(schema::CHAT_TABLES, super::field, &["messages"]);
    let messages = || body(schema::MESSAGES_TABLES, messages::field, &["messages"]);
    let responses = || body(schema::RESPONSES_TABLES, responses::field, &["input"]);
    let chunk = |name: &str| Some(any_of(&[reference(name), reference("Error")]));
    match route {
        Route::Health => get(route, "Whether requests are taken", JSON, reference("Status"), &[]),
        Route::Ready => get(route, "Whether a request would run now", JSON, reference("Status"), &[429]),
        Route::Live => get(route, "Whether the server lives", JSON, reference("Status"), &[]),
        Route::Version => get(route, "The build", JSON, reference("Version"), &[]),
        Route::Models => get(route, "The served model", JSON, reference("Models"), &[]),
        Route::Model(_) => get(route, "A model by its name", JSON, reference("Model"), &[404]),
        // A key is asked for where the server is told so.
        Route::Metrics => get(route, "Counters in Prometheus text format 0.0.4", "text/plain", text(), &KEY),
        Route::OpenApi => get(route, "This document", JSON, json!({"type": "object"}), &[]),
        Route::Page => get(route, "A page for people", "text/html", text(), &[]),
        Route::Props => get(route, "The server and its model", JSON, reference("Props"), &[]),
        Route::Slots => {
            let mut item = get(route, "What every slot is at", JSON, reference("Slots"), &[501]);
            item["get"]["parameters"] =
                json!([{"name": "fail_on_no_slot", "in": "query", "schema": {"enum": ["0", "1"]}}]);
            item
        }
        Route::Chat => {
            post(route, "Answer a conversation", chat(), reference("ChatCompletion"), chunk("ChatCompletionChunk"))
        }
        Route::Completions => {
            let mut request = body(schema::COMPLETIONS_TABLES, super::field, &["prompt"]);
            // A number here, and no switch.
            request["properties"]["logprobs"] =
                nullable(json!({"type": "integer", "minimum": 0, "maximum": limits::TOP_LOGPROBS}));
            post(route, "Continue a text", request, reference("Completion"), chunk("CompletionChunk"))
        }
        Route::Messages => post(
            route,
            "Answer a conversation",
            messages(),
            reference("MessagesAnswer"),
            Some(reference("MessagesEvent")),
        ),
        Route::Responses => post(
            route,
            "Answer a conversation",
            responses(),
            reference("ResponsesAnswer"),
            Some(reference("ResponsesEvent")),
        ),
        Route::CountChat => post(route, "Tokens of its prompt", chat(), reference("InputTokens"), None),
        Route::CountMessages => post(route, "Tokens of its prompt", messages(), reference("MessagesTokens"), None),
        Route::CountResponses => post(route, "Tokens of its prompt", responses(), reference("InputTokens"), None),
        Route::Tokenize => post(route, "Text to tokens", tokenize(), reference("Tokenized"), None),
        Route::Detokenize => post(
            route,
            "Tokens to text",
            object(json!({"tokens": super::field("tokens")})),
            reference("Detokenized"),
            None,
        ),
        Route::ApplyTemplate => post(route, "A conversation to its prompt", chat(), reference("Applied"), None),
    }
}

/// One of a text, a prompt and a conversation.
fn tokenize() -> Value {
    let switches = ["add_special", "add_special_tokens", "parse_special", "with_pieces", "return_token_strs"];
    let conversation = ["tools", "chat_template_kwargs", "add_generation_prompt"];
    let of = |name: &str| (name.to_owned(), super::field(name).map(nullable).unwrap_or_default());
    let more: Map<String, Value> = switches.into_iter().chain(conversation).map(of).collect();
    any_of(&[
        object_and(json!({"content": text()}), more.clone().into()),
        object_and(json!({"prompt": text()}), more.clone().into()),
        object_and(json!({"messages": super::field("messages")}), more.into()),
    ])
}
