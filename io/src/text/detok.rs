//! Incremental detokeniser: bytes in, whole characters out. The state is a few bytes and copyable.

/// Holds the unfinished character at the end of a byte stream.
///
/// Text comes out as soon as it is certain: a well-formed character at its last byte; U+FFFD for a maximal
/// ill-formed sequence at the byte that shows it. The concatenated text is that of [`String::from_utf8_lossy`] on the
/// concatenated bytes, whatever the partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Detok {
    /// A proper prefix of a well-formed character.
    held: [u8; 3],
    len: u8,
}

impl Detok {
    /// Appends the text of `bytes` to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        let mut rest = bytes;
        while self.len > 0 && !rest.is_empty() {
            let mut seen = [0; 4];
            let held = usize::from(self.len);
            seen[..held].copy_from_slice(&self.held[..held]);
            seen[held] = rest[0];
            match std::str::from_utf8(&seen[..=held]) {
                Ok(c) => {
                    out.push_str(c);
                    rest = &rest[1..];
                    self.len = 0;
                }
                Err(e) if e.valid_up_to() == 0 && e.error_len().is_none() => {
                    self.held[held] = rest[0];
                    self.len += 1;
                    rest = &rest[1..];
                }
                // The new byte does not continue the character; it is read again on its own.
                Err(_) => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.len = 0;
                }
            }
        }
        for chunk in rest.utf8_chunks() {
            out.push_str(chunk.valid());
            let invalid = chunk.invalid();
            let unfinished = !invalid.is_empty()
                && std::ptr::eq(invalid.as_ptr_range().end, rest.as_ptr_range().end)
                && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if unfinished {
                self.held[..invalid.len()].copy_from_slice(invalid);
                self.len = invalid.len() as u8;
            } else if !invalid.is_empty() {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }

    /// Ends the stream: an unfinished character becomes one U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if self.len > 0 {
            out.push(char::REPLACEMENT_CHARACTER);
            self.len = 0;
        }
    }

    /// Bytes held back.
    pub fn pending(&self) -> usize {
        usize::from(self.len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stream(parts: &[&[u8]]) -> String {
        let mut state = Detok::default();
        let mut out = String::new();
        for part in parts {
            state.push(part, &mut out);
        }
        state.finish(&mut out);
        out
    }

    #[test]
    fn emoji_in_two_pieces() {
        let mut state = Detok::default();
        let mut out = String::new();
        state.push(b"\xF0\x9F", &mut out);
        assert_eq!((out.as_str(), state.pending()), ("", 2));
        state.push(b"\x98\x8A", &mut out);
        assert_eq!((out.as_str(), state.pending()), ("😊", 0));
    }

    #[test]
    fn impossible_sequences_and_tails() {
        assert_eq!(stream(&[b"\xFF"]), "\u{FFFD}");
        assert_eq!(stream(&[b"a\xC3", b"(b"]), "a\u{FFFD}(b");
        assert_eq!(stream(&[b"\xE2", b"\x82"]), "\u{FFFD}");
        assert_eq!(stream(&[b"\xE2\x82", b"\xE2\x82\xAC"]), "\u{FFFD}€");
        assert_eq!(stream(&[b"\xED", b"\xA0", b"\x80"]), "\u{FFFD}\u{FFFD}\u{FFFD}");
        assert_eq!(stream(&[b"\xF0", b"\x80"]), "\u{FFFD}\u{FFFD}");
        assert_eq!(stream(&[]), "");
    }

    #[test]
    fn a_copy_is_independent() {
        let mut a = Detok::default();
        let mut out = String::new();
        a.push(b"\xC3", &mut out);
        let mut b = a;
        b.push(b"\xA9", &mut out);
        assert_eq!(out, "é");
        assert_eq!((a.pending(), b.pending()), (1, 0));
    }

    proptest! {
        #[test]
        fn any_partition_gives_the_same_text(
            parts in prop::collection::vec(
                prop::collection::vec(prop_oneof![any::<u8>(), 0x7Fu8..=0xC3, 0xE0u8..=0xF5, Just(b'a')], 0..5),
                0..12,
            ),
        ) {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let whole = parts.concat();
            prop_assert_eq!(stream(&parts), String::from_utf8_lossy(&whole));
        }

        #[test]
        fn characters_are_never_split(text in ".*", cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
            let bytes = text.as_bytes();
            let mut at: Vec<usize> = cuts.iter().map(|i| i.index(bytes.len() + 1)).collect();
            at.sort_unstable();
            at.push(bytes.len());
            let mut state = Detok::default();
            let (mut from, mut out) = (0, String::new());
            for to in at {
                state.push(&bytes[from..to], &mut out);
                prop_assert!(text.starts_with(&out));
                prop_assert_eq!(out.len() + state.pending(), to);
                from = to;
            }
            prop_assert_eq!(out, text);
        }
    }
}
