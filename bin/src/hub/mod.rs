//! Models of a hub, by name: `hf:ORG/NAME`, fetched into the cache that the hub's Python library uses too.
//!
//! [`reference`] reads the name, [`settings`] the environment. [`list`] asks what a revision holds, [`choose`] picks the
//! files of one model, [`download`] brings each to [`cache`] whole or not at all; [`http`] is how anything is asked.
//! Everything a server says is measured against what it said before, and names from it against what a name may be.

pub mod cache;
pub mod choose;
pub mod download;
pub mod error;
pub mod http;
pub mod list;
pub mod package;
pub mod reference;
pub mod settings;

use std::path::{Path, PathBuf};

use engine_io::package::{MANIFEST, MANIFEST_BYTES_MAX};
use serde::Serialize;

use self::cache::Repo;
pub use self::choose::Wanted;
use self::choose::{Choice, Chosen};
use self::download::Downloads;
pub use self::error::HubError;
use self::http::Client;
use self::list::{Entry, Listing};
pub use self::reference::Reference;
pub use self::settings::Settings;
use crate::pack::progress::Progress;

/// How a run tells what it does.
#[derive(Clone, Copy)]
pub struct Tell<'a> {
    /// One line for people: what was decided or waited for.
    pub note: &'a dyn Fn(&str),
    /// Draw a line of progress where there is a terminal.
    pub progress: bool,
}

/// A model that lies in the cache, whole.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Fetched {
    /// `ORG/NAME`.
    pub repository: String,
    /// Branch, tag or commit that was asked for.
    pub revision: String,
    /// The commit that it is.
    pub commit: String,
    /// What was asked for: the first shard of a GGUF, the directory of a layer package, or the sidecar alone.
    pub model: PathBuf,
    /// The MTP sidecar that was asked for beside a model.
    pub mtp: Option<PathBuf>,
    /// Every file of the model, first shard or manifest first, the sidecar last.
    pub files: Vec<FetchedFile>,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes of those that were fetched by this run, what an earlier one left of them included.
    pub fetched_bytes: u64,
}

/// One file of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FetchedFile {
    /// Path in the repository.
    pub name: String,
    /// Where it is: a link in the snapshot.
    pub path: PathBuf,
    /// Size.
    pub bytes: u64,
    /// It was there before.
    pub cached: bool,
}

/// The name of a model of a hub that stands where a path may stand.
pub fn name_in(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| text.starts_with(reference::PREFIX))
}

/// What a flag for a file means: a path as it is, or the file of a name `hf:ORG/NAME`, fetched if the cache does not have
/// it.
///
/// # Errors
/// [`HubError`].
pub fn local(path: &Path, wanted: Wanted, note: &dyn Fn(&str)) -> Result<PathBuf, HubError> {
    let Some(text) = name_in(path) else { return Ok(path.to_owned()) };
    let reference: Reference = text.parse()?;
    let found = resolve(&reference, wanted, &Settings::from_env()?, Tell { note, progress: true })?;
    note(&format!("{reference} is {}", found.model.display()));
    Ok(found.model)
}

/// Takes what is wanted from the cache where it is there, and otherwise [`fetch`]es it.
///
/// What a revision was when it was last fetched is what it is here; `fetch` is how it becomes newer. Without a quant in
/// the name the hub is asked what there is to choose from, unless the cache's answer could be no other.
///
/// # Errors
/// [`HubError`].
pub fn resolve(
    reference: &Reference,
    wanted: Wanted,
    settings: &Settings,
    tell: Tell<'_>,
) -> Result<Fetched, HubError> {
    let repo = Repo::new(settings, reference);
    match cached(&repo, reference, wanted, tell) {
        Ok(cached) if cached.certain => Ok(cached.fetched),
        Ok(cached) => {
            // The same commit, so that asking does not make the model newer behind the back of who serves it.
            let pinned = Reference { revision: cached.fetched.commit.clone(), ..reference.clone() };
            match bring(&pinned, wanted, settings, tell, false) {
                Ok(fetched) => Ok(Fetched { revision: reference.revision.clone(), ..fetched }),
                Err(HubError::Network { what, .. }) => {
                    let file = &cached.fetched.files[0].name;
                    (tell.note)(&format!("{what}; taking what the cache has of {reference}: {file}"));
                    Ok(cached.fetched)
                }
                Err(error) => Err(error),
            }
        }
        Err(_) => bring(reference, wanted, settings, tell, false),
    }
}

/// Asks the hub what the revision is now, and brings what the cache lacks of it; the digest of what it has is checked too,
/// and what is damaged is fetched again. With `HF_HUB_OFFLINE` it only looks.
///
/// # Errors
/// [`HubError`].
pub fn fetch(reference: &Reference, wanted: Wanted, settings: &Settings, tell: Tell<'_>) -> Result<Fetched, HubError> {
    bring(reference, wanted, settings, tell, true)
}

