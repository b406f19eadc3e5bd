//! Models with, without and with half a NextN block, and the sidecars given beside them.

use std::sync::Arc;

use engine::ids::TokenId;
use engine::model::load::{LoadOptions, Planned};
use engine::model::{Model, ModelError, MtpStatus};
use engine_bin::bench::single::Want;
use engine_io::gguf::{Array, Value};

use super::tiny::{ARCHS, TRUNK, is_head, model, sidecar, trunk};
use super::{pair, pair_refused, says};
use crate::forward::edit::{Edit, refused, trunk_only};
use crate::forward::{integer, single};

const TOKENS: [u32; 5] = [5, 9, 80, 200, 7];

/// Drafts after a few tokens.
fn drafts(model: Model) -> Vec<TokenId> {
    let mut single = single(&Arc::new(model), 32, integer());
    single.trunk(&TOKENS[..4], 4, Want::Choice);
    single.mtp(&TOKENS, 3, false).draft.clone()
}

/// Its own block, or the sidecar's, or the sidecar's over its own: the same block drafts the same.
#[test]
fn a_block_drafts_from_either_file() {
    for arch in ARCHS {
        let own = model(arch).load().unwrap();
        assert_eq!(own.mtp, MtpStatus::Own, "{arch}");
        assert!(own.unexpected.is_empty(), "{arch}: {:?}", own.unexpected);
        let expected = drafts(own);
        assert_eq!(expected.len(), 3, "{arch}");
        for target in [trunk(arch), model(arch)] {
            let both = pair(&target, &sidecar(arch)).unwrap();
            assert_eq!(both.mtp, MtpStatus::Sidecar, "{arch}");
            assert!(both.unexpected.is_empty(), "{arch}: {:?}", both.unexpected);
            assert_eq!(drafts(both), expected, "{arch}");
        }
        // The sidecar wins: with another block in it the drafts are its own.
        let mut other = sidecar(arch);
        let projection = other.tensor("blk.4.nextn.eh_proj.weight");
        let half = projection.data.len() / 2;
        projection.data.rotate_left(half);
        assert_ne!(drafts(pair(&model(arch), &other).unwrap()), expected, "{arch}");
    }
}

#[test]
fn models_without_a_block_say_which_and_what_helps() {
    for arch in ARCHS {
        let remedies = ["blk.4.nextn.*", "converted with its MTP block", "MTP sidecar"];
        trunk_only(&trunk(arch), &remedies);
        trunk_only(&trunk(arch).set(&format!("{arch}.nextn_predict_layers"), Value::U32(0)), &remedies);
    }
}

/// The key without the tensors: the trunk runs, and both are named.
#[test]
fn announced_blocks_that_are_absent() {
    for arch in ARCHS {
        let key = format!("{arch}.nextn_predict_layers = 1");
        let edit = model(arch).drop(is_head);
        trunk_only(&edit, &[&key, "no blk.4.nextn.*", "converted with its MTP block", "MTP sidecar"]);
        assert_eq!(edit.load().unwrap().config.trunk, TRUNK, "{arch}");
        // The nextn part without the attention part; the other half alone could as well be a block of the trunk.
        let half = model(arch).drop(|n| n.starts_with("blk.4.attn_"));
        trunk_only(&half, &["blk.4.attn_norm.weight is missing", "blk.4.attn_q_norm.weight is missing"]);
        // The sidecar helps.
        assert_eq!(pair(&edit, &sidecar(arch)).unwrap().mtp, MtpStatus::Sidecar, "{arch}");
    }
}

/// The tensors without the key.
#[test]
fn blocks_that_nothing_announces() {
    for arch in ARCHS {
        let edit = model(arch).unset(&format!("{arch}.nextn_predict_layers"));
        let edit = edit.set(&format!("{arch}.block_count"), Value::U32(TRUNK as u32));
        trunk_only(&edit, &["blk.4.nextn.* tensors", &format!("no {arch}.nextn_predict_layers key")]);
    }
}

