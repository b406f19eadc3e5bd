//! What is asked: the requests of a session, in order, as every server gets them.

use std::sync::Arc;

use engine_io::trace::{Role, Session, Turn};
use serde_json::{Map, Value, json};

use crate::serve::PROMPT_FIELDS;

/// Where recorded requests of completions went.
const COMPLETIONS: &str = "/v1/completions";

/// A session as a list of requests.
#[derive(Clone, Debug)]
pub struct Task {
    /// Name of the session.
    pub session: String,
    /// Kind of workload.
    pub source: String,
    /// One for every output.
    pub asks: Vec<Ask>,
    messages: Arc<Vec<Value>>,
}

/// One request.
#[derive(Clone, PartialEq, Debug)]
pub struct Ask {
    /// Index of the output among the turns of the session.
    pub turn: usize,
    /// Most tokens to generate.
    pub budget: u32,
    prompt: Prompt,
    /// What else makes the prompt, as it was recorded.
    fields: Map<String, Value>,
}

#[derive(Clone, PartialEq, Debug)]
enum Prompt {
    /// That many of the session's messages.
    Chat(usize),
    Text(String),
}

impl Task {
    /// The requests of `session`. An output's budget is its recorded length, where that is not known what `count` says of
    /// its text, and at most `most`. Outputs without text or tokens, such as those cancelled in time, are left out.
    pub fn new(session: &Session, most: Option<u32>, count: &dyn Fn(&str) -> usize) -> Self {
        let (mut messages, mut asks) = (Vec::new(), Vec::new());
        let exact = is_exact(session);
        for (turn, said) in session.turns.iter().enumerate() {
            let settings = session.request(turn).and_then(|request| request.settings.as_ref());
            let text = said.whole_text();
            let length = said.tokens.as_ref().map_or_else(|| count(&text), Vec::len);
            let history = messages.len();
            if said.output && length > 0 && history > 0 {
                let endpoint = settings.and_then(|s| s.get("endpoint")).and_then(Value::as_str);
                let prompt = match endpoint {
                    Some(COMPLETIONS) => Prompt::Text(session.turns[..turn].iter().map(|t| t.text.as_str()).collect()),
                    _ => Prompt::Chat(history),
                };
                let kept = |name: &&str| Some(((*name).to_owned(), settings?.get(*name)?.clone()));
                let fields = if exact { PROMPT_FIELDS.iter().filter_map(kept).collect() } else { Map::new() };
                let budget = u32::try_from(length).unwrap_or(u32::MAX).min(most.unwrap_or(u32::MAX));
                asks.push(Ask { turn, budget, prompt, fields });
            }
            // Templates differ in what they make of a message of nothing.
            if exact || !text.is_empty() {
                messages.push(message(said, exact));
            }
        }
        Self { session: session.id.clone(), source: session.source.clone(), asks, messages: Arc::new(messages) }
    }

    /// Path below `/v1` and body of a request, but for what is a matter of the server and the arm.
    pub fn body(&self, ask: &Ask) -> (&'static str, Map<String, Value>) {
        let mut body = ask.fields.clone();
        let path = match &ask.prompt {
            Prompt::Chat(history) => {
                body.insert("messages".to_owned(), Value::Array(self.messages[..*history].to_vec()));
                "chat/completions"
            }
            Prompt::Text(text) => {
                body.insert("prompt".to_owned(), text.as_str().into());
                "completions"
            }
        };
        body.insert("max_tokens".to_owned(), ask.budget.into());
        body.insert("stream".to_owned(), true.into());
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        (path, body)
    }
}

/// Whether a server took the session's requests as they stand, tool calls and all.
fn is_exact(session: &Session) -> bool {
    session.requests.iter().any(|r| r.settings.as_ref().is_some_and(|s| s.contains_key("endpoint")))
}

