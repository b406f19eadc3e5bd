//! front: the one thread that owns sockets. Accepts, frames, checks what needs no JSON, hands requests to `text` and
//! writes what comes back. Never waits for anything but the poll.

mod intake;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, TryRecvError, TrySendError};
use mio::{Events, Poll, Token};

use crate::serve::auth::Keys;
use crate::serve::conns::{Conn, Phase, Standing};
use crate::serve::error::ApiError;
use crate::serve::http::{Reply, response};
use crate::serve::link::{Exchange, Shared, State, ToFront, ToText};
use crate::serve::random::Random;
use crate::serve::socket::{Listener, Stream};
use crate::serve::{Config, Exit, limits};

/// All listeners: each is asked which of them has news.
const LISTENERS: Token = Token(0);
pub(crate) const WAKER: Token = Token(1);
const FIRST_CONN: usize = 2;
/// Connections accepted before those that are there have their turn.
const ACCEPTS_PER_ROUND: usize = 64;

/// What reaches the front from outside the sockets and `text`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Control {
    /// Finish what runs, then end.
    Shutdown,
    /// End now; the number of the signal.
    Kill(i32),
    /// Read the key file again.
    ReloadKeys,
}

/// The thread's state.
pub(crate) struct Front {
    poll: Poll,
    /// None once a shutdown has begun.
    listeners: Vec<Listener>,
    conns: Vec<Option<Box<Conn>>>,
    free: Vec<usize>,
    /// Connections of the table that were turned away.
    turned_away: usize,
    /// Bytes that connections have received and sent before they ended.
    past_bytes: (u64, u64),
    shared: Arc<Shared>,
    config: Arc<Config>,
    keys: Keys,
    to_text: Sender<ToText>,
    from_text: Receiver<ToFront>,
    control: Receiver<Control>,
    /// Notes about requests `text` already knows, when its channel was full. At most a few per such request.
    backlog: std::collections::VecDeque<ToText>,
    random: Random,
    serial: u64,
    /// Counts the polls: what one connection may do in each is bounded.
    round: u64,
    /// Rows of connections that had more to do than one turn allows.
    again: Vec<usize>,
    /// More connections may wait to be accepted.
    accepting: bool,
    next_check: Option<Instant>,
    /// When a shutdown stops waiting, and whether it has told `text` so.
    ends_at: Option<(Instant, bool)>,
    exit: Option<Exit>,
}

impl Front {
    #[allow(clippy::too_many_arguments, reason = "every end of every channel, once")]
    pub(crate) fn new(
        poll: Poll,
        mut listeners: Vec<Listener>,
        config: Arc<Config>,
        keys: Keys,
        shared: Arc<Shared>,
        to_text: Sender<ToText>,
        from_text: Receiver<ToFront>,
        control: Receiver<Control>,
    ) -> io::Result<Self> {
        for listener in &mut listeners {
            listener.register(poll.registry(), LISTENERS)?;
        }
        Ok(Self {
            poll,
            listeners,
            conns: Vec::new(),
            free: Vec::new(),
            turned_away: 0,
            past_bytes: (0, 0),
            shared,
            config,
            keys,
            to_text,
            from_text,
            control,
            backlog: Default::default(),
            random: Random::new(),
            serial: 0,
            round: 0,
            again: Vec::new(),
            accepting: false,
            next_check: None,
            ends_at: None,
            exit: None,
        })
    }

