//! The real program: its line on stdout, its exit codes, its signals.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use engine_tests::fixtures::fixture;
use serde_json::{Value, json};

use super::client::{Client, DEADLINE, ask, post};

/// A program of the profile that these tests were built in, brought up to date first.
pub fn program(name: &str) -> PathBuf {
    built().folder.join(name)
}

/// What a build of the programs gave.
struct Built {
    folder: PathBuf,
    /// Packages of others that were compiled for it once more.
    again: Vec<String>,
}

/// The programs, built once a process.
fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| compile(&["--bin", "engine-serve", "--bin", "engine-bench", "--bin", "engine-pack"]))
}

/// Builds targets of the workspace in the profile that these tests were built in. Returns the folder of what came.
pub fn build(targets: &[&str]) -> PathBuf {
    compile(targets).folder
}

/// All packages are selected, for a package's features are those that the selected ones ask of it, and libraries of other
/// features are other libraries; and cargo is called as from a shell, for build scripts run again where a variable that
/// they read has changed.
fn compile(targets: &[&str]) -> Built {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps/it");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--message-format", "json-render-diagnostics", "--workspace"]);
    build.args(targets);
    build.arg("--manifest-path").arg(engine_tests::fixtures::workspace().join("Cargo.toml"));
    build.arg("--target-dir").arg(folder.parent().unwrap());
    if folder.ends_with("release") {
        build.arg("--release");
    }
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| text.starts_with(start)) || text == "OUT_DIR" {
            build.env_remove(name);
        }
    }
    let output = build.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let messages = output.stdout.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    let compiled = messages.filter(|message: &Value| message["fresh"] == false);
    let packages = compiled.filter_map(|message| message["package_id"].as_str().map(str::to_owned));
    let again = packages.filter(|package| package.starts_with("registry+")).collect();
    Built { folder: folder.to_owned(), again }
}

#[test]
fn programs_are_built_of_the_libraries_of_the_tests() {
    assert_eq!(built().again, [""; 0], "compiled for the tests and again for the programs");
}

/// A server that ends with the test.
pub struct Running {
    pub child: Child,
    pub address: SocketAddr,
}

impl Running {
    fn start(flags: &[&str]) -> Self {
        Self::start_with(flags, Stdio::null())
    }

    pub fn start_with(flags: &[&str], stderr: Stdio) -> Self {
        let mut command = Command::new(program("engine-serve"));
        command.args(["--port", "0", "--threads", "1"]).args(flags).stdout(Stdio::piped()).stderr(stderr);
        Self::of(command)
    }

    /// Of a command that pipes its stdout.
    pub fn of(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}"));
        Self { address: address.parse().unwrap(), child }
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(name).arg(self.child.id().to_string()).status().unwrap();
        assert!(status.success() || name != "-HUP");
    }

    pub fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the program does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs to the end; exit code, stdout, stderr.
pub fn run(flags: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program("engine-serve")).args(flags).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_signal_ends_it_with_zero() {
    for signal in ["-TERM", "-INT"] {
        let mut running = Running::start(&[]);
        let body = json!({"prompt": "def ", "max_tokens": 4});
        assert_eq!(ask(running.address, "/v1/completions", &body).status, 200);
        running.signal(signal);
        assert_eq!(running.end().code(), Some(0), "{signal}");
    }
}

#[test]
fn a_model_file_that_shrinks_ends_it_with_a_message() {
    let Some(model) = fixture("qwen35-tiny/qwen35-tiny-Q8_0.gguf") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shrinking.gguf");
    std::fs::copy(model, &file).unwrap();
    let flags = ["--model", file.to_str().unwrap(), "--repack", "off"];
    let mut running = Running::start_with(&flags, Stdio::piped());
    // Connected first: from the cut on, whatever thread reads a weight ends the program, with or without a request.
    let mut client = Client::connect(running.address);
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(4096).unwrap();
    let request = post("/v1/completions", &json!({"prompt": "int main", "max_tokens": 4}).to_string());
    let _ = std::io::Write::write_all(&mut client.stream, request.as_ref());
    assert_eq!(running.end().code(), Some(1));
    let mut text = String::new();
    running.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("shrinking.gguf: the model file "), "{text}");
}

