//! What a stage asks of a file: its own blocks and what stands beside them, and nothing of the other's.

use std::collections::HashSet;
use std::sync::Arc;

use engine::exec::{CpuExecutor, ExecOptions};
use engine::limits::Limits;
use engine::memory::Memory;
use engine::model::load::{LoadOptions, Planned, Repack};
use engine::model::stage::{STAGE_KEYS, StageChoice};
use engine::model::{Model, MtpStatus};
use engine_io::gguf::Value;
use engine_tests::drive::{Cell, Subject, run, run_on};
use engine_tests::fixtures::fixture;

use super::range::Halves;
use crate::forward::edit::Edit;

const MODELS: [(&str, &str); 6] = [
    ("llama-tiny", "llama-tiny/llama-tiny-Q8_0.gguf"),
    ("qwen35-tiny", "qwen35-tiny/qwen35-tiny-Q8_0.gguf"),
    ("qwen35-tiny-untied", "qwen35-tiny-untied/qwen35-tiny-untied-Q8_0.gguf"),
    ("qwen35moe-tiny", "qwen35moe-tiny/qwen35moe-tiny-Q8_0.gguf"),
    ("nemotronh-tiny", "nemotronh-tiny/nemotronh-tiny-Q8_0.gguf"),
    ("qwen4exp-tiny", "qwen4exp-tiny/qwen4exp-tiny-BF16.gguf"),
];

fn options(index: u32, split: Option<u32>) -> LoadOptions {
    LoadOptions { stage: Some(StageChoice { index, count: 2, split }), strict: true, ..LoadOptions::default() }
}

/// Names of the tensors that a stage asks for and finds.
fn wanted(edit: &Edit, index: u32, split: u32) -> HashSet<String> {
    let plan = Planned::new(&edit.file(), None, options(index, Some(split))).unwrap().plan;
    assert!(plan.unexpected.is_empty(), "tensors of the other stage are known: {:?}", plan.unexpected);
    plan.matrices.into_iter().map(|m| m.name).chain(plan.vectors.into_iter().map(|v| v.name)).collect()
}

/// A file of one stage alone, which says so.
fn stage_file(edit: &Edit, index: u32, split: u32) -> Edit {
    let names = wanted(edit, index, split);
    let trunk = Planned::new(&edit.file(), None, LoadOptions::default()).unwrap().config.trunk as u32;
    let (first, end) = if index == 0 { (0, split) } else { (split, trunk) };
    let mut out = edit.clone().drop(|name| !names.contains(name));
    for (key, value) in STAGE_KEYS.into_iter().zip([index, 2, first, end]) {
        out = out.set(key, Value::U32(value));
    }
    out
}

#[test]
fn files_of_single_stages_run_as_the_whole_does() {
    for (name, path) in MODELS {
        let Some(edit) = Edit::of(path) else { continue };
        let subject = Subject::file(name, fixture(path).expect("it was there"), 12);
        let strategy = *subject.strategies().last().expect("a strategy");
        let cell = Cell { strategy, window: 3, parallel: 2, ..Cell::reference(0.8) };
        let want: Vec<_> = run(&subject, &cell).into_iter().map(|o| o.tokens).collect();
        let split = subject.trunk() / 2;
        let machine = |index: u32| {
            let file = stage_file(&edit, index, split).file();
            let model = Model::load(&file, None, options(index, None)).unwrap_or_else(|e| panic!("{name}: {e}"));
            CpuExecutor::new(Arc::new(model), cell.limits(), ExecOptions::default())
        };
        let halves = Halves::new(machine(0), machine(1), &cell.limits());
        let got: Vec<_> = run_on(&subject, &cell, Box::new(halves)).into_iter().map(|o| o.tokens).collect();
        assert_eq!(got, want, "{name}: two files");
        // The token table is at both only where the last stage reads it: as a tied head, or for drafts.
        let (first, last) = (wanted(&edit, 0, split), wanted(&edit, 1, split));
        let both: Vec<&String> = first.intersection(&last).filter(|name| *name != "rope_freqs.weight").collect();
        let reads = strategy.uses_mtp() || !edit.tensors.iter().any(|t| t.name == "output.weight");
        assert_eq!(both, if reads { vec!["token_embd.weight"] } else { vec![] }, "{name}");
    }
}

