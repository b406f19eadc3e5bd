//! Memory of the short lists that an operation makes on its way: which rows, which blocks, whose output. Kept from one
//! operation to the next, so that a pass over a model allocates nothing.

use bumpalo::Bump;
use parking_lot::Mutex;

/// Bytes of one such memory. Lists that are longer together get more, for as long as they are needed.
const LIST_BYTES: usize = 128 << 10;

/// Each worker holds one for its piece of an operation; the caller one for the operation, one for another that this is a
/// part of, and one for the step.
const MORE_THAN_WORKERS: usize = 3;

/// The memories of one pool, those that are not in use.
pub(super) struct Shelf(Mutex<Vec<Bump>>);

fn fresh() -> Bump {
    Bump::with_capacity(LIST_BYTES)
}

impl Shelf {
    /// As many as `threads` workers need.
    pub(super) fn new(threads: usize) -> Self {
        Self(Mutex::new((0..threads + MORE_THAN_WORKERS).map(|_| fresh()).collect()))
    }

    /// Bytes of [`Self::new`].
    pub(super) fn bytes_for(threads: usize) -> usize {
        (threads + MORE_THAN_WORKERS) * (fresh().allocated_bytes_including_metadata() + size_of::<Bump>())
    }

    /// Lends one to `work`; everything in it is gone when that returns.
    pub(super) fn lend<R>(&self, work: impl FnOnce(&Bump) -> R) -> R {
        let mut lists = self.0.lock().pop().unwrap_or_else(fresh);
        let most = lists.allocated_bytes();
        let out = work(&lists);
        if lists.allocated_bytes() > most {
            // It grew for lists of unusual length.
            lists = fresh();
        } else {
            lists.reset();
        }
        self.0.lock().push(lists);
        out
    }
}
