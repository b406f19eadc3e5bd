//! The table: names behind `mtp.`, the canonical tensor, and the step from one to the other.

use Step::{Drop, Expert, ExpertRows, Experts, Floats, Gamma, Half, Heads, Matrix, Rows};

/// How a tensor of a checkpoint becomes one of GGUF, or a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The same values in the same type.
    Matrix,
    /// The same values as F32.
    Floats,
    /// One is added to every value, as F32: the checkpoint holds what is to be added to 1.
    Gamma,
    /// Columns of the embedding (0) or of the hidden row (1), beside the other half.
    Half(usize),
    /// The first (0) or the second (1) of two matrices that stand one above the other.
    Rows(usize),
    /// The matrix of expert E, stacked with the others.
    Expert,
    /// The matrices of all experts.
    Experts,
    /// Of the matrices of all experts the upper (0) or lower (1) half of their rows.
    ExpertRows(usize),
    /// Rows within every head of queries (0) or keys (1) in pairs: i and i + half a head become neighbours.
    Heads(usize),
    /// It is not needed, for this reason.
    Drop(&'static str),
}

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// Architectures that it is for.
    pub archs: &'static [&'static str],
    /// Name behind `mtp.`; `E` stands for the number of an expert, and `.weight` may follow.
    pub found: &'static str,
    /// The tensor that it is of, with `blk.B.`; none where it is dropped.
    pub canonical: &'static str,
    /// What is done with it.
    pub step: Step,
}

impl Source {
    /// Whether it is for an architecture.
    pub fn is_for(&self, arch: &str) -> bool {
        self.archs.contains(&arch)
    }
}

const ANY35: &[&str] = &["qwen35", "qwen35moe", "qwen3next"];
const DENSE: &[&str] = &["qwen35"];
const MOE: &[&str] = &["qwen35moe", "qwen3next", "qwen4exp"];
const Q4: &[&str] = &["qwen4exp"];
const QWEN: &[&str] = &["qwen35", "qwen35moe", "qwen3next", "qwen4exp"];
const NEMOTRON: &[&str] = &["nemotron_h_moe"];

const fn row(archs: &'static [&'static str], found: &'static str, canonical: &'static str, step: Step) -> Source {
    Source { archs, found, canonical, step }
}

