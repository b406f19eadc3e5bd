//! The tables against the sources.

use std::fs;
use std::path::Path;

use engine_tests::fixtures::workspace;

use super::{CHECKS, FIELD, LATE};

/// The table of the cases about files and tokenizers.
const REFUSALS: &str = include_str!("../refusals.rs");

/// Folders with tests, and the first name of their modules.
const ROOMS: [(&str, &str); 7] = [
    ("engine/src", "engine"),
    ("bin/src", "engine_bin"),
    ("bin/capi/src", "slipstream"),
    ("io/src", "engine_io"),
    ("kernels/src", "engine_kernels"),
    ("tests/it", ""),
    ("tests/clients", "clients"),
];

/// A test of the workspace: its modules, `tests` and `mod` left out, and its function.
#[derive(Debug)]
struct Test {
    modules: Vec<String>,
    name: String,
}

fn all() -> Vec<Test> {
    let mut out = Vec::new();
    for (room, first) in ROOMS {
        walk(&workspace().join(room), &mut vec![first.to_owned()], &mut out);
    }
    out
}

fn walk(folder: &Path, modules: &mut Vec<String>, out: &mut Vec<Test>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("names are UTF-8").to_owned();
        modules.push(stem);
        if path.is_dir() {
            walk(&path, modules, out);
        } else {
            let text = || fs::read_to_string(&path).expect("a text");
            let names = match path.extension().and_then(|end| end.to_str()) {
                Some("rs") => rust(&text()),
                Some("py") => script(&text(), path.file_name().and_then(|name| name.to_str()).expect("UTF-8")),
                _ => Vec::new(),
            };
            let modules: Vec<String> =
                modules.iter().filter(|m| !["", "tests", "mod", "lib"].contains(&m.as_str())).cloned().collect();
            out.extend(names.into_iter().map(|name| Test { modules: modules.clone(), name }));
        }
        modules.pop();
    }
}

/// The functions behind `#[test]`.
fn rust(text: &str) -> Vec<String> {
    let name = |after: &str| Some(after.split_once("fn ")?.1.split('(').next()?.trim().to_owned());
    text.split("#[test]").skip(1).filter_map(name).collect()
}

/// The functions of a client script that are called in it, where `run.py` runs the script.
fn script(text: &str, file: &str) -> Vec<String> {
    let run = fs::read_to_string(workspace().join("tests/clients/run.py")).expect("the script that runs them");
    if !run.contains(file) {
        return Vec::new();
    }
    let names = text.lines().filter_map(|line| line.strip_prefix("def ")?.split('(').next());
    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    names.filter(|name| words.iter().filter(|word| *word == name).count() > 1).map(str::to_owned).collect()
}

/// A reference to tests: modules, then a function whose name may have one `*`. Modules alone stand for their tests.
fn fits(reference: &str, test: &Test) -> bool {
    let parts: Vec<&str> = reference.split("::").filter(|part| *part != "tests").collect();
    let within = |wanted: &[&str]| {
        let ours = &test.modules[test.modules.len().saturating_sub(wanted.len())..];
        ours.iter().map(String::as_str).eq(wanted.iter().copied())
    };
    let (name, modules) = parts.split_last().expect("a part at least");
    let like = match name.split_once('*') {
        Some((start, end)) => {
            test.name.len() >= start.len() + end.len() && test.name.starts_with(start) && test.name.ends_with(end)
        }
        None => test.name == *name,
    };
    (like && within(modules)) || (!name.contains('*') && within(&parts))
}

/// References of a table in a comment: what stands between backticks and has modules, braces expanded.
fn references(table: &str) -> Vec<String> {
    let rows = table.lines().filter(|line| line.starts_with("//! | ") && !line.contains("| Row |"));
    let quoted = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).filter(|text| text.contains("::"));
    quoted
        .flat_map(|text| match text.split_once('{') {
            Some((start, rest)) => {
                let names = rest.trim_end_matches('}').split(',').map(|name| format!("{start}{}", name.trim()));
                names.collect::<Vec<_>>()
            }
            None => vec![text.to_owned()],
        })
        .collect()
}

#[test]
fn every_case_has_tests_and_every_test_is_there() {
    let tests = all();
    let tables = [FIELD, CHECKS, LATE].into_iter().flatten();
    let named = tables.flat_map(|(case, tests)| tests.iter().map(move |test| ((*case).to_owned(), (*test).to_owned())));
    let commented = references(REFUSALS).into_iter().map(|reference| ("refusals".to_owned(), reference));
    let missing: Vec<_> =
        named.chain(commented).filter(|(_, reference)| !tests.iter().any(|test| fits(reference, test))).collect();
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
    assert!([FIELD, CHECKS, LATE].into_iter().flatten().all(|(_, tests)| !tests.is_empty()));
    let numbers: Vec<&str> = CHECKS.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=40).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(FIELD.windows(2).all(|w| w[0].0 < w[1].0), "field cases in order, each once");
}

#[test]
fn what_is_no_test_is_not_found() {
    let tests = all();
    assert!(tests.len() > 900, "{}", tests.len());
    let found = |reference: &str| tests.iter().any(|test| fits(reference, test));
    for there in [
        "serve::real::token_limits",
        "engine::sample::tests::draws_follow_the_distribution",
        "engine::sample",
        "serve::real::token_*",
        "serve::real::*_limits",
        "clients::openai_chat::models",
    ] {
        assert!(found(there), "{there}");
    }
    for absent in [
        "serve::real::token_limit",
        "serve::reals::token_limits",
        "engine::draws_follow_the_distribution",
        "serve::real::no_*",
        "serve::real::content",
        "clients::openai_chat::ask_nobody",
    ] {
        assert!(!found(absent), "{absent}");
    }
    assert_eq!(references("//! | a | `b::{c, d_*}`, `e` of `f::g` |"), ["b::c", "b::d_*", "f::g"]);
    assert_eq!(script("def a():\n    pass\n\ndef b():\n    pass\n\na()\n", "run.py"), ["a"]);
}
