//! Bytes from anywhere: every message of a real run comes back as it was, and nothing else is taken for one.

use engine::api::Strategy;
use engine::ids::TokenId;
use engine::stage::message::{Reply, put_reply, put_request, take_reply, take_request};
use engine::stage::wire::{HEADER_BYTES, Header, Kind, Put as _, Take, VERSION, WireError, frame};
use engine::stage::{Agreed, LastStage};
use engine::step::{Executor as _, LogitEdit, Step};
use engine_tests::drive::{Cell, Subject, run_on};

use super::{Bodies, machine, staged};

/// Requests and replies of a run with windows, prefill, penalties and several requests at once.
fn recorded() -> (Bodies, Agreed) {
    let mut subject = Subject::built_in();
    subject.max_tokens = 6;
    let cell = Cell { strategy: Strategy::MtpSuffix, window: 5, parallel: 2, chunk: 7, ..Cell::reference(0.8) };
    let (executor, wire) = staged(&subject, &cell, 1);
    wire.0.lock().record = Some(Vec::new());
    run_on(&subject, &cell, Box::new(executor));
    let mut wire = wire.0.lock();
    let agreed = wire.last.agreed().clone();
    let mut bodies = wire.record.take().expect("it was recorded");
    assert!(bodies.len() > 20);
    // Activations make most of the bytes and have no structure: the shortest of each shape tell as much.
    bodies.sort_by_key(|(request, reply)| request.len() + reply.len());
    (bodies, agreed)
}

#[test]
fn messages_of_a_run_come_back_as_they_were() {
    let (bodies, agreed) = recorded();
    for (request, reply) in &bodies {
        let read = take_request(request, &agreed).expect("a request");
        let mut again = Vec::new();
        put_request(&mut again, &read.step, read.answered, &read.rows);
        assert_eq!(&again, request);
        let answer = take_reply(reply, &read.step, &agreed).expect("a reply");
        let mut again = Vec::new();
        put_reply(&mut again, &answer.result, &answer.ahead);
        assert_eq!(&again, reply);
    }
}

#[test]
fn a_message_cut_anywhere_or_with_more_behind_it_is_refused() {
    let (bodies, agreed) = recorded();
    for (request, reply) in bodies.iter().take(6).chain(bodies.last()) {
        let step = take_request(request, &agreed).expect("a request").step;
        for end in (0..request.len()).step_by(if request.len() > 4096 { 61 } else { 1 }) {
            assert!(take_request(&request[..end], &agreed).is_err(), "cut at {end} of {}", request.len());
        }
        for end in 0..reply.len() {
            assert!(take_reply(&reply[..end], &step, &agreed).is_err(), "cut at {end} of {}", reply.len());
        }
        let longer = [&request[..], &[0]].concat();
        assert_eq!(take_request(&longer, &agreed).err(), Some(WireError::Trailing { bytes: 1 }));
        assert!(take_reply(&[&reply[..], &[0]].concat(), &step, &agreed).is_err());
    }
}

/// Whatever one word is changed to, the message is refused or is another one in order: nothing panics, and nothing is
/// looked up outside its table.
#[test]
fn no_word_of_a_message_can_do_harm() {
    let (bodies, agreed) = recorded();
    let words = [0, 1, 2, 0x7f, 0xffff, 0x7fff_ffff, u32::MAX - 1, u32::MAX];
    for (request, reply) in bodies.iter().take(4) {
        let good = take_request(request, &agreed).expect("a request").step;
        for at in 0..request.len().min(3000).saturating_sub(4) {
            for word in words {
                let mut bytes = request.clone();
                bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(word));
                if let Ok(read) = take_request(&bytes, &agreed) {
                    look_up(&read.step, &agreed);
                }
            }
        }
        for at in 0..reply.len().saturating_sub(4) {
            for word in words {
                let mut bytes = reply.clone();
                bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(word));
                let _ = take_reply(&bytes, &good, &agreed);
            }
        }
    }
}

