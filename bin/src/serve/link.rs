//! What `front` and `text` say to each other. `front` owns sockets and knows no token; `text` owns requests and knows
//! no socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use serde_json::Value;

use crate::serve::http::Reply;
use crate::serve::metrics::Metrics;
use crate::serve::routes::Route;

/// Names one request of one connection. A late answer to a reused connection finds another serial and is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Exchange {
    /// Row of the connection table.
    pub conn: usize,
    /// Unique over the process.
    pub serial: u64,
}

/// A request whose framing, path, method and key were found in order.
#[derive(Debug)]
pub(crate) struct Request {
    pub exchange: Exchange,
    pub route: Route,
    pub body: Vec<u8>,
    pub received: Instant,
    /// `x-session-id`, echoed.
    pub session: Option<String>,
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
    /// A whole answer.
    Reply(Exchange, Reply),
    /// Status 200 and the headers of an event stream.
    Open(Exchange, Vec<(&'static str, String)>),
    /// Whole events.
    Data(Exchange, Vec<u8>),
    /// The stream is complete.
    Close(Exchange),
    /// The stream failed; these are its last bytes, and the transfer is broken off after them.
    Break(Exchange, Vec<u8>),
    /// The engine ended although nobody asked it to.
    Dead,
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
    /// Counters; taken for a moment by either thread.
    pub metrics: Mutex<Metrics>,
    /// `/v1/models` entry, once a model is loaded.
    pub model: RwLock<Option<Arc<Value>>>,
}

impl Shared {
    pub(crate) fn new() -> Self {
        let metrics = Mutex::new(Metrics::default());
        Self { state: AtomicU8::new(State::Loading as u8), metrics, model: RwLock::new(None) }
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
