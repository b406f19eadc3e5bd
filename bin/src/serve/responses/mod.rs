//! `/v1/responses`: a body becomes a conversation, and what of it the answer repeats.

mod items;

use engine_io::trace::Turn;
use serde_json::{Map, Value, json};

use crate::serve::api::{Api, HostedTools};
use crate::serve::chat::{self, Asked, Chat, Words};
use crate::serve::constrain::format;
use crate::serve::conversation::{self, Message, Role};
use crate::serve::error::{ApiError, quote};
use crate::serve::fields::Fields;
use crate::serve::json::{real, type_name};
use crate::serve::limits;
use crate::serve::model::{Caps, ToolStyle};
use crate::serve::params::{Names, Params};
use crate::serve::schema::Class::{self, Honoured, Noted, Refused};
use crate::serve::schema::{beyond_disabled, filled, is_false, never, not_one, plain_tier, truthy};
use crate::serve::tools::{self, Listed, Paths, Tools};

/// How the fields that all dialects have are called here.
pub(crate) const NAMES: Names = Names {
    max_tokens: &["max_output_tokens"],
    stop: "stop",
    stop_most: None,
    stream_options: &["include_obfuscation"],
    progress: false,
};

const WORDS: Words = Words { messages: "input", call_id: "call_" };

const PATHS: Paths = Paths { choice: "tool_choice", single: "parallel_tool_calls", strict: "strict" };

/// What `include` may name: log-probabilities of the text, and thinking that only a provider can read, of which there is
/// none here.
const LOGPROBS: &str = "message.output_text.logprobs";
const ENCRYPTED: &str = "reasoning.encrypted_content";

/// Most tokens that a request without input may ask for: it wants to know whether somebody answers.
const PROBE_TOKENS: u32 = 16;

/// Kinds of tools that run at a provider; a trailing `*` is a prefix.
const HOSTED: [&str; 12] = [
    "web_search*",
    "file_search",
    "code_interpreter",
    "image_generation",
    "computer*",
    "mcp",
    "local_shell",
    "shell",
    "apply_patch",
    "namespace",
    "tool_search",
    "programmatic_tool_calling",
];

/// Its own fields.
pub(crate) const FIELDS: &[(&str, Class)] = &[
    ("input", Honoured),
    ("instructions", Honoured),
    ("max_output_tokens", Honoured),
    ("stop", Honoured),
    ("stream_options", Honoured),
    ("top_logprobs", Honoured),
    ("text", Honoured),
    ("reasoning", Honoured),
    ("tools", Honoured),
    ("tool_choice", Honoured),
    ("parallel_tool_calls", Honoured),
    ("include", Honoured),
    ("chat_template_kwargs", Honoured),
    ("enable_thinking", Honoured),
    ("prompt_cache_options", Honoured),
    ("n", Refused(not_one)),
    // The client keeps the conversation.
    ("previous_response_id", Refused(filled)),
    ("conversation", Refused(filled)),
    ("prompt", Refused(filled)),
    ("context_management", Refused(filled)),
    ("background", Refused(truthy)),
    ("truncation", Refused(beyond_disabled)),
    ("metadata", Noted(never)),
    ("store", Noted(is_false)),
    ("user", Noted(never)),
    ("service_tier", Noted(plain_tier)),
    ("safety_identifier", Noted(never)),
    ("max_tool_calls", Noted(never)),
    ("moderation", Noted(never)),
    ("image", Noted(never)),
    ("access_programs", Noted(never)),
    ("background_options", Noted(never)),
    // What they ask for has no place among the events of this dialect.
    ("return_progress", Noted(is_false)),
    ("return_tokens", Noted(is_false)),
    ("return_token_ids", Noted(is_false)),
];

/// A request of this dialect.
pub(crate) struct Read {
    /// `None`: there is nothing to answer; somebody wants to know whether the server is there.
    pub chat: Option<Chat>,
    /// Alternatives to show beside every token; `None`: no log-probabilities.
    pub logprobs: Option<u32>,
    /// The answer that this one is to be compared with.
    pub previous: Option<String>,
    /// Fields within others that have no effect.
    pub ignored: Vec<String>,
    /// Codes of `X-Engine-Warnings`.
    pub warnings: Vec<String>,
}

