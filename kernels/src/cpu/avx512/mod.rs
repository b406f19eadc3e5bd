//! AVX-512.

pub(crate) mod lanes;
