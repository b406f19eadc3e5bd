//! `graft`: a published MTP head behind a model that was published without one, as a split set beside the original.
//!
//! Only the first shard is written again, for it alone carries metadata; the others are placed by links, and the head is
//! a new last shard. What becomes of every tensor is planned by [`engine::model::graft`] before anything is written, and
//! what was written is compared with its sources before it gets its name.

mod check;
mod place;
mod record;
mod write;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use engine::model::graft::{self, GraftPlan, Half};
use engine_io::compat::Dialect;
use engine_io::{ModelFile, OpenOptions};
use serde::Serialize;

use super::convert_head;
use super::error::PackError;
use super::output::{self, Output};
use super::progress::Progress;
use super::smoke::{self, Smoke};
use crate::memory::human;

pub use place::{Link, hard as hard_link};
pub use write::{Shard, ShardAction};

/// Flags of the verb.
#[derive(Clone, Debug, Args)]
pub struct GraftFlags {
    /// The model without a head: a GGUF file, any shard of a split one, or a directory that holds one.
    #[arg(long)]
    pub target: PathBuf,
    /// The head: a GGUF file with one NextN block, alone or in a whole model, or a checkpoint (safetensors), which is
    /// converted to a file beside the output first.
    #[arg(long)]
    pub head: PathBuf,
    /// Directory to be made.
    #[arg(long)]
    pub out: PathBuf,
    /// How shards that stay as they are get there.
    #[arg(long, value_enum, default_value_t = Link::Auto)]
    pub link: Link,
    /// Names of the block's tensors, where other engines expect others; those of F and I, with the projection in two
    /// halves, no program of this project runs.
    #[arg(long, value_enum, default_value_t = DialectFlag::C)]
    pub dialect: DialectFlag,
    /// Print what would be done, and write nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Read and hash the linked shards too.
    #[arg(long)]
    pub verify: bool,
    /// Load the result and run a few tokens, with drafts and without, before it gets its name.
    #[arg(long, conflicts_with = "dry_run")]
    pub smoke: bool,
    /// Write every shard again, with the new counts in its metadata: for readers that check them.
    #[arg(long)]
    pub rewrite_all: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Spellings of the dialects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[expect(missing_docs, reason = "the names of dialects, see `engine_io::compat::Dialect`")]
pub enum DialectFlag {
    #[value(name = "C")]
    C,
    #[value(name = "C+")]
    CPlus,
    #[value(name = "T")]
    T,
    #[value(name = "T'")]
    TPrime,
    #[value(name = "F")]
    F,
    #[value(name = "I")]
    I,
    #[value(name = "H")]
    H,
}

impl DialectFlag {
    fn dialect(self) -> Dialect {
        match self {
            Self::C => Dialect::Canonical,
            Self::CPlus => Dialect::CanonicalAndTrunk,
            Self::T => Dialect::TopLevel,
            Self::TPrime => Dialect::SharedNorm,
            Self::F => Dialect::BlockHalves,
            Self::I => Dialect::TopHalves,
            Self::H => Dialect::Checkpoint,
        }
    }
}

/// What was done, or would be.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// First shard of the new set.
    pub file: String,
    /// Nothing was written.
    pub dry_run: bool,
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Number of the new block.
    pub block: usize,
    /// Names that the head came with.
    pub dialect: &'static str,
    /// Names that it was given.
    pub names: &'static str,
    /// The new set can be served as it is; else it is for another engine.
    pub serves: bool,
    /// Every tensor of the new block.
    pub tensors: Vec<Moved>,
    /// Every tensor of the head that is left out.
    pub dropped: Vec<Left>,
    /// Tensors of the trunk that the head was published in.
    pub of_donor: usize,
    /// Keys that changed.
    pub keys: Vec<Key>,
    /// Files of the new set.
    pub shards: Vec<Shard>,
    /// Bytes that are written; the rest is linked.
    pub bytes_written: u64,
    /// Files whose bytes were not read, being the source's own.
    pub unread: Vec<String>,
    /// What was odd but no reason to refuse.
    pub warnings: Vec<String>,
    /// When it was run, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smoke: Option<Smoke>,
}

/// A tensor of the new block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Moved {
    /// Its name.
    pub name: String,
    /// Names in the head's file: one, or two whose rows were joined.
    pub from: Vec<String>,
    /// Which part of that one's rows, if not all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<&'static str>,
    /// Storage.
    #[serde(rename = "type")]
    pub ty: &'static str,
    /// Dimensions.
    pub dims: Vec<u64>,
    /// Digest of its bytes, once they are written.
    pub sha256: Option<String>,
}

