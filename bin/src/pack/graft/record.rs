//! The provenance record of a grafted set.

use std::path::Path;

use engine::model::graft::{Bytes, GraftPlan, Half, NewTensor};
use engine::model::{Config, schema};
use engine_io::ModelFile;
use engine_io::compat::{Action, Dialect, RULES, block_of};
use engine_io::digest::{Sha256, TensorTree};
use engine_io::gguf::keys;
use engine_io::package::tokenizer_digest;
use engine_io::provenance::{
    Container, Declares, FileEntry, Invariants, KvChange, Op, Provenance, Role, RuleAction, Schema, Source, Step,
    TensorOrigin, TensorRule, Tool, ToolKind, Transform,
};
use serde_json::{Map, Value, json};

use super::GraftFlags;
use super::check::{Digests, Sources};
use super::write::{Done, Set};
use crate::pack::convert_head::Report;
use crate::pack::error::PackError;

/// Writes down what was done.
///
/// # Errors
/// [`PackError`]: the header of a source cannot be read again.
pub fn record(
    flags: &GraftFlags,
    sources: &Sources<'_>,
    set: &Set<'_>,
    done: &Done,
    digests: &Digests,
    written: &ModelFile,
) -> Result<Provenance, PackError> {
    let Sources { target, head, plan } = sources;
    let of_target = |name: &str| target.tensor(name).is_some();
    let target_tree = tree(written, digests, of_target).map(|t| t.0);
    let tokenizer = tokenizer_digest(target.meta());
    let mut of_target_source = source("target", Role::Target, target)?;
    of_target_source.tensor_tree_sha256 = target_tree;
    let mut outputs = Vec::with_capacity(done.shards.len());
    for (i, (shard, digest)) in done.shards.iter().zip(&digests.files).enumerate() {
        let mut output = FileEntry { path: shard.name.clone(), byte_size: shard.bytes, sha256: *digest };
        // A linked file is the source's own: what is known of one is known of the other.
        if shard.action.is_linked() {
            let source = &mut of_target_source.files[i];
            if let (Some(published), Some(found)) = (source.sha256, digest)
                && published != *found
            {
                return Err(PackError::Refused(format!(
                    "{}: has the digest {found}, its publisher's name for it says {published}; download it again",
                    shard.source
                )));
            }
            output.sha256 = digest.or(source.sha256);
            source.sha256 = output.sha256;
        }
        outputs.push(output);
    }
    let config = Config::read(written.meta())?;
    Ok(Provenance {
        schema: Schema::V1,
        sources: vec![of_target_source, source("mtp-head", Role::MtpHead, head)?],
        tools: vec![Tool {
            id: "engine-pack".into(),
            kind: ToolKind::Composer,
            name: "engine-pack graft".into(),
            repo: None,
            revision: env!("CARGO_PKG_VERSION").into(),
            version: Some(env!("CARGO_PKG_VERSION").into()),
            abi: None,
        }],
        steps: vec![Step {
            id: "graft".into(),
            tool: "engine-pack".into(),
            op: Op::Compose,
            inputs: vec!["target".into(), "mtp-head".into()],
            params: Some(params(flags, sources, done, digests, &config)),
            kv_changes: set
                .edits()
                .iter()
                .map(|e| KvChange {
                    key: e.key.clone(),
                    ty: Some(e.to.value_type().name().into()),
                    from: e.from.as_ref().map(|v| v.to_json()),
                    to: e.to.to_json(),
                })
                .collect(),
            tensor_rules: rules(sources),
            outputs,
        }],
        tensor_origins: origins(sources, written, digests),
        runtime_components: Vec::new(),
        invariants: Invariants {
            target_tensors_byte_identical: true,
            target_tensor_tree_sha256: target_tree,
            tokenizer_sha256: tokenizer,
            mtp_block_indices: vec![plan.block as u64],
        },
        generation_recipe: None,
    })
}

