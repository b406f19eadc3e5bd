//! Body framing: bytes of the connection in, bytes of the body out, one decoder per request.

use super::head::Framing;
use crate::serve::limits;

/// Why a body cannot be read. The connection is out of step afterwards and ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BodyError(pub &'static str);

/// Where the decoder stands. Bytes are consumed in order; what follows the body is left to the next request.
#[derive(Debug)]
pub(crate) enum Decoder {
    Length(u64),
    Chunked(Chunked),
}

#[derive(Debug, Default)]
pub(crate) struct Chunked {
    state: State,
    /// Bytes of extensions so far, over all chunks.
    extension_bytes: usize,
    trailer_bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Size { value: u64, digits: u8 },
    Extension { value: u64 },
    SizeLf { value: u64 },
    Data { left: u64 },
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

impl Default for State {
    fn default() -> Self {
        Self::Size { value: 0, digits: 0 }
    }
}

impl Decoder {
    pub(crate) fn new(framing: Framing) -> Self {
        match framing {
            Framing::None => Self::Length(0),
            Framing::Length(n) => Self::Length(n),
            Framing::Chunked => Self::Chunked(Chunked::default()),
        }
    }

    /// Whether the whole body has been read.
    pub(crate) fn done(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunked) => chunked.state == State::Done,
        }
    }

    /// Bytes of the body that are announced and have not come: of the whole body, or of the chunk being read.
    pub(crate) fn announced(&self) -> u64 {
        match self {
            Self::Length(left) => *left,
            Self::Chunked(chunked) => match chunked.state {
                State::Extension { value } | State::SizeLf { value } => value,
                State::Data { left } => left,
                _ => 0,
            },
        }
    }

    /// Consumes a prefix of `input` and hands body bytes to `take`; returns the bytes consumed.
    pub(crate) fn feed(&mut self, input: &[u8], mut take: impl FnMut(&[u8])) -> Result<usize, BodyError> {
        match self {
            Self::Length(left) => {
                let n = (*left).min(input.len() as u64) as usize;
                take(&input[..n]);
                *left -= n as u64;
                Ok(n)
            }
            Self::Chunked(chunked) => chunked.feed(input, take),
        }
    }
}

impl Chunked {
    fn feed(&mut self, input: &[u8], mut take: impl FnMut(&[u8])) -> Result<usize, BodyError> {
        let mut at = 0;
        while at < input.len() && self.state != State::Done {
            if let State::Data { left } = self.state {
                let n = left.min((input.len() - at) as u64) as usize;
                take(&input[at..at + n]);
                at += n;
                let left = left - n as u64;
                self.state = if left == 0 { State::DataCr } else { State::Data { left } };
                continue;
            }
            self.state = self.step(input[at])?;
            at += 1;
        }
        Ok(at)
    }

