//! Constrained answers: from what a request asks to the engine's constraint of each choice.
//!
//! ```text
//! body ──format::read──► Format ─┐
//! tools, reasoning, budget ──────┴─ compile ──► Compiled ── start ──► one Constraint a choice
//! ```
//!
//! `screen` refuses what would not be enforced exactly, `json`, `gbnf` and `calls` write grammars, `grammar` walks one, and
//! `follow` goes with an answer from its reasoning to its end.

mod calls;
mod follow;
pub(crate) mod format;
mod formats;
mod gbnf;
mod grammar;
mod json;
mod kept;
mod screen;
#[cfg(test)]
mod tests;
mod times;
mod vocabulary;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use engine::constraint::Constraint;
use engine::ids::TokenId;
use engine_io::text::ToolStyle;
use llguidance::TokenParser;
use llguidance::api::TopLevelGrammar;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::serve::error::ApiError;
use crate::serve::model::TextModel;
use crate::serve::tools::{ToolChoice, Tools};

use calls::{Callable, Text};
use follow::{Calls, Follow, Phase, Rules};
use format::{Form, Format};
use grammar::Grammar;
use kept::{Kept, Key};
use screen::{Flaw, Strictness};
pub(crate) use times::Times;
pub(crate) use vocabulary::{Vocabulary, grammar_bytes, vocabulary_bytes};

/// What the constraints take that are kept for the next request of the same.
pub(crate) const KEPT_BYTES: usize = kept::BYTES;

/// Whether the text of a body names a field that something may have to be compiled for. Names in messages count too: their
/// bodies are read where it does no harm.
pub(crate) fn may_ask(body: &[u8]) -> bool {
    let names = || format::FIELDS.into_iter().chain(["tools"]);
    let quoted =
        |at: usize, name: &str| body[at..].starts_with(name.as_bytes()) && body.get(at + name.len()) == Some(&b'"');
    (1..body.len()).any(|at| body[at - 1] == b'"' && names().any(|name| quoted(at, name)))
}

/// What an answer is asked to be.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted<'a> {
    /// Form of its content.
    pub format: Option<&'a Format>,
    pub tools: Option<&'a Tools>,
    /// How calls are written.
    pub style: ToolStyle,
    /// Start and end marker of reasoning.
    pub reasoning: Option<(TokenId, TokenId)>,
    /// Start and end marker of calls.
    pub call: Option<(TokenId, Option<TokenId>)>,
    /// The prompt ends inside reasoning.
    pub begins_in_reasoning: bool,
    /// Tokens of reasoning before its end marker.
    pub budget: Option<u32>,
}

/// Constraints of a request, ready to start.
#[derive(Debug)]
pub(crate) struct Compiled {
    follow: Follow,
    /// Tools whose schema was widened, as `schema_relaxed:tools.I`.
    pub warnings: Vec<String>,
    /// What it takes, roughly.
    bytes: usize,
}

impl Compiled {
    /// The constraint of one choice.
    pub(crate) fn start(&self) -> Box<dyn Constraint> {
        self.follow.fork()
    }
}

/// Compiles for one model, whose vocabulary is laid out when it is first needed.
pub(crate) struct Compiler {
    model: Arc<dyn TextModel>,
    vocabulary: OnceLock<Option<Vocabulary>>,
    /// Bytes of a form, or of the schemas of all tools.
    source_bytes: usize,
    /// What compiling them may take.
    time: Duration,
    /// What was compiled last.
    kept: Mutex<Kept>,
    pub(crate) times: Arc<Times>,
}

/// When compiling has taken too long. It is the thread's own time that counts: who else runs on the machine decides nothing.
/// What takes long in one piece is bounded by the library's counts; this bounds the sum of many pieces.
pub(crate) struct Deadline {
    end: Duration,
    most: Duration,
}

impl Deadline {
    pub(crate) fn new(most: Duration) -> Self {
        Self { end: thread_time().saturating_add(most), most }
    }

