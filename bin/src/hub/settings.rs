//! Where the hub and the cache are: the variables of the environment that the hub's own tools read.

use std::path::PathBuf;
use std::time::Duration;
use std::{env, io};

use engine_io::{Error, plain};

use super::error::HubError;

/// The hub that is asked where `HF_ENDPOINT` names no other.
const ENDPOINT_DEFAULT: &str = "https://huggingface.co";
/// A server that says nothing for so long is given up, unless `HF_HUB_DOWNLOAD_TIMEOUT` says otherwise.
const STALL_DEFAULT: Duration = Duration::from_secs(30);
const STALL_SECONDS_MAX: u64 = 86_400;
/// Longest token that is read from a file.
const TOKEN_BYTES_MAX: u64 = 4096;

/// How long and how often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// Longest silence of a server, connecting included.
    pub stall: Duration,
    /// Tries in a row that bring nothing forward.
    pub tries: u32,
    /// Pause after the first of them; it doubles.
    pub first_wait: Duration,
    /// Longest pause, also when a server asks for more.
    pub longest_wait: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        let (first_wait, longest_wait) = (Duration::from_millis(500), Duration::from_secs(60));
        Self { stall: STALL_DEFAULT, tries: 6, first_wait, longest_wait }
    }
}

/// What decides where a model comes from and goes to.
#[derive(Clone)]
pub struct Settings {
    /// The hub: scheme, host and maybe a path, no `/` at the end.
    pub endpoint: String,
    /// Root of the cache.
    pub cache: PathBuf,
    /// Sent to the hub, and to nobody that the hub sends us to.
    pub token: Option<String>,
    /// Nobody is asked.
    pub offline: bool,
    /// How long and how often.
    pub patience: Patience,
}

impl Settings {
    /// From `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_OFFLINE` and
    /// `HF_HUB_DOWNLOAD_TIMEOUT`, and the older names of some. An empty variable counts as absent.
    ///
    /// # Errors
    /// [`HubError::Setting`] for a value that means nothing.
    pub fn from_env() -> Result<Self, HubError> {
        Self::from_lookup(|name| env::var_os(name).and_then(|value| value.into_string().ok()))
    }

    fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let get = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let home = get("HOME").map(PathBuf::from);
        let expand = |text: String| match (text.strip_prefix("~/"), &home) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => PathBuf::from(text),
        };
        let hub_home = match (get("HF_HOME"), get("XDG_CACHE_HOME"), &home) {
            (Some(path), _, _) => Some(expand(path)),
            (None, Some(path), _) => Some(expand(path).join("huggingface")),
            (None, None, Some(home)) => Some(home.join(".cache").join("huggingface")),
            (None, None, None) => None,
        };
        let cache = get("HF_HUB_CACHE").or_else(|| get("HUGGINGFACE_HUB_CACHE")).map(expand);
        let cache = cache.or_else(|| hub_home.as_ref().map(|home| home.join("hub"))).ok_or_else(|| {
            let what = "neither it nor HF_HOME nor HOME is set, so there is no cache; set one of them".to_owned();
            HubError::Setting { name: "HF_HUB_CACHE", what }
        })?;
        let endpoint = get("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT_DEFAULT.to_owned());
        let token = match get("HF_TOKEN").or_else(|| get("HUGGING_FACE_HUB_TOKEN")) {
            Some(token) => Some(token),
            None => {
                let file = get("HF_TOKEN_PATH").map(expand).or_else(|| hub_home.map(|home| home.join("token")));
                file.map(token_of_file).transpose()?.flatten()
            }
        };
        let token = token.map(|t| t.trim().to_owned()).filter(|t| !t.is_empty());
        if token.as_ref().is_some_and(|t| !t.bytes().all(|b| b.is_ascii_graphic())) {
            let what = "the token has characters that no token has".to_owned();
            return Err(HubError::Setting { name: "HF_TOKEN", what });
        }
        let yes = |value: &String| ["1", "on", "yes", "true"].contains(&value.trim().to_lowercase().as_str());
        let offline = get("HF_HUB_OFFLINE").or_else(|| get("TRANSFORMERS_OFFLINE"));
        let mut patience = Patience::default();
        if let Some(text) = get("HF_HUB_DOWNLOAD_TIMEOUT") {
            let seconds = text.trim().parse::<u64>().ok().filter(|s| (1..=STALL_SECONDS_MAX).contains(s));
            patience.stall = seconds.map(Duration::from_secs).ok_or_else(|| HubError::Setting {
                name: "HF_HUB_DOWNLOAD_TIMEOUT",
                what: format!("\"{}\", expected seconds from 1 to {STALL_SECONDS_MAX}", text.escape_debug()),
            })?;
        }
        Ok(Self { endpoint: checked(&endpoint)?, cache, token, offline: offline.as_ref().is_some_and(yes), patience })
    }
}

