//! Flags of mode `live` alone.

use std::time::Duration;

use clap::Args;

use crate::bench::options::within;

/// Longest silence of a server, in seconds.
const TIMEOUT_DEFAULT: usize = 600;

/// Who is asked in mode `live`, and how.
#[derive(Clone, Debug, Args)]
pub struct LiveFlags {
    /// Mode live: measure this OpenAI-compatible server too, beside the engine itself; NAME is what its rows are called.
    /// May be repeated.
    #[arg(long, value_name = "[NAME=]URL", value_parser = named_url)]
    pub url: Vec<NamedUrl>,
    /// Mode live: measure the servers of --url alone. Of --model only the tokenizer is used, for the lengths of answers.
    #[arg(long, requires = "url")]
    pub url_only: bool,
    /// Mode live: a key, sent to every server of --url.
    #[arg(long, value_name = "KEY", requires = "url")]
    pub url_key: Option<String>,
    /// Mode live: seconds for which a server may be silent, its prompt's time included [default: 600]
    #[arg(long, value_name = "SECONDS", value_parser = within(1, 86_400))]
    pub timeout: Option<usize>,
    /// Mode live: temperature of the sampling, whose seed is --seed [default: 0, the likeliest token]
    #[arg(long, value_name = "T", value_parser = temperature)]
    pub temperature: Option<f32>,
}

/// A server by its address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedUrl {
    /// What its rows are called, where that was said.
    pub name: Option<String>,
    /// Where it is.
    pub url: String,
}

impl LiveFlags {
    /// The first flag that was given.
    pub fn given(&self) -> Option<&'static str> {
        let given = [
            (!self.url.is_empty(), "--url"),
            (self.timeout.is_some(), "--timeout"),
            (self.temperature.is_some(), "--temperature"),
        ];
        given.iter().find_map(|(given, name)| given.then_some(*name))
    }

    /// Longest silence.
    pub fn silence(&self) -> Duration {
        Duration::from_secs(self.timeout.unwrap_or(TIMEOUT_DEFAULT) as u64)
    }

    /// Names and addresses: a server without a name is called `server`, the next `server2`.
    ///
    /// # Errors
    /// Two servers of one name, or the name of an arm.
    pub fn servers(&self) -> Result<Vec<(String, String)>, String> {
        let mut out: Vec<(String, String)> = Vec::new();
        let mut unnamed = 0;
        for NamedUrl { name, url } in &self.url {
            let name = name.clone().unwrap_or_else(|| {
                unnamed += 1;
                if unnamed == 1 { "server".to_owned() } else { format!("server{unnamed}") }
            });
            if out.iter().any(|(other, _)| *other == name) {
                return Err(format!("--url: two servers are called {name}; name them, as in --url b={url}"));
            }
            if engine::api::Strategy::parse(&name).is_some() {
                return Err(format!("--url: {name} is the name of an arm; give the server another"));
            }
            out.push((name, url.clone()));
        }
        Ok(out)
    }
}

fn named_url(text: &str) -> Result<NamedUrl, String> {
    let begins = |text: &str| text.starts_with("http://") || text.starts_with("https://");
    let (name, url) = match text.split_once('=') {
        Some((name, url)) if !begins(text) => (Some(name.to_owned()), url),
        _ => (None, text),
    };
    let parsed = url.parse::<ureq::http::Uri>().ok().filter(|uri| uri.host().is_some_and(|host| !host.is_empty()));
    let named = name.as_ref().is_none_or(|name| !name.is_empty() && !name.contains(char::is_whitespace));
    match parsed {
        Some(uri) if begins(url) && named && uri.query().is_none() => Ok(NamedUrl { name, url: url.to_owned() }),
        _ => Err("expected http://HOST:PORT, with or without /v1, or NAME=http://HOST:PORT".to_owned()),
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(t) if (0.0..=2.0).contains(&t) => Ok(t),
        _ => Err("expected a number from 0 to 2".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(urls: &[&str]) -> LiveFlags {
        let url = urls.iter().map(|url| named_url(url).unwrap()).collect();
        LiveFlags { url, url_only: false, url_key: None, timeout: None, temperature: None }
    }

    #[test]
    fn servers_have_names() {
        let servers = flags(&["http://h:1", "llama=http://h:2/v1", "https://h/a=b"]).servers().unwrap();
        let names: Vec<&str> = servers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["server", "llama", "server2"]);
        assert_eq!(servers[2].1, "https://h/a=b");
        assert!(flags(&["a=http://h:1", "a=http://h:2"]).servers().unwrap_err().contains("two servers are called a"));
        assert!(flags(&["mtp=http://h:1"]).servers().unwrap_err().contains("mtp is the name of an arm"));
        for wrong in ["h:1", "a=h:1", "ftp://h", "=http://h", "a b=http://h", "http://", "http://h?x=1", ""] {
            assert!(named_url(wrong).is_err(), "{wrong}");
        }
    }
}
