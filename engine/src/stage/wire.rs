//! Frames: a fixed header and a body of little-endian columns. Pure functions between values and bytes.
//!
//! ```text
//! 0      4        6     8         16      20          24            28
//! magic  version  kind  sequence  length  body check  header check  0     then `length` bytes of body
//! ```
//!
//! Bytes may come from anywhere: whatever they are, the answer is a value or a [`WireError`]. No length is believed
//! before the bytes it announces are there, and none is accepted above what both ends agreed on.

use crate::ids::{PageId, StateSlot, TokenId};

/// First bytes of a frame.
pub const MAGIC: [u8; 4] = *b"SLST";
/// Of the header and of every body. A peer of another version is told so and refused.
pub const VERSION: u16 = 6;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Kind {
    /// First stage: who it is, and a nonce.
    Hello = 1,
    /// Last stage: its nonce, and the proof that it has the key.
    Challenge = 2,
    /// First stage: its proof, and what it runs.
    Offer = 3,
    /// Last stage: what it runs.
    Accept = 4,
    /// Either, instead of an answer: why not.
    Refuse = 5,
    /// First stage: work.
    Request = 6,
    /// Last stage: what came of it.
    Reply = 7,
    /// First stage: are you there? Its number is 1 while a step is being run, of which requests may follow, else 0.
    Ping = 8,
    /// Last stage: yes.
    Pong = 9,
    /// Last stage: it ends as soon as nothing runs.
    Closing = 10,
    /// Last stage, instead of `Accept`: all is well, but it serves another first stage.
    Taken = 11,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Hello,
        Self::Challenge,
        Self::Offer,
        Self::Accept,
        Self::Refuse,
        Self::Request,
        Self::Reply,
        Self::Ping,
        Self::Pong,
        Self::Closing,
        Self::Taken,
    ];
}

/// Why bytes are no message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// Something else speaks there.
    #[error("a frame begins with {found:02x?}, expected {MAGIC:02x?}: the peer is no stage of this engine")]
    Magic {
        /// First bytes.
        found: [u8; 4],
    },
    /// Another version of this program.
    #[error(
        "the peer speaks version {found} of the stage protocol, this program {VERSION}; run the same version on both sides"
    )]
    Version {
        /// The peer's.
        found: u16,
    },
    /// A kind of frame that there is not.
    #[error("a frame of kind {found} does not exist")]
    Kind {
        /// Its number.
        found: u16,
    },
    /// A frame where another should be.
    #[error("a frame {found:?} came where {expected} was expected")]
    Unexpected {
        /// What came.
        found: Kind,
        /// What should have come.
        expected: &'static str,
    },
    /// A number above what was agreed.
    #[error("{what} is {found}, at most {most} was agreed")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// As announced.
        found: u64,
        /// As agreed.
        most: u64,
    },
    /// The body ends too early.
    #[error("the frame ends within {what}")]
    Short {
        /// What is cut.
        what: &'static str,
    },
    /// The body goes on behind its end.
    #[error("{bytes} bytes follow the end of the message")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// Bytes were changed on the way.
    #[error("the check sum of the {part} does not fit; bytes were changed on the way")]
    Check {
        /// Header or body.
        part: &'static str,
    },
    /// An answer to another question, or a question that is not the next.
    #[error("the frame has number {found}, expected {expected}")]
    Sequence {
        /// As found.
        found: u64,
        /// As asked.
        expected: u64,
    },
    /// Values that contradict each other.
    #[error("{what}: {reason}")]
    Bad {
        /// The column.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
}

impl WireError {
    /// [`Self::Bad`].
    pub fn bad(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Bad { what, reason: reason.into() }
    }
}

/// A header that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// Requests of a connection count up from 1, and an answer has the number of its request; 0 before the first.
    pub sequence: u64,
    /// Bytes of the body.
    pub len: usize,
    check: u32,
}

impl Header {
    /// Reads a header; `most` is the longest body that was agreed on.
    ///
    /// # Errors
    /// [`WireError`]. The version is looked at before anything that a version may change.
    pub fn read(bytes: &[u8; HEADER_BYTES], most: usize) -> Result<Self, WireError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..4] != MAGIC {
            return Err(WireError::Magic { found: [bytes[0], bytes[1], bytes[2], bytes[3]] });
        }
        if half(4) != VERSION {
            return Err(WireError::Version { found: half(4) });
        }
        if word(24) != crc32fast::hash(&bytes[..24]) || word(28) != 0 {
            return Err(WireError::Check { part: "header" });
        }
        let found = half(6);
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u16 == found).ok_or(WireError::Kind { found })?;
        let len = word(16) as usize;
        if len > most {
            return Err(WireError::TooMuch { what: "the length of a frame", found: len as u64, most: most as u64 });
        }
        let sequence = u64::from(word(8)) | u64::from(word(12)) << 32;
        Ok(Self { kind, sequence, len, check: word(20) })
    }

    /// Compares a body with its check sum.
    ///
    /// # Errors
    /// [`WireError::Check`], [`WireError::Short`].
    pub fn check_body(&self, body: &[u8]) -> Result<(), WireError> {
        if body.len() != self.len {
            return Err(WireError::Short { what: "the body" });
        }
        if crc32fast::hash(body) != self.check {
            return Err(WireError::Check { part: "body" });
        }
        Ok(())
    }
}

