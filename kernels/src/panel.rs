//! Panels: 16 weight rows side by side, K running through memory.
//!
//! A panel step is a permutation of the bytes that 16 rows have for one step of K (and never an arithmetic one, so
//! it can be undone): the row's bytes are seen as a list of 2- or 4-byte elements, and each element becomes 16 lanes,
//! lane n = row n. Elements come in the order in which a kernel uses them, because hardware prefetching gives up on
//! streams that jump; a step is a whole number of 64-byte lines.

use crate::input::Form;
use crate::quant::Quant;

/// Rows of a panel.
pub(crate) const LANES: usize = 16;

/// A run of elements: `count` times `width` bytes from byte `at` of a row's step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub at: usize,
    pub width: usize,
    pub count: usize,
}

/// How one format is laid out in panels.
pub(crate) struct Layout {
    /// Weights of a row in a step: the step of the form of activations it is multiplied with.
    pub step: usize,
    /// Bytes of a row in a step.
    pub file_bytes: usize,
    /// Bytes of 16 rows in a step.
    pub panel_bytes: usize,
    pub fields: &'static [Field],
}

const fn field(at: usize, width: usize, count: usize) -> Field {
    Field { at, width, count }
}

const fn layout(form: Form, file_bytes: usize, fields: &'static [Field]) -> Layout {
    let (mut used, mut panel, mut i) = (0, 0, 0);
    while i < fields.len() {
        let f = fields[i];
        assert!(f.width == 2 || f.width == 4);
        assert!(f.at + f.width * f.count <= file_bytes);
        used += f.width * f.count;
        panel += LANES * f.width * f.count;
        // A lone half line is padded: four-byte elements are whole lines.
        if panel % 64 != 0 && (i + 1 == fields.len() || fields[i + 1].width == 4) {
            panel += 32;
        }
        i += 1;
    }
    assert!(used == file_bytes && panel % 64 == 0);
    Layout { step: form.step(), file_bytes, panel_bytes: panel, fields }
}

pub(crate) const F32: Layout = layout(Form::Float, 128, &[field(0, 4, 32)]);
pub(crate) const F16: Layout = layout(Form::Float, 64, &[field(0, 2, 32)]);
pub(crate) const BF16: Layout = layout(Form::Float, 64, &[field(0, 4, 16)]);
pub(crate) const NIBBLES: Layout =
    layout(Form::Int32, 36, &[field(0, 2, 1), field(18, 2, 1), field(2, 4, 4), field(20, 4, 4)]);
pub(crate) const Q4_1: Layout = layout(
    Form::Int32,
    40,
    &[field(0, 2, 1), field(20, 2, 1), field(2, 2, 1), field(22, 2, 1), field(4, 4, 4), field(24, 4, 4)],
);
pub(crate) const Q5_0: Layout =
    layout(Form::Int32, 44, &[field(0, 2, 1), field(22, 2, 1), field(2, 4, 5), field(24, 4, 5)]);
pub(crate) const Q5_1: Layout = layout(
    Form::Int32,
    48,
    &[field(0, 2, 1), field(24, 2, 1), field(2, 2, 1), field(26, 2, 1), field(4, 4, 5), field(28, 4, 5)],
);
pub(crate) const Q8_0: Layout =
    layout(Form::Int32, 68, &[field(0, 2, 1), field(34, 2, 1), field(2, 4, 8), field(36, 4, 8)]);
pub(crate) const Q2_K: Layout = layout(Form::Int256, 84, &[field(80, 4, 1), field(0, 4, 20)]);
pub(crate) const Q3_K: Layout = layout(Form::Int256, 110, &[field(108, 2, 1), field(96, 4, 3), field(0, 4, 24)]);
pub(crate) const Q4_K: Layout = layout(Form::Int256, 144, &[field(0, 4, 36)]);
pub(crate) const Q5_K: Layout = layout(Form::Int256, 176, &[field(0, 4, 44)]);
pub(crate) const Q6_K: Layout = layout(
    Form::Int256,
    210,
    &[field(208, 2, 1), field(192, 4, 4), field(128, 4, 8), field(0, 4, 16), field(160, 4, 8), field(64, 4, 16)],
);
pub(crate) const IQ4_XS: Layout = layout(Form::Int256, 136, &[field(0, 4, 34)]);
pub(crate) const WIDE_16: Layout =
    layout(Form::Int32, 80, &[field(0, 4, 2), field(40, 4, 2), field(8, 4, 8), field(48, 4, 8)]);
