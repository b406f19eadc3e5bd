//! JSON schemas before they are compiled: what would be read in another way than JSON Schema means it is refused, or
//! widened where that was asked for, and what says nothing about the value is dropped.

use serde_json::{Map, Value};

/// Levels of a schema.
const DEPTH_MAX: usize = 64;

/// Properties of an object: what compiling takes grows with their square.
const PROPERTIES_MAX: usize = 1000;

const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];
pub(super) const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// What a keyword holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Schema,
    Schemas,
    Named,
    /// A schema, or a list of them.
    Either,
    Count,
    Number,
    /// A number, or in older drafts a boolean.
    Bound,
    /// Checked below.
    Other,
}

const KEYWORDS: &[(&str, Holds)] = &[
    ("type", Holds::Other),
    ("enum", Holds::Other),
    ("const", Holds::Other),
    ("$ref", Holds::Other),
    ("required", Holds::Other),
    ("pattern", Holds::Other),
    ("format", Holds::Other),
    ("properties", Holds::Named),
    ("patternProperties", Holds::Named),
    ("$defs", Holds::Named),
    ("definitions", Holds::Named),
    ("additionalProperties", Holds::Schema),
    ("additionalItems", Holds::Schema),
    ("items", Holds::Either),
    ("prefixItems", Holds::Schemas),
    ("anyOf", Holds::Schemas),
    ("allOf", Holds::Schemas),
    ("oneOf", Holds::Schemas),
    ("minItems", Holds::Count),
    ("maxItems", Holds::Count),
    ("minLength", Holds::Count),
    ("maxLength", Holds::Count),
    ("minProperties", Holds::Count),
    ("maxProperties", Holds::Count),
    ("minimum", Holds::Number),
    ("maximum", Holds::Number),
    ("exclusiveMinimum", Holds::Bound),
    ("exclusiveMaximum", Holds::Bound),
    ("multipleOf", Holds::Number),
];

/// Keywords that say nothing about a value.
const ANNOTATIONS: [&str; 13] = [
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$schema",
    "$id",
    "$comment",
    "contentEncoding",
    "contentMediaType",
];

/// Pairs of bounds that leave nothing when the first is the greater.
const PAIRS: [(&str, &str); 4] =
    [("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"), ("minimum", "maximum")];

/// Integers that grammars tell apart: they count in floating point.
const INTEGER_MAX: u64 = 1 << 53;

/// What is wrong with a schema, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Flaw {
    /// JSON pointer into the schema.
    pub pointer: String,
    pub message: String,
}

/// What becomes of a part of a schema that cannot be compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Strictness {
    /// The schema is refused.
    Exact,
    /// The part may be any value.
    Widened,
}

/// A copy of a schema without annotations, and whether a part of it was widened.
///
/// # Errors
/// The first part that cannot be compiled, where nothing may be widened.
pub(super) fn screen(schema: &Value, strictness: Strictness) -> Result<(Value, bool), Flaw> {
    let mut screen = Screen { strictness, widened: false, multiples: Multiples::default() };
    let value = screen.schema(schema, &mut String::new(), 0)?;
    Ok((value, screen.widened))
}

struct Screen {
    strictness: Strictness,
    widened: bool,
    multiples: Multiples,
}

/// How far a grammar counts for the numbers that all `multipleOf` of a schema divide: states of an automaton, for two that
/// meet as many as for their product.
const MULTIPLE_MAX: u64 = 50_000;
/// Decimals of a `multipleOf`.
const DECIMALS_MAX: u32 = 6;

/// The least number that every `multipleOf` so far divides, in units of the last of so many decimals.
#[derive(Clone, Copy, Debug)]
struct Multiples {
    least: u64,
    decimals: u32,
}

impl Default for Multiples {
    fn default() -> Self {
        Self { least: 1, decimals: 0 }
    }
}

