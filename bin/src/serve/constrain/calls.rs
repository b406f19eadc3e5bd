//! Bodies of calls as grammars: what stands between the tokens that begin and end a call, per style.

use std::fmt::Write as _;

use engine_io::text::ToolStyle;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Map, Value, json};

use super::format::Form;
use super::gbnf;
use super::json::with_whitespace;
use super::screen::{Strictness, screen};
use crate::serve::tools::Tool;

/// A tool as its calls are constrained.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Callable<'a> {
    pub name: &'a str,
    /// Of its arguments, screened; always an object.
    pub schema: Map<String, Value>,
    /// What the one text of a custom tool must be.
    pub text: Option<Text>,
}

/// The text of a custom tool.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Text {
    Regex(String),
    Lark(String),
}

impl Text {
    /// From what was asked for.
    ///
    /// # Errors
    /// What is wrong with a grammar that has to be translated.
    pub(super) fn of(form: &Form) -> Result<Self, String> {
        match form {
            Form::Regex(text) => Ok(Self::Regex(text.clone())),
            Form::Lark(text) => Ok(Self::Lark(text.clone())),
            Form::Gbnf(text) => gbnf::to_lark(text).map(Self::Lark),
            Form::Object | Form::Schema(_) | Form::Choice(_) => unreachable!("no custom tool asks for it"),
        }
    }

    /// The grammar that its rule refers to; `i`: the tool's place.
    pub(super) fn grammar(&self, i: usize) -> Option<GrammarWithLexer> {
        let Self::Lark(text) = self else { return None };
        Some(GrammarWithLexer { name: Some(format!("text{i}")), ..GrammarWithLexer::from_lark(text.clone()) })
    }

    /// The rule of the text with its end tag, which no text of an expression can hold.
    fn rule(&self, rule: &str, i: usize) -> String {
        let Self::Regex(text) = self else { return format!("{rule}: @text{i} {END}") };
        let upper = rule.to_uppercase();
        format!("{rule}[suffix={END}]: {upper}\n{upper}: /{}/", llguidance::regex_to_lark(text, ""))
    }
}

/// The end tag of a value, as a literal.
const END: &str = "\"\\n</parameter>\\n\"";

/// Arguments of a tool whose schema cannot be compiled.
pub(super) fn any_arguments() -> Map<String, Value> {
    Map::from_iter([("type".to_owned(), json!("object"))])
}

