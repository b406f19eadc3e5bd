//! JSON bodies, read strictly: duplicate keys, lone surrogates, invalid UTF-8 and excess are errors with a place.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::serve::error::{ApiError, quote};
use crate::serve::limits;

/// What serde_json says of a number that no f64 holds. It is JSON, but no value.
const OUT_OF_RANGE: &str = "number out of range";
/// Longest path of a value in an error, in characters.
const PATH_CHARS_MAX: usize = 128;

/// Parses a body into an object.
///
/// # Errors
/// `invalid_json` with the byte offset; `invalid_type` if it is no object; `invalid_value` with its path for a number
/// beyond range.
pub(crate) fn parse_object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let bytes = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let skipped = body.len() - bytes.len();
    let text = std::str::from_utf8(bytes).map_err(|e| {
        ApiError::invalid_json(format!("the body is not valid UTF-8 at byte {}", skipped + e.valid_up_to()))
    })?;
    let reading = Reading { left: Cell::new(limits::JSON_VALUES), depth: Cell::new(0), path: RefCell::default() };
    let mut reader = serde_json::Deserializer::from_str(text);
    // Its own bound is one less than the one that is promised; `Strict` counts.
    reader.disable_recursion_limit();
    let value = Strict(&reading).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    match value {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(ApiError::invalid_type("body", "object", type_name(&other))),
        Err(error) => {
            let at = skipped + offset(text, error.line(), error.column());
            let full = error.to_string();
            // serde_json ends its messages with a line and column; the offset says it for clients without lines.
            let message = full.split(" at line ").next().unwrap_or(&full);
            if message == OUT_OF_RANGE {
                let message = format!("the number that ends at byte {at} is out of range");
                return Err(ApiError::invalid_value(&path(&reading.path.borrow()), message));
            }
            Err(ApiError::invalid_json(format!("invalid JSON at byte {at}: {message}")))
        }
    }
}

/// A number of the engine with no more digits than it takes to read it back. A cast would show those of the double that
/// stands for it: 0.8 as 0.800000011920929.
pub(crate) fn real(x: f32) -> Value {
    let shortest: f64 = x.to_string().parse().unwrap_or(f64::NAN);
    // A double between two floats could read back as the other one.
    if shortest as f32 == x { shortest.into() } else { x.into() }
}

/// Name of a value's JSON type.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

fn offset(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (start + column).min(text.len())
}

/// The path of a value whose steps were noted from the inside out, as errors name fields.
fn path(steps: &[Step]) -> String {
    let mut path = String::new();
    for step in steps.iter().rev() {
        match step {
            Step::Index(i) => path.push_str(&format!("[{i}]")),
            Step::Key(key) if path.is_empty() => path.push_str(key),
            Step::Key(key) => path.push_str(&format!(".{key}")),
        }
    }
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    if path.is_empty() { "body".to_owned() } else { path.chars().take(PATH_CHARS_MAX).map(shown).collect() }
}

/// What one reading of a body keeps besides the value.
struct Reading {
    /// Values that may still come.
    left: Cell<usize>,
    /// Lists and objects that are open.
    depth: Cell<usize>,
    /// Where reading failed, innermost first.
    path: RefCell<Vec<Step>>,
}

/// One step into a value.
enum Step {
    Key(String),
    Index(usize),
}

/// Builds a [`Value`] and refuses what `serde_json` would let pass.
#[derive(Clone, Copy)]
struct Strict<'a>(&'a Reading);

