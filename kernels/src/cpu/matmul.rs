//! The border between the safe matmul driver and the kernels of an instruction set.
//!
//! A kernel knows how to turn one step of 16 file rows into a panel and how to multiply panels with a tile of 1 to 8
//! activation rows. Everything it may assume is asserted here, on slices.
#![expect(unsafe_code, reason = "calls of instruction-set kernels, which work on pointers")]

use super::detect::Isa;
use crate::input::{Acts, Form, Plain, TILE_ROWS};
use crate::panel::{LANES, Layout};
use crate::quant::Quant;

/// Results of a tile: row r, lane n.
pub(crate) type TileOut = [[f32; LANES]; TILE_ROWS];

/// Packs one step of 16 rows, `stride` bytes apart.
///
/// # Safety
/// The instruction set is there; a step of each row is readable at `rows + n * stride`; `panel` is 64-byte aligned and
/// a panel step is writable.
pub(crate) type Pack = unsafe fn(rows: *const u8, stride: usize, panel: *mut u8);

/// Multiplies one group of 16 outputs with a tile of rows.
///
/// # Safety
/// The instruction set is there, and the arguments are as [`TileArgs`] says.
pub(crate) type Tile = unsafe fn(&TileArgs, &mut TileOut);

/// One format on one instruction set.
pub(crate) struct Kernel {
    pub pack: Pack,
    /// By rows, minus 1.
    pub tiles: [Tile; TILE_ROWS],
    /// Rows from which a software prefetch of the weights helps; below, hardware alone is faster.
    pub prefetch_rows: usize,
}

/// What a tile works on. Activation pointers are at (first row, step 0) of their `[step][row][..]` array, null where
/// the form has no such array; `act_rows` is the number of rows of a step there.
pub(crate) struct TileArgs {
    pub steps: usize,
    /// 64-byte aligned panels of the group. Written first, step by step, if `rows` is not null.
    pub panels: *mut u8,
    /// Sixteen file rows `stride` bytes apart, or null.
    pub rows: *const u8,
    pub stride: usize,
    /// Touch the weights that come next.
    pub prefetch: bool,
    pub act_rows: usize,
    pub floats: *const f32,
    pub codes: *const i8,
    pub scale: *const f32,
    pub scaled_sum: *const f32,
    pub correction: [*const i32; 3],
    pub sums_32: *const i16,
    pub sums_16: *const i16,
}

/// Sixteen outputs: a group of weight rows on its way through the tiles.
pub(crate) struct Group<'a> {
    weights: Weights<'a>,
    /// A tile has been over it: packed, and in the cache.
    seen: bool,
}

/// Where the weights of a group come from.
pub(crate) enum Weights<'a> {
    /// Panels.
    Panels(&'a [u8]),
    /// File rows, `stride` bytes apart, to be packed into `panels` by the first tile that sees them.
    Rows { rows: &'a [u8], stride: usize, panels: &'a mut [u8] },
}

/// The kernel of a format, if the instruction set has one.
pub(crate) fn kernel(isa: Isa, quant: Quant) -> Option<&'static Kernel> {
    match isa {
        Isa::Scalar => None,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Some(super::avx2::matmul::kernel(quant)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Some(super::avx512::matmul::kernel(quant).unwrap_or_else(|| super::avx2::matmul::kernel(quant))),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => unreachable!("detected x86 on another machine"),
    }
}

/// Packs whole steps of 16 rows, `stride` bytes apart, into the panels of one group.
///
/// # Panics
/// If a slice is too short, `panels` is not aligned to 64 bytes, or `isa` is not of this machine.
pub(crate) fn pack(isa: Isa, quant: Quant, rows: &[u8], stride: usize, panels: &mut [u8]) {
    let layout = quant.layout();
    let steps = panels.len() / layout.panel_bytes;
    check_pack(isa, layout, steps, rows, stride, panels);
    for (step, panel) in panels.chunks_exact_mut(layout.panel_bytes).enumerate() {
        let rows = &rows[step * layout.file_bytes..];
        match kernel(isa, quant) {
            // SAFETY: `check_pack`.
            Some(kernel) => unsafe { (kernel.pack)(rows.as_ptr(), stride, panel.as_mut_ptr()) },
            None => layout.pack_step(rows, stride, panel),
        }
    }
}

fn check_pack(isa: Isa, layout: &Layout, steps: usize, rows: &[u8], stride: usize, panels: &[u8]) {
    check_panels(isa, layout, steps, panels);
    assert!(stride >= steps * layout.file_bytes);
    assert!(rows.len() >= (LANES - 1) * stride + steps * layout.file_bytes);
}