#[test]
fn a_sidecar_is_no_model() {
    for arch in ARCHS {
        let error = refused(&sidecar(arch), &["only block 4", arch, "draft model"]);
        assert!(matches!(error, ModelError::Sidecar { block: 4, .. }), "{error:?}");
        pair_refused(&sidecar(arch), &sidecar(arch), &["edited.gguf", "only block 4"]);
        // Without its copies of what the target has too.
        let bare = sidecar(arch).drop(|n| !n.starts_with("blk."));
        refused(&bare, &["only block 4"]);
        assert_eq!(pair(&trunk(arch), &bare).unwrap().mtp, MtpStatus::Sidecar, "{arch}");
    }
}

/// Blocks of a trunk beside it, no block, two blocks, a count that is not one.
#[test]
fn a_sidecar_is_one_block() {
    for arch in ARCHS {
        let remedy = "give an MTP sidecar";
        let not = |draft: &Edit, parts: &[&str]| {
            let error = pair_refused(&trunk(arch), draft, &[parts, &["sidecar.gguf", remedy]].concat());
            assert!(matches!(error, ModelError::NotASidecar { .. }), "{error:?}");
        };
        not(&model(arch), &["blk.4", "found blocks of a trunk"]);
        not(&trunk(arch), &["nextn_predict_layers is 0, expected 1"]);
        not(&sidecar(arch).drop(|n| n.contains(".nextn.")), &["blk.4", "nextn"]);
        for stray in ["blk.1.attn_norm.weight", "blk.5.nextn.enorm.weight", "blk.40.attn_norm.weight"] {
            let mut edit = sidecar(arch);
            edit.weights(stray, &[64]);
            not(&edit, &["blk.4.* alone", stray]);
        }
        for n in [0, 2, 3] {
            let edit = sidecar(arch).set(&format!("{arch}.nextn_predict_layers"), Value::U32(n));
            not(&edit, &[&format!("nextn_predict_layers is {n}, expected 1")]);
        }
    }
    // A model that has no such thing is none either.
    let edit = sidecar("qwen35").set("general.architecture", Value::str("qwen2"));
    pair_refused(&trunk("qwen35"), &edit, &["general.architecture = \"qwen2\""]);
}