/// The schema of a tool's arguments, and whether it was widened.
///
/// # Errors
/// What is wrong with it, where it may not be widened.
pub(super) fn arguments(
    tool: &Tool,
    strictness: Strictness,
) -> Result<(Map<String, Value>, bool), super::screen::Flaw> {
    let Some(parameters) = &tool.parameters else {
        let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
        return Ok((none.as_object().cloned().unwrap_or_default(), false));
    };
    let (schema, widened) = match screen(&Value::Object(parameters.clone()), strictness) {
        Err(_) if strictness == Strictness::Widened => return Ok((any_arguments(), true)),
        other => other?,
    };
    let mut schema = match schema {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    // Arguments are an object, whatever else their schema would let be.
    schema.entry("type").or_insert_with(|| json!("object"));
    Ok((schema, widened))
}

/// The grammar of one body, in Lark; `None` for a style that is not known.
pub(super) fn body(tools: &[Callable<'_>], style: ToolStyle, single: bool) -> Option<String> {
    let (open, call, close, key) = match style {
        ToolStyle::Xml => return Some(xml(tools)),
        ToolStyle::Hermes => ("\n", "call", "\n", "arguments"),
        ToolStyle::Llama3 if single => ("", "call", "", "parameters"),
        ToolStyle::Llama3 => ("", "call ((/; ?/ | \"\\n\") call)*", "", "parameters"),
        ToolStyle::Nemotron2 if single => ("[", "call", "]", "arguments"),
        ToolStyle::Nemotron2 => ("[", "call (/, ?/ call)*", "]", "arguments"),
        ToolStyle::None => return None,
    };
    let mut out = format!("start: {} {call} {}\n", quoted(open), quoted(close));
    let mut alternatives = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        let head = format!("{{\"name\": {}, \"{key}\": ", Value::from(tool.name));
        alternatives.push(format!("{} j{i} \"}}\"", quoted(&head)));
        let _ = writeln!(out, "j{i}: %json {}", with_whitespace(&Value::Object(tool.schema.clone())));
    }
    let _ = writeln!(out, "call: {}", alternatives.join("\n    | "));
    Some(out)
}

/// The texts among a tool's arguments in the XML style that a form of their own is asked of, which none may have: each as a
/// grammar of its own.
pub(super) fn texts(tool: &Callable<'_>) -> Vec<TopLevelGrammar> {
    let alone = |rule: String| TopLevelGrammar::from_lark(format!("start: v\n{rule}\ntext[suffix={END}]: /(?s:.*)/\n"));
    if let Some(text) = &tool.text {
        let mut grammar = alone(text.rule("v", 0));
        grammar.grammars.extend(text.grammar(0));
        return vec![grammar];
    }
    let properties = tool.schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let patterned = properties.filter(|(_, schema)| resolve(schema, &tool.schema, 8).contains_key("pattern"));
    patterned.map(|(_, schema)| alone(value("v", schema, &tool.schema))).collect()
}

/// A text as a literal of Lark.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Every function its own name and parameters, in the order of its schema.
fn xml(tools: &[Callable<'_>]) -> String {
    let mut out = String::new();
    let mut functions = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        functions.push(format!("f{i}"));
        let mut body = format!("f{i}: {}", quoted(&format!("\n<function={}>\n", tool.name)));
        let none = Map::new();
        let properties = tool.schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required: Vec<&str> = match tool.schema.get("required").and_then(Value::as_array) {
            Some(list) => list.iter().filter_map(Value::as_str).collect(),
            None => Vec::new(),
        };
        let open = tool.schema.get("additionalProperties").is_none_or(|v| v != &Value::Bool(false));
        if properties.is_empty() && open {
            // Nothing is declared: the model names what it likes.
            body.push_str(" any*");
        }
        let mut values = String::new();
        // What is required and not declared may be anything.
        let undeclared = required.iter().filter(|name| !properties.contains_key(**name));
        let all = properties.iter().map(|(name, schema)| (name.as_str(), schema));
        for (p, (name, schema)) in all.chain(undeclared.map(|name| (*name, &Value::Bool(true)))).enumerate() {
            let optional = if required.contains(&name) { "" } else { "?" };
            let _ = write!(body, " p{i}x{p}{optional}");
            let head = quoted(&format!("<parameter={name}>\n"));
            let _ = writeln!(values, "p{i}x{p}: {head} v{i}x{p}");
            let rule = format!("v{i}x{p}");
            let value = match &tool.text {
                Some(text) => text.rule(&rule, i),
                None => value(&rule, schema, &tool.schema),
            };
            let _ = writeln!(values, "{value}");
        }
        let _ = writeln!(out, "{body} \"</function>\\n\"\n{values}");
    }
    // A value ends at the first end tag.
    let any = "any: /<parameter=[^>\\n]{1,128}>\\n/ text";
    let text = "text[suffix=\"\\n</parameter>\\n\"]: /(?s:.*)/";
    format!("start: {}\n{out}{any}\n{text}\n", functions.join(" | "))
}

/// The rule of a value with its end tag.
fn value(rule: &str, schema: &Value, root: &Map<String, Value>) -> String {
    let of = resolve(schema, root, 8);
    let texts: Option<Vec<&str>> = match (of.get("const"), of.get("enum").and_then(Value::as_array)) {
        (Some(value), _) => value.as_str().map(|text| vec![text]),
        (None, Some(list)) => list.iter().map(Value::as_str).collect(),
        (None, None) => None,
    };
    if let Some(texts) = texts {
        let alternatives: Vec<String> = texts.iter().map(|text| quoted(&format!("{text}\n</parameter>\n"))).collect();
        return format!("{rule}: {}", alternatives.join(" | "));
    }
    if !may_be_text(of, root, 8) {
        let mut schema = of.clone();
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(key) {
                schema.insert(key.to_owned(), definitions.clone());
            }
        }
        return format!("{rule}: {rule}j {END}\n{rule}j: %json {}", with_whitespace(&Value::Object(schema)));
    }
    let count = |key: &str| of.get(key).and_then(Value::as_u64);
    let only_text = of.get("type").is_some_and(|t| t == "string");
    let bounds = (count("minLength").unwrap_or(0), count("maxLength"));
    match (only_text, bounds, of.get("pattern").and_then(Value::as_str)) {
        (true, bounds, pattern) if bounds != (0, None) || pattern.is_some() => {
            let most = bounds.1.map_or(String::new(), |n| n.to_string());
            let length = format!("/(?s:.){{{},{most}}}/", bounds.0);
            let upper = rule.to_uppercase();
            let search = pattern.map_or(String::new(), |p| format!(" & {}", search_regex(p)));
            format!("{rule}[suffix={END}]: {upper}\n{upper}: {length}{search}")
        }
        _ => format!("{rule}: text"),
    }
}

