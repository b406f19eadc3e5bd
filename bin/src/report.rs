//! What every program writes alike: its result, and the error that ends it.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::signal::SIGXFSZ;

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

/// From here on a write beyond the limit of a file's size fails, as on a full disk, and does not end the process without a
/// word and its output half written.
///
/// # Errors
/// The system takes no handler.
pub fn outlive_size_limits() -> io::Result<()> {
    // A signal that is handled kills nobody; what became of the write is its caller's to say.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Whether a terminal obeys a character, or shows nothing of it, or other text in another order because of it: controls,
/// marks of direction, characters without width. Source: Unicode Standard Annex 9, table of explicit directional
/// formatting, and the code charts of general punctuation.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// A text for people, with what names and values from files could hide in it written out. Lines and tabs are its own.
pub fn plain(text: &str) -> Cow<'_, str> {
    let hides = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t');
    if !text.contains(hides) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match hides(c) {
            true => out.extend(c.escape_unicode()),
            false => out.push(c),
        }
    }
    out.into()
}

/// Writes a line to stderr that is no error. Where nobody reads it, nothing is lost.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{}", plain(&text.to_string()));
}

/// Writes an error to stderr as every program does. Where nobody reads that either, nothing is left to do.
pub fn error(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "error: {}", plain(&text.to_string()));
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

    /// What a file calls a tensor, and what a hub calls a file, ends in reports: nothing of it may act on a terminal.
    #[test]
    fn what_would_be_hidden_is_written_out() {
        assert_eq!(plain("a\u{1b}[2Jb\u{202e}c\u{200b}\r\u{9b}"), "a\\u{1b}[2Jb\\u{202e}c\\u{200b}\\u{d}\\u{9b}");
        for usual in ["two lines\n\tand a tab", "\u{e9}\u{4e2d}\u{1f600}", ""] {
            assert_eq!(plain(usual), usual);
        }
    }

    #[test]
    fn a_cause_is_written_once() {
        let cause = || std::io::Error::other("no such disk");
        assert_eq!(chain(&Caused("cannot open: no such disk", cause())), "cannot open: no such disk");
        assert_eq!(chain(&Caused("cannot open", cause())), "cannot open\n  because no such disk");
    }
}
