//! Experts: what a file may say about them, and the forms their tensors and numbers take.

use std::sync::Arc;

use engine::ids::TokenId;
use engine::model::config::Ffn;
use engine::model::load::{LoadOptions, Repack};
use engine::model::{Model, ModelError, MtpStatus};
use engine_bin::bench::single::Want;
use engine_io::ModelFile;
use engine_io::gguf::{Array, Value};
use engine_tests::fixtures::{Reference, fixture};

use super::edit::{Edit, Tensor, edit, refused, trunk_only};
use super::{evaluate, integer, load, open, single};

const MOE: &str = "qwen35moe-tiny/qwen35moe-tiny-Q8_0.gguf";
const DENSE: &str = "qwen35-tiny/qwen35-tiny-Q8_0.gguf";
/// Its MTP block.
const BLOCK: usize = 4;

fn array(values: &[u32]) -> Value {
    Value::Array(Array::U32(values.to_vec()))
}

/// Bits of the logits of a few tokens, and drafts.
fn run(model: Model) -> (Vec<u32>, Vec<TokenId>) {
    let mut single = single(&Arc::new(model), 32, integer());
    let logits = single.trunk(&[5, 9, 80, 200], 4, Want::Probe).logits.iter().map(|x| x.to_bits()).collect();
    (logits, single.mtp(&[5, 9, 80, 200, 7], 3, false).draft.clone())
}

/// Gate and up of all experts in one tensor, the rows of the gate first in each.
#[test]
fn fused_gate_and_up_are_the_separate_ones() {
    let mut edit = edit!(MOE);
    let separate = run(edit.load().unwrap());
    for block in 0..=BLOCK {
        let [gate, up] = ["gate", "up"].map(|part| {
            let t = edit.tensor(&format!("blk.{block}.ffn_{part}_exps.weight"));
            (t.dims.clone(), t.kind, t.data.clone())
        });
        let slab = gate.2.len() / 8;
        let data = gate.2.chunks(slab).zip(up.2.chunks(slab)).flat_map(|(g, u)| [g, u].concat()).collect();
        edit = edit.drop(|n| ["gate", "up"].iter().any(|p| n == format!("blk.{block}.ffn_{p}_exps.weight")));
        let name = format!("blk.{block}.ffn_gate_up_exps.weight");
        edit.tensors.push(Tensor { name, dims: vec![96, 64, 8], kind: gate.1, data });
    }
    let strict = LoadOptions { strict: true, repack: Repack::On, ..LoadOptions::default() };
    assert_eq!(run(Model::load(&edit.file(), None, strict).unwrap()), separate);
    assert_eq!(run(Model::load(&edit.file(), None, LoadOptions { repack: Repack::Off, ..strict }).unwrap()), separate);

    // A tensor of which two parts are wanted is reported once.
    let t = edit.tensor("blk.1.ffn_gate_up_exps.weight");
    (t.dims, t.data) = (vec![96, 32, 8], t.data[..t.data.len() / 2].to_vec());
    let text = refused(&edit, &["blk.1.ffn_gate_up_exps.weight has dimensions [96, 32, 8], expected [96, 64, 8]"]);
    assert_eq!(text.to_string().matches("ffn_gate_up_exps").count(), 1, "{text}");
}

#[test]
fn expert_counts_are_required_and_fit_together() {
    for key in ["expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length"]
    {
        let key = format!("qwen35moe.{key}");
        refused(&edit!(MOE).unset(&key), &[&key, "missing"]);
        refused(&edit!(MOE).set(&key, Value::str("many")), &[&key, "many", "an integer"]);
        refused(&edit!(MOE).set(&key, Value::U64(1 << 40)), &[&key, "1099511627776"]);
    }
    let (count, used) = ("qwen35moe.expert_count", "qwen35moe.expert_used_count");
    refused(&edit!(MOE).set(count, Value::U32(0)), &[count, "0", "1 to"]);
    refused(&edit!(MOE).set(used, Value::U32(0)), &[used, "0 in block 0", "1 to expert_count, which is 8"]);
    refused(&edit!(MOE).set(used, Value::U32(9)), &[used, "9 in block 0", "1 to expert_count, which is 8"]);
    refused(&edit!(MOE).set(used, array(&[2, 2, 0, 2, 2])), &[used, "0 in block 2"]);
    refused(&edit!(MOE).set(used, array(&[2; 3])), &[used, "3", "5"]);
    refused(
        &edit!(MOE).set(count, Value::U32(7)),
        &["blk.0.ffn_up_exps.weight has dimensions [96, 32, 8], expected [96, 32, 7]", "blk.3.ffn_gate_inp.weight"],
    );
    refused(
        &edit!(MOE).set("qwen35moe.expert_feed_forward_length", Value::U32(64)),
        &["blk.0.ffn_down_exps.weight has dimensions [32, 96, 8], expected [64, 96, 8]"],
    );
    refused(
        &edit!(MOE).set("qwen35moe.expert_shared_feed_forward_length", Value::U32(64)),
        &["blk.0.ffn_down_shexp.weight has dimensions [32, 96], expected [64, 96]"],
    );
}

