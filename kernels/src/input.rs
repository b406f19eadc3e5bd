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
//! **Layout.** Rows are cut into panels of at most [`PANEL_ROWS`]; inside a panel arrays are step-major
//! (`[panel][step][row][..]`), so a tile of rows has constant offsets in a step and any tiling reads the same bytes.

use half::f16;

/// Rows of an activation panel at most.
pub(crate) const PANEL_ROWS: usize = 32;

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
}

/// `max |x|`, or NaN if an element is not finite.
fn magnitude(x: &[f32]) -> f32 {
    // Bits of non-negative floats are ordered as integers, infinities and NaN above all others.
    let bits = x.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
    if bits >= f32::INFINITY.to_bits() { f32::NAN } else { f32::from_bits(bits) }
}

/// Codes at `inverse` codes a unit; all zero where the block has no usable scale.
fn encode(x: &[f32], inverse: f32, codes: &mut [i8]) {
    for (code, &x) in codes.iter_mut().zip(x) {
        *code = if inverse.is_finite() { (x * inverse).round_ties_even() as i8 } else { 0 };
    }
}

/// Quantises 32 activations; see the module's text.
pub(crate) fn quantize_32(x: &[f32]) -> Quantized32 {
    let max = magnitude(x);
    let mut codes = [0; 32];
    encode(x, 127.0 / max, &mut codes);
    let scale = max / 127.0;
    let sum: i32 = codes.iter().map(|&c| i32::from(c)).sum();
    Quantized32 { scale: through_f16(scale), scaled_sum: through_f16(scale * sum as f32), sum, codes }
}

/// Rounded to f16 precision; unchanged where f16 has only infinity.
fn through_f16(x: f32) -> f32 {
    let half = f16::from_f32(x).to_f32();
    if half.is_infinite() { x } else { half }
}

/// Quantises 256 activations; see the module's text.
pub(crate) fn quantize_256(x: &[f32]) -> Quantized256 {
    let max = magnitude(x);
    let inverse = 127.0 / max;
    let mut codes = [0; 256];
    encode(x, inverse, &mut codes);
    // 1 / inf is the 0 of an all-zero block.
    Quantized256 { scale: 1.0 / inverse, codes }
}

/// Activations in one form. Arrays that a form does not need stay empty.
#[derive(Default)]
pub(crate) struct Acts {
    pub rows: usize,
    pub steps: usize,
    /// `[panel][step][row][32]`, [`Form::Float`] only.
    pub floats: Vec<f32>,
    /// `[panel][step][row][step len]`.
    pub codes: Vec<i8>,
    /// `[panel][step][row][scales]`.
    pub scale: Vec<f32>,
    /// `[panel][step][row][2]`, [`Form::Int32`] only: the scaled sums of the codes.
    pub scaled_sum: Vec<f32>,
    /// As `scaled_sum`: minus the sum of codes times 8, 16 and 128. A kernel that keeps its codes unsigned by adding
    /// such a bias starts its dot product there.
    pub correction: [Vec<i32>; 3],
    /// `[panel][step][row][8]`, [`Form::Int256`] only: sums of 32 codes, every four in the order 0 2 1 3.
    pub sums_32: Vec<i16>,
    /// `[panel][step][row][16]`: sums of 16 codes, in the same order.
    pub sums_16: Vec<i16>,
}

/// Biases of `Acts::correction`.
pub(crate) const BIASES: [i32; 3] = [8, 16, 128];

impl Acts {
    /// Rows of the panel that holds `row`.
    pub(crate) fn panel_rows(&self, row: usize) -> usize {
        PANEL_ROWS.min(self.rows - row / PANEL_ROWS * PANEL_ROWS)
    }

    /// Index of (`row`, `step`) in every array, in units of that array's row.
    pub(crate) fn at(&self, row: usize, step: usize) -> usize {
        row / PANEL_ROWS * PANEL_ROWS * self.steps + step * self.panel_rows(row) + row % PANEL_ROWS
    }

    fn fill(&mut self, form: Form, x: &[f32], rows: usize, k: usize) {
        let step = form.step();
        (self.rows, self.steps) = (rows, k.div_ceil(step));
        let cells = rows * self.steps;
        let scales = cells * form.scales();
        resize(&mut self.floats, if form == Form::Float { cells * step } else { 0 });
        resize(&mut self.codes, if form == Form::Float { 0 } else { cells * step });
        resize(&mut self.scale, scales);
        resize(&mut self.scaled_sum, if form == Form::Int32 { scales } else { 0 });
        for c in &mut self.correction {
            resize(c, if form == Form::Int32 { scales } else { 0 });
        }
        resize(&mut self.sums_32, if form == Form::Int256 { cells * 8 } else { 0 });
        resize(&mut self.sums_16, if form == Form::Int256 { cells * 16 } else { 0 });
        let mut padded = [0.0; 256];
        for (r, x) in x.chunks_exact(k).enumerate() {
            for (b, x) in x.chunks(step).enumerate() {
                let at = self.at(r, b);
                padded[..x.len()].copy_from_slice(x);
                padded[x.len()..step].fill(0.0);
                self.fill_cell(form, at, &padded[..step]);
            }
        }
    }

    fn fill_cell(&mut self, form: Form, at: usize, x: &[f32]) {
        match form {
            Form::Float => self.floats[32 * at..][..32].copy_from_slice(x),
            Form::Int32 => {
                for (h, x) in x.chunks_exact(32).enumerate() {
                    let q = quantize_32(x);
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
                let q = quantize_256(x);
                self.codes[256 * at..][..256].copy_from_slice(&q.codes);
                self.scale[at] = q.scale;
                let sum = |codes: &[i8]| codes.iter().map(|&c| i16::from(c)).sum::<i16>();
                for j in 0..16 {
                    self.sums_16[16 * at + in_pairs(j)] = sum(&q.codes[16 * j..][..16]);
                }
                for j in 0..8 {
                    self.sums_32[8 * at + in_pairs(j)] = sum(&q.codes[32 * j..][..32]);
                }
            }
        }
    }
}

/// Where sum j goes: every four in the order 0 2 1 3, the order in which kernels unpack bytes to pairs of i16.
fn in_pairs(j: usize) -> usize {
    j / 4 * 4 + [0, 2, 1, 3][j % 4]
}

/// Length without clearing: every element is written before it is read.
fn resize<T: Copy + Default>(v: &mut Vec<T>, len: usize) {
    v.resize(len, T::default());
}

/// Memory that [`Input`]s reuse from call to call.
#[derive(Default)]
pub struct InputScratch {
    float: Acts,
    int32: Acts,
    int256: Acts,
}

impl InputScratch {
    /// Empty; it grows to the largest input seen.
    pub fn new() -> InputScratch {
        InputScratch::default()
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
    pub(crate) fn prepare(&mut self, form: Form) {
        if !std::mem::replace(&mut self.ready[form as usize], true) {
            let acts = match form {
                Form::Float => &mut self.scratch.float,
                Form::Int32 => &mut self.scratch.int32,
                Form::Int256 => &mut self.scratch.int256,
            };
            acts.fill(form, self.x, self.rows, self.k);
        }
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
