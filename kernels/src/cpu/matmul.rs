//! Kernels.
use crate::quant::Quant;

/// Packs whole steps of 16 rows into the panels of one group; `stride` bytes from row to row.
pub(crate) fn pack(quant: Quant, rows: &[u8], stride: usize, panels: &mut [u8]) {
    let layout = quant.layout();
    for (step, panel) in panels.chunks_exact_mut(layout.panel_bytes).enumerate() {
        layout.pack_step(&rows[step * layout.file_bytes..], stride, panel);
    }
}
