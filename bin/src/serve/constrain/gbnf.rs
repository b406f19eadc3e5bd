//! GBNF grammars, rewritten as Lark. Every character becomes a terminal of its own: a lexer that takes the longest
//! match would else refuse what the rules allow.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

/// Nested groups.
const DEPTH_MAX: usize = 64;
/// Repetitions of an item.
const REPEAT_MAX: u32 = 2000;

/// Rewrites a grammar; its start is `root`.
///
/// # Errors
/// What is wrong with it, with the line.
pub(super) fn to_lark(source: &str) -> Result<String, String> {
    let mut parser = Parser { chars: source.chars().collect(), at: 0, names: HashMap::new(), used: Vec::new() };
    let mut rules = Vec::new();
    let mut defined = HashSet::new();
    parser.space(true);
    while parser.at < parser.chars.len() {
        let name = parser.name().ok_or_else(|| parser.error("expected the name of a rule"))?;
        parser.space(true);
        if !parser.takes("::=") {
            return Err(parser.error(&format!("expected ::= after {name}")));
        }
        let body = parser.alternatives(0)?;
        if !defined.insert(name.clone()) {
            return Err(parser.error(&format!("the rule {name} stands twice")));
        }
        rules.push((parser.rule(&name), body));
        parser.space(true);
    }
    if !defined.contains("root") {
        return Err(String::from("there is no rule called root"));
    }
    if let Some((name, line)) = parser.used.iter().find(|(name, _)| !defined.contains(name)) {
        return Err(format!("line {line}: the rule {name} is used and not defined"));
    }
    let start = parser.rule("root");
    let mut out = format!("start: {start}\n");
    for (name, body) in rules {
        let _ = writeln!(out, "{name}: {body}");
    }
    Ok(out)
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    /// Names of Lark by names of the grammar.
    names: HashMap<String, String>,
    /// Rules that are used, with the line.
    used: Vec<(String, usize)>,
}

impl Parser {
    fn line(&self) -> usize {
        1 + self.chars[..self.at.min(self.chars.len())].iter().filter(|c| **c == '\n').count()
    }

    fn error(&self, message: &str) -> String {
        format!("line {}: {message}", self.line())
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn takes(&mut self, text: &str) -> bool {
        let there = text.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        if there {
            self.at += text.chars().count();
        }
        there
    }

    /// Skips blanks and comments, and newlines where a rule may go on.
    fn space(&mut self, newlines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if newlines => self.at += 1,
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                _ => break,
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
            self.at += 1;
        }
        (self.at > start).then(|| self.chars[start..self.at].iter().collect())
    }

    /// The name of a rule in Lark.
    fn rule(&mut self, name: &str) -> String {
        let next = self.names.len();
        self.names.entry(name.to_owned()).or_insert_with(|| format!("r{next}")).clone()
    }

    fn alternatives(&mut self, depth: usize) -> Result<String, String> {
        if depth > DEPTH_MAX {
            return Err(self.error(&format!("groups are nested more than {DEPTH_MAX} deep")));
        }
        let mut out = self.sequence(depth)?;
        loop {
            self.space(depth > 0);
            // The next alternative may stand on a line of its own.
            let before = self.at;
            self.space(true);
            if !self.takes("|") {
                self.at = if depth > 0 { self.at } else { before };
                return Ok(out);
            }
            self.space(true);
            out.push_str(" | ");
            out.push_str(&self.sequence(depth)?);
        }
    }

    fn sequence(&mut self, depth: usize) -> Result<String, String> {
        let mut items = Vec::new();
        loop {
            self.space(depth > 0);
            let Some(c) = self.peek() else { break };
            let item = match c {
                '"' => self.literal()?,
                '[' => self.class()?,
                '.' => {
                    self.at += 1;
                    String::from("/(?s:.)/")
                }
                '(' => {
                    self.at += 1;
                    let inner = self.alternatives(depth + 1)?;
                    self.space(true);
                    if !self.takes(")") {
                        return Err(self.error("a group is not closed"));
                    }
                    format!("({inner})")
                }
                c if c.is_ascii_alphanumeric() || c == '_' => {
                    let start = self.at;
                    let line = self.line();
                    let name = self.name().expect("it begins here");
                    // At the start of a line it may be the next rule.
                    let after = self.at;
                    self.space(true);
                    if self.takes("::=") {
                        self.at = start;
                        break;
                    }
                    self.at = after;
                    let rule = self.rule(&name);
                    self.used.push((name, line));
                    rule
                }
                '|' | ')' | '\n' | '\r' => break,
                other => {
                    return Err(
                        self.error(&format!("{} does not belong here", crate::serve::error::quote(&other.to_string())))
                    );
                }
            };
            items.push(format!("{item}{}", self.repeat()?));
        }
        if items.is_empty() { Ok(String::from("\"\"")) } else { Ok(items.join(" ")) }
    }

