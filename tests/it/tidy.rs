//! Habits of the tree that no compiler checks: who may depend on whom, where `unsafe` lives, what is never written.
//! Each rule is a pure function from text to complaints, so that the last test here can show it complaining.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use engine_tests::fixtures::{skip, workspace};
use fancy_regex::Regex;

/// Package folder, package name, and the workspace packages it may name. `tests` and `perf` see all; nobody sees them.
const ARROWS: &[(&str, &str, &[&str])] = &[
    ("kernels", "engine-kernels", &[]),
    ("io", "engine-io", &[]),
    ("engine", "engine", &["engine-kernels", "engine-io"]),
    ("bin", "engine-bin", &["engine", "engine-io"]),
    ("bin/capi", "engine-capi", &["engine-bin"]),
    ("tests", "engine-tests", &["engine", "engine-io", "engine-kernels", "engine-bin"]),
    ("perf", "engine-perf", &["engine", "engine-io", "engine-kernels", "engine-bin", "engine-tests"]),
];

/// Everything the top of the tree may hold. A new folder is a decision: change ARCHITECTURE.md with it.
const TOP: &[&str] = &[
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "bin",
    "engine",
    "io",
    "kernels",
    "perf",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "tests",
];

/// The files in which `unsafe` may be written: mapped files, instruction sets, the worker pool, the border to C. A new one
/// is a decision.
const UNSAFE_PLACES: &[&str] = &[
    "bin/capi/src/lib.rs",
    "bin/capi/src/memory.rs",
    "bin/capi/src/tests.rs",
    "io/src/mmap.rs",
    "kernels/src/cpu/avx2/lanes.rs",
    "kernels/src/cpu/avx2/matmul/block_16.rs",
    "kernels/src/cpu/avx2/matmul/block_256.rs",
    "kernels/src/cpu/avx2/matmul/block_32.rs",
    "kernels/src/cpu/avx2/matmul/float.rs",
    "kernels/src/cpu/avx2/matmul/mod.rs",
    "kernels/src/cpu/avx2/matmul/pack.rs",
    "kernels/src/cpu/avx2/matmul/quantize.rs",
    "kernels/src/cpu/avx2/peak.rs",
    "kernels/src/cpu/avx512/lanes.rs",
    "kernels/src/cpu/avx512/matmul/block_256.rs",
    "kernels/src/cpu/avx512/matmul/block_32.rs",
    "kernels/src/cpu/avx512/matmul/float.rs",
    "kernels/src/cpu/avx512/matmul/mod.rs",
    "kernels/src/cpu/avx512/matmul/pack.rs",
    "kernels/src/cpu/avx512/peak.rs",
    "kernels/src/cpu/disjoint.rs",
    "kernels/src/cpu/groups.rs",
    "kernels/src/cpu/matmul.rs",
    "kernels/src/cpu/pages.rs",
    "kernels/src/cpu/pool.rs",
];

/// Executors of futures. One of them in the lock file means some dependency brought a runtime.
const ASYNC_RUNTIMES: &[&str] =
    &["tokio", "async-std", "smol", "futures-executor", "async-executor", "async-io", "glommio", "monoio", "actix-rt"];

/// Text that must not be committed, written in halves so that this file does not contain it.
const FORBIDDEN_TEXT: &[(&str, &str)] = &[
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/Us", "ers/"), "a path of one machine"),
    (concat!("cra", "tes.io/"), "a registry host"),
    (concat!("py", "pi.org"), "a registry host"),
    (concat!("python", "hosted.org"), "a registry host"),
    (concat!("npm", "js.org"), "a registry host"),
];

/// Macros and attributes that mark unfinished work, in halves likewise.
const UNFINISHED: &[&str] = &[concat!("to", "do!("), concat!("unimple", "mented!("), concat!("#[ig", "nore")];

/// Files that may open others by the system's own calls: the one that does it for all, what writes and locks files of ours,
/// what asks the system itself, what syncs a folder. Whatever else opens a file that somebody names asks `engine_io::plain`.
const OPENERS: &[&str] = &["bin/src/flags.rs", "bin/src/hub/download.rs", "bin/src/pack/output.rs", "io/src/plain.rs"];

/// The file that writes to terminals.
const PRINTER: &str = "bin/src/report.rs";

