//! The request fields of every endpoint and what becomes of each: the tables of the contract, as data. Those of
//! `/v1/messages` and `/v1/responses` alone are in their modules.
//!
//! A field is *honoured* (its reader is in `params.rs`, `constrain/format.rs` or the dialect's own module), *noted* (accepted without
//! effect and listed in `X-Engine-Ignored-Params`), or *refused* with 400 when its value would have an effect that
//! this version cannot give. Null is absent everywhere. A field that is in no table is noted.

use serde_json::{Map, Value};

use crate::serve::error::ApiError;
use crate::serve::{anthropic, responses};

/// What becomes of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Class {
    /// Read and obeyed.
    Honoured,
    /// Accepted without effect; not even listed when the predicate says the value is harmless.
    Noted(fn(&Value) -> bool),
    /// 400 when the predicate says that the value would act.
    Refused(fn(&Value) -> bool),
}

use Class::{Honoured, Noted, Refused};

pub(crate) fn always(_: &Value) -> bool {
    true
}
pub(crate) fn never(_: &Value) -> bool {
    false
}
pub(crate) fn truthy(v: &Value) -> bool {
    v != &Value::Bool(false)
}
pub(crate) fn falsy(v: &Value) -> bool {
    v != &Value::Bool(true)
}
pub(crate) fn filled(v: &Value) -> bool {
    match v {
        Value::Array(list) => !list.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}
pub(crate) fn not_zero(v: &Value) -> bool {
    v.as_f64() != Some(0.0)
}
pub(crate) fn not_one(v: &Value) -> bool {
    v.as_f64() != Some(1.0)
}
pub(crate) fn positive(v: &Value) -> bool {
    v.as_f64().is_none_or(|x| x > 0.0)
}
pub(crate) fn not_negative(v: &Value) -> bool {
    v.as_f64().is_none_or(|x| x >= 0.0)
}
pub(crate) fn beyond_text(v: &Value) -> bool {
    v.as_array().is_none_or(|list| list.iter().any(|m| m != "text"))
}
pub(crate) fn plain_tier(v: &Value) -> bool {
    v == "auto" || v == "default"
}
pub(crate) fn beyond_disabled(v: &Value) -> bool {
    v != "disabled"
}
fn splits_reasoning(v: &Value) -> bool {
    v != "none" && v != "auto"
}
pub(crate) fn is_false(v: &Value) -> bool {
    v == &Value::Bool(false)
}

/// A field's name as the tables have it; `other` for one that is in none.
pub(crate) fn known(name: &str) -> &'static str {
    let tables = [CHAT_TABLES, COMPLETIONS_TABLES, MESSAGES_TABLES, RESPONSES_TABLES].into_iter().flatten();
    let all = tables.flat_map(|table| table.iter());
    all.map(|(known, _)| *known).find(|known| *known == name).unwrap_or("other")
}

