//! The first stage's end: a thread that owns the socket, and the handle by which the executor speaks through it.
//!
//! The thread connects, checks the peer, and serves one exchange at a time. When the connection fails it says so to
//! everybody who asks, and connects again, less and less often. What the executor waits for always comes: a reply, or word
//! that the session is over.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Receiver, Sender, TryRecvError};
use engine::stage::wire::{self, Kind, WireError};
use engine::stage::{Agreed, Link, LinkLost, whole_shape};
use engine::step::Shape;
use mio::Waker;
use parking_lot::Mutex;

use super::conn::{self, Conn, ConnError, Ear, Frame};
use super::facts::Facts;
use super::handshake::{self, Accepted, BODY_BYTES, FIRST, Key, LAST};
use crate::serve::Outage;

/// Between two pings of a connection that nothing else uses.
const PING: Duration = Duration::from_millis(500);
/// For each message of a handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Between two attempts to connect: the first, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What the first stage needs of its peer.
pub struct Settings {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it must have.
    pub key: Key,
    /// What it must share.
    pub facts: Facts,
    /// Of the first stage's own executor: what the peer says of itself must go with it.
    pub shape: Shape,
    /// The capacities of both.
    pub agreed: Agreed,
    /// The longest that it may take for an answer.
    pub timeout: Duration,
}

enum Job {
    Request { session: u64, sequence: u64, frame: Vec<u8> },
    Reject { session: u64, reason: String },
}

/// The answer to the request of this number and session; `None`: the session is over.
struct Done {
    session: u64,
    sequence: u64,
    reply: Option<Frame>,
}

/// The executor's end.
pub struct LinkHandle {
    session: Arc<Mutex<Option<u64>>>,
    jobs: Sender<Job>,
    done: Receiver<Done>,
    waker: Arc<Waker>,
    timeout: Duration,
    /// Of the last request: its session, and its number in that.
    last: (u64, u64),
    /// A session in which no answer came, whatever the thread makes of it.
    over: Option<u64>,
    /// A step is being run.
    working: Arc<AtomicBool>,
}

impl LinkHandle {
    fn send(&self, job: Job) -> Result<(), LinkLost> {
        self.jobs.send_timeout(job, self.timeout).map_err(|_| LinkLost)?;
        self.waker.wake().map_err(|_| LinkLost)
    }

    fn ask(&mut self, session: u64, request: &[u8], reply: &mut Vec<u8>) -> Result<(), LinkLost> {
        let sequence = if self.last.0 == session { self.last.1 + 1 } else { 1 };
        let mut frame = Vec::with_capacity(request.len() + wire::HEADER_BYTES);
        wire::frame(&mut frame, Kind::Request, sequence, |body| body.extend_from_slice(request));
        self.send(Job::Request { session, sequence, frame })?;
        self.last = (session, sequence);
        // Sending and receiving each have their time; the thread keeps both, and this is the guard behind it.
        let deadline = Instant::now() + 3 * self.timeout + HANDSHAKE_TIME;
        loop {
            let done = self.done.recv_deadline(deadline).map_err(|_| LinkLost)?;
            if (done.session, done.sequence) == self.last {
                let frame = done.reply.ok_or(LinkLost)?;
                reply.clear();
                reply.extend_from_slice(frame.body());
                return Ok(());
            }
        }
    }
}

impl Link for LinkHandle {
    fn session(&self) -> Option<u64> {
        self.session.lock().filter(|session| Some(*session) != self.over)
    }

    fn exchange(&mut self, session: u64, request: &[u8], reply: &mut Vec<u8>) -> Result<(), LinkLost> {
        let done = self.ask(session, request, reply);
        if done.is_err() {
            self.over = Some(session);
            // The thread has ended it, or is to: where it takes no job, it is at one that ends within its time.
            let reason = String::from("none came in time");
            if self.jobs.try_send(Job::Reject { session, reason }).is_ok() {
                let _ = self.waker.wake();
            }
        }
        done
    }

    fn working(&mut self, on: bool) {
        self.working.store(on, Ordering::Release);
    }

    fn reject(&mut self, session: u64, reason: &str) {
        // If nobody takes it, the session is over already.
        let _ = self.send(Job::Reject { session, reason: reason.to_owned() });
    }
}

/// Why there is no peer to start with.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The system gave no thread or poll.
    #[error("the thread of the other stage could not be started: {0}")]
    Thread(#[from] io::Error),
    /// The peer does not belong here.
    #[error("the other stage at {address}: {reason}")]
    Refused {
        /// Where it listens.
        address: SocketAddr,
        /// What is wrong, and what to do.
        reason: String,
    },
}

