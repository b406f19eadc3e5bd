//! `package`: a model cut into the artifacts of a layer package, byte for byte, with a manifest that says how to draft
//! and where everything comes from.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use engine::model::load::{LoadOptions, Planned};
use engine::model::{ModelError, MtpStatus};
use engine_io::digest::{Digested, Sha256, Tee, TensorTree};
use engine_io::gguf::write::Layout;
use engine_io::gguf::{Meta, TensorInfo, keys};
use engine_io::package::manifest::{FORMAT, Layer, SCHEMA_VERSION, Shared, SourceFile, SourceModel};
use engine_io::package::{self, Artifact, MANIFEST, Manifest, Role};
use engine_io::provenance::{FileEntry, Provenance};
use engine_io::{ModelFile, OpenOptions, compat};
use serde::Serialize;

use super::output::Output;
use super::progress::Progress;
use super::record::{self, Cut};
use super::share::counted;
use super::{PackError, recipe::Recipe};
use crate::memory::human;
use crate::serve::start::name_of;

/// What a manifest and the slack of a file system may take.
const ROOM: u64 = 1 << 20;

/// Flags of the verb.
#[derive(Clone, Debug, Args)]
pub struct PackageFlags {
    /// A GGUF file, any shard of a split one, or a directory that holds one, with or without an MTP block.
    #[arg(long, value_name = "MODEL")]
    pub model: PathBuf,
    /// The package: a folder that does not exist yet.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// A result of schema slipstream-bench/1: of the arms that draft and whose output is that of off, the fastest becomes
    /// the default, also where off is faster; that is said then.
    #[arg(long, value_name = "RESULT.json")]
    pub from_bench: Option<PathBuf>,
    /// Coordinate of the package, such as org/repo:quant [default: local/NAME:TYPE]
    #[arg(long, value_name = "ID")]
    pub model_id: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What was written.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The folder.
    pub out: String,
    /// Its coordinate.
    pub model_id: String,
    /// Blocks, the MTP block among them.
    pub layer_count: u32,
    /// The MTP block.
    pub mtp_block: Option<u32>,
    /// Files beside the manifest.
    pub artifacts: usize,
    /// Tensors in them.
    pub tensors: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// Strategies that may be asked for.
    pub strategies: Vec<&'static str>,
    /// What is used where nobody asks.
    pub default: &'static str,
    /// Why.
    pub reason: String,
    /// It was measured that every strategy loses against off.
    pub off_is_fastest: bool,
    /// Names all tensors.
    pub tensor_tree_sha256: Sha256,
    /// Of the manifest.
    pub manifest_sha256: Sha256,
}

/// A model that is to be cut.
struct Subject {
    file: ModelFile,
    layers: u32,
    head: Option<u32>,
    d_model: usize,
}

/// Cuts a model into a package.
///
/// # Errors
/// [`PackError`].
pub fn package(flags: &PackageFlags) -> Result<Report, PackError> {
    let subject = open(&flags.model)?;
    let recipe = match &flags.from_bench {
        Some(path) => Recipe::of_bench(path, subject.head.is_some())?,
        None => Recipe::built_in(subject.head.is_some()),
    };
    let model_id = match &flags.model_id {
        Some(id) => id.clone(),
        None => local_id(&subject.file),
    };
    let carried = record::beside(&subject.file)?;
    let layouts = layouts(&subject)?;
    let bytes: u64 = layouts.values().map(|(layout, _)| layout.file_bytes()).sum();
    let output = Output::directory(&flags.out, bytes + ROOM)?;
    let done = Progress::bytes("packaging", subject.file.file_bytes() + bytes, flags.json);
    let files = source_files(&subject.file, &done)?;
    let (artifacts, cut) = write(&subject, layouts, &output, &done)?;
    // What was read must be what was planned.
    subject.file.check_unchanged()?;
    let tree = cut.tree();
    if let Some(measured) = recipe.measured.filter(|measured| *measured != tree) {
        return Err(PackError::Refused(format!(
            "{}: measured a model whose tensors are {measured}, these are {tree}; measure this model",
            flags.from_bench.as_deref().unwrap_or(Path::new("")).display()
        )));
    }
    let generation = recipe.generation(subject.head);
    let provenance = record::of_package(carried, &subject.file, &files, &cut, &artifacts, &generation, &recipe)?;
    let primary = &files[0];
    let manifest = Manifest {
        schema_version: SCHEMA_VERSION,
        model_id: model_id.clone(),
        source_model: SourceModel {
            path: primary.path.clone(),
            sha256: primary.sha256.clone(),
            files: files.clone(),
            primary_file: Some(primary.path.clone()),
            ..SourceModel::default()
        },
        format: FORMAT.to_owned(),
        layer_count: subject.layers,
        activation_width: i64::try_from(subject.d_model).ok(),
        shared: Shared {
            metadata: artifacts.get(&Role::Metadata).cloned(),
            embeddings: artifacts.get(&Role::Embeddings).cloned(),
            output: artifacts.get(&Role::Output).cloned(),
            ..Shared::default()
        },
        layers: (0..subject.layers)
            .filter_map(|layer_index| {
                let artifact = artifacts.get(&Role::Layer(layer_index))?.clone();
                Some(Layer { layer_index, artifact })
            })
            .collect(),
        generation: Some(generation),
        provenance: Some(provenance_json(&provenance)),
        skippy_abi_version: concat!("slipstream-", env!("CARGO_PKG_VERSION")).to_owned(),
        created_at_unix_secs: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        ..Manifest::default()
    };
    if let Some(issue) = package::check::manifest(&manifest).first() {
        return Err(PackError::Refused(issue.to_string()));
    }
    let mut text = serde_json::to_string_pretty(&manifest).expect("a manifest holds strings and numbers");
    text.push('\n');
    let path = output.path().join(MANIFEST);
    fs::write(&path, &text).map_err(PackError::output(&path, "write"))?;
    let written = ModelFile::open(output.path(), OpenOptions::default())
        .map_err(|e| PackError::Unverified(format!("what was written does not open: {e}")))?;
    let tensors = written.tensors().len();
    drop(written);
    output.finish()?;
    Ok(Report {
        out: flags.out.display().to_string(),
        model_id,
        layer_count: subject.layers,
        mtp_block: subject.head,
        artifacts: artifacts.len(),
        tensors,
        bytes,
        strategies: recipe.strategies.iter().map(|settings| settings.strategy.name()).collect(),
        default: recipe.default.name(),
        reason: recipe.reason,
        off_is_fastest: recipe.off_is_fastest,
        tensor_tree_sha256: tree,
        manifest_sha256: Sha256::of(text.as_bytes()),
    })
}

