//! Getting a shard that stays as it is into the new set, without copying it where that can be helped.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use clap::ValueEnum;
use engine_io::plain;
use rustix::io::Errno;
use serde::Serialize;

use crate::pack::error::PackError;

/// Ways to do it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// A clone where the file system can, else a hard link, else an error: never a copy of all bytes.
    Auto,
    /// A hard link: the same file under another name.
    Hard,
    /// A clone: a file of its own that shares blocks until one of both is written.
    Reflink,
    /// A copy of all bytes.
    Copy,
    /// A symbolic link to the real file.
    Symlink,
}

const OTHERS: &str = "--link symlink (breaks when the source is removed) or --link copy (takes the space again)";

/// What can be told before anything is written: links do not cross file systems. Gives notices.
///
/// # Errors
/// [`PackError`].
pub fn check(sources: &[&Path], dir: &Path, link: Link) -> Result<Vec<String>, PackError> {
    let here = fs::metadata(dir).map_err(PackError::output(dir, "examine"))?.dev();
    let mut notices = Vec::new();
    for source in sources {
        let there = fs::metadata(source).map_err(PackError::output(source, "examine"))?.dev();
        if here == there {
            continue;
        }
        match link {
            Link::Auto | Link::Hard => return Err(crosses(source, dir)),
            Link::Copy => {
                notices.push(format!("{} is on another file system: all its bytes are copied", source.display()))
            }
            Link::Reflink | Link::Symlink => {}
        }
    }
    Ok(notices)
}

fn crosses(source: &Path, dir: &Path) -> PackError {
    PackError::Refused(format!(
        "{}: is on another file system than {}, and a link cannot cross; give an --out on the same one, {OTHERS}",
        source.display(),
        dir.display()
    ))
}

/// Places `source`, a regular file, as `to`, and tells how it was done.
///
/// # Errors
/// [`PackError`]: the system refuses, or what is there afterwards is not the source.
pub fn place(source: &Path, to: &Path, link: Link, step: impl FnMut(u64)) -> Result<Link, PackError> {
    let used = match link {
        Link::Auto => match clone(source, to) {
            Ok(()) => Link::Reflink,
            Err(_) => hard(source, to).map(|()| Link::Hard)?,
        },
        Link::Hard => hard(source, to).map(|()| Link::Hard)?,
        Link::Reflink => clone(source, to).map(|()| Link::Reflink).map_err(|error| {
            let (source, why) = (source.display(), error);
            PackError::Refused(format!("{source}: cannot be cloned ({why}); give --link hard, {OTHERS}"))
        })?,
        Link::Copy => copy(source, to, step).map(|()| Link::Copy)?,
        Link::Symlink => std::os::unix::fs::symlink(source, to)
            .map(|()| Link::Symlink)
            .map_err(PackError::output(to, "make the symbolic link"))?,
    };
    placed(source, to, used)?;
    Ok(used)
}

fn hard(source: &Path, to: &Path) -> Result<(), PackError> {
    let Err(error) = fs::hard_link(source, to) else { return Ok(()) };
    let name = source.display();
    Err(match Errno::from_io_error(&error) {
        Some(Errno::XDEV) => crosses(source, to.parent().unwrap_or(to)),
        Some(Errno::PERM | Errno::ACCESS) => PackError::Refused(format!(
            "{name}: the system does not permit a hard link to it (it may be another user's, or the file system has \
             none); give {OTHERS}"
        )),
        Some(Errno::MLINK) => {
            PackError::Refused(format!("{name}: has as many hard links as its file system allows; give {OTHERS}"))
        }
        Some(Errno::ROFS) => PackError::Refused(format!("{name}: its file system is read-only; give {OTHERS}")),
        _ => PackError::output(to, "make the hard link")(error),
    })
}

/// A clone, or nothing.
fn clone(source: &Path, to: &Path) -> io::Result<()> {
    let (from, _) = plain::open(source).map_err(io::Error::other)?;
    let file = File::create_new(to)?;
    rustix::fs::ioctl_ficlone(&file, &from).map_err(|error| {
        // The empty file is ours, made two lines above.
        let _ = fs::remove_file(to);
        error.into()
    })
}

fn copy(source: &Path, to: &Path, mut step: impl FnMut(u64)) -> Result<(), PackError> {
    let failed = |action| PackError::output(to, action);
    let (mut from, _) = plain::open(source)?;
    let mut file = File::create_new(to).map_err(failed("create"))?;
    loop {
        // Parts, so that progress can be told; within one the system may copy on its own.
        let n = io::copy(&mut (&mut from).take(64 << 20), &mut file).map_err(failed("copy a shard to"))?;
        if n == 0 {
            return Ok(());
        }
        step(n);
    }
}

/// A link to a link, or half a copy, is found here.
fn placed(source: &Path, to: &Path, link: Link) -> Result<(), PackError> {
    let wrong = |what: String| Err(PackError::Unverified(format!("{}: {what}", to.display())));
    let own = fs::symlink_metadata(to).map_err(PackError::output(to, "examine"))?;
    let stat = fs::metadata(to).map_err(PackError::output(to, "examine"))?;
    let from = fs::metadata(source).map_err(PackError::output(source, "examine"))?;
    if !stat.is_file() || (own.is_symlink() != (link == Link::Symlink)) {
        return wrong("is no regular file, expected the shard itself".to_owned());
    }
    if stat.len() != from.len() {
        return wrong(format!("has {} bytes, expected {} as {}", stat.len(), from.len(), source.display()));
    }
    if link == Link::Hard && (stat.dev(), stat.ino()) != (from.dev(), from.ino()) {
        return wrong(format!("is another file than {}, expected a hard link", source.display()));
    }
    let mut magic = [0; 4];
    plain::open(to)?.0.read_exact(&mut magic).map_err(PackError::output(to, "read"))?;
    if magic != *b"GGUF" {
        return wrong(format!("starts with \"{}\", expected \"GGUF\"", magic.escape_ascii()));
    }
    Ok(())
}
