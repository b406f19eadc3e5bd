//! What every program writes alike, and the one place that writes to a terminal: results, notes, errors, the log. Names and
//! values come from files, requests and peers; whatever of them a terminal would obey is written out here, so that nobody
//! who prints has to think of it.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::{self, Display};
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use signal_hook::consts::signal::SIGXFSZ;
use tracing::Subscriber;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::{MakeWriter, format};

/// Writes a text for people to stdout. A reader that has gone, as `head` does, has all that it wanted: that is no error.
///
/// # Errors
/// Whatever else keeps the text from being written.
pub fn print(text: &str) -> io::Result<()> {
    write(&plain(text))
}

/// Writes a value to stdout as one line of JSON, which says what it says for programs too.
///
/// # Errors
/// As [`print`]; a value that is none in JSON.
pub fn print_json(value: &impl Serialize) -> io::Result<()> {
    write(&format!("{}\n", json(&serde_json::to_string(value)?)))
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Help and version are no errors: clap knows where each goes and what it is worth. The others quote the command line,
/// in which a shell may have written names of files.
pub fn usage(error: &clap::Error) -> ExitCode {
    let written = match error.use_stderr() {
        true => io::stderr().lock().write_all(plain(&error.render().to_string()).as_bytes()),
        false => error.print(),
    };
    match printed(written) {
        Ok(()) => ExitCode::from(error.exit_code() as u8),
        Err(unwritten) => {
            self::error(unwritten);
            ExitCode::FAILURE
        }
    }
}

/// Starts the log, on stderr.
pub fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber = logging(filter, io::stderr().is_terminal(), io::stderr);
    tracing::subscriber::set_global_default(subscriber).expect("the log is started once");
}

/// One line an event. A line that nobody reads is no error: the default would complain of it to the same stderr, and panic.
fn logging(filter: EnvFilter, ansi: bool, to: impl for<'a> MakeWriter<'a> + Send + Sync + 'static) -> impl Subscriber {
    let fields = |out: &mut format::Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
        let value = format!("{value:?}");
        match field.name() {
            "message" => write!(out, "{}", line(&value)),
            name => write!(out, "{name}={}", line(&value)),
        }
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).log_internal_errors(false);
    log.fmt_fields(format::debug_fn(fields).delimited(" ")).with_writer(to).finish()
}

/// What an attempt to write to stdout came to.
///
/// # Errors
/// As [`print`].
fn printed(written: io::Result<()>) -> io::Result<()> {
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
fn plain(text: &str) -> Cow<'_, str> {
    written_out(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'), |c, out| out.extend(c.escape_unicode()))
}

/// The same of a text that is one line.
fn line(text: &str) -> Cow<'_, str> {
    written_out(text, is_hidden, |c, out| out.extend(c.escape_default()))
}

/// The same of JSON, in its own words: outside of its strings nothing is hidden.
fn json(text: &str) -> Cow<'_, str> {
    written_out(text, is_hidden, |c, out| {
        c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
    })
}

fn written_out(text: &str, hides: impl Fn(char) -> bool, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if !text.contains(&hides) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match hides(c) {
            true => escape(c, &mut out),
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

    const ODD: &str = "a\u{1b}[2J\u{9b}1m\u{202e}\u{200b}\r\u{e0041}\u{7f}\t\"\\\u{e9}\u{1f600}\nb";

    #[test]
    fn json_says_the_same_and_hides_nothing() {
        let value = serde_json::json!({ ODD: [ODD, 1.5, null] });
        let text = json(&value.to_string()).into_owned();
        assert!(!text.contains(is_hidden), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        assert!(text.contains("\u{e9}\u{1f600}"), "what hides nothing stays: {text:?}");
    }

    /// However a value comes to the log: by Display, by Debug, as a string, in the message, in a span.
    #[test]
    fn every_event_of_the_log_is_one_line_that_hides_nothing() {
        let log = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let to = Arc::clone(&log);
        let subscriber = logging(EnvFilter::new("info"), false, move || Shared(Arc::clone(&to)));
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("span", within = %ODD);
            let _within = span.enter();
            tracing::info!(display = %ODD, debug = ?ODD, string = ODD, number = 7, "{ODD}");
            tracing::warn!("usual: {}", "\u{e9} \"x\"");
        });
        let text = String::from_utf8(log.lock().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(!lines.iter().any(|line| line.contains(is_hidden)), "{text:?}");
        for part in
            ["within=a\\u{1b}[2J", " a\\u{1b}[2J", "display=a\\u{1b}[2J\\u{9b}", "string=\"a", "debug=\"a", "number=7"]
        {
            assert!(lines[0].contains(part), "{part:?} in {text}");
        }
        assert!(lines[1].contains("WARN") && lines[1].ends_with("usual: \u{e9} \"x\""), "{text}");
    }

    struct Shared(Arc<parking_lot::Mutex<Vec<u8>>>);

    impl io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_cause_is_written_once() {
        let cause = || std::io::Error::other("no such disk");
        assert_eq!(chain(&Caused("cannot open: no such disk", cause())), "cannot open: no such disk");
        assert_eq!(chain(&Caused("cannot open", cause())), "cannot open\n  because no such disk");
    }
}
