//! What a revision of a repository holds: names, sizes and digests. All of it comes from a server, so all of it is
//! checked here: a name that leaves the repository, or a digest that is none, never gets further.

use std::fmt;

use serde::Deserialize;

use super::Tell;
use super::error::HubError;
use super::http::{Client, Fault, escape, quote};
use super::reference::Reference;
use crate::report;

/// Largest answer, most pages and most files of a listing.
const PAGE_BYTES_MAX: u64 = 32 << 20;
const PAGES_MAX: usize = 200;
const FILES_MAX: usize = 100_000;
/// Longest path, and longest name in it.
pub const PATH_MAX: usize = 1024;
const NAME_MAX: usize = 255;

/// A commit and its files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// 40 hexadecimal digits.
    pub commit: String,
    /// In the hub's order.
    pub entries: Vec<Entry>,
}

/// One file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Where in the repository.
    pub path: RepoPath,
    /// Size.
    pub size: u64,
    /// What its bytes must be.
    pub digest: BlobId,
}

/// A path that stays inside the repository: names parted by `/`, none of them `.` or `..`, no character that hides, no `\`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RepoPath(String);

impl RepoPath {
    /// `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let name = |name: &str| {
            !matches!(name, "" | "." | "..")
                && name.len() <= NAME_MAX
                && !name.chars().any(|c| report::is_hidden(c) || c == '\\')
        };
        (text.len() <= PATH_MAX && text.split('/').all(name)).then(|| Self(text.to_owned()))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Digest of a file, and its name in the cache: SHA-256 of what is stored outside git, git's own SHA-1 of the rest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlobId(String);

impl BlobId {
    /// 64 or 40 lower-case hexadecimal digits; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        (hex && matches!(text.len(), 40 | 64)).then(|| Self(text.to_owned()))
    }

    /// Of the bytes of a digest.
    pub fn of(digest: &[u8]) -> Self {
        Self(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// It is a SHA-256 of the bytes alone.
    pub fn is_sha256(&self) -> bool {
        self.0.len() == 64
    }
}

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", if self.is_sha256() { "SHA-256" } else { "git SHA-1" }, self.0)
    }
}

/// A commit is named like a blob of git.
pub fn is_commit(text: &str) -> bool {
    text.len() == 40 && BlobId::parse(text).is_some()
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct Node {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Stored>,
}

/// What is stored outside git.
#[derive(Deserialize)]
struct Stored {
    oid: String,
    size: u64,
}

/// Asks what the revision is and what it holds.
///
/// # Errors
/// [`HubError`].
pub fn list(client: &Client, reference: &Reference, tell: Tell<'_>) -> Result<Listing, HubError> {
    let url = client.api(&format!("/revision/{}", escape(&reference.revision, false)));
    let ask = |_: &mut ()| client.get_json::<Revision>(&url, PAGE_BYTES_MAX);
    let (Revision { sha: commit }, _) = client.persist(&mut (), tell.note, |()| false, ask)?;
    if !is_commit(&commit) {
        return Err(refused(client, &url, &format!("names \"{}\" as a commit", quote(&commit))));
    }
    let mut entries = Vec::new();
    let mut page = Some(client.api(&format!("/tree/{commit}?recursive=true")));
    let mut pages = 0;
    while let Some(url) = page {
        pages += 1;
        let ask = |_: &mut ()| client.get_json::<Vec<Node>>(&url, PAGE_BYTES_MAX);
        let (nodes, next) = client.persist(&mut (), tell.note, |()| false, ask)?;
        for node in nodes.into_iter().filter(|node| node.kind == "file") {
            entries.extend(entry(&node).map_err(|what| refused(client, &url, &what))?);
        }
        if pages == PAGES_MAX || entries.len() > FILES_MAX {
            return Err(refused(client, &url, &format!("lists more than {PAGES_MAX} pages or {FILES_MAX} files")));
        }
        page = next;
    }
    Ok(Listing { commit, entries })
}

fn refused(client: &Client, url: &str, what: &str) -> HubError {
    match client.strange(url, what) {
        Fault::Final(error) => error,
        Fault::Again { what, .. } => HubError::Refused(what),
    }
}

/// A file that can be fetched. What cannot, and is nothing that we would fetch, is left out.
fn entry(node: &Node) -> Result<Option<Entry>, String> {
    let wanted = [".gguf", ".json"].iter().any(|end| node.path.to_ascii_lowercase().ends_with(end));
    let named = || quote(&node.path);
    let (oid, size) = node.lfs.as_ref().map_or((node.oid.as_str(), node.size), |lfs| (lfs.oid.as_str(), lfs.size));
    let digest = BlobId::parse(oid.strip_prefix("sha256:").unwrap_or(oid));
    let digest = digest.filter(|d| d.is_sha256() == node.lfs.is_some());
    match (RepoPath::parse(&node.path), digest) {
        (Some(path), Some(digest)) => Ok(Some(Entry { path, size, digest })),
        _ if !wanted => Ok(None),
        (None, _) => Err(format!("lists \"{}\", no path inside a repository", named())),
        (Some(_), None) => Err(format!("lists \"{}\" with \"{}\", no digest", named(), quote(oid))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        for good in ["a", "a/b.gguf", "..a", "a..b/c", ".hidden", "a b", "\u{e9}/x"] {
            assert!(RepoPath::parse(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            "..",
            "../a",
            "a/../b",
            "a/..",
            ".",
            "a/./b",
            "a\0b",
            "a\\..\\b",
            "a\nb",
            "\u{1b}[2J",
            "m\u{202e}\u{200b}-Q8_0.gguf",
        ] {
            assert!(RepoPath::parse(bad).is_none(), "{bad:?}");
        }
        assert!(RepoPath::parse(&"x".repeat(NAME_MAX + 1)).is_none());
        assert!(RepoPath::parse(&["x"; PATH_MAX].join("/")).is_none());
    }

    #[test]
    fn digests_are_hexadecimal() {
        assert!(BlobId::parse(&"0".repeat(64)).unwrap().is_sha256());
        assert!(!BlobId::parse(&"f".repeat(40)).unwrap().is_sha256());
        for bad in ["", "../../x", &"0".repeat(63), &"F".repeat(40), &"g".repeat(64), &"/".repeat(40)] {
            assert!(BlobId::parse(bad).is_none(), "{bad}");
        }
    }
}
