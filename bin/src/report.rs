//! What every program writes alike: its result, and the error that ends it.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};

/// Writes to stdout. A reader that has gone, as `head` does, has all that it wanted: that is no error.
///
/// # Errors
/// Whatever else keeps the text from being written.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// What an attempt to write to stdout came to.
///
/// # Errors
/// As [`print`].
pub fn printed(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(e) => Err(io::Error::new(e.kind(), format!("cannot write to stdout: {e}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes a line to stderr that is no error. Where nobody reads it, nothing is lost.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes an error to stderr as every program does. Where nobody reads that either, nothing is left to do.
pub fn error(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "error: {text}");
}

/// The error and what caused it, one line each; a cause that the line before quotes already is left out.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text.push_str(&format!("\n  because {cause}"));
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Caused(&'static str, #[source] std::io::Error);

    #[test]
    fn a_cause_is_written_once() {
        let cause = || std::io::Error::other("no such disk");
        assert_eq!(chain(&Caused("cannot open: no such disk", cause())), "cannot open: no such disk");
        assert_eq!(chain(&Caused("cannot open", cause())), "cannot open\n  because no such disk");
    }
}