#[test]
fn a_sidecar_drafts_for_a_model_without_a_head() {
    let (Some(model), Some(head)) = (
        fixture("qwen35-tiny/qwen35-tiny-nomtp-Q8_0-00001-of-00003.gguf"),
        fixture("qwen35-tiny/mtp-qwen35-tiny-Q8_0.gguf"),
    ) else {
        return;
    };
    let (model, head) = (model.to_str().unwrap(), head.to_str().unwrap());
    let body = json!({"prompt": "static int f(int x) {\n    return", "max_tokens": 48, "temperature": 0,
        "speculative": {"strategy": "mtp", "window": {"policy": "fixed", "initial": 3}}});
    let alone = Running::start(&["--model", model]);
    let refused = ask(alone.address, "/v1/completions", &body);
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (400, Some("strategy_unavailable")));
    let drafted = Running::start(&["--model", model, "-md", head]);
    let answer = ask(drafted.address, "/v1/completions", &body).json();
    assert!(answer["speculation"]["proposers"]["mtp"]["accepted_n"].as_u64() > Some(0), "{answer}");
    let (code, _, text) = run(&["--port", "0", "--model", model, "--spec-draft-model", model]);
    assert_eq!(code, Some(3), "{text}");
}

#[test]
fn a_second_signal_does_not_wait() {
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let mut running = Running::start(&["--ctx-size", "4096"]);
        // More than all buffers between here and there hold, and nobody reads it: it never finishes by itself.
        let body = json!({"prompt": "def ", "max_tokens": 4000, "ignore_eos": true, "stream": true, "n": 4,
            "logprobs": 20});
        let mut client = Client::connect(running.address);
        client.send(post("/v1/completions", &body.to_string()));
        client.head();
        let deadline = Instant::now() + DEADLINE;
        running.signal(signal);
        // Two signals at once may arrive as one.
        while running.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "{signal}");
            std::thread::sleep(Duration::from_millis(20));
            running.signal(signal);
        }
        assert_eq!(running.end().code(), Some(code), "{signal}");
    }
}

/// A template that works without end, as one of a hostile model file may.
const ENDLESS: &str = "{% if messages[0].content == 'now' %}{% set ns = namespace(x=[1]) %}{% for i in range(40) %}\
    {% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|length }}{% endif %}{{ messages[0].content }}";

#[test]
fn a_request_that_is_stuck_does_not_keep_the_process() {
    for (signals, code) in [(1, 0), (2, 143)] {
        let mut running = Running::start(&["--chat-template", ENDLESS, "--drain-timeout", "1"]);
        let mut client = Client::connect(running.address);
        let body = json!({"messages": [{"role": "user", "content": "now"}]});
        client.send(post("/v1/chat/completions", &body.to_string()));
        std::thread::sleep(Duration::from_millis(500));
        for _ in 0..signals {
            running.signal("-TERM");
            std::thread::sleep(Duration::from_millis(300));
        }
        assert_eq!(running.end().code(), Some(code), "after {signals} signals");
    }
}

