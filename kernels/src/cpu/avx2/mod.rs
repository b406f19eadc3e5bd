//! AVX2 with FMA and F16C.

pub(crate) mod lanes;
pub(crate) mod matmul;
pub(crate) mod peak;
