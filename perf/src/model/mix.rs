//! Which matrix is stored how: as files of that name are.
//!
//! Source: llama.cpp `llama-quant.cpp`, `llama_tensor_get_type_impl` without an importance matrix.

use std::collections::HashMap;

use clap::ValueEnum;
use engine_io::TensorType;

/// Storage of the matrices of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Mix {
    /// Q8_0
    #[value(name = "q8_0")]
    Q8_0,
    /// Q4_K, and Q6_K where Q4_K_M has it: the head, and some of the values and of the matrices out of an FFN
    #[value(name = "q4_k")]
    Q4K,
    /// Q4_0, and a head of Q6_K
    #[value(name = "q4_0")]
    Q4_0,
}

/// What of a file's matrices decides about each of them.
pub(super) struct Names {
    /// Attention values, alone or among queries and keys, in order.
    values: HashMap<String, usize>,
    untied: bool,
    blocks: usize,
}

impl Names {
    /// Of the matrices of a model with so many blocks.
    pub fn of<'a>(matrices: impl Iterator<Item = &'a str>, blocks: u64) -> Self {
        let mut out = Self { values: HashMap::new(), untied: false, blocks: blocks as usize };
        for name in matrices {
            if name.ends_with("attn_v.weight") || name.ends_with("attn_qkv.weight") {
                out.values.insert(name.to_owned(), out.values.len());
            }
            out.untied |= name == "output.weight";
        }
        out
    }
}

impl Mix {
    /// What `general.file_type` says.
    pub(super) fn file_type(self) -> u32 {
        match self {
            Self::Q8_0 => 7,
            Self::Q4K => 15,
            Self::Q4_0 => 2,
        }
    }

    /// The type of one of the matrices.
    pub(super) fn of(self, name: &str, among: &Names) -> TensorType {
        let head = name == "output.weight" || name == "token_embd.weight" && !among.untied;
        match self {
            Self::Q8_0 => TensorType::Q8_0,
            _ if head => TensorType::Q6K,
            Self::Q4_0 => TensorType::Q4_0,
            Self::Q4K => {
                let down = name.contains("ffn_down").then(|| more_bits(block(name), among.blocks));
                let value = among.values.get(name).map(|i| more_bits(*i, among.values.len()));
                if down.or(value).unwrap_or(false) { TensorType::Q6K } else { TensorType::Q4K }
            }
        }
    }
}

/// Whether the `i`-th of `n` is one of those that are stored better: the first and last eighth, and every third between.
fn more_bits(i: usize, n: usize) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

/// The block of a tensor's name.
fn block(name: &str) -> usize {
    let number = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
    number.and_then(|n| n.parse().ok()).expect("matrices out of an FFN are in blocks")
}
