//! `qwen35`, `qwen35moe` and `qwen3next`: gated delta net blocks with a gated attention block every few, then a gated FFN
//! or experts.
//!
//! Source: llama.cpp `src/models/qwen35.cpp`, `qwen35moe.cpp`, `qwen3next.cpp` and `delta-net-base.cpp`.

use super::builder::{Builder, Place, Query};
use super::config::{Arch, Mixer};
use super::program::{BufferId, Op, Trunk};
use super::tensors::Source;

/// The trunk.
pub fn trunk(b: &mut Builder<'_>) -> Trunk {
    b.trunk(Query::Gated, |b, ops, at, x, normed| {
        b.norm(ops, at.from, &format!("{}.attn_norm.weight", at.prefix), x, normed);
        match at.block.mixer {
            Mixer::Attention => {
                let layer = b.kv_layer(at.block);
                attention(b, ops, at, layer, normed, x);
            }
            _ => {
                let out = delta_net(b, ops, at.prefix, normed);
                ops.push(Op::Add { dst: x, src: out });
            }
        }
        b.ffn(ops, at, "post_attention_norm.weight", x);
    })
}

/// Gated attention of `normed`, added onto `residual`: heads of q and k are normed before they are rotated; the
/// sigmoid gate comes out of the query projection and is applied before the output projection.
pub fn attention(
    b: &mut Builder<'_>,
    ops: &mut Vec<Op>,
    at: Place<'_>,
    layer: usize,
    normed: BufferId,
    residual: BufferId,
) {
    let (raw, key, value) = b.project(ops, at, normed);
    let (query, gate) = queries(b, ops, at, raw);
    store(b, ops, at, layer, key, value);
    b.attend(ops, at, layer, query, Some(gate), residual);
}

/// Raw queries to rotated queries and output gates.
pub fn queries(b: &mut Builder<'_>, ops: &mut Vec<Op>, at: Place<'_>, raw: BufferId) -> (BufferId, BufferId) {
    let head_dim = b.config.head_dim;
    let width = at.block.heads * head_dim;
    let query = b.buffers.get("query", width);
    let gate = b.buffers.get("query_gate", width);
    ops.push(Op::SplitGate { src: raw, head_dim, query, gate });
    head_norm(b, ops, at, "attn_q_norm.weight", query);
    ops.push(Op::Rope { buffer: query, head_dim });
    (query, gate)
}

/// The K and V half of [`attention`]: what a row leaves behind for later rows.
pub fn keys_values(b: &mut Builder<'_>, ops: &mut Vec<Op>, at: Place<'_>, layer: usize, normed: BufferId) {
    let (key, value) = b.project_kv(ops, at, normed);
    store(b, ops, at, layer, key, value);
}

/// Norms and rotates the keys, then stores both.
pub fn store(b: &mut Builder<'_>, ops: &mut Vec<Op>, at: Place<'_>, layer: usize, key: BufferId, value: BufferId) {
    let head_dim = b.config.head_dim;
    head_norm(b, ops, at, "attn_k_norm.weight", key);
    ops.push(Op::Rope { buffer: key, head_dim });
    ops.push(Op::StoreKv { layer, key, value });
}

fn head_norm(b: &mut Builder<'_>, ops: &mut Vec<Op>, at: Place<'_>, part: &str, buffer: BufferId) {
    let weight = b.wants.vector(at.from, &format!("{}.{part}", at.prefix), b.config.head_dim);
    ops.push(Op::RmsNorm { src: buffer, weight, dst: buffer });
}

/// Gated delta net of `normed`; the result is in the buffer returned.
pub fn delta_net(b: &mut Builder<'_>, ops: &mut Vec<Op>, prefix: &str, normed: BufferId) -> BufferId {
    let layer = b.delta_layer(prefix);
    let geometry = b.config.delta.expect("a delta net block implies a delta net geometry");
    let d = b.config.d_model;
    let (channels, inner, heads) = (geometry.channels(), geometry.inner(), geometry.value_heads);
    let qkv = b.buffers.get("delta_qkv", channels);
    let gate = b.buffers.get("delta_gate", inner);
    let alpha = b.buffers.get("delta_alpha", heads);
    let beta = b.buffers.get("delta_beta", heads);
    let mixed = b.buffers.get("delta_out", inner);
    let out = b.row("out");
    let mut matrix = |part: &str, n, k| b.wants.matrix(Source::Model, &format!("{prefix}.{part}.weight"), n, k);
    let mut outputs = vec![(matrix("attn_qkv", channels, d), qkv), (matrix("attn_gate", inner, d), gate)];
    let output = matrix("ssm_out", d, inner);
    // One matrix: per key head the betas of its value heads, then their alphas.
    let both = (b.config.arch == Arch::Qwen3Next).then(|| b.buffers.get("delta_beta_alpha", 2 * heads));
    match both {
        Some(both) => outputs.push((matrix("ssm_ba", 2 * heads, d), both)),
        None => outputs.extend([(matrix("ssm_alpha", heads, d), alpha), (matrix("ssm_beta", heads, d), beta)]),
    }
    ops.push(Op::MatMul { src: normed, outputs });
    if let Some(src) = both {
        ops.push(Op::SplitGate { src, head_dim: heads / geometry.key_heads, query: beta, gate: alpha });
    }
    ops.push(Op::DeltaNet { layer, qkv, gate, alpha, beta, dst: mixed });
    ops.push(Op::MatMul { src: mixed, outputs: vec![(output, out)] });
    out
}
