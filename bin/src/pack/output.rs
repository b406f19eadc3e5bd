//! Outputs that are whole or absent: written under a temporary name beside the final one, synced, then renamed.
//!
//! The temporary name is `.NAME.engine-pack-partial` in the same directory, so on the same file system; what an output is
//! made of, and is not part of it, lies in `.NAME.engine-pack-head` meanwhile. Both are locked while their run lives. What
//! a killed run left is unlocked; the next run of the same output removes it.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use engine_io::digest::Sha256;
use engine_io::plain;
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with, statvfs};
use rustix::io::Errno;

use super::error::PackError;

/// Writes go out in parts of this many bytes.
const BUFFER: usize = 1 << 20;
/// Ending of the temporary name of an output.
const PARTIAL: &str = ".engine-pack-partial";
/// Ending of the name of what it is made of.
const HEAD: &str = ".engine-pack-head";

/// Longest name of a file, on every file system that models lie on.
const NAME_MAX: usize = 255;

/// What is written, until it is finished; dropped before that, it leaves nothing.
#[derive(Debug)]
pub struct Output {
    target: PathBuf,
    partial: PathBuf,
    /// Holds the lock.
    lock: Option<File>,
    directory: bool,
}

impl Output {
    /// A directory to be filled with files of `bytes` in all.
    ///
    /// # Errors
    /// [`PackError`]: the place is taken, the disk too small, or the system says no.
    pub fn directory(target: &Path, bytes: u64) -> Result<Self, PackError> {
        Self::new(target, bytes, true)
    }

    /// One file of `bytes`.
    ///
    /// # Errors
    /// As [`Self::directory`].
    pub fn file(target: &Path, bytes: u64) -> Result<Self, PackError> {
        Self::new(target, bytes, false)
    }

    /// A directory for what an output is made of, beside it; it goes with this.
    ///
    /// # Errors
    /// As [`Self::directory`].
    pub fn scratch(target: &Path) -> Result<Self, PackError> {
        Self::create(target, HEAD, 0, true)
    }

    fn new(target: &Path, bytes: u64, directory: bool) -> Result<Self, PackError> {
        Self::create(target, PARTIAL, bytes, directory)
    }

    fn create(target: &Path, kind: &str, bytes: u64, directory: bool) -> Result<Self, PackError> {
        let target = &named(target, directory)?;
        let busy = || PackError::Busy { path: target.display().to_string() };
        let partial = beside(target, kind)?;
        vacant(target)?;
        for stale in [PARTIAL, HEAD] {
            // The head of a living run may be this run's own, whose output is made now.
            if !clear(&beside(target, stale)?)? && stale == kind {
                return Err(busy());
            }
        }
        let dir = parent(target);
        space(dir, bytes)?;
        let made = if directory { fs::create_dir(&partial) } else { File::create_new(&partial).map(drop) };
        match made {
            // Another run was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(busy()),
            made => made.map_err(PackError::output(&partial, "create"))?,
        }
        let lock = lock(&partial)?.ok_or_else(busy)?;
        Ok(Self { target: target.into(), partial, lock: Some(lock), directory })
    }

    /// Where to write for now: the directory, or the file.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Where it will be.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// A writer of a new file of the directory, or of the one file.
    ///
    /// # Errors
    /// [`PackError::Output`].
    pub fn writer(&self, name: &str) -> Result<BufWriter<File>, PackError> {
        let path = if self.directory { self.partial.join(name) } else { self.partial.clone() };
        let file = if self.directory {
            File::create_new(&path)
        } else {
            File::options().write(true).truncate(true).open(&path)
        };
        Ok(BufWriter::with_capacity(BUFFER, file.map_err(PackError::output(&path, "create"))?))
    }

    /// Brings everything to the disk and gives it its name.
    ///
    /// # Errors
    /// [`PackError`]: the place was taken meanwhile, or the system says no. Nothing is left then.
    pub fn finish(mut self) -> Result<(), PackError> {
        sync(&self.partial)?;
        vacant(&self.target)?;
        let renamed = match renameat_with(CWD, &self.partial, CWD, &self.target, RenameFlags::NOREPLACE) {
            // File systems that cannot promise it: the check above must do.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => fs::rename(&self.partial, &self.target),
            other => other.map_err(io::Error::from),
        };
        match renamed {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(PackError::Exists { path: self.target.display().to_string() })
            }
            Err(source) => Err(PackError::output(&self.target, "rename the finished output to")(source)),
            Ok(()) => {
                self.lock = None;
                let dir = parent(&self.target);
                open(dir).and_then(|d| d.sync_all()).map_err(PackError::output(dir, "sync"))
            }
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.lock.is_some() {
            // Nobody is left to be told; the next run of this output removes it.
            let _ = if self.directory { fs::remove_dir_all(&self.partial) } else { fs::remove_file(&self.partial) };
        }
    }
}

