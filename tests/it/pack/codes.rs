//! A package spoiled in one way for each code there is; preflight says that code and no other.

use std::collections::BTreeSet;
use std::fs;

use engine_io::digest::Sha256;
use engine_io::gguf::{Array, Value as Key};
use engine_io::package::{CODES, MANIFEST};
use engine_io::{ModelFile, OpenOptions};
use serde_json::{Value, json};

use super::files::Whole;
use super::{Packed, codes};
use crate::forward::edit::{Edit, Tensor};

/// Codes of `verify` alone; `paths` and `verifying_*` below have them.
const OF_VERIFY: [&str; 2] = ["source_tensor_mismatch", "provenance_target_mismatch"];

/// What a file that opens may have wrong: preflight alone reads it whole or asks for stages, the loader refuses the rest.
const SILENT: [&str; 8] = [
    "artifact_sha256_mismatch",
    "too_many_stages",
    "mtp_block_unreachable",
    "stage_split_out_of_range",
    "mtp_metadata_inconsistent",
    "invalid_model",
    "per_layer_array_length",
    "mtp_embedding_unavailable_on_final_stage",
];

type Spoil = Box<dyn Fn(&Packed)>;

/// Changes the manifest. Its record is taken out, unless it is what is changed: it would complain too.
fn json_of(change: impl Fn(&mut Value) + 'static) -> Spoil {
    Box::new(move |packed| {
        let mut manifest = packed.manifest();
        manifest.as_object_mut().unwrap().remove("provenance");
        change(&mut manifest);
        packed.set_manifest(&manifest);
    })
}

fn record_of(change: impl Fn(&mut Value) + 'static) -> Spoil {
    Box::new(move |packed| {
        let mut manifest = packed.manifest();
        change(&mut manifest["provenance"]);
        packed.set_manifest(&manifest);
    })
}

/// Changes the menu.
fn menu(change: impl Fn(&mut Value) + 'static) -> Spoil {
    json_of(move |manifest| change(&mut manifest["generation"]["speculative_decoding"]))
}

fn remove(value: &mut Value, key: &str) {
    value.as_object_mut().unwrap().remove(key).unwrap();
}

/// Writes an artifact anew and states what it then is.
fn rewrite(entry: &'static str, change: impl Fn(&mut Edit) + 'static) -> Spoil {
    json_of_packed(move |packed, manifest| {
        let entry = manifest.pointer_mut(entry).unwrap();
        let path = packed.dir.join(entry["path"].as_str().unwrap());
        let file = ModelFile::open(&path, OpenOptions::default()).unwrap();
        let tensor = |t: &engine_io::gguf::TensorInfo| Tensor {
            name: t.name.clone(),
            dims: t.dims().to_vec(),
            kind: t.ty,
            data: file.data(t).as_ref().to_vec(),
        };
        let mut edit = Edit { meta: file.meta().clone(), tensors: file.tensors().iter().map(tensor).collect() };
        drop(file);
        change(&mut edit);
        let bytes = edit.bytes();
        entry["tensor_count"] = edit.tensors.len().into();
        entry["tensor_bytes"] = edit.tensors.iter().map(|t| t.data.len()).sum::<usize>().into();
        entry["artifact_bytes"] = bytes.len().into();
        entry["sha256"] = Sha256::of(&bytes).to_string().into();
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    })
}

fn json_of_packed(change: impl Fn(&Packed, &mut Value) + 'static) -> Spoil {
    Box::new(move |packed| {
        let mut manifest = packed.manifest();
        manifest.as_object_mut().unwrap().remove("provenance");
        change(packed, &mut manifest);
        packed.set_manifest(&manifest);
    })
}

/// Changes the file of block 1.
fn file_of(change: impl Fn(&std::path::Path) + 'static) -> Spoil {
    Box::new(move |packed| change(&packed.dir.join("layers/layer-00001.gguf")))
}

