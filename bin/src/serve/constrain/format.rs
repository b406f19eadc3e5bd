//! The form that a request asks of its answer's content: one form, under whichever of its names.

use serde_json::{Map, Value};

use crate::serve::error::{ApiError, quote};
use crate::serve::fields::Fields;
use crate::serve::json::type_name;

/// Fields that ask for a form.
pub(crate) const FIELDS: [&str; 10] = [
    "response_format",
    "grammar",
    "json_schema",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "regex",
    "ebnf",
];

/// A form.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Form {
    /// Any JSON object.
    Object,
    /// JSON of this schema.
    Schema(Value),
    /// A text that this expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of this grammar.
    Lark(String),
    /// The same in GBNF.
    Gbnf(String),
}

/// A form and the field that asked for it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Format {
    pub form: Form,
    /// Path of the form in the request.
    pub param: String,
}

impl Format {
    pub(crate) fn new(form: Form, param: impl Into<String>) -> Self {
        Self { form, param: param.into() }
    }
}

/// The form that a body asks for, if it asks for one.
///
/// # Errors
/// A field of another shape, and more than one form.
pub(crate) fn read(body: &Fields<'_, '_>) -> Result<Option<Format>, ApiError> {
    let mut found: Option<(&str, Format)> = None;
    for name in FIELDS {
        let Some(format) = read_field(body, name)? else { continue };
        if let Some((other, _)) = &found {
            let message = format!("it asks for a form, and so does {other}; give one of them");
            return Err(ApiError::invalid_value(name, message));
        }
        found = Some((name, format));
    }
    Ok(found.map(|(_, format)| format))
}

/// The form of a dialect's own field, or the one that a field of all dialects asks for.
///
/// # Errors
/// As [`read`], and where both ask.
pub(crate) fn either(own: Option<Format>, body: &Fields<'_, '_>) -> Result<Option<Format>, ApiError> {
    match (own, read(body)?) {
        (Some(own), Some(other)) => {
            let message = format!("it asks for a form, and so does {}; give one of them", other.param);
            Err(ApiError::invalid_value(&own.param, message))
        }
        (own, other) => Ok(own.or(other)),
    }
}

fn read_field(body: &Fields<'_, '_>, name: &str) -> Result<Option<Format>, ApiError> {
    Ok(match name {
        "response_format" => match body.object(name)? {
            Some(map) => object(map, name)?,
            None => None,
        },
        "structured_outputs" => match body.object(name)? {
            Some(map) => structured_outputs(map)?,
            None => None,
        },
        "json_schema" | "guided_json" => body.get(name).map(|value| schema(value, name)).transpose()?,
        "guided_choice" => body.get(name).map(|value| choice(value, name)).transpose()?,
        "regex" | "guided_regex" => body.string(name)?.map(|text| Format::new(Form::Regex(text.to_owned()), name)),
        "guided_grammar" => body.string(name)?.map(|text| Format::new(either_grammar(text), name)),
        _ => body
            .string(name)?
            .filter(|text| !text.is_empty())
            .map(|text| Format::new(Form::Gbnf(text.to_owned()), name)),
    })
}

/// The form that the object at `path` asks for, if it is another than text.
///
/// # Errors
/// A field of another shape, and forms that are not known.
pub(crate) fn object(map: &Map<String, Value>, path: &str) -> Result<Option<Format>, ApiError> {
    let prefix = format!("{path}.");
    let fields = Fields::nested(map, &prefix);
    let kind = fields.string("type")?.ok_or_else(|| ApiError::missing(&fields.path("type")))?;
    let known: &[&str] = match kind {
        "text" => &["type"],
        "json_object" => &["type", "schema"],
        "json_schema" => &["type", "json_schema", "schema", "name", "strict", "description"],
        "regex" => &["type", "regex"],
        "choice" => &["type", "choice"],
        "grammar" => &["type", "syntax", "grammar"],
        other => {
            let message = format!(
                "{} is not supported; there are text, json_object, json_schema, regex, choice and grammar",
                quote(other)
            );
            return Err(ApiError::unsupported_value(&fields.path("type"), message));
        }
    };
    fields.only(known)?;
    let needed = |name: &str| ApiError::missing(&fields.path(name));
    Ok(Some(match kind {
        "text" => return Ok(None),
        "json_object" => match fields.get("schema") {
            Some(value) => schema(value, &fields.path("schema"))?,
            None => Format::new(Form::Object, path),
        },
        "json_schema" => json_schema(&fields)?,
        "regex" => {
            let text = fields.string("regex")?.ok_or_else(|| needed("regex"))?;
            Format::new(Form::Regex(text.to_owned()), fields.path("regex"))
        }
        "choice" => choice(fields.get("choice").ok_or_else(|| needed("choice"))?, &fields.path("choice"))?,
        _ => {
            let text = fields.string("grammar")?.ok_or_else(|| needed("grammar"))?.to_owned();
            let form = match fields.string("syntax")?.ok_or_else(|| needed("syntax"))? {
                "lark" => Form::Lark(text),
                "gbnf" => Form::Gbnf(text),
                other => {
                    let message = format!("{} is not supported; there are lark and gbnf", quote(other));
                    return Err(ApiError::unsupported_value(&fields.path("syntax"), message));
                }
            };
            Format::new(form, fields.path("grammar"))
        }
    }))
}

