//! Counts that contradict the tensors, and tensors that a model would be another one without: refused by key and name,
//! where leaving something out in silence would serve a different model.

use engine::model::load::{LoadOptions, Planned};
use engine::model::{Model, ModelError, MtpStatus};
use engine_io::TensorType;
use engine_io::gguf::{Array, Value};

use super::says;
use super::tiny::{ARCHS, TRUNK, is_head, model, sidecar, trunk};
use crate::forward::edit::{Edit, edit, refused};
use crate::forward::generate::qwen4exp;

const LLAMA: &str = "llama-tiny/llama-tiny-F32.gguf";

fn strict(edit: &Edit) -> Result<Model, ModelError> {
    Model::load(&edit.file(), None, LoadOptions { strict: true, ..LoadOptions::default() })
}

/// A converter that leaves the head out and forgets the key: the last block of the trunk is not a head.
#[test]
fn a_block_of_the_trunk_is_no_head() {
    for arch in ARCHS {
        let key = format!("{arch}.nextn_predict_layers");
        let (last, before) = (TRUNK - 1, TRUNK - 2);
        let kept = trunk(arch).set(&key, Value::U32(1));
        let parts = [
            &format!("{key} 1"),
            &format!("{arch}.block_count {TRUNK}"),
            &format!("such as blk.{last}."),
            "nextn_predict_layers 0 if",
            &format!("the blk.{last}.nextn.* tensors"),
        ];
        refused(&kept, &parts.map(|part| part as &str));
        // One head, of which the key says there are more.
        for (n, first) in [(2, last), (3, before)] {
            let edit = model(arch).set(&key, Value::U32(n));
            refused(&edit, &[&format!("{key} {n}"), &format!("such as blk.{first}."), "nextn_predict_layers 1 if"]);
        }
        // A head that lost what makes it one.
        let half = model(arch).drop(|n| n.starts_with("blk.4.nextn."));
        refused(&half, &[&format!("{key} 1"), "such as blk.4.", "nextn_predict_layers 0 if", "blk.4.nextn.* tensors"]);
    }
    let kept = qwen4exp(7)
        .drop(|n| n.starts_with("blk.4."))
        .set("qwen4exp.block_count", Value::U32(4))
        .set("qwen4exp.attention.compress_ratios", Value::Array(Array::I32(vec![0, 0, 0, 4])));
    refused(&kept, &["qwen4exp.nextn_predict_layers 1", "such as blk.3.", "nextn_predict_layers 0 if"]);
}

/// Where the architecture has no MTP block, nobody reads the key: all blocks are the trunk's.
#[test]
fn a_key_of_other_architectures_costs_no_block() {
    let plain = edit!(LLAMA).load().unwrap();
    for n in [1, 2] {
        let key = "llama.nextn_predict_layers";
        let model = edit!(LLAMA).set(key, Value::U32(n)).load().unwrap();
        assert_eq!((model.config.trunk, &model.program.trunk), (plain.config.trunk, &plain.program.trunk));
    }
    let stray = edit!(LLAMA).add("blk.1.nextn.enorm.weight", &[64], &[1.0; 64]);
    refused(&stray, &["blk.1.nextn.*", "architecture llama has no MTP block"]);
}

/// Fewer blocks than there are: the rest would be left out.
#[test]
fn every_block_counts() {
    let count = edit!(LLAMA).meta.require_u32("llama.block_count").unwrap();
    for n in 1..count {
        let short = edit!(LLAMA).set("llama.block_count", Value::U32(n));
        refused(&short, &[&format!("llama.block_count {n}"), &format!("such as blk.{n}."), &format!("above {n}")]);
    }
    for arch in ARCHS {
        let key = format!("{arch}.block_count");
        refused(&trunk(arch).set(&key, Value::U32(3)), &[&format!("{key} 3"), "such as blk.3."]);
        let mut beyond = model(arch);
        beyond.weights("blk.9.attn_norm.weight", &[64]);
        refused(&beyond, &[&format!("{key} 5"), "blk.9.attn_norm.weight"]);
    }
}

