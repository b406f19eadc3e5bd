//! Calls of the XML style in the other styles, for a scripted model that writes those.

use engine_io::text::{ToolStyle, VocabSpec};
use serde_json::{Map, Value};

const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// The name that flags have for a style.
///
/// # Panics
/// If it is none.
pub fn name(style: ToolStyle) -> &'static str {
    match style {
        ToolStyle::Xml => "xml",
        ToolStyle::Hermes => "hermes",
        ToolStyle::Llama3 => "llama3",
        ToolStyle::Nemotron2 => "nemotron2",
        ToolStyle::None => panic!("no style"),
    }
}

/// The style of a name.
pub fn named(text: &str) -> Option<ToolStyle> {
    let all = [ToolStyle::Xml, ToolStyle::Hermes, ToolStyle::Llama3, ToolStyle::Nemotron2];
    all.into_iter().find(|style| name(*style) == text)
}

/// Gives the tokens that mark calls the texts that they have in this style.
pub fn rename(spec: &mut VocabSpec, style: ToolStyle) {
    let (start, end) = match style {
        ToolStyle::Nemotron2 => ("<TOOLCALL>", "</TOOLCALL>"),
        ToolStyle::Llama3 => ("<|python_tag|>", CALL_END),
        ToolStyle::Xml | ToolStyle::Hermes | ToolStyle::None => return,
    };
    for token in &mut spec.tokens {
        match token.as_str() {
            CALL => start.clone_into(token),
            CALL_END => end.clone_into(token),
            _ => {}
        }
    }
}

/// A text whose calls, which stand at its end in the XML style, are written in this one.
///
/// # Panics
/// If a call is none of that style.
pub fn written(say: &str, style: ToolStyle) -> String {
    let Some((lead, calls)) = say.split_once(CALL).filter(|_| style != ToolStyle::Xml) else { return say.to_owned() };
    let key = if style == ToolStyle::Llama3 { "parameters" } else { "arguments" };
    let one = |call: &str| {
        let (name, rest) = between(call, "<function=", ">\n").expect("a call has a name");
        let mut arguments = Map::new();
        let mut rest = rest;
        while let Some((key, behind)) = between(rest, "<parameter=", ">\n") {
            let (value, behind) = behind.split_once("\n</parameter>\n").expect("a value ends");
            let number = value.parse::<i64>().map(Value::from);
            arguments.insert(key.to_owned(), number.unwrap_or_else(|_| value.into()));
            rest = behind;
        }
        format!("{{\"name\": {}, \"{key}\": {}}}", Value::from(name), Value::Object(arguments))
    };
    let calls: Vec<String> = calls.split(CALL).map(one).collect();
    match style {
        ToolStyle::Hermes => {
            let calls: Vec<String> = calls.iter().map(|call| format!("{CALL}\n{call}\n{CALL_END}")).collect();
            format!("{lead}{}", calls.join("\n"))
        }
        ToolStyle::Llama3 => format!("{lead}<|python_tag|>{}", calls.join("; ")),
        ToolStyle::Nemotron2 => format!("{lead}<TOOLCALL>[{}]</TOOLCALL>", calls.join(", ")),
        ToolStyle::Xml | ToolStyle::None => unreachable!("returned above"),
    }
}

/// What stands between the next `start` and the `end` behind it, and what follows.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(start)?.1.split_once(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_written_in_every_style() {
        let say = "I look.\n<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n<parameter=t>\nx \"y\"\n</parameter>\n\
                   </function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>";
        assert_eq!(written(say, ToolStyle::Xml), say);
        let add = |key: &str| format!("{{\"name\": \"add\", \"{key}\": {{\"a\":2,\"t\":\"x \\\"y\\\"\"}}}}");
        let now = |key: &str| format!("{{\"name\": \"now\", \"{key}\": {{}}}}");
        let (a, n) = (add("arguments"), now("arguments"));
        let hermes = format!("I look.\n<tool_call>\n{a}\n</tool_call>\n<tool_call>\n{n}\n</tool_call>");
        assert_eq!(written(say, ToolStyle::Hermes), hermes);
        assert_eq!(written(say, ToolStyle::Nemotron2), format!("I look.\n<TOOLCALL>[{a}, {n}]</TOOLCALL>"));
        let llama = format!("I look.\n<|python_tag|>{}; {}", add("parameters"), now("parameters"));
        assert_eq!(written(say, ToolStyle::Llama3), llama);
        assert_eq!(written("no call", ToolStyle::Hermes), "no call");
        assert_eq!((named("llama3"), named("xml2")), (Some(ToolStyle::Llama3), None));
    }
}
