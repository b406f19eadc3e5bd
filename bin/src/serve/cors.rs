//! Which pages of other origins may read answers.

use crate::serve::http::Head;

/// Origins that may.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origins {
    /// Every one, without credentials.
    Any,
    /// These, as browsers write them: `http://host:port`. `localhost` stands for every port of this machine.
    These(Vec<String>),
}

/// What an answer says of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Allowed {
    /// `Access-Control-Allow-Origin`.
    pub origin: Option<String>,
    /// Another origin would be answered otherwise, so caches must ask again.
    pub varies: bool,
}

impl Origins {
    /// Reads the parts of `--cors-origins`.
    ///
    /// # Errors
    /// What is wrong with one.
    pub fn parse(parts: &[String]) -> Result<Self, String> {
        if parts == ["*"] {
            return Ok(Self::Any);
        }
        for part in parts {
            let host = part.strip_prefix("http://").or_else(|| part.strip_prefix("https://"));
            let plain = |host: &str| !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
            if part != "localhost" && !host.is_some_and(plain) {
                return Err(format!(
                    "--cors-origins: {part:?} is no origin; give * alone, or a list of localhost and origins such as \
                     https://host:port, without a path"
                ));
            }
        }
        Ok(Self::These(parts.iter().map(|part| part.to_ascii_lowercase()).collect()))
    }

    /// For the answer to a request; `None` where no request could be read.
    pub(crate) fn allow(&self, head: Option<&Head>) -> Allowed {
        match self {
            Self::Any => Allowed { origin: Some("*".to_owned()), varies: false },
            Self::These(list) => {
                let origin = head.and_then(|head| head.header("origin")).map(str::to_ascii_lowercase);
                let fits = |origin: &String| {
                    list.iter().any(|one| one == origin || one == "localhost" && is_this_machine(origin))
                };
                // What fits a list is visible ASCII; this machine's origins are checked for it.
                Allowed { origin: origin.filter(fits), varies: true }
            }
        }
    }
}

fn is_this_machine(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    host.is_some_and(|host| {
        ["localhost", "127.0.0.1", "[::1]"].iter().any(|name| match host.strip_prefix(name) {
            Some(rest) => rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port),
            None => false,
        })
    })
}

fn is_port(text: &str) -> bool {
    (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::http::head;

    fn allowed(list: &str, origin: &str) -> Allowed {
        let list: Vec<String> = list.split(',').map(str::to_owned).collect();
        let head = format!("GET / HTTP/1.1\r\nHost: h\r\nOrigin: {origin}\r\n\r\n");
        let head = head::parse(head.as_bytes(), &crate::serve::Bounds::default()).unwrap();
        Origins::parse(&list).unwrap().allow(Some(&head))
    }

    #[test]
    fn origins() {
        assert_eq!(allowed("*", "http://a").origin.as_deref(), Some("*"));
        let list = "https://a:1,localhost";
        for (origin, fits) in [
            ("https://a:1", true),
            ("https://A:1", true),
            ("http://localhost", true),
            ("http://localhost:3000", true),
            ("https://127.0.0.1:8", true),
            ("http://[::1]:5", true),
            ("https://a", false),
            ("https://a:11", false),
            ("http://localhost.evil", false),
            ("http://localhost:3000@evil", false),
            ("http://localhost:", false),
            ("null", false),
        ] {
            let allowed = allowed(list, origin);
            assert_eq!(allowed.origin.is_some(), fits, "{origin}");
            assert!(allowed.varies);
        }
        assert_eq!(allowed("https://a:1", "http://localhost").origin, None);
        for bad in ["", "*,localhost", "a.example", "http://", "http://a/", "ftp://a"] {
            let list: Vec<String> = bad.split(',').map(str::to_owned).collect();
            assert!(Origins::parse(&list).is_err(), "{bad:?} was accepted");
        }
    }
}
