//! engine-serve: HTTP in front of the engine.
//!
//! ```text
//!  sockets ◄─► front ──Request──► text ──Command──► engine
//!                ▲                 │ ▲                │
//!                └──Reply, events──┘ └─────Event──────┘
//! ```
//!
//! `front` owns every socket and waits only for its poll; `text` owns every request, and has large bodies read by `long`;
//! the engine owns the tick. A client that does not read fills its own bounded buffer, its rows are paused, and nobody else
//! notices. No channel is waited on in a circle: `front` only tries to send, `text` waits for `front` alone.

mod answers;
mod anthropic;
pub mod api;
pub mod api_flags;
mod auth;
mod buffer;
mod calls;
mod chat;
mod completions;
mod conns;
mod constrain;
mod conversation;
pub(crate) mod cors;
mod delta;
mod entries;
pub(crate) mod error;
mod fields;
pub mod flags;
mod front;
mod gate;
pub mod gguf_text;
mod http;
pub(crate) mod info;
mod job;
pub(crate) mod json;
pub(crate) mod limits;
pub(crate) mod link;
pub mod local;
mod messages;
mod metrics;
mod model;
mod openapi;
mod page;
mod params;
mod parts;
pub mod probe;
mod props;
mod random;
mod reader;
mod record;
mod remembered;
mod responses;
pub(crate) mod routes;
mod schema;
mod service;
pub(crate) mod shapes;
mod socket;
mod spec;
pub mod start;
mod stats;
pub(crate) mod text;
mod text_tools;
mod tools;
mod trail;
mod view;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver, Sender};
use engine::api::{Command, Event};
use engine::clock::Monotonic;
use engine::engine::EngineHandle;
use engine::gauges::Gauges;
use engine::limits::Limits;
use engine::schedule::Dead;
use engine_io::text::TemplateLimits;
use mio::{Poll, Waker};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use api::Api;
pub(crate) use auth::read_file as read_key_file;
pub(crate) use chat::prompt as chat_prompt;
pub(crate) use constrain::{KEPT_BYTES as GRAMMARS_KEPT_BYTES, grammar_bytes, vocabulary_bytes};
pub use cors::Origins;
pub use info::{ModelInfo, SamplingDefaults};
pub use link::{Outage, Progress};
pub use metrics::Aliases;
pub use model::{Caps, Conversation, RenderError, Rendered, TemplateFacts, TextModel, ToolStyle};
pub(crate) use params::ping;
pub use record::{Digests, RecordFile};
pub(crate) use record::{PROMPT_FIELDS, bytes_for as record_bytes};
pub(crate) use remembered::remembered_bytes;
pub use socket::Address;
pub use spec::{MtpOffer, SpecConfig};

use auth::Keys;
use flags::HttpFlags;
use front::{Control, Front, WAKER};
use link::{Bell, Shared, ToFront, ToText};
use socket::Listener;

