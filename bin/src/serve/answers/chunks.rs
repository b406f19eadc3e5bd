//! `/v1/chat/completions` and `/v1/completions`: chunks and bodies in OpenAI's first form.

use engine::api::Finish;
use engine::ids::TokenId;
use serde_json::{Map, Value, json};

use crate::serve::answers::{self, Choice, Dialect, Failed, Piece, Progress, Scene, Writer};
use crate::serve::entries::{Entry, chat_logprobs, legacy_logprobs};
use crate::serve::error::ApiError;
use crate::serve::info;
use crate::serve::params::Params;
use crate::serve::parts::{Call, Item, Part};
use crate::serve::shapes::Shape;

/// The event that ends a complete stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// The constant part of an answer's JSON.
pub(crate) struct Frame {
    /// [`Dialect::Chat`] or [`Dialect::Completion`].
    pub dialect: Dialect,
    pub id: String,
    pub created: u64,
    pub model: String,
    /// `usage: null` on every chunk.
    pub null_usage: bool,
    pub logprobs: bool,
    /// Calls are answered as `function_call`.
    pub legacy: bool,
    /// What holds thinking.
    pub reasoning_field: &'static str,
}

impl Writer for Frame {
    fn id(&self) -> &str {
        &self.id
    }

    fn begin(&mut self, scene: &Scene<'_>, out: &mut Vec<u8>) {
        if self.is_chat() {
            let role = |choice: &Choice| so_far(self.role_chunk(choice.index), scene);
            scene.choices.iter().for_each(|choice| answers::event(&role(choice), out));
        }
        // With log-probabilities a prompt follows when these are there.
        for choice in scene.choices.iter().filter(|_| !scene.params.echo_logprobs) {
            let lead = scene.lead_of(choice.index);
            if !lead.is_empty() {
                let lead = Piece { parts: vec![Part::Content(lead.to_owned())], ..Piece::default() };
                self.piece(choice.index, &lead, &[], None, scene, out);
            }
        }
    }

    fn progress(&mut self, progress: Progress, scene: &Scene<'_>, out: &mut Vec<u8>) {
        let Progress { total, cached, processed, time_ns } = progress;
        let mut chunk = self.base(self.chunk_object(), json!([]));
        if self.null_usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        let time_ms = (time_ns as f64 / 1e3).round() / 1e3;
        let progress = json!({"total": total, "cache": cached, "processed": processed, "time_ms": time_ms});
        chunk.insert("prompt_progress".to_owned(), progress);
        answers::event(&with_timings(chunk, scene), out);
    }

    /// The first chunk carries the ids, the first of content the entries.
    fn piece(
        &mut self,
        choice: usize,
        piece: &Piece,
        tokens: &[TokenId],
        mut trail: Option<Map<String, Value>>,
        scene: &Scene<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let mut ids = scene.params.return_tokens.then_some(tokens);
        let mut entries = piece.entries.as_slice();
        let mut any = false;
        for part in &piece.parts {
            let own = if matches!(part, Part::Content(_)) { std::mem::take(&mut entries) } else { &[] };
            if let Some(mut chunk) = self.part_chunk(choice, part, own, ids) {
                if let Some(trail) = trail.take() {
                    chunk.insert("speculation".to_owned(), trail.into());
                }
                answers::event(&so_far(chunk, scene), out);
                ids = ids.map(|_| [].as_slice());
                any = true;
            }
        }
        any
    }

    fn end(
        &mut self,
        choice: usize,
        entries: &[Entry],
        tokens: &[TokenId],
        trail: Option<Map<String, Value>>,
        scene: &Scene<'_>,
        out: &mut Vec<u8>,
    ) {
        let ids = scene.params.return_tokens.then_some(tokens);
        let reason = self.reason(&scene.choices[choice], scene.params);
        let mut chunk = so_far(self.finish_chunk(choice, reason, entries, ids), scene);
        let (last, include_usage) = (scene.is_over(), scene.params.include_usage);
        if last && !include_usage {
            scene.put_stats(&mut chunk);
        }
        if let Some(trail) = trail {
            let said = chunk.entry("speculation").or_insert_with(|| Map::new().into());
            said.as_object_mut().expect("it is an object").extend(trail);
        }
        answers::event(&chunk, out);
        if last && include_usage {
            let mut chunk = self.usage_chunk(scene.stats().usage());
            scene.put_stats(&mut chunk);
            answers::event(&chunk, out);
        }
        if last {
            out.extend_from_slice(DONE);
        }
    }

    fn whole(&mut self, scene: &Scene<'_>) -> Map<String, Value> {
        let whole = |choice: &Choice| {
            let reason = self.reason(choice, scene.params);
            let ids = scene.params.return_tokens.then_some(choice.tokens.as_slice());
            self.whole_choice(choice.index, scene.lead_of(choice.index), &choice.items, reason, &choice.whole, ids)
        };
        let choices = scene.choices.iter().map(whole).collect();
        let mut body = self.body(choices, scene.stats().usage());
        scene.put_stats(&mut body);
        body
    }

