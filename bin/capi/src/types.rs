//! What crosses the border: plain structs and numbers. The header is generated from here and from `lib.rs`.
//!
//! A struct may only grow at its end. Its first field is its size as the caller knows it, so that either side may be
//! older: fields that a caller lacks are read as zero, and fields that the library lacks must be zero.

use std::ffi::c_char;

/// Version of this interface; raised when something in it changes its meaning.
pub const SLIPSTREAM_ABI: u32 = 1;

/// A timeout without end.
pub const SLIPSTREAM_FOREVER: u64 = 0xffff_ffff_ffff_ffff;

/// What a call came to. 0 is success, 1 to 3 are what the exit codes of the programs mean.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The machine: no memory, no thread, no file where there was one.
    Failed = 1,
    /// The configuration contradicts itself or names what there is not.
    Usage = 2,
    /// The model file is refused, or cannot do what was asked of it.
    Refused = 3,
    /// No open handle: never opened, closed already, or opened by the process that this one was forked from.
    Handle = 4,
    /// A pointer, size or number that cannot be meant.
    Argument = 5,
    /// The buffer is too small; nothing was taken. The needed length is where the length goes.
    TooSmall = 6,
    /// Too much waits already. Poll, then try again.
    Full = 7,
    /// The request never was, or its last event was taken; of slipstream_cancel, or it has ended.
    NoRequest = 8,
    /// The handle was closed while the call waited.
    Closed = 9,
    /// The engine has ended by itself; close the handle.
    Dead = 10,
    /// A fault of the library. The handle may be closed.
    Internal = 11,
}

/// Where a request goes.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// `json` is a body of `/v1/chat/completions`.
    Chat = 1,
    /// `json` is a body of `/v1/completions`.
    Completions = 2,
    /// `json` is a body of `/tokenize`.
    Tokenize = 3,
    /// `json` is a body of `/detokenize`.
    Detokenize = 4,
    /// `json` is a body of `/apply-template`.
    ApplyTemplate = 5,
    /// `tokens` is the prompt; `json` has the other fields of `/v1/completions`, or is empty. `stream` and
    /// `return_token_ids` are true unless it says otherwise.
    Tokens = 6,
    /// `json` is a body of `/v1/messages`.
    Messages = 7,
    /// `json` is a body of `/v1/responses`.
    Responses = 8,
}

/// What an event is. Every request has exactly one last event.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A chunk of a stream, as one server-sent event of HTTP.
    Chunk = 1,
    /// The whole answer. Last.
    Answer = 2,
    /// The stream is complete. Last.
    End = 3,
    /// The request failed; `json` is the error. Last.
    Error = 4,
    /// Cancelled as asked. Last.
    Cancelled = 5,
    /// A choice holds another number of KV-cache pages than when that was last said. Only where the configuration has
    /// `page_events`, and only in batches of all requests. May follow the last event of a request that was cancelled.
    Pages = 6,
}

/// A request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Request {
    /// `sizeof(slipstream_request)`.
    pub struct_size: usize,
    /// One of `slipstream_endpoint`.
    pub endpoint: u32,
    /// Bytes of UTF-8; need not end in 0.
    pub json: *const c_char,
    /// How many.
    pub json_len: usize,
    /// Token ids, for `SLIPSTREAM_ENDPOINT_TOKENS` alone.
    pub tokens: *const u32,
    /// How many.
    pub tokens_len: usize,
}

/// An event. Its pointers are into the buffers of the batch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    /// Bytes of this struct that the library knows.
    pub struct_size: usize,
    /// Which request.
    pub request: u64,
    /// Page events of the handle before this one: a gap means that some were dropped, because nobody polled.
    pub sequence: u64,
    /// What it is.
    pub kind: Kind,
    /// The status that HTTP would have: 200 of chunks and ends, 200 or an error of answers and errors, else 0.
    pub status: u32,
    /// Which choice a chunk or pages are of.
    pub choice: u32,
    /// KV-cache pages that the choice holds.
    pub pages_held: u32,
    /// KV-cache pages that nobody holds.
    pub pages_free: u32,
    /// UTF-8, not ended by 0; null where there is none.
    pub json: *const c_char,
    /// How many bytes.
    pub json_len: usize,
    /// Token ids in the event, where the request asked for them; of a whole answer, those of its first choice.
    pub tokens: *const u32,
    /// How many.
    pub tokens_len: usize,
}

/// Room for events, and what came into it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Batch {
    /// `sizeof(slipstream_batch)`.
    pub struct_size: usize,
    /// `sizeof(slipstream_event)`: the distance of two events.
    pub event_size: usize,
    /// Room for this many events, at least 1.
    pub events: *mut Event,
    /// How many.
    pub events_max: usize,
    /// Room for the text of all of them.
    pub bytes: *mut c_char,
    /// How many bytes.
    pub bytes_max: usize,
    /// Room for the token ids of all of them.
    pub tokens: *mut u32,
    /// How many ids.
    pub tokens_max: usize,
    /// Set by the call: events that came.
    pub events_len: usize,
    /// Set by the call: bytes in use, or what the next event needs where that does not fit.
    pub bytes_len: usize,
    /// Set by the call: ids in use, or what the next event needs.
    pub tokens_len: usize,
}

/// Draft tokens and what became of them: `drafted = accepted + rejected + unreached + discarded`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Drafts {
    /// Rows of verify passes.
    pub drafted: u64,
    /// Committed.
    pub accepted: u64,
    /// Where the model chose otherwise.
    pub rejected: u64,
    /// Behind a rejected one.
    pub unreached: u64,
    /// Behind the end of the choice.
    pub discarded: u64,
}

/// Counters of a handle since it was opened.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Stats {
    /// `sizeof(slipstream_stats)`.
    pub struct_size: usize,
    /// Requests whose last event was not taken.
    pub requests: u64,
    /// Events that wait to be polled.
    pub events: u64,
    /// Choices that hold a slot.
    pub running: u64,
    /// Choices that wait for one.
    pub waiting: u64,
    /// Prompt tokens of choices that have ended, once a prompt.
    pub prompt_tokens: u64,
    /// Committed completion tokens of choices that have ended.
    pub completion_tokens: u64,
    /// Drafts of the model's MTP block.
    pub mtp: Drafts,
    /// Drafts of the suffix index.
    pub suffix: Drafts,
    /// Workers, which all handles of the process share.
    pub threads: u64,
}
