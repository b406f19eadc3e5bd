//! Processes: flags, sockets, signals, exit codes.

pub mod bench;
pub mod canary;
pub mod embed;
pub mod flags;
pub mod hub;
pub mod memory;
pub mod menu;
pub mod open;
pub mod pack;
pub mod report;
pub mod serve;
pub mod stage;
pub mod watch;
