//! Flags of the HTTP front: where it listens, who may ask, and how much a client may send or leave lying.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::bench::options::within;
use crate::memory::SizeFlag;
use crate::serve::cors::Origins;
use crate::serve::{Aliases, Bounds, api, limits, params};

/// The longest time that a flag may ask for: a day.
const SECONDS_MAX: f64 = 86_400.0;
/// Connections that can be asked for.
const CONNECTIONS_MAX: usize = 65_536;
/// Most bytes of a request line or a header block that can be asked for, and most headers.
const HEAD_BYTES_MAX: usize = 1 << 20;
const HEADERS_MAX: usize = 4096;

/// Two times of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BodyTimes {
    /// Between two bytes.
    pub idle: Duration,
    /// From first to last.
    pub total: Duration,
}

/// Flags of the front.
#[derive(Clone, Debug, Args)]
pub struct HttpFlags {
    /// Where to listen: a host name or address, unix:PATH for a socket in the file system, or several with commas between.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", value_delimiter = ',')]
    pub host: Vec<String>,
    /// Port to listen on; 0 = any free one, for each host its own.
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// Every path is also found behind this one, such as /llm.
    #[arg(long, value_name = "PATH", default_value = "", value_parser = prefix)]
    pub api_prefix: String,
    /// A key that lets clients in, all but to /health, /livez, /version and /metrics; may be repeated, and any one does.
    #[arg(long, value_name = "KEY", env = "ENGINE_API_KEY", hide_env_values = true)]
    pub api_key: Vec<String>,
    /// A file of such keys, one per line; read again on SIGHUP.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Ask for a key at /metrics too.
    #[arg(long)]
    pub metrics_auth: bool,
    /// Further names under which /metrics says what it says, of `vllm` and `llamacpp`; an empty list = none.
    #[arg(long, value_name = "LIST", default_value = "vllm,llamacpp", value_parser = Aliases::parse)]
    pub metrics_aliases: Aliases,
    /// Do not show on /slots what every slot is at.
    #[arg(long)]
    pub no_slots: bool,
    /// Tell the path of the model on /props instead of its file's name alone.
    #[arg(long)]
    pub expose_paths: bool,
    /// Leave `timings` and `speculation` out of all answers.
    #[arg(long)]
    pub no_response_stats: bool,
    /// Send an event of a stream for every token, where it has text, and not one for every step.
    #[arg(long)]
    pub stream_per_token: bool,
    /// Seconds after which a request is answered with what it has, its time in the queue included [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub request_timeout: Option<Duration>,
    /// Pages of which origins may read answers: *, or a list of origins, in which localhost is every port of this machine.
    #[arg(long, value_name = "ORIGIN", default_value = "*", value_delimiter = ',')]
    pub cors_origins: Vec<String>,
    /// Answer clients that have closed their sending side; without it they count as gone.
    #[arg(long)]
    pub allow_half_close: bool,
    /// Longest request line, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = limits::URI_BYTES, value_parser = within(64, HEAD_BYTES_MAX))]
    pub http_max_uri: usize,
    /// Longest block of headers, request line included, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = limits::HEAD_BYTES, value_parser = within(128, HEAD_BYTES_MAX))]
    pub http_max_header_bytes: usize,
    /// Most headers of a request.
    #[arg(long, value_name = "N", default_value_t = limits::HEADERS, value_parser = within(1, HEADERS_MAX))]
    pub http_max_headers: usize,
    /// Longest body, decoded: bytes, or with a unit (64MiB) [default: 16 bytes for each token of the context, at least 32MiB]
    #[arg(long, value_name = "SIZE", value_parser = SizeFlag::parse)]
    pub http_max_body: Option<SizeFlag>,
    /// Seconds from the first byte of a request to the end of its headers.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub http_header_timeout: Duration,
    /// Seconds between two bytes of a body, and for all of it.
    #[arg(long, value_name = "IDLE/TOTAL", default_value = "30/600", value_parser = body_times)]
    pub http_body_timeout: BodyTimes,
    /// Seconds that a connection may be idle between two requests.
    #[arg(long, value_name = "SECONDS", default_value = "75", value_parser = seconds)]
    pub http_keepalive: Duration,
    /// Requests of one connection, after which it is closed.
    #[arg(long, value_name = "N", default_value_t = limits::REQUESTS_PER_CONNECTION as usize, value_parser = within(1, u32::MAX as usize))]
    pub http_max_requests: usize,
    /// Connections that may do everything at once; a few more reach /livez and /metrics.
    #[arg(long, value_name = "N", default_value_t = limits::CONNECTIONS, value_parser = within(1, CONNECTIONS_MAX))]
    pub http_max_conns: usize,
    /// Bodies of all requests together that are being read or wait: bytes, or with a unit [default: 1GiB, or one body
    /// where that is longer]
    #[arg(long, value_name = "SIZE", value_parser = SizeFlag::parse)]
    pub queue_bytes: Option<SizeFlag>,
    /// What a client may leave unread of its stream before it pauses: bytes, or with a unit [default: 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = SizeFlag::parse)]
    pub stream_buffer: Option<SizeFlag>,
    /// Seconds in the queue after which the headers of a stream go out.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub stream_headers_after: Duration,
    /// Seconds of silence after which a stream gets a comment, unless its request says otherwise; -1 = never.
    #[arg(long, value_name = "SECONDS", default_value_t = api::PING_SECONDS as i64, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..=params::PING_SECONDS_MAX))]
    pub sse_ping_interval: i64,
    /// Seconds after which a client that reads nothing is dropped.
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    pub stream_stall_timeout: Duration,
    /// Seconds that running requests may take to finish after a signal.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub drain_timeout: Duration,
}

