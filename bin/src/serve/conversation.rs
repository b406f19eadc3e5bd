//! A conversation for a template: one content string a message, roles the template knows, results tied to calls. What a
//! dialect's own module has read becomes that here, by the same rules for all. Nothing is blanked or dropped with a
//! success status.

use std::collections::{BTreeMap, HashMap};

use engine_io::trace::{self, Tool, ToolCall, Turn};
use serde_json::{Map, Value, json};

use crate::serve::api::{Api, SystemFold, ToolResults};
use crate::serve::error::{ApiError, quote};
use crate::serve::fields::Fields;
use crate::serve::json::{self, type_name};
use crate::serve::limits;
use crate::serve::model::Caps;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

/// A message in the form this module works on.
#[derive(Debug)]
pub(crate) struct Message {
    pub role: Role,
    pub content: String,
    pub reasoning: Option<String>,
    pub name: Option<String>,
    pub calls: Vec<Call>,
    /// Of a result of a tool: the call it belongs to.
    pub answers: Option<Answers>,
    /// Path in the body, for errors.
    pub at: String,
    /// The answer continues this message.
    pub prefix: bool,
}

impl Message {
    pub(crate) fn new(role: Role, content: impl Into<String>, at: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning: None,
            name: None,
            calls: Vec::new(),
            answers: None,
            at: at.into(),
            prefix: false,
        }
    }
}

/// Which call a result belongs to.
#[derive(Debug)]
pub(crate) struct Answers {
    pub id: String,
    /// Path of the id in the body.
    pub at: String,
}

/// A call of a past turn.
#[derive(Debug)]
pub(crate) struct Call {
    pub id: String,
    pub name: String,
    /// JSON text of an object.
    pub text: String,
    pub value: Map<String, Value>,
}

impl Call {
    /// A call whose arguments are the JSON text of an object, or nothing.
    ///
    /// # Errors
    /// `invalid_tool_arguments` at `at`.
    pub(crate) fn of_text(id: String, name: &str, text: &str, at: &str) -> Result<Self, ApiError> {
        let (text, value) = match text {
            "" => ("{}".to_owned(), Map::new()),
            text => {
                let refused = |e: ApiError| ApiError::message_rule("invalid_tool_arguments", at, e.message);
                (text.to_owned(), json::parse_object(text.as_bytes()).map_err(refused)?)
            }
        };
        Ok(Self { id, name: name.to_owned(), text, value })
    }

    /// A call whose arguments are an object already.
    pub(crate) fn of_object(id: String, name: &str, value: Map<String, Value>) -> Self {
        Self { id, name: name.to_owned(), text: Value::Object(value.clone()).to_string(), value }
    }
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

/// Normalises messages; `end` is the path of what would follow the last.
///
/// # Errors
/// 400 naming the message at fault.
pub(crate) fn normalise(mut messages: Vec<Message>, end: &str, caps: &Caps, api: &Api) -> Result<Normalised, ApiError> {
    for message in &mut messages {
        if let (Role::Assistant, None, Some(tags)) = (message.role, &message.reasoning, caps.think)
            && let Some((thought, rest)) = split_thinking(&message.content, tags)
        {
            (message.reasoning, message.content) = (Some(thought), rest);
        }
    }
    let folded = fold_systems(messages, end, caps, api.system_fold)?;
    let merged = merge_neighbours(folded, caps);
    let ordered = match api.tool_results {
        ToolResults::Strict => order_results(merged, end)?,
        // What has moved may stand beside its like.
        ToolResults::Lenient => merge_neighbours(gather_results(merged, end)?, caps),
    };
    let last = ordered.last();
    let prefix = last.is_some_and(|m| m.prefix);
    let open = |m: &&Message| m.role == Role::Assistant && m.calls.is_empty() && m.reasoning.is_none();
    let open_end = last.filter(open).map(|m| m.content.clone());
    Ok(Normalised { messages: ordered.iter().map(|m| render(m, caps)).collect(), prefix, open_end })
}

/// A message as a turn of a record, as it was read.
pub(crate) fn turn(message: Message) -> Turn {
    let Message { role, content, reasoning, calls, answers, name, .. } = message;
    let calls = calls.into_iter().map(|Call { id, name, text, .. }| ToolCall { id, name, arguments: text });
    let tool = Tool { calls: calls.collect(), call_id: answers.map(|a| a.id), name };
    let role = match role {
        Role::System | Role::Developer => trace::Role::System,
        Role::User => trace::Role::User,
        Role::Assistant => trace::Role::Assistant,
        Role::Tool => trace::Role::Tool,
    };
    // A name of others than tools has no place in a record.
    let known = !tool.calls.is_empty() || tool.call_id.is_some();
    Turn { tool: known.then_some(tool), reasoning, ..Turn::new(role, content) }
}

/// The objects of a list of messages, items or blocks at `at`.
///
/// # Errors
/// `invalid_type` naming the one that is none.
pub(crate) fn objects<'a>(
    list: &'a [Value],
    at: &str,
) -> impl Iterator<Item = Result<(String, &'a Map<String, Value>), ApiError>> {
    list.iter().enumerate().map(move |(i, value)| match value {
        Value::Object(map) => Ok((format!("{at}[{i}]"), map)),
        other => Err(ApiError::invalid_type(&format!("{at}[{i}]"), "object", type_name(other))),
    })
}

