//! Hyperparameters of a model, read from its metadata and checked once.
//!
//! Everything that can contradict itself is compared here, so that the program builders may divide and index freely.

use engine_io::gguf::{Meta, StrArray};
use engine_kernels::ops::rope::Pairing;

use super::error::ModelError;
use super::keys::Keys;

mod delta;
mod experts;
mod mamba2;
mod nemotron_h;
mod qwen4exp;
mod rope;

pub use delta::DeltaConfig;
pub use experts::{Activation, ExpertFamily, ExpertKeys, ExpertsConfig};
pub use mamba2::Mamba2Config;
pub use qwen4exp::{IndexerConfig, NgramConfig, Qwen4ExpConfig};
pub use rope::RopeConfig;

/// Architectures that can be run, by the name in `general.architecture`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arch {
    /// `llama`: attention and gated FFN.
    Llama,
    /// `qwen35`: gated delta net and gated attention, dense FFN, optional MTP block.
    Qwen35,
    /// `qwen35moe`: the same with experts in every block.
    Qwen35Moe,
    /// `qwen3next`: the same with value heads in the order of the checkpoint, and no position sections.
    Qwen3Next,
    /// `nemotron_h`: Mamba2, attention and relu^2 FFN, each a block of its own.
    NemotronH,
    /// `nemotron_h_moe`: the same with experts for FFNs, and an optional MTP block.
    NemotronHMoe,
    /// `qwen4exp`: the same mixers between hyper-connections, with block-sparse attention and n-gram embeddings.
    Qwen4Exp,
}

impl Arch {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Llama,
        Self::Qwen35,
        Self::Qwen35Moe,
        Self::Qwen3Next,
        Self::NemotronH,
        Self::NemotronHMoe,
        Self::Qwen4Exp,
    ];

    /// The name in `general.architecture`, and the prefix of the architecture's keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen35 => "qwen35",
            Self::Qwen35Moe => "qwen35moe",
            Self::Qwen3Next => "qwen3next",
            Self::NemotronH => "nemotron_h",
            Self::NemotronHMoe => "nemotron_h_moe",
            Self::Qwen4Exp => "qwen4exp",
        }
    }

    /// Whether an architecture's graph has an MTP block at all.
    pub fn has_mtp(self) -> bool {
        match self {
            Self::Llama | Self::NemotronH => false,
            Self::Qwen35 | Self::Qwen35Moe | Self::Qwen3Next | Self::NemotronHMoe | Self::Qwen4Exp => true,
        }
    }

    /// Every block is one mixer or one FFN, and the arrays of the file say which.
    pub(super) fn is_nemotron_h(self) -> bool {
        matches!(self, Self::NemotronH | Self::NemotronHMoe)
    }

    /// What it fixes about its experts; `None`: its blocks are dense.
    fn experts(self) -> Option<ExpertFamily> {
        match self {
            Self::Llama | Self::Qwen35 | Self::NemotronH => None,
            Self::Qwen35Moe | Self::Qwen3Next => Some(ExpertFamily::QWEN35),
            Self::NemotronHMoe => Some(ExpertFamily::NEMOTRON_H),
            Self::Qwen4Exp => Some(ExpertFamily::QWEN4EXP),
        }
    }
}

/// What mixes the positions of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mixer {
    /// Softmax attention over the KV cache.
    Attention,
    /// Gated delta net: a recurrent state and a short convolution.
    Delta,
    /// Mamba2: the same of another kind.
    Mamba2,
    /// Nothing: the block is an FFN alone.
    None,
}

/// What a block does to each position by itself.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Ffn {
    /// Nothing.
    None,
    /// One FFN.
    Dense {
        /// Hidden width.
        width: usize,
        /// Between its matrices.
        activation: Activation,
    },
    /// A few of many, chosen by a router, and a shared one.
    Experts(ExpertsConfig),
}

/// One block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Block {
    /// What mixes positions.
    pub mixer: Mixer,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// What follows the mixer.
    pub ffn: Ffn,
}

/// What of a token list matters to numbers: how many ids mean something, and whether two lists are the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenList {
    /// Entries; rows of the embedding beyond them are padding.
    pub len: usize,
    /// FNV-1a of lengths and bytes.
    pub hash: u64,
}

