//! `preflight`: whether a layer package can be served in so many stages, and what each of them takes. Everything that is
//! wrong is told at once.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use engine_io::digest::Sha256;
use engine_io::package::manifest::Generation;
use engine_io::package::stages::{self, Needs};
use engine_io::package::{Artifact, Issue, Package, Role, check, open};
use engine_io::{ModelFile, package};
use serde::Serialize;

use super::PackError;
use super::error::REFUSED;
use super::examine::{self, Facts};
use super::progress::Progress;
use super::share::{blocks, counted};
use crate::flags::SizeFlags;
use crate::memory::human;

/// Flags of the verb.
#[derive(Clone, Debug, Args)]
pub struct PreflightFlags {
    /// A layer package: its folder.
    #[arg(value_name = "DIR")]
    pub package: PathBuf,
    /// Stages that it is to be served in, each a process.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub stages: u32,
    /// First block of the second of two stages [default: where both weigh the same]
    #[arg(long, value_name = "BLOCK")]
    pub stage_split: Option<u32>,
    /// Read every artifact and hold it against its digest.
    #[arg(long)]
    pub verify_sha256: bool,
    /// What decides how much memory is taken.
    #[command(flatten)]
    pub size: SizeFlags,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Everything that was found.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Report {
    /// Of the manifest.
    pub schema_version: Option<u32>,
    /// The folder.
    pub package_path: String,
    /// Nothing is wrong.
    pub valid: bool,
    /// The package's coordinate.
    pub model_id: Option<String>,
    /// Blocks, the MTP block among them.
    pub layer_count: Option<u32>,
    /// Number of the MTP block, the last of them; `None` without one, or where the model cannot be read.
    pub mtp_block: Option<u32>,
    /// Width of a hidden row.
    pub activation_width: Option<i64>,
    /// How it may draft.
    pub generation: Option<Generation>,
    /// Of the manifest's bytes.
    pub manifest_sha256: Option<Sha256>,
    /// Artifacts that were looked at.
    pub checked_artifact_count: usize,
    /// Those of them that are not there.
    pub missing_artifact_count: usize,
    /// How many things are wrong.
    pub issue_count: usize,
    /// All of them.
    pub issues: Vec<Issue>,
    /// Artifact by artifact.
    pub artifacts: Vec<ArtifactReport>,
    /// Stage by stage, once the artifacts can be read.
    pub stages: Vec<StageReport>,
}

/// One artifact.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ArtifactReport {
    /// `metadata`, `embeddings`, `output`, `layer` or `projector`.
    pub role: &'static str,
    /// Which block.
    pub layer_index: Option<u32>,
    /// In the manifest.
    pub path: String,
    /// It can be found.
    pub present: bool,
    /// Stated length.
    pub declared_artifact_bytes: u64,
    /// Length of the file.
    pub actual_artifact_bytes: Option<u64>,
    /// Whether they agree.
    pub size_matches_manifest: Option<bool>,
    /// Whether the bytes are those that were stated; only with `--verify-sha256`.
    pub sha256_matches_manifest: Option<bool>,
}

/// One stage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StageReport {
    /// Which, from 0.
    pub stage_index: u32,
    /// First block.
    pub layer_start: u32,
    /// Behind the last block.
    pub layer_end: u32,
    /// It has the token table.
    pub includes_embeddings: bool,
    /// Why: `input`, `tied_output`, `mtp_block`.
    pub embeddings_for: Vec<&'static str>,
    /// It has output norm and LM head.
    pub includes_output: bool,
    /// It has the MTP block.
    pub includes_mtp: bool,
    /// Artifacts that hold what it needs.
    pub part_count: usize,
    /// Bytes of them.
    pub artifact_bytes: u64,
    /// Their paths.
    pub parts: Vec<String>,
    /// Those of them that are not there.
    pub missing_parts: Vec<String>,
    /// Tensors that it needs.
    pub tensor_count: usize,
    /// Bytes of them.
    pub tensor_bytes: u64,
    /// Memory of its process with all slots full, by room.
    pub memory: examine::StageMemory,
}

/// Looks at a package.
///
/// # Errors
/// Flags that contradict each other. What is wrong with the package is in the report.
pub fn preflight(flags: &PreflightFlags) -> Result<Report, PackError> {
    flags.size.check().map_err(PackError::Usage)?;
    if flags.stage_split.is_some() && flags.stages != 2 {
        return Err(PackError::Usage(format!("--stage-split cuts two stages; --stages is {}", flags.stages)));
    }
    Ok(look(flags)?.0)
}

