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

#[test]
fn answers_to_no_question_end_the_connection_and_the_next_serves() {
    let last = Last::start(&[]);
    let (seen, begun) = std::sync::mpsc::channel();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let peer = behind(&last, move |n, kind, _, to| {
        counted.store(n, Ordering::Relaxed);
        if n > 1 || kind != Kind::Pong {
            return Ok(false);
        }
        let mut pongs = Vec::new();
        frame(&mut pongs, Kind::Pong, 0, |_| {});
        let pongs = pongs.repeat(4000);
        seen.send(()).expect("the test waits");
        loop {
            to.write_all(&pongs)?;
        }
    });
    let flags = ["--stage", "0/2", "--peer", &peer.to_string(), "--stage-timeout", "2"];
    let staged = Running::start_with(&flags, Stdio::null());
    begun.recv_timeout(crate::serve::client::DEADLINE).expect("a ping was sent");
    told(&ask_until_answered(staged.address, &body(PROMPT, "mtp-suffix", 12)));
    assert!(count.load(Ordering::Relaxed) > 1, "it was another connection");
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
