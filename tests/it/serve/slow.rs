//! Clients that leave, clients that do not read, and the end of the process.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use engine::api::{Command, Finish};
use engine_bin::serve::{Bounds, Exit, Server};
use serde_json::{Value, json};

use super::client::{Client, DEADLINE, ask, get, post};
use super::fake::{END, Fake, SLOW, SLOWER, Script, chat, config, hello, let_slow_texts_go};

fn streamed(content: &str) -> String {
    let mut body = chat(content);
    body["stream"] = true.into();
    post("/v1/chat/completions", &body.to_string())
}

fn is_cancel(command: &Command) -> bool {
    matches!(command, Command::Cancel(_))
}

/// `hang` for what never ends by itself, anything else for a short answer.
fn by_prompt(hang: Script) -> impl Fn(&engine::api::Submission) -> Script + Send {
    move |submission| {
        let text: Vec<u8> = submission.prompt.iter().map(|t| t.0 as u8).collect();
        match text.windows(4).any(|w| w == b"hang") {
            true => hang.clone(),
            false => Script::Say(vec!["ok"], Finish::EndToken(END)),
        }
    }
}

#[test]
fn who_leaves_is_cancelled_in_every_phase() {
    for (script, phase) in [(Script::Queue, "queued"), (Script::Prefill, "prefill"), (Script::Endless, "decode")] {
        for stream in [true, false] {
            let fake = Fake::start(by_prompt(script.clone()));
            let mut client = Client::connect(fake.address());
            let body = if stream { streamed("hang") } else { post("/v1/chat/completions", &chat("hang").to_string()) };
            client.send(body);
            fake.wait_for("submit", |c| matches!(c, Command::Submit(_)));
            drop(client);
            fake.wait_for(&format!("cancel of {script:?}, stream {stream}"), is_cancel);
            let answer = ask(fake.address(), "/v1/chat/completions", &chat("hi"));
            assert_eq!(answer.json()["choices"][0]["message"]["content"], "ok");
            let mut client = Client::connect(fake.address());
            client.send(get("/metrics"));
            let metrics = client.answer().text();
            assert!(metrics.contains("engine_requests_finished_total{reason=\"cancelled\"} 1"), "{metrics}");
            assert!(metrics.contains("code=\"499\""));
            assert!(metrics.contains(&format!("engine_cancellations_total{{phase=\"{phase}\"}} 1\n")), "{metrics}");
            assert!(metrics.contains("engine_requests_running 0") && metrics.contains("engine_requests_waiting 0"));
        }
    }
}

#[test]
fn what_a_cancelled_request_has_used_is_counted() {
    let fake = Fake::start(by_prompt(Script::Endless));
    let mut client = Client::connect(fake.address());
    let mut body = chat("hang");
    (body["stream"], body["n"]) = (true.into(), 2.into());
    client.send(post("/v1/chat/completions", &body.to_string()));
    client.head();
    for _ in 0..10 {
        client.chunk().unwrap();
    }
    drop(client);
    let counter = |metrics: &str, name: &str| -> u64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}"));
        line.trim().parse().unwrap()
    };
    let deadline = Instant::now() + DEADLINE;
    loop {
        let mut client = Client::connect(fake.address());
        client.send(get("/metrics"));
        let metrics = client.answer().text();
        let first = counter(&metrics, "engine_generation_tokens_total{source=\"first\"}");
        if first == 2 {
            // Each has said at least one piece of 2048 tokens, and the prompt they share counts once.
            let bonus = counter(&metrics, "engine_generation_tokens_total{source=\"bonus\"}");
            assert!(bonus > 2 * 2000 && (bonus + first).is_multiple_of(2048), "{metrics}");
            assert_eq!(counter(&metrics, "engine_prompt_tokens_total{source=\"computed\"}"), 22, "{metrics}");
            assert_eq!(counter(&metrics, "engine_requests_finished_total{reason=\"cancelled\"}"), 2, "{metrics}");
            return;
        }
        assert!(Instant::now() < deadline, "{metrics}");
    }
}

