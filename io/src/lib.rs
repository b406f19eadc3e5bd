//! Bytes outside, typed values inside. Knows no request.

pub mod text;
