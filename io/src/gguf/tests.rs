//! Files written byte by byte, so that the reader is not checked against the writer's idea of the format alone.

use proptest::prelude::*;

use super::layers::LayerCounts;
use super::read::{ALIGNMENT_MAX, NESTING_MAX};
use super::write::Layout;
use super::*;
use crate::error::Error;

const MAX: u64 = u64::MAX;

/// Bytes of a file under construction.
struct Raw(Vec<u8>);

impl Raw {
    fn new(tensors: u64, keys: u64) -> Self {
        Raw(b"GGUF".to_vec()).u32(3).u64(tensors).u64(keys)
    }
    fn u32(mut self, v: u32) -> Self {
        self.0.extend(v.to_le_bytes());
        self
    }
    fn u64(mut self, v: u64) -> Self {
        self.0.extend(v.to_le_bytes());
        self
    }
    fn bytes(mut self, b: &[u8]) -> Self {
        self.0.extend(b);
        self
    }
    fn str(self, s: &str) -> Self {
        self.u64(s.len() as u64).bytes(s.as_bytes())
    }
    /// A key of type u32.
    fn key_u32(self, key: &str, v: u32) -> Self {
        self.str(key).u32(4).u32(v)
    }
    fn tensor(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let head = self.str(name).u32(dims.len() as u32);
        dims.iter().fold(head, |r, &d| r.u64(d)).u32(ty).u64(offset)
    }
    /// Pads to 32 and appends zeros.
    fn data(mut self, len: usize) -> Self {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + len, 0);
        self
    }
    fn parse(&self) -> Result<Gguf, Error> {
        Gguf::parse(&self.0, "test.gguf")
    }
    #[track_caller]
    fn fails(&self) -> Error {
        self.parse().expect_err("the file is bad")
    }
}

#[track_caller]
fn refused(found: &Error, part: &str) {
    let text = found.to_string();
    assert!(text.contains(part), "{text:?} does not speak of {part:?}");
}

macro_rules! assert_is {
    ($e:expr, $pattern:pat) => {{
        let e = $e;
        assert!(matches!(e, $pattern), "{e:?}");
        e
    }};
}

/// One of everything.
fn sample() -> (Meta, Layout, Vec<Vec<u8>>) {
    let mut meta = Meta::new("sample.gguf");
    let values = [
        ("general.architecture", Value::str("llama")),
        ("u8", Value::U8(200)),
        ("i8", Value::I8(-7)),
        ("u16", Value::U16(65_000)),
        ("i16", Value::I16(-300)),
        ("u32", Value::U32(4_000_000_000)),
        ("i32", Value::I32(-5)),
        ("f32", Value::F32(0.5)),
        ("bool", Value::Bool(true)),
        ("empty", Value::str("")),
        ("u64", Value::U64(1 << 40)),
        ("i64", Value::I64(-1)),
        ("f64", Value::F64(1e-6)),
        ("strs", Value::strs(["", "a", "bc"])),
        ("bools", Value::Array(Array::Bool(vec![true, false]))),
        ("nested", Value::Array(Array::Array(vec![Array::I32(vec![1, -2]), Array::Str(StrArray::default())]))),
        ("none", Value::Array(Array::F32(vec![]))),
        ("i64s", Value::Array(Array::I64(vec![3, 4]))),
        ("f64s", Value::Array(Array::F64(vec![0.25]))),
    ];
    for (key, value) in values {
        meta.push(key, value).unwrap();
    }
    let mut layout = Layout::new(meta.clone()).unwrap();
    let mut data = Vec::new();
    for (i, (dims, ty)) in
        [(&[3u64, 2][..], TensorType::F32), (&[64, 3], TensorType::Q4_0), (&[], TensorType::I8)].iter().enumerate()
    {
        layout.tensor(&format!("t{i}"), dims, *ty).unwrap();
        let rows: u64 = dims.iter().skip(1).product();
        data.push(vec![i as u8 + 1; (ty.row_bytes(dims.first().copied().unwrap_or(1)).unwrap() * rows) as usize]);
    }
    (meta, layout, data)
}

