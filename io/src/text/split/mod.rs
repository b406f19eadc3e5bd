//! Pre-tokenizers: cut plain text into the pieces that BPE merges inside of. Hand-written, because the patterns need
//! look-ahead and run over every prompt; a regex engine is the oracle in the tests.
//!
//! Input is generalised UTF-8 as [`generalised`] makes it: whole characters, encoded surrogates allowed.

mod class;
mod gpt2;
mod llama3;

pub use class::UNICODE_VERSION;
pub(crate) use class::{Char, generalised};

use super::error::TextError;

/// The pre-tokenizers this engine knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Pre {
    /// Each number character alone, then the GPT-2 pattern.
    Smollm,
    /// Single digits; letters without marks.
    Qwen2,
    /// As qwen2 with combining marks joined to letters.
    Qwen35,
    /// Digits in groups of at most three from the left.
    LlamaBpe,
    /// The llama-bpe pattern under another name (Nemotron).
    Pixtral,
}

impl Pre {
    /// The names in `tokenizer.ggml.pre`.
    pub const NAMES: [&'static str; 5] = ["smollm", "qwen2", "qwen35", "llama-bpe", "pixtral"];

    /// Looks up a value of `tokenizer.ggml.pre`.
    ///
    /// # Errors
    /// [`TextError::UnknownPre`] for every other name; nothing is guessed.
    pub fn parse(name: &str) -> Result<Self, TextError> {
        Ok(match name {
            "smollm" => Self::Smollm,
            "qwen2" => Self::Qwen2,
            "qwen35" => Self::Qwen35,
            "llama-bpe" => Self::LlamaBpe,
            "pixtral" => Self::Pixtral,
            _ => return Err(TextError::UnknownPre { found: name.chars().take(80).collect() }),
        })
    }

    /// The name in `tokenizer.ggml.pre`.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Whether a piece that is a token is emitted whole, whatever the merges say.
    /// Source: llama.cpp `src/llama-vocab.cpp`, `ignore_merges`.
    pub fn ignores_merges(self) -> bool {
        matches!(self, Self::LlamaBpe | Self::Pixtral)
    }

    /// Whether BOS is added when the file has no `add_bos_token`.
    /// Source: llama.cpp `src/llama-vocab.cpp`, `add_bos`.
    pub fn adds_bos(self) -> bool {
        matches!(self, Self::LlamaBpe | Self::Pixtral)
    }

    /// Calls `piece` with every piece of `text` in order; their concatenation is `text`.
    pub(crate) fn split(self, text: &[u8], piece: impl FnMut(&[u8])) {
        match self {
            Self::Smollm => pieces(text, piece, gpt2::next),
            Self::Qwen2 => pieces(text, piece, llama3::next::<1, false>),
            Self::Qwen35 => pieces(text, piece, llama3::next::<1, true>),
            Self::LlamaBpe | Self::Pixtral => pieces(text, piece, llama3::next::<3, false>),
        }
    }
}

fn pieces(text: &[u8], mut piece: impl FnMut(&[u8]), next: impl Fn(&[u8], usize) -> usize) {
    let mut start = 0;
    while start < text.len() {
        let end = next(text, start);
        debug_assert!(start < end && end <= text.len(), "a splitter advances and stays inside");
        piece(&text[start..end]);
        start = end;
    }
}

/// End of the run of characters from `pos` that satisfy `member`.
fn run(text: &[u8], mut pos: usize, member: impl Fn(Char) -> bool) -> usize {
    while let Some(c) = Char::at(text, pos)
        && member(c)
    {
        pos += c.len;
    }
    pos
}

/// Length of a contraction (`'s 't 'm 'd 're 've 'll`) at an apostrophe, 0 if there is none.
fn contraction(text: &[u8], pos: usize, fold: bool) -> usize {
    let at = |i: usize| text.get(pos + i).map_or(0, |b| if fold { b.to_ascii_lowercase() } else { *b });
    match (at(1), at(2)) {
        (b's' | b't' | b'm' | b'd', _) => 2,
        (b'r' | b'v', b'e') | (b'l', b'l') => 3,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
