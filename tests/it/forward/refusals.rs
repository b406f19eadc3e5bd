//! Files that contradict themselves, lack something or ask for what is not implemented: a typed error or a named reason,
//! never a panic and never a different model. Each case is a small real model with one thing changed.

use engine::model::load::LoadOptions;
use engine::model::program::{BufferId, Op};
use engine::model::{Model, ModelError, MtpStatus};
use engine_io::gguf::{Array, Value};
use engine_io::{Error, ModelFile, TensorType};
use engine_tests::fixtures::fixture;

use super::edit::{Edit, Tensor, edit, refused, trunk_only};
use super::{exact, load, open, single};
use engine_bin::bench::single::Want;

const LLAMA: &str = "llama-tiny/llama-tiny-F32.gguf";
const QWEN: &str = "qwen35-tiny/qwen35-tiny-BF16.gguf";

#[test]
fn an_edit_that_changes_nothing_is_the_model() {
    let Some(model) = load(QWEN) else { return };
    let copy = edit!(QWEN).load().unwrap();
    assert_eq!((copy.program, copy.config), (model.program.clone(), model.config.clone()));
}

#[test]
fn other_architectures_are_refused_by_name() {
    let error = refused(
        &edit!(LLAMA).set("general.architecture", Value::str("mamba")),
        &["general.architecture", "mamba", "llama, qwen35"],
    );
    assert!(matches!(error, ModelError::Architecture { .. }));
    refused(&edit!(LLAMA).set("llama.expert_count", Value::U32(8)), &["llama.expert_count", "experts"]);
}

#[test]
fn keys_are_required_typed_and_in_range() {
    for key in ["block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"] {
        let key = format!("llama.{key}");
        let error = refused(&edit!(LLAMA).unset(&key), &[&key, "missing"]);
        assert!(matches!(error, ModelError::File(Error::MissingKey { .. })));
        refused(&edit!(LLAMA).set(&key, Value::str("many")), &[&key, "many", "an integer"]);
        refused(&edit!(LLAMA).set(&key, Value::I64(-1)), &[&key, "-1"]);
        refused(&edit!(LLAMA).set(&key, Value::U64(1 << 40)), &[&key, "1099511627776"]);
    }
    let eps = "llama.attention.layer_norm_rms_epsilon";
    refused(&edit!(LLAMA).unset(eps), &[eps, "missing"]);
    refused(&edit!(LLAMA).set(eps, Value::F32(0.0)), &[eps, "above 0"]);
    refused(&edit!(LLAMA).set("llama.rope.freq_base", Value::F32(-1.0)), &["llama.rope.freq_base", "above 0"]);
}

/// Any integer width gives the same model.
#[test]
fn integer_widths_do_not_matter() {
    let mut edit = edit!(QWEN);
    let Some(model) = load(QWEN) else { return };
    for (i, key) in
        ["block_count", "attention.head_count", "ssm.conv_kernel", "nextn_predict_layers"].iter().enumerate()
    {
        let key = format!("qwen35.{key}");
        let n = edit.meta.require_u32(&key).unwrap();
        let value = [Value::U8(n as u8), Value::U64(n.into()), Value::I16(n as i16), Value::I64(n.into())];
        edit = edit.set(&key, value[i].clone());
    }
    assert_eq!(edit.load().unwrap().config, model.config);
}

/// Head sizes come from their own keys; a model whose d_model is no multiple of its heads needs them.
#[test]
fn head_sizes_have_keys_of_their_own() {
    let lens = ["llama.attention.key_length", "llama.attention.value_length"];
    let same = edit!(LLAMA).unset(lens[0]).unset(lens[1]).load().unwrap();
    assert_eq!(same.config.head_dim, 16);
    refused(&edit!(LLAMA).set(lens[0], Value::U32(32)), &[lens[1], "16", "32", "equal"]);
    let wide = edit!(LLAMA).set(lens[0], Value::U32(32)).set(lens[1], Value::U32(32));
    let wide = wide.set("llama.rope.dimension_count", Value::U32(32));
    refused(&wide, &["blk.0.attn_q.weight", "[64, 64]", "[64, 128]"]);
    let odd = edit!(LLAMA).unset(lens[0]).unset(lens[1]).set("llama.attention.head_count", Value::U32(6));
    refused(&odd, &["llama.embedding_length", "64", "6", "key_length"]);
    refused(&edit!(LLAMA).set("llama.attention.head_count_kv", Value::U32(3)), &["head_count_kv", "3", "4", "divisor"]);
    refused(&edit!(LLAMA).set("llama.rope.dimension_count", Value::U32(18)), &["rope.dimension_count", "18", "16"]);
    refused(&edit!(LLAMA).set("llama.rope.dimension_count", Value::U32(7)), &["rope.dimension_count", "even"]);
}

