//! `/v1/messages`: a body becomes a conversation.

mod billing;
mod blocks;

use engine_io::trace::Turn;
use serde_json::{Map, Value};

use crate::serve::api::{Api, HostedTools};
use crate::serve::chat::{self, Asked, Chat, Words};
use crate::serve::constrain::format;
use crate::serve::conversation::{self, Message, Role};
use crate::serve::error::{ApiError, quote};
use crate::serve::fields::Fields;
use crate::serve::json::type_name;
use crate::serve::limits;
use crate::serve::model::{Caps, ToolStyle};
use crate::serve::params::Names;
use crate::serve::schema::Class::{self, Honoured, Noted, Refused};
use crate::serve::schema::{always, filled, never, not_one, plain_tier};
use crate::serve::tools::{self, Listed, Paths, ToolChoice, Tools};

/// How the fields that all dialects have are called here.
pub(crate) const NAMES: Names = Names {
    max_tokens: &["max_tokens"],
    stop: "stop_sequences",
    stop_most: Some(limits::STOP_SEQUENCES),
    stream_options: &[],
    progress: false,
};

const WORDS: Words = Words { messages: "messages", call_id: "toolu_" };

const PATHS: Paths = Paths { choice: "tool_choice", single: "tool_choice.disable_parallel_tool_use", strict: "strict" };

/// Its own fields.
pub(crate) const FIELDS: &[(&str, Class)] = &[
    ("messages", Honoured),
    ("max_tokens", Honoured),
    ("system", Honoured),
    ("stop_sequences", Honoured),
    ("tools", Honoured),
    ("tool_choice", Honoured),
    ("thinking", Honoured),
    ("thread", Honoured),
    ("output_config", Honoured),
    ("chat_template_kwargs", Honoured),
    ("enable_thinking", Honoured),
    ("diagnostics", Honoured),
    ("mcp_servers", Refused(filled)),
    ("container", Refused(always)),
    ("n", Refused(not_one)),
    ("metadata", Noted(never)),
    ("prompt_cache_options", Noted(never)),
    ("service_tier", Noted(plain_tier)),
    ("cache_control", Noted(never)),
    ("context_management", Noted(never)),
    ("betas", Noted(never)),
    ("speed", Noted(never)),
    ("inference_geo", Noted(never)),
    ("user_profile_id", Noted(never)),
    ("workspace_id", Noted(never)),
];

/// A request of this dialect.
pub(crate) struct Read {
    pub chat: Chat,
    /// Thinking is not shown.
    pub omits_thinking: bool,
    /// Codes of `X-Engine-Warnings`.
    pub warnings: Vec<String>,
    /// Whether diagnostics are wanted, and the answer that this one is to be compared with, if there is one.
    pub previous: Option<Option<String>>,
}

/// Reads everything but what all dialects have.
///
/// # Errors
/// 400 naming the field.
pub(crate) fn read(body: &Fields<'_, '_>, caps: &Caps, api: &Api) -> Result<Read, ApiError> {
    if body.get("thread").is_some_and(|thread| thread != false) {
        // Clients know this code, and send the whole conversation then.
        let message = "this server keeps no conversation; send all messages, and no thread";
        return Err(ApiError::message_rule("thread_unsupported_request", "thread", message));
    }
    let mut warnings = Vec::new();
    let list = body.list("messages")?.ok_or_else(|| ApiError::missing("messages"))?;
    conversation::check_length(list, "messages")?;
    let (mut messages, stripped) = read_system(body, api.strip_billing_line)?;
    messages.extend(blocks::read(list)?);
    if stripped {
        warnings.push("billing_line_stripped".to_owned());
    }
    let normalised = conversation::normalise(messages, &format!("messages[{}]", list.len()), caps, api)?;
    let mut tools = read_tools(body, api.hosted_tools)?;
    warnings.extend(tools.dropped.drain(..).map(|kind| format!("tools_dropped:{kind}")));
    let tools = tools::offered(tools, caps)?;
    let (asked, omits_thinking) = read_thinking(body, caps, api)?;
    let previous = match body.object("diagnostics")? {
        None => None,
        Some(map) => Some(Fields::nested(map, "diagnostics.").string("previous_message_id")?.map(str::to_owned)),
    };
    let chat = Chat::of(normalised, tools, asked, WORDS).prefilled(api);
    Ok(Read { chat, omits_thinking, warnings, previous })
}

/// The turns of a recorded request, and the fields of a chat that would have its prompt.
pub(crate) fn recorded(body: &Map<String, Value>, api: &Api) -> (Vec<Turn>, Map<String, Value>) {
    // It was read once, so it can be read.
    let body = Fields::body(body);
    let (mut messages, _) = read_system(&body, api.strip_billing_line).unwrap_or_default();
    messages.extend(body.list("messages").ok().flatten().and_then(|list| blocks::read(list).ok()).unwrap_or_default());
    let caps = Caps { tools: true, reasoning_effort: true, tool_style: ToolStyle::Xml, ..Caps::default() };
    let tools = read_tools(&body, HostedTools::Drop).and_then(|tools| tools::offered(tools, &caps)).ok().flatten();
    let asked = read_thinking(&body, &caps, api).map(|(asked, _)| asked).unwrap_or_default();
    let turns: Vec<Turn> = messages.into_iter().map(conversation::turn).collect();
    let fields = chat::as_chat(tools, asked, &turns, api);
    (turns, fields)
}

