//! A last stage that is one, behind somebody who changes what it says: the first stage goes on living.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::stage::wire::{HEADER_BYTES, Header, Kind, frame};
use engine::step::Shape;
use engine_bin::stage::handshake::{Accepted, put_reason};

use super::process::{Last, PROMPT, ask_until_answered, body, told};
use crate::serve::client::ask;
use crate::serve::process::{Running, run};

fn read_frame(stream: &mut TcpStream) -> io::Result<(Kind, Vec<u8>, Vec<u8>)> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head)?;
    let header = Header::read(&head, 1 << 30).map_err(io::Error::other)?;
    let mut body = vec![0; header.len];
    stream.read_exact(&mut body)?;
    let whole = [&head[..], &body].concat();
    Ok((header.kind, body, whole))
}

/// Stands before a last stage. `alter` is shown each of its frames, with the number of the connection from 1, and sends
/// something itself or says with `false` that the frame goes on as it is.
fn behind(
    last: &Last,
    alter: impl Fn(usize, Kind, &[u8], &mut TcpStream) -> io::Result<bool> + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, there) = (listener.local_addr().unwrap(), last.address);
    std::thread::spawn(move || {
        for (n, client) in (1..).zip(listener.incoming()) {
            let (Ok(mut client), Ok(mut server)) = (client, TcpStream::connect(there)) else { return };
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
            while let Ok((kind, body, whole)) = read_frame(&mut server) {
                let sent = match alter(n, kind, &body, &mut client) {
                    Ok(false) => client.write_all(&whole),
                    other => other.map(drop),
                };
                if sent.is_err() {
                    break;
                }
            }
            let _ = client.shutdown(std::net::Shutdown::Both);
            let _ = server.shutdown(std::net::Shutdown::Both);
        }
    });
    address
}

fn say(to: &mut TcpStream, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<bool> {
    let mut out = Vec::new();
    frame(&mut out, kind, 0, write);
    to.write_all(&out).map(|()| true)
}

/// A first stage that ends by itself.
fn refused(peer: SocketAddr) -> (Option<i32>, String) {
    let (code, _, text) = run(&["--stage", "0/2", "--peer", &peer.to_string(), "--port", "0", "--threads", "1"]);
    (code, text)
}

#[test]
fn what_a_last_stage_says_of_its_model_is_held_against_the_first_ones() {
    let last = Last::start(&[]);
    let lies: [fn(&mut Shape); 7] = [
        |shape| shape.vocab = 1 << 39,
        |shape| shape.vocab = 1 << 20,
        |shape| shape.vocab = 0,
        |shape| shape.vocab = 3,
        |shape| shape.hidden_rows = 1 << 39,
        |shape| shape.context_train = 0,
        |shape| shape.hidden_width = 1 << 39,
    ];
    for (i, lie) in lies.into_iter().enumerate() {
        let peer = behind(&last, move |_, kind, body, to| {
            if kind != Kind::Accept {
                return Ok(false);
            }
            let mut accepted = Accepted::take(body).expect("an Accept");
            lie(&mut accepted.shape);
            say(to, Kind::Accept, |body| accepted.put(body))
        });
        let (code, text) = refused(peer);
        assert!(code == Some(3) && text.contains("stage 1 says"), "lie {i}: {code:?} {text}");
    }
}

/// A first stage, one connection of which says `wrong` in the place of every frame of a kind: it goes on with another one,
/// and is right.
fn outlives(kind: Kind, wrong: impl Fn(&[u8], &mut TcpStream) -> io::Result<bool> + Send + 'static) {
    let last = Last::start(&[]);
    let (seen, begun) = std::sync::mpsc::channel();
    // The last connection, and the one with the lie.
    let [count, lied] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let (counted, which) = (Arc::clone(&count), Arc::clone(&lied));
    let peer = behind(&last, move |n, found, body, to| {
        counted.store(n, Ordering::Relaxed);
        if found == kind {
            let _ = which.compare_exchange(0, n, Ordering::Relaxed, Ordering::Relaxed);
        }
        if found != kind || n != which.load(Ordering::Relaxed) {
            return Ok(false);
        }
        // The test looks at the first.
        let _ = seen.send(());
        wrong(body, to)
    });
    let flags = ["--stage", "0/2", "--peer", &peer.to_string(), "--stage-timeout", "2"];
    let staged = Running::start_with(&flags, Stdio::null());
    let asked = body(PROMPT, "mtp-suffix", 12);
    if kind == Kind::Reply {
        let lost = ask(staged.address, "/v1/completions", &asked);
        assert_eq!(lost.status, 503, "{}", lost.text());
    }
    begun.recv_timeout(crate::serve::client::DEADLINE).expect("it came to that");
    told(&ask_until_answered(staged.address, &asked));
    assert!(count.load(Ordering::Relaxed) > lied.load(Ordering::Relaxed), "it was another connection");
}

/// Says a frame as often as it is taken.
fn without_end(kind: Kind, to: &mut TcpStream) -> io::Result<bool> {
    let mut frames = Vec::new();
    frame(&mut frames, kind, 0, |_| {});
    let frames = frames.repeat(4000);
    loop {
        to.write_all(&frames)?;
    }
}

#[test]
fn answers_to_no_question_end_the_connection_and_the_next_serves() {
    outlives(Kind::Pong, |_, to| without_end(Kind::Pong, to));
    outlives(Kind::Pong, |_, to| without_end(Kind::Closing, to));
}

#[test]
fn a_reply_to_another_question_ends_the_connection_and_the_next_serves() {
    outlives(Kind::Reply, |body, to| {
        let mut out = Vec::new();
        frame(&mut out, Kind::Reply, 2, |reply| reply.extend_from_slice(body));
        to.write_all(&out).map(|()| true)
    });
    // Of the right number, and no reply.
    let sequence = AtomicUsize::new(0);
    outlives(Kind::Reply, move |body, to| {
        let mut out = Vec::new();
        let sequence = sequence.fetch_add(1, Ordering::Relaxed) as u64 + 1;
        frame(&mut out, Kind::Reply, sequence, |reply| reply.extend_from_slice(&body[1..]));
        to.write_all(&out).map(|()| true)
    });
}

/// Each side finds for itself that the other lacks the key.
#[test]
fn a_first_stage_believes_no_challenge_without_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "correct horse battery staple\n").unwrap();
    let key = key.to_str().unwrap();
    let keyed = Last::start(&["--stage-key-file", key]);
    let changed = |last: &Last, at: usize| {
        behind(last, move |_, kind, body, to| {
            if kind != Kind::Challenge {
                return Ok(false);
            }
            let mut other = body.to_vec();
            other[at] ^= 1;
            say(to, Kind::Challenge, |out| out.extend_from_slice(&other))
        })
    };
    // A nonce that the proof is not of, the flag of a key, the proof.
    for (at, reason) in [(0, "stage 1 has another key"), (32, "stage 1 has none"), (33, "stage 1 has another key")] {
        let peer = changed(&keyed, at).to_string();
        let flags = ["--stage", "0/2", "--peer", &peer, "--port", "0", "--threads", "1", "--stage-key-file", key];
        let (code, _, text) = run(&flags);
        assert!(code == Some(3) && text.contains(reason), "byte {at}: {code:?} {text}");
    }
    let (code, text) = refused(changed(&Last::start(&[]), 32));
    assert!(code == Some(3) && text.contains("stage 1 has a key and stage 0 has none"), "{code:?} {text}");
}