    fn repeat(&mut self) -> Result<String, String> {
        for op in ["*", "+", "?"] {
            if self.takes(op) {
                return Ok(op.to_owned());
            }
        }
        if !self.takes("{") {
            return Ok(String::new());
        }
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit() || c == ',' || c == ' ') {
            self.at += 1;
        }
        let inner: String = self.chars[start..self.at].iter().filter(|c| **c != ' ').collect();
        if !self.takes("}") {
            return Err(self.error("expected {n}, {n,} or {n,m}"));
        }
        let count = |text: &str| text.parse::<u32>().ok().filter(|n| *n <= REPEAT_MAX);
        let range = match inner.split_once(',') {
            None => count(&inner).map(|n| format!("{{{n},{n}}}")),
            Some((low, "")) => count(low).map(|low| format!("{{{low},}}")),
            Some((low, high)) => match (count(if low.is_empty() { "0" } else { low }), count(high)) {
                (Some(low), Some(high)) if low <= high => Some(format!("{{{low},{high}}}")),
                _ => None,
            },
        };
        range.ok_or_else(|| self.error(&format!("{{{inner}}} is no repetition; counts go up to {REPEAT_MAX}")))
    }

    /// One character of a literal or a class, escapes resolved.
    fn char(&mut self, what: &str) -> Result<char, String> {
        let Some(c) = self.peek().filter(|c| *c != '\n') else {
            return Err(self.error(&format!("{what} is not closed")));
        };
        self.at += 1;
        if c != '\\' {
            return Ok(c);
        }
        let Some(escaped) = self.peek() else { return Err(self.error(&format!("{what} is not closed"))) };
        self.at += 1;
        let digits = match escaped {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' | '/' => return Ok(escaped),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return Err(self.error("an escape is none of \\n \\r \\t \\\\ \\\" \\[ \\] \\xHH \\uHHHH \\UHHHHHHHH")),
        };
        let text: String = self.chars.iter().skip(self.at).take(digits).collect();
        self.at += text.chars().count();
        let code = u32::from_str_radix(&text, 16).ok().filter(|_| text.chars().count() == digits);
        code.and_then(char::from_u32).ok_or_else(|| self.error("an escape names no character"))
    }

    fn literal(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut out = Vec::new();
        while self.peek() != Some('"') {
            let c = self.char("a literal")?;
            out.push(format!("/{}/", escape(c)));
        }
        self.at += 1;
        match out.len() {
            0 => Ok(String::from("\"\"")),
            1 => Ok(out.remove(0)),
            // One item for what may follow it, such as a repetition.
            _ => Ok(format!("({})", out.join(" "))),
        }
    }

    fn class(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut out = String::from("/[");
        if self.takes("^") {
            out.push('^');
        }
        let mut any = false;
        while self.peek() != Some(']') {
            any = true;
            let low = self.char("a class")?;
            out.push_str(&escape(low));
            if self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|c| *c != ']') {
                self.at += 1;
                let high = self.char("a class")?;
                if high < low {
                    return Err(self.error("a range ends before it begins"));
                }
                let _ = write!(out, "-{}", escape(high));
            }
        }
        self.at += 1;
        if !any {
            return Err(self.error("a class is empty"));
        }
        out.push_str("]/");
        Ok(out)
    }
}

/// A character as it stands in a regular expression.
fn escape(c: char) -> String {
    if c.is_ascii_alphanumeric() || c == ' ' || !c.is_ascii() {
        // Letters beyond ASCII stand for themselves.
        c.to_string()
    } else {
        format!("\\x{:02x}", u32::from(c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_rewritten_character_by_character() {
        let source = "# a comment\nroot ::= \"ab\" item* (\n  [a-z0-9_] | [^\"\\\\\\x00-\\x1F]\n)? # end\nitem ::= \"\\n\"{2}\n  | .{1,3} root-2\nroot-2 ::= \"\"";
        let expected = "start: r1\nr1: (/a/ /b/) r0* (/[a-z0-9\\x5f]/ | /[^\\x22\\x5c\\x00-\\x1f]/)?\nr0: /\\x0a/{2,2} | /(?s:.)/{1,3} r2\nr2: \"\"\n";
        assert_eq!(to_lark(source).unwrap(), expected);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (source, message) in [
            ("", "no rule called root"),
            ("start ::= \"a\"", "no rule called root"),
            ("root ::= other", "line 1: the rule other is used and not defined"),
            ("root ::= \"a\nb\"", "line 1: a literal is not closed"),
            ("root ::= (\"a\"", "a group is not closed"),
            ("root ::= [", "a class is not closed"),
            ("root ::= []", "a class is empty"),
            ("root ::= [z-a]", "ends before it begins"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule root stands twice"),
            ("root ::= \"a\"{3,1}", "no repetition"),
            ("root ::= \"a\"{99999}", "no repetition"),
            ("root ::= \"\\q\"", "an escape is none"),
            ("root ::= \"\\ud800\"", "names no character"),
            ("root ::= $", "'$' does not belong here"),
            ("root = \"a\"", "expected ::= after root"),
            ("::= \"a\"", "expected the name of a rule"),
        ] {
            let error = to_lark(source).unwrap_err();
            assert!(error.contains(message), "{source:?}: {error}");
        }
        assert!(
            to_lark(&format!("root ::= {}\"a\"{}", "(".repeat(70), ")".repeat(70))).unwrap_err().contains("nested")
        );
    }
}