fn check_panels(isa: Isa, layout: &Layout, steps: usize, panels: &[u8]) {
    assert!(isa <= Isa::best());
    assert_eq!(panels.len(), steps * layout.panel_bytes);
    assert!(panels.as_ptr().addr().is_multiple_of(64));
}

impl<'a> Group<'a> {
    pub(crate) fn new(weights: Weights<'a>) -> Group<'a> {
        Group { weights, seen: false }
    }

    /// Multiplies the group with the activation rows of a tile; `out[r]` is row r of the tile.
    ///
    /// # Panics
    /// If weights and activations do not fit each other or the kernel, or `isa` is not of this machine.
    pub(crate) fn multiply(&mut self, isa: Isa, quant: Quant, form: Form, acts: &Acts, t: usize, out: &mut TileOut) {
        let kernel = kernel(isa, quant).expect("an instruction set with kernels");
        let layout = quant.layout();
        assert_eq!(layout.step, form.step());
        assert!(t < acts.tiles());
        let (steps, cells, tile) = (acts.steps, acts.rows * acts.steps, acts.tile(t));
        let (panels, rows, stride) = match &mut self.weights {
            Weights::Panels(panels) => {
                check_panels(isa, layout, steps, panels);
                // Never written: `rows` is null.
                (panels.as_ptr().cast_mut(), std::ptr::null(), 0)
            }
            Weights::Rows { rows, stride, panels } => {
                check_pack(isa, layout, steps, rows, *stride, panels);
                (panels.as_mut_ptr(), if self.seen { std::ptr::null() } else { rows.as_ptr() }, *stride)
            }
        };
        let at = acts.cell(&tile, tile.start, 0);
        let args = TileArgs {
            steps,
            panels,
            rows,
            stride,
            prefetch: !self.seen && (!rows.is_null() || tile.len() >= kernel.prefetch_rows),
            act_rows: tile.len(),
            floats: pointer(&acts.floats, at, cells, 32, form == Form::Float),
            codes: pointer(&acts.codes, at, cells, form.step(), form != Form::Float),
            scale: pointer(&acts.scale, at, cells, form.scales(), form != Form::Float),
            scaled_sum: pointer(&acts.scaled_sum, at, cells, 2, form == Form::Int32),
            correction: std::array::from_fn(|i| pointer(&acts.correction[i], at, cells, 2, form == Form::Int32)),
            sums_32: pointer(&acts.sums_32, at, cells, 8, form == Form::Int256),
            sums_16: pointer(&acts.sums_16, at, cells, 16, form == Form::Int256),
        };
        self.seen = true;
        // SAFETY: the instruction set was detected; weights and activations have the sizes that `args` says: `pointer`
        // checked that every cell of the form is there, and the tile's rows are the `tile.len()` ones of each step.
        unsafe { (kernel.tiles[tile.len() - 1])(&args, out) };
    }
}

/// Quantises the rows of `x` into `acts`, whose arrays have their size.
pub(crate) fn fill(isa: Isa, acts: &mut Acts, form: Form, x: &[f32], k: usize) {
    assert!(isa <= Isa::best());
    match isa {
        // SAFETY: the instruction set was detected.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => unsafe { super::avx2::matmul::fill(acts, form, x, k) },
        _ => acts.fill_cells(Plain, form, x, k),
    }
}

/// Expands the blocks of one row.
pub(crate) fn dequantize(isa: Isa, quant: Quant, bytes: &[u8], dst: &mut [f32]) {
    assert!(isa <= Isa::best());
    match isa {
        // SAFETY: the instruction set was detected.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => unsafe { super::avx2::matmul::dequantize(quant, bytes, dst) },
        _ => quant.dequantize(bytes, dst),
    }
}

/// Expands the blocks of one row to the wide format that [`Quant::panel`] says.
pub(crate) fn expand(isa: Isa, quant: Quant, row: &[u8], to: &mut [u8]) {
    assert!(isa <= Isa::best());
    match isa {
        // SAFETY: the instruction set was detected.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => unsafe { super::avx2::matmul::expand(quant, row, to) },
        _ => quant.expand_blocks(row, to),
    }
}

/// `array` at cell `at`, `width` elements a cell, all `cells` of it there; null for arrays that a form does not have.
fn pointer<T>(array: &[T], at: usize, cells: usize, width: usize, used: bool) -> *const T {
    if !used {
        return std::ptr::null();
    }
    assert_eq!(array.len(), cells * width);
    array[at * width..].as_ptr()
}
