use std::fs::File;

use super::*;
use crate::FileWatch;
use crate::gguf::write::Layout;
use crate::gguf::{TensorType, Value};

/// A file every clone has.
fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(path)
}

/// The folder with all recorded models, or a printed skip.
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
        assert_eq!(ty.block_len(), q["block"].as_u64().unwrap(), "{q}");
        assert_eq!(ty.block_bytes(), q["size"].as_u64().unwrap(), "{q}");
        assert_eq!(ty.row_bytes(512), q["row_bytes"].as_u64(), "{q}");
    }
}

/// Rewriting a file of another writer gives its bytes again: keys, directory, padding, data.
#[test]
fn files_of_another_writer_survive_a_round_trip_byte_for_byte() {
    let mut seen = 0;
    for model in fs::read_dir(data("")).unwrap() {
        let model = model.unwrap().path();
        for path in fs::read_dir(&model).into_iter().flatten() {
            let path = path.unwrap().path();
            if path.extension().is_none_or(|e| e != "gguf") {
                continue;
            }
            let (shard, tensors) = open_file(&path, OpenOptions::default()).unwrap();
            let mut layout = Layout::new(shard.meta).unwrap();
            let mut parts = Vec::new();
            for t in &tensors {
                layout.tensor(&t.name, t.dims(), t.ty).unwrap();
                parts.push(&shard.bytes[t.start as usize..(t.start + t.bytes) as usize]);
            }
            let again = layout.to_bytes(&parts).unwrap();
            assert!(again == *shard.bytes, "{} differs", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 10, "{seen} GGUF files below tests/data");
}

#[test]
fn a_real_set_opens_by_any_shard() {
    let name = |i| data(&format!("qwen35-tiny/qwen35-tiny-nomtp-Q8_0-0000{i}-of-00003.gguf"));
    let models = [1, 2, 3].map(|i| ModelFile::open(name(i), OpenOptions { mmap: true, strict: true }).unwrap());
    for m in &models {
        assert_eq!(m.shards().len(), 3);
        assert_eq!(m.tensors(), models[0].tensors());
        assert_eq!(m.tensors().len() as u64, m.meta().get_u64(keys::SPLIT_TENSORS_COUNT).unwrap().unwrap());
        assert_eq!(m.meta().architecture().unwrap(), "qwen35");
    }
}

/// Bytes of a small file: metadata and F32 tensors of four elements, filled by `fill`.
fn file(pairs: &[(&str, Value)], tensors: &[&str], fill: u8) -> Vec<u8> {
    let mut meta = Meta::new("written");
    for (key, value) in pairs {
        meta.push(key, value.clone()).unwrap();
    }
    let mut layout = Layout::new(meta).unwrap();
    for name in tensors {
        layout.tensor(name, &[4], TensorType::F32).unwrap();
    }
    layout.to_bytes(&vec![&[fill; 16][..]; tensors.len()]).unwrap()
}

/// Split keys of one shard.
type Split = (u16, u16, i32);

fn shard_bytes(split: Split, arch: bool, tensors: &[&str], fill: u8) -> Vec<u8> {
    let mut pairs = vec![
        (keys::SPLIT_NO, Value::U16(split.0)),
        (keys::SPLIT_COUNT, Value::U16(split.1)),
        (keys::SPLIT_TENSORS_COUNT, Value::I32(split.2)),
    ];
    if arch {
        pairs.push((keys::ARCHITECTURE, Value::str("llama")));
    }
    file(&pairs, tensors, fill)
}

/// A set of three: metadata alone, then two and one tensors. `keys` are the split keys of each.
fn write_set(dir: &Path, keys: [Split; 3]) -> [PathBuf; 3] {
    let tensors: [&[&str]; 3] = [&[], &["a", "b"], &["c"]];
    [0, 1, 2].map(|i| {
        let path = dir.join(format!("m-{:05}-of-00003.gguf", i + 1));
        fs::write(&path, shard_bytes(keys[i], i == 0, tensors[i], i as u8)).unwrap();
        path
    })
}

const GOOD: [Split; 3] = [(0, 3, 3), (1, 3, 3), (2, 3, 3)];

fn open(path: &Path) -> Result<ModelFile> {
    ModelFile::open(path, OpenOptions::default())
}

#[track_caller]
fn refused(path: &Path, part: &str) -> Error {
    let e = open(path).expect_err("the model is bad");
    assert!(e.to_string().contains(part), "{:?} does not speak of {part:?}", e.to_string());
    e
}

#[test]
fn any_shard_or_the_directory_gives_the_whole_model() {
    let dir = tempfile::tempdir().unwrap();
    // A directory whose own name looks split is ordinary.
    let dir = dir.path().join("x-00002-of-00009.gguf");
    fs::create_dir(&dir).unwrap();
    let paths = write_set(&dir, GOOD);
    fs::write(dir.join("mtp-m.gguf"), file(&[], &["h"], 9)).unwrap();
    fs::write(dir.join("mmproj-m.gguf"), file(&[], &["v"], 9)).unwrap();
    fs::write(dir.join("._m-00001-of-00003.gguf"), b"resource fork").unwrap();
    fs::write(dir.join("README.md"), b"text").unwrap();
    for path in paths.iter().map(PathBuf::as_path).chain([dir.as_path()]) {
        for mmap in [true, false] {
            let m = ModelFile::open(path, OpenOptions { mmap, strict: true }).unwrap();
            assert_eq!(
                m.tensors().iter().map(|t| (t.name.as_str(), t.shard)).collect::<Vec<_>>(),
                [("a", 1), ("b", 1), ("c", 2)]
            );
            assert_eq!(&m.data(m.require("a").unwrap())[..], [1; 16]);
            assert_eq!(&m.data(m.require("c").unwrap())[..], [2; 16]);
            assert_eq!(m.name(), paths[0].display().to_string());
            assert!(m.shards().iter().all(|s| s.mapped == mmap && s.modified.is_some()));
            assert_eq!(m.file_bytes(), paths.iter().map(|p| fs::metadata(p).unwrap().len()).sum::<u64>());
            assert!(m.notes().is_empty());
            m.check_unchanged().unwrap();
        }
    }
    assert!(matches!(open(&paths[0]).unwrap().require("d"), Err(Error::MissingTensor { .. })));
}

#[test]
fn ambiguous_directories_list_their_choices() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(open(dir.path()), Err(Error::NoModelInDirectory { .. })));
    fs::write(dir.path().join("mtp-m.gguf"), file(&[], &["h"], 9)).unwrap();
    assert_eq!(open(dir.path()).unwrap().tensors()[0].name, "h", "a companion alone is what was meant");
    write_set(dir.path(), GOOD);
    open(dir.path()).unwrap();
    fs::write(dir.path().join("n-00002-of-00002.gguf"), shard_bytes((1, 2, 1), false, &["z"], 0)).unwrap();
    let Error::AmbiguousDirectory { choices, .. } = open(dir.path()).unwrap_err() else { panic!("two models") };
    assert_eq!(choices.len(), 2);
    assert!(
        choices[0].ends_with("m-00001-of-00003.gguf") && choices[1].ends_with("n-00001-of-00002.gguf"),
        "{choices:?}"
    );
}