impl TokenList {
    fn of(tokens: &StrArray) -> Self {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut eat = |bytes: &[u8]| {
            for &b in bytes {
                hash = (hash ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        };
        for token in tokens.iter() {
            eat(&(token.len() as u64).to_le_bytes());
            eat(token);
        }
        Self { len: tokens.len(), hash }
    }
}

/// Hyperparameters. Every relation between them has been checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Architecture.
    pub arch: Arch,
    /// `general.name`, for people.
    pub name: String,
    /// Width of a hidden row.
    pub d_model: usize,
    /// Positions the model was trained for.
    pub context_train: usize,
    /// Added to mean squares.
    pub norm_eps: f32,
    /// Added to variances, where an architecture has a LayerNorm.
    pub layer_norm_eps: Option<f32>,
    /// Width of an attention head, of queries, keys and values alike.
    pub head_dim: usize,
    /// Products of queries and keys are multiplied by this.
    pub attention_scale: f32,
    /// Trunk blocks.
    pub trunk: usize,
    /// NextN blocks that the metadata announces behind the trunk.
    pub nextn: usize,
    /// Trunk blocks, then NextN blocks.
    pub blocks: Vec<Block>,
    /// Rotary embedding; `None` where positions serve the causal mask alone.
    pub rope: Option<RopeConfig>,
    /// Present if any trunk block is a delta net.
    pub delta: Option<DeltaConfig>,
    /// Present if any trunk block is Mamba2.
    pub mamba2: Option<Mamba2Config>,
    /// What only `qwen4exp` has; present for it alone.
    pub qwen4exp: Option<Qwen4ExpConfig>,
    /// The file's token list; `None` without one.
    pub tokens: Option<TokenList>,
    /// What is legal and most likely not meant, a line for each.
    pub warnings: Vec<String>,
}

/// A name for people: no more than they read, on one line.
fn one_line(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(200).collect()
}

impl Config {
    /// Reads and checks the hyperparameters.
    ///
    /// # Errors
    /// The first key that is missing, of a wrong type, out of range, or in contradiction to another.
    pub fn read(meta: &Meta) -> Result<Self, ModelError> {
        let found = meta.architecture()?;
        let arch = Arch::ALL.into_iter().find(|a| a.name() == found).ok_or_else(|| ModelError::Architecture {
            file: meta.file().to_owned(),
            found: found.chars().take(80).collect(),
            supported: Arch::ALL.map(Arch::name).join(", "),
        })?;
        let keys = &Keys::new(meta, arch)?;
        let (all, trunk) = (keys.counts.all as usize, keys.counts.trunk() as usize);
        if all > MAX_BLOCKS {
            return Err(keys.range("block_count", all, format!("1 to {MAX_BLOCKS}")));
        }

        let d_model = keys.require("embedding_length", 1..=MAX_WIDTH)?;
        let heads = keys.per_block("attention.head_count", 0..=MAX_WIDTH)?;
        let heads = heads.ok_or_else(|| keys.missing("attention.head_count"))?;
        let kv_heads = keys.per_block("attention.head_count_kv", 0..=MAX_WIDTH)?;
        if arch.is_nemotron_h() && kv_heads.is_none() {
            return Err(keys.missing("attention.head_count_kv"));
        }
        let kv_heads = kv_heads.unwrap_or_else(|| heads.clone());
        let (mixers, ffn) = match arch {
            Arch::Llama => (vec![Mixer::Attention; all], Self::ffn(keys, arch)?),
            Arch::Qwen35 | Arch::Qwen35Moe | Arch::Qwen3Next | Arch::Qwen4Exp => {
                (Self::mixers(keys)?, Self::ffn(keys, arch)?)
            }
            Arch::NemotronH | Arch::NemotronHMoe => nemotron_h::blocks(keys, arch, &kv_heads)?,
        };
        let head_dim = Self::head_dim(keys, d_model, &heads)?;
        let layer_norm_eps = match arch.is_nemotron_h() {
            true => Some(positive(keys, "attention.layer_norm_epsilon")?),
            false => None,
        };
        let norm_eps = match (layer_norm_eps, keys.float("attention.layer_norm_rms_epsilon")?) {
            (Some(eps), None) => eps,
            _ => positive(keys, "attention.layer_norm_rms_epsilon")?,
        };
        let attention_scale = match arch.is_nemotron_h() {
            true => factor(keys, "attention.scale")?,
            false => None,
        };
        let mut blocks = Vec::with_capacity(all);
        for (i, mixer) in mixers.into_iter().enumerate() {
            let block = Block { mixer, heads: heads[i], kv_heads: kv_heads[i], ffn: ffn[i] };
            let fits = block.heads > 0 && block.kv_heads > 0 && block.heads.is_multiple_of(block.kv_heads);
            if mixer == Mixer::Attention && !fits {
                return Err(keys.range_of_block(
                    "attention.head_count_kv",
                    i,
                    format!("{} key/value heads for {} heads", block.kv_heads, block.heads),
                    "a positive divisor of attention.head_count",
                ));
            }
            blocks.push(block);
        }
        let has = |mixer| blocks.iter().any(|b: &Block| b.mixer == mixer);
        let delta = if has(Mixer::Delta) { Some(DeltaConfig::read(keys)?) } else { None };
        let mamba2 = if has(Mixer::Mamba2) { Some(Mamba2Config::read(keys)?) } else { None };

        let rope = match arch {
            Arch::Llama => Some(RopeConfig::read(keys, head_dim, Pairing::Adjacent, false)?),
            Arch::Qwen3Next => Some(RopeConfig::read(keys, head_dim, Pairing::Halves, false)?),
            Arch::Qwen35 | Arch::Qwen35Moe | Arch::Qwen4Exp => {
                Some(RopeConfig::read(keys, head_dim, Pairing::Halves, true)?)
            }
            // The keys are written, and say nothing: this family does not rotate.
            Arch::NemotronH | Arch::NemotronHMoe => None,
        };
        let tokens = meta.get_str_array("tokenizer.ggml.tokens")?.map(TokenList::of);
        let qwen4exp = match (arch, &rope) {
            (Arch::Qwen4Exp, Some(rope)) => {
                Some(Qwen4ExpConfig::read(keys, d_model, rope.n_rot, &blocks, tokens.map(|t| t.len))?)
            }
            _ => None,
        };

        let mut warnings = Vec::new();
        let base = keys.full("rope.freq_base");
        // No published model of it has this base, and a file that lost the key runs all the same.
        if arch == Arch::Qwen4Exp && meta.get(&base).is_none() {
            warnings.push(format!(
                "{}: key {base} is missing, {} is used; models of this architecture have a base of their own, so convert \
                 the model again if its checkpoint states one",
                meta.file(),
                rope::FREQ_BASE
            ));
        }
        Ok(Self {
            arch,
            name: one_line(meta.get_str("general.name")?.unwrap_or("")),
            d_model,
            context_train: keys.require("context_length", 1..=MAX_CONTEXT)?,
            norm_eps,
            layer_norm_eps,
            head_dim,
            attention_scale: attention_scale.unwrap_or(1.0 / (head_dim as f32).sqrt()),
            trunk,
            nextn: keys.counts.nextn as usize,
            blocks,
            rope,
            delta,
            mamba2,
            qwen4exp,
            tokens,
            warnings,
        })
    }