impl Multiples {
    /// With one more.
    ///
    /// # Errors
    /// Where counting for it takes too long.
    fn and(self, x: f64) -> Result<Self, String> {
        let at = |decimals: u32| {
            let scaled = x * 10_f64.powi(decimals as i32);
            let near = (scaled - scaled.round()).abs() <= 1e-9 * scaled;
            (near && scaled >= 0.5).then_some((scaled.round(), decimals))
        };
        let Some((own, decimals)) = (0..=DECIMALS_MAX).find_map(at) else {
            return Err(format!("multipleOf: {x} has more than {DECIMALS_MAX} decimals"));
        };
        let most = self.decimals.max(decimals);
        let scale = |n: u64, from: u32| n.saturating_mul(10_u64.pow(most - from));
        // What is beyond any number here is cut to the greatest.
        let (a, b) = (scale(self.least, self.decimals), scale(own as u64, decimals));
        let least = (a / divisor(a, b)).saturating_mul(b);
        if least > MULTIPLE_MAX {
            let message = "is counted for too long, beside what else the schema counts";
            return Err(format!("multipleOf: {x} {message}; use smaller numbers, or fewer"));
        }
        Ok(Self { least, decimals: most })
    }
}

/// The greatest common divisor of two numbers above 0.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

fn flaw(pointer: &str, message: impl Into<String>) -> Flaw {
    Flaw { pointer: pointer.to_owned(), message: message.into() }
}

/// Calls `then` with the pointer one level further down.
pub(super) fn below<T>(pointer: &mut String, key: &str, then: impl FnOnce(&mut String) -> T) -> T {
    let len = pointer.len();
    pointer.push('/');
    pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
    let out = then(pointer);
    pointer.truncate(len);
    out
}

impl Screen {
    fn schema(&mut self, schema: &Value, pointer: &mut String, depth: usize) -> Result<Value, Flaw> {
        let screened = match schema {
            _ if depth > DEPTH_MAX => Err(flaw(pointer, format!("it is nested more than {DEPTH_MAX} levels deep"))),
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(map) => self.object(map, pointer, depth),
            other => {
                let found = crate::serve::json::type_name(other);
                Err(flaw(pointer, format!("expected a schema (object or boolean), found {found}")))
            }
        };
        match screened {
            Err(_) if self.strictness == Strictness::Widened && depth > 0 => {
                self.widened = true;
                Ok(Value::Bool(true))
            }
            other => other,
        }
    }

    fn object(&mut self, map: &Map<String, Value>, pointer: &mut String, depth: usize) -> Result<Value, Flaw> {
        let mut out = Map::new();
        for (key, value) in map {
            if ANNOTATIONS.contains(&key.as_str()) || key.starts_with("x-") {
                continue;
            }
            let Some((_, holds)) = KEYWORDS.iter().find(|(name, _)| name == key) else {
                match (key.as_str(), value) {
                    ("uniqueItems", Value::Bool(false)) | ("nullable", Value::Bool(false)) => continue,
                    _ => return Err(below(pointer, key, |p| flaw(p, format!("the keyword {key} is not supported")))),
                }
            };
            let screened = below(pointer, key, |pointer| self.keyword(key, *holds, value, pointer, depth + 1))?;
            out.insert(key.clone(), screened);
        }
        for (least, most) in PAIRS {
            if let (Some(a), Some(b)) = (number(&out, least), number(&out, most))
                && a > b
            {
                let message = format!("{least} {a} is above {most} {b}: no value is both");
                return Err(below(pointer, least, |p| flaw(p, message)));
            }
        }
        super::formats::spell_out(&mut out);
        Ok(Value::Object(out))
    }

