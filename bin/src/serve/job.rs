//! One generation request on its way through the engine: choices, their tickets, and the bytes that go to the client.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::api::{AdmitError, Command, Finish, Report, Submission, TokenLogprob};
use engine::channels::Markers;
use engine::delta::Committed;
use engine::ids::{Ticket, TokenId};
use engine::step::Fault;

use crate::serve::answers::{Choice, Failed, Piece, Progress, Scene, Writer};
use crate::serve::constrain::Compiled;
use crate::serve::entries;
use crate::serve::error::ApiError;
use crate::serve::http::Reply;
use crate::serve::link::Exchange;
use crate::serve::metrics::End;
use crate::serve::model::TextModel;
use crate::serve::params::Params;
use crate::serve::parts::Part;
use crate::serve::random::Random;
use crate::serve::record::{Asked, Line};
use crate::serve::trail::Trail;

/// A request the engine works on.
pub(crate) struct Job {
    pub exchange: Exchange,
    pub received: Instant,
    pub params: Params,
    pub writer: Box<dyn Writer>,
    /// Name of the request, which some errors tell.
    pub request_id: String,
    pub choices: Vec<Choice>,
    pub tickets: Vec<Ticket>,
    /// Per choice: admitted to a slot.
    pub admitted: Vec<bool>,
    /// Prompt tokens of the admitted that came from the prefix cache; a prompt counts once.
    pub cached: u64,
    pub prompt_tokens: Vec<usize>,
    /// Text that every choice starts with: an echoed prompt (per prompt), or an opened thinking tag.
    pub lead: Vec<String>,
    /// Tokens that mark channels.
    pub markers: Option<Arc<Markers>>,
    /// Per prompt: its tokens and their log-probabilities, where the answer begins with them.
    pub echoes: Vec<Echo>,
    /// Per prompt: tokens that are computed, where that is told.
    pub processed: Vec<u64>,
    /// Headers of the answer.
    pub headers: Vec<(&'static str, String)>,
    /// Field that a refusal of the prompt names.
    pub prompt_param: &'static str,
    /// The stream's head has gone out.
    pub open: bool,
    /// What opens the stream has gone out.
    pub begun: bool,
    pub last_sent: Instant,
    pub paused: bool,
    /// Of a request that is recorded.
    pub asked: Option<Arc<Asked>>,
}

/// A prompt that its answers begin with, and what was said of it.
#[derive(Default)]
pub(crate) struct Echo {
    pub tokens: Vec<TokenId>,
    /// Of all but the first token, as far as they have come.
    pub logprobs: Vec<TokenLogprob>,
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
        time: Option<Duration>,
    ) -> Vec<Command> {
        let n = self.params.n;
        // What it took to read the body is a part of it.
        let left = time.map(|time| time.saturating_sub(self.received.elapsed()));
        let one = |(i, ticket): (usize, &Ticket)| {
            // What is asked of a prompt is asked once.
            let first = i % n == 0;
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
                priority: self.params.priority,
                time_ns: left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)),
                progress: self.params.progress && first,
                prompt_logprobs: self.params.echo_logprobs && first,
                reports: self.params.timings,
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

    /// The writer, and what it sees.
    fn split(&mut self) -> (&mut dyn Writer, Scene<'_>) {
        let Self { writer, params, choices, lead, prompt_tokens, cached, received, .. } = self;
        let prompt_tokens = prompt_tokens.iter().sum();
        (writer.as_mut(), Scene { params, choices, lead, prompt_tokens, cached: *cached, received: *received })
    }

    /// What opens the stream when a choice is admitted; nothing when it went out before, or is to follow the prompt's
    /// progress.
    pub(crate) fn begin(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.params.progress {
            self.begin_now(&mut out);
        }
        out
    }

    fn begin_now(&mut self, out: &mut Vec<u8>) {
        if !self.begun && self.params.stream {
            self.begun = true;
            let (writer, scene) = self.split();
            writer.begin(&scene, out);
        }
    }

    /// The prompt of a choice that an answer begins with, when all that is told of it has come; once.
    fn lead(&mut self, index: usize, model: &dyn TextModel, out: &mut Vec<u8>) {
        if !self.params.echo_logprobs || self.choices[index].led {
            return;
        }
        self.choices[index].led = true;
        let prompt = index / self.params.n;
        let (text, Echo { tokens, logprobs }) = (self.lead[prompt].clone(), &self.echoes[prompt]);
        let entries = entries::of_prompt(&text, tokens, logprobs, model);
        if !self.params.stream {
            self.choices[index].whole.splice(..0, entries);
            return;
        }
        let piece = Piece { parts: vec![Part::Content(text)], entries };
        let (writer, scene) = self.split();
        writer.piece(index, &piece, &[], None, &scene, out);
    }

