//! Putting a published MTP head behind a trunk: what every tensor of the head becomes, what metadata change, and every
//! reason why not, before a byte is written. Reads no more than directories, metadata and a few small norms.
//!
//! Nothing is left out in silence: each tensor of the head is renamed, joined, dropped with a reason, or an error, and
//! the counts add up. What the result must have is asked of the loader's own planner, so that a plan that passes here
//! loads.

mod error;
pub(super) mod keys;
mod spell;

use std::collections::HashSet;

use engine_io::ModelFile;
use engine_io::compat::{self, Compare, Dialect, Fate, HeadFile, block_of};
use engine_io::gguf::{LayerCounts, Meta, TensorInfo};

use super::config::Config;
use super::conventions::Conventions;
use super::dialect;
use super::plan::{self, FileView, Plan};
use super::sidecar;
use super::stage::Stage;
use super::tensors::Inventory;

pub use error::{GraftError, Reason};
pub use keys::{KeyEdit, is_per_block};

/// Longest name that llama.cpp reads (`GGML_MAX_NAME`, one byte of which ends it).
pub const NAME_BYTES_MAX: usize = 63;

/// A tensor of the new block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewTensor {
    /// Name, shape and type; no place yet.
    pub info: TensorInfo,
    /// Where its bytes are.
    pub from: Bytes,
}

/// Bytes of a new tensor, by names in the head's file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bytes {
    /// Those of one tensor.
    Of(String),
    /// Row by row those of two, the first one's first.
    Rows(String, String),
    /// Of every row of one the half that holds the columns of the embedding, or of the hidden row.
    Columns(String, Half),
}

impl Bytes {
    /// The tensors in the head's file.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Of(name) | Self::Columns(name, _) => vec![name],
            Self::Rows(a, b) => vec![a, b],
        }
    }

    /// Which half of that tensor's rows they are, if not all of it.
    pub fn half(&self) -> Option<Half> {
        match self {
            Self::Of(_) | Self::Rows(..) => None,
            Self::Columns(_, half) => Some(*half),
        }
    }
}

/// A half of the rows of the projection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    /// Columns of the embedding.
    Embedding,
    /// Columns of the hidden row.
    Hidden,
}

impl Half {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "the first half of every row",
            Self::Hidden => "the second half of every row",
        }
    }
}

/// A tensor that is left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// How often a rule of [`RULES`] was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RuleUse {
    /// Index of the rule.
    pub rule: usize,
    /// Tensors it took; at least one.
    pub count: usize,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct GraftPlan {
    /// Architecture of both.
    pub arch: &'static str,
    /// Number of the new block: blocks of the target.
    pub block: usize,
    /// How the head names its tensors.
    pub dialect: Dialect,
    /// How they are named behind the trunk.
    pub names: Dialect,
    /// Tensors of the new block, in the head's order; a joined one stands where its first half does.
    pub tensors: Vec<NewTensor>,
    /// Tensors of the head that are left out.
    pub dropped: Vec<Dropped>,
    /// Tensors of the trunk of a whole model that the head is taken from.
    pub of_donor: usize,
    /// Rules that were used.
    pub rules: Vec<RuleUse>,
    /// Keys that change, split keys aside.
    pub edits: Vec<KeyEdit>,
    /// What was odd but no reason to refuse.
    pub warnings: Vec<String>,
}

impl GraftPlan {
    /// The target's metadata with the changes, split keys aside; order and types of all else stay.
    pub fn apply(&self, target: &Meta) -> Meta {
        let mut meta = target.clone();
        self.edits.iter().for_each(|edit| meta.set(&edit.key, edit.to.clone()));
        meta
    }

    /// Bytes of the new block.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.info.bytes).sum()
    }
}

