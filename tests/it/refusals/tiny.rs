//! Small models of the `qwen35` family, built here: hybrid, four trunk blocks (the last one attention) and a NextN block,
//! weights from a seed. Nothing is read from anywhere.

use engine_io::TensorType;
use engine_io::gguf::{Array, Meta, Value};

use crate::forward::edit::{Edit, SplitMix, Tensor};

/// Both architectures.
pub const ARCHS: [&str; 2] = ["qwen35", "qwen35moe"];
/// Trunk blocks; also the index of the NextN block.
pub const TRUNK: usize = 4;

const D: u64 = 64;
const HEAD: u64 = 16;
const VOCAB: usize = 512;
const EXPERTS: u64 = 8;
const FFN: u64 = 32;

/// The whole model.
pub fn model(arch: &str) -> Edit {
    let mut edit = Edit { meta: meta(arch), tensors: Vec::new() };
    edit.weights("token_embd.weight", &[D, VOCAB as u64]);
    edit.weights("output_norm.weight", &[D]);
    for block in 0..=TRUNK {
        let mut put = |part: &str, dims: &[u64]| edit.weights(&format!("blk.{block}.{part}"), dims);
        put("attn_norm.weight", &[D]);
        put("post_attention_norm.weight", &[D]);
        if block < 3 {
            put("attn_qkv.weight", &[D, 2 * 2 * HEAD + 4 * HEAD]);
            put("attn_gate.weight", &[D, 4 * HEAD]);
            put("ssm_alpha.weight", &[D, 4]);
            put("ssm_beta.weight", &[D, 4]);
            put("ssm_out.weight", &[4 * HEAD, D]);
            put("ssm_conv1d.weight", &[4, 2 * 2 * HEAD + 4 * HEAD]);
            put("ssm_a", &[4]);
            put("ssm_dt.bias", &[4]);
            put("ssm_norm.weight", &[HEAD]);
        } else {
            put("attn_q.weight", &[D, 2 * 4 * HEAD]);
            put("attn_k.weight", &[D, 2 * HEAD]);
            put("attn_v.weight", &[D, 2 * HEAD]);
            put("attn_output.weight", &[4 * HEAD, D]);
            put("attn_q_norm.weight", &[HEAD]);
            put("attn_k_norm.weight", &[HEAD]);
        }
        if arch == "qwen35moe" {
            put("ffn_gate_inp.weight", &[D, EXPERTS]);
            put("ffn_gate_exps.weight", &[D, FFN, EXPERTS]);
            put("ffn_up_exps.weight", &[D, FFN, EXPERTS]);
            put("ffn_down_exps.weight", &[FFN, D, EXPERTS]);
            put("ffn_gate_inp_shexp.weight", &[D]);
            put("ffn_gate_shexp.weight", &[D, FFN]);
            put("ffn_up_shexp.weight", &[D, FFN]);
            put("ffn_down_shexp.weight", &[FFN, D]);
        } else {
            put("ffn_gate.weight", &[D, FFN]);
            put("ffn_up.weight", &[D, FFN]);
            put("ffn_down.weight", &[FFN, D]);
        }
        if block == TRUNK {
            put("nextn.eh_proj.weight", &[2 * D, D]);
            put("nextn.enorm.weight", &[D]);
            put("nextn.hnorm.weight", &[D]);
            put("nextn.shared_head_norm.weight", &[D]);
        }
    }
    edit
}

/// The trunk alone, as converters write it.
pub fn trunk(arch: &str) -> Edit {
    model(arch).trunk()
}

/// The NextN block alone, with the copies of table and norm that converters add.
pub fn sidecar(arch: &str) -> Edit {
    model(arch).sidecar()
}

/// Whether a tensor is of the NextN block.
pub fn is_head(name: &str) -> bool {
    name.starts_with("blk.4.")
}

impl Edit {
    /// A tensor of seeded floats, such as its name calls for.
    pub fn weights(&mut self, name: &str, dims: &[u64]) {
        let mut random = SplitMix::named(name, 0x5EED);
        let mut unit = || (random.bits() >> 40) as f32 / (1 << 24) as f32;
        let n: u64 = dims.iter().product();
        let value = |u: f32| match name {
            _ if name.ends_with("norm.weight") => 0.75 + u / 2.0,
            _ if name.ends_with("ssm_a") => -0.1 - u,
            _ => (u - 0.5) / 2.0,
        };
        let data = (0..n).flat_map(|_| value(unit()).to_le_bytes()).collect();
        self.tensors.push(Tensor { name: name.to_owned(), dims: dims.to_vec(), kind: TensorType::F32, data });
    }
}

fn meta(arch: &str) -> Meta {
    let mut meta = Meta::new("edited.gguf");
    meta.set("general.architecture", Value::str(arch));
    let mut numbers = vec![
        ("block_count", TRUNK as u64 + 1),
        ("nextn_predict_layers", 1),
        ("full_attention_interval", 4),
        ("context_length", 4096),
        ("embedding_length", D),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", HEAD),
        ("attention.value_length", HEAD),
        ("rope.dimension_count", 8),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", HEAD),
        ("ssm.group_count", 2),
        ("ssm.time_step_rank", 4),
        ("ssm.inner_size", 4 * HEAD),
    ];
    if arch == "qwen35moe" {
        numbers.extend([("expert_count", EXPERTS), ("expert_used_count", 2)]);
        numbers.extend([("expert_feed_forward_length", FFN), ("expert_shared_feed_forward_length", FFN)]);
    } else {
        numbers.push(("feed_forward_length", FFN));
    }
    for (key, n) in numbers {
        meta.set(&format!("{arch}.{key}"), Value::U32(n as u32));
    }
    meta.set(&format!("{arch}.rope.freq_base"), Value::F32(10000.0));
    meta.set(&format!("{arch}.rope.dimension_sections"), Value::Array(Array::I32(vec![2, 1, 1, 0])));
    meta.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), Value::F32(1e-6));
    meta.set("tokenizer.ggml.model", Value::str("gpt2"));
    meta.set("tokenizer.ggml.pre", Value::str("qwen35"));
    meta.set("tokenizer.ggml.tokens", Value::strs(tokens()));
    meta.set("tokenizer.ggml.merges", Value::strs(["a b"]));
    meta.set("tokenizer.ggml.eos_token_id", Value::U32(VOCAB as u32 - 1));
    meta
}

/// A token for every byte, in the printable alphabet of GPT-2, one merge, fillers, and an end.
fn tokens() -> Vec<String> {
    let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut shifted = 256..;
    let byte = |b: u32| if printable(b) { b } else { shifted.next().expect("endless") };
    let mut tokens: Vec<String> =
        (0..256).map(byte).map(|c| char::from_u32(c).expect("below U+0200").to_string()).collect();
    tokens.push("ab".to_owned());
    tokens.extend((tokens.len()..VOCAB - 1).map(|i| format!("[{i}]")));
    tokens.push("<|im_end|>".to_owned());
    tokens
}