    fn keyword(
        &mut self,
        key: &str,
        holds: Holds,
        value: &Value,
        pointer: &mut String,
        depth: usize,
    ) -> Result<Value, Flaw> {
        let wrong = |pointer: &str, expected: &str| {
            let found = crate::serve::json::type_name(value);
            Err(flaw(pointer, format!("{key}: expected {expected}, found {found}")))
        };
        if matches!(holds, Holds::Number | Holds::Bound) || matches!(key, "const" | "enum") {
            exact(value, pointer)?;
        }
        match (holds, value) {
            (Holds::Schema | Holds::Either, Value::Object(_) | Value::Bool(_)) => self.schema(value, pointer, depth),
            (Holds::Schemas | Holds::Either, Value::Array(list)) => {
                let mut out = Vec::with_capacity(list.len());
                for (i, schema) in list.iter().enumerate() {
                    out.push(below(pointer, &i.to_string(), |p| self.schema(schema, p, depth))?);
                }
                Ok(Value::Array(out))
            }
            (Holds::Named, Value::Object(map)) if map.len() > PROPERTIES_MAX => {
                Err(flaw(pointer, format!("{key}: {} of them, and the limit is {PROPERTIES_MAX}", map.len())))
            }
            (Holds::Named, Value::Object(map)) => {
                let mut out = Map::new();
                for (name, schema) in map {
                    out.insert(name.clone(), below(pointer, name, |p| self.schema(schema, p, depth))?);
                }
                Ok(Value::Object(out))
            }
            (Holds::Count, Value::Number(n)) => match n.as_u64().or(n.as_f64().and_then(whole)) {
                Some(n) => Ok(n.into()),
                None => Err(flaw(pointer, format!("{key}: {n} is no count"))),
            },
            (Holds::Number | Holds::Bound, Value::Number(n)) if key == "multipleOf" => match n.as_f64() {
                Some(x) if x > 0.0 => {
                    self.multiples = self.multiples.and(x).map_err(|message| flaw(pointer, message))?;
                    Ok(value.clone())
                }
                _ => Err(flaw(pointer, "multipleOf: it must be above 0")),
            },
            (Holds::Number | Holds::Bound, Value::Number(_)) | (Holds::Bound, Value::Bool(_)) => Ok(value.clone()),
            (Holds::Other, _) => other(key, value, pointer),
            (Holds::Schema, _) => wrong(pointer, "a schema"),
            (Holds::Schemas, _) => wrong(pointer, "a list of schemas"),
            (Holds::Named, _) => wrong(pointer, "an object of schemas"),
            (Holds::Either, _) => wrong(pointer, "a schema or a list of schemas"),
            (Holds::Count | Holds::Number | Holds::Bound, _) => wrong(pointer, "a number"),
        }
    }
}

/// A value whose integers mean themselves to a grammar.
///
/// # Errors
/// Where one does not.
fn exact(value: &Value, pointer: &mut String) -> Result<(), Flaw> {
    match value {
        Value::Number(n) if n.as_i64().map_or(n.is_u64(), |n| n.unsigned_abs() > INTEGER_MAX) => {
            Err(flaw(pointer, format!("{n} is not told apart from its neighbours; integers go to 2^53 on either side")))
        }
        Value::Array(list) => {
            list.iter().enumerate().try_for_each(|(i, item)| below(pointer, &i.to_string(), |p| exact(item, p)))
        }
        Value::Object(map) => map.iter().try_for_each(|(key, item)| below(pointer, key, |p| exact(item, p))),
        _ => Ok(()),
    }
}

/// Keywords that hold no schema, and no number.
fn other(key: &str, value: &Value, pointer: &str) -> Result<Value, Flaw> {
    let found = crate::serve::json::type_name(value);
    let fine = match (key, value) {
        ("const", _) => true,
        ("enum", Value::Array(list)) => {
            if list.is_empty() {
                return Err(flaw(pointer, "enum: it lists no value"));
            }
            true
        }
        ("type", Value::String(name)) => return known(&TYPES, "type", name, pointer).map(|()| value.clone()),
        ("type", Value::Array(list)) if !list.is_empty() => {
            for name in list {
                let Some(name) = name.as_str() else { return Err(flaw(pointer, "type: it lists names of types")) };
                known(&TYPES, "type", name, pointer)?;
            }
            true
        }
        ("format", Value::String(name)) => return known(&FORMATS, "format", name, pointer).map(|()| value.clone()),
        ("$ref", Value::String(reference)) => {
            if !reference.starts_with('#') {
                return Err(flaw(pointer, "$ref: only references into the schema itself (#/...) are supported"));
            }
            true
        }
        ("required", Value::Array(list)) => list.iter().all(Value::is_string),
        ("pattern", Value::String(_)) => true,
        _ => false,
    };
    if fine { Ok(value.clone()) } else { Err(flaw(pointer, format!("{key}: found {found} of no use here"))) }
}

fn known(names: &[&str], what: &str, name: &str, pointer: &str) -> Result<(), Flaw> {
    if names.contains(&name) {
        return Ok(());
    }
    let name = crate::serve::error::quote(name);
    Err(flaw(pointer, format!("the {what} {name} is not supported; there are {}", names.join(", "))))
}

fn number(map: &Map<String, Value>, key: &str) -> Option<f64> {
    map.get(key)?.as_f64()
}

