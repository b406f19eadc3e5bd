//! Which files are MTP sidecars, and which sidecar belongs to which model.

use engine_io::ModelFile;
use engine_io::compat::{self, block_of};
use engine_io::gguf::{LayerCounts, keys};
use engine_kernels::ops::moe::Groups;

use super::config::{Arch, Config, ExpertsConfig, Ffn, Mixer, Qwen4ExpConfig};
use super::error::ModelError;
use super::plan::FileView;

fn is_sidecar(file: FileView<'_>) -> bool {
    let nextn = format!("blk.{}.nextn.eh_proj.weight", file.config.trunk);
    let head = file.tensors.has(&nextn) || file.refused.is_some();
    file.config.nextn > 0 && head && !file.tensors.names().any(|n| n.starts_with("blk.0."))
}

/// Whether everything that a file has of blocks is of one block: what a head has under any number, and no model that
/// announces one.
pub fn has_one_block(file: &ModelFile) -> bool {
    let mut blocks = file.tensors().iter().filter_map(|t| Some(block_of(&t.name)?.0));
    let first = blocks.next();
    first.is_some() && blocks.all(|block| Some(block) == first)
}

/// Whether a tensor of a sidecar is part of its head. One that no rule reads is an error there: what was trained with it
/// drafts otherwise without it, and nobody would see.
pub fn is_of_head(name: &str) -> bool {
    block_of(name).is_some() || compat::is_top_level_head(name)
}

/// A sidecar is no model.
///
/// # Errors
/// [`ModelError::Sidecar`].
pub fn refuse(model: FileView<'_>) -> Result<(), ModelError> {
    if !is_sidecar(model) {
        return Ok(());
    }
    Err(ModelError::Sidecar { file: model.path.to_owned(), arch: model.config.arch.name(), block: model.config.trunk })
}

/// The hyperparameters of a draft file. That it announces one block is asked first: with more, what its lists over the
/// blocks say is read of the wrong ones.
///
/// # Errors
/// [`ModelError::NotASidecar`], and those of [`Config::read`].
pub fn config(draft: &ModelFile) -> Result<Config, ModelError> {
    let meta = draft.meta();
    let arch = Arch::ALL.into_iter().find(|a| a.has_mtp() && meta.architecture().is_ok_and(|found| found == a.name()));
    if let Some(arch) = arch {
        let nextn = LayerCounts::read(meta, arch.name())?.nextn as usize;
        if nextn > 1 {
            return Err(ModelError::NotASidecar { file: draft.name(), reason: blocks(arch, nextn) });
        }
    }
    Config::read(meta)
}

/// Words on a number of NextN blocks that is not one.
fn blocks(arch: Arch, found: usize) -> String {
    format!("its {} is {found}, expected 1", keys::arch(arch.name(), keys::NEXTN_PREDICT_LAYERS))
}

/// A sidecar must be one NextN block and nothing else.
///
/// # Errors
/// [`ModelError::NotASidecar`].
pub fn require(draft: FileView<'_>) -> Result<(), ModelError> {
    let not = |reason: String| Err(ModelError::NotASidecar { file: draft.path.to_owned(), reason });
    if draft.config.nextn != 1 {
        return not(blocks(draft.config.arch, draft.config.nextn));
    }
    if let Some(reason) = draft.refused {
        return not(reason.to_owned());
    }
    if !is_sidecar(draft) {
        let block = draft.config.trunk;
        return not(format!("expected the tensors of blk.{block} alone, blk.{block}.nextn.eh_proj.weight with them"));
    }
    Ok(())
}

/// A sidecar's block must be of a model with the target's shape and vocabulary.
///
/// # Errors
/// [`ModelError::NotASidecar`], [`ModelError::Mismatch`].
pub fn check(model: FileView<'_>, draft: FileView<'_>) -> Result<(), ModelError> {
    require(draft)?;
    match differences(model.config, draft.config).next() {
        None => Ok(()),
        Some((what, draft_has, target)) => {
            let (file, what) = (draft.path.to_owned(), what.to_owned());
            Err(ModelError::Mismatch { file, what, draft: draft_has, target })
        }
    }
}