pub(crate) const WIDE_32: Layout =
    layout(Form::Int32, 72, &[field(0, 4, 1), field(36, 4, 1), field(4, 4, 8), field(40, 4, 8)]);
pub(crate) const WIDE_256: Layout = layout(Form::Int256, 276, &[field(0, 4, 69)]);

impl Quant {
    /// The layout of panels of this format, which is one that [`Quant::panel`] gives.
    pub(crate) fn layout(self) -> &'static Layout {
        match self {
            Quant::F32 => &F32,
            Quant::F16 => &F16,
            Quant::BF16 => &BF16,
            Quant::Q4_0 | Quant::IQ4_NL => &NIBBLES,
            Quant::Q4_1 => &Q4_1,
            Quant::Q5_0 => &Q5_0,
            Quant::Q5_1 => &Q5_1,
            Quant::Q8_0 => &Q8_0,
            Quant::Q2_K => &Q2_K,
            Quant::Q3_K => &Q3_K,
            Quant::Q4_K => &Q4_K,
            Quant::Q5_K => &Q5_K,
            Quant::Q6_K => &Q6_K,
            Quant::IQ4_XS => &IQ4_XS,
            Quant::Wide16 => &WIDE_16,
            Quant::Wide32 => &WIDE_32,
            Quant::Wide256 => &WIDE_256,
            _ => unreachable!("{} has panels of {}", self.name(), self.panel().name()),
        }
    }
}

impl Layout {
    /// (offset in the panel step, field) of every run, in panel order.
    fn runs(&self) -> impl Iterator<Item = (usize, Field)> {
        let mut at = 0usize;
        self.fields.iter().map(move |&f| {
            if f.width == 4 {
                at = at.next_multiple_of(64);
            }
            let start = at;
            at += LANES * f.width * f.count;
            (start, f)
        })
    }

    /// One step of 16 rows to its panel: row n is `rows[n * stride..][..file_bytes]`. The specification of `pack` in
    /// the kernels, which give the same bytes.
    pub(crate) fn pack_step(&self, rows: &[u8], stride: usize, panel: &mut [u8]) {
        panel[..self.panel_bytes].fill(0);
        for (start, f) in self.runs() {
            for i in 0..f.count {
                for lane in 0..LANES {
                    let from = lane * stride + f.at + i * f.width;
                    let to = start + (i * LANES + lane) * f.width;
                    panel[to..to + f.width].copy_from_slice(&rows[from..from + f.width]);
                }
            }
        }
    }

    /// The file bytes of one lane of a group's panels, one step after the other.
    pub(crate) fn unpack_row(&self, panels: &[u8], lane: usize, row: &mut [u8]) {
        for (panel, row) in panels.chunks_exact(self.panel_bytes).zip(row.chunks_mut(self.file_bytes)) {
            for (start, f) in self.runs() {
                for i in 0..f.count {
                    let from = start + (i * LANES + lane) * f.width;
                    let to = f.at + i * f.width;
                    // The last step of a row may be cut short by K, even inside an element; the rest is padding.
                    let to = row.len().min(to)..row.len().min(to + f.width);
                    row[to.clone()].copy_from_slice(&panel[from..from + to.len()]);
                }
            }
        }
    }

    /// All lanes of a group's panels as whole steps of 16 file rows, `stride` bytes apart: undoes `pack_step`.
    pub(crate) fn unpack_group(&self, panels: &[u8], rows: &mut [u8], stride: usize) {
        for (step, panel) in panels.chunks_exact(self.panel_bytes).enumerate() {
            let rows = &mut rows[step * self.file_bytes..];
            for (start, f) in self.runs() {
                for i in 0..f.count {
                    let lanes = &panel[start + i * LANES * f.width..];
                    let to = f.at + i * f.width;
                    if f.width == 4 {
                        unpack_lanes::<4>(lanes, &mut rows[to..], stride);
                    } else {
                        unpack_lanes::<2>(lanes, &mut rows[to..], stride);
                    }
                }
            }
        }
    }
}

/// One element of each of 16 rows.
fn unpack_lanes<const WIDTH: usize>(lanes: &[u8], rows: &mut [u8], stride: usize) {
    for (lane, element) in lanes.as_chunks::<WIDTH>().0[..LANES].iter().enumerate() {
        rows[lane * stride..][..WIDTH].copy_from_slice(element);
    }
}

#[cfg(test)]
#[path = "panel_tests.rs"]
mod tests;
