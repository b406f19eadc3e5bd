//! Mixtures of experts: the keys `expert_*`.

use engine_kernels::ops::moe::{GROUPS_MAX, Gating, Groups, Router};

use super::super::error::ModelError;
use super::super::keys::Keys;
use super::{MAX_WIDTH, factor};

/// What is applied between the matrices of an FFN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// `silu(gate) * up`.
    SwiGlu,
    /// `relu(up)^2`; there is no gate matrix.
    ReluSquared,
}

/// The experts of one block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ExpertsConfig {
    /// How many there are, and how they are chosen and weighted.
    pub router: Router,
    /// Hidden width of a routed expert.
    pub width: usize,
    /// Hidden width of the shared expert, which runs on every row.
    pub shared_width: usize,
    /// Width of the rows that routed experts read and write, where it is not the hidden row's.
    pub latent: Option<usize>,
    /// Of routed and shared experts alike.
    pub activation: Activation,
    /// A tensor is added to the scores for choosing.
    pub selection_bias: bool,
    /// The shared expert's output is multiplied by the sigmoid of a dot product with the row.
    pub shared_gate: bool,
}

/// What an architecture fixes about its experts, whatever a file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpertFamily {
    /// Router logits to scores.
    pub gating: Gating,
    /// Weights are divided by their sum; `None`: the key `expert_weights_norm` says so.
    pub norm: Option<bool>,
    /// No key has a default: whatever it would be, a file that lost the key would be run as another model.
    pub explicit: bool,
    /// The key `expert_weights_scale` is read.
    pub scale: bool,
    /// The key `moe_latent_size` is read.
    pub latent: bool,
    /// See [`ExpertsConfig::activation`].
    pub activation: Activation,
    /// See [`ExpertsConfig::selection_bias`].
    pub selection_bias: bool,
    /// See [`ExpertsConfig::shared_gate`].
    pub shared_gate: bool,
}

impl ExpertFamily {
    /// `qwen35moe`, `qwen3next`.   Source: llama.cpp `src/models/qwen35moe.cpp`, `qwen3next.cpp`.
    pub const QWEN35: Self = Self {
        gating: Gating::Softmax,
        norm: Some(true),
        explicit: false,
        scale: false,
        latent: false,
        activation: Activation::SwiGlu,
        selection_bias: false,
        shared_gate: true,
    };

    /// `nemotron_h_moe`.   Source: llama.cpp `src/models/nemotron-h.cpp`, where sigmoid is fixed.
    pub const NEMOTRON_H: Self = Self {
        gating: Gating::Sigmoid,
        norm: None,
        explicit: true,
        scale: true,
        latent: true,
        activation: Activation::ReluSquared,
        selection_bias: true,
        shared_gate: false,
    };

    /// `qwen4exp`.   Source: llama.cpp `src/models/qwen4exp.cpp`.
    pub const QWEN4EXP: Self = Self { scale: true, ..Self::QWEN35 };
}

/// The least divisor of weights.   Source: llama.cpp `build_moe_ffn` (the smallest normal f16, 2^-14).
const NORM_FLOOR: f32 = 6.103_515_6e-5;

/// Experts of a block at most.
const MAX_EXPERTS: usize = 1 << 16;

/// The keys of a file; blocks differ in some of them.
pub struct ExpertKeys {
    family: ExpertFamily,
    count: usize,
    /// Per block; 0 where a file says so of a block without experts.
    used: Vec<usize>,
    /// Per block; 0 is absent.
    width: Vec<usize>,
    shared_width: usize,
    /// Per block; the dense width that others default to. 0 is absent.
    feed_forward: Vec<usize>,
    latent: Option<usize>,
    groups: Option<Groups>,
    norm: bool,
    scale: f32,
}

impl ExpertKeys {
    /// Reads the keys of a file that must have experts. `feed_forward`: `feed_forward_length` per block, 0 for none.
    ///
    /// # Errors
    /// A key that is missing, of a wrong type or out of range.
    pub fn read(keys: &Keys<'_>, family: ExpertFamily, feed_forward: &[usize]) -> Result<Self, ModelError> {
        let count = keys.require("expert_count", 1..=MAX_EXPERTS)?;
        let used = keys.per_block("expert_used_count", 0..=MAX_EXPERTS)?;
        let width = keys.per_block("expert_feed_forward_length", 0..=MAX_WIDTH)?;
        let given = |key: &'static str, found: bool| match found || !family.explicit {
            true => Ok(()),
            false => Err(keys.missing(key)),
        };
        let key = "expert_weights_scale";
        given(key, !family.scale || keys.float(key)?.is_some())?;
        let scale = if family.scale { factor(keys, key)?.unwrap_or(1.0) } else { 1.0 };
        let norm = if family.norm.is_some() { family.norm } else { keys.flag("expert_weights_norm")? };
        given("expert_weights_norm", norm.is_some())?;
        given("expert_feed_forward_length", width.is_some())?;
        let shared_width = keys.optional("expert_shared_feed_forward_length", 0..=MAX_WIDTH)?;
        given("expert_shared_feed_forward_length", shared_width.is_some())?;
        let group_count = keys.optional("expert_group_count", 0..=GROUPS_MAX)?.unwrap_or(0);
        let groups = match group_count {
            0 | 1 => None,
            count => Some(Groups { count, used: keys.require("expert_group_used_count", 1..=count)? }),
        };
        Ok(Self {
            family,
            count,
            used: used.ok_or_else(|| keys.missing("expert_used_count"))?,
            width: width.unwrap_or_else(|| vec![0; feed_forward.len()]),
            shared_width: shared_width.unwrap_or(0),
            feed_forward: feed_forward.to_vec(),
            latent: if family.latent { keys.optional("moe_latent_size", 1..=MAX_WIDTH)? } else { None },
            groups,
            norm: norm.unwrap_or(false),
            scale,
        })
    }

    /// The experts of block `i`.
    ///
    /// # Errors
    /// Counts that contradict each other, or a width that no key gives.
    pub fn block(&self, keys: &Keys<'_>, i: usize) -> Result<ExpertsConfig, ModelError> {
        let Self { family, count, groups, .. } = *self;
        let used = self.used[i];
        let router = Router {
            experts: count,
            used,
            gating: family.gating,
            groups,
            norm_floor: self.norm.then_some(NORM_FLOOR),
            scale: self.scale,
        };
        if !router.is_valid() {
            return Err(match groups {
                Some(Groups { count: groups, used: open }) => keys.range(
                    "expert_group_count",
                    format!("{groups} with expert_group_used_count {open}, {used} of {count} experts in block {i}"),
                    "a divisor of expert_count whose used groups hold the used experts",
                ),
                None => {
                    keys.range_of_block("expert_used_count", i, used, format!("1 to expert_count, which is {count}"))
                }
            });
        }
        // `used` is at least 1 here.
        let or = |given: usize, default: usize| if given > 0 || family.explicit { given } else { default };
        let width = or(self.width[i], self.feed_forward[i] / used);
        if width == 0 {
            return Err(keys.missing("expert_feed_forward_length"));
        }
        let shared_width = or(self.shared_width, self.feed_forward[i]);
        if shared_width == 0 {
            return Err(keys.missing("expert_shared_feed_forward_length"));
        }
        let ExpertFamily { activation, selection_bias, shared_gate, .. } = family;
        let latent = self.latent;
        Ok(ExpertsConfig { router, width, shared_width, latent, activation, selection_bias, shared_gate })
    }
}
