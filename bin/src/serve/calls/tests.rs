use serde_json::{Value, json};

use super::*;

fn kinds() -> Kinds {
    let schema = json!({"properties": {"dir": {"type": "string"}, "n": {"type": "integer"},
        "any": {}, "maybe": {"type": ["string", "null", "number"]}, "list": {"type": "array"}}});
    Kinds::new([("ls", schema.as_object()), ("rm", None)])
}

/// Reads a block in pieces of `size` characters, with or without its end, and prints `name(arguments)` per call.
fn read(style: ToolStyle, text: &str, size: usize, cut: bool) -> (String, Anomalies) {
    let mut reader = CallReader::new(style, kinds()).unwrap();
    let (mut parts, chars) = (Vec::new(), text.chars().collect::<Vec<_>>());
    for piece in chars.chunks(size) {
        reader.push(&piece.iter().collect::<String>(), &mut parts);
    }
    reader.close(cut, &mut parts);
    let mut out = String::new();
    let mut open = false;
    for part in parts {
        match part {
            CallPart::Begin(name) => {
                assert!(!std::mem::replace(&mut open, true), "the last call has ended");
                out.push_str(&format!("{name}("));
            }
            CallPart::Arguments(text) => {
                assert!(open && !text.is_empty());
                out.push_str(&text);
            }
            CallPart::End => {
                assert!(std::mem::replace(&mut open, false));
                out.push(')');
            }
        }
    }
    assert!(!open);
    (out, reader.anomalies)
}

fn check(style: ToolStyle, text: &str, cut: bool, calls: &str, anomalies: Anomalies) {
    for size in 1..=text.len().min(40) {
        assert_eq!(read(style, text, size, cut), (calls.to_owned(), anomalies), "{text:?} by {size}");
    }
    // Where no limit cut the text, arguments are JSON objects.
    if !cut {
        for call in calls.split_inclusive(')').filter(|c| c.contains('(')) {
            let arguments = &call[call.find('(').unwrap() + 1..call.len() - 1];
            assert!(serde_json::from_str::<Value>(arguments).is_ok_and(|v| v.is_object()), "{arguments}");
        }
    }
}

const FINE: Anomalies = Anomalies { duplicate_parameters: 0, unterminated_calls: 0, unknown_tools: 0 };
const OPEN: Anomalies = Anomalies { unterminated_calls: 1, ..FINE };