/// Starts the thread and waits for the first connection, however long it takes; `outage` tells from then on whether the
/// peer is there.
///
/// # Errors
/// [`LinkError`]; a peer that is merely not there yet is none.
pub fn start(settings: Settings, outage: Outage) -> Result<(LinkHandle, Accepted), LinkError> {
    let ear = Ear::new()?;
    let waker = ear.waker();
    let session = Arc::new(Mutex::new(None));
    let (jobs, take_jobs) = channel::bounded(1);
    let (send_done, done) = channel::bounded(4);
    let (first, accepted) = channel::bounded(1);
    let (address, timeout) = (settings.address, settings.timeout);
    let working = Arc::<AtomicBool>::default();
    let thread = LinkThread {
        settings,
        ear,
        session: Arc::clone(&session),
        outage,
        mail: Mail { jobs: take_jobs, done: send_done, session: None, waiting: None },
        known: None,
        first: Some(first),
        working: Arc::clone(&working),
    };
    thread::Builder::new().name("link".to_owned()).spawn(move || thread.run())?;
    match accepted.recv() {
        Ok(Ok(accepted)) => {
            Ok((LinkHandle { session, jobs, done, waker, timeout, last: (0, 0), over: None, working }, accepted))
        }
        Ok(Err(reason)) => Err(LinkError::Refused { address, reason }),
        Err(_) => Err(LinkError::Thread(io::Error::other("it has ended"))),
    }
}

/// Jobs, and what becomes of those of sessions that are over.
struct Mail {
    jobs: Receiver<Job>,
    done: Sender<Done>,
    session: Option<u64>,
    /// The request that waits to be sent or answered: of the present session, its number and frame.
    waiting: Option<(u64, Vec<u8>)>,
}

impl Mail {
    /// Looks for jobs. Those of another session are answered at once.
    fn look(&mut self) -> Result<(), ConnError> {
        loop {
            match self.jobs.try_recv() {
                Ok(Job::Request { session, sequence, frame }) if Some(session) == self.session => {
                    self.waiting = Some((sequence, frame));
                }
                Ok(Job::Request { session, sequence, .. }) => self.answer(session, sequence, None),
                Ok(Job::Reject { session, reason }) if Some(session) == self.session => {
                    return Err(WireError::bad("a reply", reason).into());
                }
                Ok(Job::Reject { .. }) => {}
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(ConnError::Stopped),
            }
        }
    }

    fn answer(&self, session: u64, sequence: u64, reply: Option<Frame>) {
        // Nobody waits any more where the channel is full or closed.
        let _ = self.done.try_send(Done { session, sequence, reply });
    }
}

struct LinkThread {
    settings: Settings,
    ear: Ear,
    session: Arc<Mutex<Option<u64>>>,
    outage: Outage,
    mail: Mail,
    /// What the peer was when it was first accepted: the Ledger was built for it.
    known: Option<Accepted>,
    first: Option<Sender<Result<Accepted, String>>>,
    /// The executor runs a step.
    working: Arc<AtomicBool>,
}

impl LinkThread {
    fn run(mut self) {
        let mut backoff = BACKOFF.0;
        let mut sessions = 0;
        loop {
            let error = match self.connect() {
                Ok((conn, accepted)) => {
                    backoff = BACKOFF.0;
                    sessions += 1;
                    self.begin(sessions, accepted);
                    let error = self.serve(conn);
                    self.end(&error);
                    error
                }
                Err(error) => {
                    if self.report(&error) {
                        return;
                    }
                    error
                }
            };
            if matches!(error, ConnError::Stopped) {
                return;
            }
            let until = Instant::now() + backoff;
            backoff = (2 * backoff).min(BACKOFF.1);
            while Instant::now() < until {
                if self.ear.wait(until).is_err() || matches!(self.mail.look(), Err(ConnError::Stopped)) {
                    return;
                }
            }
        }
    }

    /// Says why there is no connection; whether that is the end.
    fn report(&mut self, error: &ConnError) -> bool {
        let why = error.to_string();
        if self.outage.set(&why) {
            tracing::warn!(peer = %self.settings.address, why, "no connection to the other stage; trying again");
        }
        match (error.is_refusal(), self.first.take()) {
            (true, Some(first)) => {
                let _ = first.send(Err(why));
                true
            }
            (_, first) => {
                self.first = first;
                false
            }
        }
    }

