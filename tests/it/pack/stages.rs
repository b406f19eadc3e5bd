//! Files of single stages: their tensors, their keys, and what all stages are together.

use std::collections::BTreeMap;

use engine::exec::ExecOptions;
use engine::limits::Limits;
use engine::memory::Memory;
use engine::model::load::{LoadOptions, Planned, Repack};
use engine::model::stage::StageChoice;
use engine_bin::pack::materialize::{self, MaterializeFlags, STAGE_KEYS, StageOf};
use engine_io::{ModelFile, OpenOptions};
use engine_tests::fixtures::fixture;
use serde_json::json;

use super::files::Whole;
use super::{Packed, engine_pack};
use crate::forward::edit::Edit;
use crate::refusals::tiny;

fn stage(packed: &Packed, index: u32, count: u32, stage_split: Option<u32>) -> (materialize::Report, ModelFile) {
    let out = packed.folder.path().join(format!("stage-{index}-{count}-{stage_split:?}"));
    let package = packed.dir.clone();
    let flags =
        MaterializeFlags { package, stage: StageOf { index, count }, stage_split, out: out.clone(), json: true };
    let report = materialize::materialize(&flags).unwrap_or_else(|error| panic!("{error}"));
    (report, ModelFile::open(&out, OpenOptions::default()).unwrap())
}

#[test]
fn stages_hold_what_they_run_and_nothing_else() {
    for head in [true, false] {
        let edit = if head { tiny::model("qwen35") } else { tiny::trunk("qwen35") };
        let packed = Packed::of(&edit.bytes());
        let whole = ModelFile::open(&packed.model, OpenOptions::default()).unwrap();
        for (count, split) in [(1, None), (2, None), (2, Some(1)), (2, Some(3)), (4, None)] {
            let mut holders: BTreeMap<String, Vec<u32>> = BTreeMap::new();
            let mut next = 0;
            for index in 0..count {
                let (report, file) = stage(&packed, index, count, split);
                let last = index + 1 == count;
                assert_eq!(report.layer_start, next);
                next = report.layer_end;
                let end = report.layer_end.min(4);
                let keys = STAGE_KEYS.map(|key| file.meta().require_u32(key).unwrap());
                assert_eq!(keys, [index, count, report.layer_start, end]);
                if let Some(split) = split {
                    assert_eq!(keys[2..], if index == 0 { [0, split] } else { [split, 4] });
                }
                // All other keys are the model's, in their order.
                let own: Vec<_> = file.meta().iter().filter(|(key, _)| !STAGE_KEYS.contains(key)).collect();
                assert_eq!(own, whole.meta().iter().collect::<Vec<_>>());
                for t in file.tensors() {
                    let there = whole.tensor(&t.name).unwrap();
                    assert_eq!((t.ty, t.dims()), (there.ty, there.dims()));
                    assert_eq!(*file.data(t), *whole.data(there), "{}", t.name);
                    holders.entry(t.name.clone()).or_default().push(index);
                }
                assert_eq!((report.includes_mtp, report.includes_output), (head && last, last));
            }
            assert_eq!(next, if head { 5 } else { 4 });
            assert_eq!(holders.len(), whole.tensors().len());
            for (name, at) in holders {
                // The model is tied: its LM head is the table.
                let expected = match name.as_str() {
                    "token_embd.weight" if count > 1 => vec![0, count - 1],
                    _ => vec![at[0]],
                };
                assert_eq!(at, expected, "{name}");
                if tiny::is_head(&name) || name == "output_norm.weight" {
                    assert_eq!(at, [count - 1], "{name}");
                }
            }
        }
    }
}

