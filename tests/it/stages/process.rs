//! Two real processes: the same answers as one, and what happens when either dies, stalls or is somebody else.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use engine::stage::wire::{Kind, VERSION, frame};
use engine_tests::fixtures::fixture;
use serde_json::{Value, json};

use crate::serve::client::{Answer, Client, DEADLINE, ask, get, post};
use crate::serve::process::{Running, program, run};

/// The last stage of a model.
pub struct Last {
    child: Child,
    pub address: SocketAddr,
}

impl Last {
    pub fn start(flags: &[&str]) -> Self {
        Self::at("127.0.0.1:0", flags)
    }

    fn at(address: &str, flags: &[&str]) -> Self {
        let mut child = Command::new(program("engine-serve"))
            .args(["--stage", "1/2", "--listen", address, "--threads", "1"])
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening for stage 0 on ").unwrap_or_else(|| panic!("{line:?}"));
        Self { address: address.parse().unwrap(), child }
    }

    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").arg(name).arg(self.child.id().to_string()).status().unwrap().success());
    }

    /// Ends by itself: its exit code.
    pub fn end(&mut self) -> Option<i32> {
        let deadline = Instant::now() + DEADLINE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.wait().unwrap().code()
    }

    /// Dies without a word, and comes back at the same address.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn first(last: &Last, flags: &[&str]) -> Running {
    let peer = last.address.to_string();
    let all = [&["--stage", "0/2", "--peer", &peer], flags].concat();
    Running::start_with(&all, Stdio::null())
}

pub fn body(prompt: &str, strategy: &str, max_tokens: u32) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.8, "seed": 5, "ignore_eos": true,
        "speculative": {"strategy": strategy, "window": {"policy": "fixed", "initial": 5, "max": 5}}})
}

pub const PROMPT: &str =
    "def add(total, x):\n    total = total + x\n    return total\n\ndef sub(total, x):\n    total = total";

/// What two runs of one request must have in common: text, use of tokens, and who drafted what.
pub fn told(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    let proposers = ["mtp", "suffix"].map(|name| {
        let of = &answer["speculation"]["proposers"][name];
        ["drafted_n", "accepted_n", "rejected_n", "unreached_n", "discarded_n"].map(|count| of[count].clone())
    });
    // What the prefix cache had of the prompt depends on who asked before.
    let usage = ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| &answer["usage"][name]);
    json!([answer["choices"], usage, proposers.iter().flatten().collect::<Vec<_>>()])
}

fn code(answer: &Answer) -> (u16, Option<String>) {
    (answer.status, answer.json()["error"]["code"].as_str().map(str::to_owned))
}

fn health(address: SocketAddr) -> u16 {
    let mut client = Client::connect(address);
    client.send(get("/health"));
    client.answer().status
}

/// Asks again until it is answered, as a client that honours `Retry-After` does, only sooner.
pub fn ask_until_answered(address: SocketAddr, body: &Value) -> Answer {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let answer = ask(address, "/v1/completions", body);
        if answer.status == 200 {
            return answer;
        }
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.header("retry-after").is_some());
        assert!(Instant::now() < deadline, "the stages do not find each other: {}", answer.text());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn two_processes_answer_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "correct horse battery staple\n").unwrap();
    let key = key.to_str().unwrap();
    let whole = Running::start_with(&[], Stdio::null());
    let last = Last::start(&["--stage-key-file", key]);
    let staged = first(&last, &["--stage-key-file", key]);
    for strategy in ["off", "mtp", "ngram-suffix", "mtp-suffix"] {
        for prompt in [PROMPT, "x"] {
            let body = body(prompt, strategy, 40);
            let want = told(&ask(whole.address, "/v1/completions", &body));
            assert_eq!(told(&ask(staged.address, "/v1/completions", &body)), want, "{strategy}");
        }
    }
    assert_eq!(health(staged.address), 200);
    let (mine, theirs) = (model_entry(staged.address), model_entry(whole.address));
    assert_eq!((&mine["id"], &mine["meta"]["n_vocab"]), (&theirs["id"], &theirs["meta"]["n_vocab"]));
}

