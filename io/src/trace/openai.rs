//! OpenAI-style JSON lines: one conversation a line, `{"messages":[{"role","content","tool_calls"?}]}`.
//!
//! Outputs are the messages of the assistant, but those of weight 0. Content is a string, null or a list of text parts.
//! Source: the chat format of the OpenAI API and of its fine-tuning files.

use serde::Deserialize;

use super::message::Message;
use super::read::parse;
use super::{Session, TraceError};

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    id: Option<String>,
    messages: Vec<Message>,
}

/// One line at `place`, called `name` unless it has an id.
pub(super) fn session(bytes: &[u8], place: &str, name: &str) -> Result<Session, TraceError> {
    let Line { id, messages } = parse(bytes, place)?;
    let turns = messages.into_iter().map(Message::turn).collect();
    Ok(Session { id: id.unwrap_or_else(|| name.to_owned()), source: "openai".into(), turns, ..Session::default() })
}
