//! Runs of OpenHands: JSON lines of `{"instance_id"?,"history":[events]}`.
//!
//! An event is an action or an observation; older files hold them in pairs, and with their arguments beside `action`
//! instead of under `args`.
//!
//! | Event | Turn |
//! |---|---|
//! | action `system` | system |
//! | action `message` of the user, or of nobody before the agent has acted | user |
//! | any other action of the agent | output: the model's own message where the event carries it, else thought and action |
//! | observation | the result of a tool |
//! | `recall`, `null`, changes of the agent's state, actions of the environment | none: bookkeeping |
//!
//! Several calls of one message are several events; the first is the output. Source: github.com/All-Hands-AI/OpenHands,
//! `output.jsonl` of its evaluations and of its resolver.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::message::Message;
use super::read::parse;
use super::{Role, Session, Tool, ToolCall, Turn};
use crate::trace::TraceError;

#[derive(Deserialize)]
struct Run {
    #[serde(default)]
    instance_id: Option<String>,
    history: Vec<Entry>,
}

/// An event, or an action with its observation. Which of the two is decided by `serde_json`'s own kinds.
#[derive(Deserialize)]
#[serde(from = "Value")]
enum Entry {
    One(Value),
    Several(Vec<Value>),
}

impl From<Value> for Entry {
    fn from(value: Value) -> Self {
        match value {
            Value::Array(events) => Self::Several(events),
            event => Self::One(event),
        }
    }
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    source: Option<String>,
    #[serde(default)]
    action: Option<String>,
    #[serde(default)]
    observation: Option<String>,
    #[serde(default)]
    args: Option<Map<String, Value>>,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    tool_call_metadata: Option<CallData>,
    /// Older files have the arguments here.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct CallData {
    #[serde(default)]
    tool_call_id: Option<String>,
    #[serde(default)]
    model_response: Option<Response>,
}

#[derive(Deserialize)]
struct Response {
    #[serde(default)]
    id: String,
    #[serde(default)]
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    message: Message,
}

/// Arguments that say how an action is run, not what the model wrote.
const BOOKKEEPING: [&str; 6] =
    ["thought", "confirmation_state", "is_confirmed", "impl_source", "kernel_init_code", "cwd"];

/// One line at `place`, called `name` unless it has an id.
pub(super) fn session(bytes: &[u8], place: &str, name: &str) -> Result<Session, TraceError> {
    let Run { instance_id, history } = parse(bytes, place)?;
    let mut turns = Turns::default();
    for (index, entry) in history.into_iter().enumerate() {
        let events = match entry {
            Entry::One(event) => vec![event],
            Entry::Several(events) => events,
        };
        for event in events {
            let wrong = |found: String| TraceError::Value {
                place: place.to_owned(),
                what: format!("history[{index}]"),
                found,
                expected: "an object with an action or an observation",
            };
            let event: Event = serde_json::from_value(event).map_err(|error| wrong(format!("unreadable ({error})")))?;
            turns.event(event).map_err(wrong)?;
        }
    }
    let id = instance_id.unwrap_or_else(|| name.to_owned());
    Ok(Session { id, source: "openhands".into(), turns: turns.turns, ..Session::default() })
}

#[derive(Default)]
struct Turns {
    turns: Vec<Turn>,
    /// The agent has acted.
    acted: bool,
    /// Id of the message that the last output was.
    response: String,
}

impl Turns {
    fn event(&mut self, event: Event) -> Result<(), String> {
        let Event { source, action, observation, args, content, tool_call_metadata, rest } = event;
        let data = tool_call_metadata.unwrap_or(CallData { tool_call_id: None, model_response: None });
        if let Some(name) = observation {
            let text = content.unwrap_or_default();
            if !matches!(name.as_str(), "null" | "recall" | "agent_state_changed") {
                let tool = Tool { call_id: data.tool_call_id, name: Some(name), ..Tool::default() };
                self.turns.push(Turn { tool: Some(tool), ..Turn::new(Role::Tool, text) });
            }
            return Ok(());
        }
        let action = action.ok_or("an object with neither")?;
        let mut args = args.unwrap_or(rest);
        if let Some(content) = content {
            args.insert("content".to_owned(), content.into());
        }
        let text = |args: &Map<String, Value>, name: &str| args.get(name).and_then(Value::as_str).map(str::to_owned);
        let by_agent = source.as_deref().map_or(self.acted || action != "message", |source| source == "agent");
        match action.as_str() {
            "null" | "recall" | "change_agent_state" => {}
            "system" => self.turns.push(Turn::new(Role::System, text(&args, "content").unwrap_or_default())),
            "message" if !by_agent => {
                self.turns.push(Turn::new(Role::User, text(&args, "content").unwrap_or_default()));
            }
            _ if !by_agent => {}
            "message" => self.output(Turn::output(text(&args, "content").unwrap_or_default())),
            _ => {
                if let Some(Response { id, choices }) = data.model_response
                    && let Some(Choice { message }) = choices.into_iter().next()
                {
                    let again = !id.is_empty() && id == self.response;
                    self.response = id;
                    if !again {
                        self.output(message.turn());
                    }
                    return Ok(());
                }
                let thought = text(&args, "thought").or(text(&args, "final_thought")).unwrap_or_default();
                args.retain(|name, value| value.is_string() && !BOOKKEEPING.contains(&name.as_str()));
                let call = ToolCall { name: action, arguments: Value::Object(args).to_string(), ..ToolCall::default() };
                let tool = Tool { calls: vec![call], ..Tool::default() };
                self.output(Turn { tool: Some(tool), ..Turn::output(thought) });
            }
        }
        Ok(())
    }

    fn output(&mut self, turn: Turn) {
        self.acted = true;
        self.turns.push(turn);
    }
}
