//! Everything that one pass over the tensor directory finds, before any weight is read.

use std::fmt;

use engine_io::{TensorType, compat};

use super::error::ModelError;

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

/// What is wrong with the tensors of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preflight {
    /// Required tensors that are absent, in the order asked for.
    pub missing: Vec<String>,
    /// Tensors of wrong shape, in the order asked for.
    pub wrong_shape: Vec<WrongShape>,
    /// Types that cannot be computed, in the order met.
    pub unsupported: Vec<Unsupported>,
    /// Tensors nobody asked for by names that say that they take part in the arithmetic, in file order.
    pub uncomputed: Vec<String>,
    /// Other tensors nobody asked for, in file order.
    pub unexpected: Vec<String>,
}

impl Preflight {
    /// Whether the model can be loaded.
    pub fn is_usable(&self, strict: bool) -> bool {
        self.missing.is_empty()
            && self.wrong_shape.is_empty()
            && self.unsupported.is_empty()
            && self.uncomputed.is_empty()
            && (!strict || self.unexpected.is_empty())
    }

    /// Sets apart, of the tensors nobody asked for, those of a trunk of so many blocks that take part in its arithmetic.
    pub fn set_apart(&mut self, trunk: usize) {
        let (apart, extra) = std::mem::take(&mut self.unexpected).into_iter().partition(|name| takes_part(name, trunk));
        (self.uncomputed, self.unexpected) = (apart, extra);
    }

    /// The names nobody asked for, to be reported, or one error with everything that is wrong.
    ///
    /// # Errors
    /// [`ModelError::Preflight`].
    pub fn into_result(mut self, file: &str, strict: bool) -> Result<Vec<String>, ModelError> {
        if self.is_usable(strict) {
            return Ok(self.unexpected);
        }
        if !strict {
            // Not a fault; the caller of a failed load has nothing to do with them.
            self.unexpected.clear();
        }
        Err(ModelError::Preflight { file: file.to_owned(), report: Box::new(self) })
    }
}

/// Faults of one kind that are written out; of the others their number.
const LISTED: usize = 16;

/// One line per fault, [`LISTED`] of each kind.
impl fmt::Display for Preflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        for u in &self.unsupported {
            lines.push(format!(
                "  type {} of {} tensors (such as {}) cannot be computed; use a file of another quantisation",
                u.ty, u.count, u.example
            ));
        }
        let mut more = Vec::new();
        let mut rest = |all: usize, what: &str| {
            if all > LISTED {
                more.push(format!("  ... and {} more {what}", all - LISTED));
            }
        };
        rest(self.missing.len(), "are missing");
        rest(self.wrong_shape.len(), "have wrong dimensions");
        rest(self.uncomputed.len(), "are not computed with");
        rest(self.unexpected.len(), "are not known");
        for name in self.missing.iter().take(LISTED) {
            let others: Vec<String> = compat::other_names(name).collect();
            let others = if others.is_empty() { String::new() } else { format!(", and so is {}", others.join(", ")) };
            lines.push(format!("  {name} is missing{others}; download or convert the model again"));
        }
        for w in self.wrong_shape.iter().take(LISTED) {
            let layout = if w.name.contains(".nextn.") { ": the head was written for another layout" } else { "" };
            let WrongShape { name, found, expected } = w;
            lines.push(format!("  {name} has dimensions {found:?}, expected {expected:?} by the metadata{layout}"));
        }
        for name in self.uncomputed.iter().take(LISTED) {
            lines.push(format!(
                "  {name} would change what is computed, and this engine computes nothing with it; use a file without it"
            ));
        }
        for name in self.unexpected.iter().take(LISTED) {
            lines.push(format!("  {name} is not known to this architecture"));
        }
        lines.append(&mut more);
        f.write_str(&lines.join("\n"))
    }
}

/// Whether a tensor that nothing reads has a name that says that it takes part in the arithmetic of a trunk of so many
/// blocks, which would be another model without it: in a block, a part of what blocks are made of here or in llama.cpp;
/// at top level, what stands around the blocks. Everything else (towers, angles that the keys give as well, names nobody
/// knows) is an extra, and so is what an MTP block has too much: it changes drafts, never what is committed.
fn takes_part(name: &str, trunk: usize) -> bool {
    const PARTS: [&str; 9] = ["attn_", "ffn_", "ssm_", "hc_", "indexer.", "ple_", "exp_probs_b", "post_", "layer_"];
    const TOP: [&str; 4] = ["output", "token_embd", "rope_factors_long", "rope_factors_short"];
    const ADDED: [&str; 5] = [".bias", ".scale", ".input_scale", ".lora_a", ".lora_b"];
    let stem = name.strip_suffix(".weight").unwrap_or(name);
    match compat::block_of(stem) {
        Some((block, _)) if block >= trunk => false,
        // Angles of every block alike.   Source: llama.cpp, which skips it.
        Some((_, "attn_rot_embd" | "attn_rot_embd.inv_freq")) => false,
        Some((_, part)) => {
            PARTS.iter().any(|p| part.starts_with(p))
                || ADDED.iter().any(|p| part.ends_with(p))
                || part.ends_with("_norm")
        }
        None => TOP.iter().any(|p| stem.starts_with(p)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_takes_part() {
        for name in [
            "blk.0.attn_sinks.weight",
            "blk.0.attn_norm.bias",
            "blk.3.ffn_up_exps.bias",
            "blk.3.ffn_up_exps.weight",
            "blk.1.ssm_in.bias",
            "blk.1.post_ffw_norm.weight",
            "blk.1.attn_q.weight.lora_a",
            "output.bias",
            "output_norm.bias",
            "token_embd_norm.weight",
            "rope_factors_long.weight",
        ] {
            assert!(takes_part(name, 4), "{name}");
        }
        for name in [
            "vision.patch.weight",
            "v.blk.0.attn_q.weight",
            "blk.0.attn_rot_embd",
            "blk.1.foo.weight",
            "blk.4.attn_norm.bias",
            "rope_freqs.weight",
            "mm.0.bias",
        ] {
            assert!(!takes_part(name, 4), "{name}");
        }
    }

    #[test]
    fn long_lists_are_cut() {
        let report = Preflight { missing: (0..5000).map(|i| format!("blk.{i}.x")).collect(), ..Preflight::default() };
        let text = report.to_string();
        assert_eq!(text.lines().count(), LISTED + 1);
        assert!(text.ends_with("... and 4984 more are missing"), "{text}");
    }
}
