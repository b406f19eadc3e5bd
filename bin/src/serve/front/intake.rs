//! What arrives on a connection: heads, the checks behind them, bodies, and the hand-over to `text`.

use std::sync::Arc;
use std::time::Instant;

use crossbeam::channel::TrySendError;

use super::Front;
use crate::serve::conns::{Asked, Busy, Conn, Phase, Reading};
use crate::serve::error::ApiError;
use crate::serve::gate::{Decision, Gate};
use crate::serve::http::{Decoder, Head, HeadError, Method, Reply, head};
use crate::serve::link::{self, Body, Exchange, Request, State, ToText};
use crate::serve::routes::{self, Route};
use crate::serve::shapes::Shape;
use crate::serve::{Bounds, limits};

impl Front {
    pub(super) fn advance_head(&mut self, conn: &mut Conn, index: usize, now: Instant) -> bool {
        // A client that pipelines but does not read waits until its answers are taken.
        if conn.unsent() > self.config.bounds.stream_buffer || !conn.may_begin() {
            return false;
        }
        if conn.scanned == 0 {
            let lines = head::empty_lines(&conn.input);
            conn.input.consume(2 * lines);
            conn.empty_lines += lines;
            if conn.empty_lines > limits::EMPTY_LINES {
                self.refuse_head(conn, HeadError::Bad("too many empty lines before a request"), now);
                return true;
            }
        }
        if conn.input.is_empty() {
            return false;
        }
        if let Phase::Head { since, started } = &mut conn.phase
            && !*started
        {
            (*since, *started) = (now, true);
        }
        let bounds = &self.config.bounds;
        match head::find_end(&conn.input, conn.scanned, bounds).and_then(|end| match end {
            Ok(end) => head::parse(&conn.input[..end], bounds).map(|head| Some((head, end))),
            Err(scanned) => {
                conn.scanned = scanned;
                Ok(None)
            }
        }) {
            Ok(None) => false,
            Ok(Some((head, end))) => {
                conn.input.consume(end);
                conn.scanned = 0;
                self.begin(conn, index, head, now);
                true
            }
            Err(error) => {
                self.refuse_head(conn, error, now);
                true
            }
        }
    }

    fn refuse_head(&mut self, conn: &mut Conn, error: HeadError, now: Instant) {
        let reply = match error {
            HeadError::Bad(rule) => Reply::from(&ApiError::bad_request(rule)),
            HeadError::UriTooLong => Reply::from(&ApiError::uri_too_long(self.config.bounds.uri_bytes)),
            HeadError::TooLarge => Reply::from(&{
                let Bounds { head_bytes, headers, .. } = self.config.bounds;
                ApiError::headers_too_large(head_bytes, headers)
            }),
            HeadError::OtherProtocol(text) => Reply::text(400, "text/plain; charset=utf-8", text),
        };
        self.answer_and_close(conn, None, reply, now);
    }

    /// Answers something that leaves the connection out of step.
    pub(super) fn answer_and_close(&mut self, conn: &mut Conn, asked: Option<Asked>, reply: Reply, now: Instant) {
        conn.close = true;
        let asked = asked.unwrap_or_else(|| Asked {
            route: "other",
            method: Method::Other,
            http11: true,
            keep_alive: false,
            request_id: self.random.id("req_"),
            allowed: self.config.origins.allow(None),
            errors: Shape::default(),
            received: now,
        });
        let (status, rejection) = (reply.status, reply.rejection());
        conn.push_reply(&asked, reply, now);
        conn.input.clear();
        self.count(&asked, status, rejection);
        conn.next_request(now);
    }

    pub(super) fn count(&self, asked: &Asked, status: u16, rejection: Option<&'static str>) {
        let status = asked.errors.status(status);
        // Who asks how the server is has asked for nothing that could be refused.
        let rejection = rejection.filter(|_| !["/health", "/livez"].contains(&asked.route));
        self.shared.metrics.lock().http(asked.route, asked.method.label(), status, rejection);
        let ms = asked.received.elapsed().as_millis() as u64;
        tracing::info!(id = asked.request_id, route = asked.route, status, ms, "request");
    }

