//! `/v1/chat/completions`: a body becomes parameters and a conversation.
//!
//! **Tools.** Definitions and past calls are checked and rendered into the prompt; what calls may be is compiled elsewhere.
//!
//! **Reasoning.** Thinking is told apart by the model's own marker tokens; where the vocabulary has none it stays content.
//! Switches reach the template; efforts that it does not read become budgets.

use engine::channels::Markers;
use engine::ids::TokenId;
use engine_io::trace::Turn;
use serde_json::{Map, Value, json};

use crate::serve::calls::Kinds;
use crate::serve::constrain::format::{self, Format};
use crate::serve::conversation::Normalised;
use crate::serve::error::{ApiError, quote};
use crate::serve::fields::Fields;
use crate::serve::json::type_name;
use crate::serve::limits;
use crate::serve::messages;
use crate::serve::model::{Caps, Conversation, RenderError, Rendered, TextModel, ToolStyle};
use crate::serve::parts::{ReasoningFormat, Shape};
use crate::serve::record::PROMPT_FIELDS;
use crate::serve::tools::{self, ToolChoice, Tools};

/// The conversation part of a chat body.
#[derive(Debug)]
pub(crate) struct Chat {
    normalised: Normalised,
    tools: Option<Tools>,
    reasoning: ReasoningFormat,
    asked: Asked,
    add_generation_prompt: bool,
    /// The text that the answer continues.
    continues: Option<String>,
    /// What its dialect calls things.
    words: Words,
}

/// What is asked of the answer, beside calls.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Template variables.
    pub kwargs: Map<String, Value>,
    /// Tokens of thinking before its end is forced.
    pub budget: Option<u32>,
    /// Form of the content.
    pub format: Option<Format>,
    /// Thoughts of old turns stay in the prompt.
    pub keep_thoughts: bool,
}

/// What a dialect calls things.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    /// The field that holds the messages.
    pub messages: &'static str,
    /// Beginning of the ids of calls.
    pub call_id: &'static str,
}

const WORDS: Words = Words { messages: "messages", call_id: "call_" };

