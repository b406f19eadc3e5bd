//! What a `qwen4exp` file may not say: one key or tensor of a generated model is changed at a time.

use engine_io::TensorType;
use engine_io::gguf::{Array, Value};

use super::edit::refused;
use super::generate::qwen4exp;

fn key(name: &str) -> String {
    format!("qwen4exp.{name}")
}

/// The generated model with a key set is refused with a message that names the key and has `parts`.
fn wrong(name: &str, value: Value, parts: &[&str]) {
    let key = key(name);
    refused(&qwen4exp(9).set(&key, value), &[&[key.as_str()], parts].concat());
}

fn int(x: u32) -> Value {
    Value::U32(x)
}

fn ints(list: &[i32]) -> Value {
    Value::Array(Array::I32(list.to_vec()))
}

fn longs(list: &[u64]) -> Value {
    Value::Array(Array::U64(list.to_vec()))
}

#[test]
fn the_generated_model_is_one() {
    let model = qwen4exp(9).load().unwrap_or_else(|error| panic!("{error}"));
    assert!(model.unexpected.is_empty() && model.program.mtp.is_some(), "{:?}", model.unexpected);
    assert_eq!((model.program.kv.len(), model.program.index.len(), model.program.recurrent.len()), (2, 2, 4));
}

#[test]
fn keys_are_required_typed_and_in_range() {
    let required = [
        "block_count",
        "context_length",
        "embedding_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_sections",
        "expert_count",
        "expert_used_count",
        "ssm.conv_kernel",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.time_step_rank",
        "ssm.group_count",
        "hyper_connection.count",
        "hyper_connection.low_rank",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
        "ple.ngram_size",
        "ple.heads_per_ngram",
        "ple.conv_kernel",
        "ple.eos_token_id",
        "embedding_length_per_layer_input",
        "ple.layer_multipliers",
        "ple.head_offsets",
        "ple.head_vocab_sizes",
    ];
    for name in required {
        let key = key(name);
        refused(&qwen4exp(9).unset(&key), &[&key, "missing"]);
        wrong(name, Value::str("some"), &["some"]);
    }
    for name in
        ["hyper_connection.low_rank", "attention.indexer.head_count", "attention.indexer.key_length", "ple.conv_kernel"]
    {
        wrong(name, int(0), &["0", "1 to"]);
    }
    wrong("hyper_connection.count", int(1), &["1", "2 to 64"]);
    wrong("ple.ngram_size", int(1), &["1", "2 to 8"]);
    wrong("ple.ngram_size", int(9), &["9", "2 to 8"]);
    wrong("full_attention_interval", int(0), &["0"]);
    wrong("ple.image_token_id", Value::str("image"), &["image"]);
}

#[test]
fn numbers_fit_together() {
    wrong("attention.value_length", int(8), &["8 with attention.key_length 16"]);
    wrong("ssm.inner_size", int(128), &["128 with ssm.time_step_rank 4"]);
    wrong("ssm.time_step_rank", int(3), &["3 value heads with ssm.group_count 2"]);
    wrong("rope.dimension_sections", ints(&[2, 1, 0, 0]), &["[2, 1, 0, 0]", "half of rope.dimension_count"]);
    let narrow = qwen4exp(9).set(&key("attention.indexer.key_length"), int(4));
    refused(&narrow, &["rope.dimension_count", "8 with attention.indexer.key_length 4"]);
    // Recurrent layers may be listed; the MTP block is none of them.
    let listed = |last| Value::Array(Array::Bool(vec![true, true, true, false, last]));
    let model = qwen4exp(9).load().unwrap();
    let same = qwen4exp(9).set(&key("attention.recurrent_layers"), listed(false)).load().unwrap();
    assert_eq!(same.program, model.program);
    let as_ints = ints(&[1, 1, 1, 0, 0]);
    assert_eq!(qwen4exp(9).set(&key("attention.recurrent_layers"), as_ints).load().unwrap().program, model.program);
    wrong("attention.recurrent_layers", listed(true), &["makes block 4 an MTP block", "expected false"]);
    wrong("attention.recurrent_layers", Value::Array(Array::Bool(vec![true; 3])), &["3", "5"]);
    // Arrays over all blocks, or one number.
    let heads =
        qwen4exp(9).set(&key("attention.head_count_kv"), ints(&[2; 5])).set(&key("expert_used_count"), ints(&[2; 5]));
    assert_eq!(heads.load().unwrap().program, model.program);
    wrong("attention.head_count_kv", ints(&[2, 2, 2, 2, 0]), &["0 key/value heads", "block 4"]);
}

