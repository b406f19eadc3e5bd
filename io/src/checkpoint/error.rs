//! What is wrong with a checkpoint.

use std::io;
use std::path::Path;

use safetensors::SafeTensorError;

/// Why a checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The system refused an operation.
    #[error("{file}: cannot {action}: {source}")]
    Io {
        /// File or directory.
        file: String,
        /// What was attempted.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A directory without safetensors.
    #[error("{dir}: holds no .safetensors file; give the directory of the checkpoint, or a .safetensors file")]
    NoCheckpoint {
        /// The directory.
        dir: String,
    },
    /// A directory of several checkpoints.
    #[error("{dir}: holds several indexes ({}); give a directory of one checkpoint", found.join(", "))]
    Ambiguous {
        /// The directory.
        dir: String,
        /// Their names.
        found: Vec<String>,
    },
    /// An index that leads out of its directory.
    #[error(
        "{file}: tensor {tensor} is said to be in {found:?}, expected the name of a .safetensors file beside the index; \
         use the publisher's own index"
    )]
    Outside {
        /// The index.
        file: String,
        /// The tensor.
        tensor: String,
        /// Where it is said to be.
        found: String,
    },
    /// A file that the index names is not there.
    #[error("{file}: is missing, and {index} says that tensor {tensor} is in it; download the file")]
    MissingFile {
        /// Path expected.
        file: String,
        /// The index.
        index: String,
        /// A tensor of it.
        tensor: String,
    },
    /// A tensor that the index names is not in its file.
    #[error(
        "{file}: has no tensor {tensor}, which {index} says is in it; index and files do not belong together, download \
         both again"
    )]
    NotInFile {
        /// The file.
        file: String,
        /// The index.
        index: String,
        /// The tensor.
        tensor: String,
    },
    /// One tensor in two files.
    #[error("tensor {tensor} appears twice: in {file} and in {other}; give the file that is meant")]
    Twice {
        /// The tensor.
        tensor: String,
        /// One file.
        file: String,
        /// The other.
        other: String,
    },
    /// A header or data that are not what the format says.
    #[error("{file}: not a safetensors file that can be read: {reason}")]
    Damaged {
        /// The file.
        file: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A file that cannot be opened or mapped, is no JSON, or that changed.
    #[error(transparent)]
    File(#[from] crate::Error),
}

impl CheckpointError {
    pub(super) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { file: path.display().to_string(), action, source }
    }
}

/// What is wrong with a header, and what to do.
pub(super) fn reason(error: &SafeTensorError, bytes: &[u8]) -> String {
    if bytes.starts_with(b"version https://git-lfs") {
        return String::from("it is a Git LFS pointer: run `git lfs pull` to get the file itself");
    }
    if bytes.starts_with(b"GGUF") {
        return String::from("it is a GGUF file, which needs no conversion: give it to graft, or as a draft model");
    }
    let announced = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let header = || format!("its header says it has {announced} bytes, the file has {}", bytes.len());
    let what = match error {
        SafeTensorError::HeaderTooLarge | SafeTensorError::InvalidHeaderLength => header(),
        SafeTensorError::InvalidOffset(tensor) => {
            format!("the data of tensor {tensor} overlap others or leave a hole, expected one behind the other")
        }
        SafeTensorError::TensorInvalidInfo => String::from("a tensor has more or fewer bytes than its shape and type"),
        SafeTensorError::ValidationOverflow => String::from("a tensor has a shape beyond 64 bits"),
        SafeTensorError::MetadataIncompleteBuffer => String::from("its tensors do not end where the file ends"),
        other => other.to_string(),
    };
    format!("{what}; the file is incomplete or damaged, download it again")
}