    /// One byte of the framing around the data.
    fn step(&mut self, byte: u8) -> Result<State, BodyError> {
        let lf = |next: State| if byte == b'\n' { Ok(next) } else { Err(BodyError("a chunk line lacks its LF")) };
        match self.state {
            State::Size { value, digits } => match ((byte as char).to_digit(16), byte) {
                (Some(_), _) if digits == 16 => Err(BodyError("a chunk size has more than 16 digits")),
                (Some(digit), _) => Ok(State::Size { value: value << 4 | u64::from(digit), digits: digits + 1 }),
                (None, _) if digits == 0 => Err(BodyError("a chunk size is not hexadecimal")),
                (None, b'\r') => Ok(State::SizeLf { value }),
                (None, b';' | b' ' | b'\t') => Ok(State::Extension { value }),
                _ => Err(BodyError("a chunk size is not hexadecimal")),
            },
            State::Extension { value } => match byte {
                b'\r' => Ok(State::SizeLf { value }),
                b'\n' => Err(BodyError("a chunk extension ends in LF without CR")),
                _ => {
                    self.extension_bytes += 1;
                    if self.extension_bytes > limits::CHUNK_EXTRA_BYTES {
                        return Err(BodyError("chunk extensions are too long"));
                    }
                    Ok(State::Extension { value })
                }
            },
            State::SizeLf { value } => lf(if value == 0 { State::TrailerStart } else { State::Data { left: value } }),
            State::DataCr if byte == b'\r' => Ok(State::DataLf),
            State::DataCr => Err(BodyError("chunk data is longer than its size")),
            State::DataLf => lf(State::default()),
            State::TrailerStart if byte == b'\r' => Ok(State::EndLf),
            State::TrailerStart | State::Trailer => match byte {
                b'\r' => Ok(State::TrailerLf),
                b'\n' => Err(BodyError("a trailer ends in LF without CR")),
                _ => {
                    self.trailer_bytes += 1;
                    if self.trailer_bytes > limits::CHUNK_EXTRA_BYTES {
                        return Err(BodyError("trailers are too long"));
                    }
                    Ok(State::Trailer)
                }
            },
            State::TrailerLf => lf(State::TrailerStart),
            State::EndLf => lf(State::Done),
            State::Data { .. } | State::Done => unreachable!("handled by feed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(framing: Framing, wire: &[u8], piece: usize) -> Result<(Vec<u8>, usize, bool), BodyError> {
        let mut decoder = Decoder::new(framing);
        let (mut body, mut used) = (Vec::new(), 0);
        for part in wire.chunks(piece) {
            let n = decoder.feed(part, |b| body.extend_from_slice(b))?;
            used += n;
            if n < part.len() {
                break;
            }
        }
        Ok((body, used, decoder.done()))
    }

    #[test]
    fn chunks_of_any_cut_give_the_body_and_leave_the_rest() {
        let mut wire = Vec::new();
        for byte in b"{\"a\":1}" {
            wire.extend_from_slice(&[b'1', b';', b'x', b'=', b'y', b'\r', b'\n', *byte, b'\r', b'\n']);
        }
        wire.extend_from_slice(b"0\r\nX-T: 1\r\n\r\n");
        let end = wire.len();
        wire.extend_from_slice(b"GET /");
        for piece in 1..wire.len() {
            let (body, used, done) = decode(Framing::Chunked, &wire, piece).unwrap();
            assert_eq!((body.as_slice(), done), (&b"{\"a\":1}"[..], true));
            assert_eq!(used, end, "cut {piece}");
        }
    }

    #[test]
    fn malformed_chunks_are_refused() {
        for wire in [
            &b"G\r\n"[..],
            b"\r\n",
            b"10000000000000000\r\n",
            b"1\nx",
            b"1\r\nxy\r\n",
            b"2\r\nx\r\n0\r\n\r\n",
            b"1;a\nx",
            b"0\r\nX: y\n\r\n",
            b"-1\r\n",
        ] {
            assert!(decode(Framing::Chunked, wire, 1).is_err(), "{wire:?} was accepted");
        }
        let endless = [&b"1;"[..], &vec![b'a'; limits::CHUNK_EXTRA_BYTES + 1]].concat();
        assert!(decode(Framing::Chunked, &endless, 4096).is_err());
        let endless = [&b"0\r\n"[..], &vec![b'a'; limits::CHUNK_EXTRA_BYTES + 1]].concat();
        assert!(decode(Framing::Chunked, &endless, 4096).is_err());
    }

    #[test]
    fn a_chunk_says_at_once_how_long_it_is() {
        for (wire, announced) in [
            (&b"FFFFFFFFFFFFFFFF\r"[..], u64::MAX),
            (b"FFFFFFFFFFFFFFFF\r\n", u64::MAX),
            (b"ffffffffffffffff;x", u64::MAX),
            (b"5\r\nabc", 2),
            (b"5\r\nabcde\r\n", 0),
            (b"5", 0),
        ] {
            let mut decoder = Decoder::new(Framing::Chunked);
            decoder.feed(wire, |_| ()).unwrap();
            assert_eq!(decoder.announced(), announced, "{wire:?}");
        }
        assert_eq!(Decoder::new(Framing::Length(7)).announced(), 7);
    }

    #[test]
    fn length_leaves_what_follows() {
        let (body, used, done) = decode(Framing::Length(3), b"abcdef", 6).unwrap();
        assert_eq!((body.as_slice(), used, done), (&b"abc"[..], 3, true));
        assert!(Decoder::new(Framing::None).done());
    }
}
