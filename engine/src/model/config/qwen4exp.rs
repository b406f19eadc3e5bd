//! What only `qwen4exp` has: hyper-connections, the indexer of its block-sparse attention, n-gram embeddings.

use engine_io::gguf::{Array, Value};
use engine_kernels::ops::ngram::{NgramHash, NgramHead};

use super::super::error::ModelError;
use super::super::keys::Keys;
use super::{Block, MAX_TAPS, MAX_WIDTH, Mixer};

/// Streams of the residual at most.
const MAX_STREAMS: usize = 64;
/// Tokens of a block of the indexer at most.
const MAX_RATIO: usize = 64;
/// Hash heads at most.
const MAX_NGRAM_HEADS: usize = 64;

/// The keys of the architecture that no other has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Qwen4ExpConfig {
    /// Streams of the residual, at least 2.
    pub streams: usize,
    /// Inner width of a mixer.
    pub low_rank: usize,
    /// Which positions attention chooses.
    pub indexer: IndexerConfig,
    /// Per block: tokens of a block of the indexer; 0 where attention is dense.
    pub ratio: Vec<usize>,
    /// N-gram embeddings, in one block.
    pub ngram: Option<NgramConfig>,
}

/// The indexer of all block-sparse layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexerConfig {
    /// Query heads; there is one key head.
    pub heads: usize,
    /// Width of a head.
    pub dim: usize,
    /// Tokens chosen, a multiple of every ratio.
    pub budget: usize,
}

/// N-gram embeddings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NgramConfig {
    /// The block they go into, a recurrent one.
    pub block: usize,
    /// Tokens to rows of the table.
    pub hash: NgramHash,
    /// Width of a row of the table; all heads together are as wide as a hidden row.
    pub row: usize,
    /// Taps of the convolution over what was looked up, as far apart as the longest n-gram is long.
    pub conv_taps: usize,
}

impl NgramConfig {
    /// Rows that the table has at least.
    pub fn table_rows(&self) -> u64 {
        self.hash.heads.iter().map(|head| head.offset + head.size).max().unwrap_or(0)
    }
}

impl Qwen4ExpConfig {
    /// Reads the keys. `vocab`: length of the token list, if the file has one.
    ///
    /// # Errors
    /// A key that is missing, of a wrong type, out of range, or in contradiction to another.
    pub(super) fn read(
        keys: &Keys<'_>,
        d_model: usize,
        n_rot: usize,
        blocks: &[Block],
        vocab: Option<usize>,
    ) -> Result<Self, ModelError> {
        nextn_is_not_recurrent(keys)?;
        let streams = keys.require("hyper_connection.count", 2..=MAX_STREAMS)?;
        let low_rank = keys.require("hyper_connection.low_rank", 1..=MAX_WIDTH)?;
        let indexer = IndexerConfig {
            heads: keys.require("attention.indexer.head_count", 1..=MAX_WIDTH)?,
            dim: keys.require("attention.indexer.key_length", 1..=MAX_WIDTH)?,
            budget: keys.require("attention.indexer.top_k", 1..=MAX_WIDTH)?,
        };
        if n_rot > indexer.dim {
            return Err(keys.range(
                "rope.dimension_count",
                format!("{n_rot} with attention.indexer.key_length {}", indexer.dim),
                "at most the width of an index key",
            ));
        }
        let ratio = ratios(keys, blocks, indexer.budget)?;
        let ngram = ngram(keys, d_model, blocks, vocab)?;
        Ok(Self { streams, low_rank, indexer, ratio, ngram })
    }
}

/// An MTP block is attention; a file that says otherwise was made for something else.
fn nextn_is_not_recurrent(keys: &Keys<'_>) -> Result<(), ModelError> {
    let key = "attention.recurrent_layers";
    let listed = match keys.meta.get(&keys.full(key)) {
        Some(Value::Array(_)) => keys.counts.per_layer_bool(keys.meta, &keys.full(key), false)?,
        _ => None,
    };
    let trunk = keys.counts.trunk() as usize;
    match listed.and_then(|list| list[trunk..].iter().position(|&recurrent| recurrent)) {
        Some(i) => Err(keys.range_of_block(key, trunk + i, true, "false, for an MTP block is attention")),
        None => Ok(()),
    }
}

/// Tokens of a block per layer, 0 = dense; all dense without the key.
fn ratios(keys: &Keys<'_>, blocks: &[Block], budget: usize) -> Result<Vec<usize>, ModelError> {
    let key = "attention.compress_ratios";
    // A list of the trunk's blocks leaves the MTP block dense.
    let Some(listed) = keys.counts.per_layer_u32(keys.meta, &keys.full(key), 0)? else {
        return Ok(vec![0; blocks.len()]);
    };
    let mut first = None;
    let mut out = Vec::with_capacity(blocks.len());
    for (i, (&ratio, block)) in listed.iter().zip(blocks).enumerate() {
        let ratio = ratio as usize;
        // A scalar speaks of recurrent blocks too.
        out.push(if block.mixer == Mixer::Attention { ratio } else { 0 });
        if ratio == 0 {
            continue;
        }
        if !(2..=MAX_RATIO).contains(&ratio) {
            return Err(keys.range(&format!("{key}[{i}]"), ratio, format!("0, or 2 to {MAX_RATIO}")));
        }
        let agreed = *first.get_or_insert(ratio);
        if agreed != ratio {
            return Err(keys.range(&format!("{key}[{i}]"), ratio, format!("{agreed} as in the blocks before, or 0")));
        }
        if !budget.is_multiple_of(ratio) {
            return Err(keys.range(
                "attention.indexer.top_k",
                format!("{budget} with {key} {ratio}"),
                "a multiple of the ratio",
            ));
        }
    }
    Ok(out)
}

