//! Model files through the real programs: what each answers to a file that is not what was asked for, or that changes
//! while it is in use.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use engine_io::gguf::Value;
use serde_json::json;
use tempfile::TempDir;

use super::client::{Client, ask, get, post};
use super::process::{Running, program};
use crate::forward::edit::Edit;
use crate::refusals::tiny::{ARCHS, model, sidecar, trunk};

fn write(folder: &TempDir, name: &str, edit: &Edit) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, edit.bytes()).unwrap();
    path
}

/// The program refuses at the start: exit code 3, one message with all of `parts`, and no word that only a programmer
/// reads. One that serves instead is ended.
fn refused(flags: &[&str], parts: &[&str]) {
    let child = Command::new(program("engine-serve"))
        .args(["--port", "0", "--threads", "1", "--ctx-size", "64"])
        .args(flags)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut running = Running { child, address: ([127, 0, 0, 1], 0).into() };
    let code = running.end().code();
    let mut text = String::new();
    running.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(code, Some(3), "{text}");
    for part in parts {
        assert!(text.contains(part), "`{text}` does not say `{part}`");
    }
    assert!(text.matches("converted with its MTP block").count() <= 1, "a reason is told once: {text}");
    for debug in ["panicked", "Some(", "None", "because"] {
        assert!(!text.contains(debug), "`{text}` has `{debug}`");
    }
}

#[test]
fn drafting_without_a_block_is_refused_at_the_start() {
    let folder = TempDir::new().unwrap();
    for arch in ARCHS {
        let key = format!("{arch}.nextn_predict_layers");
        let bare = write(&folder, "bare.gguf", &trunk(arch));
        let announced = write(&folder, "announced.gguf", &model(arch).drop(|n| n.starts_with("blk.4.")));
        let two = write(&folder, "two.gguf", &model(arch).set(&key, Value::U32(2)));
        refused(&["--model", two.to_str().unwrap()], &["two.gguf", &format!("{key} 2"), "such as blk.3."]);
        let remedies = ["converted with its MTP block", "MTP sidecar"];
        for strategy in ["mtp", "mtp-suffix"] {
            let asked = |file: &Path, parts: &[&str]| {
                let flags = ["--model", file.to_str().unwrap(), "--spec-strategy", strategy];
                let named = format!("--spec-strategy {strategy}");
                refused(&flags, &[&[named.as_str()], parts, &remedies].concat());
            };
            asked(&bare, &["bare.gguf", "no blk.4.nextn.* tensors"]);
            asked(&announced, &["announced.gguf", &format!("{key} = 1"), "no blk.4.nextn.* tensors"]);
        }
    }
}

#[test]
fn sidecars_that_do_not_fit_are_refused_at_the_start() {
    let folder = TempDir::new().unwrap();
    for arch in ARCHS {
        let target = write(&folder, "target.gguf", &trunk(arch));
        let target = target.to_str().unwrap();
        let block = write(&folder, "block.gguf", &sidecar(arch));
        refused(&["--model", block.to_str().unwrap()], &["block.gguf", "only block 4", "draft model"]);
        let draft = |edit: &Edit, parts: &[&str]| {
            let path = write(&folder, "draft.gguf", edit);
            let flags = ["--model", target, "--spec-draft-model", path.to_str().unwrap()];
            refused(&flags, &[&["draft.gguf", "or none"], parts].concat());
        };
        draft(&model(arch), &["cannot be used as a draft model", "blk.4"]);
        let mut beside = sidecar(arch);
        beside.weights("blk.5.attn_norm.weight", &[64]);
        draft(&beside, &["blk.4.* alone", "blk.5.attn_norm.weight"]);
        let base = format!("{arch}.rope.freq_base");
        draft(&sidecar(arch).set(&base, Value::F32(5e5)), &["rope.freq_base is 500000 here and 10000 in the model"]);
        draft(&sidecar(arch).unset("tokenizer.ggml.tokens"), &["number of tokens is none here and 512"]);
        // Cut by its last bytes, and not there at all.
        let bytes = sidecar(arch).bytes();
        let cut = folder.path().join("cut.gguf");
        fs::write(&cut, &bytes[..bytes.len() - 200]).unwrap();
        refused(&["--model", target, "-md", cut.to_str().unwrap()], &["cut.gguf: truncated", "blk.4."]);
        refused(&["--model", target, "-md", "no/such.gguf"], &["no/such.gguf: cannot open"]);
        // Without any block: both ways to one are told.
        let ways = ["--spec-strategy mtp needs an MTP block", "engine-pack graft", "--spec-draft-model"];
        refused(&["--model", target, "--spec-strategy", "mtp"], &ways);
    }
}

