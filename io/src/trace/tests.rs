//! Our own recordings: what is read, what is joined, what is refused.

use std::io::Write as _;

use super::jsonl::{self, Recording};
use super::*;

fn read(text: &str) -> Result<Recording, TraceError> {
    let mut file = tempfile::NamedTempFile::new().expect("a scratch file");
    file.write_all(text.as_bytes()).expect("it takes the text");
    jsonl::read(file.path())
}

/// The message of a refusal, without the name of the scratch file.
fn refusal(text: &str) -> String {
    let message = read(text).expect_err("is refused").to_string();
    let colon = message.find(':').expect("a file is named");
    message[colon..].to_owned()
}

fn line(rest: &str) -> String {
    format!("{{\"schema\":\"slipstream-trace/1\",\"id\":\"a\",\"source\":\"s\",{rest}}}\n")
}

fn written(sessions: &[Session]) -> String {
    let mut out = Vec::new();
    for session in sessions {
        jsonl::write(&mut out, session).expect("memory takes it");
    }
    String::from_utf8(out).expect("JSON is UTF-8")
}

/// Two requests of a tool loop, and a turn nobody has answered yet.
fn session() -> Session {
    let call = ToolCall { id: "c1".into(), name: "ls".into(), arguments: "{\"path\":\"/\"}".into() };
    let calling = Turn {
        tokens: Some(vec![5, 6]),
        tool: Some(Tool { calls: vec![call], ..Tool::default() }),
        ..Turn::output("I look.")
    };
    let answer = Turn {
        tool: Some(Tool { call_id: Some("c1".into()), name: Some("ls".into()), ..Tool::default() }),
        ..Turn::new(Role::Tool, "bin\n\"etc\"")
    };
    let request = |turn, tokens: Vec<u32>| Request {
        turn,
        model: Some("m".into()),
        settings: serde_json::json!({"temperature": 0.5}).as_object().cloned(),
        seed: Some(u64::MAX),
        prompt_tokens: Some(tokens),
        finish_reason: Some("stop".into()),
        ..Request::default()
    };
    let said = Turn { tokens: Some(vec![7]), ..Turn::output("Two.") };
    let turns = vec![
        Turn::new(Role::System, "Be brief."),
        Turn::new(Role::User, "How many?"),
        calling,
        answer,
        said,
        Turn::new(Role::User, "Thanks."),
    ];
    let requests = vec![request(2, vec![1, 2]), request(4, vec![1, 2, 5, 6, 3])];
    Session { id: "a".into(), source: "s".into(), turns, requests }
}

#[test]
fn what_is_written_is_read_again() {
    let text = written(&[session()]);
    assert_eq!(text.lines().count(), 3, "a line for each request, and one for what stands behind them");
    assert_eq!(read(&text).expect("our own"), Recording { sessions: vec![session()], torn: None });
    let bare = Session { turns: vec![Turn::new(Role::User, "x"), Turn::output("y")], ..Session::default() };
    assert_eq!(read(&written(std::slice::from_ref(&bare))).expect("our own").sessions, [bare]);
}

