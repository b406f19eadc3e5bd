//! Replaying sessions against servers: ours with all arms, scripted ones for what can go wrong.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use engine::api::{Finish, Strategy, Submission};
use engine::ids::TokenId;
use engine_bin::bench::replay::live::figures;
use engine_bin::bench::replay::live::run::{Lane, Options, Pass, Target, run};
use engine_bin::bench::replay::live::task::Task;
use engine_bin::bench::replay::script::{self, Cuts, Words};
use engine_bin::bench::result::Arm;
use engine_bin::flags::{LowArgs, ServeArgs};
use engine_bin::serve::gguf_text::GgufText;
use engine_bin::serve::local::Local;
use engine_bin::serve::start;
use engine_io::package::tokenizer_digest;
use engine_io::trace::{self, Role, Session, Turn, jsonl};
use engine_tests::drive::Subject;
use serde_json::{Map, Value, json};

use super::client::{Client, ask, get, post};
use super::fake::{END, Fake, Script};

fn options() -> Options {
    let window = json!({"window": {"policy": "fixed", "initial": 8}});
    Options {
        arms: None,
        speculative: window.as_object().unwrap().clone(),
        concurrency: 1,
        warmup: 0,
        repeats: 1,
        temperature: 0.0,
        seed: 1,
        timeout: super::client::DEADLINE,
    }
}

fn target(name: &str, address: SocketAddr) -> Target {
    Target { name: name.to_owned(), url: format!("http://{address}"), api_key: None }
}

fn session(id: &str, turns: Vec<Turn>) -> Session {
    Session { id: id.to_owned(), source: "test".to_owned(), turns, requests: Vec::new() }
}

fn task(session: &Session) -> Task {
    Task::new(session, None, &|text| text.len())
}

fn measured(tasks: &[Task], targets: &[Target], options: &Options) -> (Vec<Lane>, Vec<Arm>) {
    let lanes = run(tasks, targets, options, &|_| ()).unwrap();
    let arms = figures::arms(&lanes, tasks);
    (lanes, arms)
}

/// The built-in model.
fn local(flags: &str) -> Local {
    let words = std::iter::once("engine-serve").chain(flags.split_whitespace()).map(Into::into);
    let args: ServeArgs = LowArgs::parse_line(words).unwrap().resolve().unwrap();
    let files = start::open(&args).unwrap();
    Local::start(&args, files).unwrap()
}

const FILE: &str = "```json\n{\n  \"name\": \"worker-cell\",\n  \"server\": {\n    \"host\": \"localhost\",\n    \"port\": \
                    8080,\n    \"max_batch\": 16\n  }\n}\n```";

fn edits() -> Vec<Session> {
    let edit = |key: &str, value: usize| format!("Set `server.{key}` to `{value}` in this config.\n{FILE}");
    ["port", "max_batch", "host"]
        .iter()
        .map(|key| {
            let answer = Turn { tokens: Some(vec![0; 70]), ..Turn::output(FILE) };
            let ask = |value| Turn::new(Role::User, edit(key, value));
            session(key, vec![ask(1), answer.clone(), ask(22), answer])
        })
        .collect()
}

fn metric(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {text}"));
    line[name.len()..].trim().parse().unwrap()
}