fn model_entry(address: SocketAddr) -> Value {
    let mut client = Client::connect(address);
    client.send(get("/v1/models"));
    client.answer().json()["data"][0].clone()
}

#[test]
fn a_last_stage_that_dies_fails_what_runs_and_comes_back() {
    let mut last = Last::start(&[]);
    let staged = first(&last, &["--prefill-chunk", "512"]);
    let address = last.address.to_string();
    let short = body(PROMPT, "mtp-suffix", 24);
    let want = told(&ask(staged.address, "/v1/completions", &short));
    // In the middle of a stream.
    let mut client = streaming(staged.address, 3000);
    last.kill();
    let text = rest(&mut client);
    assert!(text.contains("stage_lost"), "the stream ends with {}", &text[text.len().saturating_sub(300)..]);
    // Nobody is there.
    let deadline = Instant::now() + DEADLINE;
    while health(staged.address) == 200 {
        assert!(Instant::now() < deadline);
    }
    let refused = ask(staged.address, "/v1/completions", &short);
    assert_eq!(code(&refused), (503, Some("stage_unavailable".to_owned())));
    assert!(refused.header("retry-after").is_some());
    // A request without a stream, in its prompt.
    last = Last::at(&address, &[]);
    assert_eq!(told(&ask_until_answered(staged.address, &short)), want, "the same answer as before");
    let prompt = PROMPT.repeat(60);
    let mut client = Client::connect(staged.address);
    client.send(post("/v1/completions", &body(&prompt, "off", 2000).to_string()));
    std::thread::sleep(Duration::from_millis(150));
    last.kill();
    let answer = client.answer();
    assert!(matches!(code(&answer), (503, Some(code)) if code.starts_with("stage_")), "{}", answer.text());
    last = Last::at(&address, &[]);
    assert_eq!(told(&ask_until_answered(staged.address, &short)), want);
    drop(last);
}

#[test]
fn a_first_stage_that_dies_leaves_the_last_to_the_next() {
    let last = Last::start(&[]);
    let want = {
        let staged = first(&last, &[]);
        told(&ask(staged.address, "/v1/completions", &body(PROMPT, "mtp", 24)))
    };
    // That one was killed at rest; this one in the middle.
    let staged = first(&last, &[]);
    let mut long = body(PROMPT, "mtp", 3000);
    long["stream"] = json!(true);
    let mut client = Client::connect(staged.address);
    client.send(post("/v1/completions", &long.to_string()));
    client.head();
    client.chunk().expect("it streams");
    drop(staged);
    let staged = first(&last, &[]);
    assert_eq!(told(&ask(staged.address, "/v1/completions", &body(PROMPT, "mtp", 24))), want);
}

#[test]
fn a_peer_that_stalls_counts_as_gone() {
    let last = Last::start(&[]);
    let staged = first(&last, &["--stage-timeout", "2"]);
    let short = body(PROMPT, "mtp-suffix", 24);
    let want = told(&ask_until_answered(staged.address, &short));
    last.signal("-STOP");
    let answer = ask(staged.address, "/v1/completions", &short);
    last.signal("-CONT");
    assert!(matches!(code(&answer), (503, Some(code)) if code.starts_with("stage_")), "{}", answer.text());
    assert_eq!(told(&ask_until_answered(staged.address, &short)), want);
    // At rest a peer that stalls is noticed as well.
    last.signal("-STOP");
    let deadline = Instant::now() + DEADLINE;
    while health(staged.address) == 200 {
        assert!(Instant::now() < deadline, "nobody notices");
        std::thread::sleep(Duration::from_millis(20));
    }
    last.signal("-CONT");
    assert_eq!(told(&ask_until_answered(staged.address, &short)), want);
}

#[test]
fn a_first_stage_that_stalls_makes_room_for_the_next() {
    let last = Last::start(&["--stage-timeout", "2"]);
    let stalled = first(&last, &[]);
    let short = body(PROMPT, "mtp-suffix", 24);
    let want = told(&ask_until_answered(stalled.address, &short));
    stalled.signal("-STOP");
    let next = first(&last, &[]);
    assert_eq!(told(&ask_until_answered(next.address, &short)), want);
    drop(next);
    // The one that stalled finds its place taken by nobody, and connects again.
    stalled.signal("-CONT");
    assert_eq!(told(&ask_until_answered(stalled.address, &short)), want);
}

