//! `qwen4exp`: the mixers of `qwen35moe` between hyper-connections, n-gram embeddings in one block, attention that
//! chooses blocks of positions.
//!
//! ```text
//! H[s] = E[x]                                         every stream
//! per block:  H += NGRAMS(H, tokens)                  in one block
//!             y, w = mix(H; hc_attn),  H += w * MIXER(y)
//!             y, w = mix(H; hc_ffn),   H += w * EXPERTS(y)
//! hidden = H, all streams;   head_in = mix(H; output_hc)
//! ```
//! There is no norm but those of the mixers. The hidden row that the MTP block is fed is as wide as all streams and is
//! taken before the last mixer.
//!
//! The MTP block pairs every stream of h_(p-1) with the token x_p, is one attention block, and has a last mixer of its
//! own in front of the target's LM head:
//! ```text
//! H[s] = eh_proj [ rms(E[x_p]; enorm) | norm(h_(p-1); hnorm)[s] ]
//! ```
//! Source: llama.cpp `src/models/qwen4exp.cpp`; transformers `models/qwen4_exp`.

use engine_kernels::ops::dilated_conv::ConvDims;
use engine_kernels::ops::index_keys::IndexGeometry;

use super::builder::{Builder, Place, Query};
use super::config::{Block, Ffn, Mixer, NgramConfig, Qwen4ExpConfig};
use super::conventions::HiddenNorm;
use super::program::{BufferId, ConvolutionGeometry, IndexLayer, MatrixId, MtpProgram, Op, RecurrentGeometry, Trunk};
use super::qwen35;
use super::tensors::Source;

/// What the builder needs of the configuration all the time.
#[derive(Clone)]
struct Shape {
    own: Qwen4ExpConfig,
    /// Width of a stream.
    d: usize,
}

impl Shape {
    fn of(b: &Builder<'_>) -> Self {
        let own = b.config.qwen4exp.clone().expect("the keys of this architecture were read");
        Self { own, d: b.config.d_model }
    }

    /// All streams of a row.
    fn wide(&self) -> usize {
        self.own.streams * self.d
    }
}

/// The trunk.
pub fn trunk(b: &mut Builder<'_>) -> Trunk {
    let shape = Shape::of(b);
    let mut ops = Vec::new();
    let streams = b.buffers.get("streams", shape.wide());
    let received = if b.stage.is_first() {
        let embedded = b.row("embedded");
        let table = b.embedding();
        ops.push(Op::Embed { table, dst: embedded });
        ops.push(Op::Repeat { src: embedded, dst: streams });
        None
    } else {
        Some(streams)
    };
    for id in b.stage.blocks() {
        let (i, prefix) = (id.0, id.to_string());
        let block = b.config.blocks[i];
        let at = Place { from: Source::Model, prefix: &prefix, block: &block, query_kind: Query::Gated };
        if let Some(ngram) = shape.own.ngram.as_ref().filter(|ngram| ngram.block == i) {
            ngrams(b, &mut ops, &shape, ngram, &prefix, streams);
        }
        let (input, inject) = mix_in(b, &mut ops, &shape, at, "hc_attn", streams);
        let out = match block.mixer {
            Mixer::Attention => {
                let layer = b.kv_layer(&block);
                let index = index_layer(b, &shape, at, shape.own.ratio[i]);
                attention(b, &mut ops, &shape, at, (layer, index), input)
            }
            _ => qwen35::delta_net(b, &mut ops, &prefix, input),
        };
        ops.push(Op::Combine { inject, src: out, streams });
        feed_forward(b, &mut ops, &shape, at, streams);
    }
    if !b.stage.is_last() {
        return Trunk { ops, received, hidden: streams, head_in: streams, head: None };
    }
    let head_in = mix(b, &mut ops, &shape, Source::Model, "output_hc", streams, None);
    let head = b.head();
    Trunk { ops, received, hidden: streams, head_in, head: Some(head) }
}

