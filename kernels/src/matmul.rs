//! `dst[r][n] = sum_k x[r][k] * w[n][k]` for rows of a batch and the weights of one or several linear layers.
//!
//! The driver: hands groups of 16 outputs to workers, runs balanced tiles of at most 8 activation rows over each, and
//! feeds kernels with panels, made at load time or on the way. What a kernel computes is fixed by [`crate::quant`];
//! nothing here can change a bit of it.

use smallvec::SmallVec;

use crate::cpu::detect::Isa;
use crate::cpu::groups::{Piece, for_each_piece};
use crate::cpu::matmul::{Group, Weights, dequantize, kernel, pack};
use crate::cpu::pages::as_bytes;
use crate::cpu::pool::Pool;
use crate::input::{Acts, Form, Input, InputScratch, TILE_ROWS, WorkerScratch, act_bytes};
use crate::matrix::{Matrix, Storage};
use crate::panel::LANES;
use crate::quant::{Activation, Family, Quant, step_16, step_32, step_256, step_float};

/// Matrices that one call multiplies an input with without an allocation.
pub const OUTPUTS: usize = 8;

/// Tiles that are multiplied with one group before the next group comes.
const BLOCK_TILES: usize = 8;

/// Weights that one worker takes at a time. Small enough to share out evenly, large enough to stream.
const PIECE_BYTES: usize = 96 << 10;

/// Weights below which waking other workers costs more than it saves.
const SERIAL_BYTES: usize = 64 << 10;

/// Multiplies the rows of `input` by every matrix: `dst[r][n] = sum_k x[r][k] * w[n][k]`, `dst: [rows][n]`.
/// Matrices that share an input are cheaper in one call: one hand-off to the workers, one quantisation.
///
/// Bits depend on the row, the weights and `mode` only: not on `isa`, the pool, the other rows or the storage.
///
/// # Panics
/// If a matrix has another `k` than the input, a destination is not `rows * n` long, or `isa` is not of this machine.
pub fn matmul(pool: &Pool, isa: Isa, mode: Activation, input: &mut Input, outputs: &mut [(&Matrix, &mut [f32])]) {
    assert!(isa <= Isa::best(), "{isa:?} kernels on a machine that has {:?}", Isa::best());
    let mut weight_bytes = 0;
    let mut groups = 0;
    for (w, dst) in outputs.iter() {
        assert_eq!(w.k(), input.k(), "inputs of {w:?}");
        assert_eq!(dst.len(), input.rows() * w.n(), "outputs of {w:?}");
        weight_bytes += w.bytes();
        groups += w.groups();
        input.prepare(isa, form(w.quant(), mode));
    }
    if input.rows() == 0 || groups == 0 {
        return;
    }
    input.prepare_workers(pool.threads());
    let input = &*input;
    let matrices: SmallVec<[&Matrix; OUTPUTS]> = outputs.iter().map(|(w, _)| *w).collect();
    let destinations = outputs.iter_mut().map(|(w, dst)| (w.n(), &mut **dst)).collect();
    let grain = if weight_bytes < SERIAL_BYTES { groups } else { (PIECE_BYTES * groups / weight_bytes).max(1) };
    for_each_piece(pool, destinations, input.rows(), grain, |worker, piece| {
        let w = matrices[piece.output];
        let acts = input.acts(form(w.quant(), mode));
        multiply(isa, mode, w, acts, piece, &mut input.workers()[worker].lock());
    });
}

/// A product as far as its scratch memory goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Product {
    /// Format of the matrix.
    pub quant: Quant,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Most rows of the input.
    pub rows: usize,
    /// The matrix is in panels.
    pub repacked: bool,
}

/// Bytes of an [`crate::InputScratch`] after all of these products on `threads` workers: for every form of activations
/// the largest input, and per worker the largest group of weights on its way into panels.
pub fn scratch_bytes(mode: Activation, threads: usize, products: &[Product]) -> usize {
    let most = |of: &dyn Fn(&Product) -> usize| products.iter().map(of).max().unwrap_or(0);
    let inputs = [Form::Float, Form::Int32, Form::Int256]
        .map(|of| most(&|p| if form(p.quant, mode) == of { act_bytes(of, p.rows, p.k) } else { 0 }));
    let worker: usize = (0..3).map(|i| most(&|p| worker_bytes(mode, p)[i])).sum();
    inputs.iter().sum::<usize>() + threads * worker
}

