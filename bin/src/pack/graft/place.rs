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
            Link::Auto | Link::Hard => return Err(crosses(source, dir, OTHERS)),
            Link::Copy => {
                notices.push(format!("{} is on another file system: all its bytes are copied", source.display()))
            }
            Link::Reflink | Link::Symlink => {}
        }
    }
    Ok(notices)
}

fn crosses(source: &Path, dir: &Path, others: &str) -> PackError {
    PackError::Refused(format!(
        "{}: is on another file system than {}, and a link cannot cross; give an --out on the same one, {others}",
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
            Err(_) => hard(source, to, OTHERS).map(|()| Link::Hard)?,
        },
        Link::Hard => hard(source, to, OTHERS).map(|()| Link::Hard)?,
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

/// A hard link; `others` is what else could be asked for.
///
/// # Errors
/// [`PackError`].
pub fn hard(source: &Path, to: &Path, others: &str) -> Result<(), PackError> {
    fs::hard_link(source, to).map_err(|error| no_link(error, source, to, others))
}

/// Why there is no hard link, and what to do.
fn no_link(error: io::Error, source: &Path, to: &Path, others: &str) -> PackError {
    let name = source.display();
    match Errno::from_io_error(&error) {
        Some(Errno::XDEV) => crosses(source, to.parent().unwrap_or(to), others),
        Some(Errno::PERM | Errno::ACCESS) => PackError::Refused(format!(
            "{name}: the system does not permit a hard link to it (it may be another user's, or the file system has \
             none); give {others}"
        )),
        Some(Errno::MLINK) => {
            PackError::Refused(format!("{name}: has as many hard links as its file system allows; give {others}"))
        }
        Some(Errno::ROFS) => PackError::Refused(format!("{name}: its file system is read-only; give {others}")),
        _ => PackError::output(to, "make the hard link")(error),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What no test can bring about on every machine: each refusal of the system has words of its own.
    #[test]
    fn a_refused_link_says_why_and_what_else_there_is() {
        for (errno, code, part) in [
            (Errno::XDEV, 3, "/a/model.gguf: is on another file system than /b, and a link cannot cross"),
            (Errno::PERM, 3, "/a/model.gguf: the system does not permit a hard link to it"),
            (Errno::ACCESS, 3, "/a/model.gguf: the system does not permit a hard link to it"),
            (Errno::MLINK, 3, "/a/model.gguf: has as many hard links as its file system allows"),
            (Errno::ROFS, 3, "/a/model.gguf: its file system is read-only"),
            (Errno::NOSPC, 1, "/b/out.gguf: cannot make the hard link"),
        ] {
            let error = no_link(errno.into(), Path::new("/a/model.gguf"), Path::new("/b/out.gguf"), OTHERS);
            let text = error.to_string();
            assert!(text.contains(part), "`{text}` does not say `{part}`");
            assert_eq!(error.code(), code, "{text}");
            assert_eq!(text.contains("--link copy"), code == 3, "{text}");
        }
    }

    /// What lies there afterwards is looked at, whatever the system said.
    #[test]
    fn what_was_placed_is_the_source() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("source"), b"GGUF and more").unwrap();
        fs::write(path("copy"), b"GGUF and more").unwrap();
        fs::write(path("short"), b"GGUF").unwrap();
        fs::write(path("other"), b"FUGG and more").unwrap();
        std::os::unix::fs::symlink("source", path("link")).unwrap();
        fs::hard_link(path("source"), path("hard")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        let look = |name: &str, link| placed(&path("source"), &path(name), link).map_err(|error| error.to_string());
        for (name, link) in
            [("hard", Link::Hard), ("copy", Link::Copy), ("copy", Link::Reflink), ("link", Link::Symlink)]
        {
            assert_eq!(look(name, link), Ok(()), "{name}");
        }
        for (name, link, part) in [
            ("short", Link::Copy, "has 4 bytes, expected 13"),
            ("other", Link::Copy, "starts with \"FUGG\", expected \"GGUF\""),
            ("copy", Link::Hard, "expected a hard link"),
            ("link", Link::Hard, "is no regular file"),
            ("copy", Link::Symlink, "is no regular file"),
            ("folder", Link::Copy, "is no regular file"),
            ("nothing", Link::Copy, "cannot examine"),
        ] {
            let error = look(name, link).unwrap_err();
            assert!(error.contains(part) && error.contains(name), "`{error}` does not say `{part}`");
        }
    }
}