/// Plans to put the block of `head` behind the trunk of `target`, under the names of `names`.
///
/// # Errors
/// [`GraftError`]: everything that is wrong, as far as one fault does not hide another.
pub fn plan(target: &ModelFile, head: &ModelFile, names: Dialect) -> Result<GraftPlan, GraftError> {
    let config = Config::read(target.meta())?;
    check_target(target, &config)?;
    let (path, arch) = (head.name(), config.arch.name());
    let found = head.meta().architecture()?;
    if found != arch {
        return Err(Reason::Arch { head: path, found: found.to_owned(), expected: arch }.into());
    }
    // Asked first: with another number, what lists over the blocks say is read of the wrong ones.
    let blocks = LayerCounts::read(head.meta(), arch)?.nextn as usize;
    if blocks != 1 {
        return Err(Reason::Blocks { head: path, arch, found: blocks }.into());
    }
    let mut of_head = Config::read(head.meta())?;
    let mut warnings = Vec::new();
    if of_head.tokens.is_none() {
        of_head.tokens = config.tokens;
        warnings.push(format!("{path}: has no token list; that it is of the target's vocabulary could not be checked"));
    }
    let (asked, of_donor) = select(head, &of_head)?;

    let mut reasons = differences(target, head, &config, &of_head);
    let mapped = match map(target, head, &asked, &of_head) {
        Ok(mapped) => mapped,
        Err(more) => {
            reasons.extend(more);
            return Err(GraftError(reasons));
        }
    };
    let Mapped { dialect, mut tensors, dropped, rules } = mapped;
    let consumed: usize = tensors.iter().map(|t| t.from.names().len()).sum();
    assert_eq!(head.tensors().len(), consumed + dropped.len() + of_donor, "every tensor of {path} is accounted for");
    reasons.extend(check_planned(target, head, &config, &of_head, &tensors, reasons.is_empty()));
    let edits = keys::edits(target.meta(), Some(head.meta()), &config).unwrap_or_else(|more| {
        reasons.extend(more.into_iter().map(Reason::Unreadable));
        Vec::new()
    });
    if reasons.is_empty() {
        tensors = spell::spell(tensors, names, arch, target, &path)?;
    }
    if !reasons.is_empty() {
        return Err(GraftError(reasons));
    }
    for t in dropped.iter().filter(|d| d.reason == TARGETS_OWN) {
        warnings.extend(compared(target, head, &t.name));
    }
    Ok(GraftPlan { arch, block: config.trunk, dialect, names, tensors, dropped, of_donor, rules, edits, warnings })
}

/// What a head's names say, for those that other engines look for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeadNames {
    /// Which names they are.
    pub dialect: Dialect,
    /// What every block of the architecture has and this one has not, or has in another size: a line for each.
    pub lacks: Vec<String>,
}

/// Names of the head that a file is, or that is in it; `None` without exactly one.
///
/// # Errors
/// Names that contradict each other, in words.
pub fn names_of(file: &ModelFile, config: &Config) -> Result<Option<HeadNames>, String> {
    let own = format!("blk.{}.", config.trunk);
    let whole = config.trunk > 0 && file.tensors().iter().any(|t| t.name.starts_with("blk.0."));
    let of_head = |t: &&TensorInfo| t.name.starts_with(&own) || compat::is_top_level_head(&t.name);
    let asked: Vec<&TensorInfo> = file.tensors().iter().filter(|t| !whole || of_head(t)).collect();
    if asked.is_empty() || config.nextn != 1 {
        return Ok(None);
    }
    let head = HeadFile { arch: config.arch.name(), tensors: &asked, block: config.trunk, wide: dialect::wide(config) };
    let compare = Compare { is_trunks: &|_| false, same_bytes: &|a, b| dialect::has_same_bytes(file, a, b) };
    let mapping = compat::map(head, compare).map_err(|error| error.to_string())?;
    let mut tensors: Vec<TensorInfo> = Vec::new();
    for (t, fate) in asked.iter().zip(&mapping.fates) {
        match fate {
            Fate::As(name) => tensors.push(renamed(t, name)),
            // Once for both; a half alone is no projection.
            Fate::Half(name) if !tensors.iter().any(|t| t.name == *name) => {
                let halves = with(&asked, &mapping.fates, |f| f == fate);
                tensors.extend(join(&file.name(), halves, name, config.d_model).map(|whole| whole.info));
            }
            Fate::Half(_) | Fate::Dropped(_) | Fate::Refused(_) | Fate::Unknown => {}
        }
    }
    let report = plan::report_of_block(config, &Inventory::new(&tensors));
    let missing =
        report.missing.iter().filter(|name| name.starts_with(&own)).map(|name| format!("{name} is not there"));
    // How long a table of its own is, the target says.
    let is_table = |name: &str| name.ends_with("embed_tokens.weight") || name.ends_with("shared_head_head.weight");
    let wrong = report.wrong_shape.iter().filter(|w| !is_table(&w.name));
    let wrong = wrong.map(|w| format!("{} has dimensions {:?}, expected {:?}", w.name, w.found, w.expected));
    let lacks = missing.chain(wrong).collect();
    Ok(Some(HeadNames { dialect: mapping.dialect, lacks }))
}

