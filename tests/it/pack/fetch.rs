//! Models of a hub by name: what is asked, what is kept, and what happens when either side does not hold out.

mod faults;
mod names;
mod programs;
mod stub;

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine_bin::hub::settings::Patience;
use engine_bin::hub::{self, Fetched, HubError, Reference, Settings, Tell, Wanted};
use engine_io::{ModelFile, OpenOptions};
use engine_tests::fixtures::fixture;
use serde_json::json;
use tempfile::TempDir;

use stub::{COMMIT, Hub, blob, file};

/// Bytes that say where they are.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| ((i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24) ^ seed) as u8).collect()
}

/// A cache of its own, and somebody who asks.
struct Asker {
    folder: TempDir,
    settings: Settings,
    notes: RefCell<Vec<String>>,
}

impl Asker {
    fn new(endpoint: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let (first_wait, longest_wait) = (Duration::from_millis(1), Duration::from_millis(2));
        let patience = Patience { stall: Duration::from_secs(20), tries: 4, first_wait, longest_wait };
        let (cache, token) = (folder.path().join("hub"), Some("hf_secret".to_owned()));
        let settings = Settings { endpoint: endpoint.to_owned(), cache, token, offline: false, patience };
        Self { folder, settings, notes: RefCell::default() }
    }

    fn of(hub: &Hub) -> Self {
        Self::new(&hub.endpoint())
    }

    fn run(
        &self,
        how: impl Fn(&Reference, &Settings, Tell<'_>) -> Result<Fetched, HubError>,
        name: &str,
    ) -> Result<Fetched, HubError> {
        let note = |line: &str| self.notes.borrow_mut().push(line.to_owned());
        how(&name.parse().unwrap(), &self.settings, Tell { note: &note, progress: false })
    }

    fn fetch(&self, name: &str) -> Result<Fetched, HubError> {
        self.run(|r, s, t| hub::fetch(r, Wanted::Model, s, t), name)
    }

    fn resolve(&self, name: &str) -> Result<Fetched, HubError> {
        self.run(|r, s, t| hub::resolve(r, Wanted::Model, s, t), name)
    }

    fn head(&self, name: &str) -> Result<Fetched, HubError> {
        self.run(|r, s, t| hub::resolve(r, Wanted::Sidecar, s, t), name)
    }

    fn repo(&self) -> PathBuf {
        self.settings.cache.join("models--o--m")
    }

    /// Everything in the cache but locks, as `path` or `path -> target`.
    fn tree(&self) -> Vec<String> {
        fn walk(dir: &Path, root: &Path, out: &mut Vec<String>) {
            for entry in fs::read_dir(dir).into_iter().flatten() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(root).unwrap().display().to_string();
                match (fs::read_link(&path), path.is_dir()) {
                    (Ok(target), _) => out.push(format!("{name} -> {}", target.display())),
                    (Err(_), true) => walk(&path, root, out),
                    (Err(_), false) => out.push(name),
                }
            }
        }
        let mut out = Vec::new();
        walk(&self.repo(), &self.repo(), &mut out);
        out.sort();
        out
    }

    /// No blob has a name that its bytes do not have.
    fn is_sound(&self) {
        for entry in fs::read_dir(self.repo().join("blobs")).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let found = fs::read(&path).unwrap();
            assert!(name.ends_with(".incomplete") || blob(&found, name.len() == 64) == name, "{name}");
        }
        let outside: Vec<_> = fs::read_dir(self.folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(outside.iter().all(|name| name == "hub"), "{outside:?}");
    }
}

fn repo() -> Vec<(String, Vec<u8>, bool)> {
    vec![
        file("README.md", "# m", false),
        file("sub/m-Q8_0.gguf", bytes(5000, 1), true),
        file("m-Q4_K_M.gguf", bytes(3000, 2), true),
        file("small-F16.gguf", bytes(100, 3), false),
        file("mtp-m-Q8_0.gguf", bytes(700, 4), true),
    ]
}