#[test]
fn rope_scaling_is_done_or_refused_by_name() {
    let kind = "llama.rope.scaling.type";
    refused(&edit!(LLAMA).set(kind, Value::str("yarn")), &[kind, "yarn", "none, linear, llama3"]);
    refused(&edit!(LLAMA).set(kind, Value::str("linear")), &["llama.rope.scaling.factor", "missing"]);
    refused(&edit!(LLAMA).set(kind, Value::str("llama3")), &["rope_freqs.weight", "missing"]);

    // Linear scaling by 2 is every factor 2; both differ from no scaling.
    let linear = edit!(LLAMA).set(kind, Value::str("linear")).set("llama.rope.scaling.factor", Value::F32(2.0));
    let factors = edit!(LLAMA).set(kind, Value::str("llama3")).add("rope_freqs.weight", &[8], &[2.0; 8]);
    let logits = |edit: &Edit| {
        let model = std::sync::Arc::new(edit.load().unwrap());
        single(&model, 32, exact()).trunk(&[5, 9, 80, 200, 3], 5, Want::Probe).logits.clone()
    };
    assert_eq!(logits(&linear), logits(&factors));
    assert_ne!(logits(&linear), logits(&edit!(LLAMA)));
    // A factor alone is one of linear scaling, under its old name too; beside the new one that does not count.
    let (factor, old) = ("llama.rope.scaling.factor", "llama.rope.scale_linear");
    assert_eq!(logits(&edit!(LLAMA).set(factor, Value::F32(2.0))), logits(&linear));
    assert_eq!(logits(&edit!(LLAMA).set(old, Value::F32(2.0))), logits(&linear));
    assert_eq!(logits(&edit!(LLAMA).set(factor, Value::F32(2.0)).set(old, Value::F32(8.0))), logits(&linear));
    let none = edit!(LLAMA).set(kind, Value::str("none")).set(factor, Value::F32(2.0));
    assert_eq!(logits(&none), logits(&edit!(LLAMA)));
    for key in [factor, old] {
        refused(&edit!(LLAMA).set(key, Value::str("two")), &[key, "two", "a float"]);
        for wrong in [0.0, -2.0, 1e-40] {
            refused(&edit!(LLAMA).set(key, Value::F32(wrong)), &[key, "above 0"]);
        }
    }
    let attention = "llama.rope.scaling.attn_factor";
    refused(&edit!(LLAMA).set(attention, Value::F32(1.2)), &[attention, "1.2", "it does 1"]);
    assert_eq!(logits(&edit!(LLAMA).set(attention, Value::F32(1.0))), logits(&edit!(LLAMA)));
}

/// Numbers from which only infinities would be computed are refused by their key.
#[test]
fn numbers_of_no_model_are_refused() {
    let base = "llama.rope.freq_base";
    refused(&edit!(LLAMA).set(base, Value::F32(1e-45)), &[base, "a base"]);
    refused(&edit!(LLAMA).set("llama.rope.dimension_count", Value::U32(8)), &["rope.dimension_count", "8", "is 16"]);
    assert!(edit!(QWEN).load().unwrap().config.warnings.is_empty());
    let eps = "llama.attention.layer_norm_rms_epsilon";
    refused(&edit!(LLAMA).set(eps, Value::F32(1e30)), &[eps, "at most 1"]);
}

