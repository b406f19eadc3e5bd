//! The environment templates expect: Jinja with Python's manners.
//!
//! Fuel bounds the memory of a rendering too, if whatever makes text pays before the text exists. The engine sees to
//! that for its own operators and filters; what is defined here, and what it leaves out, is paid for here.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ObjectRepr, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

use super::json;
use super::pay::{self, BYTES_PER_FUEL};

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
    env.set_unknown_method_callback(|state, value, method, args| {
        if let ("format", Some(text)) = (method, value.as_str()) {
            pay::for_format(state, text, args)?;
        }
        minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
    });
    env.set_formatter(|out, state, value| match python_text(state, value)? {
        Some(text) => out.write_str(&text).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    });
    env.add_function("raise_exception", raise_exception);
    env.add_function("cycler", minijinja_contrib::globals::cycler);
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    env.add_filter("tojson", tojson);
    env.add_filter("string", |state: &State, value: &Value| text(state, value));
    env.add_filter("length", length);
    env.add_filter("count", length);
    // Python: strings, mappings and undefined values iterate; strings and mappings are sequences.
    env.add_test("iterable", |v: &Value| !matches!(v.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number));
    env.add_test("sequence", |v: &Value| matches!(v.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map));
    env
}

fn text(state: &State, value: &Value) -> Result<String, Error> {
    Ok(python_text(state, value)?.unwrap_or_else(|| value.to_string()))
}

fn raise_exception(state: &State, message: &Value) -> Result<Value, Error> {
    let message = text(state, message)?;
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

fn tojson(state: &State, value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
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
    let value = pay::for_json(state, value)?;
    let room = state.fuel_levels().map_or(usize::MAX, |(_, left)| (left as usize).saturating_mul(BYTES_PER_FUEL));
    // The result is charged once it is there; the style alone can make it a multiple of the value.
    json::dumps(&value, &style, room).map(Value::from_safe_string).ok_or_else(|| ErrorKind::OutOfFuel.into())
}

fn bad_argument(name: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: bad value for {name}"))
}

/// `str(value)` where Python and minijinja differ; `None` where they agree.
fn python_text(state: &State, value: &Value) -> Result<Option<String>, Error> {
    let list = match value.kind() {
        ValueKind::Seq | ValueKind::Map => value.as_object().is_none_or(|o| o.repr() != ObjectRepr::Plain),
        // A list that is only described, such as a repeated one.
        ValueKind::Iterable => value.len().is_some(),
        ValueKind::None => return Ok(Some("None".to_owned())),
        ValueKind::Bool => return Ok(Some(if value.is_true() { "True" } else { "False" }.to_owned())),
        ValueKind::Number if !value.is_integer() => {
            return Ok(f64::try_from(value.clone()).ok().map(json::python_float));
        }
        _ => false,
    };
    if !list {
        return Ok(None);
    }
    match pay::for_json(state, value) {
        Ok(value) => Ok(Some(json::python_repr(&value))),
        Err(error) if error.kind() == ErrorKind::OutOfFuel => Err(error),
        // What has no JSON prints as the engine prints it.
        Err(_) => Ok(None),
    }
}
