//! Messages of chat APIs, which several kinds of recordings hold: one shape, read leniently where tools differ.

use std::fmt;

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Role, Tool, ToolCall, Turn};

/// A message as recordings have it. Fields that say nothing about its text are passed over.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(crate) struct Message {
    pub role: Role,
    #[serde(default, deserialize_with = "content")]
    pub content: String,
    /// Calls of an assistant.
    #[serde(default)]
    tool_calls: Option<Vec<Call>>,
    /// Of an answer: the call.
    #[serde(default)]
    tool_call_id: Option<String>,
    /// The same as SWE-agent writes it.
    #[serde(default)]
    tool_call_ids: Option<Vec<String>>,
    #[serde(default)]
    name: Option<String>,
    /// SWE-agent: an example, not what happened.
    #[serde(default)]
    is_demo: Option<bool>,
    /// Fine-tuning files: 0 says that a turn is not to be learnt, as it is not the model's own.
    #[serde(default)]
    weight: Option<f64>,
}

/// A call of a tool.
#[derive(Clone, PartialEq, Debug, Deserialize)]
struct Call {
    #[serde(default)]
    id: Option<String>,
    function: Function,
}

#[derive(Clone, PartialEq, Debug, Deserialize)]
struct Function {
    name: String,
    /// JSON text, or the object itself.
    #[serde(default)]
    arguments: Value,
}

impl Message {
    /// The message as a turn; what an assistant wrote itself is an output.
    pub(crate) fn turn(self) -> Turn {
        let output = self.role == Role::Assistant && !self.is_demo.unwrap_or(false) && self.weight != Some(0.0);
        let calls: Vec<ToolCall> = self.tool_calls.unwrap_or_default().into_iter().map(Call::plain).collect();
        let answers = self.role == Role::Tool;
        let call_id = self.tool_call_id.or_else(|| self.tool_call_ids?.into_iter().next()).filter(|_| answers);
        let tool = Tool { calls, call_id, name: self.name.filter(|_| answers) };
        let tool = (tool != Tool::default()).then_some(tool);
        Turn { output, tool, ..Turn::new(self.role, self.content) }
    }
}

impl Call {
    fn plain(self) -> ToolCall {
        let arguments = match self.function.arguments {
            Value::String(text) => text,
            Value::Null => String::new(),
            other => other.to_string(),
        };
        ToolCall { id: self.id.unwrap_or_default(), name: self.function.name, arguments }
    }
}

/// Content of a message: text, nothing, or a list of parts whose texts are joined.
fn content<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_any(Content)
}

struct Content;

#[derive(Deserialize, Serialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
}

impl<'de> Visitor<'de> for Content {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, null or a list of text parts")
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_string<E>(self, text: String) -> Result<String, E> {
        Ok(text)
    }

    fn visit_unit<E>(self) -> Result<String, E> {
        Ok(String::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<String, A::Error> {
        let mut whole = String::new();
        while let Some(Part { kind, text }) = parts.next_element()? {
            match text {
                Some(text) if matches!(kind.as_str(), "text" | "input_text" | "output_text") => whole.push_str(&text),
                _ => {
                    let message = format!("a content part of type \"{kind}\" cannot be replayed, expected text");
                    return Err(de::Error::custom(message));
                }
            }
        }
        Ok(whole)
    }
}