    fn begin(&mut self, session: u64, accepted: Accepted) {
        tracing::info!(peer = %self.settings.address, session, stage = %accepted.facts.stage, "connected to the other stage");
        self.known.get_or_insert_with(|| accepted.clone());
        self.mail.session = Some(session);
        *self.session.lock() = Some(session);
        self.outage.clear();
        if let Some(first) = self.first.take() {
            let _ = first.send(Ok(accepted));
        }
    }

    fn end(&mut self, error: &ConnError) {
        let why = error.to_string();
        tracing::warn!(peer = %self.settings.address, why, "the connection to the other stage is lost");
        self.outage.set(&why);
        *self.session.lock() = None;
        if let (Some(session), Some((sequence, _))) = (self.mail.session.take(), self.mail.waiting.take()) {
            self.mail.answer(session, sequence, None);
        }
    }

    /// Connects and checks the peer.
    fn connect(&mut self) -> Result<(Conn, Accepted), ConnError> {
        let Self { settings, ear, mail, known, .. } = self;
        let Settings { address, key, facts, shape, agreed, .. } = settings;
        let mut conn = Conn::open(*address, ear, BODY_BYTES, HANDSHAKE_TIME, || mail.look())?;
        let mine = handshake::nonce()?;
        let mut out = Vec::new();
        wire::frame(&mut out, Kind::Hello, 0, |body| handshake::put_greeting(body, &mine, key.is_some(), None));
        conn.send(&out, ear, HANDSHAKE_TIME, || mail.look())?;
        let frame = conn.expect(Kind::Challenge, "Challenge", ear, HANDSHAKE_TIME, || mail.look())?;
        let (theirs, keyed, proof) = handshake::take_challenge(frame.body())?;
        let refusal = match key.agrees(keyed, "stage 0", "stage 1") {
            Err(reason) => Some(reason),
            Ok(()) if !key.check(LAST, &mine, &theirs, &proof) => {
                Some(String::from("stage 1 has another key; give both the same --stage-key-file"))
            }
            Ok(()) => None,
        };
        if let Some(reason) = refusal {
            return Err(refuse(&mut conn, ear, reason));
        }
        let proof = key.proof(FIRST, &mine, &theirs);
        wire::frame(&mut out, Kind::Offer, 0, |body| handshake::put_offer(body, &proof, facts));
        conn.send(&out, ear, HANDSHAKE_TIME, || mail.look())?;
        let frame = conn.expect(Kind::Accept, "Accept", ear, HANDSHAKE_TIME, || mail.look())?;
        let accepted = Accepted::take(frame.body())?;
        let fits = facts.fits(&accepted.facts).and_then(|()| whole_shape(shape, &accepted.shape, agreed).map(drop));
        if let Err(reason) = fits {
            return Err(refuse(&mut conn, ear, reason));
        }
        if known.as_ref().is_some_and(|known| known.shape != accepted.shape) {
            let reason = String::from(
                "stage 1 has come back with another MTP block than before (or without it); start it as it was, or restart \
                 stage 0 too",
            );
            return Err(refuse(&mut conn, ear, reason));
        }
        conn.most = agreed.body_bytes();
        Ok((conn, accepted))
    }