/// A turn as a message. Of other people's recordings only text is used, and results of tools are said by the user: what
/// calls they belong to is often not known, and not every template takes them.
fn message(turn: &Turn, exact: bool) -> Value {
    let tool = turn.tool.as_ref().filter(|_| exact);
    let mut out = match tool {
        Some(_) => json!({"role": turn.role.name(), "content": turn.text}),
        None => {
            let role = if turn.role == Role::Tool { Role::User } else { turn.role };
            json!({"role": role.name(), "content": turn.whole_text()})
        }
    };
    if let Some(thought) = &turn.reasoning {
        out["reasoning_content"] = thought.as_str().into();
    }
    let Some(tool) = tool else { return out };
    if !tool.calls.is_empty() {
        let call = |c: &engine_io::trace::ToolCall| json!({"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}});
        out["tool_calls"] = tool.calls.iter().map(call).collect();
    }
    if let Some(id) = &tool.call_id {
        out["tool_call_id"] = id.as_str().into();
    }
    if let Some(name) = &tool.name {
        out["name"] = name.as_str().into();
    }
    out
}

#[cfg(test)]
mod tests {
    use engine_io::trace::{Request, Tool};

    use super::*;

    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    #[test]
    fn the_recorded_turn_is_what_follows() {
        let turns = vec![
            Turn::new(Role::System, "be brief"),
            Turn::new(Role::User, "hi"),
            Turn::output("good day to you"),
            Turn::new(Role::Tool, "a.txt"),
            Turn::output(""),
            Turn { tokens: Some(vec![1, 2]), ..Turn::output("bye") },
        ];
        let session = Session { id: "s".into(), source: "x".into(), turns, requests: Vec::new() };
        let task = Task::new(&session, None, &words);
        assert_eq!(task.asks.iter().map(|a| (a.turn, a.budget)).collect::<Vec<_>>(), [(2, 4), (5, 2)]);
        let (path, body) = task.body(&task.asks[1]);
        assert_eq!(path, "chat/completions");
        let messages = json!([
            {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "good day to you"}, {"role": "user", "content": "a.txt"},
        ]);
        assert_eq!((&body["messages"], &body["max_tokens"], &body["stream"]), (&messages, &json!(2), &json!(true)));
        let short = Task::new(&session, Some(3), &words);
        assert_eq!(short.asks.iter().map(|a| a.budget).collect::<Vec<_>>(), [3, 2]);
    }

    #[test]
    fn requests_that_a_server_took_are_sent_as_they_were() {
        let call = engine_io::trace::ToolCall { id: "c1".into(), name: "ls".into(), arguments: "{}".into() };
        let turns = vec![
            Turn::new(Role::User, "list"),
            Turn { tool: Some(Tool { calls: vec![call], ..Tool::default() }), ..Turn::output("") },
            Turn { tool: Some(Tool { call_id: Some("c1".into()), ..Tool::default() }), ..Turn::new(Role::Tool, "a") },
            Turn::output("one file"),
        ];
        let settings = json!({"endpoint": "/v1/chat/completions", "tools": [1], "temperature": 0.5});
        let request = Request { turn: 3, settings: settings.as_object().cloned(), ..Request::default() };
        let session = Session { id: "s".into(), source: "recorded".into(), turns, requests: vec![request] };
        let task = Task::new(&session, None, &words);
        let (_, body) = task.body(task.asks.last().unwrap());
        assert_eq!(body["messages"][1]["tool_calls"][0]["function"], json!({"name": "ls", "arguments": "{}"}));
        assert_eq!(body["messages"][2], json!({"role": "tool", "content": "a", "tool_call_id": "c1"}));
        assert_eq!((&body["tools"], body.get("temperature")), (&json!([1]), None));

        let settings = json!({"endpoint": COMPLETIONS});
        let request = Request { turn: 1, settings: settings.as_object().cloned(), ..Request::default() };
        let turns = vec![Turn::new(Role::User, "def "), Turn::output("main")];
        let session = Session { turns, requests: vec![request], ..Session::default() };
        let task = Task::new(&session, None, &words);
        let (path, body) = task.body(&task.asks[0]);
        assert_eq!((path, &body["prompt"], body.get("messages")), ("completions", &json!("def "), None));
    }
}