/// Fields of every generation endpoint.
pub(crate) const COMMON: &[(&str, Class)] = &[
    ("model", Honoured),
    ("stream", Honoured),
    ("min_tokens", Honoured),
    ("temperature", Honoured),
    ("top_p", Honoured),
    ("top_k", Honoured),
    ("typical_p", Honoured),
    ("typ_p", Honoured),
    ("min_p", Honoured),
    ("seed", Honoured),
    ("stop_token_ids", Honoured),
    ("include_stop_str_in_output", Honoured),
    ("ignore_eos", Honoured),
    ("frequency_penalty", Honoured),
    ("presence_penalty", Honoured),
    ("repeat_penalty", Honoured),
    ("repetition_penalty", Honoured),
    ("repeat_last_n", Honoured),
    ("logit_bias", Honoured),
    ("sse_ping_interval", Honoured),
    ("speculative", Honoured),
    // Filters this sampler does not have: refused when they would act.
    ("top_n_sigma", Refused(positive)),
    ("xtc_probability", Refused(positive)),
    ("xtc_threshold", Noted(never)),
    ("dry_multiplier", Refused(not_zero)),
    ("dry_base", Noted(never)),
    ("dry_allowed_length", Noted(never)),
    ("dry_penalty_last_n", Noted(never)),
    ("dry_sequence_breakers", Noted(never)),
    ("mirostat", Refused(not_zero)),
    ("mirostat_tau", Noted(never)),
    ("mirostat_eta", Noted(never)),
    ("dynatemp_range", Refused(not_zero)),
    ("dynatemp_exponent", Noted(never)),
    ("adaptive_target", Refused(not_negative)),
    ("adaptive_decay", Noted(never)),
    ("samplers", Refused(always)),
    ("min_keep", Refused(not_zero)),
    ("logprob_token_ids", Refused(filled)),
    ("prompt_logprobs", Refused(truthy)),
    ("post_sampling_probs", Refused(truthy)),
    ("n_probs", Refused(not_zero)),
    ("bad_words", Refused(filled)),
    ("allowed_token_ids", Refused(filled)),
    // Forms of the answer: one of them at most.
    ("grammar", Honoured),
    ("json_schema", Honoured),
    ("structured_outputs", Honoured),
    ("guided_json", Honoured),
    ("guided_regex", Honoured),
    ("guided_choice", Honoured),
    ("guided_grammar", Honoured),
    ("regex", Honoured),
    ("ebnf", Honoured),
    // Calls, reasoning and media that are not told apart from text.
    ("chat_template", Refused(always)),
    ("documents", Refused(filled)),
    ("mm_processor_kwargs", Refused(filled)),
    ("media_io_kwargs", Refused(filled)),
    ("modalities", Refused(beyond_text)),
    ("audio", Refused(always)),
    ("web_search_options", Refused(always)),
    ("priority", Honoured),
    ("cache_salt", Honoured),
    ("cache_prompt", Honoured),
    ("timings_per_token", Honoured),
    ("truncate_prompt_tokens", Refused(always)),
    ("lora", Refused(filled)),
    ("use_beam_search", Refused(truthy)),
    ("length_penalty", Refused(not_one)),
    ("watermarking", Refused(truthy)),
    // Hints without effect on the output.
    ("id_slot", Noted(never)),
    ("n_keep", Noted(never)),
    ("n_discard", Noted(never)),
    ("n_cache_reuse", Noted(never)),
    ("t_max_predict_ms", Noted(never)),
    ("n_indent", Noted(never)),
    ("prompt_cache_key", Noted(never)),
    ("prompt_cache_retention", Noted(never)),
    ("session_id", Noted(never)),
    ("prediction", Noted(never)),
];

/// Further fields of chats and completions.
pub(crate) const OPENAI: &[(&str, Class)] = &[
    ("stream_options", Honoured),
    ("max_tokens", Honoured),
    ("max_completion_tokens", Honoured),
    ("n_predict", Honoured),
    ("n", Honoured),
    ("best_of", Honoured),
    ("stop", Honoured),
    ("logprobs", Honoured),
    ("return_tokens", Honoured),
    ("return_token_ids", Honoured),
    ("return_progress", Honoured),
    ("response_format", Honoured),
    ("user", Noted(never)),
    ("metadata", Noted(never)),
    ("store", Noted(is_false)),
    ("service_tier", Noted(plain_tier)),
    ("safety_identifier", Noted(never)),
    ("verbosity", Noted(never)),
    ("moderation", Noted(never)),
    ("prompt_cache_options", Noted(never)),
];

/// Further fields of `/v1/chat/completions`.
pub(crate) const CHAT: &[(&str, Class)] = &[
    ("messages", Honoured),
    ("top_logprobs", Honoured),
    ("tools", Honoured),
    ("tool_choice", Honoured),
    ("parallel_tool_calls", Honoured),
    ("functions", Honoured),
    ("function_call", Honoured),
    ("reasoning", Honoured),
    ("include_reasoning", Honoured),
    ("reasoning_effort", Honoured),
    ("reasoning_format", Honoured),
    ("thinking_budget", Honoured),
    ("thinking_budget_tokens", Honoured),
    ("reasoning_budget_tokens", Honoured),
    ("thinking_token_budget", Honoured),
    ("chat_template_kwargs", Honoured),
    ("enable_thinking", Honoured),
    ("add_generation_prompt", Honoured),
    ("continue_final_message", Honoured),
];

