//! `/v1/messages`: content blocks and their events.

use engine::api::Finish;
use engine::ids::TokenId;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::serve::answers::{Choice, Failed, Piece, Scene, Writer, named_event};
use crate::serve::entries::Entry;
use crate::serve::error::ApiError;
use crate::serve::parts::{Call, Item, Part};
use crate::serve::remembered::Change;
use crate::serve::shapes::Shape;
use crate::serve::stats::Counts;

/// Writes one message.
pub(crate) struct MessageWriter {
    id: String,
    model: String,
    /// Thinking is left out, its signature is not.
    omits_thinking: bool,
    /// Where its prompt goes another way than that of an earlier message; `None`: nobody asks.
    change: Option<Change>,
    /// `message_start` has gone out.
    begun: bool,
    /// Blocks that are closed.
    index: usize,
    open: Option<Block>,
    /// What the deltas of an event carry beside their text.
    timings: Option<Value>,
}

/// A block that is open.
enum Block {
    /// With the hash of the thoughts so far.
    Thinking(Sha256),
    Text,
    /// With arguments that are not sent yet: those of a use without any are nothing but its start and its stop.
    Use(String),
}

impl MessageWriter {
    pub(crate) fn new(id: String, model: String, omits_thinking: bool, change: Option<Change>) -> Self {
        Self { id, model, omits_thinking, change, begun: false, index: 0, open: None, timings: None }
    }

    fn message(&self, content: Value, reason: (Value, Value), usage: Value) -> Value {
        let diagnostics = self.change.map(|change| diagnostics(change, &usage["input_tokens"]));
        let mut message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason.0,
            "stop_sequence": reason.1,
            "usage": usage,
        });
        if let Some(diagnostics) = diagnostics {
            message["diagnostics"] = diagnostics;
        }
        message
    }

    /// Writes an event; its type goes in front.
    fn event(&self, name: &str, fields: Value, out: &mut Vec<u8>) {
        let mut event = Map::from_iter([("type".to_owned(), name.into())]);
        let Value::Object(fields) = fields else { unreachable!("built as an object") };
        event.extend(fields);
        named_event(name, &event, out);
    }

    fn delta(&self, delta: Value, out: &mut Vec<u8>) {
        let mut fields = json!({"index": self.index, "delta": delta});
        if let Some(timings) = &self.timings {
            fields["timings"] = timings.clone();
        }
        self.event("content_block_delta", fields, out);
    }

    fn arguments(&self, text: &str, out: &mut Vec<u8>) {
        self.delta(json!({"type": "input_json_delta", "partial_json": text}), out);
    }

    fn start(&mut self, block: Block, content: Value, out: &mut Vec<u8>) {
        self.close(out);
        self.event("content_block_start", json!({"index": self.index, "content_block": content}), out);
        self.open = Some(block);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(block) = self.open.take() else { return };
        match block {
            Block::Thinking(hash) => {
                self.delta(json!({"type": "signature_delta", "signature": signature(hash)}), out);
            }
            Block::Use(held) if held == "{" => self.arguments(&held, out),
            Block::Use(_) | Block::Text => {}
        }
        self.event("content_block_stop", json!({"index": self.index}), out);
        self.index += 1;
    }

    fn part(&mut self, part: &Part, out: &mut Vec<u8>) {
        match part {
            Part::Reasoning(text) => {
                if !matches!(self.open, Some(Block::Thinking(_))) {
                    let content = json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.start(Block::Thinking(Sha256::new()), content, out);
                }
                if let Some(Block::Thinking(hash)) = &mut self.open {
                    hash.update(text);
                }
                if !self.omits_thinking {
                    self.delta(json!({"type": "thinking_delta", "thinking": text}), out);
                }
            }
            Part::Content(text) => {
                if !matches!(self.open, Some(Block::Text)) {
                    self.start(Block::Text, json!({"type": "text", "text": ""}), out);
                }
                self.delta(json!({"type": "text_delta", "text": text}), out);
            }
            Part::Call(call) => {
                let content = json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}});
                self.start(Block::Use(String::new()), content, out);
            }
            Part::Arguments { text, .. } => {
                let Some(Block::Use(held)) = &mut self.open else { unreachable!("arguments follow their call") };
                held.push_str(text);
                if !"{}".starts_with(held.as_str()) {
                    let all = std::mem::take(held);
                    self.arguments(&all, out);
                }
            }
            Part::CallEnd { .. } => self.close(out),
        }
    }

    fn block(&self, item: &Item) -> Value {
        match item {
            Item::Reasoning(text) => {
                let shown = if self.omits_thinking { "" } else { text.as_str() };
                json!({"type": "thinking", "thinking": shown, "signature": signature(Sha256::new_with_prefix(text))})
            }
            Item::Content(text) => json!({"type": "text", "text": text, "citations": null}),
            Item::Call { call: Call { id, name, .. }, arguments, .. } => {
                json!({"type": "tool_use", "id": id, "name": name, "input": whole_members(arguments)})
            }
        }
    }
}

impl Writer for MessageWriter {
    fn id(&self) -> &str {
        &self.id
    }

