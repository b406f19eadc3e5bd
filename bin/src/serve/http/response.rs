//! Answers: status, headers, body. Serialisation cannot fail.

use std::fmt::Write as _;

use serde::Serialize;

use crate::serve::error::ApiError;
use crate::serve::shapes::Shape;

/// A whole answer, before the connection adds its own headers.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// The error that it tells, in OpenAI's shape until [`Reply::in_shape`].
    pub error: Option<Box<ApiError>>,
}

impl Reply {
    /// JSON with a status.
    pub(crate) fn json(status: u16, body: &impl Serialize) -> Self {
        let headers = vec![("Content-Type", "application/json; charset=utf-8".to_owned())];
        // No body has keys but strings, or numbers that are not finite.
        Self { status, headers, body: serde_json::to_vec(body).expect("an answer serialises"), error: None }
    }

    /// Plain text, for clients that do not speak HTTP/1 and for metrics.
    pub(crate) fn text(status: u16, content_type: &str, body: impl Into<String>) -> Self {
        let headers = vec![("Content-Type", content_type.to_owned())];
        Self { status, headers, body: body.into().into_bytes(), error: None }
    }

    /// 204.
    pub(crate) fn empty() -> Self {
        Self { status: 204, headers: Vec::new(), body: Vec::new(), error: None }
    }

    /// Adds a header.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Why it refuses its request, if it does.
    pub(crate) fn rejection(&self) -> Option<&'static str> {
        self.error.as_ref().and_then(|error| error.rejection())
    }

    /// An error as its client knows errors.
    pub(crate) fn in_shape(mut self, shape: Shape, request_id: &str) -> Self {
        if let Some(error) = &self.error {
            self.status = shape.status(error.status);
            self.body = Self::json(self.status, &shape.body(error, request_id)).body;
        }
        self
    }
}

impl From<&ApiError> for Reply {
    fn from(error: &ApiError) -> Self {
        let mut reply = Self::json(error.status, &error.body());
        if let Some(seconds) = error.retry_after {
            reply = reply.with("Retry-After", seconds.clamp(1, 120).to_string());
        }
        if let Some(retry) = error.should_retry {
            reply = reply.with("x-should-retry", retry.to_string());
        }
        if let Some(allow) = error.allow {
            reply = reply.with("Allow", allow);
        }
        if error.status == 401 {
            reply = reply.with("WWW-Authenticate", "Bearer");
        }
        reply.error = Some(Box::new(error.clone()));
        reply
    }
}

/// How the end of an answer's body is known to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BodyEnd {
    Length(usize),
    Chunked,
    /// HTTP/1.0 stream: the body ends with the connection.
    Close,
    /// 204 and 304 have none.
    None,
}

/// Serialises a response head.
pub(crate) fn head(
    status: u16,
    headers: &[(&'static str, String)],
    common: &[(&'static str, String)],
    end: BodyEnd,
    close: bool,
) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {status} {}\r\n", reason(status));
    for (name, value) in headers.iter().chain(common) {
        // Values come from us or were checked to be visible ASCII; a line break would end the head early.
        debug_assert!(!value.bytes().any(|b| b == b'\r' || b == b'\n'), "line break in {name}");
        let _ = write!(out, "{name}: {value}\r\n");
    }
    match end {
        BodyEnd::Length(n) => {
            let _ = write!(out, "Content-Length: {n}\r\n");
        }
        BodyEnd::Chunked => out.push_str("Transfer-Encoding: chunked\r\n"),
        BodyEnd::Close | BodyEnd::None => {}
    }
    out.push_str(if close { "Connection: close\r\n\r\n" } else { "Connection: keep-alive\r\n\r\n" });
    out.into_bytes()
}

/// One HTTP chunk around `data`, which is not empty: an empty chunk would end the body.
pub(crate) fn chunk(data: &[u8], out: &mut Vec<u8>) {
    debug_assert!(!data.is_empty());
    out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// The chunk that ends a body.
pub(crate) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        529 => "Overloaded",
        _ => "Unknown",
    }
}
