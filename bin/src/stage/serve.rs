//! The last stage's process: one peer at a time, its requests one after the other, on one thread. Who else comes is met
//! between two requests ([`Door`]).
//!
//! It outlives its peers: whatever a connection was or did, the next one begins with nothing.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine::exec::CpuExecutor;
use engine::model::load::{LoadOptions, Planned};
use engine::model::{Model, ModelError, MtpStatus};
use engine::stage::wire::{self, Kind, WireError};
use engine::stage::{Agreed, LastStage};
use engine::step::Executor as _;
use mio::Waker;
use mio::net::TcpListener;

use super::conn::{Conn, ConnError, Ear, Frame};
use super::door::{self, Door};
use super::facts::Facts;
use super::flags::address;
use super::handshake::{self, Accepted, Key};
use crate::flags::ServeArgs;
use crate::memory::{Setting, Subject};
use crate::report;
use crate::serve::limits;
use crate::serve::start::{self, Files, LoadError};
use crate::watch;

/// Nothing runs any more when no request came for this long, and the first stage says at either end of it that it runs no
/// step: it may well take longer over one, or be stopped itself.
const QUIET_TIME: Duration = Duration::from_secs(2);

/// Ends a stage from another thread.
#[derive(Clone)]
pub struct StopHandle {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl StopHandle {
    /// Finish what runs, then end.
    pub fn shutdown(&self) {
        self.stop.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake the stage");
        }
    }
}

/// A stage that listens.
pub struct StageServer {
    stage: LastStage,
    model: Arc<Model>,
    door: Door,
    address: SocketAddr,
    ear: Ear,
    stop: Arc<AtomicBool>,
    timeout: Duration,
}

