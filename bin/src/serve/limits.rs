//! Every limit of the front, one constant each. `--limits` prints this table.

use std::time::Duration;

/// Request line.
pub(crate) const URI_BYTES: usize = 8192;
/// Header block, request line included.
pub(crate) const HEAD_BYTES: usize = 32 * 1024;
/// Header count.
pub(crate) const HEADERS: usize = 128;
/// Least of the body limit; it grows with the context.
pub(crate) const BODY_BYTES_MIN: usize = 32 * 1024 * 1024;
/// Body bytes allowed per context token.
pub(crate) const BODY_BYTES_PER_TOKEN: usize = 16;
/// Bodies held by all connections together.
pub(crate) const BODIES_BYTES: usize = 1024 * 1024 * 1024;
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
/// Connections beyond those that may still read why they are turned away.
pub(crate) const CONNECTIONS_TURNED_AWAY: usize = 64;
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
/// Nesting of a JSON body.
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
/// A request may wait for a slot for this long.
pub(crate) const QUEUE_TIME: Duration = Duration::from_secs(600);
/// Stop strings, and the bytes of one.
pub(crate) const STOP_STRINGS: usize = 4;
/// Bytes of one stop string.
pub(crate) const STOP_BYTES: usize = 1024;
/// Stop token ids.
pub(crate) const STOP_TOKENS: usize = 64;
/// Entries of `logit_bias`.
pub(crate) const LOGIT_BIAS: usize = 1024;

/// Body limit for a context of `tokens`.
pub(crate) fn body_bytes(tokens: usize) -> usize {
    BODY_BYTES_MIN.max(BODY_BYTES_PER_TOKEN * tokens)
}

/// The table that `--limits` prints.
pub(crate) fn table(context: usize) -> String {
    let seconds = |d: Duration| format!("{} s", d.as_secs_f32());
    let rows: [(&str, String); 27] = [
        ("request line", format!("{URI_BYTES} B")),
        ("header block", format!("{HEAD_BYTES} B")),
        ("headers", HEADERS.to_string()),
        ("body", format!("{} B", body_bytes(context))),
        ("bodies of all connections", format!("{BODIES_BYTES} B")),
        ("chunk extensions, trailers", format!("{CHUNK_EXTRA_BYTES} B each")),
        ("header read", seconds(HEAD_TIME)),
        ("body idle", seconds(BODY_IDLE_TIME)),
        ("body total", seconds(BODY_TIME)),
        ("idle keep-alive", seconds(KEEP_ALIVE_TIME)),
        ("requests per connection", REQUESTS_PER_CONNECTION.to_string()),
        ("connections", format!("{CONNECTIONS} + {CONNECTIONS_RESERVED} for /livez and /metrics")),
        ("pipelined bytes held", format!("{PIPELINE_BYTES} B")),
        ("drain after an early answer", format!("{DRAIN_BYTES} B, {}", seconds(DRAIN_TIME))),
        ("output buffer per connection", format!("{STREAM_BUFFER_BYTES} B")),
        ("stalled reader", seconds(STALL_TIME)),
        ("stream headers after", seconds(STREAM_HEADERS_TIME)),
        ("shutdown", seconds(SHUTDOWN_TIME)),
        ("JSON depth", JSON_DEPTH.to_string()),
        ("JSON values", JSON_VALUES.to_string()),
        ("messages", MESSAGES.to_string()),
        ("tools", TOOLS.to_string()),
        ("prompts", PROMPTS.to_string()),
        ("choices per prompt", CHOICES.to_string()),
        ("stop strings", format!("{STOP_STRINGS} of {STOP_BYTES} B, {STOP_TOKENS} ids")),
        ("logit_bias entries", LOGIT_BIAS.to_string()),
        ("prompt", format!("{} tokens", context - 1)),
    ];
    rows.iter().map(|(name, value)| format!("{name:<30}{value}\n")).collect()
}
