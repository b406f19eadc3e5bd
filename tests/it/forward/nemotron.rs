//! `nemotron_h`: every branch of the architecture on small made files against its formulas, and what a file may say.

pub mod file;
mod oracle;

use std::sync::Arc;

use engine::model::config::Mixer;
use engine::model::conventions::{Conventions, MtpNorm};
use engine::model::load::LoadOptions;
use engine::model::{Model, ModelError, MtpStatus};
use engine_bin::bench::single::Want;
use engine_io::gguf::{Array, Value};
use engine_tests::fixtures::fixture;

use super::edit::{Edit, edit, refused, trunk_only};
use super::invariance::ids;
use super::{distance, exact, integer, open, single};
use file::Spec;
use oracle::{Oracle, Rows};

const TINY: &str = "nemotronh-tiny/nemotronh-tiny-Q8_0.gguf";
const NORM: &str = "attention.layer_norm_rms_epsilon";

/// One branch each.
const VARIANTS: [(&str, Spec); 8] = [
    ("base", Spec::BASE),
    ("no latent", Spec { latent: None, ..Spec::BASE }),
    ("expert groups", Spec { groups: Some((3, 2)), ..Spec::BASE }),
    ("dense", Spec { dense: true, latent: None, mtp: false, ..Spec::BASE }),
    ("tied head", Spec { tied: true, ..Spec::BASE }),
    ("no MTP block", Spec { mtp: false, ..Spec::BASE }),
    ("ends in attention", Spec { pattern: "MEM*ME*", ..Spec::BASE }),
    ("state 128", Spec { state: 128, ..Spec::BASE }),
];

/// A prompt with a repeated token.
const PROMPT: [u32; 11] = [3, 50, 7, 7, 91, 12, 0, 33, 50, 64, 7];

fn base() -> Edit {
    Spec::BASE.edit()
}

fn key(part: &str) -> String {
    format!("{}.{part}", Spec::BASE.arch())
}

fn set(edit: Edit, part: &str, value: Value) -> Edit {
    edit.set(&key(part), value)
}

fn array(values: &[u32]) -> Value {
    Value::Array(Array::U32(values.to_vec()))
}

fn flat(rows: &Rows) -> Vec<f32> {
    rows.iter().flatten().map(|&x| x as f32).collect()
}

/// Logits of the prompt, hidden rows, and MTP logits of every position.
fn run(model: Model, chunk: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let model = Arc::new(model);
    let mut single = single(&model, 32, exact());
    let (mut logits, mut hidden) = (Vec::new(), Vec::new());
    for part in PROMPT.chunks(chunk) {
        let result = single.trunk(part, part.len(), Want::ProbeAll);
        logits.extend_from_slice(&result.logits);
        hidden.extend_from_slice(&result.hidden);
    }
    let mtp = match model.program.mtp.is_some() {
        true => single.mtp(&PROMPT, 0, true).mtp_logits.clone(),
        false => Vec::new(),
    };
    (logits, hidden, mtp)
}

#[test]
fn every_branch_is_close_to_its_formulas() {
    for (name, spec) in VARIANTS {
        let edit = spec.edit();
        let oracle = Oracle::new(spec, &edit);
        let (hidden, logits) = oracle.trunk(&PROMPT);
        let model = edit.load().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(model.unexpected.is_empty(), "{name}: {:?}", model.unexpected);
        assert_eq!(model.program.mtp.is_some(), spec.mtp, "{name}");
        let (ours, ours_hidden, mtp) = run(model, 64);
        assert!(distance(&ours, &flat(&logits)) < 1e-4, "{name}: logits {}", distance(&ours, &flat(&logits)));
        assert!(distance(&ours_hidden, &flat(&hidden)) < 1e-4, "{name}: hidden rows");
        if spec.mtp {
            let expected = flat(&oracle.mtp(&PROMPT, &hidden, false));
            assert!(distance(&mtp, &expected) < 1e-4, "{name}: MTP logits {}", distance(&mtp, &expected));
        }
        for chunk in [1, 3] {
            let found = run(edit.load().unwrap(), chunk);
            assert_eq!(found, (ours.clone(), ours_hidden.clone(), mtp.clone()), "{name}: passes of {chunk} rows");
        }
    }
}

