use engine::api::Stop;
use engine::channels::Markers;
use engine::ids::TokenId;
use serde_json::json;

use super::*;
use crate::serve::probe;

const THINK: TokenId = TokenId(1);
const THOUGHT: TokenId = TokenId(2);
const CALL: TokenId = TokenId(3);
const CALLED: TokenId = TokenId(4);
const MARKS: [(TokenId, &str); 6] = [
    (THINK, "<think>"),
    (THOUGHT, "</think>"),
    (CALL, "<tool_call>"),
    (CALLED, "</tool_call>"),
    (CALL, "<TOOLCALL>"),
    (CALLED, "</TOOLCALL>"),
];

/// Numbers that repeat, from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }
}

/// Tokens of a text: its markers, and pieces of its bytes cut anywhere, characters too.
fn tokens(text: &str, dice: &mut Dice) -> Vec<(TokenId, Vec<u8>)> {
    let (mut out, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        if let Some((id, mark)) = MARKS.iter().find(|(_, mark)| rest.starts_with(mark)) {
            out.push((*id, mark.as_bytes().to_vec()));
            rest = &rest[mark.len()..];
            continue;
        }
        let plain = MARKS.iter().filter_map(|(_, mark)| rest.find(mark)).min().unwrap_or(rest.len());
        let mut bytes = &rest.as_bytes()[..plain];
        while !bytes.is_empty() {
            let (piece, more) = bytes.split_at((1 + dice.roll(6)).min(bytes.len()));
            out.push((TokenId(0), piece.to_vec()));
            bytes = more;
        }
        rest = &rest[plain..];
    }
    out
}

fn shape(style: ToolStyle, reasoning: ReasoningFormat) -> Arc<Shape> {
    let schema = json!({"properties": {"dir": {"type": "string"}, "n": {"type": "integer"}}});
    let kinds = Kinds::new([("ls", schema.as_object()), ("note", None)]);
    let think = Some(("<think>", "</think>"));
    let custom = ["note".to_owned()].into();
    Arc::new(Shape { reasoning, think, style, kinds, custom, id: "call_" })
}

fn markers(style: ToolStyle, thinks: bool) -> Markers {
    let (call, openings) = match style {
        ToolStyle::Llama3 => (None, vec![b"{\"name\":\"ls\"".to_vec()]),
        _ => (Some((CALL, Some(CALLED))), Vec::new()),
    };
    Markers { thinks, reasoning: Some((THINK, THOUGHT)), call, openings }
}

/// Runs a text through an output state and an assembler, so many tokens a tick as the dice say. Returns the items.
fn run(text: &str, shape: &Arc<Shape>, markers: &Markers, stops: &[&str], cut: bool, dice: &mut Dice) -> Vec<Item> {
    let stop = Stop { strings: stops.iter().map(|s| s.as_bytes().to_vec()).collect(), ..Stop::default() };
    let all = tokens(text, dice);
    let mut rest = all.as_slice();
    let mut ticks = Vec::new();
    while !rest.is_empty() {
        let (tick, more) = rest.split_at((1 + dice.roll(5)).min(rest.len()));
        ticks.push(tick.to_vec());
        rest = more;
    }
    let mut items = probe::items(shape, &Arc::new(markers.clone()), &stop, &ticks, cut);
    // Ids are drawn; what is compared is the rest.
    for item in &mut items {
        if let Item::Call { call, .. } = item {
            assert!(std::mem::take(&mut call.id).starts_with("call_"));
        }
    }
    items
}

fn reasoning(text: &str) -> Item {
    Item::Reasoning(text.to_owned())
}

fn content(text: &str) -> Item {
    Item::Content(text.to_owned())
}

fn call(index: usize, name: &str, arguments: &str) -> Item {
    let call = Call { index, id: String::new(), name: name.to_owned(), custom: name == "note" };
    Item::Call { call, arguments: arguments.to_owned(), whole: true }
}

