//! Servers that do not hold out, lie, or are not hubs at all.

use std::fs;
use std::time::Duration;

use engine_bin::hub::HubError;
use serde_json::json;

use super::stub::{COMMIT, Hub, Reply, answer, blob, file, node, ranged};
use super::{Asker, bytes, repo};

const NAME: &str = "hf:o/m:Q8_0";

fn one() -> Vec<(String, Vec<u8>, bool)> {
    vec![file("m-Q8_0.gguf", bytes(5000, 1), true)]
}

#[test]
fn a_download_goes_on_where_it_was_cut() {
    let offsets: Vec<usize> = (0..40).map(|i| i * 131).chain([1, 2, 4095, 4096, 4097, 4998, 4999]).collect();
    for cut in offsets.into_iter().filter(|cut| *cut < 5000) {
        let hub = Hub::with(one(), move |request, before| {
            let whole = ranged(&bytes(5000, 1), request.range);
            (request.at_store && before == 0).then(|| Reply::Bytes(whole[..whole.len() - 5000 + cut].to_vec()))
        });
        let mut asker = Asker::of(&hub);
        asker.settings.patience.tries = 1;
        let error = asker.fetch(NAME).unwrap_err();
        assert!(matches!(error, HubError::Network { .. }) && error.code() == 1, "{error}");
        let incomplete = asker.repo().join("blobs").join(format!("{}.incomplete", blob(&bytes(5000, 1), true)));
        let arrived = fs::read(incomplete).unwrap_or_else(|e| panic!("after {cut} bytes: {e}; {error}"));
        assert_eq!(arrived, bytes(5000, 1)[..cut], "{cut}");
        assert!(!asker.repo().join("refs").exists() && !asker.repo().join("snapshots").exists());
        assert_eq!(fs::read(asker.fetch(NAME).unwrap().model).unwrap(), bytes(5000, 1));
        let range = (cut > 0).then_some(cut as u64);
        assert_eq!(hub.downloads().last().unwrap().range, range);
        asker.is_sound();
    }
    // In one run: as often as it has patience.
    let cut = |most: usize| {
        Hub::with(one(), move |request, before| {
            let whole = ranged(&bytes(5000, 1), request.range);
            let body = 5000 - request.range.unwrap_or(0) as usize;
            (request.at_store && before < most).then(|| Reply::Bytes(whole[..whole.len() - body + 1000].to_vec()))
        })
    };
    let (good, bad) = (cut(3), cut(4));
    Asker::of(&good).fetch(NAME).unwrap();
    let ranges: Vec<_> = good.downloads().iter().map(|r| r.range).collect();
    assert_eq!(ranges, [None, Some(1000), Some(2000), Some(3000)]);
    assert!(matches!(Asker::of(&bad).fetch(NAME), Err(HubError::Network { tries: 4, .. })));
}

#[test]
fn ranges_that_are_ignored_or_wrong_start_it_over() {
    type Answer = fn(u64) -> Vec<u8>;
    let answers: [Answer; 5] = [
        |_| ranged(&bytes(5000, 1), None),
        |_| answer("416 Range Not Satisfiable", "", b""),
        |_| answer("206 Partial Content", "Content-Range: bytes 0-4999/5000\r\n", &bytes(5000, 1)),
        |from| answer("206 Partial Content", "", &bytes(5000, 1)[from as usize..]),
        |from| {
            answer(
                "206 Partial Content",
                &format!("Content-Range: bytes {from}-4999/6000\r\n"),
                &bytes(5000, 1)[from as usize..],
            )
        },
    ];
    for (case, ranges) in answers.into_iter().enumerate() {
        let hub = Hub::with(one(), move |request, _| {
            request.range.filter(|_| request.at_store).map(|from| Reply::Bytes(ranges(from)))
        });
        let asker = Asker::of(&hub);
        let blobs = asker.repo().join("blobs");
        fs::create_dir_all(&blobs).unwrap();
        let incomplete = blobs.join(format!("{}.incomplete", blob(&bytes(5000, 1), true)));
        fs::write(incomplete, &bytes(5000, 1)[..1234]).unwrap();
        let found = asker.fetch(NAME).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(fs::read(found.model).unwrap(), bytes(5000, 1), "{case}");
        assert_eq!(hub.downloads()[0].range, Some(1234));
        asker.is_sound();
    }
}

