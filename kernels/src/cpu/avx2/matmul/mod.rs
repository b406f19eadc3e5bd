//! Panel matmul on AVX2. Lane = output, as on AVX-512; a line is two halves of 8 lanes, and a tile runs over all of K
//! for one half, then for the other, so that its accumulators fit the registers.
#![expect(unsafe_code, reason = "vector loads and stores through pointers")]
#![expect(clippy::needless_range_loop, reason = "one index runs through several arrays of rows or registers")]

use std::arch::x86_64::*;

use crate::cpu::matmul::{Kernel, TileArgs, TileOut};
use crate::input::{Acts, Form};
use crate::panel::{LANES, Layout};
use crate::quant::Quant;

/// A function with the instruction set of this folder. Closures do not inherit it: none may hold an intrinsic.
macro_rules! avx2 {
    ($($function:tt)*) => {
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        $($function)*
    };
}

mod block_16;
mod block_256;
mod block_32;
mod float;
mod pack;
mod quantize;

/// Distance of the software prefetch.
const PREFETCH_BYTES: usize = 16384;

/// The inner loop of one format, for one half of the lanes.
trait Step {
    const LAYOUT: Layout;
    /// What is kept of one row between steps.
    type Acc: Copy;
    const ZERO: Self::Acc;

    /// Adds one step to the accumulators of R rows.
    ///
    /// # Safety
    /// The panel step at `w` is readable; `half` is 0 or 1; `a` is at the tile's first row of the step.
    unsafe fn step<const R: usize>(w: *const u8, half: usize, a: Activations, acc: &mut [Self::Acc; R]);

    /// The output of a row.
    ///
    /// # Safety
    /// The instruction set is there.
    unsafe fn finish(acc: Self::Acc) -> __m256;
}

/// The arrays of [`TileArgs`], at one step.
#[derive(Clone, Copy)]
struct Activations<'a> {
    args: &'a TileArgs,
    cell: usize,
}

/// The kernel of a format.
pub(crate) fn kernel(quant: Quant) -> &'static Kernel {
    match quant {
        Quant::F32 => &const { table::<float::F32>() },
        Quant::F16 => &const { table::<float::F16>() },
        Quant::BF16 => &const { table::<float::BF16>() },
        Quant::Q4_0 => &const { table::<block_32::Step32<block_32::Q4_0>>() },
        Quant::Q4_1 => &const { table::<block_32::Step32<block_32::Q4_1>>() },
        Quant::Q5_0 => &const { table::<block_32::Step32<block_32::Q5_0>>() },
        Quant::Q5_1 => &const { table::<block_32::Step32<block_32::Q5_1>>() },
        Quant::Q8_0 => &const { table::<block_32::Step32<block_32::Q8_0>>() },
        Quant::IQ4_NL => &const { table::<block_32::Step32<block_32::IQ4_NL>>() },
        Quant::Q2_K => &const { table::<block_256::Step256<block_256::Q2_K>>() },
        Quant::Q3_K => &const { table::<block_256::Step256<block_256::Q3_K>>() },
        Quant::Q4_K => &const { table::<block_256::Step256<block_256::Q4_K>>() },
        Quant::Q5_K => &const { table::<block_256::Step256<block_256::Q5_K>>() },
        Quant::Q6_K => &const { table::<block_256::Step256<block_256::Q6_K>>() },
        Quant::IQ4_XS => &const { table::<block_256::Step256<block_256::IQ4_XS>>() },
        Quant::Wide16 => &const { table::<block_16::Wide16>() },
        Quant::Wide32 => &const { table::<block_32::Step32<block_32::Wide32>>() },
        Quant::Wide256 => &const { table::<block_256::Step256<block_256::Wide256>>() },
        _ => unreachable!("{} has panels of {}", quant.name(), quant.panel().name()),
    }
}

const fn table<S: Step>() -> Kernel {
    Kernel {
        pack: pack::pack::<S>,
        tiles: [
            tile::<S, 1>,
            tile::<S, 2>,
            tile::<S, 3>,
            tile::<S, 4>,
            tile::<S, 5>,
            tile::<S, 6>,
            tile::<S, 7>,
            tile::<S, 8>,
        ],
        prefetch_rows: 4,
    }
}

