//! Which test holds which case, and that every such test is there.
//!
//! Cases are the field cases of the sections about chat templates (E), the HTTP door (F), the API (G), speculation (H),
//! accounting (I) and scheduling (J), the end-to-end checks of the HTTP contract, and the points that it settles late. The
//! cases about files and tokenizers (A to D) stand in the table of `refusals`. A name is a path of modules and a function;
//! `clients` are the scripts that `tests/clients/run.py` runs; a `*` stands for any rest of a name.

mod tests;

/// Cases and the tests that hold them.
type Cases = &'static [(&'static str, &'static [&'static str])];

const FIELD: Cases = &[
    (
        "FR-057",
        &[
            "serve::shapes::arguments_reach_the_template_as_a_mapping",
            "engine_bin::serve::messages::arguments_become_mappings",
        ],
    ),
    ("FR-059", &["serve::shapes::a_turn_of_calls_needs_no_content", "clients::openai_chat::tools"]),
    ("FR-060", &["serve::shapes::parts_are_joined_whoever_says_them"]),
    (
        "FR-061",
        &[
            "serve::shapes::a_system_note_in_the_middle_stays_where_it_is",
            "engine_bin::serve::messages::roles_and_order",
            "clients::anthropic_sdk::tools",
        ],
    ),
    ("FR-062", &["serve::shapes::a_developer_is_a_system"]),
    ("FR-065", &["serve::shapes::no_result_is_lost", "engine_bin::serve::messages::results_follow_their_calls"]),
    (
        "FR-066",
        &[
            "serve::shapes::thinking_begins_where_the_prompt_says",
            "serve::channels::thinking_is_where_the_request_wants_it",
        ],
    ),
    (
        "FR-069",
        &[
            "serve::framing::chunked_bodies_with_extensions_and_trailers",
            "serve::framing::malformed_requests_end_the_connection",
            "serve::rules::bodies",
            "serve::framing::bodies_over_the_limit",
        ],
    ),
    (
        "FR-072",
        &["serve::framing::pipelined_requests_are_answered_in_order", "serve::framing::one_request_cut_at_every_byte"],
    ),
    (
        "FR-074",
        &[
            "serve::errors::a_body_of_ten_megabytes_is_read",
            "serve::rules::sizes_are_those_that_were_asked_for",
            "serve::framing::bodies_over_the_limit",
        ],
    ),
    ("FR-076", &["serve::rules::pages_of_other_origins", "serve::framing::methods"]),
    ("FR-078", &["serve::fields::half_a_character_is_the_clients_fault", "engine_bin::serve::json::*"]),
    ("FR-080", &["serve::fields::null_is_absent_in_every_field_of_every_endpoint"]),
    (
        "FR-081",
        &[
            "serve::slow::who_leaves_is_cancelled_in_every_phase",
            "serve::real::who_leaves_frees_everything",
            "tick::pressure::a_cancelled_request_is_gone_within_a_tick",
        ],
    ),
    (
        "FR-084",
        &[
            "serve::slow::a_reader_that_stops_pauses_its_own_row_only",
            "serve::slow::large_answers_that_nobody_reads_are_bounded_together",
            "serve::process::a_stream_that_nobody_reads_takes_no_more_memory_than_its_buffer",
            "tick::pressure::a_slow_reader_stalls_its_row_alone",
        ],
    ),
    ("FR-086", &["serve::streaming::every_chunk_has_its_keys", "serve::streaming::chunks_come_in_order"]),
    (
        "FR-087",
        &["serve::streaming::every_chunk_has_its_keys", "serve::channels::two_calls_are_two_calls_streamed_or_not"],
    ),
    ("FR-089", &["serve::streaming::choices_open_in_order_and_keep_their_index", "clients::openai_chat::choices"]),
    (
        "FR-091",
        &[
            "serve::errors::token_limits_have_several_names_and_the_smallest_holds",
            "serve::real::token_limits",
            "serve::errors::bad_fields_are_named",
        ],
    ),
    (
        "FR-092",
        &[
            "serve::errors::bad_prompts_are_named",
            "serve::errors::bad_fields_are_named",
            "tick::pressure::refusals_name_their_reason",
        ],
    ),
    (
        "FR-093",
        &[
            "engine::tables::output::stop_strings_are_cut_exactly",
            "serve::real::stop_strings_cut_exactly",
            "tick::a_stop_that_is_never_complete_loses_nothing",
        ],
    ),
    ("FR-096", &["serve::channels::two_calls_are_two_calls_streamed_or_not", "clients::openai_chat::tools"]),
    (
        "FR-098",
        &[
            "serve::real::tools_are_rendered_and_called_when_they_must_be",
            "serve::channels::no_tool_is_called_where_none_is_wanted",
            "clients::openai_chat::tool_choices",
        ],
    ),
    (
        "FR-100",
        &[
            "serve::constrained::a_needless_backslash_is_no_way_around_a_pattern",
            "serve::constrained::what_cannot_be_held_to_is_refused_and_harms_nobody",
        ],
    ),
    (
        "FR-103",
        &[
            "serve::fields::a_prompt_that_does_not_fit_is_refused_before_a_stream_begins",
            "serve::errors::prompts_beyond_the_context",
        ],
    ),
    ("FR-105", &["serve::real::logprobs_do_not_depend_on_speculation"]),
    ("FR-107", &["serve::real::a_seed_gives_the_same_text_whatever_else_runs"]),
    (
        "FR-108",
        &[
            "identity::*_commits_the_same_ids_everywhere",
            "identity::random_cells_commit_the_same_ids",
            "identity::recurrent_state_equals_the_reference_after_every_commit",
            "tick::speculation_changes_nothing_but_time",
        ],
    ),
    (
        "FR-111",
        &[
            "tick::edges::nothing_behind_an_end_token_is_left",
            "tick::the_worked_case_is_counted_as_written",
            "engine::systems::draft_mtp::drafts_are_cut_behind_an_end_and_before_the_unknown",
        ],
    ),
    ("FR-113", &["tick::windows_fit_what_is_left"]),
    ("FR-114", &["tick::edges::a_tail_ends_with_the_context", "tick::windows_fit_what_is_left"]),
    (
        "FR-116",
        &[
            "tick::the_suffix_history_is_the_requests_own",
            "engine::tables::suffix::a_row_is_empty_for_its_next_request_and_rows_are_apart",
        ],
    ),
    ("FR-118", &["identity::recurrent_state_equals_the_reference_after_every_commit"]),
    (
        "FR-121",
        &[
            "engine_kernels::ops::delta_net::windows_rejections_and_folds_leave_no_trace",
            "engine_kernels::ops::mamba2::saving_with_logged_rows_is_refused",
            "engine::exec::cursors::a_copy_and_a_restored_sequence_stand_where_theirs_stood",
        ],
    ),
    (
        "FR-122",
        &["identity::*_commits_the_same_ids_everywhere", "prefix::rows_that_share_pages_do_not_touch_each_other"],
    ),
    (
        "FR-124",
        &[
            "tick::the_mtp_cache_is_filled_whatever_the_strategy",
            "tick::a_hundred_thousand_ticks_keep_every_invariant",
            "tick::prefix::a_growing_conversation_computes_what_is_new",
        ],
    ),
    (
        "FR-126",
        &[
            "tick::edges::what_is_counted_of_a_request_does_not_depend_on_others",
            "tick::alarm::a_row_that_drafts_for_nothing_beside_one_that_does_not_is_told_of",
            "engine::exec::cursors::rows_that_the_mtp_cache_waits_for_are_not_overwritten",
        ],
    ),
    (
        "FR-128",
        &["tick::the_mtp_cache_is_filled_whatever_the_strategy", "tick::a_hundred_thousand_ticks_keep_every_invariant"],
    ),
    (
        "FR-129",
        &[
            "tick::three_windows_count_by_position",
            "tick::the_worked_case_is_counted_as_written",
            "serve::canary::what_is_counted_is_what_decoding_would_draft",
        ],
    ),
    (
        "FR-131",
        &[
            "tick::edges::what_is_committed_is_not_judged_again",
            "tick::pressure::too_few_pages_preempt_the_youngest_and_change_nothing",
        ],
    ),
    (
        "FR-134",
        &[
            "tick::prefix::a_growing_conversation_computes_what_is_new",
            "tick::prefix::the_same_prompt_again_computes_its_end",
            "tick::prefix::ends_of_messages_are_places_to_come_back_to",
            "prefix::thirty_turns_of_a_tool_loop_compute_what_is_new",
        ],
    ),
    ("FR-136", &["engine::sample::draws_follow_the_distribution", "tick::speculation_changes_nothing_but_time"]),
    (
        "FR-138",
        &[
            "tick::speculation_changes_nothing_but_time",
            "tick::every_change_is_seen_somewhere",
            "engine::exec::choose::edits_and_masks_are_each_rows_own",
        ],
    ),
    (
        "FR-142",
        &[
            "tick::constraints::every_strategy_gives_what_plain_decoding_gives",
            "tick::constraints::a_draft_that_may_not_come_cuts_the_window_there",
            "serve::constrained::a_hundred_schemas_hold_under_every_strategy",
        ],
    ),
    (
        "FR-144",
        &[
            "serve::canary::a_block_that_does_not_fit_is_caught_and_dropped_unless_forced",
            "serve::canary::the_daemon_turns_drafting_off_and_says_why",
        ],
    ),
    (
        "FR-145",
        &[
            "tick::speculation_that_does_not_pay_is_turned_down_and_tried_again",
            "engine::policy::plain_decoding_is_always_a_candidate",
            "engine::policy::cheap_rows_widen_and_dear_rows_narrow",
        ],
    ),
    (
        "FR-147",
        &[
            "tick::the_worked_case_is_counted_as_written",
            "tick::constraints::a_draft_that_may_not_come_cuts_the_window_there",
        ],
    ),
    (
        "FR-150",
        &[
            "serve::channels::two_calls_are_two_calls_streamed_or_not",
            "serve::responses::items_are_the_same_streamed_or_not",
            "clients::openai_chat::chat",
        ],
    ),
    ("FR-151", &["tick::three_windows_count_by_position", "engine_bin::serve::stats::worked_case"]),
    (
        "FR-153",
        &[
            "tick::edges::a_tail_that_is_wrong_in_the_middle_is_counted_as_written",
            "tick::a_rejected_tail_is_not_an_mtp_rejection",
        ],
    ),
    (
        "FR-154",
        &[
            "tick::pressure::decoding_goes_on_under_a_long_prompt_and_prompts_under_decoding",
            "tick::pressure::wide_windows_leave_prompts_their_rows",
        ],
    ),
    (
        "FR-157",
        &[
            "tick::pressure::drafts_are_trimmed_before_anyone_is_preempted",
            "tick::edges::what_only_the_cache_holds_goes_before_a_row_does",
            "tick::pressure::too_few_pages_preempt_the_youngest_and_change_nothing",
        ],
    ),
    (
        "FR-159",
        &[
            "tick::a_hundred_thousand_ticks_keep_every_invariant",
            "tick::gauges::every_page_and_row_is_accounted_for_in_every_tick",
        ],
    ),
];

