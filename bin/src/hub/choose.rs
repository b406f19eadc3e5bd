//! Which files of a repository are the model that was asked for.
//!
//! A quant is part of a name: `Q4_K_M` of `Model-Q4_K_M.gguf`, of `model.q4_k_m.gguf`, of `Q4_K_M/Model-00001-of-00002.gguf`
//! and of `Model-UD-Q4_K_M.gguf`, but not `Q4_K`. Case does not matter. Without one, the only model is taken, and of several
//! the one of `Q4_K_M`, as llama.cpp does. MTP sidecars, projectors and importance matrices are no models. A file's whole
//! name, `Model-Q4_K_M.gguf`, is that file, whatever it holds.

use std::collections::BTreeMap;
use std::path::Path;

use engine_io::package::MANIFEST;
use engine_io::shards::SplitName;

/// What is taken of several models where no quant is given.
const QUANT_DEFAULT: &str = "Q4_K_M";
/// Names that a message lists.
const LISTED_MAX: usize = 40;

/// What is asked of a repository.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// A model.
    Model,
    /// A model, and the MTP sidecar that is its own.
    ModelAndSidecar,
    /// An MTP sidecar, for a model from anywhere.
    Sidecar,
}

/// The files, as indices into the names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The model, or the sidecar if that alone is wanted.
    pub chosen: Chosen,
    /// The MTP sidecar, if it is wanted beside the model.
    pub mtp: Option<usize>,
    /// What was decided without having been asked for.
    pub note: Option<String>,
    /// More names beside these would not have led to another one.
    pub certain: bool,
}

/// What kind of model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Chosen {
    /// A GGUF file, or the shards of one in their order.
    Gguf(Vec<usize>),
    /// The manifest of a layer package, which names the rest.
    Package(usize),
}

/// Shards of one model by their number, or the one file.
struct Set<'n> {
    /// Name without shard number and ending, which quants are looked for in.
    stem: &'n str,
    /// Shards that the names speak of.
    count: u64,
    files: BTreeMap<u64, usize>,
}

/// Chooses among the files of a repository.
///
/// # Errors
/// Why there is no such model, with what there is.
pub fn choose(names: &[&str], quant: Option<&str>, wanted: Wanted) -> Result<Choice, String> {
    if let Some(manifest) = names.iter().position(|name| *name == MANIFEST) {
        let inside = |what: &str| Err(format!("is a layer package, which has its MTP block inside; {what}"));
        return match (wanted, quant) {
            (Wanted::Sidecar, _) => inside("give a repository with an mtp-*.gguf"),
            (_, Some(quant)) => Err(format!("is a layer package, of one quant; leave out :{quant}")),
            (Wanted::ModelAndSidecar, None) => inside("leave out --with-mtp"),
            (Wanted::Model, None) => {
                Ok(Choice { chosen: Chosen::Package(manifest), mtp: None, note: None, certain: true })
            }
        };
    }
    let Sets { models, sidecars, companions } = sets(names);
    let (set, note, certain) = match (quant, wanted) {
        (Some(name), _) if stem(name).is_some() => {
            let all: Vec<&Set<'_>> = models.iter().chain(&sidecars).chain(&companions).collect();
            (named(&all, name)?, None, true)
        }
        (_, Wanted::Sidecar) => head(&sidecars, quant)?,
        (_, Wanted::Model | Wanted::ModelAndSidecar) => model(&models, quant)?,
    };
    let missing: Vec<String> =
        (1..=set.count).filter(|no| !set.files.contains_key(no)).take(3).map(|n| n.to_string()).collect();
    if !missing.is_empty() {
        return Err(format!("{} lacks shard {} of {}", set.stem, missing.join(", "), set.count));
    }
    let mtp = (wanted == Wanted::ModelAndSidecar).then(|| sidecar(&sidecars, set.stem)).transpose()?;
    Ok(Choice { chosen: Chosen::Gguf(set.files.values().copied().collect()), mtp, note, certain })
}

/// What a repository holds, each in the order of its names.
struct Sets<'n> {
    models: Vec<Set<'n>>,
    /// MTP blocks alone.
    sidecars: Vec<Set<'n>>,
    /// Projectors and importance matrices.
    companions: Vec<Set<'n>>,
}