#[test]
fn every_answer_of_a_drain_closes_its_connection() {
    let running = Running::start(&["--ctx-size", "4096", "--parallel", "1"]);
    // Nobody reads it: the one slot stays taken.
    let body = json!({"prompt": "def ", "max_tokens": 4000, "ignore_eos": true, "stream": true, "logprobs": 20});
    let mut endless = Client::connect(running.address);
    endless.send(post("/v1/completions", &body.to_string()));
    endless.head();
    let mut queued = Client::connect(running.address);
    queued.send(post("/v1/completions", &json!({"prompt": "x"}).to_string()));
    let mut kept = Client::connect(running.address);
    let mut metrics = || {
        kept.send(super::client::get("/metrics"));
        kept.answer()
    };
    let deadline = Instant::now() + DEADLINE;
    while !metrics().text().contains("\nengine_requests_waiting 1\n") {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(metrics().header("connection"), Some("keep-alive"));
    running.signal("-TERM");
    let answer = queued.answer();
    let code = answer.json()["error"]["code"].clone();
    assert_eq!((answer.status, code.as_str(), answer.header("connection")), (503, Some("draining"), Some("close")));
    queued.expect_end();
    let answer = metrics();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    kept.expect_end();
}

/// Memory of a process that is no file's, in KiB.
fn anonymous_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line of Linux");
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

/// Two choices of some 28 000 tokens, each event of which has a kilobyte or two: whoever made them for a client that does
/// not read would hold a hundred megabytes.
#[test]
fn a_stream_that_nobody_reads_takes_no_more_memory_than_its_buffer() {
    let running = Running::start(&["--ctx-size", "30000", "--parallel", "3"]);
    let body = |tokens: usize, stream: bool| json!({"prompt": "def ", "max_tokens": tokens, "ignore_eos": true, "stream": stream, "n": 2, "logprobs": 20});
    // What the first answer takes is there for all.
    assert_eq!(ask(running.address, "/v1/completions", &body(200, false)).status, 200);
    let before = anonymous_kib(running.child.id());
    let mut client = Client::connect(running.address);
    client.send(post("/v1/completions", &body(28_000, true).to_string()));
    client.head();
    let metrics = || {
        let mut client = Client::connect(running.address);
        client.send(super::client::get("/metrics"));
        client.answer().text()
    };
    // Until both wait for their reader, or, where nobody does, are done.
    let deadline = Instant::now() + DEADLINE;
    let over =
        |page: &str| ["engine_requests_stalled 2", "engine_requests_running 0"].iter().any(|line| page.contains(line));
    while !over(&metrics()) {
        assert!(Instant::now() < deadline, "{}", metrics());
        std::thread::sleep(Duration::from_millis(20));
    }
    for _ in 0..20 {
        let body = json!({"prompt": "x", "max_tokens": 8});
        assert_eq!(ask(running.address, "/v1/completions", &body).status, 200);
    }
    let grown = anonymous_kib(running.child.id()).saturating_sub(before);
    println!("RSS {before} grown {grown}");
    assert!(grown < 64 * 1024, "{grown} KiB more than {before}");
}

#[test]
fn keys_are_read_again_on_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "old\n").unwrap();
    let running = Running::start(&["--api-key-file", file.to_str().unwrap()]);
    let status = |key: &str| {
        let mut client = Client::connect(running.address);
        client.send(format!("GET /v1/models HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\r\n"));
        client.answer().status
    };
    assert_eq!((status("old"), status("new")), (200, 401));
    std::fs::write(&file, "new\n").unwrap();
    running.signal("-HUP");
    let deadline = Instant::now() + DEADLINE;
    while status("new") != 200 {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(status("old"), 401);
    // What would keep its reader waiting is refused: the old keys stay, and the server serves.
    std::fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    running.signal("-HUP");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((status("new"), status("next")), (200, 401));
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "next\n").unwrap();
    running.signal("-HUP");
    let deadline = Instant::now() + DEADLINE;
    while status("next") != 200 {
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn a_signal_while_the_model_is_loaded_is_an_order() {
    // It listens before it loads; its line on stdout comes after.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let child = Command::new(program("engine-serve"))
        .args(["--port", &port.to_string(), "--threads", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut running = Running { child, address };
    let deadline = Instant::now() + DEADLINE;
    while std::net::TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline && running.child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    running.signal("-HUP");
    running.signal("-TERM");
    assert_eq!(running.end().code(), Some(0));
}

#[test]
fn a_full_stdout_is_named() {
    for flags in [&["--limits"][..], &["--help"], &["--port", "0", "--threads", "1"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(program("engine-serve")).args(flags).stdout(full).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{flags:?}: {error}");
        assert!(error.contains("error: cannot write to stdout"), "{flags:?}: {error}");
    }
}

/// Who has read enough is no error of any program, as with `| head`.
#[test]
fn a_reader_that_has_gone_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    std::fs::write(&text, "def add(a, b):\n    return a + b\n").unwrap();
    let model = engine_tests::fixtures::workspace().join("bin/model/slipstream-tiny-coder-Q8_0.gguf");
    let (model, text) = (model.to_str().unwrap(), text.to_str().unwrap());
    let ppl = ["ppl", "--model", model, "--text", text, "--threads", "1"];
    let json = [&ppl[..], &["--json"]].concat();
    let rows: [(&str, &[&str]); 9] = [
        ("engine-pack", &["inspect"]),
        ("engine-pack", &["inspect", "--json"]),
        ("engine-pack", &["--help"]),
        ("engine-bench", &ppl),
        ("engine-bench", &json),
        ("engine-bench", &["--help"]),
        ("engine-serve", &["--help"]),
        ("engine-serve", &["--limits"]),
        ("engine-serve", &["--version"]),
    ];
    for (name, flags) in rows {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(program(name)).args(flags).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), error.as_str()), (Some(0), ""), "{name} {flags:?}");
    }
}

/// An error looks the same whoever has it.
#[test]
fn errors_begin_alike() {
    let rows: [(&str, &[&str], i32); 7] = [
        ("engine-pack", &["inspect", "no-such.gguf"], 3),
        ("engine-pack", &["inspect", "--ctx-size", "1"], 2),
        ("engine-bench", &["speed", "--model", "no-such.gguf"], 3),
        ("engine-bench", &["roofline", "--model", "no-such.gguf"], 3),
        ("engine-bench", &["ppl", "--model", "no-such.gguf", "--text", "no-such.txt"], 3),
        ("engine-serve", &["--model", "no-such.gguf"], 3),
        ("engine-serve", &["--suffix-min", "9", "--suffix-max", "8"], 2),
    ];
    for (name, flags, code) in rows {
        let output = Command::new(program(name)).args(flags).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{name} {flags:?}: {error}");
        assert!(error.starts_with("error: ") && error.matches("error: ").count() == 1, "{name} {flags:?}: {error}");
    }
}