#[test]
fn what_an_earlier_run_left_may_be_anything() {
    for left in [vec![], vec![7; 100], vec![7; 4999], vec![7; 5000], vec![7; 9000]] {
        let hub = Hub::new(one());
        let asker = Asker::of(&hub);
        let blobs = asker.repo().join("blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{}.incomplete", blob(&bytes(5000, 1), true))), &left).unwrap();
        assert_eq!(fs::read(asker.fetch(NAME).unwrap().model).unwrap(), bytes(5000, 1), "{}", left.len());
        asker.is_sound();
    }
}

#[test]
fn wrong_bytes_never_get_a_name() {
    for lfs in [true, false] {
        let hub = Hub::with(vec![file("m-Q8_0.gguf", bytes(5000, 1), lfs)], move |request, _| {
            let ours = request.path.contains("m-Q8_0.gguf") && request.at_store == lfs;
            ours.then(|| Reply::Bytes(ranged(&bytes(5000, 2), request.range)))
        });
        let asker = Asker::of(&hub);
        let error = asker.fetch(NAME).unwrap_err();
        let (found, expected) = (blob(&bytes(5000, 2), lfs), blob(&bytes(5000, 1), lfs));
        let text = error.to_string();
        assert!(text.contains(&found) && text.contains(&expected) && error.code() == 3, "{text}");
        assert_eq!(asker.tree(), [format!("blobs/{expected}.incomplete")]);
        assert_eq!(fs::metadata(asker.repo().join(&asker.tree()[0])).unwrap().len(), 0);
    }
    // Bytes that go wrong once are fetched again.
    let hub = Hub::with(one(), |request, before| {
        (request.at_store && before == 0).then(|| Reply::Bytes(ranged(&bytes(5000, 2), None)))
    });
    assert_eq!(fs::read(Asker::of(&hub).fetch(NAME).unwrap().model).unwrap(), bytes(5000, 1));
}

#[test]
fn no_more_is_kept_than_was_listed() {
    type Answer = fn() -> Vec<u8>;
    let answers: [Answer; 4] = [
        || answer("200 OK", "", &bytes(6000, 1)),
        || answer("200 OK", "", &bytes(10, 1)),
        || [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_vec(), bytes(1 << 20, 1)].concat(),
        || {
            [
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2000\r\n".to_vec(),
                bytes(0x2000, 1),
                b"\r\n0\r\n\r\n".to_vec(),
            ]
            .concat()
        },
    ];
    for reply in answers {
        let hub = Hub::with(one(), move |request, _| request.at_store.then(|| Reply::Bytes(reply())));
        let asker = Asker::of(&hub);
        let error = asker.fetch(NAME).unwrap_err();
        assert!(matches!(error, HubError::Network { tries: 4, .. }), "{error}");
        for entry in asker.tree() {
            assert!(fs::metadata(asker.repo().join(entry)).unwrap().len() <= 5000);
        }
        asker.is_sound();
    }
}

#[test]
fn a_silent_server_is_given_up_and_asked_again() {
    let hub = Hub::with(one(), |request, before| {
        let whole = ranged(&bytes(5000, 1), request.range);
        (request.at_store && before == 0)
            .then(|| Reply::Stalled(whole[..whole.len() - 2000].to_vec(), Duration::from_secs(30)))
    });
    let mut asker = Asker::of(&hub);
    asker.settings.patience.stall = Duration::from_millis(300);
    assert_eq!(fs::read(asker.fetch(NAME).unwrap().model).unwrap(), bytes(5000, 1));
    assert_eq!(hub.downloads().last().unwrap().range, Some(3000));
}