/// Further fields of `/v1/completions`.
pub(crate) const COMPLETIONS: &[(&str, Class)] = &[
    ("prompt", Honoured),
    ("echo", Honoured),
    ("parse_special", Honoured),
    ("add_special_tokens", Honoured),
    ("suffix", Refused(filled)),
    ("tools", Refused(filled)),
    ("top_logprobs", Refused(always)),
    // A prompt is the caller's own markup: what a template would make of these has no place in it.
    ("messages", Refused(always)),
    ("tool_choice", Refused(always)),
    ("parallel_tool_calls", Refused(always)),
    ("functions", Refused(filled)),
    ("function_call", Refused(always)),
    ("reasoning", Refused(filled)),
    ("include_reasoning", Refused(falsy)),
    ("reasoning_effort", Refused(always)),
    ("reasoning_format", Refused(splits_reasoning)),
    ("thinking_budget", Refused(not_negative)),
    ("thinking_budget_tokens", Refused(not_negative)),
    ("reasoning_budget_tokens", Refused(not_negative)),
    ("thinking_token_budget", Refused(not_negative)),
    ("enable_thinking", Refused(always)),
    ("chat_template_kwargs", Refused(filled)),
    ("add_generation_prompt", Refused(truthy)),
    ("continue_final_message", Refused(truthy)),
];

/// Further fields of `/tokenize`.
const TOKENIZE: &[(&str, Class)] = &[
    ("content", Honoured),
    ("prompt", Honoured),
    ("add_special", Honoured),
    ("add_special_tokens", Honoured),
    ("parse_special", Honoured),
    ("with_pieces", Honoured),
    ("return_token_strs", Honoured),
];

/// The fields of `/detokenize`.
const DETOKENIZE: &[(&str, Class)] = &[("model", Honoured), ("tokens", Honoured)];

/// The tables of each endpoint.
pub(crate) const CHAT_TABLES: &[&[(&str, Class)]] = &[CHAT, OPENAI, COMMON];
pub(crate) const COMPLETIONS_TABLES: &[&[(&str, Class)]] = &[COMPLETIONS, OPENAI, COMMON];
pub(crate) const MESSAGES_TABLES: &[&[(&str, Class)]] = &[anthropic::FIELDS, COMMON];
pub(crate) const RESPONSES_TABLES: &[&[(&str, Class)]] = &[responses::FIELDS, COMMON];

/// Of texts and tokens: fields without effect are not told, so these decide only what is unknown.
pub(crate) const TOKENIZE_TABLES: &[&[(&str, Class)]] = &[TOKENIZE, CHAT, OPENAI, COMMON];
pub(crate) const DETOKENIZE_TABLES: &[&[(&str, Class)]] = &[DETOKENIZE];

