//! What can happen on the way to an output: nothing is left, and the words are those of what happened.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use engine_bin::pack::graft::{Link, graft};
use engine_bin::pack::output::space;
use engine_io::TensorType;
use engine_tests::fixtures::skip;
use tempfile::TempDir;

use super::checkpoints::{self, cases};
use super::files::{Whole, flags, write};
use super::large::sparse;
use super::{Packed, engine_pack};
use crate::forward::edit::Tensor;
use crate::serve::process::program;

/// Every failure that a graft must have words for, with the test that reads them: in these files, or where it says.
const FAILURES: [(&str, &str); 30] = [
    ("target is not split as it is named", "files_that_are_no_models"),
    ("a shard of the target is missing", "files_that_are_no_models"),
    ("shards are in the wrong order", "files_that_are_no_models"),
    ("target has a head already", "targets_that_are_none"),
    ("head is not a head alone", "heads_that_are_none_or_of_another_model"),
    ("head is of another architecture", "heads_that_are_none_or_of_another_model"),
    ("a hyperparameter differs: both values", "heads_that_are_none_or_of_another_model"),
    ("the number of experts differs", "heads_that_are_none_or_of_another_model"),
    ("the vocabulary differs", "heads_that_are_none_or_of_another_model"),
    ("more than one NextN block", "heads_that_are_none_or_of_another_model"),
    ("nextn_predict_layers >= block_count", "heads_that_are_none_or_of_another_model"),
    ("a tensor of the head that no rule takes", "tensors_that_no_rule_takes_or_that_are_missing"),
    ("a missing tensor", "tensors_that_no_rule_takes_or_that_are_missing"),
    ("a missing tensor: the names it was looked for under", "mixers_that_are_the_trunks_or_in_parts"),
    ("a mixer in parts", "mixers_that_are_the_trunks_or_in_parts"),
    ("the mixer is the trunk's", "mixers_that_are_the_trunks_or_in_parts"),
    ("one half of the projection", "halves_that_cannot_be_joined"),
    ("a projection of another width", "tensors_that_no_rule_takes_or_that_are_missing"),
    ("types that cannot be joined", "halves_that_cannot_be_joined"),
    ("a pack of another runtime", "files_that_are_no_models"),
    ("a head without tables of its own, and no target", "containers_are_told_apart"),
    ("a list of neither length", "targets_that_are_none"),
    ("a link that leads nowhere", "files_that_are_no_models"),
    ("a link across file systems", "outputs_that_cannot_be"),
    ("a link that is not permitted, or one too many", "a_refused_link_says_why_and_what_else_there_is"),
    ("not enough space", "a_disk_too_small_is_told_before_anything_is_written"),
    ("the output exists", "outputs_that_cannot_be"),
    ("a place that cannot be written to or renamed in", "what_the_system_says_of_an_output_comes_with_what_to_do"),
    ("a source that changes meanwhile", "a_source_that_changes_is_found_out"),
    ("a source cut short", "files_that_are_no_models"),
];

#[test]
fn every_failure_has_a_test() {
    let sources = [
        include_str!("outputs.rs"),
        include_str!("refused.rs"),
        include_str!("doctor.rs"),
        include_str!("../../../bin/src/pack/error.rs"),
        include_str!("../../../bin/src/pack/graft/place.rs"),
    ];
    let tests: HashSet<&str> = sources
        .iter()
        .flat_map(|text| text.split("#[test]\n").skip(1))
        .filter_map(|rest| rest.trim_start().strip_prefix("fn ")?.split('(').next())
        .collect();
    for (failure, test) in FAILURES {
        assert!(tests.contains(test), "{failure}: there is no test {test}");
    }
}

/// A target of one file, which is copied whole, and a head.
fn pair(dir: &Path, ballast: u64) -> (PathBuf, PathBuf) {
    let whole = Whole::qwen35();
    let mut target = whole.target();
    target.weights("ballast.weight", &[1 << 10, ballast >> 12]);
    (write(dir, "t.gguf", &target), write(dir, "h.gguf", &whole.head()))
}