/// Bounds of the front, as flags give them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Connections that may do everything; 0 where a host embeds the engine, which has none.
    pub connections: usize,
    /// Requests of one connection.
    pub requests: u32,
    /// Bytes of a request line.
    pub uri_bytes: usize,
    /// Bytes of a header block, request line included.
    pub head_bytes: usize,
    /// Headers of a request.
    pub headers: usize,
    /// Bytes of a body; `None`: as the context asks, see [`Bounds::body_limit`].
    pub body_bytes: Option<usize>,
    /// Bytes of all bodies that are read or wait; `None`: see [`Bounds::bodies_limit`].
    pub bodies_bytes: Option<usize>,
    /// From the first byte of a head to its end.
    pub head_time: Duration,
    /// Between two bytes of a body.
    pub body_idle_time: Duration,
    /// A whole body.
    pub body_time: Duration,
    /// Between two requests of a connection.
    pub keep_alive_time: Duration,
    /// The same for a connection that was taken for `/livez` and `/metrics` alone, and for the head of its request: whoever
    /// keeps silent there keeps others from asking whether the server lives.
    pub reserved_time: Duration,
    /// What follows an early answer is thrown away for this long before the connection is closed instead.
    pub drain_time: Duration,
    /// A reader that takes nothing for this long is dropped.
    pub stall_time: Duration,
    /// A request may wait for a slot for this long.
    pub queue_time: Duration,
    /// From a request's arrival to its end; then it is answered with what it has. `None`: as long as it takes.
    pub request_time: Option<Duration>,
    /// Choices that may wait for a slot.
    pub waiting: usize,
    /// Running requests may finish for this long after a shutdown began.
    pub shutdown_time: Duration,
    /// Unsent bytes of a connection above which its rows pause.
    pub stream_buffer: usize,
    /// Unsent bytes of all whole answers that are longer than that.
    pub answers_bytes: usize,
    /// Schemas or grammar of one request.
    pub schema_bytes: usize,
    /// What a thread may take of its own time to compile them.
    pub compile_time: Duration,
    /// Stop strings of a request.
    pub stop_strings: usize,
    /// Steps of rendering one prompt.
    pub template_fuel: u64,
    /// A stream's headers go out after this long in the queue.
    pub stream_headers_time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: limits::CONNECTIONS,
            requests: limits::REQUESTS_PER_CONNECTION,
            uri_bytes: limits::URI_BYTES,
            head_bytes: limits::HEAD_BYTES,
            headers: limits::HEADERS,
            body_bytes: None,
            bodies_bytes: None,
            head_time: limits::HEAD_TIME,
            body_idle_time: limits::BODY_IDLE_TIME,
            body_time: limits::BODY_TIME,
            keep_alive_time: limits::KEEP_ALIVE_TIME,
            reserved_time: limits::RESERVED_TIME,
            drain_time: limits::DRAIN_TIME,
            stall_time: limits::STALL_TIME,
            queue_time: limits::QUEUE_TIME,
            request_time: None,
            waiting: engine::limits::WAITING_MAX,
            shutdown_time: limits::SHUTDOWN_TIME,
            stream_buffer: limits::STREAM_BUFFER_BYTES,
            answers_bytes: limits::ANSWERS_BYTES,
            schema_bytes: limits::SCHEMA_BYTES,
            compile_time: limits::COMPILE_TIME,
            stop_strings: limits::STOP_STRINGS,
            template_fuel: TemplateLimits::default().fuel,
            stream_headers_time: limits::STREAM_HEADERS_TIME,
        }
    }
}

impl Bounds {
    /// The longest body for a context of `tokens`.
    pub fn body_limit(&self, tokens: usize) -> usize {
        self.body_bytes.unwrap_or_else(|| limits::body_bytes(tokens))
    }

    /// The most bytes of all bodies together; one alone always fits where no flag says how many.
    pub fn bodies_limit(&self, tokens: usize) -> usize {
        self.bodies_bytes.unwrap_or_else(|| limits::BODIES_BYTES.max(self.body_limit(tokens)))
    }

    /// Whether a prompt that fills a context of `tokens` can be sent, however its characters are written.
    ///
    /// # Errors
    /// The flag to change.
    pub fn check(&self, tokens: usize) -> Result<(), String> {
        let (body, least) = (self.body_limit(tokens), limits::BODY_BYTES_PER_TOKEN_MIN.saturating_mul(tokens));
        if body < least {
            return Err(format!(
                "--http-max-body {body} bytes cannot carry a prompt of {tokens} tokens, which takes up to {least}; raise it, or \
                 lower --ctx-size"
            ));
        }
        let all = self.bodies_limit(tokens);
        if all < body {
            return Err(format!("--queue-bytes {all} holds no body of the {body} bytes that one may have; raise it"));
        }
        Ok(())
    }
}

