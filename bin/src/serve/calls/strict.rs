//! A JSON object as it comes, a character at a time: whether what there is begins one, and what would make a whole one of
//! it. Source of the grammar: RFC 8259; a surrogate must have its pair, as in most readers.

/// Levels that readers of JSON commonly take.
const DEPTH_MAX: usize = 100;

/// Where an object is.
#[derive(Debug)]
pub(super) struct Strict {
    /// What ends the levels that are open.
    open: Vec<char>,
    at: At,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// Before the object.
    Start,
    /// Behind `{`.
    KeyOrEnd,
    /// Behind a `,` between members.
    Key,
    Colon,
    Value,
    /// Behind `[`.
    ValueOrEnd,
    /// Behind a value.
    More,
    String {
        key: bool,
        escape: Escape,
    },
    Number(Number),
    /// In `true`, `false` or `null`, before these characters.
    Word(&'static str),
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Escape {
    No,
    /// Behind `\`.
    Slash,
    /// In `\uXXXX` with so many digits to come; `low`: it is the second of a pair.
    Hex {
        left: u8,
        value: u16,
        low: bool,
    },
    /// Behind the first of a pair.
    High,
    /// And the `\` of the second.
    HighSlash,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

impl Number {
    fn next(self, c: char) -> Option<Self> {
        match (self, c) {
            (Self::Minus, '0') => Some(Self::Zero),
            (Self::Minus, '1'..='9') | (Self::Whole, '0'..='9') => Some(Self::Whole),
            (Self::Zero | Self::Whole, '.') => Some(Self::Point),
            (Self::Point | Self::Fraction, '0'..='9') => Some(Self::Fraction),
            (Self::Zero | Self::Whole | Self::Fraction, 'e' | 'E') => Some(Self::E),
            (Self::E, '+' | '-') => Some(Self::Sign),
            (Self::E | Self::Sign | Self::Exponent, '0'..='9') => Some(Self::Exponent),
            _ => None,
        }
    }

    fn is_whole(self) -> bool {
        matches!(self, Self::Zero | Self::Whole | Self::Fraction | Self::Exponent)
    }
}

impl Strict {
    pub(super) fn new() -> Self {
        Self { open: Vec::new(), at: At::Start }
    }

    /// Where an object is that is whole.
    pub(super) fn finished() -> Self {
        Self { open: Vec::new(), at: At::Done }
    }

    /// Inside of a string and of no escape: here a control character could be written as an escape.
    pub(super) fn in_string(&self) -> bool {
        matches!(self.at, At::String { escape: Escape::No, .. })
    }

    /// The object is whole.
    pub(super) fn done(&self) -> bool {
        self.at == At::Done
    }

    /// Takes a character; where it cannot follow, nothing is taken and the answer is `false`.
    pub(super) fn take(&mut self, c: char) -> bool {
        let space = matches!(c, ' ' | '\t' | '\n' | '\r');
        let next = match self.at {
            At::String { key, escape } => self.string(key, escape, c),
            At::Number(number) => match number.next(c) {
                Some(next) => Some(At::Number(next)),
                None if number.is_whole() => {
                    let at = std::mem::replace(&mut self.at, At::More);
                    let taken = self.take(c);
                    if !taken {
                        self.at = at;
                    }
                    return taken;
                }
                None => None,
            },
            At::Word(rest) => rest.strip_prefix(c).map(|rest| if rest.is_empty() { At::More } else { At::Word(rest) }),
            at if space => Some(at),
            At::Start if c == '{' => self.enter(c),
            At::KeyOrEnd | At::Key if c == '"' => Some(At::String { key: true, escape: Escape::No }),
            At::KeyOrEnd | At::ValueOrEnd if Some(&c) == self.open.last() => self.leave(),
            At::Colon if c == ':' => Some(At::Value),
            At::Value | At::ValueOrEnd => self.value(c),
            At::More if c == ',' => Some(if self.open.last() == Some(&'}') { At::Key } else { At::Value }),
            At::More if Some(&c) == self.open.last() => self.leave(),
            _ => None,
        };
        if let Some(next) = next {
            self.at = next;
        }
        next.is_some()
    }

    fn enter(&mut self, c: char) -> Option<At> {
        if self.open.len() >= DEPTH_MAX {
            return None;
        }
        let (close, at) = if c == '{' { ('}', At::KeyOrEnd) } else { (']', At::ValueOrEnd) };
        self.open.push(close);
        Some(at)
    }

    fn leave(&mut self) -> Option<At> {
        self.open.pop();
        Some(if self.open.is_empty() { At::Done } else { At::More })
    }

    fn value(&mut self, c: char) -> Option<At> {
        match c {
            '"' => Some(At::String { key: false, escape: Escape::No }),
            '{' | '[' => self.enter(c),
            '-' => Some(At::Number(Number::Minus)),
            '0'..='9' => Number::Minus.next(c).map(At::Number),
            't' => Some(At::Word("rue")),
            'f' => Some(At::Word("alse")),
            'n' => Some(At::Word("ull")),
            _ => None,
        }
    }

    fn string(&self, key: bool, escape: Escape, c: char) -> Option<At> {
        let escape = match (escape, c) {
            (Escape::No, '"') => return Some(if key { At::Colon } else { At::More }),
            (Escape::No, '\\') => Escape::Slash,
            (Escape::No, c) if c >= ' ' => Escape::No,
            (Escape::Slash, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Escape::No,
            (Escape::Slash, 'u') => Escape::Hex { left: 4, value: 0, low: false },
            (Escape::HighSlash, 'u') => Escape::Hex { left: 4, value: 0, low: true },
            (Escape::High, '\\') => Escape::HighSlash,
            (Escape::Hex { left, value, low }, c) => {
                let value = value << 4 | c.to_digit(16)? as u16;
                let left = left - 1;
                // Whether it is the second of a pair is certain with its second digit.
                let second = left <= 2 && (0xdc..=0xdf).contains(&(value >> (8 - 4 * left.min(2))));
                let fits = match (low, left) {
                    (true, 3) => value == 0xd,
                    (low, _) => left == 3 || second == low,
                };
                match (fits, left) {
                    (false, _) => return None,
                    (true, 0) if !low && (0xd800..0xdc00).contains(&value) => Escape::High,
                    (true, 0) => Escape::No,
                    (true, _) => Escape::Hex { left, value, low },
                }
            }
            _ => return None,
        };
        Some(At::String { key, escape })
    }

    /// What makes a whole object of what there is.
    pub(super) fn completion(&self) -> String {
        let mut out = String::new();
        match self.at {
            At::Start => out.push_str("{}"),
            At::Key => out.push_str("\"\":null"),
            At::Colon => out.push_str(":null"),
            At::Value => out.push_str("null"),
            At::KeyOrEnd | At::ValueOrEnd | At::More | At::Done => {}
            At::Number(number) => out.push_str(if number.is_whole() { "" } else { "0" }),
            At::Word(rest) => out.push_str(rest),
            At::String { key, escape } => {
                match escape {
                    Escape::No => {}
                    Escape::Slash => out.push('\\'),
                    Escape::High => out.push_str("\\udc00"),
                    Escape::HighSlash => out.push_str("udc00"),
                    Escape::Hex { left, low: true, .. } => out.push_str(&"dc00"[4 - usize::from(left)..]),
                    Escape::Hex { left, value, low: false } => {
                        out.push_str(&"0000"[4 - usize::from(left)..]);
                        if (0xd800..0xdc00).contains(&(u32::from(value) << (4 * left))) {
                            out.push_str("\\udc00");
                        }
                    }
                }
                out.push_str(if key { "\":null" } else { "\"" });
            }
        }
        out.extend(self.open.iter().rev());
        out
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;

    const WHOLE: &str = r#" {"a":"\u00e9\ud83d\ude00\\\"\n/","b" : [ ] ,"c":[-0.5e+10,0,12E3,true,false,null,{}, "",[1 ,2]],"":{"\ud800\udfff":1.0} } "#;

    fn object(text: &str) -> bool {
        serde_json::from_str::<Map<String, Value>>(text).is_ok()
    }

    #[test]
    fn every_beginning_of_an_object_is_made_whole() {
        assert!(object(WHOLE));
        let mut strict = Strict::new();
        for (at, c) in WHOLE.char_indices() {
            let text = format!("{}{}", &WHOLE[..at], strict.completion());
            assert!(object(&text), "{text}");
            assert!(strict.take(c), "{c:?} behind {:?}", &WHOLE[..at]);
        }
        assert!(strict.done() && strict.completion().is_empty());
    }

    /// A reader of the whole text is asked at every place with every character, whether any text could follow.
    #[test]
    fn a_character_is_taken_where_it_may_stand_and_nowhere_else() {
        let others: Vec<char> = "{}[],:\"\\/019-+.eEtrufalsnbdcDx \n\u{1}\u{e9}".chars().collect();
        let mut strict = Strict::new();
        for (at, c) in WHOLE.char_indices() {
            for &other in &others {
                let mut tried = Strict { open: strict.open.clone(), at: strict.at };
                let text = format!("{}{other}", &WHOLE[..at]);
                if tried.take(other) {
                    assert!(object(&format!("{text}{}", tried.completion())), "{text:?} was taken");
                } else {
                    assert_eq!((&tried.open, tried.at), (&strict.open, strict.at), "{text:?} was not taken");
                    let ends = |tail: &str| object(&format!("{text}{tail}"));
                    let closers: String = strict.open.iter().rev().collect();
                    let inner = closers.get(1..).unwrap_or_default();
                    let tails = ["", "\"", "\":0", "0", ":0", "null", "\"\":0", "00\"", "000\"", "0000\"", "0000\":0"];
                    for tail in tails {
                        for close in [closers.as_str(), inner] {
                            assert!(!ends(&format!("{tail}{close}")), "{text:?} could go on with {tail}{close}");
                        }
                    }
                }
            }
            assert!(strict.take(c));
        }
    }

    #[test]
    fn levels_have_a_limit() {
        let mut strict = Strict::new();
        let text = format!("{{\"a\":{}", "[".repeat(200));
        let taken = text.chars().take_while(|c| strict.take(*c)).count();
        assert_eq!(taken, 5 + DEPTH_MAX - 1);
        assert!(object(&format!("{}{}", &text[..taken], strict.completion())));
    }
}
