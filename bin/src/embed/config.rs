//! A handle's configuration: a JSON object whose keys are flags of `engine-serve`, with `_` for `-`. It becomes a command
//! line, so that defaults, ranges and contradictions are those of the daemon and nothing here can drift from them.

use std::ffi::OsString;

use serde_json::Value;

use crate::flags::{LowArgs, ServeArgs};
use crate::serve::json::{parse_object, type_name};

/// Flags that decide what a model is and how it runs.
const KEYS: [&str; 48] = [
    "model",
    "spec_strategy",
    "mtp_tokens",
    "mtp_force",
    "suffix_min",
    "suffix_max",
    "suffix_tokens",
    "window_policy",
    "window_initial",
    "window_min",
    "schedule",
    "spec_draft_model",
    "ctx_size",
    "parallel",
    "threads",
    "kv_type",
    "window_max",
    "prefill_chunk",
    "no_prefix_cache",
    "ctx_checkpoints",
    "exact_activations",
    "no_mmap",
    "strict",
    "repack",
    "mtp_norm",
    "mtp_hidden_norm",
    "memory_limit",
    "max_schema_bytes",
    "constraint_compile_ms",
    "alias",
    "model_match",
    "strict_params",
    "max_stop_strings",
    "prefill_assistant",
    "default_sampling",
    "temperature_max",
    "chat_template",
    "chat_template_file",
    "chat_template_kwargs",
    "template_fuel",
    "system_fold",
    "tool_results",
    "tool_style",
    "reasoning_format",
    "reasoning_field",
    "reasoning_effort_map",
    "hosted_tools",
    "strip_billing_line",
];
/// Keys whose flags take JSON, which may stand here as it is.
const OBJECTS: [&str; 2] = ["default_sampling", "chat_template_kwargs"];
/// Keys whose flags may be repeated.
const LISTS: [&str; 1] = ["alias"];
/// Keys beside the flags.
const PAGE_EVENTS: &str = "page_events";
const QUEUE_TIMEOUT: &str = "queue_timeout";

/// What a handle is opened with.
#[derive(Clone, Debug)]
pub struct Config {
    /// As the daemon's flags.
    pub args: ServeArgs,
    /// Events of KV pages are wanted.
    pub page_events: bool,
}

