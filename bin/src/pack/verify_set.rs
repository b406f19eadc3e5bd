//! `verify` of a grafted set: whether what lies on the disk is what was recorded when it was made. Of the file of a stage,
//! of which nothing is recorded: whether it is what its source would give. And what to say of other models.

use std::path::Path;

use engine::model::load::{LoadOptions, Planned};
use engine::model::stage::{self, STAGE_KEYS, held};
use engine::model::{Config, ModelError, MtpStatus, graft};
use engine_io::digest::{Sha256, TensorTree};
use engine_io::provenance::{self, FileEntry, Provenance, Transform};
use engine_io::{ModelFile, OpenOptions, package, plain};
use serde::Serialize;

use super::error::{self, PackError};
use super::progress::Progress;
use super::share::StageShare;

/// What a path may lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A set with a provenance record beside it.
    Grafted,
    /// The file of a stage.
    Stage,
    /// An MTP head alone.
    Head,
    /// A model without a record.
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
    /// The stage.
    pub stage: Option<StageShare>,
    /// Everything that is wrong; of what has no record, why nothing was compared.
    pub faults: Vec<String>,
}

/// Reads everything and compares.
///
/// # Errors
/// [`PackError`]: what cannot be read at all. Differences are in the report.
pub fn verify(path: &Path, json: bool) -> Result<Report, PackError> {
    let model = ModelFile::open(path, OpenOptions::default())?;
    let beside = model.shards()[0].path.with_file_name(provenance::FILE_NAME);
    match plain::is_there(&beside) {
        true => grafted(&model, &beside, json),
        false => without_record(&model),
    }
}

/// Compares the file of a stage with the model or package that it was cut from: every tensor, and every key.
///
/// # Errors
/// [`PackError`]: what cannot be read at all, and what is no stage. Differences are in the report.
pub fn stage(path: &Path, source: &Path, json: bool) -> Result<Report, PackError> {
    let model = ModelFile::open(path, OpenOptions::default())?;
    let Some(held) = held(&model)? else {
        return Err(PackError::Refused(format!(
            "{}: is neither a layer package nor the file of a stage, and only these are compared with a source; give the \
             folder that holds {}, or leave --source out",
            path.display(),
            package::MANIFEST
        )));
    };
    let source = ModelFile::open(source, OpenOptions::default())?;
    let config = Config::read(source.meta())?;
    let needs = stage::needs(&source, &config);
    let own = held.blocks.start as u32..match held.blocks.end {
        end if end == config.trunk => needs.layers,
        end => end as u32,
    };
    let mut faults = Vec::new();
    let keys = |m: &ModelFile| -> Vec<_> {
        let is_model = |key: &str| !STAGE_KEYS.contains(&key) && !package::is_split_key(key);
        m.meta().iter().filter(|(key, _)| is_model(key)).map(|(key, value)| (key.to_owned(), value.clone())).collect()
    };
    let (here, there) = (keys(&model), keys(&source));
    for (key, _) in
        here.iter().filter(|pair| !there.contains(pair)).chain(there.iter().filter(|pair| !here.contains(pair)))
    {
        let fault = format!("key {key} is not as in the source");
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }
    let progress = Progress::bytes("comparing", 2 * model.tensors().iter().map(|t| t.bytes).sum::<u64>(), json);
    let mut compared = 0;
    for t in source.tensors().iter().filter(|t| needs.of_stage(&t.name, &own)) {
        let name = &t.name;
        let Some(cut) = model.tensor(name) else {
            faults.push(format!("tensor {name} is missing"));
            continue;
        };
        if (cut.ty, cut.dims()) != (t.ty, t.dims()) {
            faults.push(format!("tensor {name} is {} {:?}, in the source {} {:?}", cut.ty, cut.dims(), t.ty, t.dims()));
            continue;
        }
        compared += 1;
        let digest = |model, t| Sha256::of_tensor(model, t, |n| progress.add(n));
        if digest(&model, cut)? != digest(&source, t)? {
            faults.push(format!("the bytes of tensor {name} are not those in the source"));
        }
    }
    let of_stage = |name: &str| source.tensor(name).is_some() && needs.of_stage(name, &own);
    let more = model.tensors().iter().filter(|t| !of_stage(&t.name));
    faults.extend(more.map(|t| format!("tensor {} is none of this stage in the source", t.name)));
    let stage = Some(StageShare::of(&held, &config));
    Ok(Report {
        file: model.name(),
        kind: Kind::Stage,
        tensors: model.tensors().len(),
        compared,
        unhashed: Vec::new(),
        stage,
        faults,
    })
}

/// The code of a report.
pub fn code(report: &Report) -> u8 {
    if report.faults.is_empty() { 0 } else { error::REFUSED }
}

