//! What `front` and `text` say to each other. `front` owns sockets and knows no token; `text` owns requests and knows
//! no socket. Where a host embeds the engine, `embed` is the front.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Instant;

use mio::Waker;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;

use crate::serve::http::Reply;
use crate::serve::metrics::Metrics;
use crate::serve::routes::Route;
use crate::serve::service::Service;
use crate::serve::view::View;

/// Names one request of one connection. A late answer to a reused connection finds another serial and is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Exchange {
    /// Row of the connection table.
    pub conn: usize,
    /// Unique over the process.
    pub serial: u64,
}

/// A body that was read whole. Its bytes count against the bound on all bodies until it is dropped.
pub(crate) struct Body {
    bytes: Vec<u8>,
    shared: Arc<Shared>,
}

impl Body {
    /// `bytes` are counted in `shared` already.
    pub(crate) fn new(bytes: Vec<u8>, shared: Arc<Shared>) -> Self {
        Self { bytes, shared }
    }
}

impl std::ops::Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({} B)", self.bytes.len())
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.shared.bodies_less(self.bytes.len());
    }
}

/// A large answer that its client has not read: its bytes count against the bound on all such answers until dropped.
pub(crate) struct Held {
    bytes: usize,
    shared: Arc<Shared>,
}

impl Held {
    /// `None` when others hold so much that all would be more than `most`. One alone is never too large.
    pub(crate) fn new(shared: &Arc<Shared>, bytes: usize, most: usize) -> Option<Self> {
        let add = |held: usize| (held == 0 || held.saturating_add(bytes) <= most).then(|| held.saturating_add(bytes));
        shared.answers_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Self { bytes, shared: Arc::clone(shared) })
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Held({} B)", self.bytes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.answers_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A request whose framing, path, method and key were found in order.
#[derive(Debug)]
pub(crate) struct Request {
    pub exchange: Exchange,
    pub route: Route,
    pub body: Body,
    pub received: Instant,
    /// `x-session-id`, see [`session`].
    pub session: Option<String>,
    /// Its name, which some errors tell.
    pub id: String,
}

/// What a client calls its session, as a header can say it again: visible ASCII, at most 128 of it. `None` where nothing is
/// left.
pub(crate) fn session(text: &str) -> Option<String> {
    let visible: String = text.chars().filter(char::is_ascii_graphic).take(128).collect();
    Some(visible).filter(|text| !text.is_empty())
}

/// `front` to `text`.
#[derive(Debug)]
pub(crate) enum ToText {
    Request(Box<Request>),
    /// The client has gone; nobody reads the answer.
    Gone(Exchange),
    /// The connection's output buffer is above its bound.
    Full(Exchange),
    /// It is half empty again.
    Room(Exchange),
    /// Finish what runs, take nothing new.
    Drain,
    /// The time to finish is over: fail what still runs.
    Abort,
}

/// `text` to `front`.
#[derive(Debug)]
pub(crate) enum ToFront {
    /// A whole answer, counted if it is large.
    Reply(Exchange, Reply, Option<Held>),
    /// Status 200 and the headers of an event stream.
    Open(Exchange, Vec<(&'static str, String)>),
    /// Whole events.
    Data(Exchange, Vec<u8>),
    /// The stream is complete.
    Close(Exchange),
    /// The stream failed: the status that the error would have had, and the last bytes, after which the transfer is broken
    /// off.
    Break(Exchange, u16, Vec<u8>),
    /// A choice of this exchange, or of one that is over, holds another number of KV pages. Asked for by hosts alone.
    Pages(Exchange, PageCount),
    /// The engine ended although nobody asked it to.
    Dead,
}

/// KV pages of one choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageCount {
    /// Which choice of its exchange.
    pub choice: u32,
    /// Pages that it holds.
    pub held: u32,
    /// Pages of the pool that nobody holds.
    pub free: u32,
}

/// How `text` tells its front that there is something to take.
#[derive(Clone, Debug)]
pub(crate) enum Bell {
    /// The front waits for sockets.
    Poll(Arc<Waker>),
    /// It waits for the channel itself.
    Channel,
}

impl Bell {
    pub(crate) fn ring(&self) {
        if let Self::Poll(waker) = self
            && let Err(error) = waker.wake()
        {
            tracing::error!(%error, "cannot wake the front");
        }
    }
}

/// What the process is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    Loading,
    Serving,
    Draining,
    Dead,
}

/// Facts both threads look at.
pub(crate) struct Shared {
    state: AtomicU8,
    /// Bytes of the bodies of all connections: being read, waiting for `text`, or being worked on by it.
    bodies_bytes: AtomicUsize,
    /// Bytes of large answers that were made and not yet read.
    answers_bytes: AtomicUsize,
    /// What the next may expect who finds no room.
    pub service: Service,
    /// Counters; taken for a moment by either thread.
    pub metrics: Mutex<Metrics>,
    /// `/v1/models` entries, once a model is loaded.
    pub models: RwLock<Option<Arc<Vec<Value>>>>,
    /// What runs, once a model is loaded.
    pub view: RwLock<Option<Arc<View>>>,
    /// See [`Outage`].
    pub outage: RwLock<Outage>,
    /// See [`Progress`].
    pub progress: Progress,
}

/// How far the loading of a model is. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU8>);

impl Progress {
    /// So much in a hundred is done.
    pub fn reach(&self, percent: u8) {
        self.0.fetch_max(percent.min(100), Ordering::Relaxed);
    }

    /// From 0 to 100.
    pub fn percent(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why nothing can be computed at present although the engine is there, if so: the other stage of the model is away.
/// Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Outage(Arc<RwLock<Option<String>>>);

impl Outage {
    /// Nothing can be computed: `why`. Whether that is news.
    pub fn set(&self, why: &str) -> bool {
        let mut known = self.0.write();
        let news = known.as_deref() != Some(why);
        *known = Some(why.to_owned());
        news
    }

    /// It can again.
    pub fn clear(&self) {
        *self.0.write() = None;
    }

    /// Why not.
    pub fn why(&self) -> Option<String> {
        self.0.read().clone()
    }
}

impl Shared {
    pub(crate) fn new() -> Self {
        let metrics = Mutex::new(Metrics::default());
        let state = AtomicU8::new(State::Loading as u8);
        let (bodies_bytes, answers_bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self {
            state,
            bodies_bytes,
            answers_bytes,
            service: Service::default(),
            metrics,
            models: RwLock::new(None),
            view: RwLock::new(None),
            outage: RwLock::default(),
            progress: Progress::default(),
        }
    }

    /// Bytes of all bodies held.
    pub(crate) fn bodies_bytes(&self) -> usize {
        self.bodies_bytes.load(Ordering::Relaxed)
    }

    /// A body grew.
    pub(crate) fn bodies_more(&self, bytes: usize) {
        self.bodies_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A body, or a part of one, is gone.
    pub(crate) fn bodies_less(&self, bytes: usize) {
        let before = self.bodies_bytes.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "bodies are counted before they are dropped");
    }

    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Loading,
            1 => State::Serving,
            2 => State::Draining,
            _ => State::Dead,
        }
    }

    /// States only move forward.
    pub(crate) fn advance(&self, state: State) {
        self.state.fetch_max(state as u8, Ordering::AcqRel);
    }
}
