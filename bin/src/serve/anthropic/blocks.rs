//! The messages of `/v1/messages`: text, thinking, uses of tools and their results.

use serde_json::{Map, Value};

use crate::serve::conversation::{self, Answers, Call, Message, Role, unsupported_part};
use crate::serve::error::{ApiError, quote};
use crate::serve::fields::Fields;
use crate::serve::json::type_name;

/// Reads all messages. One of the client may become several: results of tools stand before the rest.
///
/// # Errors
/// 400 naming the block at fault.
pub(super) fn read(list: &[Value]) -> Result<Vec<Message>, ApiError> {
    let mut out = Vec::with_capacity(list.len());
    for (i, message) in conversation::objects(list, "messages").enumerate() {
        let (at, map) = message?;
        read_message(&at, map, list.get(i + 1), &mut out)?;
    }
    Ok(out)
}

/// The texts of a list of text blocks.
///
/// # Errors
/// 400 naming the block that is none.
pub(super) fn texts<'a>(list: &'a [Value], at: &str) -> Result<Vec<&'a str>, ApiError> {
    let text = |block: Result<(String, &'a Map<String, Value>), ApiError>| {
        let (at, map) = block?;
        let prefix = format!("{at}.");
        let block = Fields::nested(map, &prefix);
        match required(&block, "type")? {
            "text" => required(&block, "text"),
            other => Err(unsupported_part(other, &block.path("type"))),
        }
    };
    conversation::objects(list, at).map(text).collect()
}

fn required<'a>(fields: &Fields<'a, '_>, name: &str) -> Result<&'a str, ApiError> {
    fields.string(name)?.ok_or_else(|| ApiError::missing(&fields.path(name)))
}

fn read_message(
    at: &str,
    map: &Map<String, Value>,
    next: Option<&Value>,
    out: &mut Vec<Message>,
) -> Result<(), ApiError> {
    let prefix = format!("{at}.");
    let fields = Fields::nested(map, &prefix);
    let role = match required(&fields, "role")? {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        other => {
            let message = format!("unknown role {}; 'user', 'assistant' or 'system'", quote(other));
            return Err(ApiError::invalid_value(&fields.path("role"), message));
        }
    };
    let content = fields.path("content");
    let blocks = match fields.get("content") {
        None => return Err(ApiError::missing(&content)),
        Some(Value::String(text)) => {
            out.push(Message::new(role, text.as_str(), at));
            return Ok(());
        }
        Some(Value::Array(blocks)) => blocks,
        Some(other) => return Err(ApiError::invalid_type(&content, "string or list of blocks", type_name(other))),
    };
    match role {
        Role::Assistant => out.push(read_turn(blocks, &content, at, next)?),
        Role::System => out.push(Message::new(role, texts(blocks, &content)?.concat(), at)),
        _ => read_user(blocks, &content, at, out)?,
    }
    Ok(())
}

/// Results of tools, then what the user says, if anything.
fn read_user(blocks: &[Value], content: &str, at: &str, out: &mut Vec<Message>) -> Result<(), ApiError> {
    if blocks.is_empty() {
        return Err(ApiError::invalid_value(content, "a user message needs content"));
    }
    let mut said: Option<String> = None;
    for block in conversation::objects(blocks, content) {
        let (place, map) = block?;
        let prefix = format!("{place}.");
        let block = Fields::nested(map, &prefix);
        match required(&block, "type")? {
            "text" => said.get_or_insert_default().push_str(required(&block, "text")?),
            "tool_result" => out.push(read_result(&block, &place)?),
            other => return Err(unsupported_part(other, &block.path("type"))),
        }
    }
    out.extend(said.map(|text| Message::new(Role::User, text, at)));
    Ok(())
}

fn read_result(block: &Fields<'_, '_>, at: &str) -> Result<Message, ApiError> {
    let id = required(block, "tool_use_id")?;
    let content = block.path("content");
    let text = match block.get("content") {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(list)) => texts(list, &content)?.concat(),
        Some(other) => {
            return Err(ApiError::invalid_type(&content, "string or list of text blocks", type_name(other)));
        }
    };
    let failed = block.boolean("is_error")?.unwrap_or(false);
    let text = if failed { format!("Error: {text}") } else { text };
    let answers = Answers { id: id.to_owned(), at: block.path("tool_use_id") };
    Ok(Message { answers: Some(answers), ..Message::new(Role::Tool, text, at) })
}

/// What the model has said. Text behind a call whose result follows would stand between the two.
fn read_turn(blocks: &[Value], content: &str, at: &str, next: Option<&Value>) -> Result<Message, ApiError> {
    let mut turn = Message::new(Role::Assistant, "", at);
    for block in conversation::objects(blocks, content) {
        let (place, map) = block?;
        let prefix = format!("{place}.");
        let block = Fields::nested(map, &prefix);
        match required(&block, "type")? {
            "text" => {
                if let Some(call) = turn.calls.iter().find(|call| is_answered(next, &call.id)) {
                    let message = format!("text stands between the tool use {} and its result", quote(&call.id));
                    return Err(ApiError::invalid_value(&place, message));
                }
                turn.content.push_str(required(&block, "text")?);
            }
            "thinking" => {
                let thought = required(&block, "thinking")?;
                // Thinking that was not shown comes back as nothing.
                if !thought.is_empty() {
                    turn.reasoning.get_or_insert_default().push_str(thought);
                }
            }
            "redacted_thinking" => {}
            "tool_use" => {
                let (id, name) = (required(&block, "id")?, required(&block, "name")?);
                if turn.calls.iter().any(|call| call.id == id) {
                    let message = format!("{} names two tool uses", quote(id));
                    return Err(ApiError::invalid_value(&block.path("id"), message));
                }
                let input = block.object("input")?.cloned().unwrap_or_default();
                turn.calls.push(Call::of_object(id.to_owned(), name, input));
            }
            other => return Err(unsupported_part(other, &block.path("type"))),
        }
    }
    Ok(turn)
}

/// Whether the next message has a result for a call.
fn is_answered(next: Option<&Value>, id: &str) -> bool {
    let blocks = next.and_then(|message| message.get("content")).and_then(Value::as_array);
    blocks.into_iter().flatten().any(|block| block.get("tool_use_id").and_then(Value::as_str) == Some(id))
}
