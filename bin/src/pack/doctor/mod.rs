//! `doctor`: would it load, and if not, what is wrong with it, and what would help. The loader's own planner answers, so
//! that both cannot disagree; no weight is read.

mod shards;

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use engine::model::config::{Ffn, Mixer};
use engine::model::graft::HeadNames;
use engine::model::load::{LoadOptions, Planned};
use engine::model::preflight::Preflight;
use engine::model::stage::{self, StageChoice};
use engine::model::{Config, ModelError, MtpStatus, graft, schema};
use engine_io::compat::engines::ENGINES;
use engine_io::compat::{self, Dialect};
use engine_io::digest::Sha256;
use engine_io::gguf::{Meta, Value, keys};
use engine_io::provenance::{FILE_NAME, Provenance};
use engine_io::{ModelFile, OpenOptions, plain};
use serde::Serialize;

use super::error;
use super::examine;
use super::share::StageShare;
use crate::report::chain;

pub use shards::{Placement, placements};

/// Flags of the verb.
#[derive(Clone, Debug, Args)]
pub struct DoctorFlags {
    /// A GGUF file, any shard of a split one, a directory that holds one, or a head alone.
    pub model: PathBuf,
    /// A head that might be put behind it.
    #[arg(long)]
    pub head: Option<PathBuf>,
    /// Count it as a fault if the model loads without an MTP block.
    #[arg(long)]
    pub require_mtp: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Container {
    /// A trunk with its MTP block.
    Full,
    /// A trunk.
    TrunkOnly,
    /// An MTP block with table and LM head of its own.
    HeadOnly,
    /// An MTP block that borrows its target's.
    SharedHead,
    /// One stage of a split model.
    Stage,
    /// Nothing that could be told.
    Unknown,
}

/// Everything that was found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// As given.
    pub file: String,
    /// It can be served, or used as a head.
    pub loads: bool,
    /// `yes`, `no: why`, or `alone` for a head.
    pub mtp: String,
    /// What is wrong, in the words of whoever refuses.
    pub faults: Vec<String>,
    /// What it holds.
    pub container: Container,
    /// Names of its head.
    pub dialect: Option<&'static str>,
    /// The stage of a split model that it is.
    pub stage: Option<StageShare>,
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// The loader's list of tensors.
    pub schema: Option<SchemaId>,
    /// Hyperparameters, those that follow from others marked.
    pub hyperparameters: Vec<Fact>,
    /// Arrays of the architecture.
    pub arrays: Vec<ArrayLength>,
    /// Tensors that are asked for and absent.
    pub missing: Vec<String>,
    /// Tensors of another shape than asked for.
    pub wrong_shape: Vec<String>,
    /// Tensors that nobody asks for.
    pub unknown: Vec<String>,
    /// What would help.
    pub proposals: Vec<String>,
    /// What is odd.
    pub warnings: Vec<String>,
    /// What may look odd, and is as it should be.
    pub notes: Vec<String>,
    /// Where its files are.
    pub shards: Vec<Placement>,
    /// The record beside it.
    pub provenance: Option<Record>,
    /// Which other engines read its head.
    pub engines: Vec<Reads>,
    /// Whether the head that was asked for fits.
    pub head: Option<Fits>,
    /// An MTP block was asked for.
    pub require_mtp: bool,
}

/// A list of tensors.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SchemaId {
    /// Name and version.
    pub id: String,
    /// Of its lines for these hyperparameters.
    pub sha256: Sha256,
}

/// A hyperparameter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Fact {
    /// What.
    pub name: &'static str,
    /// How much.
    pub value: usize,
    /// It follows from others.
    pub derived: bool,
}

/// An array of the architecture.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ArrayLength {
    /// Its full name.
    pub key: String,
    /// Entries.
    pub len: usize,
    /// Its entries are of blocks.
    pub per_block: bool,
    /// Its length is what its name calls for.
    pub fits: bool,
}

/// The record beside a model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Record {
    /// Where.
    pub path: String,
    /// The list of tensors that it was made for is today's.
    pub current: bool,
    /// What it says of that list, or why it cannot be read.
    pub says: String,
}

/// Whether another engine reads the head.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Reads {
    /// Which.
    pub engine: &'static str,
    /// Why not; null if it does.
    pub refusal: Option<String>,
}

/// Whether a head fits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Fits {
    /// The head.
    pub file: String,
    /// Why not, all reasons; empty if it does.
    pub reasons: Vec<String>,
}