impl Chat {
    /// Reads messages, tools and template switches.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn read(body: &Fields<'_, '_>, caps: &Caps) -> Result<Self, ApiError> {
        let messages = body.list("messages")?.ok_or_else(|| ApiError::missing("messages"))?;
        let normalised = messages::normalise(messages, caps)?;
        let tools = tools::read(body, caps)?;
        let reasoning = read_reasoning(body)?;
        let (kwargs, effort_budget) = read_kwargs(body, caps)?;
        let budget = read_budget(body)?.or(effort_budget);
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
        let keep_thoughts = match body.object("reasoning")? {
            None => false,
            Some(map) => keeps_thoughts(&Fields::nested(map, "reasoning."), caps)?,
        };
        let asked = Asked { kwargs, budget, format: format::read(body)?, keep_thoughts };
        let chat = Self::of(normalised, tools, asked, WORDS);
        Ok(Self { reasoning, add_generation_prompt: opens.unwrap_or(true), continues, ..chat })
    }

    /// A conversation of any dialect, with an answer to come.
    pub(crate) fn of(normalised: Normalised, tools: Option<Tools>, asked: Asked, words: Words) -> Self {
        let (reasoning, add_generation_prompt, continues) = (ReasoningFormat::Apart, true, None);
        Self { normalised, tools, reasoning, asked, add_generation_prompt, continues, words }
    }

    /// The messages as the template sees them.
    pub(crate) fn messages(&self) -> &Value {
        &self.normalised.messages
    }

    /// What else has a part in the prompt.
    pub(crate) fn switches(&self) -> Value {
        json!([self.asked.kwargs, self.asked.keep_thoughts])
    }

    /// The field that holds the messages.
    pub(crate) fn field(&self) -> &'static str {
        self.words.messages
    }

    /// Whether calls are answered as `function_call`.
    pub(crate) fn is_legacy(&self) -> bool {
        self.tools.as_ref().is_some_and(|tools| tools.legacy)
    }

    /// How answers are put together, and the marker tokens that the engine has to look for; `thinks`: the prompt ends
    /// inside of thinking.
    pub(crate) fn channels(&self, caps: &Caps, thinks: bool) -> (Shape, Option<Markers>) {
        let tools = self.tools.as_ref();
        let style = if tools.is_some() { caps.tool_style } else { ToolStyle::None };
        let listed = tools.map(|tools| tools.list.as_slice()).unwrap_or_default();
        let shape = Shape {
            reasoning: self.reasoning,
            think: caps.think,
            style,
            kinds: Kinds::new(listed.iter().map(|tool| (tool.name.as_str(), tool.parameters.as_ref()))),
            custom: listed.iter().filter(|tool| tool.custom).map(|tool| tool.name.clone()).collect(),
            id: self.words.call_id,
        };
        let wanted = tools.is_some_and(|tools| tools.choice != ToolChoice::None);
        let openings = match style {
            ToolStyle::Llama3 if wanted => listed.iter().flat_map(|tool| openings(&tool.name)).collect(),
            _ => Vec::new(),
        };
        let call = caps.call_tokens.filter(|_| style != ToolStyle::None);
        let marked = caps.think_tokens.is_some() || call.is_some() || !openings.is_empty();
        let thinks = thinks && caps.think_tokens.is_some();
        (shape, marked.then_some(Markers { thinks, reasoning: caps.think_tokens, call, openings }))
    }

    /// The tools of the request.
    pub(crate) fn tools(&self) -> Option<&Tools> {
        self.tools.as_ref()
    }

    /// Tokens of thinking before its end is forced.
    pub(crate) fn budget(&self) -> Option<u32> {
        self.asked.budget
    }

    /// The form that its content must have.
    pub(crate) fn format(&self) -> Option<&Format> {
        self.asked.format.as_ref()
    }

    /// Whether thinking is part of the content.
    pub(crate) fn keeps_tags(&self, caps: &Caps) -> bool {
        caps.think_tokens.is_none() || matches!(self.reasoning, ReasoningFormat::Inside | ReasoningFormat::Both)
    }

    /// Renders and tokenizes. A prompt that is sure to have `n_ctx` tokens or more is refused without being tokenized.
    ///
    /// # Errors
    /// `template_error` with the template's own message; `context_length_exceeded`.
    pub(crate) fn render(&self, model: &dyn TextModel, n_ctx: usize) -> Result<Rendered, ApiError> {
        let too_long = |least| ApiError::context_length_at_least(least, n_ctx, self.words.messages);
        let refused = |message: &str| ApiError::template(message, self.words.messages);
        if !model.caps().chat {
            return Err(refused("the model file has no chat template; use /v1/completions"));
        }
        let conversation = Conversation {
            messages: &self.normalised.messages,
            tools: self.tools.as_ref().map(|tools| &tools.definitions),
            add_generation_prompt: self.add_generation_prompt,
            keep_thoughts: self.asked.keep_thoughts,
            kwargs: &self.asked.kwargs,
        };
        let mut rendered = model.render(&conversation, n_ctx).map_err(|error| match error {
            RenderError::Template(message) => refused(&message),
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
            return Err(refused("the rendered prompt is empty"));
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

fn read_reasoning(body: &Fields<'_, '_>) -> Result<ReasoningFormat, ApiError> {
    let format = match body.string("reasoning_format")? {
        None | Some("deepseek" | "auto") => ReasoningFormat::Apart,
        Some("none") => ReasoningFormat::Inside,
        Some("deepseek-legacy") => ReasoningFormat::Both,
        Some(other) => {
            let message = format!("{} is unknown; none, deepseek, deepseek-legacy or auto", quote(other));
            return Err(ApiError::invalid_value("reasoning_format", message));
        }
    };
    let excluded = match body.object("reasoning")? {
        None => None,
        Some(map) => Fields::nested(map, "reasoning.").boolean("exclude")?,
    };
    let hidden = body.boolean("include_reasoning")? == Some(false) || excluded == Some(true);
    Ok(if hidden { ReasoningFormat::Left } else { format })
}

/// What a call of Llama 3 without a marker begins with.
fn openings(name: &str) -> [Vec<u8>; 2] {
    [format!("{{\"name\":\"{name}\""), format!("{{\"type\":\"function\",\"name\":\"{name}\"")].map(String::into_bytes)
}

/// Names of the tokens that thinking may take; -1 is no limit. The smallest holds.
const BUDGETS: [&str; 4] =
    ["thinking_budget", "thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget"];

fn read_budget(body: &Fields<'_, '_>) -> Result<Option<u32>, ApiError> {
    let mut least: Option<u32> = None;
    let mut take = |asked: Option<i64>| {
        if let Some(n) = asked.filter(|n| *n >= 0) {
            least = Some(tokens(n).min(least.unwrap_or(u32::MAX)));
        }
    };
    for name in BUDGETS {
        take(body.integer(name, -1..=i64::MAX)?);
    }
    if let Some(map) = body.object("reasoning")? {
        take(Fields::nested(map, "reasoning.").integer("max_tokens", -1..=i64::MAX)?);
    }
    Ok(least)
}

/// A number of tokens, however large.
pub(crate) fn tokens(n: i64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Tokens of thinking for an effort that the template does not read.
fn effort_tokens(effort: &str) -> Option<u32> {
    match effort {
        "minimal" => Some(512),
        "low" => Some(2048),
        "medium" => Some(8192),
        _ => None,
    }
}

/// Whether `context` of `reasoning` asks for the thoughts of all turns.
///
/// # Errors
/// `invalid_value` for a word that is unknown; `unsupported_value` where the model has no marks for thoughts.
pub(crate) fn keeps_thoughts(reasoning: &Fields<'_, '_>, caps: &Caps) -> Result<bool, ApiError> {
    let path = reasoning.path("context");
    match reasoning.string("context")? {
        None | Some("auto" | "current_turn") => Ok(false),
        Some("all_turns") if caps.think.is_some() => Ok(true),
        Some("all_turns") => Err(ApiError::unsupported_value(
            &path,
            "this model has no marks for thoughts, and so no place for old ones",
        )),
        Some(other) => {
            let message = format!("{} is unknown; 'auto', 'current_turn' or 'all_turns'", quote(other));
            Err(ApiError::invalid_value(&path, message))
        }
    }
}

/// Template variables, and the budget of an effort that is none.
fn read_kwargs(body: &Fields<'_, '_>, caps: &Caps) -> Result<(Map<String, Value>, Option<u32>), ApiError> {
    let mut kwargs = plain_kwargs(body)?;
    let (mut effort, mut path) = (body.string("reasoning_effort")?, "reasoning_effort");
    if let Some(map) = body.object("reasoning")? {
        let reasoning = Fields::nested(map, "reasoning.");
        reasoning.only(&["effort", "enabled", "max_tokens", "exclude", "context"])?;
        if let Some(on) = reasoning.boolean("enabled")? {
            think(&mut kwargs, on);
        }
        if let Some(same) = reasoning.string("effort")? {
            (effort, path) = (Some(same), "reasoning.effort");
        }
    }
    let budget = put_effort(&mut kwargs, effort, path, caps)?;
    Ok((kwargs, budget))
}

/// `chat_template_kwargs`, and `enable_thinking` among them.
pub(crate) fn plain_kwargs(body: &Fields<'_, '_>) -> Result<Map<String, Value>, ApiError> {
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
        think(&mut kwargs, on);
    }
    if let Some(value) = kwargs.get("enable_thinking").filter(|v| !v.is_boolean()) {
        return Err(ApiError::invalid_type("chat_template_kwargs.enable_thinking", "boolean", type_name(value)));
    }
    Ok(kwargs)
}

/// Turns thinking on or off.
pub(crate) fn think(kwargs: &mut Map<String, Value>, on: bool) {
    kwargs.insert("enable_thinking".to_owned(), on.into());
}

/// How much thinking is wanted, in words that the template knows; for one that knows none, as a budget.
pub(crate) fn put_effort(
    kwargs: &mut Map<String, Value>,
    effort: Option<&str>,
    path: &str,
    caps: &Caps,
) -> Result<Option<u32>, ApiError> {
    let mut budget = None;
    match effort {
        None => {}
        Some("none") => think(kwargs, false),
        Some(effort @ ("minimal" | "low" | "medium" | "high" | "xhigh" | "max")) => {
            if !caps.reasoning_effort {
                budget = effort_tokens(effort);
            }
            kwargs.insert("reasoning_effort".to_owned(), effort.into());
        }
        Some(other) => return Err(ApiError::invalid_value(path, format!("{} is unknown", quote(other)))),
    }
    Ok(budget)
}

/// The turns of a recorded chat, and the fields beside them that make its prompt.
pub(crate) fn recorded(body: &Map<String, Value>) -> (Vec<Turn>, Map<String, Value>) {
    let list = body.get("messages").and_then(Value::as_array);
    let kept = |name: &&str| body.get(*name).filter(|v| !v.is_null()).map(|v| ((*name).to_owned(), v.clone()));
    (list.map(|list| messages::turns(list)).unwrap_or_default(), PROMPT_FIELDS.iter().filter_map(kept).collect())
}

/// The fields of a chat that would have the prompt of a request of another dialect.
pub(crate) fn as_chat(tools: Option<Tools>, asked: Asked) -> Map<String, Value> {
    let mut fields = Map::new();
    if asked.keep_thoughts {
        fields.insert("reasoning".to_owned(), json!({"context": "all_turns"}));
    }
    let kwargs = asked.kwargs;
    if let Some(tools) = tools {
        if tools.choice == ToolChoice::None {
            fields.insert("tool_choice".to_owned(), "none".into());
        }
        fields.insert("tools".to_owned(), tools.definitions);
    }
    if !kwargs.is_empty() {
        fields.insert("chat_template_kwargs".to_owned(), kwargs.into());
    }
    fields
}
