//! pieces: the bytes behind every token id. Filled once from a tokenizer; read by commit (text, end
//! tokens) and by draft_mtp, extend_suffix and verify (end tokens).

use bitflags::bitflags;

use crate::ids::TokenId;

bitflags! {
    /// What a token is, besides its bytes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct PieceFlags: u8 {
        /// Not text: shown only when the request asks for special tokens.
        const CONTROL = 1;
        /// One of the model's own end tokens.
        const END = 2;
    }
}

/// Token id -> bytes and flags. Token t owns `bytes[start[t]..start[t + 1]]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pieces {
    start: Vec<u32>,
    bytes: Vec<u8>,
    flags: Vec<PieceFlags>,
    end: Vec<TokenId>,
}

impl Default for Pieces {
    fn default() -> Self {
        Self { start: vec![0], bytes: Vec::new(), flags: Vec::new(), end: Vec::new() }
    }
}

impl Pieces {
    /// No token yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Heap bytes.
    pub fn heap_bytes(&self) -> usize {
        let columns = self.start.capacity() * size_of::<u32>() + self.flags.capacity() * size_of::<PieceFlags>();
        columns + self.bytes.capacity() + self.end.capacity() * size_of::<TokenId>()
    }

    /// Appends the next token id. `bytes` are what the token writes, without any rule about neighbours.
    ///
    /// # Panics
    /// If all pieces together reach 4 GiB.
    pub fn push(&mut self, bytes: &[u8], flags: PieceFlags) {
        if flags.contains(PieceFlags::END) {
            self.end.push(TokenId(self.flags.len() as u32));
        }
        self.bytes.extend_from_slice(bytes);
        self.start.push(u32::try_from(self.bytes.len()).expect("pieces below 4 GiB"));
        self.flags.push(flags);
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.flags.len()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.flags.is_empty()
    }

    /// Bytes of a token; none for an id past the table (a model may have more rows than its tokenizer).
    pub fn bytes(&self, token: TokenId) -> &[u8] {
        let i = token.index();
        if i < self.len() { &self.bytes[self.start[i] as usize..self.start[i + 1] as usize] } else { &[] }
    }

    /// Flags of a token; none for an id past the table.
    pub fn flags(&self, token: TokenId) -> PieceFlags {
        self.flags.get(token.index()).copied().unwrap_or_default()
    }

    /// The model's own end tokens, ascending.
    pub fn end_tokens(&self) -> &[TokenId] {
        &self.end
    }

    /// Whether this is one of the model's own end tokens.
    pub fn is_end(&self, token: TokenId) -> bool {
        self.flags(token).contains(PieceFlags::END)
    }
}