/// Name without ending and shard number, that number, and how many there are.
fn parts(name: &str) -> Option<(&str, u64, u64)> {
    let stem = stem(name)?;
    Some(match SplitName::parse(Path::new(name)) {
        // `-00001-of-00002`
        Some(split) => (&stem[..stem.len() - 15], split.no, split.count),
        None => (stem, 1, 1),
    })
}

fn sets<'n>(names: &[&'n str]) -> Sets<'n> {
    let mut sets: BTreeMap<(&str, u64), Set<'n>> = BTreeMap::new();
    for (index, &name) in names.iter().enumerate() {
        let Some((stem, no, count)) = parts(name) else { continue };
        let set = sets.entry((stem, count)).or_insert(Set { stem, count, files: BTreeMap::new() });
        // Two names of one shard differ in the case of `.gguf` alone; the first is as good.
        set.files.entry(no).or_insert(index);
    }
    let is_companion = |set: &Set<'_>| {
        let base = base(set.stem).to_lowercase();
        let has = |what: &str| tokens(&base).any(|t| t == what);
        base.starts_with("mmproj")
            || has("mmproj")
            || (has("imatrix") && !tokens(&base).any(is_quant))
            || base == "imatrix"
    };
    let is_sidecar = |set: &Set<'_>| base(set.stem).to_lowercase().starts_with("mtp-");
    let (sidecars, rest): (Vec<_>, Vec<_>) = sets.into_values().partition(is_sidecar);
    let (companions, models) = rest.into_iter().partition(is_companion);
    Sets { models, sidecars, companions }
}

/// What the file of a name belongs to, in whatever folder it is.
fn named<'a, 'n>(all: &[&'a Set<'n>], name: &str) -> Result<&'a Set<'n>, String> {
    let wanted = parts(name);
    let is_it = |set: &&&Set<'_>| {
        wanted.is_some_and(|(stem, _, count)| set.count == count && base(set.stem).eq_ignore_ascii_case(stem))
    };
    let found: Vec<&&Set<'_>> = all.iter().filter(is_it).collect();
    match found.as_slice() {
        [set] => Ok(set),
        [] => Err(format!("has no file {name}; it has {}", listed(all.iter().copied()))),
        several => Err(format!("has {} files {name}: {}", several.len(), listed(several.iter().map(|set| **set)))),
    }
}

/// The one MTP sidecar, or the one of a quant.
fn head<'a, 'n>(sidecars: &'a [Set<'n>], quant: Option<&str>) -> Result<(&'a Set<'n>, Option<String>, bool), String> {
    let found: Vec<&Set<'_>> = sidecars.iter().filter(|set| quant.is_none_or(|q| carries(set.stem, q))).collect();
    match (found.as_slice(), quant) {
        ([set], _) => Ok((set, None, quant.is_some())),
        ([], Some(quant)) if !sidecars.is_empty() => {
            Err(format!("has no MTP sidecar of quant {quant}; it has {}", listed(sidecars.iter())))
        }
        ([], _) => Err("has no MTP sidecar (mtp-*.gguf); write the name of the head's file after :".to_owned()),
        (several, _) => Err(format!(
            "has {} MTP sidecars: write the quant or the file's name after : of one of {}",
            several.len(),
            listed(several.iter().copied())
        )),
    }
}

fn model<'a, 'n>(models: &'a [Set<'n>], quant: Option<&str>) -> Result<(&'a Set<'n>, Option<String>, bool), String> {
    if models.is_empty() {
        return Err("holds no GGUF model".to_owned());
    }
    let (wanted, given) = quant.map_or((QUANT_DEFAULT, false), |quant| (quant, true));
    if !given && models.len() == 1 {
        return Ok((&models[0], None, carries(models[0].stem, QUANT_DEFAULT)));
    }
    let found: Vec<&Set<'_>> = models.iter().filter(|set| carries(set.stem, wanted)).collect();
    match (found.as_slice(), given) {
        ([set], true) => Ok((set, None, true)),
        ([set], false) => {
            let note =
                format!("{} models and no quant in the name: taking {} ({QUANT_DEFAULT})", models.len(), set.stem);
            Ok((set, Some(note), true))
        }
        ([], true) => Err(format!("has no model of quant {wanted}; it has {}", listed(models.iter()))),
        ([], false) => Err(format!(
            "has several models, none of them {QUANT_DEFAULT}: give one after : of {}",
            listed(models.iter())
        )),
        (several, _) => Err(format!(
            "has {} models of quant {wanted}: write more of the name after : of one of {}",
            several.len(),
            listed(several.iter().copied())
        )),
    }
}