    /// More of a prompt is computed.
    pub(crate) fn prompt(
        &mut self,
        index: usize,
        processed: u32,
        time_ns: u64,
        logprobs: Vec<TokenLogprob>,
    ) -> Outcome {
        let prompt = index / self.params.n;
        if let Some(echo) = self.echoes.get_mut(prompt) {
            echo.logprobs.extend(logprobs);
        }
        let mut out = Vec::new();
        if self.params.progress {
            self.processed[prompt] = processed.into();
            let processed = self.processed.iter().sum();
            let (cached, total) = (self.cached, self.prompt_tokens.iter().sum());
            let (writer, scene) = self.split();
            writer.progress(Progress { total, cached, processed, time_ns }, &scene, &mut out);
        }
        Outcome::Send(out)
    }

    /// What breaks a silence of the stream.
    pub(crate) fn ping(&self) -> Vec<u8> {
        self.writer.ping().to_vec()
    }

    /// The last words of an open stream that has failed.
    pub(crate) fn failure(&mut self, error: &ApiError) -> (Vec<u8>, Failed) {
        let mut out = Vec::new();
        let id = std::mem::take(&mut self.request_id);
        let (writer, scene) = self.split();
        let failed = writer.failure(error, &id, &scene, &mut out);
        (out, failed)
    }

    /// Takes what was committed, as one piece or as several.
    pub(crate) fn deltas(
        &mut self,
        index: usize,
        deltas: &[Committed],
        model: &dyn TextModel,
        random: &mut Random,
    ) -> Outcome {
        let mut out = Vec::new();
        self.begin_now(&mut out);
        self.lead(index, model, &mut out);
        for delta in deltas {
            let choice = &mut self.choices[index];
            if let Some(trail) = &mut choice.trail {
                trail.add(&delta.tokens, &delta.origins, delta.drafted, model);
            }
            let piece = choice.take(delta, &self.params.stop.tokens, model, random);
            self.send(index, &piece, &mut out);
        }
        Outcome::Send(out)
    }

    /// Writes what an event adds, or keeps it where the answer is sent as a whole. Ids without text travel with the next
    /// text, or with the end.
    fn send(&mut self, index: usize, piece: &Piece, out: &mut Vec<u8>) {
        let choice = &mut self.choices[index];
        if !self.params.stream {
            return choice.keep(piece);
        }
        if piece.parts.iter().all(|part| matches!(part, Part::CallEnd { .. })) {
            return;
        }
        let tokens = std::mem::take(&mut choice.tokens);
        let trail = self.choices[index].trail.as_mut().and_then(Trail::take);
        let (writer, scene) = self.split();
        if !writer.piece(index, piece, &tokens, trail, &scene, out) {
            self.choices[index].tokens = tokens;
        }
    }

    pub(crate) fn finished(
        &mut self,
        index: usize,
        finish: Finish,
        report: Box<Report>,
        model: &dyn TextModel,
        random: &mut Random,
    ) -> Outcome {
        match finish {
            Finish::Fault(Fault::NonFinite) => {
                return Outcome::Fail(ApiError::engine("the model produced no finite value; the request cannot go on"));
            }
            Finish::Fault(Fault::Barred) => {
                return Outcome::Fail(match self.params.bans() {
                    true => ApiError::contradiction(),
                    false => ApiError::dead_end(),
                });
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
        self.begin_now(&mut out);
        self.lead(index, model, &mut out);
        if !self.params.stream {
            self.send(index, &rest, &mut out);
            return if last { Outcome::Reply(self.whole()) } else { Outcome::Send(Vec::new()) };
        }
        let entries = std::mem::take(&mut rest.entries);
        self.send(index, &rest, &mut out);
        let tokens = std::mem::take(&mut self.choices[index].tokens);
        let trail = self.choices[index].trail.as_mut().and_then(Trail::take);
        let (writer, scene) = self.split();
        writer.end(index, &entries, &tokens, trail, &scene, &mut out);
        if last { Outcome::Close(out) } else { Outcome::Send(out) }
    }

    /// The error of a refusal.
    pub(crate) fn refused(&self, error: &AdmitError) -> ApiError {
        ApiError::from_admit(error, self.prompt_param)
    }

    fn whole(&mut self) -> Reply {
        let (writer, scene) = self.split();
        let body = writer.whole(&scene);
        let cached = scene.stats().counts().cached;
        let mut reply = Reply::json(200, &body);
        reply.headers.extend(self.headers.iter().cloned());
        reply
            .with("X-Engine-Cached-Tokens", cached.to_string())
            .with("openai-processing-ms", self.received.elapsed().as_millis().to_string())
    }
}
