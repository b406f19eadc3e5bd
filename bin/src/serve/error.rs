//! Every error a client can see: one constructor per situation, so that status, type and code stay together.

use std::time::Duration;

use engine::api::AdmitError;
use serde_json::{Value, json};

/// An error answer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ApiError {
    pub status: u16,
    pub kind: &'static str,
    pub code: &'static str,
    pub message: String,
    /// Path of the field at fault, such as `messages[3].content`.
    pub param: Option<String>,
    /// Prompt tokens and context of a length error.
    pub lengths: Option<Lengths>,
    /// How much of a model is loaded, in percent.
    pub progress: Option<u8>,
    /// Seconds for `Retry-After`.
    pub retry_after: Option<u8>,
    /// `x-should-retry`, where SDKs would guess wrong.
    pub should_retry: Option<bool>,
    /// `Allow` of a 405.
    pub allow: Option<&'static str>,
}

/// Tokens of a prompt that is too long, and what there is room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lengths {
    pub prompt: u32,
    /// The prompt was counted to its end.
    pub exact: bool,
    pub context: u32,
}

/// Why requests are refused, see [`ApiError::rejection`].
pub(crate) const REJECTIONS: [&str; 7] = ["queue_full", "draining", "loading", "too_long", "invalid", "auth", "limit"];

const INVALID: &str = "invalid_request_error";

