//! The checks before a body is read, in their order: OPTIONS, route, method, key, state, kind and size of the body.
//! GET is answered here, from facts the front holds, so that it works while `text` is busy.

use serde_json::json;

use crate::serve::auth::Keys;
use crate::serve::error::ApiError;
use crate::serve::http::head::Framing;
use crate::serve::http::{Head, Method, Reply};

use crate::serve::link::{Shared, State};
use crate::serve::routes::Route;
use crate::serve::{Show, info, openapi, page};

/// What a head leads to.
pub(crate) enum Decision {
    Answer(Reply),
    /// Read the body, then hand the request to `text`.
    Read(Route),
}

/// What the checks look at.
pub(crate) struct Gate<'a> {
    pub shared: &'a Shared,
    pub keys: &'a Keys,
    pub body_limit: usize,
    pub bodies_limit: usize,
    /// What is shown, and to whom.
    pub show: Show,
    /// Bytes of the bodies of all connections.
    pub bodies_bytes: usize,
    /// The connection is one of those kept for `/livez` and `/metrics`.
    pub reserved: bool,
    /// `text` takes no further request.
    pub queue_full: bool,
}

impl Gate<'_> {
    /// Runs the checks.
    ///
    /// # Errors
    /// The first one that fails.
    pub(crate) fn decide(&self, head: &Head, route: Result<Route, ApiError>) -> Result<Decision, ApiError> {
        if head.method == Method::Options {
            return Ok(Decision::Answer(preflight(head)));
        }
        if head.method == Method::Never {
            return Err(ApiError::method_not_allowed("GET, HEAD, POST, OPTIONS"));
        }
        let route = route?;
        route.check_method(head.method)?;
        let needs_key = route.needs_key() || (route == Route::Metrics && self.show.metrics_key);
        if needs_key && !self.keys.admit(head) {
            return Err(ApiError::unauthorized());
        }
        if self.reserved && !matches!(route, Route::Live | Route::Metrics) {
            return Err(ApiError::no_slot());
        }
        if head.expects_other {
            return Err(ApiError::expectation());
        }
        if route.is_get() {
            return self.answer_get(&route, &head.query).map(Decision::Answer);
        }
        match self.shared.state() {
            State::Loading => return Err(ApiError::loading(self.shared.progress.percent())),
            State::Draining => return Err(ApiError::draining()),
            State::Dead => return Err(ApiError::engine("the engine has ended")),
            State::Serving => {}
        }
        self.check_body(head)?;
        Ok(Decision::Read(route))
    }

    fn check_body(&self, head: &Head) -> Result<(), ApiError> {
        if let Some(coding) = head.header("content-encoding")
            && !coding.eq_ignore_ascii_case("identity")
        {
            return Err(ApiError::encoding(coding));
        }
        if head.header("content-type").is_some_and(|t| t.to_ascii_lowercase().starts_with("multipart/form-data")) {
            return Err(ApiError::media_type());
        }
        if let Framing::Length(n) = head.framing {
            if n > self.body_limit as u64 {
                return Err(ApiError::too_large(self.body_limit));
            }
            if self.bodies_bytes + n as usize > self.bodies_limit {
                return Err(ApiError::queue_full(1));
            }
        }
        Ok(())
    }

    fn answer_get(&self, route: &Route, query: &str) -> Result<Reply, ApiError> {
        let state = self.shared.state();
        let ok = || Reply::json(200, &json!({"status": "ok"}));
        match route {
            Route::Live if state == State::Dead => Err(ApiError::dead()),
            Route::Live => Ok(ok()),
            Route::Health | Route::Ready => match state {
                State::Loading => Err(ApiError::loading(self.shared.progress.percent())),
                State::Draining => Err(ApiError::draining()),
                State::Dead => Err(ApiError::dead()),
                State::Serving => match self.shared.outage.read().why() {
                    Some(why) => Err(ApiError::stage_unavailable(&why)),
                    None if *route == Route::Ready && self.queue_full => Err(ApiError::queue_full(1)),
                    None => Ok(ok()),
                },
            },
            Route::Version => Ok(Reply::json(200, &info::version())),
            Route::OpenApi => Ok(Reply::json(200, &openapi::document())),
            Route::Metrics => {
                let view = self.shared.view.read().clone();
                let ready = state == State::Serving;
                let text = self.shared.metrics.lock().render(ready, view.as_deref(), self.show.aliases);
                Ok(Reply::text(200, "text/plain; version=0.0.4; charset=utf-8", text))
            }
            Route::Page => Ok(page::reply()),
            Route::Props => match self.shared.view.read().as_deref() {
                Some(view) => Ok(Reply::json(200, &view.props)),
                None => Err(ApiError::loading(self.shared.progress.percent())),
            },
            Route::Slots if !self.show.slots => {
                Err(ApiError::not_implemented("/slots is not shown by this server (--no-slots)".to_owned()))
            }
            Route::Slots => {
                let Some(view) = self.shared.view.read().clone() else {
                    return Err(ApiError::loading(self.shared.progress.percent()));
                };
                let (rows, free) = view.slots();
                match query.split('&').any(|pair| pair == "fail_on_no_slot=1") && !free {
                    true => Err(ApiError::no_slot()),
                    false => Ok(Reply::json(200, &rows)),
                }
            }
            Route::Models | Route::Model(_) => {
                let Some(entries) = self.shared.models.read().clone() else {
                    return Err(ApiError::loading(self.shared.progress.percent()));
                };
                match route {
                    Route::Model(asked) => match entries.iter().find(|entry| entry["id"] == **asked) {
                        Some(entry) => Ok(Reply::json(200, entry)),
                        None => Err(ApiError::model_not_found(asked)),
                    },
                    _ => {
                        let after = query.split('&').find_map(|pair| pair.strip_prefix("after_id="));
                        Ok(Reply::json(200, &info::list(&entries, after)))
                    }
                }
            }
            _ => unreachable!("POST routes are read first"),
        }
    }
}

fn preflight(head: &Head) -> Reply {
    let visible = |text: &&str| text.len() <= 4096 && text.bytes().all(|b| (b' '..=b'~').contains(&b));
    let asked = head.header("access-control-request-headers").filter(visible);
    let mut reply = Reply::empty()
        .with("Allow", "GET, POST, OPTIONS, HEAD")
        .with("Access-Control-Allow-Methods", "GET, POST, OPTIONS, HEAD")
        .with("Access-Control-Allow-Headers", asked.unwrap_or("*"))
        .with("Access-Control-Max-Age", "86400");
    if head.header("access-control-request-private-network") == Some("true") {
        reply = reply.with("Access-Control-Allow-Private-Network", "true");
    }
    reply
}
