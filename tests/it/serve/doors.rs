//! Where the program listens and what its flags make of the front, as a process.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use super::client::{Client, get};
use super::process::{Running, program, run};

/// Asks over a socket's file; everything that comes back.
fn ask_file(path: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(super::client::DEADLINE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    all
}

#[test]
fn several_hosts_and_a_socket_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine.sock");
    let hosts = format!("127.0.0.1,127.0.0.2,unix:{}", path.display());
    let mut command = Command::new(program("engine-serve"));
    command.args(["--port", "0", "--threads", "1", "--host", &hosts, "--api-prefix", "/llm"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        line.trim_end().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line:?}")).to_owned()
    };
    let (first, second, file) = (line(), line(), line());
    let address = |url: &str| url.strip_prefix("http://").unwrap().parse().unwrap();
    let mut running = Running { child, address: address(&first) };
    assert!(first.starts_with("http://127.0.0.1:") && second.starts_with("http://127.0.0.2:"), "{first} {second}");
    assert_eq!(file, format!("unix:{}", path.display()));
    for url in [&first, &second] {
        let mut client = Client::connect(address(url));
        client.send(get("/llm/v1/models"));
        assert_eq!(client.answer().status, 200, "{url}");
    }
    let answer = ask_file(&path, "GET /llm/health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("{\"status\":\"ok\"}"), "{answer}");
    // Whoever is served there keeps the file.
    let (code, _, error) = run(&["--host", &format!("unix:{}", path.display())]);
    assert!(code == Some(1) && error.contains("another server listens there"), "{code:?} {error}");
    // A stream over the file, and its end.
    let body = r#"{"prompt": "def ", "max_tokens": 4, "stream": true}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    assert!(ask_file(&path, &request).ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"));
    running.signal("-TERM");
    assert_eq!(running.end().code(), Some(0));
    assert!(!path.exists(), "the socket's file stays behind");
}

#[test]
fn hosts_that_cannot_be_had_are_named() {
    for (host, told) in [
        ("no such host", "no such host"),
        ("127.0.0.1,unix:/nowhere/at/all", "unix:/nowhere/at/all"),
        ("192.0.2.1", "192.0.2.1"),
    ] {
        let (code, _, error) = run(&["--port", "0", "--host", host]);
        assert!(code == Some(1) && error.contains("cannot listen on") && error.contains(told), "{code:?} {error}");
    }
}

#[test]
fn bounds_that_no_prompt_fits_are_refused() {
    for (flags, told) in [
        (&["--ctx-size", "8192", "--http-max-body", "60KiB"][..], "raise it, or lower --ctx-size"),
        (&["--ctx-size", "512", "--queue-bytes", "1MiB"], "--queue-bytes 1048576 holds no body"),
        (&["--ctx-size", "512", "--http-max-body", "2MiB", "--queue-bytes", "1MiB"], "--queue-bytes 1MiB"),
    ] {
        let (code, _, error) = run(&[&["--port", "0"], flags].concat());
        assert!(matches!(code, Some(2 | 3)) && error.contains(told), "{flags:?}: {code:?} {error}");
    }
}

#[test]
fn limits_are_printed_as_flags_give_them() {
    let line = [
        "--limits",
        "--http-max-uri",
        "1111",
        "--http-max-header-bytes",
        "2222",
        "--http-max-headers",
        "33",
        "--http-max-body",
        "4MiB",
        "--queue-bytes",
        "55MiB",
        "--http-header-timeout",
        "6.5",
        "--http-body-timeout",
        "7/77",
        "--http-keepalive",
        "8",
        "--http-max-requests",
        "99",
        "--http-max-conns",
        "10",
        "--stream-buffer",
        "11KiB",
        "--stream-stall-timeout",
        "12",
        "--drain-timeout",
        "13",
        "--queue-max",
        "14",
        "--queue-timeout",
        "15",
        "--request-timeout",
        "16.5",
        "--max-stop-strings",
        "16",
        "--template-fuel",
        "1717",
        "--constraint-compile-ms",
        "1800",
        "--stream-headers-after",
        "1.9",
    ];
    let (code, out, error) = run(&line);
    assert_eq!(code, Some(0), "{error}");
    for (name, value) in [
        ("request line", "1111 B"),
        ("header block", "2222 B"),
        ("headers", "33"),
        ("body", "4194304 B"),
        ("bodies of all connections", "57671680 B"),
        ("header read", "6.5 s"),
        ("body idle", "7 s"),
        ("body total", "77 s"),
        ("idle keep-alive", "8 s"),
        ("requests per connection", "99"),
        ("connections", "10 + 16 for /livez and /metrics"),
        ("output buffer per connection", "11264 B"),
        ("stalled reader", "12 s"),
        ("shutdown", "13 s"),
        ("choices that wait", "14"),
        ("choices of a request", "14"),
        ("time in the queue", "15 s"),
        ("whole request", "16.5 s"),
        ("stop strings", "16 of 1024 B, 64 ids"),
        ("template", "1717 steps, 33554432 B"),
        ("compiling them", "1.8 s"),
        ("stream headers after", "1.9 s"),
    ] {
        let row = format!("{name:<35}{value}");
        assert!(out.lines().any(|line| line == row), "no `{row}` in {out}");
    }
}