/// What writes to a terminal, or starts what does. The lines that show how far a long run is hold words of ours alone.
const PRINTS: &[&str] = &[
    "print!(",
    "println!(",
    "dbg!(",
    "io::stdout",
    "io::stderr",
    "stdout()",
    "stderr()",
    "tracing_subscriber",
    "::parse()",
    ".print()",
];

/// A file longer than this holds more than one idea. Lower it when the longest file allows.
const LONGEST_FILE: usize = 900;

#[test]
fn packages_follow_the_arrows() {
    let members = quoted_list(&read("Cargo.toml"), "members");
    for member in &members {
        let manifest = read(&format!("{member}/Cargo.toml"));
        let row = ARROWS.iter().find(|(folder, _, _)| folder == member);
        let (_, name, allowed) = row.unwrap_or_else(|| panic!("package {member} has no row in ARROWS"));
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{member}/Cargo.toml: the package is called {name}");
        assert!(manifest.contains("[lints]\nworkspace = true"), "{member}/Cargo.toml: take the workspace's lints");
        complain(wrong_arrows(&manifest, allowed).into_iter().map(|found| format!("{member}/Cargo.toml: {found}")));
    }
}

#[test]
fn the_engine_forbids_unsafe() {
    assert!(read("engine/src/lib.rs").contains("#![forbid(unsafe_code)]"));
}

#[test]
fn unsafe_stays_in_its_places() {
    let files = tracked().into_iter().filter(|path| path.ends_with(".rs") && !UNSAFE_PLACES.contains(&path.as_str()));
    complain_by_line(files, unsafe_use);
    let safe = UNSAFE_PLACES.iter().filter(|place| read(place).lines().all(|line| unsafe_use(line).is_none()));
    complain(safe.map(|place| format!("{place}: uses no unsafe; take it off UNSAFE_PLACES")));
}

#[test]
fn the_top_holds_what_is_agreed() {
    let files = tracked();
    if files.is_empty() {
        return;
    }
    let top = |path: &String| path.split('/').next().expect("split yields a first part").to_owned();
    complain(files.iter().map(top).filter(|entry| !TOP.contains(&entry.as_str())).map(|entry| {
        format!("{entry}: not an entry of the top folder; move it into a package or add it to TOP and ARCHITECTURE.md")
    }));
    for needed in ["README.md", "ARCHITECTURE.md", "LICENSE", ".ci/run"] {
        assert!(workspace().join(needed).exists(), "{needed} is missing");
    }
}

#[test]
fn no_machine_or_registry_is_named() {
    // The lock file names its registry by design; the next test looks at it.
    complain_by_line(tracked().into_iter().filter(|path| path != "Cargo.lock"), forbidden_text);
}

#[test]
fn the_lock_file_brings_no_runtime_and_one_registry() {
    complain(lock_complaints(&read("Cargo.lock")).into_iter());
}

#[test]
fn nothing_is_left_unfinished() {
    complain_by_line(tracked().into_iter().filter(|path| path.ends_with(".rs")), unfinished);
}

/// `engine_bin::report` writes out what a terminal would obey, and does not panic where nobody reads, which would turn any
/// exit code into 101.
#[test]
fn programs_print_in_one_place() {
    let rooms = ["bin/src/", "bin/capi/src/", "engine/src/", "io/src/", "kernels/src/"];
    let sources = tracked().into_iter().filter(|path| rooms.iter().any(|room| path.starts_with(room)));
    complain_by_line(
        sources.filter(|path| path.ends_with(".rs") && !path.ends_with("tests.rs") && path != PRINTER),
        printing,
    );
}

/// A pipe in the place of a file keeps its reader waiting; `engine_io::plain` does not wait.
#[test]
fn files_are_opened_in_one_place() {
    let is_source = |path: &String| {
        let room = path.starts_with("bin/src/") || path.starts_with("io/src/");
        room && path.ends_with(".rs") && !path.ends_with("tests.rs") && !OPENERS.contains(&path.as_str())
    };
    complain(tracked().into_iter().filter(is_source).flat_map(|path| {
        let text = read(&path);
        // Tests of a file stand at its end.
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let found =
            code.lines().enumerate().filter_map(|(i, line)| Some(format!("{path}:{}: {}", i + 1, opening(line)?)));
        found.collect::<Vec<_>>()
    }));
}