/// A client in the middle of an answer of so many tokens.
fn streaming(address: SocketAddr, max_tokens: u32) -> Client {
    let mut long = body(PROMPT, "mtp-suffix", max_tokens);
    long["stream"] = json!(true);
    let mut client = Client::connect(address);
    client.send(post("/v1/completions", &long.to_string()));
    assert_eq!(client.head().status, 200);
    client.chunk().expect("it streams");
    client
}

/// What else it is told.
fn rest(client: &mut Client) -> String {
    let mut text = String::new();
    while let Some(chunk) = client.chunk().filter(|chunk| !chunk.is_empty()) {
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    text
}

#[test]
fn a_last_stage_that_is_told_to_end_lets_finish_what_runs() {
    let mut last = Last::start(&[]);
    let staged = first(&last, &[]);
    let mut client = streaming(staged.address, 400);
    last.signal("-TERM");
    let text = rest(&mut client);
    assert!(text.contains("[DONE]"), "{text}");
    assert_eq!(code(&ask(staged.address, "/v1/completions", &body("x", "off", 1))).0, 503);
    assert_eq!(last.end(), Some(0));
}

/// A first stage that is slow, or stopped for a while, has not ended what it runs.
#[test]
fn a_last_stage_that_is_told_to_end_waits_for_a_first_that_pauses() {
    let mut last = Last::start(&[]);
    let staged = first(&last, &[]);
    let mut client = streaming(staged.address, 400);
    last.signal("-TERM");
    staged.signal("-STOP");
    std::thread::sleep(Duration::from_secs(4));
    staged.signal("-CONT");
    let text = rest(&mut client);
    assert!(text.contains("[DONE]"), "{text}");
    assert_eq!(last.end(), Some(0));
}

/// Runs a first stage that ends by itself: exit code and what it said.
fn refused(last: &Last, flags: &[&str]) -> (Option<i32>, String) {
    let peer = last.address.to_string();
    let all = [&["--stage", "0/2", "--peer", &peer, "--port", "0", "--threads", "1"], flags].concat();
    let (code, _, text) = run(&all);
    (code, text)
}

#[test]
fn stages_that_do_not_belong_together_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let keys = ["correct horse battery staple", "another key of some length", "short"].map(|key| {
        let file = folder.path().join(key.replace(' ', "-"));
        std::fs::write(&file, key).unwrap();
        file.to_str().unwrap().to_owned()
    });
    let last = Last::start(&["--stage-key-file", &keys[0]]);
    for (flags, reason) in [
        (&["--stage-key-file", &keys[1]][..], "another key"),
        (&[], "has a key and stage 0 has none"),
        (&["--stage-key-file", &keys[2]], "at least 16"),
        (&["--stage-key-file", "no/such/file"], "no/such/file"),
        (&["--stage-key-file", &keys[0], "--ctx-size", "512"], "--ctx-size is 512 at stage 0"),
        (&["--stage-key-file", &keys[0], "--kv-type", "f32"], "--kv-type"),
        (&["--stage-key-file", &keys[0], "--exact-activations"], "--exact-activations"),
        (&["--stage-key-file", &keys[0], "--stage-split", "1", "--parallel", "3"], "--parallel is 3"),
    ] {
        let (code, text) = refused(&last, flags);
        assert!(code == Some(3) && text.contains(reason), "{flags:?}: {code:?} {text}");
    }
    if let Some(other) = fixture("qwen35-tiny/qwen35-tiny-Q8_0.gguf") {
        let (code, text) = refused(&last, &["--stage-key-file", &keys[0], "--model", other.to_str().unwrap()]);
        assert!(code == Some(3) && text.contains("different models"), "{code:?} {text}");
        // The same metadata, other weights: one bit in the middle of a tensor.
        let last = Last::start(&["--model", other.to_str().unwrap()]);
        let mut bytes = std::fs::read(&other).unwrap();
        let model = engine_io::ModelFile::open(&other, engine_io::OpenOptions::default()).unwrap();
        let tensor = model.tensors().iter().max_by_key(|t| t.bytes).expect("tensors");
        let data = model.data(tensor);
        let middle = &data.as_ref()[tensor.bytes as usize / 2..][..64];
        let at = bytes.windows(64).position(|window| window == middle).expect("its bytes are in the file");
        bytes[at] ^= 1;
        let changed = folder.path().join("changed.gguf");
        std::fs::write(&changed, bytes).unwrap();
        let (code, text) = refused(&last, &["--model", changed.to_str().unwrap()]);
        assert!(code == Some(3) && text.contains("both files have differ"), "{code:?} {text}");
    }
    let (code, _, text) = run(&["--stage", "1/2", "--listen", "0.0.0.0:0"]);
    assert!(code == Some(3) && text.contains("--stage-key-file"), "{code:?} {text}");
    let (code, _, text) = run(&["--stage", "1/2", "--listen", "127.0.0.1:0", "--stage-split", "99"]);
    assert!(code == Some(3) && text.contains("block 99"), "{code:?} {text}");
}