/// One more artifact of a block, with a file of its own.
fn extra_layer(index: u32) -> Spoil {
    json_of_packed(move |packed, manifest| {
        fs::copy(packed.dir.join("layers/layer-00001.gguf"), packed.dir.join("layers/extra.gguf")).unwrap();
        let mut entry = manifest["layers"][1].clone();
        (entry["path"], entry["layer_index"]) = ("layers/extra.gguf".into(), index.into());
        manifest["layers"].as_array_mut().unwrap().push(entry);
    })
}

fn projector(kind: &'static str) -> Spoil {
    json_of_packed(move |packed, manifest| {
        fs::create_dir(packed.dir.join("projectors")).unwrap();
        fs::write(packed.dir.join("projectors/eyes.gguf"), b"eyes").unwrap();
        manifest["projectors"] = json!([{"kind": kind, "path": "projectors/eyes.gguf", "tensor_count": 1,
            "tensor_bytes": 4, "artifact_bytes": 4, "sha256": Sha256::of(b"eyes").to_string()}]);
    })
}

const OUTPUT: &str = "/shared/output";
const METADATA: &str = "/shared/metadata";
const EMBEDDINGS: &str = "/shared/embeddings";

fn moved(edit: &mut Edit, name: &str) {
    edit.weights(name, &[64]);
}