#[test]
fn files_stay_short() {
    let sources = tracked().into_iter().filter(|path| [".rs", ".py", ".cu"].iter().any(|end| path.ends_with(end)));
    complain(sources.filter_map(|path| {
        let lines = read(&path).lines().count();
        (lines > LONGEST_FILE).then(|| format!("{path}: {lines} lines, at most {LONGEST_FILE}; split it by ideas"))
    }));
}

#[test]
fn the_map_names_places_that_exist() {
    let named = named_places(&read("ARCHITECTURE.md"));
    assert!(!named.is_empty(), "ARCHITECTURE.md names no folder in backticks");
    complain(named.into_iter().filter(|path| !workspace().join(path).exists()).map(|path| {
        format!("ARCHITECTURE.md names `{path}`, which does not exist; change the map and the tree together")
    }));
}

#[test]
fn every_rule_can_complain() {
    let manifest = "[package]\nname = \"engine-io\"\n\n[dependencies]\nserde = { workspace = true }\n\
                    engine.workspace = true\n[dev-dependencies]\nengine-tests = { workspace = true }\n";
    assert_eq!(wrong_arrows(manifest, &["engine"]).len(), 1);
    assert_eq!(wrong_arrows(manifest, &[]).len(), 2);
    assert_eq!(quoted_list("x = 1\nmembers = [\"a\",\n  \"b\"]\n", "members"), ["a", "b"]);

    let word = concat!("un", "safe");
    for line in [format!("let x = {word} {{ y }};"), format!("{word} fn f() {{}}"), format!("#![expect({word}_code)]")]
    {
        assert!(unsafe_use(&line).is_some(), "{line}");
    }
    for line in ["// unsafe { }", "#![forbid(unsafe_code)]", "let reason = \"unsafe to keep\";"] {
        assert!(unsafe_use(line).is_none(), "{line}");
    }
    assert!(forbidden_text(&format!("see {}x", FORBIDDEN_TEXT[0].0)).is_some());
    assert!(forbidden_text("see work/x").is_none());
    assert!(UNFINISHED.iter().all(|mark| unfinished(&format!("    {mark})")).is_some()));

    assert!(opening("    let file = File::open(path)?;").is_some());
    assert!(opening("std::fs::read_to_string(path)").is_some() && opening("fs::read(path)").is_some());
    for line in ["// File::open( waits", "plain::read(path, 1)", "fs::read_dir(dir)", "ModelFile::open(path)"] {
        assert!(opening(line).is_none(), "{line}");
    }

    for line in [
        "    eprintln!(\"error: {error}\");",
        "    let mut out = io::stdout().lock();",
        "    log.with_writer(std::io::stderr).init();",
        "    tracing_subscriber::fmt().init();",
        "    let cli = Cli::parse();",
        "    if let Err(e) = report::usage(error.print()) {",
    ] {
        assert!(printing(line).is_some(), "{line}");
    }
    for line in ["// println!() panics", "ProgressDrawTarget::stderr()", "text.parse()", "report::print(text)"] {
        assert!(printing(line).is_none(), "{line}");
    }

    let entry = |name: &str, source: &str| format!("[[package]]\nname = \"{name}\"\nsource = \"{source}\"\n");
    let registry = format!("registry+https://github.com/rust-lang/{}", concat!("cra", "tes.io-index"));
    assert!(lock_complaints(&entry("mio", &registry)).is_empty());
    assert_eq!(lock_complaints(&entry("tokio", &registry)).len(), 1);
    assert_eq!(lock_complaints(&entry("mio", "registry+https://mirror.example/index")).len(), 1);

    assert_eq!(
        named_places("`engine/src/tick.rs`, `io`, `a/b`, `perf/records/`"),
        ["engine/src/tick.rs", "perf/records"]
    );
}

/// Dependencies on packages of this workspace that are not `allowed`.
fn wrong_arrows(manifest: &str, allowed: &[&str]) -> Vec<String> {
    let mut in_dependencies = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if let Some(section) = line.trim().strip_prefix('[') {
            in_dependencies = section.trim_end_matches(']').ends_with("dependencies");
            continue;
        }
        let name = line.split(['=', '.', ' ']).next().unwrap_or_default().trim_matches('"');
        let ours = ARROWS.iter().any(|&(_, package, _)| package == name);
        if in_dependencies && ours && !allowed.contains(&name) {
            found.push(format!("depends on {name}, an arrow that the rooms do not have"));
        }
    }
    found
}

