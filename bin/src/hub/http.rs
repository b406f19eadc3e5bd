//! Asking the hub: one request at a time, redirects followed by hand, faults sorted into those worth another try.
//!
//! The token goes to the host of the endpoint and to no other, so not to the stores that downloads are redirected to. An
//! encrypted request is never continued in the clear. Addresses that servers hand out are signed, so messages name the
//! one that was asked first.

use std::io::{ErrorKind, Read as _};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use ureq::http::{HeaderMap, Response, StatusCode, Uri, header};
use ureq::{Agent, Body};

use super::error::HubError;
use super::reference::Reference;
use super::settings::{Patience, Settings};

/// Hosts that a request may be sent on to.
const REDIRECTS_MAX: usize = 10;
/// A listing may take so many times the longest silence.
const ANSWER_STALLS: u32 = 4;
/// Longest text of a server that is repeated in a message.
const QUOTE_MAX: usize = 200;

/// Why a request did not bring what it was for.
#[derive(Debug)]
pub enum Fault {
    /// Another try may.
    Again {
        /// What happened.
        what: String,
        /// The pause that the server asks for.
        after: Option<Duration>,
    },
    /// No try will.
    Final(HubError),
}

impl Fault {
    /// Worth another try.
    pub fn again(what: impl Into<String>) -> Self {
        Self::Again { what: what.into(), after: None }
    }
}

/// A hub, and the repository that is asked for.
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    name: String,
    revision: String,
    /// How long and how often.
    pub patience: Patience,
}

