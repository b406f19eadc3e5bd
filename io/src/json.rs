//! JSON in which no key stands twice, and no name could pass for something else.
//!
//! Readers differ in which of two values they take, and the usual parsers take one without a word: what a person sees in a
//! file and what is done need not be the same. So a document with a key twice in one object is refused, at any depth.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Bytes of the longest text in a document of names.
pub const NAME_BYTES_MAX: usize = 4096;

/// Parses a whole document.
///
/// # Errors
/// What is no JSON, has a key twice, or does not fit the type.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    walk(bytes, Walk { keys: false, texts: false })?;
    serde_json::from_slice(bytes)
}

/// Parses a whole document whose texts are names, paths and short remarks: people are shown them. None has a control
/// character, and none is longer than [`NAME_BYTES_MAX`].
///
/// # Errors
/// As [`parse`]; a text that is none of these.
pub fn parse_names<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    walk(bytes, Walk { keys: true, texts: true })?;
    serde_json::from_slice(bytes)
}

/// Whether a document is JSON whose keys stand once each and are names, as [`parse_names`] has them.
///
/// # Errors
/// Where it is not, and why.
pub fn check_keys(bytes: &[u8]) -> serde_json::Result<()> {
    walk(bytes, Walk { keys: true, texts: false })
}

fn walk(bytes: &[u8], walk: Walk) -> serde_json::Result<()> {
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    walk.deserialize(&mut parser)?;
    parser.end()
}

/// Why a text is no name.
fn no_name(text: &str) -> Option<String> {
    // What is in it is quoted, and no more than anybody reads.
    let start: String = text.chars().take(80).collect();
    if text.len() > NAME_BYTES_MAX {
        return Some(format!("a text of {} bytes, expected at most {NAME_BYTES_MAX}: {start:?}...", text.len()));
    }
    text.chars().any(char::is_control).then(|| format!("control characters in {start:?}, expected one line of text"))
}

/// Walks a value and keeps nothing of it. Which of its texts must be names: keys, and all others.
#[derive(Clone, Copy)]
struct Walk {
    keys: bool,
    texts: bool,
}

impl<'de> DeserializeSeed<'de> for Walk {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if seen.contains(&key) {
                let start: String = key.chars().take(80).collect();
                return Err(A::Error::custom(format!("the name {start:?} stands twice")));
            }
            if let Some(why) = no_name(&key).filter(|_| self.keys) {
                return Err(A::Error::custom(why));
            }
            seen.insert(key);
            map.next_value_seed(self)?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        no_name(text).filter(|_| self.texts).map_or(Ok(()), |why| Err(E::custom(why)))
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_document_of_names_has_nothing_else() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for bad in ["a\\nerror: faked", "\\u001b[2J", "\\u009b", &long] {
            for (text, is_key) in [(format!(r#"[{{"{bad}": 1}}]"#), true), (format!(r#"{{"a": ["{bad}"]}}"#), false)] {
                let error = parse_names::<Value>(text.as_bytes()).unwrap_err().to_string();
                assert!(error.len() < 300 && !error.contains('\n'), "{error}");
                assert!(error.contains("control characters in") || error.contains("4097 bytes"), "{error}");
                assert_eq!(check_keys(text.as_bytes()).is_err(), is_key, "{text}");
                assert!(parse::<Value>(text.as_bytes()).is_ok());
            }
        }
        let fine = format!(r#"{{"Ä-1.gguf": "{}", "n": [null, 1.5, true]}}"#, &long[1..]);
        assert!(parse_names::<Value>(fine.as_bytes()).is_ok());
    }

    #[test]
    fn a_key_stands_once_at_any_depth() {
        for text in ["{}", "[1, -2, 0.5, \"a\", null, true]", r#"{"a": {"b": 1}, "b": {"b": [{"b": 2}, {"b": 3}]}}"#] {
            assert_eq!(parse::<Value>(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        }
        // An escape is the same name.
        for text in [r#"{"a": 1, "a": 1}"#, r#"[{"x": {"a": [], "a": {}}}]"#, r#"{"a": 1, "\u0061": 2}"#] {
            let error = parse::<Value>(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("the name \"a\" stands twice"), "{error}");
        }
        for text in ["", "{", "{} x", r#"{"a": }"#] {
            assert!(parse::<Value>(text.as_bytes()).is_err(), "{text}");
        }
    }
}
