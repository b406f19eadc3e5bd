//! A server process with all its slots full: what memory was planned for it, and what it takes.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// Between two looks at a process.
const LOOK: Duration = Duration::from_millis(2);
/// Rows of logits that are held at once: what windows of all slots together fill.
const LOGIT_ROWS: usize = 64;
/// Tokens of a completion.
pub const COMPLETION: usize = 100;

/// How a server is loaded.
#[derive(Clone, Debug)]
pub struct Load<'a> {
    /// Folder of `engine-serve` and `engine-pack`.
    pub programs: &'a Path,
    /// The model; `None` = the built-in one.
    pub model: Option<&'a Path>,
    /// Tokens of a request, more than [`COMPLETION`].
    pub context: usize,
    /// Requests at once.
    pub parallel: usize,
    /// Workers.
    pub threads: usize,
    /// Further flags of both programs.
    pub flags: &'a [&'a str],
    /// An MTP block drafts whatever the check at start finds: what is planned for it is taken.
    pub force: bool,
}

/// Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// What `engine-pack inspect` says.
    pub planned: usize,
    /// Most anonymous memory that was seen, `RssAnon` of `/proc/PID/status`.
    pub anonymous: usize,
    /// Most memory in all, file pages included: `VmHWM`.
    pub resident: usize,
    /// The plan counts an MTP block.
    pub planned_mtp: bool,
    /// Drafts of the MTP block.
    pub drafted_mtp: u64,
}

impl Found {
    /// Whether plan and measurement agree: within 2 % or 16 MiB, whichever is more. A block that is planned and never
    /// drafts has touched little of what it may.
    pub fn agrees(&self) -> bool {
        self.is_within(16 << 20)
    }

    /// The same with another least difference.
    pub fn is_within(&self, bytes: usize) -> bool {
        self.planned.abs_diff(self.anonymous) <= (self.anonymous / 50).max(bytes)
            && self.planned_mtp == (self.drafted_mtp > 0)
    }
}

/// Plans, then serves: every slot is filled to its context with a text that repeats itself, windows as wide as logits
/// are held for; then one request draws with every filter. What it takes is polled meanwhile.
///
/// # Panics
/// If a program fails, or answers with an error.
pub fn measure(load: &Load<'_>) -> Found {
    let numbers = [load.context, load.parallel, load.threads].map(|n| n.to_string());
    let mut flags = Vec::new();
    for (flag, number) in ["--ctx-size", "--parallel", "--threads"].iter().zip(&numbers) {
        flags.extend([*flag, number]);
    }
    // As wide as logits are held for, so that all of them, and all of the ingredient logs, are written.
    let width = width(load).to_string();
    flags.extend(["--window-max", &width]);
    flags.extend(load.flags);
    let report = inspect(load, &flags);
    let mut command = Command::new(load.programs.join("engine-serve"));
    command.args(&flags).args(["--port", "0"]).args(load.force.then_some("--mtp-force"));
    if let Some(model) = load.model {
        command.arg("--model").arg(model);
    }
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("engine-serve starts");
    let mut child = Ending(child);
    let (peak, resident, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let drafted = AtomicU64::new(0);
    let pid = child.0.id();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                peak.fetch_max(status(pid, "RssAnon:"), Ordering::Relaxed);
                resident.fetch_max(status(pid, "VmHWM:"), Ordering::Relaxed);
                thread::sleep(LOOK);
            }
        });
        // Whatever fails below, the thread above ends.
        let _done = Raised(&done);
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().expect("piped")).read_line(&mut line).expect("a line of the server");
        let address = line.trim_end().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}"));
        let address: SocketAddr = address.parse().expect("an address");
        thread::scope(|all| {
            for _ in 0..load.parallel {
                all.spawn(|| {
                    let answer = post(address, &filling(load));
                    let count = answer["speculation"]["proposers"]["mtp"]["drafted_n"].as_u64();
                    drafted.fetch_add(count.unwrap_or(0), Ordering::Relaxed);
                });
            }
        });
        post(address, &drawing(load));
    });
    Found {
        planned: report["memory"]["memory_bytes"].as_u64().expect("a number of bytes") as usize,
        anonymous: peak.into_inner(),
        resident: resident.into_inner(),
        planned_mtp: report["head"]["from"] != "none",
        drafted_mtp: drafted.into_inner(),
    }
}

/// What `engine-pack` plans.
fn inspect(load: &Load<'_>, flags: &[&str]) -> Value {
    let mut command = Command::new(load.programs.join("engine-pack"));
    command.arg("inspect").args(load.model).args(flags).arg("--json");
    let output = command.stderr(Stdio::inherit()).output().expect("engine-pack runs");
    assert!(output.status.success(), "engine-pack: {}", output.status);
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// A prompt that leaves room for a completion, and that completion.
fn filling(load: &Load<'_>) -> Value {
    let prompt: Vec<usize> = (0..load.context - COMPLETION).map(|i| 100 + i % 7).collect();
    let width = width(load);
    json!({
        "prompt": prompt, "max_tokens": COMPLETION, "ignore_eos": true, "temperature": 0,
        "speculative": {
            "mtp_tokens": 15, "on_unavailable": "fallback",
            "window": {"policy": "fixed", "initial": width, "max": width},
        },
    })
}

/// Drafts of a window.
fn width(load: &Load<'_>) -> usize {
    (LOGIT_ROWS / load.parallel).saturating_sub(1).clamp(1, 32)
}

fn drawing(load: &Load<'_>) -> Value {
    let prompt: Vec<usize> = (0..load.context / 2).map(|i| 100 + i % 11).collect();
    json!({
        "prompt": prompt, "max_tokens": 8, "ignore_eos": true, "temperature": 1.0, "top_p": 0.9, "seed": 1,
        "presence_penalty": 0.1, "logprobs": 5,
    })
}

fn post(address: SocketAddr, body: &Value) -> Value {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server answers");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    serde_json::from_str(body).expect("one JSON object")
}

/// Anonymous memory of a process.
pub fn anonymous(pid: u32) -> usize {
    status(pid, "RssAnon:")
}

/// A number of `/proc/PID/status`, in bytes; 0 where the process has ended.
fn status(pid: u32, name: &str) -> usize {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value
        .and_then(|v| v.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.parse::<usize>().ok())
        .map_or(0, |kib| kib << 10)
}

struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Raised<'a>(&'a AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