/// Reads everything but what all dialects have.
///
/// # Errors
/// 400 naming the field.
pub(crate) fn read(body: &Fields<'_, '_>, max_tokens: Option<u32>, caps: &Caps, api: &Api) -> Result<Read, ApiError> {
    if max_tokens == Some(0) {
        return Err(ApiError::invalid_value("max_output_tokens", "0 is below 1"));
    }
    let top = body.integer("top_logprobs", 0..=limits::TOP_LOGPROBS as i64)?.map(|n| n as u32);
    let includes = includes(body)?;
    let wanted = includes.contains(&LOGPROBS);
    let logprobs = top.filter(|top| *top > 0).or(wanted.then_some(0));
    let mut tools = read_tools(body, api.hosted_tools)?;
    let warnings = tools.dropped.drain(..).map(|kind| format!("tools_dropped:{kind}")).collect();
    let tools = tools::offered(tools, caps)?;
    let asked = read_asked(body, caps, api)?;
    let chat = match read_input(body)? {
        Input::Nothing if max_tokens.is_some_and(|most| most <= PROBE_TOKENS) => None,
        Input::Nothing => {
            return Err(ApiError::invalid_value("input", "at least one item is needed"));
        }
        Input::Messages(messages, end) => {
            let normalised = conversation::normalise(messages, &end, caps, api)?;
            Some(Chat::of(normalised, tools, asked, WORDS).prefilled(api))
        }
    };
    let given = |name: &str, key: &str| body.get(name).and_then(|v| v.get(key)).is_some_and(|v| !v.is_null());
    let others = includes.iter().any(|name| ![LOGPROBS, ENCRYPTED].contains(name));
    let ignored = [
        (others, "include"),
        (given("reasoning", "summary"), "reasoning.summary"),
        (given("reasoning", "generate_summary"), "reasoning.generate_summary"),
        (given("text", "verbosity"), "text.verbosity"),
        (given("prompt_cache_options", "mode"), "prompt_cache_options.mode"),
        (given("prompt_cache_options", "ttl"), "prompt_cache_options.ttl"),
    ];
    let ignored = ignored.into_iter().filter(|(given, _)| *given).map(|(_, name)| name.to_owned()).collect();
    let previous = match body.object("prompt_cache_options")? {
        None => None,
        Some(map) => Fields::nested(map, "prompt_cache_options.").string("comparison_response_id")?.map(str::to_owned),
    };
    Ok(Read { chat, logprobs, previous, ignored, warnings })
}

/// The turns of a recorded request, and the fields of a chat that would have its prompt.
pub(crate) fn recorded(body: &Map<String, Value>, api: &Api) -> (Vec<Turn>, Map<String, Value>) {
    // It was read once, so it can be read.
    let body = Fields::body(body);
    let messages = match read_input(&body) {
        Ok(Input::Messages(messages, _)) => messages,
        _ => Vec::new(),
    };
    let think = Some(("", ""));
    let caps = Caps { tools: true, reasoning_effort: true, think, tool_style: ToolStyle::Xml, ..Caps::default() };
    let tools = read_tools(&body, HostedTools::Drop).and_then(|tools| tools::offered(tools, &caps)).ok().flatten();
    let asked = read_asked(&body, &caps, api).unwrap_or_default();
    let turns: Vec<Turn> = messages.into_iter().map(conversation::turn).collect();
    let fields = chat::as_chat(tools, asked, &turns, api);
    (turns, fields)
}

/// What of a request its answer repeats.
pub(crate) fn echo(body: &Fields<'_, '_>, params: &Params) -> Map<String, Value> {
    let given = |name: &str| body.get(name).cloned().unwrap_or_default();
    let within = |name: &str, key: &str| body.get(name).and_then(|v| v.get(key)).cloned().unwrap_or_default();
    let number = |name: &str, effective: f32| body.get(name).cloned().unwrap_or_else(|| real(effective));
    let format = Some(within("text", "format")).filter(|v| !v.is_null()).unwrap_or_else(|| json!({"type": "text"}));
    let ours = |tool: &&Value| matches!(tool.get("type").and_then(Value::as_str), Some("function" | "custom"));
    let tools: Vec<Value> =
        body.get("tools").and_then(Value::as_array).into_iter().flatten().filter(ours).cloned().collect();
    let echo = json!({
        "instructions": given("instructions"),
        "max_output_tokens": given("max_output_tokens"),
        "max_tool_calls": given("max_tool_calls"),
        "metadata": body.get("metadata").cloned().unwrap_or_else(|| json!({})),
        "parallel_tool_calls": body.get("parallel_tool_calls").cloned().unwrap_or(Value::Bool(true)),
        "previous_response_id": null,
        "prompt_cache_key": given("prompt_cache_key"),
        "reasoning": {"effort": within("reasoning", "effort"), "summary": null},
        "safety_identifier": given("safety_identifier"),
        "service_tier": "default",
        "store": false,
        "temperature": number("temperature", params.sampling.temperature),
        "text": {"format": format, "verbosity": within("text", "verbosity")},
        "tool_choice": body.get("tool_choice").cloned().unwrap_or_else(|| "auto".into()),
        "tools": tools,
        "top_logprobs": body.get("top_logprobs").cloned().unwrap_or_else(|| 0.into()),
        "top_p": number("top_p", params.sampling.top_p),
        "truncation": "disabled",
        "user": given("user"),
    });
    let Value::Object(echo) = echo else { unreachable!("built as an object") };
    echo
}

