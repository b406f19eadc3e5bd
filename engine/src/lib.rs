//! The tables and the tick. Opens no socket, sees time only as an argument, holds no unsafe code.
#![forbid(unsafe_code)]

pub mod api;
pub mod ids;
pub mod limits;
pub mod step;
