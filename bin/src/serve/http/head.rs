//! Request heads: `httparse` reads the grammar, this file refuses everything that two parsers could read differently.

use crate::serve::Bounds;

/// Request method. What is not known by name is still a well-formed request (405).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    Get,
    Head,
    Post,
    Options,
    Delete,
    /// TRACE and CONNECT: refused on every path.
    Never,
    Other,
}

impl Method {
    fn parse(name: &str) -> Self {
        match name {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "POST" => Self::Post,
            "OPTIONS" => Self::Options,
            "DELETE" => Self::Delete,
            "TRACE" | "CONNECT" => Self::Never,
            _ => Self::Other,
        }
    }

    /// Closed label set of the metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Options => "OPTIONS",
            Self::Delete => "DELETE",
            Self::Never | Self::Other => "other",
        }
    }
}

/// How the body is delimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Framing {
    /// Neither header: no body.
    None,
    /// `Content-Length`.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// A whole, well-formed request head.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub method: Method,
    /// Percent-decoded path, without the query.
    pub path: String,
    /// What stands behind the first `?`, percent-decoded.
    pub query: String,
    /// Names in lower case, values trimmed; order kept.
    pub headers: Vec<(String, String)>,
    pub framing: Framing,
    /// HTTP/1.1; chunked answers and `100 Continue` exist only there.
    pub http11: bool,
    pub keep_alive: bool,
    /// `Expect: 100-continue`.
    pub expects_continue: bool,
    /// Some other expectation (417).
    pub expects_other: bool,
}

impl Head {
    /// First value of a header, by lower-case name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// Why a head is refused. The connection ends after each of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeadError {
    /// Not HTTP/1 as this server reads it; the text says which rule.
    Bad(&'static str),
    UriTooLong,
    TooLarge,
    /// An HTTP/2 preface or a TLS hello: a client that cannot read a JSON error.
    OtherProtocol(&'static str),
}

/// Looks for the empty line that ends a head. `from` is where an earlier call on the same buffer stopped.
///
/// Returns the length of the head including the empty line, or the offset to go on from.
pub(crate) fn find_end(buffer: &[u8], from: usize, bounds: &Bounds) -> Result<Result<usize, usize>, HeadError> {
    if let Some(error) = other_protocol(buffer) {
        return Err(error);
    }
    let mut at = from;
    let mut first_line_done = buffer[..from].contains(&b'\n');
    while at < buffer.len() {
        match buffer[at] {
            b'\n' => {
                if at == 0 || buffer[at - 1] != b'\r' {
                    return Err(HeadError::Bad("a line ends in LF without CR"));
                }
                first_line_done = true;
                if at >= 3 && &buffer[at - 3..=at] == b"\r\n\r\n" {
                    return if at + 1 > bounds.head_bytes { Err(HeadError::TooLarge) } else { Ok(Ok(at + 1)) };
                }
            }
            b'\r' => match buffer.get(at + 1) {
                Some(b'\n') => {}
                Some(_) => return Err(HeadError::Bad("a CR stands without LF")),
                None => break,
            },
            0 => return Err(HeadError::Bad("a NUL byte in the head")),
            _ => {}
        }
        if !first_line_done && at >= bounds.uri_bytes {
            return Err(HeadError::UriTooLong);
        }
        if at >= bounds.head_bytes {
            return Err(HeadError::TooLarge);
        }
        at += 1;
    }
    Ok(Err(at))
}

/// How many empty lines stand at the front: clients of old wrote one behind a body, and it belongs to no request.
pub(crate) fn empty_lines(buffer: &[u8]) -> usize {
    buffer.chunks_exact(2).take_while(|pair| pair == b"\r\n").count()
}

fn other_protocol(buffer: &[u8]) -> Option<HeadError> {
    if buffer.starts_with(b"PRI * HTTP/2") {
        return Some(HeadError::OtherProtocol("This port speaks HTTP/1.1, not HTTP/2.\n"));
    }
    if buffer.first() == Some(&0x16) {
        return Some(HeadError::OtherProtocol("This port speaks plain HTTP, not TLS.\n"));
    }
    None
}

/// Parses one whole head (as delimited by [`find_end`]).
pub(crate) fn parse(bytes: &[u8], bounds: &Bounds) -> Result<Head, HeadError> {
    let mut storage = vec![httparse::EMPTY_HEADER; bounds.headers];
    let mut request = httparse::Request::new(&mut storage);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(HeadError::Bad("the head is incomplete")),
        Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooLarge),
        Err(httparse::Error::Version) => return Err(HeadError::Bad("the version is neither HTTP/1.0 nor HTTP/1.1")),
        Err(httparse::Error::HeaderName) => return Err(HeadError::Bad("a header name is malformed")),
        Err(httparse::Error::HeaderValue) => return Err(HeadError::Bad("a header value is malformed")),
        Err(_) => return Err(HeadError::Bad("the request line is malformed")),
    }
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Err(HeadError::Bad("the request line is malformed"));
    };
    let http11 = minor == 1;
    let headers: Vec<(String, String)> = request
        .headers
        .iter()
        .map(|h| (h.name.to_ascii_lowercase(), String::from_utf8_lossy(h.value).trim_matches([' ', '\t']).to_owned()))
        .collect();
    check_host(&headers, http11)?;
    let framing = framing(&headers, http11)?;
    let connection = values(&headers, "connection").collect::<Vec<_>>().join(",").to_ascii_lowercase();
    let says = |word: &str| connection.split(',').any(|part| part.trim() == word);
    let keep_alive = if http11 { !says("close") } else { says("keep-alive") && !says("close") };
    let (mut expects_continue, mut expects_other) = (false, false);
    for value in values(&headers, "expect") {
        if value.eq_ignore_ascii_case("100-continue") { expects_continue = http11 } else { expects_other = true }
    }
    let method_kind = Method::parse(method);
    let (path, query) = path_of(target, method)?;
    Ok(Head { method: method_kind, path, query, headers, framing, http11, keep_alive, expects_continue, expects_other })
}

