//! From bodies to work: parses a request, checks its fields, renders and tokenizes. Sees one request at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crossbeam::channel::{Receiver, Sender};
use engine::channels::Markers;
use engine::ids::TokenId;
use serde_json::{Map, Value};

use crate::serve::SpecConfig;
use crate::serve::answer::Dialect;
use crate::serve::chat::Chat;
use crate::serve::completions;
use crate::serve::constrain::{self, Compiled, Compiler, Wanted};
use crate::serve::error::ApiError;
use crate::serve::fields::Fields;
use crate::serve::http::Reply;
use crate::serve::info::ModelInfo;
use crate::serve::json;
use crate::serve::limits;
use crate::serve::link::{Body, Exchange, Request};
use crate::serve::model::{Caps, TextModel, ToolStyle};
use crate::serve::params::{Offer, Params};
use crate::serve::parts::Shape;
use crate::serve::random::Random;
use crate::serve::routes::Route;
use crate::serve::schema;
use crate::serve::text_tools;

/// What reading a request takes.
pub(crate) struct Reader {
    pub model: Arc<dyn TextModel>,
    pub caps: Caps,
    /// One for all readers of a model.
    pub compiler: Arc<Compiler>,
    pub info: ModelInfo,
    pub spec: SpecConfig,
    pub slots: usize,
    pub random: Random,
    /// Bodies go along with what was read from them.
    pub keep_bodies: bool,
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
    /// `x-session-id`, echoed.
    pub session: Option<String>,
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
    pub prompts: Vec<Vec<TokenId>>,
    /// Text that the answers begin with.
    pub lead: Vec<String>,
    /// Tags that the prompts end in, whether the answers begin with them or not.
    pub opened: Vec<String>,
    pub shape: Arc<Shape>,
    pub markers: Option<Arc<Markers>>,
    pub logprobs: Option<u32>,
    /// What the answer's tokens may be.
    pub constraint: Option<Compiled>,
    /// Codes for `X-Engine-Warnings`.
    pub warnings: Vec<String>,
    pub ignored: Vec<String>,
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

impl Reader {
    /// Reads one request; its body is dropped afterwards, unless bodies are kept.
    pub(crate) fn read(&mut self, request: Request) -> Work {
        let Request { exchange, route, body, received, session } = request;
        let read = json::parse_object(&body).and_then(|body| self.read_body(&route, &body));
        let mut read = read.unwrap_or_else(|error| Read::Answer(Reply::from(&error)));
        if let Read::Ready(ready) = &mut read {
            ready.body = Some(body).filter(|_| self.keep_bodies);
        }
        Work { exchange, received, session, read }
    }

    fn read_body(&mut self, route: &Route, body: &Map<String, Value>) -> Result<Read, ApiError> {
        let ready = |ready: Ready| Read::Ready(Box::new(ready));
        let model = self.model.as_ref();
        match route {
            Route::Chat => self.read_chat(body).map(ready),
            Route::Completions => self.read_completions(body).map(ready),
            Route::Tokenize => text_tools::tokenize(body, model, &self.caps, self.info.n_ctx).map(Read::Answer),
            Route::Detokenize => text_tools::detokenize(body, model, self.info.n_ctx).map(Read::Answer),
            Route::ApplyTemplate => text_tools::apply_template(body, model, &self.caps).map(Read::Answer),
            _ => unreachable!("the front answers GET"),
        }
    }

    fn read_params(&mut self, fields: &Fields<'_, '_>) -> Result<Params, ApiError> {
        let offer = Offer { info: &self.info, spec: &self.spec, slots: self.slots };
        Params::read(fields, &offer, &mut self.random)
    }

    fn read_chat(&mut self, body: &Map<String, Value>) -> Result<Ready, ApiError> {
        let fields = Fields::body(body);
        let ignored = schema::screen(body, schema::CHAT)?;
        let params = self.read_params(&fields)?;
        let top = fields.integer("top_logprobs", 0..=limits::TOP_LOGPROBS as i64)?;
        let logprobs = match (fields.boolean("logprobs")?.unwrap_or(false), top) {
            (true, top) => Some(top.unwrap_or(0) as u32),
            (false, None) => None,
            (false, Some(_)) => return Err(ApiError::invalid_value("top_logprobs", "it needs logprobs: true")),
        };
        let format = constrain::format::read(&fields)?;
        let chat = Chat::read(&fields, &self.caps)?;
        let rendered = chat.render(self.model.as_ref(), self.info.n_ctx)?;
        let thinks = rendered.open_tag.is_some();
        let (shape, markers) = chat.channels(&self.caps, thinks);
        let mut wanted = Wanted {
            format: format.as_ref(),
            tools: chat.tools(),
            style: shape.style,
            reasoning: self.caps.think_tokens,
            call: self.caps.call_tokens.filter(|_| shape.style != ToolStyle::None),
            begins_in_reasoning: thinks,
            budget: chat.budget(),
        };
        if let (Some(_), Some(tag), None) = (&format, &rendered.open_tag, wanted.reasoning) {
            wanted.reasoning = Some(constrain::markers(self.model.as_ref(), tag)?);
        }
        let mut constraint = self.compiler.compile(&wanted)?;
        let warnings = constraint.as_mut().map(|c| std::mem::take(&mut c.warnings)).unwrap_or_default();
        let opened = rendered.open_tag.map_or(String::new(), |tag| format!("{tag}\n"));
        let lead = vec![if chat.keeps_tags(&self.caps) { opened.clone() } else { String::new() }];
        Ok(Ready {
            params,
            dialect: Dialect::Chat,
            prompts: vec![rendered.tokens],
            lead,
            opened: vec![opened],
            shape: Arc::new(shape),
            markers: markers.map(Arc::new),
            logprobs,
            constraint,
            warnings,
            ignored,
            prompt_param: "messages",
            body: None,
        })
    }

    fn read_completions(&mut self, body: &Map<String, Value>) -> Result<Ready, ApiError> {
        let fields = Fields::body(body);
        let ignored = schema::screen(body, schema::COMPLETIONS)?;
        let mut params = self.read_params(&fields)?;
        params.max_tokens.get_or_insert(completions::MAX_TOKENS_DEFAULT);
        let logprobs = fields.integer("logprobs", 0..=limits::TOP_LOGPROBS as i64)?.map(|n| n as u32);
        let echo = fields.boolean("echo")?.unwrap_or(false);
        if echo && logprobs.is_some() {
            let message = "log-probabilities of the prompt are not supported; leave echo or logprobs out";
            return Err(ApiError::unsupported_value("echo", message));
        }
        let format = constrain::format::read(&fields)?;
        let prompts = completions::read_prompts(&fields, self.model.as_ref(), self.info.n_ctx)?;
        let (lead, prompts): (Vec<String>, Vec<_>) =
            prompts.into_iter().map(|p| (if echo { p.text } else { String::new() }, p.tokens)).unzip();
        let constraint = self.compiler.compile(&Wanted { format: format.as_ref(), ..Wanted::default() })?;
        Ok(Ready {
            params,
            dialect: Dialect::Completion,
            prompts,
            opened: vec![String::new(); lead.len()],
            lead,
            shape: Arc::default(),
            markers: None,
            logprobs,
            constraint,
            warnings: Vec::new(),
            ignored,
            prompt_param: "prompt",
            body: None,
        })
    }
}
