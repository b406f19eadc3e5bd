//! Checkpoints of heads, made from GGUF models: what converters do, undone by hand. No line is shared with the engine's
//! table.

use std::collections::BTreeMap;
use std::path::Path;

use engine_io::ModelFile;
use engine_io::gguf::Value;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::forward::edit::{Edit, Tensor};
use crate::forward::generate;
use crate::forward::nemotron::file::{HEADS, KV_HEADS, Spec};
use crate::refusals::tiny;

/// How a checkpoint holds experts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Experts {
    /// A tensor each.
    Apart,
    /// All in one, gate above up.
    Fused,
}

/// A tensor of a checkpoint: extents outermost first, and values.
#[derive(Clone)]
pub struct Source {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// The head of a checkpoint.
pub type Head = BTreeMap<String, Source>;

/// A model in three forms.
pub struct Case {
    pub name: &'static str,
    /// With its head.
    pub merged: Edit,
    /// Without.
    pub trunk: Edit,
    /// Number of the head's block.
    pub block: usize,
    /// Its head as a checkpoint has it.
    pub head: Head,
}

/// Every architecture, with every form of its experts.
pub fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for (arch, experts) in [("qwen35", Experts::Apart), ("qwen35moe", Experts::Apart), ("qwen35moe", Experts::Fused)] {
        let (merged, trunk) = (tiny::model(arch), tiny::trunk(arch));
        let head = qwen(&merged, tiny::TRUNK, experts);
        out.push(Case { name: arch, merged, trunk, block: tiny::TRUNK, head });
    }
    for latent in [Some(32), None] {
        let spec = Spec { latent, ..Spec::BASE };
        let (merged, block) = (spec.edit(), spec.pattern.len());
        let head = nemotron(&merged, block);
        let trunk = Spec { mtp: false, ..spec }.edit();
        out.push(Case { name: "nemotron_h_moe", merged, trunk, block, head });
    }
    for experts in [Experts::Apart, Experts::Fused] {
        let ratios = |list: Vec<i32>| Value::Array(engine_io::gguf::Array::I32(list));
        let key = "qwen4exp.attention.compress_ratios";
        // A checkpoint does not say that the head chooses positions: a converted one looks at all of them.
        let merged = generate::qwen4exp(7).set(key, ratios(vec![0, 0, 0, 4, 0]));
        let trunk = merged.clone().drop(|n| n.starts_with("blk.4.")).set("qwen4exp.block_count", Value::U32(4));
        let trunk = trunk.unset("qwen4exp.nextn_predict_layers").set(key, ratios(vec![0, 0, 0, 4]));
        let head = qwen(&merged, 4, experts);
        out.push(Case { name: "qwen4exp", merged, trunk, block: 4, head });
    }
    out
}

/// Writes a head, and something of the trunk beside it, as one file.
pub fn write(path: &Path, head: &Head) {
    let other = Source { shape: vec![2, 2], values: vec![1.0; 4] };
    let all = head.iter().map(|(name, t)| (name.clone(), t)).chain([("lm_head.weight".to_owned(), &other)]);
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> =
        all.map(|(name, t)| (name, t.shape.clone(), t.values.iter().flat_map(|v| v.to_le_bytes()).collect())).collect();
    let views = bytes.iter().map(|(name, shape, data)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), data.as_slice()).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// A file of a model, opened.
pub fn file(path: &Path, edit: &Edit) -> ModelFile {
    std::fs::write(path, edit.bytes()).unwrap();
    crate::forward::open(path)
}

fn tensors(edit: &Edit, block: usize) -> BTreeMap<String, &Tensor> {
    let own = format!("blk.{block}.");
    edit.tensors.iter().filter_map(|t| Some((t.name.strip_prefix(&own)?.to_owned(), t))).collect()
}

/// As a checkpoint writes it: the extents the other way round.
fn plain(t: &Tensor) -> Source {
    Source { shape: t.dims.iter().rev().map(|&d| d as usize).collect(), values: generate::values(t) }
}

/// A factor as what is added to 1.
fn centred(t: &Tensor) -> Source {
    let mut source = plain(t);
    source.values.iter_mut().for_each(|v| *v -= 1.0);
    source
}

/// Rows `range` of a matrix.
fn rows(t: &Source, range: std::ops::Range<usize>) -> Source {
    let width = t.shape[1];
    Source { shape: vec![range.len(), width], values: t.values[range.start * width..range.end * width].to_vec() }
}

