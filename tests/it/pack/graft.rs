//! Heads that fit: what lies there afterwards, what it says, and that nothing else was touched.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use engine::model::graft::plan;
use engine::model::head::HeadSpec;
use engine::model::load::LoadOptions;
use engine::model::{Model, MtpStatus};
use engine_bin::pack::graft::{Link, ShardAction};
use engine_bin::pack::verify_set::{code, verify};
use engine_io::compat::Dialect;
use engine_io::digest::Sha256;
use engine_io::gguf::{Array, Meta, Value};
use engine_io::provenance::Provenance;
use engine_io::{ModelFile, OpenOptions};
use engine_tests::fixtures::fixture;
use serde_json::json;

use super::files::{Place, REVISION, Whole, halved, write};
use crate::forward::edit::{Edit, renamed, with};
use crate::forward::invariance::ids;
use crate::forward::open;
use crate::forward::qwen4exp::says;
use crate::serve::client::ask;
use crate::serve::process::{Running, program};

/// The same of a file.
pub fn digests(file: &ModelFile) -> Vec<(String, Vec<u64>, Sha256)> {
    let digest = |t| Sha256::of_tensor(file, t, |_| {}).unwrap();
    file.tensors().iter().map(|t| (t.name.clone(), t.dims().to_vec(), digest(t))).collect()
}

/// Names, dimensions and digests of all tensors.
pub fn words(edit: &Edit) -> Vec<(String, Vec<u64>, Sha256)> {
    edit.tensors.iter().map(|t| (t.name.clone(), t.dims.clone(), Sha256::of(&t.data))).collect()
}

fn loaded(file: &ModelFile) -> Arc<Model> {
    let options = LoadOptions { strict: true, ..LoadOptions::default() };
    let model = Arc::new(Model::load(file, None, options).unwrap_or_else(|error| panic!("{error}")));
    assert_eq!(model.mtp, MtpStatus::Own);
    model
}

/// `verify` finds nothing.
pub fn verified(out: &Path) {
    let report = verify(out, true).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.faults, Vec::<String>::new());
    assert!(report.compared > 0);
}

/// Every architecture: target behind links in three shards, head in a file of its own. The set holds the bytes of both,
/// has the metadata of the original, and says what the original says.
#[test]
fn a_grafted_set_is_the_original() {
    for whole in Whole::all() {
        let place = Place::new(&whole.target(), &whole.head());
        let report = place.graft(|_| {}).unwrap_or_else(|error| panic!("{}: {error}", whole.arch));
        assert_eq!((report.block, report.shards.len(), report.dropped.len()), (whole.trunk, 4, 0), "{}", whole.arch);
        let set = open(&place.out());
        let mut expected = words(&whole.target());
        expected.extend(words(&whole.head()));
        assert_eq!(digests(&set), expected, "{}", whole.arch);
        // Keys: those of the original but for the split, which the original is not.
        let mut keys = set.meta().clone();
        for key in ["split.no", "split.count", "split.tensors.count"] {
            keys.remove(key).unwrap();
        }
        for (key, value) in whole.edit.meta.iter() {
            assert_eq!(keys.get(key), Some(value), "{}: {key}", whole.arch);
        }
        assert_eq!(keys.len(), whole.edit.meta.len(), "{}", whole.arch);
        // Order of keys that stay: the target's.
        let of_target: Vec<String> = whole.target().meta.iter().map(|(k, _)| k.to_owned()).collect();
        let kept: Vec<String> = keys.iter().map(|(k, _)| k.to_owned()).filter(|k| of_target.contains(k)).collect();
        assert_eq!(kept, of_target, "{}", whole.arch);
        let tokens = ids(30, 8).into_iter().map(|id| id % 96).collect::<Vec<_>>();
        let original = Arc::new(whole.edit.load().unwrap());
        assert_eq!(says(&loaded(&set), &tokens), says(&original, &tokens), "{}", whole.arch);
        verified(&place.out());
    }
}

