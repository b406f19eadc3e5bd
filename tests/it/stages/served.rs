//! Models of every kind that two processes serve, over HTTP beside one process: packages that were cut into stages, and a
//! sidecar at the last stage. Same answers, and the same account of what was drafted.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use engine_bin::pack::materialize::{self, MaterializeFlags, StageOf};
use engine_tests::fixtures::fixture;
use serde_json::{Value, json};

use super::process::{Last, first};
use crate::pack::Packed;
use crate::serve::client::{Client, ask, get};
use crate::serve::process::{Running, program};

const PROMPTS: [&str; 3] = [
    "def add(total, x):\n    total = total + x\n    return total\n\ndef sub(total, x):\n    total = total",
    "a = 1\nb = 2\na = 1\nb = 2\na = 1\nb =",
    "#",
];

/// Context and caches of these runs.
const SIZE: [&str; 2] = ["--ctx-size", "320"];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn whole(flags: &[&str]) -> Running {
    Running::start_with(&[&SIZE, flags].concat(), Stdio::null())
}

/// Strategies by widths by prompts: answers, and all that is said of drafts; what was accepted of either proposer.
fn assert_same(one: &Running, two: &Running, name: &str) -> [u64; 2] {
    let mut accepted = [0; 2];
    for strategy in ["off", "mtp", "ngram-suffix", "mtp-suffix"] {
        let widths: &[u32] = if strategy == "off" { &[1] } else { &[1, 2, 7, 15, 32] };
        for (i, width) in widths.iter().enumerate() {
            for (j, prompt) in PROMPTS.iter().enumerate() {
                let temperature = [0.0, 0.8][(i + j) % 2];
                let body = json!({"prompt": prompt, "max_tokens": 24, "temperature": temperature, "seed": 5,
                    "ignore_eos": true, "speculative": {"strategy": strategy, "mtp_tokens": (*width).min(3),
                    "window": {"policy": "fixed", "initial": width, "min": 1, "max": width}}});
                let answer = |server: &Running| {
                    let answer = ask(server.address, "/v1/completions", &body);
                    assert_eq!(answer.status, 200, "{name}: {}", answer.text());
                    answer.json()
                };
                let (want, got) = (answer(one), answer(two));
                let at = format!("{name}: {strategy}, width {width}, prompt {j}");
                for part in ["choices", "usage", "speculation"] {
                    assert_eq!(untimed(&got[part]), untimed(&want[part]), "{at}: {part}");
                }
                assert_eq!(want["speculation"]["strategy"], strategy, "{at}");
                for (sum, proposer) in accepted.iter_mut().zip(["mtp", "suffix"]) {
                    *sum += want["speculation"]["proposers"][proposer]["accepted_n"].as_u64().unwrap_or(0);
                }
            }
        }
    }
    accepted
}

