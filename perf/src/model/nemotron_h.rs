//! `nemotron_h_moe`.

use engine_io::gguf::{Array, Value};

use super::shapes::NemotronH;
use super::values::Values::{Decay, Gamma, Matrix, Router, Small};
use super::{Outline, Planned, Values};

pub(super) fn outline(s: &NemotronH, mtp: bool) -> Outline {
    let blocks = s.pattern.len() as u64 + u64::from(mtp);
    Outline { arch: "nemotron_h_moe", blocks, vocab: s.vocab, keys: keys(s, blocks, mtp), tensors: tensors(s, mtp) }
}

/// An array over the blocks: `there` where the pattern has `letter`, and in the MTP block.
fn where_it_is(s: &NemotronH, mtp: bool, letter: char, there: u64) -> Value {
    let trunk = s.pattern.chars().map(|block| if block == letter { there as i32 } else { 0 });
    Value::Array(Array::I32(trunk.chain(mtp.then_some(there as i32)).collect()))
}

fn keys(s: &NemotronH, blocks: u64, mtp: bool) -> Vec<(&'static str, Value)> {
    let number = |n: u64| Value::U32(n as u32);
    let e = &s.experts;
    let mut keys = vec![
        ("block_count", number(blocks)),
        ("context_length", number(1_048_576)),
        ("embedding_length", number(s.width)),
        ("feed_forward_length", where_it_is(s, mtp, 'E', e.width)),
        ("attention.head_count", number(s.heads)),
        ("attention.head_count_kv", where_it_is(s, mtp, '*', s.kv_heads)),
        ("attention.key_length", number(s.head)),
        ("attention.value_length", number(s.head)),
        ("attention.layer_norm_epsilon", Value::F32(1e-5)),
        ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("vocab_size", number(s.vocab.rows as u64)),
        ("rope.dimension_count", number(s.head)),
        ("ssm.conv_kernel", number(s.taps)),
        ("ssm.state_size", number(s.state)),
        ("ssm.group_count", number(s.groups)),
        ("ssm.time_step_rank", number(s.ssm_heads)),
        ("ssm.inner_size", number(s.ssm_heads * s.ssm_head)),
        ("expert_count", number(e.count)),
        ("expert_used_count", number(e.used)),
        ("expert_feed_forward_length", number(e.width)),
        ("expert_shared_feed_forward_length", number(e.shared)),
        ("expert_shared_count", number(1)),
        ("expert_group_count", number(1)),
        ("expert_group_used_count", number(1)),
        ("expert_weights_norm", Value::Bool(true)),
        ("expert_weights_scale", Value::F32(2.5)),
        ("moe_latent_size", number(s.latent)),
    ];
    if mtp {
        keys.push(("nextn_predict_layers", number(1)));
    }
    keys
}

fn tensors(s: &NemotronH, mtp: bool) -> Vec<Planned> {
    let (d, rows) = (s.width, s.vocab.rows as u64);
    let mut out = Vec::new();
    let mut put = |name: String, dims: &[u64], values| out.push(Planned { name, dims: dims.to_vec(), values });
    put("output.weight".to_owned(), &[d, rows], Matrix);
    put("output_norm.weight".to_owned(), &[d], Gamma);
    put("token_embd.weight".to_owned(), &[d, rows], Matrix);
    for (i, block) in s.pattern.chars().enumerate() {
        let mut put = |name: &str, dims: &[u64], values| put(format!("blk.{i}.{name}"), dims, values);
        put("attn_norm.weight", &[d], Gamma);
        match block {
            'M' => mamba2(s, &mut put),
            '*' => attention(s, &mut put),
            'E' => experts(s, &mut put),
            other => unreachable!("{other}: no kind of block"),
        }
    }
    if mtp {
        let i = s.pattern.len();
        let mut put = |name: &str, dims: &[u64], values| put(format!("blk.{i}.{name}"), dims, values);
        put("attn_norm.weight", &[d], Gamma);
        attention(s, &mut put);
        put("post_attention_norm.weight", &[d], Gamma);
        experts(s, &mut put);
        put("nextn.eh_proj.weight", &[2 * d, d], Matrix);
        put("nextn.enorm.weight", &[d], Gamma);
        put("nextn.hnorm.weight", &[d], Gamma);
        put("nextn.shared_head_norm.weight", &[d], Gamma);
    }
    out
}

fn mamba2(s: &NemotronH, put: &mut impl FnMut(&str, &[u64], Values)) {
    let inner = s.ssm_heads * s.ssm_head;
    let mixed = inner + 2 * s.groups * s.state;
    put("ssm_in.weight", &[s.width, inner + mixed + s.ssm_heads], Matrix);
    put("ssm_conv1d.weight", &[s.taps, mixed], Small(0.5));
    put("ssm_conv1d.bias", &[mixed], Small(0.1));
    put("ssm_dt.bias", &[s.ssm_heads], Small(1.0));
    put("ssm_a", &[1, s.ssm_heads], Decay);
    put("ssm_d", &[1, s.ssm_heads], Gamma);
    put("ssm_norm.weight", &[inner / s.groups, s.groups], Gamma);
    put("ssm_out.weight", &[inner, s.width], Matrix);
}

fn attention(s: &NemotronH, put: &mut impl FnMut(&str, &[u64], Values)) {
    put("attn_q.weight", &[s.width, s.heads * s.head], Matrix);
    put("attn_k.weight", &[s.width, s.kv_heads * s.head], Matrix);
    put("attn_v.weight", &[s.width, s.kv_heads * s.head], Matrix);
    put("attn_output.weight", &[s.heads * s.head, s.width], Matrix);
}

fn experts(s: &NemotronH, put: &mut impl FnMut(&str, &[u64], Values)) {
    let e = &s.experts;
    put("ffn_gate_inp.weight", &[s.width, e.count], Router);
    put("exp_probs_b.bias", &[e.count], Small(0.01));
    put("ffn_latent_down.weight", &[s.width, s.latent], Matrix);
    put("ffn_latent_up.weight", &[s.latent, s.width], Matrix);
    put("ffn_up_exps.weight", &[s.latent, e.width, e.count], Matrix);
    put("ffn_down_exps.weight", &[e.width, s.latent, e.count], Matrix);
    put("ffn_up_shexp.weight", &[s.width, e.shared], Matrix);
    put("ffn_down_shexp.weight", &[e.shared, s.width], Matrix);
}
