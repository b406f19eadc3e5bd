//! `qwen4exp`: hyper-connections, n-gram embeddings, block-sparse attention and the MTP block behind them.
//!
//! The torch reference is right at every depth; the peer's file holds depth 1 only, because that peer overwrites one
//! stream of the row it hands back from a draft step.

use std::sync::Arc;

use engine::ids::{StateSlot, TokenId};
use engine::model::Model;
use engine::model::conventions::{Conventions, HiddenNorm};
use engine::model::load::{LoadOptions, Repack};
use engine::model::program::Op;
use engine::step::{Executor, SlotOp};
use engine_bin::bench::single::Want;
use engine_io::gguf::{Array, Value};
use engine_io::{ModelFile, TensorType};
use engine_tests::fixtures::Reference;

use super::edit::{Edit, refused, trunk_only};
use super::generate::{END, quantised, qwen4exp, values};
use super::invariance::ids;
use super::{LOGIT_LIMIT, MARGIN, MTP_LIMIT, distance, exact, integer, load, meets_all, sequences, single};

const MODEL: &str = "qwen4exp-tiny/qwen4exp-tiny-BF16.gguf";
const TORCH: &str = "qwen4exp-tiny/ref-torch-f32.safetensors";
const PEER: &str = "qwen4exp-tiny/ref-llamacpp-newer-F32.safetensors";

/// Trunk, greedy text, MTP prefill and chains of three drafts; the longest sequence chooses blocks almost everywhere.
#[test]
fn qwen4exp_meets_its_references() {
    meets_all("qwen4exp-tiny", &["BF16", "F32"]);
}

/// Recorded rows of all streams before the last mixer, and the MTP logits beside them, of both references.
#[test]
fn wide_rows_and_mtp_logits_meet_both_references() {
    for reference in [TORCH, PEER] {
        let (Some(model), Some(r)) = (load(MODEL), Reference::open(reference)) else { continue };
        for (i, tokens) in sequences(&r).into_iter().enumerate() {
            let at = |key: &str| format!("s{i}.{key}");
            let mut single = single(&model, tokens.len() + 8, exact());
            let wide = r.f32(&at("h_last"));
            assert_eq!(single.executor().shape().hidden_width, wide.shape[1], "all streams");
            let last = |rows: &[f32], expected: &[f32]| distance(&rows[rows.len() - expected.len()..], expected);
            let result = single.trunk(&tokens, tokens.len(), Want::ProbeAll);
            assert!(last(&result.hidden, &wide.data) < LOGIT_LIMIT, "{reference}, sequence {i}: wide rows");
            assert!(last(&result.logits, &r.f32(&at("logits_last")).data) < LOGIT_LIMIT, "{reference}, {i}: logits");
            let logits = r.f32(&at("mtp_logits_last"));
            let result = single.mtp(&tokens, 0, true);
            assert!(last(&result.mtp_logits, &logits.data) < MTP_LIMIT, "{reference}, sequence {i}: MTP logits");
        }
    }
}

/// The first draft after every token of the peer's greedy text.
#[test]
fn first_drafts_are_the_peers() {
    let (Some(model), Some(r)) = (load(MODEL), Reference::open(PEER)) else { return };
    for (i, tokens) in sequences(&r).into_iter().enumerate() {
        let at = |key: &str| format!("s{i}.{key}");
        let (greedy, margin) = (r.ids(&at("greedy")), r.f32(&at("greedy_margin")).data);
        let chain = r.i32(&at("draft_chain_depth1"));
        let mut single = single(&model, tokens.len() + greedy.len() + 2, exact());
        single.trunk(&tokens, tokens.len(), Want::Nothing);
        single.mtp(&tokens, 0, false);
        // The reference's own text is fed, so a near-tie of it does not matter to what follows.
        for g in 0..chain.rows() {
            let draft = single.mtp(&greedy[g..=g], 1, false).draft[0];
            assert_eq!(draft.0 as i32, chain.row(g)[0], "sequence {i}: draft after greedy token {g}");
            let next = single.trunk(&greedy[g..=g], 1, Want::Choice).next[0];
            assert!(margin[g + 1] < MARGIN || next.0 == greedy[g + 1], "sequence {i}: greedy token {}", g + 1);
        }
    }
}

fn loaded(edit: &Edit) -> Arc<Model> {
    Arc::new(edit.load().unwrap_or_else(|error| panic!("{error}")))
}

