//! A tokenizer from the metadata of a model file.

use super::error::TextError;
use super::tokenizer::Tokenizer;
use super::vocab::{SpecialIds, VocabSpec};
use crate::error::{Error, Result};
use crate::gguf::meta::{Meta, StrArray, Value};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

impl VocabSpec {
    /// Reads `tokenizer.*`. The content is checked by [`Tokenizer::new`].
    ///
    /// # Errors
    /// A missing required key, a value of a wrong type or range, text that is not UTF-8.
    pub fn from_meta(meta: &Meta) -> Result<Self> {
        let wrong = |source| Error::Tokenizer { file: meta.file().to_owned(), source };
        let texts = |key: &'static str| -> Result<Vec<String>> {
            let list: &StrArray = meta.require(key, meta.get_str_array(key))?;
            let text = |(index, bytes): (usize, &[u8])| match std::str::from_utf8(bytes) {
                Ok(text) => Ok(text.to_owned()),
                Err(_) => Err(wrong(TextError::NotUtf8 { key, index })),
            };
            list.iter().enumerate().map(text).collect()
        };
        let model = meta.require_str(MODEL)?.to_owned();
        if model != "gpt2" {
            // Other families have other keys; say so before asking for those of this one.
            return Err(wrong(TextError::UnsupportedModel { found: model }));
        }
        let tokens = texts(TOKENS)?;
        if let Some(Value::Array(scores)) = meta.get(SCORES)
            && scores.len() != tokens.len()
        {
            return Err(wrong(TextError::Length { key: SCORES, found: scores.len(), expected: tokens.len() }));
        }
        Ok(Self {
            model,
            pre: meta.require_str(PRE)?.to_owned(),
            kinds: meta.get_i32_array(KINDS)?,
            merges: texts(MERGES)?,
            tokens,
            ids: SpecialIds {
                bos: meta.get_u32("tokenizer.ggml.bos_token_id")?,
                eos: meta.get_u32("tokenizer.ggml.eos_token_id")?,
                eot: meta.get_u32("tokenizer.ggml.eot_token_id")?,
                eom: meta.get_u32("tokenizer.ggml.eom_token_id")?,
                unk: meta.get_u32("tokenizer.ggml.unknown_token_id")?,
                pad: meta.get_u32("tokenizer.ggml.padding_token_id")?,
                fim_pad: meta.get_u32("tokenizer.ggml.fim_pad_token_id")?,
                fim_rep: meta.get_u32("tokenizer.ggml.fim_rep_token_id")?,
                fim_sep: meta.get_u32("tokenizer.ggml.fim_sep_token_id")?,
            },
            add_bos: meta.get_bool("tokenizer.ggml.add_bos_token")?,
            add_eos: meta.get_bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: meta.get_bool("tokenizer.ggml.add_space_prefix")?,
            chat_template: meta.get_str(CHAT_TEMPLATE)?.map(str::to_owned),
        })
    }
}

impl Tokenizer {
    /// The tokenizer of a model file.
    ///
    /// # Errors
    /// As [`VocabSpec::from_meta`]; [`Error::Tokenizer`] for what does not fit together.
    pub fn from_meta(meta: &Meta) -> Result<Self> {
        Self::new(VocabSpec::from_meta(meta)?)
            .map_err(|source| Error::Tokenizer { file: meta.file().to_owned(), source })
    }
}
