//! The vocabulary: what each id is, which bytes it stands for, and what ends a generation.

use std::collections::{HashMap, HashSet};

use super::alphabet::{self, Decoder};
use super::bpe::Merges;
use super::error::TextError;
use super::special::Matcher;
use super::split::Pre;
use crate::heap;

/// What a token is. Values as in `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum TokenKind {
    /// Not said.
    Undefined = 0,
    /// Text in the byte alphabet.
    Normal = 1,
    /// Stands for text that cannot be spelled.
    Unknown = 2,
    /// Structure; hidden in output, matched in text only where special parsing is on.
    Control = 3,
    /// Plain text that is always one token; shown in output, matched before everything else.
    UserDefined = 4,
    /// A hole; stands for nothing.
    Unused = 5,
    /// One byte, written `<0xHH>`.
    Byte = 6,
}

impl TokenKind {
    fn from_i32(value: i32) -> Option<Self> {
        Some(match value {
            0 => Self::Undefined,
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// Special ids of the file; `None` where the key is absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpecialIds {
    /// `bos_token_id`
    pub bos: Option<u32>,
    /// `eos_token_id`
    pub eos: Option<u32>,
    /// `eot_token_id`
    pub eot: Option<u32>,
    /// `eom_token_id`
    pub eom: Option<u32>,
    /// `unknown_token_id`
    pub unk: Option<u32>,
    /// `padding_token_id`
    pub pad: Option<u32>,
    /// `fim_pad_token_id`
    pub fim_pad: Option<u32>,
    /// `fim_rep_token_id`
    pub fim_rep: Option<u32>,
    /// `fim_sep_token_id`
    pub fim_sep: Option<u32>,
}

/// A tokenizer as a file describes it, unchecked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VocabSpec {
    /// `tokenizer.ggml.model`
    pub model: String,
    /// `tokenizer.ggml.pre`
    pub pre: String,
    /// `tokenizer.ggml.tokens`
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`; absent = all normal.
    pub kinds: Option<Vec<i32>>,
    /// `tokenizer.ggml.merges`
    pub merges: Vec<String>,
    /// The special ids.
    pub ids: SpecialIds,
    /// `tokenizer.ggml.add_bos_token`; absent = what the pre-tokenizer's models do.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`; absent = false.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`; only false exists for byte-level BPE.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`
    pub chat_template: Option<String>,
}

const CONTROL: u8 = 1;
const USER_DEFINED: u8 = 2;
const END: u8 = 4;

/// The bytes and nature of every token, as columns. Row = token id.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pieces {
    /// All pieces one after the other.
    bytes: Vec<u8>,
    /// Token `i` is `bytes[start[i]..start[i + 1]]`.
    start: Vec<u32>,
    /// CONTROL, USER_DEFINED, END.
    flags: Vec<u8>,
}

impl Pieces {
    /// Tokens that exist. Rows of the model past this are padding and must never be chosen.
    pub fn len(&self) -> usize {
        self.flags.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.flags.is_empty()
    }

    /// The bytes a token stands for; a control token's are its name.
    ///
    /// # Panics
    /// If `id` is no token.
    #[inline]
    pub fn bytes(&self, id: u32) -> &[u8] {
        let i = id as usize;
        &self.bytes[self.start[i] as usize..self.start[i + 1] as usize]
    }

    /// Whether the token is structure, hidden in output: control and unknown tokens.
    #[inline]
    pub fn is_control(&self, id: u32) -> bool {
        self.flags[id as usize] & CONTROL != 0
    }

    /// Whether the token is user-defined: one token wherever its text stands, shown in output.
    #[inline]
    pub fn is_user_defined(&self, id: u32) -> bool {
        self.flags[id as usize] & USER_DEFINED != 0
    }

    /// Whether the token ends a generation.
    #[inline]
    pub fn is_end(&self, id: u32) -> bool {
        self.flags[id as usize] & END != 0
    }

    /// The tokens that end a generation, ascending.
    pub fn ends(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len() as u32).filter(|&id| self.is_end(id))
    }

    fn heap_bytes(&self) -> usize {
        heap::vec(&self.bytes) + heap::vec(&self.start) + heap::vec(&self.flags)
    }

