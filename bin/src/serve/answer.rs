//! From engine events to answers: what every choice has produced, and the JSON of chunks and bodies.

use std::collections::VecDeque;

use engine::api::{Finish, Report, TokenLogprob};
use engine::ids::TokenId;
use engine::tables::output::decode;
use serde_json::{Map, Value, json};

use crate::serve::info;
use crate::serve::model::TextModel;
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
    /// Text so far; kept whole only for answers that are not streamed.
    pub text: String,
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
///
/// All places are in the text that the engine releases, where every invalid sequence of bytes is a U+FFFD: the bytes of
/// the tokens are decoded here as they are there.
#[derive(Default)]
pub(crate) struct Entries {
    waiting: VecDeque<Waiting>,
    /// First bytes of a character whose end has not come.
    cut: Vec<u8>,
    /// Bytes of text of all tokens so far, the cut character aside, and of all text released so far.
    written: usize,
    released: usize,
    /// Code points written.
    offset: usize,
    /// Tokens that write nothing have no entry.
    visible_only: bool,
}

/// An entry and where the text of its token stands.
struct Waiting {
    /// First byte of the first character that the token has a part of.
    start: usize,
    /// One past the last byte of the last one; `None` while that character is cut.
    end: Option<usize>,
    entry: Entry,
}

impl Entries {
    /// Starts behind the text that the answer begins with. The entries of a completion are of all its tokens, those of
    /// a chat of its content's only.
    pub(crate) fn of(dialect: Dialect, lead: &str) -> Self {
        Self { offset: lead.chars().count(), visible_only: dialect == Dialect::Chat, ..Self::default() }
    }

    fn push(&mut self, logprob: &TokenLogprob, model: &dyn TextModel, hidden: bool) {
        if hidden && self.visible_only {
            return;
        }
        let bytes = model.piece(logprob.token);
        let (start, offset) = if hidden { (self.written, self.offset) } else { self.write(&bytes) };
        let end = self.cut.is_empty().then_some(self.written);
        let top = logprob.top.iter().map(|(t, p)| (Text { bytes: model.piece(*t) }, p.max(LEAST_LOGPROB))).collect();
        let logprob = logprob.logprob.max(LEAST_LOGPROB);
        self.waiting.push_back(Waiting { start, end, entry: Entry { token: Text { bytes }, logprob, top, offset } });
    }

