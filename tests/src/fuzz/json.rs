//! JSON documents, damaged by value: what comes out is JSON again, with other values at places where some are expected.

use serde_json::{Map, Value, json};

use super::Rng;

/// Damages a document; `false` where `input` is none.
pub(super) fn damage(input: &mut Vec<u8>, words: &[&str], rng: &mut Rng) -> bool {
    let Ok(mut document) = serde_json::from_slice::<Value>(input) else { return false };
    for _ in 0..=rng.below(3) {
        let places = count(&document);
        change(&mut document, &mut rng.below(places), words, rng);
    }
    // Maps and numbers of values always serialise.
    *input = serde_json::to_vec(&document).expect("a value serialises");
    true
}

/// Values in a document, itself included.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

/// Changes the value that `left` others come before.
fn change(value: &mut Value, left: &mut usize, words: &[&str], rng: &mut Rng) -> bool {
    if *left == 0 {
        return replace(value, words, rng);
    }
    *left -= 1;
    match value {
        Value::Array(list) => list.iter_mut().any(|item| change(item, left, words, rng)),
        Value::Object(map) => map.values_mut().any(|item| change(item, left, words, rng)),
        _ => false,
    }
}

fn replace(value: &mut Value, words: &[&str], rng: &mut Rng) -> bool {
    match (value, rng.below(4)) {
        (Value::Object(map), 0..3) => object(map, words, rng),
        (Value::Array(list), 0..3) => array(list, words, rng),
        (Value::String(text), 0..2) => string(text, words, rng),
        (value, _) => *value = any(words, rng),
    }
    true
}

fn object(map: &mut Map<String, Value>, words: &[&str], rng: &mut Rng) {
    let key = map.keys().nth(rng.below(map.len().max(1))).cloned();
    match (rng.below(4), key) {
        (0, Some(key)) => drop(map.remove(&key)),
        (1, Some(key)) => {
            // Under another name.
            let moved = map.remove(&key).unwrap_or_default();
            map.insert((*rng.of(words)).to_owned(), moved);
        }
        (2, Some(key)) => drop(map.insert(key, any(words, rng))),
        _ => drop(map.insert((*rng.of(words)).to_owned(), any(words, rng))),
    }
}

fn array(list: &mut Vec<Value>, words: &[&str], rng: &mut Rng) {
    match rng.below(4) {
        0 if !list.is_empty() => drop(list.remove(rng.below(list.len()))),
        1 if !list.is_empty() && list.len() < 64 => {
            let copy = rng.of(list).clone();
            list.insert(rng.below(list.len() + 1), copy);
        }
        2 if list.len() > 1 => {
            let (a, b) = (rng.below(list.len()), rng.below(list.len()));
            list.swap(a, b);
        }
        _ => list.push(any(words, rng)),
    }
}

fn string(text: &mut String, words: &[&str], rng: &mut Rng) {
    const PARTS: [&str; 12] =
        ["", "\0", "\u{feff}", "\u{1f60a}", "\u{202e}", "\\", "\"", "\n\n", "<|im_end|>", "</think>", "{{", "../"];
    let part = if rng.below(2) == 0 { *rng.of(&PARTS) } else { *rng.of(words) };
    let at = text.char_indices().map(|(at, _)| at).nth(rng.below(text.chars().count().max(1))).unwrap_or(0);
    match rng.below(4) {
        0 => text.truncate(at),
        1 => *text = part.to_owned(),
        2 if text.len() < 4096 => *text = text.repeat(2),
        _ => text.insert_str(at, part),
    }
}

/// Any value.
fn any(words: &[&str], rng: &mut Rng) -> Value {
    const WHOLE: [i64; 14] =
        [0, 1, -1, 2, 63, 64, 255, 256, 65_536, i32::MAX as i64, u32::MAX as i64, 1 << 53, i64::MIN, i64::MAX];
    const REAL: [f64; 8] = [0.5, -0.0, 1e-300, 1e300, f64::MAX, f64::MIN_POSITIVE, 1.0, -1.5];
    match rng.below(12) {
        0 => Value::Null,
        1 => Value::Bool(rng.below(2) == 0),
        2..=4 => (*rng.of(&WHOLE)).into(),
        5 => u64::MAX.into(),
        6 => (*rng.of(&REAL)).into(),
        7 => json!([]),
        8 => json!({}),
        9 => {
            let depth = rng.below(140);
            (0..depth).fold(json!(1), |inner, _| json!([inner]))
        }
        10 => json!({ (*rng.of(words)): any(words, rng) }),
        _ => (*rng.of(words)).into(),
    }
}