fn with_norm(edit: &Edit, hidden_norm: HiddenNorm) -> Arc<Model> {
    let conventions = Conventions { mtp_hidden_norm: Some(hidden_norm), ..Conventions::default() };
    let options = LoadOptions { conventions, ..LoadOptions::default() };
    Arc::new(Model::load(&edit.file(), None, options).unwrap_or_else(|error| panic!("{error}")))
}

/// What a model says of some tokens: logits of every row, MTP logits of every row and of a chain.
pub fn says(model: &Arc<Model>, tokens: &[u32]) -> (Vec<f32>, Vec<f32>, Vec<TokenId>) {
    let mut single = single(model, tokens.len() + 8, exact());
    let logits = single.trunk(tokens, tokens.len(), Want::ProbeAll).logits.clone();
    let anchored = [tokens, &[9]].concat();
    let result = single.mtp(&anchored, 4, true);
    (logits, result.mtp_logits.clone(), result.draft.clone())
}

/// One mean square over all streams, or one each: drafts differ, nothing else does.
#[test]
fn both_forms_of_the_hidden_norm_run() {
    let tokens = ids(40, 3);
    let edit = qwen4exp(2);
    let (stream, row) = (with_norm(&edit, HiddenNorm::Stream), with_norm(&edit, HiddenNorm::Row));
    assert_eq!(loaded(&edit).program, stream.program, "the default");
    let (by_stream, by_row) = (says(&stream, &tokens), says(&row, &tokens));
    assert_eq!(by_stream.0, by_row.0, "the trunk knows nothing of it");
    assert!(distance(&by_stream.1, &by_row.1) > 1e-2, "the two forms are not the same function");
    assert!(by_row.1.iter().chain(&by_stream.1).all(|x| x.is_finite()));
    let norms = |model: &Model| {
        let block = &model.program.mtp.as_ref().unwrap().block;
        let hidden = model.program.mtp.as_ref().unwrap().hidden_in;
        block
            .iter()
            .find(|op| matches!(op, Op::RmsNorm { src, .. } | Op::RmsNormStreams { src, .. } if *src == hidden))
            .cloned()
    };
    assert!(matches!(norms(&stream), Some(Op::RmsNormStreams { width: 64, .. })));
    assert!(matches!(norms(&row), Some(Op::RmsNorm { .. })));
    // A model of another kind has no such norm to choose.
    let Some(other) = Edit::of("qwen35-tiny/qwen35-tiny-Q8_0.gguf") else { return };
    let conventions = Conventions { mtp_hidden_norm: Some(HiddenNorm::Row), ..Conventions::default() };
    let options = LoadOptions { conventions, ..LoadOptions::default() };
    let error = Model::load(&other.file(), None, options).err().expect("a parameter of another family").to_string();
    assert!(error.contains("mtp-hidden-norm") && error.contains("qwen4exp") && error.contains("qwen35"), "{error}");
}

/// Up to the documented length choosing is no choice: 8 tokens chosen and up to 3 behind the last full block.
#[test]
fn sparse_attention_is_dense_up_to_its_budget() {
    let tokens = ids(60, 4);
    let dense = qwen4exp(3).set("qwen4exp.attention.compress_ratios", Value::Array(Array::I32(vec![0; 5])));
    let (sparse, dense) = (loaded(&qwen4exp(3)), loaded(&dense));
    assert!(dense.program.index.is_empty() && dense.unexpected.is_empty(), "{:?}", dense.unexpected);
    let (chosen, all) = (says(&sparse, &tokens), says(&dense, &tokens));
    for (what, chosen, all) in [("trunk", &chosen.0, &all.0), ("MTP block", &chosen.1, &all.1)] {
        let rows = chosen.chunks(sparse.vocab).zip(all.chunks(sparse.vocab)).map(|(a, b)| a == b);
        let same = rows.take_while(|same| *same).count();
        assert_eq!(same, 11, "{what}: rows that see everything");
    }
    // A ratio of the MTP block alone is honoured or not: what the trunk says stays.
    let ratios = Value::Array(Array::I32(vec![0, 0, 0, 4, 0]));
    let mixed = loaded(&qwen4exp(3).set("qwen4exp.attention.compress_ratios", ratios));
    let found = says(&mixed, &tokens);
    assert_eq!(mixed.program.index.len(), 1);
    assert_eq!(found.0, chosen.0);
    assert!(found.1 != chosen.1 && found.1 != all.1);
    // A scalar speaks of all blocks.
    let scalar = loaded(&qwen4exp(3).set("qwen4exp.attention.compress_ratios", Value::U32(4)));
    assert_eq!(scalar.program, sparse.program);
}