/// Expert `e` of a stack.
fn expert(t: &Source, e: usize) -> Source {
    let all = Source { shape: vec![t.shape[0] * t.shape[1], t.shape[2]], values: t.values.clone() };
    rows(&all, e * t.shape[1]..(e + 1) * t.shape[1])
}

/// Two matrices one above the other.
fn above(a: &Source, b: &Source) -> Source {
    let values = a.values.iter().chain(&b.values).copied().collect();
    Source { shape: vec![a.shape[0] + b.shape[0], a.shape[1]], values }
}

fn put_experts(out: &mut Head, prefix: &str, stacks: &[(&str, Source)], experts: Experts) {
    let count = stacks[0].1.shape[0];
    if experts == Experts::Apart {
        for (part, stack) in stacks {
            for e in 0..count {
                out.insert(format!("{prefix}.{e}.{part}.weight"), expert(stack, e));
            }
        }
        return;
    }
    let [(_, gate), (_, up), (_, down)] = stacks else { panic!("gate, up, down") };
    let fused = (0..count).flat_map(|e| above(&expert(gate, e), &expert(up, e)).values).collect();
    let shape = vec![count, 2 * gate.shape[1], gate.shape[2]];
    out.insert(format!("{prefix}.gate_up_proj"), Source { shape, values: fused });
    out.insert(format!("{prefix}.down_proj"), down.clone());
}

/// Of the Qwen family, with or without hyper-connections.
fn qwen(edit: &Edit, block: usize, experts: Experts) -> Head {
    let all = tensors(edit, block);
    let get = |name: &str| plain(all[&format!("{name}.weight")]);
    let mut out = Head::new();
    let mut put = |name: &str, source: Source| {
        out.insert(format!("mtp.{name}.weight"), source);
    };
    let wide = all.contains_key("hc_attn_norm.weight");
    let norms = [
        ("nextn.enorm", "pre_fc_norm_embedding"),
        ("nextn.hnorm", "pre_fc_norm_hidden"),
        ("nextn.shared_head_norm", "norm"),
        ("attn_norm", "layers.0.input_layernorm"),
        ("post_attention_norm", "layers.0.post_attention_layernorm"),
        ("attn_q_norm", "layers.0.self_attn.q_norm"),
        ("attn_k_norm", "layers.0.self_attn.k_norm"),
        ("indexer.q_norm", "layers.0.self_attn.indexer.q_layernorm"),
        ("indexer.k_norm", "layers.0.self_attn.indexer.k_layernorm"),
        ("nextn.hc_head_norm", "hyper_connection_mixer.hc_norm"),
        ("hc_attn_norm", "layers.0.attn_hyper_connection.hc_norm"),
        ("hc_ffn_norm", "layers.0.mlp_hyper_connection.hc_norm"),
    ];
    for (from, to) in norms {
        if let Some(t) = all.get(&format!("{from}.weight")) {
            put(to, centred(t));
        }
    }
    let matrices = [
        ("attn_q", "layers.0.self_attn.q_proj"),
        ("attn_k", "layers.0.self_attn.k_proj"),
        ("attn_v", "layers.0.self_attn.v_proj"),
        ("attn_output", "layers.0.self_attn.o_proj"),
        ("ffn_gate", "layers.0.mlp.gate_proj"),
        ("ffn_up", "layers.0.mlp.up_proj"),
        ("ffn_down", "layers.0.mlp.down_proj"),
        ("ffn_gate_inp", "layers.0.mlp.gate"),
        ("ffn_gate_shexp", "layers.0.mlp.shared_expert.gate_proj"),
        ("ffn_up_shexp", "layers.0.mlp.shared_expert.up_proj"),
        ("ffn_down_shexp", "layers.0.mlp.shared_expert.down_proj"),
        ("nextn.hc_head_down", "hyper_connection_mixer.input_mix_weight_down"),
        ("nextn.hc_head_up", "hyper_connection_mixer.input_mix_weight_up"),
        ("hc_attn_down", "layers.0.attn_hyper_connection.input_mix_weight_down"),
        ("hc_attn_up", "layers.0.attn_hyper_connection.input_mix_weight_up"),
        ("hc_attn_inject", "layers.0.attn_hyper_connection.block_inject_weight"),
        ("hc_ffn_down", "layers.0.mlp_hyper_connection.input_mix_weight_down"),
        ("hc_ffn_up", "layers.0.mlp_hyper_connection.input_mix_weight_up"),
        ("hc_ffn_inject", "layers.0.mlp_hyper_connection.block_inject_weight"),
    ];
    for (from, to) in matrices {
        if let Some(t) = all.get(&format!("{from}.weight")) {
            put(to, plain(t));
        }
    }
    let eh = get("nextn.eh_proj");
    match wide {
        false => put("fc", eh),
        true => {
            // Columns apart.
            let (rows, width) = (eh.shape[0], eh.shape[1]);
            for (half, name) in ["fc_embedding", "fc_hidden"].into_iter().enumerate() {
                let row = |r: usize| eh.values[r * width + half * width / 2..][..width / 2].to_vec();
                put(name, Source { shape: vec![rows, width / 2], values: (0..rows).flat_map(row).collect() });
            }
            put("layers.0.self_attn.indexer.index_qk_proj", above(&get("indexer.q_proj"), &get("indexer.k_proj")));
            // The last mixer has one too, which nothing reads.
            put("hyper_connection_mixer.block_inject_weight", get("hc_attn_inject"));
        }
    }
    if all.contains_key("ffn_up_exps.weight") {
        // A row, where the model has a vector.
        let mut gate = get("ffn_gate_inp_shexp");
        gate.shape.insert(0, 1);
        put("layers.0.mlp.shared_expert_gate", gate);
        let part = |name: &str| get(&format!("ffn_{name}_exps"));
        let stacks = [("gate_proj", part("gate")), ("up_proj", part("up")), ("down_proj", part("down"))];
        put_experts(&mut out, "mtp.layers.0.mlp.experts", &stacks, experts);
    }
    out
}

