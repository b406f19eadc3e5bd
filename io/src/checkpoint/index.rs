//! Which files of a directory to open, from its index.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::error::CheckpointError;
use crate::plain;

/// The largest index that is read.
const INDEX_BYTES_MAX: u64 = 256 << 20;

/// A file to be opened.
pub(super) struct Named {
    pub path: PathBuf,
    /// Tensors asked for that an index says are in it.
    pub tensors: Vec<String>,
    /// That index.
    pub index: Option<PathBuf>,
}

impl Named {
    /// A file that nothing is known of.
    pub fn alone(path: &Path) -> Self {
        Self { path: path.to_owned(), tensors: Vec::new(), index: None }
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files of a directory that may hold a tensor that is `wanted`.
pub(super) fn files_of(dir: &Path, wanted: &impl Fn(&str) -> bool) -> Result<Vec<Named>, CheckpointError> {
    let mut files = Vec::new();
    let mut indexes = Vec::new();
    for entry in fs::read_dir(dir).map_err(CheckpointError::io(dir, "list"))? {
        let path = entry.map_err(CheckpointError::io(dir, "list"))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        if name.ends_with(".safetensors.index.json") {
            indexes.push(path);
        } else if name.ends_with(".safetensors") {
            files.push(path);
        }
    }
    files.sort();
    let listed = match indexes.as_slice() {
        [] if files.is_empty() => return Err(CheckpointError::NoCheckpoint { dir: dir.display().to_string() }),
        [] => return Ok(files.iter().map(|path| Named::alone(path)).collect()),
        [index] => read(index, wanted)?,
        several => {
            let mut found: Vec<String> = several.iter().map(|p| p.display().to_string()).collect();
            found.sort();
            return Err(CheckpointError::Ambiguous { dir: dir.display().to_string(), found });
        }
    };
    let (mut named, known) = listed;
    // A head is often added to a published checkpoint as one more file, and the index left as it was.
    named.extend(files.iter().filter(|path| !known.contains(path)).map(|path| Named::alone(path)));
    Ok(named)
}

/// The files with wanted tensors, and all files the index knows.
fn read(index: &Path, wanted: &impl Fn(&str) -> bool) -> Result<(Vec<Named>, Vec<PathBuf>), CheckpointError> {
    let (parsed, _): (Index, _) = plain::json(index, INDEX_BYTES_MAX, "index of safetensors")?;
    let dir = index.parent().unwrap_or(Path::new(""));
    let mut by_file: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (tensor, file) in &parsed.weight_map {
        let mut parts = Path::new(file).components();
        let beside = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
        if !beside || !file.ends_with(".safetensors") {
            let (index, tensor, found) = (index.display().to_string(), tensor.clone(), file.clone());
            return Err(CheckpointError::Outside { file: index, tensor, found });
        }
        let tensors = by_file.entry(file).or_default();
        if wanted(tensor) {
            tensors.push(tensor.clone());
        }
    }
    let known = by_file.keys().map(|file| dir.join(file)).collect();
    let named = by_file.into_iter().filter(|(_, tensors)| !tensors.is_empty());
    let named = named.map(|(file, tensors)| Named { path: dir.join(file), tensors, index: Some(index.to_owned()) });
    Ok((named.collect(), known))
}