    fn push(&mut self, piece: &[u8], flags: u8) {
        if self.start.is_empty() {
            self.start.push(0);
        }
        self.bytes.extend_from_slice(piece);
        self.start.push(self.bytes.len() as u32);
        self.flags.push(flags);
    }
}

/// Texts that mark the end of a turn or a document in some model family.
/// Source: llama.cpp `src/llama-vocab.cpp`, `special_eog_ids`.
const END_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\u{FF5C}end\u{2581}of\u{2581}sentence\u{FF5C}>",
    "[e~[",
    // Padding, repository and file separators of fill-in-the-middle: nothing of one answer follows them.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Texts that are structure without being an end. Source: as above, `special_fim_*_id`.
const MARKER_TEXTS: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<MID>",
    "<|code_middle|>",
    "<|middle|>",
];

/// A checked vocabulary.
#[derive(Clone, Debug)]
pub struct Vocab {
    /// Bytes and flags of every token.
    pub pieces: Pieces,
    /// Kind of every token, as in the file.
    pub kinds: Vec<TokenKind>,
    /// The special ids, all inside the vocabulary.
    pub ids: SpecialIds,
    /// Pre-tokenizer.
    pub pre: Pre,
    /// Whether a prompt begins with BOS.
    pub add_bos: bool,
    /// Whether a prompt ends with EOS.
    pub add_eos: bool,
    /// Most bytes of a text that one token can stand for, at least 1.
    pub(crate) longest: usize,
    /// Token of each byte; `None` where text with this byte cannot be spelled.
    pub(crate) byte_token: [Option<u32>; 256],
    /// Normal tokens by their bytes, for pre-tokenizers that emit a known piece whole.
    pub(crate) whole: HashMap<Vec<u8>, u32>,
    pub(crate) merges: Merges,
    /// Every special token: control, unknown, user-defined.
    pub(crate) special: Matcher,
    /// User-defined tokens only.
    pub(crate) user_defined: Matcher,
}

const TOKENS_MAX: usize = 1 << 24;

impl Vocab {
    /// Checks a description and builds the tables.
    ///
    /// Of tokens with equal text the lowest id is the one that text becomes; all of them decode. A token with empty
    /// text never arises from text.
    ///
    /// # Errors
    /// Every inconsistency of the description, see [`TextError`].
    pub fn new(spec: &VocabSpec) -> Result<Self, TextError> {
        if spec.model != "gpt2" {
            return Err(TextError::UnsupportedModel { found: spec.model.chars().take(80).collect() });
        }
        let pre = Pre::parse(&spec.pre)?;
        let len = spec.tokens.len();
        if len == 0 || len > TOKENS_MAX {
            return Err(TextError::VocabSize { found: len, max: TOKENS_MAX });
        }
        if spec.add_space_prefix == Some(true) {
            return Err(TextError::SpacePrefix);
        }
        let kinds = kinds(spec)?;
        check_ids(&spec.ids, len)?;

        let mut by_text = HashMap::with_capacity(len);
        for (id, text) in spec.tokens.iter().enumerate() {
            by_text.entry(text.as_str()).or_insert(id as u32);
        }
        let (merges, merged) = merges(spec, &kinds, &by_text)?;
        let (pieces, special) = pieces(spec, &kinds, &merged)?;

        let mut whole = HashMap::new();
        if pre.ignores_merges() {
            for (id, kind) in kinds.iter().enumerate() {
                if matches!(kind, TokenKind::Normal) && !pieces.is_control(id as u32) {
                    whole.entry(pieces.bytes(id as u32).to_vec()).or_insert(id as u32);
                }
            }
        }

        let add_bos = match spec.add_bos {
            Some(true) if spec.ids.bos.is_none() => {
                return Err(TextError::FlagWithoutId {
                    flag: "tokenizer.ggml.add_bos_token",
                    id: "tokenizer.ggml.bos_token_id",
                });
            }
            Some(flag) => flag,
            None => pre.adds_bos() && spec.ids.bos.is_some(),
        };
        let add_eos = spec.add_eos.unwrap_or(false);
        if add_eos && spec.ids.eos.is_none() {
            return Err(TextError::FlagWithoutId {
                flag: "tokenizer.ggml.add_eos_token",
                id: "tokenizer.ggml.eos_token_id",
            });
        }

        let by_id = |id: &u32| (pieces.bytes(*id), *id);
        let user_defined = Matcher::new(special.iter().filter(|&&id| pieces.is_user_defined(id)).map(by_id));
        let special = Matcher::new(special.iter().map(by_id));
        let byte_token = byte_tokens(spec, &kinds, &by_text)?;
        Ok(Self {
            kinds,
            ids: spec.ids,
            pre,
            add_bos,
            add_eos,
            longest: longest(spec, &pieces),
            byte_token,
            whole,
            merges,
            special,
            user_defined,
            pieces,
        })
    }
}