/// Served all the same, with a word in the log: an announced block that is absent, a sidecar over a block.
#[test]
fn what_is_odd_is_logged_and_served() {
    let folder = TempDir::new().unwrap();
    for arch in ARCHS {
        let whole = write(&folder, "whole.gguf", &model(arch));
        let block = write(&folder, "block.gguf", &sidecar(arch));
        let absent = write(&folder, "absent.gguf", &model(arch).drop(|n| n.starts_with("blk.4.")));
        let (whole, block, absent) = (whole.to_str().unwrap(), block.to_str().unwrap(), absent.to_str().unwrap());
        for (flags, proposers, word) in [
            (&["--model", absent][..], 0, "WARN"),
            (&["--model", whole, "-md", block], 1, "the MTP block of the draft model is used"),
        ] {
            let log = folder.path().join("log");
            let stderr = File::create(&log).unwrap();
            // The weights are random, so the block's drafts are: without force they would be turned off.
            let flags = [flags, &["--ctx-size", "64", "--mtp-force"]].concat();
            let running = Running::start_with(&flags, stderr.into());
            let body = json!({"prompt": "abab", "max_tokens": 8, "temperature": 0, "speculative": {"strategy": "mtp",
                "window": {"policy": "fixed"}, "on_unavailable": "fallback"}});
            let answer = ask(running.address, "/v1/completions", &body);
            assert_eq!(answer.status, 200, "{}", answer.text());
            let mtp = &answer.json()["speculation"]["proposers"]["mtp"];
            assert_eq!(usize::from(mtp["drafted_n"].as_u64() > Some(0)), proposers, "{mtp}");
            let log = fs::read_to_string(log).unwrap();
            assert!(log.contains(word), "{log}");
        }
    }
}

/// Sets the file's time back by some seconds: one write after another may otherwise have the same stamp.
fn aged(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(10)).unwrap();
}

type Change = fn(&Path);

/// Another model of the same size, written over the first as `cp` does it.
fn rewrite(path: &Path) {
    let mut other = model("qwen35");
    for t in &mut other.tensors {
        if t.name.ends_with("ffn_down.weight") {
            t.data.rotate_left(64);
        }
    }
    fs::write(path, other.bytes()).unwrap();
}

/// The last bytes of the last page: nothing faults.
fn shorten(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    assert!(len % 4096 > 64, "the cut stays within a page");
    file.set_len(len - 64).unwrap();
}

fn shrink_and_grow(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len - 64).unwrap();
    file.set_len(len).unwrap();
}

fn touch(path: &Path) {
    OpenOptions::new().write(true).open(path).unwrap().set_modified(SystemTime::now()).unwrap();
}

const CHANGES: [(&str, Change); 4] =
    [("rewritten", rewrite), ("shortened", shorten), ("shrunk and grown", shrink_and_grow), ("touched", touch)];

/// Weights stay in the file, and the file in the page that its last bytes need.
fn served(path: &Path, more: &[&str]) -> Running {
    let flags = ["--model", path.to_str().unwrap(), "--repack", "off", "--ctx-size", "64"];
    Running::start_with(&[&flags, more].concat(), Stdio::piped())
}

fn body() -> serde_json::Value {
    json!({"prompt": "abab", "max_tokens": 12, "temperature": 0, "ignore_eos": true})
}

fn ends_with_the_name(mut running: Running, what: &str) {
    assert_eq!(running.end().code(), Some(1), "{what}");
    let mut text = String::new();
    running.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("changing.gguf: the model file "), "{what}: {text}");
    assert!(text.contains("stopping before wrong output"), "{what}: {text}");
}

/// The request that meets the changed file first gets no answer at all, rather than another model's.
#[test]
fn a_changed_file_answers_no_request() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("changing.gguf");
    for (what, change) in CHANGES {
        fs::write(&path, model("qwen35").bytes()).unwrap();
        aged(&path);
        let running = served(&path, &[]);
        assert_eq!(ask(running.address, "/v1/completions", &body()).status, 200);
        let mut client = Client::connect(running.address);
        change(&path);
        let _ = std::io::Write::write_all(&mut client.stream, post("/v1/completions", &body().to_string()).as_ref());
        let mut answer = Vec::new();
        let _ = client.stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{what}: {}", String::from_utf8_lossy(&answer));
        ends_with_the_name(running, what);
    }
}