avx2! {
/// See [`crate::cpu::matmul::Tile`].
unsafe fn tile<S: Step, const R: usize>(args: &TileArgs, out: &mut TileOut) {
    for half in 0..2 {
        let mut acc = [S::ZERO; R];
        for step in 0..args.steps {
            let w = args.panels.wrapping_add(step * S::LAYOUT.panel_bytes);
            if half == 0 {
                let mut ahead = w.wrapping_add(PREFETCH_BYTES).cast_const();
                if !args.rows.is_null() {
                    let file = step * S::LAYOUT.file_bytes;
                    // SAFETY: 16 rows of `steps` steps are readable, the panels are writable and aligned.
                    unsafe { pack::pack::<S>(args.rows.add(file), args.stride, w) };
                    // The 16 rows of a group are contiguous in the file: run through the next group meanwhile.
                    ahead = args.rows.wrapping_add(LANES * (args.stride + file));
                }
                if args.prefetch {
                    prefetch(ahead, S::LAYOUT.panel_bytes / 64);
                }
            }
            // SAFETY: step < steps, and the activations have R rows from here on.
            unsafe { S::step::<R>(w, half, Activations { args, cell: step * args.act_rows }, &mut acc) };
        }
        for r in 0..R {
            // SAFETY: 8 of 16 floats. The addition turns a negative zero into a positive one.
            unsafe {
                let sum = _mm256_add_ps(S::finish(acc[r]), _mm256_setzero_ps());
                _mm256_storeu_ps(out[r].as_mut_ptr().add(8 * half), sum);
            }
        }
    }
}
}

/// This half of line `i`. Volatile keeps the loads in ascending order, which the hardware prefetcher wants.
///
/// # Safety
/// The line is readable and 64-byte aligned.
#[inline(always)]
unsafe fn line(w: *const u8, half: usize, i: usize) -> __m256i {
    // SAFETY: the caller's.
    unsafe { w.add(64 * i + 32 * half).cast::<__m256i>().read_volatile() }
}

avx2! {
/// Eight lines from line `first` on.
///
/// # Safety
/// They are readable and aligned.
unsafe fn lines_8(w: *const u8, half: usize, first: usize) -> [__m256i; 8] {
    let mut q = [_mm256_setzero_si256(); 8];
    for i in 0..8 {
        // SAFETY: the caller's.
        q[i] = unsafe { line(w, half, first + i) };
    }
    q
}
}

/// Prefetches `lines` lines into L2.
#[inline(always)]
fn prefetch(ahead: *const u8, lines: usize) {
    for i in 0..lines {
        // SAFETY: a hint that may be given any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(64 * i).cast()) }
    }
}

avx2! {
/// [`Acts::fill_cells`] with this instruction set.
pub(crate) fn fill(acts: &mut Acts, form: Form, x: &[f32], k: usize) {
    acts.fill_cells(quantize::Avx2, form, x, k);
}
}

avx2! {
/// [`Quant::dequantize`], compiled for this instruction set.
pub(crate) fn dequantize(quant: Quant, bytes: &[u8], dst: &mut [f32]) {
    quant.dequantize_blocks(bytes, dst);
}
}

avx2! {
/// [`Quant::expand_blocks`], compiled for this instruction set.
pub(crate) fn expand(quant: Quant, row: &[u8], to: &mut [u8]) {
    quant.expand_blocks(row, to);
}
}

avx2! {
/// This half of the 16 f16 at `p`.
///
/// # Safety
/// They are readable.
unsafe fn f16_half(p: *const u8, half: usize) -> __m256 {
    // SAFETY: the caller's.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(p.add(16 * half).cast()) })
}
}

avx2! {
/// `factor` times the dot product of the codes of `LINES` registers; `factor` has the same i16 in both halves of a lane.
///
/// Products of two codes meet in i16, and so do `MEET` registers of them: 8 for codes below 16, 4 below 32, 2 below 64,
/// 1 for `SIGNED` codes down to -128 (whose sign moves to the activation).
///
/// # Safety
/// `4 * LINES` bytes at `x` are readable.
unsafe fn dot<const LINES: usize, const MEET: usize, const SIGNED: bool>(
    w: &[__m256i], x: *const i8, factor: __m256i,
) -> __m256i {
    let mut sum = _mm256_setzero_si256();
    for first in (0..LINES).step_by(MEET) {
        let mut pairs = _mm256_setzero_si256();
        for i in first..first + MEET {
            // SAFETY: the caller's.
            let x = _mm256_set1_epi32(unsafe { x.add(4 * i).cast::<i32>().read_unaligned() });
            let product = if SIGNED {
                _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(x, w[i]))
            } else {
                _mm256_maddubs_epi16(w[i], x)
            };
            pairs = _mm256_add_epi16(pairs, product);
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, factor));
    }
    sum
}
}
