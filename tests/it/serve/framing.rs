//! Bytes on the wire: framing, pipelining, limits, early answers.

use std::io::Write as _;
use std::time::Duration;

use engine_bin::serve::{Bounds, Config};
use serde_json::json;

use super::client::{Client, get, post};
use super::fake::{Fake, chat, config, hello};

#[test]
fn one_request_cut_at_every_byte() {
    let fake = Fake::start(hello);
    let request = post("/v1/chat/completions", &chat("hi").to_string());
    let mut client = Client::connect(fake.address());
    for cut in 1..request.len() {
        client.send(&request[..cut]);
        if cut % 16 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        client.send(&request[cut..]);
        let answer = client.answer();
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "Hello, world", "cut {cut}");
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let fake = Fake::start(hello);
    let mut client = Client::connect(fake.address());
    let mut wire = String::new();
    for i in 0..100 {
        match i % 3 {
            0 => wire.push_str(&get("/health")),
            1 => wire.push_str(&get("/v1/models")),
            _ => wire.push_str(&post("/v1/chat/completions", &chat("hi").to_string())),
        }
    }
    client.send(&wire);
    for i in 0..100 {
        let json = client.answer().json();
        match i % 3 {
            0 => assert_eq!(json, json!({"status": "ok"}), "{i}"),
            1 => assert_eq!(json["data"][0]["id"], "org/toy", "{i}"),
            _ => assert_eq!(json["choices"][0]["message"]["content"], "Hello, world", "{i}"),
        }
    }
}

