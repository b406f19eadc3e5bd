use super::*;
use crate::gguf::Value;

fn tensor(name: &str, dims: &[u64], ty: TensorType) -> TensorInfo {
    TensorInfo::new("m.gguf", name, dims, ty).unwrap()
}

fn expect(name: &str, dims: &[u64], required: bool) -> Expect {
    Expect { name: name.into(), dims: dims.to_vec(), required }
}

#[test]
fn one_pass_lists_every_fault() {
    let tensors = [
        tensor("token_embd.weight", &[64, 320], TensorType::Q8_0),
        tensor("blk.0.attn_q.weight", &[64, 64], TensorType::Iq4Nl),
        tensor("blk.0.attn_k.weight", &[64, 32], TensorType::Iq4Nl),
        tensor("blk.0.attn_v.weight", &[64, 64], TensorType::Q4_1),
        tensor("vision.patch.weight", &[256], TensorType::Iq1S),
    ];
    let wishes = [
        expect("token_embd.weight", &[64, 320], true),
        expect("output.weight", &[64, 320], false),
        expect("output_norm.weight", &[64], true),
        expect("blk.0.attn_q.weight", &[64, 64], true),
        expect("blk.0.attn_k.weight", &[64, 32], true),
        expect("blk.0.attn_v.weight", &[64, 32, 1], false),
        expect("blk.0.attn_output.weight", &[64, 64], true),
    ];
    let report = Preflight::check(&tensors, &wishes, |ty| !matches!(ty, TensorType::Iq4Nl | TensorType::Iq1S));
    assert_eq!(report.missing, ["output_norm.weight", "blk.0.attn_output.weight"]);
    let wrong = WrongShape { name: "blk.0.attn_v.weight".into(), found: vec![64, 64], expected: vec![64, 32, 1] };
    assert_eq!(report.wrong_shape, [wrong]);
    // The type of a tensor nobody reads does not matter.
    let unsupported = Unsupported { ty: TensorType::Iq4Nl, count: 2, example: "blk.0.attn_q.weight".into() };
    assert_eq!(report.unsupported, [unsupported]);
    assert_eq!(report.unexpected, ["vision.patch.weight"]);
    let text = report.clone().into_result("m.gguf", true).unwrap_err().to_string();
    for part in [
        "m.gguf",
        "IQ4_NL of 2",
        "output_norm.weight is missing",
        "blk.0.attn_output",
        "[64, 64], expected [64, 32, 1]",
        "vision",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!report.into_result("m.gguf", false).unwrap_err().to_string().contains("vision"));
}

#[test]
fn extras_are_reported_and_refused_only_when_strict() {
    let tensors = [tensor("a", &[1], TensorType::F32), tensor("extra", &[1], TensorType::F32)];
    let report = Preflight::check(&tensors, &[expect("a", &[1], true)], |_| true);
    assert_eq!(report.clone().into_result("m", false).unwrap(), ["extra"]);
    assert!(matches!(report.into_result("m", true), Err(Error::Preflight { .. })));
}

#[test]
fn absent_optional_tensors_are_no_fault() {
    let tensors = [tensor("token_embd.weight", &[64, 320], TensorType::F32)];
    let wishes = [expect("token_embd.weight", &[64, 320], true), expect("output.weight", &[64, 320], false)];
    assert_eq!(Preflight::check(&tensors, &wishes, |_| true), Preflight::default());
}

#[test]
fn expert_tensors_must_agree_with_the_expert_count() {
    let tensors = [tensor("blk.0.ffn_gate_exps.weight", &[64, 32, 8], TensorType::F32)];
    let report = Preflight::check(&tensors, &[expect("blk.0.ffn_gate_exps.weight", &[64, 32, 6], true)], |_| true);
    assert_eq!(
        (&report.wrong_shape[0].found[..], &report.wrong_shape[0].expected[..]),
        (&[64, 32, 8][..], &[64, 32, 6][..])
    );
}

