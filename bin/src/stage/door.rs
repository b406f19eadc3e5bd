//! Who comes to the last stage: every connection until its handshake is over, several at once, each in its own time.
//!
//! Nothing here waits, so that somebody who connects and says nothing keeps nobody else out. There is room for
//! [`GUESTS_MAX`]; whoever came first and has said nothing leaves when one more comes.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use engine::stage::wire::{self, Kind, WireError};
use mio::Interest;
use mio::net::TcpListener;

use super::conn::{Conn, ConnError, Ear, Frame};
use super::handshake::{self, Accepted, BODY_BYTES, FIRST, Key, LAST, Nonce};

/// For a whole handshake.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Handshakes at once.
pub const GUESTS_MAX: usize = 16;
/// Connections that are taken between two looks at those that are here.
const TAKEN_AT_ONCE: usize = 64;

/// What a guest has to say next.
enum Next {
    Hello,
    Offer { theirs: Nonce, mine: Nonce },
}

struct Guest {
    conn: Conn,
    peer: SocketAddr,
    until: Instant,
    next: Next,
}

/// A listener and those whose handshake is under way.
pub struct Door {
    listener: TcpListener,
    guests: VecDeque<Guest>,
    key: Key,
    accepted: Accepted,
}

impl Door {
    /// At a listener, for first stages that have `key` and fit what is `accepted`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(mut listener: TcpListener, key: Key, accepted: Accepted, ear: &mut Ear) -> io::Result<Self> {
        ear.add(&mut listener, Interest::READABLE)?;
        Ok(Self { listener, guests: VecDeque::with_capacity(GUESTS_MAX), key, accepted })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What this stage is.
    pub fn accepted(&self) -> &Accepted {
        &self.accepted
    }

    /// When to look again although nothing has happened.
    pub fn until(&self) -> Option<Instant> {
        self.guests.iter().map(|guest| guest.until).min()
    }

    /// Takes who is there, and goes on with every handshake as far as it has come. A first stage that has passed is
    /// returned, or told that it has to wait where another `is_served`.
    pub fn look(&mut self, ear: &mut Ear, is_served: bool) -> Option<(Conn, SocketAddr)> {
        self.take(ear);
        let now = Instant::now();
        let mut at = 0;
        while at < self.guests.len() {
            let guest = &mut self.guests[at];
            let step = guest.step(&self.key, &self.accepted, ear);
            if matches!(step, Ok(false)) && now < guest.until {
                at += 1;
                continue;
            }
            let Guest { mut conn, peer, .. } = self.guests.remove(at).expect("it was looked at");
            let error = match step {
                Ok(true) if !is_served => return Some((conn, peer)),
                Ok(true) => {
                    tell(&mut conn, ear, Kind::Taken, |_| {});
                    tracing::warn!(%peer, "another first stage is served; this one is told to try again");
                    continue;
                }
                Ok(false) => ConnError::Late { what: "finished its handshake", after: HANDSHAKE_TIME },
                Err(error) => error,
            };
            tracing::warn!(%peer, %error, "no handshake");
        }
        None
    }

    fn take(&mut self, ear: &mut Ear) {
        for _ in 0..TAKEN_AT_ONCE {
            let taken = match self.listener.accept() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                taken => taken.and_then(|(stream, peer)| Ok((Conn::new(stream, ear, BODY_BYTES)?, peer))),
            };
            match taken {
                Ok((conn, peer)) => {
                    if self.guests.len() == GUESTS_MAX {
                        self.make_room();
                    }
                    let until = Instant::now() + HANDSHAKE_TIME;
                    self.guests.push_back(Guest { conn, peer, until, next: Next::Hello });
                }
                Err(error) => {
                    // Such as a peer that is gone already, or no descriptor left: not at once again.
                    tracing::warn!(%error, "a connection could not be taken");
                    ear.again_after(Duration::from_millis(100));
                    return;
                }
            }
        }
        ear.again_after(Duration::ZERO);
    }

    /// The oldest leaves of those that have said nothing yet, or of all.
    fn make_room(&mut self) {
        let silent = self.guests.iter().position(|guest| matches!(guest.next, Next::Hello));
        if let Some(Guest { peer, .. }) = self.guests.remove(silent.unwrap_or(0)) {
            tracing::warn!(%peer, "too many handshakes at once; the oldest makes room");
        }
    }
}

impl Guest {
    /// Goes on as far as there are messages; whether the handshake is passed.
    fn step(&mut self, key: &Key, accepted: &Accepted, ear: &mut Ear) -> Result<bool, ConnError> {
        loop {
            let expected = match self.next {
                Next::Hello => (Kind::Hello, "Hello"),
                Next::Offer { .. } => (Kind::Offer, "Offer"),
            };
            let frame = match self.conn.read() {
                Ok(None) => return Ok(false),
                Ok(Some(frame)) => super::conn::of_kind(frame, expected)?,
                // So that a peer of another version can say what is wrong with it.
                Err(ConnError::Wire(error @ WireError::Version { .. })) => return self.refuse(ear, error.to_string()),
                Err(error) => return Err(error),
            };
            match self.next {
                Next::Hello => self.challenge(&frame, key, ear)?,
                Next::Offer { theirs, mine } => return self.judge(&frame, key, (&theirs, &mine), accepted, ear),
            }
        }
    }