/// Refuses what must be refused and returns the names of fields without effect. `strict`: fields that are in no table must.
///
/// # Errors
/// `unsupported_parameter` or `unknown_parameter` naming the first refused field.
pub(crate) fn screen(
    body: &Map<String, Value>,
    tables: &[&[(&str, Class)]],
    strict: bool,
) -> Result<Vec<String>, ApiError> {
    let mut noted = Vec::new();
    let class = |name: &str| tables.iter().copied().flatten().find(|(n, _)| *n == name).map(|(_, class)| class);
    for (name, value) in body.iter().filter(|(_, v)| !v.is_null()) {
        match class(name) {
            Some(Honoured) => {}
            Some(Refused(acts)) if acts(value) => return Err(ApiError::unsupported_parameter(name)),
            Some(Refused(_)) => {}
            Some(Noted(harmless)) if harmless(value) => {}
            None if strict => return Err(ApiError::unknown_parameter(name)),
            Some(Noted(_)) | None => noted.push(name.clone()),
        }
    }
    Ok(noted)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ALL: [&[&[(&str, Class)]]; 4] = [CHAT_TABLES, COMPLETIONS_TABLES, MESSAGES_TABLES, RESPONSES_TABLES];

    #[test]
    fn every_refused_field_is_refused_by_name_and_null_is_absent() {
        // A value of a type no field expects acts for every predicate that does not ask for a special one.
        let values = [json!(7), json!("x"), json!(["x"]), json!({"type": "x"}), json!(true), json!(false), json!(-3)];
        for tables in ALL {
            for (name, class) in tables.iter().copied().flatten() {
                let null = Map::from_iter([((*name).to_owned(), Value::Null)]);
                assert_eq!(screen(&null, tables, false).unwrap(), Vec::<String>::new(), "{name}");
                if matches!(class, Refused(_)) {
                    let refused = values.iter().any(|value| {
                        let body = Map::from_iter([((*name).to_owned(), value.clone())]);
                        screen(&body, tables, false).is_err_and(|e| e.param.as_deref() == Some(name) && e.status == 400)
                    });
                    assert!(refused, "{name} is never refused");
                }
            }
        }
    }

    #[test]
    fn a_strict_server_takes_no_unknown_field() {
        let long = "x".repeat(100_000);
        for tables in ALL.into_iter().chain([TOKENIZE_TABLES, DETOKENIZE_TABLES]) {
            let screened = |name: &str, value: Value| screen(&Map::from_iter([(name.to_owned(), value)]), tables, true);
            let error = screened("made_up", json!(1)).unwrap_err();
            let told = (error.status, error.code, error.param.as_deref());
            assert_eq!(told, (400, "unknown_parameter", Some("made_up")));
            assert!(screened(&long, json!(1)).unwrap_err().body().to_string().len() < 1000);
            assert_eq!(screened("made_up", Value::Null).unwrap(), Vec::<String>::new());
            for (name, class) in tables.iter().copied().flatten() {
                if matches!(class, Noted(_)) {
                    assert!(screened(name, json!("x")).is_ok(), "{name} is known");
                }
            }
        }
    }

    #[test]
    fn no_name_stands_twice() {
        for tables in ALL {
            let all: Vec<&str> = tables.iter().copied().flatten().map(|(name, _)| *name).collect();
            for (i, name) in all.iter().enumerate() {
                assert!(!all[..i].contains(name), "{name}");
            }
        }
    }

    #[test]
    fn what_has_no_place_in_a_completion_is_refused_there() {
        for (name, value) in [
            ("messages", json!([])),
            ("tools", json!([{"type": "function"}])),
            ("tool_choice", json!("auto")),
            ("parallel_tool_calls", json!(false)),
            ("functions", json!([{"name": "f"}])),
            ("function_call", json!("auto")),
            ("reasoning_effort", json!("low")),
            ("reasoning", json!({"effort": "low"})),
            ("reasoning_format", json!("deepseek")),
            ("include_reasoning", json!(false)),
            ("thinking_budget", json!(5)),
            ("enable_thinking", json!(false)),
            ("chat_template_kwargs", json!({"enable_thinking": true})),
            ("chat_template", json!("x")),
            ("continue_final_message", json!(true)),
            ("add_generation_prompt", json!(true)),
            ("suffix", json!("x")),
            ("documents", json!(["x"])),
            ("modalities", json!(["audio"])),
            ("audio", json!({})),
            ("web_search_options", json!({})),
        ] {
            let body = Map::from_iter([(name.to_owned(), value)]);
            let error = screen(&body, COMPLETIONS_TABLES, false).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(name)));
        }
        let harmless = json!({"tools": [], "reasoning_format": "none", "include_reasoning": true, "modalities": ["text"],
            "thinking_budget": -1, "continue_final_message": false, "n_predict": 3, "max_completion_tokens": 3});
        assert_eq!(screen(harmless.as_object().unwrap(), COMPLETIONS_TABLES, false).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn harmless_values_pass_and_unknown_fields_are_noted() {
        let body = json!({"store": false, "service_tier": "auto", "user": "u", "made_up": 1, "mirostat": 0,
            "response_format": {"type": "text"}, "lora": [], "length_penalty": 1});
        assert_eq!(screen(body.as_object().unwrap(), CHAT_TABLES, false).unwrap(), ["user", "made_up"]);
    }
}