    /// Decodes the bytes of one token. Returns where its text begins: byte, and code points before it.
    fn write(&mut self, bytes: &[u8]) -> (usize, usize) {
        let before = self.cut.len();
        let mut begins = (self.written, self.offset);
        self.cut.extend_from_slice(bytes);
        // The character that was cut is not continued but given up.
        let given_up = before > 0
            && std::str::from_utf8(&self.cut)
                .is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_some_and(|n| n <= before));
        let mut text = String::new();
        let used = decode(&self.cut, false, &mut text);
        self.cut.drain(..used);
        if let Some(first) = text.chars().next().filter(|_| before > 0) {
            let end = self.written + first.len_utf8();
            self.waiting.iter_mut().rev().map_while(|w| w.end.is_none().then_some(w)).for_each(|w| w.end = Some(end));
            if given_up {
                begins = (end, self.offset + 1);
            }
        }
        self.written += text.len();
        self.offset += text.chars().count();
        begins
    }

    fn release(&mut self, text: &str) -> Vec<Entry> {
        self.released += text.len();
        let mut out = Vec::new();
        // Entries never travel without text: a hidden token's entry waits for the next.
        while !text.is_empty() && self.waiting.front().and_then(|w| w.end).is_some_and(|end| end <= self.released) {
            out.extend(self.waiting.pop_front().map(|w| w.entry));
        }
        out
    }

    /// What is left at the end: everything, or after a stop string what begins before the cut.
    pub(crate) fn finish(&mut self, finish: Finish) -> Vec<Entry> {
        let cut = if matches!(finish, Finish::StopString(_)) { self.released } else { usize::MAX };
        self.waiting.drain(..).filter(|w| w.start < cut).map(|w| w.entry).collect()
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
            written: None,
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
        if let Some(written) = &mut self.written {
            written.add(&text, &tokens);
        }
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

#[cfg(test)]
mod tests {
    use engine::api::Stop;
    use engine::tables::output::Output;

    use super::*;
    use crate::serve::model::{Caps, Conversation, RenderError, Rendered};

    /// Every id below 256 is its byte; 256 is hidden.
    struct Bytes;

    impl TextModel for Bytes {
        fn vocab(&self) -> usize {
            257
        }

        fn encode(&self, text: &str, _: bool, _: bool) -> Vec<TokenId> {
            text.bytes().map(|b| TokenId(b.into())).collect()
        }

        fn ids_min(&self, bytes: usize) -> usize {
            bytes
        }

        fn piece(&self, token: TokenId) -> Vec<u8> {
            if self.is_control(token) { b"<hidden>".to_vec() } else { vec![token.0 as u8] }
        }

        fn is_control(&self, token: TokenId) -> bool {
            token.0 == 256
        }

        fn is_end(&self, _: TokenId) -> bool {
            false
        }

        fn caps(&self) -> Caps {
            Caps::default()
        }

        fn render(&self, _: &Conversation<'_>, _: usize) -> Result<Rendered, RenderError> {
            Err(RenderError::Template("there is none".to_owned()))
        }
    }

    /// Runs `tokens` through an output state as the engine does, `group` tokens to an event. Returns per event the text
    /// and the tokens of its entries, the rest as the last; and the offsets of all entries.
    fn run(tokens: &[u32], stop: &str, group: usize) -> (Vec<(String, Vec<u32>)>, Vec<usize>) {
        let strings = if stop.is_empty() { Vec::new() } else { vec![stop.as_bytes().to_vec()] };
        let stop = Stop { strings, ..Stop::default() };
        let (mut output, mut choice, mut out) = (Output::default(), Choice::new(0, Entries::default()), Vec::new());
        let mut entries = Vec::new();
        let mut finish = Finish::MaxTokens;
        let events = tokens.chunks(group);
        let last = events.len() - 1;
        for (i, event) in events.enumerate() {
            let mut text = String::new();
            for &token in event {
                if token < 256 && output.push(&[token as u8], &stop, true, &mut text).is_some() {
                    finish = Finish::StopString(0);
                }
            }
            if i == last && finish == Finish::MaxTokens {
                output.finish(&mut text);
            }
            let ids: Vec<TokenId> = event.iter().map(|t| TokenId(*t)).collect();
            let logprob = |t: &TokenId| TokenLogprob { token: *t, logprob: -1.0, top: Vec::new() };
            let logprobs: Vec<TokenLogprob> = ids.iter().map(logprob).collect();
            let piece = choice.take(text, ids, &logprobs, &[], &Bytes);
            out.push((piece.text, piece.entries.clone()));
            entries.extend(piece.entries);
        }
        let rest = choice.entries.finish(finish);
        entries.extend(rest.clone());
        out.push((String::new(), rest));
        let token = |e: &Entry| if e.token.bytes.len() == 1 { e.token.bytes[0].into() } else { 256 };
        let named = out.into_iter().map(|(text, list)| (text, list.iter().map(token).collect()));
        (named.collect(), entries.iter().map(|e| e.offset).collect())
    }

    fn check(tokens: &[u32], stop: &str, expected: &[(&str, &[u32])], offsets: &[usize]) {
        let expected: Vec<(String, Vec<u32>)> =
            expected.iter().map(|(text, list)| ((*text).to_owned(), list.to_vec())).collect();
        assert_eq!(run(tokens, stop, 1), (expected, offsets.to_vec()), "{tokens:x?}, stop {stop:?}");
    }

    #[test]
    fn entries_travel_with_their_own_text() {
        const A: u32 = b'a' as u32;
        const B: u32 = b'b' as u32;
        check(&[A, B], "", &[("a", &[A]), ("b", &[B]), ("", &[])], &[0, 1]);
        // An invalid byte is three bytes of text: what is held back behind it does not go with it.
        check(
            &[0xff, A, 0xff, B],
            "ab",
            &[("\u{fffd}", &[0xff]), ("", &[]), ("a\u{fffd}", &[A, 0xff]), ("b", &[B]), ("", &[])],
            &[0, 1, 2, 3],
        );
        // A character of several tokens, and one that is given up, by another and by the end.
        check(&[0xc3, 0xa9, A], "", &[("", &[]), ("\u{e9}", &[0xc3, 0xa9]), ("a", &[A]), ("", &[])], &[0, 0, 1]);
        check(&[0xf0, 0x9f, A], "", &[("", &[]), ("", &[]), ("\u{fffd}a", &[0xf0, 0x9f, A]), ("", &[])], &[0, 0, 1]);
        check(&[A, 0xf0], "", &[("a", &[A]), ("\u{fffd}", &[]), ("", &[0xf0])], &[0, 1]);
        check(
            &[0xf0, 256, 0x9f, A],
            "",
            &[("", &[]), ("", &[]), ("", &[]), ("\u{fffd}a", &[0xf0, 256, 0x9f, A]), ("", &[])],
            &[0, 0, 0, 1],
        );
        // A stop string behind invalid bytes takes its own tokens along and no others.
        check(
            &[0xff, 0xff, A, B],
            "ab",
            &[("\u{fffd}", &[0xff]), ("\u{fffd}", &[0xff]), ("", &[]), ("", &[]), ("", &[])],
            &[0, 1],
        );
        check(&[0xf0, A, B], "ab", &[("", &[]), ("", &[]), ("\u{fffd}", &[0xf0]), ("", &[])], &[0]);
    }

    /// Bytes that begin, continue, end and break characters, with a stop string among them: the entries are the same
    /// however the tokens are spread over events, and every offset is the number of characters before the token.
    #[test]
    fn events_of_any_size_give_the_same_entries() {
        let bytes: [u32; 7] = [b'a'.into(), b'b'.into(), 0x80, 0xc3, 0xe2, 0xf0, 0x9f];
        for n in 0..bytes.len().pow(5) {
            let tokens: Vec<u32> = (0..5).map(|i| bytes[n / bytes.len().pow(i) % bytes.len()]).collect();
            let stopped = tokens.windows(2).position(|w| w == [u32::from(b'a'), u32::from(b'b')]);
            let tokens = &tokens[..stopped.map_or(5, |at| at + 2)];
            let whole: Vec<u8> = tokens.iter().map(|t| *t as u8).collect();
            for group in 1..=tokens.len() {
                let (events, offsets) = run(tokens, "ab", group);
                let all: Vec<u32> = events.iter().flat_map(|(_, list)| list.iter().copied()).collect();
                assert_eq!(all, tokens[..stopped.unwrap_or(tokens.len())], "{tokens:x?} by {group}");
                let text: String = events.iter().map(|(text, _)| text.as_str()).collect();
                assert_eq!(text, String::from_utf8_lossy(&whole[..all.len()]), "{tokens:x?} by {group}");
                let chars = |end: usize| String::from_utf8_lossy(&whole[..end]).chars().count();
                // A byte that adds no character belongs to the one before it.
                let expected = |i: usize| chars(i) - usize::from(chars(i + 1) == chars(i));
                assert_eq!(offsets, (0..all.len()).map(expected).collect::<Vec<_>>(), "{tokens:x?} by {group}");
            }
        }
    }
}
