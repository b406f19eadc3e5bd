//! Hyperparameters of a model, read from its metadata and checked once.
//!
//! Everything that can contradict itself is compared here, so that the program builders may divide and index freely.

use engine_io::gguf::{Meta, StrArray};
use engine_kernels::ops::rope::Pairing;

use super::error::ModelError;
use super::keys::Keys;

/// Architectures that can be run, by the name in `general.architecture`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arch {
    /// `llama`: attention and gated FFN.
    Llama,
    /// `qwen35`: gated delta net and gated attention, dense FFN, optional MTP block.
    Qwen35,
}

impl Arch {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Llama, Self::Qwen35];

    /// The name in `general.architecture`, and the prefix of the architecture's keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen35 => "qwen35",
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

/// One block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// What mixes positions.
    pub mixer: Mixer,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of the FFN.
    pub ffn: usize,
}

/// Rotary embedding.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RopeConfig {
    /// Rotated dimensions of a head, even.
    pub n_rot: usize,
    /// Base of the geometric angles.
    pub freq_base: f32,
    /// Positions are multiplied by this (1 / factor of linear scaling).
    pub position_scale: f32,
    /// Which dimensions form a pair.
    pub pairing: Pairing,
    /// The file says `llama3`: a `rope_freqs` tensor is then required.
    pub needs_factors: bool,
}

/// Geometry of the gated delta net.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeltaConfig {
    /// Key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub value_heads: usize,
    /// Width of key and value heads.
    pub head_dim: usize,
    /// Taps of the convolution.
    pub conv_taps: usize,
}

impl DeltaConfig {
    /// Channels of the convolution: queries, keys, values.
    pub fn channels(&self) -> usize {
        self.head_dim * (2 * self.key_heads + self.value_heads)
    }

    /// Width of all value heads.
    pub fn inner(&self) -> usize {
        self.head_dim * self.value_heads
    }
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
        if keys.optional("expert_count", 0..=MAX_WIDTH)?.unwrap_or(0) > 0 {
            return Err(keys.unsupported("expert_count", "experts", "dense files of this architecture"));
        }

        let d_model = keys.require("embedding_length", 1..=MAX_WIDTH)?;
        let heads = keys.per_block("attention.head_count", 0..=MAX_WIDTH)?;
        let heads = heads.ok_or_else(|| keys.missing("attention.head_count"))?;
        let kv_heads = keys.per_block("attention.head_count_kv", 0..=MAX_WIDTH)?.unwrap_or_else(|| heads.clone());
        let ffn = keys.per_block("feed_forward_length", 1..=MAX_WIDTH)?;
        let ffn = ffn.ok_or_else(|| keys.missing("feed_forward_length"))?;

        let head_dim = Self::head_dim(keys, d_model, &heads)?;
        let norm_eps = keys.float("attention.layer_norm_rms_epsilon")?;
        let norm_eps = norm_eps.ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))?;
        if norm_eps <= 0.0 {
            return Err(keys.range("attention.layer_norm_rms_epsilon", norm_eps, "a number above 0"));
        }

        let mixers = match arch {
            Arch::Llama => vec![Mixer::Attention; all],
            Arch::Qwen35 => Self::mixers(keys)?,
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
            true => Some(Self::delta(keys)?),
            false => None,
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
            rope: Self::rope(keys, arch, head_dim)?,
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

    fn delta(keys: &Keys<'_>) -> Result<DeltaConfig, ModelError> {
        let conv_taps = keys.require("ssm.conv_kernel", 2..=MAX_TAPS)?;
        let head_dim = keys.require("ssm.state_size", 1..=MAX_WIDTH)?;
        let key_heads = keys.require("ssm.group_count", 1..=MAX_WIDTH)?;
        let value_heads = keys.require("ssm.time_step_rank", 1..=MAX_WIDTH)?;
        let inner = keys.require("ssm.inner_size", 1..=MAX_WIDTH)?;
        if !value_heads.is_multiple_of(key_heads) {
            return Err(keys.range(
                "ssm.time_step_rank",
                format!("{value_heads} value heads with ssm.group_count {key_heads}"),
                "a multiple of the key heads",
            ));
        }
        if value_heads.checked_mul(head_dim) != Some(inner) {
            return Err(keys.range(
                "ssm.inner_size",
                format!("{inner} with ssm.time_step_rank {value_heads} and ssm.state_size {head_dim}"),
                "their product: key and value heads have one size",
            ));
        }
        Ok(DeltaConfig { key_heads, value_heads, head_dim, conv_taps })
    }

    fn rope(keys: &Keys<'_>, arch: Arch, head_dim: usize) -> Result<RopeConfig, ModelError> {
        let n_rot = keys.optional("rope.dimension_count", 1..=MAX_WIDTH)?.unwrap_or(head_dim);
        if n_rot > head_dim || !n_rot.is_multiple_of(2) {
            let found = format!("{n_rot} with a head size of {head_dim}");
            return Err(keys.range("rope.dimension_count", found, "an even number up to the head size"));
        }
        let freq_base = keys.float("rope.freq_base")?.unwrap_or(10000.0);
        if freq_base <= 0.0 {
            return Err(keys.range("rope.freq_base", freq_base, "a number above 0"));
        }
        if arch == Arch::Qwen35 {
            Self::sections(keys, n_rot)?;
        }

        let scaling = keys.meta.get_str(&keys.full("rope.scaling.type"))?.unwrap_or("none");
        let position_scale = match scaling {
            "none" | "llama3" => 1.0,
            "linear" => {
                let factor = keys.float("rope.scaling.factor")?;
                let factor = factor.ok_or_else(|| keys.missing("rope.scaling.factor"))?;
                if factor <= 0.0 {
                    return Err(keys.range("rope.scaling.factor", factor, "a number above 0"));
                }
                1.0 / factor
            }
            other => return Err(keys.unsupported("rope.scaling.type", other, "none, linear, llama3")),
        };
        let pairing = match arch {
            Arch::Llama => Pairing::Adjacent,
            Arch::Qwen35 => Pairing::Halves,
        };
        Ok(RopeConfig { n_rot, freq_base, position_scale, pairing, needs_factors: scaling == "llama3" })
    }

    /// The three position streams of text are equal, so sections only have to cover every pair; the fourth stream is
    /// 0 for text, and a pair that used it would not turn.
    fn sections(keys: &Keys<'_>, n_rot: usize) -> Result<(), ModelError> {
        let key = "rope.dimension_sections";
        let sections = keys.meta.get_i32_array(&keys.full(key))?.ok_or_else(|| keys.missing(key))?;
        if sections.len() != 4 {
            return Err(keys.range(key, format!("an array of {}", sections.len()), "an array of 4"));
        }
        let sum: i64 = sections.iter().map(|&s| i64::from(s)).sum();
        if sections.iter().any(|&s| s < 0) || sum != (n_rot / 2) as i64 {
            let expected = "four counts of at least 0 whose sum is half of rope.dimension_count";
            return Err(keys.range(key, format!("{sections:?} with {n_rot} rotated dimensions"), expected));
        }
        if sections[3] > 0 {
            let found = format!("{sections:?}");
            return Err(keys.unsupported(key, &found, "sections whose fourth count is 0 (text positions)"));
        }
        Ok(())
    }
}

/// Limits that no real model comes near; they keep products of any two within 64 bits.
const MAX_BLOCKS: usize = 1 << 12;
const MAX_WIDTH: usize = 1 << 24;
const MAX_TAPS: usize = 64;
const MAX_CONTEXT: usize = 1 << 31;
