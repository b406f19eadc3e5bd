//! The activations of one matmul call: rows of floats, and their quantised forms, made once when first needed.
//!
//! **Per 32** (partner of the 32-block formats): with `max = max |x|`, code = round-to-even(`x * (127 / max)`), scale
//! `dx` = `max / 127`, and for formats with a minimum the scaled sum `sx` = `max / 127` times the sum of the codes; both
//! are rounded through f16, and kept as they are where f16 would overflow.
//! **Per 256** (partner of the 256-block formats): code = round-to-even(`x * (127 / max)`), scale `1 / (127 / max)`.
//! Source: ggml `quantize_row_q8_0`, `quantize_row_q8_1` (x86) and `quantize_row_q8_K`; the last has both signs turned
//! when the largest element is positive, which no product shows.
//! A block with a value that is not finite has scale NaN and codes 0: its whole row becomes NaN, no other row does.
//!
//! **Layout.** Rows are cut into balanced tiles of at most [`TILE_ROWS`], the rows that a kernel works on together;
//! arrays are `[tile][step][row][..]`, so that a tile reads memory from front to back, at constant offsets in a step.

use std::ops::Range;

use half::f16;
use parking_lot::Mutex;

use crate::cpu::detect::Isa;
use crate::cpu::pages::AlignedBytes;

/// Activation rows of a tile at most: their accumulators and one unpacked block fill the register file.
pub(crate) const TILE_ROWS: usize = 8;

/// The forms activations take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Floats, step 32.
    Float,
    /// Int8 with a scale per 32, step 64.
    Int32,
    /// Int8 with a scale per 256, step 256.
    Int256,
}

impl Form {
    /// Elements of a row in a step.
    pub(crate) const fn step(self) -> usize {
        match self {
            Form::Float => 32,
            Form::Int32 => 64,
            Form::Int256 => 256,
        }
    }

    /// Scales of a row in a step.
    pub(crate) const fn scales(self) -> usize {
        match self {
            Form::Float => 0,
            Form::Int32 => 2,
            Form::Int256 => 1,
        }
    }
}

/// One quantised block of 32 activations.
pub(crate) struct Quantized32 {
    pub scale: f32,
    pub scaled_sum: f32,
    pub sum: i32,
    pub codes: [i8; 32],
}

/// One quantised block of 256 activations.
pub(crate) struct Quantized256 {
    pub scale: f32,
    pub codes: [i8; 256],
    /// Sums of 16 codes.
    pub sums: [i16; 16],
}

/// The quantisers of one instruction set; all give the same bits.
pub(crate) trait Quantize: Copy {
    /// Quantises 32 activations; see the module's text.
    fn block_32(self, x: &[f32; 32]) -> Quantized32;
    /// Quantises 256 activations; see the module's text.
    fn block_256(self, x: &[f32; 256]) -> Quantized256;
}

/// Plain Rust: the specification.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl Quantize for Plain {
    fn block_32(self, x: &[f32; 32]) -> Quantized32 {
        let max = checked(magnitude_bits(x));
        let codes = encode(x, inverse(max));
        let sum: i32 = codes.iter().map(|&c| i32::from(c)).sum();
        let scale = max / 127.0;
        Quantized32 { scale: through_f16(scale), scaled_sum: through_f16(scale * sum as f32), sum, codes }
    }

    fn block_256(self, x: &[f32; 256]) -> Quantized256 {
        let max = checked(magnitude_bits(x));
        let codes = encode(x, inverse(max));
        let sums = std::array::from_fn(|j| codes[16 * j..][..16].iter().map(|&c| i16::from(c)).sum());
        // 1 / inf is the 0 of an all-zero block.
        Quantized256 { scale: 1.0 / (127.0 / max), codes, sums }
    }
}

/// Bits of `max |x|`. Bits of non-negative floats are ordered as integers, infinities and NaN above all others.
fn magnitude_bits(x: &[f32]) -> u32 {
    x.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0)
}

/// The magnitude, or NaN if an element is not finite.
pub(crate) fn checked(bits: u32) -> f32 {
    if bits >= f32::INFINITY.to_bits() { f32::NAN } else { f32::from_bits(bits) }
}