    /// Head size from its own keys; only without them d_model / heads, which `nemotron_h` is never.
    fn head_dim(keys: &Keys<'_>, d_model: usize, heads: &[usize]) -> Result<usize, ModelError> {
        let key = keys.optional("attention.key_length", 1..=MAX_WIDTH)?;
        let value = keys.optional("attention.value_length", 1..=MAX_WIDTH)?;
        let derived = |part: &str| {
            if keys.arch.is_nemotron_h() {
                return Err(keys.missing(part));
            }
            let heads = heads.iter().copied().find(|&h| h > 0).unwrap_or(0);
            if heads == 0 || !d_model.is_multiple_of(heads) {
                return Err(keys.range(
                    "embedding_length",
                    format!("{d_model} with attention.head_count {heads}"),
                    "a multiple of the head count, or the keys attention.key_length and attention.value_length",
                ));
            }
            Ok(d_model / heads)
        };
        let key = key.map_or_else(|| derived("attention.key_length"), Ok)?;
        let value = value.map_or_else(|| derived("attention.value_length"), Ok)?;
        if key != value {
            return Err(keys.range(
                "attention.value_length",
                format!("{value} with attention.key_length {key}"),
                "equal key and value lengths",
            ));
        }
        if !key.is_multiple_of(8) {
            return Err(keys.unsupported("attention.key_length", &key.to_string(), "multiples of 8"));
        }
        Ok(key)
    }

