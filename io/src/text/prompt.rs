//! From rendered template to prompt ids, so that the client's text never becomes structure.
//!
//! Before rendering, each occurrence of a special token's text in a client string gets U+FDD0 after its first
//! character, and a U+FDD0 that is there is doubled. In the rendered text special tokens are matched with U+FDD0 as an
//! ordinary character, so that broken ones do not match; then runs of U+FDD0 are halved (an odd one is a break) and
//! what lies between special tokens is plain text.

use std::borrow::Cow;

use serde_json::Value;

use super::bpe::Bpe;
use super::special::{Hit, Matcher};
use super::tokenizer::Tokenizer;

/// A noncharacter, so that it is free for this use; three bytes.
const BREAK: char = '\u{FDD0}';
const BREAK_BYTES: &[u8] = "\u{FDD0}".as_bytes();

/// A template's output, with its breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    pub(crate) marked: String,
}

impl Rendered {
    /// The text the model will see.
    pub fn text(&self) -> String {
        unbroken(&self.marked).into_owned()
    }

    /// Bytes of that text.
    pub fn text_len(&self) -> usize {
        unbroken(&self.marked).len()
    }

    /// Whether the prompt ends inside a block that `tag` opens: it ends in the tag, white space aside, and the tag is
    /// the template's own.
    pub fn ends_in(&self, tag: &str) -> bool {
        self.marked.trim_end().ends_with(tag)
    }
}

/// A special token's place in a prompt's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpecialSpan {
    /// First byte in [`Prompt::text`].
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// The token.
    pub token: u32,
}

/// A prompt ready for the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids, BOS as often as the model wants it.
    pub ids: Vec<u32>,
    /// The rendered text.
    pub text: String,
    /// Where special tokens stand in it.
    pub special: Vec<SpecialSpan>,
}

/// The value with every string and key of it broken up.
pub(crate) fn broken(value: &Value, special: &Matcher) -> Value {
    match value {
        Value::String(text) => Value::String(break_up(text, special).into_owned()),
        Value::Array(items) => Value::Array(items.iter().map(|v| broken(v, special)).collect()),
        Value::Object(map) => {
            Value::Object(map.iter().map(|(k, v)| (break_up(k, special).into_owned(), broken(v, special))).collect())
        }
        other => other.clone(),
    }
}

pub(crate) fn break_up<'a>(text: &'a str, special: &Matcher) -> Cow<'a, str> {
    let mut out = String::new();
    let mut from = 0;
    for (pos, c) in text.char_indices() {
        let breaks = usize::from(c == BREAK) + usize::from(special.starts_at(text.as_bytes(), pos));
        if breaks > 0 {
            let end = pos + c.len_utf8();
            out.push_str(&text[from..end]);
            (0..breaks).for_each(|_| out.push(BREAK));
            from = end;
        }
    }
    if from == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[from..]);
    Cow::Owned(out)
}

/// Number of breaks that `text` starts with.
fn run(text: &[u8]) -> usize {
    text.chunks_exact(BREAK_BYTES.len()).take_while(|c| *c == BREAK_BYTES).count()
}

/// The text without breaks: a run of n becomes n / 2.
fn unbroken(marked: &str) -> Cow<'_, str> {
    if !marked.contains(BREAK) {
        return Cow::Borrowed(marked);
    }
    let mut out = String::with_capacity(marked.len());
    let mut rest = marked;
    while let Some(at) = rest.find(BREAK) {
        out.push_str(&rest[..at]);
        let n = run(&rest.as_bytes()[at..]);
        out.extend(std::iter::repeat_n(BREAK, n / 2));
        rest = &rest[at + n * BREAK_BYTES.len()..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

impl Tokenizer {
    /// The prompt of a rendered conversation. No EOS is added; BOS only if the template wrote none and the model
    /// wants one.
    pub fn encode_rendered(&self, rendered: &Rendered) -> Prompt {
        let marked = &rendered.marked;
        // A token of one character has no inside to break: the break follows it.
        let whole = |hit: &Hit| run(&marked.as_bytes()[hit.end..]).is_multiple_of(2);
        let mut prompt = Prompt { ids: Vec::new(), text: String::with_capacity(marked.len()), special: Vec::new() };
        let mut bpe = Bpe::default();
        let mut from = 0;
        for hit in self.vocab().special.find(marked.as_bytes()).iter().filter(|h| whole(h)) {
            self.plain(&marked[from..hit.start], &mut bpe, &mut prompt);
            prompt.ids.push(hit.token);
            let start = prompt.text.len();
            prompt.text.push_str(&marked[hit.start..hit.end]);
            prompt.special.push(SpecialSpan { start, end: prompt.text.len(), token: hit.token });
            from = hit.end;
        }
        self.plain(&marked[from..], &mut bpe, &mut prompt);
        self.add_bos(&mut prompt.ids);
        prompt
    }

    fn plain(&self, marked: &str, bpe: &mut Bpe, prompt: &mut Prompt) {
        let text = unbroken(marked);
        self.encode_plain(text.as_bytes(), bpe, &mut prompt.ids);
        prompt.text.push_str(&text);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matcher(tokens: &[&str]) -> Matcher {
        Matcher::new(tokens.iter().enumerate().map(|(i, t)| (t.as_bytes(), i as u32)))
    }

    #[test]
    fn every_occurrence_is_broken() {
        let m = matcher(&["<a>", "<b", "░"]);
        assert_eq!(break_up("x<a><b<c>", &m), "x<\u{FDD0}a><\u{FDD0}b<c>");
        assert_eq!(break_up("░", &m), "░\u{FDD0}");
        assert_eq!(break_up("plain", &m), "plain");
        assert_eq!(break_up("\u{FDD0}", &m), "\u{FDD0}\u{FDD0}");
    }

    proptest! {
        #[test]
        fn breaking_is_undone_and_leaves_no_token(
            parts in prop::collection::vec(
                prop::sample::select(vec!["<a>", "<", "a", ">", "░", "\u{FDD0}", "é", "aa", " "]), 0..20,
            ),
        ) {
            let text = parts.concat();
            let m = matcher(&["<a>", "aa", "░", "a>", ">\u{E9}"]);
            let marked = break_up(&text, &m).into_owned();
            prop_assert_eq!(unbroken(&marked), text.as_str());
            let left = m.find(marked.as_bytes());
            prop_assert!(left.iter().all(|h| run(&marked.as_bytes()[h.end..]) % 2 == 1), "{left:?} in {marked:?}");
        }
    }
}
