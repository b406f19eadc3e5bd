//! Bringing files to the cache: one blob at a time, gone on with where an earlier run stopped, never more bytes than
//! were listed, and named only when the digest is right.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use engine_io::plain;
use rustix::fs::{OFlags, statvfs};
use sha2::Digest as _;
use ureq::http::{HeaderMap, StatusCode};

use super::cache::{Repo, length};
use super::error::HubError;
use super::http::{Client, Fault, text};
use super::list::{BlobId, Entry};
use super::{FetchedFile, Tell};
use crate::pack::progress::Progress;

/// Bytes read at a time.
const CHUNK: usize = 256 << 10;
/// A try that brought so much counts as none: a bad line may break as often as it likes if it carries enough.
const ADVANCE: u64 = 4 << 20;
/// Times that all bytes came and were wrong.
const WRONG_MAX: u32 = 2;

/// What a run fetches from.
pub struct Downloads<'a> {
    /// The hub.
    pub client: &'a Client,
    /// The cache.
    pub repo: &'a Repo,
    /// Which commit.
    pub commit: &'a str,
    /// How it is told.
    pub tell: Tell<'a>,
}

impl Downloads<'_> {
    /// Brings what is missing of `entries` and links all; with `verify` the digests of what is there are checked, and
    /// what is wrong is fetched again.
    ///
    /// # Errors
    /// [`HubError`].
    pub fn all(&self, entries: &[&Entry], verify: bool) -> Result<Vec<FetchedFile>, HubError> {
        let mut there = Vec::with_capacity(entries.len());
        let mut bytes = 0;
        for entry in entries {
            bytes += length(&self.repo.blob(&entry.digest))?.filter(|found| *found == entry.size).unwrap_or(0);
        }
        let progress = Progress::bytes("checking", bytes, !self.tell.progress || !verify || bytes == 0);
        for entry in entries {
            there.push(self.is_there(entry, verify, &progress)?);
        }
        drop(progress);
        let missing: Vec<&Entry> = entries.iter().zip(&there).filter(|(_, there)| !**there).map(|(e, _)| *e).collect();
        self.space(&missing)?;
        let total = missing.iter().map(|e| e.size).sum();
        let progress = Progress::bytes("fetching", total, !self.tell.progress || missing.is_empty());
        let mut files = Vec::with_capacity(entries.len());
        for (entry, there) in entries.iter().zip(there) {
            let cached = there || !self.blob(entry, &progress)?;
            let path = self.repo.link(self.commit, &entry.path, &entry.digest)?;
            files.push(FetchedFile { name: entry.path.as_str().to_owned(), path, bytes: entry.size, cached });
        }
        Ok(files)
    }

    /// Whether a blob is there as listed. One that is not is taken out of the way.
    fn is_there(&self, entry: &Entry, verify: bool, progress: &Progress) -> Result<bool, HubError> {
        let path = self.repo.blob(&entry.digest);
        match length(&path)? {
            None => Ok(false),
            Some(bytes) if bytes == entry.size && (!verify || digest_of(&path, entry, progress)? == entry.digest) => {
                Ok(true)
            }
            Some(_) => {
                (self.tell.note)(&format!("{}: not the bytes that are listed, so it is fetched again", path.display()));
                fs::remove_file(&path).map_err(HubError::io(&path, "remove"))?;
                Ok(false)
            }
        }
    }

    /// Refuses a disk that is too small for what is missing.
    fn space(&self, missing: &[&Entry]) -> Result<(), HubError> {
        let mut needed = 0u64;
        for entry in missing {
            let has = length(&self.repo.incomplete(&entry.digest))?.unwrap_or(0);
            needed = needed.saturating_add(entry.size.saturating_sub(has));
        }
        let dir = self.repo.dir();
        fs::create_dir_all(dir).map_err(HubError::io(dir, "create"))?;
        let stat = statvfs(dir).map_err(|e| HubError::io(dir, "ask for the free space of")(e.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        match needed > free {
            true => Err(HubError::Space { dir: dir.display().to_string(), needed, free }),
            false => Ok(()),
        }
    }

    /// Brings one blob; `false` if somebody else did meanwhile.
    fn blob(&self, entry: &Entry, progress: &Progress) -> Result<bool, HubError> {
        let path = self.repo.blob(&entry.digest);
        let _lock = self.repo.lock(&entry.digest, || {
            (self.tell.note)(&format!("waiting for another run, which fetches {}", entry.path.as_str()));
        })?;
        if length(&path)? == Some(entry.size) {
            progress.add(entry.size);
            return Ok(false);
        }
        let incomplete = self.repo.incomplete(&entry.digest);
        let mut partial = Partial::open(&incomplete, entry, progress)?;
        let mut best = partial.len;
        let advanced = |partial: &mut Partial<'_>| {
            let advanced = partial.len >= best.saturating_add(ADVANCE);
            best = best.max(partial.len);
            advanced
        };
        let brought =
            self.client.persist(&mut partial, self.tell.note, advanced, |partial| self.attempt(entry, partial));
        brought.map_err(|error| match error {
            HubError::Network { what, tries, .. } => HubError::Network { what, tries, kept: partial.len },
            other => other,
        })?;
        // The name says that the bytes are right, so they are on the disk before they have it.
        partial.file.sync_all().map_err(HubError::io(&incomplete, "sync"))?;
        fs::rename(&incomplete, &path).map_err(HubError::io(&path, "rename the finished download to"))?;
        let dir = path.parent().unwrap_or(&path);
        File::open(dir).and_then(|d| d.sync_all()).map_err(HubError::io(dir, "sync"))?;
        Ok(true)
    }

    /// Asks for the rest and checks the whole.
    fn attempt(&self, entry: &Entry, partial: &mut Partial<'_>) -> Result<(), Fault> {
        let url = self.client.file(self.commit, entry.path.as_str());
        if partial.len < entry.size {
            let answer = self.client.get(&url, partial.len)?;
            match answer.status() {
                // It does not have so many bytes, or never goes on in the middle: from the start.
                StatusCode::RANGE_NOT_SATISFIABLE => {
                    partial.reset()?;
                    return Err(Fault::again(format!("{url} does not go on in the middle")));
                }
                StatusCode::PARTIAL_CONTENT if partial.len > 0 => {
                    let range = text(answer.headers(), "content-range").unwrap_or_default();
                    if !continues(&range, partial.len, entry.size) {
                        partial.reset()?;
                        return Err(Fault::again(format!(
                            "{url} answers \"{}\" to bytes {} and on",
                            super::http::quote(&range),
                            entry.size
                        )));
                    }
                }
                StatusCode::OK => partial.reset()?,
                status => {
                    return Err(self.client.strange(&url, &format!("answers {status} where nothing was left out")));
                }
            }
            let rest = entry.size - partial.len;
            if let Some(announced) = content_length(answer.headers()).filter(|n| *n != rest) {
                return Err(Fault::again(format!("{url} announces {announced} bytes where {rest} are missing")));
            }
            let mut body = answer.into_body().into_reader();
            let mut buffer = vec![0; CHUNK];
            loop {
                let read = match body.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(read) => read,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) => return Err(Fault::again(format!("{url}: broke off: {error}"))),
                };
                if read as u64 > entry.size - partial.len {
                    partial.reset()?;
                    return Err(Fault::again(format!("{url} sends more than the {} bytes listed", entry.size)));
                }
                partial.push(&buffer[..read])?;
            }
            if partial.len < entry.size {
                return Err(Fault::again(format!("{url}: broke off after {} bytes of {}", partial.len, entry.size)));
            }
        }
        let found = partial.hasher.clone().finish();
        if found == entry.digest {
            return Ok(());
        }
        // What an earlier run left may be wrong without this server's fault.
        partial.reset()?;
        partial.wrong += 1;
        let (found, expected) = (found.to_string(), entry.digest.to_string());
        match partial.wrong >= WRONG_MAX {
            true => Err(Fault::Final(HubError::Digest { url, found, expected })),
            false => Err(Fault::again(format!("{url}: {found}, expected {expected}"))),
        }
    }
}