/// Biases are optional and used when there.
#[test]
fn biases_are_used_when_present() {
    let logits = |edit: &Edit| {
        let model = std::sync::Arc::new(edit.load().unwrap());
        assert!(model.unexpected.is_empty());
        single(&model, 32, exact()).trunk(&[5, 9, 80], 3, Want::Probe).logits.clone()
    };
    let plain = logits(&edit!(LLAMA));
    for (name, n) in [
        ("attn_q", 64),
        ("attn_k", 32),
        ("attn_v", 32),
        ("attn_output", 64),
        ("ffn_gate", 128),
        ("ffn_up", 128),
        ("ffn_down", 64),
    ] {
        let name = format!("blk.1.{name}.bias");
        let ramp: Vec<f32> = (0..n).map(|i| (i as f32 - 20.0) / 16.0).collect();
        assert_eq!(logits(&edit!(LLAMA).add(&name, &[n as u64], &vec![0.0; n])), plain, "{name} of zeros");
        assert_ne!(logits(&edit!(LLAMA).add(&name, &[n as u64], &ramp)), plain, "{name}");
    }
}

/// q, k and v in one matrix are the three.
#[test]
fn fused_projections_are_the_separate_ones() {
    for (path, blocks) in [(LLAMA, &[0, 1, 2][..]), (QWEN, &[2, 5, 6])] {
        let mut edit = edit!(path);
        let Some(model) = load(path) else { return };
        for block in blocks {
            let mut data = Vec::new();
            let mut rows = 0;
            let mut width = 0;
            let mut kind = TensorType::F32;
            for part in ["attn_q", "attn_k", "attn_v"] {
                let t = edit.tensor(&format!("blk.{block}.{part}.weight"));
                data.extend_from_slice(&t.data);
                (width, rows, kind) = (t.dims[0], rows + t.dims[1], t.kind);
            }
            edit = edit.drop(|n| ["q", "k", "v"].iter().any(|p| n == format!("blk.{block}.attn_{p}.weight")));
            let name = format!("blk.{block}.attn_qkv.weight");
            edit.tensors.push(Tensor { name, dims: vec![width, rows], kind, data });
        }
        let fused = std::sync::Arc::new(edit.load().unwrap());
        let run = |model| {
            let mut single = single(model, 32, exact());
            let logits = single.trunk(&[5, 9, 80], 3, Want::Probe).logits.clone();
            let drafts = match model.program.mtp.is_some() {
                true => single.mtp(&[5, 9, 80, 7], 3, false).draft.clone(),
                false => Vec::new(),
            };
            (logits, drafts)
        };
        assert_eq!(run(&fused), run(&model), "{path}");
    }
}

/// A tied head is the token table, used and counted once; an own head wins, and what it says is what counts.
#[test]
fn tied_embeddings_are_one_matrix() {
    for path in [LLAMA, QWEN] {
        let mut edit = edit!(path);
        let Some(tied) = load(path) else { return };
        assert!(
            tied.program.trunk.contains(&Op::Embed { table: tied.program.head.unwrap(), dst: residual(&tied) }),
            "{path}"
        );
        if let Some(mtp) = &tied.program.mtp {
            assert_eq!(Some(mtp.head), tied.program.head, "{path}: the MTP block has the same head");
        }
        let logits = |model: Model| {
            single(&std::sync::Arc::new(model), 32, exact()).trunk(&[5, 9, 80], 3, Want::Probe).logits.clone()
        };
        let t = edit.tensor("token_embd.weight");
        let (dims, kind, mut data) = (t.dims.clone(), t.kind, t.data.clone());
        let output = |edit: Edit, data: &[u8]| {
            let (dims, data) = (dims.clone(), data.to_vec());
            let mut edit = edit;
            edit.tensors.push(Tensor { name: "output.weight".into(), dims, kind, data });
            edit
        };
        let own = output(edit, &data).load().unwrap();
        assert_eq!(own.weights.bytes(), tied.weights.bytes() + data.len() as u64, "{path}");
        assert_ne!(own.program.head, tied.program.head, "{path}");
        assert!(own.unexpected.is_empty());
        let tied_logits = logits(edit!(path).load().unwrap());
        assert_eq!(logits(own), tied_logits, "{path}: a copy of the table is the tied head");
        let row = data.len() / dims[1] as usize;
        data.rotate_left(row);
        assert_ne!(logits(output(edit!(path), &data).load().unwrap()), tied_logits, "{path}");
    }
}

