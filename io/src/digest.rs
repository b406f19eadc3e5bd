//! SHA-256 of files, of tensors, and of a whole tensor directory, in bounded memory.
//!
//! A tensor tree digest names what a set of tensors *is*, whatever files they lie in: the digest of one line a tensor,
//! `name TAB type TAB d0xd1x.. TAB digest of its bytes LF`, lines in byte order of the names. Two sets with equal
//! digests hold the same tensors, however they are sharded and in whatever order.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;

use crate::error::{Error, Result};
use crate::gguf::TensorInfo;
use crate::plain;
use crate::shards::ModelFile;

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// A SHA-256 digest; as text 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256([u8; 32]);

/// Text that is no digest.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("\"{0}\" is no SHA-256 digest: expected 64 lower-case hexadecimal digits")]
pub struct NotADigest(String);

impl Sha256 {
    /// Of bytes in memory.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// Of everything a reader gives, and how many bytes that was. `step` is told of every part read.
    ///
    /// # Errors
    /// The reader's.
    pub fn of_reader(mut from: impl Read, mut step: impl FnMut(u64)) -> io::Result<(Self, u64)> {
        let mut hasher = sha2::Sha256::new();
        let mut buffer = vec![0; CHUNK];
        let mut bytes = 0;
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok((Self(hasher.finalize().into()), bytes)),
                Ok(n) => {
                    hasher.update(&buffer[..n]);
                    bytes += n as u64;
                    step(n as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Of a regular file, and its size.
    ///
    /// # Errors
    /// As [`plain::open`].
    pub fn of_file(path: &Path, step: impl FnMut(u64)) -> Result<(Self, u64)> {
        let (file, _) = plain::open(path)?;
        let failed = |source| Error::Io { file: path.display().to_string(), action: "read", source };
        Self::of_reader(file, step).map_err(failed)
    }

    /// Of the bytes of a tensor, read through the file and not through its mapping.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn of_tensor(model: &ModelFile, t: &TensorInfo, step: impl FnMut(u64)) -> Result<Self> {
        let failed = |source| Error::Io { file: model.name(), action: "read a tensor of", source };
        Ok(Self::of_reader(model.reader(t), step).map_err(failed)?.0)
    }
}

/// Passes bytes on to a writer and digests them.
pub struct Tee<W> {
    to: W,
    hasher: sha2::Sha256,
    bytes: u64,
}

impl<W: io::Write> Tee<W> {
    /// Before `to`.
    pub fn new(to: W) -> Self {
        Self { to, hasher: sha2::Sha256::new(), bytes: 0 }
    }

    /// The writer, the digest of what it got, and how many bytes that was.
    pub fn finish(self) -> (W, Sha256, u64) {
        (self.to, Sha256(self.hasher.finalize().into()), self.bytes)
    }
}

impl<W: io::Write> io::Write for Tee<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.to.write(bytes)?;
        self.hasher.update(&bytes[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Digests what is read through it.
pub struct Digested<R> {
    from: R,
    seen: Tee<io::Sink>,
}

impl<R: io::Read> Digested<R> {
    /// Nothing read yet.
    pub fn new(from: R) -> Self {
        Self { from, seen: Tee::new(io::sink()) }
    }

    /// Of all that was read.
    pub fn digest(self) -> Sha256 {
        self.seen.finish().1
    }
}

impl<R: io::Read> io::Read for Digested<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(buffer)?;
        io::Write::write_all(&mut self.seen, &buffer[..n])?;
        Ok(n)
    }
}

/// Lines of a tensor tree digest.
#[derive(Clone, Default, Debug)]
pub struct TensorTree(Vec<(String, String)>);

impl TensorTree {
    /// Of all tensors of a model.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn of_model(model: &ModelFile, mut step: impl FnMut(u64)) -> Result<Self> {
        let mut tree = Self::default();
        for t in model.tensors() {
            tree.push(&t.name, t, Sha256::of_tensor(model, t, &mut step)?);
        }
        Ok(tree)
    }

    /// Adds a tensor under a name that may be another than its file's.
    pub fn push(&mut self, name: &str, t: &TensorInfo, bytes: Sha256) {
        let dims: Vec<String> = t.dims().iter().map(u64::to_string).collect();
        self.0.push((name.to_owned(), format!("{name}\t{}\t{}\t{bytes}\n", t.ty.name(), dims.join("x"))));
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The digest.
    pub fn digest(&self) -> Sha256 {
        let mut lines: Vec<&(String, String)> = self.0.iter().collect();
        lines.sort();
        let mut hasher = sha2::Sha256::new();
        lines.iter().for_each(|(_, line)| hasher.update(line));
        Sha256(hasher.finalize().into())
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256({self})")
    }
}

impl FromStr for Sha256 {
    type Err = NotADigest;

    fn from_str(text: &str) -> std::result::Result<Self, NotADigest> {
        let digit = |b: u8| match b {
            b'0'..=b'9' => Some(b - b'0'),
            b'a'..=b'f' => Some(b - b'a' + 10),
            _ => None,
        };
        let not = || NotADigest(text.chars().take(80).collect());
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return Err(not());
        }
        let mut out = [0; 32];
        for (byte, [high, low]) in out.iter_mut().zip(pairs) {
            *byte = digit(*high).zip(digit(*low)).map(|(high, low)| high << 4 | low).ok_or_else(not)?;
        }
        Ok(Self(out))
    }
}

impl Serialize for Sha256 {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::TensorType;
    use std::io::Write as _;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn every_way_gives_the_same_digest() {
        assert_eq!(Sha256::of(b"abc").to_string(), ABC);
        let mut seen = 0;
        assert_eq!(Sha256::of_reader(&b"abc"[..], |n| seen += n).unwrap(), (Sha256::of(b"abc"), 3));
        assert_eq!(seen, 3);
        let mut tee = Tee::new(Vec::new());
        tee.write_all(b"ab").unwrap();
        tee.write_all(b"c").unwrap();
        assert_eq!(tee.finish(), (b"abc".to_vec(), Sha256::of(b"abc"), 3));
    }

    #[test]
    fn text_is_64_lower_case_digits() {
        assert_eq!(ABC.parse(), Ok(Sha256::of(b"abc")));
        for wrong in ["", "ba78", &ABC.to_uppercase(), &ABC.replace('b', "g"), &format!("{ABC}00"), &ABC[1..]] {
            assert!(wrong.parse::<Sha256>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_tree_is_sorted_lines() {
        let t = |name: &str, dims: &[u64]| TensorInfo::new("f", name, dims, TensorType::F32).unwrap();
        let (a, b) = (t("b.weight", &[2, 3]), t("a.weight", &[4]));
        let mut tree = TensorTree::default();
        tree.push("b.weight", &a, Sha256::of(b"abc"));
        tree.push("a.weight", &b, Sha256::of(b""));
        let text = format!("a.weight\tF32\t4\t{}\nb.weight\tF32\t2x3\t{ABC}\n", Sha256::of(b""));
        assert_eq!((tree.len(), tree.digest()), (2, Sha256::of(text.as_bytes())));
    }
}
