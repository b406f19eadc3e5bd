//! Heads by other names: what only renames drafts as the canonical file does, bit for bit; the rest is refused by name.

use std::sync::Arc;

use engine::ids::TokenId;
use engine::model::load::LoadOptions;
use engine::model::schema::schema;
use engine::model::{Config, Model, ModelError, MtpStatus};
use engine_bin::bench::single::Want;
use engine_io::TensorType;

use super::edit::{Edit, edit, refused, renamed, trunk_only, with};
use super::generate::qwen4exp;
use super::invariance::ids;
use super::qwen4exp::says;
use super::{integer, single};
use crate::refusals::tiny;

const MIXER: [&str; 3] = ["norm", "down", "up"];

/// Trunk of the generated `qwen4exp` model.
fn trunk() -> Edit {
    qwen4exp(7).trunk()
}

/// Its head alone, by canonical names.
fn head() -> Edit {
    qwen4exp(7).drop(|n| !n.starts_with("blk.4."))
}

/// The head's mixer at top level.
fn top_level() -> Edit {
    renamed(head(), "blk.4.nextn.hc_head_", "output_hc_")
}

fn load(trunk: &Edit, head: &Edit, strict: bool) -> Result<Model, ModelError> {
    let options = LoadOptions { strict, ..LoadOptions::default() };
    Model::load(&trunk.file(), Some(&head.file_as("head.gguf")), options)
}

fn not(head: &Edit, parts: &[&str]) {
    let error = load(&trunk(), head, false).err().unwrap_or_else(|| panic!("accepted, expected {parts:?}"));
    assert!(matches!(error, ModelError::NotASidecar { .. }), "{error:?}");
    let text = error.to_string();
    for part in parts.iter().chain(&["head.gguf", "give an MTP sidecar"]) {
        assert!(text.contains(part), "`{text}` does not say `{part}`");
    }
}

#[test]
fn dialects_that_rename_draft_as_the_canonical_head() {
    let tokens = ids(30, 8);
    let expected = says(&Arc::new(qwen4exp(7).load().unwrap()), &tokens);
    let model = qwen4exp(7);
    let mixer = "output_hc_norm.weight as blk.4.nextn.hc_head_norm.weight, of dialect T";
    let shared = "blk.4.nextn.shared_head_norm.weight as blk.4.nextn.hc_head_norm.weight, of dialect T'";
    let duplicate = "output_hc_up.weight: trunk mixer duplicate";
    let table = "token_embd.weight: the target's own is used";
    let shared_norm = renamed(top_level(), "output_hc_norm", "blk.4.nextn.shared_head_norm");
    let twice = with(shared_norm.clone(), &top_level(), "output_hc_norm");
    // Name, file, a line of what is renamed and of what is dropped.
    let rows = [
        ("C", head(), "", ""),
        ("C with copies", with(head(), &model, "token_embd"), "", table),
        ("C numbered 0", renamed(head(), "blk.4.", "blk.0."), "blk.0.* as blk.4.*", ""),
        ("C numbered 31", renamed(head(), "blk.4.", "blk.31."), "blk.31.* as blk.4.*", ""),
        ("C+", with(head(), &model, "output_hc_"), "", duplicate),
        ("C+ with another mixer", with(head(), &top_level(), "output_hc_"), "", duplicate),
        ("T", with(top_level(), &model, "token_embd"), mixer, table),
        ("T numbered 0", renamed(top_level(), "blk.4.", "blk.0."), mixer, ""),
        ("T'", shared_norm, shared, ""),
        ("T' with the norm twice", twice, shared, "output_hc_norm.weight: the same bytes under two names"),
    ];
    for (what, file, renames, drops) in rows {
        let model = load(&trunk(), &file, true).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!((&model.mtp, model.unexpected.len()), (&MtpStatus::Sidecar, 0), "{what}");
        let holds = |lines: &[String], part: &str| match part {
            "" => lines.is_empty(),
            part => lines.iter().any(|line| line.contains(part)),
        };
        assert!(holds(&model.renamed, renames), "{what}: {:?}", model.renamed);
        assert!(holds(&model.dropped, drops), "{what}: {:?}", model.dropped);
        assert_eq!(says(&Arc::new(model), &tokens), expected, "{what}");
    }
    // With the trunk's mixer for its own it would draft, and otherwise: what the refusal below saves from.
    let mut wrong = head();
    for part in MIXER {
        let trunks = qwen4exp(7).tensor(&format!("output_hc_{part}.weight")).data.clone();
        wrong.tensor(&format!("blk.4.nextn.hc_head_{part}.weight")).data = trunks;
    }
    assert_ne!(says(&Arc::new(load(&trunk(), &wrong, true).unwrap()), &tokens).1, expected.1);
}