/// The strings of `key = ["a", "b"]`.
fn quoted_list(manifest: &str, key: &str) -> Vec<String> {
    let (_, after) = manifest.split_once(&format!("{key} = [")).unwrap_or_else(|| panic!("no list {key}"));
    let (list, _) = after.split_once(']').expect("the list ends");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn unsafe_use(line: &str) -> Option<String> {
    static OPENED: LazyLock<Regex> = LazyLock::new(|| {
        let opened = r"\bunsafe\s*(\{|\(|fn\b|impl\b|extern\b|trait\b)|(allow|expect|warn)\([^)]*\bunsafe_code";
        Regex::new(opened).expect("a valid pattern")
    });
    let code = line.split("//").next().unwrap_or_default();
    let found = OPENED.is_match(code).expect("a pattern without backtracking");
    found.then(|| String::from("unsafe code in a file that is not one of UNSAFE_PLACES"))
}

fn forbidden_text(line: &str) -> Option<String> {
    FORBIDDEN_TEXT.iter().find(|(text, _)| line.contains(text)).map(|(text, what)| format!("{text} is {what}"))
}

fn unfinished(line: &str) -> Option<String> {
    UNFINISHED.iter().find(|mark| line.contains(*mark)).map(|mark| format!("{mark}: finish it or take it out"))
}

fn printing(line: &str) -> Option<String> {
    let code = line.split("//").next().unwrap_or_default().replace("ProgressDrawTarget::stderr()", "");
    let found = PRINTS.iter().find(|call| code.contains(**call));
    found.map(|call| format!("{call} prints what it is given as it is; use engine_bin::report"))
}

fn opening(line: &str) -> Option<String> {
    let code = line.split("//").next().unwrap_or_default().replace("ModelFile::open(", "");
    let found = ["File::open(", "fs::read(", "fs::read_to_string("].into_iter().find(|call| code.contains(call));
    found.map(|call| format!("{call} waits for a pipe; use engine_io::plain"))
}

fn lock_complaints(lock: &str) -> Vec<String> {
    let index = concat!("registry+https://github.com/rust-lang/cra", "tes.io-index");
    let value = |line: &str, key: &str| {
        let quoted = line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"')?;
        Some(quoted.to_owned())
    };
    let complaint = |line: &str| {
        if let Some(name) = value(line, "name").filter(|name| ASYNC_RUNTIMES.contains(&name.as_str())) {
            return Some(format!(
                "Cargo.lock: {name} is an async runtime; find who brings it with `cargo tree -i {name}`"
            ));
        }
        let source = value(line, "source").filter(|source| source != index)?;
        Some(format!("Cargo.lock: source {source}, expected {index}"))
    };
    lock.lines().filter_map(complaint).collect()
}

/// Paths in backticks that start with a package folder and have a second part.
fn named_places(text: &str) -> Vec<String> {
    let spans = text.split('`').skip(1).step_by(2).map(|span| span.trim_end_matches('/'));
    let place = |span: &&str| {
        let first = span.split_once('/').map(|(first, _)| first);
        first.is_some_and(|first| ARROWS.iter().any(|&(folder, _, _)| folder == first)) && !span.contains(' ')
    };
    spans.filter(place).map(str::to_owned).collect()
}

/// Tracked files that exist, relative to the top. Empty, with a skip printed, where the tree is not a git checkout.
fn tracked() -> Vec<String> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(workspace()).output();
    let Some(listed) = listed.ok().filter(|output| output.status.success()) else {
        skip("habits of tracked files", "git ls-files does not work here");
        return Vec::new();
    };
    let names = String::from_utf8(listed.stdout).expect("file names are UTF-8");
    names.split_terminator('\0').filter(|path| workspace().join(path).is_file()).map(str::to_owned).collect()
}

fn read(path: &str) -> String {
    let full = workspace().join(Path::new(path));
    fs::read_to_string(&full).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Applies a rule to every line of the text files among `files`; binary ones are passed over.
fn complain_by_line(files: impl Iterator<Item = String>, rule: impl Fn(&str) -> Option<String>) {
    complain(files.flat_map(|path| {
        let text = fs::read_to_string(workspace().join(&path)).unwrap_or_default();
        let lines = text.lines().enumerate();
        let found = lines.filter_map(|(index, line)| Some(format!("{path}:{}: {}", index + 1, rule(line)?)));
        found.collect::<Vec<_>>()
    }));
}

fn complain(complaints: impl Iterator<Item = String>) {
    let complaints: Vec<String> = complaints.collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}
