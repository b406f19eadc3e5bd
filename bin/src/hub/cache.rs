//! The cache on disk, as the hub's Python library lays it out, so that both can use one:
//!
//! ```text
//! models--ORG--NAME/blobs/DIGEST                 the bytes, whole; DIGEST.incomplete while they arrive
//! models--ORG--NAME/refs/REVISION                the commit that it was
//! models--ORG--NAME/snapshots/COMMIT/PATH        a relative link to the blob
//! .locks/models--ORG--NAME/DIGEST.lock           held with flock by who fetches the blob
//! ```
//!
//! A blob gets its name only when its digest is right, a link when its blob is there, a reference when all links are: so
//! whatever moment a run is killed in, what can be found is whole. What lies under a temporary name is gone on with or
//! written over.
//! Source: huggingface_hub, `file_download.py` and the guide "manage your cache".

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use engine_io::plain;

use super::error::HubError;
use super::list::{BlobId, PATH_MAX, RepoPath, is_commit};
use super::reference::Reference;
use super::settings::Settings;

/// Files that are looked at in a snapshot.
const FILES_MAX: usize = 100_000;
/// A reference is a commit and maybe a line's end.
const REF_BYTES_MAX: u64 = 64;

/// A repository's part of the cache.
#[derive(Clone, Debug)]
pub struct Repo {
    root: PathBuf,
    folder: String,
    dir: PathBuf,
}

/// Held while a blob is fetched; goes with the process.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Repo {
    /// Nothing is created yet.
    pub fn new(settings: &Settings, reference: &Reference) -> Self {
        let folder = format!("models--{}--{}", reference.org, reference.repository);
        Self { root: settings.cache.clone(), dir: settings.cache.join(&folder), folder }
    }

    /// Directory of the repository.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where a blob is when it is whole.
    pub fn blob(&self, id: &BlobId) -> PathBuf {
        self.dir.join("blobs").join(id.as_str())
    }

    /// Where it is before.
    pub fn incomplete(&self, id: &BlobId) -> PathBuf {
        self.dir.join("blobs").join(format!("{}.incomplete", id.as_str()))
    }

    /// Directory of a commit.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.dir.join("snapshots").join(commit)
    }

    /// Where a file of a commit is.
    pub fn file(&self, commit: &str, path: &RepoPath) -> PathBuf {
        self.snapshot(commit).join(path.as_str())
    }

    /// The commit that a revision was; `None` if the cache does not know.
    pub fn read_ref(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let path = self.dir.join("refs").join(revision);
        let text = plain::text(&path, REF_BYTES_MAX).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Why a revision could not be noted: one that the cache knows is a folder of it, or the other way round, which git
    /// does not allow at one time and a hub may have had one after the other.
    ///
    /// # Errors
    /// [`HubError::Refused`].
    pub fn can_note(&self, revision: &str) -> Result<(), HubError> {
        let refs = self.dir.join("refs");
        let path = refs.join(revision);
        let above = path.ancestors().skip(1).take_while(|p| *p != refs).find(|p| p.is_file());
        let in_the_way = if path.is_dir() { Some(path.as_path()) } else { above };
        match in_the_way.filter(|_| !is_commit(revision)) {
            None => Ok(()),
            Some(other) => Err(HubError::Refused(format!(
                "{}: an earlier revision has this name, so {revision} cannot be noted in the cache; remove it, or ask \
                 for a commit",
                other.display()
            ))),
        }
    }

    /// Notes what a revision is now.
    ///
    /// # Errors
    /// [`HubError::Io`].
    pub fn write_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) || self.read_ref(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.dir.join("refs").join(revision);
        create_parent(&path)?;
        let temporary = temporary(&path);
        let written = File::create(&temporary).and_then(|mut file| {
            file.write_all(commit.as_bytes())?;
            file.sync_all()
        });
        written.and_then(|()| fs::rename(&temporary, &path)).map_err(HubError::io(&path, "write"))
    }

    /// Names of the files of a snapshot whose bytes are there.
    pub fn snapshot_files(&self, commit: &str) -> Vec<String> {
        let mut found = Vec::new();
        walk(&self.snapshot(commit), "", &mut found);
        found.sort();
        found
    }

    /// Makes the directories, and waits for the lock of a blob. `waiting` is called if somebody else has it.
    ///
    /// # Errors
    /// [`HubError::Io`].
    pub fn lock(&self, id: &BlobId, waiting: impl FnOnce()) -> Result<Lock, HubError> {
        let path = self.root.join(".locks").join(&self.folder).join(format!("{}.lock", id.as_str()));
        create_parent(&path)?;
        create_parent(&self.blob(id))?;
        let mut waiting = Some(waiting);
        loop {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
            let file = file.map_err(HubError::io(&path, "open"))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    if let Some(waiting) = waiting.take() {
                        waiting();
                    }
                    file.lock().map_err(HubError::io(&path, "lock"))?;
                }
                Err(TryLockError::Error(source)) => return Err(HubError::io(&path, "lock")(source)),
            }
            // Who had it may have removed the file, and a third made a new one: then this lock keeps nobody out.
            let ours = file.metadata().and_then(|own| Ok((own, fs::metadata(&path)?)));
            if ours.is_ok_and(|(own, named)| own.ino() == named.ino() && own.dev() == named.dev()) {
                return Ok(Lock { _file: file });
            }
        }
    }

    /// Links a file of a commit to its blob. What is there and leads there stays.
    ///
    /// # Errors
    /// [`HubError::Io`].
    pub fn link(&self, commit: &str, path: &RepoPath, id: &BlobId) -> Result<PathBuf, HubError> {
        let link = self.file(commit, path);
        let blob = self.blob(id);
        let same = |a: &Path, b: &Path| Some((fs::metadata(a).ok()?.ino(), fs::metadata(b).ok()?.ino()));
        if same(&link, &blob).is_some_and(|(a, b)| a == b) {
            return Ok(link);
        }
        create_parent(&link)?;
        // Two up from a file of the snapshot's root: `snapshots/COMMIT`.
        let up = "../".repeat(path.as_str().split('/').count() + 1);
        let temporary = temporary(&link);
        let _ = fs::remove_file(&temporary);
        let linked = symlink(format!("{up}blobs/{}", id.as_str()), &temporary);
        linked.and_then(|()| fs::rename(&temporary, &link)).map_err(HubError::io(&link, "make the link"))?;
        Ok(link)
    }
}