#[test]
fn the_other_architectures_are_renumbered() {
    let drafts = |model: Model| -> Vec<TokenId> {
        let mut single = single(&Arc::new(model), 32, integer());
        single.trunk(&[5, 9, 80, 200], 4, Want::Choice);
        single.mtp(&[5, 9, 80, 200, 7], 3, false).draft.clone()
    };
    for arch in tiny::ARCHS {
        let expected = drafts(tiny::model(arch).load().unwrap());
        for from in ["blk.4.", "blk.0.", "blk.17."] {
            let model = load(&tiny::trunk(arch), &renamed(tiny::sidecar(arch), "blk.4.", from), true).unwrap();
            assert_eq!(model.dropped.len(), 2, "table and norm: {:?}", model.dropped);
            assert_eq!(drafts(model), expected, "{arch} {from}");
        }
    }
    // A file as converters write it.
    let target = edit!("qwen35-tiny/qwen35-tiny-Q8_0.gguf");
    let sidecar = edit!("qwen35-tiny/mtp-qwen35-tiny-Q8_0.gguf");
    let expected = drafts(load(&target, &sidecar, true).unwrap());
    let moved = load(&target, &renamed(sidecar, "blk.6.", "blk.0."), true).unwrap();
    assert_eq!(moved.renamed, ["blk.0.* as blk.6.*"]);
    assert_eq!(drafts(moved), expected);
}

#[test]
fn a_mixer_at_top_level_is_not_guessed() {
    // The trunk's, exactly and nearly; another one is the head's.
    let stripped = with(head().drop(|n| n.contains("hc_head")), &qwen4exp(7), "output_hc_");
    let parts = ["output_hc_norm.weight holds the trunk's mixer", "blk.4.nextn.hc_head_norm.weight"];
    not(&stripped, &parts);
    let scaled = |by: f32| {
        let mut edit = stripped.clone();
        let t = edit.tensor("output_hc_norm.weight");
        let values: Vec<f32> = super::generate::values(t).iter().map(|x| x * by).collect();
        t.data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        edit
    };
    not(&scaled(1.0005), &parts);
    load(&trunk(), &scaled(1.01), true).unwrap_or_else(|error| panic!("{error}"));
    // In another type it is the trunk's all the same.
    let mut short = stripped.clone();
    let t = short.tensor("output_hc_norm.weight");
    let half = |x: f32| ((x.to_bits() >> 13) - ((127 - 15) << 10)) as u16;
    let data = super::generate::values(t).into_iter().flat_map(|x| half(x).to_le_bytes()).collect();
    (t.kind, t.data) = (TensorType::F16, data);
    not(&short, &parts);
    // None at all: every name that it could have is said.
    let none = head().drop(|n| n.contains("hc_head_norm"));
    let text = load(&trunk(), &none, false).err().expect("no norm").to_string();
    let names =
        "blk.4.nextn.hc_head_norm.weight is missing, and so is output_hc_norm.weight, blk.4.nextn.shared_head_norm";
    assert!(text.contains(names), "{text}");
    // A part of it; and a whole model.
    for part in MIXER {
        let name = format!("output_hc_{part}.weight");
        not(&top_level().drop(|n| n == name), &[&format!("without {name}"), "a part of its last mixer is lost"]);
    }
    not(&qwen4exp(7), &["blk.4.* alone", "found blocks of a trunk"]);
    // The norm under both names, with different values.
    let shared = renamed(top_level(), "output_hc_norm", "blk.4.nextn.shared_head_norm");
    let mut both = with(shared, &top_level(), "output_hc_norm");
    both.tensor("output_hc_norm.weight").data.rotate_left(4);
    not(&both, &["both", "blk.4.nextn.shared_head_norm.weight", "output_hc_norm.weight"]);
}

#[test]
fn heads_in_halves_are_refused_with_what_to_do() {
    let halves = |to: [&str; 2]| {
        let edit = head().drop(|n| n.contains("eh_proj"));
        let zeros = vec![0.0; 64 * 64];
        edit.add(&format!("{}.weight", to[0]), &[64, 64], &zeros).add(&format!("{}.weight", to[1]), &[64, 64], &zeros)
    };
    let f = ["blk.4.nextn.fc_embd", "blk.4.nextn.fc_hidden"];
    let i = ["mtp.fc_embd", "mtp.fc_hidden"];
    let h = ["model.mtp.fc_embedding", "model.mtp.fc_hidden"];
    for (dialect, names) in [("dialect F", f), ("dialect I", i), ("dialect H", h)] {
        let pair = format!("{}.weight and {}.weight instead of blk.4.nextn.eh_proj.weight", names[0], names[1]);
        not(&halves(names), &[dialect, &pair, "joins both halves"]);
        not(&halves(names).drop(|n| n == format!("{}.weight", names[0])), &["the other half is missing"]);
        // One half called the whole.
        let mut lone = renamed(halves(names), names[0], "blk.4.nextn.eh_proj");
        not(&lone, &["both", "blk.4.nextn.eh_proj.weight", names[1]]);
        lone = lone.drop(|n| n.contains("fc_hidden"));
        let text = load(&trunk(), &lone, false).err().expect("half a projection").to_string();
        assert!(text.contains("[64, 64], expected [128, 64]") && text.contains("written for another layout"), "{text}");
    }
    // Given as the model it is still a head.
    refused(&halves(i), &["only block 4", "draft model"]);
    refused(&top_level(), &["only block 4", "draft model"]);
}