/// Nobody asks for anything, and it ends all the same; a sidecar counts as the model does.
#[test]
fn a_changed_file_ends_an_idle_server() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("changing.gguf");
    fs::write(&path, model("qwen35").bytes()).unwrap();
    aged(&path);
    let running = served(&path, &[]);
    rewrite(&path);
    ends_with_the_name(running, "the model");

    let target = write(&folder, "target.gguf", &trunk("qwen35"));
    fs::write(&path, sidecar("qwen35").bytes()).unwrap();
    aged(&path);
    let running = served(&target, &["-md", path.to_str().unwrap()]);
    touch(&path);
    ends_with_the_name(running, "the sidecar");
}

/// Another file under the name, more links to the file, and whatever happens to a file that was read into memory.
#[test]
fn what_does_not_reach_the_weights_is_no_change() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("staying.gguf");
    let cases: [(&str, &[&str], Change); 4] = [
        ("replaced by renaming", &[], |path| {
            let new = path.with_extension("new");
            fs::write(&new, b"GGUF").unwrap();
            fs::rename(new, path).unwrap();
        }),
        ("linked", &[], |path| fs::hard_link(path, path.with_extension("link")).unwrap()),
        ("rewritten after it was read", &["--no-mmap"], rewrite),
        ("shortened after it was read", &["--no-mmap"], shorten),
    ];
    for (what, flags, change) in cases {
        fs::write(&path, model("qwen35").bytes()).unwrap();
        aged(&path);
        let mut running = served(&path, flags);
        let text = |running: &Running| {
            let answer = ask(running.address, "/v1/completions", &body());
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
            answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
        };
        let before = text(&running);
        change(&path);
        // Longer than the thread that watches takes between two looks.
        std::thread::sleep(Duration::from_millis(2500));
        assert_eq!(text(&running), before, "{what}");
        assert!(running.child.try_wait().unwrap().is_none(), "{what}");
    }
}