const TARGETS_OWN: &str = "the target's own is used";

fn check_target(target: &ModelFile, config: &Config) -> Result<(), Reason> {
    let (path, arch, trunk) = (target.name(), config.arch.name(), config.trunk);
    if !config.arch.has_mtp() {
        return Err(Reason::NoMtp { target: path, arch });
    }
    let of_block =
        |t: &&TensorInfo| block_of(&t.name).is_some_and(|(i, _)| i >= trunk) || compat::is_top_level_head(&t.name);
    if !target.tensors().iter().any(|t| t.name.starts_with("blk.0.")) {
        return Err(Reason::TargetIsHead { target: path });
    }
    let found = match (config.nextn, target.tensors().iter().find(of_block)) {
        (0, None) => return Ok(()),
        (0, Some(t)) => format!("tensor {} behind {trunk} blocks", t.name),
        (n, _) => format!("{arch}.nextn_predict_layers = {n}"),
    };
    Err(Reason::TargetHasHead { target: path, found })
}

/// The tensors that are of the head, and how many others there are: none, or those of the trunk of a whole model.
fn select<'a>(head: &'a ModelFile, config: &Config) -> Result<(Vec<&'a TensorInfo>, usize), Reason> {
    let all: Vec<&TensorInfo> = head.tensors().iter().collect();
    let mut blocks: Vec<usize> = all.iter().filter_map(|t| Some(block_of(&t.name)?.0)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    if blocks.len() <= 1 {
        return Ok((all, 0));
    }
    let own = format!("blk.{}.", config.trunk);
    let nextn = format!("{own}nextn.");
    let is_head = |t: &&TensorInfo| t.name.starts_with(&nextn) || compat::is_top_level_head(&t.name);
    if blocks.iter().copied().ne(0..=config.trunk) || !all.iter().any(is_head) {
        let found = format!("blocks {blocks:?} for {} trunk blocks and one NextN block", config.trunk);
        return Err(Reason::NotHeadOnly { head: head.name(), found });
    }
    let (own, rest): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|t| t.name.starts_with(&own) || compat::is_top_level_head(&t.name));
    Ok((own, rest.len()))
}

/// What both files say differently: by keys, and by what the keys mean together.
fn differences(target: &ModelFile, head: &ModelFile, config: &Config, of_head: &Config) -> Vec<Reason> {
    let path = head.name();
    let prefix = format!("{}.", config.arch.name());
    let mut out: Vec<Reason> = Vec::new();
    let mut seen: Vec<String> = Vec::new();
    for (key, here, there) in keys::differences(target.meta(), head.meta(), config.arch.name()) {
        seen.push(key.strip_prefix(&prefix).unwrap_or(key).to_owned());
        let (found, expected) = (here.to_string(), there.to_string());
        out.push(Reason::Differs { head: path.clone(), what: key.to_owned(), found, expected, hint: hint(key) });
    }
    for (what, found, expected) in sidecar::differences(config, of_head) {
        if !seen.iter().any(|key| key == what) {
            out.push(Reason::Differs { head: path.clone(), what: what.to_owned(), found, expected, hint: hint(what) });
        }
    }
    out
}

fn hint(what: &str) -> &'static str {
    if what.ends_with("expert_count") {
        "the target may be one whose experts were pruned: use the head that was made for it"
    } else if what.contains("token") {
        "the head is of another vocabulary: use the one that was made for this model"
    } else {
        "use the head that was made for this model"
    }
}

