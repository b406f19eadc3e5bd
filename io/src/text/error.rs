//! What a file can get wrong about its tokenizer.

use super::split::Pre;

/// A tokenizer that cannot be used; every variant names the key, what was found and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The tokenizer family is another one.
    #[error(
        "tokenizer.ggml.model is {found:?}, expected \"gpt2\" (byte-level BPE); other tokenizer families are not supported"
    )]
    UnsupportedModel {
        /// Value in the file.
        found: String,
    },
    /// The pre-tokenizer has no splitter here. It is never replaced by another one: the ids would be wrong.
    #[error("tokenizer.ggml.pre is {found:?}, supported are: {}; convert the model again or use one of these", Pre::NAMES.join(", "))]
    UnknownPre {
        /// Value in the file.
        found: String,
    },
    /// A text of a list is not UTF-8.
    #[error("{key}[{index}] is not UTF-8 text")]
    NotUtf8 {
        /// The key.
        key: &'static str,
        /// Position in the list.
        index: usize,
    },
    /// A space would have to be put before every text.
    #[error("tokenizer.ggml.add_space_prefix is true, expected false: byte-level BPE adds no space")]
    SpacePrefix,
    /// Two lists that go together have different lengths.
    #[error("{key} has {found} entries, expected {expected} (as many as tokenizer.ggml.tokens)")]
    Length {
        /// The key.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The number of tokens.
        expected: usize,
    },
    /// No tokens at all, or more than ids can name.
    #[error("tokenizer.ggml.tokens has {found} entries, expected 1 to {max}")]
    VocabSize {
        /// Number of tokens.
        found: usize,
        /// Most that are supported.
        max: usize,
    },
    /// A token kind that does not exist.
    #[error("tokenizer.ggml.token_type[{token}] is {found}, expected 0 to 6")]
    TokenKind {
        /// Token id.
        token: usize,
        /// Value in the file.
        found: i32,
    },
    /// A special id outside the vocabulary.
    #[error("{key} is {found}, expected an id below {vocab}")]
    IdRange {
        /// The key.
        key: &'static str,
        /// Value in the file.
        found: u64,
        /// Vocabulary size.
        vocab: usize,
    },
    /// A BYTE token whose text is not `<0xHH>`.
    #[error("token {token} has kind byte and text {found:?}, expected <0xHH>")]
    ByteToken {
        /// Token id.
        token: usize,
        /// Its text.
        found: String,
    },
    /// A merge that is not two symbols.
    #[error("tokenizer.ggml.merges[{index}] is {found:?}, expected two symbols separated by one space")]
    BadMerge {
        /// Position in the list.
        index: usize,
        /// Its text.
        found: String,
    },
    /// A merge of two tokens whose result is no token.
    #[error("tokenizer.ggml.merges[{index}] is {found:?} and its result is no token of the vocabulary")]
    MergeResult {
        /// Position in the list.
        index: usize,
        /// Its text.
        found: String,
    },
    /// The vocabulary lacks bytes that every text may need.
    #[error("the vocabulary has no token for byte 0x{byte:02X}, and none to replace it (U+FFFD cannot be spelled)")]
    MissingByte {
        /// The byte.
        byte: u8,
    },
    /// BOS or EOS is to be added and is not named.
    #[error("{flag} is true and {id} is missing; set the id, or the flag to false")]
    FlagWithoutId {
        /// The flag's key.
        flag: &'static str,
        /// The id's key.
        id: &'static str,
    },
}