/// Every arm says what `off` says, several sessions at a time too, and what the answers count is what the server counts.
#[test]
fn all_arms_of_the_built_in_model_agree() {
    let server = local("--threads 1 --parallel 2");
    let sessions = edits();
    let tasks: Vec<Task> = sessions.iter().map(task).collect();
    let options = Options { concurrency: 2, repeats: 2, ..options() };
    let (lanes, arms) = measured(&tasks, &[target("", server.address())], &options);
    let named: Vec<&str> = arms.iter().map(|arm| arm.label.as_str()).collect();
    assert_eq!(named, ["off", "mtp", "ngram-suffix", "mtp-suffix"]);
    for arm in &arms {
        assert_eq!((&arm.failed, &arm.void), (&None, &None), "{}", arm.label);
        assert!(arm.output_sha256.is_some() && arm.output_sha256 == arms[0].output_sha256, "{}", arm.label);
        assert_eq!((arm.requests_n, arm.decode_tok_s.rounds.len()), (6, 2));
        assert_eq!(arm.speculation.completion_tokens, arms[0].speculation.completion_tokens);
        let drafts = arm.strategy != Some(Strategy::Off);
        assert_eq!(arm.speculation.total.accepted_n > 0, drafts, "{}", arm.label);
        assert_eq!(arm.speculation.proposers.contains_key("mtp"), arm.label.starts_with("mtp"));
        assert_eq!(arm.times.ttft_ms.n, 12);
        let by_emission: u64 = arm.emission_tokens_hist.0.values().sum();
        assert!(by_emission > 0 && (drafts || arm.emission_tokens_hist.0.keys().all(|k| k == "1" || k == "2")));
    }
    assert_eq!(arms[3].settings.window.initial, Some(8));

    let mut client = Client::connect(server.address());
    client.send(get("/metrics"));
    let metrics = client.answer().text();
    let sum = |of: &dyn Fn(&engine_bin::bench::counters::Counters) -> u64| -> u64 {
        let samples = lanes.iter().flat_map(|l| &l.passes).flat_map(|p| p.samples.values());
        samples.map(|s| of(&s.ours.as_ref().unwrap().counters)).sum()
    };
    let drafted = |name: &'static str| sum(&|c| c.proposers.get(name).map_or(0, |p| p.drafts.accepted_n));
    for (name, value) in [
        ("engine_spec_steps_total{kind=\"window\"}", sum(&|c| c.windows_n)),
        ("engine_spec_steps_total{kind=\"plain\"}", sum(&|c| c.plain_n)),
        ("engine_generation_tokens_total{source=\"mtp\"}", drafted("mtp")),
        ("engine_generation_tokens_total{source=\"suffix\"}", drafted("suffix")),
        ("engine_generation_tokens_total{source=\"bonus\"}", sum(&|c| c.bonus_n)),
    ] {
        assert_eq!(metric(&metrics, name), value, "{name}");
    }
    assert!(server.end());
}