/// How to serve.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Where to listen: names, addresses, `unix:PATH`.
    pub hosts: Vec<String>,
    /// 0 = any free port, for each host its own.
    pub port: u16,
    /// Behind which every path is found too; empty, or like `/llm`.
    pub prefix: String,
    /// Accepted keys; with those of the file. None at all = open.
    pub api_keys: Vec<String>,
    /// One key per line; read again on SIGHUP.
    pub api_key_file: Option<PathBuf>,
    /// Whose pages may read answers.
    pub origins: Origins,
    /// Clients that have closed their sending side are answered.
    pub half_close: bool,
    /// Largest body in bytes.
    pub body_limit: usize,
    /// Bytes of all bodies that are read or wait.
    pub bodies_limit: usize,
    /// Time and buffer bounds.
    pub bounds: Bounds,
    /// What is shown of the server.
    pub show: Show,
}

/// What is shown of the server and of its answers, and to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Show {
    /// `/slots` tells what every slot is at.
    pub slots: bool,
    /// `/metrics` asks for a key where there are keys.
    pub metrics_key: bool,
    /// Further names of the metrics.
    pub aliases: Aliases,
    /// Answers tell their `timings` and their `speculation`.
    pub stats: bool,
    /// Streams have an event for each token, not for each step.
    pub per_token: bool,
}

impl Default for Show {
    fn default() -> Self {
        Self { slots: true, metrics_key: false, aliases: Aliases::ALL, stats: true, per_token: false }
    }
}

impl Config {
    /// Defaults for a context of `n_ctx` tokens: port `port` of the loopback address, no keys.
    pub fn local(port: u16, n_ctx: usize) -> Self {
        Self {
            hosts: vec!["127.0.0.1".to_owned()],
            port,
            prefix: String::new(),
            api_keys: Vec::new(),
            api_key_file: None,
            origins: Origins::Any,
            half_close: false,
            body_limit: Bounds::default().body_limit(n_ctx),
            bodies_limit: Bounds::default().bodies_limit(n_ctx),
            bounds: Bounds::default(),
            show: Show::default(),
        }
    }

    /// What flags ask for, for a context of `n_ctx` tokens.
    ///
    /// # Errors
    /// Bounds that such a context does not fit.
    pub fn of(flags: &HttpFlags, bounds: Bounds, n_ctx: usize) -> Result<Self, String> {
        bounds.check(n_ctx)?;
        Ok(Self {
            hosts: flags.host.clone(),
            port: flags.port,
            prefix: flags.api_prefix.clone(),
            api_keys: flags.api_key.clone(),
            api_key_file: flags.api_key_file.clone(),
            origins: flags.origins()?,
            half_close: flags.allow_half_close,
            body_limit: bounds.body_limit(n_ctx),
            bodies_limit: bounds.bodies_limit(n_ctx),
            show: Show {
                slots: !flags.no_slots,
                metrics_key: flags.metrics_auth,
                aliases: flags.metrics_aliases,
                stats: !flags.no_response_stats,
                per_token: flags.stream_per_token,
            },
            bounds,
        })
    }
}

/// A loaded model and the two ends of its engine.
pub struct Parts {
    /// Tokenizer and template.
    pub model: Box<dyn TextModel>,
    /// Facts for `/v1/models` and for checks.
    pub info: ModelInfo,
    /// Strategies and their defaults.
    pub spec: SpecConfig,
    /// Requests that run at once.
    pub slots: usize,
    /// Into the engine.
    pub commands: Sender<Command>,
    /// Out of the engine.
    pub events: Receiver<Event>,
    /// What it looks like, tick by tick.
    pub gauges: Arc<Gauges>,
    /// The clock of these.
    pub clock: Monotonic,
    /// Whether the engine can compute; a part of it may be elsewhere.
    pub outage: Outage,
    /// What flags say of requests.
    pub api: Api,
}

/// How serving ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Shut down as asked.
    Done,
    /// The sockets failed.
    Failed,
    /// The engine ended by itself.
    Internal,
    /// A second signal cut the shutdown short.
    Signal(i32),
}

