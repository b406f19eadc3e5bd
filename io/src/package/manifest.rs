//! `model-package.json`, version 1: typed fields for what is understood, and every other field as it was found.
//!
//! Reading is lenient where a check can say more than a parser: what may be absent or empty by mistake is an `Option`
//! or has a default, and [`super::check`] names it. A value of a wrong JSON type, or a key that stands twice, is a
//! parser's error.
//!
//! Source: Mesh-LLM/mesh-llm `docs/specs/layer-package-repos.md`.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::{Deserialize as Derive, Serialize};
use serde_json::{Map, Value};

/// Version that is read and written.
pub const SCHEMA_VERSION: u32 = 1;
/// Format that is read and written.
pub const FORMAT: &str = "layer-package";

/// Fields that nothing here reads, in the order found; they are written again.
pub type Unread = Map<String, Value>;

/// The whole document.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Derive)]
pub struct Manifest {
    /// 1.
    pub schema_version: u32,
    /// A coordinate such as `org/repo:quant`, never a path.
    #[serde(default)]
    pub model_id: String,
    /// The one file set that was cut.
    #[serde(default)]
    pub source_model: SourceModel,
    /// `layer-package`.
    #[serde(default)]
    pub format: String,
    /// Blocks, an appended MTP block among them.
    #[serde(default)]
    pub layer_count: u32,
    /// Width of a hidden row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation_width: Option<i64>,
    /// What stages share.
    #[serde(default)]
    pub shared: Shared,
    /// A file for each block.
    #[serde(default)]
    pub layers: Vec<Layer>,
    /// Encoders of other media.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub projectors: Vec<Projector>,
    /// How to draft.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Where the source came from, as `package-provenance/1`; readers that do not know it pass it over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Value>,
    /// What wrote the package.
    #[serde(default)]
    pub skippy_abi_version: String,
    /// When.
    #[serde(default)]
    pub created_at_unix_secs: u64,
    /// Other fields.
    #[serde(flatten)]
    pub unread: Unread,
}

/// The model that was cut into artifacts.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Derive)]
pub struct SourceModel {
    /// Its first file.
    #[serde(default)]
    pub path: String,
    /// Of its first file.
    #[serde(default)]
    pub sha256: String,
    /// All files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<SourceFile>,
    /// Which of them is the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary_file: Option<String>,
    /// Where it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    /// Revision there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Another name of the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canonical_ref: Option<String>,
    /// Id of the publication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution_id: Option<String>,
    /// What else there is.
    #[serde(flatten)]
    pub unread: Unread,
}

/// One file of the source.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Derive)]
pub struct SourceFile {
    /// Its name.
    pub path: String,
    /// Its length.
    pub size_bytes: u64,
    /// Of its bytes.
    pub sha256: String,
}

/// Artifacts beside those of blocks.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Derive)]
pub struct Shared {
    /// Tokenizer and keys, for every stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Artifact>,
    /// What tokens are looked up in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embeddings: Option<Artifact>,
    /// Output norm and LM head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Artifact>,
    /// Other fields.
    #[serde(flatten)]
    pub unread: Unread,
}

/// One GGUF file of the package.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Derive)]
pub struct Artifact {
    /// Relative to the manifest, with `/` between parts.
    pub path: String,
    /// Tensors in it.
    pub tensor_count: u64,
    /// Bytes of their data, without padding.
    pub tensor_bytes: u64,
    /// Length of the file.
    pub artifact_bytes: u64,
    /// Of its bytes.
    pub sha256: String,
    /// Other fields.
    #[serde(flatten)]
    pub unread: Unread,
}

/// The artifact of a block.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Derive)]
pub struct Layer {
    /// Which block.
    pub layer_index: u32,
    /// Its file.
    #[serde(flatten)]
    pub artifact: Artifact,
}

/// The artifact of an encoder.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Derive)]
pub struct Projector {
    /// `mmproj`.
    #[serde(default)]
    pub kind: String,
    /// Its file.
    #[serde(flatten)]
    pub artifact: Artifact,
}

/// How to generate.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Derive)]
pub struct Generation {
    /// Who drafts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculative_decoding: Option<Speculative>,
    /// Other fields.
    #[serde(flatten)]
    pub unread: Unread,
}

/// The menu of strategies.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Derive)]
pub struct Speculative {
    /// Id of the strategy to use where nobody says.
    #[serde(default)]
    pub default: String,
    /// By name.
    #[serde(default, skip_serializing_if = "Named::is_empty")]
    pub proposers: Named<Proposer>,
    /// By id.
    #[serde(default)]
    pub strategies: Named<Strategy>,
    /// Other fields.
    #[serde(flatten)]
    pub unread: Unread,
}