/// Codes a unit; 0 where the block has no usable scale: zero, too small to invert, or not finite.
pub(crate) fn inverse(max: f32) -> f32 {
    let inverse = 127.0 / max;
    if inverse.is_finite() { inverse } else { 0.0 }
}

fn encode<const N: usize>(x: &[f32; N], inverse: f32) -> [i8; N] {
    if inverse == 0.0 { [0; N] } else { x.map(|x| (x * inverse).round_ties_even() as i8) }
}

/// Rounded to f16 precision; unchanged where f16 has only infinity.
pub(crate) fn through_f16(x: f32) -> f32 {
    let half = f16::from_f32(x).to_f32();
    if half.is_infinite() { x } else { half }
}

/// Activations in one form. Arrays that a form does not need stay empty.
#[derive(Default)]
pub(crate) struct Acts {
    pub rows: usize,
    pub steps: usize,
    /// `[tile][step][row][32]`, [`Form::Float`] only.
    pub floats: Vec<f32>,
    /// `[tile][step][row][step len]`.
    pub codes: Vec<i8>,
    /// `[tile][step][row][scales]`.
    pub scale: Vec<f32>,
    /// `[tile][step][row][2]`, [`Form::Int32`] only: the scaled sums of the codes.
    pub scaled_sum: Vec<f32>,
    /// As `scaled_sum`: minus the sum of codes times 8, 16 and 128. A kernel that keeps its codes unsigned by adding
    /// such a bias starts its dot product there.
    pub correction: [Vec<i32>; 3],
    /// `[tile][step][row][8]`, [`Form::Int256`] only: sums of 32 codes, every four in the order 0 2 1 3.
    pub sums_32: Vec<i16>,
    /// `[tile][step][row][16]`: sums of 16 codes, in the same order.
    pub sums_16: Vec<i16>,
}

/// Elements of the arrays of [`Acts`].
struct ActLens {
    floats: usize,
    codes: usize,
    scale: usize,
    /// Of `scaled_sum` and of each correction.
    sums: usize,
    sums_32: usize,
    sums_16: usize,
}

impl ActLens {
    fn new(form: Form, rows: usize, k: usize) -> Self {
        let step = form.step();
        let cells = rows * k.div_ceil(step);
        let scale = cells * form.scales();
        let only = |of: Form, len: usize| if form == of { len } else { 0 };
        Self {
            floats: only(Form::Float, cells * step),
            codes: if form == Form::Float { 0 } else { cells * step },
            scale,
            sums: only(Form::Int32, scale),
            sums_32: only(Form::Int256, cells * 8),
            sums_16: only(Form::Int256, cells * 16),
        }
    }
}

/// Bytes of the activations of `rows` rows of `k` in one form.
pub(crate) fn act_bytes(form: Form, rows: usize, k: usize) -> usize {
    let ActLens { floats, codes, scale, sums, sums_32, sums_16 } = ActLens::new(form, rows, k);
    let four_bytes = floats + scale + sums * (1 + BIASES.len());
    size_of::<f32>() * four_bytes + codes + size_of::<i16>() * (sums_32 + sums_16)
}

/// Biases of `Acts::correction`.
pub(crate) const BIASES: [i32; 3] = [8, 16, 128];

impl Acts {
    /// Number of tiles.
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// The rows of tile `t`. Balanced: 9 rows are 4 + 5, not 8 + 1.
    pub(crate) fn tile(&self, t: usize) -> Range<usize> {
        self.rows * t / self.tiles()..self.rows * (t + 1) / self.tiles()
    }

    /// Index of (`row`, `step`) in every array, in units of that array's row; `tile` is the one that holds the row.
    #[inline(always)]
    pub(crate) fn cell(&self, tile: &Range<usize>, row: usize, step: usize) -> usize {
        tile.start * self.steps + step * tile.len() + row - tile.start
    }

