//! What `text` needs of a model's tokenizer and chat template. The real one stands on `io::text`; tests bring a toy.

use engine::ids::TokenId;
pub use engine_io::text::{TemplateFacts, ToolStyle};
use serde_json::{Map, Value};

/// A conversation for the template.
#[derive(Clone, Debug)]
pub struct Conversation<'a> {
    /// Array of messages as the template sees them: `content` a string, `arguments` of calls in the probed form.
    pub messages: &'a Value,
    /// Array of tool definitions, in the client's order.
    pub tools: Option<&'a Value>,
    /// Open an assistant turn at the end.
    pub add_generation_prompt: bool,
    /// Thoughts of old turns stay in the prompt, whatever the template would do with them.
    pub keep_thoughts: bool,
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
    /// The reasoning tag that the prompt ends inside, if any: the answer's text begins with it.
    pub open_tag: Option<String>,
}

/// Why a conversation has no prompt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RenderError {
    /// The template's own message, or what went wrong in it.
    Template(String),
    /// It has this many tokens at least, and fewer were allowed.
    TooLong(usize),
}

/// What the template can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caps {
    /// There is a template.
    pub chat: bool,
    /// `developer` is a role of its own.
    pub developer: bool,
    /// A system message may stand anywhere.
    pub system_anywhere: bool,
    /// Two user messages in a row are refused.
    pub alternation: bool,
    /// Tool definitions reach the prompt.
    pub tools: bool,
    /// Call arguments are wanted as JSON text; otherwise as a mapping.
    pub string_arguments: bool,
    /// `reasoning_effort` is read.
    pub reasoning_effort: bool,
    /// How the model writes calls.
    pub tool_style: ToolStyle,
    /// Begin and end of thinking, as text.
    pub think: Option<(&'static str, &'static str)>,
    /// ... as tokens, where the vocabulary has one for each.
    pub think_tokens: Option<(TokenId, TokenId)>,
    /// Begin of a call block, and its end where it has one.
    pub call_tokens: Option<(TokenId, Option<TokenId>)>,
}

/// Tokenizer and chat template of the served model.
pub trait TextModel: Send + Sync {
    /// Ids run from 0 to this, excluded.
    fn vocab(&self) -> usize;

    /// Text to ids. `add_special`: BOS and EOS as the model wants them; `parse_special`: the text of a special token
    /// is that token.
    fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<TokenId>;

    /// Fewest ids that a text of `bytes` bytes can have. Cheap: a text that is hopelessly long is not tokenized.
    fn ids_min(&self, bytes: usize) -> usize;

    /// The bytes of a token; for control tokens their name.
    fn piece(&self, token: TokenId) -> Vec<u8>;

    /// Whether the token is hidden from ordinary output.
    fn is_control(&self, token: TokenId) -> bool;

    /// Whether the token is structure, shown or hidden: a text that only spells it is not it.
    fn is_structure(&self, token: TokenId) -> bool {
        self.is_control(token)
    }

    /// Whether the token ends a completion.
    fn is_end(&self, token: TokenId) -> bool;

    /// What the template can do.
    fn caps(&self) -> Caps;

    /// The template's text and what probes have shown of it, where there is one.
    fn template(&self) -> Option<(&str, &TemplateFacts)>;

    /// Renders and tokenizes. Texts of the conversation never become control tokens. `n_ctx`: from this many tokens on
    /// the prompt would be refused, so that it need not be tokenized.
    ///
    /// # Errors
    /// [`RenderError`]; `TooLong` only where [`Self::ids_min`] says so.
    fn render(&self, conversation: &Conversation<'_>, n_ctx: usize) -> Result<Rendered, RenderError>;
}
