//! JSON and printed values as Python writes them: models were trained on prompts made by `json.dumps` and `str`.

use serde_json::Value;

/// Arguments of `json.dumps`.
#[derive(Clone, Debug, Default)]
pub(super) struct Style {
    /// Text of one level; `None` = one line.
    pub indent: Option<String>,
    /// Escape everything outside ASCII.
    pub ascii: bool,
    /// Order keys by name.
    pub sort_keys: bool,
    /// Between items, between key and value; default `", "` (`","` when indented) and `": "`.
    pub separators: Option<[String; 2]>,
}

/// `json.dumps(value, ensure_ascii=False)` with a style. Nothing is escaped for HTML; keys keep their order. `None` if
/// it takes more than `room` bytes.
pub(super) fn dumps(value: &Value, style: &Style, room: usize) -> Option<String> {
    let separators = style.separators.clone().unwrap_or_else(|| {
        let item = if style.indent.is_some() { "," } else { ", " };
        [item.to_owned(), ": ".to_owned()]
    });
    let mut writer = Writer { style, separators, out: String::new(), room };
    writer.value(value, 0);
    (writer.out.len() <= room).then_some(writer.out)
}

struct Writer<'a> {
    style: &'a Style,
    separators: [String; 2],
    out: String,
    /// Nothing more is written once `out` is longer.
    room: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) {
        match value {
            _ if self.out.len() > self.room => {}
            Value::Null => self.out.push_str("null"),
            Value::Bool(b) => self.out.push_str(if *b { "true" } else { "false" }),
            Value::Number(n) => self.out.push_str(&number(n)),
            Value::String(s) => self.string(s),
            Value::Array(items) if items.is_empty() => self.out.push_str("[]"),
            Value::Object(map) if map.is_empty() => self.out.push_str("{}"),
            Value::Array(items) => {
                self.out.push('[');
                for (i, item) in items.iter().enumerate() {
                    self.separate(i, depth + 1);
                    self.value(item, depth + 1);
                }
                self.newline(depth);
                self.out.push(']');
            }
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.style.sort_keys {
                    entries.sort_by_key(|e| e.0);
                }
                self.out.push('{');
                for (i, (key, item)) in entries.into_iter().enumerate() {
                    self.separate(i, depth + 1);
                    self.string(key);
                    self.out.push_str(&self.separators[1]);
                    self.value(item, depth + 1);
                }
                self.newline(depth);
                self.out.push('}');
            }
        }
    }

    fn separate(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out.push_str(&self.separators[0]);
        }
        self.newline(depth);
    }

    fn newline(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..depth {
                if self.out.len() > self.room {
                    return;
                }
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{C}' => self.out.push_str("\\f"),
                c if c < ' ' || self.style.ascii && c >= '\u{7F}' => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn number(n: &serde_json::Number) -> String {
    match n.as_f64() {
        Some(f) if n.is_f64() => python_float(f),
        _ => n.to_string(),
    }
}

/// `repr(f)`: shortest digits; exponent form below 1e-4 and from 1e16 on.
pub(super) fn python_float(f: f64) -> String {
    if !f.is_finite() {
        return if f.is_nan() {
            "nan"
        } else if f > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .to_owned();
    }
    if f != 0.0 && !(1e-4..1e16).contains(&f.abs()) {
        let text = format!("{f:e}");
        let (digits, exponent) = text.split_once('e').expect("the exponent form has an e");
        let exponent: i32 = exponent.parse().expect("the exponent is a number");
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let text = f.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

/// `repr(value)` of lists, dicts and what is in them.
pub(super) fn python_repr(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(n) => number(n),
        Value::String(s) => repr_string(s),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(python_repr).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(map) => {
            let items: Vec<String> =
                map.iter().map(|(k, v)| format!("{}: {}", repr_string(k), python_repr(v))).collect();
            format!("{{{}}}", items.join(", "))
        }
    }
}

fn repr_string(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c < ' ' || ('\u{7F}'..'\u{A1}').contains(&c) || c == '\u{AD}' => {
                out.push_str(&format!("\\x{:02x}", c as u32))
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dumps_like_python() {
        let value =
            json!({"b": [1, 2.0, -0.5, true, null], "a": {"k": "<é & 'q' \"\\\n\u{1}\u{7F}>"}, "e": [], "f": {}});
        assert_eq!(
            dumps(&value, &Style::default(), 200).unwrap(),
            r#"{"b": [1, 2.0, -0.5, true, null], "a": {"k": "<é & 'q' \"\\\n\u0001"#.to_owned()
                + "\u{7F}"
                + r#">"}, "e": [], "f": {}}"#
        );
        let style = Style { indent: Some("  ".to_owned()), sort_keys: true, ..Style::default() };
        assert_eq!(
            dumps(&json!({"b": [1, {}], "a": "x"}), &style, 200).unwrap(),
            "{\n  \"a\": \"x\",\n  \"b\": [\n    1,\n    {}\n  ]\n}"
        );
        let style = Style { separators: Some([",".to_owned(), ":".to_owned()]), ascii: true, ..Style::default() };
        let text = r#"{"a":["\u00e9\ud83d\ude0a",1]}"#;
        assert_eq!(dumps(&json!({"a": ["é😊", 1]}), &style, text.len()).as_deref(), Some(text));
        assert_eq!(dumps(&json!({"a": ["é😊", 1]}), &style, text.len() - 1), None);
    }

    #[test]
    fn floats_like_python() {
        for (value, expected) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1.25e-5, "1.25e-05"),
            (123456789.125, "123456789.125"),
        ] {
            assert_eq!(python_float(value), expected);
        }
    }

    #[test]
    fn repr_like_python() {
        assert_eq!(
            python_repr(&json!({"a": [true, null, 1.5, "it's", "say \"it's\"", "\n\u{1}"]})),
            r#"{'a': [True, None, 1.5, "it's", 'say "it\'s"', '\n\x01']}"#
        );
    }
}
