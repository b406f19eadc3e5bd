use serde_json::{Value, json};

use super::check::{is_digest, is_safe_path};
use super::stages::{Needs, ranges};
use super::*;
use crate::gguf::{TensorInfo, TensorType};

fn artifact(path: &str) -> Value {
    json!({"path": path, "tensor_count": 1, "tensor_bytes": 64, "artifact_bytes": 256, "sha256": "0".repeat(64)})
}

/// A manifest of version 1 as another tool might write it: three-digit layer names, a projector, fields we do not know
/// at every level.
fn foreign() -> Value {
    let mut layer = artifact("layers/layer-000.gguf");
    layer["layer_index"] = 0.into();
    layer["compression"] = "none".into();
    let mut projector = artifact("projectors/eyes.gguf");
    projector["kind"] = "mmproj".into();
    json!({
        "schema_version": 1,
        "model_id": "someone/some-model:Q4_K_M",
        "source_model": {"path": "some-model.gguf", "sha256": "f".repeat(64), "repo": "someone/some-model",
            "revision": "main", "primary_file": "some-model.gguf", "canonical_ref": "c", "distribution_id": "d",
            "files": [{"path": "some-model.gguf", "size_bytes": 9, "sha256": "f".repeat(64)}]},
        "format": "layer-package",
        "layer_count": 1,
        "activation_width": 64,
        "shared": {"metadata": artifact("shared/metadata.gguf"), "embeddings": artifact("shared/embeddings.gguf"),
            "output": artifact("shared/output.gguf"), "extra": artifact("shared/extra.gguf")},
        "layers": [layer],
        "projectors": [projector],
        "generation": {
            "request_defaults": {"temperature": 0.5},
            "speculative_decoding": {
                "default": "ngram-suffix",
                "proposers": {"s": {"type": "ngram-suffix", "ngram_min": 3, "ngram_max": 64, "max_proposal_tokens": 48,
                    "history_scope": "request", "tuning": {"a": 1}}},
                "strategies": {"ngram-suffix": {"type": "ngram-suffix", "proposer": "s", "note": "n", "window_policy":
                    {"default": "fixed", "initial_window": 4, "min_window": 1, "max_window": 8, "pipeline_depth": 1}}},
                "revision": 7
            }
        },
        "skippy_abi_version": "12",
        "created_at_unix_secs": 1_780_000_000_u64,
        "topology": {"hint": [1, 2]}
    })
}

#[test]
fn a_foreign_manifest_is_read_and_nothing_of_it_is_lost() {
    let manifest: Manifest = serde_json::from_value(foreign()).unwrap();
    assert_eq!(check::manifest(&manifest), []);
    assert_eq!(manifest.artifacts().count(), 5);
    assert_eq!(serde_json::to_value(&manifest).unwrap(), foreign());
}

