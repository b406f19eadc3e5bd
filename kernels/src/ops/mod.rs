//! The ops around the matrix products. All activations are `f32`, `[rows][width]`, row = one token of a ragged batch.
//!
//! Every op is written once, over sixteen lanes ([`crate::cpu::lanes`]); run on plain arrays it is the specification,
//! run on vector registers it is fast, and both give the same bits. The order of every sum is stated and depends on
//! nothing but the row itself: not on other rows, threads, segments or the instruction set.

pub mod attention;
pub mod block_select;
pub mod delta_net;
pub mod delta_state;
pub mod dilated_conv;
pub mod elementwise;
pub mod exp;
pub mod history;
pub mod hyper_connection;
pub mod index_keys;
pub mod kv_cache;
pub mod logits;
pub mod mamba2;
pub mod mamba2_state;
pub mod moe;
pub mod ngram;
pub mod norm;
pub mod rope;
pub mod sparse_attention;
mod sweep;

/// Elements a worker is given at least, so that handing them out costs less than working on them.
const GRAIN_ELEMENTS: usize = 8192;

/// Rows of `width` elements that are worth handing to a worker.
fn grain_rows(width: usize) -> usize {
    (GRAIN_ELEMENTS / width.max(1)).max(1)
}
