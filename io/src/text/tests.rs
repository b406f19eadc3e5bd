//! Properties that hold for every vocabulary. Recorded ids are compared in the integration tests.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;
use crate::gguf::meta::{Array, Meta, Value as MetaValue};
use crate::{Error, ModelFile, OpenOptions};

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

fn spec_of(model: &Path) -> VocabSpec {
    VocabSpec::from_meta(ModelFile::open(model, OpenOptions::default()).unwrap().meta()).unwrap()
}

const PLAIN: EncodeOptions = EncodeOptions { parse_special: false, add_special: false };
const SPECIAL: EncodeOptions = EncodeOptions { parse_special: true, add_special: false };

/// The tiny vocabularies: one list of tokens and merges under three pre-tokenizers.
fn tiny() -> Vec<(&'static str, VocabSpec)> {
    let mut specs = Vec::new();
    if let Some(path) = fixture("qwen35-tiny/qwen35-tiny-Q8_0.gguf") {
        specs.push(("tiny-qwen35", spec_of(&path)));
    }
    if let Some(path) = fixture("llama-tiny/llama-tiny-Q8_0.gguf") {
        let spec = spec_of(&path);
        specs.push(("tiny-pixtral", VocabSpec { pre: "pixtral".to_owned(), ..spec.clone() }));
        specs.push(("tiny-llama-bpe", spec));
    }
    specs
}

#[test]
fn ends_and_kinds_of_the_tiny_vocabularies() {
    let ends = |t: &Tokenizer| t.pieces().ends().collect::<Vec<_>>();
    for (_, spec) in tiny() {
        let t = Tokenizer::new(spec).unwrap();
        assert_eq!(ends(&t), [502, 504]);
        assert!(t.pieces().is_control(503) && !t.pieces().is_user_defined(503));
        assert!(t.pieces().is_user_defined(507) && !t.pieces().is_control(507));
        assert_eq!(t.pieces().bytes(507), b"<tool_call>");
    }
}

/// All bytes as tokens, some merges, and a token of every kind behind them.
fn small(pre: &str) -> VocabSpec {
    let mut tokens: Vec<String> = alphabet::table().iter().map(|c| c.to_string()).collect();
    let merges = ["a b", "ab c", "Ġ a", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "\u{10E} \u{10E}"].map(str::to_owned).to_vec();
    tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
    let mut kinds = vec![1; tokens.len()];
    for (text, kind) in
        [("<unk>", 2), ("<|im_end|>", 3), ("<user>", 4), ("<hole>", 5), ("<0x0A>", 6), ("", 1), ("abc", 1)]
    {
        tokens.push(text.to_owned());
        kinds.push(kind);
    }
    VocabSpec {
        model: "gpt2".to_owned(),
        pre: pre.to_owned(),
        tokens,
        kinds: Some(kinds),
        merges,
        ..VocabSpec::default()
    }
}

const SMALL_PRES: [&str; 5] = Pre::NAMES;

#[test]
fn kinds_keep_their_meaning() {
    let t = Tokenizer::new(small("qwen35")).unwrap();
    let id = |text: &str| small("qwen35").tokens.iter().position(|x| x == text).unwrap() as u32;
    let text = b"<unk><|im_end|><user><hole><0x0A>";
    let plain = t.encode(text, PLAIN);
    let special = t.encode(text, SPECIAL);
    let has = |ids: &[u32]| ["<unk>", "<|im_end|>", "<user>", "<hole>", "<0x0A>"].map(|n| ids.contains(&id(n)));
    assert_eq!(has(&plain), [false, false, true, false, false]);
    assert_eq!(has(&special), [true, true, true, false, false]);
    let bytes = |name: &str, shown| t.decode_bytes(&[id(name)], shown).unwrap();
    assert_eq!(
        ["<unk>", "<|im_end|>", "<user>"].map(|n| bytes(n, false)),
        [b"".to_vec(), b"".to_vec(), b"<user>".to_vec()]
    );
    assert_eq!(bytes("<|im_end|>", true), b"<|im_end|>");
    assert_eq!((bytes("<hole>", true), bytes("<0x0A>", true)), (vec![], b"\n".to_vec()));
    assert_eq!(t.decode_bytes(&[t.len() as u32], true), Err(t.len() as u32));
    // Of two tokens with one text the lower is used; an empty token never arises.
    assert_eq!(t.encode(b"abc", PLAIN), [257]);
    assert!(t.pieces().is_end(id("<|im_end|>")) && t.pieces().ends().count() == 1);
}

#[test]
fn byte_tokens_stand_in_for_bytes_without_a_character() {
    let mut spec = small("qwen35");
    spec.tokens[usize::from(b'\n')] = "[gone]".to_owned();
    spec.merges.retain(|m| !m.contains('Ċ'));
    let byte_token = spec.tokens.iter().position(|t| t == "<0x0A>").unwrap() as u32;
    assert_eq!(Tokenizer::new(spec).unwrap().encode(b"\n", PLAIN), [byte_token]);
}