#[test]
fn exit_codes() {
    assert_eq!(run(&["--help"]).0, Some(0));
    let (code, out, _) = run(&["--limits"]);
    assert!(code == Some(0) && out.contains("header block") && out.contains("4095 tokens"), "{out}");
    // Numbers that decide what a server takes: who changes one decides it here too.
    for (name, value) in [
        ("connections", "1024 + 16 for /livez and /metrics"),
        ("told that they are too many", "64 at once"),
        ("requests and news between threads", "4096"),
        ("choices of a request", "256"),
        ("choices that wait", "256"),
    ] {
        let row = format!("{name:<35}{value}");
        assert!(out.lines().any(|line| line == row), "no `{row}` in {out}");
    }
    // The table is of what the flags ask for.
    let (code, out, _) = run(&["--limits", "--parallel", "3", "--queue-timeout", "77", "--ctx-size", "100"]);
    let has = |name: &str, value: &str| out.lines().any(|l| l.starts_with(name) && l.ends_with(&format!("  {value}")));
    assert!(code == Some(0) && has("choices that run", "3") && has("time in the queue", "77 s"), "{out}");
    assert!(has("prompt", "99 tokens") && has("choices per prompt", "3"), "{out}");
    for usage in [&["--nonsense"][..], &["--window-min", "9", "--window-max", "8"], &["--spec-strategy", "fast"]] {
        assert_eq!(run(usage).0, Some(2), "{usage:?}");
    }
    for (file, rule) in
        [("no/such/keys", "No such file"), ("/dev/null", "it is a device; give a plain file"), ("/", "a folder")]
    {
        let (code, _, error) = run(&["--port", "0", "--api-key-file", file]);
        assert!(code == Some(3) && error.contains(file) && error.contains(rule), "{error}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, _, error) = run(&["--port", &port]);
    assert!(code == Some(1) && error.contains(&port), "{error}");
    // More than the addresses of a process.
    let (code, _, error) = run(&["--port", "0", "--ctx-size", "4000000000", "--parallel", "15", "--kv-type", "f32"]);
    assert!(code == Some(1) && error.contains("15 x 4000000000 tokens"), "{error}");
    let (code, _, error) = run(&["--port", "0", "--model", "no/such/file.gguf"]);
    assert!(code == Some(3) && error.contains("no/such/file.gguf"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.gguf");
    std::fs::write(&file, b"GGUF\x03\0\0\0").unwrap();
    let (code, _, error) = run(&["--model", file.to_str().unwrap()]);
    assert!(code == Some(3) && error.contains("bad.gguf"), "{error}");
    // The port is taken.
    let running = Running::start(&[]);
    let port = running.address.port().to_string();
    assert_eq!(run(&["--port", &port]).0, Some(1));
}

#[test]
fn nothing_but_one_line_goes_to_stdout() {
    let mut child = Command::new(program("engine-serve"))
        .args(["--port", "0", "--threads", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let address: SocketAddr = line.trim_end().strip_prefix("listening on http://").unwrap().parse().unwrap();
    assert_eq!(ask(address, "/v1/completions", &json!({"prompt": "x", "max_tokens": 1})).status, 200);
    let mut running = Running { child, address };
    running.signal("-TERM");
    running.end();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

/// Where nobody reads what is said, what is done stays the same: it serves, it ends with its own code.
#[test]
fn a_reader_that_went_away_changes_nothing() {
    let unread = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    let mut running = Running::start_with(&[], unread());
    assert_eq!(ask(running.address, "/v1/completions", &json!({"prompt": "x", "max_tokens": 1})).status, 200);
    running.signal("-TERM");
    assert_eq!(running.end().code(), Some(0));
    let code = |name: &str, flags: &[&str], out: Stdio, error: Stdio| {
        Command::new(program(name)).args(flags).stdout(out).stderr(error).status().unwrap().code()
    };
    for (name, flags, expected) in [
        ("engine-serve", &["--model", "no/such.gguf"][..], 3),
        ("engine-serve", &["--nonsense"], 2),
        ("engine-pack", &["inspect", "no/such.gguf"], 3),
        ("engine-pack", &["inspect", "--ctx-size", "1"], 2),
        ("engine-bench", &["ppl", "--model", "no/such.gguf", "--text", "no/such.txt"], 3),
        ("engine-bench", &["speed", "--model", "no/such.gguf"], 3),
    ] {
        assert_eq!(code(name, flags, Stdio::null(), unread()), Some(expected), "{name} {flags:?}");
    }
    for (name, flags) in
        [("engine-pack", &["inspect"][..]), ("engine-pack", &["--help"]), ("engine-serve", &["--limits"])]
    {
        assert_eq!(code(name, flags, unread(), Stdio::null()), Some(0), "{name} {flags:?}");
    }
}

#[test]
fn contexts_beyond_all_numbers_name_their_flags() {
    let (code, _, error) = run(&["--ctx-size", "2147483648", "--parallel", "64"]);
    assert!(code == Some(2) && error.contains("--ctx-size 2147483648") && error.contains("--parallel 64"), "{error}");
}
