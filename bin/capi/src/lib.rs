//! The engine as a C library: `libslipstream`, header `include/slipstream.h`, which is generated from here.
//!
//! Nothing is decided here. `engine_bin::embed` has the handle; this package checks numbers and pointers (`table.rs`,
//! `memory.rs`), turns failures and panics into a status (`guard.rs`), and copies. The rules that hosts go by stand at the
//! top of the header, whose text is in `cbindgen.toml`.
#![expect(unsafe_code, reason = "what a C host hands in are pointers, and its functions have names that it can link")]

mod guard;
#[cfg(test)]
mod header;
mod memory;
mod table;
#[cfg(test)]
mod tests;
mod types;

use std::ffi::c_char;
use std::time::Duration;

use engine_bin::embed;

use guard::{Failure, guard};
use memory::Filling;
use types::{Batch, Drafts, Endpoint, Event, Kind, Request, SLIPSTREAM_ABI, SLIPSTREAM_FOREVER, Stats, Status};

/// Version of the interface that the library has: `SLIPSTREAM_ABI` of the header it was built with.
#[unsafe(no_mangle)]
pub extern "C" fn slipstream_abi() -> u32 {
    SLIPSTREAM_ABI
}

/// Whether a configuration would be opened, and what it would take: everything is checked that can be before weights are
/// read. The JSON that comes back is that of `engine-pack inspect --json`.
///
/// # Safety
/// `config` is readable for `config_len` bytes, `buffer` writable for `capacity` bytes, `length` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slipstream_preflight(
    config: *const c_char,
    config_len: usize,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    guard(|| {
        table::same_process()?;
        // SAFETY: the caller's promise.
        let config = read_config(unsafe { memory::slice(config.cast::<u8>(), config_len, "config")? })?;
        let report = embed::preflight(&config)?.to_string();
        // SAFETY: the caller's promise.
        unsafe { memory::put_text(&report, buffer, capacity, length) }
    })
}

/// Opens a model. `config` is a JSON object, or empty for the built-in model: its keys are the flags of `engine-serve`
/// that decide what a model is and how it runs, with `_` for `-` (`{"model": "m.gguf", "ctx_size": 4096}`), and
/// `page_events`. Returns when requests may come; a failure leaves nothing behind.
///
/// # Safety
/// `config` is readable for `config_len` bytes, `handle` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slipstream_open(config: *const c_char, config_len: usize, handle: *mut u64) -> Status {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { memory::put(handle, 0, "handle")? };
        table::begin()?;
        guard::say_nothing();
        // SAFETY: the caller's promise.
        let config = read_config(unsafe { memory::slice(config.cast::<u8>(), config_len, "config")? })?;
        let engine = embed::Engine::open(&config)?;
        // SAFETY: the caller's promise; it was writable above.
        unsafe { memory::put(handle, table::open(engine), "handle") }
    })
}

/// What a handle has: the model as in `/v1/models`, slots, pages, workers and instruction set, as JSON.
///
/// # Safety
/// `buffer` is writable for `capacity` bytes, `length` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slipstream_about(
    handle: u64,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    guard(|| {
        let about = table::find(handle)?.about().to_string();
        // SAFETY: the caller's promise.
        unsafe { memory::put_text(&about, buffer, capacity, length) }
    })
}

/// Queues a request and names it. What is wrong with the request itself comes as its event, as it would over HTTP.
///
/// # Safety
/// `request` is a whole struct with readable buffers, `id` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slipstream_submit(handle: u64, request: *const Request, id: *mut u64) -> Status {
    guard(|| {
        let engine = table::find(handle)?;
        // SAFETY: the caller's promise.
        let (json, tokens, endpoint) = unsafe {
            memory::put(id, 0, "id")?;
            let request = memory::read(request)?;
            let json = memory::slice(request.json.cast::<u8>(), request.json_len, "json")?;
            let tokens = memory::slice(request.tokens, request.tokens_len, "tokens")?;
            (json, tokens, request.endpoint)
        };
        let named = if endpoint == Endpoint::Tokens as u32 {
            engine.submit_tokens(tokens, json)?
        } else if tokens.is_empty() {
            engine.submit(to(endpoint)?, json)?
        } else {
            return Err(Failure::argument("tokens are for SLIPSTREAM_ENDPOINT_TOKENS alone"));
        };
        // SAFETY: the caller's promise; it was writable above.
        unsafe { memory::put(id, named, "id") }
    })
}