/// The norm behind the MTP block is a parameter; the target does not depend on it.
#[test]
fn the_last_norm_of_the_mtp_block_is_chosen_by_name() {
    let edit = base();
    let with = |mtp_norm| {
        let options =
            LoadOptions { conventions: Conventions { mtp_norm, ..Conventions::default() }, ..LoadOptions::default() };
        run(Model::load(&edit.file(), None, options).unwrap(), 64)
    };
    let (layer, rms) = (with(Some(MtpNorm::Layer)), with(Some(MtpNorm::Rms)));
    assert_eq!(layer, with(None), "LayerNorm is the default");
    assert_eq!((&layer.0, &layer.1), (&rms.0, &rms.1));
    let oracle = Oracle::new(Spec::BASE, &edit);
    let (hidden, _) = oracle.trunk(&PROMPT);
    assert!(distance(&rms.2, &flat(&oracle.mtp(&PROMPT, &hidden, true))) < 1e-4);
    assert!(distance(&rms.2, &layer.2) > 0.1);

    let dense = Spec { dense: true, latent: None, mtp: false, ..Spec::BASE }.edit();
    let options = LoadOptions {
        conventions: Conventions { mtp_norm: Some(MtpNorm::Rms), ..Conventions::default() },
        ..LoadOptions::default()
    };
    let error = Model::load(&dense.file(), None, options).err().unwrap();
    assert!(matches!(error, ModelError::Convention { .. }), "{error}");
    for part in ["mtp-norm", "nemotron_h_moe", "this is nemotron_h;"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn arrays_say_what_a_block_is() {
    let model = base().load().unwrap();
    let mixers: Vec<Mixer> = model.config.blocks.iter().map(|b| b.mixer).collect();
    let (m, e, a) = (Mixer::Mamba2, Mixer::None, Mixer::Attention);
    assert_eq!(mixers, [m, e, m, a, m, e, a], "the MTP block is attention and experts in one");
    assert_eq!(model.program.kv.len(), 2, "attention of the trunk, then of the MTP block");
    assert_eq!(model.program.recurrent.len(), 3);
    // An MTP entry of 0 changes nothing: the block is what it is.
    let same = set(base(), "feed_forward_length", array(&[0, 96, 0, 0, 0, 96, 0])).load().unwrap();
    assert_eq!(same.program, model.program);
    refused(
        &set(base(), "attention.head_count_kv", array(&[0, 0, 0, 2, 0, 0, 0])),
        &["head_count_kv", "0 key/value heads for 4 heads", "nextn_predict_layers = 1 makes block 6 an MTP block"],
    );
    // Arrays without the MTP block's entry: which block lacks one cannot be told.
    for (part, short) in
        [("attention.head_count_kv", [0, 0, 0, 2, 0, 0]), ("feed_forward_length", [0, 96, 0, 0, 0, 96])]
    {
        let error =
            refused(&set(base(), part, array(&short)), &[part, "has 6 elements, expected 7 (all blocks, the MTP"]);
        assert!(matches!(error, ModelError::File(engine_io::Error::PerLayerLength { .. })));
    }
    // A block that the arrays call something else lacks that kind's tensors.
    refused(&set(base(), "feed_forward_length", array(&[0; 7])), &["blk.1.ssm_in.weight is missing"]);
    refused(
        &set(base(), "attention.head_count_kv", array(&[0, 0, 0, 0, 0, 0, 2])),
        &["blk.3.ssm_in.weight is missing"],
    );
}

#[test]
fn blocks_that_are_miscounted_are_refused() {
    let nextn = "nextn_predict_layers";
    // Without the key, the block would be one of the trunk.
    refused(&base().unset(&key(nextn)), &["blk.6.nextn.*", "block_count 7", "nextn_predict_layers 0"]);
    // Without its count, the trunk's last block would be taken for it.
    let short = |part: &str, values: &[u32]| (part.to_owned(), array(values));
    let mut edit = set(base(), "block_count", Value::U32(6));
    for (part, values) in
        [short("attention.head_count_kv", &[0, 0, 0, 2, 0, 2]), short("feed_forward_length", &[0, 96, 0, 0, 0, 96])]
    {
        edit = set(edit, &part, values);
    }
    refused(&edit, &["blk.6.nextn.*", "block_count 6", "nextn_predict_layers 1"]);
    // Neither key nor count: a trunk and something behind it.
    trunk_only(
        &set(edit.unset(&key(nextn)), "attention.head_count_kv", array(&[0, 0, 0, 2, 0, 0])),
        &["blk.6.nextn.*", "no nemotron_h_moe.nextn_predict_layers"],
    );
    let two = set(base(), nextn, Value::U32(2)).drop(|n| n.starts_with("blk.6.nextn."));
    refused(
        &set(two, "attention.head_count_kv", array(&[0, 0, 0, 2, 0, 2, 2])),
        &["nextn_predict_layers 2", "such as blk.5.", "nextn_predict_layers 0 if"],
    );
    // A trunk that ends with attention, whose key was kept.
    let mut kept = set(
        base().drop(|n| n.starts_with("blk.4.") || n.starts_with("blk.5.") || n.starts_with("blk.6.")),
        "block_count",
        Value::U32(4),
    );
    for (part, values) in [("attention.head_count_kv", &[0, 0, 0, 2]), ("feed_forward_length", &[0, 96, 0, 0])] {
        kept = set(kept, part, array(values));
    }
    refused(&kept, &["nextn_predict_layers 1", "such as blk.3.", "nextn_predict_layers 0 if"]);
}

/// No key has a default but two: without any other one the file would be run as another model.
#[test]
fn keys_are_required() {
    for part in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_epsilon",
        "ssm.conv_kernel",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.time_step_rank",
        "ssm.group_count",
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
        "expert_weights_norm",
        "expert_weights_scale",
    ] {
        refused(&base().unset(&key(part)), &[&key(part), "missing"]);
        refused(&set(base(), part, Value::str("many")), &[&key(part), "many"]);
    }
    refused(&set(base(), "attention.layer_norm_epsilon", Value::F32(0.0)), &["layer_norm_epsilon", "above 0"]);
    refused(&set(base(), NORM, Value::F32(-1.0)), &[NORM, "above 0"]);
    refused(&set(base(), "expert_weights_scale", Value::F32(-2.5)), &["expert_weights_scale", "-2.5"]);
    refused(&set(base(), "expert_feed_forward_length", Value::U32(0)), &["expert_feed_forward_length", "missing"]);
    refused(&set(base(), "ssm.time_step_rank", Value::U32(5)), &["ssm.time_step_rank", "5 heads", "group_count 2"]);
    refused(&set(base(), "ssm.inner_size", Value::U32(97)), &["ssm.inner_size", "97", "time_step_rank 6"]);
    refused(&set(base(), "ssm.group_count", Value::U32(3)), &["blk.0.ssm_in.weight", "blk.0.ssm_norm.weight"]);

    // The RMS epsilon falls back to the other one.
    assert_eq!(base().load().unwrap().config.norm_eps, 1e-5);
    assert_eq!(base().unset(&key(NORM)).load().unwrap().config.norm_eps, 1e-3);
}

#[test]
fn keys_that_say_nothing_change_nothing() {
    let model = base().load().unwrap();
    let same = |edit: Edit| assert_eq!(edit.load().unwrap().program, model.program);
    same(base().unset(&key("rope.dimension_count")).unset(&key("rope.freq_base")));
    same(set(set(base(), "rope.dimension_count", Value::U32(7)), "rope.freq_base", Value::F32(-1.0)));
    same(set(base(), "attention.scale", Value::F32(0.0)));
    same(base().unset(&key("expert_group_count")).unset(&key("expert_group_used_count")));
    same(set(base(), "expert_gating_func", Value::U32(1)));
    same(set(base(), "expert_used_count", array(&[0, 3, 0, 0, 0, 3, 3])));
    same(set(base(), "expert_feed_forward_length", array(&[0, 96, 0, 0, 0, 96, 96])));
    same(set(base(), "attention.head_count", array(&[0, 0, 0, 4, 0, 0, 4])));
    for part in ["attention.scale", "expert_weights_scale"] {
        for wrong in [-0.25, 1e38, 1e-40] {
            refused(&set(base(), part, Value::F32(wrong)), &[part, "0 for none, or"]);
        }
    }
    let scaled = set(base(), "attention.scale", Value::F32(0.5)).load().unwrap();
    assert_ne!(run(scaled, 64).0, run(base().load().unwrap(), 64).0, "attention.scale is used");
    let fewer = set(base(), "expert_used_count", array(&[0, 3, 0, 0, 0, 2, 1])).load().unwrap();
    let used: Vec<usize> = fewer.program.mixtures().map(|op| op.router.used).collect();
    assert_eq!(used, [3, 2, 1], "the MTP block reads its own entry");
}

#[test]
fn every_tensor_is_required() {
    let trunk = [
        "0.attn_norm.weight",
        "0.ssm_in.weight",
        "0.ssm_conv1d.weight",
        "0.ssm_conv1d.bias",
        "0.ssm_dt.bias",
        "0.ssm_a",
        "0.ssm_d",
        "0.ssm_norm.weight",
        "0.ssm_out.weight",
        "3.attn_norm.weight",
        "3.attn_q.weight",
        "3.attn_k.weight",
        "3.attn_v.weight",
        "3.attn_output.weight",
    ];
    let experts = ["gate_inp", "latent_down", "latent_up", "up_exps", "down_exps", "up_shexp", "down_shexp"];
    let experts: Vec<String> = experts.iter().map(|part| format!("ffn_{part}.weight")).collect();
    let experts = || experts.iter().map(String::as_str).chain(["exp_probs_b.bias"]);
    for name in trunk.map(str::to_owned).into_iter().chain(experts().map(|part| format!("5.{part}"))) {
        let name = format!("blk.{name}");
        refused(&base().drop(|n| n == name), &[&format!("{name} is missing")]);
    }
    let block = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "post_attention_norm"].into_iter().chain([
        "nextn.enorm",
        "nextn.hnorm",
        "nextn.eh_proj",
        "nextn.shared_head_norm",
    ]);
    let block = block.map(|part| format!("{part}.weight")).chain(experts().map(str::to_owned));
    let in_mtp: Vec<String> = block.map(|part| format!("blk.6.{part}")).collect();
    assert_eq!(in_mtp.len(), 18);
    for name in in_mtp {
        trunk_only(&base().drop(|n| n == name), &[&format!("{name} is missing")]);
    }
    assert_eq!(base().tensors.len(), 71);
    let gated = base().add("blk.1.ffn_gate.weight", &[4], &[0.0; 4]);
    refused(&gated, &["blk.1.ffn_gate.weight would change what is computed"]);
    refused(&base().add("blk.1.ffn_up_exps.scale", &[6], &[1.0; 6]), &["blk.1.ffn_up_exps.scale"]);
}

