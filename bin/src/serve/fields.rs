//! Typed access to the fields of an object: null is absent, a wrong type is an error that names the path.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::serve::error::{ApiError, shown};
use crate::serve::json::type_name;

/// A JSON object and where it stands in the body.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a, 'p> {
    map: &'a Map<String, Value>,
    /// `""` for the body itself, else a path with a trailing dot.
    prefix: &'p str,
}

/// A range of numbers, its lower end included or not.
#[derive(Clone, Copy)]
pub(crate) enum Reals {
    Closed(f64, f64),
    /// Lower end excluded.
    LeftOpen(f64, f64),
}

impl Reals {
    fn contains(self, x: f64) -> bool {
        match self {
            Self::Closed(a, b) => (a..=b).contains(&x),
            Self::LeftOpen(a, b) => x > a && x <= b,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Closed(a, b) => format!("[{a}, {b}]"),
            Self::LeftOpen(a, b) => format!("({a}, {b}]"),
        }
    }
}

impl<'a, 'p> Fields<'a, 'p> {
    pub(crate) fn body(map: &'a Map<String, Value>) -> Self {
        Self { map, prefix: "" }
    }

    pub(crate) fn nested(map: &'a Map<String, Value>, prefix: &'p str) -> Self {
        Self { map, prefix }
    }

    /// All of it.
    pub(crate) fn whole(&self) -> Value {
        Value::Object(self.map.clone())
    }

    /// Full path of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The value, unless absent or null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    fn wrong(&self, name: &str, expected: &str, found: &Value) -> ApiError {
        ApiError::invalid_type(&self.path(name), expected, type_name(found))
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.get(name).map(|v| v.as_bool().ok_or_else(|| self.wrong(name, "boolean", v))).transpose()
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.get(name).map(|v| v.as_str().ok_or_else(|| self.wrong(name, "string", v))).transpose()
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        self.get(name).map(|v| v.as_object().ok_or_else(|| self.wrong(name, "object", v))).transpose()
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        self.get(name).map(|v| v.as_array().ok_or_else(|| self.wrong(name, "list", v))).transpose()
    }

    /// An integer; `5.0` counts as one.
    pub(crate) fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        integer(value, &self.path(name), range).map(Some)
    }

    pub(crate) fn number(&self, name: &str, range: Reals) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let Some(x) = value.as_f64() else { return Err(self.wrong(name, "number", value)) };
        if !range.contains(x) {
            let message = format!("{x} is outside {}", range.text());
            return Err(ApiError::invalid_value(&self.path(name), message));
        }
        Ok(Some(x))
    }

    /// Refuses every key not in `known`: inside this object an unknown key would change meaning.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), ApiError> {
        match self.map.iter().find(|(key, value)| !value.is_null() && !known.contains(&key.as_str())) {
            Some((key, _)) => Err(ApiError::unknown_field(&self.path(&shown(key)), known)),
            None => Ok(()),
        }
    }
}

/// One integer value at `path`.
pub(crate) fn integer(value: &Value, path: &str, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
    let Value::Number(number) = value else {
        return Err(ApiError::invalid_type(path, "integer", type_name(value)));
    };
    let whole = match (number.as_i64(), number.as_f64()) {
        (Some(n), _) => Some(n),
        // Every whole number below 2^63 in magnitude converts exactly.
        (None, Some(x)) if x.fract() == 0.0 && x.abs() < 9.2e18 => Some(x as i64),
        (None, Some(x)) if x.fract() != 0.0 => return Err(ApiError::invalid_type(path, "integer", "fraction")),
        _ => None,
    };
    match whole {
        Some(n) if range.contains(&n) => Ok(n),
        _ => {
            let (low, high) = (range.start(), range.end());
            Err(ApiError::invalid_value(path, format!("{number} is outside {low}..={high}")))
        }
    }
}
