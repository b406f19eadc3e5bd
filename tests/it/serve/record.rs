//! `--record`: what is asked and answered becomes lines that can be read again, whatever ends the request or the server.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use engine::api::{Finish, Submission};
use engine_io::digest::Sha256;
use engine_io::trace::{Role, Session, jsonl};
use serde_json::{Value, json};

use super::client::{Client, ask, get, post};
use super::fake::{END, Fake, Script, chat, hello, ids, unsent};
use super::process::{Running, program, run};

/// The one file of a folder.
fn recorded(folder: &Path) -> PathBuf {
    let files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.into_iter().next().unwrap()
}

/// Its sessions, of which every line is whole.
fn sessions(folder: &Path) -> Vec<Session> {
    let recording = jsonl::read(&recorded(folder)).unwrap();
    assert_eq!(recording.torn, None);
    recording.sessions
}

fn numbers(text: &str, end: bool) -> Vec<u32> {
    ids(text).into_iter().map(|t| t.0).chain(end.then_some(END.0)).collect()
}

/// Whatever of JSON the server reads, its record reads too, and numbers stand there as they were given.
#[test]
fn a_record_is_of_the_body_that_was_read() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::recording(folder.path(), hello);
    let deep = format!("{}1{}", "[".repeat(127), "]".repeat(127));
    let messages = chat("hi")["messages"].to_string();
    let bodies = [
        format!("\u{feff}{{\"messages\":{messages},\"temperature\":0.8,\"logit_bias\":[[5,0.1]]}}"),
        format!("{{\"messages\":{messages},\"metadata\":{deep}}}"),
    ];
    for body in &bodies {
        let mut client = Client::connect(fake.address());
        client.send(post("/v1/chat/completions", body));
        let answer = client.answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    fake.end();
    let sessions = sessions(folder.path());
    assert_eq!(sessions.len(), 2);
    for session in &sessions {
        assert_eq!((session.turns[0].role, session.turns[0].text.as_str()), (Role::User, "hi"));
    }
    let settings = sessions[0].request(1).unwrap().settings.as_ref().unwrap().clone();
    assert_eq!((&settings["temperature"], &settings["logit_bias"]), (&json!(0.8), &json!([[5, 0.1]])));
}

