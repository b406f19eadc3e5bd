//! A result as it lies in its file: the text, the values by their path, and what they mean.
//!
//! A figure of a page or a table is read here, from a JSON pointer (RFC 6901), and keeps that pointer. So what is shown is
//! what stands in the file, and whoever reads the page can tell where.

use std::path::Path;

use engine_io::{json, plain};
use serde_json::Value;

use crate::bench::result::{BenchResult, SCHEMA};

/// Results beyond this are none.
const BYTES_MAX: u64 = 64 << 20;

/// A result and its text.
pub struct Doc {
    /// The file's text, which is JSON.
    pub text: String,
    /// What it means.
    pub result: BenchResult,
    value: Value,
}

/// A file that is no result. In words, its name first.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoResult(pub String);

impl Doc {
    /// Reads a result file.
    ///
    /// # Errors
    /// [`NoResult`]: the file cannot be read, is too large, is no JSON, of another schema, or has a value of another type.
    pub fn read(path: &Path) -> Result<Self, NoResult> {
        let refused = |what: String| NoResult(format!("{}: {what}", path.display()));
        let bytes = plain::read(path, BYTES_MAX).map_err(|e| NoResult(e.to_string()))?;
        Self::parse(bytes).map_err(refused)
    }

    /// Reads the bytes of a result.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, String> {
        let none = |e: String| format!("is no {SCHEMA} result: {e}; give what engine-bench replay or sweep wrote");
        let text = String::from_utf8(bytes).map_err(|e| none(e.to_string()))?;
        let value: Value = json::parse(text.as_bytes()).map_err(|e| none(e.to_string()))?;
        match value.get("schema").and_then(Value::as_str) {
            Some(SCHEMA) => {}
            Some(other) => return Err(format!("schema is {other:?}, expected {SCHEMA:?}")),
            None => return Err(none(format!("schema is absent, expected {SCHEMA:?}"))),
        }
        let result =
            serde_path_to_error::deserialize(&value).map_err(|e| none(format!("{}: {}", e.path(), e.inner())))?;
        Ok(Self { text, result, value })
    }

    /// The number at `path`.
    pub fn figure(&self, path: impl Into<String>) -> Option<Figure> {
        let path = path.into();
        let value = self.value.pointer(&path)?.as_f64()?;
        Some(Figure { path, over: None, scale: 1.0, value })
    }

    /// The number at `path` divided by the one at `over`; `None` also where there is nothing to divide by.
    pub fn share(&self, path: impl Into<String>, over: impl Into<String>) -> Option<Figure> {
        let (figure, over) = (self.figure(path)?, self.figure(over)?);
        (over.value != 0.0).then(|| Figure { value: figure.value / over.value, over: Some(over.path), ..figure })
    }

    /// The text at `path`.
    pub fn words(&self, path: impl Into<String>) -> Option<Words> {
        let path = path.into();
        let text = self.value.pointer(&path)?.as_str()?.to_owned();
        Some(Words { path, text })
    }

    /// The number or text at `path`, as CSV has it. A number is the one that a JSON reader makes of the file's.
    pub fn plain(&self, path: &str) -> Option<String> {
        match self.value.pointer(path)? {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }
}

/// A name of a map as a part of a pointer.
pub fn key(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// A number of the result, or a quotient of two.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Where it stands.
    pub path: String,
    /// Where what it is divided by stands.
    pub over: Option<String>,
    /// What it is multiplied with to be shown.
    pub scale: f64,
    /// As it is shown: scaled.
    pub value: f64,
}

impl Figure {
    /// Shown in another unit.
    pub fn times(self, scale: f64) -> Self {
        Self { scale: self.scale * scale, value: self.value * scale, ..self }
    }

    /// A share as percent.
    pub fn percent(self) -> Self {
        self.times(100.0)
    }

    /// Bytes as MiB.
    pub fn mib(self) -> Self {
        self.times(1.0 / (1 << 20) as f64)
    }

    /// For people: four digits or so, and thousands apart.
    pub fn text(&self) -> String {
        number(self.value)
    }
}

/// A text of the result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Words {
    /// Where it stands.
    pub path: String,
    /// What stands there.
    pub text: String,
}

/// A number with about four digits. Integers have all of theirs.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1e15 || (size > 0.0 && size < 5e-6) {
        return format!("{value:.3e}");
    }
    let decimals = match size {
        _ if value.fract() == 0.0 => 0,
        1000.0.. => 0,
        100.0.. => 1,
        10.0.. => 2,
        0.1.. => 3,
        _ => (2.0 - size.log10().floor()) as usize,
    };
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let digits = whole.trim_start_matches('-');
    if digits.len() < 5 {
        return text;
    }
    let mut out = whole[..whole.len() - digits.len()].to_owned();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_about_four_digits() {
        for (value, text) in [
            (0.0, "0"),
            (7.0, "7"),
            (1234.0, "1234"),
            (12345.0, "12\u{202f}345"),
            (-1234567.0, "-1\u{202f}234\u{202f}567"),
            (1.42345, "1.423"),
            (0.5, "0.500"),
            (12.3456, "12.35"),
            (123.456, "123.5"),
            (98765.4, "98\u{202f}765"),
            (0.012345, "0.0123"),
            (0.000012345, "0.0000123"),
            (1e-7, "1.000e-7"),
            (1e300, "1.000e300"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn figures_are_those_of_their_paths() {
        let text = format!(
            r#"{{"schema":"{SCHEMA}","memory":{{"executor_bytes":{{"a/b~c":2097152}}}},"run":{{"repeats":4,"warmup":0}}}}"#
        );
        let doc = Doc::parse(text.into_bytes()).unwrap();
        let room = doc.figure(format!("/memory/executor_bytes/{}", key("a/b~c"))).unwrap().mib();
        assert_eq!((room.value, room.text().as_str()), (2.0, "2"));
        assert_eq!(doc.share("/run/repeats", "/memory/executor_bytes/a~1b~0c").unwrap().value, 4.0 / 2097152.0);
        assert_eq!(doc.share("/run/repeats", "/run/warmup"), None, "nothing to divide by");
        assert_eq!(doc.figure("/run/absent"), None);
        assert_eq!(doc.words("/schema").unwrap().text, SCHEMA);
    }

    #[test]
    fn what_is_no_result_is_refused() {
        for (text, word) in [
            ("", "EOF"),
            ("[1]", "schema is absent"),
            // Readers differ in which of two they take, and the page has the text beside the figures.
            (r#"{"schema":"slipstream-bench/1","arms":[],"arms":[]}"#, "arms"),
            (r#"{"schema":"other/1"}"#, r#"schema is "other/1", expected "slipstream-bench/1""#),
            (
                r#"{"schema":"slipstream-bench/1","arms":[{"decode_tok_s":{"median":"x"}}]}"#,
                "arms[0].decode_tok_s.median",
            ),
            (r#"{"schema":"slipstream-bench/1","arms":[{}]}"#, "arms[0]: missing field `decode_tok_s`"),
        ] {
            let error = Doc::parse(text.as_bytes().to_vec()).map(|_| ()).unwrap_err();
            assert!(error.contains(word), "{text}: {error} does not say {word}");
        }
        let error = Doc::parse(vec![0xff, 0xfe]).map(|_| ()).unwrap_err();
        assert!(error.contains("utf-8"), "{error}");
    }
}