#[test]
fn names_and_fields_that_stand_twice_are_no_manifest() {
    let text = foreign().to_string();
    for (once, twice) in [
        (r#""model_id":"#, r#""model_id":"x","model_id":"#),
        (r#""proposers":{"#, r#""proposers":{"s":{"type":"native-mtp"},"#),
        (r#""strategies":{"#, r#""strategies":{"ngram-suffix":{"type":"draft-model"},"#),
        (r#""layer_count":1"#, r#""layer_count":"1""#),
        (r#""layer_count":1"#, r#""layer_count":-1"#),
    ] {
        assert!(text.contains(once));
        assert!(serde_json::from_str::<Manifest>(&text.replacen(once, twice, 1)).is_err(), "{twice}");
    }
}

#[test]
fn another_version_is_called_that_whatever_its_fields() {
    let folder = tempfile::tempdir().unwrap();
    let code = |manifest: Value| {
        fs::write(folder.path().join(MANIFEST), manifest.to_string()).unwrap();
        Package::read(folder.path()).unwrap_err().code
    };
    let files = json!([{"path": "a.gguf", "byte_size": 1, "sha256": "0"}]);
    assert_eq!(code(json!({"schema_version": 2, "source_model": {"files": files}})), "unsupported_schema_version");
    assert_eq!(code(json!({"schema_version": 1, "source_model": {"files": files}})), "invalid_manifest_json");
    assert_eq!(code(json!({"layers": []})), "invalid_manifest_json");
}

#[test]
fn paths_stay_below_the_folder() {
    for safe in ["a", "layers/layer-00000.gguf", "a b/c..d", ".hidden/x"] {
        assert!(is_safe_path(safe), "{safe}");
    }
    for unsafe_path in
        ["", "/a", "../a", "a/../b", "a/..", ".", "./a", "a//b", "a/", "C:/a", "a\\b", "\\\\host\\a", "a\0b", "a\nb"]
    {
        assert!(!is_safe_path(unsafe_path), "{unsafe_path:?}");
    }
    assert!(is_digest(&"0a".repeat(32)) && !is_digest(&"0A".repeat(32)) && !is_digest("0a"));
}

#[test]
fn every_tensor_has_one_home() {
    for (name, head, role) in [
        ("token_embd.weight", None, Role::Embeddings),
        ("per_layer_token_embd.weight", None, Role::Embeddings),
        ("output.weight", Some(4), Role::Output),
        ("output_norm.weight", None, Role::Output),
        ("output_hc_norm.weight", None, Role::Output),
        ("rope_freqs.weight", None, Role::Metadata),
        ("something.else", None, Role::Metadata),
        ("blk.12.attn_q.weight", Some(4), Role::Layer(12)),
        ("blk.4.nextn.eh_proj.weight", Some(4), Role::Layer(4)),
        ("mtp.fc.weight", Some(4), Role::Layer(4)),
        ("model.mtp.fc.weight", Some(4), Role::Layer(4)),
    ] {
        assert_eq!(home(name, head), role, "{name}");
    }
}

/// Tensors of `bytes[i]` for block i, a table, an output, divisors, and a head behind the trunk.
fn tensors(bytes: &[u64], table: u64, output: u64, head: Option<u64>) -> Vec<TensorInfo> {
    let t = |name: String, bytes: u64| TensorInfo::new("f", &name, &[bytes], TensorType::I8).unwrap();
    let mut out = vec![t("token_embd.weight".into(), table), t("rope_freqs.weight".into(), 5)];
    if output > 0 {
        out.push(t("output.weight".into(), output));
    }
    out.extend(bytes.iter().enumerate().map(|(i, &bytes)| t(format!("blk.{i}.w"), bytes)));
    out.extend(head.map(|bytes| t(format!("blk.{}.nextn.eh_proj.weight", bytes_len(&out)), bytes)));
    out
}

fn bytes_len(tensors: &[TensorInfo]) -> usize {
    tensors.iter().filter(|t| t.name.starts_with("blk.")).count()
}

#[test]
fn stages_are_cut_where_the_largest_is_smallest() {
    let cut = |bytes: &[u64], table, output, head: Option<u64>, stages| {
        let tensors = tensors(bytes, table, output, head);
        let trunk = bytes.len() as u32;
        let layers = trunk + u32::from(head.is_some());
        let needs = Needs::of(&tensors, layers, head.map(|_| trunk), None);
        let ranges = ranges(&tensors, &needs, stages, None)?;
        assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, layers));
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(ranges.iter().all(|range| range.start < range.end.min(trunk)), "{ranges:?}");
        Some(ranges.iter().map(|range| range.start).collect::<Vec<_>>())
    };
    assert_eq!(cut(&[10, 10, 10, 10], 1, 1, None, 2), Some(vec![0, 2]));
    assert_eq!(cut(&[10, 10, 10, 10], 25, 1, None, 2), Some(vec![0, 1]));
    assert_eq!(cut(&[10, 10, 10, 10], 1, 25, None, 2), Some(vec![0, 3]));
    // The head needs the table too: it weighs on the last stage.
    assert_eq!(cut(&[10, 10, 10, 10], 1, 1, Some(25), 2), Some(vec![0, 3]));
    assert_eq!(cut(&[10, 10, 10, 10], 1, 1, None, 4), Some(vec![0, 1, 2, 3]));
    assert_eq!(cut(&[1, 1, 1, 50], 1, 1, None, 3), Some(vec![0, 2, 3]));
    assert_eq!(cut(&[10], 1, 1, Some(1), 1), Some(vec![0]));
    for stages in [0, 2, 5] {
        assert_eq!(cut(&[10], 1, 1, Some(1), stages), None);
    }
}

#[test]
fn a_cut_may_be_asked_for_inside_the_trunk_alone() {
    let tensors = tensors(&[1, 1, 1], 1, 1, Some(1));
    let needs = Needs::of(&tensors, 4, Some(3), None);
    for split in [0, 3, 4] {
        assert_eq!(ranges(&tensors, &needs, 2, Some(split)), None);
    }
    assert_eq!(ranges(&tensors, &needs, 2, Some(1)), Some(vec![0..1, 1..4]));
    assert_eq!(ranges(&tensors, &needs, 3, Some(1)), None);
}

#[test]
fn the_last_stage_has_the_table_where_something_there_reads_it() {
    let on_last = |tensors: &[TensorInfo], head: Option<u32>| {
        let layers = head.map_or(3, |head| head + 1);
        let needs = Needs::of(tensors, layers, head, Some(1));
        assert!(needs.of_stage("token_embd.weight", &(0..1)) && needs.of_stage("rope_freqs.weight", &(1..2)));
        assert!(!needs.of_stage("token_embd.weight", &(1..2)) && !needs.of_stage("output.weight", &(1..2)));
        assert!(needs.of_stage("per_layer_token_embd.weight", &(1..2)));
        assert!(!needs.of_stage("per_layer_token_embd.weight", &(0..1)));
        assert!(needs.of_stage("output_norm.weight", &(2..layers)));
        needs.of_stage("token_embd.weight", &(2..layers))
    };
    assert!(!on_last(&tensors(&[1, 1, 1], 1, 1, None), None));
    assert!(on_last(&tensors(&[1, 1, 1], 1, 0, None), None), "tied");
    assert!(on_last(&tensors(&[1, 1, 1], 1, 1, Some(1)), Some(3)), "for the head");
    let mut own = tensors(&[1, 1, 1], 1, 1, Some(1));
    own.push(TensorInfo::new("f", "blk.3.nextn.embed_tokens.weight", &[1], TensorType::I8).unwrap());
    assert!(!on_last(&own, Some(3)), "the head has its own");
}
