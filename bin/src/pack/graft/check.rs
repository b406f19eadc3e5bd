//! What was written against what it was made from.

use std::collections::{BTreeMap, HashSet};
use std::io::Read;

use engine::model::MtpStatus;
use engine::model::graft::{self, Bytes, GraftPlan, Half};
use engine::model::load::{LoadOptions, Planned};
use engine_io::ModelFile;
use engine_io::compat::Dialect;
use engine_io::digest::Sha256;
use engine_io::gguf::TensorInfo;

use super::write::{Done, ShardAction};
use crate::pack::error::PackError;
use crate::pack::progress::Progress;

/// What a set was made from.
pub struct Sources<'a> {
    /// The model without a head.
    pub target: &'a ModelFile,
    /// The head.
    pub head: &'a ModelFile,
    /// What was done with them.
    pub plan: &'a GraftPlan,
}

/// Digests of everything that was read.
#[derive(Default)]
pub struct Digests {
    /// Of tensors of the new set, by name.
    pub tensors: BTreeMap<String, Sha256>,
    /// Of files of the new set, in order; `None` for those that were not read.
    pub files: Vec<Option<Sha256>>,
    /// Files that were not read.
    pub unread: Vec<String>,
}

/// Bytes that [`compare`] will read.
pub fn bytes_to_read(set: &ModelFile, done: &Done, all: bool) -> u64 {
    let of = |t: &TensorInfo| match done.shards[t.shard as usize].action {
        ShardAction::Head => t.bytes,
        action if action.is_linked() => {
            if all {
                2 * t.bytes
            } else {
                0
            }
        }
        _ => 2 * t.bytes,
    };
    set.tensors().iter().map(of).sum()
}

/// Compares every tensor of the new set with its source: name, shape and type of all, bytes of all that were not merely
/// linked, and of those too with `all`.
///
/// # Errors
/// [`PackError::Unverified`].
pub fn compare(
    set: &ModelFile,
    sources: &Sources<'_>,
    done: &Done,
    all: bool,
    progress: &Progress,
) -> Result<Digests, PackError> {
    let Sources { target, head, plan } = sources;
    let wrong = |what: String| PackError::Unverified(format!("{}: {what}", set.name()));
    let expected = target.tensors().len() + plan.tensors.len();
    if set.tensors().len() != expected {
        return Err(wrong(format!("holds {} tensors, expected {expected}", set.tensors().len())));
    }
    let mut digests = Digests::default();
    let step = |n| progress.add(n);
    for t in target.tensors() {
        let written = found(set, t).map_err(wrong)?;
        let linked = done.shards[written.shard as usize].action.is_linked();
        if linked && !all {
            continue;
        }
        let digest = Sha256::of_tensor(set, written, step)?;
        if !linked && Sha256::of_tensor(target, t, step)? != digest {
            return Err(wrong(format!("the bytes of {} are not those of {}", t.name, target.name())));
        }
        digests.tensors.insert(t.name.clone(), digest);
    }
    for (t, read) in plan.tensors.iter().zip(&done.read) {
        let written = found(set, &t.info).map_err(wrong)?;
        let digest = Sha256::of_tensor(set, written, step)?;
        let rows_differ = match &t.from {
            Bytes::Of(_) => false,
            Bytes::Rows(a, b) => !same_rows(set, written, head, a, b)?,
            Bytes::Columns(whole, half) => !same_columns(set, written, head, whole, *half)?,
        };
        if digest != *read || rows_differ {
            return Err(wrong(format!("the bytes of {} are not those of {}", t.info.name, head.name())));
        }
        digests.tensors.insert(t.info.name.clone(), digest);
    }
    // Files as they are on the disk now; those that were written have been digested on their way.
    for (shard, (file, written)) in set.shards().iter().zip(done.shards.iter().zip(&done.files)) {
        let linked = file.action.is_linked();
        let digest = match written {
            Some(digest) => Some(*digest),
            None if linked && !all => {
                digests.unread.push(file.name.clone());
                None
            }
            None => Some(Sha256::of_file(&shard.path, |_| {})?.0),
        };
        digests.files.push(digest);
    }
    if plan.names.is_halved() {
        // No loader of ours takes it as it is; as a head it must become what was planned.
        graft::plan(target, set, Dialect::Canonical).map_err(|error| wrong(error.to_string()))?;
    } else {
        loads(set).map_err(wrong)?;
    }
    Ok(digests)
}

fn found<'a>(set: &'a ModelFile, t: &TensorInfo) -> Result<&'a TensorInfo, String> {
    let written = set.tensor(&t.name).ok_or_else(|| format!("tensor {} is missing", t.name))?;
    if (written.dims(), written.ty, written.bytes) != (t.dims(), t.ty, t.bytes) {
        let (found, expected) = ((written.dims(), written.ty), (t.dims(), t.ty));
        return Err(format!("tensor {} is {found:?}, expected {expected:?}", t.name));
    }
    Ok(written)
}

/// Whether every row is a row of `a`, then one of `b`.
fn same_rows(set: &ModelFile, written: &TensorInfo, head: &ModelFile, a: &str, b: &str) -> Result<bool, PackError> {
    let half = |name: &str| head.tensor(name).expect("planned from this file");
    let (a, b) = (half(a), half(b));
    let failed = |source| PackError::Output { path: set.name(), action: "read", source };
    let (mut whole, mut first, mut second) = (set.reader(written), head.reader(a), head.reader(b));
    for _ in 0..written.rows() {
        for (half, bytes) in [(&mut first, a.row_bytes()), (&mut second, b.row_bytes())] {
            let (mut here, mut there) = (vec![0; bytes as usize], vec![0; bytes as usize]);
            whole.read_exact(&mut here).and_then(|()| half.read_exact(&mut there)).map_err(failed)?;
            if here != there {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Whether every row is that half of a row of `whole`.
fn same_columns(
    set: &ModelFile,
    written: &TensorInfo,
    head: &ModelFile,
    whole: &str,
    half: Half,
) -> Result<bool, PackError> {
    let from = head.tensor(whole).expect("planned from this file");
    let failed = |source| PackError::Output { path: set.name(), action: "read", source };
    let (mut here, mut there) = (set.reader(written), head.reader(from));
    let (mut row, mut rows) = (vec![0; written.row_bytes() as usize], vec![0; from.row_bytes() as usize]);
    for _ in 0..written.rows() {
        here.read_exact(&mut row).and_then(|()| there.read_exact(&mut rows)).map_err(failed)?;
        let (embedding, hidden) = rows.split_at(rows.len() / 2);
        if row != if half == Half::Embedding { embedding } else { hidden } {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the set is a model with a head of its own, by the loader's own words.
pub fn loads(set: &ModelFile) -> Result<(), String> {
    let names: HashSet<&str> = set.tensors().iter().map(|t| t.name.as_str()).collect();
    debug_assert_eq!(names.len(), set.tensors().len(), "the reader refuses names that are there twice");
    let planned = Planned::new(set, None, LoadOptions::default()).map_err(|error| error.to_string())?;
    match planned.plan.mtp {
        MtpStatus::Own => Ok(()),
        MtpStatus::Unavailable(reason) => Err(reason),
        MtpStatus::Sidecar => unreachable!("none was given"),
    }
}
