//! Schemas as grammars, and where in a schema that cannot be compiled the fault lies.

use std::time::{Duration, Instant};

use llguidance::TokenParser;
use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use super::screen::{Flaw, Strictness, below, screen};
use super::vocabulary::Vocabulary;

/// White space between the parts of a value: a blank, or a line's end and what the next begins with. Without a bound a
/// model could write nothing else.
const WHITESPACE: &str = r"\x20|\n\x20{0,16}|\n\t{0,4}";
/// Looking for the part at fault stops after this long; the whole is at fault then.
const SEARCH_TIME: Duration = Duration::from_millis(500);

/// A schema with the settings of this server's JSON.
pub(super) fn with_whitespace(schema: &Value) -> Value {
    let mut map = match schema {
        Value::Object(map) => map.clone(),
        Value::Bool(false) => Map::from_iter([("anyOf".to_owned(), json!([]))]),
        _ => Map::new(),
    };
    map.insert("x-guidance".to_owned(), json!({"whitespace_pattern": WHITESPACE}));
    Value::Object(map)
}

fn compile(schema: &Value, vocabulary: &Vocabulary) -> Result<TokenParser, String> {
    vocabulary.parser(TopLevelGrammar::from_json_schema(with_whitespace(schema)))
}

/// The grammar of a schema that must hold as a whole.
///
/// # Errors
/// The part at fault.
pub(super) fn exact(schema: &Value, vocabulary: &Vocabulary) -> Result<TokenParser, Flaw> {
    let (schema, _) = screen(schema, Strictness::Exact)?;
    compile(&schema, vocabulary).map_err(|message| locate(&schema, message, vocabulary))
}

/// The flaw of a schema that cannot be compiled for the reason of `message`.
pub(super) fn locate(schema: &Value, message: String, vocabulary: &Vocabulary) -> Flaw {
    let mut flaw = Flaw { pointer: String::new(), message };
    let give_up = Instant::now() + SEARCH_TIME;
    let definitions: Map<String, Value> = ["$defs", "definitions"]
        .into_iter()
        .filter_map(|key| Some((key.to_owned(), schema.get(key)?.clone())))
        .collect();
    descend(schema, &definitions, &mut String::new(), give_up, vocabulary, &mut flaw);
    flaw
}

/// Moves `flaw` to the deepest part of `schema` that cannot be compiled by itself.
fn descend(
    schema: &Value,
    definitions: &Map<String, Value>,
    pointer: &mut String,
    give_up: Instant,
    vocabulary: &Vocabulary,
    flaw: &mut Flaw,
) -> bool {
    let Some(map) = schema.as_object() else { return false };
    let mut look = |part: &Value, pointer: &mut String| {
        let Some(part) = part.as_object().filter(|_| Instant::now() < give_up) else { return false };
        let mut alone = part.clone();
        alone.extend(definitions.clone());
        let Err(message) = compile(&Value::Object(alone), vocabulary) else { return false };
        *flaw = Flaw { pointer: pointer.clone(), message };
        descend(&Value::Object(part.clone()), definitions, pointer, give_up, vocabulary, flaw);
        true
    };
    for (key, value) in map {
        let found = below(pointer, key, |pointer| match (key.as_str(), value) {
            ("items" | "additionalProperties" | "additionalItems", Value::Object(_)) => look(value, pointer),
            ("items" | "prefixItems" | "anyOf" | "allOf" | "oneOf", Value::Array(list)) => {
                list.iter().enumerate().any(|(i, part)| below(pointer, &i.to_string(), |p| look(part, p)))
            }
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(parts)) => {
                parts.iter().any(|(name, part)| below(pointer, name, |p| look(part, p)))
            }
            _ => false,
        });
        if found {
            return true;
        }
    }
    // No part is at fault by itself: where it is a pattern, that is where to look.
    if map.contains_key("pattern") {
        flaw.pointer.push_str("/pattern");
    }
    false
}