/// Shards that stay are the same files; links were followed first; the record says where it all came from.
#[test]
fn untouched_shards_are_links_to_the_real_files() {
    let whole = Whole::qwen35();
    for (link, action) in [
        (Link::Hard, ShardAction::HardLinked),
        (Link::Symlink, ShardAction::Symlinked),
        (Link::Copy, ShardAction::Copied),
    ] {
        let place = Place::new(&whole.target(), &whole.head());
        let report = place.graft(|f| f.link = link).unwrap();
        for no in [1, 2] {
            let shard = &report.shards[no];
            let here = place.out().join(&shard.name);
            let there = place.target.join(format!("model-{:05}-of-00003.gguf", no + 1));
            let (own, leads_to, source) =
                (fs::symlink_metadata(&here).unwrap(), fs::metadata(&here).unwrap(), fs::metadata(&there).unwrap());
            assert_eq!((shard.action, leads_to.len()), (action, source.len()));
            assert_eq!(own.is_symlink(), link == Link::Symlink);
            assert_eq!(leads_to.ino() == source.ino(), link != Link::Copy);
        }
        // Linked files were not read, and nothing pretends that they were.
        assert_eq!(report.unread.len(), if link == Link::Copy { 0 } else { 2 });
        let record = Provenance::read(&place.out().join("provenance.json")).unwrap();
        let target = &record.sources[0];
        assert_eq!((target.repo.as_str(), target.revision.as_str()), ("org/model", REVISION));
        // The cache names files by their digests.
        assert!(target.files.iter().all(|f| f.sha256.is_some()));
        assert_eq!(record.invariants.target_tensor_tree_sha256.is_some(), link == Link::Copy);
        verified(&place.out());
        loaded(&open(&place.out()));
    }
}

/// Asked to, it reads linked files too; a file that is not what its name in the cache says is found out.
#[test]
fn verify_reads_linked_files() {
    let whole = Whole::qwen35();
    let place = Place::new(&whole.target(), &whole.head());
    let report = place.graft(|f| f.verify = true).unwrap();
    assert!(report.unread.is_empty());
    let record = Provenance::read(&place.out().join("provenance.json")).unwrap();
    // The head's own file was not hashed as a file; all that came out was.
    assert!(record.tensor_origins.iter().all(|o| o.tensor_tree_sha256.is_some()));
    assert!(record.steps[0].outputs.iter().all(|o| o.sha256.is_some()));
    assert!(record.invariants.target_tensor_tree_sha256.is_some());

    let place = Place::new(&whole.target(), &whole.head());
    let blob = fs::canonicalize(place.target.join("model-00002-of-00003.gguf")).unwrap();
    let mut bytes = fs::read(&blob).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&blob, bytes).unwrap();
    let error = place.graft(|f| f.verify = true).unwrap_err();
    assert!(error.code() == 3 && error.to_string().contains("its publisher's name for it says"), "{error}");
    assert!(!place.out().exists());
    // Not asked to, it takes the publisher's word, and `verify` finds it later.
    place.graft(|_| {}).unwrap();
    let report = verify(&place.out(), true).unwrap();
    assert!(report.faults.iter().any(|f| f.contains("has the digest")), "{:?}", report.faults);
}

