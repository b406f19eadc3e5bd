//! The one error type of this crate's model-file half.
//!
//! Every variant names the file, the key or tensor, what was found, what was expected, and what to do. Different
//! diagnoses are different variants: a truncated file is never reported as an unsupported one.

use std::io;

use crate::package::Issue;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong with a model file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation.
    #[error("{file}: cannot {action}: {source}")]
    Io {
        /// Path of the file or directory.
        file: String,
        /// What was attempted ("open", "map into memory", ...).
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A symbolic link whose target does not exist.
    #[error("{file}: the link points to {target}, which does not exist; download the file again or repair the link")]
    BrokenLink {
        /// Path of the link.
        file: String,
        /// What the link names.
        target: String,
    },
    /// Something else where a regular file is expected.
    #[error("{file}: is {found}, expected a regular file; give the path of the file itself")]
    NotAFile {
        /// The path.
        file: String,
        /// "a folder", "a pipe", "a socket" or "a device".
        found: &'static str,
    },
    /// A file beyond what is read of its kind.
    #[error("{file}: has {found} bytes, at most {most} are read of such a file; give another")]
    TooLong {
        /// The path.
        file: String,
        /// Its size, or what was read of it.
        found: u64,
        /// The limit.
        most: u64,
    },
    /// A file that is not the JSON document it is taken for.
    #[error("{file}: is no {what}: {source}; give another, or write it again with the tool that made it")]
    Json {
        /// The path.
        file: String,
        /// What was expected.
        what: &'static str,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A directory without any GGUF file.
    #[error("{dir}: holds no .gguf file; give the directory that holds the model, or the file itself")]
    NoModelInDirectory {
        /// The directory.
        dir: String,
    },
    /// A directory with more than one model in it.
    #[error("{dir}: holds {} models, name one of them: {}", choices.len(), choices.join(", "))]
    AmbiguousDirectory {
        /// The directory.
        dir: String,
        /// One path per model: the file, or the first shard.
        choices: Vec<String>,
    },
    /// The mapped file has another size or time stamp than when it was opened.
    #[error(
        "{file}: the model file was written or touched while it was in use ({found}; was {expected}); stopping before \
         wrong output. Start again with the file as it should be; to replace a file in use, rename the new one over it, \
         or use --no-mmap"
    )]
    FileChanged {
        /// Path of the file.
        file: String,
        /// Size and time now.
        found: String,
        /// Size and time at opening.
        expected: String,
    },
    /// More mappings than the fault handler can watch.
    #[error("{file}: {limit} files are mapped already; use --no-mmap")]
    TooManyMappings {
        /// Path of the file.
        file: String,
        /// The limit.
        limit: usize,
    },
    /// A layer package with faults.
    #[error(
        "{dir}: the layer package cannot be used, {} found:\n{}",
        if issues.len() == 1 { "1 fault".to_owned() } else { format!("{} faults", issues.len()) },
        issues.iter().map(|issue| format!("  {issue}")).collect::<Vec<_>>().join("\n")
    )]
    Package {
        /// Its folder.
        dir: String,
        /// All of them.
        issues: Vec<Issue>,
    },
    /// The first four bytes are not `GGUF`.
    #[error("{file}: not a GGUF file: starts with {found}, expected \"GGUF\"; {hint}")]
    NotGguf {
        /// Path of the file.
        file: String,
        /// The bytes found, printable.
        found: String,
        /// What the bytes look like instead and what to do.
        hint: &'static str,
    },
    /// GGUF version 1, whose counts are 32 bits wide.
    #[error("{file}: GGUF version 1 is too old, versions 2 and 3 are read; convert the model again")]
    OldVersion {
        /// Path of the file.
        file: String,
    },
    /// A version newer than this reader (or a nonsensical one).
    #[error(
        "{file}: GGUF version {found} is not known, versions 2 and 3 are read; use a newer engine or convert again"
    )]
    UnsupportedVersion {
        /// Path of the file.
        file: String,
        /// The version word.
        found: u32,
    },
    /// A file written in the other byte order.
    #[error(
        "{file}: big-endian GGUF (version word bytes 00 00 00 {found:02x}), expected little-endian; convert it with \
         gguf_convert_endian or download the little-endian file"
    )]
    ByteSwapped {
        /// Path of the file.
        file: String,
        /// The version after swapping.
        found: u32,
    },
    /// The header ends before what it announces.
    #[error(
        "{file}: truncated: {what} at byte {at} needs {needed} bytes, {present} are left; \
         the file is incomplete or damaged, download it again{hint}"
    )]
    Truncated {
        /// Path of the file.
        file: String,
        /// What was being read, with its key or tensor.
        what: String,
        /// Byte position in the file.
        at: u64,
        /// Bytes needed from there (at least).
        needed: u64,
        /// Bytes present from there.
        present: u64,
        /// Further advice, empty or starting with a separator.
        hint: String,
    },
    /// A tensor's data ends beyond the file.
    #[error(
        "{file}: truncated: tensor {tensor} needs bytes {start}..{start}+{needed}, the file has {present}; \
         the file is incomplete, download it again{hint}"
    )]
    TruncatedTensor {
        /// Path of the file.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Start of its data in the file (saturated).
        start: u64,
        /// Bytes of the tensor.
        needed: u64,
        /// Bytes of the file.
        present: u64,
        /// Further advice, empty or starting with a separator.
        hint: String,
    },
    /// A key or tensor without a name.
    #[error("{file}: {what} {index} has an empty name; the file is damaged, convert or download it again")]
    EmptyName {
        /// Path of the file.
        file: String,
        /// "metadata key" or "tensor".
        what: &'static str,
        /// Its position in the file.
        index: u64,
    },
    /// A key or tensor name that is not one line of UTF-8, or too long.
    #[error("{file}: {what} {index} has a bad name ({found}), expected one line of UTF-8 of at most {limit} bytes")]
    BadName {
        /// Path of the file.
        file: String,
        /// "metadata key" or "tensor".
        what: &'static str,
        /// Its position in the file.
        index: u64,
        /// What is wrong with it.
        found: String,
        /// Longest name accepted.
        limit: u64,
    },
    /// The same metadata key twice.
    #[error("{file}: metadata key {key} appears twice; convert the model again")]
    DuplicateKey {
        /// Path of the file.
        file: String,
        /// The key.
        key: String,
    },
    /// The same tensor name twice, in one file or over the shards.
    #[error(
        "tensor {tensor} appears twice: in {file} and in {other}; \
         the shards do not belong together or the file is damaged"
    )]
    DuplicateTensor {
        /// File of the second one.
        file: String,
        /// The tensor.
        tensor: String,
        /// File of the first one.
        other: String,
    },
    /// A metadata value type the format does not define.
    #[error(
        "{file}: key {key}: value type {found} is not defined (0 to 12 are); \
         the file is damaged or newer than this engine"
    )]
    UnknownValueType {
        /// Path of the file.
        file: String,
        /// The key.
        key: String,
        /// The type id found.
        found: u32,
    },
    /// Arrays within arrays within arrays ...
    #[error("{file}: key {key}: arrays nested deeper than {limit} levels; the file is damaged")]
    NestingTooDeep {
        /// Path of the file.
        file: String,
        /// The key.
        key: String,
        /// Levels accepted.
        limit: u32,
    },
    /// A boolean byte other than 0 or 1.
    #[error("{file}: key {key}: boolean byte is {found}, expected 0 or 1; the file is damaged")]
    BadBool {
        /// Path of the file.
        file: String,
        /// The key.
        key: String,
        /// The byte.
        found: u8,
    },
    /// A required key is absent.
    #[error("{file}: metadata key {key} is missing; convert the model again with a current converter")]
    MissingKey {
        /// Path of the file.
        file: String,
        /// The key.
        key: String,
    },
    /// A key of another type than the engine needs.
    #[error("{file}: key {key} is {found}, expected {expected}; convert the model again")]
    WrongType {
        /// Path of the file.
        file: String,
        /// The key.
        key: String,
        /// Type (and for strings in place of numbers, the value) found.
        found: String,
        /// Type expected.
        expected: &'static str,
    },
    /// A value outside what its use allows.
    #[error("{file}: key {key} = {found}, expected {expected}; convert the model again")]
    OutOfRange {
        /// Path of the file.
        file: String,
        /// The key, with the element index for arrays.
        key: String,
        /// The value.
        found: String,
        /// The values allowed.
        expected: String,
    },
    /// A tokenizer whose parts do not fit together, or of an unsupported kind.
    #[error("{file}: {source}")]
    Tokenizer {
        /// Path of the file.
        file: String,
        /// What is wrong with it.
        source: crate::text::TextError,
    },
    /// A per-layer array of a length that is none of the model's counts of blocks.
    #[error("{file}: key {key} has {found} elements, expected {expected}; convert the model again")]
    PerLayerLength {
        /// Path of the file.
        file: String,
        /// The key.
        key: String,
        /// Elements found.
        found: usize,
        /// Lengths that it may have, and what each counts.
        expected: String,
    },
    /// Keys that contradict each other.
    #[error("{file}: inconsistent metadata: {found}; expected {expected}")]
    Inconsistent {
        /// Path of the file.
        file: String,
        /// The keys and values that disagree.
        found: String,
        /// What would agree, and what to do.
        expected: String,
    },
    /// `general.alignment` is no power of two.
    #[error("{file}: general.alignment = {found}, expected a power of two of at most {limit}; convert the model again")]
    BadAlignment {
        /// Path of the file.
        file: String,
        /// The value.
        found: u64,
        /// Largest alignment accepted.
        limit: u64,
    },
    /// Dimensions that cannot be: too many, zero, or a product beyond 64 bits.
    #[error("{file}: tensor {tensor}: dimensions {found}, expected {expected}; the file is damaged")]
    BadShape {
        /// Path of the file.
        file: String,
        /// Tensor name.
        tensor: String,
        /// The dimensions.
        found: String,
        /// What they must be.
        expected: &'static str,
    },
    /// A row that is not a whole number of quantisation blocks.
    #[error(
        "{file}: tensor {tensor} ({ty}): row length {row_len} is not a multiple of the block length {block_len}; \
         quantise the model again with a fall-back type for this tensor"
    )]
    RowNotBlocks {
        /// Path of the file.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Its type.
        ty: &'static str,
        /// First dimension.
        row_len: u64,
        /// Elements of a block.
        block_len: u64,
    },
    /// A tensor type id this engine has no description of: its size is unknown, so reading stops.
    #[error("{file}: tensor {tensor} has type id {found}, {hint}")]
    UnknownTensorType {
        /// Path of the file.
        file: String,
        /// Tensor name.
        tensor: String,
        /// The id.
        found: u32,
        /// What the id is known as, and what to do.
        hint: &'static str,
    },
    /// A tensor offset that is no multiple of the alignment.
    #[error(
        "{file}: tensor {tensor}: data offset {found} is not a multiple of the alignment {alignment}; \
         the file is damaged"
    )]
    MisalignedTensor {
        /// Path of the file.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Offset in the data section.
        found: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Two tensors whose data share bytes.
    #[error(
        "{file}: the data of tensors {tensor} and {other} overlap; the file is damaged, convert or download it again"
    )]
    OverlappingTensors {
        /// Path of the file.
        file: String,
        /// Tensor with the higher offset.
        tensor: String,
        /// Tensor with the lower offset.
        other: String,
    },
    /// A tensor asked for by name is not there.
    #[error("{file}: tensor {tensor} is missing; the model is incomplete or of another architecture than it says")]
    MissingTensor {
        /// Path of the file.
        file: String,
        /// Tensor name.
        tensor: String,
    },
    /// Split metadata in a file whose name does not say where its siblings are.
    #[error(
        "{file}: is shard {no} of {count} by its metadata, but its name does not end in -NNNNN-of-NNNNN.gguf; \
         open the shard under its split name (in a download cache: the link, not the blob)"
    )]
    SplitName {
        /// Path of the file.
        file: String,
        /// `split.no` + 1.
        no: u64,
        /// `split.count`.
        count: u64,
    },
    /// A shard of the set is not there.
    #[error("{file}: shard {no} of {count} is missing; download it, or open a directory that holds all shards")]
    SplitMissingShard {
        /// Path expected.
        file: String,
        /// Its number, from 1.
        no: u64,
        /// Shards of the set.
        count: u64,
    },
    /// Split keys that disagree with the names, the other shards or the tensors.
    #[error("{file}: {key} = {found}, expected {expected}; the shards do not belong together, split the model again")]
    SplitMismatch {
        /// Path of the shard.
        file: String,
        /// The key, or "tensors" for the union of all shards.
        key: String,
        /// The value.
        found: String,
        /// What the name, the other shards or the tensors say.
        expected: String,
    },
    /// Something odd that is only a warning without `--strict`.
    #[error("{file}: refused by --strict: {what}")]
    Strict {
        /// Path of the file.
        file: String,
        /// The warning.
        what: String,
    },
    /// What the writer was asked to write does not make a file.
    #[error("cannot write GGUF: {what}: found {found}, expected {expected}")]
    Write {
        /// The key, tensor or step.
        what: String,
        /// What was given.
        found: String,
        /// What is needed.
        expected: String,
    },
}
