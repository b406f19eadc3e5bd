//! From engine events to answers: what every choice has produced, and the JSON of chunks and bodies.

use std::sync::Arc;

use engine::api::{Finish, Report, TokenLogprob};
use engine::channels::Said;
use engine::ids::TokenId;
use serde_json::{Map, Value, json};

use crate::serve::entries::{Entries, Entry, chat_logprobs, legacy_logprobs};
use crate::serve::info;
use crate::serve::model::TextModel;
use crate::serve::parts::{Assembler, Call, Item, Part, Shape};
use crate::serve::random::Random;
use crate::serve::record::Written;

/// Which shape an answer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dialect {
    Chat,
    Completion,
}

/// One generated sequence.
pub(crate) struct Choice {
    pub index: usize,
    /// What it consists of so far; kept only for answers that are not streamed.
    pub items: Vec<Item>,
    pub assembler: Assembler,
    /// Ids not sent yet.
    pub tokens: Vec<TokenId>,
    pub entries: Entries,
    /// Released entries, where the answer is not streamed.
    pub whole: Vec<Entry>,
    pub completion_tokens: u64,
    pub end: Option<(Finish, Box<Report>)>,
    /// Everything so far, of a choice that is recorded.
    pub written: Option<Written>,
}

/// What one event adds to a choice.
#[derive(Default)]
pub(crate) struct Piece {
    pub parts: Vec<Part>,
    /// Entries of its content; none without any.
    pub entries: Vec<Entry>,
}

impl Choice {
    pub(crate) fn new(index: usize, entries: Entries, shape: &Arc<Shape>) -> Self {
        Self {
            index,
            items: Vec::new(),
            assembler: Assembler::new(shape),
            tokens: Vec::new(),
            entries,
            whole: Vec::new(),
            completion_tokens: 0,
            end: None,
            written: None,
        }
    }

    /// Takes a delta of the engine; its tokens wait until they are sent.
    pub(crate) fn take(
        &mut self,
        said: &Said,
        tokens: Vec<TokenId>,
        logprobs: &[TokenLogprob],
        stop_tokens: &[TokenId],
        model: &dyn TextModel,
        random: &mut Random,
    ) -> Piece {
        self.completion_tokens += tokens.len() as u64;
        if let Some(written) = &mut self.written {
            written.add(&said.text, &tokens);
        }
        self.tokens.extend(tokens);
        for logprob in logprobs {
            // Entries cover the text; what ends a choice is not part of it.
            let ends = model.is_end(logprob.token) || stop_tokens.contains(&logprob.token);
            if !ends {
                self.entries.push(logprob, model);
            }
        }
        let entries = self.entries.release(said);
        Piece { parts: self.assembler.take(said, random), entries }
    }

    /// Nothing follows; `cut`: a limit ended the text.
    pub(crate) fn finish(&mut self, finish: Finish, random: &mut Random) -> Piece {
        let cut = matches!(finish, Finish::MaxTokens | Finish::ContextFull);
        Piece { parts: self.assembler.finish(cut, random), entries: self.entries.finish(finish) }
    }
}

/// `finish_reason` and the `stop_reason` extension. A choice that called tools ends for their results, unless a limit
/// ended it.
pub(crate) fn reasons(
    finish: Finish,
    calls: usize,
    legacy: bool,
    stop_text: &[String],
    stop_tokens: &[TokenId],
) -> (&'static str, Value) {
    let (reason, stop) = plain_reasons(finish, stop_text, stop_tokens);
    match (reason, calls, legacy) {
        ("stop", 1.., true) => ("function_call", stop),
        ("stop", 1.., false) => ("tool_calls", stop),
        _ => (reason, stop),
    }
}

fn plain_reasons(finish: Finish, stop_text: &[String], stop_tokens: &[TokenId]) -> (&'static str, Value) {
    match finish {
        Finish::EndToken(id) if stop_tokens.contains(&id) => ("stop", id.0.into()),
        Finish::EndToken(_) => ("stop", Value::Null),
        Finish::StopString(i) => ("stop", stop_text.get(i as usize).map_or(Value::Null, |s| s.as_str().into())),
        Finish::MaxTokens => ("length", "max_tokens".into()),
        Finish::ContextFull => ("length", "context_full".into()),
        Finish::Fault(_) => unreachable!("a fault is an error, not an answer"),
    }
}