/// Looks at everything that can be looked at.
pub fn doctor(flags: &DoctorFlags) -> Report {
    let mut report = Report {
        file: flags.model.display().to_string(),
        loads: false,
        mtp: "no: the file cannot be read".into(),
        faults: Vec::new(),
        container: Container::Unknown,
        dialect: None,
        stage: None,
        architecture: None,
        schema: None,
        hyperparameters: Vec::new(),
        arrays: Vec::new(),
        missing: Vec::new(),
        wrong_shape: Vec::new(),
        unknown: Vec::new(),
        proposals: Vec::new(),
        warnings: Vec::new(),
        notes: Vec::new(),
        shards: placements(&flags.model),
        provenance: None,
        engines: Vec::new(),
        head: None,
        require_mtp: flags.require_mtp,
    };
    match ModelFile::open(&flags.model, OpenOptions::default()) {
        Err(error) => report.faults.push(chain(&error)),
        Ok(file) => {
            examine(&file, &mut report);
            report.head = flags.head.as_ref().map(|head| fits(&file, head));
        }
    }
    report
}

/// The code of a report.
pub fn code(report: &Report) -> u8 {
    let no_mtp = report.require_mtp && report.mtp != "yes";
    let no_head = report.head.as_ref().is_some_and(|head| !head.reasons.is_empty());
    if report.loads && report.faults.is_empty() && !no_mtp && !no_head { 0 } else { error::REFUSED }
}

fn examine(file: &ModelFile, report: &mut Report) {
    report.shards = file.shards().iter().map(|s| shards::placement(&s.path)).collect();
    report.notes.extend(file.notes().iter().cloned());
    report.architecture = file.meta().architecture().ok().map(str::to_owned);
    let config = match Config::read(file.meta()) {
        Ok(config) => config,
        Err(error) => {
            report.mtp = "no: the metadata are refused".into();
            report.faults.push(chain(&error));
            return;
        }
    };
    report.schema = Some(SchemaId { id: schema::id(&config), sha256: schema::digest(&config) });
    report.hyperparameters = facts(&config);
    report.arrays = arrays(file.meta(), &config);
    report.warnings.extend(warnings(file, &config));
    report.provenance = record(file, &config);
    match examine::record_issues(file) {
        Ok(issues) => {
            report.faults.extend(issues.iter().map(|issue| format!("its provenance does not fit it: {issue}")))
        }
        Err(error) => report.faults.push(chain(&error)),
    }

    let held = match stage::held(file) {
        Ok(held) => held,
        Err(error) => {
            report.mtp = "no: the metadata are refused".into();
            report.faults.push(chain(&error));
            return;
        }
    };
    // The file of a stage is asked whether it would be loaded as that stage.
    let choice = held.as_ref().map(|held| StageChoice { index: held.index, count: held.count, split: None });
    let options = LoadOptions { stage: choice, ..LoadOptions::default() };
    let names = if held.is_none() { graft::names_of(file, &config) } else { Ok(None) };
    let planned = match Planned::new(file, None, options) {
        Err(ModelError::Sidecar { .. }) => {
            let has = |name: &str| file.tensor(name).is_some();
            let own = has("token_embd.weight");
            report.container = if own { Container::HeadOnly } else { Container::SharedHead };
            report.mtp = "alone".into();
            Planned::sidecar(file, options)
        }
        other => other,
    };
    let alone = report.mtp == "alone";
    match &planned {
        Err(error) => {
            if let ModelError::Preflight { report: found, .. } = error {
                preflight(file, found, report);
            }
            if !alone {
                report.mtp = "no: the model is refused".into();
            }
            report.faults.push(chain(error));
        }
        Ok(planned) => {
            report.loads = true;
            report.unknown = planned.plan.unexpected.clone();
            let (renamed, dropped) = (planned.renamed(), planned.dropped());
            report.proposals.extend(renamed.iter().map(|line| format!("read {line}; graft writes it so")));
            report.proposals.extend(dropped.iter().map(|line| format!("left out {line}")));
            if !alone {
                (report.container, report.mtp) = match &planned.plan.mtp {
                    MtpStatus::Unavailable(reason) => (Container::TrunkOnly, format!("no: {reason}")),
                    MtpStatus::Own | MtpStatus::Sidecar => (Container::Full, "yes".into()),
                };
            }
        }
    }
    if let Some(held) = held {
        report.container = Container::Stage;
        report.stage = Some(StageShare::of(&held, &config));
    }
    match names {
        Err(reason) => report.warnings.push(format!("its head: {reason}")),
        Ok(None) => {}
        Ok(Some(names)) => {
            report.dialect = Some(names.dialect.name());
            report.engines = engines(file, &config, &names, alone);
        }
    }
}