#[test]
fn block_names_have_one_spelling() {
    assert_eq!(split_block("blk.12.attn_q.weight"), Some((12, "attn_q.weight")));
    assert_eq!(split_block("blk.0.ssm_a"), Some((0, "ssm_a")));
    assert_eq!(split_block(&in_block(7, "nextn.enorm.weight")), Some((7, "nextn.enorm.weight")));
    for odd in [
        "token_embd.weight",
        "blk.",
        "blk.1",
        "blk.1.",
        "blk.01.x",
        "blk.+1.x",
        "blk.-1.x",
        "blk..x",
        "blk.4294967296.x",
    ] {
        assert_eq!(split_block(odd), None, "{odd}");
    }
}

#[test]
fn an_unknown_architecture_is_its_own_diagnosis() {
    let mut meta = Meta::new("m.gguf");
    assert!(matches!(table(&meta), Err(Error::MissingKey { .. })));
    meta.push("general.architecture", Value::str("gpt2")).unwrap();
    let e = table(&meta).unwrap_err();
    assert!(matches!(e, Error::UnsupportedArchitecture { .. }));
    assert!(e.to_string().contains("gpt2, supported are llama, qwen35"), "{e}");
    meta.set("general.architecture", Value::str("qwen35"));
    assert_eq!(table(&meta).unwrap(), QWEN35);
}

#[test]
fn tables_name_each_tensor_once_per_part() {
    for (arch, rows) in ARCHITECTURES {
        let mut seen = HashSet::new();
        for row in *rows {
            assert!(seen.insert((row.part, row.name)), "{arch}: {}", row.name);
        }
    }
}

/// Required tensors of a whole `qwen35` head in block `block`.
fn head(block: u32) -> Vec<TensorInfo> {
    QWEN35
        .iter()
        .filter(|r| r.required && !matches!(r.part, Part::Top | Part::DeltaNet))
        .map(|r| tensor(&in_block(block, r.name), &[64], TensorType::F32))
        .collect()
}

#[test]
fn a_head_is_what_key_and_tensors_agree_on() {
    let layers = |nextn| LayerCounts { all: 5, nextn };
    let whole = head(4);
    assert_eq!(nextn_state(QWEN35, layers(1), &whole), NextnState::Present);
    assert_eq!(nextn_state(QWEN35, layers(0), &[]), NextnState::Absent);
    let trunk = [tensor("blk.3.attn_norm.weight", &[64], TensorType::F32)];
    let NextnState::Incomplete { missing } = nextn_state(QWEN35, layers(1), &trunk) else {
        panic!("announced, absent")
    };
    assert_eq!(missing.len(), whole.len());
    assert!(missing.contains(&"blk.4.nextn.eh_proj.weight".into()));
    let most: Vec<_> = whole.iter().filter(|t| !t.name.ends_with("hnorm.weight")).cloned().collect();
    assert_eq!(
        nextn_state(QWEN35, layers(1), &most),
        NextnState::Incomplete { missing: vec!["blk.4.nextn.hnorm.weight".into()] }
    );
    let NextnState::Unannounced { example } = nextn_state(QWEN35, layers(0), &whole) else {
        panic!("tensors without key")
    };
    assert!(example.starts_with("blk.4.nextn."), "{example}");
    // Fused q, k, v stand for the three.
    let mut fused: Vec<_> = whole
        .into_iter()
        .filter(|t| !["attn_q.weight", "attn_k.weight", "attn_v.weight"].iter().any(|n| t.name.ends_with(n)))
        .collect();
    fused.push(tensor("blk.4.attn_qkv.weight", &[64], TensorType::F32));
    assert_eq!(nextn_state(QWEN35, layers(1), &fused), NextnState::Present);
}

#[test]
fn a_head_alone_is_seen_as_such() {
    let mut tensors = head(48);
    tensors.push(tensor("token_embd.weight", &[64, 320], TensorType::F32));
    assert!(is_head_only(&tensors));
    tensors.push(tensor("blk.0.attn_norm.weight", &[64], TensorType::F32));
    assert!(!is_head_only(&tensors));
    assert!(!is_head_only(&[]));
}
