//! Every limit of the front, one constant each. `--limits` prints them.

use std::time::Duration;

use engine::limits::Limits;
use engine_io::text::TemplateLimits;
use serde_json::{Value, json};

use crate::serve::Bounds;

/// Request line.
pub(crate) const URI_BYTES: usize = 8192;
/// Header block, request line included.
pub(crate) const HEAD_BYTES: usize = 32 * 1024;
/// Header count.
pub(crate) const HEADERS: usize = 128;
/// Empty lines before a request.
pub(crate) const EMPTY_LINES: usize = 8;
/// Least of the body limit; it grows with the context.
pub(crate) const BODY_BYTES_MIN: usize = 32 * 1024 * 1024;
/// Least of it for each token of the context: four bytes of text, each of which an escape may double.
pub(crate) const BODY_BYTES_PER_TOKEN_MIN: usize = 8;
/// Body bytes allowed per context token.
pub(crate) const BODY_BYTES_PER_TOKEN: usize = 16;
/// Bodies held by all connections together.
pub(crate) const BODIES_BYTES: usize = 1024 * 1024 * 1024;
/// Large answers of all connections together that wait to be read: those longer than the output buffer.
pub(crate) const ANSWERS_BYTES: usize = 512 * 1024 * 1024;
/// Least of what `/tokenize` lists in one answer; a context's worth always fits.
pub(crate) const TOKENS_LISTED: usize = 1024 * 1024;
/// Choices of one request: what an idle engine has room for in its queue.
pub(crate) const CHOICES_WAITING: usize = engine::limits::WAITING_MAX;
/// Chunk extensions, and trailers, of one body.
pub(crate) const CHUNK_EXTRA_BYTES: usize = 16 * 1024;
/// From the first byte of a head to its end.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(10);
/// Between two bytes of a body.
pub(crate) const BODY_IDLE_TIME: Duration = Duration::from_secs(30);
/// A whole body.
pub(crate) const BODY_TIME: Duration = Duration::from_secs(600);
/// Between two requests of a connection.
pub(crate) const KEEP_ALIVE_TIME: Duration = Duration::from_secs(75);
/// Requests of one connection.
pub(crate) const REQUESTS_PER_CONNECTION: u32 = 10_000;
/// Connections that may do everything.
pub(crate) const CONNECTIONS: usize = 1024;
/// Further connections that reach `/livez` and `/metrics` only.
pub(crate) const CONNECTIONS_RESERVED: usize = 16;
/// How long one of these may be silent.
pub(crate) const RESERVED_TIME: Duration = Duration::from_secs(1);
/// Connections beyond those that may still read why they are turned away.
pub(crate) const CONNECTIONS_TURNED_AWAY: usize = 64;
/// Files and sockets that are open beside connections: models, logs, polls.
pub(crate) const OTHER_DESCRIPTORS: usize = 128;
/// Bytes of following requests held while one is answered.
pub(crate) const PIPELINE_BYTES: usize = 64 * 1024;
/// Body bytes thrown away after an early answer before the connection is closed instead.
pub(crate) const DRAIN_BYTES: usize = 1024 * 1024;
/// Time for that.
pub(crate) const DRAIN_TIME: Duration = Duration::from_secs(2);
/// Time in which a peer may still read the last answer of a connection that is being closed.
pub(crate) const LINGER_TIME: Duration = Duration::from_millis(900);
/// Unsent bytes of a connection above which its rows stall.
pub(crate) const STREAM_BUFFER_BYTES: usize = 1024 * 1024;
/// A reader that takes nothing for this long is dropped.
pub(crate) const STALL_TIME: Duration = Duration::from_secs(120);
/// A stream's headers go out after this long in the queue.
pub(crate) const STREAM_HEADERS_TIME: Duration = Duration::from_secs(2);
/// Running requests may finish for this long after a signal.
pub(crate) const SHUTDOWN_TIME: Duration = Duration::from_secs(30);
/// Requests, and news of them, that wait between two threads of the server.
pub(crate) const MESSAGES_WAITING: usize = 4096;
/// Nesting of a JSON body, itself included.
pub(crate) const JSON_DEPTH: usize = 128;
/// Values of a JSON body.
pub(crate) const JSON_VALUES: usize = 4_000_000;
/// Messages of a request.
pub(crate) const MESSAGES: usize = 16_384;
/// Tools of a request.
pub(crate) const TOOLS: usize = 512;
/// Prompts of a completions request.
pub(crate) const PROMPTS: usize = 64;
/// Choices per prompt.
pub(crate) const CHOICES: usize = 8;
/// Bytes of `cache_salt`.
pub(crate) const CACHE_SALT: usize = 256;
/// A request may wait for a slot for this long.
pub(crate) const QUEUE_TIME: Duration = Duration::from_secs(600);
/// The file of `--api-key-file`.
pub(crate) const KEY_FILE_BYTES: u64 = 1024 * 1024;
/// Stop strings of OpenAI's dialects, unless a flag says otherwise.
pub(crate) const STOP_STRINGS: usize = 4;
/// Stop strings of `/v1/messages`.
pub(crate) const STOP_SEQUENCES: usize = 64;
/// Bytes of one stop string.
pub(crate) const STOP_BYTES: usize = 1024;
/// Stop token ids.
pub(crate) const STOP_TOKENS: usize = 64;
/// Entries of `logit_bias`.
pub(crate) const LOGIT_BIAS: usize = 1024;