/// Which code, and how to come by it.
fn rows() -> Vec<(&'static str, Spoil)> {
    let mut rows: Vec<(&'static str, Spoil)> = vec![
        ("missing_manifest", Box::new(|packed| fs::remove_file(packed.dir.join(MANIFEST)).unwrap())),
        ("invalid_manifest_json", Box::new(|packed| fs::write(packed.dir.join(MANIFEST), "{").unwrap())),
        (
            "manifest_too_large",
            Box::new(|packed| {
                let mut text = packed.manifest().to_string();
                text.push_str(&" ".repeat(17 << 20));
                fs::write(packed.dir.join(MANIFEST), text).unwrap();
            }),
        ),
        ("unsupported_schema_version", json_of(|m| m["schema_version"] = 2.into())),
        ("invalid_format", json_of(|m| m["format"] = "gguf".into())),
        ("empty_model_id", json_of(|m| m["model_id"] = " ".into())),
        ("invalid_model_id", json_of(|m| m["model_id"] = "./model".into())),
        ("missing_activation_width", json_of(|m| remove(m, "activation_width"))),
        ("invalid_activation_width", json_of(|m| m["activation_width"] = 0.into())),
        ("activation_width_mismatch", json_of(|m| m["activation_width"] = 65.into())),
        ("empty_source_model_path", json_of(|m| m["source_model"]["path"] = "".into())),
        ("invalid_source_model_sha256", json_of(|m| m["source_model"]["sha256"] = "abc".into())),
        (
            "invalid_source_model_file",
            json_of(|m| {
                let again = m["source_model"]["files"][0].clone();
                m["source_model"]["files"].as_array_mut().unwrap().push(again);
            }),
        ),
        ("invalid_source_model_primary_file", json_of(|m| m["source_model"]["primary_file"] = "other.gguf".into())),
        ("missing_skippy_abi_version", json_of(|m| remove(m, "skippy_abi_version"))),
        ("empty_projector_kind", projector("")),
        ("unsupported_projector_kind", projector("ears")),
        ("missing_shared_artifact", json_of(|m| remove(&mut m["shared"], "output"))),
        ("invalid_layer_count", json_of(|m| m["layer_count"] = 0.into())),
        ("missing_layer", json_of(|m| drop(m["layers"].as_array_mut().unwrap().remove(2)))),
        ("duplicate_layer_index", extra_layer(1)),
        ("layer_index_out_of_range", extra_layer(9)),
        ("unsafe_artifact_path", json_of(|m| m["layers"][1]["path"] = "../model.gguf".into())),
        (
            "duplicate_artifact_path",
            json_of(|m| {
                let first = m["layers"][0].clone();
                m["layers"][1] = first;
                m["layers"][1]["layer_index"] = 1.into();
            }),
        ),
        ("invalid_artifact_sha256", json_of(|m| m["layers"][1]["sha256"] = "A".repeat(64).into())),
        ("empty_artifact", json_of(|m| m["layers"][1]["artifact_bytes"] = 0.into())),
        ("inconsistent_artifact_tensors", json_of(|m| m["layers"][1]["tensor_count"] = 0.into())),
        ("artifact_tensor_count_mismatch", json_of(|m| m["layers"][1]["tensor_count"] = 3.into())),
        ("artifact_tensor_bytes_mismatch", json_of(|m| m["layers"][1]["tensor_bytes"] = 3.into())),
        ("missing_artifact", file_of(|path| fs::remove_file(path).unwrap())),
        (
            "artifact_outside_package",
            Box::new(|packed| {
                let path = packed.dir.join("layers/layer-00001.gguf");
                let outside = packed.folder.path().join("outside.gguf");
                fs::rename(&path, &outside).unwrap();
                std::os::unix::fs::symlink(outside, path).unwrap();
            }),
        ),
        (
            "artifact_size_mismatch",
            file_of(|path| {
                let bytes = fs::read(path).unwrap();
                fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
            }),
        ),
        (
            "unreadable_artifact",
            Box::new(|packed| {
                let path = packed.dir.join("layers/layer-00001.gguf");
                let mut bytes = fs::read(&path).unwrap();
                bytes[0] = b'X';
                fs::write(&path, &bytes).unwrap();
                let mut manifest = packed.manifest();
                manifest["layers"][1]["sha256"] = Sha256::of(&bytes).to_string().into();
                packed.set_manifest(&manifest);
            }),
        ),
        (
            "artifact_sha256_mismatch",
            file_of(|path| {
                let mut bytes = fs::read(path).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                fs::write(path, bytes).unwrap();
            }),
        ),
        ("duplicate_tensor", rewrite(OUTPUT, |edit| edit.weights("token_embd.weight", &[64, 512]))),
        (
            "tensor_in_wrong_artifact",
            json_of_packed(|packed, manifest| {
                let spoil = |entry, change: fn(&mut Edit)| {
                    rewrite(entry, change)(packed);
                };
                spoil("/layers/0", |edit| edit.tensors.retain(|t| t.name != "blk.0.attn_norm.weight"));
                spoil(OUTPUT, |edit| moved(edit, "blk.0.attn_norm.weight"));
                *manifest = packed.manifest();
            }),
        ),
        ("split_tensor_count_mismatch", rewrite(METADATA, |edit| edit.meta.set("split.tensors.count", Key::I32(3)))),
        ("tokenizer_mismatch", rewrite(OUTPUT, |edit| edit.meta.set("tokenizer.ggml.pre", Key::str("other")))),
        ("invalid_model", rewrite("/layers/0", |edit| edit.tensors.retain(|t| t.name != "blk.0.attn_norm.weight"))),
        ("layer_count_mismatch", rewrite(METADATA, |edit| edit.meta.set("qwen35.block_count", Key::U32(6)))),
        (
            "per_layer_array_length",
            rewrite(METADATA, |edit| {
                edit.meta.set("qwen35.attention.head_count_kv", Key::Array(Array::U32(vec![2; 3])));
            }),
        ),
        ("mtp_embedding_unavailable_on_final_stage", rewrite(EMBEDDINGS, |edit| edit.tensors.clear())),
        (
            "mtp_metadata_inconsistent",
            menu(|s| {
                remove(&mut s["proposers"], "mtp");
                remove(&mut s["strategies"], "mtp");
                remove(&mut s["strategies"], "mtp-suffix");
                s["default"] = "ngram-suffix".into();
            }),
        ),
        ("mtp_block_unreachable", menu(|s| s["proposers"]["mtp"]["layer_indices"] = json!([0]))),
        ("provenance_invalid", record_of(|p| p["schema"] = "package-provenance/9".into())),
        ("provenance_coverage_mismatch", record_of(|p| p["tensor_origins"][0]["count"] = 3.into())),
        ("provenance_artifact_mismatch", record_of(|p| p["steps"][0]["outputs"][2]["byte_size"] = 3.into())),
        ("provenance_generation_mismatch", record_of(|p| p["generation_recipe"]["default"] = "mtp".into())),
        ("provenance_mtp_mismatch", record_of(|p| p["invariants"]["mtp_block_indices"] = json!([3]))),
        ("too_many_stages", Box::new(|_| {})),
        ("stage_split_out_of_range", Box::new(|_| {})),
    ];
    rows.extend(menu_rows());
    rows
}

