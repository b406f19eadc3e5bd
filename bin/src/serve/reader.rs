//! From bodies to work: parses a request, checks its fields, renders and tokenizes. Sees one request at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crossbeam::channel::{Receiver, Sender};
use engine::channels::Markers;
use engine::ids::TokenId;
use serde_json::{Map, Value, json};

use crate::serve::answers::chunks::Frame;
use crate::serve::answers::messages::MessageWriter;
use crate::serve::answers::responses::ResponseWriter;
use crate::serve::answers::{self, Dialect, Writer};
use crate::serve::api::Api;
use crate::serve::chat::Chat;
use crate::serve::completions;
use crate::serve::constrain::{self, Compiled, Compiler, Wanted};
use crate::serve::error::ApiError;
use crate::serve::fields::Fields;
use crate::serve::http::Reply;
use crate::serve::info::ModelInfo;
use crate::serve::json;
use crate::serve::limits;
use crate::serve::link::{self, Body, Exchange, Request};
use crate::serve::model::{Caps, TextModel, ToolStyle};
use crate::serve::params::{self, Names, Offer, Params};
use crate::serve::parts::Shape;
use crate::serve::random::Random;
use crate::serve::remembered::{Change, Marks, Remembered};
use crate::serve::routes::Route;
use crate::serve::schema::{self, Class};
use crate::serve::text_tools;
use crate::serve::{Show, SpecConfig};
use crate::serve::{anthropic, responses};

/// What reading a request takes.
pub(crate) struct Reader {
    pub model: Arc<dyn TextModel>,
    pub caps: Caps,
    /// One for all readers of a model.
    pub compiler: Arc<Compiler>,
    /// One for all readers.
    pub remembered: Arc<Remembered>,
    pub info: ModelInfo,
    pub spec: SpecConfig,
    pub slots: usize,
    pub random: Random,
    pub api: Arc<Api>,
    /// Stop strings of a request.
    pub stop_strings: usize,
    /// Bodies go along with what was read from them.
    pub keep_bodies: bool,
    pub show: Show,
}

/// A request for the thread that reads large bodies.
pub(crate) struct Long {
    pub request: Request,
    /// `false` once nobody waits for it.
    pub wanted: Arc<AtomicBool>,
}

/// What a request comes to.
pub(crate) struct Work {
    pub exchange: Exchange,
    pub received: Instant,
    /// What its client calls the session that it belongs to, echoed.
    pub session: Option<String>,
    /// Its name.
    pub id: String,
    pub read: Read,
}

/// The answer, or what the engine has to do for it.
pub(crate) enum Read {
    Answer(Reply),
    Ready(Box<Ready>),
}

/// Prompt, lead text and settings of a request that passed every check.
pub(crate) struct Ready {
    pub params: Params,
    pub dialect: Dialect,
    pub writer: Box<dyn Writer>,
    pub prompts: Vec<Vec<TokenId>>,
    /// Text that the answers begin with.
    pub lead: Vec<String>,
    /// Tags that the prompts end in, whether the answers begin with them or not.
    pub opened: Vec<String>,
    pub shape: Arc<Shape>,
    pub markers: Option<Arc<Markers>>,
    pub logprobs: Option<u32>,
    /// What the answer's tokens may be.
    pub constraint: Option<Arc<Compiled>>,
    pub ignored: Vec<String>,
    /// Codes of `X-Engine-Warnings`.
    pub warnings: Vec<String>,
    pub prompt_param: &'static str,
    /// Where bodies are kept.
    pub body: Option<Body>,
}

/// Reads large bodies, one after the other, until `text` has gone.
pub(crate) fn read_long(mut reader: Reader, requests: &Receiver<Long>, done: &Sender<Work>) {
    for Long { request, wanted } in requests {
        if wanted.load(Ordering::Relaxed) && done.send(reader.read(request)).is_err() {
            return;
        }
    }
}