/// A blob that is not whole yet.
struct Partial<'a> {
    path: PathBuf,
    file: File,
    /// Bytes that are there, all of them hashed.
    len: u64,
    hasher: Hasher,
    /// Times that it was whole and wrong.
    wrong: u32,
    entry: &'a Entry,
    progress: &'a Progress,
}

impl<'a> Partial<'a> {
    /// Reads what an earlier run left.
    fn open(path: &Path, entry: &'a Entry, progress: &'a Progress) -> Result<Self, HubError> {
        // A link would be written through, to wherever it leads.
        if path.is_symlink() {
            return Err(HubError::io(path, "go on with")(io::Error::other("a link, which no run left; remove it")));
        }
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        let file = File::options().read(true).write(true).create(true).truncate(false).custom_flags(flags).open(path);
        let mut file = file.map_err(HubError::io(path, "open"))?;
        let mut hasher = Hasher::new(entry);
        let stat = file.metadata().map_err(HubError::io(path, "examine"))?;
        if !stat.is_file() {
            // A pipe would never end.
            return Err(HubError::io(path, "go on with")(io::Error::other("not a file; remove it")));
        }
        let found = stat.len();
        let mut len = 0;
        if found > entry.size {
            file.set_len(0).map_err(HubError::io(path, "shorten"))?;
        } else {
            let mut buffer = vec![0; CHUNK];
            loop {
                match file.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(read) => {
                        hasher.update(&buffer[..read]);
                        len += read as u64;
                        progress.add(read as u64);
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(HubError::io(path, "read")(error)),
                }
            }
        }
        Ok(Self { path: path.to_owned(), file, len, hasher, wrong: 0, entry, progress })
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.file.write_all(bytes).map_err(|error| Fault::Final(HubError::io(&self.path, "write")(error)))?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        self.progress.add(bytes.len() as u64);
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Fault> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(|error| Fault::Final(HubError::io(&self.path, "shorten")(error)))?;
        self.progress.take_back(self.len);
        self.len = 0;
        self.hasher = Hasher::new(self.entry);
        Ok(())
    }
}

