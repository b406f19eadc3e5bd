//! What is wrong with a recording.

use std::io;
use std::path::Path;

/// Why recorded sessions cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
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
    /// A line that would need too much memory.
    #[error("{file}:{line}: is longer than {limit} bytes; cut the session into several, or leave it out")]
    LongLine {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Most bytes of a line.
        limit: usize,
    },
    /// Text that is not JSON.
    #[error("{place}: is not JSON: {reason}; record it again, or take it out")]
    NotJson {
        /// File, and the line from 1 where one line is one document.
        place: String,
        /// What the parser met, with its position.
        reason: String,
    },
    /// JSON that is not what the format says.
    #[error("{place}: is not of the format: {reason}")]
    Shape {
        /// File, and the line from 1 where one line is one document.
        place: String,
        /// What the parser met, with its position.
        reason: String,
    },
    /// A last line that its writer did not finish.
    #[error("{file}:{line}: the last line ends in the middle of a record, as when its writer was killed; take it out")]
    Torn {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
    },
    /// A value that is not what the format says.
    #[error("{place}: {what} is {found}, expected {expected}")]
    Value {
        /// File, and the line from 1 where one line is one session.
        place: String,
        /// JSON path of the value from there.
        what: String,
        /// What is there.
        found: String,
        /// What should be.
        expected: &'static str,
    },
}

impl TraceError {
    /// What the system says of `file`.
    pub(crate) fn io(file: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let file = file.display().to_string();
        move |source| Self::Io { file, action, source }
    }

    /// What the parser says of the document at `place`.
    pub(crate) fn json(place: &str, error: &serde_json::Error) -> Self {
        let (place, reason) = (place.to_owned(), error.to_string());
        match error.is_data() {
            true => Self::Shape { place, reason },
            false => Self::NotJson { place, reason },
        }
    }
}
