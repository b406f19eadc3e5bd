//! `convert-head`: heads of checkpoints come back as the tensors they were made from, and draft as they did.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use engine::ids::TokenId;
use engine::model::load::LoadOptions;
use engine::model::{Config, Model, MtpStatus};
use engine_bin::bench::single::Want;
use engine_bin::pack::PackError;
use engine_bin::pack::convert_head::{Report, convert, text};
use engine_bin::pack::graft::{GraftFlags, Moved, graft};
use engine_bin::pack::verify_set::verify;
use engine_io::digest::Sha256;
use engine_io::gguf::write::Layout;
use engine_io::gguf::{Meta, Value};
use engine_io::provenance::{FILE_NAME, FileEntry, Provenance, Role};
use engine_io::{ModelFile, TensorType};
use engine_tests::fixtures::fixture;

use super::checkpoints::{Case, Head, Source, cases, file, write};
use super::files::flags;
use crate::forward::{exact, open, single};
use crate::refusals::tiny;
use crate::serve::process::program;

/// What a model drafts after a few tokens, with the block's own logits.
pub fn drafts(trunk: &ModelFile, head: Option<&ModelFile>) -> (Vec<f32>, Vec<TokenId>) {
    let model = Model::load(trunk, head, LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let from = if head.is_some() { MtpStatus::Sidecar } else { MtpStatus::Own };
    assert_eq!(model.mtp, from);
    let mut single = single(&Arc::new(model), 64, exact());
    let tokens: Vec<u32> = (0..20).map(|i| (i * 37 + 5) % 90).collect();
    single.trunk(&tokens, tokens.len(), Want::Choice);
    let result = single.mtp(&[tokens.as_slice(), &[9]].concat(), 4, true);
    (result.mtp_logits.clone(), result.draft.clone())
}

/// Converts a head from a directory of one file.
fn converted(dir: &Path, case: &Case, head: &Head) -> Result<(Report, ModelFile), PackError> {
    let target = file(&dir.join("trunk.gguf"), &case.trunk);
    let source = dir.join("hf");
    fs::create_dir_all(&source).unwrap();
    write(&source.join("model.safetensors"), head);
    let out = dir.join("head.gguf");
    let _ = fs::remove_file(&out);
    let report = convert(&source, &target, &out, true)?;
    Ok((report, open(&out)))
}

#[test]
fn heads_of_checkpoints_come_back() {
    for case in cases() {
        let dir = tempfile::tempdir().unwrap();
        let (report, head) = converted(dir.path(), &case, &case.head).unwrap_or_else(|error| panic!("{error}"));
        let what = case.name;
        assert_eq!((report.block, report.taken, report.ignored), (case.block, case.head.len(), 1), "{what}");
        let used: usize = report.dropped.len();
        assert_eq!(used, usize::from(what == "qwen4exp"), "{what}: {:?}", report.dropped);
        let own = format!("blk.{}.", case.block);
        let expected: Vec<_> = case.merged.tensors.iter().filter(|t| t.name.starts_with(&own)).collect();
        assert_eq!(head.tensors().len(), expected.len(), "{what}");
        for t in expected {
            let found = head.tensor(&t.name).unwrap_or_else(|| panic!("{what}: {}", t.name));
            assert_eq!((found.dims(), found.ty), (t.dims.as_slice(), t.kind), "{what}: {}", t.name);
            assert!(*head.data(found) == *t.data, "{what}: values of {}", t.name);
        }
        // The hyperparameters of the merged model, but for the name.
        let named = |meta: &Meta| Config { name: String::new(), ..Config::read(meta).unwrap() };
        assert_eq!(named(head.meta()), named(&case.merged.meta), "{what}");
        let trunk = open(&dir.path().join("trunk.gguf"));
        assert_eq!(drafts(&trunk, Some(&head)), drafts(&case.merged.file(), None), "{what}");
    }
}

/// `graft` takes a checkpoint as it takes its head, and the record names the checkpoint's files.
#[test]
fn a_checkpoint_is_grafted_in_one_go() {
    for case in cases() {
        let dir = tempfile::tempdir().unwrap();
        let (_, head) = converted(dir.path(), &case, &case.head).unwrap();
        let out = dir.path().join("set");
        graft(&flags(&dir.path().join("trunk.gguf"), &dir.path().join("hf"), &out))
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!(verify(&out, true).unwrap().faults, Vec::<String>::new(), "{}", case.name);
        let set = open(&out);
        for t in head.tensors() {
            let found = set.tensor(&t.name).unwrap_or_else(|| panic!("{}: {}", case.name, t.name));
            assert!(*set.data(found) == *head.data(t), "{}: values of {}", case.name, t.name);
        }
        let record = Provenance::read(&out.join(FILE_NAME)).unwrap();
        let steps: Vec<&str> = record.steps.iter().map(|step| step.id.as_str()).collect();
        assert_eq!(steps, ["convert-head", "graft"]);
        let source = record.sources.iter().find(|s| s.role == Role::MtpHead).unwrap();
        let (sha256, byte_size) = Sha256::of_file(&dir.path().join("hf/model.safetensors"), |_| {}).unwrap();
        assert_eq!(source.files, [FileEntry { path: "model.safetensors".into(), byte_size, sha256: Some(sha256) }]);
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.as_encoded_bytes().starts_with(b".")), "{left:?}");
    }
}

