//! The rules of the front door, one row each: what is sent, what comes back, and whether the connection goes on.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use engine_bin::serve::{Bounds, Config, Origins, Show, raise_descriptors};

use super::client::{Client, DEADLINE, get, post};
use super::fake::{Fake, chat, config, hello};

/// Sends one row; the connection must go on, or end behind the answer, as the row says.
fn row(fake: &Fake, wire: &[u8], status: u16, goes_on: bool) {
    let shown = String::from_utf8_lossy(&wire[..wire.len().min(120)]).into_owned();
    let mut client = Client::connect(fake.address());
    // A server that refuses may close before everything is written.
    let _ = client.stream.write_all(wire);
    let answer = client.answer();
    assert_eq!(answer.status, status, "{shown:?}: {}", answer.text());
    assert_eq!(answer.header("connection"), Some(if goes_on { "keep-alive" } else { "close" }), "{shown:?}");
    if goes_on {
        client.send(get("/livez"));
        assert_eq!(client.answer().status, 200, "{shown:?}");
    } else {
        client.expect_end();
    }
}

#[test]
fn a_connection_that_ends_is_gone_whatever_its_client_still_sends() {
    let fake = Fake::start(hello);
    let mut client = Client::connect(fake.address());
    client.send("GET /health HTTP/9.9\r\n\r\n");
    assert_eq!(client.answer().status, 400);
    client.expect_end();
    // Not only the server's side of it.
    let deadline = Instant::now() + DEADLINE;
    while client.stream.write_all(b"x").is_ok() {
        assert!(Instant::now() < deadline, "still open");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn heads() {
    let fake = Fake::start(hello);
    let line = |line: &str| format!("GET /health HTTP/1.1\r\nHost: h\r\n{line}\r\n\r\n").into_bytes();
    let target = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes();
    for (wire, status, goes_on) in [
        // Versions and hosts.
        (&b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"[..], 200, true),
        (b"GET /health HTTP/1.0\r\n\r\n", 200, false),
        (b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200, true),
        (b"GET /health HTTP/1.1\r\nHost:\r\n\r\n", 200, true),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, false),
        (b"GET /health HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", 400, false),
        (b"GET /health HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, false),
        (b"GET /health HTTP/1.2\r\nHost: h\r\n\r\n", 400, false),
        (b"GET /health HTTP/2.0\r\nHost: h\r\n\r\n", 400, false),
        (b"GET /health http/1.1\r\nHost: h\r\n\r\n", 400, false),
        (b"GET /health\r\n\r\n", 400, false),
        (b"GET  /health HTTP/1.1\r\nHost: h\r\n\r\n", 400, false),
        // Line ends and what may stand in a line.
        (b"GET /health HTTP/1.1\nHost: h\n\n", 400, false),
        (b"GET /health HTTP/1.1\r\nHost: h\n\r\n", 400, false),
        (b"GET /health HTTP/1.1\r\nHost: h\rX: y\r\n\r\n", 400, false),
        (b"GET /health HTTP/1.1\r\nHost: h\r\nX: \0\r\n\r\n", 400, false),
        (b"GET /health HTTP/1.1\r\nHost: h\r\nX: a\x01b\r\n\r\n", 400, false),
        (b"GET /health HTTP/1.1\r\nHost: h\r\nX: a\tb \xc3\xa9\r\n\r\n", 200, true),
    ] {
        row(&fake, wire, status, goes_on);
    }
    for (wire, status, goes_on) in [
        // A folded line, white space before a colon, names that are none.
        (line("X: y\r\n z"), 400, false),
        (line(" X: y"), 400, false),
        (line("X : y"), 400, false),
        (line(": y"), 400, false),
        (line("X(y): z"), 400, false),
        (line("X"), 400, false),
        // Ignored.
        (line("Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings"), 200, true),
        (line("Connection: close"), 200, false),
        (line("Accept: text/html\r\nanthropic-beta: x\r\nx-stainless-os: y"), 200, true),
        // Expectations.
        (line("Expect: 100-continue"), 200, true),
        (line("Expect: tea"), 417, true),
        // Targets.
        (target("http://elsewhere/health"), 200, true),
        (target("HTTPS://elsewhere/health?x"), 200, true),
        (target("elsewhere:80"), 400, false),
        (target("/%68ealth/"), 200, true),
        (target("/health?beta=true"), 200, true),
        (target("/health#part"), 200, true),
        (target("/%"), 400, false),
        (target("/%ff"), 400, false),
        (target("ftp://elsewhere/health"), 400, false),
        // Paths that others serve, and paths that nobody does.
        (target("/v1/embeddings"), 501, true),
        (target("/v1/v1/models"), 404, true),
    ] {
        row(&fake, &wire, status, goes_on);
    }
    assert_eq!(fake.submissions().len(), 0);
}

#[test]
fn bodies() {
    let fake = Fake::start(hello);
    let body = chat("hi").to_string();
    let n = body.len();
    let head = |lines: &str| format!("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n{lines}\r\n\r\n");
    for (wire, status, goes_on) in [
        (head(&format!("Content-Length: {n}")) + &body, 200, true),
        (head(&format!("content-length:  {n} ")) + &body, 200, true),
        (head(&format!("Transfer-Encoding: Chunked\r\n\r\n{n:X}\r\n{body}\r\n00\r\n")), 200, true),
        (head(&format!("Transfer-Encoding: chunked\r\n\r\n{n:x};a=\"b\"\r\n{body}\r\n0;c\r\nX: y")), 200, true),
        // A length that is no plain number, or that is given more than once.
        (head("Content-Length: +2") + "{}", 400, false),
        (head("Content-Length: -2") + "{}", 400, false),
        (head("Content-Length: 2 2") + "{}", 400, false),
        (head("Content-Length: 2, 2") + "{}", 400, false),
        (head("Content-Length: 2\r\nContent-Length: 2") + "{}", 400, false),
        (head("Content-Length:") + "{}", 400, false),
        (head("Content-Length: 9007199254740993"), 400, false),
        (head("Content-Length: 99999999999999999999"), 400, false),
        // Codings.
        (head("Content-Length: 2\r\nTransfer-Encoding: chunked") + "0\r\n\r\n", 400, false),
        (head("Transfer-Encoding: identity") + "{}", 400, false),
        (head("Transfer-Encoding: gzip, chunked") + "0\r\n\r\n", 400, false),
        (head("Transfer-Encoding: chunked, chunked") + "0\r\n\r\n", 400, false),
        (head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked") + "0\r\n\r\n", 400, false),
        (head("Transfer-Encoding: xchunked") + "0\r\n\r\n", 400, false),
        (head("Transfer-Encoding:") + "0\r\n\r\n", 400, false),
        // Chunks.
        (head("Transfer-Encoding: chunked") + "0x2\r\n{}\r\n0\r\n\r\n", 400, false),
        (head("Transfer-Encoding: chunked") + "\r\n{}\r\n0\r\n\r\n", 400, false),
        (head("Transfer-Encoding: chunked") + "2\n{}\r\n0\r\n\r\n", 400, false),
        (head("Transfer-Encoding: chunked") + "2\r\n{}0\r\n\r\n", 400, false),
        (head("Transfer-Encoding: chunked") + "2\r\n{}\n0\r\n\r\n", 400, false),
        (head("Transfer-Encoding: chunked") + "00000000000000002\r\n{}\r\n0\r\n\r\n", 400, false),
        (head("Transfer-Encoding: chunked") + "2;" + &"x".repeat(17_000), 400, false),
        (head("Transfer-Encoding: chunked") + "0\r\nX: " + &"y".repeat(17_000), 400, false),
        // What it is.
        (head("Content-Type: text/plain\r\nContent-Encoding: Identity\r\nContent-Length: 2") + "{}", 400, true),
        (head("Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 2") + "{}", 415, true),
        (head("Content-Encoding: gzip\r\nContent-Length: 2") + "{}", 415, true),
        (head("Expect: tea\r\nContent-Length: 2") + "{}", 417, true),
        // None at all.
        (head("X: y"), 400, true),
        (head("Content-Length: 0"), 400, true),
    ] {
        row(&fake, wire.as_bytes(), status, goes_on);
    }
    // The older version has no chunks, and its bodies have lengths.
    row(&fake, b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, false);
    row(&fake, b"POST /tokenize HTTP/1.0\r\nContent-Length: 15\r\n\r\n{\"content\":\"a\"}", 200, false);
    assert_eq!(fake.submissions().len(), 4);
}

#[test]
fn sizes_are_those_that_were_asked_for() {
    let bounds = Bounds { uri_bytes: 100, head_bytes: 300, headers: 4, requests: 3, ..Bounds::default() };
    let fake = Fake::with(Config { body_limit: 50, bodies_limit: 80, bounds, ..config() }, hello);
    let line = |n: usize| format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(n - "GET / HTTP/1.1\r\n".len()));
    row(&fake, line(100).as_bytes(), 404, true);
    row(&fake, line(103).as_bytes(), 414, false);
    let block = |n: usize| {
        let rest = "GET /health HTTP/1.1\r\nHost: h\r\nX: \r\n\r\n".len();
        format!("GET /health HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "a".repeat(n - rest))
    };
    row(&fake, block(300).as_bytes(), 200, true);
    row(&fake, block(301).as_bytes(), 431, false);
    let count = |n: usize| format!("GET /health HTTP/1.1\r\nHost: h\r\n{}\r\n", "X: y\r\n".repeat(n - 1));
    row(&fake, count(4).as_bytes(), 200, true);
    row(&fake, count(5).as_bytes(), 431, false);
    // 413 by what is announced, which is early, and otherwise when it is passed.
    let body = |n: usize| format!("{{\"content\":\"{}\"}}", "a".repeat(n - 14));
    row(&fake, post("/tokenize", &body(50)).as_bytes(), 200, true);
    row(&fake, post("/tokenize", &body(51)).as_bytes(), 413, true);
    row(&fake, b"POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Length: 2000000\r\n\r\n", 413, false);
    // The bodies of all requests together: one that is being read leaves no room for another.
    let mut half = Client::connect(fake.address());
    half.send(format!("POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Length: 50\r\n\r\n{}", &body(50)[..49]));
    let deadline = Instant::now() + DEADLINE;
    loop {
        let mut other = Client::connect(fake.address());
        other.send(post("/tokenize", &body(50)));
        let answer = other.answer();
        if answer.status == 429 {
            assert_eq!(answer.json()["error"]["code"], "queue_full");
            break;
        }
        assert!(Instant::now() < deadline);
    }
    half.send("}");
    assert_eq!(half.answer().status, 200);
    // The last request of a connection says so.
    let mut client = Client::connect(fake.address());
    for nth in 1..=3 {
        client.send(get("/livez"));
        let last = if nth == 3 { "close" } else { "keep-alive" };
        assert_eq!(client.answer().header("connection"), Some(last), "{nth}");
    }
    client.expect_end();
}

#[test]
fn times_are_those_that_were_asked_for() {
    let bounds = Bounds {
        head_time: Duration::from_millis(300),
        body_idle_time: Duration::from_millis(200),
        body_time: Duration::from_millis(500),
        keep_alive_time: Duration::from_millis(400),
        drain_time: Duration::from_millis(200),
        ..Bounds::default()
    };
    let fake = Fake::bounded(bounds, hello);
    // A byte now and then does not make a head come in time, nor a body.
    let drip = |start: &str| {
        let mut client = Client::connect(fake.address());
        client.send(start);
        client.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut answer = Vec::new();
        let deadline = Instant::now() + DEADLINE;
        loop {
            let _ = client.stream.write_all(b"x");
            let mut piece = [0; 4096];
            match client.stream.read(&mut piece) {
                Ok(0) => break,
                Ok(n) => answer.extend_from_slice(&piece[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(_) => {}
            }
            assert!(Instant::now() < deadline, "{start:?}");
        }
        String::from_utf8_lossy(&answer).into_owned()
    };
    for start in [
        "GET /health HTTP/1.1\r\nX: ",
        "POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Length: 10000\r\n\r\n",
        "POST /tokenize HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n",
    ] {
        let answer = drip(start);
        assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("Connection: close"), "{start:?}: {answer:?}");
        assert!(answer.contains("request_timeout"), "{answer:?}");
    }
    // What follows an early answer is thrown away for a while, then the connection closes.
    let answer = drip("POST /nope HTTP/1.1\r\nHost: h\r\nContent-Length: 10000\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer:?}");
    // A connection that has been used may idle for as long as a new one, and ends without a word.
    let mut client = Client::connect(fake.address());
    client.send(get("/livez"));
    assert_eq!(client.answer().status, 200);
    client.expect_end();
}

#[test]
fn a_half_close_is_no_end_where_that_is_allowed() {
    for half_close in [true, false] {
        let fake = Fake::with(Config { half_close, ..config() }, hello);
        for (nth, stream) in [false, true].into_iter().enumerate() {
            let mut client = Client::connect(fake.address());
            let mut body = chat("hi");
            body["stream"] = stream.into();
            client.send(post("/v1/chat/completions", &body.to_string()));
            client.stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut all = String::new();
            let _ = client.stream.read_to_string(&mut all);
            let whole = all.starts_with("HTTP/1.1 200 ") && (all.contains("Hello, world") || all.contains("[DONE]"));
            // Without the flag it is dropped, unless the answer was faster, and is not left hanging.
            assert!(whole || !half_close, "stream {stream}: {all:?}");
            // Dropped or not, the engine has heard of it before the server ends.
            let deadline = Instant::now() + DEADLINE;
            while fake.submissions().len() <= nth {
                assert!(Instant::now() < deadline);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

#[test]
fn who_is_half_closed_and_then_gone_is_noticed_all_the_same() {
    use super::fake::Script;
    let fake = Fake::with(Config { half_close: true, ..config() }, |_| Script::Endless);
    let mut client = Client::connect(fake.address());
    let mut body = chat("hi");
    body["stream"] = true.into();
    client.send(post("/v1/chat/completions", &body.to_string()));
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    client.head();
    client.chunk().unwrap();
    assert_eq!(fake.count(|c| matches!(c, engine::api::Command::Cancel(_))), 0);
    drop(client);
    fake.wait_for("cancel", |c| matches!(c, engine::api::Command::Cancel(_)));
}

#[test]
fn a_prefix_leads_to_every_path() {
    let fake = Fake::with(Config { prefix: "/llm".to_owned(), ..config() }, hello);
    for (path, status) in [
        ("/llm/health", 200),
        ("/llm/v1/models/", 200),
        ("/llm/v1/models/org%2Ftoy", 200),
        ("/health", 200),
        ("/llmhealth", 404),
        ("/llm/llm/health", 404),
        ("/llm", 200),
        ("/llm/nowhere", 404),
        ("/llm/v1/embeddings", 501),
    ] {
        row(&fake, get(path).as_bytes(), status, true);
    }
    row(&fake, post("/llm/v1/chat/completions", &chat("hi").to_string()).as_bytes(), 200, true);
}

#[test]
fn every_known_path_of_others_says_what_to_use_instead() {
    let fake = Fake::start(hello);
    for path in [
        "/completion",
        "/infill",
        "/v1/embeddings",
        "/embedding",
        "/embeddings",
        "/v1/rerank",
        "/rerank",
        "/reranking",
        "/v1/score",
        "/v1/audio/speech",
        "/v1/images/generations",
        "/v1/moderations",
        "/v1/files",
        "/v1/files/f",
        "/v1/batches/b/cancel",
        "/v1/conversations/c",
        "/v1/responses/compact",
        "/v1/responses/resp_1",
        "/v1/messages/batches",
        "/v1/complete",
        "/lora-adapters",
        "/v1/chat/completions/control",
        "/v1/stream/s",
        "/models/load",
        "/models/unload",
        "/models/sse",
    ] {
        for method in ["GET", "POST", "DELETE"] {
            let mut client = Client::connect(fake.address());
            client.send(format!("{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{{}}"));
            let answer = client.answer();
            let error = &answer.json()["error"];
            // Below the paths of Anthropic's API errors are as its clients know them.
            let theirs = path.starts_with("/v1/messages");
            let (kind, code) = match theirs {
                true => ("api_error", &error["details"]["error_code"]),
                false => ("not_supported_error", &error["code"]),
            };
            assert_eq!((answer.status, error["type"].as_str()), (501, Some(kind)), "{path}");
            assert_eq!(code, "not_implemented", "{path}");
            assert_eq!(answer.header("x-should-retry"), Some("false"));
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(" is not implemented; "), "{message}");
            // In step.
            client.send(get("/livez"));
            assert_eq!(client.answer().status, 200);
        }
    }
    for (path, hint) in [
        ("/v1/v1/models", Some("/v1/models exists")),
        ("/v1/v1/chat/completions", Some("/v1/chat/completions exists")),
        ("/nothing", None),
        ("/v1/filesystem", None),
    ] {
        let mut client = Client::connect(fake.address());
        client.send(get(path));
        let answer = client.answer();
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["code"].as_str()), (404, Some("unknown_path")), "{path}");
        let message = error["message"].as_str().unwrap();
        assert_eq!(message.contains("exists"), hint.is_some(), "{message}");
        assert!(hint.is_none_or(|hint| message.contains(hint)), "{message}");
    }
}

#[test]
fn head_is_get_without_a_body() {
    let fake = Fake::start(hello);
    for path in ["/health", "/readyz", "/livez", "/version", "/v1/models", "/v1/models/org%2Ftoy", "/nope", "/metrics"]
    {
        let ask = |method: &str| {
            let mut client = Client::connect(fake.address());
            client.send(format!("{method} {path} HTTP/1.1\r\nHost: h\r\nX-Request-Id: same\r\n\r\n"));
            let answer = client.answer_of(method == "HEAD");
            client.send(get("/livez"));
            assert_eq!(client.answer().status, 200, "{path}");
            (answer.status, answer.headers)
        };
        let (get, mut head) = (ask("GET"), ask("HEAD"));
        if path == "/metrics" {
            // Its length depends on what was counted meanwhile.
            let length = |(name, value): &mut (String, String)| {
                if name == "Content-Length" {
                    value.clear()
                }
            };
            head.1.iter_mut().for_each(length);
            let mut get = get;
            get.1.iter_mut().for_each(length);
            assert_eq!(get, head);
        } else {
            assert_eq!(get, head, "{path}");
        }
    }
}

#[test]
fn pages_of_other_origins() {
    let keys = vec!["secret".to_owned()];
    let listed = Origins::These(vec!["https://app:1".to_owned(), "localhost".to_owned()]);
    for (origins, from, allowed, varies) in [
        (Origins::Any, "https://anywhere", Some("*"), false),
        (listed.clone(), "https://app:1", Some("https://app:1"), true),
        (listed.clone(), "http://localhost:3000", Some("http://localhost:3000"), true),
        (listed, "https://anywhere", None, true),
    ] {
        let fake = Fake::with(Config { origins, api_keys: keys.clone(), ..config() }, hello);
        let mut client = Client::connect(fake.address());
        // A preflight, an answer, an error of a key, and one of a head that could be read: all say the same.
        for (line, status) in [
            ("OPTIONS /v1/models", 204),
            ("OPTIONS /anything", 204),
            ("GET /health", 200),
            ("GET /v1/models", 401),
            ("GET /nope", 404),
            ("DELETE /health", 405),
            ("TRACE /health", 405),
        ] {
            client.send(format!(
                "{line} HTTP/1.1\r\nHost: h\r\nOrigin: {from}\r\nAccess-Control-Request-Private-Network: true\r\n\
                 Access-Control-Request-Headers: authorization, x-stainless-os\r\n\r\n"
            ));
            let answer = client.answer();
            assert_eq!(answer.status, status, "{line} from {from}");
            assert_eq!(answer.header("access-control-allow-origin"), allowed, "{line} from {from}");
            assert_eq!(answer.header("vary"), varies.then_some("Origin"), "{line} from {from}");
            let exposed = answer.header("access-control-expose-headers");
            assert_eq!(exposed.is_some_and(|names| names.contains("X-Engine-Warnings")), allowed.is_some(), "{line}");
            if status == 204 {
                assert_eq!(answer.header("access-control-allow-headers"), Some("authorization, x-stainless-os"));
                assert_eq!(answer.header("access-control-allow-methods"), Some("GET, POST, OPTIONS, HEAD"));
                assert_eq!(answer.header("access-control-max-age"), Some("86400"));
                assert_eq!(answer.header("access-control-allow-private-network"), Some("true"));
            }
        }
        // More names than are repeated.
        let long = "x-a, ".repeat(1000);
        client.send(format!("OPTIONS / HTTP/1.1\r\nHost: h\r\nAccess-Control-Request-Headers: {long}\r\n\r\n"));
        assert_eq!(client.answer().header("access-control-allow-headers"), Some("*"));
    }
}

#[test]
fn metrics_ask_for_a_key_where_that_is_wanted() {
    for metrics_auth in [false, true] {
        let show = Show { metrics_key: metrics_auth, ..Show::default() };
        let fake = Fake::with(Config { api_keys: vec!["secret".to_owned()], show, ..config() }, hello);
        row(&fake, get("/metrics").as_bytes(), if metrics_auth { 401 } else { 200 }, true);
        row(&fake, b"GET /metrics HTTP/1.1\r\nHost: h\r\nx-api-key: secret\r\n\r\n", 200, true);
        row(&fake, get("/health").as_bytes(), 200, true);
    }
}

#[test]
fn a_thousand_idle_connections_disturb_nobody() {
    // Both ends of each are files of this process.
    raise_descriptors(&Bounds { connections: 2500, ..Bounds::default() });
    let fake = Fake::start(hello);
    let idle: Vec<Client> = (0..1000).map(|_| Client::connect(fake.address())).collect();
    let mut client = Client::connect(fake.address());
    client.send(post("/v1/chat/completions", &chat("hi").to_string()));
    assert_eq!(client.answer().status, 200);
    for (index, mut client) in idle.into_iter().enumerate() {
        if index % 100 == 0 {
            client.send(get("/health"));
            assert_eq!(client.answer().status, 200);
        }
    }
}
