//! `graft --dialect`: what is written for other engines, and what they are told of it.

use engine::model::config::Config;
use engine::model::load::{LoadOptions, Planned};
use engine_bin::pack::doctor::{DoctorFlags, doctor};
use engine_bin::pack::graft::DialectFlag;
use engine_io::TensorType;
use engine_io::gguf::Value;
use engine_io::provenance::{Provenance, RuleAction};

use super::engine_pack;
use super::files::{Place, Whole, flags, halved, write};
use super::graft::{digests, verified, words};
use crate::forward::edit::{Edit, renamed};
use crate::forward::open;

/// With the last mixer, where there is one, by names that begin so.
fn mixer(head: Edit, to: &str, n: usize) -> Edit {
    let own = format!("blk.{n}.nextn.hc_head_");
    if head.tensors.iter().any(|t| t.name.starts_with(&own)) { renamed(head, &own, to) } else { head }
}

/// A canonical head as an engine with both halves of the projection in the block has it.
fn block_halves(head: Edit, n: usize) -> Edit {
    let name = |part: &str| format!("blk.{n}.nextn.{part}");
    let head = mixer(head, &name("hc_"), n);
    halved(head, &name("fc_embd.weight"), &name("fc_hidden.weight"))
}

/// As one with them at top level.
fn top_halves(head: Edit, n: usize) -> Edit {
    let name = |part: &str| format!("blk.{n}.nextn.{part}");
    let head = mixer(head, "mtp.mixer_", n);
    let head = renamed(renamed(head, &name("enorm"), "mtp.pre_norm_embd"), &name("hnorm"), "mtp.pre_norm_hidden");
    halved(head, "mtp.fc_embd.weight", "mtp.fc_hidden.weight")
}

