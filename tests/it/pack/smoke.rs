//! The smoke test: what was grafted runs, and numbers that were damaged before are found.

use engine_bin::pack::smoke::{TOKENS, smoke};
use engine_bin::pack::verify::{VerifyFlags, code, text, verify};
use engine_io::TensorType;

use super::files::{Place, Whole};
use super::{Packed, engine_pack};
use crate::forward::edit::Edit;
use crate::forward::open;

#[test]
fn every_architecture_runs_with_drafts_and_without() {
    for whole in Whole::all() {
        let place = Place::new(&whole.target(), &whole.head());
        let report = place.graft(|f| f.smoke = true).unwrap_or_else(|error| panic!("{}: {error}", whole.arch));
        let found = report.smoke.clone().unwrap();
        let drafts = found.drafts.unwrap();
        assert_eq!((found.text.len(), found.faults.len()), (TOKENS, 0), "{}: {found:?}", whole.arch);
        assert!(drafts.drafted >= drafts.accepted && drafts.drafted > 0 && found.norms > 4, "{found:?}");
        assert!(engine_bin::pack::graft::text(&report).contains(&format!("ran {TOKENS} tokens")));
        // Said again of the set as it lies there, by the program.
        let out = place.out();
        let (status, json, error) = engine_pack(&["verify", out.to_str().unwrap(), "--smoke", "--json"]);
        assert_eq!(status, Some(0), "{error}");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["kind"], json["smoke"]["text"].as_array().unwrap().len()), (&"grafted".into(), TOKENS));
        assert_eq!(json["smoke"]["drafts"]["drafted"], drafts.drafted);
    }
}

/// With floats in place of a tensor of floats.
fn filled(mut edit: Edit, name: &str, value: impl Fn(usize) -> f32) -> Edit {
    let t = edit.tensor(name);
    assert_eq!(t.kind, TensorType::F32, "{name}");
    t.data = (0..t.data.len() / 4).flat_map(|i| value(i).to_le_bytes()).collect();
    edit
}

#[test]
fn damaged_numbers_are_found_before_the_set_gets_its_name() {
    let whole = Whole::qwen4exp();
    let (target, head) = (whole.target(), whole.head());
    let zeros = |edit: &Edit, name: &str| filled(edit.clone(), name, |_| 0.0);
    // Whose, and what must be said. Sums over products as large as these run over.
    let huge = |edit: &Edit, name: &str| filled(edit.clone(), name, |i| if i % 2 == 0 { 3e38 } else { 2e38 });
    let rows = [
        (target.clone(), zeros(&head, "blk.4.nextn.hnorm.weight"), "blk.4.nextn.hnorm.weight holds zeros alone"),
        (zeros(&target, "blk.1.hc_ffn_norm.weight"), head.clone(), "blk.1.hc_ffn_norm.weight holds zeros alone"),
        (
            target.clone(),
            filled(head.clone(), "blk.4.attn_q_norm.weight", |i| if i == 3 { f32::NAN } else { 1.0 }),
            "blk.4.attn_q_norm.weight holds NaN at 3",
        ),
        (target.clone(), huge(&head, "blk.4.nextn.hc_head_norm.weight"), "the MTP block's logit"),
        (huge(&target, "output_hc_norm.weight"), head.clone(), "the trunk's logit"),
    ];
    for (target, head, part) in rows {
        let place = Place::new(&target, &head);
        let error = place.graft(|f| f.smoke = true).err().unwrap_or_else(|| panic!("accepted, expected `{part}`"));
        assert!(error.to_string().contains(part), "`{error}` does not say `{part}`");
        assert!(error.code() == 3 && !place.out().exists(), "{error}");
        // No comparison of bytes finds it.
        place.graft(|_| {}).unwrap();
        let flags = |smoke| VerifyFlags { path: place.out(), source: None, smoke, json: true };
        assert_eq!(code(&verify(&flags(false)).unwrap()), 0);
        let report = verify(&flags(true)).unwrap();
        assert!(code(&report) == 3 && text(&report).contains(part), "{}", text(&report));
    }
}

/// A package is a container too; of a model without a block there is a text and nothing else.
#[test]
fn packages_and_models_without_a_block_run() {
    let packed = Packed::tiny();
    let whole = smoke(&open(&packed.dir)).unwrap();
    assert_eq!(whole, smoke(&open(&packed.model)).unwrap());
    let flags = VerifyFlags { path: packed.dir.clone(), source: None, smoke: true, json: true };
    assert_eq!(verify(&flags).unwrap().smoke, Some(whole.clone()));
    let trunk = smoke(&Whole::qwen35().target().file()).unwrap();
    assert_eq!((trunk.text, trunk.drafts), (whole.text, None));
    // What is wrong already is not run.
    let last = packed.dir.join("layers/layer-00001.gguf");
    let mut bytes = std::fs::read(&last).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&last, bytes).unwrap();
    let report = verify(&flags).unwrap();
    assert_eq!((code(&report), report.smoke), (3, None));
}
