use std::fs;
use std::path::Path;

use super::*;

/// A file of tensors of zeros.
fn write(path: &Path, tensors: &[(&str, &str, &[u64], u64)]) {
    let mut at = 0;
    let mut header = serde_json::Map::new();
    for (name, dtype, shape, bytes) in tensors {
        header.insert(
            (*name).into(),
            serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes]}),
        );
        at += bytes;
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(header.as_bytes());
    out.resize(out.len() + at as usize, 0);
    fs::write(path, out).unwrap();
}

fn is_mtp(name: &str) -> bool {
    name.starts_with("mtp.")
}

fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::open(path, is_mtp)
}

/// The path is refused with a message that has all of `parts`.
fn refused(path: &Path, parts: &[&str]) -> CheckpointError {
    let error = open(path).err().unwrap_or_else(|| panic!("accepted, expected {parts:?}"));
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{text}` does not say `{part}`");
    }
    error
}

const ONE: &[(&str, &str, &[u64], u64)] = &[("mtp.fc.weight", "BF16", &[2, 4], 16), ("lm_head.weight", "F32", &[2], 8)];

#[test]
fn a_file_and_a_directory_hold_what_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("head.safetensors");
    write(&file, ONE);
    for path in [dir.path(), &file] {
        let found = open(path).unwrap();
        assert_eq!((found.tensors().len(), found.others()), (1, 1));
        let t = &found.tensors()[0];
        let expected = ("mtp.fc.weight", "BF16", Some(TensorType::Bf16), &[2, 4][..], 16);
        assert_eq!((t.name.as_str(), t.dtype.as_str(), t.ty, t.shape.as_slice(), t.bytes), expected);
        assert!(found.config().unwrap().is_none());
    }
    fs::write(dir.path().join("config.json"), "{}").unwrap();
    assert_eq!(open(&file).unwrap().config().unwrap().unwrap().1, serde_json::json!({}));
    fs::write(dir.path().join("config.json"), r#"{"hidden_size": 4, "hidden_size": 8}"#).unwrap();
    assert!(open(&file).unwrap().config().unwrap_err().to_string().contains("stands twice"));
}

#[test]
fn an_index_says_what_to_open() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let index = |map: &str| fs::write(at("model.safetensors.index.json"), map).unwrap();
    write(&at("a.safetensors"), ONE);
    // No header at all: a file without wanted tensors is never opened.
    fs::write(at("b.safetensors"), b"not opened").unwrap();
    index(r#"{"weight_map": {"mtp.fc.weight": "a.safetensors", "lm_head.weight": "b.safetensors"}}"#);
    assert_eq!(open(dir.path()).unwrap().tensors().len(), 1);
    // A file that the index does not speak of is looked into.
    write(&at("mtp.safetensors"), &[("mtp.norm.weight", "F32", &[2], 8)]);
    let found = open(dir.path()).unwrap();
    assert_eq!(
        found.tensors().iter().map(|t| t.name.as_str()).collect::<Vec<_>>(),
        ["mtp.fc.weight", "mtp.norm.weight"]
    );
    assert_eq!(found.files().count(), 2);
    write(&at("mtp.safetensors"), ONE);
    assert!(matches!(refused(dir.path(), &["mtp.fc.weight", "twice", "a.safetensors"]), CheckpointError::Twice { .. }));
    fs::remove_file(at("mtp.safetensors")).unwrap();

    for name in ["../a.safetensors", "/a.safetensors", "sub/a.safetensors", "..", "a.bin", ""] {
        index(&serde_json::json!({"weight_map": {"lm_head.weight": name}}).to_string());
        let error = refused(dir.path(), &["lm_head.weight", "beside the index"]);
        assert!(matches!(error, CheckpointError::Outside { .. }));
    }
    index(r#"{"weight_map": {"mtp.fc.weight": "c.safetensors"}}"#);
    let error = refused(dir.path(), &["c.safetensors", "mtp.fc.weight", "index.json", "download"]);
    assert!(matches!(error, CheckpointError::MissingFile { .. }));
    index(r#"{"weight_map": {"mtp.norm.weight": "a.safetensors"}}"#);
    let error = refused(dir.path(), &["a.safetensors", "mtp.norm.weight", "index.json"]);
    assert!(matches!(error, CheckpointError::NotInFile { .. }));
    index("{}");
    refused(dir.path(), &["index.json", "is no index"]);
    index(r#"{"weight_map": {"mtp.fc.weight": "a.safetensors", "mtp.fc.weight": "b.safetensors"}}"#);
    refused(dir.path(), &["index.json", "mtp.fc.weight", "stands twice"]);
    index("{}");
    fs::write(at("other.safetensors.index.json"), "{}").unwrap();
    assert!(matches!(refused(dir.path(), &["several indexes"]), CheckpointError::Ambiguous { .. }));
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(refused(empty.path(), &["no .safetensors"]), CheckpointError::NoCheckpoint { .. }));
}

#[test]
fn damaged_headers_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("head.safetensors");
    let raw = |header: &str, len: Option<u64>, data: usize| {
        let mut out = len.unwrap_or(header.len() as u64).to_le_bytes().to_vec();
        out.extend_from_slice(header.as_bytes());
        out.resize(out.len() + data, 0);
        fs::write(&file, out).unwrap();
    };
    let entry =
        |shape: &str, from: u64, to: u64| format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":[{from},{to}]}}"#);
    let two = |a: String, b: String| format!(r#"{{"mtp.a":{a},"mtp.b":{b}}}"#);
    for len in [1 << 20, u64::MAX, 200_000_000] {
        raw("{}", Some(len), 16);
        refused(&file, &["head.safetensors", &format!("{len} bytes"), "download it again"]);
    }
    raw(&two(entry("[2]", 0, 8), entry("[2]", 4, 12)), None, 12);
    refused(&file, &["mtp.", "overlap"]);
    raw(&two(entry("[2]", 0, 8), entry("[2]", 12, 20)), None, 20);
    refused(&file, &["mtp.", "hole"]);
    raw(&format!(r#"{{"mtp.a":{}}}"#, entry("[3]", 0, 8)), None, 8);
    refused(&file, &["more or fewer bytes"]);
    raw(&format!(r#"{{"mtp.a":{}}}"#, entry("[4294967296,4294967296,16]", 0, 8)), None, 8);
    refused(&file, &["beyond 64 bits"]);
    for data in [4, 12] {
        raw(&format!(r#"{{"mtp.a":{}}}"#, entry("[2]", 0, 8)), None, data);
        refused(&file, &["do not end where the file ends"]);
    }
    for twice in [
        two(entry("[2]", 0, 8), entry("[2]", 0, 8)).replace("mtp.b", "mtp.a"),
        format!(r#"{{"mtp.a":{}}}"#, entry("[2]", 0, 8).replacen('{', r#"{"dtype":"F32","#, 1)),
        format!(r#"{{"__metadata__":{{"format":"pt","format":"np"}},"mtp.a":{}}}"#, entry("[2]", 0, 8)),
    ] {
        raw(&twice, None, 8);
        let text = refused(&file, &["head.safetensors"]).to_string();
        assert!(text.contains("stands twice") || text.contains("duplicate field"), "{text}");
    }
    raw("no json", None, 0);
    refused(&file, &["download it again"]);
    fs::write(&file, b"short").unwrap();
    refused(&file, &["5 bytes"]);
    fs::write(&file, b"version https://git-lfs.github.com/spec/v1\n").unwrap();
    refused(&file, &["git lfs pull"]);
    fs::write(&file, b"GGUF\x03\0\0\0\0\0\0\0").unwrap();
    refused(&file, &["needs no conversion"]);
    refused(&dir.path().join("absent"), &["absent", "cannot open"]);
}