/// Each number of a sidecar that its target has otherwise is named with both values.
#[test]
fn every_number_of_a_sidecar_is_compared() {
    for arch in ARCHS {
        let int = |n: u32| Value::U32(n);
        let rows: &[(&str, Value, &str, &str)] = &[
            ("context_length", int(512), "", ""),
            ("attention.head_count", int(8), "8", "4"),
            ("attention.head_count_kv", int(1), "1", "2"),
            ("rope.dimension_count", int(16), "16", "8"),
            ("rope.dimension_sections", Value::Array(Array::I32(vec![1, 1, 2, 0])), "[1, 1, 2, 0]", "[2, 1, 1, 0]"),
            ("rope.freq_base", Value::F32(1e6), "1000000", "10000"),
            ("attention.layer_norm_rms_epsilon", Value::F32(1e-5), "0.00001", "0.000001"),
        ];
        for (key, value, here, there) in rows {
            let mut edit = sidecar(arch).set(&format!("{arch}.{key}"), value.clone());
            if *key == "rope.dimension_count" {
                let sections = Value::Array(Array::I32(vec![4, 2, 2, 0]));
                edit = edit.set(&format!("{arch}.rope.dimension_sections"), sections);
            }
            if here.is_empty() {
                pair(&trunk(arch), &edit).unwrap_or_else(|error| panic!("{key} does not matter: {error}"));
                continue;
            }
            let key = key.strip_prefix("attention.layer_norm_").unwrap_or(key);
            let parts = [format!("{key} is {here} here and {there} in the model"), "give the sidecar".to_owned()];
            let error = pair_refused(&trunk(arch), &edit, &parts.each_ref().map(String::as_str));
            assert!(matches!(error, ModelError::Mismatch { .. }), "{error:?}");
        }
        let wide = ["key_length", "value_length"].map(|part| format!("{arch}.attention.{part}"));
        let wide = wide.iter().fold(sidecar(arch), |edit, key| edit.set(key, int(32)));
        pair_refused(&trunk(arch), &wide, &["attention.key_length is 32 here and 16 in the model"]);
        let scaled = sidecar(arch).set(&format!("{arch}.rope.scaling.type"), Value::str("linear"));
        let scaled = scaled.set(&format!("{arch}.rope.scaling.factor"), Value::F32(2.0));
        pair_refused(&trunk(arch), &scaled, &["1 / rope.scaling.factor is 0.5 here and 1 in the model"]);
        let llama3 = sidecar(arch).set(&format!("{arch}.rope.scaling.type"), Value::str("llama3"));
        pair_refused(&trunk(arch), &llama3, &["need of rope_freqs.weight is true here and false in the model"]);
        // Trunks of another length, and both files cut the same way are a pair again.
        let longer = trunk(arch).set(&format!("{arch}.block_count"), int(5));
        pair_refused(&longer, &sidecar(arch), &["trunk length is 4 here and 5 in the model"]);
        // Vocabularies: none, another, shorter.
        let tokens = "tokenizer.ggml.tokens";
        pair_refused(&trunk(arch), &sidecar(arch).unset(tokens), &["number of tokens is none here and 512"]);
        let list = |n: usize| Value::strs((0..n).map(|i| format!("t{i}")));
        pair_refused(&trunk(arch), &sidecar(arch).set(tokens, list(512)), &["hash of the token list is "]);
        pair_refused(&trunk(arch), &sidecar(arch).set(tokens, list(500)), &["number of tokens is 500 here and 512"]);
        // Of another architecture, whichever way round.
        let other = ARCHS[usize::from(arch == ARCHS[0])];
        let text = format!("general.architecture is {other} here and {arch} in the model");
        pair_refused(&trunk(arch), &sidecar(other), &[&text]);
    }
    let dense = sidecar("qwen35").set("qwen35.feed_forward_length", Value::U32(64));
    pair_refused(&trunk("qwen35"), &dense, &["feed_forward_length is 64 here and 32 in the model"]);
    let wide = |key: &str, n| sidecar("qwen35moe").set(&format!("qwen35moe.{key}"), Value::U32(n));
    for (key, n, there) in [
        ("expert_count", 16, 8),
        ("expert_used_count", 3, 2),
        ("expert_feed_forward_length", 64, 32),
        ("expert_shared_feed_forward_length", 64, 32),
    ] {
        let text = format!("{key} is {n} here and {there} in the model");
        pair_refused(&trunk("qwen35moe"), &wide(key, n), &[&text]);
    }
}

/// Every tensor of the block is required in the shape that the numbers give.
#[test]
fn a_sidecar_is_complete() {
    for arch in ARCHS {
        let whole = sidecar(arch);
        for name in whole.tensors.iter().map(|t| t.name.as_str()).filter(|n| is_head(n)) {
            let without = sidecar(arch).drop(|n| n == name);
            match name {
                // The target's output norm stands in, which is this model's own way to norm.
                "blk.4.nextn.shared_head_norm.weight" => {
                    assert_eq!(pair(&trunk(arch), &without).unwrap().mtp, MtpStatus::Sidecar);
                }
                "blk.4.nextn.eh_proj.weight" => {
                    pair_refused(&trunk(arch), &without, &["sidecar.gguf", "blk.4", "nextn"]);
                }
                _ => {
                    pair_refused(&trunk(arch), &without, &["sidecar.gguf", &format!("{name} is missing")]);
                }
            }
            let mut wide = sidecar(arch);
            let t = wide.tensor(name);
            *t.dims.last_mut().unwrap() += 1;
            t.data.resize(t.dims.iter().product::<u64>() as usize * 4, 0);
            let shape = format!("{name} has dimensions {:?}, expected", t.dims);
            pair_refused(&trunk(arch), &wide, &["sidecar.gguf", &shape]);
        }
    }
}

