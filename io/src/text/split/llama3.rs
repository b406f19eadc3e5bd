//! `llama-bpe`, `pixtral`, `qwen2`, `qwen35`: one pattern with two parameters,
//!
//! ```text
//! (?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])
//! |[^\r\n\p{L}\p{N}]?\p{L}+ | \p{N}{1,D} | ?[^\s\p{L}\p{N}]+[\r\n]* |\s*[\r\n]+ |\s+(?!\S) |\s+
//! ```
//!
//! DIGITS is D (1 for qwen, 3 for llama); with MARKS, `\p{M}` joins the letter runs and leaves the symbol class
//! (`[\p{L}\p{M}]+`, `[^\s\p{L}\p{M}\p{N}]+`).
//!
//! Source: llama.cpp `src/llama-vocab.cpp`, LLAMA_VOCAB_PRE_TYPE_{LLAMA3,QWEN2,QWEN35}.

use super::class::{Char, Class};
use super::{contraction, run};

fn is_word<const MARKS: bool>(c: Char) -> bool {
    c.class == Class::Letter || MARKS && c.class == Class::Mark
}

fn is_symbol<const MARKS: bool>(c: Char) -> bool {
    c.class == Class::Other || !MARKS && c.class == Class::Mark
}

/// End of the piece that starts at `pos`.
pub(super) fn next<const DIGITS: usize, const MARKS: bool>(text: &[u8], pos: usize) -> usize {
    let Some(first) = Char::at(text, pos) else { return pos };
    if first.code == u32::from('\'') {
        let len = contraction(text, pos, true);
        if len > 0 {
            return pos + len;
        }
    }
    if is_word::<MARKS>(first) {
        return run(text, pos, is_word::<MARKS>);
    }
    let second = Char::at(text, pos + first.len);
    if first.class != Class::Number && !first.is_newline() && second.is_some_and(is_word::<MARKS>) {
        return run(text, pos + first.len, is_word::<MARKS>);
    }
    if first.class == Class::Number {
        let mut end = pos + first.len;
        for _ in 1..DIGITS {
            match Char::at(text, end) {
                Some(c) if c.class == Class::Number => end += c.len,
                _ => break,
            }
        }
        return end;
    }
    let symbols = if is_symbol::<MARKS>(first) {
        Some(pos)
    } else {
        (first.code == u32::from(' ') && second.is_some_and(is_symbol::<MARKS>)).then_some(pos + 1)
    };
    if let Some(start) = symbols {
        let end = run(text, start, is_symbol::<MARKS>);
        return run(text, end, Char::is_newline);
    }
    // White space only from here on.
    let mut end = pos;
    let mut last = pos;
    let mut newline_end = pos;
    while let Some(c) = Char::at(text, end)
        && c.class == Class::Space
    {
        last = end;
        end += c.len;
        if c.is_newline() {
            newline_end = end;
        }
    }
    if newline_end > pos {
        newline_end
    } else if end == text.len() || last == pos {
        end
    } else {
        // Before a word or symbol the last white-space character is left to it.
        last
    }
}
