//! `quantize-head`: the head alone gets smaller, every other byte stays, and drafts stay near.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use engine::api::{Command as Order, Strategy, WindowPolicy};
use engine::clock::Monotonic;
use engine::cost::Cost;
use engine::engine::{Settings, start};
use engine::exec::{CpuExecutor, ExecOptions};
use engine::limits::Limits;
use engine::model::Model;
use engine::model::load::LoadOptions;
use engine::model::tensors::quant_of;
use engine::schedule::Schedule;
use engine_bin::bench::single::Want;
use engine_bin::embed::run_all;
use engine_bin::open::{ModelSource, Opened};
use engine_bin::pack::convert_head::convert;
use engine_bin::pack::quantize_head::{QuantizeHeadFlags, Report, run};
use engine_io::gguf::Value;
use engine_io::{ModelFile, OpenOptions, TensorType};
use engine_tests::edits::{EditPrompt, prompts, submission};
use engine_tests::fixtures::fixture;

use super::checkpoints::cases;
use super::convert::drafts;
use crate::forward::edit::Edit;
use crate::forward::{exact, generate, open, single};
use crate::refusals::tiny;
use crate::serve::process::program;

fn flags(head: &Path, ty: TensorType, out: &Path) -> QuantizeHeadFlags {
    QuantizeHeadFlags { head: head.into(), r#type: ty, out: out.into(), allow_requantize: false, json: true }
}

fn quantised(head: &Path, ty: TensorType, out: &Path) -> Report {
    run(&flags(head, ty, out)).unwrap_or_else(|error| panic!("{error}"))
}

/// Dimensions that contradict the numbers are the input's fault: told of it, by its name, before anything is written.
#[test]
fn a_head_that_contradicts_itself_is_refused_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (_, head) = head_file(dir.path(), 0);
    let turned = |mut edit: Edit| {
        edit.tensor("blk.4.ffn_down.weight").dims.reverse();
        edit
    };
    let model = tiny::model("qwen35");
    let heads = head.clone().set("qwen35.attention.head_count", Value::U32(8));
    for (name, edit) in [("turned.gguf", turned(head)), ("heads.gguf", heads), ("model.gguf", turned(model))] {
        let path = dir.path().join(name);
        fs::write(&path, edit.bytes()).unwrap();
        let error = run(&flags(&path, TensorType::Q8_0, &dir.path().join("out.gguf"))).unwrap_err();
        let text = error.to_string();
        assert!(error.code() == 3 && text.contains(name) && !text.contains("partial"), "{text}");
        fs::remove_file(&path).unwrap();
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["head.gguf"]);
    }
}

/// The artifacts of a package are no shards: what is written of them is no package any more.
#[test]
fn packages_are_no_files_to_be_written_again() {
    let packed = super::Packed::tiny();
    let out = packed.folder.path().join("out");
    let error = run(&flags(&packed.dir, TensorType::Q8_0, &out)).unwrap_err();
    assert!(error.code() == 3 && error.to_string().contains("is a layer package"), "{error}");
    let head = packed.folder.path().join("head.gguf");
    fs::write(&head, tiny::sidecar("qwen35").bytes()).unwrap();
    let error = engine_bin::pack::graft::graft(&super::files::flags(&packed.dir, &head, &out)).unwrap_err();
    assert!(error.code() == 3 && error.to_string().contains("is a layer package"), "{error}");
}

/// A head of some architecture as a file of its own.
fn head_file(dir: &Path, case: usize) -> (PathBuf, Edit) {
    let case = cases().swap_remove(case);
    let own = format!("blk.{}.", case.block);
    let head = case.merged.drop(|n| !n.starts_with(&own));
    let path = dir.join("head.gguf");
    fs::write(&path, head.bytes()).unwrap();
    (path, head)
}