/// An address that requests can start from.
fn checked(endpoint: &str) -> Result<String, HubError> {
    let trimmed = endpoint.trim().trim_end_matches('/');
    let parsed = trimmed.parse::<ureq::http::Uri>().ok();
    let usable = parsed.is_some_and(|uri| {
        let scheme = uri.scheme_str().is_some_and(|s| s == "https" || s == "http");
        let authority = uri.authority().is_some_and(|a| !a.host().is_empty() && !a.as_str().contains('@'));
        scheme && authority && uri.query().is_none()
    });
    if usable {
        return Ok(trimmed.to_owned());
    }
    let what = format!("\"{}\", expected https://HOST or http://HOST:PORT", endpoint.escape_debug());
    Err(HubError::Setting { name: "HF_ENDPOINT", what })
}

fn token_of_file(path: PathBuf) -> Result<Option<String>, HubError> {
    let no_token = |what: String| Err(HubError::Setting { name: "HF_TOKEN_PATH", what });
    match plain::read(&path, TOKEN_BYTES_MAX) {
        Ok(bytes) => Ok(String::from_utf8(bytes).ok()),
        Err(Error::TooLong { file, .. }) => no_token(format!("{file} is longer than any token")),
        Err(Error::Io { source, .. })
            if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        Err(Error::BrokenLink { .. }) => Ok(None),
        Err(Error::Io { source, .. }) => Err(HubError::io(&path, "read the token in")(source)),
        Err(other) => no_token(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn settings(vars: &[(&str, &str)]) -> Result<Settings, HubError> {
        Settings::from_lookup(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn the_cache_is_where_the_variables_say() {
        let cases: [(&[(&str, &str)], &str); 7] = [
            (&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h"), ("HOME", "/me")], "/c"),
            (&[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HOME", "/h")], "/old"),
            (&[("HF_HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/me")], "/h/hub"),
            (&[("HF_HOME", "~/h"), ("HOME", "/me")], "/me/h/hub"),
            (&[("XDG_CACHE_HOME", "/x"), ("HOME", "/me")], "/x/huggingface/hub"),
            (&[("HOME", "/me")], "/me/.cache/huggingface/hub"),
            (&[("HF_HUB_CACHE", ""), ("HOME", "/me")], "/me/.cache/huggingface/hub"),
        ];
        for (vars, cache) in cases {
            assert_eq!(settings(vars).unwrap().cache, PathBuf::from(cache), "{vars:?}");
        }
        assert!(matches!(settings(&[]), Err(HubError::Setting { name: "HF_HUB_CACHE", .. })));
    }

    #[test]
    fn the_rest_has_defaults_and_limits() {
        let base = ("HF_HUB_CACHE", "/c");
        let plain = settings(&[base]).unwrap();
        assert_eq!((plain.endpoint.as_str(), plain.offline, plain.token), (ENDPOINT_DEFAULT, false, None));
        let found = settings(&[
            base,
            ("HF_ENDPOINT", "http://h:1/m/"),
            ("HF_HUB_OFFLINE", "Yes"),
            ("HF_TOKEN", " hf_x\n"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "7"),
        ])
        .unwrap();
        assert_eq!((found.endpoint.as_str(), found.offline), ("http://h:1/m", true));
        assert_eq!((found.token.as_deref(), found.patience.stall), (Some("hf_x"), Duration::from_secs(7)));
        assert!(!settings(&[base, ("HF_HUB_OFFLINE", "0")]).unwrap().offline);
        for (name, value) in [
            ("HF_ENDPOINT", "huggingface.co"),
            ("HF_ENDPOINT", "ftp://h"),
            ("HF_ENDPOINT", "https://"),
            ("HF_ENDPOINT", "https://user:secret@h"),
            ("HF_TOKEN", "a b"),
            ("HF_TOKEN", "a\r\nX: y"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "0"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "soon"),
        ] {
            let error = settings(&[base, (name, value)]).err().unwrap_or_else(|| panic!("{name}={value}"));
            assert!(error.to_string().starts_with(name), "{error}");
        }
    }

    #[test]
    fn the_token_may_be_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let home = folder.path().to_str().unwrap();
        assert_eq!(settings(&[("HF_HOME", home)]).unwrap().token, None);
        fs::write(&path, "hf_file\n").unwrap();
        assert_eq!(settings(&[("HF_HOME", home)]).unwrap().token.as_deref(), Some("hf_file"));
        let both = [("HF_HOME", home), ("HF_TOKEN", "hf_env")];
        assert_eq!(settings(&both).unwrap().token.as_deref(), Some("hf_env"));
        let other = [("HF_HUB_CACHE", "/c"), ("HF_TOKEN_PATH", path.to_str().unwrap())];
        assert_eq!(settings(&other).unwrap().token.as_deref(), Some("hf_file"));
        fs::write(&path, vec![b'x'; TOKEN_BYTES_MAX as usize + 1]).unwrap();
        assert!(settings(&other).is_err());
    }
}