/// Every dialect in which only names, or the halves of one matrix, differ.
#[test]
fn heads_of_every_dialect_are_one() {
    let whole = Whole::qwen4exp();
    let (head, model) = (whole.head(), &whole.edit);
    let top = renamed(head.clone(), "blk.4.nextn.hc_head_", "output_hc_");
    let shared_norm = renamed(top.clone(), "output_hc_norm", "blk.4.nextn.shared_head_norm");
    let f = halved(
        renamed(head.clone(), "blk.4.nextn.hc_head_", "blk.4.nextn.hc_"),
        "blk.4.nextn.fc_embd.weight",
        "blk.4.nextn.fc_hidden.weight",
    );
    let mut i = halved(
        renamed(head.clone(), "blk.4.nextn.hc_head_", "mtp.mixer_"),
        "mtp.fc_embd.weight",
        "mtp.fc_hidden.weight",
    );
    i = renamed(renamed(i, "blk.4.nextn.enorm", "mtp.pre_norm_embd"), "blk.4.nextn.hnorm", "mtp.pre_norm_hidden");
    let mut own_table = head.clone();
    own_table.weights("blk.4.nextn.embed_tokens.weight", &[64, 512]);
    own_table.weights("blk.4.nextn.shared_head_head.weight", &[64, 512]);
    // Name, file, tensors left out, and as what it is recognised.
    let rows = [
        ("C", head.clone(), 0, "C ("),
        ("C with the target's table", with(head.clone(), model, "token_embd"), 1, "C ("),
        ("C with tables of its own", own_table, 2, "C ("),
        ("C numbered 0", renamed(head.clone(), "blk.4.", "blk.0."), 0, "C ("),
        ("C+", with(head.clone(), model, "output_hc_"), 3, "C+"),
        ("T", with(top, model, "token_embd"), 1, "T ("),
        ("T'", shared_norm, 0, "T' ("),
        ("F", f, 0, "F ("),
        ("I", i, 0, "I ("),
        ("shared", head.clone().set("qwen4exp.nextn_shared_target_tensors", Value::Bool(true)), 0, "C ("),
        ("whole model", model.clone(), 0, "C ("),
    ];
    let mut expected = words(&head);
    expected.sort();
    for (what, file, left_out, dialect) in rows {
        let place = Place::new(&whole.target(), &file);
        let report = place.graft(|_| {}).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(report.dropped.len(), left_out, "{what}: {:?}", report.dropped);
        assert!(report.dialect.starts_with(dialect), "{what}: {}", report.dialect);
        assert_eq!(report.of_donor > 0, what == "whole model");
        let set = open(&place.out());
        let mut found: Vec<_> = digests(&set).into_iter().filter(|t| t.0.starts_with("blk.4.")).collect();
        found.sort();
        assert_eq!(found, expected, "{what}");
        // Everything that was said to be left out is in the record, with its reason.
        let record = Provenance::read(&place.out().join("provenance.json")).unwrap();
        let drops: u64 = record.steps[0].tensor_rules.iter().filter(|r| r.reason.is_some()).map(|r| r.count).sum();
        let halves = if what == "F" || what == "I" { 2 } else { 0 };
        assert_eq!(drops as usize, left_out + report.of_donor + halves, "{what}");
        verified(&place.out());
    }
}

/// Lists over the trunk's blocks get an entry; lists that only happen to be as long do not.
#[test]
fn every_list_over_the_blocks_grows() {
    let whole = Whole::qwen4exp();
    let flags = |v: &[bool]| Value::Array(Array::Bool(v.to_vec()));
    let ints = |v: &[i32]| Value::Array(Array::I32(v.to_vec()));
    let target = whole
        .target()
        .set("qwen4exp.attention.recurrent_layers", flags(&[true, true, true, false]))
        .set("qwen4exp.attention.head_count_kv", ints(&[0, 0, 0, 2]))
        .set("qwen4exp.expert_used_count", ints(&[2, 2, 2, 2]))
        .set("qwen4exp.unheard_of", ints(&[7, 7, 7, 9]));
    // As published heads have it: their own list for one key, no list for another, and another value.
    let head = whole.head().set("qwen4exp.attention.compress_ratios", ints(&[0, 0, 0, 4, 0]));
    let place = Place::new(&target, &head);
    place.graft(|_| {}).unwrap();
    let set = open(&place.out());
    let is = |key: &str, value: Value| assert_eq!(set.meta().get(&format!("qwen4exp.{key}")), Some(&value), "{key}");
    is("attention.recurrent_layers", flags(&[true, true, true, false, false]));
    is("attention.head_count_kv", ints(&[0, 0, 0, 2, 2]));
    is("expert_used_count", ints(&[2, 2, 2, 2, 2]));
    is("attention.compress_ratios", ints(&[0, 0, 0, 4, 0]));
    is("unheard_of", ints(&[7, 7, 7, 9, 9]));
    // Four sections, and four heads of n-grams, for four blocks.
    is("rope.dimension_sections", ints(&[2, 1, 1, 0]));
    is("ple.head_offsets", Value::Array(Array::U64(vec![0, 101, 204, 311])));
    is("block_count", Value::U32(5));
    is("nextn_predict_layers", Value::U32(1));
    // A head that says nothing of it leaves the block dense.
    let place = Place::new(&target, &whole.head().unset("qwen4exp.attention.compress_ratios"));
    place.graft(|_| {}).unwrap();
    let set = open(&place.out());
    assert_eq!(set.meta().get("qwen4exp.attention.compress_ratios"), Some(&ints(&[0, 0, 0, 4, 0])));
    // The block is attention, also where the head's own list says otherwise.
    let whole = Whole::qwen35();
    let key = whole.key("attention.recurrent_layers");
    let target = whole.target().set(&key, flags(&[true, true, true, false]));
    let head = whole.head().set(&key, flags(&[true, true, true, false, true]));
    let grafted = plan(&target.file(), &head.file(), Dialect::Canonical).unwrap().apply(target.file().meta());
    assert_eq!(grafted.get(&key), Some(&flags(&[true, true, true, false, false])));
}

