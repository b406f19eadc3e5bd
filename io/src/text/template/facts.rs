//! What a template can do, found by rendering small conversations at load.

use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::{ChatTemplate, RenderInput, TemplateError};

/// How a model writes tool calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ToolStyle {
    /// `<tool_call> <function=NAME> <parameter=KEY>`: Qwen3-Coder, Qwen3.5, Nemotron 3.
    Xml,
    /// `<tool_call> {"name": ..., "arguments": ...}`: Qwen2.5, Qwen3, Hermes.
    Hermes,
    /// `{"name": ..., "parameters": ...}`, `<|python_tag|>`: Llama 3.
    Llama3,
    /// `<TOOLCALL>[...]`: Nemotron Nano 2.
    Nemotron2,
    /// No style is recognised.
    #[default]
    None,
}

/// What probe renders have shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TemplateFacts {
    /// A leading system message is rendered.
    pub system: bool,
    /// A system message between other turns is rendered.
    pub system_anywhere: bool,
    /// The template names the role `developer`.
    pub developer: bool,
    /// `tools` are rendered.
    pub tools: bool,
    /// `tool_calls` of assistant messages are rendered.
    pub tool_calls: bool,
    /// Two calls of one message are rendered.
    pub parallel_tool_calls: bool,
    /// Call arguments may be a mapping.
    pub object_arguments: bool,
    /// Call arguments may be JSON text. Where a mapping works too it is the better choice: some templates quote text
    /// once more.
    pub string_arguments: bool,
    /// Content as a string is rendered.
    pub string_content: bool,
    /// Content as a list of text parts is rendered.
    pub typed_content: bool,
    /// Two user messages in a row are refused.
    pub alternation: bool,
    /// A conversation without a user message is refused.
    pub needs_user: bool,
    /// `enable_thinking` changes the prompt.
    pub enable_thinking: bool,
    /// `reasoning_effort` changes the prompt.
    pub reasoning_effort: bool,
    /// `reasoning_content` of the assistant turns behind the last user message is rendered.
    pub preserve_reasoning: bool,
    /// Start and end marker of reasoning.
    pub think: Option<(&'static str, &'static str)>,
    /// The generation prompt ends inside a reasoning block when nothing is asked.
    pub opens_think: bool,
    /// ... when `enable_thinking` is false.
    pub opens_think_when_off: bool,
    /// How tool calls are written.
    pub tool_style: ToolStyle,
}

const THINK_MARKERS: [(&str, &str); 3] =
    [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|START_THINKING|>", "<|END_THINKING|>")];

struct Probe<'a> {
    template: &'a ChatTemplate,
}

impl Probe<'_> {
    fn with(&self, messages: &Value, tools: Option<&Value>, kwargs: &Value) -> Option<String> {
        let none = Map::new();
        let input = RenderInput {
            messages,
            tools,
            add_generation_prompt: true,
            kwargs: kwargs.as_object().unwrap_or(&none),
            now: SystemTime::UNIX_EPOCH,
        };
        self.template.render(&input).ok().map(|r| r.text())
    }

    fn plain(&self, messages: &Value) -> Option<String> {
        self.with(messages, None, &Value::Null)
    }

    /// Whether the conversation renders and shows all of these texts.
    fn shows(&self, messages: &Value, texts: &[&str]) -> bool {
        self.plain(messages).is_some_and(|out| texts.iter().all(|t| out.contains(t)))
    }
}