/// Takes events, in order: of `request`, or of all requests for 0. Waits for the first for up to `timeout_ms`; none in
/// time is `SLIPSTREAM_STATUS_OK` with `events_len` 0. Where the next event alone does not fit,
/// `SLIPSTREAM_STATUS_TOO_SMALL` tells in `bytes_len` and `tokens_len` what it needs, and it stays.
///
/// # Safety
/// `batch` is a whole struct with writable buffers that no other call uses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slipstream_poll(handle: u64, request: u64, timeout_ms: u64, batch: *mut Batch) -> Status {
    guard(|| {
        let engine = table::find(handle)?;
        // SAFETY: the caller's promise.
        let mut filling = unsafe { Filling::new(memory::read(batch)?)? };
        let of = (request != 0).then_some(request);
        let timeout = if timeout_ms == SLIPSTREAM_FOREVER { Duration::MAX } else { Duration::from_millis(timeout_ms) };
        let polled =
            engine.poll(of, timeout, &mut |event| match filling.push(&plain(&event), &event.json, &event.tokens) {
                true => Ok(()),
                false => Err(event),
            });
        let mut filled = *filling.batch();
        let needs = filling.needs.filter(|_| filled.events_len == 0);
        (filled.bytes_len, filled.tokens_len) = needs.unwrap_or((filled.bytes_len, filled.tokens_len));
        // SAFETY: the caller's promise.
        unsafe { memory::write(batch, &filled)? };
        polled?;
        match needs {
            None => Ok(()),
            Some((bytes, tokens)) => {
                let text = format!("the next event has {bytes} bytes and {tokens} token ids");
                Err(Failure::new(Status::TooSmall, text))
            }
        }
    })
}

/// Ends a request: what it had to say is dropped, and one event of kind `SLIPSTREAM_KIND_CANCELLED` follows.
#[unsafe(no_mangle)]
pub extern "C" fn slipstream_cancel(handle: u64, request: u64) -> Status {
    guard(|| Ok(table::find(handle)?.cancel(request)?))
}

/// Counters of a handle.
///
/// # Safety
/// `stats` is a whole struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slipstream_get_stats(handle: u64, stats: *mut Stats) -> Status {
    guard(|| {
        let found = counted(&table::find(handle)?.stats()?);
        // SAFETY: the caller's promise.
        unsafe { memory::write(stats, &found) }
    })
}

/// Closes a handle: what runs is dropped, calls that wait return `SLIPSTREAM_STATUS_CLOSED`, and when this returns every
/// thread of the handle has ended and its memory is free. It waits for the pass in progress. The number is never used
/// again.
#[unsafe(no_mangle)]
pub extern "C" fn slipstream_close(handle: u64) -> Status {
    guard(|| table::close(handle))
}

/// What the last call of this thread that failed has to say, as text. Calls that succeed leave it as it is.
///
/// # Safety
/// `buffer` is writable for `capacity` bytes, `length` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slipstream_last_error(buffer: *mut c_char, capacity: usize, length: *mut usize) -> Status {
    guard(|| {
        let text = guard::last();
        // SAFETY: the caller's promise.
        let put = unsafe { memory::put_text(&text, buffer, capacity, length) };
        // That it does not fit is no news about the call that was asked for.
        put.map_err(|failure| Failure { text, ..failure })
    })
}

fn read_config(json: &[u8]) -> Result<embed::Config, Failure> {
    embed::Config::parse(json).map_err(|text| Failure::new(Status::Usage, text))
}

fn to(endpoint: u32) -> Result<embed::Endpoint, Failure> {
    let known = [
        (Endpoint::Chat, embed::Endpoint::Chat),
        (Endpoint::Completions, embed::Endpoint::Completions),
        (Endpoint::Tokenize, embed::Endpoint::Tokenize),
        (Endpoint::Detokenize, embed::Endpoint::Detokenize),
        (Endpoint::ApplyTemplate, embed::Endpoint::ApplyTemplate),
        (Endpoint::Messages, embed::Endpoint::Messages),
        (Endpoint::Responses, embed::Endpoint::Responses),
    ];
    let found = known.into_iter().find(|(number, _)| *number as u32 == endpoint);
    found.map(|(_, to)| to).ok_or_else(|| Failure::argument(format!("{endpoint} is no slipstream_endpoint")))
}

/// An event without what it points to.
fn plain(event: &embed::Event) -> Event {
    Event {
        struct_size: 0,
        request: event.request,
        sequence: event.sequence,
        kind: match event.kind {
            embed::Kind::Chunk => Kind::Chunk,
            embed::Kind::Answer => Kind::Answer,
            embed::Kind::End => Kind::End,
            embed::Kind::Error => Kind::Error,
            embed::Kind::Cancelled => Kind::Cancelled,
            embed::Kind::Pages => Kind::Pages,
        },
        status: event.status.into(),
        choice: event.choice,
        pages_held: event.pages.0,
        pages_free: event.pages.1,
        json: std::ptr::null(),
        json_len: 0,
        tokens: std::ptr::null(),
        tokens_len: 0,
    }
}

fn counted(stats: &embed::Stats) -> Stats {
    let drafts = |c: &embed::DraftCounts| Drafts {
        drafted: c.drafted,
        accepted: c.accepted,
        rejected: c.rejected,
        unreached: c.unreached,
        discarded: c.discarded,
    };
    Stats {
        struct_size: 0,
        requests: stats.requests,
        events: stats.events,
        running: stats.running,
        waiting: stats.waiting,
        prompt_tokens: stats.prompt_tokens,
        completion_tokens: stats.completion_tokens,
        mtp: drafts(&stats.mtp),
        suffix: drafts(&stats.suffix),
        threads: stats.threads,
    }
}
