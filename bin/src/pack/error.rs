//! Why a verb of `engine-pack` ends without its result, and the exit code that says so.

use std::io::{self, ErrorKind};
use std::path::Path;

use engine::limits::LimitsError;
use engine::model::ModelError;
use engine_io::provenance::ProvenanceError;

use crate::hub::HubError;

/// Exit code of something that failed on the way: 1.
pub const FAILED: u8 = 1;
/// Exit code of a command line that asks for nothing sensible: 2.
pub const USAGE: u8 = 2;
/// Exit code of refused input, or of a check that was not met: 3.
pub const REFUSED: u8 = 3;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// Flags that contradict each other.
    #[error("{0}")]
    Usage(String),
    /// Flags that ask for sizes which cannot be.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// An input that is not what the verb works on: file, key or tensor, found, expected, what to do.
    #[error("{0}")]
    Refused(String),
    /// A file that cannot be read.
    #[error(transparent)]
    Input(#[from] engine_io::Error),
    /// A file that is no model.
    #[error(transparent)]
    Model(ModelError),
    /// A provenance record that cannot be read.
    #[error(transparent)]
    Provenance(#[from] ProvenanceError),
    /// A model of a hub that is not there.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The place for the output is taken.
    #[error("{path}: exists already; give another --out, or remove it")]
    Exists {
        /// The output.
        path: String,
    },
    /// Another run writes the same output.
    #[error("{path}: another run is writing it; wait for that one, or give another --out")]
    Busy {
        /// The output.
        path: String,
    },
    /// The disk is too small.
    #[error("{dir}: {needed} bytes are to be written and {free} are free; free some, or give an --out on another disk")]
    Space {
        /// Where.
        dir: String,
        /// To be written.
        needed: u64,
        /// Free.
        free: u64,
    },
    /// The system refused an operation on the output.
    #[error("{path}: cannot {action}: {source}{}", remedy(source))]
    Output {
        /// File or directory.
        path: String,
        /// What was attempted.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// What was written is not what was meant: a fault of the disk, or of this program.
    #[error("{0}; nothing was left behind")]
    Unverified(String),
}

impl From<ModelError> for PackError {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::File(error) => Self::Input(error),
            other => Self::Model(other),
        }
    }
}

impl PackError {
    /// [`Self::Output`] for `map_err`.
    pub fn output(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Output { path: path.display().to_string(), action, source }
    }

    /// What went wrong between a source and the output `path`, for `map_err`. Values that cannot be stored are the
    /// source's fault.
    pub fn writing(path: &Path) -> impl Fn(engine_io::Error) -> Self {
        |error| match error {
            engine_io::Error::Io { source, .. } if source.kind() == ErrorKind::InvalidData => {
                Self::Refused(source.to_string())
            }
            engine_io::Error::Io { source, .. } => Self::output(path, "write")(source),
            other => other.into(),
        }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Limits(_) => USAGE,
            Self::Refused(_) | Self::Input(_) | Self::Model(_) | Self::Provenance(_) | Self::Exists { .. } => REFUSED,
            Self::Hub(error) => error.code(),
            Self::Busy { .. } | Self::Space { .. } | Self::Output { .. } | Self::Unverified(_) => FAILED,
        }
    }
}

/// What to do about what the system said of an output.
fn remedy(said: &io::Error) -> &'static str {
    match said.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; free some space, or give an --out on another disk",
        ErrorKind::ReadOnlyFilesystem => "; give an --out on a file system that can be written to",
        ErrorKind::PermissionDenied => "; change the permissions, or give an --out elsewhere",
        ErrorKind::FileTooLarge => "; raise the limit of a file's size, or give an --out on another file system",
        // Of a rename: there is nothing else that these are said of.
        ErrorKind::CrossesDevices | ErrorKind::Unsupported => "; give an --out on a local disk",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    /// What no test can bring about on every machine.
    #[test]
    fn what_the_system_says_of_an_output_comes_with_what_to_do() {
        for (errno, action, part) in [
            (Errno::ROFS, "create", "on a file system that can be written to"),
            (Errno::ACCESS, "create", "change the permissions"),
            (Errno::NOSPC, "write", "free some space"),
            (Errno::DQUOT, "write", "free some space"),
            (Errno::FBIG, "write", "raise the limit"),
            (Errno::XDEV, "rename the finished output to", "on a local disk"),
            (Errno::OPNOTSUPP, "rename the finished output to", "on a local disk"),
        ] {
            let error = PackError::output(Path::new("/a/out"), action)(errno.into());
            let text = error.to_string();
            assert!(text.starts_with(&format!("/a/out: cannot {action}: ")) && text.contains(part), "{text}");
            assert_eq!(error.code(), FAILED);
            // Said once, whoever prints it.
            assert_eq!(crate::report::chain(&error), text);
        }
    }
}