#[test]
fn expert_groups_are_checked_and_narrow_the_choice() {
    let (count, used) = ("qwen35moe.expert_group_count", "qwen35moe.expert_group_used_count");
    let grouped = |n, k| Edit::of(MOE).map(|edit| edit.set(count, Value::U32(n)).set(used, Value::U32(k)));
    let Some(model) = load(MOE) else { return };
    refused(&edit!(MOE).set(count, Value::U32(2)), &[used, "missing"]);
    refused(&edit!(MOE).set(count, Value::U32(65)), &[count, "65", "0 to 64"]);
    refused(&grouped(2, 3).unwrap(), &[used, "3", "1 to 2"]);
    refused(&grouped(3, 1).unwrap(), &[count, "3 with expert_group_used_count 1, 2 of 8 experts", "divisor"]);
    refused(&grouped(8, 1).unwrap(), &[count, "8 with expert_group_used_count 1", "hold the used experts"]);
    for (n, k) in [(0, 0), (1, 1)] {
        assert_eq!(grouped(n, k).unwrap().load().unwrap().program, model.program, "{n} groups are none");
    }
    let plain = run(edit!(MOE).load().unwrap());
    assert_eq!(run(grouped(4, 4).unwrap().load().unwrap()), plain, "a choice of all groups is no choice");
    assert_ne!(run(grouped(4, 1).unwrap().load().unwrap()).0, plain.0);
}

/// Scalars, arrays over all blocks or the trunk, and the dense width that stands in for an absent key.
#[test]
fn every_form_of_the_numbers_gives_one_plan() {
    let Some(model) = load(MOE) else { return };
    let (used, width) = ("qwen35moe.expert_used_count", "qwen35moe.expert_feed_forward_length");
    let (shared, dense) = ("qwen35moe.expert_shared_feed_forward_length", "qwen35moe.feed_forward_length");
    let same = |edit: Edit| assert_eq!(edit.load().unwrap().program, model.program);
    same(edit!(MOE).set(used, array(&[2; 5])).set(width, array(&[32; 5])));
    same(edit!(MOE).set(used, array(&[2; 4])).set(width, array(&[32; 4])));
    same(edit!(MOE).set(used, Value::U8(2)).set(width, Value::I64(32)).set(shared, Value::U64(32)));
    same(edit!(MOE).unset(width).set(dense, Value::U32(64)));
    same(edit!(MOE).set(width, Value::U32(0)).set(dense, array(&[64; 5])));
    same(edit!(MOE).unset(shared).set(dense, Value::U32(32)));
    // Hard-wired in this family, whatever a file says.
    same(
        edit!(MOE)
            .set("qwen35moe.expert_weights_scale", Value::F32(2.5))
            .set("qwen35moe.expert_weights_norm", Value::Bool(false))
            .set("qwen35moe.expert_gating_func", Value::U32(2)),
    );
    let fewer = edit!(MOE).set(used, array(&[2, 2, 2, 2, 1])).load().unwrap();
    let counts: Vec<usize> = fewer.program.mixtures().map(|op| op.router.used).collect();
    assert_eq!(counts, [2, 2, 2, 2, 1]);
    let ffn = &model.config.blocks[BLOCK].ffn;
    let Ffn::Experts(experts) = ffn else { panic!("{ffn:?}") };
    assert_eq!((experts.router.experts, experts.router.used, experts.width, experts.shared_width), (8, 2, 32, 32));
}

/// Keys of experts that say 0 do not make a dense file anything else; more than 0 is refused.
#[test]
fn dense_files_may_speak_of_no_experts() {
    let Some(model) = load(DENSE) else { return };
    let zeros = ["expert_count", "expert_used_count", "expert_feed_forward_length", "expert_group_count"];
    let edit = zeros.iter().fold(edit!(DENSE), |edit, key| edit.set(&format!("qwen35.{key}"), Value::U32(0)));
    assert_eq!(edit.load().unwrap().program, model.program);
    refused(&edit!(DENSE).set("qwen35.expert_count", Value::U32(8)), &["qwen35.expert_count", "experts", "dense"]);
    refused(
        &edit!(DENSE).set("qwen35.feed_forward_length", array(&[64, 64, 0, 64, 64, 64, 64])),
        &["qwen35.feed_forward_length", "0 in block 2", "1 to"],
    );
}