impl InputScratch {
    /// Room for all of these products on `threads` workers: see [`scratch_bytes`].
    pub fn with_room(mode: Activation, threads: usize, products: &[Product]) -> Self {
        let mut scratch = Self::new();
        for product in products {
            scratch.reserve(form(product.quant, mode), product.rows, product.k);
        }
        let most = |i: usize| products.iter().map(|p| worker_bytes(mode, p)[i]).max().unwrap_or(0);
        scratch.reserve_workers(threads, [most(0), most(1), most(2)]);
        scratch
    }
}

/// Bytes of [`WorkerScratch`]: panels, bytes and floats that kernels of an instruction set want for one matrix. The
/// specification, which tests run, wants less.
fn worker_bytes(mode: Activation, product: &Product) -> [usize; 3] {
    let &Product { quant, n, k, repacked, .. } = product;
    let stored = quant.panel();
    let layout = stored.layout();
    let stride = k.div_ceil(layout.step) * layout.file_bytes;
    if expands(mode, quant) {
        let padded = if repacked { LANES * stride } else { 0 };
        let floats = LANES * expanded_width(k) * size_of::<f32>();
        return [Matrix::panel_bytes_of(Quant::F32, LANES, k), padded, floats];
    }
    if repacked {
        return [0; 3];
    }
    let whole = stored == quant && n.is_multiple_of(LANES) && k.is_multiple_of(layout.step);
    [Matrix::panel_bytes_of(quant, LANES, k), if whole { 0 } else { LANES * stride }, 0]
}

/// Whether weights of a format are made floats on the way.
fn expands(mode: Activation, quant: Quant) -> bool {
    mode == Activation::Exact && quant.family() != Family::Float
}

/// Floats of a row that [`expand_group`] makes.
fn expanded_width(k: usize) -> usize {
    k.next_multiple_of(Quant::F32.layout().step)
}

/// The form of activations that a format is multiplied with.
fn form(quant: Quant, mode: Activation) -> Form {
    match (mode, quant.family()) {
        (Activation::Exact, _) | (_, Family::Float) => Form::Float,
        (_, Family::Block16 | Family::Block32 { .. }) => Form::Int32,
        (_, Family::Block256 { .. }) => Form::Int256,
    }
}

/// One piece on kernels where the instruction set has them: group by group, tile by tile.
fn multiply(isa: Isa, mode: Activation, w: &Matrix, acts: &Acts, mut piece: Piece, scratch: &mut WorkerScratch) {
    let expand = expands(mode, w.quant());
    let quant = if expand { Quant::F32 } else { w.quant().panel() };
    if kernel(isa, quant).is_none() {
        return multiply_scalar(mode, w, acts, piece, scratch);
    }
    let form = form(w.quant(), mode);
    let panel_bytes = acts.steps * quant.layout().panel_bytes;
    let mut out = [[0.0; LANES]; TILE_ROWS];
    // Blocks of rows outside, so that their activations stay in L2 while the groups pass. Expanding costs as much as
    // multiplying a block: there all rows are one.
    let block = if expand || w.stored() != quant { acts.tiles() } else { BLOCK_TILES };
    for first in (0..acts.tiles()).step_by(block) {
        for group in piece.groups.clone() {
            let WorkerScratch { panels, bytes: padded, floats } = scratch;
            let weights = match &w.storage {
                _ if expand => {
                    let panels = panels.at_least(panel_bytes);
                    expand_group(isa, w, group, padded, floats, panels);
                    Weights::Panels(panels)
                }
                Storage::Panels(panels) => Weights::Panels(w.group_panels(panels, group)),
                Storage::Rows(bytes) => {
                    let (rows, stride) = w.group_rows(isa, (**bytes).as_ref(), group, padded);
                    Weights::Rows { rows, stride, panels: panels.at_least(panel_bytes) }
                }
            };
            let mut weights = Group::new(weights);
            for t in first..acts.tiles().min(first + block) {
                weights.multiply(isa, quant, form, acts, t, &mut out);
                for (row, out) in acts.tile(t).zip(&out) {
                    piece.write(row, group, out);
                }
            }
        }
    }
}

