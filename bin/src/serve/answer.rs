//! From engine events to answers: what every choice has produced, and the JSON of chunks and bodies.

use std::collections::VecDeque;

use engine::api::{Finish, Report, TokenLogprob};
use engine::ids::TokenId;
use serde_json::{Map, Value, json};

use crate::serve::info;
use crate::serve::model::TextModel;

/// Which shape an answer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dialect {
    Chat,
    Completion,
}

/// One generated sequence.
pub(crate) struct Choice {
    pub index: usize,
    /// Text so far; kept whole only for answers that are not streamed.
    pub text: String,
    /// Ids not sent yet.
    pub tokens: Vec<TokenId>,
    pub entries: Entries,
    /// Released entries, where the answer is not streamed.
    pub whole: Vec<Entry>,
    pub completion_tokens: u64,
    pub end: Option<(Finish, Box<Report>)>,
}

/// What one event adds to a choice.
#[derive(Default)]
pub(crate) struct Piece {
    pub text: String,
    pub tokens: Vec<TokenId>,
    pub entries: Vec<Entry>,
}

/// Log-probabilities of one token, with the token's own text.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    token: Text,
    logprob: f32,
    top: Vec<(Text, f32)>,
    /// Code points of text before this token.
    offset: usize,
}

#[derive(Clone, Debug)]
struct Text {
    bytes: Vec<u8>,
}