impl Vocab {
    /// Heap bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        let whole = self.whole.keys().map(heap::vec).sum::<usize>();
        let maps = heap::map::<(Vec<u8>, u32)>(self.whole.capacity()) + self.merges.heap_bytes();
        let matchers = self.special.heap_bytes() + self.user_defined.heap_bytes();
        self.pieces.heap_bytes() + heap::vec(&self.kinds) + whole + maps + matchers
    }
}

impl VocabSpec {
    /// Heap bytes of the description and of what [`Vocab::new`] builds beside the vocabulary to check it.
    pub(crate) fn checking_bytes(&self) -> usize {
        let texts = |list: &Vec<String>| heap::vec(list) + list.iter().map(|s| heap::block(s.len())).sum::<usize>();
        let kinds = self.kinds.as_ref().map_or(0, heap::vec);
        let by_text = heap::map::<(&str, u32)>(self.tokens.len());
        let made = heap::map::<u32>(self.merges.len());
        texts(&self.tokens) + texts(&self.merges) + kinds + by_text + made
    }
}

fn kinds(spec: &VocabSpec) -> Result<Vec<TokenKind>, TextError> {
    let Some(values) = &spec.kinds else { return Ok(vec![TokenKind::Normal; spec.tokens.len()]) };
    if values.len() != spec.tokens.len() {
        return Err(TextError::Length {
            key: "tokenizer.ggml.token_type",
            found: values.len(),
            expected: spec.tokens.len(),
        });
    }
    values
        .iter()
        .enumerate()
        .map(|(token, &found)| TokenKind::from_i32(found).ok_or(TextError::TokenKind { token, found }))
        .collect()
}

/// A special token stands for its own text, any other for a byte per character of the byte alphabet at most.
fn longest(spec: &VocabSpec, pieces: &Pieces) -> usize {
    let most = |(id, text): (usize, &String)| pieces.bytes(id as u32).len().max(text.chars().count());
    spec.tokens.iter().enumerate().map(most).max().unwrap_or(0).max(1)
}

fn check_ids(ids: &SpecialIds, vocab: usize) -> Result<(), TextError> {
    for (key, id) in [
        ("tokenizer.ggml.bos_token_id", ids.bos),
        ("tokenizer.ggml.eos_token_id", ids.eos),
        ("tokenizer.ggml.eot_token_id", ids.eot),
        ("tokenizer.ggml.eom_token_id", ids.eom),
        ("tokenizer.ggml.unknown_token_id", ids.unk),
        ("tokenizer.ggml.padding_token_id", ids.pad),
        ("tokenizer.ggml.fim_pad_token_id", ids.fim_pad),
        ("tokenizer.ggml.fim_rep_token_id", ids.fim_rep),
        ("tokenizer.ggml.fim_sep_token_id", ids.fim_sep),
    ] {
        if let Some(id) = id
            && id as usize >= vocab
        {
            return Err(TextError::IdRange { key, found: u64::from(id), vocab });
        }
    }
    Ok(())
}

