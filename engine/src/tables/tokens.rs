//! tokens: the one true history, prompt and committed tokens only. Written by admit (prompt) and commit; copied by a
//! slot fork; read by index_suffix, plan, draft_mtp, extend_suffix, prefill, verify. `[slot][context]`; the length lives
//! in requests.

use crate::ids::{Slot, TokenId};

/// The table.
#[derive(Debug)]
pub struct Tokens {
    context: usize,
    token: Vec<TokenId>,
}

impl Tokens {
    /// `slots` rows of `context` tokens.
    pub fn new(slots: usize, context: usize) -> Self {
        Self { context, token: vec![TokenId::NONE; slots * context] }
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(slots: usize, context: usize) -> usize {
        slots.saturating_mul(context).saturating_mul(size_of::<TokenId>())
    }

    /// The first `len` tokens of a row.
    pub fn history(&self, slot: Slot, len: u32) -> &[TokenId] {
        let start = slot.index() * self.context;
        &self.token[start..start + len as usize]
    }

    /// One token.
    pub fn get(&self, slot: Slot, position: u32) -> TokenId {
        debug_assert!((position as usize) < self.context);
        self.token[slot.index() * self.context + position as usize]
    }

    /// Writes one token.
    ///
    /// # Panics
    /// If the position is past the context.
    pub fn set(&mut self, slot: Slot, position: u32, token: TokenId) {
        assert!((position as usize) < self.context, "{slot}: position {position} of {}", self.context);
        self.token[slot.index() * self.context + position as usize] = token;
    }

    /// Writes a prompt.
    ///
    /// # Panics
    /// If it is longer than the context.
    pub fn start(&mut self, slot: Slot, prompt: &[TokenId]) {
        assert!(prompt.len() <= self.context);
        let start = slot.index() * self.context;
        self.token[start..start + prompt.len()].copy_from_slice(prompt);
    }

    /// Copies the first `len` tokens of `from` to `to`.
    pub fn copy(&mut self, from: Slot, to: Slot, len: u32) {
        let start = from.index() * self.context;
        self.token.copy_within(start..start + len as usize, to.index() * self.context);
    }
}