#[test]
fn names_of_other_heads_are_refused() {
    let rows = [
        ("output_hc_fn.weight", "deepseek4"),
        ("nextn.pre_projection.weight", "dialect G"),
        ("self_attn.qkv_proj.qweight", "dialect K"),
        ("mtp.layers.0.self_attn.q_proj.weight", "dialect H"),
    ];
    for (name, dialect) in rows {
        not(&head().add(name, &[4], &[0.0; 4]), &[name, dialect]);
    }
    // What could be no other file's than a head's is refused; the rest is reported, and refused when strict.
    for name in ["blk.4.nextn.foo.weight", "blk.4.attn_foo.weight", "mtp.foo.weight", "output_norm.weight"] {
        let file = head().add(name, &[4], &[0.0; 4]);
        let loose = name == "output_norm.weight";
        if loose {
            assert_eq!(load(&trunk(), &file, false).unwrap().unexpected, [name]);
        }
        let text = load(&trunk(), &file, loose).err().expect("refused").to_string();
        assert!(text.contains(&format!("{name} is not known")) && text.contains("head.gguf"), "{text}");
    }
}

/// A model's own block goes through the same table; what cannot be read of it costs the drafts alone.
#[test]
fn own_blocks_have_dialects_too() {
    let tokens = ids(30, 8);
    let expected = says(&Arc::new(qwen4exp(7).load().unwrap()), &tokens);
    let shared = renamed(qwen4exp(7), "blk.4.nextn.hc_head_norm", "blk.4.nextn.shared_head_norm");
    let model = shared.load().unwrap();
    assert_eq!((&model.mtp, model.unexpected.len(), model.renamed.len()), (&MtpStatus::Own, 0, 1));
    assert_eq!(says(&Arc::new(model), &tokens), expected);
    let zeros = vec![0.0; 64 * 64];
    for names in
        [["blk.4.nextn.fc_embd.weight", "blk.4.nextn.fc_hidden.weight"], ["mtp.fc_embd.weight", "mtp.fc_hidden.weight"]]
    {
        let halves = qwen4exp(7).drop(|n| n.contains("eh_proj"));
        let halves = halves.add(names[0], &[64, 64], &zeros).add(names[1], &[64, 64], &zeros);
        trunk_only(&halves, &[names[0], names[1], "instead of blk.4.nextn.eh_proj.weight"]);
        assert_eq!(says_trunk(&halves, &tokens), expected.0);
    }
}

fn says_trunk(edit: &Edit, tokens: &[u32]) -> Vec<f32> {
    let model = Arc::new(edit.load().unwrap());
    single(&model, tokens.len() + 8, super::exact()).trunk(tokens, tokens.len(), Want::ProbeAll).logits.clone()
}

/// What is listed without a file is what files hold, tensor for tensor.
#[test]
fn the_schema_is_what_files_hold() {
    let mut files = vec![qwen4exp(1), tiny::model("qwen35"), tiny::model("qwen35moe")];
    let fixtures = [
        "llama-tiny/llama-tiny-F32.gguf",
        "nemotronh-tiny/nemotronh-tiny-Q8_0.gguf",
        "qwen4exp-tiny/qwen4exp-tiny-BF16.gguf",
    ];
    files.extend(fixtures.iter().filter_map(|path| Edit::of(path)));
    for edit in files {
        let config = Config::read(&edit.meta).unwrap();
        let arch = config.arch.name();
        let rows = schema(&config);
        let file = edit.file();
        for row in rows.iter().filter(|row| !row.optional) {
            assert!(file.tensor(&row.name).is_some(), "{arch}: {} is in the file", row.name);
        }
        for t in file.tensors() {
            let row = rows.iter().find(|row| row.name == t.name);
            let row = row.unwrap_or_else(|| panic!("{arch}: {} is in the schema", t.name));
            // Without tokens the configuration does not say how long the table is, and tables may be padded.
            let open = ["token_embd.weight", "per_layer_token_embd.weight"].contains(&t.name.as_str());
            assert!(open || t.has_dims(&row.dims), "{arch}: {} {:?} {:?}", t.name, t.dims(), row.dims);
        }
        let drafts = rows.iter().any(|row| row.name.ends_with("nextn.eh_proj.weight"));
        assert_eq!(drafts, config.nextn == 1, "{arch}");
    }
}
