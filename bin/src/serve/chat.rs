//! `/v1/chat/completions`: a body becomes parameters and a conversation.
//!
//! **Tools.** Definitions and past calls are checked and rendered into the prompt; what calls may be is compiled elsewhere.
//!
//! **Reasoning.** Thinking is told apart by the model's own marker tokens; where the vocabulary has none it stays content.
//! Switches reach the template; efforts that it does not read become budgets.

use engine::channels::Markers;
use engine::ids::TokenId;
use engine_io::trace::{Role, Turn};
use serde_json::{Map, Value, json};

use crate::serve::api::{self, Api};
use crate::serve::calls::Kinds;
use crate::serve::constrain::format::{self, Format};
use crate::serve::conversation::Normalised;
use crate::serve::error::{ApiError, quote};
use crate::serve::fields::Fields;
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
    pub(crate) fn read(body: &Fields<'_, '_>, caps: &Caps, api: &Api) -> Result<Self, ApiError> {
        let messages = body.list("messages")?.ok_or_else(|| ApiError::missing("messages"))?;
        let normalised = messages::normalise(messages, caps, api)?;
        let tools = tools::read(body, caps)?;
        let reasoning = read_reasoning(body, api)?;
        let (kwargs, effort_budget) = read_kwargs(body, caps, api)?;
        let budget = read_budget(body)?.or(effort_budget);
        let asked = body.boolean("continue_final_message")?;
        let continues = asked.unwrap_or(false) || normalised.prefix;
        let opens = body.boolean("add_generation_prompt")?;
        if continues && opens == Some(true) {
            let message = "it excludes continue_final_message";
            return Err(ApiError::invalid_value("add_generation_prompt", message));
        }
        let keep_thoughts = match body.object("reasoning")? {
            None => false,
            Some(map) => keeps_thoughts(&Fields::nested(map, "reasoning."), caps)?,
        };
        // What a request says of its last message goes before what the server does with such.
        let prefill = api.prefill_assistant && asked.is_none() && opens.is_none();
        let asked = Asked { kwargs, budget, format: format::read(body)?, keep_thoughts };
        let chat = Self::of(normalised, tools, asked, WORDS);
        let mut chat = Self { reasoning, add_generation_prompt: opens.unwrap_or(true), ..chat };
        let continued = (continues || prefill) && chat.continue_last();
        if continues && !continued {
            let message = "the last message is not an assistant message with nothing but content";
            return Err(ApiError::invalid_value("continue_final_message", message));
        }
        // A turn that goes on has to be opened, whatever is asked of one that begins.
        chat.add_generation_prompt |= continued;
        Ok(chat)
    }

    /// A conversation of any dialect, with an answer to come.
    pub(crate) fn of(normalised: Normalised, tools: Option<Tools>, asked: Asked, words: Words) -> Self {
        let (reasoning, add_generation_prompt, continues) = (ReasoningFormat::Apart, true, None);
        Self { normalised, tools, reasoning, asked, add_generation_prompt, continues, words }
    }

    /// The same, continued where it ends with a message of the assistant, if the server does that.
    pub(crate) fn prefilled(mut self, api: &Api) -> Self {
        if api.prefill_assistant {
            self.continue_last();
        }
        self
    }

    /// Takes the last message, if it is the assistant's with nothing but content, for the beginning of the answer. The turn
    /// is opened by the template as for any answer; the text follows as the model's own.
    fn continue_last(&mut self) -> bool {
        self.continues = self.normalised.open_end.take();
        if let (Some(_), Value::Array(messages)) = (&self.continues, &mut self.normalised.messages) {
            messages.pop();
        }
        self.continues.is_some()
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
            let caps = model.caps();
            if let (Some(_), Some((_, end))) = (rendered.open_tag.take(), caps.think) {
                // What was said stands behind the thinking, of which there is none.
                let (at, shut) = (rendered.text.len() + 1, format!("\n{end}\n\n"));
                rendered.tokens.extend(model.encode(&shut, false, true));
                rendered.special_spans.extend(caps.think_tokens.map(|_| (at, at + end.len())));
                rendered.text.push_str(&shut);
            }
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
    let rendered =
        Chat::read(&Fields::body(&body), &text.caps(), &Api::default()).and_then(|chat| chat.render(text, usize::MAX));
    rendered.map(|rendered| rendered.tokens).map_err(|error| error.message)
}