/// What an executor looks up by numbers of a step.
fn look_up(step: &Step, agreed: &Agreed) {
    let trunk = &step.trunk;
    assert!(trunk.token.len() <= agreed.limits.step_rows);
    for s in 0..trunk.state.len() {
        let pages = &trunk.page[trunk.page_start[s] as usize..trunk.page_start[s + 1] as usize];
        let end = trunk.position[s] as usize + (trunk.row_start[s + 1] - trunk.row_start[s]) as usize;
        assert!(end <= pages.len() * 16 && pages.iter().all(|p| (p.0 as usize) < agreed.limits.pages));
    }
    for (i, row) in trunk.rules.row.iter().enumerate() {
        assert!((*row as usize) < trunk.token.len());
        assert!(trunk.rules.filters.get(trunk.rules.filter[i] as usize).is_some());
        assert!(
            trunk.rules.edit.get(trunk.rules.edit_start[i] as usize..trunk.rules.edit_start[i + 1] as usize).is_some()
        );
    }
    assert!(trunk.token.iter().chain(&step.mtp.token).all(|t| (t.0 as usize) < agreed.vocab_rows));
    assert!(trunk.state.iter().chain(&step.mtp.state).all(|s| s.index() < agreed.limits.slots));
}

#[test]
fn what_a_last_stage_cannot_run_is_refused_before_it_runs() {
    let subject = Subject::built_in();
    let cell = Cell { parallel: 2, ..Cell::reference(0.0) };
    let last = machine(&subject, &cell, 1, 1);
    let agreed = Agreed::new(last.model(), &cell.limits(), last.border_width());
    assert!(last.shape().mtp);
    let mut last = LastStage::new(last, agreed);
    for garbage in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 64], &[0; 7]] {
        let mut out = Vec::new();
        assert!(last.run(garbage, &mut out).is_err() && out.is_empty(), "{garbage:?}");
    }
}

#[test]
fn headers_say_what_is_wrong_with_them() {
    let mut good = Vec::new();
    frame(&mut good, Kind::Request, 7, |body| body.extend_from_slice(b"abc"));
    let header = |bytes: &[u8], most| Header::read(bytes[..HEADER_BYTES].try_into().unwrap(), most);
    let read = header(&good, 3).expect("a header");
    assert_eq!((read.kind, read.sequence, read.len), (Kind::Request, 7, 3));
    assert_eq!(read.check_body(&good[HEADER_BYTES..]), Ok(()));
    assert_eq!(read.check_body(b"abd"), Err(WireError::Check { part: "body" }));
    assert_eq!(header(&good, 2), Err(WireError::TooMuch { what: "the length of a frame", found: 3, most: 2 }));
    for at in 0..HEADER_BYTES {
        for bit in 0..8 {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            let error = header(&bytes, 1 << 30).expect_err("a changed header");
            match at {
                0..4 => assert!(matches!(error, WireError::Magic { .. }), "{error}"),
                4..6 => assert_eq!(error, WireError::Version { found: VERSION ^ (1 << bit << (8 * (at - 4))) }),
                _ => assert_eq!(error, WireError::Check { part: "header" }),
            }
        }
    }
    assert!(matches!(header(b"HTTP/1.1 400 Bad Request\r\nServer:", 9), Err(WireError::Magic { .. })));
}

/// Every time and every token of a reply, whatever the reply says otherwise.
#[test]
fn times_and_tokens_of_a_reply_are_bounded_where_they_are_read() {
    let (bodies, agreed) = recorded();
    type Change = fn(&mut Reply, u64) -> bool;
    fn set<T>(place: Option<&mut T>, value: T) -> bool {
        place.map(|place| *place = value).is_some()
    }
    let times: [Change; 5] = [
        |r, n| set(Some(&mut r.result.times.fill_ns), n),
        |r, n| set(Some(&mut r.result.times.draft_ns), n),
        |r, n| set(Some(&mut r.result.times.trunk_ns), n),
        |r, n| set(Some(&mut r.result.times.choose_ns), n),
        |r, n| set(Some(&mut r.ahead.ns), n),
    ];
    let tokens: [Change; 4] = [
        |r, n| set(r.result.draft.last_mut(), TokenId(n as u32)),
        |r, n| set(r.ahead.token.last_mut(), TokenId(n as u32)),
        |r, n| set(r.result.top.last_mut(), (TokenId(n as u32), 0.0)),
        |r, n| set(r.result.next.last_mut(), TokenId(n as u32)),
    ];
    let most = 2 * 3600 * 1_000_000_000;
    let rows = agreed.vocab_rows as u64;
    let all = times.into_iter().map(|change| (change, [most + 1, u64::MAX / 2, u64::MAX]));
    let all = all.chain(tokens.into_iter().map(|change| (change, [rows, 1 << 20, u64::from(u32::MAX) - 1])));
    for (i, (change, values)) in all.enumerate() {
        let mut changed = 0;
        for (request, reply) in &bodies {
            let step = take_request(request, &agreed).expect("a request").step;
            for value in values {
                let mut answer = take_reply(reply, &step, &agreed).expect("a reply");
                if i == 7 && !step.trunk.rules.row.is_empty() {
                    // Nobody asked for alternatives in this run; one is written into the column.
                    answer.result.top.push((TokenId(0), 0.0));
                    *answer.result.top_start.last_mut().expect("a start") += 1;
                }
                if change(&mut answer, value) {
                    let mut body = Vec::new();
                    put_reply(&mut body, &answer.result, &answer.ahead);
                    assert!(take_reply(&body, &step, &agreed).is_err(), "change {i}: {value} was taken");
                    changed += 1;
                }
            }
        }
        assert!(changed > 0, "change {i} found no place");
    }
}

