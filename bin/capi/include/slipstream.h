/* slipstream.h: the Slipstream engine in a host's process. Generated from bin/capi/src; do not edit.
 *
 * A handle is a model with its engine. A host opens one, submits requests, polls events, and closes it. Requests and
 * answers are the JSON of the HTTP endpoints of engine-serve, or token ids.
 *
 * Threads. Every function may be called on any thread at any time. Calls on one handle wait for each other for moments
 *   only, never for a computation; a call of slipstream_poll waits for events and holds nobody up meanwhile. Several
 *   threads may poll one handle: each event goes to one of them, so a thread that wants all events of its request names
 *   it. slipstream_open and slipstream_close take as long as a model takes to load and a pass to end. There are no
 *   callbacks: nothing of the host's runs on a thread of the library.
 *
 * Handles. Plain numbers, checked on every call: 0, garbage, a closed one and closing twice are
 *   SLIPSTREAM_STATUS_HANDLE. Close while another thread polls ends that poll with SLIPSTREAM_STATUS_CLOSED. All handles
 *   of a process share one pool of worker threads, made by the first; the others take its size.
 *
 * Limits. A request of which about 1 MiB of events waits is paused until the host has polled half of them; nothing else
 *   notices. A handle has at most 256 open requests beside those that run: one is open until its last event was taken.
 *   Page events are dropped beyond 4096, oldest first, which their sequence shows.
 *
 * Text has a length and need not end in 0. Nothing that is handed in is used after the call, and nothing that comes
 *   back is the library's: all of it lies in buffers of the host. No panic and no exception leaves the library.
 *
 * Structs begin with their size: set struct_size to sizeof, and the rest to 0. Later versions add fields at the end.
 *
 * The process. The library installs no signal handler, writes no log, and starts threads in slipstream_open, and once
 *   more with the schedule "auto" when it has seen the first tokens. A panic of its own says where only if
 *   RUST_BACKTRACE is set before the first handle is opened. A model file must not change while a handle has it: where it
 *   was written, the engine ends before it says anything wrong (SLIPSTREAM_STATUS_DEAD); where it became shorter, the
 *   system may end the process with SIGBUS, which {"no_mmap": true} avoids. A child that was forked without exec cannot use
 *   the library where its parent has called slipstream_open. Whoever leaves main with a handle open leaves no harm.
 */


#ifndef SLIPSTREAM_H
#define SLIPSTREAM_H

#include <stddef.h>
#include <stdint.h>

// Version of this interface; raised when something in it changes its meaning.
#define SLIPSTREAM_ABI 1

// A timeout without end.
#define SLIPSTREAM_FOREVER 18446744073709551615ull

// What a call came to. 0 is success, 1 to 3 are what the exit codes of the programs mean.
enum slipstream_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Done.
  SLIPSTREAM_STATUS_OK = 0,
  // The machine: no memory, no thread, no file where there was one.
  SLIPSTREAM_STATUS_FAILED = 1,
  // The configuration contradicts itself or names what there is not.
  SLIPSTREAM_STATUS_USAGE = 2,
  // The model file is refused, or cannot do what was asked of it.
  SLIPSTREAM_STATUS_REFUSED = 3,
  // No open handle: never opened, closed already, or opened by the process that this one was forked from.
  SLIPSTREAM_STATUS_HANDLE = 4,
  // A pointer, size or number that cannot be meant.
  SLIPSTREAM_STATUS_ARGUMENT = 5,
  // The buffer is too small; nothing was taken. The needed length is where the length goes.
  SLIPSTREAM_STATUS_TOO_SMALL = 6,
  // Too much waits already. Poll, then try again.
  SLIPSTREAM_STATUS_FULL = 7,
  // The request never was, or its last event was taken; of slipstream_cancel, or it has ended.
  SLIPSTREAM_STATUS_NO_REQUEST = 8,
  // The handle was closed while the call waited.
  SLIPSTREAM_STATUS_CLOSED = 9,
  // The engine has ended by itself; close the handle.
  SLIPSTREAM_STATUS_DEAD = 10,
  // A fault of the library. The handle may be closed.
  SLIPSTREAM_STATUS_INTERNAL = 11,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slipstream_status slipstream_status;