/// The MTP block `index` of file `from`, whose indexer works on blocks of `ratio` positions; `head` is the target's, used
/// where the file has none of its own, as the target's token table is.
pub fn mtp(
    b: &mut Builder<'_>,
    from: Source,
    index: usize,
    (block, ratio): (&Block, usize),
    head: MatrixId,
) -> MtpProgram {
    let shape = Shape::of(b);
    let (d, wide) = (shape.d, shape.wide());
    let prefix = format!("blk.{index}");
    let at = Place { from, prefix: &prefix, block, query_kind: Query::Gated };
    let name = |part: &str| format!("{prefix}.nextn.{part}.weight");
    let rows = b.table_rows();
    let table = b.wants.optional_matrix(from, &name("embed_tokens"), rows, d).unwrap_or_else(|| b.embedding());
    let head = b.wants.optional_matrix(from, &name("shared_head_head"), rows, d).unwrap_or(head);
    let layer = b.kv_layer(block);
    let indexer = index_layer(b, &shape, at, ratio);

    let hidden_in = b.buffers.get("mtp_hidden_in", wide);
    let hidden = b.buffers.get("mtp_hidden_normed", wide);
    let embedded = b.row("mtp_embedded");
    let both = b.buffers.get("mtp_both", shape.own.streams * 2 * d);
    let streams = b.buffers.get("streams", wide);
    let mut fill = vec![Op::Embed { table, dst: embedded }];
    b.norm(&mut fill, from, &name("enorm"), embedded, embedded);
    let weight = b.wants.streams(from, &name("hnorm"), d, shape.own.streams);
    fill.push(match b.conventions.mtp_hidden_norm.unwrap_or_default() {
        HiddenNorm::Stream => Op::RmsNormStreams { src: hidden_in, weight, width: d, dst: hidden },
        HiddenNorm::Row => Op::RmsNorm { src: hidden_in, weight, dst: hidden },
    });
    fill.push(Op::Concat { first: embedded, second: hidden, dst: both });
    let weight = b.wants.matrix(from, &name("eh_proj"), d, 2 * d);
    fill.push(Op::MatMul { src: both, outputs: vec![(weight, streams)] });
    let (input, inject) = mix_in(b, &mut fill, &shape, at, "hc_attn", streams);

    let mut full = fill.clone();
    let out = attention(b, &mut full, &shape, at, (layer, indexer), input);
    full.push(Op::Combine { inject, src: out, streams });
    feed_forward(b, &mut full, &shape, at, streams);
    let head_in = mix(b, &mut full, &shape, from, &format!("{prefix}.nextn.hc_head"), streams, None);

    // Later rows see keys, values and index keys of a row, and nothing else of it.
    let (key, value) = b.project_kv_apart(&mut fill, at, input);
    qwen35::store(b, &mut fill, at, layer, key, value);
    if let Some(indexer) = indexer {
        index_keys(b, &mut fill, &shape, at, indexer, input);
    }
    MtpProgram { fill, block: full, hidden_in, hidden_out: streams, head_in, head }
}

/// Collapses the streams with the mixer `name`; with `inject`, its weights for spreading the block's output go there.
fn mix(
    b: &mut Builder<'_>,
    ops: &mut Vec<Op>,
    shape: &Shape,
    from: Source,
    name: &str,
    streams: BufferId,
    inject: Option<BufferId>,
) -> BufferId {
    let (wide, low_rank, count) = (shape.wide(), shape.own.low_rank, shape.own.streams);
    let normed = b.buffers.get("streams_normed", wide);
    let low = b.buffers.get("mixer_low", low_rank);
    let gate = b.buffers.get("mixer_gate", wide);
    let dst = b.row("mixer_out");
    let weight = b.wants.streams(from, &format!("{name}_norm.weight"), shape.d, count);
    ops.push(Op::RmsNormStreams { src: streams, weight, width: shape.d, dst: normed });
    let mut outputs = vec![(b.wants.matrix(from, &format!("{name}_down.weight"), low_rank, wide), low)];
    if let Some(inject) = inject {
        outputs.push((b.wants.matrix(from, &format!("{name}_inject.weight"), count, wide), inject));
    }
    ops.push(Op::MatMul { src: normed, outputs });
    ops.push(Op::Squash { x: low, streams: count });
    let up = b.wants.matrix(from, &format!("{name}_up.weight"), wide, low_rank);
    ops.push(Op::MatMul { src: low, outputs: vec![(up, gate)] });
    ops.push(Op::Collapse { gate, normed, dst });
    dst
}

/// [`mix`] in front of a part of a block: its input, and the weights that its output is spread with.
fn mix_in(
    b: &mut Builder<'_>,
    ops: &mut Vec<Op>,
    shape: &Shape,
    at: Place<'_>,
    part: &str,
    streams: BufferId,
) -> (BufferId, BufferId) {
    let inject = b.buffers.get("inject", shape.own.streams);
    let input = mix(b, ops, shape, at.from, &format!("{}.{part}", at.prefix), streams, Some(inject));
    (input, inject)
}

fn feed_forward(b: &mut Builder<'_>, ops: &mut Vec<Op>, shape: &Shape, at: Place<'_>, streams: BufferId) {
    let Ffn::Experts(experts) = at.block.ffn else { unreachable!("every block of this architecture has experts") };
    let (input, inject) = mix_in(b, ops, shape, at, "hc_ffn", streams);
    let out = b.experts(ops, at, &experts, input);
    ops.push(Op::Combine { inject, src: out, streams });
}

/// Registers the indexer of a block over blocks of `ratio` positions; there is none where that is 0.
fn index_layer(b: &mut Builder<'_>, shape: &Shape, at: Place<'_>, ratio: usize) -> Option<usize> {
    if ratio == 0 {
        return None;
    }
    let indexer = shape.own.indexer;
    let norm = b.wants.vector(at.from, &format!("{}.indexer.k_norm.weight", at.prefix), indexer.dim);
    let geometry = IndexGeometry { dim: indexer.dim, ratio };
    b.index.push(IndexLayer { geometry, norm, heads: indexer.heads, budget: indexer.budget / ratio });
    Some(b.index.len() - 1)
}