/// `system`, a text or blocks of text; whether a billing line was taken off.
fn read_system(body: &Fields<'_, '_>, strip_billing: bool) -> Result<(Vec<Message>, bool), ApiError> {
    let mut texts = match body.get("system") {
        None => return Ok((Vec::new(), false)),
        Some(Value::String(text)) => vec![text.as_str()],
        Some(Value::Array(list)) => blocks::texts(list, "system")?,
        Some(other) => {
            return Err(ApiError::invalid_type("system", "string or list of text blocks", type_name(other)));
        }
    };
    let mut stripped = false;
    if strip_billing {
        for text in &mut texts {
            if let Some(rest) = billing::strip(text) {
                (*text, stripped) = (rest, true);
            }
        }
    }
    texts.retain(|text| !text.is_empty());
    let message = (!texts.is_empty()).then(|| Message::new(Role::System, texts.join("\n\n"), "system"));
    Ok((message.into_iter().collect(), stripped))
}

fn read_tools(body: &Fields<'_, '_>, hosted: HostedTools) -> Result<Tools, ApiError> {
    let mut tools = match body.list("tools")? {
        None => Tools::default(),
        Some(list) => tools::read_list("tools", list, |tool| read_tool(tool, hosted))?,
    };
    tools.paths = PATHS;
    if let Some(map) = body.object("tool_choice")? {
        choose(&mut tools, &Fields::nested(map, "tool_choice."))?;
    }
    Ok(tools)
}

fn read_tool(tool: &Fields<'_, '_>, hosted: HostedTools) -> Result<Listed, ApiError> {
    match tool.string("type")? {
        None | Some("custom") => {
            Ok(Listed::Tool(Box::new(tools::function(tool, "input_schema")?), tools::definition(tool, "input_schema")))
        }
        Some(kind) => tools::hosted(tool, kind, hosted),
    }
}

fn choose(tools: &mut Tools, choice: &Fields<'_, '_>) -> Result<(), ApiError> {
    choice.only(&["type", "name", "disable_parallel_tool_use"])?;
    let kind = choice.string("type")?.ok_or_else(|| ApiError::missing(&choice.path("type")))?;
    tools.single = choice.boolean("disable_parallel_tool_use")?.unwrap_or(false);
    match kind {
        "auto" => {}
        "none" => tools.choice = ToolChoice::None,
        "any" => tools.choice = ToolChoice::Required,
        "tool" => {
            let name = choice.string("name")?.ok_or_else(|| ApiError::missing(&choice.path("name")))?;
            tools.allowed = Some(vec![tools::find(tools, name, &choice.path("name"))?]);
            (tools.choice, tools.single) = (ToolChoice::Required, true);
        }
        other => {
            let message = format!("{} is unknown; 'auto', 'any', 'tool' or 'none'", quote(other));
            return Err(ApiError::invalid_value(&choice.path("type"), message));
        }
    }
    if tools.choice == ToolChoice::Required && tools.list.is_empty() {
        return Err(ApiError::invalid_value("tool_choice", "it needs tools, and the request has none"));
    }
    Ok(())
}

/// What `thinking` and `output_config` ask for; whether thinking is left out of the answer.
fn read_thinking(body: &Fields<'_, '_>, caps: &Caps, api: &Api) -> Result<(Asked, bool), ApiError> {
    let mut kwargs = chat::plain_kwargs(body, api)?;
    let (mut budget, mut format, mut omits) = (None, None, false);
    if let Some(map) = body.object("thinking")? {
        let thinking = Fields::nested(map, "thinking.");
        thinking.only(&["type", "budget_tokens", "display"])?;
        match thinking.string("type")?.ok_or_else(|| ApiError::missing("thinking.type"))? {
            "disabled" => chat::think(&mut kwargs, false),
            "enabled" | "adaptive" | "between_tools" => chat::think(&mut kwargs, true),
            other => {
                let message =
                    format!("{} is unknown; 'enabled', 'disabled', 'adaptive' or 'between_tools'", quote(other));
                return Err(ApiError::invalid_value("thinking.type", message));
            }
        }
        budget = thinking.integer("budget_tokens", 0..=i64::MAX)?.map(chat::tokens);
        omits = match thinking.string("display")? {
            None | Some("summarized" | "full") => false,
            Some("omitted") => true,
            Some(other) => {
                let message = format!("{} is unknown; 'summarized', 'full' or 'omitted'", quote(other));
                return Err(ApiError::invalid_value("thinking.display", message));
            }
        };
    }
    if let Some(map) = body.object("output_config")? {
        let config = Fields::nested(map, "output_config.");
        format = config.object("format")?.map(|map| format::object(map, "output_config.format")).transpose()?.flatten();
        let effort = chat::put_effort(&mut kwargs, config.string("effort")?, "output_config.effort", caps, api)?;
        budget = budget.or(effort);
    }
    let format = format::either(format, body)?;
    Ok((Asked { kwargs, budget, format, keep_thoughts: false }, omits))
}

#[cfg(test)]
mod tests;