#else
typedef int32_t slipstream_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What an event is. Every request has exactly one last event.
enum slipstream_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // A chunk of a stream, as one server-sent event of HTTP.
  SLIPSTREAM_KIND_CHUNK = 1,
  // The whole answer. Last.
  SLIPSTREAM_KIND_ANSWER = 2,
  // The stream is complete. Last.
  SLIPSTREAM_KIND_END = 3,
  // The request failed; `json` is the error. Last.
  SLIPSTREAM_KIND_ERROR = 4,
  // Cancelled as asked. Last.
  SLIPSTREAM_KIND_CANCELLED = 5,
  // A choice holds another number of KV-cache pages than when that was last said. Only where the configuration has
  // `page_events`, and only in batches of all requests. May follow the last event of a request that was cancelled.
  SLIPSTREAM_KIND_PAGES = 6,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slipstream_kind slipstream_kind;
#else
typedef uint32_t slipstream_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Where a request goes.
enum slipstream_endpoint
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // `json` is a body of `/v1/chat/completions`.
  SLIPSTREAM_ENDPOINT_CHAT = 1,
  // `json` is a body of `/v1/completions`.
  SLIPSTREAM_ENDPOINT_COMPLETIONS = 2,
  // `json` is a body of `/tokenize`.
  SLIPSTREAM_ENDPOINT_TOKENIZE = 3,
  // `json` is a body of `/detokenize`.
  SLIPSTREAM_ENDPOINT_DETOKENIZE = 4,
  // `json` is a body of `/apply-template`.
  SLIPSTREAM_ENDPOINT_APPLY_TEMPLATE = 5,
  // `tokens` is the prompt; `json` has the other fields of `/v1/completions`, or is empty. `stream` and
  // `return_token_ids` are true unless it says otherwise.
  SLIPSTREAM_ENDPOINT_TOKENS = 6,
  // `json` is a body of `/v1/messages`.
  SLIPSTREAM_ENDPOINT_MESSAGES = 7,
  // `json` is a body of `/v1/responses`.
  SLIPSTREAM_ENDPOINT_RESPONSES = 8,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum slipstream_endpoint slipstream_endpoint;
#else
typedef uint32_t slipstream_endpoint;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A request.
typedef struct slipstream_request {
  // `sizeof(slipstream_request)`.
  size_t struct_size;
  // One of `slipstream_endpoint`.
  uint32_t endpoint;
  // Bytes of UTF-8; need not end in 0.
  const char *json;
  // How many.
  size_t json_len;
  // Token ids, for `SLIPSTREAM_ENDPOINT_TOKENS` alone.
  const uint32_t *tokens;
  // How many.
  size_t tokens_len;
} slipstream_request;

// An event. Its pointers are into the buffers of the batch.
typedef struct slipstream_event {
  // Bytes of this struct that the library knows.
  size_t struct_size;
  // Which request.
  uint64_t request;
  // Page events of the handle before this one: a gap means that some were dropped, because nobody polled.
  uint64_t sequence;
  // What it is.
  slipstream_kind kind;
  // The status that HTTP would have: 200 of chunks and ends, 200 or an error of answers and errors, else 0.
  uint32_t status;
  // Which choice a chunk or pages are of.
  uint32_t choice;
  // KV-cache pages that the choice holds.
  uint32_t pages_held;
  // KV-cache pages that nobody holds.
  uint32_t pages_free;
  // UTF-8, not ended by 0; null where there is none.
  const char *json;
  // How many bytes.
  size_t json_len;
  // Token ids in the event, where the request asked for them; of a whole answer, those of its first choice.
  const uint32_t *tokens;
  // How many.
  size_t tokens_len;
} slipstream_event;

// Room for events, and what came into it.
typedef struct slipstream_batch {
  // `sizeof(slipstream_batch)`.
  size_t struct_size;
  // `sizeof(slipstream_event)`: the distance of two events.
  size_t event_size;
  // Room for this many events, at least 1.
  struct slipstream_event *events;
  // How many.
  size_t events_max;
  // Room for the text of all of them.
  char *bytes;
  // How many bytes.
  size_t bytes_max;
  // Room for the token ids of all of them.
  uint32_t *tokens;
  // How many ids.
  size_t tokens_max;
  // Set by the call: events that came.
  size_t events_len;
  // Set by the call: bytes in use, or what the next event needs where that does not fit.
  size_t bytes_len;
  // Set by the call: ids in use, or what the next event needs.
  size_t tokens_len;
} slipstream_batch;

