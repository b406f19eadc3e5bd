//! What `doctor` tells of files that load, of files that do not, and of files that are not there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use engine_bin::pack::doctor::{Container, DoctorFlags, Report, code, doctor, text};
use engine_io::TensorType;
use engine_io::gguf::{Array, Value};
use tempfile::TempDir;

use super::files::{Place, Whole, shards, write};
use crate::forward::edit::{renamed, with};
use crate::serve::process::program;

fn flags(model: &Path) -> DoctorFlags {
    DoctorFlags { model: model.into(), head: None, require_mtp: false, json: true }
}

fn look(model: &Path) -> Report {
    doctor(&flags(model))
}

fn says(report: &Report, parts: &[&str]) {
    let text = text(report);
    parts.iter().for_each(|part| assert!(text.contains(part), "`{text}` does not say `{part}`"));
}

#[test]
fn containers_are_told_apart() {
    let dir = TempDir::new().unwrap();
    for whole in Whole::all() {
        let table = with(whole.head(), &whole.edit, "token_embd");
        for (name, edit, container, mtp) in [
            ("full", whole.edit.clone(), Container::Full, "yes"),
            ("trunk", whole.target(), Container::TrunkOnly, "no: "),
            ("shared", whole.head(), Container::SharedHead, "alone"),
            ("own", table, Container::HeadOnly, "alone"),
        ] {
            let path = write(dir.path(), "m.gguf", &edit);
            let report = look(&path);
            let what = format!("{} {name}: {:?}", whole.arch, report.faults);
            assert_eq!((report.container, report.loads, code(&report)), (container, true, 0), "{what}");
            assert!(report.mtp.starts_with(mtp), "{what}");
            let required = doctor(&DoctorFlags { require_mtp: true, ..flags(&path) });
            assert_eq!(code(&required), if mtp == "yes" { 0 } else { 3 }, "{what}");
            assert_eq!(report.dialect.is_some(), name != "trunk", "{what}");
            assert!(report.arrays.iter().all(|a| a.fits), "{what}");
            says(&report, &[&format!("{}/1", whole.arch), "embedding_length 64"]);
        }
    }
}

#[test]
fn dialects_are_named_with_the_engines_that_read_them() {
    let whole = Whole::qwen4exp();
    let dir = TempDir::new().unwrap();
    let top = renamed(whole.head(), "blk.4.nextn.hc_head_", "output_hc_");
    let report = look(&write(dir.path(), "t.gguf", &top));
    assert!(report.dialect.unwrap().starts_with("T ("));
    let reads =
        |report: &Report, engine: &str| report.engines.iter().find(|e| e.engine == engine).unwrap().refusal.clone();
    assert_eq!(reads(&report, "llama.cpp PR #27739"), None);
    assert!(reads(&report, "llama.cpp with MTP for qwen4exp").unwrap().contains("dialect T"));
    says(&report, &["output_hc_norm.weight as blk.4.nextn.hc_head_norm.weight", "graft writes it so"]);
    let mut tables = with(whole.head(), &whole.edit, "token_embd");
    tables.weights("blk.4.nextn.embed_tokens.weight", &[64, 512]);
    let report = look(&write(dir.path(), "c.gguf", &tables));
    assert_eq!(reads(&report, "llama.cpp PR #27836"), None);
    assert!(reads(&report, "llama.cpp with MTP for qwen4exp").unwrap().contains("blk.4.nextn.embed_tokens.weight"));
}

#[test]
fn faults_are_listed_with_what_would_help() {
    let whole = Whole::qwen4exp();
    let dir = TempDir::new().unwrap();
    let look = |edit: &crate::forward::edit::Edit| look(&write(dir.path(), "m.gguf", edit));
    // A trunk with tensors missing, of another shape, and strange.
    let mut broken = whole.target().drop(|n| n == "blk.1.attn_gate.weight");
    broken.weights("strange.weight", &[3]);
    let t = broken.tensor("blk.0.ssm_norm.weight");
    (t.dims, t.data) = (vec![8], t.data[..32].to_vec());
    let report = look(&broken);
    assert_eq!((report.loads, code(&report)), (false, 3));
    assert_eq!(report.missing, ["blk.1.attn_gate.weight"]);
    assert!(report.wrong_shape[0].contains("blk.0.ssm_norm.weight: [8], expected [16]"), "{:?}", report.wrong_shape);
    // An incomplete head costs the drafts alone.
    let report = look(&whole.edit.clone().drop(|n| n == "blk.4.nextn.hc_head_up.weight"));
    assert!(report.loads && report.mtp.contains("blk.4.nextn.hc_head_up.weight is missing"), "{}", report.mtp);
    // Keys: one that contradicts, a list of no length that could be.
    let report = look(&whole.edit.clone().set("qwen4exp.nextn_predict_layers", Value::U32(5)));
    assert!(!report.loads && report.faults[0].contains("nextn_predict_layers"), "{:?}", report.faults);
    let short = Value::Array(Array::I32(vec![0; 3]));
    let report = look(&whole.edit.clone().set("qwen4exp.attention.compress_ratios", short));
    assert!(!report.loads && report.faults[0].contains("compress_ratios"), "{:?}", report.faults);
    // What loads, and should not be so.
    let report = look(&whole.edit.clone().unset("qwen4exp.rope.freq_base"));
    assert!(report.loads && report.warnings.iter().any(|w| w.contains("rope.freq_base is absent")));
    let mut coarse = whole.edit.clone();
    let t = coarse.tensor("blk.0.hc_attn_inject.weight");
    (t.kind, t.data) = (TensorType::Q4_0, vec![0; t.data.len() / 4 / 32 * 18]);
    let report = look(&coarse);
    assert!(
        report.warnings.iter().any(|w| w.starts_with("blk.0.hc_attn_inject.weight is Q4_0")),
        "{:?}",
        report.warnings
    );
    assert!(!report.warnings.iter().any(|w| w.contains("hc_ffn_inject")), "{:?}", report.warnings);
}

