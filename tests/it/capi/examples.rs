//! The C library as hosts have it: examples in three languages are built and run, under valgrind too, and what a process
//! holds is counted over many handles.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use engine_tests::fixtures::{fixture, skip, workspace};
use serde_json::{Value, json};

use crate::serve::client::ask;
use crate::serve::process::{Running, build};

/// What the examples ask for.
const PROMPT: &str = "def total_price(items):\n    result = 0\n";

/// The folder of `libslipstream.so`, brought up to date first.
fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build(&["--lib"]))
}

/// A program of this folder.
fn own(name: &str) -> PathBuf {
    workspace().join("tests/it/capi").join(name)
}

fn examples() -> PathBuf {
    workspace().join("bin/capi/examples")
}

/// Whether a program is there. Where it is not that is a skip, or a failure where `REQUIRE_NATIVE=1` forbids one.
fn has(tool: &str) -> bool {
    if Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success()) {
        return true;
    }
    assert!(
        std::env::var_os("REQUIRE_NATIVE").is_none_or(|value| value != "1"),
        "REQUIRE_NATIVE=1, but {tool} is missing"
    );
    skip(&format!("the C library with {tool}"), "the program is not here");
    false
}

/// Compiles a program against the header and the shared library. `None` is a reported skip.
fn compile(compiler: &str, standard: &str, source: &Path, folder: &Path) -> Option<PathBuf> {
    if !has(compiler) {
        return None;
    }
    let program = folder.join(source.file_stem().unwrap());
    let mut command = Command::new(compiler);
    command.args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread"]);
    command.arg("-I").arg(workspace().join("bin/capi/include")).arg(source).arg("-o").arg(&program);
    command.arg("-L").arg(library()).arg("-lslipstream").arg("-ldl").arg(format!("-Wl,-rpath,{}", library().display()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// Runs to a good end; its lines.
fn run(command: &mut Command) -> Vec<String> {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?} ended with {status}\n{out}\n{error}");
    out.lines().map(str::to_owned).collect()
}

/// The rest of the line that begins with `name`.
fn line<'a>(lines: &'a [String], name: &str) -> &'a str {
    let found = lines.iter().find_map(|line| line.strip_prefix(&format!("{name} ")));
    found.unwrap_or_else(|| panic!("no line {name}: {lines:?}"))
}

/// The ids that the daemon gives for what the examples ask.
fn of_the_daemon() -> &'static str {
    static IDS: OnceLock<String> = OnceLock::new();
    IDS.get_or_init(|| {
        let daemon = Running::start_with(&["--ctx-size", "512"], std::process::Stdio::null());
        let body = json!({"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "seed": 7, "return_token_ids": true});
        let answer = ask(daemon.address, "/v1/completions", &body).json();
        let ids = answer["choices"][0]["token_ids"].as_array().unwrap();
        assert!(ids.len() > 10, "{answer}");
        ids.iter().map(Value::to_string).collect::<Vec<_>>().join(" ")
    })
}

const CONFIG: &str = r#"{"ctx_size": 512, "parallel": 2, "threads": 1}"#;
const SMALL: &str = r#"{"ctx_size": 256, "parallel": 1, "threads": 1}"#;

#[test]
fn the_c_example_gets_what_the_daemon_gives() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile("cc", "-std=c11", &examples().join("complete.c"), folder.path()) else { return };
    let lines = run(Command::new(program).arg(CONFIG));
    assert_eq!((line(&lines, "json"), line(&lines, "tokens")), (of_the_daemon(), of_the_daemon()));
    let about: Value = serde_json::from_str(line(&lines, "about")).unwrap();
    assert_eq!((&about["slots"], &about["threads"]), (&json!(2), &json!(1)));
}

#[test]
fn the_cpp_example_gets_in_two_threads_what_it_gets_alone() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile("c++", "-std=c++17", &examples().join("sessions.cpp"), folder.path()) else { return };
    let lines = run(Command::new(program).arg(CONFIG));
    assert_eq!(line(&lines, "alone"), of_the_daemon());
    for pair in lines[..4].chunks(2) {
        assert_eq!(pair[0].strip_prefix("alone"), pair[1].strip_prefix("beside"));
    }
    assert!(line(&lines, "refused").starts_with("3 ") && lines[4].contains("no-such-model.gguf"), "{lines:?}");
}

#[test]
fn the_python_example_gets_what_the_daemon_gives() {
    if !has("python3") {
        return;
    }
    let mut command = Command::new("python3");
    command.arg("-B").arg(examples().join("complete.py")).arg(CONFIG);
    let lines = run(command.env("SLIPSTREAM_LIBRARY", library().join("libslipstream.so")));
    assert_eq!((line(&lines, "json"), line(&lines, "tokens")), (of_the_daemon(), of_the_daemon()));
    for name in ["cancelled", "forked", "stale"] {
        assert_eq!(line(&lines, name), "True");
    }
    assert!(line(&lines, "refused").starts_with("3 "), "{lines:?}");
}