#[test]
fn shapes_and_signs_are_checked() {
    let reshaped = |name: &str, dims: &[u64]| {
        let mut edit = base();
        edit.tensor(name).dims = dims.to_vec();
        edit
    };
    for (name, found, expected) in [
        ("blk.0.ssm_a", vec![6], "[1, 6]"),
        ("blk.2.ssm_d", vec![6], "[1, 6]"),
        ("blk.0.ssm_norm.weight", vec![96], "[48, 2]"),
        ("blk.0.ssm_conv1d.weight", vec![160, 4], "[4, 160]"),
    ] {
        refused(&reshaped(name, &found), &[name, &format!("{found:?}"), expected]);
    }
    let mut edit = base();
    edit.tensor("blk.2.ssm_a").data[..4].copy_from_slice(&1.5f32.to_le_bytes());
    refused(&edit, &["blk.2.ssm_a", "1.5", "below 0"]);
}

#[test]
fn a_dense_file_has_no_experts_and_no_mtp_block() {
    let dense = || Spec { dense: true, latent: None, mtp: false, ..Spec::BASE }.edit();
    let model = dense().load().unwrap();
    let MtpStatus::Unavailable(reason) = &model.mtp else { panic!("{:?}", model.mtp) };
    assert!(reason.contains("nemotron_h has no MTP block"), "{reason}");
    // Zeros speak of no experts.
    let zeros =
        dense().set("nemotron_h.expert_count", Value::U32(0)).set("nemotron_h.expert_used_count", Value::U32(0));
    assert_eq!(zeros.load().unwrap().program, model.program);
    refused(&dense().set("nemotron_h.expert_count", Value::U32(6)), &["expert_count", "nemotron_h_moe"]);
    let ramp: Vec<f32> = (0..file::WIDTH).map(|i| i as f32 / 40.0).collect();
    let plain = run(model, 64).0;
    for (name, values) in [("blk.1.ffn_up.bias", &ramp[..]), ("blk.1.ffn_down.bias", &ramp[..file::D])] {
        let edit = dense().add(name, &[values.len() as u64], values);
        assert_ne!(run(edit.load().unwrap(), 64).0, plain, "{name} is used");
    }
}