/// The file of a head made for a model says of the blocks what the model says once it has the head: lists are made longer
/// by one rule.
#[test]
fn a_head_made_for_a_model_has_the_models_lists() {
    let ints = |v: &[i32]| Value::Array(Array::I32(v.to_vec()));
    for whole in Whole::all() {
        let unheard = ints(&(0..whole.trunk as i32).collect::<Vec<_>>());
        let target = whole.target().set(&whole.key("unheard_of"), unheard).file();
        let spec = HeadSpec::of(&target).unwrap();
        let plain = whole.head().unset(&whole.key("attention.compress_ratios")).file();
        let grafted = plan(&target, &plain, Dialect::Canonical).unwrap().apply(target.meta());
        let prefix = whole.key("");
        let own = |meta: &Meta| -> Vec<(String, Value)> {
            meta.iter().filter(|(k, _)| k.starts_with(&prefix)).map(|(k, v)| (k.to_owned(), v.clone())).collect()
        };
        assert_eq!(own(&spec.meta), own(&grafted), "{}", whole.arch);
        // A model that has its head already says all of it.
        let again = HeadSpec::of(&whole.edit.file()).unwrap();
        assert_eq!(own(&again.meta), own(&whole.edit.meta), "{}", whole.arch);
    }
    // A list of lists has an entry for each block, and nobody can tell the next.
    let lists = Value::Array(Array::Array(vec![Array::U8(vec![1]); 4]));
    let target = Whole::qwen35().target().set("qwen35.unheard_of", lists).file();
    for text in [
        HeadSpec::of(&target).unwrap_err().to_string(),
        plan(&target, &Whole::qwen35().head().file(), Dialect::Canonical).unwrap_err().to_string(),
    ] {
        let part = "qwen35.unheard_of has 4 entries for 4 blocks and none can be added: its entries are lists";
        assert!(text.contains(part), "{text}");
    }
}

/// The first shard keeps every byte that is not of a key that changes; types of counts stay.
#[test]
fn one_file_becomes_two() {
    let whole = Whole::qwen35();
    let target = whole.target().set("general.alignment", Value::U32(64)).set("qwen35.block_count", Value::U64(4));
    let dir = tempfile::tempdir().unwrap();
    let (target, head) = (write(dir.path(), "one.gguf", &target), write(dir.path(), "head.gguf", &whole.head()));
    let out = dir.path().join("out");
    let report = engine_bin::pack::graft::graft(&super::files::flags(&target, &head, &out)).unwrap();
    let names: Vec<&str> = report.shards.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["one-00001-of-00002.gguf", "one-00002-of-00002.gguf"]);
    let set = open(&out);
    assert_eq!(set.meta().get("qwen35.block_count"), Some(&Value::U64(5)));
    assert_eq!(set.meta().get("split.count"), Some(&Value::U16(2)));
    assert_eq!(set.meta().get("split.no"), Some(&Value::U16(0)));
    assert_eq!(set.meta().get("split.tensors.count"), Some(&Value::I32(set.tensors().len() as i32)));
    let changed: Vec<&str> = report.keys.iter().map(|k| k.key.as_str()).collect();
    assert_eq!(
        changed,
        ["qwen35.block_count", "qwen35.nextn_predict_layers", "split.no", "split.count", "split.tensors.count"]
    );
    // As llama.cpp wants it: offsets are running sums of padded sizes in the directory's order.
    for (no, shard) in set.shards().iter().enumerate() {
        let mut at = shard.data_start;
        assert_eq!(shard.alignment, 64);
        for t in set.tensors().iter().filter(|t| t.shard as usize == no) {
            assert_eq!(t.start, at, "{}", t.name);
            assert!(t.name.len() < 64);
            at += t.bytes.next_multiple_of(64);
        }
    }
    verified(&out);
}

/// Strict readers compare the counts of every shard.
#[test]
fn every_shard_can_be_written_again() {
    let whole = Whole::qwen35();
    let place = Place::new(&whole.target(), &whole.head());
    let report = place.graft(|f| f.rewrite_all = true).unwrap();
    assert!(report.unread.is_empty());
    let strict = OpenOptions { strict: true, ..OpenOptions::default() };
    let set = ModelFile::open(place.out(), strict).unwrap();
    assert!(set.notes().is_empty());
    loaded(&set);
    verified(&place.out());
    let linked = Place::new(&whole.target(), &whole.head());
    linked.graft(|_| {}).unwrap();
    assert!(ModelFile::open(linked.out(), strict).is_err());
}