/// What has no record: there is nothing that it could be held against.
fn without_record(model: &ModelFile) -> Result<Report, PackError> {
    let name = model.name();
    let held = held(model)?;
    let alone = matches!(Planned::new(model, None, LoadOptions::default()), Err(ModelError::Sidecar { .. }));
    let (kind, fault) = match (&held, alone) {
        (Some(_), _) => (
            Kind::Stage,
            format!(
                "nothing is recorded of it; compare it with the package or the model that it was cut from: engine-pack \
                 verify {name} --source PACKAGE"
            ),
        ),
        (None, true) => (
            Kind::Head,
            format!(
                "nothing is recorded of it; engine-pack doctor MODEL --head {name} tells whether it fits a model, and once it \
                 is grafted the set has a record"
            ),
        ),
        (None, false) => (
            Kind::Model,
            format!(
                "nothing is recorded of it: graft writes {} beside a set, and package {}, and neither is here; engine-pack \
                 doctor {name} tells whether it would load",
                provenance::FILE_NAME,
                package::MANIFEST
            ),
        ),
    };
    let stage =
        held.map(|held| Ok::<_, ModelError>(StageShare::of(&held, &Config::read(model.meta())?))).transpose()?;
    let tensors = model.tensors().len();
    Ok(Report { file: name, kind, tensors, compared: 0, unhashed: Vec::new(), stage, faults: vec![fault] })
}

/// A grafted set: names and counts, files and tensors against their digests, and that the loader takes it.
fn grafted(model: &ModelFile, record: &Path, json: bool) -> Result<Report, PackError> {
    let record = Provenance::read(record)?;
    let mut faults = record.check_tensors(model.tensors().iter().map(|t| t.name.as_str())).0;
    let mut compared = 0;
    let progress = Progress::bytes("reading", 2 * model.file_bytes(), json);
    let outputs = record.steps.last().map(|step| step.outputs.as_slice()).unwrap_or_default();
    faults.extend(undigested(&record, outputs));
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
            if let MtpStatus::Unavailable(reason) = &planned.plan.mtp
                && !is_whole_elsewhere(model, &planned.config)
            {
                faults.push(reason.clone());
            }
        }
    }
    Ok(Report {
        file: model.name(),
        kind: Kind::Grafted,
        tensors: model.tensors().len(),
        compared,
        stage: None,
        unhashed: record.unhashed(),
        faults,
    })
}

/// Whether the head is written for another engine, with its projection in halves, and nothing of it is missing.
fn is_whole_elsewhere(model: &ModelFile, config: &Config) -> bool {
    let names = graft::names_of(model, config).ok().flatten();
    names.is_some_and(|names| names.dialect.is_halved() && names.lacks.is_empty())
}

/// What a graft wrote or read, and its record has no digest of: the first file and the last, which are never linked, and
/// tensors that are not the target's. A record without these proves nothing of what a graft can have spoiled.
fn undigested(record: &Provenance, outputs: &[FileEntry]) -> Vec<String> {
    let target = record.sources.iter().find(|s| s.role == provenance::Role::Target).map(|s| s.id.as_str());
    let written = match outputs {
        [first, .., last] => vec![first, last],
        few => few.iter().collect(),
    };
    let files = written.into_iter().filter(|f| f.sha256.is_none()).map(|f| f.path.clone());
    let origins = record.tensor_origins.iter().filter(|o| o.tensor_tree_sha256.is_none());
    let of_head = origins.filter(|o| Some(o.source.as_str()) != target || o.transform != Transform::Verbatim);
    let what = files.chain(of_head.map(|o| format!("tensors {}", o.pattern)));
    what.map(|what| format!("the record has no digest of {what}, which a graft always writes; graft again")).collect()
}

/// As many as anybody reads, and how many more there are; JSON has all.
fn few(all: &[String]) -> impl Iterator<Item = String> {
    const SHOWN_MAX: usize = 40;
    let more =
        all.len().checked_sub(SHOWN_MAX).filter(|more| *more > 0).map(|more| format!("and {more} more (--json)"));
    all.iter().take(SHOWN_MAX).cloned().chain(more)
}

/// For people.
pub fn text(report: &Report) -> String {
    let what = match (report.kind, &report.stage) {
        (_, Some(stage)) => format!("stage {stage}"),
        (Kind::Grafted, _) => "a grafted set".to_owned(),
        (Kind::Stage, _) => "a stage".to_owned(),
        (Kind::Head, _) => "an MTP head alone".to_owned(),
        (Kind::Model, _) => "a model".to_owned(),
    };
    let compared = if report.kind == Kind::Stage { "tensors" } else { "digests" };
    let mut out = vec![
        format!("{}: {what}", report.file),
        format!("{} tensors, {} {compared} compared", report.tensors, report.compared),
    ];
    if !report.unhashed.is_empty() {
        out.push(
            "not compared, for the record has no digest of it (a graft reads linked files only with --verify):".into(),
        );
        out.extend(few(&report.unhashed).map(|what| format!("  {what}")));
    }
    let has_record = report.kind == Kind::Grafted || report.compared > 0;
    out.extend(few(&report.faults).map(|fault| if has_record { format!("wrong: {fault}") } else { fault }));
    out.push(match (report.kind, report.faults.is_empty()) {
        _ if !has_record => "nothing was compared".into(),
        (Kind::Grafted, true) => "as recorded".into(),
        (Kind::Grafted, false) => "not as recorded".into(),
        (_, true) => "as in the source".into(),
        (_, false) => "not as in the source".into(),
    });
    out.join("\n") + "\n"
}
