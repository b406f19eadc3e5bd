//! Which JSON types a tool's parameters may have, from the schemas of the request.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// Types of one parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Text and nothing else: it is passed on as it comes.
    Text,
    /// These, and no text.
    Json(HashSet<&'static str>),
    /// These, or else text.
    Either(HashSet<&'static str>),
}

const TYPES: [&str; 6] = ["object", "array", "number", "integer", "boolean", "null"];

/// The tools of a request, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kinds {
    tools: HashMap<String, HashMap<String, Kind>>,
}

impl Kinds {
    /// From names and parameter schemas.
    pub(crate) fn new<'a>(tools: impl IntoIterator<Item = (&'a str, Option<&'a Map<String, Value>>)>) -> Self {
        let properties = |schema: Option<&Map<String, Value>>| {
            let properties = schema.and_then(|s| s.get("properties")).and_then(Value::as_object);
            properties.into_iter().flatten().map(|(name, schema)| (name.clone(), kind(schema))).collect()
        };
        Self { tools: tools.into_iter().map(|(name, schema)| (name.to_owned(), properties(schema))).collect() }
    }

    /// Whether the request has it.
    pub(crate) fn knows(&self, tool: &str) -> bool {
        self.tools.contains_key(tool)
    }

    /// Of a parameter that no schema names: anything.
    pub(crate) fn of(&self, tool: &str, parameter: &str) -> Kind {
        let known = self.tools.get(tool).and_then(|parameters| parameters.get(parameter));
        known.cloned().unwrap_or_else(|| Kind::Either(TYPES.into()))
    }
}

/// Depth of alternatives that are followed.
const DEPTH: usize = 8;

fn kind(schema: &Value) -> Kind {
    let mut types = HashSet::new();
    collect(schema, DEPTH, &mut types);
    let text = types.remove("string");
    match (text, types.is_empty()) {
        (true, true) => Kind::Text,
        (true, false) => Kind::Either(types),
        (false, false) => Kind::Json(types),
        (false, true) => Kind::Either(TYPES.into()),
    }
}

/// Types that a schema allows, `string` among them; none where it does not say.
fn collect(schema: &Value, depth: usize, types: &mut HashSet<&'static str>) {
    let known = |name: &str| TYPES.into_iter().chain(["string"]).find(|t| *t == name);
    match schema.get("type") {
        Some(Value::String(name)) => return types.extend(known(name)),
        Some(Value::Array(names)) => return types.extend(names.iter().filter_map(Value::as_str).filter_map(known)),
        _ => {}
    }
    let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten().chain(schema.get("const"));
    types.extend(values.map(type_of));
    if depth > 0 {
        let lists = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|name| schema.get(name)?.as_array());
        lists.flatten().for_each(|one| collect(one, depth - 1, types));
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether a JSON text is of one of these types.
pub(super) fn is_of(text: &str, types: &HashSet<&'static str>) -> bool {
    let Ok(value) = serde_json::from_str::<Value>(text) else { return false };
    let whole = value.as_f64().is_some_and(|x| x.fract() == 0.0);
    types.contains(type_of(&value)) || (whole && types.contains("integer"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_follow_the_schema() {
        let of = |schema: Value| kind(&schema);
        assert_eq!(of(json!({"type": "string"})), Kind::Text);
        assert_eq!(of(json!({"type": "integer"})), Kind::Json(["integer"].into()));
        assert_eq!(of(json!({"type": ["string", "null"]})), Kind::Either(["null"].into()));
        assert_eq!(of(json!({"enum": ["a", "b"]})), Kind::Text);
        assert_eq!(of(json!({"anyOf": [{"type": "array"}, {"type": "string"}]})), Kind::Either(["array"].into()));
        assert_eq!(of(json!({"const": 1})), Kind::Json(["number"].into()));
        assert_eq!(of(json!({"description": "x"})), Kind::Either(TYPES.into()));
        assert!(
            is_of("3.0", &["integer"].into()) && !is_of("3.5", &["integer"].into()) && is_of("3", &["number"].into())
        );
    }
}
