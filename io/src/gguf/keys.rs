//! Metadata key names, verbatim.

/// The architecture string; the prefix of its hyperparameter keys.
pub const ARCHITECTURE: &str = "general.architecture";
/// Alignment of the data section and of every tensor in it; 32 when absent.
pub const ALIGNMENT: &str = "general.alignment";
/// Name of the model, for people.
pub const NAME: &str = "general.name";
/// Index of this shard, from 0.
pub const SPLIT_NO: &str = "split.no";
/// Number of shards.
pub const SPLIT_COUNT: &str = "split.count";
/// Number of tensors of all shards together.
pub const SPLIT_TENSORS_COUNT: &str = "split.tensors.count";

/// Suffix of an architecture's key: all blocks, trunk and NextN.
pub const BLOCK_COUNT: &str = "block_count";
/// Suffix of an architecture's key: NextN (MTP) blocks at the end; absent: 0.
pub const NEXTN_PREDICT_LAYERS: &str = "nextn_predict_layers";

/// `arch.suffix`.
pub fn arch(architecture: &str, suffix: &str) -> String {
    format!("{architecture}.{suffix}")
}
