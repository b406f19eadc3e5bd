//! One connection: its socket, its unread and unsent bytes, and where it stands in its current request.
//!
//! ```text
//!            ┌────────────── answer complete ───────────────┐
//!            ▼                                              │
//! Head ──► Body ──► Busy (text answers) ────────────────────┤
//!   └─────────────► Drain (answered early, rest thrown away)┘        any ──► Linger (closing) ──► gone
//! ```
//!
//! Requests are answered one at a time; what a client pipelines waits in `input`.

use std::io::{self, Read as _, Write as _};
use std::time::{Duration, Instant};

use crate::serve::Bounds;
use crate::serve::buffer::Buffer;
use crate::serve::cors::Allowed;
use crate::serve::http::response::{self, BodyEnd};
use crate::serve::http::{Decoder, Head, Method, Reply};
use crate::serve::limits;
use crate::serve::link::Held;
use crate::serve::routes::Route;
use crate::serve::shapes::Shape;
use crate::serve::socket::Stream;

/// Most bytes read ahead of the parser outside an answer.
const READ_AHEAD_BYTES: usize = 256 * 1024;
/// What one connection may do before the others have their turn.
const TURN: Budget = Budget { read: 64 * 1024, write: 1024 * 1024, requests: 16 };

/// What is left of a connection's turn.
#[derive(Clone, Copy)]
struct Budget {
    /// Bytes.
    read: usize,
    /// Bytes.
    write: usize,
    /// Heads.
    requests: usize,
}

/// Where a connection stands.
pub(crate) enum Phase {
    /// Waiting for a head. `started` when its first byte has arrived.
    Head {
        since: Instant,
        started: bool,
    },
    Body(Box<Reading>),
    /// The answer is out; the rest of the request's body is thrown away.
    Drain {
        decoder: Decoder,
        left: usize,
        until: Instant,
    },
    /// `text` owns the request.
    Busy(Box<Busy>),
    /// Our side is closed after the last answer; the peer may still be sending.
    Linger {
        until: Instant,
    },
}

/// What a connection is at, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// Between two requests.
    Idle,
    /// A request is coming, or something that nobody wants.
    Reading,
    /// Its request waits, or an answer is being made that is sent as a whole.
    Waiting,
    /// An answer is going out.
    Writing,
}

impl Standing {
    /// All of them, with their names.
    pub(crate) const ALL: [(Self, &'static str); 4] =
        [(Self::Idle, "idle"), (Self::Reading, "reading"), (Self::Waiting, "waiting"), (Self::Writing, "writing")];
}

/// A request whose body is arriving.
pub(crate) struct Reading {
    pub head: Head,
    pub route: Route,
    pub asked: Asked,
    pub decoder: Decoder,
    pub body: Vec<u8>,
    pub since: Instant,
    pub last: Instant,
}

/// What the answer needs to know of its request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub route: &'static str,
    pub method: Method,
    pub http11: bool,
    pub keep_alive: bool,
    pub request_id: String,
    pub allowed: Allowed,
    /// Of the errors that its client knows.
    pub errors: Shape,
    pub received: Instant,
}

/// A request that `text` is answering.
pub(crate) struct Busy {
    pub serial: u64,
    pub asked: Asked,
    /// The stream's head has been queued.
    pub open: bool,
}

/// A connection.
pub(crate) struct Conn {
    pub stream: Stream,
    pub phase: Phase,
    /// Bytes not parsed yet.
    pub input: Buffer,
    /// Prefix of `input` known to hold no end of a head.
    pub scanned: usize,
    /// Empty lines before the head that is awaited.
    pub empty_lines: usize,
    /// The socket may have more: edges are reported once.
    readable: bool,
    /// The peer has closed its side.
    pub eof: bool,
    /// It takes no answer any more; the poll may say so before the bytes ahead of it were read.
    pub gone: bool,
    out: Buffer,
    last_progress: Instant,
    /// A large answer is in `out`.
    pub held: Option<Held>,
    /// `text` was told that the buffer is full.
    pub full: bool,
    /// Requests so far.
    pub served: u32,
    /// No further request after the current answer.
    pub close: bool,
    /// One of the connections kept for `/livez` and `/metrics`.
    pub reserved: bool,
    /// One too many: it was told so and is being closed.
    pub turned_away: bool,
    /// Bytes taken from the socket, and given to it.
    pub received_bytes: u64,
    pub sent_bytes: u64,
    budget: Budget,
    /// The round of the front that the budget is for.
    round: u64,
    /// It has more to do and its turn in the next round.
    pub queued: bool,
}

impl Conn {
    pub(crate) fn new(stream: Stream, now: Instant, reserved: bool) -> Self {
        Self {
            stream,
            phase: Phase::Head { since: now, started: false },
            input: Buffer::default(),
            scanned: 0,
            empty_lines: 0,
            readable: true,
            eof: false,
            gone: false,
            out: Buffer::default(),
            last_progress: now,
            held: None,
            full: false,
            served: 0,
            close: false,
            reserved,
            turned_away: false,
            received_bytes: 0,
            sent_bytes: 0,
            budget: TURN,
            round: 0,
            queued: false,
        }
    }