/// A tensor that is left out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Left {
    /// Its name in the head's file.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// A key that changed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Key {
    /// Its full name.
    pub key: String,
    /// Before; null if it was not there.
    pub from: serde_json::Value,
    /// Now.
    pub to: serde_json::Value,
}

/// Plans, writes, compares, and gives the set its name.
///
/// # Errors
/// [`PackError`]; the output is absent then.
pub fn graft(flags: &GraftFlags) -> Result<Report, PackError> {
    if flags.smoke && flags.dialect.dialect().is_halved() {
        let names = flags.dialect.dialect().name();
        return Err(PackError::Usage(format!(
            "--smoke runs the result, and none of dialect {names} is run here; leave it out"
        )));
    }
    let options = OpenOptions::default();
    let target = ModelFile::open(&flags.target, options)?;
    super::refuse_package(&target)?;
    output::vacant(&flags.out)?;
    let Head { file: head, converted, .. } = &Head::open(flags, &target)?;
    let plan =
        graft::plan(&target, head, flags.dialect.dialect()).map_err(|error| PackError::Refused(error.to_string()))?;
    let set = write::Set::new(&target, head, &plan, flags.rewrite_all)?;
    let mut notices = place::check(&set.placed(), output::parent(&flags.out), flags.link)?;
    let written = set.bytes_written(flags.link);
    let mut report = report(flags, &plan, &set, written);
    report.warnings.extend(plan.warnings.iter().cloned());
    report.warnings.extend(target.notes().iter().chain(head.notes()).cloned());
    report.warnings.append(&mut notices);
    if flags.dry_run {
        return Ok(report);
    }
    let output = Output::directory(&flags.out, written)?;
    let progress = Progress::bytes("writing", written, flags.json);
    let done = set.write(&output, flags.link, &progress)?;
    drop(progress);
    target.check_unchanged()?;
    head.check_unchanged()?;
    report.shards = done.shards.clone();
    let written = ModelFile::open(output.path().join(&done.shards[0].name), options)?;
    let total = check::bytes_to_read(&written, &done, flags.verify);
    let progress = Progress::bytes("comparing", total, flags.json);
    let sources = check::Sources { target: &target, head, plan: &plan };
    let digests = check::compare(&written, &sources, &done, flags.verify, &progress)?;
    drop(progress);
    if flags.smoke {
        let found = smoke::smoke(&written)?;
        if !found.faults.is_empty() {
            return Err(PackError::Refused(format!(
                "what came out is no good, nothing was left: {}",
                found.faults.join("\n")
            )));
        }
        report.smoke = Some(found);
    }
    for moved in &mut report.tensors {
        moved.sha256 = digests.tensors.get(&moved.name).map(ToString::to_string);
    }
    report.unread = digests.unread.clone();
    let mut record = record::record(flags, &sources, &set, &done, &digests, &written)?;
    if let Some(converted) = converted {
        record::from_checkpoint(&mut record, converted)?;
    }
    let faults =
        record.check().0.into_iter().chain(record.check_tensors(written.tensors().iter().map(|t| t.name.as_str())).0);
    if let Some(fault) = faults.into_iter().next() {
        return Err(PackError::Unverified(format!("{}: its provenance record: {fault}", flags.out.display())));
    }
    write::text(&output, engine_io::provenance::FILE_NAME, &record.to_json())?;
    drop(written);
    output.finish()?;
    Ok(report)
}

/// Opens what `--head` names.
///
/// # Errors
/// [`PackError`]: also for what is no GGUF file but known.
pub fn open_head(path: &Path) -> Result<ModelFile, PackError> {
    let refused = |text: &str| Err(PackError::Refused(format!("{}: {text}", path.display())));
    let has = |name: &str| path.join(name).is_file();
    if path.is_dir() && (has("dense.bin") || has("experts.bin")) {
        return refused(
            "is a pack for a runtime of its own (dense.bin, experts.bin as Strata writes them), whose experts are \
             quantised again and whose indexer is gone; use the head as it was published",
        );
    }
    if is_checkpoint(path) {
        return refused("holds safetensors; make a GGUF head of it first: engine-pack convert-head");
    }
    Ok(ModelFile::open(path, OpenOptions::default())?)
}

/// Whether a path is that of a checkpoint.
fn is_checkpoint(path: &Path) -> bool {
    let is_safetensors = |p: &Path| p.extension().is_some_and(|e| e == "safetensors");
    is_safetensors(path)
        || path.is_dir() && std::fs::read_dir(path).is_ok_and(|d| d.flatten().any(|e| is_safetensors(&e.path())))
}

