//! Bytes, metadata and tensors that no correct file has, and odd ones that are correct: each opened from disk where the
//! bytes matter, each refused by what is wrong with it.

use std::fs;
use std::path::Path;

use engine::model::load::LoadOptions;
use engine::model::{Model, ModelError, MtpStatus};
use engine_bin::bench::single::Want;
use engine_io::gguf::{Array, Value};
use engine_io::text::Tokenizer;
use engine_io::{Error, ModelFile, OpenOptions, TensorType};
use tempfile::TempDir;

use super::says;
use super::tiny::{ARCHS, TRUNK, model, sidecar, trunk};
use crate::forward::edit::{Edit, refused, trunk_only};
use crate::forward::{integer, single};

/// Opens and loads a file that holds `bytes`, mapped and read; both ways say the same.
fn load_bytes(folder: &Path, bytes: &[u8]) -> Result<Model, ModelError> {
    let path = folder.join("m.gguf");
    fs::write(&path, bytes).unwrap();
    let load = |mmap| {
        let file = ModelFile::open(&path, OpenOptions { mmap, strict: false })?;
        Model::load(&file, None, LoadOptions::default())
    };
    let (mapped, read) = (load(true), load(false));
    let text = |result: &Result<Model, ModelError>| result.as_ref().err().map(ToString::to_string);
    assert_eq!(text(&mapped), text(&read));
    mapped
}

fn bytes_refused(folder: &Path, bytes: &[u8], parts: &[&str]) -> ModelError {
    let error = load_bytes(folder, bytes).err().unwrap_or_else(|| panic!("accepted, expected {parts:?}"));
    says(&error.to_string(), &[&["m.gguf: "], parts].concat());
    error
}

/// Fields of a file one after the other, little-endian.
#[derive(Clone)]
struct Raw(Vec<u8>);

impl Raw {
    fn new(tensors: u64, keys: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(3).u64(tensors).u64(keys)
    }

    fn u32(mut self, n: u32) -> Self {
        self.0.extend(n.to_le_bytes());
        self
    }

    fn u64(mut self, n: u64) -> Self {
        self.0.extend(n.to_le_bytes());
        self
    }

    fn text(self, text: &str) -> Self {
        let mut raw = self.u64(text.len() as u64);
        raw.0.extend(text.bytes());
        raw
    }

    fn tensor(self, dims: &[u64], kind: u32) -> Self {
        let raw = self.text("w").u32(dims.len() as u32);
        dims.iter().fold(raw, |raw, &dim| raw.u64(dim)).u32(kind).u64(0)
    }

    /// Data that anything small enough fits into.
    fn data(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 4096, 0);
        self.0
    }
}

