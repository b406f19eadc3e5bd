//! The one way to open a file that somebody names: it is a regular file, or an error says what it is.
//!
//! Anything else in its place keeps a reader waiting or has no end: a pipe that nobody writes to, a device. So nothing but
//! a regular file is opened (opening alone makes some devices act), and should one take its place in between, opening
//! does not wait for it.

use std::fs::{self, File, FileType, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::json;

/// Opens a regular file for reading, and says what the system says of it.
///
/// # Errors
/// [`Error::Io`]; [`Error::BrokenLink`]; [`Error::NotAFile`] for folders, pipes, sockets and devices.
pub fn open(path: &Path) -> Result<(File, Metadata)> {
    let failed = |action| move |source| Error::Io { file: path.display().to_string(), action, source };
    let regular = |stat: Metadata| match what(stat.file_type()) {
        None => Ok(stat),
        Some(found) => Err(Error::NotAFile { file: path.display().to_string(), found }),
    };
    regular(stat(path)?)?;
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    let file = file.map_err(failed("open"))?;
    let stat = regular(file.metadata().map_err(failed("examine"))?)?;
    Ok((file, stat))
}

/// The bytes of a regular file that has at most `most` of them.
///
/// # Errors
/// As [`open`]; [`Error::TooLong`].
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let name = || path.display().to_string();
    let (file, stat) = open(path)?;
    let too_long = |found| Err(Error::TooLong { file: name(), found, most });
    if stat.len() > most {
        return too_long(stat.len());
    }
    let mut bytes = Vec::new();
    // It may grow while it is read, and files of the system's own say that they have no bytes.
    let read = file.take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|source| Error::Io { file: name(), action: "read", source })?;
    if bytes.len() as u64 > most { too_long(bytes.len() as u64) } else { Ok(bytes) }
}

/// The text of a regular file of at most `most` bytes.
///
/// # Errors
/// As [`read`]; [`Error::Io`] for bytes that are no text.
pub fn text(path: &Path, most: u64) -> Result<String> {
    String::from_utf8(read(path, most)?).map_err(|error| {
        let source = io::Error::new(io::ErrorKind::InvalidData, error.utf8_error());
        Error::Io { file: path.display().to_string(), action: "read as UTF-8", source }
    })
}

/// The JSON document that a regular file of at most `most` bytes holds, and its bytes.
///
/// # Errors
/// As [`read`]; [`Error::Json`], naming `what` was expected, for what is no JSON, has a key twice, or other fields.
pub fn json<T: DeserializeOwned>(path: &Path, most: u64, what: &'static str) -> Result<(T, Vec<u8>)> {
    let bytes = read(path, most)?;
    match json::parse(&bytes) {
        Ok(value) => Ok((value, bytes)),
        Err(source) => Err(Error::Json { file: path.display().to_string(), what, source }),
    }
}

/// Whether anything goes by a name, be it a link that leads nowhere: what is there and cannot be read is an error, not
/// absent.
pub fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Kind and size of what a path leads to.
///
/// # Errors
/// [`Error::Io`], [`Error::BrokenLink`].
pub fn stat(path: &Path) -> Result<Metadata> {
    fs::metadata(path).map_err(|source| {
        let file = path.display().to_string();
        match fs::read_link(path) {
            Ok(target) if source.kind() == io::ErrorKind::NotFound => {
                Error::BrokenLink { file, target: target.display().to_string() }
            }
            _ => Error::Io { file, action: "open", source },
        }
    })
}

/// What something is that is no regular file.
fn what(kind: FileType) -> Option<&'static str> {
    match kind {
        kind if kind.is_file() => None,
        kind if kind.is_dir() => Some("a folder"),
        kind if kind.is_fifo() => Some("a pipe"),
        kind if kind.is_socket() => Some("a socket"),
        _ => Some("a device"),
    }
}

#[cfg(test)]
mod tests;
