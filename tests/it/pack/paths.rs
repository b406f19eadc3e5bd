//! Where a package may lie and what its paths may lead to.

use std::fs;
use std::os::unix::fs::symlink;

use engine_io::package::MANIFEST;
use engine_io::{Error, ModelFile, OpenOptions};

use super::{Packed, codes, engine_pack};

#[test]
fn a_package_is_its_folder_or_its_manifest() {
    let packed = Packed::tiny();
    let names = |path: &std::path::Path| {
        let model = ModelFile::open(path, OpenOptions::default()).unwrap();
        model.tensors().iter().map(|t| t.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&packed.dir), names(&packed.dir.join(MANIFEST)));
    let link = packed.folder.path().join("link");
    symlink(&packed.dir, &link).unwrap();
    assert_eq!(names(&packed.dir), names(&link));
    // A file of the package alone is what it is.
    assert!(names(&packed.dir.join("layers/layer-00000.gguf")).iter().all(|name| name.starts_with("blk.0.")));
}

/// A download cache keeps its files under their digests and links to them; a link to anything else is an escape.
#[test]
fn links_of_a_download_cache_are_followed_and_no_others() {
    let packed = Packed::tiny();
    let repository = packed.folder.path().join("models--a--b");
    let (snapshot, blobs) = (repository.join("snapshots/0123abc"), repository.join("blobs"));
    fs::create_dir_all(snapshot.join("shared")).unwrap();
    fs::create_dir_all(snapshot.join("layers")).unwrap();
    fs::create_dir_all(&blobs).unwrap();
    let mut files = vec![MANIFEST.to_owned()];
    files.extend(["metadata", "embeddings", "output"].map(|name| format!("shared/{name}.gguf")));
    files.extend((0..5).map(|i| format!("layers/layer-{i:05}.gguf")));
    for (i, file) in files.iter().enumerate() {
        fs::copy(packed.dir.join(file), blobs.join(i.to_string())).unwrap();
        let up = if file.contains('/') { "../../.." } else { "../.." };
        symlink(format!("{up}/blobs/{i}"), snapshot.join(file)).unwrap();
    }
    ModelFile::open(&snapshot, OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"));

    let outside = packed.folder.path().join("outside.gguf");
    fs::copy(packed.dir.join("layers/layer-00001.gguf"), &outside).unwrap();
    for (target, code) in [(outside.to_str().unwrap(), "artifact_outside_package"), ("nowhere", "missing_artifact")] {
        let link = snapshot.join("layers/layer-00001.gguf");
        fs::remove_file(&link).unwrap();
        symlink(target, link).unwrap();
        let Err(Error::Package { issues, .. }) = ModelFile::open(&snapshot, OpenOptions::default()) else {
            panic!("{target} is followed");
        };
        assert_eq!(codes(&issues), [code]);
    }
}

#[test]
fn a_folder_in_place_of_a_file_is_none() {
    let packed = Packed::tiny();
    let path = packed.dir.join("layers/layer-00001.gguf");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(codes(&packed.preflight(1, true).issues), ["missing_artifact"]);
}

#[test]
fn a_source_must_be_other_files() {
    let packed = Packed::tiny();
    let linked = packed.folder.path().join("linked.gguf");
    fs::hard_link(packed.dir.join("layers/layer-00001.gguf"), &linked).unwrap();
    for (source, word) in [(&packed.dir, "is inside the package"), (&linked, "is the same file as the artifact")] {
        let line = ["verify", packed.dir.to_str().unwrap(), "--source", source.to_str().unwrap()];
        let (code, _, text) = engine_pack(&line);
        assert!(code == Some(3) && text.contains(word), "{text}");
    }
}

#[test]
fn what_is_no_package_is_refused_by_every_verb() {
    let packed = Packed::tiny();
    let model = packed.model.to_str().unwrap();
    let out = packed.folder.path().join("out");
    let out = out.to_str().unwrap();
    for line in [
        vec!["preflight", model, "--stages", "1"],
        vec!["verify", model],
        vec!["materialize", model, "--stage", "0/2", "--out", out],
    ] {
        let (code, text, error) = engine_pack(&line);
        assert_eq!(code, Some(3), "{line:?}: {text}{error}");
        assert!(format!("{text}{error}").contains(MANIFEST), "{line:?}: {text}{error}");
    }
}

/// Flags of a verb that contradict each other end a program built with assertions, whatever it is asked.
#[test]
fn every_verb_explains_itself() {
    let (code, all, error) = engine_pack(&["--help"]);
    assert_eq!(code, Some(0), "{error}");
    let verbs: Vec<&str> = all
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' '))?.split_whitespace().next())
        .collect();
    assert!(verbs.len() > 10 && verbs.contains(&"preflight"), "{verbs:?}");
    for verb in verbs.into_iter().filter(|verb| *verb != "help") {
        let (code, text, error) = engine_pack(&[verb, "--help"]);
        assert!(code == Some(0) && text.contains("Usage: engine-pack"), "{verb}: {error}");
    }
}