#[test]
fn damaged_bytes_are_refused_through_the_front_door() {
    let folder = TempDir::new().unwrap();
    let refused = |bytes: &[u8], parts: &[&str]| {
        let error = bytes_refused(folder.path(), bytes, parts);
        assert!(matches!(error, ModelError::File(_)), "{error:?}");
    };
    // A key without a name, in 37 bytes.
    let mut empty = Raw::new(0, 1).u64(0).u32(0).0;
    empty.push(0);
    assert_eq!(empty.len(), 37);
    refused(&empty, &["metadata key 0 has an empty name"]);
    // Products that wrap, dimensions past the fourth, more than could ever be.
    let huge = u64::MAX;
    for dims in [&[huge, 2, 1, 1][..], &[1 << 32, 1 << 32], &[1 << 62, 4], &[huge], &[1 << 40]] {
        refused(&Raw::new(1, 0).tensor(dims, 0).data(), &["tensor w"]);
    }
    for dims in [5, 9, u32::MAX] {
        let raw = Raw::new(1, 0).text("w").u32(dims);
        refused(&(0..9).fold(raw, |raw, _| raw.u64(1)).data(), &["tensor w", &dims.to_string(), "4"]);
    }
    // Lengths and counts beyond the file.
    let rest = Raw::new(0, 1).data().len() as u64;
    for n in [rest, 1 << 63, huge, huge - 7] {
        refused(&Raw::new(0, 1).u64(n).data(), &["truncated"]);
        refused(&Raw::new(0, 1).text("k").u32(8).u64(n).data(), &["truncated", "k"]);
        refused(&Raw::new(0, 1).text("k").u32(9).u32(4).u64(n).data(), &["truncated", "k"]);
        refused(&Raw::new(n, 0).data(), &["truncated"]);
        refused(&Raw::new(0, n).data(), &["truncated"]);
    }
    // Arrays in arrays, deep and wide.
    let deep = (0..10_000).fold(Raw::new(0, 1).text("k").u32(9), |raw, _| raw.u32(9).u64(1));
    refused(&deep.data(), &["key k", "nested"]);
    refused(&Raw::new(0, 1).text("k").u32(9).u32(9).u64(1 << 40).data(), &["truncated", "k"]);
    for (kind, part) in [(13, "13"), (u32::MAX, "4294967295")] {
        refused(&Raw::new(0, 1).text("k").u32(kind).data(), &["key k", part]);
        refused(&Raw::new(1, 0).tensor(&[4], kind.max(100)).data(), &["tensor w"]);
    }
    for alignment in [0, 3, 24] {
        let raw = Raw::new(0, 1).text("general.alignment");
        refused(&raw.clone().u32(4).u32(alignment).data(), &["general.alignment", &alignment.to_string()]);
        refused(&raw.u32(10).u64(alignment.into()).data(), &["general.alignment", &alignment.to_string()]);
    }
    // The other byte order, and versions.
    let mut swapped = b"GGUF\0\0\0\x03".to_vec();
    swapped.extend([0, 0, 0, 0, 0, 0, 0, 1].repeat(2));
    refused(&swapped, &["big-endian"]);
    for (version, part) in [(1, "too old"), (4, "version 4 is not known")] {
        let mut bytes = Raw::new(0, 0).0;
        bytes[4] = version;
        refused(&bytes, &[part]);
    }
}

/// A whole model with some bytes of its head changed or cut: an error or a model, never a panic.
#[test]
fn any_damage_to_the_head_ends_in_an_answer() {
    let folder = TempDir::new().unwrap();
    for arch in ARCHS {
        let whole = model(arch).bytes();
        let data: usize = model(arch).tensors.iter().map(|t| t.data.len()).sum();
        let head = whole.len() - data;
        let mut seed = 7_u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let mut refused = 0;
        for round in 0..150 {
            let mut bytes = whole.clone();
            for _ in 0..=random(3) {
                let at = random(head);
                match random(4) {
                    0 => bytes[at] ^= 1 << random(8),
                    1 => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF][random(5)],
                    2 => bytes[at..at + 4].fill([0, 0xFF][random(2)]),
                    _ => bytes.swap(at, at + 8),
                }
            }
            if round % 10 == 0 {
                bytes.truncate(random(whole.len()));
            }
            let path = folder.path().join("m.gguf");
            fs::write(&path, &bytes).unwrap();
            let opened = ModelFile::open(&path, OpenOptions { mmap: false, strict: false });
            let loaded = opened.map_err(ModelError::from).and_then(|file| {
                drop(Tokenizer::from_meta(file.meta()));
                Model::load(&file, None, LoadOptions::default())
            });
            refused += usize::from(loaded.is_err());
        }
        assert!((15..150).contains(&refused), "{arch}: {refused} of 150 were refused");
    }
}