impl Config {
    /// Reads a configuration; empty text is the built-in model with every default.
    ///
    /// # Errors
    /// What is wrong with it, naming the key.
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        let map = if json.is_empty() { Ok(Default::default()) } else { parse_object(json) };
        let map = map.map_err(|error| format!("the configuration: {}", error.message))?;
        let mut words: Vec<OsString> = vec!["engine-serve".into()];
        let mut page_events = false;
        for (key, value) in &map {
            let flag = key.replace('_', "-");
            match value {
                Value::Null => {}
                _ if !KEYS.contains(&key.as_str()) && key != PAGE_EVENTS && key != QUEUE_TIMEOUT => {
                    let known = [&KEYS[..], &[QUEUE_TIMEOUT, PAGE_EVENTS]].concat().join(", ");
                    return Err(format!("the configuration: {key:?} is not known; the keys are {known}"));
                }
                Value::Bool(on) if key == PAGE_EVENTS => page_events = *on,
                other if key == PAGE_EVENTS => {
                    return Err(format!("{PAGE_EVENTS}: expected boolean, found {}", type_name(other)));
                }
                Value::Bool(true) => words.push(format!("--{flag}").into()),
                Value::Bool(false) => {}
                Value::String(text) => words.push(format!("--{flag}={text}").into()),
                Value::Number(number) => words.push(format!("--{flag}={number}").into()),
                Value::Object(_) if OBJECTS.contains(&key.as_str()) => words.push(format!("--{flag}={value}").into()),
                Value::Array(list) if LISTS.contains(&key.as_str()) => {
                    for (i, item) in list.iter().enumerate() {
                        let Some(text) = item.as_str() else {
                            return Err(format!("{key}[{i}]: expected string, found {}", type_name(item)));
                        };
                        words.push(format!("--{flag}={text}").into());
                    }
                }
                other => return Err(format!("{key}: expected string, number or boolean, found {}", type_name(other))),
            }
        }
        // Its first paragraph; what follows tells how to call a program.
        let said = |error: clap::Error| {
            let text = error.to_string();
            let first = text.split("\n\n").next().unwrap_or(&text);
            // What may stand there is listed on lines of its own.
            let line: Vec<&str> = first.lines().map(str::trim).collect();
            format!("the configuration: {}", line.join(" ").trim_start_matches("error: "))
        };
        let mut args = LowArgs::parse_line(words).map_err(said)?;
        // It may come from the environment, and there are no clients here that would need one.
        args.http.api_key.clear();
        Ok(Self { args: args.resolve()?, page_events })
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, CommandFactory as _};

    use super::*;
    use crate::serve::flags::HttpFlags;

    /// What a handle has no use for, beside the flags of HTTP: models in two processes, a queue that its host keeps itself,
    /// and records of what its host asked for.
    const OF_PROGRAMS: [&str; 9] =
        ["stage", "stage_split", "listen", "peer", "stage_key_file", "stage_timeout", "limits", "record", "queue_max"];

    #[test]
    fn every_flag_is_a_key_or_is_left_out_for_a_reason() {
        let front = HttpFlags::augment_args(Default::default());
        let of_front: Vec<String> = front.get_arguments().map(|a| a.get_id().as_str().to_owned()).collect();
        for flag in LowArgs::command().get_arguments().map(|a| a.get_id().as_str().to_owned()) {
            let known = KEYS.contains(&flag.as_str()) || flag == QUEUE_TIMEOUT;
            let left_out = OF_PROGRAMS.contains(&flag.as_str()) || of_front.contains(&flag);
            assert!(known != left_out, "{flag}: put it into KEYS or OF_PROGRAMS");
        }
    }

    #[test]
    fn values_are_those_of_the_flags() {
        let read = |text: &str| Config::parse(text.as_bytes());
        assert!(read("").unwrap().args.low.model.is_none());
        let full = read(
            r#"{"model": "-odd name.gguf", "ctx_size": 512, "no_mmap": true, "strict": false, "kv_type": "f32",
                "memory_limit": "3GiB", "threads": null, "page_events": true, "queue_timeout": 9}"#,
        );
        let Config { args, page_events } = full.unwrap();
        let size = &args.low.size;
        assert_eq!(args.low.model.as_deref(), Some("-odd name.gguf".as_ref()));
        assert_eq!((size.ctx_size, size.no_mmap, size.strict, size.threads), (Some(512), true, false, None));
        assert_eq!((page_events, args.low.queue_timeout), (true, 9));
        let api = read(
            r#"{"alias": ["a", "b"], "default_sampling": {"temperature": 0.5}, "chat_template_kwargs": {"x": [1]},
                "strict_params": true, "reasoning_format": "none", "max_stop_strings": 7, "hosted_tools": "reject",
                "strip_billing_line": "off"}"#,
        );
        let args = api.unwrap().args;
        let api = args.api();
        assert_eq!((api.aliases.len(), api.strict_params, args.bounds().stop_strings), (2, true, 7));
        assert!(!api.strip_billing_line && api.hosted_tools == crate::serve::api::HostedTools::Reject);
        assert_eq!(api.kwargs["x"], serde_json::json!([1]));
        assert_eq!(args.low.api.sampling(Default::default()).unwrap().temperature, 0.5);
        assert_ne!(api, Default::default());
        for (text, told) in [
            (r#"{"alias": [1]}"#, "alias[0]: expected string"),
            (r#"{"default_sampling": {"heat": 1}}"#, "--default-sampling: heat"),
            (r#"{"chat_template": "a", "chat_template_file": "b"}"#, "cannot be used with"),
            (r#"{"hosted_tools": "ask"}"#, "--hosted-tools"),
            ("[]", "expected object"),
            ("{", "byte"),
            (r#"{"ctx_size": 4, "ctx_size": 8}"#, "duplicate key"),
            (r#"{"port": 80}"#, "\"port\" is not known"),
            (r#"{"ctx-size": 80}"#, "\"ctx-size\" is not known"),
            (r#"{"ctx_size": 1}"#, "--ctx-size 1"),
            (r#"{"window_max": 64}"#, "--window-max"),
            (r#"{"window_min": 9, "window_max": 8}"#, "--window-min"),
            (r#"{"no_mmap": "yes"}"#, "--no-mmap"),
            (r#"{"ctx_size": true}"#, "--ctx-size"),
            (r#"{"ctx_size": 1.5}"#, "--ctx-size"),
            (r#"{"ctx_size": [4]}"#, "ctx_size: expected string, number or boolean, found list"),
            (r#"{"page_events": 1}"#, "page_events: expected boolean, found number"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(told) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