#[test]
fn every_tensor_of_the_experts_is_required() {
    for part in ["gate_inp", "gate_exps", "up_exps", "down_exps"].into_iter().chain([
        "gate_inp_shexp",
        "gate_shexp",
        "up_shexp",
        "down_shexp",
    ]) {
        let name = |block: usize| format!("blk.{block}.ffn_{part}.weight");
        refused(&edit!(MOE).drop(|n| n == name(1)), &[&format!("{} is missing", name(1))]);
        trunk_only(&edit!(MOE).drop(|n| n == name(BLOCK)), &[&format!("{} is missing", name(BLOCK))]);
    }
    refused(&edit!(MOE).add("blk.2.ffn_up_exps.scale", &[8], &[1.0; 8]), &["blk.2.ffn_up_exps.scale"]);
}

/// Trunk and block in two files, as converters write them.
fn parts() -> Option<(Edit, Edit)> {
    let in_block = |n: &str| n.starts_with("blk.4.");
    let trunk = Edit::of(MOE)?
        .drop(in_block)
        .set("qwen35moe.block_count", Value::U32(4))
        .unset("qwen35moe.nextn_predict_layers")
        .set("qwen35moe.attention.recurrent_layers", Value::Array(Array::Bool(vec![true, true, false, true])));
    let block = Edit::of(MOE)?.drop(|n| n.starts_with("blk.") && !in_block(n));
    Some((trunk, block))
}

/// A trunk without its block drafts with a sidecar as the merged file does, bit for bit.
#[test]
fn a_sidecar_with_experts_drafts_as_the_merged_file() {
    let (Some(merged), Some((trunk, block))) = (load(MOE), parts()) else { return };
    let Some(reference) = Reference::open("qwen35moe-tiny/ref-dequant-Q8_0.safetensors") else { return };
    let expected = evaluate(&merged, &reference, 24, integer());
    let alone = trunk.load().unwrap();
    assert!(matches!(&alone.mtp, MtpStatus::Unavailable(why) if why.contains("blk.4.nextn.*")), "{:?}", alone.mtp);
    let converted = fixture("qwen35moe-tiny/mtp-qwen35moe-tiny-Q8_0.gguf").map(|path| open(&path));
    for sidecar in [Some(block.file()), converted].into_iter().flatten() {
        let model = Model::load(&trunk.file(), Some(&sidecar), LoadOptions::default()).unwrap();
        assert_eq!(model.mtp, MtpStatus::Sidecar);
        assert_eq!(evaluate(&Arc::new(model), &reference, 24, integer()), expected, "{}", sidecar.name());
    }
    let text = Model::load(&block.file(), None, LoadOptions::default()).err().unwrap().to_string();
    assert!(text.contains("only block 4 of a qwen35moe model"), "{text}");
}

#[test]
fn sidecars_agree_with_their_target_in_every_number() {
    let Some((trunk, block)) = parts() else { return };
    let text = |model: &ModelFile, draft: &ModelFile| match Model::load(model, Some(draft), LoadOptions::default()) {
        Err(error @ ModelError::Mismatch { .. }) => error.to_string(),
        other => panic!("{:?}", other.err()),
    };
    for (key, here, there) in [
        ("expert_count", 8, 4),
        ("expert_used_count", 2, 1),
        ("expert_feed_forward_length", 32, 64),
        ("expert_shared_feed_forward_length", 32, 16),
    ] {
        let target = parts().unwrap().0.set(&format!("qwen35moe.{key}"), Value::U32(there));
        let text = text(&target.file(), &block.file());
        assert!(text.contains(&format!("{key} is {here} here and {there} in the model")), "{text}");
    }
    let grouped = parts().unwrap().0;
    let grouped = grouped.set("qwen35moe.expert_group_count", Value::U32(2));
    let grouped = grouped.set("qwen35moe.expert_group_used_count", Value::U32(1));
    let text_of = text(&grouped.file(), &block.file());
    assert!(text_of.contains("expert_group_count is none here and 2 in the model"), "{text_of}");
    let Some(dense) = fixture("qwen35-tiny/mtp-qwen35-tiny-Q8_0.gguf") else { return };
    let text = text(&trunk.file(), &open(&dense));
    assert!(text.contains("general.architecture is qwen35 here and qwen35moe in the model"), "{text}");

    let scaled = parts().unwrap().1.add("blk.4.ffn_up_exps.scale", &[8], &[2.0; 8]);
    let error = Model::load(&trunk.file(), Some(&scaled.file()), LoadOptions::default()).err().unwrap();
    assert!(matches!(error, ModelError::Scales { .. }), "{error}");
}
