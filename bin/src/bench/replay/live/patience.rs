//! How long a server may say nothing of use. Bytes alone are no answer: comments and empty events keep a connection open
//! for ever, and so does a line that comes byte by byte.

use std::cell::Cell;
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// Time that is left to a server.
pub struct Patience {
    timeout: Duration,
    since: Cell<Instant>,
}

impl Patience {
    /// From now on.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, since: Cell::new(Instant::now()) }
    }

    /// Something of use came.
    pub fn renew(&self) {
        self.since.set(Instant::now());
    }
}

/// A reader that ends with [`io::ErrorKind::TimedOut`] when patience does. A read that waits itself has its own limit.
pub struct Patient<'a, R> {
    input: R,
    patience: &'a Patience,
}

impl<'a, R> Patient<'a, R> {
    /// Reads `input` as long as there is patience.
    pub fn new(input: R, patience: &'a Patience) -> Self {
        Self { input, patience }
    }
}

impl<R: Read> Read for Patient<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.input.read(buffer)?;
        match self.patience.since.get().elapsed() > self.patience.timeout {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(n),
        }
    }
}
