//! Panel matmul on AVX-512 VNNI. Lane = output: 16 weight rows side by side, K runs in time, so an output never needs a
//! horizontal sum and its arithmetic is the specification's, operation for operation.
#![expect(unsafe_code, reason = "vector loads and stores through pointers")]
#![expect(clippy::needless_range_loop, reason = "one index runs through several arrays of rows or registers")]

use std::arch::x86_64::*;

use crate::cpu::matmul::{Kernel, TileArgs, TileOut};
use crate::panel::{LANES, Layout};
use crate::quant::Quant;

/// A function with the instruction set of this folder. Closures do not inherit it: none may hold an intrinsic.
macro_rules! avx512 {
    ($($function:tt)*) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        $($function)*
    };
}

mod block_256;
mod block_32;
mod float;
mod pack;

/// Distance of the software prefetch. It goes into L2: hints for L1 run out of miss buffers.
const PREFETCH_BYTES: usize = 16384;

/// Steps that are packed before they are multiplied: few enough for L1, and the call to pack, around which accumulators
/// are spilled, stays out of the inner loop.
const CHUNK: usize = 8;

/// The inner loop of one format.
trait Step {
    const LAYOUT: Layout;
    /// See [`Kernel::prefetch_rows`].
    const PREFETCH_ROWS: usize;
    /// What is kept of one row between steps.
    type Acc: Copy;
    const ZERO: Self::Acc;

    /// Adds one step to the accumulators of R rows. `ahead`: weights to prefetch, spread over the step, or null.
    ///
    /// # Safety
    /// The panel step at `w` is readable and 64-byte aligned; `a` is at the tile's first row of the step.
    unsafe fn step<const R: usize>(w: *const u8, ahead: *const u8, a: Activations, acc: &mut [Self::Acc; R]);

    /// The output of a row.
    ///
    /// # Safety
    /// The instruction set is there.
    unsafe fn finish(acc: Self::Acc) -> __m512;
}

/// The arrays of [`TileArgs`], at one step.
#[derive(Clone, Copy)]
struct Activations<'a> {
    args: &'a TileArgs,
    cell: usize,
}

/// The kernel of a format; `None` for those that AVX2 multiplies here too.
pub(crate) fn kernel(quant: Quant) -> Option<&'static Kernel> {
    Some(match quant {
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
        _ => return None,
    })
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
        prefetch_rows: S::PREFETCH_ROWS,
    }
}

avx512! {
/// See [`crate::cpu::matmul::Tile`].
unsafe fn tile<S: Step, const R: usize>(args: &TileArgs, out: &mut TileOut) {
    let mut acc = [S::ZERO; R];
    for first in (0..args.steps).step_by(CHUNK) {
        let chunk = first..args.steps.min(first + CHUNK);
        if !args.rows.is_null() {
            for step in chunk.clone() {
                // SAFETY: 16 rows of `steps` steps are readable, the panels are writable and aligned.
                unsafe {
                    let file = args.rows.add(step * S::LAYOUT.file_bytes);
                    pack::pack::<S>(file, args.stride, args.panels.add(step * S::LAYOUT.panel_bytes));
                }
            }
        }
        for step in chunk {
            let w = args.panels.wrapping_add(step * S::LAYOUT.panel_bytes).cast_const();
            let ahead = match (args.prefetch, args.rows.is_null()) {
                (false, _) => std::ptr::null(),
                (true, true) => w.wrapping_add(PREFETCH_BYTES),
                // The 16 rows of a group are contiguous in the file: run through the next group meanwhile.
                (true, false) => args.rows.wrapping_add(LANES * (args.stride + step * S::LAYOUT.file_bytes)),
            };
            // SAFETY: step < steps, and the activations have R rows from here on.
            unsafe { S::step::<R>(w, ahead, Activations { args, cell: step * args.act_rows }, &mut acc) };
        }
    }
    for r in 0..R {
        // SAFETY: 16 floats. The last addition turns a negative zero into a positive one.
        unsafe { _mm512_storeu_ps(out[r].as_mut_ptr(), _mm512_add_ps(S::finish(acc[r]), _mm512_setzero_ps())) };
    }
}
}

/// Line `i`. Volatile keeps the loads in ascending order: LLVM otherwise emits them backwards, which halves the speed of
/// the hardware prefetcher at one row.
///
/// # Safety
/// The line is readable and 64-byte aligned.
#[inline(always)]
unsafe fn line(w: *const u8, i: usize) -> __m512i {
    // SAFETY: the caller's.
    unsafe { w.add(64 * i).cast::<__m512i>().read_volatile() }
}