/// A dry run says what a run does and writes nothing, not even the head that it would convert.
#[test]
fn a_dry_run_of_a_checkpoint_writes_nothing() {
    let names = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    for case in cases() {
        let dir = tempfile::tempdir().unwrap();
        converted(dir.path(), &case, &case.head).unwrap();
        let (target, head) = (dir.path().join("trunk.gguf"), dir.path().join("hf"));
        let before = (names(dir.path()), fs::metadata(dir.path()).unwrap().modified().unwrap());
        let dry = |out: &Path| graft(&GraftFlags { dry_run: true, ..flags(&target, &head, out) });
        let planned = dry(&dir.path().join("set")).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        // A folder made and removed again would show in the time.
        let after = (names(dir.path()), fs::metadata(dir.path()).unwrap().modified().unwrap());
        assert_eq!(before, after, "{}", case.name);
        let done = graft(&flags(&target, &head, &dir.path().join("set"))).unwrap();
        assert_eq!((planned.bytes_written, planned.keys), (done.bytes_written, done.keys), "{}", case.name);
        let moved =
            |tensors: &[Moved]| tensors.iter().map(|t| (t.name.clone(), t.dims.clone(), t.ty)).collect::<Vec<_>>();
        assert_eq!(moved(&planned.tensors), moved(&done.tensors), "{}", case.name);
    }
}

/// A target may have a head already: the converted one is for the same trunk.
#[test]
fn a_model_with_a_head_is_a_target_too() {
    let case = &cases()[0];
    let dir = tempfile::tempdir().unwrap();
    let from_trunk = converted(dir.path(), case, &case.head).unwrap().1;
    let out = dir.path().join("again.gguf");
    convert(&dir.path().join("hf"), &case.merged.file(), &out, true).unwrap();
    let again = open(&out);
    assert_eq!(Config::read(again.meta()).unwrap(), Config::read(from_trunk.meta()).unwrap());
    let bytes = |file: &ModelFile| file.tensors().iter().map(|t| file.data(t).to_vec()).collect::<Vec<_>>();
    assert_eq!(bytes(&again), bytes(&from_trunk));
}

