//! Names of a hub wherever a flag names something to read: a head, and every verb.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use engine_bin::hub::HubError;
use engine_tests::fixtures::fixture;
use serde_json::{Value, json};

use super::programs::command;
use super::stub::{COMMIT, Hub, file};
use super::{Asker, bytes, repo};
use crate::pack::Packed;
use crate::refusals::tiny;
use crate::serve::client::ask;
use crate::serve::process::Running;

#[test]
fn a_head_is_fetched_alone() {
    let hub = Hub::new(repo());
    let asker = Asker::of(&hub);
    let found = asker.head("hf:o/m").unwrap();
    assert_eq!(found.model, asker.repo().join("snapshots").join(COMMIT).join("mtp-m-Q8_0.gguf"));
    assert_eq!((found.mtp, found.files.len(), found.fetched_bytes), (None, 1, 700));
    assert_eq!(fs::read(&found.model).unwrap(), bytes(700, 4));
    // With a quant the cache is enough, as for a model; and so is the name of the file.
    let asked = hub.log().len();
    for name in ["hf:o/m:Q8_0", "hf:o/m:mtp-m-Q8_0.gguf"] {
        assert_eq!(asker.head(name).unwrap().model, found.model);
    }
    assert_eq!(hub.log().len(), asked);
    // Without one the hub knows whether there are others; the bytes are not asked for again.
    assert_eq!(asker.head("hf:o/m").unwrap().fetched_bytes, 0);
    assert!(hub.log().len() > asked && hub.downloads().len() == 1);
    // Any file by its name, and none that is no head by anything less.
    assert_eq!(fs::read(asker.head("hf:o/m:small-F16.gguf").unwrap().model).unwrap(), bytes(100, 3));
    let error = asker.head("hf:o/m:F16").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("no MTP sidecar of quant F16; it has mtp-m-Q8_0") && error.code() == 3, "{text}");
    assert!(matches!(asker.head("hf:o/m:gone.gguf"), Err(HubError::Refused(_))));
    asker.is_sound();
}

fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn a_server_drafts_with_a_head_that_it_fetched() {
    let shards = (1..=3).map(|no| format!("qwen35-tiny-nomtp-Q8_0-0000{no}-of-00003.gguf"));
    let names: Vec<String> = shards.chain(["mtp-qwen35-tiny-Q8_0.gguf".to_owned()]).collect();
    let files =
        names.iter().map(|name| Some(file(name, fs::read(fixture(&format!("qwen35-tiny/{name}"))?).ok()?, true)));
    let Some(files) = files.collect::<Option<Vec<_>>>() else { return };
    let hub = Hub::new(files);
    let asker = Asker::of(&hub);
    let serve = |head: &str| {
        let mut serve = command("engine-serve", &hub, &asker.settings.cache);
        serve.args(["--port", "0", "--threads", "1", "--ctx-size", "256", "--spec-strategy", "mtp", "--mtp-force"]);
        serve
            .args(["--model", "hf:o/m:Q8_0", "--spec-draft-model", head])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        serve
    };
    let running = Running::of(serve("hf:o/m"));
    let body = json!({"prompt": "static int f(int x) {\n    return", "max_tokens": 16, "temperature": 0,
        "speculative": {"window": {"policy": "fixed", "initial": 3}}});
    let answer = ask(running.address, "/v1/completions", &body).json();
    assert!(answer["speculation"]["proposers"]["mtp"]["drafted_n"].as_u64() > Some(0), "{answer}");
    for (head, code, part) in [
        ("hf:o/m:Q4_0", 3, "no MTP sidecar of quant Q4_0; it has mtp-qwen35-tiny-Q8_0"),
        ("hf:nonsense", 2, "expected hf:ORG/NAME"),
    ] {
        let (found, _, error) = run(&mut serve(head));
        assert!(found == Some(code) && error.contains(part), "{head}: {error}");
    }
    // And so do the programs that measure.
    let tokens = asker.folder.path().join("hub/tokens.json");
    fs::write(&tokens, "[1, 2, 3, 4, 5, 6]").unwrap();
    let bench = |head: &str| {
        let mut bench = command("engine-bench", &hub, &asker.settings.cache);
        bench.args(["ppl", "--threads", "1", "--json", "--model", "hf:o/m:Q8_0", "--draft-model", head, "--tokens"]);
        run(bench.arg(&tokens))
    };
    let (code, _, said) = bench("hf:o/m");
    let head = asker.repo().join("snapshots").join(COMMIT).join("mtp-qwen35-tiny-Q8_0.gguf");
    assert!(code == Some(0) && said.contains(head.to_str().unwrap()), "{said}");
    assert_eq!((bench("hf:o/m:Q4_0").0, bench("hf:nonsense").0), (Some(3), Some(2)));
    assert_eq!(hub.downloads().len(), 4);
}