/// A verdict of every kind that no pass can have.
#[test]
fn verdicts_that_cannot_be_are_refused() {
    let (bodies, agreed) = recorded();
    // `false`: the reply has no place for it.
    type Change = fn(&mut Reply, &Step) -> bool;
    let ruled = |step: &Step| !step.trunk.rules.row.is_empty();
    let cases: [(&str, Change); 10] = [
        ("more accepted than drafted", |r, step| {
            let trunk = &step.trunk;
            let Some(accepted) = r.result.accepted.first_mut() else { return false };
            *accepted = trunk.row_start[1] - trunk.committed[0] + 1;
            true
        }),
        ("nothing chosen", |r, step| {
            let ruled = step.trunk.rules.row.first().is_some_and(|row| *row < step.trunk.row_start[1]);
            ruled && r.result.next.first_mut().map(|next| *next = TokenId::NONE).is_some()
        }),
        ("a verdict less", |r, _| r.result.accepted.pop().is_some()),
        ("a choice less", |r, _| r.result.next.pop().is_some()),
        ("a fault more", |r, _| {
            r.result.fault.push(None);
            r.result.fault.len() > 1
        }),
        ("a log-probability less", |r, _| r.result.logprob.pop().is_some()),
        ("a start of alternatives more", |r, _| {
            let some = r.result.top_start.len() > 1;
            r.result.top_start.push(0);
            some
        }),
        ("a probability less", |r, _| r.result.draft_prob.pop().is_some()),
        ("a draft more than asked for", |r, step| {
            let Some(depth) = step.mtp.depth.first() else { return false };
            let more = depth + 1 - r.result.draft_start[1];
            for _ in 0..more {
                r.result.draft.insert(0, TokenId(1));
                r.result.draft_prob.insert(0, 0.5);
            }
            r.result.draft_start[1..].iter_mut().for_each(|start| *start += more);
            true
        }),
        ("a probability of what is drafted ahead less", |r, _| r.ahead.prob.pop().is_some()),
    ];
    assert!(bodies.iter().any(|(request, _)| ruled(&take_request(request, &agreed).expect("a request").step)));
    for (what, change) in cases {
        let mut changed = 0;
        for (request, reply) in &bodies {
            let step = take_request(request, &agreed).expect("a request").step;
            let mut answer = take_reply(reply, &step, &agreed).expect("a reply");
            if change(&mut answer, &step) {
                let mut body = Vec::new();
                put_reply(&mut body, &answer.result, &answer.ahead);
                assert!(take_reply(&body, &step, &agreed).is_err(), "{what} was taken");
                changed += 1;
            }
        }
        assert!(changed > 0, "{what} found no place");
    }
}