    fn challenge(&mut self, frame: &Frame, key: &Key, ear: &mut Ear) -> Result<(), ConnError> {
        let (theirs, keyed) = handshake::take_hello(frame.body())?;
        if let Err(reason) = key.agrees(keyed, "stage 1", "stage 0") {
            return self.refuse(ear, reason);
        }
        let mine = handshake::nonce()?;
        let proof = key.proof(LAST, &theirs, &mine);
        let mut out = Vec::new();
        wire::frame(&mut out, Kind::Challenge, 0, |body| {
            handshake::put_greeting(body, &mine, key.is_some(), Some(&proof));
        });
        // A new socket has room for it.
        self.conn.send(&out, ear, Duration::ZERO, || Ok(()))?;
        self.next = Next::Offer { theirs, mine };
        Ok(())
    }

    fn judge(
        &mut self,
        frame: &Frame,
        key: &Key,
        (theirs, mine): (&Nonce, &Nonce),
        accepted: &Accepted,
        ear: &mut Ear,
    ) -> Result<bool, ConnError> {
        let (proof, facts) = handshake::take_offer(frame.body())?;
        if !key.check(FIRST, theirs, mine, &proof) {
            return self.refuse(ear, String::from("stage 0 has another key; give both the same --stage-key-file"));
        }
        match handshake::take_facts(facts)?.fits(&accepted.facts) {
            Ok(()) => Ok(true),
            Err(reason) => self.refuse(ear, reason),
        }
    }

    fn refuse<T>(&mut self, ear: &mut Ear, reason: String) -> Result<T, ConnError> {
        tell(&mut self.conn, ear, Kind::Refuse, |body| handshake::put_reason(body, &reason));
        Err(ConnError::Refused(reason))
    }
}

/// Sends a last frame, as far as the peer takes it at once: the connection ends anyway.
pub fn tell(conn: &mut Conn, ear: &mut Ear, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) {
    let mut out = Vec::new();
    wire::frame(&mut out, kind, 0, write);
    if let Err(error) = conn.send(&out, ear, Duration::ZERO, || Ok(())) {
        tracing::debug!(%error, "the peer was not told why");
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpStream;

    use engine::model::stage::Stage;
    use engine::step::Shape;

    use super::*;
    use crate::stage::facts::Facts;

    fn accepted() -> Accepted {
        let facts = Facts {
            program: String::new(),
            metadata: [0; 32],
            tensors: Vec::new(),
            numbers: Vec::new(),
            stage: Stage::whole(2),
        };
        let shape = Shape {
            vocab: 1,
            hidden_width: 1,
            context_train: 1,
            mtp: false,
            recurrent: false,
            hidden_rows: 0,
            checkpoint_bytes: 0,
        };
        Accepted { facts, shape, mtp: String::new() }
    }

    #[test]
    fn the_silent_make_room_and_whoever_speaks_stays() {
        let mut ear = Ear::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut door = Door::new(listener, Key::default(), accepted(), &mut ear).unwrap();
        let address = door.address().unwrap();
        let early = TcpStream::connect(address).unwrap();
        let mut speaker = TcpStream::connect(address).unwrap();
        let mut hello = Vec::new();
        wire::frame(&mut hello, Kind::Hello, 0, |body| handshake::put_greeting(body, &[7; 32], false, None));
        speaker.write_all(&hello).unwrap();
        let speaks = |door: &Door| door.guests.iter().any(|guest| matches!(guest.next, Next::Offer { .. }));
        while !speaks(&door) {
            assert!(door.look(&mut ear, false).is_none());
            ear.wait(Instant::now() + Duration::from_millis(20)).unwrap();
        }
        assert_eq!(door.guests.len(), 2);
        let silent: Vec<_> = (0..2 * GUESTS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert!(door.look(&mut ear, false).is_none());
        assert_eq!(door.guests.len(), GUESTS_MAX);
        assert!(matches!(door.guests[0].next, Next::Offer { .. }), "the one that spoke is the oldest that is left");
        drop((early, silent));
    }

    #[test]
    fn whoever_takes_too_long_leaves() {
        let mut ear = Ear::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut door = Door::new(listener, Key::default(), accepted(), &mut ear).unwrap();
        let streams = [(); 2].map(|()| TcpStream::connect(door.address().unwrap()).unwrap());
        assert!(door.look(&mut ear, false).is_none());
        assert_eq!(door.guests.len(), 2);
        door.guests[0].until = Instant::now();
        assert!(door.until() <= Some(Instant::now()), "nobody sleeps longer than that");
        assert!(door.look(&mut ear, false).is_none());
        assert_eq!(door.guests.len(), 1);
        drop(streams);
    }
}
