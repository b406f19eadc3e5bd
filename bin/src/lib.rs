//! Processes: flags, sockets, signals, exit codes.
