//! Sixteen file rows to panels: dword and word transposes. The bytes are those of `Layout::pack_step`.

use std::arch::x86_64::*;

use super::Step;
use crate::panel::LANES;

avx512! {
/// See [`crate::cpu::matmul::Pack`].
pub(super) unsafe fn pack<S: Step>(rows: *const u8, stride: usize, panel: *mut u8) {
    let mut to = panel;
    for field in S::LAYOUT.fields {
        if field.width == 4 && !to.addr().is_multiple_of(64) {
            // SAFETY: the padding half of a line.
            unsafe {
                _mm256_store_si256(to.cast(), _mm256_setzero_si256());
                to = to.add(32);
            }
        }
        let mut left = field.count;
        let mut from = rows.wrapping_add(field.at);
        while left > 0 {
            // SAFETY: `left` elements of the field are readable in each row at `from`, and their lines writable.
            unsafe {
                match (field.width, left) {
                    (4, 8..) => {
                        store(to, columns_8(from, stride));
                        (left, from, to) = (left - 8, from.add(32), to.add(8 * 64));
                    }
                    (4, 4..) => {
                        store(to, columns_4(from, stride));
                        (left, from, to) = (left - 4, from.add(16), to.add(4 * 64));
                    }
                    (4, _) => {
                        for lane in 0..LANES {
                            let value = from.add(lane * stride).cast::<u32>().read_unaligned();
                            to.cast::<u32>().add(lane).write(value);
                        }
                        (left, from, to) = (left - 1, from.add(4), to.add(64));
                    }
                    (_, 16..) => {
                        store(to, words_apart(columns_8(from, stride)));
                        (left, from, to) = (left - 16, from.add(32), to.add(16 * 32));
                    }
                    (_, _) => {
                        for lane in 0..LANES {
                            let value = from.add(lane * stride).cast::<u16>().read_unaligned();
                            to.cast::<u16>().add(lane).write(value);
                        }
                        (left, from, to) = (left - 1, from.add(2), to.add(32));
                    }
                }
            }
        }
    }
    if !to.addr().is_multiple_of(64) {
        // SAFETY: as above.
        unsafe { _mm256_store_si256(to.cast(), _mm256_setzero_si256()) };
    }
}
}

/// # Safety
/// N lines at `to` are writable and aligned.
#[inline(always)]
unsafe fn store<const N: usize>(to: *mut u8, lines: [__m512i; N]) {
    for (i, line) in lines.into_iter().enumerate() {
        // SAFETY: the caller's.
        unsafe { to.add(64 * i).cast::<__m512i>().write(line) };
    }
}

avx512! {
/// 4x4 dword transpose inside each 128-bit lane.
fn transpose_4(z: [__m512i; 4]) -> [__m512i; 4] {
    let (u0, u1) = (_mm512_unpacklo_epi32(z[0], z[1]), _mm512_unpackhi_epi32(z[0], z[1]));
    let (v0, v1) = (_mm512_unpacklo_epi32(z[2], z[3]), _mm512_unpackhi_epi32(z[2], z[3]));
    [
        _mm512_unpacklo_epi64(u0, v0),
        _mm512_unpackhi_epi64(u0, v0),
        _mm512_unpacklo_epi64(u1, v1),
        _mm512_unpackhi_epi64(u1, v1),
    ]
}
}

avx512! {
/// Rows `lo` and `hi`, 32 bytes each.
///
/// # Safety
/// Both are readable.
unsafe fn pair(rows: *const u8, stride: usize, lo: usize, hi: usize) -> __m512i {
    // SAFETY: the caller's.
    let (lo, hi) = unsafe {
        (_mm256_loadu_si256(rows.add(lo * stride).cast()), _mm256_loadu_si256(rows.add(hi * stride).cast()))
    };
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(lo), hi)
}
}

avx512! {
/// 16 rows x 32 bytes to 8 lines; line k, lane n = dword k of row n.
///
/// # Safety
/// 32 bytes of each of 16 rows are readable.
unsafe fn columns_8(rows: *const u8, stride: usize) -> [__m512i; 8] {
    // SAFETY: the caller's.
    let (a, b) = unsafe {(
        transpose_4([
            pair(rows, stride, 0, 4), pair(rows, stride, 1, 5), pair(rows, stride, 2, 6), pair(rows, stride, 3, 7),
        ]),
        transpose_4([
            pair(rows, stride, 8, 12), pair(rows, stride, 9, 13), pair(rows, stride, 10, 14), pair(rows, stride, 11, 15),
        ]),
    )};
    let mut out = [_mm512_setzero_si512(); 8];
    for i in 0..4 {
        out[i] = _mm512_shuffle_i32x4::<0x88>(a[i], b[i]);
        out[i + 4] = _mm512_shuffle_i32x4::<0xdd>(a[i], b[i]);
    }
    out
}
}

avx512! {
/// Rows `n`, `n + 4`, `n + 8` and `n + 12`, 16 bytes each.
///
/// # Safety
/// All are readable.
unsafe fn quad(rows: *const u8, stride: usize, n: usize) -> __m512i {
    // SAFETY: the caller's.
    let x: [__m128i; 4] = unsafe {[
        _mm_loadu_si128(rows.add(n * stride).cast()),
        _mm_loadu_si128(rows.add((n + 4) * stride).cast()),
        _mm_loadu_si128(rows.add((n + 8) * stride).cast()),
        _mm_loadu_si128(rows.add((n + 12) * stride).cast()),
    ]};
    _mm512_inserti64x4::<1>(
        _mm512_castsi256_si512(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(x[0]), x[1])),
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(x[2]), x[3]),
    )
}
}

avx512! {
/// 16 rows x 16 bytes to 4 lines.
///
/// # Safety
/// 16 bytes of each of 16 rows are readable.
unsafe fn columns_4(rows: *const u8, stride: usize) -> [__m512i; 4] {
    // SAFETY: the caller's.
    unsafe { transpose_4([quad(rows, stride, 0), quad(rows, stride, 1), quad(rows, stride, 2), quad(rows, stride, 3)]) }
}
}

avx512! {
/// Every line of 16 pairs of words to 16 first words, then 16 second ones.
fn words_apart(lines: [__m512i; 8]) -> [__m512i; 8] {
    let mut out = lines;
    for line in &mut out {
        let first = _mm512_cvtepi32_epi16(*line);
        let second = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(*line));
        *line = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
    }
    out
}
}