/// Probes a template.
///
/// # Errors
/// If it runs too long, or writes too much, on a single message.
pub(super) fn probe(template: &ChatTemplate) -> Result<TemplateFacts, TemplateError> {
    let p = Probe { template };
    let source = template.source();
    let user = json!({"role": "user", "content": "probe_user"});
    let assistant = json!({"role": "assistant", "content": "probe_assistant"});
    let system = json!({"role": "system", "content": "probe_system"});
    // Calls are answered, and ids are nine characters: some templates insist on either.
    let calls = |calls: &[(&str, &Value)]| {
        let id = |i: usize| format!("probe{i:04}");
        let list: Vec<Value> = calls
            .iter()
            .enumerate()
            .map(|(i, (name, arguments))| {
                json!({"id": id(i), "type": "function", "function": {"name": name, "arguments": arguments}})
            })
            .collect();
        let mut messages = vec![user.clone(), json!({"role": "assistant", "content": "", "tool_calls": list})];
        for (i, (name, _)) in calls.iter().enumerate() {
            messages.push(json!({"role": "tool", "tool_call_id": id(i), "name": name, "content": "probe_result"}));
        }
        Value::Array(messages)
    };
    let object = json!({"probe_key": "probe_value"});
    let text = json!("{\"probe_key\": \"probe_value\"}");
    let tools = json!([{"type": "function", "function": {"name": "probe_tool", "description": "probe",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}, "required": ["probe_key"]}}}]);
    let just_user = json!([user]);
    let input = RenderInput {
        messages: &just_user,
        tools: None,
        add_generation_prompt: true,
        kwargs: &Map::new(),
        now: SystemTime::UNIX_EPOCH,
    };
    // Other errors may be what the template thinks of this conversation.
    if let Err(error @ (TemplateError::Fuel { .. } | TemplateError::Output { .. })) = template.render(&input) {
        return Err(error);
    }

    let object_calls = calls(&[("probe_call", &object)]);
    let string_calls = calls(&[("probe_call", &text)]);
    let object_arguments = p.shows(&object_calls, &["probe_call", "probe_key", "probe_value"]);
    let string_arguments = p.shows(&string_calls, &["probe_call", "probe_key", "probe_value"]);
    let arguments = if object_arguments { &object } else { &text };
    let parallel = calls(&[("probe_first", arguments), ("probe_second", arguments)]);
    let reasoned =
        json!([user, {"role": "assistant", "content": "probe_answer", "reasoning_content": "probe_reasoning"}]);

    let think = THINK_MARKERS.into_iter().find(|(_, end)| source.contains(end));
    let base = p.plain(&just_user);
    let thinking = |on: bool| p.with(&just_user, None, &json!({"enable_thinking": on}));
    let effort = |level: &str| p.with(&just_user, None, &json!({"reasoning_effort": level}));
    let opens = |text: &Option<String>| match (text, think) {
        (Some(text), Some((start, _))) => text.trim_end().ends_with(start),
        _ => false,
    };
    let (on, off) = (thinking(true), thinking(false));
    let sample = if object_arguments { p.plain(&object_calls) } else { p.plain(&string_calls) };

    Ok(TemplateFacts {
        system: p.shows(&json!([system, user]), &["probe_system", "probe_user"]),
        system_anywhere: p.shows(&json!([user, assistant, system, user]), &["probe_system"]),
        developer: source.contains("developer"),
        tools: p.with(&just_user, Some(&tools), &Value::Null).is_some_and(|out| out.contains("probe_tool")),
        tool_calls: object_arguments || string_arguments,
        parallel_tool_calls: p.shows(&parallel, &["probe_first", "probe_second"]),
        object_arguments,
        string_arguments,
        string_content: base.as_ref().is_some_and(|out| out.contains("probe_user")),
        typed_content: p
            .plain(&json!([{"role": "user", "content": [{"type": "text", "text": "probe_part"}]}]))
            // A template that prints the list itself shows its quotes and keys.
            .is_some_and(|out| out.contains("probe_part") && !out.contains("'text'") && !out.contains("\"text\"")),
        alternation: base.is_some() && p.plain(&json!([user, user])).is_none(),
        needs_user: base.is_some() && p.plain(&json!([system])).is_none() && p.plain(&json!([assistant])).is_none(),
        enable_thinking: on != off || off.is_some() && off != base,
        reasoning_effort: effort("low") != effort("high"),
        preserve_reasoning: p.shows(&reasoned, &["probe_reasoning"]),
        think,
        opens_think: opens(&base),
        opens_think_when_off: opens(&off),
        tool_style: tool_style(sample.as_deref(), source),
    })
}

/// The style of a rendered call of `probe_call`; of a template that renders none, what its text says about calls.
fn tool_style(sample: Option<&str>, source: &str) -> ToolStyle {
    let sample = sample.filter(|s| s.contains("probe_call"));
    let text: String = sample.unwrap_or(source).split_whitespace().collect();
    let has = |mark: &str| text.contains(mark);
    let named = |mark: &str| if sample.is_some() { has("\"name\":\"probe_call\"") } else { has(mark) };
    if has("<tool_call>") && has("<function=") && has("<parameter=") {
        ToolStyle::Xml
    } else if has("<TOOLCALL>") {
        ToolStyle::Nemotron2
    } else if has("<tool_call>") && named("\"arguments\"") {
        ToolStyle::Hermes
    } else if named("<|python_tag|>") && has("\"parameters\":") {
        ToolStyle::Llama3
    } else {
        ToolStyle::None
    }
}