#[test]
fn inconsistent_descriptions_are_refused() {
    let check = |change: fn(&mut VocabSpec), expected: TextError| {
        let mut spec = small("qwen35");
        change(&mut spec);
        assert_eq!(Tokenizer::new(spec).unwrap_err(), expected);
    };
    let len = small("qwen35").tokens.len();
    check(|s| s.model = "llama".to_owned(), TextError::UnsupportedModel { found: "llama".to_owned() });
    check(|s| s.pre = "default".to_owned(), TextError::UnknownPre { found: "default".to_owned() });
    check(|s| s.tokens.clear(), TextError::VocabSize { found: 0, max: 1 << 24 });
    check(
        |s| s.kinds.as_mut().unwrap().truncate(s.tokens.len() - 1),
        TextError::Length { key: "tokenizer.ggml.token_type", found: len - 1, expected: len },
    );
    check(|s| s.kinds.as_mut().unwrap()[3] = 7, TextError::TokenKind { token: 3, found: 7 });
    check(|s| s.kinds.as_mut().unwrap()[3] = -1, TextError::TokenKind { token: 3, found: -1 });
    check(|s| s.kinds.as_mut().unwrap()[3] = 6, TextError::ByteToken { token: 3, found: "\u{103}".to_owned() });
    for merge in ["ab", "", " a", "a ", "a b c"] {
        let mut spec = small("qwen35");
        spec.merges[0] = merge.to_owned();
        assert_eq!(Tokenizer::new(spec).unwrap_err(), TextError::BadMerge { index: 0, found: merge.to_owned() });
    }
    check(|s| s.merges[0] = "a z".to_owned(), TextError::MergeResult { index: 0, found: "a z".to_owned() });
    check(
        |s| s.ids.bos = Some(s.tokens.len() as u32),
        TextError::IdRange { key: "tokenizer.ggml.bos_token_id", found: len as u64, vocab: len },
    );
    check(
        |s| s.ids.pad = Some(u32::MAX),
        TextError::IdRange { key: "tokenizer.ggml.padding_token_id", found: 4_294_967_295, vocab: len },
    );
    check(
        |s| s.add_bos = Some(true),
        TextError::FlagWithoutId { flag: "tokenizer.ggml.add_bos_token", id: "tokenizer.ggml.bos_token_id" },
    );
    check(
        |s| s.add_eos = Some(true),
        TextError::FlagWithoutId { flag: "tokenizer.ggml.add_eos_token", id: "tokenizer.ggml.eos_token_id" },
    );
    check(|s| s.add_space_prefix = Some(true), TextError::SpacePrefix);
    // 0xEF spells U+FFFD, so nothing can stand in for a byte that is missing.
    check(|s| s.tokens[0xEF] = "[gone]".to_owned(), TextError::MissingByte { byte: 0xEF });
}

#[test]
fn metadata_of_a_wrong_shape_is_refused() {
    let build = |change: &dyn Fn(&mut Meta)| {
        let spec = small("qwen2");
        let mut meta = Meta::new("m.gguf");
        meta.set("tokenizer.ggml.model", MetaValue::str("gpt2"));
        meta.set("tokenizer.ggml.pre", MetaValue::str("qwen2"));
        meta.set("tokenizer.ggml.tokens", MetaValue::strs(&spec.tokens));
        meta.set("tokenizer.ggml.merges", MetaValue::strs(&spec.merges));
        change(&mut meta);
        Tokenizer::from_meta(&meta)
    };
    assert_eq!(build(&|_| ()).unwrap().len(), small("qwen2").tokens.len());
    for width in [Array::U32(vec![1; 270]), Array::I64(vec![1; 270]), Array::U8(vec![1; 270])] {
        assert!(build(&|m| m.set("tokenizer.ggml.token_type", MetaValue::Array(width.clone()))).is_ok());
    }
    for key in ["tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
        let error = build(&|m| drop(m.remove(key))).unwrap_err();
        assert!(matches!(&error, Error::MissingKey { key: k, .. } if k == key), "{error}");
    }
    let error = build(&|m| m.set("tokenizer.ggml.scores", MetaValue::Array(Array::F32(vec![0.0; 269])))).unwrap_err();
    assert!(error.to_string().contains("m.gguf: tokenizer.ggml.scores has 269 entries, expected 270"), "{error}");
    let error = build(&|m| m.set("tokenizer.ggml.tokens", MetaValue::strs([b"a".as_slice(), b"\xFF"]))).unwrap_err();
    assert!(error.to_string().contains("tokenizer.ggml.tokens[1] is not UTF-8"), "{error}");
    let error = build(&|m| m.set("tokenizer.ggml.bos_token_id", MetaValue::I32(-1))).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    let error = build(&|m| m.set("tokenizer.ggml.add_bos_token", MetaValue::U32(1))).unwrap_err();
    assert!(matches!(error, Error::WrongType { .. }), "{error}");
}