type Row = (DialectFlag, &'static str, fn(Edit, usize) -> Edit);

const ROWS: [Row; 2] = [(DialectFlag::F, "F (", block_halves), (DialectFlag::I, "I (", top_halves)];

/// With a projection of blocks of 32 numbers; nobody asks what they are.
fn quantised(mut edit: Edit, n: usize) -> Edit {
    let t = edit.tensor(&format!("blk.{n}.nextn.eh_proj.weight"));
    let bytes = t.dims.iter().product::<u64>() as usize / 32 * 34;
    (t.kind, t.data) = (TensorType::Q8_0, (0..bytes).map(|i| (i * 7 % 251) as u8).collect());
    edit
}

/// Every architecture, and every form that a head comes in: the tensors that such an engine looks for, byte for byte;
/// grafted again as a head it is the head that it was made of.
#[test]
fn names_of_other_engines_hold_the_same_head() {
    for (whole, quants) in Whole::all().into_iter().zip([true, false, true, false]) {
        let n = whole.trunk;
        let head = if quants { quantised(whole.head(), n) } else { whole.head() };
        for (flag, name, form) in ROWS {
            for (given, what) in [
                (head.clone(), "canonical"),
                (block_halves(head.clone(), n), "in the block"),
                (top_halves(head.clone(), n), "on top"),
            ] {
                let what = format!("{} {what} as {name}", whole.arch);
                let place = Place::new(&whole.target(), &given);
                let report = place.graft(|f| f.dialect = flag).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(report.names.starts_with(name) && !report.serves, "{what}");
                let mut expected = words(&whole.target());
                expected.extend(words(&form(head.clone(), n)));
                expected.sort();
                let set = open(&place.out());
                let mut found = digests(&set);
                found.sort();
                assert_eq!(found, expected, "{what}");
                assert_eq!(set.meta().get(&whole.key("block_count")), Some(&Value::U32(n as u32 + 1)), "{what}");
                verified(&place.out());
                // The record accounts for each tensor of the head, by its name there.
                let record = Provenance::read(&place.out().join("provenance.json")).unwrap();
                let rules = &record.steps[0].tensor_rules;
                assert_eq!(rules.iter().map(|r| r.count).sum::<u64>(), given.tensors.len() as u64, "{what}");
                assert!(rules.iter().all(|r| given.tensors.iter().any(|t| t.name == r.pattern)), "{what}: {rules:?}");
                let split = rules.iter().filter(|r| r.action == RuleAction::Convert).count();
                assert_eq!(split, usize::from(given.tensors.len() == head.tensors.len()), "{what}: {rules:?}");
                // Back again.
                let (target, out) = (place.target.clone(), place.dir.path().join("back"));
                engine_bin::pack::graft::graft(&flags(&target, &place.out(), &out)).unwrap();
                let back = open(&out);
                let mut found = digests(&back);
                found.retain(|t| t.0.starts_with(&format!("blk.{n}.")));
                found.sort();
                let mut expected = words(&head);
                expected.sort();
                assert_eq!(found, expected, "{what}");
                let planned = Planned::new(&back, None, LoadOptions::default()).unwrap();
                assert_eq!(planned.config, Config::read(&whole.edit.meta).unwrap(), "{what}");
            }
        }
    }
}

/// Who reads it is told, and that it is not run here.
#[test]
fn a_set_for_another_engine_says_so() {
    let whole = Whole::qwen4exp();
    for (flag, reader) in [("F", "FR-Spec"), ("I", "ik_llama.cpp before the rework of PR #2369")] {
        let place = Place::new(&whole.target(), &whole.head());
        let paths = [&place.target, &place.head, &place.out()].map(|p| p.to_str().unwrap().to_owned());
        let args = ["graft", "--target", &paths[0], "--head", &paths[1], "--out", &paths[2], "--dialect", flag];
        // It cannot be run, so that it is not asked to be.
        let (code, _, error) = engine_pack(&[&args[..], &["--smoke"]].concat());
        assert!(code == Some(2) && error.contains("--smoke") && !place.out().exists(), "{error}");
        let (code, text, error) = engine_pack(&args);
        assert_eq!(code, Some(0), "{error}");
        let halves = [
            "fc_embd.weight from the first half of every row of blk.4.nextn.eh_proj.weight",
            "fc_hidden.weight from the second half of every row of blk.4.nextn.eh_proj.weight",
        ];
        assert!(halves.iter().all(|part| text.contains(part)), "{text}");
        assert!(text.contains(&format!("for an engine that reads dialect {flag} (")) && !text.contains("serve it"));
        let report = doctor(&DoctorFlags { model: place.out(), head: None, require_mtp: false, json: true });
        let readers: Vec<&str> = report.engines.iter().filter(|e| e.refusal.is_none()).map(|e| e.engine).collect();
        assert_eq!(readers, [reader]);
        assert!(report.loads && report.mtp.contains("engine-pack graft joins both halves"), "{}", report.mtp);
    }
}

/// Names that an architecture or a whole model has not are refused by name, and nothing else is written in their place.
#[test]
fn names_that_no_such_model_has_are_refused() {
    let flags =
        [(DialectFlag::CPlus, "C+"), (DialectFlag::T, "T ("), (DialectFlag::TPrime, "T'"), (DialectFlag::H, "H (")];
    for whole in Whole::all() {
        let place = Place::new(&whole.target(), &whole.head());
        for (flag, name) in flags {
            let of_trunk = "output_hc_norm.weight, which is the trunk's in a whole model";
            let part = match (whole.arch.as_str(), flag) {
                (_, DialectFlag::H) => "hold other values".to_owned(),
                // The trunk's mixer is there in any case.
                ("qwen4exp", DialectFlag::CPlus) => continue,
                ("qwen4exp", DialectFlag::T) => of_trunk.to_owned(),
                ("qwen4exp", _) => "output_hc_down.weight, which is the trunk's in a whole model".to_owned(),
                (arch, _) => format!("found architecture {arch}, expected qwen4exp, which alone has such names"),
            };
            let error = place.graft(|f| f.dialect = flag).unwrap_err();
            let text = error.to_string();
            assert!(error.code() == 3 && text.contains(&part), "`{text}` does not say `{part}`");
            assert!(text.contains(&format!("--dialect {name}")) && text.contains("leave it out"), "{text}");
            assert!(!place.out().exists());
        }
    }
    let whole = Whole::qwen4exp();
    let place = Place::new(&whole.target(), &whole.head());
    let report = place.graft(|f| f.dialect = DialectFlag::CPlus).unwrap();
    assert!(report.serves);
    verified(&place.out());
}

/// An engine that reads these names and misses a tensor is not said to read the head.
#[test]
fn engines_that_would_miss_a_tensor_do_not_read_a_head() {
    let dir = tempfile::tempdir().unwrap();
    let readers = |edit: &Edit| -> Vec<String> {
        let model = write(dir.path(), "m.gguf", edit);
        let report = doctor(&DoctorFlags { model, head: None, require_mtp: false, json: true });
        assert!(!report.engines.is_empty(), "{:?}", report.warnings);
        for reads in &report.engines {
            let why = reads.refusal.as_deref().unwrap_or_default();
            assert_eq!(why.is_empty(), reads.refusal.is_none());
        }
        report.engines.iter().filter(|e| e.refusal.is_none()).map(|e| e.engine.to_owned()).collect()
    };
    for whole in Whole::all() {
        let (n, any) = (whole.trunk, "llama.cpp");
        let mut expected = vec![any];
        if whole.arch == "qwen4exp" {
            expected = vec!["llama.cpp with MTP for qwen4exp", "llama.cpp PR #27836"];
        }
        assert_eq!(readers(&whole.edit), expected);
        // Whatever is asked for and not there, within the model and alone.
        let config = Config::read(&whole.edit.meta).unwrap();
        let own = format!("blk.{n}.");
        let asked = engine::model::schema::schema(&config).into_iter();
        let required: Vec<String> = asked.filter(|t| t.name.starts_with(&own) && !t.optional).map(|t| t.name).collect();
        assert!(required.len() > 10, "{required:?}");
        for gone in &required {
            let without = whole.edit.clone().drop(|name| name == gone);
            assert_eq!(readers(&without), Vec::<String>::new(), "{gone}");
        }
        let alone = whole.head().drop(|name| name == required[0]);
        assert_eq!(readers(&alone), Vec::<String>::new());
        // Another size.
        let mut other = whole.edit.clone();
        let t = other.tensor(&format!("blk.{n}.nextn.enorm.weight"));
        (t.dims, t.data) = (vec![32], t.data[..128].to_vec());
        assert_eq!(readers(&other), Vec::<String>::new());
    }
    // One of them asks a head in a file of its own for the table as well.
    let whole = Whole::qwen4exp();
    assert_eq!(readers(&whole.head()), ["llama.cpp PR #27836"]);
    let table = crate::forward::edit::with(whole.head(), &whole.edit, "token_embd");
    assert_eq!(readers(&table), ["llama.cpp with MTP for qwen4exp", "llama.cpp PR #27836"]);
}