/// The end-to-end checks by their numbers.
const CHECKS: Cases = &[
    (
        "1",
        &[
            "serve::slow::loading_is_answered_with_503",
            "serve::rules::head_is_get_without_a_body",
            "serve::rules::metrics_ask_for_a_key_where_that_is_wanted",
        ],
    ),
    ("2", &["serve::rules::pages_of_other_origins"]),
    (
        "3",
        &[
            "serve::framing::an_early_answer_keeps_the_connection_in_step",
            "serve::process::keys_are_read_again_on_sighup",
            "engine_bin::serve::auth::three_headers_and_a_file",
        ],
    ),
    ("4", &["clients::openai_chat::models"]),
    ("5", &["clients::anthropic_sdk::models"]),
    ("6", &["clients::openai_chat::chat", "serve::real::every_strategy_and_window_gives_the_same_text"]),
    ("7", &["clients::openai_chat::chat"]),
    ("8", &["clients::openai_chat::choices", "serve::real::choices_differ_and_the_first_is_that_of_one"]),
    ("9", &["clients::openai_chat::tools", "engine_bin::serve::parts::every_style_is_the_same_for_every_partition"]),
    ("10", &["engine_bin::serve::parts::every_style_is_the_same_for_every_partition"]),
    (
        "11",
        &[
            "clients::openai_chat::tools",
            "clients::openai_chat::tool_choices",
            "serve::real::tools_are_rendered_and_called_when_they_must_be",
        ],
    ),
    ("12", &["clients::openai_chat::tool_choices"]),
    ("13", &["clients::openai_chat::tools"]),
    (
        "14",
        &["clients::openai_chat::structured", "engine_bin::serve::constrain::calls::a_form_begins_behind_reasoning"],
    ),
    (
        "15",
        &["clients::openai_chat::structured", "serve::constrained::what_cannot_be_held_to_is_refused_and_harms_nobody"],
    ),
    ("16", &["serve::constrained::every_form_holds_at_temperature_1"]),
    (
        "17",
        &[
            "serve::real::logprobs_do_not_depend_on_speculation",
            "serve::real::streamed_equals_not_streamed",
            "clients::openai_chat::stops_and_logprobs",
        ],
    ),
    (
        "18",
        &[
            "serve::real::stop_strings_cut_exactly",
            "engine::tables::output::stop_strings_are_cut_exactly",
            "serve::errors::bad_fields_are_named",
            "clients::openai_chat::stops_and_logprobs",
        ],
    ),
    (
        "19",
        &[
            "serve::real::token_limits",
            "serve::errors::token_limits_have_several_names_and_the_smallest_holds",
            "serve::errors::bad_fields_are_named",
        ],
    ),
    ("20", &["clients::openai_chat::errors", "clients::litellm_all::too_long", "serve::real::token_limits"]),
    ("21", &["serve::fields::*"]),
    (
        "22",
        &[
            "serve::real::a_seed_gives_the_same_text_whatever_else_runs",
            "serve::real::every_strategy_and_window_gives_the_same_text",
            "prefix::a_row_that_loses_its_pages_says_the_same",
        ],
    ),
    (
        "23",
        &[
            "serve::streaming::completions_with_several_prompts",
            "serve::real::completions_from_ids_and_from_text_are_the_same",
            "serve::told::an_echoed_prompt_has_the_log_probabilities_that_its_tokens_had",
            "serve::told::a_streamed_echo_is_the_whole_one_in_parts",
            "serve::told::usage_is_on_every_chunk_where_it_is_asked_for",
            "clients::openai_chat::completions",
        ],
    ),
    ("24", &["clients::openai_responses::talk", "clients::openai_responses::tools"]),
    (
        "25",
        &[
            "clients::openai_responses::structured",
            "clients::openai_responses::ends",
            "clients::openai_responses::errors",
        ],
    ),
    ("26", &["clients::openai_responses::ends", "clients::openai_responses::custom"]),
    (
        "27",
        &[
            "serve::streaming::a_fault_breaks_the_stream_off",
            "clients::openai_chat::faults",
            "clients::openai_responses::faults",
        ],
    ),
    ("28", &["clients::limits::queue", "clients::openai_chat::faults"]),
    ("29", &["clients::anthropic_sdk::talk", "clients::anthropic_sdk::tools"]),
    ("30", &["clients::anthropic_sdk::tools"]),
    ("31", &["serve::messages::a_tool_loop_closes_and_its_prefix_is_found_again"]),
    (
        "32",
        &[
            "clients::limits::*",
            "clients::anthropic_sdk::errors",
            "clients::anthropic_sdk::faults",
            "clients::anthropic_sdk::tools",
        ],
    ),
    ("33", &["clients::anthropic_sdk::limits", "serve::messages::every_end_has_its_reason"]),
    ("34", &["clients::litellm_all::*"]),
    ("35", &["clients::litellm_proxy::drained"]),
    ("36", &["clients::llm_cli::*"]),
    ("37", &["clients::aider_edit::whole", "clients::aider_edit::continued"]),
    ("38", &["serve::framing::*", "serve::rules::bodies", "serve::rules::heads"]),
    (
        "39",
        &[
            "serve::slow::a_reader_that_stops_pauses_its_own_row_only",
            "serve::slow::a_reader_that_never_comes_back_is_dropped",
            "serve::slow::who_leaves_is_cancelled_in_every_phase",
            "serve::slow::large_answers_that_nobody_reads_are_bounded_together",
            "serve::process::a_stream_that_nobody_reads_takes_no_more_memory_than_its_buffer",
            "tick::pressure::a_slow_reader_stalls_its_row_alone",
        ],
    ),
    (
        "40",
        &[
            "serve::shown::metrics_keep_the_format_and_are_the_sums_of_the_answers",
            "clients::metrics::main",
            "clients::guidellm_run::main",
        ],
    ),
];

