//! One generation request on its way through the engine: choices, their tickets, and the bytes that go to the client.

use std::sync::Arc;
use std::time::Instant;

use engine::api::{AdmitError, Command, Finish, Report, Submission, TokenLogprob};
use engine::channels::{Markers, Said};
use engine::ids::{Ticket, TokenId};
use engine::step::Fault;
use serde_json::{Map, Value};

use crate::serve::answer::{self, Choice, DONE, Frame, Piece};
use crate::serve::constrain::Compiled;
use crate::serve::error::ApiError;
use crate::serve::http::Reply;
use crate::serve::link::Exchange;
use crate::serve::metrics::End;
use crate::serve::model::TextModel;
use crate::serve::params::Params;
use crate::serve::parts::{self, Part};
use crate::serve::random::Random;
use crate::serve::record::{Asked, Line};
use crate::serve::stats::Stats;

/// A request the engine works on.
pub(crate) struct Job {
    pub exchange: Exchange,
    pub received: Instant,
    pub params: Params,
    pub frame: Frame,
    pub choices: Vec<Choice>,
    pub tickets: Vec<Ticket>,
    /// Per choice: admitted to a slot.
    pub admitted: Vec<bool>,
    pub prompt_tokens: Vec<usize>,
    /// Text that every choice starts with: an echoed prompt (per prompt), or an opened thinking tag.
    pub lead: Vec<String>,
    /// Tokens that mark channels.
    pub markers: Option<Arc<Markers>>,
    /// Headers of the answer.
    pub headers: Vec<(&'static str, String)>,
    /// Field that a refusal of the prompt names.
    pub prompt_param: &'static str,
    /// The stream's head has gone out.
    pub open: bool,
    /// The chunks that begin every choice have gone out.
    pub begun: bool,
    pub last_sent: Instant,
    pub paused: bool,
    /// Of a request that is recorded.
    pub asked: Option<Arc<Asked>>,
}

/// What the job wants done after an event.
pub(crate) enum Outcome {
    /// Nothing, or these bytes of the stream.
    Send(Vec<u8>),
    /// The whole answer.
    Reply(Reply),
    /// The last bytes of the stream.
    Close(Vec<u8>),
    /// It failed.
    Fail(ApiError),
}

impl Job {
    pub(crate) fn per_prompt(&self) -> usize {
        self.params.n
    }

    /// The submissions, in choice order.
    pub(crate) fn submissions(
        &self,
        prompts: Vec<Vec<TokenId>>,
        logprobs: Option<u32>,
        constraint: Option<&Compiled>,
    ) -> Vec<Command> {
        let n = self.params.n;
        let one = |(i, ticket): (usize, &Ticket)| {
            let mut sampling = self.params.sampling.clone();
            sampling.choice = (i % n) as u32;
            Command::Submit(Box::new(Submission {
                ticket: *ticket,
                prompt: prompts[i / n].clone(),
                max_tokens: self.params.max_tokens.unwrap_or(u32::MAX),
                sampling,
                stop: self.params.stop.clone(),
                speculation: self.params.speculation.effective,
                logprobs,
                show_special: false,
                markers: self.markers.clone(),
                cache: self.params.cache,
                sibling: (i % n > 0).then(|| self.tickets[i - i % n]),
                constraint: constraint.map(Compiled::start),
            }))
        };
        self.tickets.iter().enumerate().map(one).collect()
    }

    /// The record of a choice that ends, if there is to be one: once, and of what was admitted alone.
    pub(crate) fn line(&mut self, index: usize, end: End) -> Option<Line> {
        let asked = Arc::clone(self.asked.as_ref().filter(|_| self.admitted[index])?);
        let written = self.choices[index].written.take()?;
        Some(Line { asked, index, written, end })
    }

    /// Tickets that still run or wait.
    pub(crate) fn live(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.choices.iter().zip(&self.tickets).filter(|(c, _)| c.end.is_none()).map(|(_, t)| *t)
    }

    /// The chunks that open every choice, in choice order; nothing when they went out before.
    pub(crate) fn begin(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.begun || !self.params.stream {
            return out;
        }
        self.begun = true;
        for choice in &self.choices {
            if self.frame.dialect == answer::Dialect::Chat {
                answer::event(&self.frame.role_chunk(choice.index), &mut out);
            }
        }
        for choice in &self.choices {
            let lead = &self.lead[choice.index / self.params.n];
            if !lead.is_empty() {
                let lead = Piece { parts: vec![Part::Content(lead.clone())], ..Piece::default() };
                self.chunks(choice.index, &lead, &[], &mut out);
            }
        }
        out
    }

    pub(crate) fn delta(
        &mut self,
        index: usize,
        said: &Said,
        tokens: Vec<TokenId>,
        logprobs: &[TokenLogprob],
        model: &dyn TextModel,
        random: &mut Random,
    ) -> Outcome {
        let choice = &mut self.choices[index];
        let piece = choice.take(said, tokens, logprobs, &self.params.stop.tokens, model, random);
        let mut out = Vec::new();
        self.send(index, &piece, &mut out);
        Outcome::Send(out)
    }

    /// Writes what an event adds, or keeps it where the answer is sent as a whole. Ids without text travel with the next
    /// text, or with the end.
    fn send(&mut self, index: usize, piece: &Piece, out: &mut Vec<u8>) {
        let choice = &mut self.choices[index];
        if !self.params.stream {
            piece.parts.iter().for_each(|part| parts::add(&mut choice.items, part));
            choice.whole.extend_from_slice(&piece.entries);
            return;
        }
        if piece.parts.is_empty() {
            return;
        }
        let tokens = std::mem::take(&mut self.choices[index].tokens);
        let sent = self.chunks(index, piece, &tokens, out);
        if !sent {
            self.choices[index].tokens = tokens;
        }
    }