    /// Serves until told to end.
    pub(crate) fn run(mut self) -> Exit {
        let mut events = Events::with_capacity(256);
        loop {
            let timeout = self.timeout(Instant::now());
            self.round += 1;
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "poll failed");
                return Exit::Failed;
            }
            for event in &events {
                match event.token() {
                    LISTENERS => self.accepting = true,
                    WAKER => {}
                    Token(n) => {
                        // An unknown token belongs to a connection closed in this very round.
                        if let Some(conn) = self.conns.get_mut(n - FIRST_CONN).and_then(Option::as_mut) {
                            conn.mark_readable();
                            let gone = event.is_error() || event.is_write_closed();
                            conn.eof |= gone;
                            // Seen even while nothing is read from this connection.
                            conn.gone |= gone || event.is_read_closed() && !self.config.half_close;
                            if !conn.queued {
                                self.drive(n - FIRST_CONN);
                            }
                        }
                    }
                }
            }
            self.accept();
            self.go_on();
            self.take_control();
            self.take_answers();
            self.send_backlog();
            self.check_deadlines(Instant::now());
            if let Some(exit) = self.finished(Instant::now()) {
                return exit;
            }
        }
    }

    fn timeout(&self, now: Instant) -> Option<Duration> {
        if self.accepting || !self.again.is_empty() || !self.from_text.is_empty() {
            return Some(Duration::ZERO);
        }
        let mut at = self.next_check;
        if !self.backlog.is_empty() {
            let soon = now + Duration::from_millis(5);
            at = Some(at.map_or(soon, |t| t.min(soon)));
        }
        if let Some((end, _)) = self.ends_at {
            at = Some(at.map_or(end, |t| t.min(end)));
        }
        at.map(|t| t.saturating_duration_since(now) + Duration::from_millis(1))
    }

    fn accept(&mut self) {
        if !std::mem::take(&mut self.accepting) {
            return;
        }
        for listener in 0..self.listeners.len() {
            let more = self.accept_from(listener);
            self.accepting |= more;
        }
    }

    /// Whether more may wait there.
    fn accept_from(&mut self, listener: usize) -> bool {
        for _ in 0..ACCEPTS_PER_ROUND {
            match self.listeners[listener].accept() {
                Ok(stream) => self.admit(stream),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Out of descriptors, or a peer that left already: the listener itself is still good.
                    tracing::warn!(%error, "accept failed");
                    return false;
                }
            }
        }
        true
    }

    /// Another turn for each connection that needed more than one.
    fn go_on(&mut self) {
        for index in std::mem::take(&mut self.again) {
            if let Some(conn) = self.conns.get_mut(index).and_then(Option::as_mut) {
                conn.queued = false;
                self.drive(index);
            }
        }
    }

    fn admit(&mut self, stream: Stream) {
        let live = self.conns.len() - self.free.len() - self.turned_away;
        let most = self.config.bounds.connections;
        let now = Instant::now();
        let mut conn = Box::new(Conn::new(stream, now, live >= most));
        if live >= most + limits::CONNECTIONS_RESERVED {
            self.answer_and_close(&mut conn, None, Reply::from(&ApiError::no_slot()), now);
            if self.turned_away == limits::CONNECTIONS_TURNED_AWAY {
                // Nobody waits until it has read that: what it sends in the meantime may cost it the answer.
                let _ = conn.flush(now);
                self.past_bytes.1 += conn.sent_bytes;
                return;
            }
            conn.turned_away = true;
            self.turned_away += 1;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.conns.len() - 1
        });
        if let Err(error) = conn.stream.register(self.poll.registry(), Token(index + FIRST_CONN)) {
            tracing::warn!(%error, "cannot watch a connection");
            self.turned_away -= usize::from(conn.turned_away);
            self.free.push(index);
            return;
        }
        self.conns[index] = Some(conn);
        self.drive(index);
    }

    /// Reads, parses, answers and writes until nothing moves any more or the connection's turn is over.
    fn drive(&mut self, index: usize) {
        let Some(mut conn) = self.conns[index].take() else { return };
        let now = Instant::now();
        if !self.turn(&mut conn, index, now) {
            return self.bury(*conn, index);
        }
        if let Some(at) = conn.deadline(&self.config.bounds) {
            self.next_check = Some(self.next_check.map_or(at, |t| t.min(at)));
        }
        if conn.wants_turn() && !conn.queued {
            conn.queued = true;
            self.again.push(index);
        }
        self.conns[index] = Some(conn);
    }

    /// `false` when the connection is over. A peer that sends without end has no longer turn than others: what is left
    /// is done in the next round.
    fn turn(&mut self, conn: &mut Conn, index: usize, now: Instant) -> bool {
        conn.start_turn(self.round);
        loop {
            if conn.fill().is_err() {
                return false;
            }
            let mut moved = false;
            while !conn.close_pending() && self.advance(conn, index, now) {
                moved = true;
            }
            if conn.flush(now).is_err() {
                return false;
            }
            if conn.unsent() <= self.config.bounds.stream_buffer {
                conn.held = None;
            }
            self.tell_room(conn, index);
            if matches!(conn.phase, Phase::Linger { .. }) {
                conn.input.clear();
                if conn.eof {
                    return false;
                }
            } else if matches!(conn.phase, Phase::Busy(_)) {
                // Who closes a side while an answer is being made has gone: nothing is generated for nobody.
                if conn.gone || conn.eof && !self.config.half_close {
                    return false;
                }
            } else if conn.eof && !moved && conn.unsent() == 0 && !conn.held_back() {
                return false;
            } else if conn.close_pending() && conn.unsent() == 0 {
                conn.linger(now);
                moved = true;
            }
            if conn.wants_turn() || !moved && !conn.wants_read() {
                return true;
            }
        }
    }

    /// One step of the phase; `false` when more bytes or an answer are needed first.
    fn advance(&mut self, conn: &mut Conn, index: usize, now: Instant) -> bool {
        match &mut conn.phase {
            Phase::Head { .. } => self.advance_head(conn, index, now),
            Phase::Body(_) => self.advance_body(conn, index, now),
            Phase::Drain { decoder, left, .. } => {
                let mut dropped = 0;
                let fed = decoder.feed(&conn.input, |bytes| dropped += bytes.len());
                let done = decoder.done();
                match fed {
                    Ok(n) if decoder.announced().saturating_add(dropped as u64) <= *left as u64 => {
                        *left -= dropped;
                        conn.input.consume(n);
                        if done {
                            conn.next_request(now);
                        }
                        done
                    }
                    _ => {
                        // Out of step or too much: the answer is out already, so the end of the connection says it.
                        conn.close = true;
                        conn.next_request(now);
                        false
                    }
                }
            }
            Phase::Busy(_) | Phase::Linger { .. } => false,
        }
    }

    /// Sends a note that must not be lost.
    fn note(&mut self, note: ToText) {
        self.backlog.push_back(note);
        self.send_backlog();
    }

    fn send_backlog(&mut self) {
        while let Some(note) = self.backlog.pop_front() {
            match self.to_text.try_send(note) {
                Ok(()) => {}
                Err(TrySendError::Full(note)) => {
                    self.backlog.push_front(note);
                    return;
                }
                // Nobody is left to be told.
                Err(TrySendError::Disconnected(_)) => self.backlog.clear(),
            }
        }
    }

    /// Tells `text` when the output buffer has become full, and when it has room again.
    fn tell_room(&mut self, conn: &mut Conn, index: usize) {
        let Phase::Busy(busy) = &conn.phase else { return };
        let exchange = Exchange { conn: index, serial: busy.serial };
        let bound = self.config.bounds.stream_buffer;
        if !conn.full && conn.unsent() > bound {
            conn.full = true;
            self.note(ToText::Full(exchange));
        } else if conn.full && conn.unsent() <= bound / 2 {
            conn.full = false;
            self.note(ToText::Room(exchange));
        }
    }

    fn take_answers(&mut self) {
        // What `text` says meanwhile is for the next round: a client that keeps it talking keeps nobody else waiting.
        for _ in 0..=self.from_text.len() {
            let answer = match self.from_text.try_recv() {
                Ok(answer) => answer,
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.text_ended(),
            };
            let exchange = match &answer {
                ToFront::Reply(e, ..) | ToFront::Open(e, _) | ToFront::Data(e, _) => *e,
                ToFront::Close(e) | ToFront::Break(e, ..) => *e,
                // No client can ask for it.
                ToFront::Pages(..) => continue,
                ToFront::Dead => {
                    self.die();
                    continue;
                }
            };
            self.answer(exchange, answer);
        }
    }

    /// No request can be answered any more.
    fn die(&mut self) {
        self.shared.advance(State::Dead);
        self.listeners.clear();
        self.exit = Some(Exit::Internal);
        self.ends_at.get_or_insert((Instant::now() + limits::DRAIN_TIME, true));
    }

    /// `text` has ended. It answers everything before it ends, unless it panicked.
    fn text_ended(&mut self) {
        if self.shared.state() == State::Serving {
            self.die();
        }
        let error = ApiError::engine("the server failed");
        for index in 0..self.conns.len() {
            let Some(conn) = &self.conns[index] else { continue };
            let Phase::Busy(busy) = &conn.phase else { continue };
            let exchange = Exchange { conn: index, serial: busy.serial };
            let answer = match busy.open {
                true => {
                    let last = busy.asked.errors.event(&error, &busy.asked.request_id);
                    ToFront::Break(exchange, error.status, last)
                }
                false => ToFront::Reply(exchange, Reply::from(&error), None),
            };
            self.answer(exchange, answer);
        }
    }

    /// No further request is taken: whatever is answered now is the last answer of its connection.
    fn is_ending(&self) -> bool {
        matches!(self.shared.state(), State::Draining | State::Dead)
    }

    fn answer(&mut self, exchange: Exchange, answer: ToFront) {
        let ending = self.is_ending();
        let Some(Some(conn)) = self.conns.get_mut(exchange.conn) else { return };
        let Phase::Busy(busy) = &mut conn.phase else { return };
        if busy.serial != exchange.serial {
            return;
        }
        let now = Instant::now();
        let asked = busy.asked.clone();
        let mut over = None;
        // Who asks for more here would only be told to go elsewhere.
        conn.close |= ending;
        match answer {
            ToFront::Reply(_, reply, held) => {
                conn.held = held;
                over = Some((reply.status, reply.rejection()));
                conn.push_reply(&asked, reply, now);
            }
            ToFront::Open(_, headers) => {
                busy.open = true;
                conn.push_stream_head(&asked, &headers, now);
            }
            ToFront::Data(_, bytes) => conn.push_stream_data(asked.http11, &bytes, now),
            ToFront::Close(_) => {
                if asked.http11 {
                    conn.push(response::LAST_CHUNK, now);
                }
                over = Some((200, None));
            }
            ToFront::Break(_, _, bytes) => {
                conn.push_stream_data(asked.http11, &bytes, now);
                conn.close = true;
                over = Some((200, None));
            }
            ToFront::Pages(..) | ToFront::Dead => {}
        }
        if let Some((status, rejection)) = over {
            conn.next_request(now);
            self.count(&asked, status, rejection);
        }
        self.drive(exchange.conn);
    }

    /// The connection is over; tells `text` if it was answering.
    fn bury(&mut self, mut conn: Conn, index: usize) {
        let _ = conn.stream.deregister(self.poll.registry());
        self.past_bytes.0 += conn.received_bytes;
        self.past_bytes.1 += conn.sent_bytes;
        self.turned_away -= usize::from(conn.turned_away);
        match &conn.phase {
            Phase::Busy(busy) => {
                self.count(&busy.asked, 499, None);
                self.note(ToText::Gone(Exchange { conn: index, serial: busy.serial }));
            }
            Phase::Body(reading) => self.shared.bodies_less(reading.body.len()),
            _ => {}
        }
        self.free.push(index);
        // Its descriptor may be what `accept` lacked.
        self.accepting = true;
    }

    /// Tells the metrics what the sockets are at, for the answer that `asking` is about to get.
    fn tell_sockets(&self, asking: &Conn) {
        let mut connections = [0; Standing::ALL.len()];
        connections[Standing::Writing as usize] += 1;
        let (mut received, mut sent) = self.past_bytes;
        (received, sent) = (received + asking.received_bytes, sent + asking.sent_bytes);
        for conn in self.conns.iter().flatten() {
            connections[conn.standing() as usize] += 1;
            (received, sent) = (received + conn.received_bytes, sent + conn.sent_bytes);
        }
        let mut metrics = self.shared.metrics.lock();
        metrics.connections = connections;
        (metrics.received_bytes, metrics.sent_bytes) = (received, sent);
    }

    fn check_deadlines(&mut self, now: Instant) {
        if self.next_check.is_none_or(|at| now < at) {
            return;
        }
        self.next_check = None;
        for index in 0..self.conns.len() {
            let Some(conn) = &self.conns[index] else { continue };
            match conn.deadline(&self.config.bounds) {
                Some(at) if now >= at => self.expire(index, now),
                Some(at) => self.next_check = Some(self.next_check.map_or(at, |t| t.min(at))),
                None => {}
            }
        }
    }

    fn expire(&mut self, index: usize, now: Instant) {
        let Some(mut conn) = self.conns[index].take() else { return };
        if conn.stalled_out(now, &self.config.bounds) {
            tracing::info!("a reader took nothing for too long; its connection is closed");
            self.shared.metrics.lock().stall_kills += 1;
            return self.bury(*conn, index);
        }
        match &mut conn.phase {
            Phase::Head { started: false, .. } | Phase::Linger { .. } => return self.bury(*conn, index),
            Phase::Head { .. } => {
                self.answer_and_close(&mut conn, None, Reply::from(&ApiError::timeout("the request head")), now);
            }
            Phase::Body(reading) => {
                self.shared.bodies_less(reading.body.len());
                let asked = reading.asked.clone();
                self.answer_and_close(&mut conn, Some(asked), Reply::from(&ApiError::timeout("the body")), now);
            }
            Phase::Drain { .. } => {
                conn.close = true;
                conn.next_request(now);
            }
            Phase::Busy(_) => unreachable!("a request being answered has no deadline of its own"),
        }
        self.conns[index] = Some(conn);
        self.drive(index);
    }

    fn take_control(&mut self) {
        while let Ok(control) = self.control.try_recv() {
            match control {
                Control::Kill(signal) => self.exit = Some(Exit::Signal(signal)),
                Control::ReloadKeys => match Keys::load(&self.config.api_keys, self.config.api_key_file.as_deref()) {
                    Ok(keys) => self.keys = keys,
                    Err(error) => tracing::error!(%error, "the key file cannot be read; the old keys stay"),
                },
                Control::Shutdown => {
                    self.shared.advance(State::Draining);
                    self.listeners.clear();
                    self.ends_at.get_or_insert((Instant::now() + self.config.bounds.shutdown_time, false));
                    self.note(ToText::Drain);
                }
            }
        }
    }

    /// The exit, once everything that should still happen has happened.
    fn finished(&mut self, now: Instant) -> Option<Exit> {
        if let Some(exit @ Exit::Signal(_)) = self.exit {
            return Some(exit);
        }
        let (end, told) = self.ends_at?;
        let waiting = self.conns.iter().flatten().any(|c| matches!(c.phase, Phase::Busy(_)) || c.unsent() > 0);
        if !waiting {
            return Some(self.exit.unwrap_or(Exit::Done));
        }
        if now >= end {
            if told {
                return Some(self.exit.unwrap_or(Exit::Done));
            }
            // `text` fails what still runs; the answers get a moment to leave.
            self.ends_at = Some((now + limits::DRAIN_TIME, true));
            self.note(ToText::Abort);
        }
        None
    }
}

impl Conn {
    /// The last answer is queued and nothing more is read.
    fn close_pending(&self) -> bool {
        self.close && matches!(self.phase, Phase::Head { .. })
    }
}
