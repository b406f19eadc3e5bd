//! `<function=NAME> <parameter=KEY> VALUE </parameter> </function>`: values are text, and become JSON here.
//!
//! A value lies between `<parameter=KEY>\n` and `\n</parameter>\n`, both exact; whatever else it holds is its text.

use std::collections::HashSet;

use super::kinds::{Kind, is_of};
use super::{Anomalies, CallPart, Kinds, tail};

const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const FUNCTION_END: &str = "</function>";
const VALUE_END: &str = "\n</parameter>\n";
/// Longest name that is waited for.
const NAME_BYTES: usize = 256;

pub(super) struct Xml {
    kinds: Kinds,
    /// Not consumed yet.
    text: String,
    at: At,
    /// The call that is read, and the parameters it has.
    name: String,
    keys: HashSet<String>,
}

enum At {
    /// Between calls.
    Outside,
    /// In the name of a function.
    Name,
    /// Between parameters.
    Body,
    /// In the name of a parameter.
    Key,
    /// In a value that is collected.
    Value(Kind, String),
    /// In a text that is passed on.
    Text,
    /// In a value that nobody wants.
    Dropped,
}

impl Xml {
    pub(super) fn new(kinds: Kinds) -> Self {
        Self { kinds, text: String::new(), at: At::Outside, name: String::new(), keys: HashSet::new() }
    }

    pub(super) fn push(&mut self, text: &str, anomalies: &mut Anomalies, out: &mut Vec<CallPart>) {
        self.text.push_str(text);
        while self.step(anomalies, out) {}
    }

    pub(super) fn close(&mut self, cut: bool, anomalies: &mut Anomalies, out: &mut Vec<CallPart>) {
        let rest = std::mem::take(&mut self.text);
        let at = std::mem::replace(&mut self.at, At::Outside);
        if matches!(at, At::Outside | At::Name) {
            anomalies.unterminated_calls += u64::from(matches!(at, At::Name));
            return;
        }
        anomalies.unterminated_calls += 1;
        match at {
            At::Text => {
                // What may have been the beginning of the end mark.
                let held = tail(&rest, VALUE_END);
                argument(&escaped(if cut { &rest } else { &rest[..rest.len() - held] }), out);
                if !cut {
                    argument("\"", out);
                }
            }
            At::Value(kind, key) if !cut => {
                let value = &rest[..rest.len() - tail(&rest, VALUE_END)];
                self.value(&kind, &key, value, out);
            }
            _ => {}
        }
        if !cut {
            self.end(out);
        } else {
            out.push(CallPart::End);
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.name.clear();
        self.keys.clear();
    }

    /// Consumes some text; whether that may go on.
    fn step(&mut self, anomalies: &mut Anomalies, out: &mut Vec<CallPart>) -> bool {
        match &mut self.at {
            At::Outside => match self.text.find(FUNCTION) {
                Some(at) => {
                    self.text.drain(..at + FUNCTION.len());
                    self.at = At::Name;
                    true
                }
                None => {
                    let kept = tail(&self.text, FUNCTION);
                    self.text.drain(..self.text.len() - kept);
                    false
                }
            },
            At::Name => match self.text.find('>') {
                Some(end) if end <= NAME_BYTES => {
                    self.name = self.text[..end].trim().to_owned();
                    self.text.drain(..=end);
                    anomalies.unknown_tools += u64::from(!self.kinds.knows(&self.name));
                    out.push(CallPart::Begin(self.name.clone()));
                    self.at = At::Body;
                    true
                }
                None if self.text.len() <= NAME_BYTES => false,
                _ => {
                    anomalies.unterminated_calls += 1;
                    self.at = At::Outside;
                    true
                }
            },
            At::Body => {
                let (key, end) = (self.text.find(PARAMETER), self.text.find(FUNCTION_END));
                match (key, end) {
                    (Some(key), end) if end.is_none_or(|end| key < end) => {
                        self.text.drain(..key + PARAMETER.len());
                        self.at = At::Key;
                        true
                    }
                    (_, Some(end)) => {
                        self.text.drain(..end + FUNCTION_END.len());
                        self.end(out);
                        self.forget();
                        self.at = At::Outside;
                        true
                    }
                    _ => {
                        let kept = tail(&self.text, PARAMETER).max(tail(&self.text, FUNCTION_END));
                        self.text.drain(..self.text.len() - kept);
                        false
                    }
                }
            }
            At::Key => match self.text.find(">\n") {
                Some(end) => {
                    let key = self.text[..end].to_owned();
                    self.text.drain(..end + 2);
                    self.begin(key, anomalies, out);
                    true
                }
                // A name is short; this is none.
                None if self.text.len() > NAME_BYTES => {
                    self.at = At::Body;
                    true
                }
                None => false,
            },
            At::Text => match self.text.find(VALUE_END) {
                Some(end) => {
                    argument(&escaped(&self.text[..end]), out);
                    argument("\"", out);
                    self.text.drain(..end + VALUE_END.len());
                    self.at = At::Body;
                    true
                }
                None => {
                    let certain = self.text.len() - tail(&self.text, VALUE_END);
                    argument(&escaped(&self.text[..certain]), out);
                    self.text.drain(..certain);
                    false
                }
            },
            At::Value(..) | At::Dropped => {
                let Some(end) = self.text.find(VALUE_END) else { return false };
                let value = self.text[..end].to_owned();
                self.text.drain(..end + VALUE_END.len());
                if let At::Value(kind, key) = std::mem::replace(&mut self.at, At::Body) {
                    self.value(&kind, &key, &value, out);
                }
                true
            }
        }
    }

    fn begin(&mut self, key: String, anomalies: &mut Anomalies, out: &mut Vec<CallPart>) {
        if self.keys.contains(&key) {
            anomalies.duplicate_parameters += 1;
            self.at = At::Dropped;
            return;
        }
        self.at = match self.kinds.of(&self.name, &key) {
            Kind::Text => {
                self.key(&key, out);
                argument("\"", out);
                At::Text
            }
            kind => At::Value(kind, key),
        };
    }

    /// `{"KEY":` or `,"KEY":`.
    fn key(&mut self, key: &str, out: &mut Vec<CallPart>) {
        let open = if self.keys.is_empty() { '{' } else { ',' };
        argument(&format!("{open}\"{}\":", escaped(key)), out);
        self.keys.insert(key.to_owned());
    }

    fn value(&mut self, kind: &Kind, key: &str, value: &str, out: &mut Vec<CallPart>) {
        self.key(key, out);
        match kind {
            Kind::Json(types) | Kind::Either(types) if is_of(value, types) => argument(value, out),
            _ => argument(&format!("\"{}\"", escaped(value)), out),
        }
    }

    fn end(&mut self, out: &mut Vec<CallPart>) {
        argument(if self.keys.is_empty() { "{}" } else { "}" }, out);
        out.push(CallPart::End);
    }
}

/// The inside of a JSON string.
fn escaped(text: &str) -> String {
    let quoted = serde_json::to_string(text).expect("a string serialises");
    quoted[1..quoted.len() - 1].to_owned()
}

fn argument(text: &str, out: &mut Vec<CallPart>) {
    match out.last_mut() {
        _ if text.is_empty() => {}
        Some(CallPart::Arguments(all)) => all.push_str(text),
        _ => out.push(CallPart::Arguments(text.to_owned())),
    }
}