    /// Serves exchanges until the connection fails.
    fn serve(&mut self, mut conn: Conn) -> ConnError {
        match self.exchanges(&mut conn) {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn exchanges(&mut self, conn: &mut Conn) -> Result<std::convert::Infallible, ConnError> {
        let timeout = self.settings.timeout;
        let mut ping = Vec::new();
        let mut next_ping = Instant::now() + PING;
        let mut expected = Expected::default();
        loop {
            self.mail.look()?;
            if let Some((sequence, frame)) = &self.mail.waiting {
                // A connection has one job at a time, and nobody may stop in the middle of a frame.
                conn.send(frame, &mut self.ear, timeout, || Ok(()))?;
                let sequence = *sequence;
                let reply = loop {
                    let frame = conn.receive(&mut self.ear, timeout, || Ok(()))?;
                    match frame.header.kind {
                        Kind::Reply if frame.header.sequence == sequence => break frame,
                        Kind::Reply => {
                            let found = frame.header.sequence;
                            return Err(WireError::Sequence { found, expected: sequence }.into());
                        }
                        _ => expected.hear(frame, &self.outage)?,
                    }
                };
                self.mail.waiting = None;
                if let Some(session) = self.mail.session {
                    self.mail.answer(session, sequence, Some(reply));
                }
                next_ping = Instant::now() + PING;
                continue;
            }
            while let Some(frame) = conn.read()? {
                expected.hear(frame, &self.outage)?;
            }
            let now = Instant::now();
            if expected.pong.is_some_and(|at| at + timeout <= now) {
                return Err(ConnError::Late { what: "answered", after: timeout });
            }
            if next_ping <= now {
                if expected.pong.is_none() {
                    let working = self.working.load(Ordering::Acquire);
                    wire::frame(&mut ping, Kind::Ping, working.into(), |_| {});
                    conn.send(&ping, &mut self.ear, timeout, || Ok(()))?;
                    expected.pong = Some(now);
                }
                next_ping = now + PING;
            }
            self.ear.wait(next_ping)?;
        }
    }
}

/// What a peer may send beside replies: an answer to each ping, and once that it ends. So there is always an end to what it
/// has to say, and nobody who reads it all is kept by it.
#[derive(Default)]
struct Expected {
    /// When the ping was sent that has no answer yet.
    pong: Option<Instant>,
    /// It has said that it ends.
    closing: bool,
}

impl Expected {
    /// A frame that is no reply.
    fn hear(&mut self, frame: Frame, outage: &Outage) -> Result<(), ConnError> {
        let kind = frame.header.kind;
        if kind == Kind::Closing && !std::mem::replace(&mut self.closing, true) {
            tracing::info!("the other stage ends as soon as nothing runs");
            outage.set("it is shutting down");
            return Ok(());
        }
        let frame = conn::of_kind(frame, (Kind::Pong, "Reply"))?;
        match self.pong.take() {
            Some(_) => Ok(()),
            None => Err(WireError::Unexpected { found: frame.header.kind, expected: "Reply" }.into()),
        }
    }
}

/// Tells the peer why, as far as it listens, and makes an error of it.
fn refuse(conn: &mut Conn, ear: &mut Ear, reason: String) -> ConnError {
    let mut out = Vec::new();
    wire::frame(&mut out, Kind::Refuse, 0, |body| handshake::put_reason(body, &reason));
    // The connection ends anyway.
    let _ = conn.send(&out, ear, Duration::from_secs(1), || Ok(()));
    ConnError::Refused(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_without_an_answer_is_never_the_present_one_again() {
        let session = Arc::new(Mutex::new(Some(1)));
        let (jobs, taken) = channel::bounded(2);
        // Nobody answers.
        let (_, done) = channel::bounded(1);
        let waker = Ear::new().expect("a poll").waker();
        let timeout = Duration::from_secs(1);
        let mut link = LinkHandle {
            session: Arc::clone(&session),
            jobs,
            done,
            waker,
            timeout,
            last: (0, 0),
            over: None,
            working: Arc::default(),
        };
        assert_eq!(link.session(), Some(1));
        assert_eq!(link.exchange(1, b"work", &mut Vec::new()), Err(LinkLost));
        assert_eq!(link.session(), None, "whatever the thread says");
        assert!(matches!(taken.try_recv(), Ok(Job::Request { session: 1, sequence: 1, .. })));
        assert!(matches!(taken.try_recv(), Ok(Job::Reject { session: 1, .. })), "the thread is told to end it");
        *session.lock() = Some(2);
        assert_eq!(link.session(), Some(2));
    }

    #[test]
    fn jobs_of_a_session_that_is_over_are_answered_and_not_sent() {
        let (jobs, taken) = channel::bounded(4);
        let (done, answers) = channel::bounded(4);
        let mut mail = Mail { jobs: taken, done, session: Some(2), waiting: None };
        jobs.send(Job::Request { session: 1, sequence: 9, frame: Vec::new() }).expect("room");
        jobs.send(Job::Reject { session: 1, reason: String::new() }).expect("room");
        mail.look().expect("what came for the link before is passed over");
        assert!(mail.waiting.is_none());
        assert!(matches!(answers.try_recv(), Ok(Done { session: 1, sequence: 9, reply: None })));
        jobs.send(Job::Request { session: 2, sequence: 1, frame: vec![7] }).expect("room");
        mail.look().expect("a job");
        assert_eq!(mail.waiting, Some((1, vec![7])));
        jobs.send(Job::Reject { session: 2, reason: String::from("no reply") }).expect("room");
        let error = mail.look().expect_err("its session is to end").to_string();
        assert!(error.contains("no reply"), "{error}");
        drop(jobs);
        assert!(matches!(mail.look(), Err(ConnError::Stopped)));
    }
}
