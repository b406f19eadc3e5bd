//! GGUF files.

use engine_io::gguf::write::Layout;
use engine_io::gguf::{Array, Gguf, LayerCounts, Meta, TensorType, Value};
use engine_io::text::Tokenizer;

use super::{Damage, Reader, Target};

pub(super) const TARGET: Target = Target {
    name: "gguf",
    seeds,
    words: &[
        "GGUF\x03\0\0\0",
        "GGUF\0\0\0\x03",
        "general.architecture",
        "general.alignment",
        "llama",
        "qwen35",
        "llama.block_count",
        "llama.context_length",
        "llama.nextn_predict_layers",
        "tokenizer.ggml.model",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.token_type",
        "tokenizer.chat_template",
        "split.count",
        "blk.0.attn_q.weight",
        "token_embd.weight",
        "\x09\0\0\0\x09\0\0\0",
        "\x08\0\0\0",
    ],
    damage: Damage::Bytes,
    reader,
};

fn seeds() -> Vec<Vec<u8>> {
    let mut plain = Meta::new("seed");
    let mut all = Meta::new("seed");
    let mut odd = Meta::new("seed");
    let add = |meta: &mut Meta, key: &str, value: Value| meta.push(key, value).expect("keys differ");
    add(&mut plain, "general.architecture", Value::str("llama"));
    add(&mut plain, "llama.block_count", Value::U32(2));
    add(&mut plain, "llama.nextn_predict_layers", Value::U32(1));
    for (name, value) in [
        ("u8", Value::U8(1)),
        ("i8", Value::I8(-1)),
        ("u16", Value::U16(2)),
        ("i16", Value::I16(-2)),
        ("u32", Value::U32(3)),
        ("i32", Value::I32(-3)),
        ("u64", Value::U64(4)),
        ("i64", Value::I64(-4)),
        ("f32", Value::F32(0.5)),
        ("f64", Value::F64(0.25)),
        ("bool", Value::Bool(true)),
        ("text", Value::str("t")),
        ("texts", Value::strs(["a", "", "bc"])),
        ("numbers", Value::Array(Array::U32(vec![1, 2, 3]))),
    ] {
        add(&mut all, name, value);
    }
    add(&mut odd, "general.architecture", Value::str("llama"));
    add(&mut odd, "general.alignment", Value::U32(64));
    add(&mut odd, "tokenizer.ggml.model", Value::str("gpt2"));
    add(&mut odd, "tokenizer.ggml.pre", Value::str("qwen2"));
    add(&mut odd, "tokenizer.ggml.tokens", Value::strs(["a", "b", "ab", "<s>"]));
    add(&mut odd, "tokenizer.ggml.merges", Value::strs(["a b"]));
    add(&mut odd, "tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1, 1, 1, 3])));
    let none = Layout::new(all).expect("a layout").to_bytes(&[]).expect("a file");
    let mut layout = Layout::new(plain).expect("a layout");
    layout.tensor("token_embd.weight", &[4, 3], TensorType::F32).expect("a tensor");
    layout.tensor("blk.0.attn_q.weight", &[32, 2], TensorType::Q8_0).expect("a tensor");
    let two = layout.to_bytes(&[&[0; 48], &[0; 68]]).expect("a file");
    let mut layout = Layout::new(odd).expect("a layout");
    layout.tensor("a", &[2, 1, 2, 1], TensorType::F16).expect("a tensor");
    let aligned = layout.to_bytes(&[&[1; 8]]).expect("a file");
    vec![none, two, aligned]
}

fn reader() -> Reader {
    Box::new(|bytes| {
        let Ok(file) = Gguf::parse(bytes, "input") else { return false };
        let end = bytes.len() as u64;
        for tensor in &file.tensors {
            let start = tensor.start;
            assert!(
                file.data_start <= start && start <= end && tensor.bytes <= end - start,
                "{} lies outside",
                tensor.name
            );
            assert!(start.is_multiple_of(file.alignment));
        }
        // What was read can be written, and is read the same again.
        let mut layout = Layout::new(file.meta.clone()).expect("what was read can be written");
        for tensor in &file.tensors {
            layout.tensor(&tensor.name, tensor.dims(), tensor.ty).expect("a tensor that was read can be written");
        }
        let data: Vec<&[u8]> =
            file.tensors.iter().map(|t| &bytes[t.start as usize..(t.start + t.bytes) as usize]).collect();
        let again = layout.to_bytes(&data).expect("it can be written");
        let again = Gguf::parse(&again, "input").expect("what was written is read");
        assert!(again.meta.iter().map(|(key, _)| key).eq(file.meta.iter().map(|(key, _)| key)));
        assert_eq!(again.tensors.len(), file.tensors.len());
        // What is read of metadata refuses what it cannot use.
        if let Ok(architecture) = file.meta.architecture() {
            let _ = LayerCounts::read(&file.meta, architecture);
        }
        let _ = Tokenizer::from_meta(&file.meta);
        let _ = engine::model::Config::read(&file.meta);
        true
    })
}
