//! Hyperparameters of a model, read from its metadata and checked once.
//!
//! Everything that can contradict itself is compared here, so that the program builders may divide and index freely.

use engine_io::gguf::{Meta, StrArray};
use engine_kernels::ops::rope::Pairing;

use super::error::ModelError;
use super::keys::Keys;

mod delta;
mod experts;
mod rope;

pub use delta::DeltaConfig;
pub use experts::{Activation, ExpertFamily, ExpertKeys, ExpertsConfig};
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
}

impl Arch {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Llama, Self::Qwen35, Self::Qwen35Moe];

    /// The name in `general.architecture`, and the prefix of the architecture's keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen35 => "qwen35",
            Self::Qwen35Moe => "qwen35moe",
        }
    }

    /// What it fixes about its experts; `None`: its blocks are dense.
    fn experts(self) -> Option<ExpertFamily> {
        match self {
            Self::Llama | Self::Qwen35 => None,
            Self::Qwen35Moe => Some(ExpertFamily::QWEN35),
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
}

/// What a block does to each position by itself.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Ffn {
    /// Nothing.
    None,
    /// One FFN of this hidden width.
    Dense(usize),
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
    /// Width of an attention head, of queries, keys and values alike.
    pub head_dim: usize,
    /// Trunk blocks.
    pub trunk: usize,
    /// NextN blocks that the metadata announces behind the trunk.
    pub nextn: usize,
    /// Trunk blocks, then NextN blocks.
    pub blocks: Vec<Block>,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Present if any trunk block is a delta net.
    pub delta: Option<DeltaConfig>,
    /// The file's token list; `None` without one.
    pub tokens: Option<TokenList>,
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
            found: found.to_owned(),
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
        let kv_heads = keys.per_block("attention.head_count_kv", 0..=MAX_WIDTH)?.unwrap_or_else(|| heads.clone());
        let ffn = Self::ffn(keys, arch)?;
        let head_dim = Self::head_dim(keys, d_model, &heads)?;
        let norm_eps = keys.float("attention.layer_norm_rms_epsilon")?;
        let norm_eps = norm_eps.ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))?;
        if norm_eps <= 0.0 {
            return Err(keys.range("attention.layer_norm_rms_epsilon", norm_eps, "a number above 0"));
        }

        let mixers = match arch {
            Arch::Llama => vec![Mixer::Attention; all],
            Arch::Qwen35 | Arch::Qwen35Moe => Self::mixers(keys)?,
        };
        let mut blocks = Vec::with_capacity(all);
        for (i, mixer) in mixers.into_iter().enumerate() {
            let block = Block { mixer, heads: heads[i], kv_heads: kv_heads[i], ffn: ffn[i] };
            let fits = block.heads > 0 && block.kv_heads > 0 && block.heads.is_multiple_of(block.kv_heads);
            if mixer == Mixer::Attention && !fits {
                return Err(keys.range(
                    "attention.head_count_kv",
                    format!("{} key/value heads for {} heads in block {i}", block.kv_heads, block.heads),
                    "a positive divisor of attention.head_count",
                ));
            }
            blocks.push(block);
        }
        let delta = match blocks.iter().any(|b| b.mixer == Mixer::Delta) {
            true => Some(DeltaConfig::read(keys)?),
            false => None,
        };

        let rope = match arch {
            Arch::Llama => RopeConfig::read(keys, head_dim, Pairing::Adjacent, false)?,
            Arch::Qwen35 | Arch::Qwen35Moe => RopeConfig::read(keys, head_dim, Pairing::Halves, true)?,
        };

        Ok(Self {
            arch,
            name: meta.get_str("general.name")?.unwrap_or("").to_owned(),
            d_model,
            context_train: keys.require("context_length", 1..=MAX_CONTEXT)?,
            norm_eps,
            head_dim,
            trunk,
            nextn: keys.counts.nextn as usize,
            blocks,
            rope,
            delta,
            tokens: meta.get_str_array("tokenizer.ggml.tokens")?.map(TokenList::of),
        })
    }

    /// Head size from its own keys; only without them d_model / heads.
    fn head_dim(keys: &Keys<'_>, d_model: usize, heads: &[usize]) -> Result<usize, ModelError> {
        let key = keys.optional("attention.key_length", 1..=MAX_WIDTH)?;
        let value = keys.optional("attention.value_length", 1..=MAX_WIDTH)?;
        let derived = || {
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
        let key = key.map_or_else(derived, Ok)?;
        let value = value.map_or_else(derived, Ok)?;
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
            None => Ok(widths.into_iter().map(Ffn::Dense).collect()),
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

/// Limits that no real model comes near; they keep products of any two within 64 bits.
const MAX_BLOCKS: usize = 1 << 12;
const MAX_WIDTH: usize = 1 << 24;
const MAX_TAPS: usize = 64;
const MAX_CONTEXT: usize = 1 << 31;
