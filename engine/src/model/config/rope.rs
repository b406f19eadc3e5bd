//! Rotary embedding: the keys `rope.*`.

use engine_kernels::ops::rope::Pairing;

use super::super::error::ModelError;
use super::super::keys::Keys;
use super::MAX_WIDTH;

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
        let freq_base = keys.float("rope.freq_base")?.unwrap_or(10000.0);
        if freq_base <= 0.0 {
            return Err(keys.range("rope.freq_base", freq_base, "a number above 0"));
        }
        let sections = if sections { Some(Self::sections(keys, n_rot)?) } else { None };

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
        Ok(Self { n_rot, freq_base, position_scale, pairing, needs_factors: scaling == "llama3", sections })
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
