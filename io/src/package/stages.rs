//! Which tensors a stage of a split model needs, and where to cut.
//!
//! Stages are contiguous ranges of blocks. The first looks tokens up, the last has the output norm, the LM head and the
//! MTP block, if there is one. A tensor may be needed by more than one: by all of them (divisors of angles), or the
//! token table by the last one too, since an MTP block embeds the token just chosen, and a tied LM head is that table.

use std::ops::Range;

use super::Role;
use super::home;
use crate::gguf::TensorInfo;

/// What decides about tensors that are no block's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Needs {
    /// Blocks, the MTP block among them.
    pub layers: u32,
    /// The MTP block.
    pub head: Option<u32>,
    /// The LM head is the token table.
    pub tied: bool,
    /// The MTP block has a token table of its own.
    pub own_table: bool,
    /// The block that looks up n-grams.
    pub ngram_block: Option<u32>,
}

impl Needs {
    /// Of a model by the names of its tensors.
    pub fn of(tensors: &[TensorInfo], layers: u32, head: Option<u32>, ngram_block: Option<u32>) -> Self {
        let has = |name: &str| tensors.iter().any(|t| t.name == name);
        let own_table = head.is_some_and(|head| has(&format!("blk.{head}.nextn.embed_tokens.weight")));
        Self { layers, head, tied: !has("output.weight"), own_table, ngram_block }
    }

    /// Blocks of the trunk: where stages may be cut.
    pub fn trunk(&self) -> u32 {
        self.head.unwrap_or(self.layers)
    }

    /// Whether the MTP block looks tokens up in the model's own table.
    pub fn head_needs_table(&self) -> bool {
        self.head.is_some() && !self.own_table
    }

    /// Whether the stage of these blocks needs a tensor. The last stage's range ends at `layers`.
    pub fn of_stage(&self, tensor: &str, blocks: &Range<u32>) -> bool {
        let (first, last) = (blocks.start == 0, blocks.end == self.layers);
        match home(tensor, self.head) {
            Role::Metadata => true,
            Role::Layer(block) => blocks.contains(&block),
            Role::Embeddings if tensor.starts_with("per_layer_") => match self.ngram_block {
                Some(block) => blocks.contains(&block),
                None => first,
            },
            Role::Embeddings => first || last && (self.tied || self.head_needs_table()),
            Role::Output => last,
            Role::Projector => first,
        }
    }
}

/// Ranges of blocks for `stages` stages: cut before block `split` where one is given and there are two, else so that
/// the largest stage is as small as can be by bytes of tensors. `None`: more stages than blocks of the trunk, none at
/// all, or a cut outside the trunk.
pub fn ranges(tensors: &[TensorInfo], needs: &Needs, stages: u32, split: Option<u32>) -> Option<Vec<Range<u32>>> {
    let trunk = needs.trunk();
    if stages == 0 || stages > trunk {
        return None;
    }
    if let Some(split) = split {
        let inside = stages == 2 && (1..trunk).contains(&split);
        return inside.then(|| vec![0..split, split..needs.layers]);
    }
    let mut block = vec![0u64; trunk as usize];
    let (mut first, mut last) = (0, 0);
    for t in tensors {
        match home(&t.name, needs.head) {
            Role::Layer(index) if index < trunk => block[index as usize] += t.bytes,
            // Looked up and not read through, and wherever its block is.
            Role::Embeddings if t.name.starts_with("per_layer_") => {}
            // Every stage has it.
            Role::Metadata => {}
            _ => {
                let of = |blocks| if needs.of_stage(&t.name, &blocks) { t.bytes } else { 0 };
                first += of(0..0);
                last += of(trunk..needs.layers);
            }
        }
    }
    block[0] += first;
    block[trunk as usize - 1] += last;
    let cuts = balanced(&block, stages as usize);
    let mut ends: Vec<u32> = cuts.iter().map(|&cut| cut as u32).chain([needs.layers]).collect();
    ends.insert(0, 0);
    Some(ends.windows(2).map(|pair| pair[0]..pair[1]).collect())
}

/// Where to cut `weights` into `parts` runs, none empty, so that the heaviest is as light as can be; of equally good
/// cuts those that fill the runs from the front.
fn balanced(weights: &[u64], parts: usize) -> Vec<usize> {
    let cuts_for = |most: u64| {
        let mut cuts = Vec::new();
        let mut sum = 0u64;
        for (i, &weight) in weights.iter().enumerate() {
            let wanted = parts - 1 - cuts.len();
            let full = sum.saturating_add(weight) > most || weights.len() - i == wanted;
            if i > 0 && wanted > 0 && full {
                cuts.push(i);
                sum = 0;
            }
            sum = sum.saturating_add(weight);
            if sum > most {
                return None;
            }
        }
        Some(cuts)
    };
    let (mut low, mut high) = (0u64, weights.iter().fold(0u64, |sum, w| sum.saturating_add(*w)));
    while low < high {
        let middle = low + (high - low) / 2;
        match cuts_for(middle) {
            Some(_) => high = middle,
            None => low = middle + 1,
        }
    }
    cuts_for(high).unwrap_or_default()
}