#[test]
fn xml_values_become_json_by_their_schema() {
    let xml = |text: &str, calls: &str| check(ToolStyle::Xml, text, false, calls, FINE);
    let one = |p: &str, v: &str| format!("\n<function=ls>\n<parameter={p}>\n{v}\n</parameter>\n</function>\n");
    xml(
        "\n<function=ls>\n<parameter=dir>\n/a\"b\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n",
        r#"ls({"dir":"/a\"b","n":3})"#,
    );
    xml("\n<function=ls>\n</function>\n", "ls({})");
    xml(&one("dir", ""), r#"ls({"dir":""})"#);
    xml(&one("dir", "3"), r#"ls({"dir":"3"})"#);
    xml(&one("dir", "a\n</parameter>x\nb\u{e9}\\"), "ls({\"dir\":\"a\\n</parameter>x\\nb\u{e9}\\\\\"})");
    xml(&one("dir", "</function>\n<parameter=n>\n1"), r#"ls({"dir":"</function>\n<parameter=n>\n1"})"#);
    xml(&one("n", "three"), r#"ls({"n":"three"})"#);
    xml(&one("n", "3.5"), r#"ls({"n":"3.5"})"#);
    xml(&one("any", "{\"a\": [1]}"), r#"ls({"any":{"a": [1]}})"#);
    xml(&one("any", "{a"), r#"ls({"any":"{a"})"#);
    xml(&one("other", "true"), r#"ls({"other":true})"#);
    xml(&one("maybe", "null"), r#"ls({"maybe":null})"#);
    xml(&one("maybe", "[1]"), r#"ls({"maybe":"[1]"})"#);
    xml(&one("list", "[1,\n2]"), "ls({\"list\":[1,\n2]})");
    xml("<function=rm></function><function=ls></function>", "rm({})ls({})");
}

#[test]
fn xml_that_goes_wrong_is_said_and_closed() {
    let begin = "\n<function=ls>\n<parameter=dir>\n/a\n";
    check(ToolStyle::Xml, begin, false, r#"ls({"dir":"/a"})"#, OPEN);
    check(ToolStyle::Xml, begin, true, "ls({\"dir\":\"/a\\n)", OPEN);
    check(ToolStyle::Xml, "<function=ls><parameter=n>\n3", false, r#"ls({"n":3})"#, OPEN);
    check(ToolStyle::Xml, "<function=ls><parameter=n>\n3", true, "ls()", OPEN);
    check(ToolStyle::Xml, "<function=l", false, "", OPEN);
    check(ToolStyle::Xml, "no call at all", false, "", FINE);
    check(ToolStyle::Xml, "<function=what></function>", false, "what({})", Anomalies { unknown_tools: 1, ..FINE });
    check(
        ToolStyle::Xml,
        "<function=ls><parameter=n>\n1\n</parameter>\n<parameter=n>\n2\n</parameter>\n</function>",
        false,
        r#"ls({"n":1})"#,
        Anomalies { duplicate_parameters: 1, ..FINE },
    );
}

#[test]
fn json_calls_are_passed_on_as_they_are() {
    let hermes = |text: &str, calls: &str| check(ToolStyle::Hermes, text, false, calls, FINE);
    hermes(
        "\n{\"name\": \"ls\", \"arguments\": {\"dir\": \"}\\\"{\" , \"n\":[{}]}}\n",
        r#"ls({"dir": "}\"{" , "n":[{}]})"#,
    );
    hermes(r#"{"arguments": {"n": 1}, "name": "ls"}"#, r#"ls({"n": 1})"#);
    hermes(r#"{"name": "ls", "arguments": "{\"n\": 1}"}"#, r#"ls({"n": 1})"#);
    hermes(r#"{"name": "ls"}"#, "ls({})");
    hermes(r#"{"name": "ls", "arguments": null}"#, "ls({})");
    hermes(r#"{"id": 7, "x": {"name": "rm"}, "name": "ls", "parameters": {}}"#, "ls({})");
    check(
        ToolStyle::Llama3,
        r#"{"name": "ls", "parameters": {}}; {"name": "rm", "parameters": {"a": 1}}"#,
        false,
        r#"ls({})rm({"a": 1})"#,
        FINE,
    );
    check(
        ToolStyle::Nemotron2,
        r#"[{"name": "ls", "arguments": {}}, {"name": "rm", "arguments": {}}]"#,
        false,
        "ls({})rm({})",
        FINE,
    );
}

#[test]
fn json_that_goes_wrong_is_said_and_closed() {
    let whole = r#"{"name": "ls", "arguments": {"dir": "a\u00e9\\", "n": [1, {"b": true}], "c": null}"#;
    let from = whole.find("{\"dir").unwrap();
    for end in (from + 1..whole.len()).filter(|i| whole.is_char_boundary(*i)) {
        let (calls, anomalies) = read(ToolStyle::Hermes, &whole[..end], 3, false);
        let arguments = calls.strip_prefix("ls(").and_then(|c| c.strip_suffix(')')).unwrap();
        let object = serde_json::from_str::<Value>(arguments).is_ok_and(|v| v.is_object());
        assert!(object && arguments.starts_with(&whole[from..end]), "{arguments}");
        assert_eq!(anomalies, OPEN);
    }
    check(ToolStyle::Hermes, r#"{"name": "ls", "arguments": {"dir": "a"#, true, r#"ls({"dir": "a)"#, OPEN);
    check(ToolStyle::Hermes, r#"{"name": "l"#, false, "", OPEN);
    check(ToolStyle::Hermes, r#"{"arguments": {}}"#, false, "", OPEN);
    check(ToolStyle::Hermes, "not JSON", false, "", FINE);
    // Arguments count as far as they are JSON.
    for (arguments, expected) in [
        (r#"{"n":aramete {}}"#, r#"{"n":null}"#),
        (r#"{"dir": "x"parameters": {"a": 1}}"#, r#"{"dir": "x"}"#),
        (r#"{"dir": "a" "n": 01}"#, r#"{"dir": "a" }"#),
        (r#"{"dir": tru}"#, r#"{"dir": true}"#),
        (r#"{"dir": [1}"#, r#"{"dir": [1]}"#),
        (r#""\u20ac""#, "{}"),
        (r#""{\"n\": 3""#, r#"{"n": 3}"#),
        (r#""""#, "{}"),
    ] {
        for (style, text) in [
            (ToolStyle::Hermes, format!(r#"{{"name": "ls", "arguments": {arguments}}}"#)),
            (ToolStyle::Nemotron2, format!(r#"[{{"name": "ls", "arguments": {arguments}}}]"#)),
            (ToolStyle::Llama3, format!(r#"{{"name": "ls", "parameters": {arguments}}}"#)),
        ] {
            for size in 1..=text.len() {
                let (calls, anomalies) = read(style, &text, size, false);
                assert_eq!(calls, format!("ls({expected})"), "{text}");
                assert!(anomalies.unterminated_calls > 0, "{text}: {anomalies:?}");
            }
        }
    }
    // A line's end within a string is written as JSON has it.
    let lines = "{\"name\": \"ls\", \"arguments\": {\"dir\": \"a\n\tb\"}}";
    check(ToolStyle::Hermes, lines, false, r#"ls({"dir": "a\u000a\u0009b"})"#, FINE);
}
