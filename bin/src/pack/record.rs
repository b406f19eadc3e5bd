//! The provenance that a package carries: that of its source, if it has one, with the step that cut it.

use std::collections::BTreeMap;

use engine_io::ModelFile;
use engine_io::digest::Sha256;
use engine_io::gguf::{Meta, TensorInfo};
use engine_io::package::manifest::{Artifact, Generation, Role, SourceFile};
use engine_io::provenance::{
    ComponentKind, Container, Declares, FILE_NAME, FileEntry, GenerationRecipe, Invariants, KvChange, Op, Provenance,
    Role as SourceRole, RuntimeComponent, Schema, Source, Step, TensorOrigin, Tool, ToolKind, Transform, canonical,
    matches,
};
use engine_io::{package, plain};

use super::PackError;
use super::package::{entries, tree_of};
use super::recipe::Recipe;

/// Every tensor that was read, with its digest.
#[derive(Clone, Debug, Default)]
pub struct Cut(Vec<(TensorInfo, Sha256)>);

impl Cut {
    /// One more.
    pub fn push(&mut self, t: &TensorInfo, digest: Sha256) {
        self.0.push((t.clone(), digest));
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &(TensorInfo, Sha256)> {
        self.0.iter()
    }

    /// Names all of them.
    pub fn tree(&self) -> Sha256 {
        tree_of(&self.0)
    }

    /// Names those whose names fit; how many they are, and their bytes.
    pub fn tree_where(&self, fits: impl Fn(&str) -> bool) -> (Sha256, u64, u64) {
        let some: Vec<_> = self.0.iter().filter(|(t, _)| fits(&t.name)).collect();
        (tree_of(some.iter().copied()), some.len() as u64, some.iter().map(|(t, _)| t.bytes).sum())
    }
}

/// The record beside a model, if there is one; it must speak of this model's tensors.
///
/// # Errors
/// A record that cannot be read, or is of another model.
pub fn beside(file: &ModelFile) -> Result<Option<Provenance>, PackError> {
    let path = file.shards()[0].path.with_file_name(FILE_NAME);
    if !plain::is_there(&path) {
        return Ok(None);
    }
    let record = Provenance::read(&path)?;
    let faults = record.check_tensors(file.tensors().iter().map(|t| t.name.as_str()));
    if !faults.is_empty() {
        return Err(PackError::Refused(format!(
            "{}: is not of this model: {faults}; move it away, or package the model that it belongs to",
            path.display()
        )));
    }
    Ok(Some(record))
}

/// The record of a package.
///
/// # Errors
/// A carried record that names other bytes than those that were read.
pub fn of_package(
    carried: Option<Provenance>,
    file: &ModelFile,
    files: &[SourceFile],
    cut: &Cut,
    artifacts: &BTreeMap<Role, Artifact>,
    generation: &Generation,
    recipe: &Recipe,
) -> Result<Provenance, PackError> {
    let mut record = carried.unwrap_or_else(|| fresh(file, files));
    complete(&mut record, cut)?;
    let taken = |record: &Provenance, id: &str| {
        let ids = record.sources.iter().map(|s| &s.id).chain(record.tools.iter().map(|t| &t.id));
        ids.chain(record.steps.iter().map(|s| &s.id))
            .chain(record.runtime_components.iter().map(|c| &c.id))
            .any(|known| known == id)
    };
    let free = |record: &Provenance, base: &str| {
        let number = |n: usize| if n == 1 { base.to_owned() } else { format!("{base}-{n}") };
        (1..).map(number).find(|id| !taken(record, id)).expect("endless")
    };
    let tool = Tool {
        id: free(&record, "package-writer"),
        kind: ToolKind::PackageWriter,
        name: "slipstream engine-pack package".to_owned(),
        repo: None,
        revision: revision(),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        abi: None,
    };
    // The last step made what was cut; without any, the sources are it.
    let inputs = match record.steps.last() {
        Some(step) => vec![step.id.clone()],
        None => record.sources.iter().map(|source| source.id.clone()).collect(),
    };
    let step = Step {
        id: free(&record, "package"),
        tool: tool.id.clone(),
        op: Op::Package,
        inputs,
        params: None,
        kv_changes: split_keys(file.meta()),
        tensor_rules: Vec::new(),
        outputs: entries(artifacts),
    };
    record.tools.push(tool);
    record.steps.push(step);
    for (id, behaviour) in [("suffix-proposer", "ngram-suffix/1"), ("window-verifier", "target-verified-window/1")] {
        let kind = if behaviour.starts_with("ngram") { ComponentKind::Proposer } else { ComponentKind::Verifier };
        let component = RuntimeComponent {
            id: free(&record, id),
            kind,
            behaviour: behaviour.to_owned(),
            repo: None,
            revision: revision(),
            change: None,
            conformance_sha256: None,
        };
        record.runtime_components.push(component);
    }
    record.generation_recipe = Some(GenerationRecipe {
        speculative_decoding_sha256: generation_digest(generation),
        default: recipe.default.name().to_owned(),
        reason: Some(recipe.reason.clone()),
        evidence: recipe.evidence.iter().cloned().collect(),
    });
    let faults = record.check();
    if !faults.is_empty() {
        return Err(PackError::Refused(format!("{FILE_NAME}: {faults}; graft the model again")));
    }
    Ok(record)
}

/// Revision of this program, as far as the build knows it.
fn revision() -> String {
    option_env!("SLIPSTREAM_COMMIT").unwrap_or(concat!("v", env!("CARGO_PKG_VERSION"))).to_owned()
}

/// Digest of the `generation` block as canonical JSON.
pub fn generation_digest(generation: &Generation) -> Sha256 {
    let value = serde_json::to_value(generation).expect("a block holds strings and numbers");
    Sha256::of(canonical(&value).as_bytes())
}

/// Keys that described how the source was split.
fn split_keys(meta: &Meta) -> Vec<KvChange> {
    let removed = meta.iter().filter(|(key, _)| package::is_split_key(key));
    removed
        .map(|(key, value)| KvChange {
            key: key.to_owned(),
            ty: Some(value.value_type().name().to_owned()),
            from: Some(value.to_string().into()),
            to: serde_json::Value::Null,
        })
        .collect()
}

/// A record for a model without one: the files are the source.
fn fresh(file: &ModelFile, files: &[SourceFile]) -> Provenance {
    let meta = file.meta();
    let architecture = meta.architecture().ok().map(str::to_owned);
    let number = |suffix: &str| {
        let key = format!("{}.{suffix}", architecture.as_deref()?);
        meta.get_u64(&key).ok().flatten()
    };
    let declares = Declares {
        block_count: number("block_count"),
        nextn_predict_layers: number("nextn_predict_layers"),
        hidden_size: number("embedding_length"),
        vocab_size: meta.get_str_array("tokenizer.ggml.tokens").ok().flatten().map(|tokens| tokens.len() as u64),
        tokenizer_sha256: package::tokenizer_digest(meta),
        architecture: architecture.clone(),
    };
    let head = package::open::head_block(meta);
    let entry =
        |f: &SourceFile| FileEntry { path: f.path.clone(), byte_size: f.size_bytes, sha256: f.sha256.parse().ok() };
    let source = Source {
        id: "target".to_owned(),
        role: SourceRole::Target,
        repo: "local".to_owned(),
        revision: files[0].sha256.clone(),
        license: meta.get_str("general.license").ok().flatten().map(str::to_owned),
        container: Some(Container::Gguf),
        quant: None,
        declares: Some(declares),
        files: files.iter().map(entry).collect(),
        tensor_tree_sha256: None,
    };
    Provenance {
        schema: Schema::V1,
        sources: vec![source],
        tools: Vec::new(),
        steps: Vec::new(),
        tensor_origins: vec![TensorOrigin {
            pattern: "*".to_owned(),
            source: "target".to_owned(),
            transform: Transform::Verbatim,
            count: file.tensors().len() as u64,
            bytes: None,
            tensor_tree_sha256: None,
        }],
        runtime_components: Vec::new(),
        invariants: Invariants {
            target_tensors_byte_identical: true,
            target_tensor_tree_sha256: None,
            tokenizer_sha256: package::tokenizer_digest(meta),
            mtp_block_indices: head.map(u64::from).into_iter().collect(),
        },
        generation_recipe: None,
    }
}

/// Fills in the digests that an earlier tool left out because it did not read the bytes, and holds the others against
/// what was read.
fn complete(record: &mut Provenance, cut: &Cut) -> Result<(), PackError> {
    let settle = |what: &str, there: &mut Option<Sha256>, read: Sha256| match *there {
        Some(stated) if stated != read => Err(PackError::Refused(format!(
            "{FILE_NAME}: the tensors of {what} are {read}, expected {stated}: the model was changed after it was made; \
             make it again"
        ))),
        _ => {
            *there = Some(read);
            Ok(())
        }
    };
    for origin in &mut record.tensor_origins {
        let (tree, _, bytes) = cut.tree_where(|name| matches(&origin.pattern, name));
        settle(&format!("the origin {}", origin.pattern), &mut origin.tensor_tree_sha256, tree)?;
        origin.bytes = Some(bytes);
    }
    if !record.invariants.target_tensors_byte_identical {
        return Ok(());
    }
    let Some(target) = record.sources.iter_mut().find(|source| source.role == SourceRole::Target) else {
        return Ok(());
    };
    let of_target: Vec<&str> = record
        .tensor_origins
        .iter()
        .filter(|origin| origin.source == target.id)
        .map(|origin| origin.pattern.as_str())
        .collect();
    let (tree, ..) = cut.tree_where(|name| of_target.iter().any(|pattern| matches(pattern, name)));
    settle("the target", &mut target.tensor_tree_sha256, tree)?;
    settle("the target", &mut record.invariants.target_tensor_tree_sha256, tree)
}
