//! Answers of a model that writes anything: thinking, text and calls are told apart the same however many tokens a tick
//! commits and wherever their borders lie, and a call that has ended has arguments that are JSON.

use engine::api::Stop;
use engine::channels::Markers;
use engine::ids::TokenId;
use engine_bin::serve::probe::{Answers, Told};
use engine_io::text::ToolStyle;
use serde_json::{Value, json};

use super::{Damage, Reader, Rng, Target};

const THINK: TokenId = TokenId(1);
const THOUGHT: TokenId = TokenId(2);
const CALL: TokenId = TokenId(3);
const CALLED: TokenId = TokenId(4);
/// What stands in an input for a token of its own.
const MARKS: [(TokenId, &str); 6] = [
    (THINK, "<think>"),
    (THOUGHT, "</think>"),
    (CALL, "<tool_call>"),
    (CALLED, "</tool_call>"),
    (CALL, "<TOOLCALL>"),
    (CALLED, "</TOOLCALL>"),
];
/// A stop string of every request.
const STOP: &str = "STOP\u{e9}!";

macro_rules! target {
    ($style:ident, $name:literal, $($seed:literal),+) => {
        Target {
            name: $name,
            seeds: || vec![$($seed.as_bytes().to_vec()),+],
            words: WORDS,
            damage: Damage::Bytes,
            reader: || reader(ToolStyle::$style),
        }
    };
}

pub(super) const XML: Target = target!(
    Xml,
    "answer-xml",
    "<think>plan \u{1f600}</think>\n\nOk \u{e9}.\n<tool_call>\n<function=ls>\n<parameter=dir>\n/a\"b \u{20ac}\n</parameter>\n\
     <parameter=n>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=note>\n<parameter=input>\na\n\"b\"\n\
     </parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=ls>\n<parameter=any>\n{\"a\": [1, null]}\n</parameter>\n<parameter=any>\nx\n</parameter>\n\
     </function>\n<function=none>\n</function>\n</tool_call>after"
);
pub(super) const HERMES: Target = target!(
    Hermes,
    "answer-hermes",
    "<think>plan \u{1f600}</think>\n\nOk \u{e9}.\n<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"dir\": \"\u{20ac}\\n\"}}\n\
     </tool_call>\n<tool_call>\n{\"arguments\": {\"input\": \"x\"}, \"name\": \"note\"}\n</tool_call>",
    "<tool_call>{\"name\": \"ls\", \"arguments\": \"{\\\"n\\\": 3}\"}</tool_call> and STOP\u{e9}"
);
pub(super) const LLAMA3: Target = target!(
    Llama3,
    "answer-llama3",
    "{\"name\": \"ls\", \"parameters\": {\"dir\": \"\u{20ac}\"}}; {\"name\": \"note\", \"parameters\": {\"input\": \"x\"}}",
    " {\"type\": \"function\", \"name\": \"ls\", \"parameters\": {\"n\": 1}}\n{\"name\": \"ls\", \"parameters\": {}}"
);
pub(super) const NEMOTRON2: Target = target!(
    Nemotron2,
    "answer-nemotron2",
    "<think>plan \u{1f600}</think>\n\nOk \u{e9}.\n<TOOLCALL>[{\"name\": \"ls\", \"arguments\": {\"n\": 1}}, {\"name\": \"note\", \
     \"arguments\": {\"input\": \"x\"}}]</TOOLCALL>"
);

const WORDS: &[&str] = &[
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<TOOLCALL>",
    "</TOOLCALL>",
    "<function=ls>",
    "<function=",
    "</function>",
    "<parameter=dir>\n",
    "<parameter=any>\n",
    "\n</parameter>\n",
    "</parameter>",
    "{\"name\": \"ls\", ",
    "\"arguments\": ",
    "\"parameters\": ",
    "{\"type\": \"function\", ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    ";",
    "\"",
    "\\",
    "\\u00e9",
    "\\ud83d",
    "null",
    "true",
    "-1e5",
    "01",
    "\n",
    "\n\n",
    "STOP\u{e9}",
    "STOP\u{e9}!",
    "\u{1f600}",
];

fn reader(style: ToolStyle) -> Reader {
    let schema =
        json!({"properties": {"dir": {"type": "string"}, "n": {"type": "integer"}, "list": {"type": "array"}}});
    let tools = [("ls", schema.as_object()), ("note", None)];
    let (call, openings) = match style {
        ToolStyle::Llama3 => {
            (None, [r#"{"name":"ls""#, r#"{"name":"note""#, r#"{"type":"function","name":"ls""#].into())
        }
        _ => (Some((CALL, Some(CALLED))), Vec::new()),
    };
    let openings = openings.into_iter().map(|text: &str| text.as_bytes().to_vec()).collect();
    let markers = Markers { thinks: false, reasoning: Some((THINK, THOUGHT)), call, openings };
    let stop = Stop { strings: vec![STOP.as_bytes().to_vec()], ..Stop::default() };
    let answers = Answers::new(style, markers, &tools, stop);
    Box::new(move |bytes| {
        let mut rng =
            Rng::new(bytes.iter().fold(7, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add((*byte).into())));
        let mut taken = false;
        for cut in [false, true] {
            let all = tokens(bytes, &mut |_| usize::MAX);
            let whole = answers.put_together(&[all], cut);
            let single: Vec<_> = tokens(bytes, &mut |_| 1).into_iter().map(|token| vec![token]).collect();
            assert_eq!(answers.put_together(&single, cut), whole, "token by token, cut {cut}");
            let mut rest = tokens(bytes, &mut |_| 1 + rng.below(6));
            let mut ticks = Vec::new();
            while !rest.is_empty() {
                let more = rest.split_off((1 + rng.below(5)).min(rest.len()));
                ticks.push(std::mem::replace(&mut rest, more));
            }
            assert_eq!(answers.put_together(&ticks, cut), whole, "in ticks, cut {cut}");
            for item in &whole {
                let Told::Call { name, arguments, custom, whole: true } = item else { continue };
                taken = true;
                let object = match serde_json::from_str::<Value>(arguments) {
                    Ok(value) => value.is_object(),
                    // JSON has no largest number, and its reader has.
                    Err(error) => error.to_string().contains("out of range"),
                };
                assert!(*custom || object, "{name}: {arguments:?}");
            }
        }
        taken
    })
}

/// Tokens of an input: its markers, and what is between them in pieces of as many bytes as `piece` says.
fn tokens(mut rest: &[u8], piece: &mut dyn FnMut(usize) -> usize) -> Vec<(TokenId, Vec<u8>)> {
    let mut out = Vec::new();
    while !rest.is_empty() {
        if let Some((id, mark)) = MARKS.iter().find(|(_, mark)| rest.starts_with(mark.as_bytes())) {
            out.push((*id, mark.as_bytes().to_vec()));
            rest = &rest[mark.len()..];
            continue;
        }
        let mark = |at: &usize| MARKS.iter().any(|(_, mark)| rest[*at..].starts_with(mark.as_bytes()));
        let (mut plain, more) = rest.split_at((1..rest.len()).find(mark).unwrap_or(rest.len()));
        while !plain.is_empty() {
            let (token, left) = plain.split_at(piece(plain.len()).min(plain.len()));
            out.push((TokenId(0), token.to_vec()));
            plain = left;
        }
        rest = more;
    }
    out
}
