//! `smollm`: every `\p{N}` alone, then, between them,
//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)` with unmatched text as its own pieces.
//!
//! Source: llama.cpp `src/llama-vocab.cpp`, LLAMA_VOCAB_PRE_TYPE_SMOLLM.

use super::class::{Char, Class};
use super::{contraction, run};

fn is_letter(c: Char) -> bool {
    c.class == Class::Letter
}

fn is_other(c: Char) -> bool {
    matches!(c.class, Class::Other | Class::Mark)
}

/// End of the piece that starts at `pos`.
pub(super) fn next(text: &[u8], pos: usize) -> usize {
    let Some(first) = Char::at(text, pos) else { return pos };
    if first.class == Class::Number {
        return pos + first.len;
    }
    if first.code == u32::from('\'') {
        let len = contraction(text, pos, false);
        if len > 0 {
            return pos + len;
        }
    }
    // One space may lead a run of letters or of symbols.
    let body = if first.code == u32::from(' ') { pos + 1 } else { pos };
    match Char::at(text, body) {
        Some(c) if is_letter(c) => return run(text, body, is_letter),
        Some(c) if is_other(c) => return run(text, body, is_other),
        _ => {}
    }
    // White space: all of it at the end of the text or before a number (the text was cut there first), else all but
    // the last character, which may lead the next piece.
    let mut end = pos;
    let mut last = pos;
    while let Some(c) = Char::at(text, end)
        && c.class == Class::Space
    {
        last = end;
        end += c.len;
    }
    let cut = Char::at(text, end).is_none_or(|c| c.class == Class::Number);
    if cut || last == pos { end } else { last }
}