// Draft tokens and what became of them: `drafted = accepted + rejected + unreached + discarded`.
typedef struct slipstream_drafts {
  // Rows of verify passes.
  uint64_t drafted;
  // Committed.
  uint64_t accepted;
  // Where the model chose otherwise.
  uint64_t rejected;
  // Behind a rejected one.
  uint64_t unreached;
  // Behind the end of the choice.
  uint64_t discarded;
} slipstream_drafts;

// Counters of a handle since it was opened.
typedef struct slipstream_stats {
  // `sizeof(slipstream_stats)`.
  size_t struct_size;
  // Requests whose last event was not taken.
  uint64_t requests;
  // Events that wait to be polled.
  uint64_t events;
  // Choices that hold a slot.
  uint64_t running;
  // Choices that wait for one.
  uint64_t waiting;
  // Prompt tokens of choices that have ended, once a prompt.
  uint64_t prompt_tokens;
  // Committed completion tokens of choices that have ended.
  uint64_t completion_tokens;
  // Drafts of the model's MTP block.
  struct slipstream_drafts mtp;
  // Drafts of the suffix index.
  struct slipstream_drafts suffix;
  // Workers, which all handles of the process share.
  uint64_t threads;
} slipstream_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Version of the interface that the library has: `SLIPSTREAM_ABI` of the header it was built with.
uint32_t slipstream_abi(void);

// Whether a configuration would be opened, and what it would take: everything is checked that can be before weights are
// read. The JSON that comes back is that of `engine-pack inspect --json`.
//
// # Safety
// `config` is readable for `config_len` bytes, `buffer` writable for `capacity` bytes, `length` writable.
slipstream_status slipstream_preflight(const char *config,
                                       size_t config_len,
                                       char *buffer,
                                       size_t capacity,
                                       size_t *length);

// Opens a model. `config` is a JSON object, or empty for the built-in model: its keys are the flags of `engine-serve`
// that decide what a model is and how it runs, with `_` for `-` (`{"model": "m.gguf", "ctx_size": 4096}`), and
// `page_events`. Returns when requests may come; a failure leaves nothing behind.
//
// # Safety
// `config` is readable for `config_len` bytes, `handle` writable.
slipstream_status slipstream_open(const char *config,
                                  size_t config_len,
                                  uint64_t *handle);

// What a handle has: the model as in `/v1/models`, slots, pages, workers and instruction set, as JSON.
//
// # Safety
// `buffer` is writable for `capacity` bytes, `length` writable.
slipstream_status slipstream_about(uint64_t handle, char *buffer, size_t capacity, size_t *length);

// Queues a request and names it. What is wrong with the request itself comes as its event, as it would over HTTP.
//
// # Safety
// `request` is a whole struct with readable buffers, `id` writable.
slipstream_status slipstream_submit(uint64_t handle,
                                    const struct slipstream_request *request,
                                    uint64_t *id);

// Takes events, in order: of `request`, or of all requests for 0. Waits for the first for up to `timeout_ms`; none in
// time is `SLIPSTREAM_STATUS_OK` with `events_len` 0. Where the next event alone does not fit,
// `SLIPSTREAM_STATUS_TOO_SMALL` tells in `bytes_len` and `tokens_len` what it needs, and it stays.
//
// # Safety
// `batch` is a whole struct with writable buffers that no other call uses meanwhile.
slipstream_status slipstream_poll(uint64_t handle,
                                  uint64_t request,
                                  uint64_t timeout_ms,
                                  struct slipstream_batch *batch);

// Ends a request: what it had to say is dropped, and one event of kind `SLIPSTREAM_KIND_CANCELLED` follows.
slipstream_status slipstream_cancel(uint64_t handle, uint64_t request);

// Counters of a handle.
//
// # Safety
// `stats` is a whole struct.
slipstream_status slipstream_get_stats(uint64_t handle, struct slipstream_stats *stats);

// Closes a handle: what runs is dropped, calls that wait return `SLIPSTREAM_STATUS_CLOSED`, and when this returns every
// thread of the handle has ended and its memory is free. It waits for the pass in progress. The number is never used
// again.
slipstream_status slipstream_close(uint64_t handle);

// What the last call of this thread that failed has to say, as text. Calls that succeed leave it as it is.
//
// # Safety
// `buffer` is writable for `capacity` bytes, `length` writable.
slipstream_status slipstream_last_error(char *buffer, size_t capacity, size_t *length);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLIPSTREAM_H */
