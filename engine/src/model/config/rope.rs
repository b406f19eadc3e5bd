//! Rotary embedding: the keys `rope.*`.

use engine_kernels::ops::rope::Pairing;

use super::super::error::ModelError;
use super::super::keys::Keys;
use super::{Arch, MAX_CONTEXT, MAX_WIDTH};

/// Base of the angles where the file gives none.   Source: llama.cpp `load_hparams`.
pub const FREQ_BASE: f32 = 10000.0;

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
    /// How pairs are shared out to position streams, where the architecture has several. Text has the same position in
    /// each, so this changes no angle; files of one model agree in it.
    pub sections: Option<[u32; 4]>,
}

impl RopeConfig {
    /// Reads the keys. `sections`: the file must say how pairs are shared out to position streams.
    ///
    /// # Errors
    /// A key that is missing, out of range, or asks for what is not implemented.
    pub(super) fn read(keys: &Keys<'_>, head_dim: usize, pairing: Pairing, sections: bool) -> Result<Self, ModelError> {
        let n_rot = keys.optional("rope.dimension_count", 1..=MAX_WIDTH)?.unwrap_or(head_dim);
        if n_rot > head_dim || !n_rot.is_multiple_of(2) {
            let found = format!("{n_rot} with a head size of {head_dim}");
            return Err(keys.range("rope.dimension_count", found, "an even number up to the head size"));
        }
        // Source: llama.cpp `load_hparams`, which refuses it for this architecture.
        if keys.arch == Arch::Llama && n_rot != head_dim {
            return Err(keys.range("rope.dimension_count", n_rot, format!("the head size, which is {head_dim}")));
        }
        let freq_base = keys.float("rope.freq_base")?.unwrap_or(FREQ_BASE);
        if freq_base <= 0.0 {
            return Err(keys.range("rope.freq_base", freq_base, "a number above 0"));
        }
        // The pair that turns fastest: the first for a base above 1, the last for one below.
        let fastest = freq_base.powf(-((n_rot - 2) as f32) / n_rot as f32).max(1.0) * MAX_CONTEXT as f32;
        if !fastest.is_finite() {
            return Err(keys.range("rope.freq_base", freq_base, "a base whose angles are numbers, such as 10000"));
        }
        let sections = if sections { Some(Self::sections(keys, n_rot)?) } else { None };

        let scaling = keys.meta.get_str(&keys.full("rope.scaling.type"))?;
        let position_scale = match (scaling, Self::factor(keys)?) {
            (Some("none" | "llama3"), _) | (None, None) => 1.0,
            (Some("linear"), None) => return Err(keys.missing("rope.scaling.factor")),
            // A factor alone is one of linear scaling.   Source: llama.cpp `load_hparams`.
            (None | Some("linear"), Some((key, factor))) => {
                if factor <= 0.0 || !(fastest / factor).is_finite() {
                    return Err(keys.range(key, factor, "a number above 0 that positions can be divided by"));
                }
                1.0 / factor
            }
            (Some(other), _) => return Err(keys.unsupported("rope.scaling.type", other, "none, linear, llama3")),
        };
        // It multiplies rotated queries and keys, whatever the type of scaling.   Source: llama.cpp `llama_context`.
        let key = "rope.scaling.attn_factor";
        if let Some(factor) = keys.float(key)?.filter(|&factor| factor != 1.0) {
            return Err(keys.unsupported(key, &factor.to_string(), "1"));
        }
        let needs_factors = scaling == Some("llama3");
        Ok(Self { n_rot, freq_base, position_scale, pairing, needs_factors, sections })
    }

    /// The factor of scaling, and which key says it: the old one counts where the other is absent.
    fn factor(keys: &Keys<'_>) -> Result<Option<(&'static str, f32)>, ModelError> {
        for key in ["rope.scaling.factor", "rope.scale_linear"] {
            if let Some(factor) = keys.float(key)? {
                return Ok(Some((key, factor)));
            }
        }
        Ok(None)
    }

    /// The three position streams of text are equal, so sections only have to cover every pair; the fourth stream is
    /// 0 for text, and a pair that used it would not turn.
    fn sections(keys: &Keys<'_>, n_rot: usize) -> Result<[u32; 4], ModelError> {
        let key = "rope.dimension_sections";
        let sections = keys.meta.get_i32_array(&keys.full(key))?.ok_or_else(|| keys.missing(key))?;
        let Ok(found) = <[i32; 4]>::try_from(sections.as_slice()) else {
            return Err(keys.range(key, format!("an array of {}", sections.len()), "an array of 4"));
        };
        let sum: i64 = found.iter().map(|&s| i64::from(s)).sum();
        if found.iter().any(|&s| s < 0) || sum != (n_rot / 2) as i64 {
            let expected = "four counts of at least 0 whose sum is half of rope.dimension_count";
            return Err(keys.range(key, format!("{found:?} with {n_rot} rotated dimensions"), expected));
        }
        if found[3] > 0 {
            let found = format!("{found:?}");
            return Err(keys.unsupported(key, &found, "sections whose fourth count is 0 (text positions)"));
        }
        Ok(found.map(i32::unsigned_abs))
    }
}