#[test]
fn names_that_only_look_split_are_ordinary() {
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "best-of-breed.gguf",
        "m-00000-of-00003.gguf",
        "m-00004-of-00003.gguf",
        "m-00002-of-00003.gguf",
        "m-0001-of-0003.gguf",
        "m-00001-of-00003.bin",
    ] {
        let path = dir.path().join(name);
        fs::write(&path, file(&[], &["w"], 1)).unwrap();
        assert_eq!(open(&path).unwrap().shards().len(), 1, "{name}");
    }
    // One of one is complete, with split keys or without.
    let path = dir.path().join("m-00001-of-00001.gguf");
    fs::write(&path, shard_bytes((0, 1, 1), true, &["w"], 1)).unwrap();
    assert_eq!(open(&path).unwrap().tensors().len(), 1);
    // In a directory, too: two such files are two models.
    let dir = tempfile::tempdir().unwrap();
    for i in [1, 2] {
        fs::write(dir.path().join(format!("v-0000{i}-of-00002.gguf")), file(&[], &["w"], 1)).unwrap();
    }
    assert!(matches!(open(dir.path()), Err(Error::AmbiguousDirectory { .. })));

    let parse = |s: &str| SplitName::parse(Path::new(s)).map(|n| (n.no, n.count, n.sibling(1)));
    assert_eq!(parse("d/a-of-b-00002-of-00003.gguf"), Some((2, 3, "d/a-of-b-00001-of-00003.gguf".into())));
    assert_eq!(parse("x-00001-of-00002/model.gguf"), None);
    assert_eq!(parse("m-+0001-of-00003.gguf"), None);
}

#[test]
fn split_keys_must_agree() {
    let check = |keys: [Split; 3], part: &str| {
        let dir = tempfile::tempdir().unwrap();
        let paths = write_set(dir.path(), keys);
        for path in paths {
            assert!(matches!(refused(&path, part), Error::SplitMismatch { .. }));
        }
    };
    check([(0, 4, 3), (1, 4, 3), (2, 4, 3)], "split.count = 4, expected 3");
    check([(0, 3, 3), (1, 3, 3), (1, 3, 3)], "split.no = 1, expected 2");
    check([(1, 3, 3), (2, 3, 3), (3, 3, 3)], "split.no = 1, expected 0");
    check([(0, 3, 4), (1, 3, 4), (2, 3, 4)], "split.tensors.count = 4, expected 3");
    check([(0, 3, 2), (1, 3, 2), (2, 3, 2)], "split.tensors.count = 2, expected 3");
}

