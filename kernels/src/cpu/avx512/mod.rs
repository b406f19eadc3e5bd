//! AVX-512.

pub(crate) mod lanes;
pub(crate) mod matmul;
pub(crate) mod peak;