/// Refuses an empty list of messages, and one that is too long.
///
/// # Errors
/// `invalid_value` at `at`.
pub(crate) fn check_length(list: &[Value], at: &str) -> Result<(), ApiError> {
    if list.is_empty() {
        return Err(ApiError::invalid_value(at, "at least one message is needed"));
    }
    if list.len() > limits::MESSAGES {
        return Err(ApiError::invalid_value(at, format!("more than {} messages", limits::MESSAGES)));
    }
    Ok(())
}

/// A content part that is not text.
pub(crate) fn unsupported_part(kind: &str, at: &str) -> ApiError {
    let message = format!("content parts of type {} are not supported", quote(kind));
    ApiError::message_rule("unsupported_content_part", at, message)
}

/// Content that begins with thinking in the model's own tags, as a client sends it back that got it so.
fn split_thinking(content: &str, (start, end): (&str, &str)) -> Option<(String, String)> {
    let (thought, rest) = content.trim_start().strip_prefix(start)?.split_once(end)?;
    Some((thought.trim_matches('\n').to_owned(), rest.trim_start_matches('\n').to_owned()))
}

/// Content as one text: a string, or a list of parts. Thinking among the parts of an assistant goes to `reasoning`.
///
/// # Errors
/// 400 naming the part at fault.
pub(crate) fn read_content(
    content: &Value,
    at: &str,
    role: Role,
    reasoning: &mut Option<String>,
) -> Result<String, ApiError> {
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
                return Err(unsupported_part(other, &fields.path("type")));
            }
        }
    }
    Ok(text)
}