#[test]
fn every_style_is_the_same_for_every_partition() {
    let xml = "<think>plan \u{1f600}</think>\n\nOk \u{e9}.\n<tool_call>\n<function=ls>\n<parameter=dir>\n/a\"b \
        \u{20ac}\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n\
        <function=note>\n<parameter=input>\na\n\"b\"\n</parameter>\n</function>\n</tool_call>";
    let hermes = "<think>plan \u{1f600}</think>\n\nOk \u{e9}.\n<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"dir\": \
        \"\u{20ac}\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"note\", \"arguments\": {\"input\": \"x\"}}\n</tool_call>";
    let nemotron = "<think>plan \u{1f600}</think>\n\nOk \u{e9}.\n<TOOLCALL>[{\"name\": \"ls\", \"arguments\": {\"n\": 1}}, \
        {\"name\": \"note\", \"arguments\": {\"input\": \"x\"}}]</TOOLCALL>";
    let llama = "{\"name\": \"ls\", \"parameters\": {\"dir\": \"\u{20ac}\"}}; {\"name\": \"note\", \"parameters\": {\"input\": \"x\"}}";
    let talk = [reasoning("plan \u{1f600}"), content("Ok \u{e9}.")];
    let with = |calls: [Item; 2]| [talk.to_vec(), calls.to_vec()].concat();
    let mut dice = Dice(7);
    for (style, text, expected) in [
        (
            ToolStyle::Xml,
            xml,
            with([call(0, "ls", "{\"dir\":\"/a\\\"b \u{20ac}\",\"n\":3}"), call(1, "note", "a\n\"b\"")]),
        ),
        (ToolStyle::Hermes, hermes, with([call(0, "ls", "{\"dir\": \"\u{20ac}\"}"), call(1, "note", "x")])),
        (ToolStyle::Nemotron2, nemotron, with([call(0, "ls", "{\"n\": 1}"), call(1, "note", "x")])),
        (ToolStyle::Llama3, llama, vec![call(0, "ls", "{\"dir\": \"\u{20ac}\"}"), call(1, "note", "x")]),
    ] {
        let shape = shape(style, ReasoningFormat::Apart);
        for _ in 0..200 {
            assert_eq!(run(text, &shape, &markers(style, false), &[], false, &mut dice), expected);
        }
        // Cut by a limit at any character: what there is of it begins as the whole does, for every partition.
        for end in (0..text.len()).filter(|i| text.is_char_boundary(*i)) {
            let first = run(&text[..end], &shape, &markers(style, false), &[], true, &mut dice);
            for _ in 0..3 {
                assert_eq!(run(&text[..end], &shape, &markers(style, false), &[], true, &mut dice), first);
            }
        }
    }
}

/// What a limit leaves of a custom tool's input begins as the whole does, in every style: it is never JSON.
#[test]
fn a_cut_input_is_the_beginning_of_the_whole() {
    let whole = "a\n\"b\" \u{1f600}\\";
    let arguments = r#"{"input": "a\n\"b\" \ud83d\ude00\\"}"#;
    let xml =
        format!("<tool_call>\n<function=note>\n<parameter=input>\n{whole}\n</parameter>\n</function>\n</tool_call>");
    let hermes = format!("<tool_call>\n{{\"name\": \"note\", \"arguments\": {arguments}}}\n</tool_call>");
    let nemotron = format!("<TOOLCALL>[{{\"name\": \"note\", \"arguments\": {arguments}}}]</TOOLCALL>");
    let mut dice = Dice(11);
    for (style, text) in [(ToolStyle::Xml, xml), (ToolStyle::Hermes, hermes), (ToolStyle::Nemotron2, nemotron)] {
        let (shape, markers) = (shape(style, ReasoningFormat::Apart), markers(style, false));
        // The beginning of an end tag is text as long as nothing follows.
        let most = format!("{whole}\n</parameter>\n");
        let mut found: Vec<String> = Vec::new();
        for end in (0..=text.len()).filter(|i| text.is_char_boundary(*i)) {
            for item in run(&text[..end], &shape, &markers, &[], true, &mut dice) {
                let Item::Call { arguments, .. } = item else { continue };
                assert!(most.starts_with(&arguments), "{style:?}: {arguments:?} of {:?}", &text[..end]);
                found.push(arguments);
            }
        }
        found.dedup();
        // A parameter of no declared type is read as a whole.
        let least = if style == ToolStyle::Xml { 2 } else { whole.chars().count() };
        assert!(found.len() >= least, "{style:?}: {found:?}");
        assert_eq!(found.last().map(String::as_str), Some(whole), "{style:?}");
    }
}

#[test]
fn thinking_goes_where_it_is_wanted() {
    let text = "plan\n</think>\n\nOk";
    let mut dice = Dice(3);
    let mut check = |format, expected: &[Item]| {
        let found = run(text, &shape(ToolStyle::Xml, format), &markers(ToolStyle::Xml, true), &[], false, &mut dice);
        assert_eq!(found, expected, "{format:?}");
    };
    check(ReasoningFormat::Apart, &[reasoning("plan\n"), content("Ok")]);
    check(ReasoningFormat::Inside, &[content("plan\n</think>\n\nOk")]);
    check(ReasoningFormat::Left, &[content("Ok")]);
    // Both: the content is that of `Inside`, the thinking that of `Apart`.
    let both = shape(ToolStyle::Xml, ReasoningFormat::Both);
    let found = run(text, &both, &markers(ToolStyle::Xml, true), &[], false, &mut Dice(5));
    let all = |of: fn(&Item) -> Option<&str>| found.iter().filter_map(of).collect::<String>();
    assert_eq!(all(|i| if let Item::Content(t) = i { Some(t.as_str()) } else { None }), "plan\n</think>\n\nOk");
    assert_eq!(all(|i| if let Item::Reasoning(t) = i { Some(t.as_str()) } else { None }), "plan\n");
}

#[test]
fn stop_strings_are_contents_alone() {
    let text =
        "<think>END</think>\n\n<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"dir\": \"END\"}}\n</tool_call>\nxEND";
    let mut dice = Dice(9);
    for _ in 0..50 {
        let shape = shape(ToolStyle::Hermes, ReasoningFormat::Apart);
        let found = run(text, &shape, &markers(ToolStyle::Hermes, false), &["END", "\n"], false, &mut dice);
        assert_eq!(found, [reasoning("END"), call(0, "ls", "{\"dir\": \"END\"}"), content("x")]);
    }
}
