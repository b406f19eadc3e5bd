//! Text to tokens and back: vocabulary, pre-tokenizers, byte-level BPE, detokeniser, chat templates.
//!
//! ```text
//! messages ─► template (minijinja) ─► rendered text ─► special spans | plain spans ─► split ─► bpe ─► ids
//! ids ─► pieces (bytes) ─► detok (whole characters) ─► text
//! ```
//!
//! Knows nothing of requests, sockets or the engine. Nothing here normalises Unicode: the bytes of a text are kept.

pub mod bpe;
pub mod detok;
pub mod error;
pub mod prompt;
pub mod special;
pub mod split;
pub mod template;
pub mod tokenizer;
pub mod vocab;

mod alphabet;
mod load;

pub use detok::Detok;
pub use error::TextError;
pub use prompt::{Prompt, Rendered, SpecialSpan};
pub use split::Pre;
pub use template::{ChatTemplate, RenderInput, TemplateError, TemplateFacts, TemplateLimits, ToolStyle};
pub use tokenizer::{EncodeOptions, Tokenizer};
pub use vocab::{Pieces, SpecialIds, TokenKind, VocabSpec};

#[cfg(test)]
mod tests;
