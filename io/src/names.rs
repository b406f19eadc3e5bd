//! How architectures spell their tensors, and one preflight pass over a tensor directory.
//!
//! The tables say which names exist and when they are needed; dimensions come from the metadata and are the loader's.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use crate::error::{Error, Result};
use crate::gguf::{LayerCounts, Meta, TensorInfo, TensorType};

/// Where in a model a tensor belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Top level, no `blk.N.`.
    Top,
    /// Every block, NextN blocks included.
    Block,
    /// Full-attention blocks, NextN blocks included.
    Attention,
    /// Gated-delta-net blocks.
    DeltaNet,
    /// Dense feed-forward of every block.
    DenseFfn,
    /// NextN blocks only.
    Nextn,
}

/// One tensor an architecture may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Name, without `blk.N.`, with its ending.
    pub name: &'static str,
    /// Where it belongs.
    pub part: Part,
    /// Whether the part is unusable without it.
    pub required: bool,
}

const fn need(part: Part, name: &'static str) -> Row {
    Row { name, part, required: true }
}

const fn may(part: Part, name: &'static str) -> Row {
    Row { name, part, required: false }
}

/// `llama`. Source: llama.cpp `src/models/llama.cpp`, `gguf-py/gguf/constants.py`.
pub const LLAMA: &[Row] = &[
    need(Part::Top, "token_embd.weight"),
    need(Part::Top, "output_norm.weight"),
    // Absent when tied: the head is token_embd.
    may(Part::Top, "output.weight"),
    // Long-context factors per rotated pair.
    may(Part::Top, "rope_freqs.weight"),
    need(Part::Block, "attn_norm.weight"),
    need(Part::Block, "ffn_norm.weight"),
    need(Part::Attention, "attn_q.weight"),
    need(Part::Attention, "attn_k.weight"),
    need(Part::Attention, "attn_v.weight"),
    need(Part::Attention, "attn_output.weight"),
    may(Part::Attention, "attn_q.bias"),
    may(Part::Attention, "attn_k.bias"),
    may(Part::Attention, "attn_v.bias"),
    may(Part::Attention, "attn_output.bias"),
    need(Part::DenseFfn, "ffn_gate.weight"),
    need(Part::DenseFfn, "ffn_up.weight"),
    need(Part::DenseFfn, "ffn_down.weight"),
    may(Part::DenseFfn, "ffn_gate.bias"),
    may(Part::DenseFfn, "ffn_up.bias"),
    may(Part::DenseFfn, "ffn_down.bias"),
];

/// `qwen35`. `attn_qkv` is the input projection in a delta-net block and the fused q, k, v in an attention block (then
/// `attn_q`, `attn_k`, `attn_v` are absent): the block's kind decides. Source: llama.cpp `src/models/qwen35.cpp`.
pub const QWEN35: &[Row] = &[
    need(Part::Top, "token_embd.weight"),
    need(Part::Top, "output_norm.weight"),
    may(Part::Top, "output.weight"),
    need(Part::Block, "attn_norm.weight"),
    need(Part::Block, "post_attention_norm.weight"),
    need(Part::Attention, "attn_q.weight"),
    need(Part::Attention, "attn_k.weight"),
    need(Part::Attention, "attn_v.weight"),
    may(Part::Attention, "attn_qkv.weight"),
    need(Part::Attention, "attn_output.weight"),
    need(Part::Attention, "attn_q_norm.weight"),
    need(Part::Attention, "attn_k_norm.weight"),
    may(Part::Attention, "attn_q.bias"),
    may(Part::Attention, "attn_k.bias"),
    may(Part::Attention, "attn_v.bias"),
    may(Part::Attention, "attn_qkv.bias"),
    need(Part::DeltaNet, "attn_qkv.weight"),
    need(Part::DeltaNet, "attn_gate.weight"),
    need(Part::DeltaNet, "ssm_beta.weight"),
    need(Part::DeltaNet, "ssm_alpha.weight"),
    need(Part::DeltaNet, "ssm_a"),
    need(Part::DeltaNet, "ssm_dt.bias"),
    need(Part::DeltaNet, "ssm_conv1d.weight"),
    need(Part::DeltaNet, "ssm_norm.weight"),
    need(Part::DeltaNet, "ssm_out.weight"),
    need(Part::DenseFfn, "ffn_gate.weight"),
    need(Part::DenseFfn, "ffn_up.weight"),
    need(Part::DenseFfn, "ffn_down.weight"),
    need(Part::Nextn, "nextn.eh_proj.weight"),
    need(Part::Nextn, "nextn.enorm.weight"),
    need(Part::Nextn, "nextn.hnorm.weight"),
    // Absent: output_norm, token_embd, and output (or the tied token_embd) stand in.
    may(Part::Nextn, "nextn.shared_head_norm.weight"),
    may(Part::Nextn, "nextn.embed_tokens.weight"),
    may(Part::Nextn, "nextn.shared_head_head.weight"),
];

