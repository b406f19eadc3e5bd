//! The shapes in which errors are told: one error, told as the API that a client speaks tells it.

use serde_json::{Value, json};

use crate::serve::error::ApiError;

/// Whose form an error has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Shape {
    #[default]
    OpenAi,
    Anthropic,
}

impl Shape {
    /// Of a decoded path. `anthropic`: the request names a version of that API, which decides where nothing else does.
    pub(crate) fn of(path: &str, route: Result<(), &ApiError>, anthropic: bool) -> Self {
        let below = path.strip_prefix("/v1").unwrap_or(path);
        let messages = below.strip_prefix("/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let unknown = route.is_err_and(|error| error.status == 404);
        if messages || unknown && anthropic { Self::Anthropic } else { Self::OpenAi }
    }

    /// What an error's status is here.
    pub(crate) fn status(self, status: u16) -> u16 {
        match (self, status) {
            (Self::Anthropic, 429) => 529,
            (_, status) => status,
        }
    }

    /// An error's body.
    pub(crate) fn body(self, error: &ApiError, request_id: &str) -> Value {
        match self {
            Self::OpenAi => error.body(),
            Self::Anthropic => json!({
                "type": "error",
                "error": {
                    "type": anthropic_type(error.status),
                    "message": anthropic_message(error),
                    "details": {"error_code": error.code, "param": error.param},
                },
                "request_id": request_id,
            }),
        }
    }

    /// The event that tells an error in a stream.
    pub(crate) fn event(self, error: &ApiError, request_id: &str) -> Vec<u8> {
        let name = match self {
            Self::OpenAi => "",
            Self::Anthropic => "event: error\n",
        };
        format!("{name}data: {}\n\n", self.body(error, request_id)).into_bytes()
    }
}

fn anthropic_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        404 => "not_found_error",
        408 => "timeout_error",
        413 => "request_too_large",
        429 | 503 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    }
}

/// Clients look for these words to find out that a prompt is too long.
fn anthropic_message(error: &ApiError) -> String {
    match error.lengths {
        None => error.message.clone(),
        Some(lengths) => {
            let (least, most) = (if lengths.exact { "" } else { "at least " }, lengths.context.saturating_sub(1));
            format!("prompt is too long: {least}{} tokens > {most} maximum", lengths.prompt)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_decides_and_where_it_is_unknown_the_version() {
        let unknown = ApiError::unknown_path("unknown path");
        let missing = ApiError::not_implemented("no");
        for (path, route, anthropic, expected) in [
            ("/v1/messages", Ok(()), false, Shape::Anthropic),
            ("/messages/", Ok(()), false, Shape::Anthropic),
            ("/v1/messages/count_tokens", Ok(()), false, Shape::Anthropic),
            ("/v1/messages/batches/x", Err(&missing), false, Shape::Anthropic),
            ("/v1/messagesx", Err(&unknown), false, Shape::OpenAi),
            ("/v1/chat/completions", Ok(()), true, Shape::OpenAi),
            ("/nope", Err(&unknown), true, Shape::Anthropic),
            ("/nope", Err(&unknown), false, Shape::OpenAi),
            ("/v1/embeddings", Err(&missing), true, Shape::OpenAi),
        ] {
            assert_eq!(Shape::of(path, route, anthropic), expected, "{path}");
        }
    }

    #[test]
    fn every_status_has_a_type() {
        let told = |error: &ApiError| {
            let body = Shape::Anthropic.body(error, "req_1");
            assert_eq!((&body["type"], &body["request_id"]), (&json!("error"), &json!("req_1")));
            let kind = body["error"]["type"].as_str().unwrap().to_owned();
            (Shape::Anthropic.status(error.status), kind, body["error"]["details"]["error_code"].clone())
        };
        for (error, status, kind, code) in [
            (ApiError::missing("messages"), 400, "invalid_request_error", "missing_required_parameter"),
            (ApiError::unauthorized(), 401, "authentication_error", "invalid_api_key"),
            (ApiError::unknown_path("x"), 404, "not_found_error", "unknown_path"),
            (ApiError::method_not_allowed("POST"), 405, "invalid_request_error", "method_not_allowed"),
            (ApiError::timeout("x"), 408, "timeout_error", "request_timeout"),
            (ApiError::too_large(5), 413, "request_too_large", "request_too_large"),
            (ApiError::media_type(), 415, "invalid_request_error", "unsupported_media_type"),
            (ApiError::queue_full(1), 529, "overloaded_error", "queue_full"),
            (ApiError::engine("x"), 500, "api_error", "engine_error"),
            (ApiError::not_implemented("x"), 501, "api_error", "not_implemented"),
            (ApiError::draining(), 503, "overloaded_error", "draining"),
        ] {
            assert_eq!(told(&error), (status, kind.to_owned(), json!(code)));
        }
        let long = Shape::Anthropic.body(&ApiError::context_length(10, 9, "messages"), "");
        assert_eq!(long["error"]["message"], "prompt is too long: 10 tokens > 8 maximum");
        let long = Shape::Anthropic.body(&ApiError::context_length_at_least(10, 9, "messages"), "");
        assert_eq!(long["error"]["message"], "prompt is too long: at least 10 tokens > 8 maximum");
    }
}
