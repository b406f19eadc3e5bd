//! The last stage's process: one peer at a time, its requests one after the other, on one thread.
//!
//! It outlives its peers: whatever a connection was or did, the next one begins with nothing.

use std::io::{self, Write as _};
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
use mio::net::TcpListener;
use mio::{Interest, Waker};

use super::conn::{Conn, ConnError, Ear};
use super::facts::Facts;
use super::flags::address;
use super::handshake::{self, Accepted, BODY_BYTES, FIRST, Key, LAST};
use crate::flags::ServeArgs;
use crate::memory::{Setting, Subject};
use crate::serve::limits;
use crate::serve::start::{self, Files, LoadError};
use crate::watch;

/// For each message of a handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Nothing runs any more when no request came for this long.
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
    accepted: Accepted,
    key: Key,
    listener: TcpListener,
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
        let limits = size.limits(size.context(planned.config.context_train), file.package());
        let options = size.exec_options();
        let subject =
            Subject { file: &file, built_in: args.low.model.is_none(), draft, planned: &planned, tokenizer: None };
        let setting = Setting { repack: load.repack, limits: limits.clone(), options, bounds: args.bounds() };
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
        let mut listener = TcpListener::bind(at).map_err(named)?;
        ear.add(&mut listener, Interest::READABLE).map_err(named)?;
        let address = listener.local_addr().map_err(named)?;
        Ok(Self {
            stage: LastStage::new(executor, agreed),
            model,
            accepted,
            key,
            listener,
            address,
            ear,
            stop: Arc::default(),
            timeout: link.timeout(),
        })
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
        loop {
            let (stream, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if self.stop.load(Ordering::Acquire) {
                        return Ok(());
                    }
                    self.ear.wait(Instant::now() + Duration::from_secs(3600))?;
                    continue;
                }
                Err(e) => {
                    // Such as a peer that is gone already, or no descriptor left.
                    tracing::warn!(error = %e, "a connection could not be taken");
                    self.ear.wait(Instant::now() + Duration::from_millis(100))?;
                    continue;
                }
            };
            let served = Conn::new(stream, &mut self.ear, BODY_BYTES).map_err(ConnError::from).and_then(|mut conn| {
                self.greet(&mut conn)?;
                tracing::info!(%peer, "the first stage is connected");
                self.serve(&mut conn)
            });
            let stopped = self.stop.load(Ordering::Acquire);
            match served {
                Ok(()) | Err(ConnError::Stopped) => {}
                Err(ConnError::Closed) => tracing::info!(%peer, "the first stage has gone; waiting for the next"),
                Err(error) => tracing::warn!(%peer, %error, "the connection ends; waiting for the next"),
            }
            if stopped {
                return Ok(());
            }
        }
    }

    /// The handshake. What the peer had before is forgotten when it is over.
    fn greet(&mut self, conn: &mut Conn) -> Result<(), ConnError> {
        let Self { stage, accepted, key, ear, stop, .. } = self;
        let wanted = || if stop.load(Ordering::Acquire) { Err(ConnError::Stopped) } else { Ok(()) };
        let mut out = Vec::new();
        let frame = match conn.expect(Kind::Hello, "Hello", ear, HANDSHAKE_TIME, wanted) {
            // So that a peer of another version can say what is wrong with it.
            Err(ConnError::Wire(error @ WireError::Version { .. })) => {
                return Err(refuse(conn, ear, &mut out, error.to_string()));
            }
            other => other?,
        };
        let (theirs, keyed) = handshake::take_hello(frame.body())?;
        let mine = handshake::nonce()?;
        let proof = key.proof(LAST, &theirs, &mine);
        wire::frame(&mut out, Kind::Challenge, 0, |body| {
            handshake::put_greeting(body, &mine, key.is_some(), Some(&proof));
        });
        if let Err(reason) = key.agrees(keyed, "stage 1", "stage 0") {
            return Err(refuse(conn, ear, &mut out, reason));
        }
        conn.send(&out, ear, HANDSHAKE_TIME, wanted)?;
        let frame = conn.expect(Kind::Offer, "Offer", ear, HANDSHAKE_TIME, wanted)?;
        let (proof, facts) = handshake::take_offer(frame.body())?;
        if !key.check(FIRST, &theirs, &mine, &proof) {
            let reason = String::from("stage 0 has another key; give both the same --stage-key-file");
            return Err(refuse(conn, ear, &mut out, reason));
        }
        let first = handshake::take_facts(facts)?;
        if let Err(reason) = first.fits(&accepted.facts) {
            return Err(refuse(conn, ear, &mut out, reason));
        }
        stage.forget_all();
        conn.most = stage.agreed().body_bytes();
        wire::frame(&mut out, Kind::Accept, 0, |body| accepted.put(body));
        conn.send(&out, ear, HANDSHAKE_TIME, wanted)
    }

    /// Runs requests until the peer goes, or until nothing runs after a signal.
    fn serve(&mut self, conn: &mut Conn) -> Result<(), ConnError> {
        let timeout = self.timeout;
        let mut out = Vec::new();
        let mut heard = Instant::now();
        let mut requested = Instant::now();
        let mut closing: Option<Instant> = None;
        loop {
            let now = Instant::now();
            if closing.is_none() && self.stop.load(Ordering::Acquire) {
                closing = Some(now);
                wire::frame(&mut out, Kind::Closing, 0, |_| {});
                conn.send(&out, &mut self.ear, timeout, || Ok(()))?;
            }
            if let Some(frame) = conn.read()? {
                heard = now;
                let sequence = frame.header.sequence;
                match frame.header.kind {
                    Kind::Ping => wire::frame(&mut out, Kind::Pong, sequence, |_| {}),
                    Kind::Request => {
                        self.run_request(frame.body(), sequence, &mut out)?;
                        requested = Instant::now();
                        heard = requested;
                    }
                    found => return Err(WireError::Unexpected { found, expected: "Request" }.into()),
                }
                conn.send(&out, &mut self.ear, timeout, || Ok(()))?;
                continue;
            }
            let over =
                |since: Instant| since + limits::SHUTDOWN_TIME <= now || requested.max(since) + QUIET_TIME <= now;
            if closing.is_some_and(over) {
                return Ok(());
            }
            if heard + timeout <= now {
                return Err(ConnError::Late { what: "said anything", after: timeout });
            }
            let until = if closing.is_some() { now + Duration::from_millis(100) } else { heard + timeout };
            self.ear.wait(until)?;
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

/// Tells the peer why, and makes an error of it.
fn refuse(conn: &mut Conn, ear: &mut Ear, out: &mut Vec<u8>, reason: String) -> ConnError {
    wire::frame(out, Kind::Refuse, 0, |body| handshake::put_reason(body, &reason));
    // The connection ends anyway.
    let _ = conn.send(out, ear, Duration::from_secs(1), || Ok(()));
    ConnError::Refused(reason)
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
    let stage = server.accepted.facts.stage;
    tracing::info!(%stage, mtp = server.accepted.shape.mtp, "serving the last stage");
    let mut stdout = io::stdout();
    writeln!(stdout, "listening for stage 0 on {}", server.address())
        .and_then(|()| stdout.flush())
        .map_err(|e| io::Error::new(e.kind(), format!("cannot write to stdout: {e}")))?;
    Ok(server.run()?)
}
