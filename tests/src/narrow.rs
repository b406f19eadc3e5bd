//! A constraint without a grammar: what may come next is a pure function of a seed and of what was taken, so that any
//! step aside, any token too many and any rollback too few gives other masks.

use engine::constraint::{Allowed, Constraint};
use engine::ids::TokenId;
use engine::limits::WINDOW_MAX;

use crate::toy::{END, VOCAB};

/// The constraint.
#[derive(Clone, Debug)]
pub struct Narrow {
    /// Another seed allows other tokens.
    pub seed: u64,
    /// Tokens after which nothing but the end token may come.
    pub end_after: usize,
    /// Tokens after which nothing may come at all; 0 = never.
    pub dead_at: usize,
    /// What it has taken.
    pub taken: Vec<TokenId>,
}

impl Narrow {
    /// As every submission carries it.
    pub fn boxed(seed: u64, end_after: usize) -> Option<Box<dyn Constraint>> {
        Some(Box::new(Self { seed, end_after, dead_at: 0, taken: Vec::new() }))
    }

    /// Per token, whether it may come next; `None` where every one may.
    fn allowed(&self) -> Option<Vec<bool>> {
        let taken = self.taken.len();
        if self.ended() || (self.dead_at > 0 && taken >= self.dead_at) {
            return Some(vec![false; VOCAB]);
        }
        if taken >= self.end_after {
            return Some((0..VOCAB).map(|t| t == END.index()).collect());
        }
        let mix = |a: u64, b: u64| engine::sample::random_bits(a, 0, b as u32);
        let last = self.taken.iter().rev().take(2).fold(self.seed, |h, t| mix(h, u64::from(t.0)));
        let key = mix(last, taken as u64);
        match key % 6 {
            0 => None,
            1 => Some((0..VOCAB).map(|t| t as u64 == (key >> 8) % 35).collect()),
            _ => {
                let chance = |t: usize| mix(key, t as u64) % if t == END.index() { 24 } else { 2 } == 0;
                let always = (key >> 8) as usize % 35;
                Some((0..VOCAB).map(|t| t == always || (t < 37 || t == END.index()) && chance(t)).collect())
            }
        }
    }
}

impl Constraint for Narrow {
    fn mask(&mut self, words: &mut [u32]) -> Allowed {
        assert!(words.iter().all(|w| *w == 0), "a mask begins empty");
        let Some(allowed) = self.allowed() else { return Allowed::All };
        for (t, _) in allowed.iter().enumerate().filter(|(_, allowed)| **allowed) {
            words[t / 32] |= 1 << (t % 32);
        }
        if allowed.contains(&true) { Allowed::Masked } else { Allowed::Nothing }
    }

    fn advance(&mut self, token: TokenId) -> bool {
        let may = self.allowed().is_none_or(|allowed| allowed[token.index()]);
        if may {
            self.taken.push(token);
        }
        may
    }

    fn rollback(&mut self, n: usize) {
        assert!(n <= WINDOW_MAX && n <= self.taken.len(), "{n} of {} taken back", self.taken.len());
        self.taken.truncate(self.taken.len() - n);
    }

    fn ended(&self) -> bool {
        self.taken.last() == Some(&END)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}
