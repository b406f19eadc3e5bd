//! The two processes of a split model: how they find, check and keep each other. What they say is `engine::stage`'s.
//!
//! ```text
//! engine-serve --stage 0/2 --peer A         commit ··· verify ──► link (this thread owns the socket) ──┐
//! engine-serve --stage 1/2 --listen A       stage (socket and passes, one after the other) ◄───────────┘
//! ```
//!
//! Between two connections the last stage forgets everything. A first stage that loses its peer fails what runs, answers
//! 503 until it is back, and goes on by itself; a last stage that loses its peer waits for the next one.

pub mod conn;
pub mod door;
pub mod facts;
pub mod flags;
pub mod handshake;
pub mod link;
pub mod serve;