impl Exit {
    /// Exit code of the process.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Internal => 70,
            Self::Signal(signal) => 128_u8.wrapping_add(signal as u8),
        }
    }
}

/// Why nothing listens.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The key file.
    #[error("{0}")]
    Keys(io::Error),
    /// The address, or a thread.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ListenError {
    /// Exit code of the process: 3 for a file that is refused, 1 for the machine.
    pub fn code(&self) -> u8 {
        match self {
            Self::Keys(_) => 3,
            Self::Io(_) => 1,
        }
    }
}

/// A listening server. Answers `loading_model` until [`Server::serve`].
pub struct Server {
    addresses: Vec<Address>,
    shared: Arc<Shared>,
    waker: Arc<Waker>,
    control: Sender<Control>,
    bounds: Bounds,
    show: Show,
    to_front: Option<Sender<ToFront>>,
    from_front: Option<Receiver<ToText>>,
    front: JoinHandle<Exit>,
    text: Option<JoinHandle<()>>,
    /// Where to record, and how the model is named there; taken by `serve`.
    record: Option<(RecordFile, Digests)>,
    recorder: Option<JoinHandle<()>>,
}

/// Ends a server from another thread.
#[derive(Clone)]
pub struct Handle {
    waker: Arc<Waker>,
    control: Sender<Control>,
}

impl Handle {
    fn send(&self, control: Control) {
        // A full or closed channel means that an end is under way already.
        let _ = self.control.try_send(control);
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake the front");
        }
    }

    /// Finish what runs, then end.
    pub fn shutdown(&self) {
        self.send(Control::Shutdown);
    }

    /// End now; `signal` becomes the exit code.
    pub fn kill(&self, signal: i32) {
        self.send(Control::Kill(signal));
    }

    /// Read the key file again.
    pub fn reload_keys(&self) {
        self.send(Control::ReloadKeys);
    }
}

impl Server {
    /// Where the loading of the model is shown.
    pub fn progress(&self) -> Progress {
        self.shared.progress.clone()
    }

    /// Binds and starts to answer.
    ///
    /// # Errors
    /// If the address cannot be bound, or the key file cannot be used.
    pub fn start(config: Config) -> Result<Self, ListenError> {
        let keys = Keys::load(&config.api_keys, config.api_key_file.as_deref()).map_err(ListenError::Keys)?;
        let listeners: Vec<Listener> =
            config.hosts.iter().map(|host| Listener::bind(host, config.port)).collect::<io::Result<_>>()?;
        let addresses = listeners.iter().map(Listener::address).collect::<io::Result<_>>()?;
        let poll = Poll::new()?;
        let (bounds, show) = (config.bounds, config.show);
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let shared = Arc::new(Shared::new());
        let (to_text, from_front) = channel::bounded(limits::MESSAGES_WAITING);
        let (to_front, from_text) = channel::bounded(limits::MESSAGES_WAITING);
        let (control, take_control) = channel::bounded(16);
        let front =
            Front::new(poll, listeners, Arc::new(config), keys, shared.clone(), to_text, from_text, take_control)?;
        let front = thread::Builder::new().name("front".to_owned()).spawn(move || front.run())?;
        Ok(Self {
            addresses,
            shared,
            waker,
            control,
            bounds,
            show,
            to_front: Some(to_front),
            from_front: Some(from_front),
            front,
            text: None,
            record: None,
            recorder: None,
        })
    }

    /// Where it listens, in the order of the hosts.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The first of them that is no file.
    ///
    /// # Panics
    /// If all are files.
    pub fn address(&self) -> SocketAddr {
        let tcp = |address: &Address| if let Address::Tcp(tcp) = address { Some(*tcp) } else { None };
        self.addresses.iter().find_map(tcp).expect("a host that is no file was asked for")
    }

