//! Opens the artifacts of a package as one tensor directory.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::manifest::{Artifact, Manifest, Role};
use super::{Issue, Package, check, home, is_split_key, tokenizer_keys};
use crate::error::{Error, Result};
use crate::gguf::{LayerCounts, Meta, TensorInfo, keys};
use crate::shards::{ModelFile, OpenOptions, Shard, open_file};

/// One artifact, open.
pub struct Part {
    /// What it is.
    pub role: Role,
    /// Its path in the manifest.
    pub path: String,
    /// The file.
    pub shard: Shard,
    /// Its tensors.
    pub tensors: Vec<TensorInfo>,
}

/// Opens a package as a model: metadata first, then embeddings, blocks, output.
///
/// # Errors
/// [`Error::Package`] with everything that is wrong.
pub fn open(dir: &Path, options: OpenOptions) -> Result<ModelFile> {
    let refuse = |issues| Error::Package { dir: dir.display().to_string(), issues };
    let package = Package::read(dir).map_err(|issue| refuse(vec![*issue]))?;
    let mut issues = check::manifest(&package.manifest);
    if issues.is_empty() {
        let (parts, found) = artifacts(&package, options, &[]);
        issues = found;
        if issues.is_empty() {
            issues = check_parts(&package.manifest, &parts);
        }
        if issues.is_empty() {
            return join(package, parts);
        }
    }
    Err(refuse(issues))
}

/// Artifacts that can be opened, in the order of the model, and what is wrong with the others. Projectors are looked at
/// and left out, and so is what `known` speaks of.
pub fn artifacts(package: &Package, options: OpenOptions, known: &[Issue]) -> (Vec<Part>, Vec<Issue>) {
    let (mut parts, mut issues) = (Vec::new(), Vec::new());
    let is_known = |artifact: &Artifact| known.iter().any(|issue| issue.path.as_ref() == Some(&artifact.path));
    for (role, artifact) in package.manifest.artifacts().filter(|(_, artifact)| !is_known(artifact)) {
        match (package.locate(artifact), role) {
            (Err(issue), _) => issues.push(*issue),
            (Ok(_), Role::Projector) => {}
            (Ok(path), _) => match open_file(&path, options) {
                Ok((shard, tensors)) => {
                    issues.extend(counts(artifact, &tensors));
                    parts.push(Part { role, path: artifact.path.clone(), shard, tensors });
                }
                Err(error) => issues.push(Issue::new("unreadable_artifact", &artifact.path, error.to_string())),
            },
        }
    }
    let place = |role| match role {
        Role::Metadata => 0,
        Role::Embeddings => 1,
        Role::Layer(index) => 2 + u64::from(index),
        Role::Output | Role::Projector => u64::MAX,
    };
    parts.sort_by_key(|part| place(part.role));
    (parts, issues)
}

/// The parts as one model.
///
/// # Errors
/// [`Error::DuplicateTensor`], which [`check_parts`] finds first.
pub fn join(package: Package, parts: Vec<Part>) -> Result<ModelFile> {
    let mut model = ModelFile::join(parts.into_iter().map(|part| (part.shard, part.tensors)).collect())?;
    model.package = Some(Arc::new(package));
    Ok(model)
}

fn counts(artifact: &Artifact, tensors: &[TensorInfo]) -> Option<Issue> {
    let (count, bytes) = (tensors.len() as u64, tensors.iter().map(|t| t.bytes).sum::<u64>());
    let Artifact { path, tensor_count, tensor_bytes, .. } = artifact;
    if count != *tensor_count {
        let message = format!("holds {count} tensors, tensor_count is {tensor_count}");
        return Some(Issue::new("artifact_tensor_count_mismatch", path, message));
    }
    (bytes != *tensor_bytes).then(|| {
        let message = format!("holds tensors of {bytes} bytes, tensor_bytes is {tensor_bytes}");
        Issue::new("artifact_tensor_bytes_mismatch", path, message)
    })
}

/// What open artifacts say of the manifest and of each other: as many blocks and as wide a row as stated, no tensor
/// twice, those of blocks in their block's artifact, one tokenizer, no remains of a split.
pub fn check_parts(manifest: &Manifest, parts: &[Part]) -> Vec<Issue> {
    let mut issues = Vec::new();
    let Some(first) = parts.iter().find(|part| part.role == Role::Metadata) else { return issues };
    issues.extend(numbers(manifest, &first.shard.meta));
    let head = head_block(&first.shard.meta);
    let mut seen: HashMap<&str, &str> = HashMap::new();
    for part in parts {
        for t in &part.tensors {
            if let Some(other) = seen.insert(&t.name, &part.path) {
                let message = format!("holds tensor {}, and so does {other}", t.name);
                issues.push(Issue::new("duplicate_tensor", &part.path, message));
            }
            let home = home(&t.name, head);
            let of_block = |role| matches!(role, Role::Layer(_));
            if home != part.role && (of_block(home) || of_block(part.role)) {
                let message = format!("holds tensor {}, which belongs in {}", t.name, place(home));
                issues.push(Issue::new("tensor_in_wrong_artifact", &part.path, message));
            }
        }
        for (key, value) in tokenizer_keys(&part.shard.meta) {
            if first.shard.meta.get(key).is_some_and(|there| there != value) {
                let message = format!("{key} is another one than in {}", first.path);
                issues.push(Issue::new("tokenizer_mismatch", &part.path, message));
            }
        }
        issues.extend(split(part, parts));
    }
    issues
}

/// The numbers that manifest and metadata both have. What cannot be read in the metadata is the loader's to tell.
fn numbers(manifest: &Manifest, meta: &Meta) -> Vec<Issue> {
    let mut issues = Vec::new();
    let Ok(arch) = meta.architecture() else { return issues };
    let number = |suffix: &str| meta.get_u64(&keys::arch(arch, suffix)).ok().flatten();
    if let Some(blocks) = number(keys::BLOCK_COUNT).filter(|blocks| *blocks != u64::from(manifest.layer_count)) {
        let message = format!("the model has {blocks} blocks, layer_count is {}", manifest.layer_count);
        issues.push(Issue::new("layer_count_mismatch", "layer_count", message));
    }
    // A number below 1 is told as that.
    let stated = manifest.activation_width.filter(|stated| *stated > 0);
    if let (Some(stated), Some(width)) = (stated, number("embedding_length"))
        && u64::try_from(stated) != Ok(width)
    {
        let message = format!("is {stated}, the model's hidden size is {width}");
        issues.push(Issue::new("activation_width_mismatch", "activation_width", message));
    }
    issues
}

/// Split keys of an artifact are left over from a file that was one of several; a reader that believes them looks for
/// files that are not there.
fn split(part: &Part, parts: &[Part]) -> Option<Issue> {
    let (key, value) = part.shard.meta.iter().find(|(key, _)| is_split_key(key))?;
    let all: usize = parts.iter().map(|part| part.tensors.len()).sum();
    let message = format!("has the key {key} = {value}, and the package holds {all} tensors in {} files", parts.len());
    Some(Issue::new("split_tensor_count_mismatch", &part.path, message))
}

fn place(role: Role) -> String {
    match role {
        Role::Layer(index) => format!("the artifact of block {index}"),
        other => format!("shared.{}", other.name()),
    }
}

/// The NextN block that metadata speak of.
pub fn head_block(meta: &Meta) -> Option<u32> {
    let counts = LayerCounts::read(meta, meta.architecture().ok()?).ok()?;
    (counts.nextn == 1).then(|| counts.trunk())
}
