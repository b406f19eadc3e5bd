//! Packages that are served: the same tokens as the single file's, and what the manifest says is what requests get.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use engine::api::{Strategy, WindowPolicy};
use engine_io::digest::Sha256;
use engine_tests::drive::{Cell, Subject, run};
use engine_tests::fixtures::{fixture, workspace};
use serde_json::{Value, json};

use super::Packed;
use crate::serve::client::{Client, ask};
use crate::serve::process::{Running, program};

/// The model inside the program, as a file.
fn built_in() -> Packed {
    Packed::of(&fs::read(workspace().join("bin/model/slipstream-tiny-coder-Q8_0.gguf")).unwrap())
}

fn served(model: &Path, more: &[&str]) -> Running {
    let flags = ["--model", model.to_str().unwrap(), "--ctx-size", "256", "--mtp-force"];
    Running::start_with(&[&flags, more].concat(), Stdio::null())
}

/// Greedy text of a prompt with much to copy.
fn complete(server: &Running, speculative: Value) -> Value {
    let prompt = "def f(x):\n    return x + 1\n\ndef g(x):\n    return x + 1\n\ndef f(x):\n";
    let body = json!({"prompt": prompt, "max_tokens": 32, "temperature": 0, "speculative": speculative});
    let answer = ask(server.address, "/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn model_entry(server: &Running) -> Value {
    let mut client = Client::connect(server.address);
    client.send("GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    client.answer().json()["data"][0].clone()
}

/// Signs the menu that the test wrote, as `package` would have.
fn set_menu(packed: &Packed, change: impl Fn(&mut Value)) {
    let mut manifest = packed.manifest();
    change(&mut manifest["generation"]["speculative_decoding"]);
    let text = engine_io::provenance::canonical(&manifest["generation"]);
    let default = manifest["generation"]["speculative_decoding"]["default"].clone();
    let recipe = &mut manifest["provenance"]["generation_recipe"];
    (recipe["speculative_decoding_sha256"], recipe["default"]) =
        (Sha256::of(text.as_bytes()).to_string().into(), default);
    packed.set_manifest(&manifest);
}

#[test]
fn a_package_answers_as_its_model_does() {
    let packed = built_in();
    let (single, package) = (served(&packed.model, &[]), served(&packed.dir, &[]));
    let entry = model_entry(&package);
    assert_eq!(entry["id"], packed.manifest()["model_id"]);
    assert_eq!(entry["meta"]["strategies"], json!(["off", "mtp", "ngram-suffix", "mtp-suffix"]));
    assert_eq!(entry["meta"]["strategy_default"], "mtp-suffix");
    let window = json!({"policy": "fixed", "initial": 6, "max": 12});
    for strategy in ["off", "mtp", "ngram-suffix", "mtp-suffix", "auto"] {
        let speculative = json!({"strategy": strategy, "window": window});
        let (a, b) = (complete(&single, speculative.clone()), complete(&package, speculative));
        assert_eq!(a["choices"], b["choices"], "{strategy}");
        assert!(!a["choices"][0]["text"].as_str().unwrap().is_empty());
        for (proposer, count) in [("mtp", "drafted_n"), ("mtp", "accepted_n"), ("suffix", "drafted_n")] {
            let of = |answer: &Value| answer["speculation"]["proposers"][proposer][count].clone();
            assert_eq!(of(&a), of(&b), "{strategy}: {proposer}.{count}");
        }
        assert_eq!(a["speculation"]["effective"], b["speculation"]["effective"], "{strategy}");
    }
}

/// Trunk and head of another family, through the library: tokens and counters.
#[test]
fn a_packaged_composite_drafts_as_its_file_does() {
    let Some(path) = fixture("nemotronh-tiny/nemotronh-tiny-Q8_0.gguf") else { return };
    let packed = Packed::of(&fs::read(&path).unwrap());
    let single = Subject::file("single", path, 24);
    let package = Subject::file("package", packed.dir.clone(), 24);
    for strategy in Strategy::ALL {
        let cell = Cell { strategy, policy: WindowPolicy::Fixed, window: 6, ..Cell::reference(0.0) };
        let (a, b) = (run(&single, &cell), run(&package, &cell));
        for (a, b) in a.iter().zip(&b) {
            assert_eq!(a.tokens, b.tokens, "{strategy:?}");
            assert_eq!((a.report.mtp, a.report.suffix), (b.report.mtp, b.report.suffix), "{strategy:?}");
        }
        let drafted: u64 = b.iter().map(|o| o.report.mtp.drafted).sum();
        assert_eq!(drafted > 0, strategy.uses_mtp(), "{strategy:?}");
    }
}

#[test]
fn the_package_sets_what_flags_and_requests_do_not() {
    let packed = built_in();
    set_menu(&packed, |menu| {
        menu["default"] = "ngram-suffix".into();
        menu["strategies"].as_object_mut().unwrap().remove("mtp");
        menu["proposers"]["mtp"]["max_draft_tokens"] = 2.into();
        menu["proposers"]["suffix"]["ngram_min"] = 5.into();
        menu["strategies"]["mtp-suffix"]["window_policy"] =
            json!({"default": "fixed", "initial_window": 3, "min_window": 1, "max_window": 9});
        menu["strategies"]["mtp-suffix"]["extension_policy"]["max_tokens"] = 7.into();
    });
    assert_eq!(packed.preflight(2, false).issues, []);
    let server = served(&packed.dir, &[]);
    let entry = model_entry(&server);
    assert_eq!(entry["meta"]["strategies"], json!(["off", "ngram-suffix", "mtp-suffix"]));
    assert_eq!(entry["meta"]["strategy_default"], "ngram-suffix");
    let effective = |server: &Running, speculative| complete(server, speculative)["speculation"]["effective"].clone();
    let default = effective(&server, Value::Null);
    assert_eq!((&default["strategy"], &default["suffix_min"]), (&"ngram-suffix".into(), &5.into()));
    let composite = effective(&server, json!({"strategy": "mtp-suffix"}));
    assert_eq!(
        composite,
        json!({"strategy": "mtp-suffix", "mtp_tokens": 2, "suffix_min": 5, "suffix_max": 64, "suffix_tokens": 7,
            "window": {"policy": "fixed", "initial": 3, "min": 1, "max": 9}, "on_unavailable": "error"})
    );
    // The package's limit holds for requests, and the clamp is told.
    let wide = complete(&server, json!({"strategy": "mtp-suffix", "window": {"max": 30}}));
    assert_eq!(wide["speculation"]["effective"]["window"]["max"], 9);
    assert_eq!(wide["speculation"]["clamps"][0]["field"], "window.max");
    // A strategy that the package lacks.
    let body = json!({"prompt": "x", "max_tokens": 1, "speculative": {"strategy": "mtp"}});
    let answer = ask(server.address, "/v1/completions", &body);
    assert_eq!(answer.status, 400);
    let error = answer.json()["error"].clone();
    assert_eq!(error["code"], "strategy_unavailable");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("off, ngram-suffix, mtp-suffix") && message.contains("package"), "{message}");
    let instead = complete(&server, json!({"strategy": "mtp", "on_unavailable": "fallback"}));
    assert_eq!(instead["speculation"]["effective"]["strategy"], "off");
    drop(server);

    // Flags go over it, for every strategy.
    let flags =
        ["--spec-strategy", "mtp-suffix", "--window-max", "5", "--mtp-tokens", "1", "--window-policy", "adaptive"];
    let server = served(&packed.dir, &flags);
    let flagged = effective(&server, Value::Null);
    assert_eq!(
        flagged,
        json!({"strategy": "mtp-suffix", "mtp_tokens": 1, "suffix_min": 5, "suffix_max": 64, "suffix_tokens": 5,
            "window": {"policy": "adaptive", "initial": 3, "min": 1, "max": 5}, "on_unavailable": "error"})
    );
    drop(server);
    let line = ["--model", packed.dir.to_str().unwrap(), "--port", "0", "--spec-strategy", "mtp"];
    let (code, _, text) = crate::serve::process::run(&line);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("--spec-strategy mtp") && text.contains("off, ngram-suffix, mtp-suffix"), "{text}");
}

