//! Which tensors of a checkpoint make which tensor of the head; everything that does not fit, in one list.

use std::collections::HashMap;
use std::fmt;

use super::names::{Source, Step, rows_of};
use super::source_names;
use crate::checkpoint::{Checkpoint, SourceTensor};
use crate::compat::local;
use crate::gguf::TensorType;

/// A tensor that the head may have, by its canonical name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// `blk.N.*`.
    pub name: String,
    /// In GGUF's order.
    pub dims: Vec<u64>,
    /// The head is a head without it.
    pub optional: bool,
}

/// Numbers that no shape tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Heads of queries, and of keys.
    pub heads: [u64; 2],
}

/// How one tensor of the head is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recipe {
    /// Its canonical name.
    pub name: String,
    /// Its dimensions in GGUF's order.
    pub dims: Vec<u64>,
    /// Its type: that of the checkpoint, or F32.
    pub ty: TensorType,
    /// What is done.
    pub step: Step,
    /// Numbers of the checkpoint's tensors, in the order in which their values come.
    pub from: Vec<usize>,
    /// Type of those.
    pub(super) source: TensorType,
    /// Rows above those that are taken, of [`Step::Rows`].
    pub(super) above: u64,
    /// Heads, of [`Step::Heads`].
    pub(super) heads: u64,
}

/// A whole head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conversion {
    /// In the order wanted.
    pub tensors: Vec<Recipe>,
    /// Numbers of tensors that are left out, with the reason.
    pub dropped: Vec<(usize, &'static str)>,
}

/// Something that does not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing gives a tensor that the head must have.
    Missing {
        /// Its canonical name.
        name: String,
        /// Every name that it could have had.
        looked_for: Vec<String>,
    },
    /// A tensor under `mtp.` that no rule takes.
    Unknown {
        /// Its name.
        name: String,
    },
    /// A tensor for which the target, by its metadata, has no use.
    Unwanted {
        /// Its name.
        name: String,
        /// What it would be.
        canonical: String,
    },
    /// A tensor of another shape.
    Shape {
        /// Its name.
        name: String,
        /// In the checkpoint, outermost first.
        found: Vec<u64>,
        /// By the target's metadata.
        expected: Vec<u64>,
        /// What it would be.
        canonical: String,
    },
    /// A tensor of a type that holds no plain weights.
    Type {
        /// Its name.
        name: String,
        /// Its type.
        found: String,
    },
    /// Parts of one tensor have different types.
    Mixed {
        /// What they would be.
        canonical: String,
        /// A part and its type.
        first: (String, String),
        /// Another.
        second: (String, String),
    },
    /// Two tensors for one place.
    Twice {
        /// What both would be.
        canonical: String,
        /// One.
        first: String,
        /// The other.
        second: String,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, looked_for } => write!(
                f,
                "{name} cannot be made: looked for {} (with or without model., language_model. in front); use the whole \
                 checkpoint",
                looked_for.join(" or ")
            ),
            Self::Unknown { name } => {
                let scales = ["_scale", "_scale_inv", "_scale_2", "input_scale", "qweight", "qzeros", "g_idx"];
                let quantised = scales.iter().any(|end| name.ends_with(end));
                let hint = match quantised {
                    true => "it belongs to a quantised checkpoint; use the one in BF16",
                    false => "expected nothing but tensors of this architecture's head; use the head of this model",
                };
                write!(f, "{name} is known to no rule: {hint}")
            }
            Self::Unwanted { name, canonical } => write!(
                f,
                "{name} would be {canonical}, which the target does not have by its metadata; use the head of this model"
            ),
            Self::Shape { name, found, expected, canonical } => write!(
                f,
                "{name} has shape {found:?}, expected {expected:?} to become {canonical}; use the head of this model"
            ),
            Self::Type { name, found } => {
                write!(f, "{name} is of type {found}, expected BF16, F16 or F32; use the checkpoint in one of these")
            }
            Self::Mixed { canonical, first, second } => write!(
                f,
                "{canonical} would be joined of {} ({}) and {} ({}), expected one type; use a checkpoint in one type",
                first.0, first.1, second.0, second.1
            ),
            Self::Twice { canonical, first, second } => {
                write!(f, "{first} and {second} would both be {canonical}; take one of them out of the checkpoint")
            }
        }
    }
}

/// A tensor of the checkpoint that gives something of a wanted one.
#[derive(Clone, Copy)]
struct Part {
    row: &'static Source,
    expert: Option<u64>,
    tensor: usize,
}

/// Plans the head of an architecture. The checkpoint must have been opened for the names of heads alone.
///
/// # Errors
/// Every [`Fault`].
pub fn plan(arch: &str, wanted: &[Wanted], geometry: Geometry, from: &Checkpoint) -> Result<Conversion, Vec<Fault>> {
    let mut faults = Vec::new();
    let mut dropped = Vec::new();
    let mut parts: HashMap<&str, Vec<Part>> = HashMap::new();
    let known: HashMap<String, &Wanted> = wanted.iter().map(|w| (local(&w.name), w)).collect();
    for (tensor, t) in from.tensors().iter().enumerate() {
        let bare = local(&t.name);
        let (rows, expert) = rows_of(arch, bare.strip_prefix("mtp.").unwrap_or(&bare));
        let is_unnumbered = |row: &&Source| (row.step == Step::Expert) != expert.is_some();
        if rows.is_empty() || rows.iter().any(is_unnumbered) {
            faults.push(Fault::Unknown { name: t.name.clone() });
            continue;
        }
        for row in rows {
            match (row.step, known.contains_key(row.canonical)) {
                (Step::Drop(reason), _) => dropped.push((tensor, reason)),
                (_, true) => parts.entry(row.canonical).or_default().push(Part { row, expert, tensor }),
                (_, false) => {
                    faults.push(Fault::Unwanted { name: t.name.clone(), canonical: row.canonical.to_owned() })
                }
            }
        }
    }
    let mut tensors = Vec::new();
    let maker = Maker { arch, known: &known, geometry, from };
    for w in wanted {
        match parts.get(local(&w.name).as_str()) {
            Some(parts) => match maker.recipe(w, parts) {
                Ok(recipe) => tensors.push(recipe),
                Err(fault) => faults.push(fault),
            },
            None if w.optional => {}
            None => faults.push(maker.missing(w)),
        }
    }
    if faults.is_empty() { Ok(Conversion { tensors, dropped }) } else { Err(faults) }
}