/// In what two models differ that a block and its target must share: what, the block's value, the target's.
pub fn differences(target: &Config, block: &Config) -> impl Iterator<Item = (&'static str, String, String)> {
    let pairs = numbers(block).into_iter().zip(numbers(target));
    pairs.filter(|((_, here), (_, there))| here != there).map(|((what, here), (_, there))| (what, here, there))
}

/// A number as messages write it.
fn text(number: Option<impl ToString>) -> String {
    number.map_or_else(|| String::from("none"), |n| n.to_string())
}

/// What a sidecar's block must share with its target, by the keys where there are some; in one order for all models.
fn numbers(c: &Config) -> Vec<(&'static str, String)> {
    let attention = c.blocks.iter().rev().find(|b| b.mixer == Mixer::Attention);
    let rope = c.rope.as_ref();
    let mut all = vec![
        ("general.architecture", c.arch.name().to_owned()),
        ("embedding_length", c.d_model.to_string()),
        ("trunk length", c.trunk.to_string()),
        ("attention.key_length", c.head_dim.to_string()),
        ("attention.head_count", text(attention.map(|b| b.heads))),
        ("attention.head_count_kv", text(attention.map(|b| b.kv_heads))),
        ("attention.scale", c.attention_scale.to_string()),
        ("rope.dimension_count", text(rope.map(|r| r.n_rot))),
        ("rope.dimension_sections", text(rope.and_then(|r| r.sections).map(|s| format!("{s:?}")))),
        ("rope.freq_base", text(rope.map(|r| r.freq_base))),
        ("1 / rope.scaling.factor", text(rope.map(|r| r.position_scale))),
        ("need of rope_freqs.weight", text(rope.map(|r| r.needs_factors))),
        ("layer_norm_rms_epsilon", c.norm_eps.to_string()),
        ("layer_norm_epsilon", text(c.layer_norm_eps)),
        ("number of tokens", text(c.tokens.map(|list| list.len))),
        ("hash of the token list", text(c.tokens.map(|list| format!("{:016x}", list.hash)))),
    ];
    // Blocks of the target may be a mixer alone.
    let ffn = c.blocks.iter().map(|b| b.ffn).rfind(|f| *f != Ffn::None).unwrap_or(Ffn::None);
    all.extend(ffn_numbers(ffn));
    let own = c.qwen4exp.as_ref();
    let number = |of: fn(&Qwen4ExpConfig) -> usize| text(own.map(of));
    all.extend([
        ("hyper_connection.count", number(|own| own.streams)),
        ("hyper_connection.low_rank", number(|own| own.low_rank)),
        ("attention.indexer.head_count", number(|own| own.indexer.heads)),
        ("attention.indexer.key_length", number(|own| own.indexer.dim)),
        ("attention.indexer.top_k", number(|own| own.indexer.budget)),
    ]);
    all
}

/// The numbers of an FFN that a sidecar's block must share with the trunk.
fn ffn_numbers(ffn: Ffn) -> [(&'static str, String); 10] {
    let (dense, experts) = match ffn {
        Ffn::None => (None, None),
        Ffn::Dense { width, .. } => (Some(width), None),
        Ffn::Experts(experts) => (None, Some(experts)),
    };
    let number = |of: fn(ExpertsConfig) -> usize| text(experts.map(of));
    let groups = |of: fn(Groups) -> usize| text(experts.and_then(|e| e.router.groups).map(of));
    [
        ("feed_forward_length", text(dense)),
        ("expert_count", number(|e| e.router.experts)),
        ("expert_used_count", number(|e| e.router.used)),
        ("expert_feed_forward_length", number(|e| e.width)),
        ("expert_shared_feed_forward_length", number(|e| e.shared_width)),
        ("moe_latent_size", text(experts.and_then(|e| e.latent))),
        ("expert_group_count", groups(|g| g.count)),
        ("expert_group_used_count", groups(|g| g.used)),
        ("expert_weights_scale", text(experts.map(|e| e.router.scale))),
        ("expert_weights_norm", text(experts.map(|e| e.router.norm_floor.is_some()))),
    ]
}
