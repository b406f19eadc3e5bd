//! The items of `/v1/responses`: messages, thinking, calls and what came of them.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::serve::conversation::{self, Answers, Call, Message, Role};
use crate::serve::error::{ApiError, quote};
use crate::serve::fields::Fields;
use crate::serve::json::type_name;

/// Reads all items.
///
/// # Errors
/// 400 naming the item and part at fault.
pub(super) fn read(list: &[Value], out: &mut Vec<Message>) -> Result<(), ApiError> {
    // Ids of the calls of the turn that is read: items are parts of a turn until another speaks.
    let mut ids: HashSet<&str> = HashSet::new();
    for item in conversation::objects(list, "input") {
        let (at, map) = item?;
        let prefix = format!("{at}.");
        let item = Fields::nested(map, &prefix);
        let Some(message) = read_item(&item, map, &at)? else { continue };
        if message.role != Role::Assistant {
            ids.clear();
        }
        if let (Some(call), Some(id)) = (message.calls.first(), item.string("call_id")?)
            && !ids.insert(id)
        {
            return Err(ApiError::invalid_value(&item.path("call_id"), format!("{} names two calls", quote(&call.id))));
        }
        out.push(message);
    }
    Ok(())
}

fn required<'a>(item: &Fields<'a, '_>, name: &str) -> Result<&'a str, ApiError> {
    item.string(name)?.ok_or_else(|| ApiError::missing(&item.path(name)))
}

/// `None`: nothing of it is left.
fn read_item(item: &Fields<'_, '_>, map: &Map<String, Value>, at: &str) -> Result<Option<Message>, ApiError> {
    Ok(Some(match item.string("type")? {
        Some("message") => read_message(item, at)?,
        None if item.get("role").is_some() => read_message(item, at)?,
        None => return Err(ApiError::missing(&item.path("type"))),
        Some("reasoning") => {
            let reasoning = read_reasoning(item)?;
            if reasoning.is_empty() {
                return Ok(None);
            }
            Message { reasoning: Some(reasoning), ..Message::new(Role::Assistant, "", at) }
        }
        Some("function_call") => {
            let (id, name) = (required(item, "call_id")?, required(item, "name")?);
            let arguments = item.string("arguments")?.unwrap_or_default();
            let call = Call::of_text(id.to_owned(), name, arguments, &item.path("arguments"))?;
            Message { calls: vec![call], ..Message::new(Role::Assistant, "", at) }
        }
        Some("custom_tool_call") => {
            let (id, name) = (required(item, "call_id")?, required(item, "name")?);
            let input = Map::from_iter([("input".to_owned(), required(item, "input")?.into())]);
            let call = Call::of_object(id.to_owned(), name, input);
            Message { calls: vec![call], ..Message::new(Role::Assistant, "", at) }
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let id = required(item, "call_id")?;
            let path = item.path("output");
            let output = map.get("output").filter(|v| !v.is_null()).ok_or_else(|| ApiError::missing(&path))?;
            let text = conversation::read_content(output, &path, Role::Tool, &mut None)?;
            let answers = Answers { id: id.to_owned(), at: item.path("call_id") };
            Message { answers: Some(answers), ..Message::new(Role::Tool, text, at) }
        }
        Some(other) => {
            let message = format!("items of type {} are not supported", quote(other));
            return Err(ApiError::message_rule("unsupported_item", &item.path("type"), message));
        }
    }))
}

fn read_message(item: &Fields<'_, '_>, at: &str) -> Result<Message, ApiError> {
    let role = match required(item, "role")? {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        "developer" => Role::Developer,
        other => {
            let message = format!("unknown role {}", quote(other));
            return Err(ApiError::invalid_value(&item.path("role"), message));
        }
    };
    let path = item.path("content");
    let content = item.get("content").ok_or_else(|| ApiError::missing(&path))?;
    let mut reasoning = None;
    let text = conversation::read_content(content, &path, role, &mut reasoning)?;
    Ok(Message { reasoning, ..Message::new(role, text, at) })
}

/// The thinking itself, or else its summary. Of what only a provider can read nothing is left.
fn read_reasoning(item: &Fields<'_, '_>) -> Result<String, ApiError> {
    let texts = |name: &str| {
        let path = item.path(name);
        let list = item.list(name)?.map(Vec::as_slice).unwrap_or_default();
        let text = |part: Result<(String, &Map<String, Value>), ApiError>| {
            let (at, map) = part?;
            let text = map.get("text").filter(|v| !v.is_null());
            let text = text.ok_or_else(|| ApiError::missing(&format!("{at}.text")))?;
            let wrong = || ApiError::invalid_type(&format!("{at}.text"), "string", type_name(text));
            text.as_str().map(str::to_owned).ok_or_else(wrong)
        };
        conversation::objects(list, &path).map(text).collect::<Result<Vec<String>, ApiError>>()
    };
    let (content, summary) = (texts("content")?.concat(), texts("summary")?.join("\n\n"));
    Ok(if content.is_empty() { summary } else { content })
}