#[test]
fn files_that_are_not_there_are_named_one_by_one() {
    let dir = TempDir::new().unwrap();
    for (no, bytes) in shards(&Whole::qwen35().target(), 3).iter().enumerate() {
        fs::write(dir.path().join(format!("s-{:05}-of-00003.gguf", no + 1)), bytes).unwrap();
    }
    let second = dir.path().join("s-00002-of-00003.gguf");
    fs::remove_file(&second).unwrap();
    symlink("../../blobs/gone", &second).unwrap();
    fs::remove_file(dir.path().join("s-00003-of-00003.gguf")).unwrap();
    let report = look(&dir.path().join("s-00001-of-00003.gguf"));
    assert_eq!((report.loads, code(&report), report.shards.len()), (false, 3, 3));
    let faults: Vec<bool> = report.shards.iter().map(|s| s.fault.is_some()).collect();
    assert_eq!(faults, [false, true, true]);
    says(&report, &["../../blobs/gone: the link leads nowhere", "s-00003-of-00003.gguf: missing"]);
    assert_eq!(code(&look(&dir.path().join("nothing.gguf"))), 3);
}

#[test]
fn a_grafted_set_is_examined_with_its_record() {
    let whole = Whole::qwen4exp();
    let place = Place::new(&whole.target(), &whole.head());
    let before = doctor(&DoctorFlags { head: Some(place.head.clone()), ..flags(&place.target) });
    assert_eq!((code(&before), before.head.unwrap().reasons.len()), (0, 0));
    place.graft(|f| f.link = engine_bin::pack::graft::Link::Hard).unwrap();
    let report = look(&place.out());
    let record = report.provenance.clone().unwrap();
    assert!(report.mtp == "yes" && record.current, "{record:?}");
    assert_eq!(report.shards.iter().filter(|s| s.names == Some(2)).count(), 2, "{:?}", report.shards);
    // Made for another list of tensors: said, and loaded if it loads.
    let path = place.out().join("provenance.json");
    let schema = report.schema.clone().unwrap().sha256.to_string();
    let text = fs::read_to_string(&path).unwrap().replace(&schema, &"0".repeat(64));
    fs::write(&path, text).unwrap();
    let report = look(&place.out());
    assert!(report.loads && !report.provenance.unwrap().current);
    // A head that does not fit: every reason.
    let other = write(place.dir.path(), "other.gguf", &whole.head().set("qwen4exp.expert_count", Value::U32(8)));
    let report = doctor(&DoctorFlags { head: Some(other), ..flags(&place.target) });
    assert_eq!(code(&report), 3);
    assert!(report.head.unwrap().reasons[0].contains("expert_count is u32 8 here and u32 4"));
}

/// The list of tensors has a version; whoever changes the list changes it.
#[test]
fn a_changed_list_has_another_version() {
    let expected = [
        ("qwen35/1", "e9d331acba5f3af0"),
        ("qwen35moe/1", "b492d735953183a4"),
        ("nemotron_h_moe/1", "4e3ed703706498d0"),
        ("qwen4exp/1", "e30f2c439722d7e9"),
    ];
    let found: Vec<(String, String)> = Whole::all()
        .iter()
        .map(|whole| {
            let config = engine::model::Config::read(&whole.edit.meta).unwrap();
            (engine::model::schema::id(&config), engine::model::schema::digest(&config).to_string()[..16].to_owned())
        })
        .collect();
    let found: Vec<(&str, &str)> = found.iter().map(|(id, digest)| (id.as_str(), digest.as_str())).collect();
    assert_eq!(found, expected, "raise engine::model::schema::VERSION when a list changes, then write this one anew");
}

#[test]
fn the_program_prints_one_object_and_ends_with_the_code() {
    let dir = TempDir::new().unwrap();
    let whole = Whole::qwen35();
    let (full, trunk) = (write(dir.path(), "f.gguf", &whole.edit), write(dir.path(), "t.gguf", &whole.target()));
    for (path, more, expected) in [(&full, None, 0), (&trunk, None, 0), (&trunk, Some("--require-mtp"), 3)] {
        let run =
            Command::new(program("engine-pack")).arg("doctor").arg(path).args(more).arg("--json").output().unwrap();
        assert_eq!(run.status.code(), Some(expected));
        let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        assert_eq!(report["loads"], true);
        assert!(run.stderr.is_empty(), "{}", String::from_utf8_lossy(&run.stderr));
    }
}
