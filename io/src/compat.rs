//! Names that the tensors of an MTP head go by: one table for whoever reads a head, grafts one, or checks one.
//!
//! Canonical names are llama.cpp's `blk.N.nextn.*` beside the ordinary tensors of a block, where N is the target's
//! number of trunk blocks. [`map`] says of every tensor of a head what becomes of it; a tensor that no rule takes is
//! [`Fate::Unknown`], and nothing is left out in silence. Nothing here reads values: what needs them is asked of the
//! caller, by [`Compare`].
//!
//! Source: the converters of llama.cpp and ik_llama.cpp as published heads show them.

pub mod engines;
mod error;
mod rules;
pub mod source;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub use error::NameError;
pub use rules::RULES;

use crate::gguf::TensorInfo;

/// A way to name the tensors of a head. A file is of the last dialect in this order that it has a name of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Dialect {
    /// `blk.N.nextn.*`.
    Canonical,
    /// The same, with a copy of the trunk's last mixer beside it.
    CanonicalAndTrunk,
    /// The head's last mixer by the name of the trunk's.
    TopLevel,
    /// The same, and the mixer's norm as `shared_head_norm`.
    SharedNorm,
    /// `fc_embd` and `fc_hidden` in the block.
    BlockHalves,
    /// `mtp.fc_embd` and `mtp.fc_hidden`.
    TopHalves,
    /// `mtp.*` as in a checkpoint.
    Checkpoint,
    /// The state of a draft as FreeToken saves it.
    StateDict,
    /// A draft with an architecture of its own.
    Assistant,
    /// The head of another architecture that has hyper-connections.
    Deepseek4,
}

impl Dialect {
    /// Whether it has the projection in two halves, which are joined before a model is run.
    pub fn is_halved(self) -> bool {
        matches!(self, Self::BlockHalves | Self::TopHalves)
    }

    /// A short name, and what it is.
    pub fn name(self) -> &'static str {
        match self {
            Self::Canonical => "C (canonical)",
            Self::CanonicalAndTrunk => "C+ (canonical, with the trunk's mixer)",
            Self::TopLevel => "T (mixer at top level)",
            Self::SharedNorm => "T' (mixer at top level, its norm as shared_head_norm)",
            Self::BlockHalves => "F (FR-Spec: projection in two halves)",
            Self::TopHalves => "I (ik_llama.cpp: projection in two halves)",
            Self::Checkpoint => "H (names of a checkpoint)",
            Self::StateDict => "K (FreeToken state)",
            Self::Assistant => "G (Gemma assistant)",
            Self::Deepseek4 => "deepseek4",
        }
    }
}

/// Architectures that a rule is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Archs {
    /// Every one.
    All,
    /// This one.
    Only(&'static str),
    /// Every one but this.
    Not(&'static str),
}

impl Archs {
    /// Whether this is one of them.
    pub fn has(self, arch: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(only) => only == arch,
            Self::Not(not) => not != arch,
        }
    }

    /// The one, if it is one.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Only(only) => Some(only),
            Self::All | Self::Not(_) => None,
        }
    }
}

/// What a rule asks of the rest of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Nothing.
    Always,
    /// The head has a mixer by a name of its own.
    OwnMixer,
    /// It has none.
    NoOwnMixer,
    /// The tensor has an element for each of all streams, and no other name holds the mixer's norm.
    MixerNorm,
}

/// What becomes of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// It keeps its name, but for the number of its block.
    Same,
    /// It is the tensor of the canonical name.
    Rename,
    /// It is not needed, for this reason.
    Drop(&'static str),
    /// It is one half of the tensor of the canonical name: for each row, the columns of the embedding or of the hidden
    /// row.
    Half,
    /// It cannot be used, for this reason.
    Refuse(&'static str),
}

/// A row of the table. `blk.B.` stands for the head's block; a `*` at the end for any rest, other names are followed by
/// `.weight`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Whose name it is.
    pub dialect: Dialect,
    /// Where it means that.
    pub archs: Archs,
    /// Name in the file.
    pub found: &'static str,
    /// Name that it stands for; of no meaning if that is the same, or none.
    pub canonical: &'static str,
    /// Condition.
    pub when: When,
    /// Consequence.
    pub action: Action,
}

/// A head, or what a model has of one.
#[derive(Clone, Copy)]
pub struct HeadFile<'a> {
    /// `general.architecture`.
    pub arch: &'a str,
    /// Its tensors.
    pub tensors: &'a [&'a TensorInfo],
    /// Trunk blocks of the target: the number that the head's block gets.
    pub block: usize,
    /// Elements of a row of all residual streams, where the architecture has several.
    pub wide: Option<u64>,
}

/// Comparisons of values.
#[derive(Clone, Copy)]
pub struct Compare<'a> {
    /// Whether a tensor of the head has the values of the target's `output_hc_norm.weight`, or nearly.
    pub is_trunks: &'a dyn Fn(&str) -> bool,
    /// Whether two tensors of the head hold the same bytes.
    pub same_bytes: &'a dyn Fn(&str, &str) -> bool,
}