/// Valgrind shows a processor without AVX-512: the kernels go by that, and so the AVX2 ones run here.
#[test]
fn valgrind_finds_no_error_and_no_leak() {
    let folder = tempfile::tempdir().unwrap();
    if !has("valgrind") {
        return;
    }
    let Some(program) = compile("cc", "-std=c11", &examples().join("complete.c"), folder.path()) else { return };
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect"]);
    let lines = run(command.arg(program).arg(r#"{"ctx_size": 512, "parallel": 2, "threads": 2}"#));
    let about: Value = serde_json::from_str(line(&lines, "about")).unwrap();
    if cfg!(target_arch = "x86_64") {
        assert_eq!(about["isa"], "avx2");
    }
    // And every instruction set gives the same tokens.
    assert_eq!(line(&lines, "json"), of_the_daemon());
}

/// The machine gives no thread, whichever of them it is: opening fails and says so, nothing is left, the next one opens. An
/// open handle whose schedule wants more goes on without.
#[test]
fn a_thread_that_is_refused_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile("cc", "-std=gnu11", &own("refused.c"), folder.path()) else { return };
    let mut ids = Vec::new();
    // Two workers beside the caller, the template's, the engine's, the text's two and the host's; and those of a schedule.
    for (schedule, threads, refusals) in [("auto", 6, 7), ("inline", 6, 7), ("fused", 8, 9), ("full", 10, 11)] {
        let config = json!({"ctx_size": 128, "parallel": 1, "threads": 3, "schedule": schedule});
        let lines = run(Command::new(&program).arg(config.to_string()));
        assert_eq!(line(&lines, "threads"), threads.to_string(), "{schedule}: {lines:?}");
        let refused: Vec<&String> = lines.iter().filter(|line| line.starts_with("refused ")).collect();
        assert_eq!(refused.len(), refusals, "{schedule}: {refused:?}");
        for (n, text) in refused.iter().enumerate() {
            assert!(
                text.starts_with(&format!("refused {} 1 ", n + 1)) && text.contains("could not be started"),
                "{text}"
            );
        }
        ids.push(line(&lines, "ids").to_owned());
    }
    assert!(ids.iter().all(|other| *other == ids[0]), "{ids:?}");
}

#[test]
fn a_host_with_bad_manners_is_borne() {
    let Some(model) = fixture("qwen35-tiny/qwen35-tiny-Q8_0.gguf") else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile("cc", "-std=gnu11", &own("hostile.c"), folder.path()) else { return };
    let file = folder.path().join("changing.gguf");
    std::fs::copy(&model, &file).unwrap();
    let config = |model: Option<&Path>| {
        let model = model.map(|path| path.to_str().unwrap());
        json!({"model": model, "ctx_size": 512, "parallel": 2, "threads": 2}).to_string()
    };
    let mut command = Command::new(program);
    command.arg(config(None)).arg(config(Some(&model))).arg(config(Some(&file))).arg(&file);
    command.env_remove("RUST_BACKTRACE");
    let output = command.output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{error}", output.status);
    assert_eq!(error, "", "the library writes nothing");
    let lines: Vec<String> = out.lines().map(str::to_owned).collect();
    assert!(line(&lines, "dead").starts_with("10 ") && line(&lines, "dead").contains("changing.gguf"), "{lines:?}");
    let counts: Vec<u32> = line(&lines, "closed").split(' ').map(|n| n.parse().unwrap()).collect();
    for (status, count) in counts.iter().enumerate() {
        // Done, no handle, too small, full, no request, closed; and no other.
        assert!(*count == 0 || [0, 4, 6, 7, 8, 9].contains(&status), "status {status}: {lines:?}");
    }
    assert!(counts[0] > 0 && counts[4] > 0, "{lines:?}");
}

#[test]
fn the_cpp_wrapper_owns_its_handle() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile("c++", "-std=c++17", &own("wrapper.cpp"), folder.path()) else { return };
    run(Command::new(program).arg(SMALL));
}

#[test]
fn the_python_module_owns_its_handle() {
    if !has("python3") {
        return;
    }
    let mut command = Command::new("python3");
    command.arg("-B").arg(own("manners.py")).arg(SMALL).env("PYTHONPATH", examples());
    let output = command.env("SLIPSTREAM_LIBRARY", library().join("libslipstream.so")).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{}: {error}", output.status);
    assert_eq!(output.stdout, b"done\n");
}

/// Two handles a cycle, and one that is refused late: memory, threads and descriptors return to where they were.
#[test]
fn a_hundred_cycles_leave_nothing_behind() {
    let Some(model) = fixture("qwen35-tiny/qwen35-tiny-Q8_0.gguf") else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile("cc", "-std=gnu11", &own("cycles.c"), folder.path()) else { return };
    let Some(plain) = fixture("qwen35-tiny/qwen35-tiny-nomtp-Q8_0-00001-of-00003.gguf") else { return };
    let (model, plain) = (model.to_str().unwrap(), plain.to_str().unwrap());
    let good = json!({"model": model, "ctx_size": 64, "parallel": 1, "threads": 3});
    // That it has no block is refused when everything but the engine is there.
    let bad = json!({"model": plain, "ctx_size": 64, "parallel": 1, "spec_strategy": "mtp"});
    let mut command = Command::new(program);
    let lines = run(command
        .arg(good.to_string())
        .arg(bad.to_string())
        .args(["100", "2", "20", "50", "100"])
        .env("MALLOC_ARENA_MAX", "1"));
    // Worker 0 is who computes.
    assert_eq!(line(&lines, "open"), "workers 2", "two handles share one pool");
    let numbers = |cycle: &str| -> Vec<u64> {
        let words = line(&lines, cycle).split(' ').filter_map(|word| word.parse().ok());
        words.collect()
    };
    let (second, early, half, last) =
        (numbers("cycle 2"), numbers("cycle 20"), numbers("cycle 50"), numbers("cycle 100"));
    let [used, rss, threads, fds] = last[..] else { panic!("{lines:?}") };
    assert_eq!((threads, fds), (1, second[3]), "threads, descriptors: {lines:?}");
    // The caches of the allocator fill in the first cycles; 400 bytes a cycle would show from there on.
    assert!(used <= early[0] + 80 * 400, "allocated bytes grow: {lines:?}");
    // So do the pages that it keeps; from half way on there are no more of them.
    assert!(rss <= half[1] + half[1] / 100, "resident memory grows: {lines:?}");
    assert!(rss <= second[1] + second[1] * 3 / 100, "resident memory grows: {lines:?}");
}
