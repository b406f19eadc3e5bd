use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use super::*;

fn fifo(path: &Path) {
    let done = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(done.success());
}

#[test]
fn only_regular_files_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), "abc").unwrap();
    symlink("file", at("link")).unwrap();
    for name in ["file", "link"] {
        assert_eq!(read(&at(name), 3).unwrap(), b"abc");
        assert_eq!(open(&at(name)).unwrap().1.len(), 3);
    }
    fifo(&at("fifo"));
    let _socket = UnixListener::bind(at("socket")).unwrap();
    symlink("fifo", at("link to fifo")).unwrap();
    let others = [
        (at("fifo"), "a pipe"),
        (at("link to fifo"), "a pipe"),
        (at("socket"), "a socket"),
        (dir.path().to_owned(), "a folder"),
        ("/dev/zero".into(), "a device"),
    ];
    for (path, found) in others {
        let error = read(&path, 10).unwrap_err();
        assert!(matches!(&error, Error::NotAFile { .. }), "{error}");
        assert!(error.to_string().contains(found), "{error}");
    }
    symlink("gone", at("broken")).unwrap();
    assert!(matches!(open(&at("broken")), Err(Error::BrokenLink { .. })));
    assert!(is_there(&at("broken")) && !is_there(&at("absent")));
    assert!(matches!(open(&at("absent")), Err(Error::Io { action: "open", .. })));
    // The name of a file as if it were a folder.
    assert!(matches!(open(&at("link").join("below")), Err(Error::Io { .. })));
}

#[test]
fn no_more_is_read_than_was_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "abcd").unwrap();
    let error = read(&path, 3).unwrap_err();
    assert!(matches!(error, Error::TooLong { found: 4, most: 3, .. }), "{error}");
    assert_eq!(read(&path, 4).unwrap(), b"abcd");
    assert_eq!(read(&path, u64::MAX).unwrap(), b"abcd");
    // It says that it has no bytes, and has some.
    let own = Path::new("/proc/self/status");
    assert!(!read(own, 1 << 20).unwrap().is_empty());
    assert!(matches!(read(own, 3), Err(Error::TooLong { .. })));
    fs::write(&path, [0xff]).unwrap();
    assert!(text(&path, 3).unwrap_err().to_string().contains("cannot read as UTF-8"));
    fs::write(&path, r#"{"a": 1, "a": 2}"#).unwrap();
    let error = super::json::<serde_json::Value>(&path, 99, "list of shards").unwrap_err().to_string();
    assert!(error.contains("is no list of shards: the name \"a\" stands twice"), "{error}");
}
