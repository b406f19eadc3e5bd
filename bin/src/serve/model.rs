//! What `text` needs of a model's tokenizer and chat template. The real one stands on `io::text`; tests bring a toy.

use engine::ids::TokenId;
use serde_json::{Map, Value, json};

/// A conversation for the template.
#[derive(Clone, Debug)]
pub struct Conversation<'a> {
    /// Messages as the template sees them: `content` a string, `tool_calls` with `arguments` in the probed form.
    pub messages: &'a [Value],
    /// Tool definitions, in the client's order.
    pub tools: Option<&'a [Value]>,
    /// Open an assistant turn at the end.
    pub add_generation_prompt: bool,
    /// Leave the last (assistant) message open.
    pub continue_final_message: bool,
    /// Further template variables.
    pub kwargs: &'a Map<String, Value>,
}

/// A rendered conversation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rendered {
    /// The prompt.
    pub text: String,
    /// Its ids, exactly as they will run.
    pub tokens: Vec<TokenId>,
    /// Byte ranges of `text` that became control tokens.
    pub special_spans: Vec<(usize, usize)>,
}

/// Tokenizer and chat template of the served model.
pub trait TextModel: Send {
    /// Ids run from 0 to this, excluded.
    fn vocab(&self) -> usize;

    /// Text to ids. `add_special`: BOS and EOS as the model wants them; `parse_special`: the text of a special token
    /// is that token.
    fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<TokenId>;

    /// The bytes of a token; for control tokens their name.
    fn piece(&self, token: TokenId) -> Vec<u8>;

    /// Whether the token is hidden from ordinary output.
    fn is_control(&self, token: TokenId) -> bool;

    /// Whether the token ends a completion.
    fn is_end(&self, token: TokenId) -> bool;

    /// Source of the chat template, empty without one.
    fn template(&self) -> &str;

    /// Renders and tokenizes. Texts of the conversation never become control tokens.
    ///
    /// # Errors
    /// The template's own message, or what went wrong in it.
    fn render(&self, conversation: &Conversation<'_>) -> Result<Rendered, String>;
}

/// What the template can do, found by rendering small conversations once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Caps {
    /// `developer` is a role of its own.
    pub developer: bool,
    /// A system message may stand anywhere.
    pub system_anywhere: bool,
    /// Two user messages in a row are refused.
    pub alternation: bool,
    /// Tool definitions reach the prompt.
    pub tools: bool,
    /// Call arguments are printed as given; otherwise they must be a mapping.
    pub string_arguments: bool,
    /// `reasoning_effort` is read.
    pub reasoning_effort: bool,
}

impl Caps {
    pub(crate) fn probe(model: &dyn TextModel) -> Self {
        let render = |messages: Value, tools: Option<Value>| {
            let messages = messages.as_array().cloned().unwrap_or_default();
            let tools = tools.and_then(|t| t.as_array().cloned());
            let conversation = Conversation {
                messages: &messages,
                tools: tools.as_deref(),
                add_generation_prompt: true,
                continue_final_message: false,
                kwargs: &Map::new(),
            };
            model.render(&conversation).map(|r| r.text).unwrap_or_default()
        };
        let user = json!({"role": "user", "content": "probe-user"});
        let assistant = json!({"role": "assistant", "content": "probe-assistant"});
        let late = render(json!([user, assistant, {"role": "system", "content": "probe-system"}, user]), None);
        let tool = json!([{"type": "function", "function": {"name": "probe_tool", "description": "d",
            "parameters": {"type": "object", "properties": {}}}}]);
        let arguments = "{\"probe_key\": \"probe_value\"}";
        let call = json!({"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function",
            "function": {"name": "probe_tool", "arguments": arguments}}]});
        let result = json!({"role": "tool", "content": "probe-result", "tool_call_id": "call_1"});
        Self {
            developer: model.template().contains("developer"),
            system_anywhere: late.contains("probe-system"),
            alternation: !render(json!([user, {"role": "user", "content": "probe-second"}]), None)
                .contains("probe-second"),
            tools: render(json!([user]), Some(tool)).contains("probe_tool"),
            string_arguments: render(json!([user, call, result]), None).contains(arguments),
            reasoning_effort: model.template().contains("reasoning_effort"),
        }
    }
}