/// End tokens in the text and in rejected drafts: the rows that tokens name are those of the text that stayed.
#[test]
fn end_tokens_and_rejections_leave_the_right_history() {
    let model = loaded(&qwen4exp(4));
    let mut tokens = ids(80, 5);
    for (i, token) in tokens.iter_mut().enumerate() {
        if i % 7 == 3 || i % 11 == 0 {
            *token = END;
        }
    }
    let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let mut whole = single(&model, 96, integer());
    let expected = bits(&whole.trunk(&tokens, tokens.len(), Want::ProbeAll).logits);
    for k in 1..6 {
        let mut single = single(&model, 96, integer());
        let mut found = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let right = (at % (k + 1)).min(tokens.len() - 1 - at);
            let mut window = tokens[at..=at + right].to_vec();
            // Wrong drafts: an end token first, or one more of the text.
            window.extend((right..k).map(|i| if (at + i) % 2 == 0 { END } else { 300 }));
            let result = single.trunk(&window, 1, Want::Probe);
            found.extend(bits(&result.logits[..(right + 1) * model.vocab]));
            at += right + 1;
            single.truncate(at as u32);
            if at % 3 == 0 {
                single.op(SlotOp::Fold { state: StateSlot(0) });
            }
        }
        assert_eq!(found, expected, "windows of {k}");
    }
    // Without the cut the text would mean something else.
    let no_end = loaded(&qwen4exp(4).set("qwen4exp.ple.eos_token_id", Value::U32(511)));
    let mut whole = single(&no_end, 96, integer());
    assert_ne!(bits(&whole.trunk(&tokens, tokens.len(), Want::ProbeAll).logits), expected);
}

/// Gammas of all streams in either shape and in any float type are one model.
#[test]
fn shapes_and_types_of_gammas_agree() {
    let edit = qwen4exp(5);
    let tokens = ids(20, 6);
    let expected = says(&loaded(&edit), &tokens);
    let mut twin = edit.clone();
    let mut changed = 0;
    for t in &mut twin.tensors {
        if t.dims == [256] {
            t.dims = vec![64, 4];
            changed += 1;
        }
    }
    assert_eq!(changed, 10 + 1 + 3 + 2, "two a block, the trunk's, the n-grams' and the head's");
    let strict = LoadOptions { strict: true, repack: Repack::On, ..LoadOptions::default() };
    let model = Arc::new(Model::load(&twin.file(), None, strict).unwrap_or_else(|error| panic!("{error}")));
    assert_eq!(says(&model, &tokens), expected);
    // No other shape of as many elements, and no other tensor in two dimensions.
    let mut turned = edit.clone();
    turned.tensor("blk.2.hc_ffn_norm.weight").dims = vec![4, 64];
    refused(&turned, &["blk.2.hc_ffn_norm.weight has dimensions [4, 64], expected [256]"]);
    let mut other = edit.clone();
    other.tensor("blk.3.attn_q_norm.weight").dims = vec![8, 2];
    refused(&other, &["blk.3.attn_q_norm.weight has dimensions [8, 2], expected [16]"]);

    // BF16 is the upper half of a float: rounding the values first makes both files one model.
    let (mut short, mut rounded) = (edit.clone(), edit);
    for (short, rounded) in short.tensors.iter_mut().zip(&mut rounded.tensors) {
        if rounded.name.contains("norm") || rounded.name.contains("conv1d") || rounded.name.contains("per_layer") {
            let upper = |x: f32| (x.to_bits() >> 16) as u16;
            let halves: Vec<u16> = values(rounded).into_iter().map(upper).collect();
            rounded.data = halves.iter().flat_map(|&h| (u32::from(h) << 16).to_le_bytes()).collect();
            (short.kind, short.data) = (TensorType::Bf16, halves.iter().flat_map(|h| h.to_le_bytes()).collect());
        }
    }
    assert_eq!(says(&loaded(&short), &tokens), says(&loaded(&rounded), &tokens));
}