#[test]
fn ratios_agree_and_divide_the_budget() {
    let name = "attention.compress_ratios";
    wrong(name, ints(&[0, 0, 0, 1, 1]), &["[3]", "1", "0, or 2 to 64"]);
    wrong(name, ints(&[0, 0, 0, 65, 65]), &["[3]", "65", "0, or 2 to 64"]);
    wrong(name, ints(&[0, 0, 0, 4, 2]), &["[4]", "2", "4 as in the blocks before"]);
    wrong(name, ints(&[0, 0, 0, -4, 4]), &["[3]", "-4"]);
    wrong(name, ints(&[0, 0, 4]), &["3", "5"]);
    wrong("attention.indexer.top_k", int(10), &["10 with attention.compress_ratios 4", "multiple"]);
    wrong("attention.indexer.top_k", int(0), &["0"]);
    // A list over the trunk leaves the MTP block dense.
    let model = qwen4exp(9).set(&key(name), ints(&[0, 0, 0, 4])).load().unwrap();
    assert_eq!((model.program.index.len(), model.unexpected.len()), (1, 0));
    assert!(model.program.mtp.is_some());
}

#[test]
fn ngram_keys_are_sound() {
    wrong("ple.layers", ints(&[0, 1]), &["[0, 1]", "one block"]);
    wrong("ple.layers", ints(&[3]), &["3", "a recurrent block of the trunk"]);
    wrong("ple.layers", ints(&[4]), &["4", "a recurrent block of the trunk"]);
    wrong("ple.heads_per_ngram", int(33), &["33 with ple.ngram_size 3", "64 heads"]);
    wrong("embedding_length_per_layer_input", int(8), &["8 with 4 heads", "embedding_length, which is 64"]);
    wrong("ple.layer_multipliers", longs(&[3, 5]), &["array of 2", "at least 3"]);
    wrong("ple.head_offsets", longs(&[0, 101, 204]), &["array of 3", "at least 4"]);
    wrong("ple.head_offsets", longs(&[0, 101, 204, 1 << 31]), &["[3]", "2147483648", "2147483647"]);
    wrong("ple.head_vocab_sizes", longs(&[101, 103, 0, 109]), &["[2]", "0", "1 to"]);
    // Cut to 32 bits, or too large for the products of the hash.
    wrong("ple.layer_multipliers", ints(&[1, -5, 3]), &["[1]", "-5", "32 bits"]);
    wrong("ple.layer_multipliers", longs(&[3, 1 << 62, 5]), &["[1]", "4611686018427387904", "2^63"]);
    // Longer lists are of wider models; what is beyond the heads is not looked at.
    let longer = qwen4exp(9).set(&key("ple.head_offsets"), longs(&[0, 101, 204, 311, 1 << 40]));
    assert_eq!(longer.load().unwrap().program, qwen4exp(9).load().unwrap().program);
    // Fewer rows than the heads name; more are padding.
    let table = "per_layer_token_embd.weight";
    let mut short = qwen4exp(9);
    let t = short.tensor(table);
    (t.dims, t.data) = (vec![16, 419], t.data[..16 * 419 * 4].to_vec());
    refused(&short, &["per_layer_token_embd.weight has dimensions [16, 419], expected [16, 420]"]);
    let mut exact = qwen4exp(9);
    let t = exact.tensor(table);
    (t.dims, t.data) = (vec![16, 420], t.data[..16 * 420 * 4].to_vec());
    assert!(exact.load().is_ok());
    // The keys are there or the tensors are not: nothing is left out in silence.
    let text = refused(&qwen4exp(9).unset(&key("ple.layers")), &["qwen4exp.ple.layers does not name its block"]);
    assert!(text.to_string().contains("ple_key") || text.to_string().contains("per_layer_token_embd"), "{text}");
    refused(&qwen4exp(9).set(&key("ple.layers"), ints(&[2])), &["blk.1.ple_", "qwen4exp.ple.layers"]);
    let without = qwen4exp(9).unset(&key("ple.layers")).drop(|n| n.contains("ple_") || n == table);
    assert!(without.load().unwrap().program.ngrams.is_none());
}

