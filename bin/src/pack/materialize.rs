//! `materialize`: the file that one stage of a split model loads, cut from a layer package.
//!
//! All keys of the model, four more that say which stage it is, and the tensors of that stage alone. Nothing reads the
//! package afterwards.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use engine_io::digest::{Sha256, Tee};
use engine_io::gguf::Value;
use engine_io::gguf::write::Layout;
use engine_io::package::{Artifact, Issue, stages};
use engine_io::{ModelFile, OpenOptions, package};
use serde::Serialize;

use super::PackError;
use super::examine;
use super::output::Output;
use super::progress::Progress;
use super::share;
use crate::memory::human;

/// Keys of a stage's file, u32 each: which stage, of how many, its first block, and the block behind its last one. The
/// last stage's end is that of the trunk: an MTP block belongs to it without being counted.
pub use engine::model::stage::STAGE_KEYS;

/// `I/N`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StageOf {
    /// Which, from 0.
    pub index: u32,
    /// Of how many.
    pub count: u32,
}

impl FromStr for StageOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((index, count)) if index < count && count <= 4096 => Ok(Self { index, count }),
            _ => Err("expected I/N with I from 0 and below N, such as 0/2".to_owned()),
        }
    }
}

/// Flags of the verb.
#[derive(Clone, Debug, Args)]
pub struct MaterializeFlags {
    /// A layer package: its folder.
    #[arg(value_name = "DIR")]
    pub package: PathBuf,
    /// Which stage, from 0, of how many.
    #[arg(long, value_name = "I/N")]
    pub stage: StageOf,
    /// First block of the second of two stages [default: where both weigh the same]
    #[arg(long, value_name = "BLOCK")]
    pub stage_split: Option<u32>,
    /// A folder that does not exist yet; the stage's file is put there.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What was written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// The file.
    pub file: String,
    /// Which stage.
    pub stage_index: u32,
    /// Of how many.
    pub stage_count: u32,
    /// First block.
    pub layer_start: u32,
    /// Behind the last block; an MTP block is counted.
    pub layer_end: u32,
    /// It has the MTP block.
    pub includes_mtp: bool,
    /// It has the token table.
    pub includes_embeddings: bool,
    /// It has output norm and LM head.
    pub includes_output: bool,
    /// Tensors in it.
    pub tensors: usize,
    /// Length of the file.
    pub bytes: u64,
    /// Of its bytes.
    pub sha256: Sha256,
}

