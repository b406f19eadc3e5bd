//! `nemotron_h`: what each block is, by two arrays.
//!
//! | feed_forward_length | head_count_kv | block |
//! |---|---|---|
//! | 0 | 0 | Mamba2 |
//! | 0 | above 0 | attention |
//! | above 0 | any | FFN: experts in `nemotron_h_moe`, else dense |
//!
//! An MTP block is attention and experts in one, whatever the arrays say.

use super::super::error::ModelError;
use super::super::keys::Keys;
use super::{Activation, Arch, ExpertKeys, Ffn, MAX_WIDTH, Mixer};

/// Mixer and FFN of every block.
///
/// # Errors
/// A key that is missing, out of range, or in contradiction to another.
pub(super) fn blocks(keys: &Keys<'_>, arch: Arch, kv_heads: &[usize]) -> Result<(Vec<Mixer>, Vec<Ffn>), ModelError> {
    let key = "feed_forward_length";
    let widths = keys.per_block(key, 0..=MAX_WIDTH)?.ok_or_else(|| keys.missing(key))?;
    let experts = match arch.experts() {
        Some(family) => Some(ExpertKeys::read(keys, family, &widths)?),
        None if keys.optional("expert_count", 0..=MAX_WIDTH)?.unwrap_or(0) > 0 => {
            return Err(keys.unsupported("expert_count", "experts", "them in nemotron_h_moe files"));
        }
        None => None,
    };
    let trunk = keys.counts.trunk() as usize;
    let (mut mixers, mut ffn) = (Vec::new(), Vec::new());
    for (i, (&width, &kv)) in widths.iter().zip(kv_heads).enumerate() {
        mixers.push(match (width, kv) {
            _ if i >= trunk => Mixer::Attention,
            (0, 0) => Mixer::Mamba2,
            (0, _) => Mixer::Attention,
            _ => Mixer::None,
        });
        ffn.push(match &experts {
            _ if i < trunk && width == 0 => Ffn::None,
            Some(experts) => Ffn::Experts(experts.block(keys, i)?),
            None => Ffn::Dense { width, activation: Activation::ReluSquared },
        });
    }
    Ok((mixers, ffn))
}