    /// The chunks of a piece; whether there are any. The first carries the ids, the first of content the entries.
    fn chunks(&self, index: usize, piece: &Piece, tokens: &[TokenId], out: &mut Vec<u8>) -> bool {
        let mut ids = self.params.return_tokens.then_some(tokens);
        let mut entries = piece.entries.as_slice();
        let mut any = false;
        for part in &piece.parts {
            let own = if matches!(part, Part::Content(_)) { std::mem::take(&mut entries) } else { &[] };
            if let Some(chunk) = self.frame.part_chunk(index, part, own, ids) {
                answer::event(&self.with_usage(chunk), out);
                ids = ids.map(|_| [].as_slice());
                any = true;
            }
        }
        any
    }

    pub(crate) fn finished(
        &mut self,
        index: usize,
        finish: Finish,
        report: Box<Report>,
        random: &mut Random,
    ) -> Outcome {
        match finish {
            Finish::Fault(Fault::NonFinite) => {
                return Outcome::Fail(ApiError::engine("the model produced no finite value; the request cannot go on"));
            }
            Finish::Fault(Fault::Barred) => {
                let message = "the constraint and the bans of this request leave no token that could come next";
                return Outcome::Fail(ApiError::engine(message));
            }
            Finish::Fault(Fault::Lost) => return Outcome::Fail(ApiError::stage_lost()),
            _ => {}
        }
        let choice = &mut self.choices[index];
        choice.completion_tokens = report.completion_tokens;
        choice.end = Some((finish, report));
        let mut rest = choice.finish(finish, random);
        let last = self.choices.iter().all(|c| c.end.is_some());
        let mut out = Vec::new();
        if !self.params.stream {
            self.send(index, &rest, &mut out);
            return if last { Outcome::Reply(self.whole()) } else { Outcome::Send(Vec::new()) };
        }
        let entries = std::mem::take(&mut rest.entries);
        self.send(index, &rest, &mut out);
        let tokens = std::mem::take(&mut self.choices[index].tokens);
        let ids = self.params.return_tokens.then_some(tokens.as_slice());
        let reason = self.reason(&self.choices[index], finish);
        let mut chunk = self.with_usage(self.frame.finish_chunk(index, reason, &entries, ids));
        if last && !self.params.include_usage {
            self.put_stats(&mut chunk);
        }
        answer::event(&chunk, &mut out);
        if !last {
            return Outcome::Send(out);
        }
        if self.params.include_usage {
            let mut chunk = self.frame.usage_chunk(self.stats().usage());
            self.put_stats(&mut chunk);
            answer::event(&chunk, &mut out);
        }
        out.extend_from_slice(DONE);
        Outcome::Close(out)
    }

    fn reason(&self, choice: &Choice, finish: Finish) -> (&'static str, Value) {
        let Params { stop, stop_text, .. } = &self.params;
        answer::reasons(finish, choice.assembler.calls, self.frame.legacy, stop_text, &stop.tokens)
    }

    /// The error of a refusal.
    pub(crate) fn refused(&self, error: &AdmitError) -> ApiError {
        ApiError::from_admit(error, self.prompt_param)
    }

    fn stats(&self) -> Stats<'_> {
        Stats {
            reports: self.choices.iter().filter_map(|c| c.end.as_ref().map(|(_, r)| r.as_ref())).collect(),
            per_prompt: self.per_prompt(),
            seed: self.params.seed,
            total_ns: self.received.elapsed().as_nanos() as u64,
            plan: &self.params.speculation,
        }
    }

    fn put_stats(&self, out: &mut Map<String, Value>) {
        let stats = self.stats();
        out.insert("timings".to_owned(), stats.timings());
        out.insert("speculation".to_owned(), stats.speculation());
    }

    /// Running usage on every chunk, where it was asked for.
    fn with_usage(&self, mut chunk: Map<String, Value>) -> Map<String, Value> {
        if self.params.continuous_usage {
            let prompt: usize = self.prompt_tokens.iter().sum();
            let completion: u64 = self.choices.iter().map(|c| c.completion_tokens).sum();
            chunk.insert(
                "usage".to_owned(),
                serde_json::json!({"prompt_tokens": prompt, "completion_tokens": completion,
                    "total_tokens": prompt as u64 + completion}),
            );
        }
        chunk
    }

    fn whole(&self) -> Reply {
        let choices = self
            .choices
            .iter()
            .map(|choice| {
                let (finish, _) = choice.end.as_ref().expect("every choice has ended");
                let reason = self.reason(choice, *finish);
                let lead = &self.lead[choice.index / self.params.n];
                let ids = self.params.return_tokens.then_some(choice.tokens.as_slice());
                self.frame.whole_choice(choice.index, lead, &choice.items, reason, &choice.whole, ids)
            })
            .collect();
        let stats = self.stats();
        let mut body = self.frame.body(choices, stats.usage());
        self.put_stats(&mut body);
        let mut reply = Reply::json(200, &body);
        reply.headers.extend(self.headers.iter().cloned());
        reply
            .with("X-Engine-Cached-Tokens", stats.cached().to_string())
            .with("openai-processing-ms", self.received.elapsed().as_millis().to_string())
    }
}
