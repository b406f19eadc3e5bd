//! Bytes that are made a piece at a time, as something to read: bounded memory, whatever there is in all.

use std::io::{self, Read};

/// Reads what `make` puts into the empty buffer that it is given, then what it puts there next. Where it puts nothing is
/// the end.
pub fn made(make: impl FnMut(&mut Vec<u8>) -> io::Result<()>) -> impl Read {
    Made { make, ready: Vec::new(), taken: 0 }
}

struct Made<F> {
    make: F,
    ready: Vec<u8>,
    taken: usize,
}

impl<F: FnMut(&mut Vec<u8>) -> io::Result<()>> Read for Made<F> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.ready.len() {
            self.ready.clear();
            self.taken = 0;
            (self.make)(&mut self.ready)?;
        }
        let n = to.len().min(self.ready.len() - self.taken);
        to[..n].copy_from_slice(&self.ready[self.taken..self.taken + n]);
        self.taken += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_in_any_portions() {
        let all: Vec<u8> = (0..100).collect();
        for (piece, portion) in [(7, 1), (7, 3), (7, 7), (7, 64), (1, 5), (100, 9), (200, 200)] {
            let mut left = &all[..];
            let mut reader = made(|ready| {
                assert!(ready.is_empty(), "what was there has been read");
                let (now, rest) = left.split_at(piece.min(left.len()));
                ready.extend_from_slice(now);
                left = rest;
                Ok(())
            });
            let (mut found, mut buffer) = (Vec::new(), vec![0; portion]);
            loop {
                match reader.read(&mut buffer).unwrap() {
                    0 => break,
                    n => found.extend_from_slice(&buffer[..n]),
                }
            }
            assert_eq!(found, all, "{piece} by {portion}");
        }
    }

    #[test]
    fn a_failure_is_passed_on() {
        let mut reader = made(|_| Err(io::Error::other("no more")));
        assert_eq!(reader.read(&mut [0; 4]).unwrap_err().to_string(), "no more");
    }
}
