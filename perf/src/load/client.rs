//! One client: draws what it does next, does it, and compares what it gets.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use engine_tests::fuzz::{self, Inputs, Rng};

use super::asks::{Ask, Reply, Said};
use super::wire::{Wire, post};

/// Faults of one client that are told in words.
const FAULTS_MAX: usize = 5;

/// How often each thing was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Answers that were what they were alone.
    pub same: u64,
    /// Of them those that were read with pauses.
    pub stalled: u64,
    /// Requests that found no room.
    pub full: u64,
    /// Streams left in the middle.
    pub cancelled: u64,
    /// Requests left before an answer.
    pub left: u64,
    /// Streams that nobody read until they were left.
    pub unread: u64,
    /// Requests of which the sending side was closed.
    pub half_closed: u64,
    /// What was no request, or a body that was damaged.
    pub damaged: u64,
}

impl Tally {
    /// Adds another client's.
    pub fn add(&mut self, other: &Self) {
        self.same += other.same;
        self.stalled += other.stalled;
        self.full += other.full;
        self.cancelled += other.cancelled;
        self.left += other.left;
        self.unread += other.unread;
        self.half_closed += other.half_closed;
        self.damaged += other.damaged;
    }
}

/// A client.
pub struct Client<'a> {
    address: SocketAddr,
    asks: &'a [Ask],
    expected: &'a [Said],
    rng: Rng,
    heads: Inputs,
    bodies: Vec<(&'static str, Inputs)>,
    /// What it has done.
    pub tally: Tally,
    /// What must not be.
    pub faults: Vec<String>,
}

impl<'a> Client<'a> {
    /// Client number `index` of a seed.
    pub fn new(address: SocketAddr, asks: &'a [Ask], expected: &'a [Said], seed: u64, index: usize) -> Self {
        let mut rng = Rng::new(seed ^ (index as u64) << 32);
        let mut inputs = |name| Inputs::new(fuzz::find(name).expect("a target of that name"), rng.number());
        let heads = inputs("http");
        let bodies = vec![
            ("/v1/chat/completions", inputs("body-chat")),
            ("/v1/completions", inputs("body-completions")),
            ("/tokenize", inputs("body-tokenize")),
        ];
        Self { address, asks, expected, rng, heads, bodies, tally: Tally::default(), faults: Vec::new() }
    }

    /// Does one thing after the other.
    pub fn go_on_until(&mut self, end: Instant) {
        while Instant::now() < end && self.faults.len() < FAULTS_MAX {
            let nth = self.rng.below(self.asks.len());
            let done = match self.rng.below(100) {
                0..50 => self.read(nth),
                50..62 => self.cancel(nth),
                62..72 => self.leave(nth),
                72..80 => self.stall(nth),
                80..82 => self.ignore(nth),
                82..86 => self.half_close(nth),
                86..94 => self.damage_head(),
                _ => self.damage_body(),
            };
            if let Err(fault) = done {
                self.faults.push(fault);
            }
        }
    }

    fn sent(&self, nth: usize) -> Result<Wire, String> {
        let mut wire = Wire::connect(self.address)?;
        wire.send(&self.asks[nth].bytes)?;
        Ok(wire)
    }

    /// Whether an answer came.
    fn compare(&mut self, nth: usize, reply: Reply) -> Result<bool, String> {
        match reply {
            Reply::Said(said) if said == self.expected[nth] => {
                self.tally.same += 1;
                Ok(true)
            }
            Reply::Said(said) => {
                Err(format!("{}: alone {:?}, beside others {said:?}", self.asks[nth].name, self.expected[nth]))
            }
            Reply::Full => {
                self.tally.full += 1;
                Ok(false)
            }
            Reply::Gone => Err(format!("{}: the connection ended instead of an answer", self.asks[nth].name)),
        }
    }

    fn read(&mut self, nth: usize) -> Result<(), String> {
        let mut wire = self.sent(nth)?;
        // Now and then several on one connection, the next sent before the last is answered.
        let more: Vec<usize> = (0..self.rng.below(8) / 6).map(|_| self.rng.below(self.asks.len())).collect();
        for next in &more {
            wire.send(&self.asks[*next].bytes)?;
        }
        for each in std::iter::once(nth).chain(more) {
            let reply = self.asks[each].read(&mut wire).map_err(|e| format!("{}: {e}", self.asks[each].name))?;
            self.compare(each, reply)?;
        }
        Ok(())
    }