impl Text {
    fn string(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Stands for minus infinity, which JSON lacks.
const LEAST_LOGPROB: f32 = -9999.0;

/// Log-probability entries wait until the text of their token has been released, so that the entries of an answer
/// cover exactly its text wherever a stop string cuts it and however the text was split into events.
#[derive(Default)]
pub(crate) struct Entries {
    /// First byte and end of each token's text, and its entry.
    waiting: VecDeque<(usize, usize, Entry)>,
    /// Bytes of text of all tokens so far, and of all text released so far.
    written: usize,
    released: usize,
    /// Code points of the tokens so far.
    offset: usize,
}

impl Entries {
    /// Starts behind an echoed prompt.
    pub(crate) fn after(prompt: &str) -> Self {
        Self { offset: prompt.chars().count(), ..Self::default() }
    }

    fn push(&mut self, logprob: &TokenLogprob, model: &dyn TextModel, hidden: bool) {
        let bytes = model.piece(logprob.token);
        let start = self.written;
        let offset = self.offset;
        if !hidden {
            self.written += bytes.len();
            self.offset += String::from_utf8_lossy(&bytes).chars().count();
        }
        let top = logprob.top.iter().map(|(t, p)| (Text { bytes: model.piece(*t) }, p.max(LEAST_LOGPROB))).collect();
        let logprob = logprob.logprob.max(LEAST_LOGPROB);
        self.waiting.push_back((start, self.written, Entry { token: Text { bytes }, logprob, top, offset }));
    }

    fn release(&mut self, text: &str) -> Vec<Entry> {
        self.released += text.len();
        let mut out = Vec::new();
        // Entries never travel without text: a hidden token's entry waits for the next.
        while !text.is_empty() && self.waiting.front().is_some_and(|(_, end, _)| *end <= self.released) {
            out.extend(self.waiting.pop_front().map(|(_, _, entry)| entry));
        }
        out
    }

    /// What is left at the end: everything, or after a stop string what begins before the cut.
    pub(crate) fn finish(&mut self, finish: Finish) -> Vec<Entry> {
        let cut = if matches!(finish, Finish::StopString(_)) { self.released } else { usize::MAX };
        self.waiting.drain(..).filter(|(start, _, _)| *start < cut).map(|(_, _, entry)| entry).collect()
    }
}

impl Choice {
    pub(crate) fn new(index: usize, entries: Entries) -> Self {
        Self {
            index,
            text: String::new(),
            tokens: Vec::new(),
            entries,
            whole: Vec::new(),
            completion_tokens: 0,
            end: None,
        }
    }

    /// Takes a delta of the engine.
    pub(crate) fn take(
        &mut self,
        text: String,
        tokens: Vec<TokenId>,
        logprobs: &[TokenLogprob],
        stop_tokens: &[TokenId],
        model: &dyn TextModel,
    ) -> Piece {
        self.completion_tokens += tokens.len() as u64;
        for logprob in logprobs {
            // Entries cover the text; what ends a choice is not part of it.
            let ends = model.is_end(logprob.token) || stop_tokens.contains(&logprob.token);
            if !ends {
                self.entries.push(logprob, model, model.is_control(logprob.token));
            }
        }
        let entries = self.entries.release(&text);
        Piece { text, tokens, entries }
    }
}

/// `finish_reason` and the `stop_reason` extension.
pub(crate) fn reasons(finish: Finish, stop_text: &[String], stop_tokens: &[TokenId]) -> (&'static str, Value) {
    match finish {
        Finish::EndToken(id) if stop_tokens.contains(&id) => ("stop", id.0.into()),
        Finish::EndToken(_) => ("stop", Value::Null),
        Finish::StopString(i) => ("stop", stop_text.get(i as usize).map_or(Value::Null, |s| s.as_str().into())),
        Finish::MaxTokens => ("length", "max_tokens".into()),
        Finish::ContextFull => ("length", "context_full".into()),
        Finish::Fault => unreachable!("a fault is an error, not an answer"),
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

    /// Text of a choice; `tokens` when the request asked for ids.
    pub(crate) fn text_chunk(&self, index: usize, piece: &Piece, tokens: Option<&[TokenId]>) -> Map<String, Value> {
        let content = match self.dialect {
            Dialect::Chat => ("delta", json!({"content": piece.text})),
            Dialect::Completion => ("text", piece.text.as_str().into()),
        };
        let mut choice = self.choice(index, content, &piece.entries, Value::Null);
        put_tokens(&mut choice, tokens);
        self.chunk(choice)
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
        text: &str,
        reason: (&str, Value),
        entries: &[Entry],
        tokens: Option<&[TokenId]>,
    ) -> Value {
        let content = match self.dialect {
            Dialect::Chat => ("message", json!({"role": "assistant", "content": text, "refusal": null})),
            Dialect::Completion => ("text", text.into()),
        };
        let mut choice = self.choice(index, content, entries, reason.0.into());
        choice.insert("stop_reason".to_owned(), reason.1);
        put_tokens(&mut choice, tokens);
        choice.into()
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

fn put_tokens(choice: &mut Map<String, Value>, tokens: Option<&[TokenId]>) {
    if let Some(tokens) = tokens {
        choice.insert("token_ids".to_owned(), tokens.iter().map(|t| t.0).collect());
    }
}

fn chat_logprobs(entries: &[Entry]) -> Value {
    let one = |text: &Text, logprob: f32| json!({"token": text.string(), "logprob": logprob, "bytes": text.bytes});
    let list = entries.iter().map(|entry| {
        let mut out = one(&entry.token, entry.logprob);
        out["top_logprobs"] = entry.top.iter().map(|(text, logprob)| one(text, *logprob)).collect();
        out
    });
    json!({"content": list.collect::<Vec<_>>(), "refusal": null})
}

fn legacy_logprobs(entries: &[Entry]) -> Value {
    let top = |entry: &Entry| {
        let mut map = Map::new();
        for (text, logprob) in &entry.top {
            map.entry(text.string()).or_insert_with(|| (*logprob).into());
        }
        Value::from(map)
    };
    json!({
        "tokens": entries.iter().map(|e| e.token.string()).collect::<Vec<_>>(),
        "token_logprobs": entries.iter().map(|e| e.logprob).collect::<Vec<_>>(),
        "top_logprobs": entries.iter().map(top).collect::<Vec<_>>(),
        "text_offset": entries.iter().map(|e| e.offset).collect::<Vec<_>>(),
    })
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
