//! The MTP (NextN) block of the `qwen35` family and of `nemotron_h_moe`.
//!
//! Row p pairs token x_p with the trunk's hidden row h_(p-1), taken after the output norm (h_(-1) = 0), and predicts
//! x_(p+1). A chain of drafts feeds the block's own normed hidden row and its own draft.
//!
//! ```text
//! cur = eh_proj [ rms(E[x_p]; enorm) | rms(h_(p-1); hnorm) ]       embedding columns first
//! a   = cur + ATTN(rms(cur; attn_norm))                            own cache layer, the trunk's kind of attention
//! b   = a + FFN(rms(a; post_attention_norm))                      dense or experts, as the trunk
//! h'  = rms(b; shared_head_norm or output_norm),   logits = head h'
//! ```
//! In `nemotron_h_moe` the last norm is a LayerNorm or an RMSNorm: engines differ ([`MtpNorm`]).
//!
//! Source: llama.cpp `src/models/qwen35.cpp`, `qwen35moe.cpp`, `nemotron-h-moe.cpp` (MTP graphs).

use super::builder::{Builder, Place, Query};
use super::config::{Arch, Block};
use super::conventions::MtpNorm;
use super::program::{BufferId, MatrixId, MtpProgram, Op};
use super::tensors::Source;
use super::{nemotron_h, qwen35};

/// Writes block `index` of file `from`, whose geometry is `block`; `head` is the target's, used where the file has none of
/// its own, as the target's token table is.
pub fn build(b: &mut Builder<'_>, from: Source, index: usize, block: &Block, head: MatrixId) -> MtpProgram {
    let prefix = format!("blk.{index}");
    let nemotron_h = b.config.arch == Arch::NemotronHMoe;
    let query_kind = if nemotron_h { Query::Plain } else { Query::Gated };
    let at = Place { from, prefix: &prefix, block, query_kind };
    let layer = b.kv_layer(block);
    let d = b.config.d_model;
    let name = |part: &str| format!("{prefix}.{part}.weight");
    let rows = b.table_rows();
    let table = b.wants.optional_matrix(from, &name("nextn.embed_tokens"), rows, d).unwrap_or_else(|| b.embedding());
    let head = b.wants.optional_matrix(from, &name("nextn.shared_head_head"), rows, d).unwrap_or(head);

    let hidden_in = b.row("mtp_hidden_in");
    let hidden_out = b.row("mtp_hidden_out");
    let cur = b.row("residual");
    let normed = b.row("normed");

    let mut fill = Vec::new();
    fuse(b, &mut fill, at, table, hidden_in, cur);
    b.norm(&mut fill, from, &name("attn_norm"), cur, normed);
    let mut full = fill.clone();
    if nemotron_h {
        nemotron_h::keys_values(b, &mut fill, at, layer, normed);
        nemotron_h::attention(b, &mut full, at, layer, normed, cur);
    } else {
        qwen35::keys_values(b, &mut fill, at, layer, normed);
        qwen35::attention(b, &mut full, at, layer, normed, cur);
    }
    b.ffn(&mut full, at, "post_attention_norm.weight", cur);
    full.push(match nemotron_h {
        true => {
            let weight = b.wants.vector(from, &name("nextn.shared_head_norm"), d);
            match b.conventions.mtp_norm.unwrap_or_default() {
                MtpNorm::Layer => {
                    let eps = b.config.layer_norm_eps.expect("the configuration of this family has it");
                    Op::LayerNorm { src: cur, weight, eps, dst: hidden_out }
                }
                MtpNorm::Rms => Op::RmsNorm { src: cur, weight, dst: hidden_out },
            }
        }
        false => {
            let weight = b.wants.optional_vector(from, &name("nextn.shared_head_norm"), d);
            let weight = weight.unwrap_or_else(|| b.wants.vector(Source::Model, "output_norm.weight", d));
            Op::RmsNorm { src: cur, weight, dst: hidden_out }
        }
    });
    MtpProgram { fill, block: full, hidden_in, hidden_out, head_in: hidden_out, head }
}

fn fuse(b: &mut Builder<'_>, ops: &mut Vec<Op>, at: Place<'_>, table: MatrixId, hidden_in: BufferId, cur: BufferId) {
    let Place { from, prefix, .. } = at;
    let d = b.config.d_model;
    let embedded = b.row("mtp_embedded");
    let hidden = b.row("mtp_hidden_normed");
    let both = b.buffers.get("mtp_both", 2 * d);
    ops.push(Op::Embed { table, dst: embedded });
    b.norm(ops, from, &format!("{prefix}.nextn.enorm.weight"), embedded, embedded);
    b.norm(ops, from, &format!("{prefix}.nextn.hnorm.weight"), hidden_in, hidden);
    ops.push(Op::Concat { first: embedded, second: hidden, dst: both });
    let weight = b.wants.matrix(from, &format!("{prefix}.nextn.eh_proj.weight"), d, 2 * d);
    ops.push(Op::MatMul { src: both, outputs: vec![(weight, cur)] });
}