/// Developer becomes system where the template does not know it, leading systems become one, later ones stay where
/// the template takes them and otherwise go where `fold` says: as user text in place, which changes no earlier prefix,
/// into the first, or nowhere.
fn fold_systems(messages: Vec<Message>, end: &str, caps: &Caps, fold: SystemFold) -> Result<Vec<Message>, ApiError> {
    let is_system = |message: &Message| matches!(message.role, Role::System | Role::Developer);
    let mut out: Vec<Message> = Vec::with_capacity(messages.len());
    let mut reminder: Option<String> = None;
    for mut message in messages {
        if message.role == Role::Developer && !caps.developer {
            message.role = Role::System;
        }
        let systemic = is_system(&message);
        if systemic && out.last().is_none_or(|m| out.len() == 1 && m.role == message.role) {
            match out.first_mut() {
                Some(first) => join(&mut first.content, &message.content),
                None => out.push(message),
            }
        } else if systemic && !caps.system_anywhere {
            match fold {
                SystemFold::User => {
                    let wrapped = format!("<system-reminder>\n{}\n</system-reminder>", message.content);
                    join(reminder.get_or_insert_default(), &wrapped);
                }
                SystemFold::First => match out.first_mut().filter(|first| is_system(first)) {
                    Some(first) => join(&mut first.content, &message.content),
                    None => out.insert(0, message),
                },
                SystemFold::Reject => {
                    let text = "this server takes system messages at the beginning only, as the chat template does";
                    return Err(ApiError::invalid_value(&message.at, text));
                }
            }
        } else {
            if let Some(mut text) = reminder.take() {
                if message.role == Role::User {
                    join(&mut text, &message.content);
                    message.content = text;
                } else {
                    out.push(Message::new(Role::User, text, message.at.as_str()));
                }
            }
            out.push(message);
        }
    }
    if let Some(text) = reminder {
        out.push(Message::new(Role::User, text, end));
    }
    Ok(out)
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
        let Some(Answers { id, at }) = &message.answers else { unreachable!("a result names its call") };
        let Some(&rank) = self.rank.get(id) else {
            let text = format!("{} is no call of the preceding assistant message", quote(id));
            return Err(ApiError::message_rule("orphan_tool_result", at, text));
        };
        if self.results.contains_key(&rank) {
            let text = format!("{} was answered already", quote(id));
            return Err(ApiError::message_rule("duplicate_tool_result", at, text));
        }
        self.results.insert(rank, message);
        Ok(())
    }

    /// The results in call order, once every call has one; `at` is where the next message stands.
    fn close(self, at: &str) -> Result<impl Iterator<Item = Message>, ApiError> {
        match self.ids.iter().find(|id| !self.results.contains_key(&self.rank[*id])) {
            Some(id) => {
                let text = format!("the call {} has no result before this message", quote(id));
                Err(ApiError::message_rule("missing_tool_result", at, text))
            }
            None => Ok(self.results.into_values()),
        }
    }

    /// The results in call order, an empty one for each call that has none.
    fn fill(mut self, at: &str) -> impl Iterator<Item = Message> {
        for (rank, id) in self.ids.into_iter().enumerate() {
            let answers = Some(Answers { id, at: at.to_owned() });
            self.results.entry(rank).or_insert_with(|| Message { answers, ..Message::new(Role::Tool, "", at) });
        }
        self.results.into_values()
    }
}

/// Ties results to calls and sorts them into call order.
///
/// # Errors
/// A result without its call, or a call without its result.
fn order_results(messages: Vec<Message>, end: &str) -> Result<Vec<Message>, ApiError> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len());
    let mut open = Open::default();
    for message in messages {
        if message.role == Role::Tool {
            open.answer(message)?;
            continue;
        }
        let next = Open::of(&message.calls);
        out.extend(std::mem::replace(&mut open, next).close(&message.at)?);
        out.push(message);
    }
    // Calls at the very end may be unanswered only if nothing follows; a template would show them without a result.
    if !open.results.is_empty() {
        out.extend(open.close(end)?);
    }
    Ok(out)
}

/// The same where a result may come late or not at all: what stands between calls and their results goes behind these,
/// and a call without one has an empty result.
fn gather_results(messages: Vec<Message>, end: &str) -> Result<Vec<Message>, ApiError> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len());
    let (mut open, mut between) = (Open::default(), Vec::new());
    for message in messages {
        match message.role {
            Role::Tool => open.answer(message)?,
            Role::Assistant => {
                let next = Open::of(&message.calls);
                out.extend(std::mem::replace(&mut open, next).fill(&message.at));
                out.append(&mut between);
                out.push(message);
            }
            _ => between.push(message),
        }
    }
    // As where they are strict: calls at the very end may be unanswered.
    if !open.results.is_empty() || !between.is_empty() {
        out.extend(open.fill(end));
        out.append(&mut between);
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
    if let Some(answers) = &message.answers {
        out["tool_call_id"] = answers.id.as_str().into();
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
