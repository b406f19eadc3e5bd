//! The tensor directory of a file under canonical names: what a head is called elsewhere ends here.

use engine_io::ModelFile;
use engine_io::compat::{self, Compare, Fate, HeadFile, block_of};
use engine_io::gguf::TensorInfo;

use super::config::Config;
use super::tensors::quant_of;

/// Norms of two mixers are one if they differ by less than this part of the largest value.
const SAME_NORM: f32 = 1e-3;

/// What a file holds, under canonical names, and what was done to get there.
#[derive(Clone, Default, Debug)]
pub struct Directory {
    /// The tensors; they keep their place in the file. What was dropped is not among them.
    pub tensors: Vec<TensorInfo>,
    /// Why its head cannot be read; the tensors then have the names of the file.
    pub refused: Option<String>,
    /// Tensors that are read under another name than the file's: a line for each, and one for a whole block.
    pub renamed: Vec<String>,
    /// Tensors that are left out: a line for each, with the reason.
    pub dropped: Vec<String>,
}

/// Of a model. Only what can be nothing but its head is looked up in the table.
pub fn of_model(file: &ModelFile, config: &Config) -> Directory {
    let own = format!("blk.{}.", config.trunk);
    let head = |name: &str| name.starts_with(&own) || compat::is_top_level_head(name);
    match config.arch.has_mtp() {
        true => directory(file, config, &|_| false, head),
        false => Directory { tensors: file.tensors().to_vec(), ..Directory::default() },
    }
}

/// Of the file that shall draft for `target`; without one its mixer is taken for its own.
pub fn of_sidecar(file: &ModelFile, config: &Config, target: Option<&ModelFile>) -> Directory {
    let is_trunks = |name: &str| target.is_some_and(|target| has_norm_of_trunk(file, name, target));
    directory(file, config, &is_trunks, |_| true)
}

/// Whether a tensor has the values of the norm of the target's last mixer, or nearly.
pub fn has_norm_of_trunk(file: &ModelFile, name: &str, target: &ModelFile) -> bool {
    match (floats(file, name), floats(target, "output_hc_norm.weight")) {
        (Some(here), Some(there)) => is_one_norm(&here, &there),
        _ => false,
    }
}

/// Whether two tensors of a file hold the same bytes of the same type.
pub fn has_same_bytes(file: &ModelFile, a: &str, b: &str) -> bool {
    match (file.tensor(a), file.tensor(b)) {
        (Some(a), Some(b)) => a.ty == b.ty && *file.data(a) == *file.data(b),
        _ => false,
    }
}

/// Elements of a row of all residual streams, where the architecture has several.
pub fn wide(config: &Config) -> Option<u64> {
    config.qwen4exp.as_ref().map(|own| (own.streams * config.d_model) as u64)
}

fn directory(
    file: &ModelFile,
    config: &Config,
    is_trunks: &dyn Fn(&str) -> bool,
    head: impl Fn(&str) -> bool,
) -> Directory {
    let asked: Vec<&TensorInfo> = file.tensors().iter().filter(|t| head(&t.name)).collect();
    let of_head = HeadFile { arch: config.arch.name(), tensors: &asked, block: config.trunk, wide: wide(config) };
    let same_bytes = |a: &str, b: &str| has_same_bytes(file, a, b);
    let compare = Compare { is_trunks, same_bytes: &same_bytes };
    let mapping = compat::map(of_head, compare).and_then(|mapping| mapping.renames_only(&asked).map(|()| mapping));
    let mapping = match mapping {
        Ok(mapping) => mapping,
        Err(reason) => {
            let refused = Some(reason.to_string());
            return Directory { tensors: file.tensors().to_vec(), refused, ..Directory::default() };
        }
    };
    let mut out = Directory::default();
    let mut fates = mapping.fates.into_iter();
    let dialect = mapping.dialect.name();
    for t in file.tensors() {
        let fate = if head(&t.name) { fates.next() } else { None };
        match fate {
            Some(Fate::Dropped(reason)) => out.dropped.push(format!("{}: {reason}", t.name)),
            Some(Fate::As(name)) if name != t.name => {
                let line = match (block_of(&t.name), block_of(&name)) {
                    (Some((from, rest)), Some((to, same))) if rest == same => format!("blk.{from}.* as blk.{to}.*"),
                    _ => format!("{} as {name}, of dialect {dialect}", t.name),
                };
                if !out.renamed.contains(&line) {
                    out.renamed.push(line);
                }
                let mut renamed = t.clone();
                renamed.name = name;
                out.tensors.push(renamed);
            }
            _ => out.tensors.push(t.clone()),
        }
    }
    out
}

fn floats(file: &ModelFile, name: &str) -> Option<Vec<f32>> {
    let t = file.tensor(name)?;
    let mut values = vec![0.0; usize::try_from(t.elements()).ok()?];
    quant_of(t.ty)?.dequantize(file.data(t).as_ref(), &mut values);
    Some(values)
}

fn is_one_norm(a: &[f32], b: &[f32]) -> bool {
    let largest = b.iter().fold(0f32, |max, x| max.max(x.abs()));
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < SAME_NORM * largest)
}
