//! Checkpoints in safetensors: which tensors they hold, and the bytes of those, a range at a time.
//!
//! What a path means:
//! - a `.safetensors` file: itself;
//! - a directory: the files that its `*.safetensors.index.json` names for the tensors asked for, and any `.safetensors`
//!   file that the index does not speak of; without an index every `.safetensors` file.
//!
//! Only files that may hold a tensor asked for are opened, and of those the header alone is mapped for a moment: data are
//! read by position, so that memory stays bounded however large the checkpoint is.
//!
//! Source: the safetensors format (the library parses headers and checks that the tensors cover the file exactly).

pub mod error;
mod index;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::Value;

pub use error::CheckpointError;

use crate::gguf::TensorType;
use crate::json;
use crate::mmap::FileBytes;
use crate::plain;
use crate::watch::OpenFile;

/// The largest `config.json` that is read.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// A tensor of a checkpoint.
#[derive(Clone, Debug)]
pub struct SourceTensor {
    /// Its name in the file.
    pub name: String,
    /// Its type as the file spells it.
    pub dtype: String,
    /// The same, where GGUF has it as a type of weights.
    pub ty: Option<TensorType>,
    /// Extents, outermost first: the reverse of GGUF's.
    pub shape: Vec<u64>,
    /// Bytes.
    pub bytes: u64,
    file: usize,
    start: u64,
}

/// One file with tensors that were asked for.
#[derive(Debug)]
struct SourceFile {
    path: PathBuf,
    file: File,
    watch: OpenFile,
}

/// An opened checkpoint, as far as it was asked for.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<SourceFile>,
    tensors: Vec<SourceTensor>,
    others: usize,
    config: Option<PathBuf>,
}

impl Checkpoint {
    /// Opens the tensors whose names are `wanted`.
    ///
    /// # Errors
    /// [`CheckpointError`]: no checkpoint, an index that leads out of its directory or to nothing, a damaged header, a
    /// tensor twice, a file that cannot be read.
    pub fn open(path: &Path, wanted: impl Fn(&str) -> bool) -> Result<Self, CheckpointError> {
        let (dir, files) = match plain::stat(path)?.is_dir() {
            true => (path, index::files_of(path, &wanted)?),
            false => (path.parent().unwrap_or(Path::new("")), vec![index::Named::alone(path)]),
        };
        let config = dir.join("config.json");
        let config = plain::is_there(&config).then_some(config);
        let mut out = Self { path: path.to_owned(), files: Vec::new(), tensors: Vec::new(), others: 0, config };
        for named in files {
            out.add(named, &wanted)?;
        }
        Ok(out)
    }

    fn add(&mut self, named: index::Named, wanted: &impl Fn(&str) -> bool) -> Result<(), CheckpointError> {
        let index::Named { path, tensors: promised, index } = named;
        let name = path.display().to_string();
        if let (Some(index), false) = (&index, plain::is_there(&path)) {
            let tensor = promised.first().cloned().unwrap_or_default();
            return Err(CheckpointError::MissingFile { file: name, index: index.display().to_string(), tensor });
        }
        let (file, stat) = plain::open(&path)?;
        let watch = OpenFile::new(&name, file.try_clone().map_err(CheckpointError::io(&path, "open"))?, &stat);
        let damaged = |reason: String| CheckpointError::Damaged { file: name.clone(), reason };
        let len = usize::try_from(stat.len()).map_err(|_| damaged(format!("{} bytes are too many", stat.len())))?;
        if len < 8 {
            return Err(damaged(format!("it has {len} bytes, fewer than the length of a header takes")));
        }
        let (header, metadata) = {
            let bytes = FileBytes::map(&file, len, &name)?;
            let bytes = bytes.as_ref();
            let (header, metadata) =
                SafeTensors::read_metadata(bytes).map_err(|error| damaged(error::reason(&error, bytes)))?;
            // The library takes the last of two tensors of one name; another reader may take the first.
            json::check_keys(&bytes[8..8 + header]).map_err(|error| damaged(format!("its header: {error}")))?;
            (header, metadata)
        };
        let number = self.files.len();
        let mut found: Vec<SourceTensor> = Vec::new();
        for (tensor, info) in metadata.tensors() {
            if !wanted(&tensor) {
                self.others += 1;
                continue;
            }
            let (start, end) = info.data_offsets;
            found.push(SourceTensor {
                name: tensor,
                dtype: info.dtype.to_string(),
                ty: type_of(info.dtype),
                shape: info.shape.iter().map(|&n| n as u64).collect(),
                bytes: (end - start) as u64,
                file: number,
                start: (8 + header + start) as u64,
            });
        }
        found.sort_by_key(|t| t.start);
        if let Some(tensor) = promised.iter().find(|name| !found.iter().any(|t| t.name == **name)) {
            let index = index.map(|p| p.display().to_string()).unwrap_or_default();
            return Err(CheckpointError::NotInFile { file: name, index, tensor: tensor.clone() });
        }
        for t in &found {
            if let Some(other) = self.tensors.iter().find(|other| other.name == t.name) {
                let other = self.files[other.file].path.display().to_string();
                return Err(CheckpointError::Twice { tensor: t.name.clone(), file: name, other });
            }
        }
        if !found.is_empty() {
            self.tensors.append(&mut found);
            self.files.push(SourceFile { path, file, watch });
        }
        Ok(())
    }

    /// What was opened, for messages.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// The tensors asked for, file by file, in the order of their data.
    pub fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    /// Tensors beside them in the files that were opened.
    pub fn others(&self) -> usize {
        self.others
    }

    /// The files that hold them.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|f| f.path.as_path())
    }

    /// The `config.json` beside the checkpoint: where, and what it says. `None` if there is none.
    ///
    /// # Errors
    /// As [`plain::json`].
    pub fn config(&self) -> Result<Option<(String, Value)>, CheckpointError> {
        let Some(path) = &self.config else { return Ok(None) };
        let (config, _) = plain::json(path, CONFIG_BYTES_MAX, "config.json of a checkpoint")?;
        Ok(Some((path.display().to_string(), config)))
    }

    /// Fills `to` with the bytes of a tensor from `offset` on.
    ///
    /// # Errors
    /// The system's, with the file's name; a file that ends too early among them.
    pub(crate) fn read_at(&self, t: &SourceTensor, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let source = &self.files[t.file];
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: tensor {}: {error}", source.path.display(), t.name))
        };
        source.file.read_exact_at(to, t.start + offset).map_err(named)
    }

    /// Asks whether the files are still what they were when they were opened.
    ///
    /// # Errors
    /// [`crate::Error::FileChanged`], [`crate::Error::Io`].
    pub fn check_unchanged(&self) -> crate::Result<()> {
        self.files.iter().try_for_each(|f| f.watch.check())
    }
}

fn type_of(dtype: safetensors::Dtype) -> Option<TensorType> {
    Some(match dtype {
        safetensors::Dtype::F32 => TensorType::F32,
        safetensors::Dtype::F16 => TensorType::F16,
        safetensors::Dtype::BF16 => TensorType::Bf16,
        _ => return None,
    })
}
