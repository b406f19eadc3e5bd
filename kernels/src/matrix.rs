//! A weight matrix: `n` rows of `k` weights, as file rows or as panels.

use std::ops::{Deref, Range};
use std::sync::Arc;

use thiserror::Error;

use crate::cpu::detect::Isa;
use crate::cpu::matmul::{expand, pack};
use crate::cpu::pages::AlignedBytes;
use crate::cpu::peak;
use crate::panel::{LANES, Layout};
use crate::quant::Quant;

/// Bytes that stay where they are while a matrix uses them: a mapped file range, a vector, an allocation.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A matrix whose numbers do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// A matrix without elements.
    #[error("{quant:?} matrix of {n} rows of {k}: both must be at least 1")]
    Empty {
        /// Weight format.
        quant: Quant,
        /// Rows.
        n: usize,
        /// Weights of a row.
        k: usize,
    },
    /// Rows that are no whole number of blocks.
    #[error("{quant:?} row of {k} weights: must be a multiple of {block}; requantise the tensor to a smaller block")]
    RowBlocks {
        /// Weight format.
        quant: Quant,
        /// Weights of a row.
        k: usize,
        /// Block length of the format.
        block: usize,
    },
    /// The wrong number of bytes.
    #[error("{quant:?} matrix of {n} rows of {k}: found {found} bytes, expected {expected}")]
    Bytes {
        /// Weight format.
        quant: Quant,
        /// Rows.
        n: usize,
        /// Weights of a row.
        k: usize,
        /// Bytes given.
        found: usize,
        /// Bytes of the shape, `usize::MAX` if they exceed the address space.
        expected: usize,
    },
}

pub(crate) enum Storage {
    /// `[n][row bytes]` as in the file.
    Rows(SharedBytes),
    /// `[group of 16 rows][step]` panels of the format [`Quant::panel`]; see `panel.rs`. Rows beyond n are zero.
    Panels(Panels),
}

/// The panels of one matrix, in memory that several may share.
pub(crate) struct Panels {
    memory: Arc<AlignedBytes>,
    range: Range<usize>,
}

impl Deref for Panels {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.range.clone()]
    }
}

/// Weights of one linear layer, `[n][k]`: `n` outputs, `k` inputs.
pub struct Matrix {
    quant: Quant,
    n: usize,
    k: usize,
    pub(crate) storage: Storage,
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Matrix {:?} [{}][{}], panels: {}", self.quant, self.n, self.k, self.is_repacked())
    }
}

impl Matrix {
    /// A view of file bytes; copies nothing.
    ///
    /// # Errors
    /// If a dimension is 0, `k` is no multiple of the block, or the bytes are not exactly those of the shape.
    pub fn new(quant: Quant, n: usize, k: usize, bytes: SharedBytes) -> Result<Matrix, ShapeError> {
        if n == 0 || k == 0 {
            return Err(ShapeError::Empty { quant, n, k });
        }
        let block = quant.block_len();
        if !k.is_multiple_of(block) {
            return Err(ShapeError::RowBlocks { quant, k, block });
        }
        let expected = (k / block).checked_mul(quant.block_bytes()).and_then(|row| row.checked_mul(n));
        let found = (*bytes).as_ref().len();
        if expected != Some(found) {
            return Err(ShapeError::Bytes { quant, n, k, found, expected: expected.unwrap_or(usize::MAX) });
        }
        Ok(Matrix { quant, n, k, storage: Storage::Rows(bytes) })
    }

    /// Weight format.
    pub fn quant(&self) -> Quant {
        self.quant
    }

    /// Outputs: rows of the matrix.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs: weights of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes that a pass over the weights reads.
    pub fn bytes(&self) -> usize {
        match &self.storage {
            Storage::Rows(bytes) => (**bytes).as_ref().len(),
            Storage::Panels(panels) => panels.len(),
        }
    }

    /// Reads every stored byte once and mixes them: the roofline that a product with one row is compared with.
    pub fn read_all(&self) -> u64 {
        peak::read(match &self.storage {
            Storage::Rows(bytes) => (**bytes).as_ref(),
            Storage::Panels(panels) => panels,
        })
    }

    /// Bytes that [`Matrix::repack`] would allocate.
    pub fn panel_bytes(&self) -> usize {
        Matrix::panel_bytes_of(self.quant, self.n, self.k)
    }

    /// As [`Matrix::panel_bytes`], of a matrix that is not loaded.
    pub fn panel_bytes_of(quant: Quant, n: usize, k: usize) -> usize {
        let layout = quant.panel().layout();
        n.div_ceil(LANES) * k.div_ceil(layout.step) * layout.panel_bytes
    }

    /// Whether the weights are panels.
    pub fn is_repacked(&self) -> bool {
        matches!(self.storage, Storage::Panels(_))
    }

    /// Copies the weights into panels, which kernels read at full speed from one row on, and lets go of the file
    /// bytes. Results keep every bit. Panels are in huge pages where the system gives them. They are as large as the
    /// file bytes, but for formats without a kernel of their own (NVFP4, MXFP4, Q1_0, Q2_0, TQ*, IQ1*, IQ2*, IQ3*):
    /// these become int8 codes with their scales, 8.6 to 10 bits a weight.
    pub fn repack(&mut self) {
        Matrix::repack_all(&mut [self]);
    }