#[test]
fn a_model_lands_where_the_hubs_own_tools_look() {
    let hub = Hub::new(repo());
    let asker = Asker::of(&hub);
    let found = asker.run(|r, s, t| hub::fetch(r, Wanted::ModelAndSidecar, s, t), "hf:o/m:q8_0").unwrap();
    let (model, mtp) = (blob(&bytes(5000, 1), true), blob(&bytes(700, 4), true));
    let mut tree = vec![
        format!("blobs/{model}"),
        format!("blobs/{mtp}"),
        "refs/main".to_owned(),
        format!("snapshots/{COMMIT}/mtp-m-Q8_0.gguf -> ../../blobs/{mtp}"),
        format!("snapshots/{COMMIT}/sub/m-Q8_0.gguf -> ../../../blobs/{model}"),
    ];
    tree.sort();
    assert_eq!(asker.tree(), tree);
    assert_eq!(fs::read_to_string(asker.repo().join("refs/main")).unwrap(), COMMIT);
    assert_eq!(fs::read(&found.model).unwrap(), bytes(5000, 1));
    assert_eq!(fs::read(found.mtp.unwrap()).unwrap(), bytes(700, 4));
    assert_eq!((found.bytes, found.fetched_bytes, found.commit.as_str()), (5700, 5700, COMMIT));
    // The token went to the hub alone.
    for request in hub.log() {
        let expected = (!request.at_store).then_some("Bearer hf_secret");
        assert_eq!(request.auth.as_deref(), expected, "{}", request.path);
    }
    // A second time nothing but the listing is asked for; a file of git itself comes from the hub.
    let before = hub.downloads().len();
    assert_eq!(asker.fetch("hf:o/m:Q8_0").unwrap().fetched_bytes, 0);
    assert_eq!(hub.downloads().len(), before);
    assert_eq!(fs::read(asker.fetch("hf:o/m:f16").unwrap().model).unwrap(), bytes(100, 3));
    // With a quant the cache is enough; without one the hub knows what there is.
    let asked = hub.log().len();
    asker.resolve("hf:o/m:Q8_0").unwrap();
    assert_eq!(hub.log().len(), asked);
    let chosen = asker.resolve("hf:o/m").unwrap();
    assert!(
        chosen.model.ends_with("m-Q4_K_M.gguf")
            && asker.notes.borrow().iter().any(|n| n.contains("5 models") || n.contains("3 models"))
    );
    asker.is_sound();
}

#[test]
fn a_revision_is_asked_for_and_kept_by_its_name() {
    let hub = Hub::new(repo());
    let asker = Asker::of(&hub);
    asker.fetch("hf:o/m@refs/pr/1:Q4_K_M").unwrap();
    assert!(hub.log().iter().any(|r| r.path == "/api/models/o/m/revision/refs%2Fpr%2F1"));
    assert_eq!(fs::read_to_string(asker.repo().join("refs/refs/pr/1")).unwrap(), COMMIT);
    // A commit is its own name.
    let asker = Asker::of(&hub);
    let name = format!("hf:o/m@{COMMIT}:Q4_K_M");
    asker.fetch(&name).unwrap();
    assert!(!asker.repo().join("refs").exists());
    let asked = hub.log().len();
    asker.resolve(&name).unwrap();
    assert_eq!(hub.log().len(), asked);
}

#[test]
fn a_cache_of_the_hubs_own_tools_is_used() {
    let hub = Hub::new(repo());
    let asker = Asker::of(&hub);
    let (blobs, snapshot) = (asker.repo().join("blobs"), asker.repo().join("snapshots").join(COMMIT));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(snapshot.join("sub")).unwrap();
    fs::create_dir_all(asker.repo().join("refs")).unwrap();
    fs::write(asker.repo().join("refs/main"), format!("{COMMIT}\n")).unwrap();
    let (q8, q4) = (blob(&bytes(5000, 1), true), blob(&bytes(3000, 2), true));
    fs::write(blobs.join(&q8), bytes(5000, 1)).unwrap();
    symlink(format!("../../../blobs/{q8}"), snapshot.join("sub/m-Q8_0.gguf")).unwrap();
    // A blob may itself be a link, into a store that several caches share; and a link may lead nowhere any more.
    fs::write(asker.settings.cache.join("shared"), bytes(3000, 2)).unwrap();
    symlink("../../shared", blobs.join(&q4)).unwrap();
    symlink("../../blobs/gone", snapshot.join("m-Q4_K_M.gguf")).unwrap();
    for name in ["hf:o/m:Q8_0", "hf:o/m:Q4_K_M"] {
        let found = asker.fetch(name).unwrap();
        assert_eq!(found.fetched_bytes, 0);
        assert_eq!(fs::metadata(found.model).unwrap().len(), found.bytes);
    }
    assert_eq!(hub.downloads().len(), 0);
    // What another tool left of a download is gone on with.
    let small = blob(&bytes(700, 4), true);
    fs::write(blobs.join(format!("{small}.incomplete")), &bytes(700, 4)[..300]).unwrap();
    asker.run(|r, s, t| hub::fetch(r, Wanted::ModelAndSidecar, s, t), "hf:o/m:Q8_0").unwrap();
    assert_eq!(hub.downloads().iter().map(|r| r.range).collect::<Vec<_>>(), [Some(300)]);
    // A blob of another length is no blob.
    fs::write(blobs.join(&q8), b"short").unwrap();
    assert_eq!(asker.fetch("hf:o/m:Q8_0").unwrap().fetched_bytes, 5000);
    asker.is_sound();
}