/// The table is on the last stage for the MTP block's sake, and not without one.
#[test]
fn the_table_follows_the_head() {
    for (head, own_table, expected) in [(true, false, true), (false, false, false), (true, true, false)] {
        let mut edit = if head { tiny::model("qwen35") } else { tiny::trunk("qwen35") };
        edit.weights("output.weight", &[64, 512]);
        if own_table {
            edit.weights("blk.4.nextn.embed_tokens.weight", &[64, 512]);
        }
        let packed = Packed::of(&edit.bytes());
        let (report, file) = stage(&packed, 1, 2, None);
        assert_eq!((report.includes_embeddings, file.tensor("token_embd.weight").is_some()), (expected, expected));
        let stages = packed.preflight(2, false).stages;
        assert_eq!((stages[0].includes_embeddings, stages[1].includes_embeddings), (true, expected));
        assert_eq!(stages[1].embeddings_for.contains(&"mtp_block"), expected);
        // What preflight announces is what is written.
        assert_eq!((stages[1].tensor_count, stages[1].layer_start), (report.tensors, report.layer_start));
    }
}

/// What blocks keep of sequences is what the planner lists by room, to the byte.
#[test]
fn memory_by_block_adds_up_to_the_rooms() {
    let mut files = vec![tiny::model("qwen35").file(), tiny::trunk("qwen35moe").file()];
    files.extend(
        ["nemotronh-tiny/nemotronh-tiny-Q8_0.gguf", "llama-tiny/llama-tiny-Q8_0.gguf"]
            .iter()
            .filter_map(|path| Some(ModelFile::open(fixture(path)?, OpenOptions::default()).unwrap())),
    );
    assert!(files.len() > 2);
    for file in files {
        let Planned { config, plan, .. } = Planned::new(&file, None, LoadOptions::default()).unwrap();
        let (limits, options) = (Limits::new(3, 200), ExecOptions::default());
        let by_block = Memory::by_block(&plan, &config, &limits, &options);
        assert_eq!(by_block.len(), config.trunk + usize::from(plan.program.mtp.is_some()));
        let memory = Memory::of_plan(&plan, &[], Repack::Off, &limits, &options).unwrap();
        let rooms = [
            "KV cache",
            "KV cache of the MTP block",
            "hidden rows for the MTP block",
            "index keys",
            "recurrent states",
            "ingredient logs",
        ];
        let sum = |name: &&str| memory.parts.iter().filter(|p| p.name == *name).map(|p| p.bytes).sum::<usize>();
        let expected: usize = rooms.iter().map(sum).sum();
        let hidden = if plan.program.mtp.is_some() { 0 } else { sum(&rooms[2]) };
        assert_eq!(by_block.iter().sum::<usize>(), expected - hidden, "{}", file.name());
    }
}

#[test]
fn the_program_writes_a_stage_or_refuses() {
    let packed = Packed::tiny();
    let package = packed.dir.to_str().unwrap();
    let out = packed.folder.path().join("stage");
    let out = out.to_str().unwrap();
    let (code, text, error) = engine_pack(&["materialize", package, "--stage", "1/2", "--out", out, "--json"]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["stage_index"], json!(1));
    assert!(report["file"].as_str().unwrap().ends_with("stage-1-of-2.gguf"));
    let taken = engine_pack(&["materialize", package, "--stage", "0/2", "--out", out]);
    assert!(taken.0 == Some(3) && taken.2.contains("exists already"), "{taken:?}");
    for flags in [["--stage", "0/5"].as_slice(), &["--stage", "0/2", "--stage-split", "4"]] {
        let other = packed.folder.path().join("other");
        let line = [&["materialize", package, "--out", other.to_str().unwrap()], flags].concat();
        let (code, _, text) = engine_pack(&line);
        assert!(code == Some(3) && text.contains("the trunk has 4 blocks"), "{text}");
        assert_eq!(text.contains("--stage-split 4 is out of range"), flags.len() == 4, "{text}");
        assert!(!other.exists());
    }
}