fn provenance_json(provenance: &Provenance) -> serde_json::Value {
    serde_json::to_value(provenance).expect("a record holds strings and numbers")
}

/// Opens a model and asks whether it can be run, and whether it has an MTP block.
fn open(path: &Path) -> Result<Subject, PackError> {
    let refused = |what: String| Err(PackError::Refused(format!("{}: {what}", path.display())));
    if package::folder(path).is_some() {
        return refused("is a layer package already; give the model that it was cut from".to_owned());
    }
    let file = ModelFile::open(path, OpenOptions::default())?;
    let planned = match Planned::new(&file, None, LoadOptions::default()) {
        Err(ModelError::Sidecar { .. }) => {
            return refused(
                "is an MTP sidecar, and a package holds a model; graft it onto its model first (engine-pack graft \
                 --target MODEL --head SIDECAR --out DIR), then package the result"
                    .to_owned(),
            );
        }
        planned => planned?,
    };
    let config = &planned.config;
    let is_head = |t: &&TensorInfo| t.name.contains(".nextn.") || compat::is_top_level_head(&t.name);
    let head = match &planned.plan.mtp {
        MtpStatus::Own | MtpStatus::Sidecar => Some(config.trunk as u32),
        MtpStatus::Unavailable(reason) if config.nextn > 0 => {
            return refused(format!("says that it has an MTP block, which cannot be used: {reason}"));
        }
        MtpStatus::Unavailable(_) => match file.tensors().iter().find(is_head) {
            Some(t) if config.arch.has_mtp() => {
                let key = keys::arch(config.arch.name(), keys::NEXTN_PREDICT_LAYERS);
                return refused(format!("has the tensor {} of an MTP block and no key {key}; graft it again", t.name));
            }
            _ => None,
        },
    };
    let (layers, d_model) = (config.blocks.len() as u32, config.d_model);
    Ok(Subject { file, layers, head, d_model })
}

/// `local/NAME:TYPE`.
fn local_id(file: &ModelFile) -> String {
    let word = |text: &str| -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
        text.chars().map(plain).collect()
    };
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for t in file.tensors() {
        *bytes.entry(t.ty.name()).or_default() += t.bytes;
    }
    let main = bytes.iter().max_by_key(|(_, bytes)| **bytes).map_or("none", |(name, _)| *name);
    let name = name_of(file);
    let name = name.strip_suffix(main).map_or(name.as_str(), |rest| rest.trim_end_matches(['-', '.', '_']));
    let name = if name.is_empty() { "model" } else { name.trim_start_matches('.') };
    format!("local/{}:{main}", word(name))
}

/// Where an artifact is written.
fn path_of(role: Role) -> String {
    match role {
        Role::Layer(index) => format!("layers/layer-{index:05}.gguf"),
        other => format!("shared/{}.gguf", other.name()),
    }
}

