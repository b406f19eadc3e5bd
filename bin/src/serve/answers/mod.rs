//! answers: from engine events to answers. What a choice has produced is the same for every dialect; a [`Writer`] says it
//! in the words of one.

pub(crate) mod chunks;
pub(crate) mod messages;
pub(crate) mod responses;

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use engine::api::{Finish, Report};
use engine::delta::Committed;
use engine::ids::TokenId;
use serde_json::{Map, Value};

use crate::serve::entries::{Entries, Entry};
use crate::serve::error::ApiError;
use crate::serve::model::TextModel;
use crate::serve::params::Params;
use crate::serve::parts::{self, Assembler, Item, Part, Shape};
use crate::serve::random::Random;
use crate::serve::record::Written;
use crate::serve::stats::Stats;
use crate::serve::trail::Trail;

/// Whose API a request speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dialect {
    Chat,
    Completion,
    Messages,
    Responses,
}

impl Dialect {
    /// Its path.
    pub(crate) fn endpoint(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completion => "/v1/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
        }
    }
}

/// What a writer sees of the request that it answers.
pub(crate) struct Scene<'a> {
    pub params: &'a Params,
    pub choices: &'a [Choice],
    /// Per prompt: text that its choices begin with.
    pub lead: &'a [String],
    pub prompt_tokens: usize,
    /// Those of them that came from the prefix cache, as far as choices are admitted.
    pub cached: u64,
    pub received: Instant,
}

impl Scene<'_> {
    /// Of the choices that have ended.
    pub(crate) fn stats(&self) -> Stats<'_> {
        Stats {
            reports: self.choices.iter().filter_map(|c| c.end.as_ref().map(|(_, r)| r.as_ref())).collect(),
            per_prompt: self.params.n,
            seed: self.params.seed,
            total_ns: self.received.elapsed().as_nanos() as u64,
            plan: &self.params.speculation,
        }
    }

    /// Whether every choice has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.choices.iter().all(|c| c.end.is_some())
    }

    /// Text that a choice begins with.
    pub(crate) fn lead_of(&self, choice: usize) -> &str {
        &self.lead[choice / self.params.n]
    }

    /// `timings` so far, where they are wanted on the way.
    pub(crate) fn timings(&self) -> Option<Value> {
        let reports =
            self.choices.iter().map(|c| c.end.as_ref().map_or(c.so_far.as_ref(), |(_, r)| r.as_ref())).collect();
        self.params.timings.then(|| Stats { reports, ..self.stats() }.timings())
    }

    /// Adds `timings` and `speculation`, unless this server does not tell them.
    pub(crate) fn put_stats(&self, out: &mut Map<String, Value>) {
        if !self.params.stats {
            return;
        }
        let stats = self.stats();
        out.insert("timings".to_owned(), stats.timings());
        out.insert("speculation".to_owned(), stats.speculation());
    }
}

/// How far the prompts of a request are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub total: usize,
    /// Tokens that came from the prefix cache.
    pub cached: u64,
    /// Tokens that are there, these included.
    pub processed: u64,
    /// Since the prompt was begun.
    pub time_ns: u64,
}

/// How the transfer of a stream that has failed ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failed {
    /// Broken off, so that nobody takes it for whole.
    Broken,
    /// As any other: its last event says that it failed.
    Whole,
}

/// Writes one answer. A stream is begun once, before anything else of it.
pub(crate) trait Writer: Send {
    /// Name of the answer.
    fn id(&self) -> &str;

