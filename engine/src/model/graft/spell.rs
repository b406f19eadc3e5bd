//! The new block under the names of another engine: other names, and the projection in the two halves it is joined of.

use engine_io::ModelFile;
use engine_io::compat::{Action, Dialect, RULES, Rule, block_of};
use engine_io::gguf::TensorInfo;

use super::error::Reason;
use super::{Bytes, Half, NewTensor, refused_name, renamed};

/// The tensors of a canonical block as a dialect has them in a whole model.
///
/// # Errors
/// [`Reason::Dialect`]: a dialect that the architecture or a whole model does not have, or halves that are no whole blocks
/// of the type; [`Reason::LongName`], [`Reason::Collision`].
pub fn spell(
    tensors: Vec<NewTensor>,
    names: Dialect,
    arch: &str,
    target: &ModelFile,
    head: &str,
) -> Result<Vec<NewTensor>, Reason> {
    if names == Dialect::Canonical {
        return Ok(tensors);
    }
    let not = |why: String| Reason::Dialect { dialect: names.name(), why };
    let rules = rules(names, arch).map_err(not)?;
    if names == Dialect::CanonicalAndTrunk {
        // The trunk's mixer beside it is where a whole model has it anyway.
        return Ok(tensors);
    }
    let mut out = Vec::with_capacity(tensors.len() + 1);
    for t in tensors {
        let block = block_of(&t.info.name);
        let stem = block.map(|(_, rest)| format!("blk.B.{}", rest.strip_suffix(".weight").unwrap_or(rest)));
        let named = |rule: &Rule| match block {
            Some((block, _)) => format!("{}.weight", rule.found.replacen("blk.B.", &format!("blk.{block}."), 1)),
            None => t.info.name.clone(),
        };
        let own: Vec<&Rule> = rules.iter().copied().filter(|rule| Some(rule.canonical) == stem.as_deref()).collect();
        match own.as_slice() {
            [] => out.push(t),
            [rule] if rule.action == Action::Rename => {
                let name = named(rule);
                if target.tensor(&name).is_some() {
                    let why = format!("it calls {} {name}, which is the trunk's in a whole model", t.info.name);
                    return Err(not(why));
                }
                out.push(NewTensor { info: renamed(&t.info, &name), ..t });
            }
            [embedding, hidden] => {
                let (embedding, hidden) = (named(embedding), named(hidden));
                out.extend(halves(&t, [(embedding, Half::Embedding), (hidden, Half::Hidden)], head).map_err(not)?);
            }
            _ => unreachable!("a dialect has one name for {}, or two for its halves", t.info.name),
        }
    }
    match out.iter().find_map(|t| refused_name(head, &t.info.name, target)) {
        None => Ok(out),
        Some(reason) => Err(reason),
    }
}

/// The rules of a dialect for an architecture, or why a whole model of it has no such names.
fn rules(names: Dialect, arch: &str) -> Result<Vec<&'static Rule>, String> {
    let of = |dialect: Dialect| RULES.iter().filter(move |rule| rule.dialect == dialect);
    if of(names).any(|rule| matches!(rule.action, Action::Refuse(_))) {
        return Err("its tensors hold other values than those of a GGUF model".to_owned());
    }
    let is_own = |rule: &&Rule| rule.archs.has(arch);
    let mut rules: Vec<&Rule> = of(names).filter(is_own).collect();
    if rules.is_empty() {
        let mut known: Vec<&str> = of(names).filter_map(|rule| rule.archs.name()).collect();
        known.dedup();
        return Err(format!("found architecture {arch}, expected {}, which alone has such names", known.join(" or ")));
    }
    if names == Dialect::SharedNorm {
        // But for its norm, the mixer is at top level.
        let rest: Vec<&Rule> = of(Dialect::TopLevel)
            .filter(is_own)
            .filter(|r| rules.iter().all(|own| own.canonical != r.canonical))
            .collect();
        rules.extend(rest);
    }
    Ok(rules)
}

/// Both halves of the projection: what it was joined of, or a half of every row each.
fn halves(whole: &NewTensor, names: [(String, Half); 2], head: &str) -> Result<[NewTensor; 2], String> {
    let (columns, rows, ty) = (whole.info.dim(0), whole.info.rows(), whole.info.ty);
    if !columns.is_multiple_of(2 * ty.block_len()) {
        return Err(format!(
            "half a row of {} ({columns} columns of {ty}) is no whole number of blocks of {}, so that it could not be \
             written without quantising again",
            whole.info.name,
            ty.block_len()
        ));
    }
    let [a, b] = names.map(|(name, half)| {
        let from = match (&whole.from, half) {
            (Bytes::Rows(embedding, _), Half::Embedding) => Bytes::Of(embedding.clone()),
            (Bytes::Rows(_, hidden), Half::Hidden) => Bytes::Of(hidden.clone()),
            (Bytes::Of(whole) | Bytes::Columns(whole, _), half) => Bytes::Columns(whole.clone(), half),
        };
        let info = TensorInfo::new(head, &name, &[columns / 2, rows], ty).map_err(|error| error.to_string())?;
        Ok::<_, String>(NewTensor { info, from })
    });
    Ok([a?, b?])
}
