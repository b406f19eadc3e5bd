//! What flags say of how requests are read and answered. The threads that do so have it from their start on.

use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::serve::error::{ApiError, quote};
use crate::serve::fields::Fields;
use crate::serve::json::type_name;
use crate::serve::limits;
use crate::serve::parts::ReasoningFormat;

/// What becomes of tools that run at a provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum HostedTools {
    /// They are left out, and the answer says so in a header.
    Drop,
    /// The request is refused.
    Reject,
}

/// What becomes of a system message behind the first turns, where the chat template takes none there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum SystemFold {
    /// It becomes part of the user's text in its place.
    User,
    /// It is added to the first system message, which changes the beginning of every prompt.
    First,
    /// The request is refused.
    Reject,
}

/// What becomes of calls without a result, and of messages that stand between a call and its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ToolResults {
    /// The request is refused.
    Strict,
    /// Such a result is empty, and such a message goes behind the results.
    Lenient,
}

/// Words for how much thinking is wanted, but for `none`.
const EFFORTS: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];

/// Tokens of thinking by the word for its effort, where the chat template does not read the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Efforts([Option<u32>; EFFORTS.len()]);

impl Default for Efforts {
    fn default() -> Self {
        Self([Some(512), Some(2048), Some(8192), None, None, None])
    }
}

impl Efforts {
    /// Reads `minimal=512,low=2048`; a word that is not named has no limit.
    ///
    /// # Errors
    /// What is expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut all = Self(Default::default());
        let mut named = [false; EFFORTS.len()];
        for pair in text.split(',').filter(|_| !text.is_empty()) {
            let (word, tokens) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is not EFFORT=TOKENS"))?;
            let Some(at) = EFFORTS.iter().position(|effort| *effort == word) else {
                return Err(format!("{word:?} is no effort; they are {}", EFFORTS.join(", ")));
            };
            if std::mem::replace(&mut named[at], true) {
                return Err(format!("{word} stands twice"));
            }
            all.0[at] = match tokens {
                "none" => None,
                tokens => Some(tokens.parse().map_err(|_| {
                    format!("{word}: expected tokens from 0 to {} or none, found {tokens:?}", u32::MAX)
                })?),
            };
        }
        Ok(all)
    }

    /// Tokens of thinking for a word; `None` for one that is none of these.
    pub(crate) fn budget(&self, word: &str) -> Option<Option<u32>> {
        EFFORTS.iter().position(|effort| *effort == word).map(|at| self.0[at])
    }
}

/// The settings of the API.
#[derive(Clone, PartialEq, Debug)]
pub struct Api {
    /// Further names of the model.
    pub aliases: Vec<String>,
    /// Requests that name another model are refused.
    pub strict_model: bool,
    /// Requests with fields that nobody knows are refused.
    pub strict_params: bool,
    /// Tools that run at a provider.
    pub hosted_tools: HostedTools,
    /// A conversation that ends with an assistant message is continued there.
    pub prefill_assistant: bool,
    /// Highest temperature of a request.
    pub temperature_max: f32,
    /// Silence of a stream after which a comment is sent; `None` = never.
    pub ping: Option<Duration>,
    /// Variables of the chat template, unless a request gives them.
    pub kwargs: Map<String, Value>,
    /// System messages in the middle.
    pub system_fold: SystemFold,
    /// Calls without a result.
    pub tool_results: ToolResults,
    /// Where thinking goes, unless a request says.
    pub(crate) reasoning: ReasoningFormat,
    /// Field of chat answers that holds it.
    pub reasoning_field: &'static str,
    /// Budgets of thinking.
    pub efforts: Efforts,
    /// Of `/v1/messages`: a line of billing before the system text is not part of the prompt.
    pub strip_billing_line: bool,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            aliases: Vec::new(),
            strict_model: false,
            strict_params: false,
            hosted_tools: HostedTools::Drop,
            prefill_assistant: false,
            temperature_max: TEMPERATURE_MAX,
            ping: Some(Duration::from_secs(PING_SECONDS)),
            kwargs: Map::new(),
            system_fold: SystemFold::User,
            tool_results: ToolResults::Strict,
            reasoning: ReasoningFormat::Apart,
            reasoning_field: "reasoning_content",
            efforts: Efforts::default(),
            strip_billing_line: true,
        }
    }
}