impl StageServer {
    /// Loads the last stage of the model and listens.
    ///
    /// # Errors
    /// [`LoadError`]
    pub fn start(args: &ServeArgs, files: Files) -> Result<Self, LoadError> {
        let (size, link) = (&args.low.size, &args.low.link);
        let unmet = |message: String| LoadError::Unmet(message);
        let key = Key::load(link.stage_key_file.as_deref()).map_err(|e| unmet(e.to_string()))?;
        let text = link.listen.as_deref().expect("checked with the flags");
        let at = address("--listen", text).map_err(unmet)?;
        if !at.ip().is_loopback() && !key.is_some() {
            return Err(unmet(format!(
                "--listen {text} can be reached from other machines, and whoever reaches it can use this model; give both \
                 stages the same --stage-key-file, or listen on 127.0.0.1"
            )));
        }
        let load = LoadOptions { stage: args.low.stage.choice(), ..size.load_options() };
        let Files { model: file, draft } = files;
        let draft = draft.as_ref();
        let planned = Planned::new(&file, draft, load)?;
        let limits = size.limits(&planned, file.package());
        let options = size.exec_options();
        let subject =
            Subject { file: &file, built_in: args.low.model.is_none(), draft, planned: &planned, tokenizer: None };
        let bounds = args.bounds();
        let checkpoints = size.ctx_checkpoints;
        let setting =
            Setting { repack: load.repack, limits: limits.clone(), options, bounds, record: false, checkpoints };
        start::admit(args.low.memory_limit.as_ref(), &subject, &setting)?;
        let model = Arc::new(planned.load(&file, draft, load.repack)?);
        start::tell(&file, &model);
        let mtp = match &model.mtp {
            MtpStatus::Unavailable(reason) => reason.clone(),
            MtpStatus::Own | MtpStatus::Sidecar => String::new(),
        };
        let executor = CpuExecutor::new(Arc::clone(&model), limits.clone(), options);
        let agreed = Agreed::new(&model, &limits, executor.border_width());
        let sizes = (agreed.vocab_rows, agreed.border_width);
        let facts = Facts::new(&file, model.stage, sizes, &limits, &options).map_err(ModelError::from)?;
        let accepted = Accepted { facts, shape: executor.shape().clone(), mtp };
        watch::start(model.files.clone()).map_err(LoadError::Watch)?;
        let named = |e: io::Error| LoadError::Listen(io::Error::new(e.kind(), format!("cannot listen on {at}: {e}")));
        let mut ear = Ear::new().map_err(named)?;
        let listener = TcpListener::bind(at).map_err(named)?;
        let door = Door::new(listener, key, accepted, &mut ear).map_err(named)?;
        let address = door.address().map_err(named)?;
        let stage = LastStage::new(executor, agreed);
        Ok(Self { stage, model, door, address, ear, stop: Arc::default(), timeout: link.timeout() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A way to end it.
    pub fn handle(&self) -> StopHandle {
        StopHandle { stop: Arc::clone(&self.stop), waker: self.ear.waker() }
    }

    /// Serves one peer after the other until it is told to end.
    ///
    /// # Errors
    /// If the system fails.
    pub fn run(mut self) -> io::Result<()> {
        while !self.stop.load(Ordering::Acquire) {
            let Some((mut conn, peer)) = self.door.look(&mut self.ear, false) else {
                let later = Instant::now() + Duration::from_secs(3600);
                self.ear.wait(self.door.until().unwrap_or(later))?;
                continue;
            };
            tracing::info!(%peer, "the first stage is connected");
            match self.serve(&mut conn) {
                Ok(()) => {}
                Err(ConnError::Closed) => tracing::info!(%peer, "the first stage has gone; waiting for the next"),
                Err(error) => {
                    tracing::warn!(%peer, %error, "the connection ends; waiting for the next");
                    if let ConnError::Wire(error) = error {
                        let reason = error.to_string();
                        door::tell(&mut conn, &mut self.ear, Kind::Refuse, |body| handshake::put_reason(body, &reason));
                    }
                }
            }
        }
        Ok(())
    }

    /// Runs requests until the peer goes, or until nothing runs after a signal. What its predecessor had is forgotten.
    fn serve(&mut self, conn: &mut Conn) -> Result<(), ConnError> {
        let timeout = self.timeout;
        self.stage.forget_all();
        conn.most = self.stage.agreed().body_bytes();
        let mut out = Vec::new();
        wire::frame(&mut out, Kind::Accept, 0, |body| self.door.accepted().put(body));
        conn.send(&out, &mut self.ear, door::HANDSHAKE_TIME, || Ok(()))?;
        let mut heard = Instant::now();
        // The first and the last ping since a request in which the peer said that it is idle.
        let mut idle: Option<(Instant, Instant)> = None;
        let mut sequence = 0;
        let mut closing: Option<Instant> = None;
        loop {
            let now = Instant::now();
            if closing.is_none() && self.stop.load(Ordering::Acquire) {
                closing = Some(now);
                wire::frame(&mut out, Kind::Closing, 0, |_| {});
                conn.send(&out, &mut self.ear, timeout, || Ok(()))?;
            }
            // Asked before the next frame: a peer that always has one is no reason to stay.
            let quiet = idle.is_some_and(|(first, last)| first + QUIET_TIME <= last);
            if closing.is_some_and(|since| quiet || since + limits::SHUTDOWN_TIME <= now) {
                return Ok(());
            }
            let passed = self.door.look(&mut self.ear, true);
            debug_assert!(passed.is_none(), "one first stage at a time");
            if let Some(frame) = conn.read()? {
                let working = self.answer(&frame, &mut sequence, &mut out)?;
                idle = (!working).then(|| (idle.map_or(now, |(first, _)| first), now));
                conn.send(&out, &mut self.ear, timeout, || Ok(()))?;
                heard = Instant::now();
                continue;
            }
            if heard + timeout <= now {
                return Err(ConnError::Late { what: "said anything", after: timeout });
            }
            let until = if closing.is_some() { now + Duration::from_millis(100) } else { heard + timeout };
            self.ear.wait(self.door.until().map_or(until, |guests| until.min(guests)))?;
        }
    }

    /// Answers a frame; whether it says that the peer has work. `sequence`: the number of the last request.
    fn answer(&mut self, frame: &Frame, sequence: &mut u64, out: &mut Vec<u8>) -> Result<bool, WireError> {
        match frame.header.kind {
            Kind::Ping => {
                wire::frame(out, Kind::Pong, frame.header.sequence, |_| {});
                Ok(frame.header.sequence != 0)
            }
            Kind::Request => {
                *sequence += 1;
                if frame.header.sequence != *sequence {
                    return Err(WireError::Sequence { found: frame.header.sequence, expected: *sequence });
                }
                self.run_request(frame.body(), *sequence, out)?;
                Ok(true)
            }
            found => Err(WireError::Unexpected { found, expected: "Request" }),
        }
    }

    fn run_request(&mut self, body: &[u8], sequence: u64, out: &mut Vec<u8>) -> Result<(), WireError> {
        let mut error = None;
        wire::frame(out, Kind::Reply, sequence, |reply| error = self.stage.run(body, reply).err());
        // What was computed from a file that changed is nobody's.
        watch::end_if_changed(&self.model.files);
        error.map_or(Ok(()), Err)
    }
}

/// Serves the last stage of a model: the part of `engine-serve` that has no HTTP. `ready` is given the means to end it.
///
/// # Errors
/// [`LoadError`], or the system's.
pub fn run(
    args: &ServeArgs,
    files: Files,
    ready: impl FnOnce(StopHandle),
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let server = StageServer::start(args, files)?;
    ready(server.handle());
    let Accepted { facts: Facts { stage, .. }, shape, .. } = server.door.accepted();
    tracing::info!(%stage, mtp = shape.mtp, "serving the last stage");
    report::print(&format!("listening for stage 0 on {}\n", server.address()))?;
    Ok(server.run()?)
}
