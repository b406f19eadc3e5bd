//! Who else comes to a last stage: sockets that say nothing, a second first stage, and one that is the first stage and does
//! not speak as one.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use engine::exec::CpuExecutor;
use engine::model::load::Planned;
use engine::stage::Agreed;
use engine::stage::message::put_request;
use engine::stage::wire::{HEADER_BYTES, Header, Kind, frame};
use engine::step::Step;
use engine_bin::flags::LowArgs;
use engine_bin::serve::start;
use engine_bin::stage::facts::Facts;
use engine_bin::stage::handshake::{Accepted, put_greeting, put_offer, take_challenge, take_reason};

use super::process::{Last, PROMPT, body, first, told};
use crate::serve::client::{DEADLINE, ask};
use crate::serve::process::{Running, program};

/// A first stage that is not ready yet.
fn first_without_waiting(last: &Last) -> Child {
    Command::new(program("engine-serve"))
        .args(["--port", "0", "--threads", "1", "--stage", "0/2", "--peer", &last.address.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn ready(mut child: Child) -> Running {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let served = line.trim_end().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}"));
    Running { address: served.parse().unwrap(), child }
}

#[test]
fn sockets_that_say_nothing_keep_nobody_out() {
    let last = Last::start(&[]);
    let mut half = Vec::new();
    frame(&mut half, Kind::Hello, 0, |body| put_greeting(body, &[7; 32], false, None));
    let idle: Vec<TcpStream> = (0..50)
        .map(|i| {
            let mut stream = TcpStream::connect(last.address).unwrap();
            // Some have begun.
            stream.write_all(&half[..if i % 3 == 0 { half.len() } else { 0 }]).unwrap();
            stream
        })
        .collect();
    let staged = first(&last, &[]);
    let want = told(&ask(staged.address, "/v1/completions", &body(PROMPT, "mtp", 12)));
    // More of them while it is served.
    let more: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(last.address).unwrap()).collect();
    assert_eq!(told(&ask(staged.address, "/v1/completions", &body(PROMPT, "mtp", 12))), want);
    drop((idle, more));
}

#[test]
fn a_second_first_stage_is_told_to_wait_and_then_served() {
    let last = Last::start(&[]);
    let staged = first(&last, &[]);
    let want = told(&ask(staged.address, "/v1/completions", &body(PROMPT, "mtp", 12)));
    let mut second = first_without_waiting(&last);
    let mut log = BufReader::new(second.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("serves another first stage") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "the second first stage ends without a word");
    }
    let drain = std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    // That has disturbed nothing.
    assert_eq!(told(&ask(staged.address, "/v1/completions", &body(PROMPT, "mtp", 12))), want);
    drop(staged);
    let second = ready(second);
    assert_eq!(told(&ask(second.address, "/v1/completions", &body(PROMPT, "mtp", 12))), want);
    drop(second);
    drain.join().unwrap().unwrap();
}

/// What the first stage of the built-in model says of itself.
fn facts() -> (Facts, Agreed) {
    let line = ["engine-serve", "--threads", "1", "--stage", "0/2", "--peer", "h:1"].iter().map(Into::into);
    let args = LowArgs::parse_line(line).unwrap().resolve().unwrap();
    let file = start::open(&args).unwrap().model;
    let size = &args.low.size;
    let load = engine::model::load::LoadOptions { stage: args.low.stage.choice(), ..size.load_options() };
    let planned = Planned::new(&file, None, load).unwrap();
    let limits = size.limits(&planned, None);
    let options = size.exec_options();
    let model = std::sync::Arc::new(planned.load(&file, None, load.repack).unwrap());
    let executor = CpuExecutor::new(std::sync::Arc::clone(&model), limits.clone(), options);
    let agreed = Agreed::new(&model, &limits, executor.border_width());
    let sizes = (agreed.vocab_rows, agreed.border_width);
    (Facts::new(&file, model.stage, sizes, &limits, &options).unwrap(), agreed)
}

/// A first stage by hand.
struct Raw(TcpStream);

impl Raw {
    fn say(&mut self, kind: Kind, sequence: u64, write: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        frame(&mut out, kind, sequence, write);
        self.0.write_all(&out).unwrap();
    }

