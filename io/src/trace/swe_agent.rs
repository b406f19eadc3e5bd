//! Trajectories of SWE-agent and mini-swe-agent: one JSON document a run.
//!
//! | File | Messages |
//! |---|---|
//! | SWE-agent `.traj` | `{"history":[{"role","content","is_demo"?,"tool_calls"?}]}` |
//! | mini-swe-agent | `[{"role","content"}]`, or `{"messages":[..]}` beside `info` or `trajectory_format` |
//!
//! Outputs are the messages of the assistant that are no demonstrations. Calls that stand beside the content are part of
//! them; `thought` and `action` repeat what the content says. Source: github.com/SWE-agent/SWE-agent and mini-swe-agent.

use serde::Deserialize;

use super::message::Message;
use super::read::parse;
use super::{Session, TraceError};

#[derive(Deserialize)]
struct Trajectory {
    history: Vec<Message>,
}

#[derive(Deserialize)]
struct Messages {
    messages: Vec<Message>,
}

/// A `.traj` file.
pub(super) fn trajectory(bytes: &[u8], place: &str, name: &str) -> Result<Session, TraceError> {
    let Trajectory { history } = parse(bytes, place)?;
    Ok(session("swe-agent", name, history))
}

/// A file of mini-swe-agent.
pub(super) fn mini(bytes: &[u8], place: &str, name: &str) -> Result<Session, TraceError> {
    let list = bytes.trim_ascii_start().first() == Some(&b'[');
    let messages = if list { parse(bytes, place)? } else { parse::<Messages>(bytes, place)?.messages };
    Ok(session("mini-swe-agent", name, messages))
}

fn session(source: &str, name: &str, messages: Vec<Message>) -> Session {
    let turns = messages.into_iter().map(Message::turn).collect();
    Session { id: name.to_owned(), source: source.to_owned(), turns, ..Session::default() }
}
