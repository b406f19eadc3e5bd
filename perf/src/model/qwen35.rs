//! `qwen35` and `qwen35moe`.

use engine_io::gguf::{Array, Value};

use super::shapes::{Experts, Ffn, Qwen35};
use super::values::Values::{Decay, Gamma, Matrix, Router, Small};
use super::{Outline, Planned, Values};

pub(super) fn outline(s: &Qwen35, mtp: bool) -> Outline {
    let blocks = s.trunk + u64::from(mtp);
    let arch = if matches!(s.ffn, Ffn::Dense { .. }) { "qwen35" } else { "qwen35moe" };
    Outline { arch, blocks, vocab: s.vocab, keys: keys(s, blocks, mtp), tensors: tensors(s, blocks) }
}

fn keys(s: &Qwen35, blocks: u64, mtp: bool) -> Vec<(&'static str, Value)> {
    let number = |n: u64| Value::U32(n as u32);
    let mut keys = vec![
        ("block_count", number(blocks)),
        ("context_length", number(262_144)),
        ("embedding_length", number(s.width)),
        ("attention.head_count", number(s.heads)),
        ("attention.head_count_kv", number(s.kv_heads)),
        ("attention.key_length", number(s.head)),
        ("attention.value_length", number(s.head)),
        ("attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
        ("rope.dimension_count", number(s.turned)),
        ("rope.dimension_sections", Value::Array(Array::I32(s.sections.to_vec()))),
        ("rope.freq_base", Value::F32(1e7)),
        ("ssm.conv_kernel", number(s.taps)),
        ("ssm.state_size", number(s.state)),
        ("ssm.group_count", number(s.key_heads)),
        ("ssm.time_step_rank", number(s.value_heads)),
        ("ssm.inner_size", number(s.value_heads * s.state)),
        ("full_attention_interval", number(s.interval)),
    ];
    if mtp {
        keys.push(("nextn_predict_layers", number(1)));
    }
    match &s.ffn {
        Ffn::Dense { width } => keys.push(("feed_forward_length", number(*width))),
        Ffn::Experts(e) => keys.extend([
            ("expert_count", number(e.count)),
            ("expert_used_count", number(e.used)),
            ("expert_feed_forward_length", number(e.width)),
            ("expert_shared_feed_forward_length", number(e.shared)),
        ]),
    }
    keys
}

fn tensors(s: &Qwen35, blocks: u64) -> Vec<Planned> {
    let (d, rows) = (s.width, s.vocab.rows as u64);
    let mut out = Vec::new();
    let mut put = |name: String, dims: &[u64], values| out.push(Planned { name, dims: dims.to_vec(), values });
    if s.untied {
        put("output.weight".to_owned(), &[d, rows], Matrix);
    }
    put("output_norm.weight".to_owned(), &[d], Gamma);
    put("token_embd.weight".to_owned(), &[d, rows], Matrix);
    for i in 0..blocks {
        let mut put = |name: &str, dims: &[u64], values| put(format!("blk.{i}.{name}"), dims, values);
        let mtp = i == s.trunk;
        put("attn_norm.weight", &[d], Gamma);
        put("post_attention_norm.weight", &[d], Gamma);
        if (i + 1).is_multiple_of(s.interval) || mtp {
            attention(s, &mut put);
        } else {
            delta_net(s, &mut put);
        }
        match &s.ffn {
            Ffn::Dense { width } => {
                put("ffn_gate.weight", &[d, *width], Matrix);
                put("ffn_up.weight", &[d, *width], Matrix);
                put("ffn_down.weight", &[*width, d], Matrix);
            }
            Ffn::Experts(e) => experts(d, e, &mut put),
        }
        if mtp {
            put("nextn.eh_proj.weight", &[2 * d, d], Matrix);
            put("nextn.enorm.weight", &[d], Gamma);
            put("nextn.hnorm.weight", &[d], Gamma);
            put("nextn.shared_head_norm.weight", &[d], Gamma);
        }
    }
    out
}

fn attention(s: &Qwen35, put: &mut impl FnMut(&str, &[u64], Values)) {
    let kv = s.kv_heads * s.head;
    // A gate beside every query.
    put("attn_q.weight", &[s.width, 2 * s.heads * s.head], Matrix);
    put("attn_k.weight", &[s.width, kv], Matrix);
    put("attn_v.weight", &[s.width, kv], Matrix);
    put("attn_output.weight", &[s.heads * s.head, s.width], Matrix);
    put("attn_q_norm.weight", &[s.head], Gamma);
    put("attn_k_norm.weight", &[s.head], Gamma);
}

fn delta_net(s: &Qwen35, put: &mut impl FnMut(&str, &[u64], Values)) {
    let (d, heads) = (s.width, s.value_heads);
    let (inner, mixed) = (heads * s.state, (2 * s.key_heads + heads) * s.state);
    put("attn_qkv.weight", &[d, mixed], Matrix);
    put("attn_gate.weight", &[d, inner], Matrix);
    put("ssm_beta.weight", &[d, heads], Matrix);
    put("ssm_alpha.weight", &[d, heads], Matrix);
    put("ssm_a", &[heads], Decay);
    put("ssm_dt.bias", &[heads], Small(1.0));
    put("ssm_conv1d.weight", &[s.taps, mixed], Small(0.5));
    put("ssm_norm.weight", &[s.state], Gamma);
    put("ssm_out.weight", &[inner, d], Matrix);
}

fn experts(d: u64, e: &Experts, put: &mut impl FnMut(&str, &[u64], Values)) {
    put("ffn_gate_inp.weight", &[d, e.count], Router);
    put("ffn_gate_exps.weight", &[d, e.width, e.count], Matrix);
    put("ffn_up_exps.weight", &[d, e.width, e.count], Matrix);
    put("ffn_down_exps.weight", &[e.width, d, e.count], Matrix);
    put("ffn_gate_inp_shexp.weight", &[d], Router);
    put("ffn_gate_shexp.weight", &[d, e.shared], Matrix);
    put("ffn_up_shexp.weight", &[d, e.shared], Matrix);
    put("ffn_down_shexp.weight", &[e.shared, d], Matrix);
}