/// One source of drafts; which fields it has depends on its type.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Derive)]
pub struct Proposer {
    /// `native-mtp`, `ngram-cache`, `ngram-suffix` or `ngram-simple`.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// `native-mtp`: what a head predicts at once; always 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction_depth: Option<u32>,
    /// `native-mtp`: its blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_indices: Option<Vec<u32>>,
    /// `native-mtp`: how many tokens the head is chained for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_draft_tokens: Option<u32>,
    /// n-grams: the shortest match that drafts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ngram_min: Option<u32>,
    /// n-grams: the longest match that is looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ngram_max: Option<u32>,
    /// n-grams: the longest draft.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_proposal_tokens: Option<u32>,
    /// n-grams: `request`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history_scope: Option<String>,
    /// Other fields.
    #[serde(flatten)]
    pub unread: Unread,
}

/// One entry of the menu.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Derive)]
pub struct Strategy {
    /// `native-mtp`, `ngram-cache`, `ngram-suffix`, `ngram-simple`, `composite` or `draft-model`.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Name of the proposer, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposer: Option<String>,
    /// `native-mtp` without a named proposer: as [`Proposer::prediction_depth`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction_depth: Option<u32>,
    /// `native-mtp` without a named proposer: as [`Proposer::layer_indices`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer_indices: Option<Vec<u32>>,
    /// `composite`: who drafts first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// `composite`: who goes on behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extender: Option<String>,
    /// `composite`: how far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extension_policy: Option<ExtensionPolicy>,
    /// How many drafts are verified at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_policy: Option<WindowPolicy>,
    /// Other fields.
    #[serde(flatten)]
    pub unread: Unread,
}

/// Length of a tail.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Derive)]
pub struct ExtensionPolicy {
    /// At most.
    #[serde(default)]
    pub max_tokens: u32,
    /// At first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_tokens: Option<u32>,
    /// Windows without a tail behind one whose tail was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail_backoff_proposals: Option<u32>,
    /// Other fields.
    #[serde(flatten)]
    pub unread: Unread,
}

/// Width of a window, in drafts.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Derive)]
pub struct WindowPolicy {
    /// `fixed` or `adaptive`.
    #[serde(default)]
    pub default: String,
    /// Of a fixed window, and the first of an adaptive one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_window: Option<u32>,
    /// At least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_window: Option<u32>,
    /// At most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_window: Option<u32>,
    /// Windows in flight at once between stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline_depth: Option<u32>,
    /// Other fields.
    #[serde(flatten)]
    pub unread: Unread,
}

/// An object whose keys are names, in the order found. A name that stands twice is an error: whichever was meant, the
/// other one would be lost without a word.
#[derive(Clone, PartialEq, Debug)]
pub struct Named<T>(pub Vec<(String, T)>);

impl<T> Named<T> {
    /// What goes by a name.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value)
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of it.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Serialize> Serialize for Named<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Named<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named<T>, A::Error> {
                let mut out = Named::default();
                while let Some((name, value)) = map.next_entry::<String, T>()? {
                    if out.get(&name).is_some() {
                        return Err(serde::de::Error::custom(format!("the name {name:?} stands twice")));
                    }
                    out.0.push((name, value));
                }
                Ok(out)
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

impl Manifest {
    /// Every artifact with what it is: the shared ones, those of blocks, those of encoders.
    pub fn artifacts(&self) -> impl Iterator<Item = (Role, &Artifact)> {
        let Shared { metadata, embeddings, output, .. } = &self.shared;
        let shared = [(Role::Metadata, metadata), (Role::Embeddings, embeddings), (Role::Output, output)];
        let shared = shared.into_iter().filter_map(|(role, artifact)| Some((role, artifact.as_ref()?)));
        let layers = self.layers.iter().map(|layer| (Role::Layer(layer.layer_index), &layer.artifact));
        let projectors = self.projectors.iter().map(|projector| (Role::Projector, &projector.artifact));
        shared.chain(layers).chain(projectors)
    }
}

/// What an artifact is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Keys, tokenizer, and tensors that every stage needs.
    Metadata,
    /// What tokens are looked up in.
    Embeddings,
    /// What follows the last block of the trunk.
    Output,
    /// A block.
    Layer(u32),
    /// An encoder.
    Projector,
}

impl Role {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::Embeddings => "embeddings",
            Self::Output => "output",
            Self::Layer(_) => "layer",
            Self::Projector => "projector",
        }
    }
}
