//! Recorded sessions: what was said to a model, and what it wrote.
//!
//! A [`Session`] is a list of turns; the turns that a model wrote are its outputs. [`jsonl`] is our own form of it on
//! disk, which a recorder appends to request by request; [`read`] reads it, and what other tools write, a module each.
//!
//! What a recording says is data of strangers: nothing here trusts a length, a role or an order.

pub mod aider;
pub mod error;
#[cfg(test)]
mod import_tests;
pub mod jsonl;
mod message;
pub mod openai;
pub mod openhands;
pub mod read;
pub mod swe_agent;
pub mod tau_bench;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use error::TraceError;
pub use read::{Format, Found, Trace, import, load};

/// A recorded session.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Session {
    /// Name of it within its file.
    pub id: String,
    /// Kind of workload it comes from, such as `swe-agent`: figures are kept apart by it.
    pub source: String,
    /// What was said, in order.
    pub turns: Vec<Turn>,
    /// What is known of the requests that made outputs, in the order of their turns. Other people's recordings have none.
    pub requests: Vec<Request>,
}

/// One message of a session.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Turn {
    /// Who said it.
    pub role: Role,
    /// Its content. Calls of tools that a recording holds apart from it are in `tool`.
    pub text: String,
    /// A model wrote it and it is to be replayed; a turn of the assistant may also be a mere example.
    #[serde(default)]
    pub output: bool,
    /// Thinking of the assistant that a client holds apart from the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Calls that it makes, or the call that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<Tool>,
    /// Token ids as the model chose them, end token included; of outputs alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<u32>>,
}

/// Who says a turn.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions.
    #[serde(alias = "developer")]
    System,
    /// The user, or a program in the user's place.
    #[default]
    User,
    /// The model.
    Assistant,
    /// The result of a tool.
    #[serde(alias = "function")]
    Tool,
}

impl Role {
    /// The role's name, as chat templates and APIs spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// What a turn has to do with tools.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Tool {
    /// Of a turn of the assistant: the calls that it makes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<ToolCall>,
    /// Of a turn of a tool: the id of the call that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// Of a turn of a tool: the tool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A call of a tool.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ToolCall {
    /// What the answer refers to; empty where calls have no ids.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// The function.
    pub name: String,
    /// Its arguments, as the JSON text that the model wrote.
    pub arguments: String,
}

/// A request that made an output.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Request {
    /// Index of the output among the turns of the session.
    #[serde(skip)]
    pub turn: usize,
    /// Name of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Digest of the model's tensors ([`crate::digest::TensorTree`]), as 64 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_sha256: Option<String>,
    /// Digest of the model's token list ([`crate::package::tokenizer_digest`]), as 64 hex digits: models that share it
    /// mean the same by token ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_sha256: Option<String>,
    /// Sampling and drafting as they were in effect, under the names of the request fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Map<String, Value>>,
    /// Seed in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Token ids of the whole prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<Vec<u32>>,
    /// Why the output ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
}

impl Turn {
    /// A turn of plain text.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self { role, text: text.into(), ..Self::default() }
    }

    /// A turn that a model wrote.
    pub fn output(text: impl Into<String>) -> Self {
        Self { output: true, ..Self::new(Role::Assistant, text) }
    }

    /// Everything that the turn holds as one text. Calls that a recording keeps apart follow the content, each as
    /// `<tool_call>`, a line of JSON, `</tool_call>`: which markup the model really wrote is not known any more.
    pub fn whole_text(&self) -> Cow<'_, str> {
        let calls = self.tool.as_ref().map_or(&[][..], |tool| &tool.calls);
        if calls.is_empty() {
            return Cow::Borrowed(&self.text);
        }
        let mut text = self.text.clone();
        for call in calls {
            if !text.is_empty() {
                text.push('\n');
            }
            // A string always serialises.
            let name = Value::from(call.name.as_str());
            let arguments = if call.arguments.is_empty() { "{}" } else { &call.arguments };
            text.push_str(&format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"));
        }
        Cow::Owned(text)
    }

    /// Whether another turn says the same, whoever it is an output of.
    pub fn says(&self, other: &Self) -> bool {
        let Self { role, text, reasoning, tool, output: _, tokens: _ } = self;
        (role, text, reasoning, tool) == (&other.role, &other.text, &other.reasoning, &other.tool)
    }
}

impl Session {
    /// Indices of the turns to be replayed.
    pub fn outputs(&self) -> impl Iterator<Item = usize> + '_ {
        self.turns.iter().enumerate().filter(|(_, turn)| turn.output).map(|(index, _)| index)
    }

    /// What is known of the request that made the output at `turn`.
    pub fn request(&self, turn: usize) -> Option<&Request> {
        self.requests.iter().find(|request| request.turn == turn)
    }
}
