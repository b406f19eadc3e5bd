//! tools: the tools of a request and which of them may be called.

use serde_json::{Map, Value, json};

use crate::serve::api::HostedTools;
use crate::serve::constrain::format::{Form, Format};
use crate::serve::error::{ApiError, quote};
use crate::serve::fields::Fields;
use crate::serve::json::type_name;
use crate::serve::limits;
use crate::serve::model::{Caps, ToolStyle};

/// A tool that the model may call.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Tool {
    pub name: String,
    /// JSON schema of the arguments; without one any object will do.
    pub parameters: Option<Map<String, Value>>,
    /// The schema is enforced.
    pub strict: bool,
    /// Its arguments are one text, not an object: a custom tool.
    pub custom: bool,
    /// What that text must be.
    pub form: Option<Box<Format>>,
}

/// Whether calls are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ToolChoice {
    #[default]
    Auto,
    None,
    /// One at least.
    Required,
}

/// The tools of a request.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Tools {
    pub list: Vec<Tool>,
    pub choice: ToolChoice,
    /// Indices that may be called; `None`: all.
    pub allowed: Option<Vec<usize>>,
    /// At most one call.
    pub single: bool,
    /// What the template sees.
    pub definitions: Value,
    /// They came as `functions`, and calls are answered as `function_call`.
    pub legacy: bool,
    /// Where the body says what is said above.
    pub paths: Paths,
    /// Tools of kinds that this server does not run, left out.
    pub dropped: Vec<String>,
}

/// Where a dialect's body says what is to be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Paths {
    pub choice: &'static str,
    /// That there is one call at most.
    pub single: &'static str,
    /// Behind a tool: that its schema is enforced.
    pub strict: &'static str,
}

impl Default for Paths {
    fn default() -> Self {
        Self { choice: "tool_choice", single: "parallel_tool_calls", strict: "function.strict" }
    }
}

/// Reads `tools` or `functions`, and what chooses among them.
///
/// # Errors
/// 400 naming the field.
pub(crate) fn read(body: &Fields<'_, '_>, caps: &Caps) -> Result<Option<Tools>, ApiError> {
    let listed = |name| Ok::<_, ApiError>(body.list(name)?.filter(|list| !list.is_empty()));
    let (tools, functions) = (listed("tools")?, listed("functions")?);
    let mut read = match (tools, functions) {
        (Some(_), Some(_)) => return Err(ApiError::invalid_value("functions", "it excludes tools; use one of them")),
        (Some(list), None) => read_list("tools", list, read_tool)?,
        (None, Some(list)) => Tools { legacy: true, ..read_list("functions", list, read_function)? },
        (None, None) => Tools::default(),
    };
    if read.legacy {
        read.paths.choice = "function_call";
    }
    let path = read.paths.choice;
    choose(&mut read, path, body.get(path))?;
    read.single |= body.boolean("parallel_tool_calls")? == Some(false);
    offered(read, caps)
}

/// The tools, if there are any.
///
/// # Errors
/// `tools_unsupported` where the template shows none, or nobody knows how the model writes calls; `unsupported_value` for a
/// grammar that could not be held to.
pub(crate) fn offered(tools: Tools, caps: &Caps) -> Result<Option<Tools>, ApiError> {
    if tools.list.is_empty() {
        return Ok(None);
    }
    if !caps.tools {
        return Err(ApiError::tools_unsupported("the chat template of this model does not render tools"));
    }
    if caps.tool_style == ToolStyle::None {
        let why =
            "how this model writes calls cannot be told from its chat template; --tool-style of the server says it";
        return Err(ApiError::tools_unsupported(why));
    }
    if let Some(form) = tools.list.iter().find_map(|tool| tool.form.as_ref())
        && caps.tool_style != ToolStyle::Xml
    {
        let message = "this model writes calls as JSON, in which a text is not held to a grammar; leave the format out";
        return Err(ApiError::unsupported_value(&form.param, message));
    }
    Ok(Some(tools))
}

/// What one of a list of tools is.
pub(crate) enum Listed {
    /// With what the template sees.
    Tool(Box<Tool>, Value),
    /// A kind of tool that runs at a provider.
    Dropped(String),
}

/// A tool of `kind`, which runs at a provider.
///
/// # Errors
/// `unsupported_value` where the server refuses such.
pub(crate) fn hosted(tool: &Fields<'_, '_>, kind: &str, hosted: HostedTools) -> Result<Listed, ApiError> {
    match hosted {
        HostedTools::Drop => Ok(Listed::Dropped(kind.to_owned())),
        HostedTools::Reject => {
            let message = format!("tools of type {} run at a provider, and this server refuses them", quote(kind));
            Err(ApiError::unsupported_value(&tool.path("type"), message))
        }
    }
}