/// Every name that is known. Where one stands twice, its tensor is cut into several.
pub const SOURCES: &[Source] = &[
    // Qwen: the frame of the block.
    row(ANY35, "fc", "blk.B.nextn.eh_proj.weight", Matrix),
    row(Q4, "fc_embedding", "blk.B.nextn.eh_proj.weight", Half(0)),
    row(Q4, "fc_hidden", "blk.B.nextn.eh_proj.weight", Half(1)),
    row(QWEN, "pre_fc_norm_embedding", "blk.B.nextn.enorm.weight", Gamma),
    row(QWEN, "pre_fc_norm_hidden", "blk.B.nextn.hnorm.weight", Gamma),
    row(ANY35, "norm", "blk.B.nextn.shared_head_norm.weight", Gamma),
    row(ANY35, "embed_tokens", "blk.B.nextn.embed_tokens.weight", Matrix),
    row(ANY35, "layers.0.input_layernorm", "blk.B.attn_norm.weight", Gamma),
    row(ANY35, "layers.0.post_attention_layernorm", "blk.B.post_attention_norm.weight", Gamma),
    // Its mixers.
    row(Q4, "hyper_connection_mixer.hc_norm", "blk.B.nextn.hc_head_norm.weight", Gamma),
    row(Q4, "hyper_connection_mixer.input_mix_weight_down", "blk.B.nextn.hc_head_down.weight", Matrix),
    row(Q4, "hyper_connection_mixer.input_mix_weight_up", "blk.B.nextn.hc_head_up.weight", Matrix),
    row(Q4, "hyper_connection_mixer.block_inject_weight", "", Drop("the last mixer feeds no block")),
    row(Q4, "layers.0.attn_hyper_connection.hc_norm", "blk.B.hc_attn_norm.weight", Gamma),
    row(Q4, "layers.0.attn_hyper_connection.input_mix_weight_down", "blk.B.hc_attn_down.weight", Matrix),
    row(Q4, "layers.0.attn_hyper_connection.input_mix_weight_up", "blk.B.hc_attn_up.weight", Matrix),
    row(Q4, "layers.0.attn_hyper_connection.block_inject_weight", "blk.B.hc_attn_inject.weight", Floats),
    row(Q4, "layers.0.mlp_hyper_connection.hc_norm", "blk.B.hc_ffn_norm.weight", Gamma),
    row(Q4, "layers.0.mlp_hyper_connection.input_mix_weight_down", "blk.B.hc_ffn_down.weight", Matrix),
    row(Q4, "layers.0.mlp_hyper_connection.input_mix_weight_up", "blk.B.hc_ffn_up.weight", Matrix),
    row(Q4, "layers.0.mlp_hyper_connection.block_inject_weight", "blk.B.hc_ffn_inject.weight", Floats),
    // Its attention.
    row(QWEN, "layers.0.self_attn.q_proj", "blk.B.attn_q.weight", Matrix),
    row(QWEN, "layers.0.self_attn.k_proj", "blk.B.attn_k.weight", Matrix),
    row(QWEN, "layers.0.self_attn.v_proj", "blk.B.attn_v.weight", Matrix),
    row(QWEN, "layers.0.self_attn.o_proj", "blk.B.attn_output.weight", Matrix),
    row(QWEN, "layers.0.self_attn.q_norm", "blk.B.attn_q_norm.weight", Gamma),
    row(QWEN, "layers.0.self_attn.k_norm", "blk.B.attn_k_norm.weight", Gamma),
    row(Q4, "layers.0.self_attn.indexer.index_qk_proj", "blk.B.indexer.q_proj.weight", Rows(0)),
    row(Q4, "layers.0.self_attn.indexer.index_qk_proj", "blk.B.indexer.k_proj.weight", Rows(1)),
    row(Q4, "layers.0.self_attn.indexer.q_layernorm", "blk.B.indexer.q_norm.weight", Gamma),
    row(Q4, "layers.0.self_attn.indexer.k_layernorm", "blk.B.indexer.k_norm.weight", Gamma),
    // Its FFN.
    row(DENSE, "layers.0.mlp.gate_proj", "blk.B.ffn_gate.weight", Matrix),
    row(DENSE, "layers.0.mlp.up_proj", "blk.B.ffn_up.weight", Matrix),
    row(DENSE, "layers.0.mlp.down_proj", "blk.B.ffn_down.weight", Matrix),
    row(MOE, "layers.0.mlp.gate", "blk.B.ffn_gate_inp.weight", Floats),
    row(MOE, "layers.0.mlp.experts.E.gate_proj", "blk.B.ffn_gate_exps.weight", Expert),
    row(MOE, "layers.0.mlp.experts.E.up_proj", "blk.B.ffn_up_exps.weight", Expert),
    row(MOE, "layers.0.mlp.experts.E.down_proj", "blk.B.ffn_down_exps.weight", Expert),
    row(MOE, "layers.0.mlp.experts.gate_up_proj", "blk.B.ffn_gate_exps.weight", ExpertRows(0)),
    row(MOE, "layers.0.mlp.experts.gate_up_proj", "blk.B.ffn_up_exps.weight", ExpertRows(1)),
    row(MOE, "layers.0.mlp.experts.down_proj", "blk.B.ffn_down_exps.weight", Experts),
    row(MOE, "layers.0.mlp.shared_expert_gate", "blk.B.ffn_gate_inp_shexp.weight", Floats),
    row(MOE, "layers.0.mlp.shared_expert.gate_proj", "blk.B.ffn_gate_shexp.weight", Matrix),
    row(MOE, "layers.0.mlp.shared_expert.up_proj", "blk.B.ffn_up_shexp.weight", Matrix),
    row(MOE, "layers.0.mlp.shared_expert.down_proj", "blk.B.ffn_down_shexp.weight", Matrix),
    // Nemotron: two layers of the checkpoint make one block; its norms hold the factor itself.
    row(NEMOTRON, "layers.0.enorm", "blk.B.nextn.enorm.weight", Floats),
    row(NEMOTRON, "layers.0.hnorm", "blk.B.nextn.hnorm.weight", Floats),
    row(NEMOTRON, "layers.0.eh_proj", "blk.B.nextn.eh_proj.weight", Matrix),
    row(NEMOTRON, "layers.0.norm", "blk.B.attn_norm.weight", Floats),
    row(NEMOTRON, "layers.0.mixer.q_proj", "blk.B.attn_q.weight", Heads(0)),
    row(NEMOTRON, "layers.0.mixer.k_proj", "blk.B.attn_k.weight", Heads(1)),
    row(NEMOTRON, "layers.0.mixer.v_proj", "blk.B.attn_v.weight", Matrix),
    row(NEMOTRON, "layers.0.mixer.o_proj", "blk.B.attn_output.weight", Matrix),
    row(NEMOTRON, "layers.1.norm", "blk.B.post_attention_norm.weight", Floats),
    row(NEMOTRON, "layers.1.mixer.gate", "blk.B.ffn_gate_inp.weight", Floats),
    row(NEMOTRON, "layers.1.mixer.gate.e_score_correction_bias", "blk.B.exp_probs_b.bias", Floats),
    row(NEMOTRON, "layers.1.mixer.fc1_latent_proj", "blk.B.ffn_latent_down.weight", Matrix),
    row(NEMOTRON, "layers.1.mixer.fc2_latent_proj", "blk.B.ffn_latent_up.weight", Matrix),
    row(NEMOTRON, "layers.1.mixer.experts.E.up_proj", "blk.B.ffn_up_exps.weight", Expert),
    row(NEMOTRON, "layers.1.mixer.experts.E.down_proj", "blk.B.ffn_down_exps.weight", Expert),
    row(NEMOTRON, "layers.1.mixer.experts.up_proj", "blk.B.ffn_up_exps.weight", Experts),
    row(NEMOTRON, "layers.1.mixer.experts.down_proj", "blk.B.ffn_down_exps.weight", Experts),
    row(NEMOTRON, "layers.1.mixer.shared_experts.up_proj", "blk.B.ffn_up_shexp.weight", Matrix),
    row(NEMOTRON, "layers.1.mixer.shared_experts.down_proj", "blk.B.ffn_down_shexp.weight", Matrix),
    row(NEMOTRON, "layers.1.final_layernorm", "blk.B.nextn.shared_head_norm.weight", Floats),
];

/// The rows that a name behind `mtp.` is of, and the number of its expert.
pub(super) fn rows_of(arch: &str, name: &str) -> (Vec<&'static Source>, Option<u64>) {
    let bare = name.strip_suffix(".weight").unwrap_or(name);
    let mut expert = None;
    let parts: Vec<&str> = bare.split('.').collect();
    let numbered = parts.iter().position(|part| *part == "experts").map(|at| at + 1);
    let mut general = parts.clone();
    if let Some(at) = numbered
        && let Some(number) = parts.get(at).and_then(|part| plain_number(part))
    {
        expert = Some(number);
        general[at] = "E";
    }
    let general = general.join(".");
    (SOURCES.iter().filter(|s| s.is_for(arch) && s.found == general).collect(), expert)
}

/// A number without signs or leading zeros: one spelling a number.
fn plain_number(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}