/// The session that a body names: the first of the fields for that which is a text. It says where a prompt may be known
/// already, and changes no answer.
fn named_session(body: &Map<String, Value>) -> Option<&str> {
    let user_id = body.get("metadata").and_then(|metadata| metadata.get("user_id"));
    let named = [body.get("prompt_cache_key"), body.get("session_id"), user_id, body.get("user")];
    named.into_iter().flatten().find_map(Value::as_str)
}

impl Reader {
    /// Reads one request; its body is dropped afterwards, unless bodies are kept.
    pub(crate) fn read(&mut self, request: Request) -> Work {
        let Request { exchange, route, body, received, mut session, id } = request;
        let read = json::parse_object(&body).and_then(|body| {
            session = session.take().or_else(|| named_session(&body).and_then(link::session));
            self.read_body(&route, &body)
        });
        let mut read = read.unwrap_or_else(|error| Read::Answer(Reply::from(&error)));
        if let Read::Ready(ready) = &mut read {
            ready.body = Some(body).filter(|_| self.keep_bodies);
        }
        Work { exchange, received, session, id, read }
    }

    fn read_body(&mut self, route: &Route, body: &Map<String, Value>) -> Result<Read, ApiError> {
        self.api.check_model(&Fields::body(body), &self.info.id)?;
        let ready = |ready: Ready| Read::Ready(Box::new(ready));
        let (model, caps, api) = (self.model.as_ref(), &self.caps, self.api.as_ref());
        match route {
            Route::Chat => self.read_chat(body).map(ready),
            Route::Completions => self.read_completions(body).map(ready),
            Route::Messages => self.read_messages(body).map(ready),
            Route::Responses => self.read_responses(body),
            Route::CountChat => self.count_chat(body).map(Read::Answer),
            Route::CountMessages => self.count_messages(body).map(Read::Answer),
            Route::CountResponses => self.count_responses(body).map(Read::Answer),
            Route::Tokenize => text_tools::tokenize(body, model, caps, api, self.info.n_ctx).map(Read::Answer),
            Route::Detokenize => text_tools::detokenize(body, model, api, self.info.n_ctx).map(Read::Answer),
            Route::ApplyTemplate => text_tools::apply_template(body, model, caps, api).map(Read::Answer),
            _ => unreachable!("the front answers GET"),
        }
    }

    fn read_params(&mut self, fields: &Fields<'_, '_>, names: &'static Names) -> Result<Params, ApiError> {
        let (info, spec, api, stats) = (&self.info, &self.spec, self.api.as_ref(), self.show.stats);
        let offer = Offer { names, info, spec, slots: self.slots, api, stop_strings: self.stop_strings, stats };
        Params::read(fields, &offer, &mut self.random)
    }

    /// Names of fields without effect; those that ask for what this server does not tell are among them.
    ///
    /// # Errors
    /// As [`schema::screen`].
    fn screen(&self, body: &Map<String, Value>, tables: &[&[(&str, Class)]]) -> Result<Vec<String>, ApiError> {
        let mut ignored = schema::screen(body, tables, self.api.strict_params)?;
        if !self.show.stats {
            let options = body.get("stream_options");
            for (name, value) in [
                ("timings_per_token", body.get("timings_per_token")),
                ("stream_options.include_speculation", options.and_then(|o| o.get("include_speculation"))),
            ] {
                ignored.extend((value == Some(&Value::Bool(true))).then(|| name.to_owned()));
            }
        }
        Ok(ignored)
    }

    fn read_chat(&mut self, body: &Map<String, Value>) -> Result<Ready, ApiError> {
        let fields = Fields::body(body);
        let ignored = self.screen(body, schema::CHAT_TABLES)?;
        let params = self.read_params(&fields, &params::OPENAI)?;
        let top = fields.integer("top_logprobs", 0..=limits::TOP_LOGPROBS as i64)?;
        let logprobs = match (fields.boolean("logprobs")?.unwrap_or(false), top) {
            (true, top) => Some(top.unwrap_or(0) as u32),
            (false, None) => None,
            (false, Some(_)) => return Err(ApiError::invalid_value("top_logprobs", "it needs logprobs: true")),
        };
        let chat = Chat::read(&fields, &self.caps, &self.api)?;
        let writer = self.frame(Dialect::Chat, "chatcmpl-", &params, logprobs, chat.is_legacy());
        let ready = self.converse(&chat, params, Dialect::Chat, writer)?;
        Ok(Ready { logprobs, ignored, ..ready })
    }

