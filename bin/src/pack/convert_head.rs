//! `convert-head`: the MTP head of a checkpoint as a GGUF file of its own, for a model that has the rest.
//!
//! The file drafts beside its model as it is, and is what `graft` takes. It holds the head's block alone: token table and
//! LM head are the model's. Values keep the type of the checkpoint; norms, routers, gates and biases become F32.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use engine::model::head::HeadSpec;
use engine::model::load::{LoadOptions, Planned};
use engine_io::checkpoint::Checkpoint;
use engine_io::compat::source::{self, Conversion, Fault, Step};
use engine_io::gguf::write::Layout;
use engine_io::{ModelFile, OpenOptions, TensorType};
use serde::Serialize;

use super::checkpoint_config::{self, Checked};
use super::error::PackError;
use super::output::Output;
use super::progress::Progress;
use crate::report::chain;

/// Flags of the verb.
#[derive(Clone, Debug, Args)]
pub struct ConvertHeadFlags {
    /// The checkpoint: a .safetensors file, or the directory of one or of several with their index; no name of a hub
    #[arg(long, value_name = "DIR_OR_FILE")]
    pub source: PathBuf,
    /// The model that the head drafts for: its metadata decide what the head must have
    #[arg(long, value_name = "MODEL")]
    pub target: PathBuf,
    /// The head
    #[arg(long, value_name = "FILE.gguf")]
    pub out: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What was written.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The checkpoint.
    pub source: String,
    /// Its files that hold tensors of the head.
    pub files: Vec<String>,
    /// The model.
    pub target: String,
    /// The head.
    pub out: String,
    /// Its size.
    pub bytes: u64,
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Number of its block.
    pub block: usize,
    /// Its tensors.
    pub tensors: Vec<Converted>,
    /// Tensors of the checkpoint's head that are left out.
    pub dropped: Vec<Dropped>,
    /// Tensors of the head in the checkpoint: each used, or left out.
    pub taken: usize,
    /// Tensors of the model in the same files, which are of no use here.
    pub ignored: usize,
    /// Keys of the checkpoint's config.json that say what the target says; `None` without one.
    pub config: Option<Vec<&'static str>>,
}

/// One tensor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Converted {
    /// Its name.
    pub name: String,
    /// Its type.
    pub r#type: &'static str,
    /// In GGUF's order.
    pub dims: Vec<u64>,
    /// Names in the checkpoint; of experts the first and the last.
    pub from: Vec<String>,
    /// How many those are in all.
    pub parts: usize,
    /// What was done.
    pub step: &'static str,
}

/// A tensor that was left out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Dropped {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: &'static str,
}

/// Runs the verb.
///
/// # Errors
/// [`PackError`].
pub fn run(flags: &ConvertHeadFlags) -> Result<Report, PackError> {
    let target = ModelFile::open(&flags.target, OpenOptions::default())?;
    convert(&flags.source, &target, &flags.out, flags.json)
}

/// Writes the head of the checkpoint `source` for `target` to `out`. `quiet`: no progress is shown.
///
/// # Errors
/// [`PackError`]: a target without use for a head, a checkpoint that cannot be read, every tensor that does not fit, in
/// one list. Nothing is written before all of that is known, and nothing is left where writing fails.
pub fn convert(source: &Path, target: &ModelFile, out: &Path, quiet: bool) -> Result<Report, PackError> {
    Plan::new(source, target)?.write(target, out, quiet)
}

/// The head that [`convert`] would write, with every value zero: what it needs no disk for, and its pages no memory until
/// they are read. It lives as long as the program.
///
/// # Errors
/// As [`convert`], but for writing.
pub fn rehearse(source: &Path, target: &ModelFile) -> Result<ModelFile, PackError> {
    let Plan { layout, bytes, .. } = Plan::new(source, target)?;
    let mut header = Vec::new();
    layout.start(&mut header)?;
    let size = usize::try_from(bytes).map_err(|_| PackError::Refused(format!("{}: too large", source.display())))?;
    // Zeroed by the system, page by page as they are touched.
    let mut file = vec![0; size.max(header.len())];
    file[..header.len()].copy_from_slice(&header);
    let head = ModelFile::from_static(file.leak(), "mtp-head.gguf")?;
    check_sidecar(target, &head)?;
    Ok(head)
}

