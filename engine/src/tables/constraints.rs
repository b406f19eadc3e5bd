//! constraints: what each row may still choose. Started by admit; walked along drafts and back by draft_mtp,
//! extend_suffix and verify; moved on by commit; copied by a slot fork; given back by retire.
//!
//! Invariant between systems: a row's constraint has taken its committed completion and nothing else.

use crate::constraint::{Allowed, Constraint};
use crate::ids::{Slot, TokenId};

/// The table.
#[derive(Debug)]
pub struct Constraints {
    of: Vec<Option<Box<dyn Constraint>>>,
    /// Words of a mask.
    words: usize,
}

impl Constraints {
    /// No constraint on any of `slots` rows of a vocabulary.
    pub fn new(slots: usize, vocab: usize) -> Self {
        Self { of: (0..slots).map(|_| None).collect(), words: vocab.div_ceil(32) }
    }

    /// Bytes of [`Self::new`]; what constraints hold themselves is theirs.
    pub fn bytes_for(slots: usize) -> usize {
        slots * size_of::<Option<Box<dyn Constraint>>>()
    }

    /// Starts a row.
    pub fn start(&mut self, slot: Slot, constraint: Option<Box<dyn Constraint>>) {
        self.of[slot.index()] = constraint;
    }

    /// Copies a row.
    pub fn copy(&mut self, from: Slot, to: Slot) {
        self.of[to.index()] = self.of[from.index()].clone();
    }

    /// Ends a row.
    pub fn give_back(&mut self, slot: Slot) {
        self.of[slot.index()] = None;
    }

    /// Whether the row is constrained.
    pub fn is_on(&self, slot: Slot) -> bool {
        self.of[slot.index()].is_some()
    }

    /// How many of `drafts` may follow the committed tokens and `before`, counted from the first.
    ///
    /// # Panics
    /// If `before` may not follow.
    pub fn usable(&mut self, slot: Slot, before: &[TokenId], drafts: &[TokenId]) -> usize {
        let Some(constraint) = &mut self.of[slot.index()] else { return drafts.len() };
        for &token in before {
            assert!(constraint.advance(token), "{slot}: draft {token} was allowed before");
        }
        let usable = drafts.iter().take_while(|t| !constraint.ended() && constraint.advance(**t)).count();
        constraint.rollback(before.len() + usable);
        usable
    }

    /// Appends the masks of a window to `words`, and per row where its mask begins to `start`: `u32::MAX` where
    /// everything is allowed. Row i follows the committed tokens and `drafts[..i]`.
    ///
    /// # Panics
    /// If a draft may not come where it stands.
    pub fn masks(&mut self, slot: Slot, drafts: &[TokenId], words: &mut Vec<u32>, start: &mut Vec<u32>) {
        let Some(constraint) = &mut self.of[slot.index()] else {
            start.extend((0..=drafts.len()).map(|_| u32::MAX));
            return;
        };
        for i in 0..=drafts.len() {
            if i > 0 {
                assert!(constraint.advance(drafts[i - 1]), "{slot}: draft {} was allowed before", drafts[i - 1]);
            }
            let first = words.len();
            words.resize(first + self.words, 0);
            match constraint.mask(&mut words[first..]) {
                Allowed::All => {
                    words.truncate(first);
                    start.push(u32::MAX);
                }
                // Without a bit, nothing can be chosen at the row.
                Allowed::Masked | Allowed::Nothing => start.push(first as u32),
            }
        }
        constraint.rollback(drafts.len());
    }

    /// Takes a token that is about to be committed; whether it may be.
    pub fn commit(&mut self, slot: Slot, token: TokenId) -> bool {
        self.of[slot.index()].as_mut().is_none_or(|constraint| constraint.advance(token))
    }

    /// Whether the row's constraint lets nothing follow.
    pub fn ended(&self, slot: Slot) -> bool {
        self.of[slot.index()].as_ref().is_some_and(|constraint| constraint.ended())
    }
}

/// Whether a mask leaves exactly one token.
pub fn leaves_one(mask: &[u32]) -> bool {
    let mut left = 0;
    mask.iter().all(|word| {
        left += word.count_ones();
        left <= 1
    }) && left == 1
}

/// Whether every token that a mask leaves is among `tokens`.
pub fn leaves_only(mask: &[u32], tokens: impl Iterator<Item = TokenId> + Clone) -> bool {
    mask.iter().enumerate().all(|(i, &word)| {
        let of_word = tokens.clone().filter(|t| t.index() / 32 == i);
        word & !of_word.fold(0, |bits, t| bits | 1 << (t.index() % 32)) == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_told_apart_by_what_they_leave() {
        assert!(leaves_one(&[0, 0b100]) && !leaves_one(&[0, 0]) && !leaves_one(&[1, 1]) && !leaves_one(&[3]));
        let ends = [TokenId(2), TokenId(33)];
        assert!(leaves_only(&[0b100, 0b10], ends.into_iter()) && leaves_only(&[0, 0b10], ends.into_iter()));
        assert!(!leaves_only(&[0b101, 0b10], ends.into_iter()) && !leaves_only(&[0, 0b110], ends.into_iter()));
    }
}
