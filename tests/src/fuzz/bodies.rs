//! JSON bodies of requests, read for the built-in model, with its own template and vocabulary.

use std::sync::Arc;

use engine_bin::menu::{BUILT_IN, Menu};
use engine_bin::open::ModelSource;
use engine_bin::serve::gguf_text::GgufText;
use engine_bin::serve::probe::{Bodies, Outcome};
use engine_bin::serve::{ModelInfo, MtpOffer, SamplingDefaults, SpecConfig};
use engine_io::OpenOptions;
use engine_io::text::Tokenizer;
use serde_json::{Value, json};

use super::{Damage, Reader, Target};

/// Tokens of a request.
const CONTEXT: usize = 512;

pub(super) const CHAT: Target = Target {
    name: "body-chat",
    seeds: || documents(&[simple_chat(), long_chat(), tools()]),
    words: FIELDS,
    damage: Damage::Json,
    reader: || reader("/v1/chat/completions"),
};
pub(super) const COMPLETIONS: Target = Target {
    name: "body-completions",
    seeds: || {
        documents(&[
            json!({"prompt": "def ", "max_tokens": 5, "echo": true, "stop": ["\n", "x"], "stream": true}),
            json!({"prompt": [[1, 2], [3]], "logprobs": 3, "n": 2, "best_of": 2, "seed": 7, "logit_bias": {"5": -3.5}}),
            json!({"prompt": ["a", "b"], "temperature": 0.5, "top_p": 0.9, "top_k": 4, "typical_p": 0.9, "min_p": 0.1,
                "frequency_penalty": 0.1, "presence_penalty": -0.2, "repeat_penalty": 1.1, "ignore_eos": true,
                "speculative": {"strategy": "mtp-suffix", "mtp_tokens": 3, "suffix_min": 3, "suffix_max": 9,
                    "suffix_tokens": 8, "window": {"policy": "fixed", "initial": 4, "min": 1, "max": 8},
                    "on_unavailable": "fallback"}}),
        ])
    },
    words: FIELDS,
    damage: Damage::Json,
    reader: || reader("/v1/completions"),
};
pub(super) const TOKENIZE: Target = Target {
    name: "body-tokenize",
    seeds: || {
        documents(&[
            json!({"content": "h\u{e9}llo \u{1f60a}", "add_special": true, "with_pieces": true}),
            json!({"prompt": "a  b", "add_special_tokens": false, "parse_special": false, "return_token_strs": true}),
            json!({"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": false}),
        ])
    },
    words: FIELDS,
    damage: Damage::Json,
    reader: || reader("/tokenize"),
};
pub(super) const DETOKENIZE: Target = Target {
    name: "body-detokenize",
    seeds: || documents(&[json!({"tokens": [1, 2, 300, 5]}), json!({"tokens": []})]),
    words: FIELDS,
    damage: Damage::Json,
    reader: || reader("/detokenize"),
};
pub(super) const APPLY_TEMPLATE: Target = Target {
    name: "body-apply-template",
    seeds: || documents(&[simple_chat(), long_chat(), tools()]),
    words: FIELDS,
    damage: Damage::Json,
    reader: || reader("/apply-template"),
};
pub(super) const MESSAGES: Target = Target {
    name: "body-messages",
    seeds: || documents(&[messages(), message_tools()]),
    words: FIELDS,
    damage: Damage::Json,
    reader: || reader("/v1/messages"),
};
pub(super) const RESPONSES: Target = Target {
    name: "body-responses",
    seeds: || documents(&[responses(), response_items()]),
    words: FIELDS,
    damage: Damage::Json,
    reader: || reader("/v1/responses"),
};

/// Names and values that bodies are made of.
const FIELDS: &[&str] = &[
    "model",
    "messages",
    "role",
    "content",
    "type",
    "text",
    "user",
    "system",
    "developer",
    "assistant",
    "tool",
    "tool_calls",
    "tool_call_id",
    "function",
    "name",
    "arguments",
    "parameters",
    "reasoning_content",
    "tools",
    "tool_choice",
    "auto",
    "none",
    "required",
    "parallel_tool_calls",
    "response_format",
    "json_schema",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "include_usage",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "n",
    "best_of",
    "echo",
    "prompt",
    "tokens",
    "speculative",
    "strategy",
    "window",
    "policy",
    "adaptive",
    "fixed",
    "off",
    "mtp",
    "ngram-suffix",
    "chat_template_kwargs",
    "enable_thinking",
    "add_generation_prompt",
    "cache_salt",
    "cache_prompt",
    "metadata",
    "image_url",
    "input_audio",
    "5",
    "-1",
    "{\"a\": 1}",
    "input",
    "instructions",
    "function_call",
    "function_call_output",
    "custom",
    "input_text",
    "output_text",
    "max_output_tokens",
    "thinking",
    "enabled",
    "budget_tokens",
    "tool_use",
    "tool_result",
    "input_schema",
    "output_config",
    "effort",
    "low",
    "reasoning",
    "include",
    "previous_response_id",
    "strict",
    "format",
];