impl HttpFlags {
    /// Values that contradict each other.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.api_key.iter().any(String::is_empty) {
            return Err("--api-key (or ENGINE_API_KEY) is empty; leave it out to serve without keys".to_owned());
        }
        if self.host.iter().any(String::is_empty) {
            return Err("--host has an empty part; give hosts with single commas between".to_owned());
        }
        if self.http_max_header_bytes < self.http_max_uri {
            return Err(format!(
                "--http-max-header-bytes {} holds no request line of --http-max-uri {}; give at least as much",
                self.http_max_header_bytes, self.http_max_uri
            ));
        }
        if let (Some(all), Some(one)) = (&self.queue_bytes, &self.http_max_body)
            && all.bytes < one.bytes
        {
            let (all, one) = (&all.typed, &one.typed);
            return Err(format!("--queue-bytes {all} holds no body of --http-max-body {one}; give at least as much"));
        }
        self.origins().map(drop)
    }

    /// Whose pages may read answers.
    ///
    /// # Errors
    /// What is no origin.
    pub fn origins(&self) -> Result<Origins, String> {
        Origins::parse(&self.cors_origins)
    }

    /// Bounds of the front under these flags; what other flags say is left at its default.
    pub fn bounds(&self) -> Bounds {
        let size = |flag: &Option<SizeFlag>| flag.as_ref().map(|flag| flag.bytes);
        let base = Bounds::default();
        Bounds {
            connections: self.http_max_conns,
            requests: self.http_max_requests as u32,
            uri_bytes: self.http_max_uri,
            head_bytes: self.http_max_header_bytes,
            headers: self.http_max_headers,
            body_bytes: size(&self.http_max_body),
            bodies_bytes: size(&self.queue_bytes),
            head_time: self.http_header_timeout,
            body_idle_time: self.http_body_timeout.idle,
            body_time: self.http_body_timeout.total,
            keep_alive_time: self.http_keepalive,
            stall_time: self.stream_stall_timeout,
            request_time: self.request_timeout,
            shutdown_time: self.drain_timeout,
            stream_buffer: size(&self.stream_buffer).unwrap_or(base.stream_buffer),
            stream_headers_time: self.stream_headers_after,
            ..base
        }
    }
}

/// A time of more than nothing, in seconds with or without a fraction.
///
/// # Errors
/// What is expected.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(n) if n > 0.0 && n <= SECONDS_MAX => Ok(Duration::from_secs_f64(n)),
        _ => Err(format!("expected seconds above 0 and at most {SECONDS_MAX}")),
    }
}