fn sample_bytes() -> Vec<u8> {
    let (_, layout, data) = sample();
    let size = layout.file_bytes();
    let bytes = layout.to_bytes(&data.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
    assert_eq!(bytes.len() as u64, size);
    bytes
}

#[test]
fn what_is_written_is_read() {
    let (meta, _, data) = sample();
    let bytes = sample_bytes();
    let got = Gguf::parse(&bytes, "x").unwrap();
    assert_eq!((got.version, got.alignment), (3, 32));
    assert!(got.meta.iter().eq(meta.iter()));
    assert_eq!(got.tensors.len(), 3);
    for (t, data) in got.tensors.iter().zip(&data) {
        assert!(t.start.is_multiple_of(32));
        assert_eq!(&bytes[t.start as usize..][..t.bytes as usize], data, "{}", t.name);
    }
    let t = &got.tensors[1];
    assert_eq!((t.dims(), t.row_len(), t.rows(), t.row_bytes(), t.elements()), (&[64, 3][..], 64, 3, 36, 192));
    assert!(t.has_dims(&[64, 3, 1]) && !t.has_dims(&[64]) && !t.has_dims(&[64, 3, 1, 1, 1]));
    // A tensor without dimensions is one element.
    assert_eq!((got.tensors[2].dims(), got.tensors[2].elements(), got.tensors[2].bytes), (&[][..], 1, 1));
}

#[test]
fn a_file_by_hand_is_read() {
    let file = Raw::new(1, 1).key_u32("general.alignment", 32).tensor("w", &[2, 2], 0, 0).data(16);
    let got = file.parse().unwrap();
    assert_eq!(got.data_start, file.0.len() as u64 - 16);
    assert_eq!(got.tensors[0].start, got.data_start);
}

#[test]
fn versions_two_and_three_load_the_same_and_others_say_which_they_are() {
    let three = sample_bytes();
    let mut two = three.clone();
    two[4] = 2;
    let (a, b) = (Gguf::parse(&three, "x").unwrap(), Gguf::parse(&two, "x").unwrap());
    assert!(a.meta.iter().eq(b.meta.iter()));
    assert_eq!((a.tensors, b.version), (b.tensors, 2));
    for (version, part) in
        [(1, "too old"), (4, "version 4 is not known"), (0, "version 0 is not known"), (MAX as u32, "not known")]
    {
        let mut file = three.clone();
        file[4..8].copy_from_slice(&version.to_le_bytes());
        refused(&Gguf::parse(&file, "x").unwrap_err(), part);
    }
    // Byte order: version word and counts swapped, nothing else is tried.
    for version in [1u32, 2, 3] {
        let file =
            Raw(b"GGUF".to_vec()).bytes(&version.to_be_bytes()).bytes(&1u64.to_be_bytes()).bytes(&2u64.to_be_bytes());
        let e = assert_is!(file.fails(), Error::ByteSwapped { .. });
        refused(&e, "big-endian");
    }
}

#[test]
fn what_is_not_gguf_is_named() {
    for (bytes, part) in [
        (&b"version https://git-lfs.github.com/spec/v1\noid"[..], "git lfs pull"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"tjgg\x03\0\0\0", "before GGUF"),
        (b"\x40\0\0\0\0\0\0\0{\"a\":1}", "safetensors"),
        (b"PK\x03\x04", "zip"),
        (b"FUGG", "give a GGUF"),
    ] {
        refused(&assert_is!(Gguf::parse(bytes, "x").unwrap_err(), Error::NotGguf { .. }), part);
    }
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = sample_bytes();
    let last = Gguf::parse(&bytes, "x").unwrap().tensors[2].clone();
    let end = (last.start + last.bytes) as usize;
    for n in 0..end {
        let e = Gguf::parse(&bytes[..n], "x").unwrap_err();
        assert_is!(e, Error::Truncated { .. } | Error::TruncatedTensor { .. });
    }
    // Padding after the last tensor carries nothing.
    Gguf::parse(&bytes[..end], "x").unwrap();
}

#[test]
fn truncation_names_the_tensor_and_hints_at_raw_parts() {
    let file = Raw::new(2, 0).tensor("a", &[8], 0, 0).tensor("b", &[8], 0, 32).data(40);
    let e = assert_is!(file.fails(), Error::TruncatedTensor { needed: 32, .. });
    refused(&e, "tensor b");
    // Cut exactly at the data section's start, and inside the padding before it.
    let whole = file.0.len();
    for n in [whole - 40, whole - 41] {
        assert_is!(Gguf::parse(&file.0[..n], "x").unwrap_err(), Error::TruncatedTensor { .. });
    }
    refused(&Gguf::parse(&file.0, "model.gguf.part1of2").unwrap_err(), "join the parts");
    refused(&Gguf::parse(&file.0[..30], "model.gguf.part1of2").unwrap_err(), "join the parts");
    assert!(!Gguf::parse(&file.0, "best-part-of-it.gguf").unwrap_err().to_string().contains("join"));
    // Without tensors there is no data section to be cut.
    Raw::new(0, 0).parse().unwrap();
}

#[test]
fn counts_are_compared_with_the_bytes_left() {
    for count in [1, 1000, MAX / 13, MAX / 13 + 1, 1 << 56, MAX] {
        assert_is!(Raw::new(0, count).fails(), Error::Truncated { .. });
        assert_is!(Raw::new(count, 0).fails(), Error::Truncated { .. });
    }
    for len in [14, 37, 1 << 63, MAX - 31, MAX] {
        assert_is!(Raw::new(0, 1).u64(len).bytes(&[b'k'; 13]).fails(), Error::Truncated { .. });
        assert_is!(Raw::new(0, 1).str("k").u32(8).u64(len).fails(), Error::Truncated { .. });
    }
    for ty in ValueType::ALL {
        for count in [2, MAX / ty.bytes_min(), MAX] {
            refused(
                &assert_is!(Raw::new(0, 1).str("k").u32(9).u32(ty.id()).u64(count).fails(), Error::Truncated { .. }),
                "k",
            );
        }
    }
    // 2^40 empty arrays.
    assert_is!(Raw::new(0, 1).str("k").u32(9).u32(9).u64(1 << 40).data(64).fails(), Error::Truncated { .. });
}

#[test]
fn shapes_are_checked_before_they_are_used() {
    let one = |dims: &[u64], ty, offset| Raw::new(1, 0).tensor("w", dims, ty, offset).data(64);
    assert_is!(one(&[MAX, 2, 1, 1], 0, 0).fails(), Error::BadShape { .. });
    assert_is!(one(&[1 << 32, 1 << 32], 0, 0).fails(), Error::BadShape { .. });
    assert_is!(one(&[1 << 63], 24, 0).fails(), Error::BadShape { .. });
    // Elements fit in 63 bits, bytes do not.
    assert_is!(one(&[1 << 61], 28, 0).fails(), Error::BadShape { .. });
    assert_is!(one(&[1 << 62], 24, 0).fails(), Error::TruncatedTensor { .. });
    assert_is!(one(&[0], 0, 0).fails(), Error::BadShape { .. });
    assert_is!(one(&[4, 0], 0, 0).fails(), Error::BadShape { .. });
    assert_is!(one(&[1; 5], 0, 0).fails(), Error::BadShape { .. });
    assert_is!(one(&[1; 9], 0, 0).fails(), Error::BadShape { .. });
    assert_is!(Raw::new(1, 0).str("w").u32(u32::MAX).data(64).fails(), Error::BadShape { .. });
    for offset in [32, 64, 1 << 62, MAX - 31] {
        assert_is!(one(&[16], 0, offset).fails(), Error::TruncatedTensor { .. });
    }
    assert_is!(one(&[1], 0, 33).fails(), Error::MisalignedTensor { found: 33, alignment: 32, .. });
    one(&[16], 0, 0).parse().unwrap();
}

#[test]
fn a_row_is_whole_blocks() {
    for (dims, ty, block) in [(&[14_464u64, 32][..], 12u32, 256), (&[4544, 64], 12, 256), (&[172, 8], 8, 32)] {
        let e = assert_is!(Raw::new(1, 0).tensor("w", dims, ty, 0).data(64).fails(), Error::RowNotBlocks { .. });
        refused(&e, &format!("row length {} is not a multiple of the block length {block}", dims[0]));
    }
}

#[test]
fn overlapping_tensors_are_refused_and_order_is_free() {
    let e = Raw::new(2, 0).tensor("a", &[9], 0, 0).tensor("b", &[1], 0, 32).data(64).fails();
    assert_is!(e, Error::OverlappingTensors { .. });
    assert_is!(
        Raw::new(2, 0).tensor("a", &[1], 0, 0).tensor("b", &[1], 0, 0).data(64).fails(),
        Error::OverlappingTensors { .. }
    );
    Raw::new(2, 0).tensor("a", &[8], 0, 32).tensor("b", &[8], 0, 0).data(64).parse().unwrap();
}

#[test]
fn unknown_types_stop_the_parse() {
    for (id, part) in
        [(4, "removed"), (31, "Q4_0"), (38, "Q4_0"), (139, "fork"), (43, "does not know"), (u32::MAX, "does not know")]
    {
        let e = Raw::new(1, 0).tensor("w", &[256], id, 0).data(1024).fails();
        refused(&assert_is!(e, Error::UnknownTensorType { .. }), part);
    }
    for id in [13, 255, u32::MAX] {
        assert_is!(Raw::new(0, 1).str("k").u32(id).data(64).fails(), Error::UnknownValueType { .. });
        assert_is!(Raw::new(0, 1).str("k").u32(9).u32(id).u64(0).fails(), Error::UnknownValueType { .. });
    }
    for ty in TensorType::ALL {
        assert_eq!(TensorType::from_id(ty.id()), Some(*ty));
        let file = Raw::new(1, 0).tensor("w", &[ty.block_len()], ty.id(), 0).data(ty.block_bytes() as usize);
        assert_eq!(file.parse().unwrap().tensors[0].bytes, ty.block_bytes());
    }
}

#[test]
fn nesting_is_bounded() {
    let nested = |levels: u32| {
        let file = Raw::new(0, 1).str("k").u32(9);
        (1..levels).fold(file, |r, _| r.u32(9).u64(1)).u32(0).u64(1).bytes(&[7])
    };
    nested(NESTING_MAX).parse().unwrap();
    assert_is!(nested(NESTING_MAX + 1).fails(), Error::NestingTooDeep { .. });
    assert_is!(nested(10_000).fails(), Error::NestingTooDeep { .. });
}

#[test]
fn names_have_one_outcome_each() {
    // 37 bytes: one key with an empty name.
    let e = Raw::new(0, 1).u64(0).u32(0).bytes(&[0]);
    assert_eq!(e.0.len(), 37);
    refused(&assert_is!(e.fails(), Error::EmptyName { index: 0, .. }), "metadata key 0");
    assert_is!(Raw::new(1, 0).tensor("", &[1], 0, 0).data(64).fails(), Error::EmptyName { what: "tensor", .. });
    let e = Raw::new(0, 2).key_u32("twice", 1).key_u32("twice", 1).fails();
    refused(&assert_is!(e, Error::DuplicateKey { .. }), "twice");
    let e = Raw::new(2, 0).tensor("w", &[8], 0, 0).tensor("w", &[8], 0, 32).data(64).fails();
    assert_is!(e, Error::DuplicateTensor { .. });
    assert_is!(Raw::new(0, 1).u64(2).bytes(&[0xff, 0xfe]).u32(0).bytes(&[0]).fails(), Error::BadName { .. });
    let long = "k".repeat(65_535);
    Raw::new(0, 1).key_u32(&long, 1).parse().unwrap();
    assert_is!(Raw::new(0, 1).key_u32(&(long + "k"), 1).fails(), Error::BadName { .. });
    // Empty strings and arrays are values like others.
    let got = Raw::new(0, 2).str("s").u32(8).u64(0).str("a").u32(9).u32(8).u64(0).parse().unwrap();
    assert_eq!(got.meta.get_str("s").unwrap(), Some(""));
    assert!(got.meta.get_str_array("a").unwrap().unwrap().is_empty());
}

#[test]
fn booleans_are_zero_or_one() {
    assert_is!(Raw::new(0, 1).str("k").u32(7).bytes(&[2]).fails(), Error::BadBool { found: 2, .. });
    assert_is!(
        Raw::new(0, 1).str("k").u32(9).u32(7).u64(2).bytes(&[1, 255]).fails(),
        Error::BadBool { found: 255, .. }
    );
}

#[test]
fn alignment_is_the_files_own() {
    for bad in [0u32, 3, 24, 33, ALIGNMENT_MAX as u32 * 2] {
        assert_is!(Raw::new(0, 1).key_u32("general.alignment", bad).fails(), Error::BadAlignment { .. });
    }
    assert_is!(Raw::new(0, 1).str("general.alignment").u32(8).str("32").fails(), Error::WrongType { .. });
    for align in [1u64, 8, 32, 64, 4096] {
        let mut meta = Meta::new("x");
        // Any integer width.
        meta.push("general.alignment", Value::U64(align)).unwrap();
        let mut layout = Layout::new(meta).unwrap();
        layout.tensor("a", &[3], TensorType::F32).unwrap();
        layout.tensor("b", &[1], TensorType::F32).unwrap();
        let bytes = layout.to_bytes(&[&[1; 12], &[2; 4]]).unwrap();
        let got = Gguf::parse(&bytes, "x").unwrap();
        assert_eq!(got.alignment, align);
        for t in &got.tensors {
            assert!(t.start.is_multiple_of(align), "{} at {}", t.name, t.start);
        }
        assert_eq!(got.tensors[0].start, got.data_start, "an aligned header gets no extra block");
        assert_eq!(bytes[got.tensors[1].start as usize], 2);
    }
}

#[test]
fn integers_of_any_width_are_read_within_range() {
    let mut meta = Meta::new("m.gguf");
    for (i, v) in [
        Value::U8(3),
        Value::I8(3),
        Value::U16(3),
        Value::I16(3),
        Value::U32(3),
        Value::I32(3),
        Value::U64(3),
        Value::I64(3),
    ]
    .into_iter()
    .enumerate()
    {
        meta.push(&format!("n{i}"), v).unwrap();
    }
    for i in 0..8 {
        assert_eq!(meta.require_u32(&format!("n{i}")).unwrap(), 3);
        assert_eq!(meta.get_u64(&format!("n{i}")).unwrap(), Some(3));
        assert_eq!(meta.get_i32(&format!("n{i}")).unwrap(), Some(3));
    }
    for (key, value) in [
        ("minus", Value::I8(-1)),
        ("big", Value::U64(1 << 32)),
        ("split.count", Value::str("3")),
        ("context_length", Value::F32(8192.0)),
        ("nan", Value::F32(f32::NAN)),
        ("huge", Value::F64(1e300)),
        ("eps", Value::F64(1e-6)),
        ("text", Value::Str([0xff].into())),
        ("types32", Value::Array(Array::U32(vec![1, 3]))),
        ("types64", Value::Array(Array::I64(vec![1, 3]))),
        ("negative", Value::Array(Array::I64(vec![1, -3]))),
    ] {
        meta.push(key, value).unwrap();
    }
    assert_is!(meta.get_u32("minus").unwrap_err(), Error::OutOfRange { .. });
    assert_is!(meta.get_i32("big").unwrap_err(), Error::OutOfRange { .. });
    refused(&assert_is!(meta.get_u32("big").unwrap_err(), Error::OutOfRange { .. }), "big = 4294967296");
    refused(&assert_is!(meta.get_u32("split.count").unwrap_err(), Error::WrongType { .. }), "string \"3\"");
    refused(&assert_is!(meta.get_u32("context_length").unwrap_err(), Error::WrongType { .. }), "f32 8192");
    refused(&assert_is!(meta.require_u32("absent").unwrap_err(), Error::MissingKey { .. }), "absent");
    assert_eq!(meta.get_u32("absent").unwrap(), None);
    assert_is!(meta.get_f32("nan").unwrap_err(), Error::OutOfRange { .. });
    assert_is!(meta.get_f32("huge").unwrap_err(), Error::OutOfRange { .. });
    assert_eq!(meta.get_f32("eps").unwrap(), Some(1e-6));
    assert_is!(meta.get_f32("n0").unwrap_err(), Error::WrongType { .. });
    assert_is!(meta.get_bool("n0").unwrap_err(), Error::WrongType { .. });
    assert_is!(meta.get_str("n0").unwrap_err(), Error::WrongType { .. });
    assert_is!(meta.get_str("text").unwrap_err(), Error::OutOfRange { .. });
    assert_eq!(meta.get_i32_array("types32").unwrap(), Some(vec![1, 3]));
    assert_eq!(meta.get_i32_array("types64").unwrap(), Some(vec![1, 3]));
    refused(&meta.get_u32_array("negative").unwrap_err(), "negative[1] = -3");
    assert_is!(meta.get_u32_array("n0").unwrap_err(), Error::WrongType { .. });
    assert_is!(meta.get_f32_array("types32").unwrap_err(), Error::WrongType { .. });
    assert_is!(meta.get_str_array("types32").unwrap_err(), Error::WrongType { .. });
}

#[test]
fn edited_metadata_keep_order_and_index() {
    let mut meta = Meta::new("m");
    for key in ["a", "b", "c"] {
        meta.push(key, Value::str(key)).unwrap();
    }
    assert_is!(meta.push("b", Value::U8(0)).unwrap_err(), Error::DuplicateKey { .. });
    meta.set("b", Value::U8(1));
    meta.set("d", Value::U8(2));
    assert_eq!(meta.remove("a"), Some(Value::str("a")));
    assert_eq!(meta.remove("a"), None);
    assert_eq!(meta.iter().map(|(k, _)| k).collect::<Vec<_>>(), ["b", "c", "d"]);
    assert_eq!(
        (meta.get_u32("b").unwrap(), meta.get_str("c").unwrap(), meta.get_u32("d").unwrap()),
        (Some(1), Some("c"), Some(2))
    );
}

fn hybrid(all: u32, nextn: Option<u32>) -> Meta {
    let mut meta = Meta::new("m.gguf");
    meta.push("qwen35.block_count", Value::U32(all)).unwrap();
    if let Some(n) = nextn {
        meta.push("qwen35.nextn_predict_layers", Value::U32(n)).unwrap();
    }
    meta
}

#[test]
fn block_counts_that_cannot_be_are_refused() {
    let read = |all, nextn| LayerCounts::read(&hybrid(all, nextn), "qwen35");
    let got = read(5, Some(1)).unwrap();
    assert_eq!((got.all, got.nextn, got.trunk()), (5, 1, 4));
    assert_eq!(read(5, None).unwrap().trunk(), 5);
    assert_eq!(read(5, Some(4)).unwrap().trunk(), 1);
    for nextn in [5, 6, u32::MAX] {
        refused(&assert_is!(read(5, Some(nextn)).unwrap_err(), Error::Inconsistent { .. }), &format!("= {nextn} and"));
    }
    assert_is!(read(0, None).unwrap_err(), Error::OutOfRange { .. });
    assert_is!(LayerCounts::read(&Meta::new("m"), "qwen35").unwrap_err(), Error::MissingKey { .. });
}

#[test]
fn scalar_and_array_forms_give_the_same_plan() {
    let layers = LayerCounts { all: 5, nextn: 1 };
    let plan = |value: Value| {
        let mut meta = Meta::new("m.gguf");
        meta.push("k", value).unwrap();
        layers.per_layer_u32(&meta, "k", 2)
    };
    let same = vec![2; 5];
    assert_eq!(plan(Value::U32(2)).unwrap(), Some(same.clone()));
    assert_eq!(plan(Value::Array(Array::I64(vec![2; 5]))).unwrap(), Some(same.clone()));
    assert_eq!(plan(Value::Array(Array::U8(vec![2; 4]))).unwrap(), Some(same));
    assert_eq!(plan(Value::Array(Array::I32(vec![0, 0, 0, 8]))).unwrap(), Some(vec![0, 0, 0, 8, 2]));
    for len in [0, 1, 3, 6] {
        let e = plan(Value::Array(Array::I32(vec![2; len]))).unwrap_err();
        refused(&assert_is!(e, Error::PerLayerLength { .. }), &format!("{len} elements, expected 5 (all blocks) or 4"));
    }
    assert_is!(plan(Value::str("2")).unwrap_err(), Error::WrongType { .. });
    assert_eq!(layers.per_layer_u32(&Meta::new("m"), "k", 0).unwrap(), None);

    let mut meta = Meta::new("m.gguf");
    meta.push("b", Value::Array(Array::Bool(vec![true, true, true, false]))).unwrap();
    meta.push("i", Value::Array(Array::I32(vec![1, 1, 1, 0, 0]))).unwrap();
    meta.push("two", Value::Array(Array::I32(vec![2; 5]))).unwrap();
    meta.push("one", Value::Bool(true)).unwrap();
    let flags = Some(vec![true, true, true, false, false]);
    assert_eq!(layers.per_layer_bool(&meta, "b", false).unwrap(), flags);
    assert_eq!(layers.per_layer_bool(&meta, "i", false).unwrap(), flags);
    assert_eq!(layers.per_layer_bool(&meta, "one", false).unwrap(), Some(vec![true; 5]));
    assert_is!(layers.per_layer_bool(&meta, "two", false).unwrap_err(), Error::OutOfRange { .. });
}

#[test]
fn the_writer_refuses_what_makes_no_file() {
    let mut deep = Array::U8(vec![1]);
    for _ in 0..NESTING_MAX {
        deep = Array::Array(vec![deep]);
    }
    let mut meta = Meta::new("x");
    meta.push("deep", Value::Array(deep)).unwrap();
    assert_is!(Layout::new(meta).unwrap_err(), Error::Write { .. });
    let mut meta = Meta::new("x");
    meta.push("", Value::U8(0)).unwrap();
    assert_is!(Layout::new(meta).unwrap_err(), Error::Write { .. });

    let mut layout = Layout::new(Meta::new("x")).unwrap();
    layout.tensor("a", &[4], TensorType::F32).unwrap();
    assert_is!(layout.tensor("a", &[4], TensorType::F32).unwrap_err(), Error::DuplicateTensor { .. });
    assert_is!(layout.tensor("", &[4], TensorType::F32).unwrap_err(), Error::Write { .. });
    assert_is!(layout.tensor("b", &[4], TensorType::Q8_0).unwrap_err(), Error::RowNotBlocks { .. });
    assert_is!(layout.tensor("c", &[1 << 60, 2], TensorType::F32).unwrap_err(), Error::BadShape { .. });
    for (bytes, part) in [(&[0u8; 15][..], "15 bytes"), (&[0; 17], "more bytes")] {
        let mut writer = layout.clone().start(Vec::new()).unwrap();
        refused(&assert_is!(writer.tensor(bytes).unwrap_err(), Error::Write { .. }), part);
    }
    assert_is!(layout.clone().to_bytes(&[]).unwrap_err(), Error::Write { .. });
    assert_is!(layout.to_bytes(&[&[0; 16], &[0; 16]]).unwrap_err(), Error::Write { .. });
}

fn any_array() -> impl Strategy<Value = Array> {
    use proptest::collection::vec;
    let leaf = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<f32>(), 0..9).prop_map(Array::F32),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(any::<f64>(), 0..9).prop_map(Array::F64),
        vec(vec(any::<u8>(), 0..6), 0..6).prop_map(|v| Array::Str(v.into_iter().collect())),
    ];
    leaf.prop_recursive(NESTING_MAX - 1, 16, 3, |inner| vec(inner, 0..3).prop_map(Array::Array))
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<f32>().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f64>().prop_map(Value::F64),
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(|v| Value::Str(v.into())),
        any_array().prop_map(Value::Array),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn write_read_write_is_identical(
        values in proptest::collection::vec(any_value(), 0..8),
        shapes in proptest::collection::vec((0..TensorType::ALL.len(), 1..3u64, 1..4u64, 1..3u64), 0..5),
        align in prop_oneof![Just(None), (0..8u32).prop_map(|b| Some(1u32 << b))],
        fill in any::<u8>(),
    ) {
        let mut meta = Meta::new("p.gguf");
        for (i, v) in values.into_iter().enumerate() {
            meta.push(&format!("k{i}"), v).unwrap();
        }
        if let Some(a) = align {
            meta.push("general.alignment", Value::U32(a)).unwrap();
        }
        let mut layout = Layout::new(meta).unwrap();
        let mut data = Vec::new();
        for (i, &(ty, blocks, rows, planes)) in shapes.iter().enumerate() {
            let ty = TensorType::ALL[ty];
            layout.tensor(&format!("t{i}"), &[blocks * ty.block_len(), rows, planes], ty).unwrap();
            data.push(vec![fill.wrapping_add(i as u8); (blocks * ty.block_bytes() * rows * planes) as usize]);
        }
        let first = layout.to_bytes(&data.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        let got = Gguf::parse(&first, "p.gguf").unwrap();
        let mut again = Layout::new(got.meta).unwrap();
        let mut slices = Vec::new();
        for (t, data) in got.tensors.iter().zip(&data) {
            let bytes = &first[t.start as usize..(t.start + t.bytes) as usize];
            prop_assert_eq!(bytes, &data[..]);
            again.tensor(&t.name, t.dims(), t.ty).unwrap();
            slices.push(bytes);
        }
        prop_assert_eq!(again.to_bytes(&slices).unwrap(), first);
    }

    #[test]
    fn flipped_bits_never_panic(flips in proptest::collection::vec((any::<prop::sample::Index>(), 0..8u8), 1..6)) {
        let mut bytes = sample_bytes();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        if let Ok(got) = Gguf::parse(&bytes, "x") {
            for t in &got.tensors {
                prop_assert!(t.start + t.bytes <= bytes.len() as u64);
            }
        }
    }
}