/// Without what a clock says.
fn untimed(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let timed = |name: &str| ["_ms", "_ns", "_us", "_us_max"].iter().any(|unit| name.ends_with(unit));
            let kept = fields.iter().filter(|(name, _)| !timed(name));
            Value::Object(kept.map(|(name, value)| (name.clone(), untimed(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(untimed).collect()),
        other => other.clone(),
    }
}

/// The file of each stage of a package.
fn stage_files(packed: &Packed) -> [PathBuf; 2] {
    [0, 1].map(|index| {
        let out = packed.folder.path().join(format!("stage-{index}"));
        let (package, stage) = (packed.dir.clone(), StageOf { index, count: 2 });
        let flags = MaterializeFlags { package, stage, stage_split: None, out: out.clone(), json: true };
        materialize::materialize(&flags).unwrap_or_else(|error| panic!("{error}"));
        out
    })
}

#[test]
fn stages_of_a_package_account_for_drafts_as_one_process_does() {
    for (name, path) in [
        ("a trunk with a head behind it", "nemotronh-tiny/nemotronh-tiny-Q8_0.gguf"),
        ("a model with a head of its own", "qwen35-tiny/qwen35-tiny-Q8_0.gguf"),
    ] {
        let Some(path) = fixture(path) else { continue };
        let packed = Packed::of(&std::fs::read(&path).unwrap());
        let [first_file, last_file] = stage_files(&packed);
        let one = whole(&["--model", text(&packed.dir)]);
        let last = Last::start(&[&SIZE, &["--model", text(&last_file)][..]].concat());
        let two = first(&last, &[&SIZE, &["--model", text(&first_file)][..]].concat());
        let accepted = assert_same(&one, &two, name);
        assert!(accepted.iter().all(|n| *n > 0), "{name}: {accepted:?} accepted, so little was compared");
    }
}

#[test]
fn a_sidecar_at_the_last_stage_drafts_as_in_one_process() {
    let trunk = fixture("qwen35-tiny/qwen35-tiny-nomtp-Q8_0-00001-of-00003.gguf");
    let (Some(trunk), Some(sidecar)) = (trunk, fixture("qwen35-tiny/mtp-qwen35-tiny-Q8_0.gguf")) else { return };
    let both = ["--model", text(&trunk), "--spec-draft-model", text(&sidecar)];
    let one = whole(&both);
    let last = Last::start(&[&SIZE, &both[..]].concat());
    let two = first(&last, &[&SIZE[..], &both[..2]].concat());
    let [mtp, _] = assert_same(&one, &two, "a sidecar");
    assert!(mtp > 0, "the sidecar drafted nothing");
}

/// One process compares the MTP block's drafts with the model's choices before it serves; stages cannot, and say so.
#[test]
fn a_split_model_says_that_its_block_was_not_checked() {
    let checked = |server: &Running| {
        let mut client = Client::connect(server.address);
        client.send(get("/v1/models"));
        let meta = client.answer().json()["data"][0]["meta"].clone();
        (meta["mtp_checked"].clone(), meta["strategies"].as_array().unwrap().contains(&json!("mtp")))
    };
    assert_eq!(checked(&whole(&[])), (json!(true), true));
    let last = Last::start(&SIZE);
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let two = {
        let peer = last.address.to_string();
        let mut command = Command::new(program("engine-serve"));
        command.args(["--port", "0", "--threads", "1", "--stage", "0/2", "--peer", &peer]).args(SIZE);
        command.stdout(Stdio::piped()).stderr(std::fs::File::create(&log).unwrap());
        Running::of(command)
    };
    assert_eq!(checked(&two), (json!(false), true));
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("whether its MTP block fits it was not checked"), "{log}");
}

/// What preflight announces for a stage is what the stage itself plans before it loads anything.
#[test]
fn preflight_plans_a_stage_as_the_stage_does() {
    let built_in = engine_tests::fixtures::workspace().join("bin/model/slipstream-tiny-coder-Q8_0.gguf");
    for path in [Some(built_in), fixture("nemotronh-tiny/nemotronh-tiny-Q8_0.gguf")].into_iter().flatten() {
        let packed = Packed::of(&std::fs::read(&path).unwrap());
        for more in [&[][..], &["--stage-split", "1"]] {
            let line = ["preflight", text(&packed.dir), "--stages", "2", "--json", "--threads", "1"];
            let (code, report, error) = crate::pack::engine_pack(&[&line, &SIZE[..], more].concat());
            assert_eq!(code, Some(0), "{error}");
            let report: Value = serde_json::from_str(&report).unwrap();
            for index in [0, 1] {
                let memory = &report["stages"][index]["memory"];
                let bytes = ["sequence_bytes", "working_bytes"].map(|part| memory[part].as_u64().unwrap());
                let planned = planned_by(&packed.dir, index, more);
                assert_eq!(bytes[0] + bytes[1], planned, "stage {index} of {} with {more:?}", path.display());
            }
        }
    }
}

/// Bytes that a stage says it has planned, at its start.
fn planned_by(model: &Path, index: usize, more: &[&str]) -> u64 {
    let stage = format!("{index}/2");
    let other = if index == 0 { ["--peer", "127.0.0.1:1"] } else { ["--listen", "127.0.0.1:0"] };
    let mut child = Command::new(program("engine-serve"))
        .args(["--port", "0", "--threads", "1", "--model", text(model), "--stage", &stage])
        .args(other)
        .args(SIZE)
        .args(more)
        .env("RUST_LOG", "engine_bin=debug")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut lines = std::io::BufRead::lines(log).map(Result::unwrap);
    let line = lines.find(|line| line.contains("memory planned")).expect("it plans its memory");
    child.kill().unwrap();
    child.wait().unwrap();
    let number = line.rsplit("bytes=").next().expect("a number").trim();
    number.parse().unwrap_or_else(|_| panic!("{line:?}"))
}