/// Rows of heads back in two halves.
fn unpaired(t: Source, heads: usize) -> Source {
    let (of_head, width) = (t.shape[0] / heads, t.shape[1]);
    let mut values = vec![0.0; t.values.len()];
    for (new, row) in t.values.chunks(width).enumerate() {
        let (head, j) = (new / of_head, new % of_head);
        let old = head * of_head + j % 2 * (of_head / 2) + j / 2;
        values[old * width..][..width].copy_from_slice(row);
    }
    Source { shape: t.shape, values }
}

/// Of Nemotron: two layers.
fn nemotron(edit: &Edit, block: usize) -> Head {
    let all = tensors(edit, block);
    let mut out = Head::new();
    let names = [
        ("nextn.enorm.weight", "layers.0.enorm.weight"),
        ("nextn.hnorm.weight", "layers.0.hnorm.weight"),
        ("nextn.eh_proj.weight", "layers.0.eh_proj.weight"),
        ("attn_norm.weight", "layers.0.norm.weight"),
        ("attn_v.weight", "layers.0.mixer.v_proj.weight"),
        ("attn_output.weight", "layers.0.mixer.o_proj.weight"),
        ("post_attention_norm.weight", "layers.1.norm.weight"),
        ("ffn_gate_inp.weight", "layers.1.mixer.gate.weight"),
        ("exp_probs_b.bias", "layers.1.mixer.gate.e_score_correction_bias"),
        ("ffn_latent_down.weight", "layers.1.mixer.fc1_latent_proj.weight"),
        ("ffn_latent_up.weight", "layers.1.mixer.fc2_latent_proj.weight"),
        ("ffn_up_shexp.weight", "layers.1.mixer.shared_experts.up_proj.weight"),
        ("ffn_down_shexp.weight", "layers.1.mixer.shared_experts.down_proj.weight"),
        ("nextn.shared_head_norm.weight", "layers.1.final_layernorm.weight"),
    ];
    for (from, to) in names {
        if let Some(t) = all.get(from) {
            out.insert(format!("mtp.{to}"), plain(t));
        }
    }
    for (from, to, heads) in [("attn_q", "q_proj", HEADS), ("attn_k", "k_proj", KV_HEADS)] {
        let source = unpaired(plain(all[&format!("{from}.weight")]), heads);
        out.insert(format!("mtp.layers.0.mixer.{to}.weight"), source);
    }
    let part = |name: &str| plain(all[&format!("ffn_{name}_exps.weight")]);
    let stacks = [("up_proj", part("up")), ("down_proj", part("down"))];
    put_experts(&mut out, "mtp.layers.1.mixer.experts", &stacks, Experts::Apart);
    out
}
