//! Chat templates: the Jinja text inside a model file, run as Hugging Face runs it.
//!
//! The environment is the one of `apply_chat_template`: trimmed blocks, loop controls, Python's string, list and dict
//! methods, Python's `json.dumps` behind `tojson`, Python's spelling of printed values. A template is foreign code:
//! it has fuel and an output limit, and whatever it does wrong is a [`TemplateError`].

mod environment;
mod facts;
mod json;
mod keep;
mod pay;
mod scan;
mod strftime;

use std::time::SystemTime;
use std::{io, thread};

use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Map;

pub use facts::{TemplateFacts, ToolStyle};

use super::prompt::{self, Rendered};
use super::special::Matcher;
use super::tokenizer::Tokenizer;

/// Bounds of one rendering.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TemplateLimits {
    /// Instructions, plus one per 64 bytes handled, for a conversation of any size: a small one gets less. Since text
    /// is paid for before it is made, 64 bytes times this also bounds the memory of a rendering.
    pub fuel: u64,
    /// Bytes of the rendered text.
    pub output_bytes: usize,
}

impl Default for TemplateLimits {
    fn default() -> Self {
        Self { fuel: 50_000_000, output_bytes: 32 << 20 }
    }
}

impl TemplateLimits {
    /// Fuel of a conversation: what a template of the field needs several times over, and no more, so that a hostile
    /// template makes little out of little. Instructions grow with the values, the bytes handled with the strings.
    fn fuel_for(&self, values: &[&serde_json::Value]) -> u64 {
        const BASE: u64 = 2 << 20;
        const PER_VALUE: u64 = 64;
        let mut fuel = BASE;
        let mut rest = values.to_vec();
        while let Some(value) = rest.pop() {
            fuel += PER_VALUE;
            match value {
                serde_json::Value::String(text) => fuel += text.len() as u64 / 2,
                serde_json::Value::Array(items) => rest.extend(items),
                serde_json::Value::Object(map) => {
                    fuel += map.keys().map(|key| key.len() as u64 / 2).sum::<u64>();
                    rest.extend(map.values());
                }
                _ => {}
            }
        }
        fuel.min(self.fuel)
    }
}

/// Longest message taken over from a template, in characters.
const MESSAGE_CHARS_MAX: usize = 512;
const NAME: &str = "chat";
/// Fuel of one probe at load: a thousand times what a template of the field needs for the few messages of it.
const PROBE_FUEL: u64 = 2_000_000;
/// Stack of the thread that compiles: the compiler goes down a level for every operator of a chain, and the scan
/// bounds their number.
const COMPILE_STACK: usize = 128 << 20;

/// Why a template cannot be used or a conversation cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The text is no template.
    #[error("the chat template does not compile: line {line}: {message}")]
    Compile {
        /// Line of the template, from 1.
        line: usize,
        /// What the compiler says.
        message: String,
    },
    /// The operating system gave no thread to compile on.
    #[error("the chat template cannot be compiled: its thread could not be started: {message}")]
    Thread {
        /// The system's reason.
        message: String,
    },
    /// The template uses names that do not exist here.
    #[error("the chat template uses what is not supported: {}", names.join(", "))]
    Unsupported {
        /// For example `filter xmlattr`, `function now`, `method append`.
        names: Vec<String>,
    },
    /// The template itself refuses the conversation (`raise_exception`).
    #[error("chat template: {message}")]
    Raised {
        /// The template's message, at most 512 characters.
        message: String,
    },
    /// The template fails on the conversation.
    #[error("chat template: line {line}: {message}")]
    Runtime {
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// What went wrong.
        message: String,
    },
    /// The template runs too long on the conversation.
    #[error("chat template: rendering took more than {fuel} steps, each an instruction or 64 bytes of text")]
    Fuel {
        /// The limit.
        fuel: u64,
    },
    /// The rendered text is too long.
    #[error("chat template: the rendered prompt exceeds {max} bytes")]
    Output {
        /// The limit.
        max: usize,
    },
}

impl TemplateError {
    fn of(error: &Error, fuel: u64) -> Self {
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
        let mut line = error.line();
        while let Some(e) = source {
            if let Some(raised) = e.downcast_ref::<environment::Raised>() {
                return Self::Raised { message: shorten(&raised.0) };
            }
            if let Some(e) = e.downcast_ref::<Error>() {
                if e.kind() == ErrorKind::OutOfFuel {
                    return Self::Fuel { fuel };
                }
                line = line.or(e.line());
            }
            source = e.source();
        }
        let message = match error.detail() {
            Some(detail) => format!("{}: {detail}", error.kind()),
            None => error.kind().to_string(),
        };
        Self::Runtime { line: line.unwrap_or(0), message: shorten(&message) }
    }
}

fn shorten(message: &str) -> String {
    message.chars().take(MESSAGE_CHARS_MAX).collect()
}

