//! `/v1/responses`: output items and their events.

use engine::api::Finish;
use engine::ids::TokenId;
use serde_json::{Map, Value, json};

use crate::serve::answers::{self, Failed, Piece, Scene, Writer, named_event};
use crate::serve::entries::{Entry, chat_logprobs};
use crate::serve::error::ApiError;
use crate::serve::http::Reply;
use crate::serve::parts::{Call, Item, Part};
use crate::serve::random::Random;
use crate::serve::remembered::Change;
use crate::serve::stats::Counts;

/// Writes one response.
pub(crate) struct ResponseWriter {
    id: String,
    model: String,
    created: u64,
    /// What of the request the response repeats.
    echo: Map<String, Value>,
    /// Where its prompt goes another way than that of an earlier response; `None`: nobody asks.
    pub change: Option<Change>,
    random: Random,
    begun: bool,
    /// Events so far.
    sequence: u64,
    /// Items that are closed.
    output: Vec<Value>,
    open: Option<Open>,
    /// What the deltas of an event carry beside their text.
    timings: Option<Value>,
}

/// An item that is open.
struct Open {
    id: String,
    kind: Kind,
    /// All that it says so far.
    text: String,
    /// Log-probabilities of that.
    logprobs: Vec<Value>,
}

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call(Call),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    InProgress,
    Completed,
    Incomplete,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }

    fn ended(whole: bool) -> Self {
        if whole { Self::Completed } else { Self::Incomplete }
    }
}

impl Kind {
    fn prefix(&self) -> &'static str {
        match self {
            Self::Reasoning => "rs_",
            Self::Message => "msg_",
            Self::Call(Call { custom: false, .. }) => "fc_",
            Self::Call(Call { custom: true, .. }) => "ctc_",
        }
    }

    /// The one part of an item that has parts.
    fn part(&self, text: &str, logprobs: &[Value]) -> Option<Value> {
        match self {
            Self::Reasoning => Some(json!({"type": "reasoning_text", "text": text})),
            Self::Message => {
                Some(json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}))
            }
            Self::Call(_) => None,
        }
    }

    /// An item; `parts`: it has its part already.
    fn item(&self, id: &str, text: &str, logprobs: &[Value], parts: bool, status: Status) -> Value {
        let content: Vec<Value> = self.part(text, logprobs).into_iter().filter(|_| parts).collect();
        let status = status.name();
        match self {
            Self::Reasoning => json!({"id": id, "type": "reasoning", "summary": [], "content": content,
                "encrypted_content": null, "status": status}),
            Self::Message => json!({"id": id, "type": "message", "role": "assistant", "status": status,
                "content": content}),
            Self::Call(call @ Call { custom: false, .. }) => json!({"id": id, "type": "function_call",
                "call_id": call.id, "name": call.name, "arguments": text, "status": status}),
            Self::Call(call) => json!({"id": id, "type": "custom_tool_call", "call_id": call.id, "name": call.name,
                "input": text, "status": status}),
        }
    }

    /// Name of its events that tell text, before `.delta` and `.done`.
    fn event(&self) -> &'static str {
        match self {
            Self::Reasoning => "response.reasoning_text",
            Self::Message => "response.output_text",
            Self::Call(Call { custom: false, .. }) => "response.function_call_arguments",
            Self::Call(Call { custom: true, .. }) => "response.custom_tool_call_input",
        }
    }

    /// Name of the field of `.done` that has all text.
    fn done_field(&self) -> &'static str {
        match self {
            Self::Reasoning | Self::Message => "text",
            Self::Call(Call { custom: false, .. }) => "arguments",
            Self::Call(Call { custom: true, .. }) => "input",
        }
    }
}

impl ResponseWriter {
    pub(crate) fn new(id: String, model: String, echo: Map<String, Value>) -> Self {
        let (created, random) = (answers::now(), Random::new());
        let (output, open, timings) = (Vec::new(), None, None);
        Self { id, model, created, echo, change: None, random, begun: false, sequence: 0, output, open, timings }
    }

    /// The answer to a request without input: it is complete, and nothing was computed.
    pub(crate) fn nothing(mut self, stream: bool) -> Reply {
        let counts = Counts { prompt: 0, cached: 0, written: 0, completion: 0, reasoning: 0 };
        let response = self.response("completed", Some(counts), Value::Null, Value::Null);
        if !stream {
            return Reply::json(200, &response);
        }
        let mut out = Vec::new();
        self.start(&mut out);
        self.event("response.completed", json!({ "response": response }), &mut out);
        Reply { body: out, ..Reply::text(200, "text/event-stream; charset=utf-8", "") }
            .with("Cache-Control", "no-cache")
    }