/// As [`fetch`]; without `verify` the bytes of a model that are there already are taken as they are, since whoever starts
/// a server does not want 90 GB read first.
fn bring(
    reference: &Reference,
    wanted: Wanted,
    settings: &Settings,
    tell: Tell<'_>,
    verify: bool,
) -> Result<Fetched, HubError> {
    let repo = Repo::new(settings, reference);
    if settings.offline {
        let cached = cached(&repo, reference, wanted, tell);
        return cached.map(|c| c.fetched).map_err(|why| offline(reference, &repo, why));
    }
    let client = Client::new(settings, reference);
    repo.can_note(&reference.revision)?;
    let listing = list::list(&client, reference, tell)?;
    let names: Vec<&str> = listing.entries.iter().map(|e| e.path.as_str()).collect();
    let refused = |why: String| HubError::Refused(format!("{reference}: {why}"));
    let choice = choose::choose(&names, reference.quant.as_deref(), wanted).map_err(refused)?;
    if let Some(note) = &choice.note {
        (tell.note)(note);
    }
    let downloads = Downloads { client: &client, repo: &repo, commit: &listing.commit, tell };
    let files = match &choice.chosen {
        Chosen::Gguf(files) => {
            let entries: Vec<&Entry> = files.iter().chain(&choice.mtp).map(|&i| &listing.entries[i]).collect();
            downloads.all(&entries, verify)?
        }
        Chosen::Package(manifest) => package(&downloads, &listing, *manifest, refused)?,
    };
    repo.write_ref(&reference.revision, &listing.commit)?;
    Ok(summary(reference, &repo, &listing.commit, &choice, files))
}

/// Fetches the manifest, then every artifact that it names. What it says of them and what the hub says must agree, and the
/// digests of those that are there already are checked too.
fn package(
    downloads: &Downloads<'_>,
    listing: &Listing,
    manifest: usize,
    refused: impl Fn(String) -> HubError,
) -> Result<Vec<FetchedFile>, HubError> {
    let entry = &listing.entries[manifest];
    if entry.size > MANIFEST_BYTES_MAX {
        return Err(refused(format!("{MANIFEST}: {} bytes, expected at most {MANIFEST_BYTES_MAX}", entry.size)));
    }
    let mut files = downloads.all(&[entry], true)?;
    let package = package::read(&downloads.repo.snapshot(downloads.commit)).map_err(&refused)?;
    let mut entries = Vec::new();
    for (_, artifact) in package.manifest.artifacts() {
        let known = listing.entries.iter().find(|e| e.path.as_str() == artifact.path);
        let entry = known.ok_or_else(|| refused(package::missing(artifact)))?;
        package::agrees(artifact, entry).map_err(&refused)?;
        entries.push(entry);
    }
    files.extend(downloads.all(&entries, true)?);
    // Git's own digest of a small file is not the one that the manifest has.
    let of_git = package.manifest.artifacts().zip(&entries).filter(|(_, entry)| !entry.digest.is_sha256());
    for ((_, artifact), _) in of_git {
        package::check(&package, artifact, |_| {}).map_err(&refused)?;
    }
    Ok(files)
}

/// A model in the cache.
struct Cached {
    fetched: Fetched,
    /// The hub could not name another one.
    certain: bool,
}

/// What the cache has, or why that is no whole model.
fn cached(repo: &Repo, reference: &Reference, wanted: Wanted, tell: Tell<'_>) -> Result<Cached, String> {
    let revision = &reference.revision;
    let commit = repo.read_ref(revision).ok_or_else(|| format!("no revision {revision} of {}", reference.name()))?;
    let names = repo.snapshot_files(&commit);
    let borrowed: Vec<&str> = names.iter().map(String::as_str).collect();
    let choice = choose::choose(&borrowed, reference.quant.as_deref(), wanted)?;
    let (mut files, certain) = match &choice.chosen {
        Chosen::Gguf(files) => (files.iter().map(|&i| names[i].clone()).collect::<Vec<_>>(), choice.certain),
        Chosen::Package(_) => {
            let package = package::read(&repo.snapshot(&commit))?;
            let progress = Progress::bytes("checking", package::bytes(&package), !tell.progress);
            let mut files = vec![MANIFEST.to_owned()];
            for (_, artifact) in package.manifest.artifacts() {
                package::check(&package, artifact, |bytes| progress.add(bytes))?;
                files.push(artifact.path.clone());
            }
            (files, true)
        }
    };
    files.extend(choice.mtp.map(|i| names[i].clone()));
    let file = |name: String| {
        let path = repo.snapshot(&commit).join(&name);
        let bytes = path.metadata().map(|m| m.len()).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok::<_, String>(FetchedFile { name, path, bytes, cached: true })
    };
    let files = files.into_iter().map(file).collect::<Result<Vec<_>, _>>()?;
    Ok(Cached { fetched: summary(reference, repo, &commit, &choice, files), certain })
}

fn summary(reference: &Reference, repo: &Repo, commit: &str, choice: &Choice, files: Vec<FetchedFile>) -> Fetched {
    Fetched {
        repository: reference.name(),
        revision: reference.revision.clone(),
        commit: commit.to_owned(),
        model: match choice.chosen {
            Chosen::Gguf(_) => files[0].path.clone(),
            Chosen::Package(_) => repo.snapshot(commit),
        },
        mtp: choice.mtp.map(|_| files[files.len() - 1].path.clone()),
        bytes: files.iter().map(|f| f.bytes).sum(),
        fetched_bytes: files.iter().filter(|f| !f.cached).map(|f| f.bytes).sum(),
        files,
    }
}

fn offline(reference: &Reference, repo: &Repo, why: String) -> HubError {
    HubError::Offline { reference: reference.to_string(), cache: repo.dir().display().to_string(), why }
}