/// One conversation to render. All strings in it are the client's: plain text, never structure.
#[derive(Clone, Debug)]
pub struct RenderInput<'a> {
    /// Array of message objects, content normalised to what the template expects.
    pub messages: &'a serde_json::Value,
    /// Array of tools; `None` leaves the variable undefined.
    pub tools: Option<&'a serde_json::Value>,
    /// Ask for the opening of an assistant turn.
    pub add_generation_prompt: bool,
    /// Further variables, `enable_thinking` and `reasoning_effort` among them. The variables above cannot be replaced.
    pub kwargs: &'a Map<String, serde_json::Value>,
    /// The time that `strftime_now` prints, as UTC.
    pub now: SystemTime,
}

/// A compiled chat template and what probing it has shown.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// Special tokens of the model: broken up in the client's strings.
    special: Matcher,
    bos: String,
    eos: String,
    limits: TemplateLimits,
    facts: TemplateFacts,
}

impl ChatTemplate {
    /// Compiles a template for a tokenizer, looks for names that do not exist, and probes what it can do.
    ///
    /// # Errors
    /// [`TemplateError::Compile`], [`TemplateError::Unsupported`], and [`TemplateError::Fuel`] or
    /// [`TemplateError::Output`] of a template that runs away on a single message.
    pub fn new(source: &str, tokenizer: &Tokenizer, limits: TemplateLimits) -> Result<Self, TemplateError> {
        let probing = TemplateLimits { fuel: limits.fuel.min(PROBE_FUEL), ..limits };
        let environment = compile(scan::without_generation_tags(source), probing.fuel)?;
        let names = scan::unsupported(source, &environment);
        if !names.is_empty() {
            return Err(TemplateError::Unsupported { names });
        }
        let text = |id: Option<u32>| {
            id.map_or(String::new(), |id| String::from_utf8_lossy(tokenizer.pieces().bytes(id)).into_owned())
        };
        let vocab = tokenizer.vocab();
        let mut template = Self {
            environment,
            source: source.to_owned(),
            special: vocab.special.clone(),
            bos: text(vocab.ids.bos),
            eos: text(vocab.ids.eos),
            limits: probing,
            facts: TemplateFacts::default(),
        };
        template.facts = facts::probe(&template)?;
        template.limits = limits;
        Ok(template)
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What probe renders have shown.
    pub fn facts(&self) -> &TemplateFacts {
        &self.facts
    }

    /// Renders a conversation. Special tokens in the result are the template's own markup only.
    ///
    /// # Errors
    /// [`TemplateError`] except `Compile` and `Unsupported`: all of them the conversation's or the template's fault.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<Rendered, TemplateError> {
        let foreign = |v: &serde_json::Value| Value::from(Serde(prompt::broken(v, &self.special)));
        let now = input.now;
        let strftime_now = Value::from_function(move |format: &str| {
            strftime::strftime(format, now).map_err(|e| Error::new(ErrorKind::InvalidOperation, e))
        });
        let own = [
            ("messages", foreign(input.messages)),
            ("tools", input.tools.map_or(Value::UNDEFINED, foreign)),
            ("add_generation_prompt", input.add_generation_prompt.into()),
            ("bos_token", self.bos.as_str().into()),
            ("eos_token", self.eos.as_str().into()),
            ("strftime_now", strftime_now),
        ];
        let asked = input.kwargs.iter().filter(|(key, _)| own.iter().all(|(name, _)| name != key));
        let asked: Vec<(&str, Value)> = asked.map(|(key, value)| (key.as_str(), foreign(value))).collect();
        let variables = Value::from_pairs(asked.into_iter().chain(own));
        let foreign: Vec<&serde_json::Value> =
            [input.messages].into_iter().chain(input.tools).chain(input.kwargs.values()).collect();
        let fuel = self.limits.fuel_for(&foreign);
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let template = environment.get_template(NAME).expect("the template was compiled under this name");
        let mut output = Bounded { bytes: Vec::new(), max: self.limits.output_bytes, full: false };
        let done = template.render_captured_to(variables, &mut output).map(|_| ());
        if output.full {
            return Err(TemplateError::Output { max: self.limits.output_bytes });
        }
        done.map_err(|e| TemplateError::of(&e, fuel))?;
        let marked = String::from_utf8(output.bytes).expect("templates write strings");
        Ok(Rendered { marked })
    }
}

/// An environment that holds the template.
fn compile(source: String, fuel: u64) -> Result<Environment<'static>, TemplateError> {
    if let Some(message) = scan::too_deep(&source) {
        return Err(TemplateError::Compile { line: 0, message });
    }
    let work = move || {
        let mut environment = environment::new(fuel);
        let done = environment.add_template_owned(NAME, source);
        done.map(|()| environment).map_err(|e| TemplateError::Compile {
            line: e.line().unwrap_or(0),
            message: shorten(e.detail().unwrap_or("syntax error")),
        })
    };
    let thread = thread::Builder::new().name("template".to_owned()).stack_size(COMPILE_STACK).spawn(work);
    let failed = |message: String| TemplateError::Compile { line: 0, message };
    let thread = thread.map_err(|e| TemplateError::Thread { message: e.to_string() })?;
    thread.join().unwrap_or_else(|_| Err(failed("the compiler failed".to_owned())))
}

/// Takes what a template writes, up to a limit.
struct Bounded {
    bytes: Vec<u8>,
    max: usize,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        if part.len() > self.max - self.bytes.len() {
            self.full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
