//! A byte-level tokenizer of the size of a real one, which any engine loads.

use engine_io::gguf::{Array, Meta, Value};

use super::shapes::Vocab;

/// What `tokenizer.ggml.token_type` says.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// Characters that stand for bytes. Source: GPT-2 `encoder.py`, `bytes_to_unicode`.
fn alphabet() -> Vec<char> {
    let plain = |b: &u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let own: Vec<u32> = (0..256).filter(plain).collect();
    let others = (0..256 - own.len() as u32).map(|i| 256 + i);
    own.iter().copied().chain(others).filter_map(char::from_u32).collect()
}

/// Tokens and merges: every token so far, continued by every letter, until there are enough.
fn tokens_and_merges(count: usize) -> (Vec<String>, Vec<String>) {
    let mut tokens: Vec<String> = alphabet().into_iter().map(String::from).collect();
    let letters: Vec<String> = ('a'..='z').map(String::from).collect();
    let mut merges = Vec::with_capacity(count);
    let mut left = 0;
    while merges.len() < count {
        for letter in letters.iter().take(count - merges.len()) {
            merges.push(format!("{} {letter}", tokens[left]));
            tokens.push(format!("{}{letter}", tokens[left]));
        }
        left += 1;
    }
    (tokens, merges)
}

/// Adds the keys of the tokenizer. Rows without a token are padding, as in real files: llama.cpp wants a token for each.
pub(super) fn describe(vocab: &Vocab, meta: &mut Meta) -> engine_io::Result<()> {
    let (mut tokens, merges) = tokens_and_merges(vocab.merges);
    let mut kinds = vec![NORMAL; tokens.len()];
    let end = tokens.len() as u32;
    tokens.push("<|im_end|>".to_owned());
    kinds.push(CONTROL);
    tokens.extend((tokens.len()..vocab.rows).map(|id| format!("[PAD{id}]")));
    kinds.resize(vocab.rows, UNUSED);
    for (key, value) in [
        ("model", Value::str("gpt2")),
        ("pre", Value::str(vocab.split)),
        ("tokens", Value::strs(&tokens)),
        ("token_type", Value::Array(Array::I32(kinds))),
        ("merges", Value::strs(&merges)),
        ("eos_token_id", Value::U32(end)),
        ("add_bos_token", Value::Bool(false)),
    ] {
        meta.push(&format!("tokenizer.ggml.{key}"), value)?;
    }
    Ok(())
}