/// The sidecar of a model: of its name, else of its quant, else the only one.
fn sidecar(sidecars: &[Set<'_>], model: &str) -> Result<usize, String> {
    let of_name = |set: &&Set<'_>| base(set.stem)["mtp-".len()..].eq_ignore_ascii_case(base(model));
    let quants: Vec<String> = tokens(&base(model).to_lowercase()).filter(|t| is_quant(t)).map(str::to_owned).collect();
    let of_quant = |set: &&Set<'_>| quants.last().is_some_and(|quant| carries(set.stem, quant));
    let whole = |set: &Set<'_>| (set.count == 1).then(|| set.files[&1]);
    let named: Vec<&Set<'_>> = sidecars.iter().filter(of_name).collect();
    let quantised: Vec<&Set<'_>> = sidecars.iter().filter(of_quant).collect();
    let found = match (named.as_slice(), quantised.as_slice(), sidecars) {
        ([one], _, _) | ([], [one], _) => whole(one),
        ([], [], [one]) => whole(one),
        ([], [], []) => return Err("has no MTP sidecar (mtp-*.gguf); leave out --with-mtp".to_owned()),
        _ => None,
    };
    found.ok_or_else(|| {
        format!(
            "has no MTP sidecar that is clearly of {model}; fetch without --with-mtp. It has {}",
            listed(sidecars.iter())
        )
    })
}

fn listed<'a, 'n: 'a>(sets: impl Iterator<Item = &'a Set<'n>>) -> String {
    let names: Vec<String> = sets.map(|set| super::http::quote(set.stem)).collect();
    match names.len().checked_sub(LISTED_MAX) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..LISTED_MAX].join(", ")),
    }
}

/// Name without `.gguf`, in any case.
fn stem(name: &str) -> Option<&str> {
    let at = name.len().checked_sub(5)?;
    let stem = name.get(..at)?;
    (name[at..].eq_ignore_ascii_case(".gguf") && !base(stem).is_empty()).then_some(stem)
}

fn base(stem: &str) -> &str {
    stem.rsplit('/').next().unwrap_or(stem)
}

/// Parts of a name between `-`, `.` and `/`, and what stands behind a `_` if it looks like a quant.
fn tokens(stem: &str) -> impl Iterator<Item = &str> {
    stem.split(['-', '.', '/']).flat_map(|part| {
        let tails = part.char_indices().filter(|(_, c)| *c == '_').map(move |(at, _)| &part[at + 1..]);
        std::iter::once(part).chain(tails.filter(|tail| is_quant(tail)))
    })
}

/// Lower-case text that begins like the name of a quant.
fn is_quant(token: &str) -> bool {
    let rest = |prefix: &str| token.strip_prefix(prefix).and_then(|r| r.bytes().next());
    let numbered = ["iq", "tq", "q"].iter().any(|p| rest(p).is_some_and(|b| b.is_ascii_digit()));
    numbered || ["bf16", "f16", "f32", "fp16", "fp32", "mxfp4", "nvfp4"].iter().any(|p| token.starts_with(p))
}

/// Whether the name has the quant as a part, or as several of its parts in a row.
fn carries(stem: &str, quant: &str) -> bool {
    let (stem, quant) = (stem.to_lowercase(), quant.to_lowercase());
    if tokens(&stem).any(|token| token == quant) {
        return true;
    }
    // Several parts: the same text, cut where parts are cut.
    let cut = |at: Option<u8>| at.is_none_or(|b| b"-./".contains(&b));
    let before = |at: usize| at.checked_sub(1).map(|i| stem.as_bytes()[i]);
    stem.match_indices(&quant).any(|(at, _)| cut(before(at)) && cut(stem.as_bytes().get(at + quant.len()).copied()))
}

#[cfg(test)]
mod tests;