    fn begin(&mut self, conn: &mut Conn, index: usize, head: Head, now: Instant) {
        conn.count_request();
        let request_id = match head.header("x-request-id") {
            Some(id) if (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()) => id.to_owned(),
            _ => self.random.id("req_"),
        };
        let path = routes::behind(&self.config.prefix, &head.path);
        let route = routes::find(path);
        let mut asked = Asked {
            route: route.as_ref().map_or("other", Route::label),
            method: head.method,
            http11: head.http11,
            keep_alive: head.keep_alive && conn.served < self.config.bounds.requests,
            request_id,
            allowed: self.config.origins.allow(Some(&head)),
            errors: Shape::of(path, route.as_ref().map(|_| ()), head.header("anthropic-version").is_some()),
            received: now,
        };
        if matches!(route, Ok(Route::Metrics)) {
            self.tell_sockets(conn);
        }
        let gate = Gate {
            shared: &self.shared,
            keys: &self.keys,
            body_limit: self.config.body_limit,
            bodies_limit: self.config.bodies_limit,
            show: self.config.show,
            bodies_bytes: self.shared.bodies_bytes(),
            reserved: conn.reserved,
            queue_full: self.to_text.is_full(),
        };
        let decision = gate.decide(&head, route).unwrap_or_else(|error| Decision::Answer(Reply::from(&error)));
        let decoder = Decoder::new(head.framing);
        match decision {
            Decision::Read(route) => {
                if head.expects_continue && conn.input.is_empty() && !decoder.done() {
                    conn.push(b"HTTP/1.1 100 Continue\r\n\r\n", now);
                }
                if decoder.done() {
                    let none = Body::new(Vec::new(), Arc::clone(&self.shared));
                    self.dispatch(conn, index, &head, route, asked, none, now);
                } else {
                    let reading = Reading { head, route, asked, decoder, body: Vec::new(), since: now, last: now };
                    conn.phase = Phase::Body(Box::new(reading));
                }
            }
            Decision::Answer(reply) => {
                let too_long = matches!(decoder, Decoder::Length(n) if n > limits::DRAIN_BYTES as u64);
                // A client that waits for `100 Continue` may or may not send the body now: only closing is safe. And the
                // few places for who asks whether the server lives are not for those who send something.
                if !decoder.done() && (head.expects_continue || too_long || conn.reserved) {
                    self.answer_and_close(conn, Some(asked), reply, now);
                    return;
                }
                if self.is_ending() || (reply.status == 503 && self.shared.state() != State::Loading) {
                    asked.keep_alive = false;
                }
                let (status, rejection) = (reply.status, reply.rejection());
                conn.push_reply(&asked, reply, now);
                self.count(&asked, status, rejection);
                if decoder.done() {
                    conn.next_request(now);
                } else {
                    let until = now + self.config.bounds.drain_time;
                    conn.phase = Phase::Drain { decoder, left: limits::DRAIN_BYTES, until };
                }
            }
        }
    }

    pub(super) fn advance_body(&mut self, conn: &mut Conn, index: usize, now: Instant) -> bool {
        let Phase::Body(reading) = &mut conn.phase else { return false };
        if conn.input.is_empty() {
            return false;
        }
        reading.last = now;
        let Reading { decoder, body, .. } = &mut **reading;
        let before = body.len();
        let fed = decoder.feed(&conn.input, |bytes| body.extend_from_slice(bytes));
        let (grown, done) = (body.len() - before, decoder.done());
        self.shared.bodies_more(grown);
        // A chunk that is too long is not waited for.
        let whole = decoder.announced().saturating_add(body.len() as u64);
        let over = if whole > self.config.body_limit as u64 {
            Some(ApiError::too_large(self.config.body_limit))
        } else if self.shared.bodies_bytes() > self.config.bodies_limit {
            Some(ApiError::queue_full(1))
        } else {
            None
        };
        let error = match fed {
            Err(error) => Some(ApiError::bad_request(error.0)),
            Ok(n) => {
                conn.input.consume(n);
                over
            }
        };
        if error.is_none() && !done {
            return false;
        }
        let Phase::Body(reading) = std::mem::replace(&mut conn.phase, Phase::Head { since: now, started: false })
        else {
            unreachable!("matched above")
        };
        let Reading { head, route, asked, body, .. } = *reading;
        let body = Body::new(body, Arc::clone(&self.shared));
        match error {
            Some(error) => self.answer_and_close(conn, Some(asked), Reply::from(&error), now),
            None => self.dispatch(conn, index, &head, route, asked, body, now),
        }
        true
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of a request, moved once")]
    fn dispatch(
        &mut self,
        conn: &mut Conn,
        index: usize,
        head: &Head,
        route: Route,
        mut asked: Asked,
        body: Body,
        now: Instant,
    ) {
        asked.received = now;
        self.serial += 1;
        let exchange = Exchange { conn: index, serial: self.serial };
        let session = head.header("x-session-id").and_then(link::session);
        let request = Box::new(Request { exchange, route, body, received: now, session, id: asked.request_id.clone() });
        match self.to_text.try_send(ToText::Request(request)) {
            Ok(()) => conn.phase = Phase::Busy(Box::new(Busy { serial: self.serial, asked, open: false })),
            Err(refused) => {
                let error = match refused {
                    TrySendError::Full(_) => ApiError::queue_full(1),
                    TrySendError::Disconnected(_) => ApiError::engine("the engine has ended"),
                };
                conn.close |= self.is_ending();
                conn.push_reply(&asked, Reply::from(&error), now);
                self.count(&asked, error.status, error.rejection());
                conn.next_request(now);
            }
        }
    }
}