fn whole(x: f64) -> Option<u64> {
    (x >= 0.0 && x.fract() == 0.0 && x < 9e15).then_some(x as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotations_go_and_everything_else_stays() {
        assert!(screen(&json!({"const": 1_i64 << 53, "maximum": 1e300}), Strictness::Exact).is_ok());
        let usual = [0.01, 0.5, 1.0, 5.0, 60.0, 100.0].map(|n| json!({"multipleOf": n}));
        assert!(screen(&json!({"prefixItems": usual}), Strictness::Exact).is_ok());
        let schema = json!({"$schema": "x", "title": "t", "type": "object", "x-order": 1, "required": ["title"],
            "properties": {"title": {"type": ["string", "null"], "description": "d", "maxLength": 5.0},
                "items": {"type": "array", "items": {"$ref": "#/$defs/a"}, "uniqueItems": false}},
            "additionalProperties": false, "$defs": {"a": {"anyOf": [{"const": {"title": 1}}, true]}}});
        let (out, widened) = screen(&schema, Strictness::Exact).unwrap();
        assert!(!widened);
        // A property may be called like an annotation, and a value may hold one.
        let expected = json!({"type": "object", "required": ["title"],
            "properties": {"title": {"type": ["string", "null"], "maxLength": 5},
                "items": {"type": "array", "items": {"$ref": "#/$defs/a"}}},
            "additionalProperties": false, "$defs": {"a": {"anyOf": [{"const": {"title": 1}}, true]}}});
        assert_eq!(out, expected);
    }

    #[test]
    fn what_cannot_be_enforced_is_refused_where_it_stands() {
        let deep = (0..80).fold(json!({"type": "string"}), |inner, _| json!({"items": inner}));
        for (schema, pointer, message) in [
            (json!({"not": {}}), "/not", "keyword not"),
            (json!({"properties": {"a/b": {"if": {}}}}), "/properties/a~1b/if", "keyword if"),
            (json!({"items": {"dependentRequired": {}}}), "/items/dependentRequired", "not supported"),
            (json!({"anyOf": [true, {"unevaluatedProperties": false}]}), "/anyOf/1/unevaluatedProperties", "not"),
            (json!({"contains": {}}), "/contains", "not supported"),
            (json!({"uniqueItems": true}), "/uniqueItems", "not supported"),
            (json!({"propertyNames": {}}), "/propertyNames", "not supported"),
            (json!({"x-guidance": {"lenient": true}, "lenient": 1}), "/lenient", "not supported"),
            (json!({"$ref": "http://x/y"}), "/$ref", "into the schema itself"),
            (json!({"type": "text"}), "/type", "'text'"),
            (json!({"type": "string", "format": "color"}), "/format", "'color'"),
            (json!({"minLength": 5, "maxLength": 3}), "/minLength", "above maxLength 3"),
            (json!({"minimum": 5, "maximum": 3.5}), "/minimum", "above maximum 3.5"),
            (json!({"minItems": -1}), "/minItems", "no count"),
            (json!({"multipleOf": 0}), "/multipleOf", "above 0"),
            (json!({"multipleOf": 2147483647}), "/multipleOf", "too long"),
            (json!({"multipleOf": 1e300}), "/multipleOf", "too long"),
            (json!({"multipleOf": 1e-7}), "/multipleOf", "more than 6 decimals"),
            (json!({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}), "/allOf/1/multipleOf", "too long"),
            (json!({"enum": []}), "/enum", "no value"),
            (json!({"enum": [1, {"k": [u64::MAX]}]}), "/enum/1/k/0", "18446744073709551615 is not told apart"),
            (json!({"const": (1_i64 << 53) + 1}), "/const", "not told apart"),
            (json!({"minimum": i64::MIN}), "/minimum", "not told apart"),
            (json!({"properties": []}), "/properties", "object of schemas"),
            (json!({"items": 5}), "/items", "a schema or a list"),
            (json!({"anyOf": [5]}), "/anyOf/0", "found number"),
            (json!([]), "", "expected a schema"),
            (deep, &"/items".repeat(65), "64 levels"),
        ] {
            let found = screen(&schema, Strictness::Exact).unwrap_err();
            assert_eq!(found.pointer, pointer, "{schema}");
            assert!(found.message.contains(message), "{}", found.message);
        }
    }

    #[test]
    fn a_part_is_widened_and_no_more_than_it() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"not": {}}}});
        let (out, widened) = screen(&schema, Strictness::Widened).unwrap();
        assert!(widened);
        assert_eq!(out, json!({"type": "object", "properties": {"a": {"type": "string"}, "b": true}}));
        assert!(screen(&json!({"not": {}}), Strictness::Widened).is_err(), "the root is not a part");
    }
}
