//! A client of OpenAI-compatible servers: one blocking request at a time, its answer as it comes, with the times at which
//! it came.

use std::io::{self, BufReader, Read as _};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Map, Value};
use ureq::http::Response;
use ureq::{Agent, Body};

use super::patience::{Patience, Patient};
use super::sse::{Events, SseError, short};

/// Longest answer that is not a stream.
const BODY_BYTES_MAX: u64 = 4 << 20;
/// Longest text of one token; hardly any has a fourth of that.
const TOKEN_BYTES_MAX: usize = 1 << 10;
/// Longest text of an answer, however many tokens were asked for.
const TEXT_BYTES_MAX: usize = 16 << 20;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing was received, or no more.
    #[error("{url}: {what}")]
    Transport {
        /// What was asked.
        url: String,
        /// What happened.
        what: String,
    },
    /// Silence for longer than was allowed.
    #[error("{url}: no answer for {} s; give a longer --timeout, or ask a faster server", timeout.as_secs_f32())]
    Silent {
        /// What was asked.
        url: String,
        /// For how long.
        timeout: Duration,
    },
    /// Another status than 200.
    #[error("{url}: answers {status}: {message}")]
    Status {
        /// What was asked.
        url: String,
        /// The status.
        status: u16,
        /// What the body says.
        message: String,
        /// The prompt is longer than the server's context.
        too_long: bool,
    },
    /// Something that is no answer of such a server.
    #[error("{url}: {what}; is this an OpenAI-compatible server?")]
    Strange {
        /// What was asked.
        url: String,
        /// What was found, and expected.
        what: String,
    },
    /// An error after the answer had begun.
    #[error("{url}: the answer broke off with an error: {message}")]
    Broken {
        /// What was asked.
        url: String,
        /// The server's words.
        message: String,
    },
}

impl ClientError {
    /// The prompt does not fit the context: no fault of the server.
    pub fn is_too_long(&self) -> bool {
        matches!(self, Self::Status { too_long: true, .. })
    }
}

/// `usage` of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the answer, its end included where the server counts it.
    pub completion_tokens: u32,
}

/// An answer and when it came.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// Ids of the tokens, from servers that tell them.
    pub ids: Option<Vec<u32>>,
    /// Why it ended.
    pub finish_reason: String,
    /// Tokens as the server counts them.
    pub usage: Option<Usage>,
    /// Our server's `timings`.
    pub timings: Option<Value>,
    /// Our server's `speculation`.
    pub speculation: Option<Value>,
    /// Every event with text: seconds from the request, and tokens that came since the one before, where ids tell.
    pub emitted: Vec<(f64, Option<usize>)>,
    /// Seconds to the event that ended the choice.
    pub finished_s: f64,
    /// Seconds to the end of the stream.
    pub total_s: f64,
}

/// A server.
pub struct Peer {
    agent: Agent,
    /// Address with `/v1` at its end.
    base: String,
    api_key: Option<String>,
    timeout: Duration,
}

impl Peer {
    /// Connects when it is asked. `timeout`: the longest silence.
    pub fn new(url: &str, api_key: Option<String>, timeout: Duration) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // Whatever stands in between would be measured too.
            .proxy(None)
            .user_agent(concat!("slipstream-bench/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(Some(timeout))
            .timeout_connect(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .timeout_per_read(Some(timeout))
            .build();
        let url = url.trim_end_matches('/');
        let base = if url.ends_with("/v1") { url.to_owned() } else { format!("{url}/v1") };
        Self { agent: config.new_agent(), base, api_key, timeout }
    }

    /// The list of models.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn models(&self) -> Result<Value, ClientError> {
        let url = format!("{}/models", self.base);
        let mut request = self.agent.get(&url);
        if let Some(key) = &self.api_key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let answer = self.checked(&url, request.call())?;
        let bytes = self.body(&url, answer)?;
        serde_json::from_slice(&bytes).map_err(|e| ClientError::Strange { url, what: format!("is no JSON ({e})") })
    }

    /// Asks with `body`, which has `"stream": true` and `budget` as its `max_tokens`, at `path` below `/v1`, and reads the
    /// answer to its end. One that is longer than was asked for is an error, and nothing is kept of what is beyond.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn ask(&self, path: &str, body: &Map<String, Value>, budget: u32) -> Result<Answer, ClientError> {
        let url = format!("{}/{path}", self.base);
        let text = serde_json::to_vec(body).expect("a JSON map serialises");
        let mut request = self.agent.post(&url).header("Content-Type", "application/json");
        if let Some(key) = &self.api_key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let start = Instant::now();
        let answer = self.checked(&url, request.send(&text[..]))?;
        let patience = Patience::new(self.timeout);
        let mut events = Events::new(BufReader::new(Patient::new(answer.into_body().into_reader(), &patience)));
        let strange = |what: String| ClientError::Strange { url: url.clone(), what };
        let mut out = Answer::default();
        let mut ended = false;
        loop {
            let event = events.read().map_err(|error| match error {
                SseError::Io(error) => self.transport(&url, error),
                other => strange(other.to_string()),
            })?;
            let now = start.elapsed().as_secs_f64();
            let Some(data) = event else {
                return Err(strange("the stream ended without [DONE]".to_owned()));
            };
            if data == "[DONE]" {
                out.total_s = now;
                if !ended {
                    return Err(strange("[DONE] came before any finish_reason".to_owned()));
                }
                out.check(budget).map_err(&strange)?;
                return Ok(out);
            }
            let chunk: Map<String, Value> = serde_json::from_str(&data)
                .map_err(|e| strange(format!("an event is no JSON object ({e}): \"{}\"", short(&data))))?;
            if let Some(error) = chunk.get("error").filter(|e| !e.is_null()) {
                return Err(ClientError::Broken { url: url.clone(), message: message_of(error) });
            }
            let before = (ended, out.size());
            ended |= out.take(&chunk, now).map_err(&strange)?;
            out.check_size(budget).map_err(&strange)?;
            if (ended, out.size()) != before {
                patience.renew();
            }
        }
    }

