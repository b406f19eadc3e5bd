use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::slice::from_ref;

use half::{bf16, f16};
use serde_json::json;

use super::*;
use crate::checkpoint::Checkpoint;
use crate::compat::RULES;
use crate::gguf::TensorType;

/// A tensor of a checkpoint: name, shape, type, values.
type Made<'a> = (&'a str, &'a [u64], TensorType, Vec<f32>);

fn bytes(ty: TensorType, values: &[f32]) -> Vec<u8> {
    match ty {
        TensorType::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        TensorType::Bf16 => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

fn checkpoint(tensors: &[Made<'_>]) -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, ty, values) in tensors {
        let start = data.len();
        data.extend(bytes(*ty, values));
        let entry = json!({"dtype": ty.name(), "shape": shape, "data_offsets": [start, data.len()]});
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    let parts = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data];
    fs::write(dir.path().join("x.safetensors"), parts.concat()).unwrap();
    let found = Checkpoint::open(dir.path(), is_head).unwrap();
    (dir, found)
}

fn want(name: &str, dims: &[u64]) -> Wanted {
    Wanted { name: format!("blk.9.{name}"), dims: dims.to_vec(), optional: false }
}

const HEADS: Geometry = Geometry { heads: [2, 1] };

fn faults(arch: &str, wanted: &[Wanted], tensors: &[Made<'_>]) -> Vec<Fault> {
    let (_dir, from) = checkpoint(tensors);
    plan(arch, wanted, HEADS, &from).expect_err("a fault")
}

/// The values of the one tensor that is wanted.
fn made(arch: &str, wanted: Wanted, tensors: &[Made<'_>]) -> (TensorType, Vec<u8>) {
    let (_dir, from) = checkpoint(tensors);
    let found = plan(arch, &[wanted], HEADS, &from).unwrap_or_else(|faults| panic!("{faults:?}"));
    let [recipe] = found.tensors.as_slice() else { panic!("one tensor") };
    (recipe.ty, all(recipe.reader(&from)))
}

fn all(mut from: impl Read) -> Vec<u8> {
    let mut out = Vec::new();
    from.read_to_end(&mut out).unwrap();
    out
}

fn count(n: u64) -> Vec<f32> {
    (0..n).map(|x| x as f32).collect()
}

#[test]
fn the_table_is_of_canonical_names() {
    let mut seen = HashSet::new();
    for s in SOURCES {
        for arch in s.archs {
            assert!(seen.insert((arch, s.found, s.canonical)), "{arch} {} twice", s.found);
        }
        if matches!(s.step, Step::Drop(_)) {
            continue;
        }
        // What the table of a GGUF head's names takes too.
        let is_of = |found: &str| match found.strip_suffix('*') {
            Some(prefix) => s.canonical.starts_with(prefix),
            None => s.canonical.strip_suffix(".weight") == Some(found),
        };
        assert!(RULES.iter().any(|rule| is_of(rule.found)), "{}", s.canonical);
        // And what a GGUF reader of this dialect is told to convert.
        let name = format!("mtp.{}", s.found);
        let checkpoint = |found: &str| match found.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == found,
        };
        let embed = s.found == "embed_tokens";
        assert!(embed || RULES.iter().any(|rule| checkpoint(rule.found)), "{name}");
    }
    assert_eq!(
        source_names("qwen4exp", "blk.48.ffn_up_exps.weight").collect::<Vec<_>>(),
        ["mtp.layers.0.mlp.experts.E.up_proj", "mtp.layers.0.mlp.experts.gate_up_proj"]
    );
}

#[test]
fn every_step_gives_the_values_of_its_formula() {
    use TensorType::{Bf16, F16, F32};
    let f32s = |values: &[f32]| (F32, bytes(F32, values));
    for ty in [F32, F16, Bf16] {
        let eh = ("model.language_model.mtp.fc.weight", &[2, 4][..], ty, count(8));
        assert_eq!(made("qwen35", want("nextn.eh_proj.weight", &[4, 2]), &[eh]), (ty, bytes(ty, &count(8))));
        let norm = ("mtp.norm.weight", &[3][..], ty, vec![-0.5, 0.25, 2.0]);
        assert_eq!(made("qwen35", want("nextn.shared_head_norm.weight", &[3]), &[norm]), f32s(&[0.5, 1.25, 3.0]));
        let gate = ("mtp.layers.0.mlp.shared_expert_gate.weight", &[1, 3][..], ty, vec![-0.5, 0.25, 2.0]);
        assert_eq!(made("qwen35moe", want("ffn_gate_inp_shexp.weight", &[3]), &[gate]), f32s(&[-0.5, 0.25, 2.0]));
        let halves = [
            ("mtp.fc_hidden.weight", &[2, 2][..], ty, vec![5.0, 6.0, 7.0, 8.0]),
            ("mtp.fc_embedding.weight", &[2, 2][..], ty, vec![1.0, 2.0, 3.0, 4.0]),
        ];
        let joined = bytes(ty, &[1.0, 2.0, 5.0, 6.0, 3.0, 4.0, 7.0, 8.0]);
        assert_eq!(made("qwen4exp", want("nextn.eh_proj.weight", &[4, 2]), &halves), (ty, joined));
        // Experts in order of their number, not of their name.
        let names: Vec<String> = (0..11).map(|e| format!("mtp.layers.0.mlp.experts.{e}.down_proj.weight")).collect();
        let experts: Vec<Made<'_>> =
            names.iter().enumerate().map(|(e, name)| (name.as_str(), &[1, 2][..], ty, vec![e as f32; 2])).collect();
        let stacked = bytes(ty, &(0..22).map(|i| (i / 2) as f32).collect::<Vec<_>>());
        assert_eq!(made("qwen3next", want("ffn_down_exps.weight", &[2, 1, 11]), &experts), (ty, stacked.clone()));
        let fused =
            ("mtp.layers.0.mlp.experts.down_proj", &[11, 1, 2][..], ty, (0..22).map(|i| (i / 2) as f32).collect());
        assert_eq!(made("qwen3next", want("ffn_down_exps.weight", &[2, 1, 11]), &[fused]), (ty, stacked));
    }
    // Rows of a head: the halves interleave.
    let q = ("mtp.layers.0.mixer.q_proj.weight", &[8, 1][..], F32, count(8));
    let paired = f32s(&[0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    assert_eq!(made("nemotron_h_moe", want("attn_q.weight", &[1, 8]), &[q]), paired);
    let k = ("mtp.layers.0.mixer.k_proj.weight", &[8, 1][..], F32, count(8));
    let paired = f32s(&[0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]);
    assert_eq!(made("nemotron_h_moe", want("attn_k.weight", &[1, 8]), &[k]), paired);
    // One tensor cut in two.
    let (_dir, from) = checkpoint(&[
        ("mtp.layers.0.self_attn.indexer.index_qk_proj.weight", &[3, 2], F32, count(6)),
        ("mtp.layers.0.mlp.experts.gate_up_proj", &[2, 4, 1], F32, count(8)),
        ("mtp.hyper_connection_mixer.block_inject_weight", &[1], F32, count(1)),
    ]);
    let wanted = [
        want("indexer.q_proj.weight", &[2, 2]),
        want("indexer.k_proj.weight", &[2, 1]),
        want("ffn_gate_exps.weight", &[1, 2, 2]),
        want("ffn_up_exps.weight", &[1, 2, 2]),
    ];
    let found = plan("qwen4exp", &wanted, HEADS, &from).unwrap();
    assert_eq!(found.dropped, [(2, "the last mixer feeds no block")]);
    let values: Vec<Vec<u8>> = found.tensors.iter().map(|t| all(t.reader(&from))).collect();
    let expected = [&[0.0, 1.0, 2.0, 3.0][..], &[4.0, 5.0], &[0.0, 1.0, 4.0, 5.0], &[2.0, 3.0, 6.0, 7.0]];
    assert_eq!(values, expected.map(|values| bytes(F32, values)));
}

#[test]
fn every_fault_is_told_apart() {
    use TensorType::{Bf16, F32};
    let eh = || want("nextn.eh_proj.weight", &[4, 2]);
    let fc = |name: &'static str| (name, &[2, 4][..], F32, count(8));
    let whole = fc("mtp.fc.weight");
    let says = |found: &[Fault], parts: &[&str]| {
        assert_eq!(found.len(), 1, "{found:?}");
        let text = found[0].to_string();
        parts.iter().for_each(|part| assert!(text.contains(part), "`{text}` does not say `{part}`"));
    };
    let missing = faults("qwen35", &[eh()], &[]);
    says(&missing, &["blk.9.nextn.eh_proj.weight", "mtp.fc ", "language_model."]);
    let expert = want("ffn_up_exps.weight", &[2, 1, 2]);
    let one = ("mtp.layers.0.mlp.experts.0.up_proj.weight", &[1, 2][..], F32, count(2));
    says(
        &faults("qwen35moe", from_ref(&expert), from_ref(&one)),
        &["ffn_up_exps", "mtp.layers.0.mlp.experts.1.up_proj"],
    );
    let third = ("mtp.layers.0.mlp.experts.2.up_proj.weight", &[1, 2][..], F32, count(2));
    assert!(matches!(faults("qwen35moe", from_ref(&expert), &[one.clone(), third])[0], Fault::Unwanted { .. }));
    let fused = ("mtp.layers.0.mlp.experts.gate_up_proj", &[2, 2, 2][..], F32, count(8));
    let both = faults("qwen35moe", &[expert.clone(), want("ffn_gate_exps.weight", &[2, 1, 2])], &[one, fused]);
    says(&both, &["experts.0.up_proj", "gate_up_proj", "would both be"]);
    let bad = ("mtp.layers.0.mlp.experts.01.up_proj.weight", &[1, 2][..], F32, count(2));
    assert!(faults("qwen35moe", &[expert], &[bad]).iter().any(|f| matches!(f, Fault::Unknown { .. })));

    for name in ["mtp.other.weight", "mtp.fc.bias", "mtp.layers.1.input_layernorm.weight", "mtp.fc_hidden.weight"] {
        says(&faults("qwen35", &[eh()], &[whole.clone(), fc(name)]), &[name, "no rule"]);
    }
    says(&faults("qwen35", &[eh()], &[whole.clone(), fc("mtp.fc.weight_scale_inv")]), &["BF16"]);
    says(&faults("qwen35", &[eh()], &[whole.clone(), fc("mtp.norm.weight")]), &["mtp.norm.weight", "does not have"]);
    says(
        &faults("qwen35", &[eh()], &[whole.clone(), fc("model.mtp.fc.weight")]),
        &["mtp.fc.weight", "model.mtp.fc.weight"],
    );
    let turned = ("mtp.fc.weight", &[4, 2][..], F32, count(8));
    says(&faults("qwen35", &[eh()], &[turned]), &["[4, 2]", "[2, 4]", "blk.9.nextn.eh_proj.weight"]);
    let halves = [
        ("mtp.fc_hidden.weight", &[2, 2][..], F32, count(4)),
        ("mtp.fc_embedding.weight", &[2, 2][..], Bf16, count(4)),
    ];
    says(&faults("qwen4exp", &[eh()], &halves), &["fc_embedding.weight (BF16)", "fc_hidden.weight (F32)"]);
    says(&faults("qwen4exp", &[eh()], &halves[..1]), &["mtp.fc_embedding"]);
    let (dir, _) = checkpoint(&[whole]);
    let path = dir.path().join("x.safetensors");
    let text = fs::read(&path).unwrap();
    let at = text.windows(5).position(|w| w == b"\"F32\"").unwrap();
    fs::write(&path, [&text[..at], b"\"I32\"", &text[at + 5..]].concat()).unwrap();
    let from = Checkpoint::open(dir.path(), is_head).unwrap();
    says(&plan("qwen35", &[eh()], HEADS, &from).unwrap_err(), &["mtp.fc.weight", "I32", "BF16, F16 or F32"]);
}