#[test]
fn the_environment_gives_flags_that_the_line_does_not() {
    let serve = |variables: &[(&str, &str)], flags: &[&str]| {
        let mut command = Command::new(program("engine-serve"));
        command.args(flags).envs(variables.iter().copied());
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let variables = [("ENGINE_ARG_CTX_SIZE", "300"), ("ENGINE_ARG_LIMITS", "true"), ("ENGINE_ARG_PARALLEL", "3")];
    let (code, out, error) = serve(&variables, &["--ctx-size", "200"]);
    assert_eq!(code, Some(0), "{error}");
    let row = |name: &str, value: &str| out.lines().any(|line| line == format!("{name:<35}{value}"));
    assert!(row("prompt", "199 tokens") && row("choices that run", "3"), "{out}");
    // What is wrong is told by the flag and by the variable that gave it, whoever finds it.
    for (variables, flags, named) in [
        (&[("ENGINE_ARG_PARALLEL", "lots")][..], &[][..], &["--parallel"][..]),
        (&[("ENGINE_ARG_NO_MMAP", "perhaps")], &[], &["--no-mmap"]),
        (&[("ENGINE_ARG_WINDOW_MIN", "9")], &["--window-max", "8"], &["--window-min"]),
        (&[("ENGINE_ARG_DEFAULT_SAMPLING", "{\"heat\": 1}")], &[], &["--default-sampling"]),
        (&[("ENGINE_ARG_LISTEN", "127.0.0.1:0")], &[], &["--listen", "--stage"]),
        (&[("ENGINE_ARG_MODEL", "no/such.gguf")], &[], &["no/such.gguf"]),
        (&[("ENGINE_ARG_API_KEY", "")], &[], &["--api-key"]),
        (&[("ENGINE_API_KEY", "")], &[], &["--api-key"]),
        (&[("ENGINE_API_KEY", "a"), ("ENGINE_ARG_API_KEY", "b")], &[], &["--api-key"]),
        // A name that stands for nothing is no setting that is quietly left out.
        (&[("ENGINE_ARG_CONTEXT", "300")], &[], &["no flag --context"]),
        // Two variables exclude each other as two flags do.
        (
            &[("ENGINE_ARG_CHAT_TEMPLATE", "a"), ("ENGINE_ARG_CHAT_TEMPLATE_FILE", "b")],
            &[],
            &["--chat-template ", "--chat-template-file "],
        ),
    ] {
        let (code, _, error) = serve(variables, &[&["--limits"], flags].concat());
        let all = variables.iter().map(|(name, _)| name).chain(named);
        assert!(matches!(code, Some(2 | 3)), "{variables:?}: {code:?} {error}");
        for name in all.filter(|name| **name != "ENGINE_ARG_MODEL") {
            assert!(error.contains(name), "{variables:?}: no {name} in {error}");
        }
    }
    // What the line has is not told to come from there.
    let (_, _, error) = serve(&[("ENGINE_ARG_PARALLEL", "2")], &["--parallel", "lots"]);
    assert!(!error.contains("ENGINE_ARG"), "{error}");
    // A flag of the line goes before a variable that it excludes, whichever of the two names the other.
    for (variable, flags) in [
        ("ENGINE_ARG_CHAT_TEMPLATE", &["--chat-template-file", "x"][..]),
        ("ENGINE_ARG_CHAT_TEMPLATE_FILE", &["--chat-template", "x"]),
        ("ENGINE_ARG_LISTEN", &["--stage", "0/2", "--peer", "127.0.0.1:1"]),
        ("ENGINE_ARG_PEER", &["--stage", "1/2", "--listen", "127.0.0.1:0"]),
    ] {
        let (code, _, error) = serve(&[(variable, "127.0.0.1:1")], &[&["--limits"], flags].concat());
        assert_eq!(code, Some(0), "{variable}: {error}");
    }
    assert_eq!(serve(&[("ENGINE_ARG_API_KEY", "sesame")], &["--limits"]).0, Some(0));
    let odd = std::ffi::OsStr::from_bytes(b"a\xff");
    let output = Command::new(program("engine-serve")).arg("--limits").env("ENGINE_ARG_ALIAS", odd).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && error.contains("--alias is taken from ENGINE_ARG_ALIAS"), "{error}");
}

#[test]
fn a_low_limit_on_open_files_is_raised_or_told() {
    let limited = |soft: u32, hard: u32| {
        let script = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(program("engine-serve"));
        command.args(["--port", "0", "--threads", "1", "--http-max-conns", "300"]);
        command.env("RUST_LOG", "warn").stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::of(command)
    };
    let mut running = limited(64, 4096);
    let clients: Vec<Client> = (0..250).map(|_| Client::connect(running.address)).collect();
    for mut client in clients {
        client.send(get("/health"));
        assert_eq!(client.answer().status, 200);
    }
    running.signal("-TERM");
    assert_eq!(running.end().code(), Some(0));
    // Where it cannot be raised, further connections wait, and those that are there are served.
    let mut running = limited(64, 64);
    let mut clients: Vec<Client> = (0..100).map(|_| Client::connect(running.address)).collect();
    for _ in 0..100 {
        let mut client = clients.remove(0);
        client.send(get("/health"));
        assert_eq!(client.answer().status, 200);
    }
    running.signal("-TERM");
    assert_eq!(running.end().code(), Some(0));
    let mut log = String::new();
    running.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("fewer files than --http-max-conns may take"), "{log}");
}
