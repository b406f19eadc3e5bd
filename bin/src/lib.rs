//! Processes: flags, sockets, signals, exit codes.

pub mod serve;