/// What became of a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is the tensor of this name.
    As(String),
    /// It is a half of the tensor of this name.
    Half(String),
    /// It is left out, for this reason.
    Dropped(&'static str),
    /// It cannot be used, for this reason.
    Refused(&'static str),
    /// No rule takes it.
    Unknown,
}

/// What became of all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Dialect of the file.
    pub dialect: Dialect,
    /// Per tensor, in the order given.
    pub fates: Vec<Fate>,
    /// Per rule of [`RULES`]: how many tensors it took.
    pub uses: Vec<usize>,
}

/// Says of every tensor what becomes of it.
///
/// # Errors
/// [`NameError`], where names or values contradict each other. Halves and tensors to be refused are no error yet: see
/// [`Mapping::renames_only`].
pub fn map(head: HeadFile<'_>, compare: Compare<'_>) -> Result<Mapping, NameError> {
    let HeadFile { tensors, block, .. } = head;
    let own = head_block(tensors, block);
    if let Some(other) = tensors.iter().find(|t| block_of(&t.name).is_some_and(|(i, _)| Some(i) != own)) {
        return Err(NameError::OtherBlock { block: own.unwrap_or(block), found: other.name.clone() });
    }
    let names: Vec<String> = tensors.iter().map(|t| local(&t.name)).collect();
    let facts = Facts::of(head, &names);
    check_top_mixer(head, &facts, compare)?;
    let mut uses = vec![0; RULES.len()];
    let mut dialect = Dialect::Canonical;
    let mut fates = Vec::with_capacity(tensors.len());
    let mut taken: HashMap<String, &str> = HashMap::new();
    for (t, local) in tensors.iter().zip(&names) {
        let Some(i) = RULES.iter().position(|rule| facts.takes(rule, t, local)) else {
            fates.push(Fate::Unknown);
            continue;
        };
        let rule = &RULES[i];
        uses[i] += 1;
        dialect = dialect.max(rule.dialect);
        let numbered = |name: &str| name.replacen("blk.B.", &format!("blk.{block}."), 1);
        let canonical = || format!("{}.weight", numbered(rule.canonical));
        let fate = match rule.action {
            Action::Same => Fate::As(numbered(local)),
            Action::Rename => Fate::As(canonical()),
            Action::Half => Fate::Half(canonical()),
            Action::Drop(reason) => Fate::Dropped(reason),
            Action::Refuse(reason) => Fate::Refused(reason),
        };
        fates.push(match fate {
            Fate::As(canonical) => match taken.insert(canonical.clone(), &t.name) {
                None => Fate::As(canonical),
                Some(first) if (compare.same_bytes)(first, &t.name) => Fate::Dropped("the same bytes under two names"),
                Some(first) => {
                    let (first, second) = (first.to_owned(), t.name.clone());
                    return Err(NameError::Twice { first, second, canonical });
                }
            },
            other => other,
        });
    }
    // A whole tensor beside a half of it.
    for (t, fate) in tensors.iter().zip(&fates) {
        if let Fate::Half(canonical) = fate
            && let Some(first) = taken.get(canonical)
        {
            let (first, second, canonical) = ((*first).to_owned(), t.name.clone(), canonical.clone());
            return Err(NameError::Twice { first, second, canonical });
        }
    }
    Ok(Mapping { dialect, fates, uses })
}

impl Mapping {
    /// Whether the head can be used as it is, under other names.
    ///
    /// # Errors
    /// [`NameError::Halves`], [`NameError::Refused`].
    pub fn renames_only(&self, tensors: &[&TensorInfo]) -> Result<(), NameError> {
        let dialect = self.dialect.name();
        let halves = || tensors.iter().zip(&self.fates).filter(|(_, fate)| matches!(fate, Fate::Half(_)));
        if let Some((_, Fate::Half(expected))) = halves().next() {
            let found: Vec<&str> = halves().map(|(t, _)| t.name.as_str()).collect();
            let lone = if found.len() == 1 { ", and the other half is missing" } else { "" };
            return Err(NameError::Halves { dialect, found: found.join(" and "), expected: expected.clone(), lone });
        }
        let refused = |(t, fate): (&&TensorInfo, &Fate)| match fate {
            Fate::Refused(reason) => Some((t.name.clone(), *reason)),
            _ => None,
        };
        match tensors.iter().zip(&self.fates).find_map(refused) {
            Some((found, reason)) => Err(NameError::Refused { dialect, found, reason }),
            None => Ok(()),
        }
    }
}

/// Whether a name can only be one of a head, wherever in a model it stands.
pub fn is_top_level_head(name: &str) -> bool {
    local(name).starts_with("mtp.")
}

