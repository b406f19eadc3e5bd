//! Blocks are told apart by their number alone: what the counts of a file say, held against the tensors it has.
//!
//! A block that the counts place wrongly would leave a model with a block too many or too few, and such a model still
//! answers. A NextN block is known by its `nextn.*` tensors, an ordinary block by their absence.

use std::collections::BTreeMap;

use engine_io::Error;
use engine_io::compat::block_of;

use super::error::ModelError;
use super::plan::FileView;

/// What a file has of one block.
#[derive(Default)]
struct Found<'a> {
    /// Tensors.
    count: usize,
    /// The first of them.
    first: &'a str,
    /// One of them is of a NextN block.
    nextn: bool,
}

/// Refuses a file whose tensors contradict `block_count` or `nextn_predict_layers`. A block that is announced and of
/// which nothing is there is no contradiction: the trunk lacks it, or there is no head.
///
/// # Errors
/// [`Error::Inconsistent`], with the keys, a tensor of the block, and what may have happened.
pub fn refuse_miscounted(model: FileView<'_>) -> Result<(), ModelError> {
    let FileView { path, config, tensors, refused } = model;
    let mut blocks: BTreeMap<usize, Found<'_>> = BTreeMap::new();
    for name in tensors.names() {
        if let Some((i, rest)) = block_of(name) {
            let found = blocks.entry(i).or_insert(Found { first: name, ..Found::default() });
            found.count += 1;
            found.nextn |= rest.starts_with("nextn.");
        }
    }
    let (trunk, all, nextn) = (config.trunk, config.blocks.len(), config.nextn);
    let arch = config.arch.name();
    let counts = format!("{arch}.block_count {all} and {arch}.nextn_predict_layers {nextn}");
    let error = |found: String, expected: String| {
        Err(Error::Inconsistent {
            file: path.to_owned(),
            found,
            expected: format!("{expected}; convert or compose the model again"),
        }
        .into())
    };
    // A misplaced head first: it tells more than what it displaces.
    if let Some((i, _)) = blocks.iter().find(|(i, block)| block.nextn && (**i < trunk || nextn > 0 && **i >= all)) {
        return error(
            format!("blk.{i}.nextn.* tensors with {counts}"),
            match config.arch.has_mtp() {
                true => "a block_count that counts the NextN block, and nextn_predict_layers 1".to_owned(),
                false => format!("no such tensors: architecture {arch} has no MTP block"),
            },
        );
    }
    for (i, block) in &blocks {
        let (i, Found { count, first, .. }) = (*i, block);
        let tensors = format!("{count} tensors of blk.{i} (such as {first})");
        if !block.nextn && i >= all {
            return error(
                format!("{tensors} with {counts}"),
                format!("a block_count above {i}: every block counts, the NextN block too"),
            );
        }
        // A head by names that cannot be read has its own reason.
        let unread = i == trunk && refused.is_some();
        if !block.nextn && (trunk..all).contains(&i) && !unread {
            let heads = blocks.iter().filter(|(i, block)| **i >= trunk && block.nextn).count();
            return error(
                format!("{tensors} and no blk.{i}.nextn.* with {counts}, which make it an MTP block"),
                format!(
                    "nextn_predict_layers {heads} if blk.{i} is a block of the trunk and the key was left over, or the \
                     blk.{i}.nextn.* tensors if it is an MTP block that was not written whole"
                ),
            );
        }
    }
    Ok(())
}
