//! `inspect`: what a model file holds and what memory it needs, before any of its weights is read.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use engine::exec::ExecOptions;
use engine::limits::Limits;
use engine::memory::{Held, Memory};
use engine::model::config::{Ffn, Mixer};
use engine::model::load::{LoadOptions, Planned, Repack};
use engine::model::stage::StageChoice;
use engine::model::{Config, ModelError, MtpStatus};
use engine_io::ModelFile;
use engine_io::text::Tokenizer;
use serde::Serialize;

use crate::flags::{SidecarFlags, SizeFlags, StageFlags};
use crate::memory::{self, Setting, Subject, human};
use crate::open::ModelSource;
use crate::pack::PackError;
use crate::pack::share::StageShare;
use crate::serve::Bounds;

/// Flags of the verb: those of `engine-serve` that memory depends on, with the same defaults.
#[derive(Clone, Debug, Args)]
pub struct InspectFlags {
    /// A GGUF file, any shard of a split one, a directory that holds one, a layer package, hf:ORG/NAME[:QUANT] of a hub, or
    /// an MTP sidecar alone. Without it the built-in model.
    pub model: Option<PathBuf>,
    /// Whose MTP block drafts.
    #[command(flatten)]
    pub sidecar: SidecarFlags,
    /// What decides how much memory is taken.
    #[command(flatten)]
    pub size: SizeFlags,
    /// Which part of the model.
    #[command(flatten)]
    pub stage: StageFlags,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It can be served.
    Model,
    /// One MTP block that drafts for a model.
    Sidecar,
}

/// Everything that is printed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Path of the first shard, or the folder of a package.
    pub file: String,
    /// What it is.
    pub kind: Kind,
    /// `general.architecture`.
    pub architecture: &'static str,
    /// `general.name`.
    pub name: String,
    /// Weights in all.
    pub parameters: u64,
    /// Tokens that the model was made for.
    pub context_train: usize,
    /// Width of a hidden row.
    pub d_model: usize,
    /// Blocks of the trunk.
    pub trunk: usize,
    /// Blocks of each kind, trunk first.
    pub layers: Vec<Layers>,
    /// The stage that was asked for; `None` for the whole model.
    pub stage: Option<StageShare>,
    /// The MTP block.
    pub head: Head,
    /// Types of all tensors of the file, in the order met.
    pub types: Vec<Type>,
    /// Files of a split model, or the one.
    pub shards: Vec<ShardFile>,
    /// Tokens.
    pub vocabulary: Vocabulary,
    /// Tensors that no operation reads.
    pub unexpected: Vec<String>,
    /// Tensors of the MTP head that are read under another name, a line for each.
    pub renamed: Vec<String>,
    /// Tensors of the MTP head that are left out, a line for each, with the reason.
    pub dropped: Vec<String>,
    /// What was odd but no reason to refuse.
    pub warnings: Vec<String>,
    /// What may look odd, and is as it should be.
    pub notes: Vec<String>,
    /// The file is a layer package.
    pub package: bool,
    /// What memory was planned for.
    pub setting: Planning,
    /// The plan.
    pub memory: Totals,
}

/// Blocks of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Layers {
    /// What they are.
    pub kind: String,
    /// They are behind the trunk.
    pub nextn: bool,
    /// How many.
    pub count: usize,
}

/// Where drafts of the MTP block come from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Head {
    /// `own`, `sidecar`, `none`, or `alone` for a sidecar without its model.
    pub from: &'static str,
    /// Why there is none.
    pub reason: Option<String>,
}

/// Tensors of one type.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Type {
    /// Its name.
    pub name: &'static str,
    /// Tensors.
    pub tensors: usize,
    /// Bytes of them.
    pub bytes: u64,
}

/// One file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ShardFile {
    /// Where.
    pub path: String,
    /// Size.
    pub bytes: usize,
    /// GGUF version.
    pub version: u32,
}

/// Tokens and the way to them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Vocabulary {
    /// Entries of the file's list.
    pub tokens: usize,
    /// Rows of the embedding.
    pub rows: usize,
    /// Pre-tokenizer of a tokenizer that can be used.
    pub pre: Option<&'static str>,
    /// Why it cannot.
    pub unusable: Option<String>,
    /// There is a chat template.
    pub chat_template: bool,
}

/// What memory was planned for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Planning {
    /// Tokens of a request.
    pub ctx_size: usize,
    /// Requests at once.
    pub parallel: usize,
    /// Workers.
    pub threads: usize,
    /// Storage of keys and values.
    pub kv_type: &'static str,
    /// Layout of the matrices.
    pub repack: &'static str,
    /// Files are mapped.
    pub mmap: bool,
}