/// Quantised weights are their values; quantised activations choose nearly as float ones do.
#[test]
fn a_quantised_file_is_computed_as_its_values() {
    let (q8, twin) = quantised(&qwen4exp(6));
    let tokens = ids(120, 7);
    let (q8, twin) = (loaded(&q8), loaded(&twin));
    let (found, expected) = (says(&q8, &tokens), says(&twin, &tokens));
    assert!(distance(&found.0, &expected.0) < 1e-4 && distance(&found.1, &expected.1) < 1e-4);
    let mut single = single(&q8, 128, integer());
    let logits = single.trunk(&tokens, tokens.len(), Want::ProbeAll).logits.clone();
    let best = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    let rows = logits.chunks(q8.vocab).zip(expected.0.chunks(q8.vocab));
    let same = rows.filter(|(a, b)| best(a) == best(b)).count();
    assert!(same * 10 >= tokens.len() * 8, "{same} of {} choices", tokens.len());
}

/// Heads that do not fit their trunk; what fits is in `sidecars.rs`.
#[test]
fn a_sidecar_fits_its_trunk() {
    let (trunk, head) = (qwen4exp(7).trunk(), qwen4exp(7).sidecar());
    let pair = |trunk: &Edit, head: &ModelFile| Model::load(&trunk.file(), Some(head), LoadOptions::default());
    let text = |head: &Edit| pair(&trunk, &head.file()).err().expect("a head that does not fit").to_string();
    let of = |head: Edit, parts: &[&str]| {
        let text = text(&head);
        assert!(parts.iter().all(|part| text.contains(part)), "`{text}` does not say {parts:?}");
    };
    // A head that has lost its own mixer would draft with the trunk's.
    let unnamed = head.clone().drop(|n| n.contains("hc_head"));
    of(unnamed.clone(), &["output_hc_norm.weight holds the trunk's mixer", "blk.4.nextn.hc_head_norm.weight"]);
    of(unnamed.drop(|n| n.starts_with("output_hc")), &["blk.4.nextn.hc_head_norm.weight is missing"]);
    let halves = head.clone().drop(|n| n.contains("eh_proj")).add("mtp.fc_embd.weight", &[64, 64], &[0.0; 64 * 64]);
    of(halves, &["mtp.fc_embd.weight instead of blk.4.nextn.eh_proj.weight"]);
    of(head.clone().set("qwen4exp.hyper_connection.count", Value::U32(2)), &["hyper_connection.count is 2"]);
    of(
        head.clone().set("qwen4exp.attention.indexer.top_k", Value::U32(16)),
        &["attention.indexer.top_k is 16 here and 8"],
    );
    for (part, other, there) in [
        ("hyper_connection.low_rank", 16, 32),
        ("attention.indexer.head_count", 4, 2),
        ("attention.indexer.key_length", 16, 8),
    ] {
        let text = format!("{part} is {other} here and {there} in the model");
        of(head.clone().set(&format!("qwen4exp.{part}"), Value::U32(other)), &[&text]);
    }
    of(head.clone().set("qwen4exp.expert_count", Value::U32(8)), &["expert_count is 8 here and 4 in the model"]);
    refused(&head, &["only block 4", "draft model"]);
    trunk_only(&trunk, &["no blk.4.nextn.* tensors"]);
}

/// Tensors of the MTP block that are missing cost the drafts and are named; the trunk runs.
#[test]
fn an_incomplete_head_costs_the_drafts() {
    for part in ["eh_proj", "enorm", "hnorm", "hc_head_norm", "hc_head_down", "hc_head_up"] {
        let name = format!("blk.4.nextn.{part}.weight");
        let edit = qwen4exp(8).drop(|n| n == name);
        trunk_only(&edit, &[&format!("{name} is missing")]);
        let model = edit.load().unwrap();
        assert_eq!((model.program.kv.len(), model.program.index.len()), (1, 1), "the block's caches are not made");
    }
    trunk_only(&qwen4exp(8).drop(|n| n == "blk.4.indexer.k_proj.weight"), &["blk.4.indexer.k_proj.weight is missing"]);
    trunk_only(
        &qwen4exp(8).drop(|n| n.starts_with("blk.4.")),
        &["nextn_predict_layers = 1", "no blk.4.nextn.* tensors"],
    );
    let mut half = qwen4exp(8);
    let t = half.tensor("blk.4.nextn.eh_proj.weight");
    (t.dims, t.data) = (vec![64, 64], t.data[..t.data.len() / 2].to_vec());
    trunk_only(&half, &["blk.4.nextn.eh_proj.weight has dimensions [64, 64], expected [128, 64]"]);
}
