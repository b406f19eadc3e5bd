//! What comes from clients, read as the front and `text` read it, and what a model writes, put together as `text` does it;
//! but without sockets and without an engine: for whoever wants to know what they make of any bytes at all.

use std::sync::Arc;
use std::time::Instant;

use engine::api::Stop;
use engine::channels::{Markers, Said};
use engine::constraint::Constraint;
use engine::ids::{Slot, TokenId};
use engine::tables::output::Outputs;
use engine_io::text::ToolStyle;
use serde_json::{Map, Value};

use crate::serve::calls::Kinds;
use crate::serve::constrain::Compiler;
use crate::serve::http::{Decoder, HeadError, Method, head};
use crate::serve::link::{Body, Exchange, Request, Shared};
use crate::serve::parts::{self, Assembler, Item, Shape};
use crate::serve::random::Random;
use crate::serve::reader::{Read, Reader};
use crate::serve::routes::{self, Route};
use crate::serve::{Api, Bounds, ModelInfo, Show, SpecConfig, TextModel, limits};

/// A request that was read whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Percent-decoded.
    pub path: String,
    /// Behind the `?`, percent-decoded.
    pub query: String,
    /// Its body, without the framing.
    pub body: Vec<u8>,
    /// Another request may follow.
    pub keep_alive: bool,
}

/// What a connection's bytes come to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stream {
    /// The requests, in order.
    pub requests: Vec<Seen>,
    /// Why the rest is no request; `None` where more bytes could make it one.
    pub refused: Option<String>,
    /// Bytes of whole requests and of empty lines before them.
    pub used: usize,
}

/// Reads the bytes of a connection that come in pieces of `piece`, at least 1.
pub fn stream(bytes: &[u8], piece: usize, bounds: &Bounds) -> Stream {
    let mut out = Stream::default();
    let mut wire = Wire { reading: None, scanned: 0, empty_lines: 0 };
    let mut input = Vec::new();
    for part in bytes.chunks(piece) {
        input.extend_from_slice(part);
        loop {
            match wire.step(&input, bounds, &mut out) {
                Ok(0) => break,
                Ok(used) => {
                    input.drain(..used);
                    out.used += used;
                }
                Err(why) => {
                    out.refused = Some(why);
                    return out;
                }
            }
        }
    }
    out
}

/// Where a connection stands between two pieces.
struct Wire {
    reading: Option<(Seen, Decoder)>,
    scanned: usize,
    empty_lines: usize,
}

impl Wire {
    /// One step; how much of the input it took. Nothing where more is needed.
    fn step(&mut self, input: &[u8], bounds: &Bounds, out: &mut Stream) -> Result<usize, String> {
        if let Some((seen, decoder)) = &mut self.reading {
            let body = &mut seen.body;
            let used =
                decoder.feed(input, |bytes| body.extend_from_slice(bytes)).map_err(|error| error.0.to_owned())?;
            if decoder.done() {
                out.requests.extend(self.reading.take().map(|(seen, _)| seen));
            }
            return Ok(used);
        }
        if self.scanned == 0 {
            let lines = head::empty_lines(input);
            self.empty_lines += lines;
            if self.empty_lines > limits::EMPTY_LINES {
                return Err("too many empty lines before a request".to_owned());
            }
            if lines > 0 {
                return Ok(2 * lines);
            }
        }
        let refused = |error| match error {
            HeadError::Bad(rule) => rule.to_owned(),
            HeadError::UriTooLong => "the request line is too long".to_owned(),
            HeadError::TooLarge => "the head is too large".to_owned(),
            HeadError::OtherProtocol(text) => text.to_owned(),
        };
        match head::find_end(input, self.scanned, bounds).map_err(refused)? {
            Err(scanned) => {
                self.scanned = scanned;
                Ok(0)
            }
            Ok(end) => {
                let head = head::parse(&input[..end], bounds).map_err(refused)?;
                (self.scanned, self.empty_lines) = (0, 0);
                let decoder = Decoder::new(head.framing);
                let seen = Seen { path: head.path, query: head.query, body: Vec::new(), keep_alive: head.keep_alive };
                if decoder.done() {
                    out.requests.push(seen);
                } else {
                    self.reading = Some((seen, decoder));
                }
                Ok(end)
            }
        }
    }
}

/// What a body comes to.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// The engine would have these prompts, of so many tokens.
    Prompts(Vec<usize>),
    /// An answer: its status and body.
    Answer(u16, Vec<u8>),
}

/// Reads bodies of requests for one model.
pub struct Bodies {
    reader: Reader,
    shared: Arc<Shared>,
}

