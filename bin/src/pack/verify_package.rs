//! `verify` of a layer package: every artifact and every tensor read, and held against the manifest, its provenance and,
//! if given, a source that the package does not name itself.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use engine_io::digest::Sha256;
use engine_io::package::{Issue, check};
use engine_io::provenance::{Provenance, Role, matches};
use engine_io::{ModelFile, OpenOptions};
use serde::Serialize;

use super::PackError;
use super::error::REFUSED;
use super::preflight::{self, PreflightFlags};
use super::progress::Progress;
use super::record::Cut;

/// What was found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The folder.
    pub path: String,
    /// `layer-package`.
    pub container: &'static str,
    /// Nothing is wrong.
    pub valid: bool,
    /// Artifacts whose bytes were read.
    pub artifacts: usize,
    /// Tensors whose bytes were read.
    pub tensors: usize,
    /// Names all of them; `None` for a package that cannot be read.
    pub tensor_tree_sha256: Option<Sha256>,
    /// What they were held against beside the manifest.
    pub against: Vec<String>,
    /// Everything that is wrong.
    pub issues: Vec<Issue>,
}

/// Verifies a package, against `source` too if there is one.
///
/// # Errors
/// A source that cannot be read, or is no independent one. What is wrong with the package is in the report.
pub fn verify(folder: &Path, source: Option<&Path>, json: bool) -> Result<Report, PackError> {
    let source = source.map(|path| open_source(folder, path)).transpose()?;
    let (looked, model) = preflight::look(&PreflightFlags {
        package: folder.to_owned(),
        stages: 1,
        stage_split: None,
        verify_sha256: true,
        size: preflight::default_size(),
        json,
    })?;
    let mut report = Report {
        path: folder.display().to_string(),
        container: "layer-package",
        valid: false,
        artifacts: looked.artifacts.iter().filter(|a| a.sha256_matches_manifest.is_some()).count(),
        tensors: 0,
        tensor_tree_sha256: None,
        against: Vec::new(),
        issues: looked.issues,
    };
    if let Some(model) = &model {
        let total: u64 = model.tensors().iter().chain(source.iter().flat_map(|s| s.tensors())).map(|t| t.bytes).sum();
        let done = Progress::bytes("comparing", total, json);
        let mut cut = Cut::default();
        for t in model.tensors() {
            cut.push(t, Sha256::of_tensor(model, t, |n| done.add(n))?);
        }
        report.tensors = model.tensors().len();
        report.tensor_tree_sha256 = Some(cut.tree());
        if let Some(record) = record_of(model) {
            report.against.push("its provenance".to_owned());
            report.issues.extend(of_record(&record, &cut));
        }
        if let Some(source) = &source {
            report.against.push(source.name());
            report.issues.extend(of_source(source, &cut, &done)?);
        }
    }
    report.valid = report.issues.is_empty();
    Ok(report)
}

fn record_of(model: &ModelFile) -> Option<Provenance> {
    let value = model.package()?.manifest.provenance.clone()?;
    serde_json::from_value(value).ok()
}

/// A source must be files of its own: a package that is compared with itself proves nothing.
fn open_source(folder: &Path, path: &Path) -> Result<ModelFile, PackError> {
    let source = ModelFile::open(path, OpenOptions::default())?;
    let refused = |file: &Path, what: &str| {
        let file = file.display();
        PackError::Refused(format!("--source {file}: {what}; give the model that the package was cut from"))
    };
    let root = std::fs::canonicalize(folder).map_err(PackError::output(folder, "examine"))?;
    let mut inodes: HashMap<(u64, u64), String> = HashMap::new();
    if let Ok(package) = engine_io::Package::read(folder) {
        for (_, artifact) in package.manifest.artifacts().filter(|(_, a)| check::is_safe_path(&a.path)) {
            if let Ok(stat) = std::fs::metadata(folder.join(&artifact.path)) {
                inodes.insert((stat.dev(), stat.ino()), artifact.path.clone());
            }
        }
    }
    for shard in source.shards() {
        if shard.real_path.starts_with(&root) {
            return Err(refused(&shard.path, "is inside the package"));
        }
        let stat = std::fs::metadata(&shard.real_path).map_err(PackError::output(&shard.real_path, "examine"))?;
        if let Some(artifact) = inodes.get(&(stat.dev(), stat.ino())) {
            return Err(refused(&shard.path, &format!("is the same file as the artifact {artifact}")));
        }
    }
    Ok(source)
}

