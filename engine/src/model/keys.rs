//! Metadata of one architecture: its keys without their prefix, values as `usize` within stated ranges.

use std::fmt::Display;
use std::ops::RangeInclusive;

use engine_io::gguf::keys::{NEXTN_PREDICT_LAYERS, arch as full_name};
use engine_io::gguf::{LayerCounts, Meta, Value};

use super::config::Arch;
use super::error::ModelError;

/// Reads `ARCH.name` keys.
pub struct Keys<'a> {
    /// All metadata of the file.
    pub meta: &'a Meta,
    /// Blocks, and how many of them are NextN.
    pub counts: LayerCounts,
    /// Architecture.
    pub arch: Arch,
}

impl<'a> Keys<'a> {
    /// # Errors
    /// If the block counts are absent or contradict each other.
    pub fn new(meta: &'a Meta, arch: Arch) -> Result<Self, ModelError> {
        let mut counts = LayerCounts::read(meta, arch.name())?;
        // Where the graph has no MTP block llama.cpp does not read the key: every block is the trunk's.
        if !arch.has_mtp() {
            counts.nextn = 0;
        }
        Ok(Self { meta, counts, arch })
    }

    /// The key as it stands in the file.
    pub fn full(&self, key: &str) -> String {
        full_name(self.arch.name(), key)
    }

    /// An integer of any width, if present.
    ///
    /// # Errors
    /// Wrong type or out of range.
    pub fn optional(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.meta.get_u64(&self.full(key))? else { return Ok(None) };
        self.within(key, value, range).map(Some)
    }

    /// An integer of any width.
    ///
    /// # Errors
    /// Absent, wrong type or out of range.
    pub fn require(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize, ModelError> {
        let name = self.full(key);
        let value = self.meta.require(&name, self.meta.get_u64(&name))?;
        self.within(key, value, range)
    }

    /// An integer per block; a scalar holds for all of them. An array of the trunk's length gives a NextN block the
    /// largest entry: recurrent blocks say 0 heads, and a NextN block is none. In `nemotron_h`, where the arrays say
    /// what each block is, an array has an entry for every block.
    ///
    /// # Errors
    /// Wrong type, out of range, or an array of another length than the model has blocks.
    pub fn per_block(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<Vec<usize>>, ModelError> {
        let name = self.full(key);
        if let (true, Some(Value::Array(array))) = (self.arch.is_nemotron_h(), self.meta.get(&name)) {
            let (len, all) = (array.len(), self.counts.all as usize);
            if len != all {
                let expected = match self.counts.nextn {
                    0 => format!("{all} (all blocks)"),
                    _ => format!("{all} (all blocks, the MTP block among them)"),
                };
                let file = self.meta.file().to_owned();
                return Err(engine_io::Error::PerLayerLength { file, key: name, found: len, expected }.into());
            }
        }
        let head = match self.meta.get(&name) {
            Some(Value::Array(_)) => self.meta.get_u32_array(&name)?.and_then(|a| a.into_iter().max()),
            _ => None,
        };
        let Some(values) = self.counts.per_layer_u32(self.meta, &name, head.unwrap_or(0))? else { return Ok(None) };
        values.into_iter().map(|v| self.within(key, u64::from(v), range.clone())).collect::<Result<_, _>>().map(Some)
    }

    /// A finite float, if present.
    ///
    /// # Errors
    /// Wrong type or not finite.
    pub fn float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.meta.get_f32(&self.full(key))?)
    }

    /// A flag, if present.
    ///
    /// # Errors
    /// Wrong type.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        Ok(self.meta.get_bool(&self.full(key))?)
    }

    fn within(&self, key: &str, value: u64, range: RangeInclusive<usize>) -> Result<usize, ModelError> {
        let found = usize::try_from(value).ok().filter(|v| range.contains(v));
        found.ok_or_else(|| self.range(key, value, format!("{} to {}", range.start(), range.end())))
    }

    /// The error of an absent key.
    pub fn missing(&self, key: &str) -> ModelError {
        engine_io::Error::MissingKey { file: self.meta.file().into(), key: self.full(key) }.into()
    }

    /// The error of a value that its use or another key does not allow.
    pub fn range(&self, key: &str, found: impl Display, expected: impl Display) -> ModelError {
        self.meta.out_of_range(&self.full(key), found, expected).into()
    }

    /// The error of what a key says of block `i`. Of an MTP block it is at least as likely that the key which announces
    /// it is wrong, so both are named.
    pub fn range_of_block(&self, key: &str, i: usize, found: impl Display, expected: impl Display) -> ModelError {
        if i < self.counts.trunk() as usize {
            return self.range(key, format!("{found} in block {i}"), expected);
        }
        let (nextn, key) = (self.full(NEXTN_PREDICT_LAYERS), self.full(key));
        self.meta
            .inconsistent(
                format!("{nextn} = {} makes block {i} an MTP block, and {key} = {found} there", self.counts.nextn),
                format!("{expected}, or a {nextn} that counts no other block; convert the model again"),
            )
            .into()
    }

    /// The error of a legal value that is not implemented.
    pub fn unsupported(&self, key: &str, found: &str, supported: &str) -> ModelError {
        ModelError::Unsupported {
            file: self.meta.file().to_owned(),
            key: self.full(key),
            found: found.to_owned(),
            supported: supported.to_owned(),
        }
    }
}