/// What a server recorded is asked again as it was asked: chats with the same prompts, completions as completions.
#[test]
fn what_was_recorded_replays() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = local(&format!("--threads 1 --record {}", folder.path().display()));
    let chat = |messages: Value| {
        let body = json!({"messages": messages, "max_tokens": 12, "temperature": 0});
        let answer = ask(recorder.address(), "/v1/chat/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let user = |text: &str| json!({"role": "user", "content": text});
    let first = chat(json!([user("Write a loop.")]));
    chat(json!([user("Write a loop."), {"role": "assistant", "content": first}, user("Again.")]));
    let body = json!({"prompt": "def main(", "max_tokens": 9, "temperature": 0});
    assert_eq!(ask(recorder.address(), "/v1/completions", &body).status, 200);
    assert!(recorder.end());

    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let recording = jsonl::read(&file).unwrap();
    assert_eq!((recording.sessions.len(), recording.torn), (2, None));
    let tasks: Vec<Task> = recording.sessions.iter().map(task).collect();
    assert_eq!(tasks.iter().map(|t| t.asks.len()).collect::<Vec<_>>(), [2, 1]);
    let server = local("--threads 1");
    let (lanes, arms) = measured(&tasks, &[target("", server.address())], &options());
    assert!(arms.iter().all(|arm| arm.failed.is_none() && arm.void.is_none()), "{arms:?}");
    for (&(session, turn), sample) in &lanes[0].passes[0].samples {
        let recorded = &recording.sessions[session];
        let prompt = recorded.request(turn).unwrap().prompt_tokens.as_ref().unwrap();
        assert_eq!(sample.prompt_n, prompt.len() as u64);
        let said = recorded.turns[turn].tokens.clone().unwrap();
        assert_eq!(sample.output, engine_bin::bench::replay::live::run::Output::Ids(said));
    }
    assert!(server.end());
}

/// A forced replay repeats every token that was chosen, whatever the client was given of it: behind a stop string, of a
/// choice that was cancelled, and behind a tag that the prompt ended in.
#[test]
fn a_forced_replay_repeats_what_was_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = local(&format!("--threads 1 --record {}", folder.path().display()));
    let stopped = json!({"prompt": "def total_price(items):\n", "max_tokens": 40, "temperature": 0, "stop": [" "]});
    assert_eq!(ask(recorder.address(), "/v1/completions", &stopped).status, 200);
    let endless = json!({"prompt": "def add(", "max_tokens": 4000, "ignore_eos": true, "stream": true});
    let mut client = Client::connect(recorder.address());
    client.send(post("/v1/completions", &endless.to_string()));
    client.head();
    (0..5).for_each(|_| drop(client.chunk().unwrap()));
    drop(client);
    assert!(recorder.end());

    let path = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let mut found = trace::load(&[path], None).unwrap();
    let sessions = &mut found.traces[0].sessions;
    let reasons: Vec<_> = sessions.iter().map(|s| s.requests[0].finish_reason.as_deref().unwrap()).collect();
    assert_eq!(reasons, ["stop_string", "cancelled"]);
    let opened = Subject::built_in().opened;
    let shown = |session: &Session| {
        let bytes = opened.tokenizer.decode_bytes(session.turns[1].tokens.as_ref().unwrap(), false).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    assert!(shown(&sessions[0]).starts_with(&format!("{} ", sessions[0].turns[1].text)), "the string was chosen");
    assert_eq!(shown(&sessions[1]), sessions[1].turns[1].text, "nothing is held back at the end");
    let mut tagged = sessions[0].clone();
    tagged.turns[1].text.insert_str(0, "<think>\n");
    // Nothing was chosen of this one, although its client was given the tag.
    let mut empty = tagged.clone();
    (empty.turns[1].text, empty.turns[1].tokens) = ("<think>\n".to_owned(), Some(Vec::new()));
    // Ids of a vocabulary that is not this one are nothing but numbers.
    let mut foreign = tagged.clone();
    foreign.requests[0].tokenizer_sha256 = Some("0".repeat(64));
    sessions.extend([tagged, empty, foreign]);

    let text = GgufText::new(Arc::clone(&opened.tokenizer)).unwrap();
    let (tokenizer, pieces) = (&opened.tokenizer, &opened.pieces);
    let words = Words { tokenizer, text: &text, pieces, end: None, digest: tokenizer_digest(opened.file.meta()) };
    let cuts = Cuts { context: 10_000, max_tokens: None, limit: None, min_output: 0 };
    let [workload] = &script::workloads(&found, &words, &cuts, &mut |line| panic!("{line}"))[..] else { panic!() };
    let ids = |ids: &Option<Vec<u32>>| ids.iter().flatten().map(|id| TokenId(*id)).collect::<Vec<_>>();
    let sessions = &found.traces[0].sessions;
    assert_eq!((workload.scripts.len(), workload.facts.left_out_n), (4, 1));
    for (script, session) in workload.scripts.iter().zip(&sessions[..3]) {
        assert_eq!(script.target, ids(&session.turns[1].tokens));
        assert_eq!(script.prompt, ids(&session.requests[0].prompt_tokens));
    }
    assert_ne!(workload.scripts[3].target, ids(&sessions[4].turns[1].tokens));
    // Of a prompt that does not fit the end is kept, of an answer the beginning.
    let short = Cuts { context: 8, ..cuts };
    let cut = script::workloads(&found, &words, &short, &mut |line| panic!("{line}")).remove(0);
    let (whole, cut) = (&workload.scripts[0], &cut.scripts[0]);
    assert!(whole.prompt.ends_with(&cut.prompt) && whole.target.starts_with(&cut.target), "{cut:?}");
    assert!(cut.prompt.len() < whole.prompt.len() && cut.prompt.len() + cut.target.len() == 8, "{cut:?}");
}

fn text_of(submission: &Submission) -> String {
    submission.prompt.iter().map(|t| t.0 as u8 as char).collect()
}

/// An arm that says something else than `off` is void, and the first difference is named.
#[test]
fn an_arm_that_differs_is_void() {
    let fake = Fake::start(|submission| {
        let drafts = submission.speculation.strategy != Strategy::Off;
        let second = text_of(submission).contains("two");
        Script::Say(vec![if drafts && second { "good bay" } else { "good day" }], Finish::EndToken(END))
    });
    let said = |text: &str| Turn::output(text.repeat(9));
    let turns = vec![Turn::new(Role::User, "one"), said("x"), Turn::new(Role::User, "two"), said("y")];
    let (_, arms) = measured(&[task(&session("s7", turns))], &[target("", fake.address())], &options());
    assert_eq!(arms.len(), 2);
    assert_eq!((&arms[0].void, arms[0].speedup), (&None, Some(1.0)));
    let void = arms[1].void.as_ref().unwrap();
    assert_eq!((void.session.as_str(), void.turn, void.position), ("s7", 3, 5));
    assert_eq!((void.expected.as_str(), void.found.as_str()), ("100", "98"));
    assert_ne!(arms[0].output_sha256, arms[1].output_sha256);
    // The recorded turn is what the conversation went on with.
    let prompts: Vec<String> = fake.submissions().iter().map(text_of).collect();
    assert_eq!(prompts[1], "user: one\nassistant: xxxxxxxxx\nuser: two\nassistant: ");
    assert_eq!(fake.submissions()[1].max_tokens, 9);
}

/// Every pass is held against `off`, not the first alone.
#[test]
fn a_pass_that_differs_later_is_void() {
    let drafted = AtomicUsize::new(0);
    let fake = Fake::start(move |submission| {
        let again = submission.speculation.strategy != Strategy::Off && drafted.fetch_add(1, Ordering::Relaxed) > 0;
        Script::Say(vec![if again { "good bay" } else { "good day" }], Finish::EndToken(END))
    });
    let options = Options { repeats: 2, ..options() };
    let (_, arms) = measured(&[hello_task()], &[target("", fake.address())], &options);
    assert_eq!((arms[0].void.as_ref(), arms[1].void.as_ref().map(|void| void.position)), (None, Some(5)));
}

#[test]
fn an_arm_that_no_server_has_is_refused() {
    let fake = Fake::start(super::fake::hello);
    let asked = Options { arms: Some(vec![Strategy::Mtp]), ..options() };
    let turns = vec![Turn::new(Role::User, "one"), Turn::output("x")];
    let error = run(&[task(&session("s", turns))], &[target("", fake.address())], &asked, &|_| ()).unwrap_err();
    assert!(error.contains("mtp") && error.contains("off, ngram-suffix"), "{error}");
}

/// What a server says at the end that says no more and does not close.
const STALLS: &str = "<stalls>";
/// ... that says nothing of use for ever.
const DRIPS: &str = "<drips>";

/// A server that is not ours: for every request `answer` gives the bytes, from its path and body.
fn foreign(answer: impl Fn(&str, &str) -> String + Send + Sync + 'static) -> SocketAddr {
    scripted(move |head, body| answer(head.split(' ').nth(1).unwrap_or_default(), body))
}

/// The same from the lines before the body.
fn scripted(answer: impl Fn(&str, &str) -> String + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = std::sync::Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = std::sync::Arc::clone(&answer);
            thread::spawn(move || {
                let stream = stream.unwrap();
                let mut input = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    if input.read_line(&mut line).unwrap() <= 2 {
                        break;
                    }
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    head.push_str(&line);
                }
                let mut body = vec![0; length];
                input.read_exact(&mut body).unwrap();
                let bytes = answer(&head, std::str::from_utf8(&body).unwrap());
                let stalls = bytes.strip_suffix(STALLS);
                let drips = bytes.strip_suffix(DRIPS);
                // A client that wants no more has gone.
                let mut sent = (&stream).write_all(stalls.or(drips).unwrap_or(&bytes).as_bytes());
                if stalls.is_some() {
                    thread::sleep(super::client::DEADLINE);
                }
                while drips.is_some() && sent.is_ok() {
                    thread::sleep(Duration::from_millis(20));
                    sent = (&stream).write_all(b": still here\n");
                }
            });
        }
    });
    address
}