#[test]
fn matrices_get_the_type_and_what_decides_much_stays() {
    let dir = tempfile::tempdir().unwrap();
    let types = [TensorType::Q8_0, TensorType::Q4_0, TensorType::Q5_1, TensorType::Q4K, TensorType::Bf16];
    for case in 0..cases().len() {
        let (path, edit) = head_file(dir.path(), case);
        let before = open(&path);
        for ty in types {
            let out = dir.path().join("out.gguf");
            let report = quantised(&path, ty, &out);
            let after = open(&out);
            let mut changed = 0;
            for (t, said) in edit.tensors.iter().zip(&report.tensors) {
                let found = after.require(&t.name).unwrap();
                let part = t.name.split_once('.').and_then(|(_, rest)| rest.split_once('.')).unwrap().1;
                let exact = t.dims.len() == 1 || part.ends_with("norm.weight") || part == "ffn_gate_inp.weight";
                // Rows of 64 take no block of 256; a stream's mixer keeps eight bits.
                let expected = match ty {
                    _ if exact || t.dims[0] % 32 != 0 => TensorType::F32,
                    TensorType::Bf16 => ty,
                    _ if part.contains("hc_") => TensorType::Q8_0,
                    TensorType::Q4K if t.dims[0] % 256 != 0 => TensorType::Q5_0,
                    ty => ty,
                };
                assert_eq!((found.ty, said.to), (expected, expected.name()), "{} as {ty}", t.name);
                assert_eq!((&said.name, said.bytes), (&t.name, found.bytes));
                assert_eq!(said.reason.is_some(), expected != ty, "{}: {:?}", t.name, said.reason);
                let values = generate::values(t);
                let mut bytes = vec![0; found.bytes as usize];
                quant_of(expected).unwrap().quantize(&values, &mut bytes);
                assert!(*after.data(found) == *bytes, "{} as {ty}", t.name);
                let limit = match expected {
                    TensorType::F32 => 0.0,
                    TensorType::Bf16 => 1e-5,
                    TensorType::Q8_0 => 1e-4,
                    _ => 2e-2,
                };
                assert!(said.nmse <= limit && (said.nmse > 0.0) == (limit > 0.0), "{}: {}", t.name, said.nmse);
                changed += usize::from(expected != TensorType::F32);
            }
            assert!(changed >= 8 && report.bytes < report.bytes_before, "{changed} tensors");
            assert_eq!(before.meta().get("general.file_type"), None);
            let file_type = after.meta().get_u32("general.file_type").unwrap().unwrap();
            let quantisation = after.meta().get_u32("general.quantization_version").unwrap();
            assert_eq!(quantisation, (file_type != 32).then_some(2));
            fs::remove_file(&out).unwrap();
        }
    }
}

/// Every type that is offered makes a head that loads and drafts.
#[test]
fn every_type_drafts() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = head_file(dir.path(), 1);
    let trunk = tiny::trunk("qwen35moe").file();
    let plain = drafts(&trunk, Some(&open(&path)));
    for ty in engine::model::requantize::types() {
        let out = dir.path().join(format!("{ty}.gguf"));
        quantised(&path, ty, &out);
        let found = drafts(&trunk, Some(&open(&out)));
        assert_eq!(found.0.len(), plain.0.len(), "{ty}");
        assert_eq!(found == plain, ty == TensorType::F32, "{ty}: other weights draft with other logits");
    }
}

#[test]
fn what_is_quantised_already_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = head_file(dir.path(), 1);
    let at = |name: &str| dir.path().join(name);
    quantised(&path, TensorType::Q4_0, &at("q4.gguf"));
    let refused = |flags: &QuantizeHeadFlags, parts: &[&str]| {
        let error = run(flags).unwrap_err();
        let text = error.to_string();
        parts.iter().for_each(|part| assert!(text.contains(part), "`{text}` does not say `{part}`"));
        assert_eq!(error.code(), 3, "{text}");
        assert!(!flags.out.exists());
    };
    refused(&flags(&at("q4.gguf"), TensorType::Q8_0, &at("x.gguf")), &["q4.gguf", "Q4_0", "--allow-requantize"]);
    // The same type again is a copy; more bits than there are, too.
    let copy = quantised(&at("q4.gguf"), TensorType::Q4_0, &at("copy.gguf"));
    assert!(copy.tensors.iter().all(|t| t.from == t.to && t.reason.is_some()));
    let again =
        |ty, out: &str| run(&QuantizeHeadFlags { allow_requantize: true, ..flags(&at("q4.gguf"), ty, &at(out)) });
    assert!(again(TensorType::Q8_0, "up.gguf").unwrap().tensors.iter().all(|t| t.from == t.to));
    quantised(&path, TensorType::Q8_0, &at("q8.gguf"));
    let down =
        QuantizeHeadFlags { allow_requantize: true, ..flags(&at("q8.gguf"), TensorType::Q4_0, &at("down.gguf")) };
    assert!(run(&down).unwrap().tensors.iter().any(|t| (t.from, t.to) == ("Q8_0", "Q4_0")));
    // No head at all, and values that are none.
    fs::write(at("trunk.gguf"), tiny::trunk("qwen35").bytes()).unwrap();
    refused(&flags(&at("trunk.gguf"), TensorType::Q8_0, &at("x.gguf")), &["trunk.gguf", "no blk.4.* tensors"]);
    let mut bad = tiny::sidecar("qwen35");
    bad.tensor("blk.4.attn_q.weight").data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(at("bad.gguf"), bad.bytes()).unwrap();
    let not_finite = ["bad.gguf", "blk.4.attn_q.weight holds NaN", "finite"];
    refused(&flags(&at("bad.gguf"), TensorType::Q8_0, &at("x.gguf")), &not_finite);
    let mut large = tiny::sidecar("qwen35");
    large.tensor("blk.4.attn_q.weight").data[..4].copy_from_slice(&1e30f32.to_le_bytes());
    fs::write(at("large.gguf"), large.bytes()).unwrap();
    refused(&flags(&at("large.gguf"), TensorType::F16, &at("x.gguf")), &["blk.4.attn_q.weight", "range of F16"]);
}