/// The plan and its sums.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Totals {
    /// Anonymous memory with all slots full: what `--memory-limit` is held against.
    pub memory_bytes: usize,
    /// Mapped files.
    pub file_bytes: usize,
    /// Weights that are read in them.
    pub read_in_place_bytes: usize,
    /// At most beyond that.
    pub bound_bytes: usize,
    /// Rooms and tensors.
    #[serde(flatten)]
    pub plan: Memory,
}

/// Opens, plans and describes; reads no weights.
///
/// # Errors
/// [`PackError`].
pub fn inspect(flags: &InspectFlags) -> Result<Report, PackError> {
    let size = &flags.size;
    size.check().map_err(PackError::Usage)?;
    let open = size.open_options();
    let file = ModelSource::from(flags.model.clone()).open(open).map_err(ModelError::from)?;
    let draft = flags.sidecar.spec_draft_model.as_ref().map(|path| ModelFile::open(path, open)).transpose();
    let draft = draft.map_err(ModelError::from)?;
    describe(size, file, draft, flags.model.is_none(), flags.stage.choice(), Bounds::default())
}

/// Plans and describes files that are open.
///
/// # Errors
/// [`PackError`].
pub(crate) fn describe(
    size: &SizeFlags,
    file: ModelFile,
    draft: Option<ModelFile>,
    built_in: bool,
    stage: Option<StageChoice>,
    bounds: Bounds,
) -> Result<Report, PackError> {
    let open = size.open_options();
    let load = LoadOptions { stage, ..size.load_options() };
    let (kind, planned) = match Planned::new(&file, draft.as_ref(), load) {
        Err(ModelError::Sidecar { .. }) if draft.is_none() => (Kind::Sidecar, Planned::sidecar(&file, load)?),
        planned => (Kind::Model, planned?),
    };
    let tokenizer = Tokenizer::from_meta(file.meta());
    let tokenizer_there = tokenizer.as_ref().ok();
    let subject =
        Subject { file: &file, built_in, draft: draft.as_ref(), planned: &planned, tokenizer: tokenizer_there };
    let limits = size.limits(&planned, file.package());
    let options = size.exec_options();
    let setting =
        Setting { repack: load.repack, limits, options, bounds, record: false, checkpoints: size.ctx_checkpoints };
    let plan = memory::plan(&subject, &setting)?;
    let Setting { limits, .. } = setting;
    let Planned { config, plan: model, .. } = &planned;
    let vocabulary = Vocabulary {
        tokens: config.tokens.map_or(0, |t| t.len),
        rows: model.vocab_rows,
        pre: tokenizer_there.map(|t| t.vocab().pre.name()),
        unusable: tokenizer.as_ref().err().map(ToString::to_string),
        chat_template: tokenizer_there.is_some_and(|t| t.chat_template().is_some()),
    };
    Ok(Report {
        file: file.name(),
        kind,
        architecture: config.arch.name(),
        name: config.name.clone(),
        parameters: file.tensors().iter().map(|t| t.dims().iter().product::<u64>()).sum(),
        context_train: config.context_train,
        d_model: config.d_model,
        trunk: config.trunk,
        layers: layers(config, kind),
        stage: stage.map(|of| StageShare::planned((of.index, of.count), &model.stage, config)),
        head: head(kind, &model.mtp),
        types: types(&file),
        shards: file
            .shards()
            .iter()
            .map(|s| ShardFile {
                path: s.path.display().to_string(),
                bytes: s.bytes.as_ref().len(),
                version: s.version,
            })
            .collect(),
        vocabulary,
        unexpected: model.unexpected.clone(),
        renamed: planned.renamed().to_vec(),
        dropped: planned.dropped().to_vec(),
        warnings: config.warnings.clone(),
        notes: file.notes().to_vec(),
        package: file.package().is_some(),
        setting: planning(&limits, &options, load.repack, open.mmap),
        memory: Totals {
            memory_bytes: plan.peak(),
            file_bytes: plan.sum(Held::File),
            read_in_place_bytes: memory::read_in_place(&plan),
            bound_bytes: plan.sum(Held::Bound),
            plan,
        },
    })
}

fn planning(limits: &Limits, options: &ExecOptions, repack: Repack, mmap: bool) -> Planning {
    Planning {
        ctx_size: limits.context,
        parallel: limits.slots,
        threads: options.threads,
        kv_type: options.kv_type.name(),
        repack: match repack {
            Repack::Auto => "auto",
            Repack::On => "on",
            Repack::Off => "off",
        },
        mmap,
    }
}

