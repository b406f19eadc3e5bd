//! Small `nemotron_h` files, made from a hash: every one of a few branches of the architecture in 100 KB.

use engine_io::TensorType;
use engine_io::gguf::{Array, Meta, Value};

use crate::forward::edit::{Edit, SplitMix, Tensor};

/// Width of a hidden row; not `HEADS * HEAD_DIM`.
pub const D: usize = 64;
/// Tokens.
pub const VOCAB: usize = 96;
/// Query heads, key/value heads and their width.
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const HEAD_DIM: usize = 32;
/// Mamba2: three heads to a group, so that consecutive and alternating heads differ. `SSM_HEADS * SSM_DIM` is not 2 D.
pub const SSM_HEADS: usize = 6;
pub const SSM_DIM: usize = 16;
pub const GROUPS: usize = 2;
pub const TAPS: usize = 4;
/// Experts, how many a row uses, and the hidden widths of a routed and of the shared one.
pub const EXPERTS: usize = 6;
pub const USED: usize = 3;
pub const WIDTH: usize = 96;
pub const SHARED: usize = 160;

/// Which branches a file takes.
#[derive(Clone, Copy)]
pub struct Spec {
    /// M Mamba2, E FFN, * attention.
    pub pattern: &'static str,
    /// `nemotron_h`: FFN without experts, no MTP block.
    pub dense: bool,
    /// Rows of routed experts are narrower.
    pub latent: Option<usize>,
    /// Groups of experts, and how many of them are open.
    pub groups: Option<(usize, usize)>,
    /// With an MTP block.
    pub mtp: bool,
    /// Without an LM head of its own.
    pub tied: bool,
    /// Width of B and C.
    pub state: usize,
}

impl Spec {
    /// The plain case.
    pub const BASE: Self =
        Self { pattern: "MEM*ME", dense: false, latent: Some(32), groups: None, mtp: true, tied: false, state: 16 };

    /// `general.architecture`.
    pub fn arch(&self) -> &'static str {
        if self.dense { "nemotron_h" } else { "nemotron_h_moe" }
    }

    /// Channels of the convolution.
    pub fn channels(&self) -> usize {
        SSM_HEADS * SSM_DIM + 2 * GROUPS * self.state
    }

    /// The file in parts.
    pub fn edit(&self) -> Edit {
        let mut edit = Edit { meta: self.meta(), tensors: Vec::new() };
        push(&mut edit, "token_embd.weight", &[D, VOCAB], Kind::Normal(0.0, 1.0));
        push(&mut edit, "output_norm.weight", &[D], NORM);
        if !self.tied {
            push(&mut edit, "output.weight", &[D, VOCAB], Kind::Normal(0.0, 0.3));
        }
        for (i, kind) in self.pattern.chars().enumerate() {
            push(&mut edit, &format!("blk.{i}.attn_norm.weight"), &[D], NORM);
            match kind {
                'M' => self.mamba2(&mut edit, i),
                '*' => attention(&mut edit, i),
                _ => self.ffn(&mut edit, i),
            }
        }
        if self.mtp {
            let i = self.pattern.len();
            for norm in ["nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm", "attn_norm", "post_attention_norm"] {
                push(&mut edit, &format!("blk.{i}.{norm}.weight"), &[D], NORM);
            }
            push(&mut edit, &format!("blk.{i}.nextn.eh_proj.weight"), &[2 * D, D], Kind::Fan);
            attention(&mut edit, i);
            self.ffn(&mut edit, i);
        }
        edit
    }

    fn meta(&self) -> Meta {
        let blocks: Vec<char> = self.pattern.chars().chain(self.mtp.then_some('+')).collect();
        let per_block = |on: &[char], value: u32| {
            let values = blocks.iter().map(|b| if on.contains(b) { value } else { 0 }).collect();
            Value::Array(Array::U32(values))
        };
        let number = |n: usize| Value::U32(n as u32);
        let mut meta = Meta::new("made.gguf");
        meta.set("general.architecture", Value::str(self.arch()));
        let mut set = |key: &str, value: Value| meta.set(&format!("{}.{key}", self.arch()), value);
        set("block_count", number(blocks.len()));
        set("context_length", number(1 << 20));
        set("embedding_length", number(D));
        set("vocab_size", number(VOCAB));
        set("attention.head_count", number(HEADS));
        set("attention.head_count_kv", per_block(&['*', '+'], KV_HEADS as u32));
        set("feed_forward_length", per_block(&['E', '+'], WIDTH as u32));
        set("attention.key_length", number(HEAD_DIM));
        set("attention.value_length", number(HEAD_DIM));
        set("attention.layer_norm_epsilon", Value::F32(1e-3));
        set("attention.layer_norm_rms_epsilon", Value::F32(1e-5));
        set("ssm.conv_kernel", number(TAPS));
        set("ssm.inner_size", number(SSM_HEADS * SSM_DIM));
        set("ssm.state_size", number(self.state));
        set("ssm.time_step_rank", number(SSM_HEADS));
        set("ssm.group_count", number(GROUPS));
        set("rope.freq_base", Value::F32(10000.0));
        set("rope.dimension_count", number(84));
        if self.mtp {
            set("nextn_predict_layers", number(1));
        }
        if !self.dense {
            set("expert_count", number(EXPERTS));
            set("expert_used_count", number(USED));
            set("expert_feed_forward_length", number(WIDTH));
            set("expert_shared_feed_forward_length", number(SHARED));
            set("expert_shared_count", number(1));
            set("expert_weights_norm", Value::Bool(true));
            set("expert_weights_scale", Value::F32(2.5));
            let (groups, open) = self.groups.unwrap_or((1, 1));
            set("expert_group_count", number(groups));
            set("expert_group_used_count", number(open));
        }
        if let Some(latent) = self.latent {
            set("moe_latent_size", number(latent));
        }
        meta
    }

    fn mamba2(&self, edit: &mut Edit, i: usize) {
        let (inner, channels) = (SSM_HEADS * SSM_DIM, self.channels());
        let mut add = |part: &str, dims: &[usize], kind| push(edit, &format!("blk.{i}.{part}"), dims, kind);
        add("ssm_in.weight", &[D, inner + channels + SSM_HEADS], Kind::Fan);
        add("ssm_conv1d.weight", &[TAPS, channels], Kind::Normal(0.0, 0.5));
        add("ssm_conv1d.bias", &[channels], Kind::Normal(0.0, 0.5));
        add("ssm_dt.bias", &[SSM_HEADS], Kind::Normal(0.0, 1.0));
        add("ssm_a", &[1, SSM_HEADS], Kind::Decay);
        add("ssm_d", &[1, SSM_HEADS], Kind::Normal(1.0, 0.3));
        add("ssm_norm.weight", &[inner / GROUPS, GROUPS], NORM);
        add("ssm_out.weight", &[inner, D], Kind::Fan);
    }

    fn ffn(&self, edit: &mut Edit, i: usize) {
        let mut add = |part: &str, dims: &[usize], kind| push(edit, &format!("blk.{i}.{part}"), dims, kind);
        if self.dense {
            add("ffn_up.weight", &[D, WIDTH], Kind::Fan);
            add("ffn_down.weight", &[WIDTH, D], Kind::Fan);
            return;
        }
        let latent = self.latent.unwrap_or(D);
        add("ffn_gate_inp.weight", &[D, EXPERTS], Kind::Normal(0.0, 0.2));
        add("exp_probs_b.bias", &[EXPERTS], Kind::Normal(0.0, 0.4));
        if self.latent.is_some() {
            add("ffn_latent_down.weight", &[D, latent], Kind::Fan);
            add("ffn_latent_up.weight", &[latent, D], Kind::Fan);
        }
        add("ffn_up_exps.weight", &[latent, WIDTH, EXPERTS], Kind::Fan);
        add("ffn_down_exps.weight", &[WIDTH, latent, EXPERTS], Kind::Fan);
        add("ffn_up_shexp.weight", &[D, SHARED], Kind::Fan);
        add("ffn_down_shexp.weight", &[SHARED, D], Kind::Fan);
    }
}