/// A list of tools of some dialect; `read` makes a tool and its definition for the template, or the name of one that is
/// left out.
pub(crate) fn read_list(
    name: &str,
    list: &[Value],
    read: impl Fn(&Fields<'_, '_>) -> Result<Listed, ApiError>,
) -> Result<Tools, ApiError> {
    if list.len() > limits::TOOLS {
        return Err(ApiError::invalid_value(name, format!("more than {} tools", limits::TOOLS)));
    }
    let (mut tools, mut definitions): (Vec<Tool>, Vec<Value>) = (Vec::new(), Vec::new());
    let mut dropped = Vec::new();
    for (i, item) in list.iter().enumerate() {
        let prefix = format!("{name}[{i}].");
        let Some(map) = item.as_object() else {
            return Err(ApiError::invalid_type(&format!("{name}[{i}]"), "object", type_name(item)));
        };
        let (tool, definition) = match read(&Fields::nested(map, &prefix))? {
            Listed::Tool(tool, definition) => (*tool, definition),
            Listed::Dropped(kind) => {
                dropped.push(kind);
                continue;
            }
        };
        if tools.iter().any(|t| t.name == tool.name) {
            let message = format!("{} stands twice", quote(&tool.name));
            return Err(ApiError::invalid_value(&format!("{name}[{i}]"), message));
        }
        tools.push(tool);
        definitions.push(definition);
    }
    Ok(Tools { list: tools, definitions: definitions.into(), dropped, ..Tools::default() })
}

/// One of `tools`: `{type: function, function: {..}}` or `{type: custom, custom: {..}}`.
fn read_tool(tool: &Fields<'_, '_>) -> Result<Listed, ApiError> {
    let kind = tool.string("type")?.ok_or_else(|| ApiError::missing(&tool.path("type")))?;
    if !matches!(kind, "function" | "custom") {
        let message = format!("tools of type {} are not supported", quote(kind));
        return Err(ApiError::unsupported_value(&tool.path("type"), message));
    }
    let map = tool.object(kind)?.ok_or_else(|| ApiError::missing(&tool.path(kind)))?;
    let inner = tool.path(&format!("{kind}."));
    let fields = Fields::nested(map, &inner);
    match kind {
        "function" => {
            // As it came: key order is part of the prompt.
            Ok(Listed::Tool(Box::new(function(&fields, "parameters")?), tool.whole()))
        }
        _ => custom(&fields),
    }
}

/// A function's `name`, `description`, `parameters` and `strict`.
fn read_function(fields: &Fields<'_, '_>) -> Result<Listed, ApiError> {
    let tool = function(fields, "parameters")?;
    Ok(Listed::Tool(Box::new(tool), json!({"type": "function", "function": fields.whole()})))
}

/// A function whose schema is the field `schema`.
pub(crate) fn function(fields: &Fields<'_, '_>, schema: &str) -> Result<Tool, ApiError> {
    fields.string("description")?;
    Ok(Tool {
        name: name(fields)?,
        parameters: fields.object(schema)?.cloned(),
        strict: fields.boolean("strict")?.unwrap_or(false),
        custom: false,
        form: None,
    })
}

/// What a template sees of a function of a dialect that is not OpenAI's first.
pub(crate) fn definition(fields: &Fields<'_, '_>, schema: &str) -> Value {
    let mut function = Map::new();
    for (from, to) in [("name", "name"), ("description", "description"), (schema, "parameters")] {
        function.extend(fields.get(from).map(|value| (to.to_owned(), value.clone())));
    }
    json!({"type": "function", "function": function})
}

/// A custom tool: the model sees a function with one text.
pub(crate) fn custom(fields: &Fields<'_, '_>) -> Result<Listed, ApiError> {
    let name = name(fields)?;
    let description = fields.string("description")?;
    let form = custom_form(fields)?;
    let parameters = json!({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]});
    let mut definition = json!({"type": "function", "function": {"name": name}});
    if let Some(description) = description {
        definition["function"]["description"] = description.into();
    }
    definition["function"]["parameters"] = parameters.clone();
    let parameters = parameters.as_object().cloned();
    Ok(Listed::Tool(Box::new(Tool { name, parameters, strict: false, custom: true, form }), definition))
}