/// What the loader's planner complains of, apart, and names that would help.
fn preflight(file: &ModelFile, found: &Preflight, report: &mut Report) {
    report.missing = found.missing.clone();
    let line =
        |w: &engine::model::preflight::WrongShape| format!("{}: {:?}, expected {:?}", w.name, w.found, w.expected);
    report.wrong_shape = found.wrong_shape.iter().map(line).collect();
    report.unknown = found.unexpected.clone();
    for missing in &found.missing {
        for other in compat::other_names(missing).filter(|name| file.tensor(name).is_some()) {
            report.proposals.push(format!("{other} would become {missing}: run engine-pack graft"));
        }
    }
}

fn facts(config: &Config) -> Vec<Fact> {
    let mut out = Vec::new();
    let mut fact = |name, value, derived| out.push(Fact { name, value, derived });
    fact("blocks of the trunk", config.trunk, false);
    fact("NextN blocks", config.nextn, false);
    fact("embedding_length", config.d_model, false);
    fact("context_length", config.context_train, false);
    fact("attention.key_length", config.head_dim, false);
    if let Some(tokens) = config.tokens {
        fact("tokens", tokens.len, false);
    }
    if let Some(block) = config.blocks.iter().rev().find(|b| b.mixer == Mixer::Attention) {
        fact("attention.head_count", block.heads, false);
        fact("attention.head_count_kv", block.kv_heads, false);
        fact("width of queries", block.heads * config.head_dim, true);
        fact("width of keys", block.kv_heads * config.head_dim, true);
    }
    match config.blocks.iter().map(|b| b.ffn).rfind(|f| *f != Ffn::None) {
        Some(Ffn::Dense { width, .. }) => fact("feed_forward_length", width, false),
        Some(Ffn::Experts(experts)) => {
            fact("expert_count", experts.router.experts, false);
            fact("expert_used_count", experts.router.used, false);
            fact("expert_feed_forward_length", experts.width, false);
            fact("expert_shared_feed_forward_length", experts.shared_width, false);
        }
        Some(Ffn::None) | None => {}
    }
    if let Some(rope) = &config.rope {
        fact("rope.dimension_count", rope.n_rot, false);
    }
    if let Some(own) = &config.qwen4exp {
        fact("hyper_connection.count", own.streams, false);
        fact("hyper_connection.low_rank", own.low_rank, false);
        fact("width of all streams", own.streams * config.d_model, true);
    }
    out
}

fn arrays(meta: &Meta, config: &Config) -> Vec<ArrayLength> {
    let prefix = keys::arch(config.arch.name(), "");
    let lengths = meta.iter().filter_map(|(key, value)| match value {
        Value::Array(array) => Some((key, key.strip_prefix(&prefix)?, array.len())),
        _ => None,
    });
    let fits = |len| len == config.trunk || len == config.blocks.len();
    let row = |(key, name, len): (&str, &str, usize)| {
        let per_block = graft::is_per_block(name);
        ArrayLength { key: key.to_owned(), len, per_block, fits: !per_block || fits(len) }
    };
    lengths.map(row).collect()
}

/// Tensors that few bits ruin: what spreads over the streams, and what mixes them.
fn is_fragile(name: &str) -> bool {
    let part = name.strip_prefix("blk.").and_then(|rest| Some(rest.split_once('.')?.1)).unwrap_or(name);
    ["hc_attn_", "hc_ffn_", "output_hc_", "nextn.hc_head_", "ple_conv1d"].iter().any(|start| part.starts_with(start))
}

fn warnings(file: &ModelFile, config: &Config) -> Vec<String> {
    let mut out = Vec::new();
    for t in file.tensors().iter().filter(|t| is_fragile(&t.name)) {
        if t.ty.block_bytes() < t.ty.block_len() {
            out.push(format!("{} is {}: with fewer than 8 bits a weight the model ignores its prompt", t.name, t.ty));
        }
    }
    let base = keys::arch(config.arch.name(), "rope.freq_base");
    if config.rope.is_some() && file.meta().get(&base).is_none() {
        out.push(format!("{base} is absent: 10000 is used, which few models were made with"));
    }
    if config.qwen4exp.is_some() && config.nextn > 0 {
        out.push(
            "the hidden norm of the MTP block is taken stream by stream (--mtp-hidden-norm row for the other form)"
                .into(),
        );
    }
    out
}

