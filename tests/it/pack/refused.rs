//! Heads and targets that do not fit: every way has words of its own, and nothing is written.

use std::fs;
use std::os::unix::fs::symlink;

use engine::model::load::{LoadOptions, Planned};
use engine_bin::pack::graft::Link;
use engine_io::TensorType;
use engine_io::gguf::{Array, Value};
use tempfile::TempDir;

use super::files::{Place, Whole, flags, halved, shards, write};
use crate::forward::edit::{Edit, renamed, with};

/// The graft is refused with exit code 3, a message that has all of `parts`, and no output.
fn refused(target: &Edit, head: &Edit, parts: &[&str]) {
    let place = Place::new(target, head);
    let error = place.graft(|_| {}).err().unwrap_or_else(|| panic!("accepted, expected {parts:?}"));
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{text}` does not say `{part}`");
    }
    assert_eq!(error.code(), 3, "{text}");
    let left: Vec<_> = fs::read_dir(place.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

fn ints(v: &[i32]) -> Value {
    Value::Array(Array::I32(v.to_vec()))
}

#[test]
fn targets_that_are_none() {
    let whole = Whole::qwen35();
    let (target, head) = (whole.target(), whole.head());
    refused(&whole.edit, &head, &["has a head already", "qwen35.nextn_predict_layers = 1", "--spec-draft-model HEAD"]);
    let mut stray = target.clone();
    stray.weights("blk.4.attn_norm.weight", &[64]);
    refused(&stray, &head, &["has a head already", "blk.4.attn_norm.weight behind 4 blocks"]);
    let mut top = target.clone();
    top.weights("mtp.fc.weight", &[64]);
    refused(&top, &head, &["has a head already", "mtp.fc.weight"]);
    let only = target.clone().drop(|n| n.starts_with("blk."));
    refused(&only, &head, &["holds no blk.0.*", "give the model itself as --target"]);
    let short = target.clone().drop(|n| n == "blk.2.ffn_up.weight");
    refused(&short, &head, &["blk.2.ffn_up.weight is missing"]);
    let list = target.set("qwen35.attention.head_count_kv", ints(&[2, 2]));
    refused(&list, &head, &["qwen35.attention.head_count_kv", "2", "4"]);
}

#[test]
fn heads_that_are_none_or_of_another_model() {
    let whole = Whole::qwen35();
    let (target, head) = (whole.target(), whole.head());
    let key = |name: &str| whole.key(name);
    refused(&target, &Whole::qwen4exp().head(), &["general.architecture is qwen4exp, the target's is qwen35"]);
    refused(&target, &target, &["nextn_predict_layers is 0, expected 1"]);
    let two = head.clone().set(&key("nextn_predict_layers"), Value::U32(2));
    refused(&target, &two, &["nextn_predict_layers is 2, expected 1"]);
    for n in [5, 6, u32::MAX] {
        let all = head.clone().set(&key("nextn_predict_layers"), Value::U32(n));
        refused(&target, &all, &["head.gguf", "nextn_predict_layers", "below"]);
    }
    // Some of a trunk: neither a head alone nor a whole model.
    let part = with(head.clone(), &whole.edit, "blk.1.");
    refused(&target, &part, &["is not a head alone", "[1, 4]"]);
    // Numbers: both values are named, and all of them at once.
    let width = head.clone().set(&key("embedding_length"), Value::U32(32)).set(&key("context_length"), Value::U32(5));
    refused(
        &target,
        &width,
        &["qwen35.embedding_length is u32 32 here and u32 64", "qwen35.context_length is u32 5 here"],
    );
    let base = head.clone().set(&key("rope.freq_base"), Value::F32(5e5));
    refused(&target, &base, &["qwen35.rope.freq_base is f32 500000 here and f32 10000 in the target"]);
    // Vocabulary: its kind, its length, its tokens.
    let kind = head.clone().set("tokenizer.ggml.model", Value::str("llama"));
    refused(&target, &kind, &["tokenizer.ggml.model", "\"llama\"", "\"gpt2\""]);
    let fewer = head.clone().set("tokenizer.ggml.tokens", Value::strs(["a"]));
    refused(&target, &fewer, &["number of tokens is 1 here and 512 in the target", "another vocabulary"]);
    let mut swapped: Vec<String> = (0..512).map(|i| format!("[{i}]")).collect();
    swapped.swap(0, 1);
    let tokens = head.clone().set("tokenizer.ggml.tokens", Value::strs(swapped));
    refused(&target, &tokens, &["hash of the token list"]);
    let moe = Whole::all().swap_remove(1);
    let pruned = moe.target().set(&moe.key("expert_count"), Value::U32(6));
    refused(&pruned, &moe.head(), &["expert_count is u32 8 here and u32 6", "experts were pruned"]);
    // Without a list there is nothing to compare: taken, with a word.
    let place = Place::new(&target, &head.unset("tokenizer.ggml.tokens"));
    let report = place.graft(|_| {}).unwrap();
    assert!(report.warnings.iter().any(|w| w.contains("has no token list")), "{:?}", report.warnings);
}

#[test]
fn tensors_that_no_rule_takes_or_that_are_missing() {
    let whole = Whole::qwen35();
    let (target, head) = (whole.target(), whole.head());
    let mut strange = head.clone();
    strange.weights("blk.4.nextn.gate.weight", &[64]);
    strange.weights("norm_f.weight", &[64]);
    refused(&target, &strange, &["no rule says what becomes of blk.4.nextn.gate.weight, norm_f.weight"]);
    // A name of a form that is known, of a tensor that is not.
    let mut stray = head.clone();
    stray.weights("blk.4.ffn_sideways.weight", &[64]);
    refused(&target, &stray, &["head.gguf", "blk.4.ffn_sideways.weight is not known to this architecture"]);
    for name in ["nextn.enorm", "attn_q", "ffn_down", "nextn.eh_proj"] {
        let name = format!("blk.4.{name}.weight");
        refused(&target, &head.clone().drop(|n| n == name), &["head.gguf", &name]);
    }
    // A projection as wide as one half, and of another width.
    for width in [64, 256] {
        let mut narrow = head.clone().drop(|n| n.ends_with("eh_proj.weight"));
        narrow.weights("blk.4.nextn.eh_proj.weight", &[width, 64]);
        refused(&target, &narrow, &["blk.4.nextn.eh_proj.weight has dimensions", "expected [128, 64]"]);
    }
    // An output norm that is not the target's.
    refused(
        &target,
        &with(head.clone(), &whole.edit, "output_norm")
            .set("general.name", Value::str("x"))
            .changed("output_norm.weight"),
        &["output_norm.weight is not the target's"],
    );
    let place = Place::new(&target, &with(head.clone(), &whole.edit, "output_norm"));
    assert_eq!(place.graft(|_| {}).unwrap().dropped[0].name, "output_norm.weight");
    // Names of checkpoints, of saved states, of other drafts: what they are is said.
    for (name, part) in [
        ("mtp.layers.0.self_attn.q_proj.weight", "engine-pack convert-head"),
        ("enorm.weight", "saved draft state"),
        ("nextn.pre_projection.weight", "architecture of its own"),
    ] {
        let mut other = head.clone();
        other.weights(name, &[64]);
        refused(&target, &other, &[name, part]);
    }
}

impl Edit {
    /// With a bit of a tensor changed.
    fn changed(mut self, name: &str) -> Self {
        self.tensor(name).data[0] ^= 1;
        self
    }
}

#[test]
fn mixers_that_are_the_trunks_or_in_parts() {
    let whole = Whole::qwen4exp();
    let (target, head) = (whole.target(), whole.head());
    // What a tool that keeps blk.* alone leaves of a head with the mixer at top level, and of one with both.
    let bare = head.clone().drop(|n| n.contains("hc_head_"));
    refused(&target, &bare, &["blk.4.nextn.hc_head_norm.weight is missing", "output_hc_norm.weight"]);
    let stripped = with(bare.clone(), &whole.edit, "output_hc_");
    refused(&target, &stripped, &["holds the trunk's mixer", "hc_head_norm"]);
    let top = renamed(head.clone(), "blk.4.nextn.hc_head_", "output_hc_");
    let partial = top.clone().drop(|n| n == "output_hc_up.weight");
    refused(&target, &partial, &["output_hc_norm.weight and output_hc_down.weight without output_hc_up.weight"]);
    let mut both = with(head.clone(), &head, "blk.4.nextn.hc_head_norm");
    both.tensors.last_mut().unwrap().name = "mtp.mixer_norm.weight".into();
    refused(&target, &both.changed("mtp.mixer_norm.weight"), &["both", "mtp.mixer_norm.weight", "different contents"]);
}

#[test]
fn halves_that_cannot_be_joined() {
    let whole = Whole::qwen4exp();
    let (embedding, hidden) = ("blk.4.nextn.fc_embd.weight", "blk.4.nextn.fc_hidden.weight");
    let halves = halved(whole.head(), embedding, hidden);
    for (gone, left) in [(embedding, hidden), (hidden, embedding)] {
        let lone = halves.clone().drop(|n| n == gone);
        refused(
            &whole.target(),
            &lone,
            &[left, "is one half of blk.4.nextn.eh_proj.weight and the other half is missing"],
        );
    }
    let mut types = halves.clone();
    let t = types.tensor(hidden);
    (t.kind, t.data) = (TensorType::F16, vec![0; t.data.len() / 2]);
    refused(&whole.target(), &types, &["cannot be joined", "[64, 64] F32 and [64, 64] F16"]);
    let mut narrow = halves.clone();
    let t = narrow.tensor(hidden);
    (t.dims, t.data) = (vec![32, 64], t.data[..32 * 64 * 4].to_vec());
    refused(&whole.target(), &narrow, &["cannot be joined", "[32, 64] F32"]);
    // Blocks of 256 do not divide rows of 64: joined rows would not be blocks. The reader says so of the file itself.
    // A whole one beside a half.
    let beside = with(halves, &whole.head(), "blk.4.nextn.eh_proj");
    refused(&whole.target(), &beside, &["eh_proj", "fc_embd"]);
}

#[test]
fn files_that_are_no_models() {
    let whole = Whole::qwen35();
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    let target = write(dir.path(), "t.gguf", &whole.target());
    let head = write(dir.path(), "h.gguf", &whole.head());
    let says = |target: &std::path::Path, head: &std::path::Path, parts: &[&str]| {
        let error = engine_bin::pack::graft::graft(&flags(target, head, &path("out"))).unwrap_err();
        let text = error.to_string();
        parts.iter().for_each(|part| assert!(text.contains(part), "`{text}` does not say `{part}`"));
        assert!(error.code() == 3 && !path("out").exists());
    };
    // Packs of other runtimes, checkpoints.
    fs::create_dir(path("pack")).unwrap();
    fs::write(path("pack/dense.bin"), "x").unwrap();
    says(&target, &path("pack"), &["pack for a runtime of its own", "Strata"]);
    fs::write(path("h.safetensors"), "x").unwrap();
    says(&target, &path("h.safetensors"), &["h.safetensors: not a safetensors file that can be read"]);
    fs::create_dir(path("checkpoint")).unwrap();
    fs::write(path("checkpoint/model.safetensors"), "x").unwrap();
    says(&target, &path("checkpoint"), &["model.safetensors: not a safetensors file that can be read"]);
    // Links that lead nowhere, files cut short, raw parts.
    symlink("blobs/gone", path("dangling.gguf")).unwrap();
    says(&path("dangling.gguf"), &head, &["dangling.gguf: the link points to blobs/gone, which does not exist"]);
    says(&target, &path("dangling.gguf"), &["does not exist"]);
    let bytes = fs::read(&head).unwrap();
    fs::write(path("cut.gguf"), &bytes[..bytes.len() - 9]).unwrap();
    says(&target, &path("cut.gguf"), &["cut.gguf: truncated", "blk.4."]);
    fs::write(path("model.gguf.part1of2"), &bytes[..bytes.len() / 2]).unwrap();
    says(&path("model.gguf.part1of2"), &head, &["join the parts into one file first"]);
    // A set with a shard missing, misnamed, or of another set.
    for (no, bytes) in shards(&whole.target(), 3).iter().enumerate() {
        fs::write(path(&format!("s-{:05}-of-00003.gguf", no + 1)), bytes).unwrap();
    }
    fs::rename(path("s-00002-of-00003.gguf"), path("kept")).unwrap();
    says(&path("s-00001-of-00003.gguf"), &head, &["s-00002-of-00003.gguf: shard 2 of 3 is missing"]);
    fs::copy(path("s-00003-of-00003.gguf"), path("s-00002-of-00003.gguf")).unwrap();
    says(&path("s-00001-of-00003.gguf"), &head, &["split.no = 2, expected 1"]);
    fs::rename(path("s-00001-of-00003.gguf"), path("other.gguf")).unwrap();
    says(&path("other.gguf"), &head, &["its name does not end in -NNNNN-of-NNNNN.gguf"]);
}

#[test]
fn outputs_that_cannot_be() {
    let whole = Whole::qwen35();
    let place = Place::new(&whole.target(), &whole.head());
    // Taken, before and by a link; the target itself is never written to.
    fs::create_dir(place.out()).unwrap();
    let error = place.graft(|_| {}).unwrap_err();
    assert!(error.code() == 3 && error.to_string().contains("exists already"), "{error}");
    fs::remove_dir(place.out()).unwrap();
    let error = place.graft(|f| f.out = f.target.clone()).unwrap_err();
    assert!(error.to_string().contains("exists already"), "{error}");
    let error = place.graft(|f| f.out = f.target.join("no/such/out")).unwrap_err();
    assert_eq!(error.code(), 1, "{error}");
    // A file system without clones says so, and what else there is.
    match place.graft(|f| f.link = Link::Reflink) {
        Ok(_) => fs::remove_dir_all(place.out()).unwrap(),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("cannot be cloned") && text.contains("--link hard"), "{text}");
            assert!(error.code() == 3 && !place.out().exists());
        }
    }
    // Another file system: told before anything is written, and a copy is made only when asked for.
    let Some(other) = other_file_system(&place) else { return };
    let out = other.path().join("out");
    for link in [Link::Auto, Link::Hard] {
        let error = place.graft(|f| (f.out, f.link) = (out.clone(), link)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("on another file system") && text.contains("--link symlink"), "{text}");
        assert!(error.code() == 3 && fs::read_dir(other.path()).unwrap().next().is_none());
    }
    for link in [Link::Copy, Link::Symlink] {
        let report = place.graft(|f| (f.out, f.link) = (out.clone(), link)).unwrap();
        assert_eq!(
            report.warnings.iter().filter(|w| w.contains("all its bytes are copied")).count(),
            if link == Link::Copy { 2 } else { 0 }
        );
        fs::remove_dir_all(&out).unwrap();
    }
}

/// A folder on another file system than the place's, or a skip that has been reported.
fn other_file_system(place: &Place) -> Option<TempDir> {
    use std::os::unix::fs::MetadataExt as _;
    let here = fs::metadata(place.dir.path()).unwrap().dev();
    let candidates = ["/dev/shm", "/run", "/var/tmp"];
    let found = candidates.iter().find(|c| fs::metadata(c).is_ok_and(|m| m.dev() != here));
    let dir = found.and_then(|c| tempfile::tempdir_in(c).ok());
    if dir.is_none() {
        engine_tests::fixtures::skip("links across file systems", "there is only one to be written to here");
    }
    dir
}

/// Two blocks announced for one: it is that number that is named, whatever lists over the blocks then say of the wrong
/// ones, by all who take a head.
#[test]
fn heads_of_two_blocks_are_named_by_their_number() {
    for whole in Whole::all() {
        let key = whole.key("nextn_predict_layers");
        let two = whole.head().set(&key, Value::U32(2));
        refused(&whole.target(), &two, &[&format!("{key} is 2, expected 1: one block")]);
        let beside = Planned::new(&whole.target().file(), Some(&two.file()), LoadOptions::default()).unwrap_err();
        let alone = Planned::sidecar(&two.file(), LoadOptions::default()).unwrap_err();
        for error in [beside, alone] {
            let text = error.to_string();
            assert!(text.contains(&format!("its {key} is 2, expected 1")), "{text}");
        }
        // In a whole model a block of the trunk then counts as the head's: the number is named with whatever disagrees.
        let file = whole.edit.clone().set(&key, Value::U32(2)).file();
        let text = match Planned::new(&file, None, LoadOptions::default()) {
            Err(error) => error.to_string(),
            Ok(planned) => format!("{:?}", planned.plan.mtp),
        };
        assert!(text.contains(&key), "{text}");
    }
    // Every list by which a block can be told from an MTP block.
    let of_block = |whole: &Whole, list: &str, value: Value| {
        let edit = whole.edit.clone().set(&whole.key(list), value);
        let text = Planned::new(&edit.file(), None, LoadOptions::default()).unwrap_err().to_string();
        let block = format!("{} = 1 makes block {} an MTP block", whole.key("nextn_predict_layers"), whole.trunk);
        assert!(text.contains(&block) && text.contains(&whole.key(list)), "{text}");
    };
    let q = Whole::qwen4exp();
    of_block(&q, "attention.head_count_kv", ints(&[2, 2, 2, 2, 0]));
    of_block(&q, "expert_used_count", ints(&[2, 2, 2, 2, 0]));
    of_block(&q, "attention.recurrent_layers", Value::Array(Array::Bool(vec![true, true, true, false, true])));
}