/// The schema stands in an object of its own, or beside the type. Without one the request is refused: it would be answered
/// with any object.
fn json_schema(fields: &Fields<'_, '_>) -> Result<Format, ApiError> {
    let Some(map) = fields.object("json_schema")? else {
        let value = fields.get("schema").ok_or_else(|| ApiError::missing(&fields.path("json_schema")))?;
        fields.boolean("strict")?;
        return schema(value, &fields.path("schema"));
    };
    let prefix = fields.path("json_schema.");
    let inner = Fields::nested(map, &prefix);
    inner.only(&["name", "schema", "strict", "description"])?;
    inner.string("name")?;
    inner.boolean("strict")?;
    let value = inner.get("schema").ok_or_else(|| ApiError::missing(&inner.path("schema")))?;
    schema(value, &inner.path("schema"))
}

fn structured_outputs(map: &Map<String, Value>) -> Result<Option<Format>, ApiError> {
    let fields = Fields::nested(map, "structured_outputs.");
    fields.only(&["json", "regex", "choice", "grammar", "json_object"])?;
    let mut forms = Vec::new();
    if let Some(value) = fields.get("json") {
        forms.push(schema(value, "structured_outputs.json")?);
    }
    if let Some(text) = fields.string("regex")? {
        forms.push(Format::new(Form::Regex(text.to_owned()), "structured_outputs.regex"));
    }
    if let Some(value) = fields.get("choice") {
        forms.push(choice(value, "structured_outputs.choice")?);
    }
    if let Some(text) = fields.string("grammar")? {
        forms.push(Format::new(either_grammar(text), "structured_outputs.grammar"));
    }
    if fields.boolean("json_object")? == Some(true) {
        forms.push(Format::new(Form::Object, "structured_outputs.json_object"));
    }
    if forms.len() > 1 {
        return Err(ApiError::invalid_value("structured_outputs", "it asks for more than one form"));
    }
    Ok(forms.pop())
}

/// A schema, or the text of one.
fn schema(value: &Value, path: &str) -> Result<Format, ApiError> {
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(Format::new(Form::Schema(value.clone()), path)),
        Value::String(text) => match crate::serve::json::parse_object(text.as_bytes()) {
            Ok(map) => Ok(Format::new(Form::Schema(Value::Object(map)), path)),
            Err(error) => Err(ApiError::invalid_schema(path, &error.message)),
        },
        other => Err(ApiError::invalid_type(path, "object", type_name(other))),
    }
}

fn choice(value: &Value, path: &str) -> Result<Format, ApiError> {
    let wrong = || ApiError::invalid_type(path, "list of strings", type_name(value));
    let list = value.as_array().ok_or_else(wrong)?;
    let texts: Option<Vec<String>> = list.iter().map(|v| v.as_str().map(str::to_owned)).collect();
    match texts {
        Some(texts) if !texts.is_empty() => Ok(Format::new(Form::Choice(texts), path)),
        Some(_) => Err(ApiError::invalid_value(path, "it lists no text")),
        None => Err(wrong()),
    }
}