    fn begin(&mut self, scene: &Scene<'_>, out: &mut Vec<u8>) {
        self.begun = true;
        let computed = scene.prompt_tokens as u64 - scene.cached;
        let usage = json!({"input_tokens": computed, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": scene.cached, "output_tokens": 0, "service_tier": "standard"});
        let message = self.message(json!([]), (Value::Null, Value::Null), usage);
        self.event("message_start", json!({ "message": message }), out);
        let lead = scene.lead_of(0);
        if !lead.is_empty() {
            self.part(&Part::Content(lead.to_owned()), out);
        }
    }

    fn piece(
        &mut self,
        _: usize,
        piece: &Piece,
        _: &[TokenId],
        _: Option<Map<String, Value>>,
        scene: &Scene<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        self.timings = scene.timings();
        piece.parts.iter().for_each(|part| self.part(part, out));
        true
    }

    fn end(
        &mut self,
        choice: usize,
        _: &[Entry],
        _: &[TokenId],
        _: Option<Map<String, Value>>,
        scene: &Scene<'_>,
        out: &mut Vec<u8>,
    ) {
        self.close(out);
        let (reason, sequence) = stop_reason(&scene.choices[choice], &scene.params.stop_text);
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        let mut event = json!({"delta": delta, "usage": usage(scene.stats().counts())});
        scene.put_stats(event.as_object_mut().expect("built as an object"));
        self.event("message_delta", event, out);
        self.event("message_stop", json!({}), out);
    }

    fn whole(&mut self, scene: &Scene<'_>) -> Map<String, Value> {
        let choice = &scene.choices[0];
        let mut items = Vec::with_capacity(choice.items.len() + 1);
        if !scene.lead_of(0).is_empty() {
            items.push(Item::Content(scene.lead_of(0).to_owned()));
        }
        for item in &choice.items {
            match (items.last_mut(), item) {
                (Some(Item::Content(text)), Item::Content(more)) => text.push_str(more),
                _ => items.push(item.clone()),
            }
        }
        let content: Vec<Value> = items.iter().map(|item| self.block(item)).collect();
        let reason = stop_reason(choice, &scene.params.stop_text);
        let mut usage = usage(scene.stats().counts());
        usage["service_tier"] = "standard".into();
        let Value::Object(mut body) = self.message(content.into(), reason, usage) else {
            unreachable!("built as an object")
        };
        scene.put_stats(&mut body);
        body
    }

    fn failure(&mut self, error: &ApiError, request_id: &str, _: &Scene<'_>, out: &mut Vec<u8>) -> Failed {
        out.extend_from_slice(&Shape::Anthropic.event(error, request_id));
        Failed::Broken
    }

    fn ping(&self) -> &'static [u8] {
        if self.begun { b"event: ping\ndata: {\"type\":\"ping\"}\n\n" } else { b": keep-alive\n\n" }
    }
}

/// `stop_reason` and `stop_sequence`. Who called tools stopped for their results, unless a limit came first.
fn stop_reason(choice: &Choice, stop_text: &[String]) -> (Value, Value) {
    let (finish, _) = choice.end.as_ref().expect("the choice has ended");
    let calls = choice.assembler.calls > 0;
    match finish {
        Finish::MaxTokens | Finish::TimedOut => ("max_tokens".into(), Value::Null),
        Finish::ContextFull => ("model_context_window_exceeded".into(), Value::Null),
        Finish::EndToken(_) | Finish::StopString(_) if calls => ("tool_use".into(), Value::Null),
        Finish::EndToken(_) => ("end_turn".into(), Value::Null),
        Finish::StopString(i) => ("stop_sequence".into(), stop_text.get(*i as usize).cloned().into()),
        Finish::Fault(_) => unreachable!("a fault is an error, not an answer"),
    }
}

/// What was computed of the prompt and what was read from the cache are told apart.
fn usage(counts: Counts) -> Value {
    json!({
        "input_tokens": counts.prompt - counts.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.completion,
        "output_tokens_details": {"thinking_tokens": counts.reasoning},
    })
}

/// Why the cache did not have `missed` tokens of a prompt; null where it goes on from the earlier one.
fn diagnostics(change: Change, missed: &Value) -> Value {
    let reason = match change {
        Change::None => return Value::Null,
        Change::Unknown => json!({"type": "previous_message_not_found"}),
        // Of what else has a part in the prompt the API has no word.
        Change::Switches => json!({"type": "unavailable"}),
        Change::System => json!({"type": "system_changed", "cache_missed_input_tokens": missed}),
        Change::Tools => json!({"type": "tools_changed", "cache_missed_input_tokens": missed}),
        Change::Messages => json!({"type": "messages_changed", "cache_missed_input_tokens": missed}),
    };
    json!({ "cache_miss_reason": reason })
}

fn signature(hash: Sha256) -> String {
    let digest = hash.finalize();
    let hex: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("engine-{hex}")
}

/// The object of a call's arguments; of arguments that a limit has cut, the members that are whole.
fn whole_members(arguments: &str) -> Value {
    let mut commas = Vec::new();
    let (mut depth, mut text, mut escaped) = (0_usize, false, false);
    for (i, byte) in arguments.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if text => escaped = true,
            b'"' => text = !text,
            _ if text => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 1 => commas.push(i),
            _ => {}
        }
    }
    let parsed = |text: &str| serde_json::from_str::<Map<String, Value>>(text).ok();
    let ends = std::iter::once(arguments.len()).chain(commas.into_iter().rev());
    let closed = || ends.map(|end| format!("{}}}", &arguments[..end])).find_map(|text| parsed(&text));
    Value::Object(parsed(arguments).or_else(closed).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_were_cut_are_what_is_whole_of_them() {
        for (text, whole) in [
            (r#"{"a":"x\"}","b":[1,{"c":2}]}"#, json!({"a": "x\"}", "b": [1, {"c": 2}]})),
            (r#"{"a":"x,y","b":[1,{"c""#, json!({"a": "x,y"})),
            (r#"{"a":"x","b":"y""#, json!({"a": "x", "b": "y"})),
            (r#"{"a":"x","b":"y"#, json!({"a": "x"})),
            (r#"{"a":"x\"#, json!({})),
            ("{", json!({})),
            ("", json!({})),
        ] {
            assert_eq!(whole_members(text), whole, "{text}");
        }
    }
}
