//! `{"name": NAME, "arguments": {...}}`, alone, in a list, or one behind the other: arguments are passed on as they are.
//! `parameters` is another name of `arguments`. What stands between the objects does not count.

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
            if self.has_arguments {
                let end = completion(&self.arguments);
                self.arguments.push_str(&end);
            }
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
                self.has_arguments |= which == Which::Arguments;
                let mut scan = Scan::default();
                scan.ends(c);
                if which == Which::Arguments {
                    self.arguments.push(c);
                    scan.text.clear();
                }
                self.at = At::Value { which, scan };
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
                    self.arguments.push(c);
                    scan.text.clear();
                }
                if ends {
                    let text = std::mem::take(&mut scan.text);
                    self.at = At::Key;
                    match which {
                        Which::Name => self.name = serde_json::from_str(&text).ok(),
                        Which::Quoted => {
                            self.arguments = serde_json::from_str(&text).unwrap_or_default();
                            self.has_arguments = !self.arguments.is_empty();
                        }
                        Which::Arguments | Which::Other => {}
                    }
                }
            }
        }
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
            if !self.has_arguments {
                self.has_arguments = true;
                self.arguments.push_str("{}");
            }
            self.say(anomalies, out);
            out.push(CallPart::End);
        }
        self.forget();
    }
}

/// What makes the beginning of an object a whole one, as far as anything does.
fn completion(text: &str) -> String {
    let mut open = Vec::new();
    let (mut string, mut escape) = (false, false);
    for c in text.chars() {
        match c {
            _ if escape => escape = false,
            '\\' if string => escape = true,
            '"' => string = !string,
            '{' | '[' if !string => open.push(if c == '{' { '}' } else { ']' }),
            '}' | ']' if !string => drop(open.pop()),
            _ => {}
        }
    }
    let closers: String = open.iter().rev().collect();
    let quote = if string { "\"" } else { "" };
    let escaped = ["", "\\", "0", "00", "000", "0000"];
    let rests = ["", "null", ":null", "\"\":null", "0", "rue", "ue", "e", "alse", "lse", "se", "ull", "ll", "l"];
    let ends = escaped.iter().flat_map(|e| rests.iter().map(move |r| (e, r)));
    let whole = ends.map(|(e, r)| format!("{e}{quote}{r}{closers}")).find(|end| {
        serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&format!("{text}{end}")).is_ok()
    });
    whole.unwrap_or_default()
}
