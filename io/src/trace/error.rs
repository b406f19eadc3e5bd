//! What is wrong with a recording.

use std::io;
use std::path::Path;

use super::Format;

/// Why recorded sessions cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// What is there is no file that can be read.
    #[error(transparent)]
    File(#[from] crate::Error),
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
    #[error("{place}: {what}: {reason}; record it again, or say what it is")]
    Shape {
        /// File, and the line from 1 where one line is one document.
        place: String,
        /// JSON path of the value from there, `.` where it is all of it.
        what: String,
        /// What the parser found and expected, with its position.
        reason: String,
    },
    /// Text that is not UTF-8.
    #[error("{file}: is not UTF-8 from byte {offset} on; convert it, or take it out")]
    NotUtf8 {
        /// The file.
        file: String,
        /// Bytes before the first that is wrong.
        offset: usize,
    },
    /// A document that would need too much memory.
    #[error("{file}: is longer than {limit} bytes; split it")]
    LongDocument {
        /// The file.
        file: String,
        /// Most bytes of a document.
        limit: usize,
    },
    /// A file that holds nothing known.
    #[error(
        "{file}: is none of the recordings known here ({}); say which with --format",
        Format::ALL.map(Format::name).join(", ")
    )]
    Unknown {
        /// The file.
        file: String,
    },
    /// A folder without a recording.
    #[error("{dir}: holds no recording; give the folder of one, or a file")]
    Nothing {
        /// The folder.
        dir: String,
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

    /// What the parser says of the document at `place`, of its value at `path`.
    pub(crate) fn json(place: &str, path: &str, error: &serde_json::Error) -> Self {
        let (place, what, reason) = (place.to_owned(), path.to_owned(), error.to_string());
        match error.is_data() {
            true => Self::Shape { place, what, reason },
            false => Self::NotJson { place, reason },
        }
    }
}
