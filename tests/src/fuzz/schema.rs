//! Schemas of answers and of tools. What is compiled is walked at random, as a model would that writes anything it may: a
//! value that such a walk ends with is one of the schema, says a validator that knows nothing of grammars.

use engine::constraint::{Allowed, Constraint};
use engine::ids::TokenId;
use engine_bin::serve::TextModel;
use engine_bin::serve::gguf_text::GgufText;
use engine_bin::serve::probe::{Bodies, Outcome};
use jsonschema::Draft;
use serde_json::{Value, json};

use super::bodies::{answered, bodies};
use super::{Damage, Reader, Rng, Target};

const PATH: &str = "/v1/chat/completions";
/// Tokens of one walk; strings without a bound may be longer.
const STEPS: usize = 150;

pub(super) const TARGET: Target = Target {
    name: "schema",
    seeds,
    words: &[
        "type",
        "object",
        "array",
        "string",
        "number",
        "integer",
        "boolean",
        "null",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "minLength",
        "maxLength",
        "minProperties",
        "maxProperties",
        "pattern",
        "^[a-c]{1,3}$",
        "^(a|bc)*\\d$",
        "[^x]+",
        "(?=a)",
        "\\p{L}",
        "format",
        "date",
        "date-time",
        "uuid",
        "email",
        "ipv4",
        "uri",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "enum",
        "const",
        "anyOf",
        "allOf",
        "oneOf",
        "not",
        "if",
        "uniqueItems",
        "propertyNames",
        "$ref",
        "$defs",
        "definitions",
        "#",
        "#/$defs/a",
        "#/properties/a",
        "#/$defs/none",
        "title",
        "default",
        "nullable",
        "a",
        "b",
        "\u{e9}",
    ],
    damage: Damage::Json,
    reader,
};

fn seeds() -> Vec<Vec<u8>> {
    let list = [
        json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 4},
            "b": {"type": "integer", "minimum": 3, "maximum": 70}}, "required": ["a"], "additionalProperties": false}),
        json!({"type": "array", "items": {"enum": ["x", 1, null, {"k": [true]}]}, "minItems": 1, "maxItems": 3}),
        json!({"$defs": {"a": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}},
            "required": ["next"], "additionalProperties": false}}, "$ref": "#/$defs/a"}),
        json!({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "v": {"type": "number",
            "exclusiveMinimum": 0, "multipleOf": 0.5, "maximum": 9}}, "required": ["kind", "v"]},
            {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]}]}),
        json!({"type": "object", "patternProperties": {"^k[0-9]$": {"type": "boolean"}}, "additionalProperties": false,
            "minProperties": 1, "maxProperties": 2}),
        json!({"type": "array", "prefixItems": [{"type": "string", "format": "date"}, {"type": ["string", "null"],
            "pattern": "^[A-Z]{2}-[0-9]{1,3}$"}], "items": false, "minItems": 2}),
        json!({"allOf": [{"type": "integer", "minimum": -5}, {"maximum": 5, "multipleOf": 3}], "title": "t", "default": 0}),
    ];
    let formats = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
    let formats = formats.map(|format| json!({"type": "string", "format": format}));
    list.iter().chain(&formats).map(|schema| schema.to_string().into_bytes()).collect()
}

fn reader() -> Reader {
    let (mut bodies, model) = bodies();
    Box::new(move |bytes| {
        let Ok(schema) = serde_json::from_slice::<Value>(bytes) else { return false };
        let mut rng =
            Rng::new(bytes.iter().fold(0, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add((*byte).into())));
        // Nobody asked for the schema of a tool to be kept to, so it is no reason to refuse the request.
        let tool = |strict: bool| json!([{"type": "function", "function": {"name": "f", "strict": strict, "parameters": schema}}]);
        let free = ask(&mut bodies, json!({"tools": tool(false)}));
        assert!(free.is_ok() || !schema.is_object() || nested(&schema) > 100, "a tool refused: {free:?}");
        drop(ask(&mut bodies, json!({"tools": tool(true)})));
        let form = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
        let Ok(Some(mut constraint)) = ask(&mut bodies, json!({"response_format": form})) else { return false };
        if let Some(text) = walk(constraint.as_mut(), &model, &mut rng) {
            check(&schema, &text);
        }
        true
    })
}

/// The constraint of a chat with these fields, or the code of its refusal.
fn ask(bodies: &mut Bodies, more: Value) -> Result<Option<Box<dyn Constraint>>, String> {
    let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
    for (key, value) in more.as_object().expect("fields") {
        body[key] = value.clone();
    }
    match bodies.read(PATH, body.to_string().as_bytes()).expect("a path of a POST") {
        (Outcome::Prompts(_), constraint) => Ok(constraint),
        (Outcome::Answer(status, body), _) => {
            assert!(!answered(status, &body));
            Err(String::from_utf8_lossy(&body).into_owned())
        }
    }
}

/// Levels of a document.
fn nested(value: &Value) -> usize {
    let inner = match value {
        Value::Array(list) => list.iter().map(nested).max(),
        Value::Object(map) => map.values().map(nested).max(),
        _ => None,
    };
    1 + inner.unwrap_or(0)
}

/// Takes tokens that may come until the answer ends; `None` where it has not ended after [`STEPS`].
fn walk(constraint: &mut dyn Constraint, model: &GgufText, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    for _ in 0..STEPS {
        let mut words = vec![0_u32; model.vocab().div_ceil(32)];
        let ids = || (0..model.vocab() as u32).map(TokenId);
        let may: Vec<TokenId> = match constraint.mask(&mut words) {
            Allowed::Masked => ids().filter(|t| words[t.index() / 32] >> (t.index() % 32) & 1 == 1).collect(),
            other => panic!("{other:?} behind {:?}", String::from_utf8_lossy(&text)),
        };
        // What closes something half of the time, so that most walks end.
        let closes = |token: &TokenId| model.is_end(*token) || model.piece(*token).iter().any(|b| b"\"]}".contains(b));
        let closing: Vec<TokenId> = may.iter().copied().filter(closes).collect();
        let token = if closing.is_empty() || rng.below(2) == 0 { *rng.of(&may) } else { *rng.of(&closing) };
        assert!(constraint.advance(token), "{token} may come, and is not taken");
        if model.is_end(token) {
            return Some(text);
        }
        text.extend(model.piece(token));
        if constraint.ended() {
            return Some(text);
        }
    }
    None
}

/// An answer is a value of the schema.
fn check(schema: &Value, text: &[u8]) {
    let value: Value = match serde_json::from_slice(text) {
        Ok(value) => value,
        // JSON has no largest number, and its reader has.
        Err(error) if error.to_string().contains("out of range") => return,
        Err(error) => panic!("{schema}: {:?}: {error}", String::from_utf8_lossy(text)),
    };
    if !plain(&value) {
        return;
    }
    // What the draft of the validator reads in another way than older ones.
    let Ok(validator) =
        jsonschema::options().with_draft(Draft::Draft202012).should_validate_formats(true).build(schema)
    else {
        return;
    };
    assert!(validator.is_valid(&value), "{schema} allows {value}");
}

/// Whether every number is one that the validator, which counts in floating point, tells from its neighbours.
fn plain(value: &Value) -> bool {
    match value {
        Value::Number(n) => n.as_f64().is_some_and(|x| x.abs() <= 2_f64.powi(53)),
        Value::Array(list) => list.iter().all(plain),
        Value::Object(map) => map.values().all(plain),
        _ => true,
    }
}