/// The buffer that a trunk starts in.
fn residual(model: &Model) -> BufferId {
    let Op::Embed { dst, .. } = model.program.trunk[0] else { panic!("a trunk starts with the embedding") };
    dst
}

/// Everything that is wrong with the tensors comes in one message; strict mode adds what nobody asked for.
#[test]
fn one_preflight_lists_everything() {
    let mut edit = edit!(LLAMA).drop(|n| n == "blk.0.attn_k.weight" || n == "output_norm.weight");
    edit.tensor("blk.1.ffn_down.weight").dims = vec![64, 128];
    let t = edit.tensor("blk.2.attn_v.weight");
    (t.kind, t.dims, t.data) = (TensorType::Q8K, vec![256, 32], vec![0; 292 * 32]);
    let edit = edit.add("vision.patch.weight", &[4], &[0.0; 4]);
    let faults = [
        "blk.0.attn_k.weight is missing",
        "output_norm.weight is missing",
        "blk.1.ffn_down.weight has dimensions [64, 128], expected [128, 64]",
        "blk.2.attn_v.weight has dimensions [256, 32], expected [64, 32]",
        "type Q8_K of 1 tensors (such as blk.2.attn_v.weight) cannot be computed",
    ];
    let text = refused(&edit, &faults).to_string();
    assert!(!text.contains("vision"), "{text}");
    let strict = Model::load(&edit.file(), None, LoadOptions { strict: true, ..LoadOptions::default() });
    let text = strict.err().unwrap().to_string();
    for part in faults.iter().chain(&["edited.gguf", "vision.patch.weight is not known to this architecture"]) {
        assert!(text.contains(part), "`{text}` does not say `{part}`");
    }
    assert_eq!(text.lines().count(), 1 + faults.len() + 1, "a line per fault: {text}");

    // The type of a tensor that nobody reads does not matter.
    let mut extra = edit!(LLAMA).add("vision.patch.weight", &[256], &[0.0; 256]);
    let t = extra.tensor("vision.patch.weight");
    (t.kind, t.data) = (TensorType::Q8K, vec![0; 292]);
    assert_eq!(extra.load().unwrap().unexpected, ["vision.patch.weight"]);
}

#[test]
fn unexpected_tensors_are_reported_and_refused_only_if_strict() {
    let edit = edit!(LLAMA).add("blk.0.attn_rot_embd.weight", &[4], &[0.0; 4]);
    assert_eq!(edit.load().unwrap().unexpected, ["blk.0.attn_rot_embd.weight"]);
    let strict = Model::load(&edit.file(), None, LoadOptions { strict: true, ..LoadOptions::default() });
    assert!(strict.err().unwrap().to_string().contains("blk.0.attn_rot_embd.weight"));
    // A NextN block that is used is asked for by tensor, as every other; one that is not used is no surprise.
    let odd = |edit: Edit| edit.add("blk.6.attn_sinks.weight", &[4], &[0.0; 4]);
    assert_eq!(odd(edit!(QWEN)).load().unwrap().unexpected, ["blk.6.attn_sinks.weight"]);
    let unused = odd(edit!(QWEN)).drop(|n| n == "blk.6.nextn.hnorm.weight").load().unwrap();
    assert_eq!((unused.program.mtp.is_none(), unused.unexpected.as_slice()), (true, &[][..]));
    let scaled = edit!(LLAMA).add("blk.0.attn_q.scale", &[1], &[2.0]);
    refused(&scaled, &["blk.0.attn_q.scale"]);
}

/// Padded rows of the embedding have logits and are never chosen.
#[test]
fn ids_beyond_the_token_list_are_never_chosen() {
    let Some(model) = load(LLAMA) else { return };
    let tokens = [5, 9, 80, 200, 3];
    let mut whole = single(&model, 32, exact());
    let best = whole.trunk(&tokens, 5, Want::Probe).next[0].0;
    let list: Vec<String> = (0..best).map(|i| format!("t{i}")).collect();
    let short = edit!(LLAMA).set("tokenizer.ggml.tokens", Value::strs(&list)).load().unwrap();
    assert_eq!(short.vocab, best as usize);
    let short = std::sync::Arc::new(short);
    let result = single(&short, 32, exact()).trunk(&tokens, 5, Want::Probe).clone();
    assert!(result.next[0].0 < best);
    assert_eq!(result.logits.len(), best as usize);
}

