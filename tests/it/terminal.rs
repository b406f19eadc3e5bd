//! Names in files and words of others, in whatever a program prints: nothing of them acts on a terminal.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use engine_bin::bench::result::BenchResult;
use engine_bin::report::is_hidden;
use engine_io::gguf::Value;
use engine_io::trace::{Role, Session, Turn, jsonl};
use engine_tests::fixtures::workspace;
use serde_json::json;

use crate::forward::edit::Edit;
use crate::forward::open;
use crate::serve::client::ask;
use crate::serve::process::{Running, program};

/// A title for the window, a cleared screen by either kind of introducer, letters in another order, a letter of no width.
const ODD: &str = "a\u{1b}]0;x\u{7}\u{1b}[2J\u{9b}2J\u{202e}b\u{200b}\r";

/// What of it a name in a model file may have.
const ODD_NAME: &str = "a\u{202e}b\u{200b}";

/// The built-in model under that name, with a tensor of as odd a name, in a file of that name.
fn odd_model(folder: &Path) -> PathBuf {
    let built_in = open(&workspace().join("bin/model/slipstream-tiny-coder-Q8_0.gguf"));
    let edit = Edit::of_file(&built_in).set("general.name", Value::str(ODD)).add(ODD_NAME, &[4], &[0.0; 4]);
    let path = folder.join(format!("{ODD}.gguf"));
    fs::write(&path, edit.bytes()).unwrap();
    path
}

fn odd_recording(folder: &Path) {
    let session = Session {
        id: ODD.to_owned(),
        source: ODD.to_owned(),
        turns: vec![Turn::new(Role::User, "x = 1\nx ="), Turn::output(format!(" 1 {ODD}"))],
        ..Session::default()
    };
    let path = folder.join(format!("{ODD}.jsonl"));
    let mut bytes = Vec::new();
    jsonl::write(&mut bytes, &session).unwrap();
    fs::write(&path, bytes).unwrap();
}

#[track_caller]
fn assert_shown(text: &str, what: &str) {
    let hidden: Vec<char> = text.chars().filter(|c| is_hidden(*c) && *c != '\n').collect();
    assert!(hidden.is_empty(), "{what}: {hidden:?} reach the terminal in {text:?}");
}

#[test]
fn the_log_of_a_server_hides_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let model = odd_model(folder.path());
    let log = folder.path().join("log");
    let mut server = {
        let mut command = Command::new(program("engine-serve"));
        command.args(["--port", "0", "--threads", "1", "--ctx-size", "256", "--model"]).arg(&model);
        command.env("RUST_LOG", "debug").stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        Running::of(command)
    };
    for body in [json!({"prompt": "x", "model": ODD, "max_tokens": 1}), json!({ODD: ODD, "prompt": ODD, "model": ODD})]
    {
        ask(server.address, "/v1/completions", &body);
    }
    server.signal("-TERM");
    assert_eq!(server.end().code(), Some(0));
    let log = fs::read_to_string(&log).unwrap();
    assert_shown(&log, "the log");
    for part in ["nothing reads this tensor", "serving", "a\\u{1b}]0;x"] {
        assert!(log.contains(part), "{log} does not say {part}");
    }
}

#[test]
fn what_programs_print_hides_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let model = odd_model(folder.path());
    odd_recording(folder.path());
    // With what is no recording beside it, which is told.
    let (model, recordings) = (model.to_str().unwrap(), folder.path().to_str().unwrap());
    let short = ["--model", model, "--threads", "1", "--mode", "live", "--repeats", "1", "--warmup", "0"];
    let replay = [&["replay", recordings, "--max-tokens", "2", "--arms", "off"], &short[..]].concat();
    let torn = folder.path().join(format!("{ODD}.txt"));
    fs::write(&torn, ODD).unwrap();
    let torn = torn.to_str().unwrap();
    for (name, flags, code) in [
        ("engine-bench", &replay[..], 0),
        ("engine-bench", &[&replay[..], &["--json"]].concat(), 0),
        ("engine-bench", &["compare", ODD, torn], 3),
        ("engine-bench", &["speed", "--model", torn], 3),
        ("engine-bench", &["roofline", "--model", torn], 3),
        ("engine-bench", &["speed", ODD], 2),
        ("engine-bench", &[ODD], 2),
        ("engine-pack", &["inspect", model], 0),
        ("engine-pack", &["inspect", model, "--json"], 0),
        ("engine-pack", &["inspect", torn], 3),
        ("engine-pack", &["inspect", model, "--ctx-size", ODD], 2),
        ("engine-serve", &["--model", torn], 3),
        ("engine-serve", &["--port", ODD], 2),
        ("engine-serve", &["--host", ODD, "--port", "0"], 1),
    ] {
        let output = Command::new(program(name)).args(flags).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        let what = format!("{name} {flags:?}");
        assert_eq!(output.status.code(), Some(code), "{what}: {error}");
        assert_shown(&out, &what);
        assert_shown(&error, &what);
        assert!(format!("{out}{error}").contains("\\u"), "{what} names nothing odd: {out}{error}");
        if flags.contains(&"--json") {
            let value: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{what}: {e}: {out}"));
            let names = value.to_string();
            assert!(
                names.contains(serde_json::to_string(ODD).unwrap().trim_matches('"')),
                "{what}: its names are those of the files"
            );
            if name == "engine-bench" {
                let result: BenchResult = serde_json::from_value(value).unwrap();
                assert!(result.model.name.starts_with(ODD), "{what}: {:?}", result.model.name);
            }
        }
    }
}