/// The other names of a head's tensor whose canonical name this is; those of its halves are none.
pub fn other_names(canonical: &str) -> impl Iterator<Item = String> {
    let (block, stem) = (block_of(canonical).map_or(0, |(block, _)| block), local(canonical));
    let renamed =
        move |rule: &&Rule| rule.action == Action::Rename && stem.strip_suffix(".weight") == Some(rule.canonical);
    let found = RULES.iter().filter(renamed).map(|rule| rule.found);
    found.map(move |found| format!("{}.weight", found.replacen("blk.B.", &format!("blk.{block}."), 1)))
}

const MIXER: [&str; 3] = ["norm", "down", "up"];

/// What conditions of rules ask for.
struct Facts<'a> {
    arch: &'a str,
    wide: Option<u64>,
    own_mixer: bool,
    /// The mixer's norm is that of the block's `shared_head_norm`.
    shared_norm: bool,
}

impl<'a> Facts<'a> {
    fn of(head: HeadFile<'a>, names: &[String]) -> Self {
        let own = |stem: &str| {
            ["blk.B.nextn.hc_head_", "blk.B.nextn.hc_", "mtp.mixer_"].iter().any(|prefix| {
                MIXER.iter().any(|part| stem.strip_prefix(prefix).and_then(|s| s.strip_suffix(".weight")) == Some(part))
            })
        };
        let norm = |stem: &str| {
            ["blk.B.nextn.hc_head_norm.weight", "blk.B.nextn.hc_norm.weight", "mtp.mixer_norm.weight"].contains(&stem)
        };
        let mut facts =
            Self { arch: head.arch, wide: head.wide, own_mixer: names.iter().any(|n| own(n)), shared_norm: false };
        let shared = "blk.B.nextn.shared_head_norm.weight";
        facts.shared_norm = !names.iter().any(|n| norm(n))
            && head.tensors.iter().zip(names).any(|(t, n)| n == shared && Some(t.elements()) == head.wide);
        facts
    }

    fn takes(&self, rule: &Rule, t: &TensorInfo, local: &str) -> bool {
        let named = match rule.found.strip_suffix('*') {
            Some(prefix) => local.starts_with(prefix),
            None => local.strip_suffix(".weight") == Some(rule.found),
        };
        let holds = match rule.when {
            When::Always => true,
            When::OwnMixer => self.own_mixer,
            When::NoOwnMixer => !self.own_mixer,
            When::MixerNorm => self.shared_norm && Some(t.elements()) == self.wide,
        };
        rule.archs.has(self.arch) && named && holds
    }
}

/// The mixer at top level is the trunk's copy where the head has one of its own, and else the head's: all of it, and
/// unless its values are the trunk's.
fn check_top_mixer(head: HeadFile<'_>, facts: &Facts<'_>, compare: Compare<'_>) -> Result<(), NameError> {
    let names = MIXER.map(|part| format!("output_hc_{part}.weight"));
    let has = |name: &String| head.tensors.iter().any(|t| t.name == *name);
    let (found, missing): (Vec<&String>, Vec<&String>) = names.iter().partition(|name| has(name));
    if head.wide.is_none() || found.is_empty() {
        return Ok(());
    }
    let join = |names: &[&String]| names.iter().map(|n| n.as_str()).collect::<Vec<_>>().join(" and ");
    let norm_elsewhere = facts.shared_norm && *missing == [&names[0]];
    if !missing.is_empty() && !norm_elsewhere {
        return Err(NameError::PartialMixer { found: join(&found), missing: join(&missing) });
    }
    if !facts.own_mixer && !norm_elsewhere && (compare.is_trunks)(&names[0]) {
        return Err(NameError::TrunkMixer { found: names[0].clone(), block: head.block });
    }
    Ok(())
}

/// The head's block: the one that the target's count calls for, else the only one.
fn head_block(tensors: &[&TensorInfo], counted: usize) -> Option<usize> {
    let mut blocks = tensors.iter().filter_map(|t| Some(block_of(&t.name)?.0));
    let first = blocks.next()?;
    let (mut alone, mut counts) = (true, first == counted);
    for block in blocks {
        alone &= block == first;
        counts |= block == counted;
    }
    match (counts, alone) {
        (true, _) => Some(counted),
        (false, true) => Some(first),
        (false, false) => None,
    }
}

/// `blk.7.rest` to 7 and `rest`.
pub fn block_of(name: &str) -> Option<(usize, &str)> {
    let (block, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((block.parse().ok()?, rest))
}

/// A name as the table writes it: without the number of the block, and without what checkpoints put in front of `mtp.`.
fn local(name: &str) -> String {
    if let Some((_, rest)) = block_of(name) {
        return format!("blk.B.{rest}");
    }
    let mut bare = name;
    while let Some(rest) = bare.strip_prefix("model.").or_else(|| bare.strip_prefix("language_model.")) {
        bare = rest;
    }
    if bare.starts_with("mtp.") { bare } else { name }.to_owned()
}