    fn response(&self, status: &str, counts: Option<Counts>, error: Value, incomplete: Value) -> Map<String, Value> {
        let completed = (status == "completed").then(answers::now);
        let head = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": completed,
            "status": status,
            "background": false,
            "error": error,
            "incomplete_details": incomplete,
            "model": self.model,
            "output": self.output,
            "usage": counts.map(usage),
        });
        let Value::Object(mut response) = head else { unreachable!("built as an object") };
        response.extend(self.echo.clone());
        if let Some(change) = self.change {
            let known = counts.map_or(Value::Null, |counts| diagnostics(change, counts));
            response.insert("prompt_cache_diagnostics".to_owned(), known);
        }
        response
    }

    /// Writes an event; its type and number go in front.
    fn event(&mut self, name: &str, fields: Value, out: &mut Vec<u8>) {
        let numbered = [("type".to_owned(), name.into()), ("sequence_number".to_owned(), self.sequence.into())];
        self.sequence += 1;
        let mut event = Map::from_iter(numbered);
        let Value::Object(fields) = fields else { unreachable!("built as an object") };
        event.extend(fields);
        named_event(name, &event, out);
    }

    fn start(&mut self, out: &mut Vec<u8>) {
        self.begun = true;
        let response = Value::Object(self.response("in_progress", None, Value::Null, Value::Null));
        self.event("response.created", json!({ "response": response }), out);
        self.event("response.in_progress", json!({ "response": response }), out);
    }

    /// Adds an item, behind the one that was open.
    fn add(&mut self, kind: Kind, out: &mut Vec<u8>) {
        self.close(true, out);
        let (id, index) = (self.random.id(kind.prefix()), self.output.len());
        let item = kind.item(&id, "", &[], false, Status::InProgress);
        self.event("response.output_item.added", json!({"output_index": index, "item": item}), out);
        if let Some(part) = kind.part("", &[]) {
            let fields = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
            self.event("response.content_part.added", fields, out);
        }
        self.open = Some(Open { id, kind, text: String::new(), logprobs: Vec::new() });
    }

    /// More text of the open item.
    fn say(&mut self, text: &str, logprobs: &[Value], out: &mut Vec<u8>) {
        let index = self.output.len();
        let Some(open) = &mut self.open else { unreachable!("text belongs to an item") };
        open.text.push_str(text);
        open.logprobs.extend_from_slice(logprobs);
        let mut fields = json!({"item_id": open.id, "output_index": index, "delta": text});
        if matches!(open.kind, Kind::Reasoning | Kind::Message) {
            fields["content_index"] = 0.into();
        }
        if open.kind == Kind::Message {
            fields["logprobs"] = logprobs.into();
        }
        if let Some(timings) = &self.timings {
            fields["timings"] = timings.clone();
        }
        let name = format!("{}.delta", open.kind.event());
        self.event(&name, fields, out);
    }

    /// Closes what is open; `whole`: it was not cut.
    fn close(&mut self, whole: bool, out: &mut Vec<u8>) {
        let Some(Open { id, kind, text, logprobs }) = self.open.take() else { return };
        let index = self.output.len();
        let mut fields = json!({"item_id": id, "output_index": index});
        fields[kind.done_field()] = text.as_str().into();
        match &kind {
            Kind::Call(call) => fields["name"] = call.name.as_str().into(),
            _ => fields["content_index"] = 0.into(),
        }
        if kind == Kind::Message {
            fields["logprobs"] = logprobs.as_slice().into();
        }
        self.event(&format!("{}.done", kind.event()), fields, out);
        if let Some(part) = kind.part(&text, &logprobs) {
            let fields = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
            self.event("response.content_part.done", fields, out);
        }
        let item = kind.item(&id, &text, &logprobs, true, Status::ended(whole));
        self.event("response.output_item.done", json!({"output_index": index, "item": item}), out);
        self.output.push(item);
    }

    fn part(&mut self, part: &Part, logprobs: &[Value], out: &mut Vec<u8>) {
        let kind = match part {
            Part::Reasoning(_) => Kind::Reasoning,
            Part::Content(_) => Kind::Message,
            Part::Call(call) => return self.add(Kind::Call(call.clone()), out),
            Part::Arguments { text, .. } => return self.say(text, &[], out),
            Part::CallEnd { whole } => return self.close(*whole, out),
        };
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.add(kind, out);
        }
        if let Part::Reasoning(text) | Part::Content(text) = part {
            self.say(text, logprobs, out);
        }
    }

    /// The last state of a response, with what it is called.
    fn ended(&self, scene: &Scene<'_>) -> (&'static str, Map<String, Value>) {
        let counts = Some(scene.stats().counts());
        let (name, mut response) = match is_cut(scene) {
            false => ("response.completed", self.response("completed", counts, Value::Null, Value::Null)),
            true => {
                let details = json!({"reason": "max_output_tokens"});
                ("response.incomplete", self.response("incomplete", counts, Value::Null, details))
            }
        };
        scene.put_stats(&mut response);
        (name, response)
    }
}

