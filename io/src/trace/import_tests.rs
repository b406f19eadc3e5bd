//! Recordings of other tools: what becomes of them, how they are told apart, and what is wrong with broken ones.

use std::fs;
use std::path::PathBuf;

use super::*;

/// A folder of these files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a scratch folder");
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("inside the folder")).expect("a folder");
        fs::write(path, text).expect("it takes the text");
    }
    dir
}

/// The one recording that `text` is, as whoever is asked by content alone.
fn read(name: &str, text: &str) -> Trace {
    let dir = folder(&[(name, text)]);
    let mut found = load(&[dir.path().join(name)], None).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(found.traces.len(), 1);
    found.traces.remove(0)
}

/// Role, whole text, and whether it is an output, of every turn.
fn told(session: &Session) -> Vec<(&'static str, String, bool)> {
    session.turns.iter().map(|turn| (turn.role.name(), turn.whole_text().into_owned(), turn.output)).collect()
}

fn turn(role: &'static str, text: &str) -> (&'static str, String, bool) {
    (role, text.to_owned(), false)
}

fn output(text: &str) -> (&'static str, String, bool) {
    ("assistant", text.to_owned(), true)
}

const OPENAI: &str = r#"{"messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"Ro"},{"type":"text","text":"me?"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"find","arguments":"{\"q\":\"Rome\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"41.9 N"},{"role":"assistant","content":"There.","refusal":null}]}
{"id":"second","messages":[{"role":"user","content":"x"},{"role":"assistant","content":"taught","weight":0},{"role":"assistant","content":"said","weight":1}]}
"#;

#[test]
fn openai_lines() {
    let trace = read("chats.jsonl", OPENAI);
    assert_eq!(trace.format, Format::Openai);
    let [first, second] = &trace.sessions[..] else { panic!("two lines, {}", trace.sessions.len()) };
    let call = "<tool_call>\n{\"name\": \"find\", \"arguments\": {\"q\":\"Rome\"}}\n</tool_call>";
    let turns =
        [turn("system", "Be brief."), turn("user", "Rome?"), output(call), turn("tool", "41.9 N"), output("There.")];
    assert_eq!(told(first), turns);
    assert_eq!((first.id.as_str(), first.source.as_str()), ("chats.jsonl:1", "openai"));
    assert_eq!(first.turns[3].tool.as_ref().and_then(|tool| tool.call_id.as_deref()), Some("c1"));
    assert_eq!(second.id, "second");
    assert_eq!(second.outputs().collect::<Vec<_>>(), [2], "what has weight 0 is not the model's own");
}

const SWE_AGENT: &str = r#"{
  "environment": "swe", "info": {},
  "trajectory": [{"action": "ls", "observation": "a.py"}],
  "history": [
    {"role": "system", "content": "You edit.", "agent": "main"},
    {"role": "user", "content": "an example", "is_demo": true},
    {"role": "assistant", "content": "shown", "is_demo": true},
    {"role": "assistant", "content": "I look.", "thought": "I look.", "action": "ls",
     "tool_calls": [{"function": {"name": "bash", "arguments": {"command": "ls"}}, "id": "c", "type": "function"}]},
    {"role": "tool", "content": "a.py", "tool_call_ids": ["c"]}
  ]
}"#;