/// A name beside `path` that no other process uses.
fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    // A name may be as long as a file system allows, so only its beginning is kept.
    let short: String = name.chars().take(32).collect();
    path.with_file_name(format!(".{short}.{}.tmp", std::process::id()))
}

fn create_parent(path: &Path) -> Result<(), HubError> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(HubError::io(parent, "create"))
}

/// As deep as a path may be that was fetched. Folders are never links in a snapshot: one could lead into itself.
fn walk(dir: &Path, prefix: &str, found: &mut Vec<String>) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries.take(FILES_MAX) {
        // What has no name in UTF-8, or none of a repository, is nobody's model.
        let Some(name) = entry.file_name().to_str().map(|n| format!("{prefix}{n}")) else { continue };
        let Ok(meta) = fs::metadata(entry.path()) else { continue };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && name.len() < PATH_MAX {
            walk(&entry.path(), &format!("{name}/"), found);
        } else if meta.is_file() && found.len() < FILES_MAX && RepoPath::parse(&name).is_some() {
            found.push(name);
        }
    }
}

/// Length of a file; `None` if there is none.
///
/// # Errors
/// [`HubError::Io`] for any other reason.
pub fn length(path: &Path) -> Result<Option<u64>, HubError> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_file() => Ok(Some(meta.len())),
        Ok(_) => Err(HubError::io(path, "use")(io::Error::other("not a file; remove it"))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(HubError::io(path, "examine")(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Who waited for a lock file that was removed meanwhile has nothing: the one of the new file is waited for too.
    #[test]
    fn a_lock_is_of_the_file_that_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let (endpoint, cache) = ("http://127.0.0.1:1".to_owned(), folder.path().to_owned());
        let settings = Settings { endpoint, cache, token: None, offline: false, patience: Default::default() };
        let repo = Repo::new(&settings, &"hf:o/m".parse().unwrap());
        let id = BlobId::parse(&"0".repeat(40)).unwrap();
        let path = folder.path().join(".locks/models--o--m").join(format!("{}.lock", id.as_str()));
        let first = repo.lock(&id, || panic!("nobody has it")).unwrap();
        let (say, hear) = mpsc::channel();
        let second = thread::spawn({
            let (repo, id) = (repo.clone(), id.clone());
            move || {
                let lock = repo.lock(&id, || say.send("waits").unwrap()).unwrap();
                say.send("has it").unwrap();
                drop(lock);
            }
        });
        assert_eq!(hear.recv(), Ok("waits"));
        fs::remove_file(&path).unwrap();
        let third = repo.lock(&id, || panic!("the new file is nobody's")).unwrap();
        drop(first);
        assert_eq!(hear.recv_timeout(Duration::from_millis(300)), Err(mpsc::RecvTimeoutError::Timeout));
        drop(third);
        assert_eq!(hear.recv(), Ok("has it"));
        second.join().unwrap();
    }
}
