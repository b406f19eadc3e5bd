//! A small `qwen4exp` model from a seed, so that every clone can test what no committed file has.
//!
//! Four blocks (linear, linear with n-grams, linear, full attention) and an MTP block; four streams; an indexer that
//! starts to choose at 12 visible tokens. Every K but those of the n-gram table and the convolutions is a multiple of
//! 32, so that a file of Q8_0 can be made of it.

use engine_io::TensorType;
use engine_io::gguf::{Array, Meta, Value};

use super::edit::{Edit, SplitMix, Tensor};

/// Name of the generated model in messages.
pub const QWEN4EXP: &str = "generated qwen4exp";
/// Ids of the model.
pub const VOCAB: u64 = 512;
/// The token that cuts n-grams.
pub const END: u32 = 17;

const D: u64 = 64;
const STREAMS: u64 = 4;
const WIDE: u64 = D * STREAMS;
const TRUNK: u64 = 4;

/// How the values of a tensor are drawn.
#[derive(Clone, Copy)]
enum Draw {
    /// Uniform, this far from 0, over the root of K.
    Weight(f32),
    /// Around 1.
    Gamma,
    /// Below 0.
    Decay,
}

struct Writer {
    random: SplitMix,
    edit: Edit,
}

impl Writer {
    fn put(&mut self, name: &str, dims: &[u64], draw: Draw) {
        let count = dims.iter().product::<u64>();
        let root = (dims[0] as f32).sqrt();
        // From -1 to 1.
        let mut uniform = || (self.random.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0;
        let value = |_| match draw {
            Draw::Weight(size) => size * 1.7 * uniform() / root,
            Draw::Gamma => 1.0 + 0.2 * uniform(),
            Draw::Decay => -0.1 - 1.5 * (uniform() + 1.0),
        };
        let data = (0..count).map(value).flat_map(f32::to_le_bytes).collect();
        self.edit.tensors.push(Tensor { name: name.to_owned(), dims: dims.to_vec(), kind: TensorType::F32, data });
    }

    /// Norm and matrices of a mixer.
    fn mixer(&mut self, name: &str, inject: bool) {
        self.put(&format!("{name}_norm.weight"), &[WIDE], Draw::Gamma);
        self.put(&format!("{name}_down.weight"), &[WIDE, 32], Draw::Weight(4.0));
        self.put(&format!("{name}_up.weight"), &[32, WIDE], Draw::Weight(2.0));
        if inject {
            self.put(&format!("{name}_inject.weight"), &[WIDE, STREAMS], Draw::Weight(4.0));
        }
    }

    /// What every block has.
    fn block(&mut self, i: u64) {
        let name = |part: &str| format!("blk.{i}.{part}");
        self.mixer(&name("hc_attn"), true);
        self.mixer(&name("hc_ffn"), true);
        self.put(&name("ffn_gate_inp.weight"), &[D, 4], Draw::Weight(6.0));
        self.put(&name("ffn_gate_exps.weight"), &[D, 32, 4], Draw::Weight(1.5));
        self.put(&name("ffn_up_exps.weight"), &[D, 32, 4], Draw::Weight(1.5));
        self.put(&name("ffn_down_exps.weight"), &[32, D, 4], Draw::Weight(1.5));
        self.put(&name("ffn_gate_inp_shexp.weight"), &[D], Draw::Weight(2.0));
        self.put(&name("ffn_gate_shexp.weight"), &[D, 32], Draw::Weight(1.5));
        self.put(&name("ffn_up_shexp.weight"), &[D, 32], Draw::Weight(1.5));
        self.put(&name("ffn_down_shexp.weight"), &[32, D], Draw::Weight(1.5));
    }

    fn attention(&mut self, i: u64) {
        let name = |part: &str| format!("blk.{i}.{part}.weight");
        self.put(&name("attn_q"), &[D, 128], Draw::Weight(1.5));
        self.put(&name("attn_k"), &[D, 32], Draw::Weight(1.5));
        self.put(&name("attn_v"), &[D, 32], Draw::Weight(1.5));
        self.put(&name("attn_output"), &[64, D], Draw::Weight(2.0));
        self.put(&name("attn_q_norm"), &[16], Draw::Gamma);
        self.put(&name("attn_k_norm"), &[16], Draw::Gamma);
        self.put(&name("indexer.q_proj"), &[D, 16], Draw::Weight(1.5));
        self.put(&name("indexer.k_proj"), &[D, 8], Draw::Weight(1.5));
        self.put(&name("indexer.q_norm"), &[8], Draw::Gamma);
        self.put(&name("indexer.k_norm"), &[8], Draw::Gamma);
    }

    fn linear(&mut self, i: u64) {
        let name = |part: &str| format!("blk.{i}.{part}");
        self.put(&name("attn_qkv.weight"), &[D, 128], Draw::Weight(1.5));
        self.put(&name("attn_gate.weight"), &[D, 64], Draw::Weight(1.5));
        self.put(&name("ssm_conv1d.weight"), &[4, 128], Draw::Weight(2.0));
        self.put(&name("ssm_a"), &[4], Draw::Decay);
        self.put(&name("ssm_dt.bias"), &[4], Draw::Weight(1.0));
        self.put(&name("ssm_alpha.weight"), &[D, 4], Draw::Weight(1.0));
        self.put(&name("ssm_beta.weight"), &[D, 4], Draw::Weight(2.0));
        self.put(&name("ssm_norm.weight"), &[16], Draw::Gamma);
        self.put(&name("ssm_out.weight"), &[64, D], Draw::Weight(2.0));
    }

    fn ngrams(&mut self, i: u64) {
        let name = |part: &str| format!("blk.{i}.ple_{part}.weight");
        self.put("per_layer_token_embd.weight", &[16, 512], Draw::Weight(6.0));
        self.put(&name("key"), &[D, WIDE], Draw::Weight(1.5));
        self.put(&name("value"), &[D, D], Draw::Weight(2.0));
        self.put(&name("norm_key"), &[WIDE], Draw::Gamma);
        self.put(&name("norm_query"), &[WIDE], Draw::Gamma);
        self.put(&name("norm_conv"), &[WIDE], Draw::Gamma);
        self.put(&name("conv1d"), &[4, WIDE], Draw::Weight(2.0));
    }
}

/// Keys with the architecture's prefix.
fn keys() -> Meta {
    let mut meta = Meta::new("generated.gguf");
    meta.set("general.architecture", Value::str("qwen4exp"));
    let ints = [
        ("block_count", TRUNK as u32 + 1),
        ("nextn_predict_layers", 1),
        ("context_length", 256),
        ("embedding_length", D as u32),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
        ("rope.dimension_count", 8),
        ("expert_count", 4),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 32),
        ("expert_shared_feed_forward_length", 32),
        ("ssm.conv_kernel", 4),
        ("ssm.inner_size", 64),
        ("ssm.state_size", 16),
        ("ssm.time_step_rank", 4),
        ("ssm.group_count", 2),
        ("full_attention_interval", 4),
        ("hyper_connection.count", STREAMS as u32),
        ("hyper_connection.low_rank", 32),
        ("attention.indexer.head_count", 2),
        ("attention.indexer.key_length", 8),
        ("attention.indexer.top_k", 8),
        ("ple.ngram_size", 3),
        ("ple.heads_per_ngram", 2),
        ("ple.conv_kernel", 4),
        ("ple.eos_token_id", END),
        ("embedding_length_per_layer_input", 16),
    ];
    for (key, value) in ints {
        meta.set(&format!("qwen4exp.{key}"), Value::U32(value));
    }
    meta.set("qwen4exp.attention.layer_norm_rms_epsilon", Value::F32(1e-6));
    meta.set("qwen4exp.rope.freq_base", Value::F32(1e7));
    let i32s = [("rope.dimension_sections", vec![2, 1, 1, 0]), ("attention.compress_ratios", vec![0, 0, 0, 4, 4])];
    for (key, list) in i32s {
        meta.set(&format!("qwen4exp.{key}"), Value::Array(Array::I32(list)));
    }
    meta.set("qwen4exp.ple.layers", Value::Array(Array::I32(vec![1])));
    let u64s = [
        ("ple.layer_multipliers", vec![23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071]),
        ("ple.head_offsets", vec![0, 101, 204, 311]),
        ("ple.head_vocab_sizes", vec![101, 103, 107, 109]),
    ];
    for (key, list) in u64s {
        meta.set(&format!("qwen4exp.{key}"), Value::Array(Array::U64(list)));
    }
    meta
}