/// The checkpoint of a published form, against what llama.cpp's converter made of it.
#[test]
fn a_recorded_checkpoint_gives_the_converters_head() {
    let Some(hf) = fixture("qwen35-tiny/hf/model.safetensors") else { return };
    let hf = hf.parent().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (Some(target), Some(merged)) = (
        fixture("qwen35-tiny/qwen35-tiny-nomtp-Q8_0-00001-of-00003.gguf"),
        fixture("qwen35-tiny/qwen35-tiny-F32.gguf"),
    ) else {
        return;
    };
    let out = dir.path().join("head.gguf");
    let report = convert(hf, &open(&target), &out, true).unwrap_or_else(|error| panic!("{error}"));
    let agree = report.config.expect("a config.json");
    for key in ["model_type", "hidden_size", "num_hidden_layers", "vocab_size", "rope_theta", "mtp_num_hidden_layers"] {
        assert!(agree.contains(&key), "{agree:?} has {key}");
    }
    let (head, merged) = (open(&out), open(&merged));
    let own = merged.tensors().iter().filter(|t| t.name.starts_with("blk.6."));
    assert_eq!(own.clone().count(), head.tensors().len());
    for t in own {
        let found = head.tensor(&t.name).unwrap_or_else(|| panic!("{}", t.name));
        let wide = |bytes: &[u8]| bytes.as_chunks::<2>().0.iter().flat_map(|b| [0, 0, b[0], b[1]]).collect::<Vec<u8>>();
        let bytes = if found.ty == TensorType::Bf16 { wide(&head.data(found)) } else { head.data(found).to_vec() };
        assert!(found.has_dims(t.dims()) && bytes == *merged.data(t), "{}", t.name);
        assert_eq!(found.ty == TensorType::F32, t.name.ends_with("norm.weight"), "{}", t.name);
    }
    // Type for type what the converter's own sidecar holds.
    if let Some(sidecar) = fixture("qwen35-tiny/mtp-qwen35-tiny-BF16.gguf") {
        let sidecar = open(&sidecar);
        for t in head.tensors() {
            let other = sidecar.require(&t.name).unwrap();
            assert!(other.ty == t.ty && *sidecar.data(other) == *head.data(t), "{}", t.name);
        }
        let key = |file: &ModelFile| file.meta().get("general.file_type").cloned();
        assert_eq!(key(&head), key(&sidecar));
    }
}

/// A head beside its trunk in two files, as the built-in model's checkpoint is kept.
#[test]
fn the_built_in_models_checkpoint_gives_its_head() {
    let Some(hf) = fixture("../model/hf/mtp.safetensors") else { return };
    let dir = tempfile::tempdir().unwrap();
    let target = engine_bin::open::ModelSource::BuiltIn.open(engine_io::OpenOptions::default()).unwrap();
    let out = dir.path().join("head.gguf");
    let report = convert(hf.parent().unwrap(), &target, &out, true).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((report.taken, report.tensors.len(), report.dropped.len()), (15, 15, 0));
    assert_eq!(report.files, [hf.display().to_string()]);
    let head = open(&out);
    // The model in the program is the same in Q8_0: what it holds of every matrix is what this one rounds to.
    for t in target.tensors().iter().filter(|t| t.name.starts_with("blk.4.")) {
        let found = head.require(&t.name).unwrap();
        let data = head.data(found);
        let bytes = match t.ty {
            TensorType::Q8_0 => {
                let values: Vec<f32> = data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
                let mut bytes = vec![0; t.bytes as usize];
                engine_kernels::Quant::Q8_0.quantize(&values, &mut bytes);
                bytes
            }
            _ => data.to_vec(),
        };
        assert!(bytes == *target.data(t), "{}", t.name);
    }
}

