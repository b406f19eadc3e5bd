//! What can be wrong with a package: one table of codes, and what to do about each.
//!
//! Codes and their spellings are those that existing tools report for packages of version 1; the ones behind them are
//! ours, for faults that those tools do not look for.

use std::fmt;

use serde::Serialize;

/// One fault.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Issue {
    /// `error`: none of them may be passed over.
    pub severity: &'static str,
    /// One of [`CODES`].
    pub code: &'static str,
    /// What was found and what was expected.
    pub message: String,
    /// The file, or the place in the manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What to do.
    pub remediation: &'static str,
}

impl Issue {
    /// A fault of this code.
    ///
    /// # Panics
    /// If the code is not one of [`CODES`].
    pub fn new(code: &str, path: impl Into<String>, message: impl Into<String>) -> Self {
        let known = CODES.iter().find(|(known, _)| *known == code);
        let &(code, remediation) = known.expect("a code of the table");
        let path = Some(path.into()).filter(|path| !path.is_empty());
        Self { severity: "error", code, message: message.into(), path, remediation }
    }
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, message, path, remediation, .. } = self;
        match path {
            Some(path) => write!(f, "{code}: {path}: {message}; {remediation}"),
            None => write!(f, "{code}: {message}; {remediation}"),
        }
    }
}

const WRITE: &str = "write the package again with engine-pack package";
const FETCH: &str = "fetch the file again, or write the package again";
const STRATEGY: &str = "correct generation.speculative_decoding, or write the package again with engine-pack package";
const GRAFT: &str = "graft the head onto its model again with engine-pack graft, then package the result";
const PROVENANCE: &str = "write the package again from a model whose provenance.json is whole";

/// Every code, and what to do about it.
pub const CODES: &[(&str, &str)] = &[
    ("missing_manifest", "give the folder that holds model-package.json"),
    ("invalid_manifest_json", WRITE),
    ("unsupported_schema_version", "give a package of schema_version 1 and format layer-package"),
    ("invalid_format", "give a package of schema_version 1 and format layer-package"),
    ("empty_model_id", "set model_id to a coordinate such as org/repo:quant"),
    ("missing_activation_width", WRITE),
    ("invalid_activation_width", WRITE),
    ("empty_source_model_path", WRITE),
    ("invalid_source_model_sha256", WRITE),
    ("missing_skippy_abi_version", WRITE),
    ("empty_projector_kind", "set the kind of the projector to mmproj"),
    ("unsupported_projector_kind", "set the kind of the projector to mmproj, or leave it out"),
    ("empty_speculative_default", STRATEGY),
    ("missing_speculative_default_strategy", STRATEGY),
    ("empty_speculative_proposer_name", STRATEGY),
    ("unsupported_speculative_proposer_type", STRATEGY),
    ("empty_speculative_strategy_name", STRATEGY),
    ("empty_speculative_strategy_type", STRATEGY),
    ("unsupported_speculative_strategy_type", STRATEGY),
    ("native_mtp_strategy_proposer_type_mismatch", STRATEGY),
    ("missing_ngram_strategy_proposer", STRATEGY),
    ("ngram_strategy_proposer_type_mismatch", STRATEGY),
    ("missing_speculative_proposer", STRATEGY),
    ("missing_composite_extension_policy", STRATEGY),
    ("missing_composite_primary", STRATEGY),
    ("missing_composite_extender", STRATEGY),
    ("invalid_composite_primary_type", STRATEGY),
    ("invalid_composite_extender_type", STRATEGY),
    ("unsupported_native_mtp_prediction_depth", "set prediction_depth to 1; max_draft_tokens is the length of drafts"),
    ("missing_native_mtp_layers", STRATEGY),
    ("native_mtp_layer_out_of_range", STRATEGY),
    ("invalid_ngram_proposer_window", STRATEGY),
    ("invalid_ngram_proposer_max_tokens", STRATEGY),
    ("unsupported_ngram_cache_max_window", STRATEGY),
    ("invalid_ngram_cache_history_scope", STRATEGY),
    ("unsupported_ngram_suffix_window", STRATEGY),
    ("invalid_ngram_suffix_history_scope", STRATEGY),
    ("invalid_extension_policy_tokens", STRATEGY),
    ("empty_window_policy_default", STRATEGY),
    ("invalid_window_policy_zero", STRATEGY),
    ("invalid_window_policy_bounds", STRATEGY),
    ("invalid_window_policy_initial", STRATEGY),
    // Ours.
    ("manifest_too_large", "give a manifest of at most 16 MiB"),
    ("invalid_model_id", "set model_id to a coordinate such as org/repo:quant"),
    ("ambiguous_native_mtp_strategy", "name a proposer, or give prediction_depth and layer_indices, not both"),
    ("invalid_native_mtp_max_draft_tokens", STRATEGY),
    ("invalid_source_model_file", WRITE),
    ("invalid_source_model_primary_file", WRITE),
    ("missing_shared_artifact", WRITE),
    ("invalid_layer_count", WRITE),
    ("missing_layer", WRITE),
    ("duplicate_layer_index", WRITE),
    ("layer_index_out_of_range", WRITE),
    (
        "unsafe_artifact_path",
        "use paths below the folder of the package: relative, without .. and with / between parts",
    ),
    ("duplicate_artifact_path", WRITE),
    ("invalid_artifact_sha256", WRITE),
    ("empty_artifact", WRITE),
    ("inconsistent_artifact_tensors", WRITE),
    ("missing_artifact", FETCH),
    ("artifact_outside_package", "put the file itself where the link is"),
    ("unreadable_artifact", FETCH),
    ("artifact_size_mismatch", FETCH),
    ("artifact_sha256_mismatch", FETCH),
    ("artifact_tensor_count_mismatch", WRITE),
    ("artifact_tensor_bytes_mismatch", WRITE),
    ("duplicate_tensor", WRITE),
    ("tensor_in_wrong_artifact", WRITE),
    ("split_tensor_count_mismatch", "remove the split.* keys: a package is no split file"),
    ("tokenizer_mismatch", WRITE),
    ("invalid_model", "package a model that engine-pack inspect accepts"),
    ("layer_count_mismatch", WRITE),
    ("activation_width_mismatch", WRITE),
    ("per_layer_array_length", GRAFT),
    ("mtp_metadata_inconsistent", GRAFT),
    ("mtp_block_unreachable", "let layer_indices name the last block, which the last stage runs"),
    (
        "mtp_embedding_unavailable_on_final_stage",
        "package the model with its token table, or a head with one of its own",
    ),
    ("too_many_stages", "ask for no more stages than there are blocks in the trunk"),
    ("stage_split_out_of_range", "give the first block of the second stage: from 1 to the last block of the trunk"),
    ("source_tensor_mismatch", WRITE),
    ("provenance_invalid", PROVENANCE),
    ("provenance_target_mismatch", PROVENANCE),
    ("provenance_coverage_mismatch", PROVENANCE),
    ("provenance_artifact_mismatch", PROVENANCE),
    ("provenance_generation_mismatch", PROVENANCE),
    ("provenance_mtp_mismatch", PROVENANCE),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_words_and_stand_once() {
        let mut seen = HashSet::new();
        for (code, remediation) in CODES {
            assert!(seen.insert(code), "{code} stands twice");
            assert!(code.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{code}");
            assert!(!remediation.is_empty() && !remediation.ends_with('.'), "{code}");
        }
    }
}
