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
    pub fn usable(&mut self, slot: Slot, before: &[TokenId], drafts: &[TokenId]) -> usize {
        let Some(constraint) = &mut self.of[slot.index()] else { return drafts.len() };
        // A constraint may give up, and then does not take what it took before: nothing follows that.
        let known = before.iter().take_while(|t| constraint.advance(**t)).count();
        let drafts = if known < before.len() { &[] } else { drafts };
        let usable = drafts.iter().take_while(|t| !constraint.ended() && constraint.advance(**t)).count();
        constraint.rollback(known + usable);
        usable
    }

    /// Appends the masks of a window to `words`, and per row where its mask begins to `start`: `u32::MAX` where
    /// everything is allowed. Row i follows the committed tokens and `drafts[..i]`; behind a draft that may not come,
    /// nothing may.
    pub fn masks(&mut self, slot: Slot, drafts: &[TokenId], words: &mut Vec<u32>, start: &mut Vec<u32>) {
        let Some(constraint) = &mut self.of[slot.index()] else {
            start.extend((0..=drafts.len()).map(|_| u32::MAX));
            return;
        };
        let mut taken = 0;
        for i in 0..=drafts.len() {
            if taken + 1 == i && constraint.advance(drafts[i - 1]) {
                taken = i;
            }
            let first = words.len();
            words.resize(first + self.words, 0);
            let allowed = if taken == i { constraint.mask(&mut words[first..]) } else { Allowed::Nothing };
            match allowed {
                Allowed::All => {
                    words.truncate(first);
                    start.push(u32::MAX);
                }
                // Without a bit, nothing can be chosen at the row.
                Allowed::Masked | Allowed::Nothing => start.push(first as u32),
            }
        }
        constraint.rollback(taken);
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
    /// Takes tokens until it gives up, and must not be asked for more of them back than it took.
    #[derive(Clone, Debug)]
    struct Fickle {
        patience: usize,
        taken: usize,
    }

    impl Constraint for Fickle {
        fn mask(&mut self, words: &mut [u32]) -> Allowed {
            words[0] = 1;
            Allowed::Masked
        }

        fn advance(&mut self, _: TokenId) -> bool {
            let may = self.patience > 0;
            self.patience -= usize::from(may);
            self.taken += usize::from(may);
            may
        }

        fn rollback(&mut self, n: usize) {
            self.taken -= n;
        }

        fn ended(&self) -> bool {
            false
        }

        fn fork(&self) -> Box<dyn Constraint> {
            Box::new(self.clone())
        }
    }

    #[test]
    fn a_constraint_may_give_up_at_any_time() {
        let drafts = [TokenId(0); 4];
        let mut table = Constraints::new(1, 40);
        let mut with = |patience| {
            table.start(Slot(0), Some(Box::new(Fickle { patience, taken: 0 })));
            let usable = table.usable(Slot(0), &drafts[..2], &drafts);
            table.start(Slot(0), Some(Box::new(Fickle { patience, taken: 0 })));
            let (mut words, mut first) = (Vec::new(), Vec::new());
            table.masks(Slot(0), &drafts, &mut words, &mut first);
            assert_eq!((words.len(), first.as_slice()), (10, [0, 2, 4, 6, 8].as_slice()));
            let rows: Vec<u32> = words.chunks(2).map(|mask| mask[0]).collect();
            (usable, rows, table.commit(Slot(0), TokenId(0)))
        };
        assert_eq!(with(0), (0, vec![1, 0, 0, 0, 0], false));
        assert_eq!(with(1), (0, vec![1, 1, 0, 0, 0], false));
        assert_eq!(with(3), (1, vec![1, 1, 1, 1, 0], false));
        assert_eq!(with(9), (4, vec![1; 5], true));
    }
}