/// Refuses a place where something is.
///
/// # Errors
/// [`PackError::Exists`].
pub fn vacant(target: &Path) -> Result<(), PackError> {
    match fs::symlink_metadata(target) {
        Ok(_) => Err(PackError::Exists { path: target.display().to_string() }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(PackError::output(target, "examine")(error)),
    }
}

/// Refuses a disk with less than `bytes` free.
///
/// # Errors
/// [`PackError::Space`]; [`PackError::Output`] if the directory is none.
pub fn space(dir: &Path, bytes: u64) -> Result<(), PackError> {
    let stat = statvfs(dir).map_err(|e| PackError::output(dir, "ask for the free space of")(e.into()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if bytes > free {
        return Err(PackError::Space { dir: dir.display().to_string(), needed: bytes, free });
    }
    Ok(())
}

/// The directory that an output is in.
pub fn parent(target: &Path) -> &Path {
    target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The name of an output, without what does not change it: a slash at the end, which only a directory may have.
///
/// # Errors
/// [`PackError::Usage`].
fn named(target: &Path, directory: bool) -> Result<PathBuf, PackError> {
    let text = target.as_os_str().as_encoded_bytes();
    if !directory && (text.ends_with(b"/") || text.ends_with(b"/.")) {
        let target = target.display();
        return Err(PackError::Usage(format!(
            "--out {target}: is the name of a folder, and one file is written; name that"
        )));
    }
    Ok(target.components().collect())
}

/// A temporary name beside an output.
fn beside(target: &Path, kind: &str) -> Result<PathBuf, PackError> {
    let name = target.file_name().ok_or_else(|| {
        PackError::Usage(format!("--out {}: has no last name that could be created", target.display()))
    })?;
    let mut partial = OsString::from(".");
    // The name may be as long as the file system allows, and this one is longer: then a digest stands for it.
    match name.len() + kind.len() < NAME_MAX {
        true => partial.push(name),
        false => partial.push(Sha256::of(name.as_encoded_bytes()).to_string()),
    }
    partial.push(kind);
    Ok(parent(target).join(partial))
}

/// Removes what a killed run left. `false`: its run lives.
///
/// # Errors
/// [`PackError`]: the system refuses, or what goes by the name is neither file nor directory, so that no run left it.
fn clear(partial: &Path) -> Result<bool, PackError> {
    let Ok(stat) = fs::symlink_metadata(partial) else { return Ok(true) };
    if !stat.is_dir() && !stat.is_file() {
        return Err(PackError::Exists { path: partial.display().to_string() });
    }
    let Some(lock) = lock(partial)? else {
        // Held, or gone meanwhile.
        return Ok(!plain::is_there(partial));
    };
    let is_dir = lock.metadata().map_err(PackError::output(partial, "examine"))?.is_dir();
    let removed = if is_dir { fs::remove_dir_all(partial) } else { fs::remove_file(partial) };
    removed.map_err(PackError::output(partial, "remove what an earlier run left in"))?;
    Ok(true)
}

/// Takes the lock of what goes by a name, unless somebody has it.
///
/// Whoever had it may have removed what was opened here, and a third may have made another of the same name: then this
/// lock keeps nobody out, and counts as not taken.
fn lock(path: &Path) -> Result<Option<File>, PackError> {
    let file = match open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(PackError::output(path, "open"))?,
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(source)) => return Err(PackError::output(path, "lock")(source)),
    }
    let own = file.metadata().map_err(PackError::output(path, "examine"))?;
    let named = fs::symlink_metadata(path).is_ok_and(|named| (named.dev(), named.ino()) == (own.dev(), own.ino()));
    Ok(named.then_some(file))
}

/// Opens a file or directory of ours; should something else have its name by now, does not wait for it.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed()).open(path)
}

/// Everything below `path`, files before their directory. Links are not followed: what they lead to is not ours.
fn sync(path: &Path) -> Result<(), PackError> {
    let stat = fs::symlink_metadata(path).map_err(PackError::output(path, "examine"))?;
    if stat.is_symlink() {
        return Ok(());
    }
    if stat.is_dir() {
        for entry in fs::read_dir(path).map_err(PackError::output(path, "list"))? {
            sync(&entry.map_err(PackError::output(path, "list"))?.path())?;
        }
    }
    open(path).and_then(|f| f.sync_all()).map_err(PackError::output(path, "sync"))
}

#[cfg(test)]
mod tests;
