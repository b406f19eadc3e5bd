//! The eight edit prompts: short files and configurations to copy with a change, the kind of text that both proposers
//! are for.

use engine::api::{Speculation, Strategy, Submission, WindowPolicy};
use engine::ids::{Ticket, TokenId};
use engine_bin::menu::BUILT_IN;
use engine_bin::open::Opened;
use engine_io::text::{ChatTemplate, RenderInput, TemplateLimits};
use serde_json::{Map, Value};

/// A prompt as the model reads it.
pub struct EditPrompt {
    /// Its name in the file.
    pub id: String,
    /// Its ids.
    pub tokens: Vec<TokenId>,
}

/// The prompts in the words of the model's own chat template.
///
/// # Panics
/// If the model has no template or the template refuses a prompt.
pub fn prompts(opened: &Opened) -> Vec<EditPrompt> {
    let all: Vec<Value> =
        serde_json::from_str(include_str!("../../perf/data/edit-prompts.json")).expect("the prompts are JSON");
    let source = opened.tokenizer.chat_template().expect("the model has a chat template");
    let limits = TemplateLimits::default();
    let template = ChatTemplate::new(source, &opened.tokenizer, limits).expect("the template compiles");
    let render = |prompt: &Value| {
        let messages = with_parsed_arguments(&prompt["messages"]);
        let input = RenderInput {
            messages: &messages,
            tools: None,
            add_generation_prompt: true,
            kwargs: &Map::new(),
            now: std::time::SystemTime::UNIX_EPOCH,
        };
        let rendered = template.render(&input).expect("the prompt renders");
        let tokens = opened.tokenizer.encode_rendered(&rendered).ids.into_iter().map(TokenId).collect();
        EditPrompt { id: prompt["id"].as_str().expect("a prompt has an id").to_owned(), tokens }
    };
    all.iter().map(render).collect()
}

/// Arguments of calls travel as JSON text; the template iterates over them.
fn with_parsed_arguments(messages: &Value) -> Value {
    let mut messages = messages.clone();
    for message in messages.as_array_mut().into_iter().flatten() {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            if let Some(text) = call["function"]["arguments"].as_str() {
                call["function"]["arguments"] = serde_json::from_str(text).expect("arguments are JSON");
            }
        }
    }
    messages
}

/// A greedy answer of at most `max_tokens`. Fixed windows are as wide as they may be by default, adaptive ones start at
/// half of that.
pub fn submission(
    ticket: u64,
    prompt: &[TokenId],
    max_tokens: u32,
    strategy: Strategy,
    policy: WindowPolicy,
) -> Submission {
    let window = BUILT_IN.window_max;
    let window_initial = if policy == WindowPolicy::Fixed { window } else { window / 2 };
    let speculation = Speculation { strategy, policy, suffix_tokens: window, window_initial, ..BUILT_IN };
    Submission::greedy(Ticket(ticket), prompt.to_vec(), max_tokens, speculation)
}
