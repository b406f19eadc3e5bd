//! What a package's model, MTP block and provenance say of each other, once its artifacts are one tensor directory.

use std::fmt;
use std::ops::Range;

use engine::memory::Memory;
use engine::model::load::{LoadOptions, Planned};
use engine::model::stage::StageChoice;
use engine::model::{Config, ModelError, MtpStatus, stage};
use engine_io::package::manifest::{Manifest, Proposer, Speculative, Strategy};
use engine_io::package::stages::Needs;
use engine_io::package::{self, Issue, Package, Role, check};
use engine_io::provenance::{Op, Provenance};
use engine_io::text::Tokenizer;
use engine_io::{ModelFile, compat};
use serde::Serialize;

use super::PackError;
use super::record;
use super::share;
use crate::flags::SizeFlags;
use crate::memory::{self, Setting, Subject, human};
use crate::serve::Bounds;

/// What stages are planned from.
pub struct Facts {
    /// Which tensors each needs.
    pub needs: Needs,
    /// What is run.
    pub planned: Planned,
}

/// What was found.
#[derive(Default)]
pub struct Found {
    /// What is wrong.
    pub issues: Vec<Issue>,
    /// `None` for a model that cannot be planned.
    pub facts: Option<Facts>,
}

impl Found {
    fn add(&mut self, code: &str, path: &str, message: impl Into<String>) {
        self.issues.push(Issue::new(code, path, message));
    }
}

/// Which tensors stages of a model need.
///
/// # Errors
/// Metadata that cannot be read.
pub fn needs(model: &ModelFile) -> Result<Needs, ModelError> {
    Ok(stage::needs(model, &Config::read(model.meta())?))
}

/// Holds the manifest against the model. `drafting`: what it says about drafting makes sense by itself.
pub fn model(model: &ModelFile, package: &Package, drafting: bool) -> Found {
    let manifest = &package.manifest;
    let mut found = Found::default();
    let metadata = manifest.shared.metadata.as_ref().map_or("", |artifact| artifact.path.as_str());
    let config = match Config::read(model.meta()) {
        Ok(config) => config,
        Err(ModelError::File(error @ engine_io::Error::PerLayerLength { .. })) => {
            found.add("per_layer_array_length", metadata, error.to_string());
            return found;
        }
        Err(error) => {
            found.add("invalid_model", metadata, error.to_string());
            return found;
        }
    };
    let needs = stage::needs(model, &config);
    let head = needs.head;
    if needs.head_needs_table() && model.tensor("token_embd.weight").is_none() {
        let message = "the MTP block embeds the token just chosen, and no artifact has token_embd.weight or a table of \
                       its own";
        found.add("mtp_embedding_unavailable_on_final_stage", metadata, message);
        return found;
    }
    let stray = |t: &&engine_io::gguf::TensorInfo| t.name.contains(".nextn.") || compat::is_top_level_head(&t.name);
    if config.arch.has_mtp()
        && config.nextn == 0
        && let Some(t) = model.tensors().iter().find(stray)
    {
        let message = format!("there is the tensor {} of an MTP block, and no key that announces one", t.name);
        found.add("mtp_metadata_inconsistent", metadata, message);
        return found;
    }
    let planned = match Planned::new(model, None, LoadOptions::default()) {
        Ok(planned) => planned,
        Err(error) => {
            found.add("invalid_model", "", error.to_string());
            return found;
        }
    };
    if let (MtpStatus::Unavailable(reason), 1..) = (&planned.plan.mtp, config.nextn) {
        found.add("mtp_metadata_inconsistent", metadata, format!("the announced MTP block cannot be used: {reason}"));
    } else if drafting {
        declared(manifest, head, &mut found);
    }
    provenance(model, manifest, head, drafting, &mut found);
    found.facts = Some(Facts { needs, planned });
    found
}

