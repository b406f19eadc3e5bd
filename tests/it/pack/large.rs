//! A target larger than the disk: its payload is holes, and nobody reads it.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use engine_io::TensorType;
use engine_io::gguf::write::Layout;
use engine_io::gguf::{Meta, Value};
use tempfile::TempDir;

use super::files::Whole;
use crate::forward::edit::{Edit, Tensor};
use crate::serve::process::program;

/// Width of the FFNs: the block has 3 * 64 * 4 bytes of it.
const WIDTH: u64 = 1 << 18;
/// Of everything that is linked.
const TARGET_BYTES: u64 = 90 << 30;

/// The model with wide FFNs and without data.
fn wide(edit: &Edit) -> Edit {
    let mut edit = edit.clone().set("qwen35.feed_forward_length", Value::U32(WIDTH as u32));
    for t in &mut edit.tensors {
        t.data.clear();
        if t.name.contains(".ffn_") {
            t.dims.iter_mut().filter(|d| **d == 32).for_each(|d| *d = WIDTH);
        }
    }
    edit
}

/// A file whose header is written and whose data are a hole. Gives its size.
fn sparse(path: &Path, meta: Meta, tensors: &[Tensor]) -> u64 {
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

/// 90 GB are linked unread, and a head larger than the memory allowed is copied in parts.
#[test]
fn ninety_gigabytes_are_linked_unread() {
    let whole = Whole::qwen35();
    let dir = TempDir::new().unwrap();
    let target = wide(&whole.target());
    let ballast = Tensor {
        name: "ballast.weight".into(),
        dims: vec![1 << 20, TARGET_BYTES >> 22],
        kind: TensorType::F32,
        data: Vec::new(),
    };
    let parts = [&[][..], target.tensors.as_slice(), &[ballast]];
    for (no, part) in parts.into_iter().enumerate() {
        let mut meta = if no == 0 { target.meta.clone() } else { Meta::new("shard") };
        meta.set("split.no", Value::U16(no as u16));
        meta.set("split.count", Value::U16(3));
        meta.set("split.tensors.count", Value::I32(target.tensors.len() as i32 + 1));
        sparse(&dir.path().join(format!("t-{:05}-of-00003.gguf", no + 1)), meta, part);
    }
    let of_head = wide(&whole.head());
    let head = dir.path().join("head.gguf");
    let head_bytes = sparse(&head, of_head.meta.clone(), &of_head.tensors);
    assert!(head_bytes > 200_000_000);
    let out = dir.path().join("out");
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
    println!("peak {peak_kb} kB, {read} bytes read, head of {head_bytes} bytes");
    assert_eq!(code, Some(0));
    assert!(peak_kb > 0 && peak_kb < 200_000, "{peak_kb} kB at the peak");
    // The head's file once, and once more what was written of it.
    assert!(read > head_bytes && read < 3 * head_bytes, "{read} bytes were read for a head of {head_bytes}");
    let set = crate::forward::open(&out);
    assert!(set.file_bytes() > TARGET_BYTES + head_bytes);
}