#[test]
fn runs_of_every_length_come_back() {
    let mut specs = vec![("small", small("qwen35")), ("small", small("smollm")), ("small", small("llama-bpe"))];
    specs.extend(tiny());
    for (name, spec) in specs {
        let t = Tokenizer::new(spec).unwrap();
        for n in 1..=256 {
            for unit in [" ", "\t", "\n", "\r\n", "a", "1", "é", "😊", "\0"] {
                let text = unit.repeat(n) + "X";
                let ids = t.encode(text.as_bytes(), PLAIN);
                assert_eq!(t.decode_bytes(&ids, true).unwrap(), text.as_bytes(), "{name}: {n} x {unit:?}");
            }
        }
    }
}

#[test]
fn a_piece_of_a_megabyte_is_ordinary() {
    let t = Tokenizer::new(small("qwen35")).unwrap();
    for unit in ["a", "ab", "!", " ", "<", "<user"] {
        let text = unit.repeat((1 << 20) / unit.len());
        let ids = t.encode(text.as_bytes(), SPECIAL);
        assert_eq!(t.decode_bytes(&ids, true).unwrap(), text.as_bytes());
    }
}

/// BPE as it is defined: merge the best pair anywhere until none is left.
fn naive(spec: &VocabSpec, piece: &str) -> Vec<String> {
    let mut symbols: Vec<String> = piece.chars().map(|c| c.to_string()).collect();
    loop {
        let rank = |w: &[String]| spec.merges.iter().position(|m| *m == format!("{} {}", w[0], w[1]));
        let best = symbols.windows(2).enumerate().filter_map(|(i, w)| Some((rank(w)?, i))).min();
        let Some((_, i)) = best else { return symbols };
        let right = symbols.remove(i + 1);
        symbols[i] += &right;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn merging_equals_the_definition(piece in "[a-c]{0,24}", cuts in prop::collection::vec("[a-c]{2,5}", 0..14)) {
        // Merges in any order, each of a prefix and a last letter or of a first letter and the rest.
        let mut spec = small("qwen35");
        spec.merges.clear();
        for (i, word) in cuts.iter().enumerate() {
            let at = if i % 2 == 0 { 1 } else { word.len() - 1 };
            spec.merges.push(format!("{} {}", &word[..at], &word[at..]));
        }
        let known: Vec<String> = cuts.iter().flat_map(|w| [w.clone(), w[1..].to_owned(), w[..w.len() - 1].to_owned()]).collect();
        for word in known {
            if !spec.tokens.contains(&word) {
                spec.tokens.push(word);
                spec.kinds.as_mut().unwrap().push(1);
            }
        }
        let expected: Vec<u32> = naive(&spec, &piece)
            .iter()
            .map(|s| spec.tokens.iter().position(|t| t == s).unwrap() as u32)
            .collect();
        prop_assert_eq!(Tokenizer::new(spec).unwrap().encode(piece.as_bytes(), PLAIN), expected);
    }

    #[test]
    fn text_comes_back_and_streams_alike(text in prop_oneof![any::<String>(), "[ -~\\n]{0,40}", "[<a-z|_>░é😊 ]{0,30}"]) {
        for pre in SMALL_PRES {
            let t = Tokenizer::new(small(pre)).unwrap();
            for options in [PLAIN, SPECIAL] {
                let ids = t.encode(text.as_bytes(), options);
                prop_assert!(t.ids_min(text.len()) <= ids.len());
                let bytes = t.decode_bytes(&ids, true).unwrap();
                prop_assert_eq!(&bytes, text.as_bytes());
                let streamed: Vec<u8> = ids.iter().flat_map(|&id| t.pieces().bytes(id)).copied().collect();
                prop_assert_eq!(&streamed, &bytes);
            }
        }
    }

    #[test]
    fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let t = Tokenizer::new(small("qwen35")).unwrap();
        let ids = t.encode(&bytes, SPECIAL);
        prop_assert!(ids.iter().all(|&id| (id as usize) < t.len()));
        if let Ok(text) = std::str::from_utf8(&bytes) {
            prop_assert_eq!(t.decode_bytes(&ids, true).unwrap(), text.as_bytes());
        }
    }

    /// Also where characters of four bytes cannot be spelled, and become three.
    #[test]
    fn the_least_count_is_never_above_the_count(text in "[<😊🚀ab ]{0,40}", special in any::<bool>()) {
        let mut spec = small("qwen35");
        let byte = alphabet::table()[0xF0].to_string();
        *spec.tokens.iter_mut().find(|t| **t == byte).unwrap() = alphabet::table()[0].to_string();
        spec.tokens.truncate(256);
        spec.kinds.as_mut().unwrap().truncate(256);
        spec.merges.clear();
        let t = Tokenizer::new(spec).unwrap();
        let options = if special { SPECIAL } else { PLAIN };
        prop_assert!(t.ids_min(text.len()) <= t.encode(text.as_bytes(), options).len());
        prop_assert_eq!((t.ids_min(0), t.ids_min(12 << 20)), (0, 9 << 20));
        prop_assert_eq!(t.ids_min("🚀".len() * 5), t.encode("🚀".repeat(5).as_bytes(), options).len());
    }
}