fn body_times(text: &str) -> Result<BodyTimes, String> {
    let (idle, total) = text.split_once('/').ok_or("expected two times in seconds, such as 30/600")?;
    let times = BodyTimes { idle: seconds(idle)?, total: seconds(total)? };
    if times.total < times.idle {
        return Err("the time for a whole body is shorter than the time between two of its bytes".to_owned());
    }
    Ok(times)
}

fn prefix(text: &str) -> Result<String, String> {
    let part = |part: &str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
        !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain)
    };
    match text.strip_prefix('/') {
        Some(rest) if rest.split('/').all(part) => Ok(text.to_owned()),
        None if text.is_empty() => Ok(String::new()),
        _ => Err("expected a path such as /llm: letters, digits and - . _ ~, no slash at its end".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::LowArgs;

    fn flags(line: &str) -> Result<HttpFlags, String> {
        let words = std::iter::once("engine-serve").chain(line.split_whitespace()).map(Into::into);
        Ok(LowArgs::parse_line(words).map_err(|e| e.to_string())?.resolve()?.low.http)
    }

    #[test]
    fn without_flags_the_bounds_are_the_constants() {
        assert_eq!(flags("").unwrap().bounds(), Bounds::default());
    }

    #[test]
    fn each_flag_sets_its_bound() {
        let bounds = flags(
            "--http-max-uri 100 --http-max-header-bytes 4096 --http-max-headers 7 --http-max-body 3MiB --queue-bytes 9MiB \
             --http-header-timeout 0.5 --http-body-timeout 1.5/9 --http-keepalive 2 --http-max-requests 3 \
             --http-max-conns 5 --stream-buffer 64KiB --stream-headers-after 0.25 --stream-stall-timeout 4 --drain-timeout 6 \
             --request-timeout 0.75",
        );
        let expected = Bounds {
            connections: 5,
            requests: 3,
            uri_bytes: 100,
            head_bytes: 4096,
            headers: 7,
            body_bytes: Some(3 << 20),
            bodies_bytes: Some(9 << 20),
            head_time: Duration::from_millis(500),
            body_idle_time: Duration::from_millis(1500),
            body_time: Duration::from_secs(9),
            keep_alive_time: Duration::from_secs(2),
            stall_time: Duration::from_secs(4),
            request_time: Some(Duration::from_millis(750)),
            shutdown_time: Duration::from_secs(6),
            stream_buffer: 64 << 10,
            stream_headers_time: Duration::from_millis(250),
            ..Bounds::default()
        };
        assert_eq!(bounds.unwrap().bounds(), expected);
        let many = flags("--host ::1,unix:s,h --api-prefix /a/b --cors-origins localhost,https://a").unwrap();
        assert_eq!((many.host.len(), many.api_prefix.as_str(), many.cors_origins.len()), (3, "/a/b", 2));
    }

    #[test]
    fn values_that_cannot_be_met_are_refused() {
        for line in [
            "--host=",
            "--host a,,b",
            "--api-prefix llm",
            "--api-prefix /llm/",
            "--api-prefix /",
            "--api-prefix /a?b",
            "--api-prefix /..",
            "--cors-origins=",
            "--cors-origins *,localhost",
            "--http-max-uri 10",
            "--http-max-uri 4096 --http-max-header-bytes 1024",
            "--http-max-headers 0",
            "--http-max-body 0",
            "--http-max-body 2MiB --queue-bytes 1MiB",
            "--http-header-timeout 0",
            "--http-header-timeout -1",
            "--http-header-timeout nan",
            "--http-header-timeout 86401",
            "--http-body-timeout 30",
            "--http-body-timeout 30/20",
            "--http-max-requests 0",
            "--http-max-conns 0",
            "--stream-buffer lots",
            "--stream-headers-after 0",
            "--sse-ping-interval -2",
            "--sse-ping-interval 86401",
            "--request-timeout 0",
            "--drain-timeout 0",
        ] {
            assert!(flags(line).is_err(), "{line} was accepted");
        }
    }
}
