//! Fields of requests by class, at every endpoint: what is refused by name, what has no effect and is listed, and that
//! null is absent whatever it is the value of. The lists are those of the contract, not of the server.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::client::{Answer, ask};
use super::fake::{Fake, N_CTX, chat, hello};

/// Every endpoint that answers with text, its smallest body, and the field that holds what is asked.
fn endpoints(text: &str) -> [(&'static str, Value, &'static str); 4] {
    let mut messages = chat(text);
    messages["max_tokens"] = json!(9);
    [
        ("/v1/chat/completions", chat(text), "messages"),
        ("/v1/completions", json!({"prompt": text}), "prompt"),
        ("/v1/messages", messages, "messages"),
        ("/v1/responses", json!({"input": text}), "input"),
    ]
}

/// Code and parameter of an error, in the shape of its endpoint.
fn told(path: &str, answer: &Answer) -> (Option<String>, Option<String>) {
    let error = answer.json()["error"].clone();
    let (code, param) = match path {
        "/v1/messages" => (&error["details"]["error_code"], &error["details"]["param"]),
        _ => (&error["code"], &error["param"]),
    };
    (code.as_str().map(str::to_owned), param.as_str().map(str::to_owned))
}

pub const SAMPLING: &str = "model stream min_tokens temperature top_p top_k min_p seed stop_token_ids \
    include_stop_str_in_output ignore_eos frequency_penalty presence_penalty repeat_penalty repetition_penalty \
    repeat_last_n logit_bias speculative grammar json_schema structured_outputs guided_json guided_regex guided_choice \
    guided_grammar regex ebnf cache_prompt cache_salt sse_ping_interval typical_p typ_p top_n_sigma xtc_probability \
    dry_multiplier mirostat dynatemp_range adaptive_target samplers min_keep logprob_token_ids prompt_logprobs \
    post_sampling_probs n_probs bad_words allowed_token_ids chat_template documents mm_processor_kwargs \
    media_io_kwargs truncate_prompt_tokens id_slot n_keep n_discard n_cache_reuse t_max_predict_ms n_indent priority \
    prediction modalities audio web_search_options lora use_beam_search length_penalty watermarking";
pub const CHAT: &str = "stream_options max_completion_tokens max_tokens n_predict n stop logprobs top_logprobs \
    response_format tools tool_choice parallel_tool_calls functions function_call reasoning_effort reasoning \
    thinking_budget thinking_budget_tokens reasoning_budget_tokens thinking_token_budget reasoning_format \
    include_reasoning chat_template_kwargs enable_thinking add_generation_prompt continue_final_message return_tokens \
    return_token_ids return_progress timings_per_token user metadata store service_tier safety_identifier \
    prompt_cache_key prompt_cache_retention prompt_cache_options verbosity moderation best_of";
pub const COMPLETIONS: &str = "stream_options max_tokens n best_of echo logprobs suffix stop tools messages tool_choice \
    parse_special add_special_tokens reasoning_effort user";
pub const MESSAGES: &str = "max_tokens system stop_sequences tools tool_choice thinking output_config diagnostics metadata \
    cache_control service_tier speed container inference_geo user_profile_id workspace_id context_management betas \
    mcp_servers chat_template_kwargs";
pub const RESPONSES: &str = "instructions max_output_tokens top_logprobs stop text reasoning tools tool_choice \
    parallel_tool_calls include stream_options store previous_response_id conversation prompt background \
    context_management truncation max_tool_calls metadata user prompt_cache_key prompt_cache_retention \
    prompt_cache_options service_tier safety_identifier image moderation access_programs background_options \
    return_tokens return_token_ids return_progress timings_per_token";

#[test]
fn null_is_absent_in_every_field_of_every_endpoint() {
    let fake = Fake::start(hello);
    let own = [CHAT, COMPLETIONS, MESSAGES, RESPONSES];
    for ((path, body, _), own) in endpoints("hi").into_iter().zip(own) {
        let plain = ask(fake.address(), path, &body);
        assert_eq!(plain.status, 200, "{}", plain.text());
        let mut all = body.clone();
        for name in SAMPLING.split_whitespace().chain(own.split_whitespace()) {
            let mut one = body.clone();
            (one[name], all[name]) = (Value::Null, Value::Null);
            let answer = ask(fake.address(), path, &one);
            assert_eq!((answer.status, answer.header("x-engine-ignored-params")), (200, None), "{path} {name}: null");
        }
        assert_eq!(ask(fake.address(), path, &all).status, 200, "{path}: all of them");
    }
    let submissions = fake.submissions();
    assert!(submissions.iter().all(|s| s.sampling.temperature == 1.0 && s.stop.strings.is_empty()));
}

/// Asks with one more field, and expects that it is refused by its name before anything has run.
fn refused(address: SocketAddr, path: &str, body: &Value, name: &str, value: Value) {
    let mut body = body.clone();
    body[name] = value;
    let answer = ask(address, path, &body);
    assert_eq!(answer.status, 400, "{path} {name} {}: {}", body[name], answer.text());
    let (code, param) = told(path, &answer);
    let known = ["unsupported_parameter", "unsupported_value"].map(Some);
    assert!(known.contains(&code.as_deref()) && param.as_deref() == Some(name), "{path} {name}: {code:?} {param:?}");
}