/// Writes the file of a stage.
///
/// # Errors
/// [`PackError`].
pub fn materialize(flags: &MaterializeFlags) -> Result<Report, PackError> {
    let StageOf { index, count } = flags.stage;
    if flags.stage_split.is_some() && count != 2 {
        return Err(PackError::Usage(format!("--stage-split cuts two stages; --stage is {index}/{count}")));
    }
    let refused = |what: String| PackError::Refused(format!("{}: {what}", flags.package.display()));
    if package::folder(&flags.package).is_none() {
        return Err(refused("is no layer package; give the folder that holds model-package.json".to_owned()));
    }
    let model = ModelFile::open(&flags.package, OpenOptions::default())?;
    if let Some(issue) = examine::record_issues(&model)?.first() {
        return Err(refused(format!("its provenance does not fit it: {issue}")));
    }
    let needs = examine::needs(&model)?;
    let ranges = stages::ranges(model.tensors(), &needs, count, flags.stage_split).ok_or_else(|| {
        let trunk = needs.trunk();
        match flags.stage_split {
            Some(split) if trunk >= count => refused(format!(
                "--stage-split {split} is out of range: the trunk has {trunk} blocks, so the second stage begins with 1 to {}",
                trunk - 1
            )),
            _ => refused(format!("the trunk has {trunk} blocks, too few for {count} stages; give fewer")),
        }
    })?;
    let blocks = &ranges[index as usize];
    let mut meta = model.meta().clone();
    let values = [index, count, blocks.start, blocks.end.min(needs.trunk())];
    for (key, value) in STAGE_KEYS.into_iter().zip(values) {
        meta.set(key, Value::U32(value));
    }
    let mut layout = Layout::new(meta)?;
    let wanted: Vec<_> = model.tensors().iter().filter(|t| needs.of_stage(&t.name, blocks)).collect();
    for t in &wanted {
        layout.tensor(&t.name, t.dims(), t.ty)?;
    }
    let total = layout.file_bytes();
    let output = Output::directory(&flags.out, total)?;
    let name = format!("stage-{index}-of-{count}.gguf");
    let done = Progress::bytes("writing", total, flags.json);
    let path = output.path().join(&name);
    let failed = PackError::writing(&path);
    let mut writer = layout.start(Tee::new(output.writer(&name)?)).map_err(&failed)?;
    let mut checked = vec![false; model.shards().len()];
    // Its keys are in the file, whether a tensor of it is or not.
    check_artifact(&model, 0, &mut checked)?;
    for t in &wanted {
        // Just before its bytes are copied, so that a large artifact is still at hand.
        check_artifact(&model, t.shard as usize, &mut checked)?;
        writer.tensor(done.reader(model.reader(t))).map_err(&failed)?;
    }
    let (file, sha256, bytes) = writer.finish().map_err(&failed)?.finish();
    file.into_inner().map(drop).map_err(|e| PackError::output(&path, "write")(e.into_error()))?;
    model.check_unchanged()?;
    let written = ModelFile::open(output.path(), OpenOptions::default())
        .map_err(|e| PackError::Unverified(format!("what was written does not open: {e}")))?;
    let there = |name: &str| written.tensor(name).is_some();
    let report = Report {
        file: flags.out.join(&name).display().to_string(),
        stage_index: index,
        stage_count: count,
        layer_start: blocks.start,
        layer_end: blocks.end,
        includes_mtp: needs.head.is_some_and(|head| blocks.contains(&head)),
        includes_embeddings: there("token_embd.weight"),
        includes_output: there("output_norm.weight"),
        tensors: written.tensors().len(),
        bytes,
        sha256,
    };
    drop(written);
    output.finish()?;
    Ok(report)
}

/// Holds the bytes of an artifact against the manifest's digest, once.
fn check_artifact(model: &ModelFile, shard: usize, checked: &mut [bool]) -> Result<(), PackError> {
    let (Some(package), false) = (model.package(), std::mem::replace(&mut checked[shard], true)) else {
        return Ok(());
    };
    let path = &model.shards()[shard].path;
    let of = |artifact: &&Artifact| package.dir.join(&artifact.path) == *path;
    let artifacts = package.manifest.artifacts().map(|(_, artifact)| artifact);
    let Some(artifact) = artifacts.into_iter().find(of) else {
        return Err(PackError::Unverified(format!("{}: is no artifact of its package", path.display())));
    };
    let (found, _) = Sha256::of_file(path, |_| {})?;
    if found.to_string() == artifact.sha256 {
        return Ok(());
    }
    let message = format!("its bytes are {found}, sha256 is {}", artifact.sha256);
    let issues = vec![Issue::new("artifact_sha256_mismatch", &artifact.path, message)];
    Err(engine_io::Error::Package { dir: package.dir.display().to_string(), issues }.into())
}

/// For people.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let (index, count) = (report.stage_index, report.stage_count);
    let blocks = share::blocks(report.layer_start, report.layer_end, report.includes_mtp);
    let with = [(report.includes_embeddings, "token table"), (report.includes_output, "output norm and LM head")];
    let with: Vec<&str> = with.into_iter().filter(|(there, _)| *there).map(|(_, what)| what).collect();
    let with = if with.is_empty() { String::new() } else { format!("; {}", with.join(", ")) };
    let _ = writeln!(out, "stage         {index} of {count} (counted from 0): {blocks}{with}");
    let _ =
        writeln!(out, "file          {}, {} tensors, {}", report.file, report.tensors, human(report.bytes as usize));
    let _ = writeln!(out, "sha256        {}", report.sha256);
    out
}
