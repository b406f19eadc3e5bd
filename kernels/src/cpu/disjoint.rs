//! Writing disjoint parts of one slice from several workers.
#![expect(unsafe_code, reason = "exclusive borrows of parts of one slice, handed to different threads")]

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use bumpalo::Bump;

/// A slice whose parts are borrowed mutably by several threads at once; the caller keeps them apart.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: hands out `&mut [T]` to other threads, which T: Send allows.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// Ranges borrowed at the same time do not overlap.
    ///
    /// # Panics
    /// If the range leaves the slice.
    #[expect(clippy::mut_from_ref, reason = "the point of the type; the caller keeps ranges apart")]
    pub(crate) unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        // SAFETY: inside the slice, which is borrowed mutably for 'a; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// A slice cut into blocks of equal length, each of which is taken at most once, by any thread.
pub(crate) struct Blocks<'a, T> {
    all: Disjoint<'a, T>,
    block_len: usize,
    taken: &'a [AtomicBool],
}

impl<'a, T> Blocks<'a, T> {
    /// What is taken is kept in `lists`.
    ///
    /// # Panics
    /// If the slice is not a whole number of blocks.
    pub(crate) fn new(slice: &'a mut [T], block_len: usize, lists: &'a Bump) -> Self {
        assert!(
            block_len > 0 && slice.len().is_multiple_of(block_len),
            "{} elements in blocks of {block_len}",
            slice.len()
        );
        let taken = lists.alloc_slice_fill_with(slice.len() / block_len, |_| AtomicBool::new(false));
        Self { all: Disjoint::new(slice), block_len, taken }
    }

    /// Block `index`, for as long as the slice is borrowed.
    ///
    /// # Panics
    /// If it was taken before.
    #[expect(clippy::mut_from_ref, reason = "each block is given out once")]
    pub(crate) fn take(&self, index: usize) -> &mut [T] {
        assert!(!self.taken[index].swap(true, Ordering::Relaxed), "block {index} is taken twice");
        // SAFETY: blocks do not overlap and this one was not given out before.
        unsafe { self.all.range(index * self.block_len..(index + 1) * self.block_len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_disjoint() {
        let mut all = [0; 6];
        let lists = Bump::new();
        let blocks = Blocks::new(&mut all, 2, &lists);
        let (a, c) = (blocks.take(0), blocks.take(2));
        a.fill(1);
        c.fill(3);
        assert_eq!(all, [1, 1, 0, 0, 3, 3]);
    }

    #[test]
    #[should_panic(expected = "block 1 is taken twice")]
    fn a_block_is_taken_once() {
        let mut all = [0; 6];
        let lists = Bump::new();
        let blocks = Blocks::new(&mut all, 2, &lists);
        blocks.take(1);
        blocks.take(1);
    }
}
