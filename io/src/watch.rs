//! Files that must stay as they are while a model is in use.
//!
//! A mapped page shows what is in its file now. A file that shrinks ends the process by its missing pages (see
//! [`crate::mmap`]), but its last page reads as zeros behind the end, and bytes written in place are simply other
//! weights. So whoever computes with mapped bytes asks [`FileWatch::check`] *after* it has read them and before anybody
//! sees what came of it: the system moves a file's size and time stamp before it moves its bytes.
//!
//! What counts as a change is another size or another modification time. A touched file has the same bytes, but nothing
//! cheap can tell it from a rewritten one, so it counts as changed too: a needless end with a message is better than a
//! wrong answer without one. Not noticed is a time stamp that somebody sets back by hand. Renaming another file over the
//! path is no change: the mapping keeps the old file, which is how a model is replaced under a running process.

use std::fs::{File, Metadata};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::shards::ModelFile;

/// An open file, and what it was when it was opened. Clones share the descriptor.
#[derive(Clone, Debug)]
pub(crate) struct OpenFile {
    name: String,
    file: Arc<File>,
    stamp: Stamp,
}

/// What a rewrite changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    len: u64,
    /// Where the system has one.
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(stat: &Metadata) -> Self {
        Self { len: stat.len(), modified: stat.modified().ok() }
    }
}

impl std::fmt::Display for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len)?;
        match self.modified.and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok()) {
            Some(since) => write!(f, ", modified at {}.{:09} s", since.as_secs(), since.subsec_nanos()),
            None => Ok(()),
        }
    }
}

impl OpenFile {
    /// `stat` is what the system said of `file` before its bytes were read.
    pub fn new(name: &str, file: File, stat: &Metadata) -> Self {
        Self { name: name.to_owned(), file: Arc::new(file), stamp: Stamp::of(stat) }
    }

    /// Reads from a place of the file, wherever other readers are.
    pub fn read_at(&self, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
        self.file.read_at(buffer, at)
    }

    /// Compares the file with what it was.
    ///
    /// # Errors
    /// [`Error::FileChanged`]; [`Error::Io`] if the system does not say.
    pub fn check(&self) -> Result<()> {
        let failed = |source| Error::Io { file: self.name.clone(), action: "examine", source };
        let now = Stamp::of(&self.file.metadata().map_err(failed)?);
        if now == self.stamp {
            return Ok(());
        }
        let (found, expected) = (now.to_string(), self.stamp.to_string());
        Err(Error::FileChanged { file: self.name.clone(), found, expected })
    }
}

/// The mapped files of one or more models. Files that were read into memory, and bytes of the program, cannot change
/// and are not among them. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct FileWatch(Vec<OpenFile>);

impl FileWatch {
    /// The mapped files of `models`.
    pub fn of<'a>(models: impl IntoIterator<Item = &'a ModelFile>) -> Self {
        Self(models.into_iter().flat_map(ModelFile::mapped_files).cloned().collect())
    }

    /// Whether there is nothing to watch.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Asks the system whether every file is as it was when it was opened: one call per file, about a microsecond.
    ///
    /// # Errors
    /// [`Error::FileChanged`], [`Error::Io`].
    pub fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(OpenFile::check)
    }
}
