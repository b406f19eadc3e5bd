//! parts: from the text of a choice and its channels to what a client gets: thinking, content, calls. The same for every
//! dialect.

use std::collections::HashSet;
use std::sync::Arc;

use engine::channels::{Channel, Said};
use engine_io::text::ToolStyle;
use serde_json::Value;

use crate::serve::calls::{Anomalies, CallPart, CallReader, Kinds};
use crate::serve::random::Random;

/// What a delta adds to an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Reasoning(String),
    Content(String),
    /// A call begins.
    Call(Call),
    /// More of the last call's arguments; of a custom tool, its whole input.
    Arguments {
        /// Index of the call.
        call: usize,
        custom: bool,
        text: String,
    },
    /// The last call has ended.
    CallEnd {
        /// Not by a limit.
        whole: bool,
    },
}

/// A call of a tool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Call {
    /// Counted from 0 in the choice.
    pub index: usize,
    pub id: String,
    pub name: String,
    /// Its arguments are one text.
    pub custom: bool,
}

/// A part of a whole answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Item {
    Reasoning(String),
    Content(String),
    Call {
        call: Call,
        arguments: String,
        /// It has ended, and not by a limit.
        whole: bool,
    },
}

/// Adds parts to a list of items: neighbours of one kind become one.
pub(crate) fn add(items: &mut Vec<Item>, part: &Part) {
    match (part, items.last_mut()) {
        (Part::Reasoning(more), Some(Item::Reasoning(text)))
        | (Part::Content(more), Some(Item::Content(text)))
        | (Part::Arguments { text: more, .. }, Some(Item::Call { arguments: text, .. })) => text.push_str(more),
        (Part::CallEnd { whole: ended }, Some(Item::Call { whole, .. })) => *whole = *ended,
        (Part::Reasoning(text), _) => items.push(Item::Reasoning(text.clone())),
        (Part::Content(text), _) => items.push(Item::Content(text.clone())),
        (Part::Call(call), _) => {
            items.push(Item::Call { call: call.clone(), arguments: String::new(), whole: false });
        }
        (Part::Arguments { .. } | Part::CallEnd { .. }, _) => unreachable!("arguments and end follow their call"),
    }
}

/// Where thinking goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ReasoningFormat {
    /// A channel of its own.
    #[default]
    Apart,
    /// Content, with its tags.
    Inside,
    /// Both.
    Both,
    /// Nowhere.
    Left,
}

impl ReasoningFormat {
    /// The word of requests.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Apart => "deepseek",
            Self::Inside => "none",
            Self::Both => "deepseek-legacy",
            Self::Left => "left out",
        }
    }
}

/// How the answers of one request are put together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shape {
    pub reasoning: ReasoningFormat,
    /// The model's tags of thinking, as text.
    pub think: Option<(&'static str, &'static str)>,
    pub style: ToolStyle,
    pub kinds: Kinds,
    /// Tools whose arguments are one text.
    pub custom: HashSet<String>,
    /// Beginning of the ids of calls.
    pub id: &'static str,
}

/// Puts one choice together.
pub(crate) struct Assembler {
    shape: Arc<Shape>,
    reader: Option<CallReader>,
    /// The call block that is open.
    block: Option<u32>,
    /// Calls begun.
    pub calls: usize,
    /// Arguments of a custom tool's call, until it is whole.
    custom: Option<String>,
    /// The last marker was one of thinking.
    thought: bool,
}

impl Assembler {
    pub(crate) fn new(shape: &Arc<Shape>) -> Self {
        let reader = CallReader::new(shape.style, shape.kinds.clone());
        Self { shape: Arc::clone(shape), reader, block: None, calls: 0, custom: None, thought: false }
    }

    /// What was written wrongly so far.
    pub(crate) fn anomalies(&self) -> Anomalies {
        self.reader.as_ref().map(|reader| reader.anomalies).unwrap_or_default()
    }

    /// The parts of what was said; names for calls are drawn from `random`.
    pub(crate) fn take(&mut self, said: &Said, random: &mut Random) -> Vec<Part> {
        let mut out = Vec::new();
        for (channel, text) in said.parts() {
            if !matches!(channel, Channel::Call(n) if self.block == Some(n)) {
                self.close(false, random, &mut out);
            }
            match channel {
                Channel::Reasoning => self.think(text, &mut out),
                Channel::Content => say(text, &mut out),
                Channel::Call(n) => {
                    self.block = Some(n);
                    let mut parts = Vec::new();
                    if let Some(reader) = &mut self.reader {
                        reader.push(text, &mut parts);
                    }
                    self.calls(parts, true, random, &mut out);
                }
                Channel::Marker => {
                    self.thought = self.shape.think.is_some_and(|(start, end)| text == start || text == end);
                    self.tag(text, &mut out);
                }
                Channel::Gap => self.tag(text, &mut out),
            }
        }
        out
    }