    /// In every round of the front a connection has one budget, however often it is looked at.
    pub(crate) fn start_turn(&mut self, round: u64) {
        if self.round != round {
            (self.round, self.budget) = (round, TURN);
        }
    }

    /// What it is at.
    pub(crate) fn standing(&self) -> Standing {
        match &self.phase {
            _ if self.unsent() > 0 => Standing::Writing,
            Phase::Busy(busy) if busy.open => Standing::Writing,
            Phase::Busy(_) => Standing::Waiting,
            Phase::Head { started: false, .. } => Standing::Idle,
            Phase::Head { .. } | Phase::Body(_) | Phase::Drain { .. } | Phase::Linger { .. } => Standing::Reading,
        }
    }

    /// Whether this turn has room for one more request.
    pub(crate) fn may_begin(&self) -> bool {
        self.budget.requests > 0
    }

    /// Something is left to do that only the budget forbids.
    pub(crate) fn wants_turn(&self) -> bool {
        self.budget.read == 0 && self.wants_read() || self.budget.write == 0 && self.unsent() > 0 || self.held_back()
    }

    /// A request may stand in `input` that only the budget kept from being read.
    pub(crate) fn held_back(&self) -> bool {
        !self.may_begin() && !self.close && !self.input.is_empty() && matches!(self.phase, Phase::Head { .. })
    }

    /// The poll reported this connection.
    pub(crate) fn mark_readable(&mut self) {
        self.readable = true;
    }

    /// Whether reading would find something and is allowed.
    pub(crate) fn wants_read(&self) -> bool {
        self.readable && !self.eof && self.input.len() < self.read_limit()
    }

    fn read_limit(&self) -> usize {
        match self.phase {
            Phase::Busy(_) => limits::PIPELINE_BYTES,
            _ if self.unsent() > 0 => limits::PIPELINE_BYTES,
            _ => READ_AHEAD_BYTES,
        }
    }