/// The merge table, and the set of tokens that some merge makes. A merge into a control or unknown token is left out:
/// plain text must not become structure.
fn merges(
    spec: &VocabSpec,
    kinds: &[TokenKind],
    by_text: &HashMap<&str, u32>,
) -> Result<(Merges, HashSet<u32>), TextError> {
    let mut merges = Merges::with_capacity(spec.merges.len());
    let mut made = HashSet::with_capacity(spec.merges.len());
    let mut joined = String::new();
    for (index, text) in spec.merges.iter().enumerate() {
        // Symbols hold no space of their own: the byte alphabet writes it as another character.
        let (left, right) = text
            .split_once(' ')
            .filter(|(l, r)| !l.is_empty() && !r.is_empty() && !r.contains(' '))
            .ok_or_else(|| TextError::BadMerge { index, found: text.clone() })?;
        // A merge of symbols that are no tokens can never apply: symbols start as tokens and stay tokens.
        let (Some(&l), Some(&r)) = (by_text.get(left), by_text.get(right)) else { continue };
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let &result =
            by_text.get(joined.as_str()).ok_or_else(|| TextError::MergeResult { index, found: text.clone() })?;
        if matches!(kinds[result as usize], TokenKind::Control | TokenKind::Unknown) {
            continue;
        }
        merges.insert(l, r, index as u32, result);
        made.insert(result);
    }
    Ok((merges, made))
}

/// Bytes and flags of every token, and the ids of the special ones.
fn pieces(spec: &VocabSpec, kinds: &[TokenKind], merged: &HashSet<u32>) -> Result<(Pieces, Vec<u32>), TextError> {
    let decoder = Decoder::new();
    let ends = [spec.ids.eos, spec.ids.eot, spec.ids.eom, spec.ids.fim_pad, spec.ids.fim_rep, spec.ids.fim_sep];
    let mut pieces = Pieces::default();
    let mut special = Vec::new();
    for (id, (text, kind)) in spec.tokens.iter().zip(kinds).enumerate() {
        let end_text = END_TEXTS.contains(&text.as_str());
        let marker_text = end_text || MARKER_TEXTS.contains(&text.as_str());
        // A marker that a converter left as normal text is treated as control. A text that merges can make is what
        // ordinary text becomes (`</s>` in some vocabularies): it is shown and ends nothing.
        let written = *kind == TokenKind::Normal && merged.contains(&(id as u32));
        let control = matches!(kind, TokenKind::Control | TokenKind::Unknown) || marker_text && !written;
        let user_defined = *kind == TokenKind::UserDefined && !control;
        let end = end_text && !written || ends.contains(&Some(id as u32));
        let flags =
            if control { CONTROL } else { 0 } | if user_defined { USER_DEFINED } else { 0 } | if end { END } else { 0 };
        let verbatim = || text.clone().into_bytes();
        let bytes = match kind {
            TokenKind::Normal if !control => decoder.decode(text).unwrap_or_else(verbatim),
            TokenKind::Normal | TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined => verbatim(),
            TokenKind::Unused | TokenKind::Undefined => Vec::new(),
            TokenKind::Byte => {
                vec![byte_of(text).ok_or_else(|| TextError::ByteToken { token: id, found: text.clone() })?]
            }
        };
        pieces.push(&bytes, flags);
        if control || user_defined || marker_text {
            special.push(id as u32);
        }
    }
    Ok((pieces, special))
}

/// The value of a BYTE token's text, `<0xHH>`.
fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// The token of each byte: the normal token of its alphabet character, else a BYTE token.
fn byte_tokens(
    spec: &VocabSpec,
    kinds: &[TokenKind],
    by_text: &HashMap<&str, u32>,
) -> Result<[Option<u32>; 256], TextError> {
    let mut table = [None; 256];
    for (byte, c) in alphabet::table().into_iter().enumerate() {
        table[byte] = by_text
            .get(c.encode_utf8(&mut [0; 4]) as &str)
            .copied()
            .filter(|&id| kinds[id as usize] == TokenKind::Normal);
    }
    for (id, text) in spec.tokens.iter().enumerate() {
        if kinds[id] == TokenKind::Byte
            && let Some(byte) = byte_of(text)
        {
            table[usize::from(byte)].get_or_insert(id as u32);
        }
    }
    // Bytes that no text needs, or that U+FFFD can stand in for, may be absent.
    let replaceable = "\u{FFFD}".bytes().all(|b| table[usize::from(b)].is_some());
    if let Some(byte) = (0..=0xF4u8).find(|&b| !matches!(b, 0xC0 | 0xC1) && table[usize::from(b)].is_none())
        && !replaceable
    {
        return Err(TextError::MissingByte { byte });
    }
    Ok(table)
}