/// Every kind of fault is an error of its own, with words of its own.
#[test]
fn diagnoses_are_not_interchangeable() {
    let folder = TempDir::new().unwrap();
    for arch in ARCHS {
        let whole = model(arch);
        let key = |name: &str| format!("{arch}.{name}");
        let mut typed = model(arch);
        typed.tensor("blk.0.attn_gate.weight").kind = TensorType::I32;
        let mut turned = model(arch);
        turned.tensor("blk.3.attn_k.weight").dims.reverse();
        let mut version = whole.bytes();
        version[4] = 9;
        let mut order = whole.bytes();
        order[4..8].reverse();
        let cases: [(&str, Vec<u8>, &str, bool); 9] = [
            ("the end is missing", whole.bytes()[..whole.bytes().len() - 9].to_vec(), "truncated", true),
            (
                "architecture",
                model(arch).set("general.architecture", Value::str("gpt")).bytes(),
                "cannot be run",
                false,
            ),
            ("type", typed.bytes(), "type I32 of 1 tensors", false),
            ("tensor", model(arch).drop(|n| n == "output_norm.weight").bytes(), "output_norm.weight is missing", false),
            ("shape", turned.bytes(), "blk.3.attn_k.weight has dimensions [32, 64], expected [64, 32]", false),
            ("key", model(arch).unset(&key("block_count")).bytes(), "block_count is missing", true),
            (
                "counts",
                model(arch).set(&key("nextn_predict_layers"), Value::U32(5)).bytes(),
                "nextn_predict_layers",
                true,
            ),
            ("version", version, "version 9 is not known", true),
            ("byte order", order, "big-endian", true),
        ];
        for (what, bytes, part, in_reader) in &cases {
            let error = bytes_refused(folder.path(), bytes, &[part]);
            assert_eq!(matches!(error, ModelError::File(_)), *in_reader, "{what}: {error:?}");
            let others = cases.iter().filter(|(other, ..)| other != what);
            for (other, _, foreign, _) in others {
                assert!(!error.to_string().contains(foreign), "{what} speaks of {other}: {error}");
            }
        }
    }
}

/// Cut in the middle of the last tensor, by its last byte, at the start of the data, in the head; a model or a sidecar.
#[test]
fn every_file_is_examined_at_the_start() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("cut.gguf");
    for arch in ARCHS {
        for edit in [model(arch), trunk(arch), sidecar(arch)] {
            let bytes = edit.bytes();
            let data: usize = edit.tensors.iter().map(|t| t.data.len().next_multiple_of(32)).sum();
            let last = edit.tensors.last().unwrap();
            for (len, what) in [
                (bytes.len() - last.data.len().next_multiple_of(32) + last.data.len() - 1, last.name.as_str()),
                (bytes.len() - last.data.len() / 2 - 31, last.name.as_str()),
                (bytes.len() - data, edit.tensors[0].name.as_str()),
                (100, ""),
            ] {
                fs::write(&path, &bytes[..len]).unwrap();
                let error = ModelFile::open(&path, OpenOptions::default()).unwrap_err();
                assert!(matches!(error, Error::TruncatedTensor { .. } | Error::Truncated { .. }), "{error:?}");
                says(&error.to_string(), &["cut.gguf: truncated: ", what, "download it again"]);
            }
        }
    }
}

#[test]
fn numbers_of_a_wrong_kind_name_their_key() {
    for arch in ARCHS {
        let key = format!("{arch}.context_length");
        refused(&model(arch).unset(&key), &[&key, "missing"]);
        refused(&model(arch).set(&key, Value::F32(8192.0)), &[&key, "f32", "an integer"]);
        refused(&model(arch).set(&key, Value::str("8192")), &[&key, "8192", "an integer"]);
        refused(&model(arch).set(&key, Value::Array(Array::U32(vec![8192]))), &[&key, "an integer"]);
        refused(&model(arch).set(&key, Value::I64(-8192)), &[&key, "-8192"]);
        refused(&model(arch).set(&key, Value::U64(u64::MAX)), &[&key, "18446744073709551615"]);
        for value in [Value::U16(4096), Value::I16(4096), Value::I32(4096), Value::U64(4096), Value::I64(4096)] {
            assert_eq!(model(arch).set(&key, value).load().unwrap().config.context_train, 4096);
        }
        let eps = format!("{arch}.attention.layer_norm_rms_epsilon");
        for value in [f32::NAN, f32::INFINITY, -1.0, 0.0] {
            refused(&model(arch).set(&eps, Value::F32(value)), &[&eps]);
        }
        assert!(model(arch).set(&eps, Value::F64(1e-6)).load().is_ok());
        let folder = TempDir::new().unwrap();
        let split = model(arch).set("split.count", Value::str("3")).bytes();
        bytes_refused(folder.path(), &split, &["split.count", "an integer"]);
    }
}