    /// The FFN of every block: dense, or experts if the architecture has them.
    fn ffn(keys: &Keys<'_>, arch: Arch) -> Result<Vec<Ffn>, ModelError> {
        let all = keys.counts.all as usize;
        let widths = keys.per_block("feed_forward_length", 0..=MAX_WIDTH)?;
        if let Some(family) = arch.experts() {
            let experts = ExpertKeys::read(keys, family, &widths.unwrap_or_else(|| vec![0; all]))?;
            return (0..all).map(|i| experts.block(keys, i).map(Ffn::Experts)).collect();
        }
        if keys.optional("expert_count", 0..=MAX_WIDTH)?.unwrap_or(0) > 0 {
            return Err(keys.unsupported("expert_count", "experts", "dense files of this architecture"));
        }
        let widths = widths.ok_or_else(|| keys.missing("feed_forward_length"))?;
        match widths.iter().position(|&width| width == 0) {
            Some(i) => Err(keys.range("feed_forward_length", format!("0 in block {i}"), format!("1 to {MAX_WIDTH}"))),
            None => Ok(widths.into_iter().map(|width| Ffn::Dense { width, activation: Activation::SwiGlu }).collect()),
        }
    }

    /// Which block is what: the explicit list wins over the interval; NextN blocks are attention whatever either says.
    fn mixers(keys: &Keys<'_>) -> Result<Vec<Mixer>, ModelError> {
        let (all, trunk) = (keys.counts.all as usize, keys.counts.trunk() as usize);
        let listed = keys.counts.per_layer_bool(keys.meta, &keys.full("attention.recurrent_layers"), false)?;
        let recurrent: Vec<bool> = match listed {
            Some(list) => list,
            None => {
                let interval = keys.optional("full_attention_interval", 1..=MAX_BLOCKS)?.unwrap_or(4);
                (0..all).map(|i| !(i + 1).is_multiple_of(interval)).collect()
            }
        };
        let kind = |(i, delta)| if delta && i < trunk { Mixer::Delta } else { Mixer::Attention };
        Ok(recurrent.into_iter().enumerate().map(kind).collect())
    }
}

/// A float that must be there, above 0 and at most 1: what is added to squares of numbers around 1.
fn positive(keys: &Keys<'_>, key: &str) -> Result<f32, ModelError> {
    let value = keys.float(key)?.ok_or_else(|| keys.missing(key))?;
    if value <= 0.0 || value > 1.0 {
        return Err(keys.range(key, value, "a number above 0, at most 1"));
    }
    Ok(value)
}

/// A float that activations are multiplied by, if it is given and not 0. Beyond the range of half floats, in which
/// activations are scaled, nothing but overflow would come of it.
fn factor(keys: &Keys<'_>, key: &str) -> Result<Option<f32>, ModelError> {
    let value = keys.float(key)?.filter(|&value| value != 0.0);
    match value.filter(|value| !(MIN_FACTOR..=MAX_FACTOR).contains(value)) {
        Some(value) => Err(keys.range(key, value, format!("0 for none, or {MIN_FACTOR} to {MAX_FACTOR}"))),
        None => Ok(value),
    }
}

/// Limits that no real model comes near; they keep products of any two within 64 bits.
const MAX_BLOCKS: usize = 1 << 12;
const MAX_WIDTH: usize = 1 << 24;
const MAX_TAPS: usize = 64;
const MAX_CONTEXT: usize = 1 << 31;
const MAX_FACTOR: f32 = 65504.0;
const MIN_FACTOR: f32 = 1.0 / MAX_FACTOR;