/// Holds tensors against the digests of a record.
fn of_record(record: &Provenance, cut: &Cut) -> Vec<Issue> {
    let mut issues = Vec::new();
    let mut settle = |what: String, stated: Option<Sha256>, found: Sha256| {
        if let Some(stated) = stated.filter(|stated| *stated != found) {
            let message = format!("the tensors of {what} are {found}, the record says {stated}");
            issues.push(Issue::new("provenance_target_mismatch", "provenance", message));
        }
    };
    for origin in &record.tensor_origins {
        let (tree, ..) = cut.tree_where(|name| matches(&origin.pattern, name));
        settle(format!("the origin {}", origin.pattern), origin.tensor_tree_sha256, tree);
    }
    if let Some(target) = record.sources.iter().find(|source| source.role == Role::Target)
        && record.invariants.target_tensors_byte_identical
    {
        let of_target =
            |name: &str| record.tensor_origins.iter().any(|o| o.source == target.id && matches(&o.pattern, name));
        let (tree, ..) = cut.tree_where(of_target);
        settle("the target".to_owned(), record.invariants.target_tensor_tree_sha256, tree);
    }
    issues
}

/// Holds tensors against those of another model, one by one.
fn of_source(source: &ModelFile, cut: &Cut, done: &Progress) -> Result<Vec<Issue>, PackError> {
    let mut issues = Vec::new();
    let mut differs = |name: &str, message: String| issues.push(Issue::new("source_tensor_mismatch", name, message));
    for (t, digest) in cut.iter() {
        let Some(there) = source.tensor(&t.name) else {
            differs(&t.name, "is not in the source".to_owned());
            continue;
        };
        if (there.ty, there.dims()) != (t.ty, t.dims()) {
            let of = |t: &engine_io::gguf::TensorInfo| format!("{} {:?}", t.ty.name(), t.dims());
            differs(&t.name, format!("is {}, in the source {}", of(t), of(there)));
            continue;
        }
        let in_source = Sha256::of_tensor(source, there, |n| done.add(n))?;
        if in_source != *digest {
            differs(&t.name, format!("its bytes are {digest}, in the source {in_source}"));
        }
    }
    for t in source.tensors().iter().filter(|t| cut.iter().all(|(own, _)| own.name != t.name)) {
        differs(&t.name, "is in the source and not in the package".to_owned());
    }
    Ok(issues)
}

/// Exit code of a report.
pub fn code(report: &Report) -> u8 {
    if report.valid { 0 } else { REFUSED }
}

/// For people.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{:<14}{} ({})", "verified", report.path, report.container);
    let _ = writeln!(out, "{:<14}{} artifacts and {} tensors", "read", report.artifacts, report.tensors);
    if let Some(tree) = report.tensor_tree_sha256 {
        let _ = writeln!(out, "{:<14}{tree} of all tensors", "sha256");
    }
    let against: Vec<&str> = std::iter::once("the manifest").chain(report.against.iter().map(String::as_str)).collect();
    let _ = writeln!(out, "{:<14}{}", "held against", against.join(", "));
    for issue in &report.issues {
        let _ = writeln!(out, "\nerror: {issue}");
    }
    let _ = match report.issues.len() {
        0 => writeln!(out, "\nnothing is wrong"),
        n => writeln!(out, "\nissues: {n}"),
    };
    out
}