/// Schemas or grammar of one request.
pub(crate) const SCHEMA_BYTES: usize = 1024 * 1024;
/// A thread's own time for compiling them.
pub(crate) const COMPILE_TIME: Duration = Duration::from_millis(2000);
/// The file of `--chat-template-file`.
pub(crate) const TEMPLATE_FILE_BYTES: u64 = 1024 * 1024;
/// Further names of the model, and the bytes of one.
pub(crate) const ALIASES: usize = 64;
/// Bytes of one of them.
pub(crate) const ALIAS_BYTES: usize = 256;
/// Keys of `chat_template_kwargs`.
pub(crate) const TEMPLATE_KWARGS: usize = 64;
/// Alternatives to a token with its log-probability.
pub(crate) const TOP_LOGPROBS: usize = 20;

/// Body limit for a context of `tokens`.
pub(crate) fn body_bytes(tokens: usize) -> usize {
    BODY_BYTES_MIN.max(BODY_BYTES_PER_TOKEN * tokens)
}

/// Tokens that `/tokenize` lists in one answer for a context of `tokens`.
pub(crate) fn tokens_listed(tokens: usize) -> usize {
    TOKENS_LISTED.max(tokens)
}

/// What of the limits a client may want to know, in numbers; times in seconds.
pub(crate) fn facts(context: usize, slots: usize, bounds: &Bounds) -> Value {
    json!({
        "connections": bounds.connections,
        "requests_per_connection": bounds.requests,
        "request_line_bytes": bounds.uri_bytes,
        "header_bytes": bounds.head_bytes,
        "headers": bounds.headers,
        "body_bytes": bounds.body_limit(context),
        "keep_alive_seconds": bounds.keep_alive_time.as_secs_f64(),
        "stream_buffer_bytes": bounds.stream_buffer,
        "stream_stall_seconds": bounds.stall_time.as_secs_f64(),
        "queue_seconds": bounds.queue_time.as_secs_f64(),
        "request_seconds": bounds.request_time.map(|time| time.as_secs_f64()),
        "json_depth": JSON_DEPTH,
        "json_values": JSON_VALUES,
        "messages": MESSAGES,
        "tools": TOOLS,
        "prompts": PROMPTS,
        "choices": CHOICES.min(slots),
        "stop_strings": bounds.stop_strings,
        "prompt_tokens": context - 1,
        "context_tokens": context,
        "slots": slots,
    })
}

