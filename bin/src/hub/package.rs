//! The manifest of a layer package, as far as fetching needs it: which files there are, how long, with what digest.

use std::fs;
use std::path::Path;

use engine_io::digest::Sha256;
use serde::Deserialize;

use super::http::quote;
use super::list::{Entry, RepoPath};

/// Name of the manifest, in the root of the repository.
pub const MANIFEST: &str = "model-package.json";
/// Largest manifest.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// The version that this reads.
const VERSION: u32 = 1;

/// A manifest. Fields that fetching has no use for are not read.
#[derive(Clone, Debug, Deserialize)]
pub struct Manifest {
    shared: Shared,
    layers: Vec<Artifact>,
    #[serde(default)]
    projectors: Vec<Artifact>,
}

#[derive(Clone, Debug, Deserialize)]
struct Shared {
    metadata: Artifact,
    embeddings: Artifact,
    output: Artifact,
}

/// One file.
#[derive(Clone, Debug, Deserialize)]
pub struct Artifact {
    /// Below the manifest's directory.
    pub path: String,
    /// Size.
    pub artifact_bytes: u64,
    /// Digest of the file.
    pub sha256: Sha256,
}

impl Manifest {
    /// Reads and checks.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn read(path: &Path) -> Result<Self, String> {
        let size = fs::metadata(path).map_err(|e| format!("{MANIFEST}: {e}"))?.len();
        if size > MANIFEST_BYTES_MAX {
            return Err(format!("{MANIFEST}: {size} bytes, expected at most {MANIFEST_BYTES_MAX}"));
        }
        let bytes = fs::read(path).map_err(|e| format!("{MANIFEST}: {e}"))?;
        /// Read first: what else there must be depends on it.
        #[derive(Deserialize)]
        struct Version {
            schema_version: u32,
        }
        let wrong = |error: serde_json::Error| format!("{MANIFEST}: {}", quote(&error.to_string()));
        let Version { schema_version } = serde_json::from_slice(&bytes).map_err(wrong)?;
        if schema_version != VERSION {
            return Err(format!("{MANIFEST}: schema_version {schema_version}, expected {VERSION}"));
        }
        let manifest: Self = serde_json::from_slice(&bytes).map_err(wrong)?;
        if let Some(artifact) = manifest.artifacts().find(|a| RepoPath::parse(&a.path).is_none()) {
            return Err(format!("{MANIFEST}: \"{}\" is no path inside the package", quote(&artifact.path)));
        }
        Ok(manifest)
    }

    /// Every file that it names.
    pub fn artifacts(&self) -> impl Iterator<Item = &Artifact> {
        let Shared { metadata, embeddings, output } = &self.shared;
        [metadata, embeddings].into_iter().chain(&self.layers).chain([output]).chain(&self.projectors)
    }

    /// Bytes of them.
    pub fn bytes(&self) -> u64 {
        self.artifacts().fold(0, |sum, artifact| sum.saturating_add(artifact.artifact_bytes))
    }
}

impl Artifact {
    /// That the repository does not have it.
    pub fn missing(&self) -> String {
        format!("{MANIFEST} names {}, which is not in the repository", quote(&self.path))
    }

    /// Compares with the repository's listing.
    ///
    /// # Errors
    /// What differs.
    pub fn agrees(&self, entry: &Entry) -> Result<(), String> {
        let path = quote(&self.path);
        if self.artifact_bytes != entry.size {
            let (own, listed) = (self.artifact_bytes, entry.size);
            return Err(format!("{path}: {listed} bytes in the repository, expected {own} as in {MANIFEST}"));
        }
        let (own, listed) = (self.sha256.to_string(), entry.digest.as_str());
        if entry.digest.is_sha256() && own != listed {
            return Err(format!("{path}: SHA-256 {listed} in the repository, expected {own} as in {MANIFEST}"));
        }
        Ok(())
    }

    /// Reads the file below `root` and compares.
    ///
    /// # Errors
    /// What differs.
    pub fn check(&self, root: &Path, step: impl FnMut(u64)) -> Result<(), String> {
        let (found, bytes) = Sha256::of_file(&root.join(&self.path), step).map_err(|e| e.to_string())?;
        match found == self.sha256 && bytes == self.artifact_bytes {
            true => Ok(()),
            false => Err(format!(
                "{}: {bytes} bytes of SHA-256 {found}, expected {} of {} as in {MANIFEST}",
                quote(&self.path),
                self.artifact_bytes,
                self.sha256
            )),
        }
    }
}
