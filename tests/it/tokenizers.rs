//! Recorded ids of reference tokenizers: the three tiny vocabularies, and those of two real models with their end
//! tokens and template.

use std::path::Path;

use engine_io::text::{ChatTemplate, EncodeOptions, SpecialIds, TemplateLimits, Tokenizer, VocabSpec};
use engine_io::{ModelFile, OpenOptions};
use engine_tests::fixtures::{fixture, qwen3_tokenizer, smollm2_gguf};
use serde_json::Value;

fn spec_of(model: &Path) -> VocabSpec {
    VocabSpec::from_meta(ModelFile::open(model, OpenOptions::default()).unwrap().meta()).unwrap()
}

/// Qwen3 as its converter makes it of `tokenizer.json`: added tokens after the vocabulary, holes up to 151,936.
fn qwen3_spec(path: &Path) -> VocabSpec {
    let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut tokens: Vec<String> = (0..151_936).map(|i| format!("[PAD{i}]")).collect();
    let mut kinds = vec![5; tokens.len()];
    for (text, id) in json["model"]["vocab"].as_object().unwrap() {
        let id = id.as_u64().unwrap() as usize;
        tokens[id] = text.clone();
        kinds[id] = 1;
    }
    for added in json["added_tokens"].as_array().unwrap() {
        let id = added["id"].as_u64().unwrap() as usize;
        tokens[id] = added["content"].as_str().unwrap().to_owned();
        kinds[id] = if added["special"].as_bool().unwrap() { 3 } else { 4 };
    }
    let merges = json["model"]["merges"].as_array().unwrap();
    VocabSpec {
        model: "gpt2".to_owned(),
        pre: "qwen2".to_owned(),
        tokens,
        kinds: Some(kinds),
        merges: merges
            .iter()
            .map(|m| match m {
                Value::String(s) => s.clone(),
                pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
            })
            .collect(),
        ids: SpecialIds { eos: Some(151_645), ..SpecialIds::default() },
        ..VocabSpec::default()
    }
}

fn hex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

const PLAIN: EncodeOptions = EncodeOptions { parse_special: false, add_special: false };
const SPECIAL: EncodeOptions = EncodeOptions { parse_special: true, add_special: false };

/// Every recorded string: the same ids with and without special parsing, the same bytes back.
fn check_recorded(name: &str, spec: VocabSpec) {
    let path = fixture(&format!("tokenizers/{name}.json")).expect("committed");
    let recorded: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let tokenizer = Tokenizer::new(spec).unwrap();
    assert_eq!(tokenizer.len() as u64, recorded["n_vocab"].as_u64().unwrap());
    assert_eq!(u64::from(tokenizer.vocab().add_bos), recorded["add_bos"].as_u64().unwrap());
    let mut compared = 0;
    for case in recorded["cases"].as_array().unwrap() {
        let text = hex(&case["text_hex"]);
        let label = String::from_utf8_lossy(&text);
        let plain = tokenizer.encode(&text, PLAIN);
        let special = tokenizer.encode(&text, SPECIAL);
        if case.get("llamacpp").is_some() {
            assert_eq!(tokenizer.decode_bytes(&plain, true).unwrap(), "\u{FFFD}".repeat(text.len()).as_bytes());
            continue;
        }
        assert_eq!(plain, ids(&case["ids"]), "{name}: {label:?}");
        assert_eq!(special, ids(&case["ids_special"]), "{name}, special: {label:?}");
        let (expected, expected_special) = if case["roundtrip"].as_bool().unwrap() {
            (text.clone(), text.clone())
        } else {
            (hex(&case["pieces_hex"]), hex(&case["pieces_special_hex"]))
        };
        assert_eq!(tokenizer.decode_bytes(&plain, true).unwrap(), expected, "{name}: {label:?}");
        assert_eq!(tokenizer.decode_bytes(&special, true).unwrap(), expected_special, "{name}: {label:?}");
        compared += 1;
    }
    assert!(compared > 200, "{name}: only {compared} strings were compared");
}

/// One list of tokens and merges under three pre-tokenizers.
#[test]
fn tiny_vocabularies_have_the_recorded_ids() {
    let open = |path: &str| spec_of(&fixture(path).expect("committed"));
    check_recorded("tiny-qwen35", open("qwen35-tiny/qwen35-tiny-Q8_0.gguf"));
    let llama = open("llama-tiny/llama-tiny-Q8_0.gguf");
    check_recorded("tiny-pixtral", VocabSpec { pre: "pixtral".to_owned(), ..llama.clone() });
    check_recorded("tiny-llama-bpe", llama);
}

fn ends(tokenizer: &Tokenizer) -> Vec<u32> {
    tokenizer.pieces().ends().collect()
}

#[test]
fn smollm2_has_the_recorded_ids() {
    if let Some(path) = smollm2_gguf() {
        check_recorded("smollm2", spec_of(&path));
        let t = Tokenizer::new(spec_of(&path)).unwrap();
        assert_eq!(ends(&t), [0, 2, 4]);
        assert!(!t.vocab().add_bos && t.chat_template().is_some());
        // This vocabulary has no byte 0x04: the character is replaced, not dropped.
        let ids = t.encode("a\u{4}b\u{50000}c".as_bytes(), PLAIN);
        assert_eq!(t.decode_bytes(&ids, true).unwrap(), "a\u{FFFD}b\u{FFFD}c".as_bytes());
        let template = ChatTemplate::new(t.chat_template().unwrap(), &t, TemplateLimits::default()).unwrap();
        let facts = template.facts();
        assert!(facts.system && facts.string_content && !facts.tools && !facts.opens_think);
    }
}

#[test]
fn qwen3_has_the_recorded_ids() {
    if let Some(path) = qwen3_tokenizer() {
        check_recorded("qwen3", qwen3_spec(&path));
        let t = Tokenizer::new(qwen3_spec(&path)).unwrap();
        assert_eq!(ends(&t), [151_643, 151_645, 151_662, 151_663, 151_664]);
        // `</s>` is ordinary text of this vocabulary: one token, shown, and no end.
        assert!(!t.pieces().is_control(128_247));
        assert!(t.pieces().bytes(151_935).is_empty());
    }
}