/// The report, and the model if its artifacts can be read.
///
/// # Errors
/// Flags that ask for sizes which cannot be.
pub fn look(flags: &PreflightFlags) -> Result<(Report, Option<ModelFile>), PackError> {
    let mut report = Report { package_path: flags.package.display().to_string(), ..Report::default() };
    let folder = package::folder(&flags.package).unwrap_or_else(|| flags.package.clone());
    let package = match Package::read(&folder) {
        Ok(package) => package,
        Err(issue) => {
            report.issues.push(*issue);
            return Ok((report.counted(), None));
        }
    };
    let manifest = &package.manifest;
    report.schema_version = Some(manifest.schema_version);
    report.manifest_sha256 = Some(package.manifest_sha256);
    if let Some(issue) = check::schema(manifest) {
        report.issues.push(issue);
        return Ok((report.counted(), None));
    }
    report.model_id = Some(manifest.model_id.clone());
    report.layer_count = Some(manifest.layer_count);
    report.activation_width = manifest.activation_width;
    report.generation = manifest.generation.clone();
    report.issues = check::identity(manifest);
    let layout = check::layout(manifest);
    let generation = check::generation(manifest);
    let drafting = generation.is_empty();
    let (parts, found) = open::artifacts(&package, flags.size.open_options(), &layout);
    let readable = layout.is_empty() && found.is_empty();
    report.issues.extend(layout.into_iter().chain(generation).chain(found));
    report.artifacts = artifacts(&package);
    if flags.verify_sha256 {
        report.verify(&package, flags.json);
    }
    let mut model = None;
    if readable {
        let of_parts = open::check_parts(&package.manifest, &parts);
        let agreed = of_parts.is_empty();
        report.issues.extend(of_parts);
        if agreed {
            match open::join(package.clone(), parts) {
                Ok(joined) => {
                    let found = examine::model(&joined, &package, drafting);
                    report.issues.extend(found.issues);
                    if let Some(facts) = found.facts {
                        report.stage_table(flags, &joined, &package, &facts, drafting)?;
                    }
                    model = Some(joined);
                }
                Err(error) => report.issues.push(Issue::new("invalid_model", "", error.to_string())),
            }
        }
    }
    Ok((report.counted(), model))
}

/// Sizes where no flag says any.
pub fn default_size() -> SizeFlags {
    #[derive(clap::Parser)]
    struct Only {
        #[command(flatten)]
        size: SizeFlags,
    }
    <Only as clap::Parser>::parse_from(["default"]).size
}

fn artifacts(package: &Package) -> Vec<ArtifactReport> {
    let row = |(role, artifact): (Role, &Artifact)| {
        let stat = check::is_safe_path(&artifact.path)
            .then(|| std::fs::metadata(package.dir.join(&artifact.path)).ok())
            .flatten()
            .filter(std::fs::Metadata::is_file);
        ArtifactReport {
            role: role.name(),
            layer_index: match role {
                Role::Layer(index) => Some(index),
                _ => None,
            },
            path: artifact.path.clone(),
            present: stat.is_some(),
            declared_artifact_bytes: artifact.artifact_bytes,
            actual_artifact_bytes: stat.as_ref().map(std::fs::Metadata::len),
            size_matches_manifest: stat.map(|stat| stat.len() == artifact.artifact_bytes),
            sha256_matches_manifest: None,
        }
    };
    package.manifest.artifacts().map(row).collect()
}

impl Report {
    fn counted(mut self) -> Self {
        self.checked_artifact_count = self.artifacts.len();
        self.missing_artifact_count = self.artifacts.iter().filter(|a| !a.present).count();
        self.issue_count = self.issues.len();
        self.valid = self.issues.is_empty();
        self
    }

    /// Reads every artifact that is there and as long as stated.
    fn verify(&mut self, package: &Package, json: bool) {
        let whole = |row: &ArtifactReport| row.size_matches_manifest == Some(true);
        let total = self.artifacts.iter().filter(|row| whole(row)).map(|row| row.declared_artifact_bytes).sum();
        let done = Progress::bytes("hashing", total, json);
        for (row, (_, artifact)) in self.artifacts.iter_mut().zip(package.manifest.artifacts()) {
            // What cannot be located or has no digest was told already.
            let (Ok(path), Ok(stated)) = (package.locate(artifact), artifact.sha256.parse::<Sha256>()) else {
                continue;
            };
            let message = match Sha256::of_file(&path, |n| done.add(n)) {
                Ok((found, _)) => {
                    row.sha256_matches_manifest = Some(found == stated);
                    (found != stated).then(|| format!("its bytes are {found}, sha256 is {stated}"))
                }
                Err(error) => Some(error.to_string()),
            };
            self.issues.extend(message.map(|text| Issue::new("artifact_sha256_mismatch", &artifact.path, text)));
        }
    }

