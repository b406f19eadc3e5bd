//! Mode `live`: servers generate every output turn of recorded sessions, and then the *recorded* turn is what the
//! conversation goes on with, so that all arms of all servers see the same history.
//!
//! ```text
//!  sessions ──► tasks (one a session: its requests in order)
//!                 │  repeat r: every lane in turn, `concurrency` sessions at a time
//!                 ▼
//!  lane = (server, arm) ──► client ──► answer, times ──► samples[lane][request][repeat] ──► rows
//! ```
//!
//! Everything is asked over HTTP, our own engine too, and timed at the client. A server that says what strategies it has
//! is ours: it runs an arm for each and returns token ids and counters. Any other has one arm, called `server`.

pub mod client;
pub mod command;
pub mod figures;
pub mod flags;
mod patience;
pub mod run;
pub mod sse;
mod table;
pub mod task;