#[test]
fn busy_servers_are_asked_again_within_bounds() {
    for status in ["500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable", "429 Too Many Requests"] {
        let busy = |times: usize| {
            Hub::with(one(), move |_, before| {
                (before < times).then(|| Reply::Bytes(answer(status, "Retry-After: 0\r\n", b"<html>")))
            })
        };
        Asker::of(&busy(1)).fetch(NAME).unwrap();
        let hub = busy(usize::MAX);
        let error = Asker::of(&hub).fetch(NAME).unwrap_err();
        assert!(matches!(error, HubError::Network { tries: 4, .. }) && error.to_string().contains(status), "{error}");
        assert_eq!(hub.log().len(), 4);
    }
    // A pause that is asked for is made.
    let hub = Hub::with(one(), |_, before| {
        (before == 0).then(|| Reply::Bytes(answer("429 Too Many Requests", "Retry-After: 5\r\n", b"")))
    });
    let mut asker = Asker::of(&hub);
    asker.settings.patience.longest_wait = Duration::from_millis(700);
    asker.fetch(NAME).unwrap();
    assert!(asker.notes.borrow().iter().all(|note| note.contains("another try in 0.7 s")), "{:?}", asker.notes);
    // What a store refuses may be an address that became old.
    let hub = Hub::with(one(), |request, before| {
        (request.at_store && before == 0).then(|| Reply::Bytes(answer("403 Forbidden", "", b"expired")))
    });
    Asker::of(&hub).fetch(NAME).unwrap();
}

#[test]
fn refusals_say_what_to_do() {
    let cases = [
        ("401 Unauthorized", "GatedRepo", "is gated and the token that was given does not open it"),
        ("403 Forbidden", "GatedRepo", "set HF_TOKEN to a token of that account"),
        ("403 Forbidden", "", "is gated"),
        ("401 Unauthorized", "RepoNotFound", "check the name, and set HF_TOKEN"),
        ("404 Not Found", "RepoNotFound", "o/m does not exist"),
        ("404 Not Found", "RevisionNotFound", "o/m has no revision main"),
        ("404 Not Found", "", "404"),
        ("418 I'm a teapot", "", "is HF_ENDPOINT"),
    ];
    for (status, code, part) in cases {
        let headers = format!("X-Error-Code: {code}\r\nX-Error-Message: no \\x1b\r\n");
        let hub = Hub::with(one(), move |_, _| Some(Reply::Bytes(answer(status, &headers, b""))));
        let error = Asker::of(&hub).fetch(NAME).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(part) && error.code() == 3, "{text}");
        assert!(!text.contains("hf_secret"), "{text}");
        assert_eq!(hub.log().len(), 1);
        let mut nobody = Asker::of(&hub);
        nobody.settings.token = None;
        assert!(!nobody.fetch(NAME).unwrap_err().to_string().contains("was given does not"));
    }
    let error = Asker::of(&Hub::new(repo())).fetch("hf:o/m:Q5_0").unwrap_err();
    assert!(error.to_string().contains("it has m-Q4_K_M, small-F16, sub/m-Q8_0") && error.code() == 3, "{error}");
}

