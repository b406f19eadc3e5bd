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

/// Hyperparameter suffixes, to be joined with the architecture by [`arch`]. "Per layer" keys are scalars or arrays, see
/// [`super::LayerCounts`]; what is absent follows the rule named.
pub mod suffix {
    /// All blocks, trunk and NextN.
    pub const BLOCK_COUNT: &str = "block_count";
    /// NextN (MTP) blocks at the end; absent: 0.
    pub const NEXTN_PREDICT_LAYERS: &str = "nextn_predict_layers";
    /// Longest context trained for, in tokens.
    pub const CONTEXT_LENGTH: &str = "context_length";
    /// Width of the residual stream.
    pub const EMBEDDING_LENGTH: &str = "embedding_length";
    /// Width of the dense feed-forward, per layer.
    pub const FEED_FORWARD_LENGTH: &str = "feed_forward_length";
    /// Rows of the vocabulary; absent: those of `token_embd`.
    pub const VOCAB_SIZE: &str = "vocab_size";
    /// Query heads, per layer.
    pub const HEAD_COUNT: &str = "attention.head_count";
    /// Key and value heads, per layer; absent: as many as query heads.
    pub const HEAD_COUNT_KV: &str = "attention.head_count_kv";
    /// Size of a query and key head; absent: embedding length / query heads.
    pub const KEY_LENGTH: &str = "attention.key_length";
    /// Size of a value head; absent: embedding length / query heads.
    pub const VALUE_LENGTH: &str = "attention.value_length";
    /// Epsilon of every RMS norm.
    pub const RMS_EPSILON: &str = "attention.layer_norm_rms_epsilon";
    /// Flags per block, true = recurrent; wins over [`FULL_ATTENTION_INTERVAL`].
    pub const RECURRENT_LAYERS: &str = "attention.recurrent_layers";
    /// Trunk block i is full attention when (i + 1) is a multiple of this; absent: 4.
    pub const FULL_ATTENTION_INTERVAL: &str = "full_attention_interval";
    /// Rotated dimensions of a head; absent: all.
    pub const ROPE_DIMENSION_COUNT: &str = "rope.dimension_count";
    /// Rotated pairs per position axis.
    pub const ROPE_DIMENSION_SECTIONS: &str = "rope.dimension_sections";
    /// Base of the rotation; absent: 10000.
    pub const ROPE_FREQ_BASE: &str = "rope.freq_base";
    /// Kind of context extension; absent: none.
    pub const ROPE_SCALING_TYPE: &str = "rope.scaling.type";
    /// Factor of the context extension.
    pub const ROPE_SCALING_FACTOR: &str = "rope.scaling.factor";
    /// Taps of the short convolution.
    pub const SSM_CONV_KERNEL: &str = "ssm.conv_kernel";
    /// Size of a recurrent key head.
    pub const SSM_STATE_SIZE: &str = "ssm.state_size";
    /// Recurrent key heads.
    pub const SSM_GROUP_COUNT: &str = "ssm.group_count";
    /// Recurrent value heads.
    pub const SSM_TIME_STEP_RANK: &str = "ssm.time_step_rank";
    /// All recurrent value heads together.
    pub const SSM_INNER_SIZE: &str = "ssm.inner_size";
}

/// `arch.suffix`.
pub fn arch(architecture: &str, suffix: &str) -> String {
    format!("{architecture}.{suffix}")
}