fn values<'a>(headers: &'a [(String, String)], name: &'a str) -> impl Iterator<Item = &'a str> {
    headers.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
}

fn check_host(headers: &[(String, String)], http11: bool) -> Result<(), HeadError> {
    let mut hosts = values(headers, "host");
    match (hosts.next(), hosts.next()) {
        (None, _) if http11 => Err(HeadError::Bad("the Host header is missing")),
        (_, Some(_)) => Err(HeadError::Bad("more than one Host header")),
        (Some(host), None) if !host.bytes().all(|b| b.is_ascii_graphic() && !b"/\\@?#<>\"{}|^`,".contains(&b)) => {
            Err(HeadError::Bad("the Host header is malformed"))
        }
        _ => Ok(()),
    }
}

fn framing(headers: &[(String, String)], http11: bool) -> Result<Framing, HeadError> {
    let mut lengths = values(headers, "content-length");
    let mut encodings = values(headers, "transfer-encoding");
    let (length, encoding) = (lengths.next(), encodings.next());
    if lengths.next().is_some() {
        return Err(HeadError::Bad("more than one Content-Length"));
    }
    if encodings.next().is_some() {
        return Err(HeadError::Bad("more than one Transfer-Encoding"));
    }
    match (length, encoding) {
        (None, None) => Ok(Framing::None),
        (Some(_), Some(_)) => Err(HeadError::Bad("both Content-Length and Transfer-Encoding")),
        (None, Some(coding)) if http11 && coding.eq_ignore_ascii_case("chunked") => Ok(Framing::Chunked),
        (None, Some(_)) => Err(HeadError::Bad("a Transfer-Encoding other than chunked, or one in HTTP/1.0")),
        (Some(digits), None) => {
            let plain = !digits.is_empty() && digits.len() <= 16 && digits.bytes().all(|b| b.is_ascii_digit());
            match digits.parse::<u64>() {
                Ok(n) if plain && n <= 1 << 53 => Ok(Framing::Length(n)),
                _ => Err(HeadError::Bad("Content-Length is not a plain number")),
            }
        }
    }
}

fn path_of(target: &str, method: &str) -> Result<(String, String), HeadError> {
    if method == "CONNECT" || target == "*" {
        // Refused by method, or asked of the server as a whole: the path plays no part.
        return Ok(("*".to_owned(), String::new()));
    }
    let scheme = target.get(..8).map(str::to_ascii_lowercase);
    let rest = match scheme.as_deref() {
        Some("https://") => absolute_path(&target[8..]),
        Some(s) if s.starts_with("http://") => absolute_path(&target[7..]),
        _ => target,
    };
    if !rest.starts_with('/') {
        return Err(HeadError::Bad("the request target is neither a path nor an absolute http URL"));
    }
    let rest = rest.split('#').next().unwrap_or("/");
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    match (percent_decode(path), percent_decode(query)) {
        (Some(path), Some(query)) => Ok((path, query)),
        _ => Err(HeadError::Bad("the target is not valid percent-encoded UTF-8")),
    }
}

fn absolute_path(after_scheme: &str) -> &str {
    match after_scheme.find(['/', '?']) {
        Some(at) if after_scheme.as_bytes()[at] == b'/' => &after_scheme[at..],
        _ => "/",
    }
}