#[test]
fn every_choice_is_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let within = folder.path().join("a/b");
    let fake = Fake::recording(&within, hello);
    let mut body = chat("hi");
    body.as_object_mut().unwrap().extend([
        ("temperature".to_owned(), json!(0.25)),
        ("seed".to_owned(), json!(7)),
        ("logit_bias".to_owned(), json!({"5": -100, "6": 1.5})),
        ("stop".to_owned(), json!(["no"])),
        ("tools".to_owned(), Value::Null),
        ("enable_thinking".to_owned(), json!(true)),
    ]);
    let first = ask(fake.address(), "/v1/chat/completions", &body).json();
    // What it said goes back to it, with a result of a tool: the same session goes on.
    let said = first["choices"][0]["message"]["content"].clone();
    assert_eq!(said, "<think>\nHello, world");
    body["messages"] = json!([
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "again"},
    ]);
    body["stream"] = true.into();
    ask(fake.address(), "/v1/chat/completions", &body).chunks();
    let calls = json!({"messages": [
        {"role": "developer", "content": "be brief"},
        {"role": "assistant", "reasoning_content": "a look", "tool_calls": [{"id": "c", "function": {"name": "ls", "arguments": "{\"a\":1}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "a.txt"},
    ]});
    assert_eq!(ask(fake.address(), "/v1/chat/completions", &calls).status, 200);
    let prompts = json!({"prompt": ["ab", [99, 100]], "n": 2, "echo": true, "max_tokens": 20});
    let completions = ask(fake.address(), "/v1/completions", &prompts).json();
    // What is refused was not asked of the model.
    assert_eq!(ask(fake.address(), "/v1/completions", &json!({"prompt": ""})).status, 400);
    let mut client = Client::connect(fake.address());
    client.send(get("/metrics"));
    let metrics = client.answer().text();
    assert!(metrics.contains("engine_records_total{result=\"lost\"} 0"), "{metrics}");
    assert!(metrics.contains("engine_recording_stopped 0"), "{metrics}");
    fake.end();

    assert_eq!(recorded(&within).metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let sessions = sessions(&within);
    assert_eq!(sessions.len(), 2 + 4);
    let chat = &sessions[0];
    assert_eq!((chat.id.as_str(), chat.source.as_str()), (first["id"].as_str().unwrap(), "recorded"));
    let turns: Vec<(Role, &str, bool)> = chat.turns.iter().map(|t| (t.role, t.text.as_str(), t.output)).collect();
    assert_eq!(
        turns,
        [
            (Role::User, "hi", false),
            (Role::Assistant, "<think>\nHello, world", true),
            (Role::User, "again", false),
            (Role::Assistant, "<think>\nHello, world", true),
        ]
    );
    assert_eq!(chat.turns[1].tokens, Some(numbers("Hello, world", true)));
    let request = chat.request(1).unwrap();
    assert_eq!(request.prompt_tokens, Some(numbers("user: hi\nassistant: ", false)));
    let second = "user: hi\nassistant: <think>\nHello, world\nuser: again\nassistant: ";
    assert_eq!(chat.request(3).unwrap().prompt_tokens, Some(numbers(second, false)));
    assert_eq!((request.seed, request.model.as_deref()), (Some(7), Some("org/toy")));
    assert_eq!(request.model_sha256, Some(Sha256::of(b"toy").to_string()));
    assert_eq!(request.tokenizer_sha256, Some(Sha256::of(b"bytes").to_string()));
    assert_eq!(request.finish_reason.as_deref(), Some("stop"));
    let settings = request.settings.as_ref().unwrap();
    assert_eq!((&settings["temperature"], &settings["top_p"]), (&json!(0.25), &json!(1.0)));
    assert_eq!(settings["logit_bias"], json!([[5, false], [6, 1.5]]));
    assert_eq!((&settings["stop"], &settings["enable_thinking"]), (&json!(["no"]), &json!(true)));
    assert_eq!(settings["speculative"]["strategy"], "ngram-suffix");
    assert_eq!((settings.get("tools"), &settings["endpoint"]), (None, &json!("/v1/chat/completions")));

    let tool = &sessions[1].turns;
    assert_eq!((tool[0].role, tool[1].output, tool.len()), (Role::System, false, 4));
    let thoughts: Vec<Option<&str>> = tool.iter().map(|turn| turn.reasoning.as_deref()).collect();
    assert_eq!(thoughts, [None, Some("a look"), None, None], "what a client holds apart is not lost");
    assert_eq!(tool[1].tool.as_ref().unwrap().calls[0].arguments, "{\"a\":1}");
    assert_eq!(tool[2].tool.as_ref().unwrap().call_id.as_deref(), Some("c"));

    let choices: Vec<(&str, &str, &str, i64)> = sessions[2..]
        .iter()
        .map(|s| {
            let choice = s.requests[0].settings.as_ref().unwrap()["choice"].as_i64().unwrap();
            (s.id.as_str(), s.turns[0].text.as_str(), s.turns[1].text.as_str(), choice)
        })
        .collect();
    let id = completions["id"].as_str().unwrap();
    let named: Vec<String> = (0..4).map(|i| format!("{id}#{i}")).collect();
    let of = |i: usize, prompt, choice| (named[i].as_str(), prompt, "Hello, world", choice);
    assert_eq!(choices, [of(0, "ab", 0), of(1, "ab", 1), of(2, "cd", 0), of(3, "cd", 1)]);
    assert_eq!(sessions[4].requests[0].prompt_tokens, Some(vec![99, 100]));
}

/// A cancelled choice is recorded with every token that was chosen, said or not; one that never ran is not.
#[test]
fn who_leaves_is_recorded_as_far_as_it_came() {
    let folder = tempfile::tempdir().unwrap();
    let choose = |submission: &Submission| match submission.prompt[6].0 as u8 {
        b'q' => Script::Queue,
        b'p' => Script::Prefill,
        _ => Script::Endless,
    };
    let fake = Fake::recording(folder.path(), choose);
    for content in ["q", "p", "e"] {
        let mut client = Client::connect(fake.address());
        let mut body = chat(content);
        body["stream"] = true.into();
        let before = fake.count(|c| matches!(c, engine::api::Command::Cancel(_)));
        client.send(post("/v1/chat/completions", &body.to_string()));
        while fake.submissions().len() <= before {
            std::thread::yield_now();
        }
        if content == "e" {
            client.head();
            while !String::from_utf8(client.chunk().unwrap()).unwrap().contains("xxxx") {}
        }
        drop(client);
        while fake.count(|c| matches!(c, engine::api::Command::Cancel(_))) == before {
            std::thread::yield_now();
        }
    }
    fake.end();
    let sessions = sessions(folder.path());
    let named: Vec<(&str, &str)> =
        sessions.iter().map(|s| (s.turns[0].text.as_str(), s.requests[0].finish_reason.as_deref().unwrap())).collect();
    assert_eq!(named, [("p", "cancelled"), ("e", "cancelled")]);
    let (prefill, endless) = (&sessions[0].turns[1], &sessions[1].turns[1]);
    assert_eq!((prefill.text.as_str(), prefill.tokens.as_deref()), ("", Some(&[][..])));
    let said = endless.text.strip_suffix(&unsent()).expect("what the engine had not sent is the last");
    assert!(said.len() >= 2048 && said.bytes().all(|b| b == b'x'), "{}", said.len());
    assert_eq!(endless.tokens, Some(numbers(&endless.text, false)));
}

/// The engine dies, or its answer is a fault: what was said before is recorded.
#[test]
fn failures_are_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::recording(folder.path(), |submission| match submission.prompt.len() {
        1 => Script::Say(vec!["abc"], Finish::Fault(engine::step::Fault::NonFinite)),
        _ => Script::Die,
    });
    assert_eq!(ask(fake.address(), "/v1/completions", &json!({"prompt": "a"})).status, 500);
    assert_eq!(ask(fake.address(), "/v1/completions", &json!({"prompt": "ab"})).status, 500);
    fake.end();
    let sessions = sessions(folder.path());
    assert_eq!(sessions.len(), 1);
    assert_eq!(sessions[0].requests[0].finish_reason.as_deref(), Some("error"));
    assert_eq!(sessions[0].turns[1].text, "abc");
}

fn complete(running: &Running, prompt: &str) {
    let body = json!({"prompt": prompt, "max_tokens": 3, "temperature": 0});
    assert_eq!(ask(running.address, "/v1/completions", &body).status, 200);
}

fn metrics(running: &Running) -> String {
    let mut client = Client::connect(running.address);
    client.send(get("/metrics"));
    client.answer().text()
}

#[test]
fn a_killed_server_leaves_whole_lines() {
    let folder = tempfile::tempdir().unwrap();
    let mut running = Running::start_with(&["--record", folder.path().to_str().unwrap()], Stdio::null());
    for prompt in ["a", "b"] {
        complete(&running, prompt);
    }
    // A line is written after its answer; the second is there when both are counted.
    while !metrics(&running).contains("engine_records_total{result=\"written\"} 2") {}
    running.signal("-KILL");
    running.end();
    let file = recorded(folder.path());
    assert_eq!(jsonl::read(&file).unwrap().sessions.len(), 2);
    // Wherever the last line is cut, the reader has the first and says which is torn.
    let bytes = std::fs::read(&file).unwrap();
    let first = bytes.iter().position(|b| *b == b'\n').unwrap() + 1;
    for cut in [first + 1, (first + bytes.len()) / 2, bytes.len() - 2] {
        std::fs::write(&file, &bytes[..cut]).unwrap();
        let found = jsonl::read(&file).unwrap();
        assert_eq!((found.sessions.len(), found.torn), (1, Some(2)), "{cut}");
    }
}

/// The limit on the size of files stands in for a disk that is full.
#[test]
fn a_write_that_fails_ends_the_recording_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 4; exec \"$0\" \"$@\""]).arg(program("engine-serve"));
    command.args(["--port", "0", "--threads", "1", "--record"]).arg(folder.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::of(command);
    for _ in 0..12 {
        complete(&running, "def main(items):\n    return items\n");
    }
    while !metrics(&running).contains("engine_recording_stopped 1") {}
    running.signal("-TERM");
    assert_eq!(running.end().code(), Some(0));
    let mut log = String::new();
    std::io::Read::read_to_string(running.child.stderr.as_mut().unwrap(), &mut log).unwrap();
    assert!(log.contains("the recording has stopped and the server goes on"), "{log}");
    let written = sessions(folder.path()).len();
    assert!((1..12).contains(&written), "{written}");
}

#[test]
fn a_folder_that_cannot_be_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for path in [file.as_path(), &file.join("below"), Path::new("/proc/nowhere"), Path::new("/dev/null/x")] {
        let (code, _, error) = run(&["--port", "0", "--record", path.to_str().unwrap()]);
        assert_eq!(code, Some(3), "{error}");
        assert!(error.contains("--record") && error.contains(path.to_str().unwrap()), "{error}");
    }
    let limited = ["--memory-limit", "1", "--port", "0"];
    let room = "records being written";
    let (code, _, error) = run(&limited);
    assert!(code == Some(3) && !error.contains(room), "{error}");
    let (code, _, error) = run(&[&limited[..], &["--record", folder.path().to_str().unwrap()]].concat());
    assert!(code == Some(3) && error.contains(room), "{error}");
}