/// Codes about the menu alone.
fn menu_rows() -> Vec<(&'static str, Spoil)> {
    let cache = |max: u32, scope: &'static str| {
        menu(move |s| {
            s["proposers"]["cache"] = json!({"type": "ngram-cache", "ngram_min": 1, "ngram_max": max,
                "max_proposal_tokens": 4, "history_scope": scope});
        })
    };
    let suffix = |field: &'static str, value: Value| menu(move |s| s["proposers"]["suffix"][field] = value.clone());
    let mtp = |field: &'static str, value: Value| menu(move |s| s["proposers"]["mtp"][field] = value.clone());
    let window = |field: &'static str, value: Value| {
        menu(move |s| s["strategies"]["mtp"]["window_policy"][field] = value.clone())
    };
    let both = |field: &'static str, value: Value| menu(move |s| s["strategies"]["mtp-suffix"][field] = value.clone());
    let without =
        |strategy: &'static str, field: &'static str| menu(move |s| remove(&mut s["strategies"][strategy], field));
    let uses =
        |strategy: &'static str, name: &'static str| menu(move |s| s["strategies"][strategy]["proposer"] = name.into());
    let of_type = |kind: &'static str| menu(move |s| s["strategies"]["new"] = json!({"type": kind}));
    vec![
        ("empty_speculative_default", menu(|s| s["default"] = "".into())),
        ("missing_speculative_default_strategy", menu(|s| s["default"] = "mtp-cache".into())),
        (
            "empty_speculative_proposer_name",
            menu(|s| {
                let copy = s["proposers"]["suffix"].clone();
                s["proposers"][""] = copy;
            }),
        ),
        ("unsupported_speculative_proposer_type", menu(|s| s["proposers"]["x"] = json!({"type": "oracle"}))),
        (
            "empty_speculative_strategy_name",
            menu(|s| {
                let copy = s["strategies"]["ngram-suffix"].clone();
                s["strategies"][""] = copy;
            }),
        ),
        ("empty_speculative_strategy_type", of_type("")),
        ("unsupported_speculative_strategy_type", of_type("oracle")),
        ("native_mtp_strategy_proposer_type_mismatch", uses("mtp", "suffix")),
        ("missing_ngram_strategy_proposer", without("ngram-suffix", "proposer")),
        ("ngram_strategy_proposer_type_mismatch", uses("ngram-suffix", "mtp")),
        ("missing_speculative_proposer", uses("mtp", "gone")),
        ("ambiguous_native_mtp_strategy", menu(|s| s["strategies"]["mtp"]["prediction_depth"] = 1.into())),
        ("missing_composite_extension_policy", without("mtp-suffix", "extension_policy")),
        ("missing_composite_primary", without("mtp-suffix", "primary")),
        ("missing_composite_extender", without("mtp-suffix", "extender")),
        ("invalid_composite_primary_type", both("primary", "suffix".into())),
        ("invalid_composite_extender_type", both("extender", "mtp".into())),
        ("unsupported_native_mtp_prediction_depth", mtp("prediction_depth", 2.into())),
        ("missing_native_mtp_layers", mtp("layer_indices", json!([]))),
        ("native_mtp_layer_out_of_range", mtp("layer_indices", json!([5]))),
        ("invalid_native_mtp_max_draft_tokens", mtp("max_draft_tokens", 0.into())),
        ("invalid_ngram_proposer_window", suffix("ngram_max", 2.into())),
        ("invalid_ngram_proposer_max_tokens", suffix("max_proposal_tokens", 0.into())),
        ("unsupported_ngram_cache_max_window", cache(5, "request")),
        ("invalid_ngram_cache_history_scope", cache(4, "server")),
        ("unsupported_ngram_suffix_window", suffix("ngram_min", 2.into())),
        ("invalid_ngram_suffix_history_scope", suffix("history_scope", "server".into())),
        ("invalid_extension_policy_tokens", both("extension_policy", json!({"max_tokens": 0}))),
        ("empty_window_policy_default", window("default", "".into())),
        ("invalid_window_policy_zero", window("min_window", 0.into())),
        ("invalid_window_policy_bounds", window("min_window", 33.into())),
        ("invalid_window_policy_initial", window("initial_window", 33.into())),
    ]
}

