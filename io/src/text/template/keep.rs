//! The thoughts of all turns in a prompt, whatever the template would leave out of it.
//!
//! A template is asked what it keeps: it is told to keep all it can, and in the place of each thought stands a word that
//! nobody can guess. The thoughts whose words it has written are its own affair. Of the others the words are put before the
//! content of their turns, and in what comes out of that each word is replaced by its thought, in the template's own form.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use serde_json::{Value, json};

use super::{ChatTemplate, RenderInput, TemplateError};
use crate::text::prompt::{self, Rendered};

/// Names under which templates know the wish.
const WISHES: [(&str, bool); 3] =
    [("preserve_thinking", true), ("clear_thinking", false), ("truncate_history_thinking", false)];
const FIELD: &str = "reasoning_content";

impl ChatTemplate {
    /// Renders a conversation with the thoughts of all its turns. A model that has no marks for thinking has no place for
    /// them: its conversations are rendered as they are.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_keeping(&self, input: &RenderInput<'_>) -> Result<Rendered, TemplateError> {
        let Some(marks) = self.facts().think else { return self.render(input) };
        let mut kwargs = input.kwargs.clone();
        for (name, wish) in WISHES {
            kwargs.entry(name).or_insert(wish.into());
        }
        let nonce = RandomState::new().hash_one("a word");
        let word = |i: usize| format!("thought{nonce:016x}.{i}.");
        let broken = |text: &str| prompt::break_up(text, &self.special).into_owned();
        let thoughts: Vec<(usize, String)> = thoughts(input.messages);
        let mut asked = input.messages.clone();
        for (i, _) in &thoughts {
            asked[*i][FIELD] = word(*i).into();
        }
        let shown = self.render(&RenderInput { messages: &asked, kwargs: &kwargs, ..input.clone() })?;
        let lost: Vec<&(usize, String)> =
            thoughts.iter().filter(|(i, _)| !shown.marked.contains(&broken(&word(*i)))).collect();
        let mut messages = input.messages.clone();
        for (i, _) in &lost {
            let content = messages[*i]["content"].as_str().unwrap_or_default();
            messages[*i]["content"] = format!("{}{content}", word(*i)).into();
            messages[*i][FIELD] = "".into();
        }
        let mut rendered = self.render(&RenderInput { messages: &messages, kwargs: &kwargs, ..input.clone() })?;
        if !lost.is_empty() {
            let (before, behind) = self.form_of_thoughts(marks);
            for (i, thought) in lost {
                let thought = format!("{before}{}{behind}", broken(thought.trim()));
                rendered.marked = rendered.marked.replacen(&broken(&word(*i)), &thought, 1);
            }
            if rendered.marked.len() > self.limits.output_bytes {
                return Err(TemplateError::Output { max: self.limits.output_bytes });
            }
        }
        Ok(rendered)
    }

    /// What the template writes before and behind the thought of a turn that it keeps.
    fn form_of_thoughts(&self, (start, end): (&str, &str)) -> (String, String) {
        let messages = json!([{"role": "user", "content": "probe_user"},
            {"role": "assistant", "content": "probe_answer", FIELD: "probe_thought"}]);
        let none = serde_json::Map::new();
        let input = RenderInput {
            messages: &messages,
            tools: None,
            add_generation_prompt: false,
            kwargs: &none,
            now: std::time::SystemTime::UNIX_EPOCH,
        };
        let form = self.render(&input).ok().and_then(|rendered| {
            let (before, rest) = rendered.marked.split_once("probe_thought")?;
            let (behind, _) = rest.split_once("probe_answer")?;
            let before = &before[before.rfind(start)?..];
            behind.contains(end).then(|| (before.to_owned(), behind.to_owned()))
        });
        form.unwrap_or_else(|| (format!("{start}\n"), format!("\n{end}\n\n")))
    }
}

/// The turns that have thoughts.
fn thoughts(messages: &Value) -> Vec<(usize, String)> {
    let list = messages.as_array().map(Vec::as_slice).unwrap_or_default();
    let thought = |(i, message): (usize, &Value)| {
        let text = message[FIELD].as_str().filter(|text| !text.trim().is_empty())?;
        Some((i, text.to_owned()))
    };
    list.iter().enumerate().filter_map(thought).collect()
}
