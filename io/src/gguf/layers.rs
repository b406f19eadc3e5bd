//! Block counts and per-layer values: scalar and array forms of one model give the same plan.

use super::keys;
use super::meta::{Array, Meta, Value};
use crate::error::{Error, Result};

/// How many blocks a file speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerCounts {
    /// `block_count`: trunk and NextN blocks.
    pub all: u32,
    /// `nextn_predict_layers`: blocks `all - nextn .. all`.
    pub nextn: u32,
}

impl LayerCounts {
    /// Blocks of the trunk: `0 .. trunk`.
    pub fn trunk(self) -> u32 {
        self.all - self.nextn
    }

    /// Reads `block_count` and `nextn_predict_layers` of a file with a trunk.
    ///
    /// # Errors
    /// [`Error::MissingKey`], [`Error::WrongType`], [`Error::OutOfRange`]; [`Error::Inconsistent`] unless
    /// `0 <= nextn_predict_layers < block_count`.
    pub fn read(meta: &Meta, architecture: &str) -> Result<Self> {
        let all_key = keys::arch(architecture, keys::BLOCK_COUNT);
        let nextn_key = keys::arch(architecture, keys::NEXTN_PREDICT_LAYERS);
        let counts = Self { all: meta.require_u32(&all_key)?, nextn: meta.get_u32(&nextn_key)?.unwrap_or(0) };
        if counts.all == 0 {
            return Err(meta.out_of_range(&all_key, 0, "at least 1"));
        }
        if counts.nextn >= counts.all {
            return Err(meta.inconsistent(
                format!("{nextn_key} = {} and {all_key} = {}", counts.nextn, counts.all),
                format!("{nextn_key} below {all_key}, which counts trunk and NextN blocks; convert the model again"),
            ));
        }
        Ok(counts)
    }

    /// How long an array over the blocks may be.
    fn lengths(self) -> String {
        match self.nextn {
            0 => format!("{} (all blocks)", self.all),
            _ => format!("{} (all blocks) or {} (without the NextN ones)", self.all, self.trunk()),
        }
    }

    /// Spreads what a key holds over all blocks: a scalar holds for every block, an array has one element per block
    /// or, without the NextN blocks, one per trunk block and `head` for each NextN block.
    fn spread<T: Copy>(self, meta: &Meta, key: &str, found: PerLayer<T>, head: T) -> Result<Vec<T>> {
        let all = self.all as usize;
        match found {
            PerLayer::Scalar(v) => Ok(vec![v; all]),
            PerLayer::Array(v) if v.len() == all => Ok(v),
            PerLayer::Array(mut v) if v.len() == self.trunk() as usize => {
                v.resize(all, head);
                Ok(v)
            }
            PerLayer::Array(v) => Err(Error::PerLayerLength {
                file: meta.file().into(),
                key: key.into(),
                found: v.len(),
                expected: self.lengths(),
            }),
        }
    }

    /// Integers per block (`head_count_kv`, `feed_forward_length`, ...), one per block of `all`. `None` if absent.
    /// `head` is the value of a NextN block when the array covers the trunk only.
    ///
    /// # Errors
    /// [`Error::PerLayerLength`], [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn per_layer_u32(self, meta: &Meta, key: &str, head: u32) -> Result<Option<Vec<u32>>> {
        let found = match meta.get(key) {
            None => return Ok(None),
            Some(Value::Array(_)) => meta.get_u32_array(key)?.map(PerLayer::Array),
            Some(_) => meta.get_u32(key)?.map(PerLayer::Scalar),
        };
        found.map(|v| self.spread(meta, key, v, head)).transpose()
    }

    /// Flags per block (`attention.recurrent_layers`), as [`Self::per_layer_u32`]. Integers 0 and 1 are read too:
    /// some writers have no array of bools.
    ///
    /// # Errors
    /// [`Error::PerLayerLength`], [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn per_layer_bool(self, meta: &Meta, key: &str, head: bool) -> Result<Option<Vec<bool>>> {
        let found = match meta.get(key) {
            None => return Ok(None),
            Some(Value::Array(Array::Bool(v))) => PerLayer::Array(v.clone()),
            Some(Value::Array(_)) => {
                let ints = meta.get_u32_array(key)?.unwrap_or_default();
                if let Some(i) = ints.iter().position(|&v| v > 1) {
                    return Err(meta.out_of_range(&format!("{key}[{i}]"), ints[i], "0 or 1"));
                }
                PerLayer::Array(ints.into_iter().map(|v| v == 1).collect())
            }
            Some(_) => PerLayer::Scalar(meta.require(key, meta.get_bool(key))?),
        };
        self.spread(meta, key, found, head).map(Some)
    }
}

/// The two forms a per-layer key takes.
enum PerLayer<T> {
    Scalar(T),
    Array(Vec<T>),
}
