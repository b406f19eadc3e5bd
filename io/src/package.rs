//! Layer packages: a model cut into one GGUF file a block and a few shared ones, with a manifest that names them all.
//!
//! ```text
//! model-package.json
//! shared/metadata.gguf     keys and tokenizer, and tensors that every stage needs
//! shared/embeddings.gguf   what tokens are looked up in
//! shared/output.gguf       output norm and LM head
//! layers/layer-00000.gguf  one for each block; an appended MTP block is the last one
//! ```
//!
//! The manifest decides which file is what; the names above are what we write. Source: Mesh-LLM/mesh-llm
//! `docs/specs/layer-package-repos.md` (version 1).

pub mod check;
pub mod issues;
pub mod manifest;
pub mod open;
pub mod stages;

use std::fs;
use std::path::{Path, PathBuf};

use crate::compat;
use crate::digest::Sha256;
use crate::error::Error;
use crate::gguf::Meta;
use crate::json;
use crate::plain;
pub use issues::{CODES, Issue};
pub use manifest::{Artifact, Manifest, Role};

/// Name of the manifest.
pub const MANIFEST: &str = "model-package.json";
/// A manifest beyond this is refused.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// A package whose manifest has been parsed, and nothing more.
#[derive(Clone, PartialEq, Debug)]
pub struct Package {
    /// Its folder.
    pub dir: PathBuf,
    /// What the manifest says.
    pub manifest: Manifest,
    /// Of the manifest's bytes.
    pub manifest_sha256: Sha256,
}

/// What every version of a manifest has.
#[derive(serde::Deserialize)]
struct Version {
    schema_version: u32,
}

/// The folder of the package that a path means: a folder with a manifest in it, or the manifest itself.
pub fn folder(path: &Path) -> Option<PathBuf> {
    if path.file_name().is_some_and(|name| name == MANIFEST) && plain::is_there(path) && !path.is_dir() {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        return Some(parent.unwrap_or(Path::new(".")).to_owned());
    }
    (path.is_dir() && plain::is_there(&path.join(MANIFEST))).then(|| path.to_owned())
}

impl Package {
    /// Reads the manifest of a folder.
    ///
    /// # Errors
    /// An issue that leaves nothing to look at: there is no manifest, it is too large, or it is not of the schema.
    pub fn read(dir: &Path) -> Result<Self, Box<Issue>> {
        let issue = |code, message: String| Box::new(Issue::new(code, MANIFEST, message));
        let bytes = plain::read(&dir.join(MANIFEST), MANIFEST_BYTES_MAX).map_err(|error| {
            let code = if matches!(error, Error::TooLong { .. }) { "manifest_too_large" } else { "missing_manifest" };
            issue(code, error.to_string())
        })?;
        Ok(Self { dir: dir.to_owned(), manifest: Self::parse(&bytes)?, manifest_sha256: Sha256::of(&bytes) })
    }

    /// Reads the bytes of a manifest.
    ///
    /// # Errors
    /// An issue: they are not of the schema.
    pub fn parse(bytes: &[u8]) -> Result<Manifest, Box<Issue>> {
        let issue = |code, message: String| Box::new(Issue::new(code, MANIFEST, message));
        json::parse_names(bytes).map_err(|error| {
            // Of another version the fields need not fit.
            match serde_json::from_slice::<Version>(bytes) {
                Ok(Version { schema_version }) if schema_version != manifest::SCHEMA_VERSION => {
                    let message = format!("schema_version is {schema_version}, expected {}", manifest::SCHEMA_VERSION);
                    issue("unsupported_schema_version", message)
                }
                _ => issue("invalid_manifest_json", format!("is not of the schema: {error}")),
            }
        })
    }

    /// Where an artifact is, once it is sure that it is a file of this package and as long as stated.
    ///
    /// # Errors
    /// The path leaves the package, by its words or through a link; the file is absent, is none, or has another length.
    pub fn locate(&self, artifact: &Artifact) -> Result<PathBuf, Box<Issue>> {
        let issue = |code, message: String| Box::new(Issue::new(code, &artifact.path, message));
        if !check::is_safe_path(&artifact.path) {
            return Err(issue("unsafe_artifact_path", "the path leads out of the package".to_owned()));
        }
        let path = self.dir.join(&artifact.path);
        let absent = |error| issue("missing_artifact", format!("cannot be opened: {error}"));
        let (root, real) = (fs::canonicalize(&self.dir).map_err(absent)?, fs::canonicalize(&path).map_err(absent)?);
        if !real.starts_with(&root) && !is_cached_blob(&root, &real) {
            let message = format!("is a link to {}, outside of the package", real.display());
            return Err(issue("artifact_outside_package", message));
        }
        let (_, stat) = plain::open(&real).map_err(|error| issue("missing_artifact", error.to_string()))?;
        if stat.len() != artifact.artifact_bytes {
            let message = format!("has {} bytes, artifact_bytes is {}", stat.len(), artifact.artifact_bytes);
            return Err(issue("artifact_size_mismatch", message));
        }
        Ok(path)
    }
}

/// A download cache of the Hugging Face libraries: `REPO/snapshots/REVISION` holds links into `REPO/blobs`.
fn is_cached_blob(root: &Path, real: &Path) -> bool {
    let snapshots = root.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"));
    let repository = snapshots.and_then(Path::parent);
    repository.is_some_and(|repository| real.starts_with(repository.join("blobs")))
}

/// The artifact that a tensor belongs in. `head` is the block that tensors of an MTP head belong to wherever they stand.
///
/// A tensor of the file that is of no block and that nothing is known of goes where every stage finds it.
pub fn home(tensor: &str, head: Option<u32>) -> Role {
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| tensor.starts_with(prefix));
    match (compat::block_of(tensor), head) {
        (Some((block, _)), _) if u32::try_from(block).is_ok() => Role::Layer(block as u32),
        (_, Some(head)) if compat::is_top_level_head(tensor) => Role::Layer(head),
        _ if starts(&["token_embd", "per_layer_", "position_embd", "token_types"]) => Role::Embeddings,
        _ if starts(&["output"]) => Role::Output,
        _ => Role::Metadata,
    }
}

/// The keys of a model that stay in a package: all but those that describe how the source was split.
pub fn is_split_key(key: &str) -> bool {
    key.starts_with("split.")
}

/// Keys that the tokenizer consists of, in the order of the file.
pub fn tokenizer_keys(meta: &Meta) -> impl Iterator<Item = (&str, &crate::gguf::Value)> {
    meta.iter().filter(|(key, _)| key.starts_with("tokenizer."))
}

/// Digest of a token list: each token as its length (u64, little-endian) and its bytes. `None` without a list.
pub fn tokenizer_digest(meta: &Meta) -> Option<Sha256> {
    let tokens = meta.get_str_array("tokenizer.ggml.tokens").ok()??;
    let mut bytes = Vec::new();
    for token in tokens.iter() {
        bytes.extend_from_slice(&(token.len() as u64).to_le_bytes());
        bytes.extend_from_slice(token);
    }
    Some(Sha256::of(&bytes))
}

#[cfg(test)]
mod tests;