/// The head is refused with a message that has all of `parts`; nothing is left.
fn refused(case: &Case, head: &Head, parts: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let error = converted(dir.path(), case, head).err().unwrap_or_else(|| panic!("accepted, expected {parts:?}"));
    assert_eq!(error.code(), 3, "{error}");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{text}` does not say `{part}`");
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn every_tensor_is_needed_and_no_other() {
    for case in cases() {
        for name in case.head.keys() {
            if name.contains("hyper_connection_mixer.block_inject") {
                continue;
            }
            let mut head = case.head.clone();
            let mut gone = head.remove(name).unwrap();
            let bare = name.trim_end_matches(".weight");
            refused(&case, &head, &["hf", "trunk.gguf", "looked for", bare]);
            // With one row more.
            let row = gone.shape[1..].iter().product();
            gone.shape[0] += 1;
            gone.values.extend(vec![0.0; row]);
            let shape = format!("has shape {:?}, expected", gone.shape);
            head.insert(name.clone(), gone);
            refused(&case, &head, &[name, &shape]);
        }
        let one = || Source { shape: vec![1], values: vec![0.0] };
        for extra in ["mtp.other.weight", "model.language_model.mtp.layers.7.input_layernorm.weight"] {
            let mut head = case.head.clone();
            head.insert(extra.to_owned(), one());
            refused(&case, &head, &[extra, "known to no rule"]);
        }
    }
}

#[test]
fn what_is_no_head_of_the_target_is_refused() {
    let cases = cases();
    refused(&cases[0], &Head::new(), &["no head to convert", "mtp."]);
    // Of another architecture, either way.
    refused(&cases[0], &cases[1].head, &["known to no rule"]);
    refused(&cases[1], &cases[0].head, &["known to no rule", "looked for"]);
    // A model for which no head is made; a head as target.
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("head.gguf");
    let refuse = |target: &ModelFile, parts: &[&str]| {
        let error = convert(&dir.path().join("hf"), target, &out, true).unwrap_err();
        let text = error.to_string();
        parts.iter().for_each(|part| assert!(text.contains(part), "`{text}` does not say `{part}`"));
        assert_eq!(error.code(), 3);
    };
    if let Some(llama) = fixture("llama-tiny/llama-tiny-Q8_0.gguf") {
        refuse(&open(&llama), &["llama-tiny-Q8_0.gguf", "llama has no MTP block"]);
    }
    refuse(&tiny::sidecar("qwen35").file_as("side.gguf"), &["side.gguf", "sidecar"]);
    refuse(&tiny::trunk("qwen35").file(), &["hf", "cannot open"]);
    // What is there already stays.
    let case = &cases[0];
    converted(dir.path(), case, &case.head).unwrap();
    refuse(&tiny::trunk("qwen35").file(), &["head.gguf: exists already"]);
}

#[test]
fn a_config_of_another_model_is_refused() {
    let case = &cases()[1];
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("hf");
    fs::create_dir_all(&source).unwrap();
    let right = serde_json::json!({
        "model_type": "qwen3_5_moe",
        "text_config": {
            "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32, "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 10000.0},
            "vocab_size": 512, "mtp_num_hidden_layers": 1
        }
    });
    let with = |config: &serde_json::Value| {
        fs::write(source.join("config.json"), config.to_string()).unwrap();
        converted(dir.path(), case, &case.head)
    };
    assert_eq!(with(&right).unwrap().0.config.map(|agree| agree.len()), Some(14));
    for (key, wrong) in [
        ("hidden_size", 128.into()),
        ("num_hidden_layers", 5.into()),
        ("num_key_value_heads", 4.into()),
        ("num_experts", 16.into()),
        ("moe_intermediate_size", 64.into()),
        ("vocab_size", 513.into()),
        ("mtp_num_hidden_layers", 2.into()),
        ("rms_norm_eps", serde_json::json!(1e-5)),
        ("rope_parameters", serde_json::json!({"rope_theta": 1e6})),
        ("model_type", "qwen4_exp_text".into()),
        ("model_type", "llama".into()),
        ("hidden_act", "gelu".into()),
        ("attention_bias", true.into()),
        ("partial_rotary_factor", serde_json::json!(0.75)),
        ("rope_parameters", serde_json::json!({"rope_theta": 10000.0, "rope_type": "yarn"})),
        ("rope_parameters", serde_json::json!({"rope_theta": 10000.0, "partial_rotary_factor": 0.75})),
        ("rope_parameters", serde_json::json!({"rope_type": "default", "type": "yarn"})),
        ("rope_parameters", serde_json::json!({"full_attention": {"rope_type": "yarn", "rope_theta": 10000.0}})),
        ("rope_parameters", serde_json::json!({"rope_theta": 10000.0, "mrope_section": [9, 9, 9]})),
        ("rope_parameters", serde_json::json!({"rope_theta": 10000.0, "mrope_interleaved": false})),
        ("rope_scaling", serde_json::json!({"type": "yarn"})),
        ("attn_output_gate", false.into()),
        ("qkv_bias", true.into()),
        ("hidden_activation", "gelu".into()),
        ("use_sliding_window", true.into()),
        ("mtp_use_dedicated_embeddings", true.into()),
        ("layer_types", vec!["full_attention"; 4].into()),
        ("layer_types", vec!["linear_attention"; 5].into()),
        ("hidden_act", "x\nerror: faked".into()),
        ("hidden_act", "x".repeat(5000).into()),
    ] {
        let mut config = right.clone();
        config["text_config"][key] = wrong;
        let text = with(&config).err().unwrap_or_else(|| panic!("{key}")).to_string();
        let said = ["rope_theta is ", "rope_type is ", "partial_rotary_factor is ", "mrope_"];
        let is = |said: &str| text.contains(said);
        let named = if key.starts_with("rope_") { said.into_iter().any(is) } else { is(&format!("{key} is ")) };
        assert!(text.contains("config.json") && named, "{text}");
        assert!(!text.contains('\n') && text.len() < 1000, "{text}");
    }
    let mut other = right.clone();
    other["text_config"]["hidden_act"] = "swish".into();
    assert!(with(&other).is_ok(), "another name of the same");
    // Both parts name the model; either may be of another one.
    for (outer, inner) in
        [("llama", "qwen3_5_moe_text"), ("qwen3_5_moe", "llama_text"), ("qwen3_5", "qwen3_5_moe_text")]
    {
        let mut config = right.clone();
        (config["model_type"], config["text_config"]["model_type"]) = (outer.into(), inner.into());
        let error = with(&config).err().unwrap_or_else(|| panic!("{outer} {inner}")).to_string();
        assert!(error.contains("model_type is "), "{error}");
    }
    // What says nothing agrees with nothing.
    let said = text(&with(&serde_json::json!({})).unwrap().0);
    assert!(said.contains("config.json says nothing that could be compared") && !said.contains("agrees"), "{said}");
    // What is compared is of the right type; left out, or null, it says nothing.
    let types = [
        ("hidden_size", "64".into()),
        ("num_hidden_layers", 4.5.into()),
        ("num_attention_heads", (-4).into()),
        ("vocab_size", "512".into()),
        ("rms_norm_eps", "1e-6".into()),
        ("rope_parameters", 10000.into()),
        ("rope_parameters", serde_json::json!({"rope_theta": "10000"})),
        ("mtp_num_hidden_layers", true.into()),
        ("model_type", serde_json::json!(["qwen3_5"])),
    ];
    for (key, wrong) in types {
        let mut config = right.clone();
        config["text_config"][key] = wrong;
        let text = with(&config).err().unwrap_or_else(|| panic!("{config}")).to_string();
        assert!(text.contains("config.json") && text.contains(", expected "), "{text}");
        config["text_config"][key] = serde_json::Value::Null;
        with(&config).unwrap_or_else(|error| panic!("{error}"));
    }
    for wrong in [serde_json::json!([]), serde_json::json!({"text_config": 3})] {
        let text = with(&wrong).err().unwrap().to_string();
        assert!(text.contains("expected an object"), "{text}");
    }
    fs::write(source.join("config.json"), "{").unwrap();
    let text = converted(dir.path(), case, &case.head).err().unwrap().to_string();
    assert!(text.contains("config.json: is no config.json of a checkpoint"), "{text}");
}

/// As a program: exit codes, and one JSON object.
#[test]
fn the_program_converts() {
    let case = &cases()[3];
    let dir = tempfile::tempdir().unwrap();
    converted(dir.path(), case, &case.head).unwrap();
    let run = |out: &str, more: &[&str]| {
        let at = |name: &str| dir.path().join(name).into_os_string();
        let mut command = Command::new(program("engine-pack"));
        command.arg("convert-head").arg("--source").arg(at("hf")).arg("--target").arg(at("trunk.gguf"));
        command.arg("--out").arg(at(out)).args(more).output().unwrap()
    };
    let done = run("two.gguf", &["--json"]);
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(report["block"], 6);
    assert_eq!(report["tensors"].as_array().map(Vec::len), Some(18));
    assert_eq!(fs::read(dir.path().join("two.gguf")).unwrap(), fs::read(dir.path().join("head.gguf")).unwrap());
    let done = run("three.gguf", &[]);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains("mtp.layers.1.mixer.experts.0.up_proj.weight to mtp.layers.1.mixer.experts.5."), "{text}");
    assert_eq!(run("three.gguf", &[]).status.code(), Some(3), "exists");
    assert_eq!(run("four.gguf", &["--nonsense"]).status.code(), Some(2));
}

/// A checkpoint far larger than what the program may hold.
#[test]
fn memory_is_bounded() {
    const D: u64 = 1024;
    const FFN: u64 = 65_536;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // A model and a checkpoint of holes: they take no disk.
    let mut meta = Meta::new("made");
    meta.set("general.architecture", Value::str("qwen35"));
    let numbers = [
        ("block_count", 1),
        ("full_attention_interval", 1),
        ("context_length", 4096),
        ("embedding_length", D),
        ("feed_forward_length", FFN),
        ("attention.head_count", 8),
        ("attention.head_count_kv", 8),
        ("attention.key_length", 128),
        ("attention.value_length", 128),
        ("rope.dimension_count", 8),
    ];
    numbers.iter().for_each(|(key, n)| meta.set(&format!("qwen35.{key}"), Value::U32(*n as u32)));
    meta.set("qwen35.rope.dimension_sections", Value::Array(engine_io::gguf::Array::I32(vec![2, 1, 1, 0])));
    meta.set("qwen35.attention.layer_norm_rms_epsilon", Value::F32(1e-6));
    meta.set("tokenizer.ggml.tokens", Value::strs(["a", "b"]));
    // Name in the model, in the checkpoint, extents in the model's order.
    let block: [(&str, &str, &[u64]); 11] = [
        ("attn_norm", "layers.0.input_layernorm", &[D]),
        ("post_attention_norm", "layers.0.post_attention_layernorm", &[D]),
        ("attn_q", "layers.0.self_attn.q_proj", &[D, 2048]),
        ("attn_k", "layers.0.self_attn.k_proj", &[D, 1024]),
        ("attn_v", "layers.0.self_attn.v_proj", &[D, 1024]),
        ("attn_output", "layers.0.self_attn.o_proj", &[1024, D]),
        ("attn_q_norm", "layers.0.self_attn.q_norm", &[128]),
        ("attn_k_norm", "layers.0.self_attn.k_norm", &[128]),
        ("ffn_gate", "layers.0.mlp.gate_proj", &[D, FFN]),
        ("ffn_up", "layers.0.mlp.up_proj", &[D, FFN]),
        ("ffn_down", "layers.0.mlp.down_proj", &[FFN, D]),
    ];
    let mut layout = Layout::new(meta).unwrap();
    layout.tensor("token_embd.weight", &[D, 2], TensorType::Bf16).unwrap();
    layout.tensor("output_norm.weight", &[D], TensorType::F32).unwrap();
    for (name, _, dims) in block {
        layout.tensor(&format!("blk.0.{name}.weight"), dims, TensorType::Bf16).unwrap();
    }
    let bytes = layout.file_bytes();
    let header = fs::File::create(at("trunk.gguf")).unwrap();
    layout.start(&header).unwrap();
    header.set_len(bytes).unwrap();
    let frame: [(&str, &[u64]); 4] =
        [("fc", &[2 * D, D]), ("norm", &[D]), ("pre_fc_norm_embedding", &[D]), ("pre_fc_norm_hidden", &[D])];
    let all = block.iter().map(|(_, name, dims)| (*name, *dims)).chain(frame);
    let (mut json, mut end) = (serde_json::Map::new(), 0);
    for (name, dims) in all {
        let (start, shape) = (end, dims.iter().rev().collect::<Vec<_>>());
        end += 2 * dims.iter().product::<u64>();
        let entry = serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]});
        json.insert(format!("mtp.{name}.weight"), entry);
    }
    let json = serde_json::Value::Object(json).to_string();
    fs::write(at("head.safetensors"), [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()).unwrap();
    let holes = fs::File::options().append(true).open(at("head.safetensors")).unwrap();
    holes.set_len(8 + json.len() as u64 + end).unwrap();
    assert!(end > 400_000_000, "{end} bytes");
    let mut child = Command::new(program("engine-pack"))
        .arg("convert-head")
        .args(["--source", at("head.safetensors").to_str().unwrap(), "--target", at("trunk.gguf").to_str().unwrap()])
        .args(["--out", at("head.gguf").to_str().unwrap(), "--json"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    let code = loop {
        // The most that was ever in memory, mapped pages of files included; the last look is the one that counts.
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        most = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0).max(most);
        if let Some(code) = child.try_wait().unwrap() {
            break code;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert!(code.success());
    assert!(fs::metadata(at("head.gguf")).unwrap().len() > end);
    assert!((1000..64 << 10).contains(&most), "{most} kB were in memory at most, of {end} bytes that were converted");
}