#[test]
fn what_is_wrong_elsewhere_is_no_error_here() {
    let Some(edit) = Edit::of("qwen35-tiny-untied/qwen35-tiny-untied-Q8_0.gguf") else { return };
    let load =
        |edit: &Edit, index| Model::load(&edit.file(), None, LoadOptions { strict: false, ..options(index, Some(1)) });
    for (block, owner) in [(0, 0), (1, 1)] {
        let name = format!("blk.{block}.post_attention_norm.weight");
        let missing = edit.clone().drop(|n| n == name);
        let mut misshapen = edit.clone();
        let tensor = misshapen.tensor(&name);
        tensor.dims = vec![tensor.dims[0] / 2, 2];
        for changed in [&missing, &misshapen] {
            let error = load(changed, owner).err().unwrap_or_else(|| panic!("{name} is wrong and stage {owner} loads"));
            assert!(error.to_string().contains(&name), "{error}");
            let other = load(changed, 1 - owner);
            assert!(other.is_ok(), "{name} is the other stage's: {}", other.err().unwrap());
        }
    }
    // The last stage needs neither the first block nor, without an MTP block, the token table; the first no head.
    let bare = edit.clone().drop(|n| n == "output.weight" || n == "output_norm.weight" || n.starts_with("blk.2."));
    assert!(load(&bare, 0).is_ok());
    assert!(load(&bare, 1).is_err());
    let headless = edit.clone().drop(|n| n.starts_with("blk.2.")).drop(|n| n == "token_embd.weight");
    let model = load(&headless, 1).expect("a last stage with a head of its own and no MTP block");
    assert!(matches!(model.mtp, MtpStatus::Unavailable(_)));
    assert!(load(&headless, 0).is_err());
}

#[test]
fn a_stage_file_is_taken_for_what_it_says() {
    let Some(edit) = Edit::of("llama-tiny/llama-tiny-Q8_0.gguf") else { return };
    let file = stage_file(&edit, 1, 2);
    let says = |edit: &Edit, options: LoadOptions, parts: &[&str]| {
        let error = Model::load(&edit.file(), None, options).err().unwrap_or_else(|| panic!("accepted, not {parts:?}"));
        for part in parts {
            assert!(error.to_string().contains(part), "{error}");
        }
    };
    assert!(Model::load(&file.file(), None, options(1, Some(2))).is_ok());
    says(&file, LoadOptions::default(), &["stage 1 of 2 alone", "--stage 1/2"]);
    says(&file, options(0, None), &["stage 1 of 2", "--stage 0/2"]);
    says(&file, options(1, Some(1)), &["cut at block 2", "--stage-split 1"]);
    says(&file.clone().set(STAGE_KEYS[3], Value::U32(2)), options(1, None), &["reaches to the end of the trunk"]);
    says(&file.clone().unset(STAGE_KEYS[2]), options(1, None), &[STAGE_KEYS[2]]);
    says(&file.clone().set(STAGE_KEYS[2], Value::str("two")), options(1, None), &[STAGE_KEYS[2]]);
    for split in [0, 3, u32::MAX] {
        says(&edit, options(0, Some(split)), &["expected 1 to 2 of 3 blocks"]);
    }
    let three = StageChoice { index: 1, count: 3, split: None };
    says(&edit, LoadOptions { stage: Some(three), ..LoadOptions::default() }, &["stage 1 of 3"]);
    // Without a word on it both sides find the same border.
    let border = |index| Planned::new(&edit.file(), None, options(index, None)).unwrap().plan.stage;
    assert_eq!(border(0).end, border(1).first);
}

#[test]
fn the_memory_of_stages_is_planned_as_it_is_taken() {
    let limits = Limits { checkpoints: 2, ..Limits::new(2, 300) };
    let exec = ExecOptions::default();
    for (name, path) in MODELS {
        let Some(path) = fixture(path) else { continue };
        let file = crate::forward::open(&path);
        let planned = |stage| Planned::new(&file, None, LoadOptions { stage, ..LoadOptions::default() }).unwrap();
        let memory = |planned: &Planned| Memory::of_plan(&planned.plan, &[], Repack::Auto, &limits, &exec).unwrap();
        let bytes = |memory: &Memory, part: &str| memory.parts.iter().find(|p| p.name == part).map_or(0, |p| p.bytes);
        let whole = memory(&planned(None));
        let stages = [0, 1].map(|index| planned(options(index, Some(1)).stage));
        let parts = [0, 1].map(|i| memory(&stages[i]));
        for part in ["KV cache", "KV cache of the MTP block", "index keys", "recurrent states", "ingredient logs"] {
            let sum = bytes(&parts[0], part) + bytes(&parts[1], part);
            assert_eq!(sum, bytes(&whole, part), "{name}: {part}");
        }
        assert_eq!(bytes(&parts[0], "logits"), 0, "{name}: the first stage has no head");
        assert_eq!(bytes(&parts[0], "KV cache of the MTP block"), 0, "{name}: the block is on the last stage");
        assert_eq!(bytes(&parts[1], "token histories"), 0, "{name}: the last stage has no requests");
        for (planned, parts) in stages.into_iter().zip(&parts) {
            let model = planned.load(&file, None, Repack::Auto).unwrap();
            for part in &Memory::of_executor(&model, &limits, &exec).unwrap().parts {
                assert_eq!(part.bytes, bytes(parts, part.name), "{name}, {}: {}", model.stage, part.name);
            }
        }
    }
}