/// A model in three files, the head alone in the last: as a graft leaves it.
fn grafted(dir: &Path, arch: &str) -> PathBuf {
    let model = tiny::model(arch);
    let split = model.tensors.iter().position(|t| tiny::is_head(&t.name)).unwrap();
    let ranges = [0..8, 8..split, split..model.tensors.len()];
    for (i, range) in ranges.into_iter().enumerate() {
        let mut shard = Edit { meta: model.meta.clone(), tensors: model.tensors[range].to_vec() };
        if i > 0 {
            shard.meta = engine_io::gguf::Meta::new("shard");
        }
        let shard = shard.set("split.no", Value::U16(i as u16)).set("split.count", Value::U16(3));
        let shard = shard.set("split.tensors.count", Value::I32(model.tensors.len() as i32));
        fs::write(dir.join(format!("m-{:05}-of-00003.gguf", i + 1)), shard.bytes()).unwrap();
    }
    dir.join("m-00001-of-00003.gguf")
}

#[test]
fn of_a_grafted_set_the_last_file_alone_is_written() {
    for arch in tiny::ARCHS {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("set");
        fs::create_dir(&source).unwrap();
        let first = grafted(&source, arch);
        let out = dir.path().join("small");
        let report = quantised(&source, TensorType::Q8_0, &out);
        assert_eq!(report.linked, ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf"]);
        let inode = |dir: &Path, n: usize| fs::metadata(dir.join(format!("m-0000{n}-of-00003.gguf"))).unwrap().ino();
        assert_eq!([1, 2, 3].map(|n| inode(&source, n) == inode(&out, n)), [true, true, false]);
        assert_eq!(fs::read_dir(&out).unwrap().count(), 3);
        let (before, after) = (open(&first), open(&out));
        for (a, b) in before.tensors().iter().zip(after.tensors()) {
            assert_eq!(a.name, b.name);
            assert!(tiny::is_head(&a.name) || (a.ty == b.ty && *before.data(a) == *after.data(b)), "{}", a.name);
        }
        // The same head as when it is quantised in a file of its own.
        let alone = dir.path().join("alone.gguf");
        fs::write(&alone, tiny::sidecar(arch).bytes()).unwrap();
        quantised(&alone, TensorType::Q8_0, &dir.path().join("q8.gguf"));
        let trunk = tiny::trunk(arch).file();
        assert_eq!(drafts(&after, None), drafts(&trunk, Some(&open(&dir.path().join("q8.gguf")))));
        // One file with everything in it: the rest is copied, and compared.
        let whole = dir.path().join("whole.gguf");
        fs::write(&whole, tiny::model(arch).bytes()).unwrap();
        let report = quantised(&whole, TensorType::Q8_0, &dir.path().join("one.gguf"));
        assert_eq!((report.copied, report.linked.len()), (report.others, 0));
        assert_eq!(drafts(&open(&dir.path().join("one.gguf")), None), drafts(&after, None));
    }
}

#[test]
fn the_program_quantises() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = head_file(dir.path(), 6);
    let run = |ty: &str, out: &str| {
        let mut command = Command::new(program("engine-pack"));
        command.arg("quantize-head").arg("--head").arg(&path).args(["--type", ty]);
        command.arg("--out").arg(dir.path().join(out)).output().unwrap()
    };
    let done = run("q4_k", "a.gguf");
    let text = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    for part in ["F32 to Q5_0", "no multiple of 256", "takes 8 bits", "a router", "the head took"] {
        assert!(text.contains(part), "`{text}` does not say `{part}`");
    }
    let refused = run("IQ1_S", "b.gguf");
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("expected one of F32, F16, Q4_0"));
}

/// The mean square of what differs between logits, by that of the first.
fn nmse(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let error: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    error / a.iter().map(|a| f64::from(*a).powi(2)).sum::<f64>()
}