/// Clients that do not say which syntax they mean: only one of the two has `::=`.
fn either_grammar(text: &str) -> Form {
    match text.contains("::=") {
        true => Form::Gbnf(text.to_owned()),
        false => Form::Lark(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(body: Value) -> Result<Option<Format>, ApiError> {
        read(&Fields::body(body.as_object().unwrap()))
    }

    #[test]
    fn every_name_of_a_form_is_read() {
        let schema = json!({"type": "object"});
        let as_schema = Form::Schema(schema.clone());
        let (regex, lark) = (Form::Regex("a+".to_owned()), Form::Lark("start: \"a\"".to_owned()));
        let (gbnf, choice) =
            (Form::Gbnf("root ::= \"a\"".to_owned()), Form::Choice(vec!["a".to_owned(), "b".to_owned()]));
        for (body, form, param) in [
            (json!({"response_format": {"type": "json_object"}}), &Form::Object, "response_format"),
            (
                json!({"response_format": {"type": "json_object", "schema": schema}}),
                &as_schema,
                "response_format.schema",
            ),
            (
                json!({"response_format": {"type": "json_schema",
                    "json_schema": {"name": "n", "schema": schema, "strict": true}}}),
                &as_schema,
                "response_format.json_schema.schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "schema": schema}}),
                &as_schema,
                "response_format.schema",
            ),
            (json!({"response_format": {"type": "regex", "regex": "a+"}}), &regex, "response_format.regex"),
            (json!({"response_format": {"type": "choice", "choice": ["a", "b"]}}), &choice, "response_format.choice"),
            (
                json!({"response_format": {"type": "grammar", "syntax": "lark", "grammar": "start: \"a\""}}),
                &lark,
                "response_format.grammar",
            ),
            (
                json!({"response_format": {"type": "grammar", "syntax": "gbnf", "grammar": "root ::= \"a\""}}),
                &gbnf,
                "response_format.grammar",
            ),
            (json!({"grammar": "root ::= \"a\""}), &gbnf, "grammar"),
            (json!({"ebnf": "root ::= \"a\""}), &gbnf, "ebnf"),
            (json!({"regex": "a+"}), &regex, "regex"),
            (json!({"guided_regex": "a+"}), &regex, "guided_regex"),
            (json!({"guided_choice": ["a", "b"]}), &choice, "guided_choice"),
            (json!({"guided_json": schema}), &as_schema, "guided_json"),
            (json!({"guided_json": schema.to_string()}), &as_schema, "guided_json"),
            (json!({"json_schema": schema}), &as_schema, "json_schema"),
            (json!({"guided_grammar": "start: \"a\""}), &lark, "guided_grammar"),
            (json!({"guided_grammar": "root ::= \"a\""}), &gbnf, "guided_grammar"),
            (json!({"structured_outputs": {"json": schema}}), &as_schema, "structured_outputs.json"),
            (json!({"structured_outputs": {"regex": "a+"}}), &regex, "structured_outputs.regex"),
            (json!({"structured_outputs": {"json_object": true}}), &Form::Object, "structured_outputs.json_object"),
        ] {
            let found = of(body.clone()).unwrap_or_else(|e| panic!("{body}: {e:?}")).unwrap();
            assert_eq!((&found.form, found.param.as_str()), (form, param), "{body}");
        }
        for body in [
            json!({}),
            json!({"response_format": {"type": "text"}, "grammar": "", "guided_json": null}),
            json!({"structured_outputs": {"json": null}}),
        ] {
            assert_eq!(of(body).unwrap(), None);
        }
    }

    #[test]
    fn what_is_no_form_is_refused_by_name() {
        for (body, param) in [
            (json!({"response_format": "json"}), "response_format"),
            (json!({"response_format": {}}), "response_format.type"),
            (json!({"response_format": {"type": "yaml"}}), "response_format.type"),
            (json!({"response_format": {"type": "json_object", "strikt": true}}), "response_format.strikt"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
                "response_format.json_schema.schema",
            ),
            (json!({"response_format": {"type": "regex"}}), "response_format.regex"),
            (json!({"response_format": {"type": "grammar", "grammar": "x"}}), "response_format.syntax"),
            (
                json!({"response_format": {"type": "grammar", "grammar": "x", "syntax": "peg"}}),
                "response_format.syntax",
            ),
            (json!({"guided_choice": []}), "guided_choice"),
            (json!({"guided_choice": [1]}), "guided_choice"),
            (json!({"guided_json": 5}), "guided_json"),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"grammar": {}}), "grammar"),
            (json!({"regex": "a", "guided_json": {}}), "regex"),
            (json!({"structured_outputs": {"json": {}, "regex": "a"}}), "structured_outputs"),
            (json!({"structured_outputs": {"structural_tag": "a"}}), "structured_outputs.structural_tag"),
        ] {
            let error = of(body.clone()).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{body}");
        }
    }
}