impl Strict<'_> {
    /// Passes a result on and notes where an error came from.
    fn within<T, E>(self, result: Result<T, E>, step: impl FnOnce() -> Step) -> Result<T, E> {
        result.inspect_err(|_| self.0.path.borrow_mut().push(step()))
    }

    /// A list or an object begins. An error ends the whole reading, so that only a value that is whole is left.
    fn open<E: de::Error>(self) -> Result<(), E> {
        let depth = self.0.depth.get() + 1;
        self.0.depth.set(depth);
        match depth > limits::JSON_DEPTH {
            true => Err(E::custom(format!("nested deeper than {}", limits::JSON_DEPTH))),
            false => Ok(()),
        }
    }

    fn close(self) {
        self.0.depth.set(self.0.depth.get() - 1);
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        let left = self.0.left.get();
        if left == 0 {
            return Err(de::Error::custom(format!("more than {} values", limits::JSON_VALUES)));
        }
        self.0.left.set(left - 1);
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Value, E> {
        Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom(OUT_OF_RANGE))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        self.open()?;
        let mut list = Vec::new();
        while let Some(value) = self.within(seq.next_element_seed(self), || Step::Index(list.len()))? {
            list.push(value);
        }
        self.close();
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        self.open()?;
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(de::Error::custom(format!("duplicate key {}", quote(&key))));
            }
            let value = self.within(access.next_value_seed(self), || Step::Key(key.clone()))?;
            map.insert(key, value);
        }
        self.close();
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &[u8]) -> String {
        let error = parse_object(body).unwrap_err();
        assert_eq!(error.status, 400);
        error.message
    }

    #[test]
    fn strictness() {
        assert!(refused(br#"{"a":1,"a":2}"#).contains("duplicate key 'a'"));
        assert!(refused(br#"{"a":{"b":1,"b":2}}"#).contains("duplicate key 'b'"));
        assert!(refused(br#"{"a":"emoji \ud83d"}"#).contains("at byte"));
        assert!(refused(br#"{"a":"x \ude00 y"}"#).contains("at byte"));
        assert!(refused(b"{\"a\":\"\xff\"}").contains("UTF-8 at byte 6"));
        assert!(refused(b"[1]").contains("expected object"));
        assert!(refused(b"").contains("at byte 0"));
        assert!(refused(b"{} x").contains("at byte"));
        let nested = |depth: usize| format!("{{\"a\":{}1{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        assert!(refused(nested(129).as_bytes()).contains("byte 133: nested deeper than 128"));
        assert!(refused(nested(1_000_000).as_bytes()).contains("nested deeper than 128"));
        assert!(parse_object(nested(128).as_bytes()).is_ok());
        let objects = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        assert!(parse_object(objects(128).as_bytes()).is_ok() && parse_object(objects(129).as_bytes()).is_err());
        // Depth, not number: values beside each other do not add up.
        let beside = format!("{{\"a\":[{}]}}", vec!["[[{}]]"; 500].join(","));
        assert!(parse_object(beside.as_bytes()).is_ok());
    }

    #[test]
    fn numbers_beyond_range_are_named() {
        for (body, param) in [
            (r#"{"a":1e999}"#, "a"),
            (r#"{"x":1,"a":{"b":[0,{"c d":-1e999}]},"y":2}"#, "a.b[1].c d"),
            (r#"{"x":[[1],[2,1e400"#, "x[1][1]"),
            ("1e999", "body"),
        ] {
            let error = parse_object(body.as_bytes()).unwrap_err();
            assert_eq!((error.code, error.param.as_deref()), ("invalid_value", Some(param)), "{body}: {error:?}");
            assert!(error.message.contains("at byte"), "{error:?}");
        }
        let error = parse_object(format!("{{\"{}\\n\":1e999}}", "k".repeat(100)).as_bytes()).unwrap_err();
        assert_eq!(error.param, Some(format!("{}\u{fffd}", "k".repeat(100))));
        let error = parse_object(format!("{{\"{}\":1e999}}", "k".repeat(1000)).as_bytes()).unwrap_err();
        assert_eq!(error.param.map(|p| p.len()), Some(PATH_CHARS_MAX));
        // A fault of the JSON itself stays one, wherever it stands.
        assert_eq!(parse_object(br#"{"a":[1,}"#).unwrap_err().code, "invalid_json");
        assert_eq!(parse_object(br#"{"a":1e-999}"#).unwrap()["a"], 0.0);
    }

    #[test]
    fn a_number_has_the_digits_that_it_needs() {
        for (x, text) in [(0.8, "0.8"), (1.0, "1.0"), (-0.1, "-0.1"), (0.0, "0.0"), (1e-9, "1e-9")] {
            assert_eq!(real(x).to_string(), text);
        }
        assert_eq!(real(f32::NAN), Value::Null);
        assert_eq!(real(f32::NEG_INFINITY), Value::Null);
        // Every bit pattern of a stride that meets all exponents.
        for bits in (0..=u32::MAX).step_by(65_521) {
            let x = f32::from_bits(bits);
            if x.is_finite() {
                let back = real(x).as_f64().unwrap();
                assert_eq!((back as f32).to_bits(), bits, "{back}");
            }
        }
    }

    #[test]
    fn what_json_allows() {
        let map = parse_object("\u{feff}{\"a\":\"\\ud83d\\ude00\\u0000\",\"b\":5.0,\"c\":null}".as_bytes()).unwrap();
        assert_eq!(map["a"], "\u{1f600}\0");
        assert_eq!(map["b"], 5.0);
        assert!(map["c"].is_null());
    }
}