    /// Whether there is time left.
    ///
    /// # Errors
    /// `schema_too_complex` at `param`.
    fn check(&self, param: &str) -> Result<(), ApiError> {
        if thread_time() < self.end {
            return Ok(());
        }
        let message = format!("it takes more than the {} ms that compiling may take", self.most.as_millis());
        Err(ApiError::schema_too_complex(param, message))
    }
}

/// Processor time that this thread has had.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Compiler {
    /// For forms of at most `source_bytes` bytes that are compiled in `time`.
    pub(crate) fn new(model: Arc<dyn TextModel>, source_bytes: usize, time: Duration) -> Self {
        let kept = Mutex::default();
        Self { model, vocabulary: OnceLock::new(), source_bytes, time, kept, times: Arc::default() }
    }

    /// Compiles what is wanted, unless it is there from a request before; `None` where nothing is wanted.
    ///
    /// # Errors
    /// 400 naming the field, and where it holds a schema, the part of it.
    pub(crate) fn compile(&self, wanted: &Wanted<'_>) -> Result<Option<Arc<Compiled>>, ApiError> {
        if wanted.format.is_none() && wanted.tools.is_none() && wanted.budget.is_none() {
            return Ok(None);
        }
        if let Some(format) = wanted.format {
            self.check_size(&format.param, source_bytes(&format.form))?;
        }
        if let Some(tools) = wanted.tools {
            let bytes = |tool: &crate::serve::tools::Tool| {
                let text = tool.form.as_ref().map_or(0, |form| source_bytes(&form.form));
                match &tool.parameters {
                    Some(map) => serde_json::to_string(map).map_or(usize::MAX, |schema| schema.len() + text),
                    None => text,
                }
            };
            self.check_size("tools", tools.list.iter().map(bytes).fold(0, usize::saturating_add))?;
        }
        let vocabulary = self.vocabulary.get_or_init(|| Vocabulary::new(self.model.as_ref()));
        let param = wanted.format.map_or("tools", |format| &format.param);
        let Some(vocabulary) = vocabulary else {
            let message =
                "the model has no token that ends an answer, or too many tokens, so that a form could not be held to";
            return Err(ApiError::unsupported_value(param, message));
        };
        let key = Key::of(wanted);
        if let Some(found) = self.kept.lock().find(key) {
            return Ok(Some(found));
        }
        let start = Instant::now();
        let compiled = compile(wanted, vocabulary, &Deadline::new(self.time));
        self.times.observe(start.elapsed());
        let compiled = compiled?.map(Arc::new);
        if let Some(compiled) = &compiled {
            self.kept.lock().keep(key, compiled);
        }
        Ok(compiled)
    }

    fn check_size(&self, param: &str, bytes: usize) -> Result<(), ApiError> {
        if bytes > self.source_bytes {
            let message = format!("it has {bytes} bytes, and at most {} are compiled", self.source_bytes);
            return Err(ApiError::schema_too_complex(param, message));
        }
        Ok(())
    }
}

/// The tokens of a reasoning tag and of its end.
///
/// # Errors
/// 400 where they are not tokens of their own, so that nobody can tell where content begins.
pub(crate) fn markers(model: &dyn TextModel, tag: &str) -> Result<(TokenId, TokenId), ApiError> {
    let one = |text: &str| match model.encode(text, false, true).as_slice() {
        [token] => Some(*token),
        _ => None,
    };
    let end = tag.replacen('<', "</", 1);
    one(tag).zip(one(&end)).ok_or_else(|| {
        let message =
            "the prompt ends inside reasoning whose end is no token of its own; ask with enable_thinking: false";
        ApiError::unsupported_value("response_format", message)
    })
}

fn source_bytes(form: &Form) -> usize {
    match form {
        Form::Object => 0,
        Form::Schema(value) => serde_json::to_string(value).map_or(usize::MAX, |text| text.len()),
        Form::Choice(texts) => texts.iter().map(String::len).sum(),
        Form::Regex(text) | Form::Lark(text) | Form::Gbnf(text) => text.len(),
    }
}

