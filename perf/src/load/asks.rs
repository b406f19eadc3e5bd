//! What well-behaved clients ask, and what of an answer must be the same whoever else is there.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::wire::{self, Head, Wire};

/// A request whose answer is a function of itself: greedy, or with a seed.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Its name in reports.
    pub name: String,
    /// It is answered as a stream.
    pub stream: bool,
    /// On the wire.
    pub bytes: Vec<u8>,
}

/// What a choice said, and why it ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Choice {
    /// Its text.
    pub text: String,
    /// `finish_reason`.
    pub end: Option<String>,
}

/// The choices of an answer, by index.
pub type Said = Vec<Choice>;

/// What became of an ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// A whole answer.
    Said(Said),
    /// No room: 429, or 503.
    Full,
    /// The connection ended before an answer began.
    Gone,
}

/// Every ask there is, for a model with these strategies.
pub fn all(strategies: &[String]) -> Vec<Ask> {
    const PROMPTS: [&str; 6] = [
        "def add(a, b):\n    return a + b\n\ndef add(a, b):\n    return",
        "{\"name\": \"worker\", \"port\": 8080, \"name\": \"worker\", \"port\":",
        "for i in range(10):\n    print(i)\n\nfor i in range(10):\n",
        "One, two, three. One, two, three. One,",
        "x = 1\ny = 2\nz = 3\nx = 1\ny = 2\n",
        "The quick brown fox jumps over the lazy dog. The quick",
    ];
    let mut all = Vec::new();
    for (p, prompt) in PROMPTS.iter().enumerate() {
        for (s, strategy) in strategies.iter().enumerate() {
            let nth = p * strategies.len() + s;
            let (stream, chat) = (nth.is_multiple_of(2), nth.is_multiple_of(3));
            let mut body = json!({"max_tokens": 8 + 5 * (nth % 9), "stream": stream, "seed": nth,
                "temperature": if nth.is_multiple_of(4) { 0.8 } else { 0.0 }, "n": 1 + nth % 5 / 4,
                "speculative": {"strategy": strategy, "window": {"policy": "fixed", "initial": 1 + nth % 7}}});
            let path = match chat {
                true => {
                    body["messages"] = json!([{"role": "user", "content": prompt}]);
                    "/v1/chat/completions"
                }
                false => {
                    body["prompt"] = json!(prompt);
                    "/v1/completions"
                }
            };
            let name = format!("{nth} ({path}, {strategy}, stream {stream})");
            all.push(Ask { name, stream, bytes: wire::post(path, &body.to_string()) });
        }
    }
    all
}

impl Ask {
    /// Asks on a connection of its own.
    ///
    /// # Errors
    /// Anything but a whole answer.
    pub fn put(&self, address: SocketAddr) -> Result<Said, String> {
        let mut wire = Wire::connect(address)?;
        wire.send(&self.bytes)?;
        match self.read(&mut wire).map_err(|e| format!("{}: {e}", self.name))? {
            Reply::Said(said) => Ok(said),
            other => Err(format!("{}: {other:?}", self.name)),
        }
    }

    /// Reads the answer to a request that was sent.
    ///
    /// # Errors
    /// What is no answer to it.
    pub fn read(&self, wire: &mut Wire) -> Result<Reply, String> {
        match wire.head()? {
            None => Ok(Reply::Gone),
            Some(head) => self.read_body(wire, head, Vec::new()),
        }
    }

    /// The same behind the head and the first bytes of a body.
    ///
    /// # Errors
    /// What is no answer to it.
    pub fn read_body(&self, wire: &mut Wire, head: Head, mut body: Vec<u8>) -> Result<Reply, String> {
        let status = head.status;
        body.extend(wire.body(head)?);
        let text = String::from_utf8(body).map_err(|_| "an answer is not UTF-8")?;
        match status {
            200 if self.stream => streamed(&text).map(Reply::Said),
            200 => whole(&text).map(Reply::Said),
            429 | 503 => Ok(Reply::Full),
            _ => Err(format!("status {status}: {text}")),
        }
    }
}

fn choice(said: &mut Said, from: &Value) -> Result<(), String> {
    let index = from["index"].as_u64().filter(|n| *n < 64).ok_or_else(|| format!("no index: {from}"))? as usize;
    if said.len() <= index {
        said.resize(index + 1, Choice::default());
    }
    let texts = [&from["text"], &from["message"]["content"], &from["delta"]["content"]];
    texts.iter().filter_map(|text| text.as_str()).for_each(|text| said[index].text.push_str(text));
    if let Some(end) = from["finish_reason"].as_str() {
        said[index].end = Some(end.to_owned());
    }
    Ok(())
}

fn whole(text: &str) -> Result<Said, String> {
    let answer: Value = serde_json::from_str(text).map_err(|e| format!("{e}: {text}"))?;
    let mut said = Said::new();
    let choices = answer["choices"].as_array().ok_or_else(|| format!("no choices: {text}"))?;
    choices.iter().try_for_each(|from| choice(&mut said, from))?;
    finished(said, text)
}

fn streamed(text: &str) -> Result<Said, String> {
    let mut said = Said::new();
    let mut done = false;
    for event in text.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':')) {
        let data = event.strip_prefix("data: ").ok_or_else(|| format!("{event:?} is no event"))?;
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let chunk: Value = serde_json::from_str(data).map_err(|e| format!("{e}: {data}"))?;
        if !chunk["error"].is_null() {
            return Err(format!("the stream failed: {data}"));
        }
        chunk["choices"].as_array().into_iter().flatten().try_for_each(|from| choice(&mut said, from))?;
    }
    if done { finished(said, text) } else { Err(format!("a stream without its end: {text}")) }
}

fn finished(said: Said, text: &str) -> Result<Said, String> {
    match !said.is_empty() && said.iter().all(|choice| choice.end.is_some()) {
        true => Ok(said),
        false => Err(format!("a choice without its end: {text}")),
    }
}