#[test]
fn offline_it_looks_and_says_what_is_missing() {
    let hub = Hub::new(repo());
    let mut asker = Asker::of(&hub);
    asker.settings.offline = true;
    let says = |asker: &Asker, name: &str, part: &str| {
        for found in [asker.resolve(name), asker.fetch(name)] {
            let error = found.unwrap_err();
            assert!(error.to_string().contains("HF_HUB_OFFLINE") && error.to_string().contains(part), "{error}");
            assert_eq!(error.code(), 3);
        }
    };
    says(&asker, "hf:o/m:Q8_0", "no revision main of o/m");
    asker.settings.offline = false;
    asker.fetch("hf:o/m:Q8_0").unwrap();
    asker.settings.offline = true;
    let asked = hub.log().len();
    says(&asker, "hf:o/m:Q4_0", "no model of quant Q4_0; it has sub/m-Q8_0");
    says(&asker, "hf:o/m@v2:Q8_0", "no revision v2");
    for name in ["hf:o/m:Q8_0", "hf:o/m"] {
        assert!(asker.resolve(name).unwrap().model.ends_with("sub/m-Q8_0.gguf"));
    }
    let snapshot = asker.repo().join("snapshots").join(COMMIT);
    symlink(asker.resolve("hf:o/m").unwrap().model, snapshot.join("s-F16-00001-of-00002.gguf")).unwrap();
    says(&asker, "hf:o/m:F16", "s-F16 lacks shard 2 of 2");
    says(&asker, "hf:o/m", "several models");
    assert_eq!(hub.log().len(), asked);
    // A hub that is gone is as good as none, where the cache has an answer.
    fs::remove_file(snapshot.join("s-F16-00001-of-00002.gguf")).unwrap();
    asker.settings.offline = false;
    asker.settings.endpoint = "http://127.0.0.1:1".to_owned();
    assert!(asker.resolve("hf:o/m").unwrap().model.ends_with("sub/m-Q8_0.gguf"));
    assert!(asker.notes.borrow().last().unwrap().contains("taking what the cache has"));
    assert_eq!(asker.fetch("hf:o/m").unwrap_err().code(), 1);
}

#[test]
fn all_shards_come_and_open_by_their_links() {
    let shards = (1..=3).map(|no| fixture(&format!("qwen35-tiny/qwen35-tiny-nomtp-Q8_0-0000{no}-of-00003.gguf")));
    let Some(shards) = shards.collect::<Option<Vec<_>>>() else { return };
    let named = |path: &PathBuf| format!("Q8_0/{}", path.file_name().unwrap().to_str().unwrap());
    // As a hub may list them: not in order.
    let files = [2, 0, 1].map(|i| file(&named(&shards[i]), fs::read(&shards[i]).unwrap(), true)).to_vec();
    let hub = Hub::new(files.clone());
    let asker = Asker::of(&hub);
    let found = asker.fetch("hf:o/m").unwrap();
    assert!(found.model.ends_with("qwen35-tiny-nomtp-Q8_0-00001-of-00003.gguf"));
    let model = ModelFile::open(&found.model, OpenOptions::default()).unwrap();
    let origin = ModelFile::open(&shards[0], OpenOptions::default()).unwrap();
    assert_eq!((model.shards().len(), model.tensors().len()), (3, origin.tensors().len()));
    // One of them is not in the repository.
    let error = Asker::of(&Hub::new(files[..2].to_vec())).fetch("hf:o/m").unwrap_err();
    assert!(error.to_string().contains("lacks shard 2 of 3") && error.code() == 3, "{error}");
}

