//! Why a head cannot be put behind a target. Each message names what was found and expected, and what to do.

use std::fmt;

use engine_io::TensorType;
use engine_io::compat::NameError;
use thiserror::Error;

use crate::model::error::ModelError;

/// One reason.
#[derive(Debug, Error)]
pub enum Reason {
    /// The architecture has no MTP block.
    #[error("{target}: architecture {arch} has no MTP block, so that no head fits behind it")]
    NoMtp {
        /// Path of the target.
        target: String,
        /// Its architecture.
        arch: &'static str,
    },
    /// The target has a head already.
    #[error(
        "{target}: has a head already ({found}), and a graft does not take one away; give the model as it was published without \
         one, or let another head draft for this one as it is: engine-serve --model MODEL --spec-draft-model HEAD"
    )]
    TargetHasHead {
        /// Path of the target.
        target: String,
        /// What tells.
        found: String,
    },
    /// The target is a head.
    #[error("{target}: holds no blk.0.*, so it is a head and no target; give the model itself as --target")]
    TargetIsHead {
        /// Path of the target.
        target: String,
    },
    /// Another architecture.
    #[error("{head}: general.architecture is {found}, the target's is {expected}; give the head of this model")]
    Arch {
        /// Path of the head.
        head: String,
        /// Its architecture.
        found: String,
        /// The target's.
        expected: &'static str,
    },
    /// No block, or several.
    #[error("{head}: {arch}.nextn_predict_layers is {found}, expected 1: one block can be put behind a trunk")]
    Blocks {
        /// Path of the head.
        head: String,
        /// Architecture.
        arch: &'static str,
        /// The value.
        found: usize,
    },
    /// Parts of a trunk.
    #[error(
        "{head}: is not a head alone: expected the tensors of one block, or a whole model with its NextN block; found \
         {found}"
    )]
    NotHeadOnly {
        /// Path of the head.
        head: String,
        /// What is there.
        found: String,
    },
    /// A number that both must share.
    #[error("{head}: {what} is {found} here and {expected} in the target; {hint}")]
    Differs {
        /// Path of the head.
        head: String,
        /// Key, or what was compared.
        what: String,
        /// The head's.
        found: String,
        /// The target's.
        expected: String,
        /// What to do.
        hint: &'static str,
    },
    /// Names that contradict each other.
    #[error("{head}: {source}")]
    Names {
        /// Path of the head.
        head: String,
        /// How.
        source: NameError,
    },
    /// Tensors that no rule takes.
    #[error(
        "{head}: no rule says what becomes of {}, and nothing is left out in silence; use a head of a known layout",
        tensors.join(", ")
    )]
    Unknown {
        /// Path of the head.
        head: String,
        /// Their names.
        tensors: Vec<String>,
    },
    /// A half of the projection without the other.
    #[error("{head}: {found} is one half of {expected} and the other half is missing; download or convert it again")]
    LoneHalf {
        /// Path of the head.
        head: String,
        /// The half that is there.
        found: String,
        /// What both would be.
        expected: String,
    },
    /// Halves that cannot be joined as they are.
    #[error(
        "{head}: {halves} cannot be joined to {expected} without quantising again: found {found}, \
         expected two [{d}, {d}] of one type whose blocks divide {d}"
    )]
    Halves {
        /// Path of the head.
        head: String,
        /// The half for the embedding and the one for the hidden row.
        halves: String,
        /// What both would be.
        expected: String,
        /// Shapes and types.
        found: String,
        /// Width of a hidden row.
        d: usize,
    },
    /// An output norm that is not the target's.
    #[error("{head}: output_norm.weight is not the target's, byte for byte: the head was made for another model")]
    OutputNorm {
        /// Path of the head.
        head: String,
    },
    /// A name that other engines cannot read.
    #[error("{head}: the name {name} has {len} bytes, llama.cpp reads 63; use a head of another layout")]
    LongName {
        /// Path of the head.
        head: String,
        /// The name.
        name: String,
        /// Its length.
        len: usize,
    },
    /// A name that the target has.
    #[error("{head}: {tensor} would be there twice, {target} has it; give a target without a head")]
    Collision {
        /// Path of the head.
        head: String,
        /// Its name.
        tensor: String,
        /// Path of the target.
        target: String,
    },
    /// A dialect that a whole model cannot have.
    #[error("--dialect {dialect}: {why}; leave it out, or give C")]
    Dialect {
        /// As asked for.
        dialect: &'static str,
        /// Why not.
        why: String,
    },
    /// Two tensors of different shape, missing ones, and whatever else the loader refuses.
    #[error("{head}: {source}")]
    Model {
        /// Path of the head.
        head: String,
        /// The loader's words; they may speak of the target.
        source: Box<ModelError>,
    },
    /// The target or the head cannot be read at all, or not be made longer by a block.
    #[error(transparent)]
    Unreadable(#[from] ModelError),
}

/// Everything that is wrong at once.
#[derive(Debug)]
pub struct GraftError(pub Vec<Reason>);

impl std::error::Error for GraftError {}

impl fmt::Display for GraftError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Reason::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl From<Reason> for GraftError {
    fn from(reason: Reason) -> Self {
        Self(vec![reason])
    }
}

impl From<engine_io::Error> for GraftError {
    fn from(error: engine_io::Error) -> Self {
        Reason::from(ModelError::from(error)).into()
    }
}

impl From<ModelError> for GraftError {
    fn from(error: ModelError) -> Self {
        Reason::from(error).into()
    }
}

/// Shape and type, for messages.
pub fn shape(dims: &[u64], ty: TensorType) -> String {
    format!("{dims:?} {ty}")
}
