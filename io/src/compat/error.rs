//! Names that contradict each other, or have no meaning in a head.

use thiserror::Error;

/// Why a head cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NameError {
    /// It is more than a head.
    #[error("expected the tensors of blk.{block}.* alone, found blocks of a trunk or of another head, such as {found}")]
    OtherBlock {
        /// Block of the head.
        block: usize,
        /// A tensor of another one.
        found: String,
    },
    /// A mixer at top level of which a part is missing.
    #[error("it has {found} without {missing}: a part of its last mixer is lost; download or convert it again")]
    PartialMixer {
        /// Members that are there.
        found: String,
        /// Members that are not.
        missing: String,
    },
    /// A mixer at top level that is not the head's.
    #[error(
        "{found} holds the trunk's mixer, and the head's own (blk.{block}.nextn.hc_head_norm.weight) is not there; use \
         a file with the head's own"
    )]
    TrunkMixer {
        /// The norm of the mixer.
        found: String,
        /// Block of the head.
        block: usize,
    },
    /// Two tensors for one.
    #[error("both {first} and {second} stand for {canonical}, with different contents; use a head with one of them")]
    Twice {
        /// One.
        first: String,
        /// The other.
        second: String,
        /// What both are.
        canonical: String,
    },
    /// A tensor that is to be joined from two.
    #[error(
        "it is of dialect {dialect}: it has {found} instead of {expected}{lone}; engine-pack graft joins both halves \
         into that matrix, columns of the embedding first"
    )]
    Halves {
        /// Of the file.
        dialect: &'static str,
        /// Halves that are there.
        found: String,
        /// What they are halves of.
        expected: String,
        /// What to say if there is one alone.
        lone: &'static str,
    },
    /// A tensor that has no meaning here.
    #[error("it is of dialect {dialect}: {found} is {reason}")]
    Refused {
        /// Of the file.
        dialect: &'static str,
        /// A tensor of it.
        found: String,
        /// What that is, and what to do.
        reason: &'static str,
    },
}