/// What the text of a custom tool must be: `{type: grammar, syntax, definition}`, or with the last two in an object
/// `grammar`.
fn custom_form(fields: &Fields<'_, '_>) -> Result<Option<Box<Format>>, ApiError> {
    let Some(map) = fields.object("format")? else { return Ok(None) };
    let path = fields.path("format.");
    let format = Fields::nested(map, &path);
    match format.string("type")?.ok_or_else(|| ApiError::missing(&format.path("type")))? {
        "text" => return Ok(None),
        "grammar" => {}
        other => {
            let message = format!("{} is not supported; there are text and grammar", quote(other));
            return Err(ApiError::unsupported_value(&format.path("type"), message));
        }
    }
    let inner = format.path("grammar.");
    let grammar = format.object("grammar")?.map_or(format, |map| Fields::nested(map, &inner));
    let needed = |name: &str| grammar.string(name)?.ok_or_else(|| ApiError::missing(&grammar.path(name)));
    let (syntax, text) = (needed("syntax")?, needed("definition")?.to_owned());
    let form = match syntax {
        "lark" => Form::Lark(text),
        "gbnf" => Form::Gbnf(text),
        "regex" => Form::Regex(text),
        other => {
            let message = format!("{} is not supported; there are lark, gbnf and regex", quote(other));
            return Err(ApiError::unsupported_value(&grammar.path("syntax"), message));
        }
    };
    Ok(Some(Box::new(Format::new(form, grammar.path("definition")))))
}

/// A tool's name.
pub(crate) fn name(fields: &Fields<'_, '_>) -> Result<String, ApiError> {
    let name = fields.string("name")?.ok_or_else(|| ApiError::missing(&fields.path("name")))?;
    let valid =
        (1..=128).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
    if !valid {
        return Err(ApiError::invalid_value(&fields.path("name"), "1 to 128 letters, digits, '_', '.' or '-'"));
    }
    Ok(name.to_owned())
}

/// Reads `tool_choice` or `function_call` at `path`.
pub(crate) fn choose(tools: &mut Tools, path: &str, choice: Option<&Value>) -> Result<(), ApiError> {
    let forced = match choice {
        None => return Ok(()),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => false,
            "none" => {
                tools.choice = ToolChoice::None;
                false
            }
            "required" => {
                tools.choice = ToolChoice::Required;
                true
            }
            other => {
                let message = format!("{} is unknown; 'auto', 'none', 'required' or an object", quote(other));
                return Err(ApiError::invalid_value(path, message));
            }
        },
        Some(Value::Object(map)) => {
            choose_some(tools, path, map)?;
            true
        }
        Some(other) => return Err(ApiError::invalid_type(path, "string or object", type_name(other))),
    };
    if forced && tools.list.is_empty() {
        return Err(ApiError::invalid_value(path, "it needs tools, and the request has none"));
    }
    Ok(())
}

/// The object forms: one tool by name, or a list of allowed ones.
fn choose_some(tools: &mut Tools, path: &str, map: &Map<String, Value>) -> Result<(), ApiError> {
    let prefix = format!("{path}.");
    let fields = Fields::nested(map, &prefix);
    let kind = match fields.string("type")? {
        None if tools.legacy => "function",
        None => return Err(ApiError::missing(&fields.path("type"))),
        Some(kind) => kind,
    };
    match kind {
        "function" | "custom" => {
            // `{type, function: {name}}`, or `{type, name}`.
            let inner = fields.path(&format!("{kind}."));
            let nested = fields.object(kind)?.map(|map| Fields::nested(map, &inner));
            let named = nested.unwrap_or(fields);
            let name = named.string("name")?.ok_or_else(|| ApiError::missing(&named.path("name")))?;
            tools.allowed = Some(vec![find(tools, name, path)?]);
            tools.choice = ToolChoice::Required;
            tools.single = true;
        }
        "allowed_tools" => {
            let inner = fields.path("allowed_tools.");
            let nested = fields.object("allowed_tools")?.map(|map| Fields::nested(map, &inner));
            let fields = nested.unwrap_or(fields);
            match fields.string("mode")? {
                Some("auto") => {}
                Some("required") => tools.choice = ToolChoice::Required,
                other => {
                    let message = format!("{} is unknown; 'auto' or 'required'", quote(other.unwrap_or("null")));
                    return Err(ApiError::invalid_value(&fields.path("mode"), message));
                }
            }
            let list = fields.list("tools")?.filter(|list| !list.is_empty());
            let list = list.ok_or_else(|| ApiError::missing(&fields.path("tools")))?;
            let name = |(i, item): (usize, &Value)| {
                let at = fields.path(&format!("tools[{i}]"));
                let named = ["function", "custom"].iter().find_map(|kind| item.get(kind)).unwrap_or(item);
                let name = named.get("name").and_then(Value::as_str);
                find(tools, name.ok_or_else(|| ApiError::missing(&format!("{at}.name")))?, path)
            };
            tools.allowed = Some(list.iter().enumerate().map(name).collect::<Result<_, _>>()?);
        }
        other => {
            return Err(ApiError::invalid_value(&fields.path("type"), format!("{} is unknown", quote(other))));
        }
    }
    Ok(())
}

pub(crate) fn find(tools: &Tools, name: &str, path: &str) -> Result<usize, ApiError> {
    let found = tools.list.iter().position(|tool| tool.name == name);
    found.ok_or_else(|| ApiError::invalid_value(path, format!("{} is no tool of this request", quote(name))))
}