/// The table that `--limits` prints.
pub(crate) fn table(engine: &Limits, bounds: &Bounds) -> String {
    let seconds = |d: Duration| format!("{} s", d.as_secs_f32());
    let template = TemplateLimits::default();
    let rows = [
        ("connections", format!("{} + {CONNECTIONS_RESERVED} for /livez and /metrics", bounds.connections)),
        ("files open beside connections", OTHER_DESCRIPTORS.to_string()),
        ("told that they are too many", format!("{CONNECTIONS_TURNED_AWAY} at once")),
        ("requests per connection", bounds.requests.to_string()),
        ("idle keep-alive", seconds(bounds.keep_alive_time)),
        ("idle for /livez and /metrics alone", seconds(bounds.reserved_time)),
        ("request line", format!("{} B", bounds.uri_bytes)),
        ("header block", format!("{} B", bounds.head_bytes)),
        ("headers", bounds.headers.to_string()),
        ("empty lines before a request", EMPTY_LINES.to_string()),
        ("header read", seconds(bounds.head_time)),
        ("body", format!("{} B", bounds.body_limit(engine.context))),
        ("bodies of all connections", format!("{} B", bounds.bodies_limit(engine.context))),
        ("large answers of all connections", format!("{} B", bounds.answers_bytes)),
        ("tokens listed by /tokenize", tokens_listed(engine.context).to_string()),
        ("chunk extensions, trailers", format!("{CHUNK_EXTRA_BYTES} B each")),
        ("body idle", seconds(bounds.body_idle_time)),
        ("body total", seconds(bounds.body_time)),
        ("pipelined bytes held", format!("{PIPELINE_BYTES} B")),
        ("drain after an early answer", format!("{DRAIN_BYTES} B, {}", seconds(bounds.drain_time))),
        ("reading a last answer", seconds(LINGER_TIME)),
        ("output buffer per connection", format!("{} B", bounds.stream_buffer)),
        ("stalled reader", seconds(bounds.stall_time)),
        ("stream headers after", seconds(bounds.stream_headers_time)),
        ("shutdown", seconds(bounds.shutdown_time)),
        ("requests and news between threads", MESSAGES_WAITING.to_string()),
        ("key file", format!("{KEY_FILE_BYTES} B")),
        ("JSON depth", JSON_DEPTH.to_string()),
        ("JSON values", JSON_VALUES.to_string()),
        ("messages", MESSAGES.to_string()),
        ("tools", TOOLS.to_string()),
        ("template variables", TEMPLATE_KWARGS.to_string()),
        ("template", format!("{} steps, {} B", bounds.template_fuel, template.output_bytes)),
        ("template file", format!("{TEMPLATE_FILE_BYTES} B")),
        ("prompts", PROMPTS.to_string()),
        ("choices per prompt", CHOICES.min(engine.slots).to_string()),
        ("choices of a request", CHOICES_WAITING.min(bounds.waiting).to_string()),
        ("stop strings", format!("{} of {STOP_BYTES} B, {STOP_TOKENS} ids", bounds.stop_strings)),
        ("stop strings of /v1/messages", STOP_SEQUENCES.to_string()),
        ("logit_bias entries", LOGIT_BIAS.to_string()),
        ("schemas or grammar", format!("{} B", bounds.schema_bytes)),
        ("compiling them", seconds(bounds.compile_time)),
        ("further names of the model", format!("{ALIASES} of {ALIAS_BYTES} B")),
        ("cache_salt", format!("{CACHE_SALT} B")),
        ("alternatives of a log-probability", TOP_LOGPROBS.to_string()),
        ("prompt", format!("{} tokens", engine.context - 1)),
        ("prompt and answer", format!("{} tokens", engine.context)),
        ("choices that run", engine.slots.to_string()),
        ("choices that wait", engine.waiting.to_string()),
        ("time in the queue", seconds(bounds.queue_time)),
        ("whole request", bounds.request_time.map_or_else(|| "no limit".to_owned(), seconds)),
        ("prompt tokens in one pass", engine.prefill_chunk.to_string()),
        ("drafts of a window", engine.window_max.to_string()),
    ];
    rows.iter().map(|(name, value)| format!("{name:<35}{value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit that is not in the table is a limit nobody can look up.
    #[test]
    fn the_table_has_every_limit() {
        let source = include_str!("limits.rs");
        let table = &source[source.find("fn table(").unwrap()..source.find("mod tests").unwrap()];
        let bounds = include_str!("mod.rs");
        let defaults = &bounds[bounds.find("impl Default for Bounds").unwrap()..];
        let names = |text: &'static str, start: &'static str| {
            text.lines().filter_map(move |line| line.trim().strip_prefix(start)?.split(':').next())
        };
        // Printed as what they come to for the context.
        let made = ["BODY_BYTES", "BODIES_BYTES", "TOKENS_LISTED"];
        for name in names(source, "pub(crate) const ").filter(|name| !made.iter().any(|m| name.starts_with(m))) {
            let bound = defaults.lines().find_map(|line| line.trim().split_once(&format!(": limits::{name},")));
            let printed = bound.map_or_else(|| name.to_owned(), |(field, _)| format!("bounds.{field}"));
            assert!(table.contains(&printed), "--limits does not print {printed}");
        }
        let fields = bounds[bounds.find("pub struct Bounds").unwrap()..].split('}').next().unwrap();
        for name in names(fields, "pub ").filter(|name| !name.starts_with("struct")) {
            let made = ["body_bytes", "bodies_bytes"];
            let printed = if made.contains(&name) { name.replace("_bytes", "_limit(") } else { name.to_owned() };
            assert!(table.contains(&format!("bounds.{printed}")), "--limits does not print {name}");
        }
    }

    #[test]
    fn clients_are_told_the_bounds_that_hold() {
        let bounds = Bounds {
            connections: 2,
            requests: 3,
            uri_bytes: 4,
            head_bytes: 5,
            headers: 6,
            body_bytes: Some(7),
            stop_strings: 8,
            keep_alive_time: Duration::from_secs(9),
            stream_buffer: 10,
            stall_time: Duration::from_secs(11),
            queue_time: Duration::from_secs(12),
            ..Bounds::default()
        };
        let facts = facts(100, 1, &bounds);
        for (name, value) in [
            ("connections", 2.0),
            ("requests_per_connection", 3.0),
            ("request_line_bytes", 4.0),
            ("header_bytes", 5.0),
            ("headers", 6.0),
            ("body_bytes", 7.0),
            ("stop_strings", 8.0),
            ("keep_alive_seconds", 9.0),
            ("stream_buffer_bytes", 10.0),
            ("stream_stall_seconds", 11.0),
            ("queue_seconds", 12.0),
        ] {
            assert_eq!(facts[name].as_f64(), Some(value), "{name}");
        }
    }

    #[test]
    fn the_table_is_of_what_was_asked_for() {
        let engine = Limits { window_max: 5, prefill_chunk: 77, ..Limits::new(3, 4_000_000) };
        let text = table(&engine, &Bounds { queue_time: Duration::from_secs(9), ..Bounds::default() });
        let row = |name: &str, value: &str| {
            let line =
                text.lines().find(|line| line.starts_with(&format!("{name}  "))).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(line[name.len()..].trim(), value);
        };
        row("body", "64000000 B");
        row("choices per prompt", "3");
        row("time in the queue", "9 s");
        row("prompt", "3999999 tokens");
        row("prompt tokens in one pass", "77");
        row("drafts of a window", "5");
        assert!(text.lines().all(|line| line.as_bytes()[34] == b' ' && line.as_bytes()[35] != b' '), "{text}");
    }
}
