//! The patterns as regular expressions are the oracle of the hand-written splitters.

use std::sync::LazyLock;

use fancy_regex::Regex;
use proptest::prelude::*;

use super::class::{Char, Class};
use super::*;

const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

/// The patterns of a pre-tokenizer, applied one after the other.
fn patterns(pre: Pre) -> &'static [Regex] {
    static COMPILED: LazyLock<[Vec<Regex>; 5]> = LazyLock::new(|| {
        let lists: [&[&str]; 5] = [&[r"\p{N}", GPT2], &[QWEN2], &[QWEN35], &[LLAMA3], &[LLAMA3]];
        lists.map(|list| list.iter().map(|p| Regex::new(p).unwrap()).collect())
    });
    &COMPILED[pre as usize]
}

/// Letter, mark and number of the oracle's tables.
static CLASSES: LazyLock<[(Class, Regex); 3]> = LazyLock::new(|| {
    [(Class::Letter, r"\p{L}"), (Class::Mark, r"\p{M}"), (Class::Number, r"\p{N}")]
        .map(|(class, pattern)| (class, Regex::new(pattern).unwrap()))
});

/// The oracle's class of a character.
fn oracle_class(c: char) -> Class {
    let mut buffer = [0; 4];
    let text: &str = c.encode_utf8(&mut buffer);
    let found = CLASSES.iter().find(|(_, r)| r.is_match(text).unwrap());
    found.map_or(if c.is_whitespace() { Class::Space } else { Class::Other }, |f| f.0)
}

/// Matches and the text between them, as pieces.
fn isolate<'a>(regex: &Regex, text: &'a str, out: &mut Vec<&'a str>) {
    let mut from = 0;
    for found in regex.find_iter(text) {
        let found = found.unwrap();
        if found.start() > from {
            out.push(&text[from..found.start()]);
        }
        out.push(found.as_str());
        from = found.end();
    }
    if from < text.len() {
        out.push(&text[from..]);
    }
}

fn oracle<'a>(regexes: &[Regex], text: &'a str) -> Vec<&'a str> {
    let mut pieces = vec![text];
    for regex in regexes {
        let mut next = Vec::new();
        for piece in pieces {
            isolate(regex, piece, &mut next);
        }
        pieces = next;
    }
    pieces.retain(|p| !p.is_empty());
    pieces
}

fn ours(pre: Pre, text: &str) -> Vec<String> {
    let mut out = Vec::new();
    pre.split(text.as_bytes(), |p| out.push(std::str::from_utf8(p).unwrap().to_owned()));
    out
}

const ALL: [Pre; 5] = [Pre::Smollm, Pre::Qwen2, Pre::Qwen35, Pre::LlamaBpe, Pre::Pixtral];

fn check_all(text: &str) {
    for pre in ALL {
        assert_eq!(ours(pre, text), oracle(patterns(pre), text), "{} on {text:?}", pre.name());
    }
}

#[test]
fn names_round_trip_and_others_are_refused() {
    for pre in ALL {
        assert_eq!(Pre::parse(pre.name()), Ok(pre));
    }
    for name in ["", "default", "gpt-2", "QWEN2", "qwen", "llama3", "deepseek-v3"] {
        let error = Pre::parse(name).unwrap_err();
        assert_eq!(error, TextError::UnknownPre { found: name.to_owned() });
        assert!(error.to_string().contains("qwen35"), "the message lists what works: {error}");
    }
}

#[test]
fn pieces_of_each_pattern() {
    let check = |pre: Pre, text: &str, expected: &[&str]| assert_eq!(ours(pre, text), expected, "{}", pre.name());
    check(Pre::Qwen2, "x  12 y", &["x", " ", " ", "1", "2", " y"]);
    check(Pre::LlamaBpe, "12345", &["123", "45"]);
    check(Pre::Smollm, "a  12", &["a", "  ", "1", "2"]);
    check(Pre::Smollm, "\n\nx 'S's", &["\n", "\n", "x", " '", "S", "'s"]);
    check(Pre::Qwen2, "हिन्दी", &["ह", "िन", "्द", "ी"]);
    check(Pre::Qwen35, "हिन्दी", &["हिन्दी"]);
    check(Pre::Qwen35, "I'LL \r\n !?\n\n a", &["I", "'LL", " \r\n", " !?\n\n", " a"]);
}