    /// The body, if the status is 200.
    fn checked(&self, url: &str, answer: Result<Response<Body>, ureq::Error>) -> Result<Response<Body>, ClientError> {
        let answer = answer.map_err(|error| self.transport(url, error.into_io()))?;
        let status = answer.status().as_u16();
        if status == 200 {
            return Ok(answer);
        }
        let bytes = self.body(url, answer)?;
        let value: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let error = value.get("error").unwrap_or(&value);
        let is = |field: &str, word: &str| error.get(field).and_then(Value::as_str) == Some(word);
        let too_long =
            status == 400 && (is("code", "context_length_exceeded") || is("type", "exceed_context_size_error"));
        let message = match error {
            Value::Null => short(&String::from_utf8_lossy(&bytes)),
            error => message_of(error),
        };
        Err(ClientError::Status { url: url.to_owned(), status, message, too_long })
    }

    fn body(&self, url: &str, answer: Response<Body>) -> Result<Vec<u8>, ClientError> {
        let mut bytes = Vec::new();
        let patience = Patience::new(self.timeout);
        let reader = Patient::new(answer.into_body().into_reader(), &patience);
        let read = reader.take(BODY_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.transport(url, error))?;
        if bytes.len() as u64 > BODY_BYTES_MAX {
            let what = format!("answers more than {BODY_BYTES_MAX} bytes");
            return Err(ClientError::Strange { url: url.to_owned(), what });
        }
        Ok(bytes)
    }

    fn transport(&self, url: &str, error: io::Error) -> ClientError {
        let url = url.to_owned();
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>());
        let late = matches!(inner, Some(ureq::Error::Timeout(_))) || error.kind() == io::ErrorKind::TimedOut;
        match late {
            true => ClientError::Silent { url, timeout: self.timeout },
            false => ClientError::Transport { url, what: error.to_string() },
        }
    }
}

impl Answer {
    /// Bytes of text, and ids.
    fn size(&self) -> (usize, usize) {
        (self.text.len(), self.ids.as_ref().map_or(0, Vec::len))
    }

    /// Whether so much may come of `budget` tokens.
    fn check_size(&self, budget: u32) -> Result<(), String> {
        let (bytes, ids) = self.size();
        let most = budget as usize;
        if ids > most {
            return Err(format!("{ids} token ids came, and at most {budget} tokens were asked for"));
        }
        if bytes > most.saturating_mul(TOKEN_BYTES_MAX).min(TEXT_BYTES_MAX) {
            return Err(format!("{bytes} bytes of text came, and at most {budget} tokens were asked for"));
        }
        Ok(())
    }

    /// Whether the server counts what can be.
    fn check(&self, budget: u32) -> Result<(), String> {
        match self.usage.map(|usage| usage.completion_tokens) {
            Some(n) if n > budget => {
                Err(format!("usage has {n} completion tokens, and at most {budget} were asked for"))
            }
            Some(0) if !self.text.is_empty() => {
                Err(format!("usage has no completion tokens, and {} bytes of text came", self.text.len()))
            }
            _ => Ok(()),
        }
    }

    /// Adds a chunk; whether it ended the choice.
    fn take(&mut self, chunk: &Map<String, Value>, now: f64) -> Result<bool, String> {
        let object = |name: &str| chunk.get(name).filter(|v| v.is_object());
        if let Some(usage) = object("usage") {
            let usage = Usage::deserialize(usage).map_err(|e| format!("usage is no usage: {e}"))?;
            self.usage = Some(usage);
        }
        self.timings = object("timings").cloned().or_else(|| self.timings.take());
        self.speculation = object("speculation").cloned().or_else(|| self.speculation.take());
        let Some(choices) = chunk.get("choices").and_then(Value::as_array) else {
            return Err("an event has no list of choices".to_owned());
        };
        let mut ended = false;
        for choice in choices {
            if choice.get("index").and_then(Value::as_u64).is_some_and(|index| index > 0) {
                return Err("one choice was asked for and there are more".to_owned());
            }
            let part = choice.get("text").or_else(|| choice.get("delta").and_then(|delta| delta.get("content")));
            // Servers call it one or the other.
            let named = |name| choice.get("delta").and_then(|delta| delta.get(name));
            let thought = named("reasoning_content").or_else(|| named("reasoning"));
            let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
            let text = text(thought) + &text(part);
            let ids = choice.get("token_ids").and_then(Value::as_array);
            if let Some(ids) = ids {
                let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
                let ids: Option<Vec<u32>> = ids.iter().map(id).collect();
                self.ids.get_or_insert_default().extend(ids.ok_or("token_ids holds what is no id")?);
            }
            if !text.is_empty() {
                self.text.push_str(&text);
                self.emitted.push((now, ids.map(Vec::len)));
            }
            if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
                self.finish_reason = reason.to_owned();
                self.finished_s = now;
                ended = true;
            }
        }
        Ok(ended)
    }
}

/// What an error object says.
fn message_of(error: &Value) -> String {
    let text = error.get("message").or_else(|| error.get("detail")).and_then(Value::as_str);
    text.map_or_else(|| short(&error.to_string()), short)
}