#[test]
fn a_half_close_cancels_too_and_takes_every_choice_along() {
    let fake = Fake::start(by_prompt(Script::Endless));
    let mut client = Client::connect(fake.address());
    let mut body = chat("hang");
    body["n"] = 3.into();
    client.send(post("/v1/chat/completions", &body.to_string()));
    fake.wait_for("submit", |c| matches!(c, Command::Submit(s) if s.sampling.choice == 2));
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    fake.wait_for("cancel", |c| matches!(c, Command::Cancel(t) if t.0 == 2));
    assert_eq!(fake.count(is_cancel), 3);
}

#[test]
fn a_client_that_leaves_while_another_pipelines_is_noticed() {
    let fake = Fake::start(by_prompt(Script::Prefill));
    let mut client = Client::connect(fake.address());
    // More pipelined bytes than are held while a request runs.
    client.send(format!("{}{}", streamed("hang"), get("/health").repeat(3000)));
    fake.wait_for("submit", |c| matches!(c, Command::Submit(_)));
    drop(client);
    fake.wait_for("cancel", is_cancel);
}

#[test]
fn a_reader_that_stops_pauses_its_own_row_only() {
    let bounds = Bounds { stream_buffer: 64 * 1024, ..Bounds::default() };
    let fake = Fake::bounded(bounds, by_prompt(Script::Endless));
    let mut slow = Client::connect(fake.address());
    slow.send(streamed("hang"));
    fake.wait_for("pause", |c| matches!(c, Command::Pause(_)));
    for _ in 0..20 {
        assert_eq!(ask(fake.address(), "/v1/chat/completions", &chat("hi")).status, 200);
    }
    // Reading again brings the row back.
    let mut piece = vec![0; 1 << 20];
    let end = Instant::now() + DEADLINE;
    while fake.count(|c| matches!(c, Command::Resume(_))) == 0 {
        assert!(Instant::now() < end);
        assert!(slow.stream.read(&mut piece).unwrap() > 0);
    }
    drop(slow);
    fake.wait_for("cancel", is_cancel);
}

/// Sends without end, on one connection after the other, and throws away what comes back.
fn flood(address: SocketAddr, piece: Vec<u8>, over: Arc<AtomicBool>) {
    while !over.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(address) else { return };
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut answers = stream.try_clone().unwrap();
        let reader = thread::spawn(move || while answers.read(&mut [0; 1 << 16]).is_ok_and(|n| n > 0) {});
        while !over.load(Ordering::Relaxed) && stream.write_all(&piece).is_ok() {}
        let _ = stream.shutdown(std::net::Shutdown::Both);
        reader.join().unwrap();
    }
}

#[test]
fn nobody_who_sends_without_end_stops_the_server() {
    let wide = "X-Padding: ".to_owned() + &"a".repeat(200) + "\r\n";
    let wide = format!("GET /livez HTTP/1.1\r\nHost: h\r\n{}\r\n", wide.repeat(100));
    for piece in ["\r\n".repeat(128 * 1024), get("/livez").repeat(10_000), wide.repeat(10)] {
        let fake = Fake::start(by_prompt(Script::Prefill));
        let over = Arc::new(AtomicBool::new(false));
        let start = |_| {
            let (address, piece, over) = (fake.address(), piece.clone().into_bytes(), Arc::clone(&over));
            thread::spawn(move || flood(address, piece, over))
        };
        let floods: Vec<_> = (0..4).map(start).collect();
        thread::sleep(Duration::from_millis(200));
        let mut running = Client::connect(fake.address());
        running.send(streamed("hang"));
        fake.wait_for("submit", |c| matches!(c, Command::Submit(_)));
        for _ in 0..5 {
            assert_eq!(ask(fake.address(), "/v1/chat/completions", &chat("hi")).status, 200);
        }
        // The second signal does not wait for them either.
        let server = fake.server.as_ref().unwrap().handle();
        server.shutdown();
        server.kill(15);
        assert_eq!(fake.end(), Exit::Signal(15));
        over.store(true, Ordering::Relaxed);
        floods.into_iter().for_each(|flood| flood.join().unwrap());
    }
}