fn names(dir: &Path) -> HashSet<PathBuf> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A program that may write files of 2 or 4 kB is one whose disk is full: every verb ends with 1, says what it could not
/// write and why, and leaves nothing.
#[test]
fn a_write_that_fails_is_told_and_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let here = dir.path().to_str().unwrap();
    let path = |name: &str| format!("{here}/{name}");
    let (target, head) = pair(dir.path(), 8 << 20);
    let case = cases().swap_remove(0);
    checkpoints::file(&dir.path().join("trunk.gguf"), &case.trunk);
    checkpoints::write(&dir.path().join("c.safetensors"), &case.head);
    let packed = Packed::tiny();
    let package = packed.dir.to_str().unwrap();
    let (target, head) = (target.to_str().unwrap(), head.to_str().unwrap());
    let before = names(dir.path());
    let (trunk, checkpoint) = (path("trunk.gguf"), path("c.safetensors"));
    let verbs: [(Vec<&str>, &str); 5] = [
        (vec!["graft", "--target", target, "--head", head], "-of-00002.gguf"),
        (vec!["convert-head", "--target", &trunk, "--source", &checkpoint], "out"),
        (vec!["quantize-head", "--head", head, "--type", "Q8_0"], "out"),
        (vec!["package", "--model", packed.model.to_str().unwrap()], ".gguf"),
        (vec!["materialize", package, "--stage", "0/1"], ".gguf"),
    ];
    for (mut line, part) in verbs {
        let out = path("out");
        line.extend(["--out", &out]);
        let run = Command::new("sh")
            .args(["-c", "ulimit -f 4; exec \"$@\"", "sh"])
            .arg(program("engine-pack"))
            .args(&line)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(1), "{line:?}: {text}");
        for part in [part, here, "cannot write: File too large", "give an --out on another file system"] {
            assert!(text.contains(part), "{line:?}: `{text}` does not say `{part}`");
        }
        assert_eq!(names(dir.path()), before, "{line:?}");
        line.retain(|word| *word != "--json");
        let (code, _, error) = engine_pack(&line);
        assert_eq!(code, Some(0), "{line:?} with room: {error}");
        let out = Path::new(&out);
        if out.is_dir() { fs::remove_dir_all(out) } else { fs::remove_file(out) }.unwrap();
    }
}

/// The temporary name is longer than the name, and a file system takes both.
#[test]
fn a_name_may_be_as_long_as_a_file_system_allows() {
    let whole = Whole::qwen35();
    let dir = TempDir::new().unwrap();
    let (model, head) = (write(dir.path(), "t.gguf", &whole.target()), write(dir.path(), "h.gguf", &whole.head()));
    let before = names(dir.path());
    for len in [230, 245, 255] {
        let out = dir.path().join("n".repeat(len));
        graft(&flags(&model, &head, &out)).unwrap_or_else(|error| panic!("{len}: {error}"));
        fs::remove_dir_all(out).unwrap();
        assert_eq!(names(dir.path()), before);
    }
}

/// Whichever of both it is: what was copied may be half old, half new.
#[test]
fn a_source_that_changes_is_found_out() {
    let dir = TempDir::new().unwrap();
    let (target, head) = pair(dir.path(), 64 << 20);
    let out = dir.path().join("out");
    let before = names(dir.path());
    for changed in [&target, &head] {
        let file = File::options().write(true).open(changed).unwrap();
        let mut child = Command::new(program("engine-pack"))
            .arg("graft")
            .args([Path::new("--target"), &target, Path::new("--head"), &head, Path::new("--out"), &out])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // From before it is opened until the run has ended, so also in between.
        let mut time = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30);
        while child.try_wait().unwrap().is_none() {
            time += Duration::from_secs(1);
            file.set_modified(time).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let run = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(3), "{text}");
        assert!(text.contains(changed.to_str().unwrap()) && text.contains("written or touched"), "{text}");
        assert_eq!(names(dir.path()), before);
    }
}

#[test]
fn a_disk_too_small_is_told_before_anything_is_written() {
    const BYTES: u64 = 8 << 40;
    let dir = TempDir::new().unwrap();
    if space(dir.path(), BYTES).is_ok() {
        return skip("a graft onto a disk too small", "8 TB are free here");
    }
    let whole = Whole::qwen35();
    let target = whole.target();
    let ballast = Tensor {
        name: "ballast.weight".into(),
        dims: vec![1 << 20, BYTES >> 22],
        kind: TensorType::F32,
        data: Vec::new(),
    };
    let tensors: Vec<Tensor> = target.tensors.iter().cloned().chain([ballast]).collect();
    let (model, head) = (dir.path().join("t.gguf"), write(dir.path(), "h.gguf", &whole.head()));
    sparse(&model, target.meta, &tensors);
    let before = names(dir.path());
    for link in [Link::Auto, Link::Copy] {
        let mut flags = flags(&model, &head, &dir.path().join("out"));
        flags.link = link;
        let error = graft(&flags).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("bytes are to be written") && text.contains("are free"), "{text}");
        assert_eq!((error.code(), names(dir.path())), (1, before.clone()));
    }
}
