//! The real programs against the stub: two at once, one that is killed, and a server that fetches what it serves.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use engine_tests::fixtures::fixture;
use serde_json::{Value, json};

use super::stub::{COMMIT, Hub, Reply, blob, file, ranged};
use super::{Asker, bytes};
use crate::serve::client::{DEADLINE, ask};
use crate::serve::process::{Running, program};

const LEN: usize = 200_000;

/// A hub that gives a file in small pieces.
fn slow() -> Hub {
    Hub::with(vec![file("m-Q8_0.gguf", bytes(LEN, 1), true)], |request, _| {
        let reply = || ranged(&bytes(LEN, 1), request.range);
        request.at_store.then(|| Reply::Paced(reply(), 4000, Duration::from_millis(10)))
    })
}

pub fn command(name: &str, hub: &Hub, cache: &Path) -> Command {
    let mut command = Command::new(program(name));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("HF_") || name.starts_with("HUGGING") || name.to_lowercase().ends_with("_proxy") {
            command.env_remove(name);
        }
    }
    command.env("HF_ENDPOINT", hub.endpoint()).env("HF_HUB_CACHE", cache).env("HF_TOKEN", "hf_secret");
    command
}

fn start(hub: &Hub, asker: &Asker) -> Child {
    let mut command = command("engine-pack", hub, &asker.settings.cache);
    command.args(["fetch", "hf:o/m:Q8_0", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn report(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Waits until so many bytes have come.
fn arrived(asker: &Asker, least: u64) {
    let incomplete = asker.repo().join("blobs").join(format!("{}.incomplete", blob(&bytes(LEN, 1), true)));
    let deadline = Instant::now() + DEADLINE;
    while fs::metadata(&incomplete).map_or(0, |m| m.len()) < least {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn two_runs_fetch_once() {
    let hub = slow();
    let asker = Asker::of(&hub);
    let first = start(&hub, &asker);
    arrived(&asker, 1);
    let second = start(&hub, &asker);
    let (first, second) = (first.wait_with_output().unwrap(), second.wait_with_output().unwrap());
    let (one, two) = (report(&first), report(&second));
    assert_eq!((&one["fetched_bytes"], &two["fetched_bytes"]), (&json!(LEN), &json!(0)));
    assert_eq!(one["model"], two["model"]);
    assert!(String::from_utf8_lossy(&second.stderr).contains("waiting for another run"), "{second:?}");
    assert_eq!(hub.downloads().len(), 1);
    asker.is_sound();
}

#[test]
fn a_killed_run_is_gone_on_with_by_the_next() {
    let hub = slow();
    let asker = Asker::of(&hub);
    for least in [1, 30_000, 60_000, 61_000, 150_000] {
        let mut killed = start(&hub, &asker);
        arrived(&asker, least);
        killed.kill().unwrap();
        killed.wait().unwrap();
        asker.is_sound();
        assert!(!asker.repo().join("snapshots").exists() && !asker.repo().join("refs").exists());
    }
    let waited = start(&hub, &asker);
    let done = report(&waited.wait_with_output().unwrap());
    assert_eq!(fs::read(done["model"].as_str().unwrap()).unwrap(), bytes(LEN, 1));
    let ranges: Vec<u64> = hub.downloads().iter().map(|r| r.range.unwrap_or(0)).collect();
    // One that was killed before it asked has left no trace here.
    assert!(ranges.is_sorted() && ranges.len() > 2 && *ranges.last().unwrap() >= 150_000, "{ranges:?}");
    asker.is_sound();
}

#[test]
fn a_server_serves_what_it_fetched() {
    let Some(model) = fixture("qwen35-tiny/qwen35-tiny-Q8_0.gguf") else { return };
    let hub = Hub::new(vec![file("m-Q8_0.gguf", fs::read(model).unwrap(), true), file("m-F16.gguf", b"other", true)]);
    let asker = Asker::of(&hub);
    let serve = |flags: &[&str], offline: &str| {
        let mut command = command("engine-serve", &hub, &asker.settings.cache);
        command
            .args(["--port", "0", "--threads", "1", "--ctx-size", "256", "--model"])
            .args(flags)
            .env("HF_HUB_OFFLINE", offline);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    // Offline before it is there: refused, with what is missing; first by a program that ends in any case.
    let mut inspect = command("engine-pack", &hub, &asker.settings.cache);
    inspect.args(["inspect", "hf:o/m:Q8_0"]).env("HF_HUB_OFFLINE", "1");
    assert_eq!(inspect.output().unwrap().status.code(), Some(3));
    let output = serve(&["hf:o/m:Q8_0"], "1").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && error.contains("no revision main of o/m"), "{error}");
    for offline in ["0", "1"] {
        let running = Running::of(serve(&["hf:o/m:Q8_0"], offline));
        let body = json!({"prompt": "int main", "max_tokens": 4});
        assert_eq!(ask(running.address, "/v1/completions", &body).status, 200);
        let mut client = crate::serve::client::Client::connect(running.address);
        client.send("GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(client.answer().json()["data"][0]["id"], "m-Q8_0");
    }
    assert_eq!(hub.downloads().len(), 1);
    let path = asker.repo().join("snapshots").join(COMMIT).join("m-Q8_0.gguf");
    let output = command("engine-pack", &hub, &asker.settings.cache).args(["inspect", "hf:o/m:Q8_0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains(path.to_str().unwrap()));
    let tokens = asker.folder.path().join("hub/tokens.json");
    fs::write(&tokens, "[1, 2, 3, 4, 5, 6]").unwrap();
    let bench = |model: &str| {
        let mut command = command("engine-bench", &hub, &asker.settings.cache);
        command.args(["ppl", "--threads", "1", "--json", "--model", model, "--tokens"]).arg(&tokens).output().unwrap()
    };
    let output = bench("hf:o/m:Q8_0");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(0) && said.contains(path.to_str().unwrap()), "{said}");
    assert_eq!(bench("hf:o/m:Q4_0").status.code(), Some(3));
    assert_eq!(bench("hf:nonsense").status.code(), Some(2));
}

#[test]
fn codes_and_words_of_the_verb() {
    let hub = Hub::new(vec![file("m-Q8_0.gguf", bytes(500, 1), true)]);
    let asker = Asker::of(&hub);
    let run = |flags: &[&str]| {
        let output = command("engine-pack", &hub, &asker.settings.cache).arg("fetch").args(flags).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, error) = run(&["hf:o/m"]);
    let path = asker.repo().join("snapshots").join(COMMIT).join("m-Q8_0.gguf");
    assert!(code == Some(0) && out.contains(path.to_str().unwrap()) && out.contains("500 B, fetched"), "{out}{error}");
    assert!(run(&["hf:o/m"]).1.contains("was there"));
    let (code, _, error) = run(&["o/m"]);
    assert!(code == Some(2) && error.contains("expected hf:ORG/NAME"), "{error}");
    assert_eq!(run(&["hf:o/m:Q9"]).0, Some(3));
    assert_eq!(run(&["hf:o/m", "--with-mtp"]).0, Some(3));
    assert_eq!(run(&[]).0, Some(2));
    let (code, out, _) = run(&["--help"]);
    assert!(
        code == Some(0) && ["HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE", "--with-mtp"].iter().all(|w| out.contains(w))
    );
}
