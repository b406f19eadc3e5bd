//! `qwen3next`: the numbers of `qwen35moe` in the layout of the older files. A small model is written anew with its value
//! heads in the order of the checkpoint and with one matrix for both gates; it must stay the model it was.

use std::sync::Arc;

use engine::model::{Model, MtpStatus};
use engine_bin::bench::single::Want;
use engine_io::gguf::Value;

use super::edit::{Edit, Tensor, edit, refused};
use super::{distance, exact, single};

const MOE: &str = "qwen35moe-tiny/qwen35moe-tiny-Q8_0.gguf";
/// Its delta net blocks.
const DELTA: [usize; 3] = [0, 1, 3];
const KEY_HEADS: usize = 2;
/// Value heads of a key head.
const RATIO: usize = 2;
const HEAD: usize = 32;
const PROMPT: [u32; 12] = [5, 9, 80, 200, 7, 31, 31, 64, 300, 2, 18, 90];

/// Units of the value heads, one after the other in tiled order, to the checkpoint's order.
fn grouped(tiled: &[u8]) -> Vec<u8> {
    let unit = tiled.len() / (KEY_HEADS * RATIO);
    let heads = (0..KEY_HEADS).flat_map(|g| (0..RATIO).map(move |j| j * KEY_HEADS + g));
    heads.flat_map(|p| tiled[p * unit..(p + 1) * unit].to_vec()).collect()
}

/// The fixture in the older layout, or a skip that has been reported.
pub fn qwen3next() -> Option<Edit> {
    let mut edit = Edit::of(MOE)?;
    let keys: Vec<(String, Value)> = edit.meta.iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    for (key, value) in keys {
        if let Some(name) = key.strip_prefix("qwen35moe.") {
            edit = edit.unset(&key).set(&format!("qwen3next.{name}"), value);
        }
    }
    edit = edit.set("general.architecture", Value::str("qwen3next")).unset("qwen3next.rope.dimension_sections");
    for block in DELTA {
        let name = |part: &str| format!("blk.{block}.{part}");
        for part in ["attn_qkv.weight", "ssm_conv1d.weight"] {
            // Queries and keys keep their places.
            let t = edit.tensor(&name(part));
            let values = t.data.len() / (2 + RATIO) * 2;
            let moved = grouped(&t.data[values..]);
            t.data[values..].copy_from_slice(&moved);
        }
        for part in ["attn_gate.weight", "ssm_a", "ssm_dt.bias"] {
            let t = edit.tensor(&name(part));
            t.data = grouped(&t.data);
        }
        // Input columns: a head is one block of each row.
        let t = edit.tensor(&name("ssm_out.weight"));
        assert_eq!(t.dims[0] as usize, KEY_HEADS * RATIO * HEAD);
        let row = t.data.len() / t.dims[1] as usize;
        t.data = t.data.chunks(row).flat_map(grouped).collect();
        let [beta, alpha] = ["ssm_beta.weight", "ssm_alpha.weight"].map(|part| {
            let t = edit.tensor(&name(part));
            (grouped(&t.data), t.kind)
        });
        let slice = beta.0.len() / KEY_HEADS;
        let data = beta.0.chunks(slice).zip(alpha.0.chunks(slice)).flat_map(|(b, a)| [b, a].concat()).collect();
        let dims = vec![96, 2 * (KEY_HEADS * RATIO) as u64];
        edit = edit.drop(|n| n == name("ssm_beta.weight") || n == name("ssm_alpha.weight"));
        edit.tensors.push(Tensor { name: name("ssm_ba.weight"), dims, kind: beta.1, data });
    }
    Some(edit)
}

#[test]
fn is_the_same_model_in_another_layout() {
    let Some(next) = qwen3next() else { return };
    let [ours, theirs] = [next, Edit::of(MOE).unwrap()].map(|edit| {
        let model: Model = edit.load().unwrap_or_else(|error| panic!("{error}"));
        assert!(model.mtp == MtpStatus::Own && model.unexpected.is_empty(), "{:?}", model.unexpected);
        let mut single = single(&Arc::new(model), 64, exact());
        let logits = single.trunk(&PROMPT, PROMPT.len(), Want::Probe).logits.clone();
        (logits, single.mtp(&[&PROMPT[..], &[7]].concat(), 3, false).draft.clone())
    });
    // The output projection sums its heads in another order.
    assert!(distance(&ours.0, &theirs.0) < 1e-4);
    assert_eq!(ours.1, theirs.1);
}

#[test]
fn its_layout_is_asked_for() {
    let Some(next) = qwen3next() else { return };
    let gone = next.clone().drop(|n| n == "blk.1.ssm_ba.weight");
    refused(&gone, &["blk.1.ssm_ba.weight is missing"]);
    refused(&next.clone().unset("qwen3next.expert_count"), &["qwen3next.expert_count"]);
    // Names of the family's other layout are not taken for this one, nor the reverse.
    refused(&edit!(MOE).set("general.architecture", Value::str("qwen3next")), &["qwen3next."]);
    let t = next.tensors.iter().find(|t| t.name == "blk.0.attn_qkv.weight").unwrap();
    let mut fused = next.clone().drop(|n| n == "blk.0.attn_qkv.weight");
    fused.tensors.push(Tensor { name: "blk.0.ssm_in.weight".into(), ..t.clone() });
    refused(&fused, &["blk.0.attn_qkv.weight is missing"]);
}