#[test]
fn answers_that_no_hub_gives_are_refused() {
    let tree = |nodes: serde_json::Value| answer("200 OK", "", nodes.to_string().as_bytes());
    let entry = |path: &str, size: serde_json::Value, oid: &str| json!([{"type": "file", "path": path, "size": 3, "oid": "0".repeat(40), "lfs": {"oid": oid, "size": size}}]);
    let good = "a".repeat(64);
    let revision = |body: &str| (true, answer("200 OK", "", body.as_bytes()));
    let redirect = |to: &str| (true, answer("302 Found", &format!("Location: {to}\r\n"), b""));
    let mut cases = vec![
        revision("<html>sign in</html>"),
        revision(""),
        revision("null"),
        revision("{\"sha\": 7}"),
        revision("{\"sha\": \"../../../../etc\"}"),
        revision("{\"sha\": \"main\"}"),
        revision(&"[".repeat(100_000)),
        (true, answer("200 OK", "", b"\xff\xfe")),
        redirect("file:///etc/passwd"),
        redirect(""),
        redirect("/api/models/o/m/revision/main"),
        (false, tree(json!({}))),
        (false, tree(json!([{"type": "file"}]))),
        (false, tree(json!([]))),
        (false, answer("200 OK", "Link: <http://elsewhere:1/x>; rel=\"next\"\r\n", b"[]")),
        (false, tree(entry("m-Q8_0.gguf", json!(-1), &good))),
        (false, tree(entry("m-Q8_0.gguf", json!(1e300), &good))),
        (false, tree(entry("m-Q8_0.gguf", json!(3), "../../../../x"))),
        (false, tree(entry("m-Q8_0.gguf", json!(3), &"a".repeat(40)))),
    ];
    for path in [
        "../x-Q8_0.gguf",
        "/tmp/x-Q8_0.gguf",
        "a/../../x-Q8_0.gguf",
        "x\0-Q8_0.gguf",
        "..\\x-Q8_0.gguf",
        "a//Q8_0.gguf",
    ] {
        cases.push((false, tree(entry(path, json!(3), &good))));
    }
    for (at_revision, reply) in cases {
        let shown = String::from_utf8_lossy(&reply[..reply.len().min(300)]).into_owned();
        let hub = Hub::with(one(), move |request, _| {
            let ours = request.path.contains(if at_revision { "/revision/" } else { "/tree/" });
            ours.then(|| Reply::Bytes(reply.clone()))
        });
        let asker = Asker::of(&hub);
        let error = asker.fetch(NAME).expect_err(&shown);
        assert!(matches!(error, HubError::Refused(_)), "{shown}: {error:?}");
        assert!(!error.to_string().contains('\0') && error.to_string().len() < 700, "{error}");
        assert!(asker.tree().is_empty() && hub.downloads().is_empty());
        asker.is_sound();
    }
    // No HTTP at all, or a half of it: worth another try, but not for ever.
    for bytes in [
        &b""[..],
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"sha\"",
        b"HTTP/1.1 999999 x\r\n\r\n",
    ] {
        let hub = Hub::with(one(), move |_, _| Some(Reply::Bytes(bytes.to_vec())));
        let error = Asker::of(&hub).fetch(NAME).unwrap_err();
        assert!(matches!(error, HubError::Network { tries: 4, .. }), "{error}");
    }
    // Names that we would not fetch may be as odd as they like.
    let hub = Hub::with(one(), |request, _| {
        let nodes = json!([{"type": "file", "path": "..\\odd\u{7}.png", "oid": "x", "size": 1}, {"type": "directory", "path": "d"},
            node("m-Q8_0.gguf", &bytes(5000, 1), true)]);
        request.path.contains("/tree/").then(|| Reply::Bytes(answer("200 OK", "", nodes.to_string().as_bytes())))
    });
    Asker::of(&hub).fetch(NAME).unwrap();
}

#[test]
fn a_disk_that_is_too_small_is_seen_first() {
    let nodes = json!([{"type": "file", "path": "m-Q8_0.gguf", "oid": "0".repeat(40), "size": 1,
        "lfs": {"oid": "a".repeat(64), "size": u64::MAX}}]);
    let hub = Hub::with(one(), move |request, _| {
        request.path.contains("/tree/").then(|| Reply::Bytes(answer("200 OK", "", nodes.to_string().as_bytes())))
    });
    let error = Asker::of(&hub).fetch(NAME).unwrap_err();
    assert!(matches!(error, HubError::Space { needed: u64::MAX, .. }) && error.code() == 1, "{error}");
    assert!(hub.downloads().is_empty());
}

#[test]
fn a_renamed_repository_is_followed_on_its_own_host() {
    let hub = Hub::with(one(), |request, _| {
        let to =
            |path: String| Some(Reply::Bytes(answer("307 Temporary Redirect", &format!("Location: {path}\r\n"), b"")));
        match request.path.strip_prefix("/api/models/old/name") {
            Some(rest) => to(format!("/api/models/o/m{rest}")),
            None => request.path.strip_prefix("/old/name").and_then(|rest| to(format!("/o/m{rest}"))),
        }
    });
    let asker = Asker::of(&hub);
    let found = asker.fetch("hf:old/name:Q8_0").unwrap();
    assert!(found.model.starts_with(asker.settings.cache.join("models--old--name/snapshots").join(COMMIT)));
    assert!(hub.log().iter().all(|r| r.auth.is_some() != r.at_store));
}