impl Client {
    /// Connects when it is asked.
    pub fn new(settings: &Settings, reference: &Reference) -> Self {
        let stall = Some(settings.patience.stall);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("slipstream/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(stall)
            .timeout_connect(stall)
            .timeout_recv_response(stall)
            .timeout_per_read(stall)
            .build();
        Self {
            agent: config.new_agent(),
            endpoint: settings.endpoint.clone(),
            token: settings.token.clone(),
            name: reference.name(),
            revision: reference.revision.clone(),
            patience: settings.patience,
        }
    }

    /// Address of a question about the repository, without its answer's first part: `/revision/main`.
    pub fn api(&self, question: &str) -> String {
        format!("{}/api/models/{}{question}", self.endpoint, self.name)
    }

    /// Address of a file.
    pub fn file(&self, commit: &str, path: &str) -> String {
        format!("{}/{}/resolve/{commit}/{}", self.endpoint, self.name, escape(path, true))
    }

    /// Asks for the bytes of `url` behind the first `from`. Answers are 200, 206 and 416; everything else is a fault.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn get(&self, url: &str, from: u64) -> Result<Response<Body>, Fault> {
        let mut at = parse(url).ok_or_else(|| self.strange(url, "is no address"))?;
        let home = origin(&at);
        for _ in 0..=REDIRECTS_MAX {
            let at_home = origin(&at) == home;
            let mut request = self.agent.get(at.clone());
            if let Some(token) = self.token.as_ref().filter(|_| at_home) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            let answer = request.call().map_err(|error| transport(url, error))?;
            let status = answer.status();
            if matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
                let location = text(answer.headers(), "location").unwrap_or_default();
                at = leads(&at, &location).map_err(|what| self.strange(url, &what))?;
                continue;
            }
            return match status.as_u16() {
                200 | 206 | 416 => Ok(answer),
                // A store says so of an address that has become too old: the next try gets a new one.
                401 | 403 if !at_home => Err(Fault::again(format!("{url}: the store behind it answers {status}"))),
                401 | 403 | 404 | 410 => Err(Fault::Final(self.denied(url, status, answer.headers()))),
                408 | 425 | 429 | 500..=599 => {
                    let after = text(answer.headers(), "retry-after").and_then(|s| s.trim().parse().ok());
                    let what = format!("{url} answers {status}");
                    Err(Fault::Again { what, after: after.map(Duration::from_secs) })
                }
                _ => Err(self.strange(url, &format!("answers {status}"))),
            };
        }
        Err(self.strange(url, &format!("leads on more than {REDIRECTS_MAX} times")))
    }

    /// Asks for JSON of at most `most` bytes; also the address of its next page.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn get_json<T: DeserializeOwned>(&self, url: &str, most: u64) -> Result<(T, Option<String>), Fault> {
        let answer = self.get(url, 0)?;
        let next = text(answer.headers(), "link").and_then(|link| next_page(&link));
        let mut bytes = Vec::new();
        let mut body = answer.into_body().into_reader().take(most + 1);
        // A server that says a byte now and then is never silent, and never done.
        let (began, longest) = (Instant::now(), self.patience.stall.saturating_mul(ANSWER_STALLS));
        let mut piece = vec![0; 64 << 10];
        loop {
            match body.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => bytes.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::again(format!("{url}: the answer broke off: {error}"))),
            }
            if began.elapsed() > longest {
                let (bytes, seconds) = (bytes.len(), longest.as_secs_f64());
                return Err(Fault::again(format!("{url}: {bytes} bytes of an answer in {seconds:.1} s, and no end")));
            }
        }
        if bytes.len() as u64 > most {
            return Err(self.strange(url, &format!("answers more than {most} bytes")));
        }
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| self.strange(url, &format!("answers no such JSON as a hub does ({error})")))?;
        // Only a page of the same hub: the token goes along.
        let same = |next: &String| parse(next).map(|u| origin(&u)) == parse(url).map(|u| origin(&u));
        match next {
            Some(next) if !same(&next) => Err(self.strange(url, "continues on another host")),
            next => Ok((value, next)),
        }
    }

    /// Tries until it works, within the limits of [`Patience`]. `advanced` tells whether the last try brought the whole
    /// forward: then it does not count.
    ///
    /// # Errors
    /// [`HubError::Network`] after the last try, or what no try will change.
    pub fn persist<S, T>(
        &self,
        state: &mut S,
        note: &dyn Fn(&str),
        mut advanced: impl FnMut(&mut S) -> bool,
        mut attempt: impl FnMut(&mut S) -> Result<T, Fault>,
    ) -> Result<T, HubError> {
        let Patience { tries, first_wait, longest_wait, .. } = self.patience;
        let mut failed = 0;
        loop {
            let (what, after) = match attempt(state) {
                Ok(value) => return Ok(value),
                Err(Fault::Final(error)) => return Err(error),
                Err(Fault::Again { what, after }) => (what, after),
            };
            failed = if advanced(state) { 1 } else { failed + 1 };
            if failed >= tries {
                return Err(HubError::Network { what, tries, kept: 0 });
            }
            let doubled = first_wait.saturating_mul(1 << (failed - 1).min(16));
            let wait = after.unwrap_or(doubled).max(first_wait).min(longest_wait);
            note(&format!("{what}; another try in {:.1} s", wait.as_secs_f64()));
            thread::sleep(wait);
        }
    }

    /// An answer that no hub gives.
    pub fn strange(&self, url: &str, what: &str) -> Fault {
        Fault::Final(HubError::Refused(format!("{url} {what}; is HF_ENDPOINT ({}) a model hub?", self.endpoint)))
    }

    fn denied(&self, url: &str, status: StatusCode, headers: &HeaderMap) -> HubError {
        let (name, revision) = (&self.name, &self.revision);
        let code = text(headers, "x-error-code").unwrap_or_default();
        let given =
            if self.token.is_some() { "the token that was given does not open it" } else { "no token was given" };
        HubError::Refused(match (code.as_str(), status.as_u16()) {
            ("RevisionNotFound", _) => format!("{name} has no revision {revision}; give another after @"),
            ("EntryNotFound", _) => format!("{url}: not in the repository any more; ask again for the revision"),
            ("GatedRepo", _) | (_, 403) => format!(
                "{name} is gated and {given}; accept its terms at {}/{name} and set HF_TOKEN to a token of that account",
                self.endpoint
            ),
            (_, 401) => format!(
                "{name} is private or gated, or does not exist, and {given}; check the name, and set HF_TOKEN for a private one"
            ),
            ("RepoNotFound", _) => {
                format!("{name} does not exist, or is private and {given}; check the name, or set HF_TOKEN")
            }
            _ => {
                let said = text(headers, "x-error-message").map(|m| format!(" ({})", quote(&m))).unwrap_or_default();
                format!("{url} answers {status}{said}; check name and revision")
            }
        })
    }
}

/// Scheme, host and port: who is asked.
fn origin(uri: &Uri) -> (String, String, u16) {
    let scheme = uri.scheme_str().unwrap_or_default().to_owned();
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    (scheme, uri.host().unwrap_or_default().to_ascii_lowercase(), port)
}