/// Of a head's tensors, those that no rule reads are refused, with its model and alone; others are reported, and refused
/// when strict. A model's own block may have more than is read.
#[test]
fn names_that_a_sidecar_should_not_have() {
    let strict = LoadOptions { strict: true, ..LoadOptions::default() };
    for arch in ARCHS {
        let load =
            |draft: &Edit, options| Model::load(&trunk(arch).file(), Some(&draft.file_as("sidecar.gguf")), options);
        for name in ["blk.4.nextn.foo.weight", "blk.4.attn_foo.weight", "mtp.foo.weight"] {
            let mut edit = sidecar(arch);
            edit.weights(name, &[64]);
            pair_refused(&trunk(arch), &edit, &["sidecar.gguf", &format!("{name} is not known")]);
            let alone = Planned::sidecar(&edit.file_as("sidecar.gguf"), LoadOptions::default()).err().unwrap();
            says(&alone.to_string(), &["sidecar.gguf", &format!("{name} is not known")]);
            let mut own = model(arch);
            own.weights(name, &[64]);
            let own = own.load().unwrap();
            assert_eq!((own.mtp, own.unexpected), (MtpStatus::Own, vec![name.to_owned()]), "{arch}");
        }
        let mut scaled = sidecar(arch);
        scaled.weights("blk.4.attn_k.scale", &[1]);
        let error = pair_refused(&trunk(arch), &scaled, &["sidecar.gguf", "blk.4.attn_k.scale"]);
        assert!(matches!(error, ModelError::Scales { .. }), "{error:?}");
        let mut edit = sidecar(arch);
        edit.weights("vision.foo.weight", &[64]);
        assert_eq!(pair(&trunk(arch), &edit).unwrap().unexpected, ["vision.foo.weight"], "{arch}");
        Planned::sidecar(&edit.file_as("sidecar.gguf"), LoadOptions::default()).unwrap();
        load(&sidecar(arch), strict).unwrap();
        let text = load(&edit, strict).err().unwrap().to_string();
        says(&text, &["sidecar.gguf", "vision.foo.weight is not known"]);
    }
}

/// The two halves of the projection in two tensors, and the projection the wrong way round.
#[test]
fn another_layout_of_the_same_name() {
    for arch in ARCHS {
        let mut halves = sidecar(arch);
        halves.weights("mtp.fc_embd.weight", &[64, 64]);
        halves.weights("mtp.fc_hidden.weight", &[64, 64]);
        let halves = halves.drop(|n| n == "blk.4.nextn.eh_proj.weight");
        pair_refused(&trunk(arch), &halves, &["sidecar.gguf", "cannot be used as a draft model", "blk.4"]);
        let mut turned = sidecar(arch);
        turned.tensor("blk.4.nextn.eh_proj.weight").dims = vec![64, 128];
        pair_refused(
            &trunk(arch),
            &turned,
            &["blk.4.nextn.eh_proj.weight has dimensions [64, 128], expected [128, 64]"],
        );
    }
}

/// The block's own table and head are read instead of the trunk's, and have its rows.
#[test]
fn own_head_tensors_win() {
    for arch in ARCHS {
        let expected = drafts(pair(&trunk(arch), &sidecar(arch)).unwrap());
        for part in ["embed_tokens", "shared_head_head"] {
            let name = format!("blk.4.nextn.{part}.weight");
            let with = |rows: usize, data: Vec<u8>| {
                let mut edit = sidecar(arch);
                edit.weights(&name, &[64, rows as u64]);
                edit.tensor(&name).data = data;
                edit
            };
            let table = sidecar(arch).tensor("token_embd.weight").data.clone();
            let same = with(512, table.clone());
            assert_eq!(drafts(pair(&trunk(arch), &same).unwrap()), expected, "{arch}: a copy of the table");
            let mut turned = table.clone();
            turned.rotate_left(64 * 4 * 17);
            assert_ne!(drafts(pair(&trunk(arch), &with(512, turned)).unwrap()), expected, "{arch}: {name} is read");
            let short = with(500, table[..500 * 64 * 4].to_vec());
            let text = format!("{name} has dimensions [64, 500], expected [64, 512]");
            pair_refused(&trunk(arch), &short, &[&text]);
        }
    }
}
