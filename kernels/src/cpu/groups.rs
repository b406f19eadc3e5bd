//! The outputs of a matmul, handed to workers in groups of 16 columns.
#![expect(unsafe_code, reason = "workers write different columns of one row-major matrix")]

use std::ops::Range;

use smallvec::SmallVec;

use super::pool::Pool;
use crate::matmul::OUTPUTS;
use crate::panel::LANES;

/// One `[rows][n]` output matrix.
struct Output {
    start: *mut f32,
    n: usize,
    first_group: usize,
}

struct Outputs(SmallVec<[Output; OUTPUTS]>);

// SAFETY: pieces of the matrices are written by one worker each; see `for_each_piece`.
unsafe impl Sync for Outputs {}

/// Neighbouring groups of one output matrix, for one worker to fill.
pub(crate) struct Piece<'a> {
    /// Which matrix.
    pub output: usize,
    /// Groups of 16 columns of that matrix.
    pub groups: Range<usize>,
    rows: usize,
    dst: &'a Output,
}

impl Piece<'_> {
    /// Writes the columns of `group` in `row`; lanes beyond the width of the matrix are dropped.
    ///
    /// # Panics
    /// If the row or the group is not of this piece.
    pub(crate) fn write(&mut self, row: usize, group: usize, lanes: &[f32; LANES]) {
        assert!(row < self.rows && self.groups.contains(&group), "row {row}, group {group} of {:?}", self.groups);
        let at = group * LANES;
        let width = LANES.min(self.dst.n - at);
        // SAFETY: inside the matrix: row < rows, at + width <= n. Nobody else touches these columns, because pieces of
        // one call have different groups and the matrices are borrowed mutably for the whole call.
        unsafe { lanes.as_ptr().copy_to_nonoverlapping(self.dst.start.add(row * self.dst.n + at), width) };
    }
}

/// Calls `work(worker, piece)` until every group of every output has been in one piece, of `grain` groups at most.
/// `outputs`: width and memory of each `[rows][n]` matrix.
///
/// # Panics
/// If a matrix is not `rows * n` long.
pub(crate) fn for_each_piece(
    pool: &Pool,
    outputs: SmallVec<[(usize, &mut [f32]); OUTPUTS]>,
    rows: usize,
    grain: usize,
    work: impl Fn(usize, Piece) + Sync,
) {
    let mut total = 0;
    let table = outputs
        .into_iter()
        .map(|(n, dst)| {
            assert_eq!(dst.len(), rows * n, "output of {rows} rows of {n}");
            let first_group = total;
            total += n.div_ceil(LANES);
            Output { start: dst.as_mut_ptr(), n, first_group }
        })
        .collect();
    let table = Outputs(table);
    // Borrowed whole, so that the closure is Sync by the wrapper's promise.
    let table = &table;
    pool.split_with_worker(total, grain, move |worker, range| {
        let Outputs(table) = table;
        for (output, dst) in table.iter().enumerate() {
            let groups = dst.n.div_ceil(LANES);
            let first = range.start.clamp(dst.first_group, dst.first_group + groups) - dst.first_group;
            let end = range.end.clamp(dst.first_group, dst.first_group + groups) - dst.first_group;
            if first < end {
                work(worker, Piece { output, groups: first..end, rows, dst });
            }
        }
    });
}
