//! A layer package of a repository: its manifest held against the rules of the format, the hub's listing, and the bytes.

use std::path::Path;

use engine_io::digest::Sha256;
use engine_io::package::{Artifact, MANIFEST, Package, check};

use super::http::quote;
use super::list::Entry;

/// Reads the manifest in `root`, with everything that it says of itself checked: what would not open is not fetched.
///
/// # Errors
/// Why it cannot be used, and how much else there is.
pub fn read(root: &Path) -> Result<Package, String> {
    let package = Package::read(root).map_err(|issue| quote(&issue.to_string()))?;
    match check::manifest(&package.manifest).as_slice() {
        [] => Ok(package),
        [only] => Err(quote(&only.to_string())),
        [first, rest @ ..] => Err(format!("{}, and {} more faults", quote(&first.to_string()), rest.len())),
    }
}

/// Bytes of all artifacts.
pub fn bytes(package: &Package) -> u64 {
    package.manifest.artifacts().fold(0, |sum, (_, artifact)| sum.saturating_add(artifact.artifact_bytes))
}

/// That the repository does not have an artifact.
pub fn missing(artifact: &Artifact) -> String {
    format!("{MANIFEST} names {}, which is not in the repository", quote(&artifact.path))
}

/// Compares an artifact with the repository's listing.
///
/// # Errors
/// What differs.
pub fn agrees(artifact: &Artifact, entry: &Entry) -> Result<(), String> {
    let path = quote(&artifact.path);
    if artifact.artifact_bytes != entry.size {
        let (own, listed) = (artifact.artifact_bytes, entry.size);
        return Err(format!("{path}: {listed} bytes in the repository, expected {own} as in {MANIFEST}"));
    }
    let (own, listed) = (artifact.sha256.as_str(), entry.digest.as_str());
    if entry.digest.is_sha256() && own != listed {
        return Err(format!("{path}: SHA-256 {listed} in the repository, expected {own} as in {MANIFEST}"));
    }
    Ok(())
}

/// Reads the file of an artifact and compares.
///
/// # Errors
/// What differs.
pub fn check(package: &Package, artifact: &Artifact, step: impl FnMut(u64)) -> Result<(), String> {
    let path = package.locate(artifact).map_err(|issue| quote(&issue.to_string()))?;
    let (found, _) = Sha256::of_file(&path, step).map_err(|error| error.to_string())?;
    let own = artifact.sha256.as_str();
    match found.to_string() == own {
        true => Ok(()),
        false => Err(format!("{}: SHA-256 {found}, expected {own} as in {MANIFEST}", quote(&artifact.path))),
    }
}
