//! `engine-pack`, through its program and its library: what it makes, what it refuses to make, and what tells whether it is
//! still what was made.

mod checkpoints;
mod codes;
mod convert;
mod doctor;
mod fetch;
mod files;
mod graft;
mod inputs;
mod kill;
mod large;
mod layers;
mod names;
mod outputs;
mod paths;
mod quantize;
mod refused;
mod serving;
mod smoke;
mod stages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use engine_bin::pack::package::{self, PackageFlags};
use engine_bin::pack::preflight::{self, PreflightFlags};
use engine_bin::pack::verify_package;
use engine_io::package::MANIFEST;
use serde_json::Value;
use tempfile::TempDir;

use crate::refusals::tiny;
use crate::serve::process::program;

/// Runs `engine-pack` to its end; exit code, stdout, stderr.
pub fn engine_pack(flags: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program("engine-pack")).args(flags).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A package in a folder of its own, and the model it was cut from.
pub struct Packed {
    /// Goes away with this.
    pub folder: TempDir,
    /// The model file.
    pub model: PathBuf,
    /// The package.
    pub dir: PathBuf,
}

impl Packed {
    /// Of a small model of the `qwen35` family with its MTP block.
    pub fn tiny() -> Self {
        Self::of(&tiny::model("qwen35").bytes())
    }

    /// Of the bytes of a model file.
    pub fn of(bytes: &[u8]) -> Self {
        let folder = TempDir::new().unwrap();
        let model = folder.path().join("model.gguf");
        fs::write(&model, bytes).unwrap();
        let dir = folder.path().join("package");
        package::package(&flags(&model, &dir)).unwrap_or_else(|error| panic!("{error}"));
        Self { folder, model, dir }
    }

    /// Its manifest.
    pub fn manifest(&self) -> Value {
        serde_json::from_slice(&fs::read(self.dir.join(MANIFEST)).unwrap()).unwrap()
    }

    /// Writes another manifest.
    pub fn set_manifest(&self, manifest: &Value) {
        fs::write(self.dir.join(MANIFEST), serde_json::to_vec_pretty(manifest).unwrap()).unwrap();
    }

    /// A copy of the package to be spoiled.
    pub fn copy(&self, name: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let dir = folder.path().join(name);
        copy_tree(&self.dir, &dir);
        Self { folder, model: self.model.clone(), dir }
    }

    /// What preflight says.
    pub fn preflight(&self, stages: u32, verify_sha256: bool) -> preflight::Report {
        self.preflight_cut(stages, None, verify_sha256)
    }

    /// The same for a cut that was asked for.
    pub fn preflight_cut(&self, stages: u32, stage_split: Option<u32>, verify_sha256: bool) -> preflight::Report {
        let size = preflight::default_size();
        let package = self.dir.clone();
        let flags = PreflightFlags { package, stages, stage_split, verify_sha256, size, json: true };
        preflight::preflight(&flags).unwrap()
    }

    /// What verifying says.
    pub fn verify(&self, source: Option<&Path>) -> verify_package::Report {
        verify_package::verify(&self.dir, source, true).unwrap()
    }
}

/// Flags of `package`.
pub fn flags(model: &Path, out: &Path) -> PackageFlags {
    PackageFlags { model: model.to_owned(), out: out.to_owned(), from_bench: None, model_id: None, json: true }
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_tree(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Runs `engine-pack` to its end, or says that it hangs.
pub fn ends(program_name: &str, flags: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(program(program_name));
    let mut child = command.args(flags).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Long beyond what any of them takes, on however busy a machine.
    for _ in 0..6000 {
        if child.try_wait().unwrap().is_some() {
            let output = child.wait_with_output().unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            return (output.status.code(), text(&output.stdout) + &text(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("{program_name} {flags:?} hangs");
}

/// Codes of issues, in their order.
pub fn codes(issues: &[engine_io::package::Issue]) -> Vec<&'static str> {
    issues.iter().map(|issue| issue.code).collect()
}
