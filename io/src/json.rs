//! JSON in which no key stands twice.
//!
//! Readers differ in which of two values they take, and the usual parsers take one without a word: what a person sees in a
//! file and what is done need not be the same. So a document with a key twice in one object is refused, at any depth.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Parses a whole document.
///
/// # Errors
/// What is no JSON, has a key twice, or does not fit the type.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    check(bytes)?;
    serde_json::from_slice(bytes)
}

/// Whether a document is JSON without a key that stands twice.
///
/// # Errors
/// Where it is not, and why.
pub fn check(bytes: &[u8]) -> serde_json::Result<()> {
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    Unique.deserialize(&mut parser)?;
    parser.end()
}

/// Walks a value and keeps nothing of it.
#[derive(Clone, Copy)]
struct Unique;

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if seen.contains(&key) {
                return Err(A::Error::custom(format!("the name {key:?} stands twice")));
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

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
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
