//! Names and seeds nobody can predict from outside. Not for secrets.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};

/// A source of 64-bit numbers, seeded from the process's random hash keys.
pub(crate) struct Random {
    keys: RandomState,
    counter: u64,
}

impl Random {
    pub(crate) fn new() -> Self {
        Self { keys: RandomState::new(), counter: 0 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.counter += 1;
        let mut hasher = self.keys.build_hasher();
        hasher.write_u64(self.counter);
        hasher.finish()
    }

    /// `prefix` and 24 characters of base 62.
    pub(crate) fn id(&mut self, prefix: &str) -> String {
        const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let mut out = String::from(prefix);
        for _ in 0..3 {
            let mut word = self.next();
            for _ in 0..8 {
                out.push(ALPHABET[(word % 62) as usize] as char);
                word /= 62;
            }
        }
        out
    }
}
