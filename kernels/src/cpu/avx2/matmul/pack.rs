//! Sixteen file rows to panels: dword transposes. The bytes are those of `Layout::pack_step`.

use std::arch::x86_64::*;

use super::Step;
use crate::panel::LANES;

avx2! {
/// See [`crate::cpu::matmul::Pack`].
pub(super) unsafe fn pack<S: Step>(rows: *const u8, stride: usize, panel: *mut u8) {
    let mut to = panel;
    for field in S::LAYOUT.fields {
        if field.width == 4 && !to.addr().is_multiple_of(64) {
            // SAFETY: the padding half of a line.
            unsafe {
                _mm256_storeu_si256(to.cast(), _mm256_setzero_si256());
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
                        for half in 0..2 {
                            let lines = columns_8(from.add(8 * half * stride), stride);
                            for (i, line) in lines.iter().enumerate() {
                                _mm256_storeu_si256(to.add(64 * i + 32 * half).cast(), *line);
                            }
                        }
                        (left, from, to) = (left - 8, from.add(32), to.add(8 * 64));
                    }
                    (4, 4..) => {
                        for half in 0..2 {
                            let lines = columns_4(from.add(8 * half * stride), stride);
                            for (i, line) in lines.iter().enumerate() {
                                _mm256_storeu_si256(to.add(64 * i + 32 * half).cast(), *line);
                            }
                        }
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
                        for half in 0..2 {
                            let lines = columns_8(from.add(8 * half * stride), stride);
                            for (i, line) in lines.iter().enumerate() {
                                let [first, second] = words_apart(*line);
                                _mm_storeu_si128(to.add(64 * i + 16 * half).cast(), first);
                                _mm_storeu_si128(to.add(64 * i + 32 + 16 * half).cast(), second);
                            }
                        }
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
        unsafe { _mm256_storeu_si256(to.cast(), _mm256_setzero_si256()) };
    }
}
}

avx2! {
/// 4x4 dword transpose inside each 128-bit lane.
fn transpose_4(z: [__m256i; 4]) -> [__m256i; 4] {
    let (u0, u1) = (_mm256_unpacklo_epi32(z[0], z[1]), _mm256_unpackhi_epi32(z[0], z[1]));
    let (v0, v1) = (_mm256_unpacklo_epi32(z[2], z[3]), _mm256_unpackhi_epi32(z[2], z[3]));
    [
        _mm256_unpacklo_epi64(u0, v0),
        _mm256_unpackhi_epi64(u0, v0),
        _mm256_unpacklo_epi64(u1, v1),
        _mm256_unpackhi_epi64(u1, v1),
    ]
}
}

avx2! {
/// Rows `n` and `n + 4`, 16 bytes each.
///
/// # Safety
/// Both are readable.
unsafe fn pair(rows: *const u8, stride: usize, n: usize) -> __m256i {
    // SAFETY: the caller's.
    unsafe { _mm256_loadu2_m128i(rows.add((n + 4) * stride).cast(), rows.add(n * stride).cast()) }
}
}

avx2! {
/// 8 rows x 16 bytes to 4 half lines.
///
/// # Safety
/// 16 bytes of each of 8 rows are readable.
unsafe fn columns_4(rows: *const u8, stride: usize) -> [__m256i; 4] {
    // SAFETY: the caller's.
    unsafe { transpose_4([pair(rows, stride, 0), pair(rows, stride, 1), pair(rows, stride, 2), pair(rows, stride, 3)]) }
}
}

avx2! {
/// 8 rows x 32 bytes to 8 half lines; half line k, lane n = dword k of row n.
///
/// # Safety
/// 32 bytes of each of 8 rows are readable.
unsafe fn columns_8(rows: *const u8, stride: usize) -> [__m256i; 8] {
    // SAFETY: the caller's.
    let (a, b) = unsafe { (columns_4(rows, stride), columns_4(rows.add(16), stride)) };
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}
}

avx2! {
/// Eight pairs of words to eight first words and eight second ones.
fn words_apart(line: __m256i) -> [__m128i; 2] {
    // First words to the low half of each 128-bit lane, second ones to the high half; then the middle quarters swap.
    let order = _mm256_setr_epi8(
        0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
    );
    let apart = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_shuffle_epi8(line, order));
    [_mm256_castsi256_si128(apart), _mm256_extracti128_si256::<1>(apart)]
}
}
