//! `nemotron_h` and, with experts, `nemotron_h_moe`: every block is a norm and one mixer, which is Mamba2, attention
//! without positions, or an FFN (relu^2, dense or of experts).
//!
//! Source: llama.cpp `src/models/nemotron-h.cpp`, `nemotron-h-moe.cpp`, `mamba-base.cpp`.

use engine_kernels::ops::mamba2_state::Mamba2Dims;

use super::builder::{Builder, Place, Query};
use super::config::Mixer;
use super::program::{BufferId, Mamba2Geometry, Op, RecurrentGeometry, Trunk};
use super::tensors::Source;

/// The trunk.
pub fn trunk(b: &mut Builder<'_>) -> Trunk {
    b.trunk(Query::Plain, |b, ops, at, x, normed| {
        if at.block.mixer == Mixer::None {
            b.ffn(ops, at, "attn_norm.weight", x);
            return;
        }
        b.norm(ops, at.from, &format!("{}.attn_norm.weight", at.prefix), x, normed);
        match at.block.mixer {
            Mixer::Mamba2 => mamba2(b, ops, at.prefix, normed, x),
            _ => {
                let layer = b.kv_layer(at.block);
                attention(b, ops, at, layer, normed, x);
            }
        }
    })
}

/// Attention of `normed`, added onto `residual`. Positions serve the causal mask alone.
pub fn attention(
    b: &mut Builder<'_>,
    ops: &mut Vec<Op>,
    at: Place<'_>,
    layer: usize,
    normed: BufferId,
    residual: BufferId,
) {
    let (query, key, value) = b.project(ops, at, normed);
    ops.push(Op::StoreKv { layer, key, value });
    b.attend(ops, at, layer, query, None, residual);
}

/// The K and V half of [`attention`]: what a row leaves behind for later rows.
pub fn keys_values(b: &mut Builder<'_>, ops: &mut Vec<Op>, at: Place<'_>, layer: usize, normed: BufferId) {
    let (key, value) = b.project_kv(ops, at, normed);
    ops.push(Op::StoreKv { layer, key, value });
}

/// Mamba2 of `normed`, added onto `residual`.
fn mamba2(b: &mut Builder<'_>, ops: &mut Vec<Op>, prefix: &str, normed: BufferId, residual: BufferId) {
    let geometry = geometry(b, prefix);
    let dims = geometry.dims;
    let layer = b.recurrent.len();
    b.recurrent.push(RecurrentGeometry::Mamba2(geometry));
    let d = b.config.d_model;
    let projected = b.buffers.get("mamba2_projected", dims.projected());
    let mixed = b.buffers.get("mamba2_out", dims.inner());
    let out = b.row("out");
    let mut matrix = |part: &str, n, k| b.wants.matrix(Source::Model, &format!("{prefix}.{part}.weight"), n, k);
    let input = matrix("ssm_in", dims.projected(), d);
    let output = matrix("ssm_out", d, dims.inner());
    ops.push(Op::MatMul { src: normed, outputs: vec![(input, projected)] });
    ops.push(Op::Mamba2 { layer, projected, dst: mixed });
    ops.push(Op::MatMul { src: mixed, outputs: vec![(output, out)] });
    ops.push(Op::Add { dst: residual, src: out });
}

fn geometry(b: &mut Builder<'_>, prefix: &str) -> Mamba2Geometry {
    let config = b.config.mamba2.expect("a Mamba2 block implies a Mamba2 geometry");
    let dims = Mamba2Dims {
        heads: config.heads,
        head_dim: config.head_dim,
        groups: config.groups,
        state_dim: config.state_dim,
        conv_taps: config.conv_taps,
        eps: b.config.norm_eps,
    };
    let wants = &mut b.wants;
    let name = |part: &str| format!("{prefix}.{part}");
    let a = wants.grid(Source::Model, &name("ssm_a"), 1, dims.heads);
    wants.expect_negative(a);
    Mamba2Geometry {
        dims,
        conv: wants.grid(Source::Model, &name("ssm_conv1d.weight"), dims.conv_taps, dims.channels()),
        conv_bias: wants.vector(Source::Model, &name("ssm_conv1d.bias"), dims.channels()),
        a,
        d: wants.grid(Source::Model, &name("ssm_d"), 1, dims.heads),
        dt_bias: wants.vector(Source::Model, &name("ssm_dt.bias"), dims.heads),
        norm: wants.grid(Source::Model, &name("ssm_norm.weight"), dims.group_width(), dims.groups),
    }
}
