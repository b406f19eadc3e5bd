//! `{"name": NAME, "arguments": {...}}`, alone, in a list, or one behind the other: arguments are passed on as they are, as
//! far as they are JSON; from there on they are closed. `parameters` is another name of `arguments`. What stands between the
//! objects does not count.

use super::strict::Strict;
use super::{Anomalies, CallPart, Kinds};

/// Arguments that come before the name, or as a string, wait for it; so does any other member, to be passed over.
pub(super) struct Json {
    kinds: Kinds,
    at: At,
    key: String,
    name: Option<String>,
    /// The call has been said.
    begun: bool,
    /// Arguments so far, said or not.
    arguments: String,
    /// Where they are.
    strict: Strict,
    /// What came of them is no JSON, and no more of them counts.
    broken: bool,
    /// Bytes of them that were said.
    said: usize,
    has_arguments: bool,
}

enum At {
    /// Between objects.
    Outside,
    /// Before a member, or the end.
    Key,
    /// In a member's name, its quotes included.
    InKey(Scan),
    Colon,
    /// Before a value.
    Before,
    /// In it.
    Value {
        which: Which,
        scan: Scan,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Name,
    /// An object, passed on.
    Arguments,
    /// A string that holds the object.
    Quoted,
    Other,
}

/// Where a JSON value ends.
#[derive(Default)]
struct Scan {
    text: String,
    depth: usize,
    string: bool,
    escape: bool,
}

impl Scan {
    /// Takes a character of the value; whether that was its last.
    fn ends(&mut self, c: char) -> bool {
        self.text.push(c);
        if self.string {
            match c {
                _ if self.escape => self.escape = false,
                '\\' => self.escape = true,
                '"' => self.string = false,
                _ => {}
            }
            return !self.string && self.depth == 0;
        }
        match c {
            '"' => self.string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth -= 1;
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }

    /// Whether it is a number or a word, which end at what follows them.
    fn is_word(&self) -> bool {
        !self.string && self.depth == 0
    }
}

impl Json {
    pub(super) fn new(kinds: Kinds) -> Self {
        Self {
            kinds,
            at: At::Outside,
            key: String::new(),
            name: None,
            begun: false,
            arguments: String::new(),
            strict: Strict::new(),
            broken: false,
            said: 0,
            has_arguments: false,
        }
    }

    pub(super) fn push(&mut self, text: &str, anomalies: &mut Anomalies, out: &mut Vec<CallPart>) {
        for c in text.chars() {
            self.take(c, anomalies, out);
        }
        self.say(anomalies, out);
    }