    fn read_messages(&mut self, body: &Map<String, Value>) -> Result<Ready, ApiError> {
        let fields = Fields::body(body);
        let ignored = self.screen(body, schema::MESSAGES_TABLES)?;
        let params = self.read_params(&fields, &anthropic::NAMES)?;
        let read = anthropic::read(&fields, &self.caps, &self.api)?;
        let mut warnings = read.warnings;
        if params.max_tokens.is_none() {
            warnings.push("max_tokens_defaulted".to_owned());
        }
        let id = self.random.id("msg_");
        let marks = Marks::of(&read.chat);
        let compared = |id: Option<String>| id.map_or(Change::None, |id| self.remembered.compare(&id, &marks));
        let change = read.previous.map(compared);
        let writer = Box::new(MessageWriter::new(id.clone(), self.info.id.clone(), read.omits_thinking, change));
        let ready = self.converse(&read.chat, params, Dialect::Messages, writer)?;
        self.remembered.keep(&id, &marks);
        warnings.extend(ready.warnings.iter().cloned());
        Ok(Ready { ignored, warnings, ..ready })
    }

    fn read_responses(&mut self, body: &Map<String, Value>) -> Result<Read, ApiError> {
        let fields = Fields::body(body);
        let mut ignored = self.screen(body, schema::RESPONSES_TABLES)?;
        let params = self.read_params(&fields, &responses::NAMES)?;
        let read = responses::read(&fields, params.max_tokens, &self.caps, &self.api)?;
        let id = self.random.id("resp_");
        let mut writer = ResponseWriter::new(id.clone(), self.info.id.clone(), responses::echo(&fields, &params));
        let Some(chat) = read.chat else { return Ok(Read::Answer(writer.nothing(params.stream))) };
        let marks = Marks::of(&chat);
        writer.change = read.previous.map(|id| self.remembered.compare(&id, &marks));
        let ready = self.converse(&chat, params, Dialect::Responses, Box::new(writer))?;
        self.remembered.keep(&id, &marks);
        ignored.extend(read.ignored);
        let (logprobs, mut warnings) = (read.logprobs, read.warnings);
        warnings.extend(ready.warnings.iter().cloned());
        Ok(Read::Ready(Box::new(Ready { logprobs, ignored, warnings, ..ready })))
    }

    fn count_chat(&self, body: &Map<String, Value>) -> Result<Reply, ApiError> {
        self.screen(body, schema::CHAT_TABLES)?;
        let chat = Chat::read(&Fields::body(body), &self.caps, &self.api)?;
        self.input_tokens(Some(&chat))
    }

    fn count_responses(&self, body: &Map<String, Value>) -> Result<Reply, ApiError> {
        self.screen(body, schema::RESPONSES_TABLES)?;
        let read = responses::read(&Fields::body(body), Some(1), &self.caps, &self.api)?;
        self.input_tokens(read.chat.as_ref())
    }

    fn count_messages(&self, body: &Map<String, Value>) -> Result<Reply, ApiError> {
        self.screen(body, schema::MESSAGES_TABLES)?;
        let read = anthropic::read(&Fields::body(body), &self.caps, &self.api)?;
        let tokens = read.chat.render(self.model.as_ref(), usize::MAX)?.tokens.len();
        Ok(Reply::json(200, &json!({ "input_tokens": tokens })))
    }

    fn input_tokens(&self, chat: Option<&Chat>) -> Result<Reply, ApiError> {
        let rendered = chat.map(|chat| chat.render(self.model.as_ref(), usize::MAX)).transpose()?;
        let tokens = rendered.map_or(0, |rendered| rendered.tokens.len());
        Ok(Reply::json(200, &json!({"object": "response.input_tokens", "input_tokens": tokens})))
    }