/// What `--head` names, as a GGUF file.
struct Head {
    file: ModelFile,
    /// How it was made of a checkpoint.
    converted: Option<convert_head::Report>,
    /// Where that file is, until this is dropped.
    _place: Option<Output>,
}

impl Head {
    /// Opens it; a checkpoint is converted beside the output, where there must be room for the head in any case.
    fn open(flags: &GraftFlags, target: &ModelFile) -> Result<Self, PackError> {
        if !is_checkpoint(&flags.head) {
            return Ok(Self { file: open_head(&flags.head)?, converted: None, _place: None });
        }
        if flags.dry_run {
            let file = convert_head::rehearse(&flags.head, target)?;
            return Ok(Self { file, converted: None, _place: None });
        }
        let place = Output::scratch(&flags.out)?;
        let path = place.path().join("mtp-head.gguf");
        let converted = convert_head::convert(&flags.head, target, &path, flags.json)?;
        let file = ModelFile::open(&path, OpenOptions::default())?;
        Ok(Self { file, converted: Some(converted), _place: Some(place) })
    }
}

fn report(flags: &GraftFlags, plan: &GraftPlan, set: &write::Set<'_>, bytes_written: u64) -> Report {
    let shards = set.shards(flags.link);
    let key = |key: &str, from: Option<serde_json::Value>, to| Key { key: key.to_owned(), from: from.into(), to };
    Report {
        file: flags.out.join(&shards[0].name).display().to_string(),
        dry_run: flags.dry_run,
        architecture: plan.arch,
        block: plan.block,
        dialect: plan.dialect.name(),
        names: plan.names.name(),
        serves: !plan.names.is_halved(),
        tensors: plan
            .tensors
            .iter()
            .map(|t| Moved {
                name: t.info.name.clone(),
                from: t.from.names().into_iter().map(str::to_owned).collect(),
                part: t.from.half().map(Half::name),
                ty: t.info.ty.name(),
                dims: t.info.dims().to_vec(),
                sha256: None,
            })
            .collect(),
        dropped: plan.dropped.iter().map(|d| Left { name: d.name.clone(), reason: d.reason.clone() }).collect(),
        of_donor: plan.of_donor,
        keys: set.edits().iter().map(|e| key(&e.key, e.from.as_ref().map(|v| v.to_json()), e.to.to_json())).collect(),
        shards,
        bytes_written,
        unread: Vec::new(),
        warnings: Vec::new(),
        smoke: None,
    }
}

/// For people.
pub fn text(report: &Report) -> String {
    let mut out = Vec::new();
    let done = if report.dry_run { "would put" } else { "put" };
    out.push(format!(
        "{done} a head of dialect {} behind {} blocks of {}: {} tensors, {} left out",
        report.dialect,
        report.block,
        report.architecture,
        report.tensors.len(),
        report.dropped.len()
    ));
    for t in report.tensors.iter().filter(|t| t.from.len() != 1 || t.from[0] != t.name) {
        let part = t.part.map_or(String::new(), |part| format!("{part} of "));
        out.push(format!("  {} from {part}{}", t.name, t.from.join(" and ")));
    }
    out.extend(report.dropped.iter().map(|d| format!("  left out {}: {}", d.name, d.reason)));
    if report.of_donor > 0 {
        out.push(format!("  left alone {} tensors of the trunk that the head was published in", report.of_donor));
    }
    for Key { key, from, to } in &report.keys {
        let short = |v: &serde_json::Value| match v {
            serde_json::Value::Array(list) => format!("{} entries ending in {}", list.len(), list.last().unwrap_or(v)),
            serde_json::Value::Null => "absent".to_owned(),
            other => other.to_string(),
        };
        out.push(format!("  key {key}: {} -> {}", short(from), short(to)));
    }
    for s in &report.shards {
        out.push(format!("  {} {} ({})", s.name, human(s.bytes as usize), s.action.name()));
    }
    out.push(format!("{} written", human(report.bytes_written as usize)));
    out.extend(report.unread.iter().map(|f| format!("not read, being the source's own bytes: {f}")));
    out.extend(report.warnings.iter().map(|w| format!("note: {w}")));
    out.extend(report.smoke.iter().map(|smoke| smoke.text().trim_end().to_owned()));
    if !report.serves {
        out.push(format!(
            "for an engine that reads dialect {}; engine-serve does not, but engine-pack graft --head takes it",
            report.names
        ));
    } else if !report.dry_run {
        out.push(format!("serve it with: engine-serve --model {}", report.file));
    }
    out.join("\n") + "\n"
}