#[test]
fn tokenizers_of_a_wrong_kind_name_their_key() {
    let build = |key: &str, value: Value| Tokenizer::from_meta(&model("qwen35").set(key, value).meta);
    let accepted = |key: &str, value: Value| assert!(build(key, value).is_ok(), "{key}");
    let refused = |key: &str, value: Value, parts: &[&str]| {
        let text = build(key, value).err().unwrap_or_else(|| panic!("{key}: accepted")).to_string();
        says(&text, &[&["edited.gguf: ", key], parts].concat());
    };
    let kinds = "tokenizer.ggml.token_type";
    accepted(kinds, Value::Array(Array::U32(vec![1; 512])));
    accepted(kinds, Value::Array(Array::I64(vec![1; 512])));
    accepted(kinds, Value::Array(Array::U8(vec![1; 512])));
    refused(kinds, Value::Array(Array::I32(vec![1; 511])), &["511", "512"]);
    refused(kinds, Value::Array(Array::F32(vec![1.0; 512])), &["integers"]);
    for id in [Value::U32(u32::MAX), Value::U32(512), Value::U64(1 << 33), Value::I32(-1), Value::str("1")] {
        refused("tokenizer.ggml.bos_token_id", id, &[]);
    }
    refused("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; 511])), &["511", "512"]);
    refused("tokenizer.ggml.merges", Value::strs(["ab"]), &["ab"]);
    refused("tokenizer.ggml.merges", Value::strs(["a z"]), &["a z"]);
    refused("tokenizer.ggml.merges", Value::str("a b"), &["array"]);
    let text = build("tokenizer.ggml.pre", Value::str("other")).unwrap_err().to_string();
    says(&text, &["edited.gguf: ", "other"]);
}

/// One row of a quantised matrix is whole blocks; that the whole tensor is does not help.
#[test]
fn a_row_is_whole_blocks_and_not_its_tensor() {
    let folder = TempDir::new().unwrap();
    for (row, rows, kind, name, block) in
        [(14464, 256, 12, "Q4_K", "256"), (4544, 256, 12, "Q4_K", "256"), (172, 32, 8, "Q8_0", "32")]
    {
        let bytes = Raw::new(1, 0).tensor(&[row, rows], kind).data();
        let error = bytes_refused(folder.path(), &bytes, &["tensor w", name, &row.to_string(), block]);
        assert!(matches!(error, ModelError::File(Error::RowNotBlocks { .. })), "{error:?}");
    }
}

#[test]
fn one_preflight_lists_unsupported_types() {
    for arch in ARCHS {
        let mut edit = model(arch).drop(|n| n == "blk.0.ssm_norm.weight");
        for block in 0..3 {
            edit.tensor(&format!("blk.{block}.ssm_out.weight")).kind = TensorType::I32;
        }
        edit.tensor("blk.1.ssm_alpha.weight").dims = vec![4, 64];
        let t = edit.tensor("blk.2.ssm_beta.weight");
        (t.kind, t.data) = (TensorType::I8, vec![0; 256]);
        edit.weights("blk.1.extra.weight", &[3]);
        let faults = [
            "type I32 of 3 tensors (such as blk.0.ssm_out.weight)",
            "type I8 of 1 tensors (such as blk.2.ssm_beta.weight)",
            "blk.0.ssm_norm.weight is missing",
            "blk.1.ssm_alpha.weight has dimensions [4, 64], expected [64, 4]",
        ];
        let text = refused(&edit, &faults).to_string();
        assert_eq!(text.lines().count(), 1 + faults.len(), "{text}");
        let strict = Model::load(&edit.file(), None, LoadOptions { strict: true, ..LoadOptions::default() });
        let text = strict.err().unwrap().to_string();
        says(&text, &[&faults[..], &["blk.1.extra.weight is not known"]].concat());
    }
}

#[test]
fn experts_without_their_numbers_and_numbers_without_experts() {
    let key = |name: &str| format!("qwen35moe.{name}");
    refused(&model("qwen35moe").unset(&key("expert_count")), &[&key("expert_count"), "missing"]);
    for n in [0, 7, 9, 1 << 20] {
        refused(&model("qwen35moe").set(&key("expert_count"), Value::U32(n)), &["edited.gguf"]);
    }
    for n in [0, 9, u32::MAX] {
        let used = key("expert_used_count");
        refused(&model("qwen35moe").set(&used, Value::U32(n)), &[&used, &n.to_string()]);
    }
    assert!(model("qwen35moe").set(&key("expert_used_count"), Value::U32(8)).load().is_ok(), "all of them");
    // One stack of another count than the others.
    let mut edit = model("qwen35moe");
    let t = edit.tensor("blk.2.ffn_up_exps.weight");
    t.dims = vec![64, 32, 7];
    t.data.truncate(64 * 32 * 7 * 4);
    refused(&edit, &["blk.2.ffn_up_exps.weight has dimensions [64, 32, 7], expected [64, 32, 8]"]);
    // A dense file that says it has experts, and one that has some and does not say so.
    refused(&model("qwen35").set("qwen35.expert_count", Value::U32(8)), &["qwen35.expert_count", "dense"]);
    let mut edit = model("qwen35");
    edit.weights("blk.0.ffn_up_exps.weight", &[64, 32, 8]);
    refused(&edit, &["blk.0.ffn_up_exps.weight would change what is computed"]);
}

/// Width of heads and width of a hidden row are two things.
#[test]
fn head_sizes_are_their_own() {
    for arch in ARCHS {
        let sizes = ["key_length", "value_length"].map(|key| format!("{arch}.attention.{key}"));
        let wide = sizes.iter().fold(model(arch), |edit, key| edit.set(key, Value::U32(24)));
        // 64 / 4 is 16: what is wanted follows the keys, and not the quotient.
        refused(&wide, &["blk.3.attn_k.weight has dimensions [64, 32], expected [64, 48]"]);
        refused(&model(arch).set(&sizes[0], Value::U32(24)), &[&sizes[1], "16", "24"]);
    }
}

/// 5 blocks, of which 1 to 4 may stand behind the trunk.
#[test]
fn counts_of_nextn_blocks() {
    for arch in ARCHS {
        let key = format!("{arch}.nextn_predict_layers");
        assert_eq!(model(arch).load().unwrap().config.trunk, TRUNK, "the block is not of the trunk");
        for n in [5, 6, u32::MAX] {
            let error = refused(&model(arch).set(&key, Value::U32(n)), &[&key, &n.to_string(), "block_count"]);
            assert!(matches!(error, ModelError::File(_)), "{error:?}");
        }
        refused(&model(arch).set(&key, Value::U64(1 << 32)), &[&key, "4294967296"]);
        // Blocks 1 to 3 are of the trunk by their tensors; with them absent, the trunk is as long as the keys say.
        for n in [2, 4] {
            let first = 5 - n as usize;
            let edit = model(arch).set(&key, Value::U32(n));
            refused(&edit, &[&format!("{key} {n}"), &format!("such as blk.{first}.")]);
            let gone: Vec<String> = (first..TRUNK).map(|i| format!("blk.{i}.")).collect();
            let edit = edit.drop(|name| gone.iter().any(|block| name.starts_with(block)));
            trunk_only(&edit, &[&format!("{key} = {n}, expected 1")]);
            assert_eq!(edit.load().unwrap().config.trunk, first);
        }
        let blocks = format!("{arch}.block_count");
        for n in [0, 1, 1 << 20, u32::MAX] {
            refused(&model(arch).set(&blocks, Value::U32(n)), &["block_count", &n.to_string()]);
        }
        // One more than there is, or all of them of the trunk: the head's tensors tell.
        refused(&model(arch).set(&blocks, Value::U32(6)), &["blk.4.nextn.*", "block_count 6"]);
        refused(&model(arch).unset(&key), &["blk.4.nextn.*", "block_count 5"]);
    }
}

/// The head is attention, whatever list or interval say of its place.
#[test]
fn the_pattern_of_the_trunk_ends_before_the_head() {
    for arch in ARCHS {
        let plain = model(arch).load().unwrap().program;
        let (list, interval) =
            (format!("{arch}.attention.recurrent_layers"), format!("{arch}.full_attention_interval"));
        for tail in [vec![], vec![false], vec![true]] {
            let all = Value::Array(Array::Bool([vec![true, true, true, false], tail].concat()));
            assert_eq!(model(arch).set(&list, all.clone()).load().unwrap().program, plain);
            // The list wins.
            assert_eq!(model(arch).set(&list, all).set(&interval, Value::U32(2)).load().unwrap().program, plain);
        }
        // The interval is 4 where the file does not say.
        assert_eq!(model(arch).unset(&interval).load().unwrap().program, plain);
        refused(&model(arch).set(&interval, Value::U32(2)), &["blk.1.attn_q_norm.weight is missing"]);
        refused(&model(arch).set(&interval, Value::U32(0)), &[&interval, "0"]);
        let kv = format!("{arch}.attention.head_count_kv");
        let heads = |n: &[u32]| Value::Array(Array::U32(n.to_vec()));
        assert_eq!(model(arch).set(&kv, heads(&[0, 0, 0, 2, 2])).load().unwrap().program, plain);
        refused(&model(arch).set(&kv, heads(&[0, 0, 0, 2, 0])), &[&kv, "0 key/value heads", "block 4"]);
    }
}

/// As long as all blocks or as the trunk; nothing is cut or padded.
#[test]
fn arrays_are_as_long_as_a_rule_says() {
    for arch in ARCHS {
        let plain = model(arch).load().unwrap().program;
        let array = |value: u32, n: usize| Value::Array(Array::U32(vec![value; n]));
        let mut keys = vec![("attention.head_count", 4), ("attention.head_count_kv", 2)];
        match arch {
            "qwen35" => keys.push(("feed_forward_length", 32)),
            _ => keys.extend([("expert_used_count", 2), ("expert_feed_forward_length", 32)]),
        }
        for (key, value) in keys {
            let key = format!("{arch}.{key}");
            for n in [4, 5] {
                assert_eq!(model(arch).set(&key, array(value, n)).load().unwrap().program, plain, "{key} of {n}");
            }
            for n in [0, 1, 3, 6] {
                refused(&model(arch).set(&key, array(value, n)), &[&key, &n.to_string(), "5", "4"]);
            }
            refused(&model(arch).set(&key, Value::Array(Array::F32(vec![2.0; 5]))), &[&key]);
        }
        let list = format!("{arch}.attention.recurrent_layers");
        for n in [0, 3, 6] {
            let flags = Value::Array(Array::Bool(vec![true; n]));
            refused(&model(arch).set(&list, flags), &[&list, &n.to_string(), "5", "4"]);
        }
    }
}

/// Where the data start, and how far apart tensors are, is the file's own business.
#[test]
fn the_alignment_of_a_file_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let logits = |model: Model| {
        let mut single = single(&std::sync::Arc::new(model), 32, integer());
        single.trunk(&[5, 9, 80, 200], 4, Want::Probe).logits.clone()
    };
    for arch in ARCHS {
        let expected = logits(model(arch).load().unwrap());
        for alignment in [8, 32, 64, 4096] {
            // One key more or less moves the end of the head through every remainder.
            for pad in 0..4 {
                let edit: Edit = model(arch).set("general.alignment", Value::U32(alignment));
                let edit = edit.set("general.name", Value::str(&"n".repeat(pad * 17)));
                let loaded = load_bytes(folder.path(), &edit.bytes()).unwrap();
                assert_eq!(loaded.mtp, MtpStatus::Own);
                assert_eq!(logits(loaded), expected, "{arch}, alignment {alignment}");
            }
        }
    }
}