fn ngram(
    keys: &Keys<'_>,
    d_model: usize,
    blocks: &[Block],
    vocab: Option<usize>,
) -> Result<Option<NgramConfig>, ModelError> {
    let layers = keys.meta.get_u32_array(&keys.full("ple.layers"))?.unwrap_or_default();
    let block = match layers.as_slice() {
        [] => return Ok(None),
        [block] => *block as usize,
        more => {
            return Err(keys.unsupported("ple.layers", &format!("{more:?}"), "one block with n-gram embeddings"));
        }
    };
    let trunk = keys.counts.trunk() as usize;
    if block >= trunk || blocks[block].mixer != Mixer::Delta {
        return Err(keys.range("ple.layers", block, format!("a recurrent block of the trunk, which has {trunk}")));
    }
    let ngram_size = keys.require("ple.ngram_size", 2..=8)?;
    let heads_per_ngram = keys.require("ple.heads_per_ngram", 1..=MAX_NGRAM_HEADS)?;
    let heads = (ngram_size - 1) * heads_per_ngram;
    if heads > MAX_NGRAM_HEADS {
        return Err(keys.range(
            "ple.heads_per_ngram",
            format!("{heads_per_ngram} with ple.ngram_size {ngram_size}"),
            format!("at most {MAX_NGRAM_HEADS} heads in all"),
        ));
    }
    let row = keys.require("embedding_length_per_layer_input", 1..=MAX_WIDTH)?;
    if row.checked_mul(heads) != Some(d_model) {
        return Err(keys.range(
            "embedding_length_per_layer_input",
            format!("{row} with {heads} heads"),
            format!("rows that make up embedding_length, which is {d_model}"),
        ));
    }
    let vocab_key = keys.optional("vocab_size", 1..=MAX_WIDTH)?;
    let vocab = vocab.max(vocab_key).unwrap_or(1);
    let end_token = keys.require("ple.eos_token_id", 0..=u32::MAX as usize - 1)? as u32;
    let largest = (vocab as u64).saturating_sub(1).max(u64::from(end_token));
    // What the image token would be hashed as; text has none, but the key must be sound.
    keys.optional("ple.image_token_id", 0..=u32::MAX as usize - 1)?;
    let multipliers = constants(keys, "ple.layer_multipliers", ngram_size)?;
    if let Some(i) = multipliers.iter().position(|&m| m == 0) {
        let expected = "a factor above 0: with 0 all tokens would be one";
        return Err(keys.range(&format!("ple.layer_multipliers[{i}]"), 0, expected));
    }
    if let Some(i) = multipliers.iter().position(|&m| m.checked_mul(largest).is_none_or(|p| p >> 63 != 0)) {
        return Err(keys.range(
            &format!("ple.layer_multipliers[{i}]"),
            multipliers[i],
            format!("a factor whose product with every token id up to {largest} is below 2^63"),
        ));
    }
    let offsets = constants(keys, "ple.head_offsets", heads)?;
    let sizes = constants(keys, "ple.head_vocab_sizes", heads)?;
    let limit = i32::MAX as u64;
    let mut hash_heads = Vec::with_capacity(heads);
    for (i, (offset, size)) in offsets.into_iter().zip(sizes).enumerate() {
        if offset > limit {
            return Err(keys.range(&format!("ple.head_offsets[{i}]"), offset, format!("0 to {limit}")));
        }
        if size == 0 || size > limit {
            return Err(keys.range(&format!("ple.head_vocab_sizes[{i}]"), size, format!("1 to {limit}")));
        }
        hash_heads.push(NgramHead { size, offset });
    }
    let conv_taps = keys.require("ple.conv_kernel", 1..=MAX_TAPS)?;
    let hash = NgramHash { end_token, multipliers, heads: hash_heads, heads_per_ngram };
    Ok(Some(NgramConfig { block, hash, row, conv_taps }))
}

/// The first `len` of a list of 64-bit numbers.
fn constants(keys: &Keys<'_>, key: &str, len: usize) -> Result<Vec<u64>, ModelError> {
    let name = keys.full(key);
    if let Some(Value::Array(Array::I32(list))) = keys.meta.get(&name)
        && let Some(i) = list.iter().position(|&x| x < 0)
    {
        return Err(keys.range(&format!("{key}[{i}]"), list[i], "a number that was not cut to 32 bits"));
    }
    let mut list = keys.meta.get_u64_array(&name)?.ok_or_else(|| keys.missing(key))?;
    if list.len() < len {
        return Err(keys.range(key, format!("an array of {}", list.len()), format!("at least {len} numbers")));
    }
    list.truncate(len);
    Ok(list)
}