/// A pattern that may match anywhere, as a terminal.
fn search_regex(pattern: &str) -> String {
    let pattern = llguidance::regex_to_lark(pattern, "dw");
    let (pattern, head) = match pattern.strip_prefix('^') {
        Some(rest) => (rest, ""),
        None => (pattern.as_str(), "(?s:.*)"),
    };
    // A `$` that is escaped is text.
    let slashes = pattern.trim_end_matches('$').chars().rev().take_while(|c| *c == '\\').count();
    let (pattern, tail) = match pattern.strip_suffix('$') {
        Some(rest) if slashes.is_multiple_of(2) => (rest, ""),
        _ => (pattern, "(?s:.*)"),
    };
    format!("/{head}({pattern}){tail}/")
}

/// The schema that a reference stands for, or the schema itself.
fn resolve<'a>(schema: &'a Value, root: &'a Map<String, Value>, depth: usize) -> &'a Map<String, Value> {
    static NONE: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    let Some(map) = schema.as_object() else { return &NONE };
    let reference = map.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix("#/"));
    let Some(path) = reference.filter(|_| depth > 0 && map.len() == 1) else { return map };
    let mut parts = path.split('/');
    let first = parts.next().and_then(|key| root.get(key));
    let found = parts.try_fold(first, |at, key| at.map(|value| value.get(key)));
    match found.flatten() {
        Some(target) => resolve(target, root, depth - 1),
        None => map,
    }
}

/// Whether a schema lets a value be a string; where that is not plain, it does.
fn may_be_text(of: &Map<String, Value>, root: &Map<String, Value>, depth: usize) -> bool {
    let names = |name: &Value| name == "string";
    let any = |list: &Value| {
        let Some(list) = list.as_array() else { return true };
        depth == 0 || list.iter().any(|schema| may_be_text(resolve(schema, root, depth), root, depth - 1))
    };
    if let Some(kind) = of.get("type") {
        return kind.as_array().map_or_else(|| names(kind), |list| list.iter().any(names));
    }
    if let Some(value) = of.get("const") {
        return value.is_string();
    }
    if let Some(list) = of.get("enum").and_then(Value::as_array) {
        return list.iter().any(Value::is_string);
    }
    match ["anyOf", "oneOf"].iter().find_map(|key| of.get(*key)) {
        Some(list) => any(list),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_anywhere_unless_they_say_where() {
        assert_eq!(search_regex("a|b"), "/(?s:.*)(a|b)(?s:.*)/");
        assert_eq!(search_regex("^a$"), "/(a)/");
        assert_eq!(search_regex("a\\$"), "/(?s:.*)(a\\$)(?s:.*)/");
        assert_eq!(search_regex("a\\\\$"), "/(?s:.*)(a\\\\)/");
    }

    #[test]
    fn a_value_is_text_where_a_string_may_be() {
        let root = json!({"$defs": {"s": {"type": "string"}, "n": {"$ref": "#/$defs/m"}, "m": {"type": "integer"}}});
        let root = root.as_object().unwrap();
        let text = |schema: Value| may_be_text(resolve(&schema, root, 8), root, 8);
        assert!(text(json!({"type": "string"})) && text(json!({"type": ["null", "string"]})) && text(json!({})));
        assert!(
            text(json!({"$ref": "#/$defs/s"})) && text(json!({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/s"}]}))
        );
        assert!(text(json!(true)) && text(json!({"enum": [1, "a"]})));
        assert!(!text(json!({"type": "integer"})) && !text(json!({"$ref": "#/$defs/n"})) && !text(json!({"const": 1})));
        assert!(!text(json!({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]})));
    }
}
