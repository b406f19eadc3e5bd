//! Why a model file is refused. Each message names the file's key or tensor, what was found, what was expected.

use std::fmt;

use thiserror::Error;

/// A refused model file.
#[derive(Debug, Error)]
pub enum ModelError {
    /// An architecture that cannot be run.
    #[error("{file}: general.architecture = {found} cannot be run; this engine runs {supported}")]
    Architecture {
        /// Path of the file.
        file: String,
        /// In the file.
        found: String,
        /// What could be run.
        supported: String,
    },
    /// A legal value that this engine does not implement.
    #[error("{file}: key {key} asks for {found}, which this engine does not implement; it does {supported}")]
    Unsupported {
        /// Path of the file.
        file: String,
        /// Its full name.
        key: String,
        /// The value.
        found: String,
        /// What is supported.
        supported: String,
    },
    /// The file is an MTP sidecar.
    #[error(
        "{file}: holds only block {block} of a {arch} model (an MTP sidecar); \
         give the model itself, and this file as the draft model"
    )]
    Sidecar {
        /// Path of the file.
        file: String,
        /// Architecture.
        arch: &'static str,
        /// The one block.
        block: usize,
    },
    /// A draft file that does not fit its target.
    #[error("{file}: does not fit the model it shall draft for: {what} is {draft} here and {target} in the model")]
    Mismatch {
        /// Path of the draft file.
        file: String,
        /// What was compared.
        what: String,
        /// Its value in the draft file.
        draft: String,
        /// Its value in the model.
        target: String,
    },
    /// A draft file that is no sidecar.
    #[error("{file}: cannot be used as a draft model: {reason}")]
    NotASidecar {
        /// Path of the draft file.
        file: String,
        /// Why.
        reason: String,
    },
    /// Everything that is wrong with the tensors, found in one pass.
    #[error("{file}: the tensors do not make up the model:{report}")]
    Tensors {
        /// Path of the file.
        file: String,
        /// Everything that was found.
        report: Box<TensorReport>,
    },
    /// Missing, mistyped or contradictory metadata, or a file that cannot be read.
    #[error(transparent)]
    File(#[from] engine_io::error::Error),
    /// A matrix that its kernels refuse.
    #[error("tensor `{name}`: {reason}")]
    Matrix {
        /// Its name.
        name: String,
        /// The kernel's own words.
        reason: String,
    },
}

/// Findings about the tensors of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TensorReport {
    /// Required and absent.
    pub missing: Vec<String>,
    /// Present with another shape than the metadata implies: name, found, expected (GGUF order, contiguous first).
    pub shape: Vec<(String, Vec<u64>, Vec<u64>)>,
    /// Present in a type that cannot be computed with: name, type, what could be.
    pub kind: Vec<(String, String, &'static str)>,
    /// Values that no correct file holds: name and reason.
    pub values: Vec<(String, String)>,
    /// Present and not part of the model. Fatal in strict mode only.
    pub unexpected: Vec<String>,
}

impl TensorReport {
    /// Whether the model can be run; unexpected tensors do not stand in the way.
    pub fn runs(&self) -> bool {
        self.missing.is_empty() && self.shape.is_empty() && self.kind.is_empty() && self.values.is_empty()
    }
}

impl fmt::Display for TensorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for name in &self.missing {
            write!(f, "\n  missing: {name}")?;
        }
        for (name, found, expected) in &self.shape {
            write!(f, "\n  wrong shape: {name} is {found:?}, expected {expected:?}")?;
        }
        for (name, found, expected) in &self.kind {
            write!(f, "\n  unsupported type: {name} is {found}, supported: {expected}")?;
        }
        for (name, reason) in &self.values {
            write!(f, "\n  bad values: {name} {reason}")?;
        }
        for name in &self.unexpected {
            write!(f, "\n  unexpected: {name}")?;
        }
        Ok(())
    }
}
