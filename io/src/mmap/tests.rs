use std::fs::{self, OpenOptions};
use std::process::Command;

use super::*;

#[test]
fn mapped_and_read_bytes_are_equal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    let content: Vec<u8> = (0..10_000u32).map(|i| (i * 7) as u8).collect();
    fs::write(&path, &content).unwrap();
    let file = File::open(&path).unwrap();
    let mapped = FileBytes::map(&file, content.len(), "m").unwrap();
    let read = FileBytes::read(&file, content.len(), "m").unwrap();
    assert!(mapped.is_mapped() && !read.is_mapped());
    assert_eq!(mapped.as_ref(), content);
    assert_eq!(read.as_ref(), content);
    assert!(read.as_ref().as_ptr().addr().is_multiple_of(64), "rows in memory are as aligned as mapped ones");
}

#[test]
fn reading_more_than_the_file_holds_fails() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    fs::write(&path, b"abc").unwrap();
    let got = FileBytes::read(&File::open(&path).unwrap(), 4, "m");
    assert!(matches!(got, Err(Error::Io { .. })), "{got:?}");
}

#[test]
fn rows_of_the_watch_table_are_freed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    fs::write(&path, b"abc").unwrap();
    let file = File::open(&path).unwrap();
    for _ in 0..2 * MAPPINGS_MAX {
        FileBytes::map(&file, 3, "m").unwrap();
    }
}

/// Runs itself as a child process that truncates the file it has mapped and then reads it.
#[test]
fn a_file_that_shrinks_under_its_mapping_ends_the_process_with_its_name() {
    const CHILD: &str = "ENGINE_IO_TEST_SHRINK";
    if let Some(path) = std::env::var_os(CHILD) {
        install_fault_handler().unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let len = file.metadata().unwrap().len() as usize;
        let map = FileBytes::map(&file, len, &path.to_string_lossy()).unwrap();
        file.set_len(0).unwrap();
        let sum: u64 = map.as_ref().iter().map(|&b| u64::from(b)).sum();
        println!("wrong output {sum}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shrinking-model.gguf");
    fs::write(&path, vec![1; 1 << 16]).unwrap();
    let name = "mmap::tests::a_file_that_shrinks_under_its_mapping_ends_the_process_with_its_name";
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, &path)
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(1), "{stdout}\n{stderr}");
    assert!(stderr.contains("shrinking-model.gguf: the model file became shorter"), "{stderr}");
    assert!(!stdout.contains("wrong output"), "{stdout}");
}

/// A SIGBUS that no mapping explains keeps its default meaning.
#[test]
fn a_foreign_bus_error_still_kills() {
    use std::os::unix::process::ExitStatusExt;
    const CHILD: &str = "ENGINE_IO_TEST_FOREIGN";
    if std::env::var_os(CHILD).is_some() {
        install_fault_handler().unwrap();
        install_fault_handler().unwrap();
        let me = std::process::id().to_string();
        assert!(Command::new("kill").args(["-BUS", &me]).status().unwrap().success());
        // The signal may take a moment to arrive.
        std::thread::sleep(std::time::Duration::from_secs(10));
        return;
    }
    // Without a core file.
    let out = Command::new("sh")
        .args(["-c", "ulimit -c 0; exec \"$0\" --exact mmap::tests::a_foreign_bus_error_still_kills"])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(out.status.signal(), Some(libc::SIGBUS), "{out:?}");
}