#[test]
fn chunked_bodies_with_extensions_and_trailers() {
    let fake = Fake::start(hello);
    let mut client = Client::connect(fake.address());
    let mut wire = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for byte in chat("hi").to_string().bytes() {
        wire.extend_from_slice(b"1;x=y\r\n");
        wire.push(byte);
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(b"0\r\nX-T: 1\r\n\r\n");
    wire.extend_from_slice(get("/health").as_bytes());
    client.send(&wire);
    assert_eq!(client.answer().json()["choices"][0]["message"]["content"], "Hello, world");
    assert_eq!(client.answer().json()["status"], "ok");
}

/// Sends bytes; expects this status and the end of the connection.
fn refused(fake: &Fake, wire: impl AsRef<[u8]>, status: u16) {
    let mut client = Client::connect(fake.address());
    client.send(wire.as_ref());
    let answer = client.answer();
    let shown = String::from_utf8_lossy(&wire.as_ref()[..wire.as_ref().len().min(80)]).into_owned();
    assert_eq!(answer.status, status, "{shown:?}");
    assert_eq!(answer.header("connection"), Some("close"), "{shown:?}");
    assert!(answer.header("x-request-id").is_some());
    if answer.header("content-type").unwrap().starts_with("application/json") {
        assert!(answer.json()["error"]["message"].is_string());
    }
    client.expect_end();
}

#[test]
fn malformed_requests_end_the_connection() {
    let fake = Fake::start(hello);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n";
    for lines in [
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        "Content-Length: 0x2\r\n\r\n{}",
        "Transfer-Encoding: chunked\r\n\r\nG\r\n",
        "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n",
        "Transfer-Encoding: chunked\r\n\r\n2\r\n{}X",
        "Transfer-Encoding: identity\r\n\r\n",
        "Bad Name: x\r\n\r\n",
        "X: y\n\r\n",
    ] {
        refused(&fake, format!("{head}{lines}"), 400);
    }
    refused(&fake, "GET /health HTTP/1.1\r\n\r\n", 400);
    refused(&fake, "GET /health HTTP/3.0\r\nHost: h\r\n\r\n", 400);
    refused(&fake, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400);
    refused(&fake, [0x16, 3, 1, 2, 0, 1], 400);
    refused(&fake, format!("GET /{} HTTP/1.1\r\n", "a".repeat(9000)), 414);
    refused(&fake, format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}", "a".repeat(40_000)), 431);
    refused(&fake, format!("GET / HTTP/1.1\r\n{}Host: h\r\n\r\n", "X: y\r\n".repeat(200)), 431);
    assert_eq!(fake.submissions().len(), 0);
}

#[test]
fn a_few_empty_lines_before_a_request_are_skipped() {
    let fake = Fake::start(hello);
    let mut client = Client::connect(fake.address());
    for _ in 0..3 {
        client.send(format!("{}{}", "\r\n".repeat(8), get("/livez")));
        assert_eq!(client.answer().status, 200);
    }
    // However they are cut.
    for byte in "\r\n".repeat(8).bytes() {
        client.send([byte]);
        std::thread::sleep(Duration::from_millis(1));
    }
    client.send(get("/livez"));
    assert_eq!(client.answer().status, 200);
    refused(&fake, "\r\n".repeat(9), 400);
}

#[test]
fn an_early_answer_keeps_the_connection_in_step() {
    let keys = Config { api_keys: vec!["secret".to_owned()], ..config() };
    let fake = Fake::with(keys, hello);
    let mut client = Client::connect(fake.address());
    let body = chat("hi").to_string();
    client.send(post("/v1/chat/completions", &body));
    let answer = client.answer();
    assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    let length = body.len();
    for key in ["Authorization: Bearer secret", "x-api-key: secret", "api-key: secret"] {
        client.send(format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n{key}\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        assert_eq!(client.answer().status, 200, "{key}");
    }
    // A preflight needs no key.
    client.send("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.answer().status, 204);
    // Unknown path with a chunked body, then a good request.
    client.send("POST /nope HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n");
    assert_eq!(client.answer().status, 404);
    client.send(get("/health"));
    assert_eq!(client.answer().status, 200);
    // A body too long to be thrown away closes the connection and says so.
    client.send("POST /nope HTTP/1.1\r\nHost: h\r\nContent-Length: 9000000\r\n\r\n");
    let answer = client.answer();
    assert_eq!((answer.status, answer.header("connection")), (404, Some("close")));
    client.expect_end();
}

#[test]
fn expect_continue() {
    let keys = Config { api_keys: vec!["secret".to_owned()], ..config() };
    let fake = Fake::with(keys, hello);
    let body = chat("hi").to_string();
    let head = |key: &str| {
        let length = body.len();
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\
             Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    let mut client = Client::connect(fake.address());
    client.send(head("secret"));
    assert_eq!(client.answer().status, 100);
    client.send(&body);
    assert_eq!(client.answer().status, 200);
    // Body already here: no interim answer.
    client.send(format!("{}{body}", head("secret")));
    assert_eq!(client.answer().status, 200);
    client.send(head("wrong"));
    assert_eq!(client.answer().status, 401);
    client.expect_end();
    let mut client = Client::connect(fake.address());
    client.send(head("secret").replace("100-continue", "tea"));
    assert_eq!(client.answer().status, 417);
}

#[test]
fn methods() {
    let fake = Fake::start(hello);
    let mut client = Client::connect(fake.address());
    client.send(get("/v1/models"));
    let whole = client.answer();
    client.send("HEAD /v1/models HTTP/1.1\r\nHost: h\r\n\r\n");
    let head = client.answer_of(true);
    assert_eq!(head.header("content-length"), whole.header("content-length"));
    client.send(get("/v1/chat/completions"));
    let answer = client.answer();
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST, OPTIONS")));
    client.send(post("/health", "{}"));
    assert_eq!(client.answer().status, 405);
    for line in ["TRACE /health", "CONNECT h:80", "DELETE /health"] {
        client.send(format!("{line} HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert_eq!(client.answer().status, 405, "{line}");
    }
    client.send(
        "OPTIONS /anything HTTP/1.1\r\nHost: h\r\nOrigin: http://x\r\n\
         Access-Control-Request-Headers: authorization, x-stainless-os\r\n\r\n",
    );
    let answer = client.answer();
    assert_eq!(answer.status, 204);
    assert_eq!(answer.header("access-control-allow-headers"), Some("authorization, x-stainless-os"));
    assert_eq!(answer.header("content-length"), None);
    // A GET with a body: the body is no request of its own.
    client.send("GET /health HTTP/1.1\r\nHost: h\r\nContent-Length: 16\r\n\r\nGET /x HTTP/1.1\r");
    assert_eq!(client.answer().status, 200);
    client.send(get("/livez"));
    assert_eq!(client.answer().status, 200);
}

#[test]
fn http_1_0_and_connection_close() {
    let fake = Fake::start(hello);
    let mut client = Client::connect(fake.address());
    client.send("GET /health HTTP/1.0\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    client.expect_end();
    let mut client = Client::connect(fake.address());
    let mut body = chat("hi");
    body["stream"] = true.into();
    let body = body.to_string();
    client.send(format!("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    let answer = client.answer();
    assert_eq!(answer.header("transfer-encoding"), None);
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
    let mut client = Client::connect(fake.address());
    client.send("GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert_eq!(client.answer().header("connection"), Some("close"));
    client.expect_end();
}

#[test]
fn slow_heads_and_bodies_get_408() {
    let bounds = Bounds {
        head_time: Duration::from_millis(80),
        body_idle_time: Duration::from_millis(80),
        keep_alive_time: Duration::from_secs(2),
        ..Bounds::default()
    };
    let fake = Fake::bounded(bounds, hello);
    refused(&fake, "GET /health HT", 408);
    refused(&fake, "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n{", 408);
    // An idle connection is closed without a word.
    Client::connect(fake.address()).expect_end();
}

#[test]
fn bodies_over_the_limit() {
    let fake = Fake::with(Config { body_limit: 1000, ..config() }, hello);
    let mut client = Client::connect(fake.address());
    client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n");
    assert_eq!(client.answer().status, 413);
    refused(
        &fake,
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n{}\r\n",
            " ".repeat(1001)
        ),
        413,
    );
}

#[test]
fn a_chunk_that_can_only_be_too_long_is_refused_by_its_size_line() {
    // Nothing of it is sent: a server that waited for the bytes would answer 408, half a minute later.
    let bounds = Bounds { drain_time: Duration::from_secs(3600), ..Bounds::default() };
    let fake = Fake::with(Config { body_limit: 1000, bounds, ..config() }, hello);
    let head = |path: &str| format!("POST {path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    for size in ["FFFFFFFFFFFFFFFF\r\n", "3e9\r\n", "7FFFFFFFFFFFFFFF;x=y", "1\r\n{\r\n3e8\r\n"] {
        refused(&fake, format!("{}{size}", head("/v1/chat/completions")), 413);
    }
    // And what is thrown away behind an early answer is not waited for either.
    let mut client = Client::connect(fake.address());
    client.send(format!("{}FFFFFFFFFFFFFFFF\r\n", head("/nope")));
    assert_eq!(client.answer().status, 404);
    client.expect_end();
}

#[test]
fn who_keeps_silent_does_not_keep_others_from_asking_whether_the_server_lives() {
    let fake =
        Fake::bounded(Bounds { connections: 2, reserved_time: Duration::from_millis(200), ..Bounds::default() }, hello);
    let mut silent: Vec<Client> = (0..18).map(|_| Client::connect(fake.address())).collect();
    // One of those beside the maximum has begun a request and does not end it.
    let _ = silent[17].stream.write_all(b"GET /livez HT");
    for path in ["/livez", "/metrics"] {
        let end = std::time::Instant::now() + super::client::DEADLINE;
        loop {
            let mut client = Client::connect(fake.address());
            let _ = client.stream.write_all(get(path).as_bytes());
            if client.answer().status == 200 {
                break;
            }
            assert!(std::time::Instant::now() < end, "{path} is out of reach");
        }
    }
    // The places of those that may do everything are as they were.
    for client in &mut silent[..2] {
        client.send(get("/health"));
        assert_eq!(client.answer().status, 200);
    }
}

#[test]
fn a_body_that_never_comes_keeps_no_place_of_those_who_ask_whether_the_server_lives() {
    let hour = Duration::from_secs(3600);
    let bounds = Bounds { connections: 1, reserved_time: hour, drain_time: hour, ..Bounds::default() };
    let fake = Fake::bounded(bounds, hello);
    let mut first = Client::connect(fake.address());
    first.send(get("/health"));
    assert_eq!(first.answer().status, 200);
    let mut silent: Vec<Client> = (0..16).map(|_| Client::connect(fake.address())).collect();
    for (i, client) in silent.iter_mut().enumerate() {
        let body = if i % 2 == 0 { "Content-Length: 5" } else { "Transfer-Encoding: chunked" };
        client.send(format!("GET /livez HTTP/1.1\r\nHost: h\r\n{body}\r\n\r\n"));
        let answer = client.answer();
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    }
    let end = std::time::Instant::now() + super::client::DEADLINE;
    loop {
        let mut client = Client::connect(fake.address());
        let _ = client.stream.write_all(get("/livez").as_bytes());
        if client.answer().status == 200 {
            break;
        }
        assert!(std::time::Instant::now() < end, "/livez is out of reach");
    }
    // Whoever has a place of his own may send what he has announced.
    first.send("GET /livez HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(first.answer().header("connection"), Some("keep-alive"));
    first.send(format!("hello{}", get("/livez")));
    assert_eq!(first.answer().status, 200);
}

#[test]
fn connections_past_the_maximum_are_told_so() {
    let reserved_time = Duration::from_secs(60);
    let fake = Fake::bounded(Bounds { connections: 2, reserved_time, ..Bounds::default() }, hello);
    let open = |n: usize| {
        let connect = |_| {
            let mut client = Client::connect(fake.address());
            client.send(get("/livez"));
            assert_eq!(client.answer().status, 200);
            client
        };
        (0..n).map(connect).collect::<Vec<Client>>()
    };
    let told = |client: &mut Client| {
        let answer = client.answer();
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["code"].as_str()), (503, Some("no_slot")), "{error}");
        assert_eq!((answer.header("retry-after"), answer.header("connection")), (Some("1"), Some("close")));
        client.expect_end();
    };
    let mut all = open(2);
    // Past the connections that may do everything, those that may ask whether the server lives.
    let reserved = open(16);
    let mut client = Client::connect(fake.address());
    // More than can linger at once, and a request under way that nobody reads: it must not cost the answer.
    let mut many: Vec<Client> = (0..80).map(|_| Client::connect(fake.address())).collect();
    let _ = client.stream.write_all(get("/health").as_bytes());
    told(&mut client);
    many.iter_mut().for_each(told);
    // Those who are turned away take nobody's place: room is found again as soon as others leave.
    drop(reserved);
    drop(all.pop());
    let end = std::time::Instant::now() + super::client::DEADLINE;
    loop {
        let mut client = Client::connect(fake.address());
        let _ = client.stream.write_all(get("/health").as_bytes());
        if client.answer().status == 200 {
            break;
        }
        assert!(std::time::Instant::now() < end);
    }
    let mut client = all.pop().unwrap();
    client.send(get("/metrics"));
    let metrics = client.answer().text();
    assert!(metrics.contains("engine_http_requests_total{route=\"other\",method=\"other\",code=\"503\"}"), "{metrics}");
}

#[test]
fn a_half_closed_request_is_answered_or_dropped() {
    let fake = Fake::start(hello);
    let mut client = Client::connect(fake.address());
    client.send(get("/health"));
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.answer().status, 200);
    client.expect_end();
    let mut client = Client::connect(fake.address());
    client.send("GET /hea");
    client.stream.flush().unwrap();
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    client.expect_end();
}

#[test]
fn damaged_requests_never_stop_the_server() {
    let fake = Fake::start(hello);
    let chunked =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    let sources = [post("/v1/chat/completions", &chat("hi").to_string()), get("/health"), chunked.to_owned()];
    let mut state = 0x9e37_79b9_u64;
    let mut random = |n: usize| {
        // xorshift64: any spread of damage will do, but the same one every time.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    for round in 0..300 {
        let mut bytes = sources[round % sources.len()].clone().into_bytes();
        for _ in 0..=random(4) {
            let at = random(bytes.len());
            match random(4) {
                0 => bytes[at] = random(256) as u8,
                1 if bytes.len() > 1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, b"\r\n:; \0\xff{\"0"[random(10)]),
                _ => bytes.truncate(at.max(1)),
            }
        }
        let mut client = Client::connect(fake.address());
        // The server may refuse and close before everything is written.
        let _ = client.stream.write_all(&bytes);
        let _ = client.stream.shutdown(std::net::Shutdown::Write);
        client.drain();
    }
    let mut client = Client::connect(fake.address());
    client.send(get("/health"));
    assert_eq!(client.answer().status, 200);
}