#[test]
fn what_would_change_the_answer_and_is_not_there_is_refused() {
    let fake = Fake::start(hello);
    for (path, body, _) in endpoints("hi") {
        for (name, value) in [
            ("top_n_sigma", json!(1)),
            ("xtc_probability", json!(0.5)),
            ("dry_multiplier", json!(0.8)),
            ("mirostat", json!(2)),
            ("dynatemp_range", json!(0.5)),
            ("adaptive_target", json!(0.5)),
            ("samplers", json!(["top_k"])),
            ("min_keep", json!(1)),
            ("logprob_token_ids", json!([1])),
            ("prompt_logprobs", json!(1)),
            ("post_sampling_probs", json!(true)),
            ("n_probs", json!(5)),
            ("bad_words", json!(["x"])),
            ("allowed_token_ids", json!([1])),
            ("chat_template", json!("x")),
            ("documents", json!([{"text": "x"}])),
            ("mm_processor_kwargs", json!({"a": 1})),
            ("media_io_kwargs", json!({"a": 1})),
            ("truncate_prompt_tokens", json!(5)),
            ("modalities", json!(["text", "audio"])),
            ("audio", json!({"voice": "x"})),
            ("web_search_options", json!({})),
            ("lora", json!([{"id": 0, "scale": 1}])),
            ("use_beam_search", json!(true)),
            ("length_penalty", json!(2)),
            ("watermarking", json!(true)),
        ] {
            refused(fake.address(), path, &body, name, value);
        }
    }
    let [(chats, chat, _), (texts, text, _), (messages, message, _), (responses, response, _)] = endpoints("hi");
    refused(fake.address(), chats, &chat, "best_of", json!(2));
    for (name, value) in [
        ("best_of", json!(2)),
        ("suffix", json!("x")),
        ("messages", json!([{"role": "user", "content": "x"}])),
        ("tools", json!([{"type": "function", "function": {"name": "f"}}])),
        ("reasoning_effort", json!("low")),
    ] {
        refused(fake.address(), texts, &text, name, value);
    }
    refused(fake.address(), messages, &message, "mcp_servers", json!([{"url": "x"}]));
    refused(fake.address(), messages, &message, "container", json!("c"));
    for (name, value) in [
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("conv_1")),
        ("prompt", json!({"id": "p"})),
        ("background", json!(true)),
        ("context_management", json!([{"type": "compaction"}])),
        ("truncation", json!("auto")),
    ] {
        refused(fake.address(), responses, &response, name, value);
    }
    assert_eq!(fake.submissions().len(), 0);
}

#[test]
fn what_has_no_effect_is_listed() {
    let fake = Fake::start(hello);
    let hints = ["id_slot", "n_keep", "n_discard", "n_cache_reuse", "t_max_predict_ms", "n_indent"];
    let openai = ["user", "metadata", "store", "service_tier", "safety_identifier", "moderation", "verbosity"];
    let own: [&[&str]; 4] = [
        &openai,
        &openai,
        &["metadata", "service_tier", "cache_control", "speed", "inference_geo", "workspace_id", "betas"],
        &["user", "metadata", "store", "service_tier", "safety_identifier", "moderation", "max_tool_calls"],
    ];
    for ((path, body, _), own) in endpoints("hi").into_iter().zip(own) {
        for name in hints.iter().chain(own).chain(&["prediction", "made_up"]) {
            let mut body = body.clone();
            body[*name] = match *name {
                "store" => json!(true),
                "metadata" | "prediction" | "cache_control" => json!({"a": "b"}),
                "betas" => json!(["b"]),
                "service_tier" | "user" => json!("flex"),
                _ => json!(3),
            };
            let answer = ask(fake.address(), path, &body);
            let listed = answer.header("x-engine-ignored-params");
            assert_eq!((answer.status, listed), (200, Some(*name)), "{path} {name}: {}", answer.text());
        }
    }
}

/// A prompt that does not fit is refused with a status, not in a stream, and nothing of it is cut.
#[test]
fn a_prompt_that_does_not_fit_is_refused_before_a_stream_begins() {
    let fake = Fake::start(hello);
    for (path, body, field) in endpoints(&"a".repeat(N_CTX + 40)) {
        for stream in [false, true] {
            let mut body = body.clone();
            body["stream"] = stream.into();
            let answer = ask(fake.address(), path, &body);
            assert_eq!(answer.status, 400, "{path}, stream {stream}");
            assert_eq!(answer.header("content-type"), Some("application/json; charset=utf-8"));
            let expected = (Some("context_length_exceeded".to_owned()), Some(field.to_owned()));
            assert_eq!(told(path, &answer), expected, "{path}, stream {stream}");
            assert!(answer.text().contains("256") || answer.text().contains("255 maximum"), "{}", answer.text());
        }
    }
    assert_eq!(fake.submissions().len(), 0);
}

/// A string that was cut between two halves of a character is the client's fault, at every endpoint that reads JSON;
/// both halves together are a character.
#[test]
fn half_a_character_is_the_clients_fault() {
    let fake = Fake::start(hello);
    let paths = endpoints("EMOJI").into_iter().map(|(path, body, _)| (path, body));
    for (path, body) in paths.chain([("/tokenize", json!({"content": "EMOJI"}))]) {
        let send = |escape: &str| {
            let mut client = super::client::Client::connect(fake.address());
            client.send(super::client::post(path, &body.to_string().replace("EMOJI", escape)));
            client.answer()
        };
        for half in ["emoji \\ud83d", "x \\ude00 y", "\\ud83d\\ud83d", "\\ud83dx"] {
            let answer = send(half);
            assert_eq!((answer.status, told(path, &answer).0.as_deref()), (400, Some("invalid_json")), "{path} {half}");
            assert!(answer.text().contains("at byte"), "{}", answer.text());
        }
        let whole = send("emoji \\ud83d\\ude00");
        assert_eq!(whole.status, 200, "{path}: {}", whole.text());
    }
    let prompts = fake.submissions();
    let emoji = super::fake::ids("emoji \u{1f600}");
    assert_eq!(prompts.len(), 4);
    assert!(prompts.iter().all(|s| s.prompt.windows(emoji.len()).any(|w| w == emoji)));
}