#[test]
fn a_text_that_takes_long_delays_nobody_else() {
    let fake = Fake::start(hello);
    // Large bodies, each of which is a second's work.
    let padding = "x".repeat(100_000);
    let mut tool = Client::connect(fake.address());
    tool.send(post("/tokenize", &json!({"content": format!("{SLOW}{padding}")}).to_string()));
    let prompt = |n: usize| json!({"prompt": format!("{SLOW} {n}"), "user": padding, "max_tokens": 3}).to_string();
    let mut stays = Client::connect(fake.address());
    stays.send(post("/v1/completions", &prompt(1)));
    let mut leaves = Client::connect(fake.address());
    leaves.send(post("/v1/completions", &prompt(2)));
    for _ in 0..5 {
        assert_eq!(ask(fake.address(), "/v1/chat/completions", &chat("hi")).status, 200);
    }
    drop(leaves);
    let end = Instant::now() + DEADLINE;
    loop {
        let mut client = Client::connect(fake.address());
        client.send(get("/metrics"));
        if client.answer().text().contains("code=\"499\"") {
            break;
        }
        assert!(Instant::now() < end);
    }
    // Behind the note that it has gone.
    assert_eq!(ask(fake.address(), "/v1/chat/completions", &chat("hi")).status, 200);
    let prompts = |n: usize| {
        let prompt = super::fake::ids(&format!("{SLOW} {n}"));
        fake.count(|c| matches!(c, Command::Submit(s) if s.prompt == prompt))
    };
    assert_eq!((prompts(1), prompts(2)), (0, 0));
    let_slow_texts_go(SLOW);
    assert_eq!(tool.answer().json()["count"], SLOW.len() + padding.len());
    assert_eq!(stays.answer().status, 200);
    // What was read for nobody is no work.
    tool.send(post("/tokenize", &json!({"content": padding}).to_string()));
    assert_eq!(tool.answer().status, 200);
    assert_eq!((prompts(1), prompts(2)), (1, 0));
}

/// Who asks and leaves puts two messages before a thread that is busy, so that few connections fill what it has.
#[test]
fn requests_that_wait_to_be_read_are_bounded() {
    const MESSAGES: usize = 4096;
    let fake = Fake::start(hello);
    let mut first = Client::connect(fake.address());
    first.send(post("/v1/completions", &json!({"prompt": SLOWER, "max_tokens": 3}).to_string()));
    let gone = || {
        let mut client = Client::connect(fake.address());
        client.send(get("/metrics"));
        let metrics = client.answer().text();
        let counts = metrics.lines().filter(|l| l.starts_with("engine_http_requests_total{") && l.contains("\"499\""));
        counts.map(|l| l.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()).sum::<usize>()
    };
    let request = post("/tokenize", &json!({"content": "x"}).to_string());
    for left in 1..=MESSAGES / 2 {
        Client::connect(fake.address()).send(&request);
        // No more at once than the server has connections for.
        let end = Instant::now() + DEADLINE;
        while (left % 256 == 0 || left == MESSAGES / 2) && gone() < left {
            assert!(Instant::now() < end);
        }
    }
    let mut late = Client::connect(fake.address());
    for (question, status) in [(request.clone(), 429), (get("/readyz"), 429), (get("/livez"), 200)] {
        late.send(&question);
        let answer = late.answer();
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(
            status == 200
                || answer.json()["error"]["code"] == "queue_full" && answer.header("retry-after") == Some("1")
        );
    }
    // It reads on when it can, and what was asked first is answered.
    let_slow_texts_go(SLOWER);
    assert_eq!(first.answer().status, 200);
    let end = Instant::now() + DEADLINE;
    loop {
        late.send(&request);
        if late.answer().status == 200 {
            break;
        }
        assert!(Instant::now() < end);
    }
}