    fn hear(&mut self) -> (Header, Vec<u8>) {
        let mut head = [0; HEADER_BYTES];
        self.0.read_exact(&mut head).unwrap();
        let header = Header::read(&head, 1 << 30).unwrap();
        let mut body = vec![0; header.len];
        self.0.read_exact(&mut body).unwrap();
        header.check_body(&body).unwrap();
        (header, body)
    }

    /// A socket of somebody who has said nothing yet.
    fn new(last: &Last) -> Self {
        let stream = TcpStream::connect(last.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Self(stream)
    }

    /// Passes the handshake with a last stage of the built-in model that has no key.
    fn connect(last: &Last) -> (Self, Agreed) {
        let (facts, agreed) = facts();
        let mut raw = Self::new(last);
        raw.say(Kind::Hello, 0, |body| put_greeting(body, &[7; 32], false, None));
        let (header, challenge) = raw.hear();
        assert_eq!(header.kind, Kind::Challenge);
        take_challenge(&challenge).unwrap();
        raw.say(Kind::Offer, 0, |body| put_offer(body, &[0; 32], &facts));
        let (header, accept) = raw.hear();
        assert_eq!(header.kind, Kind::Accept);
        assert!(Accepted::take(&accept).unwrap().shape.mtp);
        (raw, agreed)
    }

    fn request(&mut self, sequence: u64, step: &Step) {
        self.say(Kind::Request, sequence, |body| put_request(body, step, false, &[]));
    }
}

#[test]
fn an_accepted_peer_that_does_not_speak_as_one_is_told_why_and_the_next_is_served() {
    use engine::ids::StateSlot;
    use engine::step::SlotOp;
    let last = Last::start(&[]);
    let reset = Step { ops: vec![SlotOp::Reset { state: StateSlot(0) }], ..Step::default() };
    let cut = Step { ops: vec![SlotOp::Truncate { state: StateSlot(0), kv_len: 9 }], ..Step::default() };
    type Say = fn(&mut Raw, &Step, &Step);
    let cases: [(Say, &str); 6] = [
        (|raw, reset, _| raw.request(1, reset), "has number 1, expected 2"),
        (|raw, reset, _| raw.request(3, reset), "has number 3, expected 2"),
        (|raw, reset, _| raw.request(0, reset), "has number 0, expected 2"),
        (|raw, _, cut| raw.request(2, cut), "truncated to 9 of 0 positions"),
        (|raw, _, _| raw.say(Kind::Hello, 0, |body| body.extend([0; 33])), "Hello came where Request was expected"),
        (|raw, _, _| raw.say(Kind::Request, 2, |body| body.extend([9; 40])), "the answered flag"),
    ];
    for (say, reason) in cases {
        let (mut raw, _) = Raw::connect(&last);
        raw.request(1, &reset);
        assert_eq!(raw.hear().0.kind, Kind::Reply);
        say(&mut raw, &reset, &cut);
        let (header, body) = raw.hear();
        let text = take_reason(&body).unwrap();
        assert!(header.kind == Kind::Refuse && text.contains(reason), "{reason:?}: {:?} {text}", header.kind);
        assert_eq!(raw.0.read(&mut [0; 8]).unwrap_or(0), 0, "the connection ends");
    }
    let staged = first(&last, &[]);
    assert_eq!(ask(staged.address, "/v1/completions", &body("x", "off", 4)).status, 200);
}

/// A peer that always has a frame ready does not keep a stage that was told to end.
#[test]
fn pings_without_end_do_not_keep_a_last_stage() {
    let mut last = Last::start(&[]);
    let (Raw(mut stream), _) = Raw::connect(&last);
    let mut answers = stream.try_clone().unwrap();
    let reader = std::thread::spawn(move || std::io::copy(&mut answers, &mut std::io::sink()));
    let writer = std::thread::spawn(move || {
        let mut pings = Vec::new();
        frame(&mut pings, Kind::Ping, 0, |_| {});
        let pings = pings.repeat(2000);
        while stream.write_all(&pings).is_ok() {}
    });
    std::thread::sleep(std::time::Duration::from_millis(200));
    last.signal("-TERM");
    assert_eq!(last.end(), Some(0));
    writer.join().unwrap();
    // It ends with the connection, reset or not.
    let _ = reader.join().unwrap();
}

/// Without the key nobody gets as far as an `Accept`: not by a guess, not with the last stage's own proof, and not by saying
/// that there is none.
#[test]
fn a_last_stage_with_a_key_lets_in_nobody_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "correct horse battery staple\n").unwrap();
    let last = Last::start(&["--stage-key-file", key.to_str().unwrap()]);
    let (facts, _) = facts();
    type Proof = fn(&[u8; 32]) -> [u8; 32];
    let proofs: [Proof; 3] = [|_| [0; 32], |theirs| *theirs, |theirs| theirs.map(|byte| !byte)];
    for (i, proof) in proofs.into_iter().enumerate() {
        let mut raw = Raw::new(&last);
        raw.say(Kind::Hello, 0, |body| put_greeting(body, &[7; 32], true, None));
        let (_, challenge) = raw.hear();
        let (_, keyed, theirs) = take_challenge(&challenge).unwrap();
        assert!(keyed);
        raw.say(Kind::Offer, 0, |body| put_offer(body, &proof(&theirs), &facts));
        let (header, body) = raw.hear();
        assert_eq!(header.kind, Kind::Refuse, "proof {i}");
        assert!(take_reason(&body).unwrap().contains("stage 0 has another key"), "proof {i}");
    }
    let mut raw = Raw::new(&last);
    raw.say(Kind::Hello, 0, |body| put_greeting(body, &[7; 32], false, None));
    let (header, body) = raw.hear();
    assert_eq!(header.kind, Kind::Refuse, "nothing is proven to somebody without a key");
    assert!(take_reason(&body).unwrap().contains("stage 1 has a key and stage 0 has none"));
}

