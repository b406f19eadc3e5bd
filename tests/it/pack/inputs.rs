//! Anything but a regular file in the place of each file that somebody names: a pipe that nobody writes to, a socket, a
//! device without an end, a folder. Every program ends, says which file it was, and writes nothing.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::checkpoints::{self, cases};
use super::{Packed, ends};
use crate::refusals::tiny;

/// A folder with one good file of each kind.
struct Desk {
    dir: TempDir,
    _packed: Packed,
}

impl Desk {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        let case = cases().swap_remove(0);
        fs::create_dir(at("trunk")).unwrap();
        fs::write(at("trunk/trunk.gguf"), case.trunk.bytes()).unwrap();
        fs::create_dir(at("whole")).unwrap();
        fs::write(at("whole/whole.gguf"), case.merged.bytes()).unwrap();
        fs::write(at("head.gguf"), tiny::sidecar("qwen35").bytes()).unwrap();
        fs::create_dir(at("hf")).unwrap();
        checkpoints::write(&at("hf/model.safetensors"), &case.head);
        let packed = Packed::of(&case.merged.bytes());
        fs::rename(&packed.dir, at("package")).unwrap();
        Self { dir, _packed: packed }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Which file is replaced, the program, and its command line, in which `@NAME` is a path of the desk.
const ROWS: &[(&str, &str, &str)] = &[
    ("trunk/trunk.gguf", "engine-pack", "inspect @trunk/trunk.gguf"),
    ("trunk/trunk.gguf", "engine-pack", "inspect @trunk"),
    ("head.gguf", "engine-pack", "inspect @trunk/trunk.gguf --spec-draft-model @head.gguf"),
    ("trunk/trunk.gguf", "engine-pack", "doctor @trunk/trunk.gguf"),
    ("head.gguf", "engine-pack", "doctor @trunk --head @head.gguf"),
    ("whole/provenance.json", "engine-pack", "doctor @whole"),
    ("hf/model.safetensors", "engine-pack", "convert-head --source @hf --target @trunk --out @out"),
    ("hf/model.safetensors", "engine-pack", "convert-head --source @hf/model.safetensors --target @trunk --out @out"),
    ("hf/model.safetensors.index.json", "engine-pack", "convert-head --source @hf --target @trunk --out @out"),
    ("hf/config.json", "engine-pack", "convert-head --source @hf --target @trunk --out @out"),
    ("trunk/trunk.gguf", "engine-pack", "convert-head --source @hf --target @trunk/trunk.gguf --out @out"),
    (".out.engine-pack-partial", "engine-pack", "convert-head --source @hf --target @trunk --out @out"),
    ("head.gguf", "engine-pack", "quantize-head --head @head.gguf --type Q8_0 --out @out"),
    (".out.engine-pack-partial", "engine-pack", "quantize-head --head @head.gguf --type Q8_0 --out @out"),
    ("trunk/trunk.gguf", "engine-pack", "graft --target @trunk --head @head.gguf --out @out"),
    ("head.gguf", "engine-pack", "graft --target @trunk --head @head.gguf --out @out"),
    ("hf/config.json", "engine-pack", "graft --target @trunk --head @hf --out @out"),
    (".out.engine-pack-partial", "engine-pack", "graft --target @trunk --head @head.gguf --out @out"),
    (".out.engine-pack-head", "engine-pack", "graft --target @trunk --head @hf --out @out"),
    ("whole/whole.gguf", "engine-pack", "package --model @whole/whole.gguf --out @out"),
    ("whole/provenance.json", "engine-pack", "package --model @whole/whole.gguf --out @out"),
    ("result.json", "engine-pack", "package --model @whole/whole.gguf --from-bench @result.json --out @out"),
    (".out.engine-pack-partial", "engine-pack", "package --model @whole/whole.gguf --out @out"),
    ("package/model-package.json", "engine-pack", "preflight @package --stages 2"),
    ("package/layers/layer-00001.gguf", "engine-pack", "preflight @package --stages 2 --verify-sha256"),
    ("package/model-package.json", "engine-pack", "materialize @package --stage 0/2 --out @out"),
    ("package/layers/layer-00001.gguf", "engine-pack", "materialize @package --stage 0/2 --out @out"),
    (".out.engine-pack-partial", "engine-pack", "materialize @package --stage 0/2 --out @out"),
    ("package/model-package.json", "engine-pack", "verify @package"),
    ("package/model-package.json", "engine-pack", "verify @package/model-package.json"),
    ("package/shared/output.gguf", "engine-pack", "verify @package"),
    ("whole/whole.gguf", "engine-pack", "verify @package --source @whole/whole.gguf"),
    ("whole/whole.gguf", "engine-pack", "verify @whole/whole.gguf"),
    ("whole/provenance.json", "engine-pack", "verify @whole"),
    ("text", "engine-bench", "ppl --model @trunk --text @text"),
    ("tokens.json", "engine-bench", "ppl --model @trunk --tokens @tokens.json"),
    ("tokens.json", "engine-bench", "eval --model @trunk --tokens @tokens.json --out @out"),
    ("trunk/trunk.gguf", "engine-bench", "ppl --model @trunk/trunk.gguf --text @text"),
    ("head.gguf", "engine-bench", "speed --model @trunk --draft-model @head.gguf"),
];

/// What stands in a file's place, and the word for it. A folder is a model's or a checkpoint's place too, and says nothing
/// of itself then.
fn stand_in(path: &Path, kind: &str) -> Option<UnixListener> {
    match kind {
        "a pipe" => drop(Command::new("mkfifo").arg(path).status().unwrap()),
        "a device" => symlink("/dev/zero", path).unwrap(),
        "a folder" => fs::create_dir(path).unwrap(),
        "a link to nothing" => symlink("gone", path).unwrap(),
        _ => return Some(UnixListener::bind(path).unwrap()),
    }
    None
}

/// Everything below a folder.
fn names(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(names(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

#[test]
fn only_regular_files_are_read() {
    let desk = Desk::new();
    let mut wrong = Vec::new();
    for (replaced, program, line) in ROWS {
        let path = desk.at(replaced);
        let kept = desk.dir.path().join("kept");
        if path.exists() {
            fs::rename(&path, &kept).unwrap();
        }
        for kind in ["a pipe", "a socket", "a device", "a folder", "a link to nothing"] {
            // What an earlier run left may be a folder, and is removed.
            let is_partial = replaced.starts_with('.');
            if is_partial && kind == "a folder" {
                continue;
            }
            let _open = stand_in(&path, kind);
            let before = names(desk.dir.path());
            let words: Vec<String> = line
                .split(' ')
                .map(|word| word.strip_prefix('@').map_or(word.to_owned(), |name| desk.at(name).display().to_string()))
                .collect();
            let (code, text) = ends(program, &words.iter().map(String::as_str).collect::<Vec<_>>());
            let file = path.file_name().unwrap().to_str().unwrap();
            // The doctor passes a record by that it cannot read, and says so.
            let expected = if line.starts_with("doctor @whole") { 0 } else { 3 };
            // A link out of a package is told as that.
            let out_of_package = text.contains("artifact_outside_package") || text.contains("missing_artifact");
            let said =
                kind == "a folder" || text.contains(kind) || text.contains("gone") || is_partial || out_of_package;
            let named = text.contains(file)
                || text.contains("out.engine-pack")
                || kind == "a folder" && !file.contains(".json");
            if code != Some(expected) || !said || !named {
                wrong.push(format!("{line} with {replaced} as {kind}: {code:?} {text}"));
            }
            if names(desk.dir.path()) != before {
                wrong.push(format!("{line} with {replaced} as {kind} leaves something"));
            }
            if path.is_dir() && !path.is_symlink() { fs::remove_dir(&path) } else { fs::remove_file(&path) }.unwrap();
        }
        if kept.exists() {
            fs::rename(&kept, &path).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