/// Says that the head was made of a checkpoint: its files are the source, and their conversion is the first step.
///
/// # Errors
/// [`PackError`]: a file of the checkpoint cannot be read again.
pub fn from_checkpoint(record: &mut Provenance, converted: &Report) -> Result<(), PackError> {
    let mut tree = String::new();
    let mut files = Vec::with_capacity(converted.files.len());
    for path in &converted.files {
        let (sha256, byte_size) = Sha256::of_file(Path::new(path), |_| {})?;
        tree.push_str(&format!("{sha256}\n"));
        let path = Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.push(FileEntry { path, byte_size, sha256: Some(sha256) });
    }
    let published = converted.files.first().and_then(|path| Published::of(Path::new(path)));
    let (repo, revision) = match published {
        Some(Published { repo, revision }) => (repo, revision),
        None => (converted.source.clone(), Sha256::of(tree.as_bytes()).to_string()),
    };
    let head = record.sources.iter_mut().find(|s| s.role == Role::MtpHead).expect("a graft has a head");
    let id = head.id.clone();
    *head = Source { repo, revision, container: Some(Container::Safetensors), declares: None, files, ..head.clone() };
    let rules = converted.tensors.iter().map(|t| TensorRule {
        pattern: t.from.join(" .. "),
        action: RuleAction::Convert,
        to: Some(t.name.clone()),
        from_type: None,
        to_type: Some(t.r#type.to_owned()),
        reason: Some(t.step.to_owned()),
        count: t.parts as u64,
    });
    let dropped = converted.dropped.iter().map(|d| TensorRule {
        pattern: d.name.clone(),
        action: RuleAction::Drop,
        to: None,
        from_type: None,
        to_type: None,
        reason: Some(d.reason.to_owned()),
        count: 1,
    });
    let step = Step {
        id: "convert-head".into(),
        tool: record.tools[0].id.clone(),
        op: Op::Convert,
        inputs: vec![id.clone()],
        params: None,
        kv_changes: Vec::new(),
        tensor_rules: rules.chain(dropped).collect(),
        outputs: Vec::new(),
    };
    for input in record.steps.iter_mut().flat_map(|s| &mut s.inputs).filter(|input| **input == id) {
        *input = step.id.clone();
    }
    record.steps.insert(0, step);
    for origin in record.tensor_origins.iter_mut().filter(|o| o.source == id) {
        origin.transform = Transform::Converted;
    }
    Ok(())
}

/// What the schema has no field for.
fn params(
    flags: &GraftFlags,
    sources: &Sources<'_>,
    done: &Done,
    digests: &Digests,
    config: &Config,
) -> Map<String, Value> {
    let plan = sources.plan;
    let tensors = plan.tensors.iter().map(|t| {
        let digest = digests.tensors.get(&t.info.name).map(ToString::to_string);
        let part = t.from.half().map(Half::name);
        json!({"name": t.info.name, "from": t.from.names(), "part": part, "sha256": digest})
    });
    let links = done.shards.iter().map(|s| json!({"file": s.name, "action": s.action}));
    let pairs = [
        ("schema", json!(schema::id(config))),
        ("schema_sha256", json!(schema::digest(config))),
        ("head_dialect", json!(plan.dialect.name())),
        ("dialect", json!(plan.names.name())),
        ("rewrite_all", json!(flags.rewrite_all)),
        ("tensors", tensors.collect()),
        ("shards", links.collect()),
    ];
    let mut map: Map<String, Value> = pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
    if config.qwen4exp.is_some() {
        map.insert("mtp_hidden_norm".into(), json!("stream"));
    }
    map
}

/// Rules of the table that were used, drops apart by their reasons.
fn rules(sources: &Sources<'_>) -> Vec<TensorRule> {
    let plan = sources.plan;
    let numbered = |name: &str| name.replacen("blk.B.", "blk.*.", 1);
    let mut out = Vec::new();
    // Under other names the table's rules do not say what was written: each tensor says it for itself.
    let canonical = plan.names == Dialect::Canonical;
    if !canonical {
        out.extend(moved(plan));
    }
    for used in plan.rules.iter().filter(|_| canonical) {
        let rule = &RULES[used.rule];
        let (action, to) = match rule.action {
            // Drops are listed below, each with its reason; those of this action may be among them.
            Action::Drop(_) | Action::Refuse(_) => continue,
            Action::Same => (RuleAction::Keep, None),
            Action::Rename => (RuleAction::Rename, Some(rule.canonical)),
            Action::Half => (RuleAction::Convert, Some(rule.canonical)),
        };
        let to = to.map(|name| format!("blk.{}.{}", plan.block, name.trim_start_matches("blk.B.")));
        let (pattern, count) = (numbered(rule.found), used.count as u64);
        let reason = (action == RuleAction::Convert).then(|| "rows of two halves are joined".to_owned());
        out.push(TensorRule { pattern, action, to, from_type: None, to_type: None, reason, count });
    }
    let drop = |pattern: &str, reason: &str, count: u64| TensorRule {
        pattern: pattern.to_owned(),
        action: RuleAction::Drop,
        to: None,
        from_type: None,
        to_type: None,
        reason: Some(reason.to_owned()),
        count,
    };
    out.extend(plan.dropped.iter().map(|d| drop(&d.name, &d.reason, 1)));
    if plan.of_donor > 0 {
        out.push(drop("*", "of the trunk that the head was published in", plan.of_donor as u64));
    }
    out
}

/// What became of every tensor of the head that was used.
fn moved(plan: &GraftPlan) -> Vec<TensorRule> {
    let rule = |pattern: &str, action, to: Option<String>, reason: Option<&str>| TensorRule {
        pattern: pattern.to_owned(),
        action,
        to,
        from_type: None,
        to_type: None,
        reason: reason.map(str::to_owned),
        count: 1,
    };
    let mut out = Vec::new();
    for t in &plan.tensors {
        let to = Some(t.info.name.clone());
        match &t.from {
            Bytes::Of(name) if *name == t.info.name => out.push(rule(name, RuleAction::Keep, None, None)),
            Bytes::Of(name) => out.push(rule(name, RuleAction::Rename, to, None)),
            Bytes::Rows(a, b) => {
                let reason = Some("rows of two halves are joined");
                out.extend([a, b].map(|name| rule(name, RuleAction::Convert, to.clone(), reason)));
            }
            // One tensor, and so one rule, for both halves.
            Bytes::Columns(_, Half::Hidden) => {}
            Bytes::Columns(name, Half::Embedding) => {
                let of = |t: &&NewTensor| matches!(&t.from, Bytes::Columns(whole, _) if whole == name);
                let both: Vec<&str> = plan.tensors.iter().filter(of).map(|t| t.info.name.as_str()).collect();
                out.push(rule(name, RuleAction::Convert, Some(both.join(" and ")), Some("rows are taken apart")));
            }
        }
    }
    out
}

/// A block, or a tensor outside all blocks, at a time: patterns that take no tensor twice.
fn origins(sources: &Sources<'_>, written: &ModelFile, digests: &Digests) -> Vec<TensorOrigin> {
    let mut patterns: Vec<String> = Vec::new();
    for t in written.tensors() {
        let pattern = block_of(&t.name).map_or_else(|| t.name.clone(), |(block, _)| format!("blk.{block}.*"));
        if !patterns.contains(&pattern) {
            patterns.push(pattern);
        }
    }
    let origin = |pattern: String| {
        let takes = |name: &str| engine_io::provenance::matches(&pattern, name);
        let tensors = || written.tensors().iter().filter(|t| takes(&t.name));
        let of_head = tensors().any(|t| sources.target.tensor(&t.name).is_none());
        let joined = |t: &&NewTensor| !matches!(t.from, Bytes::Of(_));
        let transform = match of_head {
            false => Transform::Verbatim,
            true if sources.plan.tensors.iter().any(|t| joined(&t)) => Transform::Converted,
            true => Transform::Renamed,
        };
        TensorOrigin {
            source: if of_head { "mtp-head" } else { "target" }.into(),
            transform,
            count: tensors().count() as u64,
            bytes: Some(tensors().map(|t| t.bytes).sum()),
            tensor_tree_sha256: tree(written, digests, takes).map(|t| t.0),
            pattern,
        }
    };
    patterns.into_iter().map(origin).collect()
}

/// Tree digest of some tensors, if all of them were read, and how many they are.
fn tree(model: &ModelFile, digests: &Digests, takes: impl Fn(&str) -> bool) -> Option<(Sha256, usize)> {
    let mut tree = TensorTree::default();
    for t in model.tensors().iter().filter(|t| takes(&t.name)) {
        tree.push(&t.name, t, *digests.tensors.get(&t.name)?);
    }
    Some((tree.digest(), tree.len()))
}

fn source(id: &str, role: Role, model: &ModelFile) -> Result<Source, PackError> {
    let first = &model.shards()[0];
    let meta = model.meta();
    let arch = meta.architecture()?;
    let number = |key: &str| meta.get_u64(&keys::arch(arch, key)).ok().flatten();
    let published = Published::of(&first.path);
    let files = model.shards().iter().map(|s| FileEntry {
        path: s.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        byte_size: s.bytes.len() as u64,
        sha256: blob(&s.real_path),
    });
    let directory = || first.path.parent().unwrap_or(Path::new("")).display().to_string();
    let (repo, revision) = match published {
        Some(Published { repo, revision }) => (repo, revision),
        // Of the header alone: the payload may be 90 GB.
        None => (directory(), Sha256::of(&first.bytes[..first.data_start as usize]).to_string()),
    };
    Ok(Source {
        id: id.into(),
        role,
        repo,
        revision,
        license: meta.get_str("general.license").ok().flatten().map(str::to_owned),
        container: Some(Container::Gguf),
        quant: None,
        declares: Some(Declares {
            architecture: Some(arch.to_owned()),
            block_count: number(keys::BLOCK_COUNT),
            nextn_predict_layers: number(keys::NEXTN_PREDICT_LAYERS),
            hidden_size: number("embedding_length"),
            vocab_size: meta.get_str_array("tokenizer.ggml.tokens").ok().flatten().map(|t| t.len() as u64),
            tokenizer_sha256: tokenizer_digest(meta),
        }),
        files: files.collect(),
        tensor_tree_sha256: None,
    })
}

/// What the path of a download cache tells: `models--ORG--NAME/snapshots/REVISION/FILE`.
struct Published {
    repo: String,
    revision: String,
}

impl Published {
    fn of(path: &Path) -> Option<Self> {
        let parts: Vec<&str> = path.iter().filter_map(|p| p.to_str()).collect();
        let at = parts.iter().rposition(|p| *p == "snapshots")?;
        let repo = parts.get(at.checked_sub(1)?)?.strip_prefix("models--")?.replacen("--", "/", 1);
        let revision = (*parts.get(at + 1)?).to_owned();
        let is_hash = (40..=64).contains(&revision.len())
            && revision.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        is_hash.then_some(Self { repo, revision })
    }
}

/// The publisher's digest, where a download cache keeps files under it: `blobs/DIGEST`.
fn blob(real: &Path) -> Option<Sha256> {
    let in_blobs = real.parent()?.file_name()? == "blobs";
    in_blobs.then(|| real.file_name()?.to_str()?.parse().ok()).flatten()
}