fn attention(edit: &mut Edit, i: usize) {
    let mut add = |part: &str, dims: &[usize], kind| push(edit, &format!("blk.{i}.{part}.weight"), dims, kind);
    add("attn_q", &[D, HEADS * HEAD_DIM], Kind::Normal(0.0, 0.3));
    add("attn_k", &[D, KV_HEADS * HEAD_DIM], Kind::Normal(0.0, 0.3));
    add("attn_v", &[D, KV_HEADS * HEAD_DIM], Kind::Fan);
    add("attn_output", &[HEADS * HEAD_DIM, D], Kind::Fan);
}

/// How values are drawn.
#[derive(Clone, Copy)]
enum Kind {
    /// Mean and deviation.
    Normal(f64, f64),
    /// Deviation 1 / sqrt(inputs).
    Fan,
    /// -exp of something from 0 to 2.
    Decay,
}

const NORM: Kind = Kind::Normal(1.0, 0.2);

/// From 0 to 1.
fn unit(random: &mut SplitMix) -> f64 {
    (random.bits() >> 11) as f64 / (1u64 << 53) as f64
}

/// Of mean 0 and deviation 1, by Box and Muller.
fn normal(random: &mut SplitMix) -> f64 {
    let radius = (-2.0 * (1.0 - unit(random)).ln()).sqrt();
    radius * (std::f64::consts::TAU * unit(random)).cos()
}

/// Adds a tensor of values that its name alone decides.
fn push(edit: &mut Edit, name: &str, dims: &[usize], kind: Kind) {
    let mut random = SplitMix::named(name, 3521);
    let count: usize = dims.iter().product();
    let value = |random: &mut SplitMix| match kind {
        Kind::Normal(mean, deviation) => mean + deviation * normal(random),
        Kind::Fan => normal(random) / (dims[0] as f64).sqrt(),
        Kind::Decay => -(2.0 * unit(random)).exp(),
    };
    let data = (0..count).flat_map(|_| (value(&mut random) as f32).to_le_bytes()).collect();
    let dims = dims.iter().map(|&d| d as u64).collect();
    edit.tensors.push(Tensor { name: name.to_owned(), dims, kind: TensorType::F32, data });
}