/// MTP logits of a trained model on a text of its own kind.
fn mtp_logits(trunk: &ModelFile, head: &ModelFile, tokens: &[u32]) -> Vec<f32> {
    let model = Model::load(trunk, Some(head), LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let mut single = single(&Arc::new(model), tokens.len() + 8, exact());
    single.trunk(tokens, tokens.len(), Want::Choice);
    single.mtp(tokens, 0, true).mtp_logits.clone()
}

/// Eight bits draft as sixteen do, within 1 % of the logits' power; four are further off and still near.
#[test]
fn a_trained_head_survives_eight_bits() {
    let (Some(hf), Some(target)) =
        (fixture("qwen35-tiny/hf/model.safetensors"), fixture("qwen35-tiny/qwen35-tiny-F32.gguf"))
    else {
        return;
    };
    let Some(reference) = engine_tests::fixtures::Reference::open("qwen35-tiny/ref-torch-f32.safetensors") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (target, bf16) = (open(&target), dir.path().join("bf16.gguf"));
    convert(hf.parent().unwrap(), &target, &bf16, true).unwrap_or_else(|error| panic!("{error}"));
    let tokens = reference.ids("s3.tokens");
    let exact = mtp_logits(&target, &open(&bf16), &tokens);
    let mut last = 0.0;
    for (ty, limit) in [(TensorType::Q8_0, 0.01), (TensorType::Q5_0, 0.02), (TensorType::Q4_0, 0.05)] {
        let out = dir.path().join(format!("{ty}.gguf"));
        quantised(&bf16, ty, &out);
        let found = nmse(&exact, &mtp_logits(&target, &open(&out), &tokens));
        println!("{ty}: NMSE {found:.2e} of the logits");
        assert!(found > last && found < limit, "{ty}: NMSE {found} after {last}");
        last = found;
    }
}

/// Drafts of the built-in model's head that are accepted on the edit prompts, by the head's type.
#[test]
fn acceptance_of_the_built_in_models_head_by_type() {
    let Some(hf) = fixture("../model/hf/mtp.safetensors") else { return };
    let dir = tempfile::tempdir().unwrap();
    let target = ModelSource::BuiltIn.open(OpenOptions::default()).unwrap();
    let f32_head = dir.path().join("f32.gguf");
    convert(&hf, &target, &f32_head, true).unwrap_or_else(|error| panic!("{error}"));
    let (mut shares, mut sixteen) = (Vec::new(), Vec::new());
    for ty in [TensorType::Bf16, TensorType::Q8_0, TensorType::Q4K] {
        let path = dir.path().join(format!("{ty}.gguf"));
        quantised(&f32_head, ty, &path);
        let mut opened = Opened::new(&ModelSource::BuiltIn, OpenOptions::default(), LoadOptions::default()).unwrap();
        opened.model = Arc::new(Model::load(&opened.file, Some(&open(&path)), LoadOptions::default()).unwrap());
        let limits = Limits::new(8, 1024);
        let executor = CpuExecutor::new(Arc::clone(&opened.model), limits.clone(), ExecOptions::default());
        let settings = Settings { schedule: Schedule::Inline, cost: Some(Cost::default()) };
        let clock = Box::new(Monotonic::default());
        let handle = start(Box::new(executor), &limits, Arc::clone(&opened.pieces), settings, clock).unwrap();
        let prompts = prompts(&opened);
        let ask = |(i, prompt): (usize, &EditPrompt)| {
            submission(i as u64, &prompt.tokens, 400, Strategy::Mtp, WindowPolicy::Fixed)
        };
        let outcomes = run_all(&handle, prompts.iter().enumerate().map(ask).collect()).unwrap();
        handle.commands.send(Order::Stop).unwrap();
        handle.join().unwrap();
        let sum = |of: fn(&engine_bin::embed::Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
        let (drafted, accepted) = (sum(|o| o.report.mtp.drafted), sum(|o| o.report.mtp.accepted));
        let ids: Vec<u32> = prompts[0].tokens.iter().map(|t| t.0).collect();
        let logits = mtp_logits(&target, &open(&path), &ids);
        if sixteen.is_empty() {
            sixteen.clone_from(&logits);
        }
        let far = nmse(&sixteen, &logits);
        println!("{ty}: {accepted} of {drafted} drafts accepted, NMSE {far:.2e} of the logits");
        assert!(far <= if ty == TensorType::Q4K { 0.05 } else { 0.01 }, "{ty}: {far}");
        shares.push(accepted as f64 / drafted as f64);
    }
    // What the head was trained for; eight bits cost next to nothing, four little.
    assert!(shares[0] > 0.8 && (shares[0] - shares[1]).abs() < 0.02 && shares[0] - shares[2] < 0.1, "{shares:?}");
}