    fn stage_table(
        &mut self,
        flags: &PreflightFlags,
        model: &ModelFile,
        package: &Package,
        facts: &Facts,
        drafting: bool,
    ) -> Result<(), PackError> {
        let needs = facts.needs;
        self.mtp_block = needs.head;
        let Some(ranges) = stages::ranges(model.tensors(), &needs, flags.stages, flags.stage_split) else {
            let trunk = needs.trunk();
            self.issues.push(match flags.stage_split.filter(|_| flags.stages <= trunk) {
                Some(split) => {
                    let message =
                        format!("--stage-split is {split}, expected 1 to {}: the trunk has {trunk} blocks", trunk - 1);
                    Issue::new("stage_split_out_of_range", "", message)
                }
                None => {
                    let message = format!("{} stages were asked for, the trunk has {trunk} blocks", flags.stages);
                    Issue::new("too_many_stages", "", message)
                }
            });
            return Ok(());
        };
        if drafting {
            let last = ranges.last().cloned().unwrap_or(0..needs.layers);
            self.issues.extend(examine::reachable(package, &needs, &last));
        }
        for (blocks, stage_index) in ranges.iter().zip(0..) {
            let wanted = model.tensors().iter().filter(|t| needs.of_stage(&t.name, blocks));
            let (mut tensor_count, mut tensor_bytes) = (0, 0);
            let mut shards = vec![false; model.shards().len()];
            // Keys and tokenizer.
            shards[0] = true;
            for t in wanted {
                (tensor_count, tensor_bytes) = (tensor_count + 1, tensor_bytes + t.bytes);
                shards[t.shard as usize] = true;
            }
            let parts: Vec<_> = model.shards().iter().zip(shards).filter(|(_, used)| *used).map(|(s, _)| s).collect();
            let name = |path: &std::path::Path| path.strip_prefix(&package.dir).unwrap_or(path).display().to_string();
            self.stages.push(StageReport {
                stage_index,
                layer_start: blocks.start,
                layer_end: blocks.end,
                includes_embeddings: needs.of_stage("token_embd.weight", blocks),
                embeddings_for: embeddings_for(&needs, blocks),
                includes_output: blocks.end == needs.layers,
                includes_mtp: needs.head.is_some_and(|head| blocks.contains(&head)),
                part_count: parts.len(),
                artifact_bytes: parts.iter().map(|s| s.bytes.len() as u64).sum(),
                parts: parts.iter().map(|s| name(&s.path)).collect(),
                missing_parts: Vec::new(),
                tensor_count,
                tensor_bytes,
                memory: examine::memory((facts, model), (blocks, flags.stages), tensor_bytes, &flags.size, package)?,
            });
        }
        Ok(())
    }
}

fn embeddings_for(needs: &Needs, blocks: &std::ops::Range<u32>) -> Vec<&'static str> {
    let last = blocks.end == needs.layers;
    let reasons = [
        ("input", blocks.start == 0),
        ("tied_output", last && needs.tied),
        ("mtp_block", last && needs.head_needs_table()),
    ];
    reasons.into_iter().filter(|(_, holds)| *holds).map(|(reason, _)| reason).collect()
}

/// The same for people.
fn reasons(of: &[&str]) -> String {
    let words = |reason: &&str| match *reason {
        "input" => "to look prompts up",
        "tied_output" => "it is the LM head too",
        "mtp_block" => "for the MTP block",
        other => unreachable!("{other} is no reason for a token table"),
    };
    of.iter().map(words).collect::<Vec<_>>().join(", ")
}

/// Exit code of a report.
pub fn code(report: &Report) -> u8 {
    if report.valid { 0 } else { REFUSED }
}

/// For people.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<14}{value}");
    };
    line("package", report.package_path.clone());
    if let Some(id) = &report.model_id {
        line("model id", id.clone());
    }
    if let Some(count) = report.layer_count {
        line(
            "blocks",
            match report.mtp_block {
                Some(block) => counted(block, true),
                None => counted(count, false),
            },
        );
    }
    let (checked, missing) = (report.checked_artifact_count, report.missing_artifact_count);
    line("artifacts", format!("{checked} stated, {missing} missing"));
    if let Some(speculative) = report.generation.as_ref().and_then(|g| g.speculative_decoding.as_ref()) {
        let names: Vec<&str> = speculative.strategies.iter().map(|(name, _)| name).collect();
        line("strategies", format!("{}; default {}", names.join(", "), speculative.default));
    }
    for stage in &report.stages {
        let also = [
            (stage.includes_embeddings, format!("token table ({})", reasons(&stage.embeddings_for))),
            (stage.includes_output, "output norm and LM head".to_owned()),
        ];
        let also: Vec<String> = also.into_iter().filter(|(there, _)| *there).map(|(_, text)| text).collect();
        let with = if also.is_empty() { String::new() } else { format!("; {}", also.join(", ")) };
        let blocks = blocks(stage.layer_start, stage.layer_end, stage.includes_mtp);
        line(&format!("stage {}", stage.stage_index), format!("{blocks}{with}"));
        let bytes = human(stage.tensor_bytes as usize);
        line("", format!("{} tensors, {bytes}, in {} files of the package", stage.tensor_count, stage.part_count));
        line("", stage.memory.to_string());
    }
    for issue in &report.issues {
        let _ = writeln!(out, "\n{}: {issue}", issue.severity);
    }
    if report.stages.len() > 2 {
        let _ = writeln!(
            out,
            "\nnote: engine-serve runs a model in one process or in two stages; more are for other programs"
        );
    }
    let _ = match report.issue_count {
        0 => writeln!(out, "\nnothing is wrong"),
        n => writeln!(out, "\nissues: {n}"),
    };
    out
}
