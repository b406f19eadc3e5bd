//! The paths: what each is, who may call it, and what it answers to the wrong method.

use crate::serve::error::ApiError;
use crate::serve::http::Method;

/// What a path leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    Health,
    /// `/readyz`: also 503 while the queue is full.
    Ready,
    Live,
    Version,
    Models,
    Model(String),
    Metrics,
    OpenApi,
    /// The page for people.
    Page,
    Props,
    Slots,
    Chat,
    Completions,
    Messages,
    Responses,
    /// Tokens of the prompt that a request would have.
    CountChat,
    CountMessages,
    CountResponses,
    Tokenize,
    Detokenize,
    ApplyTemplate,
}

impl Route {
    /// Closed label set of the metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Health | Self::Ready => "/health",
            Self::Live => "/livez",
            Self::Version => "/version",
            Self::Models | Self::Model(_) => "/v1/models",
            Self::Metrics => "/metrics",
            Self::OpenApi => "/openapi.json",
            Self::Page => "/",
            Self::Props => "/props",
            Self::Slots => "/slots",
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
            Self::CountChat => "/v1/chat/completions/input_tokens",
            Self::CountMessages => "/v1/messages/count_tokens",
            Self::CountResponses => "/v1/responses/input_tokens",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
            Self::ApplyTemplate => "/apply-template",
        }
    }

    /// GET (and HEAD), or POST.
    pub(crate) fn is_get(&self) -> bool {
        match self {
            Self::Health | Self::Ready | Self::Live | Self::Version => true,
            Self::Models | Self::Model(_) | Self::Metrics | Self::OpenApi => true,
            Self::Page | Self::Props | Self::Slots => true,
            Self::Chat | Self::Completions | Self::Messages | Self::Responses => false,
            Self::CountChat | Self::CountMessages | Self::CountResponses => false,
            Self::Tokenize | Self::Detokenize | Self::ApplyTemplate => false,
        }
    }

    /// Whether a key is asked for where keys are configured, whatever else is configured.
    pub(crate) fn needs_key(&self) -> bool {
        !matches!(
            self,
            Self::Health | Self::Ready | Self::Live | Self::Version | Self::Metrics | Self::OpenApi | Self::Page
        )
    }

    /// 405 unless the method fits.
    pub(crate) fn check_method(&self, method: Method) -> Result<(), ApiError> {
        match (self.is_get(), method) {
            (true, Method::Post) if *self == Self::Props => Err(ApiError::not_implemented(
                "POST /props is not implemented; settings are flags of the server".to_owned(),
            )),
            (true, Method::Get | Method::Head) | (false, Method::Post) => Ok(()),
            (true, _) => Err(ApiError::method_not_allowed("GET, HEAD, OPTIONS")),
            (false, _) => Err(ApiError::method_not_allowed("POST, OPTIONS")),
        }
    }
}

const TABLE: &[(&str, Route)] = &[
    ("/health", Route::Health),
    ("/v1/health", Route::Health),
    ("/readyz", Route::Ready),
    ("/livez", Route::Live),
    ("/ping", Route::Live),
    ("/version", Route::Version),
    ("/v1/models", Route::Models),
    ("/models", Route::Models),
    ("/metrics", Route::Metrics),
    ("/openapi.json", Route::OpenApi),
    ("/", Route::Page),
    ("/index.html", Route::Page),
    ("/props", Route::Props),
    ("/v1/props", Route::Props),
    ("/slots", Route::Slots),
    ("/v1/chat/completions", Route::Chat),
    ("/chat/completions", Route::Chat),
    ("/v1/completions", Route::Completions),
    ("/completions", Route::Completions),
    ("/v1/messages", Route::Messages),
    ("/messages", Route::Messages),
    ("/v1/messages/count_tokens", Route::CountMessages),
    ("/messages/count_tokens", Route::CountMessages),
    ("/v1/responses", Route::Responses),
    ("/responses", Route::Responses),
    ("/v1/responses/input_tokens", Route::CountResponses),
    ("/responses/input_tokens", Route::CountResponses),
    ("/v1/chat/completions/input_tokens", Route::CountChat),
    ("/tokenize", Route::Tokenize),
    ("/v1/tokenize", Route::Tokenize),
    ("/detokenize", Route::Detokenize),
    ("/v1/detokenize", Route::Detokenize),
    ("/apply-template", Route::ApplyTemplate),
];

