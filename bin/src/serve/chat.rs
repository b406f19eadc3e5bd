//! `/v1/chat/completions`: a body becomes parameters and a conversation.
//!
//! **Tools.** Definitions and past calls are checked and rendered into the prompt. What the model writes is returned
//! as plain content: this version has no parser for call markup, so it returns no `tool_calls`. Whatever would have to
//! be enforced on calls (`tool_choice` other than `auto` and `none`, `strict`, `parallel_tool_calls: false`) is
//! refused.
//!
//! **Reasoning.** Thinking text is part of the content (`reasoning_format: none`); the formats that split it off are
//! refused. Switches reach the template; budgets are refused.

use engine::ids::TokenId;
use serde_json::{Map, Value};

use crate::serve::error::{ApiError, quote};
use crate::serve::fields::Fields;
use crate::serve::json::type_name;
use crate::serve::limits;
use crate::serve::messages::{self, Normalised};
use crate::serve::model::{Caps, Conversation, RenderError, Rendered, TextModel};

/// The conversation part of a chat body.
#[derive(Debug)]
pub(crate) struct Chat {
    normalised: Normalised,
    tools: Option<Value>,
    kwargs: Map<String, Value>,
    add_generation_prompt: bool,
    /// The text that the answer continues.
    continues: Option<String>,
}

impl Chat {
    /// Reads messages, tools and template switches.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn read(body: &Fields<'_, '_>, caps: &Caps) -> Result<Self, ApiError> {
        let messages = body.list("messages")?.ok_or_else(|| ApiError::missing("messages"))?;
        let normalised = messages::normalise(messages, caps)?;
        let tools = read_tools(body, caps)?;
        read_tool_choice(body, tools.is_some())?;
        match body.string("reasoning_format")? {
            None | Some("none" | "auto") => {}
            Some(other) => {
                let message = format!("{} is not supported; this version returns thinking as content", quote(other));
                return Err(ApiError::unsupported_value("reasoning_format", message));
            }
        }
        let kwargs = read_kwargs(body, caps)?;
        let continues = body.boolean("continue_final_message")?.unwrap_or(false) || normalised.prefix;
        let opens = body.boolean("add_generation_prompt")?;
        if continues && opens == Some(true) {
            let message = "it excludes continue_final_message";
            return Err(ApiError::invalid_value("add_generation_prompt", message));
        }
        let mut normalised = normalised;
        let continues = match (continues, normalised.open_end.take()) {
            (false, _) => None,
            (true, Some(text)) => {
                // The turn is opened by the template as for any answer; the text follows as the model's own.
                if let Value::Array(messages) = &mut normalised.messages {
                    messages.pop();
                }
                Some(text)
            }
            (true, None) => {
                let message = "the last message is not an assistant message with nothing but content";
                return Err(ApiError::invalid_value("continue_final_message", message));
            }
        };
        let add_generation_prompt = opens.unwrap_or(true);
        Ok(Self { normalised, tools, kwargs, add_generation_prompt, continues })
    }

    /// Renders and tokenizes. A prompt that is sure to have `n_ctx` tokens or more is refused without being tokenized.
    ///
    /// # Errors
    /// `template_error` with the template's own message; `context_length_exceeded`.
    pub(crate) fn render(&self, model: &dyn TextModel, n_ctx: usize) -> Result<Rendered, ApiError> {
        let too_long = |least| ApiError::context_length_at_least(least, n_ctx, "messages");
        if !model.caps().chat {
            return Err(ApiError::template("the model file has no chat template; use /v1/completions"));
        }
        let conversation = Conversation {
            messages: &self.normalised.messages,
            tools: self.tools.as_ref(),
            add_generation_prompt: self.add_generation_prompt,
            kwargs: &self.kwargs,
        };
        let mut rendered = model.render(&conversation, n_ctx).map_err(|error| match error {
            RenderError::Template(message) => ApiError::template(&message),
            RenderError::TooLong(least) => too_long(least),
        })?;
        if let Some(text) = &self.continues {
            let least = rendered.tokens.len() + model.ids_min(text.len());
            if least >= n_ctx {
                return Err(too_long(least));
            }
            rendered.tokens.extend(model.encode(text, false, false));
            rendered.text.push_str(text);
            rendered.open_tag = None;
        }
        if rendered.tokens.is_empty() {
            return Err(ApiError::template("the rendered prompt is empty"));
        }
        Ok(rendered)
    }
}

/// The prompt that a chat completion of these messages and nothing else would have.
///
/// # Errors
/// The message that such a request would be answered with.
pub(crate) fn prompt(messages: Vec<Value>, text: &dyn TextModel) -> Result<Vec<TokenId>, String> {
    let mut body = Map::new();
    body.insert("messages".to_owned(), Value::Array(messages));
    let rendered = Chat::read(&Fields::body(&body), &text.caps()).and_then(|chat| chat.render(text, usize::MAX));
    rendered.map(|rendered| rendered.tokens).map_err(|error| error.message)
}

