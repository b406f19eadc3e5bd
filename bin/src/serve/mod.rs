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

mod answer;
mod auth;
mod buffer;
mod calls;
mod chat;
mod completions;
mod conns;
mod entries;
pub(crate) mod error;
mod fields;
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
mod params;
mod parts;
mod random;
mod reader;
mod record;
pub(crate) mod routes;
mod schema;
mod spec;
pub mod start;
mod stats;
pub(crate) mod text;
mod text_tools;
mod tools;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam::channel::{self, Receiver, Sender};
use engine::api::{Command, Event};
use engine::engine::EngineHandle;
use engine::limits::Limits;
use engine::schedule::Dead;
use mio::net::TcpListener;
use mio::{Poll, Waker};

pub(crate) use auth::read_file as read_key_file;
pub(crate) use chat::prompt as chat_prompt;
pub use info::{ModelInfo, SamplingDefaults};
pub use link::Outage;
pub use model::{Caps, Conversation, RenderError, Rendered, TextModel, ToolStyle};
pub use record::{Digests, RecordFile};
pub(crate) use record::{PROMPT_FIELDS, bytes_for as record_bytes};
pub use spec::{MtpOffer, SpecConfig};

use auth::Keys;
use front::{Control, Front, WAKER};
use link::{Bell, Shared, ToFront, ToText};

/// Bounds of the front that tests shorten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Connections that may do everything; 0 where a host embeds the engine, which has none.
    pub connections: usize,
    /// From the first byte of a head to its end.
    pub head_time: Duration,
    /// Between two bytes of a body.
    pub body_idle_time: Duration,
    /// Between two requests of a connection.
    pub keep_alive_time: Duration,
    /// What follows an early answer is thrown away for this long before the connection is closed instead.
    pub drain_time: Duration,
    /// A reader that takes nothing for this long is dropped.
    pub stall_time: Duration,
    /// A request may wait for a slot for this long.
    pub queue_time: Duration,
    /// Running requests may finish for this long after a shutdown began.
    pub shutdown_time: Duration,
    /// Unsent bytes of a connection above which its rows pause.
    pub stream_buffer: usize,
    /// Unsent bytes of all whole answers that are longer than that.
    pub answers_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: limits::CONNECTIONS,
            head_time: limits::HEAD_TIME,
            body_idle_time: limits::BODY_IDLE_TIME,
            keep_alive_time: limits::KEEP_ALIVE_TIME,
            drain_time: limits::DRAIN_TIME,
            stall_time: limits::STALL_TIME,
            queue_time: limits::QUEUE_TIME,
            shutdown_time: limits::SHUTDOWN_TIME,
            stream_buffer: limits::STREAM_BUFFER_BYTES,
            answers_bytes: limits::ANSWERS_BYTES,
        }
    }
}

/// How to serve.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Address to listen on.
    pub host: String,
    /// 0 = any free port.
    pub port: u16,
    /// Accepted keys; with those of the file. None at all = open.
    pub api_keys: Vec<String>,
    /// One key per line; read again on SIGHUP.
    pub api_key_file: Option<PathBuf>,
    /// Largest body in bytes.
    pub body_limit: usize,
    /// Time and buffer bounds.
    pub bounds: Bounds,
}

impl Config {
    /// Defaults for a context of `n_ctx` tokens: port `port` of the loopback address, no keys.
    pub fn local(port: u16, n_ctx: usize) -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port,
            api_keys: Vec::new(),
            api_key_file: None,
            body_limit: limits::body_bytes(n_ctx),
            bounds: Bounds::default(),
        }
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
    /// Whether the engine can compute; a part of it may be elsewhere.
    pub outage: Outage,
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
    address: SocketAddr,
    shared: Arc<Shared>,
    waker: Arc<Waker>,
    control: Sender<Control>,
    bounds: Bounds,
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

/// A listener; an error names the address that was asked for.
fn bind(host: &str, port: u16) -> io::Result<TcpListener> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {host} port {port}: {e}"));
    let no_address = || io::Error::new(io::ErrorKind::InvalidInput, "the host names no address");
    let mut addresses = (host, port).to_socket_addrs().map_err(named)?;
    TcpListener::bind(addresses.next().ok_or_else(no_address).map_err(named)?).map_err(named)
}

impl Server {
    /// Binds and starts to answer.
    ///
    /// # Errors
    /// If the address cannot be bound, or the key file cannot be used.
    pub fn start(config: Config) -> Result<Self, ListenError> {
        let keys = Keys::load(&config.api_keys, config.api_key_file.as_deref()).map_err(ListenError::Keys)?;
        let listener = bind(&config.host, config.port)?;
        let address = listener.local_addr()?;
        let poll = Poll::new()?;
        let bounds = config.bounds;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let shared = Arc::new(Shared::new());
        let (to_text, from_front) = channel::bounded(limits::MESSAGES_WAITING);
        let (to_front, from_text) = channel::bounded(limits::MESSAGES_WAITING);
        let (control, take_control) = channel::bounded(16);
        let front =
            Front::new(poll, listener, Arc::new(config), keys, shared.clone(), to_text, from_text, take_control)?;
        let front = thread::Builder::new().name("front".to_owned()).spawn(move || front.run())?;
        Ok(Self {
            address,
            shared,
            waker,
            control,
            bounds,
            to_front: Some(to_front),
            from_front: Some(from_front),
            front,
            text: None,
            record: None,
            recorder: None,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
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
        let text::Threads { text, long: _, recorder } =
            text::start(parts, self.bounds, &self.shared, inbox, outbox, bell, record)?;
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

/// The table of `--limits`.
pub fn limits_table(engine: &Limits, bounds: &Bounds) -> String {
    limits::table(engine, bounds)
}