struct Maker<'a> {
    arch: &'a str,
    known: &'a HashMap<String, &'a Wanted>,
    geometry: Geometry,
    from: &'a Checkpoint,
}

impl Maker<'_> {
    fn missing(&self, w: &Wanted) -> Fault {
        Fault::Missing { name: w.name.clone(), looked_for: source_names(self.arch, &w.name).collect() }
    }

    fn recipe(&self, w: &Wanted, parts: &[Part]) -> Result<Recipe, Fault> {
        let tensor = |part: &Part| &self.from.tensors()[part.tensor];
        let step = parts[0].row.step;
        // In the order in which they are read: halves, experts, or the one there is.
        let slots = match step {
            Step::Half(_) => 2,
            Step::Expert => w.dims[2] as usize,
            _ => 1,
        };
        let mut slot: Vec<Option<&Part>> = vec![None; slots];
        for part in parts {
            let same = std::mem::discriminant(&part.row.step) == std::mem::discriminant(&step);
            let place = match (part.row.step, part.expert) {
                (Step::Half(half), _) => half,
                (Step::Expert, Some(expert)) => usize::try_from(expert).unwrap_or(usize::MAX),
                _ => 0,
            };
            let twice = |first: &Part| Fault::Twice {
                canonical: w.name.clone(),
                first: tensor(first).name.clone(),
                second: tensor(part).name.clone(),
            };
            if !same {
                return Err(twice(&parts[0]));
            }
            match slot.get_mut(place) {
                None => return Err(Fault::Unwanted { name: tensor(part).name.clone(), canonical: w.name.clone() }),
                Some(Some(first)) => return Err(twice(first)),
                Some(empty) => *empty = Some(part),
            }
        }
        if let Some(empty) = slot.iter().position(Option::is_none) {
            let names = source_names(self.arch, &w.name).map(|name| match step {
                Step::Expert => name.replace(".E.", &format!(".{empty}.")),
                _ => name,
            });
            return Err(Fault::Missing { name: w.name.clone(), looked_for: names.collect() });
        }
        let parts: Vec<&Part> = slot.into_iter().flatten().collect();
        let above = self.rows_above(parts[0].row);
        for part in &parts {
            self.check_shape(w, part.row, tensor(part))?;
        }
        let first = tensor(parts[0]);
        let source = first.ty.ok_or_else(|| Fault::Type { name: first.name.clone(), found: first.dtype.clone() })?;
        if let Some(other) = parts.iter().map(|part| tensor(part)).find(|t| t.dtype != first.dtype) {
            let named = |t: &SourceTensor| (t.name.clone(), t.dtype.clone());
            return Err(Fault::Mixed { canonical: w.name.clone(), first: named(first), second: named(other) });
        }
        let heads = match step {
            Step::Heads(of) => self.geometry.heads[of],
            _ => 1,
        };
        Ok(Recipe {
            name: w.name.clone(),
            dims: w.dims.clone(),
            ty: if matches!(step, Step::Floats | Step::Gamma) { TensorType::F32 } else { source },
            step,
            from: parts.iter().map(|part| part.tensor).collect(),
            source,
            above,
            heads,
        })
    }

    /// Rows that the upper of two matrices takes, where this is the lower one.
    fn rows_above(&self, row: &Source) -> u64 {
        match row.step {
            Step::Rows(1) => self.rows_of_part(row.found, 0),
            _ => 0,
        }
    }

    /// Rows of one of two matrices under the name `found`.
    fn rows_of_part(&self, found: &str, part: usize) -> u64 {
        let row = rows_of(self.arch, found).0.into_iter().find(|row| row.step == Step::Rows(part));
        row.and_then(|row| self.known.get(row.canonical)).map_or(0, |w| w.dims[1])
    }

    fn check_shape(&self, w: &Wanted, row: &Source, t: &SourceTensor) -> Result<(), Fault> {
        let mut expected: Vec<u64> = w.dims.iter().rev().copied().collect();
        match row.step {
            Step::Half(_) => expected[1] /= 2,
            Step::Rows(_) => expected[0] = self.rows_of_part(row.found, 0) + self.rows_of_part(row.found, 1),
            Step::Expert => drop(expected.remove(0)),
            Step::ExpertRows(_) => expected[1] *= 2,
            // A vector is a vector whether it is written as a row, as a column, or as a row a stream.
            Step::Floats | Step::Gamma if expected == [t.shape.iter().product::<u64>()] => return Ok(()),
            _ => {}
        }
        if t.shape == expected {
            return Ok(());
        }
        let (name, found, canonical) = (t.name.clone(), t.shape.clone(), w.name.clone());
        Err(Fault::Shape { name, found, expected, canonical })
    }
}
