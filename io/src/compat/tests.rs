//! The table, row by row, and the rule of a mixer at top level.

use super::*;
use crate::TensorType;

const STREAMS: u64 = 256;
const BLOCK: [&str; 4] = ["attn_q", "hc_attn_norm", "indexer.k_proj", "ffn_gate_exps"];
const HEAD: [&str; 6] = ["eh_proj", "enorm", "hnorm", "hc_head_norm", "hc_head_down", "hc_head_up"];

fn tensor(name: &str) -> TensorInfo {
    TensorInfo::new("head.gguf", name, &[STREAMS], TensorType::F32).unwrap()
}

/// Names of a canonical head at block `k`.
fn canonical(k: usize) -> Vec<String> {
    let block = BLOCK.iter().map(|part| format!("blk.{k}.{part}.weight"));
    block.chain(HEAD.iter().map(|part| format!("blk.{k}.nextn.{part}.weight"))).collect()
}

/// A canonical head without the names that hold `gone`, with `more`.
fn head(gone: &[&str], more: &[&str]) -> Vec<String> {
    let mut names = canonical(48);
    names.retain(|name| !gone.iter().any(|gone| name.contains(gone)));
    names.extend(more.iter().map(|name| format!("{name}.weight")));
    names
}

/// Values: whether the mixer's norm is the trunk's, whether tensors of two names are the same.
#[derive(Clone, Copy, Default)]
struct Values {
    trunks: bool,
    same: bool,
}

fn map_of(arch: &str, names: &[String], values: Values) -> Result<(Mapping, Option<NameError>), NameError> {
    let tensors: Vec<TensorInfo> = names.iter().map(|name| tensor(name)).collect();
    let tensors: Vec<&TensorInfo> = tensors.iter().collect();
    let wide = (arch == "qwen4exp").then_some(STREAMS);
    let compare = Compare { is_trunks: &|_| values.trunks, same_bytes: &|_, _| values.same };
    let mapping = map(HeadFile { arch, tensors: &tensors, block: 48, wide }, compare)?;
    assert_eq!(mapping.fates.len(), names.len());
    let unknown = mapping.fates.iter().filter(|fate| **fate == Fate::Unknown).count();
    assert_eq!(mapping.uses.iter().sum::<usize>() + unknown, names.len(), "every tensor is accounted for");
    let refusal = mapping.renames_only(&tensors).err();
    Ok((mapping, refusal))
}