fn http(status: &str, kind: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n{body}")
}

fn models() -> String {
    http("200 OK", "application/json", r#"{"object":"list","data":[{"id":"their/model","object":"model"}]}"#)
}

fn stream(events: &[&str]) -> String {
    http("200 OK", "text/event-stream", &events.iter().map(|e| format!("data: {e}\n\n")).collect::<String>())
}

const ROLE: &str = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}"#;
const HEL: &str = r#"{"choices":[{"index":0,"delta":{"content":"Hel"}}]}"#;
const LO: &str = r#"{"choices":[{"index":0,"delta":{"content":"lo"}}],"usage":null}"#;
const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":3,"total_tokens":14}}"#;
const DONE: &str = "[DONE]";

fn silent_session() -> Session {
    session("silent", vec![Turn::new(Role::User, "hi")])
}

fn hello_task() -> Task {
    task(&session("s", vec![Turn::new(Role::User, "hi"), Turn::output("Hello, world!")]))
}

/// Another server stands beside ours in one result: one arm of its own name, measured by the client alone.
#[test]
fn another_server_has_one_arm() {
    let fake = Fake::start(super::fake::hello);
    let counts = foreign(|path, body| match path {
        "/v1/models" => models(),
        _ => {
            let body: Map<String, Value> = serde_json::from_str(body).unwrap();
            assert_eq!((&body["model"], &body["temperature"]), (&json!("their/model"), &json!(0.0)));
            assert!(!body.contains_key("speculative") && !body.contains_key("return_token_ids"));
            stream(&[ROLE, HEL, LO, STOP, USAGE, DONE])
        }
    });
    let silent = foreign(|path, _| match path {
        "/v1/models" => models(),
        _ => stream(&[ROLE, HEL, LO, STOP, DONE]),
    });
    let targets = [target("", fake.address()), target("theirs", counts), target("old", silent)];
    let (lanes, arms) = measured(&[hello_task()], &targets, &Options { repeats: 3, ..options() });
    let named: Vec<&str> = arms.iter().map(|arm| arm.label.as_str()).collect();
    assert_eq!(named, ["off", "ngram-suffix", "theirs", "old"]);
    assert!(arms.iter().all(|arm| arm.failed.is_none() && arm.void.is_none()), "{arms:?}");
    let (theirs, old) = (&arms[2], &arms[3]);
    assert_eq!((theirs.strategy, theirs.prompt_tokens, theirs.speculation.completion_tokens), (None, 11, 3));
    assert_eq!((theirs.times.ttft_ms.n, theirs.times.emission_gap_ms.n, theirs.times.tpot_ms.n), (3, 3, 3));
    assert!(theirs.speedup.is_some() && theirs.output_sha256.is_some());
    assert_eq!((old.speculation.completion_tokens, old.output_sha256), (2, theirs.output_sha256));
    // What the client waited for the first text is no decoding.
    let rate = |pass: &Pass| 2.0 / (pass.samples[&(0, 1)].finished_s - pass.samples[&(0, 1)].first_s);
    assert_eq!(theirs.decode_tok_s.rounds, lanes[2].passes.iter().map(rate).collect::<Vec<_>>());
    // The time of a pass is that of all its sessions, and says nothing of one kind of several.
    let other = Task::new(&Session { source: "other".to_owned(), ..silent_session() }, None, &|text| text.len());
    let rates = |tasks: &[Task]| figures::workloads(&lanes, tasks)[0].arms[2].total_tok_s.rounds.len();
    assert_eq!((rates(&[hello_task()]), rates(&[hello_task(), other])), (3, 0));
    let counted: Vec<bool> = lanes.iter().map(|l| l.passes[0].samples[&(0, 1)].counted).collect();
    assert_eq!(counted, [true, true, true, false]);
}

