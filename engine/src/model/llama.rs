//! `llama`: norm, attention with rotary embedding, norm, gated FFN.
//!
//! Source: llama.cpp `src/models/llama.cpp` (tensor names, adjacent-pair rotation, 1/sqrt(head_dim)).

use super::builder::{Builder, Place, Query};
use super::program::{Op, Trunk};
use super::tensors::Source;

/// The trunk; the MTP block is fed what the LM head reads.
pub fn trunk(b: &mut Builder<'_>) -> Trunk {
    let mut ops = Vec::new();
    let x = b.row("residual");
    let normed = b.row("normed");
    let hidden = b.row("hidden");
    let (table, rows) = b.embedding();
    let head_dim = b.config.head_dim;
    ops.push(Op::Embed { table, dst: x });
    for i in 0..b.config.trunk {
        let prefix = format!("blk.{i}");
        let block = b.config.blocks[i];
        let at = Place { from: Source::Model, prefix: &prefix, block: &block, query_kind: Query::Plain };
        b.norm(&mut ops, Source::Model, &format!("{prefix}.attn_norm.weight"), x, normed);
        let (query, key, value) = b.project(&mut ops, at, normed);
        ops.push(Op::Rope { buffer: query, head_dim });
        ops.push(Op::Rope { buffer: key, head_dim });
        let layer = b.kv_layer(&block);
        ops.push(Op::StoreKv { layer, key, value });
        b.attend(&mut ops, at, layer, query, None, x);
        b.ffn(&mut ops, at, "ffn_norm.weight", x);
    }
    b.norm(&mut ops, Source::Model, "output_norm.weight", x, hidden);
    let head = b.head(table, rows);
    Trunk { ops, hidden, head_in: hidden, head }
}