/// The canonical names that a `qwen4exp` head is read as, sorted, where renaming is enough.
fn read(names: &[String]) -> (Dialect, Vec<String>) {
    let (mapping, refusal) = map_of("qwen4exp", names, Values::default()).unwrap();
    assert_eq!(refusal, None);
    let mut out: Vec<String> =
        mapping.fates.into_iter().filter_map(|f| if let Fate::As(name) = f { Some(name) } else { None }).collect();
    out.sort();
    (mapping.dialect, out)
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

const MIXER_AT_TOP: [&str; 3] = ["output_hc_norm", "output_hc_down", "output_hc_up"];

#[test]
fn names_that_only_differ_are_one_head() {
    let whole = sorted(canonical(48));
    assert_eq!(read(&canonical(48)), (Dialect::Canonical, whole.clone()));
    for k in [0, 7, 49] {
        assert_eq!(read(&canonical(k)), (Dialect::Canonical, whole.clone()), "numbered {k}");
    }
    assert_eq!(read(&head(&[], &["token_embd", "output"])), (Dialect::Canonical, whole.clone()));
    assert_eq!(read(&head(&[], &MIXER_AT_TOP)), (Dialect::CanonicalAndTrunk, whole.clone()));
    assert_eq!(read(&head(&["hc_head"], &MIXER_AT_TOP)), (Dialect::TopLevel, whole.clone()));
    let shared = ["blk.48.nextn.shared_head_norm", "output_hc_down", "output_hc_up"];
    assert_eq!(read(&head(&["hc_head"], &shared)), (Dialect::SharedNorm, whole));
    // What stands beside the block for other architectures stays there.
    let names = ["blk.48.nextn.shared_head_norm.weight", "output_norm.weight", "blk.48.attn_q.bias"].map(String::from);
    let (mapping, _) = map_of("qwen35", &names, Values::default()).unwrap();
    assert_eq!(mapping.fates[0], Fate::As(names[0].clone()));
    assert_eq!(mapping.fates[1], Fate::Dropped("the target's own is used"));
    assert_eq!(mapping.fates[2], Fate::As(names[2].clone()));
}

/// Each rule counts what it took.
#[test]
fn rules_count_their_uses() {
    let (mapping, _) = map_of("qwen4exp", &head(&[], &MIXER_AT_TOP), Values::default()).unwrap();
    let uses = |found: &str, dialect| {
        let i = RULES.iter().position(|rule| rule.found == found && rule.dialect == dialect).unwrap();
        mapping.uses[i]
    };
    assert_eq!(uses("output_hc_norm", Dialect::CanonicalAndTrunk), 1);
    assert_eq!(uses("output_hc_norm", Dialect::TopLevel), 0);
    assert_eq!(uses("blk.B.nextn.hc_head_norm", Dialect::Canonical), 1);
    assert_eq!(uses("blk.B.attn_*", Dialect::Canonical), 1);
}

#[test]
fn other_names_are_those_that_are_renamed() {
    let of = |name: &str| other_names(name).collect::<Vec<_>>();
    let norm = ["output_hc_norm", "blk.7.nextn.shared_head_norm", "blk.7.nextn.hc_norm", "mtp.mixer_norm"];
    assert_eq!(of("blk.7.nextn.hc_head_norm.weight"), norm.map(|name| format!("{name}.weight")));
    assert_eq!(of("blk.7.nextn.enorm.weight"), ["mtp.pre_norm_embd.weight"]);
    assert!(of("blk.7.nextn.eh_proj.weight").is_empty() && of("blk.7.attn_q.weight").is_empty());
}

/// No rule is a dead one: each takes a tensor of some file.
#[test]
fn every_rule_is_reached() {
    for (i, rule) in RULES.iter().enumerate() {
        let arch = match rule.archs {
            Archs::Only(arch) => arch,
            Archs::Not(_) => "qwen35",
            Archs::All => "qwen4exp",
        };
        let name = match rule.found.strip_suffix('*') {
            Some(prefix) => format!("{}x.weight", prefix.replace("blk.B.", "blk.48.")),
            None => format!("{}.weight", rule.found.replace("blk.B.", "blk.48.")),
        };
        let mut names = vec![name.clone()];
        if MIXER_AT_TOP.contains(&rule.found) {
            names = MIXER_AT_TOP.map(|name| format!("{name}.weight")).to_vec();
        }
        if rule.when == When::OwnMixer {
            names.push(String::from("blk.48.nextn.hc_head_norm.weight"));
        }
        let (mapping, _) = map_of(arch, &names, Values::default()).unwrap();
        assert_eq!(mapping.uses[i], 1, "{name} of {:?}", rule.dialect);
    }
}

#[test]
fn nothing_is_left_out_in_silence() {
    let names = ["blk.48.nextn.foo", "blk.48.foo", "mtp.foo", "output_norm", "foo", "nextn.enorm"];
    for name in names {
        let (mapping, refusal) = map_of("qwen4exp", &head(&[], &[name]), Values::default()).unwrap();
        assert_eq!((mapping.fates.last(), refusal), (Some(&Fate::Unknown), None), "{name}");
    }
    // The norm of another width is none of the mixer's, and a second one is no alias.
    let mut short = tensor("blk.48.nextn.shared_head_norm.weight");
    short = TensorInfo::new("head.gguf", &short.name, &[64], TensorType::F32).unwrap();
    let compare = Compare { is_trunks: &|_| false, same_bytes: &|_, _| false };
    let of = HeadFile { arch: "qwen4exp", tensors: &[&short], block: 48, wide: Some(STREAMS) };
    assert_eq!(map(of, compare).unwrap().fates, [Fate::Unknown]);
    let both = head(&[], &["blk.48.nextn.shared_head_norm"]);
    assert_eq!(map_of("qwen4exp", &both, Values::default()).unwrap().0.fates.last(), Some(&Fate::Unknown));
}

fn error(names: &[String], values: Values) -> String {
    map_of("qwen4exp", names, values).expect_err("names that contradict each other").to_string()
}

fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{text}` does not say `{part}`");
    }
}

#[test]
fn a_mixer_at_top_level_has_four_cases() {
    // A trunk beside it.
    let mut whole = head(&["hc_head"], &MIXER_AT_TOP);
    whole.push(String::from("blk.3.attn_q.weight"));
    says(&error(&whole, Values::default()), &["blk.48.* alone", "blk.3.attn_q.weight"]);
    // A mixer of the head's own: a copy, whatever its values.
    let trunks = Values { trunks: true, same: false };
    let copy = map_of("qwen4exp", &head(&[], &MIXER_AT_TOP), trunks).unwrap().0;
    assert_eq!(copy.fates.iter().filter(|f| **f == Fate::Dropped("trunk mixer duplicate")).count(), 3);
    // None: the head's, unless it is the trunk's.
    let only = head(&["hc_head"], &MIXER_AT_TOP);
    assert!(map_of("qwen4exp", &only, Values::default()).is_ok());
    says(&error(&only, trunks), &["output_hc_norm.weight holds the trunk's mixer", "blk.48.nextn.hc_head_norm.weight"]);
    // A part of it, whoever's it is.
    for i in 0..3 {
        let (gone, left) = (MIXER_AT_TOP[i], [0, 1, 2].map(|j| MIXER_AT_TOP[(i + 1 + j) % 3]));
        for names in [head(&["hc_head"], &left[..2]), head(&[], &left[..2])] {
            says(&error(&names, Values::default()), &[&format!("without {gone}.weight"), left[0], left[1]]);
        }
        let text = error(&head(&["hc_head"], &left[..1]), Values::default());
        says(&text, &[&format!("it has {}.weight without", left[0]), gone, left[1]]);
    }
}

#[test]
fn two_names_of_one_tensor_are_the_same_bytes() {
    let mut both = MIXER_AT_TOP.to_vec();
    both.push("blk.48.nextn.shared_head_norm");
    let names = head(&["hc_head"], &both);
    let text = error(&names, Values::default());
    says(&text, &["output_hc_norm.weight", "blk.48.nextn.shared_head_norm.weight", "blk.48.nextn.hc_head_norm.weight"]);
    let same = map_of("qwen4exp", &names, Values { trunks: false, same: true }).unwrap().0;
    assert_eq!(same.dialect, Dialect::SharedNorm);
    assert_eq!(same.fates.last(), Some(&Fate::Dropped("the same bytes under two names")));
    says(&error(&head(&[], &["mtp.mixer_down"]), Values::default()), &["hc_head_down", "mtp.mixer_down"]);
    // A whole projection beside a half of one.
    let text = error(&head(&[], &["mtp.fc_hidden"]), Values { trunks: false, same: true });
    says(&text, &["blk.48.nextn.eh_proj.weight", "mtp.fc_hidden.weight"]);
}

fn refusal(arch: &str, names: &[String]) -> String {
    let (_, refusal) = map_of(arch, names, Values::default()).unwrap();
    refusal.expect("a head that cannot be read by renaming").to_string()
}

#[test]
fn halves_are_told_from_the_whole() {
    let rows: [(&[&str], &str); 3] = [
        (&["blk.48.nextn.fc_embd", "blk.48.nextn.fc_hidden"], "dialect F"),
        (&["mtp.fc_embd", "mtp.fc_hidden"], "dialect I"),
        (&["model.language_model.mtp.fc_embedding", "model.language_model.mtp.fc_hidden"], "dialect H"),
    ];
    for arch in ["qwen4exp", "qwen35"] {
        for (halves, dialect) in rows {
            let base = ["blk.48.nextn.enorm.weight", "blk.48.attn_q.weight"].map(String::from);
            let with = |halves: &[&str]| {
                base.iter().cloned().chain(halves.iter().map(|h| format!("{h}.weight"))).collect::<Vec<_>>()
            };
            let pair = format!("{}.weight and {}.weight instead of blk.48.nextn.eh_proj.weight", halves[0], halves[1]);
            let text = refusal(arch, &with(halves));
            says(&text, &[dialect, &pair, "joins both halves"]);
            assert!(!text.contains("missing"), "{text}");
            says(&refusal(arch, &with(&halves[..1])), &[halves[0], "instead of", "the other half is missing"]);
        }
    }
}

#[test]
fn what_is_no_head_of_this_model_is_named() {
    let rows = [
        ("mtp.layers.0.self_attn.q_proj", "dialect H", "engine-pack convert-head"),
        ("model.mtp.layers.0.mlp.gate", "dialect H", "engine-pack convert-head"),
        ("mtp.pre_fc_norm_embedding", "dialect H", "engine-pack convert-head"),
        ("mtp.hyper_connection_mixer.hc_norm", "dialect H", "engine-pack convert-head"),
        ("self_attn.qkv_proj.qweight", "dialect K", "GGUF head"),
        ("nextn.pre_projection", "dialect G", "architecture of its own"),
        ("mtp_post_proj", "dialect G", "architecture of its own"),
        ("output_hc_fn", "dialect deepseek4", "another architecture"),
        ("output_hc_base", "dialect deepseek4", "another architecture"),
        ("output_hc_scale", "dialect deepseek4", "another architecture"),
    ];
    for (name, dialect, reason) in rows {
        for arch in ["qwen4exp", "qwen35moe"] {
            says(&refusal(arch, &[format!("{name}.weight")]), &[dialect, name, reason]);
        }
    }
}
