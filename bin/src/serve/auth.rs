//! API keys: digests of all keys, compared in constant time.

use std::io;
use std::path::Path;

use engine_io::{Error, plain};
use sha2::{Digest, Sha256};

use crate::serve::http::Head;
use crate::serve::limits;

/// Accepted keys, as digests. Empty = no key is asked for.
#[derive(Clone, Default)]
pub(crate) struct Keys(Vec<[u8; 32]>);

impl Keys {
    /// Keys given one by one and keys of a file: one per line, `#` comments, blank lines and trailing CR skipped.
    ///
    /// # Errors
    /// If the file is none, cannot be read, or holds no key: an empty file must not open the server.
    pub(crate) fn load(given: &[String], file: Option<&Path>) -> io::Result<Self> {
        let mut digests: Vec<[u8; 32]> = given.iter().map(|key| digest(key)).collect();
        if let Some(path) = file {
            let named = |e: io::Error| io::Error::new(e.kind(), format!("key file {}: {e}", path.display()));
            let text = read_file(path).map_err(named)?;
            let before = digests.len();
            let lines = text.lines().map(|line| line.trim_end_matches('\r').trim());
            digests.extend(lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(digest));
            if digests.len() == before {
                return Err(named(io::Error::new(io::ErrorKind::InvalidData, "it holds no key")));
            }
            warn_if_readable(path);
        }
        Ok(Self(digests))
    }

    /// Whether the request carries an accepted key. The first header present decides.
    pub(crate) fn admit(&self, head: &Head) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let given = match (head.header("authorization"), head.header("x-api-key"), head.header("api-key")) {
            (Some(value), _, _) => match value.split_once(' ') {
                Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => key.trim(),
                _ => return false,
            },
            (None, Some(key), _) | (None, None, Some(key)) => key,
            (None, None, None) => return false,
        };
        let given = digest(given);
        // Every digest is compared whole: the time says nothing about which key came close.
        self.0.iter().fold(false, |hit, key| hit | (key.iter().zip(given).fold(0, |d, (a, b)| d | (a ^ b)) == 0))
    }
}

/// Reads a plain file within a bound, in words for whoever names it already.
pub(crate) fn read_file(path: &Path) -> io::Result<String> {
    let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidData, message);
    plain::text(path, limits::KEY_FILE_BYTES).map_err(|error| match error {
        Error::Io { source, .. } => source,
        Error::NotAFile { found, .. } => invalid(format!("it is {found}; give a plain file with a key on each line")),
        Error::TooLong { found, most, .. } => invalid(format!("it has {found} bytes; at most {most} are read")),
        other => invalid(other.to_string()),
    })
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

fn warn_if_readable(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    if std::fs::metadata(path).is_ok_and(|m| m.permissions().mode() & 0o077 != 0) {
        tracing::warn!(path = %path.display(), "the key file can be read by other users");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::http::head;

    fn head_with(line: &str) -> Head {
        head::parse(format!("GET / HTTP/1.1\r\nHost: h\r\n{line}\r\n\r\n").as_bytes(), &crate::serve::Bounds::default())
            .unwrap()
    }

    #[test]
    fn three_headers_and_a_file() {
        let dir = std::env::temp_dir().join(format!("slipstream-keys-{}", std::process::id()));
        std::fs::write(&dir, "# comment\n\nfrom-file\r\n").unwrap();
        let keys = Keys::load(&["given".to_owned()], Some(&dir)).unwrap();
        for line in
            ["Authorization: Bearer given", "authorization: bearer from-file", "x-api-key: given", "api-key: given"]
        {
            assert!(keys.admit(&head_with(line)), "{line}");
        }
        for line in ["Authorization: Basic given", "Authorization: Bearer no", "x-api-key: ", "X: y"] {
            assert!(!keys.admit(&head_with(line)), "{line}");
        }
        // The first header decides, even if a later one would do.
        assert!(!keys.admit(&head_with("Authorization: Bearer no\r\nx-api-key: given")));
        std::fs::write(&dir, "# nothing\n").unwrap();
        assert!(Keys::load(&[], Some(&dir)).is_err());
        let large = vec![b'k'; limits::KEY_FILE_BYTES as usize + 1];
        std::fs::write(&dir, large).unwrap();
        assert!(Keys::load(&[], Some(&dir)).err().unwrap().to_string().contains("at most 1048576"));
        std::fs::remove_file(&dir).unwrap();
        assert!(Keys::default().admit(&head_with("X: y")));
    }
}