/// A head under canonical names.
struct Mapped {
    dialect: Dialect,
    tensors: Vec<NewTensor>,
    dropped: Vec<Dropped>,
    rules: Vec<RuleUse>,
}

fn map(target: &ModelFile, head: &ModelFile, asked: &[&TensorInfo], config: &Config) -> Result<Mapped, Vec<Reason>> {
    let path = head.name();
    let of_head =
        HeadFile { arch: config.arch.name(), tensors: asked, block: config.trunk, wide: dialect::wide(config) };
    let compare = Compare {
        is_trunks: &|name| dialect::has_norm_of_trunk(head, name, target),
        same_bytes: &|a, b| dialect::has_same_bytes(head, a, b),
    };
    let names = |source| vec![Reason::Names { head: path.clone(), source }];
    let mapping = compat::map(of_head, compare).map_err(names)?;
    let mut reasons = Vec::new();
    let unknown: Vec<String> = with(asked, &mapping.fates, |f| *f == Fate::Unknown).map(|t| t.name.clone()).collect();
    if !unknown.is_empty() {
        reasons.push(Reason::Unknown { head: path.clone(), tensors: unknown });
    }
    for (t, fate) in asked.iter().zip(&mapping.fates) {
        if let Fate::Refused(reason) = fate {
            let source = compat::NameError::Refused { dialect: mapping.dialect.name(), found: t.name.clone(), reason };
            reasons.extend(names(source));
        }
    }
    if !reasons.is_empty() {
        return Err(reasons);
    }
    let (mut tensors, mut dropped) = (Vec::new(), Vec::new());
    let mut joined: HashSet<&str> = HashSet::new();
    for (t, fate) in asked.iter().zip(&mapping.fates) {
        let drop = |reason: &str| Dropped { name: t.name.clone(), reason: reason.to_owned() };
        match fate {
            Fate::As(name)
                if name.ends_with("nextn.embed_tokens.weight") || name.ends_with("nextn.shared_head_head.weight") =>
            {
                dropped.push(drop(TARGETS_OWN));
            }
            Fate::As(name) => tensors.push(NewTensor { info: renamed(t, name), from: Bytes::Of(t.name.clone()) }),
            Fate::Dropped(_) if t.name == "output_norm.weight" && !same_output_norm(target, head) => {
                reasons.push(Reason::OutputNorm { head: path.clone() });
            }
            Fate::Dropped(reason) => dropped.push(drop(reason)),
            Fate::Half(canonical) => {
                if !joined.insert(canonical) {
                    continue;
                }
                match join(&path, with(asked, &mapping.fates, |f| f == fate), canonical, config.d_model) {
                    Ok(tensor) => tensors.push(tensor),
                    Err(reason) => reasons.push(reason),
                }
            }
            Fate::Refused(_) | Fate::Unknown => unreachable!("refused above"),
        }
    }
    if !reasons.is_empty() {
        return Err(reasons);
    }
    let uses = mapping.uses.iter().enumerate().filter(|(_, count)| **count > 0);
    let rules = uses.map(|(rule, &count)| RuleUse { rule, count }).collect();
    Ok(Mapped { dialect: mapping.dialect, tensors, dropped, rules })
}

fn with<'a>(
    tensors: &'a [&'a TensorInfo],
    fates: &'a [Fate],
    is: impl Fn(&Fate) -> bool + 'a,
) -> impl Iterator<Item = &'a TensorInfo> {
    tensors.iter().zip(fates).filter(move |(_, fate)| is(fate)).map(|(t, _)| *t)
}

fn renamed(t: &TensorInfo, name: &str) -> TensorInfo {
    let mut info = t.clone();
    info.name = name.to_owned();
    info
}

fn same_output_norm(target: &ModelFile, head: &ModelFile) -> bool {
    let name = "output_norm.weight";
    match (target.tensor(name), head.tensor(name)) {
        (Some(a), Some(b)) => a.ty == b.ty && *target.data(a) == *head.data(b),
        _ => false,
    }
}

