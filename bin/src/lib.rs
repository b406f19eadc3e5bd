//! Processes: flags, sockets, signals, exit codes.

pub mod bench;
pub mod serve;
