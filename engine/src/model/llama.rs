//! `llama`: norm, attention with rotary embedding, norm, gated FFN.
//!
//! Source: llama.cpp `src/models/llama.cpp` (tensor names, adjacent-pair rotation, 1/sqrt(head_dim)).

use super::builder::{Builder, Query};
use super::program::{Op, Trunk};

/// The trunk.
pub fn trunk(b: &mut Builder<'_>) -> Trunk {
    b.trunk(Query::Plain, |b, ops, at, x, normed| {
        let head_dim = b.config.head_dim;
        b.norm(ops, at.from, &format!("{}.attn_norm.weight", at.prefix), x, normed);
        let (query, key, value) = b.project(ops, at, normed);
        ops.push(Op::Rope { buffer: query, head_dim });
        ops.push(Op::Rope { buffer: key, head_dim });
        let layer = b.kv_layer(at.block);
        ops.push(Op::StoreKv { layer, key, value });
        b.attend(ops, at, layer, query, None, x);
        b.ffn(ops, at, "ffn_norm.weight", x);
    })
}