/// Points that the contract settles late.
const LATE: Cases = &[
    (
        "the end of a connection",
        &[
            "serve::rules::a_connection_that_ends_is_gone_whatever_its_client_still_sends",
            "serve::real::who_leaves_frees_everything",
            "serve::shown::slots_show_who_runs_and_who_does_not",
        ],
    ),
    (
        "white space of JSON",
        &[
            "engine_bin::serve::constrain::forms::forms_hold",
            "engine_bin::serve::constrain::forms::whatever_a_mask_allows_ends_in_a_value_of_the_schema",
        ],
    ),
    (
        "a half-closed request",
        &[
            "serve::framing::a_half_closed_request_is_answered_or_dropped",
            "serve::rules::a_half_close_is_no_end_where_that_is_allowed",
        ],
    ),
    (
        "schemas that cannot be met",
        &[
            "serve::constrained::what_cannot_be_held_to_is_refused_and_harms_nobody",
            "serve::constrained::a_deep_schema_disturbs_nobody",
            "engine_bin::serve::constrain::forms::what_cannot_be_compiled_is_refused_with_its_place",
        ],
    ),
    (
        "counters of one request",
        &[
            "tick::edges::what_is_counted_of_a_request_does_not_depend_on_others",
            "tick::prefix::what_is_counted_of_a_request_does_not_depend_on_the_cache",
        ],
    ),
    (
        "text held back for a stop string",
        &["tick::a_stop_that_is_never_complete_loses_nothing", "serve::real::stop_strings_cut_exactly"],
    ),
];