/// What other dialects ask is recorded with the turns and fields of the chat that would have the same prompt.
#[test]
fn every_dialect_is_recorded_as_a_chat() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::recording(folder.path(), hello);
    let system = "x-anthropic-billing-header: cch=1;\nbe brief";
    let messages = json!({"system": system, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "thinking": {"type": "disabled"}});
    let responses = json!({"instructions": "be brief", "input": "hi", "reasoning": {"effort": "none"}});
    let chat = json!({"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "chat_template_kwargs": {"enable_thinking": false}});
    let asked = [("/v1/messages", messages), ("/v1/responses", responses), ("/v1/chat/completions", chat)];
    let ids = asked.each_ref().map(|(path, body)| {
        let answer = ask(fake.address(), path, body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["id"].clone()
    });
    fake.end();
    let sessions = sessions(folder.path());
    assert_eq!(sessions.len(), 3);
    for ((session, id), (path, _)) in sessions.iter().zip(ids).zip(asked) {
        assert_eq!(session.id, id);
        let turns: Vec<(Role, &str)> = session.turns.iter().map(|t| (t.role, t.text.as_str())).collect();
        assert_eq!(turns[..2], [(Role::System, "be brief"), (Role::User, "hi")], "{path}");
        assert_eq!(session.turns.last().unwrap().tokens, Some(numbers("Hello, world", true)));
        let request = &session.requests[0];
        assert_eq!(request.prompt_tokens, sessions[2].requests[0].prompt_tokens, "{path}");
        let settings = request.settings.as_ref().unwrap();
        assert_eq!(
            (&settings["endpoint"], &settings["chat_template_kwargs"]["enable_thinking"]),
            (&json!(path), &json!(false))
        );
    }
}