/// Gated attention of `input`, over what the indexer chooses where there is one.
fn attention(
    b: &mut Builder<'_>,
    ops: &mut Vec<Op>,
    shape: &Shape,
    at: Place<'_>,
    (layer, indexer): (usize, Option<usize>),
    input: BufferId,
) -> BufferId {
    let head_dim = b.config.head_dim;
    let (raw, key, value) = b.project_apart(ops, at, input);
    let (query, gate) = qwen35::queries(b, ops, at, raw);
    qwen35::store(b, ops, at, layer, key, value);
    let dst = b.buffers.get("mixed", at.block.heads * head_dim);
    let attend = match indexer {
        Some(index) => {
            index_keys(b, ops, shape, at, index, input);
            let index_query = index_queries(b, ops, shape, at, input);
            Op::SparseAttention { layer, index, query, index_query, head_dim, scale: b.config.attention_scale, dst }
        }
        None => Op::Attention { layer, query, head_dim, scale: b.config.attention_scale, dst },
    };
    ops.push(attend);
    b.project_out(ops, at, dst, Some(gate))
}

/// What a row leaves behind for the indexer of later rows.
fn index_keys(b: &mut Builder<'_>, ops: &mut Vec<Op>, shape: &Shape, at: Place<'_>, index: usize, input: BufferId) {
    let dim = shape.own.indexer.dim;
    let key = b.buffers.get("index_key", dim);
    let weight = b.wants.matrix(at.from, &format!("{}.indexer.k_proj.weight", at.prefix), dim, shape.d);
    ops.push(Op::MatMul { src: input, outputs: vec![(weight, key)] });
    ops.push(Op::StoreIndex { index, key });
}

fn index_queries(b: &mut Builder<'_>, ops: &mut Vec<Op>, shape: &Shape, at: Place<'_>, input: BufferId) -> BufferId {
    let (heads, dim) = (shape.own.indexer.heads, shape.own.indexer.dim);
    let query = b.buffers.get("index_query", heads * dim);
    let name = |part: &str| format!("{}.indexer.{part}.weight", at.prefix);
    let weight = b.wants.matrix(at.from, &name("q_proj"), heads * dim, shape.d);
    ops.push(Op::MatMul { src: input, outputs: vec![(weight, query)] });
    let weight = b.wants.vector(at.from, &name("q_norm"), dim);
    ops.push(Op::RmsNorm { src: query, weight, dst: query });
    ops.push(Op::Rope { buffer: query, head_dim: dim });
    query
}

/// Looks the last tokens up, opens what is found by the streams, and adds it with its convolution onto them.
fn ngrams(b: &mut Builder<'_>, ops: &mut Vec<Op>, shape: &Shape, ngram: &NgramConfig, prefix: &str, streams: BufferId) {
    let (d, wide, count) = (shape.d, shape.wide(), shape.own.streams);
    let from = Source::Model;
    let name = |part: &str| format!("{prefix}.ple_{part}.weight");
    let found = b.row("ngram_rows");
    let value = b.row("ngram_value");
    let key = b.buffers.get("ngram_key", wide);
    let normed = b.buffers.get("ngram_normed", wide);
    let query = b.buffers.get("ngram_query", wide);
    let table = b.wants.table(from, "per_layer_token_embd.weight", ngram.table_rows(), ngram.row);
    let keys = b.wants.matrix(from, &name("key"), wide, d);
    let values = b.wants.matrix(from, &name("value"), d, d);
    let mut norm = |part: &str| b.wants.streams(from, &name(part), d, count);
    let (norm_key, norm_query, norm_conv) = (norm("norm_key"), norm("norm_query"), norm("norm_conv"));
    ops.push(Op::Ngrams { table, dst: found });
    ops.push(Op::MatMul { src: found, outputs: vec![(keys, key), (values, value)] });
    ops.push(Op::RmsNormStreams { src: key, weight: norm_key, width: d, dst: normed });
    ops.push(Op::RmsNormStreams { src: streams, weight: norm_query, width: d, dst: query });
    ops.push(Op::GateValues { key: normed, query, value, dst: key });
    ops.push(Op::RmsNormStreams { src: key, weight: norm_conv, width: d, dst: normed });
    let geometry = ConvolutionGeometry {
        dims: ConvDims { channels: wide, taps: ngram.conv_taps, dilation: ngram.hash.ngram_size() },
        conv: b.wants.grid(from, &name("conv1d"), ngram.conv_taps, wide),
    };
    b.recurrent.push(RecurrentGeometry::Convolution(geometry));
    ops.push(Op::Convolution { layer: b.recurrent.len() - 1, src: normed, dst: query });
    ops.push(Op::Add { dst: key, src: query });
    ops.push(Op::Add { dst: streams, src: key });
}