/// Blocks by what they are, in the order met. A sidecar has its own alone.
fn layers(config: &Config, kind: Kind) -> Vec<Layers> {
    let mut out: Vec<Layers> = Vec::new();
    for (i, block) in config.blocks.iter().enumerate() {
        let nextn = i >= config.trunk;
        if kind == Kind::Sidecar && !nextn {
            continue;
        }
        let sparse = config.qwen4exp.as_ref().is_some_and(|own| own.ratio.get(i).is_some_and(|&ratio| ratio > 0));
        let mixer = match block.mixer {
            Mixer::Attention if sparse => "block-sparse attention",
            Mixer::Attention => "attention",
            Mixer::Delta => "gated delta net",
            Mixer::Mamba2 => "Mamba2",
            Mixer::None => "",
        };
        let ffn = match block.ffn {
            Ffn::None => String::new(),
            Ffn::Dense { width, .. } => format!("FFN {width}"),
            Ffn::Experts(e) => format!("{} experts of {}, {} used", e.router.experts, e.width, e.router.used),
        };
        let both = if mixer.is_empty() || ffn.is_empty() { "" } else { ", " };
        let kind = format!("{mixer}{both}{ffn}");
        match out.iter_mut().find(|l| l.nextn == nextn && l.kind == kind) {
            Some(known) => known.count += 1,
            None => out.push(Layers { kind, nextn, count: 1 }),
        }
    }
    out
}

fn head(kind: Kind, mtp: &MtpStatus) -> Head {
    let (from, reason) = match mtp {
        _ if kind == Kind::Sidecar => ("alone", None),
        MtpStatus::Own => ("own", None),
        MtpStatus::Sidecar => ("sidecar", None),
        MtpStatus::Unavailable(reason) => ("none", Some(reason.clone())),
    };
    Head { from, reason }
}

fn types(file: &ModelFile) -> Vec<Type> {
    let mut out: Vec<Type> = Vec::new();
    for tensor in file.tensors() {
        let name = tensor.ty.name();
        match out.iter_mut().find(|t| t.name == name) {
            Some(known) => {
                known.tensors += 1;
                known.bytes += tensor.bytes;
            }
            None => out.push(Type { name, tensors: 1, bytes: tensor.bytes }),
        }
    }
    out
}

/// For people.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<14}{value}");
    };
    let kind = match report.kind {
        Kind::Model => "model",
        Kind::Sidecar => "MTP sidecar: give it to engine-serve as --spec-draft-model beside its model",
    };
    line("file", report.file.clone());
    line("kind", kind.to_owned());
    line("architecture", format!("{} ({})", report.architecture, report.name));
    line("parameters", report.parameters.to_string());
    line("context", format!("{} tokens", report.context_train));
    line("hidden row", report.d_model.to_string());
    for layers in &report.layers {
        let name = if layers.nextn { "NextN block" } else { "blocks" };
        line(name, format!("{} x {}", layers.count, layers.kind));
    }
    if let Some(stage) = &report.stage {
        line("stage", stage.to_string());
    }
    let head = match (report.head.from, &report.head.reason) {
        ("own", _) => "the model's own".to_owned(),
        ("sidecar", _) => "the draft model's".to_owned(),
        ("alone", _) => "this file's; table and LM head are its model's, unless counted below".to_owned(),
        (_, reason) => format!("none: {}", reason.as_deref().unwrap_or_default()),
    };
    line("MTP block", head);
    for t in &report.types {
        line("type", format!("{:<8}{:>6} tensors{:>12}", t.name, t.tensors, human(t.bytes as usize)));
    }
    line(
        "files",
        match (report.shards.len(), report.package) {
            (n, true) => format!("{n}, of a layer package"),
            (1, _) => "1, not split".to_owned(),
            (n, _) => format!("{n} shards, all present"),
        },
    );
    let v = &report.vocabulary;
    let template = if v.chat_template { "a chat template" } else { "no chat template" };
    match (v.pre, &v.unusable) {
        (Some(pre), _) => {
            line("tokens", format!("{} of {} rows, byte-level BPE ({pre}), {template}", v.tokens, v.rows))
        }
        (None, reason) => {
            let reason = reason.as_deref().unwrap_or_default();
            line("tokens", format!("{} of {} rows, cannot be used: {reason}", v.tokens, v.rows));
        }
    }
    for name in &report.unexpected {
        line("unread tensor", name.clone());
    }
    for renamed in &report.renamed {
        line("MTP head", renamed.clone());
    }
    for dropped in &report.dropped {
        line("MTP head", format!("left out {dropped}"));
    }
    for warning in &report.warnings {
        line("warning", warning.clone());
    }
    for note in &report.notes {
        line("note", note.clone());
    }
    let Planning { ctx_size, parallel, threads, kv_type, repack, mmap } = report.setting;
    let mapped = if mmap { "" } else { " --no-mmap" };
    let _ = writeln!(
        out,
        "\nmemory with --ctx-size {ctx_size} --parallel {parallel} --threads {threads} --kv-type {kv_type} --repack \
         {repack}{mapped}\n"
    );
    if report.kind == Kind::Sidecar {
        out.push_str("(what it adds to its model)\n");
    }
    out.push_str(&memory::table(&report.memory.plan));
    let _ = writeln!(out, "weights read in the files: {}", human(report.memory.read_in_place_bytes));
    out
}