impl ApiError {
    fn new(status: u16, kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            code,
            message: message.into(),
            param: None,
            lengths: None,
            progress: None,
            retry_after: None,
            should_retry: None,
            allow: None,
        }
    }

    fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub(crate) fn invalid_json(message: impl Into<String>) -> Self {
        Self::new(400, INVALID, "invalid_json", message)
    }

    pub(crate) fn invalid_type(param: &str, expected: &str, found: &str) -> Self {
        Self::new(400, INVALID, "invalid_type", format!("{param}: expected {expected}, found {found}")).at(param)
    }

    pub(crate) fn invalid_value(param: &str, message: impl AsRef<str>) -> Self {
        Self::new(400, INVALID, "invalid_value", format!("{param}: {}", message.as_ref())).at(param)
    }

    pub(crate) fn missing(param: &str) -> Self {
        Self::new(400, INVALID, "missing_required_parameter", format!("{param} is required")).at(param)
    }

    pub(crate) fn unsupported_parameter(param: &str) -> Self {
        let message = format!("{param} is not supported by this server; leave it out");
        Self::new(400, INVALID, "unsupported_parameter", message).at(param)
    }

    /// A field of the body that nobody knows, where that is not let pass.
    pub(crate) fn unknown_parameter(param: &str) -> Self {
        let message =
            format!("{} is not known here, and this server takes no unknown fields (--strict-params)", quote(param));
        Self::new(400, INVALID, "unknown_parameter", message).at(shown(param))
    }

    /// A field of an object all of whose fields are known.
    pub(crate) fn unknown_field(param: &str, known: &[&str]) -> Self {
        let message = format!("{param} is not known; the fields here are {}", known.join(", "));
        Self::new(400, INVALID, "unsupported_parameter", message).at(param)
    }

    pub(crate) fn unsupported_value(param: &str, message: impl AsRef<str>) -> Self {
        Self::new(400, INVALID, "unsupported_value", format!("{param}: {}", message.as_ref())).at(param)
    }

    /// 400 with a code of its own, for the message rules.
    pub(crate) fn message_rule(code: &'static str, param: &str, message: impl AsRef<str>) -> Self {
        Self::new(400, INVALID, code, format!("{param}: {}", message.as_ref())).at(param)
    }

    /// What a request asks for leaves no answer; nobody but who asked can change that.
    pub(crate) fn contradiction() -> Self {
        let message = "the form and the bans of this request leave no token that could come next; loosen one of them";
        Self::new(400, INVALID, "invalid_value", message)
    }

    /// A form leads to where no text has it, which nobody could see before. Without bans beside it, it alone is at fault.
    pub(crate) fn dead_end() -> Self {
        let message = "the form that this request asks for has come to a place behind which no text has it; correct the \
                       schema or grammar";
        Self::new(400, INVALID, "invalid_schema", message)
    }

    /// A schema, expression or grammar that cannot be compiled.
    pub(crate) fn invalid_schema(param: &str, message: &str) -> Self {
        Self::new(400, INVALID, "invalid_schema", format!("{param}: {message}")).at(param)
    }

    /// One that would take too much to compile.
    pub(crate) fn schema_too_complex(param: &str, message: impl AsRef<str>) -> Self {
        Self::new(400, INVALID, "schema_too_complex", format!("{param}: {}", message.as_ref())).at(param)
    }

    pub(crate) fn template(message: &str, param: &str) -> Self {
        let cut: String = message.chars().take(512).collect();
        Self::new(400, INVALID, "template_error", format!("chat template: {cut}")).at(param)
    }

    /// Why this model cannot be offered tools.
    pub(crate) fn tools_unsupported(why: &str) -> Self {
        let message = format!("tools: {why}");
        Self::new(400, INVALID, "tools_unsupported", message).at("tools")
    }

    pub(crate) fn context_length(prompt: usize, context: usize, param: &str) -> Self {
        Self::too_long(true, prompt, context, param)
    }

    /// The same for a prompt that was not counted to its end.
    pub(crate) fn context_length_at_least(prompt: usize, context: usize, param: &str) -> Self {
        Self::too_long(false, prompt, context, param)
    }

    fn too_long(exact: bool, prompt: usize, context: usize, param: &str) -> Self {
        let counted = if exact { "" } else { "at least " };
        let message = format!(
            "This model's maximum context length is {context} tokens, but the request has {counted}{prompt} prompt \
             tokens."
        );
        let mut error = Self::new(400, INVALID, "context_length_exceeded", message).at(param);
        error.lengths = Some(Lengths { prompt: prompt as u32, exact, context: context as u32 });
        error
    }

    pub(crate) fn strategy_unavailable(message: impl Into<String>) -> Self {
        Self::new(400, INVALID, "strategy_unavailable", message).at("speculative.strategy")
    }

    pub(crate) fn unauthorized() -> Self {
        let message = "a valid API key is required: Authorization: Bearer KEY, x-api-key or api-key";
        Self::new(401, "authentication_error", "invalid_api_key", message)
    }

    pub(crate) fn unknown_path(message: impl Into<String>) -> Self {
        Self::new(404, "not_found_error", "unknown_path", message)
    }

    pub(crate) fn model_not_found(name: &str) -> Self {
        let message = format!("the model {} is not served here; GET /v1/models lists what is", quote(name));
        Self::new(404, INVALID, "model_not_found", message).at("model")
    }

    pub(crate) fn method_not_allowed(allow: &'static str) -> Self {
        let mut error = Self::new(405, INVALID, "method_not_allowed", format!("this path allows {allow}"));
        error.allow = Some(allow);
        error
    }

    pub(crate) fn timeout(what: &str) -> Self {
        Self::new(408, "timeout_error", "request_timeout", format!("{what} did not arrive in time"))
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        Self::new(413, INVALID, "request_too_large", format!("the body is larger than {limit} bytes"))
    }

    pub(crate) fn uri_too_long(limit: usize) -> Self {
        Self::new(414, INVALID, "uri_too_long", format!("the request line is longer than {limit} bytes"))
    }

    pub(crate) fn media_type() -> Self {
        Self::new(415, INVALID, "unsupported_media_type", "the body must be UTF-8 JSON, not multipart/form-data")
    }

    pub(crate) fn encoding(found: &str) -> Self {
        let message = format!("Content-Encoding {} is not supported; send the body as it is", quote(found));
        Self::new(415, INVALID, "unsupported_encoding", message)
    }

    pub(crate) fn expectation() -> Self {
        Self::new(417, INVALID, "expectation_failed", "the only expectation understood is 100-continue")
    }

    pub(crate) fn headers_too_large(bytes: usize, count: usize) -> Self {
        let message = format!("the header block is longer than {bytes} bytes or has more than {count} headers");
        Self::new(431, INVALID, "headers_too_large", message)
    }

    pub(crate) fn bad_request(rule: &str) -> Self {
        Self::new(400, INVALID, "bad_request", format!("malformed request: {rule}"))
    }

    pub(crate) fn queue_full(retry_after: u8) -> Self {
        let mut error = Self::new(429, "rate_limit_error", "queue_full", "too many requests wait already");
        error.retry_after = Some(retry_after);
        error.should_retry = Some(true);
        error
    }

    /// Large answers wait for readers that are slow.
    pub(crate) fn answers_full() -> Self {
        let message = "too many large answers wait for their clients to read them";
        Self { message: message.to_owned(), ..Self::queue_full(1) }
    }

    pub(crate) fn engine(message: impl Into<String>) -> Self {
        let mut error = Self::new(500, "server_error", "engine_error", message);
        error.should_retry = Some(false);
        error
    }

    pub(crate) fn not_implemented(message: impl Into<String>) -> Self {
        let mut error = Self::new(501, "not_supported_error", "not_implemented", message);
        error.should_retry = Some(false);
        error
    }

    fn unavailable(code: &'static str, message: &str, retry_after: u8) -> Self {
        let mut error = Self::new(503, "unavailable_error", code, message);
        error.retry_after = Some(retry_after);
        error.should_retry = Some(true);
        error
    }

    /// `progress` in percent.
    pub(crate) fn loading(progress: u8) -> Self {
        let error = Self::unavailable("loading_model", "the model is being loaded", 5);
        Self { progress: Some(progress), ..error }
    }

    pub(crate) fn draining() -> Self {
        Self::unavailable("draining", "the server is shutting down", 5)
    }

    pub(crate) fn queue_timeout(waited: Duration) -> Self {
        let message = format!("the request has waited {} s for a slot and none became free", waited.as_secs_f32());
        Self::unavailable("queue_timeout", &message, 30)
    }

    /// A request of which the other stage has lost what it had.
    pub(crate) fn stage_lost() -> Self {
        let message = "the connection to the other stage of the model was lost, and with it what was computed for this \
                       request; send it again";
        Self::unavailable("stage_lost", message, 5)
    }

    /// The other stage of the model is away; `why` is what is known.
    pub(crate) fn stage_unavailable(why: &str) -> Self {
        Self::unavailable("stage_unavailable", &format!("the other stage of the model cannot be reached: {why}"), 5)
    }

    /// For health checks after the engine's end; requests get [`Self::engine`].
    pub(crate) fn dead() -> Self {
        Self::unavailable("engine_error", "the engine has ended", 5)
    }

    pub(crate) fn no_slot() -> Self {
        Self::unavailable("no_slot", "too many connections", 1)
    }

    /// The one place where the engine's refusals become statuses.
    pub(crate) fn from_admit(error: &AdmitError, param: &str) -> Self {
        match error {
            AdmitError::PromptTooLong { prompt, context } => Self::context_length(*prompt, *context, param),
            AdmitError::EmptyPrompt => Self::invalid_value(param, "the prompt is empty"),
            AdmitError::BadToken { .. } => Self::invalid_value(param, error.to_string()),
            AdmitError::QueueFull { .. } => Self::queue_full(1),
            AdmitError::StrategyUnavailable { .. } => Self::strategy_unavailable(error.to_string()),
            AdmitError::Draining => Self::draining(),
        }
    }

    /// Why a request that gets this answer was refused, in one word; `None` where it was not its fault or the server's
    /// state that refused it, but something that failed.
    pub(crate) fn rejection(&self) -> Option<&'static str> {
        Some(match self.code {
            "queue_full" => "queue_full",
            "draining" => "draining",
            "loading_model" => "loading",
            "context_length_exceeded" => "too_long",
            "invalid_api_key" => "auth",
            "request_too_large" | "uri_too_long" | "headers_too_large" | "request_timeout" | "no_slot" => "limit",
            _ if (400..500).contains(&self.status) || self.status == 501 => "invalid",
            _ => return None,
        })
    }

    /// OpenAI's error object.
    pub(crate) fn body(&self) -> Value {
        let mut error = json!({
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        });
        if let Some(lengths) = self.lengths {
            error["n_prompt_tokens"] = lengths.prompt.into();
            error["n_ctx"] = lengths.context.into();
        }
        if let Some(progress) = self.progress {
            error["progress"] = (f64::from(progress) / 100.0).into();
        }
        json!({ "error": error })
    }
}

/// At most 64 characters of client input, control characters replaced, in quotes.
pub(crate) fn quote(input: &str) -> String {
    format!("'{}'", shown(input))
}

/// The same without quotes, for paths.
pub(crate) fn shown(input: &str) -> String {
    let mut out = String::new();
    for (i, c) in input.chars().enumerate() {
        if i == 64 {
            out.push('…');
            break;
        }
        out.push(if c.is_control() { '\u{fffd}' } else { c });
    }
    out
}
