//! The gated delta net: the keys `ssm.*`.

use super::super::error::ModelError;
use super::super::keys::Keys;
use super::{MAX_TAPS, MAX_WIDTH};

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

    /// Reads the keys.
    ///
    /// # Errors
    /// A key that is missing, out of range, or in contradiction to another.
    pub(super) fn read(keys: &Keys<'_>) -> Result<Self, ModelError> {
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
        Ok(Self { key_heads, value_heads, head_dim, conv_taps })
    }
}