    /// Fills this form from `x`, `[rows][k]`.
    fn fill(&mut self, isa: Isa, form: Form, x: &[f32], rows: usize, k: usize) {
        (self.rows, self.steps) = (rows, k.div_ceil(form.step()));
        let lens = ActLens::new(form, rows, k);
        resize(&mut self.floats, lens.floats);
        resize(&mut self.codes, lens.codes);
        resize(&mut self.scale, lens.scale);
        resize(&mut self.scaled_sum, lens.sums);
        for c in &mut self.correction {
            resize(c, lens.sums);
        }
        resize(&mut self.sums_32, lens.sums_32);
        resize(&mut self.sums_16, lens.sums_16);
        crate::cpu::matmul::fill(isa, self, form, x, k);
    }

    /// The loop of [`Acts::fill`], inlined into a function of the instruction set of `with`.
    #[inline(always)]
    pub(crate) fn fill_cells(&mut self, with: impl Quantize, form: Form, x: &[f32], k: usize) {
        let step = form.step();
        let mut padded = [0.0; 256];
        for t in 0..self.tiles() {
            let tile = self.tile(t);
            for r in tile.clone() {
                for (b, x) in x[r * k..][..k].chunks(step).enumerate() {
                    let at = self.cell(&tile, r, b);
                    if x.len() == step {
                        self.fill_cell(with, form, at, x);
                    } else {
                        padded[..x.len()].copy_from_slice(x);
                        padded[x.len()..step].fill(0.0);
                        self.fill_cell(with, form, at, &padded[..step]);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn fill_cell(&mut self, with: impl Quantize, form: Form, at: usize, x: &[f32]) {
        match form {
            Form::Float => self.floats[32 * at..][..32].copy_from_slice(x),
            Form::Int32 => {
                for (h, x) in x.as_chunks::<32>().0.iter().enumerate() {
                    let q = with.block_32(x);
                    let at = 2 * at + h;
                    self.codes[32 * at..][..32].copy_from_slice(&q.codes);
                    self.scale[at] = q.scale;
                    self.scaled_sum[at] = q.scaled_sum;
                    for (c, bias) in self.correction.iter_mut().zip(BIASES) {
                        c[at] = -bias * q.sum;
                    }
                }
            }
            Form::Int256 => {
                let q = with.block_256(x.as_array().expect("a step of 256"));
                self.codes[256 * at..][..256].copy_from_slice(&q.codes);
                self.scale[at] = q.scale;
                for (j, sum) in q.sums.into_iter().enumerate() {
                    self.sums_16[16 * at + in_pairs(j)] = sum;
                }
                for (j, sums) in q.sums.as_chunks::<2>().0.iter().enumerate() {
                    self.sums_32[8 * at + in_pairs(j)] = sums[0] + sums[1];
                }
            }
        }
    }
}

/// Where sum j goes: every four in the order 0 2 1 3, the order in which kernels unpack bytes to pairs of i16.
#[inline(always)]
fn in_pairs(j: usize) -> usize {
    j / 4 * 4 + [0, 2, 1, 3][j % 4]
}

/// Capacity for `len` elements in all.
fn reserve<T>(v: &mut Vec<T>, len: usize) {
    v.reserve_exact(len.saturating_sub(v.len()));
}

/// Length without clearing: every element is written before it is read.
fn resize<T: Copy + Default>(v: &mut Vec<T>, len: usize) {
    v.resize(len, T::default());
}

/// Memory of one worker; content is never read before it is written.
#[derive(Default)]
pub(crate) struct WorkerScratch {
    /// The group being multiplied as panels, when the matrix is file rows.
    pub panels: AlignedBytes,
    /// Sixteen padded file rows, when the group or K is ragged; or one row on its way to floats.
    pub bytes: Vec<u8>,
    /// Sixteen rows as floats.
    pub floats: Vec<f32>,
}

/// Memory that [`Input`]s and the products that use them reuse from call to call.
#[derive(Default)]
pub struct InputScratch {
    /// One for each worker of the pool, which alone locks it.
    workers: Vec<Mutex<WorkerScratch>>,
    float: Acts,
    int32: Acts,
    int256: Acts,
}

impl InputScratch {
    /// Empty; it grows to the largest input seen.
    pub fn new() -> InputScratch {
        InputScratch::default()
    }

    /// Room for `rows` rows of `k` in one form.
    pub(crate) fn reserve(&mut self, form: Form, rows: usize, k: usize) {
        let acts = match form {
            Form::Float => &mut self.float,
            Form::Int32 => &mut self.int32,
            Form::Int256 => &mut self.int256,
        };
        let lens = ActLens::new(form, rows, k);
        reserve(&mut acts.floats, lens.floats);
        reserve(&mut acts.codes, lens.codes);
        reserve(&mut acts.scale, lens.scale);
        reserve(&mut acts.scaled_sum, lens.sums);
        for c in &mut acts.correction {
            reserve(c, lens.sums);
        }
        reserve(&mut acts.sums_32, lens.sums_32);
        reserve(&mut acts.sums_16, lens.sums_16);
    }

    /// Room for `count` workers: bytes of panels, of rows, and of floats.
    pub(crate) fn reserve_workers(&mut self, count: usize, [panels, bytes, floats]: [usize; 3]) {
        self.workers.resize_with(count, Mutex::default);
        for worker in &mut self.workers {
            let worker = worker.get_mut();
            worker.panels.at_least(panels);
            worker.bytes.reserve_exact(bytes);
            worker.floats.reserve_exact(floats / size_of::<f32>());
        }
    }

    /// Bytes held now.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        let acts = |a: &Acts| {
            let four_bytes = a.floats.capacity() + a.scale.capacity() + a.scaled_sum.capacity();
            let corrections = a.correction.iter().map(Vec::capacity).sum::<usize>();
            4 * (four_bytes + corrections) + a.codes.capacity() + 2 * (a.sums_32.capacity() + a.sums_16.capacity())
        };
        let worker = |w: &Mutex<WorkerScratch>| {
            let w = w.lock();
            w.panels.len() + w.bytes.capacity() + 4 * w.floats.capacity()
        };
        [&self.float, &self.int32, &self.int256].map(acts).iter().sum::<usize>()
            + self.workers.iter().map(worker).sum::<usize>()
    }
}

/// The activations of one or several matmul calls: `[rows][k]` floats, row-major.
pub struct Input<'a> {
    x: &'a [f32],
    rows: usize,
    k: usize,
    scratch: &'a mut InputScratch,
    ready: [bool; 3],
}

impl<'a> Input<'a> {
    /// Borrows `x`. Nothing is computed until a matmul asks for a form.
    ///
    /// # Panics
    /// If `x` is not `rows * k` long, or `k` is 0.
    pub fn new(scratch: &'a mut InputScratch, x: &'a [f32], rows: usize, k: usize) -> Input<'a> {
        assert!(k > 0, "rows of length 0");
        assert_eq!(x.len(), rows * k, "{rows} rows of {k}");
        Input { x, rows, k, scratch, ready: [false; 3] }
    }

    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Makes `form` available to [`Input::acts`], if it is not yet.
    pub(crate) fn prepare(&mut self, isa: Isa, form: Form) {
        if !std::mem::replace(&mut self.ready[form as usize], true) {
            let acts = match form {
                Form::Float => &mut self.scratch.float,
                Form::Int32 => &mut self.scratch.int32,
                Form::Int256 => &mut self.scratch.int256,
            };
            acts.fill(isa, form, self.x, self.rows, self.k);
        }
    }

    /// Makes memory for `count` workers available to [`Input::workers`].
    pub(crate) fn prepare_workers(&mut self, count: usize) {
        if self.scratch.workers.len() < count {
            self.scratch.workers.resize_with(count, Mutex::default);
        }
    }

    /// The memory that was prepared, by worker.
    pub(crate) fn workers(&self) -> &[Mutex<WorkerScratch>] {
        &self.scratch.workers
    }

    /// A form that was prepared.
    pub(crate) fn acts(&self, form: Form) -> &Acts {
        assert!(self.ready[form as usize], "{form:?} was not prepared");
        match form {
            Form::Float => &self.scratch.float,
            Form::Int32 => &self.scratch.int32,
            Form::Int256 => &self.scratch.int256,
        }
    }
}

#[cfg(test)]
#[path = "input_tests.rs"]
mod tests;