#[test]
fn every_token_has_a_row() {
    let list: Vec<String> = (0..513).map(|i| format!("t{i}")).collect();
    refused(&edit!(LLAMA).set("tokenizer.ggml.tokens", Value::strs(&list)), &["513 entries", "512 rows"]);
    refused(
        &edit!(LLAMA)
            .set("llama.attention.key_length", Value::U32(12))
            .set("llama.attention.value_length", Value::U32(12))
            .set("llama.rope.dimension_count", Value::U32(12)),
        &["key_length", "12", "multiples of 8"],
    );
}

#[test]
fn block_counts_include_the_nextn_block() {
    let key = "qwen35.nextn_predict_layers";
    refused(&edit!(QWEN).set(key, Value::U32(7)), &[key, "7", "block_count"]);
    trunk_only(
        &edit!(QWEN).set(key, Value::U32(0)).set("qwen35.block_count", Value::U32(6)).set(
            "qwen35.attention.recurrent_layers",
            Value::Array(Array::Bool(vec![true, true, false, true, true, false])),
        ),
        &["blk.6.nextn.*", "no qwen35.nextn_predict_layers"],
    );
    trunk_only(&edit!(QWEN).drop(|n| n.starts_with("blk.6.")), &["nextn_predict_layers = 1", "no blk.6.nextn.*"]);
    for name in ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm"]
        .into_iter()
        .chain(["post_attention_norm", "ffn_gate", "ffn_up", "ffn_down"])
        .chain(["nextn.eh_proj", "nextn.enorm", "nextn.hnorm"])
    {
        let name = format!("blk.6.{name}.weight");
        trunk_only(&edit!(QWEN).drop(|n| n == name), &[&format!("{name} is missing")]);
    }
    // Only the head's own norm, table and head have something that stands in for them.
    let edit = edit!(QWEN).drop(|n| n == "blk.6.nextn.shared_head_norm.weight").load().unwrap();
    assert_eq!(edit.mtp, MtpStatus::Own);
    // Two NextN blocks: one of them is a block of the trunk by its tensors.
    refused(&edit!(QWEN).set(key, Value::U32(2)), &["qwen35.nextn_predict_layers 2", "such as blk.5."]);
}

/// The list of recurrent blocks wins over the interval; without it the interval rules the trunk, and the NextN block is
/// attention whatever either says.
#[test]
fn the_layer_pattern_stops_at_the_nextn_block() {
    let Some(model) = load(QWEN) else { return };
    let list = "qwen35.attention.recurrent_layers";
    let interval = "qwen35.full_attention_interval";
    let wins = edit!(QWEN).set(interval, Value::U32(2)).load().unwrap();
    assert_eq!(wins.program, model.program);
    assert_eq!(edit!(QWEN).unset(list).load().unwrap().program, model.program);
    let all = Value::Array(Array::Bool(vec![true, true, false, true, true, false, true]));
    assert_eq!(edit!(QWEN).set(list, all).load().unwrap().program, model.program);
    let trunk = Value::Array(Array::Bool(vec![true, true, false, true, true, false]));
    assert_eq!(edit!(QWEN).set(list, trunk).load().unwrap().program, model.program);
    let wrong = Value::Array(Array::Bool(vec![true; 5]));
    refused(&edit!(QWEN).set(list, wrong), &[list, "5", "7", "6"]);

    // Its cache has a geometry of its own, behind the trunk's attention layers, and never an empty one.
    let kv = "qwen35.attention.head_count_kv";
    let array = |values: &[u32]| Value::Array(Array::U32(values.to_vec()));
    let own = edit!(QWEN).set(kv, array(&[0, 0, 2, 0, 0, 2, 2])).load().unwrap();
    assert_eq!(own.program.kv.len(), 3);
    assert!(own.program.kv.iter().all(|kv| (kv.kv_heads, kv.head_dim) == (2, own.config.head_dim)));
    refused(&edit!(QWEN).set(kv, array(&[0, 0, 2, 0, 0, 2, 0])), &[kv, "0 key/value heads", "block 6"]);
    trunk_only(&edit!(QWEN).set(kv, array(&[0, 0, 2, 0, 0, 2, 1])), &["blk.6.attn_k.weight has dimensions"]);
}

