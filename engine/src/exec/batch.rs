//! Rows of a pass while they are collected, and the segments they form.

use std::ops::Range;

use bumpalo::Bump;
use bumpalo::collections::Vec as List;
use engine_kernels::ops::attention::Segment;

use crate::ids::{PageId, TokenId};
use crate::limits::Limits;

/// Rows in order; a segment's are contiguous and ascend by one position.
pub struct Rows<'l> {
    /// Per row.
    pub token: List<'l, TokenId>,
    /// Per row.
    pub position: List<'l, u32>,
    /// Per run of rows: the segment of the work they belong to.
    pub runs: List<'l, (usize, Range<usize>)>,
}

impl<'l> Rows<'l> {
    /// None yet, room for `rows` of `segments`.
    pub fn new(rows: usize, segments: usize, lists: &'l Bump) -> Self {
        Self {
            token: List::with_capacity_in(rows, lists),
            position: List::with_capacity_in(rows, lists),
            runs: List::with_capacity_in(segments, lists),
        }
    }

    /// Rows so far.
    pub fn len(&self) -> usize {
        self.token.len()
    }

    /// Appends a row of `segment`.
    pub fn push(&mut self, segment: usize, token: TokenId, position: u32) {
        let row = self.len();
        match self.runs.last_mut() {
            Some((last, rows)) if *last == segment => rows.end = row + 1,
            _ => self.runs.push((segment, row..row + 1)),
        }
        self.token.push(token);
        self.position.push(position);
    }

    /// Empty again.
    pub fn clear(&mut self) {
        self.token.clear();
        self.position.clear();
        self.runs.clear();
    }

    /// The runs as attention wants them.
    pub fn segments<'a>(&self, tables: &'a Tables, lists: &'a Bump) -> &'a [Segment<'a>] {
        let segment = |(segment, rows): &(usize, Range<usize>)| Segment {
            rows: rows.clone(),
            position: self.position[rows.start] as usize,
            pages: tables.of(*segment),
        };
        lists.alloc_slice_fill_iter(self.runs.iter().map(segment))
    }
}

/// Block tables of a step's segments, as plain numbers.
#[derive(Default)]
pub struct Tables {
    page: Vec<u32>,
    start: Vec<u32>,
}

impl Tables {
    /// None yet, room for any step.
    pub fn new(limits: &Limits) -> Self {
        let most = Self::most(limits);
        Self { page: Vec::with_capacity(most), start: Vec::with_capacity(limits.slots + 1) }
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(limits: &Limits) -> usize {
        size_of::<u32>() * Self::most(limits).saturating_add(limits.slots + 1)
    }

    /// Pages that all tables name at most: one may be in every table, but no table is longer than the context.
    fn most(limits: &Limits) -> usize {
        Limits::pages_for(limits.context).saturating_mul(limits.slots)
    }

    /// Those of another step.
    ///
    /// # Panics
    /// If a page is not in the pool.
    pub fn fill(&mut self, page: &[PageId], start: &[u32], pages: usize) {
        assert!(page.iter().all(|p| (p.0 as usize) < pages), "a block table names a page outside the pool of {pages}");
        self.page.clear();
        self.page.extend(page.iter().map(|p| p.0));
        self.start.clear();
        self.start.extend_from_slice(start);
    }

    /// Block table of a segment.
    pub fn of(&self, segment: usize) -> &[u32] {
        &self.page[self.start[segment] as usize..self.start[segment + 1] as usize]
    }
}
