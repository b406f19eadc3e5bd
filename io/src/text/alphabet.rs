//! The GPT-2 byte alphabet: every byte as one printable character, so that token texts are valid strings.
//!
//! Bytes that are printable in Latin-1 stand for themselves; the other 68, in ascending order, are U+0100, U+0101 ...
//! Source: GPT-2 `encoder.py`, `bytes_to_unicode`.

fn is_direct(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The characters of all bytes, indexed by byte.
pub(crate) fn table() -> [char; 256] {
    let mut shifted = 0;
    std::array::from_fn(|b| {
        let byte = b as u8;
        if is_direct(byte) {
            char::from(byte)
        } else {
            shifted += 1;
            char::from_u32(0x100 + shifted - 1).expect("U+0100..U+0144 are characters")
        }
    })
}

/// Turns token texts back into bytes.
pub(crate) struct Decoder {
    /// Byte of the characters U+0000..U+0144; `None` for those outside the alphabet.
    byte: [Option<u8>; 0x144],
}

impl Decoder {
    pub(crate) fn new() -> Self {
        let mut byte = [None; 0x144];
        for (b, c) in table().into_iter().enumerate() {
            byte[c as usize] = Some(b as u8);
        }
        Self { byte }
    }

    /// The bytes a text stands for; `None` if it holds a character outside the alphabet.
    pub(crate) fn decode(&self, text: &str) -> Option<Vec<u8>> {
        text.chars().map(|c| self.byte.get(c as usize).copied().flatten()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_is_a_bijection() {
        let t = table();
        assert_eq!(t[usize::from(b' ')], 'Ġ');
        assert_eq!(t[usize::from(b'\n')], 'Ċ');
        assert_eq!(t[0xFF], 'ÿ');
        let text: String = t.iter().collect();
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(Decoder::new().decode(&text), Some(all));
        assert_eq!(Decoder::new().decode("a b"), None);
        assert_eq!(Decoder::new().decode("\u{200B}"), None);
    }
}