/// Names of parts that blocks are made of, which no operation reads here.
#[test]
fn what_would_be_computed_with_is_not_left_out() {
    for name in [
        "blk.0.attn_norm.bias",
        "blk.1.attn_q_norm.weight",
        "blk.0.attn_sinks.weight",
        "blk.2.ffn_norm.bias",
        "blk.0.ffn_up_exps.bias",
        "blk.1.post_attention_norm.weight",
        "blk.0.ssm_in.bias",
        "output.bias",
        "output_norm.bias",
        "token_embd_norm.weight",
        "rope_factors_short.weight",
    ] {
        let edit = edit!(LLAMA).add(name, &[64], &[1.0; 64]);
        refused(&edit, &[&format!("{name} would change what is computed")]);
    }
    for name in ["blk.0.attn_rot_embd", "blk.0.probe.weight", "v.blk.0.attn_q.bias", "mm.0.weight"] {
        let edit = edit!(LLAMA).add(name, &[64], &[1.0; 64]);
        assert_eq!(edit.load().unwrap().unexpected, [name]);
        says(&strict(&edit).err().unwrap().to_string(), &[&format!("{name} is not known")]);
    }
    // The same weights in two forms: one of them would be left out.
    let both = edit!(LLAMA).add("blk.0.attn_qkv.weight", &[64, 128], &[0.0; 64 * 128]);
    refused(&both, &["blk.0.attn_q.weight would change", "blk.0.attn_k.weight", "blk.0.attn_v.weight"]);
    let mut both = model("qwen35moe");
    both.weights("blk.1.ffn_gate_up_exps.weight", &[64, 64, 8]);
    refused(&both, &["blk.1.ffn_gate_exps.weight would change", "blk.1.ffn_up_exps.weight"]);
}

#[test]
fn a_table_has_a_row_for_every_token() {
    let mut edit = edit!(LLAMA);
    let t = edit.tensor("token_embd.weight");
    (t.dims, t.kind, t.data) = (vec![64], TensorType::F32, vec![0; 256]);
    refused(&edit, &["token_embd.weight has dimensions [64]", "[64, number of tokens]"]);
}

/// What is wrong with ten thousand tensors is said in a few lines.
#[test]
fn a_count_of_blocks_that_are_not_there_is_told_shortly() {
    let error = refused(&edit!(LLAMA).set("llama.block_count", Value::U32(4096)), &["is missing", "more are missing"]);
    let text = error.to_string();
    assert!(text.lines().count() < 40 && text.len() < 8 << 10, "{} bytes", text.len());
    let ModelError::Preflight { report, .. } = error else { panic!("{error:?}") };
    assert!(report.missing.len() > 30_000, "{}", report.missing.len());
}

/// The number of a head's block is its maker's: the file is a sidecar under any.
#[test]
fn a_sidecar_is_known_under_any_number() {
    for arch in ARCHS {
        for number in [0, 3, 48] {
            let mut edit = sidecar(arch);
            for t in &mut edit.tensors {
                t.name = t.name.replacen("blk.4.", &format!("blk.{number}."), 1);
            }
            let error = refused(&edit, &["holds only block 4", "an MTP sidecar", "draft model"]);
            assert!(matches!(error, ModelError::Sidecar { .. }), "{error:?}");
            assert!(Planned::sidecar(&edit.file(), LoadOptions::default()).is_ok(), "{arch} {number}");
        }
    }
}

/// In strict mode a head that cannot be used is tensors that nothing reads.
#[test]
fn a_broken_head_is_refused_when_strict() {
    for arch in ARCHS {
        strict(&model(arch)).unwrap();
        strict(&trunk(arch)).unwrap();
        // Nothing of it is there, so nothing is left unread.
        let absent = model(arch).drop(is_head);
        assert!(matches!(strict(&absent).unwrap().mtp, MtpStatus::Unavailable(_)));
        let missing = model(arch).drop(|n| n == "blk.4.attn_k.weight");
        assert!(matches!(missing.load().unwrap().mtp, MtpStatus::Unavailable(_)));
        let text = strict(&missing).err().expect("strict").to_string();
        says(&text, &["edited.gguf", "blk.4.attn_k.weight is missing", "--strict", "such as blk.4."]);
        let unannounced = model(arch).unset(&format!("{arch}.nextn_predict_layers"));
        let unannounced = unannounced.set(&format!("{arch}.block_count"), Value::U32(TRUNK as u32));
        says(&strict(&unannounced).err().expect("strict").to_string(), &["no", "nextn_predict_layers key", "--strict"]);
    }
}
