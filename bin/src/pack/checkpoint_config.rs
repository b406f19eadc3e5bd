//! The `config.json` of a checkpoint against the metadata of the model that its head is for.

use engine::model::config::{Config, Ffn};
use serde_json::Value;

/// Names of architectures in checkpoints.
const MODEL_TYPES: &[(&str, &str)] = &[
    ("qwen3_5", "qwen35"),
    ("qwen3_5_text", "qwen35"),
    ("qwen3_5_moe", "qwen35moe"),
    ("qwen3_5_moe_text", "qwen35moe"),
    ("qwen3_next", "qwen3next"),
    ("nemotron_h", "nemotron_h_moe"),
    ("qwen4_exp", "qwen4exp"),
    ("qwen4_exp_text", "qwen4exp"),
];

/// What came of it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Checked {
    /// Keys that say what the target says.
    pub agree: Vec<&'static str>,
    /// Keys that do not: name, found, expected.
    pub differ: Vec<String>,
}

/// Compares what both speak of. `rows`: rows of the target's token table.
pub fn check(config: &Value, target: &Config, rows: u64) -> Checked {
    // Models that see have their text's numbers in a part of their own.
    let text = config.get("text_config").unwrap_or(config);
    let mut out = Checked::default();
    let mut compare = |key: &'static str, found: Option<String>, expected: Option<String>| {
        let (Some(found), Some(expected)) = (found, expected) else { return };
        match found == expected {
            true => out.agree.push(key),
            false => out.differ.push(format!("{key} is {found}, the target has {expected}")),
        }
    };
    let arch = target.arch.name();
    let said = text.get("model_type").or_else(|| config.get("model_type")).and_then(Value::as_str);
    let known = said.and_then(|said| MODEL_TYPES.iter().find(|(name, _)| *name == said));
    compare("model_type", known.map(|(_, arch)| (*arch).to_owned()), Some(arch.to_owned()));
    let block = target.blocks.get(target.trunk);
    let (dense, experts) = match block.map(|b| b.ffn) {
        Some(Ffn::Dense { width, .. }) => (Some(width), None),
        Some(Ffn::Experts(experts)) => (None, Some(experts)),
        _ => (None, None),
    };
    let own = target.qwen4exp.as_ref();
    // A release of this family's head alone may count its own layers.
    let layers = (arch != "nemotron_h_moe").then_some(target.trunk);
    let numbers: [(&'static str, &[&str], Option<usize>); 15] = [
        ("hidden_size", &[], Some(target.d_model)),
        ("num_hidden_layers", &[], layers),
        ("num_attention_heads", &[], block.map(|b| b.heads)),
        ("num_key_value_heads", &[], block.map(|b| b.kv_heads)),
        ("head_dim", &[], Some(target.head_dim)),
        ("intermediate_size", &[], dense),
        ("num_experts", &["n_routed_experts"], experts.map(|e| e.router.experts)),
        ("num_experts_per_tok", &[], experts.map(|e| e.router.used)),
        ("moe_intermediate_size", &[], experts.map(|e| e.width)),
        ("shared_expert_intermediate_size", &["moe_shared_expert_intermediate_size"], experts.map(|e| e.shared_width)),
        ("moe_latent_size", &[], experts.and_then(|e| e.latent)),
        ("hc_count", &[], own.map(|own| own.streams)),
        ("hc_lowrank", &[], own.map(|own| own.low_rank)),
        ("indexer_n_heads", &[], own.map(|own| own.indexer.heads)),
        ("indexer_head_dim", &[], own.map(|own| own.indexer.dim)),
    ];
    for (key, others, expected) in numbers {
        let found = std::iter::once(&key).chain(others).find_map(|key| text.get(*key)?.as_u64());
        compare(key, found.map(|n| n.to_string()), expected.map(|n| n.to_string()));
    }
    let heads = ["mtp_num_hidden_layers", "num_nextn_predict_layers"].iter().find_map(|key| text.get(*key)?.as_u64());
    compare("mtp_num_hidden_layers", heads.map(|n| n.to_string()), Some(String::from("1")));
    let float = |value: Option<&Value>| value.and_then(Value::as_f64).map(|x| (x as f32).to_string());
    compare("rms_norm_eps", float(text.get("rms_norm_eps")), Some(target.norm_eps.to_string()));
    let theta = text.get("rope_parameters").and_then(|rope| rope.get("rope_theta")).or_else(|| text.get("rope_theta"));
    compare("rope_theta", float(theta), target.rope.as_ref().map(|rope| rope.freq_base.to_string()));
    if let Some(found) = text.get("vocab_size").and_then(Value::as_u64) {
        let tokens = target.tokens.map_or(0, |t| t.len as u64);
        match (tokens..=rows).contains(&found) {
            true => out.agree.push("vocab_size"),
            false => out.differ.push(format!("vocab_size is {found}, the target has {tokens} tokens in {rows} rows")),
        }
    }
    out
}
