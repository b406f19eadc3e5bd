//! Log-probability entries of an answer: every token's own text, released with the text itself.

use std::collections::VecDeque;

use engine::api::{Finish, TokenLogprob};
use engine::channels::{Channel, Markers, Said};
use engine::ids::TokenId;
use engine::tables::output::decode;
use serde_json::{Map, Value, json};

use crate::serve::json::real;
use crate::serve::model::TextModel;

/// Log-probabilities of one token, with the token's own text.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    token: Text,
    /// The first token of a text has none.
    logprob: Option<f32>,
    top: Vec<(Text, f32)>,
    /// Code points of text before this token.
    offset: usize,
}

impl Entry {
    fn new(bytes: Vec<u8>, logprob: Option<&TokenLogprob>, offset: usize, model: &dyn TextModel) -> Self {
        let alternatives = logprob.map_or(&[][..], |l| &l.top);
        let top = alternatives.iter().map(|(t, p)| (Text { bytes: model.piece(*t) }, p.max(LEAST_LOGPROB))).collect();
        Self { token: Text { bytes }, logprob: logprob.map(|l| l.logprob.max(LEAST_LOGPROB)), top, offset }
    }
}

#[derive(Clone, Debug)]
struct Text {
    bytes: Vec<u8>,
}

impl Text {
    fn string(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Stands for minus infinity, which JSON lacks.
const LEAST_LOGPROB: f32 = -9999.0;

/// Log-probability entries wait until the text of their token has been released, so that the entries of an answer
/// cover exactly its text wherever a stop string cuts it and however the text was split into events.
///
/// All places are in the text that the engine releases, where every invalid sequence of bytes is a U+FFFD: the bytes of
/// the tokens are decoded here as they are there.
#[derive(Default)]
pub(crate) struct Entries {
    waiting: VecDeque<Waiting>,
    /// First bytes of a character whose end has not come.
    cut: Vec<u8>,
    /// Bytes of text of all tokens so far, the cut character aside, and of all text released so far.
    written: usize,
    released: usize,
    /// Code points written.
    offset: usize,
    /// Parts of the released text that are content, as bytes from and to, as far as entries wait for them.
    content: VecDeque<(usize, usize)>,
    /// Entries cover the content; tokens that write nothing have none.
    content_only: bool,
    /// Tokens that are written although they are control tokens.
    markers: Vec<TokenId>,
}

/// An entry and where the text of its token stands.
struct Waiting {
    /// First byte of the first character that the token has a part of.
    start: usize,
    /// One past the last byte of the last one; `None` while that character is cut.
    end: Option<usize>,
    entry: Entry,
}

impl Entries {
    /// Starts behind the text that the answer begins with. `content_only`: they are not of all tokens but of the
    /// content's.
    pub(crate) fn of(content_only: bool, lead: &str, markers: Option<&Markers>) -> Self {
        Self {
            offset: lead.chars().count(),
            content_only,
            markers: markers.map(Markers::tokens).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Takes the log-probability of a token that does not end the choice.
    pub(crate) fn push(&mut self, logprob: &TokenLogprob, model: &dyn TextModel) {
        let hidden = model.is_control(logprob.token) && !self.markers.contains(&logprob.token);
        if hidden && self.content_only {
            return;
        }
        let bytes = model.piece(logprob.token);
        let (start, offset) = if hidden { (self.written, self.offset) } else { self.write(&bytes) };
        let end = self.cut.is_empty().then_some(self.written);
        let entry = Entry::new(bytes, Some(logprob), offset, model);
        self.waiting.push_back(Waiting { start, end, entry });
    }

    /// Decodes the bytes of one token. Returns where its text begins: byte, and code points before it.
    fn write(&mut self, bytes: &[u8]) -> (usize, usize) {
        let before = self.cut.len();
        let mut begins = (self.written, self.offset);
        self.cut.extend_from_slice(bytes);
        // The character that was cut is not continued but given up.
        let given_up = before > 0
            && std::str::from_utf8(&self.cut)
                .is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_some_and(|n| n <= before));
        let mut text = String::new();
        let (used, _) = decode(&self.cut, false, &mut text);
        self.cut.drain(..used);
        if let Some(first) = text.chars().next().filter(|_| before > 0) {
            let end = self.written + first.len_utf8();
            self.waiting.iter_mut().rev().map_while(|w| w.end.is_none().then_some(w)).for_each(|w| w.end = Some(end));
            if given_up {
                begins = (end, self.offset + 1);
            }
        }
        self.written += text.len();
        self.offset += text.chars().count();
        begins
    }

    /// Takes released text. Returns the entries whose text is out; those of other channels than content are dropped.
    pub(crate) fn release(&mut self, said: &Said) -> Vec<Entry> {
        for (channel, text) in said.parts() {
            let from = self.released;
            self.released += text.len();
            if channel == Channel::Content {
                self.content.push_back((from, self.released));
            }
        }
        let mut out = Vec::new();
        while let Some(end) = self.waiting.front().and_then(|w| w.end) {
            let ready = match self.content_only {
                // The first of its text takes it along; what else it wrote may yet turn out to be no content.
                true => end <= self.released || self.waiting.front().is_some_and(|w| self.is_content(w, self.released)),
                // Entries never travel without text: a hidden token's entry waits for the next.
                false => end <= self.released && !said.is_empty(),
            };
            if !ready {
                break;
            }
            let Some(first) = self.waiting.pop_front() else { break };
            if self.is_content(&first, self.released) {
                out.push(first.entry);
            }
        }
        let next = self.waiting.front().map_or(self.released, |w| w.start);
        while self.content.front().is_some_and(|(_, to)| *to <= next) && self.content.len() > 1 {
            self.content.pop_front();
        }
        out
    }

    /// Whether a token has a part in the content before `end`.
    fn is_content(&self, waiting: &Waiting, end: usize) -> bool {
        let (start, end) = (waiting.start, waiting.end.unwrap_or(end));
        !self.content_only || self.content.iter().any(|(from, to)| start < *to && end > *from)
    }

    /// What is left at the end: everything, or after a stop string what begins before the cut.
    pub(crate) fn finish(&mut self, finish: Finish) -> Vec<Entry> {
        let cut = if matches!(finish, Finish::StopString(_)) { self.released } else { usize::MAX };
        let waiting = std::mem::take(&mut self.waiting);
        let covered = |w: &Waiting| w.start < cut && self.is_content(w, usize::MAX);
        waiting.into_iter().filter(covered).map(|w| w.entry).collect()
    }
}

/// Entries of an echoed prompt, as far as its log-probabilities are known. `text` is what is shown of its `tokens`: a
/// control token that a model wants in front is no part of it, and neither is a blank that only the tokenizer puts there.
pub(crate) fn of_prompt(
    text: &str,
    tokens: &[TokenId],
    logprobs: &[TokenLogprob],
    model: &dyn TextModel,
) -> Vec<Entry> {
    let mut place = Entries::default();
    let one = |(i, token): (usize, &TokenId)| {
        let bytes = model.piece(*token);
        let rest = text.as_bytes().get(place.written..).unwrap_or_default();
        let shown = match bytes.as_slice() {
            hidden if model.is_control(*token) && !rest.starts_with(hidden) => &[],
            [b' ', shown @ ..] if place.written == 0 && rest.first() != Some(&b' ') => shown,
            shown => shown,
        };
        let offset = if shown.is_empty() { place.offset } else { place.write(shown).1 };
        let logprob = i.checked_sub(1).map(|i| &logprobs[i]);
        Entry::new(bytes, logprob, offset, model)
    };
    tokens.iter().take(logprobs.len() + 1).enumerate().map(one).collect()
}

/// In the form of a chat.
pub(crate) fn chat_logprobs<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Value {
    let one = |text: &Text, logprob: Option<f32>| json!({"token": text.string(), "logprob": logprob.map(real), "bytes": text.bytes});
    let list = entries.into_iter().map(|entry| {
        let mut out = one(&entry.token, entry.logprob);
        out["top_logprobs"] = entry.top.iter().map(|(text, logprob)| one(text, Some(*logprob))).collect();
        out
    });
    json!({"content": list.collect::<Vec<_>>(), "refusal": null})
}

/// In the form of a completion.
pub(crate) fn legacy_logprobs(entries: &[Entry]) -> Value {
    let top = |entry: &Entry| {
        if entry.logprob.is_none() {
            return Value::Null;
        }
        let mut map = Map::new();
        for (text, logprob) in &entry.top {
            map.entry(text.string()).or_insert_with(|| real(*logprob));
        }
        Value::from(map)
    };
    json!({
        "tokens": entries.iter().map(|e| e.token.string()).collect::<Vec<_>>(),
        "token_logprobs": entries.iter().map(|e| e.logprob.map(real)).collect::<Vec<_>>(),
        "top_logprobs": entries.iter().map(top).collect::<Vec<_>>(),
        "text_offset": entries.iter().map(|e| e.offset).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use engine::api::Stop;
    use engine::tables::output::Output;

    use super::*;
    use crate::serve::model::{Caps, Conversation, RenderError, Rendered, TemplateFacts};

    /// Every id below 256 is its byte; 256 is hidden.
    struct Bytes;

    impl TextModel for Bytes {
        fn vocab(&self) -> usize {
            257
        }

        fn encode(&self, text: &str, _: bool, _: bool) -> Vec<TokenId> {
            text.bytes().map(|b| TokenId(b.into())).collect()
        }

        fn ids_min(&self, bytes: usize) -> usize {
            bytes
        }

        fn piece(&self, token: TokenId) -> Vec<u8> {
            if self.is_control(token) { b"<hidden>".to_vec() } else { vec![token.0 as u8] }
        }

        fn is_control(&self, token: TokenId) -> bool {
            token.0 == 256
        }

        fn is_end(&self, _: TokenId) -> bool {
            false
        }

        fn caps(&self) -> Caps {
            Caps::default()
        }

        fn template(&self) -> Option<(&str, &TemplateFacts)> {
            None
        }

        fn render(&self, _: &Conversation<'_>, _: usize) -> Result<Rendered, RenderError> {
            Err(RenderError::Template("there is none".to_owned()))
        }
    }

    /// Runs `tokens` through an output state as the engine does, `group` tokens to an event. Returns per event the text
    /// and the tokens of its entries, the rest as the last; and the offsets of all entries.
    fn run(tokens: &[u32], stop: &str, group: usize) -> (Vec<(String, Vec<u32>)>, Vec<usize>) {
        let strings = if stop.is_empty() { Vec::new() } else { vec![stop.as_bytes().to_vec()] };
        let stop = Stop { strings, ..Stop::default() };
        let (mut output, mut list, mut out) = (Output::default(), Entries::default(), Vec::new());
        let mut entries = Vec::new();
        let mut finish = Finish::MaxTokens;
        let events = tokens.chunks(group);
        let last = events.len() - 1;
        for (i, event) in events.enumerate() {
            let mut said = Said::default();
            for &token in event {
                let stopped =
                    token < 256 && output.token(TokenId(token), &[token as u8], None, &stop, true, &mut said).is_some();
                if stopped {
                    finish = Finish::StopString(0);
                }
            }
            if i == last && finish == Finish::MaxTokens {
                output.finish(&mut said);
            }
            let ids: Vec<TokenId> = event.iter().map(|t| TokenId(*t)).collect();
            let logprob = |t: &TokenId| TokenLogprob { token: *t, logprob: -1.0, top: Vec::new() };
            let logprobs: Vec<TokenLogprob> = ids.iter().map(logprob).collect();
            logprobs.iter().for_each(|logprob| list.push(logprob, &Bytes));
            let released = list.release(&said);
            out.push((said.text, released.clone()));
            entries.extend(released);
        }
        let rest = list.finish(finish);
        entries.extend(rest.clone());
        out.push((String::new(), rest));
        let token = |e: &Entry| if e.token.bytes.len() == 1 { e.token.bytes[0].into() } else { 256 };
        let named = out.into_iter().map(|(text, list)| (text, list.iter().map(token).collect()));
        (named.collect(), entries.iter().map(|e| e.offset).collect())
    }

    fn check(tokens: &[u32], stop: &str, expected: &[(&str, &[u32])], offsets: &[usize]) {
        let expected: Vec<(String, Vec<u32>)> =
            expected.iter().map(|(text, list)| ((*text).to_owned(), list.to_vec())).collect();
        assert_eq!(run(tokens, stop, 1), (expected, offsets.to_vec()), "{tokens:x?}, stop {stop:?}");
    }

    #[test]
    fn entries_travel_with_their_own_text() {
        const A: u32 = b'a' as u32;
        const B: u32 = b'b' as u32;
        check(&[A, B], "", &[("a", &[A]), ("b", &[B]), ("", &[])], &[0, 1]);
        // An invalid byte is three bytes of text: what is held back behind it does not go with it.
        check(
            &[0xff, A, 0xff, B],
            "ab",
            &[("\u{fffd}", &[0xff]), ("", &[]), ("a\u{fffd}", &[A, 0xff]), ("b", &[B]), ("", &[])],
            &[0, 1, 2, 3],
        );
        // A character of several tokens, and one that is given up, by another and by the end.
        check(&[0xc3, 0xa9, A], "", &[("", &[]), ("\u{e9}", &[0xc3, 0xa9]), ("a", &[A]), ("", &[])], &[0, 0, 1]);
        check(&[0xf0, 0x9f, A], "", &[("", &[]), ("", &[]), ("\u{fffd}a", &[0xf0, 0x9f, A]), ("", &[])], &[0, 0, 1]);
        check(&[A, 0xf0], "", &[("a", &[A]), ("\u{fffd}", &[]), ("", &[0xf0])], &[0, 1]);
        check(
            &[0xf0, 256, 0x9f, A],
            "",
            &[("", &[]), ("", &[]), ("", &[]), ("\u{fffd}a", &[0xf0, 256, 0x9f, A]), ("", &[])],
            &[0, 0, 0, 1],
        );
        // A stop string behind invalid bytes takes its own tokens along and no others.
        check(
            &[0xff, 0xff, A, B],
            "ab",
            &[("\u{fffd}", &[0xff]), ("\u{fffd}", &[0xff]), ("", &[]), ("", &[]), ("", &[])],
            &[0, 1],
        );
        check(&[0xf0, A, B], "ab", &[("", &[]), ("", &[]), ("\u{fffd}", &[0xf0]), ("", &[])], &[0]);
    }

    /// Tokens of a prompt, what is shown of it, and where each token stands.
    #[test]
    fn entries_of_a_prompt_stand_in_its_text() {
        let at = |text: &str, tokens: &[u32], logprobs: usize| {
            let ids: Vec<TokenId> = tokens.iter().map(|t| TokenId(*t)).collect();
            let logprob = |t: &TokenId| TokenLogprob { token: *t, logprob: -1.0, top: vec![(*t, -1.0)] };
            let logprobs: Vec<TokenLogprob> = ids[1..=logprobs].iter().map(logprob).collect();
            let list = of_prompt(text, &ids, &logprobs, &Bytes);
            assert!(list[0].logprob.is_none() && list[1..].iter().all(|e| e.logprob == Some(-1.0) && e.top.len() == 1));
            list.iter().map(|e| e.offset).collect::<Vec<_>>()
        };
        let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        assert_eq!(at("a\u{e9}b", &bytes("a\u{e9}b"), 3), [0, 1, 1, 2]);
        // One that was added is no part of the text; one that the text spells is.
        assert_eq!(at("ab", &[256, b'a'.into(), b'b'.into()], 2), [0, 0, 1]);
        let spelt = [vec![b'a'.into(), 256], bytes("b")].concat();
        assert_eq!(at("a<hidden>b", &spelt, 2), [0, 1, 9]);
        // A blank that the tokenizer puts in front.
        assert_eq!(at("ab", &bytes(" ab"), 2), [0, 0, 1]);
        assert_eq!(at(" ab", &bytes(" ab"), 2), [0, 1, 2]);
        // Invalid bytes, as the text of ids shows them.
        assert_eq!(at("\u{fffd}a\u{fffd}", &[0xff, b'a'.into(), 0xf0], 2), [0, 1, 2]);
        // As far as they have come.
        assert_eq!(at("abc", &bytes("abc"), 0), [0]);
        let list = of_prompt("ab", &[TokenId(97)], &[], &Bytes);
        let legacy = legacy_logprobs(&list);
        assert_eq!(
            legacy,
            json!({"tokens": ["a"], "token_logprobs": [null], "top_logprobs": [null], "text_offset": [0]})
        );
    }

    /// Bytes that begin, continue, end and break characters, with a stop string among them: the entries are the same
    /// however the tokens are spread over events, and every offset is the number of characters before the token.
    #[test]
    fn events_of_any_size_give_the_same_entries() {
        let bytes: [u32; 7] = [b'a'.into(), b'b'.into(), 0x80, 0xc3, 0xe2, 0xf0, 0x9f];
        for n in 0..bytes.len().pow(5) {
            let tokens: Vec<u32> = (0..5).map(|i| bytes[n / bytes.len().pow(i) % bytes.len()]).collect();
            let stopped = tokens.windows(2).position(|w| w == [u32::from(b'a'), u32::from(b'b')]);
            let tokens = &tokens[..stopped.map_or(5, |at| at + 2)];
            let whole: Vec<u8> = tokens.iter().map(|t| *t as u8).collect();
            for group in 1..=tokens.len() {
                let (events, offsets) = run(tokens, "ab", group);
                let all: Vec<u32> = events.iter().flat_map(|(_, list)| list.iter().copied()).collect();
                assert_eq!(all, tokens[..stopped.unwrap_or(tokens.len())], "{tokens:x?} by {group}");
                let text: String = events.iter().map(|(text, _)| text.as_str()).collect();
                assert_eq!(text, String::from_utf8_lossy(&whole[..all.len()]), "{tokens:x?} by {group}");
                let chars = |end: usize| String::from_utf8_lossy(&whole[..end]).chars().count();
                // A byte that adds no character belongs to the one before it.
                let expected = |i: usize| chars(i) - usize::from(chars(i + 1) == chars(i));
                assert_eq!(offsets, (0..all.len()).map(expected).collect::<Vec<_>>(), "{tokens:x?} by {group}");
            }
        }
    }
}
