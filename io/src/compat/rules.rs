//! The table. The first rule that takes a name is the one that counts.

use super::{Action, Archs, Dialect, Rule, When};

use Action::{Drop, Half, Refuse, Rename, Same};
use Archs::{All, Not, Only};
use Dialect::{
    Assistant, BlockHalves, Canonical, CanonicalAndTrunk, Checkpoint, Deepseek4, SharedNorm, StateDict, TopHalves,
    TopLevel,
};
use When::{Always, MixerNorm, NoOwnMixer, OwnMixer};

const Q: Archs = Only("qwen4exp");
const TARGETS: &str = "the target's own is used";
const CHECKPOINT: &str =
    "a name of a checkpoint, whose values differ; make a GGUF head of it with engine-pack convert-head";
const STATE: &str = "of a saved draft state, which is no model file; use a GGUF head";
const ASSISTANT: &str = "of a draft with an architecture of its own, which is no head of this model; use a GGUF head";
const OTHER_ARCH: &str = "a name of deepseek4, another architecture; use the head of this model";

const fn rule(
    dialect: Dialect,
    archs: Archs,
    when: When,
    found: &'static str,
    canonical: &'static str,
    action: Action,
) -> Rule {
    Rule { dialect, archs, found, canonical, when, action }
}

/// A name that stays.
const fn same(archs: Archs, found: &'static str) -> Rule {
    rule(Canonical, archs, Always, found, found, Same)
}

/// Another name.
const fn alias(dialect: Dialect, archs: Archs, when: When, found: &'static str, canonical: &'static str) -> Rule {
    rule(dialect, archs, when, found, canonical, Rename)
}

const fn half(dialect: Dialect, found: &'static str) -> Rule {
    rule(dialect, All, Always, found, "blk.B.nextn.eh_proj", Half)
}

const fn unneeded(dialect: Dialect, archs: Archs, when: When, found: &'static str, reason: &'static str) -> Rule {
    rule(dialect, archs, when, found, "", Drop(reason))
}

const fn refuse(dialect: Dialect, archs: Archs, found: &'static str, reason: &'static str) -> Rule {
    rule(dialect, archs, Always, found, "", Refuse(reason))
}

/// Every name that is known in a head.
pub const RULES: &[Rule] = &[
    // The ordinary tensors of a block.
    same(All, "blk.B.attn_*"),
    same(All, "blk.B.post_attention_norm*"),
    same(All, "blk.B.ffn_*"),
    same(All, "blk.B.exp_probs_b*"),
    same(Q, "blk.B.hc_attn_*"),
    same(Q, "blk.B.hc_ffn_*"),
    same(Q, "blk.B.indexer.*"),
    // Those of a head.
    same(All, "blk.B.nextn.eh_proj"),
    same(All, "blk.B.nextn.enorm"),
    same(All, "blk.B.nextn.hnorm"),
    same(All, "blk.B.nextn.embed_tokens"),
    same(All, "blk.B.nextn.shared_head_head"),
    same(Not("qwen4exp"), "blk.B.nextn.shared_head_norm"),
    same(Q, "blk.B.nextn.hc_head_norm"),
    same(Q, "blk.B.nextn.hc_head_down"),
    same(Q, "blk.B.nextn.hc_head_up"),
    // Copies of what the target has.
    unneeded(Canonical, All, Always, "token_embd", TARGETS),
    unneeded(Canonical, All, Always, "output", TARGETS),
    unneeded(Canonical, Not("qwen4exp"), Always, "output_norm", TARGETS),
    // A mixer at top level: whose it is depends on whether the head has one of its own.
    unneeded(CanonicalAndTrunk, Q, OwnMixer, "output_hc_norm", "trunk mixer duplicate"),
    unneeded(CanonicalAndTrunk, Q, OwnMixer, "output_hc_down", "trunk mixer duplicate"),
    unneeded(CanonicalAndTrunk, Q, OwnMixer, "output_hc_up", "trunk mixer duplicate"),
    alias(TopLevel, Q, NoOwnMixer, "output_hc_norm", "blk.B.nextn.hc_head_norm"),
    alias(TopLevel, Q, NoOwnMixer, "output_hc_down", "blk.B.nextn.hc_head_down"),
    alias(TopLevel, Q, NoOwnMixer, "output_hc_up", "blk.B.nextn.hc_head_up"),
    alias(SharedNorm, Q, MixerNorm, "blk.B.nextn.shared_head_norm", "blk.B.nextn.hc_head_norm"),
    // The projection in two halves, in the block.
    half(BlockHalves, "blk.B.nextn.fc_embd"),
    half(BlockHalves, "blk.B.nextn.fc_hidden"),
    alias(BlockHalves, Q, Always, "blk.B.nextn.hc_norm", "blk.B.nextn.hc_head_norm"),
    alias(BlockHalves, Q, Always, "blk.B.nextn.hc_down", "blk.B.nextn.hc_head_down"),
    alias(BlockHalves, Q, Always, "blk.B.nextn.hc_up", "blk.B.nextn.hc_head_up"),
    // And at top level.
    half(TopHalves, "mtp.fc_embd"),
    half(TopHalves, "mtp.fc_hidden"),
    alias(TopHalves, All, Always, "mtp.pre_norm_embd", "blk.B.nextn.enorm"),
    alias(TopHalves, All, Always, "mtp.pre_norm_hidden", "blk.B.nextn.hnorm"),
    alias(TopHalves, Q, Always, "mtp.mixer_norm", "blk.B.nextn.hc_head_norm"),
    alias(TopHalves, Q, Always, "mtp.mixer_down", "blk.B.nextn.hc_head_down"),
    alias(TopHalves, Q, Always, "mtp.mixer_up", "blk.B.nextn.hc_head_up"),
    // A checkpoint.
    half(Checkpoint, "mtp.fc_embedding"),
    refuse(Checkpoint, All, "mtp.fc", CHECKPOINT),
    refuse(Checkpoint, All, "mtp.norm", CHECKPOINT),
    refuse(Checkpoint, All, "mtp.pre_fc_norm_embedding", CHECKPOINT),
    refuse(Checkpoint, All, "mtp.pre_fc_norm_hidden", CHECKPOINT),
    refuse(Checkpoint, All, "mtp.hyper_connection_mixer.*", CHECKPOINT),
    refuse(Checkpoint, All, "mtp.layers.*", CHECKPOINT),
    // What is no head of a model that can be run.
    refuse(StateDict, All, "enorm", STATE),
    refuse(StateDict, All, "self_attn.*", STATE),
    refuse(Assistant, All, "nextn.pre_projection", ASSISTANT),
    refuse(Assistant, All, "nextn.post_projection", ASSISTANT),
    refuse(Assistant, All, "mtp_pre_proj", ASSISTANT),
    refuse(Assistant, All, "mtp_post_proj", ASSISTANT),
    refuse(Assistant, All, "mtp.centroids*", ASSISTANT),
    refuse(Assistant, All, "mtp.token_ordering*", ASSISTANT),
    refuse(Deepseek4, All, "output_hc_fn*", OTHER_ARCH),
    refuse(Deepseek4, All, "output_hc_base*", OTHER_ARCH),
    refuse(Deepseek4, All, "output_hc_scale*", OTHER_ARCH),
];