/// Paths of other servers' APIs that clients may try, each with what to use instead. `*` stands for everything below.
const NOT_IMPLEMENTED: &[(&str, &str)] = &[
    ("/completion", "use POST /v1/completions"),
    ("/infill", "use POST /v1/completions with the model's own fill-in-the-middle markup"),
    ("/v1/embeddings", "this server generates text only"),
    ("/embeddings", "this server generates text only"),
    ("/embedding", "this server generates text only"),
    ("/v1/rerank", "this server generates text only"),
    ("/rerank", "this server generates text only"),
    ("/reranking", "this server generates text only"),
    ("/v1/score", "this server generates text only"),
    ("/v1/audio*", "this server generates text only"),
    ("/v1/images*", "this server generates text only"),
    ("/v1/moderations", "this server generates text only"),
    ("/v1/files*", "send the content in the request"),
    ("/v1/batches*", "send the requests one by one; they are batched here"),
    ("/v1/conversations*", "keep the conversation at the client and send it whole"),
    ("/v1/responses*", "keep the conversation at the client and send it whole"),
    ("/responses*", "keep the conversation at the client and send it whole"),
    ("/v1/messages/batches*", "send the requests one by one; they are batched here"),
    ("/messages/batches*", "send the requests one by one; they are batched here"),
    ("/v1/complete", "use POST /v1/completions"),
    ("/v1/chat/completions/control", "use POST /v1/chat/completions"),
    ("/slots*", "GET /slots shows what every slot is at"),
    ("/lora-adapters", "adapters are not supported"),
    ("/v1/stream*", "set stream in the request"),
    ("/models/load", "one model is served, chosen at start"),
    ("/models/unload", "one model is served, chosen at start"),
    ("/models/sse", "one model is served, chosen at start"),
];

/// What of `path` stands behind the prefix that all paths may have; paths without it are served too.
pub(crate) fn behind<'a>(prefix: &str, path: &'a str) -> &'a str {
    match path.strip_prefix(prefix) {
        Some("") => "/",
        Some(rest) if rest.starts_with('/') => rest,
        _ => path,
    }
}

/// Finds the route of a decoded path, or the 404 or 501 that it deserves.
pub(crate) fn find(path: &str) -> Result<Route, ApiError> {
    let trimmed = if path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path };
    if let Some(route) = known(trimmed) {
        return Ok(route);
    }
    for (pattern, instead) in NOT_IMPLEMENTED {
        let hit = match pattern.strip_suffix('*') {
            Some(prefix) => trimmed.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            None => trimmed == *pattern,
        };
        if hit {
            return Err(ApiError::not_implemented(format!("{pattern} is not implemented; {instead}")));
        }
    }
    if let Some(id) = trimmed.strip_prefix("/v1/models/").or_else(|| trimmed.strip_prefix("/models/")) {
        return Ok(Route::Model(id.to_owned()));
    }
    let doubled = trimmed.strip_prefix("/v1").filter(|rest| rest.starts_with("/v1/") && known(rest).is_some());
    let prefixed = format!("/v1{trimmed}");
    Err(ApiError::unknown_path(match doubled {
        Some(rest) => format!("unknown path; the base URL probably has /v1 twice: {rest} exists"),
        None if known(&prefixed).is_some() => format!("unknown path; {prefixed} exists"),
        None => "unknown path".to_owned(),
    }))
}

/// Every path that is served under a fixed name; of the names of a route its own is the first.
pub(crate) fn served() -> impl Iterator<Item = (&'static str, Route)> {
    TABLE.iter().map(|(path, route)| (*path, route.clone()))
}

/// Every path that is known and not implemented; one that ends in `*` stands for everything below it too.
pub(crate) fn missing() -> impl Iterator<Item = &'static str> {
    NOT_IMPLEMENTED.iter().map(|(pattern, _)| *pattern)
}

fn known(path: &str) -> Option<Route> {
    TABLE.iter().find(|(p, _)| *p == path).map(|(_, route)| route.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        assert_eq!(find("/v1/models/org/m"), Ok(Route::Model("org/m".into())));
        assert_eq!(find("/v1/chat/completions/"), Ok(Route::Chat));
        assert_eq!(find("/nope").unwrap_err().code, "unknown_path");
        assert!(find("/v1/v1/models").unwrap_err().message.contains("/v1/models exists"));
        assert_eq!(find("/v1/audio/speech").unwrap_err().status, 501);
        assert_eq!(find("/v1/embeddings").unwrap_err().should_retry, Some(false));
        assert_eq!(find("/models/load").unwrap_err().status, 501);
        assert_eq!(
            (find("/"), find("/index.html"), find("/slots/")),
            (Ok(Route::Page), Ok(Route::Page), Ok(Route::Slots))
        );
        assert_eq!(find("/slots/0").unwrap_err().status, 501);
        assert!(Route::Props.check_method(Method::Post).is_err_and(|e| e.status == 501));
        assert_eq!(find("/v1/files/f/content").unwrap_err().status, 501);
        assert_eq!(find("/v1/filesystem").unwrap_err().status, 404);
        assert_eq!(find("/chat/completions/"), Ok(Route::Chat));
        assert!(find("/apply").unwrap_err().message == "unknown path");
        assert!(find("/v1/v1/nope").unwrap_err().message == "unknown path");
    }

    #[test]
    fn a_prefix_is_taken_off_whole() {
        for (prefix, path, rest) in [
            ("", "/health", "/health"),
            ("/llm", "/llm/health", "/health"),
            ("/llm", "/llm", "/"),
            ("/llm", "/llm/", "/"),
            ("/llm", "/llmx/health", "/llmx/health"),
            ("/llm", "/health", "/health"),
            ("/a/b", "/a/b/v1/models", "/v1/models"),
        ] {
            assert_eq!(behind(prefix, path), rest, "{prefix} {path}");
        }
    }

    #[test]
    fn methods() {
        assert!(Route::Chat.check_method(Method::Get).is_err_and(|e| e.status == 405 && e.allow.is_some()));
        assert!(Route::Health.check_method(Method::Head).is_ok());
    }
}
