//! Cache-line aligned bytes, in huge pages where they are large and the system has them.
#![expect(unsafe_code, reason = "aligned allocation and advice to the kernel about it")]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

const LINE: usize = 64;
const HUGE: usize = 2 << 20;
/// Advice starts at a multiple of this; the system's pages may be larger, then it is refused.
const PAGE: usize = 4096;

/// Owned bytes whose start is a multiple of 64.
pub(crate) struct AlignedBytes {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain owned memory.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// `len` zero bytes.
    pub(crate) fn zeroed(len: usize) -> Self {
        Self::advised(len, advise_huge)
    }

    /// `len` zero bytes in pages of the smallest size.
    pub(crate) fn in_small_pages(len: usize) -> Self {
        Self::advised(len, advise_small)
    }

    /// `advise` speaks to the system about a large range that nobody has touched.
    fn advised(len: usize, advise: fn(NonNull<u8>, usize)) -> Self {
        if len == 0 {
            return AlignedBytes { start: NonNull::<[u64; 8]>::dangling().cast(), len: 0 };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        if layout.align() == HUGE {
            advise(start, len);
        }
        // SAFETY: just allocated, `len` bytes. Written after the advice, so that the first touch makes huge pages.
        unsafe { start.write_bytes(0, len) };
        AlignedBytes { start, len }
    }

    /// At least `len` bytes at the start of the buffer, of unspecified content; grows it if needed.
    pub(crate) fn at_least(&mut self, len: usize) -> &mut [u8] {
        if self.len < len {
            *self = AlignedBytes::zeroed(len);
        }
        &mut self[..len]
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, if len >= HUGE { HUGE } else { LINE })
            .expect("a length that fits the address space")
    }
}

impl Default for AlignedBytes {
    fn default() -> Self {
        AlignedBytes::zeroed(0)
    }
}

/// Floats as the bytes they are.
pub(crate) fn as_bytes(floats: &[f32]) -> &[u8] {
    // SAFETY: every byte of a float is initialised, and bytes have no alignment.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats)) }
}

#[cfg(target_os = "linux")]
fn advise_huge(start: NonNull<u8>, len: usize) {
    // SAFETY: the range is ours, and this advice does not change its content. A refusal leaves ordinary pages, which
    // are slower and otherwise the same; there is nothing to do about it.
    unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
}

#[cfg(target_os = "linux")]
fn advise_small(start: NonNull<u8>, len: usize) {
    // SAFETY: as in `advise_huge`; a refusal means that the system has no huge pages at all.
    unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_NOHUGEPAGE) };
}

/// Elements that start out zero at a multiple of 64 bytes, in huge pages where there are many. Memory is touched only
/// when it is written, so that a large cache costs what is used of it.
pub(crate) struct LazyZeros<T> {
    /// Asked of the system as zero pages, none of them touched; a little more than `len` for the alignment.
    zeros: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> LazyZeros<T> {
    /// `len` zeros. T is a plain number of 1, 2, 4 or 8 bytes.
    pub(crate) fn new(len: usize) -> Self {
        const { assert!(LINE.is_multiple_of(size_of::<T>()) && size_of::<T>() > 0, "elements share lines") };
        let zeros = vec![T::default(); len + LINE / size_of::<T>()];
        let skipped = zeros.as_ptr().addr().next_multiple_of(LINE) - zeros.as_ptr().addr();
        let bytes = size_of_val(&zeros[..]);
        if bytes >= HUGE {
            // Advice covers whole pages: those that lie inside.
            let skipped = zeros.as_ptr().addr().next_multiple_of(PAGE) - zeros.as_ptr().addr();
            // SAFETY: `skipped` is below the page size, hence below `bytes`: the address is inside the buffer.
            let start = unsafe { NonNull::new_unchecked(zeros.as_ptr().cast_mut().cast::<u8>().add(skipped)) };
            advise_huge(start, bytes - skipped);
        }
        Self { start: skipped / size_of::<T>(), zeros, len }
    }
}

impl<T> Deref for LazyZeros<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.zeros[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for LazyZeros<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.zeros[self.start..self.start + self.len]
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge(_: NonNull<u8>, _: usize) {}

#[cfg(not(target_os = "linux"))]
fn advise_small(_: NonNull<u8>, _: usize) {}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes, or none at a dangling aligned address.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated in `zeroed` with this layout.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{HUGE, LINE, LazyZeros};

    #[test]
    fn lazy_zeros_are_zero_aligned_and_as_long_as_asked() {
        for len in [0, 1, 15, 16, 17, 1000, HUGE / 4 + 3] {
            let mut floats = LazyZeros::<f32>::new(len);
            let mut halves = LazyZeros::<u16>::new(len);
            assert_eq!((floats.len(), halves.len()), (len, len));
            assert!(floats.as_ptr().addr().is_multiple_of(LINE) && halves.as_ptr().addr().is_multiple_of(LINE));
            assert!(floats.iter().all(|&x| x == 0.0) && halves.iter().all(|&x| x == 0));
            floats.fill(1.0);
            halves.fill(1);
            assert!(floats.iter().all(|&x| x == 1.0) && halves.iter().all(|&x| x == 1));
        }
    }
}
