use super::*;
use crate::gguf::TensorType;

/// The fixture folder, or a printed skip.
fn fixtures() -> Option<PathBuf> {
    let dir = std::env::var_os("SLIPSTREAM_FIXTURES").map(PathBuf::from).filter(|d| d.is_dir());
    if dir.is_none() {
        println!("skipped: SLIPSTREAM_FIXTURES does not name a folder");
    }
    dir
}

#[test]
fn every_fixture_opens_and_matches_its_record() {
    let Some(dir) = fixtures() else { return };
    let files: serde_json::Value = serde_json::from_slice(&fs::read(dir.join("files.json")).unwrap()).unwrap();
    let mut seen = 0;
    for (name, record) in files.as_object().unwrap() {
        let Some(types) = record["tensors"].as_object() else { continue };
        let (shard, tensors) = open_file(&dir.join(name), OpenOptions::default()).unwrap();
        assert_eq!(shard.bytes.len() as u64, record["bytes"].as_u64().unwrap(), "{name}");
        let mut found: BTreeMap<&str, u64> = BTreeMap::new();
        for t in &tensors {
            *found.entry(t.ty.name()).or_default() += 1;
        }
        let expected: BTreeMap<&str, u64> = types.iter().map(|(k, v)| (k.as_str(), v.as_u64().unwrap())).collect();
        assert_eq!(found, expected, "{name}");
        // The data end where the file ends, but for padding.
        let end = tensors.iter().map(|t| t.start + t.bytes).max().unwrap_or(shard.data_start);
        assert!(shard.bytes.len() as u64 - end < shard.alignment, "{name}");
        seen += 1;
    }
    assert!(seen > 20, "{seen} GGUF files in files.json");
}

#[test]
fn fixture_quants_have_the_recorded_block_sizes() {
    let Some(dir) = fixtures() else { return };
    let quants: serde_json::Value = serde_json::from_slice(&fs::read(dir.join("quants/quants.json")).unwrap()).unwrap();
    for q in quants["types"].as_array().unwrap() {
        let ty = TensorType::from_id(q["id"].as_u64().unwrap() as u32).unwrap();
        assert!(ty.name().eq_ignore_ascii_case(q["name"].as_str().unwrap()), "{q}");
        assert_eq!(TensorType::from_name(q["name"].as_str().unwrap()), Some(ty));
        assert_eq!(ty.block_len(), q["block"].as_u64().unwrap(), "{q}");
        assert_eq!(ty.block_bytes(), q["size"].as_u64().unwrap(), "{q}");
        assert_eq!(ty.row_bytes(512), q["row_bytes"].as_u64(), "{q}");
    }
}