/// Damage of the disk, or of a hand: `fetch` reads what is there, says so, and brings it again.
#[test]
fn a_damaged_blob_is_fetched_again() {
    let hub = Hub::new(one());
    let asker = Asker::of(&hub);
    let path = asker.fetch(NAME).unwrap().model;
    let mut damaged = bytes(5000, 1);
    damaged[1000] ^= 1;
    fs::write(&path, &damaged).unwrap();
    let found = asker.fetch(NAME).unwrap();
    assert!(!found.files[0].cached && asker.notes.borrow().iter().any(|n| n.contains("is fetched again")));
    assert_eq!(fs::read(&found.model).unwrap(), bytes(5000, 1));
    assert!(asker.fetch(NAME).unwrap().files[0].cached);
    asker.is_sound();
}

/// As deep as a listing may name a file, it is found again.
#[test]
fn a_model_deep_in_folders_is_found_again() {
    for depth in [16, 17, 400] {
        let hub = Hub::new(vec![file(&format!("{}m-Q8_0.gguf", "a/".repeat(depth)), bytes(100, 1), true)]);
        let mut asker = Asker::of(&hub);
        let fetched = asker.fetch(NAME).unwrap();
        asker.settings.offline = true;
        assert_eq!(asker.fetch(NAME).unwrap().model, fetched.model, "{depth}");
    }
}

/// A revision that is a folder of another one is refused before anything is fetched, with what to remove.
#[test]
fn revisions_that_stand_in_each_others_way_are_named() {
    for (first, second, there) in [("a/b", "a", "refs/a"), ("a", "a/b", "refs/a")] {
        let hub = Hub::new(one());
        let asker = Asker::of(&hub);
        asker.fetch(&format!("hf:o/m@{first}:Q8_0")).unwrap();
        let before = hub.log().len();
        let error = asker.fetch(&format!("hf:o/m@{second}:Q8_0")).unwrap_err();
        let text = error.to_string();
        assert!(error.code() == 3 && text.contains(there) && text.contains("remove it"), "{text}");
        assert_eq!(hub.log().len(), before);
    }
}

#[test]
fn a_download_that_is_a_link_is_not_written_through() {
    let hub = Hub::new(one());
    let asker = Asker::of(&hub);
    let outside = tempfile::NamedTempFile::new().unwrap();
    fs::write(outside.path(), b"precious").unwrap();
    let blobs = asker.repo().join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    let incomplete = blobs.join(format!("{}.incomplete", blob(&bytes(5000, 1), true)));
    std::os::unix::fs::symlink(outside.path(), incomplete).unwrap();
    let text = asker.fetch(NAME).unwrap_err().to_string();
    assert!(text.contains("a link") && text.contains("remove it"), "{text}");
    assert_eq!(fs::read(outside.path()).unwrap(), b"precious");
}

/// What is said to be kept is there, and where nothing is, nothing is said to be.
#[test]
fn what_is_said_to_be_kept_is_there() {
    for (status, kept) in [("416 Range Not Satisfiable", None), ("500 Oops", Some("1000 bytes have arrived"))] {
        let hub = Hub::with(one(), move |request, before| {
            let whole = ranged(&bytes(5000, 1), request.range);
            let first = Reply::Bytes(whole[..whole.len() - 4000].to_vec());
            request.at_store.then(|| if before == 0 { first } else { Reply::Bytes(answer(status, "", b"")) })
        });
        let text = Asker::of(&hub).fetch(NAME).unwrap_err().to_string();
        assert_eq!(text.contains("kept"), kept.is_some(), "{text}");
        assert!(kept.is_none_or(|kept| text.contains(kept)), "{text}");
    }
}

/// A listing that drips is as good as a silent one.
#[test]
fn a_listing_that_never_ends_is_given_up() {
    let hub = Hub::with(one(), |request, _| {
        let drip = || Reply::Paced(answer("200 OK", "", &[b' '; 4000]), 40, Duration::from_millis(100));
        request.path.contains("/tree/").then(drip)
    });
    let mut asker = Asker::of(&hub);
    (asker.settings.patience.stall, asker.settings.patience.tries) = (Duration::from_millis(500), 2);
    let error = asker.fetch(NAME).unwrap_err();
    assert!(error.code() == 1 && error.to_string().contains("and no end"), "{error}");
    assert!(asker.notes.borrow()[0].contains("another try"));
}