/// Temperatures that requests may ask for, unless a flag says otherwise.
pub(crate) const TEMPERATURE_MAX: f32 = 2.0;
/// Silence of a stream after which a comment is sent, unless flag or request say otherwise.
pub(crate) const PING_SECONDS: u64 = 15;

impl Api {
    /// Refuses a request for another model than the one that is here.
    ///
    /// # Errors
    /// `model_not_found`.
    pub(crate) fn check_model(&self, body: &Fields<'_, '_>, id: &str) -> Result<(), ApiError> {
        match body.string("model")? {
            Some(name) if self.strict_model && name != id && !self.aliases.iter().any(|alias| alias == name) => {
                Err(ApiError::model_not_found(name))
            }
            _ => Ok(()),
        }
    }

    /// How a server calls its model where it has one name to say.
    pub(crate) fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.aliases.first().map_or(id, String::as_str)
    }
}

/// How `word` calls the place of thinking.
///
/// # Errors
/// 400 at `reasoning_format`.
pub(crate) fn reasoning_format(word: &str) -> Result<ReasoningFormat, ApiError> {
    match word {
        "deepseek" | "auto" => Ok(ReasoningFormat::Apart),
        "none" => Ok(ReasoningFormat::Inside),
        "deepseek-legacy" => Ok(ReasoningFormat::Both),
        other => {
            let message = format!("{} is unknown; none, deepseek, deepseek-legacy or auto", quote(other));
            Err(ApiError::invalid_value("reasoning_format", message))
        }
    }
}

/// Variables that belong to the conversation, not to who asks.
const RESERVED: [&str; 5] = ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"];

/// Checks variables of the chat template; one that is null is not given.
///
/// # Errors
/// 400 at `chat_template_kwargs`.
pub(crate) fn check_kwargs(kwargs: &Map<String, Value>) -> Result<(), ApiError> {
    if kwargs.len() > limits::TEMPLATE_KWARGS {
        let message = format!("more than {} keys", limits::TEMPLATE_KWARGS);
        return Err(ApiError::invalid_value("chat_template_kwargs", message));
    }
    let given = |name: &str| kwargs.get(name).filter(|value| !value.is_null());
    if let Some(name) = RESERVED.into_iter().find(|name| given(name).is_some()) {
        return Err(ApiError::invalid_value(&format!("chat_template_kwargs.{name}"), "this name is reserved"));
    }
    match given("enable_thinking").filter(|v| !v.is_boolean()) {
        Some(value) => Err(ApiError::invalid_type("chat_template_kwargs.enable_thinking", "boolean", type_name(value))),
        None => Ok(()),
    }
}

/// Those of them that are given.
pub(crate) fn given_kwargs(kwargs: &Map<String, Value>) -> impl Iterator<Item = (String, Value)> {
    kwargs.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.clone(), value.clone()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn efforts_are_a_whole_list() {
        assert_eq!(Efforts::parse("minimal=512,low=2048,medium=8192"), Ok(Efforts::default()));
        let some = Efforts::parse("low=7,max=none,xhigh=0").unwrap();
        let budgets = ["minimal", "low", "xhigh", "max", "none", "huge"].map(|word| some.budget(word));
        assert_eq!(budgets, [Some(None), Some(Some(7)), Some(Some(0)), Some(None), None, None]);
        assert_eq!(Efforts::parse("").unwrap().budget("low"), Some(None));
        for (text, told) in [
            ("low", "EFFORT=TOKENS"),
            ("low=1,", "EFFORT=TOKENS"),
            ("none=1", "no effort"),
            ("low=1,low=2", "twice"),
            ("low=-1", "low: expected tokens"),
            ("low=4294967296", "low: expected tokens"),
        ] {
            let error = Efforts::parse(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
    #[test]
    fn a_variable_that_is_null_is_not_given() {
        let map = |value: Value| value.as_object().unwrap().clone();
        let nulls = map(json!({"enable_thinking": null, "messages": null, "who": null, "other": 1}));
        assert_eq!(check_kwargs(&nulls), Ok(()));
        assert_eq!(Value::Object(given_kwargs(&nulls).collect()), json!({"other": 1}));
        for wrong in [json!({"messages": 1}), json!({"enable_thinking": 1})] {
            assert!(check_kwargs(&map(wrong.clone())).is_err(), "{wrong}");
        }
    }
}
