//! The engine inside a host's process: what the daemon does, without its sockets. `bin/capi` gives it to other languages.
//!
//! ```text
//!  host ──submit, cancel──► text ──Command──► engine
//!    ▲                       │ ▲                │
//!    └─poll── queue ◄─ host ◄┘ └─────Event──────┘
//! ```
//!
//! `host` is a thread that stands where the daemon has its front: it takes what `text` says and puts it into the queue
//! that the host polls. Requests and answers are those of HTTP, byte for byte, because the same threads read and write
//! them. A host that does not poll is a client that does not read: its requests pause, and nobody else notices.
//!
//! Every method may be called on any thread at any time; calls on one handle wait for each other for moments only.

mod batch;
mod config;
mod desk;
mod error;
mod queue;
mod workers;

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, bounded, unbounded};
use engine::api::Command;
pub use engine::api::DraftCounts;
use engine::engine::EngineHandle;
use engine::exec::Isa;
use engine::limits::{Limits, PAGE_TOKENS, WAITING_MAX};
use engine::model::MtpStatus;
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

pub use batch::{EmbedError, Outcome, run_all};
pub use config::Config;
pub use error::{CallError, OpenError};
pub use queue::{Event, Kind};

use crate::canary::Verdict;
use crate::flags::SizeFlags;
use crate::pack::inspect;
use crate::serve::error::ApiError;
use crate::serve::json::parse_object;
use crate::serve::link::{Bell, Body, Request, Shared, ToFront, ToText};
use crate::serve::routes::Route;
use crate::serve::shapes::Shape;
use crate::serve::start::{self, Files, Home};
use crate::serve::{Bounds, Parts, Progress, Show, info, limits, stop, text};
use crate::watch::Ends;
use desk::{Desk, Desktop, LastWord, exchange};
use queue::Queue;

/// What a request is to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/tokenize`.
    Tokenize,
    /// `/detokenize`.
    Detokenize,
    /// `/apply-template`.
    ApplyTemplate,
    /// `/v1/messages`.
    Messages,
    /// `/v1/responses`.
    Responses,
}

impl Endpoint {
    fn route(self) -> Route {
        match self {
            Self::Chat => Route::Chat,
            Self::Completions => Route::Completions,
            Self::Tokenize => Route::Tokenize,
            Self::Detokenize => Route::Detokenize,
            Self::ApplyTemplate => Route::ApplyTemplate,
            Self::Messages => Route::Messages,
            Self::Responses => Route::Responses,
        }
    }
}

/// Counters of a handle since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Requests whose last event was not taken.
    pub requests: u64,
    /// Events that wait for the host.
    pub events: u64,
    /// Choices that hold a slot.
    pub running: u64,
    /// Choices that wait for one.
    pub waiting: u64,
    /// Prompt tokens of choices that have ended, once a prompt.
    pub prompt_tokens: u64,
    /// Committed completion tokens of choices that have ended.
    pub completion_tokens: u64,
    /// Drafts of the MTP block.
    pub mtp: DraftCounts,
    /// Drafts of the suffix index.
    pub suffix: DraftCounts,
    /// Workers that all handles of the process share.
    pub threads: u64,
}

/// An open handle. Dropping it closes it.
pub struct Engine {
    desk: Arc<Desk>,
    host: Mutex<Option<JoinHandle<()>>>,
    about: Value,
    n_ctx: usize,
    threads: usize,
}

fn bounds(config: &Config) -> Bounds {
    Bounds { connections: 0, ..config.args.bounds() }
}

/// Whether a model would be opened, and what it would take: the refusals of [`Engine::open`] but for those that only
/// the weights can tell. Returns what `engine-pack inspect --json` prints.
///
/// # Errors
/// [`OpenError`].
pub fn preflight(config: &Config) -> Result<Value, OpenError> {
    let args = &config.args;
    let files = start::open(args)?;
    let threads = workers::foreseen(args.low.size.threads, args.low.size.exec_options().threads)?;
    let prepared = start::prepare(args, &files, threads, bounds(config))?;
    let status = &prepared.planned.plan.mtp;
    let verdict = if matches!(status, MtpStatus::Unavailable(_)) { Verdict::Absent } else { Verdict::Kept };
    start::offer(args, files.package(), verdict, status, prepared.planned.config.nextn > 0)?;
    let Files { model, draft } = files;
    let size = SizeFlags { threads: Some(threads), ..args.low.size.clone() };
    let report = inspect::describe(&size, model, draft, args.low.model.is_none(), None, bounds(config));
    let report = report.map_err(|error| OpenError::Config(error.to_string()))?;
    // Strings, numbers and lists of them.
    Ok(serde_json::to_value(report).expect("a report serialises"))
}

