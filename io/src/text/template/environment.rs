//! The environment templates expect: Jinja with Python's manners.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use super::json;

/// The message of `raise_exception`, kept apart from errors of the engine.
#[derive(Debug)]
pub(super) struct Raised(pub String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// An environment without templates whose renderings may take `fuel` steps.
pub(super) fn new(fuel: u64) -> Environment<'static> {
    let mut env = Environment::new();
    // As transformers compiles chat templates: `trim_blocks=True, lstrip_blocks=True`.
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("the delimiters are the usual ones"));
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(fuel));
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_formatter(|out, state, value| match python_text(value) {
        Some(text) => out.write_str(&text).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    });
    env.add_function("raise_exception", raise_exception);
    env.add_function("cycler", minijinja_contrib::globals::cycler);
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    env.add_filter("tojson", tojson);
    env.add_filter("string", |value: &Value| python_text(value).unwrap_or_else(|| value.to_string()));
    env.add_filter("length", length);
    env.add_filter("count", length);
    // Python: strings, mappings and undefined values iterate; strings and mappings are sequences.
    env.add_test("iterable", |v: &Value| !matches!(v.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number));
    env.add_test("sequence", |v: &Value| matches!(v.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map));
    env
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = python_text(message).unwrap_or_else(|| message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, format!("a value of type {} has no length", value.kind()))
    })
}

fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(v) if v.is_none() || v.is_undefined() => None,
        Some(v) => match v.as_str() {
            Some(text) => Some(text.to_owned()),
            None => Some(" ".repeat(usize::try_from(v.clone()).map_err(|_| bad_argument("indent"))?.min(64))),
        },
    };
    let style = json::Style {
        indent,
        ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: kwargs
            .get::<Option<Vec<String>>>("separators")?
            .map(<[String; 2]>::try_from)
            .transpose()
            .map_err(|_| bad_argument("separators"))?,
    };
    kwargs.assert_all_used()?;
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::InvalidOperation, "an undefined value is not JSON serializable"));
    }
    let value = serde_json::to_value(value)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, "not JSON serializable").with_source(e))?;
    Ok(Value::from_safe_string(json::dumps(&value, &style)))
}

fn bad_argument(name: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: bad value for {name}"))
}

/// `str(value)` where Python and minijinja differ; `None` where they agree.
fn python_text(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::None => Some("None".to_owned()),
        ValueKind::Bool => Some(if value.is_true() { "True" } else { "False" }.to_owned()),
        ValueKind::Number if !value.is_integer() => f64::try_from(value.clone()).ok().map(json::python_float),
        ValueKind::Seq | ValueKind::Map
            if value.as_object().is_none_or(|o| o.repr() != minijinja::value::ObjectRepr::Plain) =>
        {
            serde_json::to_value(value).ok().map(|v| json::python_repr(&v))
        }
        _ => None,
    }
}