    /// The parts left at the end; `cut`: a limit ended the text.
    pub(crate) fn finish(&mut self, cut: bool, random: &mut Random) -> Vec<Part> {
        let mut out = Vec::new();
        self.close(cut, random, &mut out);
        out
    }

    fn close(&mut self, cut: bool, random: &mut Random, out: &mut Vec<Part>) {
        if self.block.take().is_none() {
            return;
        }
        let mut parts = Vec::new();
        if let Some(reader) = &mut self.reader {
            reader.close(cut, &mut parts);
        }
        self.calls(parts, !cut, random, out);
    }

    fn think(&self, text: &str, out: &mut Vec<Part>) {
        let format = self.shape.reasoning;
        if matches!(format, ReasoningFormat::Apart | ReasoningFormat::Both) {
            match out.last_mut() {
                Some(Part::Reasoning(all)) => all.push_str(text),
                _ => out.push(Part::Reasoning(text.to_owned())),
            }
        }
        if matches!(format, ReasoningFormat::Inside | ReasoningFormat::Both) {
            say(text, out);
        }
    }

    /// A tag of thinking, or what stands behind one, is content where thinking is.
    fn tag(&self, text: &str, out: &mut Vec<Part>) {
        if self.thought && matches!(self.shape.reasoning, ReasoningFormat::Inside | ReasoningFormat::Both) {
            say(text, out);
        }
    }

    /// `whole`: what ends is not cut.
    fn calls(&mut self, parts: Vec<CallPart>, whole: bool, random: &mut Random, out: &mut Vec<Part>) {
        for part in parts {
            match part {
                CallPart::Begin(name) => {
                    let custom = self.shape.custom.contains(&name);
                    self.custom = custom.then(String::new);
                    out.push(Part::Call(Call { index: self.calls, id: random.id(self.shape.id), name, custom }));
                    self.calls += 1;
                }
                CallPart::Arguments(text) => match (&mut self.custom, out.last_mut()) {
                    (Some(all), _) => all.push_str(&text),
                    (None, Some(Part::Arguments { text: all, .. })) => all.push_str(&text),
                    (None, _) => out.push(Part::Arguments { call: self.calls - 1, custom: false, text }),
                },
                CallPart::End => {
                    if let Some(all) = self.custom.take() {
                        // What is no object with a text is passed on as it is.
                        let input = input(&all, !whole).unwrap_or(all);
                        let part = Part::Arguments { call: self.calls - 1, custom: true, text: input };
                        out.extend(
                            Some(part).filter(|p| !matches!(p, Part::Arguments { text, .. } if text.is_empty())),
                        );
                    }
                    out.push(Part::CallEnd { whole });
                }
            }
        }
    }
}

/// The text that the arguments of a custom tool's call hold. Of arguments that a limit has `cut` off it is what there is.
fn input(arguments: &str, cut: bool) -> Option<String> {
    let text = |arguments: &str| match serde_json::from_str(arguments).ok()? {
        Value::Object(mut map) => match map.remove("input") {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    };
    if !cut {
        return text(arguments);
    }
    let whole = text(arguments).or_else(|| text(&format!("{arguments}}}")));
    // The last character may be an escape of which some is missing.
    let ends = (0..ESCAPE_BYTES).filter_map(|n| arguments.get(..arguments.len().checked_sub(n)?));
    whole.or_else(|| ends.map(|open| format!("{open}\"}}")).find_map(|open| text(&open))).or_else(|| {
        // Before the value there is nothing of it.
        let before: String = arguments.split_whitespace().collect();
        "{\"input\":".starts_with(&before).then(String::new)
    })
}

/// Bytes of the longest escape: two halves of a character.
const ESCAPE_BYTES: usize = 12;

fn say(text: &str, out: &mut Vec<Part>) {
    match out.last_mut() {
        Some(Part::Content(all)) => all.push_str(text),
        _ => out.push(Part::Content(text.to_owned())),
    }
}

#[cfg(test)]
mod tests;