fn read_tools(body: &Fields<'_, '_>, caps: &Caps) -> Result<Option<Value>, ApiError> {
    let Some(list) = body.list("tools")?.filter(|list| !list.is_empty()) else { return Ok(None) };
    if list.len() > limits::TOOLS {
        return Err(ApiError::invalid_value("tools", format!("more than {} tools", limits::TOOLS)));
    }
    let mut names: Vec<&str> = Vec::with_capacity(list.len());
    for (i, item) in list.iter().enumerate() {
        let prefix = format!("tools[{i}].");
        let Some(map) = item.as_object() else {
            return Err(ApiError::invalid_type(&format!("tools[{i}]"), "object", type_name(item)));
        };
        let tool = Fields::nested(map, &prefix);
        match tool.string("type")? {
            Some("function") => {}
            None => return Err(ApiError::missing(&tool.path("type"))),
            Some(other) => {
                let message = format!("tools of type {} are not supported", quote(other));
                return Err(ApiError::unsupported_value(&tool.path("type"), message));
            }
        }
        let Some(function) = tool.object("function")? else { return Err(ApiError::missing(&tool.path("function"))) };
        let inner = tool.path("function.");
        let function = Fields::nested(function, &inner);
        let name = function.string("name")?.ok_or_else(|| ApiError::missing(&function.path("name")))?;
        let valid =
            (1..=128).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
        if !valid {
            let message = "1 to 128 letters, digits, '_', '.' or '-'";
            return Err(ApiError::invalid_value(&function.path("name"), message));
        }
        if names.contains(&name) {
            return Err(ApiError::invalid_value(&function.path("name"), format!("{} stands twice", quote(name))));
        }
        function.string("description")?;
        function.object("parameters")?;
        if function.boolean("strict")? == Some(true) {
            return Err(ApiError::unsupported_parameter(&function.path("strict")));
        }
        names.push(name);
    }
    if !caps.tools {
        return Err(ApiError::tools_unsupported());
    }
    Ok(Some(Value::Array(list.clone())))
}

fn read_tool_choice(body: &Fields<'_, '_>, tools: bool) -> Result<(), ApiError> {
    const PATH: &str = "tool_choice";
    let forced = match body.get(PATH) {
        None => None,
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" | "none" => None,
            "required" => Some("'required'"),
            other => return Err(ApiError::invalid_value(PATH, format!("{} is unknown", quote(other)))),
        },
        Some(Value::Object(choice)) => match Fields::nested(choice, "tool_choice.").string("type")? {
            Some("function" | "custom") => Some("the choice of one tool"),
            Some("allowed_tools") => Some("'allowed_tools'"),
            Some(other) => {
                return Err(ApiError::invalid_value("tool_choice.type", format!("{} is unknown", quote(other))));
            }
            None => return Err(ApiError::missing("tool_choice.type")),
        },
        Some(other) => return Err(ApiError::invalid_type(PATH, "string or object", type_name(other))),
    };
    if let Some(forced) = forced {
        let message = match tools {
            true => {
                format!("{forced} is not supported: this version cannot make a model call a tool; use 'auto' or 'none'")
            }
            false => format!("{forced} needs tools, and the request has none"),
        };
        return Err(match tools {
            true => ApiError::unsupported_value(PATH, message),
            false => ApiError::invalid_value(PATH, message),
        });
    }
    if tools && body.boolean("parallel_tool_calls")? == Some(false) {
        return Err(ApiError::unsupported_parameter("parallel_tool_calls"));
    }
    Ok(())
}

fn read_kwargs(body: &Fields<'_, '_>, caps: &Caps) -> Result<Map<String, Value>, ApiError> {
    const RESERVED: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];
    let mut kwargs = body.object("chat_template_kwargs")?.cloned().unwrap_or_default();
    if kwargs.len() > limits::TEMPLATE_KWARGS {
        let message = format!("more than {} keys", limits::TEMPLATE_KWARGS);
        return Err(ApiError::invalid_value("chat_template_kwargs", message));
    }
    if let Some(name) = RESERVED.into_iter().find(|name| kwargs.contains_key(*name)) {
        return Err(ApiError::invalid_value(&format!("chat_template_kwargs.{name}"), "this name is reserved"));
    }
    if let Some(on) = body.boolean("enable_thinking")? {
        kwargs.insert("enable_thinking".to_owned(), on.into());
    }
    match body.string("reasoning_effort")? {
        None => {}
        Some("none") => {
            kwargs.insert("enable_thinking".to_owned(), false.into());
        }
        Some(effort @ ("minimal" | "low" | "medium" | "high" | "xhigh" | "max")) => {
            // A template that does not read it would need a token budget for the small efforts.
            if !caps.reasoning_effort && matches!(effort, "minimal" | "low" | "medium") {
                let message = "the chat template does not read it, and thinking budgets are not supported";
                return Err(ApiError::unsupported_value("reasoning_effort", message));
            }
            kwargs.insert("reasoning_effort".to_owned(), effort.into());
        }
        Some(other) => {
            return Err(ApiError::invalid_value("reasoning_effort", format!("{} is unknown", quote(other))));
        }
    }
    if let Some(value) = kwargs.get("enable_thinking").filter(|v| !v.is_boolean()) {
        return Err(ApiError::invalid_type("chat_template_kwargs.enable_thinking", "boolean", type_name(value)));
    }
    Ok(kwargs)
}