/// Every architecture with a table.
pub const ARCHITECTURES: &[(&str, &[Row])] = &[("llama", LLAMA), ("qwen35", QWEN35)];

/// The table of the architecture a file names.
///
/// # Errors
/// [`Error::UnsupportedArchitecture`], [`Error::MissingKey`], [`Error::WrongType`].
pub fn table(meta: &Meta) -> Result<&'static [Row]> {
    let found = meta.architecture()?;
    ARCHITECTURES.iter().find(|(name, _)| *name == found).map(|(_, rows)| *rows).ok_or_else(|| {
        let known: Vec<&str> = ARCHITECTURES.iter().map(|(name, _)| *name).collect();
        Error::UnsupportedArchitecture { file: meta.file().into(), found: found.into(), expected: known.join(", ") }
    })
}

/// `blk.N.name`.
pub fn in_block(block: u32, name: &str) -> String {
    format!("blk.{block}.{name}")
}

/// Splits `blk.N.rest`; `None` for top-level names and anything that is not exactly that spelling.
pub fn split_block(name: &str) -> Option<(u32, &str)> {
    let (number, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let canonical = number == "0" || !number.starts_with('0');
    let digits = number.bytes().all(|b| b.is_ascii_digit());
    (canonical && digits && !rest.is_empty()).then(|| number.parse().ok()).flatten().map(|n| (n, rest))
}

/// What the directory holds of the NextN blocks that the metadata announce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextnState {
    /// Neither announced nor there.
    Absent,
    /// Announced, and every required tensor is there.
    Present,
    /// Announced, but these required tensors are not there: the trunk runs, drafting with it does not.
    Incomplete {
        /// Names, in table order.
        missing: Vec<String>,
    },
    /// Not announced, but there (an example): the key `nextn_predict_layers` is missing or zero.
    Unannounced {
        /// One of the tensors.
        example: String,
    },
}

/// Compares the `nextn_predict_layers` of the metadata with the tensors of a directory.
pub fn nextn_state(rows: &[Row], layers: LayerCounts, tensors: &[TensorInfo]) -> NextnState {
    if layers.nextn == 0 {
        let nextn = |t: &&TensorInfo| split_block(&t.name).is_some_and(|(_, rest)| rest.starts_with("nextn."));
        return match tensors.iter().find(nextn) {
            Some(t) => NextnState::Unannounced { example: t.name.clone() },
            None => NextnState::Absent,
        };
    }
    let names: HashSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    let mut missing = Vec::new();
    for block in layers.trunk()..layers.all {
        let fused = names.contains(in_block(block, "attn_qkv.weight").as_str());
        for row in rows.iter().filter(|r| r.required && !matches!(r.part, Part::Top | Part::DeltaNet)) {
            let name = in_block(block, row.name);
            let stands_in = fused && matches!(row.name, "attn_q.weight" | "attn_k.weight" | "attn_v.weight");
            if !stands_in && !names.contains(name.as_str()) {
                missing.push(name);
            }
        }
    }
    if missing.is_empty() { NextnState::Present } else { NextnState::Incomplete { missing } }
}

/// Whether a directory holds a head and no block of a trunk: a draft for a target, no model by itself.
pub fn is_head_only(tensors: &[TensorInfo]) -> bool {
    let mut nextn = HashSet::new();
    let mut blocks = HashSet::new();
    for (block, rest) in tensors.iter().filter_map(|t| split_block(&t.name)) {
        blocks.insert(block);
        if rest.starts_with("nextn.") {
            nextn.insert(block);
        }
    }
    !blocks.is_empty() && blocks == nextn
}