fn read_reasoning(body: &Fields<'_, '_>, api: &Api) -> Result<ReasoningFormat, ApiError> {
    let format = body.string("reasoning_format")?.map_or(Ok(api.reasoning), api::reasoning_format)?;
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
fn read_kwargs(body: &Fields<'_, '_>, caps: &Caps, api: &Api) -> Result<(Map<String, Value>, Option<u32>), ApiError> {
    let mut kwargs = plain_kwargs(body, api)?;
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
    let budget = put_effort(&mut kwargs, effort, path, caps, api)?;
    Ok((kwargs, budget))
}

/// `chat_template_kwargs` over those of the server, and `enable_thinking` among them.
pub(crate) fn plain_kwargs(body: &Fields<'_, '_>, api: &Api) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = api.kwargs.clone();
    if let Some(own) = body.object("chat_template_kwargs")? {
        api::check_kwargs(own)?;
        kwargs.extend(api::given_kwargs(own));
    }
    if let Some(on) = body.boolean("enable_thinking")? {
        think(&mut kwargs, on);
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
    api: &Api,
) -> Result<Option<u32>, ApiError> {
    match effort {
        None => Ok(None),
        Some("none") => {
            think(kwargs, false);
            Ok(None)
        }
        Some(effort) => {
            let unknown = || ApiError::invalid_value(path, format!("{} is unknown", quote(effort)));
            let budget = api.efforts.budget(effort).ok_or_else(unknown)?;
            kwargs.insert("reasoning_effort".to_owned(), effort.into());
            Ok(budget.filter(|_| !caps.reasoning_effort))
        }
    }
}

/// The turns of a recorded chat, and the fields beside them that make its prompt, whatever flags a server has.
pub(crate) fn recorded(body: &Map<String, Value>, api: &Api) -> (Vec<Turn>, Map<String, Value>) {
    let list = body.get("messages").and_then(Value::as_array);
    let kept = |name: &&str| body.get(*name).filter(|v| !v.is_null()).map(|v| ((*name).to_owned(), v.clone()));
    let turns = list.map(|list| messages::turns(list)).unwrap_or_default();
    let mut fields: Map<String, Value> = PROMPT_FIELDS.iter().filter_map(kept).collect();
    if !api.kwargs.is_empty() {
        // It was read once, so it can be read.
        let kwargs = plain_kwargs(&Fields::body(body), api).unwrap_or_default();
        fields.insert("chat_template_kwargs".to_owned(), kwargs.into());
    }
    if !fields.contains_key("add_generation_prompt") && !fields.contains_key("continue_final_message") {
        put_prefill(&turns, &mut fields, api);
    }
    (turns, fields)
}

/// Says that the last turn is continued, where the server does so by itself.
fn put_prefill(turns: &[Turn], fields: &mut Map<String, Value>, api: &Api) {
    let open = |turn: &Turn| turn.role == Role::Assistant && turn.tool.is_none() && turn.reasoning.is_none();
    if api.prefill_assistant && turns.last().is_some_and(open) {
        fields.insert("continue_final_message".to_owned(), true.into());
    }
}

/// The fields of a chat that would have the prompt of a request of another dialect, whose turns are `turns`.
pub(crate) fn as_chat(tools: Option<Tools>, asked: Asked, turns: &[Turn], api: &Api) -> Map<String, Value> {
    let mut fields = Map::new();
    put_prefill(turns, &mut fields, api);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A record holds what made the prompt, whoever said it: another server has other flags.
    #[test]
    fn a_record_says_what_flags_have_said() {
        let kwargs = Map::from_iter([("who".to_owned(), json!("flag")), ("other".to_owned(), json!(1))]);
        let api = Api { prefill_assistant: true, kwargs, ..Api::default() };
        let open = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
        let fields = |mut body: Value, messages: &Value, api: &Api| {
            body["messages"] = messages.clone();
            Value::Object(recorded(body.as_object().unwrap(), api).1)
        };
        assert_eq!(fields(json!({}), &open, &Api::default()), json!({}));
        assert_eq!(
            fields(json!({"chat_template_kwargs": {"who": "request", "other": null}}), &open, &api),
            json!({"chat_template_kwargs": {"who": "request", "other": 1}, "continue_final_message": true})
        );
        let kwargs = json!({"who": "flag", "other": 1});
        assert_eq!(
            fields(json!({"add_generation_prompt": true}), &open, &api),
            json!({"add_generation_prompt": true, "chat_template_kwargs": kwargs})
        );
        let closed = json!([{"role": "user", "content": "a"}]);
        assert_eq!(fields(json!({}), &closed, &api), json!({"chat_template_kwargs": kwargs}));
        let turns = [Turn::new(Role::Assistant, "b".to_owned())];
        let other = as_chat(None, Asked::default(), &turns, &api);
        assert_eq!(Value::Object(other), json!({"continue_final_message": true}));
    }
}