/// Prefetches `lines` lines into L2, unless `ahead` is null.
#[inline(always)]
fn prefetch(ahead: *const u8, first: usize, lines: usize) {
    if !ahead.is_null() {
        for i in first..first + lines {
            // SAFETY: a hint that may be given any address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(ahead.wrapping_add(64 * i).cast()) }
        }
    }
}

avx512! {
/// `init` + dot product of 32 codes: eight `vpdpbusd` with the activation dword as embedded broadcast, two chains.
/// In assembly, because LLVM merges neighbouring dword loads into vector loads, then permutes and spills.
///
/// # Safety
/// 32 bytes at `x` are readable.
unsafe fn dot_32(init: __m512i, w: &[__m512i; 8], x: *const i8) -> __m512i {
    let (mut a, mut b) = (init, _mm512_setzero_si512());
    // SAFETY: reads 32 bytes at x.
    unsafe {
        core::arch::asm!(
            "vpdpbusd {a}, {w0}, dword ptr [{x}]{{1to16}}",
            "vpdpbusd {b}, {w1}, dword ptr [{x} + 4]{{1to16}}",
            "vpdpbusd {a}, {w2}, dword ptr [{x} + 8]{{1to16}}",
            "vpdpbusd {b}, {w3}, dword ptr [{x} + 12]{{1to16}}",
            "vpdpbusd {a}, {w4}, dword ptr [{x} + 16]{{1to16}}",
            "vpdpbusd {b}, {w5}, dword ptr [{x} + 20]{{1to16}}",
            "vpdpbusd {a}, {w6}, dword ptr [{x} + 24]{{1to16}}",
            "vpdpbusd {b}, {w7}, dword ptr [{x} + 28]{{1to16}}",
            a = inout(zmm_reg) a, b = inout(zmm_reg) b, x = in(reg) x,
            w0 = in(zmm_reg) w[0], w1 = in(zmm_reg) w[1], w2 = in(zmm_reg) w[2], w3 = in(zmm_reg) w[3],
            w4 = in(zmm_reg) w[4], w5 = in(zmm_reg) w[5], w6 = in(zmm_reg) w[6], w7 = in(zmm_reg) w[7],
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    _mm512_add_epi32(a, b)
}
}

avx512! {
/// The dot products of the first and the second 16 of 32 codes.
///
/// # Safety
/// 32 bytes at `x` are readable.
unsafe fn dot_16_16(w: &[__m512i; 8], x: *const i8) -> [__m512i; 2] {
    let (mut a, mut b) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    // SAFETY: reads 32 bytes at x.
    unsafe {
        core::arch::asm!(
            "vpdpbusd {a}, {w0}, dword ptr [{x}]{{1to16}}",
            "vpdpbusd {b}, {w4}, dword ptr [{x} + 16]{{1to16}}",
            "vpdpbusd {a}, {w1}, dword ptr [{x} + 4]{{1to16}}",
            "vpdpbusd {b}, {w5}, dword ptr [{x} + 20]{{1to16}}",
            "vpdpbusd {a}, {w2}, dword ptr [{x} + 8]{{1to16}}",
            "vpdpbusd {b}, {w6}, dword ptr [{x} + 24]{{1to16}}",
            "vpdpbusd {a}, {w3}, dword ptr [{x} + 12]{{1to16}}",
            "vpdpbusd {b}, {w7}, dword ptr [{x} + 28]{{1to16}}",
            a = inout(zmm_reg) a, b = inout(zmm_reg) b, x = in(reg) x,
            w0 = in(zmm_reg) w[0], w1 = in(zmm_reg) w[1], w2 = in(zmm_reg) w[2], w3 = in(zmm_reg) w[3],
            w4 = in(zmm_reg) w[4], w5 = in(zmm_reg) w[5], w6 = in(zmm_reg) w[6], w7 = in(zmm_reg) w[7],
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    [a, b]
}
}

avx512! {
/// `acc` + pairs of i16 times the pair at `x`.
///
/// # Safety
/// 4 bytes at `x` are readable.
unsafe fn dot_pairs(acc: __m512i, w: __m512i, x: *const i16) -> __m512i {
    let mut a = acc;
    // SAFETY: reads 4 bytes at x.
    unsafe {
        core::arch::asm!(
            "vpdpwssd {a}, {w}, dword ptr [{x}]{{1to16}}",
            a = inout(zmm_reg) a, w = in(zmm_reg) w, x = in(reg) x,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    a
}
}
