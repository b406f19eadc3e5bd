//! calls: from what a model writes inside of a call block to names and arguments. One reader a choice; it is fed the
//! text in any pieces and its parts, joined, are the same for all.

mod json;
mod kinds;
mod strict;
mod xml;

pub(crate) use kinds::Kinds;

use engine_io::text::ToolStyle;

/// What became of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CallPart {
    /// A call of this name begins.
    Begin(String),
    /// More of its arguments: pieces of the JSON text of an object.
    Arguments(String),
    /// It is whole, or the text has ended.
    End,
}

/// What a model wrote that it should not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Anomalies {
    /// A parameter given twice; the first counts.
    pub duplicate_parameters: u64,
    /// Calls without their end, closed for it.
    pub unterminated_calls: u64,
    /// Calls of tools that the request does not have.
    pub unknown_tools: u64,
}

/// Reads the call blocks of one choice.
pub(crate) struct CallReader {
    style: Reading,
    pub anomalies: Anomalies,
}

enum Reading {
    Xml(xml::Xml),
    Json(json::Json),
}

impl CallReader {
    /// For a style; `None` where the model has none.
    pub(crate) fn new(style: ToolStyle, kinds: Kinds) -> Option<Self> {
        let style = match style {
            ToolStyle::Xml => Reading::Xml(xml::Xml::new(kinds)),
            ToolStyle::Hermes | ToolStyle::Llama3 | ToolStyle::Nemotron2 => Reading::Json(json::Json::new(kinds)),
            ToolStyle::None => return None,
        };
        Some(Self { style, anomalies: Anomalies::default() })
    }

    /// More text of the block.
    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<CallPart>) {
        match &mut self.style {
            Reading::Xml(xml) => xml.push(text, &mut self.anomalies, out),
            Reading::Json(json) => json.push(text, &mut self.anomalies, out),
        }
    }

    /// The block is over. A call that is not is closed, so that its arguments are JSON; or, where the text was `cut` by a
    /// limit, left as it is.
    pub(crate) fn close(&mut self, cut: bool, out: &mut Vec<CallPart>) {
        match &mut self.style {
            Reading::Xml(xml) => xml.close(cut, &mut self.anomalies, out),
            Reading::Json(json) => json.close(cut, &mut self.anomalies, out),
        }
    }
}

/// Length of the longest end of `text` that is a proper beginning of `mark`.
fn tail(text: &str, mark: &str) -> usize {
    let most = mark.len().saturating_sub(1).min(text.len());
    (1..=most).rev().find(|n| text.as_bytes().ends_with(&mark.as_bytes()[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