#[test]
fn tensors_are_required_with_their_shapes_and_types() {
    let required = [
        "token_embd.weight",
        "output_hc_norm.weight",
        "output_hc_down.weight",
        "output_hc_up.weight",
        "per_layer_token_embd.weight",
        "blk.0.hc_attn_norm.weight",
        "blk.1.hc_attn_down.weight",
        "blk.2.hc_attn_up.weight",
        "blk.3.hc_attn_inject.weight",
        "blk.0.hc_ffn_inject.weight",
        "blk.1.ffn_gate_inp.weight",
        "blk.2.ffn_down_exps.weight",
        "blk.3.ffn_gate_inp_shexp.weight",
        "blk.3.indexer.q_proj.weight",
        "blk.3.indexer.k_proj.weight",
        "blk.3.indexer.q_norm.weight",
        "blk.3.indexer.k_norm.weight",
        "blk.3.attn_q.weight",
        "blk.0.ssm_out.weight",
        "blk.1.ple_key.weight",
        "blk.1.ple_value.weight",
        "blk.1.ple_norm_key.weight",
        "blk.1.ple_norm_query.weight",
        "blk.1.ple_norm_conv.weight",
        "blk.1.ple_conv1d.weight",
    ];
    for name in required {
        refused(&qwen4exp(9).drop(|n| n == name), &[&format!("{name} is missing")]);
        let mut wide = qwen4exp(9);
        let t = wide.tensor(name);
        let last = t.dims.len() - 1;
        t.dims[last] += 1;
        let row = t.data.len() / (t.dims[last] - 1) as usize;
        t.data.resize(t.data.len() + row, 0);
        if !["token_embd.weight", "per_layer_token_embd.weight"].contains(&name) {
            refused(&wide, &[&format!("{name} has dimensions")]);
        }
    }
    // One tensor of queries, keys and values is no layout of an attention block here.
    let fused = qwen4exp(9).drop(|n| ["q", "k", "v"].iter().any(|p| n == format!("blk.3.attn_{p}.weight"))).add(
        "blk.3.attn_qkv.weight",
        &[64, 192],
        &[0.0; 64 * 192],
    );
    refused(&fused, &["blk.3.attn_q.weight is missing", "blk.3.attn_v.weight is missing"]);
    // Gammas are whole numbers of nothing: a value that is not finite is named.
    let mut broken = qwen4exp(9);
    broken.tensor("blk.1.ple_norm_conv.weight").data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    refused(&broken, &["blk.1.ple_norm_conv.weight", "NaN", "finite"]);
    let mut typed = qwen4exp(9);
    let t = typed.tensor("blk.0.hc_attn_inject.weight");
    (t.kind, t.data) = (TensorType::I32, t.data.clone());
    refused(&typed, &["blk.0.hc_attn_inject.weight", "cannot be computed"]);
    refused(&qwen4exp(9).add("blk.0.attn_qkv.scale", &[1], &[1.0]), &["blk.0.attn_qkv.scale", "scale"]);
}

#[test]
fn numbers_of_no_model_are_refused() {
    for wrong_scale in [1e38, -1.0, 1e-40] {
        wrong("expert_weights_scale", Value::F32(wrong_scale), &["0 for none, or"]);
    }
    let multipliers = qwen4exp(9).meta.get_u64_array(&key("ple.layer_multipliers")).unwrap().unwrap();
    for i in 0..multipliers.len() {
        let mut zero = multipliers.clone();
        zero[i] = 0;
        wrong("ple.layer_multipliers", longs(&zero), &[&format!("ple.layer_multipliers[{i}]"), "above 0"]);
    }
}

/// A list of no tokens is no reason to count below 0.
#[test]
fn an_empty_token_list_is_refused() {
    let none: [&str; 0] = [];
    let edit = qwen4exp(9).set("tokenizer.ggml.tokens", Value::strs(none));
    refused(&edit, &["tokenizer.ggml.tokens has 0 entries"]);
}

/// The base that every other architecture defaults to is none that a model of this one was trained with.
#[test]
fn a_lost_base_of_the_angles_is_told() {
    let name = key("rope.freq_base");
    let given = qwen4exp(9).set(&name, Value::F32(1e7)).load().unwrap();
    assert!(given.config.warnings.is_empty(), "{:?}", given.config.warnings);
    let warnings = qwen4exp(9).unset(&name).load().unwrap().config.warnings;
    assert!(warnings.len() == 1 && warnings[0].contains(&name) && warnings[0].contains("10000"), "{warnings:?}");
}