impl Bodies {
    /// For a model whose engine runs `slots` choices at once.
    pub fn new(model: Arc<dyn TextModel>, info: ModelInfo, spec: SpecConfig, slots: usize) -> Self {
        let caps = model.caps();
        let Bounds { schema_bytes, compile_time, stop_strings, .. } = Bounds::default();
        let compiler = Arc::new(Compiler::new(Arc::clone(&model), schema_bytes, compile_time));
        let (random, api, keep_bodies) = (Random::new(), Arc::new(Api::default()), false);
        let (remembered, show) = (Arc::default(), Show::default());
        let reader = Reader {
            model,
            caps,
            compiler,
            remembered,
            info,
            spec,
            slots,
            random,
            api,
            stop_strings,
            keep_bodies,
            show,
        };
        Self { reader, shared: Arc::new(Shared::new()) }
    }

    /// Reads the body of a POST to `path`, with what the answer's tokens may be; `None` for a path that takes none.
    pub fn read(&mut self, path: &str, body: &[u8]) -> Option<(Outcome, Option<Box<dyn Constraint>>)> {
        let route: Route = routes::find(path).ok().filter(|route| route.check_method(Method::Post).is_ok())?;
        self.shared.bodies_more(body.len());
        let body = Body::new(body.to_vec(), Arc::clone(&self.shared));
        let exchange = Exchange { conn: 0, serial: 0 };
        let request = Request { exchange, route, body, received: Instant::now(), session: None, id: String::new() };
        Some(match self.reader.read(request).read {
            Read::Answer(reply) => (Outcome::Answer(reply.status, reply.body), None),
            Read::Ready(ready) => {
                let prompts = Outcome::Prompts(ready.prompts.iter().map(Vec::len).collect());
                (prompts, ready.constraint.as_ref().map(|compiled| compiled.start()))
            }
        })
    }
}

/// A part of an answer, as clients get it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// Thinking.
    Reasoning(String),
    /// Text.
    Content(String),
    /// A call of a tool.
    Call {
        /// Of the tool.
        name: String,
        /// JSON, or of a custom tool its input.
        arguments: String,
        /// Of a custom tool.
        custom: bool,
        /// It has ended, and not by a limit.
        whole: bool,
    },
}

/// Puts answers together from what a model commits.
pub struct Answers {
    shape: Arc<Shape>,
    markers: Arc<Markers>,
    stop: Stop,
}

impl Answers {
    /// Of a model that writes calls in this style and marks its channels so; `tools` with the schemas of their arguments,
    /// none for a custom one.
    pub fn new(style: ToolStyle, markers: Markers, tools: &[(&str, Option<&Map<String, Value>>)], stop: Stop) -> Self {
        let custom = tools.iter().filter(|(_, schema)| schema.is_none()).map(|(name, _)| (*name).to_owned()).collect();
        let kinds = Kinds::new(tools.iter().copied());
        let shape =
            Shape { think: Some(("<think>", "</think>")), style, kinds, custom, id: "call_", ..Shape::default() };
        Self { shape: Arc::new(shape), markers: Arc::new(markers), stop }
    }

    /// One answer, committed tick by tick: tokens with what they show. `cut`: a limit has ended it.
    pub fn put_together(&self, ticks: &[Vec<(TokenId, Vec<u8>)>], cut: bool) -> Vec<Told> {
        let items = items(&self.shape, &self.markers, &self.stop, ticks, cut);
        let told = |item| match item {
            Item::Reasoning(text) => Told::Reasoning(text),
            Item::Content(text) => Told::Content(text),
            Item::Call { call, arguments, whole } => {
                Told::Call { name: call.name, arguments, custom: call.custom, whole }
            }
        };
        items.into_iter().map(told).collect()
    }
}

/// What an answer comes to, by the engine's side of it and then the assembler's.
pub(super) fn items(
    shape: &Arc<Shape>,
    markers: &Arc<Markers>,
    stop: &Stop,
    ticks: &[Vec<(TokenId, Vec<u8>)>],
    cut: bool,
) -> Vec<Item> {
    let slot = Slot(0);
    let mut outputs = Outputs::new(1);
    outputs.start(slot, false, Some(Arc::clone(markers)));
    let (mut assembler, mut random, mut items) = (Assembler::new(shape), Random::new(), Vec::new());
    let mut ended = false;
    for (nth, tick) in ticks.iter().enumerate() {
        let mut said = Said::default();
        for (token, bytes) in tick {
            ended = outputs.token(slot, *token, bytes, stop, true, &mut said).is_some();
            if ended {
                break;
            }
        }
        if nth + 1 == ticks.len() && !ended {
            outputs.state[0].finish(&mut said);
        }
        assembler.take(&said, &mut random).iter().for_each(|part| parts::add(&mut items, part));
        if ended {
            break;
        }
    }
    assembler.finish(cut && !ended, &mut random).iter().for_each(|part| parts::add(&mut items, part));
    items
}
