//! Rows of a pass while they are collected, and the segments they form.

use std::ops::Range;

use engine_kernels::ops::attention::Segment;

use crate::ids::{PageId, TokenId};

/// Rows in order; a segment's are contiguous and ascend by one position.
#[derive(Default)]
pub struct Rows {
    /// Per row.
    pub token: Vec<TokenId>,
    /// Per row.
    pub position: Vec<u32>,
    /// Per run of rows: the segment of the work they belong to.
    pub runs: Vec<(usize, Range<usize>)>,
}

impl Rows {
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
    pub fn segments<'a>(&self, tables: &'a Tables) -> Vec<Segment<'a>> {
        let segment = |(segment, rows): &(usize, Range<usize>)| Segment {
            rows: rows.clone(),
            position: self.position[rows.start] as usize,
            pages: tables.of(*segment),
        };
        self.runs.iter().map(segment).collect()
    }
}

/// Block tables of a step's segments, as plain numbers.
pub struct Tables {
    page: Vec<u32>,
    start: Vec<u32>,
}

impl Tables {
    /// # Panics
    /// If a page is not in the pool.
    pub fn new(page: &[PageId], start: &[u32], pages: usize) -> Self {
        assert!(page.iter().all(|p| (p.0 as usize) < pages), "a block table names a page outside the pool of {pages}");
        Self { page: page.iter().map(|p| p.0).collect(), start: start.to_vec() }
    }

    /// Block table of a segment.
    pub fn of(&self, segment: usize) -> &[u32] {
        &self.page[self.start[segment] as usize..self.start[segment + 1] as usize]
    }
}