    /// A conversation that `writer` answers, without what only some dialects have.
    fn converse(
        &self,
        chat: &Chat,
        params: Params,
        dialect: Dialect,
        writer: Box<dyn Writer>,
    ) -> Result<Ready, ApiError> {
        let rendered = chat.render(self.model.as_ref(), self.info.n_ctx)?;
        let thinks = rendered.open_tag.is_some();
        let (shape, markers) = chat.channels(&self.caps, thinks);
        let mut wanted = Wanted {
            format: chat.format(),
            tools: chat.tools(),
            style: shape.style,
            reasoning: self.caps.think_tokens,
            call: self.caps.call_tokens.filter(|_| shape.style != ToolStyle::None),
            begins_in_reasoning: thinks,
            budget: chat.budget(),
        };
        if let (Some(_), Some(tag), None) = (chat.format(), &rendered.open_tag, wanted.reasoning) {
            wanted.reasoning = Some(constrain::markers(self.model.as_ref(), tag)?);
        }
        let constraint = self.compiler.compile(&wanted)?;
        let warnings = constraint.as_ref().map(|c| c.warnings.clone()).unwrap_or_default();
        let opened = rendered.open_tag.map_or(String::new(), |tag| format!("{tag}\n"));
        let lead = vec![if chat.keeps_tags(&self.caps) { opened.clone() } else { String::new() }];
        Ok(Ready {
            params,
            dialect,
            writer,
            prompts: vec![rendered.tokens],
            lead,
            opened: vec![opened],
            shape: Arc::new(shape),
            markers: markers.map(Arc::new),
            logprobs: None,
            constraint,
            ignored: Vec::new(),
            warnings,
            prompt_param: chat.field(),
            body: None,
        })
    }

    fn frame(
        &mut self,
        dialect: Dialect,
        prefix: &str,
        params: &Params,
        logprobs: Option<u32>,
        legacy: bool,
    ) -> Box<dyn Writer> {
        Box::new(Frame {
            dialect,
            id: self.random.id(prefix),
            created: answers::now(),
            model: self.info.id.clone(),
            null_usage: params.include_usage,
            logprobs: logprobs.is_some(),
            legacy,
            reasoning_field: self.api.reasoning_field,
        })
    }

    fn read_completions(&mut self, body: &Map<String, Value>) -> Result<Ready, ApiError> {
        let fields = Fields::body(body);
        let ignored = self.screen(body, schema::COMPLETIONS_TABLES)?;
        let mut params = self.read_params(&fields, &params::OPENAI)?;
        params.max_tokens.get_or_insert(completions::MAX_TOKENS_DEFAULT);
        let logprobs = fields.integer("logprobs", 0..=limits::TOP_LOGPROBS as i64)?.map(|n| n as u32);
        let echo = fields.boolean("echo")?.unwrap_or(false);
        params.echo_logprobs = echo && logprobs.is_some();
        let format = constrain::format::read(&fields)?;
        let prompts = completions::read_prompts(&fields, self.model.as_ref(), self.info.n_ctx)?;
        let (lead, prompts): (Vec<String>, Vec<_>) =
            prompts.into_iter().map(|p| (if echo { p.text } else { String::new() }, p.tokens)).unzip();
        let constraint = self.compiler.compile(&Wanted { format: format.as_ref(), ..Wanted::default() })?;
        let writer = self.frame(Dialect::Completion, "cmpl-", &params, logprobs, false);
        Ok(Ready {
            params,
            dialect: Dialect::Completion,
            writer,
            prompts,
            opened: vec![String::new(); lead.len()],
            lead,
            shape: Arc::default(),
            markers: None,
            logprobs,
            constraint,
            ignored,
            warnings: Vec::new(),
            prompt_param: "prompt",
            body: None,
        })
    }
}
