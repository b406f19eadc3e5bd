//! `/props`: the server and its model in the words of llama-server, and what is this engine's own under `engine`.

use engine::limits::{MTP_TOKENS_MAX, SUFFIX_MAX_DEFAULT, SUFFIX_MIN_DEFAULT};
use serde_json::{Value, json};

use crate::serve::gguf_text::style_name;
use crate::serve::json::real;
use crate::serve::{Bounds, Parts, info, limits};

/// The answer for what is about to be served.
pub(crate) fn answer(parts: &Parts, bounds: &Bounds) -> Value {
    let Parts { info, spec, slots, model, api, .. } = parts;
    let sampling = &info.sampling;
    let repeat_last_n = if sampling.repeat_last_n == u32::MAX { -1 } else { i64::from(sampling.repeat_last_n) };
    let template = model.template();
    let facts = template.map(|(_, facts)| facts.clone()).unwrap_or_default();
    let caps = model.caps();
    let version = info::version();
    let build = format!("{}-{}", env!("CARGO_PKG_VERSION"), version["commit"].as_str().unwrap_or("unknown"));
    json!({
        "default_generation_settings": {
            "n_ctx": info.n_ctx,
            "params": {
                "temperature": real(sampling.temperature),
                "top_k": sampling.top_k,
                "typical_p": real(sampling.typical_p),
                "top_p": real(sampling.top_p),
                "min_p": real(sampling.min_p),
                "repeat_penalty": real(sampling.repeat_penalty),
                "repeat_last_n": repeat_last_n,
                "presence_penalty": real(sampling.presence_penalty),
                "frequency_penalty": real(sampling.frequency_penalty),
                "max_tokens": -1,
                "min_tokens": 0,
                "n": 1,
                "seed": -1,
                "ignore_eos": false,
                "stream": false,
                "cache_prompt": true,
                "sse_ping_interval": api.ping.map_or(-1, |time| time.as_secs() as i64),
                "reasoning_format": api.reasoning.name(),
                "chat_template_kwargs": api.kwargs,
            },
        },
        "total_slots": slots,
        "model_alias": api.name(&info.id),
        "model_ftype": info.ftype,
        "model_path": info.path,
        "chat_template": template.map(|(source, _)| source),
        "chat_template_caps": {
            "supports_tools": facts.tools,
            "supports_tool_calls": facts.tool_calls,
            "supports_system_role": facts.system,
            "supports_parallel_tool_calls": facts.parallel_tool_calls,
            "supports_object_arguments": facts.object_arguments,
            "supports_reasoning_effort": facts.reasoning_effort,
            "supports_preserve_reasoning": facts.preserve_reasoning,
            "supports_typed_content": facts.typed_content,
            "supports_string_content": facts.string_content,
        },
        "modalities": {"vision": false, "audio": false},
        "build_info": build,
        "is_sleeping": false,
        "engine": {
            "limits": limits::facts(info.n_ctx, *slots, bounds),
            "speculation": {
                "strategies": spec.strategies(),
                "default": spec.default.strategy.name(),
                "mtp_unavailable": spec.mtp.reason(),
                "mtp_tokens": spec.default.mtp_tokens,
                "mtp_tokens_max": MTP_TOKENS_MAX,
                "suffix": {
                    "min": spec.default.suffix_min,
                    "max": spec.default.suffix_max,
                    "tokens": spec.default.suffix_tokens,
                    "range": [SUFFIX_MIN_DEFAULT, SUFFIX_MAX_DEFAULT],
                },
                "window_max": spec.default.window_max,
            },
            "tool_style": style_name(caps.tool_style),
            "reasoning": caps.think.map(|(start, end)| json!({"start": start, "end": end})),
            "special_token_policy": "texts of clients are plain text; completions prompts are parsed",
        },
    })
}
