//! The tokenizer of a model: text to ids and back.

use std::borrow::Cow;

use super::bpe::Bpe;
use super::error::TextError;
use super::split::{Char, generalised};
use super::vocab::{Pieces, Vocab, VocabSpec};

/// How [`Tokenizer::encode`] reads a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EncodeOptions {
    /// Texts of control and unknown tokens become those tokens. User-defined tokens always do.
    pub parse_special: bool,
    /// BOS and EOS are added where the model wants them.
    pub add_special: bool,
}

/// Text to ids and back for one model. Immutable; shared between threads.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    chat_template: Option<String>,
    /// Whether some byte of valid UTF-8 has no token, so that text must be looked through first.
    gaps: bool,
    checking_bytes: usize,
}

impl Tokenizer {
    /// Checks a description and builds the tables.
    ///
    /// # Errors
    /// Every inconsistency of the description, see [`TextError`].
    pub fn new(spec: VocabSpec) -> Result<Self, TextError> {
        let vocab = Vocab::new(&spec)?;
        let checking_bytes = spec.checking_bytes();
        let gaps = (0..=0xF4u8).any(|b| !matches!(b, 0xC0 | 0xC1) && vocab.byte_token[usize::from(b)].is_none());
        Ok(Self { vocab, chat_template: spec.chat_template, gaps, checking_bytes })
    }

    /// Heap bytes of the tokenizer.
    pub fn heap_bytes(&self) -> usize {
        self.vocab.heap_bytes() + self.chat_template.as_ref().map_or(0, |text| text.capacity())
    }

    /// Heap bytes that [`Self::new`] took beside those and gave back.
    pub fn checking_bytes(&self) -> usize {
        self.checking_bytes
    }

    /// The vocabulary.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// Bytes and flags of every token, for the engine.
    pub fn pieces(&self) -> &Pieces {
        &self.vocab.pieces
    }

    /// Tokens that exist; ids from here on must never be chosen.
    pub fn len(&self) -> usize {
        self.vocab.pieces.len()
    }

    /// Whether there are none; never, since an empty vocabulary is refused.
    pub fn is_empty(&self) -> bool {
        self.vocab.pieces.is_empty()
    }

    /// Source text of the file's chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// The ids of a text. Any bytes are accepted: a byte that starts no character is read as U+FFFD.
    pub fn encode(&self, text: &[u8], options: EncodeOptions) -> Vec<u32> {
        let matcher = if options.parse_special { &self.vocab.special } else { &self.vocab.user_defined };
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let mut bpe = Bpe::default();
        let mut from = 0;
        for hit in matcher.find(text) {
            self.encode_plain(&text[from..hit.start], &mut bpe, &mut ids);
            ids.push(hit.token);
            from = hit.end;
        }
        self.encode_plain(&text[from..], &mut bpe, &mut ids);
        if options.add_special {
            self.add_bos(&mut ids);
            self.add_eos(&mut ids);
        }
        ids
    }

    /// Fewest ids that a text of `bytes` bytes can have, known without looking at it.
    pub fn ids_min(&self, bytes: usize) -> usize {
        // A character that cannot be spelled becomes U+FFFD: three bytes instead of up to four.
        let bytes = if self.gaps { bytes / 4 * 3 } else { bytes };
        bytes.div_ceil(self.vocab.longest)
    }

    /// Puts BOS in front if the model wants it and it is not there.
    pub fn add_bos(&self, ids: &mut Vec<u32>) {
        if let Some(bos) = self.vocab.ids.bos
            && self.vocab.add_bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
    }

    fn add_eos(&self, ids: &mut Vec<u32>) {
        if let Some(eos) = self.vocab.ids.eos
            && self.vocab.add_eos
            && ids.last() != Some(&eos)
        {
            ids.push(eos);
        }
    }

    /// Appends the ids of plain text: nothing in it is a special token.
    pub(crate) fn encode_plain(&self, text: &[u8], bpe: &mut Bpe, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let text = self.spellable(generalised(text));
        let vocab = &self.vocab;
        vocab.pre.split(&text, |piece| {
            if let Some(&id) = vocab.whole.get(piece) {
                ids.push(id);
                return;
            }
            let symbols =
                piece.iter().map(|&b| vocab.byte_token[usize::from(b)].expect("`spellable` replaced the rest"));
            bpe.merge(&vocab.merges, symbols, ids);
        });
    }

    /// Replaces characters that the vocabulary has no bytes for by U+FFFD.
    fn spellable<'a>(&self, text: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
        let has = |bytes: &[u8]| bytes.iter().all(|&b| self.vocab.byte_token[usize::from(b)].is_some());
        if !self.gaps || has(&text) {
            return text;
        }
        let mut out = Vec::with_capacity(text.len());
        let mut pos = 0;
        while let Some(c) = Char::at(&text, pos) {
            let bytes = &text[pos..pos + c.len];
            out.extend_from_slice(if has(bytes) { bytes } else { "\u{FFFD}".as_bytes() });
            pos += c.len;
        }
        out.into()
    }

    /// The bytes of `ids`, control tokens shown by name or left out.
    ///
    /// # Errors
    /// The first id that is no token.
    pub fn decode_bytes(&self, ids: &[u32], show_control: bool) -> Result<Vec<u8>, u32> {
        let pieces = self.pieces();
        let mut out = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            if id as usize >= pieces.len() {
                return Err(id);
            }
            if show_control || !pieces.is_control(id) {
                out.extend_from_slice(pieces.bytes(id));
            }
        }
        Ok(out)
    }
}