/// An absolute address of a scheme that we speak.
fn parse(url: &str) -> Option<Uri> {
    let uri: Uri = url.parse().ok()?;
    let spoken = matches!(uri.scheme_str(), Some("http" | "https"));
    (spoken && uri.host().is_some_and(|h| !h.is_empty())).then_some(uri)
}

/// Where an answer leads from `at`, or why nobody goes there.
fn leads(at: &Uri, location: &str) -> Result<Uri, String> {
    let next = join(at, location).ok_or_else(|| format!("leads to \"{}\"", quote(location)))?;
    match (at.scheme_str(), next.scheme_str()) {
        (Some("https"), Some("https")) | (Some("http"), _) => Ok(next),
        _ => Err("leads from https to http".to_owned()),
    }
}

/// Where `location` leads from `base`: an address, or a path from the root. Servers of hubs send no others.
fn join(base: &Uri, location: &str) -> Option<Uri> {
    let location = location.split('#').next().unwrap_or_default();
    match location {
        _ if location.starts_with("//") => parse(&format!("{}:{location}", base.scheme_str()?)),
        _ if location.starts_with('/') => parse(&format!("{}://{}{location}", base.scheme_str()?, base.authority()?)),
        _ => parse(location),
    }
}

/// `<URL>; rel="next"` among the links of a header.
fn next_page(link: &str) -> Option<String> {
    link.split(',').find_map(|one| {
        let (url, rest) = one.trim().strip_prefix('<')?.split_once('>')?;
        let is_next = rest.split(';').any(|p| matches!(p.trim(), "rel=\"next\"" | "rel=next"));
        is_next.then(|| url.to_owned())
    })
}

fn transport(url: &str, error: ureq::Error) -> Fault {
    match error {
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::InvalidProxyUrl => {
            Fault::Final(HubError::Network { what: format!("{url}: {error}"), tries: 1, kept: 0 })
        }
        error => Fault::again(format!("{url}: {error}")),
    }
}

/// A header that is text.
pub fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// A server's words in a message: short, and nothing that a terminal obeys.
pub fn quote(words: &str) -> String {
    let mut short: String = words.chars().take(QUOTE_MAX).collect();
    if short.len() < words.len() {
        short.push_str("...");
    }
    short.escape_debug().to_string()
}

/// As a part of an address: everything but letters, digits and `-._~` in percent. Source: RFC 3986, 2.3.
pub fn escape(text: &str, keep_slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'/' if keep_slash => out.push('/'),
            b if b.is_ascii_alphanumeric() || b"-._~".contains(&b) => out.push(char::from(b)),
            b => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_joined() {
        let base = parse("https://h:8/a/b?c").unwrap();
        for (location, whole) in [
            ("https://x/y?z=1", Some("https://x/y?z=1")),
            ("/y?z#f", Some("https://h:8/y?z")),
            ("//x/y", Some("https://x/y")),
            ("y", None),
            ("", None),
            ("ftp://x/y", None),
            ("http:///y", None),
        ] {
            assert_eq!(join(&base, location).map(|u| u.to_string()), whole.map(str::to_owned), "{location}");
        }
    }

    #[test]
    fn what_is_encrypted_stays_so() {
        let (open, closed) = (parse("http://h/a").unwrap(), parse("https://h/a").unwrap());
        for (at, location, goes) in [
            (&open, "http://x/y", true),
            (&open, "https://x/y", true),
            (&closed, "https://x/y", true),
            (&closed, "/y", true),
            (&closed, "http://h/a", false),
            (&closed, "http://x/y", false),
            (&open, "ftp://x/y", false),
        ] {
            assert_eq!(leads(at, location).is_ok(), goes, "{at} to {location}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let same = |a: &str, b: &str| origin(&parse(a).unwrap()) == origin(&parse(b).unwrap());
        assert!(same("https://h/a", "https://H:443/b"));
        assert!(
            !same("https://h/a", "http://h/a")
                && !same("http://h/", "http://h:81/")
                && !same("http://h/", "http://h.x/")
        );
    }

    #[test]
    fn links_and_escapes() {
        assert_eq!(next_page("<http://h/1>; rel=\"prev\", <http://h/3?c=x>; rel=\"next\"").unwrap(), "http://h/3?c=x");
        assert_eq!(next_page("<http://h/1>; rel=\"last\""), None);
        assert_eq!(escape("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(escape("a b/\u{e9}?#%.gguf", true), "a%20b/%C3%A9%3F%23%25.gguf");
        assert_eq!(quote("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(quote(&"x".repeat(300)).len(), 203);
    }
}
