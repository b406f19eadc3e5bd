//! What `package` writes: every tensor once and byte for byte, the head in the last block alone, a manifest that says so.

use std::collections::BTreeSet;
use std::fs;

use engine_bin::pack::package;
use engine_io::digest::TensorTree;
use engine_io::gguf::Value as Key;
use engine_io::package::manifest::Manifest;
use engine_io::provenance::Provenance;
use engine_io::{ModelFile, OpenOptions};
use engine_tests::fixtures::fixture;
use serde_json::json;
use tempfile::TempDir;

use super::{Packed, engine_pack, flags};
use crate::forward::edit::Edit;
use crate::refusals::tiny;

const NEMOTRON: &str = "nemotronh-tiny/nemotronh-tiny-Q8_0.gguf";

fn open(path: &std::path::Path) -> ModelFile {
    ModelFile::open(path, OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn tree(model: &ModelFile) -> engine_io::digest::Sha256 {
    TensorTree::of_model(model, |_| {}).unwrap().digest()
}

#[test]
fn a_composite_becomes_a_package_with_its_head_in_the_last_block() {
    let Some(path) = fixture(NEMOTRON) else { return };
    let packed = Packed::of(&fs::read(&path).unwrap());
    let source = open(&path);
    let model = open(&packed.dir);
    let config = engine::model::Config::read(source.meta()).unwrap();
    assert_eq!(config.nextn, 1, "the fixture is trunk and head");
    let head = config.trunk as u64;
    let manifest = packed.manifest();
    assert_eq!(manifest["layer_count"], head + 1);
    assert_eq!(manifest["activation_width"], config.d_model);
    assert_eq!(manifest["layers"].as_array().unwrap().len() as u64, head + 1);
    assert_eq!(tree(&model), tree(&source));
    assert_eq!(model.tensors().len(), source.tensors().len());
    // Keys: all of them, in their order.
    let keys = |m: &ModelFile| m.meta().iter().map(|(k, v)| (k.to_owned(), v.clone())).collect::<Vec<_>>();
    assert_eq!(keys(&model), keys(&source));
    let mut homes = BTreeSet::new();
    for t in model.tensors() {
        let file = model.shards()[t.shard as usize].path.display().to_string();
        if t.name.starts_with(&format!("blk.{head}.")) {
            assert!(file.ends_with(&format!("layers/layer-{head:05}.gguf")), "{} in {file}", t.name);
            homes.insert(file);
        } else {
            assert!(!file.ends_with(&format!("layers/layer-{head:05}.gguf")), "{} in {file}", t.name);
        }
    }
    assert_eq!(homes.len(), 1);
    let report = packed.preflight(2, true);
    assert_eq!(report.issues, []);
    assert!(report.valid && report.artifacts.iter().all(|a| a.sha256_matches_manifest == Some(true)));
    let [first, last] = &report.stages[..] else { panic!("two stages") };
    assert_eq!((first.layer_start, u64::from(last.layer_end)), (0, head + 1));
    assert_eq!((first.includes_mtp, last.includes_mtp), (false, true));
    assert_eq!(first.embeddings_for, ["input"]);
    assert!(last.embeddings_for.contains(&"mtp_block") && last.includes_embeddings && last.includes_output);
    assert!(!first.includes_output && first.memory.sequence_bytes > 0 && last.memory.sequence_bytes > 0);
    // What blocks keep of sequences adds up, however they are divided.
    let whole = packed.preflight(1, false);
    let sum: u64 = report.stages.iter().map(|s| s.memory.sequence_bytes).sum();
    assert_eq!(whole.stages[0].memory.sequence_bytes, sum);
    assert_eq!(whole.stages[0].tensor_count, source.tensors().len());
    assert!(packed.verify(Some(&path)).valid);
}

#[test]
fn the_menu_is_what_the_model_can_run() {
    let packed = Packed::tiny();
    let menu = packed.manifest()["generation"]["speculative_decoding"].clone();
    assert_eq!(menu["default"], "mtp-suffix");
    assert_eq!(
        menu["proposers"]["mtp"],
        json!({"type": "native-mtp", "prediction_depth": 1, "layer_indices": [4], "max_draft_tokens": 3})
    );
    assert_eq!(menu["strategies"]["mtp-suffix"]["primary"], "mtp");
    assert_eq!(menu["strategies"]["mtp-suffix"]["extender"], "suffix");
    assert_eq!(menu["proposers"]["suffix"]["history_scope"], "request");
    assert_eq!(
        menu["strategies"].as_object().unwrap().keys().collect::<Vec<_>>(),
        ["mtp", "ngram-suffix", "mtp-suffix"]
    );

    let bare = Packed::of(&tiny::trunk("qwen35").bytes());
    let menu = bare.manifest()["generation"]["speculative_decoding"].clone();
    assert_eq!(menu["strategies"].as_object().unwrap().keys().collect::<Vec<_>>(), ["ngram-suffix"]);
    assert_eq!(menu["default"], "ngram-suffix");
    assert_eq!(bare.manifest()["layer_count"], 4);
    assert_eq!(bare.preflight(2, false).issues, []);
}

#[test]
fn split_sets_lose_their_split_keys_and_nothing_else() {
    const SET: &str = "qwen35-tiny/qwen35-tiny-nomtp-Q8_0-00001-of-00003.gguf";
    let Some(first) = fixture(SET) else { return };
    let folder = TempDir::new().unwrap();
    let dir = folder.path().join("package");
    package::package(&flags(&first, &dir)).unwrap();
    let (source, model) = (open(&first), open(&dir));
    assert_eq!(tree(&model), tree(&source));
    let kept: Vec<_> = source.meta().iter().filter(|(key, _)| !key.starts_with("split.")).collect();
    assert_eq!(model.meta().iter().collect::<Vec<_>>(), kept);
    let manifest: Manifest = serde_json::from_slice(&fs::read(dir.join("model-package.json")).unwrap()).unwrap();
    assert_eq!(manifest.source_model.files.len(), 3);
    let record: Provenance = serde_json::from_value(manifest.provenance.unwrap()).unwrap();
    let removed: Vec<_> = record.steps.last().unwrap().kv_changes.iter().map(|c| c.key.as_str()).collect();
    assert_eq!(removed.len(), 3, "{removed:?}");
}

#[test]
fn alignments_and_unknown_tensors_survive() {
    let mut edit = tiny::model("qwen35").set("general.alignment", Key::U32(64)).set("some.other.key", Key::str("kept"));
    edit.weights("something.else", &[7]);
    let packed = Packed::of(&edit.bytes());
    let (source, model) = (open(&packed.model), open(&packed.dir));
    assert_eq!(tree(&model), tree(&source));
    assert!(model.shards().iter().all(|shard| shard.alignment == 64));
    assert_eq!(model.meta().get_str("some.other.key").unwrap(), Some("kept"));
    let other = model.tensor("something.else").unwrap();
    assert_eq!(other.shard, 0, "where every stage finds it");
}

#[test]
fn the_record_of_a_graft_is_carried_on() {
    let packed = Packed::tiny();
    // The record of a package is one of its source with one step more; here it stands for that of a graft.
    let mut record: Provenance = serde_json::from_value(packed.manifest()["provenance"].clone()).unwrap();
    assert_eq!(record.unhashed(), Vec::<String>::new());
    record.generation_recipe = None;
    record.tensor_origins[0].tensor_tree_sha256 = None;
    let beside = packed.folder.path().join("provenance.json");
    fs::write(&beside, record.to_json()).unwrap();
    let again = packed.folder.path().join("again");
    package::package(&flags(&packed.model, &again)).unwrap();
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(again.join("model-package.json")).unwrap()).unwrap();
    let carried: Provenance = serde_json::from_value(manifest["provenance"].clone()).unwrap();
    assert_eq!(carried.sources, record.sources);
    assert_eq!(carried.steps.len(), record.steps.len() + 1);
    assert_eq!(carried.steps.last().unwrap().inputs, [record.steps.last().unwrap().id.clone()]);
    assert_eq!(carried.unhashed(), Vec::<String>::new());

    // A record of other bytes is refused, and one of other tensors.
    let mut other = record.clone();
    other.tensor_origins[0].tensor_tree_sha256 = Some(engine_io::digest::Sha256::of(b"other"));
    let mut fewer = record.clone();
    fewer.tensor_origins[0].count -= 1;
    for (record, word) in [(other, "was changed after it was made"), (fewer, "is not of this model")] {
        fs::write(&beside, record.to_json()).unwrap();
        let out = packed.folder.path().join("refused");
        let error = package::package(&flags(&packed.model, &out)).unwrap_err();
        assert!(error.to_string().contains(word) && error.code() == 3, "{error}");
        assert!(!out.exists());
    }
}

#[test]
fn what_cannot_be_packaged_says_why_and_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, edit: &Edit| {
        let path = folder.path().join(name);
        fs::write(&path, edit.bytes()).unwrap();
        path
    };
    let nextn = "qwen35.nextn_predict_layers";
    let sidecar = write("sidecar.gguf", &tiny::sidecar("qwen35"));
    let broken = write("broken.gguf", &tiny::model("qwen35").drop(|name| name.ends_with("nextn.eh_proj.weight")));
    let silent = tiny::model("qwen35").unset(nextn).set("qwen35.block_count", Key::U32(4));
    let silent = write("silent.gguf", &silent);
    let packed = Packed::tiny();
    for (path, words) in [
        (&sidecar, ["MTP sidecar", "engine-pack graft"]),
        (&broken, ["cannot be used", "eh_proj"]),
        (&silent, ["blk.4.nextn", nextn]),
        (&packed.dir, ["is a layer package already", "cut from"]),
        (&folder.path().join("absent.gguf"), ["absent.gguf", "cannot open"]),
    ] {
        let out = folder.path().join("out");
        let (code, _, text) =
            engine_pack(&["package", "--model", path.to_str().unwrap(), "--out", out.to_str().unwrap()]);
        assert_eq!(code, Some(3), "{text}");
        for word in words {
            assert!(text.contains(word), "`{text}` does not say `{word}`");
        }
        assert!(!out.exists());
    }
    let taken =
        engine_pack(&["package", "--model", packed.model.to_str().unwrap(), "--out", packed.dir.to_str().unwrap()]);
    assert!(taken.0 == Some(3) && taken.2.contains("exists already"), "{taken:?}");
    for bad in ["/a/path", "x.gguf", "", "a b"] {
        let out = folder.path().join("out");
        let model = packed.model.to_str().unwrap();
        let line = ["package", "--model", model, "--out", out.to_str().unwrap(), "--model-id", bad];
        assert_eq!(engine_pack(&line).0, Some(3), "{bad:?}");
        assert!(!out.exists(), "{bad:?}");
    }
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn a_measured_arm_becomes_the_default_with_its_settings() {
    let packed = Packed::tiny();
    let tree = tree(&open(&packed.model));
    let result = |tree: &str| {
        let arm = |strategy: &str, speed: f64| {
            json!({"strategy": strategy, "decode_tok_s": {"median": speed}, "output_sha256": "ab".repeat(32),
                "settings": {"suffix_min": 5, "window": {"policy": "fixed", "initial": 4, "max": 8}}})
        };
        json!({"schema": "slipstream-bench/1", "model": {"tensor_tree_sha256": tree},
            "arms": [arm("off", 10.0), arm("mtp", 12.5), arm("mtp-suffix", 11.0)]})
    };
    let path = packed.folder.path().join("result.json");
    fs::write(&path, result(&tree.to_string()).to_string()).unwrap();
    let out = packed.folder.path().join("measured");
    let measured = package::PackageFlags { from_bench: Some(path.clone()), ..flags(&packed.model, &out) };
    let report = package::package(&measured).unwrap();
    assert_eq!(report.default, "mtp");
    let copy = Packed { folder: TempDir::new().unwrap(), model: packed.model.clone(), dir: out };
    assert_eq!(copy.preflight(2, true).issues, []);
    let manifest = copy.manifest();
    let menu = &manifest["generation"]["speculative_decoding"];
    assert_eq!(menu["strategies"]["mtp"]["window_policy"]["initial_window"], 4);
    let recipe = &manifest["provenance"]["generation_recipe"];
    assert!(recipe["reason"].as_str().unwrap().contains("mtp 12.50 tok/s, off 10.00 tok/s (1.25 times)"), "{recipe}");
    assert_eq!(recipe["evidence"][0]["path"], "result.json");

    fs::write(&path, result(&"0".repeat(64)).to_string()).unwrap();
    let out = packed.folder.path().join("other");
    let error = package::package(&package::PackageFlags { out: out.clone(), ..measured }).unwrap_err();
    assert!(error.to_string().contains("measure this model") && !out.exists(), "{error}");
}

/// A default is a strategy. Where all of them lost time, that is said by the program and in the manifest.
#[test]
fn a_package_of_a_model_that_off_is_fastest_for_says_so() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (model, result, out) = (path("model.gguf"), path("result.json"), path("p"));
    fs::write(&model, tiny::model("qwen35").bytes()).unwrap();
    let arm = |strategy: &str, speed: f64| json!({"strategy": strategy, "decode_tok_s": {"median": speed}, "output_sha256": "ab".repeat(32)});
    let arms = [arm("off", 20.0), arm("mtp", 14.0), arm("ngram-suffix", 19.0), arm("mtp-suffix", 12.0)];
    fs::write(&result, json!({"schema": "slipstream-bench/1", "arms": arms}).to_string()).unwrap();
    let (code, text, error) = engine_pack(&["package", "--model", &model, "--out", &out, "--from-bench", &result]);
    assert_eq!(code, Some(0), "{error}");
    let why = "off was fastest, and a package cannot have it for its default: off 20.00 tok/s; of 3 measured arms with its \
               output ngram-suffix 19.00 tok/s loses least (0.95 times)";
    assert!(text.contains(&format!("ngram-suffix: {why}")), "{text}");
    assert!(text.contains(&format!("engine-serve --model {out} --spec-strategy off")), "{text}");
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.path().join("p/model-package.json")).unwrap()).unwrap();
    assert_eq!(manifest["generation"]["speculative_decoding"]["default"], "ngram-suffix");
    assert_eq!(manifest["provenance"]["generation_recipe"]["reason"], why);
    assert_eq!(engine_pack(&["preflight", &out, "--stages", "2"]).0, Some(0));
}