fn record(file: &ModelFile, config: &Config) -> Option<Record> {
    let path = file.shards()[0].path.with_file_name(FILE_NAME);
    if !plain::is_there(&path) {
        return None;
    }
    let at = path.display().to_string();
    let record = match Provenance::read(&path) {
        Ok(record) => record,
        Err(error) => return Some(Record { path: at, current: false, says: chain(&error) }),
    };
    let (id, digest) = (schema::id(config), schema::digest(config).to_string());
    let recorded = record.steps.iter().rev().find_map(|step| {
        let text = |key: &str| step.params.as_ref()?.get(key)?.as_str().map(str::to_owned);
        Some((text("schema")?, text("schema_sha256")?))
    });
    Some(match recorded {
        None => Record { path: at, current: false, says: "names no list of tensors".into() },
        Some(found) if found == (id.clone(), digest.clone()) => Record { path: at, current: true, says: id },
        Some((found, sha256)) => {
            let says =
                format!("made for {found} ({sha256}), today's is {id} ({digest}): graft again if it does not load");
            Record { path: at, current: false, says }
        }
    })
}

fn engines(file: &ModelFile, config: &Config, head: &HeadNames, alone: bool) -> Vec<Reads> {
    let rows = ENGINES.iter().filter(|e| e.is_for(config.arch.name()));
    let names: Vec<&str> = file.tensors().iter().map(|t| t.name.as_str()).collect();
    rows.map(|e| Reads { engine: e.name, refusal: e.refusal(head.dialect, alone, &names, &head.lacks) }).collect()
}

fn fits(target: &ModelFile, head: &std::path::Path) -> Fits {
    let planned = super::graft::open_head(head).map_err(|error| vec![chain(&error)]).and_then(|file| {
        let reasons = |error: graft::GraftError| error.0.iter().map(ToString::to_string).collect();
        graft::plan(target, &file, Dialect::Canonical).map_err(reasons)
    });
    Fits { file: head.display().to_string(), reasons: planned.err().unwrap_or_default() }
}

/// For people.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<14}{value}");
    };
    line("file", report.file.clone());
    line("loads", if report.loads { "yes" } else { "no" }.into());
    line("MTP", report.mtp.clone());
    let holds = match report.container {
        Container::Full => "a model with its MTP block",
        Container::TrunkOnly => "a model without an MTP block that can be used",
        Container::HeadOnly => "an MTP block with a table of its own",
        Container::SharedHead => "an MTP block that borrows its target's table",
        Container::Stage => "one stage of a split model",
        Container::Unknown => "nothing that could be told",
    };
    line("holds", holds.into());
    if let Some(stage) = &report.stage {
        let how = match stage.count {
            2 => format!("serve it with engine-serve --stage {}/2", stage.index),
            _ => "engine-serve runs two stages at most".to_owned(),
        };
        line("stage", format!("{stage}; {how}"));
    }
    for (name, value) in [("architecture", report.architecture.as_deref()), ("head's names", report.dialect)] {
        if let Some(value) = value {
            line(name, value.into());
        }
    }
    if let Some(SchemaId { id, sha256 }) = &report.schema {
        line("schema", format!("{id} {sha256}"));
    }
    for Fact { name, value, derived } in &report.hyperparameters {
        line(if *derived { "follows" } else { "number" }, format!("{name} {value}"));
    }
    for a in &report.arrays {
        let kind = if a.per_block { "of blocks" } else { "of its own" };
        let fits = if a.fits { "" } else { ": neither the trunk's blocks nor all" };
        line("array", format!("{} has {} entries, {kind}{fits}", a.key, a.len));
    }
    for (name, list) in [
        ("fault", &report.faults),
        ("missing", &report.missing),
        ("wrong shape", &report.wrong_shape),
        ("unread", &report.unknown),
        ("proposal", &report.proposals),
        ("warning", &report.warnings),
        ("note", &report.notes),
    ] {
        list.iter().for_each(|value| line(name, value.clone()));
    }
    for s in &report.shards {
        let link = s.link.as_ref().map_or(String::new(), |to| format!(" -> {to}"));
        let state = match (s.fault, s.bytes, s.names) {
            (Some(fault), ..) => fault.to_owned(),
            (None, Some(bytes), Some(names)) if names > 1 => format!("{bytes} bytes, a file of {names} names"),
            (None, bytes, _) => format!("{} bytes", bytes.unwrap_or(0)),
        };
        line("shard", format!("{}{link}: {state}", s.path));
    }
    if let Some(Record { path, current, says }) = &report.provenance {
        line("record", format!("{path}: {}{says}", if *current { "made for today's " } else { "" }));
    }
    for Reads { engine, refusal } in &report.engines {
        line(
            "engine",
            format!("{engine}: {}", refusal.as_ref().map_or("reads it".into(), |why| format!("does not: {why}"))),
        );
    }
    if let Some(Fits { file, reasons }) = &report.head {
        match reasons.is_empty() {
            true => line("head", format!("{file}: fits; run engine-pack graft")),
            false => reasons.iter().for_each(|reason| line("head", format!("does not fit: {reason}"))),
        }
    }
    out
}