#[test]
fn large_answers_that_nobody_reads_are_bounded_together() {
    let bounds = Bounds { answers_bytes: 40 << 20, ..Bounds::default() };
    // Each is more than the sockets between here and there hold.
    let fake = Fake::bounded(bounds, |submission| match submission.prompt.first().map(|t| t.0) {
        Some(108) => Script::SayLong(16 << 20),
        _ => Script::Say(vec!["ok"], Finish::EndToken(END)),
    });
    let long = json!({"prompt": "long"});
    let ask_long = || {
        let mut client = Client::connect(fake.address());
        client.send(post("/v1/completions", &long.to_string()));
        client
    };
    let stalled: Vec<Client> = (0..2)
        .map(|_| {
            let mut client = ask_long();
            // Its head is here: so is the answer, as far as the server is concerned.
            let head = client.head();
            assert_eq!(head.status, 200);
            client
        })
        .collect();
    let answer = ask_long().answer();
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (429, Some("queue_full")));
    assert_eq!((answer.header("retry-after"), answer.header("x-should-retry")), (Some("1"), Some("true")));
    // Answers that fit the buffer of a connection are not among them.
    assert_eq!(ask(fake.address(), "/v1/completions", &json!({"prompt": "short"})).status, 200);
    // Those who leave make room, and so do those who read.
    drop(stalled);
    let end = Instant::now() + DEADLINE;
    while ask_long().answer().status != 200 {
        assert!(Instant::now() < end);
    }
    for _ in 0..4 {
        let answer = ask_long().answer();
        assert_eq!((answer.status, answer.json()["choices"][0]["text"].as_str().unwrap().len()), (200, 16 << 20));
    }
}

#[test]
fn a_reader_that_never_comes_back_is_dropped() {
    // Long enough that a starved producer still fills the buffer, and so is paused, before the reader is given up.
    let bounds = Bounds { stream_buffer: 64 * 1024, stall_time: Duration::from_secs(3), ..Bounds::default() };
    let fake = Fake::bounded(bounds, by_prompt(Script::Endless));
    let mut slow = Client::connect(fake.address());
    slow.send(streamed("hang"));
    fake.wait_for("cancel", is_cancel);
    assert!(fake.count(|c| matches!(c, Command::Pause(_))) >= 1);
}

#[test]
fn a_request_that_waits_too_long_for_a_slot_is_answered() {
    let bounds = Bounds { queue_time: Duration::from_millis(300), ..Bounds::default() };
    for (script, in_queue) in [(Script::Queue, true), (Script::Prefill, false)] {
        let fake = Fake::bounded(bounds, by_prompt(script.clone()));
        let mut waits = Client::connect(fake.address());
        waits.send(post("/v1/chat/completions", &chat("hang").to_string()));
        if in_queue {
            let answer = waits.answer();
            let error = &answer.json()["error"];
            assert_eq!((answer.status, error["code"].as_str()), (503, Some("queue_timeout")), "{error}");
            assert_eq!((answer.header("retry-after"), answer.header("x-should-retry")), (Some("30"), Some("true")));
            fake.wait_for("cancel", is_cancel);
            let mut client = Client::connect(fake.address());
            client.send(get("/metrics"));
            let metrics = client.answer().text();
            assert!(metrics.contains("engine_requests_finished_total{reason=\"timeout\"} 1"), "{metrics}");
            assert!(metrics.contains("engine_requests_waiting 0"), "{metrics}");
        } else {
            // Prefill is no waiting, however long it takes.
            fake.wait_for("submit", |c| matches!(c, Command::Submit(_)));
            thread::sleep(Duration::from_millis(900));
            assert_eq!(fake.count(is_cancel), 0);
        }
    }
    // A stream whose headers are out gets the error as its last event, and no end.
    let bounds = Bounds { queue_time: Duration::from_millis(2500), ..Bounds::default() };
    let fake = Fake::bounded(bounds, by_prompt(Script::Queue));
    let mut waits = Client::connect(fake.address());
    waits.send(streamed("hang"));
    let answer = waits.answer();
    assert_eq!((answer.status, answer.complete), (200, false));
    let error: Value = serde_json::from_str(answer.events().last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "queue_timeout");
}

#[test]
fn one_choice_that_waits_fails_its_whole_request() {
    let bounds = Bounds { queue_time: Duration::from_millis(300), ..Bounds::default() };
    let fake = Fake::bounded(bounds, |s| if s.sampling.choice == 1 { Script::Queue } else { Script::Prefill });
    let mut body = chat("hi");
    body["n"] = 3.into();
    assert_eq!(ask(fake.address(), "/v1/chat/completions", &body).json()["error"]["code"], "queue_timeout");
    fake.wait_for("cancel", |c| matches!(c, Command::Cancel(t) if t.0 == 2));
    assert_eq!(fake.count(is_cancel), 3);
}