/// Whoever is not told where to cut finds the same border: what preflight plans and a stage file holds is what a process
/// runs of the whole model.
#[test]
fn packages_and_processes_cut_at_one_border() {
    let mut models: Vec<(String, Edit)> = Whole::all().into_iter().map(|w| (w.arch.to_string(), w.edit)).collect();
    models.push(("a trunk".to_owned(), tiny::trunk("qwen35")));
    for (name, edit) in models {
        let packed = Packed::of(&edit.bytes());
        let planned = packed.preflight(2, false);
        let (cut, _) = stage(&packed, 0, 2, None);
        for path in [&packed.model, &packed.dir] {
            let file = ModelFile::open(path, OpenOptions::default()).unwrap();
            for index in [0, 1] {
                let choice = Some(StageChoice { index, count: 2, split: None });
                let options = LoadOptions { stage: choice, ..LoadOptions::default() };
                let stage = Planned::new(&file, None, options).unwrap().plan.stage;
                let border = if index == 0 { stage.end } else { stage.first }.0 as u32;
                assert_eq!([planned.stages[0].layer_end, cut.layer_end], [border; 2], "{name}, stage {index}");
            }
        }
    }
}

/// A stage is cut from bytes that are what the manifest says, or not at all: a damaged artifact is told with its digests.
#[test]
fn a_damaged_artifact_becomes_no_stage() {
    let whole = Packed::tiny();
    let artifacts = ["shared/metadata.gguf", "shared/embeddings.gguf", "shared/output.gguf", "layers/layer-00003.gguf"];
    for path in artifacts {
        let packed = whole.copy("package");
        let file = packed.dir.join(path);
        let mut bytes = std::fs::read(&file).unwrap();
        // Padding or weights: the last byte is in the file either way. Of the one without tensors, a letter of a value.
        let at = match path {
            "shared/metadata.gguf" => bytes.windows(4).position(|w| w == b"gpt2").unwrap(),
            _ => bytes.len() - 1,
        };
        bytes[at] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let out = packed.folder.path().join("stage");
        let flags = MaterializeFlags {
            package: packed.dir.clone(),
            stage: StageOf { index: 1, count: 2 },
            stage_split: None,
            out: out.clone(),
            json: true,
        };
        let error = materialize::materialize(&flags).map(|_| ()).expect_err(path);
        let text = error.to_string();
        assert!(text.contains("artifact_sha256_mismatch") && text.contains(path) && error.code() == 3, "{text}");
        let left: Vec<_> = std::fs::read_dir(packed.folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["package"], "{path}");
    }
    // What the stage does not need is not read.
    let packed = whole.copy("package");
    let file = packed.dir.join("layers/layer-00000.gguf");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    stage(&packed, 1, 2, None);
}

/// What a stage's file is, whether it would be served, and whether it is what its source gives.
#[test]
fn a_stage_is_told_and_compared() {
    let packed = Packed::tiny();
    let (_, last) = stage(&packed, 1, 2, Some(3));
    let (_, first) = stage(&packed, 0, 2, Some(3));
    let path = |m: &ModelFile| m.shards()[0].path.to_str().unwrap().to_owned();
    let (last, first) = (path(&last), path(&first));
    let words = [(&last, "1 of 2", "block 3 and the MTP block (blk.4)"), (&first, "0 of 2", "blocks 0 to 2")];
    for (file, stage, blocks) in words {
        let (code, text, _) = engine_pack(&["doctor", file]);
        assert!(code == Some(0) && text.contains("one stage of a split model"), "{text}");
        let serve = format!("engine-serve --stage {}", stage.replace(" of ", "/"));
        assert!([stage, blocks, &serve].iter().all(|word| text.contains(word)), "{text}");
        // Without a record there is nothing to compare with, and the way to compare is told.
        let (code, text, _) = engine_pack(&["verify", file]);
        assert!(
            code == Some(3) && text.contains("nothing was compared") && text.contains("--source PACKAGE"),
            "{text}"
        );
        assert!(text.contains(stage) && text.contains(blocks) && !text.contains("wrong:"), "{text}");
        for source in [&packed.dir, &packed.model] {
            let (code, text, error) = engine_pack(&["verify", file, "--source", source.to_str().unwrap()]);
            assert!(code == Some(0) && text.contains("as in the source"), "{text}{error}");
        }
        let stage = ["--stage", if *stage == *"0 of 2" { "0/2" } else { "1/2" }];
        let (code, text, error) = engine_pack(&[&["inspect", file], &stage[..]].concat());
        assert!(code == Some(0) && text.contains(blocks), "{text}{error}");
    }
    // Of another model, with a tensor less, of other metadata.
    let spoiled = |change: &dyn Fn(&mut Edit)| {
        let mut edit = tiny::model("qwen35");
        change(&mut edit);
        let source = packed.folder.path().join("other.gguf");
        std::fs::write(&source, edit.bytes()).unwrap();
        let (code, text, error) = engine_pack(&["verify", &last, "--source", source.to_str().unwrap()]);
        assert!(code == Some(3) && text.contains("not as in the source"), "{text}{error}");
        text
    };
    assert!(spoiled(&|e| e.tensor("blk.3.attn_q.weight").data[5] ^= 1).contains("bytes of tensor blk.3.attn_q.weight"));
    assert!(spoiled(&|e| e.weights("blk.3.extra.weight", &[64])).contains("tensor blk.3.extra.weight is missing"));
    let fewer = spoiled(&|e| e.tensors.retain(|t| t.name != "blk.3.attn_q.weight"));
    assert!(fewer.contains("tensor blk.3.attn_q.weight is none of this stage"), "{fewer}");
    assert!(spoiled(&|e| e.meta.set("general.name", engine_io::gguf::Value::str("x"))).contains("key general.name"));
    // What is no stage has no source.
    let model = packed.model.to_str().unwrap();
    let (code, _, error) = engine_pack(&["verify", model, "--source", model]);
    assert!(code == Some(3) && error.contains("neither a layer package nor the file of a stage"), "{error}");
    // Nor is a head compared with anything.
    let head = packed.folder.path().join("head.gguf");
    std::fs::write(&head, tiny::sidecar("qwen35").bytes()).unwrap();
    let (code, text, _) = engine_pack(&["verify", head.to_str().unwrap()]);
    assert!(code == Some(3) && text.contains("an MTP head alone") && text.contains("doctor MODEL --head"), "{text}");
}

