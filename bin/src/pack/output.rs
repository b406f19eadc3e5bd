//! Outputs that are whole or absent: written under a temporary name beside the final one, synced, then renamed.
//!
//! The temporary name is `.NAME.engine-pack-partial` in the same directory, so on the same file system. It is locked
//! while its run lives. What a killed run left is unlocked; the next run of the same output removes it.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs};
use rustix::io::Errno;

use super::error::PackError;

/// Writes go out in parts of this many bytes.
const BUFFER: usize = 1 << 20;

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

    fn new(target: &Path, bytes: u64, directory: bool) -> Result<Self, PackError> {
        let partial = partial_name(target)?;
        vacant(target)?;
        let dir = parent(target);
        let busy = || PackError::Busy { path: target.display().to_string() };
        if fs::symlink_metadata(&partial).is_ok() {
            let stale = File::open(&partial).map_err(PackError::output(&partial, "open"))?;
            lock(&stale, &partial)?.then_some(()).ok_or_else(busy)?;
            let remove: fn(&Path) -> io::Result<()> =
                if partial.is_dir() { |p| fs::remove_dir_all(p) } else { |p| fs::remove_file(p) };
            remove(&partial).map_err(PackError::output(&partial, "remove what an earlier run left in"))?;
        }
        space(dir, bytes)?;
        let file = match directory {
            true => fs::create_dir(&partial).and_then(|()| File::open(&partial)),
            false => File::create_new(&partial),
        };
        let file = file.map_err(PackError::output(&partial, "create"))?;
        if !lock(&file, &partial)? {
            return Err(busy());
        }
        Ok(Self { target: target.into(), partial, lock: Some(file), directory })
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
                File::open(dir).and_then(|d| d.sync_all()).map_err(PackError::output(dir, "sync"))
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

fn partial_name(target: &Path) -> Result<PathBuf, PackError> {
    let name = target.file_name().ok_or_else(|| {
        PackError::Usage(format!("--out {}: has no last name that could be created", target.display()))
    })?;
    let mut partial = OsString::from(".");
    partial.push(name);
    partial.push(".engine-pack-partial");
    Ok(parent(target).join(partial))
}

/// Takes the lock, unless somebody has it.
fn lock(file: &File, path: &Path) -> Result<bool, PackError> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(source)) => Err(PackError::output(path, "lock")(source)),
    }
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
    File::open(path).and_then(|f| f.sync_all()).map_err(PackError::output(path, "sync"))
}

#[cfg(test)]
mod tests;