/// Whatever is wrong with a server is said of its arm; the others are measured all the same.
#[test]
fn what_is_wrong_with_a_server_is_said() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = r#"{"error":{"message":"no such key","type":"authentication_error","code":401}}"#;
    let broken = r#"{"error":{"message":"out of memory","type":"server_error"}}"#;
    let second = r#"{"choices":[{"index":1,"delta":{"content":"x"}}]}"#;
    let whole = format!("{}data: {STOP}", stream(&[ROLE, HEL]));
    let cases: Vec<(&str, String)> = vec![
        ("answers 401: no such key", http("401 Unauthorized", "application/json", error)),
        ("answers 500: <h1>oops</h1>", http("500 Internal Server Error", "text/html", "<h1>oops</h1>")),
        ("answers 302", http("302 Found\r\nLocation: http://elsewhere/", "text/plain", "")),
        ("is no line of an event stream", http("200 OK", "text/html", "<h1>hi</h1>\n")),
        ("is no JSON object", stream(&["{\"choices\":"])),
        ("is no JSON object", stream(&["[1]"])),
        ("has no list of choices", stream(&["{}"])),
        ("one choice was asked for", stream(&[second])),
        ("usage is no usage", stream(&[r#"{"choices":[],"usage":{"prompt_tokens":-1}}"#])),
        ("usage is no usage", stream(&[&USAGE.replace("11", "1099511627776")])),
        ("usage has 14 completion tokens, and at most 13", stream(&[HEL, LO, STOP, &USAGE.replace(":3", ":14"), DONE])),
        ("usage has no completion tokens, and 5 bytes", stream(&[HEL, LO, STOP, &USAGE.replace(":3", ":0"), DONE])),
        // Whatever follows is not waited for, nor kept.
        ("bytes of text came, and at most 13", stream(&[&HEL.replace("Hel", &"x".repeat(14_000))]) + STALLS),
        ("ended without [DONE]", stream(&[ROLE, HEL, STOP])),
        ("[DONE] came before any finish_reason", stream(&[ROLE, HEL, DONE])),
        ("in the middle of an event", whole),
        ("broke off with an error: out of memory", stream(&[ROLE, HEL, broken])),
        ("HTTP", "nonsense\r\n\r\n".to_owned()),
    ];
    let fake = Fake::start(super::fake::hello);
    let mut targets = vec![target("", fake.address()), target("closed", closed)];
    let mut expected = vec!["onnection refused"];
    for (text, bytes) in &cases {
        let bytes = bytes.clone();
        let address = foreign(move |path, _| if path == "/v1/models" { models() } else { bytes.clone() });
        targets.push(target(text, address));
        expected.push(text);
    }
    // No list of models at all.
    targets.push(target("list", foreign(|_, _| http("404 Not Found", "text/plain", "what?"))));
    expected.push("answers 404: what?");
    let (_, arms) = measured(&[hello_task()], &targets, &options());
    assert_eq!(arms.len(), 2 + expected.len());
    assert!(arms[..2].iter().all(|arm| arm.failed.is_none() && arm.void.is_none() && arm.requests_n == 1));
    for (arm, expected) in arms[2..].iter().zip(expected) {
        let failed = arm.failed.as_deref().unwrap_or_else(|| panic!("{expected}: did not fail"));
        assert!(failed.contains(expected), "{expected}: {failed}");
        assert!(failed.contains("http://127.0.0.1:"), "{failed}");
        assert_eq!((arm.requests_n, arm.output_sha256, arm.speedup), (0, None, None));
    }
}

/// A server that says it is ours has to count as ours does.
#[test]
fn counters_that_contradict_each_other_fail_the_arm() {
    let speculation = json!({"effective": {"strategy": "off"}, "steps_n": 2, "windows_n": 0, "plain_n": 2, "first_n": 1,
        "bonus_n": 2, "forced_n": 0, "proposed_n": 0, "trimmed_n": 0, "drafted_n": 0, "accepted_n": 0, "rejected_n": 0,
        "unreached_n": 0, "discarded_n": 0, "proposers": {}, "tail": {}, "width_hist": {"0": 2}, "accepted_hist": {},
        "per_position": []});
    let good = json!({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 3},
        "timings": {"cache_n": 1, "prompt_n": 10, "predicted_n": 3}, "speculation": speculation});
    let with = |pointer: &str, value: Value| {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        bad
    };
    let cases = [
        ("", good.clone()),
        ("lacks usage, timings or speculation", with("/speculation", Value::Null)),
        ("counters contradict", with("/speculation/bonus_n", json!(1))),
        ("counters contradict", with("/speculation/plain_n", json!(3))),
        ("counters contradict", with("/speculation/width_hist", json!({"0": 1, "1": 1}))),
        ("counters contradict", with("/speculation/drafted_n", json!(1))),
        ("counters contradict", with("/usage/prompt_tokens", json!(12))),
        ("counters contradict", with("/timings/predicted_n", json!(4))),
        ("counters contradict", with("/usage/completion_tokens", json!(4))),
        ("off was asked for, and mtp drafted", with("/speculation/effective/strategy", json!("mtp"))),
        ("is no such block", with("/speculation/steps_n", json!("many"))),
        ("a count is larger", with("/speculation/steps_n", json!(u64::MAX))),
        ("a count is larger", with("/speculation/width_hist", json!({"18446744073709551615": 2}))),
        ("counters contradict", with("/timings/cache_n", json!(u64::MAX))),
    ];
    for (expected, last) in cases {
        let last = last.to_string();
        let ids = r#"{"choices":[{"index":0,"delta":{"content":"Hello"},"token_ids":[1,2]}]}"#;
        let end = r#"{"choices":[{"index":0,"delta":{},"token_ids":[3],"finish_reason":"stop"}]}"#;
        let address = foreign(move |path, _| match path {
            "/v1/models" => {
                http("200 OK", "application/json", r#"{"data":[{"id":"m","meta":{"strategies":["off"]}}]}"#)
            }
            _ => stream(&[ROLE, ids, end, &last, DONE]),
        });
        let (_, arms) = measured(&[hello_task()], &[target("ours", address)], &options());
        let failed = arms[0].failed.as_deref().unwrap_or_default();
        assert!(failed.contains(expected) && failed.is_empty() == expected.is_empty(), "{expected}: {failed}");
    }
}

#[test]
fn a_silent_server_is_given_up() {
    let begun = stream(&[ROLE, HEL]) + STALLS;
    // Comments keep a connection open, and say nothing.
    let kept_open = stream(&[ROLE, HEL]) + DRIPS;
    let answers = [STALLS.to_owned(), begun, kept_open].map(|answer| (models(), answer));
    let list = (http("200 OK", "application/json", "{") + DRIPS, String::new());
    for (models, answer) in answers.into_iter().chain([list]) {
        let address = foreign(move |path, _| if path == "/v1/models" { models.clone() } else { answer.clone() });
        let options = Options { timeout: Duration::from_millis(300), ..options() };
        let (_, arms) = measured(&[hello_task()], &[target("theirs", address)], &options);
        let failed = arms[0].failed.as_deref().unwrap();
        assert!(failed.contains("no answer for 0.3 s") && failed.contains("--timeout"), "{failed}");
    }
}

/// A session ends where a server has no room for it, and what some had no room for counts for nobody.
#[test]
fn what_is_too_long_for_one_counts_for_none() {
    let fake = Fake::start(super::fake::hello);
    let big = foreign(|path, _| match path {
        "/v1/models" => models(),
        _ => stream(&[ROLE, HEL, STOP, USAGE, DONE]),
    });
    let small = foreign(|path, body| match path {
        "/v1/models" => models(),
        _ if body.len() > 300 => http(
            "400 Bad Request",
            "application/json",
            r#"{"error":{"code":400,"type":"exceed_context_size_error","message":"too long"}}"#,
        ),
        _ => stream(&[ROLE, HEL, STOP, USAGE, DONE]),
    });
    let long = "x".repeat(300);
    let turns = vec![
        Turn::new(Role::User, "one"),
        Turn::output("x".repeat(13)),
        Turn::new(Role::User, long.as_str()),
        Turn::output("y".repeat(13)),
        Turn::new(Role::User, "three"),
        Turn::output("z".repeat(13)),
    ];
    let targets = [target("", fake.address()), target("big", big), target("small", small)];
    let (lanes, arms) = measured(&[task(&session("s", turns))], &targets, &options());
    assert!(arms.iter().all(|arm| arm.failed.is_none() && arm.requests_n == 1), "{arms:?}");
    let left_out: Vec<usize> = lanes.iter().map(|lane| lane.passes[0].too_long_n).collect();
    assert_eq!(left_out, [2, 2, 0, 2]);
}

/// `engine-bench replay --mode live`: exit code, stdout, stderr.
fn verb(file: &std::path::Path, flags: &[&str]) -> (Option<i32>, String, String) {
    let mut command = std::process::Command::new(super::process::program("engine-bench"));
    command.arg("replay").arg(file).args(["--threads", "1", "--warmup", "0", "--repeats", "1"]).args(flags);
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// What flags say reaches a server of ours, whoever started it: every arm its strategy and how to draft, and every pass a
/// prefix cache of its own. Passes take turns in another order every round, the warm-up is none of them, and sessions that
/// say too little are left out.
#[test]
fn flags_reach_the_servers_that_are_asked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sessions.jsonl");
    let turns = |text: &str| vec![Turn::new(Role::User, "hi"), Turn::output(text)];
    let mut bytes = Vec::new();
    jsonl::write(&mut bytes, &session("short", turns("Hi"))).unwrap();
    jsonl::write(&mut bytes, &session("long", turns("Hello to all of you who are here today"))).unwrap();
    std::fs::write(&file, bytes).unwrap();
    let asked: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
    let seen = Arc::clone(&asked);
    let address = scripted(move |head, body| {
        if head.starts_with("GET") {
            assert!(head.contains("Bearer of-two"), "{head}");
            let models = r#"{"data":[{"id":"m","meta":{"strategies":["off","mtp-suffix"]}}]}"#;
            return http("200 OK", "application/json", models);
        }
        let body: Value = serde_json::from_str(body).unwrap();
        let strategy = body["speculative"]["strategy"].clone();
        seen.lock().unwrap().push((head.to_ascii_lowercase(), body));
        let ids = r#"{"choices":[{"index":0,"delta":{"content":"Hello"},"token_ids":[1,2]}]}"#;
        let end = r#"{"choices":[{"index":0,"delta":{},"token_ids":[3],"finish_reason":"stop"}]}"#;
        let last = json!({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 3},
            "timings": {"cache_n": 1, "prompt_n": 10, "predicted_n": 3}, "speculation": {
                "effective": {"strategy": strategy}, "steps_n": 2, "plain_n": 2, "first_n": 1, "bonus_n": 2,
                "width_hist": {"0": 2}}});
        stream(&[ROLE, ids, end, &last.to_string(), DONE])
    });
    let url = format!("http://{address}");
    let flags = "--mode live --url-only --url-key of-two --temperature 0.5 --seed 7 --mtp-tokens 2 --suffix-min 4 \
                 --suffix-max 20 --suffix-tokens 9 --window-policy fixed --window-initial 6 --window-min 2 --window-max 11 \
                 --min-output 5 --json --url";
    let flags: Vec<&str> = flags.split_whitespace().chain([url.as_str()]).collect();
    let mut command = std::process::Command::new(super::process::program("engine-bench"));
    let output =
        command.arg("replay").arg(&file).args(&flags).args(["--warmup", "1", "--repeats", "2"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: engine_bin::bench::result::BenchResult = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((result.traces[0].left_out_n, result.arms[1].decode_tok_s.rounds.len()), (1, 2));

    let asked = asked.lock().unwrap();
    let told = |(head, body): &(String, Value)| {
        assert!(head.contains("authorization: bearer of-two"), "{head}");
        assert_eq!((&body["temperature"], &body["seed"]), (&json!(0.5), &json!(7)));
        body["speculative"]["strategy"].as_str().unwrap().to_owned()
    };
    let order: Vec<String> = asked.iter().map(told).collect();
    assert_eq!(order, ["off", "mtp-suffix", "mtp-suffix", "off", "off", "mtp-suffix"]);
    assert_eq!(asked[0].1["speculative"], json!({"strategy": "off"}));
    let drafts = json!({"strategy": "mtp-suffix", "mtp_tokens": 2, "suffix_min": 4, "suffix_max": 20,
        "suffix_tokens": 9, "window": {"policy": "fixed", "initial": 6, "min": 2, "max": 11}});
    assert_eq!(asked[1].1["speculative"], drafts);
    let salts: std::collections::BTreeSet<&str> =
        asked.iter().map(|(_, body)| body["cache_salt"].as_str().unwrap()).collect();
    assert_eq!(salts.len(), 6, "{salts:?}");
}

#[test]
fn the_verb_prints_servers_beside_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sessions.jsonl");
    let mut bytes = Vec::new();
    edits().iter().for_each(|session| jsonl::write(&mut bytes, session).unwrap());
    std::fs::write(&file, bytes).unwrap();
    let theirs = foreign(|path, _| match path {
        "/v1/models" => models(),
        _ => stream(&[ROLE, HEL, LO, STOP, USAGE, DONE]),
    });
    let theirs = format!("theirs=http://{theirs}");
    let live = ["--mode", "live", "--max-tokens", "9", "--concurrency", "2", "--url", &theirs];

    let (code, out, error) = verb(&file, &live);
    assert_eq!(code, Some(0), "{error}");
    for arm in ["off", "mtp", "ngram-suffix", "mtp-suffix", "theirs"] {
        let rows = out.lines().filter(|line| line.split_whitespace().next() == Some(arm)).count();
        assert_eq!(rows, 2, "{arm} in {out}");
    }
    assert!(out.contains("of another server") && out.matches("as off").count() == 4, "{out}");

    let (code, out, error) = verb(&file, &[&live[..], &["--json", "--arms", "off,ngram-suffix"]].concat());
    assert_eq!(code, Some(0), "{error}");
    let result: engine_bin::bench::result::BenchResult = serde_json::from_str(&out).unwrap();
    assert_eq!((result.mode.as_str(), result.traces[0].outputs_n), ("live", 6));
    let tokens: Vec<u64> = result.arms.iter().map(|arm| arm.speculation.completion_tokens).collect();
    assert!(tokens[0] > 6 && tokens[0] <= 54 && tokens[1] == tokens[0] && tokens[2] == 18, "{tokens:?}");

    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let alone = ["--mode", "live", "--url-only", "--url", &format!("http://{closed}"), "--url", &theirs];
    let (code, out, error) = verb(&file, &alone);
    assert_eq!(code, Some(1), "{error}");
    assert!(out.contains("onnection refused") && error.contains("an arm failed"), "{out}\n{error}");
    assert!(!out.contains("mtp-suffix") && out.contains("theirs"), "{out}");

    for (flags, part) in [
        (&["--mode", "live", "--url-only"][..], "--url"),
        (&["--mode", "live", "--url", "localhost:8080"], "http://HOST:PORT"),
        (&["--mode", "forced", "--url", "http://h:1"], "--url is for --mode live"),
        (&["--mode", "live", "--accept-rate", "0.5"], "--accept-rate is for --mode synthetic"),
        (&["--mode", "live", "--timeout", "0"], "--timeout"),
        (&["--mode", "live", "--arms", "auto"], "name strategies"),
        (&["--mode", "live", "--url", "off=http://h:1"], "off is the name of an arm"),
    ] {
        let (code, _, error) = verb(&file, flags);
        assert!(code == Some(2) && error.contains(part), "{flags:?}: {code:?} {error}");
    }
}