#[test]
fn a_line_joins_the_session_it_goes_on_from() {
    let hi = r#"{"role":"user","text":"hi"}"#;
    let hello = |output| format!(r#"{{"role":"assistant","text":"hello","output":{output}}}"#);
    let first = line(&format!(r#""seed":1,"turns":[{hi},{}]"#, hello(true)));
    // As the client sends it back: a turn like any other.
    let second = |text| {
        let more = format!(r#"{{"role":"user","text":"{text}"}},{}"#, hello(true));
        line(&format!(r#""seed":2,"turns":[{hi},{},{more}]"#, hello(false)))
    };
    let joined = read(&format!("{first}\n{}", second("more"))).expect("joins").sessions;
    assert_eq!(joined.len(), 1);
    assert_eq!(joined[0].outputs().collect::<Vec<_>>(), [1, 3]);
    assert_eq!(joined[0].request(1).and_then(|request| request.seed), Some(1));
    assert_eq!(joined[0].request(3).and_then(|request| request.seed), Some(2));
    // What has gone on cannot go on a second time: the other branch has one output, its own.
    let branches = read(&format!("{first}{}{}", second("more"), second("other"))).expect("branches").sessions;
    assert_eq!(branches.iter().map(|s| s.outputs().count()).collect::<Vec<_>>(), [2, 1]);
    // Of several that it could go on from it is the longest.
    let turns = |more: &str| format!(r#"{hi},{},{more}"#, hello(false));
    let more =
        format!(r#"{{"role":"user","text":"more"}},{},{{"role":"user","text":"on"}},{}"#, hello(false), hello(true));
    let third = line(&format!(r#""seed":3,"turns":[{}]"#, turns(&more)));
    let longest = read(&format!("{first}{}{first}{third}", second("more"))).expect("joins").sessions;
    assert_eq!(longest.iter().map(|s| s.outputs().count()).collect::<Vec<_>>(), [3, 1]);
    // The same request twice is two sessions, and so is a prompt that differs.
    assert_eq!(read(&format!("{first}{first}")).expect("twice").sessions.len(), 2);
    let other = first.replace("hi", "ho");
    assert_eq!(read(&format!("{other}{}", second("more"))).expect("apart").sessions.len(), 2);
    // A role or a call is part of what a turn says.
    let other = first.replace("\"user\"", "\"system\"");
    assert_eq!(read(&format!("{other}{}", second("more"))).expect("apart").sessions.len(), 2);
    let other = first.replace("\"hello\"", "\"hello\",\"tool\":{\"name\":\"x\"}");
    assert_eq!(read(&format!("{other}{}", second("more"))).expect("apart").sessions.len(), 2);
}

#[test]
fn a_torn_last_line_is_passed_over_and_named() {
    let text = written(&[session()]);
    let whole = read(&text).expect("whole").sessions;
    let (kept, _) = text.trim_end().rsplit_once('\n').expect("several lines");
    for cut in kept.len() + 2..text.len() - 1 {
        let found = read(std::str::from_utf8(&text.as_bytes()[..cut]).expect("ASCII")).expect("torn at its end");
        assert_eq!(found.torn, Some(3), "cut at {cut}");
        assert_eq!(found.sessions[0].turns.len(), 5);
    }
    // Without its newline alone it is whole.
    assert_eq!(read(text.trim_end()).expect("whole"), Recording { sessions: whole, torn: None });
    // In the middle of a file nothing may be torn, and a last line that is wrong is not torn.
    assert!(refusal(&format!("{}\n{text}", &text[..40])).contains(":1: is not JSON"));
    assert!(refusal("{]").contains(":1: is not JSON"));
}

#[test]
fn what_is_no_record_is_refused_by_line() {
    let turn = r#"{"role":"user","text":"hi"}"#;
    let good = line(&format!(r#""turns":[{turn}],"later":{{"x":null}}"#));
    assert!(read(&good).is_ok(), "fields that nobody knows are passed over");
    let bad = |text: &str, expected: &str| {
        let found = refusal(&format!("{good}\n{text}\n"));
        assert!(found.contains(":3: ") && found.contains(expected), "{found}: expected {expected}");
    };
    bad("{}", "schema is absent, expected \"slipstream-trace/1\"");
    bad(&good.replace("/1", "/2"), "schema is \"slipstream-trace/2\", expected \"slipstream-trace/1\"");
    bad("[]", "schema is absent");
    bad(&good.replace("\"id\":\"a\",", ""), "missing field `id`");
    bad(&good.replace("user", "robot"), "unknown variant `robot`");
    bad(&line(r#""turns":[]"#), "turns is empty, expected at least one turn");
    bad(&line(&format!(r#""turns":[{turn},{{"role":"user","text":"","output":true}}]"#)), "turns[1].output is true of");
    bad(&line(r#""turns":[{"role":"assistant","text":"","tokens":[1]}]"#), "turns[0].tokens is given");
    bad(&line(&format!(r#""seed":1,"turns":[{turn}]"#)), "turns[0].output is false, expected true");
    bad(&line(&format!(r#""seed":-1,"turns":[{turn}]"#)), "invalid value");
}

#[test]
fn no_line_takes_more_memory_than_the_limit() {
    let found: Vec<_> = jsonl::records(&b"12345\n\n  \n123456\n1\n"[..], "f".into(), 5).collect();
    assert_eq!(found[0].as_ref().map(|raw| raw.line).ok(), Some(1));
    let error = found[1].as_ref().err().expect("too long").to_string();
    assert_eq!(error, "f:4: is longer than 5 bytes; cut the session into several, or leave it out");
    assert_eq!(found.len(), 2, "nothing is read behind an error");
}

#[test]
fn calls_become_text_in_one_form() {
    let session = session();
    assert_eq!(
        session.turns[2].whole_text(),
        "I look.\n<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"path\":\"/\"}}\n</tool_call>"
    );
    assert_eq!(session.turns[3].whole_text(), "bin\n\"etc\"");
}
