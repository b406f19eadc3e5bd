//! Text to tokens and back: vocabulary, pre-tokenizers, byte-level BPE, chat templates.
//!
//! ```text
//! messages ─► template (minijinja) ─► rendered text ─► special spans | plain spans ─► split ─► bpe ─► ids
//! ids ─► pieces (bytes)
//! ```
//!
//! Knows nothing of requests, sockets or the engine: bytes become whole characters where stop strings are cut, in the
//! engine's output state. Nothing here normalises Unicode: the bytes of a text are kept.

pub mod bpe;
pub mod error;
mod merge_queue;
pub mod prompt;
pub mod special;
pub mod split;
pub mod template;
pub mod tokenizer;
pub mod vocab;

mod alphabet;
mod load;

pub use error::TextError;
pub use prompt::{Prompt, Rendered, SpecialSpan};
pub use split::Pre;
pub use template::{ChatTemplate, RenderInput, TemplateError, TemplateFacts, TemplateLimits, ToolStyle};
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use vocab::{Pieces, SpecialIds, TokenKind, VocabSpec};

#[cfg(test)]
mod tests;
