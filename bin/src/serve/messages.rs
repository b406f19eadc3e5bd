//! Messages of a client -> messages of a template: one content string each, roles the template knows, results tied to
//! calls. Nothing is blanked or dropped with a success status.

use std::collections::{BTreeMap, HashMap, HashSet};

use engine_io::trace::{self, Tool, ToolCall, Turn};
use serde_json::{Map, Value, json};

use crate::serve::error::{ApiError, quote};
use crate::serve::fields::Fields;
use crate::serve::json::{self, type_name};
use crate::serve::limits;
use crate::serve::model::Caps;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

/// A message in the form this module works on.
struct Message {
    role: Role,
    content: String,
    reasoning: Option<String>,
    name: Option<String>,
    calls: Vec<Call>,
    /// Of a tool message: the call it answers and where it stood.
    answers: Option<String>,
    index: usize,
    /// `prefix: true`: the answer continues this message.
    prefix: bool,
}

struct Call {
    id: String,
    name: String,
    /// JSON text of an object.
    text: String,
    value: Map<String, Value>,
}

/// Messages ready for the template.
#[derive(Debug)]
pub(crate) struct Normalised {
    pub messages: Value,
    /// The last message asked to be continued.
    pub prefix: bool,
    /// The last message's content, if it is an assistant's with nothing but content.
    pub open_end: Option<String>,
}

/// Normalises `messages`.
///
/// # Errors
/// 400 naming the message and part at fault.
pub(crate) fn normalise(messages: &[Value], caps: &Caps) -> Result<Normalised, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid_value("messages", "at least one message is needed"));
    }
    if messages.len() > limits::MESSAGES {
        return Err(ApiError::invalid_value("messages", format!("more than {} messages", limits::MESSAGES)));
    }
    let read = messages.iter().enumerate().map(|(i, m)| read(i, m, caps)).collect::<Result<Vec<_>, _>>()?;
    let folded = fold_systems(read, caps);
    let merged = merge_neighbours(folded, caps);
    let ordered = order_results(merged)?;
    let last = ordered.last();
    let prefix = last.is_some_and(|m| m.prefix);
    let open = |m: &&Message| m.role == Role::Assistant && m.calls.is_empty() && m.reasoning.is_none();
    let open_end = last.filter(open).map(|m| m.content.clone());
    Ok(Normalised { messages: ordered.iter().map(|m| render(m, caps)).collect(), prefix, open_end })
}

/// The messages as turns of a record, in the client's order and as the client sent them; of thoughts that stand apart
/// from the content nothing is left. Messages that [`normalise`] refuses are left out.
pub(crate) fn turns(messages: &[Value]) -> Vec<Turn> {
    let turn = |Message { role, content, reasoning, calls, answers, name, .. }| {
        let calls = calls.into_iter().map(|Call { id, name, text, .. }| ToolCall { id, name, arguments: text });
        let tool = Tool { calls: calls.collect(), call_id: answers, name };
        let role = match role {
            Role::System | Role::Developer => trace::Role::System,
            Role::User => trace::Role::User,
            Role::Assistant => trace::Role::Assistant,
            Role::Tool => trace::Role::Tool,
        };
        // A name of others than tools has no place in a record.
        let known = !tool.calls.is_empty() || tool.call_id.is_some();
        Turn { tool: known.then_some(tool), reasoning, ..Turn::new(role, content) }
    };
    messages.iter().enumerate().filter_map(|(i, m)| read(i, m, &Caps::default()).ok()).map(turn).collect()
}