/// Overwrites `out` with a frame whose body `write` appends.
///
/// # Panics
/// If the body has 4 GiB or more: limits keep it far below.
pub fn frame(out: &mut Vec<u8>, kind: Kind, sequence: u64, write: impl FnOnce(&mut Vec<u8>)) {
    out.clear();
    out.resize(HEADER_BYTES, 0);
    write(out);
    let (header, body) = out.split_at_mut(HEADER_BYTES);
    let len = u32::try_from(body.len()).expect("a body is bounded");
    header[..4].copy_from_slice(&MAGIC);
    header[4..6].copy_from_slice(&VERSION.to_le_bytes());
    header[6..8].copy_from_slice(&(kind as u16).to_le_bytes());
    header[8..16].copy_from_slice(&sequence.to_le_bytes());
    header[16..20].copy_from_slice(&len.to_le_bytes());
    header[20..24].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    let check = crc32fast::hash(&header[..24]);
    header[24..28].copy_from_slice(&check.to_le_bytes());
}

/// Appends values to a body.
pub trait Put {
    /// A byte.
    fn put_u8(&mut self, x: u8);
    /// Four bytes.
    fn put_u32(&mut self, x: u32);
    /// Eight bytes.
    fn put_u64(&mut self, x: u64);
    /// The bits of a float.
    fn put_f32(&mut self, x: f32) {
        self.put_u32(x.to_bits());
    }
    /// A length and as many words.
    fn put_words(&mut self, words: impl ExactSizeIterator<Item = u32>);
    /// A length and as many bytes.
    fn put_bytes(&mut self, bytes: &[u8]);
    /// A length and as many floats.
    fn put_floats(&mut self, floats: &[f32]) {
        self.put_words(floats.iter().map(|x| x.to_bits()));
    }
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, x: u8) {
        self.push(x);
    }

    fn put_u32(&mut self, x: u32) {
        self.extend_from_slice(&x.to_le_bytes());
    }

    fn put_u64(&mut self, x: u64) {
        self.extend_from_slice(&x.to_le_bytes());
    }

    fn put_words(&mut self, words: impl ExactSizeIterator<Item = u32>) {
        self.put_u32(words.len() as u32);
        let start = self.len();
        self.resize(start + 4 * words.len(), 0);
        for (to, word) in self[start..].chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_u32(bytes.len() as u32);
        self.extend_from_slice(bytes);
    }
}

/// A column of ids as words.
pub trait Id: Copy {
    /// Its number.
    fn word(self) -> u32;
    /// Of a number.
    fn of(word: u32) -> Self;
}

macro_rules! id {
    ($($name:ident),*) => {$(
        impl Id for $name {
            fn word(self) -> u32 {
                self.0
            }
            fn of(word: u32) -> Self {
                Self(word)
            }
        }
    )*};
}

id!(TokenId, PageId, StateSlot);

/// Appends a column of ids.
pub fn put_ids<T: Id>(out: &mut Vec<u8>, ids: &[T]) {
    out.put_words(ids.iter().map(|id| id.word()));
}

/// Takes values off a body.
pub struct Take<'a>(&'a [u8]);

impl<'a> Take<'a> {
    /// From the beginning of `body`.
    pub fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    fn some(&mut self, bytes: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.0.split_at_checked(bytes).ok_or(WireError::Short { what })?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let bytes = self.some(N, what)?;
        Ok(std::array::from_fn(|i| bytes[i]))
    }

    /// A byte.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        Ok(self.array::<1>(what)?[0])
    }

    /// A byte that is 0 or 1.
    ///
    /// # Errors
    /// [`WireError::Short`], [`WireError::Bad`].
    pub fn flag(&mut self, what: &'static str) -> Result<bool, WireError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            x => Err(WireError::bad(what, format!("is {x}, expected 0 or 1"))),
        }
    }

    /// Four bytes.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// The bits of a float.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn f32(&mut self, what: &'static str) -> Result<f32, WireError> {
        self.u32(what).map(f32::from_bits)
    }

    /// A length of items of `bytes` each, at most `most` of them, all of which are there.
    ///
    /// # Errors
    /// [`WireError::Short`], [`WireError::TooMuch`].
    pub fn count(&mut self, what: &'static str, most: usize, bytes: usize) -> Result<usize, WireError> {
        let n = self.u32(what)? as usize;
        if n > most {
            return Err(WireError::TooMuch { what, found: n as u64, most: most as u64 });
        }
        if n.checked_mul(bytes).is_none_or(|all| all > self.0.len()) {
            return Err(WireError::Short { what });
        }
        Ok(n)
    }

    /// A length and as many words.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn words<T>(&mut self, what: &'static str, most: usize, of: impl Fn(u32) -> T) -> Result<Vec<T>, WireError> {
        let n = self.count(what, most, 4)?;
        let bytes = self.some(4 * n, what)?;
        Ok(bytes.chunks_exact(4).map(|b| of(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect())
    }

    /// A length and as many bytes.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn bytes(&mut self, what: &'static str, most: usize) -> Result<&'a [u8], WireError> {
        let n = self.count(what, most, 1)?;
        self.some(n, what)
    }

    /// A length and as many bytes of text; what is no UTF-8 in it is replaced, and what a terminal would obey is escaped:
    /// it is shown before anybody knows who sent it.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn text(&mut self, what: &'static str, most: usize) -> Result<String, WireError> {
        let text = String::from_utf8_lossy(self.bytes(what, most)?);
        let mut out = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '"' | '\'' => out.push(c),
                c => out.extend(c.escape_debug()),
            }
        }
        Ok(out)
    }

    /// Nothing may follow.
    ///
    /// # Errors
    /// [`WireError::Trailing`].
    pub fn end(self) -> Result<(), WireError> {
        match self.0.len() {
            0 => Ok(()),
            bytes => Err(WireError::Trailing { bytes }),
        }
    }
}
