//! Mamba2: the keys `ssm.*`.

use super::super::error::ModelError;
use super::super::keys::Keys;
use super::{MAX_TAPS, MAX_WIDTH};

/// Geometry of the Mamba2 layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mamba2Config {
    /// Heads, a multiple of the groups.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Groups: consecutive heads share B, C and a norm.
    pub groups: usize,
    /// Width of B and C, per group.
    pub state_dim: usize,
    /// Taps of the convolution.
    pub conv_taps: usize,
}

impl Mamba2Config {
    /// Reads the keys.
    ///
    /// # Errors
    /// A key that is missing, out of range, or in contradiction to another.
    pub(super) fn read(keys: &Keys<'_>) -> Result<Self, ModelError> {
        let conv_taps = keys.require("ssm.conv_kernel", 2..=MAX_TAPS)?;
        let state_dim = keys.require("ssm.state_size", 1..=MAX_WIDTH)?;
        let groups = keys.require("ssm.group_count", 1..=MAX_WIDTH)?;
        let heads = keys.require("ssm.time_step_rank", 1..=MAX_WIDTH)?;
        let inner = keys.require("ssm.inner_size", 1..=MAX_WIDTH)?;
        if !heads.is_multiple_of(groups) {
            return Err(keys.range(
                "ssm.time_step_rank",
                format!("{heads} heads with ssm.group_count {groups}"),
                "a multiple of the groups",
            ));
        }
        if !inner.is_multiple_of(heads) {
            return Err(keys.range(
                "ssm.inner_size",
                format!("{inner} with ssm.time_step_rank {heads}"),
                "a multiple of the heads",
            ));
        }
        Ok(Self { heads, head_dim: inner / heads, groups, state_dim, conv_taps })
    }
}