fn read(index: usize, value: &Value, caps: &Caps) -> Result<Message, ApiError> {
    let at = format!("messages[{index}]");
    let Some(map) = value.as_object() else {
        return Err(ApiError::invalid_type(&at, "object", type_name(value)));
    };
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
    let mut content = match fields.get("content") {
        Some(content) => read_content(content, &fields.path("content"), role, &mut reasoning)?,
        None if role == Role::Assistant && (!calls.is_empty() || reasoning.is_some()) => String::new(),
        None => return Err(ApiError::missing(&fields.path("content"))),
    };
    if let (Role::Assistant, None, Some(tags)) = (role, &reasoning, caps.think)
        && let Some((thought, rest)) = split_thinking(&content, tags)
    {
        (reasoning, content) = (Some(thought), rest);
    }
    let answers = match role {
        Role::Tool => fields.string("tool_call_id")?.or(fields.string("name")?).map(str::to_owned),
        _ => None,
    };
    let continues = role == Role::Assistant && fields.boolean("prefix")?.unwrap_or(false);
    let name = if role == Role::Tool { None } else { fields.string("name")?.map(str::to_owned) };
    Ok(Message { role, content, reasoning, name, calls, answers, index, prefix: continues })
}

/// Content that begins with thinking in the model's own tags, as a client sends it back that got it so.
fn split_thinking(content: &str, (start, end): (&str, &str)) -> Option<(String, String)> {
    let (thought, rest) = content.trim_start().strip_prefix(start)?.split_once(end)?;
    Some((thought.trim_matches('\n').to_owned(), rest.trim_start_matches('\n').to_owned()))
}

fn read_content(content: &Value, at: &str, role: Role, reasoning: &mut Option<String>) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        other => return Err(ApiError::invalid_type(at, "string or list of parts", type_name(other))),
    };
    if parts.is_empty() && role == Role::User {
        return Err(ApiError::invalid_value(at, "a user message needs content"));
    }
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        let prefix = format!("{at}[{i}].");
        let Some(map) = part.as_object() else {
            return Err(ApiError::invalid_type(prefix.trim_end_matches('.'), "object", type_name(part)));
        };
        let fields = Fields::nested(map, &prefix);
        let kind = fields.string("type")?.ok_or_else(|| ApiError::missing(&fields.path("type")))?;
        let required =
            |name: &str| fields.string(name).and_then(|s| s.ok_or_else(|| ApiError::missing(&fields.path(name))));
        match kind {
            "text" | "input_text" | "output_text" => text.push_str(required("text")?),
            "refusal" if role == Role::Assistant => text.push_str(required("refusal")?),
            "thinking" | "reasoning" if role == Role::Assistant => {
                let thought = fields.string("thinking")?.or(fields.string("text")?).unwrap_or_default();
                reasoning.get_or_insert_default().push_str(thought);
            }
            "redacted_thinking" if role == Role::Assistant => {}
            other => {
                let message = format!("content parts of type {} are not supported", quote(other));
                return Err(ApiError::message_rule("unsupported_content_part", &fields.path("type"), message));
            }
        }
    }
    Ok(text)
}

fn read_calls(fields: &Fields<'_, '_>) -> Result<Vec<Call>, ApiError> {
    let Some(list) = fields.list("tool_calls")? else { return Ok(Vec::new()) };
    let mut calls: Vec<Call> = Vec::with_capacity(list.len());
    let mut ids = HashSet::with_capacity(list.len());
    for (i, item) in list.iter().enumerate() {
        let prefix = fields.path(&format!("tool_calls[{i}]."));
        let Some(map) = item.as_object() else {
            return Err(ApiError::invalid_type(prefix.trim_end_matches('.'), "object", type_name(item)));
        };
        let call = Fields::nested(map, &prefix);
        let Some(function) = call.object("function")? else { return Err(ApiError::missing(&call.path("function"))) };
        let inner_prefix = call.path("function.");
        let function = Fields::nested(function, &inner_prefix);
        let name = function.string("name")?.ok_or_else(|| ApiError::missing(&function.path("name")))?;
        let (text, value) = match function.get("arguments") {
            None => ("{}".to_owned(), Map::new()),
            Some(Value::Object(map)) => (Value::Object(map.clone()).to_string(), map.clone()),
            Some(Value::String(text)) if text.is_empty() => ("{}".to_owned(), Map::new()),
            Some(Value::String(text)) => match json::parse_object(text.as_bytes()) {
                Ok(map) => (text.clone(), map),
                Err(error) => {
                    let path = function.path("arguments");
                    return Err(ApiError::message_rule("invalid_tool_arguments", &path, error.message));
                }
            },
            Some(other) => {
                return Err(ApiError::invalid_type(&function.path("arguments"), "JSON text", type_name(other)));
            }
        };
        let id = call.string("id")?.map_or_else(|| format!("call_{i}"), str::to_owned);
        if !ids.insert(id.clone()) {
            return Err(ApiError::invalid_value(&call.path("id"), format!("{} names two calls", quote(&id))));
        }
        calls.push(Call { id, name: name.to_owned(), text, value });
    }
    Ok(calls)
}