impl Engine {
    /// Loads a model and starts its engine; returns when requests may come.
    ///
    /// # Errors
    /// [`OpenError`]; nothing of what was begun is left then.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        let size = &config.args.low.size;
        let files = start::open(&config.args)?;
        let pool = workers::shared(size.threads, size.exec_options().threads)?;
        let threads = pool.threads();
        let home = Home { pool, bounds: bounds(config), ends: Ends::Engine, progress: Progress::default() };
        let (parts, engine) = start::load_at(&config.args, files, &home)?;
        drop(home);
        let bounds = bounds(config);
        if config.page_events {
            // The first command of an engine that waits for some.
            let _ = engine.commands.send(Command::ReportPages);
        }
        let about = about(&parts, threads);
        let (n_ctx, slots) = (parts.info.n_ctx, parts.slots);
        match Self::begin(parts, &bounds, slots) {
            Ok((desk, from_text, text)) => Self::watch(desk, from_text, text, engine, about, n_ctx, threads),
            Err(error) => {
                let _ = stop(engine);
                Err(OpenError::Thread(error))
            }
        }
    }

    fn begin(
        parts: Parts,
        bounds: &Bounds,
        slots: usize,
    ) -> std::io::Result<(Arc<Desk>, Receiver<ToFront>, text::Threads)> {
        // Bounded by what `submit` lets in: see there.
        let (to_text, inbox) = unbounded();
        let (outbox, from_text) = bounded(limits::MESSAGES_WAITING);
        let shared = Arc::new(Shared::new());
        let ends = text::Ends { inbox, outbox, bell: Bell::Channel };
        let threads = text::start(parts, *bounds, Show::default(), &shared, ends, None)?;
        let queue = Queue::new(bounds.stream_buffer, WAITING_MAX + slots);
        let state = Mutex::new(Desktop { queue, to_text: Some(to_text), closed: false, dead: None });
        Ok((Arc::new(Desk { shared, state, news: Condvar::new() }), from_text, threads))
    }

    /// Starts `host`. Without it the others end as they would at a close.
    fn watch(
        desk: Arc<Desk>,
        from_text: Receiver<ToFront>,
        text: text::Threads,
        engine: EngineHandle,
        about: Value,
        n_ctx: usize,
        threads: usize,
    ) -> Result<Self, OpenError> {
        // What it works with is handed over once it runs, and is still here if it does not.
        let (give, take) = bounded::<(Receiver<ToFront>, text::Threads, EngineHandle)>(1);
        let behind = Arc::clone(&desk);
        let run = move || {
            let _last = LastWord(&behind);
            if let Ok((from_text, text, engine)) = take.recv() {
                behind.serve(&from_text, text, engine);
            }
        };
        match Builder::new().name("host".to_owned()).spawn(run) {
            Ok(host) => {
                give.send((from_text, text, engine)).unwrap_or_else(|_| unreachable!("it waits for them"));
                Ok(Self { desk, host: Mutex::new(Some(host)), about, n_ctx, threads })
            }
            Err(error) => {
                desk.state.lock().to_text = None;
                desk.serve(&from_text, text, engine);
                Err(OpenError::Thread(error))
            }
        }
    }

    /// What the handle has: the entry of `/v1/models`, and how it runs.
    pub fn about(&self) -> &Value {
        &self.about
    }

    /// Queues a request; `body` is what HTTP would carry. What is wrong with it comes as its [`Kind::Error`].
    ///
    /// # Errors
    /// [`CallError`].
    pub fn submit(&self, endpoint: Endpoint, body: &[u8]) -> Result<u64, CallError> {
        // Before anything is copied: a host must not run out of memory for what is refused.
        self.fits(body.len())?;
        let mut state = self.desk.state.lock();
        state.check()?;
        let shared = &self.desk.shared;
        let to_text = state.to_text.clone().ok_or(CallError::Closed)?;
        // What `text` has not read yet: each request there has a few notes behind it at most.
        if shared.bodies_bytes() + body.len() > limits::BODIES_BYTES || to_text.len() >= limits::MESSAGES_WAITING {
            return Err(CallError::Full("too many requests wait to be read; try again later".to_owned()));
        }
        let shape = Shape::of(endpoint.route().label(), Ok(()), false);
        let Some(id) = state.queue.begin(shape) else {
            let most = state.queue.requests_max;
            return Err(CallError::Full(format!("{most} requests are open; poll their events, then try again")));
        };
        shared.bodies_more(body.len());
        let body = Body::new(body.to_vec(), Arc::clone(shared));
        let (route, received) = (endpoint.route(), Instant::now());
        let request = Request { exchange: exchange(id), route, body, received, session: None, id: String::new() };
        if to_text.send(ToText::Request(Box::new(request))).is_err() {
            state.queue.forget(id);
            return Err(CallError::Dead("it is ending".to_owned()));
        }
        Ok(id)
    }

    /// Queues a prompt of token ids. `options`: the other fields of `/v1/completions`, or nothing; `stream` and
    /// `return_token_ids` are true unless they say otherwise.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn submit_tokens(&self, tokens: &[u32], options: &[u8]) -> Result<u64, CallError> {
        // An id takes a digit and a comma at least.
        self.fits(options.len().saturating_add(tokens.len().saturating_mul(2)))?;
        let map = if options.is_empty() { Ok(Default::default()) } else { parse_object(options) };
        let mut map = map.map_err(|error| CallError::Argument(format!("options: {}", error.message)))?;
        if map.insert("prompt".to_owned(), tokens.into()).is_some() {
            return Err(CallError::Argument("options: the prompt is given as token ids; leave prompt out".to_owned()));
        }
        for field in ["stream", "return_token_ids"] {
            map.entry(field).or_insert(Value::Bool(true));
        }
        self.submit(Endpoint::Completions, &serde_json::to_vec(&map).expect("a JSON map serialises"))
    }

    /// Whether a body of so many bytes may be a request.
    fn fits(&self, bytes: usize) -> Result<(), CallError> {
        let most = limits::body_bytes(self.n_ctx);
        match bytes > most {
            true => Err(CallError::Argument(ApiError::too_large(most).message)),
            false => Ok(()),
        }
    }

    /// Hands out events in order, of one request, or of all with their pages, until none is left or one is given back;
    /// waits for the first for up to `timeout`. Returns how many were taken, 0 when none came in time.
    ///
    /// # Errors
    /// [`CallError::NoRequest`] for a request that has nothing more to say, [`CallError::Closed`], and once every event
    /// was taken [`CallError::Dead`].
    pub fn poll(
        &self,
        of: Option<u64>,
        timeout: Duration,
        take: &mut dyn FnMut(Event) -> Result<(), Event>,
    ) -> Result<usize, CallError> {
        // Further off than any clock reaches is for ever.
        let until = Instant::now().checked_add(timeout);
        let mut state = self.desk.state.lock();
        let mut late = false;
        loop {
            let mut refused = false;
            let (taken, notes) = state.queue.hand_out(of, &mut |event| take(event).inspect_err(|_| refused = true));
            state.tell(notes);
            if taken > 0 || refused {
                return Ok(taken);
            }
            state.check()?;
            if let Some(id) = of.filter(|id| !state.queue.knows(*id)) {
                return Err(CallError::NoRequest(id));
            }
            if late {
                return Ok(0);
            }
            match until {
                Some(until) => late = self.desk.news.wait_until(&mut state, until).timed_out(),
                None => self.desk.news.wait(&mut state),
            }
        }
    }

    /// Ends a request wherever it is: what it had to say is dropped, and [`Kind::Cancelled`] is its last event.
    ///
    /// # Errors
    /// [`CallError::NoRequest`] when it has ended already, [`CallError::Closed`], [`CallError::Dead`].
    pub fn cancel(&self, id: u64) -> Result<(), CallError> {
        let mut state = self.desk.state.lock();
        state.check()?;
        if !state.queue.cancel(id) {
            return Err(CallError::NoRequest(id));
        }
        if let Some(to_text) = &state.to_text {
            let _ = to_text.send(ToText::Gone(exchange(id)));
        }
        self.desk.news.notify_all();
        Ok(())
    }

    /// Counters.
    ///
    /// # Errors
    /// [`CallError::Closed`].
    pub fn stats(&self) -> Result<Stats, CallError> {
        let state = self.desk.state.lock();
        if state.closed {
            return Err(CallError::Closed);
        }
        let totals = self.desk.shared.metrics.lock().totals();
        Ok(Stats {
            requests: state.queue.len() as u64,
            events: state.queue.waiting() as u64,
            threads: self.threads as u64,
            ..totals
        })
    }

    /// Ends the engine: what runs is dropped, waiting polls return [`CallError::Closed`], and every thread has ended
    /// when this returns. It waits for the pass in progress. Does nothing the second time.
    pub fn close(&self) {
        {
            let mut state = self.desk.state.lock();
            state.closed = true;
            state.to_text = None;
        }
        self.desk.news.notify_all();
        if let Some(host) = self.host.lock().take()
            && host.join().is_err()
        {
            tracing::error!("the host thread panicked");
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

fn about(parts: &Parts, threads: usize) -> Value {
    let Parts { info, spec, slots, api, .. } = parts;
    json!({
        "model": info::entries(info, spec, &api.aliases)[0],
        "program": info::version(),
        "slots": slots,
        "page_tokens": PAGE_TOKENS,
        "pages": Limits::new(*slots, info.n_ctx).pages,
        "threads": threads,
        "isa": Isa::best().name(),
    })
}
