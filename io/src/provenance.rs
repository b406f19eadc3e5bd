//! The record of what a model was made from: schema `package-provenance/1`, beside a grafted set as `provenance.json`,
//! within a layer package as the field `provenance`.
//!
//! Digests are optional where a tool may place a file without reading it (a hard link to 90 GB): such a record says what
//! it knows and leaves the rest out; [`Provenance::unhashed`] lists it. What is there must be right.

mod check;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use check::{Faults, matches};

use crate::digest::Sha256;
use crate::json;
use crate::plain;

/// Name of the file beside a grafted set.
pub const FILE_NAME: &str = "provenance.json";
/// A record beyond this is none.
const BYTES_MAX: u64 = 64 << 20;

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ProvenanceError {
    /// It cannot be opened, is no regular file, or longer than any record.
    #[error(transparent)]
    File(#[from] crate::Error),
    /// Not of the schema.
    #[error("{file}: is no package-provenance/1 record: {source}; write it again with the tool that made the model")]
    Json {
        /// Path.
        file: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// Of the schema, and contradicting itself.
    #[error("{file}: the record contradicts itself: {faults}; write it again with the tool that made the model")]
    Faults {
        /// Path.
        file: String,
        /// What.
        faults: Faults,
    },
}

/// The schema's own name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Schema {
    /// The only version.
    #[default]
    #[serde(rename = "package-provenance/1")]
    V1,
}

/// The whole record.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Which schema.
    pub schema: Schema,
    /// What went in.
    pub sources: Vec<Source>,
    /// What worked on it.
    pub tools: Vec<Tool>,
    /// What was done, in order.
    pub steps: Vec<Step>,
    /// Where every tensor comes from; no tensor matches two of them.
    pub tensor_origins: Vec<TensorOrigin>,
    /// What a run needs beside the tensors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runtime_components: Vec<RuntimeComponent>,
    /// What was left as it was.
    pub invariants: Invariants,
    /// Why the settings for generation are what they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation_recipe: Option<GenerationRecipe>,
}

/// What a source is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Role {
    Target,
    MtpHead,
    DraftModel,
    Projector,
    Tokenizer,
    Imatrix,
    ChatTemplate,
}

/// Format of a source's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Container {
    Gguf,
    Safetensors,
    Other,
}

/// Something that went in.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Its name within the record.
    pub id: String,
    /// What it is for.
    pub role: Role,
    /// Repository, or directory.
    pub repo: String,
    /// Revision of the repository, 40 to 64 hexadecimal digits; without one a digest of the files.
    pub revision: String,
    /// Licence as stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// Format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// Quantisation in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quant: Option<String>,
    /// What its metadata say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declares: Option<Declares>,
    /// Its files.
    pub files: Vec<FileEntry>,
    /// Tensor tree digest of all its tensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor_tree_sha256: Option<Sha256>,
}

/// What a source's metadata say.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declares {
    /// `general.architecture`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Blocks, NextN included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_count: Option<u64>,
    /// NextN blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nextn_predict_layers: Option<u64>,
    /// Width of a hidden row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden_size: Option<u64>,
    /// Tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<u64>,
    /// Digest of the token list: each token as a length (u64, little-endian) and its bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_sha256: Option<Sha256>,
}

/// A file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Where; relative to the record for outputs.
    pub path: String,
    /// Size.
    pub byte_size: u64,
    /// Digest; absent where the file was placed without being read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Sha256>,
}

/// What a tool does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum ToolKind {
    Converter,
    Composer,
    Quantizer,
    PackageWriter,
    Runtime,
}

/// A program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// Its name within the record.
    pub id: String,
    /// What it does.
    pub kind: ToolKind,
    /// Its name.
    pub name: String,
    /// Where it is from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    /// Revision of its sources, or its version.
    pub revision: String,
    /// Version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Binary interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abi: Option<String>,
}

/// What a step does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Op {
    Convert,
    Quantize,
    Compose,
    Split,
    Package,
}