#[test]
fn a_dry_run_writes_nothing() {
    let whole = Whole::qwen35();
    let place = Place::new(&whole.target(), &whole.head());
    let planned = place.graft(|f| f.dry_run = true).unwrap();
    assert!(planned.dry_run && !place.out().exists());
    let done = place.graft(|_| {}).unwrap();
    assert_eq!((planned.bytes_written, planned.keys, planned.dropped), (done.bytes_written, done.keys, done.dropped));
    let written = done.shards.iter().filter(|s| matches!(s.action, ShardAction::Rewritten | ShardAction::Head));
    assert_eq!(
        written.map(|s| fs::metadata(place.out().join(&s.name)).unwrap().len()).sum::<u64>(),
        done.bytes_written
    );
}

/// A record without the digests that a graft writes proves nothing: whatever is taken from it, and however many.
#[test]
fn a_record_without_its_digests_is_not_as_recorded() {
    let whole = Whole::qwen35();
    let place = Place::new(&whole.target(), &whole.head());
    place.graft(|_| {}).unwrap();
    verified(&place.out());
    let path = place.out().join("provenance.json");
    let record = Provenance::read(&path).unwrap();
    let head = record.tensor_origins.iter().position(|o| o.source == "mtp-head").unwrap();
    let spoil: [fn(&mut Provenance, usize); 4] = [
        |record, head| record.tensor_origins[head].tensor_tree_sha256 = None,
        |record, _| record.steps[0].outputs[0].sha256 = None,
        |record, _| record.steps[0].outputs.last_mut().unwrap().sha256 = None,
        |record, _| {
            record.tensor_origins.iter_mut().for_each(|o| o.tensor_tree_sha256 = None);
            record.steps.iter_mut().flat_map(|s| &mut s.outputs).for_each(|o| o.sha256 = None);
            record.sources.iter_mut().for_each(|s| s.tensor_tree_sha256 = None);
            record.invariants.target_tensor_tree_sha256 = None;
        },
    ];
    for spoil in spoil {
        let mut record = record.clone();
        spoil(&mut record, head);
        fs::write(&path, record.to_json()).unwrap();
        let report = verify(&place.out(), true).unwrap();
        assert!(report.faults.iter().any(|f| f.contains("the record has no digest of ")), "{:?}", report.faults);
        assert_eq!(code(&report), 3);
    }
}

/// Through the programs: the set is served, drafts, and counts as the file that was never taken apart.
#[test]
fn a_grafted_set_serves_as_the_original() {
    let parts =
        ["nomtp-Q8_0-00002-of-00003.gguf", "Q8_0.gguf"].map(|n| fixture(&format!("qwen35-tiny/qwen35-tiny-{n}")));
    let [Some(target), Some(original)] = parts else { return };
    let Some(head) = fixture("qwen35-tiny/mtp-qwen35-tiny-Q8_0.gguf") else { return };
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let words = [&target, &head, &out].map(|p| p.to_str().unwrap().to_owned());
    let run = Command::new(program("engine-pack"))
        .args(["graft", "--json", "--target", &words[0], "--head", &words[1], "--out", &words[2], "--link", "copy"])
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let body = json!({"prompt": "static int f(int x) {\n    return", "max_tokens": 48, "temperature": 0,
        "speculative": {"strategy": "mtp", "window": {"policy": "fixed", "initial": 3, "max": 3}}});
    let answer = |model: &str| {
        let flags = ["--model", model, "--mtp-force", "--ctx-size", "256"];
        let running = Running::start_with(&flags, std::process::Stdio::null());
        let answer = ask(running.address, "/v1/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let json = answer.json();
        let mtp = json["speculation"]["proposers"]["mtp"].clone();
        assert!(mtp["accepted_n"].as_u64() > Some(0), "{mtp}");
        (json["choices"][0]["text"].clone(), mtp["drafted_n"].clone(), mtp["accepted_n"].clone())
    };
    assert_eq!(answer(report["file"].as_str().unwrap()), answer(original.to_str().unwrap()));
}