/// What a request brings.
enum Input {
    Nothing,
    /// And the path of what would follow the last.
    Messages(Vec<Message>, String),
}

fn read_input(body: &Fields<'_, '_>) -> Result<Input, ApiError> {
    let instructions = body.string("instructions")?.filter(|text| !text.is_empty());
    let mut messages: Vec<Message> =
        instructions.map(|text| Message::new(Role::System, text, "instructions")).into_iter().collect();
    match body.get("input") {
        None => Err(ApiError::missing("input")),
        Some(Value::String(text)) => {
            messages.push(Message::new(Role::User, text.as_str(), "input"));
            Ok(Input::Messages(messages, "input".to_owned()))
        }
        Some(Value::Array(list)) if list.is_empty() => Ok(Input::Nothing),
        Some(Value::Array(list)) => {
            conversation::check_length(list, "input")?;
            items::read(list, &mut messages)?;
            Ok(Input::Messages(messages, format!("input[{}]", list.len())))
        }
        Some(other) => Err(ApiError::invalid_type("input", "string or list of items", type_name(other))),
    }
}

/// Names of `include`.
fn includes<'a>(body: &Fields<'a, '_>) -> Result<Vec<&'a str>, ApiError> {
    let name = |(i, value): (usize, &'a Value)| {
        value.as_str().ok_or_else(|| ApiError::invalid_type(&format!("include[{i}]"), "string", type_name(value)))
    };
    body.list("include")?.into_iter().flatten().enumerate().map(name).collect()
}

fn read_tools(body: &Fields<'_, '_>, hosted: HostedTools) -> Result<Tools, ApiError> {
    let mut tools = match body.list("tools")? {
        None => Tools::default(),
        Some(list) => tools::read_list("tools", list, |tool| read_tool(tool, hosted))?,
    };
    tools.paths = PATHS;
    tools::choose(&mut tools, PATHS.choice, body.get(PATHS.choice))?;
    tools.single |= body.boolean("parallel_tool_calls")? == Some(false);
    Ok(tools)
}

fn read_tool(tool: &Fields<'_, '_>, hosted: HostedTools) -> Result<Listed, ApiError> {
    let is_hosted = |kind: &str| {
        HOSTED.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => kind.starts_with(prefix),
            None => kind == *pattern,
        })
    };
    match tool.string("type")?.ok_or_else(|| ApiError::missing(&tool.path("type")))? {
        "function" => {
            Ok(Listed::Tool(Box::new(tools::function(tool, "parameters")?), tools::definition(tool, "parameters")))
        }
        "custom" => tools::custom(tool),
        kind if is_hosted(kind) => tools::hosted(tool, kind, hosted),
        other => {
            let message = format!("tools of type {} are not supported", quote(other));
            Err(ApiError::unsupported_value(&tool.path("type"), message))
        }
    }
}

/// What `reasoning` and `text` ask for.
fn read_asked(body: &Fields<'_, '_>, caps: &Caps, api: &Api) -> Result<Asked, ApiError> {
    let mut kwargs = chat::plain_kwargs(body, api)?;
    let (mut budget, mut format, mut keep_thoughts) = (None, None, false);
    if let Some(map) = body.object("reasoning")? {
        let reasoning = Fields::nested(map, "reasoning.");
        reasoning.only(&["effort", "summary", "generate_summary", "context", "mode"])?;
        budget = chat::put_effort(&mut kwargs, reasoning.string("effort")?, "reasoning.effort", caps, api)?;
        keep_thoughts = chat::keeps_thoughts(&reasoning, caps)?;
    }
    if let Some(map) = body.object("text")? {
        let text = Fields::nested(map, "text.");
        text.only(&["format", "verbosity"])?;
        text.string("verbosity")?;
        format = text.object("format")?.map(|map| format::object(map, "text.format")).transpose()?.flatten();
    }
    let format = format::either(format, body)?;
    Ok(Asked { kwargs, budget, format, keep_thoughts })
}

#[cfg(test)]
mod tests;