/// The one way to say how many blocks there are: those of the trunk, and the MTP block apart.
#[test]
fn the_mtp_block_is_counted_apart() {
    let packed = Packed::tiny();
    let dir = packed.dir.to_str().unwrap();
    let (model, again) = (packed.model.to_str().unwrap(), packed.folder.path().join("again"));
    let (_, text, _) = engine_pack(&["package", "--model", model, "--out", again.to_str().unwrap()]);
    assert!(text.contains("4 blocks and 1 MTP block (blk.4)"), "{text}");
    let (_, text, _) = engine_pack(&["preflight", dir, "--stages", "2", "--stage-split", "2"]);
    assert!(text.contains("4 blocks and 1 MTP block (blk.4)"), "{text}");
    assert!(text.contains("blocks 0 to 1;") && text.contains("blocks 2 to 3 and the MTP block (blk.4);"), "{text}");
    let out = packed.folder.path().join("s");
    let line = ["materialize", dir, "--stage", "1/2", "--stage-split", "2", "--out", out.to_str().unwrap()];
    let (_, text, _) = engine_pack(&line);
    assert!(text.contains("blocks 2 to 3 and the MTP block (blk.4)"), "{text}");
}

/// What verify and preflight refuse a record for, materialize and doctor do too.
#[test]
fn a_record_that_contradicts_its_artifacts_is_no_secret() {
    let packed = Packed::tiny();
    let mut manifest = packed.manifest();
    let steps = manifest["provenance"]["steps"].as_array_mut().unwrap();
    let output = &mut steps.last_mut().unwrap()["outputs"][0];
    output["byte_size"] = (output["byte_size"].as_u64().unwrap() + 1).into();
    packed.set_manifest(&manifest);
    let (dir, out) = (packed.dir.to_str().unwrap(), packed.folder.path().join("stage"));
    let lines: [&[&str]; 3] =
        [&["materialize", dir, "--stage", "0/1", "--out", out.to_str().unwrap()], &["doctor", dir], &["verify", dir]];
    for line in lines {
        let (code, text, error) = engine_pack(line);
        assert_eq!(code, Some(3), "{line:?}: {text}{error}");
        assert!(format!("{text}{error}").contains("wrote another file, or none, under this path"), "{text}{error}");
    }
    assert!(!out.exists());
}