/// Something that was done.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its name within the record.
    pub id: String,
    /// Which tool.
    pub tool: String,
    /// What.
    pub op: Op,
    /// Sources and earlier steps.
    pub inputs: Vec<String>,
    /// What was asked for, and details that the schema has no field for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<serde_json::Map<String, serde_json::Value>>,
    /// Metadata that were changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kv_changes: Vec<KvChange>,
    /// What became of the tensors that were not kept as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tensor_rules: Vec<TensorRule>,
    /// Files that came out.
    pub outputs: Vec<FileEntry>,
}

/// A key that was changed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvChange {
    /// Its full name.
    pub key: String,
    /// Type in the file.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub ty: Option<String>,
    /// Value before; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<serde_json::Value>,
    /// Value now.
    pub to: serde_json::Value,
}

/// What a rule does with a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum RuleAction {
    Keep,
    Rename,
    Drop,
    Convert,
}

/// What became of some tensors of an input.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorRule {
    /// Names it took, see [`matches`].
    #[serde(rename = "match")]
    pub pattern: String,
    /// What it did.
    pub action: RuleAction,
    /// Name afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Type before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_type: Option<String>,
    /// Type afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_type: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How many tensors it took; never none.
    pub count: u64,
}

/// What was done to tensors on their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Transform {
    Verbatim,
    Renamed,
    Converted,
    Requantized,
}

/// Where some tensors come from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorOrigin {
    /// Their names, see [`matches`].
    #[serde(rename = "match")]
    pub pattern: String,
    /// Which source.
    pub source: String,
    /// What was done to them.
    pub transform: Transform,
    /// How many.
    pub count: u64,
    /// Bytes of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Tensor tree digest of them, under the names they have now; absent where they were placed without being read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor_tree_sha256: Option<Sha256>,
}

/// What a component does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum ComponentKind {
    Proposer,
    Strategy,
    Verifier,
}

/// What a run needs beside the tensors.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeComponent {
    /// Its name within the record.
    pub id: String,
    /// What it is.
    pub kind: ComponentKind,
    /// Name and version of what it does, such as `ngram-suffix/1`.
    pub behaviour: String,
    /// Where it is from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    /// Revision.
    pub revision: String,
    /// A change that it must contain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
    /// Digest of its conformance suite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conformance_sha256: Option<Sha256>,
}

/// What was left as it was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Invariants {
    /// Every tensor of the target has the bytes it had.
    pub target_tensors_byte_identical: bool,
    /// Tensor tree digest of the target's tensors; absent where they were placed without being read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_tensor_tree_sha256: Option<Sha256>,
    /// Digest of the token list, see [`Declares::tokenizer_sha256`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_sha256: Option<Sha256>,
    /// Blocks that are MTP blocks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mtp_block_indices: Vec<u64>,
}

/// Why the settings for generation are what they are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationRecipe {
    /// Digest of the package's `generation` block as canonical JSON, see [`canonical`].
    pub speculative_decoding_sha256: Sha256,
    /// The strategy that is the default.
    pub default: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Measurements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<FileEntry>,
}

impl Provenance {
    /// Reads and checks a record.
    ///
    /// # Errors
    /// [`ProvenanceError`].
    pub fn read(path: &Path) -> Result<Self, ProvenanceError> {
        Self::parse(&plain::read(path, BYTES_MAX)?, &path.display().to_string())
    }

    /// Reads and checks the bytes of a record; `file` names it in errors.
    ///
    /// # Errors
    /// [`ProvenanceError`].
    pub fn parse(bytes: &[u8], file: &str) -> Result<Self, ProvenanceError> {
        let record: Self =
            json::parse_names(bytes).map_err(|source| ProvenanceError::Json { file: file.to_owned(), source })?;
        let faults = record.check();
        if !faults.is_empty() {
            return Err(ProvenanceError::Faults { file: file.to_owned(), faults });
        }
        Ok(record)
    }

    /// The record as text, indented, with an end of line.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a record holds strings and numbers");
        text.push('\n');
        text
    }
}

/// Canonical JSON: keys of every object in byte order, no space.
pub fn canonical(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_by_key(|(key, _)| key.as_bytes());
            let pair = |(key, value): (&String, &Value)| format!("{}:{}", Value::from(key.as_str()), canonical(value));
            format!("{{{}}}", pairs.into_iter().map(pair).collect::<Vec<_>>().join(","))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