/// Developer becomes system where the template does not know it, leading systems become one, later ones stay where
/// the template takes them and otherwise become user text in place: folding them to the front would change every
/// earlier prefix.
fn fold_systems(messages: Vec<Message>, caps: &Caps) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len());
    let mut reminder: Option<String> = None;
    for mut message in messages {
        if message.role == Role::Developer && !caps.developer {
            message.role = Role::System;
        }
        let systemic = matches!(message.role, Role::System | Role::Developer);
        if systemic && out.last().is_none_or(|m| out.len() == 1 && m.role == message.role) {
            match out.first_mut() {
                Some(first) => join(&mut first.content, &message.content),
                None => out.push(message),
            }
        } else if systemic && !caps.system_anywhere {
            let wrapped = format!("<system-reminder>\n{}\n</system-reminder>", message.content);
            join(reminder.get_or_insert_default(), &wrapped);
        } else {
            if let Some(mut text) = reminder.take() {
                if message.role == Role::User {
                    join(&mut text, &message.content);
                    message.content = text;
                } else {
                    out.push(user(text, message.index));
                }
            }
            out.push(message);
        }
    }
    if let Some(text) = reminder {
        let index = out.last().map_or(0, |m| m.index + 1);
        out.push(user(text, index));
    }
    out
}

fn user(content: String, index: usize) -> Message {
    Message {
        role: Role::User,
        content,
        reasoning: None,
        name: None,
        calls: Vec::new(),
        answers: None,
        index,
        prefix: false,
    }
}

fn join(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str(more);
}

fn merge_neighbours(messages: Vec<Message>, caps: &Caps) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match out.last_mut() {
            Some(last) if last.role == message.role && message.role == Role::Assistant => {
                join(&mut last.content, &message.content);
                if let Some(more) = message.reasoning {
                    join(last.reasoning.get_or_insert_default(), &more);
                }
                last.calls.extend(message.calls);
                last.prefix = message.prefix;
            }
            Some(last) if last.role == message.role && message.role == Role::User && caps.alternation => {
                join(&mut last.content, &message.content);
            }
            _ => out.push(message),
        }
    }
    out
}

/// The calls of the last assistant message, and the results found for them so far.
#[derive(Default)]
struct Open {
    ids: Vec<String>,
    /// Place of each id; of equal ids the first counts.
    rank: HashMap<String, usize>,
    /// By rank.
    results: BTreeMap<usize, Message>,
}

impl Open {
    fn of(calls: &[Call]) -> Self {
        let ids: Vec<String> = calls.iter().map(|c| c.id.clone()).collect();
        let mut rank = HashMap::with_capacity(ids.len());
        for (i, id) in ids.iter().enumerate() {
            rank.entry(id.clone()).or_insert(i);
        }
        Self { ids, rank, results: BTreeMap::new() }
    }