#[test]
fn stale_counts_of_later_shards_are_a_warning_and_refused_when_strict() {
    let dir = tempfile::tempdir().unwrap();
    let paths = write_set(dir.path(), [(0, 3, 3), (1, 2, 2), (2, 3, 3)]);
    for path in &paths {
        let m = open(path).unwrap();
        assert_eq!(m.notes().len(), 2, "{:?}", m.notes());
        assert!(m.notes()[0].contains("says split.count = 2, the first shard says "), "{:?}", m.notes());
        let strict = ModelFile::open(path, OpenOptions { mmap: true, strict: true });
        assert!(matches!(strict, Err(Error::Strict { .. })));
    }
}

#[test]
fn later_shards_may_hold_split_no_alone_and_any_width() {
    let dir = tempfile::tempdir().unwrap();
    let paths = write_set(dir.path(), GOOD);
    let first = [
        (keys::SPLIT_NO, Value::U32(0)),
        (keys::SPLIT_COUNT, Value::U32(3)),
        (keys::SPLIT_TENSORS_COUNT, Value::U64(3)),
    ];
    fs::write(&paths[0], file(&first, &[], 0)).unwrap();
    fs::write(&paths[1], file(&[(keys::SPLIT_NO, Value::U32(1))], &["a", "b"], 1)).unwrap();
    for path in &paths {
        assert_eq!(open(path).unwrap().tensors().len(), 3);
    }
    fs::write(&paths[1], file(&[], &["a", "b"], 1)).unwrap();
    refused(&paths[0], "split.no = absent");
    fs::write(&paths[0], file(&[(keys::SPLIT_COUNT, Value::str("3"))], &[], 0)).unwrap();
    assert!(matches!(refused(&paths[0], "split.count"), Error::WrongType { .. }));
}

#[test]
fn shards_of_another_model_or_with_a_tensor_twice_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let paths = write_set(dir.path(), GOOD);
    let foreign = [(keys::SPLIT_NO, Value::U16(1)), (keys::ARCHITECTURE, Value::str("qwen35"))];
    fs::write(&paths[1], file(&foreign, &["a", "b"], 1)).unwrap();
    refused(&paths[0], "general.architecture = string \"qwen35\", expected string \"llama\"");
    fs::write(&paths[1], shard_bytes((1, 3, 3), false, &["a", "c"], 1)).unwrap();
    let e = refused(&paths[0], "tensor c appears twice");
    assert!(e.to_string().contains("m-00002") && e.to_string().contains("m-00003"), "{e}");
}

#[test]
fn every_shard_is_examined_when_opening() {
    let dir = tempfile::tempdir().unwrap();
    let paths = write_set(dir.path(), GOOD);
    let whole = fs::read(&paths[2]).unwrap();
    fs::write(&paths[2], &whole[..whole.len() - 20]).unwrap();
    assert!(matches!(refused(&paths[0], "m-00003-of-00003.gguf: truncated: tensor c"), Error::TruncatedTensor { .. }));
    fs::remove_file(&paths[2]).unwrap();
    assert!(matches!(refused(dir.path(), "shard 3 of 3"), Error::SplitMissingShard { no: 3, .. }));
    fs::write(&paths[2], &whole).unwrap();
    fs::remove_file(&paths[0]).unwrap();
    assert!(matches!(refused(&paths[1], "shard 1 of 3"), Error::SplitMissingShard { no: 1, .. }));
    assert!(matches!(refused(dir.path(), "shard 1 of 3"), Error::SplitMissingShard { no: 1, .. }));
}

#[test]
fn caches_of_symbolic_links_work() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (dir.path().join("blobs"), dir.path().join("snapshots"));
    fs::create_dir(&blobs).unwrap();
    fs::create_dir(&snapshot).unwrap();
    for (i, path) in write_set(&blobs, GOOD).iter().enumerate() {
        fs::rename(path, blobs.join(format!("hash{i}"))).unwrap();
        symlink(format!("../blobs/hash{i}"), snapshot.join(path.file_name().unwrap())).unwrap();
    }
    for path in [snapshot.clone(), snapshot.join("m-00002-of-00003.gguf")] {
        let m = open(&path).unwrap();
        assert_eq!(m.tensors().len(), 3);
        assert_eq!(m.shards()[1].path, snapshot.join("m-00002-of-00003.gguf"));
        assert_eq!(m.shards()[1].real_path, fs::canonicalize(blobs.join("hash1")).unwrap());
    }
    assert!(matches!(
        refused(&blobs.join("hash1"), "the link, not the blob"),
        Error::SplitName { no: 2, count: 3, .. }
    ));
    fs::remove_file(blobs.join("hash2")).unwrap();
    assert!(matches!(refused(&snapshot, "../blobs/hash2, which does not exist"), Error::BrokenLink { .. }));
}

