//! One connection: frames in and out over a socket that never blocks, each with a deadline.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::stage::wire::{HEADER_BYTES, Header, Kind, WireError};
use mio::event::Source;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};

/// Bytes of one read.
pub const READ_BYTES: usize = 1 << 18;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum ConnError {
    /// The system.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side.
    #[error("the peer has closed the connection")]
    Closed,
    /// Nothing came in time.
    #[error("the peer has not {what} within {} s", .after.as_secs_f32())]
    Late {
        /// What it should have done.
        what: &'static str,
        /// The time it had.
        after: Duration,
    },
    /// What came is no message.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// The two sides do not belong together.
    #[error("{0}")]
    Refused(String),
    /// It is in order, and has a first stage already.
    #[error("the other stage serves another first stage at present")]
    Taken,
    /// This process ends.
    #[error("this process ends")]
    Stopped,
}

impl ConnError {
    /// Whether trying again cannot help: somebody has to change something.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Wire(WireError::Version { .. }))
    }
}

/// What a thread listens to: a few sockets, and a way to be woken.
pub struct Ear {
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
    next: usize,
    /// The next wait ends by then.
    again: Option<Instant>,
}

impl Ear {
    /// Hears nothing but its waker.
    ///
    /// # Errors
    /// If the system gives no poll.
    pub fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), Token(0))?);
        Ok(Self { poll, events: Events::with_capacity(16), waker, next: 1, again: None })
    }

    /// Wakes whoever waits.
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Listens to a socket from now on.
    ///
    /// # Errors
    /// The system's.
    pub fn add(&mut self, socket: &mut impl Source, interest: Interest) -> io::Result<()> {
        self.next += 1;
        self.poll.registry().register(socket, Token(self.next), interest)
    }

    /// The next wait is no longer than this: something is left to do although no socket will tell.
    pub fn again_after(&mut self, time: Duration) {
        self.again = Some(Instant::now() + time);
    }

    /// Returns when something may have happened, at `until` at the latest.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&mut self, until: Instant) -> io::Result<()> {
        let until = self.again.take().map_or(until, |again| until.min(again));
        let left = until.saturating_duration_since(Instant::now());
        match self.poll.poll(&mut self.events, Some(left)) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            other => other,
        }
    }
}

/// A whole frame.
#[derive(Debug)]
pub struct Frame {
    /// Its header.
    pub header: Header,
    bytes: Vec<u8>,
}

impl Frame {
    /// Its body.
    pub fn body(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..]
    }
}

/// A connected socket and the bytes that have come.
pub struct Conn {
    stream: TcpStream,
    input: Vec<u8>,
    header: Option<Header>,
    buffer: Vec<u8>,
    /// Bytes of the longest body that is taken.
    pub most: usize,
}

impl Conn {
    /// Of an accepted socket.
    ///
    /// # Errors
    /// The system's.
    pub fn new(mut stream: TcpStream, ear: &mut Ear, most: usize) -> io::Result<Self> {
        ear.add(&mut stream, Interest::READABLE | Interest::WRITABLE)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, input: Vec::new(), header: None, buffer: vec![0; READ_BYTES], most })
    }

    /// Connects. `meanwhile` is called after every wait.
    ///
    /// # Errors
    /// [`ConnError`]
    pub fn open(
        address: SocketAddr,
        ear: &mut Ear,
        most: usize,
        patience: Duration,
        mut meanwhile: impl FnMut() -> Result<(), ConnError>,
    ) -> Result<Self, ConnError> {
        let deadline = Instant::now() + patience;
        let mut stream = TcpStream::connect(address)?;
        ear.add(&mut stream, Interest::READABLE | Interest::WRITABLE)?;
        loop {
            if let Some(error) = stream.take_error()? {
                return Err(error.into());
            }
            match stream.peer_addr() {
                Ok(_) => break,
                Err(e) if e.kind() == io::ErrorKind::NotConnected => {}
                Err(e) => return Err(e.into()),
            }
            if Instant::now() >= deadline {
                return Err(ConnError::Late { what: "taken the connection", after: patience });
            }
            ear.wait(deadline)?;
            meanwhile()?;
        }
        stream.set_nodelay(true)?;
        Ok(Self { stream, input: Vec::new(), header: None, buffer: vec![0; READ_BYTES], most })
    }

    /// The next frame, if it is here whole.
    ///
    /// # Errors
    /// [`ConnError`]; what is no frame, as soon as that can be told.
    pub fn read(&mut self) -> Result<Option<Frame>, ConnError> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(ConnError::Closed),
                Ok(n) => self.input.extend_from_slice(&self.buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// A frame off the bytes that have come.
    fn take(&mut self) -> Result<Option<Frame>, ConnError> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let Some(bytes) = self.input.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
                *self.header.insert(Header::read(bytes, self.most)?)
            }
        };
        let end = HEADER_BYTES + header.len;
        if self.input.len() < end {
            return Ok(None);
        }
        let rest = self.input.split_off(end);
        let bytes = std::mem::replace(&mut self.input, rest);
        self.header = None;
        header.check_body(&bytes[HEADER_BYTES..])?;
        Ok(Some(Frame { header, bytes }))
    }

    /// Waits for the next frame. `meanwhile` is called after every wait.
    ///
    /// # Errors
    /// [`ConnError`]
    pub fn receive(
        &mut self,
        ear: &mut Ear,
        patience: Duration,
        mut meanwhile: impl FnMut() -> Result<(), ConnError>,
    ) -> Result<Frame, ConnError> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(frame) = self.read()? {
                return Ok(frame);
            }
            if Instant::now() >= deadline {
                return Err(ConnError::Late { what: "answered", after: patience });
            }
            ear.wait(deadline)?;
            meanwhile()?;
        }
    }

    /// Waits for a frame of one kind; a refusal in its place is an error with the peer's words.
    ///
    /// # Errors
    /// [`ConnError`]
    pub fn expect(
        &mut self,
        kind: Kind,
        name: &'static str,
        ear: &mut Ear,
        patience: Duration,
        meanwhile: impl FnMut() -> Result<(), ConnError>,
    ) -> Result<Frame, ConnError> {
        of_kind(self.receive(ear, patience, meanwhile)?, (kind, name))
    }

    /// Writes a whole frame. `meanwhile` is called after every wait.
    ///
    /// # Errors
    /// [`ConnError`]
    pub fn send(
        &mut self,
        frame: &[u8],
        ear: &mut Ear,
        patience: Duration,
        mut meanwhile: impl FnMut() -> Result<(), ConnError>,
    ) -> Result<(), ConnError> {
        let deadline = Instant::now() + patience;
        let mut sent = 0;
        while sent < frame.len() {
            match self.stream.write(&frame[sent..]) {
                Ok(0) => return Err(ConnError::Closed),
                Ok(n) => sent += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if Instant::now() >= deadline {
                        return Err(ConnError::Late { what: "taken what was sent", after: patience });
                    }
                    ear.wait(deadline)?;
                    meanwhile()?;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

/// A frame that is of one kind; a refusal in its place is an error with the peer's words.
///
/// # Errors
/// [`ConnError`]
pub fn of_kind(frame: Frame, (kind, name): (Kind, &'static str)) -> Result<Frame, ConnError> {
    match frame.header.kind {
        found if found == kind => Ok(frame),
        Kind::Refuse => Err(ConnError::Refused(super::handshake::take_reason(frame.body())?)),
        Kind::Taken => Err(ConnError::Taken),
        found => Err(WireError::Unexpected { found, expected: name }.into()),
    }
}
