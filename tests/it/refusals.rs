//! Which test holds which row: files that are refused, and files that look as if they should be and load.
//!
//! Rows are those of the refusal matrix for models and sidecars, of the list of traps for reading and laying out files
//! (1 to 22), and of the field cases about reading (A), NextN layouts (B) and tokenizers (D). A test without a path is in
//! a module below this one. Split files, grafting and packages (B and C) are in `pack`.
//!
//! | Row | Test |
//! |---|---|
//! | matrix, by library and by program | `matrix::*`, `serve::model_files::*` |
//! | sidecar checks | `matrix::every_number_of_a_sidecar_is_compared`, `forward::experts::sidecars_agree_*` |
//! | trap 1 | `engine_io::gguf::tests::{counts_are_compared_*, shapes_are_checked_*}`, `traps::damaged_bytes_*` |
//! | trap 2 | `engine_io::gguf::tests::{nesting_is_bounded, unknown_types_stop_the_parse}`, `traps::damaged_bytes_*` |
//! | trap 3 | `engine_io::gguf::tests::every_truncation_is_an_error` |
//! | trap 4 | `engine_io::gguf::tests::integers_of_any_width_*`, `traps::numbers_of_a_wrong_kind_name_their_key` |
//! | trap 5 | `engine_io::gguf::tests::names_have_one_outcome_each` |
//! | trap 6 | `engine_io::gguf::tests::versions_two_and_three_*`, `traps::diagnoses_are_not_interchangeable` |
//! | trap 7 | `engine_io::gguf::tests::alignment_is_the_files_own`, `traps::the_alignment_of_a_file_changes_nothing` |
//! | trap 8 | `engine_io::shards::tests::every_shard_is_examined_*`, `traps::every_file_is_examined_at_the_start` |
//! | trap 9 | `traps::diagnoses_are_not_interchangeable` |
//! | trap 10 | `engine_io::gguf::tests::a_row_is_whole_blocks`, `traps::a_row_is_whole_blocks_and_not_its_tensor` |
//! | trap 11 | `forward::refusals::{one_preflight_*, unexpected_tensors_*}`, `traps::one_preflight_lists_*` |
//! | trap 12 | `forward::refusals::{tied_embeddings_*, biases_are_*, fused_projections_*}` |
//! | trap 13 | `forward::experts::*`, `traps::experts_without_their_numbers_and_numbers_without_experts` |
//! | trap 14 | `forward::refusals::head_sizes_have_keys_of_their_own`, `traps::head_sizes_are_their_own` |
//! | trap 15 | `traps::counts_of_nextn_blocks`, `matrix::a_sidecar_is_no_model` |
//! | trap 16 | `matrix::{announced_blocks_that_are_absent, blocks_that_nothing_announces}`, `blocks::*` |
//! | trap 17 | `traps::the_pattern_of_the_trunk_ends_before_the_head` |
//! | trap 18 | `forward::refusals::per_block_arrays_*`, `traps::arrays_are_as_long_as_a_rule_says` |
//! | trap 19 | `matrix::{names_that_*, another_layout_*}`, `forward::dialects::*`, `engine_io::compat::tests::*` |
//! | trap 20 | `matrix::own_head_tensors_win` |
//! | trap 21 | `matrix::a_sidecar_is_no_model` |
//! | trap 22 | `serve::canary::*` |
//! | FR-001, 003, 005, 008, 012 | `traps::damaged_bytes_are_refused_through_the_front_door` |
//! | FR-010 | `traps::{numbers_of_a_wrong_kind_*, tokenizers_of_a_wrong_kind_*}` |
//! | FR-013 | `traps::every_file_is_examined_at_the_start` |
//! | FR-017 | `traps::one_preflight_lists_unsupported_types` |
//! | FR-018 | `traps::a_row_is_whole_blocks_and_not_its_tensor` |
//! | FR-019 | `matrix::announced_blocks_that_are_absent` |
//! | FR-022 | `traps::arrays_are_as_long_as_a_rule_says` |
//! | FR-025 | `traps::counts_of_nextn_blocks` |
//! | FR-026 | `forward::dialects::{dialects_that_rename_*, heads_in_halves_*, names_of_other_heads_*}`, `matrix::names_that_*`, `pack::graft::heads_of_every_*` |
//! | FR-028 | `matrix::a_sidecar_is_no_model`, `memory::a_sidecar_alone_can_be_sized`, `pack::doctor::containers_are_told_apart` |
//! | FR-033 | `pack::layers::the_menu_is_what_the_model_can_run`, `mtp_metadata_inconsistent` of `pack::codes` |
//! | FR-034 | `pack::graft::a_grafted_set_is_the_original`, `pack::layers::{a_composite_becomes_*, split_sets_lose_*, alignments_and_unknown_*}` |
//! | FR-037 | `traps::the_alignment_of_a_file_changes_nothing` |
//! | FR-038 | `engine_io::shards::tests::{split_keys_must_agree, stale_counts_*, later_shards_*, shards_of_another_*}`, `pack::graft::one_file_*` |
//! | FR-039 | `engine_io::shards::tests::{any_shard_or_the_directory_*, ambiguous_directories_*}` |
//! | FR-041 | `pack::graft::untouched_shards_are_links_to_the_real_files`, `pack::refused::outputs_that_cannot_be` |
//! | FR-043 | `engine_io::shards::tests::names_that_only_look_split_are_ordinary` |
//! | FR-044 | `pack::refused::files_that_are_no_models` |
//! | FR-047 | `engine_io::text::tests::{runs_of_every_length_*, a_piece_of_a_megabyte_*}` |
//! | FR-049 | `tokenizers::{tiny_vocabularies_*, smollm2_*, qwen3_*}` |
//! | FR-050 | `engine_io::text::tests::{kinds_keep_their_meaning, byte_tokens_*}` |
//! | FR-051 | `engine_io::text::template::tests::bos_appears_exactly_as_often_as_the_model_wants` |
//! | FR-053 | `engine_io::text::template::tests::a_marker_in_replayed_history_cuts_nothing` |
//! | FR-055 | `engine::tables::output`, `serve::real::streamed_equals_not_streamed` |

mod blocks;
mod matrix;
pub mod tiny;
mod traps;

use engine::model::load::LoadOptions;
use engine::model::{Model, ModelError};

use crate::forward::edit::Edit;

/// A model with a sidecar.
fn pair(model: &Edit, sidecar: &Edit) -> Result<Model, ModelError> {
    Model::load(&model.file(), Some(&sidecar.file_as("sidecar.gguf")), LoadOptions::default())
}

/// The same, refused with a message that has all of `parts`.
fn pair_refused(model: &Edit, sidecar: &Edit, parts: &[&str]) -> ModelError {
    let error = pair(model, sidecar).err().unwrap_or_else(|| panic!("accepted, expected {parts:?}"));
    says(&error.to_string(), parts);
    error
}

/// A text has all of `parts`, and nothing that only a programmer reads.
fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{text}` does not say `{part}`");
    }
    for debug in ["Some(", "None", "Config {", "Router {"] {
        assert!(!text.contains(debug), "`{text}` has `{debug}`");
    }
}