#[test]
fn paths_that_are_no_model_say_so() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(refused(&dir.path().join("none.gguf"), "none.gguf"), Error::Io { action: "open", .. }));
    let empty = dir.path().join("empty.gguf");
    fs::write(&empty, b"").unwrap();
    assert!(matches!(refused(&empty, "truncated"), Error::Truncated { present: 0, .. }));
    assert!(matches!(refused(Path::new("/dev/null"), "is a device, expected a regular file"), Error::NotAFile { .. }));
    // A raw piece of a cut file.
    let part = dir.path().join("model.gguf.part1of2");
    fs::write(&part, &file(&[], &["w"], 1)[..70]).unwrap();
    refused(&part, "join the parts");
}

/// What is done to a file, and whether mapped bytes may be another model's afterwards.
#[test]
fn a_changed_file_is_noticed() {
    type Change = fn(&Path, &[u8]);
    fn writer(path: &Path) -> File {
        File::options().write(true).open(path).unwrap()
    }
    let changes: [(&str, bool, Change); 7] = [
        ("nothing", false, |_, _| ()),
        ("shorter by one byte, the time set back", true, |path, bytes| {
            let modified = fs::metadata(path).unwrap().modified().unwrap();
            let file = writer(path);
            file.set_len(bytes.len() as u64 - 1).unwrap();
            file.set_modified(modified).unwrap();
        }),
        ("shrunk, then grown to its size", true, |path, bytes| {
            writer(path).set_len(bytes.len() as u64 - 1).unwrap();
            writer(path).set_len(bytes.len() as u64).unwrap();
        }),
        ("written over", true, |path, bytes| fs::write(path, bytes).unwrap()),
        ("touched", true, |path, _| writer(path).set_modified(SystemTime::UNIX_EPOCH).unwrap()),
        ("replaced under its name", false, |path, bytes| {
            let new = path.with_extension("new");
            fs::write(&new, &bytes[..bytes.len() - 4]).unwrap();
            fs::rename(new, path).unwrap();
        }),
        ("linked", false, |path, _| fs::hard_link(path, path.with_extension("link")).unwrap()),
    ];
    for (what, changed, change) in changes {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        let bytes = file(&[], &["w"], 1);
        fs::write(&path, &bytes).unwrap();
        // A time stamp of its own: one write after another may have the same.
        writer(&path).set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1)).unwrap();
        let m = open(&path).unwrap();
        let read = ModelFile::open(&path, OpenOptions { mmap: false, strict: false }).unwrap();
        let (mapped, in_memory) = (FileWatch::of([&m, &m]), FileWatch::of([&read]));
        assert!(in_memory.is_empty() && !mapped.is_empty());
        mapped.check().unwrap();
        change(&path, &bytes);
        drop(m);
        match mapped.check() {
            Ok(()) => assert!(!changed, "{what} is not noticed"),
            Err(error @ Error::FileChanged { .. }) => {
                let text = error.to_string();
                assert!(changed, "{what}: {text}");
                assert!(text.contains("m.gguf: ") && text.contains("modified at 1.000000000 s"), "{what}: {text}");
            }
            Err(error) => panic!("{what}: {error}"),
        }
        assert_eq!(read.check_unchanged().is_err(), changed, "{what}");
        in_memory.check().unwrap();
    }
    let memory: &'static [u8] = file(&[], &["w"], 1).leak();
    assert!(FileWatch::of([&ModelFile::from_static(memory, "built-in").unwrap()]).is_empty());
}

#[test]
fn static_bytes_are_a_model() {
    let bytes: &'static [u8] = file(&[(keys::ARCHITECTURE, Value::str("llama"))], &["w"], 5).leak();
    let m = ModelFile::from_static(bytes, "built-in").unwrap();
    let data = m.data(m.tensor("w").unwrap());
    let model_gone = {
        drop(m);
        data.clone()
    };
    assert_eq!(&model_gone[..], [5; 16]);
    assert_eq!(&model_gone.slice(4..8)[..], [5; 4]);
    assert!(matches!(ModelFile::from_static(&bytes[..30], "built-in"), Err(Error::Truncated { .. })));
    let split: &'static [u8] = shard_bytes((0, 2, 1), true, &["w"], 5).leak();
    assert!(matches!(ModelFile::from_static(split, "built-in"), Err(Error::Inconsistent { .. })));
}