#[test]
fn loading_is_answered_with_503() {
    let server = Server::start(config()).unwrap();
    let mut client = Client::connect(server.address());
    client.send(get("/health"));
    let answer = client.answer();
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (503, Some("loading_model")));
    assert_eq!(answer.json()["error"]["progress"], 0.0);
    server.progress().reach(70);
    server.progress().reach(10);
    client.send(get("/health"));
    assert_eq!(client.answer().json()["error"]["progress"], 0.7, "it goes on, and never back");
    assert_eq!(answer.header("retry-after"), Some("5"));
    client.send(get("/livez"));
    assert_eq!(client.answer().status, 200);
    client.send(post("/v1/chat/completions", &chat("hi").to_string()));
    assert_eq!(client.answer().status, 503);
    server.handle().shutdown();
    assert_eq!(server.join(), Exit::Done);
}

#[test]
fn a_shutdown_lets_running_requests_finish_and_refuses_new_ones() {
    let bounds = Bounds { shutdown_time: Duration::from_millis(400), ..Bounds::default() };
    let fake = Fake::bounded(bounds, by_prompt(Script::Prefill));
    let mut running = Client::connect(fake.address());
    running.send(streamed("hang"));
    fake.wait_for("submit", |c| matches!(c, Command::Submit(_)));
    let mut kept = Client::connect(fake.address());
    kept.send(get("/health"));
    assert_eq!(kept.answer().status, 200);
    let address = fake.address();
    let end = thread::spawn(move || fake.end());
    // The state changes on another thread; a kept connection tells when.
    let deadline = Instant::now() + DEADLINE;
    loop {
        kept.send(get("/health"));
        let answer = kept.answer();
        if answer.status == 503 {
            assert_eq!(answer.json()["error"]["code"], "draining");
            assert_eq!(answer.header("connection"), Some("close"));
            break;
        }
        assert!(Instant::now() < deadline);
    }
    // The drain's time is over: the stream ends with an error event and without its last chunk.
    let answer = running.answer();
    assert!(!answer.complete);
    let error: Value = serde_json::from_str(answer.events().last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "draining");
    assert_eq!(end.join().unwrap(), Exit::Done);
    assert!(std::net::TcpStream::connect(address).is_err(), "still listening");
}

#[test]
fn a_second_signal_ends_at_once() {
    let fake = Fake::start(by_prompt(Script::Prefill));
    let mut running = Client::connect(fake.address());
    running.send(streamed("hang"));
    fake.wait_for("submit", |c| matches!(c, Command::Submit(_)));
    let server = fake.server.as_ref().unwrap().handle();
    server.shutdown();
    server.kill(15);
    assert_eq!(fake.end(), Exit::Signal(15));
    assert_eq!(Exit::Signal(15).code(), 143);
}

#[test]
fn the_death_of_the_engine_ends_every_request_and_the_process() {
    let mut fake = Fake::start(|submission| match submission.prompt.iter().any(|t| t.0 == u32::from(b'!')) {
        true => Script::Die,
        false => Script::Prefill,
    });
    let mut stream = Client::connect(fake.address());
    stream.send(streamed("hang"));
    stream.head();
    let whole = ask(fake.address(), "/v1/chat/completions", &chat("die!"));
    assert_eq!(whole.status, 500);
    let mut rest = Vec::new();
    let _ = stream.stream.read_to_end(&mut rest);
    assert!(String::from_utf8_lossy(&rest).contains("engine_error"));
    assert_eq!(fake.server.take().unwrap().join(), Exit::Internal);
    assert_eq!(Exit::Internal.code(), 70);
}

#[test]
fn hundreds_of_connections_come_and_go() {
    let fake = Fake::start(hello);
    let clients: Vec<Client> = (0..200).map(|_| Client::connect(fake.address())).collect();
    for mut client in clients {
        client.send(get("/health"));
        assert_eq!(client.answer().status, 200);
    }
}
