//! Which engines read a head by which names. Data: a row for each state of an engine's sources that published files were
//! made for. What changes upstream is a new row or a changed one, and [`Engine::reads`] answers by it.

use super::Dialect;

/// An engine at a state of its sources.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    /// Its name, and which state.
    pub name: &'static str,
    /// Architecture, or any.
    pub arch: Option<&'static str>,
    /// Dialects of a block within a whole model.
    pub within: &'static [Dialect],
    /// Dialects of a head in a file of its own.
    pub alone: &'static [Dialect],
    /// Tensors that it asks a head in a file of its own for, beside those of the block.
    pub alone_with: &'static [&'static str],
    /// Tensors that nobody asks for, which end the load: suffixes of their names.
    pub refuses: &'static [&'static str],
}

const C: &[Dialect] = &[Dialect::Canonical];
const C_OR_PLUS: &[Dialect] = &[Dialect::Canonical, Dialect::CanonicalAndTrunk];

/// The rows, for the architectures whose names are settled and for the one whose names are not.
pub const ENGINES: &[Engine] = &[
    Engine {
        name: "llama.cpp with MTP for qwen4exp",
        arch: Some("qwen4exp"),
        within: C_OR_PLUS,
        alone: C_OR_PLUS,
        alone_with: &["token_embd.weight"],
        refuses: &["nextn.embed_tokens.weight", "nextn.shared_head_head.weight"],
    },
    Engine {
        name: "llama.cpp PR #27739",
        arch: Some("qwen4exp"),
        within: &[],
        alone: &[Dialect::TopLevel],
        alone_with: &[],
        refuses: &[],
    },
    Engine {
        name: "llama.cpp PR #27836",
        arch: Some("qwen4exp"),
        within: C_OR_PLUS,
        alone: C_OR_PLUS,
        alone_with: &[],
        refuses: &[],
    },
    Engine {
        name: "ik_llama.cpp before the rework of PR #2369",
        arch: Some("qwen4exp"),
        within: &[Dialect::TopHalves],
        alone: &[Dialect::TopHalves],
        alone_with: &[],
        refuses: &[],
    },
    Engine {
        name: "FR-Spec",
        arch: Some("qwen4exp"),
        within: &[Dialect::BlockHalves],
        alone: &[Dialect::BlockHalves],
        alone_with: &[],
        refuses: &[],
    },
    Engine { name: "llama.cpp", arch: None, within: C, alone: C, alone_with: &[], refuses: &[] },
];

impl Engine {
    /// Whether the row is one for an architecture: its own rows, else those for any.
    pub fn is_for(&self, arch: &str) -> bool {
        match self.arch {
            Some(own) => own == arch,
            None => ENGINES.iter().all(|e| e.arch != Some(arch)),
        }
    }

    /// Why it does not read a block of a dialect with these tensors; `None` if it does. `lacks`: what is not there of what
    /// every engine asks a block for.
    pub fn refusal(&self, dialect: Dialect, alone: bool, names: &[&str], lacks: &[String]) -> Option<String> {
        let reads = if alone { self.alone } else { self.within };
        if !reads.contains(&dialect) {
            let known: Vec<&str> = reads.iter().map(|d| d.name()).collect();
            let known = if known.is_empty() { "none here".to_owned() } else { known.join(", ") };
            return Some(format!("names are of dialect {}, it reads {known}", dialect.name()));
        }
        let table = self.alone_with.iter().find(|name| alone && !names.contains(name));
        let lacks: Vec<String> =
            lacks.iter().cloned().chain(table.map(|name| format!("{name} is not there"))).collect();
        if !lacks.is_empty() {
            return Some(format!("it asks for more: {}", lacks.join(", ")));
        }
        let stray = names.iter().find(|name| self.refuses.iter().any(|end| name.ends_with(end)))?;
        Some(format!("it asks for no {stray}, and ends on a tensor that it does not ask for"))
    }
}