/// Rules that name what is not there, or draws that no row before them leads to.
#[test]
fn rules_that_cannot_be_followed_are_refused() {
    let (bodies, agreed) = recorded();
    type Change = fn(&mut Step, u32) -> bool;
    fn last(column: &mut [u32], value: u32) -> bool {
        column.last_mut().map(|x| *x = value).is_some()
    }
    let cases: [(&str, Change); 13] = [
        ("a filter", |s, _| last(&mut s.trunk.rules.filter, 99)),
        ("a mask", |s, _| last(&mut s.trunk.rules.mask, 0)),
        ("alternatives", |s, vocab| last(&mut s.trunk.rules.top_n, vocab + 1)),
        ("a row", |s, _| {
            let rows = s.trunk.token.len() as u32;
            last(&mut s.trunk.rules.row, rows)
        }),
        ("an order", |s, _| {
            let row = &mut s.trunk.rules.row;
            row.len() > 1 && {
                row.swap(0, 1);
                true
            }
        }),
        ("an edit", |s, vocab| {
            let rules = &mut s.trunk.rules;
            rules.edit.push(LogitEdit { token: TokenId(vocab), repeat: 1.0, add: 0.0 });
            !rules.row.is_empty() && rules.edit_start.last_mut().map(|start| *start += 1).is_some()
        }),
        ("a draw less", |s, _| s.trunk.rules.draw.pop().is_some()),
        ("a draft without the row before it", |s, _| {
            let rules = &mut s.trunk.rules;
            let gap = rules.row.windows(3).any(|w| w[0] + 2 == w[2]) && s.trunk.state.len() == 1;
            gap && {
                let n = rules.row.len() - 2;
                rules.row.remove(n);
                rules.filter.remove(n);
                rules.draw.remove(n);
                rules.mask.remove(n);
                rules.top_n.remove(n);
                rules.known.remove(n);
                let cut = rules.edit_start[n + 1] - rules.edit_start[n];
                rules.edit.drain(rules.edit_start[n] as usize..rules.edit_start[n + 1] as usize);
                rules.edit_start.remove(n);
                rules.edit_start[n..].iter_mut().for_each(|start| *start -= cut);
                true
            }
        }),
        ("a source less", |s, _| s.trunk.source.pop().is_some()),
        ("a known token", |s, vocab| s.trunk.rules.known.last_mut().map(|x| *x = TokenId(vocab)).is_some()),
        ("a known token less", |s, _| s.trunk.rules.known.len() > 1 && s.trunk.rules.known.pop().is_some()),
        ("a draft whose successor is known", |s, _| {
            let window = s.trunk.state.len() == 1 && s.trunk.rules.row.len() > 1;
            window && s.trunk.rules.known.last_mut().map(|x| *x = TokenId(0)).is_some()
        }),
        ("a draft behind a row whose successor is known", |s, _| {
            let window = s.trunk.state.len() == 1 && s.trunk.rules.row.len() > 1;
            window && s.trunk.rules.known.first_mut().map(|x| *x = TokenId(0)).is_some()
        }),
    ];
    for (what, change) in cases {
        let mut changed = 0;
        for (request, _) in &bodies {
            let mut read = take_request(request, &agreed).expect("a request");
            if change(&mut read.step, agreed.vocab as u32) {
                let mut body = Vec::new();
                put_request(&mut body, &read.step, read.answered, &read.rows);
                assert!(take_request(&body, &agreed).is_err(), "{what} was taken");
                changed += 1;
            }
        }
        assert!(changed > 0, "{what} found no place");
    }
    for (request, _) in &bodies {
        let read = take_request(request, &agreed).expect("a request");
        let more = [&read.rows[..], &[0.0]].concat();
        for rows in [&more[..], &read.rows[..read.rows.len().saturating_sub(1)]] {
            let mut body = Vec::new();
            put_request(&mut body, &read.step, read.answered, rows);
            assert_eq!(take_request(&body, &agreed).is_err(), rows.len() != read.rows.len(), "activations");
        }
    }
}

/// Before anything is made of it, whatever the bytes behind it.
#[test]
fn a_length_above_what_was_agreed_is_refused() {
    let mut body = Vec::new();
    body.put_words([1, 2, 3].into_iter());
    assert_eq!(Take::new(&body).words("words", 3, |x| x), Ok(vec![1, 2, 3]));
    let error = WireError::TooMuch { what: "words", found: 3, most: 2 };
    assert_eq!(Take::new(&body).words("words", 2, |x| x), Err(error.clone()));
    assert_eq!(Take::new(&body).bytes("words", 2).map(<[u8]>::len), Err(error));
}

#[test]
fn words_of_a_peer_are_nothing_that_a_terminal_obeys() {
    let mut body = Vec::new();
    body.put_bytes("gone: \"x\"\u{1b}[2J\nlistening on \u{9b}1m\u{202e}\u{200b}Stra\u{df}e\r".as_bytes());
    let text = Take::new(&body).text("a reason", 4096).expect("text");
    assert_eq!(text, "gone: \"x\"\\u{1b}[2J\\nlistening on \\u{9b}1m\\u{202e}\\u{200b}Stra\u{df}e\\r");
}
