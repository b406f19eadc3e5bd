//! Measurements: numerics and time of the model itself, driven through steps without a server.

pub mod eval;
pub mod finite;
pub mod options;
pub mod ppl;
pub mod single;
pub mod speed;
