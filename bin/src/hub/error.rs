//! Why a model of a hub is not there, and the exit code that says so.

use std::io;
use std::path::Path;

use crate::pack::error::{FAILED, REFUSED, USAGE};

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A name that is none.
    #[error("{0}")]
    Reference(String),
    /// A variable of the environment that says nothing sensible.
    #[error("{name}: {what}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// The hub has no such thing, does not give it, or says what cannot be.
    #[error("{0}")]
    Refused(String),
    /// The cache alone may be used and does not have it.
    #[error(
        "{reference}: HF_HUB_OFFLINE is set, and the cache lacks it ({cache}: {why}); unset it, or fetch the model first"
    )]
    Offline {
        /// As asked for.
        reference: String,
        /// Directory of the repository in the cache.
        cache: String,
        /// What is missing.
        why: String,
    },
    /// No answer, or none that could be used, after all tries.
    #[error("{what}, {tries} times; {}", again(*kept))]
    Network {
        /// Where, and what happened last.
        what: String,
        /// How often it was tried.
        tries: u32,
        /// Bytes of the file that lie in the cache, to be gone on from.
        kept: u64,
    },
    /// Bytes that are not those of the listing.
    #[error("{url}: {found} after the download, expected {expected} as listed; nothing of it was kept")]
    Digest {
        /// Where they came from.
        url: String,
        /// Digest of what came.
        found: String,
        /// Digest of the listing.
        expected: String,
    },
    /// The disk is too small.
    #[error(
        "{dir}: {needed} bytes are to be fetched and {free} are free; free some, or set HF_HUB_CACHE to another disk"
    )]
    Space {
        /// Where.
        dir: String,
        /// To be fetched.
        needed: u64,
        /// Free.
        free: u64,
    },
    /// The system refused an operation on the cache.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// File or directory.
        path: String,
        /// What was attempted.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

fn again(kept: u64) -> String {
    match kept {
        0 => "run it again".to_owned(),
        kept => format!("{kept} bytes have arrived and are kept, so run it again to go on"),
    }
}

impl HubError {
    /// [`Self::Io`] for `map_err`.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.display().to_string(), action, source }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Reference(_) | Self::Setting { .. } => USAGE,
            Self::Refused(_) | Self::Offline { .. } | Self::Digest { .. } => REFUSED,
            Self::Network { .. } | Self::Space { .. } | Self::Io { .. } => FAILED,
        }
    }
}