/// The weights of one group as float panels, for exact activations.
fn expand_group(isa: Isa, w: &Matrix, group: usize, scratch: &mut Vec<u8>, floats: &mut Vec<f32>, panels: &mut [u8]) {
    let width = expanded_width(w.k());
    floats.clear();
    floats.resize(LANES * width, 0.0);
    let (rows, stride) = match &w.storage {
        Storage::Rows(bytes) => (w.group_file_rows((**bytes).as_ref(), group), w.row_bytes()),
        Storage::Panels(panels) => {
            let stride = w.steps() * w.layout().file_bytes;
            scratch.resize(LANES * stride, 0);
            w.layout().unpack_group(w.group_panels(panels, group), scratch, stride);
            (&scratch[..LANES * stride], stride)
        }
    };
    for (row, floats) in rows.chunks_exact(stride).zip(floats.chunks_exact_mut(width)) {
        dequantize(isa, w.stored(), &row[..w.row_bytes()], &mut floats[..w.k()]);
    }
    pack(isa, Quant::F32, as_bytes(floats), width * size_of::<f32>(), panels);
}

/// The specification, run over a piece: each weight row is decoded once and multiplied by all activation rows.
fn multiply_scalar(mode: Activation, w: &Matrix, acts: &Acts, mut piece: Piece, scratch: &mut WorkerScratch) {
    let quant = w.stored();
    let tiles: Vec<_> = (0..acts.tiles()).flat_map(|t| acts.tile(t).map(move |_| t)).collect();
    let cell = |row: usize, step: usize| acts.cell(&acts.tile(tiles[row]), row, step);
    let mut row = vec![0; w.row_bytes()];
    let mut out = vec![[0.0; LANES]; acts.rows];
    let mut chains = vec![[0.0; 2]; acts.rows];
    for group in piece.groups.clone() {
        out.fill([0.0; LANES]);
        for lane in 0..LANES.min(w.n() - group * LANES) {
            w.copy_row(group * LANES + lane, &mut row);
            match (mode, quant.family()) {
                (Activation::Integer, Family::Block16) => {
                    for (b, block) in quant.blocks_16(&row).enumerate() {
                        for (r, out) in out.iter_mut().enumerate() {
                            let at = 2 * cell(r, b / 2) + b % 2;
                            let x = &acts.codes[32 * at..][..32];
                            out[lane] = step_16(out[lane], &block, acts.scale[at], x);
                        }
                    }
                }
                (Activation::Integer, Family::Block32 { min }) => {
                    for (b, block) in quant.blocks_32(&row).enumerate() {
                        for (r, out) in out.iter_mut().enumerate() {
                            let at = 2 * cell(r, b / 2) + b % 2;
                            let x = &acts.codes[32 * at..][..32];
                            out[lane] = step_32(out[lane], &block, min, acts.scale[at], acts.scaled_sum[at], x);
                        }
                    }
                }
                (Activation::Integer, Family::Block256 { min }) => {
                    for (b, block) in quant.blocks_256(&row).enumerate() {
                        for (r, out) in out.iter_mut().enumerate() {
                            let at = cell(r, b);
                            let x = &acts.codes[256 * at..][..256];
                            out[lane] = step_256(out[lane], &block, min, acts.scale[at], x);
                        }
                    }
                }
                (Activation::Exact, _) | (_, Family::Float) => {
                    scratch.floats.resize(w.k(), 0.0);
                    quant.dequantize(&row, &mut scratch.floats);
                    chains.fill([0.0; 2]);
                    for (r, chains) in chains.iter_mut().enumerate() {
                        for (b, weights) in scratch.floats.chunks(32).enumerate() {
                            let x = &acts.floats[32 * cell(r, b)..][..weights.len()];
                            *chains = step_float(*chains, weights, x);
                        }
                        out[r][lane] = chains[0] + chains[1];
                    }
                }
            }
        }
        for (r, out) in out.iter_mut().enumerate() {
            for lane in out.iter_mut() {
                *lane += 0.0;
            }
            piece.write(r, group, out);
        }
    }
}

#[cfg(test)]
#[path = "matmul_tests.rs"]
mod tests;