/// Blocks that do not fit their trunk; what fits is in `sidecars.rs`.
#[test]
fn a_nemotron_sidecar_fits_its_trunk() {
    let arch = |part: &str| format!("nemotron_h_moe.{part}");
    let trunk = edit!(TINY).trunk();
    // The RMS epsilon, which the file leaves to the other one, is named: so that the other one can differ alone.
    let block = edit!(TINY).sidecar().set(&arch(NORM), Value::F32(1e-5));
    Model::load(&trunk.file(), Some(&block.file()), LoadOptions::default()).unwrap();

    let text = |draft: &Edit| match Model::load(&trunk.file(), Some(&draft.file()), LoadOptions::default()) {
        Err(error @ ModelError::Mismatch { .. }) => error.to_string(),
        other => panic!("{:?}", other.err()),
    };
    for (part, value) in [
        ("expert_used_count", Value::U32(3)),
        ("expert_weights_scale", Value::F32(5.0)),
        ("expert_weights_norm", Value::Bool(false)),
        ("moe_latent_size", Value::U32(32)),
        ("attention.layer_norm_epsilon", Value::F32(0.5)),
        ("attention.scale", Value::F32(0.5)),
    ] {
        let found = text(&block.clone().set(&arch(part), value));
        assert!(found.contains(part.trim_start_matches("attention.")), "{found} does not say {part}");
    }
    // Groups of experts, which the file above has none of.
    let grouped = || Spec { groups: Some((3, 2)), ..Spec::BASE }.edit();
    let pair = |draft: Edit| Model::load(&grouped().trunk().file(), Some(&draft.file()), LoadOptions::default());
    assert_eq!(pair(grouped().sidecar()).unwrap().mtp, MtpStatus::Sidecar);
    for (part, other) in [("expert_group_count", 2), ("expert_group_used_count", 3)] {
        let draft = set(grouped().sidecar(), part, Value::U32(other));
        let text = pair(draft).err().unwrap_or_else(|| panic!("another {part} is taken")).to_string();
        assert!(text.contains("expert_group_") && text.contains(" here and "), "{text}");
    }
    let alone = Model::load(&block.file(), None, LoadOptions::default()).err().unwrap().to_string();
    assert!(alone.contains("only block 5 of a nemotron_h_moe model"), "{alone}");
    if let Some(path) = fixture("nemotronh-tiny/nemotronh-tiny-nomtp-Q8_0.gguf") {
        let model = Model::load(&open(&path), None, LoadOptions::default()).unwrap();
        let MtpStatus::Unavailable(reason) = &model.mtp else { panic!("{:?}", model.mtp) };
        assert!(reason.contains("no blk.5.nextn.* tensors"), "{reason}");
    }
}