/// The digest of a [`BlobId`], in the making.
#[derive(Clone)]
enum Hasher {
    Sha256(sha2::Sha256),
    /// Git hashes a header of kind and length first. Source: Pro Git, "Git Internals - Git Objects".
    Git(sha1::Sha1),
}

impl Hasher {
    fn new(entry: &Entry) -> Self {
        match entry.digest.is_sha256() {
            true => Self::Sha256(sha2::Sha256::new()),
            false => Self::Git(sha1::Sha1::new_with_prefix(format!("blob {}\0", entry.size))),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Git(hasher) => hasher.update(bytes),
        }
    }

    fn finish(self) -> BlobId {
        match self {
            Self::Sha256(hasher) => BlobId::of(&hasher.finalize()),
            Self::Git(hasher) => BlobId::of(&hasher.finalize()),
        }
    }
}

fn digest_of(path: &Path, entry: &Entry, progress: &Progress) -> Result<BlobId, HubError> {
    let mut hasher = Hasher::new(entry);
    let (mut file, _) = plain::open(path).map_err(|error| HubError::Refused(error.to_string()))?;
    let mut buffer = vec![0; CHUNK];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                progress.add(read as u64);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(HubError::io(path, "read")(error)),
        }
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    text(headers, "content-length")?.trim().parse().ok()
}

/// `bytes 5-9/10` or `bytes 5-9/*`: whether that is everything from `from` on of `size` bytes.
fn continues(range: &str, from: u64, size: u64) -> bool {
    let read = || {
        let (span, whole) = range.trim().strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = span.split_once('-')?;
        let whole = if whole == "*" { size } else { whole.parse().ok()? };
        Some((first.parse().ok()?, last.parse().ok()?, whole))
    };
    read() == Some((from, size.saturating_sub(1), size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_exact() {
        assert!(continues("bytes 5-9/10", 5, 10) && continues("bytes 5-9/*", 5, 10));
        for wrong in [
            "bytes 4-9/10",
            "bytes 5-8/10",
            "bytes 5-9/11",
            "bytes */10",
            "5-9/10",
            "",
            "bytes 5-99999999999999999999/10",
        ] {
            assert!(!continues(wrong, 5, 10), "{wrong}");
        }
    }

    /// "hello\n", and what `git hash-object` says of it.
    fn hello() -> Entry {
        let digest = BlobId::parse("ce013625030ba8dba906f756967f9e9ca394464a").unwrap();
        Entry { path: crate::hub::list::RepoPath::parse("hello").unwrap(), size: 6, digest }
    }

    #[test]
    fn progress_is_the_bytes_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let (path, entry) = (folder.path().join("hello.incomplete"), hello());
        fs::write(&path, b"hel").unwrap();
        let progress = Progress::bytes("fetching", entry.size, true);
        let mut partial = Partial::open(&path, &entry, &progress).unwrap();
        assert_eq!((progress.done(), partial.len), (3, 3));
        partial.push(b"l").unwrap();
        assert_eq!((progress.done(), partial.len), (4, 4));
        partial.reset().unwrap();
        assert_eq!((progress.done(), partial.len), (0, 0));
        partial.push(b"hello\n").unwrap();
        assert_eq!((progress.done(), partial.hasher.clone().finish()), (6, entry.digest.clone()));
        assert_eq!(fs::read(&path).unwrap(), b"hello\n");
        // What is longer than it may be counts for nothing.
        fs::write(&path, b"hello, world").unwrap();
        let progress = Progress::bytes("fetching", entry.size, true);
        Partial::open(&path, &entry, &progress).unwrap();
        assert_eq!(progress.done(), 0);
    }

    /// Nobody is asked for it: there is no server here.
    #[test]
    fn what_another_run_fetched_meanwhile_counts_too() {
        let folder = tempfile::tempdir().unwrap();
        let (endpoint, patience) = ("http://127.0.0.1:1".to_owned(), Default::default());
        let cache = folder.path().to_owned();
        let settings = crate::hub::Settings { endpoint, cache, token: None, offline: false, patience };
        let reference = "hf:o/m".parse().unwrap();
        let (client, repo) = (Client::new(&settings, &reference), Repo::new(&settings, &reference));
        let tell = Tell { note: &|_| {}, progress: false };
        let downloads = Downloads { client: &client, repo: &repo, commit: "c", tell };
        let entry = hello();
        fs::create_dir_all(repo.blob(&entry.digest).parent().unwrap()).unwrap();
        fs::write(repo.blob(&entry.digest), b"hello\n").unwrap();
        let progress = Progress::bytes("fetching", entry.size, true);
        assert!(!downloads.blob(&entry, &progress).unwrap());
        assert_eq!(progress.done(), entry.size);
    }

    #[test]
    fn a_blob_of_git_is_hashed_with_its_header() {
        let entry = hello();
        let mut hasher = Hasher::new(&entry);
        hasher.update(b"hel");
        hasher.update(b"lo\n");
        assert_eq!(hasher.finish(), entry.digest);
    }
}
