//! A run that is killed, at whatever moment: the output is absent or whole, and the next run is not hindered.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use engine_bin::pack::verify_set::verify;
use tempfile::TempDir;

use super::checkpoints::{self, cases};
use super::files::{Whole, write};
use crate::serve::process::program;

/// Bytes below a folder.
fn bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries.flatten().filter_map(|e| Some(e.metadata().ok()?.len())).sum()
}

struct Runs {
    dir: TempDir,
    target: PathBuf,
    head: PathBuf,
}

/// Names in a folder.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

impl Runs {
    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn partial(&self) -> PathBuf {
        self.dir.path().join(".out.engine-pack-partial")
    }

    fn start(&self) -> Child {
        let mut command = Command::new(program("engine-pack"));
        command.arg("graft").arg("--target").arg(&self.target).arg("--head").arg(&self.head);
        command.arg("--out").arg(self.out()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Kills a run once `due` says so or it has ended, and looks at what it left. Whether it had got its name. What an
    /// earlier run left stays where it is, and `due` is asked when this one has put its own in the place of it.
    fn killed(&self, due: impl Fn() -> bool) -> bool {
        let earlier = self.partial().join("of an earlier run");
        if self.partial().exists() {
            fs::write(&earlier, "").unwrap();
        }
        let mut child = self.start();
        while (earlier.exists() || !due()) && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let there = self.out().exists();
        if there {
            let report = verify(&self.out(), true).unwrap();
            assert!(report.faults.is_empty(), "{:?}", report.faults);
            fs::remove_dir_all(self.out()).unwrap();
        }
        there
    }
}

#[test]
fn fifty_kills_leave_no_half_set() {
    let whole = Whole::qwen35();
    let dir = TempDir::new().unwrap();
    // One file, which is copied whole: 8 MB to be cut off in.
    let mut target = whole.target();
    target.weights("ballast.weight", &[1 << 10, 1 << 11]);
    let (target, head) = (write(dir.path(), "t.gguf", &target), write(dir.path(), "h.gguf", &whole.head()));
    let runs = Runs { dir, target, head };
    assert!(runs.start().wait().unwrap().success());
    let total = bytes(&runs.out());
    assert!(runs.killed(|| false), "a run that is not killed ends with its set");

    let (mut absent, mut begun) = (0, 0);
    for i in 1..=40 {
        let due = total * i / 41;
        absent += usize::from(!runs.killed(|| bytes(&runs.partial()) >= due));
        begun += usize::from(bytes(&runs.partial()) >= due);
    }
    assert!(absent > 20, "only {absent} of 40 runs were killed before their end");
    assert!(begun > 20, "only {begun} of 40 runs had written what they were killed for");
    // Around the rename: the record is the last file.
    for i in 0..10 {
        let last = runs.partial().join("provenance.json");
        runs.killed(|| {
            let due = last.exists() || runs.out().exists();
            if due {
                std::thread::sleep(Duration::from_micros(400 * i));
            }
            due
        });
    }
    // After all that a run ends well, and leaves nothing beside its set.
    assert!(runs.start().wait().unwrap().success());
    let report = verify(&runs.out(), true).unwrap();
    assert!(report.faults.is_empty() && !runs.partial().exists(), "{:?}", report.faults);
}

/// A checkpoint is converted beside the output first, and what was converted goes too: with the run, or with the next one,
/// whatever head that one has.
#[test]
fn a_killed_conversion_is_removed_by_the_next_run() {
    let case = cases().swap_remove(0);
    let dir = TempDir::new().unwrap();
    let mut trunk = case.trunk.clone();
    trunk.weights("ballast.weight", &[1 << 10, 1 << 10]);
    let target = write(dir.path(), "t.gguf", &trunk);
    let own = format!("blk.{}.", case.block);
    let gguf = write(dir.path(), "h.gguf", &case.merged.clone().drop(|n| !n.starts_with(&own)));
    let hf = dir.path().join("h.safetensors");
    checkpoints::write(&hf, &case.head);
    let mut runs = Runs { dir, target, head: hf.clone() };
    let beside = runs.dir.path().join(".out.engine-pack-head");
    let mut left = 0;
    for head in [&hf, &gguf, &hf, &gguf, &hf, &gguf] {
        runs.head = hf.clone();
        runs.killed(|| beside.exists());
        left += usize::from(beside.exists());
        runs.head = head.clone();
        assert!(runs.start().wait().unwrap().success());
        assert_eq!(names(runs.dir.path()), ["h.gguf", "h.safetensors", "out", "t.gguf"]);
        fs::remove_dir_all(runs.out()).unwrap();
    }
    assert!(left > 0, "no run was killed while it had a converted head");
}