    /// Reads until the socket is dry, enough is held or the turn is over. An error means the peer is gone.
    pub(crate) fn fill(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 * 1024];
        while self.wants_read() && self.budget.read > 0 {
            match self.stream.read(&mut piece) {
                Ok(0) => {
                    self.eof = true;
                    self.readable = false;
                }
                Ok(n) => {
                    self.budget.read = self.budget.read.saturating_sub(n);
                    self.received_bytes += n as u64;
                    self.input.extend(&piece[..n]);
                }
                Err(e) if would_block(&e) => self.readable = false,
                Err(e) if interrupted(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Bytes queued and not yet taken by the socket.
    pub(crate) fn unsent(&self) -> usize {
        self.out.len()
    }

    /// Queues bytes.
    pub(crate) fn push(&mut self, bytes: &[u8], now: Instant) {
        if self.unsent() == 0 {
            self.last_progress = now;
        }
        self.out.extend(bytes);
    }

    /// Gives the socket what it takes within the turn. An error means the peer is gone.
    pub(crate) fn flush(&mut self, now: Instant) -> io::Result<()> {
        while self.unsent() > 0 && self.budget.write > 0 {
            let piece = &self.out[..self.out.len().min(self.budget.write)];
            match self.stream.write(piece) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.out.consume(n);
                    self.budget.write -= n;
                    self.sent_bytes += n as u64;
                    self.last_progress = now;
                }
                Err(e) if would_block(&e) => break,
                Err(e) if interrupted(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// A head was read.
    pub(crate) fn count_request(&mut self) {
        self.served += 1;
        self.budget.requests = self.budget.requests.saturating_sub(1);
    }

    /// Queues a whole answer.
    pub(crate) fn push_reply(&mut self, asked: &Asked, reply: Reply, now: Instant) {
        let reply = reply.in_shape(asked.errors, &asked.request_id);
        let end = if reply.status == 204 { BodyEnd::None } else { BodyEnd::Length(reply.body.len()) };
        let close = self.close || !asked.keep_alive;
        self.close = close;
        let head = response::head(reply.status, &reply.headers, &common_headers(asked), end, close);
        self.push(&head, now);
        if asked.method != Method::Head {
            self.push(&reply.body, now);
        }
    }

    /// Queues the head of a stream: chunked, or until close for HTTP/1.0.
    pub(crate) fn push_stream_head(&mut self, asked: &Asked, headers: &[(&'static str, String)], now: Instant) {
        let end = if asked.http11 { BodyEnd::Chunked } else { BodyEnd::Close };
        self.close = self.close || !asked.keep_alive || !asked.http11;
        let head = response::head(200, headers, &common_headers(asked), end, self.close);
        self.push(&head, now);
    }

    /// Queues a part of a stream's body.
    pub(crate) fn push_stream_data(&mut self, http11: bool, data: &[u8], now: Instant) {
        if data.is_empty() {
            return;
        }
        if http11 {
            let mut framed = Vec::with_capacity(data.len() + 16);
            response::chunk(data, &mut framed);
            self.push(&framed, now);
        } else {
            self.push(data, now);
        }
    }

    /// When something must be done about this connection if nothing happens before.
    pub(crate) fn deadline(&self, bounds: &Bounds) -> Option<Instant> {
        let stalled = (self.unsent() > 0).then(|| self.last_progress + self.stall_time(bounds));
        let phase = match &self.phase {
            Phase::Head { since, started } => {
                let most = if *started { bounds.head_time } else { bounds.keep_alive_time };
                Some(*since + if self.reserved { most.min(bounds.reserved_time) } else { most })
            }
            Phase::Body(reading) => Some((reading.last + bounds.body_idle_time).min(reading.since + bounds.body_time)),
            Phase::Drain { until, .. } | Phase::Linger { until, .. } => Some(*until),
            Phase::Busy(_) => None,
        };
        match (stalled, phase) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Whether the peer has taken nothing for too long.
    pub(crate) fn stalled_out(&self, now: Instant, bounds: &Bounds) -> bool {
        self.unsent() > 0 && now >= self.last_progress + self.stall_time(bounds)
    }

    /// How long its peer may take nothing.
    fn stall_time(&self, bounds: &Bounds) -> Duration {
        if self.reserved { bounds.stall_time.min(bounds.reserved_time) } else { bounds.stall_time }
    }

    /// Goes on with the next request.
    pub(crate) fn next_request(&mut self, now: Instant) {
        (self.scanned, self.empty_lines) = (0, 0);
        self.full = false;
        if self.input.is_empty() {
            // A large body's buffer is not kept for a connection that may idle.
            self.input = Buffer::default();
        }
        self.phase = Phase::Head { since: now, started: !self.input.is_empty() };
    }

    /// Closes our side; the peer gets a moment to read what was sent.
    pub(crate) fn linger(&mut self, now: Instant) {
        let _ = self.stream.shut_write();
        self.input.clear();
        self.phase = Phase::Linger { until: now + limits::LINGER_TIME };
    }
}

/// Headers of every answer.
fn common_headers(asked: &Asked) -> Vec<(&'static str, String)> {
    let mut headers = vec![("X-Request-Id", asked.request_id.clone()), ("request-id", asked.request_id.clone())];
    if let Some(origin) = &asked.allowed.origin {
        headers.push(("Access-Control-Allow-Origin", origin.clone()));
        headers.push(("Access-Control-Expose-Headers", EXPOSED.to_owned()));
    }
    if asked.allowed.varies {
        headers.push(("Vary", "Origin".to_owned()));
    }
    headers
}

/// Headers that a page of another origin may read.
const EXPOSED: &str = "X-Request-Id, request-id, Retry-After, X-Engine-Cached-Tokens, X-Engine-Prompt-Tokens, \
                       X-Engine-Warnings, X-Engine-Ignored-Params";

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

fn interrupted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection and its peer.
    fn pair() -> (Conn, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let stream = Stream::Tcp(mio::net::TcpStream::from_std(stream));
        (Conn::new(stream, Instant::now(), false), peer)
    }

    /// Reads in one turn until `enough` bytes of the peer have come in all.
    fn fill_until(conn: &mut Conn, round: u64, enough: usize) {
        conn.start_turn(round);
        while conn.input.len() < enough {
            conn.mark_readable();
            conn.fill().unwrap();
        }
    }

    #[test]
    fn a_turn_ends_however_much_there_is_to_read() {
        let (mut conn, mut peer) = pair();
        let sender = std::thread::spawn(move || peer.write_all(&[b'x'; 180 * 1024]).map(|()| peer));
        for round in 1..=2 {
            fill_until(&mut conn, round, TURN.read * round as usize);
            assert!(conn.input.len() < (TURN.read + 16 * 1024) * round as usize);
            assert!(conn.wants_turn());
            // Looked at again in the same round, it gets nothing more.
            let before = conn.input.len();
            conn.start_turn(round);
            conn.fill().unwrap();
            assert_eq!(conn.input.len(), before);
        }
        fill_until(&mut conn, 3, 180 * 1024);
        assert!(!conn.wants_turn());
        drop(sender.join().unwrap().unwrap());
    }

    #[test]
    fn a_turn_ends_however_much_there_is_to_write() {
        let (mut conn, mut peer) = pair();
        let bytes = 4 * TURN.write;
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; bytes];
            peer.read_exact(&mut all).map(|()| all)
        });
        conn.push(&vec![b'y'; bytes], Instant::now());
        for round in 1.. {
            let before = conn.unsent();
            conn.start_turn(round);
            conn.flush(Instant::now()).unwrap();
            assert!(before - conn.unsent() <= TURN.write && conn.sent_bytes as usize + conn.unsent() == bytes);
            if conn.unsent() == 0 {
                break;
            }
            // Either the socket is full, or it is only the turn that is over.
            assert_eq!(conn.wants_turn(), before - conn.unsent() == TURN.write);
        }
        assert!(reader.join().unwrap().unwrap().iter().all(|b| *b == b'y'));
    }

    #[test]
    fn a_reserved_connection_is_not_left_lying_with_its_answer() {
        let bounds = Bounds::default();
        let now = Instant::now();
        for reserved in [false, true] {
            let (mut conn, _peer) = pair();
            conn.reserved = reserved;
            conn.push(b"an answer", now);
            let most = if reserved { bounds.reserved_time } else { bounds.stall_time };
            assert!(conn.stalled_out(now + most, &bounds));
            assert!(!conn.stalled_out(now + most - Duration::from_millis(1), &bounds));
            assert!(conn.deadline(&bounds).is_some_and(|at| at <= now + most));
        }
    }

    #[test]
    fn a_turn_has_room_for_some_requests() {
        let (mut conn, _peer) = pair();
        conn.input.extend(b"GET");
        conn.start_turn(1);
        for _ in 0..TURN.requests {
            assert!(conn.may_begin() && !conn.held_back());
            conn.count_request();
        }
        assert!(!conn.may_begin() && conn.held_back() && conn.wants_turn());
        conn.start_turn(2);
        assert!(conn.may_begin() && !conn.held_back());
        assert_eq!(conn.served, TURN.requests as u32);
    }
}
