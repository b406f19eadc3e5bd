//! Processes: flags, sockets, signals, exit codes.

pub mod bench;
pub mod builtin;
pub mod flags;
pub mod serve;