/// Blocks that proposers of type `native-mtp` name, wherever they are written.
fn named_blocks(speculative: &Speculative) -> Vec<(String, &[u32])> {
    let of = |(name, proposer): (&str, &'_ Proposer)| {
        (proposer.kind == "native-mtp").then(|| format!("generation.speculative_decoding.proposers.{name}"))
    };
    let proposers = speculative.proposers.0.iter().filter_map(|(name, proposer)| {
        Some((of((name, proposer))?, proposer.layer_indices.as_deref().unwrap_or_default()))
    });
    let inline = speculative.strategies.0.iter().filter_map(|(name, strategy): &(String, Strategy)| {
        let indices = strategy.layer_indices.as_deref()?;
        Some((format!("generation.speculative_decoding.strategies.{name}"), indices))
    });
    proposers.chain(inline).collect()
}

/// Whether the manifest offers the MTP block that there is, and no other.
fn declared(manifest: &Manifest, head: Option<u32>, found: &mut Found) {
    const MENU: &str = "generation.speculative_decoding";
    let Some(speculative) = check::speculative(manifest) else {
        if let Some(head) = head {
            found.add(
                "mtp_metadata_inconsistent",
                MENU,
                format!("the model has the MTP block {head}, none is declared"),
            );
        }
        return;
    };
    let named = named_blocks(speculative);
    match head {
        Some(head) if named.is_empty() => {
            let message = format!("the model has the MTP block {head}, no proposer of type native-mtp is declared");
            found.add("mtp_metadata_inconsistent", MENU, message);
        }
        None => {
            for (path, indices) in named {
                let message = format!("declares the MTP blocks {indices:?}, the model has none");
                found.add("mtp_metadata_inconsistent", &path, message);
            }
        }
        Some(_) => {}
    }
}

/// Whether the MTP blocks that proposers name are run by the last stage, which has `last`, and are what the model says.
pub fn reachable(package: &Package, needs: &Needs, last: &Range<u32>) -> Vec<Issue> {
    let (Some(speculative), Some(head)) = (check::speculative(&package.manifest), needs.head) else {
        return Vec::new();
    };
    let mut issues = Vec::new();
    for (path, indices) in named_blocks(speculative) {
        for &index in indices {
            if !last.contains(&index) {
                let own = share::blocks(last.start, last.end, true);
                let message = format!("names block {index}, the last stage has {own}");
                issues.push(Issue::new("mtp_block_unreachable", &path, message));
            } else if index != head {
                let message = format!("names block {index}, the model's MTP block is {head}");
                issues.push(Issue::new("mtp_metadata_inconsistent", &path, message));
            }
        }
    }
    issues
}

/// What a package's record says that its artifacts, its model or itself contradict; empty for what is no package, or has
/// no record.
///
/// # Errors
/// Metadata that cannot be read.
pub fn record_issues(model: &ModelFile) -> Result<Vec<Issue>, ModelError> {
    let mut found = Found::default();
    if let Some(package) = model.package() {
        provenance(model, &package.manifest, needs(model)?.head, true, &mut found);
    }
    Ok(found.issues)
}

/// The record of the package, if there is one, without reading a tensor.
fn provenance(model: &ModelFile, manifest: &Manifest, head: Option<u32>, drafting: bool, found: &mut Found) {
    let Some(value) = &manifest.provenance else { return };
    let record = match serde_json::from_value::<Provenance>(value.clone()) {
        Ok(record) => record,
        Err(error) => return found.add("provenance_invalid", "provenance", error.to_string()),
    };
    let faults = record.check();
    if !faults.is_empty() {
        return found.add("provenance_invalid", "provenance", faults.to_string());
    }
    let faults = record.check_tensors(model.tensors().iter().map(|t| t.name.as_str()));
    if !faults.is_empty() {
        found.add("provenance_coverage_mismatch", "provenance.tensor_origins", faults.to_string());
    }
    if let Some(step) = record.steps.iter().rfind(|step| step.op == Op::Package) {
        // Projectors are added to a package afterwards.
        for (_, artifact) in manifest.artifacts().filter(|(role, _)| *role != Role::Projector) {
            let output = step.outputs.iter().find(|output| output.path == artifact.path);
            let digest = |text: &str| text.parse().ok();
            let fits = output.is_some_and(|output| {
                output.byte_size == artifact.artifact_bytes
                    && (output.sha256.is_none() || output.sha256 == digest(&artifact.sha256))
            });
            if !fits {
                let message = format!("the step {} wrote another file, or none, under this path", step.id);
                found.add("provenance_artifact_mismatch", &artifact.path, message);
            }
        }
    }
    if let (Some(recipe), Some(generation), true) = (&record.generation_recipe, &manifest.generation, drafting) {
        let digest = record::generation_digest(generation);
        let default = check::speculative(manifest).map_or("", |speculative| speculative.default.as_str());
        if digest != recipe.speculative_decoding_sha256 || default != recipe.default {
            let (stated, name) = (recipe.speculative_decoding_sha256, &recipe.default);
            let message = format!("is {digest} with default {default:?}, the recipe says {stated} and {name:?}");
            found.add("provenance_generation_mismatch", "generation", message);
        }
    }
    let blocks: Vec<u64> = head.map(u64::from).into_iter().collect();
    if record.invariants.mtp_block_indices != blocks {
        let message = format!("are {:?}, the model's MTP blocks are {blocks:?}", record.invariants.mtp_block_indices);
        found.add("provenance_mtp_mismatch", "provenance.invariants.mtp_block_indices", message);
    }
    if let (Some(stated), Some(tokens)) = (record.invariants.tokenizer_sha256, package::tokenizer_digest(model.meta()))
        && stated != tokens
    {
        let message = format!("the token list is {tokens}, the record says {stated}");
        found.add("tokenizer_mismatch", "provenance.invariants.tokenizer_sha256", message);
    }
}

