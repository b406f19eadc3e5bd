//! Processes: flags, sockets, signals, exit codes.

pub mod bench;
pub mod embed;
pub mod flags;
pub mod open;
pub mod report;
pub mod serve;
pub mod watch;