#[test]
fn swe_agent_trajectories() {
    let trace = read("run.traj", SWE_AGENT);
    assert_eq!((trace.format, trace.sessions.len()), (Format::SweAgent, 1));
    let call = "I look.\n<tool_call>\n{\"name\": \"bash\", \"arguments\": {\"command\":\"ls\"}}\n</tool_call>";
    let turns = [
        turn("system", "You edit."),
        turn("user", "an example"),
        turn("assistant", "shown"),
        output(call),
        turn("tool", "a.py"),
    ];
    assert_eq!(told(&trace.sessions[0]), turns);
    assert_eq!(trace.sessions[0].turns[4].tool.as_ref().and_then(|tool| tool.call_id.as_deref()), Some("c"));

    let list = r#"[{"role": "user", "content": "do"}, {"role": "assistant", "content": "done"}]"#;
    let object = format!(r#"{{"info": {{}}, "messages": {list}, "trajectory_format": "mini-swe-agent-1"}}"#);
    for text in [list, &object] {
        let trace = read("run.traj.json", text);
        assert_eq!(trace.format, Format::MiniSweAgent);
        assert_eq!(told(&trace.sessions[0]), [turn("user", "do"), output("done")]);
    }
}

#[test]
fn openhands_runs() {
    let message = |content: &str, id: &str| {
        let arguments = r#""{\"command\":\"ls\"}""#;
        let call = format!(r#"{{"id":"t","function":{{"name":"execute_bash","arguments":{arguments}}}}}"#);
        let message = format!(r#"{{"role":"assistant","content":"{content}","tool_calls":[{call}]}}"#);
        format!(
            r#""tool_call_metadata":{{"tool_call_id":"t","model_response":{{"id":"{id}","choices":[{{"message":{message}}}]}}}}"#
        )
    };
    let events = [
        r#"{"source":"agent","action":"system","args":{"content":"You are.","tools":[]}}"#.to_owned(),
        r#"{"source":"user","action":"message","args":{"content":"Fix it."}}"#.to_owned(),
        r#"{"source":"user","action":"recall","args":{"query":"Fix it."}}"#.to_owned(),
        r#"{"source":"environment","observation":"recall","content":"Added"}"#.to_owned(),
        format!(r#"{{"source":"agent","action":"run","args":{{"command":"ls"}},{}}}"#, message("I look.", "r1")),
        format!(r#"{{"source":"agent","action":"run","args":{{"command":"pwd"}},{}}}"#, message("I look.", "r1")),
        format!(r#"{{"source":"agent","observation":"run","content":"a.py",{}}}"#, message("I look.", "r1")),
        r#"{"source":"environment","action":"change_agent_state","args":{}}"#.to_owned(),
        r#"{"source":"environment","observation":"agent_state_changed","content":"awaiting"}"#.to_owned(),
        r#"{"source":"agent","observation":"null","content":"nothing"}"#.to_owned(),
        r#"{"source":"environment","action":"run","args":{"command":"env"}}"#.to_owned(),
        r#"{"source":"agent","action":"finish","args":{"final_thought":"Done.","outputs":{}}}"#.to_owned(),
    ];
    let new = format!(r#"{{"instance_id":"a-1","history":[{}]}}"#, events.join(","));
    // Arguments beside the action, and pairs.
    let old = concat!(
        r#"{"history":[{"action":"message","content":"Fix it."},[{"action":"run","thought":"So.","command":"ls","#,
        r#""is_confirmed":"confirmed","keep_prompt":true},{"observation":"run","content":"a.py","exit_code":0}],"#,
        r#"{"action":"message","content":"Done."}]}"#
    );
    let trace = read("output.jsonl", &format!("{new}\n{old}\n"));
    assert_eq!(trace.format, Format::Openhands);
    let calls = |name: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"command\":\"ls\"}}}}\n</tool_call>")
    };
    let finish =
        "Done.\n<tool_call>\n{\"name\": \"finish\", \"arguments\": {\"final_thought\":\"Done.\"}}\n</tool_call>";
    let turns = [
        turn("system", "You are."),
        turn("user", "Fix it."),
        output(&format!("I look.\n{}", calls("execute_bash"))),
        turn("tool", "a.py"),
        output(finish),
    ];
    assert_eq!(told(&trace.sessions[0]), turns);
    assert_eq!(trace.sessions[0].id, "a-1");
    let turns =
        [turn("user", "Fix it."), output(&format!("So.\n{}", calls("run"))), turn("tool", "a.py"), output("Done.")];
    assert_eq!(told(&trace.sessions[1]), turns);
}

#[test]
fn tau_bench_runs() {
    let run = |task: u32, trial: u32| {
        format!(
            r#"{{"task_id":{task},"trial":{trial},"reward":1.0,"traj":[{{"role":"user","content":"Hi"}},{{"role":"assistant","content":"Yes?"}},{{"role":"tool","name":"f","tool_call_id":"c","content":"1"}}]}}"#
        )
    };
    let trace = read("runs.json", &format!("[{},\n{}]", run(0, 1), run(7, 0)));
    assert_eq!(trace.format, Format::TauBench);
    assert_eq!(trace.sessions.iter().map(|s| s.id.as_str()).collect::<Vec<_>>(), ["task 0.1", "task 7.0"]);
    assert_eq!(told(&trace.sessions[0]), [turn("user", "Hi"), output("Yes?"), turn("tool", "1")]);
}

#[test]
fn aider_logs() {
    let log = concat!(
        "\n# aider chat started at 2024-01-01 10:00:00\n\n> Git repo: .git  \n>   \n\nA banner of aider's own.\n\n",
        "#### add a line  \n#### to it  \n\n##### Here:\n\n```\n#### not\n```\n\n> Applied edit to a.py  \n\n> Commit 1  \n\n",
        "And more.\n",
        "\n# aider chat started at 2024-01-02 10:00:00\n\n> ^C again to exit  \n",
    );
    // A line of the user's kind is the user's, wherever it stands: logs quote nothing.
    let trace = read(".aider.chat.history.md", log);
    assert_eq!(trace.format, Format::Aider);
    let turns = [
        turn("tool", "Git repo: .git"),
        turn("tool", "A banner of aider's own."),
        turn("user", "add a line\nto it"),
        output("##### Here:\n\n```"),
        turn("user", "not"),
        output("```"),
        turn("tool", "Applied edit to a.py\nCommit 1"),
        output("And more."),
    ];
    assert_eq!(told(&trace.sessions[0]), turns);
    assert_eq!(trace.sessions[0].id, "2024-01-01 10:00:00");
    assert_eq!(told(&trace.sessions[1]), [turn("tool", "^C again to exit")]);

    let page = "---\ntitle: x\n---\n\nA foreword.\n\n<div class=\"chat-transcript\" markdown=\"1\">\n\n> $ aider\n\n#### hi\n\nHello.\n</div>\n";
    let trace = read("hello.md", page);
    assert_eq!(trace.sessions.len(), 1);
    assert_eq!(told(&trace.sessions[0]).last(), Some(&output("Hello.")));
    assert_eq!(trace.sessions[0].outputs().count(), 1, "a foreword is not the model's");
}

#[test]
fn a_folder_is_walked_and_what_is_no_recording_is_named() {
    let dir = folder(&[
        ("b/LICENSE", "Do what you will.\n"),
        ("b/notes.md", "# Notes\n\n#### a heading\n\n> a quotation\n"),
        ("b/quoted.txt", "@@@\n# aider chat started at 2024-01-01 10:00:00\n@@@\n"),
        ("b/run.traj", SWE_AGENT),
        ("a/chats.jsonl", OPENAI),
        ("a/data.json", "{\"rows\": [1, 2]}"),
        ("a/deep/down/chats.jsonl", OPENAI),
        // A line of it would be a recording; the file is none.
        ("a/lines.jsonl", "{\"info\":{},\"messages\":[]}\n{\"info\":{},\"messages\":[]}\n"),
        ("a/empty", ""),
        ("own.jsonl", "{\"schema\":\"slipstream-trace/1\",\"id\":\"a\",\"source\":\"s\",\"turns\":[{\"role\":\"us"),
    ]);
    let found = load(&[dir.path().to_owned()], None).expect("reads");
    let names = |paths: Vec<&PathBuf>| -> Vec<String> {
        let relative = |path: &PathBuf| path.strip_prefix(dir.path()).expect("inside").display().to_string();
        paths.into_iter().map(relative).collect()
    };
    assert_eq!(
        names(found.traces.iter().map(|t| &t.path).collect()),
        ["a/chats.jsonl", "a/deep/down/chats.jsonl", "b/run.traj", "own.jsonl"]
    );
    assert_eq!(
        names(found.passed_over.iter().collect()),
        ["a/data.json", "a/empty", "a/lines.jsonl", "b/LICENSE", "b/notes.md", "b/quoted.txt"]
    );
    assert_eq!((found.traces[3].format, found.traces[3].torn), (Format::Slipstream, Some(1)));
}

#[test]
fn links_lead_to_a_file_once_and_never_round() {
    let dir = folder(&[("a/chats.jsonl", OPENAI), ("b/run.traj", SWE_AGENT)]);
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, dir.path().join(name)).expect("a link");
    // Two ways round from the same folder: a walk that follows them doubles with every level.
    link("..", "a/up");
    link("../b", "a/next");
    link("../a", "b/back");
    link("chats.jsonl", "a/same.jsonl");
    link("nowhere", "a/lost");
    let found = load(&[dir.path().to_owned()], None).expect("reads");
    let sessions = |found: &Found| found.traces.iter().map(|trace| trace.sessions.len()).sum::<usize>();
    assert_eq!(found.traces.len(), 2, "{:?}", found.traces.iter().map(|t| &t.path).collect::<Vec<_>>());
    assert!(found.passed_over.is_empty());
    // Whoever names a folder twice means it.
    let twice = load(&[dir.path().join("a"), dir.path().join("a")], None).expect("reads");
    assert_eq!(sessions(&twice), 2 * sessions(&found));
}

#[test]
fn what_cannot_be_read_is_refused_by_place() {
    let refused = |name: &str, text: &str, format: Option<Format>, expected: &[&str]| {
        let dir = folder(&[(name, text)]);
        let error = load(&[dir.path().join(name)], format).expect_err("is refused").to_string();
        let place = dir.path().join(name).display().to_string();
        assert!(error.starts_with(&place), "{error}");
        for part in expected {
            assert!(error[place.len()..].contains(part), "{error}: expected {part}");
        }
    };
    let openai =
        |message: &str| format!("{OPENAI}{{\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}},{message}]}}\n");
    let bad = |message: &str, expected: &[&str]| refused("x.jsonl", &openai(message), None, expected);
    bad(r#"{"role":"user","content":5}"#, &[":3: messages[1].content: ", "integer `5`", "expected a string, null or"]);
    bad(r#"{"role":"robot","content":""}"#, &[":3: messages[1].role: ", "unknown variant `robot`", "expected one of"]);
    bad(r#"{"content":""}"#, &[":3: messages[1]", "missing field `role`"]);
    let image = r#"{"role":"user","content":[{"type":"image_url","image_url":{}}]}"#;
    bad(image, &[":3: messages[1].content", "part of type \"image_url\" cannot be replayed"]);
    bad(r#"{"role":"assistant","tool_calls":[{"id":"c"}]}"#, &["tool_calls[0]", "missing field `function`"]);
    refused("x.jsonl", &format!("{OPENAI}{{\"messages\":[\n"), None, &[":3: is not JSON"]);

    let broken = SWE_AGENT.replace("\"role\": \"tool\"", "\"role\": \"cook\"");
    refused("x.traj", &broken, None, &[": history[4].role: ", "unknown variant `cook`"]);
    refused("x.traj", &SWE_AGENT[..SWE_AGENT.len() - 2], None, &[": is none of the recordings", "--format"]);
    refused("x.traj", &SWE_AGENT[..SWE_AGENT.len() - 2], Some(Format::SweAgent), &[": is not JSON: EOF"]);
    refused("x.traj", &format!("{SWE_AGENT} 1"), Some(Format::SweAgent), &[": is not JSON: trailing"]);
    refused("x.json", r#"[{"traj":[],"task_id":1},{"traj":[]}]"#, None, &["[1]", "missing field `task_id`"]);
    refused("x.jsonl", r#"{"history":[{"source":"user"}]}"#, None, &[":1: history[0] is an object with neither"]);
    refused("x.jsonl", r#"{"history":[{"action":1}]}"#, None, &[":1: history[0] is unreadable", "integer `1`"]);
    refused("x.md", "words", None, &[": is none of the recordings known here (slipstream, openai"]);

    let dir = folder(&[("LICENSE", "Do what you will.\n")]);
    fs::write(dir.path().join("log.md"), b"# aider chat started at x\n\xff").expect("it takes bytes");
    let error = load(&[dir.path().join("log.md")], Some(Format::Aider)).expect_err("is refused").to_string();
    assert!(error.ends_with("log.md: is not UTF-8 from byte 26 on; convert it, or take it out"), "{error}");
    // What does not fit is refused as a whole, and not read as far as it goes.
    let long = fs::OpenOptions::new().write(true).open(dir.path().join("log.md")).expect("it is there");
    long.set_len(read::DOCUMENT_BYTES_MAX as u64 + 1).expect("a file of zeroes");
    let error = load(&[dir.path().join("log.md")], Some(Format::Aider)).expect_err("is refused").to_string();
    assert!(error.ends_with("log.md: is longer than 67108864 bytes; split it"), "{error}");
    fs::remove_file(dir.path().join("log.md")).expect("it was there");
    let error = load(&[dir.path().to_owned()], None).expect_err("is refused").to_string();
    assert!(error.contains("holds no recording"), "{error}");
    let error = load(&[dir.path().join("absent")], None).expect_err("is refused").to_string();
    assert!(error.contains("absent: cannot open"), "{error}");
}