    fn answer(&mut self, message: Message) -> Result<(), ApiError> {
        let at = format!("messages[{}].tool_call_id", message.index);
        let Some(id) = &message.answers else { return Err(ApiError::missing(&at)) };
        let Some(&rank) = self.rank.get(id) else {
            let text = format!("{} is no call of the preceding assistant message", quote(id));
            return Err(ApiError::message_rule("orphan_tool_result", &at, text));
        };
        if self.results.contains_key(&rank) {
            let text = format!("{} was answered already", quote(id));
            return Err(ApiError::message_rule("duplicate_tool_result", &at, text));
        }
        self.results.insert(rank, message);
        Ok(())
    }

    /// The results in call order, once every call has one; `index` is where the next message stands.
    fn close(self, index: usize) -> Result<impl Iterator<Item = Message>, ApiError> {
        match self.ids.iter().find(|id| !self.results.contains_key(&self.rank[*id])) {
            Some(id) => {
                let text = format!("the call {} has no result before this message", quote(id));
                Err(ApiError::message_rule("missing_tool_result", &format!("messages[{index}]"), text))
            }
            None => Ok(self.results.into_values()),
        }
    }
}

/// Ties results to calls and sorts them into call order.
fn order_results(messages: Vec<Message>) -> Result<Vec<Message>, ApiError> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len());
    let mut open = Open::default();
    let end = messages.last().map_or(0, |m| m.index + 1);
    for message in messages {
        if message.role == Role::Tool {
            open.answer(message)?;
            continue;
        }
        let next = Open::of(&message.calls);
        out.extend(std::mem::replace(&mut open, next).close(message.index)?);
        out.push(message);
    }
    // Calls at the very end may be unanswered only if nothing follows; a template would show them without a result.
    if !open.results.is_empty() {
        out.extend(open.close(end)?);
    }
    Ok(out)
}

fn render(message: &Message, caps: &Caps) -> Value {
    let role = match message.role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut out = json!({"role": role, "content": message.content});
    if let Some(name) = &message.name {
        out["name"] = name.as_str().into();
    }
    if message.role == Role::Assistant {
        // Always a string: templates that find none split the content themselves.
        out["reasoning_content"] = message.reasoning.as_deref().unwrap_or_default().into();
    }
    if let Some(id) = &message.answers {
        out["tool_call_id"] = id.as_str().into();
    }
    if !message.calls.is_empty() {
        let call = |call: &Call| {
            let arguments =
                if caps.string_arguments { Value::from(call.text.as_str()) } else { Value::Object(call.value.clone()) };
            json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
        };
        out["tool_calls"] = message.calls.iter().map(call).collect();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let printed = match normalise(messages.as_array().unwrap(), &STRICT) {
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
    fn thinking_in_tags_is_split_off_once() {
        let thought = |content: &str| {
            let list = [json!({"role": "user", "content": "u"}), json!({"role": "assistant", "content": content})];
            let message = normalise(&list, &STRICT).unwrap().messages[1].clone();
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
    fn results_of_very_many_calls() {
        const COUNT: usize = 16_000;
        let ids: Vec<String> = (0..COUNT).map(|i| format!("c{i}")).collect();
        let mut messages = vec![call(&ids.iter().map(String::as_str).collect::<Vec<_>>())];
        messages.extend(ids.iter().rev().map(|id| json!({"role": "tool", "tool_call_id": id, "content": id})));
        let normalised = normalise(&messages, &STRICT).unwrap();
        let results = &normalised.messages.as_array().unwrap()[1..];
        assert!(results.iter().map(|m| m["content"].as_str().unwrap()).eq(&ids));
    }

    #[test]
    fn arguments_become_mappings() {
        let parsed = normalise(&[call(&["x"])], &STRICT).unwrap();
        assert_eq!(parsed.messages[0]["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
        let text = normalise(&[call(&["x"])], &Caps { string_arguments: true, ..STRICT }).unwrap();
        assert_eq!(text.messages[0]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
        for bad in ["[1]", "{\"a\":1,\"a\":2}", "{", "x"] {
            let message = json!([{"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": bad}}]}]);
            check(message, "invalid_tool_arguments messages[0].tool_calls[0].function.arguments");
        }
    }
}
