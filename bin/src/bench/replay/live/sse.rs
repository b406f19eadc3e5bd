//! Server-sent events, read from bytes as they come.
//!
//! Source: WHATWG HTML, "9.2 Server-sent events": fields are lines, an empty line ends an event, lines that begin with a
//! colon are comments, several `data` lines are joined by newlines. Only `data` is of interest here.

use std::io::{self, BufRead, Read as _};

/// Longest line, and longest event.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// Why there is no next event.
#[derive(Debug, thiserror::Error)]
pub enum SseError {
    /// The transport.
    #[error("{0}")]
    Io(io::Error),
    /// The stream ended inside an event.
    #[error("the stream ended in the middle of an event: \"{0}\"")]
    Cut(String),
    /// No server means this.
    #[error("an event is longer than {EVENT_BYTES_MAX} bytes")]
    Long,
    /// Not UTF-8.
    #[error("an event is not UTF-8")]
    NotText,
    /// A line that is no field, such as HTML of a proxy.
    #[error("\"{0}\" is no line of an event stream")]
    NoField(String),
}

/// The events of a stream.
pub struct Events<R> {
    input: R,
}

impl<R: BufRead> Events<R> {
    /// Of a body.
    pub fn new(input: R) -> Self {
        Self { input }
    }

    /// Data of the next event that has any; `None` where the stream ends between events.
    ///
    /// # Errors
    /// [`SseError`].
    pub fn read(&mut self) -> Result<Option<String>, SseError> {
        let mut data: Option<String> = None;
        loop {
            let Some(line) = self.line()? else {
                return data.map_or(Ok(None), |data| Err(SseError::Cut(short(&data))));
            };
            if line.is_empty() {
                if data.is_some() {
                    return Ok(data);
                }
                continue;
            }
            match line.split_once(':') {
                // A comment: something to keep the connection open.
                Some(("", _)) => {}
                Some(("data", text)) => {
                    let text = text.strip_prefix(' ').unwrap_or(text);
                    let data = data.get_or_insert_default();
                    if !data.is_empty() {
                        data.push('\n');
                    }
                    data.push_str(text);
                    if data.len() > EVENT_BYTES_MAX {
                        return Err(SseError::Long);
                    }
                }
                Some(("event" | "id" | "retry", _)) => {}
                _ => return Err(SseError::NoField(short(&line))),
            }
        }
    }

    /// The next line without its end; `None` at the end of the stream.
    fn line(&mut self) -> Result<Option<String>, SseError> {
        let mut bytes = Vec::new();
        let most = EVENT_BYTES_MAX as u64 + 2;
        self.input.by_ref().take(most).read_until(b'\n', &mut bytes).map_err(SseError::Io)?;
        match bytes.last() {
            None => return Ok(None),
            Some(b'\n') => drop(bytes.pop()),
            Some(_) if bytes.len() as u64 == most => return Err(SseError::Long),
            Some(_) => return Err(SseError::Cut(short(&String::from_utf8_lossy(&bytes)))),
        }
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        String::from_utf8(bytes).map(Some).map_err(|_| SseError::NotText)
    }
}

/// The beginning of a text that others wrote, fit for a message.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 120;
    let more = if text.chars().nth(MOST).is_some() { ".." } else { "" };
    text.chars().take(MOST).flat_map(char::escape_debug).collect::<String>() + more
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8], piece: usize) -> Result<Vec<String>, String> {
        let mut events = Events::new(io::BufReader::with_capacity(piece, bytes));
        let mut out = Vec::new();
        while let Some(data) = events.read().map_err(|e| e.to_string())? {
            out.push(data);
        }
        Ok(out)
    }

    #[test]
    fn events_come_out_however_bytes_come_in() {
        let text =
            ": hello\n\ndata: {\"a\":1}\n\nevent: x\nid: 7\ndata:b\r\ndata: c\r\n\r\n\n\n: ping\ndata: \u{e9}\n\n";
        for piece in 1..text.len() {
            assert_eq!(all(text.as_bytes(), piece).unwrap(), ["{\"a\":1}", "b\nc", "\u{e9}"], "{piece}");
        }
    }

    #[test]
    fn what_is_no_stream_is_named() {
        for (bytes, part) in [
            (&b"data: a\n"[..], "in the middle of an event: \"a\""),
            (b"data: a", "in the middle of an event: \"data: a\""),
            (b"<html>\n\n", "\"<html>\" is no line"),
            (b"{\"error\": {}}\n", "is no line"),
            (b"data: \xff\n\n", "not UTF-8"),
        ] {
            let error = all(bytes, 16).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let long = [b"data: ".to_vec(), vec![b'x'; EVENT_BYTES_MAX + 1], b"\n\n".to_vec()].concat();
        assert!(all(&long, 1 << 16).unwrap_err().contains("longer than"));
        let many = b"data: 0123456789abcdef0123456789abcdef\n".repeat(EVENT_BYTES_MAX / 32);
        assert!(all(&many, 1 << 16).unwrap_err().contains("longer than"));
    }
}