    /// A way to end it.
    pub fn handle(&self) -> Handle {
        Handle { waker: self.waker.clone(), control: self.control.clone() }
    }

    /// Whether it has stopped to listen, as asked or by a failure.
    pub fn has_ended(&self) -> bool {
        self.front.is_finished()
    }

    /// Records every request in `file`; `model` is what answers it. To be said before [`Server::serve`].
    pub fn record(&mut self, file: RecordFile, model: Digests) {
        self.record = Some((file, model));
    }

    /// The model is loaded: requests are taken from now on.
    ///
    /// # Errors
    /// If a thread cannot be started.
    ///
    /// # Panics
    /// When called twice.
    pub fn serve(&mut self, parts: Parts) -> io::Result<()> {
        let inbox = self.from_front.take().expect("serve is called once");
        let outbox = self.to_front.take().expect("serve is called once");
        let bell = Bell::Poll(self.waker.clone());
        let record = self.record.take();
        // `long` ends when `text` has ended, or with the process: nobody waits for what it still reads.
        let ends = text::Ends { inbox, outbox, bell };
        let text::Threads { text, long: _, recorder } =
            text::start(parts, self.bounds, self.show, &self.shared, ends, record)?;
        (self.text, self.recorder) = (Some(text), recorder);
        Ok(())
    }

    /// Waits for the end.
    pub fn join(self) -> Exit {
        let exit = self.front.join().unwrap_or_else(|_| {
            tracing::error!("the front panicked");
            Exit::Internal
        });
        // The front's channel end is gone, so `text` ends; a second signal does not wait for it.
        if matches!(exit, Exit::Signal(_)) {
            return exit;
        }
        let stuck = Instant::now() + STUCK_TIME;
        while self.text.as_ref().is_some_and(|text| !text.is_finished()) {
            if Instant::now() > stuck {
                tracing::error!(
                    "the text thread is stuck in a request that nobody waits for; it goes with the process"
                );
                return exit;
            }
            thread::sleep(Duration::from_millis(2));
        }
        // The recorder ends when `text` has, and writes what still waits.
        for (name, thread) in [("text", self.text), ("record", self.recorder)] {
            if thread.is_some_and(|thread| thread.join().is_err()) {
                tracing::error!("the {name} thread panicked");
                return Exit::Internal;
            }
        }
        exit
    }
}

/// How long a request that is being read may keep a server whose connections have ended.
const STUCK_TIME: Duration = Duration::from_secs(5);

/// Ends an engine that nobody speaks to any more: it is told to stop, and what it still says is taken so that it can
/// hear it. Returns when its threads have ended.
///
/// # Errors
/// The thread that panicked, and what it said.
pub fn stop(engine: EngineHandle) -> Result<(), Dead> {
    while !engine.is_finished() {
        let _ = engine.commands.try_send(Command::Stop);
        let _ = engine.events.recv_timeout(Duration::from_millis(5));
    }
    engine.join()
}

/// Lets the process open a socket for every connection, as far as the system allows, and says so where it does not.
pub fn raise_descriptors(bounds: &Bounds) {
    let connections = bounds.connections + limits::CONNECTIONS_RESERVED + limits::CONNECTIONS_TURNED_AWAY;
    let needed = (connections + limits::OTHER_DESCRIPTORS) as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // No number: there is no limit.
    let (Some(now), most) = (current, maximum.unwrap_or(u64::MAX)) else { return };
    if now >= needed {
        return;
    }
    let to = needed.min(most);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(to), maximum });
    if raised.is_err() || to < needed {
        let allowed = if raised.is_ok() { to } else { now };
        tracing::warn!(
            allowed,
            needed,
            "the system lets this process open fewer files than --http-max-conns may take; further connections will wait to \
             be accepted: raise the limit (ulimit -n) or lower the flag"
        );
    }
}

/// The table of `--limits`.
pub fn limits_table(engine: &Limits, bounds: &Bounds) -> String {
    limits::table(engine, bounds)
}