#[test]
fn the_class_table_agrees_with_the_oracle_where_it_knows_the_character() {
    let space = Regex::new(r"\s").unwrap();
    let assigned = Regex::new(r"\P{Cn}").unwrap();
    let mut newer = 0;
    for c in '\0'..=char::MAX {
        let s = c.to_string();
        let found = Char::at(s.as_bytes(), 0).unwrap();
        assert_eq!((found.code, found.len), (c as u32, s.len()));
        assert_eq!(found.class == Class::Space, space.is_match(&s).unwrap(), "U+{:04X}", c as u32);
        if found.class == oracle_class(c) {
            continue;
        }
        assert!(!assigned.is_match(&s).unwrap(), "U+{:04X} is {:?}", c as u32, found.class);
        newer += 1;
    }
    // Characters assigned after the oracle's Unicode version; all its own classes were compared above.
    assert!(newer < 20_000, "{newer}");
    assert_eq!(UNICODE_VERSION.0, 18);
}

#[test]
fn surrogates_are_symbols() {
    let mut out = Vec::new();
    Pre::Qwen35.split(&generalised(b"ok\xED\xA0\x80ok"), |p| out.push(p.to_vec()));
    assert_eq!(out, [b"ok".to_vec(), b"\xED\xA0\x80ok".to_vec()]);
}

#[test]
fn any_bytes_become_whole_characters() {
    let check = |bytes: &[u8], expected: &[u8]| assert_eq!(generalised(bytes).as_ref(), expected, "{bytes:X?}");
    check("é😊".as_bytes(), "é😊".as_bytes());
    check(b"\xFF", "\u{FFFD}".as_bytes());
    check(b"a\xC3(b", "a\u{FFFD}(b".as_bytes());
    check(b"\xE2\x82", "\u{FFFD}\u{FFFD}".as_bytes());
    check(b"\xC0\xAF", b"/");
    check(b"\xED\xA0\x80", b"\xED\xA0\x80");
    check(b"\xF5\x80\x80\x80", "\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}".as_bytes());
    check(b"\xF4\x90\x80\x80", "\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}".as_bytes());
}

/// Strings dense in the characters that the patterns tell apart.
fn dense() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => prop::sample::select(vec![" ", "  ", "\n", "\r", "\t", "\r\n", "\u{A0}", "\u{3000}", "\u{85}", "\u{2028}"]),
        4 => prop::sample::select(vec!["'", "'s", "'S", "'re", "'LL", "'vE", "'x", "s", "l", "e", "ſ"]),
        3 => prop::sample::select(vec!["a", "Z", "é", "ß", "ह", "中", "ʰ", "ǅ"]),
        2 => prop::sample::select(vec!["\u{301}", "\u{94D}", "\u{93F}", "\u{20DD}", "\u{FE0F}"]),
        3 => prop::sample::select(vec!["0", "12", "9", "٣", "²", "Ⅷ", "①"]),
        3 => prop::sample::select(vec!["!", "?.", "/", "_", "😊", "\u{200D}", "\u{0}", "\u{E000}", "\u{378}", "\u{10FFFF}"]),
    ];
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

/// Any text of characters whose class the oracle's older tables know.
fn known(text: Vec<char>) -> String {
    text.into_iter()
        .filter(|&c| Char::at(c.encode_utf8(&mut [0; 4]).as_bytes(), 0).unwrap().class == oracle_class(c))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn dense_text_splits_like_the_patterns(text in dense()) {
        check_all(&text);
    }

    #[test]
    fn random_text_splits_like_the_patterns(text in prop::collection::vec(any::<char>(), 0..40)) {
        check_all(&known(text));
    }

    #[test]
    fn ascii_text_splits_like_the_patterns(text in "[ -~\\n\\r\\t]{0,60}") {
        check_all(&text);
    }
}