/// A tensor the loader wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Full name.
    pub name: String,
    /// Dimensions in file order, row length first.
    pub dims: Vec<u64>,
    /// Whether its absence is a fault.
    pub required: bool,
}

/// A type the kernels cannot compute, met in wanted tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The type.
    pub ty: TensorType,
    /// Wanted tensors of it.
    pub count: usize,
    /// One of them.
    pub example: String,
}

/// A tensor of another shape than wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongShape {
    /// Its name.
    pub name: String,
    /// Dimensions in the file.
    pub found: Vec<u64>,
    /// Dimensions wanted.
    pub expected: Vec<u64>,
}

/// Everything one pass over the tensor directory finds, before any weight is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preflight {
    /// Required tensors that are absent, in the order of the wishes.
    pub missing: Vec<String>,
    /// Tensors of wrong shape, in the order of the wishes.
    pub wrong_shape: Vec<WrongShape>,
    /// Types that cannot be computed, in order of id.
    pub unsupported: Vec<Unsupported>,
    /// Tensors nobody asked for, in file order.
    pub unexpected: Vec<String>,
}

impl Preflight {
    /// Compares a directory with the loader's wishes; `computes` says which types the kernels can use.
    pub fn check(tensors: &[TensorInfo], expected: &[Expect], computes: impl Fn(TensorType) -> bool) -> Self {
        let by_name: HashMap<&str, &TensorInfo> = tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        let wanted: HashSet<&str> = expected.iter().map(|e| e.name.as_str()).collect();
        let mut out = Self::default();
        let mut unsupported: BTreeMap<TensorType, Unsupported> = BTreeMap::new();
        for e in expected {
            let Some(t) = by_name.get(e.name.as_str()) else {
                if e.required {
                    out.missing.push(e.name.clone());
                }
                continue;
            };
            if !t.has_dims(&e.dims) {
                out.wrong_shape.push(WrongShape {
                    name: e.name.clone(),
                    found: t.dims().to_vec(),
                    expected: e.dims.clone(),
                });
            }
            if !computes(t.ty) {
                unsupported
                    .entry(t.ty)
                    .or_insert_with(|| Unsupported { ty: t.ty, count: 0, example: t.name.clone() })
                    .count += 1;
            }
        }
        out.unsupported = unsupported.into_values().collect();
        out.unexpected = tensors.iter().filter(|t| !wanted.contains(t.name.as_str())).map(|t| t.name.clone()).collect();
        out
    }

    /// Whether the model can be loaded.
    pub fn is_usable(&self, strict: bool) -> bool {
        self.missing.is_empty()
            && self.wrong_shape.is_empty()
            && self.unsupported.is_empty()
            && (!strict || self.unexpected.is_empty())
    }

    /// The names nobody asked for, to be reported, or one error with everything that is wrong.
    ///
    /// # Errors
    /// [`Error::Preflight`].
    pub fn into_result(mut self, file: &str, strict: bool) -> Result<Vec<String>> {
        if self.is_usable(strict) {
            return Ok(self.unexpected);
        }
        if !strict {
            // Not a fault; the caller of a failed load has nothing to do with them.
            self.unexpected.clear();
        }
        Err(Error::Preflight { file: file.into(), report: Box::new(self) })
    }
}

/// One line per fault.
impl fmt::Display for Preflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        for u in &self.unsupported {
            lines.push(format!(
                "  type {} of {} tensors (such as {}) cannot be computed; use a file of another quantisation",
                u.ty, u.count, u.example
            ));
        }
        for name in &self.missing {
            lines.push(format!("  {name} is missing; download or convert the model again"));
        }
        for w in &self.wrong_shape {
            lines.push(format!("  {} has dimensions {:?}, expected {:?} by the metadata", w.name, w.found, w.expected));
        }
        for name in &self.unexpected {
            lines.push(format!("  {name} is not known to this architecture"));
        }
        f.write_str(&lines.join("\n"))
    }
}

#[cfg(test)]
mod tests;