#[test]
fn every_code_has_a_package_that_gets_it_and_no_other() {
    let whole = Packed::tiny();
    assert_eq!(whole.preflight(2, true).issues, []);
    let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
    for (code, spoil) in rows() {
        let packed = whole.copy("package");
        spoil(&packed);
        let stages = if code == "too_many_stages" { 5 } else { 2 };
        let split = (code == "stage_split_out_of_range").then_some(4);
        let report = packed.preflight_cut(stages, split, true);
        if codes(&report.issues) != [code] || report.valid || report.issue_count != 1 {
            wrong.push(format!("{code}: {:#?}", report.issues));
        }
        let silent = SILENT.contains(&code) || code.starts_with("provenance_");
        if !silent {
            let refused = ModelFile::open(packed.dir.join(MANIFEST), OpenOptions::default());
            if refused.is_ok() {
                wrong.push(format!("{code} is opened"));
            }
        }
        assert!(seen.insert(code), "{code} has two rows");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let all: BTreeSet<&str> = CODES.iter().map(|(code, _)| *code).collect();
    let untested: Vec<_> = all.difference(&seen).filter(|code| !OF_VERIFY.contains(code)).collect();
    assert_eq!(untested, Vec::<&&str>::new());
}

/// A list over the blocks of another length is one fault, whichever list and whatever architecture.
#[test]
fn lists_over_the_blocks_have_one_code() {
    for whole in Whole::all() {
        let bytes = whole.edit.bytes();
        let packed = Packed::of(&bytes);
        let lists = [
            "attention.head_count",
            "attention.head_count_kv",
            "attention.recurrent_layers",
            "attention.compress_ratios",
            "feed_forward_length",
            "expert_used_count",
            "expert_feed_forward_length",
        ];
        let mut seen = 0;
        for list in lists {
            let key = whole.key(list);
            // Only of lists that the architecture has.
            let of_recurrent = !whole.arch.starts_with("nemotron");
            let there = match list {
                "attention.recurrent_layers" => of_recurrent,
                "attention.compress_ratios" => whole.arch == "qwen4exp",
                _ => whole.edit.meta.get(&key).is_some(),
            };
            if !there {
                continue;
            }
            for len in [whole.trunk - 1, whole.trunk + 2] {
                let key = key.clone();
                let copy = packed.copy("package");
                rewrite(METADATA, move |edit| edit.meta.set(&key, Key::Array(Array::U32(vec![1; len]))))(&copy);
                let issues = copy.preflight(2, false).issues;
                assert_eq!(codes(&issues), ["per_layer_array_length"], "{} {list}: {issues:#?}", whole.arch);
                let message = &issues[0].message;
                let parts = [whole.key(list), format!("has {len} elements"), format!("expected {} (", whole.trunk + 1)];
                assert!(parts.iter().all(|part| message.contains(part)), "{message}");
            }
            seen += 1;
        }
        assert!(seen >= 3, "{}", whole.arch);
    }
}

/// What a manifest says of its source is read by nobody here, and must be what it is taken for all the same.
#[test]
fn fields_of_a_wrong_type_are_no_manifest() {
    let packed = Packed::tiny();
    let whole = packed.manifest();
    let wrong: [(&str, Value); 9] = [
        ("/activation_width", "64".into()),
        ("/activation_width", 64.5.into()),
        ("/source_model/primary_file", 3.into()),
        ("/source_model/repo", json!(["a/b"])),
        ("/source_model/revision", 7.into()),
        ("/source_model/canonical_ref", false.into()),
        ("/source_model/distribution_id", json!({})),
        ("/source_model/files", json!({})),
        ("/layers/0/tensor_bytes", (-1).into()),
    ];
    for (pointer, value) in wrong {
        let mut manifest = whole.clone();
        let (object, key) = pointer.rsplit_once('/').unwrap();
        manifest.pointer_mut(object).unwrap()[key] = value;
        packed.set_manifest(&manifest);
        assert_eq!(codes(&packed.preflight(2, false).issues), ["invalid_manifest_json"], "{pointer}");
        assert!(ModelFile::open(&packed.dir, OpenOptions::default()).is_err(), "{pointer}");
    }
    // A name that stands twice, wherever: of the two this reader and another might take different ones.
    let text = serde_json::to_string(&whole).unwrap();
    for (once, twice) in [
        (r#""primary_file":"#, r#""primary_file":"other.gguf","primary_file":"#),
        (r#""tensor_origins":"#, r#""tensor_origins":[],"tensor_origins":"#),
    ] {
        assert!(text.contains(once));
        fs::write(packed.dir.join(MANIFEST), text.replacen(once, twice, 1)).unwrap();
        assert_eq!(codes(&packed.preflight(2, false).issues), ["invalid_manifest_json"], "{twice}");
    }
}

#[test]
fn all_issues_are_told_at_once() {
    let packed = Packed::tiny();
    let mut manifest = packed.manifest();
    manifest["model_id"] = "".into();
    manifest["skippy_abi_version"] = "".into();
    manifest["generation"]["speculative_decoding"]["default"] = "".into();
    manifest["layers"][0]["sha256"] = "".into();
    packed.set_manifest(&manifest);
    fs::remove_file(packed.dir.join("layers/layer-00002.gguf")).unwrap();
    fs::write(packed.dir.join("shared/output.gguf"), "short").unwrap();
    let report = packed.preflight(2, false);
    let expected = [
        "empty_model_id",
        "missing_skippy_abi_version",
        "invalid_artifact_sha256",
        "empty_speculative_default",
        "artifact_size_mismatch",
        "missing_artifact",
    ];
    assert_eq!(codes(&report.issues), expected);
    assert_eq!((report.checked_artifact_count, report.missing_artifact_count, report.issue_count), (8, 1, 6));
    for issue in &report.issues {
        assert!(issue.path.is_some() && !issue.message.is_empty() && !issue.remediation.is_empty(), "{issue:?}");
    }
    let (code, text, _) = super::engine_pack(&["preflight", packed.dir.to_str().unwrap(), "--stages", "2"]);
    assert_eq!(code, Some(3));
    assert!(expected.iter().all(|code| text.contains(code)), "{text}");
}

#[test]
fn verifying_reads_what_preflight_believes() {
    let packed = Packed::tiny();
    let report = packed.verify(Some(&packed.model));
    assert!(report.valid && report.tensors > 0 && report.against.len() == 2, "{report:?}");
    // Another model of the same shape: every digest of the package is right, and the tensors are others.
    let mut other = crate::refusals::tiny::model("qwen35");
    other.tensor("blk.2.ssm_out.weight").data[5] ^= 1;
    let source = packed.folder.path().join("other.gguf");
    fs::write(&source, other.bytes()).unwrap();
    let report = packed.verify(Some(&source));
    assert_eq!(codes(&report.issues), ["source_tensor_mismatch"]);
    assert_eq!(report.issues[0].path.as_deref(), Some("blk.2.ssm_out.weight"));
    let fewer = crate::refusals::tiny::trunk("qwen35");
    fs::write(&source, fewer.bytes()).unwrap();
    let issues = packed.verify(Some(&source)).issues;
    assert!(!issues.is_empty() && codes(&issues).iter().all(|code| *code == "source_tensor_mismatch"));
    // The record names other tensors.
    let mut manifest = packed.manifest();
    manifest["provenance"]["tensor_origins"][0]["tensor_tree_sha256"] = "0".repeat(64).into();
    packed.set_manifest(&manifest);
    assert_eq!(packed.preflight(1, true).issues, []);
    assert_eq!(codes(&packed.verify(None).issues), ["provenance_target_mismatch"]);
    // A file that is changed behind its digest.
    let path = packed.dir.join("layers/layer-00003.gguf");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(codes(&packed.verify(None).issues).contains(&"artifact_sha256_mismatch"));
}