/// A package of five files; `edit` may spoil its manifest.
fn package(edit: impl Fn(&mut serde_json::Value)) -> Vec<(String, Vec<u8>, bool)> {
    let parts = ["shared/metadata.gguf", "shared/embeddings.gguf", "shared/output.gguf", "layers/layer-00000.gguf"];
    let files: Vec<_> = parts.iter().enumerate().map(|(i, p)| file(p, bytes(400 + i, i as u64), i != 0)).collect();
    let artifact = |i: usize| {
        let (path, bytes, _) = &files[i];
        json!({"path": path, "tensor_count": 1, "tensor_bytes": 9, "artifact_bytes": bytes.len(), "sha256": blob(bytes, true)})
    };
    let shared = json!({"metadata": artifact(0), "embeddings": artifact(1), "output": artifact(2)});
    let mut layer = artifact(3);
    layer["layer_index"] = json!(0);
    let mut manifest = json!({"schema_version": 1, "format": "layer-package", "model_id": "o/m:Q8_0",
        "source_model": {"path": "m.gguf", "sha256": "0".repeat(64)}, "layer_count": 1, "activation_width": 64,
        "skippy_abi_version": "1", "shared": shared, "layers": [layer], "unknown": [1]});
    edit(&mut manifest);
    let manifest = file("model-package.json", manifest.to_string(), false);
    files.into_iter().chain([manifest, file("README.md", "x", false)]).collect()
}

#[test]
fn a_package_comes_whole_and_is_checked_where_it_is_there() {
    let hub = Hub::new(package(|_| {}));
    let asker = Asker::of(&hub);
    let found = asker.fetch("hf:o/m").unwrap();
    assert_eq!((found.model.clone(), found.files.len()), (asker.repo().join("snapshots").join(COMMIT), 5));
    let asked = hub.log().len();
    asker.resolve("hf:o/m").unwrap();
    assert_eq!(hub.log().len(), asked);
    // A bit that fell over in the cache: seen, and fetched again.
    let output = blob(&bytes(402, 2), true);
    let mut broken = bytes(402, 2);
    broken[200] ^= 1;
    let path = asker.repo().join("blobs").join(&output);
    fs::write(&path, &broken).unwrap();
    let mended = asker.resolve("hf:o/m").unwrap();
    assert_eq!((mended.fetched_bytes, fs::read(&path).unwrap()), (402, bytes(402, 2)));
    asker.is_sound();
    type Edit = fn(&mut serde_json::Value);
    let cases: [(Edit, &str); 11] = [
        (|m| m["schema_version"] = json!(2), "unsupported_schema_version: schema_version: is 2, expected 1"),
        (|m| *m = json!({"schema_version": 2, "shared": 1}), "schema_version is 2, expected 1"),
        (|m| m["format"] = json!("zip"), "invalid_format: format: is"),
        (|m| m["layer_count"] = json!(2), "missing_layer: layers[1]"),
        (|m| m["layers"] = json!([]), "missing_layer: layers[0]"),
        (|m| m["layers"][0]["path"] = json!("../../../x.gguf"), "unsafe_artifact_path: ../../../x.gguf"),
        (|m| m["layers"][0]["path"] = json!("layers/gone.gguf"), "layers/gone.gguf, which is not in the repository"),
        (|m| m["layers"][0]["artifact_bytes"] = json!(9), "expected 9 as in"),
        (|m| m["layers"][0]["sha256"] = json!("0".repeat(64)), "expected 0000"),
        (|m| m["shared"]["metadata"]["sha256"] = json!("0".repeat(64)), "shared/metadata.gguf: SHA-256 "),
        (|m| m["shared"] = json!(7), "invalid_manifest_json: model-package.json: "),
    ];
    for (edit, part) in cases {
        let hub = Hub::new(package(edit));
        let asker = Asker::of(&hub);
        let error = asker.fetch("hf:o/m").unwrap_err();
        assert!(error.to_string().contains(part) && error.code() == 3, "{error}");
        assert!(!asker.repo().join("refs").exists());
        // What only the bytes of a file can show is seen when they are there, everything else before.
        assert_eq!(hub.downloads().is_empty(), !part.starts_with("shared/"), "{part}");
        asker.is_sound();
    }
}