/// Runs a verb of `engine-bench` to its end: exit code, stdout, stderr.
fn bench(flags: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program("engine-bench")).args(flags).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Every verb ends at a model whose logits are no numbers: by name, with 1, without a number on stdout.
#[test]
fn bench_says_that_numbers_are_none() {
    let folder = TempDir::new().unwrap();
    let tokens = folder.path().join("tokens.json");
    fs::write(&tokens, r#"{"sequences":[[1,2,3]],"continue":3,"mtp_depth":2,"tokens":[1,2,3]}"#).unwrap();
    let out = folder.path().join("out.json");
    let (tokens, out) = (tokens.to_str().unwrap(), out.to_str().unwrap());
    let verbs = |file: &str| {
        let common = ["--model", file, "--threads", "1"];
        [
            ("eval", [&["eval"], &common[..], &["--tokens", tokens, "--out", out]].concat()),
            ("ppl", [&["ppl"], &common[..], &["--tokens", tokens]].concat()),
            ("speed", [&["speed"], &common[..], &["--prefill", "3", "--decode", "2", "--rows", "2"]].concat()),
            (
                "roofline",
                [&["roofline"], &common[..], &["--prefill", "3", "--decode", "2", "--formats", "F32"]].concat(),
            ),
        ]
        .map(|(verb, flags)| (verb, flags.into_iter().map(str::to_owned).collect::<Vec<_>>()))
    };
    let run = |flags: &[String]| bench(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    for arch in ARCHS {
        let good = write(&folder, "good.gguf", &model(arch));
        for (verb, flags) in verbs(good.to_str().unwrap()) {
            let (code, _, text) = run(&flags);
            assert_eq!(code, Some(0), "{verb}: {text}");
        }
        fs::remove_file(out).unwrap();
        for (tensor, part, affected) in [
            ("blk.0.attn_qkv.weight", "trunk", &["eval", "ppl", "speed", "roofline"][..]),
            ("blk.4.nextn.eh_proj.weight", "MTP block", &["eval"]),
        ] {
            for value in [f32::NAN, f32::INFINITY] {
                let mut edit = model(arch);
                let t = edit.tensor(tensor);
                t.data = value.to_le_bytes().repeat(t.data.len() / 4);
                let bad = write(&folder, "bad.gguf", &edit);
                for (verb, flags) in verbs(bad.to_str().unwrap()) {
                    let (code, stdout, text) = run(&flags);
                    assert!(!text.contains("panicked"), "{arch}, {tensor}, {verb}: {text}");
                    if affected.contains(&verb) {
                        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{arch}, {tensor}, {verb}: {text}");
                        assert!(text.contains(&format!("the {part}'s logit of token")), "{verb}: {text}");
                    } else {
                        assert_eq!(code, Some(0), "{arch}, {tensor}, {verb}: {text}");
                    }
                }
                assert!(!Path::new(out).exists(), "nothing is written");
            }
        }
        if arch == "qwen35moe" {
            let mut edit = model(arch);
            let t = edit.tensor("blk.1.ffn_gate_inp.weight");
            t.data = f32::NAN.to_le_bytes().repeat(t.data.len() / 4);
            let bad = write(&folder, "bad.gguf", &edit);
            for (verb, flags) in verbs(bad.to_str().unwrap()) {
                let (code, _, text) = run(&flags);
                assert!(code == Some(1) && text.contains("trunk's logit"), "router, {verb}: {code:?} {text}");
            }
        }
    }
}

/// A cause is written once, and files that are not there are the input's fault.
#[test]
fn bench_says_a_cause_once() {
    for flags in [
        &["speed", "--model", "no/such.gguf"][..],
        &["roofline", "--model", "no/such.gguf"],
        &["ppl", "--model", "no/such.gguf", "--tokens", "no/such.json"],
        &["eval", "--model", "no/such.gguf", "--tokens", "no/such.json", "--out", "out"],
    ] {
        let (code, _, text) = bench(flags);
        assert_eq!(code, Some(3), "{text}");
        assert_eq!(text.matches("No such file").count(), 1, "{text}");
    }
}

/// Weights of which nothing but NaN comes: nothing that could be served.
#[test]
fn a_model_that_can_never_answer_is_refused() {
    let folder = TempDir::new().unwrap();
    for head in [true, false] {
        let mut edit = if head { model("qwen35") } else { trunk("qwen35") };
        let t = edit.tensor("blk.1.ffn_down.weight");
        t.data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        let path = write(&folder, "nan.gguf", &edit);
        refused(&["--model", path.to_str().unwrap()], &["nan.gguf", "no finite logits", "NaN", "download"]);
    }
    // One token's row is bad: the others are served.
    let mut edit = trunk("qwen35");
    let t = edit.tensor("token_embd.weight");
    t.data[7 * 64 * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let path = write(&folder, "row.gguf", &edit);
    Running::start_with(&["--model", path.to_str().unwrap(), "--ctx-size", "64"], Stdio::null());
}

/// Why nothing drafts is told as it is.
#[test]
fn a_broken_head_is_not_called_absent() {
    let folder = TempDir::new().unwrap();
    let reason = |edit: &Edit| {
        let path = write(&folder, "m.gguf", edit);
        let running = Running::start_with(&["--model", path.to_str().unwrap(), "--ctx-size", "64"], Stdio::null());
        let mut client = Client::connect(running.address);
        client.send(get("/v1/models"));
        client.answer().json()["data"][0]["meta"]["mtp_unavailable"].as_str().unwrap().to_owned()
    };
    assert_eq!(reason(&trunk("qwen35")), "the model has no MTP block");
    let broken = reason(&model("qwen35").drop(|n| n == "blk.4.attn_k.weight"));
    assert!(broken.contains("announces an MTP block") && broken.contains("incomplete"), "{broken}");
}

/// A head under the number of another model, or of none, is known for what it is.
#[test]
fn renumbered_sidecars_are_described() {
    let folder = TempDir::new().unwrap();
    for number in [0, 48] {
        let mut edit = sidecar("qwen35");
        for t in &mut edit.tensors {
            t.name = t.name.replacen("blk.4.", &format!("blk.{number}."), 1);
        }
        let path = write(&folder, "head.gguf", &edit);
        let output = Command::new(program("engine-pack")).arg("inspect").arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("MTP sidecar"), "{output:?}");
        refused(&["--model", path.to_str().unwrap()], &["head.gguf", "only block 4", "draft model"]);
    }
}

/// Where a model lies is nobody's business, unless its owner says so.
#[test]
fn the_path_of_a_model_is_told_only_where_that_is_asked_for() {
    let folder = TempDir::new().unwrap();
    let whole = write(&folder, "whole.gguf", &model(ARCHS[0]));
    let whole = whole.to_str().unwrap();
    for (flags, told) in [(&[][..], "whole.gguf"), (&["--expose-paths"], whole)] {
        let flags = [&["--model", whole, "--ctx-size", "64"], flags].concat();
        let running = Running::start_with(&flags, std::process::Stdio::null());
        let mut client = Client::connect(running.address);
        let mut answer = |path: &str| {
            client.send(get(path));
            client.answer()
        };
        assert_eq!(answer("/props").json()["model_path"], told);
        for path in ["/v1/models", "/slots", "/metrics", "/version", "/health"] {
            assert!(!answer(path).text().contains(folder.path().to_str().unwrap()), "{path}");
        }
    }
}