    /// What opens a stream.
    fn begin(&mut self, scene: &Scene<'_>, out: &mut Vec<u8>);

    /// How far the prompts are, before anything else of the stream; only of a dialect whose requests can ask for it.
    fn progress(&mut self, _: Progress, _: &Scene<'_>, _: &mut Vec<u8>) {}

    /// What an event adds to a choice of a stream. `tokens` are ids that were not sent yet; whether they are now. `trail`:
    /// who proposed them, where that is wanted.
    fn piece(
        &mut self,
        choice: usize,
        piece: &Piece,
        tokens: &[TokenId],
        trail: Option<Map<String, Value>>,
        scene: &Scene<'_>,
        out: &mut Vec<u8>,
    ) -> bool;

    /// The end of a choice of a stream, with the entries and ids that are left, and of the stream if it is the last.
    fn end(
        &mut self,
        choice: usize,
        entries: &[Entry],
        tokens: &[TokenId],
        trail: Option<Map<String, Value>>,
        scene: &Scene<'_>,
        out: &mut Vec<u8>,
    );

    /// The whole answer of a request that is not streamed.
    fn whole(&mut self, scene: &Scene<'_>) -> Map<String, Value>;

    /// The last words of a stream that has failed.
    fn failure(&mut self, error: &ApiError, request_id: &str, scene: &Scene<'_>, out: &mut Vec<u8>) -> Failed;

    /// What breaks a silence.
    fn ping(&self) -> &'static [u8] {
        b": keep-alive\n\n"
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// One server-sent event without a name.
pub(crate) fn event(json: &Map<String, Value>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    // Serialising a map of values cannot fail: every key is a string.
    serde_json::to_writer(&mut *out, json).expect("a JSON map serialises");
    out.extend_from_slice(b"\n\n");
}

/// One server-sent event with the name that is its `type`.
pub(crate) fn named_event(name: &str, json: &Map<String, Value>, out: &mut Vec<u8>) {
    debug_assert_eq!(json.get("type").and_then(Value::as_str), Some(name));
    out.extend_from_slice(format!("event: {name}\n").as_bytes());
    event(json, out);
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
    /// Released entries, where the answer is not streamed, and which of the items each belongs to.
    pub whole: Vec<Entry>,
    pub whole_items: Vec<usize>,
    pub completion_tokens: u64,
    /// What is counted of it while it runs, as far as that is wanted.
    pub so_far: Box<Report>,
    pub end: Option<(Finish, Box<Report>)>,
    /// What a stream of it begins with has gone out.
    pub led: bool,
    /// Everything so far, of a choice that is recorded.
    pub written: Option<Written>,
    /// Who proposed what was not sent yet, where that is wanted.
    pub trail: Option<Trail>,
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
            whole_items: Vec::new(),
            completion_tokens: 0,
            so_far: Box::default(),
            end: None,
            led: false,
            written: None,
            trail: None,
        }
    }

    /// Takes a delta of the engine; its tokens wait until they are sent.
    pub(crate) fn take(
        &mut self,
        Committed { said, tokens, logprobs, .. }: &Committed,
        stop_tokens: &[TokenId],
        model: &dyn TextModel,
        random: &mut Random,
    ) -> Piece {
        self.completion_tokens += tokens.len() as u64;
        if let Some(written) = &mut self.written {
            written.add(&said.text, tokens);
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

    /// Keeps what is not streamed. Entries belong to the first content of their piece, or to what came before it.
    pub(crate) fn keep(&mut self, piece: &Piece) {
        let mut item = self.items.len().saturating_sub(1);
        for (i, part) in piece.parts.iter().enumerate() {
            parts::add(&mut self.items, part);
            let first = !piece.parts[..i].iter().any(|p| matches!(p, Part::Content(_)));
            if first && matches!(part, Part::Content(_)) {
                item = self.items.len() - 1;
            }
        }
        self.whole.extend_from_slice(&piece.entries);
        self.whole_items.resize(self.whole.len(), item);
    }

    /// Of what is not streamed, the entries of an item.
    pub(crate) fn entries_of(&self, item: usize) -> impl Iterator<Item = &Entry> {
        self.whole.iter().zip(&self.whole_items).filter(move |(_, i)| **i == item).map(|(entry, _)| entry)
    }

    /// Nothing follows; `cut`: a limit ended the text.
    pub(crate) fn finish(&mut self, finish: Finish, random: &mut Random) -> Piece {
        let cut = matches!(finish, Finish::MaxTokens | Finish::ContextFull | Finish::TimedOut);
        Piece { parts: self.assembler.finish(cut, random), entries: self.entries.finish(finish) }
    }
}