/// Every artifact with the tensors that go into it. A tensor goes into exactly one.
fn layouts(subject: &Subject) -> Result<BTreeMap<Role, (Layout, Vec<&TensorInfo>)>, PackError> {
    let mut out = BTreeMap::new();
    let shared = [Role::Metadata, Role::Embeddings, Role::Output];
    for role in shared.into_iter().chain((0..subject.layers).map(Role::Layer)) {
        let layout = Layout::new(meta_of(role, subject.file.meta()))?;
        out.insert(role, (layout, Vec::new()));
    }
    for t in subject.file.tensors() {
        let (layout, tensors) = out.get_mut(&package::home(&t.name, subject.head)).ok_or_else(|| {
            PackError::Refused(format!(
                "{}: tensor {} is of no block: the model has {} blocks",
                subject.file.name(),
                t.name,
                subject.layers
            ))
        })?;
        layout.tensor(&t.name, t.dims(), t.ty)?;
        tensors.push(t);
    }
    Ok(out)
}

/// Keys of an artifact: all of them, but for those of a split, in the one for metadata; in the others what a reader of
/// that file alone must know.
fn meta_of(role: Role, source: &Meta) -> Meta {
    let mut meta = Meta::new(&path_of(role));
    let wanted = |key: &str| match role {
        Role::Metadata => !package::is_split_key(key),
        _ => key == keys::ARCHITECTURE || key == keys::ALIGNMENT,
    };
    for (key, value) in source.iter().filter(|(key, _)| wanted(key)) {
        meta.set(key, value.clone());
    }
    meta
}

/// The files that are cut, with their digests.
fn source_files(file: &ModelFile, done: &Progress) -> Result<Vec<SourceFile>, PackError> {
    let entry = |shard: &engine_io::shards::Shard| {
        let (sha256, size_bytes) = Sha256::of_file(&shard.path, |n| done.add(n))?;
        let path = shard.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(SourceFile { path, size_bytes, sha256: sha256.to_string() })
    };
    file.shards().iter().map(entry).collect()
}

/// Streams every tensor into its artifact, and says what each of both is.
fn write(
    subject: &Subject,
    layouts: BTreeMap<Role, (Layout, Vec<&TensorInfo>)>,
    output: &Output,
    done: &Progress,
) -> Result<(BTreeMap<Role, Artifact>, Cut), PackError> {
    for folder in ["shared", "layers"] {
        let folder = output.path().join(folder);
        fs::create_dir(&folder).map_err(PackError::output(&folder, "create"))?;
    }
    let (mut artifacts, mut cut) = (BTreeMap::new(), Cut::default());
    for (role, (layout, tensors)) in layouts {
        let path = path_of(role);
        let place = output.path().join(&path);
        let failed = PackError::writing(&place);
        let mut writer = layout.start(Tee::new(output.writer(&path)?)).map_err(&failed)?;
        let mut tensor_bytes = 0;
        for t in &tensors {
            let mut reader = Digested::new(done.reader(subject.file.reader(t)));
            writer.tensor(&mut reader).map_err(&failed)?;
            cut.push(t, reader.digest());
            tensor_bytes += t.bytes;
        }
        let (file, sha256, artifact_bytes) = writer.finish().map_err(&failed)?.finish();
        file.into_inner().map(drop).map_err(|e| PackError::output(&place, "write")(e.into_error()))?;
        let tensor_count = tensors.len() as u64;
        let sha256 = sha256.to_string();
        let unread = Default::default();
        artifacts.insert(role, Artifact { path, tensor_count, tensor_bytes, artifact_bytes, sha256, unread });
    }
    Ok((artifacts, cut))
}

/// For people.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<14}{value}");
    };
    line("package", report.out.clone());
    line("model id", report.model_id.clone());
    line(
        "blocks",
        match report.mtp_block {
            Some(block) => counted(block, true),
            None => counted(report.layer_count, false),
        },
    );
    let size = human(report.bytes as usize);
    line("files", format!("{MANIFEST} and {} GGUF files with {} tensors, {size}", report.artifacts, report.tensors));
    line("strategies", report.strategies.join(", "));
    line("default", format!("{}: {}", report.default, report.reason));
    if report.off_is_fastest {
        let out = &report.out;
        line(
            "note",
            format!(
                "drafting lost time where it was measured; without it: engine-serve --model {out} --spec-strategy off"
            ),
        );
    }
    line("sha256", format!("{} of all tensors", report.tensor_tree_sha256));
    line("", format!("{} of {MANIFEST}", report.manifest_sha256));
    out
}

/// Entries of a record for artifacts, in the order of the manifest.
pub(super) fn entries(artifacts: &BTreeMap<Role, Artifact>) -> Vec<FileEntry> {
    let entry = |artifact: &Artifact| FileEntry {
        path: artifact.path.clone(),
        byte_size: artifact.artifact_bytes,
        sha256: artifact.sha256.parse().ok(),
    };
    artifacts.values().map(entry).collect()
}

/// A tree of tensors and their digests.
pub(super) fn tree_of<'a>(tensors: impl IntoIterator<Item = &'a (TensorInfo, Sha256)>) -> Sha256 {
    let mut tree = TensorTree::default();
    tensors.into_iter().for_each(|(t, digest)| tree.push(&t.name, t, *digest));
    tree.digest()
}