/// Memory of one stage's process. Caches and states, and what it has to work with, are together what the process plans at its
/// start, with the bounds of its clients where it has any; of more than two stages, which no program serves yet, what is
/// worked with is that of the whole model, which no stage exceeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct StageMemory {
    /// Weights, as pages of mapped files.
    pub weight_bytes: u64,
    /// Caches, states and logs of its blocks with all slots full.
    pub sequence_bytes: u64,
    /// All else that is not a mapped file: row buffers, scratch memory, tables, tokenizer, clients, stacks.
    pub working_bytes: u64,
}

impl fmt::Display for StageMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [weights, sequences, working] =
            [self.weight_bytes, self.sequence_bytes, self.working_bytes].map(|bytes| human(bytes as usize));
        write!(f, "memory: {sequences} of caches and states, {working} to work with, {weights} of mapped weights")
    }
}

/// Plans the memory of a stage that runs `blocks` and needs `weights` bytes of tensors, one of `count`.
///
/// # Errors
/// Flags that contradict each other, or a stage that cannot be planned.
pub fn memory(
    (facts, model): (&Facts, &ModelFile),
    (blocks, count): (&Range<u32>, u32),
    weights: u64,
    size: &SizeFlags,
    package: &Package,
) -> Result<StageMemory, PackError> {
    let Planned { config, plan, .. } = &facts.planned;
    let whole = size.limits(&facts.planned, Some(package));
    let options = size.exec_options();
    let by_block = Memory::by_block(plan, config, &whole, &options);
    let own = by_block.iter().zip(0..).filter(|(_, block)| blocks.contains(block));
    let sequences: usize = own.map(|(bytes, _)| bytes).sum();
    let stage = (count == 2).then_some(StageChoice {
        index: u32::from(blocks.start > 0),
        count,
        split: Some(if blocks.start > 0 { blocks.start } else { blocks.end }),
    });
    let load = LoadOptions { stage, ..size.load_options() };
    let planned = Planned::new(model, None, load)?;
    let limits = if stage.is_some() { size.limits(&planned, Some(package)) } else { whole };
    let tokenizer = Tokenizer::from_meta(model.meta()).ok();
    let subject =
        Subject { file: model, built_in: false, draft: None, planned: &planned, tokenizer: tokenizer.as_ref() };
    let (bounds, checkpoints) = (Bounds::default(), size.ctx_checkpoints);
    let setting = Setting { repack: load.repack, limits, options, bounds, record: false, checkpoints };
    let process = memory::plan(&subject, &setting)?.peak();
    // Many stages are not planned one by one: each may work with what the whole model has beside all its caches.
    let planned_sequences = if count > 2 { by_block.iter().sum() } else { sequences };
    Ok(StageMemory {
        weight_bytes: weights,
        sequence_bytes: sequences as u64,
        working_bytes: process.saturating_sub(planned_sequences) as u64,
    })
}