#[test]
fn the_program_reports_for_people_and_as_json() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("model.gguf");
    fs::write(&model, tiny::model("qwen35").bytes()).unwrap();
    let out = folder.path().join("p");
    let line = ["package", "--model", model.to_str().unwrap(), "--out", out.to_str().unwrap(), "--model-id", "a/b:F32"];
    let (code, text, error) = engine_pack(&[&line[..], &["--json"]].concat());
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["layer_count"], &report["mtp_block"]), (&5.into(), &4.into()));
    for line in [
        vec!["preflight", out.to_str().unwrap(), "--stages", "2"],
        vec!["verify", out.to_str().unwrap(), "--source", model.to_str().unwrap()],
        vec!["inspect", out.to_str().unwrap()],
    ] {
        let (code, text, error) = engine_pack(&line);
        assert_eq!(code, Some(0), "{line:?}: {text}{error}");
        let (_, json, _) = engine_pack(&[&line[..], &["--json"]].concat());
        assert!(serde_json::from_str::<serde_json::Value>(&json).unwrap().is_object(), "{line:?}");
    }
    for line in [
        vec!["preflight", out.to_str().unwrap()],
        vec!["preflight", out.to_str().unwrap(), "--stages", "0"],
        vec!["preflight", out.to_str().unwrap(), "--stages", "3", "--stage-split", "1"],
        vec!["materialize", out.to_str().unwrap(), "--stage", "2/2", "--out", "x"],
        vec!["materialize", out.to_str().unwrap(), "--stage", "0/3", "--stage-split", "1", "--out", "x"],
    ] {
        assert_eq!(engine_pack(&line).0, Some(2), "{line:?}");
    }
}