/// The projection from its halves: of every row, the columns of the embedding, then those of the hidden row.
fn join<'a>(
    path: &str,
    halves: impl Iterator<Item = &'a TensorInfo>,
    canonical: &str,
    d: usize,
) -> Result<NewTensor, Reason> {
    let (hidden, embedding): (Vec<_>, Vec<_>) = halves.partition(|t| t.name.ends_with("fc_hidden.weight"));
    let head = path.to_owned();
    let (embedding, hidden) = match (embedding.as_slice(), hidden.as_slice()) {
        ([embedding], [hidden]) => (*embedding, *hidden),
        (all, more) => {
            let found: Vec<&str> = all.iter().chain(more).map(|t| t.name.as_str()).collect();
            return Err(Reason::LoneHalf { head, found: found.join(" and "), expected: canonical.to_owned() });
        }
    };
    let square = [d as u64, d as u64];
    let fits = |t: &TensorInfo| t.has_dims(&square) && (d as u64).is_multiple_of(t.ty.block_len());
    if embedding.ty != hidden.ty || !fits(embedding) || !fits(hidden) {
        let shape = |t: &TensorInfo| error::shape(t.dims(), t.ty);
        return Err(Reason::Halves {
            head,
            halves: format!("{} and {}", embedding.name, hidden.name),
            expected: canonical.to_owned(),
            found: format!("{} and {}", shape(embedding), shape(hidden)),
            d,
        });
    }
    let info = TensorInfo::new(path, canonical, &[2 * d as u64, d as u64], embedding.ty);
    let info = info.map_err(|error| Reason::Unreadable(error.into()))?;
    Ok(NewTensor { info, from: Bytes::Rows(embedding.name.clone(), hidden.name.clone()) })
}

/// What is wrong with a name behind the target's.
fn refused_name(head: &str, name: &str, target: &ModelFile) -> Option<Reason> {
    let (head, name) = (head.to_owned(), name.to_owned());
    if target.tensor(&name).is_some() {
        Some(Reason::Collision { head, tensor: name, target: target.name() })
    } else if name.len() > NAME_BYTES_MAX {
        Some(Reason::LongName { head, len: name.len(), name })
    } else {
        None
    }
}

/// What the loader says of a target with this block, and what other engines would.
fn check_planned(
    target: &ModelFile,
    head: &ModelFile,
    config: &Config,
    of_head: &Config,
    tensors: &[NewTensor],
    alike: bool,
) -> Vec<Reason> {
    let path = head.name();
    let mut out = Vec::new();
    out.extend(tensors.iter().filter_map(|t| refused_name(&path, &t.info.name, target)));
    if !alike {
        // Shapes would only repeat what the keys say.
        return out;
    }
    let list: Vec<TensorInfo> = tensors.iter().map(|t| t.info.clone()).collect();
    let (own, beside) = (Inventory::new(target.tensors()), Inventory::new(&list));
    let target_path = target.name();
    let model = FileView { path: &target_path, config, tensors: &own, refused: None };
    let draft = FileView { path: &path, config: of_head, tensors: &beside, refused: None };
    // A tensor of the head that the architecture does not have is refused here, too.
    if let Err(source) = Plan::new(model, Stage::whole(config.trunk), Some(draft), false, Conventions::default()) {
        out.push(Reason::Model { head: path, source: Box::new(source) });
    }
    out
}

/// A line on a tensor that the target's own stands for.
fn compared(target: &ModelFile, head: &ModelFile, name: &str) -> Option<String> {
    let own = match name {
        "token_embd.weight" | "output.weight" => name,
        _ if name.ends_with("embed_tokens.weight") => "token_embd.weight",
        _ if name.ends_with("shared_head_head.weight") => "output.weight",
        _ => return None,
    };
    let theirs = head.tensor(name)?;
    let ours = target.tensor(own).or_else(|| target.tensor("token_embd.weight"))?;
    let rows = match theirs.rows() == ours.rows() {
        true => format!("{} rows each", ours.rows()),
        false => format!("{} rows against {}", theirs.rows(), ours.rows()),
    };
    Some(format!("{name} ({}) is left out for the target's {} ({}), {rows}", theirs.ty, ours.name, ours.ty))
}