/// What will be written, before anything is.
struct Plan {
    from: Checkpoint,
    config: Option<Checked>,
    spec: HeadSpec,
    plan: Conversion,
    layout: Layout,
    bytes: u64,
}

impl Plan {
    fn new(source: &Path, target: &ModelFile) -> Result<Self, PackError> {
        // A target that could not be served is no measure for a head.
        Planned::new(target, None, LoadOptions::default())?;
        let mut spec = HeadSpec::of(target)?;
        let from = Checkpoint::open(source, source::is_head)?;
        let config = check_config(&from, target, &spec)?;
        let arch = spec.config.arch.name();
        let plan =
            source::plan(arch, &spec.wanted, spec.geometry, &from).map_err(|faults| refused(&from, target, &faults))?;
        account(&from, &plan)?;
        spec.set_type(main_type(&plan));
        let mut layout = Layout::new(spec.meta.clone())?;
        for t in &plan.tensors {
            layout.tensor(&t.name, &t.dims, t.ty)?;
        }
        let bytes = layout.file_bytes();
        Ok(Self { from, config, spec, plan, layout, bytes })
    }

    fn write(self, target: &ModelFile, out: &Path, quiet: bool) -> Result<Report, PackError> {
        let Self { from, config, spec, plan, layout, bytes } = self;
        let output = Output::file(out, bytes)?;
        let progress = Progress::bytes("converting", bytes, quiet);
        let failed = PackError::writing(out);
        let mut writer = layout.start(output.writer("")?).map_err(&failed)?;
        for t in &plan.tensors {
            let size = writer.expects().map_or(0, |t| t.bytes);
            writer.tensor(t.reader(&from)).map_err(&failed)?;
            progress.add(size);
        }
        writer.finish().map_err(&failed)?.flush().map_err(PackError::output(out, "write"))?;
        drop(progress);
        from.check_unchanged()?;
        // What was written is opened as the draft model that it shall be.
        let head = ModelFile::open(output.path(), OpenOptions::default())?;
        check_sidecar(target, &head)?;
        drop(head);
        output.finish()?;
        Ok(report(&from, target, out, bytes, &spec, &plan, config))
    }
}

/// Whether the head loads beside its model.
pub(super) fn check_sidecar(target: &ModelFile, head: &ModelFile) -> Result<(), PackError> {
    let planned = Planned::new(target, Some(head), LoadOptions::default());
    let failed = |error| PackError::Unverified(format!("the head does not load beside its model: {error}"));
    planned.map(drop).map_err(&failed)
}

/// Every tensor of the checkpoint's head is used or left out; the plan says so of all it was given.
fn account(from: &Checkpoint, plan: &Conversion) -> Result<(), PackError> {
    let mut seen = vec![false; from.tensors().len()];
    let used = plan.tensors.iter().flat_map(|t| &t.from);
    used.chain(plan.dropped.iter().map(|(tensor, _)| tensor)).for_each(|&tensor| seen[tensor] = true);
    match seen.iter().position(|seen| !seen) {
        None => Ok(()),
        Some(i) => Err(PackError::Unverified(format!("{} was neither used nor left out", from.tensors()[i].name))),
    }
}

fn check_config(from: &Checkpoint, target: &ModelFile, spec: &HeadSpec) -> Result<Option<Checked>, PackError> {
    let Some((file, config)) = from.config()? else { return Ok(None) };
    let rows = target.tensor("token_embd.weight").map_or(0, |t| t.dim(1));
    let checked = checkpoint_config::check(&config, &spec.config, rows);
    match checked.differ.is_empty() {
        true => Ok(Some(checked)),
        false => Err(PackError::Refused(format!(
            "{file}: does not agree with the model {}: {}; give the checkpoint that the model was made from",
            target.name(),
            checked.differ.join("; ")
        ))),
    }
}

