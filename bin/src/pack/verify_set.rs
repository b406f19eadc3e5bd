//! `verify` of a grafted set, or of a model without a record: whether what lies on the disk is what was recorded when it was
//! made.

use std::path::Path;

use engine::model::MtpStatus;
use engine::model::load::{LoadOptions, Planned};
use engine_io::digest::{Sha256, TensorTree};
use engine_io::provenance::{self, Provenance};
use engine_io::{ModelFile, OpenOptions};
use serde::Serialize;

use super::error::{self, PackError};
use super::progress::Progress;

/// What a path may lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A set with a provenance record beside it.
    Grafted,
    /// A model without a record: only its structure can be told.
    Model,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// First shard.
    pub file: String,
    /// What it is.
    pub kind: Kind,
    /// Tensors.
    pub tensors: usize,
    /// Digests that were compared.
    pub compared: usize,
    /// What the record has no digest of.
    pub unhashed: Vec<String>,
    /// Everything that is wrong.
    pub faults: Vec<String>,
}

/// Reads everything and compares.
///
/// # Errors
/// [`PackError`]: what cannot be read at all. Differences are in the report.
pub fn verify(path: &Path, json: bool) -> Result<Report, PackError> {
    let model = ModelFile::open(path, OpenOptions::default())?;
    let beside = model.shards()[0].path.with_file_name(provenance::FILE_NAME);
    match beside.exists() {
        true => grafted(&model, &beside, json),
        false => Ok(plain(&model)),
    }
}

/// The code of a report.
pub fn code(report: &Report) -> u8 {
    if report.faults.is_empty() { 0 } else { error::REFUSED }
}

/// A model without a record: there is nothing that it could be held against.
fn plain(model: &ModelFile) -> Report {
    let fault = format!(
        "neither {} nor {} is beside it, so there is nothing to compare with; engine-pack doctor tells whether it would \
         load",
        provenance::FILE_NAME,
        engine_io::package::MANIFEST
    );
    Report {
        file: model.name(),
        kind: Kind::Model,
        tensors: model.tensors().len(),
        compared: 0,
        unhashed: Vec::new(),
        faults: vec![fault],
    }
}

/// A grafted set: names and counts, files and tensors against their digests, and that the loader takes it.
fn grafted(model: &ModelFile, record: &Path, json: bool) -> Result<Report, PackError> {
    let record = Provenance::read(record)?;
    let mut faults = record.check_tensors(model.tensors().iter().map(|t| t.name.as_str())).0;
    let mut compared = 0;
    let progress = Progress::bytes("reading", 2 * model.file_bytes(), json);
    let outputs = record.steps.last().map(|step| step.outputs.as_slice()).unwrap_or_default();
    if outputs.len() != model.shards().len() {
        faults.push(format!("{} files, expected {} as recorded", model.shards().len(), outputs.len()));
    }
    for (shard, entry) in model.shards().iter().zip(outputs) {
        let name = shard.path.file_name().unwrap_or_default().to_string_lossy();
        let bytes = shard.bytes.len() as u64;
        if name != entry.path.as_str() {
            faults.push(format!("file {name}, expected {}", entry.path));
        } else if bytes != entry.byte_size {
            faults.push(format!("{name} has {bytes} bytes, expected {}", entry.byte_size));
        } else if let Some(expected) = entry.sha256 {
            let (found, _) = Sha256::of_file(&shard.path, |n| progress.add(n))?;
            compared += 1;
            if found != expected {
                faults.push(format!("{name} has the digest {found}, expected {expected}"));
            }
        }
    }
    let mut digests = Vec::with_capacity(model.tensors().len());
    for t in model.tensors() {
        digests.push((t, Sha256::of_tensor(model, t, |n| progress.add(n))?));
    }
    let tree = |takes: &dyn Fn(&str) -> bool| {
        let mut tree = TensorTree::default();
        digests.iter().filter(|(t, _)| takes(&t.name)).for_each(|(t, digest)| tree.push(&t.name, t, *digest));
        tree.digest()
    };
    let mut differs = |what: String, found: Sha256, expected: Sha256| {
        compared += 1;
        if found != expected {
            faults.push(format!("{what} have the digest {found}, expected {expected}"));
        }
    };
    for origin in &record.tensor_origins {
        if let Some(expected) = origin.tensor_tree_sha256 {
            let found = tree(&|name| provenance::matches(&origin.pattern, name));
            differs(format!("tensors {}", origin.pattern), found, expected);
        }
    }
    if let Some(expected) = record.invariants.target_tensor_tree_sha256 {
        let target = record.sources.iter().find(|s| s.role == provenance::Role::Target).map(|s| s.id.as_str());
        let of_target = |name: &str| {
            let takes = |o: &&provenance::TensorOrigin| provenance::matches(&o.pattern, name);
            record.tensor_origins.iter().find(takes).map(|o| o.source.as_str()) == target
        };
        differs("the target's tensors".into(), tree(&of_target), expected);
    }
    match Planned::new(model, None, LoadOptions::default()) {
        Err(error) => faults.push(error.to_string()),
        Ok(planned) => {
            let announced: Vec<u64> = (planned.config.trunk..planned.config.blocks.len()).map(|i| i as u64).collect();
            let expected = &record.invariants.mtp_block_indices;
            if announced != *expected {
                faults.push(format!("MTP blocks are {announced:?} by the metadata, expected {expected:?}"));
            }
            if let MtpStatus::Unavailable(reason) = planned.plan.mtp {
                faults.push(reason);
            }
        }
    }
    Ok(Report {
        file: model.name(),
        kind: Kind::Grafted,
        tensors: model.tensors().len(),
        compared,
        unhashed: record.unhashed(),
        faults,
    })
}

/// For people.
pub fn text(report: &Report) -> String {
    let what = match report.kind {
        Kind::Grafted => "a grafted set",
        Kind::Model => "a model without a record",
    };
    let mut out =
        vec![format!("{}: {what}, {} tensors, {} digests compared", report.file, report.tensors, report.compared)];
    out.extend(report.unhashed.iter().map(|what| format!("no digest was recorded of {what}")));
    out.extend(report.faults.iter().map(|fault| format!("wrong: {fault}")));
    out.push(match (report.kind, report.faults.is_empty()) {
        (Kind::Model, _) => "nothing was compared".into(),
        (Kind::Grafted, true) => "as recorded".into(),
        (Kind::Grafted, false) => "not as recorded".into(),
    });
    out.join("\n") + "\n"
}