    pub(super) fn close(&mut self, cut: bool, anomalies: &mut Anomalies, out: &mut Vec<CallPart>) {
        if matches!(self.at, At::Outside) {
            return;
        }
        anomalies.unterminated_calls += 1;
        if !cut && self.name.is_some() {
            return self.end(anomalies, out);
        }
        if self.begun {
            out.push(CallPart::End);
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.at = At::Outside;
        self.name = None;
        self.begun = false;
        self.arguments.clear();
        self.strict = Strict::new();
        self.broken = false;
        self.said = 0;
        self.has_arguments = false;
    }

    fn take(&mut self, c: char, anomalies: &mut Anomalies, out: &mut Vec<CallPart>) {
        let space = c.is_ascii_whitespace();
        match &mut self.at {
            At::Outside if c == '{' => self.at = At::Key,
            At::Outside => {}
            At::Key => match c {
                '"' => {
                    let mut scan = Scan::default();
                    scan.ends(c);
                    self.at = At::InKey(scan);
                }
                '}' => self.end(anomalies, out),
                _ => {}
            },
            At::InKey(scan) => {
                if scan.ends(c) {
                    self.key = serde_json::from_str(&scan.text).unwrap_or_default();
                    self.at = At::Colon;
                }
            }
            At::Colon if c == ':' => self.at = At::Before,
            At::Colon => {}
            At::Before if space => {}
            // There is no value.
            At::Before if matches!(c, ',' | '}' | ']') => {
                self.at = At::Key;
                if c == '}' {
                    self.end(anomalies, out);
                }
            }
            At::Before => {
                let which = match (self.key.as_str(), c) {
                    ("name", '"') if self.name.is_none() => Which::Name,
                    ("arguments" | "parameters", '{') if !self.has_arguments => Which::Arguments,
                    ("arguments" | "parameters", '"') if !self.has_arguments => Which::Quoted,
                    _ => Which::Other,
                };
                self.has_arguments |= matches!(which, Which::Arguments | Which::Quoted);
                let mut scan = Scan::default();
                scan.ends(c);
                if which == Which::Arguments {
                    scan.text.clear();
                }
                self.at = At::Value { which, scan };
                if which == Which::Arguments {
                    self.argue(c);
                }
            }
            At::Value { scan, .. } if scan.is_word() && (matches!(c, ',' | '}' | ']') || space) => {
                self.at = At::Key;
                if c == '}' {
                    self.end(anomalies, out);
                }
            }
            At::Value { which, scan } => {
                let (which, ends) = (*which, scan.ends(c));
                if which == Which::Arguments {
                    scan.text.clear();
                }
                let text = if ends { std::mem::take(&mut scan.text) } else { String::new() };
                if ends {
                    self.at = At::Key;
                }
                match which {
                    Which::Arguments => self.argue(c),
                    Which::Name if ends => self.name = serde_json::from_str(&text).ok(),
                    Which::Quoted if ends => {
                        let text: String = serde_json::from_str(&text).unwrap_or_default();
                        text.chars().for_each(|c| self.argue(c));
                    }
                    Which::Name | Which::Quoted | Which::Other => {}
                }
                if ends && matches!(which, Which::Arguments | Which::Quoted) {
                    anomalies.unterminated_calls += u64::from(self.complete());
                }
            }
        }
    }

    /// A character of the arguments. A control character that a string should have had as an escape becomes one.
    fn argue(&mut self, c: char) {
        if self.broken {
            return;
        }
        if c < ' ' && self.strict.in_string() {
            let escape = format!("\\u{:04x}", u32::from(c));
            self.broken |= !escape.chars().all(|c| self.strict.take(c));
            self.arguments.push_str(&escape);
        } else if self.strict.take(c) {
            self.arguments.push(c);
        } else {
            self.broken = true;
        }
    }

    /// No more of the arguments comes: what they lack is added. Whether they lacked anything.
    fn complete(&mut self) -> bool {
        let lacking = !self.strict.done();
        self.arguments.push_str(&self.strict.completion());
        self.strict = Strict::finished();
        lacking
    }

    /// Says what is certain: the call once its name is known and its arguments begin.
    fn say(&mut self, anomalies: &mut Anomalies, out: &mut Vec<CallPart>) {
        let Some(name) = &self.name else { return };
        if !self.has_arguments {
            return;
        }
        if !std::mem::replace(&mut self.begun, true) {
            anomalies.unknown_tools += u64::from(!self.kinds.knows(name));
            out.push(CallPart::Begin(name.clone()));
        }
        if self.said < self.arguments.len() {
            out.push(CallPart::Arguments(self.arguments[self.said..].to_owned()));
            self.said = self.arguments.len();
        }
    }

    fn end(&mut self, anomalies: &mut Anomalies, out: &mut Vec<CallPart>) {
        if self.name.is_none() {
            // An object that names nothing calls nothing.
            anomalies.unterminated_calls += 1;
        } else {
            if !std::mem::replace(&mut self.has_arguments, true) {
                self.strict = Strict::finished();
                self.arguments.push_str("{}");
            }
            // What lacks its end here was counted when the text ended.
            self.complete();
            self.say(anomalies, out);
            out.push(CallPart::End);
        }
        self.forget();
    }
}
