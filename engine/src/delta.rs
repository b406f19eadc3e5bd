//! delta: what a tick says of a row, and the memory it is said in, which comes back when the reader has done with it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crossbeam::queue::ArrayQueue;

use crate::api::{Origin, Report, TokenLogprob};
use crate::channels::Said;
use crate::ids::TokenId;

/// What was committed since the last event.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Committed {
    /// Committed ids, end token included.
    pub tokens: Vec<TokenId>,
    /// Who proposed each of them.
    pub origins: Vec<Origin>,
    /// Drafts of the step that committed them.
    pub drafted: u32,
    /// Text released by the output state: whole characters, nothing of a possible stop string. Invalid byte
    /// sequences are already U+FFFD.
    pub said: Said,
    /// Per token: bytes of `said` released up to its commit. What follows the last came with the end.
    pub cuts: Vec<u32>,
    /// One per token when wanted, else empty.
    pub logprobs: Vec<TokenLogprob>,
    /// What is counted so far, when wanted.
    pub report: Option<Box<Report>>,
}

/// Bytes of text that a token is reckoned with.
const TOKEN_BYTES: usize = 16;

impl Committed {
    /// Nothing, with room for a step of `tokens` tokens.
    pub(crate) fn with_room(tokens: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens),
            origins: Vec::with_capacity(tokens),
            cuts: Vec::with_capacity(tokens),
            said: Said { text: String::with_capacity(tokens * TOKEN_BYTES), runs: Vec::new() },
            ..Self::default()
        }
    }

    /// Bytes that [`Self::with_room`] holds.
    pub(crate) fn bytes_for(tokens: usize) -> usize {
        tokens * (size_of::<TokenId>() + size_of::<Origin>() + size_of::<u32>() + TOKEN_BYTES)
    }

    /// Whether there is neither a token nor text.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.said.is_empty()
    }

    /// Nothing again.
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.origins.clear();
        self.drafted = 0;
        self.said.text.clear();
        self.said.runs.clear();
        self.cuts.clear();
        self.logprobs.clear();
        self.report = None;
    }
}

/// Where empty ones wait to be filled again.
pub(crate) type Shelf = Arc<ArrayQueue<Committed>>;

/// What was committed, on its way to a reader. Dropped, its memory goes back to the engine that sent it.
#[derive(Debug, Default)]
pub struct Delta {
    committed: Committed,
    home: Option<Shelf>,
}

impl Delta {
    /// On its way from an engine with this shelf.
    pub(crate) fn new(committed: Committed, home: Shelf) -> Self {
        Self { committed, home: Some(home) }
    }

    /// The content, for keeps: its memory does not come back.
    pub fn into_committed(mut self) -> Committed {
        self.home = None;
        std::mem::take(&mut self.committed)
    }
}

impl From<Committed> for Delta {
    fn from(committed: Committed) -> Self {
        Self { committed, home: None }
    }
}

impl Drop for Delta {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let mut committed = std::mem::take(&mut self.committed);
            committed.clear();
            // A full shelf has enough of them.
            drop(home.push(committed));
        }
    }
}

impl Deref for Delta {
    type Target = Committed;

    fn deref(&self) -> &Committed {
        &self.committed
    }
}

impl DerefMut for Delta {
    fn deref_mut(&mut self) -> &mut Committed {
        &mut self.committed
    }
}

impl Clone for Delta {
    fn clone(&self) -> Self {
        self.committed.clone().into()
    }
}

impl PartialEq for Delta {
    fn eq(&self, other: &Self) -> bool {
        self.committed == other.committed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_empty_and_with_its_room_unless_it_is_kept() {
        let shelf: Shelf = Arc::new(ArrayQueue::new(1));
        let filled =
            || Committed { tokens: vec![TokenId(1); 5], drafted: 3, cuts: vec![1; 5], ..Committed::with_room(5) };
        let kept = Delta::new(filled(), Arc::clone(&shelf)).into_committed();
        assert_eq!((kept, shelf.len()), (filled(), 0), "what is kept leaves nothing without room on the shelf");
        drop(Delta::from(filled()));
        drop(Delta::new(filled(), Arc::clone(&shelf)).clone());
        assert_eq!(shelf.len(), 1, "a copy has no home");
        // A full shelf takes no more.
        drop(Delta::new(filled(), Arc::clone(&shelf)));
        let back = shelf.pop().expect("one came back");
        assert!(back == Committed::default() && back.tokens.capacity() >= 5 && shelf.is_empty());
    }
}