/// Scalar and array forms of one model give one plan.
#[test]
fn per_block_arrays_and_scalars_agree() {
    let Some(model) = load(QWEN) else { return };
    let array = |values: &[u32]| Value::Array(Array::U32(values.to_vec()));
    let heads = "qwen35.attention.head_count";
    let kv = "qwen35.attention.head_count_kv";
    let ffn = "qwen35.feed_forward_length";
    let arrays = edit!(QWEN)
        .set(heads, array(&[4; 7]))
        .set(kv, array(&[0, 0, 2, 0, 0, 2]))
        .set(ffn, array(&[64; 7]))
        .load()
        .unwrap();
    assert_eq!(arrays.program, model.program);
    refused(&edit!(QWEN).set(kv, array(&[2; 3])), &[kv, "3", "7"]);
}

#[test]
fn delta_net_numbers_fit_together() {
    refused(
        &edit!(QWEN).set("qwen35.ssm.time_step_rank", Value::U32(3)),
        &["ssm.time_step_rank", "3", "group_count 2"],
    );
    refused(&edit!(QWEN).set("qwen35.ssm.inner_size", Value::U32(96)), &["ssm.inner_size", "96", "4", "32"]);
    refused(&edit!(QWEN).set("qwen35.ssm.conv_kernel", Value::U32(1)), &["ssm.conv_kernel", "1"]);
    let sections = "qwen35.rope.dimension_sections";
    let array = |values: &[i32]| Value::Array(Array::I32(values.to_vec()));
    refused(&edit!(QWEN).unset(sections), &[sections, "missing"]);
    refused(&edit!(QWEN).set(sections, array(&[2, 1, 1])), &[sections, "array of 3", "array of 4"]);
    refused(&edit!(QWEN).set(sections, array(&[2, 1, 0, 0])), &[sections, "[2, 1, 0, 0]", "8"]);
    refused(&edit!(QWEN).set(sections, array(&[1, 1, 1, 1])), &[sections, "[1, 1, 1, 1]"]);

    // exp taken once too often, or not at all.
    let mut edit = edit!(QWEN);
    let t = edit.tensor("blk.3.ssm_a");
    t.data = [-1.0f32, -0.5, 0.5, -1.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    refused(&edit, &["blk.3.ssm_a", "0.5", "below 0"]);
}

#[test]
fn sidecars_are_told_from_models() {
    let (Some(sidecar), Some(other)) =
        (fixture("qwen35-tiny/mtp-qwen35-tiny-Q8_0.gguf"), fixture("qwen35-tiny-k/qwen35-tiny-k-Q4_K_M.gguf"))
    else {
        return;
    };
    let (sidecar, other) = (open(&sidecar), open(&other));
    let text = |model: &ModelFile, draft: Option<&ModelFile>| {
        Model::load(model, draft, LoadOptions::default()).err().unwrap().to_string()
    };
    let alone = text(&sidecar, None);
    assert!(alone.contains("only block 6") && alone.contains("draft model"), "{alone}");
    let foreign = text(&other, Some(&sidecar));
    assert!(foreign.contains("embedding_length is 128 here and 256 in the model"), "{foreign}");
    let trunk = text(&other, Some(&other));
    assert!(trunk.contains("cannot be used as a draft model"), "{trunk}");
    let Some(llama) = fixture(LLAMA) else { return };
    let llama = open(&llama);
    assert!(text(&other, Some(&llama)).contains("nextn_predict_layers is 0"), "a model without a block is no sidecar");

    // Same shapes, another vocabulary.
    let mut list: Vec<String> = (0..512).map(|i| format!("t{i}")).collect();
    list[3] = String::from("other");
    let edited = edit!(QWEN).set("tokenizer.ggml.tokens", Value::strs(&list)).file();
    assert!(text(&edited, Some(&sidecar)).contains("token list"));
}

#[test]
fn llama_says_that_it_cannot_draft() {
    let Some(model) = load(LLAMA) else { return };
    let MtpStatus::Unavailable(reason) = &model.mtp else { panic!("{:?}", model.mtp) };
    assert!(reason.contains("llama has no MTP block"), "{reason}");
}