/// Five rows verified, three forgotten, one decoded, the next window forgotten: the future is that of plain decoding.
#[test]
fn rows_of_a_window_may_be_forgotten_again_and_again() {
    for (name, spec) in VARIANTS {
        let model = Arc::new(spec.edit().load().unwrap());
        let tokens: Vec<u32> = ids(30, 5).iter().map(|t| t % file::VOCAB as u32).collect();
        let mut plain = single(&model, 64, integer());
        plain.trunk(&tokens[..28], 28, Want::Nothing);
        let expected = plain.trunk(&tokens[28..], 2, Want::ProbeAll).logits.clone();
        let mut spec = single(&model, 64, integer());
        spec.trunk(&tokens[..20], 20, Want::Nothing);
        spec.trunk(&[&tokens[20..22], &[1, 2, 3]].concat(), 1, Want::Nothing);
        spec.truncate(22);
        spec.trunk(&tokens[22..23], 1, Want::Nothing);
        spec.trunk(&[&tokens[23..24], &[4, 5]].concat(), 1, Want::Nothing);
        spec.truncate(24);
        spec.trunk(&[&tokens[24..28], &[6]].concat(), 1, Want::Nothing);
        spec.truncate(28);
        let found = &spec.trunk(&tokens[28..], 2, Want::ProbeAll).logits;
        assert!(found.iter().map(|x| x.to_bits()).eq(expected.iter().map(|x| x.to_bits())), "{name}");
    }
}