fn simple_chat() -> Value {
    json!({"model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}],
        "max_tokens": 4, "temperature": 0, "stream": true, "stream_options": {"include_usage": true}})
}

fn long_chat() -> Value {
    json!({"messages": [
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "<think>x</think>y", "reasoning_content": "r"},
            {"role": "user", "content": "u", "name": "n"}],
        "n": 2, "logprobs": true, "top_logprobs": 2, "seed": 1, "stop": "\n\n", "logit_bias": {"7": 1},
        "chat_template_kwargs": {"enable_thinking": true}, "speculative": {"strategy": "off"},
        "metadata": {"user_id": "u"}, "user": "u", "prediction": null, "response_format": {"type": "text"}})
}

fn tools() -> Value {
    json!({"messages": [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"city\": \"Paris\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"}],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}],
        "tool_choice": "auto", "parallel_tool_calls": true})
}

fn messages() -> Value {
    json!({"model": "m", "max_tokens": 8, "stream": true, "metadata": {"user_id": "u"},
        "system": [{"type": "text", "text": "x-anthropic-billing-header: a=b; cch=12345;\nYou help.",
            "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": "note"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "engine-0"},
                {"type": "text", "text": "a"}]},
            {"role": "user", "content": [{"type": "text", "text": "b"}]}],
        "thinking": {"type": "enabled", "budget_tokens": 3}, "stop_sequences": ["x"], "temperature": 0.5, "top_k": 3,
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}})
}

fn message_tools() -> Value {
    json!({"max_tokens": 8, "system": "s",
        "messages": [{"role": "user", "content": "weather?"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"city": "Paris"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "is_error": true,
                "content": [{"type": "text", "text": "rain"}]}]}],
        "tools": [{"name": "f", "description": "d", "strict": true,
            "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
            {"type": "web_search_20250305", "name": "web_search"}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true}})
}

fn responses() -> Value {
    json!({"model": "m", "input": "hi", "instructions": "s", "max_output_tokens": 8, "stream": true, "store": false,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true},
            "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"}, "temperature": 0.5, "top_p": 0.9, "top_logprobs": 2,
        "include": ["message.output_text.logprobs"], "metadata": {"a": "b"}})
}

fn response_items() -> Value {
    json!({"input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
            {"role": "user", "content": "weather?"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}], "encrypted_content": null},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"city\": \"Paris\"}"},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "sh", "input": "ls"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a"}]}],
        "tools": [{"type": "function", "name": "f", "strict": false,
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
            {"type": "custom", "name": "sh", "format": {"type": "text"}}, {"type": "web_search"}],
        "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": false})
}

fn documents(list: &[Value]) -> Vec<Vec<u8>> {
    list.iter().map(|document| document.to_string().into_bytes()).collect()
}

/// What reads bodies for the built-in model, and the model.
pub(super) fn bodies() -> (Bodies, Arc<GgufText>) {
    let file = ModelSource::BuiltIn.open(OpenOptions::default()).expect("the built-in model opens");
    let tokenizer = Arc::new(Tokenizer::from_meta(file.meta()).expect("it has a tokenizer"));
    let vocab = tokenizer.len();
    let model = Arc::new(GgufText::new(tokenizer).expect("its template compiles"));
    let info = ModelInfo {
        path: "scripted".to_owned(),
        id: "m".to_owned(),
        created: 0,
        n_ctx: CONTEXT,
        n_ctx_train: CONTEXT,
        n_vocab: vocab,
        n_embd: 1,
        n_params: 1,
        size: 1,
        ftype: "F32".to_owned(),
        arch: "toy".to_owned(),
        trunk_layers: 1,
        nextn: 1,
        mtp_checked: true,
        sampling: SamplingDefaults::default(),
    };
    let spec = SpecConfig { default: BUILT_IN, menu: Menu::of(BUILT_IN), mtp: MtpOffer::Ready };
    (Bodies::new(Arc::clone(&model) as _, info, spec, 4), model)
}

/// An answer without an engine, checked; whether it is that of a body in order.
pub(super) fn answered(status: u16, body: &[u8]) -> bool {
    // A client's fault is said to be one: a 5xx would be sent again.
    assert!(status == 200 || (400..500).contains(&status), "status {status}");
    // An answer may be a stream of events.
    if status == 200 && body.starts_with(b"event: ") {
        return true;
    }
    let answer: Value = serde_json::from_slice(body).expect("an answer is JSON");
    if status != 200 {
        let error = &answer["error"];
        assert!(error["message"].is_string() && error["type"].is_string() && error["code"].is_string(), "{error}");
        assert!(body.len() < 4096, "an error of {} bytes", body.len());
    }
    status == 200
}

fn reader(path: &'static str) -> Reader {
    let (mut bodies, _) = bodies();
    Box::new(move |bytes| match bodies.read(path, bytes).expect("a path of a POST").0 {
        Outcome::Prompts(prompts) => {
            assert!(!prompts.is_empty());
            true
        }
        Outcome::Answer(status, body) => answered(status, &body),
    })
}
