//! Why a model file is refused. Each message names the file's key or tensor, what was found, what was expected.

use thiserror::Error;

use super::preflight::Preflight;

/// A refused model file.
#[derive(Debug, Error)]
pub enum ModelError {
    /// An architecture that cannot be run.
    #[error("{file}: general.architecture = {found:?} cannot be run; this engine runs {supported}")]
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
    /// A model that no head can be made for.
    #[error("{file}: architecture {arch} has no MTP block; give a model of one that has")]
    NoHead {
        /// Path of the file.
        file: String,
        /// Architecture.
        arch: &'static str,
    },
    /// A draft file that does not fit its target.
    #[error(
        "{file}: does not fit the model it shall draft for: {what} is {draft} here and {target} in the model; give the \
         sidecar that was made from this model, or none"
    )]
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
    #[error(
        "{file}: cannot be used as a draft model: {reason}; give an MTP sidecar (one NextN block in a file of its own), \
         or none"
    )]
    NotASidecar {
        /// Path of the draft file.
        file: String,
        /// Why.
        reason: String,
    },
    /// A stage that the file cannot be.
    #[error("{file}: {reason}")]
    Stage {
        /// Path of the file.
        file: String,
        /// What contradicts what, and what to do.
        reason: String,
    },
    /// A parameter of another architecture.
    #[error("{file}: the parameter {parameter} is one of {supported} models, this is {arch}; leave it out")]
    Convention {
        /// Path of the file.
        file: String,
        /// Its name.
        parameter: &'static str,
        /// The architecture that has it.
        supported: &'static str,
        /// Architecture of the file.
        arch: &'static str,
    },
    /// An array over the blocks that cannot get an entry for one more.
    #[error("{file}: {key} has {found} entries for {trunk} blocks and none can be added: {why}; convert it again")]
    NoEntry {
        /// Path of the file.
        file: String,
        /// The key.
        key: String,
        /// Its length.
        found: usize,
        /// Blocks of the trunk.
        trunk: usize,
        /// Why.
        why: &'static str,
    },
    /// Tensors that are multiplied onto the products of others.
    #[error("{file}: {count} tensors (such as {example}) scale other tensors, which is not computed; use another file")]
    Scales {
        /// Path of the file.
        file: String,
        /// How many.
        count: usize,
        /// One of them.
        example: String,
    },
    /// An MTP block that is in the file and cannot be used, where everything must be read.
    #[error("{reason}; --strict refuses tensors that nothing reads, such as {example}")]
    UnreadHead {
        /// Path of the file.
        file: String,
        /// One of its tensors.
        example: String,
        /// Why it cannot be used; begins with the path.
        reason: String,
    },
    /// Values that no correct file holds.
    #[error("{file}: tensor {tensor} {reason}; convert the model again")]
    Values {
        /// Path of the file.
        file: String,
        /// Its name.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The tensor directory does not fit the architecture (all faults in one list).
    #[error("{file}: the tensors do not fit:\n{report}")]
    Preflight {
        /// Path of the file.
        file: String,
        /// Everything missing, of wrong shape, of unsupported type, and (strict) unexpected.
        report: Box<Preflight>,
    },
    /// Missing, mistyped or contradictory metadata, or a file that cannot be read.
    #[error(transparent)]
    File(#[from] engine_io::Error),
    /// A matrix that the kernels refuse.
    #[error("{file}: tensor {tensor}: {reason}")]
    Matrix {
        /// Path of the file.
        file: String,
        /// Its name.
        tensor: String,
        /// The kernels' own words.
        reason: engine_kernels::ShapeError,
    },
}