/// The model in F32.
pub fn qwen4exp(seed: u64) -> Edit {
    let mut w = Writer { random: SplitMix(seed), edit: Edit { meta: keys(), tensors: Vec::new() } };
    w.put("token_embd.weight", &[D, VOCAB], Draw::Weight(8.0));
    w.mixer("output_hc", false);
    for i in 0..=TRUNK {
        w.block(i);
        if i < 3 { w.linear(i) } else { w.attention(i) }
    }
    w.ngrams(1);
    let name = |part: &str| format!("blk.{TRUNK}.nextn.{part}");
    w.put(&name("eh_proj.weight"), &[2 * D, D], Draw::Weight(2.0));
    w.put(&name("enorm.weight"), &[D], Draw::Gamma);
    w.put(&name("hnorm.weight"), &[WIDE], Draw::Gamma);
    w.mixer(&name("hc_head"), false);
    w.edit
}

/// The values of a tensor of floats.
pub fn values(t: &Tensor) -> Vec<f32> {
    assert_eq!(t.kind, TensorType::F32);
    t.data.as_chunks::<4>().0.iter().map(|&x| f32::from_le_bytes(x)).collect()
}

/// Every matrix that can be as Q8_0, and the same values as F32. Scales are powers of two, which f16 holds exactly.
pub fn quantised(model: &Edit) -> (Edit, Edit) {
    let (mut q8, mut twin) = (model.clone(), model.clone());
    for (q8, twin) in q8.tensors.iter_mut().zip(&mut twin.tensors) {
        if q8.dims.len() < 2 || !q8.dims[0].is_multiple_of(32) {
            continue;
        }
        let mut data = Vec::new();
        let mut back = Vec::new();
        for block in values(twin).as_chunks::<32>().0 {
            let max = block.iter().fold(0f32, |m, x| m.max(x.abs()));
            let exponent = ((max / 127.0).log2().ceil() as i32).max(-14);
            let scale = 2f32.powi(exponent);
            data.extend_from_slice(&(((exponent + 15) as u16) << 10).to_le_bytes());
            for x in block {
                let code = (x / scale).round() as i8;
                data.push(code as u8);
                back.extend_from_slice(&(f32::from(code) * scale).to_le_bytes());
            }
        }
        (q8.kind, q8.data) = (TensorType::Q8_0, data);
        twin.data = back;
    }
    (q8, twin)
}