#[test]
fn whoever_else_comes_is_sent_away_and_the_next_is_served() {
    let last = Last::start(&[]);
    let mut hello = Vec::new();
    frame(&mut hello, Kind::Hello, 0, |body| body.extend_from_slice(&[7; 33]));
    let mut old = hello.clone();
    old[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let mut huge = hello.clone();
    huge[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut early = Vec::new();
    frame(&mut early, Kind::Request, 1, |body| body.extend_from_slice(&[0; 64]));
    let offer = {
        let mut offer = hello.clone();
        let mut second = Vec::new();
        frame(&mut second, Kind::Offer, 0, |body| body.extend_from_slice(&[0xff; 600]));
        offer.extend(second);
        offer
    };
    let garbage = b"GET / HTTP/1.1\r\nHost: example\r\nUser-Agent: somebody\r\n\r\n".to_vec();
    let cut = (0..hello.len()).step_by(5).map(|end| hello[..end].to_vec());
    let is_old = |bytes: &[u8]| bytes.len() == hello.len() && bytes[4..6] != VERSION.to_le_bytes();
    for bytes in [garbage, old, huge, early, offer, vec![0; 4096]].into_iter().chain(cut) {
        let mut stream = TcpStream::connect(last.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        // It closes, or resets where bytes of ours were left unread.
        let _ = stream.read_to_end(&mut rest);
        if is_old(&bytes) {
            let text = String::from_utf8_lossy(&rest);
            assert!(text.contains("run the same version on both sides"), "{text:?}");
        }
    }
    let staged = first(&last, &[]);
    assert_eq!(ask(staged.address, "/v1/completions", &body("x", "off", 4)).status, 200);
}

#[test]
fn a_peer_that_is_no_stage_is_no_reason_to_end() {
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = fake.local_addr().unwrap();
    let mut child = Command::new(program("engine-serve"))
        .args(["--port", "0", "--threads", "1", "--stage", "0/2", "--peer", &address.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Somebody else at that address, then one who hangs up, then the stage.
    for answer in [&b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..], b""] {
        let (mut stream, _) = fake.accept().unwrap();
        stream.write_all(answer).unwrap();
    }
    assert!(child.try_wait().unwrap().is_none(), "it goes on trying");
    drop(fake);
    let last = Last::at(&address.to_string(), &[]);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let served = line.trim_end().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}"));
    let staged = Running { address: served.parse().unwrap(), child };
    assert_eq!(ask(staged.address, "/v1/completions", &body("x", "off", 4)).status, 200);
    drop(last);
    // Of another version, that is one: somebody has to act.
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = fake.local_addr().unwrap().to_string();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = fake.accept().unwrap();
        let mut out = Vec::new();
        frame(&mut out, Kind::Challenge, 0, |body| body.extend_from_slice(&[0; 65]));
        out[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
        stream.write_all(&out).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    });
    let (code, _, text) = run(&["--port", "0", "--threads", "1", "--stage", "0/2", "--peer", &peer]);
    assert!(code == Some(3) && text.contains("version"), "{code:?} {text}");
    answering.join().unwrap();
}
