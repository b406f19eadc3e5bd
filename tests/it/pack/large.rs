//! A target larger than the disk: its payload is holes, and nobody reads it.
//!
//! The head is small by default. At the size of a published one, 5.9 GB, which takes as much of the disk for a while:
//! `LARGE_GRAFT=1 cargo test --release -p engine-tests --test it a_head_of_full_size -- --nocapture`.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use engine_io::TensorType;
use engine_io::gguf::write::Layout;
use engine_io::gguf::{Meta, Value};
use engine_tests::fixtures::skip;
use tempfile::TempDir;

use super::files::Whole;
use crate::forward::edit::{Edit, Tensor};
use crate::serve::process::program;

/// Bytes of a head for each column of its FFN: three matrices with rows of 64 floats.
const BYTES_A_COLUMN: u64 = 3 * 64 * 4;
/// A head that is larger than the memory allowed.
const SMALL: u64 = 201_000_000;
/// A head as it is published.
const FULL: u64 = 5_900_000_000;
/// Of everything that is linked.
const TARGET_BYTES: u64 = 90 << 30;
/// Memory that a graft may take.
const PEAK_KB: u64 = 200_000;
/// What may be read of all files but the head: headers, and the program's own libraries.
const ELSE_BYTES: u64 = 1 << 20;

/// The model with FFNs of `width` and without data.
fn wide(edit: &Edit, width: u64) -> Edit {
    let mut edit = edit.clone().set("qwen35.feed_forward_length", Value::U32(width as u32));
    for t in &mut edit.tensors {
        t.data.clear();
        if t.name.contains(".ffn_") {
            t.dims.iter_mut().filter(|d| **d == 32).for_each(|d| *d = width);
        }
    }
    edit
}

/// A file whose header is written and whose data are a hole. Gives its size.
pub fn sparse(path: &Path, meta: Meta, tensors: &[Tensor]) -> u64 {
    let mut layout = Layout::new(meta).unwrap();
    for t in tensors {
        layout.tensor(&t.name, &t.dims, t.kind).unwrap();
    }
    let len = layout.file_bytes();
    let file = File::create(path).unwrap();
    drop(layout.start(&file).unwrap());
    file.set_len(len).unwrap();
    len
}

/// Puts a head of `head_bytes` or a little more behind 90 GB in three shards, and looks at what that took.
fn grafted(head_bytes: u64) {
    let whole = Whole::qwen35();
    let dir = TempDir::new().unwrap();
    let width = head_bytes.div_ceil(BYTES_A_COLUMN).next_multiple_of(256);
    let target = wide(&whole.target(), width);
    let ballast = Tensor {
        name: "ballast.weight".into(),
        dims: vec![1 << 20, TARGET_BYTES >> 22],
        kind: TensorType::F32,
        data: Vec::new(),
    };
    let parts = [&[][..], target.tensors.as_slice(), &[ballast]];
    let mut target_bytes = 0;
    for (no, part) in parts.into_iter().enumerate() {
        let mut meta = if no == 0 { target.meta.clone() } else { Meta::new("shard") };
        meta.set("split.no", Value::U16(no as u16));
        meta.set("split.count", Value::U16(3));
        meta.set("split.tensors.count", Value::I32(target.tensors.len() as i32 + 1));
        target_bytes += sparse(&dir.path().join(format!("t-{:05}-of-00003.gguf", no + 1)), meta, part);
    }
    let of_head = wide(&whole.head(), width);
    let head = dir.path().join("head.gguf");
    let head_bytes = sparse(&head, of_head.meta.clone(), &of_head.tensors);
    assert!(head_bytes > PEAK_KB * 1000, "the head must not fit in the memory allowed");
    let out = dir.path().join("out");
    let start = std::time::Instant::now();
    let mut child = Command::new(program("engine-pack"))
        .args(["graft", "--link", "hard", "--json", "--target"])
        .arg(dir.path().join("t-00002-of-00003.gguf"))
        .arg("--head")
        .arg(&head)
        .arg("--out")
        .arg(&out)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The last that the system tells of it before it is gone.
    let id = child.id();
    let number = |file: &str, key: &str| {
        let text = std::fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_default().to_owned();
        line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
    };
    let (mut peak_kb, mut read) = (0, 0);
    let code = loop {
        peak_kb = peak_kb.max(number("status", "VmHWM:"));
        read = read.max(number("io", "rchar:"));
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    let seconds = start.elapsed().as_secs_f64();
    println!("graft,{target_bytes},{head_bytes},{peak_kb},{read},{seconds:.1}");
    assert_eq!(code, Some(0));
    assert!(peak_kb > 0 && peak_kb < PEAK_KB, "{peak_kb} kB at the peak");
    // The head once, and once more what was written of it, of which the end may have been missed here; next to nothing
    // else. What of the target is looked at through its mapping is within the peak.
    let once_and_once_more = head_bytes..2 * head_bytes + ELSE_BYTES;
    assert!(once_and_once_more.contains(&read), "{read} bytes were read for a head of {head_bytes}");
    let set = crate::forward::open(&out);
    assert!(set.file_bytes() > TARGET_BYTES + head_bytes);
}

/// 90 GB are linked unread, and a head larger than the memory allowed is copied in parts.
#[test]
fn ninety_gigabytes_are_linked_unread() {
    grafted(SMALL);
}

/// The same with a head as it is published. Prints bytes of target and head, peak memory in kB, bytes read, seconds.
#[test]
fn a_head_of_full_size() {
    match std::env::var_os("LARGE_GRAFT") {
        Some(_) => grafted(FULL),
        None => skip("a graft of a head of 5.9 GB", "LARGE_GRAFT is not set; one of 201 MB was grafted"),
    }
}