    fn failure(&mut self, error: &ApiError, request_id: &str, _: &Scene<'_>, out: &mut Vec<u8>) -> Failed {
        out.extend_from_slice(&Shape::OpenAi.event(error, request_id));
        Failed::Broken
    }
}

/// Running timings, where they were asked for.
fn with_timings(mut chunk: Map<String, Value>, scene: &Scene<'_>) -> Map<String, Value> {
    if let Some(timings) = scene.timings() {
        chunk.insert("timings".to_owned(), timings);
    }
    chunk
}

/// Running usage and timings on every chunk of a choice, each where it was asked for.
fn so_far(mut chunk: Map<String, Value>, scene: &Scene<'_>) -> Map<String, Value> {
    if scene.params.continuous_usage {
        let prompt = scene.prompt_tokens as u64;
        let completion: u64 = scene.choices.iter().map(|c| c.completion_tokens).sum();
        let usage = json!({"prompt_tokens": prompt, "completion_tokens": completion,
            "total_tokens": prompt + completion});
        chunk.insert("usage".to_owned(), usage);
    }
    with_timings(chunk, scene)
}

impl Frame {
    fn is_chat(&self) -> bool {
        self.dialect == Dialect::Chat
    }

    fn reason(&self, choice: &Choice, params: &Params) -> (&'static str, Value) {
        let (finish, _) = choice.end.as_ref().expect("the choice has ended");
        reasons(*finish, choice.assembler.calls, self.legacy, &params.stop_text, &params.stop.tokens)
    }

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
        if self.is_chat() { "chat.completion.chunk" } else { "text_completion" }
    }

    /// One choice's part of a chunk or body.
    fn choice(&self, index: usize, content: (&str, Value), entries: &[Entry], finish: Value) -> Map<String, Value> {
        let logprobs = match (self.logprobs, self.is_chat()) {
            (false, _) => Value::Null,
            (true, true) => chat_logprobs(entries),
            (true, false) => legacy_logprobs(entries),
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
    fn role_chunk(&self, index: usize) -> Map<String, Value> {
        let delta = json!({"role": "assistant", "content": ""});
        let mut choice = self.choice(index, ("delta", delta), &[], Value::Null);
        choice.insert("logprobs".to_owned(), Value::Null);
        self.chunk(choice)
    }

    /// A part of a choice; `tokens` when the request asked for ids. `None`: it is nothing that this dialect says.
    fn part_chunk(
        &self,
        index: usize,
        part: &Part,
        entries: &[Entry],
        tokens: Option<&[TokenId]>,
    ) -> Option<Map<String, Value>> {
        let content = match (self.is_chat(), part) {
            (true, part) => ("delta", self.delta(part)?),
            (false, Part::Content(text)) => ("text", text.as_str().into()),
            (false, _) => unreachable!("a completion is all content"),
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
            Part::Reasoning(text) => json!({self.reasoning_field: text}),
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
            Part::CallEnd { .. } => return None,
        })
    }

    /// The last chunk of a choice.
    fn finish_chunk(
        &self,
        index: usize,
        reason: (&str, Value),
        entries: &[Entry],
        tokens: Option<&[TokenId]>,
    ) -> Map<String, Value> {
        let content = if self.is_chat() { ("delta", json!({})) } else { ("text", "".into()) };
        let mut choice = self.choice(index, content, entries, reason.0.into());
        if entries.is_empty() {
            choice.insert("logprobs".to_owned(), Value::Null);
        }
        choice.insert("stop_reason".to_owned(), reason.1);
        put_tokens(&mut choice, tokens);
        self.chunk(choice)
    }

    /// The chunk without choices that carries the usage.
    fn usage_chunk(&self, usage: Value) -> Map<String, Value> {
        let mut out = self.base(self.chunk_object(), json!([]));
        out.insert("usage".to_owned(), usage);
        out
    }

    /// One whole choice of a body.
    fn whole_choice(
        &self,
        index: usize,
        lead: &str,
        items: &[Item],
        reason: (&str, Value),
        entries: &[Entry],
        tokens: Option<&[TokenId]>,
    ) -> Value {
        let content = match self.is_chat() {
            true => ("message", self.message(lead, items)),
            false => ("text", joined(lead, items).into()),
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
            .filter_map(|i| {
                if let Item::Call { call, arguments, .. } = i { Some((call, arguments.as_str())) } else { None }
            })
            .collect();
        let silent = content.is_empty() && !calls.is_empty();
        let content = if silent { Value::Null } else { content.into() };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !reasoning.is_empty() {
            message[self.reasoning_field] = reasoning.into();
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
    fn body(&self, choices: Vec<Value>, usage: Value) -> Map<String, Value> {
        let object = if self.is_chat() { "chat.completion" } else { "text_completion" };
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

/// `finish_reason` and the `stop_reason` extension. A choice that called tools ends for their results, unless a limit
/// ended it.
fn reasons(
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
        Finish::TimedOut => ("length", "timeout".into()),
        Finish::Fault(_) => unreachable!("a fault is an error, not an answer"),
    }
}
