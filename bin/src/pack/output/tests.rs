use std::io::Write as _;

use tempfile::TempDir;

use super::*;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_directory_appears_whole_or_not_at_all() {
    let dir = TempDir::new().unwrap();
    let target = dir.path().join("out");
    let output = Output::directory(&target, 3).unwrap();
    output.writer("a").unwrap().write_all(b"abc").unwrap();
    assert_eq!(names(dir.path()), [".out.engine-pack-partial"]);
    drop(output);
    assert!(names(dir.path()).is_empty());
    let output = Output::directory(&target, 3).unwrap();
    output.writer("a").unwrap().write_all(b"abc").unwrap();
    output.finish().unwrap();
    assert_eq!(names(dir.path()), ["out"]);
    assert_eq!(fs::read(target.join("a")).unwrap(), b"abc");
}

#[test]
fn a_file_does_too() {
    let dir = TempDir::new().unwrap();
    let target = dir.path().join("out.gguf");
    let output = Output::file(&target, 3).unwrap();
    output.writer("").unwrap().write_all(b"abc").unwrap();
    assert_eq!(names(dir.path()), [".out.gguf.engine-pack-partial"]);
    output.finish().unwrap();
    assert_eq!((names(dir.path()), fs::read(&target).unwrap()), (vec!["out.gguf".to_owned()], b"abc".to_vec()));
}

#[test]
fn what_is_there_is_never_replaced() {
    let dir = TempDir::new().unwrap();
    for (name, directory) in [("file", false), ("dir", true)] {
        let target = dir.path().join(name);
        let output = Output::new(&target, 0, directory).unwrap();
        // Somebody else was faster.
        fs::write(&target, "theirs").unwrap();
        assert!(matches!(output.finish(), Err(PackError::Exists { .. })));
        assert_eq!(fs::read(&target).unwrap(), b"theirs");
        assert!(matches!(Output::new(&target, 0, directory), Err(PackError::Exists { .. })));
    }
    std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
    assert!(matches!(Output::file(&dir.path().join("link"), 0), Err(PackError::Exists { .. })));
    assert_eq!(names(dir.path()), ["dir", "file", "link"]);
}

#[test]
fn a_live_run_is_left_alone_and_a_dead_one_removed() {
    let dir = TempDir::new().unwrap();
    let target = dir.path().join("out");
    let alive = Output::directory(&target, 0).unwrap();
    alive.writer("a").unwrap();
    let error = Output::directory(&target, 0).unwrap_err();
    assert!(matches!(error, PackError::Busy { .. }), "{error}");
    assert_eq!(error.code(), 1);
    drop(alive);
    // As after a kill: there, and not locked.
    for directory in [true, false] {
        let partial = dir.path().join(".out.engine-pack-partial");
        if directory {
            fs::create_dir_all(partial.join("deep")).unwrap();
            fs::write(partial.join("deep/b"), "b").unwrap();
        } else {
            fs::write(&partial, "b").unwrap();
        }
        let again = Output::directory(&target, 0).unwrap();
        assert!(names(again.path()).is_empty());
    }
    assert!(names(dir.path()).is_empty());
}

#[test]
fn too_small_a_disk_and_no_directory_are_told_before_anything_is_written() {
    let dir = TempDir::new().unwrap();
    let error = Output::directory(&dir.path().join("out"), u64::MAX / 2).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, PackError::Space { .. }) && text.contains("are free"), "{text}");
    let error = Output::file(&dir.path().join("no/out"), 0).unwrap_err().to_string();
    assert!(error.contains("no: cannot"), "{error}");
    assert!(names(dir.path()).is_empty());
    assert_eq!(Output::file(Path::new("/"), 0).unwrap_err().code(), 2);
    assert_eq!(Output::file(Path::new("a/.."), 0).unwrap_err().code(), 2);
}

/// Runs of one output at once: each has it for itself, or is told that another has it.
#[test]
fn one_of_many_runs_has_an_output_at_a_time() {
    let dir = TempDir::new().unwrap();
    let target = &dir.path().join("out");
    let writing = &std::sync::atomic::AtomicUsize::new(0);
    let had = &std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for _ in 0..400 {
                    match Output::new(target, 0, thread % 2 == 0) {
                        Ok(output) => {
                            use std::sync::atomic::Ordering::SeqCst;
                            assert_eq!(writing.fetch_add(1, SeqCst), 0, "two runs write one output");
                            assert!(output.path().exists());
                            output.writer("a").unwrap();
                            had.fetch_add(1, SeqCst);
                            writing.fetch_sub(1, SeqCst);
                        }
                        Err(error) => assert!(matches!(error, PackError::Busy { .. }), "{error}"),
                    }
                }
            });
        }
    });
    assert!(had.load(std::sync::atomic::Ordering::SeqCst) > 0);
    assert!(names(dir.path()).is_empty());
}

/// A slash at the end says that a folder is meant, and is told before anything is read where it is none.
#[test]
fn a_slash_at_the_end_is_a_folders() {
    let dir = TempDir::new().unwrap();
    for name in ["out/", "out/.", "out//"] {
        let target = dir.path().join(name);
        let error = Output::file(&target, 0).unwrap_err();
        assert!(error.code() == 2 && error.to_string().contains("name of a folder"), "{error}");
        let output = Output::directory(&target, 0).unwrap();
        output.writer("a").unwrap();
        output.finish().unwrap();
        assert_eq!(names(&dir.path().join("out")), ["a"]);
        fs::remove_dir_all(dir.path().join("out")).unwrap();
        // A link that leads nowhere is there, however it is spelled.
        std::os::unix::fs::symlink("gone", dir.path().join("out")).unwrap();
        assert!(matches!(Output::directory(&target, 0), Err(PackError::Exists { .. })));
        fs::remove_file(dir.path().join("out")).unwrap();
    }
}

/// What no run leaves is not removed, and not waited for.
#[test]
fn what_no_run_left_is_in_the_way() {
    let dir = TempDir::new().unwrap();
    let partial = dir.path().join(".out.engine-pack-partial");
    std::os::unix::fs::symlink("out", &partial).unwrap();
    let error = Output::directory(&dir.path().join("out"), 0).unwrap_err();
    assert!(matches!(&error, PackError::Exists { path } if path.ends_with("engine-pack-partial")), "{error}");
    fs::remove_file(&partial).unwrap();
    let scratch = Output::scratch(&dir.path().join("out")).unwrap();
    assert_eq!(names(dir.path()), [".out.engine-pack-head"]);
    // The same run's output, and another's head.
    let output = Output::directory(&dir.path().join("out"), 0).unwrap();
    assert!(matches!(Output::scratch(&dir.path().join("out")), Err(PackError::Busy { .. })));
    drop((scratch, output));
    assert!(names(dir.path()).is_empty());
}