/// Whatever a connection has left, the next one begins with nothing.
#[test]
fn a_last_stage_forgets_its_first_stage_with_the_connection() {
    use engine::ids::{PageId, StateSlot, TokenId};
    use engine::step::{SlotOp, Source, TrunkWork};
    let last = Last::start(&[]);
    let (mut raw, agreed) = Raw::connect(&last);
    let state = StateSlot(0);
    let trunk = TrunkWork {
        state: vec![state],
        position: vec![0],
        committed: vec![2],
        row_start: vec![0, 2],
        page_start: vec![0, 1],
        page: vec![PageId(0)],
        token: vec![TokenId(3); 2],
        source: vec![Source::Prompt; 2],
        ..TrunkWork::default()
    };
    let two = Step { ops: vec![SlotOp::Reset { state }], trunk, ..Step::default() };
    let rows = vec![0.5; 2 * agreed.border_width];
    raw.say(Kind::Request, 1, |body| put_request(body, &two, false, &rows));
    assert_eq!(raw.hear().0.kind, Kind::Reply);
    let same = Step { ops: vec![SlotOp::Truncate { state, kv_len: 2 }], ..Step::default() };
    raw.request(2, &same);
    assert_eq!(raw.hear().0.kind, Kind::Reply, "within the connection it is there");
    drop(raw);
    let (mut raw, _) = Raw::connect(&last);
    raw.request(1, &same);
    let (header, body) = raw.hear();
    assert_eq!(header.kind, Kind::Refuse);
    assert!(take_reason(&body).unwrap().contains("truncated to 2 of 0 positions"));
}

/// Told to end, it answers as long as there is something to answer, and for no longer than its bound.
#[test]
fn a_last_stage_that_was_told_to_end_answers_as_long_as_it_is_asked() {
    use engine::ids::StateSlot;
    use engine::step::SlotOp;
    let mut last = Last::start(&[]);
    let (mut raw, _) = Raw::connect(&last);
    let reset = Step { ops: vec![SlotOp::Reset { state: StateSlot(0) }], ..Step::default() };
    last.signal("-TERM");
    assert_eq!(raw.hear().0.kind, Kind::Closing);
    // Longer in all than it would stay for somebody who asks nothing.
    for sequence in 1..=8 {
        std::thread::sleep(std::time::Duration::from_millis(400));
        raw.request(sequence, &reset);
        assert_eq!(raw.hear().0.kind, Kind::Reply, "request {sequence}");
    }
    assert_eq!(last.end(), Some(0));
}