/// `None` on a broken escape or when the bytes are not UTF-8.
fn percent_decode(path: &str) -> Option<String> {
    let hex = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    let bytes = path.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            let (high, low) = (hex(*bytes.get(at + 1)?)?, hex(*bytes.get(at + 2)?)?);
            out.push(high << 4 | low);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end_of(buffer: &[u8], from: usize) -> Result<Result<usize, usize>, HeadError> {
        find_end(buffer, from, &Bounds::default())
    }

    fn check(head: &str) -> Result<Head, HeadError> {
        match end_of(head.as_bytes(), 0)? {
            Ok(end) => parse(&head.as_bytes()[..end], &Bounds::default()),
            Err(_) => panic!("no end found in {head:?}"),
        }
    }

    #[test]
    fn reads_a_plain_head() {
        let head =
            check("POST /v1/models/org%2Fm?beta=true HTTP/1.1\r\nHost: h:1\r\nContent-Length: 12\r\n\r\n").unwrap();
        assert_eq!((head.path.as_str(), head.query.as_str()), ("/v1/models/org/m", "beta=true"));
        assert_eq!(head.framing, Framing::Length(12));
        assert!(head.keep_alive && head.http11);
    }

    #[test]
    fn target_forms() {
        assert_eq!(check("GET http://h/v1?x HTTP/1.1\r\nHost: h\r\n\r\n").unwrap().path, "/v1");
        assert_eq!(check("GET http://h?x HTTP/1.1\r\nHost: h\r\n\r\n").unwrap().path, "/");
        assert!(check("GET h:80 HTTP/1.1\r\nHost: h\r\n\r\n").is_err());
        assert!(check("GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n").is_err());
        assert!(check("GET /%ff HTTP/1.1\r\nHost: h\r\n\r\n").is_err());
    }

    #[test]
    fn refuses_ambiguous_framing() {
        for lines in [
            "Content-Length: 1\r\nContent-Length: 1",
            "Content-Length: 1, 1",
            "Content-Length: +1",
            "Content-Length: -1",
            "Content-Length: ",
            "Content-Length: 99999999999999999",
            "Content-Length: 1\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: identity",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "X : y",
            "X: y\r\n folded",
            "X\u{1}: y",
            "Host: again",
        ] {
            let head = format!("POST / HTTP/1.1\r\nHost: h\r\n{lines}\r\n\r\n");
            assert!(matches!(check(&head), Err(HeadError::Bad(_))), "{lines:?} was accepted");
        }
        for head in [
            "GET / HTTP/1.1\nHost: h\n\n",
            "GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
            "GET / HTTP/2.0\r\nHost: h\r\n\r\n",
            "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n",
        ] {
            assert!(matches!(check(head), Err(HeadError::Bad(_))), "{head:?} was accepted");
        }
    }

    #[test]
    fn limits_are_seen_before_the_end() {
        let bounds = Bounds::default();
        let long = format!("GET /{} ", "a".repeat(bounds.uri_bytes));
        assert_eq!(end_of(long.as_bytes(), 0), Err(HeadError::UriTooLong));
        let wide = format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(bounds.head_bytes));
        assert_eq!(end_of(wide.as_bytes(), 0), Err(HeadError::TooLarge));
        let many = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "X: y\r\n".repeat(bounds.headers));
        assert_eq!(check(&many).err(), Some(HeadError::TooLarge));
    }

    #[test]
    fn other_protocols_are_named() {
        assert!(matches!(end_of(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0), Err(HeadError::OtherProtocol(_))));
        assert!(matches!(end_of(&[0x16, 3, 1, 0], 0), Err(HeadError::OtherProtocol(_))));
    }

    #[test]
    fn a_head_cut_anywhere_is_found_again() {
        let head = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
        let mut from = 0;
        for cut in 1..head.len() {
            from = end_of(&head[..cut], from).unwrap().expect_err("an end inside the head");
        }
        assert_eq!(end_of(head, from).unwrap(), Ok(head.len()));
    }

    #[test]
    fn connection_and_expect() {
        assert!(!check("GET / HTTP/1.0\r\n\r\n").unwrap().keep_alive);
        assert!(check("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").unwrap().keep_alive);
        assert!(!check("GET / HTTP/1.1\r\nHost: h\r\nConnection: x, close\r\n\r\n").unwrap().keep_alive);
        let head = check("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\n\r\n").unwrap();
        assert!(head.expects_continue && !head.expects_other);
        assert!(check("POST / HTTP/1.1\r\nHost: h\r\nExpect: tea\r\n\r\n").unwrap().expects_other);
    }
}