impl Writer for ResponseWriter {
    fn id(&self) -> &str {
        &self.id
    }

    fn begin(&mut self, scene: &Scene<'_>, out: &mut Vec<u8>) {
        self.start(out);
        let lead = scene.lead_of(0);
        if !lead.is_empty() {
            self.part(&Part::Content(lead.to_owned()), &[], out);
        }
    }

    fn piece(
        &mut self,
        _: usize,
        piece: &Piece,
        _: &[TokenId],
        _: Option<Map<String, Value>>,
        scene: &Scene<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        self.timings = scene.timings();
        let mut entries = logprobs(&piece.entries);
        for part in &piece.parts {
            let own = if matches!(part, Part::Content(_)) { std::mem::take(&mut entries) } else { Vec::new() };
            self.part(part, &own, out);
        }
        true
    }

    fn end(
        &mut self,
        _: usize,
        entries: &[Entry],
        _: &[TokenId],
        _: Option<Map<String, Value>>,
        scene: &Scene<'_>,
        out: &mut Vec<u8>,
    ) {
        if let Some(open) = &mut self.open
            && open.kind == Kind::Message
        {
            open.logprobs.extend(logprobs(entries));
        }
        self.close(!is_cut(scene), out);
        let (name, response) = self.ended(scene);
        self.event(name, json!({ "response": response }), out);
    }

    fn whole(&mut self, scene: &Scene<'_>) -> Map<String, Value> {
        let choice = &scene.choices[0];
        let (cut, last) = (is_cut(scene), choice.items.len());
        let mut lead = scene.lead_of(0).to_owned();
        if !lead.is_empty() && !matches!(choice.items.first(), Some(Item::Content(_))) {
            let id = self.random.id(Kind::Message.prefix());
            let text = std::mem::take(&mut lead);
            self.output.push(Kind::Message.item(&id, &text, &[], true, Status::ended(!cut || last > 0)));
        }
        for (i, item) in choice.items.iter().enumerate() {
            let whole = !cut || i + 1 < last;
            let (kind, text, whole) = match item {
                Item::Reasoning(text) => (Kind::Reasoning, text.clone(), whole),
                Item::Content(text) => (Kind::Message, std::mem::take(&mut lead) + text, whole),
                Item::Call { call, arguments, whole } => (Kind::Call(call.clone()), arguments.clone(), *whole),
            };
            let own = if kind == Kind::Message { logprobs(choice.entries_of(i)) } else { Vec::new() };
            let id = self.random.id(kind.prefix());
            self.output.push(kind.item(&id, &text, &own, true, Status::ended(whole)));
        }
        self.ended(scene).1
    }

    fn failure(&mut self, error: &ApiError, _: &str, scene: &Scene<'_>, out: &mut Vec<u8>) -> Failed {
        if !self.begun {
            self.begin(scene, out);
        }
        let error = json!({"code": "server_error", "message": error.message});
        let response = self.response("failed", None, error, Value::Null);
        self.event("response.failed", json!({ "response": response }), out);
        Failed::Whole
    }
}

/// Whether a limit ended the answer.
fn is_cut(scene: &Scene<'_>) -> bool {
    matches!(scene.choices[0].end, Some((Finish::MaxTokens | Finish::ContextFull | Finish::TimedOut, _)))
}

/// Entries as they are here.
fn logprobs<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Vec<Value> {
    match chat_logprobs(entries)["content"].take() {
        Value::Array(list) => list,
        _ => unreachable!("built as a list"),
    }
}

/// Why the cache did not have all of a prompt.
fn diagnostics(change: Change, counts: Counts) -> Value {
    let reason = match change {
        Change::None => return json!({"type": "cache_hit"}),
        Change::Unknown => return json!({"type": "comparison_response_not_found"}),
        Change::Tools => "tools_changed",
        Change::Switches => "reasoning_effort_changed",
        // Instructions are a part of the input.
        Change::System | Change::Messages => "input_changed",
    };
    json!({"type": "cache_miss", "reason": reason, "cache_missed_tokens": counts.prompt - counts.cached})
}

fn usage(counts: Counts) -> Value {
    json!({
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": counts.written},
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.prompt + counts.completion,
    })
}
