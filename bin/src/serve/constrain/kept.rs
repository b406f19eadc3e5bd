//! The constraints of the last requests: agents send the same tools turn after turn, and compile them once.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::{Compiled, Wanted};

/// Bytes of all that is kept.
pub(super) const BYTES: usize = 64 * 1024 * 1024;
/// Constraints that are kept.
const ROWS: usize = 64;

/// What names a constraint: everything that it was compiled from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key([u8; 32]);

impl Key {
    pub(super) fn of(wanted: &Wanted<'_>) -> Self {
        struct Hashing(Sha256);
        impl fmt::Write for Hashing {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.update(text);
                Ok(())
            }
        }
        let mut into = Hashing(Sha256::new());
        // Texts are quoted in it, so that no two of them are written alike.
        write!(into, "{wanted:?}").expect("a hash takes everything");
        Self(into.0.finalize().into())
    }
}

/// The constraints, the last used at the end.
#[derive(Default)]
pub(super) struct Kept {
    rows: VecDeque<(Key, Arc<Compiled>)>,
    bytes: usize,
}

impl Kept {
    /// The one of this name, if it is there still.
    pub(super) fn find(&mut self, key: Key) -> Option<Arc<Compiled>> {
        let at = self.rows.iter().position(|(k, _)| *k == key)?;
        let row = self.rows.remove(at)?;
        let found = Arc::clone(&row.1);
        self.rows.push_back(row);
        Some(found)
    }

    /// Keeps one, and gives up those that were not used for longest.
    pub(super) fn keep(&mut self, key: Key, compiled: &Arc<Compiled>) {
        if compiled.bytes > BYTES || self.rows.iter().any(|(k, _)| *k == key) {
            return;
        }
        self.bytes += compiled.bytes;
        self.rows.push_back((key, Arc::clone(compiled)));
        while self.rows.len() > ROWS || self.bytes > BYTES {
            let Some((_, oldest)) = self.rows.pop_front() else { break };
            self.bytes -= oldest.bytes;
        }
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        let bytes: usize = self.rows.iter().map(|(_, compiled)| compiled.bytes).sum();
        assert_eq!(self.bytes, bytes, "what went is not counted any more");
        (self.rows.len(), self.bytes)
    }
}