/// Files below a folder, as a repository.
fn tree(root: &Path, dir: &Path, out: &mut Vec<(String, Vec<u8>, bool)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => tree(root, &path, out),
            false => out.push(file(path.strip_prefix(root).unwrap().to_str().unwrap(), fs::read(&path).unwrap(), true)),
        }
    }
}

/// Each verb does what it does with the file; a name that it could not use would be no such file.
#[test]
fn every_verb_takes_names() {
    let out = tempfile::tempdir().unwrap();
    let to = |name: &str| -> PathBuf { out.path().join(name) };
    let hub = Hub::new(vec![
        file("m-Q8_0.gguf", tiny::trunk("qwen35").bytes(), true),
        file("m-F32.gguf", tiny::model("qwen35").bytes(), true),
        file("mtp-m-Q8_0.gguf", tiny::sidecar("qwen35").bytes(), true),
    ]);
    let asker = Asker::of(&hub);
    let pack = |hub: &Hub, asker: &Asker, line: &[&str]| {
        run(command("engine-pack", hub, &asker.settings.cache).args(line).arg("--json"))
    };
    let does = |line: &[&str]| -> Value {
        let (code, stdout, error) = pack(&hub, &asker, line);
        assert_eq!(code, Some(0), "{line:?}: {stdout}{error}");
        serde_json::from_str(&stdout).unwrap()
    };
    let (grafted, small, packed) = (to("grafted"), to("small.gguf"), to("package"));
    let path = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let (trunk, head) = ("hf:o/m:Q8_0", "hf:o/m");
    let seen = does(&["inspect", trunk, "--spec-draft-model", head]);
    assert!(seen["file"].as_str().unwrap().ends_with("m-Q8_0.gguf"), "{seen}");
    let found = does(&["doctor", trunk, "--head", head]);
    assert_eq!(found["head"]["reasons"], json!([]), "{found}");
    does(&["graft", "--target", trunk, "--head", head, "--out", &path(&grafted)]);
    does(&["verify", &path(&grafted)]);
    does(&["quantize-head", "--head", head, "--type", "Q8_0", "--out", &path(&small)]);
    does(&["package", "--model", "hf:o/m:F32", "--out", &path(&packed), "--model-id", "o/m:F32"]);
    does(&["verify", &path(&packed), "--source", "hf:o/m:F32"]);
    // A checkpoint is not what a name brings.
    let line = ["convert-head", "--source", head, "--target", trunk, "--out", "x.gguf"];
    let (code, _, error) = pack(&hub, &asker, &line);
    assert!(code == Some(2) && error.contains("--source hf:o/m: a checkpoint is not fetched by name"), "{error}");
    // Its target is: what is refused is the source.
    let line = ["convert-head", "--source", "gone.safetensors", "--target", trunk, "--out", "x.gguf"];
    let (code, _, error) = pack(&hub, &asker, &line);
    assert!(code == Some(3) && error.contains("gone.safetensors"), "{error}");
    for line in [
        &["inspect", "hf:o/m:Q9"][..],
        &["inspect", trunk, "--spec-draft-model", "hf:o/m:Q9"],
        &["doctor", "hf:o/m:Q9"],
        &["doctor", trunk, "--head", "hf:o/m:Q9"],
        &["graft", "--target", "hf:o/m:Q9", "--head", head, "--out", "x"],
        &["graft", "--target", trunk, "--head", "hf:o/m:Q9", "--out", "x"],
        &["convert-head", "--source", "x", "--target", "hf:o/m:Q9", "--out", "x.gguf"],
        &["quantize-head", "--head", "hf:o/m:Q9", "--type", "Q8_0", "--out", "x.gguf"],
        &["package", "--model", "hf:o/m:Q9", "--out", "x"],
        &["preflight", "hf:o/m:Q9", "--stages", "2"],
        &["materialize", "hf:o/m:Q9", "--stage", "0/2", "--out", "x"],
        &["verify", "hf:o/m:Q9"],
        &["verify", &path(&packed), "--source", "hf:o/m:Q9"],
        &["fetch", "hf:o/m:Q9"],
    ] {
        let (code, _, error) = pack(&hub, &asker, line);
        assert!(code == Some(3) && error.contains("of quant Q9; it has"), "{line:?}: {error}");
    }
    // Those that work on packages.
    let mut files = Vec::new();
    let package = Packed::tiny();
    tree(&package.dir, &package.dir, &mut files);
    let hub = Hub::new(files);
    let asker = Asker::of(&hub);
    let stage = to("stage");
    for line in [
        &["preflight", "hf:o/m", "--stages", "2"][..],
        &["materialize", "hf:o/m", "--stage", "0/2", "--out", &path(&stage)],
        &["verify", "hf:o/m", "--source", package.model.to_str().unwrap()],
    ] {
        let (code, stdout, error) = pack(&hub, &asker, line);
        assert_eq!(code, Some(0), "{line:?}: {stdout}{error}");
    }
    assert!(fs::read_dir(stage).unwrap().count() > 0);
}