/// All faults, most telling first: a checkpoint without any head is one fault, not as many as a head has tensors.
fn refused(from: &Checkpoint, target: &ModelFile, faults: &[Fault]) -> PackError {
    if from.tensors().is_empty() {
        let files = "no tensor whose name begins with mtp. (model., language_model. in front or not)";
        return PackError::Refused(format!(
            "{}: holds {files}, so there is no head to convert; give the checkpoint that has one, or the directory with \
             its index",
            from.name()
        ));
    }
    let lines: Vec<String> = faults.iter().map(|fault| format!("  {fault}")).collect();
    PackError::Refused(format!("{}: does not hold the head of {}:\n{}", from.name(), target.name(), lines.join("\n")))
}

/// The type of the larger part of the weights.
fn main_type(plan: &Conversion) -> TensorType {
    let weights = |ty: TensorType| -> u64 {
        plan.tensors.iter().filter(|t| t.ty == ty).map(|t| t.dims.iter().product::<u64>()).sum()
    };
    let all = [TensorType::Bf16, TensorType::F16, TensorType::F32];
    all.into_iter().max_by_key(|&ty| weights(ty)).unwrap_or(TensorType::F32)
}

fn report(
    from: &Checkpoint,
    target: &ModelFile,
    out: &Path,
    bytes: u64,
    spec: &HeadSpec,
    plan: &Conversion,
    config: Option<Checked>,
) -> Report {
    let name = |tensor: usize| from.tensors()[tensor].name.clone();
    let converted = plan.tensors.iter().map(|t| {
        let ends = match t.step {
            Step::Expert => vec![t.from[0], t.from[t.from.len() - 1]],
            _ => t.from.clone(),
        };
        Converted {
            name: t.name.clone(),
            r#type: t.ty.name(),
            dims: t.dims.clone(),
            from: ends.into_iter().map(name).collect(),
            parts: t.from.len(),
            step: match t.step {
                Step::Matrix => "copied",
                Step::Floats => "as F32",
                Step::Gamma => "one added, as F32",
                Step::Half(_) => "columns joined",
                Step::Rows(_) => "rows cut out",
                Step::Expert => "experts stacked",
                Step::Experts => "experts copied",
                Step::ExpertRows(_) => "rows cut out of every expert",
                Step::Heads(_) => "rows of heads paired",
                Step::Drop(_) => "left out",
            },
        }
    });
    Report {
        source: from.name(),
        files: from.files().map(|p| p.display().to_string()).collect(),
        target: target.name(),
        out: out.display().to_string(),
        bytes,
        architecture: spec.config.arch.name(),
        block: spec.block(),
        tensors: converted.collect(),
        dropped: plan.dropped.iter().map(|&(tensor, reason)| Dropped { name: name(tensor), reason }).collect(),
        taken: from.tensors().len(),
        ignored: from.others(),
        config: config.map(|checked| checked.agree),
    }
}

/// For people.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}: block {} of {}, {} bytes", report.out, report.block, report.architecture, report.bytes);
    for t in &report.tensors {
        let from = if t.parts > 2 { t.from.join(" to ") } else { t.from.join(" and ") };
        let _ = writeln!(out, "  {:<44} {:<5} {:<24} {from}, {}", t.name, t.r#type, format!("{:?}", t.dims), t.step);
    }
    for dropped in &report.dropped {
        let _ = writeln!(out, "  left out: {}: {}", dropped.name, dropped.reason);
    }
    let _ = writeln!(
        out,
        "{} tensors of the checkpoint's head made {}; {} others in its files were not needed",
        report.taken,
        report.tensors.len(),
        report.ignored
    );
    let _ = match &report.config {
        Some(agree) if agree.is_empty() => {
            writeln!(out, "its config.json says nothing that could be compared: that it is of this model is not known")
        }
        Some(agree) => writeln!(out, "its config.json agrees with the model: {}", agree.join(", ")),
        None => writeln!(out, "there is no config.json beside it: that it is of this model is not known"),
    };
    out
}

impl From<engine_io::checkpoint::CheckpointError> for PackError {
    fn from(error: engine_io::checkpoint::CheckpointError) -> Self {
        match error {
            engine_io::checkpoint::CheckpointError::File(error) => Self::Input(error),
            other => Self::Refused(chain(&other)),
        }
    }
}
