//! Calls as a host makes them, wrong ones above all.

use std::ffi::c_char;

use super::*;

const SMALL: &str = r#"{"ctx_size": 256, "parallel": 1, "threads": 1}"#;

fn text(fill: impl Fn(*mut c_char, usize, *mut usize) -> Status) -> String {
    let (mut buffer, mut length) = (vec![0_u8; 1 << 16], 0);
    let status = fill(buffer.as_mut_ptr().cast(), buffer.len(), &raw mut length);
    assert_eq!(status, Status::Ok);
    buffer.truncate(length);
    String::from_utf8(buffer).unwrap()
}

fn last_error() -> String {
    // SAFETY: `text` gives a buffer of the length beside it.
    text(|buffer, capacity, length| unsafe { slipstream_last_error(buffer, capacity, length) })
}

fn open(config: &str) -> Result<u64, Status> {
    let mut handle = 7;
    // SAFETY: as long as it says.
    match unsafe { slipstream_open(config.as_ptr().cast(), config.len(), &raw mut handle) } {
        Status::Ok => Ok(handle),
        status => {
            assert_eq!(handle, 0, "no handle where none was opened");
            Err(status)
        }
    }
}

fn request(endpoint: u32, json: &str) -> Request {
    Request {
        struct_size: size_of::<Request>(),
        endpoint,
        json: json.as_ptr().cast(),
        json_len: json.len(),
        tokens: std::ptr::null(),
        tokens_len: 0,
    }
}

fn submit(handle: u64, request: &Request) -> Result<u64, Status> {
    let mut id = 7;
    // SAFETY: a whole struct; its text is a `str`.
    match unsafe { slipstream_submit(handle, request, &raw mut id) } {
        Status::Ok => Ok(id),
        status => Err(status),
    }
}

/// Room for one event.
struct Room {
    events: Vec<Event>,
    bytes: Vec<u8>,
    tokens: Vec<u32>,
    batch: Batch,
}

impl Room {
    fn new(bytes: usize) -> Self {
        let (mut bytes, mut tokens) = (vec![0; bytes], vec![0; 256]);
        let mut events = Vec::with_capacity(1);
        let batch = Batch {
            struct_size: size_of::<Batch>(),
            event_size: size_of::<Event>(),
            events: events.as_mut_ptr(),
            events_max: 1,
            bytes: bytes.as_mut_ptr().cast(),
            bytes_max: bytes.len(),
            tokens: tokens.as_mut_ptr(),
            tokens_max: tokens.len(),
            events_len: 0,
            bytes_len: 0,
            tokens_len: 0,
        };
        Self { events, bytes, tokens, batch }
    }

    fn poll(&mut self, handle: u64, request: u64, timeout_ms: u64) -> Status {
        // SAFETY: the vectors live beside the batch and are not used meanwhile.
        unsafe { slipstream_poll(handle, request, timeout_ms, &raw mut self.batch) }
    }

    fn event(&mut self) -> Option<Event> {
        // SAFETY: the call wrote as many as it says, and there is room for one.
        unsafe { self.events.set_len(self.batch.events_len) };
        self.events.pop()
    }
}