/// Compiles what is wanted; `None` where nothing is.
///
/// # Errors
/// As [`Compiler::compile`].
pub(crate) fn compile(
    wanted: &Wanted<'_>,
    vocabulary: &Vocabulary,
    deadline: &Deadline,
) -> Result<Option<Compiled>, ApiError> {
    let mut warnings = Vec::new();
    let form = wanted.format.map(|format| compile_form(format, vocabulary, deadline)).transpose()?;
    let calls = match wanted.tools {
        Some(tools) => compile_calls(tools, wanted, vocabulary, deadline, &mut warnings)?,
        None => None,
    };
    let budget = wanted.budget.filter(|_| wanted.reasoning.is_some());
    if form.is_none() && calls.is_none() && budget.is_none() {
        return Ok(None);
    }
    let (calls, body) = calls.unzip();
    let rules = Rules {
        ends: vocabulary.ends.clone(),
        newlines: vocabulary.newlines.clone(),
        reasoning: wanted.reasoning,
        budget,
        calls,
        formed: form.is_some(),
    };
    let begins = wanted.begins_in_reasoning && wanted.reasoning.is_some();
    let phase = if begins { Phase::Reasoning(0) } else { Phase::Start };
    let grammar = |parser: TokenParser| Grammar::new(parser, vocabulary.end());
    let (form, body) = (form.map(grammar), body.flatten().map(grammar));
    let bytes = [&form, &body].into_iter().flatten().map(Grammar::bytes).sum();
    Ok(Some(Compiled { follow: Follow::new(rules, phase, form, body), warnings, bytes }))
}

fn refuse(param: &str, flaw: Flaw) -> ApiError {
    // What the library says of grammars that take more than they may.
    let complex =
        ["too big", "too large", "too complex", "limit", "fuel"].iter().any(|word| flaw.message.contains(word));
    let place = if flaw.pointer.is_empty() { String::new() } else { format!(" at {}", flaw.pointer) };
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let message: String = format!("{}{place}", flaw.message).chars().take(400).map(shown).collect();
    if complex { ApiError::schema_too_complex(param, message) } else { ApiError::invalid_schema(param, &message) }
}

fn compile_form(format: &Format, vocabulary: &Vocabulary, deadline: &Deadline) -> Result<TokenParser, ApiError> {
    let flaw = |message| refuse(&format.param, Flaw { pointer: String::new(), message });
    let mut parser = match &format.form {
        Form::Object => json::exact(&json!({"type": "object"}), vocabulary).map_err(|f| refuse(&format.param, f))?,
        Form::Schema(schema) => json::exact(schema, vocabulary).map_err(|f| refuse(&format.param, f))?,
        Form::Regex(regex) => vocabulary.parser(TopLevelGrammar::from_regex(regex)).map_err(flaw)?,
        Form::Lark(text) => vocabulary.parser(TopLevelGrammar::from_lark(text.clone())).map_err(flaw)?,
        Form::Gbnf(text) => {
            let lark = gbnf::to_lark(text).map_err(flaw)?;
            vocabulary.parser(TopLevelGrammar::from_lark(lark)).map_err(flaw)?
        }
        // One terminal: a lexer that takes the longest of several would miss a text that begins another.
        Form::Choice(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
            let lark = format!("start: CHOICE\nCHOICE: {}\n", texts.join(" | "));
            vocabulary.parser(TopLevelGrammar::from_lark(lark)).map_err(flaw)?
        }
    };
    deadline.check(&format.param)?;
    // What can never begin is as good as what cannot be compiled.
    if begins(&mut parser) { Ok(parser) } else { Err(flaw(String::from(EMPTY))) }
}

/// What is wrong with a form that nothing has.
const EMPTY: &str = "no text has this form";

/// Whether a text of a grammar could begin, or be empty.
fn begins(parser: &mut TokenParser) -> bool {
    parser.clone().compute_mask().is_ok_and(|mask| !mask.is_zero()) || parser.is_accepting()
}