/// The Ledger was made for what the last stage was at first.
#[test]
fn a_last_stage_that_comes_back_as_another_is_refused_until_it_is_as_it_was() {
    let last = Last::start(&[]);
    let other = Arc::new(AtomicUsize::new(1));
    let now = Arc::clone(&other);
    let peer = behind(&last, move |n, kind, body, to| match kind {
        Kind::Accept if n > 1 && now.load(Ordering::Relaxed) == 1 => {
            let mut accepted = Accepted::take(body).expect("an Accept");
            (accepted.shape.mtp, accepted.shape.hidden_rows) = (false, 0);
            say(to, Kind::Accept, |body| accepted.put(body))
        }
        Kind::Reply if n == 1 => Err(io::ErrorKind::ConnectionReset.into()),
        _ => Ok(false),
    });
    let staged = Running::start_with(&["--stage", "0/2", "--peer", &peer.to_string()], Stdio::null());
    let asked = body(PROMPT, "mtp-suffix", 12);
    let deadline = std::time::Instant::now() + crate::serve::client::DEADLINE;
    loop {
        let answer = ask(staged.address, "/v1/completions", &asked);
        if answer.status == 503 && answer.text().contains("another MTP block than before") {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{}", answer.text());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    other.store(0, Ordering::Relaxed);
    told(&ask_until_answered(staged.address, &asked));
}

#[test]
fn a_refusal_is_shown_and_obeyed_by_no_terminal() {
    let last = Last::start(&[]);
    let peer = behind(&last, |_, kind, _, to| {
        assert_eq!(kind, Kind::Challenge);
        say(to, Kind::Refuse, |body| put_reason(body, "no\u{1b}]0;x\u{7}\nlistening on http://127.0.0.1:1"))
    });
    let (code, text) = refused(peer);
    assert!(code == Some(3) && text.contains("listening on http://127.0.0.1:1"), "{code:?} {text}");
    let forged = text.lines().any(|line| line.starts_with("listening on"));
    assert!(!forged && !text.contains(['\u{1b}', '\u{7}']), "{text:?}");
}
