//! Characters and the four classes that the patterns tell apart.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// Unicode version of the general categories. Newer than the tables of the reference tokenizers (15.1 or 16): a
/// character assigned in between is a letter, mark or number here and an unassigned symbol there; tests compare the
/// rest of the table.
pub const UNICODE_VERSION: (u64, u64, u64) = unicode_properties::UNICODE_VERSION;

/// What a pattern can see of a character.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// `\p{L}`
    Letter,
    /// `\p{M}`
    Mark,
    /// `\p{N}`
    Number,
    /// `\s`
    Space,
    /// Everything else, unassigned code points and surrogates included.
    Other,
}

/// One decoded character.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Char {
    /// Code point, a surrogate possibly.
    pub code: u32,
    /// Its class.
    pub class: Class,
    /// Bytes it takes.
    pub len: usize,
}

impl Char {
    /// The character that starts at `pos`, `None` at the end.
    #[inline]
    pub(crate) fn at(text: &[u8], pos: usize) -> Option<Self> {
        let first = *text.get(pos)?;
        if first < 0x80 {
            return Some(Self { code: u32::from(first), class: ASCII[usize::from(first)], len: 1 });
        }
        let (code, len) = decode(&text[pos..]).expect("the text was made by `generalised`");
        Some(Self { code, class: class_of(code), len })
    }

    /// Carriage return or line feed.
    #[inline]
    pub(crate) fn is_newline(self) -> bool {
        self.code == 0x0D || self.code == 0x0A
    }
}

const ASCII: [Class; 128] = {
    let mut table = [Class::Other; 128];
    let mut b = 0;
    while b < 128 {
        table[b as usize] = match b {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Number,
            b' ' | b'\t'..=b'\r' => Class::Space,
            _ => Class::Other,
        };
        b += 1;
    }
    table
};

fn class_of(code: u32) -> Class {
    let Some(c) = char::from_u32(code) else { return Class::Other };
    if c.is_whitespace() {
        return Class::Space;
    }
    match c.general_category_group() {
        GeneralCategoryGroup::Letter => Class::Letter,
        GeneralCategoryGroup::Mark => Class::Mark,
        GeneralCategoryGroup::Number => Class::Number,
        _ => Class::Other,
    }
}

/// Decodes one character loosely: overlong forms and surrogates are accepted, code points past U+10FFFF are not.
fn decode(bytes: &[u8]) -> Option<(u32, usize)> {
    let first = *bytes.first()?;
    let (len, high) = match first {
        0x00..=0x7F => return Some((u32::from(first), 1)),
        0xC0..=0xDF => (2, first & 0x1F),
        0xE0..=0xEF => (3, first & 0x0F),
        0xF0..=0xF7 => (4, first & 0x07),
        _ => return None,
    };
    let mut code = u32::from(high);
    for i in 1..len {
        let b = *bytes.get(i)?;
        if b & 0xC0 != 0x80 {
            return None;
        }
        code = code << 6 | u32::from(b & 0x3F);
    }
    (code <= 0x10FFFF).then_some((code, len))
}

fn push(code: u32, out: &mut Vec<u8>) {
    match char::from_u32(code) {
        Some(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        // A surrogate: the three-byte form.
        None => out.extend_from_slice(&[
            0xE0 | (code >> 12) as u8,
            0x80 | (code >> 6 & 0x3F) as u8,
            0x80 | (code & 0x3F) as u8,
        ]),
    }
}

/// Any bytes as whole characters: a byte that starts no character becomes U+FFFD, overlong forms are shortened,
/// encoded surrogates stay. Valid UTF-8 is returned as it is.
///
/// Source: llama.cpp `src/unicode.cpp`, `unicode_cpts_from_utf8`, as recorded in its tokenizer's output; code points
/// past U+10FFFF, on which that tokenizer aborts, are replaced byte by byte here.
pub(crate) fn generalised(bytes: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    if std::str::from_utf8(bytes).is_ok() {
        return bytes.into();
    }
    let mut out = Vec::with_capacity(bytes.len() + 8);
    let mut pos = 0;
    while pos < bytes.len() {
        let (code, len) = decode(&bytes[pos..]).unwrap_or((0xFFFD, 1));
        push(code, &mut out);
        pos += len;
    }
    out.into()
}