#[test]
fn a_number_that_is_no_handle_is_told_so() {
    let handle = open(SMALL).unwrap();
    let body = request(Endpoint::Tokenize as u32, r#"{"content": "x"}"#);
    let mut room = Room::new(64);
    let mut stats = Stats { struct_size: size_of::<Stats>(), ..Stats::default() };
    assert_eq!(slipstream_close(handle), Status::Ok);
    for bad in [handle, 0, 1, u64::MAX, handle + 1, handle ^ (1 << 32)] {
        assert_eq!(submit(bad, &body), Err(Status::Handle));
        assert_eq!(room.poll(bad, 0, 0), Status::Handle);
        assert_eq!(slipstream_cancel(bad, 1), Status::Handle);
        assert_eq!(slipstream_close(bad), Status::Handle, "{bad:#x}");
        // SAFETY: a whole struct, and no buffer.
        unsafe {
            assert_eq!(slipstream_get_stats(bad, &raw mut stats), Status::Handle);
            let mut length = 0;
            assert_eq!(slipstream_about(bad, std::ptr::null_mut(), 0, &raw mut length), Status::Handle);
        }
        assert!(last_error().contains(&format!("{bad:#x}")));
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let handle = open(SMALL).unwrap();
    let good = request(Endpoint::Tokenize as u32, r#"{"content": "x"}"#);
    let token = 5_u32;
    let rows = [
        (Request { struct_size: 0, ..good }, "struct_size"),
        (Request { endpoint: 0, ..good }, "0 is no slipstream_endpoint"),
        (Request { endpoint: 9, ..good }, "9 is no slipstream_endpoint"),
        (Request { json: std::ptr::null(), ..good }, "json is null"),
        (Request { json_len: usize::MAX, ..good }, "json has"),
        (Request { tokens: &raw const token, tokens_len: 1, ..good }, "tokens are for"),
        (Request { endpoint: Endpoint::Tokens as u32, tokens_len: 1, json_len: 0, ..good }, "tokens is null"),
        (request(Endpoint::Tokens as u32, "{"), "options"),
    ];
    for (bad, told) in &rows {
        assert_eq!(submit(handle, bad), Err(Status::Argument), "{told}");
        assert!(last_error().contains(told), "{}", last_error());
    }
    let mut room = Room::new(64);
    // SAFETY: null is refused, and the rest are whole structs.
    unsafe {
        let mut id = 0;
        assert_eq!(slipstream_submit(handle, std::ptr::null(), &raw mut id), Status::Argument);
        assert_eq!(slipstream_submit(handle, &raw const good, std::ptr::null_mut()), Status::Argument);
        assert_eq!(slipstream_poll(handle, 0, 0, std::ptr::null_mut()), Status::Argument);
        assert_eq!(slipstream_get_stats(handle, std::ptr::null_mut()), Status::Argument);
        assert_eq!(slipstream_about(handle, std::ptr::null_mut(), 0, std::ptr::null_mut()), Status::Argument);
        assert_eq!(slipstream_open(SMALL.as_ptr().cast(), SMALL.len(), std::ptr::null_mut()), Status::Argument);
    }
    assert_eq!(room.poll(handle, 99, 0), Status::NoRequest);
    assert_eq!(slipstream_cancel(handle, 99), Status::NoRequest);
    for (config, status) in
        [("{", Status::Usage), (r#"{"port": 1}"#, Status::Usage), (r#"{"model": "no.gguf"}"#, Status::Refused)]
    {
        assert_eq!(open(config), Err(status), "{config}");
        let said = last_error();
        let mut length = 0;
        // SAFETY: no room is asked for.
        let status_again = unsafe {
            slipstream_preflight(config.as_ptr().cast(), config.len(), std::ptr::null_mut(), 0, &raw mut length)
        };
        assert_eq!((status_again, last_error()), (status, said));
    }
    assert_eq!(slipstream_close(handle), Status::Ok);
}

#[test]
fn what_is_too_long_is_refused_before_it_is_copied() {
    const HUGE: usize = 1 << 40;
    let handle = open(SMALL).unwrap();
    // Readable to its end, and more than any machine can copy: a copy would end the process.
    let room = memmap2::MmapOptions::new().len(HUGE).no_reserve_swap().map_anon().unwrap();
    let json = Request { json: room.as_ptr().cast(), json_len: HUGE, ..request(Endpoint::Chat as u32, "") };
    let tokens = Request {
        tokens: room.as_ptr().cast(),
        tokens_len: HUGE / size_of::<u32>(),
        ..request(Endpoint::Tokens as u32, "")
    };
    for long in [json, tokens] {
        assert_eq!(submit(handle, &long), Err(Status::Argument));
        assert!(last_error().contains("larger than"), "{}", last_error());
    }
    assert_eq!(slipstream_close(handle), Status::Ok);
}

#[test]
fn an_event_that_does_not_fit_stays() {
    let handle = open(SMALL).unwrap();
    let body = request(Endpoint::Completions as u32, r#"{"prompt": "x", "max_tokens": 3, "return_token_ids": true}"#);
    let id = submit(handle, &body).unwrap();
    let mut room = Room::new(16);
    assert_eq!(room.poll(handle, id, SLIPSTREAM_FOREVER), Status::TooSmall);
    let needed = room.batch.bytes_len;
    assert!(needed > 16 && room.batch.tokens_len == 3 && room.event().is_none(), "{needed}");
    assert!(last_error().contains(&format!("{needed} bytes and 3 token ids")));
    let mut room = Room::new(needed);
    assert_eq!(room.poll(handle, 0, SLIPSTREAM_FOREVER), Status::Ok);
    let event = room.event().unwrap();
    assert_eq!((event.request, event.kind, event.status), (id, Kind::Answer, 200));
    assert_eq!((event.json_len, event.tokens_len, event.tokens), (needed, 3, room.tokens.as_ptr()));
    let answer: serde_json::Value = serde_json::from_slice(&room.bytes).unwrap();
    assert_eq!(answer["choices"][0]["token_ids"], serde_json::json!(room.tokens[..3]));
    // Nothing in time is no failure.
    assert_eq!((room.poll(handle, 0, 1), room.batch.events_len), (Status::Ok, 0));
    // SAFETY: `text` gives a buffer of the length beside it.
    let about = text(|buffer, capacity, length| unsafe { slipstream_about(handle, buffer, capacity, length) });
    let mut length = 0;
    // SAFETY: no room is asked for.
    let status = unsafe { slipstream_about(handle, std::ptr::null_mut(), 0, &raw mut length) };
    assert_eq!((status, length), (Status::TooSmall, about.len()));
    assert_eq!(slipstream_close(handle), Status::Ok);
}

#[test]
fn pages_are_told_with_their_numbers() {
    let handle = open(r#"{"ctx_size": 256, "parallel": 1, "threads": 1, "page_events": true}"#).unwrap();
    let body = request(Endpoint::Completions as u32, r#"{"prompt": "def add(a, b):", "max_tokens": 3}"#);
    let id = submit(handle, &body).unwrap();
    let mut room = Room::new(1 << 16);
    let mut pages = Vec::new();
    loop {
        assert_eq!(room.poll(handle, 0, SLIPSTREAM_FOREVER), Status::Ok);
        let event = room.event().unwrap();
        assert_eq!(event.request, id);
        if event.kind != Kind::Pages {
            break;
        }
        assert_eq!(event.sequence, pages.len() as u64);
        pages.push((event.pages_held, event.pages_free));
    }
    assert!(pages.len() > 1 && pages[0].0 > 0, "{pages:?}");
    assert_eq!(pages.last(), Some(&(0, 16)), "256 positions in pages of 16 are free again");
    assert_eq!(slipstream_close(handle), Status::Ok);
}

#[test]
fn counters_keep_their_places() {
    let drafts = |n| embed::DraftCounts {
        drafted: n,
        accepted: n + 1,
        rejected: n + 2,
        unreached: n + 3,
        discarded: n + 4,
        ..embed::DraftCounts::default()
    };
    let found = counted(&embed::Stats {
        requests: 1,
        events: 2,
        running: 3,
        waiting: 4,
        prompt_tokens: 5,
        completion_tokens: 6,
        mtp: drafts(10),
        suffix: drafts(20),
        threads: 7,
    });
    let told = |d: &Drafts| [d.drafted, d.accepted, d.rejected, d.unreached, d.discarded];
    assert_eq!((told(&found.mtp), told(&found.suffix)), ([10, 11, 12, 13, 14], [20, 21, 22, 23, 24]));
    let Stats { requests, events, running, waiting, prompt_tokens, completion_tokens, threads, .. } = found;
    assert_eq!([requests, events, running, waiting, prompt_tokens, completion_tokens, threads], [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_poll_that_waits_ends_with_its_handle() {
    let handle = open(SMALL).unwrap();
    let waits = std::thread::spawn(move || Room::new(64).poll(handle, 0, SLIPSTREAM_FOREVER));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(slipstream_close(handle), Status::Ok);
    // Where it had not begun, there is no handle any more.
    assert!(matches!(waits.join().unwrap(), Status::Closed | Status::Handle));
    assert_eq!(slipstream_abi(), SLIPSTREAM_ABI);
}

/// A pointer that no value of its type can stand at is refused by every function, before it is used.
#[test]
fn crooked_pointers_are_refused_everywhere() {
    let handle = open(SMALL).unwrap();
    let mut bytes = [0_u8; 256];
    let crooked = bytes.as_mut_ptr().wrapping_add(1 + bytes.as_ptr().align_offset(8));
    let (mut room, mut length, mut id) = (Room::new(64), 0, 0);
    let good = request(Endpoint::Tokenize as u32, r#"{"content": "x"}"#);
    let tokens =
        Request { endpoint: Endpoint::Tokens as u32, json_len: 0, tokens: crooked.cast(), tokens_len: 1, ..good };
    let config = SMALL.as_ptr().cast();
    let whole = room.batch;
    // SAFETY: what is refused is not read or written, and the rest are whole structs and buffers.
    unsafe {
        assert_eq!(slipstream_open(config, SMALL.len(), crooked.cast()), Status::Argument);
        assert_eq!(slipstream_preflight(config, SMALL.len(), crooked.cast(), 0, crooked.cast()), Status::Argument);
        assert_eq!(slipstream_about(handle, std::ptr::null_mut(), 0, crooked.cast()), Status::Argument);
        assert_eq!(slipstream_about(handle, std::ptr::null_mut(), 1 << 20, &raw mut length), Status::Argument);
        assert_eq!(slipstream_submit(handle, crooked.cast(), &raw mut id), Status::Argument);
        assert_eq!(slipstream_submit(handle, &raw const good, crooked.cast()), Status::Argument);
        assert_eq!(slipstream_submit(handle, &raw const tokens, &raw mut id), Status::Argument);
        assert_eq!(slipstream_poll(handle, 0, 0, crooked.cast()), Status::Argument);
        assert_eq!(slipstream_get_stats(handle, crooked.cast()), Status::Argument);
        assert_eq!(slipstream_last_error(std::ptr::null_mut(), 0, crooked.cast()), Status::Argument);
    }
    assert!(last_error().contains("not aligned"), "{}", last_error());
    for (batch, told) in [
        (Batch { events: crooked.cast(), ..whole }, "events is not aligned"),
        (Batch { tokens: crooked.cast(), ..whole }, "tokens is not aligned"),
        (Batch { events_max: 0, ..whole }, "events_max is 0"),
        (Batch { event_size: 0, ..whole }, "event_size is 0"),
        (Batch { event_size: usize::MAX, ..whole }, "event_size is"),
        (Batch { struct_size: 0, ..whole }, "struct_size"),
        (Batch { struct_size: usize::MAX, ..whole }, "struct_size"),
        (Batch { bytes: std::ptr::null_mut(), ..whole }, "bytes is null"),
    ] {
        room.batch = batch;
        assert_eq!(room.poll(handle, 0, 0), Status::Argument, "{told}");
        assert!(last_error().contains(told), "{told}: {}", last_error());
    }
    assert_eq!(bytes, [0; 256], "nothing was written");
    assert_eq!(slipstream_close(handle), Status::Ok);
}

/// Text has a length: what is in it decides nothing but the answer.
#[test]
fn any_bytes_are_an_answer() {
    let handle = open(SMALL).unwrap();
    let bodies: [&[u8]; 6] =
        [b"", b"\0", b"{\"content\": \"\0\"}", b"\xff\xfe", b"{\"content\": \"\xff\"}", b"{\"content\": 1e999}"];
    let mut room = Room::new(4096);
    for body in bodies {
        let request =
            Request { json: body.as_ptr().cast(), json_len: body.len(), ..request(Endpoint::Tokenize as u32, "") };
        let id = submit(handle, &request).unwrap();
        assert_eq!(room.poll(handle, id, SLIPSTREAM_FOREVER), Status::Ok);
        let event = room.event().unwrap();
        assert_eq!((event.kind, event.status), (Kind::Error, 400), "{body:?}");
        assert_eq!(room.poll(handle, id, SLIPSTREAM_FOREVER), Status::NoRequest, "it was the last");
        assert_eq!(slipstream_cancel(handle, id), Status::NoRequest);
    }
    // One that is over, and whose event waits: there is nothing to cancel, and nothing is lost.
    let id = submit(handle, &request(Endpoint::Tokenize as u32, r#"{"content": "x\u0000y"}"#)).unwrap();
    let mut small = Room::new(0);
    assert_eq!(small.poll(handle, id, SLIPSTREAM_FOREVER), Status::TooSmall);
    assert_eq!(slipstream_cancel(handle, id), Status::NoRequest);
    assert_eq!(room.poll(handle, id, 0), Status::Ok);
    assert_eq!(room.event().unwrap().kind, Kind::Answer);
    // More than a handle reads is refused at once, and not copied.
    let long = vec![b' '; 64 << 20];
    let long = Request { json: long.as_ptr().cast(), json_len: long.len(), ..request(Endpoint::Chat as u32, "") };
    assert_eq!(submit(handle, &long), Err(Status::Argument));
    for config in [&b"\0"[..], b"{\"model\": \"a\0b\"}", b"\xff", b"{\"model\": \"\xff\"}"] {
        let mut opened = 7;
        // SAFETY: as long as it says.
        let status = unsafe { slipstream_open(config.as_ptr().cast(), config.len(), &raw mut opened) };
        assert!(opened == 0 && [Status::Usage, Status::Refused].contains(&status), "{config:?}: {status:?}");
    }
    assert_eq!(slipstream_close(handle), Status::Ok);
}