/// Rules and body grammar of calls; `None` where calls are as free as any text.
fn compile_calls(
    tools: &Tools,
    wanted: &Wanted<'_>,
    vocabulary: &Vocabulary,
    deadline: &Deadline,
    warnings: &mut Vec<String>,
) -> Result<Option<(Calls, Option<TokenParser>)>, ApiError> {
    let Some((start, end)) = wanted.call else {
        let free = tools.choice != ToolChoice::Required && !tools.single && tools.allowed.is_none();
        let message = "the calls of this model begin with no token of their own, so that none can be made or left out";
        return if free { Ok(None) } else { Err(ApiError::unsupported_value("tool_choice", message)) };
    };
    let required = tools.choice == ToolChoice::Required;
    let rules = Calls { start, end, banned: tools.choice == ToolChoice::None, required, single: tools.single };
    if rules.banned {
        return Ok(Some((rules, None)));
    }
    let callable = |i: &usize| tools.allowed.as_ref().is_none_or(|allowed| allowed.contains(i));
    let mut indices: Vec<usize> = (0..tools.list.len()).filter(callable).collect();
    indices.dedup();
    if indices.is_empty() {
        return Ok(Some((Calls { banned: true, required: false, ..rules }, None)));
    }
    let mut list = Vec::new();
    for &i in &indices {
        let tool = &tools.list[i];
        let exact = tool.strict || required || tool.form.is_some();
        let strictness = if exact { Strictness::Exact } else { Strictness::Widened };
        let schema_param = || match &tool.form {
            Some(form) => form.param.clone(),
            None => format!("tools[{i}].function.parameters"),
        };
        let flaw = |message| Flaw { pointer: String::new(), message };
        let text = tool.form.as_ref().map(|form| Text::of(&form.form)).transpose();
        let text = text.map_err(|message| refuse(&schema_param(), flaw(message)))?;
        let (schema, mut widened) = calls::arguments(tool, strictness).map_err(|f| refuse(&schema_param(), f))?;
        let mut callable = Callable { name: &tool.name, schema, text };
        let alone = compile_body(std::slice::from_ref(&callable), wanted.style, true, vocabulary).map(drop);
        if let Err(message) = alone.and_then(|()| check_texts(&callable, wanted.style, vocabulary)) {
            if callable.text.is_some() {
                return Err(refuse(&schema_param(), flaw(message)));
            }
            if exact {
                return Err(refuse(
                    &schema_param(),
                    json::locate(&Value::Object(callable.schema), message, vocabulary),
                ));
            }
            callable.schema = calls::any_arguments();
            widened = true;
        }
        if widened {
            warnings.push(format!("schema_relaxed:tools.{i}"));
        }
        list.push(callable);
        deadline.check("tools")?;
    }
    let flaw = |message| refuse("tools", Flaw { pointer: String::new(), message });
    let body = compile_body(&list, wanted.style, tools.single, vocabulary).map_err(flaw)?;
    deadline.check("tools")?;
    Ok(Some((rules, Some(body))))
}

/// Refuses a tool whose calls would come to a text that none can be.
///
/// # Errors
/// That it is so.
fn check_texts(tool: &Callable<'_>, style: ToolStyle, vocabulary: &Vocabulary) -> Result<(), String> {
    if style != ToolStyle::Xml {
        return Ok(());
    }
    calls::texts(tool).into_iter().try_for_each(|grammar| match begins(&mut vocabulary.parser(grammar)?) {
        true => Ok(()),
        false => Err(String::from(EMPTY)),
    })
}

fn compile_body(
    list: &[Callable<'_>],
    style: ToolStyle,
    single: bool,
    vocabulary: &Vocabulary,
) -> Result<TokenParser, String> {
    let lark = calls::body(list, style, single).ok_or("the way this model writes calls is not known")?;
    let mut grammar = TopLevelGrammar::from_lark(lark);
    grammar.grammars.extend(list.iter().enumerate().filter_map(|(i, tool)| tool.text.as_ref()?.grammar(i)));
    vocabulary.parser(grammar)
}
