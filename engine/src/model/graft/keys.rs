//! Metadata: what a head's keys must share with the target's, and what changes when a block is put behind a trunk, by a
//! graft or in the file of a head made for it.

use engine_io::gguf::{Array, Meta, Value, keys};

use crate::model::config::{Config, Mixer};
use crate::model::error::ModelError;

/// A key that is changed or added.
#[derive(Clone, PartialEq, Debug)]
pub struct KeyEdit {
    /// Its full name.
    pub key: String,
    /// Value before; `None` if it was not there.
    pub from: Option<Value>,
    /// Value now.
    pub to: Value,
}

/// Arrays of an architecture whose length is not the number of blocks, even where it happens to be.
const NOT_PER_BLOCK: [&str; 5] =
    ["rope.dimension_sections", "ple.layers", "ple.layer_multipliers", "ple.head_offsets", "ple.head_vocab_sizes"];
/// Keys of a block's number and of what the head file is, in which it and the target differ.
const OWN: [&str; 3] = [keys::BLOCK_COUNT, keys::NEXTN_PREDICT_LAYERS, "nextn_shared_target_tensors"];

/// Whether an array of the architecture has an entry for each block: by its name, without the architecture's.
pub fn is_per_block(name: &str) -> bool {
    !NOT_PER_BLOCK.contains(&name)
}

/// The keys of the architecture, and of the tokenizer, that both files have with different values.
pub fn differences<'a>(target: &'a Meta, head: &'a Meta, arch: &str) -> Vec<(&'a str, &'a Value, &'a Value)> {
    let prefix = keys::arch(arch, "");
    let shared = |key: &&str| match key.strip_prefix(&prefix) {
        Some(name) => !OWN.contains(&name),
        None => *key == "tokenizer.ggml.model",
    };
    let pairs =
        head.iter().filter(|(key, _)| shared(key)).filter_map(|(key, here)| Some((key, here, target.get(key)?)));
    // One number for all blocks against a list: the configurations are compared as well, and know what it means.
    let comparable = |a: &Value, b: &Value| matches!(a, Value::Array(_)) == matches!(b, Value::Array(_));
    pairs.filter(|(_, here, there)| comparable(here, there) && !here.agrees(there)).collect()
}

/// What changes in the target's metadata, split keys aside, with a block behind its trunk; `head` is the metadata that
/// the block comes with, if any. A target that has its block already keeps what it says of it.
///
/// # Errors
/// [`ModelError::NoEntry`], for every array that cannot be made longer.
pub fn edits(target: &Meta, head: Option<&Meta>, config: &Config) -> Result<Vec<KeyEdit>, Vec<ModelError>> {
    let arch = config.arch.name();
    let trunk = config.trunk;
    let mut out = Vec::new();
    let mut wrong = Vec::new();
    for (key, value) in target.iter() {
        let Some(name) = key.strip_prefix(arch).and_then(|rest| rest.strip_prefix('.')) else { continue };
        let to = match value {
            Value::Array(array) if array.len() == trunk && is_per_block(name) => {
                let mut longer = array.clone();
                let added = appended(name, array, head.and_then(|head| head.get(key)), config);
                if !added.as_ref().is_some_and(|value| longer.push(value)) {
                    let why = match added {
                        Some(_) => "the head's value is of another type",
                        None => "its entries are lists",
                    };
                    let (file, key, found) = (target.file().to_owned(), key.to_owned(), array.len());
                    wrong.push(ModelError::NoEntry { file, key, found, trunk, why });
                    continue;
                }
                Value::Array(longer)
            }
            _ if name == keys::BLOCK_COUNT => of_type(value, trunk as u32 + 1),
            _ if name == keys::NEXTN_PREDICT_LAYERS => of_type(value, 1),
            _ => continue,
        };
        out.push(KeyEdit { key: key.to_owned(), from: Some(value.clone()), to });
    }
    let nextn = keys::arch(arch, keys::NEXTN_PREDICT_LAYERS);
    if target.get(&nextn).is_none() {
        out.push(KeyEdit { key: nextn, from: None, to: Value::U32(1) });
    }
    if wrong.is_empty() { Ok(out) } else { Err(wrong) }
}

/// What an array over the trunk's blocks says of the new one: what the head's file says of it, else what holds for its
/// kind of block.
fn appended(name: &str, array: &Array, head: Option<&Value>, config: &Config) -> Option<Value> {
    // The block is attention, whatever the head's file says of it.
    if name == "attention.recurrent_layers" {
        return Some(Value::Bool(false));
    }
    let of_head = match head {
        Some(Value::Array(of_head)) if of_head.len() == config.trunk + 1 => of_head.element(config.trunk),
        Some(Value::Array(_)) | None => None,
        Some(for_all) => Some(for_all.clone()),
    };
    if of_head.is_some() {
        return of_head;
    }
    if name == "attention.compress_ratios" {
        return Some(Value::U32(0));
    }
    // The last block that is attention as this one; where its entry is 0, as in a family whose blocks are attention or
    // FFN, the last that is not.
    let is_zero = |value: &Value| value.as_int() == Some(0);
    let entry = |i: usize| array.element(i).filter(|value| !is_zero(value));
    let attention = config.blocks[..config.trunk].iter().rposition(|b| b.mixer == Mixer::Attention).and_then(entry);
    attention.or_else(|| (0..array.len()).rev().find_map(entry)).or_else(|| array.element(array.len().checked_sub(1)?))
}

/// A number in the type of another.
fn of_type(like: &Value, n: u32) -> Value {
    match like {
        Value::U8(_) => u8::try_from(n).map_or(Value::U32(n), Value::U8),
        Value::I8(_) => i8::try_from(n).map_or(Value::U32(n), Value::I8),
        Value::U16(_) => u16::try_from(n).map_or(Value::U32(n), Value::U16),
        Value::I16(_) => i16::try_from(n).map_or(Value::U32(n), Value::I16),
        Value::I32(_) => i32::try_from(n).map_or(Value::U32(n), Value::I32),
        Value::U64(_) => Value::U64(n.into()),
        Value::I64(_) => Value::I64(n.into()),
        _ => Value::U32(n),
    }
}