    /// As [`Matrix::repack`] for several matrices in one allocation, so that small ones are in huge pages too. The
    /// memory is returned when the last of them is dropped.
    pub fn repack_all(matrices: &mut [&mut Matrix]) {
        let total = matrices.iter().filter(|m| !m.is_repacked()).map(|m| m.panel_bytes()).sum();
        let mut memory = AlignedBytes::zeroed(total);
        let mut rest = &mut memory[..];
        let mut padded = Vec::new();
        for m in matrices.iter() {
            let Storage::Rows(bytes) = &m.storage else { continue };
            let panels = rest.split_off_mut(..m.panel_bytes()).expect("the sum of the matrices");
            for (group, panel) in panels.chunks_exact_mut(m.group_bytes()).enumerate() {
                let isa = Isa::best();
                let (src, stride) = m.group_rows(isa, (**bytes).as_ref(), group, &mut padded);
                pack(isa, m.quant.panel(), src, stride, panel);
            }
        }
        let memory = Arc::new(memory);
        let mut start = 0;
        for m in matrices.iter_mut().filter(|m| !m.is_repacked()) {
            let range = start..start + m.panel_bytes();
            start = range.end;
            m.storage = Storage::Panels(Panels { memory: Arc::clone(&memory), range });
        }
    }

    /// Expands row `i`: embedding lookup. What is in panels is gathered in `bytes`, [`Self::row_bytes`] long.
    ///
    /// # Panics
    /// If `i >= n` or `dst` is not `k` long.
    pub fn dequantize_row(&self, i: usize, bytes: &mut [u8], dst: &mut [f32]) {
        assert_eq!(dst.len(), self.k, "a row of {}", self.k);
        assert!(i < self.n, "row {i} of {}", self.n);
        let row = match &self.storage {
            Storage::Rows(bytes) => &(**bytes).as_ref()[i * self.row_bytes()..][..self.row_bytes()],
            Storage::Panels(_) => {
                self.copy_row(i, bytes);
                &*bytes
            }
        };
        self.stored().dequantize(row, dst);
    }

    /// The format of [`Matrix::copy_row`]: that of the file, or what repacking made of it.
    pub(crate) fn stored(&self) -> Quant {
        match &self.storage {
            Storage::Rows(_) => self.quant,
            Storage::Panels(_) => self.quant.panel(),
        }
    }

    /// Copies the bytes of row `i`, whichever way they are stored.
    ///
    /// # Panics
    /// If `i >= n` or `row` has another length than a row.
    pub(crate) fn copy_row(&self, i: usize, row: &mut [u8]) {
        assert!(i < self.n, "row {i} of {}", self.n);
        assert_eq!(row.len(), self.row_bytes());
        match &self.storage {
            Storage::Rows(bytes) => row.copy_from_slice(&(**bytes).as_ref()[i * row.len()..][..row.len()]),
            Storage::Panels(panels) => {
                self.layout().unpack_row(self.group_panels(panels, i / LANES), i % LANES, row);
            }
        }
    }

    /// Bytes of a row as it is stored.
    pub fn row_bytes(&self) -> usize {
        self.stored().row_bytes(self.k)
    }

    /// How its panels are laid out.
    pub(crate) fn layout(&self) -> &'static Layout {
        self.quant.panel().layout()
    }

    /// Steps of K, the last perhaps padded.
    pub(crate) fn steps(&self) -> usize {
        self.k.div_ceil(self.layout().step)
    }

    /// Groups of 16 rows, the last perhaps padded.
    pub(crate) fn groups(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    /// Bytes of a group in panels.
    pub(crate) fn group_bytes(&self) -> usize {
        self.steps() * self.layout().panel_bytes
    }

    /// The panels of one group.
    pub(crate) fn group_panels<'a>(&self, panels: &'a [u8], group: usize) -> &'a [u8] {
        &panels[group * self.group_bytes()..][..self.group_bytes()]
    }

    /// The file rows of a group: 16, or fewer in the last one.
    pub(crate) fn group_file_rows<'a>(&self, rows: &'a [u8], group: usize) -> &'a [u8] {
        let first = group * LANES;
        let count = LANES.min(self.n - first);
        &rows[first * self.row_bytes()..][..count * self.row_bytes()]
    }

    /// Sixteen whole rows of steps for `pack`, and their stride: straight from `rows` where the format has panels of
    /// its own, the group is full and K a multiple of the step; else a copy in `padded`, expanded and zero-padded.
    pub(crate) fn group_rows<'a>(
        &self,
        isa: Isa,
        rows: &'a [u8],
        group: usize,
        padded: &'a mut Vec<u8>,
    ) -> (&'a [u8], usize) {
        let (row_bytes, panel) = (self.quant.row_bytes(self.k), self.quant.panel());
        let stride = self.steps() * self.layout().file_bytes;
        let rows = self.group_file_rows(rows, group);
        if panel == self.quant && rows.len() == LANES * stride {
            return (rows, stride);
        }
        padded.clear();
        padded.resize(LANES * stride, 0);
        for (row, dst) in rows.chunks_exact(row_bytes).zip(padded.chunks_exact_mut(stride)) {
            if panel == self.quant {
                dst[..row_bytes].copy_from_slice(row);
            } else {
                expand(isa, self.quant, row, &mut dst[..panel.row_bytes(self.k)]);
            }
        }
        (padded, stride)
    }
}

#[cfg(test)]
#[path = "matrix_tests.rs"]
mod tests;