#[test]
fn a_spoiled_package_is_not_served() {
    let packed = Packed::tiny();
    fs::remove_file(packed.dir.join("layers/layer-00002.gguf")).unwrap();
    let mut manifest = packed.manifest();
    manifest["model_id"] = "".into();
    packed.set_manifest(&manifest);
    let line = ["--model", packed.dir.to_str().unwrap(), "--port", "0"];
    let (code, _, text) = crate::serve::process::run(&line);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("empty_model_id"), "{text}");
    manifest["model_id"] = "a/b:c".into();
    packed.set_manifest(&manifest);
    let (code, _, text) = crate::serve::process::run(&line);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("missing_artifact: layers/layer-00002.gguf"), "{text}");
}

#[test]
fn a_package_is_measured_as_its_file_is() {
    let packed = Packed::tiny();
    let input = packed.folder.path().join("in.json");
    fs::write(&input, r#"{"sequences": [[1, 2, 3, 1, 2]], "continue": 4, "mtp_depth": 2}"#).unwrap();
    let eval = |model: &Path, name: &str| {
        let out = packed.folder.path().join(name);
        let status = Command::new(program("engine-bench"))
            .args(["eval", "--threads", "1", "--model", model.to_str().unwrap(), "--tokens", input.to_str().unwrap()])
            .args(["--out", out.to_str().unwrap()])
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        fs::read_to_string(out).unwrap()
    };
    let (single, package) = (eval(&packed.model, "single.json"), eval(&packed.dir, "package.json"));
    assert!(single.contains("greedy"));
    assert_eq!(single, package);
}