/// The constant part of an answer's JSON.
pub(crate) struct Frame {
    pub dialect: Dialect,
    pub id: String,
    pub created: u64,
    pub model: String,
    /// `usage: null` on every chunk.
    pub null_usage: bool,
    pub logprobs: bool,
    /// Calls are answered as `function_call`.
    pub legacy: bool,
}

impl Frame {
    fn base(&self, object: &str, choices: Value) -> Map<String, Value> {
        let mut out = Map::new();
        out.insert("id".to_owned(), self.id.as_str().into());
        out.insert("object".to_owned(), object.into());
        out.insert("created".to_owned(), self.created.into());
        out.insert("model".to_owned(), self.model.as_str().into());
        out.insert("system_fingerprint".to_owned(), info::fingerprint().into());
        out.insert("choices".to_owned(), choices);
        out
    }

    fn chunk_object(&self) -> &'static str {
        match self.dialect {
            Dialect::Chat => "chat.completion.chunk",
            Dialect::Completion => "text_completion",
        }
    }

    /// One choice's part of a chunk or body.
    fn choice(&self, index: usize, content: (&str, Value), entries: &[Entry], finish: Value) -> Map<String, Value> {
        let logprobs = match (self.logprobs, self.dialect) {
            (false, _) => Value::Null,
            (true, Dialect::Chat) => chat_logprobs(entries),
            (true, Dialect::Completion) => legacy_logprobs(entries),
        };
        let mut out = Map::new();
        out.insert("index".to_owned(), index.into());
        out.insert(content.0.to_owned(), content.1);
        out.insert("logprobs".to_owned(), logprobs);
        out.insert("finish_reason".to_owned(), finish);
        out
    }

    fn chunk(&self, choice: Map<String, Value>) -> Map<String, Value> {
        let mut out = self.base(self.chunk_object(), Value::Array(vec![choice.into()]));
        if self.null_usage {
            out.insert("usage".to_owned(), Value::Null);
        }
        out
    }

    /// The first chunk of a chat choice.
    pub(crate) fn role_chunk(&self, index: usize) -> Map<String, Value> {
        let delta = json!({"role": "assistant", "content": ""});
        let mut choice = self.choice(index, ("delta", delta), &[], Value::Null);
        choice.insert("logprobs".to_owned(), Value::Null);
        self.chunk(choice)
    }

    /// A part of a choice; `tokens` when the request asked for ids. `None`: it is nothing that this dialect says.
    pub(crate) fn part_chunk(
        &self,
        index: usize,
        part: &Part,
        entries: &[Entry],
        tokens: Option<&[TokenId]>,
    ) -> Option<Map<String, Value>> {
        let content = match (self.dialect, part) {
            (Dialect::Chat, part) => ("delta", self.delta(part)?),
            (Dialect::Completion, Part::Content(text)) => ("text", text.as_str().into()),
            (Dialect::Completion, _) => unreachable!("a completion is all content"),
        };
        let mut choice = self.choice(index, content, entries, Value::Null);
        if entries.is_empty() && !matches!(part, Part::Content(_)) {
            choice.insert("logprobs".to_owned(), Value::Null);
        }
        put_tokens(&mut choice, tokens);
        Some(self.chunk(choice))
    }

    fn delta(&self, part: &Part) -> Option<Value> {
        Some(match part {
            Part::Reasoning(text) => json!({"reasoning_content": text}),
            Part::Content(text) => json!({"content": text}),
            Part::Call(call) if self.legacy => json!({"function_call": {"name": call.name, "arguments": ""}}),
            Part::Call(call) => json!({"tool_calls": [head(call, "")]}),
            Part::Arguments { text, .. } if self.legacy => json!({"function_call": {"arguments": text}}),
            Part::Arguments { text, call, custom: false } => {
                json!({"tool_calls": [{"index": call, "function": {"arguments": text}}]})
            }
            Part::Arguments { text, call, custom: true } => {
                json!({"tool_calls": [{"index": call, "custom": {"input": text}}]})
            }
            Part::CallEnd => return None,
        })
    }

    /// The last chunk of a choice.
    pub(crate) fn finish_chunk(
        &self,
        index: usize,
        reason: (&str, Value),
        entries: &[Entry],
        tokens: Option<&[TokenId]>,
    ) -> Map<String, Value> {
        let content = match self.dialect {
            Dialect::Chat => ("delta", json!({})),
            Dialect::Completion => ("text", "".into()),
        };
        let mut choice = self.choice(index, content, entries, reason.0.into());
        if entries.is_empty() {
            choice.insert("logprobs".to_owned(), Value::Null);
        }
        choice.insert("stop_reason".to_owned(), reason.1);
        put_tokens(&mut choice, tokens);
        self.chunk(choice)
    }

    /// The chunk without choices that carries the usage.
    pub(crate) fn usage_chunk(&self, usage: Value) -> Map<String, Value> {
        let mut out = self.base(self.chunk_object(), json!([]));
        out.insert("usage".to_owned(), usage);
        out
    }

    /// One whole choice of a body.
    pub(crate) fn whole_choice(
        &self,
        index: usize,
        lead: &str,
        items: &[Item],
        reason: (&str, Value),
        entries: &[Entry],
        tokens: Option<&[TokenId]>,
    ) -> Value {
        let content = match self.dialect {
            Dialect::Chat => ("message", self.message(lead, items)),
            Dialect::Completion => ("text", joined(lead, items).into()),
        };
        let mut choice = self.choice(index, content, entries, reason.0.into());
        choice.insert("stop_reason".to_owned(), reason.1);
        put_tokens(&mut choice, tokens);
        choice.into()
    }

    fn message(&self, lead: &str, items: &[Item]) -> Value {
        let content = joined(lead, items);
        let reasoning: String =
            items.iter().filter_map(|i| if let Item::Reasoning(t) = i { Some(t.as_str()) } else { None }).collect();
        let calls: Vec<(&Call, &str)> = items
            .iter()
            .filter_map(|i| if let Item::Call(c, arguments) = i { Some((c, arguments.as_str())) } else { None })
            .collect();
        let silent = content.is_empty() && !calls.is_empty();
        let content = if silent { Value::Null } else { content.into() };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        match calls.first() {
            None => {}
            Some((call, arguments)) if self.legacy => {
                message["function_call"] = json!({"name": call.name, "arguments": arguments});
            }
            Some(_) => {
                let one = |(call, arguments): &(&Call, &str)| {
                    let mut head = head(call, arguments);
                    // The index is the place in the list.
                    head.as_object_mut().expect("an object").shift_remove("index");
                    head
                };
                message["tool_calls"] = calls.iter().map(one).collect();
            }
        }
        message
    }

    /// A whole body.
    pub(crate) fn body(&self, choices: Vec<Value>, usage: Value) -> Map<String, Value> {
        let object = match self.dialect {
            Dialect::Chat => "chat.completion",
            Dialect::Completion => "text_completion",
        };
        let mut out = self.base(object, choices.into());
        out.insert("usage".to_owned(), usage);
        out
    }
}

/// All content behind what the answer begins with.
fn joined(lead: &str, items: &[Item]) -> String {
    let content = items.iter().filter_map(|i| if let Item::Content(text) = i { Some(text.as_str()) } else { None });
    std::iter::once(lead).chain(content).collect()
}

/// A call with its arguments, or its beginning.
fn head(call: &Call, arguments: &str) -> Value {
    if call.custom {
        return json!({"index": call.index, "id": call.id, "type": "custom",
            "custom": {"name": call.name, "input": arguments}});
    }
    json!({"index": call.index, "id": call.id, "type": "function",
        "function": {"name": call.name, "arguments": arguments}})
}

fn put_tokens(choice: &mut Map<String, Value>, tokens: Option<&[TokenId]>) {
    if let Some(tokens) = tokens {
        choice.insert("token_ids".to_owned(), tokens.iter().map(|t| t.0).collect());
    }
}

/// One server-sent event.
pub(crate) fn event(json: &Map<String, Value>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    // Serialising a map of values cannot fail: every key is a string.
    serde_json::to_writer(&mut *out, json).expect("a JSON map serialises");
    out.extend_from_slice(b"\n\n");
}

/// The event that ends a complete stream.
pub(crate) const DONE: &[u8] = b"data: [DONE]\n\n";