/// Runs itself as a child process that may use little memory only.
#[test]
#[cfg(target_os = "linux")]
fn claims_of_a_file_allocate_nothing() {
    const CHILD: &str = "ENGINE_IO_TEST_MEMORY";
    if std::env::var_os(CHILD).is_some() {
        for ty in ValueType::ALL {
            for count in [1 << 28, 1 << 40, MAX] {
                assert_is!(
                    Raw::new(0, 1).str("k").u32(9).u32(ty.id()).u64(count).data(64).fails(),
                    Error::Truncated { .. }
                );
            }
        }
        for count in [1 << 28, 1 << 40, MAX] {
            assert_is!(Raw::new(0, count).data(64).fails(), Error::Truncated { .. });
            assert_is!(Raw::new(count, 0).data(64).fails(), Error::Truncated { .. });
            assert_is!(Raw::new(0, 1).u64(count).data(64).fails(), Error::Truncated { .. });
        }
        // A million bytes of empty arrays: what is present may cost a small multiple of itself.
        let empty = (0..80_000).fold(Raw::new(0, 1).str("k").u32(9).u32(9).u64(80_000), |r, _| r.u32(8).u64(0));
        empty.parse().unwrap();
        println!("child done");
        return;
    }
    // Address space for the program and its threads; far below what any claim above would take.
    let run = "ulimit -v 262144 && exec \"$0\" --exact \"$1\" --nocapture --test-threads 1";
    let out = std::process::Command::new("sh")
        .args(["-c", run])
        .arg(std::env::current_exe().unwrap())
        .arg("gguf::tests::claims_of_a_file_allocate_nothing")
        .env(CHILD, "1")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && stdout.contains("child done"),
        "{stdout}\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
}