    /// Reads a few pieces, then leaves.
    fn cancel(&mut self, nth: usize) -> Result<(), String> {
        let mut wire = self.sent(nth)?;
        if let Some(mut head) = wire.head()? {
            for _ in 0..self.rng.below(6) {
                if wire.piece(&mut head)?.is_none() {
                    break;
                }
            }
        }
        self.tally.cancelled += 1;
        Ok(())
    }

    /// Leaves before an answer, or before the request is whole.
    fn leave(&mut self, nth: usize) -> Result<(), String> {
        let bytes = &self.asks[nth].bytes;
        let cut = if self.rng.below(2) == 0 { bytes.len() } else { self.rng.below(bytes.len()) };
        let mut wire = Wire::connect(self.address)?;
        wire.send(&bytes[..cut])?;
        self.pause(20);
        self.tally.left += 1;
        Ok(())
    }

    /// Stops reading for a while, then reads on.
    fn stall(&mut self, nth: usize) -> Result<(), String> {
        let mut wire = self.sent(nth)?;
        self.pause(400);
        let name = &self.asks[nth].name;
        let Some(mut head) = wire.head()? else { return Err(format!("{name}: no answer behind a pause")) };
        let mut body = Vec::new();
        if head.status == 200
            && let Some(first) = wire.piece(&mut head)?
        {
            body = first;
            self.pause(400);
        }
        // A body of one piece is over.
        let reply = self.asks[nth].read_body(&mut wire, head, body).map_err(|e| format!("{name}: {e}"))?;
        if self.compare(nth, reply)? {
            self.tally.stalled += 1;
        }
        Ok(())
    }

    /// Reads nothing, then leaves.
    fn ignore(&mut self, nth: usize) -> Result<(), String> {
        let wire = self.sent(nth)?;
        self.pause(3000);
        drop(wire);
        self.tally.unread += 1;
        Ok(())
    }

    /// Is answered, or dropped, and either soon.
    fn half_close(&mut self, nth: usize) -> Result<(), String> {
        let mut wire = self.sent(nth)?;
        wire.close_sending();
        match self.asks[nth].read(&mut wire) {
            Ok(Reply::Said(said)) if said != self.expected[nth] => {
                return Err(format!("{}: half closed, another answer: {said:?}", self.asks[nth].name));
            }
            Err(error) if error.contains("silent") => return Err(format!("half closed: {error}")),
            // An answer that had begun may be cut: who closed a side counts as gone.
            _ => {}
        }
        self.tally.half_closed += 1;
        Ok(())
    }

    /// Bytes that may be anything; every answer to them is one.
    fn damage_head(&mut self) -> Result<(), String> {
        let bytes = self.heads.make().to_vec();
        let mut wire = Wire::connect(self.address)?;
        // A server that has refused reads no more.
        let _ = wire.send(&bytes);
        wire.close_sending();
        self.tally.damaged += 1;
        answers(&mut wire, &bytes)
    }

    /// A whole request whose body may be anything.
    fn damage_body(&mut self) -> Result<(), String> {
        let which = self.rng.below(self.bodies.len());
        let (path, inputs) = &mut self.bodies[which];
        let body = inputs.make().to_vec();
        let mut bytes = post(path, "");
        let head = String::from_utf8_lossy(&bytes).replace("Length: 0", &format!("Length: {}", body.len()));
        bytes = [head.as_bytes(), &body].concat();
        let mut wire = Wire::connect(self.address)?;
        let _ = wire.send(&bytes);
        self.tally.damaged += 1;
        let Some(head) = wire.head()? else { return Err(format!("no answer to {:?}", show(&bytes))) };
        let status = head.status;
        // Some damage leaves a request in order that says a lot; nobody listens to all of it.
        if status >= 500 && status != 503 {
            return Err(format!("status {status} for {:?}", show(&bytes)));
        }
        Ok(())
    }

    fn pause(&mut self, most_ms: usize) {
        thread::sleep(Duration::from_millis(self.rng.below(most_ms) as u64));
    }
}

/// Reads what comes until the connection ends: whole answers, none of them a fault of the server's own.
fn answers(wire: &mut Wire, to: &[u8]) -> Result<(), String> {
    while let Some(head) = wire.head().map_err(|e| format!("{e}, to {:?}", show(to)))? {
        if matches!(head.status, 500 | 502 | 504..=599) {
            return Err(format!("status {} for {:?}", head.status, show(to)));
        }
        // The body of an answer to HEAD does not come, and of one that is cut by a half-close not all.
        if wire.body(head).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned()
}
