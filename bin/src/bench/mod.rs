//! Measurements: numerics and time of the model itself, driven through steps without a server, and recorded sessions
//! replayed through the whole engine.

pub mod compare;
pub mod counters;
pub mod eval;
pub mod finite;
pub mod options;
pub mod ppl;
pub mod replay;
pub mod report;
pub mod result;
pub mod roofline;
pub mod single;
pub mod speed;
pub mod sweep;
pub mod whole;
