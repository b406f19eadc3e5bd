//! Markup of figures and texts. The page is XML as well as HTML, and nothing of a result gets into it but through
//! [`escape`]. Every figure and every text carries the path it was read from:
//!
//! `data-path`, a JSON pointer; `data-over`, the pointer of what it is divided by; `data-scale`, what it is multiplied with.

use std::fmt::Write as _;

use super::doc::{Figure, Words};

/// Text that may stand anywhere in the page, values of attributes included. Characters that no page can hold are replaced.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// JSON that may stand in a script element: none of its characters means anything to HTML. Such characters occur in
/// strings only, where an escape means the same.
pub fn script_json(json: &str) -> String {
    json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
}

/// Attributes that tell where a figure is from.
pub fn source(figure: &Figure) -> String {
    let mut out = format!(" data-path=\"{}\"", escape(&figure.path));
    if let Some(over) = &figure.over {
        _ = write!(out, " data-over=\"{}\"", escape(over));
    }
    if figure.scale != 1.0 {
        _ = write!(out, " data-scale=\"{}\"", figure.scale);
    }
    out
}

/// A figure in running text.
pub fn inline(figure: &Figure) -> String {
    format!("<b{}>{}</b>", source(figure), figure.text())
}

/// A text of the result in running text.
pub fn name(words: &Words) -> String {
    format!("<bdi data-path=\"{}\">{}</bdi>", escape(&words.path), escape(&words.text))
}

/// Headings over names: to the left, as the names are. Others stand over figures.
const OVER_NAMES: [&str; 12] = [
    "arm",
    "who",
    "strategy",
    "policy",
    "proposer",
    "rung",
    "rows",
    "rows of a pass",
    "position",
    "tokens",
    "what",
    "what became of it",
];

/// A table with a head, built row by row.
pub struct Table {
    out: String,
}

impl Table {
    /// With these headings.
    pub fn new(headings: &[&str]) -> Self {
        let head = |heading: &&str| {
            let class = if OVER_NAMES.contains(heading) { " class=\"words\"" } else { "" };
            format!("<th scope=\"col\"{class}>{}</th>", escape(heading))
        };
        let heads: String = headings.iter().map(head).collect();
        Self { out: format!("<div class=\"scroll\"><table><thead><tr>{heads}</tr></thead><tbody>") }
    }

    /// Begins a row.
    pub fn row(&mut self) -> &mut Self {
        if self.out.ends_with("</td>") || self.out.ends_with("</th>") {
            self.out.push_str("</tr>");
        }
        self.out.push_str("<tr>");
        self
    }

    /// A heading that is ours.
    pub fn head(&mut self, text: &str) -> &mut Self {
        _ = write!(self.out, "<th scope=\"row\">{}</th>", escape(text));
        self
    }

    /// A heading that is the result's.
    pub fn named(&mut self, words: Option<&Words>) -> &mut Self {
        let inner = words.map_or_else(|| "?".to_owned(), name);
        _ = write!(self.out, "<th scope=\"row\">{inner}</th>");
        self
    }

    /// A figure, or a dash.
    pub fn figure(&mut self, figure: Option<Figure>) -> &mut Self {
        match figure {
            Some(figure) => _ = write!(self.out, "<td{}>{}</td>", source(&figure), figure.text()),
            None => self.out.push_str("<td>–</td>"),
        }
        self
    }

    /// A text of the result, or a dash.
    pub fn words(&mut self, words: Option<Words>) -> &mut Self {
        match words {
            Some(words) => {
                let (path, text) = (escape(&words.path), escape(&words.text));
                _ = write!(self.out, "<td class=\"words\" data-path=\"{path}\">{text}</td>");
            }
            None => self.out.push_str("<td>–</td>"),
        }
        self
    }

    /// The table; empty without a row.
    pub fn end(mut self) -> String {
        if self.out.ends_with("<tbody>") {
            return String::new();
        }
        self.out.push_str("</tr></tbody></table></div>");
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_place() {
        let hostile = "</td><script>alert('1')</script>\" onload=\"x&amp;\u{0}\u{ffff}\u{85}";
        let safe = escape(hostile);
        assert!(!safe.contains(['<', '>', '"', '\'', '\u{0}', '\u{ffff}', '\u{85}']), "{safe}");
        assert_eq!(safe.matches('\u{fffd}').count(), 3);
        assert!(safe.contains("&amp;amp;"));
        let json = r#"{"a":"</script><!-- & >"}"#;
        let inside = script_json(json);
        assert!(!inside.contains(['<', '>', '&']), "{inside}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&inside), read(json));
    }

    #[test]
    fn tables_are_closed() {
        assert_eq!(Table::new(&["a"]).end(), "");
        let mut table = Table::new(&["a<", "b"]);
        table.row().head("x").figure(None);
        table.row().named(None).words(None);
        assert_eq!(
            table.end(),
            "<div class=\"scroll\"><table><thead><tr><th scope=\"col\">a&lt;</th><th scope=\"col\">b</th></tr></thead>\
             <tbody><tr><th scope=\"row\">x</th><td>–</td></tr><tr><th scope=\"row\">?</th><td>–</td></tr></tbody></table>\
             </div>"
        );
    }
}
